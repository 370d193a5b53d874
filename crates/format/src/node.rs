//! Nodes of trees: a header that identifies the block, and 126 block pointers.

use cairn_base::{Checksum, FileId, Generation, Vbn, VolumeId};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::pointer::RawPointer;
use crate::{BlockBytes, BlockPointer, FormatError, Structure, layout};

/// Pointers in a node.
pub const FANOUT: u64 = 126;

const MAGIC: u32 = u32::from_le_bytes(*b"CNOD");

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawNode {
    magic: U32,
    version: U16,
    level: u8,
    reserved: u8,
    vbn: U64,
    volume: [u8; 16],
    file: U64,
    index: U64,
    birth: U64,
    reserved_end: [u8; 8],
    pointers: [RawPointer; FANOUT as usize],
}

const _: () = assert!(size_of::<RawNode>() == cairn_base::BLOCK_SIZE);

/// The address of a node: its file, its level (1 holds pointers to data), and its index in its
/// level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeAddress {
    /// The file.
    pub file: FileId,
    /// From 1, next to the data, upwards.
    pub level: u8,
    /// The number of the node in its level, from 0.
    pub index: u64,
}

/// A node on a disk, checked against its parent's pointer.
#[derive(Clone, Copy)]
pub struct Node<'a>(&'a RawNode);

impl<'a> Node<'a> {
    /// Checks the header. The checksum of the block is in its parent and is the caller's to verify.
    pub fn parse(
        bytes: &'a BlockBytes,
        volume: VolumeId,
        address: NodeAddress,
        vbn: Vbn,
    ) -> Result<Self, FormatError> {
        let raw =
            RawNode::ref_from_bytes(bytes.as_slice()).map_err(|_| FormatError::Magic(Structure::Node))?;
        if raw.magic.get() != MAGIC {
            return Err(FormatError::Magic(Structure::Node));
        }
        layout::check_version(Structure::Node, raw.version.get().into())?;
        let here = raw.volume == volume.0
            && raw.vbn.get() == vbn.0
            && raw.file.get() == address.file.0
            && raw.level == address.level
            && raw.index.get() == address.index;
        if !here {
            return Err(FormatError::Misplaced(Structure::Node));
        }
        let field = |field| FormatError::Field { structure: Structure::Node, field };
        if raw.reserved != 0 || raw.reserved_end != [0; 8] {
            return Err(field("reserved byte"));
        }
        if !raw.pointers.iter().all(|pointer| BlockPointer::from(*pointer).is_canonical()) {
            return Err(field("hole"));
        }
        Ok(Self(raw))
    }

    /// A node whose header was checked when it was read, seen again.
    pub fn trusted(bytes: &'a BlockBytes) -> Option<Self> {
        RawNode::ref_from_bytes(bytes.as_slice()).ok().map(Self)
    }

    /// Pointer `slot` of 0 to 125; a hole past the end.
    #[inline]
    pub fn pointer(&self, slot: usize) -> BlockPointer {
        self.0.pointers.get(slot).map_or(BlockPointer::HOLE, |raw| (*raw).into())
    }

    /// The generation that wrote it.
    pub fn birth(&self) -> Generation {
        Generation(self.0.birth.get())
    }
}

/// A node being written.
pub struct NodeMut<'a>(&'a mut RawNode);

impl<'a> NodeMut<'a> {
    /// Takes bytes that hold a node already, to change its pointers.
    pub fn of(bytes: &'a mut BlockBytes) -> Self {
        match RawNode::mut_from_bytes(bytes.as_mut_slice()) {
            Ok(raw) => Self(raw),
            Err(_) => unreachable!("a block has the size of a node, and a node needs no alignment"),
        }
    }

    /// Writes the header; the pointers are unchanged.
    pub fn set_header(&mut self, volume: VolumeId, address: NodeAddress, vbn: Vbn, birth: Generation) {
        self.0.magic = MAGIC.into();
        self.0.version = (layout::VERSION as u16).into();
        self.0.level = address.level;
        self.0.reserved = 0;
        self.0.vbn = vbn.0.into();
        self.0.volume = volume.0;
        self.0.file = address.file.0.into();
        self.0.index = address.index.into();
        self.0.birth = birth.0.into();
        self.0.reserved_end = [0; 8];
    }

    /// Sets pointer `slot`; panics past 125.
    #[inline]
    pub fn set(&mut self, slot: usize, pointer: BlockPointer) {
        self.0.pointers[slot] = pointer.into();
    }

    /// True when every pointer is a hole: the node itself can be one.
    pub fn is_empty(&self) -> bool {
        self.0.pointers.iter().all(|raw| BlockPointer::from(*raw).is_hole())
    }
}

impl std::fmt::Debug for Node<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Node(level {}, index {})", self.0.level, self.0.index.get())
    }
}

/// The checksum of a whole node block, for its parent.
impl From<&NodeMut<'_>> for Checksum {
    fn from(node: &NodeMut<'_>) -> Self {
        Checksum::of(node.0.as_bytes())
    }
}
