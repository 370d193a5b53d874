//! Which blocks may not be allocated, and which to take next. One bit a block where some of a
//! region are free and others are not, so at most 32 MiB of memory per TiB; and 16 bytes a region,
//! 128 KiB per TiB.
//!
//! A bit is set in three cases: while any root or snapshot reaches the block, while an uncommitted
//! generation has allocated it, and until a freed block is safe to reuse. It is safe once its free
//! is committed in both superblock slots and no reader can still see it.

use cairn_base::Vbn;
use cairn_format::layout::BITS_PER_MAP_BLOCK;

const WORDS_PER_REGION: usize = (BITS_PER_MAP_BLOCK / 64) as usize;

type Words = [u64; WORDS_PER_REGION];

/// 128 MiB of the block space. Only of one that has free blocks as well as others it is kept which.
#[derive(Clone, Default)]
struct Region {
    free: u32,
    words: Option<Box<Words>>,
}

impl Region {
    fn all_free() -> Self {
        Self { free: BITS_PER_MAP_BLOCK as u32, words: None }
    }

    fn word(&self, index: usize) -> u64 {
        match &self.words {
            Some(words) => words[index],
            None if self.free > 0 => 0,
            None => u64::MAX,
        }
    }

    fn is_used(&self, bit: u64) -> bool {
        self.word((bit / 64) as usize) >> (bit % 64) & 1 == 1
    }

    fn words(&mut self) -> &mut Words {
        let word = if self.free > 0 { 0 } else { u64::MAX };
        self.words.get_or_insert_with(|| Box::new([word; WORDS_PER_REGION]))
    }

    /// Marks bits that are free.
    fn take(&mut self, index: usize, bits: u64) {
        self.words()[index] |= bits;
        self.free -= bits.count_ones();
        if self.free == 0 {
            self.words = None;
        }
    }

    /// Frees bits that are marked.
    fn give(&mut self, index: usize, bits: u64) {
        self.words()[index] &= !bits;
        self.free += bits.count_ones();
        if u64::from(self.free) == BITS_PER_MAP_BLOCK {
            self.words = None;
        }
    }
}

/// The blocks in use, and a cursor that fills one region after the other.
pub(crate) struct UsedMap {
    blocks: u64,
    regions: Vec<Region>,
    free: u64,
    /// Regions below this have been written before: on a thin device they have their space already.
    touched: usize,
    region: usize,
    word: usize,
}

/// The region of a block, and its bit there.
fn place(vbn: Vbn) -> (usize, u64) {
    ((vbn.0 / BITS_PER_MAP_BLOCK) as usize, vbn.0 % BITS_PER_MAP_BLOCK)
}

impl UsedMap {
    /// A map of `blocks`, all free but vbn 0, which is never allocated.
    pub(crate) fn new(blocks: u64) -> Self {
        let mut map = Self { blocks: 0, regions: Vec::new(), free: 0, touched: 0, region: 0, word: 0 };
        map.grow(blocks);
        map.set(Vbn(0));
        map
    }

    /// Adds free blocks at the end. The bits past the end are set, so that they are never taken.
    pub(crate) fn grow(&mut self, blocks: u64) {
        let old = std::mem::replace(&mut self.blocks, blocks);
        let whole = (blocks / BITS_PER_MAP_BLOCK) as usize;
        let end = if old.is_multiple_of(BITS_PER_MAP_BLOCK) {
            old
        } else {
            blocks.min(old.next_multiple_of(BITS_PER_MAP_BLOCK))
        };
        self.give_all(old..end);
        if self.regions.len() < whole {
            self.regions.resize(whole, Region::all_free());
        }
        if end < blocks && !blocks.is_multiple_of(BITS_PER_MAP_BLOCK) {
            self.regions.push(Region::default());
            self.give_all(blocks - blocks % BITS_PER_MAP_BLOCK..blocks);
        }
        self.free += blocks - old;
    }

    /// Frees blocks of one region.
    fn give_all(&mut self, blocks: std::ops::Range<u64>) {
        for vbn in blocks.map(Vbn) {
            let (region, bit) = place(vbn);
            self.regions[region].give((bit / 64) as usize, 1 << (bit % 64));
        }
    }

    pub(crate) fn free(&self) -> u64 {
        self.free
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// The number of regions whose free blocks are recorded one by one.
    #[cfg(test)]
    pub(crate) fn regions_in_parts(&self) -> usize {
        self.regions.iter().filter(|region| region.words.is_some()).count()
    }

    #[inline]
    pub(crate) fn get(&self, vbn: Vbn) -> bool {
        let (region, bit) = place(vbn);
        self.regions.get(region).is_none_or(|region| region.is_used(bit))
    }

    /// 64 bits; those past the end are set.
    pub(crate) fn word(&self, number: u64) -> u64 {
        let (region, bit) = place(Vbn(number.saturating_mul(64)));
        self.regions.get(region).map_or(u64::MAX, |region| region.word((bit / 64) as usize))
    }

    /// Marks a block; true if it was free.
    pub(crate) fn set(&mut self, vbn: Vbn) -> bool {
        let was_free = !self.get(vbn);
        if was_free {
            let (region, bit) = place(vbn);
            self.regions[region].take((bit / 64) as usize, 1 << (bit % 64));
            self.free -= 1;
            self.touched = self.touched.max(region + 1);
        }
        was_free
    }

    /// Frees a block, which must be in use.
    pub(crate) fn clear(&mut self, vbn: Vbn) {
        assert!(vbn.0 != 0 && vbn.0 < self.blocks && self.get(vbn), "only a block in use is freed: {vbn:?}");
        self.give_all(vbn.0..vbn.0 + 1);
        self.free += 1;
    }

    /// ORs a block of an active map into the region that it describes.
    pub(crate) fn merge(&mut self, region: u64, bits: &[u8]) {
        let number = region as usize;
        let Some(region) = self.regions.get_mut(number) else { return };
        let free = region.free;
        for (index, bytes) in bits.chunks_exact(8).take(WORDS_PER_REGION).enumerate() {
            let mut raw = [0; 8];
            raw.copy_from_slice(bytes);
            let new = u64::from_le_bytes(raw) & !region.word(index);
            if new != 0 {
                region.take(index, new);
            }
        }
        let taken = free - region.free;
        self.free -= u64::from(taken);
        if taken > 0 {
            self.touched = self.touched.max(number + 1);
        }
    }

    /// Replaces the map by `new`, of the same size, but keeps the blocks that only this map has.
    /// Returns those, for the caller to clear when no reader is left.
    pub(crate) fn replace(&mut self, new: UsedMap) -> Vec<Vbn> {
        assert_eq!(self.blocks, new.blocks, "a map is replaced by one of the same space");
        let old = std::mem::replace(self, new);
        let mut gone = Vec::new();
        for (number, (old, new)) in old.regions.iter().zip(&self.regions).enumerate() {
            // One of which every block is free, or one of which every block is in use now.
            if u64::from(old.free) == BITS_PER_MAP_BLOCK || new.free == 0 {
                continue;
            }
            for index in 0..WORDS_PER_REGION {
                let mut only = old.word(index) & !new.word(index);
                while only != 0 {
                    let bit = (index * 64) as u64 + u64::from(only.trailing_zeros());
                    gone.push(Vbn(number as u64 * BITS_PER_MAP_BLOCK + bit));
                    only &= only - 1;
                }
            }
        }
        for vbn in &gone {
            self.set(*vbn);
        }
        gone
    }

    /// Takes whole regions out of use: their map can't be read, so their free blocks are unknown.
    pub(crate) fn fill(&mut self, first: u64, regions: u64) {
        let last = first.saturating_add(regions).min(self.regions.len() as u64);
        for region in first..last {
            self.merge(region, &[0xff; (BITS_PER_MAP_BLOCK / 8) as usize]);
        }
    }

    /// Takes `count` free blocks, in runs as long as there are, and appends them to `taken`.
    /// Returns false (and takes none) when fewer are free.
    pub(crate) fn allocate(&mut self, count: usize, taken: &mut Vec<Vbn>) -> bool {
        if self.free < count as u64 {
            return false;
        }
        let mut left = count;
        while left > 0 {
            if self.word >= WORDS_PER_REGION || self.regions[self.region].free == 0 {
                self.region = self.next_region();
                self.word = 0;
                self.touched = self.touched.max(self.region + 1);
            }
            let first = (self.region * WORDS_PER_REGION + self.word) as u64 * 64;
            let before = !self.regions[self.region].word(self.word);
            let mut free = before;
            while free != 0 && left > 0 {
                taken.push(Vbn(first + u64::from(free.trailing_zeros())));
                free &= free - 1;
                left -= 1;
            }
            let own = before & !free;
            if own != 0 {
                self.regions[self.region].take(self.word, own);
                self.free -= u64::from(own.count_ones());
            }
            if free == 0 {
                self.word += 1;
            }
        }
        true
    }

    /// The emptiest region that was written before, if half of it is free, so that a thin device
    /// does not grow without need. Otherwise the emptiest of all: the first that was never written,
    /// if one is left (except for a short one at the end).
    fn next_region(&self) -> usize {
        let emptiest = |range: std::ops::Range<usize>| {
            range.max_by_key(|region| (self.regions[*region].free, std::cmp::Reverse(*region)))
        };
        let touched = emptiest(0..self.touched);
        if let Some(region) = touched
            && u64::from(self.regions[region].free) * 2 >= BITS_PER_MAP_BLOCK
        {
            return region;
        }
        emptiest(0..self.regions.len()).unwrap_or(0)
    }
}
