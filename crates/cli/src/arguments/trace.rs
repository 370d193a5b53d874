//! `cairn trace`: its commands and flags.

use std::path::PathBuf;

use cairn_base::{ByteSize, Interval};
use cairn_trace::{BlkparseAction, TraceFormat};
use clap::{Args, Subcommand};

/// `cairn trace`.
#[derive(Debug, Subcommand)]
pub enum Trace {
    /// Turn a trace of any known format into one of Cairn's own: compact, checksummed, in order of time
    Import(ImportTrace),
    /// The tables and figures of three papers for a trace: what an interval of a mirror transfers, what a granularity of history costs
    Analyse(AnalyseTrace),
}

/// Which trace, and what it is.
#[derive(Debug, Args)]
pub struct TraceInput {
    /// The trace, plain or in gzip or zstd; - is standard input
    #[arg(value_name = "TRACE")]
    pub file: PathBuf,
    /// cairn, csv, msr, spc, blkparse, blkreplay, srt or vscsi; found out when not given
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<TraceFormat>,
    /// Of blkparse: Q (queued), D (issued to the driver) or C (completed)
    #[arg(long, value_name = "ACTION", default_value = "Q")]
    pub action: BlkparseAction,
}

/// `cairn trace import`.
#[derive(Debug, Args)]
pub struct ImportTrace {
    /// Which trace
    #[command(flatten)]
    pub input: TraceInput,
    /// Where to
    #[arg(long, value_name = "FILE")]
    pub to: PathBuf,
    /// Do not pack it with zstd
    #[arg(long)]
    pub plain: bool,
    /// Replace the file
    #[arg(long)]
    pub overwrite: bool,
}

/// `cairn trace analyse`.
#[derive(Debug, Args)]
pub struct AnalyseTrace {
    /// Which trace
    #[command(flatten)]
    pub input: TraceInput,
    /// Bytes of a block
    #[arg(long, value_name = "SIZE", default_value = "4K")]
    pub block: ByteSize,
    /// Granularities of history besides every write, such as 1s,10s,1h (1s to 1d)
    #[arg(long, value_name = "TIME", value_delimiter = ',')]
    pub granularity: Vec<Interval>,
    /// Intervals of a mirror, such as 1m,15m,1h (1m to 1d)
    #[arg(long, value_name = "TIME", value_delimiter = ',')]
    pub interval: Vec<Interval>,
    /// Caches in all, of which 3 % can be dirty, such as 64M,4G (16M to 4G)
    #[arg(long, value_name = "SIZE", value_delimiter = ',')]
    pub cache: Vec<ByteSize>,
    /// Write caches by the number of dirty blocks, beside those of --cache
    #[arg(long, value_name = "N", value_delimiter = ',')]
    pub dirty_blocks: Vec<u64>,
    /// Give up when it takes more memory than this
    #[arg(long, value_name = "SIZE", default_value = "8G")]
    pub memory: ByteSize,
    /// Write every figure as SVG into this directory
    #[arg(long, value_name = "DIR")]
    pub plots: Option<PathBuf>,
}
