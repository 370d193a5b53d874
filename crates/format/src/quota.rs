//! The limits and the usage of quota trees: a block of the file of quotas each.

use cairn_base::FileId;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::layout::COUNTER_MAX;
use crate::{BlockBytes, FormatError, Structure, layout};

const MAGIC: u32 = u32::from_le_bytes(*b"CQTA");
const SIZE: usize = 64;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawQuota {
    magic: U32,
    version: U16,
    number: U16,
    directory: U64,
    limit_bytes: U64,
    limit_files: U64,
    used_blocks: U64,
    used_files: U64,
    reserved: [u8; 16],
}

const _: () = assert!(size_of::<RawQuota>() == SIZE);

/// A quota tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaRecord {
    /// Its top, which counts too.
    pub directory: FileId,
    /// Bytes that it may take, in whole blocks; 0 for as many as there are.
    pub limit_bytes: u64,
    /// Files that may be in it; 0 for as many as one likes.
    pub limit_files: u64,
    /// Blocks that its files take.
    pub used_blocks: u64,
    /// Files in it.
    pub used_files: u64,
}

impl QuotaRecord {
    /// The record of quota tree `number`; `None` when it has none.
    pub fn parse(block: &BlockBytes, number: u16) -> Result<Option<Self>, FormatError> {
        let structure = Structure::Quota;
        let field = |field| FormatError::Field { structure, field };
        let (head, rest) = block.split_at_checked(SIZE).ok_or(field("size"))?;
        let raw = RawQuota::ref_from_bytes(head).map_err(|_| field("size"))?;
        if block.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        if raw.magic.get() != MAGIC {
            return Err(FormatError::Magic(structure));
        }
        layout::check_version(structure, raw.version.get().into())?;
        if raw.number.get() != number {
            return Err(FormatError::Misplaced(structure));
        }
        if raw.reserved != [0; 16] || rest.iter().any(|byte| *byte != 0) {
            return Err(field("reserved byte"));
        }
        let directory = raw.directory.get();
        if !(1..COUNTER_MAX).contains(&directory) || number == 0 {
            return Err(field("directory"));
        }
        Ok(Some(Self {
            directory: FileId(directory),
            limit_bytes: raw.limit_bytes.get(),
            limit_files: raw.limit_files.get(),
            used_blocks: raw.used_blocks.get(),
            used_files: raw.used_files.get(),
        }))
    }

    /// Writes the record of quota tree `number`.
    pub fn write(&self, number: u16, block: &mut BlockBytes) {
        let raw = RawQuota {
            magic: MAGIC.into(),
            version: (layout::VERSION as u16).into(),
            number: number.into(),
            directory: self.directory.0.into(),
            limit_bytes: self.limit_bytes.into(),
            limit_files: self.limit_files.into(),
            used_blocks: self.used_blocks.into(),
            used_files: self.used_files.into(),
            reserved: [0; 16],
        };
        block.fill(0);
        block[..SIZE].copy_from_slice(raw.as_bytes());
    }
}
