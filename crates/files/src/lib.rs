//! Names in a volume: LUNs, and a POSIX tree of files. A LUN is a file without holes in its
//! promise: a disk of fixed size that clients see.
//!
//! [`Luns`] keeps the root directory. [`LunDevice`] makes a [`cairn_device::Device`] of a file, of
//! the active state or of an image. A [`Tree`] implements POSIX files, of the active state or of an
//! image.

mod directory;
mod error;
mod lun;
mod lun_device;
#[cfg(any(test, feature = "model"))]
pub mod model;
mod path_text;
mod tree;

pub use error::FilesError;
pub use lun::{LunInfo, Luns};
pub use lun_device::LunDevice;
pub use path_text::{from_percent, kept_bytes, kept_path, path_bytes, path_text, quoted_path};
pub use tree::{
    Allocate, ChangeKind, Entry, FILE_BYTES_MAX, FileDifference, New, NodeKind, Owner, Quota, QuotaLimits,
    ReadableNodes, Rename, Room, SetStat, SetTime, SetXattr, Space, Stat, Tree, TreeChange, TreeError,
    TreeFinding, check_tree,
};

#[cfg(test)]
mod tests;
