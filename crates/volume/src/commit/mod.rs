//! Consistency points: changes in memory become a new root on the device, in one step.
//!
//! # Invariants
//! 1. A superblock is written only after every block that it reaches is durable.
//! 2. Both superblock slots hold the newest superblock before a block that the older one reaches is
//!    reused.
//! 3. A block is free when no root reaches it and no reader can still read it.
//! 4. Where the device has no room, a consistency point changes nothing that a reader or a later
//!    opening can see.

pub(crate) mod consistency;
pub(crate) mod excluded;
pub(crate) mod pending;
pub(crate) mod release;
pub(crate) mod rider;
pub(crate) mod room;
pub(crate) mod space;
pub(crate) mod superblock;
pub(crate) mod table;
pub(crate) mod update;
pub(crate) mod used;
