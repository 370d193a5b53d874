//! A history against the suite of devices, damage, a full store, memory. Lives with power cuts are
//! the simulator's (kinds `history` and `history-every-cut`).

use std::sync::Arc;
use std::time::Duration;

use cairn_base::{HistoryId, ManualClock, Rng, Timestamp};
use cairn_device::{Device, DeviceError, FaultDevice, MemoryDevice, Segments, suite};

use crate::*;

mod below;
mod cuts;
mod damage;
mod group;
mod grow;
mod hostile;
mod index;
mod lost;
mod older;
mod opening;
mod order;
mod owed;
mod reduce;
mod release;
mod semantics;
mod views;
mod waits;

const SECOND: u64 = 1_000_000_000;
const MIB: u64 = 1 << 20;

fn options(placement: Placement, granularity: Granularity, block_bytes: u32) -> HistoryOptions {
    let window = Window::default();
    HistoryOptions { store: HistoryId([7; 16]), placement, granularity, block_bytes, window }
}

fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::new(Timestamp(1_700_000_000 * SECOND)))
}

fn open_options(clock: &Arc<ManualClock>, dirty_bytes: u64) -> OpenOptions {
    OpenOptions { dirty_bytes, read_bytes: 1 << 18, clock: clock.clone(), at_least: LogPosition::default() }
}

/// A history on two devices, and the devices.
struct Stack {
    history: Arc<History>,
    origin: Arc<MemoryDevice>,
    store: Arc<FaultDevice>,
    clock: Arc<ManualClock>,
}

impl Stack {
    fn new(options: &HistoryOptions, origin_bytes: u64, store_bytes: u64) -> Self {
        let (origin, store) =
            (Arc::new(MemoryDevice::new(origin_bytes)), Arc::new(FaultDevice::new(store_bytes)));
        let clock = clock();
        let open = open_options(&clock, 64 << 10);
        let history = History::create(origin.clone(), store.clone(), options, open).expect("a history");
        Self { history, origin, store, clock }
    }

    fn fill(&self, offset: u64, length: usize, byte: u8) {
        self.clock.advance(Duration::from_millis(10));
        self.history.write(offset, Segments::copy_of(&vec![byte; length])).expect("a write");
    }

    fn now(&self) -> Timestamp {
        self.history.status().last
    }

    fn reopen(&mut self) -> Result<(), HistoryError> {
        let open = open_options(&self.clock, 64 << 10);
        self.history = History::open(self.origin.clone(), self.store.clone(), open)?;
        Ok(())
    }
}

fn bytes(device: &dyn Device, offset: u64, length: usize) -> Result<Vec<u8>, DeviceError> {
    let mut bytes = vec![0; length];
    device.read_into(offset, &mut bytes).map(|()| bytes)
}

#[test]
fn every_placement_passes_the_suite_of_devices() {
    for (placement, granularity, block) in [
        (Placement::Checkpointing, Granularity::EveryWrite, 4096),
        (Placement::Checkpointing, Granularity::Marks, 65536),
        (Placement::Logging, Granularity::EveryWrite, 512),
        (Placement::Logging, Granularity::Marks, 8192),
        (Placement::SplitStream, Granularity::EveryWrite, 4096),
        (Placement::SplitDownStream, Granularity::Interval(SECOND), 1024),
        (Placement::Hybrid, Granularity::Interval(SECOND), 4096),
    ] {
        suite::run_suite(&|length| {
            let origin = Arc::new(MemoryDevice::new(length));
            let store = Arc::new(MemoryDevice::new(16 * MIB));
            let options = options(placement, granularity, block);
            History::create(origin, store, &options, open_options(&clock(), 100_000)).expect("a history")
        });
    }
}
