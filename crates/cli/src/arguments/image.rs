//! The flags of `cairn image`.

use std::path::PathBuf;
use std::str::FromStr;

use cairn_base::ByteSize;
use clap::{Args, Subcommand};

use super::{InvalidName, SnapshotName};

/// `cairn image`.
#[derive(Debug, Subcommand)]
pub enum Image {
    /// Write a volume with all of its snapshots into files or a pipe
    Dump(DumpImage),
    /// Make a volume of a dump and those made against it, in any order
    Restore(RestoreImage),
    /// What is in dumps: volume, level, snapshots, LUNs; with a PATH at the end, what is in that directory of theirs
    Ls {
        /// The files, and /PATH or @SNAPSHOT:/PATH
        #[arg(required = true, value_name = "DUMP... [PATH]")]
        files: Vec<PathBuf>,
    },
    /// Write one file of dumps to standard output, without restoring them
    Cat {
        /// A dump of everything and those made against it, and /PATH or @SNAPSHOT:/PATH
        #[arg(required = true, num_args = 2.., value_name = "DUMP... PATH")]
        files: Vec<PathBuf>,
    },
    /// Take a file, or a directory with all below, out of dumps, without restoring them
    Extract(ExtractImage),
    /// Read dumps record by record and as a whole, and name what is damaged
    Verify {
        /// The files; `-` is standard input
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Compare every block with the tree above it as well: finds what was damaged before it was dumped
        #[arg(long)]
        deep: bool,
    },
    /// Serve the LUNs in dumps over NBD, read-only, until Ctrl-C; no server is needed
    Mount(MountImage),
    /// The last dump of each level
    Levels {
        /// The volume
        volume: String,
        /// Forget this level and all higher ones, and delete the snapshots that were made for them
        #[arg(long, value_name = "LEVEL")]
        forget: Option<u8>,
        /// Give up the dump that was cut: delete the snapshot that was made for it, and its files
        #[arg(long, conflicts_with = "forget")]
        give_up: bool,
    },
}

impl Image {
    /// True for what needs no server.
    pub fn is_local(&self) -> bool {
        matches!(
            self,
            Image::Ls { .. } | Image::Cat { .. } | Image::Extract(_) | Image::Verify { .. } | Image::Mount(_)
        )
    }
}

/// `cairn image extract`.
#[derive(Debug, Args)]
pub struct ExtractImage {
    /// A dump of everything and those made against it, and /PATH or @SNAPSHOT:/PATH
    #[arg(required = true, num_args = 2.., value_name = "DUMP... PATH")]
    pub files: Vec<PathBuf>,
    /// Where to put it; the directories of PATH are made there
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub to: PathBuf,
    /// Open files that are cut off as well
    #[arg(long)]
    pub accept_damage: bool,
}

impl ExtractImage {
    /// The dumps, and the path in them.
    pub fn split(&self) -> (&[PathBuf], &std::path::Path) {
        split_path(&self.files)
    }
}

/// The dumps, and the path in them that comes last.
pub fn split_path(files: &[PathBuf]) -> (&[PathBuf], &std::path::Path) {
    match files.split_last() {
        Some((path, dumps)) => (dumps, path),
        None => (&[], std::path::Path::new("/")),
    }
}

/// `cairn image dump`.
#[derive(Debug, Args)]
pub struct DumpImage {
    /// VOLUME, or VOLUME@SNAPSHOT; of a volume a new snapshot is dumped
    pub name: DumpName,
    /// Everything, or what changed since the last dump of a lower level.
    #[command(flatten)]
    pub level: DumpLevel,
    /// What changed since this snapshot, without the volume's name; no level is recorded
    #[arg(long, value_name = "SNAPSHOT", conflicts_with = "DumpLevel")]
    pub base: Option<String>,
    /// A file; several are written at the same time, a part of the dump each. Without it, standard output
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub to: Vec<PathBuf>,
    /// With one name: write FILE.1 to FILE.N at the same time
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub streams: Option<u32>,
    /// Pack records with zstd
    #[arg(long)]
    pub compress: bool,
    /// Replace files that exist, and what there is of dumps that were cut
    #[arg(long)]
    pub overwrite: bool,
    /// Only say how much it would be, to the byte
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// Go on with the dump of this volume that was cut, where it was written or, with --to, where its files are now
    #[arg(long, conflicts_with_all = ["DumpLevel", "base", "streams", "compress", "dry_run", "anew"])]
    pub resume: bool,
    /// Give up the dump of this volume that was cut, if there is one, and make another
    #[arg(long)]
    pub anew: bool,
}

/// The level of a dump, as `dump` has it.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub struct DumpLevel {
    /// Everything (the default)
    #[arg(short = '0')]
    level0: bool,
    /// What changed since the last dump of a lower level; so do -2 to -9
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
    /// The same with the level as a number
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
    /// The name of the new volume
    pub name: String,
    /// The files of a dump of everything and of those made against it; `-` is standard input. With --resume, those that it was begun with need not be named
    #[arg(required_unless_present_any = ["resume", "give_up"])]
    pub files: Vec<PathBuf>,
    /// Of its block space, at least what it was
    #[arg(long)]
    pub size: Option<ByteSize>,
    /// A disk or a file for it; several go one after the other
    #[arg(long, value_name = "PATH")]
    pub device: Vec<PathBuf>,
    /// Leave out what can't be read, instead of ending at it; reads of that will fail
    #[arg(long)]
    pub accept_damage: bool,
    /// Go on with the restore of this volume that was cut, with the same dumps, wherever their files are now
    #[arg(long, conflicts_with_all = ["size", "device", "anew"])]
    pub resume: bool,
    /// Give up the restore of this volume that was cut, if there is one, and begin another
    #[arg(long)]
    pub anew: bool,
    /// Give up the restore of this volume that was cut: delete what there is of it
    #[arg(long, conflicts_with_all = ["files", "size", "device", "accept_damage", "resume", "anew"])]
    pub give_up: bool,
}

/// `cairn image mount`.
#[derive(Debug, Args)]
pub struct MountImage {
    /// The files of a dump of everything and of those made against it
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    /// Serve on this unix socket
    #[arg(long, value_name = "PATH", conflicts_with = "listen")]
    pub socket: Option<PathBuf>,
    /// Serve on HOST:PORT (127.0.0.1:10810)
    #[arg(long, value_name = "A")]
    pub listen: Option<String>,
    /// Open a dump that was made against something that is not here: only what changed can be read
    #[arg(long)]
    pub without_base: bool,
    /// Open files that are cut off as well
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
