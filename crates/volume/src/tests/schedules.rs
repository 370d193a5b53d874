//! Schedules of threads, explored: `cargo test -p cairn-volume --features shuttle`.
//!
//! Shuttle's scheduler decides at each lock, each wait and each device operation which thread runs
//! next: at random, or by priorities that change at a few places (PCT), which finds bugs that need
//! few preemptions. It finds deadlocks by itself. A failure prints the schedule that replays it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cairn_base::explored::explore;
use cairn_base::{FileId, Lba, ManualClock, Rng, Timestamp, Vbn, VolumeId};
use cairn_device::{Block, BlockMut, Device, DeviceError, Extent, FaultDevice, Geometry, Operation};
use cairn_format::FileKind;
use shuttle::thread;

use crate::*;

/// Schedules of each scenario and kind of scheduler.
const SCHEDULES: usize = 200;

/// Lets others run before and after each batch, as a slow device does.
struct Slow(FaultDevice);

impl Device for Slow {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn run(&self, batch: &mut [Operation]) {
        thread::yield_now();
        self.0.run(batch);
        thread::yield_now();
    }

    fn extents(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<Extent>, DeviceError> {
        self.0.extents(offset, length, limit)
    }
}

fn open(device: &Arc<Slow>) -> Arc<Volume> {
    let clock = Arc::new(ManualClock::new(Timestamp(1)));
    let options = OpenOptions { cache_bytes: 1 << 20, clock };
    Volume::open(device.clone(), options).expect("the volume opens")
}

/// The smallest volume, with a LUN of `length` blocks, of which about `free` blocks are free.
fn fresh(length: u64, free: u64) -> (Arc<Slow>, Arc<Volume>, FileId) {
    let blocks = 1024;
    let device = FaultDevice::new(Volume::device_bytes(blocks, Role::Normal));
    let options = FormatOptions { id: VolumeId([7; 16]), blocks, role: Role::Normal };
    Volume::format(&device, &options, &ManualClock::new(Timestamp(1))).expect("it is formatted");
    let device = Arc::new(Slow(device));
    let volume = open(&device);
    let lun = volume.compound().create(FileKind::Lun, length * 4096).expect("there is room");
    volume.consistency_point().expect("it commits");
    let ballast = volume.status().free.saturating_sub(free);
    if ballast > 0 {
        let file = volume.compound().create(FileKind::Lun, ballast * 4096).expect("there is room");
        // The additional blocks, for nodes, are few.
        let blocks: Vec<_> = (0..ballast.saturating_sub(16)).map(|lba| (Lba(lba), stamped(lba, 1))).collect();
        volume.write(file, &mut blocks.into_iter()).expect("there is room");
        volume.consistency_point().expect("it commits");
    }
    (device, volume, lun)
}

/// A block that contains its number, and the number of its write.
fn stamped(lba: u64, version: u64) -> Block {
    let mut bytes = BlockMut::zeroed();
    bytes[..8].copy_from_slice(&lba.to_le_bytes());
    bytes[8..16].copy_from_slice(&version.to_le_bytes());
    bytes.freeze()
}

fn write(volume: &Arc<Volume>, lun: FileId, lba: u64, version: u64) -> Result<(), VolumeError> {
    volume.write(lun, &mut std::iter::once((Lba(lba), stamped(lba, version))))
}

/// The version of a block; a block that is another's, or a mixture, fails.
fn version_in(bytes: &[u8], lba: u64) -> u64 {
    let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    if bytes.iter().all(|byte| *byte == 0) {
        return 0;
    }
    assert_eq!(number(0), lba, "a block is its own");
    number(8)
}

/// The versions of `count` blocks.
fn read(volume: &Arc<Volume>, lun: FileId, first: u64, count: u64) -> Vec<u64> {
    let mut reads = [BlockRead::new(Lba(first), count)];
    volume.read(lun, &mut reads, true);
    versions(reads, first)
}

fn read_image(image: &Image, lun: FileId, first: u64, count: u64) -> Vec<u64> {
    let mut reads = [BlockRead::new(Lba(first), count)];
    image.read(lun, &mut reads, true);
    versions(reads, first)
}

fn versions([read]: [BlockRead; 1], first: u64) -> Vec<u64> {
    let bytes = read.outcome.expect("it has an outcome").expect("it is read").to_vec();
    bytes.chunks(4096).zip(first..).map(|(block, lba)| version_in(block, lba)).collect()
}

fn assert_sound(volume: &Arc<Volume>) {
    let report = volume.check(&mut |_| {}).expect("checking is possible");
    assert_eq!(report.findings, []);
}

/// Two writers on blocks of their own, two flushers, write-back and a consistency point. The power
/// goes at the end.
#[test]
fn flush_covers_what_was_answered_before_it_in_every_schedule() {
    explore(SCHEDULES, || {
        let (device, volume, lun) = fresh(16, 1024);
        let writers: Vec<_> = (0..2u64)
            .map(|writer| {
                let volume = volume.clone();
                thread::spawn(move || {
                    let mut durable = 0;
                    for version in 1..=4 {
                        write(&volume, lun, writer, version).expect("there is room");
                        write(&volume, lun, writer + 4, version).expect("there is room");
                        if version % 2 == 0 {
                            volume.flush().expect("it flushes");
                            durable = version;
                        }
                    }
                    durable
                })
            })
            .collect();
        let placing = volume.clone();
        let place = thread::spawn(move || {
            for _ in 0..3 {
                placing.place(1, u64::MAX).expect("it is written");
            }
        });
        let committing = volume.clone();
        let commit = thread::spawn(move || committing.consistency_point().expect("it commits"));
        let durable: Vec<u64> = writers.into_iter().map(|writer| writer.join().expect("it ends")).collect();
        place.join().expect("it ends");
        commit.join().expect("it ends");
        drop(volume);
        let device = Arc::new(Slow(device.0.power_cycle(&mut Rng::new(1))));
        let volume = open(&device);
        for (writer, durable) in durable.into_iter().enumerate() {
            for lba in [writer as u64, writer as u64 + 4] {
                assert_eq!(read(&volume, lun, lba, 1), [durable], "what was flushed is there");
            }
        }
        assert_sound(&volume);
    });
}

/// The same while any one operation of the device fails: acknowledged writes are present, whatever
/// failed before or after, and no thread waits for ever.
#[test]
fn flush_that_is_acknowledged_covers_what_was_answered_before_it_though_the_device_fails_in_any_schedule() {
    let runs = AtomicU64::new(0);
    explore(SCHEDULES, move || {
        let (device, volume, lun) = fresh(16, 1024);
        let after = runs.fetch_add(1, Ordering::SeqCst) % 16;
        device.0.fail_operations(after, 1, DeviceError::OutOfService);
        let writers: Vec<_> = (0..2u64)
            .map(|writer| {
                let volume = volume.clone();
                thread::spawn(move || {
                    let mut durable = 0;
                    for version in 1..=4 {
                        let written = [writer, writer + 4].map(|lba| write(&volume, lun, lba, version));
                        if written.iter().any(Result::is_err) || volume.flush().is_err() {
                            break;
                        }
                        durable = version;
                    }
                    durable
                })
            })
            .collect();
        let placing = volume.clone();
        let place = thread::spawn(move || (0..3).try_for_each(|_| placing.place(1, u64::MAX).map(drop)));
        let committing = volume.clone();
        let commit = thread::spawn(move || committing.consistency_point());
        let durable: Vec<u64> = writers.into_iter().map(|writer| writer.join().expect("it ends")).collect();
        let _ = (place.join().expect("it ends"), commit.join().expect("it ends"));
        drop(volume);
        let device = Arc::new(Slow(device.0.power_cycle(&mut Rng::new(1))));
        let volume = open(&device);
        for (writer, durable) in durable.into_iter().enumerate() {
            for lba in [writer as u64, writer as u64 + 4] {
                let found = read(&volume, lun, lba, 1)[0];
                assert!(
                    (durable..=4).contains(&found),
                    "{found}, and {durable} was flushed; {after} succeeded"
                );
            }
        }
        assert_sound(&volume);
    });
}

/// A file larger than the cache is rewritten repeatedly, in a volume so full that its blocks are
/// reused soon, beside a reader that may be in the middle of reading from the device.
#[test]
fn reader_never_sees_a_reused_block_in_any_schedule() {
    explore(SCHEDULES, || {
        const LENGTH: u64 = 240;
        let (_device, volume, lun) = fresh(LENGTH, 530);
        let (started, done) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (writing, starts, ends) = (volume.clone(), started.clone(), done.clone());
        let writer = thread::spawn(move || {
            for version in 1..=6 {
                starts.store(version, Ordering::SeqCst);
                let blocks: Vec<_> = (0..LENGTH).map(|lba| (Lba(lba), stamped(lba, version))).collect();
                writing.write(lun, &mut blocks.into_iter()).expect("overwriting needs no more than there is");
                ends.store(version, Ordering::SeqCst);
                writing.consistency_point().expect("it commits");
            }
        });
        for first in [0, 80, 160, 0, 80, 160] {
            let before = done.load(Ordering::SeqCst);
            let seen = read(&volume, lun, first, 80);
            let after = started.load(Ordering::SeqCst);
            for version in seen {
                assert!((before..=after).contains(&version), "{before} <= {version} <= {after}");
            }
        }
        writer.join().expect("it ends");
        assert_sound(&volume);
    });
}

/// Snapshots come and go beside a writer; an open image stays unchanged until it is closed, also
/// when its snapshot is gone.
#[test]
fn image_does_not_change_in_any_schedule() {
    explore(SCHEDULES, || {
        const LENGTH: u64 = 96;
        let (_device, volume, lun) = fresh(LENGTH, 450);
        let writing = volume.clone();
        let writer = thread::spawn(move || {
            for version in 1..=6 {
                for lba in 0..LENGTH {
                    write(&writing, lun, lba, version).expect("there is room");
                }
                writing.flush().expect("it flushes");
            }
        });
        let snapping = volume.clone();
        let snapper = thread::spawn(move || {
            for round in 0..2 {
                let made = snapping.create_snapshot(&format!("s{round}")).expect("it is made");
                let image = snapping.image(Some(made.id)).expect("it exists");
                // Later changes of the active state are in no snapshot.
                snapping.consistency_point().expect("it commits");
                let active = snapping.image(None).expect("there is an active state");
                let show = || [&image, &active].map(|image| read_image(image, lun, 0, LENGTH));
                let before = show();
                for shown in &before {
                    assert!(
                        shown.is_sorted_by(|a, b| a >= b),
                        "earlier writes of a round are in it: {shown:?}"
                    );
                }
                snapping.delete_snapshots(&[made.id]).expect("it is deleted");
                for _ in 0..3 {
                    snapping.consistency_point().expect("it commits");
                }
                assert_eq!(show(), before, "an image does not change");
            }
        });
        writer.join().expect("it ends");
        snapper.join().expect("it ends");
        volume.consistency_point().expect("it commits");
        assert_sound(&volume);
    });
}

/// A mirror follows step by step, another one comes and goes, and clients write: the blocks that a
/// step takes from memory equal the device's, and its image is of one moment.
#[test]
fn step_of_a_mirror_ships_from_memory_what_the_device_has_in_any_schedule() {
    const LENGTH: u64 = 24;
    explore(SCHEDULES, || {
        let (_device, volume, lun) = fresh(LENGTH, 450);
        let writing = volume.clone();
        let writer = thread::spawn(move || {
            for version in 1..=5 {
                for lba in 0..LENGTH {
                    write(&writing, lun, lba, version).expect("there is room");
                    if lba % 6 == 5 {
                        writing.place(1, u64::MAX).expect("it is written");
                    }
                }
                writing.flush().expect("it flushes");
            }
        });
        let beside = volume.clone();
        let other = thread::spawn(move || {
            for _ in 0..3 {
                let keeps = beside.keep_fresh();
                thread::yield_now();
                drop(keeps);
            }
        });
        let mut base = volume.create_snapshot("s0").expect("it is made");
        for round in 1..=3 {
            let keeps = volume.keep_fresh();
            let name = format!("s{round}");
            let step = Step { name: &name, relationship: Some(1), base: base.id, over: &[] };
            let target = volume.create_snapshot_step(step).expect("there is room");
            let runs = volume.changed_blocks(&[base.id], target.id).expect("they are compared").runs;
            let from_memory = volume.read_blocks(&runs).expect("they can be read");
            drop(keeps);
            let from_device = volume.read_blocks(&runs).expect("they can be read");
            assert_eq!(from_memory.len(), from_device.len());
            let same = from_memory.iter().zip(&from_device).all(|(kept, stored)| kept[..] == stored[..]);
            assert!(same, "what is kept is what is stored");
            let image = volume.image(Some(target.id)).expect("it exists");
            let shown = read_image(&image, lun, 0, LENGTH);
            assert!(shown.is_sorted_by(|a, b| a >= b), "earlier writes of a round are in it: {shown:?}");
            base = target;
        }
        writer.join().expect("it ends");
        other.join().expect("it ends");
        assert_eq!(volume.fresh_blocks(&[(Vbn(0), 1024)]).0, 0, "nobody wants anything kept any more");
        assert_sound(&volume);
    });
}

/// A block is written again and again while mirrors that follow come and go: its content in memory
/// is never older than the device's.
#[test]
fn nothing_that_was_let_go_of_comes_back_to_memory_in_any_schedule() {
    explore(SCHEDULES, || {
        let (_device, volume, _lun) = fresh(1, 64);
        let vbn = Vbn(500);
        let stored = Arc::new(AtomicU64::new(0));
        let (writing, stores) = (volume.clone(), stored.clone());
        let writer = thread::spawn(move || {
            for version in 1..=6 {
                let block = stamped(0, version);
                writing.store.fresh().note(std::iter::once((vbn, &block)));
                stores.store(version, Ordering::SeqCst);
            }
        });
        let mirrors: Vec<_> = (0..2)
            .map(|_| {
                let (volume, stored) = (volume.clone(), stored.clone());
                thread::spawn(move || {
                    for _ in 0..4 {
                        let _keeps = volume.keep_fresh();
                        let least = stored.load(Ordering::SeqCst);
                        let found = volume.store.fresh().find(&[vbn]).expect("blocks are kept");
                        if let Some(block) = &found[0] {
                            let kept = version_in(&block[..], 0);
                            assert!(least <= kept, "{least} is stored, and {kept} is kept");
                        }
                    }
                })
            })
            .collect();
        writer.join().expect("it ends");
        mirrors.into_iter().for_each(|mirror| mirror.join().expect("it ends"));
        assert_eq!(volume.fresh_blocks(&[(vbn, 1)]).0, 0, "nobody wants anything kept any more");
    });
}

/// Two writers fill a volume by overwriting, with readers in between: no writer gets "no space"
/// while there is some, and none waits for ever.
#[test]
fn nearly_full_volume_takes_overwrites_in_every_schedule() {
    explore(SCHEDULES, || {
        let (_device, volume, lun) = fresh(96, 60);
        let room = volume.status().free.min(96) / 3;
        for lba in 0..room {
            write(&volume, lun, lba, 1).expect("there is room");
        }
        volume.consistency_point().expect("it commits");
        let writers: Vec<_> = (0..2u64)
            .map(|writer| {
                let volume = volume.clone();
                thread::spawn(move || {
                    for version in 2..=4 {
                        for lba in (writer..room).step_by(2) {
                            write(&volume, lun, lba, version)
                                .expect("overwriting needs no more than there is");
                        }
                    }
                })
            })
            .collect();
        for lba in 0..6 {
            let seen = read(&volume, lun, lba % room, 1);
            assert!((1..=4).contains(&seen[0]), "{seen:?}");
        }
        for writer in writers {
            writer.join().expect("it ends");
        }
        assert_sound(&volume);
    });
}

/// Transfers begin and end repeatedly beside a failover: none runs when the volume takes writes.
#[test]
fn nothing_is_received_into_a_volume_that_takes_writes_in_any_schedule() {
    explore(SCHEDULES, || {
        let device = FaultDevice::new(Volume::device_bytes(1024, Role::Destination));
        let options = FormatOptions { id: VolumeId([7; 16]), blocks: 1024, role: Role::Destination };
        Volume::format(&device, &options, &ManualClock::new(Timestamp(1))).expect("it is formatted");
        let volume = open(&Arc::new(Slow(device)));
        let failing = volume.clone();
        let failover = thread::spawn(move || failing.failover());
        for _ in 0..3 {
            thread::yield_now();
            let Ok(receiver) = volume.receive() else { continue };
            for _ in 0..20 {
                thread::yield_now();
                assert_eq!(volume.status_role(), Role::Destination, "while something is received");
            }
            drop(receiver);
        }
        let outcome = failover.join().expect("it ends");
        assert!(matches!(outcome, Ok(()) | Err(VolumeError::TransferInProgress)), "{outcome:?}");
        assert_eq!(volume.status_role() == Role::Normal, outcome.is_ok());
    });
}

/// A scrub in small steps, while snapshots are made and deleted.
#[test]
fn scrub_goes_on_beside_snapshots_that_come_and_go_in_every_schedule() {
    explore(SCHEDULES, || {
        let (_device, volume, lun) = fresh(16, 1024);
        let owner = {
            let volume = volume.clone();
            thread::spawn(move || {
                for version in 1..4 {
                    let made = volume.create_snapshot(&format!("s{version}")).expect("there is room");
                    write(&volume, lun, version, version).expect("there is room");
                    volume.delete_snapshots(&[made.id]).expect("it is deleted");
                }
            })
        };
        let mut cursor = volume.begin_scrub();
        for _ in 0..10 {
            let step = volume.scrub(&mut cursor, 3).expect("it is open, whatever goes");
            assert_eq!(step.findings, [], "nothing is damaged");
            if step.finished {
                cursor = volume.begin_scrub();
            }
        }
        owner.join().expect("the owner ends");
        let ends = (0..100).any(|_| volume.scrub(&mut cursor, 3).expect("it is open").finished);
        assert!(ends, "the pass does not end");
    });
}
