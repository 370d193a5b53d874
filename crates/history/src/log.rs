//! The log: segments that are filled one after the other, and the superblock that lists the valid
//! ones.

use std::collections::{BTreeMap, VecDeque};

use cairn_base::BLOCK_SIZE;
use cairn_device::{DeviceError, Operation, Segments};
use cairn_format::history::{
    EntryKind, HistoryEntry, HistoryRecord, HistorySegment, HistorySuperblock, PLACE_UNIT, SEGMENTS_START,
    SLOT_A, SLOT_B,
};

use crate::HistoryError;
use crate::below::Below;
use crate::content::{crc, zeroes};
use crate::counters::Io;
use crate::history::History;
use crate::index::Version;
use crate::reduce::{Recent, Stored};
use crate::room::RESERVE;

const BLOCK: u64 = BLOCK_SIZE as u64;
/// The maximum number of segments named ahead, and the maximum part of all segments. An opening
/// after a cut reads them, and without a flush in between as much can be lost as without them: a
/// flush makes their content durable.
const AHEAD_MAX: usize = 16;
const AHEAD_PART: usize = 8;
/// Bytes of them at most, but for one: segments of a large store are of up to 1 GiB.
const AHEAD_BYTES: u64 = 512 << 20;
/// The maximum number of entries in a record: a torn end of the log costs little.
const RECORD_ENTRIES: usize = 1024;
/// Bytes of content of a record at most.
pub(crate) const RECORD_BYTES: u64 = 4 << 20;

/// A segment, as of now.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Segment {
    /// 0: free.
    pub(crate) sequence: u64,
    /// Bytes of it that versions in the index need.
    pub(crate) live: u64,
    /// The latest time of its entries.
    pub(crate) last_ns: u64,
    /// It is full and has its summary.
    pub(crate) closed: bool,
    /// It has a damaged version that is still needed: it is not emptied.
    pub(crate) stuck: bool,
}

/// An entry that is to be written.
pub(crate) struct Pending {
    pub(crate) lba: u64,
    pub(crate) time: u64,
    pub(crate) kind: EntryKind,
    /// With kinds that have content.
    pub(crate) data: Option<Segments>,
}

/// State that belongs to the present writer, one at a time.
pub(crate) struct Writer {
    /// Its last written state.
    pub(crate) superblock: HistorySuperblock,
    /// The segment that is being filled.
    pub(crate) segment: usize,
    /// The place of the next record, in blocks of the segment.
    pub(crate) position: u64,
    /// It has its end, and the next one is not begun.
    pub(crate) ended: bool,
    /// The entries so far.
    pub(crate) entries: Vec<HistoryEntry>,
    /// Contents that it has, which later ones can be less by.
    pub(crate) recent: Recent,
    pub(crate) segment_sequence: u64,
    /// The number of the next segment. Above every assigned number, also of segments that a cut
    /// removed.
    pub(crate) next_sequence: u64,
    /// The checksum of its last record.
    pub(crate) previous: u32,
    pub(crate) next_record: u64,
    /// Records up to here are durable, and so is their content on the origin.
    pub(crate) synced: u64,
    /// Free segments that have room below.
    pub(crate) free: VecDeque<usize>,
    /// Free segments that have none yet.
    pub(crate) bare: VecDeque<usize>,
    pub(crate) below: Below,
    /// Blocks whose versions in the log, up to a time, are not in the index or not on the origin,
    /// because room ran out below in the middle of the work. They are still in memory.
    pub(crate) torn: BTreeMap<u64, u64>,
    /// Segments that the superblock names as ahead: the log continues in them without another
    /// superblock.
    pub(crate) ahead: VecDeque<usize>,
    pub(crate) store_dirty: bool,
    pub(crate) origin_dirty: bool,
    /// The latest time that the log or the superblock has ...
    pub(crate) logged_ns: u64,
    /// ... and the latest that is durable there: an opening gives no stamp up to it again.
    pub(crate) durable_ns: u64,
    /// Blocks that each of the superblock's reverts has still to copy, at most.
    pub(crate) owed: Vec<u64>,
    pub(crate) trim: Option<crate::trim::Trim>,
    /// The number of spare segments when a due move of the window found no room to begin, and the
    /// instant: it is not tried again before a move is due up to there.
    pub(crate) too_full_to_move: Option<(usize, u64)>,
    pub(crate) thinning: Option<crate::thin::Thinning>,
}

impl Writer {
    /// First block of a segment on the store.
    pub(crate) fn start_of(&self, segment: usize) -> u64 {
        SEGMENTS_START + segment as u64 * self.superblock.segment_blocks
    }

    /// Segments that nothing is in and that can be written to.
    pub(crate) fn spare(&self) -> usize {
        self.free.len() + self.ahead.len()
    }

    /// Segments that nothing is in.
    pub(crate) fn unused(&self) -> usize {
        self.spare() + self.bare.len()
    }

    /// Segments that nothing is in, as far as there seems to be room for them.
    pub(crate) fn left(&self) -> usize {
        if self.below.is_full() { self.spare() } else { self.unused() }
    }

    /// Segments of the store, as far as there seems to be room for them.
    pub(crate) fn usable(&self) -> usize {
        self.superblock.segments as usize - (self.unused() - self.left())
    }

    /// Blocks of a segment that records with this many entries in total can have.
    fn room(&self, entries: usize) -> u64 {
        let summary = HistoryRecord::head_blocks(entries);
        self.superblock.segment_blocks.saturating_sub(1 + summary)
    }
}

/// The room of a version in its segment.
pub(crate) fn weight(kind: EntryKind, length: u64) -> u64 {
    64 + if kind.has_data() { length } else { 0 }
}

impl History {
    /// Writes entries one after the other; returns their places. They are not durable yet, and not
    /// in the index.
    pub(crate) fn append(
        &self,
        writer: &mut Writer,
        pending: Vec<Pending>,
    ) -> Result<Vec<Version>, HistoryError> {
        let mut versions = Vec::with_capacity(pending.len());
        let mut left = VecDeque::from(pending);
        while !left.is_empty() {
            if writer.ended {
                self.next_segment(writer)?;
            }
            let mut count = 0;
            let mut bytes = 0;
            for next in left.iter().take(RECORD_ENTRIES) {
                let more = bytes
                    + next.data.as_ref().map_or(0, |data| data.len() as u64).next_multiple_of(PLACE_UNIT);
                let blocks = HistoryRecord::head_blocks(count + 1) + more.div_ceil(BLOCK);
                let fits = writer.position + blocks <= writer.room(writer.entries.len() + count + 1);
                if !fits || (more > RECORD_BYTES && count > 0) {
                    break;
                }
                (count, bytes) = (count + 1, more);
            }
            if count == 0 {
                self.next_segment(writer)?;
                continue;
            }
            let batch: Vec<Pending> = left.drain(..count).collect();
            self.append_record(writer, batch, &mut versions)?;
        }
        Ok(versions)
    }

    fn append_record(
        &self,
        writer: &mut Writer,
        batch: Vec<Pending>,
        versions: &mut Vec<Version>,
    ) -> Result<(), HistoryError> {
        let head = HistoryRecord::head_blocks(batch.len());
        let reduction = writer.superblock.reduction;
        let base = writer.start_of(writer.segment) * BLOCK / PLACE_UNIT;
        let record_place = writer.position * BLOCK / PLACE_UNIT;
        let mut place = record_place + head * BLOCK / PLACE_UNIT;
        let mut entries = Vec::with_capacity(batch.len());
        let mut content = Segments::default();
        let mut latest = 0;
        for pending in batch {
            let (lba, time, kind) = (pending.lba, pending.time, pending.kind);
            let at = record_place as u32;
            let mut entry = HistoryEntry { time, lba, place: at, crc: 0, length: 0, kind, reduced: false };
            if let Some(data) = pending.data {
                let whole = data.len() as u64;
                let (stored, new) = writer.recent.store(reduction, lba, data, place);
                entry.place = stored.place as u32;
                entry.crc = stored.crc;
                entry.reduced = stored.units > 0;
                entry.length = stored.bytes(whole as usize) as u32;
                let added = new.as_ref().map_or(0, |new| new.len() as u64);
                if kind != EntryKind::Mark {
                    self.tally.stored(whole, added, entry.reduced);
                }
                if let Some(new) = new {
                    content.append(new);
                    content.append(zeroes((added.next_multiple_of(PLACE_UNIT) - added) as usize));
                    place += added.div_ceil(PLACE_UNIT);
                }
            }
            latest = latest.max(time);
            versions.push(Version::of(&entry, base));
            entries.push(entry);
        }
        let blocks = (place * PLACE_UNIT).div_ceil(BLOCK) - writer.position;
        let record = HistoryRecord {
            summary: false,
            segment: writer.segment_sequence,
            sequence: writer.next_record,
            durable_through: writer.synced,
            blocks: blocks as u32,
            previous: writer.previous,
            entries,
        };
        let bytes = record.to_bytes(writer.superblock.store);
        let sum = HistoryRecord::checksum(&bytes);
        let mut data = Segments::copy_of(&bytes);
        data.append(content);
        data.append(zeroes((blocks * BLOCK) as usize - data.len()));
        let offset = (writer.start_of(writer.segment) + writer.position) * BLOCK;
        self.tally.io(Io::HistoryWrite, record.entries.len() as u64, offset, blocks * BLOCK);
        self.tally.io(Io::Metadata, head, offset, blocks * BLOCK);
        writer.store_dirty = true;
        let outcome = self.store.write(offset, data);
        if outcome.is_err() {
            // Its possible bases are in another segment.
            writer.recent = Recent::default();
        }
        self.logged(writer, outcome)?;
        writer.next_record += 1;
        writer.position += blocks;
        writer.previous = sum;
        writer.entries.extend(record.entries);
        writer.logged_ns = writer.logged_ns.max(latest);
        let mut state = self.state.lock();
        let segment = &mut state.segments[writer.segment];
        segment.last_ns = segment.last_ns.max(latest);
        Ok(())
    }

    /// Ends the segment that is being filled and begins one that the superblock has named before.
    /// Nothing is flushed, unless it has named no more.
    pub(crate) fn next_segment(&self, writer: &mut Writer) -> Result<(), HistoryError> {
        if writer.ahead.is_empty() {
            self.reserve(writer)?;
        }
        if !writer.ended {
            let entries = writer.entries.clone();
            self.close_segment(writer, writer.segment, writer.segment_sequence, entries)?;
            writer.ended = true;
        }
        self.begin_ahead(writer)
    }

    /// Begins a segment that the superblock has named.
    pub(crate) fn begin_ahead(&self, writer: &mut Writer) -> Result<(), HistoryError> {
        let next = writer.ahead.front().copied().ok_or(HistoryError::Full)?;
        self.open_segment(writer, next)?;
        writer.ahead.pop_front();
        Ok(())
    }

    /// Names free segments as ahead: durably, before anything is written there.
    pub(crate) fn reserve(&self, writer: &mut Writer) -> Result<(), HistoryError> {
        let fit = (AHEAD_BYTES / (writer.superblock.segment_blocks * BLOCK)) as usize;
        let wanted = (writer.superblock.segments as usize / AHEAD_PART).min(fit).clamp(1, AHEAD_MAX);
        self.ready(writer, RESERVE + wanted)?;
        // When there are few, the rest is reserved for work that makes room.
        let count = wanted.min(writer.free.len().saturating_sub(RESERVE)).max(1);
        for segment in writer.free.drain(..count.min(writer.free.len())) {
            writer.superblock.live[segment] = true;
            writer.ahead.push_back(segment);
        }
        if writer.ahead.is_empty() { Err(self.no_room(writer)) } else { self.write_superblock(writer) }
    }

    /// Writes the summary of a segment, and the block that ends it.
    pub(crate) fn close_segment(
        &self,
        writer: &mut Writer,
        segment: usize,
        sequence: u64,
        entries: Vec<HistoryEntry>,
    ) -> Result<(), HistoryError> {
        let store = writer.superblock.store;
        let blocks = HistoryRecord::head_blocks(entries.len()) as u32;
        let summary = HistoryRecord {
            summary: true,
            segment: sequence,
            sequence: writer.next_record,
            durable_through: writer.synced,
            blocks,
            previous: 0,
            entries,
        };
        let address = writer.start_of(segment) + writer.superblock.segment_blocks - 1;
        let end =
            HistorySegment { store, sequence, record: writer.next_record, summary_blocks: Some(blocks) };
        let mut bytes = [0; BLOCK_SIZE];
        end.write(&mut bytes, address);
        let mut data = summary.to_bytes(store);
        data.extend_from_slice(&bytes);
        let offset = (address - u64::from(blocks)) * BLOCK;
        self.tally.io(Io::Metadata, u64::from(blocks) + 1, offset, data.len() as u64);
        writer.store_dirty = true;
        let outcome = self.store.write_from(offset, &data);
        self.logged(writer, outcome)?;
        self.state.lock().segments[segment].closed = true;
        Ok(())
    }

    /// Begins a segment, which the superblock names, or soon will.
    pub(crate) fn open_segment(&self, writer: &mut Writer, segment: usize) -> Result<(), HistoryError> {
        let (sequence, record) = (writer.next_sequence, writer.next_record);
        self.write_begin(writer, segment, sequence, record)?;
        writer.segment = segment;
        writer.ended = false;
        writer.segment_sequence = sequence;
        writer.next_sequence += 1;
        writer.position = 1;
        writer.previous = 0;
        writer.entries = Vec::new();
        writer.recent = Recent::default();
        writer.superblock.live[segment] = true;
        self.state.lock().segments[segment] = Segment { sequence, ..Segment::default() };
        Ok(())
    }

    /// Writes the first block of a segment, which begins with that record.
    pub(crate) fn write_begin(
        &self,
        writer: &mut Writer,
        segment: usize,
        sequence: u64,
        record: u64,
    ) -> Result<(), HistoryError> {
        let address = writer.start_of(segment);
        let begin = HistorySegment { store: writer.superblock.store, sequence, record, summary_blocks: None };
        let mut bytes = [0; BLOCK_SIZE];
        begin.write(&mut bytes, address);
        self.tally.io(Io::Metadata, 1, address * BLOCK, BLOCK);
        writer.store_dirty = true;
        let outcome = self.store.write_from(address * BLOCK, &bytes);
        self.logged(writer, outcome)
    }

    /// Writes the superblock into both slots, one after the other, so that either alone opens the
    /// history when the other is damaged. It is durable in the first, and in the second after the
    /// next flush of the store.
    pub(crate) fn write_superblock(&self, writer: &mut Writer) -> Result<(), HistoryError> {
        // The superblock's content is durable before it, and so is the second slot of the previous
        // one.
        self.sync_store(writer)?;
        writer.superblock.sequence += 1;
        writer.superblock.durable_through = writer.synced;
        writer.superblock.last_ns = self.state.lock().last.max(writer.superblock.last_ns);
        writer.superblock.ahead.fill(false);
        writer.ahead.iter().for_each(|segment| writer.superblock.ahead[*segment] = true);
        writer.superblock.ahead_from = writer.next_sequence;
        for address in [SLOT_A, SLOT_B] {
            self.sync_store(writer)?;
            let mut bytes = [0; BLOCK_SIZE];
            writer.superblock.write(&mut bytes, address);
            self.tally.io(Io::Metadata, 1, address * BLOCK, BLOCK);
            writer.store_dirty = true;
            self.latch(self.store.write_from(address * BLOCK, &bytes))?;
        }
        writer.logged_ns = writer.logged_ns.max(writer.superblock.last_ns);
        Ok(())
    }

    /// Makes the store durable.
    pub(crate) fn sync_store(&self, writer: &mut Writer) -> Result<(), HistoryError> {
        if writer.store_dirty {
            self.tally.add(&self.tally.flushes, 1);
            self.latch(self.store.flush())?;
            writer.store_dirty = false;
            writer.durable_ns = writer.logged_ns;
        }
        Ok(())
    }

    /// Makes both devices durable: the log first.
    pub(crate) fn sync(&self, writer: &mut Writer) -> Result<(), HistoryError> {
        self.sync_store(writer)?;
        if writer.origin_dirty {
            self.tally.add(&self.tally.flushes, 1);
            self.latch(self.origin.flush())?;
            writer.origin_dirty = false;
        }
        if self.state.lock().unsettled == 0 && writer.torn.is_empty() {
            writer.synced = writer.next_record - 1;
        }
        Ok(())
    }

    /// Writes to the origin.
    pub(crate) fn write_origin(
        &self,
        writer: &mut Writer,
        mut batch: Vec<Operation>,
    ) -> Result<(), HistoryError> {
        if batch.is_empty() {
            return Ok(());
        }
        writer.origin_dirty = true;
        for operation in &batch {
            if let Some((_, offset, length)) = operation.request().range() {
                let blocks = length.div_ceil(u64::from(self.block_bytes));
                self.tally.io(Io::CurrentWrite, blocks, offset, length);
            }
        }
        self.origin.run(&mut batch);
        let outcomes: Vec<Result<(), DeviceError>> = batch.into_iter().map(Operation::into_outcome).collect();
        let is_room = |outcome: &Result<(), DeviceError>| matches!(outcome, Err(DeviceError::NoSpace { .. }));
        // That one of them found no room must not hide that another one failed.
        let (refused, rest): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(is_room);
        rest.into_iter().try_for_each(|outcome| self.latch(outcome))?;
        self.brought_to_origin(writer, refused.into_iter().next().unwrap_or(Ok(())))
    }

    /// The content of versions, each with its bytes: read, checked, in their order. A version
    /// without content is an error of the caller.
    pub(crate) fn read_versions(&self, versions: &[(Version, usize)]) -> Vec<Result<Segments, DeviceError>> {
        let places: Vec<(Stored, usize)> =
            versions.iter().map(|(version, length)| (Stored::of(version), *length)).collect();
        let read = self.read_stored(&places);
        self.rebuild(&places, read)
    }

    /// The stored parts of contents, each with its bytes: read, checked, in their order.
    pub(crate) fn read_stored(&self, places: &[(Stored, usize)]) -> Vec<Result<Segments, DeviceError>> {
        let alignment = u64::from(self.store.geometry().alignment);
        let mut batch = Vec::with_capacity(places.len());
        for (stored, length) in places {
            let offset = stored.place * PLACE_UNIT;
            let start = offset / alignment * alignment;
            let end = (offset + stored.bytes(*length) as u64).next_multiple_of(alignment);
            self.tally.io(Io::HistoryRead, 1, start, end - start);
            batch.push(Operation::read(start, (end - start) as u32));
        }
        self.store.run(&mut batch);
        let read = batch.into_iter().zip(places).map(|(operation, (stored, length))| {
            let data = operation.into_data()?;
            let at = (stored.place * PLACE_UNIT % alignment) as usize;
            let data = data.slice(at, stored.bytes(*length));
            if crc(&data) != stored.crc {
                return Err(stored.damaged(*length));
            }
            Ok(data)
        });
        read.collect()
    }

    /// Latches the first failure of a write or a flush: the durable state is unknown after it, so
    /// nothing more is written.
    pub(crate) fn latch<T>(&self, outcome: Result<T, DeviceError>) -> Result<T, HistoryError> {
        outcome.map_err(|error| {
            let mut state = self.state.lock();
            if state.failed.is_none() {
                tracing::error!(%error, "a device of a history failed: the history takes no more writes until it is reopened");
                state.failed = Some(error.clone());
            }
            HistoryError::Device(error)
        })
    }

    /// The failure that was kept.
    pub(crate) fn check_failed(&self) -> Result<(), HistoryError> {
        match &self.state.lock().failed {
            Some(error) => Err(HistoryError::Device(error.clone())),
            None => Ok(()),
        }
    }
}
