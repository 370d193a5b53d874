//! The command line: commands, flags and the names that they take.

use std::path::PathBuf;
use std::str::FromStr;

use cairn_api::Address;
use cairn_base::{ByteSize, Interval};
use clap::{Args, Parser, Subcommand, ValueEnum};

mod access;
mod bucket;
mod csi;
mod device;
mod files;
mod fleet;
mod group;
mod image;
mod job;
mod key;
mod mirror;
mod notify;
mod oidc;
mod restore;
mod service;
mod smb;
mod state;
mod trace;
mod web;

pub use access::{Audit, RoleName, Tls, Token};
pub use bucket::{AddBucket, Bucket, BucketKey};
pub use csi::{AttachmentName, Csi, socket};
pub use device::{Beneath, Device, Enable, History, InstantArgument, WindowArguments};
pub use files::{CountLimit, DiffSnapshots, Dump, Mount, Quota, SetQuota, SizeLimit, TreeName, Unmount};
pub use fleet::Fleet;
pub use group::{Group, SetGroup};
pub use image::{
    DumpImage, DumpName, ExtractImage, Image, MountImage, PruneImages, RestoreImage, is_in_bucket, split_path,
};
pub use job::Job;
pub use key::Key;
pub use mirror::{
    Compress, Decision, DrillMirror, FromVolume, IntoBucket, KeepImages, Link, Mirror, RestoreMirror,
    When as MirrorWhen,
};
pub use notify::{AddNotify, Notify, NotifyKind, NotifySettings, NotifySeverity, NotifyTls, SetNotify};
pub use oidc::{Oidc, OidcRule, SetOidc};
pub use restore::Restore;
pub use service::{ConfigFile, InstallService, Serve, Service};
pub use smb::{Smb, SmbConfig};
pub use state::StateFile;
pub use trace::{
    AnalyseTrace, GenerateTrace, ImportTrace, PlacementName, PlanTrace, RecordTrace, ReplayTrace, Trace,
    TraceInput, Workload,
};
pub use web::Web;

/// Serve volumes that keep their past, and mirror them to another server
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

/// Flags of every command: behind its own ones in its help, among which they would be sorted
/// without a heading.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of all commands")]
pub struct Global {
    /// Use the server with this data directory
    #[arg(long, global = true, value_name = "DIR", env = "CAIRN_DATA")]
    pub data: Option<PathBuf>,
    /// Use the server at HOST:PORT (needs --token-file) or unix:PATH
    #[arg(long, global = true, value_name = "A", env = "CAIRN_SERVER")]
    pub server: Option<Address>,
    /// Read the token for --server HOST:PORT from this file
    #[arg(long, global = true, value_name = "FILE", env = "CAIRN_TOKEN_FILE")]
    pub token_file: Option<PathBuf>,
    /// Use TLS with --server HOST:PORT; trust the root in this file
    #[arg(long, global = true, value_name = "FILE", env = "CAIRN_TLS_ROOT")]
    pub tls_root: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true)]
    pub json: bool,
    /// Print errors only
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Print more details; repeat for debug output
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Delete and overwrite without asking
    #[arg(long, global = true)]
    pub yes: bool,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a demonstration: mirror, disaster, failover and proof
    Demo(Demo),
    /// Run a server
    Serve(Serve),
    /// Check the configuration file of a server; works without a server
    #[command(subcommand)]
    Config(ConfigFile),
    /// Manage the server as a systemd service
    #[command(subcommand)]
    Service(Service),
    /// Run the driver for volumes of Kubernetes (CSI)
    Csi(Csi),
    /// Restore files from a BSD dump; works without a server
    ///
    /// The dump comes from Cairn or from Linux `dump`.
    Restore(Restore),
    /// Show volumes, exports, mirrors, and problems with their remedies
    Status,
    /// Open the web page of the server on this machine
    Web(Web),
    /// Show clients, mirrors and background work live; `q` quits
    Top {
        /// Print one screen and exit; default without a terminal
        #[arg(long)]
        once: bool,
    },
    /// List and cancel background work: checks, dumps, updates
    #[command(subcommand)]
    Job(Job),
    /// Print completions for a shell
    ///
    /// Write them to the completion file of the shell, or run `source <(cairn completions bash)`.
    Completions {
        /// Shell
        shell: clap_complete::Shell,
    },
    /// Write manual pages of all commands into a directory
    Man {
        /// Directory, such as /usr/local/share/man/man1
        dir: PathBuf,
    },
    /// Back up the server's own state; repair unreadable state files
    #[command(subcommand)]
    State(StateFile),
    /// Manage volumes
    #[command(subcommand)]
    Volume(Volume),
    /// Manage LUNs: disks in a volume, exported over NBD and iSCSI
    #[command(subcommand)]
    Lun(Lun),
    /// Show and change access to LUNs and adopted devices
    #[command(subcommand)]
    Export(Export),
    /// Mount the files of a volume or snapshot on the server's machine
    ///
    /// Without arguments, lists mounts.
    Mount(Mount),
    /// Unmount files of a volume
    #[command(visible_alias = "umount")]
    Unmount(Unmount),
    /// Serve mounted files to Windows and macOS through Samba
    #[command(subcommand)]
    Smb(Smb),
    /// Limit the space and the files of directory trees
    #[command(subcommand)]
    Quota(Quota),
    /// Dump files of a volume for `cairn restore` and Linux `restore`
    Dump(Dump),
    /// Manage snapshots
    #[command(subcommand)]
    Snapshot(Snapshot),
    /// Adopt existing disks and images in place, with a history
    #[command(subcommand)]
    Device(Device),
    /// Use the history of a device or a volume: view, clone, revert
    #[command(subcommand)]
    History(History),
    /// Snapshot and recover several volumes at one instant
    #[command(subcommand)]
    Group(Group),
    /// Manage clones: writable copies that share the blocks of a snapshot
    ///
    /// `clone create` makes one from a snapshot of a volume. `history clone` makes one from an
    /// instant in the history of a device.
    #[command(subcommand)]
    Clone(CloneCommand),
    /// Manage servers that may mirror volumes of this server
    #[command(subcommand)]
    Peer(Peer),
    /// Mirror volumes of other servers, and change roles
    #[command(subcommand)]
    Mirror(Mirror),
    /// Dump volumes with their snapshots into files, and restore them
    #[command(subcommand)]
    Image(Image),
    /// Manage tokens: access to the API over TCP, with a role
    #[command(subcommand)]
    Token(Token),
    /// Let people sign in on the web page by an identity provider
    #[command(subcommand)]
    Oidc(Oidc),
    /// Show certificates and the root for clients; issue certificates
    #[command(subcommand)]
    Tls(Tls),
    /// Show the audit log: changes and refused tries, by whom
    #[command(subcommand)]
    Audit(Audit),
    /// Manage buckets: object stores that the server may use
    #[command(subcommand)]
    Bucket(Bucket),
    /// Create and show key files, which encrypted buckets need
    #[command(subcommand)]
    Key(Key),
    /// Send problems to people: mail, webhooks, commands and pings
    #[command(subcommand)]
    Notify(Notify),
    /// Show other servers beside this one, the worst first
    #[command(subcommand)]
    Fleet(Fleet),
    /// Record, import, analyse, replay and generate traces of devices
    #[command(subcommand)]
    Trace(Trace),
    /// Estimate mirror traffic and history space; suggest settings
    ///
    /// Estimates the link traffic for each mirror lag, and the cheapest placement and the space of
    /// a history. Recommends one configuration.
    Plan(PlanTrace),
}

/// `cairn demo`.
#[derive(Debug, Args)]
pub struct Demo {
    /// Leave both servers running, and suggest next steps
    #[arg(long)]
    pub keep: bool,
    /// Copy at most this much of real files
    #[arg(long, value_name = "SIZE", default_value = "300M")]
    pub budget: ByteSize,
}

/// `cairn export`.
#[derive(Debug, Subcommand)]
pub enum Export {
    /// List exports, their allowed clients and their sessions
    List,
    /// Show one export: its access, addresses and sessions
    Show {
        /// VOLUME/LUN, VOLUME@SNAPSHOT/LUN, an adopted DEVICE, or VOLUME:/PATH
        name: String,
    },
    /// Change access to a disk, or export files over NFS
    ///
    /// A change of a disk closes its sessions.
    Set(SetExport),
}

/// Options that concern disks alone.
const OF_DISKS: [&str; 8] = [
    "initiator",
    "any_initiator",
    "chap_file",
    "no_chap",
    "removable",
    "no_removable",
    "block_size",
    "write_cache",
];

/// `cairn export set`.
#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("changes").required(true).multiple(true)))]
pub struct SetExport {
    /// VOLUME/LUN, an adopted DEVICE, or VOLUME:/PATH for NFS
    pub name: String,
    /// Export the directory VOLUME:/PATH over NFS, or change its export
    ///
    /// VOLUME@SNAPSHOT:/PATH exports the past. The server must listen: `cairn serve --nfs`.
    #[arg(long, group = "changes", conflicts_with_all = OF_DISKS)]
    pub nfs: bool,
    /// End the export of VOLUME:/PATH over NFS
    #[arg(long, group = "changes", conflicts_with_all = ["nfs", "network", "any_network", "read_only", "no_read_only"])]
    pub no_nfs: bool,
    /// Make root of an NFS client an anonymous user (default)
    #[arg(long, group = "squash", requires = "nfs")]
    pub root_squash: bool,
    /// Let root of an NFS client be root
    #[arg(long, group = "squash", requires = "nfs")]
    pub no_root_squash: bool,
    /// Make all users of an NFS client anonymous
    #[arg(long, group = "squash", requires = "nfs")]
    pub all_squash: bool,
    /// Allow only this iSCSI initiator; can be repeated
    #[arg(long, value_name = "IQN", group = "changes")]
    pub initiator: Vec<String>,
    /// Allow any initiator name
    #[arg(long, conflicts_with = "initiator", group = "changes")]
    pub any_initiator: bool,
    /// Allow only this address or network, such as 10.0.0.0/24
    ///
    /// Can be repeated.
    #[arg(long, value_name = "NET", group = "changes")]
    pub network: Vec<String>,
    /// Allow clients at any address
    #[arg(long, conflicts_with = "network", group = "changes")]
    pub any_network: bool,
    /// Require CHAP with the secrets in this file
    ///
    /// The file has the line `initiator NAME SECRET`, and for mutual CHAP the line `target NAME
    /// SECRET`.
    #[arg(long, value_name = "FILE", group = "changes")]
    pub chap_file: Option<PathBuf>,
    /// Stop requiring CHAP
    #[arg(long, conflicts_with = "chap_file", group = "changes")]
    pub no_chap: bool,
    /// Set the rule for NBD: default, open, unix, off, a network, cert:NAME
    ///
    /// Repeat it for several networks and certificates; a client must match one of each. A
    /// certificate is named as `cairn tls create` named it, or as cert:sha256:FINGERPRINT. Default:
    /// a LUN with initiators or CHAP is not offered over TCP, and others to any client.
    #[arg(long, value_name = "RULE", group = "changes")]
    pub nbd: Vec<String>,
    /// Refuse writes over iSCSI and NBD, or changes over NFS
    #[arg(long, value_name = "true|false", hide_possible_values = true, num_args = 0..=1, default_missing_value = "true", group = "changes")]
    pub read_only: Option<bool>,
    /// Allow writes
    #[arg(long, conflicts_with = "read_only", group = "changes")]
    pub no_read_only: bool,
    /// Let initiators eject the disk
    #[arg(long, value_name = "true|false", hide_possible_values = true, num_args = 0..=1, default_missing_value = "true", group = "changes")]
    pub removable: Option<bool>,
    /// Prevent initiators from ejecting the disk
    #[arg(long, conflicts_with = "removable", group = "changes")]
    pub no_removable: bool,
    /// Set the logical block size over iSCSI: 512 or 4096
    #[arg(long, value_name = "BYTES", group = "changes")]
    pub block_size: Option<u32>,
    /// Choose where writes are acknowledged before they are durable
    ///
    /// `auto` means over NBD only: after a crash of the server, iSCSI initiators continue without
    /// the writes that they had not flushed.
    #[arg(long, value_name = "WHERE", group = "changes")]
    pub write_cache: Option<WriteCache>,
}

/// Where writes may be answered before they are durable.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum WriteCache {
    /// Over NBD only
    Auto,
    /// Over NBD and iSCSI
    On,
    /// Nowhere
    Off,
}

/// The cache of a volume whose home is a bucket.
#[derive(Debug, Args)]
#[command(next_help_heading = "Bucket")]
pub struct Cache {
    /// Folder for the cache, on a local disk (default: data directory)
    #[arg(long, value_name = "PATH", requires = "cache_size")]
    pub cache_disk: Option<PathBuf>,
    /// Keep at most so many bytes of blocks here, at least 64M
    #[arg(long, value_name = "SIZE")]
    pub cache_size: Option<ByteSize>,
    /// Bring each image into the bucket within this time (default 5s)
    #[arg(long, value_name = "TIME", requires = "cache_size")]
    pub lag: Option<Interval>,
}

/// `cairn volume`.
#[derive(Debug, Subcommand)]
pub enum Volume {
    /// Create a volume
    Create {
        /// Name of the volume
        name: String,
        /// Size of the volume, such as 100G
        ///
        /// Default with --device: the capacity of the devices.
        #[arg(long, required_unless_present = "device")]
        size: Option<ByteSize>,
        /// Store the volume on this disk or file; repeat to concatenate
        #[arg(long, value_name = "PATH")]
        device: Vec<PathBuf>,
        /// Keep the intent log on this disk or file
        ///
        /// Default: the devices of the volume.
        #[arg(long, value_name = "PATH")]
        log_device: Option<PathBuf>,
        /// Schedule no snapshots
        ///
        /// By default it keeps six snapshots, one every four hours, and two daily ones.
        #[arg(long)]
        no_schedule: bool,
        #[command(flatten)]
        beneath: Box<Beneath>,
        /// Keep the blocks in this bucket, and only a cache of them here
        ///
        /// The volume may be larger than any local disk. It needs --cache-size.
        #[arg(help_heading = "Bucket", long, value_name = "BUCKET:", requires = "cache_size", conflicts_with_all = ["device", "log_device", "history"])]
        bucket: Option<String>,
        #[command(flatten)]
        cache: Cache,
    },
    /// Open a volume from its images in a bucket
    ///
    /// The volume serves at once, whatever its size. Blocks that are not local yet are read from
    /// the bucket. The others follow in the background. Without --read-only, this server takes the
    /// volume over: its former owner writes nothing more to the bucket.
    Open {
        /// Bucket and volume, such as `offsite:vol0`
        ///
        /// The volume has the name that its owner gave it, or its id or the beginning of that.
        #[arg(value_name = "BUCKET:VOLUME")]
        from: String,
        /// Name of the volume on this server (default: as at its owner)
        #[arg(long = "as", value_name = "NAME")]
        name: Option<String>,
        /// Open this image: its id, number or snapshot (default: newest)
        ///
        /// An image that is not the newest needs --read-only.
        #[arg(long, value_name = "IMAGE")]
        at: Option<String>,
        /// Only show the image; its owner continues
        #[arg(long)]
        read_only: bool,
        /// Store local blocks on this disk or file; repeat to concatenate
        ///
        /// Default: a sparse file in the data directory.
        #[arg(long, value_name = "PATH")]
        device: Vec<PathBuf>,
        /// Fetch so many bytes per second in the background (default 64M)
        ///
        /// With 0, only blocks that are read are fetched.
        #[arg(long, value_name = "SIZE")]
        fill_rate: Option<ByteSize>,
        /// Grow the volume to this size (default: as at its owner)
        ///
        /// A volume on a cache grows only so.
        #[arg(long)]
        size: Option<ByteSize>,
        #[command(flatten)]
        cache: Cache,
    },
    /// List volumes
    List,
    /// Show a volume
    Show {
        /// Name of the volume
        name: String,
    },
    /// Grow a volume while it is in use
    Grow {
        /// Name of the volume
        name: String,
        /// New size; default: the capacity of the devices
        #[arg(long)]
        size: Option<ByteSize>,
    },
    /// Show or set the client latency that slows down mirror transfers
    ///
    /// Without an option, shows the limit and its current effect.
    Governor {
        /// Name of the volume
        name: String,
        /// Limit the latency of 99 % of requests, such as 20ms; or `off`
        #[arg(long, value_name = "TIME")]
        p99: Option<Setting>,
    },
    /// Show or set commands to run before and after each snapshot
    ///
    /// For example, commands that quiesce a database. Without options, shows them.
    Hooks {
        /// Name of the volume
        name: String,
        /// Run this command before each snapshot; "" removes it
        ///
        /// `/bin/sh` runs it, with the name of the volume in CAIRN_VOLUME. If it fails, no snapshot
        /// is made.
        #[arg(long, value_name = "COMMAND")]
        before: Option<String>,
        /// Run this command after each snapshot, successful or not
        #[arg(long, value_name = "COMMAND")]
        after: Option<String>,
        /// Kill a command after this time (default 30s, at most 10m)
        ///
        /// The command then counts as failed.
        #[arg(long, value_name = "TIME")]
        timeout: Option<Interval>,
    },
    /// Delete a volume with its LUNs and snapshots
    Delete {
        /// Name of the volume
        name: String,
        /// Only show what would be deleted
        #[arg(short = 'n', long)]
        dry_run: bool,
    },
    /// Show or move the intent log of a volume, or discard a lost one
    Log {
        /// Name of the volume
        name: String,
        /// Move the log to this disk or file
        #[arg(long, value_name = "PATH", conflicts_with_all = ["internal", "discard_lost"])]
        device: Option<PathBuf>,
        /// Move the log to the devices of the volume
        #[arg(long, conflicts_with = "discard_lost")]
        internal: bool,
        /// Open the volume without its log; FLUSHED WRITES ARE LOST
        ///
        /// For a log that is damaged or lost for good. The volume opens at its last consistency
        /// point. WRITES FLUSHED SINCE THEN ARE LOST.
        #[arg(long)]
        discard_lost: bool,
        /// With --discard-lost: only show what would be lost
        #[arg(short = 'n', long, requires = "discard_lost")]
        dry_run: bool,
    },
    /// Inject device faults under a volume, for rehearsals
    ///
    /// Without an option, shows the faults that are set. They end when the server stops.
    Rehearse(Rehearse),
    /// Check the metadata of a volume while it is in use
    ///
    /// Compares its trees, maps and tables. The exit code tells whether it found damage.
    Check {
        /// Name of the volume
        name: String,
        /// Also read every data block, including those of snapshots
        #[arg(long)]
        deep: bool,
    },
    /// Show the scrub of a volume, or start one with --start
    ///
    /// A scrub reads every block of the volume and its snapshots from the media, in the background,
    /// and verifies all checksums. Without an option, shows progress, findings and present damage.
    Scrub {
        /// Name of the volume
        name: String,
        /// Start a pass; a running pass continues
        #[arg(long, conflicts_with_all = ["status", "stop"])]
        start: bool,
        /// Limit the bytes per second, such as 100M
        ///
        /// Starts a pass. Also applies to a running pass.
        #[arg(long, value_name = "SIZE")]
        rate: Option<ByteSize>,
        /// Start a pass this often, such as 7d; `off`: only on request
        #[arg(long, value_name = "TIME")]
        every: Option<Setting>,
        /// Accepted for compatibility; this is what happens without an option
        #[arg(long, hide = true, conflicts_with_all = ["rate", "every", "stop", "wait"])]
        status: bool,
        /// Stop the running pass
        #[arg(long, conflicts_with = "wait")]
        stop: bool,
        /// Wait for the end of the pass; starts one unless one runs
        ///
        /// The exit code tells whether anything is damaged then.
        #[arg(long)]
        wait: bool,
    },
}

/// `cairn volume rehearse`. What is not named is off.
#[derive(Debug, Args)]
pub struct Rehearse {
    /// Name of the volume
    pub name: String,
    /// Delay each batch of device operations, such as by 20ms
    #[arg(long, value_name = "TIME")]
    pub delay: Option<Interval>,
    /// Fail one in N reads of the devices
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub fail_reads: Option<u64>,
    /// Fail one in N writes
    ///
    /// The first failure makes the volume read-only until the server restarts.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub fail_writes: Option<u64>,
    /// Fail one in N flushes
    ///
    /// The first failure makes the volume read-only until the server restarts.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub fail_flushes: Option<u64>,
    /// Lose unflushed writes when the server is killed
    ///
    /// SIGKILL then has the effect of a power cut.
    #[arg(long)]
    pub lose_unflushed: bool,
    /// Remove all faults
    #[arg(long, conflicts_with_all = ["delay", "fail_reads", "fail_writes", "fail_flushes", "lose_unflushed"])]
    pub off: bool,
}

/// `cairn lun`.
#[derive(Debug, Subcommand)]
pub enum Lun {
    /// Create a LUN and export it
    Create {
        /// VOLUME/LUN
        name: LunName,
        /// Size, such as 10G
        #[arg(long)]
        size: ByteSize,
    },
    /// List the LUNs of one volume or of all volumes
    List {
        /// Name of the volume
        volume: Option<String>,
    },
    /// Show a LUN and the addresses by which clients reach it
    Show {
        /// VOLUME/LUN
        name: LunName,
    },
    /// Resize a LUN
    #[command(alias = "set")]
    Resize {
        /// VOLUME/LUN
        name: LunName,
        /// New size
        #[arg(long)]
        size: ByteSize,
        /// Allow a smaller size; data beyond the new end is lost
        #[arg(long)]
        shrink: bool,
    },
    /// Delete a LUN; snapshots keep their copies
    Delete {
        /// VOLUME/LUN
        name: LunName,
        /// Only show what would be deleted
        #[arg(short = 'n', long)]
        dry_run: bool,
    },
}

/// `cairn snapshot`.
#[derive(Debug, Subcommand)]
pub enum Snapshot {
    /// Create a snapshot
    Create {
        /// VOLUME@SNAPSHOT
        #[arg(required_unless_present = "group")]
        name: Option<SnapshotName>,
        /// Snapshot all volumes of this group at one instant
        #[arg(long, value_name = "GROUP", conflicts_with = "name")]
        group: Option<String>,
    },
    /// List the snapshots of a volume, oldest first
    List {
        /// Name of the volume
        volume: String,
    },
    /// Show a snapshot
    Show {
        /// VOLUME@SNAPSHOT
        name: SnapshotName,
    },
    /// Delete snapshots
    Delete {
        /// VOLUME@SNAPSHOT
        #[arg(required = true)]
        names: Vec<SnapshotName>,
        /// Only show what would be deleted
        #[arg(short = 'n', long)]
        dry_run: bool,
    },
    /// Rename a snapshot
    Rename {
        /// VOLUME@SNAPSHOT
        name: SnapshotName,
        /// New name, without the volume
        new_name: String,
    },
    /// Hold snapshots: prevent deletion until they are released
    Hold {
        /// VOLUME@SNAPSHOT
        #[arg(required = true)]
        names: Vec<SnapshotName>,
    },
    /// Release held snapshots
    Release {
        /// VOLUME@SNAPSHOT
        #[arg(required = true)]
        names: Vec<SnapshotName>,
    },
    /// List files that differ between two snapshots
    ///
    /// With one snapshot, compares it with the present state. Compares only blocks that the two do
    /// not share.
    Diff(DiffSnapshots),
    /// Make snapshots by schedule, and expire them
    #[command(subcommand)]
    Schedule(Schedule),
    /// Roll a volume back to a snapshot; also called `snapshot revert`
    ///
    /// Keeps the state before as another snapshot. `cairn history revert` reverts to any instant.
    #[command(alias = "revert")]
    Rollback {
        /// VOLUME@SNAPSHOT, or VOLUME with --to
        name: DumpName,
        /// Snapshot to return to, named without its volume
        #[arg(long, value_name = "SNAPSHOT")]
        to: Option<String>,
        /// Only show what would happen
        #[arg(short = 'n', long)]
        dry_run: bool,
    },
}

/// `cairn snapshot schedule`.
#[derive(Debug, Subcommand)]
pub enum Schedule {
    /// Create or change a schedule; its snapshots are named LABEL.TIME
    #[command(alias = "create")]
    Set {
        /// Name of the volume
        volume: String,
        /// Label, such as hourly
        label: String,
        /// When, and how long
        #[command(flatten)]
        timing: Timing,
        /// Only show the schedule, and what would be deleted
        #[arg(short = 'n', long)]
        dry_run: bool,
    },
    /// List the schedules of one volume or of all volumes
    List {
        /// Name of the volume
        volume: Option<String>,
    },
    /// Show one schedule
    Show {
        /// Name of the volume
        volume: String,
        /// Label of the schedule
        label: String,
    },
    /// Remove a schedule; its snapshots stay
    #[command(aliases = ["delete", "rm"])]
    Remove {
        /// Name of the volume
        volume: String,
        /// Label of the schedule
        label: String,
    },
    /// Show the snapshots that a schedule would make and keep
    Simulate {
        /// When, and how long
        #[command(flatten)]
        timing: Timing,
        /// Simulate this length of time
        #[arg(long = "for", value_name = "TIME", default_value = "365d")]
        length: Interval,
    },
}

/// When snapshots are made, and how long they are kept.
#[derive(Debug, Args)]
pub struct Timing {
    /// Make one this often, such as 15m or 1d
    #[arg(long, required_unless_present = "cron")]
    pub every: Option<Interval>,
    /// Make them by a cron expression, such as `30 2 * * 1-5`
    ///
    /// Five fields: minute, hour, day of the month, month, day of the week.
    #[arg(long, conflicts_with = "every")]
    pub cron: Option<String>,
    /// Time zone of times and days, such as Europe/Berlin (default UTC)
    #[arg(long)]
    pub zone: Option<String>,
    /// How long they are kept
    #[command(flatten)]
    pub keep: Keeping,
}

/// Which snapshots are kept.
#[derive(Debug, Args)]
pub struct Keeping {
    /// Keep the newest N
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub keep_last: u32,
    /// Keep the newest of each of the last N hours
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub keep_hourly: u32,
    /// Keep the newest of each of the last N days
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub keep_daily: u32,
    /// Keep the newest of each of the last N weeks, from Monday
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub keep_weekly: u32,
    /// Keep the newest of each of the last N months
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub keep_monthly: u32,
    /// Keep the newest of each of the last N years
    ///
    /// Without any --keep option, all snapshots are kept.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub keep_yearly: u32,
}

/// `cairn clone`.
#[derive(Debug, Subcommand)]
pub enum CloneCommand {
    /// Create a writable volume from a snapshot; shares its blocks
    Create {
        /// VOLUME@SNAPSHOT; a snapshot of a mirror is allowed
        of: SnapshotName,
        /// Name of the new volume
        name: String,
    },
    /// List clones
    List,
    /// Show a clone
    Show {
        /// Name of the clone
        name: String,
    },
    /// Delete a clone and everything written to it
    Delete {
        /// Name of the clone
        name: String,
        /// Only show what would be deleted
        #[arg(short = 'n', long)]
        dry_run: bool,
    },
}

/// `cairn peer`.
#[derive(Debug, Subcommand)]
pub enum Peer {
    /// On the source: make a token for one destination
    #[command(alias = "create")]
    Invite {
        /// Name of the destination's server; `cairn peer list` shows it
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
        /// Restrict the token to this volume
        #[arg(long, value_name = "VOLUME")]
        volume: Option<String>,
        /// Time in which the token can be used (default 15m)
        #[arg(long, value_name = "TIME")]
        expires: Option<Interval>,
        /// Address by which the destination reaches this server
        #[arg(long, value_name = "HOST:PORT")]
        advertise: Option<String>,
    },
    /// List peers and invitations
    List,
    /// Show a peer with its certificate
    Show {
        /// Name or id of the peer, from `cairn peer list`
        id: String,
    },
    /// Rename a peer
    Rename {
        /// Present name or id of the peer
        id: String,
        /// New name
        new_name: String,
    },
    /// Revoke a peer or an invitation
    #[command(aliases = ["delete", "rm"])]
    Revoke {
        /// Name or id of the peer, from `cairn peer list`
        id: String,
    },
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
