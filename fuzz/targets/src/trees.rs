//! Changes of a volume's metadata that no checksum gives away: blocks are edited, then every
//! checksum above them is made right.
//!
//! The reader can then only find faults that an adversary or a bug produces: numbers out of range,
//! loops, maps that contradict each other.

use std::collections::{HashMap, HashSet};
use std::sync::OnceLock;

use arbitrary::Arbitrary;
use cairn_base::{BLOCK_SIZE, Checksum, FileId, Vbn};
use cairn_format::layout::{SUPERBLOCK_A, SUPERBLOCK_B};
use cairn_format::{
    BlockBytes, BlockPointer, FANOUT, INODES_PER_BLOCK, IndexBlock, Inode, LabelPointer, Node, NodeAddress,
    NodeMut, Root, SegmentKind, SnapshotBlock, Superblock, TableRef, TreeRef,
};

use crate::blocks::seal_superblock;
use crate::scene::scene;
use crate::sparse::{Blocks, block_of};

/// The files that have no inode (docs/format.md, "Files").
const INODE_FILE: FileId = FileId(u64::MAX - 1);
const ACTIVE_MAP: FileId = FileId(u64::MAX);

/// A change of one block of metadata.
#[derive(Debug, Clone, Copy, Arbitrary)]
pub(crate) struct Edit {
    /// Which of the volume's blocks of metadata; 0 is the superblock.
    pub(crate) block: u16,
    pub(crate) at: u16,
    pub(crate) value: Value,
}

#[derive(Debug, Clone, Copy, Arbitrary)]
pub(crate) enum Value {
    Byte(u8),
    Flip(u8),
    Word(u64),
    Small(u16),
    Huge(u8),
    /// Eight bytes from elsewhere in the block.
    Copy(u16),
}

impl Edit {
    pub(crate) fn apply(self, bytes: &mut BlockBytes) {
        let at = usize::from(self.at) % BLOCK_SIZE;
        let word = at / 8 * 8;
        let mut put = |value: u64| bytes[word..word + 8].copy_from_slice(&value.to_le_bytes());
        match self.value {
            Value::Byte(byte) => bytes[at] = byte,
            Value::Flip(bit) => bytes[at] ^= 1 << (bit % 8),
            Value::Word(value) => put(value),
            Value::Small(value) => put(value.into()),
            Value::Huge(below) => put(u64::MAX - u64::from(below)),
            Value::Copy(from) => {
                let from = usize::from(from) % BLOCK_SIZE / 8 * 8;
                bytes.copy_within(from..from + 8, word);
            }
        }
    }
}

pub(crate) fn bytes_of(blocks: &Blocks, number: u64) -> BlockBytes {
    let mut bytes = [0; BLOCK_SIZE];
    if let Some(block) = blocks.get(&number) {
        bytes.copy_from_slice(&block[..]);
    }
    bytes
}

/// The golden volume with edits, all checksums right.
pub(crate) fn edited(edits: &[Edit]) -> Blocks {
    let mut blocks = (*scene().volume.blocks).clone();
    let places = metadata();
    for edit in edits {
        let number = places[usize::from(edit.block) % places.len()];
        let mut bytes = bytes_of(&blocks, number);
        edit.apply(&mut bytes);
        blocks.insert(number, block_of(&bytes));
    }
    let mut first = bytes_of(&blocks, SUPERBLOCK_A);
    seal_superblock(&mut first);
    blocks.insert(SUPERBLOCK_A, block_of(&first));
    let Ok(mut superblock) = Superblock::parse(&first, SUPERBLOCK_A) else {
        // It is refused. The other slot is removed, so that this one is tried.
        blocks.remove(&SUPERBLOCK_B);
        return blocks;
    };
    Sealing::new(&mut blocks, &superblock).superblock(&mut superblock);
    for address in [SUPERBLOCK_A, SUPERBLOCK_B] {
        let mut bytes = [0; BLOCK_SIZE];
        superblock.write(&mut bytes, address);
        blocks.insert(address, block_of(&bytes));
    }
    blocks
}

/// Every block of metadata of the golden volume, the superblock first.
fn metadata() -> &'static [u64] {
    static PLACES: OnceLock<Vec<u64>> = OnceLock::new();
    PLACES.get_or_init(|| {
        let mut blocks = (*scene().volume.blocks).clone();
        let first = bytes_of(&blocks, SUPERBLOCK_A);
        let mut superblock = Superblock::parse(&first, SUPERBLOCK_A).expect("the golden volume is whole");
        let before = superblock.clone();
        let mut sealing = Sealing::new(&mut blocks, &superblock.clone());
        sealing.superblock(&mut superblock);
        let mut places: Vec<u64> = sealing.visited.iter().copied().collect();
        assert!(superblock == before, "sealing what is right changes nothing");
        places.sort_unstable();
        places.insert(0, SUPERBLOCK_A);
        places
    })
}

/// Makes checksums right from the leaves up.
struct Sealing<'a> {
    blocks: &'a mut Blocks,
    superblock: Superblock,
    /// The checksum of each block of block space, once it is known; `None` while it is being
    /// computed.
    known: HashMap<u64, Option<Checksum>>,
    /// Device blocks of metadata.
    visited: HashSet<u64>,
}

impl<'a> Sealing<'a> {
    fn new(blocks: &'a mut Blocks, superblock: &Superblock) -> Self {
        Self { blocks, superblock: superblock.clone(), known: HashMap::new(), visited: HashSet::new() }
    }

    fn superblock(&mut self, superblock: &mut Superblock) {
        self.snapshots(&mut superblock.snapshots);
        self.root(&mut superblock.root);
    }

    fn root(&mut self, root: &mut Root) {
        self.tree(&mut root.inode_file, INODE_FILE);
        self.tree(&mut root.active_map, ACTIVE_MAP);
    }

    fn snapshots(&mut self, table: &mut TableRef) {
        for pointer in &mut table.indexes {
            let mut bytes = bytes_of(self.blocks, pointer.address);
            if let Ok(mut entries) = IndexBlock::parse(&bytes, self.superblock.volume, pointer.address) {
                entries.iter_mut().for_each(|entry| self.snapshot_block(entry));
                IndexBlock::write(&mut bytes, self.superblock.volume, pointer.address, &entries);
            }
            pointer.checksum = self.put(pointer.address, &bytes);
        }
    }

    fn snapshot_block(&mut self, pointer: &mut LabelPointer) {
        let mut bytes = bytes_of(self.blocks, pointer.address);
        if let Ok(mut slots) = SnapshotBlock::parse(&bytes, self.superblock.volume, pointer.address) {
            slots.iter_mut().flatten().for_each(|entry| self.root(&mut entry.root));
            SnapshotBlock::write(&mut bytes, self.superblock.volume, pointer.address, &slots);
        }
        pointer.checksum = self.put(pointer.address, &bytes);
    }

    fn put(&mut self, number: u64, bytes: &BlockBytes) -> Checksum {
        self.visited.insert(number);
        self.blocks.insert(number, block_of(bytes));
        Checksum::of(bytes)
    }

    /// The device block of a vbn.
    fn place(&self, vbn: Vbn) -> Option<u64> {
        let segments = self.superblock.layout.segments.iter();
        let mut space = segments.filter(|segment| segment.kind == SegmentKind::Space);
        let segment = space.find(|s| (s.first..s.first + s.blocks).contains(&vbn.0))?;
        Some(segment.device_block + (vbn.0 - segment.first))
    }

    fn tree(&mut self, tree: &mut TreeRef, file: FileId) {
        self.pointer(&mut tree.pointer, NodeAddress { file, level: tree.height, index: 0 });
    }

    /// `address` is that of the pointer's target; level 0 is data.
    fn pointer(&mut self, pointer: &mut BlockPointer, address: NodeAddress) {
        let Some(place) = self.place(pointer.vbn).filter(|_| !pointer.is_hole()) else { return };
        match self.known.get(&pointer.vbn.0) {
            Some(Some(checksum)) => return pointer.checksum = *checksum,
            Some(None) => return,
            None => {}
        }
        self.known.insert(pointer.vbn.0, None);
        let mut bytes = bytes_of(self.blocks, place);
        let of_users = if address.level == 0 {
            self.data(&mut bytes, address)
        } else {
            self.node(&mut bytes, address, pointer.vbn);
            false
        };
        pointer.checksum = if of_users { Checksum::of(&bytes) } else { self.put(place, &bytes) };
        self.known.insert(pointer.vbn.0, Some(pointer.checksum));
    }

    /// Returns whether it is data of users.
    fn data(&mut self, bytes: &mut BlockBytes, address: NodeAddress) -> bool {
        if address.file == INODE_FILE {
            for slot in 0..INODES_PER_BLOCK as usize {
                if let Ok(Some(mut inode)) = Inode::parse(bytes, slot) {
                    self.tree(&mut inode.tree, inode.id);
                    Inode::put(Some(&inode), bytes, slot);
                }
            }
        }
        // The root directory is file 1; names are metadata as well.
        !matches!(address.file, INODE_FILE | ACTIVE_MAP | FileId(1))
    }

    fn node(&mut self, bytes: &mut BlockBytes, address: NodeAddress, vbn: Vbn) {
        let Ok(node) = Node::parse(bytes, self.superblock.volume, address, vbn) else { return };
        let mut pointers: Vec<BlockPointer> = (0..FANOUT as usize).map(|slot| node.pointer(slot)).collect();
        for (slot, pointer) in pointers.iter_mut().enumerate() {
            let index = address.index.wrapping_mul(FANOUT).wrapping_add(slot as u64);
            self.pointer(pointer, NodeAddress { level: address.level - 1, index, ..address });
        }
        let mut node = NodeMut::of(bytes);
        pointers.iter().enumerate().for_each(|(slot, pointer)| node.set(slot, *pointer));
    }
}
