//! In which order the two devices are written.

use super::*;
use cairn_base::BLOCK_SIZE;
use cairn_device::{Extent, Geometry, Operation, Request};
use parking_lot::Mutex;

const B: usize = BLOCK_SIZE;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Done {
    StoreWritten,
    StoreFlushed,
    OriginWritten,
}

/// A device that records its operations.
struct Noted {
    inner: MemoryDevice,
    written: Done,
    flushed: Option<Done>,
    all: Arc<Mutex<Vec<Done>>>,
}

impl Device for Noted {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn run(&self, batch: &mut [Operation]) {
        for operation in &*batch {
            match operation.request() {
                Request::Flush => self.all.lock().extend(self.flushed),
                request if request.is_mutation() => self.all.lock().push(self.written),
                _ => {}
            }
        }
        self.inner.run(batch);
    }

    fn extents(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<Extent>, DeviceError> {
        self.inner.extents(offset, length, limit)
    }
}

#[test]
fn origin_is_written_only_when_the_log_that_tells_of_it_is_durable() {
    for placement in Placement::ALL {
        let all = Arc::new(Mutex::new(Vec::new()));
        let noted = |bytes: u64, written, flushed| {
            Arc::new(Noted { inner: MemoryDevice::new(bytes), written, flushed, all: all.clone() })
        };
        let origin = noted(64 * B as u64, Done::OriginWritten, None);
        let store = noted(4 * MIB, Done::StoreWritten, Some(Done::StoreFlushed));
        let clock = clock();
        let mut options = options(placement, Granularity::EveryWrite, 4096);
        options.window.time = Some(Duration::from_secs(1));
        let history =
            History::create(origin, store, &options, open_options(&clock, 64 << 10)).expect("a history");
        let mut rng = Rng::new(9);
        for round in 0..400u64 {
            clock.advance(Duration::from_millis(10));
            let data = Segments::copy_of(&[round as u8; B]);
            history.write(rng.below(64) * B as u64, data).expect("a write");
            if round % 50 == 0 {
                history.flush().expect("a flush");
            }
            if round == 200 {
                history.revert(Timestamp(history.status().last.0 - SECOND / 2)).expect("a revert");
            }
            while history.step().expect("a step") {}
        }
        let all = all.lock();
        let origin_writes = all.iter().filter(|done| **done == Done::OriginWritten).count();
        assert!(origin_writes > 20, "{placement:?}: {origin_writes} writes to the origin");
        let mut durable = true;
        for (at, done) in all.iter().enumerate() {
            match done {
                Done::StoreWritten => durable = false,
                Done::StoreFlushed => durable = true,
                Done::OriginWritten => assert!(durable, "{placement:?}: operation {at} is too early"),
            }
        }
    }
}
