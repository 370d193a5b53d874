//! Objects about groups of volumes.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Keep, Mirror};

/// Makes a group.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateGroup {
    /// Its name, of at most 32 characters.
    pub name: String,
    /// Its volumes: two or more of this server, mirrors or not.
    pub volumes: Vec<String>,
    /// If they are mirrors, each shows its own newest image, not all of them one instant.
    #[serde(default)]
    pub apart: bool,
}

/// Sets the images that the mirrors of a group show.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ShowGroup {
    /// One instant: the newest snapshot of the group that all of them have. Otherwise each its own
    /// newest image.
    pub together: bool,
}

/// A group.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// Its volumes.
    pub members: Vec<GroupMember>,
    /// If they are mirrors, all of them show one instant.
    pub together: bool,
    /// The snapshot that they show then; none if they have none in common, or are writable. Volumes
    /// listed as missing have it only in memory, as their source has deleted it.
    pub shown: Option<GroupSnapshot>,
    /// The newest snapshot of the group that all of them have: they can be recovered to it
    /// together.
    pub common: Option<GroupSnapshot>,
    /// Between the oldest and the newest image that its mirrors have.
    pub spread_ms: Option<u64>,
    /// Its snapshots, the oldest first.
    pub snapshots: Vec<GroupSnapshot>,
    /// Those that its rules do not keep: the next run of its schedule deletes them.
    pub deletes: Vec<String>,
    /// One is made so often.
    pub every_ms: Option<u64>,
    /// Or by this cron expression.
    pub cron: Option<String>,
    /// In this time zone; UTC by default.
    pub zone: Option<String>,
    /// How long they are kept.
    pub keep: Keep,
    /// When the schedule last ran.
    pub last_ms: Option<u64>,
    /// When it runs next; none if the volumes are mirrors, whose source makes the snapshots.
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
    /// The volume exists, and it is open.
    pub is_there: bool,
    /// It is a mirror that follows its source.
    pub follows: bool,
    /// When the newest image that it has was taken, by the source's clock.
    pub image_ms: Option<u64>,
    /// The lag of that image.
    pub lag_ms: Option<u64>,
    /// Its changes since the snapshot that the group shows or, at the source, since the snapshot
    /// kept for the mirrors with the largest lag. Only for a single group, not in the list.
    pub beyond_bytes: Option<u64>,
}

/// A snapshot of a group: one of the same name in each volume, of the same instant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GroupSnapshot {
    /// Its name in each volume.
    pub name: String,
    /// When it was made.
    pub created_ms: u64,
    /// Volumes that do not have it (yet, or any more).
    pub missing: Vec<String>,
    /// Servers of mirrors, by the first digits of their certificates, that have this one in all of
    /// their mirrors and nothing newer: it stays for them.
    pub kept_for: Vec<String>,
}

/// How far a failover of a group is.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct GroupFailoverState {
    /// The target snapshot of all volumes.
    pub snapshot: String,
    /// When it was begun.
    pub at_ms: u64,
    /// It is the end of a planned change of roles: all volumes have the last writes of their
    /// sources.
    pub reverse: bool,
    /// Volumes that are not done yet.
    pub left: Vec<String>,
}

/// The effects of a failover of a group, real or planned.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct GroupFailover {
    /// The group.
    pub name: String,
    /// The snapshot that all volumes show.
    pub snapshot: String,
    /// When that was made.
    pub created_ms: Option<u64>,
    /// The loss of each volume.
    pub lost: Vec<GroupLoss>,
    /// Nothing was done.
    pub dry_run: bool,
}

/// The result of a planned change of the roles of a group.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct GroupReverse {
    /// The group.
    pub name: String,
    /// The snapshot of the instant at which the sources stopped, which all volumes show.
    pub snapshot: String,
    /// When that was made.
    pub created_ms: Option<u64>,
    /// The present state of each volume.
    pub mirrors: Vec<Mirror>,
}

/// The loss of one volume in a failover of a group.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct GroupLoss {
    /// The volume.
    pub volume: String,
    /// Changes of its image since the common instant; kept as a snapshot.
    pub undone_bytes: u64,
    /// Changes of its source since the image, as far as is known.
    pub lost_bytes: Option<u64>,
    /// All of that was written within this long before now, at most.
    pub lost_ms: Option<u64>,
}
