//! The arguments of `cairn device` and `cairn history`.

use std::path::PathBuf;

use cairn_api as api;
use cairn_base::{ByteSize, Interval};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};

use super::Setting;

/// `cairn device`.
#[derive(Debug, Subcommand)]
pub enum Device {
    /// Adopt a disk or an image in place, record history, and export it
    Adopt(Box<Adopt>),
    /// List adopted devices
    List,
    /// Show an adopted device
    Show {
        /// Name of the device
        name: String,
    },
    /// Release a device as a plain disk; discards its history
    Release {
        /// Name of the device
        name: String,
        /// Release it although its history is lost for good
        ///
        /// The content of the origin stays as it is.
        #[arg(long)]
        without_history: bool,
        /// Only show what would happen
        #[arg(short = 'n', long)]
        dry_run: bool,
    },
}

/// `cairn device adopt`.
#[derive(Debug, Args)]
pub struct Adopt {
    /// Name of the device and of its export
    pub name: String,
    /// Disk or image to adopt, or lun:VOLUME/LUN; keeps its content
    #[arg(long, value_name = "PATH")]
    pub origin: PathBuf,
    /// Store the history in this file, empty disk or lun:VOLUME/LUN
    ///
    /// A missing file is created. Without this option, the device is exported and has no history.
    #[arg(long, value_name = "PATH")]
    pub history: Option<PathBuf>,
    /// Place the history by this method (default checkpointing)
    ///
    /// `checkpointing` is copy-on-write, and `logging` is redirect-on-write.
    #[arg(long, value_name = "P", value_parser = placement(), requires = "history")]
    pub placement: Option<api::Placement>,
    /// Record every-write, marks (default), or an interval such as 1s
    #[arg(long, value_name = "G", requires = "history")]
    pub granularity: Option<String>,
    /// How much is kept
    #[command(flatten)]
    pub window: WindowArguments,
    /// Block size of the history: a power of two from 512 to 64K
    #[arg(long, value_name = "N")]
    pub block: Option<ByteSize>,
    /// Create a new origin of this size
    #[arg(long, value_name = "SIZE")]
    pub size: Option<ByteSize>,
    /// Size of a new history file; default: that of the origin
    ///
    /// The file takes space as it fills.
    #[arg(long, value_name = "SIZE")]
    pub history_size: Option<ByteSize>,
    /// Limit the memory for written blocks
    #[arg(long, value_name = "SIZE")]
    pub dirty: Option<ByteSize>,
    /// Size of the read cache
    #[arg(long, value_name = "SIZE")]
    pub cache: Option<ByteSize>,
    /// Adopt it although another program has it open for writing
    #[arg(long)]
    pub in_use: bool,
}

/// A history under a new volume.
#[derive(Debug, Args)]
pub struct Beneath {
    /// Record a history of the volume in this file or empty disk
    ///
    /// The history can revert the whole volume to an instant. A missing file is created.
    #[arg(long, value_name = "PATH", conflicts_with = "log_device")]
    pub history: Option<PathBuf>,
    /// Place the history by this method (default checkpointing)
    ///
    /// `checkpointing` is copy-on-write, and `logging` is redirect-on-write.
    #[arg(long, value_name = "P", value_parser = placement(), requires = "history")]
    pub placement: Option<api::Placement>,
    /// Record every-write, marks (default), or an interval such as 1s
    #[arg(long, value_name = "G", requires = "history")]
    pub granularity: Option<String>,
    /// Size of a new history file; default: that of the volume's devices
    ///
    /// The file takes space as it fills.
    #[arg(long, value_name = "SIZE", requires = "history")]
    pub history_size: Option<ByteSize>,
    /// How much is kept
    #[command(flatten)]
    pub window: WindowArguments,
}

/// How much history is kept.
#[derive(Debug, Args)]
pub struct WindowArguments {
    /// Keep history of this time (24h) or size (100G); or `off`
    ///
    /// Give it twice to limit both. `off`, the default, keeps history as long as there is room.
    #[arg(long, value_name = "W")]
    pub window: Vec<String>,
    /// Never discard history younger than this; `off`: no minimum
    ///
    /// This holds even when the store is full.
    #[arg(long, value_name = "TIME")]
    pub floor: Option<Setting>,
    /// Make writes wait or fail when --floor leaves no room
    ///
    /// Default: `wait` for a volume, because a failed write makes it read-only; `fail` for a
    /// device.
    #[arg(long, value_name = "POLICY", value_parser = floor_policy())]
    pub floor_policy: Option<api::FloorPolicy>,
    /// Beyond AGE, keep one instant per interval; `off` keeps all
    ///
    /// For example `--thin 1h:1m --thin 1d:1h`. Marks always stay.
    #[arg(long, value_name = "AGE:EVERY", value_parser = thin)]
    pub thin: Vec<Thinning>,
    /// Reduce new history (default none)
    ///
    /// `xor` stores the difference from an earlier version of the block. `identical` stores equal
    /// content once.
    #[arg(long, value_name = "HOW", value_parser = reduce())]
    pub reduce: Option<api::Reduce>,
}

/// An instant: a time or a mark.
#[derive(Debug, Args)]
pub struct InstantArgument {
    /// Choose the instant by time, such as 14:03, -5m or now
    ///
    /// Also '2026-11-20 14:03:07' (local time; with Z: UTC) and 'yesterday 14:03'. 14:03 means the
    /// last one.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, conflicts_with = "mark")]
    pub at: Option<String>,
    /// Choose the instant of this mark
    #[arg(long, value_name = "MARK")]
    pub mark: Option<String>,
    /// Choose the instant by a time or a mark
    ///
    /// A word that is not a time names a mark.
    #[arg(long, value_name = "TIME|MARK", allow_hyphen_values = true, conflicts_with_all = ["at", "mark"])]
    pub to: Option<String>,
}

impl InstantArgument {
    /// As it was given.
    pub fn words(&self) -> String {
        match (&self.at, &self.mark, &self.to) {
            (Some(at), ..) => at.clone(),
            (None, Some(mark), _) => format!("the mark {mark}"),
            (None, None, Some(to)) => to.clone(),
            (None, None, None) => "nothing".to_owned(),
        }
    }

    /// No instant was chosen.
    pub fn is_none(&self) -> bool {
        self.at.is_none() && self.mark.is_none() && self.to.is_none()
    }
}

/// `cairn history enable`.
#[derive(Debug, Args)]
pub struct Enable {
    /// Name of the volume
    pub name: String,
    /// Store the history in this file or empty disk
    ///
    /// Prefer another disk than that of the volume. A missing file is created.
    #[arg(long, value_name = "PATH")]
    pub history: PathBuf,
    /// Place the history by this method (default checkpointing)
    ///
    /// `checkpointing` is copy-on-write, and `logging` is redirect-on-write.
    #[arg(long, value_name = "P", value_parser = placement())]
    pub placement: Option<api::Placement>,
    /// Record every-write, marks (default), or an interval such as 1s
    #[arg(long, value_name = "G")]
    pub granularity: Option<String>,
    /// Size of a new history file; default: that of the volume's devices
    ///
    /// The file takes space as it fills.
    #[arg(long, value_name = "SIZE")]
    pub history_size: Option<ByteSize>,
    /// How much is kept
    #[command(flatten)]
    pub window: WindowArguments,
    /// Only show what would happen
    #[arg(short = 'n', long)]
    pub dry_run: bool,
}

/// `cairn history`.
#[derive(Debug, Subcommand)]
pub enum History {
    /// Enable history for an existing volume; its clients reconnect
    Enable(Box<Enable>),
    /// Disable the history of a volume; its clients reconnect
    ///
    /// The volume keeps its present content. Its history is lost.
    Disable {
        /// Name of the volume
        name: String,
        /// Disable it although its store is lost for good
        ///
        /// The volume opens with the content of its devices.
        #[arg(long)]
        store_lost: bool,
        /// Only show what would happen
        #[arg(short = 'n', long)]
        dry_run: bool,
    },
    /// Accept a history store that is older than the last one seen
    ///
    /// For a store and its disk that were both restored from a backup.
    AcceptOlder {
        /// Device, or volume with a history
        name: String,
        /// Only show what would happen
        #[arg(short = 'n', long)]
        dry_run: bool,
    },
    /// List the devices and volumes that have a history
    List,
    /// Show the range, space, cost, marks and views of a history
    #[command(alias = "show")]
    Status {
        /// Device, or volume with a history
        name: String,
    },
    /// Enlarge the store of a history while clients use it
    ///
    /// A store cannot shrink. The file takes space as it fills.
    Grow {
        /// Device, or volume with a history
        name: String,
        /// New size of the store; default: that of its disk, which was enlarged before
        #[arg(long, value_name = "SIZE")]
        size: Option<ByteSize>,
    },
    /// Give the present instant a name
    Mark {
        /// Device, or volume with a history
        name: String,
        /// Name of the mark
        mark: String,
        /// Record that the device is quiesced, and its content consistent
        #[arg(long)]
        consistent: bool,
    },
    /// Export an instant read-only; without an instant, list the views
    ///
    /// The export is DEVICE@NAME, or for a volume with a history VOLUME@NAME/LUN.
    View {
        /// Device, or volume with a history
        name: String,
        /// Which instant
        #[command(flatten)]
        at: InstantArgument,
        /// Use this NAME in DEVICE@NAME or VOLUME@NAME; default: the time
        #[arg(long = "as", value_name = "NAME")]
        export: Option<String>,
        /// Delete the view DEVICE@NAME or VOLUME@NAME
        #[arg(long, value_name = "NAME", conflicts_with_all = ["at", "mark", "to", "export"])]
        delete: Option<String>,
    },
    /// Export a clone of an instant; without an instant, list the clones
    ///
    /// A clone is a writable copy that shares the blocks of the instant. The export is DEVICE@NAME.
    /// `cairn clone create` makes a clone of a snapshot.
    Clone {
        /// Name of the device
        name: String,
        /// Which instant
        #[command(flatten)]
        at: InstantArgument,
        /// Use this NAME in DEVICE@NAME; default: the time
        #[arg(long = "as", value_name = "NAME")]
        export: Option<String>,
        /// Delete the clone DEVICE@NAME and everything written to it
        #[arg(long, value_name = "NAME", conflicts_with_all = ["at", "mark", "to", "export"])]
        delete: Option<String>,
    },
    /// Revert a device or volume to an instant; its clients reconnect
    #[command(aliases = ["rollback", "rewind"])]
    Revert {
        /// Device or volume
        name: String,
        /// Which instant
        #[command(flatten)]
        at: InstantArgument,
        /// Only show what would happen
        #[arg(short = 'n', long)]
        dry_run: bool,
    },
    /// Show or change how much history is kept
    ///
    /// Options that are not given stay as they are.
    #[command(alias = "set")]
    Window {
        /// Device, or volume with a history
        name: String,
        /// How much
        #[command(flatten)]
        window: WindowArguments,
    },
}

fn placement() -> impl TypedValueParser<Value = api::Placement> {
    words(["checkpointing", "logging", "split-stream", "split-down-stream", "hybrid"])
}

fn floor_policy() -> impl TypedValueParser<Value = api::FloorPolicy> {
    words(["wait", "fail"])
}

fn reduce() -> impl TypedValueParser<Value = api::Reduce> {
    words(["none", "xor", "identical", "all"])
}

/// A step of retention, or `off`.
#[derive(Debug, Clone, Copy)]
pub struct Thinning(pub Option<api::Thin>);

fn thin(text: &str) -> Result<Thinning, String> {
    let wrong = || "give an age and an interval, such as 1h:1m, or `off`".to_owned();
    if text == "off" {
        return Ok(Thinning(None));
    }
    let (after, every) = text.split_once(':').ok_or_else(wrong)?;
    let ms = |text: &str| {
        text.parse::<Interval>().map(|interval| interval.0.as_millis() as u64).map_err(|_| wrong())
    };
    Ok(Thinning(Some(api::Thin { after_ms: ms(after)?, every_ms: ms(every)? })))
}

/// One of these words, which the API has as well.
fn words<T, const N: usize>(words: [&'static str; N]) -> impl TypedValueParser<Value = T>
where
    T: serde::de::DeserializeOwned + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(words).try_map(|word| serde_json::from_value(word.into()))
}
