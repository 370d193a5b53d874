//! The device of a volume's intent log: found and opened, moved to, and given up when it is lost.
//!
//! The superblock alone says whether the log has a device, and which log it is; `volume.json` only says where to look. While the log moves both places
//! stand there, so a crash at any moment leaves a volume that finds its log.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cairn_api as api;
use cairn_base::LogId;
use cairn_device::{Device, FileDevice, FileOptions, Rehearsal, RehearsalDevice, SideDevice};
use cairn_volume::{CONSISTENCY_INTERVAL, LogTarget, Volume, VolumeError};

use super::fence::Fence;
use super::history::LOG_RULE;
use super::{
    BUSY_PATIENCE, Document, Entry, OpenVolume, Volumes, new_rehearsal, open_when_free, refuse_if_not_empty,
    refuse_relative,
};
use crate::devices::take_file;
use crate::error::ServerError;
use crate::state;
use crate::token::random_bytes;

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

    /// The device with a thread of its own: a flush waits for the slower of two devices, not for both in turn.
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

/// Opens the log device of the volume on `device`, when it has one. Of several paths it is the one with the right log; what is wrong with a
/// single one the volume says.
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
                found = Err(ServerError::LogUnavailable { volume, path, source });
            }
            Err(_) => {}
        }
    }
    found.map(Some)
}

impl Volumes {
    /// Moves the log of a volume to `device`, or onto the devices of the volume.
    pub(crate) fn move_log(&self, name: &str, device: Option<&str>) -> Result<Arc<OpenVolume>, ServerError> {
        let _turn = self.turns.take(&[name], "its log is being moved")?;
        let open = self.get(name)?;
        if open.log_in_use().is_none() {
            // A device that failed is let go of, so that it can be named again once it is mended.
            *open.log.lock() = None;
        }
        let path = self.folder(name).join("volume.json");
        let before = self.document(name)?;
        if device.is_some() && open.under.is_some() {
            return Err(ServerError::Invalid { what: "the log device", rule: LOG_RULE });
        }
        let Some(device) = device else {
            open.volume.move_log(&LogTarget::Internal).map_err(ServerError::volume(name))?;
            state::save(&path, &Document { log_devices: Vec::new(), ..before })?;
            *open.log.lock() = None;
            return Ok(open);
        };
        let log = LogFile::take(Path::new(device))?;
        // Once it is locked: nobody else gets it from here on.
        self.refuse_if_claimed(Path::new(device))?;
        let mut both = before.log_devices.clone();
        both.push(log.path.clone());
        state::save(&path, &Document { log_devices: both, ..before.clone() })?;
        let target = LogTarget::Device { device: log.beside(&open.rehearsal)?, id: new_id() };
        if let Err(error) = open.volume.move_log(&target) {
            // Where the log is now the volume knows. A path too many does no harm, and one too few would.
            if open.volume.status().latched.is_none() {
                state::save(&path, &before)?;
            }
            return Err(ServerError::volume(name)(error));
        }
        state::save(&path, &Document { log_devices: vec![log.path.clone()], ..before })?;
        *open.log.lock() = Some(log);
        Ok(open)
    }

    /// Opens a volume that cannot be opened for want of its log at its last consistency point, or only says what that would lose.
    pub(crate) fn discard_log(&self, name: &str, dry_run: bool) -> Result<api::DiscardedLog, ServerError> {
        let _turn = self.turns.take(&[name], "it is being opened without its log")?;
        // It may have come back since the server started: then nothing is lost.
        let reason = self.still_closed(name, &|| ServerError::LogIsThere { volume: name.to_owned() })?;
        if !is_of_the_log(&reason) {
            return Err(reason);
        }
        let document = self.document(name)?;
        let parts = self.open_parts(name, &document, BUSY_PATIENCE)?;
        let rehearsal = new_rehearsal();
        let fence = Arc::new(Fence::new(self.below(name, &parts)?));
        let device = Arc::new(RehearsalDevice::new(fence.clone(), rehearsal.clone()));
        let inspection = Volume::inspect(&*device).map_err(ServerError::volume(name))?;
        let answer = api::DiscardedLog {
            volume: name.to_owned(),
            reason: reason.to_string(),
            generation: inspection.generation.0,
            consistency_point_ms: inspection.created.0 / 1_000_000,
            lost_ms_max: CONSISTENCY_INTERVAL.as_millis() as u64,
            dry_run,
        };
        if dry_run {
            return Ok(answer);
        }
        let volume =
            Volume::open_discarding_log(device, self.options()).map_err(ServerError::volume(name))?;
        let open = self.run(name, parts, volume, fence, rehearsal)?;
        self.entries.write().insert(name.to_owned(), Entry::Open(open));
        self.open_clones_of(name);
        tracing::warn!(volume = name, %reason, "the intent log was thrown away; flushed writes are lost");
        let path = self.folder(name).join("volume.json");
        state::save(&path, &Document { log_devices: Vec::new(), ..document })?;
        Ok(answer)
    }
}

/// True when nothing but the log keeps the volume from opening.
fn is_of_the_log(error: &ServerError) -> bool {
    match error {
        ServerError::LogUnavailable { .. } => true,
        ServerError::Volume { source, .. } => matches!(
            source,
            VolumeError::LogMissing { .. }
                | VolumeError::LogOther { .. }
                | VolumeError::NotALog { .. }
                | VolumeError::LogTooSmall { .. }
                | VolumeError::LogDamaged { .. }
                | VolumeError::OlderThanLog { .. }
                | VolumeError::LogDevice(_)
        ),
        _ => false,
    }
}

impl OpenVolume {
    /// The log device that the volume uses now.
    pub(super) fn log_in_use(&self) -> Option<LogFile> {
        self.log.lock().clone().filter(|_| self.volume.status().log_device.is_some())
    }

    /// The log device failed, and the volume has left it.
    pub(super) fn log_problem(&self) -> Option<api::Problem> {
        if !self.volume.status().log_left {
            return None;
        }
        let path = self.log.lock().as_ref().map(|log| log.path.display().to_string()).unwrap_or_default();
        Some(api::Problem {
            subject: self.name.clone(),
            message: format!(
                "the device of the intent log failed ({path}); the log is on the devices of the volume since then, and nothing is lost"
            ),
            next: format!(
                "replace it, then move the log there with `cairn volume log {} --device PATH`",
                self.name
            ),
        })
    }
}
