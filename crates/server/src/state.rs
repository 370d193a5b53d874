//! State files: small JSON documents that are either the old or the new one, whatever happens.
//!
//! A document is written beside its place, made durable, renamed over the old one, and the
//! directory is made durable. Each carries a `version`; a newer one than this program knows is
//! refused, not guessed at.
//!
//! An existing file that can't be read is never overwritten: it may be the only copy. Some
//! documents keep their previous generation beside them, as `NAME.json.old`; see
//! [`keeps_previous`]. [`crate::daemon::damaged`] handles the others, and the parts that need them.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::daemon::error::DaemonError;
use crate::error::ServerError;

/// One document is written at a time: two threads that write the same one would share the temporary
/// file, and one could still write to it after the other's rename. All documents are small and on
/// one file system, so the waits are short.
static WRITING: Mutex<()> = Mutex::new(());

/// The version of every state file of this release.
const VERSION: u64 = 1;

#[derive(Serialize)]
struct Versioned<'a, T> {
    version: u64,
    #[serde(flatten)]
    body: &'a T,
}

/// Why a document with an existing file is unknown: an error that can be reported many times.
#[derive(Debug, Clone)]
pub(crate) struct Unread {
    path: PathBuf,
    reason: String,
}

impl Unread {
    /// Records and logs the error.
    pub(crate) fn new(path: &Path, error: &ServerError) -> Self {
        tracing::error!(%error, "cannot read a state file; it is not changed, and the part that owns it stays out of service");
        Self { path: path.to_owned(), reason: error.to_string() }
    }

    pub(crate) fn error(&self) -> ServerError {
        ServerError::Daemon(DaemonError::StateUnread { path: self.path.clone(), reason: self.reason.clone() })
    }
}

/// The content of a file, or why it is unknown. A missing file is a different case.
pub(crate) fn known<T: DeserializeOwned>(path: &Path) -> (Option<T>, Option<Unread>) {
    match load(path) {
        Ok(document) => (document, None),
        Err(error) => (None, Some(Unread::new(path, &error))),
    }
}

/// Refuses while something is not known.
pub(crate) fn refuse_unread(unread: Option<&Unread>) -> Result<(), ServerError> {
    unread.map_or(Ok(()), |unread| Err(unread.error()))
}

/// Writes `body` at `path`, readable only by the owner. An existing unreadable file is not
/// overwritten.
pub(crate) fn save<T: Serialize + DeserializeOwned>(path: &Path, body: &T) -> Result<(), ServerError> {
    let text = text(path, body)?;
    let _writing = WRITING.lock();
    let is_there = load::<T>(path)?.is_some();
    if keeps_previous(path) {
        keep_previous(path, is_there.then_some(path), &text).map_err(ServerError::path("write", path))?;
    }
    put(path, &text).map_err(ServerError::path("write", path))
}

/// Whether the previous generation of a document stays beside it, for
/// `cairn state restore --previous`.
///
/// Whether the previous generation of a document is kept: only if an older one does no harm. The
/// places of a device never change (`devices/NAME.json`); if those of a volume change, both
/// generations are updated (`volume.json`). The volume itself overrides `mirror.json` (its role,
/// its image, and the check of the source). `followers.json` is rebuilt when mirrors reconnect.
/// `drill.json`, `views.json` and `mounts.json` concern only readers, and `buckets.json` names
/// places. It is not kept if an older one would undo a removal. Examples are revoked peers and
/// rights, released reservations, used consents of an owner, stricter retention rules, and dates of
/// dumps that a rollback has invalidated. Another is a completed failover of a group, which would
/// be resumed.
fn keeps_previous(path: &Path) -> bool {
    const KEPT: [&str; 7] = [
        "volume.json",
        "mirror.json",
        "followers.json",
        "drill.json",
        "views.json",
        "mounts.json",
        "buckets.json",
    ];
    let is_device = path.parent().and_then(Path::file_name).is_some_and(|folder| folder == "devices");
    is_device || path.file_name().is_some_and(|name| KEPT.iter().any(|kept| name == *kept))
}

/// The path of the previous generation of a document.
pub(crate) fn previous(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".old");
    name.into()
}

/// Keeps the file at `path` as the previous generation; for a first one makes a copy, as the places
/// in it never change.
fn keep_previous(path: &Path, now: Option<&Path>, text: &[u8]) -> io::Result<()> {
    let old = previous(path);
    let Some(now) = now else { return write_beside(&old, text) };
    let beside = old.with_extension("old.new");
    match fs::remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    link_or_copy(now, &beside)?;
    fs::rename(&beside, &old)
}

/// Not all file systems have links.
fn link_or_copy(path: &Path, other: &Path) -> io::Result<()> {
    fs::hard_link(path, other).or_else(|_| fs::copy(path, other).and_then(|_| File::open(other)?.sync_all()))
}

/// Gives the file at `path` another name as well, durably.
pub(crate) fn keep_as(path: &Path, other: &Path) -> io::Result<()> {
    link_or_copy(path, other)?;
    sync_parent(other)
}

/// Makes a copy of a document that has none, as one restored from a backup. Without room for it the
/// server continues.
pub(crate) fn keep_copy(path: &Path) {
    if !previous(path).exists() {
        renew_copy(path);
    }
}

/// Makes the generation beside a document equal to it.
pub(crate) fn renew_copy(path: &Path) {
    let old = previous(path);
    let _writing = WRITING.lock();
    let Ok(text) = fs::read(path) else { return };
    if fs::read(&old).is_ok_and(|copy| copy == text) {
        return;
    }
    if let Err(error) = write_beside(&old, &text) {
        tracing::warn!(path = %old.display(), %error, "a state file has no equal copy beside it");
    }
}

/// Removes a document permanently and durably. Removes its previous generation first, which a later
/// document of its name must not find, and the remains of an interrupted write.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    let _writing = WRITING.lock();
    let old = previous(path);
    let cut = [path.with_extension("new"), old.with_extension("new"), old.with_extension("old.new")];
    for beside in cut.iter().chain([&old]) {
        match fs::remove_file(beside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    fs::remove_file(path).and_then(|()| sync_parent(path))
}

/// Reads `path`; `None` if there is no such file.
pub(crate) fn load<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, ServerError> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(ServerError::Path { action: "read", path: path.to_owned(), source }),
    };
    parse(path, &text).map(Some)
}

/// Reads the document in `text`, found at `path`.
pub(crate) fn parse<T: DeserializeOwned>(path: &Path, text: &[u8]) -> Result<T, ServerError> {
    let damaged = |source| ServerError::Daemon(DaemonError::DamagedState { path: path.to_owned(), source });
    let value: serde_json::Value = serde_json::from_slice(text).map_err(damaged)?;
    let found = value.get("version").and_then(serde_json::Value::as_u64).unwrap_or(0);
    if found != VERSION {
        return Err(ServerError::Daemon(DaemonError::StateVersion {
            path: path.to_owned(),
            found,
            supported: VERSION,
        }));
    }
    serde_json::from_value(value).map_err(damaged)
}

/// The document as text.
pub(crate) fn text<T: Serialize>(path: &Path, body: &T) -> Result<Vec<u8>, ServerError> {
    let mut text = serde_json::to_vec_pretty(&Versioned { version: VERSION, body })
        .map_err(|source| ServerError::Daemon(DaemonError::DamagedState { path: path.to_owned(), source }))?;
    text.push(b'\n');
    Ok(text)
}

/// Puts `bytes` at `path`, mode 0600, durably, the old content staying until the new is complete.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let _writing = WRITING.lock();
    put(path, bytes)
}

/// The same, for the holder of the lock.
fn put(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_beside(path, bytes)?;
    sync_parent(path)
}

/// The same, but for the durability of the name.
fn write_beside(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let beside = path.with_extension("new");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
    let written =
        file.write_all(bytes).and_then(|()| file.sync_all()).and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        // It would take room of a file system that is full.
        let _ = fs::remove_file(&beside);
    }
    written
}

/// Makes the entries of the directory that holds `path` durable.
pub(crate) fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
