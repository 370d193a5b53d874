//! Objects about image dumps and their restores.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::{ErrorBody, ErrorKind, Keep};

/// What is to be dumped.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DumpRequest {
    /// The snapshot of the volume, without the volume's name; a new one when not given (of a
    /// mirror, the newest image).
    pub snapshot: Option<String>,
    /// 0: everything. 1 to 9: what changed since the last dump of a lower level. 0 when neither
    /// this nor `base` is given.
    pub level: Option<u8>,
    /// What changed since this snapshot.
    pub base: Option<String>,
    /// Records are packed with zstd.
    #[serde(default)]
    pub compress: bool,
    /// Parts of the dump when nothing is written; else there is one for each file that was handed
    /// over.
    pub parts: Option<u32>,
    /// What the hand-over socket answered to the files; without it nothing is written.
    pub ticket: Option<String>,
    /// What the files are called, absolute, in the order of the parts. A dump into files that are
    /// named can be gone on with, and counts once it is confirmed; without names, or when one of
    /// them is a pipe or a device, it leaves nothing when it is cut, and counts when it is written.
    /// What is in files that are named goes first; a file without a name is written from where it
    /// stands.
    #[serde(default)]
    pub files: Vec<String>,
    /// The unfinished dump goes on, in these files; `snapshot`, `level`, `base` and `compress` are
    /// its own.
    #[serde(default)]
    pub resume: bool,
    /// An unfinished dump is given up first.
    #[serde(default)]
    pub anew: bool,
    /// The dump goes into this bucket, as `BUCKET:` or `BUCKET:PATH/`; no files are handed over.
    #[serde(default)]
    pub bucket: Option<String>,
    /// The objects of the dump in the bucket are locked for so long once it is whole, and so are
    /// those of all dumps that it needs.
    #[serde(default)]
    pub lock_ms: Option<u64>,
}

/// An image dump into files or a bucket that is written, or was cut.
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
    /// What its files are called, in the order of the parts; none of one in a bucket.
    pub files: Vec<String>,
    /// The bucket that it goes into, as `BUCKET:` or `BUCKET:PATH/`.
    pub bucket: Option<String>,
    /// Bytes of them that are known to be on the disk or in the bucket; there may be more.
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
    /// What it takes of the bucket that it goes into.
    pub cost: Option<BucketCost>,
}

/// What a dump takes of a bucket, at most. The prices are list prices of one vendor: a measure, not
/// an offer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BucketCost {
    /// Objects that stay.
    pub objects: u64,
    /// Requests that put or list.
    pub puts: u64,
    /// Requests that get or look.
    pub gets: u64,
    /// Bytes that stay.
    pub bytes: u64,
    /// Dollars for the requests.
    pub dollars_once: f64,
    /// Dollars a month for the bytes.
    pub dollars_monthly: f64,
}

/// Which dumps of a bucket are wanted.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct BucketDumpsQuery {
    /// `PATH/`, `VOLUME`, `VOLUME@DUMP` or `PATH/VOLUME@DUMP`, where DUMP is the beginning of an id
    /// or the name of a snapshot. Everything when not given.
    pub of: Option<String>,
    /// Only the newest of them, after all that it needs, the lowest first.
    pub chain: Option<bool>,
}

/// What is in a bucket.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct BucketDumps {
    /// Whole dumps, in order of their times.
    pub dumps: Vec<BucketDump>,
    /// Dumps that are on their way, or were given up.
    pub unfinished: Vec<BucketUnfinished>,
    /// Objects that cannot be read as what they should be, a line each.
    pub unreadable: Vec<String>,
}

/// An image dump in a bucket.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct BucketDump {
    /// The name of the volume.
    pub volume: String,
    /// Which volume.
    pub volume_id: String,
    /// Which dump.
    pub id: String,
    /// `0` to `9`, or `base`.
    pub level: String,
    /// The dump that it was made against, which a restore needs too.
    pub on: Option<String>,
    /// The snapshot that was dumped, without the volume.
    pub snapshot: String,
    /// When that was made.
    pub created_ms: u64,
    /// Bytes of blocks.
    pub data_bytes: u64,
    /// Bytes of all parts.
    pub bytes: u64,
    /// No one can delete it before, if the store has locks.
    pub locked_until_ms: Option<u64>,
    /// Its parts, in order.
    pub parts: Vec<BucketPart>,
}

/// A folder of the configuration that has image dumps in files.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DumpFolder {
    /// Its absolute path.
    pub path: String,
}

/// An image dump in files of a folder.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct FolderDump {
    /// The name of the volume.
    pub volume: String,
    /// Which volume.
    pub volume_id: String,
    /// Which dump.
    pub id: String,
    /// `0` to `9`, or `base`.
    pub level: String,
    /// When it was begun.
    pub created_ms: u64,
    /// Bytes of the files.
    pub bytes: u64,
    /// Its parts. Those that are not in `files` are missing in the folder.
    pub parts: u32,
    /// The names of its files, in the order of the parts.
    pub files: Vec<String>,
}

/// A part of a dump in a bucket.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct BucketPart {
    /// The name of its object.
    pub object: String,
    /// Bytes.
    pub bytes: u64,
    /// The name of the object with its bytes but for those of blocks.
    pub skeleton: Option<String>,
    /// Bytes of that.
    pub skeleton_bytes: u64,
}

/// A dump in a bucket that is not whole.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct BucketUnfinished {
    /// Which volume.
    pub volume_id: String,
    /// Which dump.
    pub id: String,
    /// Its newest object, by the clock of the store.
    pub newest_ms: u64,
    /// Bytes of its objects; pieces of uploads do not count.
    pub bytes: u64,
}

/// A range of an object of a dump.
#[derive(Debug, Clone, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct BucketObjectQuery {
    /// Its name.
    pub name: String,
    /// The first byte.
    pub offset: u64,
    /// Bytes, at most; fewer come only at the end of the object.
    pub length: u64,
}

/// Deletes dumps of a bucket that no rule keeps, and that none of those that stay needs. It also
/// removes what dumps that were given up left there more than a week ago.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PruneBucket {
    /// `PATH/`, or empty.
    #[serde(default)]
    pub path: String,
    /// Only dumps of this volume, by its name or id.
    pub volume: Option<String>,
    /// Which dumps stay; without any number all do.
    #[serde(default)]
    pub keep: Keep,
    /// Nothing is deleted.
    #[serde(default)]
    pub dry_run: bool,
}

/// What was deleted of a bucket, or would be.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct BucketPruned {
    /// Dumps that went.
    pub deleted: Vec<BucketDump>,
    /// Dumps that no rule keeps, and that a lock holds.
    pub locked: Vec<BucketDump>,
    /// How many dumps stay.
    pub kept: u64,
    /// How many unfinished dumps were removed.
    pub swept: u64,
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
    /// The bucket that it is in, as `BUCKET:` or `BUCKET:PATH/`.
    pub bucket: Option<String>,
    /// No one can delete it from the bucket before.
    pub locked_until_ms: Option<u64>,
}

/// The last dump of a level, into files or into one place in a bucket.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DumpRecord {
    /// The bucket that it is in, as `BUCKET:` or `BUCKET:PATH/`; none for files.
    pub bucket: Option<String>,
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
    /// The snapshot is not there any more, or is another one: no further dump can be made against
    /// it.
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
    #[serde(default)]
    pub ticket: String,
    /// What the files are called: absolute, or `standard input`.
    #[serde(default)]
    pub files: Vec<String>,
    /// The dump is in a bucket, as `BUCKET:VOLUME` or as far as [`BucketDumpsQuery::of`] has it; no
    /// files are handed over.
    #[serde(default)]
    pub bucket: Option<String>,
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
    /// It restores an image of a mirror in a bucket, which `files` names, and no dump.
    #[serde(default)]
    pub of_mirror: bool,
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

/// Why an image dump or a restore can't begin, or can't be resumed.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    /// An image dump was cut, and another one is asked for.
    #[error("the image dump of `{volume}@{snapshot}` is unfinished")]
    DumpUnfinished {
        /// The volume.
        volume: String,
        /// What is dumped.
        snapshot: String,
    },
    /// There is nothing to go on with, to give up or to confirm.
    #[error("no image dump of `{volume}` is unfinished")]
    NoUnfinishedDump {
        /// The volume.
        volume: String,
    },
    /// A restore was cut, and something else is asked for under its name.
    #[error("the image restore of `{volume}` is unfinished")]
    RestoreUnfinished {
        /// The new volume.
        volume: String,
    },
    /// A restore that was cut has written to this device.
    #[error("{} belongs to the unfinished image restore of `{volume}`", path.display())]
    RestoreClaimed {
        /// The device.
        path: PathBuf,
        /// The new volume.
        volume: String,
    },
    /// There is nothing to go on with or to give up.
    #[error("no image restore of `{volume}` is unfinished")]
    NoUnfinishedRestore {
        /// The new volume.
        volume: String,
    },
}

impl ResumeError {
    /// The kind, for programs.
    pub fn kind(&self) -> ErrorKind {
        match self {
            ResumeError::DumpUnfinished { .. }
            | ResumeError::RestoreUnfinished { .. }
            | ResumeError::RestoreClaimed { .. } => ErrorKind::Busy,
            ResumeError::NoUnfinishedDump { .. } | ResumeError::NoUnfinishedRestore { .. } => {
                ErrorKind::NotFound
            }
        }
    }

    /// What to do next, in one sentence.
    pub fn next(&self) -> String {
        match self {
            ResumeError::DumpUnfinished { volume, .. } => format!(
                "resume it with `cairn image dump {volume} --resume`, start a new one with --anew, or abandon it with \
                 `cairn image levels {volume} --give-up`"
            ),
            ResumeError::NoUnfinishedDump { volume } => format!(
                "start one with `cairn image dump {volume} --to FILE`; a dump into a pipe or a device cannot be resumed"
            ),
            ResumeError::RestoreUnfinished { volume } | ResumeError::RestoreClaimed { volume, .. } => {
                format!(
                    "resume it with `cairn image restore {volume} --resume`, start again with --anew, or abandon it with \
                 `cairn image restore {volume} --give-up`"
                )
            }
            ResumeError::NoUnfinishedRestore { volume } => {
                format!(
                    "begin one with `cairn image restore {volume} FILE...`; `cairn status` shows those that are unfinished"
                )
            }
        }
    }
}

impl From<ResumeError> for ErrorBody {
    fn from(error: ResumeError) -> Self {
        ErrorBody::new(error.kind(), &error, error.next())
    }
}
