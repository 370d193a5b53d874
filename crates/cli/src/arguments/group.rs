//! The flags of `cairn group`.

use cairn_base::Interval;
use clap::{Args, Subcommand};

use super::Keeping;

/// `cairn group`.
#[derive(Debug, Subcommand)]
pub enum Group {
    /// Create a group of volumes or of mirrors on this server
    Create {
        /// Name of the group
        name: String,
        /// Volumes, two or more
        #[arg(required = true, num_args = 2..)]
        volumes: Vec<String>,
        /// Let each mirror show its own newest image, not a common instant
        #[arg(long)]
        apart: bool,
    },
    /// List groups
    List,
    /// Show the volumes, snapshots and common snapshots of a group
    Show {
        /// Name of the group
        name: String,
    },
    /// Show, set or remove the snapshot schedule of a group
    ///
    /// Without an option, shows the group. Any option replaces the whole schedule.
    Set(SetGroup),
    /// Show all mirrors of a group at their newest common snapshot
    Together {
        /// Name of the group
        name: String,
    },
    /// Show each mirror of a group at its own newest image
    Apart {
        /// Name of the group
        name: String,
    },
    /// Make the mirrors of a group writable at their common snapshot
    ///
    /// The snapshot is the newest one of the group that every mirror has.
    Failover {
        /// Name of the group
        name: String,
        /// Only show what would be lost
        #[arg(short = 'n', long)]
        dry_run: bool,
    },
    /// On the source: allow one mirror of each volume to take over
    ///
    /// The mirrors then take over with `group reverse`.
    AllowReverse {
        /// Name of the group
        name: String,
        /// Prefix of the names of its mirrors: that of their server
        #[arg(long, value_name = "NAME")]
        mirror: Option<String>,
        /// Allow it for this time
        #[arg(long = "for", value_name = "TIME", default_value = "15m")]
        length: Interval,
        /// Withdraw the permission
        #[arg(long, conflicts_with = "length")]
        off: bool,
    },
    /// Swap the roles of all volumes of a group without loss
    ///
    /// Run it on the side of the mirrors. The sources stop taking writes at one instant and send
    /// their last changes. Then all volumes of this side take writes.
    Reverse {
        /// Name of the group
        name: String,
        /// Only show how far behind the mirrors are
        #[arg(short = 'n', long)]
        dry_run: bool,
    },
    /// Delete a group; its volumes and their snapshots stay
    Delete {
        /// Name of the group
        name: String,
    },
}

/// `cairn group set`: all of the schedule at once.
#[derive(Debug, Args)]
pub struct SetGroup {
    /// Name of the group
    pub name: String,
    /// Make one this often, such as 5m
    #[arg(long, value_name = "TIME")]
    pub every: Option<Interval>,
    /// Make them by a cron expression, such as `30 2 * * 1-5`
    ///
    /// Five fields: minute, hour, day of the month, month, day of the week.
    #[arg(long, conflicts_with = "every", value_name = "EXPRESSION")]
    pub cron: Option<String>,
    /// Remove the schedule; its snapshots stay
    #[arg(long, conflicts_with_all = ["every", "cron"])]
    pub off: bool,
    /// Time zone of times and days, such as Europe/Berlin (default UTC)
    #[arg(long, value_name = "ZONE")]
    pub zone: Option<String>,
    /// How long they are kept
    #[command(flatten)]
    pub keep: Keeping,
    /// Only show the times of runs, and what the next run deletes
    #[arg(short = 'n', long)]
    pub dry_run: bool,
}
