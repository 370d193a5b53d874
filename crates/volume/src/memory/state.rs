//! The in-memory state of a volume, under one lock that is never held across device I/O.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use cairn_base::{FileId, Generation, SnapshotId, Timestamp, Vbn};
use cairn_format::layout::BITS_PER_MAP_BLOCK;
use cairn_format::{BlockPointer, Cursor, FANOUT, FileKind, Inode, Role, Root};

use crate::commit::release::Releases;
use crate::commit::space::Redirects;
use crate::commit::table::SnapshotTable;
use crate::commit::used::UsedMap;
use crate::error::VolumeError;
use crate::limits::RESERVE_MIN;
use crate::memory::overlay::{FileOverlay, Overlay, Seen, Unlogged};
use crate::memory::roots::{Committed, Ended, Reader};
use crate::mirror::have::Arrivals;
use crate::past::since_map::SinceMap;

/// The generation that a consistency point is committing.
pub(crate) enum Frozen {
    /// Some of its blocks are still in memory or in flight.
    Draining(Box<Overlay>),
    /// All blocks have their place; nothing changes any more.
    Settled(Arc<Overlay>),
}

impl Frozen {
    pub(crate) fn overlay(&self) -> &Overlay {
        match self {
            Frozen::Draining(overlay) => overlay,
            Frozen::Settled(overlay) => overlay,
        }
    }
}

/// One file's changes in memory.
pub(crate) struct FileChanges<'a> {
    open: Option<&'a FileOverlay>,
    frozen: Option<&'a FileOverlay>,
}

impl FileChanges<'_> {
    /// The newest known state of a block.
    #[inline]
    pub(crate) fn see(&self, lba: u64) -> Seen {
        let overlay = |overlay: Option<&FileOverlay>| overlay.map_or(Seen::Below, |changes| changes.see(lba));
        match overlay(self.open) {
            Seen::Below => overlay(self.frozen),
            seen => seen,
        }
    }
}

/// Everything in memory.
pub(crate) struct State {
    pub(crate) role: Role,
    pub(crate) committed: Arc<Committed>,
    /// Notified when a short reader of an earlier root ends.
    pub(crate) ended: Arc<Ended>,
    /// Possible readers of earlier roots, and images of the present one.
    pub(crate) readers: Vec<Reader>,
    /// The image of the present root, while it is in use.
    pub(crate) active_image: Weak<Committed>,
    /// Images of the existing snapshots.
    pub(crate) pins: HashMap<SnapshotId, Weak<Committed>>,
    /// Snapshots that clones are made of, with the count of their keepers.
    pub(crate) kept: BTreeMap<SnapshotId, u32>,
    pub(crate) parent: SnapshotId,
    pub(crate) next_snapshot: u64,
    pub(crate) cursor: Cursor,
    pub(crate) snapshots: SnapshotTable,
    pub(crate) open: Overlay,
    pub(crate) frozen: Option<Frozen>,
    /// Log entries of the settled generation that are not in the log yet.
    pub(crate) frozen_unlogged: Vec<Unlogged>,
    /// A block that the log claims was written while a root had it, for example because the log
    /// does not belong to the content of the devices. No commit is possible then.
    pub(crate) contradiction: Option<Vbn>,
    pub(crate) used: UsedMap,
    pub(crate) releases: Releases,
    /// Released blocks that wait for the redirect map to forget them: after a failover blocks are
    /// freed while their content is still redirected.
    pub(crate) stuck: HashSet<Vbn>,
    /// The number that the next new file gets.
    pub(crate) next_file: u64,
    /// Levels of the tallest file's tree.
    pub(crate) levels: u8,
    /// When the last consistency point began. Changes in a file of the tree of names get this time
    /// or later, however long ago the caller began. A snapshot has that moment, and a query for
    /// changes since the snapshot would otherwise miss changes that are not in it.
    pub(crate) changes_from: Timestamp,
    /// Arrivals so far.
    pub(crate) order: u64,
    /// Arrivals up to here are durable.
    pub(crate) durable_order: u64,
    /// The last arrival that must become durable as a whole.
    pub(crate) atomic_order: u64,
    /// Blocks being written.
    pub(crate) flying: u64,
    /// Batches that were launched so far.
    pub(crate) launches: u64,
    /// Blocks that are reserved for the writer that waits in turn; 0 when none waits.
    pub(crate) awaited: u64,
    /// Changes of several parts that must be in the same generation.
    pub(crate) compounds: u32,
    /// A freeze waits for the compounds to end.
    pub(crate) freezing: bool,
    /// A rollback is between the snapshot of the present content and the new root: a change
    /// accepted now would be in neither.
    pub(crate) rolling_back: bool,
    /// How often the active state was replaced by one that was not written here, since opening.
    pub(crate) heads: u64,
    /// Removed files whose blocks are still to be freed.
    pub(crate) removed: Vec<FileId>,
    /// Removed files that can't be freed, as a node of theirs can't be read.
    pub(crate) stranded: Vec<FileId>,
    /// When their blocks were last searched by exclusion, by the monotonic clock; `None` when
    /// others were added since.
    pub(crate) tried_stranded: Option<Duration>,
    /// When the open generation got its first change.
    pub(crate) changed_since: Option<Duration>,
    /// When the generations of this run of the program got their first change, by the monotonic
    /// clock.
    pub(crate) first_changes: BTreeMap<Generation, Duration>,
    /// Every change of this and later generations was made in this run of the program, and is in
    /// `first_changes` or `changed_since`.
    pub(crate) known_from: Generation,
    /// All earlier ones were made before this, by the same clock.
    pub(crate) known_since: Duration,
    /// The generation that began an accumulating since map, and the time of the last change in it;
    /// of this run of the program.
    pub(crate) since_began: BTreeMap<FileId, (Generation, Timestamp)>,
    /// The since maps: each new block goes into every accumulating one.
    pub(crate) since_maps: Vec<SinceMap>,
    /// Those of them that could not be read on request: the next consistency point gives their
    /// relationships up. They are not used before that.
    pub(crate) lost_since: BTreeSet<FileId>,
    /// The device of the intent log failed, and the log went into the label area.
    pub(crate) log_left: bool,
    pub(crate) latched: Option<VolumeError>,
    /// Set when the layer below has no room for an accepted change: the monotonic time of the last
    /// attempt. No other change is accepted meanwhile.
    pub(crate) lacks_room: Option<Duration>,
    /// Set when a consistency point could not read a block over a network: the monotonic time of
    /// the last attempt. Its generation stays frozen, and it is tried again.
    pub(crate) out_of_reach: Option<Duration>,
    /// How often a write found no room below: blocks that were in flight then wait for a place
    /// again.
    pub(crate) room_failures: u64,
    /// Blocks that the consistency point in progress took for its nodes.
    pub(crate) taken: HashSet<Vbn>,
    /// When the inodes that block all changes were last checked, by the monotonic clock.
    pub(crate) looked_for_inodes: Duration,
    pub(crate) closed: bool,
    /// A transfer into this volume is in progress.
    pub(crate) receiving: bool,
    /// The blocks of an unfinished transfer, while none runs.
    pub(crate) arrivals: Option<Arrivals>,
    /// The have map on the device was read since opening.
    pub(crate) recalled: bool,
}

impl State {
    pub(crate) fn check_open(&self) -> Result<(), VolumeError> {
        if self.closed {
            return Err(VolumeError::Closed);
        }
        match &self.latched {
            Some(reason) => Err(VolumeError::of_latched(reason.clone())),
            None => Ok(()),
        }
    }

    /// The same check for a repair of blocks.
    pub(crate) fn check_mendable(&self) -> Result<(), VolumeError> {
        match self.inodes_are_lost() && !self.closed {
            true => Ok(()),
            false => self.check_open(),
        }
    }

    /// Whether it takes no changes until inodes can be read ([`VolumeError::InodesLost`]).
    pub(crate) fn inodes_are_lost(&self) -> bool {
        matches!(self.latched, Some(VolumeError::InodesLost(_)))
    }

    pub(crate) fn check_writable(&self) -> Result<(), VolumeError> {
        self.check_open()?;
        match self.role {
            Role::Normal => Ok(()),
            Role::Destination => Err(VolumeError::WrongRole(Role::Destination)),
        }
    }

    /// The first failure of a metadata write or flush makes the volume read-only permanently.
    pub(crate) fn latch(&mut self, reason: &VolumeError) {
        if self.latched.is_none() {
            tracing::error!(%reason, "a write or flush failed; the volume is read-only from now on");
            self.latched = Some(reason.clone());
        }
    }

    /// A write found no room below. Its changes are still in memory, so this does not latch.
    pub(crate) fn note_no_room(&mut self, now: Duration) {
        self.room_failures += 1;
        if self.lacks_room.replace(now).is_none() {
            tracing::warn!(
                "the file system below the volume has no room left: the volume takes no writes until there is some"
            );
        }
    }

    /// A consistency point could not read a block over a network. It is undone, so this does not
    /// latch.
    pub(crate) fn note_out_of_reach(&mut self, now: Duration, reason: &VolumeError) {
        if self.out_of_reach.replace(now).is_none() {
            tracing::warn!(%reason, "a consistency point waits for a block that cannot be reached now");
        }
    }

    /// A consistency point was made.
    pub(crate) fn note_reach(&mut self) {
        if self.out_of_reach.take().is_some() {
            tracing::info!("a consistency point that waited for a block is made");
        }
    }

    /// Everything that waited for room is written.
    pub(crate) fn note_room(&mut self) {
        if self.lacks_room.take().is_some() {
            tracing::info!("the file system below the volume has room again: the volume takes writes");
        }
    }

    /// The changes of a file in the in-memory generations. Looked up once for a whole request:
    /// finding the file costs more than its blocks.
    pub(crate) fn changes_of(&self, file: FileId) -> FileChanges<'_> {
        let frozen = self.frozen.as_ref().and_then(|frozen| frozen.overlay().files.get(&file));
        FileChanges { open: self.open.files.get(&file), frozen }
    }

    /// The inode of a file as changed in memory; `None` when it was not changed.
    pub(crate) fn changed_inode(&self, file: FileId) -> Option<Option<Inode>> {
        self.open
            .inodes
            .get(&file)
            .or_else(|| self.frozen.as_ref().and_then(|frozen| frozen.overlay().inodes.get(&file)))
            .copied()
    }

    /// The present length of a file in blocks; `None` inside for a missing file, `None` outside
    /// when its inode is not in memory.
    pub(crate) fn length_of(&self, file: FileId) -> Option<Option<u64>> {
        let inode = match self.changed_inode(file) {
            Some(inode) => inode,
            None => *self.committed.inodes.lock().get(&file)?,
        };
        Some(inode.map(|inode| inode.tree.length))
    }

    pub(crate) fn overlay_mut(&mut self, generation: Generation) -> Option<&mut Overlay> {
        if self.open.generation == generation {
            return Some(&mut self.open);
        }
        match &mut self.frozen {
            Some(Frozen::Draining(overlay)) if overlay.generation == generation => Some(overlay),
            _ => None,
        }
    }

    /// The reserve in blocks, so that a consistency point, a delete and a snapshot's deletion
    /// always succeed: all map blocks once over and some nodes, for the active map; and twice for
    /// each accumulating since map, which grows besides.
    pub(crate) fn reserve(&self) -> u64 {
        let accumulating =
            self.since_maps.iter().filter(|map| map.kind == FileKind::SinceAccumulating).count();
        self.map_cost() * (1 + 2 * accumulating as u64) + RESERVE_MIN
    }

    /// Blocks that writing all of one map takes at most.
    fn map_cost(&self) -> u64 {
        let regions = self.used.blocks().div_ceil(BITS_PER_MAP_BLOCK);
        regions + regions / 64 + 4
    }

    /// True when a consistency point can write the active map and `more` maps in full, out of the
    /// reserve.
    pub(crate) fn has_room_for_maps(&self, more: u64) -> bool {
        self.used.free() >= self.promised(0) + self.map_cost() * (1 + more) + RESERVE_MIN / 2
    }

    /// The maximum number of blocks that `more` blocks of anything take when they are committed. A
    /// thin file can be so much longer than the volume that every block has a path of its own.
    pub(crate) fn cost_at_most(&self, more: u64) -> u64 {
        more * (1 + u64::from(self.levels))
    }

    /// Blocks that these blocks of one file take when they are committed, at most.
    pub(crate) fn cost_of(&self, lbas: impl Iterator<Item = u64>) -> u64 {
        cost_in(self.levels, lbas)
    }

    /// Blocks that the changes in memory and `more` blocks of anything will still take when they
    /// are committed, at most: those without a place, and the nodes above all of them.
    pub(crate) fn promised(&self, more: u64) -> u64 {
        let promised_in = |overlay: &Overlay| overlay.unplaced + overlay.nodes(self.levels);
        let frozen = self.frozen.as_ref().map_or(0, |frozen| promised_in(frozen.overlay()));
        promised_in(&self.open) + frozen + self.cost_at_most(more)
    }

    /// True when a change that frees space (a hole, a file's removal) and takes up to `cost` blocks
    /// itself can be accepted, and committed even if snapshots keep all blocks that it frees. It
    /// may use most of the reserve.
    pub(crate) fn has_room_to_free(&self, cost: u64) -> bool {
        let cost = cost.max(self.cost_at_most(4));
        self.used.free() >= self.promised(0) + cost + self.reserve() - RESERVE_MIN * 3 / 4
    }

    /// Entries that found no room in the log are still to be logged, unless a consistency point has
    /// covered them.
    pub(crate) fn put_back_unlogged(&mut self, generation: Generation, due: Vec<Unlogged>) {
        if let Some(overlay) = self.overlay_mut(generation) {
            overlay.put_back_unlogged(due);
        } else if self.frozen.as_ref().is_some_and(|frozen| frozen.overlay().generation == generation) {
            self.frozen_unlogged.extend(due);
        }
    }

    /// True when `more` blocks can be taken without touching the reserve.
    pub(crate) fn has_room(&self, more: u64) -> bool {
        self.used.free() >= self.promised(more) + self.reserve()
    }

    /// True when changes that will take `cost` blocks can be taken without touching the reserve.
    pub(crate) fn has_room_for(&self, cost: u64) -> bool {
        self.used.free() >= self.promised(0) + cost + self.reserve()
    }

    /// The same for a writer that has not waited: the room that the waiting writer asked for is
    /// reserved for that one.
    pub(crate) fn may_take(&self, cost: u64) -> bool {
        self.has_room_for(cost + self.awaited)
    }

    /// Another image is shown from here on than the one that was written here: generations and
    /// files count on from it.
    pub(crate) fn forget_head(&mut self, now: Duration) {
        self.heads += 1;
        self.since_maps.clear();
        self.lost_since.clear();
        self.since_began.clear();
        self.first_changes.clear();
        self.known_from = self.open.generation;
        self.known_since = now;
        self.changed_since = None;
        self.removed.clear();
        self.stranded.clear();
    }

    /// Makes released blocks allocatable, unless a root that shows them still has a reader.
    pub(crate) fn settle_releases(&mut self) {
        for vbn in self.releases.take_free() {
            // While the redirect map names it, new content at home would not be found.
            if !self.committed.redirects.is_empty() && self.committed.redirects.get(vbn).is_some() {
                self.stuck.insert(vbn);
            } else {
                self.used.clear(vbn);
            }
        }
    }

    /// An image of the present root. It is a reader from the start: blocks that the next
    /// consistency point frees wait for it.
    pub(crate) fn image_of_active(&mut self) -> Arc<Committed> {
        if let Some(image) = self.active_image.upgrade() {
            return image;
        }
        let image = self.committed.as_image();
        self.readers.retain(Reader::is_alive);
        self.readers.push(Reader::of(&image));
        self.active_image = Arc::downgrade(&image);
        image
    }

    /// The image of a snapshot, whose root is `root`; all callers share one.
    pub(crate) fn pin(&mut self, id: SnapshotId, root: Root) -> Arc<Committed> {
        if let Some(pinned) = self.pins.get(&id).and_then(|pin| pin.upgrade()) {
            return pinned;
        }
        let fresh = Committed::image(root, self.committed.redirects.clone());
        self.pins.insert(id, Arc::downgrade(&fresh));
        fresh
    }

    /// Makes a root the one that is read from now on; the previous one keeps its readers.
    pub(crate) fn switch(&mut self, root: Root, redirects: Arc<Redirects>) -> Arc<Committed> {
        let fresh = Committed::active(root, redirects, self.ended.clone());
        let before = std::mem::replace(&mut self.committed, fresh);
        self.active_image = Weak::new();
        self.readers.retain(Reader::is_alive);
        self.readers.push(Reader::of(&before));
        before
    }

    /// Readers of earlier roots in a call that is in progress.
    pub(crate) fn short_readers(&self) -> Vec<Reader> {
        self.readers.iter().filter(|reader| reader.is_short() && reader.is_alive()).cloned().collect()
    }

    /// Blocks that the redirect map names no longer: those that were released meanwhile are free
    /// now.
    pub(crate) fn unstick(&mut self, vbns: &[Vbn]) {
        for vbn in vbns {
            if self.stuck.remove(vbn) {
                self.used.clear(*vbn);
            }
        }
    }

    /// Freed pointers that the snapshot from which the active state descends does not hold: they
    /// were born after it.
    pub(crate) fn born_since_parent(&self, freed: &[BlockPointer]) -> Vec<BlockPointer> {
        let held_through =
            self.snapshots.get(self.parent).map_or(Generation(0), |entry| entry.root.generation);
        freed.iter().filter(|pointer| pointer.birth > held_through).copied().collect()
    }

    /// The roots of the snapshots that descend from the same one as the active state does.
    pub(crate) fn siblings(&self) -> Vec<Root> {
        let ids = self.snapshots.children_of(self.parent).into_iter();
        ids.filter_map(|id| self.snapshots.get(id)).map(|entry| entry.root).collect()
    }
}

impl State {
    /// The redirect maps of present readers: the committed one, and those of images opened before
    /// it.
    pub(crate) fn redirects_in_use(&self) -> Vec<Arc<Redirects>> {
        let readers = self.readers.iter().filter_map(Reader::upgrade);
        let pins = self.pins.values().filter_map(Weak::upgrade);
        let mut all = vec![self.committed.redirects.clone()];
        for root in readers.chain(pins) {
            if !all.iter().any(|known| Arc::ptr_eq(known, &root.redirects)) {
                all.push(root.redirects.clone());
            }
        }
        all
    }
}

/// The blocks that these blocks of one file take, with the nodes above them, in a tree of `levels`
/// levels.
pub(crate) fn cost_in(levels: u8, lbas: impl Iterator<Item = u64>) -> u64 {
    let mut indexes: Vec<u64> = lbas.collect();
    indexes.sort_unstable();
    let mut cost = 0;
    for _ in 0..=levels {
        indexes.dedup();
        cost += indexes.len() as u64;
        indexes.iter_mut().for_each(|index| *index /= FANOUT);
    }
    cost
}
