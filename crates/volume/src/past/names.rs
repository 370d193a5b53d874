//! Names of snapshots.

use crate::error::VolumeError;

/// Refuses an invalid name of a snapshot.
pub(crate) fn check_name(name: &str) -> Result<(), VolumeError> {
    if is_snapshot_name(name) { Ok(()) } else { Err(VolumeError::InvalidName) }
}

/// Whether a snapshot can be called so: 1 to 128 bytes of letters, digits, `.`, `_`, `-` and `:`,
/// that do not begin with `-` or `.`. So it is one name in a path, and one word for a terminal.
pub fn is_snapshot_name(name: &str) -> bool {
    let allowed = |c: char| c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | ':');
    (1..=cairn_format::MAX_SNAPSHOT_NAME).contains(&name.len())
        && name.chars().all(allowed)
        && !name.starts_with(['-', '.'])
}
