use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;

use super::Lanes;

#[test]
fn work_without_a_free_lane_comes_back() {
    let (begun, begins) = channel();
    let (go, gone) = channel::<()>();
    let gone = parking_lot::Mutex::new(gone);
    let mut lanes = Lanes::new(1, move |number: u32| {
        begun.send(number).expect("the test listens");
        gone.lock().recv().expect("the test allows it to end");
    });
    assert!(lanes.has_room());
    assert_eq!(lanes.give(1), Ok(()));
    assert_eq!(begins.recv(), Ok(1));
    assert!(!lanes.has_room());
    assert_eq!(lanes.give(2), Err(2));
    go.send(()).expect("the lane listens");
    while !lanes.has_room() {
        std::thread::yield_now();
    }
    assert_eq!(lanes.give(3), Ok(()));
    go.send(()).expect("the lane listens");
    assert_eq!(begins.recv(), Ok(3));
}

#[test]
fn dropped_lanes_have_done_all_work() {
    let done = Arc::new(AtomicU64::new(0));
    let mut given = 0;
    for _ in 0..200 {
        let counter = Arc::clone(&done);
        let mut lanes = Lanes::new(3, move |number: u64| {
            counter.fetch_add(number, Ordering::SeqCst);
        });
        for number in 1..8 {
            given += number;
            if let Err(number) = lanes.give(number) {
                done.fetch_add(number, Ordering::SeqCst);
            }
        }
        drop(lanes);
        assert_eq!(done.load(Ordering::SeqCst), given);
    }
}
