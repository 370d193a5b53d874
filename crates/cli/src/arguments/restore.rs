//! The flags of `cairn restore`.

use std::path::PathBuf;

use clap::Args;

/// `cairn restore`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("mode").required(true))]
pub struct Restore {
    /// List the inode numbers and paths in the dump
    #[arg(short = 't', long, group = "mode")]
    pub list: bool,
    /// Extract PATHs with their contents, or everything
    #[arg(short = 'x', long, group = "mode")]
    pub extract: bool,
    /// Rebuild the whole tree
    ///
    /// Restore a dump of level 0 into an empty directory first. Then restore those of higher levels
    /// in order.
    #[arg(short = 'r', long, group = "mode")]
    pub rebuild: bool,
    /// Browse the dump interactively, and mark files to extract
    #[arg(short = 'i', long, group = "mode")]
    pub interactive: bool,
    /// Read this dump; `-` is standard input; A,B,C: its volumes
    #[arg(short = 'f', long, value_name = "DUMP")]
    pub file: PathBuf,
    /// Read the volumes DUMP001, DUMP002 and so on
    #[arg(short = 'M', long)]
    pub multi_volume: bool,
    /// Restore into this directory
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub to: PathBuf,
    /// Paths in the dump, from its root
    #[arg(conflicts_with_all = ["rebuild", "interactive"])]
    pub paths: Vec<PathBuf>,
}
