//! Limits a transfer to a rate in bytes a second. The rate may change at any moment, even during a
//! wait.
//!
//! The destination reads no faster than that, and its socket's window, which grows with the bytes
//! read, holds the source back: a few hundred KiB may be in flight ahead of it. Bytes that were
//! read are a debt that time pays off, and reading waits while the debt is more than a fiftieth of
//! a second's bytes. Idle time earns no credit, so the rate holds over every second, and not only
//! on average.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cairn_base::Clock;
use parking_lot::Mutex;

/// The longest rest: a change of the rate is noticed within it.
const REST_MAX: Duration = Duration::from_millis(50);
/// The debt without waiting, as a part of a second. Longer than the usual overrun of a sleep.
const SLACK: f64 = 0.02;
/// The least rate, in bytes a second. Slower than that, a link looks as if it had stalled.
pub(crate) const RATE_MIN: u64 = 16 << 10;

#[derive(Default)]
struct Owed {
    bytes: f64,
    /// Up to when it was paid off.
    paid: Duration,
}

/// The pace of a transfer.
#[derive(Default)]
pub(crate) struct Pace {
    /// Bytes a second; 0 for as fast as it goes.
    rate: AtomicU64,
    owed: Mutex<Owed>,
}

impl Pace {
    /// Bytes a second from now on; none for no limit.
    pub(crate) fn set(&self, rate: Option<u64>) {
        self.rate.store(rate.map_or(0, |rate| rate.max(RATE_MIN)), Ordering::Relaxed);
    }

    /// Bytes a second.
    pub(crate) fn rate(&self) -> Option<u64> {
        Some(self.rate.load(Ordering::Relaxed)).filter(|rate| *rate > 0)
    }

    /// Waits until `bytes` more may have arrived. `rest` sleeps, and returns whether to continue.
    pub(crate) fn pay(&self, bytes: usize, clock: &dyn Clock, rest: &mut dyn FnMut(Duration) -> bool) {
        let mut owed = self.owed.lock();
        owed.bytes += bytes as f64;
        while let Some(rate) = self.rate() {
            let rate = rate as f64;
            let now = clock.monotonic();
            let earned = now.saturating_sub(owed.paid).as_secs_f64() * rate;
            owed.bytes = (owed.bytes - earned).max(0.0);
            owed.paid = now;
            if owed.bytes <= rate * SLACK {
                return;
            }
            // A part stays owed, so that a sleep that lasts too long costs nothing.
            let left = owed.bytes / rate - SLACK / 2.0;
            if !rest(Duration::from_secs_f64(left).min(REST_MAX)) {
                return;
            }
        }
        *owed = Owed { bytes: 0.0, paid: clock.monotonic() };
    }
}

#[cfg(test)]
mod tests {
    use cairn_base::{ManualClock, Rng, Timestamp};

    use super::*;

    /// Moves `total` bytes, and returns the duration. Sleeps overrun.
    fn takes(pace: &Pace, total: u64, clock: &ManualClock, rng: &mut Rng) -> f64 {
        let began = clock.monotonic();
        let mut moved = 0;
        while moved < total {
            let piece = 1 + rng.below(16 << 10);
            // The link itself is quick.
            clock.advance(Duration::from_nanos(rng.below(20_000)));
            moved += piece;
            pace.pay(piece as usize, clock, &mut |rest| {
                clock.advance(rest + Duration::from_micros(rng.below(3_000)));
                true
            });
        }
        (clock.monotonic() - began).as_secs_f64()
    }

    #[test]
    fn rate_is_kept_within_five_per_cent_and_changes_at_once() {
        let (clock, mut rng) = (ManualClock::new(Timestamp(1)), Rng::new(3));
        let pace = Pace::default();
        assert!(takes(&pace, 50 << 20, &clock, &mut rng) < 1.0, "as fast as it goes");
        // Idle time earns nothing.
        clock.advance(Duration::from_secs(1000));
        for rate in [64 << 10, 1 << 20, 50 << 20, 300 << 20] {
            pace.set(Some(rate));
            let took = takes(&pace, rate * 4, &clock, &mut rng);
            assert!((3.8..4.2).contains(&took), "{rate} bytes a second: {took} s for what should take 4");
            clock.advance(Duration::from_secs(10));
        }
        // In the middle of a wait.
        pace.set(Some(RATE_MIN));
        let (began, mut rests) = (clock.monotonic(), 0);
        pace.pay(100 << 20, &clock, &mut |rest| {
            clock.advance(rest);
            rests += 1;
            if rests == 10 {
                pace.set(None);
            }
            true
        });
        assert_eq!(rests, 10);
        assert!(clock.monotonic() - began < Duration::from_secs(1));
        assert!(takes(&pace, 50 << 20, &clock, &mut rng) < 1.0, "nothing is owed any more");
    }

    #[test]
    fn waiting_ends_when_the_transfer_does() {
        let (clock, pace) = (ManualClock::new(Timestamp(1)), Pace::default());
        pace.set(Some(RATE_MIN));
        let mut rests = 0;
        pace.pay(1 << 30, &clock, &mut |_| {
            rests += 1;
            rests < 3
        });
        assert_eq!(rests, 3);
    }
}
