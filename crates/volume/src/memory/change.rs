//! Changes of several files that happen together or not at all, for operations on the tree of
//! names.
//!
//! # Invariants
//! 1. A [`Change`] is accepted under one lock with one order. A generation ends before it or after
//!    it, and a flush covers all of it or nothing; a flush's records that have inodes hold together
//!    in the log. So after a crash at any moment either all of a change is present or none of it,
//!    and flushed changes are present.
//! 2. One caller at a time changes a file's blocks and its inode. The volume orders the changes and
//!    does not compare them: a caller that reads, changes and writes back an inode must keep other
//!    callers from doing so meanwhile.
//! 3. A number is given to one file, ever.
//!
//! # What the log takes
//! Two entries an inode and one a block, whatever was done to them since the last flush: a file
//! that was made, written and renamed costs its inode once. Nothing is logged before a flush asks
//! for it.

use std::collections::BTreeMap;
use std::sync::Arc;

use cairn_base::{FileId, Generation, Lba, Timestamp};
use cairn_device::Block;
use cairn_format::{FileKind, Inode, TreeRef};

use crate::error::VolumeError;
use crate::limits::{INODE_COST, PUNCH_BLOCKS};
use crate::locks::MutexGuard;
use crate::memory::file::blocks_of;
use crate::memory::overlay::Arrival;
use crate::memory::path::leaves_of;
use crate::memory::state::{State, cost_in};
use crate::volume::Volume;

/// Changes that belong together. Inodes come first, then holes, then blocks.
#[derive(Debug, Clone, Default)]
pub struct Change {
    /// The only active state that it may be made to.
    head: Option<Head>,
    inodes: Vec<Inode>,
    holes: Vec<(FileId, Lba, u64)>,
    blocks: Vec<(FileId, Arrival)>,
}

impl Change {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty change, based on this active state alone: after a rollback it is refused.
    pub fn of(head: Head) -> Self {
        Self { head: Some(head), ..Self::default() }
    }

    /// Makes a file, changes its attributes or length, or removes it. The cut part of a shortened
    /// file is a hole from then on. A removed file is gone with its blocks, at once or, if there
    /// are many, in the background. The inode's tree is ignored.
    pub fn put(&mut self, inode: Inode) {
        let tree = TreeRef::empty(blocks_of(inode.length_bytes));
        self.inodes.push(Inode { tree, ..inode });
    }

    /// Makes blocks of a file a hole.
    pub fn punch(&mut self, file: FileId, lba: Lba, count: u64) {
        if count > 0 {
            self.holes.push((file, lba, count));
        }
    }

    /// Writes a block of a file, within the length that it then has.
    pub fn write(&mut self, file: FileId, lba: Lba, block: Block) {
        self.blocks.push((file, Arrival::new(lba, block)));
    }

    /// True when it has no part.
    pub fn is_empty(&self) -> bool {
        self.inodes.is_empty() && self.holes.is_empty() && self.blocks.is_empty()
    }

    /// A consistency point began while it was put together, or while it waited.
    fn is_no_older_than(&mut self, began: Timestamp) {
        for inode in self.inodes.iter_mut().filter(|inode| inode.kind == FileKind::Node) {
            let changed_ns = &mut inode.attributes.changed_ns;
            *changed_ns = began.0.cast_signed().max(*changed_ns);
        }
    }

    /// The blocks of each file.
    pub(crate) fn by_file(&self) -> BTreeMap<FileId, Vec<u64>> {
        let mut files: BTreeMap<FileId, Vec<u64>> = BTreeMap::new();
        for (file, arrival) in &self.blocks {
            files.entry(*file).or_default().push(arrival.lba.0);
        }
        files
    }
}

/// Identifies the active state: it changes with a rollback, and with a mirror's new image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head(u64);

/// The inodes in the volume of the files that a change touches.
type Known = BTreeMap<FileId, Option<Inode>>;

impl Volume {
    /// The number for a new file. An unused number is lost, and has no other effect.
    ///
    /// # Errors
    /// The volume's states; an inode block that the file would share with others can't be read.
    pub fn next_file(self: &Arc<Self>) -> Result<FileId, VolumeError> {
        let (file, committed) = {
            let mut state = self.state.lock();
            state.check_writable()?;
            let file = FileId(state.next_file);
            state.next_file += 1;
            (file, state.committed.clone())
        };
        self.committed_inode(&committed, file)?;
        Ok(file)
    }

    /// The present active state. Knowledge about its files is valid until the state is replaced.
    pub fn head(&self) -> Head {
        Head(self.state.lock().heads)
    }

    /// Takes a change, whole or not at all. It is in memory when this returns, and durable after a
    /// flush.
    ///
    /// `frees` marks a change that frees space (a removal): it may use most of the reserve.
    /// Otherwise it waits for room as any write does.
    ///
    /// # Errors
    /// Always without any effect. [`VolumeError::NoSpace`]. [`VolumeError::NoSuchFile`] for a file
    /// that neither exists nor is made by the change. [`VolumeError::Damaged`] or
    /// [`VolumeError::Device`] for a node above the changed blocks. [`VolumeError::Refused`] for a
    /// block past a file's end. [`VolumeError::OtherHead`] when the change is based on another
    /// active state. The volume's other states.
    ///
    /// Change times in it are raised to at least the last consistency point. So a query for changes
    /// since a snapshot finds every change that is not in the snapshot.
    pub fn change(self: &Arc<Self>, mut change: Change, frees: bool) -> Result<(), VolumeError> {
        if change.is_empty() {
            return Ok(());
        }
        loop {
            let root = self.state.lock().committed.root.generation;
            let known = self.known(&change)?;
            let leaves = self.look_at_paths(&change, &known)?;
            let state = self.admit_change(&change, frees)?;
            if change.head.is_some_and(|Head(head)| head != state.heads) {
                return Err(VolumeError::OtherHead);
            }
            if is_still_so(&state, &known, root) {
                change.is_no_older_than(state.changes_from);
                return self.take_change(state, change, &known, leaves);
            }
            // A rollback, or the background, came in between.
        }
    }

    /// The same for a change that no caller waits for, such as a time of last read. Returns false,
    /// without any effect, if it would have to wait for room in the volume or in memory, or for a
    /// rollback.
    ///
    /// # Errors
    /// As [`Volume::change`], but for [`VolumeError::NoSpace`].
    pub fn change_at_once(self: &Arc<Self>, change: Change) -> Result<bool, VolumeError> {
        loop {
            let root = self.state.lock().committed.root.generation;
            let known = self.known(&change)?;
            let leaves = self.look_at_paths(&change, &known)?;
            let mut state = self.state.lock();
            state.check_writable()?;
            state.settle_releases();
            let cost = state.cost_of_change(&change, &change.by_file());
            if state.rolling_back
                || state.lacks_room.is_some()
                || !self.has_memory_for_change(&state)
                || !state.may_take(cost)
            {
                return Ok(false);
            }
            if change.head.is_some_and(|Head(head)| head != state.heads) {
                return Err(VolumeError::OtherHead);
            }
            if is_still_so(&state, &known, root) {
                return self.take_change(state, change, &known, leaves).map(|()| true);
            }
        }
    }

    /// The present inodes of all files that are concerned; none for those that the change makes.
    fn known(self: &Arc<Self>, change: &Change) -> Result<Known, VolumeError> {
        let mut known = Known::new();
        let made: Vec<FileId> = change.inodes.iter().map(|inode| inode.id).collect();
        let holes = change.holes.iter().map(|(file, ..)| *file);
        let blocks = change.blocks.iter().map(|(file, ..)| *file);
        for file in made.iter().copied().chain(holes).chain(blocks) {
            if known.contains_key(&file) {
                continue;
            }
            let inode = match self.inode(file) {
                Ok(inode) => Some(inode),
                Err(VolumeError::NoSuchFile(_)) if made.contains(&file) => None,
                Err(error) => return Err(error),
            };
            known.insert(file, inode);
        }
        Ok(known)
    }

    /// Reads the nodes above everything that changes (`path` has the reason). Returns the leaves
    /// that were read.
    fn look_at_paths(
        self: &Arc<Self>,
        change: &Change,
        known: &Known,
    ) -> Result<Vec<(FileId, Vec<u64>)>, VolumeError> {
        let old_length = |file: &FileId| known.get(file).copied().flatten().map(|inode| inode.tree.length);
        for inode in &change.inodes {
            let keep = if inode.removed { 0 } else { inode.tree.length };
            if let Some(old) = old_length(&inode.id).filter(|old| *old > keep) {
                self.check_range(inode.id, keep, old)?;
            }
        }
        for (file, lba, count) in change.holes.iter().filter(|(file, ..)| old_length(file).is_some()) {
            if *count <= PUNCH_BLOCKS {
                self.check_leaves(*file, &leaves_of(lba.0..lba.0 + count), true)?;
            } else {
                self.check_range(*file, lba.0, lba.0 + count)?;
            }
        }
        let mut looked = Vec::new();
        for (file, lbas) in change.by_file() {
            if old_length(&file).is_some() {
                let leaves = leaves_of(lbas.into_iter());
                self.check_leaves(file, &leaves, true)?;
                looked.push((file, leaves));
            }
        }
        Ok(looked)
    }

    fn admit_change(
        self: &Arc<Self>,
        change: &Change,
        frees: bool,
    ) -> Result<MutexGuard<'_, State>, VolumeError> {
        let by_file = change.by_file();
        if frees {
            let cost = self.state.lock().cost_of_change(change, &by_file);
            return self.admit_to_free(cost);
        }
        let blocks = change.blocks.len() as u64;
        let at_most = self.state.lock().most_beside_blocks(change, &by_file);
        self.admit_cost(blocks, at_most, |state| state.cost_of_change(change, &by_file))
    }

    fn take_change(
        &self,
        mut state: MutexGuard<'_, State>,
        change: Change,
        known: &Known,
        leaves: Vec<(FileId, Vec<u64>)>,
    ) -> Result<(), VolumeError> {
        let length = |file: &FileId| {
            let changed = change.inodes.iter().rev().find(|inode| inode.id == *file);
            changed.copied().or(known.get(file).copied().flatten()).map_or(0, |inode| inode.tree.length)
        };
        if change.blocks.iter().any(|(file, arrival)| arrival.lba.0 >= length(file)) {
            return Err(VolumeError::Refused("a block is past the end of the file"));
        }
        let is_ours = |inode: &Inode| matches!(inode.kind, FileKind::Node | FileKind::Extended);
        if !change.inodes.iter().all(is_ours) {
            return Err(VolumeError::Refused("only files of the tree of names are changed this way"));
        }
        state.order += 1;
        let order = state.order;
        for inode in &change.inodes {
            let old = known.get(&inode.id).copied().flatten();
            self.take_inode(&mut state, inode, old.as_ref(), order);
        }
        for (file, lba, count) in change.holes {
            state.open.punch(file, lba.0, count, order, true);
        }
        let mut blocks = change.blocks.into_iter().peekable();
        while let Some(&(file, ..)) = blocks.peek() {
            // Those of a file in a row are taken together: each call looks the file up and counts
            // its nodes.
            let of_file = std::iter::from_fn(|| blocks.next_if(|(other, ..)| *other == file));
            state.open.write(file, of_file.map(|(_, arrival)| arrival).collect(), order);
        }
        for (file, leaves) in leaves {
            state.note_leaves(file, &leaves);
        }
        self.note_change(&mut state);
        if self.wants_write_back(&state) {
            self.work.notify_one();
            self.arrivals.notify_one();
        }
        Ok(())
    }

    fn take_inode(&self, state: &mut State, inode: &Inode, old: Option<&Inode>, order: u64) {
        let tree = TreeRef { length: inode.tree.length, ..old.map_or(inode.tree, |old| old.tree) };
        let inode = Inode { tree, ..*inode };
        state.levels = state.levels.max(TreeRef::height_for(tree.length));
        let before = old.map_or(0, |old| old.tree.length);
        if inode.removed {
            // Few blocks go with the inode, in the generation's own merge. Many are freed in
            // rounds.
            let is_gone = before.max(tree.length) <= PUNCH_BLOCKS;
            if is_gone {
                state.open.punch(inode.id, 0, before.max(tree.length), order, false);
            } else {
                state.removed.push(inode.id);
                self.work.notify_one();
            }
            state.open.put_inode(inode, is_gone, order);
            return;
        }
        state.open.put_inode(inode, false, order);
        if tree.length < before {
            // It may grow again and must not show the cut part.
            state.open.punch(inode.id, tree.length, before - tree.length, order, true);
        }
    }
}

impl State {
    /// The maximum number of blocks that a change takes when it is committed, in addition to those
    /// of the map.
    pub(crate) fn cost_of_change(&self, change: &Change, by_file: &BTreeMap<FileId, Vec<u64>>) -> u64 {
        let levels = self.levels_of(&change.inodes);
        let blocks: u64 = by_file.values().map(|lbas| cost_in(levels, lbas.iter().copied())).sum();
        blocks + self.cost_beside_blocks(change, by_file)
    }

    /// The maximum number of blocks that a change takes in addition to [`State::cost_at_most`] of
    /// its blocks, without looking at their places.
    pub(crate) fn most_beside_blocks(&self, change: &Change, by_file: &BTreeMap<FileId, Vec<u64>>) -> u64 {
        // Trees that the change makes taller than any known one have longer paths than the state
        // has recorded.
        let taller = self.levels_of(&change.inodes) - self.levels;
        self.cost_beside_blocks(change, by_file) + change.blocks.len() as u64 * u64::from(taller)
    }

    /// The cost of a change without its blocks and the nodes above them: inodes, a path for each
    /// new length, and one on either side of each hole.
    fn cost_beside_blocks(&self, change: &Change, by_file: &BTreeMap<FileId, Vec<u64>>) -> u64 {
        let (inodes, holes) = (change.inodes.len() as u64, change.holes.len() as u64);
        let paths = (inodes + 2 * holes) * u64::from(self.levels_of(&change.inodes));
        (inodes + holes + by_file.len() as u64) * INODE_COST + paths
    }

    /// Levels of the tallest existing tree, or of the tallest that one of these makes.
    fn levels_of(&self, inodes: &[Inode]) -> u8 {
        let tallest = inodes.iter().map(|inode| TreeRef::height_for(inode.tree.length)).max();
        self.levels.max(tallest.unwrap_or(0))
    }
}

/// Whether the files are unchanged since they were read, in the root of that generation or later.
fn is_still_so(state: &State, known: &Known, root: Generation) -> bool {
    known.iter().all(|(file, inode)| match state.length_of(*file) {
        Some(now) => now == inode.map(|inode| inode.tree.length),
        // One that is in no memory was not changed since it was read, unless another root came:
        // that may be a rollback's.
        None => state.committed.root.generation == root,
    })
}
