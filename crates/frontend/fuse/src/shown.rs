//! The content of a mount: a tree at its root, and the trees of snapshots below `.snapshot`.
//!
//! An image stays open until the kernel has forgotten all its files. So a program that works in an
//! image of a mirror stays in it, while lookups from the root use the present one.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

use cairn_base::{FileId, SnapshotId};
use cairn_files::{Stat, Tree, TreeError};
use cairn_volume::{Image, Snapshot, Volume};
use parking_lot::{Mutex, RwLock};

use crate::abi::{FUSE_ROOT_ID, errno, fuse_entry_out};
use crate::attributes::entry;
use crate::node::{BASE, Node, SNAPSHOTS, TIMES};
use crate::times::by_time;

/// The kind of mounted tree.
#[derive(Clone)]
pub enum View {
    /// The live tree of a volume, for reading and writing.
    Live(Arc<Tree>),
    /// One image, permanently.
    Frozen(Arc<Tree>),
    /// The present image of a mirror; see [`crate::Mount::refresh`].
    Following(Arc<dyn Follows>),
}

/// Provides the present image of a mirror to a mount.
pub trait Follows: Send + Sync {
    /// The mirror.
    fn volume(&self) -> &Arc<Volume>;

    /// Its image now; `None` if it stays the same.
    ///
    /// # Errors
    /// The volume's.
    fn image(&self) -> Result<Option<Image>, TreeError>;
}

/// An image, with the kernel's references to its files.
pub(crate) struct Slot {
    number: u32,
    /// Which image that is, as numbers of slots mean others in each mount.
    generation: u32,
    pub(crate) tree: Arc<Tree>,
    /// Lookups that were answered, less those that were forgotten.
    lookups: AtomicI64,
}

#[derive(Default)]
struct Slots {
    by_number: HashMap<u32, Arc<Slot>>,
    /// Of a snapshot, also one for its name by its time: a directory that the kernel knew in two
    /// places would move from one to the other with each lookup.
    by_snapshot: HashMap<(SnapshotId, bool), u32>,
    /// The last number that was given.
    given: u32,
}

impl Slots {
    /// A number that no image has, after the one that was given last: so that one which the kernel
    /// has just forgotten is not another image's at once.
    fn free_number(&self) -> Option<u32> {
        let others = (self.given + 1..TIMES).chain(BASE + 1..=self.given);
        others.into_iter().find(|number| !self.by_number.contains_key(number))
    }
}

pub(crate) struct Shown {
    view: View,
    /// The slot at the root.
    root: AtomicU32,
    slots: RwLock<Slots>,
    /// Locked after `slots`. Names below the root that the kernel may cache, for a view that
    /// changes.
    top_names: Mutex<HashSet<Vec<u8>>>,
    /// Directories in whose `.snapshot` the kernel knows a snapshot.
    looked_into: Mutex<HashSet<FileId>>,
    /// Snapshots that were looked up, by their names then.
    seen: Mutex<HashSet<(SnapshotId, String)>>,
}

impl Shown {
    /// # Errors
    /// The tree's, when a mirror has no tree yet.
    pub(crate) fn new(view: View) -> Result<Self, TreeError> {
        let shown = Self {
            root: AtomicU32::new(BASE),
            slots: RwLock::default(),
            top_names: Mutex::default(),
            looked_into: Mutex::default(),
            seen: Mutex::default(),
            view: view.clone(),
        };
        match view {
            View::Live(tree) | View::Frozen(tree) => {
                let slot = Slot { number: BASE, generation: 0, tree, lookups: AtomicI64::new(0) };
                shown.slots.write().by_number.insert(BASE, Arc::new(slot));
            }
            View::Following(follows) => {
                let tree = Tree::of_image(follows.image()?.ok_or(TreeError::NoTree)?)?;
                let slot = shown.take_slot(Arc::new(tree), None).map_err(|_| TreeError::NoSpace)?;
                shown.root.store(slot.number, Ordering::Release);
            }
        }
        Ok(shown)
    }

    pub(crate) fn is_live(&self) -> bool {
        matches!(self.view, View::Live(_))
    }

    fn is_following(&self) -> bool {
        matches!(self.view, View::Following(_))
    }

    fn volume(&self) -> Option<Arc<Volume>> {
        match &self.view {
            View::Live(tree) => Some(tree.volume().clone()),
            View::Following(follows) => Some(follows.volume().clone()),
            View::Frozen(_) => None,
        }
    }

    /// The image and the file of a kernel's number; `None` with it for a directory `.snapshot`.
    pub(crate) fn find(&self, number: u64) -> Result<(Node, Option<Arc<Slot>>), i32> {
        let Some(node) = Node::of_number(number) else {
            let slot = self.slot(self.root.load(Ordering::Acquire))?;
            return Ok((Node { slot: slot.number, file: slot.tree.root() }, Some(slot)));
        };
        if matches!(node.slot, SNAPSHOTS | TIMES) {
            return Ok((node, None));
        }
        let slot = self.slot(node.slot)?;
        // The kernel never learns of the tree's own files.
        if slot.tree.is_own(node.file) { Err(errno::ESTALE) } else { Ok((node, Some(slot))) }
    }

    /// The file of a number that must be in a tree.
    pub(crate) fn file(&self, number: u64) -> Result<(Arc<Slot>, FileId), i32> {
        match self.find(number)? {
            (node, Some(slot)) => Ok((slot, node.file)),
            (_, None) => Err(errno::EROFS),
        }
    }

    fn slot(&self, number: u32) -> Result<Arc<Slot>, i32> {
        self.slots.read().by_number.get(&number).cloned().ok_or(errno::ESTALE)
    }

    /// The kernel's number of a file of a slot.
    pub(crate) fn number(&self, slot: &Slot, file: FileId) -> Result<u64, i32> {
        if slot.number == self.root.load(Ordering::Acquire) && file == slot.tree.root() {
            return Ok(FUSE_ROOT_ID);
        }
        Node { slot: slot.number, file }.number()
    }

    /// The answer to the kernel about a file; adds one to the kernel's references.
    pub(crate) fn entry(&self, slot: &Arc<Slot>, stat: &Stat) -> Result<fuse_entry_out, i32> {
        let number = self.number(slot, stat.file)?;
        // The kernel knows the root as long as it is mounted, and sends no forget for it.
        if number == FUSE_ROOT_ID {
            return Ok(entry(number, slot.generation, stat));
        }
        if slot.number != BASE {
            self.told(slot);
        } else if !slot.tree.is_read_only() {
            slot.tree.hold(stat.file).map_err(|error| error.errno())?;
        }
        Ok(entry(number, slot.generation, stat))
    }

    /// Adds one to the kernel's references to a file, until a forget. Reopens an image that was
    /// released meanwhile.
    fn told(&self, slot: &Arc<Slot>) {
        {
            let slots = self.slots.read();
            if slots.by_number.contains_key(&slot.number) {
                slot.lookups.fetch_add(1, Ordering::Relaxed);
                return;
            }
        }
        let mut slots = self.slots.write();
        slots.by_number.entry(slot.number).or_insert_with(|| slot.clone());
        slot.lookups.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether the kernel may cache an answer about a name in a directory. A name below the root is
    /// recorded, so that it can be revoked. Not if the names of the image in `slot` have just been
    /// revoked: the lookup came from a program that had been there before.
    pub(crate) fn may_keep(&self, slot: &Slot, directory: u64, name: &[u8]) -> bool {
        if directory != FUSE_ROOT_ID || !self.is_following() {
            return true;
        }
        let mut names = self.top_names.lock();
        let is_shown = slot.number == self.root.load(Ordering::Acquire);
        if is_shown {
            names.insert(name.to_owned());
        }
        is_shown
    }

    /// Records that the kernel knows a snapshot in the `.snapshot` of a directory.
    pub(crate) fn told_of_snapshot(&self, directory: FileId) {
        self.looked_into.lock().insert(directory);
    }

    /// The numbers of the directories `.snapshot` in which the kernel knows snapshots.
    pub(crate) fn looked_into(&self) -> Vec<u64> {
        let directories = self.looked_into.lock();
        let numbers = |file: &FileId| [SNAPSHOTS, TIMES].map(|slot| Node { slot, file: *file }.number().ok());
        directories.iter().flat_map(numbers).flatten().collect()
    }

    /// The names of looked-up snapshots that are gone: they were deleted or renamed.
    pub(crate) fn gone(&self) -> Vec<String> {
        let mut seen = self.seen.lock();
        if seen.is_empty() {
            return Vec::new();
        }
        let by_time = by_time(self.snapshots()).into_iter();
        let now: HashSet<_> = by_time.flat_map(|(time, one)| [(one.id, one.name), (one.id, time)]).collect();
        seen.extract_if(|one| !now.contains(one)).map(|(_, name)| name).collect()
    }

    /// The kernel knows files less: each by its number, with how many times.
    pub(crate) fn forget(&self, numbers: impl IntoIterator<Item = (u64, u64)>) {
        let (mut live, mut is_unknown) = (Vec::new(), false);
        for (number, lookups) in numbers {
            let Some(node) = Node::of_number(number) else { continue };
            match node.slot {
                SNAPSHOTS | TIMES => {}
                BASE => live.push((node.file, lookups)),
                slot => {
                    let Ok(slot) = self.slot(slot) else { continue };
                    let lookups = i64::try_from(lookups).unwrap_or(i64::MAX);
                    is_unknown |= slot.lookups.fetch_sub(lookups, Ordering::Relaxed) <= lookups;
                }
            }
        }
        if let View::Live(tree) = &self.view {
            tree.release_all(live);
        }
        if is_unknown {
            self.drop_unknown();
        }
    }

    /// The mount has ended: the kernel has dropped everything, without a forget for each file.
    pub(crate) fn forget_everything(&self) {
        if let View::Live(tree) = &self.view {
            tree.release_everything();
        }
    }

    /// Closes the images that the kernel knows nothing of any more.
    pub(crate) fn drop_unknown(&self) {
        let mut slots = self.slots.write();
        let root = self.root.load(Ordering::Acquire);
        slots.by_number.retain(|number, slot| {
            *number == BASE || *number == root || slot.lookups.load(Ordering::Relaxed) > 0
        });
        let Slots { by_number, by_snapshot, .. } = &mut *slots;
        by_snapshot.retain(|_, number| by_number.contains_key(number));
    }

    fn take_slot(&self, tree: Arc<Tree>, snapshot: Option<(SnapshotId, bool)>) -> Result<Arc<Slot>, i32> {
        Self::slot_in(&mut self.slots.write(), tree, snapshot)
    }

    fn slot_in(
        slots: &mut Slots,
        tree: Arc<Tree>,
        snapshot: Option<(SnapshotId, bool)>,
    ) -> Result<Arc<Slot>, i32> {
        let known = snapshot.and_then(|id| slots.by_snapshot.get(&id));
        if let Some(slot) = known.and_then(|number| slots.by_number.get(number)) {
            return Ok(slot.clone());
        }
        let number = slots.free_number().ok_or(errno::EOVERFLOW)?;
        slots.given = number;
        let image = tree.image().map(|image| image.root().generation.0);
        let generation = snapshot.map(|(id, _)| id.0).or(image).unwrap_or(0) as u32;
        let slot = Arc::new(Slot { number, generation, tree, lookups: AtomicI64::new(0) });
        slots.by_number.insert(number, slot.clone());
        if let Some(id) = snapshot {
            slots.by_snapshot.insert(id, number);
        }
        Ok(slot)
    }

    /// The number of the directory `.snapshot` in a directory; `None` where there are no snapshots
    /// to show: in a snapshot.
    pub(crate) fn snapshots_in(&self, slot: &Slot, directory: FileId) -> Option<Result<u64, i32>> {
        let is_root_image = slot.number == self.root.load(Ordering::Acquire);
        let shows_them = is_root_image && self.volume().is_some();
        shows_them.then(|| Node { slot: SNAPSHOTS, file: directory }.number())
    }

    /// The snapshots, the oldest first.
    pub(crate) fn snapshots(&self) -> Vec<Snapshot> {
        self.volume().map(|volume| volume.snapshots()).unwrap_or_default()
    }

    /// The tree of a snapshot, for a lookup by its name or, in that case `time`, by its time.
    pub(crate) fn snapshot(&self, snapshot: &Snapshot, time: Option<&str>) -> Result<Arc<Slot>, i32> {
        let id = snapshot.id;
        let key = (id, time.is_some());
        self.seen.lock().insert((id, time.unwrap_or(&snapshot.name).to_owned()));
        {
            let slots = self.slots.read();
            if let Some(slot) = slots.by_snapshot.get(&key).and_then(|number| slots.by_number.get(number)) {
                return Ok(slot.clone());
            }
        }
        let volume = self.volume().ok_or(errno::ENOENT)?;
        let image = volume.image(Some(id)).map_err(|_| errno::ENOENT)?;
        let tree = Tree::of_image(image).map_err(|error| error.errno())?;
        self.take_slot(Arc::new(tree), Some(key))
    }

    /// Moves to the image shown now; returns the names below the root that the kernel must forget,
    /// or `None` when it is that already.
    pub(crate) fn follow(&self) -> Result<Option<HashSet<Vec<u8>>>, TreeError> {
        let View::Following(follows) = &self.view else { return Ok(None) };
        let Some(image) = follows.image()? else { return Ok(None) };
        let now = self.slot(self.root.load(Ordering::Acquire)).ok();
        let shown = now.and_then(|slot| slot.tree.image().map(|image| image.root().generation));
        if shown == Some(image.root().generation) {
            return Ok(None);
        }
        let tree = Arc::new(Tree::of_image(image)?);
        let names = {
            // An image that is not at the root yet must not be released, and a thread that records
            // a name must see which one is.
            let mut slots = self.slots.write();
            let slot = Self::slot_in(&mut slots, tree, None).map_err(|_| TreeError::NoSpace)?;
            let mut names = self.top_names.lock();
            self.root.store(slot.number, Ordering::Release);
            std::mem::take(&mut *names)
        };
        self.drop_unknown();
        Ok(Some(names))
    }
}

#[cfg(test)]
mod tests;
