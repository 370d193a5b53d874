use std::path::Path;

use cairn_volume::{Role, Volume};

use std::sync::atomic::AtomicBool;

use cairn_base::{ByteSize, ManualClock, Rng, Timestamp, VolumeId};
use cairn_device::{BlockMut, MemoryDevice, Operation, Segments};
use cairn_files::Luns;
use cairn_stream::{DumpLabel, Plan};
use cairn_volume::{FormatOptions, OpenOptions};

use super::*;
use crate::groups::Groups;
use crate::volumes::{NewVolume, Volumes};

const BLOCKS: u64 = 8192;
const WRITTEN: u64 = 3000;

fn volume(clock: &Arc<ManualClock>) -> Arc<Volume> {
    let device = Arc::new(MemoryDevice::new(Volume::device_bytes(BLOCKS, Role::Normal)));
    let options = FormatOptions { id: VolumeId([1; 16]), blocks: BLOCKS, role: Role::Normal };
    Volume::format(&*device, &options, &**clock).expect("formatted");
    let volume = Volume::open(device, OpenOptions { cache_bytes: 1 << 20, clock: clock.clone() });
    let volume = volume.expect("opened");
    let luns = Luns::new(volume.clone());
    luns.create("a", WRITTEN * 4096).expect("a LUN");
    let (disk, mut rng) = (luns.open("a").expect("the LUN"), Rng::new(5));
    for at in 0..WRITTEN {
        let mut block = BlockMut::zeroed();
        rng.fill(&mut block[..]);
        let mut batch = [Operation::write(at * 4096, Segments::from(block.freeze()))];
        disk.run(&mut batch);
    }
    volume
}

fn unfinished() -> Unfinished {
    let part = Part { file: "f".to_owned(), identity: String::new(), marks: Vec::new() };
    let target = KnownSnapshot { snapshot: 1, name: "one".to_owned(), root: String::new() };
    Unfinished {
        id: "07".repeat(16),
        level: Some(0),
        base: None,
        target,
        own: true,
        compress: false,
        begun_ms: 0,
        parts: vec![part],
        written: None,
        bucket: None,
    }
}

fn marks(path: &Path) -> Vec<u64> {
    let document: Option<ImageDumpsDocument> = state::load(path).expect("it can be read");
    let unfinished = document.and_then(|document| document.unfinished).expect("it is there");
    unfinished.parts[0].marks.iter().map(|mark| mark.bytes).collect()
}

#[test]
fn what_is_durable_of_a_part_is_written_down_as_time_goes_by_and_the_part_goes_on_behind_it() {
    let clock = Arc::new(ManualClock::new(Timestamp(1)));
    let volume = volume(&clock);
    let target = volume.create_snapshot("one").expect("a snapshot").id;
    let plan = Plan::against(&volume, None, target).expect("a plan");
    let level = DumpLevel::Level(0);
    let label = DumpLabel { id: DumpId([7; 16]), level, name: "v".to_owned(), created: Timestamp(3) };
    let dump = Dump::new(&plan, label, 1);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("dumps.json");
    let file = File::options().create_new(true).read(true).write(true).open(folder.path().join("f"));
    let file = file.expect("a file");
    let document = ImageDumpsDocument { unfinished: Some(unfinished()), ..ImageDumpsDocument::default() };
    let ledger = Ledger::new(path.clone(), clock.clone(), document);

    // A record every now and then; it is cut once there are marks.
    let cancel = AtomicBool::new(false);
    let mut progress = |_| {
        clock.advance(MARK_EVERY);
        std::thread::sleep(Duration::from_millis(20));
        let noted = if path.exists() { marks(&path) } else { Vec::new() };
        let there = file.metadata().expect("its length").len();
        assert!(
            noted.iter().all(|mark| *mark <= there),
            "{noted:?} of {there}: no mark of what is on its way"
        );
        if noted.len() == MARKS {
            cancel.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    };
    let mut work = Work { cancel: &cancel, progress: &mut progress, threads: None };
    let cut = ledger.write(&dump, (0, &file), &Begun::default(), Compression::None, &mut work);
    assert!(cut.is_err(), "it was cut");
    let noted = marks(&path);
    let length = file.metadata().expect("its length").len();
    assert!(noted.len() == MARKS && noted[0] < noted[1] && noted[1] <= length, "{noted:?} of {length}");

    // The durable bytes exist; any bytes may follow.
    file.set_len(noted[1]).expect("cut");
    let begun = ledger.look(&dump, 0, &file, &|| false).expect("it is that part");
    assert_eq!(begun.at().bytes, noted[1], "nothing before the mark is written again");
    let (cancel, mut progress) = (AtomicBool::new(false), |_| ());
    let mut work = Work { cancel: &cancel, progress: &mut progress, threads: None };
    let written = ledger.write(&dump, (0, &file), &begun, Compression::None, &mut work).expect("written");
    let mut whole = Vec::new();
    let produced = dump.write_part(0, &mut whole, Compression::None, &mut work).expect("written");
    assert_eq!(produced.bytes, written);
    assert!(std::fs::read(folder.path().join("f")).expect("the file") == whole, "as if it had not been cut");
}

#[test]
fn dump_counts_though_the_snapshot_of_the_one_before_cannot_go() {
    let folder = tempfile::tempdir().expect("a folder");
    let clock = Arc::new(ManualClock::new(Timestamp(1)));
    let own = folder.path().join("volumes");
    std::fs::create_dir(&own).expect("a folder");
    let volumes = Arc::new(Volumes::open(own, ByteSize(16 << 20), clock.clone(), None).expect("volumes"));
    let groups = Arc::new(Groups::open(folder.path(), volumes.clone(), clock).expect("groups"));
    let (role, blocks) = (Role::Normal, Some(4096));
    let new = NewVolume {
        name: "vol0",
        id: VolumeId([7; 16]),
        role,
        blocks,
        devices: &[],
        log_device: None,
        history: None,
        beside: None,
    };
    let open = volumes.create(&new).expect("a volume");
    let making = Making { groups, open: &open, path: folder.path().join("dumps.json") };
    let made = |name: &str| {
        let snapshot = open.volume.create_snapshot(name).expect("a snapshot").id;
        open.volume.hold_snapshot(snapshot, true).expect("it is held");
        snapshot
    };
    let before = made("image.0.00000001");
    // One way in which it can't; no command makes a clone of such a snapshot.
    let clone = open.volume.keep_snapshot(before).expect("a clone of it");
    let now = made("image.0.00000002");
    let target = KnownSnapshot::of(&open, now).expect("a snapshot");
    let unfinished = Unfinished { target, written: Some(1), ..unfinished() };
    let id = unfinished.id.clone();
    making
        .save(&ImageDumpsDocument { dumps: Vec::new(), unfinished: Some(unfinished) })
        .expect("it is noted");
    making.confirm(&id).expect("it counts");
    let records = making.records().expect("what counts");
    assert!(records.len() == 1 && making.snapshot_of(&records[0]).is_some(), "the next level stands on it");
    assert!(open.volume.snapshot(before).is_some_and(|found| found.held), "it is known as its own still");
    drop(clone);
    making.let_go(&making.document().expect("a document")).expect("nobody needs it");
    assert!(open.volume.snapshot(before).is_none() && open.volume.snapshot(now).is_some());
    // The snapshot of a dump that does not exist belongs to no other dump, even if it cannot be
    // deleted.
    let failed = made("image.0.00000003");
    let clone = open.volume.keep_snapshot(failed).expect("a clone of it");
    making.take_back(failed).expect_err("it can't go");
    assert!(open.volume.snapshot(failed).is_some_and(|found| found.held), "it is known as a dump's still");
    drop(clone);
    making.let_go(&making.document().expect("a document")).expect("nobody needs it");
    assert!(open.volume.snapshot(failed).is_none());
    volumes.end();
}
