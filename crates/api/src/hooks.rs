//! Objects about commands around snapshots.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The commands around each snapshot of a volume.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Hooks {
    /// The volume.
    pub volume: String,
    /// Run by `/bin/sh` before it; if it fails there is no snapshot.
    pub before: Option<String>,
    /// Run after it, however it went.
    pub after: Option<String>,
    /// How long each may take. Past it, it is killed and has failed.
    pub timeout_ms: u64,
    /// The problem of the last run.
    pub problem: Option<String>,
}

/// Changes the commands around snapshots; missing fields stay unchanged.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SetHooks {
    /// Before; empty for none.
    pub before: Option<String>,
    /// After; empty for none.
    pub after: Option<String>,
    /// How long each may take, up to 10 minutes.
    pub timeout_ms: Option<u64>,
}
