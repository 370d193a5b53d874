//! Beats come while all signs do, and stop for silence alone: not for a slow disk, and not for a
//! thread that works.

use std::sync::atomic::AtomicBool;

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};

use super::*;

/// How long the manager of these tests waits.
const LIMIT: Duration = Duration::from_millis(200);
/// Longest wait for a beat that must come.
const PATIENCE: Duration = Duration::from_secs(30);

/// A watchdog over signs, and its beats.
fn watch(signs: Vec<Sign>, waits_for_disk: impl Fn() -> bool + Send + 'static) -> (Watchdog, Receiver<()>) {
    let (said, beats) = channel();
    let beat = move || {
        let _ = said.send(());
    };
    (Watchdog::feed(LIMIT, signs, waits_for_disk, beat).unwrap(), beats)
}

/// Receives heartbeats until none has arrived for the time after which the manager kills the
/// server.
fn until_silent(beats: &Receiver<()>) {
    let end = Instant::now() + PATIENCE;
    while beats.recv_timeout(2 * LIMIT) != Err(RecvTimeoutError::Timeout) {
        assert!(Instant::now() < end, "beats go on");
    }
}

#[test]
fn beats_stop_while_a_lock_is_not_given_back_and_come_again() {
    let lock = Arc::new(Mutex::new(()));
    let taken = lock.clone();
    let sign = Sign::new("a lock", move || drop(taken.lock())).unwrap();
    let well = Sign::new("another", || {}).unwrap();
    let (watchdog, beats) = watch(vec![well, sign], || false);
    for _ in 0..3 {
        beats.recv_timeout(PATIENCE).unwrap();
    }
    let held = lock.lock();
    until_silent(&beats);
    drop(held);
    beats.recv_timeout(PATIENCE).unwrap();
    drop(watchdog);
    while beats.recv_timeout(PATIENCE).is_ok() {}
}

#[test]
fn time_in_which_a_disk_is_waited_for_does_not_count() {
    let lock = Arc::new(Mutex::new(()));
    let (taken, slow) = (lock.clone(), Arc::new(AtomicBool::new(true)));
    let (is_slow, held) = (slow.clone(), lock.lock());
    let sign = Sign::new("a lock", move || drop(taken.lock())).unwrap();
    let (_watchdog, beats) = watch(vec![sign], move || is_slow.load(Ordering::Relaxed));
    // Many times the patience of the manager.
    for _ in 0..20 {
        beats.recv_timeout(PATIENCE).unwrap();
    }
    slow.store(false, Ordering::Relaxed);
    until_silent(&beats);
    drop(held);
    beats.recv_timeout(PATIENCE).unwrap();
}

#[test]
fn thread_that_sleeps_in_its_round_is_told_from_one_that_works_or_has_ended() {
    let (lock, rounds) = (Mutex::new(()), Arc::new(Rounds::default()));
    let works = AtomicBool::new(true);
    std::thread::scope(|scope| {
        let held = lock.lock();
        scope.spawn(|| {
            let _ending = rounds.begin();
            rounds.turn();
            while works.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
            drop(lock.lock());
        });
        while !rounds.moved_since(0) {
            std::thread::yield_now();
        }
        // It computes: not round yet, and alive.
        let waited = Waited::new(rounds.clone());
        assert!(!rounds.moved_since(1));
        while !waited.is_over() {
            std::thread::yield_now();
        }
        // It waits for the lock: no check finds that it has run.
        works.store(false, Ordering::Relaxed);
        let thread = rounds.thread.load(Ordering::Relaxed);
        let is_asleep =
            || fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap().contains(") S ");
        while !is_asleep() {
            std::thread::yield_now();
        }
        let waited = Waited::new(rounds.clone());
        for _ in 0..100 {
            assert!(!waited.is_over());
        }
        drop(held);
        while !waited.is_over() {
            std::thread::yield_now();
        }
    });
    assert!(rounds.moved_since(1), "a thread that has ended is waited for no more");
}

#[test]
fn wait_for_a_disk_is_told_from_other_waits() {
    let (ring, futex) = ("426 0x1d 0x2 0x2 0x1", "202 0x55efc6d7f4a0 0x89");
    assert!(is_at_disk("7 (volume-a) S 1 7", ring));
    assert!(!is_at_disk("7 (volume-a) S 1 7", futex));
    assert!(!is_at_disk("7 (volume-a) R 1 7", "running"));
    assert!(is_at_disk("7 (volume-a) D 1 7", futex));
    assert!(is_at_disk("7 (a) S) D 1 7", futex));
    assert!(!is_at_disk("7 (a) D) S 1 7", futex));
    // An idle worker shows the call of the thread for which it was made.
    assert!(!is_at_disk("7 (iou-wrk-5356) S 1 7", ring));
    assert!(is_at_disk("7 (iou-wrk-5356) D 1 7", ring));
    assert!(!is_at_disk("", ""));
    // The question has an answer on this system, whatever the other tests are at.
    let _ = waits_for_disk();
}
