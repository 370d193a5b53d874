//! Adopted devices: a disk or an image that stays where it is, with a history beside it, under its name in the exports.
//!
//! `DIR/devices/NAME.json` says where both are, and which views and clones of it are exported; it is written before a device is served, so a restart or a kill brings all of them back. A clone
//! is redirect-on-write over a view: a history of its own, in `DIR/devices/NAME@CLONE.store`, that never folds anything back.
//! A device may be adopted without a history: then it is a plain export. An origin that is a LUN is served as the device under the LUN's own name as well, so that no write gets past the history.
//! One thread a device moves the window, writes out and copies after a revert.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use cairn_api::{self as api, ErrorKind};
use cairn_base::{Clock, HistoryId, Interval, Timestamp};
use cairn_device::Device;
use cairn_frontend_nbd::{Export, ExportInfo};
use cairn_history::{
    FloorPolicy, Granularity, History, HistoryError, HistoryOptions, HistoryView, LogPosition, OpenOptions,
    Placement, Reduction, Thin, When, Window,
};
use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};

use crate::data_dir::guard;
use crate::error::ServerError;
use crate::names;
use crate::seen::Seen;
use crate::settled::{no_answer, silent};
use crate::state;
use crate::token::random_bytes;
use crate::turns::Turns;
use crate::volumes::Volumes;

mod adopting;
mod clones;
mod commands;
mod older;
mod place;
mod release;
mod show;
mod waiting;

use place::Place;
use place::create_store_file;
pub(crate) use place::{open_store_file, refuse_store_file, take_file, take_store_file};

/// How long the background thread of a device rests when there was nothing to do.
const REST: Duration = Duration::from_millis(50);
/// How long it rests after a failure.
const REST_AFTER_FAILURE: Duration = Duration::from_secs(1);
/// How long opening waits for the lock of a server that was just killed, and how often it looks.
const BUSY_PATIENCE: Duration = Duration::from_secs(5);
const BUSY_PAUSE: Duration = Duration::from_millis(10);
/// As much as a flush of the store is worth: with less, placements that write log and origin wait for flushes.
const DIRTY_BYTES: u64 = 32 << 20;
const CACHE_BYTES: u64 = 64 << 20;
/// Bytes of the smallest store that is made unasked.
pub(crate) const STORE_MIN: u64 = 64 << 20;
/// The block of a history unless its owner wants another.
pub(crate) const BLOCK_BYTES: u32 = 4096;

/// What `NAME.json` says.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Document {
    origin: Place,
    /// None: a plain device.
    history: Option<Place>,
    /// Which history is there.
    #[serde(default)]
    history_id: String,
    block_bytes: u32,
    dirty_bytes: u64,
    cache_bytes: u64,
    /// Instants by the names of their views.
    #[serde(default)]
    views: BTreeMap<String, u64>,
    /// Instants by the names of their clones.
    #[serde(default)]
    clones: BTreeMap<String, u64>,
    /// Clones that are being made or deleted: a start removes what is there of their stores.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    loose: BTreeSet<String>,
    /// The device is being adopted: nobody was served by it, and a start takes back what there is of it.
    #[serde(default)]
    adopting: bool,
    /// The origin is made with it, so many bytes long.
    #[serde(default)]
    origin_made_bytes: Option<u64>,
    /// The device was being released: a store without a history means that it is done.
    #[serde(default)]
    releasing: bool,
    /// Why the last release stopped in the middle.
    #[serde(default)]
    release_stopped: Option<String>,
    /// The origin is opened though other programs have it: the word of its owner.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    in_use: bool,
    /// Nothing of it is known, as no document of it can be read: any LUN may be its origin or hold its history.
    #[serde(skip)]
    unknown: bool,
}

impl Document {
    fn unknown() -> Self {
        Self {
            origin: Place::File(PathBuf::new()),
            history: None,
            history_id: String::new(),
            block_bytes: 0,
            dirty_bytes: 0,
            cache_bytes: 0,
            views: BTreeMap::new(),
            clones: BTreeMap::new(),
            loose: BTreeSet::new(),
            adopting: false,
            origin_made_bytes: None,
            releasing: false,
            in_use: false,
            release_stopped: None,
            unknown: true,
        }
    }

    /// What it is on that is no LUN of a volume.
    fn files(&self) -> Vec<PathBuf> {
        let file = |place: &Place| match place {
            Place::File(path) => Some(path.clone()),
            Place::Lun { .. } => None,
        };
        [Some(&self.origin), self.history.as_ref()].into_iter().flatten().filter_map(file).collect()
    }
}

/// An exported instant.
enum Shown {
    View(Arc<HistoryView>),
    Clone { history: Arc<History>, view: Arc<HistoryView> },
}

impl Shown {
    fn instant(&self) -> u64 {
        match self {
            Shown::View(view) | Shown::Clone { view, .. } => view.instant().0,
        }
    }
}

/// A clone that could not be opened.
struct ClosedClone {
    error: ServerError,
    /// Holds the window; what was written to the clone is nothing without it.
    _view: Option<HistoryView>,
}

/// A device that is open, with its thread: an adopted one, or the one under a volume.
pub(crate) struct OpenDevice {
    name: String,
    history: Arc<History>,
    document: Mutex<Document>,
    shown: RwLock<BTreeMap<String, Shown>>,
    /// Clones that could not be opened: why, and their instants, which stay for a start that can.
    closed: Mutex<BTreeMap<String, ClosedClone>>,
    seen: Seen,
    ending: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

enum Entry {
    Open(Arc<OpenDevice>),
    /// It has no history.
    Plain(Document, Arc<dyn Device>),
    /// Its name stays taken and nothing of it is touched.
    Unavailable(Document, Arc<ServerError>),
    Releasing(Document),
}

impl Entry {
    fn with_document<T>(&self, take: impl FnOnce(&Document) -> T) -> T {
        match self {
            Entry::Open(open) => take(&open.document.lock()),
            Entry::Plain(document, _) | Entry::Unavailable(document, _) | Entry::Releasing(document) => {
                take(document)
            }
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
/// Lock order: `turns`, then `claimed`, then `entries`, then those of a device. The first are each name's own.
pub(crate) struct Devices {
    dir: PathBuf,
    clock: Arc<dyn Clock>,
    volumes: Arc<Volumes>,
    turns: Turns,
    /// LUNs that are being adopted. Files are his who has them locked.
    claimed: Mutex<Vec<Place>>,
    entries: RwLock<BTreeMap<String, Entry>>,
}

impl Devices {
    /// Opens every device in `dir`. One that cannot be opened is reported and does not stop the others.
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
            let document = state::load::<Document>(&devices.path(name)).ok().flatten();
            document.map(|document| document.files()).unwrap_or_default()
        };
        let silent = silent(names.iter().flat_map(files));
        for name in &names {
            devices.open_one(name, &silent)?;
        }
        Ok(devices)
    }

    /// Opens what the document of a device says. One whose document can't be read is not exported; where it is, which never changes, is taken from the copy beside it, so that nobody else gets to that.
    /// One that is on something `silent` stays closed until that answers. False where there is none, or none any more.
    fn open_one(&self, name: &str, silent: &BTreeSet<PathBuf>) -> Result<bool, ServerError> {
        let path = self.path(name);
        let (document, unread) = state::known::<Document>(&path);
        if let Some(unread) = unread {
            let copy = state::load::<Document>(&state::previous(&path)).ok().flatten();
            let closed = Entry::Unavailable(copy.unwrap_or_else(Document::unknown), Arc::new(unread.error()));
            self.entries.write().insert(name.to_owned(), closed);
            return Ok(true);
        }
        let Some(document) = document else { return Ok(false) };
        if document.adopting {
            tracing::warn!(device = name, "its adoption had not come to its end; run the same command again");
            return self.take_back(name, &document).map(|()| false);
        }
        match state::load::<Document>(&state::previous(&path)) {
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
                if let (true, Entry::Open(open)) = (document.releasing, &entry) {
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
                Entry::Unavailable(document, Arc::new(error))
            }
        };
        self.entries.write().insert(name.to_owned(), entry);
        Ok(true)
    }

    /// Takes in a device whose document could not be read: what the document says by now, or that there is none.
    pub(crate) fn read(&self, name: &str) -> Result<(), ServerError> {
        let _turn = self.turns.take(&[name], "its document is being read")?;
        self.check_unread(name)?;
        // It stands there until then: who finds its LUN free in between writes past its history.
        if !self.open_one(name, &BTreeSet::new())? {
            self.entries.write().remove(name);
        }
        Ok(())
    }

    /// Refuses a device that is in service, or out of it for another reason than its document.
    pub(crate) fn check_unread(&self, name: &str) -> Result<(), ServerError> {
        match self.entries.read().get(name) {
            Some(Entry::Unavailable(_, error)) if matches!(**error, ServerError::StateUnread { .. }) => {
                Ok(())
            }
            _ => Err(ServerError::StateKnown { file: format!("devices/{name}.json") }),
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

    /// Where it is noted how far the history of a device has come.
    fn seen_path(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.seen"))
    }

    fn open_options(&self, document: &Document) -> OpenOptions {
        OpenOptions {
            dirty_bytes: document.dirty_bytes,
            read_bytes: document.cache_bytes,
            clock: self.clock.clone(),
            at_least: LogPosition::default(),
        }
    }

    /// Opens a device, its views and its clones, and gives it a thread.
    fn start(&self, name: &str, document: &Document) -> Result<Entry, ServerError> {
        let origin = self.open_origin(&document.origin, document.in_use)?;
        let Some(history) = &document.history else { return Ok(Entry::Plain(document.clone(), origin)) };
        let store = self.open_store(history)?;
        let mut document = document.clone();
        if document.history_id.is_empty() {
            // From before it was noted.
            document.history_id = History::id_of(&*store).map_err(ServerError::history(name))?.to_string();
            state::save(&self.path(name), &document)?;
        }
        refuse_other_store(name, &*store, &document.history_id)?;
        let seen = Seen::at(self.seen_path(name), &document.history_id);
        let options = OpenOptions { at_least: seen.position(), ..self.open_options(&document) };
        let history = History::open(origin, store, options).map_err(ServerError::history(name))?;
        self.serve(name, &document, history, seen).map(Entry::Open)
    }

    fn serve(
        &self,
        name: &str,
        document: &Document,
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
            Some(Entry::Open(open)) => return Ok(open.clone()),
            Some(Entry::Unavailable(document, error)) => (document.clone(), error.clone()),
            Some(Entry::Plain(..)) => return Err(ServerError::WithoutHistory { device: name.to_owned() }),
            Some(Entry::Releasing(_)) => {
                return Err(ServerError::Busy { name: name.to_owned(), by: "it is being released" });
            }
            None => return Err(not_found(name)),
        };
        // Not under the lock: what to do depends on what is there.
        Err(ServerError::DeviceUnavailable {
            device: name.to_owned(),
            kind: match error.kind() {
                ErrorKind::NotFound => ErrorKind::Damaged,
                kind => kind,
            },
            reason: error.to_string(),
            next: self.next_of(name, &document, &error),
        })
    }

    fn all(&self) -> Vec<Arc<OpenDevice>> {
        let open = |entry: &Entry| match entry {
            Entry::Open(open) => Some(open.clone()),
            _ => None,
        };
        self.entries.read().values().filter_map(open).collect()
    }

    /// The devices without a history.
    fn plain(&self) -> Vec<(String, Arc<dyn Device>)> {
        let plain = |(name, entry): (&String, &Entry)| match entry {
            Entry::Plain(_, device) => Some((name.clone(), device.clone())),
            _ => None,
        };
        self.entries.read().iter().filter_map(plain).collect()
    }

    /// Gives up a device without a history, also one whose disk is gone; false when it has one.
    pub(crate) fn release_plain(&self, name: &str) -> Result<bool, ServerError> {
        let _turn = self.turns.take(&[name], "it is being released")?;
        let device = match self.entries.read().get(name) {
            Some(Entry::Plain(_, device)) => Some(device.clone()),
            // What stands there by the copy of a document that can't be read may not be all of it.
            Some(Entry::Unavailable(document, error))
                if document.history.is_none() && !matches!(**error, ServerError::StateUnread { .. }) =>
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

    /// Lets go the writes that wait for room.
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

    /// What tells a device or a view from others that had or will have its name: what it was adopted from, and the instant.
    pub(crate) fn identity(&self, name: &str) -> Option<String> {
        let (device, view) = name.split_once('@').map_or((name, None), |(device, view)| (device, Some(view)));
        let instant = match view {
            Some(view) => Some(self.get(device).ok()?.shown.read().get(view)?.instant()),
            None => None,
        };
        let entries = self.entries.read();
        let entry = entries.get(device).filter(|entry| matches!(entry, Entry::Open(_) | Entry::Plain(..)))?;
        let history = entry.history().map(|place| place.to_string()).unwrap_or_default();
        let instant = instant.map_or(String::new(), |at| at.to_string());
        Some(format!("{}\n{history}\n{instant}", entry.origin()))
    }

    /// What clients are told of.
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

impl OpenDevice {
    /// The history under a volume, which has no thread yet. It has the name of the volume, and is no export.
    pub(crate) fn under_volume(
        volume: &str,
        history: Arc<History>,
        origin: &Path,
        store: &Path,
        seen: Seen,
    ) -> Arc<Self> {
        let document = Document {
            origin: Place::File(origin.to_owned()),
            history: Some(Place::File(store.to_owned())),
            history_id: String::new(),
            block_bytes: history.status().block_bytes,
            dirty_bytes: DIRTY_BYTES,
            cache_bytes: 0,
            views: BTreeMap::new(),
            clones: BTreeMap::new(),
            loose: BTreeSet::new(),
            adopting: false,
            origin_made_bytes: None,
            releasing: false,
            release_stopped: None,
            in_use: false,
            unknown: false,
        };
        Arc::new(Self {
            name: volume.to_owned(),
            history,
            document: Mutex::new(document),
            shown: RwLock::default(),
            closed: Mutex::default(),
            seen,
            ending: AtomicBool::new(false),
            thread: Mutex::new(None),
        })
    }

    /// The device itself.
    pub(crate) fn history(&self) -> &Arc<History> {
        &self.history
    }

    /// Gives the device its thread.
    pub(crate) fn begin(self: &Arc<Self>) -> Result<(), ServerError> {
        self.ending.store(false, Ordering::Release);
        self.history.let_wait(true);
        self.note_seen();
        let mine = self.clone();
        let thread =
            std::thread::Builder::new().name(format!("history-{}", self.name)).spawn(move || mine.work());
        let thread = thread.map_err(|source| ServerError::Thread { what: "a device's history", source })?;
        *self.thread.lock() = Some(thread);
        Ok(())
    }

    fn work(&self) {
        let mut failing = false;
        while !self.ending.load(Ordering::Acquire) {
            self.seen.note_now_and_then(&self.history);
            let mut more = self.history.step();
            // Not under the lock: whoever opens a view, or asks for one, would wait for a slice.
            for clone in self.clones() {
                if let Ok(any) = &mut more {
                    *any |= clone.step().unwrap_or(false);
                }
            }
            match more {
                Ok(true) => failing = false,
                Ok(false) => {
                    failing = false;
                    self.history.rest(REST);
                }
                Err(error) => {
                    if !failing {
                        tracing::error!(device = self.name, %error, "the background work of a history failed");
                    }
                    failing = true;
                    std::thread::park_timeout(REST_AFTER_FAILURE);
                }
            }
        }
    }

    /// The histories of its clones.
    fn clones(&self) -> Vec<Arc<History>> {
        let of = |shown: &Shown| match shown {
            Shown::Clone { history, .. } => Some(history.clone()),
            Shown::View(_) => None,
        };
        self.shown.read().values().filter_map(of).collect()
    }

    /// Ends the thread, and lets go what waits for room.
    pub(crate) fn end(&self) {
        self.ending.store(true, Ordering::Release);
        self.history.let_wait(false);
        if let Some(thread) = self.thread.lock().take() {
            self.history.wake();
            thread.thread().unpark();
            if thread.join().is_err() {
                tracing::error!(device = self.name, "the thread of a history had panicked");
            }
        }
        self.note_seen();
    }

    /// Notes how far its history has come.
    fn note_seen(&self) {
        self.seen.note(&self.history);
    }

    /// The instant that a request means.
    fn when(&self, instant: &api::Instant) -> Result<When, ServerError> {
        let wrong = ServerError::history(&self.name);
        match (instant.at_ns, instant.ago_ns, &instant.mark, instant.stamp_ns) {
            (Some(at), None, None, None) => Ok(When::Clock(Timestamp(at))),
            (None, Some(ago), None, None) => self.history.ago(Duration::from_nanos(ago)).map_err(wrong),
            (None, None, Some(mark), None) => Ok(When::Clock(self.history.marked(mark).map_err(wrong)?)),
            (None, None, None, Some(stamp)) => Ok(When::Stamp(Timestamp(stamp))),
            _ => Err(ServerError::Invalid {
                what: "the instant",
                rule: "it is a time, how long ago it is, or the name of a mark",
            }),
        }
    }

    /// The same instant, found once: one that is so long ago moves on with the time that a request takes.
    pub(crate) fn settled(&self, instant: &api::Instant) -> Result<api::Instant, ServerError> {
        Ok(match self.when(instant)? {
            When::Clock(_) => instant.clone(),
            When::Stamp(at) => api::Instant { stamp_ns: Some(at.0), ..api::Instant::default() },
        })
    }

    /// What it is called by, as a number: in names of views.
    pub(crate) fn instant(&self, instant: &api::Instant) -> Result<u64, ServerError> {
        let (When::Clock(at) | When::Stamp(at)) = self.when(instant)?;
        Ok(at.0)
    }

    pub(crate) fn mark(&self, request: &api::CreateMark) -> Result<api::Mark, ServerError> {
        names::check("mark", &request.name)?;
        let mark =
            self.history.mark(&request.name, request.consistent).map_err(ServerError::history(&self.name))?;
        Ok(api::Mark { name: mark.name, at_ns: mark.time.0, consistent: mark.consistent })
    }

    /// Names the present instant, unless there is a mark of that name.
    pub(crate) fn mark_once(&self, name: &str) -> Result<(), ServerError> {
        match self.history.mark(name, false) {
            Ok(_) | Err(HistoryError::MarkTaken) => Ok(()),
            Err(error) => Err(ServerError::history(&self.name)(error)),
        }
    }

    /// The instant that a request means, held.
    pub(crate) fn view(&self, instant: &api::Instant) -> Result<HistoryView, ServerError> {
        let at = self.when(instant)?;
        self.history.view(at).map_err(ServerError::history(&self.name))
    }

    /// Refuses what a revert would refuse.
    pub(crate) fn check_revert(&self, instant: &api::Instant) -> Result<(), ServerError> {
        let at = self.when(instant)?;
        self.history.check_revert(at).map_err(ServerError::history(&self.name))
    }

    pub(crate) fn revert(&self, instant: &api::Instant) -> Result<(u64, String), ServerError> {
        let at = self.when(instant)?;
        let reverted = self.history.revert(at).map_err(ServerError::history(&self.name))?;
        self.note_seen();
        Ok((reverted.instant.0, reverted.undo))
    }

    pub(crate) fn set_window(&self, window: &api::Window) -> Result<(), ServerError> {
        let before = self.history.status().window;
        let mut wanted = engine_window(window, before.floor_policy)?;
        if window.reduce.is_none() {
            wanted.reduction = before.reduction;
        }
        self.history.set_window(wanted).map_err(ServerError::history(&self.name))
    }
}

/// The view of an instant that was kept when it was exported. Another one in its place would be a wrong disk.
pub(crate) fn exactly(history: &Arc<History>, at: u64) -> Result<HistoryView, HistoryError> {
    history.view_again(Timestamp(at))
}

fn not_found(name: &str) -> ServerError {
    ServerError::NotFound { what: "adopted device", name: name.to_owned(), list: "cairn device list" }
}

/// Refuses a store that has another history: opened over this origin it would write there what belongs elsewhere.
pub(crate) fn refuse_other_store(name: &str, store: &dyn Device, expected: &str) -> Result<(), ServerError> {
    let found = History::id_of(store).map_err(ServerError::history(name))?.to_string();
    if found == expected {
        return Ok(());
    }
    Err(ServerError::history(name)(HistoryError::OtherStore { expected: expected.to_owned(), found }))
}

/// The id of a history as documents have it.
pub(crate) fn history_id(text: &str) -> Result<HistoryId, ServerError> {
    let id = u128::from_str_radix(text, 16).map_err(|_| ServerError::Bug)?;
    Ok(HistoryId(id.to_be_bytes()))
}

/// How the history under a volume is opened: without a read cache, as the volume has one, and a scrub of it reads from the media.
pub(crate) fn options_under_volume(clock: Arc<dyn Clock>) -> OpenOptions {
    OpenOptions { dirty_bytes: DIRTY_BYTES, read_bytes: 0, clock, at_least: LogPosition::default() }
}

/// What is written over a view: redirect-on-write, and never folded back into it.
pub(crate) fn options_of_a_clone(block_bytes: u32) -> HistoryOptions {
    HistoryOptions {
        store: HistoryId(random_bytes()),
        placement: Placement::Logging,
        granularity: Granularity::Marks,
        block_bytes,
        window: Window::of_a_clone(),
    }
}

/// True of a request that says how a history is to be. Without one nothing would be remembered, and its owner would find that out when it is needed.
fn wants_history(request: &api::AdoptDevice) -> bool {
    request.placement.is_some()
        || request.granularity.is_some()
        || request.window != api::Window::default()
        || [request.history_bytes, request.dirty_bytes, request.cache_bytes].iter().any(Option::is_some)
        || request.block_bytes.is_some()
}

/// What a new history is like that a request asks for.
pub(crate) fn new_history(
    placement: Option<api::Placement>,
    granularity: Option<&str>,
    window: &api::Window,
    floor_policy: FloorPolicy,
    block_bytes: u32,
) -> Result<HistoryOptions, ServerError> {
    Ok(HistoryOptions {
        store: HistoryId(random_bytes()),
        placement: engine_placement(placement.unwrap_or(api::Placement::Checkpointing)),
        granularity: parse_granularity(granularity.unwrap_or("marks"))?,
        block_bytes,
        window: engine_window(window, floor_policy)?,
    })
}

fn parse_granularity(text: &str) -> Result<Granularity, ServerError> {
    match text {
        "every-write" => Ok(Granularity::EveryWrite),
        "marks" => Ok(Granularity::Marks),
        interval => {
            let rule = "it is every-write, marks, or an interval from 1ms to 1d such as 1s";
            let wrong = ServerError::Invalid { what: "the granularity", rule };
            match interval.parse::<Interval>() {
                Ok(Interval(each)) if each <= Duration::from_secs(86_400) => {
                    Ok(Granularity::Interval(each.as_nanos() as u64))
                }
                _ => Err(wrong),
            }
        }
    }
}

fn engine_placement(placement: api::Placement) -> Placement {
    match placement {
        api::Placement::Checkpointing => Placement::Checkpointing,
        api::Placement::Logging => Placement::Logging,
        api::Placement::SplitStream => Placement::SplitStream,
        api::Placement::SplitDownStream => Placement::SplitDownStream,
        api::Placement::Hybrid => Placement::Hybrid,
    }
}

/// A window, with this policy where it names none.
fn engine_window(window: &api::Window, floor_policy: FloorPolicy) -> Result<Window, ServerError> {
    let mut thin = Window::default().thin;
    if window.thin.len() > thin.len() {
        return Err(ServerError::Invalid { what: "the retention", rule: "it has four steps at most" });
    }
    for (place, step) in thin.iter_mut().zip(&window.thin) {
        let (after, every) = (Duration::from_millis(step.after_ms), Duration::from_millis(step.every_ms));
        *place = Some(Thin { after, every });
    }
    Ok(Window {
        time: window.time_ms.map(Duration::from_millis),
        bytes: window.bytes,
        floor: Duration::from_millis(window.floor_ms.unwrap_or(0)),
        floor_policy: match window.floor_policy {
            None => floor_policy,
            Some(api::FloorPolicy::Wait) => FloorPolicy::Wait,
            Some(api::FloorPolicy::Fail) => FloorPolicy::Fail,
        },
        thin,
        reduction: match window.reduce.unwrap_or(api::Reduce::None) {
            api::Reduce::None => Reduction::NONE,
            api::Reduce::Xor => Reduction { xor: true, identical: false },
            api::Reduce::Identical => Reduction { xor: false, identical: true },
            api::Reduce::All => Reduction { xor: true, identical: true },
        },
    })
}

#[cfg(test)]
mod tests;
