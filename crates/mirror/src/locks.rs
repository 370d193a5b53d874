//! The locks of what sessions share: cairn-base's, or, to explore schedules, shuttle's behind the
//! same names.
//!
//! With the feature `shuttle` the crate runs only inside of shuttle. The tests of such runs are in
//! `tests/schedules.rs`.

#[cfg(not(feature = "shuttle"))]
pub(crate) use cairn_base::Mutex;
#[cfg(feature = "shuttle")]
pub(crate) use cairn_base::explored::Mutex;
