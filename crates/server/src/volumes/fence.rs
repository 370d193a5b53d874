//! A fence between a device and one opening of the volume on it: after it is shut no request
//! passes.
//!
//! A volume can be closed and reopened while users of the earlier opening remain: a closing
//! session, a transfer, a mount. Their requests must not reach the next opening.

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

    /// Waits for requests in progress, and blocks all later ones.
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
