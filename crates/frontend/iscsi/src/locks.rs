//! Locks of state that sessions share: parking_lot's and the standard flags, or shuttle's under the
//! same names, to explore schedules.
//!
//! With the feature `shuttle` the registry and the units run only inside of shuttle. The tests of
//! such runs are in `schedules`.

#[cfg(not(feature = "shuttle"))]
pub(crate) use std::sync::atomic::AtomicBool;

#[cfg(feature = "shuttle")]
pub(crate) use cairn_base::explored::{AtomicBool, Mutex, MutexGuard, RwLock, RwLockReadGuard};
#[cfg(not(feature = "shuttle"))]
pub(crate) use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard};
