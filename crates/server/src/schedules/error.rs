//! Errors of schedules and hooks.
//!
//! Each has its kind and the step that comes next.

use cairn_api::ErrorKind;

/// An error of schedules and hooks.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SchedulesError {
    /// A command around a snapshot.
    #[error("the command {which} a snapshot of `{volume}` {how}")]
    Hook {
        /// The volume.
        volume: String,
        /// "before" or "after".
        which: &'static str,
        /// The outcome of the command.
        how: String,
    },
    /// No cron expression.
    #[error("`{text}` is not a cron expression: {reason}")]
    Cron {
        /// The given text.
        text: String,
        /// The fault in it.
        reason: String,
    },
}

impl SchedulesError {
    /// The kind, for programs.
    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            SchedulesError::Cron { .. } => ErrorKind::Usage,
            SchedulesError::Hook { .. } => ErrorKind::Failed,
        }
    }

    /// The next step for the user, in one sentence.
    pub(crate) fn next(&self) -> String {
        match self {
            SchedulesError::Cron { .. } => "give five fields: minute, hour, day of the month, month, day of the week, such as `30 2 * * 1-5`".into(),
            SchedulesError::Hook { volume, .. } => format!("run it by hand as the server's user; `cairn volume hooks {volume}` shows it"),
        }
    }
}
