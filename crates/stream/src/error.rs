//! Why a stream was not made or not taken.

use std::io;
use std::sync::Arc;

use cairn_base::{SnapshotId, VolumeId};
use cairn_format::FormatError;
use cairn_volume::VolumeError;

/// Why the writer of a stream aborted, as in its last record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AbortReason {
    /// Its volume could not be read.
    ReadFailed,
    /// The transfer was cancelled.
    Cancelled,
    /// A reason that this version does not know.
    Other,
}

impl AbortReason {
    pub(crate) fn code(self) -> u32 {
        match self {
            AbortReason::ReadFailed => 1,
            AbortReason::Cancelled => 2,
            AbortReason::Other => 0,
        }
    }

    pub(crate) fn from_code(code: u32) -> Self {
        match code {
            1 => AbortReason::ReadFailed,
            2 => AbortReason::Cancelled,
            _ => AbortReason::Other,
        }
    }
}

impl std::fmt::Display for AbortReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            AbortReason::ReadFailed => "its volume could not be read; run `cairn volume check` there",
            AbortReason::Cancelled => "it was told to stop",
            AbortReason::Other => "it did not say why",
        })
    }
}

/// Why a stream was not made or not accepted. The previous content is untouched.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StreamError {
    /// A snapshot that stays at the reader for a while is not in the image any more.
    #[error("snapshot {snapshot} is locked here, and the source no longer has it")]
    Locked {
        /// Which.
        snapshot: SnapshotId,
    },
    /// A snapshot that stays at the reader for a while has another name in the image.
    #[error("snapshot {snapshot} is locked here and the source has renamed it")]
    Renamed {
        /// Which.
        snapshot: SnapshotId,
    },
    /// Everything has arrived, but this side's keeper does not allow the image to be shown yet.
    #[error("the image is not to be shown yet")]
    NotAdmitted,
    /// The reader or writer below failed, or the stream ended before its trailer.
    #[error("the stream broke off: {0}")]
    Io(Arc<io::Error>),
    /// The owner of threads has none for a part of the work: that part was not started, and earlier
    /// reads and writes remain.
    #[error("cannot start a thread: {0}")]
    NoThread(Arc<io::Error>),
    /// Bytes that are not a stream, are damaged, or come from a newer program.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The volume at this end.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// Records are missing, doubled or out of order.
    #[error("the stream is damaged: record {expected} was due and {found} came")]
    OutOfOrder {
        /// The number that was due.
        expected: u64,
        /// The number that came.
        found: u64,
    },
    /// Every record verifies, and the whole does not.
    #[error("the stream is damaged: its records do not match its trailer")]
    Digest,
    /// The blocks or snapshots of the image do not fit together.
    #[error("the stream is damaged: {0}")]
    Inconsistent(&'static str),
    /// It is of another volume.
    #[error("the stream is of volume {found}, and this is a copy of volume {expected}")]
    WrongVolume {
        /// The volume here.
        expected: VolumeId,
        /// The stream's.
        found: VolumeId,
    },
    /// Its base is not here.
    #[error("the stream begins at snapshot {base}, which this copy does not have")]
    BaseMissing {
        /// The base.
        base: SnapshotId,
    },
    /// The block space here is too short.
    #[error("the source has {need} blocks of block space and this copy {have}: grow it first")]
    TooSmall {
        /// Blocks.
        need: u64,
        /// Blocks.
        have: u64,
    },
    /// A snapshot of the same id has another content on the two sides.
    #[error("snapshot {snapshot} has different content on the two sides: the copies have diverged")]
    Diverged {
        /// The snapshot.
        snapshot: SnapshotId,
    },
    /// The writer aborted.
    #[error("the source gave the transfer up: {0}")]
    Aborted(AbortReason),
    /// This side was cancelled.
    #[error("the transfer was cancelled")]
    Cancelled,
}

impl From<io::Error> for StreamError {
    fn from(error: io::Error) -> Self {
        StreamError::Io(Arc::new(error))
    }
}
