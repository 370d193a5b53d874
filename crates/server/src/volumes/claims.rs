//! Whose a file or a disk is. What is open is locked; what is not is looked after here: disks of
//! volumes whose others are missing, of restores that were cut, and of adopted devices.

use std::path::Path;
use std::sync::{Arc, Weak};

use super::{VolumeState, Volumes};
use crate::error::ServerError;
use crate::state;
use crate::storage::claims::{Claims, is_same};
use crate::volumes::document::VolumeDocument;
use crate::volumes::error::VolumesError;
use crate::volumes::under::Beneath;

impl Volumes {
    /// Asks him too, from now on, before a file or a disk is taken.
    pub(crate) fn also_ask<T: Claims + 'static>(&self, other: &Arc<T>) {
        let other: Weak<T> = Arc::downgrade(other);
        // There is one such, who comes once.
        let _ = self.others.set(other);
    }

    /// Refuses a device of a volume that is not open, of a restore that was cut, or of who else is
    /// [asked](Self::also_ask). Those of open ones are locked; of these, one in the middle may
    /// begin with zeroes and hold data further on.
    pub(crate) fn refuse_if_claimed(&self, path: &Path) -> Result<(), ServerError> {
        let unavailable = |(name, entry): (&String, &VolumeState)| {
            (!matches!(entry, VolumeState::Open(_))).then(|| name.clone())
        };
        let closed: Vec<String> = self.entries.read().iter().filter_map(unavailable).collect();
        for name in closed {
            let folder = self.folder(&name);
            let Some(document) = self.places(&name) else {
                // Any device may be its own, unless there is no document at all.
                state::load::<VolumeDocument>(&folder.join("volume.json"))?;
                continue;
            };
            let store = document.history.as_ref().map(Beneath::store);
            let mut claimed = document.devices.iter().chain(&document.log_devices).chain(store);
            if claimed.any(|device| is_same(&folder.join(device), path)) {
                return Err(ServerError::Volumes(VolumesError::DeviceClaimed {
                    path: path.to_owned(),
                    volume: name,
                }));
            }
        }
        self.refuse_if_restored_to(path)?;
        let other = self.others.get().and_then(Weak::upgrade);
        other.map_or(Ok(()), |other| other.refuse_claimed(path))
    }
}
