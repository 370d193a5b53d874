//! Adopted devices: a disk or an image that stays in its place, with a history beside it, under its
//! name in the exports.
//!
//! `DIR/devices/NAME.json` records the places of both, and the exported views and clones; it is
//! written before a device is served, so all of them return after a restart or a kill. A clone is
//! redirect-on-write over a view: a history of its own, in `DIR/devices/NAME@CLONE.store`, that
//! never folds anything back. A device may be adopted without a history: then it is a plain export.
//! An origin that is a LUN is served as the device under the LUN's own name as well, so that no
//! write gets past the history. One thread a device moves the window, writes out and copies after a
//! revert.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use cairn_api::{self as api, ErrorKind};
use cairn_base::Clock;
use cairn_device::Device;
use cairn_frontend_nbd::{Export, ExportInfo};
use cairn_history::{History, LogPosition, OpenOptions};
use parking_lot::{Mutex, RwLock};

use crate::daemon::data_dir::guard;
use crate::daemon::error::DaemonError;
use crate::devices::error::DevicesError;
use crate::devices::open::{ClosedClone, DeviceDocument, OpenDevice, Shown};
use crate::error::ServerError;
use crate::state;
use crate::storage::files::create_store_file;
use crate::storage::histories::{exactly, refuse_other_store};
use crate::storage::place::Place;
use crate::storage::seen::Seen;
use crate::storage::settled::{no_answer, silent};
use crate::volumes::Volumes;
use crate::work::turns::Turns;

mod adopting;
mod clones;
mod commands;
pub(crate) mod error;
mod older;
pub(crate) mod open;
mod place;
mod release;
mod show;
mod waiting;

pub(crate) use crate::storage::files::{open_store_file, refuse_store_file, take_file, take_store_file};

enum DeviceState {
    Open(Arc<OpenDevice>),
    /// It has no history.
    Plain(DeviceDocument, Arc<dyn Device>),
    /// Its name stays in use, and its files are not touched.
    Unavailable(DeviceDocument, Arc<ServerError>),
    Releasing(DeviceDocument),
}

impl DeviceState {
    fn with_document<T>(&self, take: impl FnOnce(&DeviceDocument) -> T) -> T {
        match self {
            DeviceState::Open(open) => take(&open.document.lock()),
            DeviceState::Plain(document, _)
            | DeviceState::Unavailable(document, _)
            | DeviceState::Releasing(document) => take(document),
        }
    }

    fn is_unknown(&self) -> bool {
        self.with_document(|document| document.unknown)
    }

    fn origin(&self) -> Place {
        self.with_document(|document| document.origin.clone())
    }

    fn history(&self) -> Option<Place> {
        self.with_document(|document| document.history.clone())
    }
}

/// The adopted devices of a server.
///
/// Lock order: `turns`, then `claimed`, then `entries`, then those of a device. The first are each
/// name's own.
pub(crate) struct Devices {
    dir: PathBuf,
    clock: Arc<dyn Clock>,
    volumes: Arc<Volumes>,
    turns: Turns,
    /// LUNs that are being adopted. Files are protected by their locks instead.
    claimed: Mutex<Vec<Place>>,
    entries: RwLock<BTreeMap<String, DeviceState>>,
}

impl Devices {
    /// Opens every device in `dir`. One that cannot be opened is reported and does not stop the
    /// others.
    pub(crate) fn open(
        dir: PathBuf,
        clock: Arc<dyn Clock>,
        volumes: Arc<Volumes>,
    ) -> Result<Self, ServerError> {
        guard::make_folder(&dir).map_err(ServerError::path("create", &dir))?;
        let (turns, claimed, entries) = (Turns::default(), Mutex::default(), RwLock::default());
        let devices = Self { dir, clock, volumes, turns, claimed, entries };
        let mut names = Vec::new();
        let listing = fs::read_dir(&devices.dir).map_err(ServerError::path("read", &devices.dir))?;
        for found in listing {
            let path = found.map_err(ServerError::path("read", &devices.dir))?.path();
            if let Some(name) = path.extension().filter(|end| *end == "json").and(path.file_stem()) {
                names.push(name.to_string_lossy().into_owned());
            }
        }
        let files = |name: &String| {
            let document = state::load::<DeviceDocument>(&devices.path(name)).ok().flatten();
            document.map(|document| document.files()).unwrap_or_default()
        };
        let silent = silent(names.iter().flat_map(files));
        for name in &names {
            devices.open_one(name, &silent)?;
        }
        Ok(devices)
    }

    /// Opens a device according to its document. A device whose document can't be read is not
    /// exported. Its place, which never changes, is taken from the copy beside the document, so
    /// that no other user of that place gets in. A device on a `silent` file system stays closed
    /// until that answers. False if there is no device, or no longer one.
    fn open_one(&self, name: &str, silent: &BTreeSet<PathBuf>) -> Result<bool, ServerError> {
        let path = self.path(name);
        let (document, unread) = state::known::<DeviceDocument>(&path);
        if let Some(unread) = unread {
            let copy = state::load::<DeviceDocument>(&state::previous(&path)).ok().flatten();
            let closed = DeviceState::Unavailable(
                copy.unwrap_or_else(DeviceDocument::unknown),
                Arc::new(unread.error()),
            );
            self.entries.write().insert(name.to_owned(), closed);
            return Ok(true);
        }
        let Some(document) = document else { return Ok(false) };
        if document.adopting {
            tracing::warn!(device = name, "its adoption was not completed; run the same command again");
            return self.take_back(name, &document).map(|()| false);
        }
        match state::load::<DeviceDocument>(&state::previous(&path)) {
            Ok(Some(before)) if before.adopting || !before.loose.is_empty() => state::renew_copy(&path),
            _ => state::keep_copy(&path),
        }
        let document = self.settle_clones(name, document);
        let started = match document.files().iter().find(|path| silent.contains(*path)) {
            Some(path) => Err(no_answer(path).into()),
            None => self.start(name, &document),
        };
        let entry = match started {
            Ok(entry) => {
                if let (true, DeviceState::Open(open)) = (document.releasing, &entry) {
                    tracing::warn!(
                        device = name,
                        "its release had stopped in the middle; it is served as before"
                    );
                    let why = document.release_stopped.clone();
                    let why = why.unwrap_or_else(|| "the server ended in the middle of it".to_owned());
                    self.note_stopped(open, why);
                }
                entry
            }
            Err(error) if self.was_released(&document, &error) => {
                return self.drop_released(name).map(|()| false);
            }
            Err(error) => {
                tracing::error!(device = name, %error, "an adopted device cannot be opened; the others are served");
                DeviceState::Unavailable(document, Arc::new(error))
            }
        };
        self.entries.write().insert(name.to_owned(), entry);
        Ok(true)
    }

    /// Loads a device whose document could not be read: from the present document, or as absent if
    /// there is none.
    pub(crate) fn read(&self, name: &str) -> Result<(), ServerError> {
        let _turn = self.turns.take(&[name], "its document is being read")?;
        self.check_unread(name)?;
        // The entry stays until then: a client that finds the LUN free in between would write past
        // the history.
        if !self.open_one(name, &BTreeSet::new())? {
            self.entries.write().remove(name);
        }
        Ok(())
    }

    /// Refuses a device that is in service, or out of it for a reason other than its document.
    pub(crate) fn check_unread(&self, name: &str) -> Result<(), ServerError> {
        match self.entries.read().get(name) {
            Some(DeviceState::Unavailable(_, error))
                if matches!(**error, ServerError::Daemon(DaemonError::StateUnread { .. })) =>
            {
                Ok(())
            }
            _ => Err(ServerError::Daemon(DaemonError::StateKnown { file: format!("devices/{name}.json") })),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.json"))
    }

    fn clone_path(&self, name: &str, clone: &str) -> PathBuf {
        self.dir.join(format!("{name}@{clone}.store"))
    }

    /// Whether no device has that name.
    pub(crate) fn is_free(&self, name: &str) -> bool {
        !self.entries.read().contains_key(name)
    }

    /// The path of the saved position of a device's history.
    fn seen_path(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.seen"))
    }

    fn open_options(&self, document: &DeviceDocument) -> OpenOptions {
        OpenOptions {
            dirty_bytes: document.dirty_bytes,
            read_bytes: document.cache_bytes,
            clock: self.clock.clone(),
            at_least: LogPosition::default(),
        }
    }

    /// Opens a device, its views and its clones, and gives it a thread.
    fn start(&self, name: &str, document: &DeviceDocument) -> Result<DeviceState, ServerError> {
        let origin = self.open_origin(&document.origin, document.in_use)?;
        let Some(history) = &document.history else {
            return Ok(DeviceState::Plain(document.clone(), origin));
        };
        let store = self.open_store(history)?;
        refuse_other_store(name, &*store, &document.history_id)?;
        let seen = Seen::at(self.seen_path(name), &document.history_id);
        let options = OpenOptions { at_least: seen.position(), ..self.open_options(document) };
        let history = History::open(origin, store, options).map_err(ServerError::history(name))?;
        self.serve(name, document, history, seen).map(DeviceState::Open)
    }

    fn serve(
        &self,
        name: &str,
        document: &DeviceDocument,
        history: Arc<History>,
        seen: Seen,
    ) -> Result<Arc<OpenDevice>, ServerError> {
        let mut shown = BTreeMap::new();
        let mut document = document.clone();
        let mut closed = BTreeMap::new();
        document.views.retain(|view, at| match exactly(&history, *at) {
            Ok(opened) => shown.insert(view.clone(), Shown::View(Arc::new(opened))).is_none(),
            Err(error) => {
                tracing::warn!(device = name, view, %error, "a view is no longer exported");
                false
            }
        });
        for (clone, at) in &document.clones {
            let view = exactly(&history, *at).map_err(ServerError::history(name));
            match view.and_then(|view| self.open_clone(name, &document, view, clone, false)) {
                Ok(opened) => drop(shown.insert(clone.clone(), opened)),
                Err(error) => {
                    tracing::error!(device = name, clone, %error, "a clone cannot be opened");
                    let view = exactly(&history, *at).ok();
                    closed.insert(clone.clone(), ClosedClone { error, _view: view });
                }
            }
        }
        let open = Arc::new(OpenDevice {
            name: name.to_owned(),
            history,
            document: Mutex::new(document),
            shown: RwLock::new(shown),
            closed: Mutex::new(closed),
            seen,
            ending: AtomicBool::new(false),
            thread: Mutex::new(None),
        });
        open.begin()?;
        Ok(open)
    }

    /// The open device of that name.
    pub(crate) fn get(&self, name: &str) -> Result<Arc<OpenDevice>, ServerError> {
        let (document, error) = match self.entries.read().get(name) {
            Some(DeviceState::Open(open)) => return Ok(open.clone()),
            Some(DeviceState::Unavailable(document, error)) => (document.clone(), error.clone()),
            Some(DeviceState::Plain(..)) => {
                return Err(ServerError::Devices(DevicesError::WithoutHistory { device: name.to_owned() }));
            }
            Some(DeviceState::Releasing(_)) => {
                return Err(ServerError::Busy { name: name.to_owned(), by: "it is being released" });
            }
            None => return Err(not_found(name)),
        };
        // Not under the lock: the remedy depends on the files.
        Err(ServerError::Devices(DevicesError::DeviceUnavailable {
            device: name.to_owned(),
            kind: match error.kind() {
                ErrorKind::NotFound => ErrorKind::Damaged,
                kind => kind,
            },
            reason: error.to_string(),
            next: self.next_of(name, &document, &error),
        }))
    }

    fn all(&self) -> Vec<Arc<OpenDevice>> {
        let open = |entry: &DeviceState| match entry {
            DeviceState::Open(open) => Some(open.clone()),
            _ => None,
        };
        self.entries.read().values().filter_map(open).collect()
    }

    /// The devices without a history.
    fn plain(&self) -> Vec<(String, Arc<dyn Device>)> {
        let plain = |(name, entry): (&String, &DeviceState)| match entry {
            DeviceState::Plain(_, device) => Some((name.clone(), device.clone())),
            _ => None,
        };
        self.entries.read().iter().filter_map(plain).collect()
    }

    /// Gives up a device without a history, also one whose disk is gone; false if it has a history.
    pub(crate) fn release_plain(&self, name: &str) -> Result<bool, ServerError> {
        let _turn = self.turns.take(&[name], "it is being released")?;
        let device = match self.entries.read().get(name) {
            Some(DeviceState::Plain(_, device)) => Some(device.clone()),
            // The copy of an unreadable document may not have all of its content.
            Some(DeviceState::Unavailable(document, error))
                if document.history.is_none()
                    && !matches!(**error, ServerError::Daemon(DaemonError::StateUnread { .. })) =>
            {
                None
            }
            _ => return Ok(false),
        };
        device.map_or(Ok(()), |device| device.flush())?;
        state::remove(&self.path(name)).map_err(ServerError::path("remove", &self.path(name)))?;
        self.entries.write().remove(name);
        Ok(true)
    }

    /// Cancels the writes that wait for room.
    pub(crate) fn end_waits(&self) {
        self.all().iter().for_each(|open| open.history.let_wait(false));
    }

    /// Makes everything durable and ends the threads.
    pub(crate) fn end(&self) {
        for (name, device) in self.plain() {
            if let Err(error) = device.flush() {
                tracing::error!(device = name, %error, "an adopted device could not be flushed");
            }
        }
        for open in self.all() {
            open.end();
            let clones: Vec<Arc<History>> = open
                .shown
                .read()
                .values()
                .filter_map(|shown| match shown {
                    Shown::Clone { history, .. } => Some(history.clone()),
                    Shown::View(_) => None,
                })
                .collect();
            for history in clones.into_iter().chain([open.history.clone()]) {
                if let Err(error) = history.flush() {
                    tracing::error!(device = open.name, %error, "an adopted device could not be flushed");
                }
            }
            open.note_seen();
        }
    }

    /// Distinguishes a device or a view from earlier and later ones of its name: its origin, and
    /// the instant.
    pub(crate) fn identity(&self, name: &str) -> Option<String> {
        let (device, view) = name.split_once('@').map_or((name, None), |(device, view)| (device, Some(view)));
        let instant = match view {
            Some(view) => Some(self.get(device).ok()?.shown.read().get(view)?.instant()),
            None => None,
        };
        let entries = self.entries.read();
        let entry = entries
            .get(device)
            .filter(|entry| matches!(entry, DeviceState::Open(_) | DeviceState::Plain(..)))?;
        let history = entry.history().map(|place| place.to_string()).unwrap_or_default();
        let instant = instant.map_or(String::new(), |at| at.to_string());
        Some(format!("{}\n{history}\n{instant}", entry.origin()))
    }

    /// The exports that clients see.
    pub(crate) fn exports(&self) -> Vec<ExportInfo> {
        let mut exports: Vec<ExportInfo> = self
            .plain()
            .into_iter()
            .map(|(name, _)| ExportInfo { name, description: "adopted".to_owned() })
            .collect();
        for open in self.all() {
            exports.push(ExportInfo { name: open.name.clone(), description: "remembers".to_owned() });
            for (view, shown) in open.shown.read().iter() {
                let description = match shown {
                    Shown::View(_) => "an instant, read-only",
                    Shown::Clone { .. } => "a clone of an instant",
                };
                let name = format!("{}@{view}", open.name);
                exports.push(ExportInfo { name, description: description.to_owned() });
            }
        }
        exports
    }

    /// The export of that name, when it is a device, a view or a clone.
    pub(crate) fn export(&self, name: &str) -> Option<Export> {
        let (device, view) = match name.split_once('@') {
            Some((device, view)) => (device, Some(view)),
            None => (name, None),
        };
        if let (None, Some((_, plain))) = (view, self.plain().into_iter().find(|(name, _)| name == device)) {
            return Some(show_export(plain, false));
        }
        let open = self.get(device).ok()?;
        let (device, read_only): (Arc<dyn Device>, bool) = match view {
            None => (open.history.clone(), false),
            Some(view) => match open.shown.read().get(view)? {
                Shown::View(view) => (view.clone(), true),
                Shown::Clone { history, .. } => (history.clone(), false),
            },
        };
        Some(show_export(device, read_only))
    }
}

fn show_export(device: Arc<dyn Device>, read_only: bool) -> Export {
    let description = String::new();
    let (dirty_contexts, changed) = (Vec::new(), None);
    Export {
        device,
        description,
        read_only,
        writes_through: false,
        multi_conn: true,
        dirty_contexts,
        changed,
    }
}

fn not_found(name: &str) -> ServerError {
    ServerError::NotFound { what: "adopted device", name: name.to_owned(), list: "cairn device list" }
}

/// True for a request with options of a history. Without a history these would be ignored, and the
/// owner would find out only when the history is needed.
fn wants_history(request: &api::AdoptDevice) -> bool {
    request.placement.is_some()
        || request.granularity.is_some()
        || request.window != api::Window::default()
        || [request.history_bytes, request.dirty_bytes, request.cache_bytes].iter().any(Option::is_some)
        || request.block_bytes.is_some()
}

#[cfg(test)]
mod tests;
