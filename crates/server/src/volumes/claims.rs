//! Whose a file or a disk is. What is open is locked; what is not is looked after here: disks of volumes whose others are missing, of restores that were cut, and of adopted devices.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::{Arc, Weak};

use super::{Beneath, Document, Entry, Volumes};
use crate::error::ServerError;
use crate::settled::found;
use crate::state;

/// Who can have files and disks beside volumes.
pub(crate) trait Claims: Send + Sync {
    /// Refuses what is his and not open; what is open is locked.
    fn refuse_claimed(&self, path: &Path) -> Result<(), ServerError>;
}

impl Volumes {
    /// Asks him too, from now on, before a file or a disk is taken.
    pub(crate) fn also_ask<T: Claims + 'static>(&self, other: &Arc<T>) {
        let other: Weak<T> = Arc::downgrade(other);
        // There is one such, who comes once.
        let _ = self.others.set(other);
    }

    /// Refuses a device of a volume that is not open, of a restore that was cut, or of who else is [asked](Self::also_ask). Those of open ones are locked; of these, one in the middle may begin with zeroes and hold data
    /// further on.
    pub(crate) fn refuse_if_claimed(&self, path: &Path) -> Result<(), ServerError> {
        let unavailable =
            |(name, entry): (&String, &Entry)| (!matches!(entry, Entry::Open(_))).then(|| name.clone());
        let closed: Vec<String> = self.entries.read().iter().filter_map(unavailable).collect();
        for name in closed {
            let folder = self.folder(&name);
            let Some(document) = self.places(&name) else {
                // Any device may be its own, unless there is no document at all.
                state::load::<Document>(&folder.join("volume.json"))?;
                continue;
            };
            let store = document.history.as_ref().map(Beneath::store);
            let mut claimed = document.devices.iter().chain(&document.log_devices).chain(store);
            if claimed.any(|device| is_same(&folder.join(device), path)) {
                return Err(ServerError::DeviceClaimed { path: path.to_owned(), volume: name });
            }
        }
        self.refuse_if_restored_to(path)?;
        let other = self.others.get().and_then(Weak::upgrade);
        other.map_or(Ok(()), |other| other.refuse_claimed(path))
    }
}

/// True when both are there and are one file or disk, whatever they are called.
pub(crate) fn is_same(one: &Path, other: &Path) -> bool {
    let (Some(one), Some(other)) = (found(one), found(other)) else { return false };
    let disk = one.file_type().is_block_device() && other.file_type().is_block_device();
    if disk { one.rdev() == other.rdev() } else { (one.dev(), one.ino()) == (other.dev(), other.ino()) }
}

/// Refuses a path that would be another one where the server is started next, or in the folder of a volume.
pub(super) fn refuse_relative(what: &'static str, path: &Path) -> Result<(), ServerError> {
    if path.is_absolute() { Ok(()) } else { Err(ServerError::Invalid { what, rule: "it is absolute" }) }
}
