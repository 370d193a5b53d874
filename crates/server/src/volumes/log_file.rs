//! The device of a volume's intent log: opened, and found among its possible places.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cairn_base::LogId;
use cairn_device::{Device, FileDevice, FileOptions, Rehearsal, RehearsalDevice, SideDevice};
use cairn_volume::{Volume, VolumeError};

use crate::devices::take_file;
use crate::error::ServerError;
use crate::peers::token::random_bytes;
use crate::storage::claims::refuse_relative;
use crate::volumes::disks::{open_when_free, refuse_if_not_empty};
use crate::volumes::error::VolumesError;

/// An open log device.
#[derive(Clone)]
pub(super) struct LogFile {
    pub(super) path: PathBuf,
    pub(super) device: Arc<FileDevice>,
}

impl LogFile {
    /// Opens a device that holds nothing yet.
    pub(super) fn take(path: &Path) -> Result<Self, ServerError> {
        refuse_relative("the path of a log device", path)?;
        let device = take_file(path, FileOptions::default())?;
        refuse_if_not_empty(&device, path)?;
        Ok(Self { path: path.to_owned(), device: Arc::new(device) })
    }

    /// The device with a thread of its own: a flush waits for the slower of two devices, not for
    /// both in turn.
    pub(super) fn beside(&self, rehearsal: &Arc<Rehearsal>) -> Result<Arc<dyn Device>, ServerError> {
        let device = RehearsalDevice::new(self.device.clone(), rehearsal.clone());
        let device = SideDevice::new(Arc::new(device));
        let device = device.map_err(|source| ServerError::Thread { what: "a log device", source })?;
        Ok(Arc::new(device))
    }
}

/// A name for a new log.
pub(super) fn new_id() -> LogId {
    LogId(random_bytes())
}

/// Opens the log device of the volume on `device`, if it has one. Of several paths it is the one
/// with the right log; the volume reports faults of a single one.
pub(super) fn find(
    name: &str,
    device: &dyn Device,
    paths: &[PathBuf],
    patience: Duration,
) -> Result<Option<LogFile>, ServerError> {
    if paths.is_empty() {
        return Ok(None);
    }
    let inspection = Volume::inspect(device).map_err(ServerError::volume(name))?;
    let Some(wanted) = inspection.log else { return Ok(None) };
    let mut found = Err(ServerError::volume(name)(VolumeError::LogMissing { log: wanted }));
    for path in paths {
        match open_when_free(path, patience) {
            Ok(device) => {
                let is_it = matches!(Volume::log_on(&*device), Ok(Some(on)) if on == (inspection.id, wanted));
                if is_it || found.is_err() {
                    found = Ok(LogFile { path: path.clone(), device });
                }
                if is_it {
                    break;
                }
            }
            Err(source) if found.is_err() => {
                let (volume, path) = (name.to_owned(), path.clone());
                found = Err(ServerError::Volumes(VolumesError::LogUnavailable { volume, path, source }));
            }
            Err(_) => {}
        }
    }
    found.map(Some)
}
