//! The data of a write between the socket and its blocks.
//!
//! Bytes have the same offset in their block as in the device's block, so that a write at an
//! aligned offset becomes whole blocks, whatever its neighbours on the wire are.

use std::io::IoSliceMut;

use cairn_base::BLOCK_SIZE;
use cairn_device::{BlockMut, Segment, Segments};

use crate::limits::{FILL_BYTES_AHEAD, PAYLOAD_BYTES_AHEAD};

/// `length` bytes that are to come.
#[derive(Debug)]
pub struct Payload {
    blocks: Vec<BlockMut>,
    /// The offset of the first byte in the first block.
    start: usize,
    /// The place of the next byte, counted from the start of the first block.
    next: usize,
    /// Past the last byte, counted in the same way.
    end: usize,
}

impl Payload {
    /// The data of a write: `length` bytes that go at `offset`.
    pub fn new(offset: u64, length: u32) -> Self {
        let start = (offset % BLOCK_SIZE as u64) as usize;
        let end = start + length as usize;
        Self {
            blocks: Vec::with_capacity(end.min(PAYLOAD_BYTES_AHEAD).div_ceil(BLOCK_SIZE)),
            start,
            next: start,
            end,
        }
    }

    /// Bytes that are still missing.
    pub fn missing(&self) -> usize {
        self.end - self.next
    }

    #[cfg(test)]
    pub(crate) fn memory(&self) -> usize {
        self.blocks.len() * BLOCK_SIZE
    }

    /// Allocates memory for the next `most` bytes, or as many as it may run ahead of the received
    /// bytes.
    fn make_room(&mut self, most: usize) {
        let until = self.end.min(self.next + most.min(PAYLOAD_BYTES_AHEAD)).div_ceil(BLOCK_SIZE);
        let missing = until.saturating_sub(self.blocks.len());
        BlockMut::append_run(&mut self.blocks, missing);
    }

    /// Copies its part from the front of `bytes`; returns how many.
    pub fn fill(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.missing());
        let mut rest = &bytes[..count];
        while !rest.is_empty() {
            if self.next / BLOCK_SIZE == self.blocks.len() {
                self.make_room(FILL_BYTES_AHEAD);
            }
            let block = &mut self.blocks[self.next / BLOCK_SIZE];
            let at = self.next % BLOCK_SIZE;
            let (now, later) = rest.split_at(rest.len().min(BLOCK_SIZE - at));
            block[at..at + now.len()].copy_from_slice(now);
            self.next += now.len();
            rest = later;
        }
        count
    }

    /// Appends the memory where the next bytes belong, `most` at most; returns how many bytes it
    /// is. That is fewer than are missing when those are more than memory is set aside for.
    pub fn vectors<'a>(&'a mut self, most: usize, into: &mut Vec<IoSliceMut<'a>>) -> usize {
        self.make_room(most);
        let next = self.next;
        let end = self.end.min(next.saturating_add(most)).min(self.blocks.len() * BLOCK_SIZE);
        for (index, block) in self.blocks.iter_mut().enumerate().skip(next / BLOCK_SIZE) {
            let base = index * BLOCK_SIZE;
            if base >= end {
                break;
            }
            let from = next.saturating_sub(base);
            let to = (end - base).min(BLOCK_SIZE);
            into.push(IoSliceMut::new(&mut block[from..to]));
        }
        end - next
    }

    /// Counts bytes that were received into [`Payload::vectors`].
    pub fn advance(&mut self, count: usize) {
        self.next += count;
        debug_assert!(self.next <= self.end);
    }

    /// Ends it at its present length: no more data comes.
    pub fn cut(&mut self) {
        self.end = self.next;
        self.blocks.truncate(self.end.div_ceil(BLOCK_SIZE));
    }

    /// All bytes; nothing may be missing.
    pub fn finish(self) -> Segments {
        debug_assert_eq!(self.missing(), 0);
        let Self { blocks, start, end, .. } = self;
        let pieces = blocks.into_iter().enumerate().map(|(index, block)| {
            let base = index * BLOCK_SIZE;
            Segment::new(block.freeze(), start.saturating_sub(base), (end - base).min(BLOCK_SIZE))
        });
        pieces.collect()
    }
}

/// Calls `take` with the bytes of `length` from `skip` on, in pieces.
pub fn each_piece<'a>(data: &'a Segments, mut skip: usize, length: usize, mut take: impl FnMut(&'a [u8])) {
    let mut left = length;
    for segment in data.iter() {
        let bytes = segment.bytes();
        if skip >= bytes.len() {
            skip -= bytes.len();
            continue;
        }
        let bytes = &bytes[skip..];
        let bytes = &bytes[..left.min(bytes.len())];
        if bytes.is_empty() {
            break;
        }
        take(bytes);
        left -= bytes.len();
        skip = 0;
    }
}
