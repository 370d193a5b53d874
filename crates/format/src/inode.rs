//! Inodes: what a file is and where its tree starts. The inode file is an array of them, by file id.

use cairn_base::{FileId, Timestamp};
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::pointer::RawTreeRef;
use crate::{BlockBytes, FormatError, Structure, TreeRef};

/// Inodes in a block of the inode file.
pub const INODES_PER_BLOCK: u64 = 32;

const SIZE: usize = cairn_base::BLOCK_SIZE / INODES_PER_BLOCK as usize;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawInode {
    kind: u8,
    removed: u8,
    reserved: [u8; 6],
    id: U64,
    length_bytes: U64,
    created_ns: U64,
    relationship: U64,
    tree: RawTreeRef,
    reserved_end: [u8; 40],
}

const _: () = assert!(size_of::<RawInode>() == SIZE);

/// What a file is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// Names of other files; durable by consistency points alone.
    Directory,
    /// A disk that clients see.
    Lun,
    /// Blocks allocated since a mirror's base was taken (accumulating generation).
    SinceAccumulating,
    /// Blocks allocated between the base and the snapshot in flight (in-flight generation).
    SinceInFlight,
}

impl FileKind {
    fn code(self) -> u8 {
        match self {
            FileKind::Directory => 1,
            FileKind::Lun => 2,
            FileKind::SinceAccumulating => 3,
            FileKind::SinceInFlight => 4,
        }
    }

    /// A since map: an array of bits over block space.
    pub fn is_since_map(self) -> bool {
        matches!(self, FileKind::SinceAccumulating | FileKind::SinceInFlight)
    }
}

/// A file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inode {
    /// What it is for.
    pub kind: FileKind,
    /// It has no name any more, and its blocks are being freed.
    pub removed: bool,
    /// Its own number.
    pub id: FileId,
    /// Bytes.
    pub length_bytes: u64,
    /// When it was created.
    pub created: Timestamp,
    /// The mirror relationship that a since map belongs to; 0 for other files.
    pub relationship: u64,
    /// Its blocks.
    pub tree: TreeRef,
}

impl Inode {
    /// Block and slot of `id` in the inode file.
    pub fn place(id: FileId) -> (u64, usize) {
        (id.0 / INODES_PER_BLOCK, (id.0 % INODES_PER_BLOCK) as usize)
    }

    /// The inode in `slot` of a block of the inode file; `None` when the slot is empty.
    pub fn parse(block: &BlockBytes, slot: usize) -> Result<Option<Self>, FormatError> {
        let structure = Structure::Inode;
        let field = |field| FormatError::Field { structure, field };
        let bytes = block.get(slot * SIZE..(slot + 1) * SIZE).ok_or(field("slot"))?;
        let raw = RawInode::ref_from_bytes(bytes).map_err(|_| field("size"))?;
        let kind = match raw.kind {
            0 if bytes.iter().all(|byte| *byte == 0) => return Ok(None),
            1 => FileKind::Directory,
            2 => FileKind::Lun,
            3 => FileKind::SinceAccumulating,
            4 => FileKind::SinceInFlight,
            _ => return Err(field("kind")),
        };
        if raw.removed > 1 || raw.reserved != [0; 6] || raw.reserved_end != [0; 40] {
            return Err(field("reserved byte"));
        }
        Ok(Some(Self {
            kind,
            removed: raw.removed == 1,
            id: FileId(raw.id.get()),
            length_bytes: raw.length_bytes.get(),
            created: Timestamp(raw.created_ns.get()),
            relationship: raw.relationship.get(),
            tree: TreeRef::parse(raw.tree).ok_or(field("tree"))?,
        }))
    }

    /// Writes `inode` (or an empty slot) into `slot` of a block of the inode file.
    pub fn put(inode: Option<&Inode>, block: &mut BlockBytes, slot: usize) {
        let bytes = &mut block[slot * SIZE..(slot + 1) * SIZE];
        let Some(inode) = inode else {
            bytes.fill(0);
            return;
        };
        let raw = RawInode {
            kind: inode.kind.code(),
            removed: u8::from(inode.removed),
            reserved: [0; 6],
            id: inode.id.0.into(),
            length_bytes: inode.length_bytes.into(),
            created_ns: inode.created.0.into(),
            relationship: inode.relationship.into(),
            tree: inode.tree.into(),
            reserved_end: [0; 40],
        };
        bytes.copy_from_slice(raw.as_bytes());
    }
}
