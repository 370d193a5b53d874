//! A sparse array of bytes in memory, with the content of the memory device and the fault device.
//!
//! Whole blocks are shared with their writers and readers; only partial ones are copied. Offsets
//! are within the length; the devices check that before.

use std::collections::BTreeMap;

use cairn_base::BLOCK_SIZE;

use crate::{Block, BlockMut, Extent, Segment, Segments};

const SIZE: u64 = BLOCK_SIZE as u64;

/// The blocks by number; a missing block is zero.
#[derive(Debug, Clone, Default)]
pub(crate) struct Image(BTreeMap<u64, Block>);

impl Image {
    pub(crate) fn read(&self, offset: u64, length: u64) -> Segments {
        let zero = Block::zero();
        pieces(offset, length)
            .map(|(number, start, end)| {
                Segment::new(self.0.get(&number).unwrap_or(&zero).clone(), start, end)
            })
            .collect()
    }

    pub(crate) fn write(&mut self, offset: u64, data: &Segments) {
        let mut at = offset;
        for piece in data.iter() {
            let next = at + piece.len() as u64;
            if let (Some(block), true) = (piece.as_whole(), at.is_multiple_of(SIZE)) {
                self.0.insert(at / SIZE, block.clone());
            } else {
                let mut bytes = piece.bytes();
                for (number, start, end) in pieces(at, piece.len() as u64) {
                    let (head, tail) = bytes.split_at(end - start);
                    self.edit(number, |block| block[start..end].copy_from_slice(head));
                    bytes = tail;
                }
            }
            at = next;
        }
    }

    /// Makes the bytes zero; whole blocks are freed.
    pub(crate) fn clear(&mut self, offset: u64, length: u64) {
        let end = offset + length;
        let (first, last) = (offset.div_ceil(SIZE), end / SIZE);
        if first < last {
            let mut from = self.0.split_off(&first);
            let mut after = from.split_off(&last);
            self.0.append(&mut after);
        }
        // The partial block at the front, and the one at the back unless it is the same.
        for (from, to) in [(offset, end.min(first * SIZE)), (offset.max(last * SIZE), end)] {
            for (number, start, end) in pieces(from, to.saturating_sub(from)) {
                if self.0.contains_key(&number) {
                    self.edit(number, |block| block[start..end].fill(0));
                }
            }
        }
    }

    /// The first extent of `offset..end`, which is not empty.
    pub(crate) fn extent(&self, offset: u64, end: u64) -> Extent {
        let mut number = offset / SIZE;
        let hole = !self.0.contains_key(&number);
        let mut stop = end;
        for (next, _) in self.0.range(number..) {
            if hole {
                stop = next * SIZE;
                break;
            }
            if *next != number || number * SIZE >= end {
                stop = number * SIZE;
                break;
            }
            number += 1;
            stop = number * SIZE;
        }
        Extent { length: stop.min(end) - offset, hole, zero: hole }
    }

    fn edit(&mut self, number: u64, change: impl FnOnce(&mut BlockMut)) {
        let mut block = match self.0.get(&number) {
            Some(old) => BlockMut::copy_of(old),
            None => BlockMut::zeroed(),
        };
        change(&mut block);
        self.0.insert(number, block.freeze());
    }
}

/// The extents of an image, see `Device::extents`.
pub(crate) fn extents(image: &Image, offset: u64, length: u64, limit: usize) -> Vec<Extent> {
    let end = offset + length;
    let mut at = offset;
    let mut extents = Vec::new();
    while at < end && extents.len() < limit {
        let extent = image.extent(at, end);
        at += extent.length;
        extents.push(extent);
    }
    extents
}

/// The range in blocks: number, and where in it the range starts and ends.
fn pieces(offset: u64, length: u64) -> impl Iterator<Item = (u64, usize, usize)> {
    let end = offset + length;
    let numbers = offset / SIZE..end.div_ceil(SIZE).max(offset / SIZE);
    numbers.map(move |number| {
        let base = number * SIZE;
        let start = offset.saturating_sub(base) as usize;
        (number, start, (end - base).min(SIZE) as usize)
    })
}
