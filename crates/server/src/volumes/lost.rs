//! Volumes whose devices are gone, cut off or empty: the ways out, which are others for a mirror than for a volume that somebody writes to.

use cairn_device::OpenError;
use cairn_volume::VolumeError;

use super::Volumes;
use crate::error::ServerError;
use crate::mirrors::document::is_mirror;
use crate::volumes::error::VolumesError;

impl Volumes {
    /// What to do about a volume that is not open as what it lies on is not what it was; none where it is something else.
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
            Some(_) => format!("`cairn clone delete {name}` gives it up; what it is made of is not harmed"),
            None if is_mirror(&self.folder(name)) => format!(
                "`cairn volume delete {name}` gives up what is left of this mirror, and `cairn mirror create {name} TOKEN`, with a token of `cairn peer invite` on the source, brings all of it again"
            ),
            None => format!(
                "have a mirror of it take over (`cairn mirror failover {name}` on the server of that), or give up what is left with `cairn volume delete {name}` and bring back an image dump: `cairn image restore {name} FILE...`"
            ),
        };
        Some(format!("{back}; if they are lost for good, {lost}"))
    }
}

/// True where there is no volume, a part of one, or one whose beginnings are damaged.
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
