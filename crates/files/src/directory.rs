//! The root directory: a file of fixed entries. Its blocks change only together with inodes, in one
//! generation.

use std::sync::Arc;

use cairn_base::{BLOCK_SIZE, Lba};
use cairn_device::{Block, BlockMut, Segments};
use cairn_format::{DirectoryEntry, ENTRIES_PER_BLOCK, FileKind, Inode};
use cairn_volume::{BlockRead, Compound, Image, Place, ROOT_DIRECTORY, Volume, VolumeError};

/// The maximum number of blocks of the directory: a million names. It is read as a whole, and a
/// larger claimed size could take all memory.
const BLOCKS_MAX: u64 = 1 << 15;

/// The place of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EntryPlace {
    lba: u64,
    slot: usize,
}

/// The root directory as it was read.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    blocks: Vec<Block>,
    exists: bool,
}

impl Directory {
    /// The directory of the active state.
    pub(crate) fn read(volume: &Arc<Volume>) -> Result<Self, VolumeError> {
        match volume.inode(ROOT_DIRECTORY) {
            Ok(inode) => {
                let mut reads = [BlockRead::new(Lba(0), length_of(&inode)?)];
                volume.read(ROOT_DIRECTORY, &mut reads, true);
                Self::from_read(reads)
            }
            Err(VolumeError::NoSuchFile(_)) => Ok(Self::default()),
            Err(error) => Err(error),
        }
    }

    /// The directory of an image.
    pub(crate) fn read_in(image: &Image) -> Result<Self, VolumeError> {
        match image.inode(ROOT_DIRECTORY) {
            Ok(inode) => {
                let mut reads = [BlockRead::new(Lba(0), length_of(&inode)?)];
                image.read(ROOT_DIRECTORY, &mut reads, true);
                Self::from_read(reads)
            }
            Err(VolumeError::NoSuchFile(_)) => Ok(Self::default()),
            Err(error) => Err(error),
        }
    }

    fn from_read(reads: [BlockRead; 1]) -> Result<Self, VolumeError> {
        let [read] = reads;
        let data: Segments = read.outcome.unwrap_or(Err(VolumeError::Closed))?;
        let blocks = data.iter().filter_map(|piece| piece.as_whole()).cloned().collect();
        Ok(Self { blocks, exists: true })
    }

    /// Every entry and its place.
    pub(crate) fn entries(&self) -> Result<Vec<(EntryPlace, DirectoryEntry)>, VolumeError> {
        let mut entries = Vec::new();
        for (number, block) in self.blocks.iter().enumerate() {
            for slot in 0..ENTRIES_PER_BLOCK {
                let lba = number as u64;
                let entry = DirectoryEntry::parse(block, slot).map_err(|_| damaged(lba))?;
                entries.extend(entry.map(|entry| (EntryPlace { lba, slot }, entry)));
            }
        }
        Ok(entries)
    }

    /// A free place, in a new block when all are taken.
    pub(crate) fn free_place(&self) -> EntryPlace {
        for (number, block) in self.blocks.iter().enumerate() {
            let free =
                (0..ENTRIES_PER_BLOCK).find(|slot| matches!(DirectoryEntry::parse(block, *slot), Ok(None)));
            if let Some(slot) = free {
                return EntryPlace { lba: number as u64, slot };
            }
        }
        EntryPlace { lba: self.blocks.len() as u64, slot: 0 }
    }

    /// Writes one entry (or frees its place), making or growing the directory where it needs that.
    pub(crate) fn put(
        &self,
        compound: &Compound<'_>,
        place: EntryPlace,
        entry: Option<&DirectoryEntry>,
    ) -> Result<(), VolumeError> {
        if place.lba >= BLOCKS_MAX {
            return Err(VolumeError::NoSpace);
        }
        let bytes = (place.lba + 1) * BLOCK_SIZE as u64;
        if !self.exists {
            compound.create(FileKind::Directory, bytes)?;
        } else if place.lba as usize >= self.blocks.len() {
            compound.resize(ROOT_DIRECTORY, bytes)?;
        }
        let mut block = match self.blocks.get(place.lba as usize) {
            Some(block) => BlockMut::copy_of(block),
            None => BlockMut::zeroed(),
        };
        DirectoryEntry::put(entry, &mut block, place.slot);
        compound.write(ROOT_DIRECTORY, Lba(place.lba), block.freeze())
    }
}

/// Blocks of the directory with this inode.
fn length_of(inode: &Inode) -> Result<u64, VolumeError> {
    Some(inode.tree.length).filter(|length| *length <= BLOCKS_MAX).ok_or_else(|| damaged(BLOCKS_MAX))
}

fn damaged(lba: u64) -> VolumeError {
    VolumeError::Damaged {
        vbn: cairn_base::Vbn(0),
        place: Place::Data { file: ROOT_DIRECTORY, lba: Lba(lba) },
    }
}
