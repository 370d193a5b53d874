//! Files in the API: BSD dumps, and the differences between snapshots.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Which files are to be dumped.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FileDumpRequest {
    /// The snapshot, without the volume's name; by default one that is made for the dump (for a
    /// mirror, the newest image).
    pub snapshot: Option<String>,
    /// The only file or directory that is wanted, from the root; empty for all.
    #[serde(default)]
    pub path: String,
    /// The same percent-encoded, for a path that is not UTF-8; `path` is then ignored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_bytes: Option<String>,
    /// 0: everything. 1 to 9: the changes since the last dump of this path at a lower level. 0 by
    /// default.
    pub level: Option<u8>,
    /// Exclusion patterns: for names, or with a slash for paths from the root.
    #[serde(default)]
    pub exclude: Vec<String>,
    /// The answer of the hand-over socket to the file; without it nothing is written.
    pub ticket: Option<String>,
    /// Records of 1 KiB in each volume, for a dump in several; they are written in a row, for the
    /// client to split there. Rounded down to a multiple of ten, and at least 40.
    pub volume_records: Option<u64>,
    /// The client itself makes the data from a pipe durable, and confirms that by a byte on the
    /// hand-over socket: only then can later dumps be based on this one.
    #[serde(default)]
    pub confirmed: bool,
}

/// A dump before it is written.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct FileDumpPlan {
    /// 0 to 9.
    pub level: u8,
    /// The dump has the changes since then; none for everything.
    pub since_ms: Option<u64>,
    /// Files and directories in it.
    pub inodes: u64,
    /// Directories of these.
    pub directories: u64,
    /// Bytes of content, holes included.
    pub data_bytes: u64,
    /// Why all inodes are checked, for a level above 0; none if the maps of two snapshots show the
    /// changes.
    pub why_all: Option<String>,
}

/// A dump that was written.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct FileDumpResult {
    /// The volume.
    pub volume: String,
    /// The dumped snapshot, as `VOLUME@SNAPSHOT`; it may have been made only for the dump.
    pub snapshot: String,
    /// The path.
    pub path: String,
    /// Its bytes, percent-encoded, if they are not UTF-8; `path` then has `\xNN` for each invalid
    /// byte.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_bytes: Option<String>,
    /// 0 to 9.
    pub level: u8,
    /// The dump has the changes since then; none for everything.
    pub since_ms: Option<u64>,
    /// Files and directories in it.
    pub inodes: u64,
    /// Bytes of dump.
    pub bytes: u64,
    /// Why all inodes were checked, for a level above 0; none if the maps of two snapshots showed
    /// the changes. A note of the job reports it at the beginning.
    pub why_all: Option<String>,
    /// Files that could not be read, or do not fit the format, a line each. Empty if the dump is
    /// complete.
    pub failed: Vec<String>,
}

/// The last dump of a path and level.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct FileDumpRecord {
    /// From the root.
    pub path: String,
    /// Its bytes, percent-encoded, if they are not UTF-8; `path` then has `\xNN` for each invalid
    /// byte.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_bytes: Option<String>,
    /// 0 to 9.
    pub level: u8,
    /// Later changes belong to the next dump of a higher level.
    pub date_ms: u64,
    /// The dumped snapshot.
    pub snapshot: String,
    /// Bytes of dump.
    pub bytes: u64,
}

/// The change of a file between two snapshots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FileChangeKind {
    /// It did not exist before.
    Created,
    /// Its content or its attributes are others.
    Changed,
    /// It has another name.
    Renamed,
    /// It has a name more.
    Linked,
    /// It has a name less, and others still.
    Unlinked,
    /// It does not exist any more.
    Deleted,
}

/// A file that differs between two snapshots.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct FileChange {
    /// From the root; none of a file that is open and deleted.
    pub path: Option<String>,
    /// Its bytes, percent-encoded, if they are not UTF-8; `path` then has `\xNN` for each invalid
    /// byte.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_bytes: Option<String>,
    /// The kind of change.
    pub change: FileChangeKind,
    /// The earlier path of a renamed file.
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
