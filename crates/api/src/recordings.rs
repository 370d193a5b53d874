//! Objects about recordings of exports.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Records what clients ask of an export, as a trace of Cairn's own format.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RecordExport {
    /// The export.
    pub export: String,
    /// Where to, on the machine of the server: an absolute path where nothing is.
    pub file: String,
    /// Bytes that the trace may take, at least 1 MiB; 1 GiB when not given. The recording ends,
    /// whole, before it is longer.
    pub bytes_max: Option<u64>,
    /// How long; until it is ended when not given.
    pub time_max_ms: Option<u64>,
    /// Not packed with zstd.
    #[serde(default)]
    pub plain: bool,
}

/// A recording that is under way, or is over and was not ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Recording {
    /// The export.
    pub export: String,
    /// Where its trace is.
    pub file: String,
    /// When it began.
    pub began_ms: u64,
    /// How long it has been going on, or went on.
    pub elapsed_ms: u64,
    /// Requests in it.
    pub requests: u64,
    /// Bytes of the trace.
    pub bytes: u64,
    /// Bytes that it may take.
    pub bytes_max: u64,
    /// How long it goes on.
    pub time_max_ms: Option<u64>,
    /// Why it is over; it goes on when not given.
    pub end: Option<String>,
    /// It is over and the trace is complete.
    pub whole: bool,
}
