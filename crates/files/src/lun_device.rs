//! A LUN as a device: bytes to blocks.
//!
//! Whole blocks pass through without a copy. A request that covers part of a block reads the block,
//! changes it and writes it, while no other write to the LUN is between its own reading and
//! writing: neighbours in the same block are never lost.
//!
//! A change waits for nodes to be read, for others that cover a part of a block, and for memory and
//! room in the volume. It begins when the volume takes its blocks; until then it can be
//! [withdrawn](cairn_device::Gate). One of several steps begins once for each of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cairn_base::{BLOCK_SIZE, FileId, Lba};
use cairn_device::{
    Block, BlockMut, Device, DeviceError, Extent, Geometry, Operation, Request, Segment, Segments, Ticket,
    park,
};
use cairn_volume::{BlockRead, FileExtent, Image, Role, Volume, VolumeError};
use parking_lot::RwLock;

const BLOCK: u64 = BLOCK_SIZE as u64;
/// Blocks of explicit zeroes that one step writes: 4 MiB.
const ZERO_BLOCKS: u64 = 1024;
/// Blocks that one prefetch brings in at most: 16 MiB.
const PREFETCH_BLOCKS_MAX: u64 = 4096;

/// Where the bytes come from.
enum Source {
    /// The active state of a volume.
    Active(Arc<Volume>),
    /// A root that does not change.
    Frozen(Image),
}

/// A LUN of a volume's active state or of an image.
pub struct LunDevice {
    source: Source,
    file: FileId,
    /// Its last known length, in bytes.
    known_length: AtomicU64,
    /// Taken for writing by requests that cover part of a block, for reading by all other writes.
    partial: RwLock<()>,
}

impl LunDevice {
    /// The LUN that `file` is, as clients write it, which has that many bytes.
    pub fn active(volume: Arc<Volume>, file: FileId, length: u64) -> Self {
        Self::new(Source::Active(volume), file, length)
    }

    /// The LUN that `file` is in an image, with that many bytes; read-only.
    pub fn frozen(image: Image, file: FileId, length: u64) -> Self {
        Self::new(Source::Frozen(image), file, length)
    }

    fn new(source: Source, file: FileId, length: u64) -> Self {
        Self { source, file, known_length: AtomicU64::new(length), partial: RwLock::new(()) }
    }

    /// 0 for a deleted LUN. While it cannot be read the last known length stays: clients must not
    /// take a failing disk for one that has become shorter, and their requests fail with the
    /// reason.
    fn length(&self) -> u64 {
        let inode = match &self.source {
            Source::Active(volume) => volume.inode(self.file),
            Source::Frozen(image) => image.inode(self.file),
        };
        match inode {
            Ok(inode) if inode.removed && matches!(self.source, Source::Active(_)) => 0,
            Ok(inode) => {
                self.known_length.store(inode.length_bytes, Ordering::Relaxed);
                inode.length_bytes
            }
            Err(VolumeError::NoSuchFile(_)) => 0,
            Err(_) => self.known_length.load(Ordering::Relaxed),
        }
    }

    fn read_blocks(&self, reads: &mut [BlockRead], wait: bool) {
        match &self.source {
            Source::Active(volume) => volume.read(self.file, reads, wait),
            Source::Frozen(image) => image.read(self.file, reads, wait),
        }
    }

    /// Serves the open reads of a batch together.
    fn serve_reads(&self, batch: &mut [Operation], geometry: &Geometry, wait: bool) {
        let mut reads = Vec::new();
        let mut indexes = Vec::new();
        for (index, operation) in batch.iter_mut().enumerate().filter(|(_, operation)| operation.is_pending())
        {
            let (offset, length) = match *operation.request() {
                Request::Read { offset, length } => (offset, u64::from(length)),
                Request::Prefetch { offset, length } if wait => (offset, length),
                _ => continue,
            };
            match geometry.admit(operation.request()) {
                Err(error) => operation.finish(Err(error)),
                Ok(()) if length == 0 => operation.succeed(),
                Ok(()) => {
                    let first = offset / BLOCK;
                    let end = (offset + length).div_ceil(BLOCK);
                    let count = match operation.request() {
                        Request::Prefetch { .. } => (end - first).min(PREFETCH_BLOCKS_MAX),
                        _ => end - first,
                    };
                    reads.push(BlockRead::new(Lba(first), count));
                    indexes.push(index);
                }
            }
        }
        if reads.is_empty() {
            return;
        }
        self.read_blocks(&mut reads, wait);
        for (index, read) in indexes.into_iter().zip(reads) {
            let Some(outcome) = read.outcome else { continue };
            let Request::Read { offset, length } = *batch[index].request() else {
                // Advice: a later read of an unreadable block gets the error.
                batch[index].succeed();
                continue;
            };
            let outcome = outcome.map_err(|error| error.to_device(offset, length.into())).map(|data| {
                if data.len() == length as usize {
                    data
                } else {
                    data.slice((offset % BLOCK) as usize, length as usize)
                }
            });
            batch[index].finish(outcome);
        }
    }

    /// Performs one write, trim or write-zeroes. Without `wait`, `None` when it would need the
    /// device.
    fn change(
        &self,
        volume: &Arc<Volume>,
        operation: &Operation,
        wait: bool,
    ) -> Option<Result<(), VolumeError>> {
        let (request, ticket) = (operation.request(), operation.ticket());
        let (offset, length) = match request {
            Request::Write { offset, data, .. } => (*offset, data.len() as u64),
            Request::Trim { offset, length, .. } | Request::WriteZeroes { offset, length, .. } => {
                (*offset, *length)
            }
            _ => return None,
        };
        let whole = offset % BLOCK == 0 && length % BLOCK == 0;
        if !whole {
            if !wait {
                return None;
            }
            let _alone = self.partial.write();
            return Some(self.change_in_parts(volume, request, ticket, offset, length));
        }
        if wait {
            let _together = self.partial.read();
            return Some(self.change_whole(volume, request, ticket, offset, length));
        }
        // Its holder may wait for room.
        let _together = self.partial.try_read()?;
        let first = offset / BLOCK;
        match request {
            Request::Write { data, .. } => volume.write_ready(self.file, numbered(first, data).collect()),
            Request::WriteZeroes { may_trim: false, .. } => None,
            _ => volume.punch_ready(self.file, Lba(first), length / BLOCK),
        }
    }

    fn change_whole(
        &self,
        volume: &Arc<Volume>,
        request: &Request,
        ticket: Option<&Ticket>,
        offset: u64,
        length: u64,
    ) -> Result<(), VolumeError> {
        let first = offset / BLOCK;
        match request {
            Request::Write { data, .. } => volume.write_for(ticket, self.file, &mut numbered(first, data)),
            Request::WriteZeroes { may_trim: false, .. } => {
                let count = length / BLOCK;
                for start in (0..count).step_by(ZERO_BLOCKS as usize) {
                    let step = ZERO_BLOCKS.min(count - start) as usize;
                    let mut zeroes = (0..step).map(|n| (Lba(first + start + n as u64), Block::zero()));
                    volume.write_for(ticket, self.file, &mut zeroes)?;
                }
                Ok(())
            }
            _ => volume.punch_for(ticket, self.file, Lba(first), length / BLOCK),
        }
    }

    /// A request with edges inside of blocks: the edges are read, changed and written; the blocks
    /// between are written whole.
    fn change_in_parts(
        &self,
        volume: &Arc<Volume>,
        request: &Request,
        ticket: Option<&Ticket>,
        offset: u64,
        length: u64,
    ) -> Result<(), VolumeError> {
        let end = offset + length;
        let (inner_start, inner_end) = (offset.next_multiple_of(BLOCK), end / BLOCK * BLOCK);
        let data = match request {
            Request::Write { data, .. } => Some(data),
            _ => None,
        };
        if inner_start < inner_end {
            let inner_length = inner_end - inner_start;
            let inner = match (request, data) {
                (Request::Write { fua, .. }, Some(data)) => Request::Write {
                    offset: inner_start,
                    data: data.slice((inner_start - offset) as usize, inner_length as usize),
                    fua: *fua,
                },
                _ => request.clone(),
            };
            self.change_whole(volume, &inner, ticket, inner_start, inner_length)?;
        }
        let head = (offset, end.min(inner_start));
        let tail = (inner_end.max(inner_start), end);
        for (from, to) in [head, tail] {
            if from < to {
                let bytes = data.map(|data| data.slice((from - offset) as usize, (to - from) as usize));
                self.change_part(volume, ticket, from, to, bytes)?;
            }
        }
        Ok(())
    }

    /// Changes `from..to`, within one block.
    fn change_part(
        &self,
        volume: &Arc<Volume>,
        ticket: Option<&Ticket>,
        from: u64,
        to: u64,
        data: Option<Segments>,
    ) -> Result<(), VolumeError> {
        let lba = Lba(from / BLOCK);
        let mut reads = [BlockRead::new(lba, 1)];
        volume.read(self.file, &mut reads, true);
        let [read] = reads;
        let old = read.outcome.unwrap_or(Err(VolumeError::Closed))?;
        let mut block = BlockMut::zeroed();
        old.copy_to(&mut block[..]);
        let part = &mut block[(from % BLOCK) as usize..(from % BLOCK + (to - from)) as usize];
        match data {
            Some(data) => data.copy_to(part),
            None => part.fill(0),
        }
        volume.write_for(ticket, self.file, &mut std::iter::once((lba, block.freeze())))
    }

    /// Performs the changes of a batch in their order, then one flush for all that ask for one.
    fn run_changes(&self, volume: &Arc<Volume>, batch: &mut [Operation], geometry: &Geometry) {
        park(batch);
        let mut flushed = Vec::new();
        let writes = batch.iter().filter(|operation| operation.is_pending()).map(Operation::request);
        let ranges: Vec<(u64, u64)> = writes
            .filter_map(|request| match request {
                Request::Write { offset, data, .. }
                    if !data.is_empty() && geometry.admit(request).is_ok() =>
                {
                    let first = offset / BLOCK;
                    Some((first, (offset + data.len() as u64).div_ceil(BLOCK) - first))
                }
                _ => None,
            })
            .collect();
        if ranges.len() > 1 {
            volume.load_paths(self.file, &ranges);
        }
        for (index, operation) in batch.iter_mut().enumerate() {
            if !operation.is_pending() {
                continue;
            }
            if operation.is_flush() {
                flushed.push(index);
            } else if operation.request().is_mutation() {
                match self.changed(volume, operation, geometry, true) {
                    Some(Ok(())) if wants_flush(operation.request()) => flushed.push(index),
                    Some(Ok(())) => operation.succeed(),
                    Some(Err(error)) => operation.finish(Err(error)),
                    None => {}
                }
            }
        }
        if !flushed.is_empty() {
            let outcome = volume.flush();
            for index in flushed {
                let outcome = outcome.clone().map(|()| Segments::default());
                batch[index].finish(outcome.map_err(|error| error.to_device(0, 0)));
            }
        }
    }

    fn changed(
        &self,
        volume: &Arc<Volume>,
        operation: &Operation,
        geometry: &Geometry,
        wait: bool,
    ) -> Option<Result<(), DeviceError>> {
        if let Err(error) = geometry.admit(operation.request()) {
            return Some(Err(error));
        }
        let (_, offset, length) = operation.request().range()?;
        if length == 0 {
            return Some(Ok(()));
        }
        let outcome = self.change(volume, operation, wait)?;
        Some(outcome.map_err(|error| error.to_device(offset, length)))
    }
}

/// FUA is a flush of the written data.
fn wants_flush(request: &Request) -> bool {
    match request {
        Request::Write { fua, .. } | Request::Trim { fua, .. } | Request::WriteZeroes { fua, .. } => *fua,
        _ => false,
    }
}

/// Whole blocks of data with their numbers, from `first` on.
fn numbered(first: u64, data: &Segments) -> impl ExactSizeIterator<Item = (Lba, Block)> {
    let blocks = whole_blocks(data).into_iter().enumerate();
    blocks.map(move |(n, block)| (Lba(first + n as u64), block))
}

/// The blocks of data that starts and ends on block borders; copied only where the pieces do not
/// match the blocks.
fn whole_blocks(data: &Segments) -> Vec<Block> {
    if data.iter().all(|piece| piece.as_whole().is_some()) {
        return data.iter().filter_map(Segment::as_whole).cloned().collect();
    }
    let bytes = data.to_vec();
    bytes
        .chunks_exact(BLOCK_SIZE)
        .map(|chunk| {
            let mut block = BlockMut::dirty();
            block.copy_from_slice(chunk);
            block.freeze()
        })
        .collect()
}

impl Device for LunDevice {
    fn geometry(&self) -> Geometry {
        let read_only = match &self.source {
            Source::Active(volume) => volume.status_role() == Role::Destination,
            Source::Frozen(_) => true,
        };
        Geometry {
            length: self.length(),
            alignment: 1,
            read_only,
            trims: !read_only,
            fast_zeroes: !read_only,
        }
    }

    fn run(&self, batch: &mut [Operation]) {
        let geometry = self.geometry();
        match &self.source {
            Source::Active(volume) => self.run_changes(volume, batch, &geometry),
            Source::Frozen(_) => {
                for operation in batch.iter_mut().filter(|operation| operation.is_pending()) {
                    if operation.is_flush() {
                        operation.succeed();
                    } else if operation.request().is_mutation() {
                        operation.finish(Err(DeviceError::ReadOnly));
                    }
                }
            }
        }
        self.serve_reads(batch, &geometry, true);
    }

    fn run_ready(&self, batch: &mut [Operation]) {
        let geometry = self.geometry();
        if let Source::Active(volume) = &self.source {
            for operation in batch.iter_mut().filter(|operation| operation.is_pending()) {
                let request = operation.request();
                if !request.is_mutation() {
                    continue;
                }
                // Whatever follows a change that has to wait must not overtake it.
                if wants_flush(request) {
                    break;
                }
                match self.changed(volume, operation, &geometry, false) {
                    Some(Ok(())) => operation.succeed(),
                    Some(Err(error)) => operation.finish(Err(error)),
                    None => break,
                }
            }
        }
        self.serve_reads(batch, &geometry, false);
    }

    fn atomic_bytes_max(&self) -> u32 {
        match &self.source {
            Source::Active(_) => (Volume::ATOMIC_BLOCKS_MAX * BLOCK_SIZE) as u32,
            Source::Frozen(_) => 0,
        }
    }

    fn write_atomic(
        &self,
        offset: u64,
        data: Segments,
        fua: bool,
        ticket: Option<&Ticket>,
    ) -> Result<(), DeviceError> {
        let request = Request::Write { offset, data, fua };
        self.geometry().admit(&request)?;
        let (Source::Active(volume), Request::Write { data, .. }) = (&self.source, &request) else {
            return Err(DeviceError::ReadOnly);
        };
        let length = data.len() as u64;
        let whole = offset.is_multiple_of(BLOCK) && length.is_multiple_of(BLOCK);
        if !whole || length > self.atomic_bytes_max().into() {
            return Err(DeviceError::not_atomic(offset, data));
        }
        let outcome = {
            let _together = self.partial.read();
            volume.write_atomic(ticket, self.file, &mut numbered(offset / BLOCK, data))
        };
        let flushed = outcome.and_then(|()| if fua { volume.flush() } else { Ok(()) });
        flushed.map_err(|error| error.to_device(offset, length))
    }

    fn extents(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<Extent>, DeviceError> {
        let geometry = self.geometry();
        geometry.admit_range(cairn_device::Action::Extents, offset, length)?;
        let first = offset / BLOCK;
        let count = (offset + length).div_ceil(BLOCK) - first;
        let found = match &self.source {
            Source::Active(volume) => volume.extents(self.file, Lba(first), count, limit),
            Source::Frozen(image) => image.extents(self.file, Lba(first), count, limit),
        };
        let found: Vec<FileExtent> = found.map_err(|error| error.to_device(offset, length))?;
        let mut extents = Vec::with_capacity(found.len());
        // The first and the last extent are cut to the requested bytes.
        let (mut at, mut left) = (first * BLOCK, length);
        for extent in found {
            let end = at + extent.count * BLOCK;
            let bytes = (end - at.max(offset)).min(left);
            extents.push(Extent { length: bytes, hole: extent.hole, zero: extent.hole });
            left -= bytes;
            at = end;
            if left == 0 {
                break;
            }
        }
        Ok(extents)
    }
}
