//! Repairs that an opening must make before anything else is written: remains of records in the
//! log, and superblock slots.
//!
//! A device without room at the moment, such as one on a full history that keeps its content, does
//! not prevent the opening. Readable data can be read. The first change writes all repairs and
//! makes them durable before itself, from the first step on: a failed flush has made nothing
//! durable.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cairn_device::{Begun, Block, Device, DeviceError, Extent, Geometry, Operation, Request};

use crate::locks::Mutex;

/// Blocks to write, by their offsets, in steps: each is durable before the next one.
#[derive(Default)]
pub(crate) struct Mends(Vec<Vec<(u64, Block)>>);

impl Mends {
    /// Adds the next step, unless there is nothing to write in it.
    pub(crate) fn push(&mut self, step: Vec<(u64, Block)>) {
        if !step.is_empty() {
            self.0.push(step);
        }
    }

    /// Writes all of it, durably.
    pub(crate) fn write(&self, device: &dyn Device) -> Result<(), DeviceError> {
        for step in &self.0 {
            let write = |(offset, block): &(u64, Block)| Operation::write(*offset, block.clone().into());
            let mut operations: Vec<Operation> = step.iter().map(write).collect();
            operations.push(Operation::flush());
            device.run(&mut operations);
            operations.into_iter().try_for_each(Operation::into_outcome)?;
        }
        Ok(())
    }
}

/// A device with repairs still to be written.
pub(crate) struct Unmended {
    below: Arc<dyn Device>,
    is_owed: AtomicBool,
    /// Locked while it is written: other changes wait for it, and reads do not.
    owed: Mutex<Mends>,
}

impl Unmended {
    pub(crate) fn new(below: Arc<dyn Device>, owed: Mends) -> Self {
        Self { below, is_owed: AtomicBool::new(true), owed: Mutex::new(owed) }
    }

    fn mend(&self) -> Result<(), DeviceError> {
        if !self.is_owed.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut owed = self.owed.lock();
        owed.write(&*self.below)?;
        *owed = Mends::default();
        self.is_owed.store(false, Ordering::Release);
        Ok(())
    }

    /// Refuses the changes of a batch as long as nothing could be mended.
    fn mend_before(&self, batch: &mut [Operation]) {
        let changes = |operation: &&mut Operation| {
            let reads = matches!(operation.request(), Request::Read { .. } | Request::Prefetch { .. });
            operation.is_pending() && !reads
        };
        if self.is_owed.load(Ordering::Acquire)
            && batch.iter_mut().any(|operation| changes(&operation))
            && let Err(error) = self.mend()
        {
            for operation in batch.iter_mut().filter(changes) {
                operation.finish(Err(error.clone()));
            }
        }
    }
}

impl Device for Unmended {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn run(&self, batch: &mut [Operation]) {
        self.mend_before(batch);
        self.below.run(batch);
    }

    fn begin(&self, mut batch: Vec<Operation>) -> Begun {
        self.mend_before(&mut batch);
        self.below.begin(batch)
    }

    fn extents(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<Extent>, DeviceError> {
        self.below.extents(offset, length, limit)
    }

    fn prepare(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        self.mend()?;
        self.below.prepare(offset, length)
    }

    fn allocate(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        self.below.allocate(offset, length)
    }
}
