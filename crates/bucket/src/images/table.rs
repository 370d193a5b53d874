//! The table of an image: the version, the length and the digest of each region.
//!
//! Entries are in chunks that tables share until one of them changes, so that the tables of
//! neighbouring images cost little more than one. A full TiB takes 8 MiB.

use std::collections::BTreeMap;
use std::sync::Arc;

use cairn_base::Checksum;

use super::codec::Version;

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
