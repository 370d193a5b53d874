//! Objects about recordings of exports.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Records the requests of clients to an export, as a trace in Cairn's own format.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RecordExport {
    /// The export.
    pub export: String,
    /// The target on the machine of the server: an absolute path that does not exist yet.
    pub file: String,
    /// Maximum bytes of the trace, at least 1 MiB; 1 GiB by default. The recording ends, complete,
    /// before it exceeds this.
    pub bytes_max: Option<u64>,
    /// The duration; by default until it is stopped.
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
    /// The duration so far, or of the finished recording.
    pub elapsed_ms: u64,
    /// Requests in it.
    pub requests: u64,
    /// Bytes of the trace.
    pub bytes: u64,
    /// Bytes that it may take.
    pub bytes_max: u64,
    /// The configured duration.
    pub time_max_ms: Option<u64>,
    /// Why it has ended; none while it is running.
    pub end: Option<String>,
    /// It is over and the trace is complete.
    pub whole: bool,
}
