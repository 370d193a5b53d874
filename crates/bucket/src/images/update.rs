//! An update that is under way: regions are put, in any order and by several threads.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use cairn_base::Mutex;

use super::codec::{Kind, Version};
use super::error::ImagesError;
use super::inner::{Inner, nonce_of};
use super::names;
use super::region::{RegionBlocks, pack};
use super::root::{ImageId, List};
use super::table::{Delta, Entry};
use crate::store::{Nonce, Put};

/// Past this many intervals, progress is written after a fraction of the finished regions.
const INTERVALS: usize = 16;

/// See the module. It is committed by [`super::Owner::commit`].
pub struct Update {
    inner: Arc<Inner>,
    pub(super) at: Version,
    nonce: Nonce,
    pub(super) target: ImageId,
    pub(super) done: Arc<Mutex<Done>>,
}

/// The regions that were put.
#[derive(Default)]
pub(super) struct Done {
    pub(super) entries: Delta,
    /// Regions that no progress names.
    unsaved: Vec<u32>,
    parts: u32,
    resumed: usize,
    bytes: u64,
}

impl std::fmt::Debug for Update {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Update").field("target", &self.target).finish_non_exhaustive()
    }
}

impl Update {
    pub(super) fn new(
        inner: &Arc<Inner>,
        at: Version,
        (nonce, target): (Nonce, ImageId),
        left: Delta,
    ) -> Self {
        let done = Done { resumed: left.len(), entries: left, ..Done::default() };
        Self { inner: inner.clone(), at, nonce, target, done: Arc::new(Mutex::new(done)) }
    }

    /// Whether the region is in the bucket already, from an update to the same image that was
    /// interrupted. It need not be put again.
    pub fn has(&self, region: u32) -> bool {
        self.done.lock().entries.contains(region)
    }

    /// Whether the object of a region that an interrupted update put has these blocks. If it has
    /// others, the region is put again.
    pub(super) fn is_same(&self, region: u32, blocks: &RegionBlocks) -> bool {
        let Some(entry) = self.done.lock().entries.get(region) else { return false };
        if !entry.is_there() || blocks.is_empty() {
            return entry.is_there() != blocks.is_empty();
        }
        let (object, digest) = pack(self.inner.volume, region, entry.at, blocks);
        object.len() == entry.length as usize && digest == entry.digest
    }

    /// Regions that were in the bucket already.
    pub fn resumed(&self) -> usize {
        self.done.lock().resumed
    }

    /// Bytes that were put.
    pub fn bytes(&self) -> u64 {
        self.done.lock().bytes
    }

    /// Puts a region: *all* blocks that are live in the new image, changed or not. Without a block
    /// the region leaves the image.
    ///
    /// A region without a changed live block need not be put, but one that has lost its last block
    /// should be.
    ///
    /// # Errors
    /// The region is not in the image; it can be put again.
    pub fn put_region(
        &self,
        region: u32,
        blocks: &RegionBlocks,
        cancel: &AtomicBool,
    ) -> Result<(), ImagesError> {
        if blocks.is_empty() {
            self.note(region, Entry::NONE);
            return Ok(());
        }
        let volume = self.inner.volume;
        let (object, digest) = pack(volume, region, self.at, blocks);
        let name = names::region(volume, region, self.at)?;
        let length = object.len() as u32;
        let nonce = nonce_of(self.nonce, &name, &object);
        if self.inner.store.put_new(&name, object.into(), nonce, cancel)? == Put::Exists {
            return Err(ImagesError::Damaged { name, how: "another writer made it" });
        }
        self.note(region, Entry { at: self.at, length, digest });
        self.save_progress(cancel)
    }

    fn note(&self, region: u32, entry: Entry) {
        let mut done = self.done.lock();
        done.entries.insert(region, entry);
        done.bytes += u64::from(entry.length);
        if entry.is_there() {
            done.unsaved.push(region);
        }
    }

    /// Writes which regions are in the bucket, if many are not recorded yet.
    fn save_progress(&self, cancel: &AtomicBool) -> Result<(), ImagesError> {
        let (part, regions, entries) = {
            let mut done = self.done.lock();
            let least = self.inner.tuning.progress.max(done.entries.len() / INTERVALS);
            if done.unsaved.len() < least {
                return Ok(());
            }
            let mut regions = std::mem::take(&mut done.unsaved);
            regions.sort_unstable();
            regions.dedup();
            let entries: Vec<(u32, Entry)> =
                regions.iter().filter_map(|region| Some((*region, done.entries.get(*region)?))).collect();
            done.parts += 1;
            (done.parts, regions, entries)
        };
        let volume = self.inner.volume;
        let list = List { at: self.at, part, image: self.target, entries };
        let name = names::progress(volume, self.at, part)?;
        let bytes = list.write(Kind::Progress, volume);
        let nonce = nonce_of(self.nonce, &name, &bytes);
        let put = self.inner.store.put_new(&name, bytes.into(), nonce, cancel);
        if put.is_err() {
            self.done.lock().unsaved.extend(regions);
        }
        put?;
        Ok(())
    }

    pub(super) fn delta(&self) -> Delta {
        self.done.lock().entries.clone()
    }
}
