//! A release beside clients.

use std::cell::Cell;

use super::*;

const B: usize = 4096;

/// A history of three writes of each block, whose present content is in the log alone.
fn written(placement: Placement, blocks: usize) -> Stack {
    let options = options(placement, Granularity::EveryWrite, B as u32);
    let stack = Stack::new(&options, 2 * (blocks * B) as u64, 64 * MIB);
    for round in 0..3u8 {
        for start in (0..blocks).step_by(64) {
            stack.fill((start * B) as u64, 64.min(blocks - start) * B, 16 * round + (start / 64) as u8 + 1);
        }
    }
    stack.history.flush().expect("a flush");
    stack
}

#[test]
fn clients_have_their_turn_while_a_history_is_folded_back_and_little_is_left_to_do_alone() {
    for placement in Placement::ALL {
        let stack = written(placement, 3000);
        let present = bytes(&*stack.history, 0, 3000 * B).expect("a read");
        let turns = Cell::new(0u64);
        let go_on = |done: u64, all: u64| {
            assert!(done <= all);
            // All operations of a client; none may wait for the end.
            let turn = turns.get();
            turns.set(turn + 1);
            let at = (3000 + turn % 3000) * B as u64;
            stack.history.write(at, Segments::copy_of(&[turn as u8; B])).expect("a write");
            stack.history.flush().expect("a flush");
            assert_eq!(bytes(&*stack.history, at, B).expect("a read"), [turn as u8; B]);
            true
        };
        stack.history.fold_back(&go_on).expect("it folds back");
        let (turns, left) = (turns.get(), stack.history.status().versions);
        if placement == Placement::Logging {
            assert!(turns > 10, "{turns} slices");
            assert!(left <= turns, "{left} versions are left, {turns} were written meanwhile");
        } else {
            assert_eq!(turns, 0, "{placement:?}: its origin is the present");
        }
        assert!(bytes(&*stack.history, 0, 3000 * B).expect("a read") == present, "{placement:?}");
        let all = bytes(&*stack.history, 0, 6000 * B).expect("a read");
        stack.history.release(&|_, _| {}).expect("a release");
        assert!(bytes(&*stack.origin, 0, 6000 * B).expect("a read") == all, "{placement:?}");
    }
}

#[test]
fn folding_back_that_is_ended_or_cut_leaves_a_history_of_less() {
    let mut stack = written(Placement::Logging, 600);
    let present = bytes(&*stack.history, 0, 600 * B).expect("a read");
    let before = stack.now();
    let slices = Cell::new(0);
    let go_on = |_, _| {
        slices.set(slices.get() + 1);
        slices.get() < 3
    };
    stack.history.fold_back(&go_on).expect("it ends");
    assert_eq!(slices.get(), 3, "it ends when it is told");
    assert!(matches!(stack.history.view(before), Err(HistoryError::BeforeWindow)), "what was is gone");
    stack.clock.advance(Duration::from_secs(1));
    stack.fill(0, B, 200);
    let after = stack.now();
    stack.fill(0, B, 201);
    stack.history.flush().expect("a flush");
    stack.reopen().expect("it opens");
    assert_eq!(bytes(&*stack.history, 0, B).expect("a read"), [201; B]);
    assert!(bytes(&*stack.history, B as u64, 599 * B).expect("a read") == present[B..]);
    let view = stack.history.view(after).expect("what came later is history");
    assert_eq!(bytes(&view, 0, B).expect("a read"), [200; B]);
    while stack.history.step().expect("a step") {}
    assert!(bytes(&*stack.origin, B as u64, 599 * B).expect("a read") == present[B..], "the move went on");
}

#[test]
fn view_that_holds_an_instant_ends_the_folding_back_before_that_goes() {
    let stack = written(Placement::Logging, 600);
    let at = stack.now();
    let view = stack.history.view(at).expect("a view");
    let expected = bytes(&view, 0, 600 * B).expect("a read");
    stack.fill(0, 600 * B, 99);
    stack.history.fold_back(&|_, _| true).expect("it ends");
    assert!(bytes(&view, 0, 600 * B).expect("a read") == expected);
    drop(view);
    stack.history.fold_back(&|_, _| true).expect("it folds back");
    assert!(matches!(stack.history.view(at), Err(HistoryError::BeforeWindow)));
}

#[test]
fn revert_that_is_still_copied_is_copied_to_its_end_beside_clients() {
    for placement in Placement::ALL {
        let stack = written(placement, 600);
        let at = stack.now();
        let present = bytes(&*stack.history, 0, 600 * B).expect("a read");
        stack.fill(0, 600 * B, 99);
        stack.history.revert(at).expect("a revert");
        stack.history.fold_back(&|_, _| true).expect("it folds back");
        assert!(stack.history.status().reverts.is_empty(), "{placement:?}");
        assert!(bytes(&*stack.history, 0, 600 * B).expect("a read") == present, "{placement:?}");
        if placement == Placement::Logging {
            assert!(bytes(&*stack.origin, 0, 600 * B).expect("a read") == present, "it is at home");
        }
    }
}
