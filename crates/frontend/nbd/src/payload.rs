//! The payload of a write on its way from the socket into blocks.
//!
//! Bytes stand in their block where they stand in the device's block, so that a write at an aligned offset becomes
//! whole blocks, whatever its neighbours on the wire are.

use std::io::IoSliceMut;

use cairn_base::BLOCK_SIZE;
use cairn_device::{BlockMut, Segment, Segments};

use crate::limits::PAYLOAD_BYTES_AHEAD;

/// `length` bytes that are to come.
pub(crate) struct Payload {
    blocks: Vec<BlockMut>,
    /// Where the first byte stands in the first block.
    start: usize,
    /// Where the next byte goes, counted from the start of the first block.
    next: usize,
    /// Past the last byte, counted in the same way.
    end: usize,
}

impl Payload {
    /// The payload of a write of `length` bytes at `offset`.
    pub(crate) fn new(offset: u64, length: u32) -> Self {
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
    pub(crate) fn missing(&self) -> usize {
        self.end - self.next
    }

    /// Sets memory aside for what comes next; it never runs far ahead of what has come.
    fn make_room(&mut self) {
        let until = self.end.min(self.next + PAYLOAD_BYTES_AHEAD).div_ceil(BLOCK_SIZE);
        while self.blocks.len() < until {
            self.blocks.push(BlockMut::dirty());
        }
    }

    /// Copies from the front of `bytes` what belongs here; returns how many.
    pub(crate) fn fill(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.missing());
        let mut rest = &bytes[..count];
        while !rest.is_empty() {
            if self.next / BLOCK_SIZE == self.blocks.len() {
                self.blocks.push(BlockMut::dirty());
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

    /// Appends the memory where the next bytes belong.
    pub(crate) fn vectors<'a>(&'a mut self, into: &mut Vec<IoSliceMut<'a>>) {
        self.make_room();
        let (next, end) = (self.next, self.end);
        for (index, block) in self.blocks.iter_mut().enumerate().skip(next / BLOCK_SIZE) {
            let base = index * BLOCK_SIZE;
            let from = next.saturating_sub(base);
            let to = (end - base).min(BLOCK_SIZE);
            into.push(IoSliceMut::new(&mut block[from..to]));
        }
    }

    /// Counts bytes that were received into [`Payload::vectors`]; returns those that were beyond.
    pub(crate) fn received(&mut self, count: usize) -> usize {
        let room = (self.blocks.len() * BLOCK_SIZE).min(self.end) - self.next;
        let mine = count.min(room);
        self.next += mine;
        count - mine
    }

    /// True when the next receive can fill in all that is missing.
    pub(crate) fn has_room_for_all(&self) -> bool {
        self.end <= self.next + PAYLOAD_BYTES_AHEAD
    }

    /// All bytes; nothing may be missing.
    pub(crate) fn finish(self) -> Segments {
        debug_assert_eq!(self.missing(), 0);
        let Self { blocks, start, end, .. } = self;
        let pieces = blocks.into_iter().enumerate().map(|(index, block)| {
            let base = index * BLOCK_SIZE;
            Segment::new(block.freeze(), start.saturating_sub(base), (end - base).min(BLOCK_SIZE))
        });
        pieces.collect()
    }
}
