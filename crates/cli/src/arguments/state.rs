//! The flags of `cairn state`.

use std::path::PathBuf;

use clap::Subcommand;

/// `cairn state`.
#[derive(Debug, Subcommand)]
pub enum StateFile {
    /// List unreadable state files, and what each keeps out of service
    List,
    /// Back up the server's own state into one file; not its data
    ///
    /// The file has the state files, the identity and the tokens in the data directory. Only its
    /// owner can read it. Works with and without a running server.
    Backup {
        /// New file
        to: PathBuf,
        /// Overwrite an existing file
        #[arg(long)]
        overwrite: bool,
    },
    /// Load a state file that was put back, or restore a whole backup
    ///
    /// With FILE, a running server loads the state file without a restart. With --from, restores
    /// the backup into the empty data directory that --data names; works without a server.
    Restore {
        /// File, as `cairn status` shows it
        #[arg(required_unless_present = "from")]
        file: Option<String>,
        /// Load the previous generation of the file
        ///
        /// The server keeps it beside the file. A mirror is paused afterwards.
        #[arg(long, conflicts_with = "from")]
        previous: bool,
        /// Restore the state from a file that `cairn state backup` wrote
        #[arg(long, value_name = "BACKUP", conflicts_with = "file")]
        from: Option<PathBuf>,
    },
    /// Abandon a state file; the server keeps it as FILE.damaged
    GiveUp {
        /// File, as `cairn status` shows it
        file: String,
        /// Only show what would be lost
        #[arg(short = 'n', long)]
        dry_run: bool,
    },
}

impl StateFile {
    /// True for what needs no server.
    pub fn is_local(&self) -> bool {
        matches!(self, StateFile::Backup { .. } | StateFile::Restore { from: Some(_), .. })
    }
}
