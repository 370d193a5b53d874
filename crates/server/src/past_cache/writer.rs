//! Writing: a file grows by pieces, and how far is known at any time.
//!
//! A piece is a record of a stream, from where it was made, or a buffer into which smaller things were copied. Pieces are written in whole blocks: what is left at the end of one, less than a block, goes
//! in front of the next.
//!
//! One thread writes them, one after the other, while the next ones are filled: a file system that makes a file longer does that for one request at a time (ext4: by itself, with nobody else at the file). With two and four threads
//! ext4 wrote less, down to half of it, at up to ten times the processor, and room that was taken ahead of the writes (`fallocate`) changed nothing. So a file has no holes, and is as long as what is written of it.

use std::fs::File;
use std::io::{self, ErrorKind, IoSlice, Write};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

use cairn_stream::{Out, Outgoing};
use parking_lot::Mutex;
use rustix::io::pwritev;

use super::{ALIGNMENT, Buffer, Direct, PIECE};

/// Buffers that smaller things are copied into: one on its way, one that waits, and one that is filled.
const BUFFERS: usize = 3;
/// Pieces that wait to be written, at most. As much is lost with the process.
const WAITING: usize = 2;
/// Pieces of one request, at most: records are half as long as [`PIECE`].
const AT_ONCE: usize = 2;
/// What is shorter is copied.
const RECORD_MIN: usize = 16 * ALIGNMENT;

/// A file that is being written.
pub(crate) struct Line<'a> {
    file: &'a File,
    direct: Direct,
    /// All of the file before this is written.
    upto: AtomicU64,
    failed: AtomicBool,
    /// Why, until somebody is told.
    failure: Mutex<Option<io::Error>>,
}

/// Bytes of a file that are being gathered: `filled` of them, from `start` on, and room for `room`.
struct Gathered {
    start: u64,
    buffer: Buffer,
    filled: usize,
    room: usize,
}

/// Bytes of a file that are on their way: `length` of them, from `start` on.
struct Piece {
    start: u64,
    content: Content,
    length: usize,
}

enum Content {
    Copied(Buffer),
    /// With the rest of its first block in front.
    Record(Outgoing),
}

impl Piece {
    fn bytes(&self) -> &[u8] {
        let bytes = match &self.content {
            Content::Copied(buffer) => buffer,
            Content::Record(record) => record.from_alignment(),
        };
        &bytes[..self.length]
    }
}

/// Has `work` write `file` from `at` on. When this returns all that it has written is in the file, unless that failed; a sync makes it durable.
///
/// # Errors
/// Beside what became of `work` what failed that its writer did not tell it.
pub(crate) fn write<T>(
    file: &File,
    at: u64,
    work: impl FnOnce(&mut Writer<'_>, &Line<'_>) -> T,
) -> (T, io::Result<()>) {
    let line = Line::new(file, at);
    let (give, full) = sync_channel(WAITING);
    let (give_back, spare) = channel();
    let (outcome, last) = std::thread::scope(|scope| {
        let own = &line;
        scope.spawn(move || own.write_pieces(&full, &give_back));
        let mut writer =
            Writer { line: &line, full: give, spare, buffers: 0, gathered: None, at, entered: false };
        let outcome = work(&mut writer, &line);
        (outcome, writer.gathered)
    });
    (outcome, line.end(last))
}

impl<'a> Line<'a> {
    fn new(file: &'a File, at: u64) -> Self {
        Self {
            file,
            direct: Direct::new(),
            upto: AtomicU64::new(at),
            failed: AtomicBool::new(false),
            failure: Mutex::new(None),
        }
    }

    /// All of the file before this is written; not more durable than any write.
    pub(crate) fn upto(&self) -> u64 {
        self.upto.load(Ordering::Acquire)
    }

    /// Writes pieces until no more come, those that wait at once.
    fn write_pieces(&self, full: &Receiver<Piece>, give_back: &Sender<Buffer>) {
        while let Ok(first) = full.recv() {
            let pieces: Vec<Piece> =
                std::iter::once(first).chain(full.try_iter().take(AT_ONCE - 1)).collect();
            // Nothing behind a piece that is missing is of use.
            if !self.failed.load(Ordering::Acquire)
                && let Err(error) = self.put_all(&pieces)
            {
                self.fail(error);
            }
            for piece in pieces {
                if let Content::Copied(buffer) = piece.content {
                    // Nobody fills it any more at the end.
                    let _ = give_back.send(buffer);
                }
            }
        }
    }

    /// Writes pieces, each behind the one before it.
    fn put_all(&self, pieces: &[Piece]) -> io::Result<()> {
        let Some(first) = pieces.first() else { return Ok(()) };
        let slices: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece.bytes())).collect();
        let request = &mut || Ok(pwritev(self.file, &slices, first.start)?);
        let upto = first.start + self.direct.request(self.file, request)? as u64;
        self.upto.store(upto, Ordering::Release);
        // What a request leaves is written piece by piece.
        pieces.iter().try_for_each(|piece| {
            let there = (upto.saturating_sub(piece.start) as usize).min(piece.length);
            self.put(piece.start + there as u64, &piece.bytes()[there..])
        })
    }

    /// Writes behind what is written.
    fn put(&self, mut at: u64, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            if !at.is_multiple_of(ALIGNMENT as u64) {
                self.direct.leave(self.file)?;
            }
            let written = self.direct.request(self.file, &mut || self.file.write_at(bytes, at))?;
            if written == 0 {
                return Err(ErrorKind::WriteZero.into());
            }
            (at, bytes) = (at + written as u64, &bytes[written..]);
            self.upto.store(at, Ordering::Release);
        }
        Ok(())
    }

    fn fail(&self, error: io::Error) {
        self.failure.lock().get_or_insert(error);
        self.failed.store(true, Ordering::Release);
    }

    /// Why nothing more is written; the first who asks is told.
    fn told(&self) -> io::Result<()> {
        if !self.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        let error = self.failure.lock().take();
        Err(error.unwrap_or_else(|| io::Error::other("a file could not be written")))
    }

    /// No piece is on its way any more: writes what is left, which need not be aligned.
    fn end(&self, last: Option<Gathered>) -> io::Result<()> {
        let left = self.direct.leave(self.file);
        self.told()?;
        left?;
        let Some(last) = last else { return Ok(()) };
        self.put(last.start, &last.buffer[..last.filled])
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        // Where the work has panicked.
        let _ = self.direct.leave(self.file);
    }
}

/// What is written to a file in order. Bytes are in the file once [`Line::upto`] says so, or when [`write`] is over.
pub(crate) struct Writer<'a> {
    line: &'a Line<'a>,
    full: SyncSender<Piece>,
    spare: Receiver<Buffer>,
    /// Buffers that were made.
    buffers: usize,
    /// What is not on its way yet, up to `at`: less than a block behind a record.
    gathered: Option<Gathered>,
    at: u64,
    /// It was tried to go past the page cache.
    entered: bool,
}

impl Writer<'_> {
    /// What the next byte is gathered in, with room for it.
    fn gathered(&mut self) -> io::Result<&mut Gathered> {
        let gathered = match self.gathered.take() {
            Some(gathered) => gathered,
            None => {
                let room = PIECE - (self.at % PIECE as u64) as usize;
                Gathered { start: self.at, buffer: self.buffer()?, filled: 0, room }
            }
        };
        Ok(self.gathered.insert(gathered))
    }

    fn buffer(&mut self) -> io::Result<Buffer> {
        if let Ok(buffer) = self.spare.try_recv() {
            return Ok(buffer);
        }
        if self.buffers < BUFFERS {
            self.buffers += 1;
            return Ok(Buffer::new());
        }
        self.spare.recv().map_err(|_| ended())
    }

    fn hand_over(&mut self, piece: Piece) -> io::Result<()> {
        if !std::mem::replace(&mut self.entered, true) {
            self.line.direct.enter(self.line.file);
        }
        self.full.send(piece).map_err(|_| ended())
    }

    /// Hands over what is gathered, but for its last `left` bytes, which are less than a block and come first in the buffer that this returns.
    fn hand_over_gathered(&mut self, left: usize) -> io::Result<Option<Buffer>> {
        let Some(Gathered { start, buffer, filled, .. }) = self.gathered.take() else { return Ok(None) };
        let length = filled - left;
        if length == 0 {
            return Ok(Some(buffer));
        }
        let mut next = if left == 0 { None } else { Some(self.buffer()?) };
        if let Some(next) = &mut next {
            next[..left].copy_from_slice(&buffer[length..filled]);
        }
        self.hand_over(Piece { start, content: Content::Copied(buffer), length })?;
        Ok(next)
    }
}

impl Out for Writer<'_> {
    fn record(&mut self, mut record: Outgoing) -> io::Result<()> {
        self.line.told()?;
        let (place, length) = ((self.at % ALIGNMENT as u64) as usize, record.bytes().len());
        // Where the file begins within a block, what is before that is not gathered.
        let is_apart = place > 0 && self.gathered.is_none();
        if record.place() != place || is_apart || length < RECORD_MIN {
            return self.write_all(record.bytes());
        }
        let start = self.at - place as u64;
        let mut rest = self.hand_over_gathered(place)?;
        if let Some(rest) = &rest {
            record.before().copy_from_slice(&rest[..place]);
        }
        self.at += length as u64;
        let all = record.from_alignment();
        let left = all.len() % ALIGNMENT;
        let whole = all.len() - left;
        if rest.is_none() && left > 0 {
            rest = Some(self.buffer()?);
        }
        if let Some(mut buffer) = rest {
            buffer[..left].copy_from_slice(&all[whole..]);
            self.gathered = Some(Gathered { start: start + whole as u64, buffer, filled: left, room: PIECE });
        }
        self.hand_over(Piece { start, content: Content::Record(record), length: whole })
    }
}

impl Write for Writer<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.line.told()?;
        let misplaced = (self.at % ALIGNMENT as u64) as usize;
        if self.gathered.is_none() && misplaced > 0 {
            // No piece is on its way yet: later ones begin where one before them ends.
            let count = bytes.len().min(ALIGNMENT - misplaced);
            self.line.put(self.at, &bytes[..count])?;
            self.at += count as u64;
            return Ok(count);
        }
        let gathered = self.gathered()?;
        let count = bytes.len().min(gathered.room - gathered.filled);
        gathered.buffer[gathered.filled..gathered.filled + count].copy_from_slice(&bytes[..count]);
        gathered.filled += count;
        let is_full = gathered.filled == gathered.room;
        self.at += count as u64;
        if is_full {
            self.hand_over_gathered(0)?;
        }
        Ok(count)
    }

    /// Does nothing: what is not a whole piece yet is written at the end.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn ended() -> io::Error {
    io::Error::other("a thread that writes a file has panicked")
}
