//! Limits that only NBD has; `cairn_frontend_session::limits` has the others.

/// Writes from this length on have the rest of their payload received straight into blocks.
pub(crate) const LONG_WRITE_BYTES: u32 = 32 << 10;

/// Threads of a session beside its own that do reads. Each waits for its reads together, so more
/// keep a disk busier.
pub(crate) const LANES_MAX: usize = 6;

/// Pending reads that are worth waking another thread. With two instead, a client with four reads
/// in flight lost a tenth.
pub(crate) const LANE_READS_MIN: usize = 4;

/// Reads of one lane at most. The pending ones of a round are dealt out to [`LANES_SHARE`] lanes.
pub(crate) const LANE_READS_MAX: usize = 16;
pub(crate) const LANES_SHARE: usize = 2;
