//! The property of every kind of schedule when the clock of its server is set: the next run is at
//! most one period away, also after a restart.

use std::time::Duration;

use cairn_base::{Clock, ManualClock, Timestamp};

const HOUR: u64 = 3_600_000;
const DAY: u64 = 24 * HOUR;

/// A schedule as its thread sees it.
pub(crate) trait Scheduled {
    /// A look of the thread. True when something ran.
    fn look(&mut self, now_ms: u64) -> bool;
    /// The server restarts, with the saved state.
    fn restart(&mut self, now_ms: u64);
}

/// Sets the clock forward and back, by little and by years, with restarts in all places. After each
/// change a run follows within one period, and at most one run per period, plus one that each
/// change may add.
pub(crate) fn check<S: Scheduled>(name: &str, period_ms: u64, mut make: impl FnMut(u64) -> S) {
    let start = Timestamp(1_795_269_787 * 1_000_000_000);
    let look = Duration::from_millis(period_ms / 20);
    for by_ms in [period_ms / 2, 2 * HOUR, 30 * DAY, 9 * 365 * DAY] {
        for (first, second) in [(1, -1), (-1, 1), (-1, -1), (1, 1)] {
            for restarts in 0..8 {
                let how = format!("{name}: {first} and {second} times {by_ms} ms, restarts {restarts:03b}");
                let clock = ManualClock::new(start);
                let now_ms = |clock: &ManualClock| clock.now().0 / 1_000_000;
                let mut schedule = make(now_ms(&clock));
                for (stage, ahead) in [0, first, second].into_iter().enumerate() {
                    let to = clock.now().0.saturating_add_signed(ahead * (by_ms * 1_000_000) as i64);
                    clock.set(Timestamp(to));
                    if restarts & 1 << stage != 0 {
                        schedule.restart(now_ms(&clock));
                    }
                    let (mut waited, mut runs) = (Duration::ZERO, 0);
                    for _ in 0..80 {
                        clock.advance(look);
                        waited += look;
                        if schedule.look(now_ms(&clock)) {
                            runs += 1;
                            waited = Duration::ZERO;
                        }
                        let most = Duration::from_millis(period_ms + period_ms / 8) + look;
                        assert!(waited <= most, "{how}: stage {stage}, no run for {waited:?}");
                    }
                    assert!((3..=6).contains(&runs), "{how}: stage {stage}, {runs} runs in 4 periods");
                }
            }
        }
    }
}
