//! The flags of `cairn image`.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use cairn_base::{ByteSize, Interval};
use clap::{Args, Subcommand};

use super::{InvalidName, Keeping, SnapshotName};

/// `cairn image`.
#[derive(Debug, Subcommand)]
pub enum Image {
    /// Dump a volume with all of its snapshots into files, a pipe or a bucket
    Dump(DumpImage),
    /// Restore a volume from a full dump and its incremental dumps
    Restore(RestoreImage),
    /// List the contents of dumps, or of a directory in them
    ///
    /// Shows volume, level, snapshots and LUNs. With a PATH at the end, lists that directory.
    /// BUCKET: lists the dumps in a bucket, with their locks.
    #[command(name = "list", alias = "show")]
    Ls {
        /// Files or BUCKET:VOLUME[@DUMP], and /PATH or @SNAPSHOT:/PATH
        #[arg(required = true, value_name = "DUMP... [PATH]")]
        files: Vec<PathBuf>,
    },
    /// Print one file from dumps to standard output
    Cat {
        /// Dump files or BUCKET:VOLUME[@DUMP], then /PATH or @SNAPSHOT:/PATH
        #[arg(required = true, num_args = 2.., value_name = "DUMP... PATH")]
        files: Vec<PathBuf>,
    },
    /// Extract a file or a directory tree from dumps
    Extract(ExtractImage),
    /// Verify dumps, and list damage
    Verify {
        /// Files of the dumps, or BUCKET:VOLUME[@DUMP]; `-` is stdin
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Also verify every block against its tree
        ///
        /// This finds damage that was there before the dump.
        #[arg(long)]
        deep: bool,
    },
    /// Serve LUNs in dumps read-only over NBD, until Ctrl-C
    ///
    /// Works without a server, unless the dumps are in a bucket.
    Mount(MountImage),
    /// Delete dumps in a bucket that no --keep rule names
    ///
    /// A dump stays as long as one that stays was made against it. Also removes what abandoned
    /// dumps left in the bucket more than a week ago.
    Prune(PruneImages),
    /// Show the last dump of each level
    Levels {
        /// Name of the volume
        volume: String,
        /// Forget this level and higher ones, and delete their snapshots
        #[arg(long, value_name = "LEVEL")]
        forget: Option<u8>,
        /// Abandon the unfinished dump; deletes its snapshot and files
        #[arg(long, conflicts_with = "forget")]
        give_up: bool,
    },
}

impl Image {
    /// True for what needs no server.
    pub fn is_local(&self) -> bool {
        self.reads().is_some_and(|files| !files.first().is_some_and(|first| is_in_bucket(first)))
    }

    /// The dumps that it looks into.
    fn reads(&self) -> Option<&[PathBuf]> {
        match self {
            Image::Ls { files } | Image::Cat { files } | Image::Verify { files, .. } => Some(files),
            Image::Extract(ExtractImage { files, .. }) | Image::Mount(MountImage { files, .. }) => {
                Some(files)
            }
            _ => None,
        }
    }
}

/// True for `BUCKET:...`, unless there is a file of that name.
pub fn is_in_bucket(path: &Path) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let bucket = path.to_str().and_then(|text| text.split_once(':')).map(|(bucket, _)| bucket);
    let named = bucket.is_some_and(|bucket| {
        bucket.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric())
            && bucket.bytes().all(allowed)
    });
    named && !path.exists()
}

/// `cairn image prune`.
#[derive(Debug, Args)]
pub struct PruneImages {
    /// BUCKET: or BUCKET:PATH/
    #[arg(value_name = "BUCKET:[PATH/]")]
    pub place: String,
    /// Only dumps of this volume; default: of each volume
    #[arg(long)]
    pub volume: Option<String>,
    /// Which dumps stay
    #[command(flatten)]
    pub keep: Keeping,
    /// Only show which dumps would be deleted
    #[arg(short = 'n', long)]
    pub dry_run: bool,
}

/// `cairn image extract`.
#[derive(Debug, Args)]
pub struct ExtractImage {
    /// Full dump, incremental dumps, and /PATH or @SNAPSHOT:/PATH
    #[arg(required = true, num_args = 2.., value_name = "DUMP... PATH")]
    pub files: Vec<PathBuf>,
    /// Extract into this directory; creates the directories of PATH
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub to: PathBuf,
    /// Also open truncated files
    #[arg(long)]
    pub accept_damage: bool,
}

impl ExtractImage {
    /// The dumps, and the path in them.
    pub fn split(&self) -> (&[PathBuf], &Path) {
        split_path(&self.files)
    }
}

/// The dumps, and the path in them that comes last.
pub fn split_path(files: &[PathBuf]) -> (&[PathBuf], &Path) {
    match files.split_last() {
        Some((path, dumps)) => (dumps, path),
        None => (&[], Path::new("/")),
    }
}

/// `cairn image dump`.
#[derive(Debug, Args)]
pub struct DumpImage {
    /// VOLUME or VOLUME@SNAPSHOT; VOLUME dumps a new snapshot
    pub name: DumpName,
    /// Write into this bucket: BUCKET: or BUCKET:PATH/
    #[arg(value_name = "BUCKET:[PATH/]", conflicts_with = "to")]
    pub bucket: Option<String>,
    /// Lock the dump and all that it needs for this time, such as 30d
    ///
    /// Until then no one can delete them. Needs a bucket whose store has object lock.
    #[arg(long, value_name = "TIME", requires = "bucket")]
    pub lock: Option<Interval>,
    /// Everything, or what changed since the last dump of a lower level.
    #[command(flatten)]
    pub level: DumpLevel,
    /// Dump changes since this snapshot, named without its volume
    ///
    /// Records no level.
    #[arg(long, value_name = "SNAPSHOT", conflicts_with = "DumpLevel")]
    pub base: Option<String>,
    /// Write to this file; default: standard output
    ///
    /// Several files are written in parallel, each with a part of the dump.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub to: Vec<PathBuf>,
    /// With one file or a bucket: write N parts in parallel
    ///
    /// Files are FILE.1 to FILE.N.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub streams: Option<u32>,
    /// Compress with zstd
    #[arg(long)]
    pub compress: bool,
    /// Overwrite existing files and unfinished dumps
    #[arg(long)]
    pub overwrite: bool,
    /// Only show the exact size of the dump, and the cost of a bucket
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// Resume the unfinished dump of this volume
    ///
    /// Use --to if its files have moved.
    #[arg(long, conflicts_with_all = ["DumpLevel", "base", "streams", "compress", "dry_run", "anew"])]
    pub resume: bool,
    /// Abandon an unfinished dump of this volume, and start a new one
    #[arg(long)]
    pub anew: bool,
}

/// The level of a dump, as `dump` has it.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub struct DumpLevel {
    /// Dump everything (default)
    #[arg(short = '0')]
    level0: bool,
    /// Dump changes since the last lower level; also -2 to -9
    #[arg(short = '1')]
    level1: bool,
    #[arg(short = '2', hide = true)]
    level2: bool,
    #[arg(short = '3', hide = true)]
    level3: bool,
    #[arg(short = '4', hide = true)]
    level4: bool,
    #[arg(short = '5', hide = true)]
    level5: bool,
    #[arg(short = '6', hide = true)]
    level6: bool,
    #[arg(short = '7', hide = true)]
    level7: bool,
    #[arg(short = '8', hide = true)]
    level8: bool,
    #[arg(short = '9', hide = true)]
    level9: bool,
    /// Dump at this level, 0 to 9
    #[arg(long, value_name = "0..9", value_parser = clap::value_parser!(u8).range(0..=9))]
    level: Option<u8>,
}

impl DumpLevel {
    /// The level, if one was given.
    pub fn number(&self) -> Option<u8> {
        let flags = [
            self.level0,
            self.level1,
            self.level2,
            self.level3,
            self.level4,
            self.level5,
            self.level6,
            self.level7,
            self.level8,
            self.level9,
        ];
        self.level.or(flags.iter().position(|flag| *flag).map(|level| level as u8))
    }
}

/// `cairn image restore`.
#[derive(Debug, Args)]
pub struct RestoreImage {
    /// Name of the new volume
    pub name: String,
    /// Files of a full dump and its incremental ones; or BUCKET:VOLUME
    ///
    /// `-` is stdin. BUCKET:VOLUME@DUMP restores an older dump. Not needed with --resume if the
    /// files are still in their place.
    #[arg(required_unless_present_any = ["resume", "give_up"])]
    pub files: Vec<PathBuf>,
    /// Size of the volume, at least that of the dumped volume
    #[arg(long)]
    pub size: Option<ByteSize>,
    /// Store the volume on this disk or file; repeat to concatenate
    #[arg(long, value_name = "PATH")]
    pub device: Vec<PathBuf>,
    /// Skip unreadable data instead of stopping; reads of it will fail
    #[arg(long)]
    pub accept_damage: bool,
    /// Resume the unfinished restore of this volume
    ///
    /// Name the files if they have moved.
    #[arg(long, conflicts_with_all = ["size", "device", "anew"])]
    pub resume: bool,
    /// Abandon an unfinished restore of this volume, and start again
    #[arg(long)]
    pub anew: bool,
    /// Abandon an unfinished restore of this volume, and delete it
    #[arg(long, conflicts_with_all = ["files", "size", "device", "accept_damage", "resume", "anew"])]
    pub give_up: bool,
}

/// `cairn image mount`.
#[derive(Debug, Args)]
pub struct MountImage {
    /// Files of a full dump and its incremental ones; or BUCKET:VOLUME
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    /// Serve on this unix socket
    #[arg(long, value_name = "PATH", conflicts_with = "listen")]
    pub socket: Option<PathBuf>,
    /// Serve on HOST:PORT (default 127.0.0.1:10810)
    #[arg(long, value_name = "A")]
    pub listen: Option<String>,
    /// Open an incremental dump without its base
    ///
    /// Only changed data can be read.
    #[arg(long)]
    pub without_base: bool,
    /// Also open truncated files
    #[arg(long)]
    pub accept_damage: bool,
}

/// `VOLUME` or `VOLUME@SNAPSHOT`.
#[derive(Debug, Clone)]
pub struct DumpName {
    /// Before the `@`.
    pub volume: String,
    /// After it.
    pub snapshot: Option<String>,
}

impl FromStr for DumpName {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.contains('@') {
            true => text
                .parse()
                .map(|SnapshotName { volume, snapshot }| Self { volume, snapshot: Some(snapshot) }),
            false => Ok(Self { volume: text.to_owned(), snapshot: None }),
        }
    }
}
