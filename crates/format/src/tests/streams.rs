//! Structs of the image stream: bytes from a socket or a file are refused, or read as exactly what
//! they are.

use proptest::prelude::*;

use super::bounds::{Change, check};
use super::*;
use crate::dump::*;
use crate::stream::*;

fn header() -> StreamHeader {
    StreamHeader {
        volume: VOLUME,
        kind: StreamKind::Incremental,
        base: SnapshotId(4),
        base_digest: root_digest(&snapshot(4)),
        target: SnapshotId(6),
        target_digest: root_digest(&snapshot(6)),
        space_blocks: 8192,
        changed_blocks: 77,
        created: Timestamp(1_700_000_000_000_000_000),
    }
}

fn record(kind: RecordKind, encoding: Encoding, items: u32, blocks: u32, payload: u32) -> RecordHeader {
    RecordHeader { kind, encoding, sequence: 5, items, blocks, payload, checksum: checksum(1) }
}

/// One of each kind, and extents in both encodings.
fn records() -> [RecordHeader; 7] {
    let entries = 2 * SnapshotEntry::SIZE as u32;
    [
        record(RecordKind::Extents, Encoding::Plain, 2, 3, 2 * StreamRun::SIZE as u32 + 3 * 4096),
        record(RecordKind::Extents, Encoding::Zstd, 2, 3, 2 * StreamRun::SIZE as u32 + 100),
        record(RecordKind::Extents, Encoding::Aligned, 2, 3, 2 * StreamRun::SIZE as u32 + 3 * 4096),
        record(RecordKind::Entries, Encoding::Plain, 2, 0, entries),
        record(RecordKind::Gone, Encoding::Plain, 3, 0, 24),
        record(RecordKind::Trailer, Encoding::Plain, 0, 0, StreamTrailer::SIZE as u32),
        record(RecordKind::Abort, Encoding::Plain, 1, 0, 0),
    ]
}

fn trailer() -> StreamTrailer {
    StreamTrailer { records: 9, blocks: 77, digest: checksum(2), table_digest: checksum(3) }
}

fn dump_head() -> DumpHeader {
    DumpHeader {
        dump: DumpId([9; 16]),
        part: 1,
        parts: 4,
        level: DumpLevel::Level(3),
        volume: VOLUME,
        name: "vol0".to_owned(),
        blocks: 7_777,
        created: Timestamp(1_700_000_000_000_000_000),
        snapshots: 6,
        table_digest: checksum(4),
    }
}

fn seal_dump_head(bytes: &mut [u8; DumpHeader::SIZE]) {
    let at = document::field("dump::RawDumpHeader", "checksum").0;
    let sum = Checksum::of(&bytes[..at]);
    bytes[at..].copy_from_slice(&sum.0);
}

#[test]
fn head_of_a_dump_comes_back_and_no_flipped_bit_passes() {
    let against = DumpHeader { level: DumpLevel::AgainstSnapshot, ..dump_head() };
    for head in [dump_head(), against] {
        let bytes = head.to_bytes();
        assert_eq!(DumpHeader::parse(&bytes), Ok(head));
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(DumpHeader::parse(&bytes).is_err(), "bit {bit}");
        }
    }
    let long = DumpHeader { name: "ä".repeat(100), ..dump_head() };
    assert_eq!(DumpHeader::parse(&long.to_bytes()).map(|head| head.name.len()), Ok(MAX_VOLUME_NAME));
    let at = document::field("dump::RawDumpHeader", "version").0;
    let mut bytes = dump_head().to_bytes();
    bytes[at] = DUMP_VERSION as u8 + 1;
    let structure = Structure::DumpHeader;
    let newer = FormatError::Version { structure, found: DUMP_VERSION + 1, supported: DUMP_VERSION };
    assert_eq!(DumpHeader::parse(&bytes), Err(newer));
}

#[test]
fn record_of_a_dump_is_none_of_another_dump_nor_of_a_bare_stream() {
    let (one, other) = (DumpId([1; 16]), DumpId([2; 16]));
    for record in records() {
        let bytes = record.to_bytes_in(one);
        assert_eq!(RecordHeader::parse_in(&bytes, one), Ok(record));
        assert!(RecordHeader::parse_in(&bytes, other).is_err() && RecordHeader::parse(&bytes).is_err());
    }
}

#[test]
fn bytes_of_the_head_of_a_dump_are_those_of_its_version() {
    let [_, _, aligned, ..] = records();
    let (head, record) = (dump_head().to_bytes(), aligned.to_bytes_in(DumpId([9; 16])));
    assert_eq!(
        format!("{:?}", Checksum::of(&[&head[..], &record].concat())),
        "3f2ae1b66d7d9f8fbb0b627b5b7dfd8a",
        "the head of a dump changed: read \"Changing the format\" in docs/format.md"
    );
}

fn seal_header(bytes: &mut [u8; StreamHeader::SIZE]) {
    let at = document::field("stream::RawStreamHeader", "checksum").0;
    let sum = Checksum::of(&bytes[..at]);
    bytes[at..].copy_from_slice(&sum.0);
}

fn seal_record(bytes: &mut [u8; RecordHeader::SIZE]) {
    let at = document::field("stream::RawRecordHeader", "crc").0;
    bytes[at..at + 4].fill(0);
    let crc = crc32c(bytes).to_le_bytes();
    bytes[at..at + 4].copy_from_slice(&crc);
}

#[test]
fn stream_structs_come_back() {
    assert_eq!(StreamHeader::parse(&header().to_bytes()), Ok(header()));
    for record in records() {
        assert_eq!(RecordHeader::parse(&record.to_bytes()), Ok(record));
    }
    assert_eq!(StreamTrailer::parse(&trailer().to_bytes()), Ok(trailer()));
    let runs = [(Vbn(7), 1), (Vbn(9), 2)];
    let bytes: Vec<u8> =
        runs.iter().flat_map(|(first, count)| StreamRun::new(*first, *count).bytes().to_vec()).collect();
    assert_eq!(StreamRun::parse_all(&records()[0], &bytes), Ok(runs.to_vec()));
}

#[test]
fn no_flipped_bit_passes_in_a_stream() {
    for bit in 0..StreamHeader::SIZE * 8 {
        let mut bytes = header().to_bytes();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(StreamHeader::parse(&bytes).is_err(), "{bit}");
    }
    for record in records() {
        for bit in 0..RecordHeader::SIZE * 8 {
            let mut bytes = record.to_bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(RecordHeader::parse(&bytes).is_err(), "{bit}");
        }
    }
}

#[test]
fn stream_of_a_version_unknown_to_this_program_is_refused_and_named() {
    let at = document::field("stream::RawStreamHeader", "version").0;
    let mut bytes = header().to_bytes();
    bytes[at] = STREAM_VERSION as u8 + 1;
    let error = StreamHeader::parse(&bytes).expect_err("it is newer");
    assert!(
        matches!(error, FormatError::Version { found, supported, .. }
            if found == STREAM_VERSION + 1 && supported == STREAM_VERSION),
        "{error:?}"
    );
}

#[test]
fn reserved_bytes_of_a_stream_header_are_checked() {
    let (offset, count) = document::field("stream::RawStreamHeader", "reserved");
    for at in offset..offset + count {
        let mut bytes = header().to_bytes();
        bytes[at] = 1;
        seal_header(&mut bytes);
        assert!(matches!(StreamHeader::parse(&bytes), Err(FormatError::Field { .. })), "{at}");
    }
}

#[test]
fn record_with_impossible_counts_is_refused_before_its_payload_is_read() {
    let (plain, runs) = (Encoding::Plain, StreamRun::SIZE as u32);
    let wrong = [
        record(RecordKind::Extents, plain, 0, 0, 0),
        record(RecordKind::Extents, plain, 2, 1, 2 * runs + 4096),
        record(RecordKind::Extents, plain, 1, 257, runs + 257 * 4096),
        record(RecordKind::Extents, plain, 1, 1, runs + 4095),
        record(RecordKind::Extents, Encoding::Aligned, 1, 1, runs + 4095),
        record(RecordKind::Extents, Encoding::Aligned, 1, 1, runs + 4096 + 4096),
        record(RecordKind::Entries, Encoding::Aligned, 1, 0, SnapshotEntry::SIZE as u32),
        record(RecordKind::Extents, Encoding::Zstd, 1, 1, runs),
        record(RecordKind::Extents, Encoding::Zstd, 1, 1, runs + 4096),
        record(RecordKind::Extents, plain, u32::MAX, u32::MAX, u32::MAX),
        record(RecordKind::Entries, plain, 1025, 0, 1025 * SnapshotEntry::SIZE as u32),
        record(RecordKind::Entries, plain, 1, 1, SnapshotEntry::SIZE as u32),
        record(RecordKind::Entries, Encoding::Zstd, 1, 0, SnapshotEntry::SIZE as u32),
        record(RecordKind::Gone, plain, u32::MAX, 0, u32::MAX),
        record(RecordKind::Trailer, plain, 0, 0, 0),
        record(RecordKind::Abort, plain, 0, 0, 1),
    ];
    for record in wrong {
        let outcome = RecordHeader::parse(&record.to_bytes());
        assert!(matches!(outcome, Err(FormatError::Field { .. })), "{record:?}: {outcome:?}");
    }
}

#[test]
fn impossible_runs_are_refused() {
    let parse = |runs: &[(u64, u32)]| {
        let bytes: Vec<u8> = runs
            .iter()
            .flat_map(|(first, count)| StreamRun::new(Vbn(*first), *count).bytes().to_vec())
            .collect();
        StreamRun::parse_all(&records()[0], &bytes)
    };
    assert!(parse(&[(7, 1), (9, 2)]).is_ok());
    let wrong: [&[(u64, u32)]; 6] = [
        &[(7, 1)],
        &[(0, 1), (9, 2)],
        &[(7, 0), (9, 3)],
        &[(7, 1), (9, 3)],
        &[(7, u32::MAX), (9, 4)],
        &[(u64::MAX, 1), (9, 2)],
    ];
    for runs in wrong {
        assert!(parse(runs).is_err(), "{runs:?}");
    }
}

#[test]
fn numbers_of_heads_are_bounded() {
    use crate::layout::SPACE_BLOCKS_MAX;
    let stream: &[Change<StreamHeader>] = &[
        (|it| it.kind = StreamKind::Full, None),
        (|it| it.target = SnapshotId(0), Some("target or reserved byte")),
        (|it| it.space_blocks = SPACE_BLOCKS_MAX, None),
        (|it| it.space_blocks = SPACE_BLOCKS_MAX + 1, Some("block count")),
        (|it| it.changed_blocks = SPACE_BLOCKS_MAX, None),
        (|it| it.changed_blocks = SPACE_BLOCKS_MAX + 1, Some("block count")),
    ];
    check(&header(), |header| StreamHeader::parse(&header.to_bytes()), stream);
    let dump: &[Change<DumpHeader>] = &[
        (|it| (it.part, it.parts) = (0, 1), None),
        (|it| (it.part, it.parts) = (0, 0), Some("part")),
        (|it| it.part = 3, None),
        (|it| it.part = 4, Some("part")),
        (|it| (it.part, it.parts) = (PARTS_MAX - 1, PARTS_MAX), None),
        (|it| it.parts = PARTS_MAX + 1, Some("part")),
        (|it| it.level = DumpLevel::Level(0), None),
        (|it| it.level = DumpLevel::Level(9), None),
        (|it| it.level = DumpLevel::Level(11), Some("level")),
        (|it| it.blocks = SPACE_BLOCKS_MAX, None),
        (|it| it.blocks = SPACE_BLOCKS_MAX + 1, Some("count")),
        (|it| it.snapshots = 1, None),
        (|it| it.snapshots = 0, Some("count")),
        (|it| it.name = String::new(), None),
        (|it| it.name = "n".repeat(MAX_VOLUME_NAME), None),
    ];
    check(&dump_head(), |head| DumpHeader::parse(&head.to_bytes()), dump);
    // A name is cut between two characters.
    let long = DumpHeader { name: format!("a{}", "ä".repeat(100)), ..dump_head() };
    let cut = DumpHeader::parse(&long.to_bytes()).map(|head| head.name);
    assert_eq!(cut, Ok(long.name[..MAX_VOLUME_NAME - 1].to_owned()));
    let at = |field| document::field("dump::RawDumpHeader", field).0;
    let last = at("name") + MAX_VOLUME_NAME - 1;
    for (at, byte) in [
        (at("version"), 0),
        (at("reserved"), 1),
        (at("reserved_end"), 1),
        (at("name"), 0xff),
        (at("name_length"), 129),
        (last, 1),
    ] {
        let mut bytes = dump_head().to_bytes();
        bytes[at] = byte;
        seal_dump_head(&mut bytes);
        assert!(matches!(DumpHeader::parse(&bytes), Err(FormatError::Field { .. })), "byte {at}");
    }
    assert_eq!(DumpId([0x0a; 16]).to_string(), "0a".repeat(16));
    assert_eq!([DumpLevel::Level(3), DumpLevel::AgainstSnapshot].map(|it| it.to_string()), ["3", "base"]);
}

#[test]
fn numbers_of_a_record_are_bounded() {
    let reread = |record: &RecordHeader| RecordHeader::parse(&record.to_bytes());
    const RUN: u32 = StreamRun::SIZE as u32;
    const ENTRY: u32 = SnapshotEntry::SIZE as u32;
    fn set(record: &mut RecordHeader, items: u32, blocks: u32, payload: u32) {
        (record.items, record.blocks, record.payload) = (items, blocks, payload);
    }
    let length = Some("length");
    let [plain, packed, aligned, entries, gone, trailer, abort] = records();
    let changes: &[Change<RecordHeader>] = &[
        (|it| set(it, 256, 256, 256 * (RUN + 4096)), None),
        (|it| set(it, 1, 1, RUN + 4096), None),
        (|it| set(it, 2, 1, 2 * RUN + 4096), length),
        (|it| set(it, 256, 257, 256 * RUN + 257 * 4096), length),
        (|it| it.payload += 1, length),
    ];
    check(&plain, reread, changes);
    let changes: &[Change<RecordHeader>] = &[
        (|it| it.payload = 2 * RUN + 1, None),
        (|it| it.payload = 2 * RUN, length),
        (|it| it.payload = 2 * RUN + 3 * 4096 - 1, None),
        (|it| it.payload = 2 * RUN + 3 * 4096, length),
    ];
    check(&packed, reread, changes);
    let changes: &[Change<RecordHeader>] = &[
        (|it| set(it, 256, 256, 256 * (RUN + 4096) + 4095), None),
        (|it| it.payload = 2 * RUN + 3 * 4096 - 1, length),
        (|it| it.payload = 2 * RUN + 4 * 4096 - 1, None),
        (|it| it.payload = 2 * RUN + 4 * 4096, length),
    ];
    check(&aligned, reread, changes);
    let changes: &[Change<RecordHeader>] = &[
        (|it| set(it, 1024, 0, 1024 * ENTRY), None),
        (|it| set(it, 1025, 0, 1025 * ENTRY), length),
        (|it| it.blocks = 1, length),
        (|it| it.payload -= 1, length),
    ];
    check(&entries, reread, changes);
    let changes: &[Change<RecordHeader>] = &[
        (|it| set(it, 1024, 0, 1024 * 8), None),
        (|it| set(it, 1025, 0, 1025 * 8), length),
        (|it| it.blocks = 1, length),
        (|it| it.payload -= 1, length),
    ];
    check(&gone, reread, changes);
    let changes: &[Change<RecordHeader>] =
        &[(|it| it.items = 1, length), (|it| it.blocks = 1, length), (|it| it.payload -= 1, length)];
    check(&trailer, reread, changes);
    let changes: &[Change<RecordHeader>] =
        &[(|it| it.items = u32::MAX, None), (|it| it.blocks = 1, length), (|it| it.payload = 1, length)];
    check(&abort, reread, changes);
    for (first, is_read) in
        [(crate::layout::SPACE_BLOCKS_MAX, true), (crate::layout::SPACE_BLOCKS_MAX + 1, false)]
    {
        let bytes = StreamRun::new(Vbn(first), 1).bytes().to_vec();
        let one = RecordHeader { items: 1, blocks: 1, ..plain };
        assert_eq!(StreamRun::parse_all(&one, &bytes).is_ok(), is_read);
    }
}

#[test]
fn digests_are_of_all_that_they_are_named_for() {
    let entries = [snapshot(3), snapshot(4)];
    let digest = |entries: &[SnapshotEntry]| table_digest(entries.iter());
    let step = |digest: Checksum, bytes: &[u8]| Checksum::of(&[&digest.0[..], bytes].concat());
    assert_eq!(chain_digest(checksum(1), b"abc"), step(checksum(1), b"abc"));
    let both = step(step(Checksum::default(), &entries[0].to_bytes()), &entries[1].to_bytes());
    assert_eq!(digest(&entries), both);
    assert_eq!(digest(&[]), Checksum::default());
    // Its owner can change the name, the hold and the parent, and no more.
    let [one, _] = entries;
    let other =
        SnapshotEntry { name: "other".to_owned(), held: !one.held, parent: SnapshotId(9), ..one.clone() };
    assert_eq!(root_digest(&one), root_digest(&other));
    assert_ne!(entry_digest(&one), entry_digest(&other));
    assert_eq!(entry_digest(&one), Checksum::of(&one.to_bytes()));
    let older = Root { generation: Generation(76), ..root() };
    assert_ne!(root_digest(&one), root_digest(&SnapshotEntry { root: older, ..one.clone() }));
    assert_ne!(root_digest(&one), root_digest(&SnapshotEntry { id: SnapshotId(9), ..one }));
    let ids = [7u64, 1 << 40].map(u64::to_le_bytes).concat();
    assert_eq!(parse_ids(&ids).collect::<Vec<_>>(), [SnapshotId(7), SnapshotId(1 << 40)]);
}

#[test]
fn bytes_of_stream_structs_are_those_of_version_1() {
    let extents = StreamRun::new(Vbn(7), 3);
    let records = records().into_iter().filter(|record| record.encoding != Encoding::Aligned);
    let parts: Vec<Vec<u8>> = [header().to_bytes().to_vec()]
        .into_iter()
        .chain(records.map(|record| record.to_bytes().to_vec()))
        .chain([trailer().to_bytes().to_vec(), extents.bytes().to_vec()])
        .collect();
    let hash = format!("{:?}", Checksum::of(&parts.concat()));
    assert_eq!(
        hash, "34f7a3e55a5ff5af2cbab2e48d5e384c",
        "the stream changed: read \"Changing the format\" in docs/format.md"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    #[test]
    fn changed_stream_bytes_never_panic_and_are_never_ignored(
        at in 0..StreamHeader::SIZE,
        noise in prop::collection::vec(any::<u8>(), 1..32),
        number in 0..6usize,
    ) {
        let change = |bytes: &mut [u8], at: usize| {
            bytes[at..].iter_mut().zip(&noise).for_each(|(place, byte)| *place = *byte);
        };
        let mut bytes = header().to_bytes();
        change(&mut bytes, at);
        seal_header(&mut bytes);
        if let Ok(read) = StreamHeader::parse(&bytes) {
            prop_assert_eq!(read.to_bytes(), bytes);
        }
        let mut bytes = dump_head().to_bytes();
        change(&mut bytes, 2 * at);
        seal_dump_head(&mut bytes);
        if let Ok(read) = DumpHeader::parse(&bytes) {
            prop_assert_eq!(read.to_bytes(), bytes);
        }
        let mut bytes = records()[number].to_bytes();
        change(&mut bytes, at % RecordHeader::SIZE);
        seal_record(&mut bytes);
        if let Ok(read) = RecordHeader::parse(&bytes) {
            prop_assert_eq!(read.to_bytes(), bytes);
        }
    }
}
