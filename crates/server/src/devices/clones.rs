//! Instants of a device that are exported: views, and clones with a store of their own.
//!
//! The document says which clone is *loose* before its store is made, and when it is deleted before
//! that is removed: the next start removes the remains of a kill, which cause no conflict until
//! then.

use std::fs;
use std::sync::Arc;

use cairn_api as api;
use cairn_device::Device;
use cairn_history::{History, HistoryView};

use super::{Devices, create_store_file, open_store_file};
use crate::devices::error::DevicesError;
use crate::devices::open::{DeviceDocument, OpenDevice, Shown};
use crate::error::ServerError;
use crate::storage::histories::{STORE_MIN, options_of_a_clone};
use crate::{names, state};

impl Devices {
    /// Exports an instant of a device as `DEVICE@NAME`.
    pub(crate) fn show_instant(
        &self,
        name: &str,
        request: &api::CreateView,
    ) -> Result<(String, u64, bool), ServerError> {
        let _turn = self.turns.take(&[name], "an instant of it is being exported")?;
        let open = self.get(name)?;
        let asked = open.settled(&request.instant)?;
        let view = match &request.name {
            Some(name) => name.clone(),
            None => format!("at-{}", open.instant(&asked)? / 1_000_000),
        };
        names::check("view", &view)?;
        // The store of a clone that could not be opened must not be taken for the remains of an
        // attempt.
        if open.shown.read().contains_key(&view) || open.document.lock().clones.contains_key(&view) {
            return Err(ServerError::Taken { what: "view", name: format!("{name}@{view}") });
        }
        let shown = if request.writable {
            self.make_clone(&open, &view, &asked)?
        } else {
            Shown::View(Arc::new(open.view(&asked)?))
        };
        let instant = shown.instant();
        let mut document = open.document.lock().clone();
        document.loose.remove(&view);
        if request.writable { &mut document.clones } else { &mut document.views }
            .insert(view.clone(), instant);
        state::save(&self.path(name), &document)?;
        if request.writable {
            // Gone back to it must not have the clone removed.
            state::renew_copy(&self.path(name));
        }
        *open.document.lock() = document;
        open.shown.write().insert(view.clone(), shown);
        Ok((view, instant, request.writable))
    }

    /// Refuses a view if a clone is meant, and a clone, even one that could not be opened, if a
    /// view is meant.
    pub(crate) fn refuse_other_kind(
        &self,
        name: &str,
        view: &str,
        writable: Option<bool>,
    ) -> Result<(), ServerError> {
        let open = self.get(name)?;
        let document = open.document.lock();
        let is_clone = document.clones.contains_key(view);
        let is_there = is_clone || document.views.contains_key(view);
        if !is_there || writable.is_none_or(|writable| writable == is_clone) {
            return Ok(());
        }
        let kind = if is_clone { "clone" } else { "view" };
        Err(ServerError::Devices(DevicesError::OtherKind {
            device: name.to_owned(),
            view: view.to_owned(),
            kind,
        }))
    }

    /// Ends the export of an instant; a clone is deleted with all its writes.
    pub(crate) fn hide_instant(&self, name: &str, view: &str) -> Result<(), ServerError> {
        let _turn = self.turns.take(&[name], "the export of an instant of it is being ended")?;
        let open = self.get(name)?;
        let is_clone = self.forget_instant(&open, view)?;
        open.shown.write().remove(view);
        open.closed.lock().remove(view);
        if is_clone {
            let _ = fs::remove_file(self.clone_path(name, view));
            if let Err(error) = self.note_loose(&open, view, false) {
                tracing::warn!(device = name, clone = view, %error, "the next start records that a clone was deleted");
            }
        }
        Ok(())
    }

    /// The document does not say any more that the instant is exported. Whether it was a clone's,
    /// which is loose then.
    pub(super) fn forget_instant(&self, open: &OpenDevice, view: &str) -> Result<bool, ServerError> {
        let mut document = open.document.lock().clone();
        let is_clone = document.clones.remove(view).is_some();
        if is_clone {
            document.loose.insert(view.to_owned());
        } else if document.views.remove(view).is_none() {
            let (name, list) = (format!("{}@{view}", open.name), "cairn history status DEVICE");
            return Err(ServerError::NotFound { what: "view or clone", name, list });
        }
        state::save(&self.path(&open.name), &document)?;
        *open.document.lock() = document;
        Ok(is_clone)
    }

    /// Prepares a new clone: it is loose, and its place is empty.
    pub(super) fn begin_clone(&self, open: &OpenDevice, clone: &str) -> Result<(), ServerError> {
        self.note_loose(open, clone, true)?;
        let _ = fs::remove_file(self.clone_path(&open.name, clone));
        Ok(())
    }

    /// A new clone, whose name is free.
    fn make_clone(&self, open: &OpenDevice, clone: &str, asked: &api::Instant) -> Result<Shown, ServerError> {
        let name = &open.name;
        self.begin_clone(open, clone)?;
        let document = open.document.lock().clone();
        let make = || self.open_clone(name, &document, open.view(asked)?, clone, true);
        make().inspect_err(|_| {
            let _ = fs::remove_file(self.clone_path(name, clone));
            if let Err(error) = self.note_loose(open, clone, false) {
                tracing::warn!(device = name, clone, %error, "the next start records that a clone was not made");
            }
        })
    }

    fn note_loose(&self, open: &OpenDevice, clone: &str, is_loose: bool) -> Result<(), ServerError> {
        let mut document = open.document.lock().clone();
        match is_loose {
            true => document.loose.insert(clone.to_owned()),
            false => document.loose.remove(clone),
        };
        state::save(&self.path(&open.name), &document)?;
        *open.document.lock() = document;
        Ok(())
    }

    /// Removes the remains of clones after a kill.
    pub(super) fn settle_clones(&self, name: &str, mut document: DeviceDocument) -> DeviceDocument {
        if document.loose.is_empty() {
            return document;
        }
        for clone in std::mem::take(&mut document.loose) {
            if !document.clones.contains_key(&clone) {
                tracing::warn!(
                    device = name,
                    clone,
                    "removing the remains of a clone whose creation or deletion was interrupted"
                );
                let _ = fs::remove_file(self.clone_path(name, &clone));
            }
        }
        if let Err(error) = state::save(&self.path(name), &document) {
            tracing::warn!(device = name, %error, "could not remove the record of deleted clones");
        }
        document
    }

    /// A history of its own over a view: writes to the clone go there, and are never folded into
    /// the view.
    pub(super) fn open_clone(
        &self,
        name: &str,
        document: &DeviceDocument,
        view: HistoryView,
        clone: &str,
        new: bool,
    ) -> Result<Shown, ServerError> {
        let failed = ServerError::history(name);
        let view = Arc::new(view);
        let path = self.clone_path(name, clone);
        let options = self.open_options(document);
        let history = if new {
            // Room for every block twice: overwritten blocks are cleaned, so that it never fills.
            let bytes = (2 * view.geometry().length + STORE_MIN).next_multiple_of(1 << 20);
            let store = create_store_file(&path, bytes)?;
            History::create(view.clone(), store, &options_of_a_clone(document.block_bytes), options)
        } else {
            History::open(view.clone(), open_store_file(&path)?, options)
        };
        Ok(Shown::Clone { history: history.map_err(&failed)?, view })
    }
}
