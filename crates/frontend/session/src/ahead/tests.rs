use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cairn_device::{Device, Geometry, Operation, Request, Segments};
use parking_lot::{Condvar, Mutex};

use super::{BLOCK, Found, IN_ORDER_MIN, MISSES_MAX, PART_FIRST, PART_MAX, ReadAhead, Stream};

const LENGTH: u64 = 256 << 20;
const READ: u64 = 128 << 10;

/// A disk below a memory of blocks. Each block has its number in it.
#[derive(Default)]
struct Disk {
    memory: Mutex<BTreeSet<u64>>,
    /// It has no memory, so prefetches do nothing.
    forgetful: bool,
    /// Blocks that came from the disk.
    loaded: AtomicU64,
    prefetched: AtomicU64,
    /// Prefetches wait while it is set.
    held: Mutex<bool>,
    changed: Condvar,
}

impl Disk {
    fn hold(&self, held: bool) {
        *self.held.lock() = held;
        self.changed.notify_all();
    }

    fn load(&self, block: u64) -> bool {
        self.loaded.fetch_add(1, Ordering::Relaxed);
        !self.forgetful && self.memory.lock().insert(block)
    }
}

impl Device for Disk {
    fn geometry(&self) -> Geometry {
        Geometry { length: LENGTH, alignment: 1, read_only: false, trims: false, fast_zeroes: false }
    }

    fn run(&self, batch: &mut [Operation]) {
        for operation in batch.iter_mut().filter(|operation| operation.is_pending()) {
            match *operation.request() {
                Request::Read { offset, length } => {
                    for block in offset / BLOCK..(offset + u64::from(length)).div_ceil(BLOCK) {
                        if !self.memory.lock().contains(&block) {
                            self.load(block);
                        }
                    }
                    operation.finish(Ok(content(offset, length)));
                }
                Request::Prefetch { offset, length } => {
                    let mut held = self.held.lock();
                    while *held {
                        self.changed.wait(&mut held);
                    }
                    drop(held);
                    for block in offset / BLOCK..(offset + length).div_ceil(BLOCK) {
                        if !self.forgetful && !self.memory.lock().contains(&block) {
                            self.load(block);
                            self.prefetched.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    operation.succeed();
                }
                _ => operation.succeed(),
            }
        }
    }

    fn run_ready(&self, batch: &mut [Operation]) {
        for operation in batch.iter_mut().filter(|operation| operation.is_pending()) {
            let Request::Read { offset, length } = *operation.request() else { continue };
            let mut blocks = offset / BLOCK..(offset + u64::from(length)).div_ceil(BLOCK);
            if blocks.all(|block| self.memory.lock().contains(&block)) {
                operation.finish(Ok(content(offset, length)));
            }
        }
    }
}

fn content(offset: u64, length: u32) -> Segments {
    let bytes: Vec<u8> = (offset..offset + u64::from(length)).map(|at| (at / BLOCK) as u8).collect();
    Segments::copy_of(&bytes)
}

/// Reads as a session does: from memory first, then the rest.
fn read(device: &dyn Device, offset: u64, length: u64) {
    let mut batch = [Operation::read(offset, length as u32)];
    device.run_ready(&mut batch);
    device.run(&mut batch);
    let [operation] = batch;
    let data = operation.into_data().expect("the disk is sound");
    assert_eq!(data.to_vec(), content(offset, length as u32).to_vec());
}

#[test]
fn stream_is_read_once_and_ahead_of_its_client() {
    let disk = Arc::new(Disk::default());
    let device = ReadAhead::new(disk.clone());
    for offset in (0..LENGTH).step_by(READ as usize) {
        read(&device, offset, READ);
    }
    assert_eq!(disk.loaded.load(Ordering::Relaxed), LENGTH / BLOCK, "each block came once");
    let ahead = disk.prefetched.load(Ordering::Relaxed);
    assert!(ahead > LENGTH / BLOCK * 8 / 10, "{ahead} blocks came ahead of the client");
}

#[test]
fn read_that_needs_a_part_on_its_way_waits_for_it() {
    let disk = Arc::new(Disk::default());
    let device = Arc::new(ReadAhead::new(disk.clone()));
    disk.hold(true);
    let mut offset = 0;
    while device.shared.state.lock().current.is_none() && offset < LENGTH {
        // In order, up to the first part that is asked for.
        let mut batch = [Operation::read(offset, READ as u32)];
        device.run_ready(&mut batch);
        let read = offset..offset + READ;
        if device.shared.state.lock().is_on_its_way(std::slice::from_ref(&read)) {
            break;
        }
        disk.run(&mut batch);
        offset += READ;
    }
    assert!(offset <= 2 * IN_ORDER_MIN, "nothing was asked for up to {offset}");
    let loaded = disk.loaded.load(Ordering::Relaxed);
    let reader = {
        let device = device.clone();
        let at = device.shared.state.lock().stream.next;
        std::thread::spawn(move || read(&*device, at, READ))
    };
    disk.hold(false);
    reader.join().expect("it reads");
    // The part that is on its way is brought in to its end.
    drop(device);
    let parts = disk.loaded.load(Ordering::Relaxed) - loaded;
    assert_eq!(parts % (PART_FIRST / BLOCK), 0, "only whole parts were loaded, and nothing twice");
}

#[test]
fn part_that_hangs_holds_up_neither_a_read_for_long_nor_the_end_of_the_session() {
    let disk = Arc::new(Disk::default());
    let device = ReadAhead::new(disk.clone());
    disk.hold(true);
    let began = Instant::now();
    for offset in (0..8 << 20).step_by(READ as usize) {
        read(&device, offset, READ);
    }
    drop(device);
    // One read waits for a second, and so does the end.
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!(disk.prefetched.load(Ordering::Relaxed), 0);
    disk.hold(false);
}

#[test]
fn nothing_is_asked_for_at_random_in_memory_or_without_memory() {
    let disk = Arc::new(Disk::default());
    let device = ReadAhead::new(disk.clone());
    let mut rng = cairn_base::Rng::new(7);
    for _ in 0..2000 {
        read(&device, rng.below(LENGTH / BLOCK) * BLOCK, BLOCK);
    }
    assert_eq!(disk.prefetched.load(Ordering::Relaxed), 0);

    disk.memory.lock().extend(0..LENGTH / BLOCK);
    for offset in (0..LENGTH).step_by(READ as usize) {
        read(&device, offset, READ);
    }
    assert_eq!(disk.prefetched.load(Ordering::Relaxed), 0);
    assert!(device.thread.lock().is_none(), "no thread was needed");

    let disk = Arc::new(Disk { forgetful: true, ..Disk::default() });
    let device = ReadAhead::new(disk.clone());
    for offset in (0..LENGTH).step_by(READ as usize) {
        read(&device, offset, READ);
    }
    assert!(device.shared.state.lock().stream.misses >= MISSES_MAX);
    assert_eq!(disk.loaded.load(Ordering::Relaxed), LENGTH / BLOCK);
}

#[test]
fn device_is_released_when_the_session_ends() {
    let disk = Arc::new(Disk::default());
    let device = ReadAhead::new(disk.clone());
    for offset in (0..16 << 20).step_by(READ as usize) {
        read(&device, offset, READ);
    }
    assert!(device.thread.lock().is_some());
    drop(device);
    assert_eq!(Arc::strong_count(&disk), 1);
}

#[test]
fn parts_grow_and_stay_near_the_client() {
    let mut stream = Stream::default();
    let mut asked = 0;
    let mut longest = 0;
    for offset in (0..LENGTH).step_by(READ as usize) {
        let found = if offset + READ <= asked { Found::InMemory } else { Found::Missing };
        if let Some(part) = stream.note(offset..offset + READ, found, LENGTH) {
            assert!(part.start >= asked, "no part is asked for twice");
            assert!(part.end <= LENGTH);
            assert!(part.end - stream.next <= 2 * PART_MAX, "it is near");
            longest = longest.max(part.end - part.start);
            asked = part.end;
        }
    }
    assert_eq!(longest, PART_MAX);
    assert_eq!(asked, LENGTH);
    // A place elsewhere begins another stream.
    assert_eq!(stream.note(0..READ, Found::Missing, LENGTH), None);
    assert_eq!(stream.asked, 0);
    // Reads a little out of order continue it.
    let mut stream = Stream::default();
    let mut parts = 0;
    for pair in (0..32 << 20).step_by(2 * READ as usize) {
        for offset in [pair + READ, pair] {
            parts += u32::from(stream.note(offset..offset + READ, Found::OnItsWay, LENGTH).is_some());
        }
    }
    assert!(parts > 2, "{parts} parts");
}
