//! Where a tree is read from: the live volume, or an image.

use std::sync::Arc;

use cairn_base::{FileId, Lba, VolumeId};
use cairn_device::{Block, Segments};
use cairn_format::{FileKind, Inode, Leaf, LeafPlace};
use cairn_volume::{BlockRead, FileExtent, Image, Place, Volume, VolumeError};

use super::error::TreeError;

/// A state of a volume.
#[derive(Clone)]
pub(crate) enum Source {
    Live(Arc<Volume>),
    Frozen(Image),
}

/// Blocks of directories: `None` is a hole.
pub(crate) trait Blocks {
    /// Which volume: keys of names depend on it.
    fn volume_id(&self) -> VolumeId;
    /// One block.
    fn block(&mut self, file: FileId, lba: u64) -> Result<Option<Block>, TreeError>;
    /// A leaf of a directory that was checked: [`Leaf::trusted`] parses it.
    fn leaf(&mut self, directory: FileId, place: LeafPlace) -> Result<Option<Block>, TreeError>;
    /// The first block from `lba` on, before `end`, that is not a hole.
    fn next_data(&mut self, file: FileId, lba: u64, end: u64) -> Result<Option<u64>, TreeError>;
}

impl Source {
    pub(crate) fn volume(&self) -> &Arc<Volume> {
        match self {
            Source::Live(volume) => volume,
            Source::Frozen(image) => image.volume(),
        }
    }

    /// Any file's inode, also one that is being removed.
    pub(crate) fn raw_inode(&self, file: FileId) -> Result<Inode, VolumeError> {
        match self {
            Source::Live(volume) => volume.inode(file),
            Source::Frozen(image) => image.inode(file),
        }
    }

    /// The inode of a file of the tree.
    pub(crate) fn inode(&self, file: FileId) -> Result<Inode, TreeError> {
        let inode = self.raw_inode(file)?;
        let is_there = inode.kind == FileKind::Node && !inode.removed;
        if is_there { Ok(inode) } else { Err(TreeError::NotFound) }
    }

    /// Whole blocks of a file. Long stretches are not cached: the kernel reads ahead and caches,
    /// and a dump reads once.
    pub(crate) fn read(&self, file: FileId, lba: u64, count: u64) -> Result<Segments, TreeError> {
        let mut reads = [BlockRead { passing: count >= LONG_READ_BLOCKS, ..BlockRead::new(Lba(lba), count) }];
        match self {
            Source::Live(volume) => volume.read(file, &mut reads, true),
            Source::Frozen(image) => image.read(file, &mut reads, true),
        }
        let [read] = reads;
        Ok(read.outcome.unwrap_or(Err(VolumeError::Closed))?)
    }

    /// The same if it is in memory.
    pub(crate) fn read_ready(
        &self,
        file: FileId,
        lba: u64,
        count: u64,
    ) -> Option<Result<Segments, TreeError>> {
        let mut reads = [BlockRead::new(Lba(lba), count)];
        match self {
            Source::Live(volume) => volume.read(file, &mut reads, false),
            Source::Frozen(image) => image.read(file, &mut reads, false),
        }
        let [read] = reads;
        Some(read.outcome?.map_err(TreeError::from))
    }

    /// [`Source::read`] of several places of a file together.
    pub(crate) fn read_several(
        &self,
        file: FileId,
        places: &[(u64, u64)],
    ) -> Vec<Result<Segments, TreeError>> {
        let of = |(lba, count): &(u64, u64)| BlockRead {
            passing: *count >= LONG_READ_BLOCKS,
            ..BlockRead::new(Lba(*lba), *count)
        };
        let mut reads: Vec<BlockRead> = places.iter().map(of).collect();
        match self {
            Source::Live(volume) => volume.read(file, &mut reads, true),
            Source::Frozen(image) => image.read(file, &mut reads, true),
        }
        let outcome = |read: BlockRead| Ok(read.outcome.unwrap_or(Err(VolumeError::Closed))?);
        reads.into_iter().map(outcome).collect()
    }

    /// Stretches of a file that are allocated or not; they may end before `count`.
    pub(crate) fn extents(
        &self,
        file: FileId,
        lba: u64,
        count: u64,
        limit: usize,
    ) -> Result<Vec<FileExtent>, TreeError> {
        Ok(match self {
            Source::Live(volume) => volume.extents(file, Lba(lba), count, limit)?,
            Source::Frozen(image) => image.extents(file, Lba(lba), count, limit)?,
        })
    }

    /// The first block from `lba` on, before `end`, that is a hole or not, as asked.
    pub(crate) fn next_block(
        &self,
        file: FileId,
        mut lba: u64,
        end: u64,
        hole: bool,
    ) -> Result<Option<u64>, TreeError> {
        while lba < end {
            let extents = self.extents(file, lba, end - lba, 2)?;
            for extent in &extents {
                if extent.hole == hole && extent.count > 0 {
                    return Ok(Some(lba).filter(|lba| *lba < end));
                }
                lba += extent.count;
            }
            if extents.is_empty() {
                return Ok(None);
            }
        }
        Ok(None)
    }

    /// How many blocks of a range are allocated.
    pub(crate) fn count_data(&self, file: FileId, mut lba: u64, end: u64) -> Result<u64, TreeError> {
        let mut count = 0;
        while lba < end {
            let extents = self.extents(file, lba, end - lba, EXTENTS)?;
            if extents.is_empty() {
                break;
            }
            for extent in extents {
                count += if extent.hole { 0 } else { extent.count.min(end - lba) };
                lba += extent.count;
            }
        }
        Ok(count)
    }
}

/// Blocks of the shortest stretch that is not kept in memory: 256 KiB, more than a program that
/// looks here and there asks for.
const LONG_READ_BLOCKS: u64 = 64;

/// Extents that one question asks for.
const EXTENTS: usize = 1024;

impl Blocks for &Source {
    fn volume_id(&self) -> VolumeId {
        self.volume().id()
    }

    fn block(&mut self, file: FileId, lba: u64) -> Result<Option<Block>, TreeError> {
        let read = self.read(file, lba, 1)?;
        Ok(read
            .iter()
            .next()
            .and_then(|segment| segment.as_whole())
            .filter(|block| !block.is_zero())
            .cloned())
    }

    fn leaf(&mut self, directory: FileId, place: LeafPlace) -> Result<Option<Block>, TreeError> {
        let block = self.block(directory, place.lba())?;
        if let Some(block) = &block {
            check_leaf(block, directory, place)?;
        }
        Ok(block)
    }

    fn next_data(&mut self, file: FileId, lba: u64, end: u64) -> Result<Option<u64>, TreeError> {
        self.next_block(file, lba, end, false)
    }
}

/// Whether a block that was read is the leaf of a directory that it should be.
pub(crate) fn check_leaf(block: &Block, directory: FileId, place: LeafPlace) -> Result<(), TreeError> {
    Leaf::parse(block, directory, place).map(drop).map_err(|_| damaged(directory, place.lba()))
}

/// The error for an invalid block of a directory or of attributes.
pub(crate) fn damaged(file: FileId, lba: u64) -> TreeError {
    TreeError::Damaged(VolumeError::Damaged {
        vbn: cairn_base::Vbn(0),
        place: Place::Data { file, lba: Lba(lba) },
    })
}
