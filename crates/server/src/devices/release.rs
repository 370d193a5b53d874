//! Releasing a device: its origin stays as a plain disk, its history and its document are removed.
//!
//! The document says `releasing` before anything is done, so that a start finds out whether the
//! release was complete: then the store has no history any more. A release that stopped in the
//! middle, by a failure or with the server, leaves a device that is served as before and reports
//! why it stopped. The release can be requested again, and resumes; a history that has failed
//! meanwhile, or could not be opened, is reopened for that.

use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use cairn_api::ErrorKind;
use cairn_history::{History, HistoryError};

use super::{DeviceState, Devices};
use crate::daemon::error::DaemonError;
use crate::devices::error::DevicesError;
use crate::devices::open::{DeviceDocument, OpenDevice};
use crate::error::ServerError;
use crate::state;
use crate::storage::histories::history_id;
use crate::storage::place::Place;
use crate::storage::settled::found;
use crate::volumes::error::VolumesError;
use crate::work::jobs::Progress;

impl Devices {
    /// Takes a device out of service for its release; none if an earlier release has completed.
    pub(crate) fn begin_release(&self, name: &str) -> Result<Option<Arc<OpenDevice>>, ServerError> {
        let _turn = self.turns.take(&[name], "it is being released")?;
        let Some(open) = self.open_for_release(name)? else { return Ok(None) };
        let mut document = open.document.lock().clone();
        document.releasing = true;
        document.release_stopped = None;
        state::save(&self.path(name), &document)?;
        *open.document.lock() = document.clone();
        self.entries.write().insert(name.to_owned(), DeviceState::Releasing(document));
        Ok(Some(open))
    }

    /// Gives up a device whose history is permanently lost: its origin stays as it is, and writes
    /// to its clones are discarded. False if the history can be opened, at least now: the device is
    /// then released like any other.
    ///
    /// # Errors
    /// [`ServerError::Busy`] and the like if another process has the history open; any error that
    /// prevents opening its origin.
    pub(crate) fn release_without_history(&self, name: &str) -> Result<bool, ServerError> {
        let _turn = self.turns.take(&[name], "it is being released")?;
        let document = match self.entries.read().get(name) {
            Some(DeviceState::Unavailable(_, error))
                if matches!(**error, ServerError::Daemon(DaemonError::StateUnread { .. })) =>
            {
                return Ok(false);
            }
            Some(DeviceState::Unavailable(document, _)) if document.history.is_some() => document.clone(),
            _ => return Ok(false),
        };
        drop(self.open_origin(&document.origin, document.in_use)?);
        match self.start(name, &document) {
            Ok(entry) => {
                self.entries.write().insert(name.to_owned(), entry);
                Ok(false)
            }
            Err(error) if error.kind() == ErrorKind::Busy => Err(error),
            Err(error) => {
                tracing::warn!(device = name, %error, "a device is given up without its history");
                for clone in document.clones.keys() {
                    let _ = fs::remove_file(self.clone_path(name, clone));
                }
                self.forget(name)?;
                Ok(true)
            }
        }
    }

    /// The remedy for a device that is not open, including one whose history does not come back.
    pub(super) fn next_of(&self, name: &str, document: &DeviceDocument, error: &ServerError) -> String {
        let origin_is_there = match &document.origin {
            Place::File(path) => found(path).is_some(),
            Place::Lun { volume, .. } => self.volumes.get(volume).is_ok(),
        };
        let unread = matches!(error, ServerError::Daemon(DaemonError::StateUnread { .. }));
        if !unread && document.history.is_none() && error.kind() != ErrorKind::Busy {
            let back = match error {
                ServerError::Volumes(VolumesError::OpenDevice(_)) => "bring its disk back (attach it, mount its file system, restore the file), and it is opened within seconds".to_owned(),
                _ => error.next(),
            };
            return format!(
                "{back}; if {} is gone for good, `cairn device release {name}` ends its export",
                document.origin
            );
        }
        if unread || !origin_is_there || error.kind() == ErrorKind::Busy {
            return error.next();
        }
        let back = match error {
            ServerError::Devices(DevicesError::History { source: HistoryError::StoreOlder { .. }, .. }) => error.next(),
            _ => "bring its history back (attach its disk, mount its file system, restore the file), and it is opened within seconds".to_owned(),
        };
        format!(
            "{back}; if it is lost for good, `cairn device release {name} --without-history` leaves {} as it is (-n shows the cost)",
            document.origin
        )
    }

    /// The device; a failed one, or one that could not be opened, is reopened.
    fn open_for_release(&self, name: &str) -> Result<Option<Arc<OpenDevice>>, ServerError> {
        let closed = match self.entries.read().get(name) {
            // The copy may not have all of its content.
            Some(DeviceState::Unavailable(_, error))
                if matches!(**error, ServerError::Daemon(DaemonError::StateUnread { .. })) =>
            {
                None
            }
            Some(DeviceState::Unavailable(document, _)) => Some(document.clone()),
            _ => None,
        };
        let document = match closed {
            Some(document) => document,
            None => {
                let open = self.get(name)?;
                open.refuse_if_shown()?;
                if open.history.status().failed.is_none() {
                    return Ok(Some(open));
                }
                open.document.lock().clone()
            }
        };
        // The files can be reopened once this opening is closed.
        let held = Arc::new(ServerError::Busy { name: name.to_owned(), by: "it is being opened again" });
        let before =
            self.entries.write().insert(name.to_owned(), DeviceState::Unavailable(document.clone(), held));
        if let Some(DeviceState::Open(open)) = before {
            open.end();
        }
        match self.start(name, &document) {
            Ok(entry) => {
                self.entries.write().insert(name.to_owned(), entry);
                let open = self.get(name)?;
                // The views of one that could not be opened exist again as well.
                open.refuse_if_shown()?;
                Ok(Some(open))
            }
            Err(error) if self.was_released(&document, &error) => {
                self.forget(name)?;
                Ok(None)
            }
            Err(error) => {
                self.entries
                    .write()
                    .insert(name.to_owned(), DeviceState::Unavailable(document, Arc::new(error)));
                self.get(name).map(Some)
            }
        }
    }

    /// Whether a device could not be opened because its release was already complete. A different
    /// file in the place of its store does not show that.
    pub(super) fn was_released(&self, document: &DeviceDocument, error: &ServerError) -> bool {
        let is_without = matches!(
            error,
            ServerError::Devices(DevicesError::History { source: HistoryError::NoHistory, .. })
        );
        let store = document.history.as_ref().filter(|_| document.releasing && is_without);
        let store = store.and_then(|place| self.open_store(place).ok());
        let id = history_id(&document.history_id).ok();
        store.zip(id).is_some_and(|(store, id)| History::is_released(&*store, id).unwrap_or(false))
    }

    /// Leaves a plain disk.
    pub(crate) fn release(&self, open: &Arc<OpenDevice>, progress: &Progress) -> Result<(), ServerError> {
        open.end();
        progress.phase("copying back");
        let block = u64::from(open.history.status().block_bytes);
        let release = || open.history.release(&|done, all| progress.bytes(done * block, all * block));
        let outcome = match catch_unwind(AssertUnwindSafe(release)) {
            Ok(outcome) => outcome.map_err(ServerError::history(&open.name)),
            Err(_) => Err(ServerError::Bug),
        };
        match outcome {
            Ok(()) => self.forget(&open.name).inspect_err(|error| {
                // A repeated request finds that there is no history any more.
                let document = open.document.lock().clone();
                let why = ServerError::Busy { name: open.name.clone(), by: "its release could not be noted" };
                tracing::error!(device = open.name, %error, "a device was released, and its document can't be removed");
                self.entries.write().insert(open.name.clone(), DeviceState::Unavailable(document, Arc::new(why)));
            }),
            Err(error) => {
                self.stop_release(open, &error);
                Err(error)
            }
        }
    }

    /// A release stopped in the middle: the device is served again.
    pub(crate) fn stop_release(&self, open: &Arc<OpenDevice>, error: &ServerError) {
        let _turn = self.turns.wait(&open.name, "its release has stopped");
        // It may not have come so far.
        open.end();
        let entry = match open.begin() {
            Ok(()) => DeviceState::Open(open.clone()),
            Err(error) => DeviceState::Unavailable(open.document.lock().clone(), Arc::new(error)),
        };
        self.note_stopped(open, error.to_string());
        self.entries.write().insert(open.name.clone(), entry);
    }

    /// Notes why a release stopped. It is no longer in progress: a store without a history would
    /// from now on be a wrong one. This does not apply if a write to the store has failed, as that
    /// may have been the last one.
    pub(super) fn note_stopped(&self, open: &OpenDevice, why: String) {
        let mut document = open.document.lock();
        document.releasing = open.history.status().failed.is_some();
        document.release_stopped = Some(why);
        if let Err(error) = state::save(&self.path(&open.name), &*document) {
            tracing::error!(device = open.name, %error, "could not record that a release stopped; the next start will");
        }
    }

    /// Removes the document last: as long as it exists, a start knows that files remain to be
    /// removed.
    pub(super) fn drop_released(&self, name: &str) -> Result<(), ServerError> {
        self.forget_seen(name);
        state::remove(&self.path(name)).map_err(ServerError::path("remove", &self.path(name)))
    }

    /// Nothing is left of a device.
    fn forget(&self, name: &str) -> Result<(), ServerError> {
        self.drop_released(name)?;
        self.entries.write().remove(name);
        Ok(())
    }
}

impl OpenDevice {
    /// Refuses while instants of it are exported: writes to a clone are useless without the
    /// history.
    fn refuse_if_shown(&self) -> Result<(), ServerError> {
        let mut instants: BTreeSet<String> = self.shown.read().keys().cloned().collect();
        instants.extend(self.document.lock().clones.keys().cloned());
        if instants.is_empty() {
            return Ok(());
        }
        let instants: Vec<String> = instants.into_iter().collect();
        Err(ServerError::Devices(DevicesError::Shown {
            device: self.name.clone(),
            instants: instants.join(", "),
        }))
    }
}

#[cfg(test)]
pub(super) mod tests;
