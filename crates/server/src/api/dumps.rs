//! BSD dumps in the API.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Which files are to be dumped.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FileDumpRequest {
    /// The snapshot, without the volume's name; one that is made for the dump when not given (of a mirror, the newest image).
    pub snapshot: Option<String>,
    /// The only file or directory that is wanted, from the root; empty for all.
    #[serde(default)]
    pub path: String,
    /// 0: everything. 1 to 9: what changed since the last dump of this path of a lower level. 0 when not given.
    pub level: Option<u8>,
    /// Patterns of what is left out: of names, or with a slash of paths from the root.
    #[serde(default)]
    pub exclude: Vec<String>,
    /// What the hand-over socket answered to the file; without it nothing is written.
    pub ticket: Option<String>,
}

/// A dump before it is written.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct FileDumpPlan {
    /// 0 to 9.
    pub level: u8,
    /// It has what changed since then; none for everything.
    pub since_ms: Option<u64>,
    /// Files and directories in it.
    pub inodes: u64,
    /// Directories of these.
    pub directories: u64,
    /// Bytes of content, holes included.
    pub data_bytes: u64,
}

/// A dump that was written.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct FileDumpResult {
    /// The volume.
    pub volume: String,
    /// What was dumped, as `VOLUME@SNAPSHOT`; it may have been made for the dump alone.
    pub snapshot: String,
    /// The path.
    pub path: String,
    /// 0 to 9.
    pub level: u8,
    /// It has what changed since then; none for everything.
    pub since_ms: Option<u64>,
    /// Files and directories in it.
    pub inodes: u64,
    /// Bytes of dump.
    pub bytes: u64,
    /// What could not be read, or has no place in the format, a line each. Empty when all is there.
    pub failed: Vec<String>,
}

/// The last dump of a path and level.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct FileDumpRecord {
    /// From the root.
    pub path: String,
    /// 0 to 9.
    pub level: u8,
    /// What changed since then belongs to the next dump of a higher level.
    pub date_ms: u64,
    /// What was dumped.
    pub snapshot: String,
    /// Bytes of dump.
    pub bytes: u64,
}
