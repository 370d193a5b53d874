//! MOUNT version 3 (RFC 1813, appendix I): from the path of an export to the handle of its root.

use crate::attributes::Handle;
use crate::xdr::{Malformed, Reader, Xdr, read_list, write_list, xdr_enum, xdr_struct};

/// The longest path of MNT and UMNT.
pub const MOUNT_PATH_BYTES_MAX: usize = 1024;
/// The longest name of a client or a group of clients.
const NAME_BYTES_MAX: usize = 255;
/// Kinds of credentials in the reply of MNT.
const FLAVORS_MAX: usize = 16;

xdr_enum! {
    /// `mountstat3`.
    MountStatus {
        /// No error.
        Ok = 0,
        /// The caller may not.
        Perm = 1,
        /// There is no such export.
        NoEntry = 2,
        /// The device failed.
        Io = 5,
        /// The client is not allowed.
        Access = 13,
        /// Not a directory.
        NotDirectory = 20,
        /// An argument is not valid.
        Invalid = 22,
        /// The path is too long.
        NameTooLong = 63,
        /// The operation is not supported.
        NotSupported = 10_004,
        /// The server failed.
        ServerFault = 10_006,
    }
}

/// A call of MOUNT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MountCall<'a> {
    /// Does nothing.
    Null,
    /// The handle of a path.
    Mount(&'a [u8]),
    /// The clients that have mounted something.
    Dump,
    /// The client has unmounted a path.
    Unmount(&'a [u8]),
    /// The client has unmounted everything.
    UnmountAll,
    /// The exports.
    Export,
}

impl<'a> MountCall<'a> {
    /// Reads the arguments of a procedure; `None` if there is no such procedure.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn parse(procedure: u32, arguments: &'a [u8]) -> Option<Result<Self, Malformed>> {
        let from = &mut Reader::new(arguments);
        let parsed = match procedure {
            0 => Ok(MountCall::Null),
            1 => from.opaque(MOUNT_PATH_BYTES_MAX).map(MountCall::Mount),
            2 => Ok(MountCall::Dump),
            3 => from.opaque(MOUNT_PATH_BYTES_MAX).map(MountCall::Unmount),
            4 => Ok(MountCall::UnmountAll),
            5 => Ok(MountCall::Export),
            _ => return None,
        };
        Some(parsed.and_then(|call| from.end().map(|()| call)))
    }

    /// The number of its procedure.
    pub fn procedure(&self) -> u32 {
        match self {
            MountCall::Null => 0,
            MountCall::Mount(_) => 1,
            MountCall::Dump => 2,
            MountCall::Unmount(_) => 3,
            MountCall::UnmountAll => 4,
            MountCall::Export => 5,
        }
    }

    /// Writes its arguments.
    pub fn write(&self, into: &mut Vec<u8>) {
        if let MountCall::Mount(path) | MountCall::Unmount(path) = self {
            path.write(into);
        }
    }
}

/// The results of MNT.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mounted {
    /// The directory.
    pub directory: Handle,
    /// The kinds of credentials that the server takes.
    pub flavors: Vec<u32>,
}

xdr_struct! {
    /// An export.
    #[derive(Debug, Clone, PartialEq, Eq)]
    Exported {
        /// Its path.
        path: Vec<u8>,
        /// Networks of clients; none for all clients.
        clients: Names,
    }
}

/// Names of clients or groups of clients.
pub type Names = Vec<Vec<u8>>;

impl<'a> Xdr<'a> for Names {
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        let mut names = Vec::new();
        while bool::read(from)? {
            names.push(from.opaque(NAME_BYTES_MAX)?.to_vec());
        }
        Ok(names)
    }

    fn write(&self, into: &mut Vec<u8>) {
        write_list(self, into);
    }
}

/// A reply of MOUNT.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MountReply {
    /// NULL, UMNT and UMNTALL.
    Nothing,
    /// MNT.
    Mount(Result<Mounted, MountStatus>),
    /// DUMP: this server keeps no list, as no client is sure to end its entry.
    Dump,
    /// EXPORT.
    Export(Vec<Exported>),
}

impl MountReply {
    /// Reads the results of a procedure.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn parse(procedure: u32, results: &[u8]) -> Result<Self, Malformed> {
        let from = &mut Reader::new(results);
        let reply = match procedure {
            0 | 3 | 4 => MountReply::Nothing,
            1 => MountReply::Mount(match MountStatus::read(from)? {
                MountStatus::Ok => Ok(Mounted { directory: Xdr::read(from)?, flavors: read_flavors(from)? }),
                status => Err(status),
            }),
            2 if !bool::read(from)? => MountReply::Dump,
            5 => MountReply::Export(read_list(from)?),
            _ => return Err(Malformed("there is no such reply of MOUNT")),
        };
        from.end()?;
        Ok(reply)
    }

    /// Writes its results.
    pub fn write(&self, into: &mut Vec<u8>) {
        match self {
            MountReply::Nothing => {}
            MountReply::Mount(Ok(Mounted { directory, flavors })) => {
                MountStatus::Ok.write(into);
                directory.write(into);
                (flavors.len() as u32).write(into);
                flavors.iter().for_each(|flavor| flavor.write(into));
            }
            MountReply::Mount(Err(status)) => status.write(into),
            MountReply::Dump => false.write(into),
            MountReply::Export(exports) => write_list(exports, into),
        }
    }
}

fn read_flavors(from: &mut Reader<'_>) -> Result<Vec<u32>, Malformed> {
    let count = u32::read(from)? as usize;
    if count > FLAVORS_MAX {
        return Err(Malformed("it has too many kinds of credentials"));
    }
    (0..count).map(|_| u32::read(from)).collect()
}
