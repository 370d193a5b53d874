//! Whether a file or disk exists, and whether one that came back is complete: otherwise, while it
//! is being copied to its place, its first half would be opened and written to.

use std::collections::BTreeSet;
use std::fs::{File, Metadata};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use std::{fs, io};

use cairn_device::OpenError;
use parking_lot::Mutex;

/// Time without a write after which the copy of a file is considered complete.
const QUIET: Duration = Duration::from_secs(5);

/// Wait for a file system to answer whether a file exists. It answers from its cache for a file
/// that was opened a moment ago.
const ANSWER: Duration = Duration::from_secs(2);

/// How long a start waits for disks to answer: one that sleeps, or whose controller retries, takes
/// some seconds.
const AWAKE: Duration = Duration::from_secs(5);

/// Paths whose check timed out and is still running: they are not checked again before it ends.
static HANGING: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// The metadata of a path, for callers that can't wait for a disk or a server that hangs: a path
/// that does not answer counts as missing.
pub(crate) fn found(path: &Path) -> Option<Metadata> {
    if HANGING.lock().contains(path) {
        return None;
    }
    let (answer, answered) = mpsc::channel();
    let is_over = Arc::new(AtomicBool::new(false));
    let (mine, over) = (path.to_owned(), is_over.clone());
    // It ends with the hanging, or with the server.
    let look = move || {
        let found = fs::metadata(&mine);
        let mut hanging = HANGING.lock();
        over.store(true, Ordering::Release);
        hanging.remove(&mine);
        drop(hanging);
        let _ = answer.send(found);
    };
    std::thread::Builder::new().name("look".to_owned()).spawn(look).ok()?;
    if let Ok(found) = answered.recv_timeout(ANSWER) {
        return found.ok();
    }
    let mut hanging = HANGING.lock();
    if !is_over.load(Ordering::Acquire) {
        hanging.insert(path.to_owned());
    }
    None
}

/// The files and disks that do not answer a read of their beginning. A missing one does answer.
/// They are checked in parallel.
pub(crate) fn silent(paths: impl IntoIterator<Item = PathBuf>) -> BTreeSet<PathBuf> {
    let mut silent: BTreeSet<PathBuf> = paths.into_iter().collect();
    let (answer, answered) = mpsc::channel();
    for path in &silent {
        let (path, answer) = (path.clone(), answer.clone());
        // It ends with the hanging, or with the server.
        let look = move || {
            let _ = File::open(&path).and_then(|file| file.read_at(&mut [0; 512], 0));
            let _ = answer.send(path);
        };
        if std::thread::Builder::new().name("look".to_owned()).spawn(look).is_err() {
            // The opening of one will find out.
            return BTreeSet::new();
        }
    }
    let begun = Instant::now();
    while !silent.is_empty() {
        match answered.recv_timeout(AWAKE.saturating_sub(begun.elapsed())) {
            Ok(path) => silent.remove(&path),
            Err(_) => break,
        };
    }
    silent
}

/// The error for one of them.
pub(crate) fn no_answer(path: &Path) -> OpenError {
    let why = "it does not answer; it is opened as soon as it does, and the others are served";
    let source = io::Error::new(io::ErrorKind::TimedOut, why);
    OpenError::Io { path: path.to_owned(), source }
}

/// True for a disk, and for a file that has not been written to for a moment; false for a missing
/// one.
pub(crate) fn has_settled(path: &Path) -> bool {
    let Ok(found) = fs::metadata(path) else { return false };
    // A time in the future is not significant.
    let age = found.modified().ok().and_then(|written| written.elapsed().ok());
    !found.is_file() || age.is_none_or(|age| age >= QUIET)
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn file_that_is_being_copied_has_not_settled() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("file");
        assert!(!has_settled(&path), "it is not there");
        let file = File::create(&path).unwrap();
        assert!(!has_settled(&path));
        let now = SystemTime::now();
        for (time, settled) in [(now - QUIET, true), (now + QUIET, true), (now, false)] {
            file.set_modified(time).unwrap();
            assert_eq!(has_settled(&path), settled, "{time:?}");
        }
        assert!(has_settled(Path::new("/dev/null")));
    }
}
