//! The state of a scrub: the running pass, the damage, and the content of `scrub.json`.

use std::path::PathBuf;
use std::time::Duration;

use cairn_api as api;
use cairn_base::{Checksum, FileId, Lba, SnapshotId, Vbn};
use cairn_format::NodeAddress;
use cairn_volume::{DamagedBlock, Place, Position, ScrubCursor, Volume};
use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};

use crate::schedules::timetable::is_ahead;
use crate::state;
use crate::state::Unread;

/// The content of `scrub.json`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct ScrubDocument {
    pub(super) rate_bytes: Option<u64>,
    pub(super) every_ms: Option<u64>,
    /// When `every_ms` was set. The first pass is due then.
    pub(super) asked_ms: u64,
    pub(super) running: Option<Running>,
    pub(super) last: Option<api::ScrubResult>,
    pub(super) damaged: Vec<Damaged>,
    pub(super) repaired: u64,
    pub(super) repaired_ms: Option<u64>,
}

/// A pass.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Running {
    pub(super) started_ms: u64,
    /// Reading and resting, without the time in which the server was stopped.
    pub(super) spent_ms: u64,
    pub(super) blocks: u64,
    pub(super) done: u64,
    pub(super) newest: u64,
    pub(super) current: Option<u64>,
    pub(super) tree: u64,
    pub(super) lba: u64,
    pub(super) findings: Vec<api::CheckFinding>,
    pub(super) findings_total: u64,
}

/// A damaged block as it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Damaged {
    vbn: u64,
    checksum: [u8; 16],
    file: u64,
    /// 0 is data.
    level: u8,
    /// The block in the file, or the number of the node.
    index: u64,
}

impl Running {
    pub(super) fn cursor(&self) -> ScrubCursor {
        ScrubCursor {
            done: SnapshotId(self.done),
            newest: SnapshotId(self.newest),
            current: self.current.map(SnapshotId),
            position: Position::from_numbers((self.tree, self.lba)),
        }
    }

    pub(super) fn keep(&mut self, cursor: &ScrubCursor) {
        (self.done, self.newest) = (cursor.done.0, cursor.newest.0);
        self.current = cursor.current.map(|id| id.0);
        (self.tree, self.lba) = cursor.position.to_numbers();
    }
}

impl From<&DamagedBlock> for Damaged {
    fn from(block: &DamagedBlock) -> Self {
        let (file, level, index) = match block.place {
            Place::Data { file, lba } => (file.0, 0, lba.0),
            Place::Node(node) => (node.file.0, node.level, node.index),
            Place::Unknown => (u64::MAX, u8::MAX, 0),
        };
        Self { vbn: block.vbn.0, checksum: block.checksum.0, file, level, index }
    }
}

impl From<&Damaged> for DamagedBlock {
    fn from(kept: &Damaged) -> Self {
        let (file, index) = (FileId(kept.file), kept.index);
        let place = match kept.level {
            0 => Place::Data { file, lba: Lba(index) },
            u8::MAX => Place::Unknown,
            level => Place::Node(NodeAddress { file, level, index }),
        };
        DamagedBlock { vbn: Vbn(kept.vbn), checksum: Checksum(kept.checksum), place }
    }
}

pub(super) struct Inner {
    pub(super) document: ScrubDocument,
    /// When the next piece may be read, by the monotonic clock.
    pub(super) next: Duration,
    pub(super) written: Duration,
    pub(super) looked: Option<Duration>,
    /// The volume's count of repairs at the last update.
    pub(super) counted: u64,
    /// The file is out of date, as it could not be written.
    pub(super) unwritten: bool,
}

/// The scrub of one volume.
pub(crate) struct Scrub {
    pub(super) path: PathBuf,
    /// Why the content of the file is unknown.
    pub(super) unread: Mutex<Option<Unread>>,
    pub(super) inner: Mutex<Inner>,
    pub(super) wake: Condvar,
}

impl Scrub {
    /// Loads the document in the folder of a volume: the volume knows the recorded damage from here
    /// on. An unreadable file is reported and kept: passes run on request, and their state is not
    /// saved.
    pub(crate) fn open(path: PathBuf, volume: &Volume) -> Self {
        let (document, unread) = state::known::<ScrubDocument>(&path);
        let document = document.unwrap_or_default();
        volume.remember_damaged(document.damaged.iter().map(DamagedBlock::from));
        let (next, written, looked) = (Duration::ZERO, Duration::ZERO, None);
        let inner = Inner { document, next, written, looked, counted: 0, unwritten: false };
        let unread = Mutex::new(unread);
        Self { path, unread, inner: Mutex::new(inner), wake: Condvar::new() }
    }

    pub(super) fn write(&self, inner: &mut Inner, now: Duration) {
        inner.written = now;
        if self.unread.lock().is_some() {
            return;
        }
        let saved = state::save(&self.path, &inner.document);
        inner.unwritten = saved.is_err();
        if let Err(error) = saved {
            tracing::warn!(%error, "could not save the progress and the findings of a scrub");
        }
    }
}

impl ScrubDocument {
    /// When the next pass is due: now, if the last one is in the future, as the clock was set back.
    pub(super) fn next_ms(&self, now_ms: u64) -> Option<u64> {
        let every = self.every_ms?;
        Some(match &self.last {
            None => self.asked_ms.min(now_ms),
            Some(last) if is_ahead(last.started_ms, now_ms, every) => now_ms,
            Some(last) => last.started_ms.saturating_add(every),
        })
    }
}
