//! Reads a store at its opening: the headers of segments, their summaries, and their records one
//! after the other.
//!
//! Each of these has another copy. If the store otherwise answers, an unreadable block counts as
//! damaged: the other copy is used.

use cairn_base::{BLOCK_SIZE, crc32c};
use cairn_device::DeviceError;
use cairn_format::history::{
    EntryKind, HistoryEntry, HistoryRecord, HistorySegment, MarkContent, PLACE_UNIT,
};
use cairn_format::{BlockBytes, FormatError, Structure};

use crate::HistoryError;
use crate::history::History;
use crate::log::{RECORD_BYTES, Writer};
use crate::lost::ATTEMPTS;
use crate::recover::{BLOCK, block};

/// A segment as recovery finds it.
#[derive(Clone)]
pub(crate) struct FoundSegment {
    pub(crate) index: usize,
    pub(crate) sequence: u64,
    /// Of the first block, unless that is damaged.
    pub(crate) first_record: Option<u64>,
    /// The last block, when there is one.
    pub(crate) end: Option<HistorySegment>,
    /// Its first block is missing: a cut has kept a record and not that, or it was damaged.
    pub(crate) lacks_begin: bool,
}

/// The records of a segment.
pub(crate) struct Records {
    pub(crate) entries: Vec<HistoryEntry>,
    /// The number of each record, and its first entry.
    pub(crate) starts: Vec<(u64, usize)>,
    /// The number after the last one.
    pub(crate) next_record: u64,
    /// Block after the last one.
    pub(crate) position: u64,
    pub(crate) previous: u32,
    /// According to the records, this one and all earlier ones were durable.
    pub(crate) durable_through: u64,
    /// Why it is not known whether another one follows: that place can't be read.
    pub(crate) unread: Option<DeviceError>,
}

impl History {
    /// A segment that was named as ahead, if the log has continued there.
    pub(crate) fn find_ahead(
        &self,
        writer: &Writer,
        index: usize,
    ) -> Result<Option<FoundSegment>, HistoryError> {
        let (store, from) = (writer.superblock.store, writer.superblock.ahead_from);
        let first = writer.start_of(index);
        let begin = self.block_if_readable(first)?;
        let begin = begin.and_then(|bytes| HistorySegment::parse(&bytes, store, first).ok());
        if let Some(begin) = begin.filter(|begin| begin.summary_blocks.is_none() && begin.sequence >= from) {
            let first_record = Some(begin.record);
            let sequence = begin.sequence;
            return Ok(Some(FoundSegment { index, sequence, first_record, end: None, lacks_begin: false }));
        }
        // If its first block is damaged its first record has the same facts.
        let record = self.record_if_readable(writer, (first + 1) * BLOCK, 1)?;
        let record =
            record.filter(|record| !record.summary && record.segment >= from && record.previous == 0);
        Ok(record.map(|record| {
            let (sequence, first_record) = (record.segment, Some(record.sequence));
            FoundSegment { index, sequence, first_record, end: None, lacks_begin: true }
        }))
    }

    /// The block that ends a segment, if there is one of that life of it.
    pub(crate) fn find_end(
        &self,
        writer: &Writer,
        index: usize,
        sequence: u64,
    ) -> Result<Option<HistorySegment>, HistoryError> {
        let last = writer.start_of(index) + writer.superblock.segment_blocks - 1;
        let end = self.block_if_readable(last)?;
        let end = end.and_then(|bytes| HistorySegment::parse(&bytes, writer.superblock.store, last).ok());
        Ok(end.filter(|end| end.summary_blocks.is_some() && end.sequence == sequence))
    }

    /// Whether there is such a block, or may be one that can't be read now and can be another time.
    pub(crate) fn may_have_ended(
        &self,
        writer: &Writer,
        index: usize,
        sequence: u64,
    ) -> Result<bool, HistoryError> {
        let last = writer.start_of(index) + writer.superblock.segment_blocks - 1;
        Ok(self.block_if_readable(last)?.is_none() || self.find_end(writer, index, sequence)?.is_some())
    }

    /// The last durable record, as records of a segment from block `position` on state it; they
    /// need not be adjacent. Unreadable blocks are ignored.
    pub(crate) fn durable_beyond(
        &self,
        writer: &Writer,
        found: &FoundSegment,
        position: u64,
    ) -> Result<u64, HistoryError> {
        const PIECE: u64 = 64;
        let store = writer.superblock.store;
        let end = writer.superblock.segment_blocks;
        let mut proof = 0;
        let mut bytes = [[0; BLOCK_SIZE]; PIECE as usize];
        let mut start = position;
        while start < end {
            let offset = (writer.start_of(found.index) + start) * BLOCK;
            let piece = &mut bytes[..PIECE.min(end - start) as usize];
            if self.store.read_into(offset, piece.as_flattened_mut()).is_err() {
                for (at, block) in (offset..).step_by(BLOCK_SIZE).zip(piece.iter_mut()) {
                    if !self.fill(at, block)? {
                        block.fill(0);
                    }
                }
            }
            // Most blocks are content, or unused yet: the first bytes are enough to tell.
            for (position, _) in
                (start..).zip(&*piece).filter(|(_, block)| HistoryRecord::peek(block, store).is_ok())
            {
                let offset = (writer.start_of(found.index) + position) * BLOCK;
                let record = self.record_if_readable(writer, offset, position)?;
                if let Some(record) = record.filter(|record| record.segment == found.sequence) {
                    proof = proof.max(record.durable_through);
                }
            }
            start += PIECE;
        }
        Ok(proof)
    }

    pub(crate) fn find_segment(&self, writer: &Writer, index: usize) -> Result<FoundSegment, HistoryError> {
        let store = writer.superblock.store;
        let first = writer.start_of(index);
        let last = first + writer.superblock.segment_blocks - 1;
        let unread = Err(FormatError::Checksum(Structure::HistorySegment));
        let parse = |bytes: BlockBytes, address| HistorySegment::parse(&bytes, store, address);
        let begin = self.block_if_readable(first)?.map_or(unread, |bytes| parse(bytes, first));
        let end = self.block_if_readable(last)?.and_then(|bytes| parse(bytes, last).ok());
        let end = end.filter(|end| end.summary_blocks.is_some());
        match begin.and_then(|begin| self.not_older(writer, first, begin, end.as_ref())) {
            Ok(begin) => {
                // An end block from an earlier life of the segment does not count.
                let end = end.filter(|end| end.sequence == begin.sequence);
                let (sequence, first_record) = (begin.sequence, Some(begin.record));
                Ok(FoundSegment { index, sequence, first_record, end, lacks_begin: false })
            }
            Err(source) => match end {
                Some(end) => {
                    // It may be from an earlier life, if this one has not ended: its first record
                    // decides.
                    let record = self.record_if_readable(writer, (first + 1) * BLOCK, 1)?;
                    if record.is_some_and(|record| record.segment != end.sequence) {
                        return Err(HistoryError::Damaged { offset: first * BLOCK, source });
                    }
                    tracing::error!(segment = index, %source, "the first block of a history segment is damaged; its summary is used");
                    let (sequence, end) = (end.sequence, Some(end));
                    Ok(FoundSegment { index, sequence, first_record: None, end, lacks_begin: true })
                }
                None => Err(HistoryError::Damaged { offset: first * BLOCK, source }),
            },
        }
    }

    /// Finds the log's last segment by its first record, when its first block is damaged; `before`
    /// is the newest of the others. `None` if it may be from an earlier life of the segment, or
    /// from one that a power cut removed from the log. Two signs exclude both: it has the number
    /// that was assigned last, or a record that was durable and follows the previous segment's last
    /// record.
    pub(crate) fn find_tail(
        &self,
        writer: &Writer,
        index: usize,
        before: Option<&FoundSegment>,
    ) -> Result<Option<FoundSegment>, HistoryError> {
        let superblock = &writer.superblock;
        let record = self.record_if_readable(writer, (writer.start_of(index) + 1) * BLOCK, 1)?;
        let Some(record) = record.filter(|record| !record.summary && record.previous == 0) else {
            return Ok(None);
        };
        let (sequence, first) = (record.segment, record.sequence);
        let follows = match before {
            Some(before) => {
                before.end.is_some_and(|end| end.record == first) && first <= superblock.durable_through
            }
            None => first == 1,
        };
        let last = writer.start_of(index) + superblock.segment_blocks - 1;
        let end = self.block_if_readable(last)?;
        let end = end.and_then(|bytes| HistorySegment::parse(&bytes, superblock.store, last).ok());
        let is_tail = sequence < superblock.ahead_from
            && before.is_none_or(|before| before.sequence < sequence)
            && end.is_none_or(|end| end.sequence < sequence)
            && (follows || sequence + 1 == superblock.ahead_from);
        Ok(is_tail.then(|| {
            tracing::error!(
                segment = index,
                "the first block of the current history segment is damaged; its first record is used"
            );
            FoundSegment { index, sequence, first_record: Some(first), end: None, lacks_begin: true }
        }))
    }

    /// Drops the first block of a segment if it is from an earlier life than the segment's end or
    /// first record, which are written later: the write that should have replaced it was lost.
    fn not_older(
        &self,
        writer: &Writer,
        first: u64,
        begin: HistorySegment,
        end: Option<&HistorySegment>,
    ) -> Result<HistorySegment, FormatError> {
        let is_older = |sequence: u64| begin.sequence < sequence;
        let record = self.record_at(writer, (first + 1) * BLOCK, 1).ok().flatten();
        let later = end.map(|end| end.sequence).max(record.map(|(record, _)| record.segment));
        if later.is_some_and(is_older) {
            Err(FormatError::Misplaced(Structure::HistorySegment))
        } else {
            Ok(begin)
        }
    }

    /// The entries of a segment that had ended: by its summary, or by its records.
    pub(crate) fn records_of(
        &self,
        writer: &Writer,
        found: &FoundSegment,
        end_record: Option<u64>,
    ) -> Result<Records, HistoryError> {
        let position = writer.superblock.segment_blocks;
        let mut damage = None;
        if let Some(end) = found.end {
            match self.summary(writer, found.index, &end) {
                Ok(entries) => {
                    let starts = vec![(end.record - 1, 0)];
                    let (next_record, previous, durable_through, unread) = (end.record, 0, 0, None);
                    return Ok(Records {
                        entries,
                        starts,
                        next_record,
                        position,
                        previous,
                        durable_through,
                        unread,
                    });
                }
                Err(error @ HistoryError::Device(_)) => return Err(error),
                Err(error) => {
                    tracing::error!(segment = found.index, %error, "the summary of a history segment is damaged; its records are used");
                    damage = Some(error);
                }
            }
        }
        let Some(first_record) = found.first_record else {
            let source = FormatError::Checksum(Structure::HistoryRecord);
            let offset = writer.start_of(found.index) * BLOCK;
            return Err(damage.unwrap_or(HistoryError::Damaged { offset, source }));
        };
        if found.end.is_none() {
            tracing::error!(
                segment = found.index,
                "the last block of a history segment is damaged; its records are used"
            );
        }
        let durable = writer.superblock.durable_through;
        let mut records = self.scan_records(writer, found, first_record, durable, end_record)?;
        if let Some(error) = records.unread.take() {
            return Err(HistoryError::Device(error));
        }
        // It had ended before the superblock: a missing record is lost.
        if end_record.is_some_and(|end| records.next_record < end) {
            return Err(HistoryError::Missing { sequence: records.next_record });
        }
        Ok(records)
    }

    /// Entries as the summary of a segment has them.
    pub(crate) fn summary(
        &self,
        writer: &Writer,
        segment: usize,
        end: &HistorySegment,
    ) -> Result<Vec<HistoryEntry>, HistoryError> {
        let blocks = u64::from(end.summary_blocks.unwrap_or(0));
        let last = writer.start_of(segment) + writer.superblock.segment_blocks - 1;
        let damaged = |offset, source| HistoryError::Damaged { offset, source };
        let structure = Structure::HistoryRecord;
        if blocks == 0 || blocks + 1 >= writer.superblock.segment_blocks {
            return Err(damaged(last * BLOCK, FormatError::Field { structure, field: "summary" }));
        }
        let offset = (last - blocks) * BLOCK;
        let mut bytes = vec![0; (blocks * BLOCK) as usize];
        if !self.fill(offset, &mut bytes)? {
            return Err(damaged(offset, FormatError::Checksum(structure)));
        }
        let record = HistoryRecord::parse(&bytes, writer.superblock.store);
        let record = record.map_err(|source| damaged(offset, source))?;
        if !record.summary || record.segment != end.sequence || record.sequence != end.record {
            return Err(damaged(offset, FormatError::Misplaced(structure)));
        }
        self.check_places(writer, &record, offset)?;
        Ok(record.entries)
    }

    /// The entries of a closed segment.
    pub(crate) fn segment_entries(
        &self,
        writer: &Writer,
        segment: usize,
        sequence: u64,
    ) -> Result<Vec<HistoryEntry>, HistoryError> {
        let found = self.find_segment(writer, segment)?;
        if found.sequence != sequence {
            return Err(HistoryError::Missing { sequence: found.first_record.unwrap_or(0) });
        }
        let end = found.end.map(|end| end.record);
        Ok(self.records_of(writer, &found, end)?.entries)
    }

    /// The records of a segment, one after the other. The content of those up to `durable` is not
    /// checked. If the first record of the next segment is known, the scan ends before `limit`: the
    /// remaining records here were torn by a cut, and the log continued there because no other
    /// record of its size came.
    pub(crate) fn scan_records(
        &self,
        writer: &Writer,
        found: &FoundSegment,
        first_record: u64,
        mut durable: u64,
        limit: Option<u64>,
    ) -> Result<Records, HistoryError> {
        let mut records = Records {
            entries: Vec::new(),
            starts: Vec::new(),
            next_record: first_record,
            position: 1,
            previous: 0,
            durable_through: 0,
            unread: None,
        };
        let goes_on = |records: &Records| {
            records.position + 2 < writer.superblock.segment_blocks
                && limit.is_none_or(|limit| records.next_record < limit)
        };
        while goes_on(&records) {
            let offset = (writer.start_of(found.index) + records.position) * BLOCK;
            let found_there = self.look_for_record(writer, offset, records.position)?;
            let Some((record, sum)) = found_there.unwrap_or_else(|error| {
                records.unread = Some(error);
                None
            }) else {
                break;
            };
            let follows = !record.summary
                && record.segment == found.sequence
                && record.sequence == records.next_record
                && record.previous == records.previous;
            if !follows {
                break;
            }
            if record.sequence > durable
                && found.end.is_none()
                && !self.content_is_there(writer, found, &record.entries, records.position)?
            {
                break;
            }
            durable = durable.max(record.durable_through);
            records.durable_through = durable;
            records.starts.push((record.sequence, records.entries.len()));
            records.position += u64::from(record.blocks);
            records.previous = sum;
            records.next_record += 1;
            records.entries.extend(record.entries);
        }
        Ok(records)
    }

    /// The record at `offset`, when there is one that is whole.
    fn record_at(
        &self,
        writer: &Writer,
        offset: u64,
        position: u64,
    ) -> Result<Option<(HistoryRecord, u32)>, HistoryError> {
        let store = writer.superblock.store;
        let first = block(&*self.store, offset / BLOCK)?;
        let room = writer.superblock.segment_blocks - position;
        let head = match HistoryRecord::peek(&first, store) {
            Ok(head) if head < room => head,
            Err(source @ FormatError::Version { .. }) => {
                return Err(HistoryError::Damaged { offset, source });
            }
            _ => return Ok(None),
        };
        let mut bytes = vec![0; (head * BLOCK) as usize];
        self.store.read_into(offset, &mut bytes)?;
        let Ok(record) = HistoryRecord::parse(&bytes, store) else { return Ok(None) };
        if u64::from(record.blocks) >= room {
            return Ok(None);
        }
        self.check_places(writer, &record, offset)?;
        Ok(Some((record, HistoryRecord::checksum(&bytes))))
    }

    /// The same, and why it can't be read where the store answers otherwise.
    fn look_for_record(
        &self,
        writer: &Writer,
        offset: u64,
        position: u64,
    ) -> Result<Result<Option<(HistoryRecord, u32)>, DeviceError>, HistoryError> {
        let mut found = self.record_at(writer, offset, position);
        for _ in 1..ATTEMPTS {
            if matches!(found, Err(HistoryError::Device(_))) {
                found = self.record_at(writer, offset, position);
            }
        }
        match found {
            Err(HistoryError::Device(error)) => self.answers(&*self.store, &error).map(|()| Err(error)),
            found => found.map(Ok),
        }
    }

    /// The record at `offset`, when there is one that is whole and can be read.
    fn record_if_readable(
        &self,
        writer: &Writer,
        offset: u64,
        position: u64,
    ) -> Result<Option<HistoryRecord>, HistoryError> {
        match self.look_for_record(writer, offset, position) {
            Ok(found) => Ok(found.ok().flatten().map(|(record, _)| record)),
            Err(error @ HistoryError::Device(_)) => Err(error),
            Err(_) => Ok(None),
        }
    }

    /// Checks that every place is in its segment, and every block on the device.
    fn check_places(&self, writer: &Writer, record: &HistoryRecord, offset: u64) -> Result<(), HistoryError> {
        let end = writer.superblock.segment_blocks * BLOCK / PLACE_UNIT;
        let blocks = self.blocks();
        let sane = |entry: &HistoryEntry| {
            let length = match entry.kind {
                EntryKind::Mark => MarkContent::SIZE as u64,
                _ if entry.lba < blocks => self.length_of(entry.lba) as u64,
                _ => return false,
            };
            let fits = u64::from(entry.place) + u64::from(entry.length).div_ceil(PLACE_UNIT) <= end;
            let stored = match entry.reduced {
                true => u64::from(entry.length) < length,
                false => !entry.kind.has_data() || u64::from(entry.length) == length,
            };
            fits && u64::from(entry.place) < end && stored
        };
        if record.entries.iter().all(sane) {
            return Ok(());
        }
        let source = FormatError::Field { structure: Structure::HistoryRecord, field: "entry" };
        Err(HistoryError::Damaged { offset, source })
    }

    /// True when the store has all content of entries of a segment that is stored from block `from`
    /// of it on: no record's end was torn. Content before that belongs to earlier records, which
    /// have their own proof: damage there is not a torn end here. Nor is an unreadable block: a
    /// later read reports it.
    pub(crate) fn content_is_there(
        &self,
        writer: &Writer,
        found: &FoundSegment,
        entries: &[HistoryEntry],
        from: u64,
    ) -> Result<bool, HistoryError> {
        let base = writer.start_of(found.index) * BLOCK;
        let alignment = u64::from(self.store.geometry().alignment);
        let offset_of = |entry: &HistoryEntry| base + u64::from(entry.place) * PLACE_UNIT;
        let end_of = |entry: &HistoryEntry| offset_of(entry) + u64::from(entry.length);
        let is_own = |entry: &&HistoryEntry| u64::from(entry.place) * PLACE_UNIT >= from * BLOCK;
        let mut with_data: Vec<&HistoryEntry> =
            entries.iter().filter(|entry| entry.kind.has_data()).filter(is_own).collect();
        with_data.sort_by_key(|entry| entry.place);
        with_data.dedup_by_key(|entry| (entry.place, entry.crc, entry.length));
        // Contents of a record are adjacent, and are read together: there may be hundreds of
        // thousands.
        let follows = |one: &&HistoryEntry, next: &&HistoryEntry| {
            end_of(one).next_multiple_of(PLACE_UNIT) == offset_of(next)
        };
        let at_once = (RECORD_BYTES / u64::from(self.block_bytes)) as usize;
        for part in with_data.chunk_by(follows).flat_map(|stretch| stretch.chunks(at_once)) {
            let (Some(first), Some(last)) = (part.first(), part.last()) else { continue };
            let start = offset_of(first) / alignment * alignment;
            let mut bytes = vec![0; (end_of(last).next_multiple_of(alignment) - start) as usize];
            if part.len() > 1 && self.store.read_into(start, &mut bytes).is_err() {
                // A missing one before an unreadable one is the end all the same.
                for entry in part {
                    if !self.content_is_there(writer, found, &[**entry], from)? {
                        return Ok(false);
                    }
                }
                continue;
            }
            if part.len() == 1 && !self.fill(start, &mut bytes)? {
                continue;
            }
            let is_there = |entry: &&HistoryEntry| {
                let at = (offset_of(entry) - start) as usize;
                crc32c(&bytes[at..][..entry.length as usize]) == entry.crc
            };
            if !part.iter().all(is_there) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// A block with another copy in case of damage; `None` if it can't be read.
    pub(crate) fn block_if_readable(&self, address: u64) -> Result<Option<BlockBytes>, HistoryError> {
        let mut bytes = [0; BLOCK_SIZE];
        Ok(self.fill(address * BLOCK, &mut bytes)?.then_some(bytes))
    }

    /// Reads the bytes at `offset` of the store; false if that place can't be read, and the store
    /// otherwise answers.
    fn fill(&self, offset: u64, bytes: &mut [u8]) -> Result<bool, HistoryError> {
        let mut read = || self.store.read_into(offset, bytes);
        match read() {
            Ok(()) => Ok(true),
            Err(error) => Ok(self.insist(&*self.store, error, read)?.is_ok()),
        }
    }
}
