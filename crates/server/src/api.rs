//! The objects of the HTTP API, and of `--json`. The OpenAPI description is made from them.
//!
//! Lengths are bytes, times are milliseconds since 1970 UTC, durations are milliseconds.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

mod access;
mod activity;
mod changed;
mod clones;
mod devices;
mod drills;
mod dumps;
mod governor;
mod groups;
mod hooks;
mod mirrors;
mod mounts;
mod plans;
mod quotas;
mod recordings;
mod schedules;
mod verify;

pub use access::{Access, IscsiParameters, SetAccess, SetChap, Target, WriteCache};
pub use activity::{Activity, Rate};
pub use changed::{ChangedQuery, ChangedRange, ChangedRanges};
pub use clones::{CreateClone, VolumeClone};
pub use devices::{
    AcceptOlder, AcceptedOlder, AdoptDevice, CreateMark, CreateView, Device, DiscardHistory,
    DiscardedHistory, EnableHistory, FloorPolicy, Folding, HistoryEnabled, HistoryStatus, Instant, IoCount,
    LostVersion, Mark, Placement, Reduce, ReleaseQuery, Revert, RevertCopy, Reverted, Thin, View, ViewQuery,
    VolumeHistory, Window,
};
pub use drills::{Drill, DrillOutcome, DrillRequest, DrillResult};
pub use dumps::{
    DiffSnapshots, FileChange, FileChangeKind, FileDumpPlan, FileDumpRecord, FileDumpRequest, FileDumpResult,
};
pub use governor::{Governor, SetGovernor};
pub use groups::{
    CreateGroup, Group, GroupFailover, GroupFailoverState, GroupLoss, GroupMember, GroupReverse,
    GroupSnapshot, ShowGroup,
};
pub use hooks::{Hooks, SetHooks};
pub use mirrors::{
    Aborted, AllowReverse, Compress, CreateMirror, DeletedMirror, Departed, Divergence, DivergenceRequest,
    DryRun, Failover, FailoverRequest, Follower, Leftover, LinkWish, Mirror, MirrorRole, MirrorSession,
    MirrorState, RepointMirror, ResyncRequest, ReverseAllowed, SetMirror, Transfer, UnlockMirror,
    UpdatePrice, UpdateRequest,
};
pub use mounts::{CreateMount, Mount, Unmount};
pub use plans::{LivePlan, PlanQuery};
pub use quotas::{Quota, SetQuota};
pub use recordings::{RecordExport, Recording};
pub use schedules::{Keep, Schedule, SetSchedule, Simulate, Simulation};
pub use verify::{MirrorVerify, VerifyRequest};

/// The kind of an error, for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request makes no sense: a name, a combination.
    Usage,
    /// A size that is not possible.
    WrongSize,
    /// Nothing has that name.
    NotFound,
    /// The name is in use.
    Taken,
    /// In use by someone else: a device, a directory, an export.
    Busy,
    /// Another program listens on that port.
    PortTaken,
    /// No valid bearer token.
    Unauthorized,
    /// The invitation has expired.
    TokenExpired,
    /// The invitation was used.
    TokenUsed,
    /// The source does not know the invitation, or no longer this server.
    PeerRefused,
    /// The source cannot be reached.
    PeerUnreachable,
    /// The other end speaks another version.
    VersionMismatch,
    /// No space.
    NoSpace,
    /// A directory, file system or device takes no writes.
    ReadOnly,
    /// The device is too small.
    TooSmall,
    /// The device or destination holds something.
    NotEmpty,
    /// A checksum failed, or a file is not what it should be.
    Damaged,
    /// A volume cannot be opened: its superblocks, its tables or its log are damaged, or its devices are not there.
    VolumeDamaged,
    /// The volume is, or is not, the destination of a mirror.
    WrongRole,
    /// Source and destination have no common base.
    Diverged,
    /// What the source of a mirror sent contradicts what the mirror keeps: it may be in other hands.
    Contradicted,
    /// The work was cut off: the server ended.
    Interrupted,
    /// Anything else.
    Failed,
}

/// What every refused or failed request answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// The kind.
    pub error: ErrorKind,
    /// What happened and why.
    pub message: String,
    /// What to do next.
    pub next: String,
}

/// A problem and its remedy.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// What it concerns: a volume or a mirror.
    pub subject: String,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub next: String,
}

/// A state file of the server that is there and can't be read.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DamagedFile {
    /// Below the data directory.
    pub file: String,
    /// The volume or the device that it belongs to; `server` for the server's own.
    pub subject: String,
    /// Why it can't be read.
    pub reason: String,
    /// What is out of service until it can.
    pub means: String,
    /// What it costs to give it up; none when nothing could go on without it.
    pub costs: Option<String>,
    /// When its previous generation was written, if there is one that can be read.
    pub previous_ms: Option<u64>,
    /// What to do.
    pub next: String,
}

/// To take in a state file that could not be read.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct RestoreState {
    /// A path, also one below the data directory.
    pub file: String,
    /// Its previous generation instead of what is there.
    #[serde(default)]
    pub previous: bool,
}

/// To go on without a state file that can't be read.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct GiveUpState {
    /// A path, also one below the data directory.
    pub file: String,
}

/// A state file that was given up.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct GivenUp {
    /// As asked for.
    pub file: String,
    /// Where it was set aside; empty for one that was not there any more.
    pub aside: String,
}

/// A server at a glance.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// The version of the program.
    pub version: String,
    /// The data directory.
    pub data: String,
    /// The process.
    pub pid: u32,
    /// How long it has run.
    pub uptime_ms: u64,
    /// Memory that it has now; 0 where the system does not say.
    pub memory_bytes: u64,
    /// Memory that each open volume may take for cached blocks and for writes on their way.
    pub cache_bytes: u64,
    /// Consistency points of all open volumes since they were opened.
    pub consistency_points: u64,
    /// SHA-256 of this server's certificate.
    pub fingerprint: String,
    /// Where the API listens: the control socket first.
    pub http: Vec<String>,
    /// Where mirrors connect; none when off.
    pub mirror: Option<String>,
    /// Further addresses of that listener: where the sources of mirrors here reach this server.
    pub mirror_further: Vec<String>,
    /// Where NBD clients connect.
    pub nbd: Vec<String>,
    /// Where iSCSI initiators connect.
    pub iscsi: Vec<String>,
    /// The volumes.
    pub volumes: Vec<Volume>,
    /// The adopted devices.
    pub devices: Vec<Device>,
    /// The exports that clients can open.
    pub exports: Vec<Export>,
    /// The mirrors of which this server is the destination.
    pub mirrors: Vec<Mirror>,
    /// The drills of those mirrors.
    pub drills: Vec<Drill>,
    /// What mirrors may cost clients, where that was said.
    pub governors: Vec<Governor>,
    /// The mirrors that follow volumes of this server.
    pub followers: Vec<Follower>,
    /// What is kept for mirrors that nobody here knows.
    pub leftovers: Vec<Leftover>,
    /// What is wrong, with remedies.
    pub problems: Vec<Problem>,
}

/// The part of a volume in mirrors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum VolumeRole {
    /// Takes writes.
    Normal,
    /// The destination of a mirror: read-only until failover.
    Destination,
    /// Not open; see the problem.
    Unavailable,
}

/// A volume.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Volume {
    /// Its name.
    pub name: String,
    /// Its id for ever, the same on its mirrors.
    pub id: String,
    /// Its part in mirrors.
    pub role: VolumeRole,
    /// Of the block space.
    pub size_bytes: u64,
    /// In use by the present state and all snapshots.
    pub used_bytes: u64,
    /// Free for writes.
    pub free_bytes: u64,
    /// Written, and not yet in a consistency point.
    pub dirty_bytes: u64,
    /// The number of the last consistency point.
    pub generation: u64,
    /// How many LUNs.
    pub luns: u64,
    /// How many snapshots.
    pub snapshots: u64,
    /// The files or disks under it.
    pub devices: Vec<String>,
    /// The file or disk of its intent log; none when the log is on the devices of the volume.
    pub log_device: Option<String>,
    /// Where its history is; none when there is none under it.
    pub history: Option<String>,
    /// The snapshot, `VOLUME@SNAPSHOT`, that it is a clone of; none when it is no clone.
    pub clone_of: Option<String>,
    /// How its scrub is, and what of it is damaged; none when it is not open.
    pub scrub: Option<Scrub>,
    /// The file system of its files; none when it is on disks, or not open.
    pub host: Option<HostRoom>,
    /// Why it is not open, or takes no writes.
    pub problem: Option<String>,
}

/// The file system that the files of a volume are on. They are sparse, and take room of it as the volume fills.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HostRoom {
    /// Where it is mounted.
    pub path: String,
    /// Of the whole file system.
    pub size_bytes: u64,
    /// What it has left.
    pub free_bytes: u64,
    /// What the files of the volume may still take of it.
    pub unwritten_bytes: u64,
}

/// Makes a volume.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateVolume {
    /// Its name: letters, digits, `.`, `_` and `-`, beginning with a letter or a digit, at most 64.
    pub name: String,
    /// Of the block space; with devices, what they hold when not given.
    pub size_bytes: Option<u64>,
    /// Disks or files, one after the other; a sparse file in the data directory when empty.
    #[serde(default)]
    pub devices: Vec<String>,
    /// A disk or a file for its intent log; the log is on the devices of the volume when not given.
    pub log_device: Option<String>,
    /// A history under it; none when not given.
    pub history: Option<VolumeHistory>,
}

/// Faults under a volume, on purpose. What is 0 or false is off.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Rehearsal {
    /// Each batch of device operations takes so much longer, in milliseconds.
    pub delay_ms: u64,
    /// One in so many reads of the devices fails.
    pub fail_reads_one_in: u64,
    /// One in so many writes fails. The first failure makes the volume read-only until the server starts again.
    pub fail_writes_one_in: u64,
    /// One in so many flushes fails, with the same end.
    pub fail_flushes_one_in: u64,
    /// What was not flushed is lost when the server is killed, as in a power cut.
    pub lose_unflushed: bool,
}

impl Rehearsal {
    /// In words.
    pub fn describe(&self) -> String {
        let one_in = |what, n: u64| (n > 0).then(|| format!("one in {n} {what} fails"));
        let parts = [
            (self.delay_ms > 0).then(|| format!("each batch takes {} ms longer", self.delay_ms)),
            one_in("reads", self.fail_reads_one_in),
            one_in("writes", self.fail_writes_one_in),
            one_in("flushes", self.fail_flushes_one_in),
            self.lose_unflushed.then(|| "a killed server loses what was not flushed".to_owned()),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        if parts.is_empty() { "none".to_owned() } else { parts.join(", ") }
    }
}

/// The faults under a volume.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct RehearsalStatus {
    /// The volume.
    pub volume: String,
    /// What goes wrong on purpose.
    pub faults: Rehearsal,
    /// Operations that failed on purpose since the server started.
    pub failed: u64,
}

/// Moves the intent log of a volume.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveLog {
    /// A disk or a file; onto the devices of the volume when not given.
    pub device: Option<String>,
}

/// Throws the intent log of a volume away that cannot be opened without it.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DiscardLogRequest {
    /// Only say what would be lost.
    #[serde(default)]
    pub dry_run: bool,
}

/// What throwing an intent log away costs.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DiscardedLog {
    /// The volume; it is open now (not after a dry run).
    pub volume: String,
    /// Why it could not be opened.
    pub reason: String,
    /// The consistency point that it opens at.
    pub generation: u64,
    /// When that was made. All that was written later is lost, also what was flushed.
    pub consistency_point_ms: u64,
    /// How long before its end a server makes its last consistency point, at most, as long as the devices keep up: what is lost was written within that time.
    pub lost_ms_max: u64,
    /// It was only asked what would be lost.
    pub dry_run: bool,
}

/// Grows a volume.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GrowVolume {
    /// The new size of the block space; what the devices hold when not given.
    pub size_bytes: Option<u64>,
}

/// One thing that `volume check` found.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CheckFinding {
    /// What, in one sentence.
    pub message: String,
    /// VOLUME/LUN, when it concerns one that has a name.
    pub lun: Option<String>,
    /// The path of the file that it concerns, in the state in which it was met.
    pub path: Option<String>,
    /// Its bytes, percent-encoded, where they are no UTF-8; `path` then has `\xNN` for each byte
    /// that is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_bytes: Option<String>,
    /// VOLUME@SNAPSHOT in which it was met first; none for the present state or the volume as a whole.
    pub snapshot: Option<String>,
}

/// Asks for a check.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckRequest {
    /// Read every block of data as well, of the present state and of all snapshots.
    #[serde(default)]
    pub deep: bool,
}

/// What `volume check` found.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CheckResult {
    /// The volume.
    pub volume: String,
    /// Empty when all is well.
    pub findings: Vec<CheckFinding>,
}

/// Begins, changes or stops the scrub of a volume.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ScrubRequest {
    /// Begin a pass, if none runs.
    pub start: bool,
    /// End the pass that runs.
    pub stop: bool,
    /// Bytes a second at most, from now on; as it was when not given.
    pub rate_bytes: Option<u64>,
    /// A pass begins that often; 0 for only on request; as it was when not given.
    pub every_ms: Option<u64>,
}

/// The scrub of a volume: everything that it shows is read from the media, and compared with its checksum.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Scrub {
    /// The volume.
    pub volume: String,
    /// A pass runs; after a restart it goes on where it was.
    pub running: bool,
    /// Bytes a second at most.
    pub rate_bytes: u64,
    /// A pass begins that often.
    pub every_ms: Option<u64>,
    /// When the next pass begins.
    pub next_ms: Option<u64>,
    /// When the running pass began.
    pub started_ms: Option<u64>,
    /// What it has read.
    pub done_bytes: u64,
    /// What there is to read: all blocks in use.
    pub total_bytes: u64,
    /// Bytes a second of the running pass so far.
    pub present_rate: u64,
    /// At that rate.
    pub seconds_left: Option<u64>,
    /// What the running pass has found.
    pub findings: Vec<CheckFinding>,
    /// The last pass.
    pub last: Option<ScrubResult>,
    /// What is damaged now: found by a scrub, a check or a read, and neither repaired nor given up since.
    pub damaged: Vec<DamagedBlock>,
    /// Blocks that were repaired since the volume was made here.
    pub repaired_blocks: u64,
    /// When the last of them was.
    pub repaired_ms: Option<u64>,
}

/// A pass of a scrub that is over.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ScrubResult {
    /// When it began.
    pub started_ms: u64,
    /// When it was over.
    pub finished_ms: u64,
    /// What it read.
    pub bytes: u64,
    /// It was stopped before its end: what it did not find says nothing.
    pub stopped: bool,
    /// How many findings.
    pub findings_total: u64,
    /// The first thousand of them. What was repaired since is still listed here.
    pub findings: Vec<CheckFinding>,
}

/// A damaged block.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DamagedBlock {
    /// Its number in the volume.
    pub block: u64,
    /// What it is, in one sentence.
    pub message: String,
    /// VOLUME/LUN that it belongs to.
    pub lun: Option<String>,
    /// The path of the file that it belongs to; of one that is there in a snapshot alone with that one's name.
    pub path: Option<String>,
    /// The bytes of the path alone, percent-encoded, where they are no UTF-8; `path` then has
    /// `\xNN` for each byte that is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_bytes: Option<String>,
    /// Where in the LUN or the file.
    pub offset_bytes: Option<u64>,
}

/// A LUN.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Lun {
    /// VOLUME/LUN.
    pub name: String,
    /// As clients see it.
    pub size_bytes: u64,
    /// When it was made.
    pub created_ms: u64,
    /// Where NBD clients find it: URIs, the unix socket first.
    pub uris: Vec<String>,
    /// How iSCSI initiators reach it.
    pub target: Target,
    /// In the answer to who makes it: what was set for an earlier LUN of this name holds for it, as snapshots or the volume's history still show that.
    pub earlier_settings: bool,
}

/// Makes a LUN.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateLun {
    /// Its name in the volume; the rule for volumes holds.
    pub name: String,
    /// A multiple of 512.
    pub size_bytes: u64,
}

/// Resizes a LUN.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResizeLun {
    /// A multiple of 512.
    pub size_bytes: u64,
    /// It may shrink; what lies past the new end is lost.
    #[serde(default)]
    pub allow_shrink: bool,
}

/// A snapshot.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Snapshot {
    /// VOLUME@SNAPSHOT.
    pub name: String,
    /// Its number, never given again.
    pub id: u64,
    /// The consistency point that it is.
    pub generation: u64,
    /// When it was made.
    pub created_ms: u64,
    /// It can't be deleted: its owner holds it, or it is the base of a mirror's next update.
    pub held: bool,
}

/// Holds a snapshot, or lets it go.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HoldSnapshot {
    /// From now on it can't be deleted; or it can.
    pub held: bool,
}

/// Makes a snapshot.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateSnapshot {
    /// Its name in the volume; the rule for volumes holds.
    pub name: String,
}

/// Renames a snapshot.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RenameSnapshot {
    /// The new name in the volume.
    pub name: String,
}

/// What a deletion gave back.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Freed {
    /// No longer in use.
    pub freed_bytes: u64,
}

/// A session of an NBD client or an iSCSI initiator.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Session {
    /// Its number.
    pub id: u64,
    /// Who.
    pub peer: String,
    /// Requests so far.
    pub requests: u64,
    /// Read so far.
    pub read_bytes: u64,
    /// Written so far.
    pub written_bytes: u64,
    /// What it did in the last seconds.
    pub activity: Activity,
    /// The iSCSI name of the initiator; none over NBD.
    pub initiator: Option<String>,
    /// What was agreed on at login; none over NBD.
    pub parameters: Option<IscsiParameters>,
}

/// What a client can open.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Export {
    /// VOLUME/LUN or VOLUME@SNAPSHOT/LUN.
    pub name: String,
    /// It takes no writes.
    pub read_only: bool,
    /// Nobody can connect to it at the moment: the device that it is adopted as is not open, or its volume shows nothing.
    pub closed: bool,
    /// Its length.
    pub size_bytes: u64,
    /// Where NBD clients find it.
    pub uris: Vec<String>,
    /// How iSCSI initiators reach it.
    pub target: Target,
    /// Who may use it over iSCSI, and how it is offered.
    pub access: Access,
    /// Who has it open.
    pub sessions: Vec<Session>,
    /// What all that have or had it open did.
    pub totals: ExportTotals,
}

/// What clients of an export did since the server started, also those that are gone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExportTotals {
    /// Requests.
    pub requests: u64,
    /// Bytes that they read.
    pub read_bytes: u64,
    /// Bytes that they wrote.
    pub written_bytes: u64,
}

/// Invites a destination.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Invite {
    /// The only volume that the peer may mirror; all when not given.
    pub volume: Option<String>,
    /// How long the token can be used for the first time; 15 minutes when not given.
    pub expires_ms: Option<u64>,
    /// This server's mirror address as the peer reaches it; what is configured when not given.
    pub advertise: Option<String>,
}

/// An invitation.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Invitation {
    /// The one word for `cairn mirror create`; it is a secret, and shown once.
    pub token: String,
    /// Names the invitation, for `cairn peer revoke`.
    pub id: String,
    /// The address in the token.
    pub address: String,
    /// When it expires.
    pub expires_ms: u64,
    /// The only volume that it is good for.
    pub volume: Option<String>,
}

/// A peer, or an invitation that nobody has used yet.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Peer {
    /// For `cairn peer revoke`.
    pub id: String,
    /// `pinned`, `invited` or `expired`.
    pub state: PeerState,
    /// SHA-256 of its certificate, once it came.
    pub fingerprint: Option<String>,
    /// The only volume that it may mirror; all when none.
    pub volume: Option<String>,
    /// When it was invited.
    pub invited_ms: u64,
    /// When the invitation expires (expired).
    pub expires_ms: u64,
    /// When it first came.
    pub pinned_ms: Option<u64>,
}

/// How far a peer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PeerState {
    /// The token waits to be used.
    Invited,
    /// The token was not used in time.
    Expired,
    /// The peer's certificate is pinned.
    Pinned,
}

/// How a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum JobState {
    /// It runs.
    Running,
    /// It is over, and did what it should.
    Done,
    /// It is over, and did not.
    Failed,
}

/// How a job is asked for.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct JobQuery {
    /// While it runs the answer waits for its end, for so many milliseconds at most and never longer than ten seconds; 0 when not given.
    pub within_ms: Option<u64>,
}

/// Work that takes a while: ask for it again until it is over.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Job {
    /// Names it.
    pub id: String,
    /// What it is: `volume check`, `mirror create`, `mirror update`, `mirror verify`.
    pub kind: String,
    /// What it works on.
    pub subject: String,
    /// Whether it runs.
    pub state: JobState,
    /// What it is at.
    pub phase: String,
    /// Of the phase.
    pub done_bytes: u64,
    /// Of the phase; 0 when it is not known.
    pub total_bytes: u64,
    /// Bytes a second.
    pub rate: u64,
    /// At the present rate.
    pub seconds_left: Option<u64>,
    /// Since it began.
    pub elapsed_ms: u64,
    /// What its owner should know while it runs, such as that it goes another way than he may expect.
    pub notes: Vec<String>,
    /// Why it failed.
    pub error: Option<ErrorBody>,
    /// What it brought.
    pub outcome: Option<JobOutcome>,
}

/// What a job brought.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", tag = "type")]
pub enum JobOutcome {
    /// Of `volume check`.
    Check(CheckResult),
    /// Of `mirror create` and `mirror update`.
    Mirror(Box<Mirror>),
    /// Of `group reverse`.
    GroupReverse(Box<GroupReverse>),
    /// Of `mirror verify`.
    Verify(Box<MirrorVerify>),
    /// Of `image dump`.
    Dump(DumpResult),
    /// Of `file dump`.
    FileDump(FileDumpResult),
    /// Of `image restore`.
    Restore(RestoreResult),
    /// Of `mirror drill`.
    Drill(Box<DrillResult>),
}

/// What is to be dumped.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DumpRequest {
    /// The snapshot of the volume, without the volume's name; a new one when not given (of a mirror, the newest image).
    pub snapshot: Option<String>,
    /// 0: everything. 1 to 9: what changed since the last dump of a lower level. 0 when neither this nor `base` is given.
    pub level: Option<u8>,
    /// What changed since this snapshot.
    pub base: Option<String>,
    /// Records are packed with zstd.
    #[serde(default)]
    pub compress: bool,
    /// Parts of the dump when nothing is written; else there is one for each file that was handed over.
    pub parts: Option<u32>,
    /// What the hand-over socket answered to the files; without it nothing is written.
    pub ticket: Option<String>,
    /// What the files are called, absolute, in the order of the parts. A dump into files that are named can be gone on with, and counts once it is confirmed; without names, or when one of them is
    /// a pipe or a device, it leaves nothing when it is cut, and counts when it is written. What is in files that are named goes first; a file without a name is written from where it stands.
    #[serde(default)]
    pub files: Vec<String>,
    /// The unfinished dump goes on, in these files; `snapshot`, `level`, `base` and `compress` are its own.
    #[serde(default)]
    pub resume: bool,
    /// An unfinished dump is given up first.
    #[serde(default)]
    pub anew: bool,
}

/// An image dump into files that is written, or was cut.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct UnfinishedDump {
    /// Names the dump.
    pub id: String,
    /// What is dumped, as `VOLUME@SNAPSHOT`.
    pub snapshot: String,
    /// `0` to `9`, or `base`.
    pub level: String,
    /// What it is made against; none for everything.
    pub base: Option<String>,
    /// When it was begun.
    pub begun_ms: u64,
    /// What its files are called, in the order of the parts.
    pub files: Vec<String>,
    /// Bytes of them that are known to be on the disk; there may be more.
    pub durable_bytes: u64,
    /// Every part is whole: the files get their names, and it is confirmed.
    pub whole: bool,
}

/// The files of a dump have their names.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ConfirmDump {
    /// Names the dump.
    pub id: String,
}

/// A dump before it is written.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DumpPlan {
    /// The volume.
    pub volume: String,
    /// `0` to `9`, or `base`.
    pub level: String,
    /// What it is made against; none for everything.
    pub base: Option<String>,
    /// Snapshots that it brings, in all.
    pub snapshots: u64,
    /// Bytes of blocks.
    pub data_bytes: u64,
    /// Bytes of all files, when nothing is packed: exact.
    pub bytes: u64,
    /// Bytes of blocks of a dump of everything.
    pub full_data_bytes: u64,
}

/// A dump that was written.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DumpResult {
    /// The volume.
    pub volume: String,
    /// The snapshot that was dumped, as `VOLUME@SNAPSHOT`.
    pub snapshot: String,
    /// `0` to `9`, or `base`.
    pub level: String,
    /// What it was made against; none for everything.
    pub base: Option<String>,
    /// Names the dump.
    pub id: String,
    /// Files.
    pub parts: u64,
    /// Snapshots in it.
    pub snapshots: u64,
    /// Bytes of blocks.
    pub data_bytes: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// Bytes of those that were there already when the dump was gone on with.
    pub there_bytes: u64,
    /// It counts once it is confirmed; until then it is unfinished.
    pub to_confirm: bool,
}

/// The last dump of a level.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DumpRecord {
    /// 0 to 9.
    pub level: u8,
    /// Names the dump.
    pub id: String,
    /// The snapshot that was dumped; the base of the next dumps of higher levels.
    pub snapshot: String,
    /// When it was begun.
    pub created_ms: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// The snapshot is not there any more, or is another one: no further dump can be made against it.
    pub lost: bool,
}

/// Makes a volume of a dump and those made against it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RestoreRequest {
    /// Of the new volume.
    pub name: String,
    /// What its block space has at least; as it had when not given.
    pub size_bytes: Option<u64>,
    /// Disks or files for it; a sparse file in the data directory when empty.
    #[serde(default)]
    pub devices: Vec<String>,
    /// What the hand-over socket answered to the files.
    pub ticket: String,
    /// What the files are called: absolute, or `standard input`.
    pub files: Vec<String>,
    /// What can't be read is left out; without this the first damaged record ends the restore.
    #[serde(default)]
    pub accept_damage: bool,
    /// The unfinished restore of that name goes on; size and devices are its own.
    #[serde(default)]
    pub resume: bool,
    /// An unfinished restore of that name is given up first.
    #[serde(default)]
    pub anew: bool,
}

/// A restore that was cut, or is under way and could be gone on with.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct UnfinishedRestore {
    /// The new volume.
    pub volume: String,
    /// What it was called when it was dumped.
    pub dumped_from: String,
    /// When it was begun.
    pub begun_ms: u64,
    /// What its files are called.
    pub files: Vec<String>,
    /// Bytes of blocks that are known to be on the disk; there may be more.
    pub durable_bytes: u64,
    /// Bytes of blocks of all dumps.
    pub total_bytes: u64,
}

/// A volume that was restored.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct RestoreResult {
    /// The new volume.
    pub volume: String,
    /// What it was called when it was dumped.
    pub dumped_from: String,
    /// The snapshot that its active state is.
    pub snapshot: String,
    /// Snapshots in all.
    pub snapshots: u64,
    /// Bytes of blocks that were written.
    pub data_bytes: u64,
    /// How many of them were there, as it went on where it was cut.
    pub there_bytes: u64,
    /// Bytes of all files; of those that it went on with, what was read of them since.
    pub bytes: u64,
    /// What of the files could not be read. Empty when all is there.
    pub lost: Vec<String>,
    /// What of the volume is therefore damaged, as `volume check` says it.
    pub findings: Vec<String>,
}
