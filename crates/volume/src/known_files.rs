//! Numbers of the files that every volume has.

use cairn_base::FileId;

/// The directory that names the LUNs of a volume.
pub const ROOT_DIRECTORY: FileId = FileId(1);
/// The root directory's file id is fixed; nothing else may take it.
const _: () = assert!(ROOT_DIRECTORY.0 == 1);

/// The file id under which the nodes of every active map are written.
pub(crate) const ACTIVE_MAP: FileId = FileId(u64::MAX);
/// The file id under which the nodes of every inode file are written.
pub(crate) const INODE_FILE: FileId = FileId(u64::MAX - 1);
