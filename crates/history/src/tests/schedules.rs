//! Schedules of threads, explored: `cargo test -p cairn-history --features shuttle`.
//!
//! Shuttle's scheduler decides at each lock, each wait and each device operation which thread runs
//! next: at random, or by priorities that change at a few places (PCT), which finds bugs that need
//! few preemptions. It finds deadlocks by itself. A failure prints the schedule that replays it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use cairn_base::{HistoryId, ManualClock, Rng, Timestamp};
use cairn_device::{Device, DeviceError, Extent, Fate, FaultDevice, Geometry, Operation, Request, Segments};
use shuttle::thread;

use crate::locks::Mutex;
use crate::*;

/// Schedules of each scenario, placement and kind of scheduler.
const SCHEDULES: usize = 100;
/// The same of a scenario that has much to do.
const SCHEDULES_LONG: usize = 16;
/// The same for scenarios that read instants as another one does, in other windows.
const SCHEDULES_THINNED: usize = 60;
/// The same for a short one, in which two have to meet in a narrow place.
const SCHEDULES_NARROW: usize = 2000;
/// How often others may run before a device reads.
const READ_YIELDS: usize = 8;
const B: usize = 4096;
const MIB: u64 = 1 << 20;
const SECOND: u64 = 1_000_000_000;

/// Lets others run before and after each batch, as a slow device does.
struct Slow(FaultDevice);

impl Device for Slow {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn run(&self, batch: &mut [Operation]) {
        // Much may happen between the looking up of a place and the reading of it.
        let is_read = batch.iter().all(|operation| matches!(operation.request(), Request::Read { .. }));
        (0..if is_read { READ_YIELDS } else { 1 }).for_each(|_| thread::yield_now());
        self.0.run(batch);
        thread::yield_now();
    }

    fn extents(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<Extent>, DeviceError> {
        self.0.extents(offset, length, limit)
    }
}

/// Each placement: they share the locks and differ in the order of writes.
fn explore(scenario: impl Fn(Placement) + Send + Sync + 'static) {
    explore_some(SCHEDULES, scenario);
}

fn explore_some(schedules: usize, scenario: impl Fn(Placement) + Send + Sync + 'static) {
    let scenario = Arc::new(scenario);
    for placement in Placement::ALL {
        let scenario = scenario.clone();
        cairn_base::explored::explore(schedules, move || scenario(placement));
    }
}

/// A history on two devices that take their time.
struct Stack {
    history: Arc<History>,
    origin: Arc<Slow>,
    store: Arc<Slow>,
    clock: Arc<ManualClock>,
}

impl Stack {
    fn new(placement: Placement, dirty_blocks: u64, window: Window) -> Self {
        let origin = Arc::new(Slow(FaultDevice::new(16 * B as u64)));
        let store = Arc::new(Slow(FaultDevice::new(3 * MIB)));
        let clock = Arc::new(ManualClock::new(Timestamp(1_700_000_000 * SECOND)));
        let options = HistoryOptions {
            store: HistoryId([7; 16]),
            placement,
            granularity: Granularity::EveryWrite,
            block_bytes: B as u32,
            window,
        };
        let open = open_options(&clock, dirty_blocks);
        let history = History::create(origin.clone(), store.clone(), &options, open).expect("a history");
        Self { history, origin, store, clock }
    }

    /// The power goes, and comes back.
    fn cut(self, seed: u64) -> Self {
        drop(self.history);
        let mut rng = Rng::new(seed);
        let origin = Arc::new(Slow(self.origin.0.power_cycle(&mut rng)));
        let store = Arc::new(Slow(self.store.0.power_cycle(&mut rng)));
        let open = open_options(&self.clock, 4);
        let history = History::open(origin.clone(), store.clone(), open).expect("it opens");
        Self { history, origin, store, clock: self.clock }
    }
}

fn open_options(clock: &Arc<ManualClock>, dirty_blocks: u64) -> OpenOptions {
    let dirty_bytes = dirty_blocks * B as u64;
    OpenOptions {
        dirty_bytes,
        read_bytes: 4 * B as u64,
        clock: clock.clone(),
        at_least: LogPosition::default(),
    }
}

/// A block that contains its number and the number of its write, from end to end.
fn stamped(lba: u64, version: u64) -> Vec<u8> {
    (lba << 32 | version).to_le_bytes().repeat(B / 8)
}

/// The same, of which another version differs only at the beginning.
fn stamped_at_the_beginning(lba: u64, version: u64) -> Vec<u8> {
    let mut bytes = stamped(lba, 0);
    bytes[..8].copy_from_slice(&(lba << 32 | version).to_le_bytes());
    bytes
}

fn write(history: &History, lba: u64, version: u64, fua: bool) {
    write_bytes(history, lba, &stamped(lba, version), fua);
}

fn write_bytes(history: &History, lba: u64, bytes: &[u8], fua: bool) {
    let data = Segments::copy_of(bytes);
    let mut batch = [Operation::new(Request::Write { offset: lba * B as u64, data, fua })];
    history.run(&mut batch);
    let [operation] = batch;
    operation.into_outcome().expect("it is written");
}

/// The version of a block; one that is another's, or a mixture, fails.
fn read(device: &dyn Device, lba: u64) -> u64 {
    let mut bytes = vec![0; B];
    device.read_into(lba * B as u64, &mut bytes).expect("it is read");
    version_in(&bytes, lba)
}

fn version_in(bytes: &[u8], lba: u64) -> u64 {
    let first: [u8; 8] = bytes[..8].try_into().expect("eight bytes");
    let rest = |rest: [u8; 8]| bytes[8..].chunks(8).all(|chunk| chunk == rest);
    assert!(rest(first) || rest((lba << 32).to_le_bytes()), "a block is whole");
    let first = u64::from_le_bytes(first);
    assert!(first == 0 || first >> 32 == lba, "a block is its own");
    first & 0xffff_ffff
}

/// The versions of blocks from the first on, in one request.
fn read_all(device: &dyn Device, count: u64) -> Vec<u64> {
    let mut bytes = vec![0; B * count as usize];
    device.read_into(0, &mut bytes).expect("it is read");
    bytes.chunks(B).zip(0..).map(|(block, lba)| version_in(block, lba)).collect()
}

/// The owner's thread: one slice after the other until the test ends it.
fn steps(history: &Arc<History>, clock: &Arc<ManualClock>) -> (thread::JoinHandle<()>, Arc<AtomicBool>) {
    let (history, clock, over) = (history.clone(), clock.clone(), Arc::new(AtomicBool::new(false)));
    let ended = over.clone();
    let stepper = thread::spawn(move || {
        while !ended.load(Ordering::SeqCst) {
            clock.advance(Duration::from_millis(50));
            if !history.step().expect("a step") {
                history.rest(Duration::from_secs(1));
            }
        }
    });
    (stepper, over)
}

/// The same for a device that is given up meanwhile.
fn steps_until_it_fails(
    history: &Arc<History>,
    clock: &Arc<ManualClock>,
) -> (thread::JoinHandle<()>, Arc<AtomicBool>) {
    let (history, clock, over) = (history.clone(), clock.clone(), Arc::new(AtomicBool::new(false)));
    let ended = over.clone();
    let stepper = thread::spawn(move || {
        while !ended.load(Ordering::SeqCst) {
            clock.advance(Duration::from_millis(50));
            match history.step() {
                Ok(true) => {}
                Ok(false) => history.rest(Duration::from_secs(1)),
                Err(_) => break,
            }
        }
    });
    (stepper, over)
}

/// Three writers on blocks of their own, two that flush and one whose writes have to be durable,
/// beside the thread that writes out. The power fails each time that one is answered, and all
/// unflushed writes are lost.
#[test]
fn flush_covers_what_was_answered_before_it_in_every_schedule() {
    explore(|placement| {
        let stack = Stack::new(placement, 4, Window::default());
        let (stepper, over) = steps(&stack.history, &stack.clock);
        let writers: Vec<_> = (0..3u64)
            .map(|writer| {
                let (history, origin, store) =
                    (stack.history.clone(), stack.origin.clone(), stack.store.clone());
                thread::spawn(move || {
                    let mut answered = Vec::new();
                    for version in 1..=2 {
                        write(&history, writer, version, writer == 2);
                        if writer < 2 {
                            history.flush().expect("a flush");
                        }
                        // No other thread gets in between the two.
                        answered.push((writer, version, origin.0.fork(), store.0.fork()));
                    }
                    answered
                })
            })
            .collect();
        let answered: Vec<_> =
            writers.into_iter().flat_map(|writer| writer.join().expect("it ends")).collect();
        over.store(true, Ordering::SeqCst);
        stepper.join().expect("it ends");
        for (writer, version, origin, store) in answered {
            let mut rng = Rng::new(version);
            let cut = |device: FaultDevice, rng: &mut Rng| {
                let device = device.power_cycle_as(Fate::Lost, rng);
                Arc::new(Slow(device))
            };
            let (origin, store) = (cut(origin, &mut rng), cut(store, &mut rng));
            let history = History::open(origin, store, open_options(&stack.clock, 4)).expect("it opens");
            let found = read(&*history, writer);
            assert!(found == version, "{placement:?}: {found} is there, and {version} was flushed");
        }
    });
}

/// A writer's bounds for the stamp of its own write: later than the first, and not later than the
/// second.
type Written = (u64, u64);

/// Writers and a window that moves all the time, beside readers of instants.
#[test]
fn reader_of_an_instant_sees_the_writes_up_to_it_and_no_others_in_any_schedule() {
    let window = Window { time: Some(Duration::from_millis(400)), ..Window::default() };
    instants_beside_writers(SCHEDULES, window, stamped);
}

/// The same while history older than a moment keeps few instants: a reader of an instant keeps it,
/// and no reader gets an incomplete one.
#[test]
fn reader_of_an_instant_sees_a_whole_one_while_others_are_thinned_in_any_schedule() {
    let step = Thin { after: Duration::from_millis(100), every: Duration::from_millis(100) };
    let mut window = Window::default();
    window.thin[0] = Some(step);
    instants_beside_writers(SCHEDULES_THINNED, window, stamped);
}

/// The same with versions stored as differences from the previous one, while both the window and
/// its steps move.
#[test]
fn reader_of_an_instant_sees_what_was_reduced_whole_in_any_schedule() {
    let reduction = Reduction { xor: true, identical: true };
    let step = Thin { after: Duration::from_millis(100), every: Duration::from_millis(100) };
    let mut window = Window { time: Some(Duration::from_millis(800)), reduction, ..Window::default() };
    window.thin[0] = Some(step);
    instants_beside_writers(SCHEDULES_THINNED, window, stamped_at_the_beginning);
}

/// Each write is in an instant's image or not according to its stamp, and an image does not change.
fn instants_beside_writers(schedules: usize, window: Window, content: fn(u64, u64) -> Vec<u8>) {
    const BLOCKS: u64 = 4;
    const VERSIONS: u64 = 8;
    explore_some(schedules, move |placement| {
        let stack = Stack::new(placement, 3, window);
        let written: Arc<Mutex<Vec<Vec<Written>>>> = Arc::new(Mutex::new(vec![Vec::new(); BLOCKS as usize]));
        let (stepper, over) = steps(&stack.history, &stack.clock);
        let last = |history: &History| history.state.lock().last;
        let writers: Vec<_> = (0..2u64)
            .map(|writer| {
                let (history, written) = (stack.history.clone(), written.clone());
                thread::spawn(move || {
                    for version in 1..=VERSIONS {
                        for lba in [writer, writer + 2] {
                            let before = last(&history);
                            // Not answered yet: its stamp may be any later one.
                            written.lock()[lba as usize].push((before, u64::MAX));
                            write_bytes(&history, lba, &content(lba, version), false);
                            if let Some(write) = written.lock()[lba as usize].last_mut() {
                                write.1 = last(&history);
                            }
                        }
                    }
                })
            })
            .collect();
        let readers: Vec<_> = (0..2u64)
            .map(|reader| {
                let (history, written) = (stack.history.clone(), written.clone());
                thread::spawn(move || {
                    for part in [1, 2, 4] {
                        // The newest instant, and two on the way there.
                        let writes = written.lock().concat();
                        let before = writes.iter().map(|write| write.0).filter(|_| part != 1).max();
                        let first = writes.iter().map(|write| write.0).min().unwrap_or(0);
                        let now = last(&history);
                        let asked = before.map_or(now, |before| first + (before - first) / part);
                        let view = match history.view(Timestamp(asked)) {
                            Ok(view) => view,
                            Err(HistoryError::BeforeWindow) => {
                                assert!(history.state.lock().start > asked, "the window has moved past it");
                                continue;
                            }
                            Err(error) => panic!("{placement:?}: {error}"),
                        };
                        let at = view.instant().0;
                        let seen = read_all(&view, BLOCKS);
                        let known = written.lock().clone();
                        for (seen, writes) in seen.iter().zip(&known) {
                            let is_in = writes.iter().filter(|write| write.1 <= at).count() as u64;
                            let may_be_in = writes.iter().filter(|write| write.0 < at).count() as u64;
                            assert!(
                                (is_in..=may_be_in).contains(seen),
                                "{placement:?}: {is_in} <= {seen} <= {may_be_in}"
                            );
                        }
                        for _ in 0..2 {
                            assert_eq!(
                                read_all(&view, BLOCKS),
                                seen,
                                "{placement:?}: an instant stays, {reader}"
                            );
                        }
                    }
                })
            })
            .collect();
        writers.into_iter().for_each(|writer| writer.join().expect("it ends"));
        readers.into_iter().for_each(|reader| reader.join().expect("it ends"));
        over.store(true, Ordering::SeqCst);
        stepper.join().expect("it ends");
        assert_eq!(read_all(&*stack.history, BLOCKS), [VERSIONS; BLOCKS as usize]);
    });
}

/// A revert while others write: all blocks in one request, and the first half of one. Each write is
/// entirely before or after the revert, also when the power fails.
#[test]
fn revert_and_a_write_never_mix_in_any_schedule() {
    const BLOCKS: u64 = 4;
    let write_all = |history: &History, version: u64| {
        let data: Vec<u8> = (0..BLOCKS).flat_map(|lba| stamped(lba, version)).collect();
        history.write(0, Segments::copy_of(&data)).expect("it is written");
    };
    explore(move |placement| {
        let stack = Stack::new(placement, 8, Window::default());
        write_all(&stack.history, 1);
        let good = stack.history.mark("good", true).expect("a mark");
        write_all(&stack.history, 2);
        let half_lba = BLOCKS;
        write(&stack.history, half_lba, 2, false);
        let (stepper, over) = steps(&stack.history, &stack.clock);
        let whole = stack.history.clone();
        let whole = thread::spawn(move || write_all(&whole, 3));
        let half = stack.history.clone();
        let half = thread::spawn(move || {
            let data = &stamped(half_lba, 3)[..B / 2];
            half.write(half_lba * B as u64, Segments::copy_of(data)).expect("it is written");
        });
        let shown = |device: &dyn Device| {
            let mut bytes = vec![0; B];
            device.read_into(half_lba * B as u64, &mut bytes).expect("it is read");
            // Each half is whole; the revert restores zeroes.
            let of = |half: &[u8]| half.first_chunk().map_or(0, |first| u64::from_le_bytes(*first)) & 0xff;
            (read_all(device, BLOCKS), of(&bytes[..B / 2]), of(&bytes[B / 2..]))
        };
        let reverted = stack.history.revert(good.time).expect("a revert");
        whole.join().expect("it ends");
        half.join().expect("it ends");
        let undo = stack.history.marked(&reverted.undo).expect("the mark of the revert");
        let before = shown(&stack.history.view(undo).expect("a view"));
        let after = shown(&*stack.history);
        // Which of the two was first, for either write.
        let expected = |all: bool, half: bool| {
            let blocks = |version| vec![version; BLOCKS as usize];
            (
                (blocks(if all { 3 } else { 2 }), if half { 3 } else { 2 }, 2),
                (blocks(if all { 1 } else { 3 }), if half { 0 } else { 3 }, 0),
            )
        };
        let found = (before, after);
        let orders = [(false, false), (false, true), (true, false), (true, true)];
        assert!(orders.iter().any(|(all, half)| expected(*all, *half) == found), "{placement:?}: {found:?}");
        stack.history.flush().expect("a flush");
        over.store(true, Ordering::SeqCst);
        stepper.join().expect("it ends");
        let stack = stack.cut(1);
        assert_eq!(shown(&*stack.history), found.1, "{placement:?}: after a cut");
        while stack.history.step().expect("a step") {}
        assert_eq!(shown(&*stack.history), found.1, "{placement:?}: when the copy is over");
    });
}

/// The present beside reverts with running copies: a reader of unwritten blocks sees one instant or
/// the other, and the newest one once a revert is answered.
#[test]
fn revert_that_was_answered_is_what_everybody_reads_in_any_schedule() {
    const BLOCKS: u64 = 6;
    explore(|placement| {
        let stack = Stack::new(placement, 8, Window::default());
        let all = |version| (0..BLOCKS).for_each(|lba| write(&stack.history, lba, version, false));
        all(1);
        let first = stack.history.mark("first", true).expect("a mark").time;
        all(2);
        let second = stack.history.mark("second", true).expect("a mark").time;
        let answered = Arc::new(AtomicU64::new(2));
        let going = Arc::new(AtomicBool::new(false));
        let (stepper, over) = steps(&stack.history, &stack.clock);
        let (history, answers, goes) = (stack.history.clone(), answered.clone(), going.clone());
        let back = thread::spawn(move || {
            for (version, at) in [(1, first), (2, second)] {
                goes.store(true, Ordering::SeqCst);
                history.revert(at).expect("a revert");
                answers.store(version, Ordering::SeqCst);
                goes.store(false, Ordering::SeqCst);
                for _ in 0..4 {
                    thread::yield_now();
                }
            }
        });
        for _ in 0..6 {
            let before = (answered.load(Ordering::SeqCst), going.load(Ordering::SeqCst));
            let seen = read_all(&*stack.history, BLOCKS);
            let after = (answered.load(Ordering::SeqCst), going.load(Ordering::SeqCst));
            if before == after && !before.1 {
                assert_eq!(seen, vec![before.0; BLOCKS as usize], "{placement:?}");
            }
        }
        back.join().expect("it ends");
        over.store(true, Ordering::SeqCst);
        stepper.join().expect("it ends");
        assert_eq!(read_all(&*stack.history, BLOCKS), vec![2; BLOCKS as usize], "{placement:?}");
        while stack.history.step().expect("a step") {}
        assert_eq!(read_all(&*stack.history, BLOCKS), vec![2; BLOCKS as usize], "{placement:?}");
    });
}

/// Readers of the present beside writers whose blocks leave memory at once, are read from the
/// devices and stay in the read cache: no reader sees content older than an answered write.
#[test]
fn reader_of_the_present_never_sees_less_than_was_answered_in_any_schedule() {
    const BLOCKS: u64 = 2;
    explore(|placement| {
        let stack = Stack::new(placement, 1, Window::default());
        (0..BLOCKS).for_each(|lba| write(&stack.history, lba, 1, true));
        let (started, done) = (Arc::new(AtomicU64::new(1)), Arc::new(AtomicU64::new(1)));
        let (stepper, over) = steps(&stack.history, &stack.clock);
        let (history, starts, ends) = (stack.history.clone(), started.clone(), done.clone());
        let writer = thread::spawn(move || {
            for version in 2..=5 {
                starts.store(version, Ordering::SeqCst);
                (0..BLOCKS).for_each(|lba| write(&history, lba, version, lba == 0));
                ends.store(version, Ordering::SeqCst);
            }
        });
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let (history, started, done) = (stack.history.clone(), started.clone(), done.clone());
                thread::spawn(move || {
                    for _ in 0..8 {
                        let before = done.load(Ordering::SeqCst);
                        let seen = read_all(&*history, BLOCKS);
                        let after = started.load(Ordering::SeqCst);
                        for version in seen {
                            assert!(
                                (before..=after).contains(&version),
                                "{placement:?}: {before} <= {version} <= {after}"
                            );
                        }
                    }
                })
            })
            .collect();
        writer.join().expect("it ends");
        readers.into_iter().for_each(|reader| reader.join().expect("it ends"));
        over.store(true, Ordering::SeqCst);
        stepper.join().expect("it ends");
        assert_eq!(read_all(&*stack.history, BLOCKS), [5; BLOCKS as usize], "{placement:?}");
    });
}

/// Two threads write a half of each block, and a third all of another, beside the thread that
/// writes out: no half is lost.
#[test]
fn parts_of_a_block_that_several_write_are_all_there_in_every_schedule() {
    const BLOCKS: u64 = 3;
    explore(|placement| {
        let stack = Stack::new(placement, 2, Window::default());
        let (stepper, over) = steps(&stack.history, &stack.clock);
        let writers: Vec<_> = (0..2u64)
            .map(|half| {
                let history = stack.history.clone();
                thread::spawn(move || {
                    for version in 1..=2 {
                        for lba in 0..BLOCKS {
                            let data = &stamped(lba, version)[..B / 2];
                            let offset = lba * B as u64 + half * (B / 2) as u64;
                            history.write(offset, Segments::copy_of(data)).expect("it is written");
                        }
                    }
                })
            })
            .collect();
        write(&stack.history, BLOCKS, 2, true);
        writers.into_iter().for_each(|writer| writer.join().expect("it ends"));
        over.store(true, Ordering::SeqCst);
        stepper.join().expect("it ends");
        assert_eq!(read_all(&*stack.history, BLOCKS + 1), [2; BLOCKS as usize + 1], "{placement:?}");
    });
}

/// A store full of history that must stay: flushes and writes wait, readers and the owner's thread
/// do not, and all resume once time has passed. No thread waits for ever.
#[test]
fn who_waits_for_room_holds_up_nobody_and_goes_on_in_every_schedule() {
    explore_some(SCHEDULES_LONG, |placement| {
        let hour = Duration::from_secs(3600);
        let mut window = Window { floor: hour, ..Window::default() };
        let stack = Stack::new(placement, 8, window);
        let mut version = 0;
        let mut fill = || {
            version += 1;
            let data: Vec<u8> = (0..16).flat_map(|lba| stamped(lba, version)).collect();
            stack.history.write(0, Segments::copy_of(&data)).is_ok()
        };
        while fill() {}
        assert!(stack.history.flush().is_err(), "the store is full");
        let known = read_all(&*stack.history, 16);
        window.floor_policy = FloorPolicy::Wait;
        stack.history.set_window(window).expect("another window");
        let (stepper, over) = steps(&stack.history, &stack.clock);
        let (flushing, writing) = (stack.history.clone(), stack.history.clone());
        let flush = thread::spawn(move || flushing.flush().expect("a flush"));
        let writer = thread::spawn(move || write(&writing, 0, 1 << 20, true));
        for _ in 0..3 {
            assert_eq!(read_all(&*stack.history, 16)[1..], known[1..], "{placement:?}");
        }
        stack.clock.advance(2 * hour);
        stack.history.wake();
        flush.join().expect("it ends");
        writer.join().expect("it ends");
        over.store(true, Ordering::SeqCst);
        stepper.join().expect("it ends");
        assert_eq!(read(&*stack.history, 0), 1 << 20, "{placement:?}");
        assert_eq!(read_all(&*stack.history, 16)[1..], known[1..], "{placement:?}");
    });
}

/// A release beside clients: answered writes are on the origin, durably, whatever was written,
/// flushed or done in the background meanwhile.
#[test]
fn folding_back_beside_clients_loses_nothing_that_was_answered_in_any_schedule() {
    const BLOCKS: u64 = 3;
    explore_some(SCHEDULES_NARROW, |placement| {
        let stack = Stack::new(placement, 2, Window::default());
        (0..BLOCKS).for_each(|lba| write(&stack.history, lba, 1, false));
        let at = stack.history.mark("before", true).expect("a mark").time;
        (0..BLOCKS).for_each(|lba| write(&stack.history, lba, 2, false));
        let (stepper, over) = steps_until_it_fails(&stack.history, &stack.clock);
        let writing = stack.history.clone();
        let writer = thread::spawn(move || {
            for version in 3..=6 {
                write(&writing, version % 2, version, version == 4);
            }
        });
        let reverting = stack.history.clone();
        let reverter = thread::spawn(move || match reverting.revert(at) {
            Ok(_) => true,
            Err(HistoryError::BeforeWindow) => false,
            Err(error) => panic!("{placement:?}: {error}"),
        });
        stack.history.fold_back(&|_, _| true).expect("it folds back");
        let reverted = reverter.join().expect("it ends");
        writer.join().expect("it ends");
        let present = read_all(&*stack.history, BLOCKS);
        let last = [[6, 1].as_slice(), &[6]][usize::from(!reverted)];
        assert!(last.contains(&present[0]), "{placement:?}: {present:?}");
        stack.history.fold_back(&|_, _| true).expect("nothing is left to do");
        let left = stack.history.status().versions;
        assert!(placement != Placement::Logging || left == 0, "{placement:?}: {left} versions");
        stack.history.release(&|_, _| {}).expect("a release");
        let released = Slow(stack.origin.0.fork().power_cycle_as(Fate::Lost, &mut Rng::new(1)));
        over.store(true, Ordering::SeqCst);
        stepper.join().expect("it ends");
        assert_eq!(read_all(&released, BLOCKS), present, "{placement:?}: it is there, durably");
    });
}

/// The device is released while clients still write, and one still reads an instant. Answered
/// writes are on the origin, a plain disk from then on, and nothing is written to it later. The
/// instant stays unchanged until its reads are refused.
#[test]
fn release_leaves_what_was_answered_and_takes_nothing_more_in_any_schedule() {
    const BLOCKS: u64 = 3;
    explore(|placement| {
        let stack = Stack::new(placement, 2, Window::default());
        (0..BLOCKS).for_each(|lba| write(&stack.history, lba, 1, false));
        let at = stack.history.mark("before", true).expect("a mark").time;
        let view = stack.history.view(at).expect("a view");
        let (stepper, over) = steps_until_it_fails(&stack.history, &stack.clock);
        let writers: Vec<_> = (0..2u64)
            .map(|writer| {
                let history = stack.history.clone();
                thread::spawn(move || {
                    let mut answered = 1;
                    for version in 2..=4 {
                        let data = Segments::copy_of(&stamped(writer, version));
                        match history.write(writer * B as u64, data) {
                            Ok(()) => answered = version,
                            Err(_) => break,
                        }
                    }
                    answered
                })
            })
            .collect();
        let reader = thread::spawn(move || {
            for _ in 0..4 {
                let mut bytes = vec![0; B * BLOCKS as usize];
                if view.read_into(0, &mut bytes).is_ok() {
                    let seen: Vec<_> =
                        bytes.chunks(B).zip(0..).map(|(block, lba)| version_in(block, lba)).collect();
                    assert_eq!(seen, [1; BLOCKS as usize], "{placement:?}: an instant stays");
                }
            }
        });
        thread::yield_now();
        stack.history.release(&|_, _| {}).expect("a release");
        let released = stack.origin.0.fork();
        let answered: Vec<u64> = writers.into_iter().map(|writer| writer.join().expect("it ends")).collect();
        reader.join().expect("it ends");
        over.store(true, Ordering::SeqCst);
        stepper.join().expect("it ends");
        let on_origin = |device: &dyn Device| (0..BLOCKS).map(|lba| read(device, lba)).collect::<Vec<_>>();
        let expected = [answered[0], answered[1], 1];
        assert_eq!(on_origin(&*stack.origin), expected, "{placement:?}: what was answered is there");
        let released = Slow(released.power_cycle_as(Fate::Lost, &mut Rng::new(1)));
        assert_eq!(on_origin(&released), expected, "{placement:?}: it was there at once, and durably");
    });
}
