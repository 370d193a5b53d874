//! `cairn history enable` and `disable`: gives an existing volume a history, or removes it. Its
//! clients reconnect.

use std::sync::Arc;

use cairn_api::{self as api, ErrorKind};

use crate::daemon::server::Server;
use crate::error::ServerError;
use crate::names::ExportName;
use crate::volumes::error::VolumesError;
use crate::volumes::open::OpenVolume;
use crate::work::jobs::Progress;

impl Server {
    /// Puts a history under a volume, or reports the sessions that this would close.
    pub(crate) fn enable_history(
        &self,
        name: &str,
        request: &api::EnableHistory,
    ) -> Result<api::HistoryEnabled, ServerError> {
        self.refuse_device(name)?;
        let wish = &request.history;
        let before = self.volumes.check_enable(name, wish)?;
        self.refuse_if_stood_on(name)?;
        let mine = |export: &ExportName<'_>| export.volume == name;
        let answer = |sessions: usize| api::HistoryEnabled {
            volume: name.to_owned(),
            store: wish.store.clone(),
            sessions_ended: sessions as u64,
            dry_run: request.dry_run,
        };
        if request.dry_run {
            return Ok(answer(self.sessions_of(mine).len()));
        }
        let _still = self.mounts.keep_still(name);
        self.refuse_if_stood_on(name)?;
        let ended = self.close_sessions(mine)?;
        let outcome = self.mirrors.alone(name, || self.volumes.enable_history(name, wish));
        let ended = ended + self.close_sessions_before(&before);
        let open = outcome?;
        if open.is_destination() {
            open.mark_image();
        }
        tracing::info!(volume = name, store = wish.store, ended, "a volume has a history from now on");
        Ok(answer(ended))
    }

    /// Takes the history away from under a volume. The answer is a job.
    pub(crate) fn check_disable_history(&self, name: &str) -> Result<Arc<OpenVolume>, ServerError> {
        self.refuse_device(name)?;
        let open = self.volumes.check_disable(name)?;
        self.refuse_if_stood_on(name)?;
        Ok(open)
    }

    pub(crate) fn disable_history(self: &Arc<Self>, name: &str) -> Result<api::Job, ServerError> {
        let open = self.check_disable_history(name)?;
        // Refused before any session ends for nothing.
        open.write_out_over_history()?;
        let (mine, volume) = (self.clone(), name.to_owned());
        let work = move |progress: &Progress| {
            let name = volume.as_str();
            // Its clients continue meanwhile.
            mine.volumes.fold_history_back(name, progress)?;
            let _still = mine.mounts.keep_still(name);
            mine.refuse_if_stood_on(name)?;
            let before = mine.volumes.get(name)?;
            mine.close_sessions(|export| export.volume == name)?;
            let outcome = mine.mirrors.alone(name, || mine.volumes.disable_history(name, progress));
            mine.close_sessions_before(&before);
            outcome?;
            tracing::warn!(volume = name, "removed the history of a volume");
            Ok(None)
        };
        self.jobs.start("disable", name, work)
    }

    /// Opens a volume whose history is lost without it, or reports the remaining content.
    pub(crate) fn discard_history(
        &self,
        name: &str,
        request: &api::DiscardHistory,
    ) -> Result<api::DiscardedHistory, ServerError> {
        self.opening(name, || self.volumes.discard_history(name, request.dry_run))
    }

    /// Closes the sessions of clients that reconnected while a volume was closed and reopened, even
    /// if that failed: they have the earlier opening `before`, which no longer answers, and no
    /// client reconnects while its connection is intact.
    pub(crate) fn close_sessions_before(&self, before: &Arc<OpenVolume>) -> usize {
        let is_open_still = self.volumes.get(&before.name).is_ok_and(|now| Arc::ptr_eq(&now, before));
        if is_open_still { 0 } else { self.end_sessions(|export| export.volume == before.name) }
    }

    /// Runs an operation that may open a closed volume, even if it fails later, and then starts the
    /// volume's other state.
    pub(crate) fn opening<T>(
        &self,
        name: &str,
        work: impl FnOnce() -> Result<T, ServerError>,
    ) -> Result<T, ServerError> {
        let was_closed = self.volumes.get(name).is_err();
        let outcome = work();
        if let (true, Ok(open)) = (was_closed, self.volumes.get(name)) {
            self.take_in_volume(&open);
        }
        outcome
    }

    /// An adopted device must be released and adopted again instead.
    fn refuse_device(&self, name: &str) -> Result<(), ServerError> {
        match self.devices.get(name) {
            Err(ServerError::NotFound { .. }) => Ok(()),
            _ => Err(ServerError::Volumes(VolumesError::OverHistory {
                volume: name.to_owned(),
                kind: ErrorKind::WrongRole,
                why: "it is an adopted device and no volume",
                next: "`cairn device release DEVICE` leaves a plain disk, and `cairn device adopt` takes it again, with --history or without",
            })),
        }
    }

    /// Refuses if objects on the volume would be cut off from it and can't return automatically.
    fn refuse_if_stood_on(&self, name: &str) -> Result<(), ServerError> {
        self.devices.refuse_adopted(name, None)?;
        self.mounts.refuse_if_mounted(name, |volume, _| volume == name)?;
        self.nfs_exports.refuse_if_exported(|volume, _| volume == name)?;
        self.mounts.refuse_if_left(name)
    }
}
