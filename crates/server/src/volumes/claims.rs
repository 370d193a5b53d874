//! Ownership of files and disks. Open ones are locked; this protects closed ones: disks of volumes
//! that lack others, of interrupted restores, and of adopted devices.

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
    /// Registers another part to ask before a file or a disk is claimed.
    pub(crate) fn also_ask<T: Claims + 'static>(&self, other: &Arc<T>) {
        let other: Weak<T> = Arc::downgrade(other);
        // There is one such part, which is registered once.
        let _ = self.others.set(other);
    }

    /// Refuses a device of a volume that is not open, of an interrupted restore, or of the [other
    /// part](Self::also_ask). Those of open ones are locked; a device of a closed one may begin
    /// with zeroes and have data further on.
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
