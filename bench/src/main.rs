//! The figures of docs/benchmarks.md: Cairn next to its peers, in one run, on one file system.
//!
//! `cargo run --release -p cairn-bench -- TABLE|all [OPTION]...`, with the options `--quick`,
//! `--rows WORD`, `--turns N`, `--compressed N`, `--only-peers`, `--cairn PATH` and `--dir PATH`,
//! prints Markdown rows. Every figure is a ratio of medians. Contenders take turns (A B A B),
//! because a shared machine drifts, and only measurements taken minutes apart can be compared.
//! `--quick` shrinks data and durations until the figures mean nothing and only shows that
//! everything runs. `--compressed` is for `response`, which makes intervals thirty times shorter by
//! default.

mod bucket_cache_rows;
mod bucket_rows;
mod cairn;
mod continuous_rows;
mod files_rows;
mod fio;
mod history_rows;
mod image_rows;
mod iscsi_rows;
mod link;
mod link_rows;
mod machine;
mod mirror_rows;
mod names_rows;
mod nfs_rows;
mod patch;
mod peers;
mod physical_rows;
mod postmark_rows;
mod process;
mod report;
mod response_rows;
mod scale_rows;
mod served_rows;
mod snapshot_peers;
mod snapshot_rows;
mod stores;
mod trace_rows;
mod tree;
mod volume_rows;
mod wires;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::report::Report;

/// The parameters of a run.
pub(crate) struct Plan {
    /// Data and durations too small to mean anything.
    pub(crate) quick: bool,
    /// Leaves Cairn out.
    pub(crate) only_peers: bool,
    /// How often each contender takes its turn, when that is not the table's own number.
    pub(crate) turns: Option<usize>,
    /// How many times shorter the intervals of a table are than the represented ones, when that is
    /// not the table's own number.
    pub(crate) compressed: Option<usize>,
    /// Only rows whose work has this in its name, where a table can leave out the others.
    pub(crate) rows: Option<String>,
    /// The server under test.
    pub(crate) cairn: PathBuf,
    /// The folder for data: one file system for all.
    pub(crate) folder: PathBuf,
}

impl Plan {
    /// True for selected rows.
    pub(crate) fn wants(&self, work: &str) -> bool {
        self.rows.as_ref().is_none_or(|word| work.contains(word.as_str()))
    }

    /// Refuses to begin a table that would fill the disk: all others of the machine would suffer
    /// with it.
    pub(crate) fn ask_room(&self, gib: u64) -> Result<()> {
        let bytes = if self.quick { 2 << 30 } else { gib << 30 };
        machine::ask_room(&self.folder, bytes)
    }

    /// Bytes of every export.
    pub(crate) fn export_bytes(&self) -> u64 {
        if self.quick { 128 << 20 } else { 4 << 30 }
    }

    /// Bytes that "in cache" means.
    pub(crate) fn cached_bytes(&self) -> u64 {
        if self.quick { 32 << 20 } else { 256 << 20 }
    }

    /// How often each contender takes its turn.
    pub(crate) fn rounds(&self) -> usize {
        self.turns.unwrap_or(if self.quick { 1 } else { 3 })
    }

    /// The length of one turn.
    pub(crate) fn turn(&self) -> Duration {
        Duration::from_secs(if self.quick { 1 } else { 5 })
    }

    /// The length of a turn that memory alone must not be able to carry.
    pub(crate) fn long_turn(&self) -> Duration {
        Duration::from_secs(if self.quick { 2 } else { 60 })
    }
}

type Table = (&'static str, &'static str, fn(&Plan, &mut Report) -> Result<()>);

/// Every table: its name on the command line, its content, and its function.
const TABLES: &[Table] = &[
    (
        "served",
        "reads and writes of a LUN next to block servers, with latency and server CPU",
        served_rows::served,
    ),
    ("scale", "memory, CPU and opening as LUNs and sessions grow", scale_rows::scale),
    ("full", "random writes on a volume that is nearly full", scale_rows::full),
    ("beside", "the response of a client beside one that writes in bulk", scale_rows::beside),
    ("iscsi", "reads and writes of a LUN over iSCSI next to tgt and to NBD", iscsi_rows::iscsi),
    ("sustained", "60 s of random writes without a flush", served_rows::sustained),
    ("snapshots", "random writes with 0, 1, 50 and 1,000 snapshots", snapshot_rows::writes),
    (
        "snapshot-create",
        "latency of clients while snapshots are made; 10 against 10,000",
        snapshot_rows::creation,
    ),
    ("snapshot-count", "snapshots by the thousand in the engine itself", volume_rows::many_snapshots),
    ("changed", "finding the changed blocks of a sparse volume", volume_rows::changed_blocks),
    ("mirror", "baseline against nbdcopy; bytes of an update", mirror_rows::mirror),
    ("long-link", "a baseline over 1 Gbit/s and 150 ms", link_rows::long_link),
    ("limit", "what a limit makes of a transfer", link_rows::limit),
    ("fan-out", "destinations beside a slow one", link_rows::fan_out),
    (
        "continuous",
        "writes of clients beside a mirror that follows continuously, and its lag",
        continuous_rows::continuous,
    ),
    (
        "response",
        "response time of a file server beside a mirror that is updated so often (FAST 2002, figure 5)",
        response_rows::response,
    ),
    (
        "physical",
        "logical and physical dump and restore of one volume; mirrors by maps and by dumps (OSDI 1999, FAST 2002)",
        physical_rows::physical,
    ),
    ("image", "image dump and restore next to what reads and writes the same device", image_rows::image),
    (
        "bucket",
        "dumps, mirrors and volumes in a bucket next to s5cmd, rclone and restic",
        bucket_rows::bucket,
    ),
    ("files", "many small files and a large one through FUSE; BSD dump and restore", files_rows::files),
    ("names", "a million names in one directory, in the engine and through FUSE", names_rows::names),
    ("nfs", "files over NFS next to nfs-ganesha, through libnfs", nfs_rows::nfs),
    ("postmark", "PostMark and dbench on a mount, next to fuse2fs, ext4 and btrfs", postmark_rows::postmark),
    ("failover", "from the command to the first read", image_rows::failover),
    ("open", "opening after kill -9", mirror_rows::open_after_kill),
    (
        "history",
        "disks that remember: placements, snapshots, an instant of ten million writes",
        history_rows::history,
    ),
    ("trace", "what a recording of an export costs its clients", trace_rows::trace),
];

fn usage() -> String {
    let mut text =
        "usage: cairn-bench TABLE|all [--quick] [--rows WORD] [--turns N] [--compressed N] [--only-peers] [--cairn PATH] [--dir PATH]\n".to_owned();
    for (name, shows, _) in TABLES {
        text.push_str(&format!("  {name:16} {shows}\n"));
    }
    text
}

fn main() -> Result<()> {
    let mut plan = Plan {
        quick: false,
        only_peers: false,
        rows: None,
        turns: None,
        compressed: None,
        cairn: machine::target_folder().join("release/cairn"),
        folder: machine::target_folder(),
    };
    let mut wanted = None;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut path =
            || arguments.next().map(PathBuf::from).with_context(|| format!("{argument} needs a path"));
        match argument.as_str() {
            "--quick" => plan.quick = true,
            "--only-peers" => plan.only_peers = true,
            "--turns" => {
                let given = arguments.next().and_then(|number| number.parse().ok());
                plan.turns = Some(given.context("--turns needs a number")?);
            }
            "--compressed" => {
                let given = arguments.next().and_then(|number| number.parse().ok());
                plan.compressed =
                    Some(given.filter(|number| *number > 0).context("--compressed needs a number")?);
            }
            "--rows" => plan.rows = Some(arguments.next().context("--rows needs a word")?),
            "--cairn" => plan.cairn = path()?,
            "--dir" => plan.folder = path()?,
            "--help" | "-h" => {
                print!("{}", usage());
                return Ok(());
            }
            name if !name.starts_with('-') && wanted.is_none() => wanted = Some(name.to_owned()),
            _ => bail!("unknown argument {argument}\n{}", usage()),
        }
    }
    let Some(wanted) = wanted else { bail!("which table?\n{}", usage()) };
    let tables: Vec<&Table> = TABLES.iter().filter(|(name, ..)| wanted == "all" || wanted == *name).collect();
    if tables.is_empty() {
        bail!("no table is called {wanted}\n{}", usage());
    }
    // These link the engine and need no server.
    let engine_only = matches!(wanted.as_str(), "snapshot-count" | "changed");
    if !plan.only_peers && !engine_only && !plan.cairn.is_file() {
        bail!("{} is missing; build it with: cargo build --release -p cairn-cli", plan.cairn.display());
    }
    println!("{}", machine::describe(&plan)?);
    let root = plan.folder.clone();
    std::fs::create_dir_all(&root).with_context(|| format!("cannot make {}", root.display()))?;
    let mut failed = false;
    for (name, shows, run) in tables {
        // Removed with all its data before the next table fills the disk again.
        let scratch = tempfile::Builder::new().prefix("bench-").tempdir_in(&root)?;
        plan.folder = scratch.path().to_owned();
        let mut report = Report::new();
        eprintln!("== {name}: {shows}");
        let outcome = run(&plan, &mut report);
        println!("\n### {name}: {shows}\n\n{report}");
        if let Err(error) = outcome {
            failed = true;
            println!("\nThe table ended early: {error:#}");
        }
    }
    if failed {
        bail!("a table ended early");
    }
    Ok(())
}
