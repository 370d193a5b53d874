//! Changed blocks of a LUN in the API.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// The requested changes.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ChangedQuery {
    /// The snapshot that is compared with. Without it, the ranges are all that have blocks.
    pub since: Option<String>,
    /// The snapshot to compare with; the present by default. Pages of the present are consistent
    /// only while there are no writes.
    pub until: Option<String>,
    /// The first requested byte; `next` of the previous page.
    pub offset: Option<u64>,
    /// Maximum number of ranges: 1,000 by default, 100,000 at most.
    pub limit: Option<u32>,
}

/// Bytes that differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChangedRange {
    /// The first byte.
    pub offset: u64,
    /// How many.
    pub bytes: u64,
}

/// The ranges in which a LUN differs, in order; all others are the same. They are in whole blocks
/// of 4 KiB, except at the end of the LUN.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChangedRanges {
    /// Bytes of the LUN.
    pub size_bytes: u64,
    /// The ranges.
    pub ranges: Vec<ChangedRange>,
    /// Where the next page begins; none after the last one.
    pub next: Option<u64>,
}
