//! The table of an image: the version, the length and the digest of each region.
//!
//! Entries are in chunks that tables share until one of them changes, so that the tables of
//! neighbouring images cost little more than one. A full TiB takes 8 MiB.

use std::collections::BTreeMap;
use std::sync::Arc;

use cairn_base::Checksum;

use super::codec::Version;
use super::region_set::RegionSet;

/// Regions in a chunk. Fewer waste pointers, more waste room where few regions are used.
const CHUNK: usize = 16;

/// The object of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Entry {
    pub(super) at: Version,
    /// Bytes of the object; 0 if the image has no block in the region.
    pub(super) length: u32,
    /// The digest of its header.
    pub(super) digest: Checksum,
}

impl Entry {
    pub(super) const NONE: Entry =
        Entry { at: Version { epoch: 0, number: 0 }, length: 0, digest: Checksum([0; 16]) };

    pub(super) fn is_there(&self) -> bool {
        self.length > 0
    }
}

type Chunk = [Entry; CHUNK];

/// See the module.
#[derive(Debug, Clone, Default)]
pub(super) struct Table {
    chunks: BTreeMap<u32, Arc<Chunk>>,
}

fn place(region: u32) -> (u32, usize) {
    (region / CHUNK as u32, region as usize % CHUNK)
}

impl Table {
    pub(super) fn get(&self, region: u32) -> Option<Entry> {
        let (chunk, at) = place(region);
        self.chunks.get(&chunk)?.get(at).copied().filter(Entry::is_there)
    }

    /// Sets an entry, and returns the one before.
    pub(super) fn set(&mut self, region: u32, entry: Entry) -> Option<Entry> {
        let (number, at) = place(region);
        if !entry.is_there() && !self.chunks.contains_key(&number) {
            return None;
        }
        let chunk = self.chunks.entry(number).or_insert_with(|| Arc::new([Entry::NONE; CHUNK]));
        let slot = Arc::make_mut(chunk).get_mut(at)?;
        let before = std::mem::replace(slot, if entry.is_there() { entry } else { Entry::NONE });
        if chunk.iter().all(|entry| !entry.is_there()) {
            self.chunks.remove(&number);
        }
        Some(before).filter(Entry::is_there)
    }

    /// Sets all entries of another table. `report` gets each region with its entry before and the
    /// new one. Chunks that only the other one has are shared with it.
    pub(super) fn merge(&mut self, other: &Table, report: &mut dyn FnMut(u32, Option<Entry>, Entry)) {
        for (number, chunk) in &other.chunks {
            let first = number * CHUNK as u32;
            let there = (first..).zip(chunk.iter().copied()).filter(|(_, entry)| entry.is_there());
            if self.chunks.contains_key(number) {
                for (region, entry) in there {
                    let before = self.set(region, entry);
                    report(region, before, entry);
                }
            } else {
                there.for_each(|(region, entry)| report(region, None, entry));
                self.chunks.insert(*number, chunk.clone());
            }
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, Entry)> + '_ {
        self.chunks.iter().flat_map(|(number, chunk)| {
            let first = number * CHUNK as u32;
            (first..).zip(chunk.iter().copied()).filter(|(_, entry)| entry.is_there())
        })
    }

    /// The objects of this table that neither of the others names.
    pub(super) fn without(&self, one: Option<&Table>, other: Option<&Table>) -> Vec<(u32, Version)> {
        let mut only = Vec::new();
        for (number, chunk) in &self.chunks {
            let theirs = [one, other].map(|table| table.and_then(|table| table.chunks.get(number)));
            if theirs.iter().flatten().any(|their| Arc::ptr_eq(their, chunk)) {
                continue;
            }
            for (at, entry) in chunk.iter().enumerate().filter(|(_, entry)| entry.is_there()) {
                let names = |their: &&Arc<Chunk>| their.get(at).is_some_and(|their| their.at == entry.at);
                if !theirs.iter().flatten().any(names) {
                    only.push((number * CHUNK as u32 + at as u32, entry.at));
                }
            }
        }
        only
    }

    /// Regions, and bytes of their objects.
    pub(super) fn totals(&self) -> (u32, u64) {
        self.iter().fold((0, 0), |(count, bytes), (_, entry)| (count + 1, bytes + u64::from(entry.length)))
    }

    /// Bytes of memory, about: chunks, counts of their owners, and nodes of the tree that are two
    /// thirds full.
    pub(super) fn memory(&self) -> u64 {
        self.chunks.len() as u64 * (size_of::<Chunk>() as u64 + 16 + 24)
    }
}

/// Changes of a table. A TiB of new regions takes 8 MiB, as the table does.
#[derive(Debug, Clone, Default)]
pub(super) struct Delta {
    /// Regions with another object.
    pub(super) put: Table,
    /// Regions that have lost their last block.
    pub(super) gone: RegionSet,
    count: usize,
}

impl Delta {
    pub(super) fn insert(&mut self, region: u32, entry: Entry) {
        let is_new = !self.contains(region);
        match entry.is_there() {
            true => {
                self.gone.remove(region);
                self.put.set(region, entry);
            }
            false => {
                self.put.set(region, Entry::NONE);
                self.gone.insert(region);
            }
        }
        self.count += usize::from(is_new);
    }

    pub(super) fn get(&self, region: u32) -> Option<Entry> {
        self.put.get(region).or_else(|| self.gone.contains(region).then_some(Entry::NONE))
    }

    pub(super) fn contains(&self, region: u32) -> bool {
        self.get(region).is_some()
    }

    /// The number of changed regions.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// All of them, in order.
    pub(super) fn to_vec(&self) -> Vec<(u32, Entry)> {
        let gone = self.gone.iter().map(|region| (region, Entry::NONE));
        let mut all: Vec<(u32, Entry)> = self.put.iter().chain(gone).collect();
        all.sort_unstable_by_key(|(region, _)| *region);
        all
    }
}

impl Extend<(u32, Entry)> for Delta {
    fn extend<T: IntoIterator<Item = (u32, Entry)>>(&mut self, entries: T) {
        entries.into_iter().for_each(|(region, entry)| self.insert(region, entry));
    }
}
