//! Changed blocks of a LUN in the API.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Which changes are asked for.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ChangedQuery {
    /// The snapshot that is compared with.
    pub since: String,
    /// The snapshot that is compared; the present, unless told. Pages of the present belong
    /// together only while nobody writes.
    pub until: Option<String>,
    /// The first byte that is asked for; `next` of the page before.
    pub offset: Option<u64>,
    /// Ranges at most: 1,000 unless told, 100,000 at most.
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

/// The ranges in which a LUN differs, in order; all others are the same. They are of whole blocks
/// of 4 KiB, but for the end of the LUN.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChangedRanges {
    /// Bytes of the LUN.
    pub size_bytes: u64,
    /// The ranges.
    pub ranges: Vec<ChangedRange>,
    /// Where the next page begins; none after the last one.
    pub next: Option<u64>,
}
