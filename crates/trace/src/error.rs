//! Errors of a trace as a whole. The fault of a single line is a [`Problem`](crate::Problem), which
//! is counted and shown.

use std::io;

use cairn_format::FormatError;

/// Why a trace could not be read, written or analysed.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file or pipe under it failed.
    #[error("reading or writing the trace failed: {0}")]
    Io(#[from] io::Error),
    /// Its first lines match none of the formats.
    #[error("the trace has none of the known formats, or its first part has no request")]
    UnknownFormat,
    /// A trace of ours whose head is bad.
    #[error("{0}")]
    Header(#[source] FormatError),
    /// There is no request in it.
    #[error("the trace has no request in it")]
    Empty,
    /// The analysis would take more memory than was allowed.
    #[error(
        "the analysis takes more than {limit} bytes of memory: {pages} blocks were touched after {records} requests"
    )]
    Memory {
        /// The allowed length.
        limit: u64,
        /// Blocks touched by then.
        pages: u64,
        /// Requests seen by then.
        records: u64,
    },
    /// The caller's fault, and the rule that is broken.
    #[error("{what} is refused: {rule}")]
    Refused {
        /// The requested option.
        what: &'static str,
        /// The rule for it.
        rule: &'static str,
    },
    /// A device failed during a replay.
    #[error("request {record} of the trace failed: {source}")]
    Device {
        /// Which request, from 1.
        record: u64,
        /// The device's error.
        source: cairn_device::DeviceError,
    },
    /// A history failed during a replay.
    #[error("the history failed: {0}")]
    History(#[from] cairn_history::HistoryError),
}
