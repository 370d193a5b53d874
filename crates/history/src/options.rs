//! The options of an owner, and their valid combinations.

use std::sync::Arc;
use std::time::Duration;

use cairn_base::{BLOCK_SIZE, Clock, HistoryId};
use cairn_format::history::{
    FloorPolicy, Granularity, HISTORY_BLOCK_MAX, HISTORY_SEGMENTS_MAX, HISTORY_SEGMENTS_MIN, NO_LBA,
    Placement, Reduction, SEGMENT_BLOCKS_MAX, SEGMENT_BLOCKS_MIN, SEGMENTS_START, THINNED_MAX, is_block_size,
};

use crate::HistoryError;

/// Bytes of the smallest block.
pub const MIN_BLOCK: u32 = 512;
/// Bytes of the largest block.
pub const MAX_BLOCK: u32 = HISTORY_BLOCK_MAX;

/// Blocks of a segment of a large store: 32 MiB.
const SEGMENT_BLOCKS_WANTED: u64 = 8192;

/// How long history is kept, and how much of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// History older than this is folded back. `None`: as long as there is room.
    pub time: Option<Duration>,
    /// The maximum number of bytes of the store that it takes. `None`: all of it.
    pub bytes: Option<u64>,
    /// History younger than this is not given up for a lack of room; zero: all may be.
    pub floor: Duration,
    /// The behaviour of a write then.
    pub floor_policy: FloorPolicy,
    /// Older history keeps fewer instants, the youngest step first.
    pub thin: [Option<Thin>; THINNED_MAX],
    /// How contents that go to the log are reduced from now on.
    pub reduction: Reduction,
}

/// A step of retention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thin {
    /// History older than this ...
    pub after: Duration,
    /// ... keeps one instant in each interval of this length: its last. Marks stay.
    pub every: Duration,
}

impl Window {
    /// The steps of retention.
    pub fn steps(&self) -> impl Iterator<Item = Thin> {
        self.thin.iter().flatten().copied()
    }
}

impl Default for Window {
    fn default() -> Self {
        Self {
            time: None,
            bytes: None,
            floor: Duration::ZERO,
            floor_policy: FloorPolicy::Fail,
            thin: [None; THINNED_MAX],
            reduction: Reduction::NONE,
        }
    }
}

/// The floor of a clone: longer than anything lives.
const CLONE_FLOOR: Duration = Duration::from_secs(100 * 365 * 86_400);

impl Window {
    /// Of a writable clone, which is redirect-on-write over a view: nothing is ever folded back
    /// into the view, so it may be read-only.
    pub fn of_a_clone() -> Self {
        Self { floor: CLONE_FLOOR, ..Self::default() }
    }

    /// It is that of a writable clone, or as good as that.
    pub(crate) fn is_of_a_clone(&self) -> bool {
        self.floor >= CLONE_FLOOR
    }
}

/// Options of a new history.
#[derive(Debug, Clone, Copy)]
pub struct HistoryOptions {
    /// Names the store; at random.
    pub store: HistoryId,
    /// Where versions go.
    pub placement: Placement,
    /// Which instants are kept.
    pub granularity: Granularity,
    /// Bytes of a block: a power of two from 512 B to 64 KiB.
    pub block_bytes: u32,
    /// How much history.
    pub window: Window,
}

/// How a history is opened.
#[derive(Clone)]
pub struct OpenOptions {
    /// The maximum number of bytes of written blocks that wait in memory (least recently written
    /// leave first). At least 1: with less than a few blocks each write is written through.
    pub dirty_bytes: u64,
    /// Bytes of read cache (least recently used leave first); 0 for none.
    pub read_bytes: u64,
    /// Where time comes from.
    pub clock: Arc<dyn Clock>,
    /// How far the history is known to have come, durably: a store that has not is refused. The
    /// default knows nothing.
    pub at_least: LogPosition,
}

/// The durable position of a history. Neither number ever decreases, so a store with a lower
/// position is an older copy of it, or has lost its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogPosition {
    /// The number of its superblock.
    pub superblock: u64,
    /// The number of the last record that is durable together with its content on the origin.
    pub record: u64,
}

impl LogPosition {
    /// True when it has reached `other`.
    pub fn reaches(&self, other: &Self) -> bool {
        self.superblock >= other.superblock && self.record >= other.record
    }

    /// The further of both positions.
    pub fn and(self, other: &Self) -> Self {
        Self { superblock: self.superblock.max(other.superblock), record: self.record.max(other.record) }
    }
}

/// Bytes of the smallest store.
pub fn store_bytes_min() -> u64 {
    (SEGMENTS_START + HISTORY_SEGMENTS_MIN * SEGMENT_BLOCKS_MIN) * BLOCK_SIZE as u64
}

/// The segments of a store: blocks in each, and how many.
pub(crate) fn segments_of(store_bytes: u64) -> Result<(u64, u64), HistoryError> {
    let need = store_bytes_min();
    if store_bytes < need {
        return Err(HistoryError::StoreTooSmall { have: store_bytes, need });
    }
    let blocks = store_bytes / BLOCK_SIZE as u64 - SEGMENTS_START;
    // About a hundred segments if they are large enough: the window is given up in such parts. Each
    // new one costs two flushes of the store.
    let wanted = (blocks / 256).clamp(SEGMENT_BLOCKS_MIN, SEGMENT_BLOCKS_WANTED);
    let needed = blocks.div_ceil(HISTORY_SEGMENTS_MAX).next_power_of_two();
    let each = wanted.max(needed).min(SEGMENT_BLOCKS_MAX);
    Ok((each, (blocks / each).min(HISTORY_SEGMENTS_MAX)))
}

/// Refuses impossible combinations.
pub(crate) fn check(
    options: &HistoryOptions,
    origin: cairn_device::Geometry,
    store: cairn_device::Geometry,
) -> Result<(), HistoryError> {
    let refuse = |what, rule| Err(HistoryError::Refused { what, rule });
    if !is_block_size(options.block_bytes) {
        return refuse("the block size", "it is a power of two from 512 B to 64 KiB");
    }
    if !options.block_bytes.is_multiple_of(origin.alignment) {
        return refuse("the block size", "it is a multiple of what the origin takes as one piece");
    }
    if !(BLOCK_SIZE as u32).is_multiple_of(store.alignment) {
        return refuse("the store", "it takes pieces of 4 KiB");
    }
    let is_clone = options.placement == Placement::Logging && options.window.is_of_a_clone();
    if (origin.read_only && !is_clone) || store.read_only {
        return refuse("a read-only device", "origin and store take writes");
    }
    if origin.length == 0 || !origin.length.is_multiple_of(u64::from(origin.alignment)) {
        return refuse("the origin", "it has a length, in whole pieces of its alignment");
    }
    if origin.length.div_ceil(u64::from(options.block_bytes)) >= NO_LBA {
        return refuse("the block size", "the origin has less than 2^40 blocks");
    }
    if options.granularity == Granularity::Interval(0) {
        return refuse("the granularity", "an interval is longer than nothing");
    }
    check_window(&options.window, options.granularity)
}

/// Refuses a window that cannot be.
pub(crate) fn check_window(window: &Window, granularity: Granularity) -> Result<(), HistoryError> {
    let refuse = |what, rule| Err(HistoryError::Refused { what, rule });
    if window.time.is_some_and(|time| time.is_zero() || time < window.floor) {
        return refuse("the window", "it is longer than nothing, and no shorter than its floor");
    }
    if window.time.is_some_and(|time| time.as_nanos() >= u128::from(u64::MAX / 4))
        || window.floor.as_nanos() >= u128::from(u64::MAX / 4)
    {
        return refuse("the window", "it is shorter than a hundred years");
    }
    if window.bytes == Some(0) {
        return refuse("the window", "it has some space");
    }
    let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    if window.steps().any(|step| ns(step.after) >= u64::MAX / 4) {
        return refuse("the retention", "it is shorter than a hundred years");
    }
    let steps = window.steps().map(|step| (ns(step.after), ns(step.every)));
    if let Err(rule) = crate::thin::check_steps(granularity, steps) {
        return refuse("the retention", rule);
    }
    Ok(())
}
