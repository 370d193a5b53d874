//! The locks of requests that clients may withdraw: parking_lot's, or shuttle's under the same
//! names, to explore schedules.
//!
//! With the feature `shuttle` a [`Gate`](crate::Gate) works only inside of shuttle. Nothing else of
//! this crate changes with it.

#[cfg(feature = "shuttle")]
pub(crate) use cairn_base::explored::{Condvar, Mutex};
#[cfg(not(feature = "shuttle"))]
pub(crate) use parking_lot::{Condvar, Mutex};
