//! Writes and flushes that wait for room, because their owner wants no young history to be
//! discarded.

use super::*;
use cairn_base::Clock;
use cairn_device::{Gate, Operation, Request, admit};
use std::sync::atomic::{AtomicBool, Ordering};

const B: usize = 4096;

/// A store that is full of history that may not go, with a write that waits in memory. Flushes and
/// writes wait from now on.
fn full() -> Stack {
    let mut options = options(Placement::Logging, Granularity::EveryWrite, 4096);
    options.window.floor = Duration::from_secs(3600);
    let stack = Stack::new(&options, 64 * B as u64, 3 * MIB);
    for round in 0..2000u64 {
        stack.clock.advance(Duration::from_millis(1));
        let data = Segments::copy_of(&[round as u8; B]);
        if stack.history.write(round % 64 * B as u64, data).is_err() {
            break;
        }
    }
    assert!(stack.history.flush().is_err(), "the store is full");
    options.window.floor_policy = FloorPolicy::Wait;
    stack.history.set_window(options.window).expect("another window");
    stack
}

fn write_through(history: &History) -> Result<(), DeviceError> {
    let data = Segments::copy_of(&[9; B]);
    let mut batch = [Operation::new(Request::Write { offset: 0, data, fua: true })];
    history.run(&mut batch);
    let [operation] = batch;
    operation.into_outcome().map(|_| ())
}

/// Waits until `count` threads wait.
fn until_waiting(history: &History, count: u64) {
    while history.status().waiting < count {
        std::thread::yield_now();
    }
}

#[test]
fn flush_and_writes_that_wait_for_room_hold_up_nobody_and_go_on_when_time_has_passed() {
    let stack = full();
    let history = &*stack.history;
    let start = history.status().start;
    std::thread::scope(|scope| {
        let flush = scope.spawn(|| history.flush());
        let through = scope.spawn(|| write_through(history));
        let write = scope.spawn(|| history.write(B as u64, Segments::copy_of(&[9; B])));
        until_waiting(history, 2);
        for _ in 0..20 {
            let view = stack.history.view(start).expect("a view");
            bytes(&view, 0, B).expect("a read");
            bytes(history, 0, B).expect("a read");
            history.step().expect("a step");
        }
        assert_eq!(history.status().start, start, "nothing young has gone");
        assert!(!flush.is_finished() && !through.is_finished());
        stack.clock.advance(Duration::from_secs(7200));
        flush.join().expect("no panic").expect("there is room again");
        through.join().expect("no panic").expect("there is room again");
        write.join().expect("no panic").expect("there is room again");
    });
    assert_eq!(bytes(history, 0, B).expect("a read"), vec![9; B]);
    assert_eq!(history.status().waiting, 0);
}

#[test]
fn floor_that_time_has_passed_holds_nobody_up_whatever_is_in_the_store() {
    for placement in Placement::ALL {
        for (seed, block_bytes) in [(1, 512), (2, 512), (3, 4096), (4, 4096), (5, 4096), (6, 512)] {
            let mut rng = Rng::new(seed);
            let mut options = options(placement, Granularity::Interval(SECOND), block_bytes);
            options.window.floor = Duration::from_secs(3600);
            let stack = Stack::new(&options, MIB, 4 * MIB);
            let mut expected = vec![0; MIB as usize];
            // Until the store is full of history younger than the floor, with writes that wait in
            // memory.
            for round in 0..20_000u64 {
                stack.clock.advance(Duration::from_millis(rng.below(40)));
                let count = (1 + rng.below(8)) as usize * 4096;
                let at = rng.below(MIB - count as u64) / 512 * 512;
                let data = vec![round as u8; count];
                if stack.history.write(at, Segments::copy_of(&data)).is_err() {
                    break;
                }
                expected[at as usize..][..count].copy_from_slice(&data);
                if rng.below(4) == 0 && stack.history.flush().is_err() {
                    break;
                }
                if rng.below(100) == 0 {
                    let _full = stack.history.mark(&format!("m{round}"), false);
                }
            }
            assert!(stack.history.flush().is_err(), "{placement:?}, {seed}: the store is full");
            let last = stack.now();
            // All writes are older than the floor now.
            stack.clock.advance(Duration::from_secs(7200));
            stack.history.flush().unwrap_or_else(|error| panic!("{placement:?}, {seed}: {error}"));
            assert!(bytes(&*stack.history, 0, MIB as usize).expect("a read") == expected);
            // An unchanged instant counts as within the floor.
            let half_ago = Timestamp(stack.clock.now().0 - 1800 * SECOND);
            let view = stack.history.view(half_ago);
            let view = view.unwrap_or_else(|error| panic!("{placement:?}, {seed}, since {last:?}: {error}"));
            assert!(bytes(&view, 0, MIB as usize).expect("a read") == expected, "{placement:?}, {seed}");
        }
    }
}

#[test]
fn waiting_for_room_ends_when_the_device_is_closed_and_loses_nothing() {
    let stack = full();
    let history = &*stack.history;
    let before = bytes(history, 0, 64 * B).expect("a read");
    std::thread::scope(|scope| {
        let flush = scope.spawn(|| history.flush());
        let through = scope.spawn(|| write_through(history));
        until_waiting(history, 2);
        history.let_wait(false);
        assert!(matches!(flush.join().expect("no panic"), Err(DeviceError::NoSpace { .. })));
        assert!(through.join().expect("no panic").is_err());
    });
    assert!(history.flush().is_err(), "nobody waits any more");
    assert_eq!(bytes(history, B as u64, 63 * B).expect("a read"), before[B..]);
}

#[test]
fn release_of_a_full_store_ends_waiting_and_needs_no_time_to_pass() {
    let stack = full();
    let history = &*stack.history;
    let expected = bytes(history, 0, 64 * B).expect("a read");
    std::thread::scope(|scope| {
        let flush = scope.spawn(|| history.flush());
        until_waiting(history, 1);
        history.release(&|_, _| {}).expect("a release");
        let _either = flush.join().expect("no panic");
    });
    assert_eq!(bytes(&*stack.origin, 0, 64 * B).expect("a read"), expected);
}

#[test]
fn release_that_failed_in_the_middle_goes_on_when_it_is_asked_for_again() {
    for placement in Placement::ALL {
        for after in [0, 1, 2, 3, 5, 8, 13, 21] {
            let origin = Arc::new(FaultDevice::new(64 * B as u64));
            let store = Arc::new(FaultDevice::new(4 * MIB));
            let open = open_options(&clock(), 64 << 10);
            let options = options(placement, Granularity::EveryWrite, 4096);
            let history = History::create(origin.clone(), store.clone(), &options, open.clone());
            let history = history.expect("a history");
            for round in 0..3u8 {
                history.write(0, Segments::copy_of(&[round + 1; 40 * B])).expect("a write");
            }
            history.flush().expect("a flush");
            let expected = bytes(&*history, 0, 64 * B).expect("a read");
            let source = Arc::new(std::io::Error::other("a bad moment"));
            let error = DeviceError::Io { action: cairn_device::Action::Write, offset: 0, length: 0, source };
            store.fail_operations(after, 1, error);
            let failed = history.release(&|_, _| {}).is_err();
            store.heal_operations();
            if failed {
                assert_eq!(bytes(&*history, 0, 64 * B).expect("a read"), expected, "{placement:?}, {after}");
                drop(history);
                // The write before the failure may have been complete.
                match History::open(origin.clone(), store.clone(), open) {
                    Ok(history) => {
                        assert_eq!(
                            bytes(&*history, 0, 64 * B).expect("a read"),
                            expected,
                            "{placement:?}, {after}"
                        );
                        history.release(&|_, _| {}).expect("it goes on");
                    }
                    Err(HistoryError::NoHistory) => {}
                    Err(error) => panic!("{placement:?}, {after}: {error}"),
                }
            }
            assert_eq!(bytes(&*origin, 0, 64 * B).expect("a read"), expected, "{placement:?}, {after}");
        }
    }
}

/// Writes with tickets of `gate` until one does not succeed: how that ended.
fn write_until_withdrawn(
    history: &History,
    gate: &Arc<Gate>,
    request: impl Fn(u64) -> Request,
) -> DeviceError {
    (0..64)
        .find_map(|lba| {
            let mut batch = [Operation::new(request(lba)).of(gate.ticket(7))];
            admit(&mut batch);
            history.run(&mut batch);
            let [operation] = batch;
            operation.into_outcome().err()
        })
        .expect("one had to wait")
}

#[test]
fn change_that_waits_for_room_is_dropped_when_it_is_withdrawn_and_never_comes_later() {
    let zeroes = |lba: u64| Request::WriteZeroes {
        offset: lba * B as u64,
        length: B as u64,
        may_trim: true,
        fua: false,
    };
    let write =
        |lba: u64| Request::Write { offset: lba * B as u64, data: Segments::copy_of(&[9; B]), fua: false };
    let part = |lba: u64| Request::Write {
        offset: lba * B as u64 + 512,
        data: Segments::copy_of(&[9; 512]),
        fua: false,
    };
    let through =
        |lba: u64| Request::Write { offset: lba * B as u64, data: Segments::copy_of(&[9; B]), fua: true };
    let kinds: [&(dyn Fn(u64) -> Request + Sync); 4] = [&write, &part, &zeroes, &through];
    for (kind, request) in kinds.into_iter().enumerate() {
        let stack = full();
        let history = &*stack.history;
        let gone = Arc::new(AtomicBool::new(false));
        let seen = gone.clone();
        let gate = Gate::new(Box::new(move |_| seen.load(Ordering::Acquire)));
        let mut before = Vec::new();
        std::thread::scope(|scope| {
            let client = scope.spawn(|| write_until_withdrawn(history, &gate, request));
            until_waiting(history, 1);
            assert!(gate.is_quiet(), "{kind}: nothing of what waits has happened");
            before = bytes(history, 0, 64 * B).expect("a read");
            // Half of them by the server, half by a client that went away.
            if kind % 2 == 0 {
                gate.close()
            } else {
                gone.store(true, Ordering::Release)
            }
            assert!(matches!(client.join().expect("no panic"), DeviceError::Withdrawn), "{kind}");
        });
        stack.clock.advance(Duration::from_secs(7200));
        history.flush().expect("there is room again");
        assert!(bytes(history, 0, 64 * B).expect("a read") == before, "{kind}: nothing came later");
    }
}

#[test]
fn flush_of_a_session_that_is_over_waits_no_longer() {
    let stack = full();
    let history = &*stack.history;
    let gate = Gate::new(Box::new(|_| false));
    std::thread::scope(|scope| {
        let client = scope.spawn(|| history.one(Operation::flush().of(gate.ticket(1))));
        until_waiting(history, 1);
        gate.close();
        assert!(matches!(client.join().expect("no panic"), Err(DeviceError::Withdrawn)));
    });
    assert_eq!(history.status().waiting, 0);
}
