//! The proof that an update put the blocks which the trees of the volume name.
//!
//! Blocks are read by their numbers, past the trees, so nothing has checked them when they are put.
//! Before the image is committed, the trees of the new snapshots are walked where they differ from
//! those at the reader. The sum over the number and the checksum of each block on the way must be
//! the sum over the blocks that were put. A sum takes no memory for each block, whatever their
//! order is.
//!
//! Only blocks that the base in the bucket lacks are proved. Others of the same region go with
//! them, and were proved when they were new.

use cairn_base::{BLOCK_SIZE, Checksum, Vbn};

use super::region::RegionBlocks;
use super::volume::RegionBits;

/// The sum over some blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Sum {
    /// How many there are.
    pub(super) blocks: u64,
    sum: u128,
}

impl Sum {
    /// Adds a block.
    pub(super) fn add(&mut self, vbn: Vbn, checksum: &Checksum) {
        let term = Checksum::of_pieces([&vbn.0.to_le_bytes()[..], &checksum.0].into_iter());
        self.sum = self.sum.wrapping_add(u128::from_le_bytes(term.0));
        self.blocks += 1;
    }

    /// Adds those of another sum.
    pub(super) fn join(&mut self, other: Sum) {
        self.sum = self.sum.wrapping_add(other.sum);
        self.blocks += other.blocks;
    }

    /// The blocks of a region that are new: each of `new` has the places that one snapshot adds.
    pub(super) fn of_region(region: u32, blocks: &RegionBlocks, new: &[RegionBits]) -> Self {
        let mut sum = Self::default();
        for (place, block) in blocks.iter() {
            let times = new.iter().filter(|bits| bits[place / 64] >> (place % 64) & 1 == 1).count();
            if times == 0 {
                continue;
            }
            debug_assert_eq!(block.len(), BLOCK_SIZE);
            let vbn = Vbn(u64::from(region) * super::REGION_BLOCKS as u64 + place as u64);
            let checksum = Checksum::of(block);
            (0..times).for_each(|_| sum.add(vbn, &checksum));
        }
        sum
    }
}
