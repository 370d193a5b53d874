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
    /// Where they are mirrors, each shows its own newest image, not all of them one instant.
    #[serde(default)]
    pub apart: bool,
}

/// Says what the mirrors of a group show.
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
    /// Where they are mirrors, all of them show one instant.
    pub together: bool,
    /// What they show then; none when they have none in common, or take writes. Those that are
    /// missing in it have it in memory only, as their source has deleted it.
    pub shown: Option<GroupSnapshot>,
    /// The newest snapshot of the group that all of them have: what they can be brought to
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
    /// When the newest image that it has was taken, by the source's clock.
    pub image_ms: Option<u64>,
    /// How far that is behind.
    pub lag_ms: Option<u64>,
    /// What it has beyond the snapshot that the group shows or, at the source, that is kept for the
    /// mirrors that are the furthest behind. Of one group only, not in the list.
    pub beyond_bytes: Option<u64>,
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
    /// Servers of mirrors, by the first digits of their certificates, that have this one in all of
    /// their mirrors and nothing newer: it stays for them.
    pub kept_for: Vec<String>,
}

/// How far a failover of a group is.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct GroupFailoverState {
    /// What all are brought to.
    pub snapshot: String,
    /// When it was begun.
    pub at_ms: u64,
    /// It is the end of a planned change of roles: all volumes have what their sources wrote last.
    pub reverse: bool,
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

/// What a planned change of the roles of a group has brought.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct GroupReverse {
    /// The group.
    pub name: String,
    /// The snapshot of the instant at which the sources stopped, which all volumes show.
    pub snapshot: String,
    /// When that was made.
    pub created_ms: Option<u64>,
    /// What each volume is now.
    pub mirrors: Vec<Mirror>,
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
