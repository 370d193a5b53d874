//! The recent activity of a session.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The activity of a session in the last 5 to 10 seconds, or since it began.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Activity {
    /// The time that this is of, up to now.
    pub window_ms: u64,
    /// Reads.
    pub read: Rate,
    /// Writes.
    pub write: Rate,
    /// Flushes, trims, zeroes and other requests.
    pub other: Rate,
}

/// Rates and latencies of one kind of request that was answered.
///
/// A latency is the time from a request's first bytes until its answer is ready. It includes waits
/// for other requests and for the data of a write. It excludes the network, and waits for a client
/// to accept answers. Reported values are too high by at most an eighth.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Rate {
    /// Requests a second.
    pub per_second: f64,
    /// Bytes a second.
    pub bytes_per_second: u64,
    /// Half of the requests took at most this many microseconds; none without requests.
    pub p50_us: Option<f64>,
    /// 99 of 100 requests took at most this many microseconds.
    pub p99_us: Option<f64>,
}
