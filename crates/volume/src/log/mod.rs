//! The intent log: a flush is durable without a consistency point.
//!
//! # Invariants
//! 1. A record names blocks that have their final place. A replay writes no data.
//! 2. A replay ends at the first record that is not whole, so the replayed log is a prefix of the
//!    clients' flushes.
//! 3. The log is in the label area or on a device of its own, as the superblock says.

pub(crate) mod device;
pub(crate) mod intent;
pub(crate) mod mend;
