//! A store that is an older copy of itself, beside an origin that continued.

use super::*;
use cairn_base::BLOCK_SIZE;

const B: usize = BLOCK_SIZE;
const BLOCKS: u64 = 16;

impl Stack {
    fn position(&self) -> LogPosition {
        self.history.position().expect("no device has failed")
    }

    fn reopen_from(&mut self, at_least: LogPosition) -> Result<(), HistoryError> {
        let open = OpenOptions { at_least, ..open_options(&self.clock, 64 << 10) };
        self.history = History::open(self.origin.clone(), self.store.clone(), open)?;
        Ok(())
    }

    /// The store is refused, and neither device is written to.
    fn refuses(&mut self, known: LogPosition, what: &str) {
        let both =
            |stack: &Self| (all(&*stack.origin), bytes(&*stack.store, 0, 4 * MIB as usize).expect("a read"));
        let before = both(self);
        match self.reopen_from(known).err() {
            Some(HistoryError::StoreOlder { found, known: said }) => {
                assert_eq!(said, known, "{what}");
                assert!(!found.reaches(&known), "{what}");
            }
            other => panic!("{what}: {other:?}"),
        }
        assert!(both(self) == before, "{what}: nothing was written");
    }

    fn round(&self, round: u64) {
        self.fill(round % BLOCKS * B as u64, B, round as u8 + 1);
        self.history.flush().expect("a flush");
    }
}

fn all(device: &dyn Device) -> Vec<u8> {
    bytes(device, 0, BLOCKS as usize * B).expect("a read")
}

#[test]
fn store_that_has_not_come_as_far_as_it_had_is_refused_and_nothing_is_written() {
    for placement in Placement::ALL {
        // With few writes between the two the superblock is the same, with many it is not; from a
        // copy that was closed well and from one of a running server.
        for (later, closed) in [(1, true), (1, false), (5, true), (200, true), (200, false)] {
            let what = format!("{placement:?}, {later} writes later, closed: {closed}");
            let every = options(placement, Granularity::EveryWrite, 4096);
            let mut stack = Stack::new(&every, BLOCKS * B as u64, 4 * MIB);
            (0..20).for_each(|round| stack.round(round));
            if closed {
                stack.reopen().expect("it opens");
            }
            let copy = stack.store.fork();
            let then = stack.position();
            (20..20 + later).for_each(|round| stack.round(round));
            let known = stack.position();
            assert!(known.reaches(&then) && !then.reaches(&known), "{what}: {then:?}, {known:?}");
            let present = all(&*stack.history);
            let running = Arc::new(stack.store.fork());
            stack.reopen_from(known).unwrap_or_else(|error| panic!("{what}: the store itself: {error}"));
            assert_eq!(all(&*stack.history), present, "{what}");
            // Also the position that a server has saved some time before the copy was made.
            for known in [stack.position(), known] {
                stack.store = Arc::new(copy.fork());
                stack.refuses(known, &what);
            }
            stack.store = Arc::new(copy);
            // With its owner's consent it opens, and later as its own again.
            stack.reopen_from(LogPosition::default()).unwrap_or_else(|error| panic!("{what}: {error}"));
            stack.store = running;
        }
    }
}

/// With logging a move of the window writes the origin, and no record.
#[test]
fn store_from_before_its_window_moved_is_refused() {
    let mut hour = options(Placement::Logging, Granularity::EveryWrite, 4096);
    hour.window.time = Some(Duration::from_secs(3600));
    let mut stack = Stack::new(&hour, BLOCKS * B as u64, 4 * MIB);
    (0..20).for_each(|round| stack.round(round));
    let (copy, then) = (stack.store.fork(), stack.position());
    stack.clock.advance(Duration::from_secs(7200));
    while stack.history.step().expect("a step") {}
    let known = stack.position();
    assert_eq!(known.record, then.record);
    assert!(all(&*stack.origin)[0] > 0, "the origin has what left the window");
    stack.store = Arc::new(copy);
    stack.refuses(known, "before the window moved");
}

/// The end of the log is damaged, which looks the same in the store as a log that was cut there.
#[test]
fn end_of_the_log_that_was_durable_is_not_taken_for_a_cut() {
    for placement in Placement::ALL {
        let mut stack =
            Stack::new(&options(placement, Granularity::EveryWrite, 4096), BLOCKS * B as u64, 4 * MIB);
        (0..20).for_each(|round| stack.round(round));
        let (known, present) = (stack.position(), all(&*stack.history));
        let end = {
            let writer = stack.history.writer.lock();
            (writer.start_of(writer.segment) + writer.position) * B as u64
        };
        let mut refused = 0;
        for back in 1..5 {
            let whole = stack.store.fork();
            stack.store.corrupt(end - back * B as u64, B as u64, &mut Rng::new(3));
            match stack.reopen_from(known) {
                // The record exists, and a read of its content reports the damage.
                Ok(()) => {
                    assert!(stack.position().reaches(&known), "{placement:?}");
                    for block in 0..BLOCKS as usize {
                        match bytes(&*stack.history, (block * B) as u64, B) {
                            Ok(found) => {
                                assert_eq!(found, present[block * B..][..B], "{placement:?}: block {block}")
                            }
                            Err(error) => assert!(matches!(error, DeviceError::Corrupt { .. }), "{error}"),
                        }
                    }
                }
                Err(HistoryError::StoreOlder { found, .. }) => {
                    assert!(found.record < known.record);
                    refused += 1;
                }
                Err(error) => panic!("{placement:?}: {error}"),
            }
            stack.store = Arc::new(whole);
        }
        assert!(refused > 0, "{placement:?}: one of them is the head of a record");
    }
}
