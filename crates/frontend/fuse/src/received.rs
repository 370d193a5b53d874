//! A request as it is read: its head, and blocks for the bytes after it.
//!
//! Most bytes that the kernel sends are data of writes, in whole pages after a head of known
//! length. Read to the beginning of blocks, they are there as the volume keeps them, and are not
//! copied again. Everything else is short, and read into one piece before it is parsed.

use std::io::IoSliceMut;

use cairn_base::BLOCK_SIZE;
use cairn_device::BlockMut;
use zerocopy::FromBytes;

use crate::abi::*;

/// Bytes in front of the data of a write.
const HEAD: usize = size_of::<fuse_in_header>() + size_of::<fuse_write_in>();
/// Blocks for the largest write.
const BLOCKS: usize = WRITE_MAX / BLOCK_SIZE;
/// Bytes that the kernel sends in one write, or asks for in one read.
pub(crate) const WRITE_MAX: usize = 1 << 20;
/// Bytes of the longest request.
pub(crate) const REQUEST_MAX: usize = HEAD + WRITE_MAX;

/// A request, and the memory for it.
pub(crate) struct Received {
    head: [u8; HEAD],
    blocks: Vec<BlockMut>,
    length: usize,
}

/// A write of whole blocks.
pub(crate) struct BlockWrite {
    pub(crate) header: fuse_in_header,
    pub(crate) arguments: fuse_write_in,
    /// The last one may have less than it could.
    pub(crate) blocks: Vec<BlockMut>,
}

impl Received {
    /// No request yet.
    pub(crate) fn new() -> Self {
        Self { head: [0; HEAD], blocks: Vec::with_capacity(BLOCKS), length: 0 }
    }

    /// Has `read` fill the memory with a request and return its length.
    pub(crate) fn read<E>(
        &mut self,
        read: impl FnOnce(&mut [IoSliceMut<'_>]) -> Result<usize, E>,
    ) -> Result<(), E> {
        self.length = 0;
        self.make_room(BLOCKS);
        let mut parts = Vec::with_capacity(1 + BLOCKS);
        parts.push(IoSliceMut::new(&mut self.head));
        parts.extend(self.blocks.iter_mut().map(|block| IoSliceMut::new(&mut block[..])));
        self.length = read(&mut parts)?;
        Ok(())
    }

    /// Fills the memory with a request in pieces, of at most [`REQUEST_MAX`] bytes.
    pub(crate) fn put(&mut self, request: &[&[u8]]) {
        self.length = request.iter().map(|piece| piece.len()).sum();
        self.make_room(self.length.saturating_sub(HEAD).div_ceil(BLOCK_SIZE));
        let mut rooms =
            std::iter::once(&mut self.head[..]).chain(self.blocks.iter_mut().map(|block| &mut block[..]));
        let mut room: &mut [u8] = &mut [];
        for piece in request {
            let mut piece = *piece;
            while !piece.is_empty() {
                if room.is_empty() {
                    room = rooms.next().unwrap_or_default();
                }
                let (now, later) = piece.split_at(piece.len().min(room.len()));
                let (to, left) = room.split_at_mut(now.len());
                to.copy_from_slice(now);
                (piece, room) = (later, left);
            }
        }
    }

    fn make_room(&mut self, blocks: usize) {
        let missing = blocks.saturating_sub(self.blocks.len());
        BlockMut::append_run(&mut self.blocks, missing);
    }

    /// The write of whole blocks in the request, with its memory; `None` for any other request.
    pub(crate) fn take_write(&mut self) -> Option<BlockWrite> {
        let behind = self.length.checked_sub(HEAD)?;
        let (header, rest) = fuse_in_header::read_from_prefix(&self.head).ok()?;
        let arguments = fuse_write_in::read_from_bytes(rest).ok()?;
        let is_it = header.opcode == opcode::WRITE
            && header.len as usize == self.length
            && header.total_extlen == 0
            && arguments.size as usize == behind
            && arguments.offset.is_multiple_of(BLOCK_SIZE as u64);
        is_it.then(|| {
            let blocks = self.blocks.drain(..behind.div_ceil(BLOCK_SIZE)).collect();
            BlockWrite { header, arguments, blocks }
        })
    }

    /// The number of the request.
    pub(crate) fn unique(&self) -> Option<u64> {
        let (header, _) = fuse_in_header::read_from_prefix(&self.head).ok()?;
        (self.length >= size_of::<fuse_in_header>()).then_some(header.unique)
    }

    /// The number of the file that the request is about.
    pub(crate) fn node(&self) -> Option<u64> {
        let (header, _) = fuse_in_header::read_from_prefix(&self.head).ok()?;
        (self.length >= size_of::<fuse_in_header>()).then_some(header.nodeid)
    }

    /// All bytes of the request.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.length);
        bytes.extend_from_slice(&self.head[..self.length.min(HEAD)]);
        for block in &self.blocks {
            let left = self.length - bytes.len();
            bytes.extend_from_slice(&block[..left.min(BLOCK_SIZE)]);
        }
        bytes
    }
}
