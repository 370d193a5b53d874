//! Openings on a device that has no room for what they have to mend.

use std::sync::atomic::{AtomicBool, Ordering};

use cairn_base::BLOCK_SIZE;
use cairn_device::{DeviceError, Geometry, Operation, Request};
use cairn_format::layout::{SUPERBLOCK_A, SUPERBLOCK_B};
use parking_lot::Mutex;

use super::*;
use crate::open::read_slots;

/// What is written is in its memory, and a flush finds no room as long as it is full. What it was given since the last flush that found some is noted, by offset.
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

/// A full one, with a volume of which one superblock slot is torn, and a file of `4` that was flushed, and is in the log alone.
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
