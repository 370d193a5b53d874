//! The HTTP API of a server: its objects, which `--json` prints as well, and a client of it.
//!
//! The server and the command line share this crate and little else. The OpenAPI description is
//! made from the objects. Lengths are bytes, times are milliseconds since 1970 UTC, durations are
//! milliseconds. Errors of the engine ([`remedy`]) and findings of a check ([`name_findings`]) get
//! their words here, as both sides meet them.

mod access;
mod activity;
mod address;
mod browse;
mod bucket_mirrors;
mod buckets;
mod changed;
#[cfg(feature = "client")]
pub mod client;
mod clones;
mod config;
mod devices;
mod drills;
mod dumps;
mod errors;
mod findings;
mod fleet;
mod governor;
mod groups;
mod hooks;
mod images;
mod jobs;
mod luns;
mod mirrors;
mod mounts;
mod nfs;
mod notify;
mod oidc;
mod peers;
mod plans;
mod quotas;
mod recordings;
pub mod remedy;
mod schedules;
mod scrub;
mod snapshots;
mod status;
mod tls;
mod tokens;
mod uris;
mod verify;
mod volumes;

pub use access::{Access, IscsiParameters, SetAccess, SetChap, Target, WriteCache};
pub use activity::{Activity, Rate};
pub use address::{Address, DEFAULT_DATA, InvalidAddress};
pub use browse::{
    Archive, Download, DumpFilePlace, FileEntry, FileKind, FileListing, FilePlace, FileVersion, FileVersions,
    ListDumpFiles, ListFiles, ListVersions, RestoreFiles, RestoredFiles,
};
pub use bucket_mirrors::{
    BucketImage, BucketImages, BucketImagesQuery, BucketMirror, BucketMirrorPlan, BucketMirrorState,
    BucketTransfer, BucketVerify, BucketVolume, CreateBucketMirror, DeletedBucketMirror, RestoreBucketMirror,
    SetBucketMirror,
};
pub use buckets::{
    AddBucket, AddBucketRecipient, Bucket, BucketAbility, BucketChange, BucketCheck, BucketEncryption,
    BucketKeys, BucketRecipient, BucketUse, DeleteBucketQuery, SetBucketKey,
};
pub use changed::{ChangedQuery, ChangedRange, ChangedRanges};
pub use clones::{CreateClone, VolumeClone};
pub use config::{ConfigCheck, ConfigFinding, Overridden};
pub use devices::{
    AcceptOlder, AcceptedOlder, AdoptDevice, CreateMark, CreateView, Device, DiscardHistory,
    DiscardedHistory, EnableHistory, FloorPolicy, Folding, GrowHistory, HistoryEnabled, HistoryStatus,
    Instant, IoCount, LostVersion, Mark, Placement, Reduce, ReleaseQuery, Revert, RevertCopy, Reverted, Thin,
    View, ViewQuery, VolumeHistory, Window,
};
pub use drills::{Drill, DrillOutcome, DrillRequest, DrillResult};
pub use dumps::{
    DiffSnapshots, FileChange, FileChangeKind, FileDumpPlan, FileDumpRecord, FileDumpRequest, FileDumpResult,
};
pub use errors::{ErrorBody, ErrorKind, Problem};
pub use findings::{FileIn, file_of, file_of_finding, name_findings, shown_path};
pub use fleet::{AddFleetServer, FleetQuery, FleetServer, FleetState, FleetSummary};
pub use governor::{Governor, SetGovernor};
pub use groups::{
    CreateGroup, Group, GroupFailover, GroupFailoverState, GroupLoss, GroupMember, GroupReverse,
    GroupSnapshot, ShowGroup,
};
pub use hooks::{Hooks, SetHooks};
pub use images::{
    BucketCost, BucketDump, BucketDumps, BucketDumpsQuery, BucketObjectQuery, BucketPart, BucketPruned,
    BucketUnfinished, ConfirmDump, DumpFolder, DumpPlan, DumpRecord, DumpRequest, DumpResult, FolderDump,
    PruneBucket, RestoreRequest, RestoreResult, ResumeError, UnfinishedDump, UnfinishedRestore,
};
pub use jobs::{Job, JobOutcome, JobQuery, JobState};
pub use luns::{CreateLun, Export, ExportTotals, Lun, Reach, ResizeLun, Session};
pub use mirrors::{
    Aborted, AllowReverse, Compress, CreateMirror, DeletedMirror, Departed, Divergence, DivergenceRequest,
    DryRun, Failover, FailoverRequest, Follower, LagSample, Leftover, LinkWish, Mirror, MirrorPlan,
    MirrorRole, MirrorSession, MirrorState, RepointMirror, ResyncRequest, ReverseAllowed, SeedMirror,
    SetMirror, Transfer, UnlockMirror, UpdatePrice, UpdateRequest,
};
pub use mounts::{CreateMount, Mount, Unmount};
pub use nfs::{NfsExport, NfsSquash, RemoveNfs, SetNfs};
pub use notify::{
    AddNotify, DeleteNotifyQuery, Hidden, NotifyKind, NotifySettings, NotifySeverity, NotifyTarget,
    NotifyTest, NotifyTls,
};
pub use oidc::{CreateOidcRule, Oidc, OidcRule, OidcTest, SetOidc};
pub use peers::{Invitation, Invite, Peer, PeerState, RenamePeer};
pub use plans::{LivePlan, PlanQuery};
pub use quotas::{Quota, SetQuota};
pub use recordings::{RecordExport, Recording};
pub use schedules::{DEFAULT_SCHEDULES, DefaultSchedule, Keep, Schedule, SetSchedule, Simulate, Simulation};
pub use scrub::{CheckFinding, CheckRequest, CheckResult, DamagedBlock, Scrub, ScrubRequest, ScrubResult};
pub use snapshots::{
    CreateSnapshot, Freed, FreesWith, HoldSnapshot, RenameSnapshot, Snapshot, SnapshotFrees,
};
pub use status::{DamagedFile, GiveUpState, GivenUp, RestoreState, StateBackup, Status};
pub use tls::{IssueCertificate, IssuedCertificate, Tls};
pub use tokens::{
    AccessToken, AuditEntry, AuditOutcome, AuditQuery, CreateToken, CreatedToken, ForbiddenRequest,
    OwnAccess, Role,
};
pub use uris::{tcp_uri, unix_uri};
pub use verify::{MirrorVerify, VerifyRequest};
pub use volumes::{
    CacheRequest, CreateVolume, DiscardLogRequest, DiscardedLog, GrowVolume, HostRoom, MoveLog,
    OpenFromBucket, Rehearsal, RehearsalStatus, Volume, VolumeBucket, VolumeCache, VolumeRole,
};

/// The header in every answer that says which program answered.
pub const VERSION_HEADER: &str = "cairn-version";

/// Most files in one message, and so most parts of a dump that is written or restored.
pub const HANDOVER_FILES_MAX: usize = 64;
