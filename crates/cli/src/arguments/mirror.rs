//! The arguments of `cairn mirror`.

use std::path::PathBuf;

use cairn_base::{ByteSize, Interval};
use clap::{Args, Subcommand};

use super::{Beneath, InstantArgument, Setting};

/// `cairn mirror`.
#[derive(Debug, Subcommand)]
pub enum Mirror {
    /// Create a mirror: on the destination, or with --to into a bucket
    ///
    /// With TOKEN run it on the destination. With --to run it on the server of the volume. `mirror
    /// set` changes the options of Schedule, Transfer, Bucket and Locks later. `history enable`
    /// adds a history and `volume log` moves the intent log.
    Create {
        /// Volume on the source
        volume: String,
        /// @FILE with the token of `cairn peer invite`; default: standard input
        ///
        /// The token itself is accepted as well. All users of this machine can read arguments.
        #[arg(conflicts_with = "to")]
        token: Option<String>,
        #[command(flatten)]
        bucket: Box<IntoBucket>,
        #[command(flatten)]
        seed: Box<FromVolume>,
        /// Update this often, such as 15m; default: only on request
        #[arg(help_heading = "Schedule", long, value_name = "TIME")]
        every: Option<Interval>,
        /// Follow continuously, with a lag of seconds
        #[arg(help_heading = "Schedule", long, conflicts_with_all = ["every", "cron"])]
        continuous: bool,
        #[command(flatten)]
        when: When,
        /// Largest acceptable lag, such as 1h
        ///
        /// Beyond it, both servers report the mirror as `behind`. Default with --continuous: 10s.
        #[arg(help_heading = "Schedule", long, value_name = "TIME")]
        rpo: Option<Interval>,
        /// Hold no base snapshot on the source, which saves space there
        ///
        /// The source then finds changes from its record of changes alone.
        #[arg(help_heading = "Source", long)]
        no_hold: bool,
        /// Abort a transfer without progress after this time
        ///
        /// Default: the --mirror-patience of the server.
        #[arg(help_heading = "Transfer", long, value_name = "TIME")]
        stall: Option<Interval>,
        /// Use another name for the volume here
        #[arg(help_heading = "Disk", long = "as", value_name = "NAME")]
        name: Option<String>,
        /// Store the mirror on this disk or file; repeat to concatenate
        #[arg(help_heading = "Disk", long, value_name = "PATH")]
        device: Vec<PathBuf>,
        /// Keep the intent log on this disk or file
        ///
        /// A mirror uses it after a failover.
        #[arg(help_heading = "Disk", long, value_name = "PATH")]
        log_device: Option<PathBuf>,
        #[command(flatten, next_help_heading = "History")]
        beneath: Box<Beneath>,
        #[command(flatten, next_help_heading = "Transfer")]
        link: Link,
    },
    /// List mirrors
    List,
    /// Show a mirror
    Show {
        /// Name of the mirror
        name: String,
    },
    /// List mirrors, or show one
    Status {
        /// Mirror (default: all)
        name: Option<String>,
    },
    /// Transfer the newest image now; resumes an interrupted update
    Update {
        /// Name of the mirror
        name: String,
        /// Without a common base, compare checksums and send differences
        #[arg(long)]
        compare: bool,
        /// Spread the transfer over this time, to spare the source's clients
        #[arg(long, value_name = "TIME")]
        within: Option<Interval>,
        /// Only show how much would be sent
        #[arg(short = 'n', long, conflicts_with_all = ["compare", "within"])]
        dry_run: bool,
    },
    /// List the images of mirrored volumes in a bucket
    Images {
        /// BUCKET:[PATH/][VOLUME], where VOLUME is a name or an id
        #[arg(value_name = "BUCKET:[PATH/][VOLUME]")]
        of: String,
    },
    /// Restore a new volume from an image of a mirror in a bucket
    ///
    /// Works on any server that has the bucket. An interrupted restore is resumed with --resume.
    Restore(RestoreMirror),
    /// Check mirrors for monitoring
    ///
    /// Exit code: 0 OK, 1 warning, 2 critical, 3 unknown.
    Check {
        /// Mirror (default: the worst of all)
        name: Option<String>,
        /// Use this limit instead of the mirror's own RPO
        #[arg(long, value_name = "TIME")]
        rpo: Option<Interval>,
    },
    /// Change the settings of a mirror
    Set {
        /// Name of the mirror
        name: String,
        /// Update this often; `off`: only on request
        #[arg(help_heading = "Schedule", long, value_name = "TIME")]
        every: Option<Setting>,
        /// Follow continuously; --every and --cron end this
        #[arg(help_heading = "Schedule", long, conflicts_with_all = ["every", "cron"])]
        continuous: bool,
        #[command(flatten)]
        when: When,
        /// Largest acceptable lag; `off`: none
        #[arg(help_heading = "Schedule", long, value_name = "TIME")]
        rpo: Option<Setting>,
        /// Abort a transfer without progress after this time
        ///
        /// `off` uses the --mirror-patience of the server.
        #[arg(help_heading = "Transfer", long, value_name = "TIME")]
        stall: Option<Setting>,
        /// Hold the base of the next update on the source
        #[arg(help_heading = "Source", long, conflicts_with = "no_hold")]
        hold: bool,
        /// Hold no base snapshot on the source
        #[arg(help_heading = "Source", long)]
        no_hold: bool,
        #[command(flatten, next_help_heading = "Transfer")]
        link: Link,
        #[command(flatten, next_help_heading = "Bucket")]
        keep: KeepImages,
    },
    /// Follow another server that has the same volume or its mirror
    ///
    /// Needs no new baseline. For example, when a server in the middle of a chain is gone.
    Repoint {
        /// Name of the mirror
        name: String,
        /// @FILE with the token of `cairn peer invite`; default: standard input
        token: Option<String>,
        /// Name of the volume there
        #[arg(long, value_name = "NAME")]
        volume: Option<String>,
    },
    /// Abort a running update and start no more
    Pause {
        /// Name of the mirror
        name: String,
    },
    /// Resume a paused mirror
    Resume {
        /// Name of the mirror
        name: String,
        /// Continue the images in a bucket that another server took over
        ///
        /// The other server then stops.
        #[arg(help_heading = "Bucket", long)]
        take_over: bool,
        /// Continue from an older state of the bucket
        #[arg(help_heading = "Bucket", long)]
        accept_older: bool,
    },
    /// Revert a mirror with a history to an instant, and pause it
    ///
    /// For example, to undo a mistake that was mirrored. Also called `mirror revert`.
    #[command(alias = "revert")]
    Rewind {
        /// Name of the mirror
        name: String,
        /// Which instant: each transferred image has a mark, see `cairn history status`
        #[command(flatten)]
        at: InstantArgument,
        /// Only show what would happen
        #[arg(short = 'n', long)]
        dry_run: bool,
    },
    /// Abort a running update, and wait for its end
    ///
    /// The next update reuses the transferred data.
    Abort {
        /// Name of the mirror
        name: String,
    },
    /// Test the recovery from a mirror with a temporary clone
    ///
    /// Serves a clone of the newest image, runs a probe against it, and records the time that it
    /// took.
    Drill(DrillMirror),
    /// Compare a mirror with its source, and repair damage on both
    Verify {
        /// Name of the mirror
        name: String,
        /// Also read every data block of both sides from the media
        #[arg(long)]
        scrub: bool,
        /// With --scrub: limit the bytes per second (default 100M)
        #[arg(long, value_name = "SIZE", requires = "scrub")]
        rate: Option<ByteSize>,
    },
    /// On the source: discard the state of a mirror that is gone
    Forget {
        /// Name of the volume
        volume: String,
        /// Mirror, as in `cairn status --json` (followers and leftovers)
        name: String,
        /// Only show what would be discarded
        #[arg(short = 'n', long)]
        dry_run: bool,
    },
    /// Make this side the destination after both were written to
    ///
    /// Run it on the side that becomes the destination. The other side sends only the differences.
    Resync {
        /// Volume on this server
        name: String,
        #[command(flatten)]
        decision: Decision,
    },
    /// Make this side the source again: resync, then reverse
    Failback {
        /// Volume on this server
        name: String,
        #[command(flatten)]
        decision: Decision,
    },
    /// On the source: allow one mirror to take over
    ///
    /// The mirror then takes over with `reverse` or `failback`.
    AllowReverse {
        /// Name of the volume
        volume: String,
        /// Mirror, as in `cairn status --json`, or a prefix of that name
        #[arg(long, value_name = "NAME")]
        mirror: Option<String>,
        /// Allow it for this time
        #[arg(long = "for", value_name = "TIME", default_value = "15m")]
        length: Interval,
        /// Withdraw the permission
        #[arg(long, conflicts_with = "length")]
        off: bool,
    },
    /// Unlock the snapshots of a mirror for a while, with its lock key
    Unlock {
        /// Name of the mirror
        name: String,
        /// File with the lock key
        #[arg(long, value_name = "FILE")]
        lock_key: PathBuf,
        /// Unlock them for this time
        #[arg(long = "for", value_name = "TIME", default_value = "15m")]
        length: Interval,
        /// Lock them again
        #[arg(long, conflicts_with = "length")]
        off: bool,
    },
    /// Swap the roles of source and destination without loss
    ///
    /// Run it on the destination. The source stops taking writes and sends its last changes. Then
    /// this side takes writes.
    Reverse {
        /// Name of the mirror
        name: String,
        /// Only show how far behind the mirror is
        #[arg(short = 'n', long)]
        dry_run: bool,
    },
    /// Make the mirror writable; does not contact the source
    #[command(visible_aliases = ["promote", "break"])]
    Failover {
        /// Name of the mirror
        name: String,
        /// Only show what would be lost
        #[arg(short = 'n', long)]
        dry_run: bool,
    },
    /// Delete a mirror with its volume, or a mirror in a bucket
    ///
    /// The images of a mirror in a bucket, and the volume, stay.
    Delete {
        /// Name of the mirror
        name: String,
        /// Also delete the images in the bucket
        #[arg(help_heading = "Bucket", long)]
        purge: bool,
        /// Only show what would be deleted
        #[arg(short = 'n', long)]
        dry_run: bool,
    },
}

/// A mirror that is made in a bucket.
#[derive(Debug, Args)]
#[command(next_help_heading = "Bucket")]
pub struct IntoBucket {
    /// Mirror a volume of this server to BUCKET: or BUCKET:PATH/
    #[arg(long, value_name = "BUCKET:[PATH/]", conflicts_with_all = ["no_hold", "stall", "name", "device", "log_device", "lock", "lock_key", "connections", "compress", "spread", "no_spread", "history", "placement", "granularity", "history_size", "window", "floor"])]
    pub to: Option<String>,
    #[command(flatten)]
    pub keep: KeepImages,
    /// Continue the images that another server made there; it then stops
    #[arg(long, requires = "to")]
    pub take_over: bool,
    /// Only show how much would be sent
    ///
    /// With --to also objects, requests and money. The token can be used again by this server.
    #[arg(help_heading = "Transfer", short = 'n', long)]
    pub dry_run: bool,
}

/// A volume of this server that becomes the mirror.
#[derive(Debug, Args)]
#[command(next_help_heading = "Seed")]
pub struct FromVolume {
    /// Make this volume here the mirror, and send only differences
    ///
    /// For example a restored image dump of the source. Both need a snapshot in common.
    #[arg(long, value_name = "VOLUME", conflicts_with_all = ["to", "name", "device", "log_device", "history", "placement", "granularity", "history_size", "window", "floor"])]
    pub from: Option<String>,
    /// Save changes that only VOLUME has to this new file
    ///
    /// The file is on the server's machine. It is an image dump against the common snapshot.
    #[arg(long, value_name = "FILE", requires = "from", conflicts_with = "discard_divergent")]
    pub spill: Option<PathBuf>,
    /// Discard changes that only VOLUME has
    #[arg(long, requires = "from")]
    pub discard_divergent: bool,
    /// Without a common snapshot, compare checksums
    #[arg(long, requires = "from")]
    pub compare: bool,
}

/// The images of a mirror that stay in a bucket.
#[derive(Debug, Clone, Args)]
pub struct KeepImages {
    /// Keep the newest N images
    #[arg(long, value_name = "N")]
    pub keep_last: Option<u32>,
    /// Keep the newest of each of the last N hours (default 24)
    #[arg(long, value_name = "N")]
    pub keep_hourly: Option<u32>,
    /// Keep the newest of each of the last N days (default 30)
    #[arg(long, value_name = "N")]
    pub keep_daily: Option<u32>,
    /// Keep the newest of each of the last N weeks, from Monday
    #[arg(long, value_name = "N")]
    pub keep_weekly: Option<u32>,
    /// Keep the newest of each of the last N months (default 12)
    #[arg(long, value_name = "N")]
    pub keep_monthly: Option<u32>,
    /// Keep the newest of each of the last N years
    ///
    /// The defaults apply without any --keep option. The newest image always stays.
    #[arg(long, value_name = "N")]
    pub keep_yearly: Option<u32>,
}

/// `cairn mirror restore`.
#[derive(Debug, Args)]
pub struct RestoreMirror {
    /// Name of the new volume
    pub name: String,
    /// BUCKET:[PATH/]VOLUME, where VOLUME is a name or an id
    #[arg(value_name = "BUCKET:[PATH/]VOLUME", required_unless_present = "resume")]
    pub from: Option<String>,
    /// Restore this image: its number, or the beginning of its id
    #[arg(long, value_name = "IMAGE")]
    pub at: Option<String>,
    /// Size of the volume, at least that of the image
    #[arg(long)]
    pub size: Option<ByteSize>,
    /// Store the volume on this disk or file; repeat to concatenate
    #[arg(long, value_name = "PATH")]
    pub device: Vec<PathBuf>,
    /// Resume the unfinished restore of this volume
    #[arg(long, conflicts_with_all = ["from", "at", "size", "device", "anew"])]
    pub resume: bool,
    /// Abandon an unfinished restore of this volume, and start again
    #[arg(long)]
    pub anew: bool,
}

/// What becomes of what only this side has.
#[derive(Debug, Args)]
pub struct Decision {
    /// Save local changes to this new file on the server's machine
    ///
    /// The file is an image dump against the common snapshot. `cairn image` opens it.
    #[arg(long, value_name = "FILE", conflicts_with = "discard_divergent")]
    pub spill: Option<PathBuf>,
    /// Discard local changes
    #[arg(long)]
    pub discard_divergent: bool,
    /// Without a common base, compare checksums and send differences
    #[arg(long)]
    pub compare: bool,
    /// Connect to the other side at this address
    #[arg(long, value_name = "HOST:PORT")]
    pub from: Option<String>,
    /// Choose one of several failed-over mirrors, as in `cairn status`
    #[arg(long, value_name = "NAME")]
    pub mirror: Option<String>,
    /// Only show what would be discarded
    #[arg(short = 'n', long)]
    pub dry_run: bool,
}

/// When a mirror is updated, and how long what it has stays.
#[derive(Debug, Clone, Args)]
pub struct When {
    /// Update by a cron expression, such as `30 2 * * 1-5`; or `off`
    ///
    /// Five fields: minute, hour, day of the month, month, day of the week.
    #[arg(help_heading = "Schedule", long, value_name = "EXPRESSION")]
    pub cron: Option<String>,
    /// Time zone of --cron and --limit, such as Europe/Berlin (default UTC)
    #[arg(help_heading = "Schedule", long, value_name = "ZONE")]
    pub zone: Option<String>,
    /// Lock each snapshot for this time, such as 30d; or `off`
    ///
    /// Neither the source nor a command here deletes a locked snapshot. `off` applies to later
    /// snapshots.
    #[arg(help_heading = "Locks", long, value_name = "TIME")]
    pub lock: Option<Setting>,
    /// File with a secret that can unlock snapshots early
    #[arg(help_heading = "Locks", long, value_name = "FILE")]
    pub lock_key: Option<PathBuf>,
}

/// How the link of a mirror to its source is used.
#[derive(Debug, Clone, Args)]
pub struct Link {
    /// Limit the bytes per second: `50M`, `off`, or a timetable
    ///
    /// Also applies to a running transfer. A timetable looks like `100M, mon-fri 08:00-18:00=10M`.
    #[arg(long, value_name = "RATE")]
    pub limit: Option<String>,
    /// Use this many connections for a transfer, 1 to 16
    ///
    /// Several connections help on links with a high latency.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16))]
    pub connections: Option<u32>,
    /// Compress transfers with zstd
    #[arg(long, value_name = "WHEN")]
    pub compress: Option<Compress>,
    /// Spread scheduled updates over time (default)
    ///
    /// --spread spreads an update over at most half of the interval, five minutes and --rpo. This
    /// spares the source's clients.
    #[arg(
        long,
        value_name = "on|off",
        num_args = 0..=1,
        default_missing_value = "on",
        value_parser = clap::builder::BoolishValueParser::new()
    )]
    pub spread: Option<bool>,
    /// Transfer scheduled updates at full speed
    #[arg(long, conflicts_with = "spread")]
    pub no_spread: bool,
}

/// When to pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Compress {
    /// While measurements show that it is faster
    Auto,
    /// Wherever it makes the data smaller
    Always,
    /// Never
    Never,
}

/// `cairn mirror drill`.
#[derive(Debug, Args)]
pub struct DrillMirror {
    /// Name of the mirror
    pub name: String,
    /// Test the recovered data with this command for `sh -c`
    ///
    /// Exit code 0 means success. $CAIRN_DRILL_URI is the NBD address of the first LUN, and
    /// $CAIRN_DRILL_URIS has those of all. Default: the command of the last drill.
    #[arg(long, value_name = "CMD")]
    pub probe: Option<String>,
    /// Limit the time of the probe (default 10m)
    #[arg(long, value_name = "TIME")]
    pub timeout: Option<Interval>,
    /// Run a drill now, and then this often
    #[arg(long, value_name = "TIME")]
    pub every: Option<Interval>,
    /// Stop scheduled drills of this mirror
    #[arg(long, conflicts_with_all = ["probe", "timeout", "every"])]
    pub forget: bool,
}
