//! Objects about volumes.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Scrub, VolumeHistory};

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
    /// The place of its history; none if it has no history.
    pub history: Option<String>,
    /// The snapshot, `VOLUME@SNAPSHOT`, that it is a clone of; none if it is not a clone.
    pub clone_of: Option<String>,
    /// The image in a bucket that it was opened from; none if it was not.
    pub bucket: Option<VolumeBucket>,
    /// The state of its scrub, and its damage; none if it is not open.
    pub scrub: Option<Scrub>,
    /// The file system of its files; none when it is on disks, or not open.
    pub host: Option<HostRoom>,
    /// Why it is not open, or takes no writes.
    pub problem: Option<String>,
}

/// The image in a bucket that a volume was opened from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeBucket {
    /// The bucket.
    pub bucket: String,
    /// The name of the volume at its owner then, or its id.
    pub volume: String,
    /// The id of the image.
    pub image: String,
    /// The number of the image.
    pub number: u64,
    /// When the image was made.
    pub taken_ms: u64,
    /// It shows the image and takes no writes. It has claimed nothing.
    pub read_only: bool,
    /// The epoch that was claimed when it was opened; none if it is read-only.
    pub epoch: Option<u32>,
    /// Regions of 4 MiB of which the image has blocks.
    pub regions: u64,
    /// Those that are not local yet. With 0 the bucket is not needed any more.
    pub regions_left: u64,
    /// Bytes that remain to be fetched, about.
    pub bytes_left: u64,
    /// The devices of the volume are a cache; none if they are to hold everything.
    pub cache: Option<VolumeCache>,
    /// Why blocks cannot be fetched at present.
    pub problem: Option<String>,
}

/// The cache of a volume in a bucket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeCache {
    /// Its size.
    pub size_bytes: u64,
    /// Bytes of blocks in it.
    pub used_bytes: u64,
    /// Bytes that the newest image in the bucket does not have.
    pub only_here_bytes: u64,
    /// The age of the first change that the newest image does not have; 0 without one.
    pub lag_ms: u64,
    /// The largest lag that was asked for.
    pub lag_limit_ms: u64,
    /// Time until writes wait, at the present rate; none if nothing is added.
    pub full_in_ms: Option<u64>,
    /// Writes wait: the cache is full of blocks that the bucket lacks.
    pub holds_back: bool,
}

/// The cache of a volume whose home is a bucket.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CacheRequest {
    /// A folder for its files; by default the data directory.
    #[serde(default)]
    pub disk: Option<String>,
    /// Its size: at least 64 MiB.
    pub bytes: u64,
    /// Each image is to reach the bucket within so long; 5 s by default.
    #[serde(default)]
    pub lag_ms: Option<u64>,
}

impl VolumeBucket {
    /// How much is local, in percent.
    pub fn local_percent(&self) -> u64 {
        match self.regions {
            0 => 100,
            regions => (regions - self.regions_left.min(regions)) * 100 / regions,
        }
    }
}

/// Opens a volume from its images in a bucket.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OpenFromBucket {
    /// The volume: its name at its owner, or its id or the beginning of its id.
    pub volume: String,
    /// Its name here; by default its name at its owner.
    pub name: Option<String>,
    /// The image: the beginning of its id, its number, or the name of its snapshot. By default the
    /// newest one.
    pub image: Option<String>,
    /// Show the image and take no writes. Its owner is not fenced.
    #[serde(default)]
    pub read_only: bool,
    /// Disks or files for its blocks; a sparse file in the data directory when empty.
    #[serde(default)]
    pub devices: Vec<String>,
    /// Bytes a second that are fetched in the background; 0 for none. By default 64 MiB.
    pub fill_bytes: Option<u64>,
    /// Keep only a part of the blocks, in a cache. The volume gets a mirror into the bucket, which
    /// continues the images.
    #[serde(default)]
    pub cache: Option<CacheRequest>,
    /// Bytes of block space; by default those of the image. A volume grows so as it is opened.
    pub size_bytes: Option<u64>,
}

/// The file system that the files of a volume are on. They are sparse, and take room of it as the
/// volume fills.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HostRoom {
    /// The mount point.
    pub path: String,
    /// Of the whole file system.
    pub size_bytes: u64,
    /// The free space.
    pub free_bytes: u64,
    /// The space that the files of the volume may still use.
    pub unwritten_bytes: u64,
}

/// Makes a volume.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateVolume {
    /// Its name: letters, digits, `.`, `_` and `-`, beginning with a letter or a digit, at most 64.
    pub name: String,
    /// The size of the block space; with devices, their capacity by default.
    pub size_bytes: Option<u64>,
    /// Disks or files, one after the other; a sparse file in the data directory when empty.
    #[serde(default)]
    pub devices: Vec<String>,
    /// A disk or a file for its intent log; by default the log is on the devices of the volume.
    pub log_device: Option<String>,
    /// A history under it; none by default.
    pub history: Option<VolumeHistory>,
    /// A bucket that is the home of its blocks, `BUCKET:`. It needs a cache, and no devices.
    #[serde(default)]
    pub bucket: Option<String>,
    /// The cache of a volume in a bucket.
    #[serde(default)]
    pub cache: Option<CacheRequest>,
    /// It gets no schedules of snapshots; by default it has `hourly` and `daily`.
    #[serde(default)]
    pub no_schedule: bool,
}

/// Deliberate faults under a volume. 0 or false turns a fault off.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Rehearsal {
    /// Each batch of device operations takes so much longer, in milliseconds.
    pub delay_ms: u64,
    /// One in this many reads of the devices fails.
    pub fail_reads_one_in: u64,
    /// One in this many writes fails. The first failure makes the volume read-only until the server
    /// starts again.
    pub fail_writes_one_in: u64,
    /// One in this many flushes fails, with the same effect.
    pub fail_flushes_one_in: u64,
    /// Unflushed data is lost when the server is killed, as in a power cut.
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
    /// The deliberate faults.
    pub faults: Rehearsal,
    /// Operations that failed on purpose since the server started.
    pub failed: u64,
}

/// Moves the intent log of a volume.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveLog {
    /// A disk or a file; by default the devices of the volume.
    pub device: Option<String>,
}

/// Throws the intent log of a volume away that cannot be opened without it.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DiscardLogRequest {
    /// Only report the loss.
    #[serde(default)]
    pub dry_run: bool,
}

/// The loss from discarding an intent log.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DiscardedLog {
    /// The volume; it is open now (not after a dry run).
    pub volume: String,
    /// Why it could not be opened.
    pub reason: String,
    /// The consistency point that it opens at.
    pub generation: u64,
    /// The time of that consistency point. All later writes are lost, even flushed ones.
    pub consistency_point_ms: u64,
    /// Maximum age of the last consistency point when a server ends, if the devices keep up: the
    /// lost writes were made within that time.
    pub lost_ms_max: u64,
    /// It was a dry run.
    pub dry_run: bool,
}

/// Grows a volume.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GrowVolume {
    /// The new size of the block space; by default the capacity of the devices.
    pub size_bytes: Option<u64>,
}
