//! A sparse store, or a sparse origin, on a file system that fills.

use super::*;

const B: usize = 4096;
const STORE: u64 = 16 * MIB;
const BLOCKS: u64 = 256;

/// A write and a flush of 64 blocks; each round another content.
fn round(history: &History, clock: &ManualClock, round: u64) -> Result<(), DeviceError> {
    clock.advance(Duration::from_millis(10));
    let data = Segments::copy_of(&vec![round as u8; 64 * B]);
    history.write(round % 4 * 64 * B as u64, data)?;
    history.flush()
}

/// Every stretch shows its last round before `end`.
fn check_rounds(device: &dyn Device, end: u64) {
    for stretch in 0..4 {
        let last = (0..end).rev().find(|round| round % 4 == stretch).map_or(0, |round| round as u8);
        let found = bytes(device, stretch * 64 * B as u64, 64 * B).expect("a read");
        assert!(
            found.iter().all(|byte| *byte == last),
            "stretch {stretch} shows {} and not {last}",
            found[0]
        );
    }
}

#[test]
fn file_system_that_fills_under_a_sparse_store_takes_the_oldest_history_and_no_write() {
    for placement in Placement::ALL {
        let mut stack =
            Stack::new(&options(placement, Granularity::EveryWrite, 4096), BLOCKS * B as u64, STORE);
        let start = stack.history.status().start;
        stack.store.be_sparse(0..STORE, 3 * MIB, true);
        for number in 0..60 {
            round(&stack.history, &stack.clock, number)
                .unwrap_or_else(|error| panic!("{placement:?}: {error}"));
        }
        let status = stack.history.status();
        assert!(
            status.start > start && !status.events.is_empty(),
            "{placement:?}: the oldest went, and that is said"
        );
        assert!(status.lacking.is_some() && status.failed.is_none(), "{placement:?}: {:?}", status.lacking);
        let view = stack.history.view(status.start).expect("the oldest instant");
        assert!(bytes(&view, 0, B).is_ok());
        check_rounds(&*stack.history, 60);
        // A server that restarts on the full file system serves the same, and takes writes.
        stack.reopen().unwrap_or_else(|error| panic!("{placement:?}: {error}"));
        check_rounds(&*stack.history, 60);
        for number in 60..80 {
            round(&stack.history, &stack.clock, number)
                .unwrap_or_else(|error| panic!("{placement:?}: {error}"));
        }
        // Room returns, and the store uses it by itself.
        stack.store.leave_room(STORE);
        stack.clock.advance(Duration::from_secs(2));
        for number in 80..140 {
            round(&stack.history, &stack.clock, number).expect("there is room");
        }
        let status = stack.history.status();
        assert!(status.lacking.is_none(), "{placement:?}");
        assert!(status.used_bytes > 5 * MIB, "{placement:?}: {} bytes are used", status.used_bytes);
        check_rounds(&*stack.history, 140);
    }
}

#[test]
fn file_system_that_fills_takes_no_history_against_the_floor() {
    for placement in Placement::ALL {
        let mut options = options(placement, Granularity::EveryWrite, 4096);
        options.window.floor = Duration::from_secs(3600);
        let stack = Stack::new(&options, BLOCKS * B as u64, STORE);
        let start = stack.history.status().start;
        stack.store.be_sparse(0..STORE, 3 * MIB, true);
        let refused = (0..60).find(|number| round(&stack.history, &stack.clock, *number).is_err());
        let refused = refused.expect("the file system is full");
        let status = stack.history.status();
        assert_eq!(status.start, start, "{placement:?}: nothing young went");
        assert!(status.failed.is_none());
        // It resumes by itself, with room ...
        stack.store.leave_room(MIB);
        stack.clock.advance(Duration::from_secs(2));
        round(&stack.history, &stack.clock, refused).expect("there is room");
        // ... or with time.
        let refused = (refused + 1..60).find(|number| round(&stack.history, &stack.clock, *number).is_err());
        let refused = refused.expect("the file system is full");
        stack.clock.advance(Duration::from_secs(7200));
        round(&stack.history, &stack.clock, refused).expect("history may go");
        check_rounds(&*stack.history, refused + 1);
    }
}

#[test]
fn history_is_not_made_where_there_is_no_room_for_it_to_work() {
    let store = Arc::new(FaultDevice::new(STORE));
    store.be_sparse(0..STORE, MIB, true);
    let origin = Arc::new(MemoryDevice::new(MIB));
    let options = options(Placement::Logging, Granularity::EveryWrite, 4096);
    let refused = History::create(origin.clone(), store.clone(), &options, open_options(&clock(), 64 << 10));
    assert!(matches!(refused, Err(HistoryError::NoRoomBelow { .. })), "{:?}", refused.err());
    assert!(matches!(History::id_of(&*store), Err(HistoryError::NoHistory)));
    store.leave_room(4 * MIB);
    History::create(origin, store, &options, open_options(&clock(), 64 << 10)).expect("there is room");
}

#[test]
fn write_that_finds_no_room_below_is_written_again_when_there_is_some() {
    for placement in Placement::ALL {
        for room in [1300, 1700, 2100] {
            let mut stack =
                Stack::new(&options(placement, Granularity::EveryWrite, 4096), BLOCKS * B as u64, STORE);
            stack.store.be_sparse(0..STORE, room * 1024, false);
            let refused = (0..60).find(|number| round(&stack.history, &stack.clock, *number).is_err());
            let refused = refused.expect("the file system is full");
            assert!(round(&stack.history, &stack.clock, refused).is_err(), "{placement:?}");
            let status = stack.history.status();
            assert!(status.lacking.is_some() && status.failed.is_none(), "{placement:?}");
            stack.store.leave_room(STORE);
            let last = status.last;
            for number in refused..refused + 8 {
                round(&stack.history, &stack.clock, number).expect("there is room");
            }
            assert!(stack.history.status().lacking.is_none(), "{placement:?}");
            check_rounds(&*stack.history, refused + 8);
            stack.reopen().expect("it opens");
            check_rounds(&*stack.history, refused + 8);
            let view = stack.history.view(last).expect("it is in the window");
            check_rounds(&view, refused + 1);
        }
    }
}

#[test]
fn origin_that_finds_no_room_below_ends_nothing_and_eats_no_history() {
    for placement in Placement::ALL {
        let origin = Arc::new(FaultDevice::new(BLOCKS * B as u64));
        origin.be_sparse(0..BLOCKS * B as u64, 128 * B as u64, false);
        let store = Arc::new(FaultDevice::new(STORE));
        let clock = clock();
        let mut options = options(placement, Granularity::EveryWrite, 4096);
        options.window.time = Some(Duration::from_millis(200));
        let open = open_options(&clock, 64 << 10);
        let history = History::create(origin.clone(), store, &options, open).expect("a history");
        let mut refused = None;
        for number in 0..40 {
            let outcome = round(&history, &clock, number);
            // Logging writes the origin in the background.
            while history.step().is_ok_and(|more| more) {}
            if outcome.is_err() || history.status().lacking.is_some() {
                refused = Some(number);
                break;
            }
        }
        let refused = refused.expect("the file system is full");
        let used = history.status().used_bytes;
        for _ in 0..200 {
            let _ = history.flush();
            let _ = history.step();
        }
        let status = history.status();
        assert!(status.failed.is_none() && status.lacking.is_some(), "{placement:?}");
        assert!(status.used_bytes <= used + MIB / 2, "{placement:?}: {used}, then {}", status.used_bytes);
        origin.leave_room(MIB);
        history.flush().expect("there is room");
        while history.step().expect("there is room") {}
        assert!(history.status().lacking.is_none(), "{placement:?}");
        check_rounds(&*history, refused + 1);
    }
}
