//! The possible contents of a LUN's blocks after a kill, from the answers that its clients got.
//!
//! Each block has versions, numbered as they are submitted; no two requests for a block are in
//! flight at a time. After a kill a block shows one version, whole: the last one that an answered
//! flush (or FUA) covered, or a later one that was submitted. A shown version has been read from
//! durable content, so from then on only that version is allowed until the block is written again.

use anyhow::{Result, bail};
use cairn_base::{BLOCK_SIZE, Rng};

/// The bytes of a block.
pub(crate) type Block = [u8; BLOCK_SIZE];

#[derive(Default)]
struct Cell {
    /// The content of each version: true for zeroes (a trim, write-zeroes, or no write yet).
    zeroes: Vec<bool>,
    /// The version shown after the last kill.
    settled: u32,
    /// The first version since.
    first: u32,
    /// Covered by a flush since, if it is at least `first`.
    durable: u32,
    /// A request for it is in flight.
    busy: bool,
}

/// The versions that a block of a snapshot may show.
#[derive(Clone, Copy)]
struct Range {
    low: u32,
    /// Versions from here on also count.
    from: u32,
    /// Not included.
    end: u32,
}

/// The model of a LUN.
pub(crate) struct Model {
    seed: u64,
    cells: Vec<Cell>,
    /// Blocks and versions in the order in which their requests were answered; a flush covers a
    /// beginning of it.
    answered: Vec<(u32, u32)>,
    /// The part of it that a flush has covered.
    covered: usize,
}

/// The known content of a snapshot.
pub(crate) struct Shown {
    /// Its name.
    pub(crate) name: String,
    ranges: Vec<Range>,
}

impl Model {
    /// A LUN of `blocks` that reads as zeroes.
    pub(crate) fn new(seed: u64, blocks: usize) -> Self {
        let cell = || Cell { zeroes: vec![true], first: 1, ..Cell::default() };
        let cells = std::iter::repeat_with(cell).take(blocks).collect();
        Self { seed, cells, answered: Vec::new(), covered: 0 }
    }

    /// How many blocks it has.
    pub(crate) fn blocks(&self) -> usize {
        self.cells.len()
    }

    /// Takes a run of blocks that nothing is in flight for: its first block and length.
    pub(crate) fn claim(&mut self, rng: &mut Rng, longest: u64) -> Option<(u32, u32)> {
        for _ in 0..8 {
            let length = 1 + rng.below(longest);
            let start = rng.below(self.cells.len() as u64 - length + 1);
            let run = &mut self.cells[start as usize..(start + length) as usize];
            if run.iter().all(|cell| !cell.busy) {
                run.iter_mut().for_each(|cell| cell.busy = true);
                return Some((start as u32, length as u32));
            }
        }
        None
    }

    /// A new version of each block of a claimed run is submitted; its bytes, unless they are
    /// zeroes.
    pub(crate) fn submit(&mut self, start: u32, length: u32, zeroes: bool) -> Vec<u8> {
        let mut bytes = Vec::new();
        for block in start..start + length {
            let cell = &mut self.cells[block as usize];
            let version = cell.zeroes.len() as u32;
            cell.zeroes.push(zeroes);
            if !zeroes {
                bytes.extend_from_slice(&content(self.seed, block, version));
            }
        }
        bytes
    }

    /// The request of a claimed run was answered. `durable` when it had FUA.
    pub(crate) fn answer(&mut self, start: u32, length: u32, durable: bool) {
        for block in start..start + length {
            let cell = &mut self.cells[block as usize];
            let version = cell.zeroes.len() as u32 - 1;
            cell.busy = false;
            if durable {
                cell.durable = version;
            }
            self.answered.push((block, version));
        }
    }

    /// Compares the data of a read of a claimed run, and releases the run.
    pub(crate) fn compare(&mut self, start: u32, bytes: &[u8]) -> Result<()> {
        for (block, bytes) in (start..).zip(bytes.chunks(BLOCK_SIZE)) {
            let newest = self.newest(block);
            if !self.is_version(block, newest, bytes) {
                bail!(
                    "block {block} does not read as version {newest}, the last that was answered: {}",
                    words(bytes)
                );
            }
            self.cells[block as usize].busy = false;
        }
        Ok(())
    }

    /// A flush is about to be sent: returns the writes that it covers.
    pub(crate) fn flush_sent(&self) -> usize {
        self.answered.len()
    }

    /// That flush was answered.
    pub(crate) fn flush_answered(&mut self, sent: usize) {
        for &(block, version) in self.answered.get(self.covered..sent).unwrap_or_default() {
            let cell = &mut self.cells[block as usize];
            cell.durable = cell.durable.max(version);
        }
        self.covered = self.covered.max(sent);
    }

    /// The version that readers see when nothing is in flight.
    fn newest(&self, block: u32) -> u32 {
        let cell = &self.cells[block as usize];
        let last = cell.zeroes.len() as u32 - 1;
        if last < cell.first { cell.settled } else { last }
    }

    /// Of a snapshot whose creation begins now: the oldest versions that it may show.
    pub(crate) fn snapshot_begins(&self) -> Vec<u32> {
        let answered = |block: u32| {
            let cell = &self.cells[block as usize];
            let newest = self.newest(block);
            // Writes in flight may be missing in it.
            match newest {
                newest if !cell.busy => newest,
                newest if newest > cell.first => newest - 1,
                _ => cell.settled,
            }
        };
        (0..self.cells.len() as u32).map(answered).collect()
    }

    /// That snapshot was made.
    pub(crate) fn snapshot_made(&self, name: String, oldest: Vec<u32>) -> Shown {
        let range = |(cell, low): (&Cell, u32)| Range {
            low,
            from: (low + 1).max(cell.first),
            end: cell.zeroes.len() as u32,
        };
        Shown { name, ranges: self.cells.iter().zip(oldest).map(range).collect() }
    }

    /// Compares a whole snapshot.
    pub(crate) fn compare_snapshot(&self, shown: &Shown, bytes: &[u8]) -> Result<()> {
        for ((block, range), bytes) in (0..).zip(&shown.ranges).zip(bytes.chunks(BLOCK_SIZE)) {
            if self.find(block, range.low, range.from..range.end, bytes).is_none() {
                bail!(
                    "snapshot {}: block {block} shows none of the versions {} and {}..{}: {}",
                    shown.name,
                    range.low,
                    range.from,
                    range.end,
                    words(bytes)
                );
            }
        }
        Ok(())
    }

    /// Compares the whole LUN after a kill, and starts over from its content.
    pub(crate) fn settle(&mut self, bytes: &[u8]) -> Result<()> {
        for (block, bytes) in (0..).zip(bytes.chunks(BLOCK_SIZE)) {
            let cell = &self.cells[block as usize];
            let end = cell.zeroes.len() as u32;
            let oldest = if cell.durable >= cell.first { cell.durable } else { cell.settled };
            let from = (oldest + 1).max(cell.first);
            let Some(version) = self.find(block, oldest, from..end, bytes) else {
                bail!(
                    "block {block} shows none of the versions {oldest} (durable) and {from}..{end} (submitted): {}",
                    words(bytes)
                );
            };
            let cell = &mut self.cells[block as usize];
            (cell.settled, cell.first, cell.durable, cell.busy) = (version, end, 0, false);
        }
        self.answered.clear();
        self.covered = 0;
        Ok(())
    }

    fn find(&self, block: u32, oldest: u32, later: std::ops::Range<u32>, bytes: &[u8]) -> Option<u32> {
        later.rev().chain([oldest]).find(|version| self.is_version(block, *version, bytes))
    }

    fn is_version(&self, block: u32, version: u32, bytes: &[u8]) -> bool {
        if self.cells[block as usize].zeroes[version as usize] {
            bytes.iter().all(|byte| *byte == 0)
        } else {
            bytes == content(self.seed, block, version)
        }
    }
}

/// The bytes of a version: each word contains block, version and place, so that a mixture is
/// detected.
pub(crate) fn content(seed: u64, block: u32, version: u32) -> Block {
    let mut bytes = [0; BLOCK_SIZE];
    let name = u64::from(block) << 32 | u64::from(version);
    let start = Rng::new(seed ^ name).next();
    for (index, word) in (0u64..).zip(bytes.chunks_exact_mut(8)) {
        word.copy_from_slice(&(start.wrapping_add(index) ^ 1 << 63).to_le_bytes());
    }
    bytes[..8].copy_from_slice(&name.to_le_bytes());
    bytes
}

/// The beginning of each sector, for a message.
fn words(bytes: &[u8]) -> String {
    let word = |sector: &[u8]| sector.iter().take(8).map(|byte| format!("{byte:02x}")).collect::<String>();
    bytes.chunks(512).map(word).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests;
