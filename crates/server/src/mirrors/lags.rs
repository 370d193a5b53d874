//! The lag of each mirror over the last days, in memory: one sample a minute.
//!
//! A restart of the server begins it again. Monitoring systems keep it for longer, from the
//! metrics.

use std::collections::VecDeque;
use std::time::Duration;

use cairn_api as api;

/// Between two samples.
const EVERY: Duration = Duration::from_secs(60);

/// Samples of two days; older ones are dropped.
const SAMPLES_MAX: usize = 2880;

/// The samples of a mirror, the oldest first.
#[derive(Default)]
pub(super) struct Lags {
    /// By the monotonic clock.
    next: Duration,
    samples: VecDeque<api::LagSample>,
}

impl Lags {
    /// Adds a sample if a minute has passed.
    pub(super) fn note(&mut self, now: Duration, sample: impl FnOnce() -> api::LagSample) {
        if now < self.next {
            return;
        }
        self.next = now + EVERY;
        if self.samples.len() == SAMPLES_MAX {
            self.samples.pop_front();
        }
        self.samples.push_back(sample());
    }

    /// The samples, the oldest first.
    pub(super) fn list(&self) -> Vec<api::LagSample> {
        self.samples.iter().copied().collect()
    }
}

#[cfg(test)]
mod tests;
