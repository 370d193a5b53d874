//! Enables a history under an existing volume, or disables it.
//!
//! The volume is closed for it, even if it is in use, and reopened afterwards; its content does not
//! change.
//! - *Enabled*: `volume.json` records the plan, the store is created, then `volume.json` records
//!   that it exists, and only then the volume is opened over it. A crash before that leaves a store
//!   without records: the next start empties it, and the same command starts over.
//! - *Disabled*: as much as possible is copied in service. Then `volume.json` records `leaving`,
//!   the present content is copied to the devices of the volume, and the store loses its history.
//!   Until that last step a start finds a history, and the volume continues over it; after it, a
//!   start finds none, and the volume continues without. The document is true at every point. The
//!   next numbers of files and snapshots stay in the document, as mirrors may have images of
//!   instants from which the volume was reverted.
//! - *Given up as lost*: if the store does not come back, the volume is opened on the content of
//!   its devices, on its owner's command. That is all flushed data, except with the placement
//!   `logging`, which refuses it.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cairn_api::{self as api, ErrorKind};
use cairn_history::{History, HistoryError};
use cairn_volume::{CheckDepth, Volume};

use super::Volumes;
use crate::devices::error::DevicesError;
use crate::devices::refuse_store_file;
use crate::error::ServerError;
use crate::storage::seen::Seen;
use crate::volumes::disks::{BUSY_PATIENCE, whole};
use crate::volumes::document::VolumeDocument;
use crate::volumes::error::VolumesError;
use crate::volumes::findings::findings;
use crate::volumes::open::{OpenVolume, Parts};
use crate::volumes::under::{
    Beneath, LOG_APART, LOG_BACK, Plan, no_history, options_of, seen_path, store_bytes,
};
use crate::work::jobs::Progress;

/// The work of the volume meanwhile.
const BEING_ENABLED: &str = "it is given a history";
const BEING_DISABLED: &str = "its history is being taken away";

impl Volumes {
    /// Refuses a history that can't be put under a volume, as far as that is known before its
    /// creation.
    pub(crate) fn check_enable(
        &self,
        name: &str,
        wish: &api::VolumeHistory,
    ) -> Result<Arc<OpenVolume>, ServerError> {
        let open = self.get(name)?;
        let refused = |kind, why, next| {
            Err(ServerError::Volumes(VolumesError::OverHistory { volume: name.to_owned(), kind, why, next }))
        };
        if open.under.is_some() {
            return refused(
                ErrorKind::Taken,
                "there is a history under it already",
                "see it with `cairn history status VOLUME`, change it with `cairn history window VOLUME`, or take it away with `cairn history disable VOLUME`",
            );
        }
        if open.clone_of.is_some() {
            return refused(
                ErrorKind::WrongRole,
                "it is a clone, and depends on the volume of its snapshot",
                "give that one a history",
            );
        }
        if open.backed.is_some() {
            return refused(
                ErrorKind::WrongRole,
                "it was opened from a bucket, and a history needs all blocks on its own devices",
                "copy it to a volume with a history by `cairn image dump` and `cairn image restore`",
            );
        }
        // Also one that it no longer uses, which a start would search for.
        if open.log_in_use().is_some() || !self.document(name)?.log_devices.is_empty() {
            return refused(ErrorKind::Usage, LOG_APART, LOG_BACK);
        }
        self.refuse_if_cloned(name)?;
        if !Path::new(&wish.store).is_absolute() {
            return Err(ServerError::NotAbsolute { what: "the path of the history" });
        }
        self.refuse_if_claimed(Path::new(&wish.store))?;
        let (options, origin) = (options_of(wish)?, whole(&open.parts).geometry());
        let store = refuse_store_file(Path::new(&wish.store), store_bytes(wish.store_bytes, origin.length))?;
        History::check_options(&options, origin, store).map_err(ServerError::history(name))?;
        Ok(open)
    }

    /// Puts a history under a volume. Its open sessions are closed; it is in service again when
    /// this returns, on failure without the history.
    pub(crate) fn enable_history(
        &self,
        name: &str,
        wish: &api::VolumeHistory,
    ) -> Result<Arc<OpenVolume>, ServerError> {
        let _turn = self.turns.take(&[name], BEING_ENABLED)?;
        let open = self.check_enable(name, wish)?;
        // A history never changes the length of its device: it needs room for the areas of a
        // mirror. The length of a disk is fixed, with a history or without.
        match open.make_room_as_destination() {
            Err(ServerError::Volumes(VolumesError::DeviceTooSmall { .. })) => {}
            outcome => outcome?,
        }
        let (before, plan) = self.begin_enable(name, wish)?;
        let closed = self.take_away(&open, BEING_ENABLED);
        let mut made = Vec::new();
        let under = closed.and_then(|()| {
            let origin = open.paths.first().ok_or(ServerError::Bug)?;
            let under = self.make_history(name, &plan, origin, whole(&open.parts), &mut made)?;
            let noted =
                self.note(name, &VolumeDocument { history: Some(plan.beneath.clone()), ..before.clone() });
            match (noted, self.document(name)) {
                (Err(error), Ok(VolumeDocument { history: None, .. })) => {
                    // A store that was there stays, and is to be empty as before.
                    let _ = under.clear();
                    Err(error)
                }
                (noted, _) => {
                    // The document may have it already, and is decisive.
                    if let Err(error) = noted {
                        tracing::warn!(volume = name, %error, "could not save the second record of a history");
                    }
                    Ok(under)
                }
            }
        });
        let plain =
            || Parts { numbers: before.numbers(), ..Parts::of(open.paths.clone(), open.parts.clone()) };
        match under {
            Ok(under) => {
                let opened = self.start(name, Parts { under: Some(under), ..plain() }).map_err(Arc::new);
                self.put(name, &opened);
                self.get(name)
            }
            Err(error) => {
                made.iter().for_each(|path: &PathBuf| drop(fs::remove_file(path)));
                if let Err(left) = self.note(name, &before) {
                    tracing::warn!(volume = name, error = %left, "the next start records that it gets no history");
                }
                self.put(name, &self.start(name, plain()).map_err(Arc::new));
                Err(error)
            }
        }
    }

    /// Records the plan before any of its files exist: it identifies the remains of a kill, which
    /// are removed. Also returns the earlier document.
    fn begin_enable(
        &self,
        name: &str,
        wish: &api::VolumeHistory,
    ) -> Result<(VolumeDocument, Plan), ServerError> {
        let before = VolumeDocument { coming: None, ..self.document(name)? };
        let plan = self.plan_history(wish)?;
        self.note(name, &VolumeDocument { coming: Some(plan.beneath.clone()), ..before.clone() })?;
        Ok((before, plan))
    }

    /// Checks that a history can be disabled: it must exist and be unneeded.
    pub(crate) fn check_disable(&self, name: &str) -> Result<Arc<OpenVolume>, ServerError> {
        let open = self.get(name)?;
        let under = open.under.as_ref().ok_or_else(|| no_history(name))?;
        self.refuse_if_cloned(name)?;
        let views = under.views.names();
        if views.is_empty() {
            return Ok(open);
        }
        let instants = views.into_iter().collect::<Vec<_>>().join(", ");
        Err(ServerError::Devices(DevicesError::Shown { device: name.to_owned(), instants }))
    }

    /// Does the part of disabling a history that is possible while the volume is in service: with
    /// the placement `logging`, copies all data written since its creation or last folding. This
    /// discards instants.
    pub(crate) fn fold_history_back(&self, name: &str, progress: &Progress) -> Result<(), ServerError> {
        let open = self.check_disable(name)?;
        let history = open.under.as_ref().ok_or(ServerError::Bug)?.history();
        let block = u64::from(history.status().block_bytes);
        progress.phase("copying back in service");
        let go_on = |done, all| {
            progress.bytes(done * block, all * block);
            !progress.cancelled().load(Ordering::Relaxed)
        };
        history.fold_back(&go_on).map_err(ServerError::history(name))?;
        match progress.cancelled().load(Ordering::Relaxed) {
            true => Err(ServerError::Cancelled),
            false => Ok(()),
        }
    }

    /// Disables the history under a volume, which is out of service meanwhile: it copies the rest
    /// after it was [folded back](Self::fold_history_back). The volume is in service again when
    /// this returns, after a failure still over its history.
    pub(crate) fn disable_history(
        &self,
        name: &str,
        progress: &Progress,
    ) -> Result<Arc<OpenVolume>, ServerError> {
        // Acknowledged data in memory would otherwise be written where there is no room.
        self.check_disable(name)?.write_out_over_history()?;
        let (open, closed) = {
            let _turn = self.turns.take(&[name], BEING_DISABLED)?;
            let open = self.check_disable(name)?;
            self.note_leaving(name, true)?;
            let closed = self.take_away(&open, BEING_DISABLED);
            (open, closed)
        };
        let under = open.under.as_ref().ok_or(ServerError::Bug)?;
        let history = under.history();
        let block = u64::from(history.status().block_bytes);
        progress.phase("copying back");
        let released = closed.and_then(|()| self.note_numbers(name, under)).and_then(|()| {
            let report = |done, all| progress.bytes(done * block, all * block);
            let release = AssertUnwindSafe(|| history.release(&report));
            catch_unwind(release).map_err(|_| ServerError::Bug)?.map_err(ServerError::history(name))
        });
        let _turn = self.turns.wait(name, BEING_DISABLED);
        let opened = match &released {
            Ok(()) => {
                let settled = self.document(name).and_then(|document| self.without_history(name, document));
                // A start finds out by the store.
                let numbers = settled.map_or_else(
                    |error| {
                        tracing::error!(volume = name, %error, "the next start records that it has no history any more");
                        open.numbers
                    },
                    |document| document.numbers(),
                );
                self.start(name, Parts { numbers, ..Parts::of(open.paths.clone(), open.parts.clone()) })
            }
            // A write to the store that failed may have been the last: then only a start finds out.
            Err(_) => self
                .note_leaving(name, history.status().failed.is_some())
                .and_then(|()| self.open_over(&open, under)),
        };
        self.put(name, &opened.map_err(Arc::new));
        released.and_then(|()| self.get(name))
    }

    /// Opens a volume that lacks its history on the content of its devices, without the history, or
    /// only reports that content.
    pub(crate) fn discard_history(
        &self,
        name: &str,
        dry_run: bool,
    ) -> Result<api::DiscardedHistory, ServerError> {
        let _turn = self.turns.take(&[name], "it is being opened without its history")?;
        let is_there = || {
            ServerError::Volumes(VolumesError::OverHistory {
                volume: name.to_owned(),
                kind: ErrorKind::Usage,
                why: "it is in service: its history is not lost, or it has none",
                next: "without --store-lost, `cairn history disable VOLUME` takes a history away",
            })
        };
        let reason = self.still_closed(name, &is_there)?;
        if !is_of_the_history(&reason) {
            return Err(reason);
        }
        let document = self.document(name)?;
        let beneath = document.history.clone().ok_or(ServerError::Bug)?;
        if beneath.placement == api::Placement::Logging {
            return Err(ServerError::Volumes(VolumesError::OverHistory {
                volume: name.to_owned(),
                kind: ErrorKind::VolumeDamaged,
                why: "with the placement `logging` its data is in the store of its history, and its devices alone are not a volume",
                next: "bring the store back; or fail over to a mirror of it, or restore an image dump under another name",
            }));
        }
        let given = document.given.and(beneath.given());
        let plain = VolumeDocument { history: None, given, ..document.clone() };
        let parts = self.open_parts(name, &plain, BUSY_PATIENCE)?;
        let found = Volume::inspect(&*whole(&parts.devices)).map_err(ServerError::volume(name))?;
        let mut answer = api::DiscardedHistory {
            volume: name.to_owned(),
            store: beneath.store().display().to_string(),
            reason: reason.to_string(),
            generation: found.generation.0,
            consistency_point_ms: found.created.0 / 1_000_000,
            placement: beneath.placement,
            findings: Vec::new(),
            dry_run,
        };
        if dry_run {
            return Ok(answer);
        }
        // Before anything is written past the history, which must not be found again after that.
        self.note(name, &plain)?;
        let open = match self.start(name, parts) {
            Ok(open) => open,
            Err(error) => {
                self.note(name, &document)?;
                return Err(error);
            }
        };
        tracing::warn!(volume = name, %reason, "the history of a volume was given up as lost");
        self.forget_seen(name);
        if let Err(error) = fs::remove_file(self.folder(name).join("views.json"))
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(volume = name, %error, "could not remove the records of a lost history's views");
        }
        let findings = findings(&open.volume, name, CheckDepth::Structures);
        answer.findings = findings.unwrap_or_else(|error| vec![error.to_string()]);
        self.put(name, &Ok(open));
        self.open_clones_of(name);
        Ok(answer)
    }

    /// The remedy for a volume that is not open, including one whose history does not come back.
    pub(super) fn next_of(&self, name: &str, error: &ServerError) -> String {
        match is_of_the_history(error) {
            true => format!(
                "{}; if it is lost for good, `cairn history disable {name} --store-lost -n` shows the state of its devices without the history",
                error.next()
            ),
            false => self.next_of_lost(name, error).unwrap_or_else(|| error.next()),
        }
    }

    fn note_leaving(&self, name: &str, leaving: bool) -> Result<(), ServerError> {
        let mut document = self.document(name)?;
        document.history.as_mut().ok_or(ServerError::Bug)?.leaving = leaving;
        self.note(name, &document)
    }

    /// Notes that the history of a volume is gone.
    fn without_history(&self, name: &str, document: VolumeDocument) -> Result<VolumeDocument, ServerError> {
        let given = document.history.as_ref().map(Beneath::given).unwrap_or_default();
        let document = VolumeDocument { history: None, given: document.given.and(given), ..document };
        self.note(name, &document)?;
        self.forget_seen(name);
        Ok(document)
    }

    /// A history that is gone is not looked for again; another one has another name.
    fn forget_seen(&self, name: &str) {
        if let Err(error) = Seen::forget(&seen_path(&self.folder(name))) {
            tracing::warn!(volume = name, %error, "could not remove the saved position of a removed history");
        }
    }

    /// Reverts the work of a server that was killed while it put a history under a volume, which
    /// continues without one.
    pub(super) fn settle_coming(&self, name: &str, mut document: VolumeDocument) -> VolumeDocument {
        if let Some(beneath) = document.coming.take() {
            beneath.take_back_now(name, false);
            if let Err(error) = self.note(name, &document) {
                tracing::warn!(volume = name, %error, "the next start records that it gets no history");
            }
        }
        // The saved position of a removed one may have stayed.
        if document.history.is_none() && seen_path(&self.folder(name)).exists() {
            self.forget_seen(name);
        }
        document
    }

    /// Completes the work of a server that was killed while it disabled a history: it is removed,
    /// or stays.
    pub(super) fn settle_history(
        &self,
        name: &str,
        document: VolumeDocument,
    ) -> Result<VolumeDocument, ServerError> {
        let Some(beneath) = document.history.as_ref().filter(|beneath| beneath.leaving) else {
            return Ok(document);
        };
        let store = beneath.open_store(name)?;
        match History::id_of(&*store) {
            Err(HistoryError::NoHistory)
                if History::is_released(&*store, beneath.history_id()?).unwrap_or(false) =>
            {
                tracing::warn!(volume = name, "its history had been removed");
                self.without_history(name, document)
            }
            // Another file is in its place, which does not show its state.
            Err(HistoryError::NoHistory) => Ok(document),
            // Its opening will report the fault.
            _ => {
                tracing::warn!(volume = name, "its history was to be removed, and still exists");
                self.note_leaving(name, false)?;
                self.document(name)
            }
        }
    }
}

/// True if only the history prevents the volume from opening, and no other process has it.
fn is_of_the_history(error: &ServerError) -> bool {
    let is_about_it = matches!(
        error,
        ServerError::Volumes(VolumesError::HistoryUnavailable { .. })
            | ServerError::Devices(DevicesError::History { .. })
    );
    is_about_it && error.kind() != ErrorKind::Busy
}

#[cfg(test)]
mod tests;
