//! Contents that take less room in the log: XOR with an earlier version of the block, and identical
//! content once (Trap-array and Peabody, section 5 of the 2007 paper).
//!
//! **No version refers to another segment.** A version stored as a difference from an earlier one
//! (its base), or as a reference to equal content, is in the same segment as that. A segment is
//! freed only when no version in the index has its place there. So the base of a version exists as
//! long as the version does, whatever happens to the version that the base was stored for. The
//! window may pass it, retention may drop it, or a write of the same window may replace it: none of
//! them has to check for dependents. A version that is moved to another segment is reconstructed
//! and stored there anew. The price: a block is stored whole at least once a segment.
//!
//! [`Recent`] has the contents of the segment being filled, as far as they fit in memory, by block
//! and by checksum. So finding a base needs no read, and bytes are compared with bytes. It is empty
//! when a segment begins, and after an opening.
//!
//! A reader of a delta checks that: a base in another segment is damage, whatever is stored there.
//!
//! A base comes before its dependents, in the log or within a record. So the end that a power cut
//! leaves is before both, or after the base. A chain has at most [`LINKS_MAX`] deltas, then comes a
//! version that is stored whole. Damage costs only the versions that depend on the damaged one, and
//! is reported. The stored bytes have a checksum in their entry, the base has one, and the content
//! has one after each step.

use std::collections::{HashMap, VecDeque};

use cairn_base::crc32c;
use cairn_device::{DeviceError, Segment, Segments};
use cairn_format::delta::{Delta, LINKS_MAX, runs_between};
use cairn_format::history::{NO_LBA, PLACE_UNIT, Reduction};

use crate::content::crc;
use crate::history::History;
use crate::index::Version;

/// Bytes of contents that are remembered at most: as much as the largest segment of a store holds
/// unless it is of more than 256 GiB.
const RECENT_BYTES: u64 = 32 << 20;
/// The memory of one of them in addition to its bytes.
const OVERHEAD: u64 = 256;
/// The smallest ratio of a content to its delta that is worth storing: reading a delta needs at
/// least a second read.
const WORTH: usize = 2;
const UNIT: usize = PLACE_UNIT as usize;

/// How and where a content is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stored {
    /// In units of 512 bytes; from where, the user knows.
    pub(crate) place: u64,
    /// CRC-32C of the stored bytes.
    pub(crate) crc: u32,
    /// Units that a delta takes; 0: the content is stored whole.
    pub(crate) units: u8,
}

impl Stored {
    pub(crate) fn of(version: &Version) -> Self {
        Self { place: version.place, crc: version.crc, units: version.units }
    }

    /// The number of stored bytes of a content of `length`.
    pub(crate) fn bytes(&self, length: usize) -> usize {
        if self.units == 0 { length } else { usize::from(self.units) * UNIT }
    }

    /// The error for stored bytes that fail their checksum.
    pub(crate) fn damaged(&self, length: usize) -> DeviceError {
        let (offset, length) = (self.place * PLACE_UNIT, self.bytes(length) as u64);
        DeviceError::Corrupt { offset, length }
    }
}

/// A content that is remembered.
struct Remembered {
    lba: u64,
    sum: u32,
    content: Segments,
    stored: Stored,
    /// Deltas up to one that is stored whole.
    links: u8,
}

/// Contents of the segment that is being filled. Places are from its start.
#[derive(Default)]
pub(crate) struct Recent {
    /// In the order in which they were stored; they are counted through.
    known: VecDeque<Remembered>,
    /// The number of the first of them.
    first: u64,
    /// The last one of each block.
    by_block: HashMap<u64, u64>,
    /// The last one of each checksum.
    by_sum: HashMap<u32, u64>,
    bytes: u64,
}

impl Recent {
    /// The stored form of a content when the next free place is `place`, and the bytes to write
    /// there, if any.
    pub(crate) fn store(
        &mut self,
        reduction: Reduction,
        lba: u64,
        content: Segments,
        place: u64,
    ) -> (Stored, Option<Segments>) {
        let sum = crc(&content);
        let whole = Stored { place, crc: sum, units: 0 };
        if reduction == Reduction::NONE || lba == NO_LBA {
            return (whole, Some(content));
        }
        if let (true, Some(stored)) = (reduction.identical, self.identical(sum, &content)) {
            return (stored, None);
        }
        let delta = if reduction.xor { self.delta(lba, sum, &content, place) } else { None };
        let (stored, links, new) = match delta {
            Some(delta) => {
                let bytes = delta.to_bytes();
                let units = (bytes.len() / UNIT) as u8;
                (Stored { place, crc: crc32c(&bytes), units }, delta.links, Segments::copy_of(&bytes))
            }
            None => (whole, 0, content.clone()),
        };
        self.remember(Remembered { lba, sum, content, stored, links });
        (stored, Some(new))
    }

    fn get(&self, number: Option<&u64>) -> Option<&Remembered> {
        self.known.get(number?.checked_sub(self.first)? as usize)
    }

    /// Where the same bytes are stored.
    fn identical(&self, sum: u32, content: &Segments) -> Option<Stored> {
        let known = self.get(self.by_sum.get(&sum))?;
        is_same(&known.content, content).then_some(known.stored)
    }

    /// The difference of a content from the last one of its block, if it is worth it.
    fn delta(&self, lba: u64, sum: u32, content: &Segments, place: u64) -> Option<Delta> {
        let base = self.get(self.by_block.get(&lba))?;
        let units = content.len() / UNIT / WORTH;
        if base.links >= LINKS_MAX || base.content.len() != content.len() || units == 0 {
            return None;
        }
        let room = Delta::room(units);
        let runs = runs_between(&base.content.to_vec(), &content.to_vec(), room)?;
        let back = u32::try_from(place - base.stored.place).ok()?;
        let links = base.links + 1;
        Some(Delta { back, base_crc: base.stored.crc, base_units: base.stored.units, links, crc: sum, runs })
    }

    fn remember(&mut self, known: Remembered) {
        let number = self.first + self.known.len() as u64;
        self.by_block.insert(known.lba, number);
        self.by_sum.insert(known.sum, number);
        self.bytes += known.content.len() as u64 + OVERHEAD;
        self.known.push_back(known);
        while self.bytes > RECENT_BYTES
            && let Some(oldest) = self.known.pop_front()
        {
            self.bytes -= oldest.content.len() as u64 + OVERHEAD;
            if self.by_block.get(&oldest.lba) == Some(&self.first) {
                self.by_block.remove(&oldest.lba);
            }
            if self.by_sum.get(&oldest.sum) == Some(&self.first) {
                self.by_sum.remove(&oldest.sum);
            }
            self.first += 1;
        }
    }
}

/// True when both have the same bytes, in whatever pieces.
fn is_same(one: &Segments, other: &Segments) -> bool {
    if one.iter().map(Segment::len).eq(other.iter().map(Segment::len)) {
        return one.iter().zip(other.iter()).all(|(one, other)| one.bytes() == other.bytes());
    }
    one.to_vec() == other.to_vec()
}

/// A content that is being put together.
struct Chain {
    /// Which one.
    at: usize,
    length: usize,
    /// From the content back to its base.
    deltas: Vec<Delta>,
    /// The part to read next.
    next: Stored,
    /// The start of the segment that contains all of it.
    segment: u64,
}

impl Chain {
    /// A base is stored in the same segment, and completely before its dependents.
    fn is_before(&self, base: &Stored) -> bool {
        let units = base.bytes(self.length).div_ceil(UNIT) as u64;
        base.place >= self.segment && base.place + units <= self.next.place
    }

    /// Takes the bytes stored at `next`; returns the content once it is complete.
    fn take(&mut self, data: &Segments) -> Result<Option<Segments>, DeviceError> {
        let damaged = self.next.damaged(self.length);
        if self.next.units > 0 {
            let delta = Delta::parse(&data.to_vec()).map_err(|_| damaged.clone())?;
            let follows = self.deltas.last().is_none_or(|later| later.links == delta.links + 1);
            let place = self.next.place.checked_sub(delta.back.into()).filter(|_| follows);
            let base = place.map(|place| Stored { place, crc: delta.base_crc, units: delta.base_units });
            self.next = base.filter(|base| self.is_before(base)).ok_or(damaged)?;
            self.deltas.push(delta);
            return Ok(None);
        }
        let mut content = data.to_vec();
        for delta in self.deltas.iter().rev() {
            delta.apply(&mut content).map_err(|_| damaged.clone())?;
            if crc32c(&content) != delta.crc {
                return Err(damaged);
            }
        }
        Ok(Some(Segments::copy_of(&content)))
    }
}

impl History {
    /// Reconstructs contents from their stored parts. For a delta its base is read as well, one
    /// link of all chains at a time.
    pub(crate) fn rebuild(
        &self,
        places: &[(Stored, usize)],
        read: Vec<Result<Segments, DeviceError>>,
    ) -> Vec<Result<Segments, DeviceError>> {
        let mut contents = read;
        let mut chains: Vec<Chain> = Vec::new();
        for (at, (stored, length)) in places.iter().enumerate().filter(|(_, (stored, _))| stored.units > 0) {
            let segment = self.segment_start(stored.place);
            let mut chain = Chain { at, length: *length, deltas: Vec::new(), next: *stored, segment };
            match contents[at].as_ref().map_err(DeviceError::clone).and_then(|data| chain.take(data)) {
                Ok(_) => chains.push(chain),
                Err(error) => contents[at] = Err(error),
            }
        }
        while !chains.is_empty() {
            let wanted: Vec<(Stored, usize)> =
                chains.iter().map(|chain| (chain.next, chain.length)).collect();
            let read = self.read_stored(&wanted);
            let mut left = Vec::new();
            for (mut chain, data) in chains.into_iter().zip(read) {
                match data.and_then(|data| chain.take(&data)) {
                    Ok(None) => left.push(chain),
                    Ok(Some(content)) => contents[chain.at] = Ok(content),
                    Err(error) => contents[chain.at] = Err(error),
                }
            }
            chains = left;
        }
        contents
    }
}
