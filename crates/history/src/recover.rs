//! Opening a history again.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use cairn_base::{BLOCK_SIZE, crc32c};
use cairn_device::{Device, DeviceError};
use cairn_format::history::{
    EntryKind, HistoryEntry, HistoryRecord, HistorySegment, HistorySuperblock, MarkContent, NO_LBA,
    PLACE_UNIT, Placement, SEGMENTS_START, SLOT_A, SLOT_B,
};
use cairn_format::{BlockBytes, FormatError, Structure};

use crate::HistoryError;
use crate::below::Below;
use crate::cache::{ReadCache, WriteCache};
use crate::counters::Tally;
use crate::history::{History, State};
use crate::index::{Index, Loading, Version};
use crate::locks::{Condvar, Mutex, RwLock};
use crate::log::{RECORD_BYTES, Segment, Writer};
use crate::lost::ATTEMPTS;
use crate::options::{HistoryOptions, LogPosition, OpenOptions, check};
use crate::reduce::Recent;
use crate::resolve::NOW;
use crate::revert::{BEFORE, after_mark};
use crate::status::window_of;
use crate::thin::Thinning;
use crate::timeline::Timeline;
use crate::trim::{Trim, apart};

pub(crate) const BLOCK: u64 = BLOCK_SIZE as u64;
/// Past every stamp that a store can have: stamps are of the clock, which [`stamp`](History::stamp) takes as far as a quarter of all numbers, and one more for each write. Up to where a time can't be read
/// any more are as many again.
const STAMPS_END: u64 = u64::MAX / 8 * 3;
/// Blocks of the origin that are written again at once.
const REPLAYED: usize = 128;

/// A segment as recovery finds it.
#[derive(Clone)]
struct Found {
    index: usize,
    sequence: u64,
    /// Of the first block, unless that is damaged.
    first_record: Option<u64>,
    /// The last block, when there is one.
    end: Option<HistorySegment>,
    /// Its first block is not there: a cut has kept a record and not that, or it was damaged.
    lacks_begin: bool,
}

/// The records of a segment.
struct Records {
    entries: Vec<HistoryEntry>,
    /// The number of each record, and its first entry.
    starts: Vec<(u64, usize)>,
    /// The number after the last one.
    next_record: u64,
    /// Block after the last one.
    position: u64,
    previous: u32,
    /// By what the records say: this one and all before were durable.
    durable_through: u64,
    /// Why it is not known whether another one follows: that place can't be read.
    unread: Option<DeviceError>,
}

impl History {
    /// Opens the history in `store` of `origin`: every instant up to the last flush is there.
    ///
    /// # Errors
    /// [`HistoryError::StoreOlder`] where the store has not come as far as it is known to have: its origin has what came later, and what the log would write there again is old. Nothing was written then.
    pub fn open(
        origin: Arc<dyn Device>,
        store: Arc<dyn Device>,
        open: OpenOptions,
    ) -> Result<Arc<Self>, HistoryError> {
        let superblock = read_superblock(&*store)?;
        let found = origin.geometry().length;
        if found != superblock.origin_bytes {
            return Err(HistoryError::OtherOrigin { expected: superblock.origin_bytes, found });
        }
        let need = (SEGMENTS_START + superblock.segments * superblock.segment_blocks) * BLOCK;
        let have = store.geometry().length;
        if have < need {
            return Err(HistoryError::StoreTooSmall { have, need });
        }
        let options = HistoryOptions {
            store: superblock.store,
            placement: superblock.placement,
            granularity: superblock.granularity,
            block_bytes: superblock.block_bytes,
            window: window_of(&superblock),
        };
        check(&options, origin.geometry(), store.geometry())?;
        let (sequence, said, known) = (superblock.sequence, superblock.durable_through, open.at_least);
        let older = |record| {
            let found = LogPosition { superblock: sequence, record };
            HistoryError::StoreOlder { found, known }
        };
        if sequence < known.superblock {
            return Err(older(said));
        }
        let history = Self::new(origin, store, superblock, open);
        history.recover(known.record).map_err(|error| match error {
            HistoryError::Missing { sequence } if (said + 1..=known.record).contains(&sequence) => {
                older(sequence - 1)
            }
            other => other,
        })?;
        Ok(Arc::new(history))
    }

    pub(crate) fn new(
        origin: Arc<dyn Device>,
        store: Arc<dyn Device>,
        superblock: HistorySuperblock,
        open: OpenOptions,
    ) -> Self {
        let mut timeline = Timeline::new(superblock.granularity);
        timeline.cut(superblock.start_ns);
        timeline.thin(&superblock.thinned);
        superblock.reverts.iter().for_each(|revert| timeline.cut(revert.time));
        let read_blocks = open.read_bytes / u64::from(superblock.block_bytes);
        let state = State {
            logging: superblock.placement == Placement::Logging,
            index: Index::default(),
            lost: BTreeSet::new(),
            cache: WriteCache::default(),
            current: WriteCache::default(),
            reads: ReadCache::new(read_blocks as usize),
            epoch: 0,
            timeline,
            marks: BTreeMap::new(),
            start: superblock.start_ns,
            created: superblock.created_ns,
            reverts: superblock.reverts.clone(),
            last: superblock.last_ns.max(superblock.start_ns),
            put_back_to: None,
            flushed: 0,
            flushing: false,
            segments: vec![Segment::default(); superblock.segments as usize],
            failed: None,
            may_wait: true,
            waiting: 0,
            full: false,
            lacking: None,
            trimming: None,
            held: None,
            window: window_of(&superblock),
            views: BTreeMap::new(),
            events: VecDeque::new(),
            regions: HashMap::new(),
            unsettled: 0,
        };
        let bare = (0..superblock.segments as usize).filter(|index| !superblock.live[*index]).collect();
        // Nothing goes for a clone's lack of room, so it takes no more than it needs.
        let given = vec![window_of(&superblock).is_of_a_clone(); superblock.segments as usize];
        let (placement, block_bytes, length) =
            (superblock.placement, superblock.block_bytes, superblock.origin_bytes);
        let segment_blocks = superblock.segment_blocks;
        let writer = Writer {
            segment: 0,
            position: 1,
            ended: false,
            entries: Vec::new(),
            recent: Recent::default(),
            segment_sequence: 0,
            next_sequence: 1,
            previous: 0,
            next_record: 1,
            synced: superblock.durable_through,
            free: VecDeque::new(),
            bare,
            below: Below::new(given),
            torn: BTreeMap::new(),
            ahead: VecDeque::new(),
            // What an earlier life left in a cache below must be durable before anything builds on it.
            store_dirty: true,
            origin_dirty: true,
            logged_ns: superblock.last_ns,
            durable_ns: 0,
            owed: Vec::new(),
            trim: None,
            too_full_to_move: None,
            // The log may still have what was dropped.
            thinning: superblock.thinned.iter().any(|step| step.until_ns > 0).then(Thinning::default),
            superblock,
        };
        Self {
            origin,
            store,
            clock: open.clock,
            placement,
            block_bytes,
            segment_blocks,
            length,
            dirty_bytes: open.dirty_bytes.max(1),
            merge: RwLock::new(()),
            writer: Mutex::new(writer),
            state: Mutex::new(state),
            room: Condvar::new(),
            work: Condvar::new(),
            flush_over: Condvar::new(),
            tally: Tally::default(),
            #[cfg(test)]
            between: Mutex::new(None),
        }
    }

    /// `at_least`: the last record that somebody knows to have been durable.
    fn recover(&self, at_least: u64) -> Result<(), HistoryError> {
        let mut writer = self.writer.lock();
        let writer = &mut *writer;
        let mut known = Vec::new();
        for index in 0..writer.superblock.segments as usize {
            if writer.superblock.live[index] && !writer.superblock.ahead[index] {
                known.push(self.find_segment(writer, index)?);
            }
        }
        known.sort_by_key(|found| found.sequence);
        let Some(mut tail) = known.pop() else {
            let source = FormatError::Magic(Structure::HistorySegment);
            return Err(HistoryError::Damaged { offset: writer.start_of(0) * BLOCK, source });
        };
        // Its summary proves nothing: no superblock was written since it ended, so what it names may be lost.
        if tail.first_record.is_some() {
            tail.end = None;
        }
        let mut loading = Loading::new(self.blocks());
        // Blocks of segments that were durable before what they brought to the origin was: logging brings nothing there.
        let mut unsettled = Vec::new();
        for (at, found) in known.iter().enumerate() {
            let next = known.get(at + 1).unwrap_or(&tail);
            let end_record = match found.end {
                Some(end) => Some(end.record),
                None if next.sequence == found.sequence + 1 => next.first_record,
                None => None,
            };
            let records = self.records_of(writer, found, end_record)?;
            self.take_entries(writer, found, &records.entries, true, &mut loading);
            let is_settled = records.next_record <= writer.superblock.durable_through + 1;
            if !is_settled && self.placement != Placement::Logging {
                let lbas: Vec<u64> = records.entries.iter().map(|entry| entry.lba).collect();
                unsettled.push((records.next_record, lbas));
            }
        }
        let (settled, mut unsure) = self.follow(writer, tail, at_least, &mut loading)?;
        self.sort_bare(writer);
        self.keep_room(writer)?;
        self.load(writer, loading);
        if self.state.lock().last >= STAMPS_END {
            let source = FormatError::Field { structure: Structure::HistoryStore, field: "time" };
            return Err(HistoryError::Damaged { offset: SLOT_A * BLOCK, source });
        }
        let later = unsettled.into_iter().filter(|(next_record, _)| *next_record > settled + 1);
        unsure.extend(later.flat_map(|(_, lbas)| lbas));
        self.sync_store(writer)?;
        self.repair_slots(writer)?;
        self.load_marks()?;
        let lost = self.replay(writer, unsure)?;
        // Until the log says what is lost, the next opening looks for it again.
        self.state.lock().unsettled = lost.len() as u64;
        self.sync(writer)?;
        // From here on the superblock knows every segment of the log, and those that a cut took away are ahead again.
        self.write_superblock(writer)?;
        self.sync_store(writer)?;
        if self.state.lock().segments[writer.segment].closed {
            if writer.ahead.is_empty() {
                self.reserve(writer)?;
            }
            self.begin_ahead(writer)?;
        }
        self.write_lost(writer, &lost)?;
        self.state.lock().unsettled = 0;
        if writer.superblock.start_ns > writer.superblock.cut_ns && writer.superblock.cut_ns > 0
            || writer.superblock.start_ns > writer.superblock.created_ns
        {
            // The window was moving: the move goes on.
            let start = writer.superblock.start_ns;
            if writer.superblock.cut_ns < start {
                self.state.lock().trimming = Some(start);
                writer.trim = Some(Trim::new(start, self.rebased(writer, start)));
            }
        }
        self.count_owed(writer);
        Ok(())
    }

    /// Follows the log from `tail`, the last segment that the superblock knows, through those that it has named as ahead, for as long as each begins where the one before ends. Entries are on their way
    /// into the index, and the writer stands behind the last record. Gives the last record that was durable on both devices, and the blocks of later ones.
    fn follow(
        &self,
        writer: &mut Writer,
        tail: Found,
        at_least: u64,
        loading: &mut Loading,
    ) -> Result<(u64, Vec<u64>), HistoryError> {
        let mut ahead = Vec::new();
        for index in 0..writer.superblock.segments as usize {
            if writer.superblock.ahead[index] {
                writer.ahead.push_back(index);
                ahead.extend(self.find_ahead(writer, index)?);
            }
        }
        ahead.sort_by_key(|found| found.sequence);
        // Each that was named may have got a number. Segments are read in the order of these, so none may come below one that is there.
        let given = writer.superblock.ahead_from + writer.ahead.len() as u64;
        let last = ahead.last().map_or(0, |found| found.sequence).max(tail.sequence);
        writer.next_sequence = given.max(last + 1);
        let mut ahead = ahead.into_iter().peekable();
        let begin = |next: Option<&Found>| next.and_then(|next| next.first_record);
        let durable = writer.superblock.durable_through;
        let records = match tail.first_record {
            Some(first_record) => {
                self.scan_records(writer, &tail, first_record, durable, begin(ahead.peek()))?
            }
            None => self.records_of(writer, &tail, None)?,
        };
        let mut settled = durable.max(records.durable_through);
        let mut log = vec![(tail, records)];
        while let Some((last, records)) = log.last_mut() {
            let next_record = records.next_record;
            if begin(ahead.peek()) == Some(next_record)
                && let Some(next) = ahead.next()
            {
                let limit = begin(ahead.peek());
                let records = self.scan_records(writer, &next, next_record, settled, limit)?;
                settled = settled.max(records.durable_through);
                log.push((next, records));
                continue;
            }
            // Here the log ends, or a record of it is damaged: then one that came later may know that it was durable, or whoever opens it does. Not before: what a cut has torn looks like a record too, where the log went on in
            // the next segment.
            let mut proof = self.durable_beyond(writer, last, records.position)?.max(settled).max(at_least);
            for later in ahead.clone() {
                proof = proof.max(self.durable_beyond(writer, &later, 1)?);
            }
            if let (true, Some(first_record)) = (proof >= next_record && proof > settled, last.first_record) {
                // What was durable counts, whatever its content is by now: a read of it tells.
                settled = proof;
                let limit = begin(ahead.peek());
                *records = self.scan_records(writer, last, first_record, settled, limit)?;
                continue;
            }
            // Where the segment had ended its summary serves, and where all that it names is there nothing else has to say so.
            let end = self.find_end(writer, last.index, last.sequence)?;
            let mut served = None;
            if let Some(end) = end.filter(|end| end.record > next_record) {
                match self.summary(writer, last.index, &end) {
                    Ok(entries) => {
                        let whole =
                            proof + 1 >= end.record || self.content_is_there(writer, last, &entries, 0)?;
                        served = whole.then_some((end, entries));
                    }
                    Err(error @ HistoryError::Device(_)) => return Err(error),
                    Err(_) => {}
                }
            }
            let Some((end, entries)) = served else {
                if proof >= next_record {
                    return Err(HistoryError::Missing { sequence: next_record });
                }
                // A record that nobody knows of may be there, with what was flushed last.
                match records.unread.take() {
                    Some(error) => return Err(HistoryError::Device(error)),
                    None => break,
                }
            };
            tracing::error!(
                segment = last.index,
                "a record of a history segment is damaged; its summary serves"
            );
            let starts = vec![(end.record - 1, 0)];
            let position = writer.superblock.segment_blocks;
            *records = Records {
                entries,
                starts,
                next_record: end.record,
                position,
                previous: 0,
                durable_through: proof,
                unread: None,
            };
            settled = settled.max(proof);
        }
        let mut unsure = Vec::new();
        let count = log.len();
        for (at, (found, records)) in log.into_iter().enumerate() {
            // Once the superblock no longer names it as ahead, its first block is all that says what it is.
            if let (true, Some(first_record)) = (found.lacks_begin, found.first_record) {
                self.write_begin(writer, found.index, found.sequence, first_record)?;
            }
            let from = records.starts.iter().find(|(sequence, _)| *sequence > settled);
            let from = from.map_or(records.entries.len(), |(_, entry)| *entry);
            unsure.extend(records.entries[from..].iter().map(|entry| entry.lba));
            let is_last = at + 1 == count;
            let is_full = records.position >= writer.superblock.segment_blocks;
            self.take_entries(writer, &found, &records.entries, !is_last || is_full, loading);
            writer.ahead.retain(|segment| *segment != found.index);
            if is_last {
                writer.segment = found.index;
                writer.segment_sequence = found.sequence;
                writer.next_record = records.next_record;
                writer.position = records.position;
                writer.previous = records.previous;
                writer.ended = is_full;
                writer.entries = records.entries;
                if !is_full && self.may_have_ended(writer, found.index, found.sequence)? {
                    // The log goes on in it, and what that names is not all of it, or is lost.
                    let end = writer.start_of(found.index) + writer.superblock.segment_blocks - 1;
                    writer.store_dirty = true;
                    let outcome = self.store.write_from(end * BLOCK, &[0; BLOCK_SIZE]);
                    self.logged(writer, outcome)?;
                }
            } else if !is_full {
                // The cut may have kept the next segment and not the end of this one, which counts from the next superblock on.
                writer.next_record = records.next_record;
                self.close_segment(writer, found.index, found.sequence, records.entries)?;
            }
        }
        Ok((settled, unsure))
    }

    /// A segment that was named as ahead, if the log has gone on there.
    fn find_ahead(&self, writer: &Writer, index: usize) -> Result<Option<Found>, HistoryError> {
        let (store, from) = (writer.superblock.store, writer.superblock.ahead_from);
        let first = writer.start_of(index);
        let begin = self.block_if_readable(first)?;
        let begin = begin.and_then(|bytes| HistorySegment::parse(&bytes, store, first).ok());
        if let Some(begin) = begin.filter(|begin| begin.summary_blocks.is_none() && begin.sequence >= from) {
            let first_record = Some(begin.record);
            let sequence = begin.sequence;
            return Ok(Some(Found { index, sequence, first_record, end: None, lacks_begin: false }));
        }
        // Where its first block is damaged its first record says as much.
        let record = self.record_if_readable(writer, (first + 1) * BLOCK, 1)?;
        let record =
            record.filter(|record| !record.summary && record.segment >= from && record.previous == 0);
        Ok(record.map(|record| {
            let (sequence, first_record) = (record.segment, Some(record.sequence));
            Found { index, sequence, first_record, end: None, lacks_begin: true }
        }))
    }

    /// The block that ends a segment, if there is one of that life of it.
    fn find_end(
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
    fn may_have_ended(&self, writer: &Writer, index: usize, sequence: u64) -> Result<bool, HistoryError> {
        let last = writer.start_of(index) + writer.superblock.segment_blocks - 1;
        Ok(self.block_if_readable(last)?.is_none() || self.find_end(writer, index, sequence)?.is_some())
    }

    /// The last record that was durable by what records of a segment from block `position` on say; they need not follow each other. What can't be read says nothing.
    fn durable_beyond(&self, writer: &Writer, found: &Found, position: u64) -> Result<u64, HistoryError> {
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
            // Most blocks are content, or nothing yet: a look at the first bytes is enough.
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

    /// The slot that does not hold the superblock is written: the next one overwrites the other first, and until then it must not be the only one.
    fn repair_slots(&self, writer: &mut Writer) -> Result<(), HistoryError> {
        for slot in [SLOT_A, SLOT_B] {
            let found = self.block_if_readable(slot)?;
            let found = found.and_then(|bytes| HistorySuperblock::parse(&bytes, slot).ok());
            if found.as_ref() != Some(&writer.superblock) {
                let mut bytes = [0; BLOCK_SIZE];
                writer.superblock.write(&mut bytes, slot);
                writer.store_dirty = true;
                self.latch(self.store.write_from(slot * BLOCK, &bytes))?;
                self.sync_store(writer)?;
            }
        }
        Ok(())
    }

    fn find_segment(&self, writer: &Writer, index: usize) -> Result<Found, HistoryError> {
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
                // The end of an earlier life of the segment is none.
                let end = end.filter(|end| end.sequence == begin.sequence);
                let (sequence, first_record) = (begin.sequence, Some(begin.record));
                Ok(Found { index, sequence, first_record, end, lacks_begin: false })
            }
            Err(source) => match end {
                Some(end) => {
                    // It may be that of an earlier life, where this one has not ended: its first record tells.
                    let record = self.record_if_readable(writer, (first + 1) * BLOCK, 1)?;
                    if record.is_some_and(|record| record.segment != end.sequence) {
                        return Err(HistoryError::Damaged { offset: first * BLOCK, source });
                    }
                    tracing::error!(segment = index, %source, "the first block of a history segment is damaged; its summary serves");
                    let (sequence, end) = (end.sequence, Some(end));
                    Ok(Found { index, sequence, first_record: None, end, lacks_begin: true })
                }
                None => Err(HistoryError::Damaged { offset: first * BLOCK, source }),
            },
        }
    }

    /// The first block of a segment. One of an earlier life than its end or its first record, which are written later, is none: the write that was to replace it was lost.
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
    fn records_of(
        &self,
        writer: &Writer,
        found: &Found,
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
                    tracing::error!(segment = found.index, %error, "the summary of a history segment is damaged; its records serve");
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
                "the last block of a history segment is damaged; its records serve"
            );
        }
        let durable = writer.superblock.durable_through;
        let mut records = self.scan_records(writer, found, first_record, durable, end_record)?;
        if let Some(error) = records.unread.take() {
            return Err(HistoryError::Device(error));
        }
        // It had ended before the superblock: a record that is not there is lost.
        if end_record.is_some_and(|end| records.next_record < end) {
            return Err(HistoryError::Missing { sequence: records.next_record });
        }
        Ok(records)
    }

    /// Entries as the summary of a segment has them.
    fn summary(
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

    /// The records of a segment, one after the other. Content of those up to `durable` is not looked at. Where it is known with which record the next segment begins the scan ends before `limit`: what follows here was torn by a cut, and
    /// the log went on there as no other record of its size came.
    fn scan_records(
        &self,
        writer: &Writer,
        found: &Found,
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

    /// Every place lies in its segment, and every block on the device.
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

    /// True when all content of entries of a segment that is stored from block `from` of it on is on the store: no record's end was torn. What is stored before belongs to records before, which say so
    /// themselves: damage there is no torn end here. Nor is what can't be read: a read of it tells.
    fn content_is_there(
        &self,
        writer: &Writer,
        found: &Found,
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
        // Contents of a record lie behind each other, and are read together: there may be hundreds of thousands.
        let follows = |one: &&HistoryEntry, next: &&HistoryEntry| {
            end_of(one).next_multiple_of(PLACE_UNIT) == offset_of(next)
        };
        let at_once = (RECORD_BYTES / u64::from(self.block_bytes)) as usize;
        for part in with_data.chunk_by(follows).flat_map(|stretch| stretch.chunks(at_once)) {
            let (Some(first), Some(last)) = (part.first(), part.last()) else { continue };
            let start = offset_of(first) / alignment * alignment;
            let mut bytes = vec![0; (end_of(last).next_multiple_of(alignment) - start) as usize];
            if part.len() > 1 && self.store.read_into(start, &mut bytes).is_err() {
                // One that is not there before what can't be read is the end all the same.
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

    /// Entries of a segment are on their way into the index, unless they no longer count.
    fn take_entries(
        &self,
        writer: &Writer,
        found: &Found,
        entries: &[HistoryEntry],
        closed: bool,
        loading: &mut Loading,
    ) {
        let cut = writer.superblock.cut_ns;
        let base = writer.start_of(found.index) * BLOCK / PLACE_UNIT;
        let last_ns = entries.iter().map(|entry| entry.time).max().unwrap_or(0);
        {
            let mut state = self.state.lock();
            state.segments[found.index] =
                Segment { sequence: found.sequence, last_ns, closed, ..Segment::default() };
            state.last = state.last.max(last_ns);
        }
        entries
            .iter()
            .map(|entry| Version::of(entry, base))
            .filter(|version| version.counts(cut))
            .for_each(|version| loading.add(&version));
    }

    /// Makes the index of all that was found.
    fn load(&self, writer: &Writer, loading: Loading) {
        let mut state = self.state.lock();
        let state = &mut *state;
        let index = loading.finish(|version| {
            let segment = self.segment_of(version.place, writer.superblock.segment_blocks);
            state.segments[segment].live += self.weight_of(version);
            state.note_lost(version);
        });
        state.index = index;
        state.epoch += 1;
    }

    /// Names and flags of marks.
    fn load_marks(&self) -> Result<(), HistoryError> {
        let mut found = Vec::new();
        self.state.lock().index.scan((NO_LBA, 0, 0), usize::MAX, |version| {
            found.push(*version);
            true
        });
        let wanted: Vec<(Version, usize)> =
            found.iter().map(|version| (*version, MarkContent::SIZE)).collect();
        for (version, data) in found.iter().zip(self.read_versions(&wanted)) {
            let mut state = self.state.lock();
            state.timeline.cut(version.time);
            let mark = data.ok().and_then(|data| MarkContent::parse(&data.to_vec()).ok());
            let mark = mark.unwrap_or_else(|| {
                tracing::error!(
                    time_ns = version.time,
                    "the name of a mark is damaged; its instant is there"
                );
                MarkContent { name: format!("damaged-{}", version.time), consistent: false }
            });
            if mark.name.starts_with(BEFORE) {
                state.timeline.cut(after_mark(version.time));
            }
            state.marks.insert(version.time, mark);
        }
        Ok(())
    }

    /// Splits: what the log has and the origin may lack is written there again. Gives the blocks, and the times, of what the log has no more.
    fn replay(&self, writer: &mut Writer, mut unsure: Vec<u64>) -> Result<Vec<(u64, u64)>, HistoryError> {
        if self.placement == Placement::Logging {
            return Ok(Vec::new());
        }
        unsure.sort_unstable();
        unsure.dedup();
        let mut all_lost = Vec::new();
        let redos: Vec<Version> = {
            let state = self.state.lock();
            let newest =
                unsure.iter().filter(|lba| **lba != NO_LBA).filter_map(|lba| state.index.last_at(*lba, NOW));
            newest.filter(|newest| newest.is_redo() && !newest.is_lost()).collect()
        };
        for part in redos.chunks(REPLAYED) {
            let contents = self.contents_of(part)?;
            let (found, lost) = apart(part.iter().map(|version| (version.lba, version.time)).zip(contents));
            self.write_present(
                writer,
                found.into_iter().map(|((lba, _), content)| (lba, content)).collect(),
            )?;
            all_lost.extend(lost);
        }
        Ok(all_lost)
    }

    /// A block for which another one serves where it is damaged; none where it can't be read.
    fn block_if_readable(&self, address: u64) -> Result<Option<BlockBytes>, HistoryError> {
        let mut bytes = [0; BLOCK_SIZE];
        Ok(self.fill(address * BLOCK, &mut bytes)?.then_some(bytes))
    }

    /// Reads what is at `offset` of the store; false where that place can't be read, and the store answers otherwise.
    fn fill(&self, offset: u64, bytes: &mut [u8]) -> Result<bool, HistoryError> {
        let mut read = || self.store.read_into(offset, bytes);
        match read() {
            Ok(()) => Ok(true),
            Err(error) => Ok(self.insist(&*self.store, error, read)?.is_ok()),
        }
    }
}

pub(crate) fn block(store: &dyn Device, address: u64) -> Result<BlockBytes, HistoryError> {
    let mut bytes = [0; BLOCK_SIZE];
    store.read_into(address * BLOCK, &mut bytes)?;
    Ok(bytes)
}

/// The newest superblock that verifies.
pub(crate) fn read_superblock(store: &dyn Device) -> Result<HistorySuperblock, HistoryError> {
    if store.geometry().length < crate::store_bytes_min() {
        return Err(HistoryError::NoHistory);
    }
    let mut best: Option<HistorySuperblock> = None;
    let (mut unread, mut damage) = (None, None);
    for slot in [SLOT_A, SLOT_B] {
        // One that can't be read is like one that is damaged, unless the other one is none either: what is there is not known then.
        let bytes = match block(store, slot).or_else(|_| block(store, slot)) {
            Ok(bytes) => bytes,
            Err(error) => {
                unread = Some(error);
                continue;
            }
        };
        match HistorySuperblock::parse(&bytes, slot) {
            Ok(found) => {
                if best.as_ref().is_none_or(|best| best.sequence < found.sequence) {
                    best = Some(found);
                }
            }
            Err(FormatError::Magic(_)) => {}
            Err(source @ FormatError::Version { .. }) => {
                return Err(HistoryError::Damaged { offset: slot * BLOCK, source });
            }
            Err(source) => damage = Some(HistoryError::Damaged { offset: slot * BLOCK, source }),
        }
    }
    best.ok_or(unread.or(damage).unwrap_or(HistoryError::NoHistory))
}
