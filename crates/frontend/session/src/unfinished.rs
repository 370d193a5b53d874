//! Why an export can't be closed.

use crate::limits::CLOSE_PATIENCE;

/// A device has begun changes for sessions of an export and does not finish them. They may still
/// happen, so the caller must leave the export as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the device of {export} has not finished writes of {sessions} sessions within {} s", CLOSE_PATIENCE.as_secs())]
pub struct Unfinished {
    /// The export.
    pub export: String,
    /// How many sessions there are.
    pub sessions: usize,
}
