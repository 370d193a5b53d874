//! A history store: its superblock, its segments, and the records in them. `docs/format.md` is its
//! prose.
//!
//! A store is a superblock in two slots and up to 8192 segments of one size. A segment is a block
//! that identifies it, records one after the other, and, once it is full, a summary of their
//! entries and an end block. All of it is written once: a segment is reused only after the
//! superblock no longer names it.

use cairn_base::{BLOCK_SIZE, Checksum, HistoryId, crc32c};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::sealed::{self, Sealed};
use crate::{BlockBytes, FormatError, Structure, layout};

/// First superblock slot, in blocks from the start of the store.
pub const SLOT_A: u64 = 0;
/// Second superblock slot, far from the first.
pub const SLOT_B: u64 = 16;
/// First block of the first segment.
pub const SEGMENTS_START: u64 = 32;
/// Most segments of a store: one bit of the superblock for each.
pub const HISTORY_SEGMENTS_MAX: u64 = 8192;
/// Fewest segments of a store: one that is written, one that is freed, and reserves for both.
pub const HISTORY_SEGMENTS_MIN: u64 = 8;
/// Fewest blocks of a segment: 256 KiB, so that a record of a few of the largest blocks fits.
pub const SEGMENT_BLOCKS_MIN: u64 = 64;
/// Most blocks of a segment: 1 GiB, so that a place in it has 32 bits in units of 512 bytes.
pub const SEGMENT_BLOCKS_MAX: u64 = 1 << 18;
/// Reverts whose background copy is not over.
pub const REVERTS_MAX: usize = 8;
/// Steps of retention.
pub const THINNED_MAX: usize = 4;
/// The place in the index for entries without a block. Block numbers are below.
pub const NO_LBA: u64 = (1 << 40) - 1;
/// Longest name of a mark, in bytes.
pub const MARK_NAME_MAX: usize = 64;
/// Units of places in a segment, in bytes.
pub const PLACE_UNIT: u64 = 512;
/// Bytes of the largest block of a history.
pub const HISTORY_BLOCK_MAX: u32 = 1 << 16;

const SUPERBLOCK_MAGIC: [u8; 8] = *b"CAIRNHIS";
const SEGMENT_MAGIC: [u8; 8] = *b"CHISSEGM";
const RECORD_MAGIC: u32 = u32::from_le_bytes(*b"CHIR");
const MARK_MAGIC: u32 = u32::from_le_bytes(*b"CHIM");
const HEADER: usize = 64;
const ENTRY: usize = 32;
const MAP: usize = (HISTORY_SEGMENTS_MAX / 8) as usize;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Default)]
#[repr(C)]
struct RawRevert {
    time: U64,
    target: U64,
    cursor: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Default)]
#[repr(C)]
struct RawThinned {
    after_ns: U64,
    every_ns: U64,
    until_ns: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawSuperblock {
    magic: [u8; 8],
    version: U32,
    placement: u8,
    granularity: u8,
    floor_policy: u8,
    reduction: u8,
    store: [u8; 16],
    address: U64,
    sequence: U64,
    block_bytes: U32,
    segment_blocks: U32,
    segments: U64,
    origin_bytes: U64,
    granularity_ns: U64,
    window_ns: U64,
    window_bytes: U64,
    floor_ns: U64,
    created_ns: U64,
    start_ns: U64,
    cut_ns: U64,
    last_ns: U64,
    durable_through: U64,
    reverts: [RawRevert; REVERTS_MAX],
    live: [u8; MAP],
    thinned: [RawThinned; THINNED_MAX],
    ahead: [u8; MAP],
    ahead_from: U64,
    reserved_end: [u8; 1592],
    checksum: Checksum,
}

const _: () = assert!(size_of::<RawSuperblock>() == BLOCK_SIZE);

impl Sealed for RawSuperblock {
    const STRUCTURE: Structure = Structure::HistoryStore;
    const MAGIC: &'static [u8] = &SUPERBLOCK_MAGIC;
}

/// Where versions go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Placement {
    /// Copy-on-write: overwritten content goes to the history first.
    Checkpointing,
    /// Redirect-on-write: writes go to the history, the origin stays.
    Logging,
    /// Writes go to the history and to the origin, each with a cache of its own.
    SplitStream,
    /// Writes go to both when they leave the cache.
    SplitDownStream,
    /// Checkpointing or split-down-stream, whichever each region's temporal distances make cheaper.
    Hybrid,
}

impl Placement {
    /// All of them.
    pub const ALL: [Placement; 5] = [
        Placement::Checkpointing,
        Placement::Logging,
        Placement::SplitStream,
        Placement::SplitDownStream,
        Placement::Hybrid,
    ];

    fn code(self) -> u8 {
        match self {
            Placement::Checkpointing => 1,
            Placement::Logging => 2,
            Placement::SplitStream => 3,
            Placement::SplitDownStream => 4,
            Placement::Hybrid => 5,
        }
    }

    fn of(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|placement| placement.code() == code)
    }

    /// True where the present is on the origin, which can then be used without Cairn.
    pub fn has_current_store(self) -> bool {
        self != Placement::Logging
    }
}

/// Which instants are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Granularity {
    /// Between any two writes.
    EveryWrite,
    /// The end of each stretch of this many nanoseconds since 1970 UTC, above 0; and marks.
    Interval(u64),
    /// Marks.
    Marks,
}

/// The behaviour of a write that finds no room without discarding history that its owner wants
/// kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FloorPolicy {
    /// It waits until the history has grown old enough.
    Wait,
    /// It fails: no space.
    Fail,
}

/// How contents are reduced on their way into the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reduction {
    /// A version is stored as a difference from an earlier one of its block, if that is smaller.
    pub xor: bool,
    /// A content that the segment has already is not stored again.
    pub identical: bool,
}

impl Reduction {
    /// Contents are stored unreduced.
    pub const NONE: Reduction = Reduction { xor: false, identical: false };

    fn code(self) -> u8 {
        u8::from(self.xor) | u8::from(self.identical) << 1
    }

    fn of(code: u8) -> Option<Self> {
        (code < 4).then_some(Self { xor: code & 1 == 1, identical: code & 2 == 2 })
    }
}

/// A revert whose background copy is not over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RevertState {
    /// When it was made: a place in history.
    pub time: u64,
    /// The restored instant.
    pub target: u64,
    /// Blocks before this one are copied.
    pub cursor: u64,
}

/// A step of retention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thinned {
    /// History older than this ...
    pub after_ns: u64,
    /// ... keeps the ends of intervals of this length only.
    pub every_ns: u64,
    /// How far that has been done: the end of such an interval; 0 for not at all.
    pub until_ns: u64,
}

/// The superblock of a history store. Times are nanoseconds since 1970 UTC, by the history's own
/// clock, which never goes back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistorySuperblock {
    /// Whose it is.
    pub store: HistoryId,
    /// Counts writes of the superblock.
    pub sequence: u64,
    /// Where versions go.
    pub placement: Placement,
    /// Which instants are kept.
    pub granularity: Granularity,
    /// The behaviour at the floor.
    pub floor_policy: FloorPolicy,
    /// How contents are reduced from now on. Entries that were reduced before stay so.
    pub reduction: Reduction,
    /// A power of two from 512 B to 64 KiB.
    pub block_bytes: u32,
    /// Blocks of 4 KiB in a segment.
    pub segment_blocks: u64,
    /// Segments in the store.
    pub segments: u64,
    /// Of the device that remembers.
    pub origin_bytes: u64,
    /// How long history is kept; 0 is as long as there is room.
    pub window_ns: u64,
    /// How much of the store it may take; 0 is all.
    pub window_bytes: u64,
    /// The history that is kept even when room runs out; 0 for none.
    pub floor_ns: u64,
    /// When it began.
    pub created_ns: u64,
    /// The oldest instant that can be reached.
    pub start_ns: u64,
    /// Entries up to this time do not count.
    pub cut_ns: u64,
    /// No entry of the log that was durable at this write is later.
    pub last_ns: u64,
    /// Every record up to this one was durable at this write.
    pub durable_through: u64,
    /// In the order in which they were made.
    pub reverts: Vec<RevertState>,
    /// Steps of retention, the youngest first.
    pub thinned: Vec<Thinned>,
    /// One bit for each segment: it belongs to the log.
    pub live: Vec<bool>,
    /// One bit for each segment that belongs to the log: it had not begun at this write, and may
    /// have since.
    pub ahead: Vec<bool>,
    /// Where such a segment has begun, its sequence is at least this; a lower one is of an earlier
    /// life.
    pub ahead_from: u64,
}

impl HistorySuperblock {
    /// Checks and reads the slot that was read from block `address`.
    pub fn parse(bytes: &BlockBytes, address: u64) -> Result<Self, FormatError> {
        let field = |field| FormatError::Field { structure: Structure::HistoryStore, field };
        let raw = sealed::open(bytes, |raw: &RawSuperblock| raw.address.get() == address)?;
        if raw.reserved_end.iter().any(|byte| *byte != 0) {
            return Err(field("reserved byte"));
        }
        let granularity = match (raw.granularity, raw.granularity_ns.get()) {
            (1, 0) => Granularity::EveryWrite,
            (2, ns) if ns > 0 => Granularity::Interval(ns),
            (3, 0) => Granularity::Marks,
            _ => return Err(field("granularity")),
        };
        let floor_policy = match raw.floor_policy {
            1 => FloorPolicy::Wait,
            2 => FloorPolicy::Fail,
            _ => return Err(field("floor policy")),
        };
        let segments = raw.segments.get();
        let segment_blocks = u64::from(raw.segment_blocks.get());
        if !(HISTORY_SEGMENTS_MIN..=HISTORY_SEGMENTS_MAX).contains(&segments)
            || !(SEGMENT_BLOCKS_MIN..=SEGMENT_BLOCKS_MAX).contains(&segment_blocks)
        {
            return Err(field("segments"));
        }
        let block_bytes = raw.block_bytes.get();
        if !is_block_size(block_bytes) {
            return Err(field("block size"));
        }
        let origin_bytes = raw.origin_bytes.get();
        if origin_bytes.div_ceil(u64::from(block_bytes)) >= NO_LBA {
            return Err(field("origin"));
        }
        let times =
            [raw.created_ns, raw.start_ns, raw.cut_ns, raw.last_ns, raw.durable_through, raw.sequence];
        if times.iter().any(|value| value.get() >= u64::MAX / 2) {
            return Err(field("time"));
        }
        if raw.cut_ns.get() > raw.start_ns.get() {
            return Err(field("time"));
        }
        let (live, ahead) = (read_map(&raw.live), read_map(&raw.ahead));
        if live[segments as usize..].contains(&true) {
            return Err(field("live segments"));
        }
        let ahead_from = raw.ahead_from.get();
        let known = ahead.iter().zip(&live).all(|(ahead, live)| *live || !*ahead);
        if !known || ahead_from >= layout::COUNTER_MAX {
            return Err(field("segments ahead"));
        }
        let mut reverts: Vec<RevertState> = Vec::new();
        for (index, revert) in raw.reverts.iter().enumerate() {
            let (time, target, cursor) = (revert.time.get(), revert.target.get(), revert.cursor.get());
            let known = RevertState { time, target, cursor };
            if known == (RevertState { time: 0, target: 0, cursor: 0 }) {
                continue;
            }
            let in_order = index == reverts.len() && reverts.last().is_none_or(|last| last.time < time);
            if !in_order || target >= time || time >= u64::MAX / 2 || cursor > NO_LBA {
                return Err(field("revert"));
            }
            reverts.push(known);
        }
        // A write after a revert has a later stamp.
        if reverts.last().is_some_and(|last| last.time > raw.last_ns.get()) {
            return Err(field("time"));
        }
        let mut thinned: Vec<Thinned> = Vec::new();
        for (index, step) in raw.thinned.iter().enumerate() {
            let (after_ns, every_ns, until_ns) =
                (step.after_ns.get(), step.every_ns.get(), step.until_ns.get());
            if (after_ns, every_ns, until_ns) == (0, 0, 0) {
                continue;
            }
            let follows = thinned.last().is_none_or(|last| {
                last.after_ns < after_ns && last.every_ns < every_ns && last.until_ns >= until_ns
            });
            let is_end =
                until_ns == 0 || until_ns.checked_add(1).is_some_and(|end| end.is_multiple_of(every_ns));
            let sane = every_ns > 0
                && after_ns >= every_ns
                && [after_ns, until_ns].iter().all(|ns| *ns < u64::MAX / 2);
            if index != thinned.len() || !sane || !follows || !is_end {
                return Err(field("retention"));
            }
            thinned.push(Thinned { after_ns, every_ns, until_ns });
        }
        Ok(Self {
            store: HistoryId(raw.store),
            sequence: raw.sequence.get(),
            placement: Placement::of(raw.placement).ok_or(field("placement"))?,
            granularity,
            floor_policy,
            reduction: Reduction::of(raw.reduction).ok_or(field("reduction"))?,
            block_bytes,
            segment_blocks,
            segments,
            origin_bytes,
            window_ns: raw.window_ns.get(),
            window_bytes: raw.window_bytes.get(),
            floor_ns: raw.floor_ns.get(),
            created_ns: raw.created_ns.get(),
            start_ns: raw.start_ns.get(),
            cut_ns: raw.cut_ns.get(),
            last_ns: raw.last_ns.get(),
            durable_through: raw.durable_through.get(),
            reverts,
            thinned,
            live: live[..segments as usize].to_vec(),
            ahead: ahead[..segments as usize].to_vec(),
            ahead_from,
        })
    }

    /// The slot as bytes for block `address`; panics with more than [`REVERTS_MAX`] reverts or
    /// [`THINNED_MAX`] steps.
    pub fn write(&self, bytes: &mut BlockBytes, address: u64) {
        let (granularity, granularity_ns) = match self.granularity {
            Granularity::EveryWrite => (1, 0),
            Granularity::Interval(ns) => (2, ns),
            Granularity::Marks => (3, 0),
        };
        let mut reverts = [RawRevert::default(); REVERTS_MAX];
        assert!(self.reverts.len() <= REVERTS_MAX, "a superblock holds {REVERTS_MAX} reverts");
        for (place, revert) in reverts.iter_mut().zip(&self.reverts) {
            *place = RawRevert {
                time: revert.time.into(),
                target: revert.target.into(),
                cursor: revert.cursor.into(),
            };
        }
        let mut thinned = [RawThinned::default(); THINNED_MAX];
        assert!(self.thinned.len() <= THINNED_MAX, "a superblock holds {THINNED_MAX} steps of retention");
        for (place, step) in thinned.iter_mut().zip(&self.thinned) {
            *place = RawThinned {
                after_ns: step.after_ns.into(),
                every_ns: step.every_ns.into(),
                until_ns: step.until_ns.into(),
            };
        }
        let raw = RawSuperblock {
            magic: SUPERBLOCK_MAGIC,
            version: layout::VERSION.into(),
            placement: self.placement.code(),
            granularity,
            floor_policy: match self.floor_policy {
                FloorPolicy::Wait => 1,
                FloorPolicy::Fail => 2,
            },
            reduction: self.reduction.code(),
            store: self.store.0,
            address: address.into(),
            sequence: self.sequence.into(),
            block_bytes: self.block_bytes.into(),
            segment_blocks: (self.segment_blocks as u32).into(),
            segments: self.segments.into(),
            origin_bytes: self.origin_bytes.into(),
            granularity_ns: granularity_ns.into(),
            window_ns: self.window_ns.into(),
            window_bytes: self.window_bytes.into(),
            floor_ns: self.floor_ns.into(),
            created_ns: self.created_ns.into(),
            start_ns: self.start_ns.into(),
            cut_ns: self.cut_ns.into(),
            last_ns: self.last_ns.into(),
            durable_through: self.durable_through.into(),
            reverts,
            live: write_map(&self.live),
            thinned,
            ahead: write_map(&self.ahead),
            ahead_from: self.ahead_from.into(),
            reserved_end: [0; 1592],
            checksum: Checksum::default(),
        };
        sealed::seal(&raw, bytes);
    }
}

fn read_map(map: &[u8; MAP]) -> Vec<bool> {
    (0..HISTORY_SEGMENTS_MAX as usize).map(|index| map[index / 8] >> (index % 8) & 1 == 1).collect()
}

fn write_map(bits: &[bool]) -> [u8; MAP] {
    let mut map = [0; MAP];
    for index in bits.iter().enumerate().filter(|(_, bit)| **bit).map(|(index, _)| index) {
        map[index / 8] |= 1 << (index % 8);
    }
    map
}

/// A power of two from 512 B to 64 KiB.
pub fn is_block_size(bytes: u32) -> bool {
    bytes.is_power_of_two() && (512..=HISTORY_BLOCK_MAX).contains(&bytes)
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawSegment {
    magic: [u8; 8],
    version: U32,
    end: u8,
    reserved: [u8; 3],
    store: [u8; 16],
    address: U64,
    sequence: U64,
    record: U64,
    summary_blocks: U32,
    reserved_end: [u8; 4020],
    checksum: Checksum,
}

const _: () = assert!(size_of::<RawSegment>() == BLOCK_SIZE);

impl Sealed for RawSegment {
    const STRUCTURE: Structure = Structure::HistorySegment;
    const MAGIC: &'static [u8] = &SEGMENT_MAGIC;
}

/// The first or the last block of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistorySegment {
    /// Whose it is.
    pub store: HistoryId,
    /// The number of the segment in the log's life.
    pub sequence: u64,
    /// In the first block: the number of its first record. In the last: that of the first record
    /// after it.
    pub record: u64,
    /// `Some` in the last block: the number of blocks of the summary before it.
    pub summary_blocks: Option<u32>,
}

impl HistorySegment {
    /// Checks and parses block `address` of the store.
    pub fn parse(bytes: &BlockBytes, store: HistoryId, address: u64) -> Result<Self, FormatError> {
        let field = |field| FormatError::Field { structure: Structure::HistorySegment, field };
        let is_here = |raw: &RawSegment| raw.address.get() == address && raw.store == store.0;
        let raw = sealed::open(bytes, is_here)?;
        if raw.reserved != [0; 3] || raw.reserved_end.iter().any(|byte| *byte != 0) {
            return Err(field("reserved byte"));
        }
        let summary_blocks = match (raw.end, raw.summary_blocks.get()) {
            (0, 0) => None,
            (1, blocks) if u64::from(blocks) < SEGMENT_BLOCKS_MAX => Some(blocks),
            _ => return Err(field("end")),
        };
        let (sequence, record) = (raw.sequence.get(), raw.record.get());
        if sequence.min(record) == 0 || sequence.max(record) >= layout::COUNTER_MAX {
            return Err(field("sequence"));
        }
        Ok(Self { store, sequence, record, summary_blocks })
    }

    /// As bytes for block `address` of the store.
    pub fn write(&self, bytes: &mut BlockBytes, address: u64) {
        let raw = RawSegment {
            magic: SEGMENT_MAGIC,
            version: layout::VERSION.into(),
            end: u8::from(self.summary_blocks.is_some()),
            reserved: [0; 3],
            store: self.store.0,
            address: address.into(),
            sequence: self.sequence.into(),
            record: self.record.into(),
            summary_blocks: self.summary_blocks.unwrap_or(0).into(),
            reserved_end: [0; 4020],
            checksum: Checksum::default(),
        };
        sealed::seal(&raw, bytes);
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawRecord {
    magic: U32,
    version: U16,
    summary: u8,
    reserved: u8,
    store: [u8; 16],
    segment: U64,
    sequence: U64,
    durable_through: U64,
    entries: U32,
    blocks: U32,
    crc: U32,
    previous: U32,
}

const _: () = assert!(size_of::<RawRecord>() == HEADER);

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawEntry {
    time: U64,
    lba: U64,
    place: U32,
    crc: U32,
    length: U32,
    kind: u8,
    reduced: u8,
    reserved: [u8; 2],
}

const _: () = assert!(size_of::<RawEntry>() == ENTRY);

/// The statement of an entry about a block at its time. Two entries of one block at one time are in
/// this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EntryKind {
    /// Its content until then.
    Undo,
    /// It was zeroes until then.
    UndoZero,
    /// From then on its content is that of the next undo, or of the origin.
    Gone,
    /// Its content from then on.
    Redo,
    /// It is zeroes from then on.
    RedoZero,
    /// No block: a mark.
    Mark,
    /// Its content until then is lost.
    UndoLost,
    /// Its content from then on is lost.
    RedoLost,
}

impl EntryKind {
    /// All of them.
    pub const ALL: [EntryKind; 8] = [
        EntryKind::Undo,
        EntryKind::UndoZero,
        EntryKind::Gone,
        EntryKind::Redo,
        EntryKind::RedoZero,
        EntryKind::Mark,
        EntryKind::UndoLost,
        EntryKind::RedoLost,
    ];

    /// Its number on disk.
    pub fn code(self) -> u8 {
        self as u8 + 1
    }

    /// The kind of a number.
    pub fn of(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code).checked_sub(1)?).copied()
    }

    /// True when its content is in the record.
    pub fn has_data(self) -> bool {
        matches!(self, EntryKind::Undo | EntryKind::Redo | EntryKind::Mark)
    }
}

/// One version of a block, or a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistoryEntry {
    /// When, in nanoseconds by the history's clock.
    pub time: u64,
    /// Which block of the device; [`NO_LBA`] for a mark.
    pub lba: u64,
    /// Where the content is stored, from the start of the segment; without content, where the
    /// record is. Units of 512 bytes. Several entries of a segment can have one content.
    pub place: u32,
    /// CRC-32C of the stored bytes; 0 without content.
    pub crc: u32,
    /// The number of stored bytes; 0 without content.
    pub length: u32,
    /// The kind of the entry.
    pub kind: EntryKind,
    /// A [`Delta`](crate::delta::Delta) is stored, not the content itself.
    pub reduced: bool,
}

/// The head of a record and its entries; the content follows in the blocks after them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryRecord {
    /// True for the summary of a segment, which has no content of its own.
    pub summary: bool,
    /// The segment that it was written into, by its sequence.
    pub segment: u64,
    /// The number of the record in the log's life; no gaps. In a summary: the first record after
    /// the segment.
    pub sequence: u64,
    /// Every record up to this one was durable when this one was written.
    pub durable_through: u64,
    /// Blocks of 4 KiB with all of its content.
    pub blocks: u32,
    /// The checksum of the previous record in the segment, 0 for the first: records of an earlier
    /// life of the segment do not match.
    pub previous: u32,
    /// In order.
    pub entries: Vec<HistoryEntry>,
}

impl HistoryRecord {
    /// Blocks that the head of a record with this many entries takes; the content begins after it.
    pub fn head_blocks(entries: usize) -> u64 {
        ((HEADER + entries * ENTRY) as u64).div_ceil(BLOCK_SIZE as u64)
    }

    /// How many blocks the head of the record starting with `first` takes, by its own statement. It
    /// is unverified until the whole head was parsed.
    pub fn peek(first: &BlockBytes, store: HistoryId) -> Result<u64, FormatError> {
        let structure = Structure::HistoryRecord;
        let (raw, _) =
            RawRecord::ref_from_prefix(first.as_slice()).map_err(|_| FormatError::Magic(structure))?;
        if raw.magic.get() != RECORD_MAGIC {
            return Err(FormatError::Magic(structure));
        }
        if raw.store != store.0 {
            return Err(FormatError::Misplaced(structure));
        }
        layout::check_version(structure, raw.version.get().into())?;
        let blocks = Self::head_blocks(raw.entries.get() as usize);
        if blocks > SEGMENT_BLOCKS_MAX {
            return Err(FormatError::Field { structure, field: "length" });
        }
        Ok(blocks)
    }

    /// The checksum that the head has, which the next record names.
    pub fn checksum(head: &[u8]) -> u32 {
        RawRecord::ref_from_prefix(head).map_or(0, |(raw, _)| raw.crc.get())
    }

    /// The head as bytes: whole blocks.
    pub fn to_bytes(&self, store: HistoryId) -> Vec<u8> {
        let mut bytes = vec![0; Self::head_blocks(self.entries.len()) as usize * BLOCK_SIZE];
        for (place, entry) in bytes[HEADER..].chunks_exact_mut(ENTRY).zip(&self.entries) {
            let raw = RawEntry {
                time: entry.time.into(),
                lba: entry.lba.into(),
                place: entry.place.into(),
                crc: entry.crc.into(),
                length: entry.length.into(),
                kind: entry.kind.code(),
                reduced: entry.reduced.into(),
                reserved: [0; 2],
            };
            place.copy_from_slice(raw.as_bytes());
        }
        let mut raw = RawRecord {
            magic: RECORD_MAGIC.into(),
            version: (layout::VERSION as u16).into(),
            summary: u8::from(self.summary),
            reserved: 0,
            store: store.0,
            segment: self.segment.into(),
            sequence: self.sequence.into(),
            durable_through: self.durable_through.into(),
            entries: (self.entries.len() as u32).into(),
            blocks: self.blocks.into(),
            crc: 0.into(),
            previous: self.previous.into(),
        };
        bytes[..HEADER].copy_from_slice(raw.as_bytes());
        raw.crc = crc32c(&bytes).into();
        bytes[..HEADER].copy_from_slice(raw.as_bytes());
        bytes
    }

    /// Checks and reads a head, whose whole blocks `bytes` begins with.
    pub fn parse(bytes: &[u8], store: HistoryId) -> Result<Self, FormatError> {
        let structure = Structure::HistoryRecord;
        let field = |field| FormatError::Field { structure, field };
        let first = bytes.first_chunk::<BLOCK_SIZE>().ok_or(FormatError::Magic(structure))?;
        let head = Self::peek(first, store)?;
        let bytes = bytes.get(..head as usize * BLOCK_SIZE).ok_or(field("length"))?;
        let (raw, _) = RawRecord::ref_from_prefix(bytes).map_err(|_| FormatError::Magic(structure))?;
        let mut copy = bytes.to_vec();
        // The checksum was taken with its own field zero.
        copy[HEADER - 8..HEADER - 4].fill(0);
        if crc32c(&copy) != raw.crc.get() {
            return Err(FormatError::Checksum(structure));
        }
        let count = raw.entries.get() as usize;
        let unused = bytes.get(HEADER + count * ENTRY..).unwrap_or(&[]);
        if raw.reserved != 0 || unused.iter().any(|byte| *byte != 0) {
            return Err(field("reserved byte"));
        }
        let blocks = raw.blocks.get();
        let fits = (head..SEGMENT_BLOCKS_MAX).contains(&u64::from(blocks));
        if !fits || raw.summary > 1 || (raw.summary == 1 && u64::from(blocks) != head) {
            return Err(field("blocks"));
        }
        let numbers = [raw.segment.get(), raw.sequence.get(), raw.durable_through.get()];
        if numbers.iter().any(|number| *number >= layout::COUNTER_MAX) {
            return Err(field("sequence"));
        }
        let entries = bytes[HEADER..].chunks_exact(ENTRY).take(count).map(parse_entry);
        Ok(Self {
            summary: raw.summary == 1,
            segment: raw.segment.get(),
            sequence: raw.sequence.get(),
            durable_through: raw.durable_through.get(),
            blocks,
            previous: raw.previous.get(),
            entries: entries.collect::<Result<_, _>>()?,
        })
    }
}

fn parse_entry(bytes: &[u8]) -> Result<HistoryEntry, FormatError> {
    let field = |field| FormatError::Field { structure: Structure::HistoryRecord, field };
    let raw = RawEntry::ref_from_bytes(bytes).map_err(|_| field("entry"))?;
    if raw.reserved != [0; 2] {
        return Err(field("reserved byte"));
    }
    let kind = EntryKind::of(raw.kind).ok_or(field("entry kind"))?;
    let entry = HistoryEntry {
        time: raw.time.get(),
        lba: raw.lba.get(),
        place: raw.place.get(),
        crc: raw.crc.get(),
        length: raw.length.get(),
        kind,
        reduced: raw.reduced == 1,
    };
    let may_be_reduced = matches!(kind, EntryKind::Undo | EntryKind::Redo)
        && u64::from(entry.length).is_multiple_of(PLACE_UNIT)
        && entry.length < HISTORY_BLOCK_MAX;
    if raw.reduced > 1 || (entry.reduced && !may_be_reduced) {
        return Err(field("reduced"));
    }
    let content = match kind.has_data() {
        true => (1..=HISTORY_BLOCK_MAX).contains(&entry.length),
        false => entry.length == 0 && entry.crc == 0,
    };
    let lba = if kind == EntryKind::Mark { entry.lba == NO_LBA } else { entry.lba < NO_LBA };
    if !content || !lba || entry.time >= u64::MAX / 2 {
        return Err(field("entry"));
    }
    Ok(entry)
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawMark {
    magic: U32,
    consistent: u8,
    length: u8,
    reserved: [u8; 2],
    name: [u8; MARK_NAME_MAX],
    reserved_end: [u8; 440],
}

const _: () = assert!(size_of::<RawMark>() == MarkContent::SIZE);

/// The content of a mark's entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MarkContent {
    /// 1 to 64 bytes.
    pub name: String,
    /// The owner had brought the device to rest.
    pub consistent: bool,
}

impl MarkContent {
    /// Bytes on disk.
    pub const SIZE: usize = 512;

    /// Checks and reads it.
    pub fn parse(bytes: &[u8]) -> Result<Self, FormatError> {
        let structure = Structure::HistoryRecord;
        let field = |field| FormatError::Field { structure, field };
        let raw = RawMark::ref_from_bytes(bytes).map_err(|_| FormatError::Magic(structure))?;
        if raw.magic.get() != MARK_MAGIC {
            return Err(FormatError::Magic(structure));
        }
        let (name, rest) = raw.name.split_at_checked(usize::from(raw.length)).ok_or(field("mark name"))?;
        let clean = rest.iter().chain(&raw.reserved).chain(&raw.reserved_end).all(|byte| *byte == 0);
        if !clean || name.is_empty() || raw.consistent > 1 {
            return Err(field("reserved byte"));
        }
        let name = std::str::from_utf8(name).map_err(|_| field("mark name"))?;
        Ok(Self { name: name.to_owned(), consistent: raw.consistent == 1 })
    }

    /// As bytes; panics when the name is empty or longer than 64 bytes.
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        assert!((1..=MARK_NAME_MAX).contains(&self.name.len()), "a mark has a name of 1 to 64 bytes");
        let mut raw = RawMark {
            magic: MARK_MAGIC.into(),
            consistent: self.consistent.into(),
            length: self.name.len() as u8,
            reserved: [0; 2],
            name: [0; MARK_NAME_MAX],
            reserved_end: [0; 440],
        };
        raw.name[..self.name.len()].copy_from_slice(self.name.as_bytes());
        let mut bytes = [0; Self::SIZE];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }
}
