//! A short life of a source and its destination, always the same, in which everything that a device
//! can hold comes about.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use cairn_base::{FileId, Lba, LogId, ManualClock, Rng, SnapshotId, Timestamp, VolumeId};
use cairn_device::{Block, BlockMut, Device, MemoryDevice};
use cairn_files::Luns;
use cairn_stream::{Compression, Have, Plan, Work, produce};
use cairn_volume::{FormatOptions, NewLog, OpenOptions, Role, Volume};

use crate::shown::shown;
use crate::take;

/// Block space: the smallest possible, and half again after growing.
pub const BLOCKS: u64 = 1536;
const BLOCKS_AT_FIRST: u64 = 1024;
pub const ID: VolumeId = VolumeId(*b"a golden volume.");
const RELATIONSHIP: u64 = 0x5eed;
const LUN_BLOCKS: u64 = 200;

pub fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::new(Timestamp(1_790_000_000_000_000_000)))
}

pub fn open(device: &Arc<MemoryDevice>) -> Arc<Volume> {
    Volume::open(device.clone(), OpenOptions { cache_bytes: 1 << 20, clock: clock() })
        .expect("the volume opens")
}

/// A device that has room for `device_blocks`, and a volume of `blocks` on it.
pub fn made(blocks: u64, device_blocks: u64, role: Role) -> (Arc<MemoryDevice>, Arc<Volume>) {
    let device = Arc::new(MemoryDevice::new(Volume::device_bytes(device_blocks, role)));
    Volume::format(&*device, &FormatOptions { id: ID, blocks, role }, &*clock()).expect("it is formatted");
    let volume = open(&device);
    (device, volume)
}

/// Blocks with a few random bytes, so that they pack well and no two are alike.
pub fn write(volume: &Arc<Volume>, file: FileId, first: u64, count: u64, rng: &mut Rng) {
    let blocks: Vec<(Lba, Block)> = (first..first + count)
        .map(|lba| {
            let mut block = BlockMut::zeroed();
            rng.fill(&mut block[..8]);
            (Lba(lba), block.freeze())
        })
        .collect();
    volume.write(file, &mut blocks.into_iter()).expect("there is room");
}

/// Ordinary work on whatever volume: writes, holes, flushes, a snapshot.
pub fn work_on(volume: &Arc<Volume>) {
    let luns = Luns::new(volume.clone());
    let lun = luns.list().expect("names can be read").into_iter().next().expect("there is a LUN");
    let mut rng = Rng::new(99);
    write(volume, lun.file, 3, 40, &mut rng);
    volume.punch(lun.file, Lba(10), 5).expect("it is punched");
    volume.flush().expect("it flushes");
    volume.create_snapshot("later").expect("a snapshot");
    luns.create("another", 1 << 20).expect("a LUN");
}

/// The results of a life.
pub struct Made {
    /// Names and bytes.
    pub files: Vec<(&'static str, Vec<u8>)>,
    /// The content of each file, by its heading.
    pub shown: Vec<(&'static str, String)>,
}

fn bytes(device: &MemoryDevice) -> Vec<u8> {
    let mut bytes = vec![0; device.geometry().length as usize];
    device.read_into(0, &mut bytes).expect("memory can be read");
    bytes
}

fn stream(source: &Arc<Volume>, have: &[Have], target: SnapshotId, compression: Compression) -> Vec<u8> {
    let plan = Plan::new(source, have, target).expect("a plan");
    let cancel = AtomicBool::new(false);
    let mut bytes = Vec::new();
    let mut work = Work { cancel: &cancel, progress: &mut |_| {}, threads: None };
    produce(&plan, &mut bytes, compression, &mut work).expect("a stream");
    bytes
}

/// Opens the volume on `device` with its intent log on `log`.
pub fn open_with_log(device: &Arc<MemoryDevice>, log: &Arc<MemoryDevice>) -> Arc<Volume> {
    let options = OpenOptions { cache_bytes: 1 << 20, clock: clock() };
    let log: Arc<dyn Device> = log.clone();
    Volume::open_with_log(device.clone(), &[log], options).expect("the volume opens with its log")
}

/// The work of a shorter life; in the end the log has flushes that no consistency point has.
fn work_shortly(volume: &Arc<Volume>, rng: &mut Rng) {
    let luns = Luns::new(volume.clone());
    luns.create("db", LUN_BLOCKS * 4096).expect("a LUN");
    let db = luns.find("db").expect("it exists").file;
    write(volume, db, 0, 60, rng);
    volume.flush().expect("it flushes");
    let held = volume.create_snapshot("held").expect("a snapshot");
    volume.hold_snapshot(held.id, true).expect("it is held");
    for number in 0..3 {
        write(volume, db, 20 * number, 4, rng);
        volume.punch(db, Lba(10 * number + 5), 3).expect("it is punched");
        volume.flush().expect("it flushes");
    }
}

/// A shorter life, of a volume with its intent log on a device of its own; in the end the log has
/// flushes that no consistency point has.
pub fn lived_with_log() -> Made {
    let mut rng = Rng::new(2);
    let device = Arc::new(MemoryDevice::new(Volume::device_bytes(BLOCKS_AT_FIRST, Role::Normal)));
    let log = Arc::new(MemoryDevice::new(Volume::LOG_DEVICE_BYTES_MIN));
    let options = FormatOptions { id: ID, blocks: BLOCKS_AT_FIRST, role: Role::Normal };
    let new = NewLog { device: &*log, id: LogId(*b"the golden log.!") };
    Volume::format_with_log(&*device, &new, &options, &*clock()).expect("it is formatted");
    let volume = open_with_log(&device, &log);
    work_shortly(&volume, &mut rng);
    let shown = shown(&volume);
    Made {
        files: vec![("volume.img", bytes(&device)), ("log.img", bytes(&log))],
        shown: vec![("volume", shown)],
    }
}

/// A shorter life, of a volume that was a mirror and has grown more often than its superblock had
/// segments once; in the end the log has flushes that no consistency point has.
pub fn lived_in_pieces() -> Made {
    let mut rng = Rng::new(3);
    let (device, volume) = made(BLOCKS_AT_FIRST, BLOCKS_AT_FIRST + 1200, Role::Destination);
    for growth in 1..=20 {
        volume.grow(BLOCKS_AT_FIRST + growth * 50).expect("the device has room");
    }
    volume.failover().expect("it fails over");
    work_shortly(&volume, &mut rng);
    let shown = shown(&volume);
    Made { files: vec![("volume.img", bytes(&device))], shown: vec![("volume", shown)] }
}

/// Lives it.
pub fn lived() -> Made {
    let mut rng = Rng::new(1);
    let (device, volume) = made(BLOCKS_AT_FIRST, BLOCKS, Role::Normal);
    let luns = Luns::new(volume.clone());
    for name in ["db", "web:1", "gone", "shrunk"] {
        luns.create(name, LUN_BLOCKS * 4096).expect("a LUN");
    }
    let file = |name: &str| luns.find(name).expect("it exists").file;
    let (db, web) = (file("db"), file("web:1"));
    write(&volume, db, 0, 60, &mut rng);
    write(&volume, web, 130, 30, &mut rng);
    write(&volume, file("shrunk"), 0, 20, &mut rng);
    let first = volume.create_snapshot("first").expect("a snapshot");
    volume.grow(BLOCKS).expect("it grows");
    write(&volume, db, 50, 30, &mut rng);
    volume.punch(db, Lba(5), 20).expect("it is punched");
    let held = volume.create_snapshot("held").expect("a snapshot");
    volume.hold_snapshot(held.id, true).expect("it is held");
    luns.delete("gone").expect("it is deleted");
    luns.resize("shrunk", 10 * 4096 + 512, true).expect("it shrinks");
    volume.create_snapshot_since("since.1", RELATIONSHIP).expect("a snapshot and its since map");
    write(&volume, web, 0, 25, &mut rng);
    volume.create_snapshot_since("since.2", RELATIONSHIP).expect("another, which is in flight");
    volume.rollback(first.id).expect("it rolls back");
    write(&volume, db, 100, 10, &mut rng);
    let target = volume.create_snapshot("baseline").expect("a snapshot");

    let (into_device, into) = made(BLOCKS, BLOCKS, Role::Destination);
    let baseline = stream(&volume, &[], target.id, Compression::Zstd);
    take(&baseline, &into).expect("the baseline is taken");
    let baseline_shown = shown(&into);

    // The source frees blocks that the destination still lists and reuses them, until the two meet.
    let (mut base, mut round) = (target, 0);
    let mut first_update = None;
    while into.status().redirected == 0 {
        round += 1;
        assert!(round < 100, "sooner or later a block is used again");
        write(&volume, db, rng.below(100), 90, &mut rng);
        let between = volume.create_snapshot(&format!("between.{round}")).expect("a snapshot");
        volume.delete_snapshots(&[base.id]).expect("it is deleted");
        write(&volume, web, rng.below(100), 90, &mut rng);
        let newest = volume.create_snapshot(&format!("update.{round}")).expect("a snapshot");
        let update = stream(&volume, &Have::of(&into), newest.id, Compression::None);
        take(&update, &into).expect("the update is taken");
        volume.delete_snapshots(&[between.id]).expect("it is deleted");
        first_update.get_or_insert_with(|| (update, shown(&into)));
        base = newest;
    }
    let (update, update_shown) = first_update.expect("there was an update");
    let destination = bytes(&into_device);
    let destination_shown = shown(&into);

    // The log's content when the power fails: writes and a hole, several flushes, no consistency
    // point.
    for number in 0..3 {
        write(&volume, db, 20 * number, 4, &mut rng);
        volume.punch(web, Lba(10 * number), 3).expect("it is punched");
        volume.flush().expect("it flushes");
    }
    let volume_shown = shown(&volume);
    Made {
        files: vec![
            ("volume.img", bytes(&device)),
            ("destination.img", destination),
            ("baseline.stream", baseline),
            ("update.stream", update),
        ],
        shown: vec![
            ("volume", volume_shown),
            ("destination", destination_shown),
            ("baseline", baseline_shown),
            ("update", update_shown),
        ],
    }
}
