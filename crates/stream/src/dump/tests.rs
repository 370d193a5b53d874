//! Dumps in memory: round trips against the volume's content, every flipped byte of a small one,
//! cuts, and files that do not belong together.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use cairn_base::{ManualClock, Rng, SnapshotId, Timestamp, VolumeId};
use cairn_device::{BlockMut, Device, Fate, FaultDevice, MemoryDevice, Operation, Segments};
use cairn_files::Luns;
use cairn_format::dump::{DumpId, DumpLevel};
use cairn_format::stream::StreamTrailer;
use cairn_volume::{CheckDepth, FormatOptions, OpenOptions, Role, Volume, VolumeError};

use super::*;
use crate::tests::{Scoped, on_threads};
use crate::{Compression, Plan, StreamError, Threads, Work};

mod chain;
mod lost;
mod mounted;
mod parts;
mod restore;
mod resume;
mod wrong;

const BLOCKS: u64 = 4096;
const LUN_BLOCKS: u64 = 600;

fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::new(Timestamp(1)))
}

fn open(device: Arc<dyn Device>) -> Arc<Volume> {
    Volume::open(device, OpenOptions { cache_bytes: 1 << 20, clock: clock() }).expect("opened")
}

fn source(id: u8) -> (Arc<Volume>, Luns) {
    let device = Arc::new(MemoryDevice::new(Volume::device_bytes(BLOCKS, Role::Normal)));
    let options = FormatOptions { id: VolumeId([id; 16]), blocks: BLOCKS, role: Role::Normal };
    Volume::format(&*device, &options, &*clock()).expect("formatted");
    let volume = open(device);
    let luns = Luns::new(volume.clone());
    luns.create("a", LUN_BLOCKS * 4096).expect("a LUN");
    (volume, luns)
}

/// Writes some blocks of the LUN; half of each can be packed.
fn scribble(luns: &Luns, rng: &mut Rng, writes: u64) {
    let device = luns.open("a").expect("the LUN");
    let mut batch: Vec<Operation> = (0..writes)
        .map(|_| {
            let mut block = BlockMut::zeroed();
            rng.fill(&mut block[..2048]);
            Operation::write(rng.below(LUN_BLOCKS) * 4096, Segments::from(block.freeze()))
        })
        .collect();
    device.run(&mut batch);
    batch.into_iter().for_each(|write| write.into_outcome().expect("written"));
}

/// The content of the LUN in every snapshot.
type Shown = BTreeMap<String, Vec<u8>>;

fn shown(volume: &Arc<Volume>) -> Shown {
    let luns = Luns::new(volume.clone());
    let of = |snapshot: &cairn_volume::Snapshot| {
        let image = volume.image(Some(snapshot.id)).expect("an image");
        let device = luns.open_in(&image, "a").expect("the LUN");
        (snapshot.name.clone(), device.read(0, (LUN_BLOCKS * 4096) as u32).expect("read").to_vec())
    };
    volume.snapshots().iter().map(of).collect()
}

/// The parts of a dump of `target` against `base`.
fn dump(
    volume: &Arc<Volume>,
    number: u8,
    base: Option<SnapshotId>,
    target: SnapshotId,
    parts: u32,
    compression: Compression,
) -> Vec<Vec<u8>> {
    let plan = Plan::against(volume, base, target).expect("a plan");
    let label = DumpLabel {
        id: DumpId([number; 16]),
        level: base.map_or(DumpLevel::Level(0), |_| DumpLevel::Level(number.min(9))),
        name: "vol0".to_owned(),
        created: Timestamp(u64::from(number)),
    };
    let dump = Dump::new(&plan, label, parts);
    let mut blocks = 0;
    let files: Vec<Vec<u8>> = (0..parts)
        .map(|part| {
            let mut bytes = Vec::new();
            let produced =
                on_threads(part % 2 == 0, |work| dump.write_part(part, &mut bytes, compression, work));
            let produced = produced.expect("written");
            assert_eq!(produced.bytes, bytes.len() as u64);
            blocks += produced.blocks;
            bytes
        })
        .collect();
    assert_eq!(dump.blocks(), blocks, "known before");
    let total: usize = files.iter().map(Vec::len).sum();
    match compression {
        Compression::None => assert_eq!(dump.bytes(), total as u64, "known before"),
        Compression::Zstd | Compression::Auto => assert!(total as u64 <= dump.bytes()),
    }
    files
}

fn bytes_of(file: &[u8]) -> Arc<dyn DumpBytes> {
    Arc::new(file.to_vec())
}

fn readers(files: &[Vec<u8>]) -> Result<Vec<PartReader>, DumpError> {
    let open =
        |(number, file): (usize, &Vec<u8>)| PartReader::open_file(&format!("f{number}"), &bytes_of(file));
    files.iter().enumerate().map(open).collect()
}

fn restored(files: &[Vec<u8>], accept: bool, threads: bool) -> Result<(Arc<Volume>, Restored), DumpError> {
    restored_to(files, accept, threads).map(|(device, restored)| (open(device), restored))
}

fn restored_to(
    files: &[Vec<u8>],
    accept: bool,
    threads: bool,
) -> Result<(Arc<MemoryDevice>, Restored), DumpError> {
    let device = Arc::new(MemoryDevice::new(Volume::device_bytes(BLOCKS, Role::Normal)));
    let dumps = arrange(readers(files)?, false)?;
    let restored = on_threads(threads, |work| restore(dumps, &*device, BLOCKS, accept, Timestamp(5), work));
    match restored {
        Ok(restored) => Ok((device, restored)),
        Err(error) => {
            let again = Volume::open(device, OpenOptions { cache_bytes: 1 << 20, clock: clock() });
            assert!(again.is_err(), "nothing that could be taken for a volume is left");
            Err(error)
        }
    }
}

fn opened(files: &[Vec<u8>], without_base: bool, damaged: bool) -> Result<OpenDump, DumpError> {
    let parts: Result<Vec<_>, _> = files.iter().map(|file| PartIndex::open("f", bytes_of(file))).collect();
    OpenDump::open(parts?, without_base, damaged, clock(), 1 << 20)
}

fn is_sound(volume: &Arc<Volume>) -> bool {
    volume.check(&mut |_| {}).expect("checked").findings.is_empty()
}

/// Level 0 with two snapshots, then increments with snapshots that come and go.
fn life(seed: u64, parts: u32, compression: Compression) -> (Shown, Vec<Vec<Vec<u8>>>) {
    let mut rng = Rng::new(seed);
    let (volume, luns) = source(1);
    scribble(&luns, &mut rng, 300);
    let first = volume.create_snapshot("first").expect("a snapshot").id;
    scribble(&luns, &mut rng, 50);
    let mut base = volume.create_snapshot("base").expect("a snapshot").id;
    let mut dumps = vec![dump(&volume, 1, None, base, parts, compression)];
    for number in 2..5 {
        for round in 0..2 {
            scribble(&luns, &mut rng, 40);
            volume.create_snapshot(&format!("s{number}.{round}")).expect("a snapshot");
        }
        match number {
            2 => drop(volume.delete_snapshots(&[first]).expect("deleted")),
            3 => volume.rename_snapshot(base, "renamed").expect("renamed"),
            _ => drop(volume.rollback(base).expect("rolled back")),
        }
        scribble(&luns, &mut rng, 20);
        let target = volume.create_snapshot(&format!("t{number}")).expect("a snapshot").id;
        dumps.push(dump(&volume, number, Some(base), target, parts, compression));
        base = target;
    }
    assert!(is_sound(&volume));
    (shown(&volume), dumps)
}

#[test]
fn what_was_dumped_is_restored_and_mounted_byte_for_byte_with_all_snapshots() {
    for (seed, parts, compression) in [
        (1, 1, Compression::None),
        (2, 3, Compression::Zstd),
        (3, 4, Compression::None),
        (4, 1, Compression::Zstd),
    ] {
        let (expected, dumps) = life(seed, parts, compression);
        // In any order: each file contains its place.
        let mut files = dumps.concat();
        let mut rng = Rng::new(seed);
        for at in (1..files.len()).rev() {
            files.swap(at, rng.below(at as u64 + 1) as usize);
        }
        for threads in [false, true] {
            let (volume, restored) = restored(&files, false, threads).expect("restored");
            assert_eq!(shown(&volume), expected, "seed {seed}");
            assert!(is_sound(&volume));
            assert_eq!((restored.target.as_str(), restored.lost.len()), ("t4", 0));
            // It is a volume to work with.
            let luns = Luns::new(volume.clone());
            scribble(&luns, &mut rng, 100);
            volume.create_snapshot("later").expect("a snapshot");
            volume.delete_snapshots(&[volume.snapshots()[0].id]).expect("deleted");
            assert!(is_sound(&volume));
        }
        let mounted = opened(&files, false, false).expect("opened");
        assert_eq!((shown(&mounted.volume), mounted.name.as_str()), (expected, "vol0"));
        assert!(is_sound(&mounted.volume));
    }
}

#[test]
fn level_skips_the_dumps_between_when_it_was_made_against_an_older_one() {
    let (volume, luns) = source(1);
    let mut rng = Rng::new(9);
    scribble(&luns, &mut rng, 100);
    let zero = volume.create_snapshot("zero").expect("a snapshot").id;
    let full = dump(&volume, 1, None, zero, 1, Compression::None);
    scribble(&luns, &mut rng, 100);
    let one = volume.create_snapshot("one").expect("a snapshot").id;
    let first = dump(&volume, 2, Some(zero), one, 1, Compression::None);
    volume.delete_snapshots(&[one]).expect("deleted");
    scribble(&luns, &mut rng, 100);
    let two = volume.create_snapshot("two").expect("a snapshot").id;
    let second = dump(&volume, 3, Some(zero), two, 1, Compression::None);
    let expected = shown(&volume);
    for files in [[full.clone(), second.clone()].concat(), [full, first, second].concat()] {
        let (volume, _) = restored(&files, false, false).expect("restored");
        assert_eq!(shown(&volume), expected);
        assert!(is_sound(&volume));
    }
}

/// A dump of a few blocks: small enough to flip each of its bytes.
fn small() -> (Shown, Vec<u8>) {
    let (volume, luns) = source(1);
    scribble(&luns, &mut Rng::new(5), 3);
    let target = volume.create_snapshot("one").expect("a snapshot").id;
    let file = dump(&volume, 1, None, target, 1, Compression::Zstd).remove(0);
    (shown(&volume), file)
}

#[test]
fn every_flipped_byte_is_found_or_harmless() {
    let (expected, file) = small();
    let whole = restored(std::slice::from_ref(&file), false, false).expect("restored").1;
    assert_eq!(whole.lost, []);
    let (mut harmless, mut refused) = (0, 0);
    for at in 0..file.len() {
        let mut bytes = file.clone();
        bytes[at] ^= 1 << (at % 8);
        let reader = PartReader::open_file("f", &bytes_of(&bytes));
        let mut reader = reader.expect("one of the two heads is whole");
        let mut outcome = Ok(());
        loop {
            match reader.extents() {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        assert!(!reader.lost().is_empty(), "byte {at} was flipped, and nobody says so");
        assert!(outcome.is_ok(), "byte {at}: nothing was cut off: {outcome:?}");
        // Restoring takes longer, and each record has several of these.
        if at % 7 != 0 {
            continue;
        }
        match restored(std::slice::from_ref(&bytes), false, false) {
            Ok((volume, _)) => {
                harmless += 1;
                assert_eq!(shown(&volume), expected, "byte {at}");
                assert!(is_sound(&volume));
            }
            Err(DumpError::Damaged { lost, .. }) => {
                refused += 1;
                assert!(!lost.spare);
                // The rest is restored, and no wrong block is served.
                let (device, restored) =
                    restored_to(&[bytes], true, false).expect("restored as far as it goes");
                assert!(restored.lost.iter().any(|(_, lost)| !lost.spare));
                // With its only record everything is gone, and a volume without its trees takes no
                // changes.
                let options = OpenOptions { cache_bytes: 1 << 20, clock: clock() };
                let volume = Volume::open(device, options).expect("what there is can be looked at");
                let latched = volume.status().latched;
                assert!(matches!(latched, Some(VolumeError::InodesLost(_))), "byte {at}: {latched:?}");
                assert!(volume.image(None).expect("there is one").inodes().is_err());
            }
            Err(other) => panic!("byte {at}: {other}"),
        }
    }
    assert!(harmless > 100 && refused > 100, "{harmless} harmless, {refused} refused");
}

#[test]
fn flipped_bit_costs_one_record_and_no_block_of_another() {
    let (volume, luns) = source(1);
    let mut rng = Rng::new(6);
    scribble(&luns, &mut rng, 2000);
    let target = volume.create_snapshot("one").expect("a snapshot").id;
    let file = dump(&volume, 1, None, target, 1, Compression::None).remove(0);
    let count = |bytes: &[u8]| {
        let mut reader = PartReader::open_file("f", &bytes_of(bytes)).expect("a head");
        let mut records = 0;
        while reader.extents().expect("whole").is_some() {
            records += 1;
        }
        (records, reader.blocks(), reader.lost().to_vec())
    };
    let (records, blocks, lost) = count(&file);
    assert!(records >= 3 && lost.is_empty());
    for _ in 0..60 {
        let at = rng.below(file.len() as u64) as usize;
        let mut bytes = file.clone();
        bytes[at] ^= 1 << rng.below(8);
        let (left, left_blocks, lost) = count(&bytes);
        assert!(left >= records - 1 && left_blocks + 256 >= blocks, "byte {at}: {left} of {records}");
        assert_eq!(lost.len(), 1, "byte {at}: {lost:?}");
        let spot = &lost[0];
        assert!((spot.offset..spot.offset + spot.length).contains(&(at as u64)), "byte {at}: {spot}");
    }
}

#[test]
fn mounted_dump_serves_what_is_whole_and_refuses_what_is_not() {
    let (expected, dumps) = life(7, 2, Compression::Zstd);
    let files = dumps.concat();
    let mut rng = Rng::new(7);
    let mut refused = 0;
    for _ in 0..12 {
        let mut files = files.clone();
        let file = rng.below(files.len() as u64) as usize;
        let at = rng.below(files[file].len() as u64) as usize;
        files[file][at] ^= 1 << rng.below(8);
        let mounted = match opened(&files, false, false) {
            Ok(mounted) => mounted,
            Err(error) => panic!("one flipped bit keeps the others from being read: {error}"),
        };
        let luns = Luns::new(mounted.volume.clone());
        for snapshot in mounted.volume.snapshots() {
            let image = mounted.volume.image(Some(snapshot.id)).expect("an image");
            let Ok(device) = luns.open_in(&image, "a") else { continue };
            for lba in 0..LUN_BLOCKS {
                let own = &expected[&snapshot.name][(lba * 4096) as usize..((lba + 1) * 4096) as usize];
                match device.read(lba * 4096, 4096) {
                    Ok(data) => assert_eq!(data.to_vec(), own),
                    Err(_) => refused += 1,
                }
            }
        }
    }
    assert!(refused > 0, "some of the flips hit blocks of the LUN");
}

#[test]
fn part_that_was_cut_anywhere_is_never_taken_for_a_whole_one() {
    let (shown_before, file) = small();
    for (length, room) in (0..file.len()).flat_map(|length| [(length, 0), (length, 9000)]) {
        // A killed writer leaves the room that it had reserved for the next records.
        let cut = [&file[..length], &vec![0; room]].concat();
        // Only the second copy of the head follows the trailer; for a trailer whose rest is zeroes
        // the head suffices to know that all records are present.
        let trailer = if room > 0 { StreamTrailer::SIZE } else { 0 };
        let ends = length + trailer + 384 >= file.len();
        let index = PartIndex::open("f", bytes_of(&cut));
        assert!(index.is_err() || index.is_ok_and(|index| index.is_cut()) || ends);
        if length % 11 != 0 && length + 460 < file.len() {
            continue;
        }
        match restored(std::slice::from_ref(&cut), false, false) {
            Err(DumpError::Cut { .. } | DumpError::Head { .. }) => {}
            // The rest of the interrupted record is zeroes.
            Err(DumpError::Damaged { .. }) if room > 0 => {}
            Ok((volume, restored)) => {
                assert!(ends && !restored.lost.is_empty(), "cut at {length}");
                assert!(shown(&volume) == shown_before, "cut at {length}");
            }
            Err(other) => panic!("cut at {length}: {other}"),
        }
        match opened(&[cut], false, false) {
            Err(DumpError::Cut { .. } | DumpError::Head { .. }) => {}
            Ok(_) => assert!(ends, "cut at {length}"),
            Err(other) => panic!("cut at {length}: {other}"),
        }
    }
    // All of it is present, and the reserved room was not cut off yet.
    let (volume, restored) = restored(&[[&file[..], &[0; 9000]].concat()], false, false).expect("restored");
    assert!(shown(&volume) == shown_before && restored.lost.iter().all(|(_, lost)| lost.spare));
}

#[test]
fn dump_inside_of_a_dump_is_not_taken_for_records_of_the_outer_one() {
    let (_, inner) = small();
    let (volume, luns) = source(1);
    let device = luns.open("a").expect("the LUN");
    for copy in 0..40 {
        device.write_from(copy * 40_960, &inner[..inner.len().min(40_000)]).expect("written");
    }
    let target = volume.create_snapshot("one").expect("a snapshot").id;
    let file = dump(&volume, 2, None, target, 1, Compression::None).remove(0);
    // The head of the first record with blocks is gone: the next one must be searched.
    let mut bytes = file.clone();
    let at = 384 + 48 + 336;
    bytes[at + 3] ^= 0xff;
    let mut reader = PartReader::open_file("f", &bytes_of(&bytes)).expect("a head");
    let mut blocks = 0;
    while let Some(runs) = reader.extents().expect("not cut") {
        blocks += runs.iter().map(|(_, blocks)| blocks.len()).sum::<usize>();
    }
    assert_eq!(blocks as u64, reader.blocks());
    assert_eq!(reader.lost().len(), 1);
    let index = PartIndex::open("f", bytes_of(&bytes)).expect("a head");
    assert!(!index.is_whole() && !index.is_cut());
    let own: u64 = index.entries.iter().map(|entry| u64::from(entry.blocks)).sum();
    assert_eq!(own, reader.blocks());
}

#[test]
fn files_that_do_not_belong_together_are_refused_by_name() {
    let (_, dumps) = life(8, 2, Compression::None);
    let refuse = |files: Vec<&Vec<u8>>| {
        let files: Vec<Vec<u8>> = files.into_iter().cloned().collect();
        restored(&files, false, false).map(drop).expect_err("refused")
    };
    let [zero, one, two, _] = &dumps[..] else { unreachable!("four dumps") };
    assert!(matches!(refuse(vec![&zero[0]]), DumpError::MissingPart { part: 2, parts: 2, .. }));
    assert!(matches!(refuse(vec![&zero[1]]), DumpError::MissingPart { part: 1, parts: 2, .. }));
    assert!(matches!(refuse(vec![&zero[0], &zero[1], &zero[1]]), DumpError::DoublePart { .. }));
    assert!(matches!(refuse(vec![&one[0], &one[1]]), DumpError::MissingBase { .. }));
    let gap = refuse(vec![&zero[0], &zero[1], &two[0], &two[1]]);
    assert!(matches!(gap, DumpError::MissingBase { .. }), "{gap}");
    let (_, other) = small();
    let both = refuse(vec![&zero[0], &zero[1], &other]);
    assert!(matches!(both, DumpError::TwoFull { .. } | DumpError::Contradiction { .. }), "{both}");
    let (volume, luns) = source(2);
    scribble(&luns, &mut Rng::new(1), 3);
    let target = volume.create_snapshot("x").expect("a snapshot").id;
    let foreign = dump(&volume, 77, None, target, 1, Compression::None).remove(0);
    assert!(matches!(refuse(vec![&zero[0], &zero[1], &foreign]), DumpError::OtherVolume { .. }));
    assert!(matches!(refuse(vec![&vec![7; 9000]]), DumpError::Head { .. }));
    // The existing part of an increment alone can be opened, and only that.
    let alone = opened(one, true, false).expect("opened without its base");
    assert!(!is_sound(&alone.volume));
    assert!(opened(one, false, false).is_err());
}

/// Of a dump of level 0.
fn first_label() -> DumpLabel {
    DumpLabel { id: DumpId([1; 16]), level: DumpLevel::Level(0), name: "v".into(), created: Timestamp(1) }
}

#[test]
fn dump_that_is_given_up_says_so_and_is_not_restored() {
    let (volume, luns) = source(1);
    scribble(&luns, &mut Rng::new(1), 2000);
    let target = volume.create_snapshot("one").expect("a snapshot").id;
    let plan = Plan::against(&volume, None, target).expect("a plan");
    let label = first_label();
    let cancel = AtomicBool::new(false);
    let mut bytes = Vec::new();
    let mut records = 0;
    let mut stop = |_| {
        records += 1;
        cancel.store(records == 2, std::sync::atomic::Ordering::Relaxed);
    };
    let mut work = Work { cancel: &cancel, progress: &mut stop, threads: None };
    let outcome = Dump::new(&plan, label, 1).write_part(0, &mut bytes, Compression::None, &mut work);
    assert!(matches!(outcome, Err(StreamError::Cancelled)), "{outcome:?}");
    for accept in [false, true] {
        let error = restored(std::slice::from_ref(&bytes), accept, false).map(drop).expect_err("refused");
        assert!(matches!(error, DumpError::GivenUp { .. }), "{error}");
    }
    assert!(matches!(opened(&[bytes], false, false), Err(DumpError::Cut { .. })));
}

#[test]
fn base_must_be_there_and_older() {
    let (volume, luns) = source(1);
    scribble(&luns, &mut Rng::new(1), 10);
    let one = volume.create_snapshot("one").expect("a snapshot").id;
    let two = volume.create_snapshot("two").expect("a snapshot").id;
    for (base, target) in [(two, one), (one, one), (SnapshotId(77), two)] {
        let refused = Plan::against(&volume, Some(base), target).map(drop).expect_err("refused");
        assert!(matches!(refused, StreamError::BaseMissing { .. }), "{refused}");
    }
    volume.delete_snapshots(&[one]).expect("deleted");
    assert!(Plan::against(&volume, Some(one), two).is_err(), "blocks of a deleted one may be reused");
}

#[test]
fn structures_alone_are_checked_without_reading_data() {
    let (_, file) = small();
    let mounted = opened(&[file], false, false).expect("opened");
    let mut on = |_| std::ops::ControlFlow::Continue(());
    let report = mounted.volume.check_to(CheckDepth::Structures, &mut on).expect("checked");
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

#[test]
fn restore_that_is_cut_at_any_device_operation_leaves_no_volume_or_a_whole_one() {
    let (expected, dumps) = life(10, 2, Compression::None);
    let files = dumps.concat();
    let run = |device: &FaultDevice| {
        let dumps = arrange(readers(&files).expect("heads"), false).expect("arranged");
        on_threads(false, |work| restore(dumps, device, BLOCKS, false, Timestamp(5), work))
    };
    let bytes = Volume::device_bytes(BLOCKS, Role::Normal);
    let uncut = FaultDevice::new(bytes);
    run(&uncut).expect("restored");
    let operations = uncut.operations();
    let mut rng = Rng::new(10);
    let (mut none, mut whole) = (0, 0);
    for at in 0..=operations {
        // The first writes are all alike; the end, where the volume is created, is tested closely.
        if at + 12 < operations && at % 5 != 0 {
            continue;
        }
        for fate in Fate::ALL {
            let device = FaultDevice::new(bytes);
            device.cut_after(at);
            let outcome = run(&device);
            let again = Arc::new(device.power_cycle_as(fate, &mut rng));
            match Volume::open(again.clone(), OpenOptions { cache_bytes: 1 << 20, clock: clock() }) {
                Ok(volume) => {
                    whole += 1;
                    assert_eq!(shown(&volume), expected, "cut at {at} of {operations}, {fate:?}");
                    assert!(is_sound(&volume));
                }
                Err(error) => {
                    none += 1;
                    assert!(outcome.is_err(), "what was restored is there: {error}");
                    assert!(matches!(error, cairn_volume::VolumeError::NotAVolume { .. }), "{error}");
                    // It starts over on the same device.
                    if at % 7 == 0 {
                        run(&again).expect("restored");
                        let options = OpenOptions { cache_bytes: 1 << 20, clock: clock() };
                        let volume = Volume::open(again, options).expect("opened");
                        assert_eq!(shown(&volume), expected);
                    }
                }
            }
        }
    }
    assert!(none > 20 && whole > 4, "{none} without a volume, {whole} whole");
}
