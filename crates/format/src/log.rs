//! Records of the intent log: the writes since the last consistency point, a few bytes a block.
//!
//! A record takes whole blocks and is never overwritten before a superblock has moved the tail past
//! it. It states up to which sequence the log was durable when it was written. So replay can
//! distinguish a torn end of the log (a power cut, to be ignored) from damage in the middle of it
//! (to be reported).

use cairn_base::{BLOCK_SIZE, Checksum, FileId, Generation, Lba, Vbn, VolumeId, crc32c};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{FormatError, Inode, Structure, layout};

/// Entries that fit next to the header into the first block of a record.
pub const ENTRIES_PER_FIRST_BLOCK: usize = (BLOCK_SIZE - HEADER) / ENTRY;

const MAGIC: u32 = u32::from_le_bytes(*b"CLOG");
const HEADER: usize = 64;
const ENTRY: usize = 48;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawHeader {
    magic: U32,
    version: U16,
    continues: U16,
    volume: [u8; 16],
    sequence: U64,
    generation: U64,
    durable_through: U64,
    entries: U32,
    crc: U32,
    reserved_end: [u8; 8],
}

const _: () = assert!(size_of::<RawHeader>() == HEADER);

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawEntry {
    kind: u8,
    reserved: [u8; 7],
    file: U64,
    lba: U64,
    value: U64,
    checksum: Checksum,
}

const _: () = assert!(size_of::<RawEntry>() == ENTRY);

/// One change of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogEntry {
    /// Block `lba` of `file` is now at `vbn`.
    Write {
        /// The file.
        file: FileId,
        /// The block in the file.
        lba: Lba,
        /// Where its new content is.
        vbn: Vbn,
        /// The checksum of that content.
        checksum: Checksum,
    },
    /// `count` blocks from `lba` are now a hole.
    Hole {
        /// The file.
        file: FileId,
        /// First block.
        lba: Lba,
        /// Blocks.
        count: u64,
    },
    /// The new state of a file of the tree of names: made, changed or removed. Its blocks are its
    /// present ones, and those that other entries name; the tree in it is empty
    /// ([`Inode::is_as_logged`]).
    Inode(Inode),
}

impl LogEntry {
    /// Places of a record that it takes.
    pub fn slots(&self) -> usize {
        if matches!(self, LogEntry::Inode(_)) { 2 } else { 1 }
    }
}

/// The fields of a record's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogRecordHeader {
    /// The number of the record in the volume's life; no gaps.
    pub sequence: u64,
    /// The generation that its changes belong to: a root of that generation or a later one has
    /// them.
    pub generation: Generation,
    /// Every record up to this one was durable when this one was written.
    pub durable_through: u64,
    /// Slots of entries in it: two of an inode's, one of any other.
    pub entries: u32,
    /// The entries of this record and of the next one hold together, or not at all.
    pub continues: bool,
}

impl LogRecordHeader {
    /// Reads the header at the start of `bytes`, including the number of blocks of the record. Only
    /// magic, version and volume are checked: [`LogRecord::parse`] checks the rest.
    pub fn peek(bytes: &[u8], volume: VolumeId) -> Result<(Self, u64), FormatError> {
        let structure = Structure::LogRecord;
        let (raw, _) = RawHeader::ref_from_prefix(bytes).map_err(|_| FormatError::Magic(structure))?;
        if raw.magic.get() != MAGIC {
            return Err(FormatError::Magic(structure));
        }
        // The volume first: a later block of a record may begin with numbers that a client chose,
        // and those must not look like a newer version, which would keep the volume from opening.
        if raw.volume != volume.0 {
            return Err(FormatError::Misplaced(structure));
        }
        layout::check_version(structure, raw.version.get().into())?;
        let header = Self {
            sequence: raw.sequence.get(),
            generation: Generation(raw.generation.get()),
            durable_through: raw.durable_through.get(),
            entries: raw.entries.get(),
            continues: raw.continues.get() == 1,
        };
        Ok((header, LogRecord::blocks_for(header.entries as usize)))
    }
}

/// A record: its header and its entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRecord {
    /// Its header.
    pub header: LogRecordHeader,
    /// The changes, in order.
    pub entries: Vec<LogEntry>,
}

impl LogRecord {
    /// Slots that entries take.
    pub fn slots(entries: &[LogEntry]) -> usize {
        entries.iter().map(LogEntry::slots).sum()
    }

    /// Blocks that a record with this many slots takes.
    pub fn blocks_for(slots: usize) -> u64 {
        ((HEADER + slots * ENTRY) as u64).div_ceil(BLOCK_SIZE as u64)
    }

    /// The record as bytes: whole blocks.
    pub fn to_bytes(&self, volume: VolumeId) -> Vec<u8> {
        let slots = Self::slots(&self.entries);
        let mut bytes = vec![0; Self::blocks_for(slots) as usize * BLOCK_SIZE];
        let mut places = bytes[HEADER..].chunks_exact_mut(ENTRY);
        let mut put = |slot: &[u8]| {
            if let Some(place) = places.next() {
                place.copy_from_slice(slot);
            }
        };
        for entry in &self.entries {
            match entry {
                LogEntry::Inode(inode) => inode.to_log().iter().for_each(|slot| put(slot)),
                LogEntry::Write { .. } | LogEntry::Hole { .. } => put(raw_entry(entry).as_bytes()),
            }
        }
        let mut raw = RawHeader {
            magic: MAGIC.into(),
            version: (layout::VERSION as u16).into(),
            continues: u16::from(self.header.continues).into(),
            volume: volume.0,
            sequence: self.header.sequence.into(),
            generation: self.header.generation.0.into(),
            durable_through: self.header.durable_through.into(),
            entries: (slots as u32).into(),
            crc: 0.into(),
            reserved_end: [0; 8],
        };
        bytes[..HEADER].copy_from_slice(raw.as_bytes());
        raw.crc = crc32c(&bytes).into();
        bytes[..HEADER].copy_from_slice(raw.as_bytes());
        bytes
    }

    /// Checks and reads the record that `bytes` (its whole blocks) hold.
    pub fn parse(bytes: &[u8], volume: VolumeId) -> Result<Self, FormatError> {
        let structure = Structure::LogRecord;
        let (header, blocks) = LogRecordHeader::peek(bytes, volume)?;
        let bytes = usize::try_from(blocks)
            .ok()
            .and_then(|blocks| bytes.get(..blocks.checked_mul(BLOCK_SIZE)?))
            .ok_or(FormatError::Field { structure, field: "length" })?;
        let (raw, _) = RawHeader::ref_from_prefix(bytes).map_err(|_| FormatError::Magic(structure))?;
        let mut copy = bytes.to_vec();
        // The checksum was taken with its own field zero.
        copy[HEADER - 12..HEADER - 8].fill(0);
        if crc32c(&copy) != raw.crc.get() {
            return Err(FormatError::Checksum(structure));
        }
        let unused = bytes.get(HEADER + header.entries as usize * ENTRY..).unwrap_or(&[]);
        let reserved = raw.continues.get() <= 1 && raw.reserved_end == [0; 8];
        if !reserved || unused.iter().any(|byte| *byte != 0) {
            return Err(FormatError::Field { structure, field: "reserved byte" });
        }
        let mut slots = bytes[HEADER..].chunks_exact(ENTRY).take(header.entries as usize);
        let mut entries = Vec::with_capacity(header.entries as usize);
        while let Some(slot) = slots.next() {
            entries.push(match slot.first() {
                Some(3) => {
                    let inode = slots.next().and_then(|second| Inode::from_log(slot, second));
                    LogEntry::Inode(inode.ok_or(FormatError::Field { structure, field: "inode" })?)
                }
                _ => parse_entry(slot)?,
            });
        }
        Ok(Self { header, entries })
    }
}

fn raw_entry(entry: &LogEntry) -> RawEntry {
    let (kind, file, lba, value, checksum) = match *entry {
        LogEntry::Write { file, lba, vbn, checksum } => (1, file, lba, vbn.0, checksum),
        LogEntry::Hole { file, lba, count } => (2, file, lba, count, Checksum::default()),
        LogEntry::Inode(_) => unreachable!("an inode has a form of its own"),
    };
    RawEntry { kind, reserved: [0; 7], file: file.0.into(), lba: lba.0.into(), value: value.into(), checksum }
}

fn parse_entry(bytes: &[u8]) -> Result<LogEntry, FormatError> {
    let field = |field| FormatError::Field { structure: Structure::LogRecord, field };
    let raw = RawEntry::ref_from_bytes(bytes).map_err(|_| field("entry"))?;
    if raw.reserved != [0; 7] {
        return Err(field("reserved byte"));
    }
    let (file, lba, value) = (FileId(raw.file.get()), Lba(raw.lba.get()), raw.value.get());
    // Beyond are the files without an inode, which no record changes.
    if file.0 >= layout::COUNTER_MAX {
        return Err(field("file"));
    }
    let is_beyond = |end: u64| end > layout::COUNTER_MAX;
    match raw.kind {
        1 if value == 0 => Err(field("block number")),
        1 if is_beyond(lba.0) => Err(field("block of a file")),
        1 => Ok(LogEntry::Write { file, lba, vbn: Vbn(value), checksum: raw.checksum }),
        2 if lba.0.checked_add(value).is_none_or(is_beyond) || raw.checksum != Checksum::default() => {
            Err(field("hole"))
        }
        2 => Ok(LogEntry::Hole { file, lba, count: value }),
        _ => Err(field("entry kind")),
    }
}
