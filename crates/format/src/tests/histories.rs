//! Samples of the structs of a history store.

use cairn_base::{BLOCK_SIZE, Checksum, HistoryId, crc32c};

use super::block;
use crate::delta::{Delta, LINKS_MAX, runs_between};
use crate::history::*;
use crate::{FormatError, Structure};

pub(super) const STORE: HistoryId = HistoryId([0x7d; 16]);

pub(super) fn superblock() -> HistorySuperblock {
    HistorySuperblock {
        store: STORE,
        sequence: 9,
        placement: Placement::SplitStream,
        granularity: Granularity::Interval(1_000_000_000),
        floor_policy: FloorPolicy::Wait,
        reduction: None,
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

/// Of version 2.
pub(super) fn reduced_superblock() -> HistorySuperblock {
    HistorySuperblock { reduction: Some(Reduction { xor: true, identical: false }), ..superblock() }
}

fn delta() -> Delta {
    let runs = vec![7, 0, 3, 0, 1, 2, 3, 2, 0, 1, 0, 9];
    Delta { back: 24, base_crc: 0x1234_5678, base_units: 1, links: 2, crc: 0x9abc_def0, runs }
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
        reduced: false,
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
        |entry: &mut HistoryEntry| (entry.reduced, entry.length) = (true, 500),
        |entry: &mut HistoryEntry| (entry.reduced, entry.length) = (true, HISTORY_BLOCK_MAX),
    ] {
        let mut record = record();
        change(&mut record.entries[1]);
        assert!(HistoryRecord::parse(&record.to_bytes(STORE), STORE).is_err());
    }
}

#[test]
fn superblock_that_contradicts_itself_is_refused() {
    for change in [
        |superblock: &mut HistorySuperblock| superblock.cut_ns = superblock.start_ns + 1,
        |superblock: &mut HistorySuperblock| superblock.reverts[1].time = superblock.last_ns + 1,
    ] {
        let mut superblock = superblock();
        change(&mut superblock);
        let sum = FormatError::Field { structure: Structure::HistoryStore, field: "time" };
        assert_eq!(reread_superblock(&superblock_bytes(&superblock)), Err(sum), "{superblock:?}");
    }
}

#[test]
fn segments_and_their_records_are_counted_from_one() {
    for (sequence, record) in [(0, 340), (12, 0)] {
        let bytes = segment_bytes(&HistorySegment { sequence, record, ..segment() });
        let sequence = FormatError::Field { structure: Structure::HistorySegment, field: "sequence" };
        assert_eq!(reread_segment(&bytes), Err(sequence));
    }
}

#[test]
fn superblock_says_by_its_version_whether_contents_may_be_reduced() {
    for (reduction, version) in [(None, 1), (Some(Reduction::NONE), 2)] {
        let bytes = superblock_bytes(&HistorySuperblock { reduction, ..superblock() });
        assert_eq!(bytes[8], version);
        // The other version with the same bytes says something else.
        let mut other = bytes.clone();
        (other[8], other[15]) = (3 - version, 1);
        let sum = Checksum::of(&other[..BLOCK_SIZE - 16]);
        other[BLOCK_SIZE - 16..].copy_from_slice(&sum.0);
        assert_eq!(reread_superblock(&other).is_err(), version == 2, "version 1 has no reduction");
    }
}

#[test]
fn bytes_of_a_delta_are_those_of_its_version_and_none_is_ignored() {
    let bytes = delta().to_bytes();
    assert_eq!(format!("{:?}", Checksum::of(&bytes)), "73d330f2031a95a1bc401599d9599f56");
    assert_eq!(Delta::parse(&bytes), Ok(delta()));
    let (reserved, count) = super::document::field("delta::RawDelta", "reserved");
    for bit in 0..bytes.len() * 8 {
        let mut changed = bytes.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let read = Delta::parse(&changed);
        assert!(read.is_err() || !(reserved..reserved + count).contains(&(bit / 8)), "bit {bit}");
        assert!(read.is_err() || read.is_ok_and(|delta| delta.to_bytes() == changed), "bit {bit}");
    }
}

#[test]
fn delta_takes_as_many_units_as_have_room_for_its_runs() {
    for length in [0, 1, 100, 480, 487, 488, 489, 511, 512, 999, 1000, 1001, 4000] {
        let delta = Delta { runs: vec![1; length], ..delta() };
        let bytes = delta.to_bytes();
        assert_eq!(Delta::parse(&bytes), Ok(delta), "{length} bytes of runs");
        let units = bytes.len() / PLACE_UNIT as usize;
        assert!((units..=units + 1).all(|units| length <= Delta::room(units)), "{length}");
        assert!((0..units).all(|units| length > Delta::room(units) || units == 0), "{length}");
    }
    assert_eq!(Delta::room(0), 0);
}

#[test]
fn delta_with_an_impossible_base_or_length_is_refused_and_none_reaches_past_its_content() {
    let bytes = delta().to_bytes();
    assert!(Delta::parse(&bytes[..bytes.len() - 1]).is_err());
    assert!(Delta::parse(&[&bytes[..], &[0; 512]].concat()).is_err(), "longer than it says");
    for change in [
        |delta: &mut Delta| delta.back = 0,
        |delta: &mut Delta| delta.links = 0,
        |delta: &mut Delta| delta.links = LINKS_MAX + 1,
        |delta: &mut Delta| delta.links = 1,
        |delta: &mut Delta| delta.base_units = 0,
    ] {
        let mut changed = delta();
        change(&mut changed);
        assert!(Delta::parse(&changed.to_bytes()).is_err(), "{changed:?}");
    }
    let mut content = vec![0; 20];
    delta().apply(&mut content).expect("its runs end within it");
    assert_eq!(content[6..14], [0, 1, 2, 3, 0, 0, 9, 0]);
    for length in 0..13 {
        assert!(delta().apply(&mut vec![0; length]).is_err(), "{length} bytes");
    }
}

proptest::proptest! {
    #[test]
    fn runs_make_of_a_content_the_other_one_or_are_not_worth_it(
        before in proptest::collection::vec(proptest::prelude::any::<u8>(), 1..3000),
        changes in proptest::collection::vec((0usize..3000, 1usize..200, 0u8..=255), 0..12),
        limit in 0usize..3000,
    ) {
        let mut after = before.clone();
        for (at, count, value) in changes {
            let at = at % after.len();
            let end = (at + count).min(after.len());
            after[at..end].iter_mut().for_each(|byte| *byte ^= value);
        }
        let all = runs_between(&before, &after, 60_000).expect("it has room");
        let limited = runs_between(&before, &after, limit);
        proptest::prop_assert_eq!(limited.is_some(), all.len() <= limit);
        let mut found = before.clone();
        Delta { runs: all, ..delta() }.apply(&mut found).expect("its own runs");
        proptest::prop_assert_eq!(found, after);
    }

    #[test]
    fn any_bytes_are_refused_or_read_and_written_the_same(
        bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 512),
        length in 0u32..500,
    ) {
        let mut bytes = bytes;
        bytes[12..16].copy_from_slice(&length.to_le_bytes());
        bytes[18..24].fill(0);
        bytes[24 + (length as usize).min(488)..].fill(0);
        if let Ok(delta) = Delta::parse(&bytes) {
            proptest::prop_assert_eq!(delta.to_bytes(), bytes);
            let _ = delta.apply(&mut [0; 4096]);
        }
    }
}
