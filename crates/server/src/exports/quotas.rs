//! Quotas of files: limits on the space of directories, including all files below.

use cairn_api as api;
use cairn_files::{Quota, Tree, TreeError, from_percent, path_bytes, path_text};

use crate::error::ServerError;

mod commands;

/// The path in a tree that a request is about, without slashes at its ends.
pub(crate) fn asked_path(text: &str, bytes: Option<&str>) -> Result<Vec<u8>, ServerError> {
    let wrong = ServerError::Invalid {
        fault: "path_bytes is not percent-encoded",
        next: "use a client of the same version as the server",
    };
    let path = match bytes {
        Some(bytes) => from_percent(bytes).ok_or(wrong)?,
        None => text.as_bytes().to_vec(),
    };
    let is_inside = |byte: &u8| *byte != b'/';
    let start = path.iter().position(is_inside).unwrap_or(path.len());
    let end = path.iter().rposition(is_inside).map_or(start, |end| end + 1);
    Ok(path[start..end].to_vec())
}

fn show(tree: &Tree, quota: &Quota) -> Result<api::Quota, TreeError> {
    let path = match tree.directory_path(quota.directory) {
        Ok(path) => Some([b"/", &path[..]].concat()),
        Err(TreeError::NotFound) => None,
        Err(error) => return Err(error),
    };
    Ok(api::Quota {
        path: path.as_ref().map(|path| path_text(path)),
        path_bytes: path.and_then(|path| path_bytes(&path)),
        limit_bytes: quota.limits.bytes,
        limit_files: quota.limits.files,
        used_bytes: quota.used_bytes,
        used_files: quota.used_files,
    })
}
