//! The results of the procedures (RFC 1813, section 3.3).

use crate::attributes::{Attributes, Handle, Stable, Status, Time, Verifier, Wcc};
use crate::xdr::{Malformed, Reader, Xdr, padding, read_list, write_list, xdr_struct};

/// A failure, with the attributes that a reply has all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failed<E> {
    /// The reason; never [`Status::Ok`].
    pub status: Status,
    /// The attributes.
    pub rest: E,
}

/// The results of a procedure, or why it failed.
pub type Outcome<T, E> = Result<T, Failed<E>>;

impl<'a, T: Xdr<'a>, E: Xdr<'a>> Xdr<'a> for Outcome<T, E> {
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        match Status::read(from)? {
            Status::Ok => Ok(Ok(T::read(from)?)),
            status => Ok(Err(Failed { status, rest: E::read(from)? })),
        }
    }

    fn write(&self, into: &mut Vec<u8>) {
        match self {
            Ok(results) => {
                Status::Ok.write(into);
                results.write(into);
            }
            Err(Failed { status, rest }) => {
                status.write(into);
                rest.write(into);
            }
        }
    }
}

/// No results.
impl<'a> Xdr<'a> for () {
    fn read(_: &mut Reader<'a>) -> Result<Self, Malformed> {
        Ok(())
    }

    fn write(&self, _: &mut Vec<u8>) {}
}

/// Attributes that a reply has if the server knows them.
type Maybe = Option<Attributes>;

xdr_struct! {
    /// A name was found.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    Found {
        /// The file.
        file: Handle,
        /// Its attributes.
        attributes: Maybe,
        /// Those of the directory.
        directory: Maybe,
    }
}

xdr_struct! {
    /// Rights.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    Accessed {
        /// Attributes of the file.
        attributes: Maybe,
        /// Those of the wanted rights that the caller has.
        granted: u32,
    }
}

xdr_struct! {
    /// A symbolic link.
    #[derive(Debug, Clone, PartialEq, Eq)]
    Target {
        /// Attributes of the link.
        attributes: Maybe,
        /// Its target.
        target: Vec<u8>,
    }
}

xdr_struct! {
    /// Bytes of a file.
    #[derive(Debug, Clone, PartialEq, Eq)]
    Read {
        /// Attributes of the file.
        attributes: Maybe,
        /// How many.
        count: u32,
        /// They reach the end of the file.
        end: bool,
        /// The bytes.
        data: Vec<u8>,
    }
}

xdr_struct! {
    /// Bytes were written.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    Written {
        /// Attributes of the file.
        file: Wcc,
        /// How many.
        count: u32,
        /// How durable they are.
        committed: Stable,
        /// Changes if the server may have lost unstable writes.
        verifier: Verifier,
    }
}

xdr_struct! {
    /// A file was made.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    Made {
        /// The file.
        file: Option<Handle>,
        /// Its attributes.
        attributes: Maybe,
        /// Those of the directory.
        directory: Wcc,
    }
}

xdr_struct! {
    /// The directories of a rename.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    Renamed {
        /// Of the old name.
        from: Wcc,
        /// Of the new name.
        to: Wcc,
    }
}

xdr_struct! {
    /// The attributes after LINK.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    Linked {
        /// Of the file.
        attributes: Maybe,
        /// Of the directory.
        directory: Wcc,
    }
}

xdr_struct! {
    /// A name in a listing.
    #[derive(Debug, Clone, PartialEq, Eq)]
    DirectoryEntry {
        /// The number of the file.
        file_id: u64,
        /// The name.
        name: Vec<u8>,
        /// A listing continues after this.
        cookie: u64,
    }
}

xdr_struct! {
    /// A name in a listing, with attributes and handle.
    #[derive(Debug, Clone, PartialEq, Eq)]
    PlusEntry {
        /// The number of the file.
        file_id: u64,
        /// The name.
        name: Vec<u8>,
        /// A listing continues after this.
        cookie: u64,
        /// Attributes of the file.
        attributes: Maybe,
        /// Its handle.
        file: Option<Handle>,
    }
}

/// Bytes of a listed name beside the name itself: the mark, number, length and cookie.
const ENTRY_BYTES: usize = 4 + 8 + 4 + 8;
/// Bytes of attributes with their mark.
const MAYBE_BYTES: usize = 4 + 84;

/// Bytes that a name takes in the reply of READDIR.
pub fn listed_bytes(name: &[u8]) -> usize {
    ENTRY_BYTES + name.len() + padding(name.len())
}

/// Bytes that a name takes in the reply of READDIRPLUS, with attributes and a handle of
/// `handle_bytes`.
pub fn plus_bytes(name: &[u8], handle_bytes: usize) -> usize {
    listed_bytes(name) + MAYBE_BYTES + 4 + 4 + handle_bytes + padding(handle_bytes)
}

/// Names of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing<T> {
    /// Attributes of the directory.
    pub attributes: Option<Attributes>,
    /// For the next call.
    pub verifier: Verifier,
    /// The names.
    pub entries: Vec<T>,
    /// The last name is among them.
    pub end: bool,
}

impl<'a, T: Xdr<'a>> Xdr<'a> for Listing<T> {
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        let (attributes, verifier) = (Xdr::read(from)?, from.array()?);
        Ok(Self { attributes, verifier, entries: read_list(from)?, end: bool::read(from)? })
    }

    fn write(&self, into: &mut Vec<u8>) {
        self.attributes.write(into);
        self.verifier.write(into);
        write_list(&self.entries, into);
        self.end.write(into);
    }
}

xdr_struct! {
    /// `FSSTAT3resok`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    FileSystemSpace {
        /// Attributes of the file.
        attributes: Maybe,
        /// Bytes in all.
        total_bytes: u64,
        /// Free bytes.
        free_bytes: u64,
        /// Free bytes for the caller.
        available_bytes: u64,
        /// Files in all.
        total_files: u64,
        /// Files that can be made.
        free_files: u64,
        /// The same for the caller.
        available_files: u64,
        /// Seconds for which this will not change.
        invariant_seconds: u32,
    }
}

xdr_struct! {
    /// `FSINFO3resok`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    FileSystemInfo {
        /// Attributes of the file.
        attributes: Maybe,
        /// Most bytes of a READ.
        read_max: u32,
        /// Preferred bytes.
        read_preferred: u32,
        /// A good multiple.
        read_multiple: u32,
        /// Most bytes of a WRITE.
        write_max: u32,
        /// Preferred bytes.
        write_preferred: u32,
        /// A good multiple.
        write_multiple: u32,
        /// Preferred bytes of a READDIR.
        listing_preferred: u32,
        /// The largest file.
        file_bytes_max: u64,
        /// The resolution of times.
        time_step: Time,
        /// Bits: links, symbolic links, one PATHCONF for all, times can be set.
        properties: u32,
    }
}

xdr_struct! {
    /// `PATHCONF3resok`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    PathLimits {
        /// Attributes of the file.
        attributes: Maybe,
        /// Most names of a file.
        links_max: u32,
        /// Most bytes of a name.
        name_max: u32,
        /// A longer name is an error.
        no_truncation: bool,
        /// Only root changes an owner.
        owner_restricted: bool,
        /// Names that differ in case are equal.
        case_insensitive: bool,
        /// The case of names stays.
        case_preserving: bool,
    }
}

xdr_struct! {
    /// Unstable writes are durable.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    Committed {
        /// Attributes of the file.
        file: Wcc,
        /// As in [`Written`].
        verifier: Verifier,
    }
}

/// Makes the enumeration of replies.
macro_rules! replies {
    ($($(#[$doc:meta])* $number:literal $case:ident $results:ty;)*) => {
        /// A reply of NFS version 3.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum Reply {
            $($(#[$doc])* $case($results),)*
        }

        impl Reply {
            /// Reads the results of a procedure.
            ///
            /// # Errors
            /// [`Malformed`], also for a procedure that does not exist.
            pub fn parse(procedure: u32, results: &[u8]) -> Result<Self, Malformed> {
                let from = &mut Reader::new(results);
                let reply = match procedure {
                    $($number => Reply::$case(Xdr::read(from)?),)*
                    _ => return Err(Malformed("there is no such procedure")),
                };
                from.end()?;
                Ok(reply)
            }

            /// Writes its results.
            pub fn write(&self, into: &mut Vec<u8>) {
                match self {
                    $(Reply::$case(results) => results.write(into),)*
                }
            }
        }
    };
}

replies! {
    /// NULL.
    0 Null ();
    /// GETATTR.
    1 GetAttr Outcome<Attributes, ()>;
    /// SETATTR.
    2 SetAttr Outcome<Wcc, Wcc>;
    /// LOOKUP; a failure has the directory's attributes.
    3 Lookup Outcome<Found, Maybe>;
    /// ACCESS.
    4 Access Outcome<Accessed, Maybe>;
    /// READLINK.
    5 ReadLink Outcome<Target, Maybe>;
    /// READ.
    6 Read Outcome<Read, Maybe>;
    /// WRITE.
    7 Write Outcome<Written, Wcc>;
    /// CREATE.
    8 Create Outcome<Made, Wcc>;
    /// MKDIR.
    9 MkDir Outcome<Made, Wcc>;
    /// SYMLINK.
    10 SymLink Outcome<Made, Wcc>;
    /// MKNOD.
    11 MkNod Outcome<Made, Wcc>;
    /// REMOVE.
    12 Remove Outcome<Wcc, Wcc>;
    /// RMDIR.
    13 RmDir Outcome<Wcc, Wcc>;
    /// RENAME.
    14 Rename Outcome<Renamed, Renamed>;
    /// LINK.
    15 Link Outcome<Linked, Linked>;
    /// READDIR.
    16 ReadDir Outcome<Listing<DirectoryEntry>, Maybe>;
    /// READDIRPLUS.
    17 ReadDirPlus Outcome<Listing<PlusEntry>, Maybe>;
    /// FSSTAT.
    18 FsStat Outcome<FileSystemSpace, Maybe>;
    /// FSINFO.
    19 FsInfo Outcome<FileSystemInfo, Maybe>;
    /// PATHCONF.
    20 PathConf Outcome<PathLimits, Maybe>;
    /// COMMIT.
    21 Commit Outcome<Committed, Wcc>;
}

/// Writes the reply of a successful READ up to its data: `count` bytes and their padding follow.
/// So the data is sent from the blocks that it is in.
pub fn read_reply_head(attributes: Option<Attributes>, count: u32, end: bool, into: &mut Vec<u8>) {
    Status::Ok.write(into);
    attributes.write(into);
    count.write(into);
    end.write(into);
    count.write(into);
}
