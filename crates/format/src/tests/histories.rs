//! Samples of the structs of a history store.

use cairn_base::{BLOCK_SIZE, Checksum, HistoryId, crc32c};

use super::bounds::{Change, check};
use super::{block, document};
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
        reduction: Reduction::NONE,
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

pub(super) fn reduced_superblock() -> HistorySuperblock {
    HistorySuperblock { reduction: Reduction { xor: true, identical: false }, ..superblock() }
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
        // The parsed value represents every byte.
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

/// Past the end of every time.
const TIME_MAX: u64 = u64::MAX / 2;

#[test]
fn numbers_of_a_superblock_are_bounded() {
    let reread = |superblock: &HistorySuperblock| {
        HistorySuperblock::parse(block(&superblock_bytes(superblock)), SLOT_B)
    };
    fn set_segments(superblock: &mut HistorySuperblock, segments: usize) {
        superblock.segments = segments as u64;
        superblock.live = vec![true; segments.min(HISTORY_SEGMENTS_MAX as usize)];
        superblock.ahead = superblock.live.clone();
    }
    let changes: &[Change<HistorySuperblock>] = &[
        (|it| it.granularity = Granularity::EveryWrite, None),
        (|it| it.granularity = Granularity::Marks, None),
        (|it| it.granularity = Granularity::Interval(1), None),
        (|it| it.granularity = Granularity::Interval(0), Some("granularity")),
        (|it| it.floor_policy = FloorPolicy::Fail, None),
        (|it| it.reduction = Reduction { xor: true, identical: true }, None),
        (|it| it.reduction = Reduction { xor: false, identical: true }, None),
        (|it| it.block_bytes = 512, None),
        (|it| it.block_bytes = HISTORY_BLOCK_MAX, None),
        (|it| it.block_bytes = 256, Some("block size")),
        (|it| it.block_bytes = HISTORY_BLOCK_MAX * 2, Some("block size")),
        (|it| it.block_bytes = 4097, Some("block size")),
        (|it| it.segment_blocks = SEGMENT_BLOCKS_MIN, None),
        (|it| it.segment_blocks = SEGMENT_BLOCKS_MIN - 1, Some("segments")),
        (|it| it.segment_blocks = SEGMENT_BLOCKS_MAX, None),
        (|it| it.segment_blocks = SEGMENT_BLOCKS_MAX + 1, Some("segments")),
        (|it| set_segments(it, HISTORY_SEGMENTS_MIN as usize), None),
        (|it| set_segments(it, HISTORY_SEGMENTS_MIN as usize - 1), Some("segments")),
        (|it| set_segments(it, HISTORY_SEGMENTS_MAX as usize), None),
        (|it| set_segments(it, HISTORY_SEGMENTS_MAX as usize + 1), Some("segments")),
        (|it| it.segments -= 1, Some("live segments")),
        (|it| it.ahead[1] = true, Some("segments ahead")),
        (|it| it.ahead_from = crate::layout::COUNTER_MAX - 1, None),
        (|it| it.ahead_from = crate::layout::COUNTER_MAX, Some("segments ahead")),
        (|it| it.origin_bytes = (NO_LBA - 1) * 4096, None),
        (|it| it.origin_bytes = (NO_LBA - 1) * 4096 + 1, Some("origin")),
        (|it| it.created_ns = TIME_MAX - 1, None),
        (|it| it.created_ns = TIME_MAX, Some("time")),
        (|it| (it.start_ns, it.cut_ns) = (TIME_MAX - 1, TIME_MAX - 1), None),
        (|it| it.start_ns = TIME_MAX, Some("time")),
        (|it| it.last_ns = TIME_MAX - 1, None),
        (|it| it.last_ns = TIME_MAX, Some("time")),
        (|it| it.durable_through = TIME_MAX - 1, None),
        (|it| it.durable_through = TIME_MAX, Some("time")),
        (|it| it.sequence = TIME_MAX - 1, None),
        (|it| it.sequence = TIME_MAX, Some("time")),
    ];
    check(&superblock(), reread, changes);
    for placement in Placement::ALL {
        check(&HistorySuperblock { placement, ..superblock() }, reread, &[]);
        assert_eq!(placement.has_current_store(), placement != Placement::Logging);
    }
    for (at, code, refused) in [(12, 0, "placement"), (12, 6, "placement"), (15, 4, "reduction")] {
        let mut bytes = superblock_bytes(&reduced_superblock());
        bytes[at] = code;
        super::seal_superblock(&mut bytes);
        let field = FormatError::Field { structure: Structure::HistoryStore, field: refused };
        assert_eq!(reread_superblock(&bytes), Err(field));
    }
}

#[test]
fn reverts_and_steps_of_retention_are_bounded_and_in_order() {
    let reread = |superblock: &HistorySuperblock| {
        HistorySuperblock::parse(block(&superblock_bytes(superblock)), SLOT_B)
    };
    let revert = Some("revert");
    const NONE: RevertState = RevertState { time: 0, target: 0, cursor: 0 };
    let reverts: &[Change<HistorySuperblock>] = &[
        (|it| it.reverts.clear(), None),
        (|it| it.last_ns = it.reverts[1].time, None),
        (|it| it.reverts[1].time = it.reverts[0].time, revert),
        (|it| it.reverts.swap(0, 1), revert),
        (|it| it.reverts[0].target = it.reverts[0].time - 1, None),
        (|it| it.reverts[0].target = it.reverts[0].time, revert),
        (|it| it.reverts[0].cursor = NO_LBA, None),
        (|it| it.reverts[0].cursor = NO_LBA + 1, revert),
        (|it| it.reverts[1].time = TIME_MAX, revert),
        (|it| (it.last_ns, it.reverts[1].time) = (TIME_MAX - 1, TIME_MAX - 1), None),
        (|it| it.reverts[0] = NONE, revert),
        (|it| it.reverts = (1..9).map(|time| RevertState { time, target: 0, cursor: 0 }).collect(), None),
    ];
    check(&superblock(), reread, reverts);
    let retention = Some("retention");
    let steps: &[Change<HistorySuperblock>] = &[
        (|it| it.thinned.clear(), None),
        (|it| it.thinned.swap(0, 1), retention),
        (|it| it.thinned[1].after_ns = it.thinned[0].after_ns, retention),
        (|it| it.thinned[1].every_ns = it.thinned[0].every_ns, retention),
        (|it| (it.thinned[0].until_ns, it.thinned[1].until_ns) = (3599, 3599), None),
        (|it| (it.thinned[0].until_ns, it.thinned[1].until_ns) = (3599, 7199), retention),
        (|it| it.thinned[0].until_ns -= 1, retention),
        (|it| it.thinned[0].every_ns = 0, retention),
        (|it| (it.thinned[0].every_ns, it.thinned[0].until_ns) = (0, 0), retention),
        (|it| it.thinned[0].after_ns = 60, None),
        (|it| it.thinned[0].after_ns = 59, retention),
        (|it| it.thinned[1].after_ns = TIME_MAX - 1, None),
        (|it| it.thinned[1].after_ns = TIME_MAX, retention),
        (|it| (it.thinned[0].every_ns, it.thinned[0].until_ns) = (1, TIME_MAX - 1), None),
        (|it| (it.thinned[0].every_ns, it.thinned[0].until_ns) = (1, TIME_MAX), retention),
        (|it| (it.thinned[0].every_ns, it.thinned[0].until_ns) = (1, u64::MAX), retention),
        (|it| it.thinned.insert(0, Thinned { after_ns: 0, every_ns: 0, until_ns: 0 }), retention),
        (
            |it| {
                let step = |n| Thinned { after_ns: n, every_ns: n, until_ns: 0 };
                it.thinned = (1..=THINNED_MAX as u64).map(step).collect();
            },
            None,
        ),
    ];
    check(&superblock(), reread, steps);
}

#[test]
fn numbers_of_a_segment_and_of_a_record_are_bounded() {
    use crate::layout::COUNTER_MAX;
    let reread =
        |segment: &HistorySegment| HistorySegment::parse(block(&segment_bytes(segment)), STORE, 1055);
    let changes: &[Change<HistorySegment>] = &[
        (|it| it.summary_blocks = None, None),
        (|it| it.summary_blocks = Some(SEGMENT_BLOCKS_MAX as u32 - 1), None),
        (|it| it.summary_blocks = Some(SEGMENT_BLOCKS_MAX as u32), Some("end")),
        (|it| (it.sequence, it.record) = (1, 1), None),
        (|it| (it.sequence, it.record) = (COUNTER_MAX - 1, COUNTER_MAX - 1), None),
        (|it| it.sequence = COUNTER_MAX, Some("sequence")),
        (|it| it.record = COUNTER_MAX, Some("sequence")),
    ];
    check(&segment(), reread, changes);
    let misplaced = Err(FormatError::Misplaced(Structure::HistorySegment));
    let bytes = segment_bytes(&segment());
    assert_eq!(HistorySegment::parse(block(&bytes), HistoryId([1; 16]), 1055), misplaced);
    assert_eq!(HistorySegment::parse(block(&bytes), STORE, 1054), misplaced);
    let reread = |record: &HistoryRecord| HistoryRecord::parse(&record.to_bytes(STORE), STORE);
    // Its second entry has content, its first one has none.
    let changes: &[Change<HistoryRecord>] = &[
        (|it| it.blocks = 1, None),
        (|it| it.blocks = 0, Some("blocks")),
        (|it| it.blocks = SEGMENT_BLOCKS_MAX as u32 - 1, None),
        (|it| it.blocks = SEGMENT_BLOCKS_MAX as u32, Some("blocks")),
        (|it| (it.summary, it.blocks) = (true, 1), None),
        (|it| it.summary = true, Some("blocks")),
        (|it| it.segment = COUNTER_MAX - 1, None),
        (|it| it.segment = COUNTER_MAX, Some("sequence")),
        (|it| it.sequence = COUNTER_MAX - 1, None),
        (|it| it.sequence = COUNTER_MAX, Some("sequence")),
        (|it| it.durable_through = COUNTER_MAX - 1, None),
        (|it| it.durable_through = COUNTER_MAX, Some("sequence")),
        (|it| it.entries[1].lba = NO_LBA - 1, None),
        (|it| it.entries[1].lba = NO_LBA, Some("entry")),
        (|it| it.entries[1].length = 1, None),
        (|it| it.entries[1].length = HISTORY_BLOCK_MAX, None),
        (|it| it.entries[1].length = 0, Some("entry")),
        (|it| it.entries[1].length = HISTORY_BLOCK_MAX + 1, Some("entry")),
        (|it| it.entries[0].length = 1, Some("entry")),
        (|it| it.entries[0].crc = 1, Some("entry")),
        (|it| it.entries[1].time = TIME_MAX - 1, None),
        (|it| it.entries[1].time = TIME_MAX, Some("entry")),
        (|it| (it.entries[1].kind, it.entries[1].lba) = (EntryKind::Mark, NO_LBA), None),
        (|it| it.entries[1].kind = EntryKind::Mark, Some("entry")),
        (|it| it.entries[1].kind = EntryKind::Undo, None),
        (|it| (it.entries[1].reduced, it.entries[1].length) = (true, 512), None),
        (|it| (it.entries[1].reduced, it.entries[1].length) = (true, HISTORY_BLOCK_MAX - 512), None),
        (|it| (it.entries[1].reduced, it.entries[1].length) = (true, HISTORY_BLOCK_MAX), Some("reduced")),
        (|it| (it.entries[1].reduced, it.entries[1].length) = (true, 511), Some("reduced")),
        (|it| it.entries[0].reduced = true, Some("reduced")),
        (|it| it.entries = vec![it.entries[1]; 126], None),
        (|it| it.entries = vec![it.entries[1]; 127], None),
        (|it| (it.entries, it.blocks) = (vec![it.entries[1]; 127], 1), Some("blocks")),
    ];
    check(&record(), reread, changes);
    let mut wrong = record().to_bytes(STORE);
    wrong[6] = 2;
    seal_record(&mut wrong);
    let blocks = FormatError::Field { structure: Structure::HistoryRecord, field: "blocks" };
    assert_eq!(reread_record(&wrong), Err(blocks), "neither a summary nor none");
    let mut wrong = record().to_bytes(STORE);
    wrong[64 + document::field("history::RawEntry", "reduced").0] = 2;
    seal_record(&mut wrong);
    assert!(matches!(reread_record(&wrong), Err(FormatError::Field { field: "reduced", .. })));
    assert_eq!([0, 1, 126, 127, 254, 255].map(HistoryRecord::head_blocks), [1, 1, 1, 2, 2, 3]);
    // A head as long as a segment, and a longer one.
    let mut first = record().to_bytes(STORE);
    let at = document::field("history::RawRecord", "entries").0;
    let most = (SEGMENT_BLOCKS_MAX * 4096 - 64) / 32;
    for (entries, blocks) in [(most, Ok(SEGMENT_BLOCKS_MAX)), (most + 1, Err("length"))] {
        first[at..at + 4].copy_from_slice(&(entries as u32).to_le_bytes());
        let field = |field| FormatError::Field { structure: Structure::HistoryRecord, field };
        assert_eq!(HistoryRecord::peek(block(&first), STORE), blocks.map_err(field));
    }
    let bytes = record().to_bytes(STORE);
    let at = document::field("history::RawRecord", "crc").0;
    assert_eq!(HistoryRecord::checksum(&bytes).to_le_bytes(), bytes[at..at + 4]);
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
fn bytes_of_a_delta_are_those_of_its_version_and_none_is_ignored() {
    let bytes = delta().to_bytes();
    assert_eq!(format!("{:?}", Checksum::of(&bytes)), "73d330f2031a95a1bc401599d9599f56");
    assert_eq!(Delta::parse(&bytes), Ok(delta()));
    let (reserved, count) = document::field("delta::RawDelta", "reserved");
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

#[test]
fn run_goes_on_over_less_than_the_head_of_another_one_would_take() {
    let before = [0; 100];
    let with = |places: &[usize]| {
        let mut after = before;
        places.iter().for_each(|at| after[*at] = 0xaa);
        after
    };
    let runs = |places: &[usize]| runs_between(&before, &with(places), 1000).expect("it has room");
    assert_eq!(runs(&[]), []);
    assert_eq!(runs(&[10]), [10, 0, 1, 0, 0xaa]);
    assert_eq!(runs(&[10, 18]), [10, 0, 9, 0, 0xaa, 0, 0, 0, 0, 0, 0, 0, 0xaa]);
    assert_eq!(runs(&[10, 19]), [10, 0, 1, 0, 0xaa, 8, 0, 1, 0, 0xaa]);
    assert_eq!(runs(&[0, 64, 99]), [0, 0, 1, 0, 0xaa, 63, 0, 1, 0, 0xaa, 34, 0, 1, 0, 0xaa]);
    // A value at its limit is accepted.
    for places in [&[10][..], &[10, 18], &[10, 19], &[10, 11, 12, 40, 90]] {
        let length = runs(places).len();
        assert_eq!(runs_between(&before, &with(places), length), Some(runs(places)));
        assert_eq!(runs_between(&before, &with(places), length - 1), None);
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
