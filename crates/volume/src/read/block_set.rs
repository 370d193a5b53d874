//! Sets of blocks that may be most of a volume: a bit each, 32 MiB for a TiB, and only for regions
//! that have any.

use std::collections::BTreeMap;

use cairn_base::Vbn;
use cairn_format::layout::BITS_PER_MAP_BLOCK;

use crate::read::compare::{Run, append_runs};

const WORDS: usize = (BITS_PER_MAP_BLOCK / 64) as usize;
pub(crate) type Words = [u64; WORDS];

/// Numbers of blocks. Any number can be in it, also one that the volume has no block for.
#[derive(Debug, Default)]
pub(crate) struct BlockSet {
    regions: BTreeMap<u64, Box<Words>>,
}

impl BlockSet {
    /// Puts a block in; true if it was not.
    pub(crate) fn insert(&mut self, vbn: Vbn) -> bool {
        let words = self.regions.entry(vbn.0 / BITS_PER_MAP_BLOCK).or_insert_with(|| Box::new([0; WORDS]));
        let (word, bit) = (&mut words[word_of(vbn)], 1 << (vbn.0 % 64));
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    /// The regions in which it has blocks.
    pub(crate) fn regions(&self) -> impl Iterator<Item = u64> + '_ {
        self.regions.keys().copied()
    }

    /// The blocks of a region, as the bits of a map block.
    pub(crate) fn words(&self, region: u64) -> Option<&Words> {
        self.regions.get(&region).map(|words| &**words)
    }

    /// The blocks that both have.
    pub(crate) fn common<'a>(&'a self, other: &'a BlockSet) -> impl Iterator<Item = Vbn> + 'a {
        let shared =
            self.regions.iter().filter_map(|(region, words)| Some((*region, words, other.words(*region)?)));
        shared.flat_map(|(region, own, others)| {
            let mut both = **own;
            both.iter_mut().zip(others).for_each(|(word, other)| *word &= other);
            let mut runs = Vec::new();
            append_runs(&mut runs, region * BITS_PER_MAP_BLOCK, &both);
            runs.into_iter().flat_map(numbers)
        })
    }

    pub(crate) fn contains(&self, vbn: Vbn) -> bool {
        let words = self.regions.get(&(vbn.0 / BITS_PER_MAP_BLOCK));
        words.is_some_and(|words| words[word_of(vbn)] >> (vbn.0 % 64) & 1 == 1)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> u64 {
        let words = self.regions.values().flat_map(|words| words.iter());
        words.map(|word| u64::from(word.count_ones())).sum()
    }

    /// Runs of those that none of `others` has, region by region.
    pub(crate) fn without<'a>(&'a self, others: &'a [&BlockSet]) -> impl Iterator<Item = Run> + 'a {
        self.regions.iter().flat_map(|(region, words)| {
            let mut left = **words;
            for other in others.iter().filter_map(|other| other.regions.get(region)) {
                left.iter_mut().zip(other.iter()).for_each(|(word, other)| *word &= !other);
            }
            let mut runs = Vec::new();
            append_runs(&mut runs, region * BITS_PER_MAP_BLOCK, &left);
            runs
        })
    }
}

impl FromIterator<Run> for BlockSet {
    fn from_iter<T: IntoIterator<Item = Run>>(runs: T) -> Self {
        let mut set = Self::default();
        for vbn in runs.into_iter().flat_map(numbers) {
            set.insert(vbn);
        }
        set
    }
}

/// The blocks of a run.
pub(crate) fn numbers((first, count): Run) -> impl Iterator<Item = Vbn> {
    (first.0..first.0.saturating_add(count)).map(Vbn)
}

fn word_of(vbn: Vbn) -> usize {
    (vbn.0 % BITS_PER_MAP_BLOCK / 64) as usize
}
