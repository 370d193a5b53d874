//! Objects about the limits on the cost of mirrors for clients.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What the mirrors of a volume may cost its clients, and what they do.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Governor {
    /// The volume.
    pub volume: String,
    /// 99 of 100 requests of clients are to take no longer, in microseconds; none when nobody has
    /// said so.
    pub p99_limit_us: Option<u64>,
    /// What they take, as of the last half second; none when there are too few to tell.
    pub p99_us: Option<u64>,
    /// Bytes a second that all transfers of the volume together may send now; none for as many as
    /// go.
    pub rate_bytes: Option<u64>,
}

/// Sets it.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetGovernor {
    /// In microseconds, from 100 to 1,000,000; none for no limit.
    pub p99_limit_us: Option<u64>,
}
