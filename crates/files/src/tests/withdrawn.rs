//! Writes to a LUN that wait for the volume's work for others, and are withdrawn meanwhile.

use std::sync::Arc;
use std::time::Instant;

use cairn_base::{ManualClock, Timestamp, VolumeId};
use cairn_device::{
    Device, DeviceError, Extent, Gate, Geometry, MemoryDevice, Operation, Request, Segments, admit,
};
use cairn_volume::{FormatOptions, OpenOptions, Role, Volume};
use parking_lot::{Condvar, Mutex};

use crate::Luns;

const MIB: u64 = 1 << 20;
/// Bytes of a write.
const STEP: u64 = 64 << 10;

/// Memory whose writes wait while it is stuck, as on a history without room.
struct Stuck {
    inner: MemoryDevice,
    /// Whether it is, and how many wait.
    state: Mutex<(bool, usize)>,
    changed: Condvar,
}

impl Device for Stuck {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn run(&self, batch: &mut [Operation]) {
        if batch.iter().any(|operation| operation.request().is_mutation()) {
            let mut state = self.state.lock();
            state.1 += 1;
            self.changed.notify_all();
            while state.0 {
                self.changed.wait(&mut state);
            }
            state.1 -= 1;
        }
        self.inner.run(batch);
    }

    fn extents(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<Extent>, DeviceError> {
        self.inner.extents(offset, length, limit)
    }
}

#[test]
fn write_that_waits_in_a_volume_is_dropped_when_it_is_withdrawn_and_never_comes_later() {
    let whole =
        |at: u64| Request::Write { offset: at, data: Segments::copy_of(&[2; STEP as usize]), fua: false };
    let part = |at: u64| Request::Write {
        offset: at + 512,
        data: Segments::copy_of(&[2; STEP as usize - 1024]),
        fua: true,
    };
    let zeroes = |at: u64| Request::WriteZeroes { offset: at, length: STEP, may_trim: false, fua: false };
    let kinds: [&(dyn Fn(u64) -> Request + Sync); 3] = [&whole, &part, &zeroes];
    for (kind, request) in kinds.into_iter().enumerate() {
        let inner = MemoryDevice::new(Volume::device_bytes(8192, Role::Normal));
        let options = FormatOptions { id: VolumeId([7; 16]), blocks: 8192, role: Role::Normal };
        Volume::format(&inner, &options, &ManualClock::new(Timestamp(1))).unwrap();
        let device = Arc::new(Stuck { inner, state: Mutex::default(), changed: Condvar::new() });
        let clock = Arc::new(ManualClock::new(Timestamp(1)));
        let volume = Volume::open(device.clone(), OpenOptions { cache_bytes: 4 * MIB, clock }).unwrap();
        let luns = Luns::new(volume);
        luns.create("disk", 8 * MIB).unwrap();
        let lun = luns.open("disk").unwrap();
        lun.write_from(0, &vec![1; 8 * MIB as usize]).unwrap();
        lun.flush().unwrap();
        device.state.lock().0 = true;
        let gate = Gate::new(Box::new(|_| false));
        let at = std::thread::scope(|scope| {
            let client = scope.spawn(|| {
                (0..8 * MIB).step_by(STEP as usize).find(|at| {
                    let mut batch = [Operation::new(request(*at)).of(gate.ticket(1))];
                    admit(&mut batch);
                    lun.run(&mut batch);
                    let [operation] = batch;
                    matches!(operation.into_outcome(), Err(DeviceError::Withdrawn))
                })
            });
            let mut state = device.state.lock();
            while state.1 == 0 {
                device.changed.wait(&mut state);
            }
            assert!(gate.wait(Instant::now()), "{kind}: nothing of what waits has happened");
            gate.close();
            state.0 = false;
            device.changed.notify_all();
            drop(state);
            client.join().unwrap()
        });
        let at = at.expect("one had to wait");
        let mut bytes = vec![0; STEP as usize];
        lun.read_into(at, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 1), "{kind}: it never comes");
    }
}
