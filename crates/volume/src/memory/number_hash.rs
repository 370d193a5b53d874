//! Tables whose keys are numbers of blocks and files.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

/// Multiplies by a large odd constant. An adversary's choice of block numbers does not matter here
/// (a LUN's client can only slow down its own LUN), and SipHash costs more than the rest of a
/// lookup.
#[derive(Default)]
pub(crate) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        let mixed = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

pub(crate) type NumberSet = HashSet<u64, BuildHasherDefault<NumberHasher>>;
pub(crate) type NumberMap<V> = HashMap<u64, V, BuildHasherDefault<NumberHasher>>;
