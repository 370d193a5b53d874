//! Limits, and the behaviour beyond each.

use std::time::Duration;

use cairn_base::BLOCK_SIZE;
use cairn_format::{POINTERS_PER_INDEX, RUNS_PER_BLOCK, TableRef};

/// Blocks of one batch of write-back: 4 MiB in few large operations.
pub(crate) const PLACE_BLOCKS: usize = 1024;
/// A write of this many blocks (64 KiB) is a stream: the cache evicts its blocks once they are
/// written to their places. Such a writer has its own cache (a file system on our disk, or the
/// kernel above a mount). Here the blocks would only evict data that is read repeatedly, and return
/// to the writer after the processor's caches have lost them.
pub(crate) const LONG_WRITE_BLOCKS: usize = 16;
/// Unplaced blocks that wake the background thread: 2 MiB.
pub(crate) const WRITE_BACK_AT: u64 = 512;
/// Blocks of a hole whose leaves are checked one by one (4 MiB). For a longer hole the nodes are
/// walked.
pub(crate) const PUNCH_BLOCKS: u64 = 1024;
/// A change waits no longer than this for a consistency point.
pub const CONSISTENCY_INTERVAL: Duration = Duration::from_secs(10);
/// From one question whether there is room again below a volume that waits for some to the next.
pub(crate) const ROOM_INTERVAL: Duration = Duration::from_secs(1);
/// From one question whether the device below takes writes again to the next.
pub(crate) const HOLD_INTERVAL: Duration = Duration::from_millis(20);
/// Blocks of a removed file that one round of background work frees: 4 GiB, some 8,000 nodes.
pub(crate) const REMOVE_BLOCKS: u64 = 1 << 20;
/// The least cost that a removed file counts for in it: a round frees up to 1,024 small files.
pub(crate) const REMOVE_FILE_COST: u64 = 1 << 10;
/// The maximum number of blocks of removed files that one consistency point frees by exclusion: 1
/// GiB. More blocks wait until their nodes are mended.
pub(crate) const EXCLUDED_BLOCKS_MAX: u64 = 1 << 18;
/// Blocks reserved for consistency points, in addition to those for the maps themselves.
pub(crate) const RESERVE_MIN: u64 = 128;
/// The blocks of the inode file that an unchanged file adds to the needs of a generation, in
/// addition to its own blocks.
pub(crate) const INODE_COST: u64 = 2;
/// Consistency points that a writer requests before it gets "no space". The first frees blocks that
/// were overwritten before the request, the second frees blocks that were still in flight then.
pub(crate) const SPACE_ROUNDS: u32 = 2;
/// Inodes of a root that are kept outside of the cache of blocks; past it they are looked up there
/// again.
pub(crate) const INODES_KNOWN: usize = 16_384;
/// The largest number of snapshots of a volume, limited by the index in the superblock. Beyond it:
/// `TableFull`.
pub(crate) const SNAPSHOTS_MAX: usize = 32 * 168 * 12 - 12;

/// Runs of neighbouring redirected blocks that the index in the superblock can hold, 903,168.
/// Beyond it blocks move home before an image is committed. An image with more collisions than that
/// is refused.
pub(crate) const REDIRECT_RUNS_MAX: usize = TableRef::INDEXES_MAX * POINTERS_PER_INDEX * RUNS_PER_BLOCK;

/// How the memory of a volume is divided. The rest is slack for the allocator and for requests in
/// progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Memory {
    /// Bytes of cache for data: five sixteenths.
    pub(crate) data_cache: u64,
    /// Bytes of cache for nodes, inodes and maps: three sixteenths. A cache of their own, as a
    /// stream of data would push out the nodes that the next consistency point needs.
    pub(crate) node_cache: u64,
    /// Unplaced and flying blocks: an eighth. Past it a writer places blocks itself.
    pub(crate) dirty_blocks: u64,
    /// Changes of a generation that ask for a consistency point. Each takes some 200 bytes, and two
    /// generations are in memory.
    pub(crate) changes_soft: u64,
    /// Changes of the open generation past which writers wait for the consistency point in
    /// progress.
    pub(crate) changes_hard: u64,
    /// Changes that one round of merging takes into a tree: in the worst case each needs a node in
    /// memory. A sixteenth.
    pub(crate) merge_changes: usize,
    /// Blocks that stay in memory after they were written, while a mirror follows closely: a
    /// quarter of the rest, and in addition to it. The data cache has most of them as well.
    pub(crate) fresh_blocks: u64,
}

impl Memory {
    pub(crate) fn of(bytes: u64) -> Self {
        let blocks = bytes / BLOCK_SIZE as u64;
        let changes_soft = blocks.max(2048);
        Self {
            data_cache: bytes / 16 * 5,
            node_cache: bytes / 16 * 3,
            dirty_blocks: (blocks / 8).max(256),
            changes_soft,
            changes_hard: 2 * changes_soft,
            merge_changes: (blocks / 16).max(256) as usize,
            fresh_blocks: blocks / 4,
        }
    }
}

// Write-back has work before writers have to wait for it.
const _: () = assert!(WRITE_BACK_AT <= 2 * 256);
