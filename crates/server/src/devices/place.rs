//! Where an origin or a history is: a file or disk, or a LUN of a volume of this server.

use std::path::Path;
use std::sync::Arc;

use cairn_device::{Device, FileOptions};

use super::{DeviceState, Devices};
use crate::daemon::error::DaemonError;
use crate::devices::error::DevicesError;
use crate::error::ServerError;
use crate::mirrors::error::MirrorsError;
use crate::storage::files::{open_when_free, origin_options, store_options};
use crate::storage::place::Place;
use crate::volumes::error::VolumesError;
use crate::volumes::{Claims, is_same};

impl Devices {
    /// Opens the origin; `in_use` if its owner allows other programs to have it open as well.
    pub(super) fn open_origin(&self, place: &Place, in_use: bool) -> Result<Arc<dyn Device>, ServerError> {
        self.open_place(place, FileOptions { in_use, ..origin_options() })
    }

    /// The same for an origin that is being adopted.
    pub(super) fn take_present_origin(
        &self,
        place: &Place,
        in_use: bool,
    ) -> Result<Arc<dyn Device>, ServerError> {
        self.open_place(place, FileOptions { in_use, is_new: true, ..origin_options() })
    }

    /// Opens the store of a history.
    pub(super) fn open_store(&self, place: &Place) -> Result<Arc<dyn Device>, ServerError> {
        self.open_place(place, store_options())
    }

    fn open_place(&self, place: &Place, options: FileOptions) -> Result<Arc<dyn Device>, ServerError> {
        match place {
            Place::File(path) => Ok(open_when_free(path, options)?),
            Place::Lun { volume, lun } => {
                let open = self.volumes.get(volume)?;
                if open.is_destination() {
                    return Err(ServerError::Mirrors(MirrorsError::IsDestination { volume: volume.clone() }));
                }
                open.luns.open(lun).map_err(ServerError::files(&place.to_string()))
            }
        }
    }

    /// The device whose origin is that LUN.
    pub(crate) fn adopter_of(&self, lun: &str) -> Option<String> {
        let entries = self.entries.read();
        entries
            .iter()
            .find(|(_, entry)| entry.origin().lun_name().as_deref() == Some(lun))
            .map(|(name, _)| name.clone())
    }

    /// True for a LUN in which a device has its history; and for any LUN while an unknown device
    /// exists: the LUN may be its origin or its history, and accepts no writes.
    pub(crate) fn is_history(&self, lun: &str) -> bool {
        self.entries.read().values().any(DeviceState::is_unknown) || self.holds_history(lun)
    }

    /// True for a LUN in which a device has its history, as far as that is known.
    pub(crate) fn holds_history(&self, lun: &str) -> bool {
        let entries = self.entries.read();
        let has =
            |entry: &DeviceState| entry.history().and_then(|place| place.lun_name()).as_deref() == Some(lun);
        entries.values().any(has)
    }

    /// The LUN that is the origin of a device.
    pub(crate) fn lun_of(&self, device: &str) -> Option<String> {
        self.entries.read().get(device)?.origin().lun_name()
    }

    /// The name under which the settings and the reservations of a present export are stored: for a
    /// device on a LUN it is the LUN's, as the two are one disk.
    pub(crate) fn disk_of(&self, export: &str) -> String {
        self.lun_of(export).unwrap_or_else(|| export.to_owned())
    }

    /// The devices whose origin is a LUN, each with that.
    pub(crate) fn on_luns(&self) -> Vec<(String, String)> {
        let entries = self.entries.read();
        entries.iter().filter_map(|(name, entry)| Some((name.clone(), entry.origin().lun_name()?))).collect()
    }

    /// Refuses a file or a disk of a volume, or of another device, that is not open: a writer would
    /// change data that it relies on.
    pub(super) fn refuse_claimed_place(&self, place: &Place) -> Result<(), ServerError> {
        match place {
            Place::File(path) => {
                self.volumes.refuse_if_claimed(path)?;
                self.refuse_claimed(path)
            }
            Place::Lun { .. } => Ok(()),
        }
    }

    /// Refuses changes of LUNs under a device with a history: `None` is any LUN of the volume.
    pub(crate) fn refuse_adopted(&self, volume: &str, lun: Option<&str>) -> Result<(), ServerError> {
        let entries = self.entries.read();
        for (name, entry) in entries.iter() {
            if let (true, DeviceState::Unavailable(_, error)) = (entry.is_unknown(), entry) {
                let (reason, path) = (error.to_string(), self.path(name));
                return Err(ServerError::Daemon(DaemonError::StateUnread { path, reason }));
            }
            let places = [Some(entry.origin()), entry.history()];
            for place in places.into_iter().flatten() {
                let concerned = match lun {
                    None => place.is_in(volume),
                    Some(lun) => place.lun_name() == Some(format!("{volume}/{lun}")),
                };
                if concerned {
                    let lun = place.lun_name().unwrap_or_default();
                    return Err(ServerError::Devices(DevicesError::Adopted { lun, device: name.clone() }));
                }
            }
        }
        Ok(())
    }
}

impl Claims for Devices {
    fn refuse_claimed(&self, path: &Path) -> Result<(), ServerError> {
        let unavailable = |(name, entry): (&String, &DeviceState)| match entry {
            DeviceState::Unavailable(document, error) => {
                Some((name.clone(), document.clone(), error.clone()))
            }
            _ => None,
        };
        let closed: Vec<_> = self.entries.read().iter().filter_map(unavailable).collect();
        // Not under the lock: a disk may not answer.
        for (device, document, error) in closed {
            if document.unknown {
                let (reason, path) = (error.to_string(), self.path(&device));
                return Err(ServerError::Daemon(DaemonError::StateUnread { path, reason }));
            }
            if document.files().iter().any(|file| is_same(file, path)) {
                return Err(ServerError::Volumes(VolumesError::ClaimedByDevice {
                    path: path.to_owned(),
                    device,
                }));
            }
        }
        Ok(())
    }
}
