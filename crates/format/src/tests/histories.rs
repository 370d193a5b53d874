//! Samples of the structs of a history store.

use cairn_base::{BLOCK_SIZE, HistoryId, crc32c};

use super::block;
use crate::FormatError;
use crate::history::*;

pub(super) const STORE: HistoryId = HistoryId([0x7d; 16]);

pub(super) fn superblock() -> HistorySuperblock {
    HistorySuperblock {
        store: STORE,
        sequence: 9,
        placement: Placement::SplitStream,
        granularity: Granularity::Interval(1_000_000_000),
        floor_policy: FloorPolicy::Wait,
        block_bytes: 4096,
        segment_blocks: 256,
        segments: 100,
        origin_bytes: 1 << 30,
        window_ns: 86_400_000_000_000,
        window_bytes: 1 << 26,
        floor_ns: 3_600_000_000_000,
        created_ns: 1_700_000_000_000_000_000,
        start_ns: 1_700_000_000_000_000_001,
        cut_ns: 1_700_000_000_000_000_001,
        last_ns: 1_700_000_000_000_000_009,
        durable_through: 77,
        reverts: vec![
            RevertState { time: 1_700_000_000_000_000_005, target: 1_700_000_000_000_000_002, cursor: 3 },
            RevertState { time: 1_700_000_000_000_000_008, target: 1_700_000_000_000_000_004, cursor: 0 },
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

pub(super) fn superblock_bytes(superblock: &HistorySuperblock) -> Vec<u8> {
    let mut bytes = [0; BLOCK_SIZE];
    superblock.write(&mut bytes, SLOT_B);
    bytes.to_vec()
}

pub(super) fn reread_superblock(bytes: &[u8]) -> Result<Vec<u8>, FormatError> {
    HistorySuperblock::parse(block(bytes), SLOT_B).map(|superblock| superblock_bytes(&superblock))
}

pub(super) fn segment() -> HistorySegment {
    HistorySegment { store: STORE, sequence: 12, record: 340, summary_blocks: Some(2) }
}

pub(super) fn segment_bytes(segment: &HistorySegment) -> Vec<u8> {
    let mut bytes = [0; BLOCK_SIZE];
    segment.write(&mut bytes, 1055);
    bytes.to_vec()
}

pub(super) fn reread_segment(bytes: &[u8]) -> Result<Vec<u8>, FormatError> {
    HistorySegment::parse(block(bytes), STORE, 1055).map(|segment| segment_bytes(&segment))
}

pub(super) fn record() -> HistoryRecord {
    let entry = |lba, kind: EntryKind| HistoryEntry {
        time: 1_700_000_000_000_000_003,
        lba,
        place: 16,
        crc: if kind.has_data() { 0x1234_5678 } else { 0 },
        length: if kind.has_data() { 4096 } else { 0 },
        kind,
    };
    HistoryRecord {
        summary: false,
        segment: 12,
        sequence: 341,
        durable_through: 340,
        blocks: 2,
        previous: 0x9abc_def0,
        entries: vec![entry(5, EntryKind::UndoZero), entry(5, EntryKind::Redo)],
    }
}

pub(super) fn reread_record(bytes: &[u8]) -> Result<Vec<u8>, FormatError> {
    HistoryRecord::parse(bytes, STORE).map(|record| record.to_bytes(STORE))
}

pub(super) fn seal_record(bytes: &mut [u8]) {
    bytes[56..60].fill(0);
    let sum = crc32c(bytes);
    bytes[56..60].copy_from_slice(&sum.to_le_bytes());
}

#[test]
fn mark_is_read_as_it_was_written_or_refused() {
    let mark = MarkContent { name: "before-upgrade".to_owned(), consistent: true };
    let bytes = mark.to_bytes();
    assert_eq!(MarkContent::parse(&bytes), Ok(mark));
    assert!(MarkContent::parse(&bytes[..511]).is_err());
    for bit in 0..bytes.len() * 8 {
        let mut changed = bytes;
        changed[bit / 8] ^= 1 << (bit % 8);
        // What is read is all that is there.
        assert!(
            MarkContent::parse(&changed).is_err_and(|_| true)
                || MarkContent::parse(&changed).is_ok_and(|mark| mark.to_bytes() == changed)
        );
    }
}

#[test]
fn record_of_another_store_or_with_an_impossible_entry_is_refused() {
    let bytes = record().to_bytes(STORE);
    assert!(HistoryRecord::parse(&bytes, HistoryId([1; 16])).is_err());
    for change in [
        |entry: &mut HistoryEntry| entry.lba = NO_LBA,
        |entry: &mut HistoryEntry| entry.length = 0,
        |entry: &mut HistoryEntry| entry.length = HISTORY_BLOCK_MAX + 1,
        |entry: &mut HistoryEntry| entry.time = u64::MAX,
    ] {
        let mut record = record();
        change(&mut record.entries[1]);
        assert!(HistoryRecord::parse(&record.to_bytes(STORE), STORE).is_err());
    }
}
