//! The blocks of a snapshot and of all earlier ones, as an image elsewhere has them: those that a
//! cache below the volume may evict, and those that an update of that image takes.
//!
//! An image of a snapshot has each block that this snapshot or an earlier one reaches. No such
//! block is written while the snapshot exists. So a cache may evict it, if it can read it from that
//! image. It may also evict a block that is not in use. It must keep all other blocks: they came
//! after the snapshot, or are on their way to their places.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use cairn_base::{Checksum, Lba, SnapshotId, Vbn};
use cairn_format::layout::BITS_PER_MAP_BLOCK;
use cairn_format::{Role, Root, SnapshotEntry};

use crate::error::{Place, VolumeError};
use crate::known_files::ACTIVE_MAP;
use crate::memory::roots::Reader;
use crate::past::snapshots::Whereabouts;
use crate::read::compare::{Maps, words_of};
use crate::read::image::Image;
use crate::read::store::Wanted;
use crate::read::walk::{Rooted, new_blocks};
use crate::volume::Volume;

/// Blocks that [`Reached::words`] covers: those of one block of a map.
pub const REACHED_BLOCKS: u64 = BITS_PER_MAP_BLOCK;
/// Their words.
pub const REACHED_WORDS: usize = (BITS_PER_MAP_BLOCK / 64) as usize;
/// The bits of a block of a map.
pub type MapWords = Box<[u64; REACHED_WORDS]>;

/// The maps of a snapshot and of all earlier ones. They stay readable while this lives.
pub struct Reached {
    volume: Arc<Volume>,
    target: SnapshotEntry,
    /// In order; the last one is the target.
    images: Vec<(SnapshotEntry, Image)>,
}

impl Volume {
    /// The maps of the snapshot `target` and of all earlier ones.
    ///
    /// # Errors
    /// There is no such snapshot, or the volume is closed.
    pub fn reached_up_to(self: &Arc<Self>, target: SnapshotId) -> Result<Reached, VolumeError> {
        let entries = self.snapshot_entries();
        let mut images = Vec::new();
        for entry in entries.iter().filter(|entry| entry.id <= target) {
            match self.image(Some(entry.id)) {
                // It may have been deleted and received again meanwhile.
                Ok(image) if *image.root() == entry.root => images.push((entry.clone(), image)),
                Ok(_) => return Err(VolumeError::NoSuchSnapshot(entry.id)),
                Err(VolumeError::NoSuchSnapshot(id)) if id != target => {}
                Err(error) => return Err(error),
            }
        }
        let entry = entries.into_iter().find(|entry| entry.id == target);
        let target = entry.ok_or(VolumeError::NoSuchSnapshot(target))?;
        Ok(Reached { volume: self.clone(), target, images })
    }

    /// The blocks in use from `first` on, a bit for each: those that a root reaches, that wait for
    /// their readers, or that a writer has taken. None if `base` does not exist any more, or if
    /// blocks are not at their own places, so that nothing may be evicted. It waits for no device.
    ///
    /// `first` divides by 64.
    pub fn in_use(&self, base: &SnapshotEntry, first: Vbn, words: &mut [u64]) -> Option<()> {
        let state = self.state.lock();
        let there = state.snapshots.get(base.id).is_some_and(|there| there.root == base.root);
        let is_plain = state.role == Role::Normal
            && !state.receiving
            && !state.closed
            && state.latched.is_none()
            && state.contradiction.is_none()
            && state.committed.redirects.is_empty();
        if !there || !is_plain {
            return None;
        }
        for (word, at) in words.iter_mut().zip((first.0 / 64)..) {
            *word = state.used.word(at);
        }
        Some(())
    }

    /// Whether blocks that no present root has wait for the image of an earlier one, which may be
    /// open for days. It waits for short readers of earlier roots.
    pub fn keeps_blocks_of_the_past(&self) -> bool {
        let (readers, ended) = {
            let state = self.state.lock();
            (state.short_readers(), state.ended.clone())
        };
        ended.wait(&readers);
        let mut state = self.state.lock();
        state.settle_releases();
        state.releases.waits_for(|reader: &Reader| !reader.is_short())
    }
}

impl Reached {
    /// The snapshot.
    pub fn target(&self) -> &SnapshotEntry {
        &self.target
    }

    /// Which of the [`REACHED_BLOCKS`] blocks with this number any of the snapshots reaches.
    ///
    /// # Errors
    /// A block of a map cannot be read.
    pub fn words(&self, number: u64) -> Result<MapWords, VolumeError> {
        let mut words = Box::new([0; REACHED_WORDS]);
        let mut known: HashSet<(Vbn, Checksum)> = HashSet::new();
        for (_, image) in &self.images {
            let (store, redirects) = (&self.volume.store, image.redirects());
            let tree = Maps { store, redirects }.tree(image.root().active_map);
            let Some(pointer) = tree.pointers(&[Lba(number)]).pop().transpose()? else { continue };
            // Most snapshots share it.
            if pointer.is_hole() || !known.insert((pointer.vbn, pointer.checksum)) {
                continue;
            }
            let place = Place::Data { file: ACTIVE_MAP, lba: Lba(number) };
            let block = store.load_one(Wanted { pointer, place }, redirects)?;
            for (word, more) in words.iter_mut().zip(words_of(&block)) {
                *word |= more;
            }
        }
        Ok(words)
    }

    /// The snapshots, in order. Those that were deleted before the maps were held are left out.
    pub fn entries(&self) -> impl Iterator<Item = &SnapshotEntry> {
        self.images.iter().map(|(entry, _)| entry)
    }

    /// The places of the blocks of these snapshots.
    pub fn whereabouts(&self) -> Option<Whereabouts> {
        self.images.last().map(|(_, image)| image.whereabouts())
    }

    /// Blocks of maps in all: each covers [`REACHED_BLOCKS`] blocks.
    pub fn map_blocks(&self) -> u64 {
        let blocks = self.images.iter().map(|(entry, _)| entry.root.blocks).max().unwrap_or(0);
        blocks.div_ceil(REACHED_BLOCKS)
    }

    /// As [`Reached::words`] for many blocks of maps at once: those with a bit, in order. It takes
    /// memory for these, and for the maps of all snapshots there.
    ///
    /// # Errors
    /// A block of a map cannot be read.
    pub fn words_in(&self, numbers: Range<u64>) -> Result<BTreeMap<u64, MapWords>, VolumeError> {
        self.words_of_maps(numbers, self.entries().map(|entry| &entry.root))
    }

    fn words_of_maps<'a>(
        &self,
        numbers: Range<u64>,
        roots: impl Iterator<Item = &'a Root>,
    ) -> Result<BTreeMap<u64, MapWords>, VolumeError> {
        let mut found: BTreeMap<u64, MapWords> = BTreeMap::new();
        let Some((_, last)) = self.images.last() else { return Ok(found) };
        // The places as the target has them: they are also those of the snapshots before it.
        let maps = Maps { store: &self.volume.store, redirects: last.redirects() };
        let mut failed = None;
        let mut visit = |number: u64, bits: &[u8]| {
            let words = found.entry(number).or_insert_with(|| Box::new([0; REACHED_WORDS]));
            for (word, bytes) in words.iter_mut().zip(bits.chunks_exact(8)) {
                *word |= bytes.try_into().map_or(0, u64::from_le_bytes);
            }
        };
        let roots = roots.map(|root| root.active_map);
        maps.each_region_in(numbers, roots, &mut visit, &mut |_, _, error| {
            failed.get_or_insert(error);
        });
        failed.map_or(Ok(found), Err)
    }

    /// The snapshots that a reader with `have` lacks, each with its parent if that is held. The
    /// parent is at the reader, or is such a snapshot as well.
    fn lacking<'a>(
        &'a self,
        have: &'a BTreeSet<SnapshotId>,
    ) -> impl Iterator<Item = (&'a SnapshotEntry, Option<Root>)> + 'a {
        let roots: HashMap<SnapshotId, Root> = self.entries().map(|entry| (entry.id, entry.root)).collect();
        let lacks = self.entries().filter(|entry| !have.contains(&entry.id));
        lacks.map(move |entry| (entry, roots.get(&entry.parent).copied()))
    }

    /// The blocks that a reader with the snapshots `have` lacks, for some blocks of maps: of each
    /// snapshot those that its parent does not have. It takes memory for these.
    ///
    /// # Errors
    /// A block of a map cannot be read.
    pub fn lacked_in(
        &self,
        have: &BTreeSet<SnapshotId>,
        numbers: Range<u64>,
    ) -> Result<BTreeMap<u64, Vec<MapWords>>, VolumeError> {
        let mut found: BTreeMap<u64, Vec<MapWords>> = BTreeMap::new();
        for (entry, parent) in self.lacking(have) {
            let parent = parent.map(|root| self.words_of_maps(numbers.clone(), std::iter::once(&root)));
            let parent = parent.transpose()?.unwrap_or_default();
            for (number, mut words) in self.words_of_maps(numbers.clone(), std::iter::once(&entry.root))? {
                if let Some(before) = parent.get(&number) {
                    words.iter_mut().zip(before.iter()).for_each(|(word, before)| *word &= !before);
                }
                if words.iter().any(|word| *word != 0) {
                    found.entry(number).or_default().push(words);
                }
            }
        }
        Ok(found)
    }

    /// Calls `visit` with the blocks that a reader with the snapshots `have` lacks: the number of a
    /// block of a map, and its bits. A number may come several times.
    ///
    /// # Errors
    /// A block of a map cannot be read.
    pub fn lacked_by(
        &self,
        have: &BTreeSet<SnapshotId>,
        visit: &mut dyn FnMut(u64, &[u64; REACHED_WORDS]),
    ) -> Result<(), VolumeError> {
        let Some((_, last)) = self.images.last() else { return Ok(()) };
        let maps = Maps { store: &self.volume.store, redirects: last.redirects() };
        self.lacking(have)
            .try_for_each(|(entry, parent)| maps.each_only_in(&entry.root, parent.as_slice(), visit))
    }

    /// Calls `visit` with the blocks of [`Reached::lacked_in`], as the trees name them: the number
    /// and the checksum of each.
    ///
    /// # Errors
    /// A node of a tree cannot be read.
    pub fn checksums_lacked_by(
        &self,
        have: &BTreeSet<SnapshotId>,
        visit: &mut dyn FnMut(Vbn, Checksum),
    ) -> Result<(), VolumeError> {
        let Some((_, last)) = self.images.last() else { return Ok(()) };
        let redirects = last.redirects();
        for (entry, parent) in self.lacking(have) {
            let base = parent.as_ref().map(|root| Rooted { root, redirects });
            let new = Rooted { root: &entry.root, redirects };
            new_blocks(&self.volume.store, base, new, &mut |block| {
                visit(block.pointer.vbn, block.pointer.checksum);
                Ok(())
            })?;
        }
        Ok(())
    }
}
