//! Directory entries: a name and the file that it names. 32 fixed entries a block; an entry of
//! zeroes is free.

use cairn_base::FileId;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{BlockBytes, FormatError, Structure};

/// Entries in a block of a directory.
pub const ENTRIES_PER_BLOCK: usize = 32;
/// Longest name of a file, in bytes of UTF-8.
pub const MAX_FILE_NAME: usize = 112;

const SIZE: usize = 128;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawEntry {
    file: U64,
    name_length: u8,
    reserved: [u8; 7],
    name: [u8; MAX_FILE_NAME],
}

const _: () = assert!(size_of::<RawEntry>() == SIZE);

/// A name and its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// The file.
    pub file: FileId,
    /// Its name, 1 to 112 bytes.
    pub name: String,
}

impl DirectoryEntry {
    /// The entry in `slot` of a directory block; `None` when it is free.
    pub fn parse(block: &BlockBytes, slot: usize) -> Result<Option<Self>, FormatError> {
        let field = |field| FormatError::Field { structure: Structure::Directory, field };
        let bytes = block.get(slot * SIZE..(slot + 1) * SIZE).ok_or(field("slot"))?;
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let raw = RawEntry::ref_from_bytes(bytes).map_err(|_| field("size"))?;
        let (name, rest) = raw.name.split_at_checked(raw.name_length.into()).ok_or(field("name length"))?;
        let name = std::str::from_utf8(name).map_err(|_| field("name"))?;
        if raw.file.get() == 0 || name.is_empty() || rest.iter().any(|byte| *byte != 0) {
            return Err(field("name"));
        }
        if raw.reserved != [0; 7] {
            return Err(field("reserved byte"));
        }
        Ok(Some(Self { file: FileId(raw.file.get()), name: name.to_owned() }))
    }

    /// Writes `entry` (or a free slot) into `slot`. The name must have 1 to 112 bytes.
    pub fn put(entry: Option<&DirectoryEntry>, block: &mut BlockBytes, slot: usize) {
        let bytes = &mut block[slot * SIZE..(slot + 1) * SIZE];
        bytes.fill(0);
        if let Some(entry) = entry {
            let mut name = [0; MAX_FILE_NAME];
            name[..entry.name.len()].copy_from_slice(entry.name.as_bytes());
            let raw = RawEntry {
                file: entry.file.0.into(),
                name_length: entry.name.len() as u8,
                reserved: [0; 7],
                name,
            };
            bytes.copy_from_slice(raw.as_bytes());
        }
    }
}
