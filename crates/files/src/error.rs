//! Errors of names and LUNs.

use cairn_volume::VolumeError;

/// Why an operation on LUNs was refused or failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum FilesError {
    /// The volume below.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// No LUN of that name.
    #[error("no such LUN; `cairn lun list` shows the LUNs")]
    NoSuchLun,
    /// One of that name exists.
    #[error("a LUN of that name exists; choose another name or delete it first")]
    NameTaken,
    /// Not a name.
    #[error(
        "a LUN's name has 1 to 112 bytes of letters, digits, '.', '_', '-' and ':', and does not start with '-' or '.'"
    )]
    InvalidName,
    /// Not a size.
    #[error("a LUN has a size of 512 bytes to 16 TiB, in multiples of 512, not {bytes} bytes")]
    Size {
        /// The requested size.
        bytes: u64,
    },
    /// It would destroy the data past the new end.
    #[error(
        "the LUN has {bytes} bytes now: shrinking destroys the data past the new end, and must be allowed explicitly"
    )]
    WouldShrink {
        /// The present size.
        bytes: u64,
    },
}
