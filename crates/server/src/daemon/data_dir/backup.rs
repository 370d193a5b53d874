//! A copy of the server's own state in one file: its documents, identity and tokens, and no data.
//!
//! ```text
//! {"cairn_state":1,"version":"0.1.0","made_ms":1795824000000}
//! {"path":"identity.pem","bytes":1180,"sha256":"..."}      and so many bytes, and a new line
//! ...
//! {"files":12,"sha256":"..."}                              of all lines before, without the bytes
//! ```
//!
//! Each document is replaced as a whole when it changes, so a copy of a running server has each of
//! them as it was at some moment of the copy. Volumes, histories and clones are data, and are not
//! in it.
//!
//! A restore that was cut leaves the file `restoring`. No server starts there, as a part of the
//! state could open a LUN to everyone. The next restore deletes that part and begins again.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use std::{fs, io};

use cairn_api::StateBackup;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::guard;
use crate::daemon::error::DaemonError;
use crate::error::ServerError;
use crate::state;

/// The mark of a directory into which the state is being restored.
pub(super) const RESTORING: &str = "restoring";
/// The version of the file.
const VERSION: u32 = 1;
/// A line is a path and a few numbers; a longer line is of another file.
const LINE_MAX: u64 = 16 << 10;
/// Bytes of a document, at most. The longest one has the names of the files of a volume, for a
/// dump.
const BYTES_MAX: u64 = 1 << 40;

#[derive(Serialize, Deserialize)]
struct Head {
    cairn_state: u32,
    version: String,
    made_ms: u64,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    path: String,
    bytes: u64,
    sha256: String,
}

#[derive(Serialize, Deserialize)]
struct End {
    files: u64,
    sha256: String,
}

/// Whether a path below the data directory is one of a document, and not of data, of a socket or of
/// a file that is being written.
fn is_state(path: &Path) -> bool {
    let mut parts = Vec::new();
    for part in path.components() {
        match part {
            Component::Normal(part) => parts.extend(part.to_str()),
            _ => return false,
        }
    }
    if parts.len() != path.components().count() {
        return false;
    }
    let is_document = |name: &str| name.ends_with(".json") || name.ends_with(".json.old");
    match parts[..] {
        [name] => is_document(name) || matches!(name, "identity.pem" | "authority.pem" | "http-token"),
        ["devices", name] => is_document(name) || name.ends_with(".seen"),
        ["volumes", _, name] => {
            is_document(name)
                || name == "history.seen"
                || name.starts_with("names.") && !name.ends_with(".new")
                || name.starts_with("had.") && !name.ends_with(".new")
        }
        _ => false,
    }
}

/// The documents below `dir`, sorted.
fn documents(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(dir.join(&folder))? {
            let entry = entry?;
            let path = folder.join(entry.file_name());
            let kind = entry.file_type()?;
            let depth = path.components().count();
            if kind.is_dir() && (depth > 1 || path == Path::new("volumes") || path == Path::new("devices")) {
                if depth < 3 {
                    folders.push(path);
                }
            } else if kind.is_file() && is_state(&path) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Copies the state in the data directory `dir` to the new file `to`, mode 0600. It is there
/// complete, or not at all.
pub fn back_up(dir: &Path, to: &Path, overwrite: bool) -> Result<StateBackup, ServerError> {
    let dir = dir.canonicalize().map_err(ServerError::path("open", dir))?;
    let documents = documents(&dir).map_err(ServerError::path("read", &dir))?;
    if !documents.iter().any(|path| path == Path::new("identity.pem")) {
        return Err(ServerError::Daemon(DaemonError::NoDataDir { path: dir }));
    }
    if !overwrite && to.symlink_metadata().is_ok() {
        return Err(ServerError::Taken { what: "file", name: to.display().to_string() });
    }
    let mut beside = to.as_os_str().to_owned();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    let _ = fs::remove_file(&beside);
    let written = write(&dir, &documents, &beside).and_then(|done| {
        let to = || fs::rename(&beside, to).and_then(|()| state::sync_parent(&absolute(to)?));
        to().map_err(ServerError::path("write", &beside))?;
        Ok(done)
    });
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written.map(|(files, bytes)| StateBackup { file: to.display().to_string(), files, bytes })
}

fn absolute(path: &Path) -> io::Result<PathBuf> {
    std::path::absolute(path)
}

/// Writes the copy; how many documents, and their bytes.
fn write(dir: &Path, documents: &[PathBuf], to: &Path) -> Result<(u64, u64), ServerError> {
    let failed = |error: io::Error| ServerError::path("write", to)(error);
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(to).map_err(&failed)?;
    let mut out = BufWriter::new(file);
    let mut digest = Sha256::new();
    let line = |out: &mut BufWriter<File>, digest: &mut Sha256, text: String| {
        digest.update(text.as_bytes());
        writeln!(out, "{text}").map_err(ServerError::path("write", to))
    };
    let made_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
    let head = Head { cairn_state: VERSION, version: env!("CARGO_PKG_VERSION").to_owned(), made_ms };
    line(&mut out, &mut digest, text(&head))?;
    let (mut files, mut bytes) = (0, 0);
    for path in documents {
        let from = dir.join(path);
        let content = match fs::read(&from) {
            Ok(content) => content,
            // It was removed since, as with its volume.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(ServerError::path("read", &from)(error)),
        };
        let Some(path) = path.to_str() else { continue };
        let entry = Entry {
            path: path.to_owned(),
            bytes: content.len() as u64,
            sha256: hex(&Sha256::digest(&content)),
        };
        line(&mut out, &mut digest, text(&entry))?;
        out.write_all(&content).and_then(|()| out.write_all(b"\n")).map_err(&failed)?;
        files += 1;
        bytes += entry.bytes;
    }
    let end = End { files, sha256: hex(&digest.finalize()) };
    writeln!(out, "{}", text(&end)).and_then(|()| out.flush()).map_err(&failed)?;
    out.get_ref().sync_all().map_err(&failed)?;
    Ok((files, bytes))
}

fn text<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("these have string keys and no failing parts")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Puts the state in the file `from` into the data directory `dir`. The directory must be empty,
/// missing, or the rest of a restore that was cut. Nothing is written before all of the file was
/// checked.
pub fn restore(from: &Path, dir: &Path) -> Result<StateBackup, ServerError> {
    let damaged = |fault| ServerError::Daemon(DaemonError::InvalidBackup { path: from.to_owned(), fault });
    // Checked before anything is made.
    read(from, &damaged, &mut |_, _| Ok(()))?;
    guard::make_folder(dir).map_err(ServerError::path("create", dir))?;
    let dir = dir.canonicalize().map_err(ServerError::path("open", dir))?;
    let lock = dir.join("lock");
    let had_lock = lock.exists();
    let held = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&lock)
        .map_err(ServerError::path("write to", &dir))?;
    if held.try_lock().is_err() {
        return Err(ServerError::Daemon(DaemonError::DataDirBusy { path: dir }));
    }
    let mark = dir.join(RESTORING);
    let was_cut = mark.exists();
    let others = fs::read_dir(&dir).map_err(ServerError::path("read", &dir))?;
    if !was_cut && others.flatten().any(|entry| entry.file_name() != "lock") {
        if !had_lock {
            let _ = fs::remove_file(&lock);
        }
        return Err(ServerError::Daemon(DaemonError::DataDirNotEmpty { path: dir }));
    }
    let owner = fs::metadata(&dir).map_err(ServerError::path("look at", &dir))?;
    let begin = || -> io::Result<()> {
        File::create(&mark)?.sync_all()?;
        state::sync_parent(&mark)?;
        documents(&dir)?.iter().try_for_each(|path| fs::remove_file(dir.join(path)))
    };
    begin().map_err(ServerError::path("write to", &dir))?;
    let mut made = Vec::new();
    let restored = read(from, &damaged, &mut |path, content| {
        let to = dir.join(path);
        put(&dir, &to, content, &owner).map_err(ServerError::path("write", &to))?;
        made.push(to);
        Ok(())
    });
    match restored {
        Ok((files, bytes)) => {
            fs::remove_file(&mark)
                .and_then(|()| state::sync_parent(&mark))
                .map_err(ServerError::path("write to", &dir))?;
            // The server makes its own lock, with its own owner.
            let _ = fs::remove_file(&lock);
            Ok(StateBackup { file: from.display().to_string(), files, bytes })
        }
        Err(error) => {
            made.iter().chain([&mark]).for_each(|path| drop(fs::remove_file(path)));
            Err(error)
        }
    }
}

/// Writes a document of the owner of the data directory, and the folders above it.
fn put(dir: &Path, to: &Path, content: &[u8], owner: &fs::Metadata) -> io::Result<()> {
    let give = |path: &Path| match rustix::process::geteuid().is_root() {
        true => std::os::unix::fs::chown(path, Some(owner.uid()), Some(owner.gid())),
        false => Ok(()),
    };
    let parent = to.parent().unwrap_or(dir);
    let mut missing: Vec<&Path> = parent.ancestors().take_while(|folder| !folder.exists()).collect();
    while let Some(folder) = missing.pop() {
        guard::make_new_folder(folder)?;
        give(folder)?;
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(to)?;
    file.write_all(content)?;
    file.sync_all()?;
    give(to)?;
    fs::set_permissions(to, fs::Permissions::from_mode(0o600))?;
    state::sync_parent(to)
}

/// Takes a document: its path below the data directory, and its content.
type Each<'a> = dyn FnMut(&Path, &[u8]) -> Result<(), ServerError> + 'a;

/// Reads the file, and hands each document on once it was checked; how many, and their bytes.
fn read(
    from: &Path,
    damaged: &dyn Fn(&'static str) -> ServerError,
    each: &mut Each<'_>,
) -> Result<(u64, u64), ServerError> {
    let failed = |error: io::Error| ServerError::path("read", from)(error);
    let mut input = BufReader::new(File::open(from).map_err(ServerError::path("open", from))?);
    let mut digest = Sha256::new();
    let next = |input: &mut BufReader<File>| -> Result<String, ServerError> {
        let mut line = Vec::new();
        input.by_ref().take(LINE_MAX).read_until(b'\n', &mut line).map_err(&failed)?;
        if line.pop() != Some(b'\n') {
            return Err(damaged("it is truncated, or another file"));
        }
        String::from_utf8(line).map_err(|_| damaged("it is another file"))
    };
    let head = next(&mut input)?;
    let version = serde_json::from_str::<Head>(&head).map_err(|_| damaged("it is another file"))?.cairn_state;
    if version != VERSION {
        return Err(damaged("another version of cairn wrote it"));
    }
    digest.update(head.as_bytes());
    let (mut files, mut bytes) = (0, 0);
    loop {
        let line = next(&mut input)?;
        if let Ok(end) = serde_json::from_str::<End>(&line) {
            let is_whole = end.files == files && end.sha256 == hex(&digest.finalize());
            return if is_whole { Ok((files, bytes)) } else { Err(damaged("its checksum is wrong")) };
        }
        let entry: Entry = serde_json::from_str(&line).map_err(|_| damaged("a line of it is damaged"))?;
        digest.update(line.as_bytes());
        let path = Path::new(&entry.path);
        if !is_state(path) || entry.bytes > BYTES_MAX {
            return Err(damaged("it has a file that is not state of a server"));
        }
        let mut content = Vec::new();
        input
            .by_ref()
            .take(entry.bytes)
            .read_to_end(&mut content)
            .map_err(ServerError::path("read", from))?;
        let mut after = [0];
        let is_ended = input.read_exact(&mut after).is_ok() && after == *b"\n";
        if content.len() as u64 != entry.bytes || !is_ended {
            return Err(damaged("it is truncated"));
        }
        if hex(&Sha256::digest(&content)) != entry.sha256 {
            return Err(damaged("its checksum is wrong"));
        }
        each(path, &content)?;
        files += 1;
        bytes += entry.bytes;
    }
}

#[cfg(test)]
mod tests;
