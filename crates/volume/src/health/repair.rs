//! Damaged blocks: the known ones, and how one is repaired.
//!
//! # The one exception to "never overwrite"
//! [`Volume::repair`] writes correct bytes over a damaged block that a root reaches. That is safe
//! at every moment:
//! - Only a block that is damaged is overwritten: it is read again, past the cache, and left alone
//!   when it verifies.
//! - Only with its own content: the bytes have the checksum that the block's parent names, and a
//!   committed root or a snapshot has that parent now. A request with another checksum for the
//!   block (because it was freed and reused by another file) is refused. `commit` is held
//!   meanwhile, so no reachable block is released and no block is moved home.
//! - A cut in the middle leaves some sectors old and some new: a block that is still damaged by its
//!   parent's checksum, and that can be repaired again. It is never served as correct, as every
//!   read verifies.
//!
//! Cannot be repaired here: a block written since the last consistency point (no root has it yet),
//! superblock slots (the next consistency point rewrites them), and the tables in the label area.

use std::sync::Arc;
use std::time::Duration;

use cairn_base::{Checksum, Vbn};
use cairn_device::Block;
use cairn_format::{BlockPointer, Root};

use crate::commit::space::Redirects;
use crate::error::{Place, VolumeError};
use crate::health::damage::DamagedBlock;
use crate::known_files::{ACTIVE_MAP, INODE_FILE};
use crate::memory::roots::Committed;
use crate::read::store::Wanted;
use crate::volume::Volume;

/// How often inodes are looked for without which no changes are taken.
const LOOK_FOR_INODES_EVERY: Duration = Duration::from_secs(5);

/// The result of a repair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repaired {
    /// The bytes were written, flushed and read back.
    Written,
    /// It verifies now: the failed read was a temporary fault of the device. Nothing was written.
    Sound,
    /// No root has it any more. Nothing was written.
    Gone,
}

/// How a block is that was damaged once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// It can't be read.
    Damaged,
    /// It was, and the cache had it: it was written again.
    Mended,
    /// It can be read.
    Sound,
    /// No root has it any more.
    Gone,
}

impl Volume {
    /// The damaged blocks found by reads, checks and scrubs since opening, or
    /// [recorded](Self::remember_damaged) before, and not repaired, by number; at most 1024.
    pub fn damaged(&self) -> Vec<DamagedBlock> {
        self.store.damage().all()
    }

    /// Counts blocks as damaged that were so before the volume was opened, until they are
    /// [looked at again](Self::look_again) or repaired.
    pub fn remember_damaged(&self, blocks: impl IntoIterator<Item = DamagedBlock>) {
        for block in blocks {
            self.store.damage().add(block);
        }
    }

    /// Blocks that were repaired since opening.
    pub fn repaired_blocks(&self) -> u64 {
        self.store.damage().repaired()
    }

    /// Writes the right bytes over a damaged block of [`Volume::damaged`], at the place where it is
    /// read: at home, or in the redirect area of a destination.
    ///
    /// # Errors
    /// [`VolumeError::Refused`] when the block is not known as damaged under that checksum, or the
    /// bytes have another one; [`VolumeError::Device`] when it can't be written, and
    /// [`VolumeError::Damaged`] when it does not read back. The block is as damaged as before.
    pub fn repair(
        self: &Arc<Self>,
        vbn: Vbn,
        checksum: Checksum,
        bytes: &Block,
    ) -> Result<Repaired, VolumeError> {
        if Checksum::of(&bytes[..]) != checksum {
            return Err(VolumeError::Refused("the bytes for a repair do not have the block's checksum"));
        }
        let damaged = self.store.damage().get(vbn, checksum);
        let damaged = damaged.ok_or(VolumeError::Refused("that block is not known as damaged"))?;
        let _commit = self.commit.lock();
        let Some((pointer, redirects)) = self.find_damaged(&damaged)? else {
            self.store.damage().forget(vbn, checksum);
            return Ok(Repaired::Gone);
        };
        let wanted = [Wanted { pointer, place: damaged.place }];
        let look = || self.store.load_past_cache(&wanted, &redirects).into_iter().all(|read| read.is_ok());
        let outcome = if look() {
            Repaired::Sound
        } else {
            self.store.overwrite(vbn, bytes, &redirects)?;
            self.store.device().flush()?;
            if !look() {
                return Err(VolumeError::Damaged { vbn, place: damaged.place });
            }
            self.store.damage().count_repaired();
            tracing::warn!(vbn = vbn.0, place = %damaged.place, "a damaged block was repaired");
            Repaired::Written
        };
        self.store.damage().forget(vbn, checksum);
        self.inodes_may_be_there();
        self.try_stranded_again();
        Ok(outcome)
    }

    /// A block can be read that could not: removed files may have waited for it.
    fn try_stranded_again(&self) {
        let mut state = self.state.lock();
        let stranded = std::mem::take(&mut state.stranded);
        state.removed.extend(stranded);
        self.work.notify_one();
    }

    /// Checks whether the device can now read inodes that it could not when the volume was opened.
    pub(crate) fn look_for_inodes(self: &Arc<Self>) {
        {
            let (now, mut state) = (self.clock.monotonic(), self.state.lock());
            if now.saturating_sub(state.looked_for_inodes) < LOOK_FOR_INODES_EVERY {
                return;
            }
            state.looked_for_inodes = now;
        }
        let is_of_inodes = |block: &DamagedBlock| match block.place {
            Place::Data { file, .. } => file == INODE_FILE,
            Place::Node(node) => node.file == INODE_FILE,
            Place::Unknown => false,
        };
        for block in self.damaged().iter().filter(|block| is_of_inodes(block)) {
            if let Err(error) = self.look_again(block) {
                tracing::debug!(vbn = block.vbn.0, %error, "a damaged block can't be checked");
            }
        }
    }

    /// Accepts changes again if they waited for inodes that can now be read. The caller holds
    /// `commit`.
    fn inodes_may_be_there(self: &Arc<Self>) {
        if !self.state.lock().inodes_are_lost() {
            return;
        }
        match self.find_special_files() {
            Ok(()) => {
                self.state.lock().latched = None;
                tracing::warn!("the missing inodes can be read again: the volume takes changes");
            }
            Err(reason) => tracing::warn!(%reason, "inodes still can't be read"),
        }
    }

    /// The pointer to a damaged block in any root that has it; `commit` is held. None when nothing
    /// has it any more.
    fn find_damaged(
        &self,
        damaged: &DamagedBlock,
    ) -> Result<Option<(BlockPointer, Arc<Redirects>)>, VolumeError> {
        let (roots, redirects) = {
            let state = self.state.lock();
            state.check_mendable()?;
            let snapshots = state.snapshots.iter().map(|entry| entry.root);
            let roots: Vec<Root> = std::iter::once(state.committed.root).chain(snapshots).collect();
            (roots, state.committed.redirects.clone())
        };
        for root in roots {
            let committed = Committed::image(root, redirects.clone());
            // A root whose path to the place cannot be read does not count: the nodes above are
            // repaired first.
            let found = self.pointer_at(&committed, damaged.place).ok();
            let found = found.filter(|found| (found.vbn, found.checksum) == (damaged.vbn, damaged.checksum));
            if let Some(pointer) = found {
                return Ok(Some((pointer, redirects)));
            }
        }
        // While some path cannot be read, the block may still have an owner.
        if self.damaged().iter().any(|other| other != damaged && is_above(other, damaged)) {
            return Err(VolumeError::Refused("a node above that block is damaged: repair that one first"));
        }
        Ok(None)
    }

    /// Looks again at a block that was damaged once, also before a restart: reads it from the
    /// media. One that is still damaged is mended from the cache, if that has it, and remembered
    /// otherwise; one that is not is forgotten.
    ///
    /// # Errors
    /// [`VolumeError::Refused`] while a node above it is damaged too. The known damage of the block
    /// stays recorded.
    pub fn look_again(self: &Arc<Self>, block: &DamagedBlock) -> Result<Health, VolumeError> {
        let commit = self.commit.lock();
        let Some((pointer, redirects)) = self.find_damaged(block)? else {
            self.store.damage().forget(block.vbn, block.checksum);
            return Ok(Health::Gone);
        };
        let wanted = [Wanted { pointer, place: block.place }];
        if self.store.load_past_cache(&wanted, &redirects).into_iter().all(|read| read.is_ok()) {
            self.store.damage().forget(block.vbn, block.checksum);
            self.inodes_may_be_there();
            self.try_stranded_again();
            return Ok(Health::Sound);
        }
        drop(commit);
        match self.store.cached(&pointer) {
            Some(bytes) => self.repair(block.vbn, block.checksum, &bytes).map(|repaired| match repaired {
                Repaired::Written => Health::Mended,
                Repaired::Sound => Health::Sound,
                Repaired::Gone => Health::Gone,
            }),
            None => Ok(Health::Damaged),
        }
    }

    /// Blocks with these checksums, for another copy of this volume that needs them: from the cache
    /// or the media, at any place of the number. `None` where this copy has no such bytes: it never
    /// hands out damaged blocks or other content.
    pub fn sound_blocks(self: &Arc<Self>, wanted: &[(Vbn, Checksum)]) -> Vec<Option<Block>> {
        let redirects = self.state.lock().committed.redirects.clone();
        let mut found: Vec<Option<Block>> = wanted
            .iter()
            .map(|(vbn, checksum)| {
                self.store.cached(&BlockPointer { vbn: *vbn, checksum: *checksum, ..BlockPointer::HOLE })
            })
            .collect();
        // A block of a snapshot may be at home while other content of that number is redirected.
        for place in [&*redirects, &Redirects::default()] {
            let missing: Vec<usize> = (0..wanted.len()).filter(|at| found[*at].is_none()).collect();
            let vbns: Vec<Vbn> = missing.iter().map(|at| wanted[*at].0).collect();
            for (at, read) in missing.iter().zip(self.store.read_numbers(&vbns, place)) {
                found[*at] = read.ok().filter(|block| Checksum::of(&block[..]) == wanted[*at].1);
            }
        }
        found
    }

    /// The pointer that leads to a place in one root; a hole when that root has none.
    fn pointer_at(&self, committed: &Committed, place: Place) -> Result<BlockPointer, VolumeError> {
        let (file, level, lba) = match place {
            Place::Data { file, lba } => (file, 0, lba.0),
            Place::Node(node) => {
                let below = cairn_format::FANOUT.saturating_pow(u32::from(node.level));
                (node.file, node.level, node.index.saturating_mul(below))
            }
            Place::Unknown => return Ok(BlockPointer::HOLE),
        };
        let tree = match file {
            ACTIVE_MAP => committed.root.active_map,
            INODE_FILE => committed.root.inode_file,
            file => match self.committed_inode(committed, file)? {
                Some(inode) => inode.tree,
                None => return Ok(BlockPointer::HOLE),
            },
        };
        self.tree(committed, file, tree).pointer_at_level(level, lba)
    }
}

/// True when damage of `upper` may hide the way to `lower`.
fn is_above(upper: &DamagedBlock, lower: &DamagedBlock) -> bool {
    let file_of = |block: &DamagedBlock| match block.place {
        Place::Data { file, .. } => Some((file, 0)),
        Place::Node(node) => Some((node.file, node.level)),
        Place::Unknown => None,
    };
    match (file_of(upper), file_of(lower)) {
        (Some((file, level)), Some((below, its_level))) => {
            file == INODE_FILE || (file == below && level > its_level)
        }
        _ => false,
    }
}
