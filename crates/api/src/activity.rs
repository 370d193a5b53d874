//! The recent activity of a session.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a session did in the last seconds: 5 to 10 of them, or since it began.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Activity {
    /// The time that this is of, up to now.
    pub window_ms: u64,
    /// Reads.
    pub read: Rate,
    /// Writes.
    pub write: Rate,
    /// Flushes, trims, zeroes and whatever else the device does.
    pub other: Rate,
}

/// Rates and latencies of one kind of request that was answered.
///
/// A latency is from when a request's first bytes came to when its answer was ready: it has in it
/// what the request waited for others and for the data of a write, and neither the network's part
/// nor that of a client that takes no answers. What is told is too high by an eighth at most.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Rate {
    /// Requests a second.
    pub per_second: f64,
    /// Bytes a second.
    pub bytes_per_second: u64,
    /// Half of the requests took so many microseconds at most; none without requests.
    pub p50_us: Option<f64>,
    /// 99 of 100 requests took so many microseconds at most.
    pub p99_us: Option<f64>,
}
