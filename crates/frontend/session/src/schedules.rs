//! Explores schedules of state that sessions share: `cargo test -p cairn-frontend-session
//! --features shuttle --lib schedules`.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use cairn_base::explored::{AtomicU64, explore};
use shuttle::thread;

use crate::limits::{BATCH_BYTES_MAX, METER_PERIOD, WINDOW_BYTES_MIN, WINDOWS_BYTES};
use crate::{Kind, Meter, Windows};

/// Schedules of each scenario and kind of scheduler.
const SCHEDULES: usize = 500;

/// Sessions take and release windows while another thread looks. Each gets its part, all together
/// get at most the limit, the reported amount covers the held one, and all of it comes back.
#[test]
fn windows_stay_within_the_budget_and_all_come_back_in_any_schedule() {
    const SESSIONS: u64 = 3;
    explore(SCHEDULES, || {
        let windows = Arc::new(Windows::default());
        // With a nearly used-up budget they get the least window.
        let before: Vec<_> = (0..5).map(|_| windows.take()).collect();
        let held_before = windows.used();
        let held = Arc::new(AtomicU64::new(held_before));
        let sessions: Vec<_> = (0..SESSIONS)
            .map(|_| {
                let (windows, held) = (windows.clone(), held.clone());
                thread::spawn(move || {
                    for _ in 0..2 {
                        let window = windows.take();
                        let bytes = window.bytes();
                        assert!((WINDOW_BYTES_MIN..=BATCH_BYTES_MAX).contains(&bytes));
                        assert!(bytes.is_multiple_of(WINDOW_BYTES_MIN));
                        let all = held.fetch_add(bytes, SeqCst) + bytes;
                        assert!(all <= WINDOWS_BYTES + SESSIONS * WINDOW_BYTES_MIN, "{all}");
                        held.fetch_sub(bytes, SeqCst);
                    }
                })
            })
            .collect();
        for _ in 0..3 {
            let used = windows.used();
            assert!((held_before..=WINDOWS_BYTES + SESSIONS * WINDOW_BYTES_MIN).contains(&used), "{used}");
        }
        sessions.into_iter().for_each(|session| session.join().expect("it ends"));
        assert_eq!(windows.used(), held_before);
        drop(before);
        assert_eq!((windows.used(), windows.take().bytes()), (0, BATCH_BYTES_MAX));
    });
}

/// A session records while two look, at moments that are not in its order: a batch is seen as a
/// whole or not at all, nothing is counted twice, and nothing of the last seconds is lost.
#[test]
fn who_looks_at_a_meter_sees_whole_batches_and_loses_none_in_any_schedule() {
    const BATCHES: u64 = 4;
    const BYTES: u64 = 4096;
    let begin = Instant::now();
    explore(SCHEDULES, move || {
        let at = move |step: u64| begin + METER_PERIOD / 3 * step as u32;
        let meter = Arc::new(Meter::new(begin));
        let (begun, ended) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (recording, begins, ends) = (meter.clone(), begun.clone(), ended.clone());
        let session = thread::spawn(move || {
            for step in 1..=BATCHES {
                begins.store(step, SeqCst);
                recording.taken(2);
                let mut batch = recording.batch(at(step));
                batch.moved(Kind::Read, BYTES);
                thread::yield_now();
                batch.done(Kind::Read, begin, BYTES);
                thread::yield_now();
                batch.done(Kind::Write, begin, 2 * BYTES);
                drop(batch);
                ends.store(step, SeqCst);
            }
        });
        let lookers: Vec<_> = (0..2u64)
            .map(|looker| {
                let (meter, begun, ended) = (meter.clone(), begun.clone(), ended.clone());
                thread::spawn(move || {
                    let mut least = 0;
                    for look in 0..3 {
                        let before = ended.load(SeqCst);
                        let totals = meter.totals();
                        let after = begun.load(SeqCst);
                        let whole = totals.read_bytes / (2 * BYTES);
                        assert_eq!(
                            (totals.read_bytes, totals.written_bytes),
                            (whole * 2 * BYTES, whole * 2 * BYTES)
                        );
                        assert!(
                            (before.max(least)..=after).contains(&whole),
                            "{before} <= {whole} <= {after}"
                        );
                        assert!((2 * whole..=2 * after).contains(&totals.requests), "{totals:?} {after}");
                        least = whole;
                        // Before the session and after it, all within the reported amount.
                        let before = ended.load(SeqCst);
                        let activity = meter.activity(at(5 * looker.min(look)));
                        let after = begun.load(SeqCst);
                        let counted = |per_second: f64| {
                            (per_second * activity.window.max(Duration::from_millis(100)).as_secs_f64())
                                .round() as u64
                        };
                        let (read, written) =
                            (counted(activity.read.per_second), counted(activity.write.per_second));
                        assert_eq!(read, written, "{activity:?}");
                        assert!(
                            (before..=after).contains(&read),
                            "{before} <= {read} <= {after}: {activity:?}"
                        );
                    }
                })
            })
            .collect();
        session.join().expect("it ends");
        lookers.into_iter().for_each(|looker| looker.join().expect("it ends"));
        let totals = meter.totals();
        let moved = BATCHES * 2 * BYTES;
        assert_eq!((totals.requests, totals.read_bytes, totals.written_bytes), (2 * BATCHES, moved, moved));
    });
}
