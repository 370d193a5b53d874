//! How a session waits for its client: asleep, or by polling.
//!
//! Waking a thread on an idle core takes longer than many a client needs for its next request, so a
//! client with one request in flight gets its replies sooner when the session stays awake. If both
//! share a busy core it is the other way round: the session must sleep for the client to run. The
//! length of the last sleep shows which case it is.

use std::io;
use std::time::Instant;

use crate::limits::{LOOK_DURATION, LOOKS, SLEEP_WORTH_AVOIDING};

/// A session's knowledge of its client's pace.
#[derive(Debug, Default)]
pub struct Patience {
    /// How often to look before the next sleep is a probe again.
    looks_left: u32,
}

impl Patience {
    /// Calls `receive` until it returns data; its argument allows it to wait. `None` is its result
    /// when it waited in vain.
    pub fn receive(
        &mut self,
        mut receive: impl FnMut(bool) -> io::Result<Option<usize>>,
    ) -> io::Result<Option<usize>> {
        if self.looks_left > 0 {
            self.looks_left -= 1;
            let start = Instant::now();
            while start.elapsed() < LOOK_DURATION {
                if let Some(count) = receive(false)? {
                    return Ok(Some(count));
                }
                std::thread::yield_now();
            }
        }
        let start = Instant::now();
        let received = receive(true)?;
        self.looks_left = if SLEEP_WORTH_AVOIDING.contains(&start.elapsed()) { LOOKS } else { 0 };
        Ok(received)
    }
}
