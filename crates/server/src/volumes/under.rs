//! A history between a volume and its devices: its entry in the document, and the open history.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cairn_api::{self as api, ErrorKind};
use cairn_base::{Clock, HistoryId};
use cairn_device::{Device, FileDevice};
use cairn_history::{FloorPolicy, History, HistoryError, HistoryOptions, OpenOptions};
use serde::{Deserialize, Serialize};

use crate::devices::open::OpenDevice;
use crate::devices::open_store_file;
use crate::error::ServerError;
use crate::storage::histories::{
    BLOCK_BYTES, STORE_MIN, history_id, new_history, options_under_volume, refuse_other_store,
};
use crate::storage::seen::Seen;
use crate::volumes::disks::clear_beginning;
use crate::volumes::error::VolumesError;
use crate::volumes::views::Views;

/// The options of a history under a volume. A write that fails makes the volume read-only, so one
/// for which the floor leaves no room waits.
pub(super) fn options_of(wish: &api::VolumeHistory) -> Result<HistoryOptions, ServerError> {
    let granularity = wish.granularity.as_deref();
    new_history(wish.placement, granularity, &wish.window, FloorPolicy::Wait, BLOCK_BYTES)
}

/// Bytes of a new store for devices of this length.
pub(super) fn store_bytes(wanted: Option<u64>, origin_bytes: u64) -> u64 {
    wanted.unwrap_or(origin_bytes.max(STORE_MIN))
}

/// Why the log of such a volume cannot have a device of its own.
pub(super) const LOG_FAULT: &str =
    "a volume with a history keeps its intent log on its own devices, so that both are reverted together";

/// The step after that.
pub(super) const LOG_NEXT: &str = "leave out the log device, or the history";

/// Why a volume whose log has a device cannot have a history, and the remedy.
pub(super) const LOG_APART: &str = "its intent log is on a device of its own, which a history would not take back with it: so it has no instants to show or to go back to";

pub(super) const LOG_BACK: &str = "move the log to the devices of the volume with `cairn volume log VOLUME --internal`, then `cairn history enable VOLUME --history PATH` remembers from there on";

/// The entry of a history in `volume.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Beneath {
    /// Absolute.
    pub(super) store: PathBuf,
    /// The id of the history.
    pub(super) id: String,
    /// Numbers not yet assigned when the volume was last reverted: it continues from there.
    pub(super) next_file: u64,
    pub(super) next_snapshot: u64,
    /// Where its versions go.
    pub(super) placement: api::Placement,
    /// It is being disabled: a store without a history completes that.
    pub(super) leaving: bool,
}

/// The next numbers that a volume gives; 0 where any will do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Given {
    pub(super) file: u64,
    pub(super) snapshot: u64,
}

impl Given {
    /// Neither gives a number below these.
    pub(super) fn and(self, other: Self) -> Self {
        Self { file: self.file.max(other.file), snapshot: self.snapshot.max(other.snapshot) }
    }
}

/// A history that is going to be.
pub(super) struct Plan {
    pub(super) beneath: Beneath,
    pub(super) options: HistoryOptions,
    pub(super) store_bytes: Option<u64>,
}

/// An open history under a volume.
pub(super) struct Under {
    pub(super) device: Arc<OpenDevice>,
    store: Arc<FileDevice>,
    beneath: Beneath,
    /// They stay when the volume is opened again.
    pub(super) views: Arc<Views>,
}

impl Beneath {
    pub(super) fn store(&self) -> &PathBuf {
        &self.store
    }

    pub(super) fn given(&self) -> Given {
        Given { file: self.next_file, snapshot: self.next_snapshot }
    }

    /// How far the history is known to have come.
    pub(super) fn seen(&self, folder: &Path) -> Seen {
        Seen::at(seen_path(folder), &self.id)
    }

    /// Opens the store alone.
    pub(super) fn open_store(&self, volume: &str) -> Result<Arc<FileDevice>, ServerError> {
        open_store_file(&self.store).map_err(|source| {
            ServerError::Volumes(VolumesError::HistoryUnavailable {
                volume: volume.to_owned(),
                path: self.store.clone(),
                source,
            })
        })
    }

    /// Empties the store of a history whose creation was not completed: only if it has no records
    /// or, if `is_of_nobody`, with any content.
    fn take_back(&self, volume: &str, is_of_nobody: bool) -> Result<(), ServerError> {
        if !self.store.exists() {
            return Ok(());
        }
        let store = self.open_store(volume)?;
        let found = match is_of_nobody {
            true => History::id_of(&*store).map(|id| id.to_string() == self.id),
            false => History::is_unfinished(&*store, self.history_id()?),
        };
        match found {
            Ok(true) => clear_beginning(&store),
            Ok(false) | Err(HistoryError::NoHistory) => Ok(()),
            Err(error) => Err(ServerError::history(volume)(error)),
        }
    }

    /// The same at a start, which continues without the history.
    pub(super) fn take_back_now(&self, volume: &str, is_of_nobody: bool) {
        tracing::warn!(volume, store = %self.store.display(), "removed a history whose creation was interrupted; run the same command again");
        if let Err(error) = self.take_back(volume, is_of_nobody) {
            tracing::warn!(volume, store = %self.store.display(), %error, "could not remove the remains of an unfinished history");
        }
    }

    pub(super) fn history_id(&self) -> Result<HistoryId, ServerError> {
        history_id(&self.id)
    }

    /// Opens the history over `origin`.
    pub(super) fn open(
        &self,
        volume: &str,
        folder: &Path,
        paths: &[PathBuf],
        origin: Arc<dyn Device>,
        clock: &Arc<dyn Clock>,
    ) -> Result<Under, ServerError> {
        let store = self.open_store(volume)?;
        refuse_other_store(volume, &*store, &self.id)?;
        let seen = self.seen(folder);
        let options = OpenOptions { at_least: seen.position(), ..options_under_volume(clock.clone()) };
        let history = History::open(origin, store.clone(), options);
        let history = history.map_err(ServerError::history(volume))?;
        let first = paths.first().ok_or(ServerError::Bug)?;
        let views = Views::open(folder, volume, &history, clock);
        Ok(Under::new(volume, history, first, store, self.clone(), views, seen))
    }
}

impl Under {
    pub(super) fn new(
        volume: &str,
        history: Arc<History>,
        origin: &Path,
        store: Arc<FileDevice>,
        beneath: Beneath,
        views: Views,
        seen: Seen,
    ) -> Self {
        let device = OpenDevice::under_volume(volume, history, origin, &beneath.store, seen);
        Self { device, store, beneath, views: Arc::new(views) }
    }

    /// For another opening of the volume, when nothing of this one comes through any more.
    pub(super) fn again(&self, beneath: Beneath) -> Self {
        let (device, store, views) = (self.device.clone(), self.store.clone(), self.views.clone());
        Self { device, store, beneath, views }
    }

    /// The device under the volume.
    pub(super) fn device(&self) -> Arc<dyn Device> {
        self.device.history().clone()
    }

    /// Whether writes may wait for room.
    pub(super) fn let_wait(&self, may_wait: bool) {
        self.device.history().let_wait(may_wait);
    }

    /// The volume is open: the history gets its thread, and writes without room may wait for it.
    pub(super) fn begin(&self) -> Result<(), ServerError> {
        self.let_wait(true);
        self.device.begin()
    }

    pub(super) fn history(&self) -> Arc<History> {
        self.device.history().clone()
    }

    /// The volume is closed.
    pub(crate) fn end(&self) {
        self.device.end();
    }

    /// Clears the store so that it can be named again.
    pub(super) fn clear(&self) -> Result<(), ServerError> {
        clear_beginning(&self.store)
    }

    pub(super) fn place(&self) -> String {
        self.beneath.store.display().to_string()
    }
}

/// The path of the saved position of the history of the volume in `folder`.
pub(super) fn seen_path(folder: &Path) -> PathBuf {
    folder.join("history.seen")
}

pub(super) fn no_volume_then(volume: &str) -> ServerError {
    ServerError::Volumes(VolumesError::OverHistory {
        volume: volume.to_owned(),
        kind: ErrorKind::WrongRole,
        why: "there was no whole volume at that instant",
        next: "choose a later one: `cairn history status`",
    })
}

pub(super) fn no_history(volume: &str) -> ServerError {
    ServerError::Volumes(VolumesError::OverHistory {
        volume: volume.to_owned(),
        kind: ErrorKind::NotFound,
        why: "there is no history under it",
        next: "it gets one with `cairn history enable VOLUME --history PATH`; without one, use snapshots and `cairn snapshot rollback`",
    })
}
