//! Writing trees: a consistency point's changes to one file, merged into new nodes.
//!
//! Nodes that change are *planned* (loaded into memory, their old place given up), changed, and
//! then *finished* from the bottom up: each gets its place and its checksum goes into its parent.
//! Trees of regular files get their places while finishing. The trees that describe allocation
//! itself (maps and the inode file that names them) must know every place before any content is
//! final, so there planning allocates.

use std::collections::BTreeMap;

use cairn_base::{Checksum, FileId, Generation, Vbn};
use cairn_device::{Block, BlockMut};
use cairn_format::{BlockPointer, FANOUT, NodeAddress, NodeMut, TreeRef};

use crate::commit::space::Redirects;
use crate::error::{Place, VolumeError};
use crate::read::store::{Store, Wanted};
use crate::read::tree::{BATCH, Tree, pointer_in, span};

/// The blocks that a consistency point gathers from all trees.
pub(crate) struct Gathered {
    pub(crate) generation: Generation,
    /// Blocks that the new root reaches and the old one did not.
    pub(crate) allocated: Vec<Vbn>,
    /// Blocks that the old root reached and the new one does not.
    pub(crate) freed: Vec<BlockPointer>,
    /// Those of them that are nodes, or blocks of inodes or of a map.
    pub(crate) replaced: Vec<Vbn>,
    /// Blocks to write: new nodes, inode and map blocks.
    pub(crate) writes: Vec<(Vbn, Block)>,
    /// Since maps that have become removed files, as their blocks can't be freed yet.
    pub(crate) removed: Vec<FileId>,
}

/// The extent of the gathered work so far.
pub(crate) struct Mark {
    allocated: usize,
    freed: usize,
    replaced: usize,
    writes: usize,
    removed: usize,
}

impl Gathered {
    pub(crate) fn mark(&self) -> Mark {
        Mark {
            allocated: self.allocated.len(),
            freed: self.freed.len(),
            replaced: self.replaced.len(),
            writes: self.writes.len(),
            removed: self.removed.len(),
        }
    }

    /// Drops the work after a mark, of which no block was written. Returns the blocks that were
    /// allocated for it.
    #[must_use]
    pub(crate) fn forget_after(&mut self, mark: &Mark) -> Vec<Vbn> {
        self.freed.truncate(mark.freed);
        self.replaced.truncate(mark.replaced);
        self.writes.truncate(mark.writes);
        self.removed.truncate(mark.removed);
        self.allocated.split_off(mark.allocated)
    }
}

/// Gives out places; fails when the volume is full.
pub(crate) type Allocate<'a> = &'a mut dyn FnMut(usize) -> Result<Vec<Vbn>, VolumeError>;

struct Planned {
    bytes: BlockMut,
    /// Its new place, when planning allocates.
    place: Option<Vbn>,
}

/// The update of one tree.
pub(crate) struct TreeUpdate<'a> {
    store: &'a Store,
    redirects: &'a Redirects,
    file: FileId,
    tree: TreeRef,
    /// Planned nodes by level (0 is the data of a tree that plans its data too) and index.
    levels: Vec<BTreeMap<u64, Planned>>,
    /// Data blocks are planned as well, and everything is allocated while planning.
    closing: bool,
}

impl<'a> TreeUpdate<'a> {
    /// An update of a regular file to `length` blocks.
    pub(crate) fn regular(tree: Tree<'a>, length: u64) -> Self {
        Self::new(tree, length, false)
    }

    /// An update of a map or the inode file to `length` blocks.
    pub(crate) fn closing(tree: Tree<'a>, length: u64) -> Self {
        Self::new(tree, length, true)
    }

    fn new(old: Tree<'a>, length: u64, closing: bool) -> Self {
        let height = TreeRef::height_for(length).max(old.tree.height);
        let mut update = Self {
            store: old.store,
            redirects: old.redirects,
            file: old.file,
            tree: TreeRef { length, ..old.tree },
            levels: (0..=height).map(|_| BTreeMap::new()).collect(),
            closing,
        };
        // A tree that grows taller gets its new top nodes at once: they lead to the old top. They
        // have their place when planning allocates only once the first plan runs, as `place` is
        // filled there.
        if !old.tree.pointer.is_hole() {
            for level in old.tree.height + 1..=height {
                let mut bytes = BlockMut::zeroed();
                if level == old.tree.height + 1 {
                    NodeMut::of(&mut bytes).set(0, old.tree.pointer);
                }
                update.levels[usize::from(level)].insert(0, Planned { bytes, place: None });
            }
            if height > old.tree.height {
                update.tree.pointer = BlockPointer::HOLE;
            }
        }
        update.tree.height = height;
        update
    }

    /// Plans the nodes above every block of `lbas` (sorted), and in a closing tree the blocks
    /// themselves.
    pub(crate) fn plan(
        &mut self,
        lbas: &[u64],
        gathered: &mut Gathered,
        allocate: Allocate<'_>,
    ) -> Result<(), VolumeError> {
        let bottom = if self.closing { 0 } else { 1 };
        self.plan_to(bottom, lbas, gathered, allocate)
    }

    /// Frees blocks of a closing tree (sorted), which become holes. They are not planned, and no
    /// block of theirs is.
    pub(crate) fn vacate(
        &mut self,
        lbas: &[u64],
        gathered: &mut Gathered,
        allocate: Allocate<'_>,
    ) -> Result<(), VolumeError> {
        self.plan_to(1, lbas, gathered, allocate)?;
        for lba in lbas {
            let old = gathered.freed.len();
            self.set(*lba, BlockPointer::HOLE, gathered);
            let vacated: Vec<Vbn> = gathered.freed[old..].iter().map(|pointer| pointer.vbn).collect();
            gathered.replaced.extend(vacated);
        }
        Ok(())
    }

    fn plan_to(
        &mut self,
        bottom: u8,
        lbas: &[u64],
        gathered: &mut Gathered,
        allocate: Allocate<'_>,
    ) -> Result<(), VolumeError> {
        for level in (bottom..=self.tree.height).rev() {
            let reach = if level == 0 { 1 } else { span(level).saturating_mul(FANOUT) };
            let mut indexes: Vec<u64> = lbas.iter().map(|lba| lba / reach).collect();
            indexes.dedup();
            indexes.retain(|index| !self.levels[usize::from(level)].contains_key(index));
            for chunk in indexes.chunks(BATCH) {
                self.plan_nodes(level, chunk, gathered)?;
            }
            if self.closing {
                let fresh: Vec<u64> = self.levels[usize::from(level)]
                    .iter()
                    .filter(|(_, planned)| planned.place.is_none())
                    .map(|(index, _)| *index)
                    .collect();
                let places = allocate(fresh.len())?;
                gathered.allocated.extend(&places);
                for (index, place) in fresh.into_iter().zip(places) {
                    if let Some(planned) = self.levels[usize::from(level)].get_mut(&index) {
                        planned.place = Some(place);
                    }
                }
            }
        }
        Ok(())
    }

    fn plan_nodes(&mut self, level: u8, indexes: &[u64], gathered: &mut Gathered) -> Result<(), VolumeError> {
        let wanted: Vec<Wanted> = indexes
            .iter()
            .map(|index| Wanted {
                pointer: self.current(level, *index),
                place: match level {
                    0 => Place::Data { file: self.file, lba: cairn_base::Lba(*index) },
                    _ => Place::Node(NodeAddress { file: self.file, level, index: *index }),
                },
            })
            .collect();
        let loaded = self.store.load(&wanted, self.redirects);
        for ((index, want), block) in indexes.iter().zip(wanted).zip(loaded) {
            let block = block?;
            if !want.pointer.is_hole() {
                gathered.freed.push(want.pointer);
                gathered.replaced.push(want.pointer.vbn);
            }
            self.levels[usize::from(level)]
                .insert(*index, Planned { bytes: BlockMut::copy_of(&block), place: None });
        }
        Ok(())
    }

    /// The pointer that leads to a node or block as of now. Its parent is planned or it is the top.
    fn current(&self, level: u8, index: u64) -> BlockPointer {
        if level == self.tree.height {
            return self.tree.pointer;
        }
        self.levels[usize::from(level) + 1].get(&(index / FANOUT)).map_or(BlockPointer::HOLE, |parent| {
            cairn_format::Node::trusted(&parent.bytes)
                .map_or(BlockPointer::HOLE, |node| node.pointer((index % FANOUT) as usize))
        })
    }

    /// Points block `lba` of a regular file to its new place, or makes a block of any tree a hole.
    /// The node above it must be planned.
    pub(crate) fn set(&mut self, lba: u64, pointer: BlockPointer, gathered: &mut Gathered) {
        let leaf = self.levels[1].get_mut(&(lba / FANOUT)).expect("the leaf of a changed block is planned");
        let slot = (lba % FANOUT) as usize;
        let old =
            cairn_format::Node::trusted(&leaf.bytes).map_or(BlockPointer::HOLE, |node| node.pointer(slot));
        if !old.is_hole() {
            gathered.freed.push(old);
        }
        if !pointer.is_hole() {
            gathered.allocated.push(pointer.vbn);
        }
        NodeMut::of(&mut leaf.bytes).set(slot, pointer);
    }

    /// The bytes of a planned block of a closing tree.
    pub(crate) fn data(&mut self, index: u64) -> &mut BlockMut {
        &mut self.levels[0].get_mut(&index).expect("a changed block of a closing tree is planned").bytes
    }

    /// Frees blocks `start..end` of a regular file. Holes come before `set`.
    pub(crate) fn punch(
        &mut self,
        start: u64,
        end: u64,
        gathered: &mut Gathered,
        allocate: Allocate<'_>,
    ) -> Result<(), VolumeError> {
        if start >= end || (self.tree.pointer.is_hole() && self.levels.iter().all(BTreeMap::is_empty)) {
            return Ok(());
        }
        // The two edges may cut through nodes: plan those. Everything between them hangs below
        // planned nodes.
        let top = span(self.tree.height).saturating_mul(FANOUT);
        let last = (end - 1).min(top - 1);
        if start > last {
            return Ok(());
        }
        self.plan(&[start, last], gathered, allocate)?;
        for level in (1..=self.tree.height).rev() {
            let width = span(level);
            let first_node = start / (width.saturating_mul(FANOUT));
            let last_node = last / (width.saturating_mul(FANOUT));
            let planned: Vec<u64> = self.levels[usize::from(level)]
                .range(first_node..=last_node)
                .map(|(index, _)| *index)
                .collect();
            let mut doomed = Vec::new();
            for index in planned {
                for slot in 0..FANOUT {
                    let at = (index * FANOUT + slot).saturating_mul(width);
                    let covered = at >= start && at.saturating_add(width) <= end;
                    let child = index * FANOUT + slot;
                    let planned_below = level > 1 && self.levels[usize::from(level) - 1].contains_key(&child);
                    if !covered || planned_below {
                        continue;
                    }
                    let node = self.levels[usize::from(level)].get_mut(&index).expect("it was just listed");
                    let pointer = cairn_format::Node::trusted(&node.bytes)
                        .map_or(BlockPointer::HOLE, |node| node.pointer(slot as usize));
                    if !pointer.is_hole() {
                        doomed.push((pointer, at));
                        NodeMut::of(&mut node.bytes).set(slot as usize, BlockPointer::HOLE);
                    }
                }
            }
            self.free_subtrees(doomed, level - 1, gathered)?;
        }
        Ok(())
    }

    fn free_subtrees(
        &self,
        mut doomed: Vec<(BlockPointer, u64)>,
        mut level: u8,
        gathered: &mut Gathered,
    ) -> Result<(), VolumeError> {
        let tree = Tree { store: self.store, redirects: self.redirects, file: self.file, tree: self.tree };
        loop {
            gathered.freed.extend(doomed.iter().map(|(pointer, _)| *pointer));
            if level == 0 || doomed.is_empty() {
                return Ok(());
            }
            gathered.replaced.extend(doomed.iter().map(|(pointer, _)| pointer.vbn));
            let mut below = Vec::new();
            for chunk in doomed.chunks(BATCH) {
                let wanted: Vec<_> = chunk
                    .iter()
                    .map(|(pointer, at)| Wanted {
                        pointer: *pointer,
                        place: Place::Node(tree.address(level, *at)),
                    })
                    .collect();
                for ((_, at), node) in chunk.iter().zip(self.store.load(&wanted, self.redirects)) {
                    let node = node?;
                    let children = (0..FANOUT)
                        .map(|slot| (pointer_in(&node, slot as usize), at + slot * span(level)))
                        .filter(|(pointer, _)| !pointer.is_hole());
                    below.extend(children);
                }
            }
            doomed = below;
            level -= 1;
        }
    }

    /// Writes the planned nodes from the bottom up and returns the new tree. Nodes of a regular
    /// file that have become empty are holes.
    pub(crate) fn finish(
        mut self,
        gathered: &mut Gathered,
        allocate: Allocate<'_>,
    ) -> Result<TreeRef, VolumeError> {
        for level in 0..=usize::from(self.tree.height) {
            let nodes = std::mem::take(&mut self.levels[level]);
            let mut kept = Vec::with_capacity(nodes.len());
            for (index, mut planned) in nodes {
                if level > 0 && !self.closing && NodeMut::of(&mut planned.bytes).is_empty() {
                    self.point(level, index, BlockPointer::HOLE);
                } else {
                    kept.push((index, planned));
                }
            }
            let unplaced = kept.iter().filter(|(_, planned)| planned.place.is_none()).count();
            let mut places = allocate(unplaced)?.into_iter();
            for (index, mut planned) in kept {
                let vbn = match planned.place {
                    Some(place) => place,
                    None => {
                        let place = places.next().ok_or(VolumeError::NoSpace)?;
                        gathered.allocated.push(place);
                        place
                    }
                };
                if level > 0 {
                    let address = NodeAddress { file: self.file, level: level as u8, index };
                    let mut node = NodeMut::of(&mut planned.bytes);
                    node.set_header(self.store.volume(), address, vbn, gathered.generation);
                }
                let block = planned.bytes.freeze();
                let checksum = Checksum::of(&block[..]);
                self.store.remember_node(vbn, checksum, block.clone());
                gathered.writes.push((vbn, block));
                self.point(level, index, BlockPointer { vbn, birth: gathered.generation, checksum });
            }
        }
        Ok(self.tree)
    }

    fn point(&mut self, level: usize, index: u64, pointer: BlockPointer) {
        if level == usize::from(self.tree.height) {
            self.tree.pointer = pointer;
            return;
        }
        let parent = self.levels[level + 1]
            .get_mut(&(index / FANOUT))
            .expect("the parent of a planned node is planned");
        NodeMut::of(&mut parent.bytes).set((index % FANOUT) as usize, pointer);
    }
}
