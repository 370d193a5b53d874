//! The clock of this machine.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cairn_base::{Clock, Timestamp};
use rustix::time::{ClockId, clock_gettime};

/// Wall time and a monotonic time that starts when the clock is made.
#[derive(Debug, Clone)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// A clock whose monotonic time is now zero.
    pub fn new() -> Self {
        Self { start: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        // A machine that believes to be before 1970 has no better answer than its beginning.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Timestamp(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    }

    fn coarse(&self) -> Timestamp {
        let time = clock_gettime(ClockId::RealtimeCoarse);
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        Timestamp(seconds.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec.cast_unsigned()))
    }

    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }
}
