//! A device without room for writes for a while: no data is lost, no other operation fails, and the
//! volume resumes by itself.

use std::sync::Arc;
use std::time::Duration;

use cairn_base::{FileId, Lba, ManualClock, Rng, Timestamp};
use cairn_device::{Action, DeviceError, FaultDevice};
use cairn_format::FileKind;

use super::{block, format, write};
use crate::*;

const BLOCKS: u64 = 4096;
const PLENTY: u64 = 1 << 30;

/// A volume in a sparse file on a host file system, and its clock.
struct Hosted {
    device: Arc<FaultDevice>,
    clock: Arc<ManualClock>,
    volume: Arc<Volume>,
    lun: FileId,
}

fn open(device: &Arc<FaultDevice>, clock: &Arc<ManualClock>) -> Arc<Volume> {
    let options = OpenOptions { cache_bytes: 1 << 20, clock: clock.clone() };
    Volume::open(device.clone(), options).expect("the volume opens")
}

fn hosted(promises: bool) -> Hosted {
    let bytes = Volume::device_bytes(BLOCKS, Role::Normal);
    let device = Arc::new(FaultDevice::new(bytes));
    device.be_sparse(0..bytes, PLENTY, promises);
    format(&*device, BLOCKS);
    let clock = Arc::new(ManualClock::new(Timestamp(1)));
    let volume = open(&device, &clock);
    let lun = volume.compound().create(FileKind::Lun, 2048 * 4096).expect("there is room for a file");
    volume.consistency_point().expect("it commits");
    Hosted { device, clock, volume, lun }
}

impl Hosted {
    /// A round of background work, some time later.
    fn later(&self) {
        self.clock.advance(Duration::from_secs(2));
        self.volume.background(Duration::ZERO).expect("a lack of room ends no work");
    }

    fn reads(&self, first: u64, count: u64, salt: u64) {
        for lba in first..first + count {
            let mut reads = [BlockRead::new(Lba(lba), 1)];
            self.volume.read(self.lun, &mut reads, true);
            let [read] = reads;
            let bytes = read.outcome.expect("it may wait").expect("it can be read").to_vec();
            assert_eq!(bytes, block(salt + lba).to_vec(), "block {lba}");
        }
    }
}

/// Writes until there is no room, and returns how many blocks were taken.
fn fill(hosted: &Hosted, from: u64, salt: u64) -> u64 {
    for lba in from..2048 {
        match write(&hosted.volume, hosted.lun, lba, 1, salt) {
            Ok(()) => {}
            Err(VolumeError::NoRoomBelow) => return lba,
            Err(error) => panic!("{error:?}"),
        }
        if lba % 16 == 15
            && let Err(error) = hosted.volume.flush()
        {
            assert!(matches!(error, VolumeError::NoRoomBelow), "{error:?}");
        }
    }
    panic!("it never filled");
}

#[test]
fn full_host_refuses_writes_keeps_what_was_taken_and_heals_by_itself() {
    for promises in [true, false] {
        let hosted = hosted(promises);
        write(&hosted.volume, hosted.lun, 0, 64, 1000).unwrap();
        hosted.volume.flush().unwrap();
        hosted.device.leave_room(40 * 4096);
        let end = fill(&hosted, 64, 1000);
        let status = hosted.volume.status();
        assert!(status.lacks_room && status.latched.is_none(), "{status:?}");
        assert!(matches!(hosted.volume.flush(), Err(VolumeError::NoRoomBelow)));
        assert!(matches!(hosted.volume.create_snapshot("a"), Err(VolumeError::NoRoomBelow)));
        hosted.reads(0, end, 1000);
        for _ in 0..3 {
            hosted.later();
        }
        assert!(hosted.volume.status().lacks_room);
        hosted.device.leave_room(PLENTY);
        hosted.later();
        let status = hosted.volume.status();
        assert!(!status.lacks_room && status.latched.is_none(), "{status:?}");
        write(&hosted.volume, hosted.lun, end, 1, 1000).unwrap();
        hosted.volume.flush().unwrap();
        hosted.volume.create_snapshot("a").unwrap();
        hosted.reads(0, end + 1, 1000);
        assert_eq!(hosted.volume.check(&mut |_| {}).unwrap().findings, []);
        let device = Arc::new(hosted.device.power_cycle(&mut Rng::new(7)));
        let volume = open(&device, &hosted.clock);
        Hosted { device, volume, ..hosted }.reads(0, end + 1, 1000);
    }
}

#[test]
fn flushed_blocks_survive_a_power_cut_while_the_host_is_full() {
    for seed in 0..40 {
        let hosted = hosted(seed % 2 == 0);
        write(&hosted.volume, hosted.lun, 0, 64, 1000).unwrap();
        hosted.volume.flush().unwrap();
        hosted.device.leave_room((8 + seed) * 4096);
        fill(&hosted, 64, 1000);
        hosted.later();
        let device = Arc::new(hosted.device.power_cycle(&mut Rng::new(seed)));
        let volume = open(&device, &hosted.clock);
        let again = Hosted { device, volume, ..hosted };
        again.reads(0, 64, 1000);
        again.device.leave_room(PLENTY);
        again.later();
        write(&again.volume, again.lun, 0, 64, 3000).unwrap();
        again.volume.flush().unwrap();
        let device = Arc::new(again.device.power_cycle(&mut Rng::new(seed)));
        let volume = open(&device, &again.clock);
        Hosted { device, volume, ..again }.reads(0, 64, 3000);
    }
}

/// Room runs out at each operation of a consistency point and of a flush, once and for longer. The
/// accepted changes are present afterwards, and after a power cut then or later.
#[test]
fn no_room_at_any_operation_loses_nothing_and_latches_nothing() {
    let mut met = 0;
    for after in 0..40 {
        for times in [1, 2, 7] {
            let hosted = hosted(true);
            write(&hosted.volume, hosted.lun, 0, 64, 1000).unwrap();
            hosted.volume.flush().unwrap();
            hosted.volume.create_snapshot("before").unwrap();
            let began = hosted.device.operations();
            hosted.device.fail_operations(after, times, DeviceError::NoSpace { offset: 0, length: 4096 });
            let mut salts = vec![1000; 96];
            for round in 0..4_u64 {
                for first in [round * 24, 70] {
                    let salt = 10_000 * (round + 1) + first;
                    match write(&hosted.volume, hosted.lun, first, 8, salt) {
                        Ok(()) => (first..first + 8).for_each(|lba| salts[lba as usize] = salt),
                        Err(VolumeError::NoRoomBelow) => {}
                        Err(error) => panic!("{after} {times}: {error:?}"),
                    }
                    let _ = hosted.volume.flush();
                }
                let _ = hosted.volume.consistency_point();
            }
            met += u64::from(hosted.device.operations() - began > after);
            assert!(hosted.volume.status().latched.is_none(), "{after} {times}");
            hosted.device.heal_operations();
            hosted.later();
            hosted.later();
            assert!(!hosted.volume.status().lacks_room, "{after} {times}");
            hosted.volume.flush().unwrap();
            let written = |at: &Hosted| {
                for (lba, salt) in salts.iter().enumerate().filter(|(lba, salt)| **salt != 1000 || *lba < 64)
                {
                    at.reads(lba as u64, 1, *salt);
                }
            };
            written(&hosted);
            let device = Arc::new(hosted.device.power_cycle(&mut Rng::new(after * 8 + times)));
            let volume = open(&device, &hosted.clock);
            let hosted = Hosted { device, volume, ..hosted };
            written(&hosted);
            assert_eq!(hosted.volume.check(&mut |_| {}).unwrap().findings, [], "{after} {times}");
        }
    }
    assert!(met > 60, "{met}");
}

#[test]
fn other_errors_of_a_write_latch_as_before() {
    let hosted = hosted(true);
    write(&hosted.volume, hosted.lun, 0, 8, 1).unwrap();
    let source = Arc::new(std::io::Error::from_raw_os_error(5));
    let error = DeviceError::Io { action: Action::Write, offset: 0, length: 4096, source };
    hosted.device.fail_next_operation(error);
    assert!(hosted.volume.flush().is_err());
    assert!(hosted.volume.status().latched.is_some());
    assert!(matches!(write(&hosted.volume, hosted.lun, 0, 8, 1), Err(VolumeError::Latched(_))));
}

/// A flush that fails in the same batch as a write without room is no lack of room.
#[test]
fn failed_flush_beside_a_write_without_room_latches() {
    let hosted = hosted(true);
    hosted.device.leave_room(0);
    write(&hosted.volume, hosted.lun, 0, 8, 1).unwrap();
    let source = Arc::new(std::io::Error::from_raw_os_error(5));
    let error = DeviceError::Io { action: Action::Flush, offset: 0, length: 0, source };
    // The data finds no room by itself; the record after it has its place; then the flush follows.
    hosted.device.fail_operations(2, 1, error);
    assert!(matches!(hosted.volume.flush(), Err(VolumeError::Device(DeviceError::Io { .. }))));
    assert!(hosted.volume.status().latched.is_some());
}

/// The rider of a consistency point is refused where there is no room for it, and is never applied
/// later. Only if its superblock found no room is the outcome unknown, and the volume says so.
#[test]
fn snapshot_without_room_is_not_made_or_ends_the_volume() {
    let (mut refused, mut ended) = (0, 0);
    for after in 0..16 {
        let hosted = hosted(true);
        write(&hosted.volume, hosted.lun, 0, 64, 1000).unwrap();
        hosted.volume.flush().unwrap();
        hosted.device.fail_operations(after, 1, DeviceError::NoSpace { offset: 0, length: 4096 });
        let outcome = hosted.volume.create_snapshot("late");
        hosted.device.heal_operations();
        match outcome {
            Ok(_) => continue,
            Err(VolumeError::NoRoomBelow) => {
                hosted.later();
                assert!(hosted.volume.snapshot_named("late").is_none(), "{after}");
                hosted.volume.create_snapshot("late").unwrap();
                refused += 1;
            }
            Err(error) => {
                assert!(hosted.volume.status().latched.is_some(), "{after}: {error:?}");
                ended += 1;
            }
        }
        let device = Arc::new(hosted.device.power_cycle(&mut Rng::new(after)));
        let volume = open(&device, &hosted.clock);
        let hosted = Hosted { device, volume, ..hosted };
        hosted.reads(0, 64, 1000);
        assert_eq!(hosted.volume.check(&mut |_| {}).unwrap().findings, [], "{after}");
    }
    assert!(refused > 2 && ended > 0, "{refused} {ended}");
}
