//! A history is put under a volume that there is, or taken away from under it.
//!
//! The volume is closed for it, whoever has it, and is another opening afterwards; its content does
//! not change.
//! - *Put under*: `volume.json` says what is coming, the store is made, then `volume.json` says
//!   that it is there, and only then the volume is opened over it. A crash before that leaves a
//!   store in which nothing was recorded: the next start empties it, and the same command does it
//!   all again.
//! - *Taken away*: what can be copied in service is. Then `volume.json` says `leaving`, today's
//!   content is brought to the devices of the volume, and the store loses its history. Until that
//!   last step a start finds a history, and the volume goes on over it; behind it, it finds none,
//!   and the volume goes on without. What the document says by then was true all along. The next
//!   numbers of files and snapshots stay in the document, as mirrors may know of instants that the
//!   volume was brought back from.
//! - *Given up as lost*: where the store does not come back the volume is opened on what its
//!   devices have, by a word of its owner. That is all that was flushed, but for the placement
//!   `logging`, where it is refused.

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

/// What the volume is busy with meanwhile.
const BEING_ENABLED: &str = "it is given a history";
const BEING_DISABLED: &str = "its history is being taken away";

impl Volumes {
    /// Refuses a history that can't be put under a volume, as far as that is known before it is
    /// made.
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
        // Also one that it has left, which a start would look for.
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

    /// Puts a history under a volume. Whoever has it open finds it closed; it is in service again
    /// when this returns, also as it was.
    pub(crate) fn enable_history(
        &self,
        name: &str,
        wish: &api::VolumeHistory,
    ) -> Result<Arc<OpenVolume>, ServerError> {
        let _turn = self.turns.take(&[name], BEING_ENABLED)?;
        let open = self.check_enable(name, wish)?;
        // A history keeps its device as long as it is: with room for what the volume needs as a
        // mirror. A disk is as long as it is, with a history or without.
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
                    // It may say it already: what it says counts.
                    if let Err(error) = noted {
                        tracing::warn!(volume = name, %error, "that it has a history is not noted twice");
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
                    tracing::warn!(volume = name, error = %left, "that it gets no history is noted at the next start");
                }
                self.put(name, &self.start(name, plain()).map_err(Arc::new));
                Err(error)
            }
        }
    }

    /// Notes what is coming, before anything of it is there: what a kill leaves is known by it, and
    /// taken back. Gives what the document said before, too.
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

    /// Refuses to take a history away: there is none, or something needs it.
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

    /// Does while the volume is in service what can be done then of taking its history away: with
    /// the placement `logging` all that was written since it was made, or folded back, is copied.
    /// Instants go with that.
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

    /// Takes the history away from under a volume, which is out of service meanwhile: for what is
    /// left once it was [folded back](Self::fold_history_back). It is in service again when this
    /// returns, also where it failed: then over its history.
    pub(crate) fn disable_history(
        &self,
        name: &str,
        progress: &Progress,
    ) -> Result<Arc<OpenVolume>, ServerError> {
        // What was answered and is in memory alone would go where it finds no room.
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
                        tracing::error!(volume = name, %error, "that it has no history any more is noted at the next start");
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

    /// Opens a volume that can't be opened for want of its history on what its devices have,
    /// without it, or only says what that is.
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
            tracing::warn!(volume = name, %error, "the views of a lost history are still noted");
        }
        let findings = findings(&open.volume, name, CheckDepth::Structures);
        answer.findings = findings.unwrap_or_else(|error| vec![error.to_string()]);
        self.put(name, &Ok(open));
        self.open_clones_of(name);
        Ok(answer)
    }

    /// What to do about a volume that is not open, also where its history does not come back.
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
            tracing::warn!(volume = name, %error, "how far a history had come that is gone is still noted");
        }
    }

    /// Takes back what a server began that was killed while it put a history under a volume, which
    /// goes on without.
    pub(super) fn settle_coming(&self, name: &str, mut document: VolumeDocument) -> VolumeDocument {
        if let Some(beneath) = document.coming.take() {
            beneath.take_back_now(name, false);
            if let Err(error) = self.note(name, &document) {
                tracing::warn!(volume = name, %error, "that it gets no history is noted at the next start");
            }
        }
        // That of one that is gone may have stayed.
        if document.history.is_none() && seen_path(&self.folder(name)).exists() {
            self.forget_seen(name);
        }
        document
    }

    /// Ends what a server began that was killed while it took a history away: it is gone, or stays.
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
                tracing::warn!(volume = name, "its history had been taken away");
                self.without_history(name, document)
            }
            // Another file is in its place, and says nothing of it.
            Err(HistoryError::NoHistory) => Ok(document),
            // What is wrong with it is told when it is opened.
            _ => {
                tracing::warn!(volume = name, "its history was to be taken away, and is still there");
                self.note_leaving(name, false)?;
                self.document(name)
            }
        }
    }
}

/// True when nothing but the history keeps the volume from opening, and nobody else has it.
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
