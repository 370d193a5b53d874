//! Snapshots: made and deleted in the time of a consistency point, however many there are; and the
//! changes between them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use cairn_base::{BLOCK_SIZE, SnapshotId, Vbn};
use cairn_device::Block;
use cairn_format::layout::SPACE_BLOCKS_MAX;
use cairn_format::{Root, SEGMENTS_MAX, SegmentKind, SnapshotEntry, TableRef};

use crate::commit::pending::Commit;
use crate::commit::rider::Rider;
use crate::commit::space::{Redirects, device_blocks, grow_layout};
use crate::error::VolumeError;
use crate::memory::state::State;
use crate::read::compare::{Maps, Run};
use crate::read::image::Image;
use crate::volume::{Snapshot, Volume};

/// Blocks that a destination lacks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Runs of blocks in order of vbn.
    pub runs: Vec<Run>,
    /// Blocks in all.
    pub blocks: u64,
    /// Snapshots that the destination lacks, by id; the last is the target.
    pub snapshots: Vec<SnapshotEntry>,
}

/// The places of the blocks of a held image, and of the snapshots before it: a destination has some
/// of them in its redirect area. They stay valid while that image is held, and for the others while
/// those are held too ([`Volume::image`]). A later image has its blocks of the same numbers
/// elsewhere.
#[derive(Clone)]
pub struct Whereabouts(Arc<Redirects>);

impl Image {
    /// The places of its blocks, as it reads them itself. The image does not keep the current
    /// places: the same blocks may have come again and be in another place for now.
    pub fn whereabouts(&self) -> Whereabouts {
        Whereabouts(self.redirects().clone())
    }
}

impl Volume {
    /// Makes a snapshot of everything that was written before the call.
    pub fn create_snapshot(self: &Arc<Self>, name: &str) -> Result<Snapshot, VolumeError> {
        let done = self.commit_with(Rider::Snapshot(name.to_owned()))?;
        done.snapshot.as_ref().map(Snapshot::from).ok_or(VolumeError::Closed)
    }

    /// All snapshots, oldest first.
    pub fn snapshots(&self) -> Vec<Snapshot> {
        self.state.lock().snapshots.all().iter().map(Snapshot::from).collect()
    }

    /// The snapshot of that name.
    pub fn snapshot_named(&self, name: &str) -> Option<Snapshot> {
        let state = self.state.lock();
        state.snapshots.by_name(name).and_then(|id| state.snapshots.get(id)).map(Snapshot::from)
    }

    /// The snapshot with that id.
    pub fn snapshot(&self, id: SnapshotId) -> Option<Snapshot> {
        self.state.lock().snapshots.get(id).map(Snapshot::from)
    }

    /// The snapshot that the active state descends from; 0 for none.
    pub fn active_parent(&self) -> SnapshotId {
        self.state.lock().parent
    }

    /// The entries of the snapshot table, as a stream carries them.
    pub fn snapshot_entries(&self) -> Vec<SnapshotEntry> {
        self.state.lock().snapshots.all()
    }

    /// Deletes snapshots and returns how many blocks only they held. An export that is open keeps
    /// its blocks until it is closed.
    ///
    /// All are deleted in one consistency point; only if the label area is almost full there are
    /// several, one after the other.
    pub fn delete_snapshots(self: &Arc<Self>, ids: &[SnapshotId]) -> Result<u64, VolumeError> {
        self.delete_in_parts(self.deletable(ids, true)?, Rider::Delete)
    }

    /// The same for snapshots that a mirror has made for itself and held: the hold is released in
    /// the same consistency point.
    ///
    /// # Errors
    /// As [`Volume::delete_snapshots`], but for the hold.
    pub fn let_go_of_snapshots(self: &Arc<Self>, ids: &[SnapshotId]) -> Result<u64, VolumeError> {
        self.delete_in_parts(self.deletable(ids, false)?, Rider::LetGo)
    }

    /// How many blocks a deletion of these snapshots would free: those that only they hold. Nothing
    /// changes. The cost depends on the blocks in which their maps differ from those of their
    /// neighbours.
    ///
    /// # Errors
    /// [`VolumeError::NoSuchSnapshot`]; those of maps that cannot be read.
    pub fn would_free(self: &Arc<Self>, ids: &[SnapshotId]) -> Result<u64, VolumeError> {
        // Held, so that all maps stay readable whatever is deleted meanwhile.
        let all = self.image_of_all()?;
        let maps = Maps { store: &self.store, redirects: all.active.redirects() };
        let active = *all.active.root();
        let mut parent_of_active = all.parent;
        // The tree of descent: of each snapshot its parent and its root.
        let mut tree: BTreeMap<SnapshotId, (SnapshotId, Root)> =
            all.snapshots.iter().map(|(entry, _)| (entry.id, (entry.parent, entry.root))).collect();
        let mut blocks = 0;
        for id in ids.iter().copied().collect::<BTreeSet<_>>() {
            let (parent, root) = tree.remove(&id).ok_or(VolumeError::NoSuchSnapshot(id))?;
            // As a deletion compares: with the parent, the siblings and the children.
            let mut neighbours: Vec<Root> = tree.get(&parent).map(|(_, root)| *root).into_iter().collect();
            for (above, root) in tree.values_mut().filter(|(above, _)| *above == parent || *above == id) {
                neighbours.push(*root);
                *above = parent;
            }
            if parent_of_active == parent || parent_of_active == id {
                neighbours.push(active);
                parent_of_active = parent;
            }
            blocks += maps.only_in(&root, &neighbours)?.iter().map(|(_, count)| count).sum::<u64>();
        }
        Ok(blocks)
    }

    fn delete_in_parts(
        self: &Arc<Self>,
        mut left: VecDeque<SnapshotId>,
        rider: fn(Vec<SnapshotId>) -> Rider,
    ) -> Result<u64, VolumeError> {
        let mut freed = 0;
        loop {
            let part = self.deletable_at_once(&mut left);
            freed += self.commit_with(rider(part))?.freed;
            if left.is_empty() {
                return Ok(freed);
            }
        }
    }

    /// The ids in order, each once; an error if one can't be deleted.
    fn deletable(&self, ids: &[SnapshotId], heeds_hold: bool) -> Result<VecDeque<SnapshotId>, VolumeError> {
        let distinct: BTreeSet<SnapshotId> = ids.iter().copied().collect();
        for id in &distinct {
            if self.entry(*id)?.held && heeds_hold {
                return Err(VolumeError::Held(*id));
            }
            if self.state.lock().kept.contains_key(id) {
                return Err(VolumeError::Cloned(*id));
            }
        }
        Ok(distinct.into_iter().collect())
    }

    /// Takes as many ids from the front as the label area has room for, and at least one.
    fn deletable_at_once(&self, left: &mut VecDeque<SnapshotId>) -> Vec<SnapshotId> {
        let room = self.commit.lock().label.free().saturating_sub(TableRef::INDEXES_MAX);
        let state = self.state.lock();
        let (mut part, mut touched) = (Vec::new(), BTreeSet::new());
        while let Some(id) = left.front().copied() {
            touched.extend(state.snapshots.touched_by_removal(id));
            if touched.len() > room && !part.is_empty() {
                break;
            }
            part.push(id);
            left.pop_front();
        }
        part
    }

    /// Gives a snapshot another name.
    pub fn rename_snapshot(self: &Arc<Self>, id: SnapshotId, name: &str) -> Result<(), VolumeError> {
        self.commit_with(Rider::Rename(id, name.to_owned())).map(drop)
    }

    /// Holds a snapshot, so that it can't be deleted, or releases it.
    pub fn hold_snapshot(self: &Arc<Self>, id: SnapshotId, held: bool) -> Result<(), VolumeError> {
        if self.entry(id)?.held == held {
            return Ok(());
        }
        self.commit_with(Rider::Hold(id, held)).map(drop)
    }

    /// Whether a clone, or an image dump that is not finished, needs a snapshot, which can't be
    /// deleted then.
    pub fn is_cloned(&self, id: SnapshotId) -> bool {
        self.state.lock().kept.contains_key(&id)
    }

    pub(crate) fn entry(&self, id: SnapshotId) -> Result<SnapshotEntry, VolumeError> {
        self.state.lock().snapshots.get(id).cloned().ok_or(VolumeError::NoSuchSnapshot(id))
    }

    /// Makes a snapshot's content the active one. A new snapshot, which is returned, keeps the
    /// previous content: rolling back to it undoes the rollback. Later snapshots stay.
    pub fn rollback(self: &Arc<Self>, id: SnapshotId) -> Result<Snapshot, VolumeError> {
        let target = self.entry(id)?;
        // A change of the root directory has read it before, and would overwrite the blocks that
        // the rollback restores.
        let _turn = self.directory_turn();
        let done = self.commit_rollback(id, |generation| format!("before-rollback-{generation}"))?;
        let before = done.snapshot.as_ref().map(Snapshot::from).ok_or(VolumeError::Closed)?;
        tracing::info!(to = %target.name, before = %before.name, "rolled back");
        Ok(before)
    }

    /// Refuses a snapshot whose map cannot be read.
    pub(crate) fn check_map_of(&self, id: SnapshotId) -> Result<(), VolumeError> {
        let root = self.entry(id)?.root;
        let redirects = self.state.lock().committed.redirects.clone();
        Maps { store: &self.store, redirects: &redirects }.check_readable(&root)
    }

    /// The blocks that a destination with the snapshots `have` lacks for all snapshots up to
    /// `target`. Only snapshots that still exist here count: the blocks of a deleted one may have
    /// been reused.
    pub fn changed_blocks(
        self: &Arc<Self>,
        have: &[SnapshotId],
        target: SnapshotId,
    ) -> Result<Changes, VolumeError> {
        let (entries, redirects) = {
            let state = self.state.lock();
            (state.snapshots.all(), state.committed.redirects.clone())
        };
        let goal =
            entries.iter().find(|entry| entry.id == target).ok_or(VolumeError::NoSuchSnapshot(target))?;
        let have: BTreeSet<SnapshotId> = have.iter().copied().collect();
        let maps = Maps { store: &self.store, redirects: &redirects };
        let mut changes = Changes::default();
        let mut runs = Vec::new();
        let newer = goal.id;
        for entry in entries.iter().filter(|entry| entry.id <= newer && !have.contains(&entry.id)) {
            let parent: Vec<_> =
                entries.iter().filter(|other| other.id == entry.parent).map(|other| other.root).collect();
            runs.extend(maps.only_in(&entry.root, &parent)?);
            changes.snapshots.push(entry.clone());
        }
        changes.runs = join(runs);
        changes.blocks = changes.runs.iter().map(|(_, count)| count).sum();
        Ok(changes)
    }

    /// Reads runs of blocks as they are on the device, in order, past the cache. Those that were
    /// written while [`Volume::keep_fresh`] is in force come from memory. They are not verified
    /// here: the receiver checks them against the tree that they belong to.
    pub fn read_blocks(&self, runs: &[Run]) -> Result<Vec<Block>, VolumeError> {
        let now = Whereabouts(self.state.lock().committed.redirects.clone());
        self.read_blocks_at(&now, runs)
    }

    /// [`Volume::read_blocks`] of an image and of snapshots that are held, whatever a destination
    /// has received meanwhile.
    pub fn read_blocks_at(&self, at: &Whereabouts, runs: &[Run]) -> Result<Vec<Block>, VolumeError> {
        let redirects = &at.0;
        if redirects.is_empty()
            && !self.store.fresh().is_wanted()
            && let Some(blocks) = self.store.read_runs(runs)
        {
            return Ok(blocks);
        }
        let vbns: Vec<Vbn> =
            runs.iter().flat_map(|(first, count)| (0..*count).map(|n| Vbn(first.0 + n))).collect();
        let Some(fresh) = self.store.fresh().find(&vbns) else {
            let read = self.store.read_numbers(&vbns, redirects);
            return read.into_iter().map(|block| block.map_err(VolumeError::from)).collect();
        };
        let missing: Vec<Vbn> =
            vbns.iter().zip(&fresh).filter(|(_, found)| found.is_none()).map(|(vbn, _)| *vbn).collect();
        let mut read = self.store.read_numbers(&missing, redirects).into_iter();
        fresh
            .into_iter()
            .map(|found| match found {
                Some(block) => Ok(block),
                None => read.next().ok_or(VolumeError::Closed)?.map_err(VolumeError::from),
            })
            .collect()
    }

    /// Grows the block space to `blocks`. The device must have
    /// [`Volume::device_bytes_after_growth`] by then.
    pub fn grow(self: &Arc<Self>, blocks: u64) -> Result<(), VolumeError> {
        let need = self.device_bytes_after_growth(blocks)?;
        let have = self.store.device().geometry().length;
        if have < need {
            return Err(VolumeError::DeviceTooSmall { need, have });
        }
        self.commit_with(Rider::Grow(blocks)).map(drop)
    }

    /// Bytes of device that this volume needs with a block space of `blocks`.
    ///
    /// # Errors
    /// [`VolumeError::Size`] when `blocks` is not larger, or is more than the format carries.
    pub fn device_bytes_after_growth(&self, blocks: u64) -> Result<u64, VolumeError> {
        let mut layout = self.commit.lock().superblock.layout.clone();
        let now = self.store.space().blocks(SegmentKind::Space);
        if blocks <= now || blocks > SPACE_BLOCKS_MAX {
            return Err(VolumeError::Size { blocks, min: now + 1, max: SPACE_BLOCKS_MAX });
        }
        grow_layout(&mut layout, blocks - now);
        if layout.segments.len() > SEGMENTS_MAX {
            return Err(VolumeError::TooManySegments);
        }
        Ok(device_blocks(&layout) * BLOCK_SIZE as u64)
    }

    /// The size in blocks of block space to which this volume can grow on a device of `bytes`; its
    /// present size if there is no room for more.
    pub fn blocks_after_growth(&self, bytes: u64) -> u64 {
        let (mut low, mut high) = (self.space_blocks(), (bytes / BLOCK_SIZE as u64).min(SPACE_BLOCKS_MAX));
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if self.device_bytes_after_growth(middle).is_ok_and(|need| need <= bytes) {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        low
    }
}

/// Sorts runs and joins those that touch.
pub(crate) fn join(mut runs: Vec<Run>) -> Vec<Run> {
    runs.sort_unstable();
    let mut joined: Vec<Run> = Vec::with_capacity(runs.len());
    for (first, count) in runs {
        match joined.last_mut() {
            Some((start, length)) if start.0 + *length >= first.0 => {
                *length = (*length).max(first.0 + count - start.0);
            }
            _ => joined.push((first, count)),
        }
    }
    joined
}

/// Refuses the deletion of a snapshot that must stay, and one without room in the label area.
pub(crate) fn check_deletion(state: &State, commit: &Commit, rider: &Rider) -> Result<(), VolumeError> {
    // A mirror's own hold does not keep its snapshots from it.
    let heeds_hold = !matches!(rider, Rider::Step(_) | Rider::LetGo(_));
    for id in rider.deletes() {
        let entry = state.snapshots.get(*id).ok_or(VolumeError::NoSuchSnapshot(*id))?;
        if entry.held && heeds_hold {
            return Err(VolumeError::Held(*id));
        }
        if state.kept.contains_key(id) {
            return Err(VolumeError::Cloned(*id));
        }
    }
    let touched: BTreeSet<usize> =
        rider.deletes().iter().flat_map(|id| state.snapshots.touched_by_removal(*id)).collect();
    let room = touched.len() + TableRef::INDEXES_MAX <= commit.label.free();
    if room { Ok(()) } else { Err(VolumeError::TableFull) }
}
