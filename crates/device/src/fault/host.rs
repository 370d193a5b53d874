//! The file system of a sparse file: places that were never written take room of it, and it may
//! have none left.
//!
//! Room once taken by a place stays taken, over power cuts too, until the place is trimmed. A write
//! that finds too little room writes as much as fits, from its start, and fails. Room can be
//! reserved ahead of writes, as far as there is any; a host that promises nothing reports success.

use std::collections::BTreeSet;
use std::ops::Range;

use cairn_base::BLOCK_SIZE;

use crate::image::{self, Image};

const BLOCK: u64 = BLOCK_SIZE as u64;

#[derive(Debug, Clone)]
pub(super) struct Host {
    /// The file, in bytes of the device; whole blocks.
    file: Range<u64>,
    /// Free blocks.
    room: u64,
    /// Room can be taken ahead of writes.
    promises: bool,
    /// Blocks of the device that have room.
    taken: BTreeSet<u64>,
}

impl Host {
    /// The file's part of `content` has room already; `bytes` are left for the rest.
    pub(super) fn new(file: Range<u64>, bytes: u64, promises: bool, content: &Image) -> Self {
        let mut taken = BTreeSet::new();
        let mut at = file.start;
        for extent in image::extents(content, file.start, file.end - file.start, usize::MAX) {
            if !extent.hole {
                taken.extend(at / BLOCK..(at + extent.length).div_ceil(BLOCK));
            }
            at += extent.length;
        }
        Self { file, room: bytes / BLOCK, promises, taken }
    }

    /// This many bytes are left from now on.
    pub(super) fn leave(&mut self, bytes: u64) {
        self.room = bytes / BLOCK;
    }

    /// Takes room for a write; the bytes from its start on that have some.
    pub(super) fn take(&mut self, offset: u64, length: u64) -> u64 {
        let end = offset + length;
        if offset >= self.file.end || end <= self.file.start {
            return length;
        }
        for block in offset / BLOCK..end.div_ceil(BLOCK) {
            if self.taken.contains(&block) {
                continue;
            }
            let Some(left) = self.room.checked_sub(1) else { return (block * BLOCK).saturating_sub(offset) };
            self.room = left;
            self.taken.insert(block);
        }
        length
    }

    /// Reserves room ahead of writes; returns the bytes that have room, or are reported to.
    pub(super) fn take_ahead(&mut self, offset: u64, length: u64) -> u64 {
        if self.promises { self.take(offset, length) } else { length }
    }

    /// Whole blocks are trimmed.
    pub(super) fn give_back(&mut self, offset: u64, length: u64) {
        let blocks = offset.div_ceil(BLOCK)..(offset + length) / BLOCK;
        if blocks.is_empty() {
            return;
        }
        let mut later = self.taken.split_off(&blocks.start);
        let mut kept = later.split_off(&blocks.end);
        self.room += later.len() as u64;
        self.taken.append(&mut kept);
    }
}
