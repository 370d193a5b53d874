//! `cairn history enable` and `disable`: a volume that there is gets a history, or goes on without.
//! Its clients connect again.

use std::sync::Arc;

use cairn_api::{self as api, ErrorKind};

use crate::daemon::server::Server;
use crate::error::ServerError;
use crate::names::ExportName;
use crate::volumes::error::VolumesError;
use crate::volumes::open::OpenVolume;
use crate::work::jobs::Progress;

impl Server {
    /// Puts a history under a volume, or says what that would end.
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
            // Its clients go on meanwhile.
            mine.volumes.fold_history_back(name, progress)?;
            let _still = mine.mounts.keep_still(name);
            mine.refuse_if_stood_on(name)?;
            let before = mine.volumes.get(name)?;
            mine.close_sessions(|export| export.volume == name)?;
            let outcome = mine.mirrors.alone(name, || mine.volumes.disable_history(name, progress));
            mine.close_sessions_before(&before);
            outcome?;
            tracing::warn!(volume = name, "the history of a volume was taken away");
            Ok(None)
        };
        self.jobs.start("disable", name, work)
    }

    /// Opens a volume whose history is lost without it, or says what there is.
    pub(crate) fn discard_history(
        &self,
        name: &str,
        request: &api::DiscardHistory,
    ) -> Result<api::DiscardedHistory, ServerError> {
        self.opening(name, || self.volumes.discard_history(name, request.dry_run))
    }

    /// Ends the sessions of those that came back while a volume was closed and opened anew, also
    /// where that failed: what they have is the volume as it was opened `before`, which answers
    /// nothing any more, and no client looks for another one as long as its connection is well.
    pub(crate) fn close_sessions_before(&self, before: &Arc<OpenVolume>) -> usize {
        let is_open_still = self.volumes.get(&before.name).is_ok_and(|now| Arc::ptr_eq(&now, before));
        if is_open_still { 0 } else { self.end_sessions(|export| export.volume == before.name) }
    }

    /// Does what may open a volume that was closed, also where it fails at something else, and
    /// takes in what belongs to that.
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

    /// An adopted device is released and adopted anew instead.
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

    /// Refuses what would be cut off from the volume under it, and can't come back by itself.
    fn refuse_if_stood_on(&self, name: &str) -> Result<(), ServerError> {
        self.devices.refuse_adopted(name, None)?;
        self.mounts.refuse_if_mounted(name, |volume, _| volume == name)?;
        self.mounts.refuse_if_left(name)
    }
}
