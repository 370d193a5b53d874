//! Reading: a file in order, so many pieces ahead of who reads it; and anywhere, piece by piece.

use std::fs::File;
use std::io::{self, IoSliceMut, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use cairn_stream::DumpBytes;
use rustix::io::{ReadWriteFlags, preadv2};

use super::{ALIGNMENT, Buffer, Direct, PIECE};
use crate::token::random_bytes;

/// Threads that read a file in turn, so pieces on their way at a time.
const READERS: usize = 2;
/// Pieces of each that wait to be taken.
const WAITING: usize = 1;
/// Places of a file, at random, where it is looked whether the page cache has it.
const LOOKS: u64 = 16;

/// A file of which each byte is read once, or seldom.
#[derive(Clone)]
pub(crate) struct Source(Arc<Inner>);

struct Inner {
    file: File,
    direct: Direct,
}

impl Source {
    /// Takes a regular file. One that the page cache has is read from there, which is faster.
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
    // The kernel brings what it does not have meanwhile, and so little of it that the next one who looks finds other places.
    let has = |at: &u64| {
        let mut byte = [0];
        preadv2(file, &mut [IoSliceMut::new(&mut byte)], *at, ReadWriteFlags::NOWAIT).is_ok()
    };
    looks.filter(has).count() as u64 > LOOKS * 3 / 4
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The client may have the same open file still, and somebody else read it behind this.
        let _ = self.direct.leave(&self.file);
    }
}

impl Inner {
    /// Reads what there is at `at`, which is aligned; how many bytes: fewer than a piece only at the end.
    fn piece(&self, at: u64, buffer: &mut Buffer) -> io::Result<usize> {
        let mut filled = 0;
        while filled < PIECE {
            let rest = &mut buffer[filled..];
            let mut request = || FileExt::read_at(&self.file, rest, at + filled as u64);
            let read = self.direct.request(&self.file, &mut request)?;
            filled += read;
            // A file ends anywhere, and what ends before that does so where a request may go on.
            if read == 0 || !filled.is_multiple_of(ALIGNMENT) {
                break;
            }
        }
        Ok(filled)
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
            let have = self.0.piece(aligned(at), &mut piece)?;
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

    fn in_order(&self, at: u64) -> Option<Box<dyn Read + Send>> {
        Some(Box::new(Ahead::start(self, at).ok()?))
    }
}

/// A piece that was read, and how many bytes it has.
type Found = io::Result<(Buffer, usize)>;

/// Reads a file in order.
struct Ahead {
    /// Of each thread, in whose turn the pieces are.
    found: Vec<(Receiver<Found>, Sender<Buffer>)>,
    threads: Vec<JoinHandle<()>>,
    turn: usize,
    piece: Option<(Buffer, usize)>,
    /// Bytes of the piece that were taken.
    taken: usize,
    ended: bool,
}

impl Ahead {
    fn start(source: &Source, at: u64) -> io::Result<Self> {
        let taken = (at - aligned(at)) as usize;
        let (found, threads) = (Vec::new(), Vec::new());
        let mut ahead = Self { found, threads, turn: 0, piece: None, taken, ended: false };
        for number in 0..READERS {
            let (give, pieces) = sync_channel(WAITING);
            let (give_back, spare) = channel();
            let (inner, from) = (source.0.clone(), aligned(at) + (number * PIECE) as u64);
            let read = move || read_pieces(&inner, from, &give, &spare);
            ahead.threads.push(std::thread::Builder::new().name("dump-reader".to_owned()).spawn(read)?);
            ahead.found.push((pieces, give_back));
        }
        Ok(ahead)
    }

    /// The next piece, in place of the one before; false at the end.
    fn next(&mut self) -> io::Result<bool> {
        let (pieces, give_back) = &self.found[self.turn];
        let (buffer, have) =
            pieces.recv().map_err(|_| io::Error::other("a thread that reads a file has ended"))??;
        if let Some((before, _)) = self.piece.replace((buffer, have)) {
            // To the next thread that reads: as good as any.
            let _ = give_back.send(before);
            self.taken = 0;
        }
        self.turn = (self.turn + 1) % READERS;
        Ok(have > 0)
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        // Who finds nobody to give to ends.
        self.found.clear();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Read for Ahead {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some((piece, have)) = &self.piece
                && let Some(left) = piece.get(self.taken..*have).filter(|left| !left.is_empty())
            {
                let count = left.len().min(buffer.len());
                buffer[..count].copy_from_slice(&left[..count]);
                self.taken += count;
                return Ok(count);
            }
            self.ended |= self.piece.as_ref().is_some_and(|(_, have)| *have < PIECE);
            if self.ended || !self.next()? {
                self.ended = true;
                return Ok(0);
            }
        }
    }
}

/// Reads every [`READERS`]th piece from `at` on, until the file ends, a read fails or nobody takes them.
fn read_pieces(source: &Inner, mut at: u64, give: &SyncSender<Found>, spare: &Receiver<Buffer>) {
    loop {
        let mut buffer = spare.try_recv().unwrap_or_else(|_| Buffer::new());
        let read = source.piece(at, &mut buffer);
        let goes_on = matches!(read, Ok(have) if have == PIECE);
        if give.send(read.map(|have| (buffer, have))).is_err() || !goes_on {
            return;
        }
        at += (READERS * PIECE) as u64;
    }
}
