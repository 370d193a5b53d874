//! Why a dump was not read, put together or restored.

use cairn_base::{SnapshotId, VolumeId};
use cairn_format::FormatError;
use cairn_format::dump::DumpId;

use super::read::Lost;
use crate::error::StreamError;

/// Why a dump was not read, put together or restored. Files are named as their opener named them.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DumpError {
    /// It is another file, or both copies of its head are damaged.
    #[error("{file}: {source}")]
    Head {
        /// The file.
        file: String,
        /// The fault of the head.
        source: FormatError,
    },
    /// It can't be read.
    #[error("{file} cannot be read: {source}")]
    Read {
        /// The file.
        file: String,
        /// The cause.
        source: std::sync::Arc<std::io::Error>,
    },
    /// It has no end.
    #[error("{file} is cut off: a part of a dump ends with a trailer, and this one does not")]
    Cut {
        /// The file.
        file: String,
    },
    /// Its writer aborted.
    #[error("{file} is incomplete: the dump was aborted: {reason}")]
    GivenUp {
        /// The file.
        file: String,
        /// The writer's reason.
        reason: crate::AbortReason,
    },
    /// A record is damaged, and the caller did not accept that.
    #[error("{file} is damaged: {lost}")]
    Damaged {
        /// The file.
        file: String,
        /// The unreadable part.
        lost: Lost,
    },
    /// The snapshot table is damaged in all places that have it.
    #[error("{file} is damaged: its snapshot table can't be read in any of the places that have it")]
    TableLost {
        /// The file.
        file: String,
    },
    /// A part is missing.
    #[error("part {part} of {parts} of dump {dump} is missing")]
    MissingPart {
        /// The dump.
        dump: DumpId,
        /// Counted from 1.
        part: u32,
        /// How many it has.
        parts: u32,
    },
    /// A part occurs twice.
    #[error("{file} and {other} are the same part of the same dump")]
    DoublePart {
        /// One.
        file: String,
        /// The other.
        other: String,
    },
    /// Two files are of different volumes.
    #[error("{file} is of volume {found}, and the others are of volume {expected}")]
    OtherVolume {
        /// The file.
        file: String,
        /// Of the first file.
        expected: VolumeId,
        /// Of this one.
        found: VolumeId,
    },
    /// Two files claim to be parts of the same dump, and contradict each other about it.
    #[error("{file} and {other} do not belong together, though they name the same dump")]
    Contradiction {
        /// One.
        file: String,
        /// The other.
        other: String,
    },
    /// No dump of everything is among them, or one in between is missing.
    #[error("{file} begins at snapshot {base}, which none of the other dumps has")]
    MissingBase {
        /// The file.
        file: String,
        /// Its base.
        base: SnapshotId,
    },
    /// Two dumps of everything.
    #[error("{file} and {other} are both dumps of everything: one is enough")]
    TwoFull {
        /// One.
        file: String,
        /// The other.
        other: String,
    },
    /// The two newest ones are not of one state of the volume.
    #[error(
        "{file} and {other} both end at snapshot {snapshot}, with different content: they are of two diverged copies of the volume"
    )]
    TwoCopies {
        /// One.
        file: String,
        /// The other.
        other: String,
        /// The snapshot.
        snapshot: SnapshotId,
    },
    /// The file to resume is not this part.
    #[error("{file} is not part {part} of the image dump to resume")]
    OtherFile {
        /// The file.
        file: String,
        /// Which it is not, counted from 1.
        part: u32,
    },
    /// The file to resume begins differently than the dump would now.
    #[error("{file} was begun as something else than the dump would be now")]
    OtherBegin {
        /// The file.
        file: String,
    },
    /// The file to resume has its final name already and cannot be written.
    #[error("{file} has its final name, but is no longer complete")]
    NamedTooEarly {
        /// The file.
        file: String,
    },
    /// It differs from the file whose restore is being resumed.
    #[error("{file} differs from the file at the interruption of the restore: it was changed, or is damaged")]
    Changed {
        /// The file.
        file: String,
    },
    /// The volume, the device or the work itself.
    #[error(transparent)]
    Stream(#[from] StreamError),
}

impl From<cairn_volume::VolumeError> for DumpError {
    fn from(error: cairn_volume::VolumeError) -> Self {
        DumpError::Stream(error.into())
    }
}

impl From<cairn_device::DeviceError> for DumpError {
    fn from(error: cairn_device::DeviceError) -> Self {
        DumpError::Stream(StreamError::Volume(error.into()))
    }
}
