//! Locks of state that sessions share: parking_lot's and the standard counters, or shuttle's under
//! the same names, to explore schedules.
//!
//! With the feature `shuttle` meters, windows and rosters run only inside of shuttle. The tests of
//! such runs are in `schedules`.

#[cfg(not(feature = "shuttle"))]
pub(crate) use std::sync::atomic::AtomicU64;

#[cfg(feature = "shuttle")]
pub(crate) use cairn_base::explored::{AtomicU64, Condvar, Mutex, MutexGuard};
#[cfg(not(feature = "shuttle"))]
pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};
