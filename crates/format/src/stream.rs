//! The image stream: a header, then records, the last of which is the trailer. It needs no seek.
//!
//! A record is a header of 48 bytes with a CRC-32C of its own and a payload with an XXH3-128.
//! Extents name runs of blocks and carry their data. Snapshot records carry new or changed entries
//! and the ids of deleted ones. The trailer carries the digest of all previous records and of the
//! resulting snapshot table.

use cairn_base::{BLOCK_SIZE, Checksum, SnapshotId, Timestamp, Vbn, VolumeId, crc32c};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::dump::DumpId;
pub use crate::layout::STREAM_VERSION;
use crate::sealed::{self, Sealed};
use crate::{FormatError, SnapshotEntry, Structure, layout};

/// Blocks in one extents record: 1 MiB of data. A reader refuses more.
pub const RECORD_BLOCKS_MAX: usize = 256;
/// Snapshots in one record of entries or ids.
pub const RECORD_SNAPSHOTS_MAX: usize = 1024;
/// Longest payload of a record, in bytes.
pub const PAYLOAD_MAX: usize = RECORD_BLOCKS_MAX * (BLOCK_SIZE + StreamRun::SIZE) + BLOCK_SIZE;

const _: () = assert!(RECORD_SNAPSHOTS_MAX * SnapshotEntry::SIZE <= PAYLOAD_MAX);

const MAGIC: [u8; 8] = *b"CAIRNIMG";

/// The content of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamKind {
    /// Every block of every snapshot up to the target.
    Full,
    /// The blocks that a copy with the base lacks.
    Incremental,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawStreamHeader {
    magic: [u8; 8],
    version: U32,
    kind: U32,
    volume: [u8; 16],
    base: U64,
    base_digest: Checksum,
    target: U64,
    target_digest: Checksum,
    space_blocks: U64,
    changed_blocks: U64,
    created_ns: U64,
    reserved: [u8; 8],
    checksum: Checksum,
}

const _: () = assert!(size_of::<RawStreamHeader>() == StreamHeader::SIZE);

impl Sealed for RawStreamHeader {
    const STRUCTURE: Structure = Structure::StreamHeader;
    const MAGIC: &'static [u8] = &MAGIC;
}

/// The start of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamHeader {
    /// Whose image it is.
    pub volume: VolumeId,
    /// From nothing, or from a base.
    pub kind: StreamKind,
    /// The newest snapshot that a reader must have; 0 for a full stream.
    pub base: SnapshotId,
    /// [`root_digest`] of the base; zeroes for a full stream.
    pub base_digest: Checksum,
    /// The snapshot that becomes the active state.
    pub target: SnapshotId,
    /// [`root_digest`] of the target.
    pub target_digest: Checksum,
    /// Length of the volume's block space, in blocks.
    pub space_blocks: u64,
    /// Blocks that follow in extents.
    pub changed_blocks: u64,
    /// When it was begun, by the writer's clock.
    pub created: Timestamp,
}

impl StreamHeader {
    /// Bytes.
    pub const SIZE: usize = 128;

    /// The header as bytes.
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let kind: u32 = match self.kind {
            StreamKind::Full => 0,
            StreamKind::Incremental => 1,
        };
        let raw = RawStreamHeader {
            magic: MAGIC,
            version: STREAM_VERSION.into(),
            kind: kind.into(),
            volume: self.volume.0,
            base: self.base.0.into(),
            base_digest: self.base_digest,
            target: self.target.0.into(),
            target_digest: self.target_digest,
            space_blocks: self.space_blocks.into(),
            changed_blocks: self.changed_blocks.into(),
            created_ns: self.created.0.into(),
            reserved: [0; 8],
            checksum: Checksum::default(),
        };
        let mut bytes = [0; Self::SIZE];
        sealed::seal(&raw, &mut bytes);
        bytes
    }

    /// The header in `bytes`.
    pub fn parse(bytes: &[u8; Self::SIZE]) -> Result<Self, FormatError> {
        let field = |field| FormatError::Field { structure: Structure::StreamHeader, field };
        let raw = sealed::open(bytes, |_: &RawStreamHeader| true)?;
        let kind = match raw.kind.get() {
            0 => StreamKind::Full,
            1 => StreamKind::Incremental,
            _ => return Err(field("kind")),
        };
        if raw.reserved != [0; 8] || raw.target.get() == 0 {
            return Err(field("target or reserved byte"));
        }
        if raw.space_blocks.get() > layout::SPACE_BLOCKS_MAX
            || raw.changed_blocks.get() > layout::SPACE_BLOCKS_MAX
        {
            return Err(field("block count"));
        }
        Ok(Self {
            volume: VolumeId(raw.volume),
            kind,
            base: SnapshotId(raw.base.get()),
            base_digest: raw.base_digest,
            target: SnapshotId(raw.target.get()),
            target_digest: raw.target_digest,
            space_blocks: raw.space_blocks.get(),
            changed_blocks: raw.changed_blocks.get(),
            created: Timestamp(raw.created_ns.get()),
        })
    }
}

/// The kind of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordKind {
    /// Runs and the data of their blocks.
    Extents,
    /// Snapshot entries that are new or changed.
    Entries,
    /// Ids of snapshots that exist no longer.
    Gone,
    /// The trailer; nothing follows.
    Trailer,
    /// The writer aborted; nothing follows. `items` has the reason.
    Abort,
}

/// How a record's blocks are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// Uncompressed.
    Plain,
    /// One zstd frame.
    Zstd,
    /// Uncompressed, after less than 4 KiB of zeroes: at a multiple of 4 KiB of a dump's part, so
    /// that they go from disk to disk without being copied.
    Aligned,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawRecordHeader {
    kind: U32,
    encoding: U32,
    sequence: U64,
    items: U32,
    blocks: U32,
    payload: U32,
    crc: U32,
    checksum: Checksum,
}

const _: () = assert!(size_of::<RawRecordHeader>() == RecordHeader::SIZE);

/// The head of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordHeader {
    /// Its kind.
    pub kind: RecordKind,
    /// How blocks are stored.
    pub encoding: Encoding,
    /// Its number, from 0.
    pub sequence: u64,
    /// Runs, entries or ids.
    pub items: u32,
    /// Blocks of all its runs.
    pub blocks: u32,
    /// Bytes that follow.
    pub payload: u32,
    /// XXH3-128 of them as stored.
    pub checksum: Checksum,
}

impl RecordHeader {
    /// Bytes.
    pub const SIZE: usize = 48;
    const CRC_AT: usize = 28;

    /// The header as bytes.
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let kind: u32 = match self.kind {
            RecordKind::Extents => 1,
            RecordKind::Entries => 2,
            RecordKind::Gone => 3,
            RecordKind::Trailer => 4,
            RecordKind::Abort => 5,
        };
        let encoding: u32 = match self.encoding {
            Encoding::Plain => 0,
            Encoding::Zstd => 1,
            Encoding::Aligned => 2,
        };
        let raw = RawRecordHeader {
            kind: kind.into(),
            encoding: encoding.into(),
            sequence: self.sequence.into(),
            items: self.items.into(),
            blocks: self.blocks.into(),
            payload: self.payload.into(),
            crc: 0.into(),
            checksum: self.checksum,
        };
        let mut bytes = [0; Self::SIZE];
        bytes.copy_from_slice(raw.as_bytes());
        let crc = crc32c(&bytes).to_le_bytes();
        bytes[Self::CRC_AT..Self::CRC_AT + 4].copy_from_slice(&crc);
        bytes
    }

    /// The header as bytes in a dump, whose id is mixed into the CRC: data of a LUN that contains
    /// another dump is not mistaken for a record of this one.
    pub fn to_bytes_in(&self, dump: DumpId) -> [u8; Self::SIZE] {
        let mut bytes = self.to_bytes();
        mix(&mut bytes, dump);
        bytes
    }

    /// The header in `bytes` of a dump.
    pub fn parse_in(bytes: &[u8; Self::SIZE], dump: DumpId) -> Result<Self, FormatError> {
        let mut copy = *bytes;
        mix(&mut copy, dump);
        Self::parse(&copy)
    }

    /// The header in `bytes`, with counts within the limits of the format.
    pub fn parse(bytes: &[u8; Self::SIZE]) -> Result<Self, FormatError> {
        let structure = Structure::StreamRecord;
        let field = |field| FormatError::Field { structure, field };
        let raw = RawRecordHeader::ref_from_bytes(bytes).map_err(|_| field("size"))?;
        let mut copy = *bytes;
        copy[Self::CRC_AT..Self::CRC_AT + 4].fill(0);
        if crc32c(&copy) != raw.crc.get() {
            return Err(FormatError::Checksum(structure));
        }
        let kind = match raw.kind.get() {
            1 => RecordKind::Extents,
            2 => RecordKind::Entries,
            3 => RecordKind::Gone,
            4 => RecordKind::Trailer,
            5 => RecordKind::Abort,
            _ => return Err(field("kind")),
        };
        let encoding = match raw.encoding.get() {
            0 => Encoding::Plain,
            1 if kind == RecordKind::Extents => Encoding::Zstd,
            2 if kind == RecordKind::Extents => Encoding::Aligned,
            _ => return Err(field("encoding")),
        };
        let header = Self {
            kind,
            encoding,
            sequence: raw.sequence.get(),
            items: raw.items.get(),
            blocks: raw.blocks.get(),
            payload: raw.payload.get(),
            checksum: raw.checksum,
        };
        if !header.is_sane() {
            return Err(field("length"));
        }
        // An aborting writer has no number for that.
        if header.sequence >= layout::COUNTER_MAX && kind != RecordKind::Abort {
            return Err(field("sequence"));
        }
        Ok(header)
    }

    /// Where in the payload of extents the data of their blocks begins.
    pub fn data_at(&self) -> usize {
        match self.encoding {
            Encoding::Plain | Encoding::Zstd => self.items as usize * StreamRun::SIZE,
            Encoding::Aligned => (self.payload as usize).saturating_sub(self.blocks as usize * BLOCK_SIZE),
        }
    }

    fn is_sane(&self) -> bool {
        let (items, blocks, payload) = (self.items as usize, self.blocks as usize, self.payload as usize);
        if payload > PAYLOAD_MAX {
            return false;
        }
        let runs = items.saturating_mul(StreamRun::SIZE);
        match self.kind {
            RecordKind::Extents => {
                let counts = items > 0 && items <= blocks && blocks <= RECORD_BLOCKS_MAX;
                let data = blocks.saturating_mul(BLOCK_SIZE);
                counts
                    && match self.encoding {
                        Encoding::Plain => payload == runs + data,
                        Encoding::Zstd => payload > runs && payload < runs + data,
                        Encoding::Aligned => (runs + data..runs + data + BLOCK_SIZE).contains(&payload),
                    }
            }
            RecordKind::Entries => {
                items <= RECORD_SNAPSHOTS_MAX && blocks == 0 && payload == items * SnapshotEntry::SIZE
            }
            RecordKind::Gone => items <= RECORD_SNAPSHOTS_MAX && blocks == 0 && payload == items * 8,
            RecordKind::Trailer => items == 0 && blocks == 0 && payload == StreamTrailer::SIZE,
            RecordKind::Abort => blocks == 0 && payload == 0,
        }
    }
}

/// Mixes a dump's id into the CRC of a record's header, or takes it out again.
fn mix(bytes: &mut [u8; RecordHeader::SIZE], dump: DumpId) {
    let salt = crc32c(&dump.0).to_le_bytes();
    let crc = &mut bytes[RecordHeader::CRC_AT..RecordHeader::CRC_AT + 4];
    crc.iter_mut().zip(salt).for_each(|(byte, salt)| *byte ^= salt);
}

/// A run of blocks in an extents record.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub struct StreamRun {
    first: U64,
    count: U32,
}

impl StreamRun {
    /// Bytes.
    pub const SIZE: usize = size_of::<StreamRun>();

    /// `count` blocks from `first`.
    pub fn new(first: Vbn, count: u32) -> Self {
        Self { first: first.0.into(), count: count.into() }
    }

    /// The run as bytes.
    pub fn bytes(&self) -> &[u8] {
        self.as_bytes()
    }

    /// The runs at the start of an extents record's payload, of `header.blocks` blocks in all.
    pub fn parse_all(header: &RecordHeader, payload: &[u8]) -> Result<Vec<(Vbn, u32)>, FormatError> {
        let structure = Structure::StreamRecord;
        let field = |field| FormatError::Field { structure, field };
        let table = payload.get(..header.items as usize * Self::SIZE).ok_or(field("length"))?;
        let mut blocks = 0u64;
        let mut runs = Vec::with_capacity(header.items as usize);
        for bytes in table.chunks_exact(Self::SIZE) {
            let raw = StreamRun::ref_from_bytes(bytes).map_err(|_| field("run"))?;
            let (first, count) = (raw.first.get(), raw.count.get());
            if first == 0 || count == 0 || first > layout::SPACE_BLOCKS_MAX {
                return Err(field("run"));
            }
            blocks += u64::from(count);
            runs.push((Vbn(first), count));
        }
        if blocks != u64::from(header.blocks) {
            return Err(field("block count"));
        }
        Ok(runs)
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawTrailer {
    records: U64,
    blocks: U64,
    digest: Checksum,
    table_digest: Checksum,
}

const _: () = assert!(size_of::<RawTrailer>() == StreamTrailer::SIZE);

/// The end of a stream: the totals of the whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamTrailer {
    /// Records before this one.
    pub records: u64,
    /// Blocks in all extents.
    pub blocks: u64,
    /// A chain over the header and every record's head, which carries the checksum of its payload.
    pub digest: Checksum,
    /// [`table_digest`] of the snapshot table that the reader must have now.
    pub table_digest: Checksum,
}

impl StreamTrailer {
    /// Bytes.
    pub const SIZE: usize = 48;

    /// The trailer as bytes.
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let raw = RawTrailer {
            records: self.records.into(),
            blocks: self.blocks.into(),
            digest: self.digest,
            table_digest: self.table_digest,
        };
        let mut bytes = [0; Self::SIZE];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }

    /// The trailer in `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<Self, FormatError> {
        let field = FormatError::Field { structure: Structure::StreamRecord, field: "trailer" };
        let raw = RawTrailer::ref_from_bytes(bytes).map_err(|_| field)?;
        if raw.records.get() >= layout::COUNTER_MAX {
            return Err(field);
        }
        Ok(Self {
            records: raw.records.get(),
            blocks: raw.blocks.get(),
            digest: raw.digest,
            table_digest: raw.table_digest,
        })
    }
}

/// The next link of the chain over a stream.
pub fn chain_digest(digest: Checksum, bytes: &[u8]) -> Checksum {
    let mut both = Vec::with_capacity(16 + bytes.len());
    both.extend_from_slice(&digest.0);
    both.extend_from_slice(bytes);
    Checksum::of(&both)
}

/// The identity of a snapshot without the parts that its owner can change (name, hold, parent): its
/// id and its root.
pub fn root_digest(entry: &SnapshotEntry) -> Checksum {
    let content = SnapshotEntry { parent: SnapshotId(0), held: false, name: "-".to_owned(), ..entry.clone() };
    Checksum::of(&content.to_bytes())
}

/// A snapshot with all fields of its table entry.
pub fn entry_digest(entry: &SnapshotEntry) -> Checksum {
    Checksum::of(&entry.to_bytes())
}

/// A whole snapshot table; `entries` in order of id.
pub fn table_digest<'a>(entries: impl Iterator<Item = &'a SnapshotEntry>) -> Checksum {
    entries.fold(Checksum::default(), |digest, entry| chain_digest(digest, &entry.to_bytes()))
}

/// The ids in the payload of a record of deleted snapshots.
pub fn parse_ids(payload: &[u8]) -> impl Iterator<Item = SnapshotId> + '_ {
    payload.chunks_exact(8).map(|bytes| {
        let mut raw = [0; 8];
        raw.copy_from_slice(bytes);
        SnapshotId(u64::from_le_bytes(raw))
    })
}
