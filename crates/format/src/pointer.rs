//! Block pointers and references to trees.

use cairn_base::{Checksum, Generation, Vbn};
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub(crate) struct RawPointer {
    vbn: U64,
    birth: U64,
    checksum: Checksum,
}

const _: () = assert!(size_of::<RawPointer>() == 32);

/// The place of a block, the checksum of its bytes, and the generation that wrote it. Vbn 0 is a
/// hole: zeroes without a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BlockPointer {
    /// The place in block space.
    pub vbn: Vbn,
    /// The generation whose consistency point first held it.
    pub birth: Generation,
    /// XXH3-128 of the block.
    pub checksum: Checksum,
}

impl BlockPointer {
    /// No block: reads as zeroes.
    pub const HOLE: BlockPointer =
        BlockPointer { vbn: Vbn(0), birth: Generation(0), checksum: Checksum([0; 16]) };

    /// False for a hole that is not all zeroes: two such holes would seem to differ.
    pub(crate) fn is_canonical(&self) -> bool {
        !self.is_hole() || *self == Self::HOLE
    }

    /// True when there is no block.
    pub fn is_hole(&self) -> bool {
        self.vbn.0 == 0
    }
}

impl From<RawPointer> for BlockPointer {
    #[inline]
    fn from(raw: RawPointer) -> Self {
        Self { vbn: Vbn(raw.vbn.get()), birth: Generation(raw.birth.get()), checksum: raw.checksum }
    }
}

impl From<BlockPointer> for RawPointer {
    #[inline]
    fn from(pointer: BlockPointer) -> Self {
        Self { vbn: pointer.vbn.0.into(), birth: pointer.birth.0.into(), checksum: pointer.checksum }
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub(crate) struct RawTreeRef {
    pointer: RawPointer,
    height: u8,
    reserved: [u8; 7],
    length: U64,
}

const _: () = assert!(size_of::<RawTreeRef>() == 48);

/// The tree of a file: its top node, how many levels of nodes it has, and how many blocks it can
/// address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TreeRef {
    /// The top node; a hole when the whole file is one.
    pub pointer: BlockPointer,
    /// Levels of nodes above the data: 1 or more.
    pub height: u8,
    /// Length of the file in blocks.
    pub length: u64,
}

impl TreeRef {
    /// More levels than any tree needs: 126^8 blocks.
    pub const HEIGHT_MAX: u8 = 8;

    /// The tree of a file of `length` blocks that is one hole.
    pub fn empty(length: u64) -> Self {
        Self { pointer: BlockPointer::HOLE, height: Self::height_for(length), length }
    }

    /// Levels of nodes that `length` blocks need.
    pub fn height_for(length: u64) -> u8 {
        let mut height = 1;
        let mut reach = crate::FANOUT;
        while reach < length {
            reach = reach.saturating_mul(crate::FANOUT);
            height += 1;
        }
        height
    }

    pub(crate) fn parse(raw: RawTreeRef) -> Option<Self> {
        let tree = Self { pointer: raw.pointer.into(), height: raw.height, length: raw.length.get() };
        let fits = tree.height <= Self::HEIGHT_MAX && tree.height >= Self::height_for(tree.length);
        (fits && tree.pointer.is_canonical() && raw.reserved == [0; 7]).then_some(tree)
    }
}

impl From<TreeRef> for RawTreeRef {
    fn from(tree: TreeRef) -> Self {
        Self {
            pointer: tree.pointer.into(),
            height: tree.height,
            reserved: [0; 7],
            length: tree.length.into(),
        }
    }
}
