//! A volume's life in small steps. Long lives with faults are the simulator's; structures have
//! tests of their own beside this file.

mod adopt;
mod arrivals;
mod change;
mod check;
mod claims;
mod clones;
mod damage;
mod descent;
mod extents;
mod flush;
mod fresh;
mod instant;
mod kept;
mod lag;
mod log;
mod log_device;
mod lost_inodes;
mod maps;
mod mend;
mod opened;
mod overlay;
mod redirects;
mod refusals;
mod regions;
mod release;
mod repair;
mod room;
mod scrub;
mod sides;
mod since;
mod slots;
mod small;
mod snapshots;
mod space;
mod store;
mod structures;
mod table;
mod threads;
mod trees;

use std::sync::Arc;

use cairn_base::{FileId, Lba, ManualClock, Timestamp, VolumeId};
use cairn_device::{Block, Device, FaultDevice, MemoryDevice};
use cairn_format::{Attributes, FileKind, Inode, TreeRef};

use crate::*;

/// A volume of `blocks` on a memory device that has room to grow.
fn fresh(blocks: u64) -> (Arc<MemoryDevice>, Arc<Volume>) {
    let device = Arc::new(MemoryDevice::new(Volume::device_bytes(blocks, Role::Normal) * 2));
    format(&*device, blocks);
    let volume = open(&device);
    (device, volume)
}

fn format(device: &dyn Device, blocks: u64) {
    let options = FormatOptions { id: VolumeId([7; 16]), blocks, role: Role::Normal };
    Volume::format(device, &options, &ManualClock::new(Timestamp(1))).expect("an empty device is formatted");
}

fn open<D: Device + 'static>(device: &Arc<D>) -> Arc<Volume> {
    let clock = Arc::new(ManualClock::new(Timestamp(1)));
    Volume::open(device.clone(), OpenOptions { cache_bytes: 1 << 20, clock }).expect("the volume opens")
}

/// A file of `blocks`, durable.
fn file(volume: &Arc<Volume>, blocks: u64) -> FileId {
    let file = volume.compound().create(FileKind::Lun, blocks * 4096).expect("there is room for a file");
    volume.consistency_point().expect("it commits");
    file
}

fn block(number: u64) -> Block {
    let mut bytes = cairn_device::BlockMut::zeroed();
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes.freeze()
}

/// A file of the tree of names.
fn node(id: FileId, blocks: u64, removed: bool) -> Inode {
    Inode {
        kind: FileKind::Node,
        removed,
        id,
        length_bytes: blocks * 4096,
        created: Timestamp(5),
        relationship: 0,
        tree: TreeRef::empty(blocks),
        attributes: Attributes { mode: 0o100_644, links: 1, ..Attributes::default() },
    }
}

/// Writes blocks whose content is `salt` plus their number.
fn write(volume: &Arc<Volume>, file: FileId, first: u64, count: u64, salt: u64) -> Result<(), VolumeError> {
    let mut blocks =
        (first..first + count).map(|lba| (Lba(lba), block(salt + lba))).collect::<Vec<_>>().into_iter();
    volume.write(file, &mut blocks)
}

fn numbers(reads: [BlockRead; 1]) -> Vec<u64> {
    let [read] = reads;
    let bytes = read.outcome.expect("a read that may wait has an outcome").expect("it succeeds").to_vec();
    bytes
        .chunks_exact(4096)
        .map(|block| u64::from_le_bytes(block[..8].try_into().expect("eight bytes")))
        .collect()
}

fn read(volume: &Arc<Volume>, file: FileId, first: u64, count: u64) -> Vec<u64> {
    let mut reads = [BlockRead::new(Lba(first), count)];
    volume.read(file, &mut reads, true);
    numbers(reads)
}

fn read_image(image: &Image, file: FileId, first: u64, count: u64) -> Vec<u64> {
    let mut reads = [BlockRead::new(Lba(first), count)];
    image.read(file, &mut reads, true);
    numbers(reads)
}

/// Allocates free blocks of a volume until `free` are left.
fn take_all_but(volume: &Arc<Volume>, free: u64) {
    let mut state = volume.state.lock();
    let blocks = state.used.blocks();
    for vbn in (1..blocks).map(cairn_base::Vbn) {
        if state.used.free() <= free {
            break;
        }
        state.used.set(vbn);
    }
}

fn assert_sound(volume: &Arc<Volume>) {
    let report = volume.check(&mut |_| {}).expect("checking is possible");
    assert_eq!(report.findings, []);
}

#[test]
fn volume_lives_through_a_day() {
    let (device, volume) = fresh(4096);
    let lun = file(&volume, 1000);
    let empty = volume.status().used;
    write(&volume, lun, 10, 100, 1000).expect("there is room");
    volume.flush().expect("it flushes");
    assert_eq!(read(&volume, lun, 9, 3), [0, 1010, 1011]);
    volume.consistency_point().expect("it commits");
    let snapshot = volume.create_snapshot("noon").expect("it is made");
    write(&volume, lun, 10, 50, 5000).expect("there is room");
    let image = volume.image(Some(snapshot.id)).expect("the snapshot exists");
    assert_eq!(read_image(&image, lun, 10, 1), [1010]);
    assert_eq!(read(&volume, lun, 10, 1), [5010]);
    volume.flush().expect("it flushes");
    drop((image, volume));

    // No clean close: the log has the flushed data.
    let volume = open(&device);
    assert_eq!(read(&volume, lun, 59, 2), [5059, 1060]);
    assert_sound(&volume);
    assert_eq!(
        volume.delete_snapshots(&[snapshot.id]).expect("it is deleted"),
        50 + 6,
        "data, and two nodes or blocks each of file, inode file and map"
    );
    volume.punch(lun, Lba(0), 1000).expect("it is punched");
    volume.consistency_point().expect("it commits");
    assert_sound(&volume);
    assert_eq!(volume.status().used, empty, "everything that was given up can be used again");
    volume.close().expect("it closes");
    assert_eq!(open(&device).status().used, empty);
}

#[test]
fn rollback_brings_a_snapshot_back_and_keeps_what_was_there() {
    let (_device, volume) = fresh(4096);
    let lun = file(&volume, 100);
    write(&volume, lun, 0, 10, 100).expect("there is room");
    let first = volume.create_snapshot("first").expect("it is made");
    write(&volume, lun, 0, 10, 200).expect("there is room");
    let kept = volume.rollback(first.id).expect("it rolls back");
    assert_eq!(read(&volume, lun, 0, 2), [100, 101]);
    volume.rollback(kept.id).expect("a rollback is undone by another");
    assert_eq!(read(&volume, lun, 0, 2), [200, 201]);
    assert_sound(&volume);
}

#[test]
fn second_format_of_a_volume_is_refused() {
    let (device, volume) = fresh(1024);
    drop(volume);
    let options = FormatOptions { id: VolumeId([8; 16]), blocks: 1024, role: Role::Normal };
    let again = Volume::format(&*device, &options, &ManualClock::default());
    assert!(matches!(again, Err(VolumeError::NotEmpty)), "{again:?}");
}

#[test]
fn failed_write_of_the_superblock_makes_the_volume_read_only() {
    let device = Arc::new(FaultDevice::new(Volume::device_bytes(1024, Role::Normal)));
    format(&*device, 1024);
    let volume = open(&device);
    let lun = file(&volume, 100);
    write(&volume, lun, 0, 10, 100).expect("there is room");
    volume.consistency_point().expect("it commits");
    // Nothing is frozen by this one, and its failure counts all the same.
    device.fail_next_operation(cairn_device::DeviceError::OutOfService);
    assert!(volume.create_snapshot("lost").is_err());
    let refused = write(&volume, lun, 0, 1, 1);
    assert!(matches!(refused, Err(VolumeError::Latched(_))), "{refused:?}");
    assert_eq!(read(&volume, lun, 0, 1), [100], "reads are still served");
}

#[test]
fn reason_that_is_told_for_a_volume_that_stopped_is_the_first() {
    let (_device, volume) = fresh(1024);
    volume.state.lock().latch(&VolumeError::NoSpace);
    volume.state.lock().latch(&VolumeError::Closed);
    let told = volume.consistency_point();
    assert!(
        matches!(&told, Err(VolumeError::Latched(why)) if matches!(**why, VolumeError::NoSpace)),
        "{told:?}"
    );
}

#[test]
fn flush_that_fails_is_never_repaired_by_the_next_one() {
    let device = Arc::new(FaultDevice::new(Volume::device_bytes(1024, Role::Normal)));
    format(&*device, 1024);
    let volume = open(&device);
    let lun = file(&volume, 100);
    // A hole has no data of its own: only the log record fails.
    volume.punch(lun, Lba(5), 5).expect("it is punched");
    device.fail_next_operation(cairn_device::DeviceError::OutOfService);
    assert!(volume.flush().is_err());
    assert!(matches!(volume.flush(), Err(VolumeError::Latched(_))));
}

#[test]
fn blocks_that_could_not_be_written_are_read_from_memory_and_called_no_damage() {
    let device = Arc::new(FaultDevice::new(Volume::device_bytes(4096, Role::Normal)));
    format(&*device, 4096);
    let volume = open(&device);
    let lun = file(&volume, 1000);
    // More than the cache holds.
    write(&volume, lun, 0, 1000, 7).expect("there is room");
    device.fail_operations(0, u64::MAX, cairn_device::DeviceError::OutOfService);
    assert!(volume.flush().is_err());
    assert!(matches!(write(&volume, lun, 0, 1, 1), Err(VolumeError::Latched(_))));
    assert_eq!(read(&volume, lun, 0, 1000), (7..1007).collect::<Vec<u64>>());
    assert_eq!(volume.damaged(), []);
}

#[test]
fn short_writes_stay_in_memory_and_long_ones_push_nothing_out() {
    let (_device, volume) = fresh(4096);
    let lun = file(&volume, 2000);
    let is_in_memory = |lba: u64| {
        let mut reads = [BlockRead::new(Lba(lba), 1)];
        volume.read(lun, &mut reads, false);
        reads[0].outcome.is_some()
    };
    write(&volume, lun, 0, 15, 100).expect("there is room");
    volume.consistency_point().expect("it commits");
    // Twenty times the size of the data cache.
    for first in (100..1700).step_by(16) {
        write(&volume, lun, first, 16, 100).expect("there is room");
        assert!(is_in_memory(first), "until it is at its place");
    }
    volume.consistency_point().expect("it commits");
    assert!((0..15).all(is_in_memory), "what was written by a few blocks");
    assert!(!(100..1700).any(is_in_memory), "what came in long writes");
    assert_eq!(read(&volume, lun, 100, 1600), (200..1800).collect::<Vec<u64>>());
    assert_sound(&volume);
}

#[test]
fn write_past_the_end_of_a_file_is_an_error_and_nothing_of_it_is_taken() {
    let (device, volume) = fresh(1024);
    let lun = file(&volume, 100);
    let refused = |outcome: Result<(), VolumeError>| {
        assert!(matches!(outcome, Err(VolumeError::Refused(_))), "{outcome:?}");
    };
    refused(write(&volume, lun, 100, 1, 7));
    refused(write(&volume, lun, 95, 10, 7));
    let ready = volume.write_ready(lun, vec![(Lba(100), block(7))]);
    refused(ready.expect("nothing has to be read for it"));
    assert_eq!(read(&volume, lun, 95, 5), [0; 5], "not a part of it");
    write(&volume, lun, 99, 1, 7).expect("it is within");
    // A length that no consistency point has yet counts.
    volume.compound().resize(lun, 200 * 4096).expect("it grows");
    write(&volume, lun, 199, 1, 7).expect("it is within");
    volume.compound().resize(lun, 50 * 4096).expect("it shrinks");
    refused(write(&volume, lun, 50, 1, 7));
    volume.consistency_point().expect("it commits");
    refused(write(&volume, lun, 99, 1, 7));
    volume.close().expect("it closes");
    let volume = open(&device);
    refused(write(&volume, lun, 50, 1, 7));
    write(&volume, lun, 49, 1, 7).expect("it is within");
    let nothing = write(&volume, FileId(99), 0, 1, 7);
    assert!(matches!(nothing, Err(VolumeError::NoSuchFile(_))), "{nothing:?}");
    assert_sound(&volume);
}

#[test]
fn hole_that_may_not_wait_is_made_where_its_nodes_are_in_memory_and_else_not_at_all() {
    let (_device, volume) = fresh(4096);
    let long = crate::limits::PUNCH_BLOCKS;
    let lun = file(&volume, 2 * long);
    write(&volume, lun, 0, long, 100).expect("there is room");
    volume.consistency_point().expect("it commits");
    volume.store.forget();
    assert!(volume.punch_ready(lun, Lba(0), 10).is_none(), "its nodes have to be read");
    assert_eq!(read(&volume, lun, 0, 1), [100], "nothing was done");
    read(&volume, lun, 0, long);
    assert!(volume.punch_ready(lun, Lba(0), long + 1).is_none(), "who knows how long that takes");
    let made = volume.punch_ready(lun, Lba(0), long);
    made.expect("its nodes are in memory").expect("there is room");
    assert_eq!(read(&volume, lun, 0, long), vec![0; long as usize]);
    write(&volume, lun, 5, 1, 200).expect("there is room");
    volume.punch_ready(lun, Lba(5), 1).expect("its nodes are in memory").expect("there is room");
    volume.consistency_point().expect("it commits");
    assert_eq!(read(&volume, lun, 0, long), vec![0; long as usize]);
    assert_sound(&volume);
}
