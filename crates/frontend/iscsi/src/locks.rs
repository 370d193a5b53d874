//! What sessions share: parking_lot's locks and the standard flags, or, to explore schedules,
//! shuttle's behind the same names.
//!
//! With the feature `shuttle` the registry and the units run only inside of shuttle. The tests of
//! such runs are in `schedules`.

#[cfg(not(feature = "shuttle"))]
pub(crate) use std::sync::atomic::AtomicBool;

#[cfg(feature = "shuttle")]
pub(crate) use cairn_base::explored::{AtomicBool, Mutex, MutexGuard, RwLock, RwLockReadGuard};
#[cfg(not(feature = "shuttle"))]
pub(crate) use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard};
