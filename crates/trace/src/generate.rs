//! Workloads of the papers as traces: an SPC-1-like one (FAST 2007, section 4.2.1), IoMeter's
//! random mixes and a stand-in for PostMark (MSST 2006, section 4).
//!
//! A generator is an iterator of requests in order of time, the same for the same seed. Its memory
//! is that of its state, not of the trace.

mod iometer;
mod postmark;
mod spc1;

use cairn_base::Rng;

pub use iometer::IoMeter;
pub use postmark::PostMark;
pub use spc1::Spc1;

/// Nanoseconds in a second.
const SECOND: f64 = 1e9;
/// Bytes of the unit of all these workloads.
const UNIT: u64 = 4096;

/// Uniform in 0..1.
fn fraction(rng: &mut Rng) -> f64 {
    (rng.next() >> 11) as f64 / (1u64 << 53) as f64
}

/// A gap between requests that come at `rate` a second at random (Poisson), in nanoseconds.
fn gap(rng: &mut Rng, rate: f64) -> u64 {
    (-(1.0 - fraction(rng)).ln() / rate * SECOND) as u64
}
