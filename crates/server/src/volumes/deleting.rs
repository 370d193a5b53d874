//! Deleting a volume: its name is free at once, and its blocks when its file system gets to it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cairn_device::FileDevice;

use super::{VolumeState, Volumes, not_found};
use crate::error::ServerError;
use crate::{names, state};

/// Suffixes of a volume's name in the folder of an unfinished volume, clone, or restore without
/// notes, which a start removes.
const NURSERIES: [&str; 3] = [".new", ".clone", ".restore"];
/// The suffix of a deleted volume; followed by a number if there are several.
const DELETED: &str = ".deleted";
/// Interval between two checks whether a deleted volume is still in use.
const CLOSE_PAUSE: Duration = Duration::from_millis(100);

impl Volumes {
    /// Deletes a volume. Devices that the user named, for blocks or for the log, are cleared at
    /// their beginning, so that they can be named again.
    pub(crate) fn delete(&self, name: &str) -> Result<(), ServerError> {
        let by = "it is being deleted";
        let _turn = self.turns.take(&[name], by)?;
        self.refuse_if_cloned(name)?;
        let folder = self.folder(name);
        let entry = {
            let mut entries = self.entries.write();
            let there = entries.get_mut(name).ok_or_else(|| not_found(name))?;
            if let VolumeState::Away { by } = there {
                return Err(ServerError::Busy { name: name.to_owned(), by });
            }
            // Its devices are its own until its folder is gone.
            std::mem::replace(there, VolumeState::Away { by })
        };
        let emptied = match &entry {
            VolumeState::Open(open) => open.end().and_then(|()| open.clear_devices(&folder)),
            VolumeState::Away { .. } | VolumeState::Unavailable(_) => Ok(()),
        };
        let closed_last = match &entry {
            VolumeState::Open(open) if open.paths.iter().all(|path| path.starts_with(&folder)) => {
                open.parts.clone()
            }
            // A new volume on its devices finds them free.
            _ => Vec::new(),
        };
        drop(entry);
        let grave = self.grave(name);
        let buried = emptied.and_then(|()| {
            fs::rename(&folder, &grave)
                .and_then(|()| state::sync_parent(&folder))
                .map_err(ServerError::path("delete", &folder))
        });
        if let Err(error) = buried {
            // It is closed, and still there: its name stays taken, and deleting it again leaves the
            // devices that failed alone.
            self.entries.write().insert(name.to_owned(), VolumeState::Unavailable(Arc::new(error)));
            return self.get(name).map(drop);
        }
        self.entries.write().remove(name);
        self.keeps.lock().remove(name);
        remove_left(&grave);
        if !closed_last.is_empty() {
            close_apart(name, closed_last);
        }
        Ok(())
    }

    /// The folder to which a deleted volume is moved. The remains of an earlier one of its name
    /// that can't be removed have their own folder.
    fn grave(&self, name: &str) -> PathBuf {
        let first = format!(".{name}{DELETED}");
        let numbered = (1..).map(|number: u64| format!("{first}.{number}"));
        let names = std::iter::once(first.clone()).chain(numbered);
        let mut free =
            names.map(|name| self.dir.join(name)).filter(|grave| fs::symlink_metadata(grave).is_err());
        free.next().unwrap_or_else(|| self.dir.join(&first))
    }
}

/// Closes the files of a deleted volume, when no other user has them. The last close of such a file
/// waits until its blocks are freed, which takes minutes if the file system discards many blocks
/// one by one. So this must not run in a thread that serves requests, or that holds a lock.
fn close_apart(volume: &str, files: Vec<Arc<FileDevice>>) {
    // An image of it, or a mirror, may still hold it.
    let close = move || {
        while files.iter().any(|file| Arc::strong_count(file) > 1) {
            std::thread::sleep(CLOSE_PAUSE);
        }
    };
    // Without a thread they are closed here and now.
    if let Err(error) = std::thread::Builder::new().name(format!("close-{volume}")).spawn(close) {
        tracing::warn!(volume, %error, "no thread closes the files of a deleted volume");
    }
}

/// Whether a folder of that name remains from an interrupted creation or deletion. Any other one
/// belongs to the owner, who may have set a volume aside by a dot before its name, or to one of the
/// owner's tools.
pub(super) fn is_left(name: &str) -> bool {
    let Some(name) = name.strip_prefix('.') else { return false };
    let unnumbered = match name.rsplit_once('.') {
        Some((rest, number)) if number.parse::<u64>().is_ok() => rest,
        _ => name,
    };
    let volume = unnumbered.strip_suffix(DELETED);
    let volume = volume.or_else(|| NURSERIES.iter().find_map(|end| name.strip_suffix(end)));
    volume.is_some_and(|volume| names::check("volume", volume).is_ok())
}

pub(super) fn remove_left(folder: &Path) {
    if let Err(error) = fs::remove_dir_all(folder) {
        tracing::warn!(path = %folder.display(), %error, "cannot remove the remains of a deleted volume");
    }
}
