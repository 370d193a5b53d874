//! Writing: a file grows by pieces, and how far is known at any time.
//!
//! One thread writes them, one after the other, while the next ones are filled: a file system that makes a file longer does that for one request at a time (ext4: by itself, with nobody else at the file). With two and four threads
//! ext4 wrote less, down to half of it, at up to ten times the processor, and room that was taken ahead of the writes (`fallocate`) changed nothing. So a file has no holes, and is as long as what is written of it.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

use parking_lot::Mutex;

use super::{ALIGNMENT, Buffer, Direct, PIECE};

/// Pieces in memory: one on its way, one that waits, and one that is filled. As much is lost with the process.
const PIECES: usize = 3;

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

/// Bytes of a file: `filled` of them, from `start` on, and room for `room`.
struct Piece {
    start: u64,
    buffer: Buffer,
    filled: usize,
    room: usize,
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
    let (give, full) = sync_channel(PIECES - 2);
    let (give_back, spare) = channel();
    let (outcome, last) = std::thread::scope(|scope| {
        let own = &line;
        scope.spawn(move || own.write_pieces(&full, &give_back));
        let mut writer =
            Writer { line: &line, full: give, spare, pieces: 0, piece: None, at, entered: false };
        let outcome = work(&mut writer, &line);
        (outcome, writer.piece)
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

    /// Writes pieces until no more come.
    fn write_pieces(&self, full: &Receiver<Piece>, give_back: &Sender<Buffer>) {
        for piece in full {
            // Nothing behind a piece that is missing is of use.
            if !self.failed.load(Ordering::Acquire)
                && let Err(error) = self.put(piece.start, &piece.buffer[..piece.filled])
            {
                self.fail(error);
            }
            // Nobody fills it any more at the end.
            let _ = give_back.send(piece.buffer);
        }
    }

    /// Writes behind what is written.
    fn put(&self, mut at: u64, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let written = self.direct.request(self.file, &mut || self.file.write_at(bytes, at))?;
            if written == 0 {
                return Err(ErrorKind::WriteZero.into());
            }
            (at, bytes) = (at + written as u64, &bytes[written..]);
            self.upto.store(at, Ordering::Release);
            if !at.is_multiple_of(ALIGNMENT as u64) && !bytes.is_empty() {
                self.direct.leave(self.file)?;
            }
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
    fn end(&self, last: Option<Piece>) -> io::Result<()> {
        let left = self.direct.leave(self.file);
        self.told()?;
        left?;
        let Some(piece) = last else { return Ok(()) };
        self.put(piece.start, &piece.buffer[..piece.filled])
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
    pieces: usize,
    /// The one that is filled.
    piece: Option<Piece>,
    at: u64,
    /// It was tried to go past the page cache.
    entered: bool,
}

impl Writer<'_> {
    /// The piece that the next byte belongs to, with room for it.
    fn piece(&mut self) -> io::Result<&mut Piece> {
        let piece = match self.piece.take() {
            Some(piece) => piece,
            None => {
                let room = PIECE - (self.at % PIECE as u64) as usize;
                Piece { start: self.at, buffer: self.buffer()?, filled: 0, room }
            }
        };
        Ok(self.piece.insert(piece))
    }

    fn buffer(&mut self) -> io::Result<Buffer> {
        if let Ok(buffer) = self.spare.try_recv() {
            return Ok(buffer);
        }
        if self.pieces < PIECES {
            self.pieces += 1;
            return Ok(Buffer::new());
        }
        self.spare.recv().map_err(|_| ended())
    }

    fn hand_over(&mut self) -> io::Result<()> {
        let Some(piece) = self.piece.take() else { return Ok(()) };
        if !std::mem::replace(&mut self.entered, true) {
            self.line.direct.enter(self.line.file);
        }
        self.full.send(piece).map_err(|_| ended())
    }
}

impl Write for Writer<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.line.told()?;
        let misplaced = (self.at % ALIGNMENT as u64) as usize;
        if self.piece.is_none() && misplaced > 0 {
            // No piece is on its way yet: later ones begin where one before them ends.
            let count = bytes.len().min(ALIGNMENT - misplaced);
            self.line.put(self.at, &bytes[..count])?;
            self.at += count as u64;
            return Ok(count);
        }
        let piece = self.piece()?;
        let count = bytes.len().min(piece.room - piece.filled);
        piece.buffer[piece.filled..piece.filled + count].copy_from_slice(&bytes[..count]);
        piece.filled += count;
        let is_full = piece.filled == piece.room;
        self.at += count as u64;
        if is_full {
            self.hand_over()?;
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
