//! Waiting is a parameter, as time is: the simulator's pause takes no time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cairn_base::{Condvar, ManualClock, Mutex};

use crate::limits::CANCEL_POLL;

/// Lets time pass.
pub trait Pause: Send + Sync {
    /// Returns when the time has passed.
    fn pause(&self, time: Duration);
}

/// Sleeps the calling thread.
#[derive(Debug, Default)]
pub struct Sleep {
    nothing: Mutex<()>,
    happens: Condvar,
}

impl Pause for Sleep {
    fn pause(&self, time: Duration) {
        self.happens.wait_for(&mut self.nothing.lock(), time);
    }
}

/// Moves the clock.
impl Pause for ManualClock {
    fn pause(&self, time: Duration) {
        self.advance(time);
    }
}

/// Pauses for `time`, or until `cancel` is set; whether the time has passed.
pub(crate) fn pause_for(pause: &dyn Pause, time: Duration, cancel: &AtomicBool) -> bool {
    let mut left = time;
    while !left.is_zero() {
        if cancel.load(Ordering::Relaxed) {
            return false;
        }
        let step = left.min(CANCEL_POLL);
        pause.pause(step);
        left -= step;
    }
    !cancel.load(Ordering::Relaxed)
}
