//! Turns of several names, side by side and one after the other.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

#[test]
fn turn_with_one_name_holds_up_nobody_with_another() {
    let turns = Turns::default();
    let slow = turns.take_now("slow", "its devices are being opened").expect("nobody has it");
    drop(turns.take(&["vol0"], "it is being made").expect("it is another name"));
    assert!(turns.take_now("slow", "it is being made").is_none());
    let soon = Duration::from_millis(20);
    let refused = turns.take_within(&["vol0", "slow"], "a clone is being made", soon);
    let said = refused.err().expect("one of them is taken").to_string();
    assert!(said.contains("slow") && said.contains("its devices are being opened"), "{said}");
    drop(turns.take_now("vol0", "it is being made").expect("who waits for one of several has none of them"));
    drop(slow);
    drop(turns.take_now("slow", "it is being made").expect("it is over"));
}

#[test]
fn turns_with_a_name_come_one_after_the_other_and_each_comes() {
    let turns = Turns::default();
    let busy = [("a", AtomicBool::new(false)), ("b", AtomicBool::new(false))];
    std::thread::scope(|scope| {
        for names in [&["a"][..], &["b"], &["a", "b"], &["b", "a"]] {
            let (turns, busy) = (&turns, &busy);
            scope.spawn(move || {
                for _ in 0..500 {
                    let _turn = turns.take(names, "it is being made").expect("each comes to an end");
                    let mine = || busy.iter().filter(|(name, _)| names.contains(name));
                    mine().for_each(|(_, busy)| assert!(!busy.swap(true, Ordering::AcqRel)));
                    std::thread::yield_now();
                    mine().for_each(|(_, busy)| busy.store(false, Ordering::Release));
                }
            });
        }
    });
}
