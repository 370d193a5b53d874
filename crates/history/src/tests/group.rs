//! Clients that need each write durable at once share flushes.

use super::*;
use cairn_base::BLOCK_SIZE;
use cairn_device::{Extent, Geometry, Operation, Request};
use parking_lot::{Condvar, Mutex};

const B: usize = BLOCK_SIZE;
const CLIENTS: u64 = 12;

/// A store whose flushes wait at a gate.
struct Gated {
    inner: Arc<FaultDevice>,
    gate: Mutex<Gate>,
    changed: Condvar,
}

struct Gate {
    /// The number of flushes that may pass.
    passes: u64,
    /// Flushes that came to it.
    flushes: u64,
}

impl Gated {
    fn new(inner: Arc<FaultDevice>) -> Self {
        Self { inner, gate: Mutex::new(Gate { passes: u64::MAX, flushes: 0 }), changed: Condvar::new() }
    }

    fn set_closed(&self, closed: bool) {
        let mut gate = self.gate.lock();
        gate.passes = if closed { gate.flushes } else { u64::MAX };
        self.changed.notify_all();
    }

    /// Lets one more pass.
    fn let_pass(&self) {
        self.gate.lock().passes += 1;
        self.changed.notify_all();
    }

    /// Flushes so far, once there are `least`.
    fn flushes(&self, least: u64) -> u64 {
        let mut gate = self.gate.lock();
        self.changed.wait_while(&mut gate, |gate| gate.flushes < least);
        gate.flushes
    }
}

impl Device for Gated {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn run(&self, batch: &mut [Operation]) {
        if batch.iter().any(|operation| matches!(operation.request(), Request::Flush)) {
            let mut gate = self.gate.lock();
            gate.flushes += 1;
            let mine = gate.flushes;
            self.changed.notify_all();
            self.changed.wait_while(&mut gate, |gate| mine > gate.passes);
        }
        self.inner.run(batch);
    }

    fn extents(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<Extent>, DeviceError> {
        self.inner.extents(offset, length, limit)
    }
}

fn write_through(history: &History, block: u64, byte: u8) {
    let data = Segments::copy_of(&[byte; B]);
    let mut batch = [Operation::new(Request::Write { offset: block * B as u64, data, fua: true })];
    history.run(&mut batch);
    let [operation] = batch;
    operation.into_outcome().expect("a write");
}

#[test]
fn writes_that_have_to_be_durable_share_the_flush_that_begins_after_them_and_survive_a_cut() {
    let (origin, disk) = (Arc::new(MemoryDevice::new(64 * B as u64)), Arc::new(FaultDevice::new(4 * MIB)));
    let store = Arc::new(Gated::new(disk.clone()));
    let options = options(Placement::Logging, Granularity::EveryWrite, 4096);
    let open = open_options(&clock(), 1 << 20);
    let history = History::create(origin.clone(), store.clone(), &options, open.clone()).expect("a history");
    let before = store.flushes(0);
    store.set_closed(true);
    std::thread::scope(|scope| {
        scope.spawn(|| write_through(&history, 0, 1));
        store.flushes(before + 1);
        for client in 1..=CLIENTS {
            let history = &history;
            scope.spawn(move || write_through(history, client, client as u8 + 1));
        }
        // All of them have been taken, and none is durable: the first client's flush had begun
        // earlier.
        while history.state.lock().cache.bytes() < CLIENTS * B as u64 {
            std::thread::yield_now();
        }
        store.set_closed(false);
    });
    assert_eq!(store.flushes(0) - before, 2, "one for the first client, one for all who waited meanwhile");
    drop(history);
    let after = Arc::new(disk.power_cycle(&mut Rng::new(3)));
    let history = History::open(origin, after, open).expect("it opens");
    for client in 0..=CLIENTS {
        let found = bytes(&*history, client * B as u64, B).expect("a read");
        assert!(found == [client as u8 + 1; B], "the write of client {client} was durable");
    }
}

#[test]
fn client_whose_write_a_flush_has_made_durable_waits_for_no_other_work() {
    let (origin, disk) = (Arc::new(MemoryDevice::new(64 * B as u64)), Arc::new(FaultDevice::new(4 * MIB)));
    let store = Arc::new(Gated::new(disk));
    let options = options(Placement::Logging, Granularity::EveryWrite, 4096);
    let history =
        History::create(origin, store.clone(), &options, open_options(&clock(), 1 << 20)).expect("a history");
    let history = &*history;
    let (answered, told) = (&Mutex::new(0), &Condvar::new());
    let before = store.flushes(0);
    store.set_closed(true);
    let waited_in_vain = std::thread::scope(|scope| {
        scope.spawn(|| write_through(history, 0, 1));
        store.flushes(before + 1);
        for client in 1..=CLIENTS {
            scope.spawn(move || {
                write_through(history, client, 1);
                *answered.lock() += 1;
                told.notify_all();
            });
        }
        while history.state.lock().cache.bytes() < CLIENTS * B as u64 {
            std::thread::yield_now();
        }
        store.let_pass();
        // This flush is for all of them. As soon as it ends another thread enters, with long work.
        store.flushes(before + 2);
        store.let_pass();
        let long_work = loop {
            if let Some(writer) = history.writer.try_lock() {
                break writer;
            }
        };
        // The limit turns a hang into a failure.
        let mut answered = answered.lock();
        let waiting = |answered: &mut u64| *answered < CLIENTS;
        let result = told.wait_while_for(&mut answered, waiting, Duration::from_secs(10));
        drop(long_work);
        result.timed_out()
    });
    assert!(!waited_in_vain, "what is durable is answered");
    assert_eq!(store.flushes(0) - before, 2, "one for the first client, one for all who waited meanwhile");
}

#[test]
fn flush_that_failed_fails_all_who_would_have_shared_it() {
    let (origin, disk) = (Arc::new(MemoryDevice::new(64 * B as u64)), Arc::new(FaultDevice::new(4 * MIB)));
    let store = Arc::new(Gated::new(disk.clone()));
    let options = options(Placement::Logging, Granularity::EveryWrite, 4096);
    let history =
        History::create(origin, store.clone(), &options, open_options(&clock(), 1 << 20)).expect("a history");
    let before = store.flushes(0);
    store.set_closed(true);
    let try_write = |block: u64| {
        let data = Segments::copy_of(&[7; B]);
        let mut batch = [Operation::new(Request::Write { offset: block * B as u64, data, fua: true })];
        history.run(&mut batch);
        let [operation] = batch;
        operation.into_outcome().is_ok()
    };
    let try_write = &try_write;
    std::thread::scope(|scope| {
        let first = scope.spawn(move || try_write(0));
        store.flushes(before + 1);
        let others: Vec<_> = (1..=CLIENTS).map(|block| scope.spawn(move || try_write(block))).collect();
        while history.state.lock().cache.bytes() < CLIENTS * B as u64 {
            std::thread::yield_now();
        }
        disk.fail_next_operation(DeviceError::OutOfService);
        store.set_closed(false);
        assert!(!first.join().expect("no panic"));
        assert!(others.into_iter().all(|other| !other.join().expect("no panic")));
    });
}
