//! The root of a tree: from here everything of one generation is reached. The same on a source and
//! its mirror.

use cairn_base::{Generation, Timestamp};
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::pointer::RawTreeRef;
use crate::{TreeRef, layout};

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub(crate) struct RawRoot {
    generation: U64,
    created_ns: U64,
    blocks: U64,
    used: U64,
    next_file: U64,
    changed_ns: U64,
    inode_file: RawTreeRef,
    active_map: RawTreeRef,
    reserved: [u8; 16],
}

const _: () = assert!(size_of::<RawRoot>() == 160);

/// A consistent state of a volume: the active one, or a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Root {
    /// The consistency point that wrote it.
    pub generation: Generation,
    /// When that was, by the clock of the volume's owner.
    pub created: Timestamp,
    /// Length of the block space in blocks.
    pub blocks: u64,
    /// Bits set in the active map.
    pub used: u64,
    /// The number that the next new file gets.
    pub next_file: u64,
    /// When the content last changed (a consistency point with nothing to write keeps it).
    pub changed: Timestamp,
    /// The array of inodes.
    pub inode_file: TreeRef,
    /// A bit for each block that this root reaches.
    pub active_map: TreeRef,
}

impl Root {
    pub(crate) fn parse(raw: RawRoot) -> Option<Self> {
        let counters = [raw.generation, raw.next_file].iter().all(|n| n.get() < layout::COUNTER_MAX);
        let sizes = [raw.blocks, raw.used].iter().all(|n| n.get() <= layout::SPACE_BLOCKS_MAX);
        if raw.reserved != [0; 16] || !counters || !sizes {
            return None;
        }
        Some(Self {
            generation: Generation(raw.generation.get()),
            created: Timestamp(raw.created_ns.get()),
            blocks: raw.blocks.get(),
            used: raw.used.get(),
            next_file: raw.next_file.get(),
            changed: Timestamp(raw.changed_ns.get()),
            inode_file: TreeRef::parse(raw.inode_file)?,
            active_map: TreeRef::parse(raw.active_map)?,
        })
    }
}

impl From<Root> for RawRoot {
    fn from(root: Root) -> Self {
        Self {
            generation: root.generation.0.into(),
            created_ns: root.created.0.into(),
            blocks: root.blocks.into(),
            used: root.used.into(),
            next_file: root.next_file.into(),
            changed_ns: root.changed.0.into(),
            inode_file: root.inode_file.into(),
            active_map: root.active_map.into(),
            reserved: [0; 16],
        }
    }
}
