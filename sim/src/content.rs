//! The content that clients write: every block's bytes follow from one number, so that a read
//! identifies its write, and a mixture of two is detected too.

use std::fmt;

use cairn_base::BLOCK_SIZE;
use cairn_device::{Block, BlockMut};

/// Names the content of a block. 0 is zeroes; every write of a run has its own number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Tag(pub u64);

/// Odd, so that no two words of a block are the same.
const STRIDE: u64 = 0x9e37_79b9_7f4a_7c15;

impl Tag {
    /// The tag of a hole.
    pub const ZERO: Tag = Tag(0);

    /// The block that this number names.
    pub fn block(self) -> Block {
        if self == Tag::ZERO {
            return Block::zero();
        }
        let mut bytes = BlockMut::zeroed();
        for (index, word) in bytes.chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&self.0.wrapping_add(STRIDE.wrapping_mul(index as u64)).to_le_bytes());
        }
        bytes.freeze()
    }

    /// The number that names `bytes`, a block; `None` when no write ever looked like that.
    pub fn of(bytes: &[u8]) -> Option<Tag> {
        assert_eq!(bytes.len(), BLOCK_SIZE, "blocks are looked at whole");
        let word = |index: usize| {
            let mut raw = [0; 8];
            raw.copy_from_slice(&bytes[index * 8..index * 8 + 8]);
            u64::from_le_bytes(raw)
        };
        let tag = Tag(word(0));
        let stride = if tag == Tag::ZERO { 0 } else { STRIDE };
        let whole = (0..BLOCK_SIZE / 8)
            .all(|index| word(index) == tag.0.wrapping_add(stride.wrapping_mul(index as u64)));
        whole.then_some(tag)
    }
}

impl fmt::Debug for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// Tags of a stretch of blocks as they were read; `None` for a block with other content.
pub type Seen = Vec<Option<Tag>>;
