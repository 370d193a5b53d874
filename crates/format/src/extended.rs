//! The extended attributes of a file, as the bytes of a file of their own.

use std::collections::BTreeMap;

use cairn_base::FileId;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{FormatError, Structure, layout};

/// Longest value of an extended attribute.
pub const EXTENDED_VALUE_MAX: usize = 65_536;
/// Longest name of one.
pub const EXTENDED_NAME_MAX: usize = 255;
/// Bytes that all of a file's take at most.
pub const EXTENDED_BYTES_MAX: usize = 262_144;

const MAGIC: u32 = u32::from_le_bytes(*b"CXAT");
const HEAD: usize = 32;
const ENTRY: usize = 8;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawExtended {
    magic: U32,
    version: U16,
    reserved: [u8; 2],
    owner: U64,
    bytes: U32,
    count: U32,
    reserved_end: [u8; 8],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawValue {
    name_length: u8,
    reserved: [u8; 3],
    value_length: U32,
}

const _: () = assert!(size_of::<RawExtended>() == HEAD && size_of::<RawValue>() == ENTRY);

/// The extended attributes of a file: values by name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Extended(pub BTreeMap<Vec<u8>, Vec<u8>>);

impl Extended {
    /// Bytes that they take as a file.
    pub fn size(&self) -> usize {
        HEAD + self.0.iter().map(|(name, value)| ENTRY + name.len() + value.len()).sum::<usize>()
    }

    /// As the bytes of a file; `owner` is the file that they belong to. Names and values are within
    /// the limits.
    pub fn to_bytes(&self, owner: FileId) -> Vec<u8> {
        let raw = RawExtended {
            magic: MAGIC.into(),
            version: (layout::VERSION as u16).into(),
            reserved: [0; 2],
            owner: owner.0.into(),
            bytes: (self.size() as u32).into(),
            count: (self.0.len() as u32).into(),
            reserved_end: [0; 8],
        };
        let mut bytes = Vec::with_capacity(self.size());
        bytes.extend_from_slice(raw.as_bytes());
        for (name, value) in &self.0 {
            let raw = RawValue {
                name_length: name.len() as u8,
                reserved: [0; 3],
                value_length: (value.len() as u32).into(),
            };
            bytes.extend_from_slice(raw.as_bytes());
            bytes.extend_from_slice(name);
            bytes.extend_from_slice(value);
        }
        bytes
    }

    /// The file that they belong to, by the first block of theirs.
    pub fn owner(bytes: &[u8]) -> Result<FileId, FormatError> {
        let structure = Structure::Extended;
        let (raw, _) = RawExtended::ref_from_prefix(bytes)
            .map_err(|_| FormatError::Field { structure, field: "size" })?;
        if raw.magic.get() != MAGIC {
            return Err(FormatError::Magic(structure));
        }
        layout::check_version(structure, raw.version.get().into())?;
        Ok(FileId(raw.owner.get()))
    }

    /// Reads the bytes of a file that should have the extended attributes of `owner`.
    pub fn parse(bytes: &[u8], owner: FileId) -> Result<Self, FormatError> {
        let structure = Structure::Extended;
        let field = |field| FormatError::Field { structure, field };
        let (head, mut rest) = bytes.split_at_checked(HEAD).ok_or(field("size"))?;
        let raw = RawExtended::ref_from_bytes(head).map_err(|_| field("size"))?;
        if raw.magic.get() != MAGIC {
            return Err(FormatError::Magic(structure));
        }
        layout::check_version(structure, raw.version.get().into())?;
        if raw.owner.get() != owner.0 {
            return Err(FormatError::Misplaced(structure));
        }
        if raw.reserved != [0; 2] || raw.reserved_end != [0; 8] {
            return Err(field("reserved byte"));
        }
        if raw.bytes.get() as usize != bytes.len() || bytes.len() > EXTENDED_BYTES_MAX {
            return Err(field("length"));
        }
        let mut values = BTreeMap::<Vec<u8>, Vec<u8>>::new();
        while !rest.is_empty() {
            let (name, value, after) = take_value(rest).ok_or(field("attribute"))?;
            if values.last_key_value().is_some_and(|(last, _)| last.as_slice() >= name) {
                return Err(field("order"));
            }
            values.insert(name.to_vec(), value.to_vec());
            rest = after;
        }
        if raw.count.get() as usize != values.len() {
            return Err(field("count"));
        }
        Ok(Self(values))
    }
}

/// A name, its value, and the rest.
fn take_value(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (head, rest) = bytes.split_at_checked(ENTRY)?;
    let raw = RawValue::ref_from_bytes(head).ok()?;
    let (name, rest) = rest.split_at_checked(raw.name_length.into())?;
    let (value, rest) = rest.split_at_checked(raw.value_length.get() as usize)?;
    let good = !name.is_empty() && !name.contains(&0) && value.len() <= EXTENDED_VALUE_MAX;
    (good && raw.reserved == [0; 3]).then_some((name, value, rest))
}
