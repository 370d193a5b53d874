//! Removed files with an unreadable node: their blocks are found by exclusion.
//!
//! The blocks below such a node are unknown, so they cannot be freed as those of other removed
//! files are. The volume no longer needs the node itself, and no mirror has it if it is newer than
//! the mirror's image. But no image is taken of a volume with an unreadable block. So the rest of
//! the trees is walked: blocks that the active map has and no other tree reaches belong to the
//! removed files.
//!
//! # Invariants
//! 1. Only where every other node can be read is anything freed.
//! 2. One consistency point frees the blocks and removes the inodes: after a cut the file is there
//!    as before, or gone with all its blocks.
//! 3. The finding holds for that consistency point: a block in the map is not allocated again, and
//!    a block that no tree has is not released. A rollback in between, or a change of such a file,
//!    invalidates the finding.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use cairn_base::{FileId, Generation, Vbn};
use cairn_format::{BlockPointer, Root};

use crate::commit::excluded::Excluded;
use crate::commit::rider::Rider;
use crate::error::VolumeError;
use crate::limits::EXCLUDED_BLOCKS_MAX;
use crate::read::block_set::{BlockSet, numbers};
use crate::read::compare::Maps;
use crate::read::walk::{Rooted, new_blocks_but};
use crate::volume::Volume;

/// The time until the next attempt when other blocks can't be read either.
const AGAIN_AFTER: Duration = Duration::from_secs(3600);
/// Blocks between two looks whether the volume is still there.
const LOOK_BLOCKS: u64 = 4096;

impl Volume {
    /// Frees removed files that have an unreadable node, if there are any and all other blocks can
    /// be read. This walks all trees, so call it from a thread that no client waits for. Returns
    /// true when some were freed.
    ///
    /// # Errors
    /// An unreadable block elsewhere, or the volume's states. Nothing has changed then.
    pub fn free_stranded(self: &Arc<Self>) -> Result<bool, VolumeError> {
        let (files, heads) = {
            let (now, mut state) = (self.clock.monotonic(), self.state.lock());
            let is_due = state.tried_stranded.is_none_or(|tried| now.saturating_sub(tried) >= AGAIN_AFTER);
            if state.stranded.is_empty() || !is_due || state.check_writable().is_err() {
                return Ok(false);
            }
            state.tried_stranded = Some(now);
            (state.stranded.iter().copied().collect::<BTreeSet<FileId>>(), state.heads)
        };
        self.consistency_point()?;
        let image = self.image(None)?;
        let mut there = BTreeMap::new();
        for file in files {
            match self.committed_inode(image.committed(), file)? {
                Some(inode) if inode.removed => there.insert(file, inode.tree),
                // A rollback restored it, or it is gone.
                _ => None,
            };
        }
        let files: BTreeSet<FileId> = there.keys().copied().collect();
        let blocks = self.reached_by_no_other(image.root(), &files)?;
        if files.is_empty() || blocks.len() as u64 > EXCLUDED_BLOCKS_MAX {
            return Ok(false);
        }
        // A reader of the blocks to free: they would wait for it.
        drop(image);
        let mut commit = self.commit_turn()?;
        let committed = {
            let state = self.state.lock();
            if state.heads != heads || !state.has_room_to_free(0) {
                return Ok(false);
            }
            state.committed.clone()
        };
        for (file, tree) in &there {
            let now = self.committed_inode(&committed, *file)?;
            if now.is_none_or(|now| !now.removed || now.tree != *tree) {
                return Ok(false);
            }
        }
        let maps = Maps { store: &self.store, redirects: &committed.redirects };
        if !maps.holds(&committed.root, &blocks)?.into_iter().all(|held| held) {
            return Ok(false);
        }
        let held = self.held_by_snapshots(&maps, &blocks)?;
        // The births of these blocks are unknown: a block that a snapshot holds is as old as
        // anything, any other belongs to the active state alone.
        let birth = |held: bool| if held { Generation(0) } else { committed.root.generation };
        let pointers = blocks.iter().zip(held);
        let blocks =
            pointers.map(|(vbn, held)| BlockPointer { vbn: *vbn, birth: birth(held), ..BlockPointer::HOLE });
        let excluded = Excluded { files: files.clone(), blocks: blocks.collect() };
        let count = excluded.blocks.len();
        self.commit_holding(&mut commit, Rider::Exclude(excluded))?;
        drop(commit);
        let committed = self.state.lock().committed.clone();
        for file in &files {
            // Such a file was changed in that consistency point.
            if self.committed_inode(&committed, *file)?.is_some() {
                return Ok(false);
            }
        }
        self.state.lock().stranded.retain(|file| !files.contains(file));
        tracing::warn!(
            files = files.len(),
            blocks = count,
            "removed files with unreadable nodes were freed: no other file has their blocks"
        );
        Ok(true)
    }

    /// The blocks of a root's map that no file but these has.
    fn reached_by_no_other(&self, root: &Root, files: &BTreeSet<FileId>) -> Result<Vec<Vbn>, VolumeError> {
        let redirects = self.state.lock().committed.redirects.clone();
        let maps = Maps { store: &self.store, redirects: &redirects };
        let set: BlockSet = maps.only_in(root, &[])?.into_iter().collect();
        let (mut reached, mut walked) = (BlockSet::default(), 0);
        let rooted = Rooted { root, redirects: &redirects };
        new_blocks_but(files, &self.store, None, rooted, &mut |block| {
            reached.insert(block.pointer.vbn);
            walked += 1;
            if walked % LOOK_BLOCKS == 0 { self.state.lock().check_writable() } else { Ok(()) }
        })?;
        let most = EXCLUDED_BLOCKS_MAX as usize + 1;
        Ok(set.without(&[&reached]).flat_map(numbers).take(most).collect())
    }

    /// The blocks among these that any snapshot holds, as far as the maps can be read.
    fn held_by_snapshots(&self, maps: &Maps<'_>, blocks: &[Vbn]) -> Result<Vec<bool>, VolumeError> {
        let roots: Vec<Root> = self.state.lock().snapshots.iter().map(|entry| entry.root).collect();
        let mut held = vec![false; blocks.len()];
        for root in roots {
            let own = match maps.holds(&root, blocks) {
                Err(error) if error.is_of_a_block() => vec![true; blocks.len()],
                own => own?,
            };
            held.iter_mut().zip(own).for_each(|(held, own)| *held |= own);
        }
        Ok(held)
    }
}
