//! A shown instant stays unchanged: over cuts and openings, whatever the clock is set to.

use cairn_base::Clock;
use cairn_device::Fate;

use super::*;

const B: usize = 4096;

#[test]
fn instant_that_is_shown_is_the_same_after_a_cut_though_nobody_has_flushed() {
    for placement in Placement::ALL {
        let origin = Arc::new(FaultDevice::new(8 * B as u64));
        let store = Arc::new(FaultDevice::new(4 * MIB));
        let (options, open) =
            (options(placement, Granularity::EveryWrite, 4096), open_options(&clock(), 64 << 10));
        let history =
            History::create(origin.clone(), store.clone(), &options, open.clone()).expect("a history");
        let write = |byte, blocks| {
            history.write(0, Segments::copy_of(&vec![byte; blocks * B])).expect("a write");
            history.status().last
        };
        write(1, 8);
        history.flush().expect("a flush");
        let view = history.view(write(2, 4)).expect("a view");
        let (instant, shown) = (view.instant(), bytes(&view, 0, 8 * B).expect("a read"));
        assert!(shown[..4 * B] == vec![2; 4 * B] && shown[4 * B..] == vec![1; 4 * B], "{placement:?}");
        drop(view);
        // Unflushed writes may go. A clone's base may not: the clone's own flushes make writes to
        // it durable.
        let cut = |device: &FaultDevice| Arc::new(device.power_cycle_as(Fate::Lost, &mut Rng::new(1)));
        let again = History::open(cut(&origin), cut(&store), open).expect("it opens");
        let view = again.view(instant).expect("a view");
        assert_eq!(view.instant(), instant, "{placement:?}");
        assert!(bytes(&view, 0, 8 * B).expect("a read") == shown, "{placement:?}");
    }
}

#[test]
fn instant_that_is_shown_takes_no_write_of_a_later_opening_whatever_the_clock_is_set_to() {
    for placement in Placement::ALL {
        for granularity in [Granularity::EveryWrite, Granularity::Interval(SECOND)] {
            let how = format!("{placement:?}, {granularity:?}");
            let mut stack = Stack::new(&options(placement, granularity, 4096), 8 * B as u64, 4 * MIB);
            stack.fill(0, 8 * B, 1);
            stack.history.flush().expect("a flush");
            // Some time after the last write.
            stack.clock.advance(Duration::from_secs(60));
            let now = stack.clock.now();
            let instant = stack.history.view(now).expect("a view").instant();
            assert!(now.0 - instant.0 <= SECOND, "{how}");
            // A machine whose clock does not advance while it is off.
            stack.clock.set(Timestamp(now.0 - 50 * SECOND));
            stack.reopen().expect("it opens");
            stack.fill(0, 4 * B, 2);
            stack.history.flush().expect("a flush");
            stack.clock.advance(Duration::from_secs(3600));
            let view = stack.history.view(instant).expect("a view");
            assert_eq!(view.instant(), instant, "{how}");
            assert!(bytes(&view, 0, 8 * B).expect("a read") == vec![1; 8 * B], "{how}");
        }
    }
}

/// Neither the window nor the steps of retention move past an instant that is being viewed.
#[test]
fn instant_that_is_shown_stays_when_its_time_is_over() {
    for placement in Placement::ALL {
        for is_thinned in [false, true] {
            let how = format!("{placement:?}, thinned: {is_thinned}");
            let mut options = options(placement, Granularity::EveryWrite, 4096);
            match is_thinned {
                true => {
                    let (after, every) = (Duration::from_secs(10), Duration::from_secs(1));
                    options.window.thin[0] = Some(Thin { after, every });
                }
                false => options.window.time = Some(Duration::from_secs(10)),
            }
            let stack = Stack::new(&options, 8 * B as u64, 4 * MIB);
            stack.fill(0, 8 * B, 1);
            stack.fill(0, 2 * B, 2);
            let view = stack.history.view(stack.now()).expect("a view");
            let shown = [[2; 2 * B].as_slice(), &[1; 6 * B]].concat();
            for later in 0..3 {
                stack.fill(0, 4 * B, 3);
                stack.history.flush().expect("a flush");
                stack.clock.advance(Duration::from_secs(3600));
                while stack.history.step().expect("a step") {}
                assert!(bytes(&view, 0, 8 * B).expect("a read") == shown, "{how}, {later}");
            }
            let instant = view.instant();
            assert!(stack.history.view_again(instant).is_ok(), "{how}");
            drop(view);
            while stack.history.step().expect("a step") {}
            assert!(stack.history.view_again(instant).is_err(), "{how}: it is over");
        }
    }
}

#[test]
fn instant_that_is_shown_can_be_shown_again_while_the_clock_is_behind_it() {
    let mut stack =
        Stack::new(&options(Placement::Logging, Granularity::EveryWrite, 4096), 8 * B as u64, 4 * MIB);
    stack.fill(0, 8 * B, 1);
    stack.history.flush().expect("a flush");
    stack.clock.advance(Duration::from_secs(60));
    let now = stack.clock.now();
    let instant = stack.history.view(now).expect("a view").instant();
    stack.clock.set(Timestamp(now.0 - 50 * SECOND));
    stack.reopen().expect("it opens");
    assert_eq!(stack.history.view(instant).expect("it is not in the future").instant(), instant);
}

#[test]
fn time_that_the_clock_shows_for_the_second_time_names_no_instant_and_a_mark_does() {
    for placement in Placement::ALL {
        let stack = Stack::new(&options(placement, Granularity::EveryWrite, 4096), 8 * B as u64, 4 * MIB);
        stack.fill(0, B, 1);
        let first = stack.now();
        stack.clock.advance(Duration::from_secs(3600));
        stack.fill(0, B, 2);
        stack.history.mark("second", false).expect("a mark");
        let again = first.0 + 1800 * SECOND;
        stack.clock.set(Timestamp(again));
        let now = || stack.clock.now();
        // It has shown this time before: then the second write did not exist.
        let is_refused =
            |at: Timestamp| matches!(stack.history.view(at), Err(HistoryError::ClockPutBack { .. }));
        assert!(is_refused(now()), "{placement:?}");
        stack.clock.advance(Duration::from_secs(60));
        stack.fill(0, B, 3);
        stack.clock.advance(Duration::from_secs(60));
        for at in [now(), Timestamp(now().0 - 30 * SECOND), Timestamp(again)] {
            assert!(is_refused(at), "{placement:?}");
            assert!(matches!(stack.history.check_revert(at), Err(HistoryError::ClockPutBack { .. })));
        }
        // Earlier instants, marks, and the times of writes in the status are unchanged.
        stack.history.mark("third", false).expect("a mark");
        stack.fill(0, B, 4);
        let marked = |name| stack.history.marked(name).expect("the mark");
        for (at, byte) in [(first, 1), (marked("second"), 2), (marked("third"), 3), (stack.now(), 4)] {
            let view = stack.history.view(at).expect("a view");
            assert_eq!(bytes(&view, 0, B).expect("a read"), vec![byte; B], "{placement:?}");
        }
        // An instant shown before can be shown again, also in the time that occurs twice.
        let shown = Timestamp(again + 10 * SECOND);
        let view = stack.history.view_again(shown).expect("a view");
        assert_eq!(bytes(&view, 0, B).expect("a read"), vec![1; B], "{placement:?}");
        stack.clock.advance(Duration::from_secs(3600));
        let view = stack.history.view(now()).expect("its time is over");
        assert_eq!(bytes(&view, 0, B).expect("a read"), vec![4; B], "{placement:?}");
    }
}

#[test]
fn mark_that_is_called_as_those_of_reverts_shows_after_an_opening_what_it_showed_before() {
    for placement in Placement::ALL {
        let mut stack = Stack::new(&options(placement, Granularity::Marks, 4096), 8 * B as u64, 4 * MIB);
        stack.fill(0, B, 1);
        let mark = stack.history.mark("before-revert-by-hand", true).expect("a mark");
        // The clock stands still, like one that was set back.
        stack.history.write(0, Segments::copy_of(&[2; B])).expect("a write");
        stack.history.flush().expect("a flush");
        stack.fill(0, B, 3);
        stack.history.flush().expect("a flush");
        let just_after = Timestamp(mark.time.0 + 1);
        for opened in ["before", "after an opening"] {
            for at in [mark.time, just_after] {
                let view = stack.history.view(at).expect("a view");
                assert!(bytes(&view, 0, B).expect("a read") == [1; B], "{placement:?}, {opened}: {at:?}");
            }
            stack.reopen().expect("it opens");
        }
    }
}

#[test]
fn moment_that_is_so_long_ago_shows_what_was_there_whatever_the_clock_is_set_to() {
    for placement in Placement::ALL {
        for ahead in [-40_000_000i64, -20, -3, 7, 40_000_000] {
            let stack =
                Stack::new(&options(placement, Granularity::EveryWrite, 4096), 8 * B as u64, 16 * MIB);
            for second in 1..=60u8 {
                if second % 20 == 0 {
                    let to = stack.clock.now().0.saturating_add_signed(ahead * SECOND as i64);
                    stack.clock.set(Timestamp(to));
                }
                // Ten milliseconds are of the write.
                stack.clock.advance(Duration::from_millis(990));
                stack.fill(0, B, second);
            }
            for ago in 0..59 {
                let how = format!("{placement:?}, set by {ahead} s, {ago} s ago");
                let when = stack.history.ago(Duration::from_millis(ago * 1000 + 500)).expect(&how);
                stack.history.check_revert(when).expect(&how);
                let view = stack.history.view(when).expect(&how);
                assert_eq!(bytes(&view, 0, 1).expect("a read"), [59 - ago as u8], "{how}");
            }
            let now = stack.history.ago(Duration::ZERO).expect("now");
            let reverted =
                stack.history.revert(stack.history.ago(Duration::from_millis(9500)).expect("an instant"));
            reverted.expect("a revert");
            assert_eq!(bytes(&*stack.history, 0, 1).expect("a read"), [50]);
            assert_eq!(bytes(&stack.history.view(now).expect("a view"), 0, 1).expect("a read"), [60]);
        }
    }
}

#[test]
fn moment_of_which_nothing_near_is_kept_is_refused() {
    let interval = Granularity::Interval(SECOND);
    let stack = Stack::new(&options(Placement::Logging, interval, 4096), 8 * B as u64, 4 * MIB);
    for second in 1..=40u8 {
        if second == 20 {
            stack.clock.set(Timestamp(stack.clock.now().0 - 1000 * SECOND));
        }
        stack.clock.advance(Duration::from_millis(990));
        stack.fill(0, B, second);
    }
    let ago = |seconds| stack.history.ago(Duration::from_secs(seconds));
    assert!(matches!(ago(5), Err(HistoryError::NotKept { .. })), "stamps stand, and no interval ends");
    let before = stack.history.view(ago(30).expect("it is from before")).expect("a view");
    let shown = bytes(&before, 0, 1).expect("a read")[0];
    assert!((8..=10).contains(&shown), "{shown}");
}

#[test]
fn instant_before_the_history_began_is_no_instant_that_the_window_has_left() {
    let stack =
        Stack::new(&options(Placement::Logging, Granularity::EveryWrite, 4096), 8 * B as u64, 4 * MIB);
    let began = stack.history.status().created;
    stack.fill(0, B, 1);
    let refused = |when: When| stack.history.view(when).err().expect("it is refused");
    let before = Timestamp(began.0 - 3600 * SECOND);
    assert!(matches!(refused(before.into()), HistoryError::BeforeBeginning));
    let ago = stack.history.ago(Duration::from_secs(3600)).expect("an instant");
    assert!(matches!(refused(ago), HistoryError::BeforeBeginning));
    stack.clock.set(Timestamp(began.0 - 10 * SECOND));
    let ago = stack.history.ago(Duration::from_secs(3600)).expect("an instant");
    assert!(matches!(refused(ago), HistoryError::BeforeBeginning), "also after the clock was put back");
}
