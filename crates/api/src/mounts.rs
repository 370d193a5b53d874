//! Mounts in the API.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Mounts the files of a volume, or of a snapshot, on a directory of the server's machine.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateMount {
    /// The volume.
    pub volume: String,
    /// Its snapshot, without the volume; by default the volume itself, for a mirror the newest
    /// image at any time.
    pub snapshot: Option<String>,
    /// An absolute path.
    pub directory: String,
    /// Users other than the server's get in; root's mounts are for all.
    #[serde(default)]
    pub allow_other: bool,
    /// Device files are devices. Only a server that root runs does that.
    #[serde(default)]
    pub devices: bool,
    /// Set-user-id bits count. Only a server that root runs does that.
    #[serde(default)]
    pub set_user_id: bool,
}

/// Takes a mount away.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Unmount {
    /// As [`Mount::directory`] has it.
    pub directory: String,
    /// Also while programs work in it: it is gone from its place at once, and ends when they do.
    #[serde(default)]
    pub lazy: bool,
    /// Even while programs use it, which are cut off: all their accesses fail. Also for a mount
    /// that was removed before, and that programs still use.
    #[serde(default)]
    pub force: bool,
}

/// A mount.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Mount {
    /// `VOLUME` or `VOLUME@SNAPSHOT`.
    pub name: String,
    /// The mount point.
    pub directory: String,
    /// Nothing can be changed in it.
    pub read_only: bool,
    /// Why it is not mounted now; it is retried at the next start, or on request.
    pub problem: Option<String>,
    /// It was removed from its directory, by `--lazy` or another program, and these processes still
    /// use it. It is listed until they end.
    pub left_to: Option<String>,
}
