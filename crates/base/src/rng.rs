//! A small seeded generator (SplitMix64) whose sequence never changes, so that a seed replays a run
//! for ever.
//!
//! Crates of random numbers do not promise the same sequence over versions; this is for simulation
//! and jitter, never for secrets.

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// The generator for `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 64 uniform bits.
    #[expect(clippy::should_implement_trait, reason = "an iterator would wrap every number in an Option")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `0..bound`; `bound` must not be 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "an empty range has no member");
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// True once in `n`, on average.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// A generator of its own for a part of the run, so that a change in one part leaves the others
    /// alone.
    pub fn fork(&mut self) -> Self {
        Self(self.next())
    }

    /// Fills `bytes` at random.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.next().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}
