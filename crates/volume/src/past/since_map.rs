//! A since map as the volume's state knows it: the file that it is.

use cairn_base::FileId;
use cairn_format::{FileKind, Inode};

/// The file of a since map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SinceMap {
    pub(crate) file: FileId,
    pub(crate) kind: FileKind,
    pub(crate) relationship: u64,
}

impl SinceMap {
    /// The map that a file is, if it is one.
    pub(crate) fn of(inode: &Inode) -> Option<Self> {
        let Inode { id: file, kind, relationship, .. } = *inode;
        kind.is_since_map().then_some(Self { file, kind, relationship })
    }
}
