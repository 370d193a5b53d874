//! The scope of a flush while others write, commit or fail: it is acknowledged only when all
//! previously acknowledged writes are durable.

use std::time::{Duration, Instant};

use cairn_base::Rng;
use cairn_device::{DeviceError, Fate};

use super::threads::{Gate, gated};
use super::*;
use crate::known_files::ROOT_DIRECTORY;

/// Whether it comes true within this time.
fn comes_true(within: Duration, condition: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + within;
    while !condition() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

/// Long enough for another thread to come as far as it must.
const SURELY: Duration = Duration::from_secs(20);
/// Long enough for another thread to come too far, mostly.
const MOSTLY: Duration = Duration::from_millis(50);

fn launches(volume: &Volume) -> u64 {
    volume.state.lock().launches
}

/// The volume after a power cut now that lost all unflushed writes.
fn cut(device: &FaultDevice) -> Arc<Volume> {
    open(&Arc::new(device.power_cycle_as(Fate::Lost, &mut Rng::new(1))))
}

/// The first number of a superblock slot.
fn slot(device: &Gate) -> u64 {
    let mut bytes = [0; 4096];
    device.device.read_into(0, &mut bytes).expect("it can be read");
    u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"))
}

/// Numbers of blocks that are shut out.
const EARLY: u64 = 1_000_001;
const LATE: u64 = 2_000_002;

#[test]
fn flush_beside_a_consistency_point_that_waits_for_its_last_block_covers_both_generations() {
    let device = gated();
    let volume = open(&device);
    let lun = file(&volume, 100);
    let slot = slot(&device);
    // At its place, and in no record yet.
    write(&volume, lun, 5, 1, 3000).expect("there is room");
    volume.place(1, u64::MAX).expect("it is written");
    write(&volume, lun, 1, 1, EARLY - 1).expect("there is room");
    [EARLY, LATE, slot].into_iter().for_each(|number| device.shut(number));
    let (launched, reached, after) = std::thread::scope(|scope| {
        let point = scope.spawn(|| volume.consistency_point());
        device.wait_for_waiting(1);
        write(&volume, lun, 2, 1, LATE - 2).expect("there is room");
        let before = launches(&volume);
        let flush = scope.spawn(|| {
            volume.flush().expect("it flushes");
            cut(&device.device)
        });
        let launched = comes_true(SURELY, || launches(&volume) > before);
        // A record that names the early block is not written before that block is.
        let reached = launched && comes_true(MOSTLY, || device.waiting() > 1);
        device.open(LATE);
        device.open(EARLY);
        let after = flush.join();
        device.open(slot);
        point.join().expect("it ends").expect("it commits");
        (launched, reached, after.expect("it ends"))
    });
    assert!(launched, "the flush gives what came after the freeze its place");
    assert!(!reached, "the flush waits for what is under way");
    assert_eq!(read(&after, lun, 1, 2), [EARLY, LATE]);
    assert_eq!(read(&after, lun, 5, 1), [3005]);
    assert_sound(&after);
}

#[test]
fn flush_beside_a_consistency_point_that_writes_its_superblock_does_not_count_on_it() {
    let device = gated();
    let volume = open(&device);
    let lun = file(&volume, 100);
    let slot = slot(&device);
    write(&volume, lun, 1, 1, 1000).expect("there is room");
    write(&volume, lun, 7, 1, 1000).expect("there is room");
    volume.punch(lun, Lba(7), 1).expect("it is punched");
    write(&volume, lun, 2, 1, 1000).expect("there is room");
    device.shut(slot);
    let copies = std::thread::scope(|scope| {
        let point = scope.spawn(|| volume.consistency_point());
        device.wait_for_waiting(1);
        // First the changes of the generation being committed, then later ones.
        let flushed = volume.flush();
        let first = cut(&device.device);
        let later = write(&volume, lun, 3, 1, 1000).and_then(|()| volume.flush());
        let second = cut(&device.device);
        device.open(slot);
        point.join().expect("it ends").expect("it commits");
        flushed.and(later).expect("it flushes");
        [first, second]
    });
    for (volume, last) in copies.iter().zip([0, 1003]) {
        assert_eq!(read(volume, lun, 1, 3), [1001, 1002, last]);
        assert_eq!(read(volume, lun, 7, 1), [0]);
        assert_sound(volume);
    }
}

#[test]
fn flush_fails_when_one_that_it_waited_for_has_failed() {
    let device = gated();
    let volume = open(&device);
    let lun = file(&volume, 100);
    write(&volume, lun, 1, 1, EARLY - 1).expect("there is room");
    device.shut(EARLY);
    let (first, second) = std::thread::scope(|scope| {
        let first = scope.spawn(|| volume.flush());
        device.wait_for_waiting(1);
        write(&volume, lun, 2, 1, 1000).expect("there is room");
        let before = launches(&volume);
        let second = scope.spawn(|| volume.flush());
        // It finds the log taken, and its block is at its place when only the early one is in
        // flight.
        comes_true(SURELY, || {
            let state = volume.state.lock();
            state.launches > before && state.flying == 1
        });
        device.device.fail_next_operation(DeviceError::OutOfService);
        device.open(EARLY);
        (first.join().expect("it ends"), second.join().expect("it ends"))
    });
    assert!(first.is_err());
    assert!(matches!(second, Err(VolumeError::Latched(_))), "{second:?}: the early block is in no record");
    assert_eq!(read(&volume, lun, 1, 2), [EARLY, 1002], "what is in memory is still served");
}

#[test]
fn flush_fails_when_a_block_that_was_under_way_before_it_fails() {
    // In the one case the block fails while the flush waits for it, in the other while the flush
    // makes its own blocks ready.
    for is_making_ready in [false, true] {
        let device = gated();
        let volume = open(&device);
        let lun = file(&volume, 100);
        let _keeps = volume.keep_fresh();
        write(&volume, lun, 1, 1, EARLY - 1).expect("there is room");
        device.shut(EARLY);
        let (placed, flushed) = std::thread::scope(|scope| {
            let place = scope.spawn(|| volume.place(1, u64::MAX));
            device.wait_for_waiting(1);
            write(&volume, lun, 2, 1, 1000).expect("there is room");
            let held = is_making_ready.then(|| volume.store.fresh().hold());
            let before = launches(&volume);
            let flush = scope.spawn(|| volume.flush());
            comes_true(SURELY, || launches(&volume) > before);
            device.device.fail_next_operation(DeviceError::OutOfService);
            device.open(EARLY);
            let placed = place.join().expect("it ends");
            drop(held);
            (placed, flush.join().expect("it ends"))
        });
        assert!(placed.is_err());
        assert!(
            matches!(flushed, Err(VolumeError::Latched(_))),
            "{flushed:?}, {is_making_ready}: the early block is nowhere"
        );
        assert_eq!(read(&volume, lun, 1, 2), [EARLY, 1002], "what is in memory is still served");
    }
}

#[test]
fn write_back_that_fails_stops_the_volume_before_anything_is_called_durable() {
    let device = Arc::new(FaultDevice::new(Volume::device_bytes(1024, Role::Normal)));
    format(&*device, 1024);
    let volume = open(&device);
    let lun = file(&volume, 100);
    write(&volume, lun, 0, 10, 100).expect("there is room");
    device.fail_next_operation(DeviceError::OutOfService);
    assert!(volume.place(1024, u64::MAX).is_err());
    for outcome in [volume.flush(), volume.consistency_point().map(drop), write(&volume, lun, 20, 1, 1)] {
        assert!(matches!(outcome, Err(VolumeError::Latched(_))), "{outcome:?}");
    }
    assert_eq!(read(&volume, lun, 0, 10), (100..110).collect::<Vec<u64>>(), "it is served from memory");
}

#[test]
fn block_for_which_no_place_is_left_stops_the_volume_and_is_not_called_durable() {
    let (device, volume) = fresh(1024);
    let lun = file(&volume, 100);
    write(&volume, lun, 0, 10, 100).expect("there is room");
    {
        // As if more had been taken than there is.
        let mut state = volume.state.lock();
        let all = state.used.free() as usize;
        assert!(state.used.allocate(all, &mut Vec::new()));
    }
    assert!(matches!(volume.flush(), Err(VolumeError::NoSpace)));
    assert!(matches!(volume.flush(), Err(VolumeError::Latched(_))));
    assert_eq!(read(&volume, lun, 0, 10), (100..110).collect::<Vec<u64>>(), "it is served from memory");
    drop(volume);
    assert_eq!(read(&open(&device), lun, 0, 1), [0]);
}

#[test]
fn flush_covers_what_one_before_it_found_no_room_for_in_the_log() {
    let device = Arc::new(FaultDevice::new(Volume::device_bytes(4096, Role::Normal)));
    format(&*device, 4096);
    let volume = open(&device);
    let lun = file(&volume, 1000);
    while volume.status().log_used + 6 < volume.status().log_blocks {
        write(&volume, lun, 0, 1, 100).expect("there is room");
        volume.flush().expect("it flushes");
    }
    // More than a record that fits, and after it one that would.
    write(&volume, lun, 1, 900, 1000).expect("there is room");
    let is_past_the_log = |before: u64| {
        comes_true(SURELY, || launches(&volume) > before && volume.log.try_lock().is_some());
    };
    let after = std::thread::scope(|scope| {
        // Nothing is committed meanwhile.
        let commit = volume.commit.lock();
        let before = launches(&volume);
        let first = scope.spawn(|| volume.flush());
        is_past_the_log(before);
        write(&volume, lun, 950, 1, 1000).expect("there is room");
        let before = launches(&volume);
        let second = scope.spawn(|| {
            volume.flush().expect("it flushes");
            cut(&device)
        });
        is_past_the_log(before);
        let is_acknowledged = {
            let state = volume.state.lock();
            state.durable_order == state.order
        };
        let mut commit = Some(commit);
        if !is_acknowledged {
            commit = None;
        }
        let after = second.join();
        drop(commit);
        first.join().expect("it ends").expect("it flushes");
        after.expect("it ends")
    });
    assert_eq!(read(&after, lun, 1, 900), (1001..1901).collect::<Vec<u64>>());
    assert_eq!(read(&after, lun, 950, 1), [1950]);
}

#[test]
fn what_came_last_counts_after_a_cut_though_an_earlier_block_came_to_its_place_later() {
    for is_punched in [false, true] {
        let device = gated();
        let volume = open(&device);
        let lun = file(&volume, 100);
        write(&volume, lun, 1, 1, EARLY - 1).expect("there is room");
        device.shut(EARLY);
        std::thread::scope(|scope| {
            let place = scope.spawn(|| volume.place(1, u64::MAX));
            device.wait_for_waiting(1);
            if is_punched {
                volume.punch(lun, Lba(1), 1).expect("it is punched");
            } else {
                write(&volume, lun, 1, 1, 1000).expect("there is room");
                volume.place(1, u64::MAX).expect("it is written");
            }
            device.open(EARLY);
            place.join().expect("it ends").expect("it is written");
        });
        volume.flush().expect("it flushes");
        let after = cut(&device.device);
        assert_eq!(read(&after, lun, 1, 1), [if is_punched { 0 } else { 1001 }]);
        assert_sound(&after);
    }
}

#[test]
fn name_in_the_root_directory_is_not_durable_before_the_file_that_it_names() {
    let device = Arc::new(FaultDevice::new(Volume::device_bytes(1024, Role::Normal)));
    format(&*device, 1024);
    let volume = open(&device);
    let directory = volume.compound().create(FileKind::Directory, 4096).expect("there is room");
    assert_eq!(directory, ROOT_DIRECTORY);
    volume.consistency_point().expect("it commits");
    let lun = {
        let compound = volume.compound();
        let lun = compound.create(FileKind::Lun, 4096).expect("there is room");
        compound.write(directory, Lba(0), block(lun.0)).expect("there is room");
        lun
    };
    for is_placed in [true, false] {
        if is_placed {
            volume.place(1, u64::MAX).expect("it is written");
        }
        volume.flush().expect("it flushes");
        let after = cut(&device);
        let is_named = read(&after, directory, 0, 1) == [lun.0];
        assert_eq!(is_named, after.inode(lun).is_ok(), "both, or neither");
        volume.compound().write(directory, Lba(0), block(lun.0)).expect("there is room");
    }
    volume.consistency_point().expect("it commits");
    let after = cut(&device);
    assert_eq!(read(&after, directory, 0, 1), [lun.0]);
    assert!(after.inode(lun).is_ok());
}
