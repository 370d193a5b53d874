//! Volumes whose devices were missing when the server started: opened as soon as these appear.
//!
//! A disk can appear later than the server, and a log device can return. No data of such a volume
//! was touched, so a retry is as safe as the first attempt.

use std::sync::Arc;
use std::time::Duration;

use cairn_history::HistoryError;
use cairn_volume::VolumeError;

use super::{VolumeState, Volumes, not_found};
use crate::devices::error::DevicesError;
use crate::error::ServerError;
use crate::storage::settled::has_settled;
use crate::volumes::disks::BUSY_PATIENCE;
use crate::volumes::error::VolumesError;
use crate::volumes::from_bucket::error::FromBucketError;
use crate::volumes::open::OpenVolume;

/// The work of a volume whose devices are being opened, which may take any time if one hangs.
pub(super) const OPENING: &str = "its devices are being opened";

impl Volumes {
    /// Whether one waits for a device that may come yet.
    pub(crate) fn waits_for_devices(&self) -> bool {
        let waits =
            |entry: &VolumeState| matches!(entry, VolumeState::Unavailable(error) if wants_a_device(error));
        self.entries.read().values().any(waits)
    }

    /// Tries again to open each volume that wants a device; `opened` gets those that are open now,
    /// each at once: the next may hang.
    pub(crate) fn open_waiting(&self, opened: &dyn Fn(&Arc<OpenVolume>)) {
        let waits = |(name, entry): (&String, &VolumeState)| match entry {
            VolumeState::Unavailable(error) if wants_a_device(error) => Some(name.clone()),
            _ => None,
        };
        let waiting: Vec<String> = self.entries.read().iter().filter_map(waits).collect();
        waiting.iter().filter_map(|name| self.open_if_there(name)).for_each(|open| opened(&open));
    }

    /// Retries to open a volume whose devices exist. Does nothing if another thread does so
    /// already, whose disk may hang.
    fn open_if_there(&self, name: &str) -> Option<Arc<OpenVolume>> {
        let _turn = self.turns.take_now(name, OPENING)?;
        if self.is_there(name) { self.open_once_more(name) } else { None }
    }

    /// True if the devices of a volume exist, and are not just being copied there. Some of its
    /// log's devices may be permanently gone.
    fn is_there(&self, name: &str) -> bool {
        let Ok(document) = self.document(name) else { return false };
        let folder = self.folder(name);
        let store = document.history.as_ref().map(|beneath| beneath.store().clone());
        let devices = document.devices.iter().map(|device| folder.join(device)).chain(store);
        let logs = document.log_devices.iter().filter(|log| log.exists()).cloned();
        devices.chain(logs).all(|path| has_settled(&path))
    }

    /// Tries again to open one.
    pub(crate) fn open_again(&self, name: &str) -> Option<Arc<OpenVolume>> {
        let _turn = self.turns.take(&[name], OPENING).ok()?;
        self.open_once_more(name)
    }

    /// The same for the holder of the turn.
    fn open_once_more(&self, name: &str) -> Option<Arc<OpenVolume>> {
        // It may have been opened or deleted meanwhile.
        if !matches!(self.entries.read().get(name), Some(VolumeState::Unavailable(_))) {
            return None;
        }
        let (entry, open) = match self.open_one(name, Duration::ZERO) {
            Ok(open) => {
                tracing::info!(volume = name, "its devices are available now, and it is open");
                (VolumeState::Open(open.clone()), Some(open))
            }
            Err(error) => (VolumeState::Unavailable(Arc::new(error)), None),
        };
        self.entries.write().insert(name.to_owned(), entry);
        if open.is_some() {
            self.open_clones_of(name);
        }
        open
    }

    /// Why a volume that could not be opened still can't be: the cause may have gone since the
    /// server started. An open one is `there`.
    pub(super) fn still_closed(
        &self,
        name: &str,
        there: &dyn Fn() -> ServerError,
    ) -> Result<ServerError, ServerError> {
        match self.entries.read().get(name) {
            Some(VolumeState::Unavailable(_)) => {}
            Some(VolumeState::Open(_)) => return Err(there()),
            Some(VolumeState::Away { by }) => return Err(ServerError::Busy { name: name.to_owned(), by }),
            None => return Err(not_found(name)),
        }
        match self.open_one(name, BUSY_PATIENCE) {
            Ok(open) => {
                self.put(name, &Ok(open));
                self.open_clones_of(name);
                Err(there())
            }
            Err(reason) => Ok(reason),
        }
    }
}

/// True when a volume cannot be opened for lack of a device that may still appear.
fn wants_a_device(error: &ServerError) -> bool {
    match error {
        ServerError::Volumes(VolumesError::OpenDevice(_))
        | ServerError::Volumes(VolumesError::LogUnavailable { .. })
        | ServerError::Volumes(VolumesError::HistoryUnavailable { .. })
        | ServerError::Volumes(VolumesError::FromBucket(FromBucketError::Away { .. }))
        | ServerError::Devices(DevicesError::History { source: HistoryError::StoreOlder { .. }, .. }) => true,
        ServerError::Volumes(VolumesError::Volume { source, .. }) => matches!(
            source,
            VolumeError::LogMissing { .. }
                | VolumeError::LogOther { .. }
                | VolumeError::OlderThanLog { .. }
                | VolumeError::NotALog { .. }
                | VolumeError::LogDevice(_)
                | VolumeError::Device(_)
        ),
        _ => false,
    }
}
