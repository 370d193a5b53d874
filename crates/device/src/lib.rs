//! Where bytes live: the waist of Cairn.
//!
//! A [`Device`] is an array of bytes that takes batches of operations. Everything that stores bytes
//! is one (a file, a raw disk, memory, a LUN of a volume, a snapshot), and everything that serves
//! bytes uses one. Data travels in [`Segments`]: pieces of reference-counted, aligned 4 KiB
//! [`Block`]s, so that a block goes from a socket to a disk, or from the cache to a socket, without
//! being copied.
//!
//! This crate has `unsafe` code; but for the rings of FUSE no other one has.

mod admission;
mod begun;
mod block;
mod clock;
mod concat;
mod error;
mod fault;
mod file;
mod image;
mod locks;
mod memory;
mod operation;
mod pool;
mod rehearsal;
mod segments;
mod side;
#[cfg(any(test, feature = "suite"))]
pub mod suite;
#[cfg(test)]
mod tests;
mod ticket;

pub use begun::Begun;
pub use block::{Block, BlockMut, pieces, pieces_mut};
pub use clock::SystemClock;
pub use concat::ConcatDevice;
pub use error::{Action, DeviceError};
pub use fault::{Fate, FaultDevice, FaultPart, LoggedKind, LoggedOperation};
pub use file::{Direct, Engine, FileDevice, FileOptions, OpenError};
pub use memory::MemoryDevice;
pub use operation::{Operation, Request};
pub use pool::give_memory_back;
pub use rehearsal::{Faults, Rehearsal, RehearsalDevice};
pub use segments::{Segment, Segments};
pub use side::SideDevice;
pub use ticket::{Gate, IsGone, Pass, Ticket, admit, park};

/// The size of a device, and the limits on its requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes; requests past it are refused with [`DeviceError::OutOfRange`].
    pub length: u64,
    /// Offsets and lengths of requests are multiples of this (1, 512 or 4096); others are refused.
    pub alignment: u32,
    /// Writes, trims and write-zeroes are refused with [`DeviceError::ReadOnly`].
    pub read_only: bool,
    /// Trim frees space; elsewhere it does nothing.
    pub trims: bool,
    /// Write-zeroes is faster than writing zeroes.
    pub fast_zeroes: bool,
}

/// A stretch of a device, for `block status` of NBD and GET LBA STATUS of SCSI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Bytes.
    pub length: u64,
    /// Nothing is allocated here.
    pub hole: bool,
    /// Reads as zeroes.
    pub zero: bool,
}

/// An array of bytes with read, write, flush, trim and write-zeroes.
///
/// Callers' threads call in; a device starts no thread that a caller can notice. Operations of one
/// batch may be done in any order and may overlap in time, except that a flush covers every
/// operation before it in its batch and every operation that completed before the batch was given.
/// Two writes to the same bytes in one batch have the outcome of the batch's order.
pub trait Device: Send + Sync {
    /// Size and limits as of now; the length can grow.
    fn geometry(&self) -> Geometry;

    /// Performs every operation of `batch` that is still pending and records its outcome in it.
    /// Returns when all are done.
    fn run(&self, batch: &mut [Operation]);

    /// Performs those pending operations that need no waiting (they are in memory); the others stay
    /// pending. It may do none. An operation that must come after one that stays pending (a flush)
    /// stays pending too.
    fn run_ready(&self, _batch: &mut [Operation]) {}

    /// Begins `batch`, with the promises of [`run`](Self::run); wait for the returned value to
    /// complete it. The caller may run batches on other devices meanwhile; between this batch and
    /// others on this device there is no order. The default runs it at once.
    fn begin(&self, mut batch: Vec<Operation>) -> Begun {
        self.run(&mut batch);
        Begun::done(batch)
    }

    /// The extents from `offset`, in order, covering at most `length` bytes, at most `limit` of
    /// them. Neighbours of the same kind may be separate. The default reports everything as data.
    fn extents(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<Extent>, DeviceError> {
        self.geometry().admit_range(Action::Extents, offset, length)?;
        if length == 0 || limit == 0 {
            return Ok(Vec::new());
        }
        Ok(vec![Extent { length, hole: false, zero: false }])
    }

    /// The longest write that [`write_atomic`](Self::write_atomic) takes, in bytes: a multiple of
    /// 4096. 0, the default: it takes none.
    fn atomic_bytes_max(&self) -> u32 {
        0
    }

    /// Writes all of `data` or nothing: reads see either, and so does the next opening after a cut
    /// at any time. With `fua` it is durable when this returns; otherwise a cut may still undo the
    /// whole of it. `offset` and length are multiples of 4096.
    ///
    /// # Errors
    /// Nothing was written; with `fua` it may also be all there, but not durable.
    /// [`DeviceError::Unaligned`] also for a length above
    /// [`atomic_bytes_max`](Self::atomic_bytes_max). [`DeviceError::Withdrawn`] when `ticket` was
    /// withdrawn before it began; the caller holds no pass of it.
    fn write_atomic(
        &self,
        offset: u64,
        data: Segments,
        fua: bool,
        ticket: Option<&Ticket>,
    ) -> Result<(), DeviceError> {
        let _ = (fua, ticket);
        Err(DeviceError::not_atomic(offset, &data))
    }

    /// Reserves room at `offset..offset + length` ahead of writes, so that a flush after them need
    /// not wait for the layer below to record their places. Unwritten places there become zeroes;
    /// written ones are unchanged. No other caller may write there until it returns. The default
    /// does nothing.
    fn prepare(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        self.geometry().admit_range(Action::Write, offset, length)
    }

    /// Reserves room for writes at `offset..offset + length` in the layer below (the file system of
    /// a sparse file), so that none of them fails for lack of it. The content stays unchanged, and
    /// holes still read as zeroes; the reservation is as durable as a write. If the layer below
    /// cannot promise it, and by default, this does nothing, and a write may still fail with
    /// [`DeviceError::NoSpace`].
    ///
    /// # Errors
    /// [`DeviceError::NoSpace`]: a part of the room may have been taken, and stays so.
    fn allocate(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        self.geometry().admit_range(Action::Write, offset, length)
    }

    /// Makes the device at least `length` bytes long, durably. The default can't.
    ///
    /// # Errors
    /// [`DeviceError::NoSpace`] when it stays shorter.
    fn lengthen(&self, length: u64) -> Result<(), DeviceError> {
        match self.geometry().length {
            now if now < length => Err(DeviceError::NoSpace { offset: now, length: length - now }),
            _ => Ok(()),
        }
    }

    /// Reads `length` bytes at `offset`.
    fn read(&self, offset: u64, length: u32) -> Result<Segments, DeviceError> {
        let mut batch = [Operation::read(offset, length)];
        self.run(&mut batch);
        let [operation] = batch;
        operation.into_data()
    }

    /// Reads into `buffer` at `offset`.
    fn read_into(&self, offset: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        for (index, chunk) in buffer.chunks_mut(MAX_CHUNK).enumerate() {
            let at = offset.saturating_add((index * MAX_CHUNK) as u64);
            self.read(at, chunk.len() as u32)?.copy_to(chunk);
        }
        Ok(())
    }

    /// Writes `data` at `offset`; it is durable only after a flush.
    fn write(&self, offset: u64, data: Segments) -> Result<(), DeviceError> {
        self.one(Operation::write(offset, data))
    }

    /// Writes a copy of `bytes` at `offset`.
    fn write_from(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        for (index, chunk) in bytes.chunks(MAX_CHUNK).enumerate() {
            self.write(offset.saturating_add((index * MAX_CHUNK) as u64), Segments::copy_of(chunk))?;
        }
        Ok(())
    }

    /// Makes every completed write, trim and write-zeroes durable.
    fn flush(&self) -> Result<(), DeviceError> {
        self.one(Operation::flush())
    }

    /// Performs one operation.
    fn one(&self, operation: Operation) -> Result<(), DeviceError> {
        let mut batch = [operation];
        self.run(&mut batch);
        let [operation] = batch;
        operation.into_outcome()
    }
}

const MAX_CHUNK: usize = 1 << 20;
