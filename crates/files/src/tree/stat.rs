//! Attributes of files as POSIX knows them.

use cairn_base::{BLOCK_SIZE, FileId};
use cairn_format::{Inode, LeafName};

/// The kind of a named file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NodeKind {
    /// Bytes.
    File,
    /// Names.
    Directory,
    /// A path.
    SymbolicLink,
    /// A device of characters.
    CharacterDevice,
    /// A device of blocks.
    BlockDevice,
    /// A pipe with a name.
    Fifo,
    /// A socket with a name.
    Socket,
}

impl NodeKind {
    const ALL: [NodeKind; 7] = [
        NodeKind::File,
        NodeKind::Directory,
        NodeKind::SymbolicLink,
        NodeKind::CharacterDevice,
        NodeKind::BlockDevice,
        NodeKind::Fifo,
        NodeKind::Socket,
    ];

    /// The kind of a whole `st_mode`; without type bits a file, as with `mknod`.
    pub fn of_mode(mode: u32) -> Option<Self> {
        match mode & 0o170_000 {
            0 => Some(NodeKind::File),
            bits => Self::ALL.into_iter().find(|kind| kind.type_bits() == bits),
        }
    }

    /// Its type bits in `st_mode`.
    pub fn type_bits(self) -> u32 {
        u32::from(self.code()) << 12
    }

    /// The type bits as a directory keeps them.
    pub(crate) fn code(self) -> u8 {
        match self {
            NodeKind::Fifo => 0o1,
            NodeKind::CharacterDevice => 0o2,
            NodeKind::Directory => 0o4,
            NodeKind::BlockDevice => 0o6,
            NodeKind::File => 0o10,
            NodeKind::SymbolicLink => 0o12,
            NodeKind::Socket => 0o14,
        }
    }

    /// The kind of an inode or a name that was checked.
    pub(crate) fn of_code(code: u8) -> Self {
        Self::ALL.into_iter().find(|kind| kind.code() == code).unwrap_or(NodeKind::File)
    }

    pub(crate) fn of(inode: &Inode) -> Self {
        Self::of_code((inode.attributes.mode >> 12) as u8)
    }
}

/// The attributes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// Its number, never given to another one.
    pub file: FileId,
    /// Its kind.
    pub kind: NodeKind,
    /// `st_mode`, whole: type and permissions.
    pub mode: u32,
    /// Names; of a directory 2 and one for each directory in it; 0 once it has none.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Numbers of a device, in Linux's 32 bits; 0 for other files.
    pub device: u32,
    /// Bytes; of a directory those of the blocks that it takes.
    pub bytes: u64,
    /// Blocks of 4 KiB that the content takes.
    pub blocks: u64,
    /// Last read, in nanoseconds since 1970, which may be before.
    pub accessed_ns: i64,
    /// Content last changed.
    pub modified_ns: i64,
    /// Anything last changed.
    pub changed_ns: i64,
    /// Made.
    pub created_ns: i64,
    /// It has extended attributes.
    pub has_xattrs: bool,
}

impl From<&Inode> for Stat {
    fn from(inode: &Inode) -> Self {
        let (attributes, kind) = (&inode.attributes, NodeKind::of(inode));
        let blocks = u64::from(attributes.blocks);
        Self {
            file: inode.id,
            kind,
            mode: attributes.mode,
            links: attributes.links,
            uid: attributes.uid,
            gid: attributes.gid,
            device: attributes.device,
            bytes: match kind {
                NodeKind::Directory => blocks * BLOCK_SIZE as u64,
                _ => inode.length_bytes,
            },
            blocks,
            accessed_ns: attributes.accessed_ns,
            modified_ns: attributes.modified_ns,
            changed_ns: attributes.changed_ns,
            created_ns: inode.created.0.cast_signed(),
            has_xattrs: attributes.extended.0 != 0,
        }
    }
}

/// Files by number, if not all can be read.
#[derive(Debug)]
pub struct ReadableNodes {
    /// Those that can be.
    pub stats: Vec<Stat>,
    /// Numbers that may be files' numbers: ranges from the first up to the one after the last.
    pub lost: Vec<(FileId, FileId)>,
    /// The number to continue from; `None` at the end.
    pub next: Option<FileId>,
}

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The cookie to continue reading after it: it stays valid whatever is created or removed
    /// meanwhile. Below 2^63.
    pub cookie: u64,
    /// The file that it names.
    pub file: FileId,
    /// The kind of that file.
    pub kind: NodeKind,
    /// 1 to 255 bytes.
    pub name: Vec<u8>,
}

impl From<LeafName<'_>> for Entry {
    fn from(name: LeafName<'_>) -> Self {
        let kind = NodeKind::of_code(name.kind);
        Self { cookie: name.key, file: name.file, kind, name: name.name.to_vec() }
    }
}

/// The attributes of a new file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct New {
    /// Permissions; to [`crate::Tree::make`] type bits as well.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group, unless the directory's set-group-ID gives its own.
    pub gid: u32,
    /// Numbers of a device.
    pub device: u32,
    /// Permissions that it does not get, unless the directory has a default ACL.
    pub umask: u32,
}

/// Changes of attributes; `None` leaves one unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetStat {
    /// Permissions, 12 bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length: a cut removes bytes, added bytes read as zeroes.
    pub bytes: Option<u64>,
    /// Access time.
    pub accessed: Option<SetTime>,
    /// Modification time.
    pub modified: Option<SetTime>,
    /// Change time, unless it was changed later already; otherwise now.
    pub changed_ns: Option<i64>,
    /// Birth time; before 1970 it is taken as 1970.
    pub created_ns: Option<i64>,
}

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The volume's clock.
    Now,
    /// Nanoseconds since 1970.
    At(i64),
}

/// The behaviour of `rename` for an existing name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rename {
    /// Replace it.
    Replace,
    /// Refuse.
    NoReplace,
    /// Both names change places; both must be there.
    Exchange,
}

/// The kind of an `allocate`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocate {
    /// The file is at least that long afterwards. Space is only checked, in the volume and in its
    /// quota tree, and not reserved: nothing is ever overwritten here, so a reservation would not
    /// be the space that a write takes.
    Extend,
    /// Space is looked for.
    Keep,
    /// The range becomes a hole; the length stays.
    Punch,
    /// The range reads as zeroes.
    Zero {
        /// The length stays.
        keep: bool,
    },
}

/// The behaviour of `set_xattr` for an existing or a missing attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetXattr {
    /// Sets it.
    Any,
    /// Fails if it exists.
    Create,
    /// Refuses if it is not.
    Replace,
}

/// How full the volume is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Blocks in all.
    pub blocks: u64,
    /// Blocks that can be written.
    pub free: u64,
    /// Bytes in a block.
    pub block_bytes: u32,
    /// Longest name in bytes.
    pub name_max: u32,
    /// Files that there can be: as many as there are blocks, more or less.
    pub files: u64,
    /// Files that can be made.
    pub files_free: u64,
}
