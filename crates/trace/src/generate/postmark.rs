//! A substitute for PostMark on a file system that writes in place (MSST 2006, figure 6): the
//! program's own parameters, and the simplest file system under it.
//!
//! Files of 500 B to 9.77 KiB are created, then each transaction reads a file or appends to one,
//! and creates a file or deletes one, with even chances. Files take runs of whole blocks, next-fit.
//! An inode is 256 bytes in a table, a directory entry 64 bytes in 128 directories, the map of free
//! blocks one bit a block. Writes are delayed and go out every 5 s, each dirty block once,
//! neighbours together. A deleted file's blocks are no longer written, and are trimmed. Additions
//! of a real file system (a journal, indirect blocks) are missing.

use std::collections::{BTreeSet, VecDeque};

use cairn_base::Rng;

use super::{UNIT, gap};
use crate::{TraceOp, TraceRecord};

const SIZE_MIN: u64 = 500;
const SIZE_MAX: u64 = 10_000;
const INODES_A_BLOCK: u64 = UNIT / 256;
const ENTRIES_A_BLOCK: u64 = UNIT / 64;
const BITS_A_BLOCK: u64 = UNIT * 8;
const DELAY_NS: u64 = 5_000_000_000;
/// Blocks of one request at most.
const JOINED_MAX: u64 = 64;

struct File {
    inode: u64,
    first: u64,
    blocks: u64,
    bytes: u64,
}

/// The workload.
pub struct PostMark {
    rng: Rng,
    rate: f64,
    at_ns: u64,
    written_ns: u64,
    transactions: u64,
    to_create: u64,
    files: Vec<File>,
    free_inodes: Vec<u64>,
    next_inode: u64,
    /// Blocks in use.
    used: Vec<bool>,
    cursor: u64,
    /// First block of the directories, of the map, of the inodes, of data.
    starts: [u64; 4],
    dirty: BTreeSet<u64>,
    freed: Vec<(u64, u64)>,
    ready: VecDeque<TraceRecord>,
    ended: bool,
}

impl PostMark {
    /// `files` files at the beginning, then `transactions`, at `rate` operations a second.
    pub fn new(files: u64, transactions: u64, rate: f64, seed: u64) -> Self {
        let inodes = files + transactions;
        let data = (files + transactions) * SIZE_MAX.div_ceil(UNIT) * 2;
        let directories = inodes.div_ceil(ENTRIES_A_BLOCK);
        let map = data.div_ceil(BITS_A_BLOCK);
        let table = inodes.div_ceil(INODES_A_BLOCK);
        Self {
            rng: Rng::new(seed),
            rate,
            at_ns: 0,
            written_ns: 0,
            transactions,
            to_create: files,
            files: Vec::new(),
            free_inodes: Vec::new(),
            next_inode: 0,
            used: vec![false; data as usize],
            cursor: 0,
            starts: [0, directories, directories + map, directories + map + table],
            dirty: BTreeSet::new(),
            freed: Vec::new(),
            ready: VecDeque::new(),
            ended: false,
        }
    }

    /// A run of free blocks from the cursor on.
    fn allocate(&mut self, blocks: u64) -> u64 {
        let all = self.used.len() as u64;
        let mut run = 0;
        for step in 0..2 * all {
            let at = (self.cursor + step) % all;
            run =
                if self.used[at as usize] || at == 0 { u64::from(!self.used[at as usize]) } else { run + 1 };
            if run == blocks {
                let first = at + 1 - blocks;
                self.used[first as usize..=at as usize].fill(true);
                self.cursor = at + 1;
                return first;
            }
        }
        // Twice the maximum of all files is free at the beginning.
        0
    }

    fn dirty_metadata(&mut self, inode: u64, first: u64) {
        self.dirty.insert(self.starts[0] + inode / ENTRIES_A_BLOCK);
        self.dirty.insert(self.starts[1] + first / BITS_A_BLOCK);
        self.dirty.insert(self.starts[2] + inode / INODES_A_BLOCK);
    }

    fn create(&mut self) {
        let bytes = SIZE_MIN + self.rng.below(SIZE_MAX - SIZE_MIN);
        let blocks = bytes.div_ceil(UNIT);
        let first = self.allocate(blocks);
        let inode = self.free_inodes.pop().unwrap_or_else(|| {
            self.next_inode += 1;
            self.next_inode - 1
        });
        self.dirty_metadata(inode, first);
        self.dirty.extend((first..first + blocks).map(|block| self.starts[3] + block));
        self.files.push(File { inode, first, blocks, bytes });
    }

    fn delete(&mut self) {
        let index = self.rng.below(self.files.len() as u64) as usize;
        let file = self.files.swap_remove(index);
        self.dirty_metadata(file.inode, file.first);
        self.free_inodes.push(file.inode);
        self.used[file.first as usize..(file.first + file.blocks) as usize].fill(false);
        for block in file.first..file.first + file.blocks {
            self.dirty.remove(&(self.starts[3] + block));
        }
        self.freed.push((self.starts[3] + file.first, file.blocks));
    }

    fn read(&mut self) {
        let file = &self.files[self.rng.below(self.files.len() as u64) as usize];
        let (first, blocks) = (self.starts[3] + file.first, file.blocks);
        // Data in memory is read from there.
        if !(first..first + blocks).all(|block| self.dirty.contains(&block)) {
            self.push(TraceOp::Read, first, blocks);
        }
    }

    /// Appends up to the room of the file's last block, or one more; a file that can't grow in its
    /// place moves.
    fn append(&mut self) {
        let index = self.rng.below(self.files.len() as u64) as usize;
        let bytes = self.files[index].bytes + 1 + self.rng.below(UNIT);
        let blocks = bytes.div_ceil(UNIT);
        let (inode, old, had) = (self.files[index].inode, self.files[index].first, self.files[index].blocks);
        let mut first = old;
        if blocks > had {
            let behind = self.used.get((old + had) as usize);
            if behind == Some(&false) {
                self.used[(old + had) as usize] = true;
            } else {
                self.used[old as usize..(old + had) as usize].fill(false);
                self.freed.push((self.starts[3] + old, had));
                for block in old..old + had {
                    self.dirty.remove(&(self.starts[3] + block));
                }
                first = self.allocate(blocks);
                self.dirty.extend((first..first + blocks).map(|block| self.starts[3] + block));
            }
        }
        self.dirty.insert(self.starts[3] + first + blocks - 1);
        self.dirty_metadata(inode, first);
        let file = &mut self.files[index];
        (file.first, file.blocks, file.bytes) = (first, blocks, bytes);
    }

    fn push(&mut self, op: TraceOp, block: u64, blocks: u64) {
        let (offset, length) = (block * UNIT, blocks * UNIT);
        self.ready.push_back(TraceRecord { at_ns: self.at_ns, device: 0, op, offset, length });
    }

    /// Writes all waiting blocks.
    fn write_back(&mut self) {
        self.written_ns = self.at_ns;
        for (first, blocks) in std::mem::take(&mut self.freed) {
            // Blocks that were reused meanwhile are not trimmed.
            let data = first - self.starts[3];
            if self.used[data as usize..(data + blocks) as usize].iter().all(|used| !used) {
                self.push(TraceOp::Trim, first, blocks);
            }
        }
        let mut run: Option<(u64, u64)> = None;
        for block in std::mem::take(&mut self.dirty) {
            run = match run {
                Some((first, count)) if first + count == block && count < JOINED_MAX => {
                    Some((first, count + 1))
                }
                other => {
                    if let Some((first, count)) = other {
                        self.push(TraceOp::Write, first, count);
                    }
                    Some((block, 1))
                }
            };
        }
        if let Some((first, count)) = run {
            self.push(TraceOp::Write, first, count);
        }
        let at_ns = self.at_ns;
        self.ready.push_back(TraceRecord { at_ns, device: 0, op: TraceOp::Flush, offset: 0, length: 0 });
    }
}

impl Iterator for PostMark {
    type Item = TraceRecord;

    fn next(&mut self) -> Option<TraceRecord> {
        loop {
            if let Some(record) = self.ready.pop_front() {
                return Some(record);
            }
            if self.ended {
                return None;
            }
            self.at_ns += gap(&mut self.rng, self.rate);
            if self.to_create > 0 {
                self.to_create -= 1;
                self.create();
            } else if self.transactions > 0 {
                self.transactions -= 1;
                let (grows, makes) = (self.rng.one_in(2), self.rng.one_in(2));
                if !self.files.is_empty() {
                    if grows { self.append() } else { self.read() }
                }
                if makes || self.files.is_empty() { self.create() } else { self.delete() }
            } else {
                self.ended = true;
            }
            if self.ended || self.at_ns - self.written_ns >= DELAY_NS {
                self.write_back();
            }
        }
    }
}
