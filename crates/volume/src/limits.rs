//! Limits, and what happens past each.

use std::time::Duration;

/// Blocks of one batch of write-back: 4 MiB in few large operations.
pub(crate) const PLACE_BLOCKS: usize = 1024;
/// Unplaced blocks that wake the background thread: 2 MiB.
pub(crate) const WRITE_BACK_AT: u64 = 512;
/// Unplaced and flying blocks of memory: 64 MiB. Past it a writer places blocks itself.
pub(crate) const DIRTY_MAX: u64 = 16_384;
/// Changes of a generation that ask for a consistency point: 512 MiB of data.
pub(crate) const CHANGES_SOFT: u64 = 131_072;
/// Changes of the open generation past which writers wait for the consistency point in progress.
pub(crate) const CHANGES_HARD: u64 = 3 * CHANGES_SOFT;
/// A change waits no longer than this for a consistency point.
pub(crate) const CONSISTENCY_INTERVAL: Duration = Duration::from_secs(10);
/// Blocks of a removed file that one round of background work frees: 4 GiB, some 8,000 nodes.
pub(crate) const REMOVE_BLOCKS: u64 = 1 << 20;
/// Blocks kept back for consistency points, besides those for the maps themselves.
pub(crate) const RESERVE_MIN: u64 = 128;
/// Snapshots of a volume: what the index in the superblock reaches. Past it `TableFull`.
pub(crate) const SNAPSHOTS_MAX: usize = 32 * 168 * 12 - 12;
