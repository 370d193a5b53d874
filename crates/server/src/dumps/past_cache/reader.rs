//! Reading: a file in order, with a bounded number of pieces ahead of the consumer; and at any
//! place, piece by piece.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::io::IoSliceMut;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use cairn_base::BLOCK_SIZE;
use cairn_device::{Block, BlockMut, pieces_mut};
use cairn_stream::{DumpBytes, InBlocks};
use rustix::io::{ReadWriteFlags, preadv, preadv2};

use super::{ALIGNMENT, Buffer, Direct, PIECE};
use crate::peers::token::random_bytes;

/// Threads that read a file in turn, so pieces on their way at a time.
const READERS: usize = 4;
/// Pieces of each that wait to be taken.
const WAITING: usize = 1;
/// Random places of a file for the check whether the page cache has it.
const LOOKS: u64 = 16;

/// A file of which each byte is read once, or seldom.
#[derive(Clone)]
pub(crate) struct Source(Arc<Inner>);

struct Inner {
    file: File,
    direct: Direct,
}

impl Source {
    /// Opens a regular file. If the page cache has it, it is read from there, which is faster.
    pub(crate) fn new(file: File) -> Self {
        let direct = Direct::new();
        if !is_cached(&file) {
            direct.enter(&file);
        }
        Self(Arc::new(Inner { file, direct }))
    }
}

/// Whether the page cache has most of a file.
fn is_cached(file: &File) -> bool {
    let length = file.metadata().map_or(0, |found| found.len());
    let looks = (0..LOOKS).map(|_| u64::from_le_bytes(random_bytes()) % length.max(1));
    // The check makes the kernel load missing pages, but so few that a later check tests other
    // places.
    let has = |at: &u64| {
        let mut byte = [0];
        preadv2(file, &mut [IoSliceMut::new(&mut byte)], *at, ReadWriteFlags::NOWAIT).is_ok()
    };
    looks.filter(has).count() as u64 > LOOKS * 3 / 4
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The client may still have the same open file, and another program may read it after this.
        let _ = self.direct.leave(&self.file);
    }
}

impl Inner {
    /// Reads a piece at `at`, which is aligned. Returns the number of bytes: fewer than a piece
    /// only at the end.
    fn fill<'a>(&self, at: u64, memory: impl Iterator<Item = &'a mut [u8]>) -> io::Result<usize> {
        let mut slices: Vec<IoSliceMut<'_>> = memory.map(IoSliceMut::new).collect();
        let (mut left, mut filled) = (&mut slices[..], 0);
        while !left.is_empty() {
            let request = &mut || Ok(preadv(&self.file, left, at + filled as u64)?);
            let read = self.direct.request(&self.file, request)?;
            filled += read;
            // A file may end at any byte; a shorter read before the end stops at an aligned place,
            // where a request may continue.
            if read == 0 || !filled.is_multiple_of(ALIGNMENT) {
                break;
            }
            IoSliceMut::advance_slices(&mut left, read);
        }
        Ok(filled)
    }

    /// The blocks that there are at `at`, which is aligned, of a piece, and how many bytes they
    /// have.
    fn blocks(&self, at: u64) -> io::Result<(Vec<Block>, usize)> {
        let mut blocks = Vec::new();
        BlockMut::append_run(&mut blocks, PIECE / BLOCK_SIZE);
        let have = self.fill(at, pieces_mut(&mut blocks))?;
        blocks.truncate(have.div_ceil(BLOCK_SIZE));
        Ok((blocks.into_iter().map(BlockMut::freeze).collect(), have))
    }
}

fn aligned(at: u64) -> u64 {
    at - at % ALIGNMENT as u64
}

impl DumpBytes for Source {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let (mut piece, mut done) = (Buffer::new(), 0);
        while done < buffer.len() {
            let at = offset + done as u64;
            let skip = (at - aligned(at)) as usize;
            let have = self.0.fill(aligned(at), std::iter::once(&mut piece[..]))?;
            let found = piece.get(skip..have).unwrap_or_default();
            let count = found.len().min(buffer.len() - done);
            buffer[done..done + count].copy_from_slice(&found[..count]);
            done += count;
            if have < PIECE {
                break;
            }
        }
        Ok(done)
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.0.file.metadata()?.len())
    }

    fn in_order(&self, offset: u64) -> Option<Box<dyn InBlocks>> {
        Some(Box::new(Ahead::start(self, aligned(offset)).ok()?))
    }
}

/// A piece that was read, and how many bytes it has.
type FoundBlocks = io::Result<(Vec<Block>, usize)>;

/// Reads a file in order.
struct Ahead {
    /// The pieces of each thread, in the order of their turns.
    found: VecDeque<Receiver<FoundBlocks>>,
    threads: Vec<JoinHandle<()>>,
    ended: bool,
}

impl Ahead {
    /// From `at` on, which is aligned.
    fn start(source: &Source, at: u64) -> io::Result<Self> {
        let mut ahead = Self { found: VecDeque::new(), threads: Vec::new(), ended: false };
        for number in 0..READERS {
            let (give, pieces) = sync_channel(WAITING);
            let (inner, from) = (source.0.clone(), at + (number * PIECE) as u64);
            let read = move || read_pieces(&inner, from, &give);
            ahead.threads.push(std::thread::Builder::new().name("dump-reader".to_owned()).spawn(read)?);
            ahead.found.push_back(pieces);
        }
        Ok(ahead)
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        // A thread without a receiver stops.
        self.found.clear();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl InBlocks for Ahead {
    fn next(&mut self, into: &mut VecDeque<Block>) -> io::Result<usize> {
        let Some(pieces) = self.found.front().filter(|_| !self.ended) else { return Ok(0) };
        let (blocks, have) =
            pieces.recv().map_err(|_| io::Error::other("a thread that reads a file has ended"))??;
        self.found.rotate_left(1);
        self.ended = have < PIECE;
        into.extend(blocks);
        Ok(have)
    }
}

/// Reads every [`READERS`]th piece from `at` on, until the file ends, a read fails or the receiver
/// is gone.
fn read_pieces(source: &Inner, mut at: u64, give: &SyncSender<FoundBlocks>) {
    loop {
        let read = source.blocks(at);
        let goes_on = matches!(read, Ok((_, PIECE)));
        if give.send(read).is_err() || !goes_on {
            return;
        }
        at += (READERS * PIECE) as u64;
    }
}
