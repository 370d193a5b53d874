//! State files: small JSON documents that are either the old or the new one, whatever happens.
//!
//! A document is written beside its place, made durable, renamed over the old one, and the directory is made durable.
//! Each carries a `version`; a newer one than this program knows is refused, not guessed at.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::ServerError;

/// The version of every state file of this release.
const VERSION: u64 = 1;

#[derive(Serialize)]
struct Versioned<'a, T> {
    version: u64,
    #[serde(flatten)]
    body: &'a T,
}

/// Writes `body` at `path`, for the owner's eyes only.
pub(crate) fn save<T: Serialize>(path: &Path, body: &T) -> Result<(), ServerError> {
    let text = text(path, body)?;
    replace(path, &text).map_err(ServerError::path("write", path))
}

/// Reads `path`; `None` when there is no such file.
pub(crate) fn load<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, ServerError> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(ServerError::Path { action: "read", path: path.to_owned(), source }),
    };
    parse(path, &text).map(Some)
}

/// Reads the document in `text`, which stood at `path`.
pub(crate) fn parse<T: DeserializeOwned>(path: &Path, text: &[u8]) -> Result<T, ServerError> {
    let damaged = |source| ServerError::DamagedState { path: path.to_owned(), source };
    let value: serde_json::Value = serde_json::from_slice(text).map_err(damaged)?;
    let found = value.get("version").and_then(serde_json::Value::as_u64).unwrap_or(0);
    if found != VERSION {
        return Err(ServerError::StateVersion { path: path.to_owned(), found, supported: VERSION });
    }
    serde_json::from_value(value).map_err(damaged)
}

/// The document as text.
pub(crate) fn text<T: Serialize>(path: &Path, body: &T) -> Result<Vec<u8>, ServerError> {
    let mut text = serde_json::to_vec_pretty(&Versioned { version: VERSION, body })
        .map_err(|source| ServerError::DamagedState { path: path.to_owned(), source })?;
    text.push(b'\n');
    Ok(text)
}

/// Puts `bytes` at `path`, mode 0600, durably, the old content staying until the new is complete.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let beside = path.with_extension("new");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&beside, path)?;
    sync_parent(path)
}

/// Makes the entries of the directory that holds `path` durable.
pub(crate) fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}
