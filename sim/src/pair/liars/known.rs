//! A liar's knowledge of a volume: every block that its snapshots show, by number, and its snapshot
//! table.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::Result;
use cairn_base::FileId;
use cairn_device::Block;
use cairn_format::{BlockPointer, INODES_PER_BLOCK, Inode, Node, NodeAddress, Root, SnapshotEntry, TreeRef};
use cairn_volume::{ROOT_DIRECTORY, Volume};

use crate::world::VOLUME;

/// The files that have no inode (docs/format.md, "Files").
pub const INODE_FILE: FileId = FileId(u64::MAX - 1);
pub const ACTIVE_MAP: FileId = FileId(u64::MAX);
/// The maximum number of examined blocks of one image; an invented image may claim any number.
const REACHED_MAX: usize = 4096;

/// A block of an image, and its place in it.
#[derive(Debug, Clone, Copy)]
pub struct Reached {
    pub at: NodeAddress,
    pub pointer: BlockPointer,
}

impl Reached {
    /// It is written by clients.
    pub fn is_data(&self) -> bool {
        self.at.level == 0 && self.at.file > ROOT_DIRECTORY && self.at.file < INODE_FILE
    }
}

/// Blocks and snapshots of a volume.
#[derive(Clone, Default)]
pub struct Known {
    pub space: u64,
    pub blocks: BTreeMap<u64, Block>,
    pub table: Vec<SnapshotEntry>,
}

impl Known {
    /// Everything that the snapshots of a volume show.
    pub fn of(volume: &Arc<Volume>) -> Result<Self> {
        let table = volume.snapshot_entries();
        let mut known = Known { space: volume.space_blocks(), blocks: BTreeMap::new(), table };
        if let Some(last) = known.table.last() {
            let runs = volume.changed_blocks(&[], last.id)?.runs;
            let numbers = runs.iter().flat_map(|(first, count)| first.0..first.0 + count);
            known.blocks = numbers.zip(volume.read_blocks(&runs)?).collect();
        }
        Ok(known)
    }

    /// The blocks that a root reaches, as far as they are known.
    pub fn reached(&self, root: &Root) -> Vec<Reached> {
        let mut reached = Vec::new();
        self.walk(ACTIVE_MAP, root.active_map, &mut reached);
        self.walk(INODE_FILE, root.inode_file, &mut reached);
        for inode in self.inodes(root) {
            self.walk(inode.id, inode.tree, &mut reached);
        }
        reached
    }

    /// The numbers of those.
    pub fn numbers(&self, root: &Root) -> BTreeSet<u64> {
        self.reached(root).iter().map(|reached| reached.pointer.vbn.0).collect()
    }

    /// The files of a root.
    pub fn inodes(&self, root: &Root) -> Vec<Inode> {
        let mut reached = Vec::new();
        self.walk(INODE_FILE, root.inode_file, &mut reached);
        let blocks = reached.iter().filter(|reached| reached.at.level == 0);
        let blocks = blocks.filter_map(|reached| self.blocks.get(&reached.pointer.vbn.0));
        let inodes = blocks.flat_map(|block| {
            (0..INODES_PER_BLOCK as usize).filter_map(|slot| Inode::parse(block, slot).ok().flatten())
        });
        inodes.collect()
    }

    /// Adds the blocks of a tree.
    pub fn walk(&self, file: FileId, tree: TreeRef, reached: &mut Vec<Reached>) {
        let at = NodeAddress { file, level: tree.height, index: 0 };
        self.below(Reached { at, pointer: tree.pointer }, reached);
    }

    fn below(&self, top: Reached, reached: &mut Vec<Reached>) {
        let Reached { at, pointer } = top;
        if pointer.is_hole() || reached.len() >= REACHED_MAX {
            return;
        }
        reached.push(top);
        let block = self.blocks.get(&pointer.vbn.0).filter(|_| at.level > 0);
        let Some(node) = block.and_then(|block| Node::parse(block, VOLUME, at, pointer.vbn).ok()) else {
            return;
        };
        for slot in 0..cairn_format::FANOUT {
            let index = at.index.saturating_mul(cairn_format::FANOUT).saturating_add(slot);
            let at = NodeAddress { level: at.level - 1, index, ..at };
            self.below(Reached { at, pointer: node.pointer(slot as usize) }, reached);
        }
    }
}
