//! The command line: commands, flags and the names that they take.

use std::path::PathBuf;
use std::str::FromStr;

use cairn_api::Address;
use cairn_base::{ByteSize, Interval};
use clap::{Args, Parser, Subcommand, ValueEnum};

mod bucket;
mod device;
mod files;
mod group;
mod image;
mod restore;
mod service;
mod state;
mod trace;

pub use bucket::{AddBucket, Bucket};
pub use device::{Beneath, Device, Enable, History, InstantArgument, WindowArguments};
pub use files::{DiffSnapshots, Dump, Mount, Quota, SetQuota, Unmount};
pub use group::{Group, SetGroup};
pub use image::{DumpImage, ExtractImage, Image, MountImage, RestoreImage, split_path};
pub use restore::Restore;
pub use service::{ConfigFile, InstallService, Serve, Service};
pub use state::StateFile;
pub use trace::{
    AnalyseTrace, GenerateTrace, ImportTrace, PlacementName, PlanTrace, RecordTrace, ReplayTrace, Trace,
    TraceInput, Workload,
};

/// Volumes that never overwrite, served over NBD and mirrored to another server.
#[derive(Debug, Parser)]
#[command(name = "cairn", version, propagate_version = true, max_term_width = 100)]
pub struct Arguments {
    /// How to reach the server and how to talk.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Flags of every command: behind its own ones in its help, among which they would be sorted without a heading.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of all commands")]
pub struct Global {
    /// The data directory of the server
    #[arg(long, global = true, value_name = "DIR", env = "CAIRN_DATA")]
    pub data: Option<PathBuf>,
    /// The server: HOST:PORT (with --token-file) or unix:PATH
    #[arg(long, global = true, value_name = "A", env = "CAIRN_SERVER")]
    pub server: Option<Address>,
    /// A copy of DIR/http-token of the server, for --server HOST:PORT
    #[arg(long, global = true, value_name = "FILE", env = "CAIRN_TOKEN_FILE")]
    pub token_file: Option<PathBuf>,
    /// Write JSON
    #[arg(long, global = true)]
    pub json: bool,
    /// Say nothing but errors
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Say more (twice: much more)
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Do not ask before something is destroyed
    #[arg(long, global = true)]
    pub yes: bool,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show it all: two servers, real data, a mirror, a disaster, failover, proof
    Demo(Demo),
    /// Run a server
    Serve(Serve),
    /// The configuration of a server; no server is needed
    #[command(subcommand)]
    Config(ConfigFile),
    /// The server as a service of systemd
    #[command(subcommand)]
    Service(Service),
    /// Files out of a BSD dump, of Cairn or of Linux `dump`; no server is needed
    Restore(Restore),
    /// Volumes, exports, mirrors, and problems with their remedies
    Status,
    /// What the server does, live: clients, mirrors, work in the background; `q` ends it
    Top {
        /// Print one look and end, as without a terminal
        #[arg(long)]
        once: bool,
    },
    /// Completions for a shell, to its completion file or `source <(cairn completions bash)`
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Manual pages of all commands, into a directory
    Man {
        /// The directory, such as /usr/local/share/man/man1
        dir: PathBuf,
    },
    /// State files of the server that can't be read, and the ways back
    #[command(subcommand)]
    State(StateFile),
    /// Volumes
    #[command(subcommand)]
    Volume(Volume),
    /// LUNs: disks in a volume, exported by NBD and iSCSI
    #[command(subcommand)]
    Lun(Lun),
    /// Who may use LUNs, and how they are offered
    #[command(subcommand)]
    Export(Export),
    /// Files of a volume or of a snapshot on a directory of the server's machine
    Mount(Mount),
    /// Take a mount away
    #[command(visible_alias = "umount")]
    Unmount(Unmount),
    /// What directories of a volume may take, with all below them
    #[command(subcommand)]
    Quota(Quota),
    /// Files of a volume as a BSD dump, for `cairn restore` and Linux `restore`
    Dump(Dump),
    /// Snapshots
    #[command(subcommand)]
    Snapshot(Snapshot),
    /// Existing disks and images that are adopted where they are, and remember
    #[command(subcommand)]
    Device(Device),
    /// The history of an adopted device or under a volume: marks, views, clones, reverts
    #[command(subcommand)]
    History(History),
    /// Volumes whose snapshots are made at one instant, and that are recovered to one
    #[command(subcommand)]
    Group(Group),
    /// Clones of snapshots: volumes that can be written to and cost nothing at first
    #[command(subcommand)]
    Clone(CloneCommand),
    /// Servers that may mirror from here
    #[command(subcommand)]
    Peer(Peer),
    /// Mirrors of other servers' volumes
    #[command(subcommand)]
    Mirror(Mirror),
    /// Image dumps: volumes in files, and back
    #[command(subcommand)]
    Image(Image),
    /// Buckets: object stores that the server may use
    #[command(subcommand)]
    Bucket(Bucket),
    /// Traces of devices: record, import, analyse, replay, generate
    #[command(subcommand)]
    Trace(Trace),
    /// What a lag costs on a link, which history is cheapest at which granularity, what space it needs, and one setting
    Plan(PlanTrace),
}

/// `cairn demo`.
#[derive(Debug, Args)]
pub struct Demo {
    /// Leave both servers running, and say what to try next
    #[arg(long)]
    pub keep: bool,
    /// Real files to copy, at most
    #[arg(long, value_name = "SIZE", default_value = "300M")]
    pub budget: ByteSize,
}

/// `cairn export`.
#[derive(Debug, Subcommand)]
pub enum Export {
    /// All exports: who may use them, who does
    List,
    /// Change who may use a LUN or an adopted device, and how it is offered; its sessions end
    Set(SetExport),
}

/// `cairn export set`.
#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("changes").required(true).multiple(true)))]
pub struct SetExport {
    /// VOLUME/LUN, or an adopted DEVICE
    pub name: String,
    /// Only this iSCSI initiator; several
    #[arg(long, value_name = "IQN", group = "changes")]
    pub initiator: Vec<String>,
    /// Any initiator name
    #[arg(long, conflicts_with = "initiator", group = "changes")]
    pub any_initiator: bool,
    /// Only initiators at this address or in this network, such as 10.0.0.0/24; several
    #[arg(long, value_name = "NET", group = "changes")]
    pub network: Vec<String>,
    /// Initiators from anywhere
    #[arg(long, conflicts_with = "network", group = "changes")]
    pub any_network: bool,
    /// CHAP: a file with the line `initiator NAME SECRET`, and for mutual CHAP the line `target NAME SECRET`
    #[arg(long, value_name = "FILE", group = "changes")]
    pub chap_file: Option<PathBuf>,
    /// No CHAP any more
    #[arg(long, conflicts_with = "chap_file", group = "changes")]
    pub no_chap: bool,
    /// Refuse writes, over iSCSI and NBD
    #[arg(long, value_name = "BOOL", group = "changes")]
    pub read_only: Option<bool>,
    /// Let initiators eject it
    #[arg(long, value_name = "BOOL", group = "changes")]
    pub removable: Option<bool>,
    /// Logical blocks over iSCSI: 512 or 4096
    #[arg(long, value_name = "BYTES", group = "changes")]
    pub block_size: Option<u32>,
    /// Answer writes before they are durable: auto is over NBD alone, as iSCSI initiators go on with a server that was killed, without what they did not flush
    #[arg(long, value_name = "WHERE", group = "changes")]
    pub write_cache: Option<WriteCache>,
}

/// Where writes may be answered before they are durable.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum WriteCache {
    /// Over NBD
    Auto,
    /// Over NBD and iSCSI
    On,
    /// Nowhere
    Off,
}

/// `cairn volume`.
#[derive(Debug, Subcommand)]
pub enum Volume {
    /// Make a volume
    Create {
        /// Its name
        name: String,
        /// Of its block space, such as 100G; with --device, what the devices hold
        #[arg(long, required_unless_present = "device")]
        size: Option<ByteSize>,
        /// A disk or a file; several go one after the other
        #[arg(long, value_name = "PATH")]
        device: Vec<PathBuf>,
        /// A disk or a file for the intent log; without it the log is on the devices of the volume
        #[arg(long, value_name = "PATH")]
        log_device: Option<PathBuf>,
        #[command(flatten)]
        beneath: Box<Beneath>,
    },
    /// All volumes
    List,
    /// One volume
    Show {
        /// Its name
        name: String,
    },
    /// Grow a volume while it is in use
    Grow {
        /// Its name
        name: String,
        /// The new size; what its devices hold when not given
        #[arg(long)]
        size: Option<ByteSize>,
    },
    /// The latency of clients past which transfers of its mirrors back off; without an option, show it and what it does
    Governor {
        /// Its name
        name: String,
        /// 99 of 100 requests are to take no longer, such as 20ms; `off` for no limit
        #[arg(long, value_name = "TIME")]
        p99: Option<Setting>,
    },
    /// Commands to run before and after each snapshot of a volume, such as those that quiesce a database; without options, show them
    Hooks {
        /// Its name
        name: String,
        /// Run by `/bin/sh` before the snapshot, with the volume in CAIRN_VOLUME; without its success there is none. An empty one takes it back
        #[arg(long, value_name = "COMMAND")]
        before: Option<String>,
        /// Run after the snapshot, however it went
        #[arg(long, value_name = "COMMAND")]
        after: Option<String>,
        /// Kill a command after so long, and take it for failed (30s; 10m at most)
        #[arg(long, value_name = "TIME")]
        timeout: Option<Interval>,
    },
    /// Delete a volume with its LUNs and snapshots
    Delete {
        /// Its name
        name: String,
        /// Only say what would be deleted
        #[arg(short = 'n', long)]
        dry_run: bool,
    },
    /// Say where the intent log of a volume is, move it, or go on without one that is lost
    Log {
        /// Its name
        name: String,
        /// Move it to this disk or file
        #[arg(long, value_name = "PATH", conflicts_with_all = ["internal", "discard_lost"])]
        device: Option<PathBuf>,
        /// Move it onto the devices of the volume
        #[arg(long, conflicts_with = "discard_lost")]
        internal: bool,
        /// Open a volume whose log is lost for good or damaged, at its last consistency point: WRITES THAT WERE FLUSHED SINCE THEN ARE LOST
        #[arg(long)]
        discard_lost: bool,
        /// With --discard-lost: only say what would be lost
        #[arg(short = 'n', long, requires = "discard_lost")]
        dry_run: bool,
    },
    /// Put faults under a volume on purpose, to see what happens; without an option, say which there are. They end with the server
    Rehearse(Rehearse),
    /// Compare a volume's trees, maps and tables, while it is in use; ends with a code of its own when it finds something
    Check {
        /// Its name
        name: String,
        /// Read every block of data as well, of the present state and of all snapshots
        #[arg(long)]
        deep: bool,
    },
    /// Read everything that a volume shows from its media, in the background, and compare it with its checksums
    Scrub {
        /// Its name
        name: String,
        /// Bytes a second at most, such as 100M; changes a scrub that runs
        #[arg(long, value_name = "SIZE")]
        rate: Option<ByteSize>,
        /// A pass begins that often, such as 7d; `off` for only on request
        #[arg(long, value_name = "TIME")]
        every: Option<Setting>,
        /// Only say how it is, what it found, and what is damaged now
        #[arg(long, conflicts_with_all = ["rate", "every", "stop", "wait"])]
        status: bool,
        /// End the pass that runs
        #[arg(long, conflicts_with = "wait")]
        stop: bool,
        /// Wait until the pass is over; ends with a code of its own when something is damaged then
        #[arg(long)]
        wait: bool,
    },
}

/// `cairn volume rehearse`. What is not named is off.
#[derive(Debug, Args)]
pub struct Rehearse {
    /// Its name
    pub name: String,
    /// Each batch of device operations takes so much longer, such as 20ms
    #[arg(long, value_name = "TIME")]
    pub delay: Option<Interval>,
    /// One in so many reads of the devices fails
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub fail_reads: Option<u64>,
    /// One in so many writes fails; the first failure makes the volume read-only until the server starts again
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub fail_writes: Option<u64>,
    /// One in so many flushes fails, with the same end
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub fail_flushes: Option<u64>,
    /// A killed server loses what was not flushed: SIGKILL becomes a power cut
    #[arg(long)]
    pub lose_unflushed: bool,
    /// End the rehearsal
    #[arg(long, conflicts_with_all = ["delay", "fail_reads", "fail_writes", "fail_flushes", "lose_unflushed"])]
    pub off: bool,
}

/// `cairn lun`.
#[derive(Debug, Subcommand)]
pub enum Lun {
    /// Make a LUN; it is exported at once
    Create {
        /// VOLUME/LUN
        name: LunName,
        /// Such as 10G
        #[arg(long)]
        size: ByteSize,
    },
    /// The LUNs of a volume, or of all
    List {
        /// Its name
        volume: Option<String>,
    },
    /// Resize a LUN
    Resize {
        /// VOLUME/LUN
        name: LunName,
        /// The new size
        #[arg(long)]
        size: ByteSize,
        /// It may become smaller; what lies past the new end is lost
        #[arg(long)]
        shrink: bool,
    },
    /// Delete a LUN; snapshots keep what they show
    Delete {
        /// VOLUME/LUN
        name: LunName,
        /// Only say what would be deleted
        #[arg(short = 'n', long)]
        dry_run: bool,
    },
}

/// `cairn snapshot`.
#[derive(Debug, Subcommand)]
pub enum Snapshot {
    /// Make a snapshot
    Create {
        /// VOLUME@SNAPSHOT
        #[arg(required_unless_present = "group")]
        name: Option<SnapshotName>,
        /// Of all volumes of this group, at one instant
        #[arg(long, value_name = "GROUP", conflicts_with = "name")]
        group: Option<String>,
    },
    /// The snapshots of a volume, the oldest first
    List {
        /// Its name
        volume: String,
    },
    /// Delete snapshots
    Delete {
        /// VOLUME@SNAPSHOT
        #[arg(required = true)]
        names: Vec<SnapshotName>,
        /// Only say what would be deleted
        #[arg(short = 'n', long)]
        dry_run: bool,
    },
    /// Rename a snapshot
    Rename {
        /// VOLUME@SNAPSHOT
        name: SnapshotName,
        /// The new name, without the volume
        new_name: String,
    },
    /// Hold snapshots: they can't be deleted until they are released
    Hold {
        /// VOLUME@SNAPSHOT
        #[arg(required = true)]
        names: Vec<SnapshotName>,
    },
    /// Let go of snapshots that were held
    Release {
        /// VOLUME@SNAPSHOT
        #[arg(required = true)]
        names: Vec<SnapshotName>,
    },
    /// The files that differ between two snapshots, or between one and now, found from the blocks that these do not share
    Diff(DiffSnapshots),
    /// Snapshots by the clock, and how long they are kept
    #[command(subcommand)]
    Schedule(Schedule),
    /// Bring a volume back to a snapshot; the state before is kept as a snapshot
    Rollback {
        /// VOLUME@SNAPSHOT
        name: SnapshotName,
        /// Only say what would happen
        #[arg(short = 'n', long)]
        dry_run: bool,
    },
}

/// `cairn snapshot schedule`.
#[derive(Debug, Subcommand)]
pub enum Schedule {
    /// Make a schedule, or change the one with this label; its snapshots are called LABEL.TIME
    Set {
        /// The volume
        volume: String,
        /// The label, such as hourly
        label: String,
        /// When, and how long
        #[command(flatten)]
        timing: Timing,
        /// Only say what would be set, and what would be deleted
        #[arg(short = 'n', long)]
        dry_run: bool,
    },
    /// The schedules of a volume, or of all
    List {
        /// The volume
        volume: Option<String>,
    },
    /// End a schedule; its snapshots stay
    Remove {
        /// The volume
        volume: String,
        /// The label
        label: String,
    },
    /// Say which snapshots a schedule would have made and kept some time from now
    Simulate {
        /// When, and how long
        #[command(flatten)]
        timing: Timing,
        /// For how long it runs
        #[arg(long = "for", value_name = "TIME", default_value = "365d")]
        length: Interval,
    },
}

/// When snapshots are made, and how long they are kept.
#[derive(Debug, Args)]
pub struct Timing {
    /// One so often, such as 15m or 1d
    #[arg(long, required_unless_present = "cron")]
    pub every: Option<Interval>,
    /// Or by a cron expression: minute, hour, day of the month, month, day of the week
    #[arg(long, conflicts_with = "every")]
    pub cron: Option<String>,
    /// The time zone of the expression and of hours and days, such as Europe/Berlin; else UTC
    #[arg(long)]
    pub zone: Option<String>,
    /// How long they are kept
    #[command(flatten)]
    pub keep: Keeping,
}

/// Which snapshots are kept.
#[derive(Debug, Args)]
pub struct Keeping {
    /// Keep the newest
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub keep_last: u32,
    /// Keep the newest of each of so many hours
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub keep_hourly: u32,
    /// Of each of so many days
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub keep_daily: u32,
    /// Of each of so many weeks, which begin on Monday
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub keep_weekly: u32,
    /// Of each of so many months
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub keep_monthly: u32,
    /// Of each of so many years. Without any of these, all are kept
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub keep_yearly: u32,
}

/// `cairn mirror drill`.
#[derive(Debug, Args)]
pub struct DrillMirror {
    /// The mirror
    pub name: String,
    /// A command for `sh -c` that ends with 0 when what it finds is good: $CAIRN_DRILL_URI is the first LUN over NBD, $CAIRN_DRILL_URIS are all; without it the one of the last time
    #[arg(long, value_name = "CMD")]
    pub probe: Option<String>,
    /// How long the probe may take (10m)
    #[arg(long, value_name = "TIME")]
    pub timeout: Option<Interval>,
    /// One now, and from now on that often
    #[arg(long, value_name = "TIME")]
    pub every: Option<Interval>,
    /// No more drills of this mirror
    #[arg(long, conflicts_with_all = ["probe", "timeout", "every"])]
    pub forget: bool,
}

/// `cairn clone`.
#[derive(Debug, Subcommand)]
pub enum CloneCommand {
    /// Make a volume that begins as a snapshot; the snapshot stays as it is
    Create {
        /// VOLUME@SNAPSHOT, also of a mirror
        of: SnapshotName,
        /// The name of the new volume
        name: String,
    },
    /// All clones
    List,
    /// Delete a clone and all that was written to it
    Delete {
        /// Its name
        name: String,
        /// Only say what would be deleted
        #[arg(short = 'n', long)]
        dry_run: bool,
    },
}

/// `cairn peer`.
#[derive(Debug, Subcommand)]
pub enum Peer {
    /// On the source: make a token that one destination can use once
    Invite {
        /// Good for this volume only
        #[arg(long, value_name = "VOLUME")]
        volume: Option<String>,
        /// How long it can be used for the first time (15m)
        #[arg(long, value_name = "TIME")]
        expires: Option<Interval>,
        /// This server's mirror address as the destination reaches it
        #[arg(long, value_name = "HOST:PORT")]
        advertise: Option<String>,
    },
    /// Peers and invitations
    List,
    /// Forget a peer or an invitation
    Revoke {
        /// Its id, from `cairn peer list`
        id: String,
    },
}

/// `cairn mirror`.
#[derive(Debug, Subcommand)]
pub enum Mirror {
    /// On the destination: provision a mirror, bring the baseline, install the schedule
    Create {
        /// The source's volume
        volume: String,
        /// What `cairn peer invite` printed on the source
        token: String,
        /// An update begins that often, such as 15m; without it only on request
        #[arg(long, value_name = "TIME")]
        every: Option<Interval>,
        /// Follow all the time, with a lag of seconds, instead of --every or --cron
        #[arg(long, conflicts_with_all = ["every", "cron"])]
        continuous: bool,
        #[command(flatten)]
        when: When,
        /// The lag that is wanted at most, such as 1h (10s with --continuous): past it the mirror is `behind`, on both ends
        #[arg(long, value_name = "TIME")]
        rpo: Option<Interval>,
        /// The source holds no base snapshot, and so pins no space: it goes by its record of changes alone
        #[arg(long)]
        no_hold: bool,
        /// End a transfer that moves no byte for so long (the --mirror-patience of the server)
        #[arg(long, value_name = "TIME")]
        stall: Option<Interval>,
        /// Another name for the volume here
        #[arg(long = "as", value_name = "NAME")]
        name: Option<String>,
        /// A disk or a file for the mirror; several go one after the other
        #[arg(long, value_name = "PATH")]
        device: Vec<PathBuf>,
        /// A disk or a file for the intent log, which the mirror needs once it has failed over
        #[arg(long, value_name = "PATH")]
        log_device: Option<PathBuf>,
        #[command(flatten)]
        beneath: Box<Beneath>,
        #[command(flatten)]
        link: Link,
    },
    /// How mirrors are
    Status {
        /// One mirror; all when not given
        name: Option<String>,
    },
    /// Bring the newest image now; an update that was cut goes on where it was
    Update {
        /// The mirror
        name: String,
        /// When nothing is known to be common, compare checksums, and send what is not the same
        #[arg(long)]
        compare: bool,
        /// It may take so long, and costs the source's clients less for it, as an update of --every does
        #[arg(long, value_name = "TIME")]
        within: Option<Interval>,
        /// Only ask the source how much it would be
        #[arg(short = 'n', long, conflicts_with_all = ["compare", "within"])]
        dry_run: bool,
    },
    /// For monitoring: exit code 0 all is well, 1 look at it, 2 act, 3 not known
    Check {
        /// One mirror; the worst of all when not given
        name: Option<String>,
        /// Judge by this lag instead of the mirror's own
        #[arg(long, value_name = "TIME")]
        rpo: Option<Interval>,
    },
    /// Change what is wanted of a mirror
    Set {
        /// The mirror
        name: String,
        /// An update begins that often; `off` for only on request
        #[arg(long, value_name = "TIME")]
        every: Option<Setting>,
        /// Follow all the time, with a lag of seconds; --every or --cron end it, also with `off`
        #[arg(long, conflicts_with_all = ["every", "cron"])]
        continuous: bool,
        #[command(flatten)]
        when: When,
        /// The lag that is wanted at most; `off` for none
        #[arg(long, value_name = "TIME")]
        rpo: Option<Setting>,
        /// End a transfer that moves no byte for so long; `off` for the --mirror-patience of the server
        #[arg(long, value_name = "TIME")]
        stall: Option<Setting>,
        /// The source holds the base of the next update
        #[arg(long, conflicts_with = "no_hold")]
        hold: bool,
        /// The source holds none
        #[arg(long)]
        no_hold: bool,
        #[command(flatten)]
        link: Link,
    },
    /// Follow another server that has the same volume or a mirror of it, without a new baseline: the source of its source, when the server between is gone
    Repoint {
        /// The mirror
        name: String,
        /// What `cairn peer invite` printed on the other server
        token: String,
        /// What the volume is called there
        #[arg(long, value_name = "NAME")]
        volume: Option<String>,
    },
    /// End a running update and begin no more
    Pause {
        /// The mirror
        name: String,
    },
    /// Go on after a pause
    Resume {
        /// The mirror
        name: String,
    },
    /// Bring a mirror over a history back to what it showed at an instant, and pause it: away from a mistake that it has copied
    Rewind {
        /// The mirror
        name: String,
        /// Which instant: each image that an update brought has a mark, see `cairn history status`
        #[command(flatten)]
        at: InstantArgument,
        /// Only say what would happen
        #[arg(short = 'n', long)]
        dry_run: bool,
    },
    /// End a running update; returns when it is over. What it brought stays for the next one
    Abort {
        /// The mirror
        name: String,
    },
    /// Prove that a mirror can be recovered from: serve a clone of its newest image, run a probe against it, record how long it took
    Drill(DrillMirror),
    /// Compare a mirror with its source, region by region, and mend what is damaged on either side from the other
    Verify {
        /// The mirror
        name: String,
        /// Both sides read every block of data from their media as well
        #[arg(long)]
        scrub: bool,
        /// With --scrub: bytes a second that each side reads at most (100M)
        #[arg(long, value_name = "SIZE", requires = "scrub")]
        rate: Option<ByteSize>,
    },
    /// On the source: let go of what is kept for a mirror that will not come again
    Forget {
        /// The volume
        volume: String,
        /// The mirror, as `cairn status --json` names it among followers and leftovers
        name: String,
        /// Only say what would be let go
        #[arg(short = 'n', long)]
        dry_run: bool,
    },
    /// Make this side follow the other one (again), after both were written to; run it on the side that is to be the destination. Only what diverged is sent
    Resync {
        /// The volume here
        name: String,
        #[command(flatten)]
        decision: Decision,
    },
    /// Give the role of the source back to this side: resync, and then the planned change of roles
    Failback {
        /// The volume here
        name: String,
        #[command(flatten)]
        decision: Decision,
    },
    /// On the source: let one mirror take over with `reverse` or `failback`
    AllowReverse {
        /// The volume
        volume: String,
        /// The mirror as `cairn status --json` names it, or how that begins
        #[arg(long, value_name = "NAME")]
        mirror: Option<String>,
        /// Within this time
        #[arg(long = "for", value_name = "TIME", default_value = "15m")]
        length: Interval,
        /// No longer
        #[arg(long, conflicts_with = "length")]
        off: bool,
    },
    /// Lift the locks of a mirror's snapshots for a while, with its lock key
    Unlock {
        /// The mirror
        name: String,
        /// The file that was named when the lock key was set
        #[arg(long, value_name = "FILE")]
        lock_key: PathBuf,
        /// For so long
        #[arg(long = "for", value_name = "TIME", default_value = "15m")]
        length: Interval,
        /// Put the locks in force again
        #[arg(long, conflicts_with = "length")]
        off: bool,
    },
    /// Change the roles without loss: the source stops, its last changes are brought, and this side, the destination, takes writes
    Reverse {
        /// The mirror
        name: String,
        /// Only say how far behind it is
        #[arg(short = 'n', long)]
        dry_run: bool,
    },
    /// Make the mirror an ordinary volume; the source is not asked
    #[command(visible_aliases = ["promote", "break"])]
    Failover {
        /// The mirror
        name: String,
        /// Only say what would be lost
        #[arg(short = 'n', long)]
        dry_run: bool,
    },
    /// End a mirror and delete its volume
    Delete {
        /// The mirror
        name: String,
        /// Only say what would be deleted
        #[arg(short = 'n', long)]
        dry_run: bool,
    },
}

/// What becomes of what only this side has.
#[derive(Debug, Args)]
pub struct Decision {
    /// Keep it in this new file of the server's machine: an image dump against the snapshot that both sides have, which `cairn image` opens
    #[arg(long, value_name = "FILE", conflicts_with = "discard_divergent")]
    pub spill: Option<PathBuf>,
    /// Drop it
    #[arg(long)]
    pub discard_divergent: bool,
    /// When nothing is known to be common, compare checksums, and send what is not the same
    #[arg(long)]
    pub compare: bool,
    /// Where the other side is, when it has moved or never said so
    #[arg(long, value_name = "HOST:PORT")]
    pub from: Option<String>,
    /// Which one, when several mirrors of it were failed over: its name, as `cairn status` tells it
    #[arg(long, value_name = "NAME")]
    pub mirror: Option<String>,
    /// Only say what would be given up
    #[arg(short = 'n', long)]
    pub dry_run: bool,
}

/// When a mirror is updated, and how long what it has stays.
#[derive(Debug, Clone, Args)]
pub struct When {
    /// Updates by a cron expression instead of --every: minute, hour, day of the month, month, day of the week; `off` for none
    #[arg(long, value_name = "EXPRESSION")]
    pub cron: Option<String>,
    /// The time zone of the expression and of the hours of --limit, such as Europe/Berlin; UTC when not given
    #[arg(long, value_name = "ZONE")]
    pub zone: Option<String>,
    /// Keep each snapshot for so long, such as 30d; `off` for later ones
    ///
    /// Neither the source nor a command here deletes a snapshot before.
    #[arg(long, value_name = "TIME")]
    pub lock: Option<Setting>,
    /// A file with a secret that lifts locks before their time
    #[arg(long, value_name = "FILE")]
    pub lock_key: Option<PathBuf>,
}

/// How the link of a mirror to its source is used.
#[derive(Debug, Clone, Args)]
pub struct Link {
    /// Bytes a second at most, also of a running transfer: `50M`, `off`, or by the time of day, as in `100M, mon-fri 08:00-18:00=10M`
    #[arg(long, value_name = "RATE")]
    pub limit: Option<String>,
    /// Connections of a transfer, 1 to 16: several for long links, whose round trips one connection's window does not cover
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16))]
    pub connections: Option<u32>,
    /// Pack what is sent with zstd: while measuring says that it is faster, always, or never
    #[arg(long, value_name = "WHEN")]
    pub compress: Option<Compress>,
    /// Updates of --every take up to half of the interval, five minutes at most and within --rpo, for the sake of the source's clients; `off` for as fast as they go
    #[arg(long, value_name = "on|off", value_parser = clap::builder::BoolishValueParser::new())]
    pub spread: Option<bool>,
}

/// When to pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Compress {
    /// While it is faster, by measuring
    Auto,
    /// Where it gets smaller
    Always,
    /// As it is
    Never,
}

/// A time, or `off`.
#[derive(Debug, Clone, Copy)]
pub struct Setting(pub Option<Interval>);

impl FromStr for Setting {
    type Err = <Interval as FromStr>::Err;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "off" { Ok(Self(None)) } else { text.parse().map(|interval| Self(Some(interval))) }
    }
}

/// `VOLUME/LUN`.
#[derive(Debug, Clone)]
pub struct LunName {
    /// Before the `/`.
    pub volume: String,
    /// After it.
    pub lun: String,
}

/// `VOLUME@SNAPSHOT`.
#[derive(Debug, Clone)]
pub struct SnapshotName {
    /// Before the `@`.
    pub volume: String,
    /// After it.
    pub snapshot: String,
}

/// The text is not of that form.
#[derive(Debug, Clone, Copy, thiserror::Error)]
pub enum InvalidName {
    /// Of a LUN.
    #[error("a LUN is named VOLUME/LUN, such as vol0/db")]
    Lun,
    /// Of a snapshot.
    #[error("a snapshot is named VOLUME@SNAPSHOT, such as vol0@before-upgrade")]
    Snapshot,
    /// Of a tree of files.
    #[error("files are named VOLUME, VOLUME@SNAPSHOT or VOLUME@SNAPSHOT:/PATH, such as vol0@nightly:/home")]
    Tree,
}

fn split(text: &str, at: char) -> Option<(String, String)> {
    let (left, right) = text.split_once(at)?;
    let plain = |part: &str| !part.is_empty() && !part.contains(['/', '@', '?', '#', '%']);
    (plain(left) && plain(right)).then(|| (left.to_owned(), right.to_owned()))
}

impl FromStr for LunName {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        split(text, '/').map(|(volume, lun)| LunName { volume, lun }).ok_or(InvalidName::Lun)
    }
}

impl FromStr for SnapshotName {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        split(text, '@')
            .map(|(volume, snapshot)| SnapshotName { volume, snapshot })
            .ok_or(InvalidName::Snapshot)
    }
}

impl std::fmt::Display for LunName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.volume, self.lun)
    }
}

impl std::fmt::Display for SnapshotName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}@{}", self.volume, self.snapshot)
    }
}
