//! Reads blocks of an image by ranged gets, and checks each against the table.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use cairn_base::{BLOCK_SIZE, Checksum, Mutex, Vbn};
use cairn_device::{Block, BlockMut};
use zstd::bulk::Decompressor;

use super::error::ImagesError;
use super::inner::Inner;
use super::load::Tables;
use super::names;
use super::region::{
    FRAME_BLOCKS, FRAMES, Frame, HEADER_BYTES_MAX, OBJECT_BYTES_MAX, REGION_BLOCKS, RegionBlocks,
    RegionHeader,
};
use super::root::{ImageId, ImageLabel};
use super::table::{Entry, Table};
use crate::name::Name;
use crate::workers::beside;

/// Headers that are kept in memory: 2 MiB.
const HEADERS_MAX: usize = 1024;
/// Regions that are read at the same time.
const REGIONS_AT_ONCE: usize = 8;
/// Blocks from which on a region is fetched as a whole.
const WHOLE_BLOCKS: usize = 256;
/// An object that is not longer is fetched as a whole: a request costs more than the bytes.
const WHOLE_BYTES: u32 = 128 << 10;
/// Blocks of one read. A longer one is refused.
const READ_BLOCKS_MAX: usize = 16 * REGION_BLOCKS;

/// An image that is open. Blocks that the image does not have are refused, except those that
/// an older image had in the same object.
pub struct ImageReader {
    shared: Arc<Shared>,
}

/// Blocks of some frames of a region.
#[derive(Debug, Clone)]
pub struct RegionPart {
    /// The blocks that the whole region has: a bit for each place, 16 for each frame.
    pub live: [u16; FRAMES],
    /// The frames that were read.
    pub frames: Range<usize>,
    /// Their blocks, each with its place in the region, in order. They are next to each other in
    /// memory.
    pub blocks: Vec<(usize, Block)>,
}

struct Shared {
    inner: Arc<Inner>,
    label: ImageLabel,
    content: Vec<u8>,
    table: Table,
    /// Of this image, and of images before it.
    headers: Arc<Mutex<HashMap<u32, Arc<RegionHeader>>>>,
}

impl std::fmt::Debug for ImageReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ImageReader").field("label", &self.shared.label).finish_non_exhaustive()
    }
}

impl ImageReader {
    pub(super) fn open(
        inner: &Arc<Inner>,
        image: Option<ImageId>,
        cancel: &Arc<AtomicBool>,
    ) -> Result<Self, ImagesError> {
        let (root, checkpoint) = inner.find(image, cancel)?;
        let table = Tables::new(inner).of(&root, checkpoint.as_ref(), cancel)?;
        Ok(Self::of(inner, (root.label, root.content), table))
    }

    pub(super) fn of(inner: &Arc<Inner>, (label, content): (ImageLabel, Vec<u8>), table: Table) -> Self {
        let shared = Shared { inner: inner.clone(), label, content, table, headers: Arc::default() };
        Self { shared: Arc::new(shared) }
    }

    /// The same image. It knows the headers that `before` has read: most objects are the same.
    #[must_use]
    pub fn with_headers_of(self, before: &Self) -> Self {
        let Shared { inner, label, content, table, .. } = &*self.shared;
        let shared = Shared {
            inner: inner.clone(),
            label: *label,
            content: content.clone(),
            table: table.clone(),
            headers: before.shared.headers.clone(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Which image it is.
    pub fn label(&self) -> ImageLabel {
        self.shared.label
    }

    /// Superblock and snapshot table, as the volume wrote them.
    pub fn content(&self) -> &[u8] {
        &self.shared.content
    }

    /// Bytes of memory that the table takes, about.
    pub fn memory(&self) -> u64 {
        self.shared.table.memory()
    }

    /// Regions of which the image has blocks, and bytes of their objects.
    pub fn regions(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.shared.table.iter().map(|(region, entry)| (region, entry.length))
    }

    /// Reads whole regions at the same time, in order. Each may also have blocks that an older
    /// image had in the same object.
    ///
    /// # Errors
    /// As [`ImageReader::read`], of each region by itself. Every returned byte was checked.
    pub fn read_regions(
        &self,
        regions: &[u32],
        cancel: &Arc<AtomicBool>,
    ) -> Vec<Result<RegionBlocks, ImagesError>> {
        let mut read = Vec::with_capacity(regions.len());
        for some in regions.chunks(REGIONS_AT_ONCE) {
            let Some((own, others)) = some.split_last() else { break };
            let started: Vec<_> = others
                .iter()
                .map(|region| {
                    let (shared, cancel, region) = (self.shared.clone(), cancel.clone(), *region);
                    beside(&self.shared.inner.workers, move || shared.whole(region, &cancel)).ok()
                })
                .collect();
            let last = self.shared.whole(*own, cancel);
            for (region, receiver) in others.iter().zip(started) {
                let done = receiver.and_then(|receiver| receiver.recv().ok());
                read.push(done.unwrap_or_else(|| self.shared.whole(*region, cancel)));
            }
            read.push(last);
        }
        read
    }

    /// Reads the blocks of whole frames of one region.
    ///
    /// # Errors
    /// As [`ImageReader::read`]; a block that is not there is no error.
    pub fn read_frames(
        &self,
        region: u32,
        frames: Range<usize>,
        cancel: &AtomicBool,
    ) -> Result<RegionPart, ImagesError> {
        let frames = frames.start.min(FRAMES)..frames.end.min(FRAMES);
        let mut part = RegionPart { live: [0; FRAMES], frames: frames.clone(), blocks: Vec::new() };
        let Some(entry) = self.shared.table.get(region) else { return Ok(part) };
        let name = names::region(self.shared.inner.volume, region, entry.at)?;
        let count = frames.len() * FRAME_BLOCKS;
        let (header, stored) = self.shared.stored((region, entry), &name, (count, frames.clone()), cancel)?;
        part.live = header.frames.map(|frame| frame.blocks);
        let (mut rest, mut unpacker) = (&stored[..], None);
        let wanted = || header.frames.iter().enumerate().take(frames.end).skip(frames.start);
        let places = |(number, frame): (usize, &Frame)| {
            let blocks = frame.blocks;
            let there = (0..FRAME_BLOCKS).filter(move |place| blocks & (1 << place) != 0);
            there.map(move |place| number * FRAME_BLOCKS + place)
        };
        let places: Vec<usize> = wanted().flat_map(places).collect();
        let mut blocks = Vec::new();
        BlockMut::append_run(&mut blocks, places.len());
        let mut empty = blocks.iter_mut();
        for (_, frame) in wanted() {
            let damaged = |how| ImagesError::Damaged { name: name.clone(), how };
            let (bytes, later) =
                rest.split_at_checked(frame.length as usize).ok_or_else(|| damaged("it is cut"))?;
            rest = later;
            if frame.blocks == 0 {
                continue;
            }
            let plain = frame.unpack(bytes, &mut unpacker).map_err(|bad| bad.of(&name))?;
            // An unpacked frame has exactly its blocks.
            for (bytes, block) in plain.chunks_exact(BLOCK_SIZE).zip(empty.by_ref()) {
                block.copy_from_slice(bytes);
            }
        }
        if empty.next().is_some() {
            return Err(ImagesError::Damaged { name, how: "it is cut" });
        }
        part.blocks = places.into_iter().zip(blocks.into_iter().map(BlockMut::freeze)).collect();
        Ok(part)
    }

    /// Reads blocks; several regions at the same time.
    ///
    /// # Errors
    /// [`ImagesError::NoBlock`] if a block is not there. [`ImagesError::Gone`] if the image has
    /// expired and its objects were deleted. Every returned byte was checked.
    pub fn read(&self, first: Vbn, count: usize, cancel: &Arc<AtomicBool>) -> Result<Vec<u8>, ImagesError> {
        if count > READ_BLOCKS_MAX {
            return Err(ImagesError::Rule("a read is longer than 64 MiB"));
        }
        let mut parts = Vec::new();
        let (mut at, mut left) = (first.0, count);
        while left > 0 {
            let place = (at % REGION_BLOCKS as u64) as usize;
            let region =
                u32::try_from(at / REGION_BLOCKS as u64).map_err(|_| ImagesError::NoBlock(Vbn(at)))?;
            let some = left.min(REGION_BLOCKS - place);
            parts.push((region, place, some));
            (at, left) = (at + some as u64, left - some);
        }
        let mut bytes = Vec::with_capacity(count * BLOCK_SIZE);
        for some in parts.chunks(REGIONS_AT_ONCE) {
            let Some((own, others)) = some.split_last() else { break };
            let started: Vec<_> = others
                .iter()
                .map(|part| {
                    let (shared, cancel, part) = (self.shared.clone(), cancel.clone(), *part);
                    beside(&self.shared.inner.workers, move || shared.read(part, &cancel)).ok()
                })
                .collect();
            let last = self.shared.read(*own, cancel);
            for (part, receiver) in others.iter().zip(started) {
                let read = receiver.and_then(|receiver| receiver.recv().ok());
                bytes.extend(read.unwrap_or_else(|| self.shared.read(*part, cancel))?);
            }
            bytes.extend(last?);
        }
        Ok(bytes)
    }
}

impl Shared {
    /// Reads blocks of one region.
    fn read(
        &self,
        (region, place, count): (u32, usize, usize),
        cancel: &AtomicBool,
    ) -> Result<Vec<u8>, ImagesError> {
        let vbn = |place: usize| Vbn(u64::from(region) * REGION_BLOCKS as u64 + place as u64);
        let entry = self.table.get(region).ok_or_else(|| ImagesError::NoBlock(vbn(place)))?;
        let name = names::region(self.inner.volume, region, entry.at)?;
        let (first, last) = (place / FRAME_BLOCKS, (place + count - 1) / FRAME_BLOCKS);
        let (header, stored) = self.stored((region, entry), &name, (count, first..last + 1), cancel)?;
        let mut rest = &stored[..];
        let mut unpacker = None;
        let mut out = Vec::with_capacity(count * BLOCK_SIZE);
        for (number, frame) in header.frames.iter().enumerate().take(last + 1).skip(first) {
            let damaged = |how| ImagesError::Damaged { name: name.clone(), how };
            let (bytes, later) =
                rest.split_at_checked(frame.length as usize).ok_or_else(|| damaged("it is cut"))?;
            rest = later;
            let wanted = (0..FRAME_BLOCKS)
                .filter(|block| (place..place + count).contains(&(number * FRAME_BLOCKS + block)));
            take((frame, bytes, &mut unpacker), wanted, &mut out)
                .map_err(|bad| bad.of(&name))?
                .map_or(Ok(()), |missing| Err(ImagesError::NoBlock(vbn(number * FRAME_BLOCKS + missing))))?;
        }
        Ok(out)
    }

    /// Reads all blocks of a region.
    fn whole(&self, region: u32, cancel: &AtomicBool) -> Result<RegionBlocks, ImagesError> {
        let first = Vbn(u64::from(region) * REGION_BLOCKS as u64);
        let entry = self.table.get(region).ok_or(ImagesError::NoBlock(first))?;
        let name = names::region(self.inner.volume, region, entry.at)?;
        // One byte more shows an object that is too long.
        let length = (entry.length as usize).min(OBJECT_BYTES_MAX) + 1;
        let bytes = self.get(&name, 0, length, cancel)?;
        let damaged = |how| ImagesError::Damaged { name: name.clone(), how };
        if bytes.len() != entry.length as usize {
            return Err(damaged("its length is wrong"));
        }
        let header = self.check_header((region, entry), &name, &bytes)?;
        let mut rest = bytes.get(header.length()..).unwrap_or_default();
        let (mut unpacker, mut blocks) = (None, RegionBlocks::new());
        for (number, frame) in header.frames.iter().enumerate().filter(|(_, frame)| frame.blocks != 0) {
            let (stored, later) =
                rest.split_at_checked(frame.length as usize).ok_or_else(|| damaged("it is cut"))?;
            rest = later;
            let plain = frame.unpack(stored, &mut unpacker).map_err(|bad| bad.of(&name))?;
            for place in 0..FRAME_BLOCKS {
                if let Some(block) = frame.offset(place).and_then(|at| plain.get(at..at + BLOCK_SIZE)) {
                    blocks.push(number * FRAME_BLOCKS + place, block);
                }
            }
        }
        Ok(blocks)
    }

    /// The header of a region, and some of its frames as stored. `count` is the number of blocks
    /// that the caller wants.
    fn stored(
        &self,
        region: (u32, Entry),
        name: &Name,
        (count, frames): (usize, Range<usize>),
        cancel: &AtomicBool,
    ) -> Result<(Arc<RegionHeader>, Bytes), ImagesError> {
        let (header, fetched) = self.header(region, name, count, cancel)?;
        let (begin, end) = (header.frame_at(frames.start), header.frame_at(frames.end));
        let range = |bytes: &Bytes| {
            let range = usize::try_from(begin).ok()?..usize::try_from(end).ok()?;
            (bytes.len() >= range.end).then(|| bytes.slice(range))
        };
        let stored = match fetched.as_ref().and_then(range) {
            Some(bytes) => bytes,
            None if begin == end => Bytes::new(),
            None => self.get(name, begin, (end - begin) as usize, cancel)?,
        };
        Ok((header, stored))
    }

    fn get(&self, name: &Name, at: u64, length: usize, cancel: &AtomicBool) -> Result<Bytes, ImagesError> {
        match self.inner.store.get(name, at, length, cancel) {
            Err(error) if error.is_missing() => Err(ImagesError::Gone(name.clone())),
            got => Ok(got?),
        }
    }

    /// The header at the beginning of an object, which must be the one that the table names.
    fn check_header(
        &self,
        (region, entry): (u32, Entry),
        name: &Name,
        bytes: &[u8],
    ) -> Result<RegionHeader, ImagesError> {
        let damaged = |how| ImagesError::Damaged { name: name.clone(), how };
        let head = RegionHeader::of_object(bytes).map_err(|bad| bad.of(name))?;
        if Checksum::of(head) != entry.digest {
            return Err(damaged("its digest is wrong"));
        }
        let header = RegionHeader::parse(head, self.inner.volume).map_err(|bad| bad.of(name))?;
        if (header.region, header.at) != (region, entry.at) || header.total() != u64::from(entry.length) {
            return Err(damaged("it is another region"));
        }
        Ok(header)
    }

    /// The header of a region, checked, and the bytes from the beginning of the object if some were
    /// fetched for it.
    fn header(
        &self,
        (region, entry): (u32, Entry),
        name: &Name,
        count: usize,
        cancel: &AtomicBool,
    ) -> Result<(Arc<RegionHeader>, Option<Bytes>), ImagesError> {
        // The digest covers the whole header, and the version names the object.
        if let Some(header) = self.headers.lock().get(&region).filter(|header| header.at == entry.at) {
            return Ok((header.clone(), None));
        }
        let damaged = |how| ImagesError::Damaged { name: name.clone(), how };
        let whole = count >= WHOLE_BLOCKS || entry.length <= WHOLE_BYTES;
        // One byte more shows an object that is too long.
        let length = if whole { (entry.length as usize).min(OBJECT_BYTES_MAX) + 1 } else { HEADER_BYTES_MAX };
        let bytes = self.get(name, 0, length, cancel)?;
        if whole && bytes.len() != entry.length as usize {
            return Err(damaged("its length is wrong"));
        }
        let header = self.check_header((region, entry), name, &bytes)?;
        let header = Arc::new(header);
        let mut headers = self.headers.lock();
        if headers.len() >= HEADERS_MAX {
            headers.clear();
        }
        headers.insert(region, header.clone());
        Ok((header, Some(bytes)))
    }
}

/// Adds the wanted blocks of a frame; returns the first one that is not there.
fn take(
    (frame, stored, unpacker): (&Frame, &[u8], &mut Option<Decompressor<'static>>),
    wanted: impl Iterator<Item = usize>,
    out: &mut Vec<u8>,
) -> Result<Option<usize>, super::codec::Bad> {
    if frame.blocks == 0 {
        return Ok(wanted.into_iter().next());
    }
    let plain = frame.unpack(stored, unpacker)?;
    for place in wanted {
        let block = frame.offset(place).and_then(|at| plain.get(at..at + BLOCK_SIZE));
        match block {
            Some(block) => out.extend_from_slice(block),
            None => return Ok(Some(place)),
        }
    }
    Ok(None)
}
