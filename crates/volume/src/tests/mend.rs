//! Openings on a device that has no room for their repairs.

use std::sync::atomic::{AtomicBool, Ordering};

use cairn_base::BLOCK_SIZE;
use cairn_device::{DeviceError, Geometry, Operation, Request};
use cairn_format::layout::{SUPERBLOCK_A, SUPERBLOCK_B};
use parking_lot::Mutex;

use super::*;
use crate::commit::superblock::read_slots;
use crate::log::mend::{Mends, Unmended};

/// A device that holds writes in memory and whose flush finds no room while it is full. Notes, by
/// offset, the writes since the last successful flush.
struct Full {
    device: MemoryDevice,
    is_full: AtomicBool,
    unflushed: Mutex<Vec<u64>>,
    flushed: Mutex<Vec<Vec<u64>>>,
}

impl Device for Full {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn run(&self, batch: &mut [Operation]) {
        for operation in batch.iter_mut().filter(|operation| operation.is_pending()) {
            match operation.request() {
                Request::Flush if self.is_full.load(Ordering::Relaxed) => {
                    operation.finish(Err(DeviceError::NoSpace { offset: 0, length: 0 }));
                    continue;
                }
                Request::Flush => self.flushed.lock().push(std::mem::take(&mut self.unflushed.lock())),
                Request::Write { offset, .. } => self.unflushed.lock().push(*offset),
                _ => {}
            }
            self.device.run(std::slice::from_mut(operation));
        }
    }
}

/// A full one, with a volume whose one superblock slot is torn, and a file of `4` that was flushed,
/// and is in the log alone.
fn torn() -> (Arc<Full>, FileId) {
    let device = MemoryDevice::new(Volume::device_bytes(4096, Role::Normal));
    format(&device, 4096);
    let (is_full, unflushed, flushed) = Default::default();
    let device = Arc::new(Full { device, is_full, unflushed, flushed });
    let volume = open(&device);
    let file = file(&volume, 8);
    write(&volume, file, 0, 8, 4).expect("there is room");
    volume.flush().expect("there is room");
    drop(volume);
    device.device.write_from(SUPERBLOCK_B * BLOCK_SIZE as u64, &[9; BLOCK_SIZE]).expect("it is torn");
    device.is_full.store(true, Ordering::Relaxed);
    device.flushed.lock().clear();
    (device, file)
}

#[test]
fn volume_opens_on_a_device_without_room_and_mends_before_it_changes_anything() {
    let (device, file) = torn();
    let volume = open(&device);
    assert_eq!(read(&volume, file, 0, 8), (4..12).collect::<Vec<_>>(), "what was flushed is there");
    device.unflushed.lock().clear();
    device.is_full.store(false, Ordering::Relaxed);
    write(&volume, file, 0, 1, 7).expect("there is room");
    volume.flush().expect("there is room now");
    let flushed = device.flushed.lock().clone();
    assert_eq!(
        flushed[0],
        [SUPERBLOCK_B * BLOCK_SIZE as u64],
        "that is durable before anything else is written"
    );
    assert!(read_slots(&device.device).expect("both are read").iter().all(Result::is_ok));
    assert!(flushed[1..].iter().flatten().all(|offset| *offset != SUPERBLOCK_B * BLOCK_SIZE as u64), "once");
    volume.consistency_point().expect("it goes on");
    assert_sound(&volume);
}

#[test]
fn volume_that_could_not_mend_takes_no_change_and_loses_nothing() {
    let (device, file) = torn();
    let volume = open(&device);
    write(&volume, file, 0, 1, 7).expect("it is in memory");
    volume.consistency_point().expect_err("there is no room");
    let only_mended = [SUPERBLOCK_A, SUPERBLOCK_B].map(|slot| slot * BLOCK_SIZE as u64);
    assert!(
        device.unflushed.lock().iter().all(|offset| only_mended.contains(offset)),
        "nothing else is written"
    );
    assert_eq!(read(&volume, file, 1, 7), (5..12).collect::<Vec<_>>(), "it is read all the same");
    drop(volume);
    device.is_full.store(false, Ordering::Relaxed);
    let volume = open(&device);
    assert_eq!(read(&volume, file, 0, 8), (4..12).collect::<Vec<_>>());
    assert_sound(&volume);
}

/// A device on which two steps are to be mended, and the one below it.
fn unmended() -> (Arc<Full>, Unmended) {
    let (is_full, unflushed, flushed) = Default::default();
    let device = Arc::new(Full { device: MemoryDevice::new(1 << 20), is_full, unflushed, flushed });
    let mut owed = Mends::default();
    owed.push(vec![(4096, block(1)), (8192, block(2))]);
    owed.push(Vec::new());
    owed.push(vec![(4096, block(3))]);
    (device.clone(), Unmended::new(device, owed))
}

/// How a device is changed.
type Way<'a> = &'a dyn Fn(&Unmended) -> Result<(), DeviceError>;

#[test]
fn whatever_changes_a_device_that_is_to_be_mended_waits_until_it_is_mended_once() {
    let write = || Operation::write(0, block(9).into());
    let run = |device: &Unmended| device.one(write()).map(drop);
    let begin = |device: &Unmended| device.begin(vec![write()]).wait();
    let prepare = |device: &Unmended| device.prepare(0, 4096);
    let ways: [Way<'_>; 3] = [&run, &begin, &prepare];
    for (number, change) in ways.iter().enumerate() {
        let (below, device) = unmended();
        below.is_full.store(true, Ordering::Relaxed);
        device.read(0, 4096).expect("a read waits for nothing");
        assert!(below.unflushed.lock().is_empty(), "{number}: nor does it mend");
        for _ in 0..2 {
            let refused = change(&device);
            assert!(matches!(refused, Err(DeviceError::NoSpace { .. })), "{number}: {refused:?}");
            assert_eq!(
                std::mem::take(&mut *below.unflushed.lock()),
                [4096, 8192],
                "{number}: from the first step on"
            );
        }
        below.is_full.store(false, Ordering::Relaxed);
        change(&device).expect("there is room");
        assert_eq!(std::mem::take(&mut *below.flushed.lock()), [vec![4096, 8192], vec![4096]], "{number}");
        // Once it is mended nothing is written for that any more.
        below.unflushed.lock().clear();
        change(&device).expect("there is room");
        device.one(Operation::flush()).expect("there is room");
        let written = below.flushed.lock().concat();
        assert!(written.iter().all(|offset| *offset == 0), "{number}: {written:?}");
    }
}

#[test]
fn device_that_is_to_be_mended_is_otherwise_the_one_below_it() {
    let (below, device) = unmended();
    assert_eq!(device.geometry(), below.geometry());
    let whole = below.geometry().length;
    let extents = |device: &dyn Device| device.extents(0, whole, 100).expect("they are known");
    assert_eq!(extents(&device), extents(&*below));
    assert!(!extents(&device).is_empty());
}
