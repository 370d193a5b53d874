//! Images that a liar makes: from a known image, with other content, under numbers of its choice,
//! with every checksum above it right and a map of blocks in use that may lie.

use std::collections::{BTreeMap, BTreeSet};

use cairn_base::{Checksum, FileId, Generation, Rng, Vbn};
use cairn_device::{Block, BlockMut};
use cairn_format::layout::BITS_PER_MAP_BLOCK;
use cairn_format::{
    BlockPointer, FANOUT, FileKind, INODES_PER_BLOCK, Inode, NodeAddress, NodeMut, Root, TreeRef,
};

use super::known::{ACTIVE_MAP, INODE_FILE, Known};
use crate::content::Tag;
use crate::world::VOLUME;

/// Which numbers new blocks get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Numbers {
    /// Such as no image here has.
    Free,
    /// Such as images here have.
    Kept,
    /// Those that the same places had before.
    Same,
    /// Now these, now those.
    Any,
}

/// The content of an image's map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Map {
    /// The truth.
    True,
    /// Some blocks that the image reaches are free.
    LeavesOut,
    /// Some blocks that it does not reach are in use.
    TooMany,
    /// The map of the image that it was made from.
    Old,
}

/// Makes an image.
pub struct Maker<'a> {
    known: &'a Known,
    rng: &'a mut Rng,
    numbers: Numbers,
    birth: Generation,
    free: Vec<u64>,
    kept: Vec<u64>,
    taken: BTreeSet<u64>,
    /// The numbers that places of the image had which it is made from.
    before: BTreeMap<NodeAddress, u64>,
    /// Its blocks, but for those that it shares.
    pub blocks: BTreeMap<u64, Block>,
    /// Numbers that it reaches and that its map leaves out.
    pub left_out: Vec<u64>,
    tag: &'a mut u64,
}

impl<'a> Maker<'a> {
    /// For an image that begins as `from`. `tag` numbers the written blocks.
    pub fn new(known: &'a Known, from: &Root, numbers: Numbers, rng: &'a mut Rng, tag: &'a mut u64) -> Self {
        let kept: BTreeSet<u64> = known.blocks.keys().copied().collect();
        let free = (1..known.space).filter(|number| !kept.contains(number)).collect();
        let places = known.reached(from).into_iter().map(|reached| (reached.at, reached.pointer.vbn.0));
        Self {
            known,
            rng,
            numbers,
            birth: Generation(from.generation.0 + 1),
            free,
            kept: kept.into_iter().collect(),
            taken: BTreeSet::new(),
            before: places.collect(),
            blocks: BTreeMap::new(),
            left_out: Vec::new(),
            tag,
        }
    }

    fn number(&mut self, place: NodeAddress) -> u64 {
        let numbers = match self.numbers {
            Numbers::Any => [Numbers::Free, Numbers::Kept, Numbers::Same][self.rng.below(3) as usize],
            other => other,
        };
        let same = self.before.get(&place).copied().filter(|number| !self.taken.contains(number));
        let found = match numbers {
            Numbers::Same if same.is_some() => same,
            Numbers::Kept => draw(&mut self.kept, &self.taken, self.rng),
            _ => None,
        };
        let found = found.or_else(|| draw(&mut self.free, &self.taken, self.rng));
        // All are in use: a number that another place of this image has, which is a lie of its own.
        let found = found.or_else(|| draw(&mut self.kept, &self.taken, self.rng)).unwrap_or(1);
        self.taken.insert(found);
        found
    }

    fn place(&mut self, number: u64, block: Block) -> BlockPointer {
        let checksum = Checksum::of(&block[..]);
        self.blocks.insert(number, block);
        BlockPointer { vbn: Vbn(number), birth: self.birth, checksum }
    }

    fn content(&mut self) -> Block {
        *self.tag += 1;
        // No side of a mirror writes such a block.
        Tag(*self.tag << 8 | u64::from(b'L')).block()
    }

    /// A tree over blocks that have their places.
    fn tree(&mut self, file: FileId, old: TreeRef, blocks: BTreeMap<u64, BlockPointer>) -> TreeRef {
        let mut below = blocks;
        for level in 1..=old.height {
            let mut nodes: BTreeMap<u64, Vec<(usize, BlockPointer)>> = BTreeMap::new();
            for (index, pointer) in below {
                nodes.entry(index / FANOUT).or_default().push(((index % FANOUT) as usize, pointer));
            }
            below = BTreeMap::new();
            for (index, pointers) in nodes {
                let address = NodeAddress { file, level, index };
                let number = self.number(address);
                let mut bytes = BlockMut::zeroed();
                let mut node = NodeMut::of(&mut bytes);
                node.set_header(VOLUME, address, Vbn(number), self.birth);
                pointers.into_iter().for_each(|(slot, pointer)| node.set(slot, pointer));
                below.insert(index, self.place(number, bytes.freeze()));
            }
        }
        TreeRef { pointer: below.remove(&0).unwrap_or(BlockPointer::HOLE), ..old }
    }

    /// Other content in some blocks of the files, one in `every`.
    fn files(&mut self, root: &Root, every: u64) -> Vec<Inode> {
        let mut inodes = self.known.inodes(root);
        for inode in &mut inodes {
            let is_changed = inode.kind == FileKind::Lun || self.rng.one_in(8);
            if !is_changed {
                continue;
            }
            let mut reached = Vec::new();
            self.known.walk(inode.id, inode.tree, &mut reached);
            let data = reached.into_iter().filter(|reached| reached.at.level == 0);
            let mut blocks: BTreeMap<u64, BlockPointer> =
                data.map(|reached| (reached.at.index, reached.pointer)).collect();
            let mut news: Vec<u64> = blocks.keys().copied().filter(|_| self.rng.one_in(every)).collect();
            if inode.kind == FileKind::Lun && inode.tree.length > 0 {
                news.push(self.rng.below(inode.tree.length));
            }
            for lba in news {
                let number = self.number(NodeAddress { file: inode.id, level: 0, index: lba });
                let block = self.content();
                let pointer = self.place(number, block);
                blocks.insert(lba, pointer);
            }
            inode.tree = self.tree(inode.id, inode.tree, blocks);
        }
        inodes
    }

    /// Makes it: other content in one block of `every`.
    pub fn image(&mut self, from: &Root, every: u64, map: Map) -> Root {
        let inodes = self.files(from, every);
        let mut blocks: BTreeMap<u64, BlockMut> = BTreeMap::new();
        for inode in &inodes {
            let block = blocks.entry(inode.id.0 / INODES_PER_BLOCK).or_insert_with(BlockMut::zeroed);
            Inode::put(Some(inode), block, (inode.id.0 % INODES_PER_BLOCK) as usize);
        }
        let mut places = BTreeMap::new();
        for (index, block) in blocks {
            let number = self.number(NodeAddress { file: INODE_FILE, level: 0, index });
            let pointer = self.place(number, block.freeze());
            places.insert(index, pointer);
        }
        let inode_file = self.tree(INODE_FILE, from.inode_file, places);
        let root = Root { generation: self.birth, inode_file, ..*from };
        if map == Map::Old {
            self.left_out.extend(self.blocks.keys());
            return root;
        }
        let mut all = Known { blocks: self.known.blocks.clone(), ..Known::default() };
        all.blocks.extend(self.blocks.iter().map(|(number, block)| (*number, block.clone())));
        let without = Root { active_map: TreeRef::empty(from.active_map.length), ..root };
        self.map(without, all.numbers(&without), map)
    }

    fn map(&mut self, root: Root, mut used: BTreeSet<u64>, map: Map) -> Root {
        let old = TreeRef { height: root.active_map.height, ..root.active_map };
        // The map has its own blocks, whose numbers are known before it is written.
        let block_at = self.number(NodeAddress { file: ACTIVE_MAP, level: 0, index: 0 });
        let node_at = self.number(NodeAddress { file: ACTIVE_MAP, level: 1, index: 0 });
        used.extend([block_at, node_at]);
        match map {
            Map::LeavesOut => {
                let reached: Vec<u64> = used.iter().copied().collect();
                for _ in 0..1 + self.rng.below(reached.len() as u64) {
                    let number = reached[self.rng.below(reached.len() as u64) as usize];
                    used.remove(&number);
                    self.left_out.push(number);
                }
            }
            Map::TooMany => {
                for _ in 0..1 + self.rng.below(40) {
                    used.insert(1 + self.rng.below(self.known.space - 1));
                }
            }
            Map::True | Map::Old => {}
        }
        let mut bytes = BlockMut::zeroed();
        for number in used.iter().filter(|number| **number < BITS_PER_MAP_BLOCK) {
            bytes[(number / 8) as usize] |= 1 << (number % 8);
        }
        let data = self.place(block_at, bytes.freeze());
        let address = NodeAddress { file: ACTIVE_MAP, level: 1, index: 0 };
        let mut bytes = BlockMut::zeroed();
        let mut node = NodeMut::of(&mut bytes);
        node.set_header(VOLUME, address, Vbn(node_at), self.birth);
        node.set(0, data);
        let pointer = self.place(node_at, bytes.freeze());
        Root { active_map: TreeRef { pointer, ..old }, used: used.len() as u64, ..root }
    }
}

/// A number of a pool that is not taken; none where all are.
fn draw(pool: &mut Vec<u64>, taken: &BTreeSet<u64>, rng: &mut Rng) -> Option<u64> {
    while !pool.is_empty() {
        let number = pool.swap_remove(rng.below(pool.len() as u64) as usize);
        if !taken.contains(&number) {
            return Some(number);
        }
    }
    None
}
