//! Freed blocks on their way to being free: each waits for the readers that may still read it, and
//! for no others.
//!
//! A *reader* is a held committed root. There are two kinds, which are never the same object:
//! - *Short* readers read the active state: one call, one root. They also read blocks of newer
//!   generations that have their place already, so every block that is freed while such a call runs
//!   waits for its end. That end is near: they take no lock and wait for nothing but the device. A
//!   writer that finds no room may therefore wait for those that exist when it asks
//!   ([`Ended::wait`](crate::memory::roots::Ended::wait)).
//! - *Images* live as long as an export is open, for days if need be. They read only blocks that
//!   their root reaches, so they hold back only those. A block that was born after their root
//!   cannot be in it. For blocks of unknown birth (of a deleted snapshot, or replaced by a
//!   transfer) their active map decides. No caller ever waits for an image.

use std::collections::BTreeMap;

use cairn_base::{Generation, Vbn};

use crate::memory::roots::Reader;

mod sort;

/// Blocks that wait for the same readers.
struct Release {
    id: u64,
    readers: Vec<Reader>,
    blocks: Vec<Vbn>,
    /// Which of the readers show which of the blocks is known.
    sorted: bool,
}

/// One bit a reader; all that come later share the last one, which is more careful than need be.
type Mask = u128;

fn bit_of(index: usize) -> Mask {
    1 << index.min(Mask::BITS as usize - 1)
}

/// All blocks that wait.
#[derive(Default)]
pub(crate) struct Releases {
    list: Vec<Release>,
    last: u64,
}

impl Releases {
    /// Blocks with their births wait for those of `readers` that may read them.
    pub(crate) fn add_born(&mut self, readers: &[Reader], freed: impl Iterator<Item = (Vbn, Generation)>) {
        let readers = distinct(readers.iter().cloned());
        let mut groups: BTreeMap<Mask, Vec<Vbn>> = BTreeMap::new();
        for (vbn, birth) in freed {
            let held = readers.iter().enumerate().filter(|(_, reader)| reader.may_read(birth));
            let mask = held.fold(0, |mask, (index, _)| mask | bit_of(index));
            groups.entry(mask).or_default().push(vbn);
        }
        self.add_groups(&readers, groups);
    }

    /// Blocks of unknown birth wait for all of `readers`, until [`Volume::sort_releases`] has
    /// looked.
    pub(crate) fn add_unsorted(&mut self, readers: &[Reader], blocks: Vec<Vbn>) {
        if !blocks.is_empty() {
            let readers = distinct(readers.iter().cloned());
            let sorted = readers.iter().all(Reader::is_short);
            self.push(readers, blocks, sorted);
            self.merge();
        }
    }

    fn add_groups(&mut self, readers: &[Reader], groups: BTreeMap<Mask, Vec<Vbn>>) {
        for (mask, blocks) in groups {
            let held = readers.iter().enumerate().filter(|(index, _)| mask & bit_of(*index) != 0);
            self.push(held.map(|(_, reader)| reader.clone()).collect(), blocks, true);
        }
        self.merge();
    }

    fn push(&mut self, readers: Vec<Reader>, blocks: Vec<Vbn>, sorted: bool) {
        self.last += 1;
        self.list.push(Release { id: self.last, readers, blocks, sorted });
    }

    /// Joins blocks that wait for the same readers: there are never more groups than sets of
    /// readers, however long one of them lives.
    fn merge(&mut self) {
        let mut first: BTreeMap<Vec<usize>, usize> = BTreeMap::new();
        let mut kept: Vec<Release> = Vec::with_capacity(self.list.len());
        for mut release in std::mem::take(&mut self.list) {
            if release.sorted {
                let key = release.readers.iter().map(Reader::key).collect();
                if let Some(index) = first.get(&key) {
                    kept[*index].blocks.append(&mut release.blocks);
                    continue;
                }
                first.insert(key, kept.len());
            }
            kept.push(release);
        }
        self.list = kept;
    }

    /// Takes out the blocks that no reader can read any more.
    pub(crate) fn take_free(&mut self) -> Vec<Vbn> {
        let mut free = Vec::new();
        let mut changed = false;
        self.list.retain_mut(|release| {
            let before = release.readers.len();
            release.readers.retain(Reader::is_alive);
            changed |= release.readers.len() != before;
            if release.readers.is_empty() {
                free.append(&mut release.blocks);
                return false;
            }
            release.sorted |= release.readers.iter().all(Reader::is_short);
            true
        });
        if changed {
            self.merge();
        }
        free
    }

    /// Whether blocks wait for such a reader.
    pub(crate) fn waits_for(&self, is_one: impl Fn(&Reader) -> bool) -> bool {
        let waits =
            |release: &Release| release.readers.iter().any(|reader| reader.is_alive() && is_one(reader));
        self.list.iter().any(|release| !release.blocks.is_empty() && waits(release))
    }

    /// Forgets everything; returns the readers that were waited for.
    pub(crate) fn clear(&mut self) -> Vec<Reader> {
        std::mem::take(&mut self.list).into_iter().flat_map(|release| release.readers).collect()
    }

    /// Blocks that wait.
    #[cfg(all(test, not(feature = "shuttle")))]
    pub(crate) fn blocks(&self) -> u64 {
        self.list.iter().map(|release| release.blocks.len() as u64).sum()
    }

    /// The waiting blocks whose readers are not yet determined.
    #[cfg(all(test, not(feature = "shuttle")))]
    pub(crate) fn unsorted(&self) -> usize {
        self.list.iter().filter(|release| !release.sorted).count()
    }

    /// Sets of readers that blocks wait for.
    #[cfg(all(test, not(feature = "shuttle")))]
    pub(crate) fn groups(&self) -> usize {
        self.list.len()
    }
}

fn distinct(readers: impl Iterator<Item = Reader>) -> Vec<Reader> {
    let alive = readers.filter(Reader::is_alive);
    alive.map(|reader| (reader.key(), reader)).collect::<BTreeMap<_, _>>().into_values().collect()
}
