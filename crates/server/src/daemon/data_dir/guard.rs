//! Access to the data directory: only the server's user may read its files or add any.
//!
//! All files are created with explicit modes, and the server's umask excludes other users. Files
//! that a copy or a restore has left accessible are restricted at the start. Files of another user
//! are refused: through a document of its own, that user could make the server read and write any
//! file. Root may own files there, as it has such access anyway.

use std::fs::{DirBuilder, Metadata, Permissions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::{fs, io};

use crate::daemon::error::DaemonError;
use crate::error::ServerError;

/// The bits of a mode for other users.
const OTHERS: u32 = 0o077;
/// `DIR/volumes/NAME/FILE`.
const LEVELS: usize = 3;
/// Files of data, which other programs may have given another owner: they are opened as they are,
/// and no document.
const DATA: [&str; 2] = ["img", "store"];

/// The umask with which the process was started.
static STARTED_WITH: AtomicU32 = AtomicU32::new(0o022);

/// Has the process make files and folders for its user alone.
pub(crate) fn set_umask() {
    let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(OTHERS));
    STARTED_WITH.store(before.as_raw_mode(), Ordering::Relaxed);
}

/// The umask with which the process was started: it applies to files outside of the data directory,
/// such as those of the owner's commands.
pub(crate) fn umask_at_start() -> u32 {
    STARTED_WITH.load(Ordering::Relaxed)
}

/// A command of the owner, for a shell: its files are not part of the data directory.
pub(crate) fn shell_text(command: &str) -> String {
    format!("umask {:03o}\n{command}", umask_at_start())
}

/// Makes a folder for the owner alone, and those above it that are missing.
pub(crate) fn make_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// The same for one that must not exist.
pub(crate) fn make_new_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)
}

/// Refuses files of other users, and removes access of other users.
pub(crate) fn close(dir: &Path) -> Result<(), ServerError> {
    let found = fs::symlink_metadata(dir).map_err(ServerError::path("look at", dir))?;
    close_below(dir, &found, found.dev(), LEVELS)
}

fn close_below(path: &Path, found: &Metadata, device: u64, levels: usize) -> Result<(), ServerError> {
    // A file system mounted there is not part of the directory.
    if found.dev() != device {
        return Ok(());
    }
    let kind = found.file_type();
    let is_data = path.extension().is_some_and(|end| DATA.iter().any(|data| end == *data));
    let user = rustix::process::geteuid().as_raw();
    if found.uid() != user && found.uid() != 0 && !is_data {
        return Err(ServerError::Daemon(DaemonError::ForeignState {
            path: path.to_owned(),
            owner: found.uid(),
            user,
        }));
    }
    let mode = found.mode() & 0o7777;
    if (kind.is_dir() || kind.is_file()) && mode & OTHERS != 0 {
        // The mode of a file of root can't be changed, and only root could have written it, unless
        // the mode allows others.
        match fs::set_permissions(path, Permissions::from_mode(mode & !OTHERS)) {
            Ok(()) => {
                tracing::warn!(path = %path.display(), mode = format!("{mode:o}"), "removed the access of other users")
            }
            Err(error) if mode & 0o022 == 0 || is_data => {
                tracing::warn!(path = %path.display(), %error, "cannot remove the access of other users");
            }
            Err(error) => return Err(ServerError::path("close to other users", path)(error)),
        }
    }
    if kind.is_dir() && levels > 0 {
        for found in fs::read_dir(path).map_err(ServerError::path("read", path))? {
            let path = found.map_err(ServerError::path("read", path))?.path();
            match fs::symlink_metadata(&path) {
                Ok(found) => close_below(&path, &found, device, levels - 1)?,
                // It has gone meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(ServerError::path("look at", &path)(error)),
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn what_is_open_to_others_is_closed_and_what_is_elsewhere_is_left() {
        let scratch = tempfile::tempdir().unwrap();
        let dir = scratch.path().join("data");
        let volume = dir.join("volumes/v");
        fs::create_dir_all(&volume).unwrap();
        let elsewhere = scratch.path().join("elsewhere");
        fs::write(&elsewhere, b"x").unwrap();
        fs::write(volume.join("volume.json"), b"{}").unwrap();
        std::os::unix::fs::symlink(&elsewhere, volume.join("volume.img")).unwrap();
        let all =
            [dir.clone(), dir.join("volumes"), volume.clone(), volume.join("volume.json"), elsewhere.clone()];
        for path in &all {
            fs::set_permissions(path, Permissions::from_mode(0o777)).unwrap();
        }
        close(&dir).unwrap();
        assert_eq!(all.map(|path| mode(&path)), [0o700, 0o700, 0o700, 0o700, 0o777]);
    }

    #[test]
    fn what_belongs_to_another_user_is_refused() {
        let scratch = tempfile::tempdir().unwrap();
        let devices = scratch.path().join("devices");
        make_folder(&devices).unwrap();
        let planted = devices.join("evil.json");
        fs::write(&planted, b"{}").unwrap();
        close(scratch.path()).unwrap();
        if std::os::unix::fs::chown(&planted, Some(12_345), None).is_err() {
            // Only root can give files away.
            return;
        }
        let refused = close(scratch.path()).unwrap_err();
        assert!(
            matches!(&refused, ServerError::Daemon(DaemonError::ForeignState { path, owner: 12_345, .. }) if *path == planted)
        );
        fs::rename(&planted, devices.join("volume.img")).unwrap();
        close(scratch.path()).expect("data of another owner is no document");
    }
}
