//! Evicts blocks of a cache, and has the device move on to newer images. See `cache` for the rules.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cairn_device::{DeviceError, Operation};
use cairn_format::SnapshotEntry;
use cairn_volume::Volume;

use super::base::{Base, MovedOn};
use super::cache::{Cache, CacheStatus, Clean, NO_BITS, both};
use super::presence::{Bits, bits_of, pieces, runs};
use super::{BLOCK, BackedDevice, REGION, STRIPES, Shared};
use crate::images::{Owner, has_snapshot};

impl BackedDevice {
    /// How full the cache is; none if everything is to be local.
    pub fn cache(&self) -> Option<CacheStatus> {
        self.shared.cache.as_ref().map(Cache::status)
    }

    /// Whether writes of clients are let in, while that many blocks wait in memory: for the volume
    /// on the device.
    pub fn takes_writes(self: &Arc<Self>) -> impl Fn(u64) -> bool + Send + Sync + 'static {
        let device = Arc::downgrade(self);
        move |waiting| {
            let status = device.upgrade().and_then(|device| device.cache());
            status.is_none_or(|status| status.takes(waiting))
        }
    }

    /// Reads absent blocks from the newest image of the volume from now on, after that
    /// was committed.
    ///
    /// It stays with its image while a reader of an earlier state may need blocks that the newest
    /// image lacks: a snapshot was deleted, and is still shown. The caller keeps the image of
    /// [`MovedOn::base`], and holds its snapshot.
    ///
    /// # Errors
    /// The device failed, or the volume is closed.
    pub fn move_on(&self, volume: &Arc<Volume>, owner: &Owner) -> Result<MovedOn, DeviceError> {
        let before = self.base();
        let newest = owner.newest();
        let entries = volume.snapshot_entries();
        let target = newest.and_then(|newest| {
            let is_it = |entry: &&SnapshotEntry| {
                entry.id.0 == newest.number && has_snapshot(owner.newest_content(), entry)
            };
            Some(Base::of(newest.id, entries.iter().find(is_it)?))
        });
        let Some(base) = target else { return Ok(MovedOn { moved: false, base: before }) };
        if base != before && volume.keeps_blocks_of_the_past() {
            return Ok(MovedOn { moved: false, base: before });
        }
        self.rebase(base)?;
        Ok(MovedOn { moved: base != before, base })
    }

    /// Evicts at least `blocks` blocks, if that many are clean, and returns how many it has. It
    /// passes over each region once, or twice if it was used since the last time.
    ///
    /// # Errors
    /// The local device or the presence file failed.
    pub fn evict(&self, blocks: u64, clean: &mut dyn Clean) -> Result<u64, DeviceError> {
        let Some(cache) = &self.shared.cache else { return Ok(0) };
        let mut freed = self.shared.punch_left(cache)?;
        for spares_used in [true, false] {
            let mut seen = 0;
            while freed < blocks {
                let some = cache.next(&mut seen);
                if some.is_empty() {
                    break;
                }
                let spares = |region: u32| cache.take_touch(region) && spares_used;
                let victims = some.into_iter().filter(|(region, _)| !spares(*region));
                freed += self.shared.evict_regions(cache, victims.collect(), clean)?;
            }
        }
        Ok(freed)
    }
}

impl Shared {
    fn evict_regions(
        &self,
        cache: &Cache,
        regions: Vec<(u32, Bits)>,
        clean: &mut dyn Clean,
    ) -> Result<u64, DeviceError> {
        self.refuse_failed()?;
        let base = self.presence.base().image;
        for (region, bits) in regions {
            let Some(has) = clean.has(region) else { continue };
            let Some(stripe) = self.stripes.get(region as usize % STRIPES) else { continue };
            let alone = stripe.write();
            // Whatever is written from here on becomes local again.
            let Some(keep) = clean.in_use(region) else { continue };
            let mut keep = keep;
            keep.iter_mut().zip(&has).for_each(|(keep, has)| *keep &= !has);
            // Nothing would come free.
            if both(&bits, &keep) == bits {
                continue;
            }
            if let Some(gone) = self.presence.evict(base, region, &keep) {
                cache.left.lock().push((region, gone));
            }
            drop(alone);
        }
        self.punch_left(cache)
    }

    /// Makes durable which blocks are absent, and then punches their places.
    fn punch_left(&self, cache: &Cache) -> Result<u64, DeviceError> {
        if cache.left.lock().is_empty() {
            return Ok(0);
        }
        let left = std::mem::take(&mut *cache.left.lock());
        if let Err(error) = self.sync() {
            cache.left.lock().extend(left);
            return Err(error);
        }
        let mut freed = 0;
        for (region, gone) in left {
            let Some(stripe) = self.stripes.get(region as usize % STRIPES) else { continue };
            let _alone = stripe.write();
            // Some may have been read or written again.
            let absent = self.presence.absent(region).unwrap_or(NO_BITS);
            let gone = both(&gone, &absent);
            if let Some(punches) = cache.punches.get(region as usize % STRIPES) {
                punches.fetch_add(1, Ordering::SeqCst);
            }
            let at = self.space_at + u64::from(region) * REGION * BLOCK;
            let end = self.space_at + self.backing.blocks * BLOCK;
            let mut batch: Vec<Operation> = runs(&gone)
                .into_iter()
                .map(|(place, count)| (at + place as u64 * BLOCK, count as u64 * BLOCK))
                .filter(|(offset, _)| *offset < end)
                .map(|(offset, length)| Operation::trim(offset, length.min(end - offset)))
                .collect();
            self.local.run(&mut batch);
            batch.into_iter().try_for_each(Operation::into_outcome)?;
            let before = cache.status().used;
            cache.emptied(region, &gone);
            freed += before.saturating_sub(cache.status().used);
        }
        Ok(freed)
    }

    /// Finds which blocks hold bytes. Those that are absent are punched by the next eviction: a
    /// crash came before they were.
    pub(super) fn count_cache(&self) -> Result<(), DeviceError> {
        let Some(cache) = &self.cache else { return Ok(()) };
        let (mut at, end) = (self.space_at, self.space_at + self.backing.blocks * BLOCK);
        while at < end {
            let extents = self.local.extents(at, end - at, EXTENTS_AT_ONCE)?;
            let length: u64 = extents.iter().map(|extent| extent.length).sum();
            if length == 0 {
                break;
            }
            for extent in extents {
                if !extent.hole {
                    let (first, last) = ((at - self.space_at) / BLOCK, at + extent.length - self.space_at);
                    for (region, place, count) in pieces(first, last.div_ceil(BLOCK)) {
                        cache.filled(region, &bits_of(place, count));
                    }
                }
                at += extent.length;
            }
        }
        let regions: Vec<(u32, Bits)> =
            cache.regions.lock().iter().map(|(region, bits)| (*region, **bits)).collect();
        for (region, bits) in regions {
            cache.take_touch(region);
            if let Some(absent) = self.presence.absent(region)
                && both(&absent, &bits) != NO_BITS
            {
                cache.left.lock().push((region, both(&absent, &bits)));
            }
        }
        Ok(())
    }
}

/// Extents of the local device in one call.
const EXTENTS_AT_ONCE: usize = 4096;
