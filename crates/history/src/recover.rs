//! Opens a history again: follows the log to its end, and builds the index from it.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use cairn_base::BLOCK_SIZE;
use cairn_device::Device;
use cairn_format::history::{
    HistoryEntry, HistorySegment, HistorySuperblock, MarkContent, NO_LBA, PLACE_UNIT, Placement,
    SEGMENTS_START, SLOT_A, SLOT_B,
};
use cairn_format::{BlockBytes, FormatError, Structure};

use crate::HistoryError;
use crate::below::Below;
use crate::cache::{ReadCache, WriteCache};
use crate::counters::Tally;
use crate::elapsed::Elapsed;
use crate::found::{FoundSegment, Records};
use crate::history::{History, State};
use crate::index::{Index, Loading, Version};
use crate::locks::{Condvar, Mutex, RwLock};
use crate::log::{Segment, Writer};
use crate::options::{HistoryOptions, LogPosition, OpenOptions, check};
use crate::reduce::Recent;
use crate::resolve::NOW;
use crate::revert::{BEFORE, after_mark};
use crate::status::window_of;
use crate::thin::Thinning;
use crate::timeline::Timeline;
use crate::trim::{Trim, apart};

pub(crate) const BLOCK: u64 = BLOCK_SIZE as u64;
/// Past every stamp that a store can have: stamps are of the clock, which [`stamp`](History::stamp)
/// takes as far as a quarter of all numbers, and one more for each write. Up to where a time can't
/// be read any more are as many again.
const STAMPS_END: u64 = u64::MAX / 8 * 3;
/// Blocks of the origin that are written again at once.
const REPLAYED: usize = 128;

impl History {
    /// Opens the history in `store` of `origin`: every instant up to the last flush is available.
    ///
    /// # Errors
    /// [`HistoryError::StoreOlder`] when the store is older than its last known position: its
    /// origin has later content, and the log would overwrite that with old content. Nothing was
    /// written then.
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
            elapsed: Elapsed::default(),
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
        // No history is discarded for a clone's lack of room, so it takes no more than it needs.
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
            // Writes of an earlier run in a cache below must be durable before other writes depend
            // on them.
            store_dirty: true,
            origin_dirty: true,
            logged_ns: superblock.last_ns,
            durable_ns: 0,
            owed: Vec::new(),
            trim: None,
            too_full_to_move: None,
            // The log may still have the dropped versions.
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

    /// `at_least`: the last record that the caller knows to have been durable.
    fn recover(&self, at_least: u64) -> Result<(), HistoryError> {
        let mut writer = self.writer.lock();
        let writer = &mut *writer;
        let mut known = Vec::new();
        let mut nameless = None;
        for index in 0..writer.superblock.segments as usize {
            if writer.superblock.live[index] && !writer.superblock.ahead[index] {
                match self.find_segment(writer, index) {
                    Ok(found) => known.push(found),
                    // The log's current segment has no end block yet that could identify it.
                    Err(damage @ HistoryError::Damaged { .. }) if nameless.is_none() => {
                        nameless = Some((index, damage));
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        known.sort_by_key(|found| found.sequence);
        if let Some((index, damage)) = nameless {
            known.push(self.find_tail(writer, index, known.last())?.ok_or(damage)?);
        }
        let Some(mut tail) = known.pop() else {
            let source = FormatError::Magic(Structure::HistorySegment);
            return Err(HistoryError::Damaged { offset: writer.start_of(0) * BLOCK, source });
        };
        // Its summary proves nothing: no superblock was written since it ended, so the records that
        // it names may be lost.
        if tail.first_record.is_some() {
            tail.end = None;
        }
        let mut loading = Loading::new(self.blocks());
        // Blocks of segments that were durable before their content on the origin was: logging
        // writes none there.
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
        // Until the log records the losses, the next opening looks for them again.
        self.state.lock().unsettled = lost.len() as u64;
        self.sync(writer)?;
        // From here on the superblock knows every segment of the log, and those that a cut removed
        // are ahead again.
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
            // The window was moving: the move resumes.
            let start = writer.superblock.start_ns;
            if writer.superblock.cut_ns < start {
                self.state.lock().trimming = Some(start);
                writer.trim = Some(Trim::new(start, self.rebased(writer, start)));
            }
        }
        self.count_owed(writer);
        Ok(())
    }

    /// Follows the log from `tail`, the last segment that the superblock knows, through those named
    /// as ahead, as long as each begins where the previous one ends. Adds their entries to the
    /// index, and positions the writer after the last record. Returns the last record that was
    /// durable on both devices, and the blocks of later ones.
    fn follow(
        &self,
        writer: &mut Writer,
        tail: FoundSegment,
        at_least: u64,
        loading: &mut Loading,
    ) -> Result<(u64, Vec<u64>), HistoryError> {
        let mut ahead = self.named_ahead(writer, &tail)?.into_iter().peekable();
        let begin = |next: Option<&FoundSegment>| next.and_then(|next| next.first_record);
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
            // Either the log ends here, or a record is damaged. In the second case a later record,
            // or the caller of the opening, may know that it was durable. This is checked only now:
            // a torn record looks the same where the log continued in the next segment.
            let mut proof = self.durable_beyond(writer, last, records.position)?.max(settled).max(at_least);
            for later in ahead.clone() {
                proof = proof.max(self.durable_beyond(writer, &later, 1)?);
            }
            if let (true, Some(first_record)) = (proof >= next_record && proof > settled, last.first_record) {
                // A durable record counts, whatever its content is by now: a read of it reports
                // damage.
                settled = proof;
                let limit = begin(ahead.peek());
                *records = self.scan_records(writer, last, first_record, settled, limit)?;
                continue;
            }
            // If the segment had ended its summary serves, and if all records that it names are
            // present no other proof is needed.
            let served = self.whole_summary(writer, last, next_record, proof)?;
            let Some((end, entries)) = served else {
                if proof >= next_record {
                    return Err(HistoryError::Missing { sequence: next_record });
                }
                // An unknown record may exist there, with the last flushed writes.
                match records.unread.take() {
                    Some(error) => return Err(HistoryError::Device(error)),
                    None => break,
                }
            };
            tracing::error!(
                segment = last.index,
                "a record of a history segment is damaged; its summary is used"
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
        let unsure = self.enter_log(writer, log, settled, loading)?;
        Ok((settled, unsure))
    }

    /// The segments that the superblock has named as ahead and that have begun, in the order of
    /// their numbers.
    fn named_ahead(
        &self,
        writer: &mut Writer,
        tail: &FoundSegment,
    ) -> Result<Vec<FoundSegment>, HistoryError> {
        let mut ahead = Vec::new();
        for index in 0..writer.superblock.segments as usize {
            if writer.superblock.ahead[index] {
                writer.ahead.push_back(index);
                ahead.extend(self.find_ahead(writer, index)?);
            }
        }
        ahead.sort_by_key(|found| found.sequence);
        // Each named segment may have got a number. Segments are read in the order of these, so
        // none may come below an existing one.
        let given = writer.superblock.ahead_from + writer.ahead.len() as u64;
        let last = ahead.last().map_or(0, |found| found.sequence).max(tail.sequence);
        writer.next_sequence = given.max(last + 1);
        Ok(ahead)
    }

    /// The summary of an ended segment, with its end, if it goes past `next_record` and all records
    /// that it names were durable or are present.
    fn whole_summary(
        &self,
        writer: &Writer,
        last: &FoundSegment,
        next_record: u64,
        proof: u64,
    ) -> Result<Option<(HistorySegment, Vec<HistoryEntry>)>, HistoryError> {
        let end = self.find_end(writer, last.index, last.sequence)?;
        let Some(end) = end.filter(|end| end.record > next_record) else { return Ok(None) };
        match self.summary(writer, last.index, &end) {
            Ok(entries) => {
                let whole = proof + 1 >= end.record || self.content_is_there(writer, last, &entries, 0)?;
                Ok(whole.then_some((end, entries)))
            }
            Err(error @ HistoryError::Device(_)) => Err(error),
            Err(_) => Ok(None),
        }
    }

    /// Adds the segments of the log to the index, and positions the writer after the last record.
    /// Returns the blocks of records after `settled`.
    fn enter_log(
        &self,
        writer: &mut Writer,
        log: Vec<(FoundSegment, Records)>,
        settled: u64,
        loading: &mut Loading,
    ) -> Result<Vec<u64>, HistoryError> {
        let mut unsure = Vec::new();
        let count = log.len();
        for (at, (found, records)) in log.into_iter().enumerate() {
            // Once the superblock no longer names it as ahead, only its first block identifies it.
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
                    // The log continues in it, and its end block does not name all of it, or is
                    // lost.
                    let end = writer.start_of(found.index) + writer.superblock.segment_blocks - 1;
                    writer.store_dirty = true;
                    let outcome = self.store.write_from(end * BLOCK, &[0; BLOCK_SIZE]);
                    self.logged(writer, outcome)?;
                }
            } else if !is_full {
                // The cut may have kept the next segment and not the end of this one, which counts
                // from the next superblock on.
                writer.next_record = records.next_record;
                self.close_segment(writer, found.index, found.sequence, records.entries)?;
            }
        }
        Ok(unsure)
    }

    /// The slot that does not hold the superblock is written: the next one overwrites the other
    /// first, and until then it must not be the only one.
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

    /// Adds the entries of a segment to those for the index, unless they no longer count.
    fn take_entries(
        &self,
        writer: &Writer,
        found: &FoundSegment,
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
                    "the name of a mark is damaged; its instant is available"
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

    /// Splits: writes content of the log that the origin may lack there again. Returns the blocks,
    /// and the times, whose content the log has lost.
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
        // An unreadable slot counts as a damaged one, unless the other one is invalid too: then the
        // state is unknown.
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
