//! The changes of one generation above the committed tree: per file, blocks and holes.
//!
//! A block goes through three states: *unplaced* (only in memory), *in flight* (it has a vbn, the
//! write is in progress) and *placed* (written at its final place, not yet durable). Orders count
//! arrivals. A flush covers a prefix of them, and the intent log is written in their order, so that
//! a replay restores the content that clients saw.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::BuildHasherDefault;

use std::array::from_fn;

use cairn_base::{Checksum, FileId, Generation, Lba, Vbn};
use cairn_device::Block;
use cairn_format::{BlockPointer, FANOUT, Inode, LogEntry, TreeRef};

use crate::limits::LONG_WRITE_BLOCKS;
use crate::memory::number_hash::{NumberHasher, NumberSet};
use crate::memory::slots::{Slot, Slots, Spot};
use crate::read::store::Keep;

/// An incoming block. The caller computes its checksum without a lock, while the processor still
/// has the bytes in its cache. Later, when they are written to their place, it has not.
#[derive(Debug, Clone)]
pub(crate) struct Arrival {
    pub(crate) lba: Lba,
    block: Block,
    checksum: Checksum,
}

impl Arrival {
    pub(crate) fn new(lba: Lba, block: Block) -> Self {
        Self { lba, checksum: Checksum::of(&block[..]), block }
    }
}

/// A block in flight to its place.
pub(crate) struct Flight {
    pub(crate) file: FileId,
    pub(crate) lba: u64,
    pub(crate) order: u64,
    pub(crate) block: Block,
    pub(crate) pointer: BlockPointer,
    /// Whether it stays in memory after it was written.
    pub(crate) keep: Keep,
}

impl Flight {
    /// The log entry for it.
    pub(crate) fn unlogged(&self) -> Unlogged {
        let (vbn, checksum) = (self.pointer.vbn, self.pointer.checksum);
        let entry = LogEntry::Write { file: self.file, lba: Lba(self.lba), vbn, checksum };
        Unlogged { order: self.order, entry }
    }
}

/// The state of a block in an overlay.
pub(crate) enum Seen {
    /// It is here, in memory.
    Block(Block),
    /// It is on the device.
    Pointer(BlockPointer),
    /// It reads as zeroes.
    Hole,
    /// Nothing: look below.
    Below,
}

/// Levels of the tallest tree that the format has.
const LEVELS_MAX: usize = 8;

/// One file's changes.
#[derive(Default, Debug)]
pub(crate) struct FileOverlay {
    /// Of all its blocks.
    birth: Generation,
    pub(crate) slots: Slots,
    /// Start and end of ranges that were punched; slots are newer than holes.
    pub(crate) holes: BTreeMap<u64, u64>,
    /// Leaves of the committed tree whose paths were read since the generation began.
    pub(crate) leaves: NumberSet,
    /// There is no change at or past this block.
    reach: u64,
}

impl FileOverlay {
    fn new(birth: Generation) -> Self {
        Self { birth, ..Self::default() }
    }

    #[inline]
    pub(crate) fn see(&self, lba: u64) -> Seen {
        match self.slots.get(lba) {
            Some(Slot::Unplaced { block, .. } | Slot::InFlight { block, .. }) => Seen::Block(block.clone()),
            Some(Slot::Placed(spot)) => Seen::Pointer(spot.pointer(self.birth)),
            None if self.is_hole(lba) => Seen::Hole,
            None => Seen::Below,
        }
    }

    /// Every block of a settled generation, in the order of their numbers.
    pub(crate) fn settled(&self) -> impl Iterator<Item = (u64, BlockPointer)> + Clone + '_ {
        self.slots.iter().map(|(lba, slot)| match slot {
            Slot::Placed(spot) => (lba, spot.pointer(self.birth)),
            Slot::Unplaced { .. } | Slot::InFlight { .. } => {
                unreachable!("a settled generation has placed all of its blocks")
            }
        })
    }

    fn is_hole(&self, lba: u64) -> bool {
        self.holes.range(..=lba).next_back().is_some_and(|(_, end)| lba < *end)
    }

    /// The most nodes that merging these changes can take, from the lowest level up: on each one
    /// for each change, and not more than there are below the reach.
    fn nodes(&self) -> [u64; LEVELS_MAX] {
        let changes = self.slots.len() as u64 + 2 * self.holes.len() as u64;
        from_fn(|level| (self.reach / FANOUT.saturating_pow(level as u32 + 1) + 1).min(changes))
    }

    /// Adds `start..end` to the holes, joined with those that it touches.
    fn add_hole(&mut self, mut start: u64, mut end: u64) {
        while let Some((&s, &e)) = self.holes.range(..=end).next_back() {
            if e < start {
                break;
            }
            start = start.min(s);
            end = end.max(e);
            self.holes.remove(&s);
        }
        self.holes.insert(start, end);
    }
}

/// Adds the nodes that a file's changes can need to the sums of all files.
fn count_nodes(sums: &mut [u64; LEVELS_MAX], before: [u64; LEVELS_MAX], after: [u64; LEVELS_MAX]) {
    for (sum, (before, after)) in sums.iter_mut().zip(before.into_iter().zip(after)) {
        *sum = *sum + after - before;
    }
}

/// Adds the block of a file's inode and the nodes above it: up to one that is there already, or to
/// the first of its level. The reserve covers the path above that one.
fn add_inode(nodes: &mut NumberSet, file: FileId) {
    let (mut index, mut level) = (Inode::place(file).0, 0);
    while nodes.insert(index * LEVELS_MAX as u64 + level) && (level == 0 || index > 0) {
        (index, level) = (index / FANOUT, level + 1);
    }
}

/// A log entry that is not in the log yet, by arrival.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unlogged {
    pub(crate) order: u64,
    pub(crate) entry: LogEntry,
}

/// Neighbours that came unplaced with one write, and wait for their places.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    file: FileId,
    lba: u64,
    count: u64,
    order: u64,
}

/// One generation's changes.
#[derive(Debug)]
pub(crate) struct Overlay {
    pub(crate) generation: Generation,
    pub(crate) files: HashMap<FileId, FileOverlay, BuildHasherDefault<NumberHasher>>,
    /// Created, changed and (as `None`) deleted inodes.
    pub(crate) inodes: BTreeMap<FileId, Option<Inode>>,
    /// Unplaced blocks in the order of their arrival. A block whose slot is gone or has another
    /// order is stale.
    queue: VecDeque<Waiting>,
    /// Unplaced blocks.
    pub(crate) unplaced: u64,
    /// Slots and holes in total: the changes that the consistency point will have to merge.
    pub(crate) changes: u64,
    unlogged: Vec<Unlogged>,
    /// The index of an inode's entry in `unlogged`: a later change replaces an entry that is not
    /// logged yet.
    unlogged_inodes: HashMap<FileId, usize>,
    /// The sum of [`FileOverlay::nodes`] over all files. Writers ask for it, and there may be many
    /// thousand files.
    node_sums: [u64; LEVELS_MAX],
    /// Blocks of the inode file that have inodes of these files, and the nodes above them. Numbers
    /// of files are never reused, so in an old volume each existing file may have its own path.
    inode_nodes: NumberSet,
    /// Blocks that this generation allocated and released again.
    pub(crate) abandoned: Vec<Vbn>,
    /// Batches of blocks in flight, by the numbers of their launches.
    pub(crate) flights: Vec<u64>,
}

/// Files whose changes are in no log record: only consistency points make them durable.
pub(crate) type IsLogged<'a> = &'a dyn Fn(FileId) -> bool;

impl Overlay {
    pub(crate) fn new(generation: Generation) -> Self {
        Self {
            generation,
            files: HashMap::default(),
            inodes: BTreeMap::new(),
            queue: VecDeque::new(),
            unplaced: 0,
            changes: 0,
            unlogged: Vec::new(),
            unlogged_inodes: HashMap::new(),
            node_sums: [0; LEVELS_MAX],
            inode_nodes: NumberSet::default(),
            abandoned: Vec::new(),
            flights: Vec::new(),
        }
    }

    /// True when a consistency point has nothing to do for it.
    pub(crate) fn is_empty(&self) -> bool {
        self.changes == 0 && self.inodes.is_empty() && self.abandoned.is_empty() && self.flights.is_empty()
    }

    /// Changes that are in memory: slots, holes and inodes.
    pub(crate) fn weight(&self) -> u64 {
        self.changes + self.inodes.len() as u64
    }

    /// True when the unplaced blocks came in short writes, or in writes that are not in order.
    pub(crate) fn is_scattered(&self) -> bool {
        self.queue.len() as u64 * LONG_WRITE_BLOCKS as u64 > self.unplaced
    }

    /// True while a batch that was launched before the one with this number is in flight.
    pub(crate) fn flies_before(&self, launch: u64) -> bool {
        self.flights.iter().any(|flying| *flying < launch)
    }

    /// The maximum number of blocks that committing these changes can take for nodes and inodes, in
    /// trees of `levels` levels.
    pub(crate) fn nodes(&self, levels: u8) -> u64 {
        let of_files: u64 = self.node_sums.iter().take(levels.into()).sum();
        // A length that changes cuts through one path of the file's tree.
        of_files + self.inode_nodes.len() as u64 + self.inodes.len() as u64 * u64::from(levels)
    }

    /// A file's part.
    pub(crate) fn file_mut(&mut self, file: FileId) -> &mut FileOverlay {
        self.files.entry(file).or_insert_with(|| {
            add_inode(&mut self.inode_nodes, file);
            FileOverlay::new(self.generation)
        })
    }

    /// Changes a file's part and keeps the sums.
    fn with_file<T>(&mut self, file: FileId, change: impl FnOnce(&mut FileOverlay) -> T) -> T {
        let overlay = self.file_mut(file);
        let before = overlay.nodes();
        let outcome = change(overlay);
        let after = overlay.nodes();
        count_nodes(&mut self.node_sums, before, after);
        outcome
    }

    /// Makes, changes or removes (`None`) an inode.
    pub(crate) fn set_inode(&mut self, file: FileId, inode: Option<Inode>) {
        self.inodes.insert(file, inode);
        add_inode(&mut self.inode_nodes, file);
    }

    /// Makes, changes or removes an inode, and logs it. It replaces the entry of an earlier change
    /// that no flush has taken yet.
    pub(crate) fn put_inode(&mut self, inode: Inode, is_gone: bool, order: u64) {
        self.set_inode(inode.id, (!is_gone).then_some(inode));
        let tree = TreeRef::empty(inode.tree.length);
        let entry = LogEntry::Inode(Inode { tree, removed: inode.removed || is_gone, ..inode });
        let unlogged = Unlogged { order, entry };
        match self.unlogged_inodes.get(&inode.id).and_then(|place| self.unlogged.get_mut(*place)) {
            Some(place) => place.entry = entry,
            None => {
                self.unlogged_inodes.insert(inode.id, self.unlogged.len());
                self.unlogged.push(unlogged);
            }
        }
    }

    /// The unlogged entries of arrivals up to `cut`.
    pub(crate) fn take_unlogged(&mut self, cut: u64) -> Vec<Unlogged> {
        // The remaining entries have other indexes from here on.
        self.unlogged_inodes.clear();
        let (due, later) =
            std::mem::take(&mut self.unlogged).into_iter().partition(|entry| entry.order <= cut);
        self.unlogged = later;
        due
    }

    /// Puts entries back that found no room in the log.
    pub(crate) fn put_back_unlogged(&mut self, mut due: Vec<Unlogged>) {
        due.append(&mut self.unlogged);
        self.unlogged_inodes.clear();
        self.unlogged = due;
    }

    /// Takes blocks of a file. A block that was unplaced already keeps its order, so that a flush
    /// which waits for the older write covers this one.
    pub(crate) fn write(&mut self, file: FileId, blocks: Vec<Arrival>, order: u64) {
        let keep = if blocks.len() < LONG_WRITE_BLOCKS { Keep::All } else { Keep::Nothing };
        let overlay = self.files.entry(file).or_insert_with(|| {
            add_inode(&mut self.inode_nodes, file);
            FileOverlay::new(self.generation)
        });
        let before = overlay.nodes();
        let FileOverlay { slots, reach, .. } = overlay;
        let mut blocks = blocks.into_iter().peekable();
        while let Some(first) = blocks.peek().map(|arrival| arrival.lba) {
            slots.change_chunk(first, |chunk| {
                let mut next = || blocks.next_if(|arrival| Slots::share_chunk(arrival.lba, first));
                while let Some(Arrival { lba: Lba(lba), block, checksum }) = next() {
                    match chunk.get_mut(lba) {
                        Some(Slot::Unplaced { block: old, checksum: sum, keep: kept, .. }) => {
                            (*old, *sum, *kept) = (block, checksum, keep);
                            continue;
                        }
                        Some(slot) => {
                            if let Slot::InFlight { spot, .. } | Slot::Placed(spot) = slot {
                                self.abandoned.push(spot.vbn);
                            }
                            *slot = Slot::Unplaced { block, checksum, order, keep };
                        }
                        None => {
                            *reach = (*reach).max(lba + 1);
                            self.changes += 1;
                            chunk.add(lba, Slot::Unplaced { block, checksum, order, keep });
                        }
                    }
                    self.unplaced += 1;
                    match self.queue.back_mut() {
                        Some(last)
                            if (last.file, last.order) == (file, order) && last.lba + last.count == lba =>
                        {
                            last.count += 1;
                        }
                        _ => self.queue.push_back(Waiting { file, lba, count: 1, order }),
                    }
                }
            });
        }
        // Once for all of them: counting costs as much as a block.
        count_nodes(&mut self.node_sums, before, overlay.nodes());
    }

    /// Makes `count` blocks from `lba` a hole.
    pub(crate) fn punch(&mut self, file: FileId, lba: u64, count: u64, order: u64, logged: bool) {
        let end = lba + count;
        let (gone, more_holes, fewer_holes) = self.with_file(file, |overlay| {
            overlay.reach = overlay.reach.max(end);
            let gone = overlay.slots.remove(lba, count);
            let before = overlay.holes.len() as u64;
            overlay.add_hole(lba, end);
            (gone, overlay.holes.len() as u64, before)
        });
        self.changes = self.changes + more_holes - fewer_holes - gone.len() as u64;
        for slot in gone {
            match slot {
                Slot::Unplaced { .. } => self.unplaced -= 1,
                Slot::InFlight { spot, .. } | Slot::Placed(spot) => self.abandoned.push(spot.vbn),
            }
        }
        if logged {
            self.unlogged.push(Unlogged { order, entry: LogEntry::Hole { file, lba: Lba(lba), count } });
        }
    }

    /// Takes up to `limit` unplaced blocks that arrived up to `order` out of the queue: their keys
    /// and content. Their slots stay unplaced until [`Overlay::launch`].
    pub(crate) fn next_unplaced(&mut self, limit: usize, order: u64) -> Vec<(FileId, u64)> {
        let mut keys = Vec::new();
        while let Some(next) = self.queue.front_mut().filter(|next| keys.len() < limit && next.order <= order)
        {
            let count = next.count.min((limit - keys.len()) as u64);
            let Waiting { file, lba, order: arrived, .. } = *next;
            (next.lba, next.count) = (lba + count, next.count - count);
            if next.count == 0 {
                self.queue.pop_front();
            }
            let Some(overlay) = self.files.get(&file) else { continue };
            let is_waiting = |lba: &u64| matches!(overlay.slots.get(*lba), Some(Slot::Unplaced { order, .. }) if *order == arrived);
            keys.extend((lba..lba + count).filter(is_waiting).map(|lba| (file, lba)));
        }
        // By place in the file, so that neighbours stay neighbours; a key can occur twice (written,
        // punched and written in one call).
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// Assigns an unplaced block its place; returns the block to write there. The key must come
    /// from [`Overlay::next_unplaced`].
    pub(crate) fn launch(&mut self, file: FileId, lba: u64, vbn: Vbn) -> Option<Flight> {
        let slot = self.files.get_mut(&file)?.slots.get_mut(lba)?;
        let Slot::Unplaced { block, checksum, order, keep } = slot else { return None };
        let pointer = BlockPointer { vbn, birth: self.generation, checksum: *checksum };
        let flight = Flight { file, lba, order: *order, block: block.clone(), pointer, keep: *keep };
        *slot = Slot::InFlight { block: flight.block.clone(), spot: Spot::of(pointer) };
        self.unplaced -= 1;
        Some(flight)
    }

    /// The write of a block has finished. Its log entry is due even when the slot has changed: a
    /// flush that was waiting for it must find it, or its replacement, in the log.
    pub(crate) fn land(
        &mut self,
        file: FileId,
        lba: u64,
        pointer: BlockPointer,
        order: u64,
        log: Option<IsLogged<'_>>,
    ) {
        if let Some(slot) = self.files.get_mut(&file).and_then(|overlay| overlay.slots.get_mut(lba))
            && matches!(slot, Slot::InFlight { spot, .. } if spot.vbn == pointer.vbn)
        {
            *slot = Slot::Placed(Spot::of(pointer));
        }
        if log.is_some_and(|is_logged| is_logged(file)) {
            let entry = LogEntry::Write { file, lba: Lba(lba), vbn: pointer.vbn, checksum: pointer.checksum };
            self.unlogged.push(Unlogged { order, entry });
        }
    }

    /// The write of a block found no room: it waits for a place again, under its old order. True
    /// when the place that it had is free again; one that the slot has given up since is among the
    /// abandoned.
    pub(crate) fn put_back(&mut self, flight: Flight) -> bool {
        let Flight { file, lba, order, block, pointer, keep } = flight;
        let slot = self.files.get_mut(&file).and_then(|overlay| overlay.slots.get_mut(lba));
        let Some(slot) = slot else { return false };
        if !matches!(slot, Slot::InFlight { spot, .. } if spot.vbn == pointer.vbn) {
            return false;
        }
        *slot = Slot::Unplaced { block, checksum: pointer.checksum, order, keep };
        self.unplaced += 1;
        let at = self.queue.partition_point(|waiting| waiting.order < order);
        self.queue.insert(at, Waiting { file, lba, count: 1, order });
        true
    }

    /// Whether a block of a file is placed there already.
    pub(crate) fn has_placed(&self, file: FileId, lba: u64, vbn: Vbn) -> bool {
        let slot = self.files.get(&file).and_then(|overlay| overlay.slots.get(lba));
        matches!(slot, Some(Slot::Placed(spot)) if spot.vbn == vbn)
    }

    /// Puts back a placed block, from the replay of the log.
    pub(crate) fn replay_write(&mut self, file: FileId, lba: u64, pointer: BlockPointer) {
        let replaced = self.with_file(file, |overlay| {
            overlay.reach = overlay.reach.max(lba + 1);
            overlay.slots.put(lba, Slot::Placed(Spot::of(pointer)))
        });
        match replaced {
            Some(Slot::Placed(old)) => self.abandoned.push(old.vbn),
            _ => self.changes += 1,
        }
    }
}
