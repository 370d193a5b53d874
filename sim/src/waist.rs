//! The devices that a simulated volume sees: its own and that of its intent log, two parts of the
//! device that power cuts hit. At every operation other tasks may run, and an observer sees every
//! moment at which the power may fail.

use std::sync::Arc;

use cairn_base::Rng;
use cairn_device::{
    Begun, Device, DeviceError, Extent, FaultDevice, FaultPart, Geometry, Operation, Request,
};
use cairn_volume::Volume;
use parking_lot::Mutex;

use crate::tasks;

/// The volume's own device, and that of its log.
pub fn parts(device: &Arc<FaultDevice>) -> [FaultPart; 2] {
    let end = device.geometry().length;
    let border = end - Volume::LOG_DEVICE_BYTES_MIN;
    [device.part(0..border), device.part(border..end)]
}

/// The moment before a batch of operations: the power may go at each of them.
pub struct CutPoint {
    /// The device at that moment.
    pub device: FaultDevice,
    /// The pending operations, and their part of the device.
    pub batch: Vec<Request>,
    pub target: usize,
    /// Batches that were in progress at the same time.
    pub beside: Vec<(usize, Vec<Request>)>,
}

/// An observer of both.
pub struct Eye {
    device: Arc<FaultDevice>,
    rng: Rng,
    keeps: bool,
    kept: Vec<CutPoint>,
    /// Batches that were begun and wait for their turn.
    beside: Vec<(usize, Vec<Request>)>,
}

/// One of the devices, see the head of the file.
#[derive(Clone)]
pub struct Waist {
    below: FaultPart,
    number: usize,
    eye: Arc<Mutex<Eye>>,
}

impl Eye {
    /// An eye on a device, and its parts as the volume sees them. `rng` decides where tasks take
    /// turns.
    pub fn on(device: &Arc<FaultDevice>, rng: Rng) -> (Arc<Mutex<Eye>>, [Arc<Waist>; 2]) {
        let [first, second] = parts(device);
        let eye = Eye { device: device.clone(), rng, keeps: false, kept: Vec::new(), beside: Vec::new() };
        let eye = Arc::new(Mutex::new(eye));
        let waist = |number, below| Arc::new(Waist { below, number, eye: eye.clone() });
        let waists = [waist(0, first), waist(1, second)];
        (eye, waists)
    }

    /// Keeps every moment before a change from now on, or none. After each the task pauses.
    pub fn keep(&mut self, keeps: bool) {
        self.keeps = keeps;
    }

    /// The moments since the last call.
    pub fn take(&mut self) -> Vec<CutPoint> {
        std::mem::take(&mut self.kept)
    }

    /// Keeps the moment if it is one; true when the task must pause.
    fn look(&mut self, target: usize, batch: &[Operation]) -> bool {
        if self.keeps && !self.device.is_off() {
            let batch = changes(batch);
            if !batch.is_empty() {
                let device = self.device.fork();
                self.kept.push(CutPoint { device, batch, target, beside: self.beside.clone() });
                return true;
            }
        }
        self.rng.one_in(2)
    }
}

/// The operations of a batch at which a cut can occur.
fn changes(batch: &[Operation]) -> Vec<Request> {
    let counts = |operation: &&Operation| operation.is_flush() || operation.request().is_mutation();
    batch.iter().filter(counts).map(|operation| operation.request().clone()).collect()
}

impl Device for Waist {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn run(&self, batch: &mut [Operation]) {
        let pause = self.eye.lock().look(self.number, batch);
        if pause {
            tasks::switch();
        }
        self.below.run(batch);
        let pause = self.eye.lock().rng.one_in(4);
        if pause {
            tasks::switch();
        }
    }

    fn begin(&self, mut batch: Vec<Operation>) -> Begun {
        let later = {
            let mut eye = self.eye.lock();
            let later = eye.rng.one_in(2);
            if later {
                eye.beside.push((self.number, changes(&batch)));
            }
            later
        };
        if !later {
            self.run(&mut batch);
            return Begun::done(batch);
        }
        let device = self.eye.lock().device.clone();
        let was_on = !device.is_off();
        let own = self.clone();
        Begun::later(move || {
            own.eye.lock().beside.retain(|(number, _)| *number != own.number);
            if was_on && device.is_off() {
                own.below.catch(&mut batch);
            } else {
                own.run(&mut batch);
            }
            batch.into_iter().try_for_each(Operation::into_outcome)
        })
    }

    fn run_ready(&self, batch: &mut [Operation]) {
        self.below.run_ready(batch);
    }

    fn extents(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<Extent>, DeviceError> {
        self.below.extents(offset, length, limit)
    }
}
