//! The cost of writes: I/O by kind, in blocks as the papers count it, and in device operations.

use std::sync::atomic::{AtomicU64, Ordering};

/// The purpose of an I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Io {
    /// Reads of the origin for content that the history must keep.
    CurrentRead,
    /// The origin is written.
    CurrentWrite,
    /// The log is read: for clients, views, and the window.
    HistoryRead,
    /// Versions go to the log.
    HistoryWrite,
    /// Superblocks, heads of records, summaries.
    Metadata,
}

const KINDS: usize = 5;

#[derive(Default)]
struct Kind {
    blocks: AtomicU64,
    operations: AtomicU64,
    sequential: AtomicU64,
    next: AtomicU64,
}

/// Counts since the device was opened.
#[derive(Default)]
pub(crate) struct Tally {
    kinds: [Kind; KINDS],
    pub(crate) written_blocks: AtomicU64,
    pub(crate) absorbed: AtomicU64,
    pub(crate) retained: AtomicU64,
    pub(crate) base: AtomicU64,
    pub(crate) flushes: AtomicU64,
    pub(crate) read_hits: AtomicU64,
    pub(crate) read_misses: AtomicU64,
    pub(crate) damaged: AtomicU64,
    content_bytes: AtomicU64,
    stored_bytes: AtomicU64,
    xor: AtomicU64,
    identical: AtomicU64,
}

/// I/O of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IoCount {
    /// Blocks of the history, as the papers count; of metadata: blocks of 4 KiB.
    pub blocks: u64,
    /// Device operations.
    pub operations: u64,
    /// Those that begin where the previous one ended.
    pub sequential: u64,
}

/// Work done since the device was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Blocks that clients wrote.
    pub written_blocks: u64,
    /// Of these, replaced in memory before they went anywhere (1 - d of the 2007 paper, figure 5).
    pub absorbed_blocks: u64,
    /// Versions that went to the log because they are retained.
    pub retained_blocks: u64,
    /// Of these, the base of a block that had no version in the log: once a block and window, not
    /// in the paper's count.
    pub base_blocks: u64,
    /// Flushes of either device.
    pub flushes: u64,
    /// Blocks read from the cache.
    pub read_hits: u64,
    /// Blocks read from a device.
    pub read_misses: u64,
    /// Versions whose checksum failed; they were not served.
    pub damaged: u64,
    /// Bytes of the contents that went to the log, including moves within it.
    pub content_bytes: u64,
    /// Bytes that are stored for them.
    pub stored_bytes: u64,
    /// The number of these contents stored as a difference from an earlier one ...
    pub xor_versions: u64,
    /// ... and those of which nothing is, as the segment has them already.
    pub identical_versions: u64,
    /// By kind.
    pub current_reads: IoCount,
    /// By kind.
    pub current_writes: IoCount,
    /// By kind.
    pub history_reads: IoCount,
    /// By kind.
    pub history_writes: IoCount,
    /// By kind.
    pub metadata: IoCount,
}

impl Counters {
    /// User data I/O that a written block incurred: figure 5 of the 2007 paper, without base blocks
    /// when `without_base`.
    pub fn io_per_write(&self, without_base: bool) -> f64 {
        let all = self.current_reads.blocks + self.current_writes.blocks + self.history_writes.blocks;
        let base = if without_base { 2 * self.base_blocks } else { 0 };
        all.saturating_sub(base) as f64 / self.written_blocks.max(1) as f64
    }
}

impl Tally {
    pub(crate) fn add(&self, count: &AtomicU64, by: u64) {
        count.fetch_add(by, Ordering::Relaxed);
    }

    /// A content of `content` bytes went to the log, where it takes `stored`.
    pub(crate) fn stored(&self, content: u64, stored: u64, is_delta: bool) {
        self.add(&self.content_bytes, content);
        self.add(&self.stored_bytes, stored);
        match stored {
            0 => self.add(&self.identical, 1),
            _ => self.add(&self.xor, u64::from(is_delta)),
        }
    }

    /// One operation at `offset` of some device.
    pub(crate) fn io(&self, io: Io, blocks: u64, offset: u64, bytes: u64) {
        let kind = &self.kinds[io as usize];
        kind.blocks.fetch_add(blocks, Ordering::Relaxed);
        kind.operations.fetch_add(1, Ordering::Relaxed);
        if kind.next.swap(offset + bytes, Ordering::Relaxed) == offset {
            kind.sequential.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn show(&self) -> Counters {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let io = |io: Io| {
            let kind = &self.kinds[io as usize];
            IoCount {
                blocks: get(&kind.blocks),
                operations: get(&kind.operations),
                sequential: get(&kind.sequential),
            }
        };
        Counters {
            written_blocks: get(&self.written_blocks),
            absorbed_blocks: get(&self.absorbed),
            retained_blocks: get(&self.retained),
            base_blocks: get(&self.base),
            flushes: get(&self.flushes),
            read_hits: get(&self.read_hits),
            read_misses: get(&self.read_misses),
            damaged: get(&self.damaged),
            content_bytes: get(&self.content_bytes),
            stored_bytes: get(&self.stored_bytes),
            xor_versions: get(&self.xor),
            identical_versions: get(&self.identical),
            current_reads: io(Io::CurrentRead),
            current_writes: io(Io::CurrentWrite),
            history_reads: io(Io::HistoryRead),
            history_writes: io(Io::HistoryWrite),
            metadata: io(Io::Metadata),
        }
    }
}
