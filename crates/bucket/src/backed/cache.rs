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
use std::sync::atomic::{AtomicU64, Ordering};

use cairn_base::{BLOCK_SIZE, Mutex};

use super::presence::Bits;
use crate::images::REGION_BLOCKS;

/// The smallest cache.
pub const CACHE_BYTES_MIN: u64 = 64 << 20;
/// Blocks of the reserve, at least: 8 MiB.
const RESERVE_MIN: u64 = 2048;
/// Regions whose marks are made durable together.
const AT_ONCE: usize = 64;
pub(super) const NO_BITS: Bits = [0; REGION_BLOCKS / 64];

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
    /// The blocks of each region that hold bytes. It decides only which regions are tried.
    pub(super) regions: Mutex<BTreeMap<u32, Box<Bits>>>,
    /// Regions that were used since the hand passed.
    touched: Box<[AtomicU64]>,
    /// Where the search for a victim continues.
    hand: AtomicU64,
    /// Punches so far, for each stripe.
    pub(super) punches: Vec<AtomicU64>,
    /// Evicted blocks whose places are not punched yet.
    pub(super) left: Mutex<Vec<(u32, Bits)>>,
}

fn count(bits: &Bits) -> u64 {
    bits.iter().map(|word| u64::from(word.count_ones())).sum()
}

pub(super) fn both(one: &Bits, other: &Bits) -> Bits {
    let mut bits = *one;
    bits.iter_mut().zip(other).for_each(|(word, other)| *word &= other);
    bits
}

impl Cache {
    /// A cache of `bytes` for so many regions, whose locks are in `stripes` stripes.
    pub(super) fn new(bytes: u64, regions: u64, stripes: usize) -> Self {
        Self {
            capacity: bytes / BLOCK_SIZE as u64,
            used: AtomicU64::new(0),
            regions: Mutex::default(),
            touched: (0..regions.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            hand: AtomicU64::new(0),
            punches: (0..stripes).map(|_| AtomicU64::new(0)).collect(),
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

    pub(super) fn emptied(&self, region: u32, bits: &Bits) {
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
    pub(super) fn take_touch(&self, region: u32) -> bool {
        let bit = 1 << (region % 64);
        let word = self.touched.get(region as usize / 64);
        word.is_some_and(|word| word.fetch_and(!bit, Ordering::Relaxed) & bit != 0)
    }

    /// The counter of punches in the stripe of a region.
    pub(super) fn punches(&self, stripe: usize) -> u64 {
        self.punches
            .get(stripe % self.punches.len().max(1))
            .map_or(0, |punches| punches.load(Ordering::SeqCst))
    }

    /// The next regions that hold bytes, from the hand on, and all of them at most once in `seen`.
    pub(super) fn next(&self, seen: &mut u64) -> Vec<(u32, Bits)> {
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
