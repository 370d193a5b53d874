//! Reads files ahead of requests: the neighbours of a file that was read, and files that a caller
//! announces.
//!
//! A program that reads or removes the files of a directory has one request in flight at a time,
//! and each small file that is not in memory costs it two reads of the device. So when a file is
//! missing whose neighbours by number were missing a moment ago, the small files in its block of
//! inodes are loaded with it. Scattered reads cost nothing more.

use std::collections::VecDeque;

use cairn_base::{BLOCK_SIZE, FileId};
use cairn_device::Segments;
use cairn_format::{INODES_PER_BLOCK, Inode};
use parking_lot::Mutex;

use super::Tree;
use super::error::TreeError;
use super::source::Source;
use super::stat::NodeKind;

/// The size limit in bytes of a file whose neighbours are loaded: for a longer file the kernel has
/// its own read-ahead.
const SMALL: u64 = 64 << 10;
/// Blocks of inodes that count as near: a directory of some hundred files, read in the order of its
/// names.
const NEAR: u64 = 8;
/// Blocks of inodes that are remembered: for as many programs at work in different places.
const SEEN: usize = 16;

/// Where files were lately not in memory: blocks of inodes, and whether all of each was loaded
/// then.
#[derive(Default)]
pub(crate) struct Missed(Mutex<VecDeque<(u64, bool)>>);

impl Missed {
    /// Notes a file that is not in memory. True when its neighbours should be loaded with it.
    fn note(&self, file: FileId) -> bool {
        let block = file.0 / INODES_PER_BLOCK;
        let mut seen = self.0.lock();
        if let Some((_, is_loaded)) = seen.iter_mut().find(|(other, _)| *other == block) {
            return !std::mem::replace(is_loaded, true);
        }
        let is_near = seen.iter().any(|(other, _)| other.abs_diff(block) <= NEAR);
        if seen.len() == SEEN {
            seen.pop_front();
        }
        seen.push_back((block, is_near));
        is_near
    }
}

impl Tree {
    /// Blocks of a file, with its neighbours if they are likely to be read next.
    pub(crate) fn read_blocks(&self, inode: &Inode, lba: u64, count: u64) -> Result<Segments, TreeError> {
        if inode.length_bytes <= SMALL {
            match self.source.read_ready(inode.id, lba, count) {
                Some(read) => return read,
                None => self.load_beside(inode.id, true),
            }
        }
        self.source.read(inode.id, lba, count)
    }

    /// A file is about to be removed: the nodes above its blocks are read then.
    pub(crate) fn load_to_remove(&self, file: FileId) {
        if !self.volume().has_path(file) {
            self.load_beside(file, false);
        }
    }

    fn load_beside(&self, file: FileId, content: bool) {
        if !self.missed.note(file) {
            return;
        }
        match &self.source {
            // Changes since the last consistency point are in memory; otherwise their reader reads
            // them.
            Source::Live(volume) => volume.load_beside(file, content),
            Source::Frozen(image) => image.load_beside(file, content),
        }
    }

    /// The content of those files of an image that have at most `most` bytes: the bytes of a file,
    /// the target of a link. All of it is requested from the device together, and takes as much
    /// memory. A directory returns nothing, but its blocks are in memory then. A longer file, an
    /// empty one, and one that cannot be read return nothing.
    pub fn read_together(&self, files: &[FileId], most: u64) -> Vec<Option<Result<Vec<u8>, TreeError>>> {
        let Some(image) = self.image() else { return files.iter().map(|_| None).collect() };
        let has_blocks = |inode: &Inode| {
            let kind = NodeKind::of(inode);
            matches!(kind, NodeKind::File | NodeKind::SymbolicLink | NodeKind::Directory)
        };
        let small = |file: &FileId| {
            let inode = self.source.inode(*file).ok();
            inode.filter(|inode| has_blocks(inode) && inode.length_bytes <= most)
        };
        let inodes: Vec<Option<Inode>> = files.iter().map(small).collect();
        let blocks = |inode: &Inode| (inode.id, inode.length_bytes.div_ceil(BLOCK_SIZE as u64));
        let wanted: Vec<(FileId, u64)> = inodes.iter().flatten().map(blocks).collect();
        let mut read = image.read_files(&wanted).into_iter();
        let bytes = |inode: Option<Inode>| {
            let (inode, read) = (inode?, read.next()?);
            (NodeKind::of(&inode) != NodeKind::Directory)
                .then(|| Ok(read?.slice(0, inode.length_bytes as usize).to_vec()))
        };
        inodes.into_iter().map(bytes).collect()
    }
}
