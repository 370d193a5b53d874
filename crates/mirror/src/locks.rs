//! The locks of state that sessions share: cairn-base's, or shuttle's under the same names, to
//! explore schedules.
//!
//! With the feature `shuttle` the crate runs only inside of shuttle. The tests of such runs are in
//! `tests/schedules.rs`.

#[cfg(not(feature = "shuttle"))]
pub(crate) use cairn_base::Mutex;
#[cfg(feature = "shuttle")]
pub(crate) use cairn_base::explored::Mutex;
