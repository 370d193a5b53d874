//! The arguments of the procedures (RFC 1813, section 3.3).

use crate::attributes::{DeviceNumbers, Handle, Kind, SetAttributes, Stable, Time, Verifier};
use crate::xdr::{Malformed, Reader, Xdr, xdr_struct};

xdr_struct! {
    /// A name in a directory.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    Place<'a> {
        /// The directory.
        directory: Handle,
        /// The name; any bytes.
        name: &'a [u8],
    }
}

/// The behaviour of CREATE for an existing name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CreateHow {
    /// An existing file is used.
    Unchecked(SetAttributes),
    /// An existing name is an error.
    Guarded(SetAttributes),
    /// As guarded, and the repeated call finds its own file by this.
    Exclusive(Verifier),
}

impl<'a> Xdr<'a> for CreateHow {
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        match u32::read(from)? {
            0 => Ok(CreateHow::Unchecked(SetAttributes::read(from)?)),
            1 => Ok(CreateHow::Guarded(SetAttributes::read(from)?)),
            2 => Ok(CreateHow::Exclusive(from.array()?)),
            _ => Err(Malformed("a file is created in an unknown way")),
        }
    }

    fn write(&self, into: &mut Vec<u8>) {
        match self {
            CreateHow::Unchecked(new) => {
                0u32.write(into);
                new.write(into);
            }
            CreateHow::Guarded(new) => {
                1u32.write(into);
                new.write(into);
            }
            CreateHow::Exclusive(verifier) => {
                2u32.write(into);
                verifier.write(into);
            }
        }
    }
}

/// The file that MKNOD makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MakeNode {
    /// The kind.
    pub kind: Kind,
    /// The attributes; none for kinds that MKNOD can't make.
    pub attributes: SetAttributes,
    /// Of a device.
    pub device: DeviceNumbers,
}

impl<'a> Xdr<'a> for MakeNode {
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        let kind = Kind::read(from)?;
        let (mut attributes, mut device) = Default::default();
        match kind {
            Kind::CharacterDevice | Kind::BlockDevice => {
                (attributes, device) = (SetAttributes::read(from)?, DeviceNumbers::read(from)?);
            }
            Kind::Socket | Kind::Fifo => attributes = SetAttributes::read(from)?,
            Kind::File | Kind::Directory | Kind::SymbolicLink => {}
        }
        Ok(Self { kind, attributes, device })
    }

    fn write(&self, into: &mut Vec<u8>) {
        self.kind.write(into);
        match self.kind {
            Kind::CharacterDevice | Kind::BlockDevice => {
                self.attributes.write(into);
                self.device.write(into);
            }
            Kind::Socket | Kind::Fifo => self.attributes.write(into),
            Kind::File | Kind::Directory | Kind::SymbolicLink => {}
        }
    }
}

/// Makes the enumeration of calls, with their numbers and fields in the order of the wire.
macro_rules! calls {
    ($($(#[$doc:meta])* $number:literal $case:ident { $($(#[$field_doc:meta])* $field:ident: $kind:ty,)* })*) => {
        /// A call of NFS version 3.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Call<'a> {
            $($(#[$doc])* $case { $($(#[$field_doc])* $field: $kind,)* },)*
        }

        impl<'a> Call<'a> {
            /// Reads the arguments of a procedure; `None` if there is no such procedure.
            ///
            /// # Errors
            /// [`Malformed`].
            pub fn parse(procedure: u32, arguments: &'a [u8]) -> Option<Result<Self, Malformed>> {
                let from = &mut Reader::new(arguments);
                let parsed = Self::read(procedure, from).transpose()?;
                Some(parsed.and_then(|call| from.end().map(|()| call)))
            }

            fn read(procedure: u32, from: &mut Reader<'a>) -> Result<Option<Self>, Malformed> {
                match procedure {
                    $($number => Ok(Some(Call::$case { $($field: Xdr::read(from)?,)* })),)*
                    _ => Ok(None),
                }
            }

            /// The number of its procedure.
            pub fn procedure(&self) -> u32 {
                match self {
                    $(Call::$case { .. } => $number,)*
                }
            }

            /// Writes its arguments.
            pub fn write(&self, into: &mut Vec<u8>) {
                match self {
                    $(Call::$case { $($field,)* } => {
                        let _ = &into;
                        $($field.write(into);)*
                    })*
                }
            }
        }
    };
}

calls! {
    /// Does nothing.
    0 Null {}
    /// Attributes.
    1 GetAttr {
        /// Of this file.
        file: Handle,
    }
    /// Changes attributes.
    2 SetAttr {
        /// Of this file.
        file: Handle,
        /// The new ones.
        new: SetAttributes,
        /// Only if its change time is this.
        guard: Option<Time>,
    }
    /// Finds a name.
    3 Lookup {
        /// The name.
        place: Place<'a>,
    }
    /// Asks for rights.
    4 Access {
        /// To this file.
        file: Handle,
        /// The rights.
        wanted: u32,
    }
    /// The target of a symbolic link.
    5 ReadLink {
        /// The link.
        file: Handle,
    }
    /// Reads bytes.
    6 Read {
        /// Of this file.
        file: Handle,
        /// From here on.
        offset: u64,
        /// Up to so many.
        count: u32,
    }
    /// Writes bytes.
    7 Write {
        /// To this file.
        file: Handle,
        /// From here on.
        offset: u64,
        /// So many.
        count: u32,
        /// How durable.
        stable: Stable,
        /// The bytes.
        data: &'a [u8],
    }
    /// Makes a file.
    8 Create {
        /// Its name.
        place: Place<'a>,
        /// The behaviour for an existing name.
        how: CreateHow,
    }
    /// Makes a directory.
    9 MkDir {
        /// Its name.
        place: Place<'a>,
        /// Its attributes.
        new: SetAttributes,
    }
    /// Makes a symbolic link.
    10 SymLink {
        /// Its name.
        place: Place<'a>,
        /// Its attributes.
        new: SetAttributes,
        /// Its target.
        target: &'a [u8],
    }
    /// Makes a device, fifo or socket.
    11 MkNod {
        /// Its name.
        place: Place<'a>,
        /// Its kind and attributes.
        node: MakeNode,
    }
    /// Removes a name of a file that is not a directory.
    12 Remove {
        /// The name.
        place: Place<'a>,
    }
    /// Removes a directory.
    13 RmDir {
        /// Its name.
        place: Place<'a>,
    }
    /// Renames.
    14 Rename {
        /// The old name.
        from: Place<'a>,
        /// The new one.
        to: Place<'a>,
    }
    /// Gives a file another name.
    15 Link {
        /// The file.
        file: Handle,
        /// The name.
        place: Place<'a>,
    }
    /// Lists names.
    16 ReadDir {
        /// Of this directory.
        directory: Handle,
        /// After this.
        cookie: u64,
        /// The verifier of the listing that gave the cookie.
        verifier: Verifier,
        /// Bytes of the reply.
        count: u32,
    }
    /// Lists names with attributes and handles.
    17 ReadDirPlus {
        /// Of this directory.
        directory: Handle,
        /// After this.
        cookie: u64,
        /// The verifier of the listing that gave the cookie.
        verifier: Verifier,
        /// Bytes of names and cookies.
        names_count: u32,
        /// Bytes of the reply.
        count: u32,
    }
    /// Room.
    18 FsStat {
        /// Of the file system of this file.
        file: Handle,
    }
    /// Limits of the server.
    19 FsInfo {
        /// For this file.
        file: Handle,
    }
    /// Limits of names.
    20 PathConf {
        /// For this file.
        file: Handle,
    }
    /// Makes unstable writes durable.
    21 Commit {
        /// Of this file.
        file: Handle,
        /// From here on.
        offset: u64,
        /// So many bytes; 0 for all.
        count: u32,
    }
}
