//! Ownership of files and disks: the parts that may claim them, and whether two paths are the same.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use crate::error::ServerError;
use crate::storage::settled::found;

/// A part of the server, other than volumes, that can claim files and disks.
pub(crate) trait Claims: Send + Sync {
    /// Refuses a path that it claims and that is not open; open ones are locked.
    fn refuse_claimed(&self, path: &Path) -> Result<(), ServerError>;
}

/// True if both exist and are the same file or disk, under any names.
pub(crate) fn is_same(one: &Path, other: &Path) -> bool {
    let (Some(one), Some(other)) = (found(one), found(other)) else { return false };
    let disk = one.file_type().is_block_device() && other.file_type().is_block_device();
    if disk { one.rdev() == other.rdev() } else { (one.dev(), one.ino()) == (other.dev(), other.ino()) }
}

/// Refuses a path that would name another file if the server is started in another folder, or in
/// the folder of a volume.
pub(crate) fn refuse_relative(what: &'static str, path: &Path) -> Result<(), ServerError> {
    if path.is_absolute() { Ok(()) } else { Err(ServerError::NotAbsolute { what }) }
}
