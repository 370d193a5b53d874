//! Quotas of files in the API.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The limits and the usage of a directory with all files below it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Quota {
    /// The directory, from the root; none for a removed one that is still in use.
    pub path: Option<String>,
    /// Its bytes, percent-encoded, if they are not UTF-8; `path` then has `\xNN` for each invalid
    /// byte.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_bytes: Option<String>,
    /// Bytes of content and directories in it at most.
    pub limit_bytes: Option<u64>,
    /// Files and directories at most, itself included.
    pub limit_files: Option<u64>,
    /// Bytes in it, in whole blocks.
    pub used_bytes: u64,
    /// Files and directories in it, itself included.
    pub used_files: u64,
}

/// Gives a directory a quota, or changes it. Missing fields stay unchanged.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetQuota {
    /// The directory, from the root. One that has no quota yet must be empty.
    pub path: String,
    /// The same percent-encoded, for a path that is not UTF-8; `path` is then ignored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_bytes: Option<String>,
    /// Bytes at most; 0 for no limit.
    pub bytes: Option<u64>,
    /// Files and directories at most; 0 for no limit.
    pub files: Option<u64>,
}
