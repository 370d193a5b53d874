//! A device with a thread of its own: a batch begun here runs while the caller runs another one
//! elsewhere.
//!
//! For the device of an intent log: a flush waits for two devices, and should wait for the slower
//! one, not for both in turn. Handing a batch over costs some microseconds, against a device flush.
//! Everything but [`Device::begin`] runs on the caller's thread.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use crate::begun::outcome_of;
use crate::{Begun, Device, DeviceError, Extent, Geometry, Operation};

/// A device with a thread that runs the batches begun on it, one after the other. Dropping it waits
/// for those.
pub struct SideDevice {
    device: Arc<dyn Device>,
    /// `None` only while it is dropped.
    batches: Option<Sender<Batch>>,
    thread: Option<JoinHandle<()>>,
}

/// Operations, and the channel to their waiting caller.
struct Batch {
    operations: Vec<Operation>,
    done: Sender<Result<(), DeviceError>>,
}

impl SideDevice {
    /// Gives `device` a thread.
    pub fn new(device: Arc<dyn Device>) -> std::io::Result<Self> {
        let (batches, waiting) = channel();
        let below = device.clone();
        let thread = std::thread::Builder::new()
            .name("log-device".to_owned())
            .spawn(move || work(&*below, &waiting))?;
        Ok(Self { device, batches: Some(batches), thread: Some(thread) })
    }
}

fn work(device: &dyn Device, waiting: &Receiver<Batch>) {
    while let Ok(Batch { mut operations, done }) = waiting.recv() {
        device.run(&mut operations);
        // The caller may be gone, and then the outcome is not needed.
        let _ = done.send(outcome_of(operations));
    }
}

impl Device for SideDevice {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn run(&self, batch: &mut [Operation]) {
        self.device.run(batch);
    }

    fn run_ready(&self, batch: &mut [Operation]) {
        self.device.run_ready(batch);
    }

    fn begin(&self, operations: Vec<Operation>) -> Begun {
        let (done, outcome) = channel();
        let sent = self.batches.as_ref().map(|batches| batches.send(Batch { operations, done }));
        Begun::later(move || match sent {
            // Without an answer the thread has panicked, and the outcome of the batch is unknown.
            Some(Ok(())) => outcome.recv().unwrap_or(Err(DeviceError::OutOfService)),
            _ => Err(DeviceError::OutOfService),
        })
    }

    fn extents(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<Extent>, DeviceError> {
        self.device.extents(offset, length, limit)
    }

    fn prepare(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        self.device.prepare(offset, length)
    }

    fn allocate(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        self.device.allocate(offset, length)
    }
}

impl Drop for SideDevice {
    fn drop(&mut self) {
        self.batches = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of a log device panicked");
        }
    }
}
