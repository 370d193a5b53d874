//! The flags of `cairn job`.

use clap::Subcommand;

/// `cairn job`.
#[derive(Debug, Subcommand)]
pub enum Job {
    /// List running jobs
    List {
        /// Also list the jobs that ended, up to 256 of them
        #[arg(long)]
        all: bool,
    },
    /// Show a job: its progress, notes, and why it failed
    Show {
        /// Id of the job, from `cairn job list`, or its beginning
        id: String,
    },
    /// Cancel a running job
    ///
    /// The job stops at its next step. A check or comparison has no result then; a dump, a restore
    /// and an update of a mirror can be resumed.
    #[command(aliases = ["delete", "rm"])]
    Cancel {
        /// Id of the job, from `cairn job list`, or its beginning
        id: String,
    },
}
