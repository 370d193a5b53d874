//! Damage: how it is found, how it is repaired, and how space below it is freed.
//!
//! # Invariants
//! 1. A check and a scrub write nothing to the device.
//! 2. A repair writes only bytes that have the checksum in the block's pointer.
//! 3. Damaged blocks that were found are remembered, 1,024 at most, until they are repaired or
//!    nothing reaches them.

pub(crate) mod check;
pub(crate) mod damage;
pub(crate) mod repair;
pub(crate) mod scrub;
pub(crate) mod stranded;
