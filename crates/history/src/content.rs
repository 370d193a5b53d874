//! The content of a block: bytes, or only zeroes.

use cairn_base::{BLOCK_SIZE, crc32c_append};
use cairn_device::{Block, Segment, Segments};

/// The content of one block of the device.
#[derive(Debug, Clone)]
pub(crate) enum Content {
    /// As many bytes as the block has.
    Data(Segments),
    /// Zeroes.
    Zero,
    /// Content that no device has any more. It is in no cache.
    Lost,
}

impl Content {
    /// Bytes of a read; zeroes are recognised.
    pub(crate) fn of(data: Segments) -> Self {
        let zero = |piece: &Segment| match piece.as_whole() {
            Some(block) => block.is_zero(),
            None => piece.bytes().iter().all(|byte| *byte == 0),
        };
        if data.iter().all(zero) { Content::Zero } else { Content::Data(data) }
    }

    /// `length` bytes.
    pub(crate) fn into_segments(self, length: usize) -> Segments {
        match self {
            Content::Data(data) => data,
            Content::Zero => zeroes(length),
            Content::Lost => unreachable!("what is lost is in no cache"),
        }
    }

    /// This block of `length` bytes with `data` (`None`: zeroes) over it from `at` on.
    pub(crate) fn overlaid(&self, length: usize, at: usize, count: usize, data: Option<&Segments>) -> Self {
        let mut bytes = vec![0; length];
        if let Content::Data(old) = self {
            old.copy_to(&mut bytes);
        }
        match data {
            Some(data) => data.copy_to(&mut bytes[at..at + count]),
            None => bytes[at..at + count].fill(0),
        }
        Content::of(Segments::copy_of(&bytes))
    }
}

/// `length` bytes of zeroes that take no memory.
pub(crate) fn zeroes(length: usize) -> Segments {
    let mut segments = Segments::default();
    let mut left = length;
    while left > 0 {
        let piece = left.min(BLOCK_SIZE);
        segments.push(Segment::new(Block::zero(), 0, piece));
        left -= piece;
    }
    segments
}

/// The checksum of a version.
pub(crate) fn crc(data: &Segments) -> u32 {
    data.iter().fold(0, |crc, piece| crc32c_append(crc, piece.bytes()))
}
