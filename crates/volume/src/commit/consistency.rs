//! Consistency points: from the changes in memory to a new root on the device, atomically.
//!
//! 1. *Freeze*: the open generation becomes the frozen one; new writes go to the next.
//! 2. *Drain*: its blocks without a place get one and are written.
//! 3. *Merge*: its changes go into new nodes of the files' trees, then of the inode file, then of
//!    the maps, to a fixed point.
//! 4. *Write*: nodes and table blocks, flush; superblock A, flush: this is the commit. Superblock
//!    B, flush.
//! 5. *Install*: readers see the new root; blocks that it no longer reaches can be reused.
//!
//! A cut before the commit leaves the old root with the intent log, which lacks nothing that was
//! flushed. A cut after it leaves the new one. Blocks that the old root reaches are reused only
//! after both slots name the new one, so either slot alone opens whole.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::locks::MutexGuard;
use cairn_base::{FileId, Generation, SnapshotId, Timestamp, Vbn};
use cairn_device::Operation;
use cairn_format::layout::{BITS_PER_MAP_BLOCK, SUPERBLOCK_A, SUPERBLOCK_B};
use cairn_format::{
    BlockPointer, Cursor, INODES_PER_BLOCK, Inode, LogTail, Root, SnapshotEntry, Superblock, TreeRef,
};

use crate::commit::pending::{Commit, Exclusive, FrozenPart, Left, Sealed};
use crate::commit::rider::{Done, Rider, StepRider};
use crate::commit::space::map_blocks;
use crate::commit::space::{Space, add_destination_areas, grow_layout};
use crate::commit::superblock::write_slot;
use crate::commit::table::{PreparedTable, TableChange};
use crate::commit::update::{Gathered, Mark, TreeUpdate};
use crate::error::VolumeError;
use crate::known_files::{ACTIVE_MAP, INODE_FILE};
use crate::limits::{PLACE_BLOCKS, SNAPSHOTS_MAX};
use crate::memory::overlay::{FileOverlay, Overlay};
use crate::memory::roots::Committed;
use crate::memory::roots::Reader;
use crate::memory::state::{Frozen, State};
use crate::past::names::check_name;
use crate::past::since::MapError;
use crate::past::snapshots::check_deletion;
use crate::read::compare::Maps;
use crate::read::compare::bit;
use crate::read::store::pairs;
use crate::volume::Volume;

/// Changes wait while it lives.
pub(crate) struct Waiting<'a>(&'a Volume);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.state.lock().rolling_back = false;
        self.0.settled.notify_all();
    }
}

impl Volume {
    /// Commits everything that was written before the call. Returns the generation that has it;
    /// without changes, the present one.
    pub fn consistency_point(self: &Arc<Self>) -> Result<Generation, VolumeError> {
        self.commit_with(Rider::None).map(|done| done.generation)
    }

    pub(crate) fn commit_with(self: &Arc<Self>, rider: Rider) -> Result<Done, VolumeError> {
        self.commit_holding(&mut self.commit.lock(), rider)
    }

    /// A consistency point for a caller that has checked state which only consistency points
    /// change.
    pub(crate) fn commit_holding(
        self: &Arc<Self>,
        commit: &mut MutexGuard<'_, Commit>,
        rider: Rider,
    ) -> Result<Done, VolumeError> {
        self.take_label_room(commit)?;
        self.finish_left(commit)?;
        self.refuse_early(commit, &rider)?;
        let outcome = self.commit_or_wait(commit, rider);
        if outcome.is_ok() {
            let mut state = self.state.lock();
            state.note_room();
            state.note_reach();
        }
        outcome
    }

    /// A snapshot of the present content, named by its generation, and then the rollback, with no
    /// change in between.
    pub(crate) fn commit_rollback(
        self: &Arc<Self>,
        id: SnapshotId,
        name: impl Fn(Generation) -> String,
    ) -> Result<Done, VolumeError> {
        let mut commit = self.commit_turn()?;
        self.check_rider(&commit, &Rider::Rollback(id))?;
        // A snapshot that can't be read is refused here, before anything is frozen. Its map as
        // well: no later consistency point would do without it.
        self.stale_since_maps(id)?;
        self.check_map_of(id)?;
        let mut name_of = name(Generation(self.state.lock().open.generation.0));
        while self.snapshot_named(&name_of).is_some() {
            name_of.push('_');
        }
        let _waiting = self.hold_changes();
        let kept = self.commit_holding(&mut commit, Rider::Snapshot(name_of))?;
        self.commit_holding(&mut commit, Rider::Rollback(id))?;
        // Before any change is admitted.
        self.state.lock().heads += 1;
        let mut removed = Vec::new();
        let mut visit = |inode: Inode| removed.extend(inode.removed.then_some(inode.id));
        // Unreadable inodes count as lost until they can be read, here as at the opening of a
        // volume.
        self.image(None)?.each_inode_past(&mut visit, &mut |_| Ok(()))?;
        self.state.lock().removed = removed;
        Ok(kept)
    }

    /// Blocks new changes until the guard is dropped. First finishes changes that have several
    /// parts: they could not finish while others wait. The caller holds `commit`.
    pub(crate) fn hold_changes(&self) -> Waiting<'_> {
        let mut state = self.state.lock();
        while state.compounds > 0 {
            state.freezing = true;
            self.settled.wait(&mut state);
        }
        state.freezing = false;
        state.rolling_back = true;
        drop(state);
        Waiting(self)
    }

    /// Refuses impossible requests before the freeze. A failure here has changed no state and
    /// affects no other caller.
    fn refuse_early(self: &Arc<Self>, commit: &Commit, rider: &Rider) -> Result<(), VolumeError> {
        self.check_rider(commit, rider)?;
        if !rider.deletes().is_empty() {
            // Unreadable maps are found here.
            let before = self.state.lock().committed.clone();
            self.deletion(rider.deletes(), &before.root, &before, &mut commit.superblock.clone())?;
        }
        Ok(())
    }

    pub(crate) fn commit_locked(
        self: &Arc<Self>,
        commit: &mut MutexGuard<'_, Commit>,
        rider: Rider,
    ) -> Result<Done, VolumeError> {
        let began = self.clock.now();
        let frozen = self.freeze(commit, &rider, began)?;
        if let Some(vbn) = self.state.lock().contradiction {
            return Err(VolumeError::MapContradicts { vbn });
        }
        let drops_changes = matches!(rider, Rider::Rollback(_));
        let before = self.state.lock().committed.clone();
        let mut gathered = Gathered {
            generation: frozen.as_ref().map_or(before.root.generation, |part| part.overlay.generation),
            allocated: Vec::new(),
            freed: Vec::new(),
            replaced: Vec::new(),
            writes: Vec::new(),
            removed: Vec::new(),
        };
        let root = match (&frozen, &rider) {
            (Some(part), Rider::Rollback(id)) => self.rolled_back_root(part, *id, &mut gathered)?,
            (Some(part), _) => self.merge(part, &before, &rider, &mut gathered)?,
            (None, _) => before.root,
        };
        if root.changed != before.root.changed {
            // A rollback changes the visible content without a write.
            self.state.lock().changed_at(root.generation, self.clock.monotonic());
        }
        let mut superblock = commit.superblock.clone();
        superblock.root = root;
        superblock.sequence += 1;
        if let Some(part) = &frozen {
            superblock.log_tail = part.tail;
        }
        if let Rider::Log(area) = &rider {
            // No record was written since the freeze, so this consistency point has all that the
            // old log has.
            superblock.external_log = area.external_log();
            superblock.log_tail = LogTail { position: 0, sequence: self.log.lock().mark().sequence };
        }
        let mut done = Done { generation: root.generation, began, ..Done::default() };
        // New nodes must be readable before a deletion compares the new map: they are in the cache
        // or on the device.
        self.write_gathered(&mut gathered)?;
        // Blocks that the rolled-back state no longer has, but that the snapshot still has.
        let mut unheld = if drops_changes { Vec::new() } else { self.unheld(&gathered.freed, &before)? };
        let (table, exclusive) = self.ride(commit, &rider, &root, &before, &mut superblock, &mut done)?;
        if frozen.is_none() && matches!(rider, Rider::None) {
            return Ok(done);
        }
        let mut operations = Vec::new();
        if let Some(table) = &table {
            superblock.snapshots = table.table.clone();
            operations = table.writes.operations(&commit.label);
        }
        operations.push(Operation::flush());
        if let Err(error) = self.store.run(operations) {
            let error = error.of_room();
            if let (VolumeError::NoRoomBelow, Some(table)) = (&error, &table) {
                commit.label.release(&table.writes.addresses());
            }
            return Err(error);
        }
        drop(before);
        if drops_changes && let Some(part) = &frozen {
            unheld.extend(placed_blocks(&part.overlay));
        }
        let Gathered { removed, replaced, .. } = gathered;
        let sealed = Sealed { superblock, frozen, table, exclusive, unheld, removed, replaced };
        self.seal(commit, sealed, matches!(rider, Rider::None))?;
        Ok(done)
    }

    /// Refuses impossible requests, before any change.
    pub(crate) fn check_rider(&self, commit: &Commit, rider: &Rider) -> Result<(), VolumeError> {
        let state = self.state.lock();
        let table_full = || !commit.label.has_room() || state.snapshots.len() >= SNAPSHOTS_MAX;
        match rider {
            Rider::None | Rider::Failover | Rider::Log(_) => state.check_open(),
            Rider::Snapshot(name)
            | Rider::SnapshotSince(name, _)
            | Rider::Demote(name, _)
            | Rider::Step(StepRider { name, .. }) => {
                state.check_writable()?;
                state.check_room_for_since(rider)?;
                check_name(name)?;
                if state.snapshots.by_name(name).is_some() {
                    Err(VolumeError::NameTaken)
                } else if table_full() {
                    Err(VolumeError::TableFull)
                } else if rider.deletes().is_empty() {
                    Ok(())
                } else {
                    check_deletion(&state, commit, rider)
                }
            }
            Rider::Delete(_) | Rider::LetGo(_) => {
                state.check_writable()?;
                check_deletion(&state, commit, rider)
            }
            Rider::Rename(id, name) => {
                state.check_writable()?;
                check_name(name)?;
                match state.snapshots.by_name(name) {
                    Some(other) if other != *id => Err(VolumeError::NameTaken),
                    _ => state.snapshots.get(*id).map(drop).ok_or(VolumeError::NoSuchSnapshot(*id)),
                }
            }
            Rider::Hold(id, _) => {
                state.check_writable()?;
                state.snapshots.get(*id).map(drop).ok_or(VolumeError::NoSuchSnapshot(*id))
            }
            Rider::AcknowledgeSince(_) | Rider::DeleteSince(_) | Rider::Exclude(_) => state.check_writable(),
            Rider::Rollback(id) => {
                state.check_writable()?;
                state.check_room_for_since(rider)?;
                state.snapshots.get(*id).map(drop).ok_or(VolumeError::NoSuchSnapshot(*id))
            }
            Rider::Grow(_) => state.check_open(),
        }
    }

    /// Ends the open generation; `None` when it has no changes (unless the rider changes the
    /// trees).
    fn freeze(
        &self,
        commit: &mut Commit,
        rider: &Rider,
        began: Timestamp,
    ) -> Result<Option<FrozenPart>, VolumeError> {
        let state = self.state.lock();
        state.check_open()?;
        if let Some(left) = commit.left.clone() {
            return self.drain(state, left).map(Some);
        }
        let mut state = state;
        while state.compounds > 0 {
            state.freezing = true;
            self.settled.wait(&mut state);
        }
        state.freezing = true;
        drop(state);
        // No record may be in flight while the generations change. Otherwise it would follow the
        // new tail with the old number.
        let mut log = self.log.lock();
        let mut state = self.state.lock();
        state.freezing = false;
        state.changes_from = began;
        if let Rider::Log(area) = rider {
            log.leave_for(area.clone());
        }
        if state.open.is_empty() && !rider.changes_trees() {
            self.settled.notify_all();
            return Ok(None);
        }
        let next = Generation(state.open.generation.0 + 1);
        let frozen = std::mem::replace(&mut state.open, Overlay::new(next));
        let generation = frozen.generation;
        state.frozen = Some(Frozen::Draining(Box::new(frozen)));
        state.note_first_change(generation);
        state.changed_since = None;
        let left = Left { generation, order: state.order, tail: log.mark() };
        commit.left = Some(left.clone());
        drop(log);
        self.settled.notify_all();
        self.drain(state, left).map(Some)
    }

    /// Has all blocks of the frozen generation at their places.
    fn drain<'a>(&'a self, mut state: MutexGuard<'a, State>, left: Left) -> Result<FrozenPart, VolumeError> {
        let Left { generation, order, tail } = left;
        if let Some(Frozen::Settled(overlay)) = &state.frozen {
            return Ok(FrozenPart { overlay: overlay.clone(), order, tail });
        }
        loop {
            let unplaced = state.overlay_mut(generation).map_or((0, 0), |o| (o.unplaced, o.flights.len()));
            if let Some(reason) = &state.latched {
                return Err(VolumeError::Latched(Box::new(reason.clone())));
            }
            match unplaced {
                (0, 0) => break,
                (0, _) => self.settled.wait(&mut state),
                _ => {
                    drop(state);
                    self.place(PLACE_BLOCKS, order)?;
                    state = self.state.lock();
                }
            }
        }
        let Some(Frozen::Draining(mut overlay)) = state.frozen.take() else {
            return Err(VolumeError::Closed);
        };
        state.frozen_unlogged = overlay.take_unlogged(u64::MAX);
        let overlay: Arc<Overlay> = Arc::from(overlay);
        state.frozen = Some(Frozen::Settled(overlay.clone()));
        Ok(FrozenPart { overlay, order, tail })
    }

    pub(crate) fn allocate(&self, count: usize) -> Result<Vec<Vbn>, VolumeError> {
        let mut taken = Vec::with_capacity(count);
        if count > 0 {
            let mut state = self.state.lock();
            if !state.used.allocate(count, &mut taken) {
                return Err(VolumeError::NoSpace);
            }
            state.taken.extend(&taken);
        }
        Ok(taken)
    }

    /// Merges a generation's changes into new trees and returns the new root.
    fn merge(
        &self,
        part: &FrozenPart,
        before: &Committed,
        rider: &Rider,
        gathered: &mut Gathered,
    ) -> Result<Root, VolumeError> {
        let overlay = &part.overlay;
        let mut inodes: BTreeMap<FileId, Option<Inode>> = overlay.inodes.clone();
        let files: BTreeSet<FileId> = overlay.files.keys().chain(overlay.inodes.keys()).copied().collect();
        let (files, ahead): (Vec<FileId>, usize) = (files.into_iter().collect(), self.nodes_ahead());
        for (index, file) in files.iter().copied().enumerate() {
            // Small files have a node each: read and written one by one, each would be waited for.
            if index.is_multiple_of(ahead) {
                let next = files.iter().skip(index).take(ahead).copied();
                self.load_nodes_of(before, next.filter(|file| overlay.files.contains_key(file)));
            }
            if gathered.writes.len() >= PLACE_BLOCKS {
                self.write_gathered(gathered)?;
            }
            let old = self.committed_inode(before, file)?;
            let new = match inodes.get(&file) {
                Some(changed) => *changed,
                None => old,
            };
            let empty = FileOverlay::default();
            let changes = overlay.files.get(&file).unwrap_or(&empty);
            let old_tree = old.map_or(TreeRef::empty(1), |inode| inode.tree);
            match new {
                Some(mut inode) => {
                    inode.tree =
                        self.merge_file(before, file, old_tree, inode.tree.length, changes, gathered)?;
                    if Some(inode) == old {
                        // The caller that put it again may have had a tree of an earlier
                        // generation: that tree must not be written.
                        inodes.remove(&file);
                    } else {
                        inodes.insert(file, Some(inode));
                    }
                }
                // The file is gone (its tree was freed before) or never existed: writes to it are
                // discarded.
                None => {
                    let tree = self.tree(before, file, old_tree);
                    let mut update = TreeUpdate::regular(tree, old_tree.length);
                    update.punch(0, old_tree.length, gathered, &mut |n| self.allocate(n))?;
                    update.finish(gathered, &mut |n| self.allocate(n))?;
                    let lost = changes.settled().map(|(_, pointer)| pointer);
                    gathered.freed.extend(lost.clone());
                    gathered.allocated.extend(lost.map(|pointer| pointer.vbn));
                }
            }
        }
        if let Rider::Exclude(excluded) = rider {
            excluded.free(overlay, &mut inodes, gathered);
        }
        self.close_trees(part, before, inodes, rider, gathered)
    }

    fn merge_file(
        &self,
        before: &Committed,
        file: FileId,
        old: TreeRef,
        length: u64,
        changes: &FileOverlay,
        gathered: &mut Gathered,
    ) -> Result<TreeRef, VolumeError> {
        let mut others = gathered.writes.len();
        let mut update = TreeUpdate::regular(self.tree(before, file, old), length);
        let mut allocate = |count: usize| self.allocate(count);
        for (start, end) in &changes.holes {
            update.punch(*start, *end, gathered, &mut allocate)?;
        }
        if length < old.length {
            update.punch(length, old.length, gathered, &mut allocate)?;
        }
        let mut slots: Vec<(u64, BlockPointer)> = changes.settled().collect();
        // Blocks past a new, smaller end have no place in the tree.
        let within = slots.partition_point(|(lba, _)| *lba < length);
        for (_, pointer) in slots.split_off(within) {
            gathered.allocated.push(pointer.vbn);
            gathered.freed.push(pointer);
        }
        let mut tree = update.finish(gathered, &mut allocate)?;
        // In rounds, as every block may need a leaf of its own in memory. The few nodes that two
        // rounds share are written twice.
        for round in slots.chunks(self.memory.merge_changes) {
            // Nodes that this file just got may be loaded again, and not from the cache.
            if gathered.writes.len() > others {
                self.write_gathered(gathered)?;
                others = 0;
            }
            let mut update = TreeUpdate::regular(self.tree(before, file, tree), length);
            let lbas: Vec<u64> = round.iter().map(|(lba, _)| *lba).collect();
            update.plan(&lbas, gathered, &mut allocate)?;
            for (lba, pointer) in round {
                update.set(*lba, *pointer, gathered);
            }
            tree = update.finish(gathered, &mut allocate)?;
        }
        Ok(tree)
    }

    /// The since maps, the inode file and the active map. If a since map cannot be read, all work
    /// on the since maps is undone and repeated without the maps of that relationship. The
    /// relationship is given up: the changes that its mirror lacks are unknown, and no other mirror
    /// needs these maps.
    fn close_trees(
        &self,
        part: &FrozenPart,
        before: &Committed,
        mut inodes: BTreeMap<FileId, Option<Inode>>,
        rider: &Rider,
        gathered: &mut Gathered,
    ) -> Result<Root, VolumeError> {
        let (mut given_up, has_maps) = {
            let state = self.state.lock();
            (state.lost_relationships(), !state.since_maps.is_empty())
        };
        let mut doubtful = BTreeSet::new();
        loop {
            let mark = gathered.mark();
            // Without maps there is no second attempt.
            let changed = if has_maps { inodes.clone() } else { std::mem::take(&mut inodes) };
            match self.close_trees_without(&given_up, part, before, changed, rider, gathered) {
                Ok(root) => return Ok(root),
                Err(MapError::Lost { relationship, error }) => {
                    self.ungather(gathered, &mark);
                    // A failed read may succeed the next time.
                    if doubtful.insert(relationship) {
                        continue;
                    }
                    if !given_up.insert(relationship) {
                        return Err(error);
                    }
                    tracing::error!(%error, "a since map can't be read, and is discarded with its mirror's other one: the next update of that mirror needs a common snapshot, or compares everything");
                }
                Err(MapError::Other(error)) => return Err(error),
            }
        }
    }

    /// Undoes the work gathered since a mark. No block of it was written: its blocks are free again
    /// and keep their earlier content.
    pub(crate) fn ungather(&self, gathered: &mut Gathered, mark: &Mark) {
        let taken = gathered.forget_after(mark);
        let mut state = self.state.lock();
        for vbn in taken {
            state.taken.remove(&vbn);
            state.used.clear(vbn);
        }
    }

    /// One attempt at [`Volume::close_trees`], without the since maps of some relationships. Every
    /// place must be known before the content of inode file and active map is, as the map describes
    /// its own blocks too.
    fn close_trees_without(
        &self,
        given_up: &BTreeSet<u64>,
        part: &FrozenPart,
        before: &Committed,
        mut inodes: BTreeMap<FileId, Option<Inode>>,
        rider: &Rider,
        gathered: &mut Gathered,
    ) -> Result<Root, MapError> {
        let mut allocate = |count: usize| self.allocate(count);
        let old = &before.root;
        let blocks = match rider {
            Rider::Grow(blocks) => *blocks,
            _ => self.state.lock().used.blocks(),
        };
        let mut since = self.since_update(before, (rider, given_up), blocks, &mut inodes, gathered)?;
        let next_file = self.state.lock().next_file;
        let inode_blocks = next_file.div_ceil(INODES_PER_BLOCK).max(1);
        let mut inode_update =
            TreeUpdate::closing(self.tree(before, INODE_FILE, old.inode_file), inode_blocks);
        let mut changed: Vec<u64> = inodes.keys().map(|file| Inode::place(*file).0).collect();
        changed.dedup();
        let emptied = self.emptied_inode_blocks(before, &inodes)?;
        changed.retain(|block| !emptied.contains(block));
        inode_update.plan(&changed, gathered, &mut allocate)?;
        let holes: Vec<u64> = emptied.iter().copied().collect();
        inode_update.vacate(&holes, gathered, &mut allocate)?;
        let mut map_update =
            TreeUpdate::closing(self.tree(before, ACTIVE_MAP, old.active_map), map_blocks(blocks));
        // Without changes too: a map that grows taller needs places for its new top.
        map_update.plan(&[], gathered, &mut allocate)?;
        let (mut allocated, mut freed) = (0, 0);
        let mut planned = BTreeSet::new();
        loop {
            let news = gathered.allocated[allocated..].iter();
            let to_record = regions_of(news.clone());
            let mut regions = regions_of(news.chain(gathered.freed[freed..].iter().map(|p| &p.vbn)));
            regions.retain(|region| !planned.contains(region));
            (allocated, freed) = (gathered.allocated.len(), gathered.freed.len());
            since.plan(&to_record, gathered, &mut allocate)?;
            if regions.is_empty() && gathered.allocated.len() == allocated {
                break;
            }
            let regions: Vec<u64> = regions.into_iter().collect();
            map_update.plan(&regions, gathered, &mut allocate)?;
            planned.extend(regions);
        }
        let since_maps = since.finish(gathered, &mut allocate, &mut inodes)?;
        for (file, inode) in &inodes {
            let (block, slot) = Inode::place(*file);
            if !emptied.contains(&block) {
                Inode::put(inode.as_ref(), inode_update.data(block), slot);
            }
        }
        for vbn in &gathered.allocated {
            let bits = map_update.data(vbn.0 / BITS_PER_MAP_BLOCK);
            let (byte, mask) = bit(*vbn);
            if bits[byte] & mask != 0 {
                return Err(VolumeError::MapContradicts { vbn: *vbn }.into());
            }
            bits[byte] |= mask;
        }
        for pointer in &gathered.freed {
            let bits = map_update.data(pointer.vbn.0 / BITS_PER_MAP_BLOCK);
            let (byte, mask) = bit(pointer.vbn);
            if bits[byte] & mask == 0 {
                return Err(VolumeError::MapContradicts { vbn: pointer.vbn }.into());
            }
            bits[byte] &= !mask;
        }
        let used = (old.used + gathered.allocated.len() as u64)
            .checked_sub(gathered.freed.len() as u64)
            .ok_or(VolumeError::MapContradicts { vbn: Vbn(0) })?;
        let now = self.clock.now();
        let only_since = part.overlay.is_empty() && !matches!(rider, Rider::Rollback(_));
        let changed = if only_since { old.changed } else { self.changed_now(now) };
        {
            let mut state = self.state.lock();
            if let Some(relationship) = rider.begins_map_of() {
                state.note_beginning(&since_maps, relationship, part.overlay.generation, changed);
            }
            state.lost_since.retain(|lost| since_maps.iter().any(|map| map.file == *lost));
            state.since_maps = since_maps;
        }
        Ok(Root {
            generation: part.overlay.generation,
            created: now,
            changed,
            blocks,
            used,
            next_file,
            inode_file: inode_update.finish(gathered, &mut allocate)?,
            active_map: map_update.finish(gathered, &mut allocate)?,
        })
    }

    /// Blocks of the inode file in which these changes leave no file. Inode numbers are never
    /// reused, so such blocks stay empty. A client that makes and removes files all day must not
    /// fill the volume with them.
    fn emptied_inode_blocks(
        &self,
        before: &Committed,
        inodes: &BTreeMap<FileId, Option<Inode>>,
    ) -> Result<BTreeSet<u64>, VolumeError> {
        let mut emptied = BTreeSet::new();
        let gone = inodes.iter().filter(|(_, inode)| inode.is_none());
        let mut blocks: Vec<u64> = gone.map(|(file, _)| Inode::place(*file).0).collect();
        blocks.dedup();
        for block in blocks {
            let files = block * INODES_PER_BLOCK..(block + 1) * INODES_PER_BLOCK;
            let mut is_empty = true;
            for file in files.map(FileId) {
                let inode = match inodes.get(&file) {
                    Some(changed) => *changed,
                    None => self.committed_inode(before, file)?,
                };
                if inode.is_some() {
                    is_empty = false;
                    break;
                }
            }
            if is_empty {
                emptied.insert(block);
            }
        }
        Ok(emptied)
    }

    /// The root of a snapshot, as the next generation of the active state, with the since maps of
    /// today.
    fn rolled_back_root(
        self: &Arc<Self>,
        part: &FrozenPart,
        id: SnapshotId,
        gathered: &mut Gathered,
    ) -> Result<Root, VolumeError> {
        let stale = self.stale_since_maps(id)?;
        let (snapshot, redirects) = {
            let state = self.state.lock();
            let snapshot = state.snapshots.get(id).ok_or(VolumeError::NoSuchSnapshot(id))?.root;
            if stale.is_empty() && state.since_maps.is_empty() {
                let now = self.clock.now();
                return Ok(Root {
                    generation: part.overlay.generation,
                    created: now,
                    changed: crate::mirror::lag::later(state.committed.root.changed, now),
                    blocks: state.used.blocks(),
                    next_file: state.next_file,
                    ..snapshot
                });
            }
            (snapshot, state.committed.redirects.clone())
        };
        let snapshot = Committed::image(snapshot, redirects);
        self.close_trees(part, &snapshot, stale, &Rider::Rollback(id), gathered)
    }

    fn write_gathered(&self, gathered: &mut Gathered) -> Result<(), VolumeError> {
        let mut writes = std::mem::take(&mut gathered.writes);
        writes.sort_unstable_by_key(|(vbn, _)| *vbn);
        for chunk in writes.chunks(PLACE_BLOCKS) {
            self.store.fresh().note(pairs(chunk));
            self.store.run(self.store.write_home(pairs(chunk))).map_err(VolumeError::of_room)?;
        }
        Ok(())
    }

    /// The blocks released by the active state that no snapshot holds. Blocks born before the
    /// snapshot that it descends from are in that one. Later ones can only be in its siblings, and
    /// there only when an ancestor of both was deleted.
    fn unheld(&self, freed: &[BlockPointer], before: &Committed) -> Result<Vec<BlockPointer>, VolumeError> {
        let (mut free, siblings) = {
            let state = self.state.lock();
            (state.born_since_parent(freed), state.siblings())
        };
        let maps = Maps { store: &self.store, redirects: &before.redirects };
        for sibling in siblings {
            let (older, mut kept): (Vec<_>, Vec<_>) =
                free.into_iter().partition(|pointer| pointer.birth <= sibling.generation);
            let vbns: Vec<Vbn> = older.iter().map(|pointer| pointer.vbn).collect();
            // The part of a snapshot's map that cannot be read counts as held: the damage belongs
            // to that snapshot alone.
            let held = match maps.holds(&sibling, &vbns) {
                Ok(held) => held,
                Err(error) if error.is_of_a_block() => vec![true; vbns.len()],
                Err(error) => return Err(error),
            };
            kept.extend(older.into_iter().zip(held).filter(|(_, held)| !held).map(|(pointer, _)| pointer));
            free = kept;
        }
        Ok(free)
    }

    /// Prepares the rider of the consistency point. Returns the change of the snapshot table and
    /// the blocks that only deleted snapshots held, with the snapshot of each.
    fn ride(
        self: &Arc<Self>,
        commit: &mut Commit,
        rider: &Rider,
        root: &Root,
        before: &Committed,
        superblock: &mut Superblock,
        done: &mut Done,
    ) -> Result<(Option<PreparedTable>, Exclusive), VolumeError> {
        let mut exclusive = Vec::new();
        let mut changes = Vec::new();
        match rider {
            Rider::None | Rider::AcknowledgeSince(_) | Rider::DeleteSince(_) | Rider::Exclude(_) => {}
            Rider::Snapshot(name)
            | Rider::SnapshotSince(name, _)
            | Rider::Demote(name, _)
            | Rider::Step(StepRider { name, .. }) => {
                if !rider.deletes().is_empty() {
                    // First, as the new snapshot has the same blocks as the active state, which
                    // those that go are compared with.
                    (changes, exclusive) = self.deletion(rider.deletes(), root, before, superblock)?;
                    done.freed = exclusive.iter().map(|(_, blocks)| blocks.len() as u64).sum();
                }
                let id = SnapshotId(superblock.next_snapshot);
                // Not the present time: a query for changes since the snapshot (a dump) would miss
                // changes made while it was written.
                let created = done.began;
                let held = matches!(rider, Rider::Demote(_, true) | Rider::Step(_));
                let (name, root) = (name.clone(), Root { created, ..*root });
                let entry = SnapshotEntry { id, parent: superblock.parent, held, name, root };
                superblock.next_snapshot += 1;
                superblock.parent = id;
                if matches!(rider, Rider::Demote(..)) {
                    superblock.role = cairn_format::Role::Destination;
                    superblock.cursor = Cursor { snapshot: id, received: Cursor::OWN };
                    add_destination_areas(&mut superblock.layout);
                }
                done.snapshot = Some(entry.clone());
                changes.push(TableChange::Put(entry));
            }
            // The current entry: while this one waited for its turn, its parent may have been
            // deleted or another caller may have changed it.
            Rider::Rename(id, name) => {
                let entry = self.entry(*id)?;
                changes.push(TableChange::Put(SnapshotEntry { name: name.clone(), ..entry }));
            }
            Rider::Hold(id, held) => {
                let entry = self.entry(*id)?;
                changes.push(TableChange::Put(SnapshotEntry { held: *held, ..entry }));
            }
            Rider::Delete(ids) | Rider::LetGo(ids) => {
                (changes, exclusive) = self.deletion(ids, root, before, superblock)?;
                done.freed = exclusive.iter().map(|(_, blocks)| blocks.len() as u64).sum();
            }
            Rider::Rollback(id) => superblock.parent = *id,
            Rider::Grow(blocks) => {
                let more = blocks - self.state.lock().used.blocks();
                grow_layout(&mut superblock.layout, more);
                if superblock.role == cairn_format::Role::Normal {
                    superblock.root.blocks = *blocks;
                }
            }
            Rider::Failover => superblock.role = cairn_format::Role::Normal,
            Rider::Log(_) => {}
        }
        if changes.is_empty() {
            return Ok((None, exclusive));
        }
        let volume = self.id();
        let table = self.state.lock().snapshots.prepare(changes, volume, &mut commit.label)?;
        Ok((Some(table), exclusive))
    }

    /// Deletes snapshots from the tree of descent: a block that one holds and none of its
    /// neighbours does is free. Neighbours are its parent, its children and its siblings: the
    /// children of a deleted snapshot become siblings, and may share blocks that their new parent
    /// lacks.
    fn deletion(
        &self,
        ids: &[SnapshotId],
        root: &Root,
        before: &Committed,
        superblock: &mut Superblock,
    ) -> Result<(Vec<TableChange>, Exclusive), VolumeError> {
        let maps = Maps { store: &self.store, redirects: &before.redirects };
        let mut entries: BTreeMap<SnapshotId, Option<SnapshotEntry>> = BTreeMap::new();
        let mut exclusive = Vec::new();
        let get = |entries: &BTreeMap<SnapshotId, Option<SnapshotEntry>>, state: &State, id: SnapshotId| {
            entries.get(&id).cloned().unwrap_or_else(|| state.snapshots.get(id).cloned())
        };
        let distinct: BTreeSet<SnapshotId> = ids.iter().copied().collect();
        for id in distinct {
            let (entry, mut neighbours, children) = {
                let state = self.state.lock();
                let Some(entry) = get(&entries, &state, id) else { continue };
                let parent = get(&entries, &state, entry.parent).map(|parent| parent.root);
                let below = |id: SnapshotId| -> Vec<SnapshotEntry> {
                    let changed = entries.values().flatten().filter(|e| e.parent == id).cloned();
                    let unchanged = state
                        .snapshots
                        .children_of(id)
                        .into_iter()
                        .filter(|child| !entries.contains_key(child))
                        .filter_map(|child| state.snapshots.get(child).cloned());
                    changed.chain(unchanged).collect()
                };
                let siblings = below(entry.parent).into_iter().filter(|sibling| sibling.id != id);
                let siblings = siblings.map(|sibling| sibling.root);
                (entry.clone(), parent.into_iter().chain(siblings).collect::<Vec<Root>>(), below(id))
            };
            neighbours.extend(children.iter().map(|child| child.root));
            if superblock.parent == id || superblock.parent == entry.parent {
                neighbours.push(*root);
            }
            if superblock.parent == id {
                superblock.parent = entry.parent;
            }
            let runs = maps.only_in(&entry.root, &neighbours)?;
            let blocks =
                runs.iter().flat_map(|(first, count)| (0..*count).map(|n| Vbn(first.0 + n))).collect();
            exclusive.push((id, blocks));
            for child in children {
                entries.insert(child.id, Some(SnapshotEntry { parent: entry.parent, ..child }));
            }
            entries.insert(id, None);
        }
        let changes = entries
            .into_iter()
            .map(|(id, entry)| match entry {
                Some(entry) => TableChange::Put(entry),
                None => TableChange::Remove(id),
            })
            .collect();
        Ok((changes, exclusive))
    }

    /// Writes both slots. The first is the commit.
    pub(crate) fn write_superblock(&self, superblock: &Superblock) -> Result<(), VolumeError> {
        let device = self.store.device();
        for address in [SUPERBLOCK_A, SUPERBLOCK_B] {
            write_slot(&**device, superblock, address)?;
            device.flush()?;
        }
        Ok(())
    }

    pub(crate) fn install(&self, commit: &mut Commit, sealed: Sealed) {
        let Sealed { superblock, frozen, table, exclusive, unheld, .. } = sealed;
        if frozen.is_some() {
            commit.left = None;
        }
        if commit.superblock.layout != superblock.layout {
            self.store.set_space(Space::new(&superblock.layout));
        }
        self.log.lock().committed(&superblock);
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if let Some(part) = &frozen {
            state.durable_order = state.durable_order.max(part.order);
            state.frozen = None;
            state.frozen_unlogged = Vec::new();
        }
        let blocks = self.store.space().blocks(cairn_format::SegmentKind::Space);
        if state.used.blocks() < blocks {
            state.used.grow(blocks);
        }
        let redirects = state.committed.redirects.clone();
        let before = state.switch(superblock.root, redirects);
        // From here on only the readers of a deleted snapshot hold its blocks. Blocks that the
        // active state releases later wait for those readers too.
        let pins: Vec<_> = exclusive.iter().filter_map(|(id, _)| state.pins.remove(id)).collect();
        state.readers.extend(pins.iter().filter_map(|pin| pin.upgrade()).map(|pin| Reader::of(&pin)));
        let abandoned = frozen
            .iter()
            .flat_map(|part| part.overlay.abandoned.iter().map(|vbn| (*vbn, part.overlay.generation)));
        let freed = unheld.iter().map(|pointer| (pointer.vbn, pointer.birth)).chain(abandoned);
        state.releases.add_born(&state.readers, freed);
        let deleted = exclusive.into_iter().flat_map(|(_, blocks)| blocks).collect();
        state.releases.add_unsorted(&state.readers, deleted);
        if let Some(table) = table {
            commit.label.release(&table.writes.freed);
            state.snapshots.apply(table);
        }
        if state.role != superblock.role {
            self.store.fresh().forget();
            // From now on blocks are allocated here, except those whose home the redirect map still
            // redirects. Usually there are none, as each image's commit drops redirects of blocks
            // that no root has. But a map that could not be read then counted as full, and may be
            // readable now.
            let redirected: Vec<Vbn> = state.committed.redirects.each().map(|(vbn, _)| vbn).collect();
            let free = redirected.into_iter().filter(|vbn| state.used.set(*vbn));
            state.stuck.extend(free);
        }
        state.role = superblock.role;
        state.cursor = superblock.cursor;
        state.parent = superblock.parent;
        state.next_snapshot = superblock.next_snapshot;
        commit.superblock = superblock;
        drop(before);
        state.settle_releases();
        self.consistency_points.fetch_add(1, Ordering::Relaxed);
        self.settled.notify_all();
    }
}

fn placed_blocks(overlay: &Overlay) -> impl Iterator<Item = BlockPointer> + '_ {
    overlay.files.values().flat_map(FileOverlay::settled).map(|(_, pointer)| pointer)
}

/// The map blocks in which these blocks have their bits. Neighbours mostly share theirs, and
/// collecting one for each would sort them all.
fn regions_of<'a>(vbns: impl Iterator<Item = &'a Vbn>) -> BTreeSet<u64> {
    let mut regions = BTreeSet::new();
    let mut last = None;
    for region in vbns.map(|vbn| vbn.0 / BITS_PER_MAP_BLOCK) {
        if last.replace(region) != Some(region) {
            regions.insert(region);
        }
    }
    regions
}
