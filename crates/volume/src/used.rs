//! Which blocks may not be allocated, and which to take next. One bit a block: 32 MiB of memory per TiB.
//!
//! A bit is set while any root or snapshot reaches the block, while an uncommitted generation has allocated
//! it, and until a freed block is safe to reuse (its free is committed in both superblock slots and no reader can still see it).

use cairn_base::Vbn;
use cairn_format::layout::BITS_PER_MAP_BLOCK;

const WORDS_PER_REGION: usize = (BITS_PER_MAP_BLOCK / 64) as usize;

/// The blocks in use, and a cursor that fills one region (128 MiB) after the other.
pub(crate) struct UsedMap {
    blocks: u64,
    words: Vec<u64>,
    /// Free blocks of each region.
    region_free: Vec<u32>,
    free: u64,
    /// Regions below this have been written before: on a thin device they have their space already.
    touched: usize,
    region: usize,
    word: usize,
}

impl UsedMap {
    /// A map of `blocks`, all free but vbn 0, which is never allocated.
    pub(crate) fn new(blocks: u64) -> Self {
        let mut map = Self {
            blocks: 0,
            words: Vec::new(),
            region_free: Vec::new(),
            free: 0,
            touched: 0,
            region: 0,
            word: 0,
        };
        map.grow(blocks);
        map.set(Vbn(0));
        map
    }

    /// Adds free blocks at the end.
    pub(crate) fn grow(&mut self, blocks: u64) {
        let regions = blocks.div_ceil(BITS_PER_MAP_BLOCK) as usize;
        let old = self.blocks;
        // The bits past the end are set, so that they are never taken.
        self.words.resize(regions * WORDS_PER_REGION, u64::MAX);
        self.region_free.resize(regions, 0);
        self.blocks = blocks;
        for number in old..blocks {
            self.words[(number / 64) as usize] &= !(1 << (number % 64));
            self.region_free[(number / BITS_PER_MAP_BLOCK) as usize] += 1;
        }
        self.free += blocks - old;
    }

    pub(crate) fn free(&self) -> u64 {
        self.free
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    #[inline]
    pub(crate) fn get(&self, vbn: Vbn) -> bool {
        self.words.get((vbn.0 / 64) as usize).is_none_or(|word| word >> (vbn.0 % 64) & 1 == 1)
    }

    /// Marks a block; true if it was free.
    pub(crate) fn set(&mut self, vbn: Vbn) -> bool {
        let was_free = !self.get(vbn);
        if was_free {
            self.words[(vbn.0 / 64) as usize] |= 1 << (vbn.0 % 64);
            let region = (vbn.0 / BITS_PER_MAP_BLOCK) as usize;
            self.region_free[region] -= 1;
            self.free -= 1;
            self.touched = self.touched.max(region + 1);
        }
        was_free
    }

    /// Frees a block, which must be in use.
    pub(crate) fn clear(&mut self, vbn: Vbn) {
        assert!(vbn.0 != 0 && vbn.0 < self.blocks && self.get(vbn), "only a block in use is freed: {vbn:?}");
        self.words[(vbn.0 / 64) as usize] &= !(1 << (vbn.0 % 64));
        self.region_free[(vbn.0 / BITS_PER_MAP_BLOCK) as usize] += 1;
        self.free += 1;
    }

    /// ORs a block of an active map into the region that it describes.
    pub(crate) fn merge(&mut self, region: u64, bits: &[u8]) {
        let start = region as usize * WORDS_PER_REGION;
        let Some(words) = self.words.get_mut(start..start + WORDS_PER_REGION) else { return };
        let mut taken = 0;
        for (word, bytes) in words.iter_mut().zip(bits.chunks_exact(8)) {
            let mut raw = [0; 8];
            raw.copy_from_slice(bytes);
            let new = u64::from_le_bytes(raw) & !*word;
            *word |= new;
            taken += new.count_ones();
        }
        self.region_free[region as usize] -= taken;
        self.free -= u64::from(taken);
        if taken > 0 {
            self.touched = self.touched.max(region as usize + 1);
        }
    }

    /// Replaces the map by `new`, of the same size, but keeps what only this one has: those blocks are returned, to be cleared
    /// when nobody reads them any more.
    pub(crate) fn replace(&mut self, new: UsedMap) -> Vec<Vbn> {
        assert_eq!(self.blocks, new.blocks, "a map is replaced by one of the same space");
        let old = std::mem::replace(self, new);
        let mut gone = Vec::new();
        for (index, (old, new)) in old.words.iter().zip(&self.words).enumerate() {
            let mut only = old & !new;
            while only != 0 {
                gone.push(Vbn(index as u64 * 64 + u64::from(only.trailing_zeros())));
                only &= only - 1;
            }
        }
        for vbn in &gone {
            self.set(*vbn);
        }
        gone
    }

    /// Takes whole regions out of use: their map can't be read, so what is free in them is not known.
    pub(crate) fn fill(&mut self, first: u64, regions: u64) {
        let last = first.saturating_add(regions).min(self.region_free.len() as u64);
        for region in first..last {
            self.merge(region, &[0xff; (BITS_PER_MAP_BLOCK / 8) as usize]);
        }
    }

    /// Takes `count` free blocks, in runs as long as there are, and appends them to `taken`. Returns false (and takes none) when fewer are free.
    pub(crate) fn allocate(&mut self, count: usize, taken: &mut Vec<Vbn>) -> bool {
        if self.free < count as u64 {
            return false;
        }
        let mut left = count;
        while left > 0 {
            if self.word >= WORDS_PER_REGION || self.region_free[self.region] == 0 {
                self.region = self.next_region();
                self.word = 0;
                self.touched = self.touched.max(self.region + 1);
            }
            let index = self.region * WORDS_PER_REGION + self.word;
            let mut free = !self.words[index];
            while free != 0 && left > 0 {
                let bit = free.trailing_zeros();
                free &= free - 1;
                self.words[index] |= 1 << bit;
                taken.push(Vbn(index as u64 * 64 + u64::from(bit)));
                self.region_free[self.region] -= 1;
                self.free -= 1;
                left -= 1;
            }
            if free == 0 {
                self.word += 1;
            }
        }
        true
    }

    /// The emptiest region that was written before if half of it is free, so that a thin device does not grow without need;
    /// else the emptiest there is: the first that never was, as long as there is one (but for a short one at the end).
    fn next_region(&self) -> usize {
        let emptiest = |range: std::ops::Range<usize>| {
            range.max_by_key(|region| (self.region_free[*region], std::cmp::Reverse(*region)))
        };
        let touched = emptiest(0..self.touched);
        if let Some(region) = touched
            && u64::from(self.region_free[region]) * 2 >= BITS_PER_MAP_BLOCK
        {
            return region;
        }
        emptiest(0..self.region_free.len()).unwrap_or(0)
    }
}
