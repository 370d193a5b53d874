//! A source of a dump.

use crate::attributes::Attribute;
use crate::directory::Entry;
use crate::inode::Inode;
use crate::map::InodeMap;

/// A tree of files that does not change while it is dumped: a snapshot.
///
/// Numbers of inodes are 32 bits, and [`crate::ROOT`] is the root directory's. Errors are the
/// source's own. Except for [`Source::each_inode`], an error loses one file or directory, and the
/// dump reports which.
pub trait Source {
    /// Shows every inode in use, in order of number, but for those that can't be read.
    fn each_inode(&mut self, each: &mut dyn FnMut(&Inode)) -> std::io::Result<()>;

    /// The numbers that [`Source::each_inode`] has skipped, because the existence of such a file
    /// can't be determined. The default returns none.
    fn unreadable(&mut self) -> InodeMap {
        InodeMap::new()
    }

    /// One inode.
    fn inode(&mut self, number: u32) -> std::io::Result<Inode>;

    /// The names in a directory without `.` and `..`, and the number of its parent (its own, for
    /// the root).
    fn entries(&mut self, directory: u32) -> std::io::Result<(Vec<Entry>, u32)>;

    /// The data ranges of a file, without holes, as offset and length in bytes, in order, not
    /// overlapping. For a symbolic link this is all of it.
    fn extents(&mut self, number: u32) -> std::io::Result<Vec<(u64, u64)>>;

    /// Fills `bytes` with the content of a file or link from `offset`, all of it below the size.
    fn read(&mut self, number: u32, offset: u64, bytes: &mut [u8]) -> std::io::Result<()>;

    /// The extended attributes with their full names (`user.x`), values in the form of `getxattr`.
    fn attributes(&mut self, number: u32) -> std::io::Result<Vec<Attribute>>;
}

/// A filter's decision about a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Selection {
    /// It is dumped, and so are its descendants, unless the filter excludes them.
    Take,
    /// It is no part of the dump, and neither is anything below.
    Skip,
}
