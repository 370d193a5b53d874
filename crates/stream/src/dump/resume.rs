//! Resumes a part whose writing was interrupted.
//!
//! The records of a part are those of its plan, in order. The file is compared with the output of
//! the same plan, from head to head and payload by payload. Writing resumes at the first record
//! that is incomplete, does not verify or differs. The length of a file proves nothing.
//!
//! Reading all of a long part takes about as long as writing it did. A caller can avoid that: it
//! makes the part durable from time to time, and records the position ([`Reached`]). Then the data
//! before the last of two such marks is read only from the mark before it. If that stretch does not
//! lead to the second mark (the file was changed, or is another one), all of it is read after all.

use std::sync::Arc;

use cairn_base::Checksum;
use cairn_format::SnapshotEntry;
use cairn_format::dump::DumpId;
use cairn_format::stream::{RECORD_SNAPSHOTS_MAX, RecordHeader, RecordKind, StreamRun, chain_digest};

use super::error::DumpError;
use super::index::{DumpBytes, in_order};
use super::read::{HEAD_BYTES, PartHead, PartReader, read_error};
use super::write::{Dump, Shape};
use crate::error::StreamError;
use crate::produce::{Reached, payload_of};

/// The existing content of a part.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Begun {
    /// After the last record that stays.
    pub(super) at: Reached,
    pub(super) whole: bool,
    trusted: bool,
}

impl Begun {
    /// Where writing resumes. Later bytes of the file are useless; [`Reached::bytes`] is the whole
    /// file if it is complete.
    pub fn at(&self) -> &Reached {
        &self.at
    }

    /// Nothing is missing.
    pub fn is_whole(&self) -> bool {
        self.whole
    }

    /// The file matches the marks.
    pub fn is_as_marked(&self) -> bool {
        self.trusted
    }
}

/// The snapshot table at the beginning of a part of the dump `id`. `None` when it is not written
/// yet, cannot be read, or the file is something else.
///
/// # Errors
/// [`DumpError::Read`].
pub fn begun_table(
    file: &str,
    bytes: &Arc<dyn DumpBytes>,
    id: DumpId,
) -> Result<Option<Vec<SnapshotEntry>>, DumpError> {
    match PartReader::open_blocks(file, in_order(bytes, 0)) {
        Ok(reader) => Ok(reader.table().filter(|_| reader.head().dump.dump == id)),
        Err(error @ DumpError::Read { .. }) => Err(error),
        Err(_) => Ok(None),
    }
}

impl Dump<'_> {
    /// The checksum of the head that a part begins and ends with. It differs when the volume, its
    /// snapshots or the blocks to dump are no longer what they were.
    pub fn head_checksum(&self, part: u32) -> Checksum {
        Checksum::of(&self.head(part, &self.shape(part)).to_bytes())
    }

    /// A part whose bytes up to `at` are durable in a place where they cannot be read back. `head`
    /// is its [`Dump::head_checksum`] from when it was begun. None if it cannot be resumed there.
    pub fn resumable(&self, part: u32, head: Checksum, at: &Reached) -> Option<Begun> {
        let shape = self.shape(part);
        let records = at.records.saturating_sub(shape.table).min(shape.extents) as usize;
        let fits = self.head_checksum(part) == head && self.blocks_in(part, records) == at.blocks;
        fits.then_some(Begun { at: *at, whole: false, trusted: true })
    }

    /// Blocks in the first `extents` records with blocks of a part.
    fn blocks_in(&self, part: u32, extents: usize) -> u64 {
        let records = self.batches(part).flatten().take(extents);
        records.flatten().map(|(_, count)| count).sum()
    }

    /// The existing content of a part in `bytes`. `marks` are the last two positions at which it
    /// was made durable, oldest first; `None` when they are unknown for this very file.
    ///
    /// # Errors
    /// [`DumpError::OtherFile`] for anything but this part of this dump, unless it is empty or
    /// zeros; [`DumpError::OtherBegin`] when the dump would begin with another head;
    /// [`StreamError::Cancelled`] once `ended` returns true.
    pub fn begun(
        &self,
        part: u32,
        (file, bytes): (&str, &dyn DumpBytes),
        marks: &[Reached],
        ended: &dyn Fn() -> bool,
    ) -> Result<Begun, DumpError> {
        let failed = |source| read_error(file, source);
        let shape = self.shape(part);
        let head = self.head(part, &shape);
        let mut found = [0; HEAD_BYTES];
        let have = bytes.read_at(0, &mut found).map_err(failed)?;
        let expected = head.to_bytes();
        if found[..have] != expected {
            return self.begins_otherwise(part, file, &found[..have], &expected, marks);
        }
        let start = Reached {
            bytes: HEAD_BYTES as u64,
            digest: chain_digest(Checksum::default(), &expected),
            ..Reached::default()
        };
        let walk = Walk { dump: self, part, file, bytes, shape, head: expected, ended };
        if let Some(last) = marks.last()
            && let before = marks.iter().nth_back(1).unwrap_or(&start)
            && walk.fits(before)
        {
            let begun = walk.go(*before, Some(last))?;
            if begun.trusted {
                return Ok(begun);
            }
        }
        walk.go(start, None)
    }

    /// Whether a file begins with something other than the head: a torn beginning counts as none,
    /// and anything else is not overwritten.
    fn begins_otherwise(
        &self,
        part: u32,
        file: &str,
        found: &[u8],
        expected: &[u8],
        marks: &[Reached],
    ) -> Result<Begun, DumpError> {
        let torn = found.iter().zip(expected).all(|(found, expected)| found == expected || *found == 0);
        if found.is_empty() || (torn && marks.is_empty()) {
            return Ok(Begun::default());
        }
        let parsed = found.first_chunk::<HEAD_BYTES>().and_then(|head| PartHead::parse(head).ok());
        let own = |head: &PartHead| head.dump.dump == self.label.id && head.dump.part == part;
        let file = file.to_owned();
        Err(match parsed.is_some_and(|head| own(&head)) {
            true => DumpError::OtherBegin { file },
            false => DumpError::OtherFile { file, part: part + 1 },
        })
    }
}

/// A part that is compared with its plan.
struct Walk<'a> {
    dump: &'a Dump<'a>,
    part: u32,
    file: &'a str,
    bytes: &'a dyn DumpBytes,
    shape: Shape,
    /// As bytes.
    head: Vec<u8>,
    ended: &'a dyn Fn() -> bool,
}

impl Walk<'_> {
    /// How many records with blocks are among the first `records`.
    fn extents_in(&self, records: u64) -> usize {
        records.saturating_sub(self.shape.table).min(self.shape.extents) as usize
    }

    /// Whether the plan has that many blocks in that many records.
    fn fits(&self, at: &Reached) -> bool {
        self.dump.blocks_in(self.part, self.extents_in(at.records)) == at.blocks
    }

    /// Advances from record to record while they match the plan. With a `mark`, returns whether it
    /// was reached on the way.
    fn go(&self, at: Reached, mark: Option<&Reached>) -> Result<Begun, DumpError> {
        let mut begun = Begun { at, whole: false, trusted: mark == Some(&at) };
        let mut extents = self.dump.batches(self.part).flatten().skip(self.extents_in(at.records));
        let records = 2 * self.shape.table + self.shape.extents + 1;
        let mut payload = Vec::new();
        while begun.at.records < records {
            if (self.ended)() {
                return Err(StreamError::Cancelled.into());
            }
            let Some(head) = self.record(&begun.at, &mut payload)? else { return Ok(begun) };
            let header = RecordHeader::parse_in(&head, self.dump.label.id);
            let Some(header) =
                header.ok().filter(|header| self.is_due(header, &payload, &begun.at, &mut extents))
            else {
                return Ok(begun);
            };
            begun.at = Reached {
                bytes: begun.at.bytes + (head.len() + payload.len()) as u64,
                records: begun.at.records + 1,
                blocks: begun.at.blocks + u64::from(header.blocks),
                digest: chain_digest(begun.at.digest, &head),
            };
            begun.trusted |= mark == Some(&begun.at);
        }
        let end = begun.at.bytes + HEAD_BYTES as u64;
        let mut copy = [0; HEAD_BYTES];
        let have =
            self.bytes.read_at(begun.at.bytes, &mut copy).map_err(|error| read_error(self.file, error))?;
        let length = self.bytes.length().map_err(|error| read_error(self.file, error))?;
        if copy[..have] == self.head && length == end {
            begun.at.bytes = end;
            begun.whole = true;
        }
        Ok(begun)
    }

    /// The head of the record at `at`, and its payload; `None` without a complete record that
    /// verifies.
    fn record(
        &self,
        at: &Reached,
        payload: &mut Vec<u8>,
    ) -> Result<Option<[u8; RecordHeader::SIZE]>, DumpError> {
        let failed = |source| read_error(self.file, source);
        let mut head = [0; RecordHeader::SIZE];
        if self.bytes.read_at(at.bytes, &mut head).map_err(failed)? < head.len() {
            return Ok(None);
        }
        let Ok(header) = RecordHeader::parse_in(&head, self.dump.label.id) else { return Ok(None) };
        payload.resize(header.payload as usize, 0);
        let behind = at.bytes + head.len() as u64;
        let have = self.bytes.read_at(behind, payload).map_err(failed)?;
        let verified = have == payload.len() && Checksum::of(payload) == header.checksum;
        Ok(verified.then_some(head))
    }

    /// Whether the plan has this record at this place.
    fn is_due(
        &self,
        header: &RecordHeader,
        payload: &[u8],
        at: &Reached,
        extents: &mut impl Iterator<Item = Vec<cairn_volume::Run>>,
    ) -> bool {
        let Shape { table, extents: count, .. } = self.shape;
        let plan = self.dump.plan;
        if header.sequence != at.records {
            return false;
        }
        let of_table = |number: u64| {
            let chunk = plan.table.chunks(RECORD_SNAPSHOTS_MAX).nth(number as usize);
            header.kind == RecordKind::Entries && chunk.is_some_and(|chunk| payload_of(chunk) == payload)
        };
        match at.records {
            number if number < table => of_table(number),
            number if number < table + count => {
                let runs = StreamRun::parse_all(header, payload).unwrap_or_default();
                let runs = runs.into_iter().map(|(first, count)| (first, u64::from(count)));
                header.kind == RecordKind::Extents && extents.next().is_some_and(|due| runs.eq(due))
            }
            number if number < 2 * table + count => of_table(number - table - count),
            _ => header.kind == RecordKind::Trailer && payload == at.trailer(plan.table_digest).to_bytes(),
        }
    }
}
