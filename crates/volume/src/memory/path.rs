//! The nodes above a block are read before a change of it is accepted, so that a damaged node
//! affects only requests that need it.
//!
//! A consistency point merges changes into the nodes above them. If such a node turned out to be
//! unreadable only then, it would be too late for an error: the client has its acknowledgement, and
//! the generation cannot be committed without the change. So the first change under a leaf in a
//! generation reads the path to it (for a hole: every node that it frees), and a change under a
//! damaged node fails. All other requests continue.
//!
//! # Cost
//! Nodes are usually in the node cache, and a leaf's path is read once in a generation: after that
//! it is one lookup in a set of numbers. On a cold cache the client's thread does now the read that
//! the merge would do later; a batch of requests loads its paths together ([`Volume::load_paths`]).
//!
//! # What remains
//! Not covered: a node that becomes damaged after it was read and is evicted from the cache before
//! the merge, a few seconds later. Then the consistency point fails and latches: changes stay in
//! memory and are served, flushed ones are in the log, and nothing is lost silently. Nodes of the
//! active map and of the inode file affect all files, so damage there stops the volume too. An
//! unreadable since map is given up (`since`).

use std::sync::Arc;

use cairn_base::FileId;
use cairn_device::Block;
use cairn_format::{BlockPointer, FANOUT};

use crate::error::{Place, VolumeError};
use crate::memory::state::State;
use crate::read::store::Wanted;
use crate::read::tree::{Tree, pointer_in, span};
use crate::volume::Volume;

/// The leaves above some blocks of a file, in order and each once.
pub(crate) fn leaves_of(lbas: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut leaves: Vec<u64> = Vec::new();
    for leaf in lbas.map(|lba| lba / FANOUT) {
        if leaves.last() != Some(&leaf) {
            leaves.push(leaf);
        }
    }
    if !leaves.is_sorted() {
        leaves.sort_unstable();
    }
    leaves.dedup();
    leaves
}

impl Tree<'_> {
    /// Loads every node on the way to these leaves, which are in order; level by level, each level
    /// in one batch.
    fn load_leaves(&self, leaves: &[u64]) -> Result<(), VolumeError> {
        // Blocks past the old top belong below a new one.
        let reach = FANOUT.saturating_pow(u32::from(self.tree.height) - 1);
        let leaves = &leaves[..leaves.partition_point(|leaf| *leaf < reach)];
        let mut pointers: Vec<BlockPointer> = vec![self.tree.pointer; leaves.len()];
        for level in (1..=self.tree.height).rev() {
            let wanted: Vec<Wanted> = leaves
                .iter()
                .zip(&pointers)
                .map(|(leaf, pointer)| Wanted {
                    pointer: *pointer,
                    place: Place::Node(self.address(level, leaf * FANOUT)),
                })
                .collect();
            let nodes: Vec<Block> =
                self.store.load(&wanted, self.redirects).into_iter().collect::<Result<_, _>>()?;
            for ((leaf, pointer), node) in leaves.iter().zip(&mut pointers).zip(nodes) {
                if !pointer.is_hole() {
                    *pointer = pointer_in(&node, (leaf * FANOUT / span(level) % FANOUT) as usize);
                }
            }
        }
        Ok(())
    }

    /// True when every node on the way to these leaves is in memory.
    pub(crate) fn has_leaves(&self, leaves: &[u64]) -> bool {
        leaves.iter().all(|leaf| {
            let mut pointer = self.tree.pointer;
            if leaf / FANOUT.saturating_pow(u32::from(self.tree.height) - 1) > 0 {
                return true;
            }
            for level in (1..=self.tree.height).rev() {
                if pointer.is_hole() {
                    return true;
                }
                let Some(node) = self.store.cached_node(&pointer) else { return false };
                pointer = pointer_in(&node, (leaf * FANOUT / span(level) % FANOUT) as usize);
            }
            true
        })
    }

    /// Loads every node that has a part of `start..end` below it.
    fn load_range(&self, start: u64, end: u64) -> Result<(), VolumeError> {
        let mut damage = None;
        self.walk(
            &mut |_, level, at| {
                let width = FANOUT.saturating_pow(u32::from(level));
                level > 0 && at < end && at.saturating_add(width) > start
            },
            &mut |error| damage = damage.take().or(Some(error)),
        );
        damage.map_or(Ok(()), Err)
    }
}

impl State {
    /// True when the paths to these leaves were read since this generation began.
    pub(crate) fn knows_leaves(&self, file: FileId, leaves: &[u64]) -> bool {
        self.open
            .files
            .get(&file)
            .is_some_and(|overlay| leaves.iter().all(|leaf| overlay.leaves.contains(leaf)))
    }

    pub(crate) fn note_leaves(&mut self, file: FileId, leaves: &[u64]) {
        self.open.file_mut(file).leaves.extend(leaves);
    }
}

impl Volume {
    /// Reads the nodes on the way to these leaves. Without `wait`, false when that needs the
    /// device.
    ///
    /// # Errors
    /// [`VolumeError::Damaged`] or [`VolumeError::Device`] of the node that can't be read.
    pub(crate) fn check_leaves(&self, file: FileId, leaves: &[u64], wait: bool) -> Result<bool, VolumeError> {
        let committed = {
            let state = self.state.lock();
            if state.knows_leaves(file, leaves) {
                return Ok(true);
            }
            state.committed.clone()
        };
        if !wait && !committed.inodes.lock().contains_key(&file) {
            return Ok(false);
        }
        // A file that no consistency point has seen has no nodes.
        let Some(inode) = self.committed_inode(&committed, file)? else { return Ok(true) };
        let tree = self.tree(&committed, file, inode.tree);
        if tree.has_leaves(leaves) {
            return Ok(true);
        }
        if wait { tree.load_leaves(leaves).map(|()| true) } else { Ok(false) }
    }

    /// Reads the nodes that making `start..end` a hole changes or frees.
    pub(crate) fn check_range(&self, file: FileId, start: u64, end: u64) -> Result<(), VolumeError> {
        let committed = self.state.lock().committed.clone();
        match self.committed_inode(&committed, file)? {
            Some(inode) => self.tree(&committed, file, inode.tree).load_range(start, end),
            None => Ok(()),
        }
    }

    /// Loads the nodes above ranges of blocks (first, count) of a file into memory, those of all
    /// ranges together, for the writes that follow. A write that needs an unreadable node gets the
    /// error.
    pub fn load_paths(self: &Arc<Self>, file: FileId, ranges: &[(u64, u64)]) {
        let leaf = |(first, count): &(u64, u64)| first / FANOUT..=(first + count.max(&1) - 1) / FANOUT;
        let leaves = leaves_of(ranges.iter().flat_map(leaf).map(|leaf| leaf * FANOUT));
        let _ = self.check_leaves(file, &leaves, true);
    }
}
