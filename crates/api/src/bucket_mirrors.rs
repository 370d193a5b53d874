//! Objects about mirrors in buckets: a volume here is the source, and a bucket has its images.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::{BucketCost, ErrorBody, Keep};

/// Mirrors a volume of this server into a bucket.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateBucketMirror {
    /// The volume.
    pub volume: String,
    /// `BUCKET:` or `BUCKET:PATH/`.
    pub to: String,
    /// An image is made that often; only on request by default.
    #[serde(default)]
    pub every_ms: Option<u64>,
    /// Or by a cron expression: minute, hour, day of the month, month, day of the week.
    #[serde(default)]
    pub cron: Option<String>,
    /// Or whenever the volume has changed, as soon as the update before has ended. The largest lag
    /// decides how often that is.
    #[serde(default)]
    pub continuous: bool,
    /// The time zone of the expression and of the hours of a limit; UTC by default.
    #[serde(default)]
    pub zone: Option<String>,
    /// The largest acceptable lag. Beyond it the mirror is `behind`.
    #[serde(default)]
    pub rpo_ms: Option<u64>,
    /// The images that stay in the bucket. By default the newest of 24 hours, 30 days and 12
    /// months.
    #[serde(default)]
    pub keep: Option<Keep>,
    /// Bytes a second at most: `50M`, `off`, or a timetable.
    #[serde(default)]
    pub limit: Option<String>,
    /// The bucket may have images of this volume by another server, which then writes no more.
    #[serde(default)]
    pub take_over: bool,
}

/// The planned first image of a mirror in a bucket, and its cost.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct BucketMirrorPlan {
    /// The name that the mirror would have: `BUCKET:[PATH/]VOLUME`.
    pub name: String,
    /// Images of the volume that are in the bucket now.
    pub images: u64,
    /// The owner of these images: `VOLUME on SERVER`.
    pub owner: Option<String>,
    /// Bytes of blocks in the volume.
    pub data_bytes: u64,
    /// The cost of a first image, at most: nothing is compressed, and no block is in the bucket.
    pub first: BucketCost,
    /// The cost of a month at most without further changes. `dollars_once` is for the requests of
    /// the month.
    pub month: BucketCost,
}

/// Changes to a mirror in a bucket. A missing field stays.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SetBucketMirror {
    /// The interval of images; 0 for none.
    pub every_ms: Option<u64>,
    /// A cron expression; `off` for none.
    pub cron: Option<String>,
    /// Follow the volume, or no longer.
    pub continuous: Option<bool>,
    /// The time zone of the expression and of the hours of a limit.
    pub zone: Option<String>,
    /// The largest acceptable lag; 0 for none.
    pub rpo_ms: Option<u64>,
    /// The images that stay.
    pub keep: Option<Keep>,
    /// Bytes a second at most.
    pub limit: Option<String>,
    /// Makes no images.
    pub paused: Option<bool>,
    /// Takes the images over from the server that claimed them.
    pub take_over: bool,
    /// Continues from the state of the bucket, although this server has seen a newer one.
    pub accept_older: bool,
}

/// The state of a mirror in a bucket. The first that applies, from the end of the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum BucketMirrorState {
    /// The newest image is within the largest acceptable lag.
    Mirrored,
    /// The lag exceeds the acceptable one.
    Behind,
    /// The bucket has no image by this mirror yet.
    Baseline,
    /// The last update failed, and is retried.
    Failing,
    /// An update runs.
    Transferring,
    /// It makes no images until it is resumed.
    Paused,
    /// The volume follows a source, and can't be mirrored from here.
    NotASource,
    /// Another server has taken over the images. This one writes no more.
    Fenced,
    /// The bucket shows an older state than this server has seen.
    Replayed,
    /// An object that the mirror needs is damaged or missing.
    Damaged,
    /// The bucket has other snapshots under the numbers of those here.
    Diverged,
}

/// The last update of a mirror in a bucket.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BucketTransfer {
    /// When it began.
    pub started_ms: u64,
    /// How long it took.
    pub duration_ms: u64,
    /// Regions of 4 MiB that it put.
    pub regions: u64,
    /// Regions that an interrupted update had put, and that were not put again.
    pub resumed_regions: u64,
    /// Bytes that it put.
    pub sent_bytes: u64,
    /// Nothing had changed, and nothing was put.
    pub up_to_date: bool,
}

/// A mirror of a volume of this server in a bucket.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct BucketMirror {
    /// Identifies it in paths of this API: 16 hexadecimal digits.
    pub id: String,
    /// `BUCKET:[PATH/]VOLUME`.
    pub name: String,
    /// The volume of this server.
    pub volume: String,
    /// The id of the volume, under which its images are in the bucket.
    pub volume_id: String,
    /// The name of the bucket.
    pub bucket: String,
    /// Its state.
    pub state: BucketMirrorState,
    /// The state as a sentence.
    pub reason: String,
    /// The next step, if there is one.
    pub remedy: Option<String>,
    /// 0 OK, 1 warning, 2 critical.
    pub check: u8,
    /// The age of the first change that no image in the bucket has; 0 without one, none without an
    /// image.
    pub lag_ms: Option<u64>,
    /// The largest acceptable lag.
    pub rpo_ms: Option<u64>,
    /// The lag exceeds it.
    pub over_rpo: bool,
    /// The interval of images.
    pub every_ms: Option<u64>,
    /// Or the cron expression.
    pub cron: Option<String>,
    /// Or whenever the volume has changed.
    pub continuous: bool,
    /// The time zone.
    pub zone: Option<String>,
    /// It makes no images until it is resumed.
    pub paused: bool,
    /// The images that stay.
    pub keep: Keep,
    /// Bytes a second at most, as given.
    pub limit: Option<String>,
    /// That limit at this time of the day.
    pub limit_now_bytes: Option<u64>,
    /// The id of the newest image.
    pub image: Option<String>,
    /// The number that the volume gave it.
    pub image_number: Option<u64>,
    /// When it was made.
    pub image_ms: Option<u64>,
    /// Images in the bucket, as of the last update.
    pub images: u64,
    /// Bytes of the objects of the newest image.
    pub stored_bytes: u64,
    /// The epoch of this server's last claim.
    pub epoch: u32,
    /// The last update.
    pub last: Option<BucketTransfer>,
    /// When the next update begins.
    pub next_ms: Option<u64>,
    /// Bytes of all updates.
    pub sent_bytes: u64,
    /// Updates that made an image.
    pub updates: u64,
    /// Why the last update failed.
    pub problem: Option<ErrorBody>,
    /// The last verification.
    pub verified: Option<BucketVerify>,
    /// Regions with a damaged object, which the next update puts again.
    pub repairs: u64,
}

/// The result of reading the newest image of a mirror in a bucket.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BucketVerify {
    /// The mirror.
    pub name: String,
    /// When it began.
    pub started_ms: u64,
    /// How long it took.
    pub duration_ms: u64,
    /// The id of the image.
    pub image: String,
    /// When the image was made.
    pub image_ms: u64,
    /// Regions of the image.
    pub regions: u64,
    /// Bytes of its objects.
    pub read_bytes: u64,
    /// Bytes of blocks that were compared with the snapshot here; 0 if that no longer exists.
    pub compared_bytes: u64,
    /// Objects that are damaged or missing, the first hundred, each with the damage.
    pub damaged: Vec<String>,
    /// All of them.
    pub damaged_total: u64,
    /// Blocks that are whole in the bucket and differ from the snapshot here, or are missing there.
    pub contradictions: u64,
}

/// A mirror in a bucket that was deleted.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DeletedBucketMirror {
    /// Its name.
    pub name: String,
    /// The place of the bucket.
    pub place: String,
    /// Images that stay there, as of the last update.
    pub images: u64,
    /// Objects that were deleted there.
    pub deleted_objects: u64,
}

/// Which volumes of a bucket are wanted.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct BucketImagesQuery {
    /// `PATH/`, `VOLUME` or `PATH/VOLUME`, where VOLUME is a name or an id. Every volume below an
    /// empty path by default.
    pub of: Option<String>,
}

/// The mirrored volumes in a bucket.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct BucketImages {
    /// The volumes.
    pub volumes: Vec<BucketVolume>,
    /// Objects that can't be read, a line each.
    pub unreadable: Vec<String>,
}

/// A mirrored volume in a bucket.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct BucketVolume {
    /// Its name at its owner.
    pub volume: String,
    /// Its id.
    pub volume_id: String,
    /// `VOLUME on SERVER` of the newest claim.
    pub owner: String,
    /// The epoch of that claim.
    pub epoch: u32,
    /// When it was made.
    pub claimed_ms: u64,
    /// Bytes of the objects of the newest image.
    pub stored_bytes: u64,
    /// The images, in order.
    pub images: Vec<BucketImage>,
}

/// An image of a volume in a bucket.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct BucketImage {
    /// Its id.
    pub id: String,
    /// The number that the volume gave it.
    pub number: u64,
    /// When it was made.
    pub taken_ms: u64,
    /// The size of the volume.
    pub size_bytes: u64,
}

/// Makes a new volume of an image in a bucket. The answer is a job.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RestoreBucketMirror {
    /// The new volume.
    pub name: String,
    /// `BUCKET:[PATH/]VOLUME`, where VOLUME is a name or an id.
    pub from: String,
    /// The number of an image, or the beginning of its id; the newest by default.
    pub image: Option<String>,
    /// The size of the block space; that of the image by default.
    pub size_bytes: Option<u64>,
    /// Disks or files for it; a sparse file in the data directory by default.
    pub devices: Vec<String>,
    /// Resumes the unfinished restore of that name.
    pub resume: bool,
    /// Abandons an unfinished restore of that name first.
    pub anew: bool,
}
