//! A recorded trace of a device: its header, and frames of records. `docs/format.md` is its prose.
//!
//! A file is a header followed by frames, the last of which says that the trace is whole. It is
//! written front to back and read the same way, through a pipe if need be. A frame is bounded, has
//! two checksums (of its head and of its content) and restarts its deltas, so damage in a frame's
//! content loses that frame alone. An accepted trace is written again as the same bytes.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub use crate::layout::TRACE_VERSION;
use crate::sealed::{self, Sealed, Sum};
use crate::{FormatError, Structure};

/// Most bytes of a frame's content, as stored and as unpacked.
pub const TRACE_FRAME_BYTES_MAX: usize = 1 << 18;
/// Most records of a frame.
pub const TRACE_FRAME_RECORDS_MAX: u32 = 1 << 16;
/// Most devices of a trace.
pub const TRACE_DEVICES_MAX: u32 = 4096;
/// Longest name of a device, in bytes.
pub const TRACE_NAME_MAX: usize = 255;
/// Most bytes of one read or write of a trace: more is a damaged number.
pub const TRACE_LENGTH_MAX: u64 = 1 << 30;
/// Offsets end below this.
pub const TRACE_OFFSET_MAX: u64 = 1 << 62;

/// The first bytes of a trace.
pub const TRACE_MAGIC: [u8; 8] = *b"CAIRNTRC";
const FRAME_MAGIC: [u8; 4] = *b"CTRF";

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawTraceHeader {
    magic: [u8; 8],
    version: U32,
    reserved: U32,
    began_ns: U64,
    reserved_end: [u8; 36],
    crc: U32,
}

const _: () = assert!(size_of::<RawTraceHeader>() == TraceHeader::SIZE);

impl Sealed for RawTraceHeader {
    const STRUCTURE: Structure = Structure::TraceHeader;
    const MAGIC: &'static [u8] = &TRACE_MAGIC;
    const SUM: Sum = Sum::Crc32c;
}

/// The head of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TraceHeader {
    /// When time 0 of the records was, in nanoseconds since 1970 UTC; 0 is not known.
    pub began_ns: u64,
}

impl TraceHeader {
    /// Bytes.
    pub const SIZE: usize = 64;

    /// As bytes.
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let raw = RawTraceHeader {
            magic: TRACE_MAGIC,
            version: TRACE_VERSION.into(),
            reserved: 0.into(),
            began_ns: self.began_ns.into(),
            reserved_end: [0; 36],
            crc: 0.into(),
        };
        let mut bytes = [0; Self::SIZE];
        sealed::seal(&raw, &mut bytes);
        bytes
    }

    /// Refuses an invalid, newer or damaged one.
    pub fn parse(bytes: &[u8; Self::SIZE]) -> Result<Self, FormatError> {
        let raw = sealed::open(bytes, |_: &RawTraceHeader| true)?;
        if raw.reserved.get() != 0 || raw.reserved_end != [0; 36] {
            return Err(FormatError::Field { structure: Structure::TraceHeader, field: "reserved field" });
        }
        Ok(Self { began_ns: raw.began_ns.get() })
    }
}

/// The content of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceFrameKind {
    /// Records.
    Records,
    /// The name of a device: its number (4 bytes), then UTF-8.
    Device,
    /// Nothing follows: the number of all records (8 bytes).
    End,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawTraceFrame {
    magic: [u8; 4],
    kind: u8,
    packed: u8,
    reserved: U16,
    sequence: U32,
    records: U32,
    plain_bytes: U32,
    stored_bytes: U32,
    first_ns: U64,
    content_crc: U32,
    crc: U32,
}

const _: () = assert!(size_of::<RawTraceFrame>() == TraceFrame::SIZE);

impl Sealed for RawTraceFrame {
    const STRUCTURE: Structure = Structure::TraceFrame;
    const MAGIC: &'static [u8] = &FRAME_MAGIC;
    const HAS_VERSION: bool = false;
    const SUM: Sum = Sum::Crc32c;
}

/// The head of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceFrame {
    /// The kind of its content.
    pub kind: TraceFrameKind,
    /// Its content is packed with zstd.
    pub packed: bool,
    /// Which frame, from 0 without a gap.
    pub sequence: u32,
    /// Records in it; 0 unless it holds records.
    pub records: u32,
    /// Bytes of its content, unpacked.
    pub plain_bytes: u32,
    /// Bytes that follow the head.
    pub stored_bytes: u32,
    /// Time of its first record.
    pub first_ns: u64,
    /// CRC-32C of the bytes that follow the head.
    pub content_crc: u32,
}

impl TraceFrame {
    /// Bytes.
    pub const SIZE: usize = 40;

    /// As bytes.
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let kind = match self.kind {
            TraceFrameKind::Records => 1,
            TraceFrameKind::Device => 2,
            TraceFrameKind::End => 3,
        };
        let raw = RawTraceFrame {
            magic: FRAME_MAGIC,
            kind,
            packed: self.packed.into(),
            reserved: 0.into(),
            sequence: self.sequence.into(),
            records: self.records.into(),
            plain_bytes: self.plain_bytes.into(),
            stored_bytes: self.stored_bytes.into(),
            first_ns: self.first_ns.into(),
            content_crc: self.content_crc.into(),
            crc: 0.into(),
        };
        let mut bytes = [0; Self::SIZE];
        sealed::seal(&raw, &mut bytes);
        bytes
    }

    /// Refuses an invalid, damaged or too large one.
    pub fn parse(bytes: &[u8; Self::SIZE]) -> Result<Self, FormatError> {
        let refuse = |field| Err(FormatError::Field { structure: Structure::TraceFrame, field });
        let raw = sealed::open(bytes, |_: &RawTraceFrame| true)?;
        let kind = match raw.kind {
            1 => TraceFrameKind::Records,
            2 => TraceFrameKind::Device,
            3 => TraceFrameKind::End,
            _ => return refuse("kind"),
        };
        if raw.packed > 1 || raw.reserved.get() != 0 {
            return refuse("flag");
        }
        let frame = Self {
            kind,
            packed: raw.packed == 1,
            sequence: raw.sequence.get(),
            records: raw.records.get(),
            plain_bytes: raw.plain_bytes.get(),
            stored_bytes: raw.stored_bytes.get(),
            first_ns: raw.first_ns.get(),
            content_crc: raw.content_crc.get(),
        };
        let (plain, stored) = (frame.plain_bytes as usize, frame.stored_bytes as usize);
        if plain > TRACE_FRAME_BYTES_MAX
            || stored > TRACE_FRAME_BYTES_MAX
            || (!frame.packed && plain != stored)
        {
            return refuse("length");
        }
        let counts = match kind {
            TraceFrameKind::Records => (1..=TRACE_FRAME_RECORDS_MAX).contains(&frame.records),
            TraceFrameKind::Device => {
                frame.records == 0 && !frame.packed && plain > 4 && plain <= 4 + TRACE_NAME_MAX
            }
            TraceFrameKind::End => frame.records == 0 && !frame.packed && plain == 8,
        };
        if !counts { refuse("count") } else { Ok(frame) }
    }
}

/// The operation of a request in a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TraceOp {
    /// It reads.
    Read,
    /// It writes.
    Write,
    /// The bytes are no longer needed.
    Trim,
    /// It makes bytes zero.
    Zeroes,
    /// Makes earlier writes durable.
    Flush,
}

/// A request of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceRecord {
    /// Nanoseconds since the trace began.
    pub at_ns: u64,
    /// Which device, below [`TRACE_DEVICES_MAX`].
    pub device: u32,
    /// The operation.
    pub op: TraceOp,
    /// Bytes from the start of the device; 0 for a flush.
    pub offset: u64,
    /// Bytes; 0 for a flush.
    pub length: u64,
}

impl TraceRecord {
    /// Whether its numbers are in bounds: those of the format, and of everything that is computed
    /// with them.
    pub fn is_valid(&self) -> bool {
        let limit = match self.op {
            TraceOp::Read | TraceOp::Write => TRACE_LENGTH_MAX,
            TraceOp::Trim | TraceOp::Zeroes => TRACE_OFFSET_MAX,
            TraceOp::Flush => 0,
        };
        self.device < TRACE_DEVICES_MAX
            && self.length <= limit
            && self.offset < TRACE_OFFSET_MAX
            && self.offset + self.length <= TRACE_OFFSET_MAX
            && (self.op != TraceOp::Flush || self.offset == 0)
    }
}

const OP_MASK: u8 = 0b0000_0111;
const SAME_DEVICE: u8 = 0b0000_1000;
const SAME_LENGTH: u8 = 0b0001_0000;
const GOES_ON: u8 = 0b0010_0000;

/// The state that the next record of a frame is encoded against; a frame begins with the default
/// and its first time.
#[derive(Debug, Clone, Copy, Default)]
pub struct TraceDelta {
    at_ns: u64,
    device: u32,
    length: u64,
    end: u64,
}

impl TraceDelta {
    /// Before the first record of a frame.
    pub fn at(first_ns: u64) -> Self {
        Self { at_ns: first_ns, ..Self::default() }
    }

    /// Appends a record: a byte with its operation and flags for unchanged fields, then the changed
    /// ones, as variable-length numbers. It must be valid and not earlier than the previous one.
    pub fn encode(&mut self, record: &TraceRecord, into: &mut Vec<u8>) {
        let op = match record.op {
            TraceOp::Read => 0,
            TraceOp::Write => 1,
            TraceOp::Trim => 2,
            TraceOp::Zeroes => 3,
            TraceOp::Flush => 4,
        };
        let same = |is: bool, flag: u8| if is { flag } else { 0 };
        let flags = same(record.device == self.device, SAME_DEVICE)
            | same(record.length == self.length, SAME_LENGTH)
            | same(record.offset == self.end, GOES_ON);
        into.push(op | flags);
        put(into, record.at_ns.saturating_sub(self.at_ns));
        if flags & SAME_DEVICE == 0 {
            put(into, record.device.into());
        }
        if flags & GOES_ON == 0 {
            let delta = record.offset.wrapping_sub(self.end) as i64;
            put(into, ((delta << 1) ^ (delta >> 63)) as u64);
        }
        if flags & SAME_LENGTH == 0 {
            put(into, record.length);
        }
        self.follow(record);
    }

    /// Takes a record off the front of `bytes`; an error for an invalid one, or one that is never
    /// written in this form.
    pub fn decode(&mut self, bytes: &mut &[u8]) -> Result<TraceRecord, FormatError> {
        let refuse = |field| FormatError::Field { structure: Structure::TraceRecord, field };
        let (&first, rest) = bytes.split_first().ok_or_else(|| refuse("end"))?;
        *bytes = rest;
        let op = match first & OP_MASK {
            0 => TraceOp::Read,
            1 => TraceOp::Write,
            2 => TraceOp::Trim,
            3 => TraceOp::Zeroes,
            4 => TraceOp::Flush,
            _ => return Err(refuse("operation")),
        };
        if first & !(OP_MASK | SAME_DEVICE | SAME_LENGTH | GOES_ON) != 0 {
            return Err(refuse("flag"));
        }
        let mut number = || take(bytes).ok_or_else(|| refuse("number"));
        let at_ns = self.at_ns.checked_add(number()?).ok_or_else(|| refuse("time"))?;
        let device = if first & SAME_DEVICE != 0 {
            self.device
        } else {
            u32::try_from(number()?)
                .ok()
                .filter(|device| *device != self.device)
                .ok_or_else(|| refuse("device"))?
        };
        let offset = if first & GOES_ON != 0 {
            self.end
        } else {
            let folded = number()?;
            let delta = (folded >> 1) as i64 ^ -((folded & 1) as i64);
            let offset = self.end.wrapping_add(delta as u64);
            if offset == self.end {
                return Err(refuse("offset"));
            }
            offset
        };
        let length = if first & SAME_LENGTH != 0 {
            self.length
        } else {
            Some(number()?).filter(|length| *length != self.length).ok_or_else(|| refuse("length"))?
        };
        let record = TraceRecord { at_ns, device, op, offset, length };
        if !record.is_valid() {
            return Err(refuse("place"));
        }
        self.follow(&record);
        Ok(record)
    }

    fn follow(&mut self, record: &TraceRecord) {
        *self = Self {
            at_ns: record.at_ns,
            device: record.device,
            length: record.length,
            end: record.offset + record.length,
        };
    }
}

/// Appends a number in groups of seven bits, the lowest first.
fn put(into: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        into.push(number as u8 | 0x80);
        number >>= 7;
    }
    into.push(number as u8);
}

/// Takes one off the front; `None` when it is cut off, too large, or longer than it need be.
fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let part = u64::from(byte & 0x7f);
        if (part << shift) >> shift != part || (byte == 0 && shift > 0) {
            return None;
        }
        number |= part << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}
