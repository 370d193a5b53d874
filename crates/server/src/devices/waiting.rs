//! Devices whose disk or store was missing or a different one when the server started: opened as
//! soon as the right one appears. No data of such a device was touched, so a retry is as safe as
//! the first attempt.

use std::sync::Arc;

use cairn_device::OpenError;
use cairn_history::HistoryError;

use super::{DeviceState, Devices};
use crate::devices::error::DevicesError;
use crate::devices::open::DeviceDocument;
use crate::error::ServerError;
use crate::storage::place::Place;
use crate::storage::settled::has_settled;
use crate::volumes::error::VolumesError;

impl Devices {
    /// Whether one waits for a disk, a store or a volume that may come yet.
    pub(crate) fn waits_for_devices(&self) -> bool {
        self.entries.read().values().any(|entry| waiting(entry).is_some())
    }

    /// Tries again to open each device that waits for a disk, a store, or the volume that one of
    /// them is in.
    pub(crate) fn open_waiting(&self) {
        let waits = |(name, entry): (&String, &DeviceState)| waiting(entry).map(|_| name.clone());
        let names: Vec<String> = self.entries.read().iter().filter_map(waits).collect();
        for name in names {
            // The holder of the turn opens it, or its disk hangs.
            let Some(_turn) = self.turns.take_now(&name, "what it is on is being opened") else { continue };
            // It may have been opened or released meanwhile.
            let Some(document) = self.entries.read().get(&name).and_then(waiting) else { continue };
            let is_there = |place: &Place| match place {
                Place::File(path) => has_settled(path),
                Place::Lun { volume, .. } => self.volumes.get(volume).is_ok(),
            };
            if !is_there(&document.origin) || document.history.as_ref().is_some_and(|store| !is_there(store))
            {
                continue;
            }
            let entry = match self.start(&name, &document) {
                Ok(entry) => {
                    tracing::info!(device = name, "its disk and store are available now, and it is open");
                    entry
                }
                Err(error) => DeviceState::Unavailable(document, Arc::new(error)),
            };
            self.entries.write().insert(name, entry);
        }
    }
}

/// The document of a device whose disk or store may still appear. A device whose release was in
/// progress is opened by a start, which finds the progress of the release, or when the release is
/// requested again.
fn waiting(entry: &DeviceState) -> Option<DeviceDocument> {
    let DeviceState::Unavailable(document, error) = entry else { return None };
    let may_come = match &**error {
        // Waiting for a lock takes time, and would keep others waiting.
        ServerError::Volumes(VolumesError::OpenDevice(error)) => !matches!(error, OpenError::Busy { .. }),
        ServerError::Volumes(VolumesError::VolumeUnavailable { .. }) | ServerError::NotFound { .. } => true,
        ServerError::Devices(DevicesError::History { source, .. }) => matches!(
            source,
            HistoryError::StoreOlder { .. } | HistoryError::OtherStore { .. } | HistoryError::Device(_)
        ),
        _ => false,
    };
    (may_come && !document.releasing).then(|| document.clone())
}
