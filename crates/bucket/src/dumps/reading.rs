//! A part of a dump in a bucket as bytes: in order with reads ahead, and anywhere by ranged reads.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};

use bytes::Bytes;
use cairn_base::{BLOCK_SIZE, Mutex};
use cairn_device::{Block, BlockMut, pieces_mut};
use cairn_stream::{DumpBytes, InBlocks};

use super::skeleton::Skeleton;
use crate::error::{StoreError, Trouble};
use crate::limits::{CANCEL_POLL, GET_BYTES_MAX};
use crate::name::Name;
use crate::store::Store;
use crate::workers::{Workers, beside};

/// Bytes of one read ahead.
const AHEAD_BYTES: usize = 8 << 20;
/// Read-aheads in progress or not yet consumed.
const AHEAD_READS: usize = 6;
/// Bytes fetched by a small read: the caller mostly asks for the following ones next.
const UNIT_BYTES: usize = 1 << 20;
/// Units that are kept.
const UNITS_KEPT: usize = 8;

const _: () = assert!(AHEAD_BYTES.is_multiple_of(BLOCK_SIZE) && AHEAD_BYTES <= GET_BYTES_MAX);

/// A part of a dump in a bucket.
#[derive(Clone)]
pub struct BucketPart(Arc<Part>);

struct Part {
    store: Arc<dyn Store>,
    workers: Arc<dyn Workers>,
    name: Name,
    length: u64,
    skeleton: Option<(Skeleton, Name)>,
    /// The last used last.
    units: Mutex<Vec<(u64, Bytes)>>,
    cancel: Arc<AtomicBool>,
}

/// Blocks of a part, each full except the last one of all.
#[derive(Default)]
struct Fetched {
    blocks: Vec<Block>,
    bytes: usize,
}

/// An index past the end of the data, or a truncated object.
fn cut() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the object is shorter than its index says")
}

/// The error of a store as one of a read.
fn failed(error: StoreError) -> io::Error {
    let kind = match error.trouble {
        Trouble::Missing | Trouble::NoBucket => io::ErrorKind::NotFound,
        Trouble::Forbidden | Trouble::Credentials(_) => io::ErrorKind::PermissionDenied,
        Trouble::TimedOut => io::ErrorKind::TimedOut,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

impl BucketPart {
    /// Opens a part of `length` bytes. A skeleton that is missing or damaged is left out.
    ///
    /// # Errors
    /// The store failed while the skeleton was opened.
    pub fn open(
        (store, workers): (&Arc<dyn Store>, &Arc<dyn Workers>),
        (name, length): (Name, u64),
        skeleton: Option<(Name, u64)>,
        cancel: &Arc<AtomicBool>,
    ) -> io::Result<Self> {
        let mut part = Part {
            store: store.clone(),
            workers: workers.clone(),
            name,
            length,
            skeleton: None,
            units: Mutex::new(Vec::new()),
            cancel: cancel.clone(),
        };
        if let Some((name, length)) = skeleton {
            let opened = Skeleton::open(length, &|at, count| part.read_object(&name, at, count))?;
            part.skeleton = opened.map(|skeleton| (skeleton, name));
        }
        Ok(Self(Arc::new(part)))
    }
}

impl Part {
    /// Exactly `count` bytes of an object; none if it is missing or shorter.
    fn read_object(&self, name: &Name, at: u64, count: usize) -> io::Result<Option<Vec<u8>>> {
        match self.store.get(name, at, count, &self.cancel) {
            Ok(bytes) => Ok((bytes.len() == count).then(|| bytes.to_vec())),
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    /// Bytes that the part has from `at` on, at most `count`.
    fn there(&self, at: u64, count: usize) -> usize {
        usize::try_from(self.length.saturating_sub(at)).unwrap_or(count).min(count)
    }

    /// Bytes of the part, at most up to the end.
    fn get(&self, at: u64, count: usize, cancel: &AtomicBool) -> io::Result<Bytes> {
        let count = self.there(at, count);
        if count == 0 {
            return Ok(Bytes::new());
        }
        let bytes = self.store.get(&self.name, at, count, cancel).map_err(failed)?;
        if bytes.len() < count { Err(cut()) } else { Ok(bytes) }
    }

    /// The same as blocks, and how many bytes they have. The copy is made here, so that the thread
    /// that consumes parts in order need not make it.
    fn get_blocks(&self, at: u64, count: usize, cancel: &AtomicBool) -> io::Result<Fetched> {
        let count = self.there(at, count);
        if count == 0 {
            return Ok(Fetched::default());
        }
        let got = self.store.get_pieces(&self.name, at, count, cancel).map_err(failed)?;
        if got.iter().map(Bytes::len).sum::<usize>() < count {
            return Err(cut());
        }
        let mut blocks = Vec::new();
        BlockMut::append_run(&mut blocks, count.div_ceil(BLOCK_SIZE));
        let (mut got, mut rest) = (got.iter(), &[][..]);
        for mut piece in pieces_mut(&mut blocks) {
            while !piece.is_empty() {
                if rest.is_empty() {
                    let Some(next) = got.next() else { break };
                    rest = &next[..];
                    continue;
                }
                let (now, later) = rest.split_at(rest.len().min(piece.len()));
                let (place, free) = std::mem::take(&mut piece).split_at_mut(now.len());
                place.copy_from_slice(now);
                (rest, piece) = (later, free);
            }
        }
        Ok(Fetched { blocks: blocks.into_iter().map(BlockMut::freeze).collect(), bytes: count })
    }

    fn unit(&self, number: u64) -> io::Result<Bytes> {
        {
            let mut units = self.units.lock();
            if let Some(at) = units.iter().position(|(own, _)| *own == number) {
                let found = units.remove(at);
                let bytes = found.1.clone();
                units.push(found);
                return Ok(bytes);
            }
        }
        let bytes = self.get(number * UNIT_BYTES as u64, UNIT_BYTES, &self.cancel)?;
        let mut units = self.units.lock();
        if units.len() >= UNITS_KEPT {
            units.remove(0);
        }
        units.push((number, bytes.clone()));
        Ok(bytes)
    }
}

impl DumpBytes for BucketPart {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let part = &self.0;
        if let Some((skeleton, name)) = &part.skeleton
            && skeleton.read(offset, buffer, &|at, count| part.read_object(name, at, count))?
        {
            return Ok(buffer.len());
        }
        let mut done = 0;
        while done < buffer.len() && offset + (done as u64) < part.length {
            let at = offset + done as u64;
            let rest = &mut buffer[done..];
            let copied = if rest.len() >= UNIT_BYTES {
                let bytes = part.get(at, rest.len().min(GET_BYTES_MAX), &part.cancel)?;
                rest[..bytes.len()].copy_from_slice(&bytes);
                bytes.len()
            } else {
                let unit = part.unit(at / UNIT_BYTES as u64)?;
                let found = unit.get((at % UNIT_BYTES as u64) as usize..).unwrap_or_default();
                let count = found.len().min(rest.len());
                rest[..count].copy_from_slice(&found[..count]);
                count
            };
            if copied == 0 {
                break;
            }
            done += copied;
        }
        Ok(done)
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.0.length)
    }

    fn in_order(&self, offset: u64) -> Option<Box<dyn InBlocks>> {
        let at = offset - offset % BLOCK_SIZE as u64;
        Some(Box::new(Ahead {
            part: self.0.clone(),
            next: at,
            reads: VecDeque::new(),
            stop: Arc::new(AtomicBool::new(false)),
        }))
    }
}

/// Reads a part in order, some reads ahead of the caller.
struct Ahead {
    part: Arc<Part>,
    /// Where the next read begins.
    next: u64,
    reads: VecDeque<Receiver<io::Result<Fetched>>>,
    stop: Arc<AtomicBool>,
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl Ahead {
    /// Starts reads up to the limit; without a thread the caller reads.
    fn start(&mut self) -> Option<io::Result<Fetched>> {
        while self.reads.len() < AHEAD_READS && self.next < self.part.length {
            let (part, at, stop) = (self.part.clone(), self.next, self.stop.clone());
            match beside(&self.part.workers, move || part.get_blocks(at, AHEAD_BYTES, &stop)) {
                Ok(read) => self.reads.push_back(read),
                Err(_) if self.reads.is_empty() => {
                    self.next += AHEAD_BYTES as u64;
                    return Some(self.part.get_blocks(at, AHEAD_BYTES, &self.stop));
                }
                Err(_) => return None,
            }
            self.next += AHEAD_BYTES as u64;
        }
        None
    }

    fn take(&mut self) -> io::Result<Fetched> {
        if let Some(read) = self.start() {
            return read;
        }
        let Some(read) = self.reads.front() else { return Ok(Fetched::default()) };
        loop {
            match read.recv_timeout(CANCEL_POLL) {
                Ok(bytes) => {
                    self.reads.pop_front();
                    return bytes;
                }
                Err(RecvTimeoutError::Timeout) => {
                    if self.part.cancel.load(Ordering::Relaxed) {
                        self.stop.store(true, Ordering::Relaxed);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return Err(io::Error::other("a reader is gone")),
            }
        }
    }
}

impl InBlocks for Ahead {
    fn next(&mut self, into: &mut VecDeque<Block>) -> io::Result<usize> {
        let Fetched { blocks, bytes } = self.take()?;
        into.extend(blocks);
        Ok(bytes)
    }
}
