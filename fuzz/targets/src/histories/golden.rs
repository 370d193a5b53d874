//! Stores that a history has written, in the middle of their lives, and edits of them that no
//! checksum gives away.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cairn_base::{BLOCK_SIZE, ManualClock, Rng, Timestamp, crc32c};
use cairn_device::{Device, MemoryDevice, Operation, Segments};
use cairn_format::BlockBytes;
use cairn_format::history::{
    Granularity, HistoryEntry, HistoryRecord, HistorySegment, HistorySuperblock, PLACE_UNIT, Placement,
    Reduction, SEGMENTS_START, SLOT_A, SLOT_B,
};
use cairn_history::{History, HistoryOptions, Thin, Window, store_bytes_min};

use super::structs::seal_record;
use super::{BEGAN, SECOND, STORE, open, put};
use crate::blocks::seal_superblock;
use crate::sparse::{Blocks, SparseDevice, block_of};
use crate::trees::{Edit, bytes_of};

const BLOCK: usize = BLOCK_SIZE;
const UNIT: usize = PLACE_UNIT as usize;
/// Blocks of each device that remembers.
pub(super) const DEVICE_BLOCKS: usize = 12;
/// Of a head: whether it is that of a summary, and the checksum of the record before.
const SUMMARY: usize = 6;
const PREVIOUS: std::ops::Range<usize> = 60..64;
const HEADER: usize = 64;
const ENTRY: usize = 32;
/// In an entry: the checksum of the stored bytes.
const ENTRY_SUM: std::ops::Range<usize> = 20..24;
/// Blocks of a head that are sealed at most: more do not fit into a segment here.
const HEAD_MAX: u64 = 64;

/// A store, and the facts about it.
pub(super) struct Golden {
    pub(super) origin: Vec<u8>,
    pub(super) store: Arc<Blocks>,
    pub(super) store_bytes: u64,
    pub(super) block_bytes: usize,
    /// When it was left.
    pub(super) last: u64,
    segments: Vec<Written>,
    /// Editable blocks, each with the number of its used bytes.
    places: Vec<(u64, usize)>,
}

/// A segment of the log.
struct Written {
    /// On the store.
    start: u64,
    /// Blocks where a head or the summary begins, with its entries.
    heads: Vec<(u64, Vec<HistoryEntry>)>,
    ends: Vec<u64>,
}

/// How a life was.
struct Lived {
    placement: Placement,
    granularity: Granularity,
    block_bytes: usize,
    window: Window,
    /// Contents of the log were damaged, and a read that needs them noticed it.
    damaged: bool,
}

/// One of each placement at least, reduced and not, thinned, cut, and with lost blocks.
pub(super) fn goldens() -> &'static [Golden] {
    static GOLDENS: OnceLock<Vec<Golden>> = OnceLock::new();
    GOLDENS.get_or_init(|| {
        use Granularity::{EveryWrite, Interval, Marks};
        let all = Reduction { xor: true, identical: true };
        let window = |reduction, segments: u64| {
            let bytes = (segments > 0).then_some(segments << 18);
            Window { reduction, bytes, ..Window::default() }
        };
        let (none, cut) = (window(Reduction::NONE, 0), window(all, 3));
        let mut thin = window(all, 0);
        thin.thin[0] = Some(Thin { after: Duration::from_secs(1), every: Duration::from_millis(500) });
        thin.thin[1] = Some(Thin { after: Duration::from_secs(2), every: Duration::from_secs(1) });
        let lived = |placement, granularity, block_bytes, window, damaged| {
            golden(&Lived { placement, granularity, block_bytes, window, damaged })
        };
        vec![
            lived(Placement::Checkpointing, EveryWrite, 4096, none, false),
            lived(Placement::Logging, EveryWrite, 4096, window(all, 0), false),
            lived(
                Placement::SplitStream,
                EveryWrite,
                4096,
                window(Reduction { xor: true, identical: false }, 0),
                false,
            ),
            lived(Placement::SplitDownStream, Interval(SECOND / 10), 8192, cut, false),
            lived(Placement::Hybrid, EveryWrite, 4096, cut, true),
            lived(Placement::Logging, Marks, 512, window(all, 0), false),
            lived(Placement::Logging, EveryWrite, 8192, window(all, 2), true),
            lived(Placement::Checkpointing, EveryWrite, 4096, thin, false),
        ]
    })
}

fn golden(lived: &Lived) -> Golden {
    let bytes = DEVICE_BLOCKS * lived.block_bytes;
    let store_bytes = store_bytes_min() + (4 << 18);
    let origin: Arc<dyn Device> = Arc::new(MemoryDevice::new(bytes as u64));
    let store = Arc::new(SparseDevice::new(store_bytes, Arc::default()));
    let clock = Arc::new(ManualClock::new(Timestamp(BEGAN)));
    let options = HistoryOptions {
        store: STORE,
        placement: lived.placement,
        granularity: lived.granularity,
        block_bytes: lived.block_bytes as u32,
        window: Window { reduction: lived.window.reduction, ..Window::default() },
    };
    let opened = cairn_history::OpenOptions {
        dirty_bytes: 32 << 10,
        read_bytes: 0,
        clock: clock.clone(),
        at_least: cairn_history::LogPosition::default(),
    };
    let history = History::create(origin.clone(), store.clone(), &options, opened).expect("a history");
    live(&history, &clock, lived.block_bytes, 1, 70);
    idle(&history);
    let as_device: Arc<dyn Device> = store.clone();
    let history = if lived.damaged { damage(history, &origin, &as_device, &clock) } else { history };
    history.set_window(lived.window).expect("a window");
    live(&history, &clock, lived.block_bytes, 2, 40);
    idle(&history);
    let marks = history.marks();
    let mark = marks.get(marks.len() / 2).expect("some are in the window");
    history.revert(mark.time).expect("a revert");
    // Its copy is not over.
    live(&history, &clock, lived.block_bytes, 3, 3);
    history.flush().expect("a flush");
    let last = history.status().last.0;
    drop(history);
    let mut content = vec![0; bytes];
    origin.read_into(0, &mut content).expect("memory is read");
    let blocks = store.blocks();
    let segments = written(&blocks);
    let places = places(&blocks, &segments);
    let (origin, store, block_bytes) = (content, Arc::new(blocks), lived.block_bytes);
    Golden { origin, store, store_bytes, block_bytes, last, segments, places }
}

/// Writes of a part of a block, of another block's content and of zeroes; marks.
fn live(history: &History, clock: &ManualClock, block: usize, seed: u64, rounds: usize) {
    let mut rng = Rng::new(seed);
    for round in 0..rounds {
        let at = |rng: &mut Rng| rng.below(DEVICE_BLOCKS as u64) * block as u64;
        let mut content = vec![0; block];
        match rng.below(4) {
            0 => rng.fill(&mut content),
            // Zeroes if that is lost.
            1 => drop(history.read_into(at(&mut rng), &mut content)),
            _ => {}
        }
        let (to, part) = (at(&mut rng), 1 + rng.below(200) as usize);
        if rng.one_in(8) {
            clock.advance(Duration::from_millis(10));
            history.run(&mut [Operation::trim(to, block as u64)]);
        } else if rng.one_in(2) {
            rng.fill(&mut content[..part]);
            put(history, clock, to, &content).expect("a write");
        } else {
            // A part of a lost block can't be written.
            rng.fill(&mut content[..part]);
            drop(put(history, clock, to + rng.below(block as u64 - 200), &content[..part]));
        }
        if round % 16 == 9 {
            history.mark(&format!("mark {seed}.{round}"), round % 32 == 9).expect("a mark");
        }
    }
    history.flush().expect("a flush");
}

/// All background work is done.
fn idle(history: &History) {
    while history.step().expect("a step") {}
}

/// Some contents of the log are damaged while the history is closed.
fn damage(
    history: Arc<History>,
    origin: &Arc<dyn Device>,
    store: &Arc<dyn Device>,
    clock: &Arc<ManualClock>,
) -> Arc<History> {
    drop(history);
    for block in (SEGMENTS_START + 8..SEGMENTS_START + 60).step_by(2) {
        let mut bytes = [0; BLOCK];
        store.read_into(block * BLOCK as u64, &mut bytes).expect("it is there");
        let is_content = HistoryRecord::peek(&bytes, STORE).is_err() && bytes[BLOCK - 1] != 0;
        if is_content {
            store.write(block * BLOCK as u64, Segments::copy_of(&[0xee; BLOCK])).expect("there is room");
        }
    }
    open(origin, store, clock, 32 << 10).expect("its summaries are whole")
}

/// The segments of a store according to the superblock and the heads.
fn written(blocks: &Blocks) -> Vec<Written> {
    let superblock = superblock_of(blocks).expect("a golden store is whole");
    let live = (0..superblock.segments).filter(|segment| superblock.live[*segment as usize]);
    live.filter_map(|segment| {
        let start = SEGMENTS_START + segment * superblock.segment_blocks;
        let begin = HistorySegment::parse(&bytes_of(blocks, start), STORE, start).ok()?;
        let mut heads = Vec::new();
        let mut at = start + 1;
        while let Some(record) = record_at(blocks, at).filter(|record| record.segment == begin.sequence) {
            let summary = record.summary;
            let next = at + u64::from(record.blocks);
            heads.push((at, record.entries));
            at = if summary { break } else { next };
        }
        let last = start + superblock.segment_blocks - 1;
        let end = HistorySegment::parse(&bytes_of(blocks, last), STORE, last).ok();
        let mut ends = vec![start];
        if let Some(summary) =
            end.filter(|end| end.sequence == begin.sequence).and_then(|end| end.summary_blocks)
        {
            let at = last - u64::from(summary);
            heads.push((at, record_at(blocks, at).expect("a golden store is whole").entries));
            ends.push(last);
        }
        Some(Written { start, heads, ends })
    })
    .collect()
}

/// The superblock in the first slot that has one.
pub(super) fn superblock_of(blocks: &Blocks) -> Option<HistorySuperblock> {
    [SLOT_A, SLOT_B].into_iter().find_map(|slot| HistorySuperblock::parse(&bytes_of(blocks, slot), slot).ok())
}

/// The record whose head is at a block of the store.
pub(super) fn record_at(blocks: &Blocks, at: u64) -> Option<HistoryRecord> {
    let head = HistoryRecord::peek(&bytes_of(blocks, at), STORE).ok()?;
    HistoryRecord::parse(&head_at(blocks, at, head.min(HEAD_MAX)), STORE).ok()
}

fn head_at(blocks: &Blocks, at: u64, length: u64) -> Vec<u8> {
    (at..at + length).flat_map(|number| bytes_of(blocks, number)).collect()
}

fn places(blocks: &Blocks, segments: &[Written]) -> Vec<(u64, usize)> {
    let mut places = Vec::new();
    for segment in segments {
        places.extend(segment.ends.iter().map(|end| (*end, 64)));
        for (at, entries) in &segment.heads {
            let bytes = HEADER + entries.len() * ENTRY;
            let starts = (0..HistoryRecord::head_blocks(entries.len())).zip((0..bytes).step_by(BLOCK));
            places.extend(starts.map(|(block, start)| (at + block, (bytes - start).min(BLOCK))));
            // A delta begins with the reference to its base.
            let reduced = entries.iter().filter(|entry| entry.reduced);
            places.extend(reduced.map(|entry| (place_of(segment, entry) / BLOCK as u64, BLOCK)));
        }
    }
    places.retain(|(block, _)| blocks.contains_key(block));
    places.dedup();
    places
}

/// The place of a content, in bytes from the start of the store.
fn place_of(segment: &Written, entry: &HistoryEntry) -> u64 {
    segment.start * BLOCK as u64 + u64::from(entry.place) * PLACE_UNIT
}

impl Golden {
    /// The store with edits, all checksums right.
    pub(super) fn edited(&self, edits: &[Edit]) -> Blocks {
        let mut blocks = (*self.store).clone();
        for edit in edits {
            // The superblock has the most fields.
            let (number, used) = match edit.block % 4 {
                0 => (SLOT_A, BLOCK),
                _ => self.places[usize::from(edit.block / 4) % self.places.len()],
            };
            // Its maps and its reserved bytes are most of it.
            let used = if number == SLOT_A && edit.at % 8 > 0 { 400 } else { used };
            let mut bytes = bytes_of(&blocks, number);
            Edit { at: edit.at / 8 % used as u16, ..*edit }.apply(&mut bytes);
            blocks.insert(number, block_of(&bytes));
        }
        self.segments.iter().for_each(|segment| seal_segment(&mut blocks, segment));
        let mut first = bytes_of(&blocks, SLOT_A);
        seal_superblock(&mut first);
        blocks.insert(SLOT_A, block_of(&first));
        blocks.remove(&SLOT_B);
        if let Ok(superblock) = HistorySuperblock::parse(&first, SLOT_A) {
            superblock.write(&mut first, SLOT_B);
            blocks.insert(SLOT_B, block_of(&first));
        }
        blocks
    }
}

fn seal_segment(blocks: &mut Blocks, segment: &Written) {
    for end in &segment.ends {
        let mut bytes: BlockBytes = bytes_of(blocks, *end);
        seal_superblock(&mut bytes);
        blocks.insert(*end, block_of(&bytes));
    }
    let mut previous = 0;
    for (at, entries) in &segment.heads {
        let used = HistoryRecord::head_blocks(entries.len());
        let mut head = head_at(blocks, *at, used);
        // Sums of contents stay if these are unchanged: an edit of the sum itself is damage, which
        // is detected.
        for (index, entry) in entries.iter().enumerate().filter(|(_, entry)| entry.kind.has_data()) {
            let (from, length) = (place_of(segment, entry), entry.length as usize);
            let content = head_at(blocks, from / BLOCK as u64, (length as u64).div_ceil(BLOCK as u64) + 1);
            let sum = crc32c(&content[(from % BLOCK as u64) as usize..][..length]);
            let place = HEADER + index * ENTRY;
            if sum != entry.crc && head[place..][ENTRY_SUM] == entry.crc.to_le_bytes() {
                head[place..][ENTRY_SUM].copy_from_slice(&sum.to_le_bytes());
            }
        }
        let said = HistoryRecord::peek(head[..BLOCK].try_into().expect("a block"), STORE).unwrap_or(used);
        if said > used && said <= HEAD_MAX {
            head = [head, head_at(blocks, at + used, said - used)].concat();
        }
        let before: u32 = if head[SUMMARY] == 1 { 0 } else { previous };
        head[PREVIOUS].copy_from_slice(&before.to_le_bytes());
        let length = (said.clamp(1, HEAD_MAX) as usize * BLOCK).min(head.len());
        seal_record(&mut head[..length]);
        previous = HistoryRecord::checksum(&head);
        for (number, bytes) in (*at..).zip(head.chunks(BLOCK)) {
            blocks.insert(number, block_of(bytes));
        }
    }
}

/// The stored bytes of an entry at a place of the store.
pub(super) fn stored(blocks: &Blocks, from: u64, length: usize) -> Vec<u8> {
    let first = from / BLOCK as u64;
    let bytes = head_at(blocks, first, (length as u64).div_ceil(BLOCK as u64) + 1);
    bytes[(from % BLOCK as u64) as usize..][..length].to_vec()
}

/// A device with these bytes.
pub(super) fn device_of(bytes: &[u8]) -> Arc<dyn Device> {
    let device = MemoryDevice::new(bytes.len() as u64);
    device.write(0, Segments::copy_of(bytes)).expect("memory takes it");
    Arc::new(device)
}

const _: () = assert!(UNIT * 8 == BLOCK);
