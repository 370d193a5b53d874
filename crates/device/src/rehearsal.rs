//! Faults put under a device on purpose, by an owner who wants to see how clients, monitoring and
//! operators handle them.
//!
//! - *Delay*: each batch takes that much longer.
//! - *Failures*: one in N reads, writes or flushes fails, at random, as with real hardware.
//! - *Losing unflushed data*: writes stay in memory here, as in the volatile cache of a disk, until
//!   a flush, a write with FUA, or until the cache is full. When the program is killed they are
//!   gone. A killed program alone loses none of its writes, since the kernel and the disk still
//!   have them: with this, SIGKILL is a power cut.
//!
//! Clients may only see what a bad device does to them: no flushed data is lost, and no wrong byte
//! is read. The simulator's [`FaultDevice`](crate::FaultDevice) goes further (torn and misdirected
//! writes, rot), on a medium of its own.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use cairn_base::{BLOCK_SIZE, Rng};
use parking_lot::{Mutex, RwLock};

use crate::{Action, Block, BlockMut, Device, DeviceError, Extent, Geometry, Operation, Request, Segments};

const BLOCK: u64 = BLOCK_SIZE as u64;
/// Blocks that are held back at most, 64 MiB, as much as the cache of a disk has: then the device
/// gets all of them, without a flush.
const HELD_MAX: usize = 16384;

/// The faults, and how often each occurs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Faults {
    /// Each batch takes this much longer.
    pub delay: Duration,
    /// One in this many reads fails; 0 for none.
    pub reads_one_in: u64,
    /// One in this many writes, trims and write-zeroes fails; 0 for none.
    pub writes_one_in: u64,
    /// One in this many flushes fails; 0 for none.
    pub flushes_one_in: u64,
    /// Unflushed writes are lost when the program is killed.
    pub lose_unflushed: bool,
}

/// The faults of the devices of one volume, to be changed while they are in use.
#[derive(Debug)]
pub struct Rehearsal {
    faults: RwLock<Faults>,
    /// Whether devices have to check the faults at all.
    active: AtomicBool,
    rng: Mutex<Rng>,
    failed: AtomicU64,
}

impl Rehearsal {
    /// No faults yet; chance comes from `seed`.
    pub fn new(seed: u64) -> Self {
        Self {
            faults: RwLock::default(),
            active: AtomicBool::new(false),
            rng: Mutex::new(Rng::new(seed)),
            failed: AtomicU64::new(0),
        }
    }

    /// Sets the faults from now on. Writes that were held back before go to the device with its
    /// next operation.
    pub fn set(&self, faults: Faults) {
        *self.faults.write() = faults;
        // It stays on: devices may hold some data back.
        self.active.store(true, Ordering::Release);
    }

    /// The present faults.
    pub fn faults(&self) -> Faults {
        *self.faults.read()
    }

    /// Operations that failed on purpose so far.
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    fn fails(&self, request: &Request, faults: &Faults) -> bool {
        let one_in = match request {
            Request::Read { .. } => faults.reads_one_in,
            Request::Prefetch { .. } => 0,
            Request::Flush => faults.flushes_one_in,
            Request::Write { .. } | Request::Trim { .. } | Request::WriteZeroes { .. } => {
                faults.writes_one_in
            }
        };
        let fails = one_in > 0 && self.rng.lock().one_in(one_in);
        self.failed.fetch_add(u64::from(fails), Ordering::Relaxed);
        fails
    }
}

/// A device with the faults of a [`Rehearsal`]. Without any it costs one check of a flag for each
/// batch.
pub struct RehearsalDevice {
    device: Arc<dyn Device>,
    rehearsal: Arc<Rehearsal>,
    /// Blocks by their number that the device below does not have yet. Locked while the device
    /// below is used, when unflushed writes are held.
    held: Mutex<BTreeMap<u64, Block>>,
}

impl RehearsalDevice {
    /// Puts `rehearsal` over `device`. Offsets and lengths of requests are multiples of 4096 from
    /// then on.
    pub fn new(device: Arc<dyn Device>, rehearsal: Arc<Rehearsal>) -> Self {
        Self { device, rehearsal, held: Mutex::default() }
    }

    /// Passes all held-back writes to the device below, and with `flush` makes them durable.
    fn drain(&self, held: &mut BTreeMap<u64, Block>, flush: bool) -> Result<(), DeviceError> {
        let mut batch: Vec<Operation> = Vec::new();
        let mut run: Option<(u64, Segments)> = None;
        for (number, block) in &*held {
            match &mut run {
                Some((offset, data)) if *offset + data.len() as u64 == number * BLOCK => {
                    data.push_block(block.clone());
                }
                _ => {
                    let begun = (number * BLOCK, Segments::from(block.clone()));
                    batch.extend(run.replace(begun).map(|(offset, data)| Operation::write(offset, data)));
                }
            }
        }
        batch.extend(run.map(|(offset, data)| Operation::write(offset, data)));
        if flush {
            batch.push(Operation::flush());
        }
        self.device.run(&mut batch);
        batch.into_iter().try_for_each(Operation::into_outcome)?;
        held.clear();
        Ok(())
    }

    /// Performs a request on the held-back data; `None` when it is for the device below alone.
    fn hold(
        &self,
        request: &Request,
        held: &mut BTreeMap<u64, Block>,
    ) -> Option<Result<Segments, DeviceError>> {
        if let Request::Read { offset, length } = request {
            let (first, end) = (offset / BLOCK, (offset + u64::from(*length)) / BLOCK);
            held.range(first..end).next()?;
        }
        Some(self.perform(request, held))
    }

    fn perform(&self, request: &Request, held: &mut BTreeMap<u64, Block>) -> Result<Segments, DeviceError> {
        match request {
            Request::Write { offset, data, fua } => {
                for (number, block) in (offset / BLOCK..).zip(blocks_of(data)) {
                    held.insert(number, block);
                }
                self.after_write(held, *fua)
            }
            Request::Trim { offset, length, fua } | Request::WriteZeroes { offset, length, fua, .. } => {
                if length / BLOCK > HELD_MAX as u64 {
                    self.drain(held, false)?;
                    self.device.one(Operation::new(request.clone()))?;
                } else {
                    for number in offset / BLOCK..(offset + length) / BLOCK {
                        held.insert(number, Block::zero());
                    }
                }
                self.after_write(held, *fua)
            }
            Request::Flush => self.drain(held, true).map(|()| Segments::default()),
            Request::Read { offset, length } => {
                let below = self.device.read(*offset, *length)?;
                let mut data = Segments::default();
                for (number, block) in (offset / BLOCK..).zip(blocks_of(&below)) {
                    data.push_block(held.get(&number).cloned().unwrap_or(block));
                }
                Ok(data)
            }
            Request::Prefetch { .. } => Ok(Segments::default()),
        }
    }

    fn after_write(&self, held: &mut BTreeMap<u64, Block>, fua: bool) -> Result<Segments, DeviceError> {
        if fua || held.len() > HELD_MAX {
            self.drain(held, fua)?;
        }
        Ok(Segments::default())
    }
}

fn blocks_of(data: &Segments) -> Vec<Block> {
    if data.iter().all(|piece| piece.as_whole().is_some()) {
        return data.iter().filter_map(|piece| piece.as_whole()).cloned().collect();
    }
    let copy = |chunk: &[u8]| {
        let mut block = BlockMut::zeroed();
        block.copy_from_slice(chunk);
        block.freeze()
    };
    data.to_vec().chunks_exact(BLOCK_SIZE).map(copy).collect()
}

fn failure(request: &Request) -> DeviceError {
    let (action, offset, length) = request.range().unwrap_or((Action::Flush, 0, 0));
    let source = Arc::new(io::Error::other("a rehearsed failure"));
    DeviceError::Io { action, offset, length, source }
}

impl Device for RehearsalDevice {
    fn geometry(&self) -> Geometry {
        let below = self.device.geometry();
        Geometry { alignment: below.alignment.max(BLOCK_SIZE as u32), ..below }
    }

    fn run(&self, batch: &mut [Operation]) {
        if !self.rehearsal.active.load(Ordering::Acquire) {
            return self.device.run(batch);
        }
        let faults = self.rehearsal.faults();
        if !faults.delay.is_zero() {
            std::thread::sleep(faults.delay);
        }
        let geometry = self.geometry();
        for operation in batch.iter_mut().filter(|operation| operation.is_pending()) {
            if let Err(refused) = geometry.admit(operation.request()) {
                operation.finish(Err(refused));
            } else if self.rehearsal.fails(operation.request(), &faults) {
                operation.finish(Err(failure(operation.request())));
            }
        }
        let mut held = self.held.lock();
        if faults.lose_unflushed {
            for operation in batch.iter_mut().filter(|operation| operation.is_pending()) {
                if let Some(outcome) = self.hold(operation.request(), &mut held) {
                    operation.finish(outcome);
                }
            }
            // Reads of other data. The lock is kept, or they might miss data that is drained
            // meanwhile.
            return self.device.run(batch);
        }
        if !held.is_empty()
            && let Err(error) = self.drain(&mut held, false)
        {
            for operation in batch.iter_mut().filter(|operation| operation.is_pending()) {
                operation.finish(Err(error.clone()));
            }
            return;
        }
        drop(held);
        self.device.run(batch);
    }

    fn extents(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<Extent>, DeviceError> {
        let mut held = self.held.lock();
        if !held.is_empty() {
            self.drain(&mut held, false)?;
        }
        self.device.extents(offset, length, limit)
    }

    fn prepare(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        self.device.prepare(offset, length)
    }

    fn allocate(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        self.device.allocate(offset, length)
    }
}

#[cfg(test)]
mod tests;
