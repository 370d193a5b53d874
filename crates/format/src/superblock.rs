//! The superblock: the one structure that is overwritten. Both slots are written, one after the
//! other; the newest that verifies wins.

use cairn_base::{Checksum, LogId, SnapshotId, Timestamp, VolumeId};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::label::RawLabelPointer;
use crate::root::RawRoot;
use crate::sealed::{self, Sealed};
use crate::{BlockBytes, FormatError, LabelPointer, Root, Structure, layout};

/// Segments that a superblock can name: how often a volume can grow, but that pieces join.
pub const SEGMENTS_MAX: usize = SEGMENTS_FIRST + SEGMENTS_MORE;

/// Segments have two places: the first ones after the root, the others at the end.
const SEGMENTS_FIRST: usize = 16;
const SEGMENTS_MORE: usize = 52;

const MAGIC: [u8; 8] = *b"CAIRNSB\x01";
const INDEXES_MAX: usize = 32;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawSegment {
    first: U64,
    blocks: U64,
    device_block: U64,
    kind: U32,
    reserved: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawTable {
    entries: U64,
    index_count: U32,
    reserved: U32,
    indexes: [RawLabelPointer; INDEXES_MAX],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawSuperblock {
    magic: [u8; 8],
    version: U32,
    role: U32,
    volume: [u8; 16],
    address: U64,
    sequence: U64,
    label_start: U64,
    label_blocks: U64,
    log_start: U64,
    log_blocks: U64,
    log_position: U64,
    log_sequence: U64,
    parent: U64,
    next_snapshot: U64,
    cursor_snapshot: U64,
    cursor_received_ns: U64,
    root: RawRoot,
    segment_count: U32,
    reserved: U32,
    segments: [RawSegment; SEGMENTS_FIRST],
    snapshots: RawTable,
    redirects: RawTable,
    external_log: [u8; 16],
    external_log_start: U64,
    external_log_blocks: U64,
    more_segments: [RawSegment; SEGMENTS_MORE],
    reserved_end: [u8; 8],
    checksum: Checksum,
}

const _: () = assert!(size_of::<RawSuperblock>() == cairn_base::BLOCK_SIZE);

impl Sealed for RawSuperblock {
    const STRUCTURE: Structure = Structure::Superblock;
    const MAGIC: &'static [u8] = &MAGIC;
}

/// The role of this copy of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Clients write to it.
    Normal,
    /// A mirror writes to it; clients read.
    Destination,
}

/// The purpose of a stretch of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentKind {
    /// Block space.
    Space,
    /// Redirect area of a destination.
    Redirect,
    /// Have map of a destination: 16 bytes (a checksum) for each block of block space.
    Have,
}

/// A stretch of the device: blocks `first..first + blocks` of its kind are at `device_block` and
/// after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Its purpose.
    pub kind: SegmentKind,
    /// The number, within its kind, of its first block.
    pub first: u64,
    /// How many blocks.
    pub blocks: u64,
    /// Where it starts on the device, in blocks.
    pub device_block: u64,
}

/// Where everything is on the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// First block of the label space.
    pub label_start: u64,
    /// Blocks of label space.
    pub label_blocks: u64,
    /// First block of the intent log.
    pub log_start: u64,
    /// Blocks of intent log.
    pub log_blocks: u64,
    /// Block space and redirect area.
    pub segments: Vec<Segment>,
}

/// Where replay of the intent log starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogTail {
    /// Block in the log, from 0.
    pub position: u64,
    /// Sequence of the record there.
    pub sequence: u64,
}

/// An intent log on a device of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExternalLog {
    /// The id of the log, which must be in the device's header. Not zero.
    pub id: LogId,
    /// First block of the ring on that device.
    pub start: u64,
    /// Blocks of the ring.
    pub blocks: u64,
}

impl ExternalLog {
    /// True for a ring that this program makes, and can hold in memory.
    pub(crate) fn is_sane(&self) -> bool {
        self.id != LogId::default()
            && self.start == layout::LOG_DEVICE_START
            && (layout::LOG_BLOCKS_MIN..=layout::LOG_BLOCKS_MAX).contains(&self.blocks)
    }
}

/// A table in the label space.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TableRef {
    /// Entries in it.
    pub entries: u64,
    /// Its index blocks, at most 32.
    pub indexes: Vec<LabelPointer>,
}

impl TableRef {
    /// Most index blocks of a table.
    pub const INDEXES_MAX: usize = INDEXES_MAX;
}

/// The image that a destination holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cursor {
    /// The source's snapshot that the active root shows; 0 before the first.
    pub snapshot: SnapshotId,
    /// When it was committed here, by this side's clock; [`Cursor::OWN`] when it was not received
    /// but written here.
    pub received: Timestamp,
}

impl Cursor {
    /// The time of arrival for a volume that shows its own writes and became a destination.
    pub const OWN: Timestamp = Timestamp(0);
}

/// A superblock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// The volume.
    pub volume: VolumeId,
    /// The role of this copy.
    pub role: Role,
    /// Counts up with each superblock that is written.
    pub sequence: u64,
    /// Where things are.
    pub layout: Layout,
    /// The device that has the intent log; none when it is in the label area.
    pub external_log: Option<ExternalLog>,
    /// Where replay starts, in whichever log is in use.
    pub log_tail: LogTail,
    /// The active state.
    pub root: Root,
    /// The snapshot that the active state descends from; 0 for none.
    pub parent: SnapshotId,
    /// The number that the next snapshot gets.
    pub next_snapshot: u64,
    /// The image that a destination holds.
    pub cursor: Cursor,
    /// The snapshot table.
    pub snapshots: TableRef,
    /// The redirect map.
    pub redirects: TableRef,
}

impl Superblock {
    /// Checks and reads the slot that was read from block `address` of the device.
    pub fn parse(bytes: &BlockBytes, address: u64) -> Result<Self, FormatError> {
        let structure = Structure::Superblock;
        let field = |field| FormatError::Field { structure, field };
        let raw = sealed::open(bytes, |raw: &RawSuperblock| raw.address.get() == address)?;
        if raw.reserved.get() != 0 || raw.reserved_end.iter().any(|byte| *byte != 0) {
            return Err(field("reserved byte"));
        }
        let named: Vec<RawSegment> = raw.segments.iter().chain(&raw.more_segments).copied().collect();
        let count = raw.segment_count.get() as usize;
        let (used, unused) = named.split_at_checked(count).ok_or(field("segment count"))?;
        if unused.iter().any(|segment| segment.as_bytes() != [0; size_of::<RawSegment>()]) {
            return Err(field("unused segment"));
        }
        let segments = used
            .iter()
            .map(|segment| parse_segment(segment).ok_or(field("segment")))
            .collect::<Result<Vec<_>, _>>()?;
        let layout = Layout {
            label_start: raw.label_start.get(),
            label_blocks: raw.label_blocks.get(),
            log_start: raw.log_start.get(),
            log_blocks: raw.log_blocks.get(),
            segments,
        };
        if !layout.is_sane() {
            return Err(field("layout"));
        }
        let counters = [raw.sequence, raw.log_sequence, raw.next_snapshot];
        if counters.iter().any(|counter| counter.get() >= layout::COUNTER_MAX) {
            return Err(field("counter"));
        }
        let external_log = parse_external_log(raw)?;
        if raw.log_position.get() >= external_log.map_or(layout.log_blocks, |log| log.blocks) {
            return Err(field("log position"));
        }
        Ok(Self {
            volume: VolumeId(raw.volume),
            role: match raw.role.get() {
                0 => Role::Normal,
                1 => Role::Destination,
                _ => return Err(field("role")),
            },
            sequence: raw.sequence.get(),
            layout,
            external_log,
            log_tail: LogTail { position: raw.log_position.get(), sequence: raw.log_sequence.get() },
            root: Root::parse(raw.root).ok_or(field("root"))?,
            parent: SnapshotId(raw.parent.get()),
            next_snapshot: raw.next_snapshot.get(),
            cursor: Cursor {
                snapshot: SnapshotId(raw.cursor_snapshot.get()),
                received: Timestamp(raw.cursor_received_ns.get()),
            },
            snapshots: parse_table(&raw.snapshots).ok_or(field("snapshot table"))?,
            redirects: parse_table(&raw.redirects).ok_or(field("redirect map"))?,
        })
    }

    /// The superblock as bytes for the slot at block `address`.
    pub fn write(&self, bytes: &mut BlockBytes, address: u64) {
        let count = self.layout.segments.len();
        assert!(count <= SEGMENTS_MAX, "a superblock names at most {SEGMENTS_MAX} segments");
        let empty = RawSegment {
            first: 0.into(),
            blocks: 0.into(),
            device_block: 0.into(),
            kind: 0.into(),
            reserved: 0.into(),
        };
        let (mut segments, mut more_segments) = ([empty; SEGMENTS_FIRST], [empty; SEGMENTS_MORE]);
        let places = segments.iter_mut().chain(&mut more_segments);
        for (raw, segment) in places.zip(&self.layout.segments) {
            raw.first = segment.first.into();
            raw.blocks = segment.blocks.into();
            raw.device_block = segment.device_block.into();
            raw.kind = match segment.kind {
                SegmentKind::Space => 1,
                SegmentKind::Redirect => 2,
                SegmentKind::Have => 3,
            }
            .into();
        }
        let log = self.external_log.unwrap_or(NO_LOG);
        let raw = RawSuperblock {
            magic: MAGIC,
            version: layout::VERSION.into(),
            role: match self.role {
                Role::Normal => 0,
                Role::Destination => 1,
            }
            .into(),
            volume: self.volume.0,
            address: address.into(),
            sequence: self.sequence.into(),
            label_start: self.layout.label_start.into(),
            label_blocks: self.layout.label_blocks.into(),
            log_start: self.layout.log_start.into(),
            log_blocks: self.layout.log_blocks.into(),
            log_position: self.log_tail.position.into(),
            log_sequence: self.log_tail.sequence.into(),
            parent: self.parent.0.into(),
            next_snapshot: self.next_snapshot.into(),
            cursor_snapshot: self.cursor.snapshot.0.into(),
            cursor_received_ns: self.cursor.received.0.into(),
            root: self.root.into(),
            segment_count: (count as u32).into(),
            reserved: 0.into(),
            segments,
            snapshots: raw_table(&self.snapshots),
            redirects: raw_table(&self.redirects),
            external_log: log.id.0,
            external_log_start: log.start.into(),
            external_log_blocks: log.blocks.into(),
            more_segments,
            reserved_end: [0; 8],
            checksum: Checksum::default(),
        };
        sealed::seal(&raw, bytes);
    }
}

/// The superblock's value for an intent log in the label area.
const NO_LOG: ExternalLog = ExternalLog { id: LogId([0; 16]), start: 0, blocks: 0 };

fn parse_external_log(raw: &RawSuperblock) -> Result<Option<ExternalLog>, FormatError> {
    let log = ExternalLog {
        id: LogId(raw.external_log),
        start: raw.external_log_start.get(),
        blocks: raw.external_log_blocks.get(),
    };
    match log {
        NO_LOG => Ok(None),
        log if log.is_sane() => Ok(Some(log)),
        _ => Err(FormatError::Field { structure: Structure::Superblock, field: "external log" }),
    }
}

fn parse_segment(raw: &RawSegment) -> Option<Segment> {
    let kind = match raw.kind.get() {
        1 => SegmentKind::Space,
        2 => SegmentKind::Redirect,
        3 => SegmentKind::Have,
        _ => return None,
    };
    let (first, blocks, device_block) = (raw.first.get(), raw.blocks.get(), raw.device_block.get());
    (raw.reserved.get() == 0).then_some(Segment { kind, first, blocks, device_block })
}

/// Blocks of a device with the largest block space and the areas of a destination, and more.
const DEVICE_BLOCKS_MAX: u64 = layout::SPACE_BLOCKS_MAX * 4;

impl Layout {
    /// True when no two parts overlap, each kind of segment is numbered from 0 without gaps, and no
    /// number exceeds its limit: results computed from these numbers can be added up and held in
    /// memory.
    fn is_sane(&self) -> bool {
        let areas = (layout::label_blocks(0)..=layout::label_blocks(u64::MAX)).contains(&self.label_blocks)
            && (layout::log_blocks(0)..=layout::log_blocks(u64::MAX)).contains(&self.log_blocks)
            && (layout::LABEL_START..DEVICE_BLOCKS_MAX).contains(&self.label_start)
            && (self.label_start + self.label_blocks..DEVICE_BLOCKS_MAX).contains(&self.log_start);
        if !areas {
            return false;
        }
        let mut end = self.log_start + self.log_blocks;
        let (mut space, mut redirect, mut have) = (0, 0, 0);
        for segment in &self.segments {
            let counted = match segment.kind {
                SegmentKind::Space => &mut space,
                SegmentKind::Redirect => &mut redirect,
                SegmentKind::Have => &mut have,
            };
            let small = segment.blocks > 0
                && segment.blocks <= layout::SPACE_BLOCKS_MAX
                && segment.device_block <= DEVICE_BLOCKS_MAX;
            if !small || segment.first != *counted || segment.device_block < end {
                return false;
            }
            *counted += segment.blocks;
            end = segment.device_block + segment.blocks;
        }
        (layout::SPACE_BLOCKS_MIN..=layout::SPACE_BLOCKS_MAX).contains(&space)
            && redirect <= layout::SPACE_BLOCKS_MAX
            && have <= layout::SPACE_BLOCKS_MAX
    }
}

fn parse_table(raw: &RawTable) -> Option<TableRef> {
    let (used, unused) = raw.indexes.split_at_checked(raw.index_count.get() as usize)?;
    let zero = unused.iter().all(|pointer| LabelPointer::from(*pointer) == LabelPointer::default());
    (zero && raw.reserved.get() == 0).then(|| TableRef {
        entries: raw.entries.get(),
        indexes: used.iter().map(|pointer| (*pointer).into()).collect(),
    })
}

fn raw_table(table: &TableRef) -> RawTable {
    assert!(table.indexes.len() <= INDEXES_MAX, "a table has at most {INDEXES_MAX} index blocks");
    let mut indexes = [RawLabelPointer::from(LabelPointer::default()); INDEXES_MAX];
    for (raw, pointer) in indexes.iter_mut().zip(&table.indexes) {
        *raw = (*pointer).into();
    }
    RawTable {
        entries: table.entries.into(),
        index_count: (table.indexes.len() as u32).into(),
        reserved: 0.into(),
        indexes,
    }
}
