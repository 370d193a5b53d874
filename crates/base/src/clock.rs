//! Time comes in as a parameter, so that the simulator owns it.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

/// Nanoseconds since 1970-01-01 00:00:00 UTC.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// The time from `earlier` to `self`; zero when the clock went backwards.
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// A source of time. The real one is in `cairn-device` (`SystemClock`).
pub trait Clock: Send + Sync {
    /// Wall time; it may jump.
    fn now(&self) -> Timestamp;
    /// Wall time as the kernel puts it on files: [`Clock::now`], or up to a few milliseconds
    /// before. Times that are compared with those of the kernel come from here.
    fn coarse(&self) -> Timestamp {
        self.now()
    }
    /// Time since an arbitrary start; it never goes backwards.
    fn monotonic(&self) -> Duration;
}

/// A clock that stands still until it is moved, and can be set: its wall time then jumps, as that
/// of a machine with a wrong clock.
#[derive(Debug, Default)]
pub struct ManualClock {
    passed: AtomicU64,
    /// The difference between the wall clock and that.
    ahead: AtomicI64,
}

impl ManualClock {
    /// A clock that shows `start`.
    pub fn new(start: Timestamp) -> Self {
        Self { passed: AtomicU64::new(start.0), ahead: AtomicI64::new(0) }
    }

    /// Moves the clock on.
    pub fn advance(&self, by: Duration) {
        let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        self.passed.fetch_add(by, Ordering::Relaxed);
    }

    /// Sets the wall clock, forward or back; no time passes.
    pub fn set(&self, to: Timestamp) {
        let ahead = i128::from(to.0) - i128::from(self.passed.load(Ordering::Relaxed));
        self.ahead.store(i64::try_from(ahead).unwrap_or(i64::MAX), Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        let passed = self.passed.load(Ordering::Relaxed);
        Timestamp(passed.saturating_add_signed(self.ahead.load(Ordering::Relaxed)))
    }

    fn monotonic(&self) -> Duration {
        Duration::from_nanos(self.passed.load(Ordering::Relaxed))
    }
}
