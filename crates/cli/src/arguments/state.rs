//! The flags of `cairn state`.

use clap::Subcommand;

/// `cairn state`.
#[derive(Debug, Subcommand)]
pub enum StateFile {
    /// List unreadable state files, and what each keeps out of service
    List,
    /// Load a state file that was put back, without a restart
    Restore {
        /// File, as `cairn status` shows it
        file: String,
        /// Load the previous generation of the file
        ///
        /// The server keeps it beside the file. A mirror is paused afterwards.
        #[arg(long)]
        previous: bool,
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
