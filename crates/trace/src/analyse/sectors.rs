//! Which 512-byte sectors were written, as a map of 128 bits for each 64 KiB: from it the
//! first-touch copies of every snap block size follow (2006 paper, section 4).

use std::collections::BTreeMap;

use super::pages::{Table, key};

/// Snap block sizes of the 2006 paper, and those between.
pub(crate) const SNAP_BLOCKS: [u64; 8] = [512, 1024, 2048, 4096, 8192, 16384, 32768, 65536];
const CHUNK: u64 = 65536;
const SECTOR: u64 = 512;

/// The map, and sums over the writes.
#[derive(Clone)]
pub(crate) struct Sectors {
    chunks: Vec<(u64, u128)>,
    table: Table,
    sums: [Sums; SNAP_BLOCKS.len()],
}

#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    touches: u64,
    efficiency: f64,
    partial: u64,
}

impl Sectors {
    pub(crate) fn new() -> Self {
        Self { chunks: Vec::new(), table: Table::new(), sums: Default::default() }
    }

    pub(crate) fn memory(&self) -> u64 {
        (self.chunks.capacity() * size_of::<(u64, u128)>()) as u64 + self.table.memory()
    }

    /// A write of at least one byte.
    pub(crate) fn write(&mut self, device: u32, offset: u64, length: u64) {
        let end = offset + length;
        for (size, sums) in SNAP_BLOCKS.into_iter().zip(&mut self.sums) {
            let touched = (end - 1) / size - offset / size + 1;
            sums.touches += touched;
            sums.efficiency += length as f64 / (touched * size) as f64;
            sums.partial += u64::from(!offset.is_multiple_of(size) || !end.is_multiple_of(size));
        }
        let (first, last) = (offset / SECTOR, (end - 1) / SECTOR);
        let per_chunk = CHUNK / SECTOR;
        for chunk in first / per_chunk..=last / per_chunk {
            let from = first.max(chunk * per_chunk) % per_chunk;
            let to = last.min(chunk * per_chunk + per_chunk - 1) % per_chunk;
            let bits = (u128::MAX >> (127 - (to - from))) << from;
            let chunks = &self.chunks;
            let key = key(device, chunk);
            let number =
                self.table.find_or_insert(key, chunks.len() as u32, |number| chunks[number as usize].0);
            match self.chunks.get_mut(number as usize) {
                Some((_, map)) => *map |= bits,
                None => self.chunks.push((key, bits)),
            }
        }
    }

    /// For each size: blocks touched by all writes, blocks touched at least once, the sum over
    /// writes of length divided by touched bytes, and writes that do not cover the blocks that they
    /// touch.
    pub(crate) fn result(&self) -> BTreeMap<u64, (u64, u64, f64, u64)> {
        let mut result = BTreeMap::new();
        for (size, sums) in SNAP_BLOCKS.into_iter().zip(&self.sums) {
            let width = (size / SECTOR) as u32;
            let mask = u128::MAX >> (128 - width);
            let touched = |map: u128| (0..128 / width).filter(|at| map >> (at * width) & mask != 0).count();
            let first: u64 = self.chunks.iter().map(|(_, map)| touched(*map) as u64).sum();
            result.insert(size, (sums.touches, first, sums.efficiency, sums.partial));
        }
        result
    }
}
