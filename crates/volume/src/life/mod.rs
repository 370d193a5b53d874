//! Making a volume and opening one.
//!
//! # Invariants
//! 1. No volume is made on a device that already holds one.
//! 2. The superblock is written last: a format or an adoption that is cut leaves no volume.
//! 3. An opened volume has everything that was flushed, from the newest superblock that verifies
//!    and the intent log.

pub(crate) mod adopt;
pub(crate) mod open;
