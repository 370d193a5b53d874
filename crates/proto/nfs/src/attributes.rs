//! The types that several procedures share (RFC 1813, section 2.5 and 2.6).

use crate::xdr::{Malformed, Reader, Xdr, write_opaque, xdr_enum, xdr_struct};

/// The longest file handle.
pub const HANDLE_BYTES_MAX: usize = 64;
/// Bytes of a cookie verifier, a create verifier and a write verifier.
pub const VERIFIER_BYTES: usize = 8;
/// One of them.
pub type Verifier = [u8; VERIFIER_BYTES];

/// Bits of ACCESS.
pub mod access {
    /// Read data, or list a directory.
    pub const READ: u32 = 0x01;
    /// Look a name up.
    pub const LOOKUP: u32 = 0x02;
    /// Rewrite data, or change names.
    pub const MODIFY: u32 = 0x04;
    /// Add data or names.
    pub const EXTEND: u32 = 0x08;
    /// Remove names.
    pub const DELETE: u32 = 0x10;
    /// Execute a file.
    pub const EXECUTE: u32 = 0x20;
}

xdr_enum! {
    /// `nfsstat3`.
    Status {
        /// No error.
        Ok = 0,
        /// The caller does not own the file.
        Perm = 1,
        /// There is no such name.
        NoEntry = 2,
        /// The device failed.
        Io = 5,
        /// There is no such device.
        NoDevice = 6,
        /// The permissions do not allow it.
        Access = 13,
        /// The name exists.
        Exists = 17,
        /// The two files are in different file systems.
        CrossDevice = 18,
        /// There is no such device.
        NoSuchDevice = 19,
        /// Not a directory.
        NotDirectory = 20,
        /// A directory.
        IsDirectory = 21,
        /// An argument is not valid.
        Invalid = 22,
        /// The file would be too large.
        TooLarge = 27,
        /// The volume is full.
        NoSpace = 28,
        /// Nothing can be changed.
        ReadOnly = 30,
        /// The file has too many names.
        TooManyLinks = 31,
        /// The name is too long.
        NameTooLong = 63,
        /// The directory has names.
        NotEmpty = 66,
        /// The quota is used up.
        Quota = 69,
        /// The file of the handle is gone.
        Stale = 70,
        /// Too many levels of remote.
        Remote = 71,
        /// The handle is none of this server's.
        BadHandle = 10_001,
        /// The guard of SETATTR did not match.
        NotSync = 10_002,
        /// The cookie is not valid any more.
        BadCookie = 10_003,
        /// The operation is not supported.
        NotSupported = 10_004,
        /// The buffer or request is too small.
        TooSmall = 10_005,
        /// The server failed.
        ServerFault = 10_006,
        /// This type can't be created.
        BadType = 10_007,
        /// The client is to try again later.
        Jukebox = 10_008,
    }
}

xdr_enum! {
    /// `ftype3`.
    Kind {
        /// A file.
        File = 1,
        /// A directory.
        Directory = 2,
        /// A block device.
        BlockDevice = 3,
        /// A character device.
        CharacterDevice = 4,
        /// A symbolic link.
        SymbolicLink = 5,
        /// A socket.
        Socket = 6,
        /// A pipe with a name.
        Fifo = 7,
    }
}

xdr_enum! {
    /// `stable_how`: how durable a write is before its reply.
    Stable {
        /// In memory at least.
        Unstable = 0,
        /// The data is durable.
        DataSync = 1,
        /// Data and attributes are durable.
        FileSync = 2,
    }
}

/// A file handle: up to 64 bytes that mean something to the server alone.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handle {
    length: u8,
    bytes: [u8; HANDLE_BYTES_MAX],
}

impl Handle {
    /// A handle of these bytes; `None` for more than 64.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut handle = Self { length: u8::try_from(bytes.len()).ok()?, bytes: [0; HANDLE_BYTES_MAX] };
        handle.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(handle)
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.length)).unwrap_or_default()
    }
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Handle(")?;
        self.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str(")")
    }
}

impl<'a> Xdr<'a> for Handle {
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        Handle::new(from.opaque(HANDLE_BYTES_MAX)?).ok_or(Malformed("a file handle is too long"))
    }

    fn write(&self, into: &mut Vec<u8>) {
        write_opaque(self.as_bytes(), into);
    }
}

xdr_struct! {
    /// A time since 1970.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    Time {
        /// Seconds.
        seconds: u32,
        /// Nanoseconds.
        nanoseconds: u32,
    }
}

xdr_struct! {
    /// The numbers of a device.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    DeviceNumbers {
        /// `major`.
        major: u32,
        /// `minor`.
        minor: u32,
    }
}

xdr_struct! {
    /// `fattr3`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    Attributes {
        /// The kind.
        kind: Kind,
        /// Permissions, 12 bits.
        mode: u32,
        /// Names.
        links: u32,
        /// Owner.
        uid: u32,
        /// Group.
        gid: u32,
        /// Bytes.
        size: u64,
        /// Bytes that its content takes.
        used: u64,
        /// Of a device.
        device: DeviceNumbers,
        /// The number of the file system.
        file_system: u64,
        /// The number of the file in it.
        file_id: u64,
        /// Last read.
        accessed: Time,
        /// Content last changed.
        modified: Time,
        /// Anything last changed.
        changed: Time,
    }
}

xdr_struct! {
    /// `wcc_attr`: attributes before an operation.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    WccAttributes {
        /// Bytes.
        size: u64,
        /// Content last changed.
        modified: Time,
        /// Anything last changed.
        changed: Time,
    }
}

xdr_struct! {
    /// `wcc_data`: a client keeps its cache of a file if `before` is as it knows the file.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    Wcc {
        /// Before the operation. Only if nothing else changed the file between the two.
        before: Option<WccAttributes>,
        /// After the operation.
        after: Option<Attributes>,
    }
}

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SetTime {
    /// It stays.
    #[default]
    Keep,
    /// The server's clock.
    Now,
    /// This time.
    At(Time),
}

impl<'a> Xdr<'a> for SetTime {
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        match u32::read(from)? {
            0 => Ok(SetTime::Keep),
            1 => Ok(SetTime::Now),
            2 => Ok(SetTime::At(Time::read(from)?)),
            _ => Err(Malformed("a time is set in an unknown way")),
        }
    }

    fn write(&self, into: &mut Vec<u8>) {
        match self {
            SetTime::Keep => 0u32.write(into),
            SetTime::Now => 1u32.write(into),
            SetTime::At(time) => {
                2u32.write(into);
                time.write(into);
            }
        }
    }
}

xdr_struct! {
    /// `sattr3`: attributes to set; `None` leaves one unchanged.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    SetAttributes {
        /// Permissions.
        mode: Option<u32>,
        /// Owner.
        uid: Option<u32>,
        /// Group.
        gid: Option<u32>,
        /// Length.
        size: Option<u64>,
        /// Access time.
        accessed: SetTime,
        /// Modification time.
        modified: SetTime,
    }
}
