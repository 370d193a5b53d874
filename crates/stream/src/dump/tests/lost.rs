//! Damage at any place of a part: the remaining blocks are right, and exactly the missing ones are
//! reported as lost. The same with a reader that returns few bytes at a time and is interrupted.

use std::io::{Error, ErrorKind, Read};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use cairn_base::Vbn;
use cairn_device::Block;
use cairn_format::stream::{RecordHeader, RecordKind, StreamRun};

use super::*;
use crate::dump::device::DumpDevice;
use crate::dump::index::read_whole;
use crate::dump::read::HEAD_BYTES;

/// Blocks by their numbers.
pub(super) type Blocks = BTreeMap<u64, Vec<u8>>;

/// A record of a part, with its blocks of the block space.
pub(super) struct Spot {
    pub(super) kind: RecordKind,
    pub(super) bytes: Range<usize>,
    /// After the runs; without runs, after the head.
    pub(super) data_at: usize,
    pub(super) blocks: Blocks,
}

/// The records of a whole part, the trailer last.
pub(super) fn spots_of(file: &[u8]) -> Vec<Spot> {
    let head = PartHead::parse(file.first_chunk().expect("a head")).expect("a head");
    let mut reader = PartReader::open_file("f", &bytes_of(file)).expect("a head");
    let (mut spots, mut at) = (Vec::new(), HEAD_BYTES);
    loop {
        let record = RecordHeader::parse_in(file[at..].first_chunk().expect("a record"), head.dump.dump);
        let record = record.expect("a record");
        let end = at + RecordHeader::SIZE + record.payload as usize;
        let mut data_at = at + RecordHeader::SIZE;
        let mut blocks = Blocks::new();
        if record.kind == RecordKind::Extents {
            data_at += record.items as usize * StreamRun::SIZE;
            for (first, run) in reader.extents().expect("whole").expect("as many as there are") {
                take(&mut blocks, first, run);
            }
        }
        spots.push(Spot { kind: record.kind, bytes: at..end, data_at, blocks });
        at = end;
        if record.kind == RecordKind::Trailer {
            assert_eq!(at + HEAD_BYTES, file.len());
            return spots;
        }
    }
}

/// A part of several records, most of them with gaps.
pub(super) fn long(seed: u64, compression: Compression) -> Vec<u8> {
    let (volume, luns) = source(1);
    let mut rng = Rng::new(seed);
    let mut snapshots = Vec::new();
    for number in 0..4 {
        scribble(&luns, &mut rng, 500);
        snapshots.push(volume.create_snapshot(&format!("s{number}")).expect("a snapshot").id);
    }
    volume.delete_snapshots(&[snapshots[1]]).expect("deleted");
    dump(&volume, 1, None, snapshots[3], 1, compression).remove(0)
}

fn take(blocks: &mut Blocks, first: Vbn, run: Vec<Block>) {
    blocks.extend((first.0..).zip(run.iter().map(|block| block.to_vec())));
}

/// The result of a reader.
#[derive(Debug, PartialEq, Eq)]
struct Got {
    blocks: Blocks,
    lost: Vec<Lost>,
    cut: bool,
    table: bool,
}

fn read_all(reader: Result<PartReader, DumpError>) -> Option<Got> {
    let mut reader = match reader {
        Ok(reader) => reader,
        Err(DumpError::Head { .. }) => return None,
        Err(error) => panic!("{error}"),
    };
    let mut blocks = Blocks::new();
    let cut = loop {
        match reader.extents() {
            Ok(Some(runs)) => {
                for (first, run) in runs {
                    take(&mut blocks, first, run);
                }
            }
            Ok(None) => break false,
            Err(DumpError::Cut { .. }) => break true,
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(reader.blocks(), blocks.len() as u64, "each block comes once");
    Some(Got { blocks, lost: reader.lost().to_vec(), cut, table: reader.table().is_some() })
}

/// Alters bytes in place, each to another one; returns where.
fn alter(file: &mut [u8], spots: &[Spot], rng: &mut Rng) -> Range<usize> {
    let spot = &spots[rng.below(spots.len() as u64) as usize];
    let at = match rng.below(8) {
        0 => rng.below(HEAD_BYTES as u64) as usize,
        1 => file.len() - 1 - rng.below(HEAD_BYTES as u64) as usize,
        2 | 3 => spot.bytes.start + rng.below(RecordHeader::SIZE as u64) as usize,
        // Which blocks it has.
        4 | 5 if spot.data_at > spot.bytes.start + RecordHeader::SIZE => {
            let runs = spot.bytes.start + RecordHeader::SIZE..spot.data_at;
            // Most often of its first or last run, where its neighbours are.
            match rng.below(3) {
                0 => runs.start + rng.below(8) as usize,
                1 => runs.end - StreamRun::SIZE + rng.below(8) as usize,
                _ => runs.start + rng.below(runs.len() as u64) as usize,
            }
        }
        6 => spot.bytes.end - 1 - rng.below(4) as usize,
        _ => rng.below(file.len() as u64) as usize,
    };
    let length = match rng.below(6) {
        0 => 1 + rng.below(1_500_000) as usize,
        1 => 1 + rng.below(5000) as usize,
        _ => 1,
    };
    let range = at..(at + length).min(file.len());
    if length == 1 {
        file[at] ^= 1 << rng.below(8);
    } else {
        file[range.clone()].iter_mut().for_each(|byte| *byte ^= 1 + rng.below(255) as u8);
    }
    range
}

fn overlap(one: &Range<usize>, other: &Range<usize>) -> bool {
    one.start < other.end && other.start < one.end
}

/// Of every byte whether one of the ranges has it.
fn bytes_in(ranges: impl Iterator<Item = Range<usize>>, length: usize) -> Vec<bool> {
    let mut bytes = vec![false; length];
    for range in ranges {
        bytes[range.start.min(length)..range.end.min(length)].fill(true);
    }
    bytes
}

/// Checks that exactly the missing blocks are reported.
fn assert_named(got: &Got, whole: &Blocks, note: &str) {
    assert!(got.blocks.iter().all(|(vbn, block)| whole.get(vbn) == Some(block)), "{note}: a wrong block");
    let missing: Vec<u64> = whole.keys().copied().filter(|vbn| !got.blocks.contains_key(vbn)).collect();
    let told: Vec<&Lost> = got.lost.iter().filter(|lost| !lost.spare).collect();
    assert_eq!(missing.is_empty(), told.is_empty(), "{note}: {} are missing: {:?}", missing.len(), got.lost);
    let between =
        |lost: &Lost, vbn: u64| vbn > lost.after.0 && lost.before.is_none_or(|before| vbn < before.0);
    for vbn in &missing {
        assert!(told.iter().any(|lost| between(lost, *vbn)), "{note}: {vbn} is missing and not in {told:?}");
    }
    for lost in &told {
        assert!(
            !got.blocks.keys().any(|vbn| between(lost, *vbn)),
            "{note}: {lost} has blocks that are there"
        );
        let (after, before) = (lost.after.0, lost.before);
        assert!(after == 0 || got.blocks.contains_key(&after), "{note}: {lost}");
        assert!(before.is_none_or(|before| got.blocks.contains_key(&before.0)), "{note}: {lost}");
    }
    let counted: u64 = told.iter().filter_map(|lost| lost.blocks).map(u64::from).sum();
    let all = told.iter().all(|lost| lost.blocks.is_some());
    assert!(counted <= missing.len() as u64 && (!all || counted == missing.len() as u64), "{note}: {told:?}");
}

/// A part as a device, compared with `whole`: it has at least the blocks that a reader gets of it.
fn assert_mounted(bytes: &[u8], got: &Got, note: &str) {
    let index = PartIndex::open("f", bytes_of(bytes)).expect("a head");
    assert_eq!(index.is_cut(), got.cut, "{note}");
    assert_served(index, got, note);
}

fn assert_served(index: PartIndex, got: &Got, note: &str) {
    assert!(index.table().is_some() || !got.table, "{note}");
    let records: u64 = index.entries.iter().map(|entry| u64::from(entry.blocks)).sum();
    assert!(records >= got.blocks.len() as u64, "{note}: {records} blocks are found of {}", got.blocks.len());
    let device = DumpDevice::new(vec![vec![index]], BLOCKS);
    for (vbn, block) in &got.blocks {
        let mut seen = [0; 4096];
        let read = device.read_into(Volume::space_offset(BLOCKS) + vbn * 4096, &mut seen);
        assert!(read.is_ok() && seen == block[..], "{note}: block {vbn} is there and is not served");
    }
}

/// A restore that accepts damage has the readable blocks, and zeroes elsewhere.
fn assert_restored(bytes: &[u8], got: &Got, note: &str) {
    let device = MemoryDevice::new(Volume::device_bytes(BLOCKS, Role::Normal));
    let dumps = arrange(readers(&[bytes.to_vec()]).expect("heads"), false).expect("arranged");
    let outcome = on_threads(false, |work| restore(dumps, &device, BLOCKS, true, Timestamp(5), work));
    let lost: Vec<Lost> = match &outcome {
        Ok(restored) => restored.lost.iter().map(|(_, lost)| lost.clone()).collect(),
        Err(DumpError::TableLost { .. }) if !got.table => got.lost.clone(),
        Err(error) => panic!("{note}: {error}"),
    };
    assert_eq!(lost, got.lost, "{note}");
    let mut space = vec![0; (BLOCKS * 4096) as usize];
    device.read_into(Volume::space_offset(BLOCKS), &mut space).expect("read");
    for (vbn, seen) in (0..).zip(space.chunks_exact(4096)) {
        let right = match got.blocks.get(&vbn) {
            Some(block) => seen == &block[..],
            None => seen.iter().all(|byte| *byte == 0),
        };
        assert!(right, "{note}: block {vbn} of the device");
    }
}

#[test]
fn what_is_named_as_lost_of_a_damaged_part_is_what_is_missing_and_where_it_was_damaged() {
    let (mut spare, mut hurt, mut without_head, mut cut) = (0, 0, 0, 0);
    for (seed, compression) in [(41, Compression::None), (42, Compression::Zstd)] {
        let file = long(seed, compression);
        let spots = spots_of(&file);
        let whole: Blocks = spots.iter().flat_map(|spot| spot.blocks.clone()).collect();
        let records = spots.iter().filter(|spot| spot.kind == RecordKind::Extents).count();
        assert!(records >= 5, "{records} records");
        let mut rng = Rng::new(seed);
        for round in 0..200 {
            let mut bytes = file.clone();
            let altered: Vec<_> =
                (0..1 + rng.below(3)).map(|_| alter(&mut bytes, &spots, &mut rng)).collect();
            let is_altered = |range: &Range<usize>| {
                altered.iter().any(|altered| overlap(altered, range))
                    && bytes[range.clone()] != file[range.clone()]
            };
            let note = format!("seed {seed}, round {round}, altered {altered:?}");
            let (front, back) = (0..HEAD_BYTES, file.len() - HEAD_BYTES..file.len());
            let Some(got) = read_all(PartReader::open_file("f", &bytes_of(&bytes))) else {
                assert!(is_altered(&front) && is_altered(&back), "{note}: a head is whole");
                assert!(PartIndex::open("f", bytes_of(&bytes)).is_err(), "{note}");
                without_head += 1;
                continue;
            };
            assert!(!(is_altered(&front) && is_altered(&back)), "{note}: no head is whole");
            assert_named(&got, &whole, &note);
            // Every unchanged record is read, and no other one.
            let damaged: Vec<&Spot> = spots.iter().filter(|spot| is_altered(&spot.bytes)).collect();
            let missing: usize = damaged.iter().map(|spot| spot.blocks.len()).sum();
            assert_eq!(got.blocks.len() + missing, whole.len(), "{note}");
            let of_table = |spot: &&&Spot| spot.kind == RecordKind::Entries;
            assert_eq!(got.table, damaged.iter().filter(of_table).count() < 2, "{note}");
            // The reported bytes are those of the damaged record.
            let heads = [&front, &back].into_iter().filter(|head| is_altered(head)).cloned();
            let expected = bytes_in(damaged.iter().map(|spot| spot.bytes.clone()).chain(heads), file.len());
            let range = |lost: &Lost| lost.offset as usize..(lost.offset + lost.length) as usize;
            let named = bytes_in(got.lost.iter().map(range), file.len());
            let differ = (0..file.len()).find(|at| expected[*at] != named[*at]);
            assert_eq!(differ, None, "{note}: {:?}", got.lost);
            // Without a trailer and the end after it, it is as good as cut off.
            let ends = damaged.last().is_some_and(|spot| {
                spot.kind == RecordKind::Trailer && is_altered(&(spot.bytes.start..spot.data_at))
            });
            assert_eq!(got.cut, ends && is_altered(&back), "{note}");
            cut += u64::from(got.cut);
            spare += u64::from(missing == 0);
            hurt += u64::from(missing > 0);
            assert_mounted(&bytes, &got, &note);
            if round % 8 == 0 {
                assert_restored(&bytes, &got, &note);
            }
        }
    }
    assert!(spare > 40 && hurt > 150 && without_head > 3 && cut > 0, "{spare} {hurt} {without_head} {cut}");
}

#[test]
fn what_was_cut_out_of_a_part_or_put_into_it_is_named() {
    let (mut hurt, mut cut) = (0, 0);
    for (seed, compression) in [(43, Compression::None), (44, Compression::Zstd)] {
        let file = long(seed, compression);
        let spots = spots_of(&file);
        let whole: Blocks = spots.iter().flat_map(|spot| spot.blocks.clone()).collect();
        let mut rng = Rng::new(seed);
        for round in 0..120 {
            // Where records begin, or anywhere.
            let mut place = || match rng.below(3) {
                0 => HEAD_BYTES + rng.below((file.len() - HEAD_BYTES) as u64) as usize,
                _ => spots[rng.below(spots.len() as u64) as usize].bytes.start,
            };
            let (one, other) = (place(), place());
            let (from, to) = (one.min(other), one.max(other));
            let mut bytes = file.clone();
            match round % 4 {
                0 => bytes.truncate(to),
                1 => {
                    let more: Vec<u8> = (0..1 + rng.below(9000)).map(|_| rng.below(256) as u8).collect();
                    drop(bytes.splice(from..from, more));
                }
                2 => {
                    // Records of its own, repeated.
                    let again = file[from..to].to_vec();
                    drop(bytes.splice(to..to, again));
                }
                _ => drop(bytes.drain(from..to)),
            }
            if bytes == file {
                continue;
            }
            let note = format!("seed {seed}, round {round}, from {from} to {to}");
            let got = read_all(PartReader::open_file("f", &bytes_of(&bytes))).expect("its head is whole");
            assert!(!got.lost.is_empty(), "{note}: nobody is told");
            assert_named(&got, &whole, &note);
            if round % 4 == 2 && spots.iter().any(|spot| spot.bytes.start == to) {
                assert!(got.blocks.len() == whole.len(), "{note}: what comes again costs nothing");
            }
            if got.cut {
                // A loss at the end is reported to reach to it, and a part that was only cut short
                // to begin after the last whole record.
                let last = got.lost.last().expect("it is named");
                assert_eq!(last.offset + last.length, bytes.len() as u64, "{note}: {last}");
                let record = spots.iter().find(|spot| spot.bytes.end > to).map(|spot| spot.bytes.start);
                let behind = record.unwrap_or(bytes.len()) as u64;
                assert!(round % 4 != 0 || last.offset == behind, "{note}: {last}, and not at {behind}");
            }
            hurt += u64::from(got.blocks.len() < whole.len());
            cut += u64::from(got.cut);
            // A reader in order takes a record whose length reaches past the end for a cut; here
            // the copy of the head at the end disproves that.
            let index = PartIndex::open("f", bytes_of(&bytes)).expect("a head");
            assert!(got.cut || !index.is_cut(), "{note}");
            assert_served(index, &got, &note);
        }
    }
    assert!(hurt > 60 && cut > 30, "{hurt} {cut}");
}

/// Gives little at a time, and is interrupted.
struct Trickle {
    bytes: Vec<u8>,
    at: usize,
    rng: Rng,
    most: u64,
}

impl Read for Trickle {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.rng.one_in(4) {
            return Err(Error::from(ErrorKind::Interrupted));
        }
        let most = (1 + self.rng.below(self.most)) as usize;
        let count = most.min(buffer.len()).min(self.bytes.len() - self.at);
        buffer[..count].copy_from_slice(&self.bytes[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}

/// Has a way to be read in order that trickles.
struct Trickling {
    bytes: Vec<u8>,
    most: u64,
}

impl DumpBytes for Trickling {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.bytes.read_at(offset, buffer)
    }

    fn length(&self) -> std::io::Result<u64> {
        DumpBytes::length(&self.bytes)
    }

    fn in_order(&self, offset: u64) -> Option<Box<dyn InBlocks>> {
        let (rng, at) = (Rng::new(offset), (offset - offset % 4096) as usize);
        let trickle = Trickle { bytes: self.bytes.clone(), at, rng, most: self.most };
        Some(Box::new(ReadBlocks::new(trickle)))
    }
}

#[test]
fn reader_that_gives_little_at_a_time_and_is_interrupted_gives_the_same() {
    let mut with_damage = 0;
    for (seed, compression) in [(45, Compression::None), (46, Compression::Zstd)] {
        let file = long(seed, compression);
        let spots = spots_of(&file);
        let mut rng = Rng::new(seed);
        for round in 0..24 {
            let mut bytes = file.clone();
            if round > 1 {
                alter(&mut bytes, &spots, &mut rng);
                with_damage += 1;
            }
            let most = [300, 5000, 70_000, 3 << 20][round % 4];
            let note = format!("seed {seed}, round {round}");
            let whole = read_all(PartReader::open_file("f", &bytes_of(&bytes)));
            let trickling: Arc<dyn DumpBytes> = Arc::new(Trickling { bytes: bytes.clone(), most });
            assert!(read_all(PartReader::open_file("f", &trickling)) == whole, "{note}");
            // Of a pipe the head at the end is not to be had.
            let at_once = read_all(PartReader::open("f", Box::new(std::io::Cursor::new(bytes.clone()))));
            let pipe = Trickle { bytes: bytes.clone(), at: 0, rng: rng.fork(), most };
            assert!(read_all(PartReader::open("f", Box::new(pipe))) == at_once, "{note}: a pipe");
            if bytes[..HEAD_BYTES] == file[..HEAD_BYTES] {
                assert!(at_once == whole, "{note}: a pipe and a file");
            }
        }
    }
    assert!(with_damage > 30);
}

#[test]
fn read_that_comes_short_or_is_interrupted_goes_on_where_it_was() {
    let bytes: Vec<u8> = (0..20_000u32).map(|number| (number % 251) as u8).collect();
    let mut rng = Rng::new(47);
    for _ in 0..300 {
        let (offset, length) = (rng.below(21_000), rng.below(6000) as usize);
        let mut buffer = vec![0; length];
        let have = read_whole(offset, &mut buffer, |buffer, at| {
            if rng.one_in(4) {
                return Err(Error::from(ErrorKind::Interrupted));
            }
            let most = 1 + rng.below(900) as usize;
            let some = buffer.len().min(most);
            bytes.read_at(at, &mut buffer[..some])
        });
        let expected = &bytes[(offset as usize).min(bytes.len())..];
        let expected = &expected[..expected.len().min(length)];
        assert_eq!(have.expect("nothing failed"), expected.len(), "{length} bytes at {offset}");
        assert_eq!(&buffer[..expected.len()], expected, "{length} bytes at {offset}");
        let failed = read_whole(offset, &mut [0; 8], |_, _| Err(Error::from(ErrorKind::PermissionDenied)));
        assert_eq!(failed.expect_err("it fails").kind(), ErrorKind::PermissionDenied);
    }
}

/// Fails at one of its reads, once.
struct Failing {
    bytes: Vec<u8>,
    left: AtomicU64,
}

impl DumpBytes for Failing {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self.left.fetch_sub(1, Ordering::Relaxed) {
            0 => Err(Error::from(ErrorKind::PermissionDenied)),
            _ => self.bytes.read_at(offset, buffer),
        }
    }

    fn length(&self) -> std::io::Result<u64> {
        DumpBytes::length(&self.bytes)
    }
}

#[test]
fn part_whose_file_cannot_be_read_is_told_and_not_taken_for_damaged() {
    for (file, flip) in [(long(48, Compression::None), None), (long(48, Compression::Zstd), Some(5))] {
        let mut bytes = file;
        // With a damaged head the one at the end is read as well.
        flip.into_iter().for_each(|at: usize| bytes[at] ^= 1);
        let failing = |left| Arc::new(Failing { bytes: bytes.clone(), left: AtomicU64::new(left) });
        let mut told = 0;
        for at in 0.. {
            match PartIndex::open("f", failing(at)) {
                Err(DumpError::Read { .. }) => told += 1,
                Err(error) => panic!("read {at}: {error}"),
                Ok(_) => break,
            }
        }
        assert!(told > 8, "{told} reads");
        let mut told = 0;
        for at in 0.. {
            let source: Arc<dyn DumpBytes> = failing(at);
            let mut reader = match PartReader::open_file("f", &source) {
                Ok(reader) => reader,
                Err(DumpError::Read { .. }) => {
                    told += 1;
                    continue;
                }
                Err(error) => panic!("read {at}: {error}"),
            };
            let outcome = loop {
                match reader.extents() {
                    Ok(Some(_)) => {}
                    Ok(None) => break Ok(()),
                    Err(error) => break Err(error),
                }
            };
            match outcome {
                Err(DumpError::Read { .. }) => told += 1,
                Err(error) => panic!("read {at}: {error}"),
                Ok(()) => break,
            }
        }
        assert!(told > 1, "{told} reads");
        // Mounted, a read that fails is an error and no block of zeroes.
        let source = failing(u64::MAX);
        let index = PartIndex::open("f", source.clone()).expect("a head");
        let spots: Vec<u64> = index.entries.iter().map(|entry| entry.first).collect();
        let device = DumpDevice::new(vec![vec![index]], BLOCKS);
        for vbn in spots {
            let at = Volume::space_offset(BLOCKS) + Vbn(vbn).0 * 4096;
            source.left.store(0, Ordering::Relaxed);
            assert!(device.read(at, 4096).is_err(), "block {vbn}");
            device.read(at, 4096).expect("it can be read again");
        }
    }
}

/// A read may end anywhere in the searched stretch: also in the middle of the head of the next
/// record.
#[test]
fn next_record_is_found_wherever_it_begins_behind_damage() {
    let file = long(49, Compression::None);
    let spots = spots_of(&file);
    let first = spots.iter().position(|spot| spot.kind == RecordKind::Extents).expect("there is one");
    let (gone, next) = (spots[first].bytes.clone(), &spots[first + 1]);
    let whole: Blocks = spots.iter().flat_map(|spot| spot.blocks.clone()).collect();
    let left: Blocks = whole
        .iter()
        .filter(|(vbn, _)| !spots[first].blocks.contains_key(vbn))
        .map(|(a, b)| (*a, b.clone()))
        .collect();
    let mut rng = Rng::new(49);
    for searched in [1 << 20, 4 << 20] {
        for by in [-385i64, -384, -383, -49, -48, -47, -24, -1, 0, 1, 24, 47, 48, 49, 383, 384, 385] {
            let length = (searched + by) as usize;
            let junk: Vec<u8> = (0..length).map(|_| rng.below(256) as u8).collect();
            let mut bytes = file[..gone.start].to_vec();
            bytes.extend(&junk);
            bytes.extend(&file[next.bytes.start..]);
            let note = format!("{length} bytes of damage");
            let got = read_all(PartReader::open_file("f", &bytes_of(&bytes))).expect("a head");
            assert!(got.blocks == left, "{note}: {} of {} blocks", got.blocks.len(), left.len());
            let [lost] = &got.lost[..] else { panic!("{note}: {:?}", got.lost) };
            assert_eq!((lost.offset, lost.length), (gone.start as u64, length as u64), "{note}");
            assert_named(&got, &whole, &note);
            assert_mounted(&bytes, &got, &note);
        }
    }
}
