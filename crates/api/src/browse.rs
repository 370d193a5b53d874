//! Objects about the files of a volume at any instant: listings, versions, downloads, restores.
//!
//! A path is from the root of the volume. It is text in `path`; if it is not UTF-8, `path_bytes`
//! has its bytes, percent-encoded.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// A path in the files of a volume at an instant.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct FilePlace {
    /// A snapshot or a view, without the volume; by default the volume as it is now.
    pub at: Option<String>,
    /// The path; by default the root.
    #[serde(default)]
    pub path: String,
    /// Its bytes, percent-encoded, in place of `path`.
    pub path_bytes: Option<String>,
    /// The form of a folder that is downloaded; by default tar.
    pub archive: Option<Archive>,
}

/// The form of a folder that is downloaded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Archive {
    /// POSIX pax: with owners, hard links, extended attributes and special files.
    #[default]
    Tar,
    /// Names, contents, permissions and times.
    Zip,
}

/// A page of a listing.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListFiles {
    /// A snapshot or a view, without the volume; by default the volume as it is now.
    pub at: Option<String>,
    /// A directory; by default the root.
    #[serde(default)]
    pub path: String,
    /// Its bytes, percent-encoded, in place of `path`.
    pub path_bytes: Option<String>,
    /// The `more` of the previous page; by default the listing begins.
    pub after: Option<String>,
    /// Names on the page: 1 to 1,000, by default 1,000.
    pub limit: Option<u32>,
}

/// The kind of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FileKind {
    /// Bytes.
    File,
    /// Names.
    Directory,
    /// A path.
    SymbolicLink,
    /// A device, a pipe or a socket.
    Special,
}

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileEntry {
    /// The name.
    pub name: String,
    /// Its bytes, percent-encoded, if they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name_bytes: Option<String>,
    /// The kind.
    pub kind: FileKind,
    /// The number of the file, which no other file of the volume gets.
    pub number: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// The last change of the content, in milliseconds since 1970.
    pub modified_ms: i64,
    /// Permissions, 12 bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// The target of a symbolic link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Why the attributes cannot be read; the other fields are then 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Names in a directory, in no order.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct FileListing {
    /// The volume, the snapshot or the view.
    pub name: String,
    /// The directory, from the root.
    pub path: String,
    /// Its bytes, percent-encoded, if they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_bytes: Option<String>,
    /// The names.
    pub entries: Vec<FileEntry>,
    /// Where the next page begins; none at the end.
    pub more: Option<String>,
}

/// The versions of a file over the snapshots of a volume.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListVersions {
    /// The path.
    #[serde(default)]
    pub path: String,
    /// Its bytes, percent-encoded, in place of `path`.
    pub path_bytes: Option<String>,
    /// The `more` of the previous answer: older snapshots; by default the volume as it is now and
    /// the newest snapshots.
    pub before: Option<String>,
}

/// A state of a file, and the snapshots that show it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct FileVersion {
    /// The newest snapshot that shows it; none: the volume as it is now.
    pub at: Option<String>,
    /// When that was taken; none for now.
    pub at_ms: Option<u64>,
    /// The oldest snapshot without a change up to `at`; none: only the volume as it is now.
    pub since: Option<String>,
    /// When that was taken.
    pub since_ms: Option<u64>,
    /// Snapshots that show it.
    pub snapshots: u64,
    /// The file; none if the path did not exist, or could not be read.
    pub entry: Option<FileEntry>,
    /// Why it could not be read.
    pub problem: Option<String>,
}

/// Versions of a file, the newest first.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct FileVersions {
    /// The path.
    pub path: String,
    /// The versions.
    pub versions: Vec<FileVersion>,
    /// Older snapshots that were not looked at: the next `before`.
    pub more: Option<String>,
}

/// A download that was prepared.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Download {
    /// The path of the URL: it works once, within a minute, without other credentials.
    pub url: String,
    /// The name of the file that arrives.
    pub file_name: String,
    /// Its length; none for a folder, which arrives as a tar file.
    pub bytes: Option<u64>,
}

/// Restores a file or a folder from an instant into the volume as it is now.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RestoreFiles {
    /// A snapshot or a view, without the volume.
    pub at: String,
    /// The path there.
    #[serde(default)]
    pub path: String,
    /// Its bytes, percent-encoded, in place of `path`.
    #[serde(default)]
    pub path_bytes: Option<String>,
}

/// The plan or the result of a restore.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct RestoredFiles {
    /// The path of the restored file, which did not exist before.
    pub path: String,
    /// Its bytes, percent-encoded, if they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_bytes: Option<String>,
    /// A file with the original name is there, and stays as it is.
    pub beside: bool,
    /// Files, directories and links; 0 before the restore.
    pub files: u64,
    /// Bytes of content; 0 before the restore.
    pub bytes: u64,
}

/// A page of a listing inside an image dump in a bucket or in a folder.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListDumpFiles {
    /// `VOLUME`, `VOLUME@DUMP` or `PATH/VOLUME@DUMP`, where VOLUME is a name or an id and DUMP the
    /// beginning of an id or the name of a snapshot. In a folder: the id of the dump.
    pub of: String,
    /// An older snapshot in the dump; by default the snapshot that was dumped.
    pub at: Option<String>,
    /// A directory; by default the root.
    #[serde(default)]
    pub path: String,
    /// Its bytes, percent-encoded, in place of `path`.
    pub path_bytes: Option<String>,
    /// The `more` of the previous page; by default the listing begins.
    pub after: Option<String>,
    /// Names on the page: 1 to 1,000, by default 1,000.
    pub limit: Option<u32>,
}

/// A path in an image dump in a bucket or in a folder.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct DumpFilePlace {
    /// The dump, as for a listing.
    pub of: String,
    /// An older snapshot in the dump; by default the snapshot that was dumped.
    pub at: Option<String>,
    /// The path; by default the root.
    #[serde(default)]
    pub path: String,
    /// Its bytes, percent-encoded, in place of `path`.
    pub path_bytes: Option<String>,
    /// The form of a folder that is downloaded; by default tar.
    pub archive: Option<Archive>,
}
