//! Real threads on one volume: writers, flushers, a snapshotter and background work, bounded by
//! count.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use cairn_base::Rng;
use cairn_device::{DeviceError, Extent, Fate, Geometry, Operation, Request};
use cairn_format::{Attributes, FileKind, Inode, TreeRef};
use parking_lot::{Condvar, Mutex};

use super::*;

const LUN_BLOCKS: u64 = 512;
const WRITERS: u64 = 3;
const ROUNDS: u64 = 400;

/// A file of a tree of names that has no blocks yet.
fn node(id: FileId, length_bytes: u64) -> Inode {
    Inode {
        kind: FileKind::Node,
        removed: false,
        id,
        length_bytes,
        created: Timestamp(5),
        relationship: 0,
        tree: TreeRef::empty(1),
        attributes: Attributes { mode: 0o100_644, links: 1, ..Attributes::default() },
    }
}

#[test]
fn threads_do_not_lose_each_others_writes() {
    // More than all writers write in all rounds: however the threads are scheduled, and whatever a
    // reader that waits for its turn keeps from being reused, the volume is not full.
    let blocks = WRITERS * ROUNDS * 24 + 8192;
    // The device's power fails at the end: flushed writes are in the log or committed.
    let device = Arc::new(FaultDevice::new(Volume::device_bytes(blocks, Role::Normal)));
    format(&*device, blocks);
    let volume = open(&device);
    let luns: Vec<FileId> = (0..WRITERS).map(|_| file(&volume, LUN_BLOCKS)).collect();
    // The content of each block when the last flush that covers it began.
    let durable: Vec<Vec<AtomicU64>> =
        luns.iter().map(|_| (0..LUN_BLOCKS).map(|_| AtomicU64::new(0)).collect()).collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = luns
            .iter()
            .zip(&durable)
            .enumerate()
            .map(|(writer, (lun, durable))| {
                let volume = volume.clone();
                scope.spawn(move || {
                    let mut rng = Rng::new(writer as u64);
                    let mut current = vec![0; LUN_BLOCKS as usize];
                    for round in 1..=ROUNDS {
                        let count = 1 + rng.below(24);
                        let first = rng.below(LUN_BLOCKS - count);
                        if rng.one_in(6) {
                            volume.punch(*lun, Lba(first), count).expect("it is punched");
                            current[first as usize..(first + count) as usize].fill(0);
                        } else {
                            let salt = round << 20;
                            write(&volume, *lun, first, count, salt).expect("there is room");
                            (first..first + count).for_each(|lba| current[lba as usize] = salt + lba);
                        }
                        if rng.one_in(4) {
                            volume.flush().expect("it flushes");
                            current.iter().zip(durable).for_each(|(now, d)| d.store(*now, Ordering::SeqCst));
                        }
                        if rng.one_in(4) {
                            let lba = rng.below(LUN_BLOCKS);
                            assert_eq!(read(&volume, *lun, lba, 1), [current[lba as usize]]);
                        }
                    }
                    volume.flush().expect("it flushes");
                    current.iter().zip(durable).for_each(|(now, d)| d.store(*now, Ordering::SeqCst));
                })
            })
            .collect();
        let snapshotter = scope.spawn(|| {
            let mut number = 0;
            while !done.load(Ordering::SeqCst) {
                let made = volume.create_snapshot(&format!("s{number}")).expect("it is made");
                let image = volume.image(Some(made.id)).expect("it exists");
                let before = read_image(&image, luns[0], 0, LUN_BLOCKS);
                volume.consistency_point().expect("it commits");
                assert_eq!(read_image(&image, luns[0], 0, LUN_BLOCKS), before, "a snapshot does not change");
                drop(image);
                volume.delete_snapshots(&[made.id]).expect("it is deleted");
                number += 1;
            }
        });
        let background = scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                volume.background(Duration::from_millis(1)).expect("background work goes on");
            }
        });
        let write_back = scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                volume.write_back(Duration::from_millis(1)).expect("write-back goes on");
            }
        });
        let outcomes: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        done.store(true, Ordering::SeqCst);
        snapshotter.join().expect("the snapshotter ends");
        background.join().expect("the background ends");
        write_back.join().expect("write-back ends");
        for outcome in outcomes {
            outcome.expect("a writer ends");
        }
    });
    drop(volume);
    let device = Arc::new(device.power_cycle(&mut Rng::new(1)));
    let volume = open(&device);
    for (lun, durable) in luns.iter().zip(&durable) {
        let expected: Vec<u64> = durable.iter().map(|number| number.load(Ordering::SeqCst)).collect();
        assert_eq!(read(&volume, *lun, 0, LUN_BLOCKS), expected);
    }
    assert_sound(&volume);
}

/// The first bytes of a superblock.
const SUPERBLOCK: u64 = u64::from_le_bytes(*b"CAIRNSB\x01");

/// A device that keeps back every batch that writes a block whose first number is shut out.
pub(super) struct Gate {
    pub(super) device: FaultDevice,
    /// The blocked block numbers, and the number of waiting batches.
    shut: Mutex<(Vec<u64>, usize)>,
    moved: Condvar,
}

impl Gate {
    pub(super) fn shut(&self, number: u64) {
        self.shut.lock().0.push(number);
    }

    pub(super) fn open(&self, number: u64) {
        self.shut.lock().0.retain(|shut| *shut != number);
        self.moved.notify_all();
    }

    pub(super) fn wait_for_waiting(&self, count: usize) {
        let mut shut = self.shut.lock();
        self.moved.wait_while(&mut shut, |(_, waiting)| *waiting < count);
    }

    pub(super) fn waiting(&self) -> usize {
        self.shut.lock().1
    }
}

impl Device for Gate {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn run(&self, batch: &mut [Operation]) {
        let writes = |number: u64| {
            batch.iter().any(|operation| match operation.request() {
                Request::Write { data, .. } => data.to_vec()[..8] == number.to_le_bytes(),
                _ => false,
            })
        };
        let mut shut = self.shut.lock();
        if shut.0.iter().any(|number| writes(*number)) {
            shut.1 += 1;
            self.moved.notify_all();
            self.moved.wait_while(&mut shut, |(numbers, _)| numbers.iter().any(|number| writes(*number)));
            shut.1 -= 1;
        }
        drop(shut);
        self.device.run(batch);
    }

    fn extents(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<Extent>, DeviceError> {
        self.device.extents(offset, length, limit)
    }
}

/// A volume on one.
pub(super) fn gated() -> Arc<Gate> {
    let device = Arc::new(Gate {
        device: FaultDevice::new(Volume::device_bytes(4096, Role::Normal)),
        shut: Mutex::new((Vec::new(), 0)),
        moved: Condvar::new(),
    });
    format(&*device, 4096);
    device
}

#[test]
fn inode_that_is_put_again_while_its_blocks_are_merged_keeps_them() {
    let device = gated();
    let volume = open(&device);
    let id = volume.next_file().expect("it is open");
    let inode = node(id, 4096);
    let number = 1_000_001;
    let mut made = Change::new();
    made.put(inode);
    made.write(id, Lba(0), block(number));
    volume.change(made, false).expect("there is room");
    device.shut(number);
    std::thread::scope(|scope| {
        let point = scope.spawn(|| volume.consistency_point());
        device.wait_for_waiting(1);
        // The same again (a kernel that writes times back does that): the place of its block is not
        // known yet.
        let mut again = Change::new();
        again.put(inode);
        volume.change(again, false).expect("there is room");
        assert_eq!(read(&volume, id, 0, 1), [number], "before it has a place");
        device.open(number);
        point.join().expect("it ends").expect("it commits");
    });
    assert_eq!(read(&volume, id, 0, 1), [number], "while the inode is to be written once more");
    volume.consistency_point().expect("it commits");
    assert_eq!(read(&volume, id, 0, 1), [number], "and when it has been");
    assert_sound(&volume);
}

#[test]
fn snapshot_is_as_old_as_what_it_shows() {
    let device = gated();
    let clock = Arc::new(ManualClock::new(Timestamp(1_000)));
    let options = OpenOptions { cache_bytes: 1 << 20, clock: clock.clone() };
    let volume = Volume::open(device.clone(), options).expect("the volume opens");
    let lun = file(&volume, 10);
    let number = 1_000_001;
    write(&volume, lun, 1, 1, number - 1).expect("there is room");
    device.shut(number);
    std::thread::scope(|scope| {
        let made = scope.spawn(|| volume.create_snapshot("noon"));
        device.wait_for_waiting(1);
        // Later writes are not in it, and were not made before it.
        clock.advance(Duration::from_secs(7));
        device.open(number);
        let made = made.join().expect("it ends").expect("it is made");
        assert_eq!(made.created, Timestamp(1_000));
    });
}

#[test]
fn long_file_whose_inode_was_put_while_it_was_merged_is_freed_in_rounds() {
    const ROUND: u64 = crate::limits::REMOVE_BLOCKS;
    let device = gated();
    let volume = open(&device);
    let id = volume.next_file().expect("it is open");
    let inode = node(id, 3 * ROUND * 4096);
    let number = 1_000_001;
    let mut made = Change::new();
    made.put(inode);
    made.write(id, Lba(0), block(number));
    volume.change(made, false).expect("there is room");
    device.shut(number);
    std::thread::scope(|scope| {
        let point = scope.spawn(|| volume.consistency_point());
        device.wait_for_waiting(1);
        // Its tree is not known yet, and stays unknown here.
        let mut again = Change::new();
        again.put(Inode { attributes: Attributes { modified_ns: 9, ..inode.attributes }, ..inode });
        volume.change(again, false).expect("there is room");
        device.open(number);
        point.join().expect("it ends").expect("it commits");
    });
    let mut gone = Change::new();
    gone.put(Inode { removed: true, ..inode });
    volume.change(gone, true).expect("it is removed");
    volume.background(Duration::ZERO).expect("it works");
    assert_eq!(volume.inode(id).expect("the rest is for other rounds").tree.length, 2 * ROUND);
    (0..3).for_each(|_| volume.background(Duration::ZERO).expect("it works"));
    assert!(matches!(volume.inode(id), Err(VolumeError::NoSuchFile(_))));
    assert_sound(&volume);
}

#[test]
fn status_waits_for_no_flush() {
    let device = gated();
    let volume = open(&device);
    let lun = file(&volume, 10);
    let used = volume.status().log_used;
    let number = 1_000_001;
    write(&volume, lun, 1, 1, number - 1).expect("there is room");
    device.shut(number);
    let (done, results) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let flush = scope.spawn(|| volume.flush());
        device.wait_for_waiting(1);
        scope.spawn(|| done.send(volume.status()).expect("somebody waits for it"));
        let shown = results.recv_timeout(Duration::from_secs(100));
        device.open(number);
        flush.join().expect("it ends").expect("it flushes");
        assert_eq!(shown.expect("it does not wait for the device").log_used, used);
    });
    assert!(volume.status().log_used > used, "the record is there");
    volume.consistency_point().expect("it commits");
    assert_eq!(volume.status().log_used, 0);
}

#[test]
fn flush_waits_for_what_was_under_way_and_not_for_what_came_later() {
    let device = gated();
    let volume = open(&device);
    let lun = file(&volume, 100);
    let (early, late) = (1_000_001, 2_000_002);
    device.shut(early);
    device.shut(late);
    let place = || volume.place(64, u64::MAX).expect("it is written");
    std::thread::scope(|scope| {
        write(&volume, lun, 1, 1, early - 1).expect("there is room");
        let first = scope.spawn(place);
        device.wait_for_waiting(1);
        write(&volume, lun, 3, 1, 0).expect("there is room");
        let launches = volume.state.lock().launches;
        let flush = scope.spawn(|| volume.flush());
        // With the launch of its own block it has decided its scope.
        while volume.state.lock().launches == launches {
            std::thread::yield_now();
        }
        write(&volume, lun, 2, 1, late - 2).expect("there is room");
        let second = scope.spawn(place);
        device.wait_for_waiting(2);
        assert!(!flush.is_finished(), "what was under way before is not there yet");
        device.open(early);
        flush.join().expect("it ends, though a later block is still under way").expect("it flushes");
        assert!(!second.is_finished());
        device.open(late);
        first.join().expect("it ends");
        second.join().expect("it ends");
    });
    drop(volume);
    assert_eq!(read(&open(&device), lun, 1, 3), [early, 0, 3], "the log has what the flush covered");
}

/// Between the last of its blocks and the superblock a generation is in neither the open one nor
/// the root.
#[test]
fn flush_beside_a_consistency_point_does_not_rely_on_it() {
    let device = gated();
    let volume = open(&device);
    let lun = file(&volume, 100);
    write(&volume, lun, 0, 20, 100).expect("there is room");
    volume.consistency_point().expect("it commits");
    let id = volume.next_file().expect("it is open");
    let mut made = Change::new();
    made.put(node(id, 4096));
    made.write(id, Lba(0), block(77));
    volume.change(made, false).expect("there is room");
    write(&volume, lun, 3, 2, 500).expect("there is room");
    volume.punch(lun, Lba(10), 5).expect("it is punched");
    device.shut(SUPERBLOCK);
    std::thread::scope(|scope| {
        let point = scope.spawn(|| volume.consistency_point());
        device.wait_for_waiting(1);
        let flushed = volume.flush();
        let after = Arc::new(device.device.power_cycle_as(Fate::Lost, &mut Rng::new(1)));
        device.open(SUPERBLOCK);
        point.join().expect("it ends").expect("it commits");
        flushed.expect("it flushes");
        let after = open(&after);
        assert_eq!(read(&after, lun, 2, 4), [102, 503, 504, 105], "blocks");
        assert_eq!(read(&after, lun, 9, 7), [109, 0, 0, 0, 0, 0, 115], "a hole");
        assert_eq!(after.inode(id).expect("its file was made").length_bytes, 4096);
        assert_eq!(read(&after, id, 0, 1), [77]);
        assert_sound(&after);
    });
}

#[test]
fn writer_that_waits_for_a_consistency_point_hears_that_it_failed() {
    let device = gated();
    let volume = open(&device);
    let changes = volume.memory.changes_hard;
    let lun = file(&volume, 2 * changes + 2);
    write(&volume, lun, 0, 1, 100).expect("there is room");
    device.shut(SUPERBLOCK);
    let (done, outcomes) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let point = scope.spawn(|| volume.consistency_point());
        device.wait_for_waiting(1);
        // As many as there may be in memory, and one more: holes, which have nothing to be written
        // before.
        for number in 0..=changes {
            volume.punch(lun, Lba(2 * number), 1).expect("it is punched");
        }
        let volume = &volume;
        scope.spawn(move || done.send(write(volume, lun, 1, 1, 7)).expect("somebody waits for it"));
        // Until it waits. If it comes too late for that it gets the failure at once.
        std::thread::sleep(Duration::from_millis(100));
        let waits = outcomes.try_recv().is_err();
        device.device.fail_next_operation(DeviceError::OutOfService);
        device.open(SUPERBLOCK);
        assert!(point.join().expect("it ends").is_err());
        assert!(waits, "there is no room for it in memory");
        let outcome = outcomes.recv_timeout(Duration::from_secs(20));
        volume.settled.notify_all();
        let outcome = outcome.expect("it is told");
        assert!(matches!(outcome, Err(VolumeError::Latched(_))), "{outcome:?}");
    });
}

#[test]
fn change_that_waits_for_a_rollback_is_not_taken_for_a_file_that_it_takes_away() {
    let device = gated();
    let volume = open(&device);
    let lun = file(&volume, 10);
    let early = volume.create_snapshot("early").expect("it is made");
    let id = volume.next_file().expect("it is open");
    let mut made = Change::new();
    made.put(node(id, 4096));
    made.write(id, Lba(0), block(7));
    volume.change(made, false).expect("there is room");
    volume.consistency_point().expect("it commits");
    let number = 1_000_001;
    write(&volume, lun, 1, 1, number - 1).expect("there is room");
    device.shut(number);
    std::thread::scope(|scope| {
        let rollback = scope.spawn(|| volume.rollback(early.id));
        device.wait_for_waiting(1);
        let change = scope.spawn(|| {
            let mut change = Change::new();
            change.write(id, Lba(0), block(8));
            volume.change(change, false)
        });
        // It has looked up the file, which exists until the rollback.
        while !volume.state.lock().committed.inodes.lock().contains_key(&id) {
            std::thread::yield_now();
        }
        device.open(number);
        rollback.join().expect("it ends").expect("it rolls back");
        let outcome = change.join().expect("it ends");
        assert!(matches!(outcome, Err(VolumeError::NoSuchFile(_))), "{outcome:?}");
    });
    assert_sound(&volume);
}

#[test]
fn rollback_waits_for_who_changes_the_root_directory() {
    let (_device, volume) = fresh(4096);
    let early = volume.create_snapshot("early").expect("it is made");
    let turn = volume.directory_turn();
    std::thread::scope(|scope| {
        let rollback = scope.spawn(|| volume.rollback(early.id));
        std::thread::sleep(Duration::from_millis(200));
        assert!(!rollback.is_finished(), "what was read of the directory is written after it");
        drop(turn);
        rollback.join().expect("it ends").expect("it rolls back");
    });
}

#[test]
fn generation_ends_once_the_last_change_of_several_parts_is_complete() {
    let (_device, volume) = fresh(4096);
    let lun = file(&volume, 10);
    let before = volume.status().generation;
    let compound = volume.compound();
    compound.create(FileKind::Lun, 4096).expect("there is room");
    std::thread::scope(|scope| {
        let point = scope.spawn(|| volume.consistency_point().map(drop));
        while !volume.state.lock().freezing {
            std::thread::yield_now();
        }
        compound.resize(lun, 1 << 20).expect("there is room");
        assert!(!point.is_finished() && volume.status().generation == before);
        // The next one waits for the generation after.
        let next = scope.spawn(|| volume.compound().create(FileKind::Lun, 8192).map(drop));
        drop(compound);
        point.join().expect("it ends").expect("it commits");
        next.join().expect("it ends").expect("there is room");
    });
    let image = volume.image(None).expect("it is there");
    let lengths: Vec<u64> =
        image.inodes().expect("they can be read").iter().map(|inode| inode.length_bytes).collect();
    assert!(lengths.contains(&4096) && lengths.contains(&(1 << 20)), "{lengths:?}: all of it");
    assert!(!lengths.contains(&8192), "{lengths:?}: nothing that came later");
}

#[test]
fn rollback_comes_once_the_last_change_of_several_parts_is_complete() {
    let (_device, volume) = fresh(4096);
    let lun = file(&volume, 10);
    let early = volume.create_snapshot("early").expect("it is made");
    let kept = std::thread::scope(|scope| {
        let compound = volume.compound();
        compound.create(FileKind::Lun, 4096).expect("there is room");
        let rollback = scope.spawn(|| volume.rollback(early.id));
        let begun = |state: &crate::memory::state::State| state.freezing || state.rolling_back;
        while !begun(&volume.state.lock()) {
            std::thread::yield_now();
        }
        assert!(!volume.state.lock().rolling_back, "the rest of it would wait, and the rollback for it");
        compound.resize(lun, 1 << 20).expect("there is room");
        assert!(!rollback.is_finished());
        // The next one follows the rollback.
        let next = scope.spawn(|| volume.compound().create(FileKind::Lun, 8192).map(drop));
        drop(compound);
        let kept = rollback.join().expect("it ends").expect("it rolls back");
        next.join().expect("it ends").expect("there is room");
        kept
    });
    let lengths = |image: Image| -> Vec<u64> {
        image.inodes().expect("they can be read").iter().map(|inode| inode.length_bytes).collect()
    };
    let before = lengths(volume.image(Some(kept.id)).expect("it is there"));
    assert!(before.contains(&4096) && before.contains(&(1 << 20)), "{before:?}: all of it is kept");
    assert!(!before.contains(&8192), "{before:?}: nothing that came later");
    let now = lengths(volume.image(None).expect("it is there"));
    assert!(!now.contains(&4096) && !now.contains(&(1 << 20)), "{now:?}: nothing of it is left");
}
