//! Objects about plans from live recordings of writes.

use cairn_trace::Plan;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// The options of a plan.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PlanQuery {
    /// The bandwidth of the link to the mirror, in bytes a second.
    pub link: u64,
}

/// A plan for a volume, a LUN or a device, from a sample of its clients' writes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LivePlan {
    /// The volume, export or device.
    pub subject: String,
    /// When the recording of writes began.
    pub began_ms: u64,
    /// For how long: at most a day and six hours.
    pub elapsed_ms: u64,
    /// Bytes that were written meanwhile, in whole blocks of 4 KiB.
    pub written_bytes: u64,
    /// One block in this many is sampled.
    pub sampled_one_in: u64,
    /// Sampled blocks that were written.
    pub sampled_blocks: u64,
    /// Bytes of memory that knowing this takes.
    pub memory_bytes: u64,
    /// The lines and the recommendation, as `cairn plan TRACE --json` prints them: `lags`,
    /// `granularities`, `windows`, `recommended`.
    #[schema(value_type = Object)]
    pub plan: Plan,
}
