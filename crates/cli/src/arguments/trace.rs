//! `cairn trace`: its commands and flags.

use std::path::PathBuf;
use std::str::FromStr;

use cairn_base::{ByteSize, Interval};
use cairn_history::{Granularity, Placement};
use cairn_trace::{BlkparseAction, TraceFormat};
use clap::{Args, Subcommand};

/// `cairn trace`.
#[derive(Debug, Subcommand)]
pub enum Trace {
    /// Record the requests of clients to an export
    ///
    /// Without an export, shows the recordings.
    Record(RecordTrace),
    /// List the recordings that run
    List,
    /// Convert a trace of a known format to Cairn's format
    ///
    /// Cairn's format is compact, checksummed and sorted by time.
    Import(ImportTrace),
    /// Analyse a trace for mirror traffic and history cost
    ///
    /// Makes the tables and figures of three papers: the traffic per mirror interval, and the cost
    /// per granularity of history.
    Analyse(AnalyseTrace),
    /// Replay a trace on a real history of each placement
    ///
    /// Counts its I/O by kind, and compares it with the model of the papers.
    Replay(ReplayTrace),
    /// Generate a trace of a workload: SPC-1-like, IoMeter, PostMark
    Generate(GenerateTrace),
}

/// Which trace, and what it is.
#[derive(Debug, Args)]
pub struct TraceInput {
    /// Trace, plain or in gzip, zstd, xz or bzip2; - is standard input
    #[arg(value_name = "TRACE")]
    pub file: PathBuf,
    /// Read the trace in this format; default: detected
    ///
    /// One of cairn, csv, msr, spc, blkparse, blkreplay, disksim, srt, vscsi.
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<TraceFormat>,
    /// For blkparse: Q (queued), D (issued to the driver), C (completed)
    #[arg(long, value_name = "ACTION", default_value = "Q")]
    pub action: BlkparseAction,
}

/// `cairn trace record`.
#[derive(Debug, Args)]
pub struct RecordTrace {
    /// VOLUME/LUN, VOLUME@SNAPSHOT/LUN, DEVICE or DEVICE@VIEW
    #[arg(value_name = "EXPORT")]
    pub export: Option<String>,
    /// Start recording to this file on the server's machine
    #[arg(long, value_name = "FILE", requires = "export", conflicts_with = "stop")]
    pub to: Option<PathBuf>,
    /// Stop recording, and make the trace durable
    #[arg(long, requires = "export")]
    pub stop: bool,
    /// Record for this time (default: until --stop)
    #[arg(long = "for", value_name = "TIME", requires = "to")]
    pub time: Option<Interval>,
    /// Stop at this size of the trace (default 1G)
    #[arg(long, value_name = "SIZE", requires = "to")]
    pub max: Option<ByteSize>,
    /// Do not compress with zstd
    #[arg(long, requires = "to")]
    pub plain: bool,
}

/// `cairn trace import`.
#[derive(Debug, Args)]
pub struct ImportTrace {
    /// Which trace
    #[command(flatten)]
    pub input: TraceInput,
    /// Write to this file
    #[arg(long, value_name = "FILE")]
    pub to: PathBuf,
    /// Do not compress with zstd
    #[arg(long)]
    pub plain: bool,
    /// Overwrite an existing file
    #[arg(long)]
    pub overwrite: bool,
}

/// `cairn trace analyse`.
#[derive(Debug, Args)]
pub struct AnalyseTrace {
    /// Which trace
    #[command(flatten)]
    pub input: TraceInput,
    /// Block size
    #[arg(long, value_name = "SIZE", default_value = "4K")]
    pub block: ByteSize,
    /// Granularities of history, such as 1s,10s,1h (default 1s to 1d)
    ///
    /// Every write is always included.
    #[arg(long, value_name = "TIME", value_delimiter = ',')]
    pub granularity: Vec<Interval>,
    /// Intervals of a mirror, such as 1m,15m,1h (default 1m to 1d)
    #[arg(long, value_name = "TIME", value_delimiter = ',')]
    pub interval: Vec<Interval>,
    /// Cache sizes, such as 64M,4G (default 16M to 4G)
    ///
    /// 3 % of a cache can be dirty.
    #[arg(long, value_name = "SIZE", value_delimiter = ',')]
    pub cache: Vec<ByteSize>,
    /// Write caches by number of dirty blocks, in addition to --cache
    #[arg(long, value_name = "N", value_delimiter = ',')]
    pub dirty_blocks: Vec<u64>,
    /// Abort if it needs more memory than this
    #[arg(long, value_name = "SIZE", default_value = "8G")]
    pub memory: ByteSize,
    /// Write every figure as SVG into this directory
    #[arg(long, value_name = "DIR")]
    pub plots: Option<PathBuf>,
}

/// `cairn trace generate`.
#[derive(Debug, Args)]
pub struct GenerateTrace {
    /// Which workload
    #[command(subcommand)]
    pub workload: Workload,
    /// Write to this file; - is standard output
    #[arg(long, value_name = "FILE", default_value = "-", global = true)]
    pub to: PathBuf,
    /// Seed of random numbers; the same seed gives the same trace
    #[arg(long, default_value_t = 1, global = true)]
    pub seed: u64,
    /// Overwrite an existing file
    #[arg(long, global = true)]
    pub overwrite: bool,
}

/// A workload of the papers.
#[derive(Debug, Subcommand)]
pub enum Workload {
    /// Generate an SPC-1-like workload (FAST 2007, section 4.2.1)
    ///
    /// Two stores with hot spots, and a log.
    Spc1 {
        /// Business scaling units of 50 requests per second
        #[arg(long, default_value_t = 100)]
        bsu: u32,
        /// Total capacity
        #[arg(long, value_name = "SIZE", default_value = "100G")]
        size: ByteSize,
        /// Length of the trace
        #[arg(long, value_name = "TIME", default_value = "1h")]
        time: Interval,
        /// Include ASU-3, the log, which the paper leaves out
        #[arg(long)]
        with_log: bool,
    },
    /// Generate random requests of one length (MSST 2006, figures 4, 5)
    Iometer {
        /// Size of the disk
        #[arg(long, value_name = "SIZE", default_value = "10G")]
        size: ByteSize,
        /// Size of a request
        #[arg(long, value_name = "SIZE", default_value = "4K")]
        length: ByteSize,
        /// Percentage of reads
        #[arg(long, value_name = "PER CENT", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=100))]
        reads: u8,
        /// Requests per second
        #[arg(long, default_value_t = 500)]
        rate: u32,
        /// Length of the trace
        #[arg(long, value_name = "TIME", default_value = "1h")]
        time: Interval,
    },
    /// Generate a PostMark-like workload (MSST 2006, figure 6)
    ///
    /// Models a file system that writes in place.
    Postmark {
        /// Number of files at the start
        #[arg(long, default_value_t = 50_000)]
        files: u64,
        /// Number of transactions
        #[arg(long, default_value_t = 100_000)]
        transactions: u64,
        /// Operations per second
        #[arg(long, default_value_t = 300)]
        rate: u32,
    },
}

/// `cairn trace replay`.
#[derive(Debug, Args)]
pub struct ReplayTrace {
    /// Trace; read twice for each placement, so it must be a file
    #[command(flatten)]
    pub input: TraceInput,
    /// Replay with these placements (default: all)
    ///
    /// Of checkpointing, logging, split-stream, split-down-stream, hybrid.
    #[arg(long, value_name = "PLACEMENT", value_delimiter = ',')]
    pub placement: Vec<PlacementName>,
    /// Replay with these granularities
    ///
    /// Each is every-write, marks, or an interval such as 1m.
    #[arg(long, value_name = "TIME", value_delimiter = ',', default_value = "every-write,1m,1h")]
    pub granularity: Vec<GrainName>,
    /// Block size of the history
    #[arg(long, value_name = "SIZE", default_value = "4K")]
    pub block: ByteSize,
    /// Total cache, of which 3 % can be dirty
    #[arg(long, value_name = "SIZE", default_value = "64M")]
    pub cache: ByteSize,
    /// Size of the read cache
    #[arg(long, value_name = "SIZE", default_value = "0")]
    pub read_cache: ByteSize,
    /// Abort if the analysis needs more memory than this
    #[arg(long, value_name = "SIZE", default_value = "8G")]
    pub memory: ByteSize,
    /// Keep origin and store in files in this directory, not in memory
    #[arg(long, value_name = "DIR")]
    pub on: Option<PathBuf>,
}

/// A placement by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlacementName(pub Placement);

impl PlacementName {
    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self.0 {
            Placement::Checkpointing => "checkpointing",
            Placement::Logging => "logging",
            Placement::SplitStream => "split-stream",
            Placement::SplitDownStream => "split-down-stream",
            Placement::Hybrid => "hybrid",
        }
    }
}

impl FromStr for PlacementName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Placement::ALL
            .into_iter()
            .map(PlacementName)
            .find(|placement| placement.name() == text)
            .ok_or("a placement is checkpointing, logging, split-stream, split-down-stream or hybrid")
    }
}

/// A granularity of history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrainName(pub Granularity);

impl std::fmt::Display for GrainName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Granularity::EveryWrite => f.pad("every-write"),
            Granularity::Marks => f.pad("marks"),
            Granularity::Interval(ns) => f.pad(&Interval(std::time::Duration::from_nanos(ns)).to_string()),
        }
    }
}

impl FromStr for GrainName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(match text {
            "every-write" => Granularity::EveryWrite,
            "marks" => Granularity::Marks,
            text => {
                let interval: Interval = text
                    .parse()
                    .map_err(|_| "a granularity is every-write, marks, or a length such as 15m")?;
                Granularity::Interval(interval.0.as_nanos().min(1 << 60) as u64)
            }
        }))
    }
}

/// `cairn plan`.
#[derive(Debug, Args)]
pub struct PlanTrace {
    /// Trace; or a VOLUME, VOLUME/LUN or DEVICE of the running server
    ///
    /// For one of these, uses the writes of its clients since planning began.
    #[command(flatten)]
    pub input: TraceInput,
    /// Bandwidth to the mirror in bytes per second, such as 50M
    #[arg(long, value_name = "SIZE")]
    pub link: ByteSize,
    /// Cache of the history (default 256M); 3 % of it can be dirty
    #[arg(long, value_name = "SIZE")]
    pub cache: Option<ByteSize>,
    /// Abort if it needs more memory than this
    #[arg(long, value_name = "SIZE", default_value = "8G")]
    pub memory: ByteSize,
}

impl PlanTrace {
    /// It is for a trace, which needs no server.
    pub fn is_local(&self) -> bool {
        let file = &self.input.file;
        file.as_os_str() == "-" || self.input.format.is_some() || file.exists()
    }
}
