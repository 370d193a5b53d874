//! Files in the API: BSD dumps, and the differences between snapshots.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Which files are to be dumped.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FileDumpRequest {
    /// The snapshot, without the volume's name; one that is made for the dump when not given (of a
    /// mirror, the newest image).
    pub snapshot: Option<String>,
    /// The only file or directory that is wanted, from the root; empty for all.
    #[serde(default)]
    pub path: String,
    /// The same percent-encoded, of a path that is no UTF-8; then `path` does not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_bytes: Option<String>,
    /// 0: everything. 1 to 9: what changed since the last dump of this path of a lower level. 0
    /// when not given.
    pub level: Option<u8>,
    /// Patterns of what is left out: of names, or with a slash of paths from the root.
    #[serde(default)]
    pub exclude: Vec<String>,
    /// What the hand-over socket answered to the file; without it nothing is written.
    pub ticket: Option<String>,
    /// Records of 1 KiB in each volume, of a dump in several; what is written is one behind the
    /// other, and to be cut there. Whole tens of it count, and at least 40.
    pub volume_records: Option<u64>,
    /// The client puts what it gets through a pipe on a medium itself, and says so by a byte on the
    /// hand-over socket: only then is the dump one that others stand on.
    #[serde(default)]
    pub confirmed: bool,
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
    /// Why all inodes are looked at, of a level above 0; none where the maps of two snapshots say
    /// what changed.
    pub why_all: Option<String>,
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
    /// Its bytes, percent-encoded, where they are no UTF-8; `path` then has `\xNN` for each byte
    /// that is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_bytes: Option<String>,
    /// 0 to 9.
    pub level: u8,
    /// It has what changed since then; none for everything.
    pub since_ms: Option<u64>,
    /// Files and directories in it.
    pub inodes: u64,
    /// Bytes of dump.
    pub bytes: u64,
    /// Why all inodes were looked at, of a level above 0; none where the maps of two snapshots said
    /// what changed. A note of the job says it when it begins.
    pub why_all: Option<String>,
    /// What could not be read, or has no place in the format, a line each. Empty when all is there.
    pub failed: Vec<String>,
}

/// The last dump of a path and level.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct FileDumpRecord {
    /// From the root.
    pub path: String,
    /// Its bytes, percent-encoded, where they are no UTF-8; `path` then has `\xNN` for each byte
    /// that is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_bytes: Option<String>,
    /// 0 to 9.
    pub level: u8,
    /// What changed since then belongs to the next dump of a higher level.
    pub date_ms: u64,
    /// What was dumped.
    pub snapshot: String,
    /// Bytes of dump.
    pub bytes: u64,
}

/// What became of a file between two snapshots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FileChangeKind {
    /// It was not there before.
    Created,
    /// Its content or its attributes are others.
    Changed,
    /// It has another name.
    Renamed,
    /// It has a name more.
    Linked,
    /// It has a name less, and others still.
    Unlinked,
    /// It is not there any more.
    Deleted,
}

/// A file that differs between two snapshots.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct FileChange {
    /// From the root; none of a file that is open and deleted.
    pub path: Option<String>,
    /// Its bytes, percent-encoded, where they are no UTF-8; `path` then has `\xNN` for each byte
    /// that is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_bytes: Option<String>,
    /// What became of it.
    pub change: FileChangeKind,
    /// The path that it had, of one that was renamed.
    pub from: Option<String>,
    /// The bytes of that path, as those of `path`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_bytes: Option<String>,
    /// Its number.
    pub number: u64,
    /// It is a directory.
    pub directory: bool,
}

/// Two snapshots of a volume, or one and the volume as it is.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct DiffSnapshots {
    /// The earlier one, without the volume.
    pub from: String,
    /// The later one; none: the volume as it is.
    pub to: Option<String>,
}
