//! Ids, units, checksums, clocks and random numbers: the words that every other crate uses.
//!
//! This crate does no I/O and imports nothing of ours.

mod checksum;
mod clock;
#[cfg(feature = "shuttle")]
pub mod explored;
mod id;
mod lock;
mod rng;
#[cfg(test)]
mod tests;
mod units;

pub use checksum::{Checksum, crc32c, crc32c_append};
pub use clock::{Clock, ManualClock, Timestamp};
pub use id::{FileId, Generation, HistoryId, InvalidVolumeId, Lba, LogId, SnapshotId, Vbn, VolumeId};
pub use lock::{Condvar, Mutex, MutexGuard, wait_by};
pub use rng::Rng;
pub use units::{ByteSize, Interval, InvalidByteSize, InvalidInterval};

/// Bytes in a block: the unit of allocation, of checksums and of the image stream.
pub const BLOCK_SIZE: usize = 4096;
