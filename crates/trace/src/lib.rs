//! Traces of devices: the reads and writes with their times, and conclusions from them.
//!
//! A trace is a stream of requests in order of time. [`TraceReader`] reads it from any of the known
//! formats, [`TraceWriter`] writes our own, [`Analysis`] computes the tables and figures of three
//! papers for it, each by its own definition, and [`plots`] draws them.
//!
//! A [`Tap`] records a device that is in use, and a [`Curve`] has the figures of a plan for it at
//! any time. The crate starts no thread, and the clock of a recording is a parameter. Memory is
//! bounded, whatever the trace is.

mod analyse;
mod error;
mod generate;
mod import;
mod live;
mod order;
mod plan;
mod plot;
mod problem;
mod reader;
mod record;
mod replay;
#[cfg(test)]
mod tests;
mod writer;

pub use analyse::{
    AnalyseOptions, Analysis, AtGrain, Cache, Io, Labelled, MirrorInterval, ReadCacheUse, Report, Retained,
    SnapBlock, Space, Table1, dirty_blocks,
};
pub use cairn_format::trace::{TraceHeader, TraceOp, TraceRecord};
pub use error::TraceError;
pub use generate::{IoMeter, PostMark, Spc1};
pub use import::{BlkparseAction, TraceFormat};
pub use live::{Curve, LivePlan};
pub use plan::{GRAINS_S, Grain, LAGS_S, Lag, Plan, Recommended, WindowSpace};
pub use plot::plots;
pub use problem::{Problem, Problems, Shown};
pub use reader::{ReadOptions, TraceReader};
pub use record::{Feed, RECORD_BYTES_MIN, RecordEnd, RecordOptions, RecordState, Tap};
pub use replay::{Model, ReplayOptions, Replayed, Survey, replay};
pub use writer::TraceWriter;
