//! Wrong streams whose sums are all right: each is refused for its own fault, and none of it
//! becomes visible.

use cairn_base::Checksum;
use cairn_format::SnapshotEntry;
use cairn_format::stream::{
    Encoding, RecordHeader, RecordKind, StreamKind, StreamTrailer, chain_digest, root_digest, table_digest,
};

use super::*;
use crate::produce::payload_of;
use crate::{Keeps, Progress, apply_keeping};

/// It would be another name in a path, or a command to a terminal.
const NO_NAME: &str = "a snapshot has a name that no volume gives";

/// A stream in pieces. Put together again, its records have their own lengths and sums, and the
/// trailer those of all.
struct Pieces {
    header: StreamHeader,
    records: Vec<(RecordHeader, Vec<u8>)>,
    /// The last of all, once the rest is summed up.
    spoil: fn(&mut StreamTrailer),
}

impl Pieces {
    fn of(bytes: &[u8]) -> Self {
        let (header, mut rest) = bytes.split_first_chunk().expect("it has a header");
        let header = StreamHeader::parse(header).expect("a header");
        let mut records = Vec::new();
        while let Some((head, after)) = rest.split_first_chunk() {
            let head = RecordHeader::parse(head).expect("a record");
            let (payload, after) = after.split_at(head.payload as usize);
            records.push((head, payload.to_vec()));
            rest = after;
        }
        let trailer = records.pop().map(|(head, _)| head.kind);
        assert_eq!(trailer, Some(RecordKind::Trailer));
        Self { header, records, spoil: |_| {} }
    }

    fn snapshots(&self) -> Vec<SnapshotEntry> {
        let of_entries = |(head, _): &&(RecordHeader, Vec<u8>)| head.kind == RecordKind::Entries;
        let payloads = self.records.iter().filter(of_entries).flat_map(|(_, payload)| payload);
        let payload: Vec<u8> = payloads.copied().collect();
        let parse = |bytes| SnapshotEntry::parse(bytes).expect("an entry").expect("it is none of zeroes");
        payload.chunks_exact(SnapshotEntry::SIZE).map(parse).collect()
    }

    fn set_snapshots(&mut self, change: impl FnOnce(&mut Vec<SnapshotEntry>)) {
        let mut entries = self.snapshots();
        change(&mut entries);
        entries.sort_by_key(|entry| entry.id);
        let record = self.records.iter_mut().find(|(head, _)| head.kind == RecordKind::Entries);
        let (head, payload) = record.expect("a record of entries");
        (head.items, *payload) = (entries.len() as u32, payload_of(&entries));
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.header.to_bytes().to_vec();
        let mut digest = chain_digest(Checksum::default(), &bytes);
        for (head, payload) in &self.records {
            let checksum = Checksum::of(payload);
            let head = RecordHeader { payload: payload.len() as u32, checksum, ..*head }.to_bytes();
            digest = chain_digest(digest, &head);
            bytes.extend([&head[..], payload].concat());
        }
        let records = self.records.len() as u64;
        let blocks = self.records.iter().map(|(head, _)| u64::from(head.blocks)).sum();
        let table_digest = table_digest(self.snapshots().iter());
        let mut trailer = StreamTrailer { records, blocks, digest, table_digest };
        (self.spoil)(&mut trailer);
        let payload = trailer.to_bytes();
        let head = RecordHeader {
            kind: RecordKind::Trailer,
            encoding: Encoding::Plain,
            sequence: records,
            items: 0,
            blocks: 0,
            payload: payload.len() as u32,
            checksum: Checksum::of(&payload),
        };
        bytes.extend([&head.to_bytes()[..], &payload].concat());
        bytes
    }
}

/// A stream of two snapshots.
fn pieces(compression: Compression) -> Pieces {
    let source = volume(Role::Normal);
    let file = source.compound().create(FileKind::Lun, 4096 * 700).expect("a file");
    for round in 0..2u8 {
        let block = |lba| {
            let mut block = BlockMut::zeroed();
            block[..9].copy_from_slice(&[&[round][..], &u64::to_le_bytes(lba)].concat());
            (Lba(lba), block.freeze())
        };
        let blocks: Vec<(Lba, Block)> = (0..300).map(block).collect();
        source.write(file, &mut blocks.into_iter()).expect("written");
        source.create_snapshot(["one", "two"][usize::from(round)]).expect("a snapshot");
    }
    let target = source.snapshot_entries()[1].id;
    let plan = Plan::new(&source, &[], target).expect("a plan");
    let mut bytes = Vec::new();
    with_work(|work| produce(&plan, &mut bytes, compression, work)).expect("produced");
    let pieces = Pieces::of(&bytes);
    assert_eq!(pieces.to_bytes(), bytes, "unchanged it is the same");
    pieces
}

/// Its refusal, in words; nothing of it is shown.
#[track_caller]
fn refused(bytes: &[u8]) -> String {
    let into = volume(Role::Destination);
    let error = take(bytes, &into).expect_err("it is wrong");
    assert_eq!(into.status().cursor.snapshot, SnapshotId(0));
    assert!(into.snapshot_entries().is_empty());
    format!("{error:?}")
}

#[test]
fn stream_that_contradicts_itself_is_refused_for_what_is_wrong() {
    type Wrong = fn(&mut Pieces);
    let wrong: [(&str, Wrong); 20] = [
        ("TooSmall", |it| it.header.space_blocks = 4097),
        ("more blocks than it says", |it| it.header.changed_blocks -= 1),
        ("Digest", |it| it.header.changed_blocks += 1),
        ("Digest", |it| it.spoil = |trailer| trailer.records += 1),
        ("\"trailer\"", |it| it.spoil = |trailer| trailer.records = u64::MAX),
        ("\"sequence\"", |it| it.records[0].0.sequence = u64::MAX),
        ("Digest", |it| it.spoil = |trailer| trailer.blocks += 1),
        ("Digest", |it| it.spoil = |trailer| trailer.digest.0[5] ^= 1),
        ("not the same", |it| it.spoil = |trailer| trailer.table_digest.0[5] ^= 1),
        ("OutOfOrder", |it| it.records[1].0.sequence = 2),
        ("OutOfOrder", |it| it.records.swap(0, 1)),
        ("two snapshots have the same name", |it| it.set_snapshots(|all| all[0].name = all[1].name.clone())),
        (NO_NAME, |it| it.set_snapshots(|all| all[0].name = "../../etc".to_owned())),
        (NO_NAME, |it| it.set_snapshots(|all| all[0].name = "one\u{1b}[2J".to_owned())),
        ("a snapshot is out of order", |it| it.set_snapshots(|all| all[0].parent = all[0].id)),
        ("a snapshot is out of order", |it| it.set_snapshots(|all| all[0].id = SnapshotId(99))),
        ("a snapshot is out of order", |it| it.set_snapshots(|all| all[0].root.blocks = 4097)),
        ("not the one that it announced", |it| it.header.target_digest.0[5] ^= 1),
        ("NoSuchSnapshot", |it| it.set_snapshots(|all| drop(all.pop()))),
        ("BaseMissing", |it| it.header.kind = StreamKind::Incremental),
    ];
    let pieces = pieces(Compression::None);
    for (number, (expected, change)) in wrong.into_iter().enumerate() {
        let mut changed =
            Pieces { header: pieces.header.clone(), records: pieces.records.clone(), spoil: pieces.spoil };
        change(&mut changed);
        let error = refused(&changed.to_bytes());
        assert!(error.contains(expected), "{number}: {error} instead of {expected}");
    }
}

/// An endless stream of snapshots, up to a number of bytes.
struct Endless {
    entry: SnapshotEntry,
    sequence: u64,
    bytes: std::collections::VecDeque<u8>,
    left: usize,
}

impl std::io::Read for Endless {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.bytes.is_empty() {
            let entries: Vec<SnapshotEntry> = (1..=1024)
                .map(|number| SnapshotId(self.sequence * 1024 + number))
                .map(|id| SnapshotEntry {
                    id,
                    parent: SnapshotId(0),
                    name: id.to_string(),
                    ..self.entry.clone()
                })
                .collect();
            let payload = payload_of(&entries);
            let head = RecordHeader {
                kind: RecordKind::Entries,
                encoding: Encoding::Plain,
                sequence: self.sequence,
                items: 1024,
                blocks: 0,
                payload: payload.len() as u32,
                checksum: Checksum::of(&payload),
            };
            self.sequence += 1;
            self.bytes.extend(head.to_bytes());
            self.bytes.extend(payload);
        }
        let count = buffer.len().min(self.bytes.len()).min(self.left);
        buffer.iter_mut().zip(self.bytes.drain(..count)).for_each(|(to, byte)| *to = byte);
        self.left -= count;
        Ok(count)
    }
}

#[test]
fn stream_of_more_snapshots_than_a_volume_can_have_is_refused_before_it_takes_all_memory() {
    const BYTES: usize = 60 << 20;
    let pieces = pieces(Compression::None);
    let entry = pieces.snapshots().remove(0);
    let header = pieces.header.to_bytes().into();
    let mut input = Endless { entry, sequence: 0, bytes: header, left: BYTES };
    let into = volume(Role::Destination);
    let refused = with_work(|work| apply(&mut input, &into, work)).expect_err("it has no end");
    assert!(refused.to_string().contains("more snapshots"), "{refused}");
    assert!(BYTES - input.left < 30 << 20, "{} bytes were taken", BYTES - input.left);
}

#[test]
fn payload_with_another_sum_or_that_unpacks_to_less_is_refused() {
    let plain = pieces(Compression::None);
    let mut bytes = plain.to_bytes();
    // The chain of the trailer is over the heads alone.
    bytes[StreamHeader::SIZE + RecordHeader::SIZE + 5000] ^= 1;
    assert!(refused(&bytes).contains("Checksum(StreamRecord)"));
    let mut packed = pieces(Compression::Zstd);
    let (head, payload) = &mut packed.records[0];
    assert_eq!((head.kind, head.encoding), (RecordKind::Extents, Encoding::Zstd));
    let table = head.items as usize * cairn_format::stream::StreamRun::SIZE;
    payload.truncate(table);
    payload.extend(zstd::bulk::compress(&vec![7; (head.blocks as usize - 1) * 4096], 1).expect("packed"));
    assert!(refused(&packed.to_bytes()).contains("does not unpack"));
}

#[test]
fn base_that_is_another_one_is_refused() {
    let pieces = pieces(Compression::None);
    let into = volume(Role::Destination);
    take(&pieces.to_bytes(), &into).expect("a full one");
    let here = into.snapshot_entries();
    for (base, digest, expected) in [
        (here[0].id, root_digest(&here[0]), None),
        (here[0].id, root_digest(&here[1]), Some("Diverged")),
        (SnapshotId(99), root_digest(&here[0]), Some("BaseMissing")),
    ] {
        let header = StreamHeader {
            kind: StreamKind::Incremental,
            base,
            base_digest: digest,
            ..pieces.header.clone()
        };
        let bytes = Pieces { header, records: pieces.records.clone(), spoil: pieces.spoil }.to_bytes();
        let outcome = take(&bytes, &into).map_err(|error| format!("{error:?}"));
        match expected {
            None => assert_eq!(outcome.map(|applied| applied.kind), Ok(StreamKind::Incremental)),
            Some(expected) => assert!(outcome.as_ref().is_err_and(|it| it.contains(expected)), "{outcome:?}"),
        }
    }
}

#[test]
fn what_the_destination_keeps_is_there_or_the_image_is_not_taken() {
    let pieces = pieces(Compression::None);
    let bytes = pieces.to_bytes();
    let into = volume(Role::Destination);
    let take = |bytes: &[u8], keeps: Keeps<'_>| {
        let receiver = into.receive().expect("nothing else is received");
        with_work(|work| apply_keeping(&mut &bytes[..], receiver, keeps, work))
    };
    let any = Keeps { locked: &|_| false, admits: &|_| true };
    let names = |entries: &[SnapshotEntry]| entries.iter().map(|it| it.name.clone()).collect::<Vec<_>>();
    let none = Keeps { admits: &|entries| names(entries) != ["one", "two"], ..any };
    assert!(matches!(take(&bytes, none), Err(StreamError::NotAdmitted)));
    assert!(into.snapshot_entries().is_empty());
    take(&bytes, any).expect("taken");
    let shown = into.snapshot_entries();
    let kept = SnapshotId(shown[0].id.0);
    let locked = Keeps { locked: &|entry| entry.name == "one", ..any };
    take(&bytes, locked).expect("it has the locked one as it is");
    let changes: [fn(&mut SnapshotEntry); 2] =
        [|entry| entry.name = "other".to_owned(), |entry| entry.root.used += 1];
    for change in changes {
        let mut other =
            Pieces { header: pieces.header.clone(), records: pieces.records.clone(), spoil: |_| {} };
        other.set_snapshots(|all| change(&mut all[0]));
        let outcome = take(&other.to_bytes(), locked);
        let refused = match &outcome {
            Err(StreamError::Locked { snapshot } | StreamError::Renamed { snapshot }) => *snapshot == kept,
            _ => false,
        };
        assert!(refused, "{outcome:?}");
        assert_eq!(into.snapshot_entries(), shown);
    }
}

#[test]
fn who_applies_a_stream_is_told_how_far_it_is_and_can_end_it() {
    let pieces = pieces(Compression::None);
    let bytes = pieces.to_bytes();
    let into = volume(Role::Destination);
    let cancel = AtomicBool::new(true);
    let mut work = Work { cancel: &cancel, progress: &mut |_| {}, threads: None };
    assert!(matches!(apply(&mut &bytes[..], &into, &mut work), Err(StreamError::Cancelled)));
    let cancel = AtomicBool::new(false);
    let mut told: Vec<Progress> = Vec::new();
    let mut note = |progress| told.push(progress);
    let mut work = Work { cancel: &cancel, progress: &mut note, threads: None };
    let applied = apply(&mut &bytes[..], &into, &mut work).expect("taken");
    assert_eq!((applied.blocks, applied.kind), (pieces.header.changed_blocks, StreamKind::Full));
    assert_eq!(told.len(), pieces.records.len(), "once a record");
    assert!(told.iter().all(|progress| progress.blocks_total == applied.blocks));
    let mut sum = (0, StreamHeader::SIZE as u64);
    for (progress, (head, payload)) in told.iter().zip(&pieces.records) {
        sum.0 += u64::from(head.blocks);
        sum.1 += (RecordHeader::SIZE + payload.len()) as u64;
        assert_eq!((progress.blocks, progress.bytes), sum);
    }
}
