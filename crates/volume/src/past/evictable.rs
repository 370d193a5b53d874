//! The blocks that a cache below the volume may evict, as an image elsewhere has them.
//!
//! An image of a snapshot has each block that this snapshot or an earlier one reaches. No such
//! block is written while the snapshot exists. So a cache may evict it, if it can read it from that
//! image. It may also evict a block that is not in use. It must keep all other blocks: they came
//! after the snapshot, or are on their way to their places.

use std::collections::HashSet;
use std::sync::Arc;

use cairn_base::{Checksum, Lba, SnapshotId, Vbn};
use cairn_format::layout::BITS_PER_MAP_BLOCK;
use cairn_format::{Role, SnapshotEntry};

use crate::error::{Place, VolumeError};
use crate::known_files::ACTIVE_MAP;
use crate::memory::roots::Reader;
use crate::read::compare::{Maps, words_of};
use crate::read::image::Image;
use crate::read::store::Wanted;
use crate::volume::Volume;

/// Blocks that [`Reached::words`] covers: those of one block of a map.
pub const REACHED_BLOCKS: u64 = BITS_PER_MAP_BLOCK;
/// Their words.
pub const REACHED_WORDS: usize = (BITS_PER_MAP_BLOCK / 64) as usize;

/// The maps of a snapshot and of all earlier ones. They stay readable while this lives.
pub struct Reached {
    volume: Arc<Volume>,
    target: SnapshotEntry,
    images: Vec<Image>,
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
                Ok(image) => images.push(image),
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
    pub fn words(&self, number: u64) -> Result<Box<[u64; REACHED_WORDS]>, VolumeError> {
        let mut words = Box::new([0; REACHED_WORDS]);
        let mut known: HashSet<(Vbn, Checksum)> = HashSet::new();
        for image in &self.images {
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
}
