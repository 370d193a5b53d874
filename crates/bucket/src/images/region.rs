//! The object of a region: a header with the digest of each frame, then the frames.
//!
//! A frame has the live blocks of 16 neighbouring places (64 KiB), compressed if that makes it
//! shorter. A reader fetches the header, checks it against the table, and fetches only the frames
//! that it needs. Frames without a live block are left out.

use std::borrow::Cow;

use cairn_base::{BLOCK_SIZE, Checksum, VolumeId};
use zstd::bulk::{Compressor, Decompressor};

use super::codec::{Bad, FIELDS, HEAD, Kind, Read, SUM, Version, Write};

/// Blocks of a region: 4 MiB.
pub const REGION_BLOCKS: usize = 1024;
/// Blocks of a frame.
pub const FRAME_BLOCKS: usize = 16;
/// Frames of a region.
pub const FRAMES: usize = REGION_BLOCKS / FRAME_BLOCKS;
/// Fields before the frames: region, version, bitmap.
const FIXED: usize = 12 + REGION_BLOCKS / 8;
/// Bytes of a frame in the header.
const FRAME_SIZE: usize = 20;
/// Bytes of a header at most.
pub(super) const HEADER_BYTES_MAX: usize = HEAD + FIXED + FRAMES * FRAME_SIZE + SUM;
/// Bytes of an object at most.
pub(super) const OBJECT_BYTES_MAX: usize = HEADER_BYTES_MAX + REGION_BLOCKS * BLOCK_SIZE;
const ZSTD_LEVEL: i32 = 1;

/// Which blocks of a region are there.
type Bitmap = [u16; FRAMES];

/// The live blocks of a region, in order of their places.
#[derive(Clone)]
pub struct RegionBlocks {
    bitmap: Bitmap,
    bytes: Vec<u8>,
    last: Option<usize>,
}

impl Default for RegionBlocks {
    fn default() -> Self {
        Self { bitmap: [0; FRAMES], bytes: Vec::new(), last: None }
    }
}

impl std::fmt::Debug for RegionBlocks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RegionBlocks({} blocks)", self.len())
    }
}

impl RegionBlocks {
    /// None.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the block at `place` of the region, after all that were added before.
    ///
    /// # Panics
    /// If it is not after those, not in a region, or not 4 KiB long.
    pub fn push(&mut self, place: usize, block: &[u8]) {
        assert!(place < REGION_BLOCKS && self.last.is_none_or(|last| last < place), "blocks come in order");
        assert_eq!(block.len(), BLOCK_SIZE, "a block has 4 KiB");
        self.bitmap[place / FRAME_BLOCKS] |= 1 << (place % FRAME_BLOCKS);
        self.bytes.extend_from_slice(block);
        self.last = Some(place);
    }

    /// The places and the blocks, in order.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let is_there = |place: &usize| self.bitmap[place / FRAME_BLOCKS] & (1 << (place % FRAME_BLOCKS)) != 0;
        (0..REGION_BLOCKS).filter(is_there).zip(self.bytes.chunks(BLOCK_SIZE))
    }

    /// The number of blocks.
    pub fn len(&self) -> usize {
        self.bytes.len() / BLOCK_SIZE
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

/// A frame in a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Frame {
    /// Which of its 16 blocks are there.
    pub(super) blocks: u16,
    /// Bytes as stored; fewer than those of its blocks if it is compressed.
    pub(super) length: u32,
    /// The digest of the bytes as stored.
    pub(super) digest: Checksum,
}

impl Frame {
    fn plain(&self) -> usize {
        self.blocks.count_ones() as usize * BLOCK_SIZE
    }

    /// Its blocks, from its bytes as stored. `unpacker` is made when the first frame needs it: that
    /// costs more than a frame does.
    pub(super) fn unpack<'a>(
        &self,
        stored: &'a [u8],
        unpacker: &mut Option<Decompressor<'static>>,
    ) -> Result<Cow<'a, [u8]>, Bad> {
        if stored.len() != self.length as usize || Checksum::of(stored) != self.digest {
            return Err(Bad::Damaged("the digest of a frame is wrong"));
        }
        if stored.len() == self.plain() {
            return Ok(Cow::Borrowed(stored));
        }
        if unpacker.is_none() {
            *unpacker = Decompressor::new().ok();
        }
        let plain = unpacker.as_mut().and_then(|unpacker| unpacker.decompress(stored, self.plain()).ok());
        let plain = plain.filter(|plain| plain.len() == self.plain());
        plain.map(Cow::Owned).ok_or(Bad::Damaged("a frame is compressed wrongly"))
    }

    /// Where the block at a place of the frame begins in its bytes; none if it is not there.
    pub(super) fn offset(&self, place: usize) -> Option<usize> {
        let bit = 1_u16.checked_shl(place as u32)?;
        (self.blocks & bit != 0).then(|| (self.blocks & (bit - 1)).count_ones() as usize * BLOCK_SIZE)
    }
}

/// The header of a region object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RegionHeader {
    pub(super) region: u32,
    pub(super) at: Version,
    pub(super) frames: [Frame; FRAMES],
}

fn header_length(frames: usize) -> usize {
    HEAD + FIXED + frames * FRAME_SIZE + SUM
}

impl RegionHeader {
    /// Bytes of the header.
    pub(super) fn length(&self) -> usize {
        header_length(self.frames.iter().filter(|frame| frame.blocks != 0).count())
    }

    /// Bytes of the object.
    pub(super) fn total(&self) -> u64 {
        self.length() as u64 + self.frames.iter().map(|frame| u64::from(frame.length)).sum::<u64>()
    }

    /// Where a frame begins in the object.
    pub(super) fn frame_at(&self, frame: usize) -> u64 {
        let before = self.frames.iter().take(frame).map(|frame| u64::from(frame.length));
        self.length() as u64 + before.sum::<u64>()
    }

    pub(super) fn write(&self, volume: VolumeId) -> Vec<u8> {
        let mut to = Write::new(Kind::Region, volume);
        to.u32(self.region);
        to.version(self.at);
        self.frames.iter().for_each(|frame| to.bytes(&frame.blocks.to_le_bytes()));
        for frame in self.frames.iter().filter(|frame| frame.blocks != 0) {
            to.u32(frame.length);
            to.bytes(&frame.digest.0);
        }
        to.seal()
    }

    /// The bytes of the header at the beginning of an object.
    pub(super) fn of_object(bytes: &[u8]) -> Result<&[u8], Bad> {
        let cut = Bad::Damaged("it is cut");
        let bitmap = bytes.get(HEAD + 12..HEAD + FIXED).ok_or(cut)?;
        let frames = bitmap.chunks(2).filter(|blocks| **blocks != [0, 0]).count();
        bytes.get(..header_length(frames)).ok_or(cut)
    }

    pub(super) fn parse(bytes: &[u8], volume: VolumeId) -> Result<Self, Bad> {
        let mut from = Read::open(Self::of_object(bytes)?, Kind::Region, volume)?;
        let fields = |from: &mut Read| {
            let (region, at) = (from.u32()?, from.version()?);
            let mut frames = [Frame::default(); FRAMES];
            for frame in &mut frames {
                frame.blocks = u16::from_le_bytes(from.array()?);
            }
            for frame in frames.iter_mut().filter(|frame| frame.blocks != 0) {
                frame.length = from.u32()?;
                frame.digest = Checksum(from.array()?);
                (1..=frame.plain()).contains(&(frame.length as usize)).then_some(())?;
            }
            Some(Self { region, at, frames })
        };
        let header = fields(&mut from).ok_or(FIELDS)?;
        from.end().ok_or(FIELDS)?;
        Ok(header)
    }
}

/// Makes the object of a region. Returns it with the digest of its header.
pub(super) fn pack(volume: VolumeId, region: u32, at: Version, blocks: &RegionBlocks) -> (Vec<u8>, Checksum) {
    let mut header = RegionHeader { region, at, frames: [Frame::default(); FRAMES] };
    let mut stored = Vec::with_capacity(blocks.bytes.len());
    let mut rest = &blocks.bytes[..];
    // Without one, frames are stored as they are.
    let mut packer = Compressor::new(ZSTD_LEVEL).ok();
    for (frame, present) in header.frames.iter_mut().zip(blocks.bitmap) {
        if present == 0 {
            continue;
        }
        frame.blocks = present;
        let (plain, later) = rest.split_at(frame.plain());
        rest = later;
        let packed = packer.as_mut().and_then(|packer| packer.compress(plain).ok());
        let packed = packed.filter(|packed| packed.len() < plain.len());
        let bytes = packed.as_deref().unwrap_or(plain);
        frame.length = bytes.len() as u32;
        frame.digest = Checksum::of(bytes);
        stored.extend_from_slice(bytes);
    }
    let mut object = header.write(volume);
    let digest = Checksum::of(&object);
    object.extend_from_slice(&stored);
    (object, digest)
}
