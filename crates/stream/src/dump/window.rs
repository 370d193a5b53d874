//! Reads a part into blocks of memory: data at multiples of their length is passed on without a
//! copy.

use std::collections::VecDeque;
use std::io::{ErrorKind, IoSliceMut, Read, Result};

use cairn_base::{BLOCK_SIZE, Checksum};
use cairn_device::{Block, BlockMut, pieces_mut};

/// Blocks that one read of an input asks for.
const READ_BLOCKS: usize = 256;

/// The bytes of a part, in order.
pub trait InBlocks: Send {
    /// Appends the next bytes to `into`; returns how many. Each block is full except the last one
    /// of all. 0 at the end.
    fn next(&mut self, into: &mut VecDeque<Block>) -> Result<usize>;
}

/// The input, from any reader.
pub struct ReadBlocks<R> {
    input: R,
    /// Allocated and unfilled blocks.
    empty: VecDeque<BlockMut>,
}

impl<R: Read + Send> ReadBlocks<R> {
    /// The rest of `input`.
    pub fn new(input: R) -> Self {
        Self { input, empty: VecDeque::new() }
    }
}

impl<R: Read + Send> InBlocks for ReadBlocks<R> {
    fn next(&mut self, into: &mut VecDeque<Block>) -> Result<usize> {
        if self.empty.is_empty() {
            let mut blocks = Vec::new();
            BlockMut::append_run(&mut blocks, READ_BLOCKS);
            self.empty.extend(blocks);
        }
        let mut slices: Vec<IoSliceMut<'_>> =
            pieces_mut(self.empty.make_contiguous()).map(IoSliceMut::new).collect();
        let (mut left, mut filled) = (&mut slices[..], 0);
        // Only at the end a block stays as it is.
        while filled == 0 || filled % BLOCK_SIZE != 0 {
            match self.input.read_vectored(left) {
                Ok(0) => break,
                Ok(read) => {
                    filled += read;
                    IoSliceMut::advance_slices(&mut left, read);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        into.extend(self.empty.drain(..filled.div_ceil(BLOCK_SIZE)).map(BlockMut::freeze));
        Ok(filled)
    }
}

/// Bytes of a part that were read and not yet taken.
pub(super) struct Window {
    input: Box<dyn InBlocks>,
    blocks: VecDeque<Block>,
    /// Bytes of the first block that were taken.
    taken: usize,
    /// Bytes after those.
    have: usize,
    /// Where in the part those are.
    offset: u64,
    at_end: bool,
}

impl Window {
    /// A part from its beginning on.
    pub(super) fn new(input: Box<dyn InBlocks>) -> Self {
        Self { input, blocks: VecDeque::new(), taken: 0, have: 0, offset: 0, at_end: false }
    }

    /// A part whose `input` starts at the last multiple of a block's length before `offset`; the
    /// bytes up to `offset` are skipped.
    pub(super) fn at(offset: u64, input: Box<dyn InBlocks>) -> Result<Self> {
        let mut window = Self::new(input);
        let within = (offset % BLOCK_SIZE as u64) as usize;
        window.offset = offset - within as u64;
        window.ensure(within)?;
        window.skip(within);
        Ok(window)
    }

    /// Where in the part the next byte is.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// The number of available bytes.
    pub(super) fn have(&self) -> usize {
        self.have
    }

    /// Reads until `count` bytes are available or the input ends; returns how many are available.
    pub(super) fn ensure(&mut self, count: usize) -> Result<usize> {
        while self.have < count && !self.at_end {
            let read = self.input.next(&mut self.blocks)?;
            self.at_end = read == 0;
            self.have += read;
        }
        Ok(self.have.min(count))
    }

    /// Skips the next `count` bytes, or the available ones.
    pub(super) fn skip(&mut self, count: usize) {
        let count = count.min(self.have);
        self.have -= count;
        self.offset += count as u64;
        let taken = self.taken + count;
        self.blocks.drain(..taken / BLOCK_SIZE);
        self.taken = taken % BLOCK_SIZE;
    }

    /// `count` of the available bytes, from the `from`th on, piece by piece.
    fn pieces(&self, from: usize, count: usize) -> impl Iterator<Item = &[u8]> {
        assert!(from + count <= self.have, "those are there");
        let at = self.taken + from;
        let (mut within, mut left) = (at % BLOCK_SIZE, count);
        self.blocks.range(at / BLOCK_SIZE..(at + count).div_ceil(BLOCK_SIZE)).map(move |block| {
            let start = std::mem::take(&mut within);
            let length = left.min(BLOCK_SIZE - start);
            left -= length;
            &block[start..start + length]
        })
    }

    /// The first bytes; `None` if there are fewer.
    pub(super) fn first<const N: usize>(&self) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        (self.have >= N).then(|| {
            self.copy_to(0, &mut bytes);
            bytes
        })
    }

    /// A copy of `count` of the available bytes, from the `from`th on.
    pub(super) fn copy(&self, from: usize, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.copy_to(from, &mut bytes);
        bytes
    }

    fn copy_to(&self, from: usize, into: &mut [u8]) {
        let mut rest = into;
        for piece in self.pieces(from, rest.len()) {
            let (own, behind) = std::mem::take(&mut rest).split_at_mut(piece.len());
            own.copy_from_slice(piece);
            rest = behind;
        }
    }

    /// The checksum of `count` of the available bytes, from the `from`th on.
    pub(super) fn checksum(&self, from: usize, count: usize) -> Checksum {
        Checksum::of_pieces(self.pieces(from, count))
    }

    /// `count` blocks of the available bytes, from the `from`th on: the read blocks, or copies if
    /// they are aligned otherwise.
    pub(super) fn blocks(&self, from: usize, count: usize) -> Vec<Block> {
        let at = self.taken + from;
        assert!(from + count * BLOCK_SIZE <= self.have, "those are there");
        if at.is_multiple_of(BLOCK_SIZE) {
            return self.blocks.range(at / BLOCK_SIZE..at / BLOCK_SIZE + count).cloned().collect();
        }
        // Next to each other in memory, as they go to neighbouring places.
        let mut copies = Vec::new();
        BlockMut::append_run(&mut copies, count);
        let copy = |(number, mut block): (usize, BlockMut)| {
            self.copy_to(from + number * BLOCK_SIZE, &mut block[..]);
            block.freeze()
        };
        copies.into_iter().enumerate().map(copy).collect()
    }
}

#[cfg(test)]
mod tests {
    use cairn_base::Rng;

    use super::*;

    /// Gives as many bytes at a time as it likes, and is interrupted.
    struct Moody {
        bytes: Vec<u8>,
        at: usize,
        rng: Rng,
        most: u64,
    }

    impl Read for Moody {
        fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
            if self.rng.one_in(5) {
                return Err(ErrorKind::Interrupted.into());
            }
            let most = 1 + self.rng.below(self.most) as usize;
            let count = most.min(buffer.len()).min(self.bytes.len() - self.at);
            buffer[..count].copy_from_slice(&self.bytes[self.at..self.at + count]);
            self.at += count;
            Ok(count)
        }
    }

    #[test]
    fn window_shows_the_bytes_of_its_input_wherever_it_stands() {
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let mut bytes = vec![0; rng.below(1 << 20) as usize];
            rng.fill(&mut bytes);
            let most = [300, 4096, 5000, 3 << 20][seed as usize % 4];
            let begin = rng.below(bytes.len() as u64 + 9000);
            let aligned = (begin as usize / BLOCK_SIZE * BLOCK_SIZE).min(bytes.len());
            let input = Moody { bytes: bytes.clone(), at: aligned, rng: rng.fork(), most };
            let mut window = Window::at(begin, Box::new(ReadBlocks::new(input))).expect("read");
            let mut left = bytes.get(begin as usize..).unwrap_or_default();
            loop {
                let count = rng.below(100_000) as usize;
                assert_eq!(window.ensure(count).expect("read"), count.min(left.len()));
                let from = rng.below(count as u64 + 1) as usize;
                let there = window.have().min(count).saturating_sub(from);
                let shown = left.get(from..from + there).unwrap_or_default();
                if there > 0 {
                    assert!(window.copy(from, there) == shown);
                    assert_eq!(window.checksum(from, there), Checksum::of(shown));
                    let blocks = window.blocks(from, there / BLOCK_SIZE);
                    let same = blocks.iter().zip(shown.chunks_exact(BLOCK_SIZE));
                    assert!(
                        same.clone().count() == blocks.len() && same.into_iter().all(|(a, b)| a[..] == *b)
                    );
                }
                let first = window.first::<48>();
                assert_eq!(first.is_some(), window.have() >= 48);
                assert!(first.is_none_or(|first| left[..48] == first));
                let skip = rng.below(50_000) as usize;
                let skipped = skip.min(window.have());
                window.skip(skip);
                left = &left[skipped..];
                if left.is_empty() && window.ensure(1).expect("read") == 0 {
                    break;
                }
            }
            assert!(begin > bytes.len() as u64 || window.offset() == bytes.len() as u64);
        }
    }

    #[test]
    fn blocks_that_stand_as_they_were_read_are_not_copied() {
        let mut bytes = vec![0; 40 * BLOCK_SIZE];
        Rng::new(1).fill(&mut bytes);
        let mut window = Window::new(Box::new(ReadBlocks::new(std::io::Cursor::new(bytes))));
        window.ensure(40 * BLOCK_SIZE).expect("read");
        window.skip(BLOCK_SIZE + 77);
        let (whole, other) = (window.blocks(BLOCK_SIZE - 77, 30), window.blocks(BLOCK_SIZE, 30));
        let is_one_of_the_window =
            |block: &Block| window.blocks.iter().any(|own| std::ptr::eq(&own[..], &block[..]));
        assert!(whole.iter().all(is_one_of_the_window) && !other.iter().any(is_one_of_the_window));
    }
}
