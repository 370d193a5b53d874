//! A volume that is being restored: its devices are taken, and it is in service once it is whole.
//!
//! It is made in a folder of its own, `.NAME.restore`, which is renamed at the end. Until it can be
//! resumed, a start removes the folder, and devices that the user named look as empty as before.
//! With notes of its progress ([`RestoreNotes`]) it stays, and its name and its devices are in use
//! until it is resumed or given up.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cairn_api::{self as api, ResumeError};
use cairn_device::{Device, FileDevice};
use cairn_volume::{CheckDepth, Role, Volume};

use super::{VolumeState, Volumes, is_same};
use crate::daemon::data_dir::guard;
use crate::dumps::error::DumpsError;
use crate::dumps::images::notes::RestoreNotes;
use crate::error::ServerError;
use crate::volumes::disks::{BUSY_PATIENCE, clear_beginning, is_empty, open_when_free, whole};
use crate::volumes::document::VolumeDocument;
use crate::volumes::error::VolumesError;
use crate::volumes::findings::findings;
use crate::volumes::open::{OpenVolume, Parts};
use crate::{names, state};

/// The name of the notes in the folder of a restore.
const NOTES: &str = "restore.json";

/// Devices on their way to be a volume. Dropped before [`Unfinished::finish`], all is as it was, or
/// as the notes say.
pub(crate) struct Unfinished<'a> {
    volumes: &'a Volumes,
    name: String,
    nursery: PathBuf,
    parts: Option<Parts>,
}

/// The error for an unreadable part of an interrupted restore.
fn unread(volume: &str) -> impl Fn(ServerError) -> ServerError {
    move |source| {
        ServerError::Dumps(DumpsError::RestoreUnread { volume: volume.to_owned(), source: Box::new(source) })
    }
}

/// The volume whose restore this folder has, if that can be resumed.
pub(super) fn unfinished_in(folder: &Path) -> Option<String> {
    let name = folder.file_name()?.to_str()?.strip_prefix('.')?.strip_suffix(".restore")?;
    // A folder that can't be inspected is not removed.
    folder.join(NOTES).try_exists().unwrap_or(true).then(|| name.to_owned())
}

impl Volumes {
    fn nursery(&self, name: &str) -> PathBuf {
        self.dir.join(format!(".{name}.restore"))
    }

    /// Volumes whose restore has notes, running or interrupted.
    pub(crate) fn unfinished_restores(&self) -> Vec<String> {
        let Ok(listing) = fs::read_dir(&self.dir) else { return Vec::new() };
        let mut names: Vec<String> = listing.filter_map(|found| unfinished_in(&found.ok()?.path())).collect();
        names.sort();
        names
    }

    /// How far an unfinished restore is.
    pub(crate) fn restore_notes(&self, name: &str) -> Result<RestoreNotes, ServerError> {
        // It is not one of the state files that the owner of a server handles.
        let notes = state::load(&self.nursery(name).join(NOTES)).map_err(unread(name))?;
        notes.ok_or_else(|| {
            ServerError::Dumps(DumpsError::Resume(ResumeError::NoUnfinishedRestore {
                volume: name.to_owned(),
            }))
        })
    }

    /// Restores that wait to be resumed.
    pub(super) fn restore_problems(&self) -> Vec<api::Problem> {
        let mut names = self.unfinished_restores();
        let running = self.restoring.lock();
        names.retain(|name| !running.contains(name));
        let problem = |name: String| api::Problem {
            subject: name.clone(),
            message: "its image restore was cut, and what there is of it stays".to_owned(),
            next: ServerError::Dumps(DumpsError::Resume(ResumeError::RestoreUnfinished { volume: name }))
                .next(),
        };
        names.into_iter().map(problem).collect()
    }

    /// Refuses a name that a restore has, whether it runs or was cut.
    pub(crate) fn refuse_if_restored(&self, name: &str) -> Result<(), ServerError> {
        if self.restoring.lock().contains(name) {
            return Err(ServerError::Busy { name: name.to_owned(), by: "it is being restored" });
        }
        match unfinished_in(&self.nursery(name)) {
            Some(volume) => {
                Err(ServerError::Dumps(DumpsError::Resume(ResumeError::RestoreUnfinished { volume })))
            }
            None => Ok(()),
        }
    }

    /// Refuses a device of a restore that was cut.
    pub(super) fn refuse_if_restored_to(&self, path: &Path) -> Result<(), ServerError> {
        for volume in self.unfinished_restores() {
            let nursery = self.nursery(&volume);
            let Ok(Some(document)) = state::load::<VolumeDocument>(&nursery.join("volume.json")) else {
                continue;
            };
            if document.devices.iter().any(|device| is_same(&nursery.join(device), path)) {
                return Err(ServerError::Dumps(DumpsError::Resume(ResumeError::RestoreClaimed {
                    path: path.to_owned(),
                    volume,
                })));
            }
        }
        Ok(())
    }

    /// Takes a name and devices for a block space of `blocks` blocks.
    pub(crate) fn begin_restore(
        &self,
        name: &str,
        blocks: u64,
        devices: &[String],
    ) -> Result<Unfinished<'_>, ServerError> {
        names::check("volume", name)?;
        let _turn = self.turns.take(&[name], "it is being restored")?;
        if self.entries.read().contains_key(name) || self.folder(name).exists() {
            return Err(ServerError::Taken { what: "volume", name: name.to_owned() });
        }
        self.refuse_if_restored(name)?;
        let mut unfinished = self.take(name);
        unfinished.clear()?;
        let nursery = unfinished.nursery.clone();
        // Before there are notes in it that count on it.
        guard::make_new_folder(&nursery)
            .and_then(|()| state::sync_parent(&nursery))
            .map_err(ServerError::path("create", &nursery))?;
        let (paths, devices) = self.take_devices(Some(blocks), Role::Normal, devices, &nursery)?;
        state::save(&nursery.join("volume.json"), &VolumeDocument::of(paths.clone()))?;
        unfinished.parts = Some(Parts::of(paths, devices));
        let have = unfinished.device().geometry().length;
        let need = Volume::device_bytes(blocks, Role::Normal);
        if have < need {
            return Err(ServerError::Volumes(VolumesError::DeviceTooSmall {
                size: blocks.saturating_mul(crate::volumes::disks::BLOCK),
                need,
                have,
                last: None,
            }));
        }
        Ok(unfinished)
    }

    /// Opens the remains of an interrupted restore, in the state of its notes.
    pub(crate) fn resume_restore(&self, name: &str) -> Result<(Unfinished<'_>, RestoreNotes), ServerError> {
        names::check("volume", name)?;
        let _turn = self.turns.take(&[name], "it is being restored")?;
        let mut unfinished = self.take_begun(name)?;
        let notes = self.restore_notes(name)?;
        let paths = unfinished.devices()?;
        let open = |path: &PathBuf| open_when_free(&unfinished.nursery.join(path), BUSY_PATIENCE);
        let devices: Vec<_> = paths.iter().map(open).collect::<Result<_, _>>()?;
        for (number, (path, device)) in paths.iter().zip(&devices).enumerate() {
            let is_on = notes.is_on(number, device)?;
            let fits = notes.has_length(number, device) && is_on != Some(false);
            // At its very end a restore makes a volume, which may be there when it was cut.
            let begins = fits && number == 0 && !is_empty(device)?;
            let known = is_on == Some(true) || path.is_relative();
            if !fits || (begins && !known) {
                let path = unfinished.nursery.join(path);
                return Err(ServerError::Dumps(DumpsError::RestoreDeviceChanged {
                    path,
                    volume: name.to_owned(),
                }));
            }
            if begins {
                clear_beginning(device)?;
            }
        }
        unfinished.parts = Some(Parts::of(paths, devices));
        Ok((unfinished, notes))
    }

    /// Gives up an interrupted restore.
    pub(crate) fn give_up_restore(&self, name: &str) -> Result<(), ServerError> {
        names::check("volume", name)?;
        let _turn = self.turns.take(&[name], "its restore is being abandoned")?;
        let mut unfinished = self.take_begun(name)?;
        // Only devices that it has written to are cleared: the name of one may refer to another by
        // now.
        let notes = self.restore_notes(name);
        let own = |(number, path): (usize, PathBuf)| {
            let device = open_when_free(&unfinished.nursery.join(&path), BUSY_PATIENCE).ok()?;
            let is_own =
                notes.as_ref().is_ok_and(|notes| matches!(notes.is_on(number, &device), Ok(Some(true))));
            is_own.then_some((path, device))
        };
        let paths = unfinished.devices().unwrap_or_default();
        let (paths, devices) = paths.into_iter().enumerate().filter_map(own).unzip();
        unfinished.parts = Some(Parts::of(paths, devices));
        let notes = unfinished.nursery.join(NOTES);
        fs::remove_file(&notes)
            .and_then(|()| state::sync_parent(&notes))
            .map_err(ServerError::path("remove", &notes))
    }

    fn take(&self, name: &str) -> Unfinished<'_> {
        self.restoring.lock().insert(name.to_owned());
        Unfinished { volumes: self, name: name.to_owned(), nursery: self.nursery(name), parts: None }
    }

    fn take_begun(&self, name: &str) -> Result<Unfinished<'_>, ServerError> {
        match self.refuse_if_restored(name) {
            Err(ServerError::Dumps(DumpsError::Resume(ResumeError::RestoreUnfinished { .. }))) => {
                Ok(self.take(name))
            }
            Err(error) => Err(error),
            Ok(()) => Err(ServerError::Dumps(DumpsError::Resume(ResumeError::NoUnfinishedRestore {
                volume: name.to_owned(),
            }))),
        }
    }
}

impl Unfinished<'_> {
    /// All of the devices as one.
    pub(crate) fn device(&self) -> Arc<dyn Device> {
        whole(self.parts())
    }

    /// One by one.
    pub(crate) fn parts(&self) -> &[Arc<FileDevice>] {
        self.parts.as_ref().map(|parts| &parts.devices[..]).unwrap_or_default()
    }

    /// The path of the notes.
    pub(crate) fn notes(&self) -> PathBuf {
        self.nursery.join(NOTES)
    }

    /// Where its devices are, as in `volume.json`.
    fn devices(&self) -> Result<Vec<PathBuf>, ServerError> {
        let path = self.nursery.join("volume.json");
        let missing = || ServerError::Path {
            action: "read",
            path: path.clone(),
            source: std::io::ErrorKind::NotFound.into(),
        };
        let document = state::load::<VolumeDocument>(&path).and_then(|document| document.ok_or_else(missing));
        Ok(document.map_err(unread(&self.name))?.devices)
    }

    /// Opens the volume for a check, and closes it again.
    pub(crate) fn check(
        &self,
        depth: CheckDepth,
        device: Arc<dyn Device>,
    ) -> Result<Vec<String>, ServerError> {
        let failed = ServerError::volume(&self.name);
        let volume = Volume::open(device, self.volumes.options()).map_err(&failed)?;
        let findings = findings(&volume, &self.name, depth)?;
        volume.close().map_err(&failed)?;
        Ok(findings)
    }

    /// Puts the volume into service.
    pub(crate) fn finish(mut self) -> Result<Arc<OpenVolume>, ServerError> {
        let _turn = self.volumes.turns.wait(&self.name, "it is being restored");
        let folder = self.volumes.folder(&self.name);
        fs::rename(&self.nursery, &folder).map_err(ServerError::path("create", &folder))?;
        let entry = match self.start_in(&folder) {
            Ok(open) => VolumeState::Open(open),
            // It has its place, and can't be opened: it is shown as that, and can be deleted.
            Err(error) => VolumeState::Unavailable(Arc::new(error)),
        };
        self.volumes.entries.write().insert(self.name.clone(), entry);
        self.volumes.get(&self.name)
    }

    /// Opens the volume in its place.
    fn start_in(&mut self, folder: &Path) -> Result<Arc<OpenVolume>, ServerError> {
        // In any outcome the devices have the volume, and must not be cleared.
        let mut parts = self.parts.take().ok_or(ServerError::Bug)?;
        state::sync_parent(folder).map_err(ServerError::path("create", folder))?;
        // In the folder of a volume they are not read.
        if let Err(error) = fs::remove_file(folder.join(NOTES))
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(volume = self.name, %error, "the notes of a restore stay in the folder of its volume");
        }
        parts.paths.iter_mut().for_each(|path| *path = folder.join(&*path));
        self.volumes.start(&self.name, parts)
    }

    fn clear(&self) -> Result<(), ServerError> {
        match fs::remove_dir_all(&self.nursery) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(ServerError::Path { action: "remove", path: self.nursery.clone(), source: error })
            }
            _ => Ok(()),
        }
    }

    /// Given up: devices that the user named can be named again.
    fn let_go(&self, parts: &Parts) {
        for (path, part) in parts.paths.iter().zip(&parts.devices) {
            if path.is_absolute()
                && let Err(error) = clear_beginning(part)
            {
                tracing::warn!(path = %path.display(), %error, "the beginning of a device was not cleared");
            }
        }
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        let parts = self.parts.take();
        if unfinished_in(&self.nursery).is_none() {
            if let Some(parts) = &parts {
                self.let_go(parts);
            }
            if let Err(error) = self.clear() {
                tracing::warn!(%error, "a folder stays until the next start");
            }
        }
        // A resumed restore opens the devices next.
        drop(parts);
        self.volumes.restoring.lock().remove(&self.name);
    }
}
