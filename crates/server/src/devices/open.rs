//! A device that is open, with its thread: an adopted one, or the one under a volume.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use cairn_api as api;
use cairn_base::Timestamp;
use cairn_history::{History, HistoryError, HistoryView, When};
use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};

use crate::error::ServerError;
use crate::names;
use crate::storage::histories::{DIRTY_BYTES, engine_window};
use crate::storage::place::Place;
use crate::storage::seen::Seen;

/// Rest of the background thread of a device without work.
pub(super) const REST: Duration = Duration::from_millis(50);

/// How long it rests after a failure.
pub(super) const REST_AFTER_FAILURE: Duration = Duration::from_secs(1);

/// The content of `NAME.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct DeviceDocument {
    pub(super) origin: Place,
    /// None: a plain device.
    pub(super) history: Option<Place>,
    /// The id of the history.
    pub(super) history_id: String,
    pub(super) block_bytes: u32,
    pub(super) dirty_bytes: u64,
    pub(super) cache_bytes: u64,
    /// Instants by the names of their views.
    pub(super) views: BTreeMap<String, u64>,
    /// Instants by the names of their clones.
    pub(super) clones: BTreeMap<String, u64>,
    /// Clones that are being made or deleted: a start removes the remains of their stores.
    pub(super) loose: BTreeSet<String>,
    /// The device is being adopted: it has had no clients, and a start removes its remains.
    pub(super) adopting: bool,
    /// The adoption creates the origin, with this length.
    pub(super) origin_made_bytes: Option<u64>,
    /// The device was being released: a store without a history means that it is done.
    pub(super) releasing: bool,
    /// Why the last release stopped in the middle.
    pub(super) release_stopped: Option<String>,
    /// The origin is opened though other programs have it: the word of its owner.
    pub(super) in_use: bool,
    /// All of it is unknown, as neither its document nor the copy can be read: any LUN may be its
    /// origin or hold its history.
    #[serde(skip)]
    pub(super) unknown: bool,
}

impl DeviceDocument {
    pub(super) fn unknown() -> Self {
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

    /// The files that it uses, other than LUNs of volumes.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        let file = |place: &Place| match place {
            Place::File(path) => Some(path.clone()),
            Place::Lun { .. } => None,
        };
        [Some(&self.origin), self.history.as_ref()].into_iter().flatten().filter_map(file).collect()
    }
}

/// An exported instant.
pub(super) enum Shown {
    View(Arc<HistoryView>),
    Clone { history: Arc<History>, view: Arc<HistoryView> },
}

impl Shown {
    pub(crate) fn instant(&self) -> u64 {
        match self {
            Shown::View(view) | Shown::Clone { view, .. } => view.instant().0,
        }
    }
}

/// A clone that could not be opened.
pub(super) struct ClosedClone {
    pub(super) error: ServerError,
    /// Holds the window; the writes to the clone are useless without it.
    pub(super) _view: Option<HistoryView>,
}

/// A device that is open, with its thread: an adopted one, or the one under a volume.
pub(crate) struct OpenDevice {
    pub(super) name: String,
    pub(super) history: Arc<History>,
    pub(super) document: Mutex<DeviceDocument>,
    pub(super) shown: RwLock<BTreeMap<String, Shown>>,
    /// Clones that could not be opened: why, and their instants, which stay for a start that can.
    pub(super) closed: Mutex<BTreeMap<String, ClosedClone>>,
    pub(super) seen: Seen,
    pub(super) ending: AtomicBool,
    pub(super) thread: Mutex<Option<JoinHandle<()>>>,
}

impl OpenDevice {
    /// The history under a volume, which has no thread yet. It has the name of the volume, and is
    /// not an export.
    pub(crate) fn under_volume(
        volume: &str,
        history: Arc<History>,
        origin: &Path,
        store: &Path,
        seen: Seen,
    ) -> Arc<Self> {
        let document = DeviceDocument {
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
            // Not under the lock: a caller that opens or looks up a view would wait for a slice.
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

    /// Stops the thread, and cancels requests that wait for room.
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
    pub(super) fn note_seen(&self) {
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
                fault: "no time and no mark match this instant",
                next: "give --at TIME, such as '2026-11-20 14:03:07' or -5m, or --mark NAME",
            }),
        }
    }

    /// The same instant, resolved once: a relative one would otherwise advance while a request
    /// runs.
    pub(crate) fn settled(&self, instant: &api::Instant) -> Result<api::Instant, ServerError> {
        Ok(match self.when(instant)? {
            When::Clock(_) => instant.clone(),
            When::Stamp(at) => api::Instant { stamp_ns: Some(at.0), ..api::Instant::default() },
        })
    }

    /// The instant as a number, as in names of views.
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

    /// Refuses an instant that a revert would refuse.
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

    pub(crate) fn grow_store(&self, bytes: Option<u64>) -> Result<(), ServerError> {
        let before = self.history.status().store_bytes;
        let now = self.history.grow_store(bytes).map_err(ServerError::history(&self.name))?;
        if now == before {
            return Err(ServerError::WrongSize {
                fault: "the store of the history has that size already; it cannot shrink",
                next: "give a larger --size, or enlarge the disk of the store first",
            });
        }
        tracing::info!(device = self.name, bytes = now, "the store of a history was enlarged");
        Ok(())
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
