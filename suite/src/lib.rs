//! Runs the test programs of the workspace side by side.
//!
//! `cargo test` builds all test programs and then runs one after the other. Most programs wait for
//! servers, timers and disks, so the processors idle for half of the time. This crate starts the
//! build, and keeps several programs running, the slowest first. Unit tests start while cargo still
//! builds. Integration tests may run `cairn`, so they start when that program is complete. Each
//! program prints to a file of its own, which is shown whole when it fails.
//!
//! Other checks, such as builds for lints, run beside the tests after the build, at the lowest
//! priority.
//!
//! A program that fails beside others runs once more, alone, and that outcome counts; its first
//! output is shown all the same.

mod build;
mod queue;
mod run;
#[cfg(test)]
mod tests;
mod times;

pub use build::{Built, Program, parse};
pub use queue::Queue;
pub use run::{LIMIT, Outcome, Tally, run_all, run_beside, tally};
pub use times::Times;
