//! The head of a part of an image dump: which dump it is, and which part of it. An image stream
//! follows.
//!
//! A dump is one file or several, its parts. Each part is a head, an image stream of its own with
//! its share of the blocks and with the whole snapshot table (first, and again before the trailer),
//! and both heads once more at the end. Data lost at one place is in another.

use cairn_base::{Checksum, Timestamp, VolumeId};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub use crate::layout::DUMP_VERSION;
use crate::sealed::{self, Sealed};
use crate::{FormatError, MAX_SNAPSHOT_NAME, Structure, layout};

/// Most parts of a dump.
pub const PARTS_MAX: u32 = 256;
/// Longest name of a volume, in bytes of UTF-8.
pub const MAX_VOLUME_NAME: usize = MAX_SNAPSHOT_NAME;

const MAGIC: [u8; 8] = *b"CAIRNDMP";
const AGAINST_SNAPSHOT: u32 = 10;

/// Names a dump; made at random.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct DumpId(pub [u8; 16]);

impl std::fmt::Display for DumpId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::fmt::Debug for DumpId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "dump:{self}")
    }
}

/// The base of a dump (OSDI 1999, section 3: levels as in BSD dump).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DumpLevel {
    /// 0: everything. 1 to 9: changes since the last dump of a lower level.
    Level(u8),
    /// Changes since a named snapshot.
    AgainstSnapshot,
}

impl std::fmt::Display for DumpLevel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DumpLevel::Level(level) => write!(f, "{level}"),
            DumpLevel::AgainstSnapshot => f.write_str("base"),
        }
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawDumpHeader {
    magic: [u8; 8],
    version: U32,
    level: U32,
    dump: [u8; 16],
    part: U32,
    parts: U32,
    volume: [u8; 16],
    blocks: U64,
    created_ns: U64,
    name_length: U16,
    reserved: [u8; 6],
    name: [u8; MAX_VOLUME_NAME],
    snapshots: U64,
    table_digest: Checksum,
    reserved_end: [u8; 8],
    checksum: Checksum,
}

const _: () = assert!(size_of::<RawDumpHeader>() == DumpHeader::SIZE);

impl Sealed for RawDumpHeader {
    const STRUCTURE: Structure = Structure::DumpHeader;
    const MAGIC: &'static [u8] = &MAGIC;
}

/// The head of a part of an image dump.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DumpHeader {
    /// Which dump.
    pub dump: DumpId,
    /// Which part of it, from 0.
    pub part: u32,
    /// How many parts it has, up to [`PARTS_MAX`].
    pub parts: u32,
    /// The base.
    pub level: DumpLevel,
    /// Whose image it is.
    pub volume: VolumeId,
    /// The name of that volume.
    pub name: String,
    /// Blocks in all parts.
    pub blocks: u64,
    /// When it was begun, by the writer's clock.
    pub created: Timestamp,
    /// Entries of the snapshot table.
    pub snapshots: u64,
    /// [`table_digest`](crate::stream::table_digest) of it.
    pub table_digest: Checksum,
}

impl DumpHeader {
    /// Bytes.
    pub const SIZE: usize = 256;

    /// Whether a file with this beginning may be an interrupted part, perhaps before its head was
    /// complete.
    pub fn may_begin(bytes: &[u8]) -> bool {
        bytes.iter().zip(MAGIC).all(|(found, expected)| *found == expected)
    }

    /// The head as bytes. A name that is too long is cut.
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let mut end = self.name.len().min(MAX_VOLUME_NAME);
        while !self.name.is_char_boundary(end) {
            end -= 1;
        }
        let mut name = [0; MAX_VOLUME_NAME];
        name[..end].copy_from_slice(&self.name.as_bytes()[..end]);
        let level = match self.level {
            DumpLevel::Level(level) => u32::from(level),
            DumpLevel::AgainstSnapshot => AGAINST_SNAPSHOT,
        };
        let raw = RawDumpHeader {
            magic: MAGIC,
            version: DUMP_VERSION.into(),
            level: level.into(),
            dump: self.dump.0,
            part: self.part.into(),
            parts: self.parts.into(),
            volume: self.volume.0,
            blocks: self.blocks.into(),
            created_ns: self.created.0.into(),
            name_length: (end as u16).into(),
            reserved: [0; 6],
            name,
            snapshots: self.snapshots.into(),
            table_digest: self.table_digest,
            reserved_end: [0; 8],
            checksum: Checksum::default(),
        };
        let mut bytes = [0; Self::SIZE];
        sealed::seal(&raw, &mut bytes);
        bytes
    }

    /// The head in `bytes`.
    pub fn parse(bytes: &[u8; Self::SIZE]) -> Result<Self, FormatError> {
        let field = |field| FormatError::Field { structure: Structure::DumpHeader, field };
        let raw = sealed::open(bytes, |_: &RawDumpHeader| true)?;
        let level = match raw.level.get() {
            AGAINST_SNAPSHOT => DumpLevel::AgainstSnapshot,
            level @ 0..=9 => DumpLevel::Level(level as u8),
            _ => return Err(field("level")),
        };
        let (part, parts) = (raw.part.get(), raw.parts.get());
        if part >= parts || parts > PARTS_MAX {
            return Err(field("part"));
        }
        if raw.reserved != [0; 6] || raw.reserved_end != [0; 8] {
            return Err(field("reserved byte"));
        }
        if raw.blocks.get() > layout::SPACE_BLOCKS_MAX || raw.snapshots.get() == 0 {
            return Err(field("count"));
        }
        let (name, rest) =
            raw.name.split_at_checked(usize::from(raw.name_length.get())).ok_or(field("name"))?;
        let name = std::str::from_utf8(name).map_err(|_| field("name"))?;
        if rest.iter().any(|byte| *byte != 0) {
            return Err(field("name"));
        }
        Ok(Self {
            dump: DumpId(raw.dump),
            part,
            parts,
            level,
            volume: VolumeId(raw.volume),
            name: name.to_owned(),
            blocks: raw.blocks.get(),
            created: Timestamp(raw.created_ns.get()),
            snapshots: raw.snapshots.get(),
            table_digest: raw.table_digest,
        })
    }
}
