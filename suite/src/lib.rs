//! Runs the test programs of the workspace side by side.
//!
//! `cargo test` runs one test program after the other. Most programs wait for servers, timers and
//! disks, so the processors idle for half of the time. This crate asks cargo for the list of test
//! programs and keeps several of them running, the slowest first. Each program prints to a file of
//! its own, which is shown whole when the program fails.
//!
//! A program that fails beside others runs once more, alone, and that outcome counts; its first
//! output is shown all the same.

mod build;
mod run;
#[cfg(test)]
mod tests;
mod times;

pub use build::{Program, parse};
pub use run::{LIMIT, Outcome, Tally, run_all, tally};
pub use times::Times;
