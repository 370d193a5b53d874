//! The locks of a volume: those of [`cairn_base`], or shuttle's under the same names, to explore
//! schedules.
//!
//! With the feature `shuttle` the crate runs only inside of shuttle. The tests of such runs are in
//! `schedules`.

#[cfg(feature = "shuttle")]
pub(crate) use cairn_base::explored::{Condvar, Mutex, MutexGuard, RwLock};
#[cfg(not(feature = "shuttle"))]
pub(crate) use cairn_base::{Condvar, Mutex, MutexGuard};
#[cfg(not(feature = "shuttle"))]
pub(crate) use parking_lot::RwLock;
