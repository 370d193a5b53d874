//! A content of a history stored as a difference from an earlier one: XOR of the two, without the
//! stretches where they are the same. `docs/format.md` is its prose.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::history::PLACE_UNIT;
use crate::{FormatError, Structure};

/// Deltas that follow each other at most: the version that the last of them builds on is stored
/// whole. More of them would be less to store, more to read, and more to lose with one.
pub const LINKS_MAX: u8 = 8;

const UNIT: usize = PLACE_UNIT as usize;
const HEADER: usize = size_of::<RawDelta>();
const RUN: usize = size_of::<RawRun>();
/// Bytes that are the same end a run; fewer are cheaper within it than the head of the next one.
const GAP: usize = 8;
/// Bytes that are compared at once.
const COMPARED: usize = 64;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawDelta {
    back: U32,
    base_crc: U32,
    crc: U32,
    length: U32,
    base_units: u8,
    links: u8,
    reserved: [u8; 6],
}

const _: () = assert!(size_of::<RawDelta>() == 24);

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawRun {
    skip: U16,
    length: U16,
}

const _: () = assert!(size_of::<RawRun>() == 4);

/// The difference of a content from an earlier one, its base, of the same length in the same
/// segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delta {
    /// The distance back to the base in the store, in units of 512 bytes.
    pub back: u32,
    /// CRC-32C of the stored bytes of the base.
    pub base_crc: u32,
    /// Units that the base takes as a delta of its own; 0: it is stored whole.
    pub base_units: u8,
    /// Deltas up to one whose base is stored whole, this one included: 1 to [`LINKS_MAX`].
    pub links: u8,
    /// CRC-32C of the content that this makes of its base.
    pub crc: u32,
    /// The differing bytes.
    pub runs: Vec<u8>,
}

impl Delta {
    /// The number of bytes for the runs of a delta of `units` units.
    pub fn room(units: usize) -> usize {
        (units * UNIT).saturating_sub(HEADER)
    }

    /// Checks and reads the stored bytes.
    pub fn parse(bytes: &[u8]) -> Result<Self, FormatError> {
        let field = |field| FormatError::Field { structure: Structure::HistoryRecord, field };
        let (raw, rest) = RawDelta::ref_from_prefix(bytes).map_err(|_| field("delta"))?;
        let length = raw.length.get() as usize;
        let (runs, unused) = rest.split_at_checked(length).ok_or(field("length"))?;
        if bytes.len() != (HEADER + length).next_multiple_of(UNIT) {
            return Err(field("length"));
        }
        if raw.reserved != [0; 6] || unused.iter().any(|byte| *byte != 0) {
            return Err(field("reserved byte"));
        }
        let ends = (raw.links == 1) == (raw.base_units == 0);
        if raw.back.get() == 0 || !(1..=LINKS_MAX).contains(&raw.links) || !ends {
            return Err(field("base"));
        }
        Ok(Self {
            back: raw.back.get(),
            base_crc: raw.base_crc.get(),
            base_units: raw.base_units,
            links: raw.links,
            crc: raw.crc.get(),
            runs: runs.to_vec(),
        })
    }

    /// As bytes: whole units.
    pub fn to_bytes(&self) -> Vec<u8> {
        let raw = RawDelta {
            back: self.back.into(),
            base_crc: self.base_crc.into(),
            crc: self.crc.into(),
            length: (self.runs.len() as u32).into(),
            base_units: self.base_units,
            links: self.links,
            reserved: [0; 6],
        };
        let mut bytes = raw.as_bytes().to_vec();
        bytes.extend_from_slice(&self.runs);
        bytes.resize(bytes.len().next_multiple_of(UNIT), 0);
        bytes
    }

    /// Turns the base into the content. The caller checks its checksum.
    pub fn apply(&self, content: &mut [u8]) -> Result<(), FormatError> {
        let wrong = FormatError::Field { structure: Structure::HistoryRecord, field: "run" };
        let mut rest = self.runs.as_slice();
        let mut at = 0;
        while !rest.is_empty() {
            let (head, tail) = RawRun::ref_from_prefix(rest).map_err(|_| wrong)?;
            let (bytes, tail) = tail.split_at_checked(usize::from(head.length.get())).ok_or(wrong)?;
            let start = at + usize::from(head.skip.get());
            let place = content.get_mut(start..start + bytes.len()).ok_or(wrong)?;
            place.iter_mut().zip(bytes).for_each(|(place, byte)| *place ^= byte);
            (at, rest) = (start + bytes.len(), tail);
        }
        Ok(())
    }
}

/// The runs that make `after` of `before`, which is as long; `None` when they take more than
/// `limit` bytes, which is less than a content has.
pub fn runs_between(before: &[u8], after: &[u8], limit: usize) -> Option<Vec<u8>> {
    let mut runs = Vec::new();
    let mut done = 0;
    while let Some(start) = first_difference(before, after, done) {
        let end = end_of_run(before, after, start, limit);
        if runs.len() + RUN + (end - start) > limit {
            return None;
        }
        let skip = u16::try_from(start - done).ok()?;
        let length = u16::try_from(end - start).ok()?;
        runs.extend_from_slice(RawRun { skip: skip.into(), length: length.into() }.as_bytes());
        runs.extend(before[start..end].iter().zip(&after[start..end]).map(|(before, after)| before ^ after));
        done = end;
    }
    Some(runs)
}

/// The first byte from `from` on that differs.
fn first_difference(before: &[u8], after: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    for (before, after) in before[from..].chunks(COMPARED).zip(after[from..].chunks(COMPARED)) {
        if before != after {
            let found = before.iter().zip(after).position(|(before, after)| before != after);
            return found.map(|found| at + found);
        }
        at += before.len();
    }
    None
}

/// The end of the last differing byte before the next gap; a value past the limit when it is
/// further away.
fn end_of_run(before: &[u8], after: &[u8], start: usize, limit: usize) -> usize {
    let mut end = start;
    for (at, (before, after)) in before.iter().zip(after).enumerate().skip(start) {
        if before != after {
            end = at + 1;
        }
        if at + 1 - end >= GAP || end - start > limit {
            break;
        }
    }
    end
}
