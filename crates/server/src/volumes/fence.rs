//! What is between a device and one opening of the volume on it: once it is shut nothing comes
//! through.
//!
//! A volume can be closed and opened again beside whoever still has the opening before: a session
//! that ends, a transfer, a mount. What they have under way must not come into what is opened next.

use std::sync::Arc;

use cairn_device::{Device, DeviceError, Extent, Geometry, Operation};
use parking_lot::RwLock;

/// See above.
pub(super) struct Fence {
    below: Arc<dyn Device>,
    is_open: RwLock<bool>,
}

impl Fence {
    pub(super) fn new(below: Arc<dyn Device>) -> Self {
        Self { below, is_open: RwLock::new(true) }
    }

    /// Waits for what is under way, and lets nothing more through.
    pub(super) fn shut(&self) {
        *self.is_open.write() = false;
    }

    fn through<T>(&self, act: impl FnOnce(&dyn Device) -> Result<T, DeviceError>) -> Result<T, DeviceError> {
        let is_open = self.is_open.read();
        if *is_open { act(&*self.below) } else { Err(DeviceError::OutOfService) }
    }
}

impl Device for Fence {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn run(&self, batch: &mut [Operation]) {
        let is_open = self.is_open.read();
        if *is_open {
            return self.below.run(batch);
        }
        for operation in batch.iter_mut().filter(|operation| operation.is_pending()) {
            operation.finish(Err(DeviceError::OutOfService));
        }
    }

    fn extents(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<Extent>, DeviceError> {
        self.through(|below| below.extents(offset, length, limit))
    }

    fn prepare(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        self.through(|below| below.prepare(offset, length))
    }

    fn allocate(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        self.through(|below| below.allocate(offset, length))
    }
}
