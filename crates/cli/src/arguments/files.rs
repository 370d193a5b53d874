//! The flags of `cairn mount`, `cairn unmount`, `cairn quota` and `cairn dump`, and the names that
//! they take.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::str::FromStr;

use cairn_base::ByteSize;
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{ArgGroup, Args, Subcommand};

use super::InvalidName;
use super::image::{DumpLevel, DumpName};

/// `cairn mount`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Mount {
    /// What else there is to do with mounts.
    #[command(subcommand)]
    pub command: Option<MountCommand>,
    /// VOLUME (read-write), or VOLUME@SNAPSHOT (read-only)
    ///
    /// A mounted mirror is read-only and shows its newest image.
    #[arg(requires = "directory")]
    pub name: Option<DumpName>,
    /// Empty directory on the server's machine
    pub directory: Option<PathBuf>,
    /// Let other users access the mount, if the server does not run as root
    #[arg(long)]
    pub allow_other: bool,
    /// Allow device files, if the server runs as root
    #[arg(long)]
    pub dev: bool,
    /// Honor set-user-id bits, if the server runs as root
    #[arg(long)]
    pub suid: bool,
}

/// `cairn mount list`.
#[derive(Debug, Subcommand)]
pub enum MountCommand {
    /// List mounts
    List,
}

/// `cairn unmount`.
#[derive(Debug, Args)]
pub struct Unmount {
    /// Directory of the mount
    pub directory: PathBuf,
    /// Unmount now, and end when the last program leaves it
    #[arg(long)]
    pub lazy: bool,
    /// Unmount although programs use it; unwritten data is lost
    ///
    /// Also ends a mount that was unmounted with --lazy.
    #[arg(long, conflicts_with = "lazy")]
    pub force: bool,
}

/// `cairn quota`.
#[derive(Debug, Subcommand)]
pub enum Quota {
    /// List the directories with a quota, their limits and their usage
    List {
        /// Name of the volume
        volume: String,
    },
    /// Show the quota of a directory
    Show {
        /// VOLUME:/PATH of the directory
        #[arg(value_parser = tree_name())]
        name: TreeName,
    },
    /// Set, change or lift the quota of a directory
    ///
    /// Options that are not given stay as they are.
    Set(SetQuota),
    /// Lift the quota of a directory; its files stay
    Delete {
        /// VOLUME:/PATH of the directory
        #[arg(value_parser = tree_name())]
        name: TreeName,
    },
}

/// `cairn quota set`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("limits").args(["size", "files"]).required(true).multiple(true))]
pub struct SetQuota {
    /// VOLUME:/PATH of a directory; must be empty for its first quota
    #[arg(value_parser = tree_name())]
    pub name: TreeName,
    /// Limit the space of the tree, such as 10G; `off`: no limit
    #[arg(long, value_name = "SIZE")]
    pub size: Option<SizeLimit>,
    /// Limit the number of files and directories; `off`: no limit
    ///
    /// The directory itself counts.
    #[arg(long, value_name = "N")]
    pub files: Option<CountLimit>,
}

/// A size, or 0 for `off`.
#[derive(Debug, Clone, Copy)]
pub struct SizeLimit(pub u64);

/// A number, or 0 for `off`.
#[derive(Debug, Clone, Copy)]
pub struct CountLimit(pub u64);

const NO_LIMIT: &str = "0 is not a valid limit; `off` removes a limit";

impl FromStr for SizeLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "off" => Ok(Self(0)),
            text => match text.parse::<ByteSize>().map_err(|error| error.to_string())?.0 {
                0 => Err(NO_LIMIT.to_owned()),
                bytes => Ok(Self(bytes)),
            },
        }
    }
}

impl FromStr for CountLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match (text, text.parse::<u64>()) {
            ("off", _) => Ok(Self(0)),
            (_, Ok(0)) => Err(NO_LIMIT.to_owned()),
            (_, Ok(count)) => Ok(Self(count)),
            (_, Err(_)) => Err("a number of files, such as 100000, or `off`".to_owned()),
        }
    }
}

/// `cairn dump`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("volume").args(["records", "volume_size"]))]
pub struct Dump {
    /// VOLUME or VOLUME@SNAPSHOT, with :/PATH for a part of it
    ///
    /// For VOLUME, a temporary snapshot is dumped.
    #[arg(value_parser = tree_name())]
    pub name: TreeName,
    /// Everything, or what changed since the last dump of a lower level.
    #[command(flatten)]
    pub level: DumpLevel,
    /// Write to this file; `-` is standard output
    ///
    /// With a volume size, A,B,C names one file for each volume of the dump.
    #[arg(short = 'f', long, value_name = "FILE", required_unless_present_any = ["dry_run", "dates"])]
    pub file: Option<PathBuf>,
    /// Split the dump into volumes of N KiB, as `dump -B` does
    ///
    /// N is a multiple of 10, and at least 40.
    #[arg(short = 'B', long, value_name = "RECORDS", value_parser = clap::value_parser!(u64).range(40..))]
    pub records: Option<u64>,
    /// Split the dump into volumes of this size, such as 4G
    #[arg(long, value_name = "SIZE")]
    pub volume_size: Option<ByteSize>,
    /// Name the volumes FILE001, FILE002 and so on, as `dump -M` does
    #[arg(short = 'M', long, requires = "volume", conflicts_with_all = ["dry_run", "dates"])]
    pub multi_volume: bool,
    /// Exclude matches, such as '*.o', /tmp or 'home/*/cache'
    ///
    /// A pattern with `/` matches paths, any other matches names. Can be repeated.
    #[arg(long, value_name = "GLOB")]
    pub exclude: Vec<OsString>,
    /// Overwrite an existing file
    #[arg(long)]
    pub overwrite: bool,
    /// Accepted for compatibility with `dump -u`
    ///
    /// Every dump records its date for later levels, except a dump to /dev/null.
    #[arg(short = 'u', conflicts_with_all = ["dry_run", "dates"])]
    pub note: bool,
    /// Only show what would be dumped
    #[arg(short = 'n', long, conflicts_with = "dates")]
    pub dry_run: bool,
    /// Only show the dates of earlier dumps
    #[arg(long)]
    pub dates: bool,
}

/// `VOLUME[@SNAPSHOT][:/PATH]`.
#[derive(Debug, Clone)]
pub struct TreeName {
    /// Before the `@`.
    pub volume: String,
    /// After it.
    pub snapshot: Option<String>,
    /// From the root; empty for everything. Any bytes.
    pub path: Vec<u8>,
}

fn tree_name() -> impl TypedValueParser<Value = TreeName> {
    OsStringValueParser::new().try_map(|text| TreeName::of(&text))
}

impl TreeName {
    fn of(text: &OsStr) -> Result<Self, InvalidName> {
        let mut parts = text.as_bytes().splitn(2, |byte| *byte == b':');
        let name = std::str::from_utf8(parts.next().unwrap_or_default()).map_err(|_| InvalidName::Tree)?;
        let path = parts.next().unwrap_or_default();
        let DumpName { volume, snapshot } = name.parse()?;
        if volume.is_empty() || volume.contains('/') {
            return Err(InvalidName::Tree);
        }
        Ok(Self { volume, snapshot, path: path.to_vec() })
    }
}

/// `cairn snapshot diff`.
#[derive(Debug, Args)]
#[command(
    override_usage = "cairn snapshot diff VOLUME@FROM [VOLUME@TO]\n       cairn snapshot diff VOLUME FROM [TO]"
)]
pub struct DiffSnapshots {
    /// Earlier and later snapshot; the default of the latter is the present
    #[arg(required = true, num_args = 1..=3, value_name = "NAMES")]
    names: Vec<String>,
}

impl DiffSnapshots {
    /// The volume, the earlier snapshot, and the later one.
    pub fn of_one_volume(&self) -> Option<(&str, &str, Option<&str>)> {
        let (volume, mut snapshots) = match self.names.first()?.split_once('@') {
            Some((volume, from)) => (volume, vec![from]),
            None => (self.names.first()?.as_str(), Vec::new()),
        };
        for name in &self.names[1..] {
            match name.split_once('@') {
                Some((other, _)) if other != volume => return None,
                Some((_, snapshot)) => snapshots.push(snapshot),
                None => snapshots.push(name),
            }
        }
        match snapshots[..] {
            [from] => Some((volume, from, None)),
            [from, to] => Some((volume, from, Some(to))),
            _ => None,
        }
    }
}
