//! The locks of the registry: parking_lot's, or, to explore schedules, shuttle's behind the same names.
//!
//! With the feature `shuttle` the registry runs only inside of shuttle. The tests of such runs are in `schedules`.

#[cfg(feature = "shuttle")]
pub(crate) use cairn_base::explored::{Condvar, Mutex, MutexGuard};
#[cfg(not(feature = "shuttle"))]
pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};
