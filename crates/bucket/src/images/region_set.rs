//! Sets of regions: a bit for each, 32 KiB for a TiB of block space.

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct RegionSet {
    words: Vec<u64>,
}

impl RegionSet {
    pub(super) fn insert(&mut self, region: u32) {
        let at = region as usize / 64;
        if self.words.len() <= at {
            self.words.resize(at + 1, 0);
        }
        if let Some(word) = self.words.get_mut(at) {
            *word |= 1 << (region % 64);
        }
    }

    pub(super) fn remove(&mut self, region: u32) {
        if let Some(word) = self.words.get_mut(region as usize / 64) {
            *word &= !(1 << (region % 64));
        }
    }

    pub(super) fn contains(&self, region: u32) -> bool {
        self.words.get(region as usize / 64).is_some_and(|word| word >> (region % 64) & 1 == 1)
    }

    /// The regions in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let of_word = |(at, word): (usize, &u64)| {
            let (first, word) = (at as u32 * 64, *word);
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| first + bit)
        };
        self.words.iter().enumerate().filter(|(_, word)| **word != 0).flat_map(of_word)
    }

    pub(super) fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Bytes of memory.
    pub(super) fn memory(&self) -> u64 {
        self.words.capacity() as u64 * 8
    }
}

impl Extend<u32> for RegionSet {
    fn extend<T: IntoIterator<Item = u32>>(&mut self, regions: T) {
        regions.into_iter().for_each(|region| self.insert(region));
    }
}
