//! A volume that is being restored: its devices are taken, and it is in service once it is whole.
//!
//! It is made in a folder that a start clears away, and renamed at the end. Until then its devices have no superblock, so devices that
//! the user named look as empty as before when the server is killed.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use cairn_device::Device;
use cairn_volume::{CheckDepth, Role, Volume};

use super::{Document, Entry, OpenVolume, Parts, Volumes, clear_beginning, whole};
use crate::error::ServerError;
use crate::images;
use crate::names;
use crate::state;

/// Devices on their way to be a volume. Dropped before [`Unfinished::finish`], all is as it was.
pub(crate) struct Unfinished<'a> {
    volumes: &'a Volumes,
    name: String,
    nursery: PathBuf,
    parts: Option<Parts>,
}

impl Volumes {
    /// Takes a name and devices for a block space of `blocks` blocks.
    pub(crate) fn begin_restore(
        &self,
        name: &str,
        blocks: u64,
        devices: &[String],
    ) -> Result<Unfinished<'_>, ServerError> {
        names::check("volume", name)?;
        let _changing = self.changing.lock();
        if self.entries.read().contains_key(name) || self.folder(name).exists() {
            return Err(ServerError::Taken { what: "volume", name: name.to_owned() });
        }
        if !self.restoring.lock().insert(name.to_owned()) {
            return Err(ServerError::Busy { name: name.to_owned(), by: "it is being restored" });
        }
        let nursery = self.dir.join(format!(".{name}.restore"));
        let mut unfinished =
            Unfinished { volumes: self, name: name.to_owned(), nursery: nursery.clone(), parts: None };
        unfinished.clear()?;
        fs::create_dir(&nursery).map_err(ServerError::path("create", &nursery))?;
        let (paths, devices) = self.take_devices(Some(blocks), Role::Normal, devices, &nursery)?;
        state::save(
            &nursery.join("volume.json"),
            &Document { devices: paths.clone(), log_devices: Vec::new(), clone_of: None },
        )?;
        unfinished.parts = Some(Parts { paths, devices, log: None, clone_of: None });
        let have = unfinished.device().geometry().length;
        let need = Volume::device_bytes(blocks, Role::Normal);
        if have < need {
            return Err(ServerError::DeviceTooSmall {
                size: blocks.saturating_mul(super::BLOCK),
                need,
                have,
            });
        }
        Ok(unfinished)
    }
}

impl Unfinished<'_> {
    /// All of the devices as one.
    pub(crate) fn device(&self) -> Arc<dyn Device> {
        whole(self.parts.as_ref().map(|parts| &parts.devices[..]).unwrap_or_default())
    }

    /// Opens the volume for a check, and closes it again.
    pub(crate) fn check(
        &self,
        depth: CheckDepth,
        device: Arc<dyn Device>,
    ) -> Result<Vec<String>, ServerError> {
        let failed = ServerError::volume(&self.name);
        let volume = Volume::open(device, self.volumes.options()).map_err(&failed)?;
        let findings = images::findings(&volume, &self.name, depth)?;
        volume.close().map_err(&failed)?;
        Ok(findings)
    }

    /// Puts the volume into service.
    pub(crate) fn finish(mut self) -> Result<Arc<OpenVolume>, ServerError> {
        let _changing = self.volumes.changing.lock();
        let folder = self.volumes.folder(&self.name);
        fs::rename(&self.nursery, &folder)
            .and_then(|()| state::sync_parent(&folder))
            .map_err(ServerError::path("create", &folder))?;
        let mut parts = self.parts.take().ok_or(ServerError::Bug)?;
        parts.paths.iter_mut().for_each(|path| *path = folder.join(&*path));
        let open = self.volumes.start(&self.name, parts)?;
        self.volumes.entries.write().insert(self.name.clone(), Entry::Open(open.clone()));
        Ok(open)
    }

    fn clear(&self) -> Result<(), ServerError> {
        match fs::remove_dir_all(&self.nursery) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(ServerError::Path { action: "remove", path: self.nursery.clone(), source: error })
            }
            _ => Ok(()),
        }
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        // Given up: devices that the user named can be named again.
        if let Some(parts) = self.parts.take() {
            for (path, part) in parts.paths.iter().zip(&parts.devices) {
                if path.is_absolute()
                    && let Err(error) = clear_beginning(part)
                {
                    tracing::warn!(path = %path.display(), %error, "the beginning of a device was not cleared");
                }
            }
        }
        if let Err(error) = self.clear() {
            tracing::warn!(%error, "a folder stays until the next start");
        }
        self.volumes.restoring.lock().remove(&self.name);
    }
}
