//! Logs that are assembled entry by entry, so that the content at each instant is known: the store
//! is opened, every instant is checked, and the device is used.
//!
//! The entries of a block are chosen among all that the rule of a history allows (`cairn-history`,
//! "What the log says"), also where no placement writes them so: the history must show the intended
//! content.

use std::collections::BTreeMap;

use arbitrary::{Arbitrary, Unstructured};
use cairn_base::{BLOCK_SIZE, Rng, crc32c};
use cairn_device::{Device, MemoryDevice, Segments};
use cairn_format::delta::{Delta, LINKS_MAX, runs_between};
use cairn_format::history::{
    EntryKind, FloorPolicy, Granularity, HistoryEntry, HistoryRecord, HistorySegment, HistorySuperblock,
    MarkContent, NO_LBA, PLACE_UNIT, Placement, Reduction, RevertState, SEGMENTS_START, SLOT_A, SLOT_B,
};

use super::life::{Life, Work};
use super::{BEGAN, Content, SECOND, STORE};
use crate::seeds::noise;
use crate::sparse::{Blocks, block_of};

const BLOCK: usize = BLOCK_SIZE;
const UNIT: usize = PLACE_UNIT as usize;
const SEGMENT_BLOCKS: usize = 64;
const SEGMENTS: usize = 14;
const CHANGES_MAX: usize = 64;
const WORK_MAX: usize = 40;
const SPOILED_MAX: usize = 8;
/// Bytes of one choice.
const CHOICE: usize = 11;

/// The first choices of an input.
#[derive(Debug, Arbitrary)]
struct Head {
    placement: u8,
    granularity: u8,
    block: u8,
    /// The last block of the device is a part of one.
    short: bool,
    blocks: u8,
    reduction: u8,
    /// The window has moved: earlier entries are in the log, and do not count.
    was_cut: bool,
    /// How entries are distributed over records and segments.
    order: u64,
    records: [u8; 4],
    /// The part of the records, in 256ths, that was durable at the last superblock.
    durable: u8,
    /// Segments that the superblock names as ahead.
    ahead: u8,
    dirty: u8,
    revert: Option<Revert>,
    /// One in four has some of its bytes changed after all is written.
    spoiled: u8,
}

/// All of it: the choices after the head have one length, so that a change of one of them leaves
/// the others.
struct Log {
    head: Head,
    changes: Vec<Change>,
    spoiled: Vec<(u16, u16, u8)>,
    work: Vec<Work>,
}

impl Log {
    fn of(data: &[u8]) -> arbitrary::Result<Self> {
        let mut from = Unstructured::new(data);
        let head = Head::arbitrary(&mut from)?;
        let mut log = Self { head, changes: Vec::new(), spoiled: Vec::new(), work: Vec::new() };
        for chunk in from.take_rest().chunks_exact(CHOICE) {
            let mut from = Unstructured::new(&chunk[1..]);
            match chunk[0] % 16 {
                0..=8 => log.changes.push(Change::arbitrary(&mut from)?),
                15 if log.head.spoiled.is_multiple_of(4) => {
                    log.spoiled.push(Arbitrary::arbitrary(&mut from)?)
                }
                _ => log.work.push(Work::arbitrary(&mut from)?),
            }
        }
        log.changes.truncate(CHANGES_MAX);
        log.spoiled.truncate(SPOILED_MAX);
        log.work.truncate(WORK_MAX);
        Ok(log)
    }
}

#[derive(Debug, Clone, Copy, Arbitrary)]
struct Change {
    lba: u8,
    pause: u8,
    content: u8,
    /// 0: lost, 1 and 2: zeroes.
    kind: u8,
    /// Bits: an undo although none is needed, the end of a redo, twice in the log, a mark before
    /// it.
    how: u8,
}

#[derive(Debug, Clone, Copy, Arbitrary)]
struct Revert {
    after: u8,
    target: u8,
    cursor: u8,
}

/// An entry before it has a place.
#[derive(Clone)]
struct Said {
    lba: u64,
    time: u64,
    kind: EntryKind,
    data: Option<Vec<u8>>,
}

/// The intended content of a device at each instant, and its entries.
struct Meant {
    lengths: Vec<usize>,
    /// The device's content after each change.
    images: BTreeMap<u64, Vec<Content>>,
    said: Vec<Said>,
    /// The last entry of a block is a redo.
    redone: Vec<bool>,
    origin: Vec<Content>,
    logging: bool,
}

/// A content of `length` bytes. Those of near seeds differ in a few.
pub(super) fn content(seed: u8, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    Rng::new(u64::from(seed >> 3) + 1).fill(&mut bytes);
    for bit in 0..u64::from(seed & 7) {
        let at = Rng::new(bit).below(length as u64) as usize;
        bytes[at] ^= 0x55;
    }
    bytes
}

fn said(lba: usize, time: u64, content: &Content, kinds: [EntryKind; 3]) -> Said {
    let [with_data, zero, lost] = kinds;
    let (kind, data) = match content {
        None => (lost, None),
        Some(bytes) if bytes.iter().all(|byte| *byte == 0) => (zero, None),
        Some(bytes) => (with_data, Some(bytes.clone())),
    };
    Said { lba: lba as u64, time, kind, data }
}

fn undo(lba: usize, time: u64, content: &Content) -> Said {
    said(lba, time, content, [EntryKind::Undo, EntryKind::UndoZero, EntryKind::UndoLost])
}

fn redo(lba: usize, time: u64, content: &Content) -> Said {
    said(lba, time, content, [EntryKind::Redo, EntryKind::RedoZero, EntryKind::RedoLost])
}

impl Meant {
    fn new(log: &Log, block_bytes: usize) -> Self {
        let blocks = 1 + usize::from(log.head.blocks % 12);
        let mut lengths = vec![block_bytes; blocks];
        if log.head.short {
            lengths[blocks - 1] = block_bytes - 512.min(block_bytes / 2);
        }
        let origin: Vec<Content> =
            lengths.iter().zip(0..).map(|(length, lba)| Some(content(lba * 16, *length))).collect();
        Self {
            images: BTreeMap::from([(0, origin.clone())]),
            said: Vec::new(),
            redone: vec![false; blocks],
            logging: Placement::ALL[usize::from(log.head.placement) % 5] == Placement::Logging,
            origin,
            lengths,
        }
    }

    fn now(&self) -> &Vec<Content> {
        self.images.last_key_value().expect("it begins with one").1
    }

    fn at(&self, time: u64) -> &Vec<Content> {
        self.images.range(..=time).next_back().expect("it begins with one").1
    }

    /// A block changes at `time`, and the log gets one of the possible sets of entries.
    fn change(&mut self, lba: usize, time: u64, new: &Content, how: u8) {
        let mut image = self.now().clone();
        let old = std::mem::replace(&mut image[lba], new.clone());
        self.images.insert(time, image);
        if self.logging {
            return self.said.push(redo(lba, time, new));
        }
        let was_redone = self.redone[lba];
        if !was_redone || how & 1 == 1 {
            self.said.push(undo(lba, time, &old));
        }
        self.redone[lba] = how & 2 == 0 || new.is_none();
        match (was_redone, self.redone[lba]) {
            (_, true) => self.said.push(redo(lba, time, new)),
            (true, false) => {
                self.said.push(Said { lba: lba as u64, time, kind: EntryKind::Gone, data: None });
            }
            (false, false) => {}
        }
        if new.is_some() {
            self.origin[lba] = new.clone();
        }
    }

    fn mark(&mut self, time: u64, name: String) {
        let data = Some(MarkContent { name, consistent: false }.to_bytes().to_vec());
        self.said.push(Said { lba: NO_LBA, time, kind: EntryKind::Mark, data });
    }

    /// The device shows an earlier instant; blocks before `cursor` are copied already.
    fn revert(&mut self, revert: &RevertState) {
        let target = self.at(revert.target).clone();
        self.mark(revert.time - 1, "before-revert-1".to_owned());
        for (lba, content) in target.iter().enumerate() {
            let is_changed = |said: &Said| said.lba == lba as u64 && said.time > revert.target;
            if (lba as u64) < revert.cursor && self.said.iter().any(is_changed) {
                self.change(lba, revert.time, content, 0);
            }
        }
        self.images.insert(revert.time, target);
    }

    /// A block that the copy of a revert has not reached is copied before it is written again.
    fn copy(&mut self, lba: usize, revert: &RevertState) {
        let is_changed = |said: &Said| said.lba == lba as u64 && said.time > revert.target;
        let is_due = !self.said.iter().any(|said| said.lba == lba as u64 && said.time >= revert.time);
        if !self.said.iter().any(is_changed) || !is_due {
            return;
        }
        let now = self.images.remove(&revert.time).expect("it was made");
        let brought_back = self.at(revert.target)[lba].clone();
        let later = self.images.split_off(&revert.time);
        self.change(lba, revert.time, &brought_back, 0);
        self.images.insert(revert.time, now);
        self.images.extend(later);
    }
}

pub(crate) fn log(data: &[u8]) {
    let Ok(log) = Log::of(data) else { return };
    let block_bytes = [512, 4096, 8192, 1024][usize::from(log.head.block % 4)];
    let mut meant = Meant::new(&log, block_bytes);
    let (last, revert) = lived(&log, &mut meant);
    let mut store = Assembler::new(&log, block_bytes, &meant);
    let mut said = std::mem::take(&mut meant.said);
    if log.head.was_cut {
        // None of these counts: their contents belong to no block.
        let wrong = |lba: usize| redo(lba, BEGAN - lba as u64, &Some(content(255, meant.lengths[lba])));
        said.extend((0..meant.lengths.len()).map(wrong));
    }
    store.write(&log, said);
    let durable = store.finish(&log, last, revert, meant.lengths.iter().sum::<usize>() as u64);
    let stale = store.stale(durable);
    let mut blocks = store.blocks();
    let is_spoiled = spoil(&mut blocks, &log);
    let origin = MemoryDevice::new(meant.lengths.iter().sum::<usize>() as u64);
    for (lba, content) in meant.origin.iter().enumerate() {
        // Content that was not durable on the origin yet is written there again.
        let is_stale = stale.contains(&(lba as u64)) && !meant.logging;
        let bytes = content.as_ref().filter(|_| !is_stale);
        let bytes = bytes.cloned().unwrap_or_else(|| vec![0xbb; meant.lengths[lba]]);
        origin.write((lba * block_bytes) as u64, Segments::copy_of(&bytes)).expect("memory takes it");
    }
    let dirty = [1, 16 << 10, 1 << 20][usize::from(log.head.dirty % 3)];
    let mut images = meant.images;
    let first = images.range(..=BEGAN).next_back().expect("it begins with one").1.clone();
    images = images.split_off(&BEGAN);
    images.insert(BEGAN, first);
    let length = ((SEGMENTS * SEGMENT_BLOCKS) as u64 + SEGMENTS_START) * BLOCK as u64;
    let life = Life::new(origin, blocks, length, block_bytes, meant.lengths, images);
    life.live(dirty, is_spoiled, &log.work);
}

/// The device's past: the time of its last event, and the revert whose copy is unfinished.
fn lived(log: &Log, meant: &mut Meant) -> (u64, Option<RevertState>) {
    let mut time = BEGAN;
    let mut revert = None;
    for (number, change) in log.changes.iter().enumerate() {
        if let Some(wanted) = log.head.revert.filter(|wanted| usize::from(wanted.after % 32) == number) {
            let target = BEGAN + (time - BEGAN) / 256 * u64::from(wanted.target);
            time += 10;
            let state =
                RevertState { time, target, cursor: u64::from(wanted.cursor) % meant.lengths.len() as u64 };
            meant.revert(&state);
            revert = Some(state);
        }
        let lba = usize::from(change.lba) % meant.lengths.len();
        if let Some(revert) = &revert {
            meant.copy(lba, revert);
        }
        time += 1 + u64::from(change.pause) * SECOND / 100;
        if change.how & 8 == 8 {
            meant.mark(time, format!("mark {number}"));
            time += 1;
        }
        let length = meant.lengths[lba];
        let new = match change.kind {
            0 => None,
            1 | 2 => Some(vec![0; length]),
            _ => Some(content(change.content, length)),
        };
        meant.change(lba, time, &new, change.how);
        if change.how & 4 == 4 {
            // As a segment that was emptied leaves it.
            meant.said.extend(meant.said.last().cloned());
        }
    }
    (time, revert)
}

/// Changes bytes of the store that no checksum protects; true when there are any.
fn spoil(blocks: &mut Blocks, log: &Log) -> bool {
    for (block, at, byte) in &log.spoiled {
        let number = u64::from(*block) % (SEGMENTS_START + 6 * SEGMENT_BLOCKS as u64);
        let mut bytes = [0; BLOCK];
        if let Some(block) = blocks.get(&number) {
            bytes.copy_from_slice(&block[..]);
        }
        bytes[usize::from(*at) % BLOCK] = *byte;
        blocks.insert(number, block_of(&bytes));
    }
    !log.spoiled.is_empty()
}

/// The contents that a segment has stored already.
struct Stored {
    lba: u64,
    content: Vec<u8>,
    place: u32,
    crc: u32,
    units: u8,
    links: u8,
}

struct Segment {
    index: usize,
    sequence: u64,
    bytes: Vec<u8>,
    entries: Vec<HistoryEntry>,
    stored: Vec<Stored>,
    position: usize,
    previous: u32,
    closed: bool,
}

/// Writes the log in the form of `docs/format.md`.
struct Assembler {
    superblock: HistorySuperblock,
    segments: Vec<Segment>,
    /// Where the segments of the log are.
    places: Vec<usize>,
    next_record: u64,
    rng: Rng,
    newest: BTreeMap<u64, Newest>,
}

/// The last entry of a block.
struct Newest {
    time: u64,
    record: u64,
    kind: EntryKind,
}

impl Assembler {
    fn new(log: &Log, block_bytes: usize, meant: &Meant) -> Self {
        let reduction =
            Reduction { xor: log.head.reduction & 1 == 1, identical: log.head.reduction & 2 == 2 };
        let mut rng = Rng::new(log.head.order);
        let mut places: Vec<usize> = (0..SEGMENTS).collect();
        shuffle(&mut places, &mut rng);
        let superblock = HistorySuperblock {
            store: STORE,
            sequence: 5,
            placement: Placement::ALL[usize::from(log.head.placement) % 5],
            granularity: [Granularity::EveryWrite, Granularity::Interval(SECOND), Granularity::Marks]
                [usize::from(log.head.granularity % 3)],
            floor_policy: FloorPolicy::Fail,
            reduction,
            block_bytes: block_bytes as u32,
            segment_blocks: SEGMENT_BLOCKS as u64,
            segments: SEGMENTS as u64,
            origin_bytes: meant.lengths.iter().sum::<usize>() as u64,
            window_ns: 0,
            window_bytes: 0,
            floor_ns: 0,
            created_ns: BEGAN,
            start_ns: BEGAN,
            cut_ns: if log.head.was_cut { BEGAN } else { 0 },
            last_ns: BEGAN,
            durable_through: 0,
            reverts: Vec::new(),
            thinned: Vec::new(),
            live: vec![false; SEGMENTS],
            ahead: vec![false; SEGMENTS],
            ahead_from: 0,
        };
        let newest = BTreeMap::new();
        Self { superblock, segments: Vec::new(), places, next_record: 1, rng, newest }
    }

    /// Puts entries into records, in some order, and records into segments.
    fn write(&mut self, log: &Log, said: Vec<Said>) {
        let mut said = said;
        if log.head.order & 1 == 1 {
            shuffle(&mut said, &mut self.rng);
        }
        self.begin();
        let mut said = said.into_iter().peekable();
        for number in 0.. {
            let wanted = 1 + usize::from(log.head.records[number % log.head.records.len()] % 24);
            let mut batch: Vec<Said> = Vec::new();
            let mut bytes = 0;
            while let Some(next) = said.peek().filter(|_| batch.len() < wanted) {
                let more = bytes + next.data.as_ref().map_or(0, Vec::len).next_multiple_of(UNIT);
                let segment = self.segments.last().expect("one is begun");
                let heads = HistoryRecord::head_blocks(batch.len() + 1) as usize;
                let summary = HistoryRecord::head_blocks(segment.entries.len() + batch.len() + 1) as usize;
                if segment.position + heads + more.div_ceil(BLOCK) + summary + 1 > SEGMENT_BLOCKS {
                    break;
                }
                bytes = more;
                batch.extend(said.next());
            }
            match (batch.is_empty(), said.peek().is_some()) {
                (false, _) => self.record(batch),
                (true, true) => {
                    self.close();
                    self.begin();
                }
                (true, false) => return,
            }
        }
    }

    fn begin(&mut self) {
        let at = self.segments.len();
        self.segments.push(Segment {
            index: self.places[at],
            sequence: 10 + at as u64,
            bytes: vec![0; SEGMENT_BLOCKS * BLOCK],
            entries: Vec::new(),
            stored: Vec::new(),
            position: 1,
            previous: 0,
            closed: false,
        });
        let (sequence, record) = (10 + at as u64, self.next_record);
        self.end_block(HistorySegment { store: STORE, sequence, record, summary_blocks: None }, 0);
    }

    /// Writes a block at an end of the last segment.
    fn end_block(&mut self, block: HistorySegment, position: usize) {
        let segment = self.segments.last_mut().expect("one is begun");
        let address = SEGMENTS_START + (segment.index * SEGMENT_BLOCKS + position) as u64;
        let mut bytes = [0; BLOCK];
        block.write(&mut bytes, address);
        segment.bytes[position * BLOCK..][..BLOCK].copy_from_slice(&bytes);
    }

    fn record(&mut self, batch: Vec<Said>) {
        let reduction = self.superblock.reduction;
        let sequence = self.next_record;
        let segment = self.segments.last_mut().expect("one is begun");
        let at = segment.position * BLOCK / UNIT;
        let mut place = at + HistoryRecord::head_blocks(batch.len()) as usize * BLOCK / UNIT;
        let mut entries = Vec::new();
        for said in batch {
            let (time, lba, kind) = (said.time, said.lba, said.kind);
            let is_newest = |known: &Newest| (known.time, !is_undo(known.kind)) <= (time, !is_undo(kind));
            if time > self.superblock.cut_ns && self.newest.get(&lba).is_none_or(is_newest) {
                self.newest.insert(lba, Newest { time, record: sequence, kind });
            }
            let mut entry =
                HistoryEntry { time, lba, place: at as u32, crc: 0, length: 0, kind, reduced: false };
            if let Some(data) = said.data {
                let (new, stored) = segment.store(reduction, lba, data, place as u32);
                (entry.place, entry.crc, entry.reduced) = (stored.0, stored.1, stored.3 > 0);
                entry.length = stored.2;
                segment.bytes[place * UNIT..][..new.len()].copy_from_slice(&new);
                place += new.len().div_ceil(UNIT);
            }
            entries.push(entry);
        }
        let blocks = (place * UNIT).div_ceil(BLOCK) - segment.position;
        let record = HistoryRecord {
            summary: false,
            segment: segment.sequence,
            sequence,
            durable_through: 0,
            blocks: blocks as u32,
            previous: segment.previous,
            entries,
        };
        let bytes = record.to_bytes(STORE);
        segment.bytes[segment.position * BLOCK..][..bytes.len()].copy_from_slice(&bytes);
        segment.previous = HistoryRecord::checksum(&bytes);
        segment.position += blocks;
        segment.entries.extend(record.entries);
        self.next_record += 1;
    }

    fn close(&mut self) {
        let record = self.next_record;
        let segment = self.segments.last_mut().expect("one is begun");
        segment.closed = true;
        let summary = HistoryRecord {
            summary: true,
            segment: segment.sequence,
            sequence: record,
            durable_through: 0,
            blocks: HistoryRecord::head_blocks(segment.entries.len()) as u32,
            previous: 0,
            entries: segment.entries.clone(),
        };
        let bytes = summary.to_bytes(STORE);
        let position = SEGMENT_BLOCKS - 1 - summary.blocks as usize;
        segment.bytes[position * BLOCK..][..bytes.len()].copy_from_slice(&bytes);
        let (sequence, summary_blocks) = (segment.sequence, Some(summary.blocks));
        self.end_block(HistorySegment { store: STORE, sequence, record, summary_blocks }, SEGMENT_BLOCKS - 1);
    }

    /// The superblock that knows some of the segments, and has named the others as ahead. The last
    /// record that was durable.
    fn finish(&mut self, log: &Log, last: u64, revert: Option<RevertState>, origin_bytes: u64) -> u64 {
        let count = self.segments.len();
        let known = count.saturating_sub(usize::from(log.head.ahead % 4)).max(1);
        for (at, place) in self.places.iter().enumerate().take((count + 1).max(known)) {
            self.superblock.live[*place] = true;
            self.superblock.ahead[*place] = at >= known;
        }
        self.superblock.ahead_from = 10 + known as u64;
        let records = self.next_record - 1;
        let all = !log.spoiled.is_empty();
        let durable = if all { records } else { records * u64::from(log.head.durable) / 255 };
        self.superblock.durable_through = durable;
        self.superblock.last_ns = last;
        self.superblock.origin_bytes = origin_bytes;
        self.superblock.reverts.extend(revert);
        durable
    }

    /// Blocks that the origin may lack: their newest entry is a redo in a record that was not
    /// durable.
    fn stale(&self, durable: u64) -> Vec<u64> {
        let is_stale = |newest: &Newest| {
            newest.record > durable && matches!(newest.kind, EntryKind::Redo | EntryKind::RedoZero)
        };
        self.newest.iter().filter(|(_, newest)| is_stale(newest)).map(|(lba, _)| *lba).collect()
    }

    fn blocks(&self) -> Blocks {
        let mut blocks = Blocks::new();
        for slot in [SLOT_A, SLOT_B] {
            let mut bytes = [0; BLOCK];
            self.superblock.write(&mut bytes, slot);
            blocks.insert(slot, block_of(&bytes));
        }
        for segment in &self.segments {
            let start = SEGMENTS_START + (segment.index * SEGMENT_BLOCKS) as u64;
            let filled = (start..).zip(segment.bytes.chunks(BLOCK));
            let filled = filled.filter(|(_, block)| block.iter().any(|byte| *byte != 0));
            blocks.extend(filled.map(|(number, block)| (number, block_of(block))));
        }
        blocks
    }
}

fn is_undo(kind: EntryKind) -> bool {
    matches!(kind, EntryKind::Undo | EntryKind::UndoZero | EntryKind::UndoLost)
}

impl Segment {
    /// The stored bytes of a content, and its entry: place, checksum, bytes, units of a delta.
    fn store(
        &mut self,
        reduction: Reduction,
        lba: u64,
        content: Vec<u8>,
        place: u32,
    ) -> (Vec<u8>, (u32, u32, u32, u8)) {
        let plain = (place, crc32c(&content), content.len() as u32, 0);
        if lba == NO_LBA || reduction == Reduction::NONE {
            return (content, plain);
        }
        let same = self.stored.iter().find(|stored| reduction.identical && stored.content == content);
        if let Some(same) = same {
            let length = if same.units > 0 { u32::from(same.units) * UNIT as u32 } else { plain.2 };
            return (Vec::new(), (same.place, same.crc, length, same.units));
        }
        let base = self.stored.iter().rev().find(|stored| {
            reduction.xor
                && stored.lba == lba
                && stored.content.len() == content.len()
                && stored.links < LINKS_MAX
        });
        let units = content.len() / UNIT / 2;
        let room = Delta::room(units);
        let runs = base
            .filter(|_| units > 0)
            .and_then(|base| Some((base, runs_between(&base.content, &content, room)?)));
        let (bytes, named, links) = match runs {
            None => (content.clone(), plain, 0),
            Some((base, runs)) => {
                let (base_crc, base_units, links) = (base.crc, base.units, base.links + 1);
                let delta =
                    Delta { back: place - base.place, base_crc, base_units, links, crc: plain.1, runs };
                let bytes = delta.to_bytes();
                let named = (place, crc32c(&bytes), bytes.len() as u32, (bytes.len() / UNIT) as u8);
                (bytes, named, links)
            }
        };
        let (place, crc, _, units) = named;
        self.stored.push(Stored { lba, content, place, crc, units, links });
        (bytes, named)
    }
}

fn shuffle<T>(items: &mut [T], rng: &mut Rng) {
    for at in (1..items.len()).rev() {
        items.swap(at, rng.below(at as u64 + 1) as usize);
    }
}

pub(crate) fn log_seeds() -> Vec<Vec<u8>> {
    [vec![Vec::new()], noise(10, 900)].concat()
}
