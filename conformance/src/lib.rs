//! Programs that others wrote, and loads of our own, against the real `cairn`: killed at random
//! moments, full, crowded, stalled.
//!
//! A scenario is a function from a [`World`] and a number of rounds to a [`Verdict`]. The binary
//! runs one for long (`just conformance NAME ROUNDS`), the tests in `tests/` run each for seconds.
//! Random moments come from a seed, so that a failure names the seed and the round; what other
//! programs do meanwhile is theirs, and does not replay exactly.
//!
//! What SIGKILL proves: an answered flush was with the kernel or on the device, recovery works from
//! whatever a dying server leaves, and clients come back. Cairn's direct I/O leaves nothing in the
//! page cache of its files, but the machine goes on, and with it every write that the kernel had
//! taken: what only a power cut loses is the simulator's part (`sim/`).

mod model;
mod mount;
mod postgres;
mod probe;
mod program;
mod relay;
mod scenario;
mod scenarios;
mod server;

pub use program::find_cairn;
pub use scenario::{Facts, Scenario, Verdict, World};
pub use scenarios::SCENARIOS;
