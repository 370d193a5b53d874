//! Programs that others wrote, and loads of our own, against the real `cairn`: killed at random
//! moments, full, crowded, stalled.
//!
//! A scenario is a function from a [`World`] and a number of rounds to a [`Verdict`]. The binary
//! runs one for long (`just conformance NAME ROUNDS`), the tests in `tests/` run each for seconds.
//! Random moments come from a seed, so that a failure names the seed and the round. The timing of
//! other programs is their own, and does not replay exactly.
//!
//! SIGKILL proves the following: an answered flush was with the kernel or on the device, recovery
//! works from any state that a killed server leaves, and clients reconnect. Cairn's direct I/O
//! leaves nothing in the page cache of its files. But the machine keeps running, and with it every
//! write that the kernel had taken: losses that need a power cut are the simulator's part (`sim/`).

mod model;
mod mount;
mod postgres;
mod probe;
mod program;
mod relay;
mod scenario;
mod scenarios;
mod server;
mod store;

pub use program::find_cairn;
pub use scenario::{Facts, Scenario, Verdict, World};
pub use scenarios::SCENARIOS;
