//! A device whose local file is a cache: how much of it is used, and which blocks are evicted.
//!
//! # Invariants
//! 1. **Only what the image has.** A block is evicted only if the image that absent blocks are read
//!    from has it with the same content, or if no state of the volume has it. [`Clean`] answers
//!    both. The second answer is given under the lock of the region, so a block that is written
//!    later becomes local again.
//! 2. **Absent before it is gone.** The mark that a block is absent is durable before its place is
//!    punched. A cut in between leaves a place that no read uses; a later eviction punches it.
//! 3. **No read of a hole.** A punch first counts in the counter of its stripe, under the lock of
//!    the region. A read compares the counter before it looks for local blocks with the counter
//!    after it has read them, and repeats if they differ.
//! 4. **A write after a punch stays.** Writes and punches of a region exclude each other, and a
//!    punch leaves out blocks that are local again.
//!
//! The volume holds writes of clients back before the cache is full ([`CacheStatus::takes`]). It
//! keeps a reserve for its consistency points, so that the next image can be made.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cairn_base::Mutex;
use cairn_device::{DeviceError, Operation};

use super::presence::{Bits, runs};
use super::{BLOCK, BackedDevice, REGION, STRIPES, Shared};
use crate::images::REGION_BLOCKS;

/// The smallest cache.
pub const CACHE_BYTES_MIN: u64 = 64 << 20;
/// Blocks of the reserve, at least: 8 MiB.
const RESERVE_MIN: u64 = 2048;
/// Regions whose marks are made durable together.
const AT_ONCE: usize = 64;
const NO_BITS: Bits = [0; REGION_BLOCKS / 64];

/// Which blocks of a region can be evicted.
pub trait Clean {
    /// The blocks that the image has with their present content, as long as they are in use. None
    /// if that is unknown now. It may read the device, and no lock is held.
    fn has(&mut self, region: u32) -> Option<Bits>;

    /// The blocks that any state of the volume has, or will have by a write that has begun. None if
    /// the answer of [`Clean::has`] does not count any more. It waits for nothing: the region is
    /// locked.
    fn in_use(&self, region: u32) -> Option<Bits>;
}

/// How full a cache is, in blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheStatus {
    /// All of it.
    pub capacity: u64,
    /// Blocks that hold bytes.
    pub used: u64,
    /// Blocks that writes of clients leave free.
    pub reserve: u64,
}

impl CacheStatus {
    fn of(capacity: u64, used: u64) -> Self {
        Self { capacity, used, reserve: (capacity / 16).max(RESERVE_MIN) }
    }

    /// Whether writes of clients are let in, while that many blocks wait in memory.
    pub fn takes(&self, waiting: u64) -> bool {
        self.used + waiting + self.reserve <= self.capacity
    }

    /// Blocks to evict now, so that reads and writes find room.
    pub fn excess(&self) -> u64 {
        let (high, low) = (self.reserve * 3, self.reserve * 4);
        match self.used + high > self.capacity {
            true => (self.used + low).saturating_sub(self.capacity),
            false => 0,
        }
    }
}

/// See the module.
pub(super) struct Cache {
    capacity: u64,
    used: AtomicU64,
    /// The blocks of each region that hold bytes. It decides nothing but what is tried.
    regions: Mutex<BTreeMap<u32, Box<Bits>>>,
    /// Regions that were used since the hand passed.
    touched: Box<[AtomicU64]>,
    /// Where the search for a victim continues.
    hand: AtomicU64,
    /// Punches so far, for each stripe.
    punches: Vec<AtomicU64>,
    /// Evicted blocks whose places are not punched yet.
    left: Mutex<Vec<(u32, Bits)>>,
}

fn count(bits: &Bits) -> u64 {
    bits.iter().map(|word| u64::from(word.count_ones())).sum()
}

fn both(one: &Bits, other: &Bits) -> Bits {
    let mut bits = *one;
    bits.iter_mut().zip(other).for_each(|(word, other)| *word &= other);
    bits
}

impl Cache {
    pub(super) fn new(bytes: u64, regions: u64) -> Self {
        Self {
            capacity: bytes / BLOCK,
            used: AtomicU64::new(0),
            regions: Mutex::default(),
            touched: (0..regions.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            hand: AtomicU64::new(0),
            punches: (0..STRIPES).map(|_| AtomicU64::new(0)).collect(),
            left: Mutex::default(),
        }
    }

    pub(super) fn status(&self) -> CacheStatus {
        CacheStatus::of(self.capacity, self.used.load(Ordering::Relaxed))
    }

    /// Whether there is room for fetched blocks. Those are the first that must do without.
    pub(super) fn keeps_reads(&self, blocks: u64) -> bool {
        let CacheStatus { capacity, used, reserve } = self.status();
        used + blocks + 2 * reserve <= capacity
    }

    /// These blocks hold bytes.
    pub(super) fn filled(&self, region: u32, bits: &Bits) {
        let mut regions = self.regions.lock();
        let held = regions.entry(region).or_insert_with(|| Box::new(NO_BITS));
        let before = count(held);
        held.iter_mut().zip(bits).for_each(|(word, more)| *word |= more);
        self.used.fetch_add(count(held) - before, Ordering::Relaxed);
        drop(regions);
        self.touch(region);
    }

    fn emptied(&self, region: u32, bits: &Bits) {
        let mut regions = self.regions.lock();
        let Some(held) = regions.get_mut(&region) else { return };
        let before = count(held);
        held.iter_mut().zip(bits).for_each(|(word, gone)| *word &= !gone);
        let now = count(held);
        if now == 0 {
            regions.remove(&region);
        }
        self.used.fetch_sub(before - now, Ordering::Relaxed);
    }

    pub(super) fn touch(&self, region: u32) {
        let bit = 1 << (region % 64);
        if let Some(word) = self.touched.get(region as usize / 64)
            && word.load(Ordering::Relaxed) & bit == 0
        {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Whether it was used since the last call.
    fn take_touch(&self, region: u32) -> bool {
        let bit = 1 << (region % 64);
        let word = self.touched.get(region as usize / 64);
        word.is_some_and(|word| word.fetch_and(!bit, Ordering::Relaxed) & bit != 0)
    }

    /// The counter of punches in the stripe of a region.
    pub(super) fn punches(&self, stripe: usize) -> u64 {
        self.punches.get(stripe % STRIPES).map_or(0, |punches| punches.load(Ordering::SeqCst))
    }

    /// The next regions that hold bytes, from the hand on, and all of them at most once in `seen`.
    fn next(&self, seen: &mut u64) -> Vec<(u32, Bits)> {
        let regions = self.regions.lock();
        let from = u32::try_from(self.hand.load(Ordering::Relaxed)).unwrap_or(0);
        let left = (regions.len() as u64).saturating_sub(*seen);
        let some = regions.range(from..).chain(regions.range(..from));
        let some: Vec<(u32, Bits)> =
            some.take(AT_ONCE.min(left as usize)).map(|(region, bits)| (*region, **bits)).collect();
        if let Some((last, _)) = some.last() {
            self.hand.store(u64::from(*last) + 1, Ordering::Relaxed);
        }
        *seen += some.len() as u64;
        some
    }

    pub(super) fn memory(&self) -> u64 {
        let regions = self.regions.lock().len() * (size_of::<Bits>() + 24);
        (regions + self.touched.len() * 8) as u64
    }
}

impl BackedDevice {
    /// How full the cache is; none if everything is to be local.
    pub fn cache(&self) -> Option<CacheStatus> {
        self.shared.cache.as_ref().map(Cache::status)
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
                        cache.filled(region, &super::presence::bits_of(place, count));
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

/// Extents of the local device that are asked for at once.
const EXTENTS_AT_ONCE: usize = 4096;

/// The parts of a range of blocks in each region: the region, the first place and how many.
pub(super) fn pieces(first: u64, end: u64) -> impl Iterator<Item = (u32, usize, usize)> {
    let mut at = first;
    std::iter::from_fn(move || {
        let region = u32::try_from(at / REGION).ok().filter(|_| at < end)?;
        let (place, from) = (at % REGION, at);
        at = (at - place + REGION).min(end);
        Some((region, place as usize, (at - from) as usize))
    })
}

/// A shared handle that tells a volume whether writes of clients are let in.
pub fn takes_writes(device: &Arc<BackedDevice>) -> impl Fn(u64) -> bool + Send + Sync + 'static {
    let device = Arc::downgrade(device);
    move |waiting| {
        let status = device.upgrade().and_then(|device| device.cache());
        status.is_none_or(|status| status.takes(waiting))
    }
}
