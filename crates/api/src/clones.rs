//! Clones in the API.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Makes a clone of a snapshot.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateClone {
    /// The volume.
    pub volume: String,
    /// Its snapshot, without the volume.
    pub snapshot: String,
    /// The name of the new volume: letters, digits, `.`, `_` and `-`, beginning with a letter or a
    /// digit, at most 64.
    pub name: String,
}

/// A clone: a volume that begins as a snapshot of another one.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct VolumeClone {
    /// Its name, as a volume.
    pub name: String,
    /// Its base, `VOLUME@SNAPSHOT` under its name at that time.
    pub of: String,
    /// Of the block space; 0 when it is not open.
    pub size_bytes: u64,
    /// The disk space of the clone alone.
    pub own_bytes: u64,
    /// How many LUNs.
    pub luns: u64,
    /// Why it is not open, or takes no writes any more.
    pub problem: Option<String>,
}
