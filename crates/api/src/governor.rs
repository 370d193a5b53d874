//! Objects about the limits on the cost of mirrors for clients.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The limit on the cost of a volume's mirrors for its clients, and the present cost.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Governor {
    /// The volume.
    pub volume: String,
    /// Limit for the latency of 99 of 100 client requests, in microseconds; none by default.
    pub p99_limit_us: Option<u64>,
    /// Their latency in the last half second; none if there are too few requests.
    pub p99_us: Option<u64>,
    /// Bytes a second that all transfers of the volume together may send now; none for no limit.
    pub rate_bytes: Option<u64>,
}

/// Sets it.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetGovernor {
    /// In microseconds, from 100 to 1,000,000; none for no limit.
    pub p99_limit_us: Option<u64>,
}
