//! External Data Representation (RFC 4506), as far as NFS uses it: big-endian units of four bytes.

/// Bytes that are not a value of the expected type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the message is malformed: {0}")]
pub struct Malformed(pub &'static str);

/// Bytes after `length` bytes up to the next unit.
pub fn padding(length: usize) -> usize {
    length.wrapping_neg() % 4
}

/// Reads values from the front of bytes.
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// The bytes that are left.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.bytes
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.bytes.split_at_checked(count).ok_or(Malformed("it ends too early"))?;
        self.bytes = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.take(N)?.try_into().map_err(|_| Malformed("it ends too early"))
    }

    /// Bytes with their length before them. The padding can have any value.
    pub(crate) fn opaque(&mut self, most: usize) -> Result<&'a [u8], Malformed> {
        let length = usize::try_from(u32::read(self)?).map_err(|_| Malformed("a length is too large"))?;
        if length > most {
            return Err(Malformed("a length is too large"));
        }
        let bytes = self.take(length)?;
        self.take(padding(length))?;
        Ok(bytes)
    }

    /// The end of a message: no byte is left.
    pub(crate) fn end(&self) -> Result<(), Malformed> {
        if self.bytes.is_empty() { Ok(()) } else { Err(Malformed("bytes follow its end")) }
    }
}

/// Writes bytes with their length before them.
pub(crate) fn write_opaque(bytes: &[u8], into: &mut Vec<u8>) {
    // The sizes of all messages are limited far below 4 GiB.
    (bytes.len() as u32).write(into);
    into.extend_from_slice(bytes);
    into.resize(into.len() + padding(bytes.len()), 0);
}

/// A value with a representation.
pub(crate) trait Xdr<'a>: Sized {
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed>;
    fn write(&self, into: &mut Vec<u8>);
}

impl<'a> Xdr<'a> for u32 {
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        Ok(u32::from_be_bytes(from.array()?))
    }

    fn write(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.to_be_bytes());
    }
}

impl<'a> Xdr<'a> for u64 {
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        Ok(u64::from_be_bytes(from.array()?))
    }

    fn write(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.to_be_bytes());
    }
}

impl<'a> Xdr<'a> for bool {
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        match u32::read(from)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed("a boolean is neither 0 nor 1")),
        }
    }

    fn write(&self, into: &mut Vec<u8>) {
        u32::from(*self).write(into);
    }
}

/// A name or data that stays in the record.
impl<'a> Xdr<'a> for &'a [u8] {
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        from.opaque(usize::MAX)
    }

    fn write(&self, into: &mut Vec<u8>) {
        write_opaque(self, into);
    }
}

impl<'a> Xdr<'a> for Vec<u8> {
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        Ok(from.opaque(usize::MAX)?.to_vec())
    }

    fn write(&self, into: &mut Vec<u8>) {
        write_opaque(self, into);
    }
}

impl<'a, const N: usize> Xdr<'a> for [u8; N] {
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        from.array()
    }

    /// For multiples of four bytes: there is no padding.
    fn write(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(self);
    }
}

impl<'a, T: Xdr<'a>> Xdr<'a> for Option<T> {
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        if bool::read(from)? { Ok(Some(T::read(from)?)) } else { Ok(None) }
    }

    fn write(&self, into: &mut Vec<u8>) {
        self.is_some().write(into);
        if let Some(value) = self {
            value.write(into);
        }
    }
}

/// Values each of which is preceded by `true`, and a `false` after the last one.
pub(crate) fn read_list<'a, T: Xdr<'a>>(from: &mut Reader<'a>) -> Result<Vec<T>, Malformed> {
    let mut values = Vec::new();
    while bool::read(from)? {
        values.push(T::read(from)?);
    }
    Ok(values)
}

/// The same, written.
pub(crate) fn write_list<'a, T: Xdr<'a>>(values: &[T], into: &mut Vec<u8>) {
    for value in values {
        true.write(into);
        value.write(into);
    }
    false.write(into);
}

/// Makes a struct whose representation is that of its fields in order.
macro_rules! xdr_struct {
    ($(#[$meta:meta])* $name:ident $(<$lifetime:lifetime>)? { $($(#[$doc:meta])* $field:ident: $kind:ty,)* }) => {
        $(#[$meta])*
        pub struct $name $(<$lifetime>)? { $($(#[$doc])* pub $field: $kind,)* }

        impl<'a> $crate::xdr::Xdr<'a> for xdr_struct!(@self $name $($lifetime)?) {
            fn read(
                from: &mut $crate::xdr::Reader<'a>,
            ) -> Result<Self, $crate::xdr::Malformed> {
                Ok(Self { $($field: $crate::xdr::Xdr::read(from)?,)* })
            }

            fn write(&self, into: &mut Vec<u8>) {
                $($crate::xdr::Xdr::write(&self.$field, into);)*
            }
        }
    };
    (@self $name:ident) => { $name };
    (@self $name:ident $lifetime:lifetime) => { $name<'a> };
}

/// Makes an enumeration of named numbers.
macro_rules! xdr_enum {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $case:ident = $number:literal,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum $name { $($(#[$doc])* $case = $number,)* }

        impl $name {
            /// All of them, in order.
            pub const ALL: &'static [$name] = &[$($name::$case,)*];

            /// Its number on the wire.
            pub fn number(self) -> u32 {
                self as u32
            }
        }

        impl<'a> $crate::xdr::Xdr<'a> for $name {
            fn read(
                from: &mut $crate::xdr::Reader<'a>,
            ) -> Result<Self, $crate::xdr::Malformed> {
                match <u32 as $crate::xdr::Xdr>::read(from)? {
                    $($number => Ok($name::$case),)*
                    _ => Err($crate::xdr::Malformed("a number is not of its enumeration")),
                }
            }

            fn write(&self, into: &mut Vec<u8>) {
                $crate::xdr::Xdr::write(&self.number(), into);
            }
        }
    };
}

pub(crate) use {xdr_enum, xdr_struct};
