//! Reference-counted, aligned buffers of 4 KiB.
//!
//! A block is shared by a write in flight, the cache and a reply on a socket at once. Where its
//! memory comes from is the business of [`pool`](crate::pool).

use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;
use std::sync::atomic::{Ordering, fence};

use cairn_base::BLOCK_SIZE;

use crate::pool::{Bytes, Header, RUN_BLOCKS_MIN, follows, give_back, take, take_run};

/// 4 KiB with a single holder: to be filled, then frozen.
pub struct BlockMut(&'static Header);

impl BlockMut {
    /// A block of zeroes.
    pub fn zeroed() -> Self {
        let mut block = Self::dirty();
        block.fill(0);
        block
    }

    /// A block with whatever was in that memory before: for callers that overwrite all of it.
    pub fn dirty() -> Self {
        Self::had_by_nobody(take())
    }

    /// Appends `count` blocks as from [`BlockMut::dirty`], adjacent in memory as far as possible:
    /// for data that goes to neighbouring places of a device.
    pub fn append_run(into: &mut Vec<Self>, count: usize) {
        into.reserve(count);
        if count < RUN_BLOCKS_MIN {
            into.extend((0..count).map(|_| Self::dirty()));
            return;
        }
        take_run(count, |header| into.push(Self::had_by_nobody(header)));
    }

    fn had_by_nobody(header: &'static Header) -> Self {
        debug_assert_eq!(
            header.holders.load(Ordering::Relaxed),
            1,
            "a block that comes back is had by nobody"
        );
        Self(header)
    }

    /// A copy of `bytes`.
    pub fn copy_of(bytes: &Bytes) -> Self {
        let mut block = Self::dirty();
        block.copy_from_slice(bytes);
        block
    }

    /// Gives up writing, so that the block can be shared.
    pub fn freeze(self) -> Block {
        let header = self.0;
        std::mem::forget(self);
        Block(header)
    }
}

impl Deref for BlockMut {
    type Target = Bytes;

    fn deref(&self) -> &Bytes {
        // SAFETY: slabs are never freed, and this is the only holder.
        unsafe { self.0.bytes.as_ref() }
    }
}

impl DerefMut for BlockMut {
    fn deref_mut(&mut self) -> &mut Bytes {
        // SAFETY: slabs are never freed, and this is the only holder, borrowed mutably.
        unsafe { &mut *self.0.bytes.as_ptr() }
    }
}

impl Drop for BlockMut {
    fn drop(&mut self) {
        give_back(self.0);
    }
}

impl std::fmt::Debug for BlockMut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BlockMut")
    }
}

/// 4 KiB, shared and therefore never written. Cloning counts up.
pub struct Block(&'static Header);

impl Block {
    /// The block of zeroes that all share.
    pub fn zero() -> Block {
        static ZERO: OnceLock<Block> = OnceLock::new();
        ZERO.get_or_init(|| BlockMut::zeroed().freeze()).clone()
    }

    /// A copy of `bytes`.
    pub fn copy_of(bytes: &Bytes) -> Block {
        BlockMut::copy_of(bytes).freeze()
    }

    /// True when every byte is zero.
    pub fn is_zero(&self) -> bool {
        let (head, words, tail) = (&self[..8], &self[8..], &self[..BLOCK_SIZE - 8]);
        // A block is zero if its first eight bytes are and every byte equals the one eight before
        // it.
        head == [0; 8] && words == tail
    }
}

/// The bytes of `blocks` in order, with adjacent ones in memory as one piece.
pub fn pieces(blocks: &[Block]) -> impl Iterator<Item = &[u8]> {
    blocks.chunk_by(|one, next| follows(one.0, next.0)).map(|run| {
        // SAFETY: the blocks of a run follow each other in one slab, which is never freed; each is
        // held, so none is written.
        unsafe { std::slice::from_raw_parts(run[0].0.bytes.as_ptr().cast::<u8>(), run.len() * BLOCK_SIZE) }
    })
}

/// As [`pieces`], to be filled.
pub fn pieces_mut(blocks: &mut [BlockMut]) -> impl Iterator<Item = &mut [u8]> {
    blocks.chunk_by_mut(|one, next| follows(one.0, next.0)).map(|run| {
        // SAFETY: the blocks of a run follow each other in one slab, which is never freed; their
        // only holders are borrowed mutably.
        unsafe {
            std::slice::from_raw_parts_mut(run[0].0.bytes.as_ptr().cast::<u8>(), run.len() * BLOCK_SIZE)
        }
    })
}

impl Clone for Block {
    fn clone(&self) -> Self {
        let before = self.0.holders.fetch_add(1, Ordering::Relaxed);
        assert!(before < u32::MAX / 2, "a block has too many holders");
        Block(self.0)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let holders = &self.0.holders;
        // The only holder stays the only one, and need not update the count when it ends.
        if holders.load(Ordering::Acquire) == 1 {
            give_back(self.0);
        } else if holders.fetch_sub(1, Ordering::Release) == 1 {
            fence(Ordering::Acquire);
            holders.store(1, Ordering::Relaxed);
            give_back(self.0);
        }
    }
}

impl Deref for Block {
    type Target = Bytes;

    fn deref(&self) -> &Bytes {
        // SAFETY: slabs are never freed; a held block is never written, as only `BlockMut` writes
        // and freezing ends it.
        unsafe { self.0.bytes.as_ref() }
    }
}

impl std::fmt::Debug for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Block")
    }
}
