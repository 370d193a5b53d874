//! Bytes in pieces of shared blocks: the result of reads and the data of writes.

use smallvec::SmallVec;

use crate::block::{Block, BlockMut};
use cairn_base::BLOCK_SIZE;

/// `start..end` of a block.
#[derive(Debug, Clone)]
pub struct Segment {
    block: Block,
    start: u16,
    end: u16,
}

impl Segment {
    /// The bytes `start..end` of `block`; panics unless `start <= end <= 4096`.
    pub fn new(block: Block, start: usize, end: usize) -> Self {
        assert!(start <= end && end <= BLOCK_SIZE, "a segment lies within its block");
        Self { block, start: start as u16, end: end as u16 }
    }

    /// A whole block.
    pub fn whole(block: Block) -> Self {
        Self::new(block, 0, BLOCK_SIZE)
    }

    /// The block when the segment is all of it.
    pub fn as_whole(&self) -> Option<&Block> {
        (self.len() == BLOCK_SIZE).then_some(&self.block)
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.block[usize::from(self.start)..usize::from(self.end)]
    }

    /// How many bytes.
    pub fn len(&self) -> usize {
        usize::from(self.end - self.start)
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }
}

/// Bytes in order, in pieces.
#[derive(Debug, Clone, Default)]
pub struct Segments {
    pieces: SmallVec<[Segment; 1]>,
    length: usize,
}

impl Segments {
    /// A copy of `bytes` in new blocks.
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut segments = Self::default();
        let mut blocks = Vec::new();
        BlockMut::append_run(&mut blocks, bytes.len().div_ceil(BLOCK_SIZE));
        for (mut block, chunk) in blocks.into_iter().zip(bytes.chunks(BLOCK_SIZE)) {
            let (head, tail) = block.split_at_mut(chunk.len());
            head.copy_from_slice(chunk);
            tail.fill(0);
            segments.push(Segment::new(block.freeze(), 0, chunk.len()));
        }
        segments
    }

    /// Adds a piece at the end; an empty one adds nothing.
    pub fn push(&mut self, segment: Segment) {
        if !segment.is_empty() {
            self.length += segment.len();
            self.pieces.push(segment);
        }
    }

    /// Adds a whole block at the end.
    pub fn push_block(&mut self, block: Block) {
        self.push(Segment::whole(block));
    }

    /// The pieces in order; no piece is empty.
    pub fn iter(&self) -> std::slice::Iter<'_, Segment> {
        self.pieces.iter()
    }

    /// Bytes in all.
    pub fn len(&self) -> usize {
        self.length
    }

    /// True when it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Adds all pieces of `other` at the end.
    pub fn append(&mut self, other: Segments) {
        self.length += other.length;
        self.pieces.extend(other.pieces);
    }

    /// The bytes `start..start + length`, sharing the blocks; panics unless they are within.
    pub fn slice(&self, start: usize, length: usize) -> Self {
        assert!(start <= self.length && length <= self.length - start, "a slice lies within its segments");
        let mut skip = start;
        let mut left = length;
        let mut slice = Self::default();
        for piece in &self.pieces {
            if left == 0 {
                break;
            }
            if skip >= piece.len() {
                skip -= piece.len();
                continue;
            }
            let take = left.min(piece.len() - skip);
            let from = usize::from(piece.start) + skip;
            slice.push(Segment::new(piece.block.clone(), from, from + take));
            skip = 0;
            left -= take;
        }
        slice
    }

    /// The blocks, in order, if each piece is a whole one; otherwise the segments unchanged.
    pub fn into_blocks(self) -> Result<impl Iterator<Item = Block>, Self> {
        match self.pieces.len() * BLOCK_SIZE == self.length {
            true => Ok(self.pieces.into_iter().map(|piece| piece.block)),
            false => Err(self),
        }
    }

    /// Copies all bytes into `buffer`, which must have their length.
    pub fn copy_to(&self, buffer: &mut [u8]) {
        assert_eq!(buffer.len(), self.length, "the buffer has the length of the segments");
        let mut rest = buffer;
        for piece in &self.pieces {
            let (head, tail) = rest.split_at_mut(piece.len());
            head.copy_from_slice(piece.bytes());
            rest = tail;
        }
    }

    /// All bytes in one vector.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.length];
        self.copy_to(&mut bytes);
        bytes
    }
}

impl From<Block> for Segments {
    fn from(block: Block) -> Self {
        let mut segments = Self::default();
        segments.push_block(block);
        segments
    }
}

impl FromIterator<Segment> for Segments {
    fn from_iter<I: IntoIterator<Item = Segment>>(pieces: I) -> Self {
        let pieces = pieces.into_iter();
        let mut segments = Self::default();
        segments.pieces.reserve(pieces.size_hint().0);
        pieces.for_each(|piece| segments.push(piece));
        segments
    }
}

impl FromIterator<Block> for Segments {
    fn from_iter<I: IntoIterator<Item = Block>>(blocks: I) -> Self {
        blocks.into_iter().map(Segment::whole).collect()
    }
}
