//! Errors of volumes: their devices, logs, histories and clones.
//!
//! Each has its kind and the step that comes next.

use std::path::PathBuf;

use cairn_api::ErrorKind;
use cairn_api::remedy::{device_kind, device_next, log_next, volume_kind, volume_next};
use cairn_base::ByteSize;
use cairn_device::{DeviceError, OpenError};
use cairn_files::FilesError;
use cairn_volume::VolumeError;

use crate::error::words::in_place;

/// An error of volumes: their devices, logs, histories and clones.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VolumesError {
    /// It stays until it is released.
    #[error("`{name}` is held")]
    SnapshotHeld {
        /// The snapshot.
        name: String,
    },
    /// The storage below a volume has no room.
    #[error("{volume} takes no writes: too little space is left on its file system ({place}, {free} free)")]
    HostFull {
        /// The volume.
        volume: String,
        /// The place of the file system.
        place: String,
        /// Its free space.
        free: cairn_base::ByteSize,
    },
    /// A device that a new volume should take holds something.
    #[error("{} is not empty", path.display())]
    DeviceNotEmpty {
        /// The device.
        path: PathBuf,
    },
    /// The devices do not hold a volume of that size.
    #[error("a volume of {} needs {} of device, and there are {}", ByteSize(*size), ByteSize(*need), ByteSize(*have))]
    DeviceTooSmall {
        /// Of the block space, bytes.
        size: u64,
        /// Bytes.
        need: u64,
        /// Bytes.
        have: u64,
        /// The last of them, for an existing volume.
        last: Option<PathBuf>,
    },
    /// A device cannot be opened.
    #[error(transparent)]
    OpenDevice(cairn_device::OpenError),
    /// The device failed.
    #[error(transparent)]
    Device(DeviceError),
    /// The volume refused or failed.
    #[error("volume `{volume}`: {source}")]
    Volume {
        /// Its name.
        volume: String,
        /// The cause.
        source: VolumeError,
    },
    /// The LUN layer refused or failed.
    #[error("`{name}`: {source}")]
    Files {
        /// VOLUME/LUN, or the volume.
        name: String,
        /// The cause.
        source: FilesError,
    },
    /// A volume of the directory could not be opened when the server started.
    #[error("volume `{volume}` is not open: {reason}")]
    VolumeUnavailable {
        /// Its name.
        volume: String,
        /// The kind of the reason.
        kind: ErrorKind,
        /// Why.
        reason: String,
        /// The remedy.
        next: String,
    },
    /// A device of a volume that is not open.
    #[error("{} belongs to volume `{volume}`, which is not open", path.display())]
    DeviceClaimed {
        /// The device.
        path: PathBuf,
        /// The volume.
        volume: String,
    },
    /// A file or a disk of an adopted device that is not open.
    #[error("{} belongs to the adopted device `{device}`, which is not open", path.display())]
    ClaimedByDevice {
        /// The file or the disk.
        path: PathBuf,
        /// The device.
        device: String,
    },
    /// The device of a volume's intent log cannot be opened.
    #[error("the intent log of `{volume}` is on {}, which cannot be opened: {source}", path.display())]
    LogUnavailable {
        /// The volume.
        volume: String,
        /// Its log device.
        path: PathBuf,
        /// The cause.
        source: cairn_device::OpenError,
    },
    /// The store of the history under a volume cannot be opened.
    #[error("the history under `{volume}` is in {}, which cannot be opened: {source}", path.display())]
    HistoryUnavailable {
        /// The volume.
        volume: String,
        /// Its store.
        path: PathBuf,
        /// The cause.
        source: cairn_device::OpenError,
    },
    /// An operation that a volume with a history under it, or without one, does not support.
    #[error("`{volume}`: {why}")]
    OverHistory {
        /// The volume.
        volume: String,
        /// The kind of the error.
        kind: ErrorKind,
        /// Why.
        why: &'static str,
        /// The remedy.
        next: &'static str,
    },
    /// A log was to be thrown away that can be replayed.
    #[error("the intent log of `{volume}` is whole, and the volume is open: nothing is lost")]
    LogIsThere {
        /// The volume.
        volume: String,
    },
    /// The base of a clone is missing, or not open.
    #[error("`{clone}` is a clone of {base}, which is not there or not open")]
    CloneBaseGone {
        /// The clone.
        clone: String,
        /// The snapshot.
        base: String,
    },
    /// A volume that is opened from a bucket.
    #[error(transparent)]
    FromBucket(crate::volumes::from_bucket::error::FromBucketError),
    /// A volume with clones.
    #[error("`{clone}` is a clone of a snapshot of `{volume}`")]
    HasClone {
        /// The volume.
        volume: String,
        /// The clone.
        clone: String,
    },
}

impl VolumesError {
    /// The kind, for programs.
    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            VolumesError::CloneBaseGone { .. } => ErrorKind::VolumeDamaged,
            VolumesError::FromBucket(error) => error.kind(),
            VolumesError::SnapshotHeld { .. }
            | VolumesError::HasClone { .. }
            | VolumesError::DeviceClaimed { .. }
            | VolumesError::ClaimedByDevice { .. } => ErrorKind::Busy,
            VolumesError::DeviceNotEmpty { .. } => ErrorKind::NotEmpty,
            VolumesError::DeviceTooSmall { .. } => ErrorKind::TooSmall,
            VolumesError::OpenDevice(error)
            | VolumesError::LogUnavailable { source: error, .. }
            | VolumesError::HistoryUnavailable { source: error, .. } => open_kind(error),
            VolumesError::OverHistory { kind, .. } => *kind,
            VolumesError::LogIsThere { .. } => ErrorKind::Usage,
            VolumesError::HostFull { .. } => ErrorKind::NoSpace,
            VolumesError::Device(error) => device_kind(error),
            VolumesError::Volume { source, .. } => volume_kind(source),
            VolumesError::Files { source, .. } => files_kind(source),
            VolumesError::VolumeUnavailable { kind, .. } => *kind,
        }
    }

    /// The next step for the user, in one sentence.
    pub(crate) fn next(&self) -> String {
        match self {
            VolumesError::SnapshotHeld { name } => format!(
                "release it with `cairn snapshot release {name}` when it is no longer needed"
            ),
            VolumesError::DeviceClaimed { volume, .. } => format!(
                "choose another device; `cairn status` shows why `{volume}` is not open, and `cairn volume delete {volume}` deletes it"
            ),
            VolumesError::ClaimedByDevice { device, .. } => format!(
                "choose another one; `cairn status` shows why `{device}` is not open, and how to release it"
            ),
            VolumesError::HostFull { volume, place, .. } => {
                format!("free space in {place}; {volume} takes writes again by itself")
            }
            VolumesError::DeviceNotEmpty { path } => format!(
                "if its content is not needed, clear it: a disk with `wipefs -a {0}` and `blkdiscard {0}`, a file with \
                 `truncate -s 0 {0}` and then `truncate -s SIZE {0}`; otherwise name another device",
                path.display()
            ),
            VolumesError::DeviceTooSmall { last: Some(last), .. } => {
                format!("enlarge {}, the last device of the volume, and run the command again", last.display())
            }
            VolumesError::DeviceTooSmall { .. } => "give a smaller --size, or more --device".into(),
            VolumesError::OpenDevice(OpenError::InUse { .. }) => "stop that program, unmount the image or detach its loop device (`losetup -d`), and run the command again; `cairn device adopt --in-use` adopts it nevertheless".into(),
            VolumesError::OpenDevice(_) => "correct it and run the command again".into(),
            VolumesError::Device(error) => device_next(error).into(),
            VolumesError::Volume { volume, source } => volume_next(volume, source),
            VolumesError::Files { name, source } => files_next(name, source),
            VolumesError::VolumeUnavailable { next, .. } => next.clone(),
            VolumesError::LogUnavailable { volume, .. } => log_next(volume),
            VolumesError::HistoryUnavailable { path, .. } => format!(
                "bring {} back (attach its disk, mount its file system, restore the file), and the volume is opened within seconds",
                path.display()
            ),
            VolumesError::OverHistory { next, volume, .. } => in_place(next, volume),
            VolumesError::LogIsThere { volume } => {
                format!("move it with `cairn volume log {volume} --internal` or `--device PATH`")
            }
            VolumesError::CloneBaseGone { base, clone } => format!(
                "repair the volume of {base}, and `{clone}` opens at the next start; or delete the clone with `cairn clone delete {clone}`"
            ),
            VolumesError::FromBucket(error) => error.next(),
            VolumesError::HasClone { clone, .. } => format!("delete it first: `cairn clone delete {clone}`"),
        }
    }
}

fn open_kind(error: &OpenError) -> ErrorKind {
    match error {
        OpenError::Missing { .. } => ErrorKind::NotFound,
        OpenError::Exists { .. } => ErrorKind::Taken,
        OpenError::Busy { .. } | OpenError::InUse { .. } => ErrorKind::Busy,
        OpenError::NotStorage { .. } | OpenError::TooLong { .. } => ErrorKind::Usage,
        OpenError::ReadOnlyFileSystem { .. } | OpenError::Permission { .. } => ErrorKind::ReadOnly,
        OpenError::NoSpace { .. } => ErrorKind::NoSpace,
        OpenError::Io { .. } => ErrorKind::Failed,
    }
}

fn files_kind(error: &FilesError) -> ErrorKind {
    match error {
        FilesError::NoSuchLun => ErrorKind::NotFound,
        FilesError::NameTaken => ErrorKind::Taken,
        FilesError::Size { .. } => ErrorKind::WrongSize,
        FilesError::InvalidName | FilesError::WouldShrink { .. } => ErrorKind::Usage,
        FilesError::Volume(error) => volume_kind(error),
    }
}

fn files_next(name: &str, error: &FilesError) -> String {
    let volume = name.split('/').next().unwrap_or(name).trim_start_matches("lun:");
    match error {
        FilesError::NoSuchLun => format!("list what exists with `cairn lun list {volume}`"),
        FilesError::NameTaken | FilesError::InvalidName => "choose another name".into(),
        FilesError::Size { .. } => "give another --size".into(),
        FilesError::WouldShrink { .. } => {
            "if the data beyond the new end is not needed, run it again with --shrink".into()
        }
        FilesError::Volume(error) => volume_next(volume, error),
    }
}
