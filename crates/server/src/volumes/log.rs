//! The device of a volume's intent log: found and opened, moved to, and given up when it is lost.
//!
//! Only the superblock determines whether the log has a device, and which log it is; `volume.json`
//! only has the places to search. While the log moves it has both places, so after a crash at any
//! moment the volume finds its log.

use std::path::Path;
use std::sync::Arc;

use cairn_api as api;
use cairn_device::RehearsalDevice;
use cairn_volume::{CONSISTENCY_INTERVAL, LogTarget, Volume, VolumeError};

use super::fence::Fence;
use super::{VolumeState, Volumes};
use crate::error::ServerError;
use crate::state;
use crate::volumes::disks::{BUSY_PATIENCE, new_rehearsal};
use crate::volumes::document::VolumeDocument;
use crate::volumes::error::VolumesError;
use crate::volumes::log_file::{LogFile, new_id};
use crate::volumes::open::OpenVolume;
use crate::volumes::under::{LOG_FAULT, LOG_NEXT};

impl Volumes {
    /// Moves the log of a volume to `device`, or onto the devices of the volume.
    pub(crate) fn move_log(&self, name: &str, device: Option<&str>) -> Result<Arc<OpenVolume>, ServerError> {
        let _turn = self.turns.take(&[name], "its log is being moved")?;
        let open = self.get(name)?;
        if open.log_in_use().is_none() {
            // A failed device is closed, so that it can be named again after its repair.
            *open.log.lock() = None;
        }
        let path = self.folder(name).join("volume.json");
        let before = self.document(name)?;
        if device.is_some() && open.under.is_some() {
            return Err(ServerError::Invalid { fault: LOG_FAULT, next: LOG_NEXT });
        }
        let Some(device) = device else {
            open.volume.move_log(&LogTarget::Internal).map_err(ServerError::volume(name))?;
            state::save(&path, &VolumeDocument { log_devices: Vec::new(), ..before })?;
            *open.log.lock() = None;
            return Ok(open);
        };
        let log = LogFile::take(Path::new(device))?;
        // After locking it: no other process can claim it from here on.
        self.refuse_if_claimed(Path::new(device))?;
        let mut both = before.log_devices.clone();
        both.push(log.path.clone());
        state::save(&path, &VolumeDocument { log_devices: both, ..before.clone() })?;
        let target = LogTarget::Device { device: log.beside(&open.rehearsal)?, id: new_id() };
        if let Err(error) = open.volume.move_log(&target) {
            // Only the volume knows the present place of the log. An extra path does no harm, but a
            // missing one would.
            if open.volume.status().latched.is_none() {
                state::save(&path, &before)?;
            }
            return Err(ServerError::volume(name)(error));
        }
        state::save(&path, &VolumeDocument { log_devices: vec![log.path.clone()], ..before })?;
        *open.log.lock() = Some(log);
        Ok(open)
    }

    /// Opens a volume that lacks its log at its last consistency point, or only reports the loss.
    pub(crate) fn discard_log(&self, name: &str, dry_run: bool) -> Result<api::DiscardedLog, ServerError> {
        let _turn = self.turns.take(&[name], "it is being opened without its log")?;
        // It may have come back since the server started: then nothing is lost.
        let reason = self.still_closed(name, &|| {
            ServerError::Volumes(VolumesError::LogIsThere { volume: name.to_owned() })
        })?;
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
        self.entries.write().insert(name.to_owned(), VolumeState::Open(open));
        self.open_clones_of(name);
        tracing::warn!(volume = name, %reason, "discarded the intent log; flushed writes are lost");
        let path = self.folder(name).join("volume.json");
        state::save(&path, &VolumeDocument { log_devices: Vec::new(), ..document })?;
        Ok(answer)
    }
}

/// True when nothing but the log keeps the volume from opening.
fn is_of_the_log(error: &ServerError) -> bool {
    match error {
        ServerError::Volumes(VolumesError::LogUnavailable { .. }) => true,
        ServerError::Volumes(VolumesError::Volume { source, .. }) => matches!(
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
