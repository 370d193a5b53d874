//! The content that an unfinished volume has written to devices that its owner named: identified by
//! a note saved earlier, and cleared by the start after a kill.
//!
//! A device is cleared only if it still has that unfinished volume, or that log, and no later
//! writes. A device that is open elsewhere is not cleared.

use std::path::Path;
use std::time::Duration;

use cairn_device::FileDevice;
use cairn_volume::Volume;

use super::history::take_back_history;
use crate::error::ServerError;
use crate::state;
use crate::volumes::disks::{BUSY_PATIENCE, clear_beginning, open_when_free};
use crate::volumes::document::{Making, VolumeDocument};

impl Making {
    /// The device begins with that volume, as it was made.
    fn is_volume(&self, device: &FileDevice) -> bool {
        // A mirror has the id of its source, as others may have; one that has received data has a
        // later generation.
        Volume::inspect(device)
            .is_ok_and(|found| found.id.to_string() == self.volume && Volume::is_as_made(device))
    }

    fn is_log(&self, device: &FileDevice) -> bool {
        let found = Volume::log_on(device).ok().flatten();
        found.is_some_and(|(_, log)| self.log.as_ref() == Some(&log.to_string()))
    }

    fn take_back(&self, document: &VolumeDocument, patience: Duration) -> Result<(), ServerError> {
        let (devices, logs) = (&document.devices, &document.log_devices);
        // One that was made of an image in a bucket has the generation of that image. Its devices
        // were empty before it was made.
        let is_image = document.from_bucket.is_some();
        // Those in the folder go with it.
        for path in devices.iter().filter(|path| path.is_absolute() && path.exists()) {
            let device = open_when_free(path, patience)?;
            let is_of_image = || {
                is_image && Volume::inspect(&*device).is_ok_and(|found| found.id.to_string() == self.volume)
            };
            if self.is_volume(&device) || is_of_image() {
                clear_beginning(&device)?;
            }
        }
        for path in logs.iter().filter(|path| path.exists()) {
            let device = open_when_free(path, patience)?;
            if self.is_log(&device) {
                clear_beginning(&device)?;
            }
        }
        Ok(())
    }
}

/// Clears the remains of a volume that was never complete, whose creation was interrupted in
/// `folder`. It was never used.
pub(super) fn take_back_made(folder: &Path) {
    let name = folder.file_name().and_then(|name| name.to_str());
    let Some(volume) = name.and_then(|name| name.strip_prefix('.')?.strip_suffix(".new")) else { return };
    let Some(document) = state::load::<VolumeDocument>(&folder.join("volume.json")).ok().flatten() else {
        return;
    };
    take_back_history(volume, &document);
    if let Some(making) = &document.made_as {
        tracing::warn!(volume, "removed a volume whose creation was interrupted; run the same command again");
        if let Err(error) = making.take_back(&document, BUSY_PATIENCE) {
            tracing::warn!(volume, %error, "could not clear the remains of an unfinished volume from its devices");
        }
    }
}
