//! Promises to owners, one test each.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

const B: usize = 4096;

#[test]
fn write_acknowledged_before_an_instant_is_in_its_image_and_a_later_one_is_not() {
    for placement in Placement::ALL {
        let stack = Stack::new(&options(placement, Granularity::EveryWrite, 4096), 8 * B as u64, 4 * MIB);
        stack.fill(0, B, 1);
        let first = stack.now();
        stack.fill(0, B, 2);
        let second = stack.now();
        stack.fill(100, 50, 3);
        for (at, byte) in [(first, 1), (Timestamp(second.0 - 1), 1), (second, 2)] {
            let view = stack.history.view(at).expect("a view");
            assert_eq!(bytes(&view, 0, B).expect("a read"), vec![byte; B], "{placement:?}");
        }
    }
}

#[test]
fn revert_shows_the_instant_at_once_is_undone_by_its_mark_and_survives_the_background_copy() {
    for placement in Placement::ALL {
        let mut stack =
            Stack::new(&options(placement, Granularity::Interval(SECOND), 4096), 64 * B as u64, 4 * MIB);
        stack.fill(0, 64 * B, 1);
        stack.history.mark("good", true).expect("a mark");
        stack.fill(0, 40 * B, 2);
        let good = stack.history.marked("good").expect("the mark");
        let reverted = stack.history.revert(good).expect("a revert");
        assert_eq!(bytes(&*stack.history, 0, 64 * B).expect("a read"), vec![1; 64 * B]);
        // A write to a block that is not copied yet, and a kill before the copy is over.
        stack.fill(5 * B as u64 + 7, 10, 3);
        stack.history.flush().expect("a flush");
        stack.reopen().expect("it opens");
        let mut expected = vec![1; 64 * B];
        expected[5 * B + 7..][..10].fill(3);
        assert_eq!(bytes(&*stack.history, 0, 64 * B).expect("a read"), expected, "{placement:?}");
        while stack.history.step().expect("a step") {}
        assert!(stack.history.status().reverts.is_empty(), "the copy is over");
        assert_eq!(bytes(&*stack.history, 0, 64 * B).expect("a read"), expected, "{placement:?}");
        let undo = stack.history.marked(&reverted.undo).expect("the mark of the revert");
        stack.history.revert(undo).expect("a revert");
        expected[..40 * B].fill(2);
        expected[40 * B..].fill(1);
        assert_eq!(bytes(&*stack.history, 0, 64 * B).expect("a read"), expected, "{placement:?}");
    }
}

#[test]
fn undone_revert_is_not_seen_by_who_reads_while_its_copy_goes_on() {
    for placement in Placement::ALL {
        let origin = Arc::new(Interrupted {
            inner: Arc::new(MemoryDevice::new(64 * B as u64)),
            in_reads: true,
            armed: std::sync::Mutex::default(),
        });
        let store = Arc::new(MemoryDevice::new(4 * MIB));
        let options = options(placement, Granularity::Marks, 4096);
        let history = History::create(origin.clone(), store, &options, open_options(&clock(), 1 << 20))
            .expect("a history");
        history.write(0, Segments::copy_of(&[1; 64 * B])).expect("a write");
        let good = history.mark("good", true).expect("a mark");
        history.write(0, Segments::copy_of(&[2; 40 * B])).expect("a write");
        history.flush().expect("a flush");
        let reverted = history.revert(good.time).expect("a revert");
        let undo = history.marked(&reverted.undo).expect("the mark of the revert");
        history.revert(undo).expect("a revert");
        let mut expected = vec![1; 64 * B];
        expected[..40 * B].fill(2);
        // A thread is about to read a block where it is on the origin, and the copy of the first
        // revert overwrites it.
        let copier = history.clone();
        let copy = move || {
            copier.step().expect("a step");
        };
        *origin.armed.lock().expect("nobody panicked") = Some(Box::new(copy));
        assert!(bytes(&*history, 0, 64 * B).expect("a read") == expected, "{placement:?}: beside the copy");
        *origin.armed.lock().expect("nobody panicked") = None;
        while history.step().expect("a step") {
            assert!(
                bytes(&*history, 0, 64 * B).expect("a read") == expected,
                "{placement:?}: between slices"
            );
        }
        assert!(bytes(&*history, 0, 64 * B).expect("a read") == expected, "{placement:?}: afterwards");
    }
}

/// Restored content of a block is copied before a write replaces it, or no instant between the two
/// would have it.
#[test]
fn block_that_is_written_before_a_revert_has_copied_it_shows_until_then_what_came_back() {
    for placement in Placement::ALL {
        let stack = Stack::new(&options(placement, Granularity::EveryWrite, 4096), 64 * B as u64, 4 * MIB);
        stack.fill(0, 64 * B, 1);
        stack.history.mark("good", true).expect("a mark");
        stack.fill(0, 64 * B, 2);
        let good = stack.history.marked("good").expect("the mark");
        stack.history.revert(good).expect("a revert");
        let between = stack.now();
        stack.fill(40 * B as u64, 2 * B, 3);
        stack.history.flush().expect("a flush");
        let shown = |at: &str| {
            let view = stack.history.view(between).expect("a view");
            assert!(bytes(&view, 0, 64 * B).expect("a read") == [1; 64 * B], "{placement:?}, {at}");
        };
        shown("at once");
        while stack.history.step().expect("a step") {}
        shown("once all is copied");
        assert_eq!(bytes(&*stack.history, 40 * B as u64, B).expect("a read"), [3; B], "{placement:?}");
    }
}

/// The copy begins anew after a cut: blocks that it has copied already are not the content before
/// the revert.
#[test]
fn revert_whose_copy_is_cut_in_the_middle_can_be_undone() {
    for placement in Placement::ALL {
        let mut stack = Stack::new(&options(placement, Granularity::Marks, 4096), 64 * B as u64, 4 * MIB);
        stack.fill(0, 64 * B, 1);
        stack.history.mark("good", true).expect("a mark");
        stack.fill(0, 64 * B, 2);
        let good = stack.history.marked("good").expect("the mark");
        let undo = stack.history.revert(good).expect("a revert").undo;
        for _ in 0..2 {
            assert!(stack.history.step().expect("a step"), "{placement:?}");
            assert!(!stack.history.status().reverts.is_empty(), "{placement:?}: the copy is under way");
            stack.reopen().expect("it opens");
        }
        while stack.history.step().expect("a step") {}
        assert!(bytes(&*stack.history, 0, 64 * B).expect("a read") == [1; 64 * B], "{placement:?}");
        let before = stack.history.marked(&undo).expect("the mark of the revert");
        let view = stack.history.view(before).expect("a view");
        assert!(bytes(&view, 0, 64 * B).expect("a read") == [2; 64 * B], "{placement:?}");
        drop(view);
        stack.history.revert(before).expect("a revert");
        assert!(bytes(&*stack.history, 0, 64 * B).expect("a read") == [2; 64 * B], "{placement:?}");
    }
}

#[test]
fn instant_behind_a_revert_is_kept_when_the_copy_is_over_and_over_openings() {
    for placement in Placement::ALL {
        let mut stack = Stack::new(&options(placement, Granularity::Marks, 4096), 8 * B as u64, 4 * MIB);
        stack.fill(0, 8 * B, 1);
        stack.history.mark("good", true).expect("a mark");
        stack.fill(0, 4 * B, 2);
        let good = stack.history.marked("good").expect("the mark");
        stack.history.revert(good).expect("a revert");
        while stack.history.step().expect("a step") {}
        assert!(stack.history.status().reverts.is_empty(), "the copy is over");
        let at = stack.history.view(stack.now()).expect("a view").instant();
        stack.fill(0, B, 3);
        stack.history.flush().expect("a flush");
        for round in 4..7 {
            stack.reopen().expect("it opens");
            // The first writes after an opening replace nothing that the instant shows.
            stack.fill(u64::from(round - 3) * B as u64, B, round);
            stack.history.flush().expect("a flush");
            let view = stack.history.view(at).expect("a view");
            assert_eq!(view.instant(), at, "{placement:?}");
            assert_eq!(bytes(&view, 0, 8 * B).expect("a read"), vec![1; 8 * B], "{placement:?}");
        }
    }
}

#[test]
fn full_store_gives_up_the_oldest_history_and_no_write_fails() {
    for placement in Placement::ALL {
        let stack = Stack::new(&options(placement, Granularity::EveryWrite, 4096), 256 * B as u64, 3 * MIB);
        let start = stack.history.status().start;
        for round in 0..40u8 {
            stack.fill(u64::from(round % 4) * 64 * B as u64, 64 * B, round);
        }
        let status = stack.history.status();
        assert!(status.start > start && !status.events.is_empty(), "{placement:?}");
        let view = stack.history.view(status.start).expect("the oldest instant");
        assert!(bytes(&view, 0, B).is_ok());
        assert!(matches!(stack.history.view(start), Err(HistoryError::BeforeWindow)));
    }
}

#[test]
fn revert_that_has_no_room_for_its_copy_does_not_end_the_device() {
    for placement in [Placement::Logging, Placement::Checkpointing] {
        let stack = Stack::new(&options(placement, Granularity::EveryWrite, 4096), 300 * B as u64, 3 * MIB);
        for part in 0..6 {
            stack.fill(part * 50 * B as u64, 50 * B, 1);
        }
        stack.history.mark("good", true).expect("a mark");
        for part in 0..6 {
            stack.fill(part * 50 * B as u64, 50 * B, 2);
        }
        stack.history.flush().expect("a flush");
        let good = stack.history.marked("good").expect("it is in the window");
        let reverted = stack.history.revert(good).is_ok();
        while stack.history.step().expect("a step") {}
        let expected = if reverted { 1 } else { 2 };
        assert!(stack.history.status().reverts.is_empty(), "{placement:?}: the copy is over");
        stack.fill(0, 50 * B, 3);
        stack.history.flush().expect("there is room for writes");
        assert_eq!(bytes(&*stack.history, 50 * B as u64, B).expect("a read"), [expected; B]);
    }
}

#[test]
fn floor_that_may_not_be_given_up_makes_writes_fail_and_loses_nothing() {
    let mut options = options(Placement::Logging, Granularity::EveryWrite, 4096);
    options.window.floor = Duration::from_secs(3600);
    let stack = Stack::new(&options, 64 * B as u64, 3 * MIB);
    let start = stack.history.status().start;
    let mut written = Vec::new();
    let refused = (0..2000u64).find(|round| {
        stack.clock.advance(Duration::from_millis(1));
        let data = Segments::copy_of(&[*round as u8; B]);
        let refused = stack.history.write(round % 64 * B as u64, data).is_err();
        if !refused {
            written.push((stack.now(), *round));
        }
        refused
    });
    assert!(refused.is_some(), "the store is full at some time");
    assert_eq!(stack.history.status().start, start, "nothing was given up");
    let (_, last) = *written.last().expect("writes before");
    assert_eq!(bytes(&*stack.history, last % 64 * B as u64, B).expect("a read"), [last as u8; B]);
    // Time passes, and there is room again.
    stack.clock.advance(Duration::from_secs(7200));
    stack.fill(0, B, 9);
    stack.history.flush().expect("a flush");
}

#[test]
fn window_of_time_moves_on_and_its_space_is_free_again() {
    for placement in Placement::ALL {
        let mut options = options(placement, Granularity::EveryWrite, 4096);
        options.window.time = Some(Duration::from_secs(1));
        let stack = Stack::new(&options, 64 * B as u64, 16 * MIB);
        for round in 0..40u8 {
            stack.fill(0, 64 * B, round);
        }
        stack.history.flush().expect("a flush");
        stack.clock.advance(Duration::from_secs(10));
        while stack.history.step().expect("a step") {}
        let status = stack.history.status();
        assert!(status.versions < 200, "{placement:?} keeps {}", status.versions);
        assert_eq!(bytes(&*stack.history, 0, 64 * B).expect("a read"), vec![39; 64 * B]);
        let view = stack.history.view(status.last).expect("a view");
        assert_eq!(bytes(&view, 0, 64 * B).expect("a read"), vec![39; 64 * B], "{placement:?}");
    }
}

/// Versions about to be dropped cannot be the base of a block that the move has passed already.
#[test]
fn block_that_is_written_while_the_window_moves_is_kept_as_it_was_before() {
    for placement in Placement::ALL {
        let mut options = options(placement, Granularity::EveryWrite, 4096);
        options.window.time = Some(Duration::from_secs(60));
        let stack = Stack::new(&options, 256 * B as u64, 32 * MIB);
        stack.fill(0, 256 * B, 1);
        stack.history.flush().expect("a flush");
        stack.clock.advance(Duration::from_secs(100));
        // Many blocks that the move has to process, after one that it has not.
        stack.fill(B as u64, 255 * B, 2);
        stack.history.flush().expect("a flush");
        let before = stack.now();
        stack.clock.advance(Duration::from_secs(10));
        let start = stack.history.status().start;
        for _ in 0..2 {
            assert!(stack.history.step().expect("a step"), "{placement:?}");
        }
        assert!(stack.history.status().start > start, "{placement:?}: it moves");
        stack.fill(0, B, 3);
        stack.history.flush().expect("a flush");
        while stack.history.step().expect("a step") {}
        let view = stack.history.view(before).expect("a view");
        assert_eq!(bytes(&view, 0, B).expect("a read"), [1; B], "{placement:?}");
        assert_eq!(bytes(&*stack.history, 0, B).expect("a read"), [3; B], "{placement:?}");
    }
}

#[test]
fn old_history_is_thinned_in_steps_and_every_kept_instant_stays_exact() {
    for placement in Placement::ALL {
        let mut options = options(placement, Granularity::EveryWrite, 4096);
        let step = |after, every| {
            Some(Thin { after: Duration::from_secs(after), every: Duration::from_secs(every) })
        };
        options.window.thin = [step(10, 1), step(60, 20), None, None];
        let mut stack = Stack::new(&options, 16 * B as u64, 32 * MIB);
        let mut written = vec![(stack.now(), 0)];
        for round in 1..=1200u64 {
            stack.clock.advance(Duration::from_millis(90));
            stack.fill(round % 4 * 4 * B as u64, 4 * B, round as u8);
            written.push((stack.now(), round));
            while stack.history.step().expect("a step") {}
        }
        stack.history.mark("end", false).expect("a mark");
        let content = |at: Timestamp| {
            let mut expected = vec![0; 16 * B];
            for (stamp, round) in written.iter().skip(1).filter(|(stamp, _)| *stamp <= at) {
                assert!(*stamp <= at);
                expected[(round % 4) as usize * 4 * B..][..4 * B].fill(*round as u8);
            }
            expected
        };
        for reopened in [false, true] {
            if reopened {
                stack.reopen().expect("it opens");
            }
            let mut instants = std::collections::BTreeSet::new();
            for (stamp, _) in &written {
                let view = stack.history.view(*stamp).expect("a view");
                assert!(view.instant() <= *stamp);
                let read = bytes(&view, 0, 16 * B).expect("a read");
                assert!(read == content(view.instant()), "{placement:?}: the view of {stamp:?}");
                instants.insert(view.instant());
            }
            // 120 s: a hundred writes in the last 10 s, an instant a second for 50 s, then one in
            // 20 s.
            assert!((100..260).contains(&instants.len()), "{placement:?}: {} instants", instants.len());
        }
        while stack.history.step().expect("a step") {}
        let versions = stack.history.status().versions;
        assert!(versions < 1800, "{placement:?} keeps {versions} versions of 4800");
    }
}

#[test]
fn retention_that_contradicts_itself_or_what_was_thinned_is_refused() {
    let step =
        |after, every| Some(Thin { after: Duration::from_secs(after), every: Duration::from_secs(every) });
    let make = |granularity, thin| {
        let mut options = options(Placement::Logging, granularity, 4096);
        options.window.thin = thin;
        let (origin, store) = (Arc::new(FaultDevice::new(MIB)), Arc::new(FaultDevice::new(4 * MIB)));
        History::create(origin, store, &options, open_options(&clock(), 1)).map(|_| ())
    };
    assert!(make(Granularity::Interval(SECOND), [step(60, 10), step(600, 60), None, None]).is_ok());
    for (granularity, thin) in [
        (Granularity::Marks, [step(60, 10), None, None, None]),
        (Granularity::Interval(3 * SECOND), [step(60, 10), None, None, None]),
        (Granularity::EveryWrite, [step(60, 10), step(600, 25), None, None]),
        (Granularity::EveryWrite, [step(60, 10), step(50, 20), None, None]),
        (Granularity::EveryWrite, [step(5, 10), None, None, None]),
    ] {
        assert!(matches!(make(granularity, thin), Err(HistoryError::Refused { .. })), "{thin:?}");
    }
    let mut options = options(Placement::Logging, Granularity::EveryWrite, 4096);
    options.window.thin = [step(10, 1), None, None, None];
    let stack = Stack::new(&options, 16 * B as u64, 32 * MIB);
    for round in 0..100 {
        stack.clock.advance(Duration::from_millis(300));
        stack.fill(0, B, round);
    }
    stack.history.flush().expect("a flush");
    while stack.history.step().expect("a step") {}
    // Without the step, discarded instants would be promised again.
    assert!(matches!(stack.history.set_window(Window::default()), Err(HistoryError::Refused { .. })));
    let mut later = options.window;
    later.thin = [step(100, 1), step(1000, 10), None, None];
    stack.history.set_window(later).expect("another age, and one more");
    assert_eq!(stack.history.status().window, later);
}

#[test]
fn io_of_a_write_is_one_two_three_as_in_figure_5() {
    for (placement, expected) in
        [(Placement::Logging, 1.0), (Placement::SplitDownStream, 2.0), (Placement::Checkpointing, 3.0)]
    {
        let stack = Stack::new(&options(placement, Granularity::EveryWrite, 4096), 512 * B as u64, 64 * MIB);
        let mut rng = Rng::new(1);
        for _ in 0..4000 {
            stack.fill(rng.below(512) * B as u64, B, 1);
        }
        stack.history.flush().expect("a flush");
        let counters = stack.history.status().counters;
        let cost = counters.io_per_write(true);
        assert!((cost - expected).abs() < 0.15, "{placement:?}: {cost} I/O per write, {counters:?}");
    }
}

#[test]
fn copy_on_write_costs_one_io_after_the_first_write_and_redirect_on_write_one_always() {
    for (placement, first, later) in [(Placement::Checkpointing, 3.0, 1.0), (Placement::Logging, 1.0, 1.0)] {
        let stack = Stack::new(&options(placement, Granularity::Marks, 4096), 64 * B as u64, 16 * MIB);
        stack.fill(0, 64 * B, 7);
        stack.history.mark("snapshot", false).expect("a mark");
        let mut before = stack.history.status().counters;
        for expected in [first, later] {
            for block in 0..64 {
                stack.fill(block * B as u64, B, 1);
            }
            stack.history.flush().expect("a flush");
            let now = stack.history.status().counters;
            let io = |counters: &Counters| {
                counters.current_reads.blocks
                    + counters.current_writes.blocks
                    + counters.history_writes.blocks
            };
            let cost = (io(&now) - io(&before)) as f64 / 64.0;
            assert!((cost - expected).abs() < 0.01, "{placement:?}: {cost}");
            before = now;
        }
    }
}

#[test]
fn release_leaves_the_present_on_the_origin() {
    for placement in Placement::ALL {
        let stack = Stack::new(&options(placement, Granularity::EveryWrite, 4096), 64 * B as u64, 4 * MIB);
        for round in 0..30u64 {
            stack.fill(round * 517 % (60 * B as u64), 3000, round as u8);
        }
        let present = bytes(&*stack.history, 0, 64 * B).expect("a read");
        stack.history.release(&|_, _| {}).expect("a release");
        assert_eq!(bytes(&*stack.origin, 0, 64 * B).expect("a read"), present, "{placement:?}");
        assert!(stack.history.write(0, Segments::copy_of(&[1])).is_err(), "it is out of service");
        let again = History::open(stack.origin.clone(), stack.store.clone(), open_options(&stack.clock, 1));
        assert!(matches!(again, Err(HistoryError::NoHistory)));
    }
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let make = |options: &HistoryOptions, origin: u64, store: u64| {
        let (origin, store) = (Arc::new(FaultDevice::new(origin)), Arc::new(FaultDevice::new(store)));
        History::create(origin, store, options, open_options(&clock(), 1)).map(|_| ())
    };
    let fine = options(Placement::Hybrid, Granularity::Marks, 4096);
    assert!(make(&fine, MIB, 4 * MIB).is_ok());
    for block_bytes in [0, 100, 512, 2048, 131_072] {
        let wrong = HistoryOptions { block_bytes, ..fine };
        assert!(matches!(make(&wrong, MIB, 4 * MIB), Err(HistoryError::Refused { .. })), "{block_bytes}");
    }
    assert!(matches!(make(&fine, MIB, MIB), Err(HistoryError::StoreTooSmall { .. })));
    let mut wrong = fine;
    wrong.window.time = Some(Duration::from_secs(1));
    wrong.window.floor = Duration::from_secs(2);
    assert!(matches!(make(&wrong, MIB, 4 * MIB), Err(HistoryError::Refused { .. })));
}

#[test]
fn view_shows_its_instant_also_while_a_batch_leaves_the_cache() {
    // Eight parts of a batch, each published under its own lock: a reader gets in after each of
    // them.
    const BLOCKS: usize = 1024;
    for placement in Placement::ALL {
        let (origin, store) =
            (Arc::new(MemoryDevice::new((BLOCKS * B) as u64)), Arc::new(MemoryDevice::new(256 * MIB)));
        let open = open_options(&clock(), 32 * MIB);
        let options = options(placement, Granularity::Marks, 4096);
        let history = History::create(origin, store, &options, open).expect("a history");
        for round in 0..3u8 {
            history.write(0, Segments::copy_of(&vec![round; BLOCKS * B])).expect("a write");
            let mark = history.mark(&format!("m{round}"), false).expect("a mark");
            let view = history.view(mark.time).expect("a view");
            history.write(0, Segments::copy_of(&vec![round + 1; BLOCKS * B])).expect("a write");
            let looked = Arc::new(AtomicU64::new(0));
            let looks = looked.clone();
            let look = move || {
                looks.fetch_add(1, Ordering::Relaxed);
                let found = bytes(&view, 0, BLOCKS * B).expect("a read");
                let other = found.iter().position(|byte| *byte != round).map(|at| at / B);
                assert_eq!(other, None, "{placement:?}: the view shows a later write in that block");
            };
            *history.between.lock() = Some(Box::new(look));
            history.flush().expect("a flush");
            // The view goes with it.
            *history.between.lock() = None;
            assert!(looked.load(Ordering::Relaxed) >= 8, "{placement:?}: nobody looked");
        }
    }
}

#[test]
fn clone_of_a_view_takes_writes_for_ever_and_leaves_the_view_alone() {
    let stack =
        Stack::new(&options(Placement::Checkpointing, Granularity::EveryWrite, 4096), 64 * B as u64, 8 * MIB);
    stack.fill(0, 64 * B, 1);
    let view = Arc::new(stack.history.view(stack.now()).expect("a view"));
    stack.fill(0, 32 * B, 2);
    let store = Arc::new(FaultDevice::new(4 * MIB));
    let options = HistoryOptions {
        window: Window::of_a_clone(),
        ..options(Placement::Logging, Granularity::Marks, 4096)
    };
    let made = History::create(view.clone(), store.clone(), &options, open_options(&stack.clock, 1 << 16));
    let clone = made.expect("a clone");
    let mut rng = Rng::new(9);
    // Many times the size of its store.
    for round in 0..6000u64 {
        let block = rng.below(60);
        clone.write(block * B as u64, Segments::copy_of(&[round as u8; B])).expect("a write");
        let read = bytes(&*clone, block * B as u64, B).expect("a read");
        assert_eq!(read, [round as u8; B]);
    }
    let present = bytes(&*clone, 0, 64 * B).expect("a read");
    assert_eq!(present[60 * B..], vec![1; 4 * B]);
    clone.flush().expect("a flush");
    drop(clone);
    let clone = History::open(view.clone(), store, open_options(&stack.clock, 1 << 16)).expect("it opens");
    assert_eq!(bytes(&*clone, 0, 64 * B).expect("a read"), present);
    assert_eq!(bytes(&*view, 0, 64 * B).expect("a read"), vec![1; 64 * B]);
}

/// A device that calls a function once, in the middle of its first write, or read, after it was
/// armed.
struct Interrupted {
    inner: Arc<MemoryDevice>,
    in_reads: bool,
    armed: std::sync::Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Device for Interrupted {
    fn geometry(&self) -> cairn_device::Geometry {
        self.inner.geometry()
    }

    fn run(&self, batch: &mut [cairn_device::Operation]) {
        let is_due = |operation: &cairn_device::Operation| operation.request().is_mutation() != self.in_reads;
        // The called function may come here again.
        let call = match batch.iter().any(is_due) {
            true => self.armed.lock().expect("nobody panicked").take(),
            false => None,
        };
        if let Some(call) = call {
            call();
        }
        self.inner.run(batch);
    }
}

/// The clock is set back, and a client writes, between the decision up to where history is
/// discarded, and the discarding.
#[test]
fn write_of_a_clock_that_is_put_back_while_the_window_begins_to_move_is_no_part_of_what_goes() {
    let origin = Arc::new(Interrupted {
        inner: Arc::new(MemoryDevice::new(16 * B as u64)),
        in_reads: false,
        armed: std::sync::Mutex::default(),
    });
    let store = Arc::new(MemoryDevice::new(8 * MIB));
    let clock = clock();
    let mut options = options(Placement::SplitStream, Granularity::EveryWrite, 4096);
    options.window.time = Some(Duration::from_secs(60));
    let open = open_options(&clock, 64 << 10);
    let history = History::create(origin.clone(), store.clone(), &options, open).expect("a history");
    for block in 0..10u8 {
        clock.advance(Duration::from_millis(10));
        history.write(u64::from(block) * B as u64, Segments::copy_of(&[1; B])).expect("a write");
    }
    // To the log, and to the origin over time.
    assert!(history.step().expect("a step"));
    clock.advance(Duration::from_secs(3600));
    let (writer, late) = (history.clone(), clock.clone());
    let write = move || {
        late.set(Timestamp((1_700_000_000 + 1800) * SECOND));
        writer.write(0, Segments::copy_of(&[2; B])).expect("a write");
    };
    *origin.armed.lock().expect("nobody panicked") = Some(Box::new(write));
    while history.step().expect("a step") {}
    assert!(origin.armed.lock().expect("nobody panicked").is_none(), "it wrote meanwhile");
    let status = history.status();
    assert!(status.last > status.start, "{status:?}");
    history.flush().expect("a flush");
    drop(history);
    let history = History::open(origin, store, open_options(&clock, 64 << 10)).expect("it opens");
    assert_eq!(bytes(&*history, 0, B).expect("a read"), [2; B]);
    assert_eq!(bytes(&*history, B as u64, B).expect("a read"), [1; B]);
    let view = history.view(status.start).expect("the oldest instant");
    assert_eq!(bytes(&view, 0, B).expect("a read"), [1; B]);
}

#[test]
fn view_that_is_opened_while_retention_begins_a_round_shows_one_instant() {
    for placement in Placement::ALL {
        let origin = Arc::new(MemoryDevice::new(16 * B as u64));
        let store = Arc::new(Interrupted {
            inner: Arc::new(MemoryDevice::new(32 * MIB)),
            in_reads: false,
            armed: std::sync::Mutex::default(),
        });
        let clock = clock();
        let mut options = options(placement, Granularity::EveryWrite, 4096);
        options.window.thin[0] = Some(Thin { after: Duration::from_secs(10), every: Duration::from_secs(1) });
        let history = History::create(origin, store.clone(), &options, open_options(&clock, 1 << 20))
            .expect("a history");
        let mut written = Vec::new();
        for round in 1..=100u8 {
            clock.advance(Duration::from_millis(300));
            history.write(0, Segments::copy_of(&[round; B])).expect("a write");
            written.push((history.status().last, round));
        }
        history.flush().expect("a flush");
        // In the superblock's first write of the round, a viewer asks for instants that it gives
        // up.
        let viewers = Arc::new(std::sync::Mutex::new(Vec::new()));
        let (threads, viewed) = (viewers.clone(), history.clone());
        let asked: Vec<Timestamp> = written[20..25].iter().map(|(at, _)| *at).collect();
        let ask = move || {
            for at in asked {
                let history = viewed.clone();
                threads.lock().expect("nobody panicked").push(std::thread::spawn(move || history.view(at)));
            }
            let deadline = std::time::Instant::now() + Duration::from_millis(200);
            while viewed.state.lock().views.len() < 5 && std::time::Instant::now() < deadline {
                std::thread::yield_now();
            }
        };
        *store.armed.lock().expect("nobody panicked") = Some(Box::new(ask));
        while history.step().expect("a step") {}
        let viewers = std::mem::take(&mut *viewers.lock().expect("nobody panicked"));
        assert_eq!(viewers.len(), 5, "the round has begun");
        for viewer in viewers {
            let view = viewer.join().expect("no panic").expect("a view");
            let (_, byte) = written.iter().rfind(|(at, _)| *at <= view.instant()).expect("a write before");
            assert_eq!(bytes(&view, 0, B).expect("a read"), [*byte; B], "{placement:?}");
        }
    }
}

#[test]
fn flush_covers_a_block_that_another_client_writes_again_before_it_is_over() {
    for placement in Placement::ALL {
        let origin = Arc::new(MemoryDevice::new(128 * B as u64));
        let store = Arc::new(Interrupted {
            inner: Arc::new(MemoryDevice::new(4 * MIB)),
            in_reads: false,
            armed: std::sync::Mutex::default(),
        });
        let clock = clock();
        let options = options(placement, Granularity::Marks, 4096);
        let open = open_options(&clock, 512 << 10);
        let history =
            History::create(origin.clone(), store.clone(), &options, open.clone()).expect("a history");
        let write = |history: &History, block: u64, byte: u8| {
            history.write(block * B as u64, Segments::copy_of(&[byte; B])).expect("a write");
        };
        // More than one batch waits, and the block that counts is the last of them.
        for block in 0..40 {
            write(&history, block, 1);
        }
        let other = history.clone();
        let rewrite = move || {
            for block in (40..80).chain([39]) {
                other.write(block * B as u64, Segments::copy_of(&[2; B])).expect("a write");
            }
        };
        *store.armed.lock().expect("nobody panicked") = Some(Box::new(rewrite));
        history.flush().expect("a flush");
        // Blocks that were not written out are gone.
        drop(history);
        let history = History::open(origin, store, open).expect("it opens");
        let read = bytes(&*history, 39 * B as u64, B).expect("a read");
        assert!(read == [1; B] || read == [2; B], "{placement:?}: a flushed block shows {}", read[0]);
    }
}
