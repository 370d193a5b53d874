//! Small files, many at a time.
//!
//! A small file is a node and a block or two. When files are read one by one, each of these is a
//! request to the device that waits for the previous one. Here the nodes of many files are
//! requested together, and then their blocks: two batches, in which neighbours are one request.
//! Files written one after the other are usually neighbours.
//!
//! Nothing is served that a single read would not serve: every block is compared with its checksum,
//! and one that can't be read costs its own file.

use std::sync::Arc;

use cairn_base::{BLOCK_SIZE, FileId, Lba};
use cairn_device::{Block, Segments};
use cairn_format::{BlockPointer, FileKind, INODES_PER_BLOCK, Inode};

use crate::error::{Place, VolumeError};
use crate::memory::roots::Committed;
use crate::read::image::Image;
use crate::read::store::Wanted;
use crate::read::tree::{BATCH, Tree, pointers_of};
use crate::volume::Volume;

/// The maximum size in blocks of a file that is loaded with its neighbour: 32 KiB.
const SMALL_BLOCKS: u64 = 8;
/// The part of a cache that such files take at most. They are of no use when they push out one
/// another.
const CACHE_PART: u64 = 8;

impl Image {
    /// The first blocks of files, with the number for each; they take as much memory.
    ///
    /// # Errors
    /// Those of [`Image::inode`] and of reading, for each file by itself.
    pub fn read_files(&self, files: &[(FileId, u64)]) -> Vec<Result<Segments, VolumeError>> {
        let tree = |(file, _): &(FileId, u64)| -> Result<Tree<'_>, VolumeError> {
            Ok(self.volume().tree(self.committed(), *file, self.inode(*file)?.tree))
        };
        let trees: Vec<_> = files.iter().map(tree).collect();
        let mut wanted = Vec::new();
        for (tree, (_, count)) in trees.iter().zip(files) {
            wanted.extend(tree.iter().flat_map(|tree| (0..*count).map(move |lba| (tree, Lba(lba)))));
        }
        let mut loaded = load_blocks(&wanted).into_iter();
        let outcome = |(tree, (_, count)): (&Result<Tree<'_>, VolumeError>, &(FileId, u64))| match tree {
            Ok(_) => {
                // All of them, also after a failed one: the next file's follow.
                let own: Vec<_> = loaded.by_ref().take(*count as usize).collect();
                own.into_iter().collect()
            }
            Err(error) => Err(error.clone()),
        };
        trees.iter().zip(files).map(outcome).collect()
    }

    /// Loads the small files whose inodes are in the same block as that of `file`: the nodes above
    /// their blocks, and with `content` the blocks. They were made one after the other, and a walk
    /// of a directory reads them next. A later read of an unreadable one gets the error.
    pub fn load_beside(&self, file: FileId, content: bool) {
        let volume = self.volume();
        let room = volume.memory.data_cache / BLOCK_SIZE as u64 / CACHE_PART;
        if room < SMALL_BLOCKS * INODES_PER_BLOCK {
            return;
        }
        let first = FileId(file.0 - file.0 % INODES_PER_BLOCK);
        let Ok((inodes, _)) = self.inodes_in(first, 1) else { return };
        let is_small = |inode: &&Inode| {
            let is_node = inode.kind == FileKind::Node && !inode.removed;
            is_node && inode.tree.length <= SMALL_BLOCKS && !inode.tree.pointer.is_hole()
        };
        if content {
            let blocks = |inode: &Inode| (inode.id, inode.tree.length);
            let files: Vec<_> = inodes.iter().filter(is_small).map(blocks).collect();
            let _ = self.read_files(&files);
            return;
        }
        let tree = |inode: &Inode| volume.tree(self.committed(), inode.id, inode.tree);
        let trees: Vec<Tree<'_>> = inodes.iter().filter(is_small).map(tree).collect();
        load_nodes(&trees);
    }
}

impl Volume {
    /// [`Image::load_beside`] of the last consistency point.
    pub fn load_beside(self: &Arc<Self>, file: FileId, content: bool) {
        self.image_for_a_call().load_beside(file, content);
    }

    /// How many files' nodes are loaded together: few enough that they are still in the cache when
    /// they are used.
    pub(crate) fn nodes_ahead(&self) -> usize {
        let blocks = self.memory.node_cache as usize / BLOCK_SIZE;
        (blocks / CACHE_PART as usize).clamp(1, BATCH)
    }

    /// Loads the nodes of those files that have only one. A later read of an unreadable one gets
    /// the error.
    pub(crate) fn load_nodes_of(&self, committed: &Committed, files: impl Iterator<Item = FileId>) {
        let tree = |file: FileId| {
            let inode = self.committed_inode(committed, file).ok().flatten()?;
            (inode.tree.height == 1).then(|| self.tree(committed, file, inode.tree))
        };
        let trees: Vec<Tree<'_>> = files.filter_map(tree).collect();
        load_nodes(&trees);
    }

    /// True when the nodes above the first block of a file are in memory, or none of them can be
    /// read: then removing the file reads nothing.
    pub fn has_path(&self, file: FileId) -> bool {
        let committed = self.state.lock().committed.clone();
        match self.committed_inode(&committed, file) {
            Ok(Some(inode)) => self.tree(&committed, file, inode.tree).has_leaves(&[0]),
            Ok(None) | Err(_) => true,
        }
    }
}

/// Brings the nodes above the first blocks of files of one root into memory.
fn load_nodes(trees: &[Tree<'_>]) {
    let _ = pointers_of(trees.len(), |index| (&trees[index], Lba(0)));
}

/// Blocks of files of one root: first the pointers of all, then the blocks.
fn load_blocks(blocks: &[(&Tree<'_>, Lba)]) -> Vec<Result<Block, VolumeError>> {
    let Some((any, _)) = blocks.first() else { return Vec::new() };
    let pointers = pointers_of(blocks.len(), |index| blocks[index]);
    let want = |((tree, lba), pointer): (&(&Tree<'_>, Lba), &Result<BlockPointer, VolumeError>)| {
        let place = Place::Data { file: tree.file, lba: *lba };
        pointer.as_ref().ok().map(|pointer| Wanted { pointer: *pointer, place })
    };
    let wanted: Vec<Wanted> = blocks.iter().zip(&pointers).filter_map(want).collect();
    let mut loaded = any.store.load(&wanted, any.redirects).into_iter();
    let block = |pointer: Result<BlockPointer, VolumeError>| {
        pointer.and_then(|_| loaded.next().unwrap_or(Err(VolumeError::Closed)))
    };
    pointers.into_iter().map(block).collect()
}
