//! The tables of the label area, in memory and as they are written: snapshots and redirects.
//!
//! A table block is never overwritten while a superblock names it. A change is prepared (its blocks
//! get new addresses and are written), the superblock commits it, and only then is it applied in
//! memory and the old addresses are free.
//!
//! A volume cannot be opened without its tables. So each block has a copy half of the label space
//! away, as long as no other block needs that place. Nothing relies on the copy, and it is trusted
//! only if it matches the checksum that names the block. Opening reads both, and rewrites a missing
//! or damaged one.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use cairn_base::{BLOCK_SIZE, Checksum, SnapshotId, VolumeId};
use cairn_device::{Block, BlockMut, Device, Operation, Segments};
use cairn_format::{
    FormatError, IndexBlock, LabelPointer, Layout, POINTERS_PER_INDEX, RedirectBlock, SNAPSHOTS_PER_BLOCK,
    SnapshotBlock, SnapshotEntry, Structure, TableRef,
};

use crate::commit::space::Redirects;
use crate::error::VolumeError;

/// Free and used blocks of the label space.
pub(crate) struct LabelSpace {
    start: u64,
    used: Vec<bool>,
    cursor: usize,
    free: usize,
}

impl LabelSpace {
    pub(crate) fn new(layout: &Layout) -> Self {
        let blocks = layout.label_blocks as usize;
        Self { start: layout.label_start, used: vec![false; blocks], cursor: 0, free: blocks }
    }

    /// True when any one change of a table fits: it takes a table block and an index block, and
    /// deleting with many children some more.
    pub(crate) fn has_room(&self) -> bool {
        self.free >= 64
    }

    /// Blocks that no table uses.
    pub(crate) fn free(&self) -> usize {
        self.free
    }

    /// A free block, preferably one whose other place is free as well.
    fn allocate(&mut self) -> Result<u64, VolumeError> {
        if self.free == 0 {
            return Err(VolumeError::TableFull);
        }
        let from_cursor = (0..self.used.len()).map(|n| (self.cursor + n) % self.used.len());
        let mut free = from_cursor.filter(|n| !self.used[*n]);
        let first = free.next().ok_or(VolumeError::TableFull)?;
        let has_place = |n: &usize| self.other_place(*n).is_some_and(|other| !self.used[other]);
        self.cursor = std::iter::once(first).chain(free).find(has_place).unwrap_or(first);
        self.used[self.cursor] = true;
        self.free -= 1;
        Ok(self.start + self.cursor as u64)
    }

    /// The place of the copy of a block, and the reverse. The last of an odd number has none.
    fn other_place(&self, index: usize) -> Option<usize> {
        let half = self.used.len() / 2;
        match index {
            _ if index < half => Some(index + half),
            _ if index < 2 * half => Some(index - half),
            _ => None,
        }
    }

    /// Where the copy of a block is, if no block needs that place.
    fn place_of_copy(&self, address: u64) -> Option<u64> {
        let index = usize::try_from(address.checked_sub(self.start)?).ok()?;
        let other = self.other_place(index).filter(|other| !self.used[*other])?;
        Some(self.start + other as u64)
    }

    fn mark(&mut self, address: u64) -> Result<(), VolumeError> {
        let damaged = FormatError::Field { structure: Structure::LabelIndex, field: "address" };
        let index = address.checked_sub(self.start).map(|n| n as usize);
        match index.and_then(|n| self.used.get_mut(n)) {
            Some(used) if !*used => {
                *used = true;
                self.free -= 1;
                Ok(())
            }
            _ => Err(VolumeError::Label(damaged)),
        }
    }

    pub(crate) fn release(&mut self, addresses: &[u64]) {
        for address in addresses.iter().filter(|address| **address != 0) {
            let used = &mut self.used[(address - self.start) as usize];
            assert!(*used, "only a label block in use is released");
            *used = false;
            self.free += 1;
        }
    }
}

/// Blocks that a change of a table writes, and those that it replaces.
#[derive(Default)]
pub(crate) struct TableWrites {
    pub(crate) blocks: Vec<(u64, Block)>,
    /// Addresses that are free once the change is committed.
    pub(crate) freed: Vec<u64>,
}

impl TableWrites {
    /// Where the new blocks are: to be released when the change is not committed.
    pub(crate) fn addresses(&self) -> Vec<u64> {
        self.blocks.iter().map(|(address, _)| *address).collect()
    }

    /// With the copies: the required places are known now.
    pub(crate) fn operations(&self, label: &LabelSpace) -> Vec<Operation> {
        let places = self.blocks.iter().flat_map(|(address, block)| {
            let copy = label.place_of_copy(*address);
            std::iter::once(*address).chain(copy).map(move |address| (address, block))
        });
        places
            .map(|(address, block)| {
                Operation::write(address * BLOCK_SIZE as u64, Segments::from(block.clone()))
            })
            .collect()
    }

    /// Adds a block in the place of `old`. After an error nothing of the label area is taken, and
    /// the change is to be dropped.
    pub(crate) fn add(
        &mut self,
        label: &mut LabelSpace,
        old: LabelPointer,
        fill: impl FnOnce(&mut [u8; BLOCK_SIZE], u64),
    ) -> Result<LabelPointer, VolumeError> {
        let address = match label.allocate() {
            Ok(address) => address,
            Err(error) => {
                // Nothing is committed: the blocks taken so far are released.
                label.release(&self.addresses());
                return Err(error);
            }
        };
        let mut bytes = BlockMut::zeroed();
        fill(&mut bytes, address);
        let block = bytes.freeze();
        let checksum = Checksum::of(&block[..]);
        self.blocks.push((address, block));
        self.freed.push(old.address);
        Ok(LabelPointer { address, checksum })
    }
}

/// Reads tables at their places, and otherwise their copies.
pub(crate) struct TableReader<'a> {
    device: &'a dyn Device,
    volume: VolumeId,
    pub(crate) label: LabelSpace,
    /// The blocks that were read, by their addresses, and whether a copy had to serve.
    read: Vec<(u64, Block, bool)>,
    /// Of these the ones that have no copy either.
    lost: Vec<u64>,
}

impl<'a> TableReader<'a> {
    pub(crate) fn new(device: &'a dyn Device, volume: VolumeId, layout: &Layout) -> Self {
        Self { device, volume, label: LabelSpace::new(layout), read: Vec::new(), lost: Vec::new() }
    }

    fn read_at(&self, address: u64, checksum: Checksum, what: Structure) -> Result<Block, VolumeError> {
        let data = self.device.read(address.saturating_mul(BLOCK_SIZE as u64), BLOCK_SIZE as u32)?;
        let mut bytes = BlockMut::zeroed();
        data.copy_to(&mut bytes[..]);
        match Checksum::of(&bytes[..]) == checksum {
            true => Ok(bytes.freeze()),
            false => Err(VolumeError::Label(FormatError::Checksum(what))),
        }
    }

    fn block(
        &mut self,
        LabelPointer { address, checksum }: LabelPointer,
        what: Structure,
    ) -> Result<Block, VolumeError> {
        self.label.mark(address)?;
        let own = self.read_at(address, checksum, what);
        let is_lost = own.is_err();
        let block = own.or_else(|error| {
            // It is not known yet which places blocks need, and need not be: the checksum
            // identifies the block.
            let index = (address - self.label.start) as usize;
            let other = self.label.other_place(index).map(|other| self.label.start + other as u64);
            let copy = other.and_then(|other| self.read_at(other, checksum, what).ok());
            copy.ok_or(error)
        });
        if block.is_err() {
            self.lost.push(address);
        }
        let block = block?;
        if is_lost {
            tracing::error!(address, ?what, "a block of a table is damaged; its copy is used");
        }
        self.read.push((address, block.clone(), is_lost));
        Ok(block)
    }

    fn pointers(&mut self, table: &TableRef) -> Result<Vec<LabelPointer>, VolumeError> {
        let mut pointers = Vec::new();
        for index in &table.indexes {
            let block = self.block(*index, Structure::LabelIndex)?;
            pointers
                .extend(IndexBlock::parse(&block, self.volume, index.address).map_err(VolumeError::Label)?);
        }
        Ok(pointers)
    }

    /// Reads a table for nothing but whether it can be read. Which blocks of it are damaged, and
    /// whether they have a copy.
    pub(crate) fn look_at(&mut self, table: &TableRef, what: Structure) {
        let mut damaged = Vec::new();
        for index in &table.indexes {
            let Ok(block) = self.block(*index, Structure::LabelIndex) else { continue };
            let Ok(pointers) = IndexBlock::parse(&block, self.volume, index.address) else {
                damaged.push(index.address);
                continue;
            };
            for pointer in pointers {
                // It counts itself.
                let _ = self.block(pointer, what);
            }
        }
        self.lost.extend(damaged);
    }

    /// The blocks that could not be read at their places: those with a copy, and those without.
    pub(crate) fn damaged(&self) -> (Vec<u64>, Vec<u64>) {
        let of_copies = self.read.iter().filter(|(_, _, is_lost)| *is_lost).map(|(address, ..)| *address);
        (of_copies.collect(), self.lost.clone())
    }

    /// After all tables were read: the blocks and copies to write, by their offsets on the device,
    /// so that each exists twice again.
    pub(crate) fn end(self) -> (LabelSpace, Vec<(u64, Block)>) {
        let mut missing = Vec::new();
        for (address, block, is_lost) in &self.read {
            let offset = |address: u64| address * BLOCK_SIZE as u64;
            if *is_lost {
                missing.push((offset(*address), block.clone()));
            }
            let Some(copy) = self.label.place_of_copy(*address) else { continue };
            let there = self.read_at(copy, Checksum::of(&block[..]), Structure::LabelIndex);
            if there.is_err() {
                missing.push((offset(copy), block.clone()));
            }
        }
        (self.label, missing)
    }
}

/// A change of the snapshot table.
#[derive(Debug, Clone)]
pub(crate) enum TableChange {
    /// Adds the entry or replaces the one with its id.
    Put(SnapshotEntry),
    /// Removes an entry.
    Remove(SnapshotId),
}

type Slots = [Option<SnapshotEntry>; SNAPSHOTS_PER_BLOCK];

/// The snapshots of a volume.
#[derive(Default)]
pub(crate) struct SnapshotTable {
    blocks: Vec<(Arc<Slots>, LabelPointer)>,
    indexes: Vec<LabelPointer>,
    places: HashMap<SnapshotId, (usize, usize)>,
    names: HashMap<String, SnapshotId>,
    /// (parent, child)
    children: BTreeSet<(SnapshotId, SnapshotId)>,
    free: BTreeSet<(usize, usize)>,
}

/// A change that is written but not committed.
pub(crate) struct PreparedTable {
    changes: Vec<TableChange>,
    blocks: Vec<(usize, Arc<Slots>, LabelPointer)>,
    indexes: Vec<LabelPointer>,
    pub(crate) table: TableRef,
    pub(crate) writes: TableWrites,
}

impl SnapshotTable {
    pub(crate) fn load(reader: &mut TableReader<'_>, table: &TableRef) -> Result<Self, VolumeError> {
        let mut loaded = Self { indexes: table.indexes.clone(), ..Self::default() };
        for pointer in reader.pointers(table)? {
            let block = reader.block(pointer, Structure::SnapshotTable)?;
            let slots =
                SnapshotBlock::parse(&block, reader.volume, pointer.address).map_err(VolumeError::Label)?;
            let number = loaded.blocks.len();
            for (slot, entry) in slots.iter().enumerate() {
                loaded.note(number, slot, entry.as_ref());
            }
            loaded.blocks.push((Arc::new(slots), pointer));
        }
        Ok(loaded)
    }

    fn note(&mut self, block: usize, slot: usize, entry: Option<&SnapshotEntry>) {
        match entry {
            Some(entry) => {
                self.free.remove(&(block, slot));
                self.places.insert(entry.id, (block, slot));
                self.names.insert(entry.name.clone(), entry.id);
                self.children.insert((entry.parent, entry.id));
            }
            None => {
                self.free.insert((block, slot));
            }
        }
    }

    fn forget(&mut self, entry: &SnapshotEntry) {
        self.places.remove(&entry.id);
        self.names.remove(&entry.name);
        self.children.remove(&(entry.parent, entry.id));
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    pub(crate) fn get(&self, id: SnapshotId) -> Option<&SnapshotEntry> {
        let (block, slot) = self.places.get(&id)?;
        self.blocks[*block].0[*slot].as_ref()
    }

    pub(crate) fn by_name(&self, name: &str) -> Option<SnapshotId> {
        self.names.get(name).copied()
    }

    /// All entries, by id.
    pub(crate) fn all(&self) -> Vec<SnapshotEntry> {
        let mut all: Vec<_> = self.iter().cloned().collect();
        all.sort_unstable_by_key(|entry| entry.id);
        all
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &SnapshotEntry> {
        self.blocks.iter().flat_map(|(slots, _)| slots.iter().flatten())
    }

    pub(crate) fn children_of(&self, id: SnapshotId) -> Vec<SnapshotId> {
        self.children
            .range((id, SnapshotId(0))..=(id, SnapshotId(u64::MAX)))
            .map(|(_, child)| *child)
            .collect()
    }

    /// The blocks of the table that deleting a snapshot changes: its own, and those of its
    /// children, which get another parent.
    pub(crate) fn touched_by_removal(&self, id: SnapshotId) -> impl Iterator<Item = usize> + '_ {
        let ids = std::iter::once(id).chain(self.children_of(id));
        ids.filter_map(|id| self.places.get(&id)).map(|(block, _)| *block)
    }

    /// Gives the changed blocks new addresses. `changes` name each snapshot at most once.
    pub(crate) fn prepare(
        &self,
        changes: Vec<TableChange>,
        volume: VolumeId,
        label: &mut LabelSpace,
    ) -> Result<PreparedTable, VolumeError> {
        let mut touched: HashMap<usize, Slots> = HashMap::new();
        let mut free = self.free.iter().copied();
        let mut appended = self.blocks.len() * SNAPSHOTS_PER_BLOCK;
        let mut entries = self.len() as u64;
        for change in &changes {
            let (id, entry) = match change {
                TableChange::Put(entry) => (entry.id, Some(entry.clone())),
                TableChange::Remove(id) => (*id, None),
            };
            let place = match (self.places.get(&id), &entry) {
                (Some(place), _) => Some(*place),
                (None, Some(_)) => free.next(),
                (None, None) => continue,
            };
            match (self.places.contains_key(&id), &entry) {
                (true, None) => entries -= 1,
                (false, Some(_)) => entries += 1,
                _ => {}
            }
            let (block, slot) = place.unwrap_or_else(|| {
                appended += 1;
                ((appended - 1) / SNAPSHOTS_PER_BLOCK, (appended - 1) % SNAPSHOTS_PER_BLOCK)
            });
            let slots = touched.entry(block).or_insert_with(|| match self.blocks.get(block) {
                Some((slots, _)) => (**slots).clone(),
                None => [const { None }; SNAPSHOTS_PER_BLOCK],
            });
            slots[slot] = entry;
        }
        let mut writes = TableWrites::default();
        let mut pointers: Vec<LabelPointer> = self.blocks.iter().map(|(_, pointer)| *pointer).collect();
        let mut numbers: Vec<usize> = touched.keys().copied().collect();
        numbers.sort_unstable();
        let mut blocks = Vec::new();
        for number in &numbers {
            let slots = touched.remove(number).unwrap_or([const { None }; SNAPSHOTS_PER_BLOCK]);
            let old = pointers.get(*number).copied().unwrap_or_default();
            let pointer = writes
                .add(label, old, |bytes, address| SnapshotBlock::write(bytes, volume, address, &slots))?;
            match pointers.get_mut(*number) {
                Some(place) => *place = pointer,
                None => pointers.push(pointer),
            }
            blocks.push((*number, Arc::new(slots), pointer));
        }
        let mut indexes = self.indexes.clone();
        if pointers.len().div_ceil(POINTERS_PER_INDEX) > TableRef::INDEXES_MAX {
            label.release(&writes.addresses());
            return Err(VolumeError::TableFull);
        }
        for (number, chunk) in pointers.chunks(POINTERS_PER_INDEX).enumerate() {
            let range = number * POINTERS_PER_INDEX..(number + 1) * POINTERS_PER_INDEX;
            if !numbers.iter().any(|touched| range.contains(touched)) {
                continue;
            }
            let old = indexes.get(number).copied().unwrap_or_default();
            let pointer =
                writes.add(label, old, |bytes, address| IndexBlock::write(bytes, volume, address, chunk))?;
            match indexes.get_mut(number) {
                Some(place) => *place = pointer,
                None => indexes.push(pointer),
            }
        }
        let table = TableRef { entries, indexes: indexes.clone() };
        Ok(PreparedTable { changes, blocks, indexes, table, writes })
    }

    /// Makes a committed change visible.
    pub(crate) fn apply(&mut self, prepared: PreparedTable) {
        for change in &prepared.changes {
            let id = match change {
                TableChange::Put(entry) => entry.id,
                TableChange::Remove(id) => *id,
            };
            if let Some(old) = self.get(id).cloned() {
                self.forget(&old);
            }
        }
        for (number, slots, pointer) in prepared.blocks {
            for (slot, entry) in slots.iter().enumerate() {
                self.note(number, slot, entry.as_ref());
            }
            match self.blocks.get_mut(number) {
                Some(place) => *place = (slots, pointer),
                None => self.blocks.push((slots, pointer)),
            }
        }
        self.indexes = prepared.indexes;
    }

    /// A table of exactly `entries` that replaces this one whole (a destination's commit).
    pub(crate) fn replaced_by(
        &self,
        entries: Vec<SnapshotEntry>,
        volume: VolumeId,
        label: &mut LabelSpace,
    ) -> Result<PreparedTable, VolumeError> {
        let keep: BTreeSet<SnapshotId> = entries.iter().map(|entry| entry.id).collect();
        let gone = self.iter().filter(|entry| !keep.contains(&entry.id)).map(|e| TableChange::Remove(e.id));
        let changed = entries.iter().filter(|entry| self.get(entry.id) != Some(*entry));
        let changes = gone.chain(changed.cloned().map(TableChange::Put)).collect();
        self.prepare(changes, volume, label)
    }
}

/// Reads the redirect map.
pub(crate) fn load_redirects(
    reader: &mut TableReader<'_>,
    table: &TableRef,
) -> Result<(Redirects, Vec<u64>), VolumeError> {
    let mut redirects = Redirects::default();
    let mut addresses: Vec<u64> = table.indexes.iter().map(|pointer| pointer.address).collect();
    for pointer in reader.pointers(table)? {
        let block = reader.block(pointer, Structure::RedirectMap)?;
        let runs =
            RedirectBlock::parse(&block, reader.volume, pointer.address).map_err(VolumeError::Label)?;
        runs.into_iter().for_each(|run| redirects.insert(run));
        addresses.push(pointer.address);
    }
    Ok((redirects, addresses))
}
