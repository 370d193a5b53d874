//! A root in pieces: everything that it reaches and another root does not, in one fixed order, from
//! any position on.
//!
//! A scrub reads a volume so, piece by piece, with a rest between two; two sides of a mirror
//! compare the same pieces. Nothing is held between two pieces, so a scrub of days pins no space,
//! and a position is good over a restart.
//!
//! # Order
//! The order is the active map, the inode file, then the files by number; within each by block of
//! the file, with nodes before their children. A node belongs to its first block of the file. Two
//! roots with the same checksum have the same pieces, wherever they are.

use std::ops::ControlFlow;
use std::sync::Arc;

use cairn_base::{Checksum, FileId, Lba, SnapshotId, Vbn};
use cairn_device::Block;
use cairn_format::{BlockPointer, FANOUT, INODES_PER_BLOCK, Inode, TreeRef};

use crate::error::{Place, VolumeError, is_out_of_reach};
use crate::known_files::{ACTIVE_MAP, INODE_FILE};
use crate::read::image::Image;
use crate::read::store::Wanted;
use crate::read::tree::{Tree, pointer_in, span};
use crate::volume::Volume;

/// Nodes that are loaded together before the walk descends below them: those of some 32 MiB of
/// data.
const NODES_AHEAD: usize = 32;

/// A place in the order of a root's blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Position {
    /// 0 is the active map, 1 the inode file, then the files.
    tree: u64,
    lba: u64,
}

impl Position {
    /// Before everything.
    pub const START: Position = Position { tree: 0, lba: 0 };

    /// As two numbers, to be kept or sent.
    pub fn to_numbers(self) -> (u64, u64) {
        (self.tree, self.lba)
    }

    /// From the result of [`Position::to_numbers`]. Any numbers form a valid position.
    pub fn from_numbers((tree, lba): (u64, u64)) -> Self {
        Self { tree, lba }
    }

    fn of(file: FileId, lba: u64) -> Self {
        let tree = match file {
            ACTIVE_MAP => 0,
            INODE_FILE => 1,
            FileId(number) => number.saturating_add(2),
        };
        Self { tree, lba }
    }

    /// From where to look in a tree: nothing of it when the position is past it.
    fn within(self, file: FileId) -> Option<u64> {
        match Self::of(file, 0).tree.cmp(&self.tree) {
            std::cmp::Ordering::Less => None,
            std::cmp::Ordering::Equal => Some(self.lba),
            std::cmp::Ordering::Greater => Some(0),
        }
    }
}

/// The blocks to look at: all that one root reaches and another does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// A snapshot; 0 for the active state of the last consistency point.
    pub root: SnapshotId,
    /// A snapshot; 0 for nothing.
    pub base: SnapshotId,
}

/// Where a piece ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// After this many blocks, or a few more.
    Blocks(u64),
    /// Before that position.
    Position(Position),
    /// Before that position, or after this many blocks.
    First(Position, u64),
}

/// The blocks to read from the media.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// Only the nodes that lead to the end, and those through the cache.
    Nothing,
    /// Nodes, inodes and maps. Data is taken from its pointers.
    Structures,
    /// Every block.
    Everything,
}

/// A block of a root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Where.
    pub vbn: Vbn,
    /// The checksum that its parent names.
    pub checksum: Checksum,
    /// The place of the block in a tree.
    pub place: Place,
    /// The media have it with that checksum, or it was not checked.
    pub sound: bool,
}

/// The blocks of a root between two positions.
#[derive(Debug, Clone, Default)]
pub struct Region {
    /// In the order of positions.
    pub pieces: Vec<Piece>,
    /// Blocks that were read from the media.
    pub read: u64,
    /// Where the next one begins; none at the end.
    pub next: Option<Position>,
    /// A node could not be read: blocks below it are missing here, or blocks of the base are
    /// included.
    pub incomplete: bool,
}

impl Region {
    /// One number for all of it: equal when the blocks, their numbers and their content on the
    /// media are equal.
    pub fn digest(&self) -> Checksum {
        let mut bytes = Vec::with_capacity(self.pieces.len() * 24);
        for piece in &self.pieces {
            bytes.extend_from_slice(&piece.vbn.0.to_le_bytes());
            bytes.extend_from_slice(if piece.sound { &piece.checksum.0 } else { &[0; 16] });
        }
        Checksum::of(&bytes)
    }
}

impl Volume {
    /// Reads the blocks of a part from `from` on, past the cache, and verifies them. Damage is
    /// recorded ([`Volume::damaged`]).
    ///
    /// # Errors
    /// [`VolumeError::NoSuchSnapshot`] when root or base is gone; [`VolumeError::Device`] when
    /// blocks cannot be reached now. Damage is not an error: the result contains it.
    pub fn region(
        self: &Arc<Self>,
        part: Part,
        from: Position,
        until: Until,
        look: Look,
    ) -> Result<Region, VolumeError> {
        let named = |id: SnapshotId| (id.0 != 0).then_some(id);
        let root = self.image(named(part.root))?;
        let base = named(part.base).map(|id| self.image(Some(id))).transpose()?;
        let mut walk = Walk { root: &root, base: base.as_ref(), from, until, region: Region::default() };
        // It broke off where the next one begins.
        let _ = walk.all();
        let mut region = walk.region;
        self.read_region(&root, &mut region, look)?;
        Ok(region)
    }

    /// In order of vbn, so that neighbours are one operation.
    fn read_region(&self, root: &Image, region: &mut Region, look: Look) -> Result<(), VolumeError> {
        let is_read = |piece: &Piece| match (look, piece.place) {
            (Look::Nothing, _) => false,
            (Look::Structures, Place::Data { file, .. }) => file >= INODE_FILE,
            _ => true,
        };
        let mut order: Vec<usize> =
            (0..region.pieces.len()).filter(|at| is_read(&region.pieces[*at])).collect();
        order.sort_unstable_by_key(|at| region.pieces[*at].vbn);
        let wanted: Vec<Wanted> = order
            .iter()
            .map(|at| {
                let Piece { vbn, checksum, place, .. } = region.pieces[*at];
                Wanted { pointer: BlockPointer { vbn, checksum, ..BlockPointer::HOLE }, place }
            })
            .collect();
        region.read = wanted.len() as u64;
        for (at, read) in order.iter().zip(self.store.load_past_cache(&wanted, root.redirects())) {
            region.pieces[*at].sound = match read {
                Ok(()) => true,
                Err(VolumeError::Device(error)) if is_out_of_reach(&error) => return Err(error.into()),
                Err(_) => false,
            };
        }
        Ok(())
    }
}

struct Walk<'a> {
    root: &'a Image,
    base: Option<&'a Image>,
    from: Position,
    until: Until,
    region: Region,
}

/// A block of a tree that is not in the other one: its level, the number of its first block of
/// file, and both pointers.
struct Differs {
    level: u8,
    at: u64,
    old: BlockPointer,
    new: BlockPointer,
}

impl<'a> Walk<'a> {
    fn trees(&self, file: FileId, old: Option<TreeRef>, new: TreeRef) -> (Tree<'a>, Tree<'a>) {
        let tree_of = |image: &'a Image, tree| Tree {
            store: &image.volume().store,
            redirects: image.redirects(),
            file,
            tree,
        };
        let old = old.unwrap_or(TreeRef::empty(new.length));
        (tree_of(self.base.unwrap_or(self.root), old), tree_of(self.root, new))
    }

    fn all(&mut self) -> ControlFlow<()> {
        let (root, base) = (*self.root.root(), self.base.map(|base| *base.root()));
        self.tree(ACTIVE_MAP, base.map(|base| base.active_map), root.active_map)?;
        self.tree(INODE_FILE, base.map(|base| base.inode_file), root.inode_file)?;
        let (old, new) = self.trees(INODE_FILE, base.map(|base| base.inode_file), root.inode_file);
        let first = Inode::place(FileId(self.from.tree.saturating_sub(2))).0;
        let mut incomplete = false;
        let ended = differing(&old, &new, first, &mut incomplete, &mut |block| match block.level {
            0 => self.files(&old, &new, &block),
            _ => ControlFlow::Continue(()),
        });
        self.region.incomplete |= incomplete;
        ended
    }

    /// The files whose inodes are in one block.
    fn files(&mut self, old: &Tree<'a>, new: &Tree<'a>, block: &Differs) -> ControlFlow<()> {
        let load = |tree: &Tree<'_>, pointer: BlockPointer| -> Option<Vec<Option<Inode>>> {
            let place = Place::Data { file: INODE_FILE, lba: Lba(block.at) };
            let bytes = tree.store.load_one(Wanted { pointer, place }, tree.redirects).ok()?;
            (0..INODES_PER_BLOCK as usize).map(|slot| Inode::parse(&bytes, slot).ok()).collect()
        };
        let Some(news) = load(new, block.new) else {
            self.region.incomplete = true;
            return ControlFlow::Continue(());
        };
        // Without the old ones more is read than need be.
        let olds = load(old, block.old);
        self.region.incomplete |= olds.is_none();
        let olds = olds.unwrap_or_default();
        for (slot, inode) in news.into_iter().enumerate() {
            let Some(inode) = inode.filter(|inode| Inode::place(inode.id) == (block.at, slot)) else {
                continue;
            };
            let before = olds.get(slot).copied().flatten().filter(|before| before.id == inode.id);
            self.tree(inode.id, before.map(|before| before.tree), inode.tree)?;
        }
        ControlFlow::Continue(())
    }

    fn tree(&mut self, file: FileId, old: Option<TreeRef>, new: TreeRef) -> ControlFlow<()> {
        let Some(first) = self.from.within(file) else { return ControlFlow::Continue(()) };
        let (old, new) = self.trees(file, old, new);
        let mut incomplete = false;
        let mut last = None;
        let (until, region) = (self.until, &mut self.region);
        let ended = differing(&old, &new, first, &mut incomplete, &mut |block| {
            let here = Position::of(file, block.at);
            let is_many = |blocks| region.pieces.len() as u64 >= blocks && last != Some(here);
            let full = match until {
                Until::Blocks(blocks) => is_many(blocks),
                Until::Position(end) => here >= end,
                Until::First(end, blocks) => here >= end || is_many(blocks),
            };
            if full {
                region.next = Some(here);
                return ControlFlow::Break(());
            }
            last = Some(here);
            let place = match block.level {
                0 => Place::Data { file, lba: Lba(block.at) },
                level => Place::Node(new.address(level, block.at)),
            };
            let BlockPointer { vbn, checksum, .. } = block.new;
            region.pieces.push(Piece { vbn, checksum, place, sound: true });
            ControlFlow::Continue(())
        });
        self.region.incomplete |= incomplete;
        ended
    }
}

/// Calls `visit` with each block of `new`, top down and from left to right, that `old` does not
/// have at the same place, and that begins at block `from` of the file or later. Sets `incomplete`
/// when a node of `new` cannot be read.
fn differing(
    old: &Tree<'_>,
    new: &Tree<'_>,
    from: u64,
    incomplete: &mut bool,
    visit: &mut dyn FnMut(Differs) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let height = new.tree.height;
    // A higher tree is compared from where the lower one's top would be in it.
    let beside = match old.tree.height >= height {
        true => old.pointer_at_level(height, 0),
        false => Ok(BlockPointer::HOLE),
    };
    *incomplete |= beside.is_err();
    let beside = beside.unwrap_or(BlockPointer::HOLE);
    let top = Differs { level: height, at: 0, old: beside, new: new.tree.pointer };
    below(old, new, from, incomplete, visit, top)
}

fn below(
    old: &Tree<'_>,
    new: &Tree<'_>,
    from: u64,
    incomplete: &mut bool,
    visit: &mut dyn FnMut(Differs) -> ControlFlow<()>,
    block: Differs,
) -> ControlFlow<()> {
    let Differs { level, at, old: before, new: pointer } = block;
    let width = FANOUT.saturating_pow(u32::from(level));
    if pointer.is_hole() || pointer == before || at.saturating_add(width) <= from {
        return ControlFlow::Continue(());
    }
    if at >= from {
        visit(block)?;
    }
    if level == 0 {
        return ControlFlow::Continue(());
    }
    let Ok(node) = new.store.load_node(pointer, new.address(level, at), new.redirects) else {
        *incomplete = true;
        return ControlFlow::Continue(());
    };
    let old_node = match before.is_hole() {
        true => None,
        // Without it more blocks are read than necessary.
        false => old.store.load_node(before, old.address(level, at), old.redirects).ok(),
    };
    *incomplete |= old_node.is_none() && !before.is_hole();
    let first = from.saturating_sub(at) / span(level);
    for slot in first.min(FANOUT)..FANOUT {
        let child = at + slot * span(level);
        if level > 1 && (slot - first).is_multiple_of(NODES_AHEAD as u64) {
            load_ahead(new, &node, old_node.as_ref(), level, at, slot);
        }
        let beside = match &old_node {
            Some(old_node) => pointer_in(old_node, slot as usize),
            None if level - 1 == old.tree.height && child == 0 => old.tree.pointer,
            None => BlockPointer::HOLE,
        };
        let next =
            Differs { level: level - 1, at: child, old: beside, new: pointer_in(&node, slot as usize) };
        below(old, new, from, incomplete, visit, next)?;
    }
    ControlFlow::Continue(())
}

/// Loads the next children of a node together. Unreadable ones are found again later.
fn load_ahead(tree: &Tree<'_>, node: &Block, old: Option<&Block>, level: u8, at: u64, first: u64) {
    let mut wanted = Vec::new();
    for slot in first..(first + NODES_AHEAD as u64).min(FANOUT) {
        let pointer = pointer_in(node, slot as usize);
        let is_shared = old.is_some_and(|old| pointer_in(old, slot as usize) == pointer);
        if !pointer.is_hole() && !is_shared {
            let address = tree.address(level - 1, at + slot * span(level));
            wanted.push(Wanted { pointer, place: Place::Node(address) });
        }
    }
    tree.store.load(&wanted, tree.redirects);
}
