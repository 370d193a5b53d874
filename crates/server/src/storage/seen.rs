//! The last position of a history that its server has seen: a store that comes back with an earlier
//! one does not match its origin.
//!
//! A store that was restored from a backup, while its origin continued, opens like any other:
//! nothing in it shows its age. Its log would write old data to the origin, and instants would show
//! states that never existed. So the server saves the last known position of a history durably,
//! beside the document of a device (`NAME.seen`) or of a volume (`history.seen`), and refuses an
//! earlier one. It is saved when a history is opened and closed, after a revert, and once a minute
//! while the history changes, so a copy from the last minute is not detected.
//!
//! The note is a lower bound and nothing else: a lost, old or damaged one makes the check weaker,
//! and never rejects a sound store.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io};

use cairn_history::{History, LogPosition};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::state;

/// The longest time without saving the position of a changing history.
const PERIOD: Duration = Duration::from_secs(60);

/// The content of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct SeenDocument {
    /// Which history.
    store: String,
    superblock: u64,
    record: u64,
}

/// How far one history is known to have come.
pub(crate) struct Seen {
    path: PathBuf,
    store: String,
    last: Mutex<Last>,
}

struct Last {
    position: LogPosition,
    looked: Instant,
}

impl Seen {
    /// The saved position of the history `store` at `path`; nothing if the file is of another
    /// history or can't be read.
    pub(crate) fn at(path: PathBuf, store: &str) -> Self {
        let noted = state::load::<SeenDocument>(&path).unwrap_or_else(|error| {
            tracing::warn!(%error, "the last position of a history is unknown: a store that is older than its origin would not be detected");
            None
        });
        let noted = noted.filter(|noted| noted.store == store);
        let position = noted.map_or_else(LogPosition::default, |noted| LogPosition {
            superblock: noted.superblock,
            record: noted.record,
        });
        let last = Mutex::new(Last { position, looked: Instant::now() });
        Self { path, store: store.to_owned(), last }
    }

    /// A history has come at least so far.
    pub(crate) fn position(&self) -> LogPosition {
        self.last.lock().position
    }

    /// Saves its position. A failure is logged, and has no other effect.
    pub(crate) fn note(&self, history: &History) {
        // First: a saved position must already be durable.
        let Some(found) = history.position() else { return };
        let mut last = self.last.lock();
        last.looked = Instant::now();
        let position = found.and(&last.position);
        if last.position == position {
            return;
        }
        let document = SeenDocument {
            store: self.store.clone(),
            superblock: position.superblock,
            record: position.record,
        };
        let text = state::text(&self.path, &document).map_err(|error| error.to_string());
        let noted =
            text.and_then(|text| state::replace(&self.path, &text).map_err(|error| error.to_string()));
        match noted {
            Ok(()) => last.position = position,
            Err(error) => {
                tracing::warn!(path = %self.path.display(), error, "could not save the position of a history");
            }
        }
    }

    /// The same, if it was not saved for a while.
    pub(crate) fn note_now_and_then(&self, history: &History) {
        if self.last.lock().looked.elapsed() >= PERIOD {
            self.note(history);
        }
    }

    /// Nothing is known any more.
    pub(crate) fn forget(path: &Path) -> io::Result<()> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => state::sync_parent(path),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cairn_base::{Clock, HistoryId};
    use cairn_device::{Device, MemoryDevice, Segments, SystemClock};
    use cairn_history::{Granularity, HistoryOptions, OpenOptions, Placement, Window};

    use super::*;

    fn history() -> Arc<History> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let open = OpenOptions { dirty_bytes: 1, read_bytes: 0, clock, at_least: LogPosition::default() };
        let options = HistoryOptions {
            store: HistoryId([1; 16]),
            placement: Placement::Logging,
            granularity: Granularity::EveryWrite,
            block_bytes: 4096,
            window: Window::default(),
        };
        let (origin, store) = (MemoryDevice::new(1 << 20), MemoryDevice::new(16 << 20));
        History::create(Arc::new(origin), Arc::new(store), &options, open).unwrap()
    }

    fn write(history: &History) {
        history.write(0, Segments::copy_of(&[1; 4096])).unwrap();
        history.flush().unwrap();
    }

    #[test]
    fn what_was_seen_is_known_again_of_that_history_alone_and_damage_keeps_nothing_out() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("disk.seen");
        let history = history();
        let seen = Seen::at(path.clone(), "one");
        assert_eq!(seen.position(), LogPosition::default());
        write(&history);
        seen.note(&history);
        let noted = seen.position();
        assert!(noted.record > 0 && Some(noted) == history.position());
        assert_eq!(Seen::at(path.clone(), "one").position(), noted);
        assert_eq!(Seen::at(path.clone(), "another").position(), LogPosition::default());
        // A write on its way tells less of the superblock, which is known already.
        (1..20).for_each(|block| history.write(block * 4096, Segments::copy_of(&[2; 4096])).unwrap());
        assert!(!history.position().unwrap().reaches(&noted));
        seen.note(&history);
        assert_eq!(seen.position(), noted);
        write(&history);
        seen.note_now_and_then(&history);
        assert_eq!(Seen::at(path.clone(), "one").position(), noted, "not so soon");
        fs::write(&path, b"{ damaged").unwrap();
        let damaged = Seen::at(path.clone(), "one");
        assert_eq!(damaged.position(), LogPosition::default());
        damaged.note(&history);
        assert_eq!(Some(Seen::at(path.clone(), "one").position()), history.position(), "it is written anew");
        Seen::forget(&path).unwrap();
        Seen::forget(&path).unwrap();
        assert_eq!(Seen::at(path, "one").position(), LogPosition::default());
    }
}
