//! The LPMap: which versions of which blocks are where, in order of block and time.
//!
//! Sorted runs of 24-byte entries under a tree of their first keys. A run grows by a few entries at
//! a time and is cut in two when it is full, so that the whole stays below 32 bytes a version
//! however versions come. Lookups are one descent and one binary search.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use cairn_format::history::{EntryKind, HistoryEntry, PLACE_UNIT};

/// Entries in a run at most.
const RUN: usize = 512;
/// Entries by which a run grows.
const GROWTH: usize = 32;
/// Parts of the device that an opening sorts one by one: those of ten million versions have 60 KB
/// each, which fits the processor's cache.
const PARTS_BITS: u32 = 12;
const PARTS: usize = 1 << PARTS_BITS;

/// A version, or a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) lba: u64,
    pub(crate) time: u64,
    pub(crate) kind: EntryKind,
    /// In units of 512 bytes from the start of the store.
    pub(crate) place: u64,
    /// The checksum of the stored bytes.
    pub(crate) crc: u32,
    /// Units that a delta takes there; 0: the content is stored whole.
    pub(crate) units: u8,
}

/// Order of versions: block, time, undo before the rest.
pub(crate) type Key = (u64, u64, u8);

impl Version {
    /// The version of an entry; `base`: the start of its segment, in units of places.
    pub(crate) fn of(entry: &HistoryEntry, base: u64) -> Self {
        let HistoryEntry { lba, time, kind, place, crc, length, reduced } = *entry;
        let units = if reduced { (u64::from(length) / PLACE_UNIT) as u8 } else { 0 };
        Self { lba, time, kind, place: base + u64::from(place), crc, units }
    }

    pub(crate) fn key(&self) -> Key {
        key_of(self.lba, self.time, self.kind)
    }

    pub(crate) fn is_redo(&self) -> bool {
        matches!(self.kind, EntryKind::Redo | EntryKind::RedoZero | EntryKind::RedoLost)
    }

    pub(crate) fn is_undo(&self) -> bool {
        is_undo(self.kind)
    }

    pub(crate) fn is_lost(&self) -> bool {
        matches!(self.kind, EntryKind::UndoLost | EntryKind::RedoLost)
    }

    /// False for a version that a window starting at `cut` has passed. Content lost from there on
    /// is lost for the origin too.
    pub(crate) fn counts(&self, cut: u64) -> bool {
        let at_the_cut = self.lba == cairn_format::history::NO_LBA || self.kind == EntryKind::RedoLost;
        self.time > cut || at_the_cut && self.time == cut
    }
}

/// The key of a version.
pub(crate) fn key_of(lba: u64, time: u64, kind: EntryKind) -> Key {
    (lba, time, rank(kind))
}

fn rank(kind: EntryKind) -> u8 {
    u8::from(!is_undo(kind))
}

fn is_undo(kind: EntryKind) -> bool {
    matches!(kind, EntryKind::Undo | EntryKind::UndoZero | EntryKind::UndoLost)
}

/// lba: 40 bits, place: 40, crc: 32, units: 8, kind: 8, time: 64.
#[derive(Clone, Copy)]
struct Packed {
    time: u64,
    lba_place: u64,
    place_kind_crc: u64,
}

const _: () = assert!(size_of::<Packed>() == 24);

impl Packed {
    fn new(version: &Version) -> Self {
        Self {
            time: version.time,
            lba_place: version.lba << 24 | version.place >> 16,
            place_kind_crc: (version.place & 0xffff) << 48
                | u64::from(version.units) << 40
                | u64::from(version.kind.code()) << 32
                | u64::from(version.crc),
        }
    }

    fn version(self) -> Version {
        let kind = EntryKind::of((self.place_kind_crc >> 32) as u8).unwrap_or(EntryKind::Gone);
        Version {
            lba: self.lba_place >> 24,
            time: self.time,
            kind,
            place: (self.lba_place & 0xff_ffff) << 16 | self.place_kind_crc >> 48,
            crc: self.place_kind_crc as u32,
            units: (self.place_kind_crc >> 40) as u8,
        }
    }

    fn key(self) -> Key {
        self.version().key()
    }

    /// The order of keys; they seldom differ only in their kind.
    fn order(&self, other: &Self) -> Ordering {
        let (mine, its) = ((self.lba_place >> 24, self.time), (other.lba_place >> 24, other.time));
        mine.cmp(&its).then_with(|| self.key().cmp(&other.key()))
    }
}

/// Versions on their way from the log into an index, in the order of the log. Inserting each one
/// alone would have to find its run, and move half of it, in memory outside of the processor's
/// caches. Here they are distributed over parts of the device, each of which is sorted once.
/// Meanwhile they take at most a quarter more room than in the index.
pub(crate) struct Loading {
    /// Bits of a block's number that do not count for its part.
    shift: u32,
    /// By block. Marks come after all blocks.
    parts: Vec<Vec<Packed>>,
}

impl Loading {
    /// For a device of `blocks` blocks.
    pub(crate) fn new(blocks: u64) -> Self {
        let bits = u64::BITS - blocks.saturating_sub(1).leading_zeros();
        Self { shift: bits.saturating_sub(PARTS_BITS), parts: vec![Vec::new(); PARTS + 1] }
    }

    /// Adds a version after the existing ones.
    pub(crate) fn add(&mut self, version: &Version) {
        let part = &mut self.parts[(version.lba >> self.shift).min(PARTS as u64) as usize];
        if part.len() == part.capacity() {
            part.reserve_exact((part.len() / 4).max(GROWTH));
        }
        part.push(Packed::new(version));
    }

    /// Their index; calls `each` on its versions. Of versions with one key the last one counts.
    pub(crate) fn finish(self, mut each: impl FnMut(&Version)) -> Index {
        let mut index = Index::default();
        let mut run = Vec::new();
        for mut part in self.parts {
            // In the order of the log where keys are equal.
            part.sort_by(Packed::order);
            for (at, packed) in part.iter().enumerate() {
                if part.get(at + 1).is_some_and(|next| next.order(packed).is_eq()) {
                    continue;
                }
                each(&packed.version());
                if run.len() == RUN {
                    index.add_run(std::mem::take(&mut run));
                }
                if run.is_empty() {
                    run.reserve_exact(RUN);
                }
                run.push(*packed);
            }
        }
        run.shrink_to_fit();
        index.add_run(run);
        index
    }
}

/// All versions that are kept.
#[derive(Default)]
pub(crate) struct Index {
    runs: BTreeMap<Key, Vec<Packed>>,
    count: usize,
}

impl Index {
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Bytes of memory.
    pub(crate) fn memory(&self) -> usize {
        let run = |run: &Vec<Packed>| run.capacity() * size_of::<Packed>() + 96;
        self.runs.values().map(run).sum()
    }

    /// Adds a run after all others.
    fn add_run(&mut self, run: Vec<Packed>) {
        if let Some(first) = run.first() {
            self.count += run.len();
            self.runs.insert(first.key(), run);
        }
    }

    /// The run that holds `key` if any does.
    fn run_of(&self, key: Key) -> Option<(&Key, &Vec<Packed>)> {
        self.runs.range(..=key).next_back()
    }

    /// Puts a version in; the one of the same key that it replaces.
    pub(crate) fn insert(&mut self, version: &Version) -> Option<Version> {
        let (key, packed) = (version.key(), Packed::new(version));
        let first = self.runs.range(..=key).next_back().or_else(|| self.runs.iter().next());
        let Some(first) = first.map(|(first, _)| *first) else {
            self.runs.insert(key, vec![packed]);
            self.count += 1;
            return None;
        };
        let run = self.runs.get_mut(&first)?;
        let replaced = match run.binary_search_by_key(&key, |packed| packed.key()) {
            Ok(at) => Some(std::mem::replace(&mut run[at], packed).version()),
            Err(at) => {
                if run.len() == run.capacity() {
                    run.reserve_exact(GROWTH);
                }
                run.insert(at, packed);
                self.count += 1;
                None
            }
        };
        let mut rest = Vec::new();
        if run.len() > RUN {
            // Versions often come in order of blocks: then the first part stays as full as it is.
            let at = if run.last().is_some_and(|last| last.key() == key) { RUN } else { RUN / 2 };
            rest.reserve_exact(run.len() - at + GROWTH);
            rest.extend_from_slice(&run[at..]);
            run.truncate(at);
            run.shrink_to(at);
        }
        if key < first
            && let Some(run) = self.runs.remove(&first)
        {
            self.runs.insert(key, run);
        }
        if let Some(packed) = rest.first() {
            self.runs.insert(packed.key(), rest);
        }
        replaced
    }

    /// Takes a version out.
    pub(crate) fn remove(&mut self, key: Key) -> Option<Version> {
        let first = *self.run_of(key)?.0;
        let run = self.runs.get_mut(&first)?;
        let at = run.binary_search_by_key(&key, |packed| packed.key()).ok()?;
        let removed = run.remove(at).version();
        self.count -= 1;
        if run.is_empty() {
            self.runs.remove(&first);
        } else if at == 0 {
            let run = self.runs.remove(&first).unwrap_or_default();
            self.runs.insert(run[0].key(), run);
        }
        Some(removed)
    }

    /// The version of that key.
    pub(crate) fn get(&self, key: Key) -> Option<Version> {
        let run = self.run_of(key)?.1;
        let at = run.binary_search_by_key(&key, |packed| packed.key()).ok()?;
        Some(run[at].version())
    }

    /// The last version of a block up to `time`.
    pub(crate) fn last_at(&self, lba: u64, time: u64) -> Option<Version> {
        let key = (lba, time, u8::MAX);
        let run = self.run_of(key)?.1;
        let at = run.partition_point(|packed| packed.key() <= key);
        run.get(at.checked_sub(1)?).map(|packed| packed.version()).filter(|version| version.lba == lba)
    }

    /// The first version of a block after `time`.
    pub(crate) fn first_after(&self, lba: u64, time: u64) -> Option<Version> {
        self.next((lba, time, u8::MAX)).filter(|version| version.lba == lba)
    }

    /// The first version whose key is greater.
    pub(crate) fn next(&self, key: Key) -> Option<Version> {
        if let Some((_, run)) = self.run_of(key) {
            let at = run.partition_point(|packed| packed.key() <= key);
            if let Some(packed) = run.get(at) {
                return Some(packed.version());
            }
        }
        self.runs
            .range((std::ops::Bound::Excluded(key), std::ops::Bound::Unbounded))
            .next()
            .map(|(_, run)| run[0].version())
    }

    /// Calls `each` on the versions from `key` on (that one included), in order, until it returns
    /// false or `limit` were seen. Returns the key of the first that was not seen, to continue
    /// from.
    pub(crate) fn scan(&self, key: Key, limit: usize, mut each: impl FnMut(&Version) -> bool) -> Option<Key> {
        let first = self.run_of(key).map_or(key, |(first, _)| *first);
        let mut seen = 0;
        for packed in self.runs.range(first..).flat_map(|(_, run)| run.iter()) {
            let version = packed.version();
            if version.key() < key {
                continue;
            }
            if seen == limit || !each(&version) {
                return Some(version.key());
            }
            seen += 1;
        }
        None
    }

    /// Drops the versions that `keep` rejects; they go to `dropped`.
    pub(crate) fn retain(&mut self, keep: impl Fn(&Version) -> bool, mut dropped: impl FnMut(&Version)) {
        let mut moved = Vec::new();
        self.runs.retain(|first, run| {
            run.retain(|packed| {
                let version = packed.version();
                let kept = keep(&version);
                if !kept {
                    dropped(&version);
                    self.count -= 1;
                }
                kept
            });
            if run.capacity() > run.len() + 2 * GROWTH {
                run.shrink_to(run.len());
            }
            match run.first() {
                None => false,
                Some(packed) if packed.key() == *first => true,
                Some(_) => {
                    moved.push(std::mem::take(run));
                    false
                }
            }
        });
        for run in moved {
            self.runs.insert(run[0].key(), run);
        }
    }
}
