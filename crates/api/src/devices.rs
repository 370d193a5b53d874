//! The objects of adopted devices: disks that remember. Instants are nanoseconds since 1970 UTC.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Where versions go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// Copy-on-write.
    Checkpointing,
    /// Redirect-on-write over the origin.
    Logging,
    /// To both, each with a cache of its own.
    SplitStream,
    /// To both, when a write leaves the cache.
    SplitDownStream,
    /// Checkpointing or split-down-stream, by region.
    Hybrid,
}

/// The effect on a write if the only room is history younger than the floor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FloorPolicy {
    /// It waits.
    Wait,
    /// It fails.
    Fail,
}

/// Reduction of contents on their way into a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Reduce {
    /// They are stored as they are.
    None,
    /// The difference from an earlier version of the block is stored, if it is smaller.
    Xor,
    /// Content that is already stored is not stored again.
    Identical,
    /// Both.
    All,
}

/// How much history is kept. Missing fields set no limit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Window {
    /// History older than this is folded back.
    pub time_ms: Option<u64>,
    /// It uses at most this many bytes of the store.
    pub bytes: Option<u64>,
    /// History younger than this is never discarded for lack of room.
    pub floor_ms: Option<u64>,
    /// The effect on a write then; unchanged by default. For a new history: `wait` under a volume,
    /// which a failed write makes read-only, otherwise `fail`.
    pub floor_policy: Option<FloorPolicy>,
    /// Older history keeps fewer instants, the youngest step first; at most four steps.
    pub thin: Vec<Thin>,
    /// Reduction of contents from now on; unchanged by default, and `none` for a new history.
    pub reduce: Option<Reduce>,
}

/// A step of retention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Thin {
    /// History older than this ...
    pub after_ms: u64,
    /// ... keeps one instant per this interval. Marks stay.
    pub every_ms: u64,
}

/// Adopts a disk or an image in place.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AdoptDevice {
    /// Its name, which is also that of its export.
    pub name: String,
    /// The disk or image, as an absolute path, or `lun:VOLUME/LUN`. It stays as it is.
    pub origin: String,
    /// Where history goes: a file (made if there is none) or a disk that is empty, or
    /// `lun:VOLUME/LUN`. Without it the device is exported as it is.
    pub history: Option<String>,
    /// Makes a new origin of this length; there must be none.
    pub size_bytes: Option<u64>,
    /// The length of a new file for history; by default as long as the origin, and at least 64 MiB.
    /// It takes space as it fills.
    pub history_bytes: Option<u64>,
    /// Where versions go; checkpointing by default.
    pub placement: Option<Placement>,
    /// `every-write`, `marks`, or an interval such as `1s`; `marks` by default.
    pub granularity: Option<String>,
    /// How much history.
    #[serde(default)]
    pub window: Window,
    /// A power of two from 512 to 65536; 4096 by default.
    pub block_bytes: Option<u32>,
    /// Bytes of written blocks that wait in memory; 32 MiB by default.
    pub dirty_bytes: Option<u64>,
    /// Bytes of read cache; 64 MiB by default.
    pub cache_bytes: Option<u64>,
    /// Adopts it although another program has it open for writing. Without this it is refused, as
    /// two writers destroy its content.
    #[serde(default)]
    pub in_use: bool,
}

/// A history under a volume: all of the volume can be reverted to an instant.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeHistory {
    /// Where it goes, as an absolute path: a file (made if there is none) or a disk that is empty.
    pub store: String,
    /// The length of a new file for it; by default as long as the devices of the volume, and at
    /// least 64 MiB. It takes space as it fills.
    pub store_bytes: Option<u64>,
    /// Where versions go; checkpointing by default.
    pub placement: Option<Placement>,
    /// `every-write`, `marks`, or an interval such as `1s`; `marks` by default.
    pub granularity: Option<String>,
    /// How much history.
    #[serde(default)]
    pub window: Window,
}

/// Makes the store of a history larger.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GrowHistory {
    /// The new size of the store in bytes; absent: the size of its disk.
    pub size_bytes: Option<u64>,
}

/// Puts a history under an existing volume.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EnableHistory {
    /// The history.
    pub history: VolumeHistory,
    /// Only reports the effects.
    #[serde(default)]
    pub dry_run: bool,
}

/// The effects of putting a history under a volume, real or planned.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct HistoryEnabled {
    /// The volume.
    pub volume: String,
    /// Where its history is.
    pub store: String,
    /// Closed sessions of its clients, which reconnect.
    pub sessions_ended: u64,
    /// Nothing was done.
    pub dry_run: bool,
}

/// Opens a volume without its history, which is lost.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DiscardHistory {
    /// Only reports the content without it.
    pub dry_run: bool,
}

/// A volume without its history.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DiscardedHistory {
    /// The volume; it is open now (not after a dry run).
    pub volume: String,
    /// Where its history was.
    pub store: String,
    /// Why it could not be opened.
    pub reason: String,
    /// The consistency point that its devices have.
    pub generation: u64,
    /// When that was made.
    pub consistency_point_ms: u64,
    /// Of the history.
    pub placement: Placement,
    /// Faults found by a check of the structures (not after a dry run).
    pub findings: Vec<String>,
    /// It was a dry run.
    pub dry_run: bool,
}

/// Takes a store that is older than it was as the one of its history.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AcceptOlder {
    /// Only reports the state of the store.
    pub dry_run: bool,
}

/// The accepted store.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct AcceptedOlder {
    /// The device, or the volume over a history; it is in service now (not after a dry run).
    pub name: String,
    /// Where its history is.
    pub store: String,
    /// Evidence that it is older.
    pub reason: String,
    /// It was a dry run.
    pub dry_run: bool,
}

/// An adopted device.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Device {
    /// Its name and that of its export.
    pub name: String,
    /// The disk or image.
    pub origin: String,
    /// Where its history is; none if it has no history.
    pub history: Option<String>,
    /// Its length; 0 when it is not open.
    pub size_bytes: u64,
    /// The addresses for clients.
    pub uris: Vec<String>,
    /// How iSCSI initiators reach it; none when it is not open.
    pub target: Option<crate::Target>,
    /// Why it is not open, takes no more writes, or why its release stopped.
    pub problem: Option<String>,
}

/// A named instant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Mark {
    /// Its name.
    pub name: String,
    /// When.
    pub at_ns: u64,
    /// The owner had brought the device to rest.
    pub consistent: bool,
}

/// An exported view or clone of an instant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct View {
    /// The name of its export: DEVICE@NAME. Of a volume VOLUME@NAME, whose LUNs are the exports
    /// VOLUME@NAME/LUN.
    pub name: String,
    /// The visible instant.
    pub at_ns: u64,
    /// It takes writes of its own.
    pub writable: bool,
    /// The addresses for clients.
    pub uris: Vec<String>,
    /// Why clients cannot connect: a clone, or a view of a volume, that could not be opened.
    pub problem: Option<String>,
}

/// I/O of one kind since the device was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct IoCount {
    /// Blocks of the history; of metadata: of 4 KiB.
    pub blocks: u64,
    /// Device operations.
    pub operations: u64,
    /// Those that begin where the one before ended.
    pub sequential: u64,
}

/// The background copy of a revert.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RevertCopy {
    /// The restored instant.
    pub at_ns: u64,
    /// Blocks that were checked.
    pub done_blocks: u64,
    /// Total blocks.
    pub blocks: u64,
}

/// Older history that is folded back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Folding {
    /// Blocks that were checked.
    pub done_blocks: u64,
    /// Total blocks.
    pub blocks: u64,
}

/// The history of a device.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct HistoryStatus {
    /// The device.
    pub device: Device,
    /// Where versions go.
    pub placement: Placement,
    /// `every-write`, `marks`, or an interval.
    pub granularity: String,
    /// Bytes.
    pub block_bytes: u32,
    /// The configured window.
    pub window: Window,
    /// The oldest instant that can be reached.
    pub start_ns: u64,
    /// The last write, mark or revert.
    pub last_ns: u64,
    /// Versions that are kept.
    pub versions: u64,
    /// Memory of the index.
    pub index_bytes: u64,
    /// Of the store, taken.
    pub used_bytes: u64,
    /// The needed part of that; an upper bound if contents are reduced.
    pub live_bytes: u64,
    /// Of the store, in all.
    pub store_bytes: u64,
    /// The space of an hour of history, estimated from the present history.
    pub bytes_per_hour: u64,
    /// Written, and still in memory.
    pub dirty_bytes: u64,
    /// In order of time.
    pub marks: Vec<Mark>,
    /// Views and clones.
    pub views: Vec<View>,
    /// The window's move that is under way.
    pub folding: Option<Folding>,
    /// Background copies that are not over.
    pub reverts: Vec<RevertCopy>,
    /// How often history was discarded because the store was full.
    pub given_up: u64,
    /// Blocks that clients wrote since the device was opened.
    pub written_blocks: u64,
    /// Of these, replaced in memory.
    pub absorbed_blocks: u64,
    /// Blocks of I/O that a written block has cost: figure 5 of the 2007 paper.
    pub io_per_write: f64,
    /// Bytes of the contents that went to the log since the device was opened.
    pub content_bytes: u64,
    /// Bytes stored for them: fewer if they are reduced.
    pub stored_bytes: u64,
    /// The number of contents that are stored as a difference from an earlier one.
    pub xor_versions: u64,
    /// Versions that take no space, as their content was stored already.
    pub identical_versions: u64,
    /// Versions whose checksum failed; they were not served.
    pub damaged: u64,
    /// Unreadable versions: requests that need them fail, all others succeed. The first of them, in
    /// order of blocks.
    pub lost: Vec<LostVersion>,
    /// How many there are.
    pub lost_versions: u64,
    /// Writes and flushes that wait for room, because the floor of the window leaves none.
    pub waiting: u64,
    /// Reads of the origin for history.
    pub current_reads: IoCount,
    /// Writes of the origin.
    pub current_writes: IoCount,
    /// Reads of the log.
    pub history_reads: IoCount,
    /// Writes of the log.
    pub history_writes: IoCount,
    /// Superblocks, heads, summaries.
    pub metadata: IoCount,
}

/// A version of a block that can't be read any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LostVersion {
    /// Which block of the device.
    pub block: u64,
    /// From when on, or until when, it is lost.
    pub at_ns: u64,
}

/// Names the present instant.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateMark {
    /// Its name.
    pub name: String,
    /// The owner has brought the device to rest.
    #[serde(default)]
    pub consistent: bool,
}

/// An instant: one of the three.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Instant {
    /// A time; the last instant up to it that is kept.
    pub at_ns: Option<u64>,
    /// How long ago, in nanoseconds that have passed, whatever the clock was set to meanwhile.
    pub ago_ns: Option<u64>,
    /// The name of a mark.
    pub mark: Option<String>,
    /// The resolved value of `ago_ns`.
    #[serde(skip)]
    #[schema(ignore)]
    pub stamp_ns: Option<u64>,
}

impl Instant {
    /// At a time.
    pub fn at(at_ns: u64) -> Self {
        Self { at_ns: Some(at_ns), ..Self::default() }
    }

    /// This long ago.
    pub fn ago(by: std::time::Duration) -> Self {
        Self { ago_ns: Some(by.as_nanos().try_into().unwrap_or(u64::MAX)), ..Self::default() }
    }

    /// At a mark.
    pub fn mark(name: &str) -> Self {
        Self { mark: Some(name.to_owned()), ..Self::default() }
    }
}

/// How a device is released.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ReleaseQuery {
    /// Releases the device even if its history can't be opened: the content of the origin stays.
    pub without_history: Option<bool>,
}

/// Which kind of export of an instant is meant.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ViewQuery {
    /// Whether it must be a clone (true) or a view (false); a mismatch is refused. Either by
    /// default.
    pub writable: Option<bool>,
}

/// Reverts a device, a volume or a mirror to an instant: a time, or the name of a mark.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Revert {
    /// A time; the last instant up to it that is kept.
    pub at_ns: Option<u64>,
    /// How long ago, in nanoseconds that have passed, whatever the clock was set to meanwhile.
    pub ago_ns: Option<u64>,
    /// The name of a mark.
    pub mark: Option<String>,
    /// Only report the resolved instant, and any obstacles.
    pub dry_run: bool,
}

impl Revert {
    /// To when.
    pub fn instant(&self) -> Instant {
        Instant { at_ns: self.at_ns, ago_ns: self.ago_ns, mark: self.mark.clone(), stamp_ns: None }
    }
}

/// Exports an instant.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateView {
    /// The second part of its name; by default from the time.
    pub name: Option<String>,
    /// Which instant.
    pub instant: Instant,
    /// It takes writes of its own.
    #[serde(default)]
    pub writable: bool,
}

/// The effects of a revert, real or planned.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Reverted {
    /// The instant that the device shows now.
    pub at_ns: u64,
    /// Revert to this mark to undo it; empty when nothing was done.
    pub undo: String,
    /// Sessions that were ended, or would be: their clients connect again.
    pub sessions_ended: u64,
    /// For a volume: faults found by its check there.
    pub findings: Vec<String>,
    /// Nothing was done.
    pub dry_run: bool,
}

impl Reverted {
    /// Nothing was done yet.
    pub fn would(at_ns: u64, sessions: usize) -> Self {
        let (undo, findings) = (String::new(), Vec::new());
        Self { at_ns, undo, sessions_ended: sessions as u64, findings, dry_run: true }
    }
}
