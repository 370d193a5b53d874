//! The flags of `cairn restore`.

use std::path::PathBuf;

use clap::Args;

/// `cairn restore`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("mode").required(true))]
pub struct Restore {
    /// List what is in the dump: numbers and paths
    #[arg(short = 't', long, group = "mode")]
    pub list: bool,
    /// Extract PATHs with all below, or everything
    #[arg(short = 'x', long, group = "mode")]
    pub extract: bool,
    /// Make the whole tree: a dump of level 0 into an empty directory, then those of higher levels in order
    #[arg(short = 'r', long, group = "mode")]
    pub rebuild: bool,
    /// Look around in the dump and mark what to extract
    #[arg(short = 'i', long, group = "mode")]
    pub interactive: bool,
    /// The dump; `-` is standard input. A,B,C: its volumes, in order
    #[arg(short = 'f', long, value_name = "DUMP")]
    pub file: PathBuf,
    /// The dump is in volumes DUMP001, DUMP002 and so on
    #[arg(short = 'M', long)]
    pub multi_volume: bool,
    /// Where to restore to
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub to: PathBuf,
    /// Paths in the dump, from its root
    #[arg(conflicts_with_all = ["rebuild", "interactive"])]
    pub paths: Vec<PathBuf>,
}
