//! Claims of another copy about its blocks, compared by checksum: the source does not send blocks
//! that are claimed correctly.

use std::sync::Arc;

use cairn_base::{Checksum, Lba, Vbn};
use cairn_format::{BlockPointer, INODES_PER_BLOCK, Inode, Root, SnapshotEntry, TreeRef};

use crate::commit::space::Redirects;
use crate::error::{Place, VolumeError};
use crate::known_files::{ACTIVE_MAP, INODE_FILE};
use crate::read::compare::Run;
use crate::read::store::Wanted;
use crate::read::tree::Tree;
use crate::volume::Volume;

/// A set of blocks, one bit for each up to the highest.
#[derive(Debug, Clone, Default)]
pub struct BlockSet {
    words: Vec<u64>,
}

impl BlockSet {
    /// The blocks of `runs`.
    pub fn of(runs: &[Run]) -> Self {
        let mut set = Self::default();
        for (first, count) in runs {
            let end = first.0 + count;
            let mut vbn = first.0;
            while vbn < end {
                // Whole words at once: a set may have as many blocks as a volume.
                if vbn.is_multiple_of(64) && end - vbn >= 64 {
                    set.insert(Vbn(vbn));
                    set.words[(vbn / 64) as usize] = u64::MAX;
                    vbn += 64;
                } else {
                    set.insert(Vbn(vbn));
                    vbn += 1;
                }
            }
        }
        set
    }

    /// Whether a block is in.
    pub fn has(&self, vbn: Vbn) -> bool {
        self.words.get((vbn.0 / 64) as usize).is_some_and(|word| word >> (vbn.0 % 64) & 1 == 1)
    }

    /// Puts a block in; true if it was not.
    pub fn insert(&mut self, vbn: Vbn) -> bool {
        let fresh = !self.has(vbn);
        let word = (vbn.0 / 64) as usize;
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (vbn.0 % 64);
        fresh
    }

    /// Takes a block out; true if it was in.
    pub fn remove(&mut self, vbn: Vbn) -> bool {
        let had = self.has(vbn);
        if had {
            self.words[(vbn.0 / 64) as usize] &= !(1 << (vbn.0 % 64));
        }
        had
    }

    /// The blocks as runs.
    pub fn runs(&self) -> Vec<Run> {
        let mut runs = Vec::new();
        crate::read::compare::append_runs(&mut runs, 0, &self.words);
        runs
    }
}

impl Volume {
    /// Removes from `unsent` (blocks that a destination lacks for `snapshots`) those that it
    /// claims: `claims`, in order of vbn, are confirmed when a pointer of the snapshots names that
    /// vbn with that checksum. Returns how many were removed. Only pointers are read, and only
    /// below blocks to send.
    pub fn confirm_claims(
        self: &Arc<Self>,
        snapshots: &[SnapshotEntry],
        unsent: &mut BlockSet,
        claims: &[(Vbn, Checksum)],
    ) -> Result<u64, VolumeError> {
        let redirects = self.state.lock().committed.redirects.clone();
        let within = unsent.clone();
        let mut seen = BlockSet::default();
        let mut confirmed = 0;
        let roots: Vec<Root> = snapshots.iter().map(|entry| entry.root).collect();
        self.blocks_within(&roots, &redirects, &within, &mut seen, &mut |pointer| {
            let found = claims.binary_search_by_key(&pointer.vbn, |(vbn, _)| *vbn);
            if found.is_ok_and(|at| claims[at].1 == pointer.checksum) {
                confirmed += u64::from(unsent.remove(pointer.vbn));
            }
        })?;
        Ok(confirmed)
    }

    /// Calls `visit` once with each block of `within` that the roots reach. A block outside
    /// `within` is as old as its parent says, so its children are skipped.
    pub(crate) fn blocks_within(
        &self,
        roots: &[Root],
        redirects: &Redirects,
        within: &BlockSet,
        seen: &mut BlockSet,
        visit: &mut dyn FnMut(&BlockPointer),
    ) -> Result<(), VolumeError> {
        let mut walk = |file, tree: TreeRef, data: &mut dyn FnMut(&BlockPointer, u64)| {
            let mut failure = None;
            let tree = Tree { store: &self.store, redirects, file, tree };
            let mut enter = |pointer: &BlockPointer, level: u8, at: u64| {
                if !within.has(pointer.vbn) || !seen.insert(pointer.vbn) {
                    return false;
                }
                visit(pointer);
                if level == 0 {
                    data(pointer, at);
                }
                true
            };
            tree.walk(&mut enter, &mut |error| failure = failure.take().or(Some(error)));
            failure.map_or(Ok(()), Err)
        };
        for root in roots {
            walk(ACTIVE_MAP, root.active_map, &mut |_, _| {})?;
            let mut inode_blocks = Vec::new();
            walk(INODE_FILE, root.inode_file, &mut |pointer, at| inode_blocks.push((*pointer, at)))?;
            for (pointer, at) in inode_blocks {
                let place = Place::Data { file: INODE_FILE, lba: Lba(at) };
                let block = self.store.load_one(Wanted { pointer, place }, redirects)?;
                for slot in 0..INODES_PER_BLOCK as usize {
                    let inode = Inode::parse(&block, slot);
                    let inode = inode.map_err(|_| VolumeError::Damaged { vbn: pointer.vbn, place })?;
                    if let Some(inode) = inode {
                        walk(inode.id, inode.tree, &mut |_, _| {})?;
                    }
                }
            }
        }
        Ok(())
    }
}
