//! IoMeter's random mixes: requests of one length, uniform over a device, some of them reads (MSST
//! 2006, figures 4 and 5).

use cairn_base::Rng;

use super::{fraction, gap};
use crate::{TraceOp, TraceRecord};

/// The workload.
pub struct IoMeter {
    rng: Rng,
    places: u64,
    length: u64,
    reads: f64,
    rate: f64,
    at_ns: u64,
    until_ns: u64,
}

impl IoMeter {
    /// Requests of `length` bytes over `size_bytes`, `rate` a second for `seconds`; the share
    /// `reads` of them read.
    pub fn new(size_bytes: u64, length: u64, reads: f64, rate: f64, seconds: f64, seed: u64) -> Self {
        let places = (size_bytes / length.max(1)).max(1);
        Self { rng: Rng::new(seed), places, length, reads, rate, at_ns: 0, until_ns: (seconds * 1e9) as u64 }
    }
}

impl Iterator for IoMeter {
    type Item = TraceRecord;

    fn next(&mut self) -> Option<TraceRecord> {
        self.at_ns += gap(&mut self.rng, self.rate);
        if self.at_ns >= self.until_ns {
            return None;
        }
        let op = if fraction(&mut self.rng) < self.reads { TraceOp::Read } else { TraceOp::Write };
        let offset = self.rng.below(self.places) * self.length;
        Some(TraceRecord { at_ns: self.at_ns, device: 0, op, offset, length: self.length })
    }
}
