//! A file's attributes, as the format carries them.

use cairn_base::Timestamp;

/// The number that the root directory has in every dump.
pub const ROOT: u32 = 2;

/// A point in time: seconds since 1970, which may be before, and nanoseconds after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Time {
    /// Whole seconds since 1970-01-01 00:00 UTC.
    pub seconds: i64,
    /// 0 to 999,999,999.
    pub nanoseconds: u32,
}

impl From<Timestamp> for Time {
    fn from(timestamp: Timestamp) -> Self {
        let (seconds, rest) = (timestamp.0 / 1_000_000_000, timestamp.0 % 1_000_000_000);
        Self { seconds: seconds as i64, nanoseconds: rest as u32 }
    }
}

/// The kind of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// A named pipe.
    Fifo,
    /// A character device.
    Character,
    /// A directory.
    Directory,
    /// A block device.
    Block,
    /// A file of bytes.
    Regular,
    /// A symbolic link; its content is where it leads.
    Symlink,
    /// A socket.
    Socket,
}

impl Kind {
    /// Its bits in a mode (`S_IFMT`).
    pub fn mode(self) -> u32 {
        u32::from(self.entry_type()) << 12
    }

    /// The kind in a mode.
    pub fn of_mode(mode: u32) -> Option<Self> {
        Self::of_entry_type((mode >> 12 & 0xf) as u8)
    }

    /// The kind in a directory's entry (`DT_*`).
    pub(crate) fn entry_type(self) -> u8 {
        match self {
            Kind::Fifo => 1,
            Kind::Character => 2,
            Kind::Directory => 4,
            Kind::Block => 6,
            Kind::Regular => 8,
            Kind::Symlink => 10,
            Kind::Socket => 12,
        }
    }

    pub(crate) fn of_entry_type(code: u8) -> Option<Self> {
        Some(match code {
            1 => Kind::Fifo,
            2 => Kind::Character,
            4 => Kind::Directory,
            6 => Kind::Block,
            8 => Kind::Regular,
            10 => Kind::Symlink,
            12 => Kind::Socket,
            _ => return None,
        })
    }

    /// True for a file with bytes of its own.
    pub fn has_content(self) -> bool {
        matches!(self, Kind::Regular | Kind::Symlink)
    }
}

/// A file without its name and content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inode {
    /// Its number in the dump; [`ROOT`] for the root directory, more for all others.
    pub number: u32,
    /// The kind.
    pub kind: Kind,
    /// Permissions with set-user-id, set-group-id and sticky: the low twelve bits of a mode.
    pub permissions: u16,
    /// Names that it has. The format has 15 bits for it.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes of a file or of a link's target. A directory's is that of its entries in the dump.
    pub size: u64,
    /// Last read.
    pub accessed: Time,
    /// Content last changed.
    pub modified: Time,
    /// Anything last changed.
    pub changed: Time,
    /// When it was made, where the source knows.
    pub born: Option<Time>,
    /// Major and minor number of a device file.
    pub device: (u32, u32),
}
