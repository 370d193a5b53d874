//! Views of a volume over a history: its whole state at an instant, read-only, beside the volume.
//!
//! `views.json` has their names and instants. It is written before a view is shown, so all of them
//! return after a restart or a kill; nothing else of a view lasts. A view is a volume of its own,
//! opened at the instant as after a power cut. Opening it writes the consistency point that replays
//! the intent log. This write goes over the history's view into a scratch file, which is unlinked
//! before it has content: a crash leaves nothing, and the volume, its devices and its history are
//! not affected. Only exports and mounts use a view: it has no thread, and schedules, scrubs,
//! groups and mirrors ignore it.
//!
//! `VOLUME@NAME` is the view while it exists. It hides a later snapshot of that name, from the
//! source of a mirror, until the view is removed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use cairn_api as api;
use cairn_base::{Clock, Timestamp};
use cairn_device::{Device, FileDevice};
use cairn_history::{History, HistoryView};
use cairn_volume::{Image, OpenOptions, Role, Volume};
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};

use crate::error::ServerError;
use crate::state;
use crate::storage::histories::{BLOCK_BYTES, STORE_MIN, exactly, options_of_a_clone, options_under_volume};
use crate::volumes::under::no_volume_then;

/// Memory of a view for blocks: it is looked into now and then, and never written to.
const CACHE_BYTES: u64 = 32 << 20;

/// The content of `views.json`.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct ViewsDocument {
    /// Instants by the names of their views.
    views: BTreeMap<String, u64>,
}

/// A volume at an instant. It holds the window of the history.
pub(crate) struct VolumeView {
    pub(super) image: Image,
    at: Timestamp,
}

impl VolumeView {
    pub(crate) fn image(&self) -> &Image {
        &self.image
    }

    pub(crate) fn at_ns(&self) -> u64 {
        self.at.0
    }
}

/// A view that could not be shown when the volume was opened.
struct ClosedView {
    at: u64,
    error: ServerError,
    /// Holds the window, for a start that can show it.
    _held: HistoryView,
}

/// The views of a volume. Changed only by the holder of the volume's turn.
pub(super) struct Views {
    folder: PathBuf,
    pub(super) shown: RwLock<BTreeMap<String, Arc<VolumeView>>>,
    closed: RwLock<BTreeMap<String, ClosedView>>,
}

impl Views {
    /// Of a new volume.
    pub(super) fn none(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), shown: RwLock::default(), closed: RwLock::default() }
    }

    /// Restores the saved views, before the window of the history can move. An existing instant
    /// that can't be shown now, as for lack of room, stays saved.
    pub(super) fn open(folder: &Path, volume: &str, history: &Arc<History>, clock: &Arc<dyn Clock>) -> Self {
        let views = Self::none(folder);
        let (document, _) = state::known::<ViewsDocument>(&views.path());
        for (name, at) in document.unwrap_or_default().views {
            let full = format!("{volume}@{name}");
            let hold = || exactly(history, at).map_err(ServerError::history(volume));
            let (held, spare) = match hold().and_then(|held| Ok((held, hold()?))) {
                Ok(both) => both,
                Err(error) => {
                    tracing::warn!(view = full, %error, "a view is no longer shown");
                    continue;
                }
            };
            match views.look(volume, &full, held, clock) {
                Ok(view) => drop(views.shown.write().insert(name, Arc::new(view))),
                Err(error) => {
                    tracing::error!(view = full, %error, "cannot show a view; its instant stays");
                    drop(views.closed.write().insert(name, ClosedView { at, error, _held: spare }));
                }
            }
        }
        views
    }

    fn path(&self) -> PathBuf {
        self.folder.join("views.json")
    }

    pub(super) fn get(&self, name: &str) -> Option<Arc<VolumeView>> {
        self.shown.read().get(name).cloned()
    }

    /// Opens the volume at an instant.
    pub(super) fn look(
        &self,
        volume: &str,
        full: &str,
        held: HistoryView,
        clock: &Arc<dyn Clock>,
    ) -> Result<VolumeView, ServerError> {
        let at = held.instant();
        Volume::inspect(&held).map_err(|_| no_volume_then(volume))?;
        // Far more than the nodes and maps of one consistency point. Sparse: it uses only the
        // written space.
        let store = self.scratch((held.geometry().length / 4 + STORE_MIN).next_multiple_of(1 << 20))?;
        let options = options_under_volume(clock.clone());
        let over = History::create(Arc::new(held), store, &options_of_a_clone(BLOCK_BYTES), options);
        let over = over.map_err(ServerError::history(volume))?;
        let options = OpenOptions { cache_bytes: CACHE_BYTES, clock: clock.clone() };
        let image = Volume::open(over, options).and_then(|then| {
            // A mirror shows its last image, and has nothing besides.
            if then.status_role() == Role::Normal {
                then.consistency_point()?;
            }
            then.image(None)
        });
        Ok(VolumeView { image: image.map_err(ServerError::volume(full))?, at })
    }

    /// A file without a name, which goes with the view.
    fn scratch(&self, bytes: u64) -> Result<Arc<FileDevice>, ServerError> {
        let path = self.folder.join("view.scratch");
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(ServerError::path("remove", &path)(error));
            }
            // A crash has left it, between the next two steps.
            _ => {}
        }
        let file = FileDevice::create(&path, bytes)?;
        fs::remove_file(&path).map_err(ServerError::path("remove", &path))?;
        Ok(Arc::new(file))
    }

    /// Changes the views, after that is saved. A view that could not be shown is removed if it is
    /// `ended`.
    pub(super) fn change(
        &self,
        ended: Option<&str>,
        change: impl FnOnce(&mut BTreeMap<String, Arc<VolumeView>>),
    ) -> Result<(), ServerError> {
        let mut shown = self.shown.read().clone();
        change(&mut shown);
        let mut views: BTreeMap<String, u64> =
            shown.iter().map(|(name, view)| (name.clone(), view.at.0)).collect();
        let stays = |name: &&String| ended != Some(name.as_str());
        let closed = self.closed.read();
        views.extend(
            closed.iter().filter(|(name, _)| stays(name)).map(|(name, view)| (name.clone(), view.at)),
        );
        drop(closed);
        state::save(&self.path(), &ViewsDocument { views })?;
        // A removed view closes files and releases the window: not under the lock.
        let before = std::mem::replace(&mut *self.shown.write(), shown);
        let gone = ended.and_then(|name| self.closed.write().remove(name));
        drop((before, gone));
        Ok(())
    }

    /// Names of all, also of those that could not be shown.
    pub(super) fn names(&self) -> BTreeSet<String> {
        let mut names: BTreeSet<String> = self.shown.read().keys().cloned().collect();
        names.extend(self.closed.read().keys().cloned());
        names
    }

    /// Those that could not be shown.
    pub(super) fn show_closed(&self, volume: &str) -> Vec<api::View> {
        let view = |(name, view): (&String, &ClosedView)| api::View {
            name: format!("{volume}@{name}"),
            at_ns: view.at,
            writable: false,
            uris: Vec::new(),
            problem: Some(view.error.to_string()),
        };
        self.closed.read().iter().map(view).collect()
    }

    /// The same as problems, with remedies.
    pub(super) fn problems(&self, volume: &str) -> Vec<api::Problem> {
        let problem = |view: api::View| api::Problem {
            message: format!("the view can't be shown: {}", view.problem.unwrap_or_default()),
            next: format!(
                "fix the cause and restart the server; its instant is kept until then; or delete it with `cairn history view {volume} --delete {}`",
                view.name.strip_prefix(volume).unwrap_or_default().trim_start_matches('@')
            ),
            subject: view.name,
        };
        self.show_closed(volume).into_iter().map(problem).collect()
    }
}
