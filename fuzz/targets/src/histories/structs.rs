//! Decoders alone: whatever is accepted is written again as the same bytes, with the checksums as
//! they came and with right ones.

use cairn_base::{BLOCK_SIZE, crc32c};
use cairn_format::delta::{Delta, LINKS_MAX, runs_between};
use cairn_format::history::{
    EntryKind, FloorPolicy, Granularity, HistoryEntry, HistoryRecord, HistorySegment, HistorySuperblock,
    MarkContent, NO_LBA, Placement, Reduction, RevertState, SLOT_A, SLOT_B, Thinned,
};

use super::{BEGAN, SECOND, STORE};
use crate::blocks::{block, canonical, seal_superblock};
use crate::streams::start;

/// Where the segments' blocks were read.
const ADDRESS: u64 = 1055;
/// In a record's head: the place of its checksum.
const RECORD_SUM: std::ops::Range<usize> = 56..60;

pub(crate) fn structs(data: &[u8]) {
    for sealed in [false, true] {
        blocks(data, sealed);
        records(data, sealed);
    }
    if let Ok(mark) = MarkContent::parse(&start::<{ MarkContent::SIZE }>(data)) {
        canonical(&start::<{ MarkContent::SIZE }>(data), Ok(mark.to_bytes().to_vec()));
    }
    if let Ok(delta) = Delta::parse(data) {
        canonical(data, Ok(delta.to_bytes()));
        for length in [512, 4096, 1 << 16] {
            let _ = delta.apply(&mut vec![7; length]);
        }
    }
    of_two_contents(data);
}

/// Superblocks and the ends of segments.
fn blocks(data: &[u8], sealed: bool) {
    let mut bytes = block(data);
    if sealed {
        seal_superblock(&mut bytes);
    }
    let mut again = [0; BLOCK_SIZE];
    for address in [SLOT_A, SLOT_B] {
        let reread = HistorySuperblock::parse(&bytes, address).map(|superblock| {
            superblock.write(&mut again, address);
            again.to_vec()
        });
        canonical(&bytes, reread);
    }
    let reread = HistorySegment::parse(&bytes, STORE, ADDRESS).map(|segment| {
        segment.write(&mut again, ADDRESS);
        again.to_vec()
    });
    canonical(&bytes, reread);
}

/// Heads of records and summaries, of several blocks perhaps.
fn records(data: &[u8], sealed: bool) {
    let Ok(blocks) = HistoryRecord::peek(&block(data), STORE) else { return };
    // No memory for merely announced bytes.
    let Ok(length) = usize::try_from(blocks * BLOCK_SIZE as u64) else { return };
    if length > data.len().next_multiple_of(BLOCK_SIZE) {
        return assert!(
            HistoryRecord::parse(data, STORE).is_err(),
            "a part of a head was taken for all of it"
        );
    }
    let mut bytes = data[..length.min(data.len())].to_vec();
    bytes.resize(length, 0);
    if sealed {
        seal_record(&mut bytes);
    }
    canonical(&bytes, HistoryRecord::parse(&bytes, STORE).map(|record| record.to_bytes(STORE)));
}

/// Makes the checksum of a record's head right.
pub(super) fn seal_record(head: &mut [u8]) {
    head[RECORD_SUM].fill(0);
    let sum = crc32c(head);
    head[RECORD_SUM].copy_from_slice(&sum.to_le_bytes());
}

/// The stored form of a content and its base give the content again.
fn of_two_contents(data: &[u8]) {
    let (before, after) = data.split_at(data.len() / 2);
    let after = &after[..before.len()];
    let Some(runs) = runs_between(before, after, before.len() / 2) else { return };
    assert!(runs.len() <= before.len() / 2, "more than was allowed");
    let delta = Delta { back: 1, base_crc: 2, base_units: 0, links: 1, crc: crc32c(after), runs };
    let read = Delta::parse(&delta.to_bytes()).expect("what was written is read");
    assert!(read == delta, "it is read as something else");
    let mut content = before.to_vec();
    read.apply(&mut content).expect("it fits its base");
    assert!(content == after, "another content comes out");
}

fn superblock(reduction: Reduction) -> HistorySuperblock {
    HistorySuperblock {
        store: STORE,
        sequence: 9,
        placement: Placement::SplitStream,
        granularity: Granularity::Interval(SECOND),
        floor_policy: FloorPolicy::Wait,
        reduction,
        block_bytes: 4096,
        segment_blocks: 256,
        segments: 100,
        origin_bytes: 1 << 30,
        window_ns: 86_400 * SECOND,
        window_bytes: 1 << 26,
        floor_ns: 3600 * SECOND,
        created_ns: BEGAN,
        start_ns: BEGAN + 1,
        cut_ns: BEGAN + 1,
        last_ns: BEGAN + 9,
        durable_through: 77,
        reverts: vec![
            RevertState { time: BEGAN + 5, target: BEGAN + 2, cursor: 3 },
            RevertState { time: BEGAN + 8, target: BEGAN + 4, cursor: 0 },
        ],
        thinned: vec![
            Thinned { after_ns: 3600, every_ns: 60, until_ns: 5999 },
            Thinned { after_ns: 86_400, every_ns: 3600, until_ns: 0 },
        ],
        live: (0..100).map(|index| index % 3 == 0).collect(),
        ahead: (0..100).map(|index| index % 9 == 0).collect(),
        ahead_from: 13,
    }
}

/// An entry of each kind, a reduced one, and `more` further ones.
fn record(summary: bool, more: u64) -> Vec<u8> {
    let entry = |lba, kind: EntryKind, reduced| HistoryEntry {
        time: BEGAN + lba,
        lba: if kind == EntryKind::Mark { NO_LBA } else { lba },
        place: 16,
        crc: if kind.has_data() { 0x1234_5678 } else { 0 },
        length: if kind.has_data() { 512 } else { 0 },
        kind,
        reduced,
    };
    let mut entries: Vec<HistoryEntry> =
        EntryKind::ALL.into_iter().zip(0..).map(|(kind, lba)| entry(lba, kind, false)).collect();
    entries.push(entry(9, EntryKind::Redo, true));
    entries.extend((10..10 + more).map(|lba| entry(lba, EntryKind::RedoZero, false)));
    let blocks = HistoryRecord::head_blocks(entries.len()) as u32 + u32::from(!summary);
    let (segment, sequence, durable_through, previous) = (12, 341, 340, 0);
    HistoryRecord { summary, segment, sequence, durable_through, blocks, previous, entries }.to_bytes(STORE)
}

pub(crate) fn structs_seeds() -> Vec<Vec<u8>> {
    let mut bytes = [0; BLOCK_SIZE];
    let mut seeds = Vec::new();
    for reduction in [Reduction::NONE, Reduction { xor: true, identical: false }] {
        superblock(reduction).write(&mut bytes, SLOT_B);
        seeds.push(bytes.to_vec());
    }
    for summary_blocks in [None, Some(2)] {
        HistorySegment { store: STORE, sequence: 12, record: 340, summary_blocks }.write(&mut bytes, ADDRESS);
        seeds.push(bytes.to_vec());
    }
    seeds.extend([record(false, 0), record(true, 0), record(false, 200)]);
    seeds.push(MarkContent { name: "before-revert-1".to_owned(), consistent: true }.to_bytes().to_vec());
    let runs = vec![7, 0, 3, 0, 1, 2, 3, 2, 0, 1, 0, 9];
    let delta = Delta { back: 24, base_crc: 5, base_units: 1, links: LINKS_MAX, crc: 6, runs };
    seeds.push(delta.to_bytes());
    seeds.push([&[1; 600][..], &[2; 30], &[1; 600], &[1; 30]].concat());
    seeds
}
