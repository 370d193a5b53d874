//! Functions for the tree of names besides content: allocated blocks of a file, inodes by number,
//! and the one lock around the root directory.

use std::ops::Range;
use std::sync::Arc;

use cairn_base::{FileId, Generation, Lba, Timestamp};
use cairn_device::Block;
use cairn_format::{BlockPointer, INODES_PER_BLOCK, Inode, Root};

use crate::error::{Place, VolumeError};
use crate::known_files::INODE_FILE;
use crate::locks::MutexGuard;
use crate::memory::overlay::Seen;
use crate::read::image::Image;
use crate::read::store::Wanted;
use crate::read::tree::{BATCH, Tree, Unreadable};
use crate::volume::Volume;

/// Reserves the root directory for its holder: no other caller adds or removes a name in it.
pub struct DirectoryTurn<'a>(#[expect(dead_code, reason = "it is held, not used")] MutexGuard<'a, ()>);

impl Volume {
    /// The volume's time.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The volume's time as the kernel puts it on files: see
    /// [`Clock::coarse`](cairn_base::Clock::coarse).
    pub fn coarse_now(&self) -> Timestamp {
        self.clock.coarse()
    }

    /// Prevents other changes of the root directory, which LUNs and the tree of names share. Taken
    /// before [`Volume::compound`].
    pub fn directory_turn(&self) -> DirectoryTurn<'_> {
        DirectoryTurn(self.directory.lock())
    }

    /// For each of `count` blocks of a file of the active state whether it takes space, with
    /// changes that no consistency point has yet.
    ///
    /// # Errors
    /// [`VolumeError::Damaged`] or [`VolumeError::Device`] of a node that can't be read.
    pub fn allocated(self: &Arc<Self>, file: FileId, lba: Lba, count: u64) -> Result<Vec<bool>, VolumeError> {
        let mut found = Vec::with_capacity(count as usize);
        let mut below = Vec::new();
        let committed = {
            let state = self.state.lock();
            let changes = state.changes_of(file);
            for number in lba.0..lba.0 + count {
                match changes.see(number) {
                    Seen::Block(_) => found.push(true),
                    Seen::Pointer(pointer) => found.push(!pointer.is_hole()),
                    Seen::Hole => found.push(false),
                    Seen::Below => {
                        below.push((found.len(), Lba(number)));
                        found.push(false);
                    }
                }
            }
            state.committed.clone()
        };
        if below.is_empty() {
            return Ok(found);
        }
        let Some(inode) = self.committed_inode(&committed, file)? else { return Ok(found) };
        let lbas: Vec<Lba> = below.iter().map(|(_, lba)| *lba).collect();
        let pointers = self.tree(&committed, file, inode.tree).pointers(&lbas);
        for ((place, _), pointer) in below.into_iter().zip(pointers) {
            found[place] = !pointer?.is_hole();
        }
        Ok(found)
    }
}

/// A block of inodes as it was read.
struct InodeBlock {
    /// Which of them it is.
    lba: u64,
    block: Result<Block, VolumeError>,
    /// A hole where the way to it can't be read.
    pointer: BlockPointer,
}

impl InodeBlock {
    /// Calls `visit` with its inodes from number `from` on.
    fn each(self, from: FileId, visit: &mut dyn FnMut(Inode)) -> Result<(), VolumeError> {
        let block = self.block?;
        for slot in 0..INODES_PER_BLOCK as usize {
            match Inode::parse(&block, slot) {
                Ok(inode) => inode.filter(|inode| inode.id >= from).into_iter().for_each(&mut *visit),
                Err(_) => {
                    let place = Place::Data { file: INODE_FILE, lba: Lba(self.lba) };
                    return Err(VolumeError::Damaged { vbn: self.pointer.vbn, place });
                }
            }
        }
        Ok(())
    }
}

/// A part of the inode file that can't be read.
pub(crate) struct LostInodes {
    /// The numbers that belong there; whether there are such files is not known.
    pub(crate) numbers: Range<FileId>,
    /// When it was written last: nothing in it is newer.
    pub(crate) birth: Generation,
    pub(crate) error: VolumeError,
}

impl LostInodes {
    fn new(first: u64, blocks: u64, birth: Generation, error: VolumeError) -> Self {
        let number = |block: u64| FileId(block.saturating_mul(INODES_PER_BLOCK));
        Self { numbers: number(first)..number(first.saturating_add(blocks)), birth, error }
    }

    /// Whether a since map of that root may be in it: every consistency point writes the inode of
    /// each ([`crate::past::since`], invariant 4).
    pub(crate) fn may_have_since_map(&self, root: &Root) -> bool {
        self.birth >= root.generation
    }

    fn below(Unreadable { pointer, first, blocks, error }: Unreadable) -> Self {
        Self::new(first, blocks, pointer.birth, error)
    }
}

/// Some inodes, where not all can be read.
#[derive(Debug, Default)]
pub struct ReadableInodes {
    /// In order of number.
    pub inodes: Vec<Inode>,
    /// Ranges of numbers that cannot be read, and may have files.
    pub lost: Vec<(FileId, FileId)>,
    /// The number to continue from; `None` at the end.
    pub next: Option<FileId>,
}

impl Image {
    /// The inodes from number `from` on, in order, of the next non-empty block and those after it:
    /// about a thousand at most, fewer at the end. Second: the number to continue from; `None` at
    /// the end.
    ///
    /// # Errors
    /// [`VolumeError::Damaged`] or [`VolumeError::Device`] of a node or of a block of inodes.
    pub fn inodes_from(&self, from: FileId) -> Result<(Vec<Inode>, Option<FileId>), VolumeError> {
        // Numbers are never reused: in an old volume most may be those of deleted files.
        let Some(first) = self.inode_tree().next_under_leaf(from.0 / INODES_PER_BLOCK)? else {
            return Ok((Vec::new(), None));
        };
        self.inodes_in(from.max(FileId(first * INODES_PER_BLOCK)), BATCH as u64)
    }

    /// The same as far as they can be read. Second: the numbers in unreadable blocks, as ranges
    /// from the first up to the one after the last; whether these numbers have files is unknown.
    ///
    /// # Errors
    /// [`VolumeError::Damaged`] or [`VolumeError::Device`] of a node above all of the blocks.
    pub fn readable_inodes_from(&self, from: FileId) -> Result<ReadableInodes, VolumeError> {
        let Some(first) = self.inode_tree().next_under_leaf(from.0 / INODES_PER_BLOCK)? else {
            return Ok(ReadableInodes::default());
        };
        let from = from.max(FileId(first * INODES_PER_BLOCK));
        let (blocks, next) = self.inode_blocks(from, BATCH as u64);
        let mut found = ReadableInodes { next, ..ReadableInodes::default() };
        for block in blocks {
            let (lba, before) = (block.lba, found.inodes.len());
            if block.each(from, &mut |inode| found.inodes.push(inode)).is_err() {
                found.inodes.truncate(before);
                found.lost.push((FileId(lba * INODES_PER_BLOCK), FileId((lba + 1) * INODES_PER_BLOCK)));
            }
        }
        Ok(found)
    }

    fn inode_tree(&self) -> Tree<'_> {
        self.volume().tree(self.committed(), INODE_FILE, self.root().inode_file)
    }

    /// The same of `count` blocks of inodes.
    pub(crate) fn inodes_in(
        &self,
        from: FileId,
        count: u64,
    ) -> Result<(Vec<Inode>, Option<FileId>), VolumeError> {
        let (blocks, next) = self.inode_blocks(from, count);
        let mut inodes = Vec::with_capacity(blocks.len() * INODES_PER_BLOCK as usize);
        for block in blocks {
            block.each(from, &mut |inode| inodes.push(inode))?;
        }
        Ok((inodes, next))
    }

    /// The blocks that are not holes, among `count` blocks of inodes from that of number `from` on,
    /// and the number to continue from.
    fn inode_blocks(&self, from: FileId, count: u64) -> (Vec<InodeBlock>, Option<FileId>) {
        let blocks = self.root().next_file.div_ceil(INODES_PER_BLOCK);
        let first = from.0 / INODES_PER_BLOCK;
        let end = blocks.min(first + count);
        let lbas: Vec<Lba> = (first..end).map(Lba).collect();
        let mut found: Vec<InodeBlock> = Vec::with_capacity(lbas.len());
        let mut wanted = Vec::new();
        for (lba, pointer) in lbas.iter().zip(self.inode_tree().pointers(&lbas)) {
            let (block, pointer) = match pointer {
                Ok(pointer) if pointer.is_hole() => continue,
                Ok(pointer) => {
                    let place = Place::Data { file: INODE_FILE, lba: *lba };
                    wanted.push((found.len(), Wanted { pointer, place }));
                    (Ok(Block::zero()), pointer)
                }
                Err(error) => (Err(error), BlockPointer::HOLE),
            };
            found.push(InodeBlock { lba: lba.0, block, pointer });
        }
        let (places, wanted): (Vec<usize>, Vec<Wanted>) = wanted.into_iter().unzip();
        for (place, block) in places.into_iter().zip(self.volume().store.load(&wanted, self.redirects())) {
            found[place].block = block;
        }
        (found, (end < blocks).then_some(FileId(end * INODES_PER_BLOCK)))
    }

    /// Calls `visit` with every inode, some thousand in memory at a time.
    ///
    /// # Errors
    /// As [`Image::inodes_from`].
    pub fn each_inode(&self, visit: &mut dyn FnMut(Inode)) -> Result<(), VolumeError> {
        self.each_inode_past(visit, &mut |lost| Err(lost.error))
    }

    /// The same for a caller that continues past damage: `lost` gets each part that cannot be read,
    /// and may cancel with an error. A device that does not answer at all is not damage, and
    /// cancels the walk.
    pub(crate) fn each_inode_past(
        &self,
        visit: &mut dyn FnMut(Inode),
        lost: &mut dyn FnMut(LostInodes) -> Result<(), VolumeError>,
    ) -> Result<(), VolumeError> {
        let lost = &mut |part: LostInodes| match part.error.is_of_a_block() {
            true => lost(part),
            false => Err(part.error),
        };
        let mut at = 0;
        loop {
            let first = match self.inode_tree().next_under_leaf(at) {
                Ok(Some(first)) => first,
                Ok(None) => return Ok(()),
                Err(unreadable) => {
                    at = unreadable.first.saturating_add(unreadable.blocks);
                    lost(LostInodes::below(unreadable))?;
                    continue;
                }
            };
            let (blocks, next) = self.inode_blocks(FileId(first * INODES_PER_BLOCK), BATCH as u64);
            let mut past = first;
            for block in blocks {
                let (lba, pointer) = (block.lba, block.pointer);
                // The blocks below the same node were reported.
                if lba < past {
                    continue;
                }
                past = lba + 1;
                let mut inodes = Vec::with_capacity(INODES_PER_BLOCK as usize);
                match block.each(FileId(0), &mut |inode| inodes.push(inode)) {
                    Ok(()) => inodes.into_iter().for_each(&mut *visit),
                    Err(_)
                        if pointer.is_hole()
                            && let Some(unreadable) = self.inode_tree().unreadable_above(lba) =>
                    {
                        past = unreadable.first.saturating_add(unreadable.blocks);
                        lost(LostInodes::below(unreadable))?;
                    }
                    Err(error) => {
                        // The birth of a block below a node that has become readable is unknown.
                        let birth = if pointer.is_hole() { Generation(u64::MAX) } else { pointer.birth };
                        lost(LostInodes::new(lba, 1, birth, error))?;
                    }
                }
            }
            match next {
                Some(next) => at = past.max(next.0 / INODES_PER_BLOCK),
                None => return Ok(()),
            }
        }
    }

    /// Every file.
    ///
    /// # Errors
    /// As [`Image::inodes_from`].
    pub fn inodes(&self) -> Result<Vec<Inode>, VolumeError> {
        let mut all = Vec::new();
        self.each_inode(&mut |inode| all.push(inode))?;
        Ok(all)
    }
}
