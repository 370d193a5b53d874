//! The files that an export shows: the tree of a volume, and the trees of its snapshots.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use cairn_base::{Checksum, FileId, SnapshotId};
use cairn_files::Tree;
use cairn_proto_nfs::Verifier;
use cairn_volume::Snapshot;
use parking_lot::{Mutex, MutexGuard};

use crate::handle::Keys;
use crate::limits::{SNAPSHOT_IDLE, SNAPSHOTS_HELD};

/// Locks of files; a file has the one of its number modulo this.
const GUARDS: usize = 64;

/// A tree that is served, shared by all exports of it.
///
/// # Locks
/// The guards of files are taken in order, before those of the tree. `snapshots` is taken alone.
pub struct Served {
    tree: Arc<Tree>,
    verifier: Verifier,
    /// Held over a change and the looks at attributes before and after it. Without this a client
    /// would take another client's change between them for a part of its own, and keep what it has
    /// in its cache.
    guards: Vec<Mutex<()>>,
    snapshots: Mutex<HashMap<SnapshotId, Held>>,
}

struct Held {
    tree: Arc<Tree>,
    used: Instant,
}

impl Served {
    /// Serves a tree. `verifier` must differ from that of every other tree whose unstable writes
    /// may be lost: of an earlier process, and of this volume before a rollback.
    pub fn new(tree: Arc<Tree>, verifier: Verifier) -> Self {
        let guards = (0..GUARDS).map(|_| Mutex::new(())).collect();
        Self { tree, verifier, guards, snapshots: Mutex::default() }
    }

    /// The tree.
    pub fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }

    pub(crate) fn verifier(&self) -> Verifier {
        self.verifier
    }

    /// Keeps other clients from changing these files.
    pub(crate) fn guard(&self, files: &[FileId]) -> Vec<MutexGuard<'_, ()>> {
        let mut places: Vec<usize> = files.iter().map(|file| (file.0 % GUARDS as u64) as usize).collect();
        places.sort_unstable();
        places.dedup();
        places.into_iter().filter_map(|place| self.guards.get(place)).map(Mutex::lock).collect()
    }

    /// The snapshots, the oldest first.
    pub(crate) fn snapshots(&self) -> Vec<Snapshot> {
        self.tree.volume().snapshots()
    }

    /// The snapshot of a handle.
    pub(crate) fn snapshot_of(&self, tag: u64) -> Option<Snapshot> {
        self.snapshots().into_iter().find(|snapshot| snapshot_tag(snapshot) == tag)
    }

    /// The tree of a snapshot; `None` if it is gone, or has no files.
    pub(crate) fn tree_of(&self, snapshot: SnapshotId) -> Option<Arc<Tree>> {
        let now = Instant::now();
        if let Some(held) = self.snapshots.lock().get_mut(&snapshot) {
            held.used = now;
            return Some(held.tree.clone());
        }
        let image = self.tree.volume().image(Some(snapshot)).ok()?;
        let tree = Arc::new(Tree::of_image(image).ok()?);
        let mut snapshots = self.snapshots.lock();
        if snapshots.len() >= SNAPSHOTS_HELD
            && let Some(oldest) = snapshots.iter().min_by_key(|(_, held)| held.used).map(|(id, _)| *id)
        {
            snapshots.remove(&oldest);
        }
        snapshots.insert(snapshot, Held { tree: tree.clone(), used: now });
        Some(tree)
    }

    /// Closes the images of snapshots that no client has used for a while.
    pub fn rest(&self) {
        let now = Instant::now();
        let gone: Vec<Held> = {
            let mut snapshots = self.snapshots.lock();
            let is_idle = |held: &Held| now.saturating_duration_since(held.used) > SNAPSHOT_IDLE;
            snapshots.extract_if(|_, held| is_idle(held)).map(|(_, held)| held).collect()
        };
        drop(gone);
    }
}

/// A number for a snapshot that also differs from that of another snapshot with the same id: one
/// that a mirror made after it was failed over.
pub(crate) fn snapshot_tag(snapshot: &Snapshot) -> u64 {
    let mut bytes = [0; 16];
    let numbers = [snapshot.id.0, snapshot.created.0].into_iter().flat_map(|number| number.to_le_bytes());
    bytes.iter_mut().zip(numbers).for_each(|(to, from)| *to = from);
    let [a, b, c, d, e, f, g, h, ..] = Checksum::of(&bytes).0;
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

/// The files of one export, at one moment.
pub struct View {
    /// The tree.
    pub served: Arc<Served>,
    /// The exported directory.
    pub root: FileId,
    /// For handles.
    pub keys: Keys,
    /// Directories have a `.snapshot`. The export of a snapshot has none.
    pub shows_snapshots: bool,
}
