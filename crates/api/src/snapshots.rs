//! Objects about snapshots.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

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

/// The space that a deletion of a snapshot would free, alone and together with its neighbours in
/// time.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SnapshotFrees {
    /// VOLUME@SNAPSHOT.
    pub name: String,
    /// Of this snapshot alone.
    pub alone_bytes: u64,
    /// Together with the one before it; none, if it is the oldest one.
    pub with_earlier: Option<FreesWith>,
    /// Together with the one after it; none, if it is the newest one.
    pub with_later: Option<FreesWith>,
    /// Together with both.
    pub with_both_bytes: Option<u64>,
}

/// A neighbour of a snapshot, and the space that a deletion of both would free.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct FreesWith {
    /// VOLUME@SNAPSHOT of the neighbour.
    pub name: String,
    /// Of both.
    pub bytes: u64,
}

/// The space freed by a deletion.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Freed {
    /// No longer in use.
    pub freed_bytes: u64,
}
