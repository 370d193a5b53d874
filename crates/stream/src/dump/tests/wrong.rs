//! Wrong dumps whose sums are all right, and devices and writers that fail: none is accepted as
//! whole.

use cairn_base::{Checksum, Vbn};
use cairn_device::{Block, DeviceError};
use cairn_format::SnapshotEntry;
use cairn_format::stream::{Encoding, RecordHeader, RecordKind, StreamRun, StreamTrailer, chain_digest};

use super::*;
use crate::dump::read::{HEAD_BYTES, PartHead};
use crate::produce::payload_of;

pub(super) type Records = Vec<(RecordHeader, Vec<u8>)>;

/// A part in pieces. Put together again, its records have their own lengths and sums, and the
/// trailer those of all.
pub(super) struct Pieces {
    pub(super) head: PartHead,
    pub(super) records: Records,
    /// The last of all, once the rest is summed up.
    spoil: fn(&mut StreamTrailer),
    pub(super) tail: Vec<u8>,
}

impl Pieces {
    pub(super) fn of(file: &[u8]) -> Self {
        let (head, mut rest) = file.split_first_chunk::<HEAD_BYTES>().expect("it has a head");
        let head = PartHead::parse(head).expect("a head");
        let mut records = Vec::new();
        loop {
            let (bytes, after) = rest.split_first_chunk().expect("a trailer comes");
            let record = RecordHeader::parse_in(bytes, head.dump.dump).expect("a record");
            let (payload, after) = after.split_at(record.payload as usize);
            rest = after;
            if record.kind == RecordKind::Trailer {
                break;
            }
            records.push((record, payload.to_vec()));
        }
        Self { head, records, spoil: |_| {}, tail: rest.to_vec() }
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let (dump, mut bytes) = (self.head.dump.dump, self.head.to_bytes());
        let mut digest = chain_digest(Checksum::default(), &bytes);
        let mut put = |head: RecordHeader, payload: &[u8]| {
            let checksum = Checksum::of(payload);
            let head = RecordHeader { payload: payload.len() as u32, checksum, ..head }.to_bytes_in(dump);
            bytes.extend([&head[..], payload].concat());
            digest = chain_digest(digest, &head);
            digest
        };
        let mut digest = digest_of(&self.head);
        for (head, payload) in &self.records {
            digest = put(*head, payload);
        }
        let mut trailer = StreamTrailer {
            records: self.records.len() as u64,
            blocks: self.head.stream.changed_blocks,
            digest,
            table_digest: self.head.dump.table_digest,
        };
        (self.spoil)(&mut trailer);
        let head = RecordHeader {
            kind: RecordKind::Trailer,
            encoding: Encoding::Plain,
            sequence: self.records.len() as u64,
            items: 0,
            blocks: 0,
            payload: 0,
            checksum: Checksum::default(),
        };
        put(head, &trailer.to_bytes());
        bytes.extend(&self.tail);
        bytes
    }

    /// The records with blocks.
    fn extents(&mut self) -> Vec<&mut (RecordHeader, Vec<u8>)> {
        self.records.iter_mut().filter(|(head, _)| head.kind == RecordKind::Extents).collect()
    }

    /// The records are numbered in their order.
    pub(super) fn number(&mut self) {
        (0..).zip(&mut self.records).for_each(|(number, (head, _))| head.sequence = number);
    }
}

fn digest_of(head: &PartHead) -> Checksum {
    chain_digest(Checksum::default(), &head.to_bytes())
}

/// A part with several records of several runs.
fn scattered() -> Vec<u8> {
    let (volume, luns) = source(1);
    scribble(&luns, &mut Rng::new(3), 900);
    volume.create_snapshot("zero").expect("a snapshot");
    // Every other block is rewritten, so that the blocks between them are in runs of their own.
    let device = luns.open("a").expect("the LUN");
    for number in (0..LUN_BLOCKS).step_by(2) {
        device.write_from(number * 4096, &[7; 4096]).expect("written");
    }
    volume.create_snapshot("one").expect("a snapshot");
    volume.delete_snapshots(&[volume.snapshots()[0].id]).expect("deleted");
    let target = volume.snapshots()[0].id;
    dump(&volume, 1, None, target, 1, Compression::None).remove(0)
}

#[test]
fn part_that_contradicts_itself_is_damaged_and_what_is_left_of_it_is_named() {
    type Wrong = fn(&mut Pieces);
    let wrong: [(&str, Wrong); 11] = [
        ("a record has the last number that there is", |it| {
            it.extents().remove(0).0.sequence = u64::MAX;
        }),
        ("the trailer counts other records", |it| it.spoil = |trailer| trailer.records += 1),
        ("the trailer counts other blocks", |it| it.spoil = |trailer| trailer.blocks += 1),
        ("the trailer sums up other records", |it| it.spoil = |trailer| trailer.digest.0[5] ^= 1),
        ("the trailer has another table", |it| it.spoil = |trailer| trailer.table_digest.0[5] ^= 1),
        ("runs of a record are exchanged", |it| {
            let runs = it.extents().remove(0);
            let (first, rest) = runs.1.split_at_mut(StreamRun::SIZE);
            first.swap_with_slice(&mut rest[..StreamRun::SIZE]);
        }),
        ("a run of a record overlaps the next one", |it| {
            let runs = it.extents().remove(0);
            let (first, rest) = runs.1.split_at_mut(StreamRun::SIZE);
            first[..8].copy_from_slice(&rest[..8]);
        }),
        ("two records are exchanged", |it| {
            let mut records = it.extents();
            let last = records.pop().expect("several");
            std::mem::swap(records.remove(0), last);
            it.number();
        }),
        ("a record comes twice", |it| {
            let again = it.extents().remove(0).clone();
            let at = it.records.iter().position(|(head, _)| head.kind == RecordKind::Extents).expect("one");
            it.records.insert(at, again);
            it.number();
        }),
        ("a record is not there, and nothing in its place", |it| {
            let at = it.records.iter().position(|(head, _)| head.kind == RecordKind::Extents).expect("one");
            it.records.remove(at);
            it.number();
        }),
        ("a record unpacks to less than it has", |it| {
            let (head, payload) = it.extents().remove(0);
            let table = head.items as usize * StreamRun::SIZE;
            let packed = zstd::bulk::compress(&payload[table..payload.len() - 4096], 1).expect("packed");
            payload.truncate(table);
            payload.extend(packed);
            head.encoding = Encoding::Zstd;
        }),
    ];
    let file = scattered();
    assert!(Pieces::of(&file).extents().len() > 1 && Pieces::of(&file).extents()[0].0.items > 1);
    assert!(Pieces::of(&file).to_bytes() == file, "unchanged it is the same");
    for (what, change) in wrong {
        let mut pieces = Pieces::of(&file);
        change(&mut pieces);
        let files = [pieces.to_bytes()];
        for threads in [false, true] {
            let refused = restored(&files, false, threads).map(drop).expect_err(what);
            assert!(matches!(refused, DumpError::Damaged { .. }), "{what}: {refused}");
        }
        let (_, restored) = restored(&files, true, false).expect("what is left of it is restored");
        assert!(restored.lost.iter().any(|(_, lost)| !lost.spare), "{what}: {:?}", restored.lost);
    }
}

#[test]
fn snapshots_beyond_what_a_volume_can_have_take_no_memory_of_who_reads_a_part() {
    let mut pieces = Pieces::of(&scattered());
    let (head, payload) = pieces.records.remove(0);
    assert_eq!(head.kind, RecordKind::Entries);
    let entry = SnapshotEntry::parse(&payload).expect("one").expect("it is none of zeroes");
    let of = |record: u64| -> (RecordHeader, Vec<u8>) {
        let ids = (1..=1024).map(|number| SnapshotId(record * 1024 + number));
        let entries: Vec<SnapshotEntry> = ids.map(|id| SnapshotEntry { id, ..entry.clone() }).collect();
        (RecordHeader { items: 1024, ..head }, payload_of(&entries))
    };
    // A volume has 64,500 at most.
    pieces.records.splice(0..0, (0..70).map(of));
    pieces.number();
    let reader = PartReader::open_file("f", &bytes_of(&pieces.to_bytes())).expect("a head");
    assert!(reader.lost().len() >= 6, "{:?}", reader.lost());
    assert!(reader.lost().iter().all(|lost| lost.spare));
}

#[test]
fn record_with_a_block_that_no_space_has_is_lost_to_whoever_reads_the_part() {
    let file = scattered();
    let zero = |runs: &mut Vec<u8>| runs[..8].copy_from_slice(&0u64.to_le_bytes());
    let behind = |runs: &mut Vec<u8>| {
        let at = runs.len() - StreamRun::SIZE;
        runs[at..at + 8].copy_from_slice(&BLOCKS.to_le_bytes());
    };
    type Spoil<'a> = &'a dyn Fn(&mut Vec<u8>);
    for (spoil, last) in [(&zero as Spoil<'_>, false), (&behind, true)] {
        let mut pieces = Pieces::of(&file);
        let mut extents = pieces.extents();
        let at = if last { extents.len() - 1 } else { 0 };
        let (head, payload) = &mut *extents[at];
        let mut runs = payload.drain(..head.items as usize * StreamRun::SIZE).collect();
        spoil(&mut runs);
        payload.splice(..0, runs);
        let file = bytes_of(&pieces.to_bytes());
        let mut reader = PartReader::open_file("f", &file).expect("a head");
        while let Some(runs) = reader.extents().expect("it is not cut") {
            let within =
                |(first, run): &(Vbn, Vec<Block>)| first.0 > 0 && first.0 + run.len() as u64 <= BLOCKS;
            assert!(runs.iter().all(within));
        }
        assert!(reader.lost().iter().any(|lost| !lost.spare), "{:?}", reader.lost());
        assert!(!PartIndex::open("f", file).expect("a head").is_whole());
    }
}

#[test]
fn block_outside_of_the_space_that_a_dump_says_is_never_written() {
    let file = scattered();
    for blocks in [BLOCKS - 1, 700] {
        // Its head claims a smaller volume than the real one.
        let mut pieces = Pieces::of(&file);
        pieces.head.stream.space_blocks = 1;
        pieces.tail = pieces.head.to_bytes();
        let dumps = arrange(readers(&[pieces.to_bytes()]).expect("heads"), false).expect("arranged");
        let device = MemoryDevice::new(Volume::device_bytes(BLOCKS, Role::Normal));
        let outcome = on_threads(false, |work| restore(dumps, &device, blocks, false, Timestamp(5), work));
        let written = Volume::space_offset(blocks) + blocks * 4096;
        let behind = device.geometry().length - written;
        let after = device.read(written, behind as u32).expect("it can be read").to_vec();
        assert!(after.iter().all(|byte| *byte == 0), "nothing is written behind {blocks} blocks");
        assert!(outcome.is_err(), "its table says more");
    }
    let dumps = arrange(readers(&[file]).expect("heads"), false).expect("arranged");
    let device = MemoryDevice::new(Volume::device_bytes(BLOCKS, Role::Normal));
    let refused = on_threads(false, |work| restore(dumps, &device, BLOCKS - 1, false, Timestamp(5), work));
    let too_small = StreamError::TooSmall { need: BLOCKS, have: BLOCKS - 1 };
    assert_eq!(refused.map(drop).expect_err("refused").to_string(), DumpError::from(too_small).to_string());
}

#[test]
fn restore_of_which_one_write_or_flush_fails_is_no_restore() {
    let (_, dumps) = life(27, 2, Compression::None);
    let files = dumps.concat();
    let run = |device: &FaultDevice, threads| {
        let dumps = arrange(readers(&files).expect("heads"), false).expect("arranged");
        on_threads(threads, |work| restore(dumps, device, BLOCKS, false, Timestamp(5), work))
    };
    for threads in [false, true] {
        let bytes = Volume::device_bytes(BLOCKS, Role::Normal);
        let whole = FaultDevice::new(bytes);
        run(&whole, threads).expect("restored");
        let mut failed = 0;
        for at in 0.. {
            let device = Arc::new(FaultDevice::new(bytes));
            device.fail_operations(at, 1, DeviceError::OutOfService);
            let outcome = run(&device, threads);
            if outcome.is_ok() {
                break;
            }
            failed += 1;
            let again = Volume::open(device, OpenOptions { cache_bytes: 1 << 20, clock: clock() });
            // From the flush after the first slot on it exists, and is whole.
            assert!(again.is_err() || at + 4 > whole.operations(), "operation {at}: a volume is left");
        }
        assert!(failed + 8 >= whole.operations() && failed > 8, "{failed} of {}", whole.operations());
    }
}

#[test]
fn restore_ends_when_it_is_told_to_and_tells_how_far_it_is() {
    let (_, dumps) = life(28, 2, Compression::None);
    let files = dumps.concat();
    let parts = readers(&files).expect("heads");
    let total: u64 = parts.iter().map(|part| part.head().stream.changed_blocks).sum();
    let heads: u64 = parts.iter().map(PartReader::bytes).sum();
    for threads in [false, true] {
        let mut all = Vec::new();
        for stop_at in [u64::MAX, 2] {
            let device = Arc::new(MemoryDevice::new(Volume::device_bytes(BLOCKS, Role::Normal)));
            let dumps = arrange(readers(&files).expect("heads"), false).expect("arranged");
            let cancel = AtomicBool::new(false);
            let mut told = Vec::new();
            let mut progress = |progress: crate::Progress| {
                told.push(progress);
                cancel.store(told.len() as u64 >= stop_at, std::sync::atomic::Ordering::Relaxed);
            };
            let threads = threads.then_some(&Scoped as &dyn Threads);
            let mut work = Work { cancel: &cancel, progress: &mut progress, threads };
            let outcome = restore(dumps, &*device, BLOCKS, false, Timestamp(5), &mut work);
            if stop_at == u64::MAX {
                let restored = outcome.expect("restored");
                assert_eq!(restored.blocks, total);
                assert_eq!(restored.bytes, files.iter().map(|file| file.len() as u64).sum::<u64>() - heads);
                let last = told.last().expect("it was told");
                assert_eq!((last.blocks, last.blocks_total, last.bytes), (total, total, total * 4096));
                assert!(told.windows(2).all(|pair| pair[0].blocks < pair[1].blocks));
                all = told;
            } else {
                let cancelled = outcome.map(drop).expect_err("cancelled");
                assert!(matches!(cancelled, DumpError::Stream(StreamError::Cancelled)), "{cancelled}");
                assert!(told.len() < all.len() || all.len() < 4, "{} of {}", told.len(), all.len());
                assert!(Volume::open(device, OpenOptions { cache_bytes: 1 << 20, clock: clock() }).is_err());
            }
        }
    }
}

/// A writer that keeps its data until it is flushed.
#[derive(Default)]
struct Holding {
    held: Vec<u8>,
    written: Vec<u8>,
}

impl crate::Out for Holding {}

impl std::io::Write for Holding {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.held.extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.written.append(&mut self.held);
        Ok(())
    }
}

#[test]
fn what_is_said_to_be_written_was_handed_on_by_its_writer() {
    let (volume, luns) = source(1);
    scribble(&luns, &mut Rng::new(1), 100);
    let target = volume.create_snapshot("one").expect("a snapshot").id;
    let plan = Plan::against(&volume, None, target).expect("a plan");
    let dump = Dump::new(&plan, first_label(), 1);
    let mut out = Holding::default();
    let produced = on_threads(false, |work| dump.write_part(0, &mut out, Compression::None, work));
    assert_eq!(produced.expect("written").bytes, out.written.len() as u64);
    assert!(out.held.is_empty());
    let whole = out.written;
    // A dump resumed from its beginning.
    let mut out = Holding::default();
    let resumed = on_threads(false, |work| {
        let onto = Onto { out: &mut out, reached: &mut |_| Ok(()) };
        dump.resume_part(0, &Begun::default(), onto, Compression::None, work)
    });
    resumed.expect("written");
    assert!(out.written == whole && out.held.is_empty());
    // One that is given up has its reason there, and a stream too.
    let cancel = AtomicBool::new(true);
    let mut work = Work { cancel: &cancel, progress: &mut |_| {}, threads: None };
    let mut out = Holding::default();
    dump.write_part(0, &mut out, Compression::None, &mut work).map(drop).expect_err("cancelled");
    assert!(out.held.is_empty());
    let error = restored(&[out.written], false, false).map(drop).expect_err("refused");
    let reason = crate::AbortReason::Cancelled;
    assert!(matches!(&error, DumpError::GivenUp { reason: told, .. } if *told == reason), "{error}");
    let (mut out, mut given_up) = (Holding::default(), Holding::default());
    on_threads(false, |work| crate::produce(&plan, &mut out, Compression::None, work)).expect("written");
    crate::abort(&mut given_up, reason).expect("written");
    assert!(out.held.is_empty() && given_up.held.is_empty() && !given_up.written.is_empty());
}
