//! A store that becomes longer in use.

use super::*;

const B: usize = 4096;
const BLOCKS: u64 = 256;

/// Overwrites a quarter of the device with the number of the round.
fn round(history: &History, clock: &ManualClock, round: u64) {
    clock.advance(Duration::from_millis(10));
    let data = Segments::copy_of(&vec![round as u8; 64 * B]);
    history.write(round % 4 * 64 * B as u64, data).expect("a write");
    history.flush().expect("a flush");
}

struct Grown {
    history: Arc<History>,
    origin: Arc<MemoryDevice>,
    store: Arc<MemoryDevice>,
    clock: Arc<ManualClock>,
}

impl Grown {
    fn new(placement: Placement) -> Self {
        let (origin, store) =
            (Arc::new(MemoryDevice::new(BLOCKS * B as u64)), Arc::new(MemoryDevice::new(4 * MIB)));
        let clock = clock();
        let options = options(placement, Granularity::EveryWrite, 4096);
        let history =
            History::create(origin.clone(), store.clone(), &options, open_options(&clock, 64 << 10))
                .expect("a history");
        Self { history, origin, store, clock }
    }

    fn reopen(&mut self) {
        let opened =
            History::open(self.origin.clone(), self.store.clone(), open_options(&self.clock, 64 << 10));
        self.history = opened.expect("it opens");
    }
}

#[test]
fn store_that_becomes_longer_keeps_all_that_a_short_one_would_discard() {
    for placement in Placement::ALL {
        let mut grown = Grown::new(placement);
        let small = grown.history.status();
        for number in 0..6 {
            round(&grown.history, &grown.clock, number);
        }
        let at = grown.history.status().last;
        let bytes_now = grown.history.grow_store(Some(64 * MIB)).expect("it grows");
        assert!(bytes_now > 63 * MIB && bytes_now == grown.history.status().store_bytes, "{placement:?}");
        // 36 MiB: nine times the store as it was made.
        for number in 6..150 {
            round(&grown.history, &grown.clock, number);
        }
        grown.reopen();
        let status = grown.history.status();
        assert_eq!(status.store_bytes, bytes_now, "{placement:?}");
        assert_eq!(status.start, small.start, "{placement:?}: no history was discarded");
        let view = grown.history.view(at).expect("an instant before it grew");
        for stretch in 0..4u64 {
            let round = if stretch < 2 { stretch + 4 } else { stretch };
            let found = bytes(&view, stretch * 64 * B as u64, 64 * B).expect("a read");
            assert!(found.iter().all(|byte| *byte == round as u8), "{placement:?}: stretch {stretch}");
        }
    }
}

#[test]
fn store_takes_the_length_that_its_device_has_got() {
    let mut grown = Grown::new(Placement::Checkpointing);
    let before = grown.history.status().store_bytes;
    assert_eq!(grown.history.grow_store(None).expect("nothing to do"), before);
    grown.store.grow(16 * MIB);
    // A cut after the device became longer, and before the superblock says so.
    grown.reopen();
    assert_eq!(grown.history.status().store_bytes, before);
    assert!(grown.history.grow_store(None).expect("it grows") > 15 * MIB);
    assert!(grown.history.grow_store(Some(8 * MIB)).expect("it is longer") > 15 * MIB);
    grown.reopen();
    assert!(grown.history.status().store_bytes > 15 * MIB);
}

#[test]
fn store_that_cannot_become_longer_stays_in_use() {
    let mut stack = Stack::new(
        &options(Placement::Checkpointing, Granularity::EveryWrite, 4096),
        BLOCKS * B as u64,
        4 * MIB,
    );
    let refused = stack.history.grow_store(Some(64 * MIB));
    assert!(matches!(refused, Err(HistoryError::Device(DeviceError::NoSpace { .. }))), "{refused:?}");
    let most = stack.history.grow_store(Some(1 << 50));
    assert!(matches!(most, Err(HistoryError::StoreTooLong { .. })), "{most:?}");
    for number in 0..40 {
        round(&stack.history, &stack.clock, number);
    }
    stack.reopen().expect("it opens");
}
