//! Errors of adopted devices.
//!
//! Each has its kind and the step that comes next.

use cairn_api::ErrorKind;
use cairn_api::remedy::{device_kind, device_next};
use cairn_history::HistoryError;

/// An error of adopted devices.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DevicesError {
    /// A LUN belongs to an adopted device.
    #[error("the LUN `{lun}` belongs to the adopted device `{device}`, whose history would miss the change")]
    Adopted {
        /// VOLUME/LUN.
        lun: String,
        /// The device.
        device: String,
    },
    /// An adopted device that does not remember.
    #[error("device `{device}` has no history")]
    WithoutHistory {
        /// Its name.
        device: String,
    },
    /// A store is to be accepted as older, but is not older.
    #[error("the store of the history of `{name}` is not older than it was: it is in service")]
    NotOlder {
        /// The device or volume.
        name: String,
    },
    /// The history of an adopted device refused or failed.
    #[error("the history of `{device}`: {source}")]
    History {
        /// Its name.
        device: String,
        /// The cause.
        source: HistoryError,
    },
    /// An adopted device could not be opened when the server started.
    #[error("device `{device}` is not open: {reason}")]
    DeviceUnavailable {
        /// Its name.
        device: String,
        /// The kind of the reason.
        kind: ErrorKind,
        /// Why.
        reason: String,
        /// The remedy.
        next: String,
    },
    /// A view was named as a clone, or a clone as a view.
    #[error("`{device}@{view}` is a {kind}")]
    OtherKind {
        /// The device.
        device: String,
        /// The second part of its name.
        view: String,
        /// "view" or "clone", as in the command.
        kind: &'static str,
    },
    /// Instants of a device are exported.
    #[error("`{device}` has views or clones: {instants}")]
    Shown {
        /// The device.
        device: String,
        /// The second parts of their names.
        instants: String,
    },
}

impl DevicesError {
    /// The kind, for programs.
    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            DevicesError::OtherKind { .. } => ErrorKind::Usage,
            DevicesError::Shown { .. } => ErrorKind::Busy,
            DevicesError::DeviceUnavailable { kind, .. } => *kind,
            DevicesError::History { source, .. } => history_kind(source),
            DevicesError::Adopted { .. } => ErrorKind::Busy,
            DevicesError::WithoutHistory { .. } => ErrorKind::NotFound,
            DevicesError::NotOlder { .. } => ErrorKind::Usage,
        }
    }

    /// The next step for the user, in one sentence.
    pub(crate) fn next(&self) -> String {
        match self {
            DevicesError::OtherKind { device, view, kind } => {
                format!(
                    "`cairn history {kind} {device} --delete {view}` deletes it; the writes to a clone are lost"
                )
            }
            DevicesError::Shown { device, .. } => format!(
                "end them with `cairn history view {device} --delete NAME`, and clones with `cairn history clone {device} --delete NAME`"
            ),
            DevicesError::History { device, source } => history_next(device, source),
            DevicesError::Adopted { device, .. } => {
                format!("release it first: `cairn device release {device}`")
            }
            DevicesError::WithoutHistory { device } => {
                format!("release it and adopt it again with --history: `cairn device release {device}`")
            }
            DevicesError::NotOlder { name } => format!("nothing to do; see `cairn history status {name}`"),
            DevicesError::DeviceUnavailable { next, .. } => next.clone(),
        }
    }
}

fn history_kind(error: &HistoryError) -> ErrorKind {
    match error {
        HistoryError::Device(error) => device_kind(error),
        HistoryError::Refused { .. } => ErrorKind::Usage,
        HistoryError::StoreTooSmall { .. } => ErrorKind::TooSmall,
        HistoryError::StoreTooLong { .. } => ErrorKind::WrongSize,
        HistoryError::StoreInUse => ErrorKind::NotEmpty,
        HistoryError::OtherOrigin { .. } => ErrorKind::WrongSize,
        HistoryError::Damaged { .. }
        | HistoryError::Missing { .. }
        | HistoryError::LostBlocks { .. }
        | HistoryError::StoreOlder { .. } => ErrorKind::Damaged,
        HistoryError::NoHistory
        | HistoryError::OtherStore { .. }
        | HistoryError::BeforeWindow
        | HistoryError::BeforeBeginning
        | HistoryError::AgeUnknown
        | HistoryError::NotKept { .. }
        | HistoryError::InFuture
        | HistoryError::ClockPutBack { .. }
        | HistoryError::NoSuchMark => ErrorKind::NotFound,
        HistoryError::MarkTaken => ErrorKind::Taken,
        HistoryError::TooManyReverts => ErrorKind::Busy,
        HistoryError::Full | HistoryError::NoRoomBelow { .. } | HistoryError::NoRoomToRevert { .. } => {
            ErrorKind::NoSpace
        }
        _ => ErrorKind::Failed,
    }
}

fn history_next(device: &str, error: &HistoryError) -> String {
    match error {
        HistoryError::Device(error) => device_next(error).into(),
        HistoryError::Refused { .. } => "choose another value; `cairn device adopt --help` lists them".into(),
        HistoryError::StoreTooSmall { .. } => "give a larger --history-size or a larger disk".into(),
        HistoryError::StoreTooLong { .. } => {
            "give a smaller --size; a history that needs more is made anew with a larger --history-size".into()
        }
        HistoryError::StoreInUse => "give another --history, or release the device that uses it".into(),
        HistoryError::NoHistory => "check that --history is the file that belongs to this device".into(),
        HistoryError::OtherStore { .. } => {
            "put the store that belongs to it at its place; disks whose names change at a start are named by /dev/disk/by-id".into()
        }
        HistoryError::OtherOrigin { .. } => {
            "restore the origin to its former length; the history fits no other length".into()
        }
        HistoryError::Damaged { .. } | HistoryError::Missing { .. } => {
            "keep a copy of both files; unless the placement is logging, the origin has the last flushed content".into()
        }
        HistoryError::StoreOlder { .. } => format!(
            "restore the store to its last state; if its disk was restored together with it, `cairn history accept-older {device}` accepts both"
        ),
        HistoryError::LostBlocks { .. } => format!(
            "overwrite those blocks completely, from a copy or with zeroes (`cairn history status {device}` lists them), then run the command again"
        ),
        HistoryError::BeforeWindow
        | HistoryError::BeforeBeginning
        | HistoryError::InFuture
        | HistoryError::NoSuchMark => {
            format!("see the span and the marks with `cairn history status {device}`")
        }
        HistoryError::AgeUnknown => format!(
            "name the instant by its time, with --at '2026-11-20 14:03:07', or by a mark: `cairn history status {device}` shows the span and the marks"
        ),
        HistoryError::ClockPutBack { .. } | HistoryError::NotKept { .. } => format!(
            "name an instant by its mark (`cairn history mark {device} NAME` sets one now), or by one of the times that `cairn history status {device}` shows"
        ),
        HistoryError::MarkTaken => "choose another name".into(),
        HistoryError::TooManyReverts => {
            format!("wait until `cairn history status {device}` shows no copy")
        }
        HistoryError::NoRoomToRevert { .. } => format!(
            "choose a later instant, or make the floor shorter with `cairn history window {device} --floor TIME`; `cairn history clone {device} --at TIME` serves this one beside the present"
        ),
        HistoryError::NoRoomBelow { .. } => {
            "free some space on the file system where that is, or choose another one".into()
        }
        HistoryError::Full => {
            format!("make the floor shorter with `cairn history window {device} --floor TIME`, or wait")
        }
        _ => "see the log of the server".into(),
    }
}
