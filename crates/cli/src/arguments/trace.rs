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
    /// Record what clients ask of an export of a running server, while they use it; without an export: show the recordings
    Record(RecordTrace),
    /// Turn a trace of any known format into one of Cairn's own: compact, checksummed, in order of time
    Import(ImportTrace),
    /// The tables and figures of three papers for a trace: what an interval of a mirror transfers, what a granularity of history costs
    Analyse(AnalyseTrace),
    /// Run a trace on a real history of each placement, and count its I/O by kind beside what the papers' model says
    Replay(ReplayTrace),
    /// Make a trace of a workload of the papers: SPC-1-like, IoMeter, PostMark
    Generate(GenerateTrace),
}

/// Which trace, and what it is.
#[derive(Debug, Args)]
pub struct TraceInput {
    /// The trace, plain or in gzip, zstd, xz or bzip2; - is standard input
    #[arg(value_name = "TRACE")]
    pub file: PathBuf,
    /// cairn, csv, msr, spc, blkparse, blkreplay, disksim, srt, vscsi; found out if not given
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<TraceFormat>,
    /// Of blkparse: Q (queued), D (issued to the driver) or C (completed)
    #[arg(long, value_name = "ACTION", default_value = "Q")]
    pub action: BlkparseAction,
}

/// `cairn trace record`.
#[derive(Debug, Args)]
pub struct RecordTrace {
    /// Which: VOLUME/LUN, VOLUME@SNAPSHOT/LUN, DEVICE or DEVICE@VIEW
    #[arg(value_name = "EXPORT")]
    pub export: Option<String>,
    /// Begin: where the trace goes, on the machine of the server
    #[arg(long, value_name = "FILE", requires = "export", conflicts_with = "stop")]
    pub to: Option<PathBuf>,
    /// End it, and make the trace durable
    #[arg(long, requires = "export")]
    pub stop: bool,
    /// For how long; until --stop when not given
    #[arg(long = "for", value_name = "TIME", requires = "to")]
    pub time: Option<Interval>,
    /// Bytes that the trace may take (1G); the recording ends before it is longer
    #[arg(long, value_name = "SIZE", requires = "to")]
    pub max: Option<ByteSize>,
    /// Do not pack it with zstd
    #[arg(long, requires = "to")]
    pub plain: bool,
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

/// `cairn trace generate`.
#[derive(Debug, Args)]
pub struct GenerateTrace {
    /// Which workload
    #[command(subcommand)]
    pub workload: Workload,
    /// Where to; - is standard output, for `cairn trace analyse -`
    #[arg(long, value_name = "FILE", default_value = "-", global = true)]
    pub to: PathBuf,
    /// The same seed gives the same trace
    #[arg(long, default_value_t = 1, global = true)]
    pub seed: u64,
    /// Replace the file
    #[arg(long, global = true)]
    pub overwrite: bool,
}

/// A workload of the papers.
#[derive(Debug, Subcommand)]
pub enum Workload {
    /// SPC-1-like: two stores with hot spots, and a log (FAST 2007, section 4.2.1)
    Spc1 {
        /// Business scaling units, of 50 requests a second each
        #[arg(long, default_value_t = 100)]
        bsu: u32,
        /// Capacity in all
        #[arg(long, value_name = "SIZE", default_value = "100G")]
        size: ByteSize,
        /// How long
        #[arg(long, value_name = "TIME", default_value = "1h")]
        time: Interval,
        /// With ASU-3, the log, which the paper leaves out
        #[arg(long)]
        with_log: bool,
    },
    /// IoMeter: random requests of one length (MSST 2006, figures 4 and 5)
    Iometer {
        /// Bytes of the disk
        #[arg(long, value_name = "SIZE", default_value = "10G")]
        size: ByteSize,
        /// Bytes of a request
        #[arg(long, value_name = "SIZE", default_value = "4K")]
        length: ByteSize,
        /// Per cent of the requests that read
        #[arg(long, value_name = "PER CENT", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=100))]
        reads: u8,
        /// Requests a second
        #[arg(long, default_value_t = 500)]
        rate: u32,
        /// How long
        #[arg(long, value_name = "TIME", default_value = "1h")]
        time: Interval,
    },
    /// A stand-in for PostMark on a file system that writes in place (MSST 2006, figure 6)
    Postmark {
        /// Files at the beginning
        #[arg(long, default_value_t = 50_000)]
        files: u64,
        /// Transactions
        #[arg(long, default_value_t = 100_000)]
        transactions: u64,
        /// Operations a second
        #[arg(long, default_value_t = 300)]
        rate: u32,
    },
}

/// `cairn trace replay`.
#[derive(Debug, Args)]
pub struct ReplayTrace {
    /// Which trace; it is read twice for each placement, so it is a file
    #[command(flatten)]
    pub input: TraceInput,
    /// checkpointing, logging, split-stream, split-down-stream or hybrid; several, or all when not given
    #[arg(long, value_name = "PLACEMENT", value_delimiter = ',')]
    pub placement: Vec<PlacementName>,
    /// every-write, marks, or a length such as 1m; several
    #[arg(long, value_name = "TIME", value_delimiter = ',', default_value = "every-write,1m,1h")]
    pub granularity: Vec<GrainName>,
    /// Bytes of a block of the history
    #[arg(long, value_name = "SIZE", default_value = "4K")]
    pub block: ByteSize,
    /// Cache in all, of which 3 % can be dirty
    #[arg(long, value_name = "SIZE", default_value = "64M")]
    pub cache: ByteSize,
    /// Read cache
    #[arg(long, value_name = "SIZE", default_value = "0")]
    pub read_cache: ByteSize,
    /// Give up when finding out what the trace needs takes more memory than this
    #[arg(long, value_name = "SIZE", default_value = "8G")]
    pub memory: ByteSize,
    /// Keep origin and store as files in this directory for as long as it runs, instead of in memory
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
    /// Which trace; where there is no such file: which VOLUME, VOLUME/LUN or DEVICE of the running server, from what its clients have written since
    #[command(flatten)]
    pub input: TraceInput,
    /// What the link to the mirror carries, in bytes a second, such as 50M
    #[arg(long, value_name = "SIZE")]
    pub link: ByteSize,
    /// Cache of the history, of which 3 % can be dirty (256M)
    #[arg(long, value_name = "SIZE")]
    pub cache: Option<ByteSize>,
    /// Give up when it takes more memory than this
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
