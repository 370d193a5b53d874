//! Why a history refused or failed.

use std::time::Duration;

use cairn_device::DeviceError;
use cairn_format::FormatError;

use crate::options::LogPosition;

/// Errors of a history.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum HistoryError {
    /// A device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A choice that is not possible, or not together with another.
    #[error("{what} cannot be: {rule}")]
    Refused {
        /// The choice.
        what: &'static str,
        /// The rule that it breaks.
        rule: &'static str,
    },
    /// The store is too small.
    #[error("the store has {have} bytes, and a history of these blocks needs {need}")]
    StoreTooSmall {
        /// Bytes.
        have: u64,
        /// Bytes.
        need: u64,
    },
    /// The store can't become that long.
    #[error("the store can have at most {most} bytes: it was made with small segments")]
    StoreTooLong {
        /// Bytes.
        most: u64,
    },
    /// The store is not empty.
    #[error("the store holds a history already")]
    StoreInUse,
    /// The store holds no history.
    #[error("the store holds no history")]
    NoHistory,
    /// Not the origin that the history was made for.
    #[error("the origin has {found} bytes; the history was made for one of {expected}")]
    OtherOrigin {
        /// Bytes.
        expected: u64,
        /// Bytes.
        found: u64,
    },
    /// A store with another history.
    #[error("the store has another history: {found}, and not {expected}")]
    OtherStore {
        /// The expected device or history.
        expected: String,
        /// The one found instead.
        found: String,
    },
    /// The store has changed since its owner last looked.
    #[error(
        "the store of the history is older than it was, or its end is damaged: it ends at record {} under superblock {}, and was durable up to record {} under superblock {}",
        .found.record, .found.superblock, .known.record, .known.superblock
    )]
    StoreOlder {
        /// The position that it has reached.
        found: LogPosition,
        /// As far as it had come.
        known: LogPosition,
    },
    /// Blocks can't be read any more.
    #[error(
        "{count} blocks of the device are lost, the first at {offset}: they can't be read, and a plain disk would show something else there"
    )]
    LostBlocks {
        /// How many.
        count: u64,
        /// Of the first, in bytes from the start of the device.
        offset: u64,
    },
    /// Bytes of the store that were durable are damaged.
    #[error("the history is damaged at {offset} of its store: {source}")]
    Damaged {
        /// Bytes from the start of the store.
        offset: u64,
        /// The check that failed.
        source: FormatError,
    },
    /// A part of the log is missing where it was durable.
    #[error("the history lacks its record {sequence}, which was durable: the store is damaged")]
    Missing {
        /// The record.
        sequence: u64,
    },
    /// The instant is before the window.
    #[error("that instant is no longer in the window")]
    BeforeWindow,
    /// The instant is before there was a history.
    #[error("that instant lies before the history began")]
    BeforeBeginning,
    /// When that was is not known.
    #[error("cannot tell how long ago that was: the clock was set while the history was closed")]
    AgeUnknown,
    /// Nothing of that time is kept.
    #[error("no instant near that moment is kept: the clock was put back, and until it shows a later time than before, in {} s, only marks are kept", .by.as_secs_f64().ceil())]
    NotKept {
        /// The time until the clock reaches its earlier reading.
        by: Duration,
    },
    /// The clock has shown that time twice.
    #[error("the clock was set back and shows that time again: later writes have later times, which the clock reaches in {} s", .by.as_secs_f64().ceil())]
    ClockPutBack {
        /// The time until the clock reaches its earlier reading.
        by: Duration,
    },
    /// The instant has not come.
    #[error("that instant lies in the future")]
    InFuture,
    /// No mark of that name.
    #[error("no mark has that name")]
    NoSuchMark,
    /// A mark of that name exists.
    #[error("a mark of that name exists")]
    MarkTaken,
    /// Too many reverts are being copied.
    #[error("as many reverts as can be are still being copied in the background")]
    TooManyReverts,
    /// The background copy of a revert would find no room. Nothing was changed.
    #[error(
        "the store lacks {missing} bytes for a copy of what has changed since that instant, without which the revert could not be undone"
    )]
    NoRoomToRevert {
        /// Bytes.
        missing: u64,
    },
    /// The layer below has no room: the file system of a sparse file, or a quota. Nothing is lost,
    /// and the history resumes by itself when there is room.
    #[error("no space is left below {below}, and no history can be discarded for it")]
    NoRoomBelow {
        /// Of which device.
        below: &'static str,
    },
    /// There is no room, and the present history must be kept.
    #[error("the store is full, and the history in it is younger than the floor that its owner set")]
    Full,
}

impl HistoryError {
    /// True for a lack of room that may end: with time, or when the owner makes room.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self, HistoryError::Full | HistoryError::NoRoomBelow { .. })
    }

    /// As an error of a request to the device.
    pub fn to_device(&self, offset: u64, length: u64) -> DeviceError {
        match self {
            HistoryError::Device(error) => error.clone(),
            HistoryError::Full
            | HistoryError::NoRoomBelow { .. }
            | HistoryError::StoreTooSmall { .. }
            | HistoryError::StoreTooLong { .. }
            | HistoryError::NoRoomToRevert { .. } => DeviceError::NoSpace { offset, length },
            HistoryError::Damaged { .. } | HistoryError::Missing { .. } => {
                DeviceError::Corrupt { offset, length }
            }
            _ => DeviceError::OutOfService,
        }
    }
}
