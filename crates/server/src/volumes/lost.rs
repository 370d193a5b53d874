//! Volumes whose devices are missing, truncated or empty: the remedies, which differ between a
//! mirror and a writable volume.

use cairn_device::OpenError;
use cairn_volume::VolumeError;

use super::Volumes;
use crate::error::ServerError;
use crate::mirrors::document::is_mirror;
use crate::volumes::error::VolumesError;

impl Volumes {
    /// The remedy for a volume that is not open because its devices have changed; none for another
    /// reason.
    pub(super) fn next_of_lost(&self, name: &str, error: &ServerError) -> Option<String> {
        let back = match error {
            ServerError::Volumes(VolumesError::OpenDevice(OpenError::Missing { .. })) => {
                "bring its devices back as they were (attach the disk, mount the file system, put the file in its place), and it is opened within seconds"
            }
            ServerError::Volumes(VolumesError::Volume { source, .. }) if is_another(source) => {
                "bring its devices back as they were (attach the right disk, put a whole copy of the file in its place), and restart the server"
            }
            _ => return None,
        };
        let clone_of = self.places(name).and_then(|document| document.clone_of);
        let lost = match clone_of {
            Some(_) => format!("`cairn clone delete {name}` deletes it; its base is not changed"),
            None if is_mirror(&self.folder(name)) => format!(
                "delete the rest of this mirror with `cairn volume delete {name}`, and mirror it again with `cairn mirror create {name} TOKEN` and a token of `cairn peer invite` on the source"
            ),
            None => format!(
                "fail over to a mirror (`cairn mirror failover {name}` on its server), or delete the rest with `cairn volume delete {name}` and restore an image dump: `cairn image restore {name} FILE...`"
            ),
        };
        Some(format!("{back}; if they are lost for good, {lost}"))
    }
}

/// True if there is no volume, a part of one, or one with a damaged beginning.
fn is_another(error: &VolumeError) -> bool {
    matches!(
        error,
        VolumeError::DeviceTooSmall { .. }
            | VolumeError::NotAVolume { .. }
            | VolumeError::Label(_)
            | VolumeError::Damaged { .. }
            | VolumeError::MapContradicts { .. }
    )
}
