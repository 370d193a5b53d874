//! A device whose writes wait, for the tests of every front end.

use std::sync::Arc;
use std::time::Duration;

use cairn_device::{Device, DeviceError, Extent, Geometry, MemoryDevice, Operation, Request, park};
use parking_lot::{Condvar, Mutex};

/// The first byte of a write that waits.
pub const STALE: u8 = b'S';

/// Memory in which writes that begin with [`STALE`] wait until it is opened, as in a device without
/// room. They have `begun` before they do, or not.
pub struct Waiting {
    inner: MemoryDevice,
    begun: bool,
    /// How many wait, and whether it is open.
    state: Mutex<(usize, bool)>,
    changed: Condvar,
}

impl Waiting {
    pub fn new(bytes: u64, begun: bool) -> Arc<Self> {
        let (inner, state, changed) = (MemoryDevice::new(bytes), Mutex::default(), Condvar::new());
        Arc::new(Self { inner, begun, state, changed })
    }

    /// Waits until `count` writes wait.
    pub fn until_waiting(&self, count: usize) {
        let mut state = self.state.lock();
        while state.0 != count {
            self.changed.wait(&mut state);
        }
    }

    /// Releases all of them, and returns when they have continued.
    pub fn open(&self) {
        self.state.lock().1 = true;
        self.changed.notify_all();
        self.until_waiting(0);
    }

    pub fn first_byte(&self) -> u8 {
        self.inner.read(0, 1).unwrap().to_vec()[0]
    }
}

impl Device for Waiting {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn run(&self, batch: &mut [Operation]) {
        let waits = |operation: &Operation| match operation.request() {
            Request::Write { data, .. } => data.to_vec().first() == Some(&STALE),
            _ => false,
        };
        let waiting = batch.iter().filter(|operation| operation.is_pending() && waits(operation)).count();
        if !self.begun {
            park(batch);
        }
        let mut state = self.state.lock();
        state.0 += waiting;
        self.changed.notify_all();
        while waiting > 0 && !state.1 && (self.begun || !batch.iter().any(Operation::is_withdrawn)) {
            self.changed.wait_for(&mut state, Duration::from_millis(20));
        }
        batch
            .iter_mut()
            .filter(|operation| operation.is_pending())
            .for_each(|operation| _ = if waiting > 0 { operation.resume() } else { operation.begin() });
        self.inner.run(batch);
        state.0 -= waiting;
        self.changed.notify_all();
    }

    fn extents(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<Extent>, DeviceError> {
        self.inner.extents(offset, length, limit)
    }
}
