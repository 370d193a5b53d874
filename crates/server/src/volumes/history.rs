//! A history under a volume: between its devices and the volume, so that all of it can be reverted
//! to an instant.
//!
//! `volume.json` has the path of the store. Without the store the volume is not opened: some writes
//! may be only there, and the history would miss later ones. An instant is the state that a power
//! cut at that moment would have left, so the volume opens there as after one.
//!
//! # Bringing a volume back
//! To revert it, the volume is closed, its history is reverted, and it is opened again. That is one
//! write of the history's superblock: a crash before it leaves the volume unchanged, and a crash
//! after it leaves it at the instant. The revert is a new write in the history, so it is undone
//! like any other.
//! - Late requests of an earlier opening must not reach the next one: a
//!   [`Fence`](super::fence::Fence) is shut between them.
//! - Mirrors identify objects made since the instant by their numbers. `volume.json` records the
//!   assigned numbers before the revert, and no later opening reuses them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cairn_api::{self as api, ErrorKind};
use cairn_device::Device;
use cairn_history::{History, HistoryView};
use cairn_volume::{CheckDepth, Inspection, Volume, VolumeError};

use super::views::Views;
use super::{VolumeState, Volumes};
use crate::devices::open::OpenDevice;
use crate::devices::take_store_file;
use crate::error::ServerError;
use crate::storage::histories::options_under_volume;
use crate::volumes::disks::clear_beginning;
use crate::volumes::document::VolumeDocument;
use crate::volumes::error::VolumesError;
use crate::volumes::findings::findings;
use crate::volumes::open::{OpenVolume, Parts};
use crate::volumes::under::{
    Beneath, LOG_APART, LOG_BACK, Plan, Under, no_history, no_volume_then, options_of, store_bytes,
};

impl Volumes {
    /// The plan of a history, before any of its files exist.
    pub(super) fn plan_history(&self, wish: &api::VolumeHistory) -> Result<Plan, ServerError> {
        let path = PathBuf::from(&wish.store);
        if !path.is_absolute() {
            return Err(ServerError::NotAbsolute { what: "the path of the history" });
        }
        let options = options_of(wish)?;
        self.refuse_if_claimed(&path)?;
        let id = options.store.to_string();
        let placement = wish.placement.unwrap_or(api::Placement::Checkpointing);
        let beneath = Beneath { store: path, id, next_file: 0, next_snapshot: 0, placement, leaving: false };
        Ok(Plan { beneath, options, store_bytes: wish.store_bytes })
    }

    /// Creates the history of a volume that its document already records. A created file is added
    /// to `made`; an existing store is empty again if this fails.
    pub(super) fn make_history(
        &self,
        volume: &str,
        plan: &Plan,
        origin_path: &Path,
        origin: Arc<dyn Device>,
        made: &mut Vec<PathBuf>,
    ) -> Result<Under, ServerError> {
        let bytes = store_bytes(plan.store_bytes, origin.geometry().length);
        let store = take_store_file(&plan.beneath.store, bytes, made)?;
        // After locking it: no other process can claim it from here on.
        self.refuse_if_claimed(&plan.beneath.store)?;
        let open = options_under_volume(self.clock.clone());
        let history = History::create(origin, store.clone(), &plan.options, open).inspect_err(|_| {
            if History::is_unfinished(&*store, plan.options.store).unwrap_or(false) {
                drop(clear_beginning(&store));
            }
        });
        let history = history.map_err(ServerError::history(volume))?;
        let views = Views::none(&self.folder(volume));
        let seen = plan.beneath.seen(&self.folder(volume));
        Ok(Under::new(volume, history, origin_path, store, plan.beneath.clone(), views, seen))
    }

    /// Whether something waits for room in a history.
    pub(crate) fn waits_for_room(&self) -> bool {
        let waits = |open: &Arc<OpenVolume>| {
            open.waits_for_room() || open.backed.as_ref().is_some_and(|backed| backed.holds_back())
        };
        self.all().iter().any(waits)
    }

    /// Cancels requests that wait for room in a history.
    pub(crate) fn end_waits(&self) {
        self.all().iter().for_each(|open| open.end_waits());
    }

    /// Refuses an instant that a revert would refuse. While the view exists the instant stays; the
    /// returned state of the volume is that of the instant.
    pub(crate) fn check_revert(
        &self,
        open: &OpenVolume,
        at: &api::Instant,
    ) -> Result<(HistoryView, Inspection), ServerError> {
        let refused = |why, next| {
            let (volume, kind) = (open.name.clone(), ErrorKind::WrongRole);
            ServerError::Volumes(VolumesError::OverHistory { volume, kind, why, next })
        };
        let device = open.history()?;
        self.refuse_if_cloned(&open.name)?;
        let view = device.view(at)?;
        let then = Volume::inspect(&view).map_err(|_| no_volume_then(&open.name))?;
        if then.role != open.volume.status_role() {
            return Err(refused(
                "it had another role at that instant: it was a mirror then and is not one now, or the reverse",
                "choose an instant since its role changed; roles change with `cairn mirror failover`, `resync` and `reverse`",
            ));
        }
        device.check_revert(at)?;
        Ok((view, then))
    }

    /// Reverts an unused volume to an instant of its history. It is in service again when this
    /// returns, at the instant or unchanged.
    pub(crate) fn revert(
        &self,
        name: &str,
        at: &api::Instant,
    ) -> Result<(Arc<OpenVolume>, api::Reverted), ServerError> {
        let _turn = self.turns.take(&[name], "it is being brought back to an instant")?;
        let open = self.get(name)?;
        let under = open.under.as_ref().ok_or_else(|| no_history(name))?;
        let _held = self.check_revert(&open, at)?;
        let closed = self.take_away(&open, "it is being brought back to an instant");
        let reverted = closed.and_then(|()| self.note_numbers(name, under)).and_then(|()| {
            let (at_ns, undo) = under.device.revert(at)?;
            Ok(api::Reverted { at_ns, undo, sessions_ended: 0, findings: Vec::new(), dry_run: false })
        });
        // A volume that is read-only there is less useful than in its earlier state.
        let of_use = |opened: Arc<OpenVolume>| match opened.volume.status().latched {
            Some(error @ VolumeError::InodesLost(_)) if reverted.is_ok() => {
                let _ = opened.end();
                opened.fence.shut();
                Err(ServerError::volume(name)(error))
            }
            _ => Ok(opened),
        };
        let opened = self.open_over(&open, under).and_then(of_use);
        let (mut reverted, opened) = match (reverted, opened) {
            (Ok(reverted), Ok(opened)) => (reverted, opened),
            (Ok(reverted), Err(error)) => {
                tracing::error!(volume = name, %error, "it does not open at that instant; undoing the revert");
                let undo = api::Instant::mark(&reverted.undo);
                let back = under.device.revert(&undo).and_then(|_| self.open_over(&open, under));
                let why = match &back {
                    Err(_) => error,
                    Ok(_) => ServerError::Volumes(VolumesError::OverHistory {
                        volume: name.to_owned(),
                        kind: ErrorKind::VolumeDamaged,
                        why: "it does not open at that instant, and is where it was",
                        next: "choose another instant (`cairn history status`); the log of the server shows the fault of this one",
                    }),
                };
                self.put(name, &back.map_err(Arc::new));
                return Err(why);
            }
            (Err(error), opened) => {
                self.put(name, &opened.map_err(Arc::new));
                return Err(error);
            }
        };
        let found = findings(&opened.volume, name, CheckDepth::Structures);
        reverted.findings = found.unwrap_or_else(|error| vec![error.to_string()]);
        self.put(name, &Ok(opened.clone()));
        Ok((opened, reverted))
    }

    /// Closes a volume, even if it is in use, for an operation on the storage below it. The caller
    /// must register it again by `put`.
    pub(super) fn take_away(&self, open: &OpenVolume, by: &'static str) -> Result<(), ServerError> {
        self.entries.write().insert(open.name.clone(), VolumeState::Away { by });
        let closed = open.end();
        open.fence.shut();
        closed
    }

    /// Records the outcome for a volume that was closed.
    pub(super) fn put(&self, name: &str, opened: &Result<Arc<OpenVolume>, Arc<ServerError>>) {
        let entry = match opened {
            Ok(open) => VolumeState::Open(open.clone()),
            Err(error) => VolumeState::Unavailable(error.clone()),
        };
        self.entries.write().insert(name.to_owned(), entry);
    }

    /// Opens a volume again that was closed, on the same devices.
    pub(super) fn open_over(
        &self,
        closed: &OpenVolume,
        under: &Under,
    ) -> Result<Arc<OpenVolume>, ServerError> {
        let document = self.document(&closed.name)?;
        let numbers = document.numbers();
        let under = Some(under.again(document.history.ok_or(ServerError::Bug)?));
        let parts = Parts { under, numbers, ..Parts::of(closed.paths.clone(), closed.parts.clone()) };
        self.start(&closed.name, parts)
    }

    /// Writes down which numbers a closed volume has given, before it forgets that.
    pub(super) fn note_numbers(&self, name: &str, under: &Under) -> Result<(), ServerError> {
        let given = Volume::inspect(&**under.device.history()).map_err(ServerError::volume(name))?.numbers;
        let mut document = self.document(name)?;
        let beneath = document.history.as_mut().ok_or(ServerError::Bug)?;
        beneath.next_file = beneath.next_file.max(given.file);
        beneath.next_snapshot = beneath.next_snapshot.max(given.snapshot);
        // A number that is given twice means two things to a mirror.
        self.note(name, &document)
    }
}

impl OpenVolume {
    /// The history under it.
    pub(crate) fn history(&self) -> Result<Arc<OpenDevice>, ServerError> {
        let none = || match self.log_in_use() {
            Some(_) => ServerError::Volumes(VolumesError::OverHistory {
                volume: self.name.clone(),
                kind: ErrorKind::NotFound,
                why: LOG_APART,
                next: LOG_BACK,
            }),
            None => no_history(&self.name),
        };
        self.under.as_ref().map(|under| under.device.clone()).ok_or_else(none)
    }

    /// Marks the instant of the visible image of a mirror, unless it is marked already: `image-`
    /// and the number of its snapshot. `cairn mirror rewind` reverts to these marks.
    pub(crate) fn mark_image(&self) {
        let image = self.volume.status().cursor.snapshot.0;
        let Some(under) = self.under.as_ref().filter(|_| image != 0) else { return };
        if let Err(error) = under.device.mark_once(&format!("image-{image}")) {
            tracing::error!(volume = self.name, image, %error, "an image has no mark in the history");
        }
    }

    /// It is writable from here on: numbers of images before a revert have marks in its history,
    /// and are not reused.
    pub(crate) fn skip_numbers(&self) {
        self.volume.skip_numbers(self.numbers);
    }

    pub(super) fn history_problems(&self) -> Vec<api::Problem> {
        self.under.as_ref().map_or_else(Vec::new, |under| {
            let mut problems = under.device.problems();
            problems.extend(under.views.problems(&self.name));
            problems
        })
    }

    /// Cancels requests that wait for room in its history, or lets them into its cache.
    pub(super) fn end_waits(&self) {
        if let Some(under) = &self.under {
            under.let_wait(false);
        }
        self.backed.iter().for_each(|backed| backed.end_waits());
    }

    /// A history is of a device of one length.
    pub(super) fn refuse_to_grow(&self) -> Result<(), ServerError> {
        if self.is_cached() {
            return Err(ServerError::Invalid {
                fault: "a volume on a cache does not grow while it is open",
                next: "wait until `cairn volume show VOLUME` reports nothing that is only here, delete the volume, and open it from its bucket with --size",
            });
        }
        match &self.under {
            None => Ok(()),
            Some(_) => Err(ServerError::Volumes(VolumesError::OverHistory {
                volume: self.name.clone(),
                kind: ErrorKind::TooSmall,
                why: "a volume over a history has the size that it was made with",
                next: "take the history away with `cairn history disable VOLUME`, grow the volume, and give it a new one with `cairn history enable`",
            })),
        }
    }
}

/// Removes the remains of the history of a volume that was never complete. It was never used,
/// regardless of its content.
pub(super) fn take_back_history(volume: &str, document: &VolumeDocument) {
    if let Some(beneath) = document.coming.as_ref().or(document.history.as_ref()) {
        beneath.take_back_now(volume, true);
    }
}

#[cfg(test)]
mod tests;
