//! Reports about parts, and parts that arrive in many pieces: in a file, of many snapshots, with
//! gaps, with data that can't be packed, record by record.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};

use cairn_base::Vbn;
use cairn_device::{DeviceError, Geometry, Request};
use cairn_format::SnapshotEntry;
use cairn_format::stream::{Encoding, RECORD_SNAPSHOTS_MAX, RecordHeader, RecordKind, StreamRun};

use super::lost::{Spot, long, spots_of};
use super::wrong::Pieces;
use super::*;
use crate::dump::device::DumpDevice;
use crate::dump::read::{HEAD_BYTES, Table};

fn index(name: &str, file: &[u8]) -> PartIndex {
    PartIndex::open(name, bytes_of(file)).expect("a head")
}

#[test]
fn dump_that_can_not_be_mounted_is_refused_with_the_name_of_the_file() {
    let (_, dumps) = life(51, 1, Compression::None);
    let (full, later) = (&dumps[0][0], &dumps[1][0]);
    let mount = |parts| OpenDump::open(parts, false, false, clock(), 1 << 20).map(drop).expect_err("refused");
    let cut = mount(vec![index("whole", full), index("short", &later[..later.len() - 500])]);
    assert!(matches!(&cut, DumpError::Cut { file } if file == "short"), "{cut}");
    let alone = mount(vec![index("alone", later)]);
    assert!(matches!(&alone, DumpError::MissingBase { file, .. } if file == "alone"), "{alone}");
    let twice = mount(vec![index("one", full), index("two", full)]);
    assert!(
        matches!(&twice, DumpError::DoublePart { file, other } if file == "two" && other == "one"),
        "{twice}"
    );
}

#[test]
fn part_in_a_file_is_read_as_one_in_memory() {
    let bytes = long(52, Compression::Zstd);
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(&bytes).expect("written");
    let file: Arc<dyn DumpBytes> = Arc::new(file);
    assert_eq!(file.length().expect("it is known"), bytes.len() as u64);
    let mut rng = Rng::new(52);
    for _ in 0..50 {
        let (at, length) = (rng.below(bytes.len() as u64 + 100), rng.below(70_000) as usize);
        let (mut seen, mut expected) = (vec![0; length], vec![0; length]);
        let have = file.read_at(at, &mut seen).expect("read");
        assert_eq!(have, bytes.read_at(at, &mut expected).expect("read"), "{length} bytes at {at}");
        assert!(seen == expected, "{length} bytes at {at}");
    }
    let of_file = PartIndex::open("f", file.clone()).expect("a head");
    assert_eq!(of_file.length().expect("it is known"), bytes.len() as u64);
    assert_eq!(of_file.entries.len(), index("f", &bytes).entries.len());
    let mut reader = PartReader::open_file("f", &file).expect("a head");
    while reader.extents().expect("whole").is_some() {}
    assert_eq!((reader.lost(), reader.bytes()), (&[][..], bytes.len() as u64));
}

#[test]
fn part_is_whole_with_all_of_its_records_and_its_trailer_only() {
    let file = long(53, Compression::None);
    assert!(index("f", &file).is_whole() && !index("f", &file).is_cut());
    for spot in spots_of(&file).iter().filter(|spot| spot.kind != RecordKind::Entries) {
        let mut damaged = file.clone();
        damaged[spot.bytes.start + 8] ^= 1;
        let index = index("f", &damaged);
        assert!(!index.is_whole(), "{:?} at {}", spot.kind, spot.bytes.start);
        assert!(!index.is_cut(), "its end is there");
    }
    let last = spots_of(&file).pop().expect("the trailer");
    let mut damaged = file.clone();
    damaged[last.bytes.end - 1] ^= 1;
    assert!(!index("f", &damaged).is_whole(), "its trailer does not verify");
    assert!(!index("f", &file[..last.bytes.start]).is_whole());
}

#[test]
fn head_that_contradicts_itself_is_none() {
    let file = long(54, Compression::None);
    let head = PartHead::parse(file.first_chunk().expect("a head")).expect("a head");
    let changes: [fn(&mut PartHead); 3] = [
        |head| head.stream.volume = VolumeId([9; 16]),
        |head| head.stream.changed_blocks = head.dump.blocks + 1,
        |head| head.stream.space_blocks = 0,
    ];
    let parse =
        |head: &PartHead| PartHead::parse(head.to_bytes().first_chunk::<HEAD_BYTES>().expect("a head"));
    assert_eq!(parse(&head).expect("it is one"), head);
    for (number, change) in changes.iter().enumerate() {
        let mut wrong = head.clone();
        change(&mut wrong);
        assert!(parse(&wrong).is_err(), "{number}");
    }
}

#[test]
fn table_with_another_entry_or_one_too_few_is_not_that_of_the_dump() {
    let file = long(55, Compression::None);
    let head = PartHead::parse(file.first_chunk().expect("a head")).expect("a head").dump;
    let entries = PartReader::open_file("f", &bytes_of(&file)).expect("a head").table().expect("it is there");
    let table = |entries: &[SnapshotEntry]| {
        let mut table = Table::default();
        entries.iter().for_each(|entry| table.take(&entry.to_bytes()).expect("it is one"));
        table.whole(&head)
    };
    assert_eq!(table(&entries), Some(entries.clone()));
    assert_eq!(table(&entries[1..]), None);
    let mut other = entries.clone();
    other[0].name = "another".to_owned();
    assert_eq!(table(&other), None);
    assert!(Table::default().take(&[0; SnapshotEntry::SIZE]).is_err(), "an empty place is no entry");
}

/// Two blocks with one between them: were the record taken for one without gaps, the second would
/// be looked for past its end.
#[test]
fn record_of_two_blocks_with_a_gap_shows_both_and_nothing_between_them() {
    let mut pieces = Pieces::of(&long(56, Compression::None));
    let (first, second) = ([1; 4096], [2; 4096]);
    let record = pieces.records.iter().position(|(head, _)| head.kind == RecordKind::Extents);
    let record = record.expect("there is one");
    let runs = [StreamRun::new(Vbn(10), 1), StreamRun::new(Vbn(12), 1)];
    let payload = [runs[0].bytes(), runs[1].bytes(), &first, &second].concat();
    let (head, _) = pieces.records[record];
    pieces.records[record] = (cairn_format::stream::RecordHeader { items: 2, blocks: 2, ..head }, payload);
    pieces.records.retain(|(head, _)| head.kind != RecordKind::Extents || head.blocks == 2);
    pieces.number();
    pieces.head.stream.changed_blocks = 2;
    pieces.tail = pieces.head.to_bytes();
    let index = index("f", &pieces.to_bytes());
    assert_eq!(index.entries.len(), 1);
    let device = DumpDevice::new(vec![vec![index]], BLOCKS);
    let at = |vbn: u64| {
        let read = device.read(Volume::space_offset(BLOCKS) + vbn * 4096, 4096);
        read.expect("it can be read").to_vec()
    };
    assert!(at(10) == first && at(12) == second, "both are served");
    assert!([9, 11, 13].iter().all(|vbn| at(*vbn) == [0; 4096]), "and nothing beside them");
}

#[test]
fn what_can_not_be_packed_stands_as_it_is() {
    let (volume, luns) = source(1);
    let device = luns.open("a").expect("the LUN");
    let mut rng = Rng::new(57);
    for number in 0..LUN_BLOCKS {
        let mut block = [0; 4096];
        rng.fill(&mut block);
        device.write_from(number * 4096, &block).expect("written");
    }
    let target = volume.create_snapshot("one").expect("a snapshot").id;
    let plain = dump(&volume, 1, None, target, 1, Compression::None).remove(0);
    let packed = dump(&volume, 1, None, target, 1, Compression::Zstd).remove(0);
    assert!(packed.len() <= plain.len());
    let records = Pieces::of(&packed).records;
    let full = records.iter().filter(|(head, _)| head.blocks == 256);
    let encodings: Vec<Encoding> = full.map(|(head, _)| head.encoding).collect();
    assert!(encodings.contains(&Encoding::Aligned), "{encodings:?}");
}

/// Counts the blocks that it has got.
struct Counting {
    device: MemoryDevice,
    written: AtomicU64,
}

impl Device for Counting {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn run(&self, batch: &mut [Operation]) {
        self.device.run(batch);
        let bytes = batch.iter().map(|operation| match operation.request() {
            Request::Write { data, .. } => data.len() as u64,
            _ => 0,
        });
        self.written.fetch_add(bytes.sum::<u64>() / 4096, Ordering::Release);
    }
}

/// Gives a record once the device has the blocks of all before it.
struct Slow {
    file: Vec<u8>,
    at: usize,
    /// Where records with blocks end, and how many blocks there are up to there.
    ends: Vec<(usize, u64)>,
    device: Arc<Counting>,
}

impl Read for Slow {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let next = self.ends.iter().position(|(end, _)| *end > self.at);
        let due = match next {
            Some(0) => 0,
            Some(next) => self.ends[next - 1].1,
            None => 0,
        };
        while self.device.written.load(Ordering::Acquire) < due {
            std::thread::yield_now();
        }
        let end = next.map_or(self.file.len(), |next| self.ends[next].0);
        let count = buffer.len().min(end - self.at);
        buffer[..count].copy_from_slice(&self.file[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}

/// A snapshot of many records, few of them with gaps.
fn snapshot_of_many() -> (Arc<Volume>, SnapshotId) {
    let (volume, luns) = source(1);
    luns.create("b", 2400 * 4096).expect("a LUN");
    let mut bytes = vec![0; 2400 * 4096];
    Rng::new(58).fill(&mut bytes);
    luns.open("b").expect("the LUN").write_from(0, &bytes).expect("written");
    let target = volume.create_snapshot("one").expect("a snapshot").id;
    (volume, target)
}

/// A part with all of it.
fn many() -> Vec<u8> {
    let (volume, target) = snapshot_of_many();
    dump(&volume, 1, None, target, 1, Compression::None).remove(0)
}

#[test]
fn part_of_several_batches_is_the_same_with_threads_whatever_the_number_of_parts() {
    let (volume, target) = snapshot_of_many();
    let plan = Plan::against(&volume, None, target).expect("a plan");
    for parts in 1..=3 {
        let (id, level, name) = (DumpId([1; 16]), DumpLevel::Level(0), "vol0".to_owned());
        let dump = Dump::new(&plan, DumpLabel { id, level, name, created: Timestamp(1) }, parts);
        for part in 0..parts {
            let [alone, with_threads] = [false, true].map(|threads| {
                let mut bytes = Vec::new();
                on_threads(threads, |work| dump.write_part(part, &mut bytes, Compression::None, work))
                    .expect("written");
                bytes
            });
            assert!(alone == with_threads, "part {part} of {parts}");
        }
        assert!(parts > 2 || dump.shape(0).extents > 4, "more than one batch");
    }
}

/// Whichever of two is damaged so that both seem to have a block: the other one has its own.
#[test]
fn record_that_seems_to_reach_into_its_neighbour_by_a_block_costs_that_one_none() {
    let file = many();
    let spots = spots_of(&file);
    let extents: Vec<_> = spots.iter().filter(|spot| spot.kind == RecordKind::Extents).collect();
    let meet = |pair: &&[&Spot]| {
        pair[0].blocks.keys().next_back().map(|last| last + 1) == pair[1].blocks.keys().next().copied()
    };
    let pair = extents.windows(2).find(meet).expect("two that meet");
    let last_run = pair[0].data_at - StreamRun::SIZE;
    let first_run = pair[1].bytes.start + RecordHeader::SIZE;
    for (run, further, whole) in [(last_run, 1, pair[1]), (first_run, u64::MAX, pair[0])] {
        let mut file = file.clone();
        let first = u64::from_le_bytes(file[run..run + 8].try_into().expect("eight bytes"));
        file[run..run + 8].copy_from_slice(&first.wrapping_add(further).to_le_bytes());
        let device = DumpDevice::new(vec![vec![index("f", &file)]], BLOCKS);
        for (vbn, content) in &whole.blocks {
            let read = device.read(Volume::space_offset(BLOCKS) + vbn * 4096, 4096);
            assert!(read.expect("its record is whole").to_vec() == *content, "block {vbn}");
        }
    }
}

#[test]
fn restore_of_more_batches_than_are_under_way_at_a_time_has_every_block() {
    let file = many();
    let mut blocks = 0;
    let spots = spots_of(&file);
    let extents = spots.iter().filter(|spot| spot.kind == RecordKind::Extents);
    let ends: Vec<(usize, u64)> = extents
        .map(|spot| {
            blocks += spot.blocks.len() as u64;
            (spot.bytes.end, blocks)
        })
        .collect();
    // More than may wait before and after each of them.
    assert!(ends.len() > 8, "{} records", ends.len());
    let memory = || MemoryDevice::new(Volume::device_bytes(BLOCKS, Role::Normal));
    let device = Arc::new(Counting { device: memory(), written: AtomicU64::new(0) });
    let slow = Slow { file: file.clone(), at: 0, ends, device: device.clone() };
    let reader = PartReader::open("f", Box::new(slow)).expect("a head");
    let dumps = arrange(vec![reader], false).expect("arranged");
    let done = on_threads(true, |work| restore(dumps, &*device, BLOCKS, false, Timestamp(5), work));
    assert_eq!(done.expect("restored").blocks, blocks);
    let (expected, _) = restored_to(&[file], false, false).expect("restored");
    let space = |device: &dyn Device| -> Result<Vec<u8>, DeviceError> {
        let (at, length) = (Volume::space_offset(BLOCKS), (BLOCKS * 4096) as u32);
        device.read(at, length).map(|data| data.to_vec())
    };
    assert!(space(&*device).expect("read") == space(&*expected).expect("read"));
}

/// The table takes two records then, each time.
#[test]
fn dump_of_more_snapshots_than_a_record_has_goes_on_in_either_copy_of_the_table() {
    let (volume, luns) = source(1);
    scribble(&luns, &mut Rng::new(59), 20);
    let mut target = SnapshotId(0);
    for number in 0..RECORD_SNAPSHOTS_MAX + 2 {
        target = volume.create_snapshot(&format!("s{number}")).expect("a snapshot").id;
    }
    let plan = Plan::against(&volume, None, target).expect("a plan");
    let label = DumpLabel {
        id: DumpId([7; 16]),
        level: DumpLevel::Level(0),
        name: "vol0".to_owned(),
        created: Timestamp(3),
    };
    let dump = Dump::new(&plan, label, 1);
    let write = |begun: &Begun, out: &mut Vec<u8>| {
        let onto = Onto { out, reached: &mut |_| Ok(()) };
        on_threads(false, |work| dump.resume_part(0, begun, onto, Compression::None, work)).expect("written");
    };
    let mut whole = Vec::new();
    write(&Begun::default(), &mut whole);
    let spots = spots_of(&whole);
    assert_eq!(spots.iter().filter(|spot| spot.kind == RecordKind::Entries).count(), 4);
    for spot in &spots {
        for cut in [spot.bytes.end - 1, spot.bytes.end] {
            let mut file = whole[..cut].to_vec();
            let begun = dump.begun(0, ("f", &file), &[], &|| false).expect("it is that part");
            let due = if cut == spot.bytes.end { cut } else { spot.bytes.start };
            assert_eq!(begun.at().bytes, due as u64, "cut at {cut}: all that is whole stays");
            file.truncate(due);
            write(&begun, &mut file);
            assert!(file == whole, "cut at {cut}");
        }
    }
    assert!(dump.begun(0, ("f", &whole), &[], &|| false).expect("whole").is_whole());
    let told = dump.begun(0, ("f", &whole), &[], &|| true).expect_err("it is told to end");
    assert!(matches!(told, DumpError::Stream(StreamError::Cancelled)), "{told}");
}

/// The base of an incremental dump need be no dump's target: the full one has it when its table
/// has.
#[test]
fn dump_against_an_older_snapshot_that_the_full_one_has_comes_behind_it() {
    let (volume, luns) = source(1);
    let mut rng = Rng::new(60);
    let mut snapshot = |name: &str| {
        scribble(&luns, &mut rng, 200);
        volume.create_snapshot(name).expect("a snapshot").id
    };
    let (one, two) = (snapshot("one"), snapshot("two"));
    let full = dump(&volume, 1, None, two, 1, Compression::None).remove(0);
    let three = snapshot("three");
    let later = dump(&volume, 2, Some(one), three, 1, Compression::None).remove(0);
    let files = [later.clone(), full.clone()];
    let (restored, _) = restored(&files, false, false).expect("restored");
    assert!(shown(&restored) == shown(&volume));
    let mounted = opened(&files, false, false).expect("mounted");
    assert!(shown(&mounted.volume) == shown(&volume));
    let again = dump(&volume, 3, None, three, 1, Compression::None).remove(0);
    let refused = arrange(readers(&[full, again]).expect("heads"), false).map(drop).expect_err("refused");
    assert!(
        matches!(&refused, DumpError::TwoFull { file, other } if file == "f1" && other == "f0"),
        "{refused}"
    );
}

#[test]
fn end_of_a_part_comes_once_and_a_record_that_does_not_verify_is_named_with_its_blocks() {
    let mut file = long(61, Compression::None);
    let spots = spots_of(&file);
    let spot = spots.iter().find(|spot| spot.kind == RecordKind::Extents).expect("there is one");
    file[spot.bytes.end - 1] ^= 1;
    let mut reader = PartReader::open_file("f", &bytes_of(&file)).expect("a head");
    while reader.extents().expect("its end is there").is_some() {}
    let lost = reader.lost().to_vec();
    assert_eq!(lost.len(), 1);
    assert_eq!(lost[0].blocks, Some(spot.blocks.len() as u32));
    assert!(reader.extents().expect("it has ended").is_none());
    assert_eq!(reader.lost(), lost, "nothing more is missing the second time");
}

/// A part of all blocks of the LUN, whatever is in them: every such part has its records in the
/// same places.
fn alike(seed: u64) -> Vec<u8> {
    let (volume, luns) = source(1);
    let device = luns.open("a").expect("the LUN");
    let mut rng = Rng::new(seed);
    for number in 0..LUN_BLOCKS {
        let mut block = [0; 4096];
        rng.fill(&mut block);
        device.write_from(number * 4096, &block).expect("written");
    }
    let target = volume.create_snapshot("one").expect("a snapshot").id;
    dump(&volume, 1, None, target, 1, Compression::None).remove(0)
}

#[test]
fn pipe_that_is_passed_over_is_the_same_by_its_sums_and_damage_in_what_is_restored_costs_nothing() {
    let file = alike(62);
    let pipe =
        |file: &[u8]| PartReader::open("f", Box::new(std::io::Cursor::new(file.to_vec()))).expect("a head");
    let mut reader = pipe(&file);
    (0..2).for_each(|_| drop(reader.extents().expect("it is whole").expect("a record")));
    let reached = reader.reached().expect("it passes over nothing");
    let rest = |reader: &mut PartReader| {
        let mut blocks = 0;
        while let Some(runs) = reader.extents()? {
            blocks += runs.iter().map(|(_, run)| run.len()).sum::<usize>();
        }
        Ok::<_, DumpError>(blocks)
    };
    let expected = rest(&mut reader).expect("it is whole");
    let spots = spots_of(&file);
    let first = spots.iter().find(|spot| spot.kind == RecordKind::Extents).expect("there is one");
    let (mut payload, mut head) = (file.clone(), file.clone());
    payload[first.bytes.end - 1] ^= 1;
    head[first.bytes.start + 8] ^= 1;
    for (again, note) in [(&file, "as it was"), (&payload, "a payload is damaged by now")] {
        let mut reader = pipe(again);
        reader.go_on(reached.clone()).expect("read from there");
        // A part that no longer verifies has nothing to skip.
        for _ in 0..if again == &file { 2 } else { 1 } {
            assert!(reader.extents().expect(note).expect(note).is_empty(), "{note}: it is passed over");
        }
        assert!(reader.lost().is_empty(), "{note}: it was whole when it was restored");
        assert_eq!(rest(&mut reader).expect(note), expected, "{note}");
        assert!(reader.lost().is_empty(), "{note}");
    }
    // Damage that was accepted then, of a file that is whole now.
    let mut damaged = pipe(&head);
    let runs = damaged.extents().expect("the next one is found").expect("a record");
    let with_damage = damaged.reached().expect("it passes over nothing");
    assert!(with_damage.digest_lost && !runs.is_empty());
    let mut reader = pipe(&file);
    reader.go_on(with_damage.clone()).expect("read from there");
    rest(&mut reader).expect("it goes on");
    assert_eq!(reader.lost(), with_damage.lost, "what was lost then is missing still");
    // Another one, with its records in the same places.
    let other = alike(63);
    assert_eq!(other.len(), file.len());
    let mut reader = pipe(&other);
    reader.go_on(reached).expect("read from there");
    let refused = rest(&mut reader).expect_err("it is another one");
    assert!(matches!(refused, DumpError::Changed { .. }), "{refused}");
}

/// Notes the progress reports.
#[derive(Default)]
struct Told(Vec<u64>);

impl RestoreLedger for Told {
    fn standing(&self) -> Standing {
        Standing::default()
    }

    fn writing(&mut self, dump: usize, runs: &[(Vbn, Vec<cairn_device::Block>)]) -> Result<(), DumpError> {
        assert_eq!(dump, 0);
        runs.iter().for_each(|(first, blocks)| self.0.extend(first.0..first.0 + blocks.len() as u64));
        Ok(())
    }

    fn written(&mut self, standing: &Standing) -> Result<(), DumpError> {
        assert!(standing.blocks <= self.0.len() as u64, "what is written was told before");
        Ok(())
    }
}

#[test]
fn ledger_is_told_of_every_block_before_it_is_written() {
    let file = long(64, Compression::Zstd);
    let mut blocks: Vec<u64> = spots_of(&file).iter().flat_map(|spot| spot.blocks.keys().copied()).collect();
    for threads in [false, true] {
        let device = MemoryDevice::new(Volume::device_bytes(BLOCKS, Role::Normal));
        let dumps = arrange(readers(std::slice::from_ref(&file)).expect("heads"), false).expect("arranged");
        let mut told = Told::default();
        let restore =
            |work: &mut Work<'_>| restore_on(dumps, &device, BLOCKS, false, Timestamp(5), &mut told, work);
        on_threads(threads, restore).expect("restored");
        told.0.sort_unstable();
        blocks.sort_unstable();
        assert!(told.0 == blocks);
    }
}
