//! The flags of `cairn state`.

use clap::Subcommand;

/// `cairn state`.
#[derive(Debug, Subcommand)]
pub enum StateFile {
    /// Those that are there and can't be read, and what each keeps out of service
    List,
    /// Take in a file of which a copy was put back, without a restart
    Restore {
        /// The file, as `cairn status` names it
        file: String,
        /// What it said before its last change, which lies beside it; a mirror is paused then
        #[arg(long)]
        previous: bool,
    },
    /// Go on without what a file said; it is set aside as FILE.damaged
    GiveUp {
        /// The file, as `cairn status` names it
        file: String,
        /// Only say what that costs
        #[arg(short = 'n', long)]
        dry_run: bool,
    },
}
