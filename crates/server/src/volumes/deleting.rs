//! Deleting a volume: its name is free at once, and its blocks when its file system gets to it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cairn_device::FileDevice;

use super::{VolumeState, Volumes, not_found};
use crate::error::ServerError;
use crate::{names, state};

/// What follows the name of a volume in that of a folder in which something is made of it, which a
/// start clears away: a volume, a clone, a restore without notes.
const NURSERIES: [&str; 3] = [".new", ".clone", ".restore"];
/// The same of one that is deleted; of several with a number behind it.
const DELETED: &str = ".deleted";
/// Between two looks whether somebody has a deleted volume still.
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
            // Who makes another volume on its devices finds them free.
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

    /// Where a volume goes that is deleted. What is left of another one that had its name, and
    /// can't be removed, has its own place.
    fn grave(&self, name: &str) -> PathBuf {
        let first = format!(".{name}{DELETED}");
        let numbered = (1..).map(|number: u64| format!("{first}.{number}"));
        let names = std::iter::once(first.clone()).chain(numbered);
        let mut free =
            names.map(|name| self.dir.join(name)).filter(|grave| fs::symlink_metadata(grave).is_err());
        free.next().unwrap_or_else(|| self.dir.join(&first))
    }
}

/// Closes the files of a volume that is deleted, once nobody else has them. Who closes such a file
/// last waits until its blocks are free, which takes minutes where the file system discards each of
/// many: that is none who answers somebody, nor one with a lock that others want.
fn close_apart(volume: &str, files: Vec<Arc<FileDevice>>) {
    // An image of it, or a mirror, may have it still.
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

/// Whether a folder of that name is what a making or a deletion that was cut off has left. Any
/// other one is its owner's, who has put a volume aside by a dot before its name, or that of a tool
/// of his.
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
        tracing::warn!(path = %folder.display(), %error, "what is left of a volume that is gone can't be removed");
    }
}
