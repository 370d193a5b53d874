//! The flags of `cairn group`.

use cairn_base::Interval;
use clap::{Args, Subcommand};

use super::Keeping;

/// `cairn group`.
#[derive(Debug, Subcommand)]
pub enum Group {
    /// Make a group of volumes of this server; on the server of their mirrors, of those
    Create {
        /// Its name
        name: String,
        /// Its volumes, two or more
        #[arg(required = true, num_args = 2..)]
        volumes: Vec<String>,
        /// Of mirrors: each shows its own newest image, not all of them one instant
        #[arg(long)]
        apart: bool,
    },
    /// All groups
    List,
    /// One group: its volumes, its snapshots, and what all of them have in common
    Show {
        /// Its name
        name: String,
    },
    /// Make snapshots of a group by the clock, and keep them for so long; without --every and --cron no more are made
    Set(SetGroup),
    /// Have the mirrors of a group show one instant, the newest snapshot of the group that all of them have
    Together {
        /// Its name
        name: String,
    },
    /// Have each mirror of a group show its own newest image
    Apart {
        /// Its name
        name: String,
    },
    /// Make the mirrors of a group writable, all at the newest snapshot of the group that every one of them has
    Failover {
        /// Its name
        name: String,
        /// Only say what would be lost
        #[arg(short = 'n', long)]
        dry_run: bool,
    },
    /// On the source: let one mirror of each volume take over with `group reverse`
    AllowReverse {
        /// Its name
        name: String,
        /// How the names of its mirrors begin: that of their server
        #[arg(long, value_name = "NAME")]
        mirror: Option<String>,
        /// Within this time
        #[arg(long = "for", value_name = "TIME", default_value = "15m")]
        length: Interval,
        /// No longer
        #[arg(long, conflicts_with = "length")]
        off: bool,
    },
    /// Change the roles of all volumes of a group without loss: the sources stop at one instant, their last changes are brought, and all volumes of this side, the mirrors, take writes
    Reverse {
        /// Its name
        name: String,
        /// Only say how far behind they are
        #[arg(short = 'n', long)]
        dry_run: bool,
    },
    /// End a group; its volumes and their snapshots stay
    Delete {
        /// Its name
        name: String,
    },
}

/// `cairn group set`: all of the schedule at once.
#[derive(Debug, Args)]
pub struct SetGroup {
    /// The group
    pub name: String,
    /// One so often, such as 5m
    #[arg(long, value_name = "TIME")]
    pub every: Option<Interval>,
    /// Or by a cron expression: minute, hour, day of the month, month, day of the week
    #[arg(long, conflicts_with = "every", value_name = "EXPRESSION")]
    pub cron: Option<String>,
    /// The time zone of the expression and of hours and days, such as Europe/Berlin; else UTC
    #[arg(long, value_name = "ZONE")]
    pub zone: Option<String>,
    /// How long they are kept
    #[command(flatten)]
    pub keep: Keeping,
    /// Only say when it runs and what the next run deletes
    #[arg(short = 'n', long)]
    pub dry_run: bool,
}
