//! Reading trees: from a block number in a file to its pointer, many at a time, level by level.

use cairn_base::{FileId, Lba};
use cairn_device::Block;
use cairn_format::{BlockPointer, FANOUT, Node, NodeAddress, TreeRef};

use crate::commit::space::Redirects;
use crate::error::{Place, VolumeError};
use crate::read::store::{Store, Wanted};

/// Nodes that one batch of reads asks for at most.
pub(crate) const BATCH: usize = 512;

/// The tree of one file of one root.
#[derive(Clone, Copy)]
pub(crate) struct Tree<'a> {
    pub(crate) store: &'a Store,
    pub(crate) redirects: &'a Redirects,
    pub(crate) file: FileId,
    pub(crate) tree: TreeRef,
}

/// Nodes that the reads of one batch have passed: they mostly pass the same ones, and this is
/// cheaper to ask than the shared cache.
#[derive(Default)]
pub(crate) struct NodeMemo([Option<(BlockPointer, Block)>; 16]);

impl NodeMemo {
    fn get(&mut self, pointer: &BlockPointer, store: &Store) -> Option<&Block> {
        let entry = &mut self.0[(pointer.vbn.0 % 16) as usize];
        if entry.as_ref().is_none_or(|(known, _)| known != pointer) {
            *entry = Some((*pointer, store.cached_node(pointer)?));
        }
        entry.as_ref().map(|(_, block)| block)
    }
}

/// An unreadable node, which hides all blocks below it.
#[derive(Debug)]
pub(crate) struct Unreadable {
    pub(crate) pointer: BlockPointer,
    /// The first block of file below it.
    pub(crate) first: u64,
    /// Blocks of file that there can be below it.
    pub(crate) blocks: u64,
    pub(crate) error: VolumeError,
}

impl From<Unreadable> for VolumeError {
    fn from(unreadable: Unreadable) -> Self {
        unreadable.error
    }
}

/// Blocks of file under one pointer of a node at `level`.
pub(crate) fn span(level: u8) -> u64 {
    FANOUT.saturating_pow(u32::from(level) - 1)
}

/// The pointers of a node that is in memory already.
pub(crate) fn pointer_in(block: &Block, slot: usize) -> BlockPointer {
    Node::trusted(block).map_or(BlockPointer::HOLE, |node| node.pointer(slot))
}

impl Tree<'_> {
    /// The address of the node at `level` over `lba`.
    pub(crate) fn address(&self, level: u8, lba: u64) -> NodeAddress {
        NodeAddress { file: self.file, level, index: lba / span(level).saturating_mul(FANOUT) }
    }

    /// The pointer of `lba` if all nodes on the way are in memory. `memo` keeps nodes from one call
    /// to the next.
    #[inline]
    pub(crate) fn pointer_ready(&self, lba: Lba, memo: &mut NodeMemo) -> Option<BlockPointer> {
        if lba.0 >= self.tree.length {
            return Some(BlockPointer::HOLE);
        }
        let mut pointer = self.tree.pointer;
        for level in (1..=self.tree.height).rev() {
            if pointer.is_hole() {
                return Some(pointer);
            }
            let node = memo.get(&pointer, self.store)?;
            pointer = pointer_in(node, (lba.0 / span(level) % FANOUT) as usize);
        }
        Some(pointer)
    }

    /// The pointer to the node at `level` over block `lba`, or at level 0 to the block itself; a
    /// hole where the tree has none.
    pub(crate) fn pointer_at_level(&self, level: u8, lba: u64) -> Result<BlockPointer, VolumeError> {
        if level > self.tree.height || lba / FANOUT.saturating_pow(u32::from(self.tree.height)) > 0 {
            return Ok(BlockPointer::HOLE);
        }
        Ok(self.descend(level, lba)?.0)
    }

    /// Descends to the pointer at `lowest` above block `lba`, which the tree is tall enough for, or
    /// to the hole above it, and returns its level.
    fn descend(&self, lowest: u8, lba: u64) -> Result<(BlockPointer, u8), Unreadable> {
        let (mut pointer, mut level) = (self.tree.pointer, self.tree.height);
        while level > lowest && !pointer.is_hole() {
            let node = self.store.load_node(pointer, self.address(level, lba), self.redirects);
            let node = node.map_err(|error| {
                let blocks = span(level).saturating_mul(FANOUT);
                Unreadable { pointer, first: lba / blocks * blocks, blocks, error }
            })?;
            pointer = pointer_in(&node, (lba / span(level) % FANOUT) as usize);
            level -= 1;
        }
        Ok((pointer, level))
    }

    /// The topmost node over block `lba` that can't be read; `None` where all can.
    pub(crate) fn unreadable_above(&self, lba: u64) -> Option<Unreadable> {
        self.descend(0, lba).err()
    }

    /// The first block from `lba` on that has a lowest node of the tree above it; `None` after the
    /// last. All blocks before it are holes, which are skipped by the pointers above them, however
    /// many there are.
    pub(crate) fn next_under_leaf(&self, mut lba: u64) -> Result<Option<u64>, Unreadable> {
        while lba < self.tree.length {
            let (pointer, level) = self.descend(1, lba)?;
            if !pointer.is_hole() {
                return Ok(Some(lba));
            }
            let blocks = span(level).saturating_mul(FANOUT);
            lba = (lba / blocks + 1).saturating_mul(blocks);
        }
        Ok(None)
    }

    /// The pointers of many blocks; nodes that are not in memory are read together.
    pub(crate) fn pointers(&self, lbas: &[Lba]) -> Vec<Result<BlockPointer, VolumeError>> {
        pointers_of(lbas.len(), |index| (self, lbas[index]))
    }

    /// Calls `visit` with each block of the tree that is not a hole: its pointer, its level (0 is
    /// data) and the number of its first block in the file, top down. `enter` decides whether to
    /// descend below a node. The children of a damaged node are skipped and the damage is passed to
    /// `damaged`.
    pub(crate) fn walk(
        &self,
        enter: &mut dyn FnMut(&BlockPointer, u8, u64) -> bool,
        damaged: &mut dyn FnMut(VolumeError),
    ) {
        let mut level_nodes: Vec<(BlockPointer, u64)> = Vec::new();
        if !self.tree.pointer.is_hole() && enter(&self.tree.pointer, self.tree.height, 0) {
            level_nodes.push((self.tree.pointer, 0));
        }
        for level in (1..=self.tree.height).rev() {
            let mut below = Vec::new();
            for chunk in level_nodes.chunks(BATCH) {
                let wanted: Vec<_> = chunk
                    .iter()
                    .map(|(pointer, first)| Wanted {
                        pointer: *pointer,
                        place: Place::Node(self.address(level, *first)),
                    })
                    .collect();
                for ((_, first), node) in chunk.iter().zip(self.store.load(&wanted, self.redirects)) {
                    let node = match node {
                        Ok(node) => node,
                        Err(error) => {
                            damaged(error);
                            continue;
                        }
                    };
                    for slot in 0..FANOUT {
                        let pointer = pointer_in(&node, slot as usize);
                        let at = first + slot * span(level);
                        if !pointer.is_hole() && enter(&pointer, level - 1, at) && level > 1 {
                            below.push((pointer, at));
                        }
                    }
                }
            }
            level_nodes = below;
        }
    }
}

/// The pointers of `count` blocks of one root; `block` gives the tree of each, and the place in it.
/// Nodes outside of memory are read together, whatever file they are of.
pub(crate) fn pointers_of<'a>(
    count: usize,
    block: impl Fn(usize) -> (&'a Tree<'a>, Lba),
) -> Vec<Result<BlockPointer, VolumeError>> {
    let top = |index: usize| {
        let (tree, lba) = block(index);
        Ok(if lba.0 < tree.tree.length { tree.tree.pointer } else { BlockPointer::HOLE })
    };
    let mut found: Vec<Result<BlockPointer, VolumeError>> = (0..count).map(top).collect();
    let height = (0..count).map(|index| block(index).0.tree.height).max().unwrap_or(0);
    for level in (1..=height).rev() {
        let mut wanted: Vec<Wanted> = Vec::new();
        let mut node_of: Vec<Option<usize>> = Vec::with_capacity(count);
        for (index, pointer) in found.iter().enumerate() {
            let (tree, lba) = block(index);
            node_of.push(match pointer {
                Ok(pointer) if level <= tree.tree.height && !pointer.is_hole() => {
                    let want = Wanted { pointer: *pointer, place: Place::Node(tree.address(level, lba.0)) };
                    // Neighbours mostly share their node.
                    if wanted.last().is_none_or(|last| last.pointer != want.pointer) {
                        wanted.push(want);
                    }
                    Some(wanted.len() - 1)
                }
                _ => None,
            });
        }
        let (any, _) = block(0);
        let nodes = any.store.load(&wanted, any.redirects);
        for (index, (pointer, node)) in found.iter_mut().zip(node_of).enumerate() {
            if let Some(node) = node {
                let slot = (block(index).1.0 / span(level) % FANOUT) as usize;
                *pointer = nodes[node].clone().map(|node| pointer_in(&node, slot));
            }
        }
    }
    found
}

/// Differences between two trees of the same file. Calls `differ` with (number of the first block
/// in the file, level, old, new) for every block, node or data, whose pointers differ. A parent
/// comes before its children, and the blocks of a level come in the order of the file. Where both
/// trees point to the same block, nothing below is read: the cost depends on the changes. Trees of
/// different height are compared from the lower one's top. At any time, memory holds the pointers
/// below [`BATCH`] nodes of each level, however long the file is.
///
/// # Errors
/// Errors of `differ`, and blocks that cannot be read.
pub(crate) fn difference(old: &Tree<'_>, new: &Tree<'_>, differ: &mut Differ<'_>) -> Result<(), VolumeError> {
    difference_past(old, new, differ, &mut Err)
}

/// Receives a difference: the number of the first block in the file, the level, the old and the new
/// pointer. An error ends the comparison.
pub(crate) type Differ<'a> = dyn FnMut(u64, u8, BlockPointer, BlockPointer) -> Result<(), VolumeError> + 'a;

/// [`difference`] for a caller that continues past damage: nothing is compared below a node that
/// `damaged` accepts.
pub(crate) fn difference_past(
    old: &Tree<'_>,
    new: &Tree<'_>,
    differ: &mut Differ<'_>,
    damaged: &mut dyn FnMut(VolumeError) -> Result<(), VolumeError>,
) -> Result<(), VolumeError> {
    let top = vec![(0, BlockPointer::HOLE, BlockPointer::HOLE)];
    let height = old.tree.height.max(new.tree.height);
    Comparison { old, new, differ, damaged }.descend(height, top)
}

/// Two pointers at the same place: the first block of file, the old and the new one.
type Pair = (u64, BlockPointer, BlockPointer);

struct Comparison<'a, 'b> {
    old: &'a Tree<'a>,
    new: &'a Tree<'a>,
    differ: &'a mut Differ<'b>,
    damaged: &'a mut dyn FnMut(VolumeError) -> Result<(), VolumeError>,
}

impl Comparison<'_, '_> {
    /// Compares pairs at one level, in order, and all that is below them.
    fn descend(&mut self, level: u8, mut pairs: Vec<Pair>) -> Result<(), VolumeError> {
        let (old, new) = (self.old, self.new);
        if let Some((0, a, b)) = pairs.first_mut() {
            if level == old.tree.height {
                *a = old.tree.pointer;
            }
            if level == new.tree.height {
                *b = new.tree.pointer;
            }
        }
        // A lower tree corresponds to the first blocks of the other: keep that path alive.
        let waiting = level > old.tree.height || level > new.tree.height;
        pairs.retain(|(at, a, b)| a != b || (waiting && *at == 0));
        for (at, a, b) in pairs.iter().filter(|(_, a, b)| a != b) {
            (self.differ)(*at, level, *a, *b)?;
        }
        if level == 0 {
            return Ok(());
        }
        for chunk in pairs.chunks(BATCH) {
            let below = self.children(level, chunk, waiting)?;
            self.descend(level - 1, below)?;
        }
        Ok(())
    }

    /// The pairs below some of one level, which are read together.
    fn children(&mut self, level: u8, pairs: &[Pair], waiting: bool) -> Result<Vec<Pair>, VolumeError> {
        let load = |tree: &Tree<'_>, pick: fn(&Pair) -> BlockPointer| {
            let place = |at| Place::Node(tree.address(level, at));
            let wanted: Vec<_> =
                pairs.iter().map(|pair| Wanted { pointer: pick(pair), place: place(pair.0) }).collect();
            tree.store.load(&wanted, tree.redirects)
        };
        let (olds, news) = (load(self.old, |pair| pair.1), load(self.new, |pair| pair.2));
        let side = |pointer: &BlockPointer, node: &Block, slot: u64| {
            if pointer.is_hole() { BlockPointer::HOLE } else { pointer_in(node, slot as usize) }
        };
        let mut below = Vec::new();
        for (((at, a, b), old_node), new_node) in pairs.iter().zip(olds).zip(news) {
            let (old_node, new_node) = match (old_node, new_node) {
                (Ok(old_node), Ok(new_node)) => (old_node, new_node),
                (Err(reason), _) | (_, Err(reason)) => {
                    (self.damaged)(reason)?;
                    continue;
                }
            };
            for slot in 0..FANOUT {
                let first = at + slot * span(level);
                let (a, b) = (side(a, &old_node, slot), side(b, &new_node, slot));
                if a != b || (waiting && first == 0) {
                    below.push((first, a, b));
                }
            }
        }
        Ok(below)
    }
}
