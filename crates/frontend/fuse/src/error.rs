//! Reasons why a mount failed.

use std::path::PathBuf;

use cairn_files::TreeError;

/// Why a mount or an unmount failed.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// There is no device of the kernel's.
    #[error(
        "there is no /dev/fuse: the kernel's module `fuse` is not loaded, or a container has no access to it"
    )]
    NoDevice,
    /// The directory.
    #[error("{} is not a directory to mount on: {source}", .path.display())]
    Directory {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// This user may not mount by himself, and the program that may is missing.
    #[error(
        "only root mounts without the program fusermount3, and it is not installed here (package `fuse3`)"
    )]
    NoHelper,
    /// The kernel, or fusermount3, refused.
    #[error("{} was not mounted: {reason}", .path.display())]
    Refused {
        /// Where.
        path: PathBuf,
        /// The reason given.
        reason: String,
    },
    /// A program works in it.
    #[error("{} is in use: a program has a file open there, or works in a directory of it", .path.display())]
    Busy {
        /// Where.
        path: PathBuf,
    },
    /// The tree to show.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// The system.
    #[error("the system refused a call that a mount needs: {0}")]
    System(#[from] std::io::Error),
}
