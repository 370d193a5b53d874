//! The image dump: streams as files. Written in parts side by side, read record by record past
//! damage, restored in any order, opened as a device.
//!
//! A dump has one part or several. Each part is a file (or a pipe) with a head, an image stream
//! with its share of the blocks and the whole snapshot table, and the head again
//! (`docs/format.md`). [`Dump`] writes parts, and resumes an interrupted one ([`Begun`]).
//! [`PartReader`] reads a part from beginning to end, and continues after a damaged record.
//! [`arrange`] puts a full dump and its increments in order. [`restore`] puts their blocks on a
//! device and makes it a volume; [`restore_on`] resumes an interrupted restore. [`DumpDevice`]
//! shows the same volume without restoring it.
//!
//! # Invariants
//! 1. A part without its trailer is never taken for a whole one, wherever it was cut.
//! 2. A damaged record loses only that record: the reader finds the next one, and reports the gap.
//! 3. A dump changes nothing that it shows: block numbers, trees and snapshots are those of the
//!    volume, so a block that is wrong does not have the checksum in the block above it, and is not
//!    served.
//! 4. The existing part of a resumed dump has been verified, or was verified when it was made
//!    durable; verified records are never overwritten.

mod chain;
mod device;
mod error;
mod index;
mod read;
mod restore;
mod resume;
#[cfg(test)]
mod tests;
mod window;
mod write;

pub use chain::arrange;
pub use device::{DumpDevice, OpenDump};
pub use error::DumpError;
pub use index::{DumpBytes, PartIndex};
pub use read::{HEAD_BYTES, Lost, PartHead, PartReached, PartReader};
pub use restore::{RestoreLedger, Restored, Standing, restore, restore_on};
pub use resume::{Begun, begun_table};
pub use window::{InBlocks, ReadBlocks};
pub use write::{Dump, DumpLabel, Onto};
