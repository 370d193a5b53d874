//! Volumes are created: whole, or not at all.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cairn_api::ErrorKind;
use cairn_device::{FileDevice, FileOptions};
use cairn_volume::{FormatOptions, NewLog, Role, Volume};

use crate::daemon::data_dir::guard;
use crate::devices::take_file;
use crate::error::ServerError;
use crate::storage::claims::refuse_relative;
use crate::volumes::disks::{BLOCK, in_the_folder, make_files, refuse_if_not_empty, whole};
use crate::volumes::document::{Making, VolumeDocument};
use crate::volumes::error::VolumesError;
use crate::volumes::log_file::LogFile;
use crate::volumes::open::{OpenVolume, Parts};
use crate::volumes::under::{LOG_FAULT, LOG_NEXT};
use crate::volumes::{NewVolume, VolumeState, Volumes, log_file, making};
use crate::{names, state};

impl Volumes {
    /// Creates a volume. It exists completely, or not at all: it is created in a folder that a
    /// start would remove, and then renamed.
    pub(crate) fn create(&self, new: &NewVolume<'_>) -> Result<Arc<OpenVolume>, ServerError> {
        names::check("volume", new.name)?;
        let _turn = self.turns.take(&[new.name], "it is being made")?;
        let folder = self.folder(new.name);
        if self.entries.read().contains_key(new.name) || folder.exists() {
            return Err(ServerError::Taken { what: "volume", name: new.name.to_owned() });
        }
        self.refuse_if_restored(new.name)?;
        let nursery = self.dir.join(format!(".{}.new", new.name));
        let clear = || match fs::remove_dir_all(&nursery) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
        clear()
            .and_then(|()| guard::make_new_folder(&nursery))
            .map_err(ServerError::path("create", &nursery))?;
        let mut stores = Vec::new();
        let made = self.make(new, &nursery, &mut stores).and_then(|mut parts| {
            fs::rename(&nursery, &folder)
                .and_then(|()| state::sync_parent(&folder))
                .map_err(ServerError::path("create", &folder))?;
            parts.paths.iter_mut().for_each(|path| *path = folder.join(&*path));
            self.start(new.name, parts)
        });
        match made {
            Ok(open) => {
                self.entries.write().insert(new.name.to_owned(), VolumeState::Open(open.clone()));
                Ok(open)
            }
            Err(error) => {
                if folder.exists() {
                    // It exists, with its devices and its history, but could not be opened: it is
                    // shown as such, and can be deleted.
                    self.entries
                        .write()
                        .insert(new.name.to_owned(), VolumeState::Unavailable(Arc::new(error)));
                    return self.get(new.name);
                }
                stores.iter().for_each(|path: &PathBuf| drop(fs::remove_file(path)));
                // Otherwise this would wait for the holder of the device.
                if error.kind() != ErrorKind::Busy {
                    making::take_back_made(&nursery);
                }
                if let Err(left) = clear() {
                    tracing::warn!(path = %nursery.display(), %left, "a folder stays until the next start");
                }
                Err(error)
            }
        }
    }

    /// Opens the devices of a new volume, or makes a file for it; paths are as in `volume.json`.
    pub(super) fn take_devices(
        &self,
        blocks: Option<u64>,
        role: Role,
        devices: &[String],
        nursery: &Path,
    ) -> Result<(Vec<PathBuf>, Vec<Arc<FileDevice>>), ServerError> {
        if devices.is_empty() {
            let blocks = blocks.ok_or(ServerError::WrongSize {
                fault: "a volume without --device needs a size",
                next: "give --size, such as --size 100G",
            })?;
            let first = nursery.join("volume.img");
            let (paths, devices) = make_files(&first, Volume::device_bytes(blocks, role))?;
            return Ok((in_the_folder(&paths), devices));
        }
        let mut parts = Vec::new();
        for path in devices {
            refuse_relative("the path of a device", Path::new(path))?;
            let device = take_file(Path::new(path), FileOptions::default())?;
            // After locking it: no other process can claim it from here on.
            self.refuse_if_claimed(Path::new(path))?;
            refuse_if_not_empty(&device, Path::new(path))?;
            parts.push(Arc::new(device));
        }
        Ok((devices.iter().map(PathBuf::from).collect(), parts))
    }

    /// Makes a volume's devices ready; paths are as in `volume.json`. `stores` gets the file that
    /// was made for a history.
    pub(super) fn make(
        &self,
        new: &NewVolume<'_>,
        nursery: &Path,
        stores: &mut Vec<PathBuf>,
    ) -> Result<Parts, ServerError> {
        if new.history.is_some() && new.log_device.is_some() {
            return Err(ServerError::Invalid { fault: LOG_FAULT, next: LOG_NEXT });
        }
        // A history never changes the length of its device: it needs room for the areas of a
        // mirror.
        let role = if new.history.is_some() { Role::Destination } else { new.role };
        let (paths, devices) = self.take_devices(new.blocks, role, new.devices, nursery)?;
        let mut device = whole(&devices);
        let have = device.geometry().length;
        let blocks = new.blocks.unwrap_or_else(|| Volume::blocks_for(have, role));
        let need = Volume::device_bytes(blocks, role);
        if blocks == 0 || need > have {
            let size = blocks.saturating_mul(BLOCK);
            return Err(ServerError::Volumes(VolumesError::DeviceTooSmall { size, need, have, last: None }));
        }
        let options = FormatOptions { id: new.id, blocks, role: new.role };
        let log = new.log_device.map(|path| LogFile::take(Path::new(path))).transpose()?;
        new.log_device.map_or(Ok(()), |path| self.refuse_if_claimed(Path::new(path)))?;
        let log_id = log.as_ref().map(|_| log_file::new_id());
        let plan = new.history.map(|wish| self.plan_history(wish)).transpose()?;
        // Before any of its files exist: it identifies the remains of a kill, which are removed.
        let coming = VolumeDocument {
            log_devices: log.iter().map(|log| log.path.clone()).collect(),
            coming: plan.as_ref().map(|plan| plan.beneath.clone()),
            made_as: Some(Making::new(new.id, log_id)),
            ..VolumeDocument::of(paths.clone())
        };
        state::save(&nursery.join("volume.json"), &coming)?;
        let mut under = None;
        if let Some(plan) = &plan {
            let origin = self.folder(new.name).join(paths.first().ok_or(ServerError::Bug)?);
            let opened = self.make_history(new.name, plan, &origin, device, stores)?;
            device = opened.device();
            under = Some(opened);
        }
        let formatted = match (&log, log_id) {
            (Some(log), Some(id)) => {
                let log = NewLog { device: &*log.device, id };
                Volume::format_with_log(&*device, &log, &options, &*self.clock)
            }
            _ => Volume::format(&*device, &options, &*self.clock),
        };
        formatted.map_err(ServerError::volume(new.name))?;
        new.beside.map_or(Ok(()), |write| write(nursery))?;
        let history = plan.map(|plan| plan.beneath);
        let document = VolumeDocument { coming: None, history, ..coming };
        state::save(&nursery.join("volume.json"), &document)?;
        state::renew_copy(&nursery.join("volume.json"));
        Ok(Parts { log, under, ..Parts::of(paths, devices) })
    }
}
