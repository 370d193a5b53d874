//! The arguments of `cairn device` and `cairn history`.

use std::path::PathBuf;

use cairn_api as api;
use cairn_base::{ByteSize, Interval};
use clap::{Args, Subcommand};

use super::Setting;

/// `cairn device`.
#[derive(Debug, Subcommand)]
pub enum Device {
    /// Adopt a disk or an image where it is: from now on it remembers, and is exported by its name
    Adopt(Box<Adopt>),
    /// The adopted devices
    List,
    /// Leave a plain disk with today's content behind; its history is given up
    Release {
        /// Its name
        name: String,
        /// Also where its history is lost for good: what the origin has stays as it is
        #[arg(long)]
        without_history: bool,
        /// Only say what would happen
        #[arg(short = 'n', long)]
        dry_run: bool,
    },
}

/// `cairn device adopt`.
#[derive(Debug, Args)]
pub struct Adopt {
    /// The name of the device and of its export
    pub name: String,
    /// The disk or image, or lun:VOLUME/LUN; it stays as it is
    #[arg(long, value_name = "PATH")]
    pub origin: PathBuf,
    /// A file, an empty disk or lun:VOLUME/LUN for the history; a file is made. Without it the device is exported and does not remember
    #[arg(long, value_name = "PATH")]
    pub history: Option<PathBuf>,
    /// checkpointing (copy-on-write), logging (redirect-on-write), split-stream, split-down-stream or hybrid; checkpointing when not given
    #[arg(long, value_name = "P", value_parser = placement, requires = "history")]
    pub placement: Option<api::Placement>,
    /// every-write, marks, or an interval such as 1s; marks when not given
    #[arg(long, value_name = "G", requires = "history")]
    pub granularity: Option<String>,
    /// How much is kept
    #[command(flatten)]
    pub window: WindowArguments,
    /// The block of the history: a power of two from 512 to 64K
    #[arg(long, value_name = "N")]
    pub block: Option<ByteSize>,
    /// Make a new origin of this size
    #[arg(long, value_name = "SIZE")]
    pub size: Option<ByteSize>,
    /// The size of a new history file; as the origin when not given. It takes space as it fills
    #[arg(long, value_name = "SIZE")]
    pub history_size: Option<ByteSize>,
    /// Written blocks that wait in memory at most
    #[arg(long, value_name = "SIZE")]
    pub dirty: Option<ByteSize>,
    /// Read cache
    #[arg(long, value_name = "SIZE")]
    pub cache: Option<ByteSize>,
    /// Adopt it although another program has it open for writing
    #[arg(long)]
    pub in_use: bool,
}

/// A history under a new volume.
#[derive(Debug, Args)]
pub struct Beneath {
    /// A file or an empty disk for a history under the volume, which brings all of it back to an instant; a file is made
    #[arg(long, value_name = "PATH", conflicts_with = "log_device")]
    pub history: Option<PathBuf>,
    /// checkpointing (copy-on-write), logging (redirect-on-write), split-stream, split-down-stream or hybrid; checkpointing when not given
    #[arg(long, value_name = "P", value_parser = placement, requires = "history")]
    pub placement: Option<api::Placement>,
    /// every-write, marks, or an interval such as 1s; marks when not given
    #[arg(long, value_name = "G", requires = "history")]
    pub granularity: Option<String>,
    /// The size of a new history file; as the devices of the volume when not given. It takes space as it fills
    #[arg(long, value_name = "SIZE", requires = "history")]
    pub history_size: Option<ByteSize>,
    /// How much is kept
    #[command(flatten)]
    pub window: WindowArguments,
}

/// How much history is kept.
#[derive(Debug, Args)]
pub struct WindowArguments {
    /// A length of time (24h), a size (100G), or both by giving it twice; `off` for as long as there is room, as in a new history
    #[arg(long, value_name = "W")]
    pub window: Vec<String>,
    /// History younger than this is not given up when the store is full; `off` for any is
    #[arg(long, value_name = "TIME")]
    pub floor: Option<Setting>,
    /// What a write does then: wait or fail. Unless told otherwise it waits under a volume, which a failed write makes read-only, and fails on a device
    #[arg(long, value_name = "POLICY", value_parser = floor_policy)]
    pub floor_policy: Option<api::FloorPolicy>,
    /// What is older than AGE keeps one instant every so long: `--thin 1h:1m --thin 1d:1h`; `off` for all of them. Marks stay
    #[arg(long, value_name = "AGE:EVERY", value_parser = thin)]
    pub thin: Vec<Thinning>,
    /// Store less of what is written from now on: none, xor (what differs from an earlier version of the block), identical (the same content once) or all; as it is, or none, when not given
    #[arg(long, value_name = "HOW", value_parser = reduce)]
    pub reduce: Option<api::Reduce>,
}

/// An instant: a time or a mark.
#[derive(Debug, Args)]
pub struct InstantArgument {
    /// '2026-11-20 14:03:07' (local time), with Z (UTC), 14:03 (the last one), 'yesterday 14:03', -5m, or now
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, conflicts_with = "mark")]
    pub at: Option<String>,
    /// The instant of a mark
    #[arg(long, value_name = "MARK")]
    pub mark: Option<String>,
}

impl InstantArgument {
    /// As it was given.
    pub fn words(&self) -> String {
        match (&self.at, &self.mark) {
            (Some(at), _) => at.clone(),
            (None, Some(mark)) => format!("the mark {mark}"),
            (None, None) => "nothing".to_owned(),
        }
    }
}

/// `cairn history enable`.
#[derive(Debug, Args)]
pub struct Enable {
    /// The volume
    pub name: String,
    /// A file or an empty disk for the history, best not on the disk of the volume; a file is made
    #[arg(long, value_name = "PATH")]
    pub history: PathBuf,
    /// checkpointing (copy-on-write), logging (redirect-on-write), split-stream, split-down-stream or hybrid; checkpointing when not given
    #[arg(long, value_name = "P", value_parser = placement)]
    pub placement: Option<api::Placement>,
    /// every-write, marks, or an interval such as 1s; marks when not given
    #[arg(long, value_name = "G")]
    pub granularity: Option<String>,
    /// The size of a new history file; as the devices of the volume when not given. It takes space as it fills
    #[arg(long, value_name = "SIZE")]
    pub history_size: Option<ByteSize>,
    /// How much is kept
    #[command(flatten)]
    pub window: WindowArguments,
    /// Only say what would happen
    #[arg(short = 'n', long)]
    pub dry_run: bool,
}

/// `cairn history`.
#[derive(Debug, Subcommand)]
pub enum History {
    /// Put a history under a volume that there is; its clients connect again
    Enable(Box<Enable>),
    /// Take the history away from under a volume: it goes on as it is, without its past; its clients connect again
    Disable {
        /// The volume
        name: String,
        /// The store of the history is lost for good: open the volume on what its devices have
        #[arg(long)]
        store_lost: bool,
        /// Only say what would happen
        #[arg(short = 'n', long)]
        dry_run: bool,
    },
    /// Take the store of a history as it is, which is older than it was: it was put back from a backup, and its disk with it
    AcceptOlder {
        /// The device, or a volume over a history
        name: String,
        /// Only say what would happen
        #[arg(short = 'n', long)]
        dry_run: bool,
    },
    /// The span that can be reached, the space, what it costs, marks and views
    Status {
        /// The device, or a volume over a history
        name: String,
    },
    /// Name the present instant
    Mark {
        /// The device, or a volume over a history
        name: String,
        /// The name of the mark
        mark: String,
        /// You have brought the device to rest
        #[arg(long)]
        consistent: bool,
    },
    /// Export an instant, read-only, as DEVICE@NAME, or of a volume over a history as VOLUME@NAME/LUN; without an instant, list such views
    View {
        /// The device, or a volume over a history
        name: String,
        /// Which instant
        #[command(flatten)]
        at: InstantArgument,
        /// The NAME of DEVICE@NAME or VOLUME@NAME; by time when not given
        #[arg(long = "as", value_name = "NAME")]
        export: Option<String>,
        /// End the view DEVICE@NAME or VOLUME@NAME
        #[arg(long, value_name = "NAME", conflicts_with_all = ["at", "mark", "export"])]
        delete: Option<String>,
    },
    /// Export an instant that takes writes of its own, as DEVICE@NAME
    Clone {
        /// The device
        name: String,
        /// Which instant
        #[command(flatten)]
        at: InstantArgument,
        /// The NAME of DEVICE@NAME; by time when not given
        #[arg(long = "as", value_name = "NAME")]
        export: Option<String>,
        /// Delete the clone DEVICE@NAME and what was written to it
        #[arg(long, value_name = "NAME", conflicts_with_all = ["at", "mark", "export"])]
        delete: Option<String>,
    },
    /// Bring a device, or all of a volume over a history, back to an instant at once; its clients connect again
    Revert {
        /// The device or the volume
        name: String,
        /// Which instant
        #[command(flatten)]
        at: InstantArgument,
        /// Only say what would happen
        #[arg(short = 'n', long)]
        dry_run: bool,
    },
    /// Change how much history is kept: what is not named stays, and `off` takes it back. Without an option, show it
    Window {
        /// The device, or a volume over a history
        name: String,
        /// How much
        #[command(flatten)]
        window: WindowArguments,
    },
}

fn placement(text: &str) -> Result<api::Placement, String> {
    word(text, "checkpointing, logging, split-stream, split-down-stream or hybrid")
}

fn floor_policy(text: &str) -> Result<api::FloorPolicy, String> {
    word(text, "wait or fail")
}

fn reduce(text: &str) -> Result<api::Reduce, String> {
    word(text, "none, xor, identical or all")
}

/// A step of retention, or `off`.
#[derive(Debug, Clone, Copy)]
pub struct Thinning(pub Option<api::Thin>);

fn thin(text: &str) -> Result<Thinning, String> {
    let wrong = || "it is an age and an interval, such as 1h:1m, or `off`".to_owned();
    if text == "off" {
        return Ok(Thinning(None));
    }
    let (after, every) = text.split_once(':').ok_or_else(wrong)?;
    let ms = |text: &str| {
        text.parse::<Interval>().map(|interval| interval.0.as_millis() as u64).map_err(|_| wrong())
    };
    Ok(Thinning(Some(api::Thin { after_ms: ms(after)?, every_ms: ms(every)? })))
}

fn word<T: serde::de::DeserializeOwned>(text: &str, words: &str) -> Result<T, String> {
    serde_json::from_value(text.into()).map_err(|_| format!("it is {words}"))
}
