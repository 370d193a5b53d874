//! Inodes: the kind of a file, its attributes, and the start of its tree. The inode file is an
//! array of them, by file id.

use cairn_base::{FileId, Timestamp};
use zerocopy::little_endian::{I64, U16, U32, U64};
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
    quota: U16,
    device: U32,
    id: U64,
    length_bytes: U64,
    created_ns: U64,
    relationship: U64,
    tree: RawTreeRef,
    mode: U32,
    links: U32,
    uid: U32,
    gid: U32,
    accessed_ns: I64,
    modified_ns: I64,
    changed_ns: I64,
}

const _: () = assert!(size_of::<RawInode>() == SIZE);

/// The log's entry that an inode begins with, and the one that it ends with.
const LOG_FIRST: u8 = 3;
const LOG_SECOND: u8 = 4;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawLogInode {
    entry: u8,
    kind: u8,
    removed: u8,
    reserved: u8,
    device: U32,
    file: U64,
    length_bytes: U64,
    created_ns: U64,
    extended: U64,
    mode: U32,
    links: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawLogTimes {
    entry: u8,
    reserved: [u8; 5],
    quota: U16,
    uid: U32,
    gid: U32,
    accessed_ns: I64,
    modified_ns: I64,
    changed_ns: I64,
    reserved_end: [u8; 8],
}

const _: () = assert!(size_of::<RawLogInode>() == 48 && size_of::<RawLogTimes>() == 48);

/// The purpose of a file.
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
    /// A file, directory, link or device of the tree of names, by its mode.
    Node,
    /// The extended attributes of one of these.
    Extended,
}

impl FileKind {
    fn code(self) -> u8 {
        match self {
            FileKind::Directory => 1,
            FileKind::Lun => 2,
            FileKind::SinceAccumulating => 3,
            FileKind::SinceInFlight => 4,
            FileKind::Node => 5,
            FileKind::Extended => 6,
        }
    }

    fn of_code(code: u8) -> Option<Self> {
        let kinds = [
            FileKind::Directory,
            FileKind::Lun,
            FileKind::SinceAccumulating,
            FileKind::SinceInFlight,
            FileKind::Node,
            FileKind::Extended,
        ];
        kinds.into_iter().find(|kind| kind.code() == code)
    }

    /// A since map: an array of bits over block space.
    pub fn is_since_map(self) -> bool {
        matches!(self, FileKind::SinceAccumulating | FileKind::SinceInFlight)
    }
}

/// The POSIX attributes of a file. All zero for files that are not of the tree of names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Attributes {
    /// Type and permissions, as in `st_mode`.
    pub mode: u32,
    /// Names that it has; a directory: 2 and one for each directory in it.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// A device's numbers, in the 32 bits of Linux: 12 of major, 20 of minor. 0 for other files.
    pub device: u32,
    /// Blocks of content that it takes, nodes not counted. Of a device 0: it has none.
    pub blocks: u32,
    /// The quota tree that it is in; 0 for none.
    pub quota: u16,
    /// Last read, nanoseconds since 1970, which may be before.
    pub accessed_ns: i64,
    /// Content last changed.
    pub modified_ns: i64,
    /// Anything last changed.
    pub changed_ns: i64,
    /// The file that has its extended attributes; 0 for none.
    pub extended: FileId,
}

/// The types of a mode: fifo, character device, directory, block device, file, symbolic link,
/// socket.
const TYPES: [u32; 7] = [0o1, 0o2, 0o4, 0o6, 0o10, 0o12, 0o14];

impl Attributes {
    /// Whether these can be a file's: a mode of a known type and no more, an extended file below
    /// the largest number.
    fn are_good(&self) -> bool {
        let is_known = TYPES.contains(&(self.mode >> 12));
        is_known && self.extended.0 < crate::layout::COUNTER_MAX
    }

    /// Whether a mode is that of a device, which has numbers where others count their blocks.
    fn is_device(mode: u32) -> bool {
        matches!(mode >> 12, 0o2 | 0o6)
    }

    /// The field that devices and other files use for different purposes.
    fn device_or_blocks(&self) -> u32 {
        if Self::is_device(self.mode) { self.device } else { self.blocks }
    }

    /// The device numbers and the blocks that such a field means.
    fn of_field(mode: u32, field: u32) -> (u32, u32) {
        if Self::is_device(mode) { (field, 0) } else { (0, field) }
    }
}

/// A file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inode {
    /// Its purpose.
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
    /// Its POSIX attributes.
    pub attributes: Attributes,
}

impl Inode {
    /// Its form in the log: the root and the log's other entries have its blocks.
    fn without_blocks(self) -> Self {
        let blocks = self.length_bytes.div_ceil(cairn_base::BLOCK_SIZE as u64).max(1);
        Self { tree: TreeRef::empty(blocks), ..self }
    }

    /// The parts that the log keeps, as two of its entries: rarely changed fields, then owner and
    /// times.
    ///
    /// A block of a record may begin in the middle of an entry and must not look like a record. So
    /// the field eight bytes after one that a client can choose is never one that a client can
    /// choose.
    pub(crate) fn to_log(self) -> [[u8; 48]; 2] {
        let attributes = &self.attributes;
        let first = RawLogInode {
            entry: LOG_FIRST,
            kind: self.kind.code(),
            removed: u8::from(self.removed),
            reserved: 0,
            device: attributes.device_or_blocks().into(),
            file: self.id.0.into(),
            length_bytes: self.length_bytes.into(),
            created_ns: self.created.0.into(),
            extended: attributes.extended.0.into(),
            mode: attributes.mode.into(),
            links: attributes.links.into(),
        };
        let second = RawLogTimes {
            entry: LOG_SECOND,
            reserved: [0; 5],
            quota: attributes.quota.into(),
            uid: attributes.uid.into(),
            gid: attributes.gid.into(),
            accessed_ns: attributes.accessed_ns.into(),
            modified_ns: attributes.modified_ns.into(),
            changed_ns: attributes.changed_ns.into(),
            reserved_end: [0; 8],
        };
        let mut bytes = [[0; 48]; 2];
        bytes[0].copy_from_slice(first.as_bytes());
        bytes[1].copy_from_slice(second.as_bytes());
        bytes
    }

    /// Reads [`Inode::to_log`]; only files of the tree of names occur there.
    pub(crate) fn from_log(first: &[u8], second: &[u8]) -> Option<Self> {
        let first = RawLogInode::ref_from_bytes(first).ok()?;
        let second = RawLogTimes::ref_from_bytes(second).ok()?;
        if first.entry != LOG_FIRST || second.entry != LOG_SECOND || first.removed > 1 {
            return None;
        }
        if first.reserved != 0 || second.reserved != [0; 5] || second.reserved_end != [0; 8] {
            return None;
        }
        let kind = FileKind::of_code(first.kind)?;
        let (device, blocks) = Attributes::of_field(first.mode.get(), first.device.get());
        let attributes = Attributes {
            mode: first.mode.get(),
            links: first.links.get(),
            uid: second.uid.get(),
            gid: second.gid.get(),
            device,
            blocks,
            quota: second.quota.get(),
            accessed_ns: second.accessed_ns.get(),
            modified_ns: second.modified_ns.get(),
            changed_ns: second.changed_ns.get(),
            extended: FileId(first.extended.get()),
        };
        let good = match kind {
            FileKind::Node => attributes.are_good(),
            FileKind::Extended => attributes == Attributes::default(),
            _ => false,
        };
        let (id, length_bytes) = (FileId(first.file.get()), first.length_bytes.get());
        let inode = Self {
            kind,
            removed: first.removed == 1,
            id,
            length_bytes,
            created: Timestamp(first.created_ns.get()),
            relationship: 0,
            tree: TreeRef::empty(1),
            attributes,
        };
        (good && id.0 < crate::layout::COUNTER_MAX).then(|| inode.without_blocks())
    }

    /// Whether it equals a result of [`Inode::from_log`]: it has no blocks of its own.
    pub fn is_as_logged(&self) -> bool {
        *self == self.without_blocks()
    }

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
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let kind = FileKind::of_code(raw.kind).ok_or(field("kind"))?;
        if raw.removed > 1 {
            return Err(field("reserved byte"));
        }
        let is_node = kind == FileKind::Node;
        let (device, blocks) = Attributes::of_field(raw.mode.get(), raw.device.get());
        let attributes = Attributes {
            mode: raw.mode.get(),
            links: raw.links.get(),
            uid: raw.uid.get(),
            gid: raw.gid.get(),
            device,
            blocks,
            quota: raw.quota.get(),
            accessed_ns: raw.accessed_ns.get(),
            modified_ns: raw.modified_ns.get(),
            changed_ns: raw.changed_ns.get(),
            extended: FileId(if is_node { raw.relationship.get() } else { 0 }),
        };
        if is_node && !attributes.are_good() || !is_node && attributes != Attributes::default() {
            return Err(field("attributes"));
        }
        Ok(Some(Self {
            kind,
            removed: raw.removed == 1,
            id: FileId(raw.id.get()),
            length_bytes: raw.length_bytes.get(),
            created: Timestamp(raw.created_ns.get()),
            relationship: if is_node { 0 } else { raw.relationship.get() },
            tree: TreeRef::parse(raw.tree).ok_or(field("tree"))?,
            attributes,
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
            quota: inode.attributes.quota.into(),
            device: inode.attributes.device_or_blocks().into(),
            id: inode.id.0.into(),
            length_bytes: inode.length_bytes.into(),
            created_ns: inode.created.0.into(),
            relationship: match inode.kind {
                FileKind::Node => inode.attributes.extended.0.into(),
                _ => inode.relationship.into(),
            },
            tree: inode.tree.into(),
            mode: inode.attributes.mode.into(),
            links: inode.attributes.links.into(),
            uid: inode.attributes.uid.into(),
            gid: inode.attributes.gid.into(),
            accessed_ns: inode.attributes.accessed_ns.into(),
            modified_ns: inode.attributes.modified_ns.into(),
            changed_ns: inode.attributes.changed_ns.into(),
        };
        bytes.copy_from_slice(raw.as_bytes());
    }
}
