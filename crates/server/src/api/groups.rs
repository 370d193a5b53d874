//! Objects about groups of volumes.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Keep;

/// Makes a group.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateGroup {
    /// Its name, of at most 32 characters.
    pub name: String,
    /// Its volumes: two or more of this server, mirrors or not.
    pub volumes: Vec<String>,
}

/// A group.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// Its volumes.
    pub members: Vec<GroupMember>,
    /// The newest snapshot of the group that all of them have: what they can be brought to together.
    pub common: Option<GroupSnapshot>,
    /// Between the oldest and the newest image that its mirrors show.
    pub spread_ms: Option<u64>,
    /// Its snapshots, the oldest first.
    pub snapshots: Vec<GroupSnapshot>,
    /// One is made so often.
    pub every_ms: Option<u64>,
    /// Or by this cron expression.
    pub cron: Option<String>,
    /// In this time zone; UTC when none is told.
    pub zone: Option<String>,
    /// How long they are kept.
    pub keep: Keep,
    /// When the schedule last ran.
    pub last_ms: Option<u64>,
    /// When it runs next; nothing where the volumes are mirrors, whose source makes the snapshots.
    pub next_ms: Option<u64>,
    /// Why the last run failed.
    pub problem: Option<String>,
    /// A failover of the group that was begun, or done.
    pub failover: Option<GroupFailoverState>,
}

/// A volume of a group.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct GroupMember {
    /// Its name.
    pub volume: String,
    /// There is such a volume, and it is open.
    pub is_there: bool,
    /// It is a mirror that follows its source.
    pub follows: bool,
    /// When the image that it shows was taken, by the source's clock.
    pub image_ms: Option<u64>,
    /// How far it is behind.
    pub lag_ms: Option<u64>,
}

/// A snapshot of a group: one of the same name in each volume, of the same instant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GroupSnapshot {
    /// What it is called in each volume.
    pub name: String,
    /// When it was made.
    pub created_ms: u64,
    /// Volumes that do not have it (yet, or any more).
    pub missing: Vec<String>,
}

/// How far a failover of a group is.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct GroupFailoverState {
    /// What all are brought to.
    pub snapshot: String,
    /// When it was begun.
    pub at_ms: u64,
    /// Volumes that are not there yet.
    pub left: Vec<String>,
}

/// What a failover of a group did, or would do.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct GroupFailover {
    /// The group.
    pub name: String,
    /// What all volumes show.
    pub snapshot: String,
    /// When that was made.
    pub created_ms: Option<u64>,
    /// What is lost, volume by volume.
    pub lost: Vec<GroupLoss>,
    /// Nothing was done.
    pub dry_run: bool,
}

/// What a failover of a group costs one of its volumes.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct GroupLoss {
    /// The volume.
    pub volume: String,
    /// What its image had beyond the common instant; kept as a snapshot of it.
    pub undone_bytes: u64,
    /// What its source had beyond the image, as far as is known.
    pub lost_bytes: Option<u64>,
    /// All of that was written within this long before now, at most.
    pub lost_ms: Option<u64>,
}
