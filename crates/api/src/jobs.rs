//! Objects about jobs: work that takes a while.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::{
    BucketCheck, BucketMirror, BucketPruned, BucketVerify, CheckResult, DeletedBucketMirror, DrillResult,
    DumpResult, ErrorBody, FileDumpResult, GroupReverse, Mirror, MirrorVerify, RestoreResult, RestoredFiles,
    Volume,
};

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
    /// While it runs the answer waits for its end, for so many milliseconds at most and never
    /// longer than ten seconds; 0 when not given.
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
    /// When it began, in milliseconds since 1970.
    #[serde(default)]
    pub began_ms: u64,
    /// Since it began.
    pub elapsed_ms: u64,
    /// What its owner should know while it runs, such as that it goes another way than he may
    /// expect.
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
    /// Of `bucket add` and `bucket check`.
    Bucket(Box<BucketCheck>),
    /// Of `image prune`.
    Pruned(BucketPruned),
    /// Of `volume open`.
    Opened(Box<Volume>),
    /// Of `file restore`.
    FileRestore(RestoredFiles),
    /// Of `mirror create --to` and of updates into a bucket.
    BucketMirror(Box<BucketMirror>),
    /// Of `mirror verify` of a mirror in a bucket.
    BucketVerify(Box<BucketVerify>),
    /// Of `mirror delete --purge`.
    BucketMirrorDeleted(DeletedBucketMirror),
}
