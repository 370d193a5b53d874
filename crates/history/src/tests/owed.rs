//! Room that reverts take: counted before, and left to them.

use super::*;

const B: usize = 4096;
const BLOCKS: u64 = 300;

/// A device in a store that is full of its history: rounds of writes of all blocks, a mark before
/// each.
fn full(placement: Placement, rounds: u8) -> Stack {
    let stack = Stack::new(&options(placement, Granularity::EveryWrite, 4096), BLOCKS * B as u64, 4 * MIB);
    for round in 1..=rounds {
        for part in 0..BLOCKS / 10 {
            stack.history.mark(&format!("{round}-{part}"), true).expect("a mark");
            stack.fill(part * 10 * B as u64, 10 * B, round);
        }
    }
    stack.history.flush().expect("a flush");
    stack
}

fn first_bytes(device: &dyn Device) -> Vec<u8> {
    (0..BLOCKS).map(|block| bytes(device, block * B as u64, 1).expect("a read")[0]).collect()
}

#[test]
fn revert_whose_copy_has_no_room_is_refused_and_changes_nothing() {
    for placement in Placement::ALL {
        let stack = full(placement, 3);
        let marks = stack.history.marks();
        let before = first_bytes(&*stack.history);
        let oldest = marks.first().expect("marks").time;
        assert!(
            matches!(stack.history.check_revert(oldest), Err(HistoryError::NoRoomToRevert { missing: 1.. })),
            "{placement:?}"
        );
        let start = stack.history.status().start;
        let refused = stack.history.revert(oldest);
        assert!(matches!(refused, Err(HistoryError::NoRoomToRevert { .. })), "{placement:?}: {refused:?}");
        assert_eq!(stack.history.marks(), marks, "{placement:?}");
        assert_eq!(stack.history.status().start, start, "{placement:?}: nothing was given up");
        assert_eq!(first_bytes(&*stack.history), before, "{placement:?}");
        // A nearer instant has less to copy.
        let near = marks[marks.len() - 4].time;
        let image = first_bytes(&stack.history.view(near).expect("a view"));
        let reverted = stack.history.revert(near).expect("there is room for that");
        assert_eq!(first_bytes(&*stack.history), image, "{placement:?}");
        while stack.history.step().expect("a step") {}
        assert_eq!(first_bytes(&*stack.history), image, "{placement:?}");
        let undo = stack.history.marked(&reverted.undo).expect("the mark of the revert");
        let undone = first_bytes(&stack.history.view(undo).expect("a view"));
        assert_eq!(undone, before, "{placement:?}: it can be undone");
    }
}

#[test]
fn writes_after_a_revert_leave_its_copy_the_room_that_it_needs() {
    for placement in Placement::ALL {
        let mut granted = 0;
        for back in [5, 15, 25, 30, 35, 45, 60] {
            for reopened in [false, true] {
                let mut stack = full(placement, 3);
                let marks = stack.history.marks();
                let Some(target) = marks.len().checked_sub(back).map(|at| marks[at].time) else { continue };
                let mut expected = first_bytes(&stack.history.view(target).expect("a view"));
                match stack.history.revert(target) {
                    Ok(_) => granted += 1,
                    Err(HistoryError::NoRoomToRevert { .. }) => continue,
                    Err(error) => panic!("{placement:?}: {error}"),
                }
                if reopened {
                    stack.reopen().expect("it opens");
                }
                // Twice the store, without background work.
                let mut rng = Rng::new(back as u64);
                for round in 0..2000u64 {
                    let block = rng.below(BLOCKS / 2);
                    stack.fill(block * B as u64, B, round as u8);
                    expected[block as usize] = round as u8;
                    if round % 7 == 0 {
                        stack.history.flush().expect("there is room for writes");
                    }
                }
                while stack.history.step().expect("a step") {}
                let status = stack.history.status();
                assert!(status.reverts.is_empty(), "{placement:?}: the copy is over");
                assert_eq!(first_bytes(&*stack.history), expected, "{placement:?}, {back} back");
            }
        }
        assert!(granted >= 2, "{placement:?}: {granted} reverts had room");
    }
}

#[test]
fn window_of_a_split_history_that_can_not_move_at_once_moves_in_parts() {
    for placement in [Placement::SplitStream, Placement::SplitDownStream] {
        let mut options = options(placement, Granularity::EveryWrite, 4096);
        options.window.time = Some(Duration::from_secs(3600));
        let mut stack = Stack::new(&options, 400 * B as u64, 6 * MIB);
        for round in 1..=3 {
            stack.fill(0, 400 * B, round);
            stack.history.flush().expect("a flush");
            stack.clock.advance(Duration::from_secs(1800));
        }
        // All blocks have a version before the start of the window, and one after it.
        for _ in 0..2 {
            while stack.history.step().expect("a step") {}
            stack.reopen().expect("it opens");
        }
        for round in 4..12 {
            stack.fill(0, 400 * B, round);
            stack.history.flush().expect("a flush");
            while stack.history.step().expect("a step") {}
            let view = stack.history.view(stack.history.status().start).expect("the oldest instant");
            bytes(&view, 0, 400 * B).expect("a read");
        }
        assert_eq!(bytes(&*stack.history, 0, 400 * B).expect("a read"), vec![11; 400 * B]);
    }
}
