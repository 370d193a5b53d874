//! Numbers of nodes: the kernel's number of a file, and the image and file that it means.
//!
//! A number never means two files: files of the live tree are never numbered twice, and each image
//! that is shown has a slot of its own in the upper bits. So a snapshot's file has another number
//! than the live one, and no program takes one for the other.

use cairn_base::FileId;

use crate::abi::{FUSE_ROOT_ID, errno};

/// Bits of a number that are the file's own.
const FILE_BITS: u32 = 40;
const FILE_MASK: u64 = (1 << FILE_BITS) - 1;
/// The slot of the directories `.snapshot`; the file is the directory in which one is looked for.
pub(crate) const SNAPSHOTS: u32 = (1 << (64 - FILE_BITS)) - 1;
/// The slot of the directories with the snapshots by their times.
pub(crate) const TIMES: u32 = SNAPSHOTS - 1;
/// The slot of the mounted tree, unless that changes with each image.
pub(crate) const BASE: u32 = 0;

/// A file of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) slot: u32,
    pub(crate) file: FileId,
}

impl Node {
    /// The kernel's number.
    ///
    /// # Errors
    /// `EOVERFLOW` for a file number that has no place: no volume gets that far.
    pub(crate) fn number(self) -> Result<u64, i32> {
        let fits = self.file.0 <= FILE_MASK;
        if fits { Ok(u64::from(self.slot) << FILE_BITS | self.file.0) } else { Err(errno::EOVERFLOW) }
    }

    /// The node of a number; `None` for the root, which is the mounted tree.
    pub(crate) fn of_number(number: u64) -> Option<Self> {
        let node = Self { slot: (number >> FILE_BITS) as u32, file: FileId(number & FILE_MASK) };
        (number != FUSE_ROOT_ID).then_some(node)
    }
}
