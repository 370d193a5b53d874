//! The flags of `cairn mount`, `cairn unmount`, `cairn quota` and `cairn dump`, and the names that they take.

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
    /// VOLUME: for reading and writing; of a mirror its newest image at any time. VOLUME@SNAPSHOT: as it was then
    #[arg(required = true)]
    pub name: Option<DumpName>,
    /// An empty directory of the server's machine
    #[arg(required = true)]
    pub directory: Option<PathBuf>,
    /// Let other users in, where it is not root who runs the server
    #[arg(long)]
    pub allow_other: bool,
    /// Take device files for devices, where it is root who runs the server
    #[arg(long)]
    pub dev: bool,
    /// Have set-user-id bits count, where it is root who runs the server
    #[arg(long)]
    pub suid: bool,
}

/// `cairn mount list`.
#[derive(Debug, Subcommand)]
pub enum MountCommand {
    /// All mounts
    List,
}

/// `cairn unmount`.
#[derive(Debug, Args)]
pub struct Unmount {
    /// Where it is mounted
    pub directory: PathBuf,
    /// Also while programs work in it: it is gone from its place at once, and ends when they do
    #[arg(long)]
    pub lazy: bool,
    /// Cut off the programs that work in it, also in one that was taken away lazily: what they have not written yet is lost
    #[arg(long, conflicts_with = "lazy")]
    pub force: bool,
}

/// `cairn quota`.
#[derive(Debug, Subcommand)]
pub enum Quota {
    /// The directories of a volume that have a quota: what they may take, and take
    List {
        /// Its name
        volume: String,
    },
    /// Give an empty directory a quota, change one, or lift it; what is not named stays as it is
    Set(SetQuota),
}

/// `cairn quota set`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("limits").args(["size", "files"]).required(true).multiple(true))]
pub struct SetQuota {
    /// VOLUME:/PATH of a directory; one without a quota yet must be empty
    #[arg(value_parser = tree_name())]
    pub name: TreeName,
    /// What all in it may take together, such as 10G; `off` for no limit
    #[arg(long, value_name = "SIZE")]
    pub size: Option<SizeLimit>,
    /// How many files and directories there may be, itself included; `off` for no limit
    #[arg(long, value_name = "N")]
    pub files: Option<CountLimit>,
}

/// A size, or 0 for `off`.
#[derive(Debug, Clone, Copy)]
pub struct SizeLimit(pub u64);

/// A number, or 0 for `off`.
#[derive(Debug, Clone, Copy)]
pub struct CountLimit(pub u64);

const NO_LIMIT: &str = "0 is no limit that anything could keep to: `off` lifts a limit";

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
    /// VOLUME, or VOLUME@SNAPSHOT, with :/PATH for one directory or file; of a volume a snapshot is made, and deleted again
    #[arg(value_parser = tree_name())]
    pub name: TreeName,
    /// Everything, or what changed since the last dump of a lower level.
    #[command(flatten)]
    pub level: DumpLevel,
    /// Where it goes; `-` is standard output. With a size of volumes A,B,C: one file for each of them
    #[arg(short = 'f', long, value_name = "FILE", required_unless_present_any = ["dry_run", "dates"])]
    pub file: Option<PathBuf>,
    /// Cut it into volumes of so many records of 1 KiB, as `dump -B` does; whole tens of them, 40 at least
    #[arg(short = 'B', long, value_name = "RECORDS", value_parser = clap::value_parser!(u64).range(40..))]
    pub records: Option<u64>,
    /// The same as a size, such as 4G
    #[arg(long, value_name = "SIZE")]
    pub volume_size: Option<ByteSize>,
    /// The volumes are FILE001, FILE002 and so on, as many as it takes, as `dump -M` has it
    #[arg(short = 'M', long, requires = "volume", conflicts_with_all = ["dry_run", "dates"])]
    pub multi_volume: bool,
    /// Leave out what matches, such as '*.o' (names), /tmp or 'home/*/cache' (paths); several
    #[arg(long, value_name = "GLOB")]
    pub exclude: Vec<OsString>,
    /// Replace a file that exists
    #[arg(long)]
    pub overwrite: bool,
    /// Note its date for later levels, as `dump -u` does: all do, but those to /dev/null
    #[arg(short = 'u', conflicts_with_all = ["dry_run", "dates"])]
    pub note: bool,
    /// Only say what it would have
    #[arg(short = 'n', long, conflicts_with = "dates")]
    pub dry_run: bool,
    /// Only say which dumps were made when
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
    /// The earlier snapshot and the later one, of one volume; with one the volume as it is
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
