//! Writing: a file grows by pieces, and how far is known at any time.
//!
//! A piece is a record of a stream, used in place, or a buffer into which smaller data was copied.
//! Pieces are written in whole blocks: the rest at the end of one, less than a block, goes to the
//! front of the next.
//!
//! A file system extends a file for one request at a time (ext4: under an exclusive lock of the
//! file, so more threads only cost more). So the file is extended ahead of the writes, without
//! content (`fallocate`), to at most twice its length, and threads ([`lanes`]) write into that
//! room. During writing a file is longer than its content: bytes after [`Line::upto`] may be
//! written or zeroes, and the end truncates them. Without such room (no support by the file system,
//! a full one, an append-only file) requests are written one after the other.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::io::{ErrorKind, IoSlice, Write};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::Builder;

use cairn_stream::{Out, Outgoing};
use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, OFlags, fallocate, fcntl_getfl, fstatvfs};
use rustix::io::pwritev;

use super::{ALIGNMENT, Buffer, Direct, PIECE};

/// Buffers for copies of smaller data, in addition to those in flight: one that waits, and one that
/// is being filled.
const BUFFERS_AHEAD: usize = 2;
/// Requests that wait, at most. As much is lost with the process.
const WAITING: usize = 1;
/// Pieces in one request, as long as all but the last are less than [`PIECE`]: each request has a
/// fixed cost, and wakes two threads. More pieces may have more slices than a request accepts.
const TOGETHER: usize = 2;
/// Requests that are on their way at a time, in all files that are written side by side.
const LANES: usize = 4;
/// The same in each, at least.
const LANES_MIN: usize = 2;
/// Bytes by which a file is extended at a time: each extension waits for requests in flight.
const ROOM_MIN: u64 = 8 << 20;
const ROOM_MAX: u64 = 256 << 20;
/// At most one part in this many of the file system's free space is allocated ahead: others write
/// there too, perhaps the dumped volume itself.
const ROOM_PART: u64 = 16;
/// Shorter records are copied.
const RECORD_MIN: usize = 16 * ALIGNMENT;

/// A file that is being written.
pub(crate) struct Line<'a> {
    file: &'a File,
    direct: Direct,
    /// All of the file before this is written.
    upto: AtomicU64,
    begun: Mutex<Begun>,
    /// The length to which the file was extended; none if that is not possible.
    room: Mutex<Option<u64>>,
    /// It was tried.
    lengthened: AtomicBool,
    failed: AtomicBool,
    /// The error, until it is reported.
    failure: Mutex<Option<io::Error>>,
}

/// Pieces that were begun, from the first one on that is not done.
#[derive(Default)]
pub(super) struct Begun {
    /// The number of that one.
    first: u64,
    /// Where each ends, and whether it is done.
    pieces: VecDeque<(u64, bool)>,
}

impl Begun {
    /// The number of a piece that is begun now.
    pub(super) fn begin(&mut self, end: u64) -> u64 {
        self.pieces.push_back((end, false));
        self.first + self.pieces.len() as u64 - 1
    }

    /// A piece is done: up to where all are, if that is further than before.
    pub(super) fn done(&mut self, number: u64) -> Option<u64> {
        self.pieces[(number - self.first) as usize].1 = true;
        let mut upto = None;
        while let Some((end, true)) = self.pieces.front() {
            upto = Some(*end);
            self.pieces.pop_front();
            self.first += 1;
        }
        upto
    }
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
    fn end(&self) -> u64 {
        self.start + self.length as u64
    }

    /// Adds the bytes, as they are in memory.
    fn slices<'a>(&'a self, into: &mut Vec<IoSlice<'a>>) {
        let mut left = self.length;
        let mut own = |bytes: &'_ [u8]| {
            let count = bytes.len().min(left);
            left -= count;
            count
        };
        match &self.content {
            Content::Copied(buffer) => into.push(IoSlice::new(&buffer[..self.length])),
            Content::Record(record) => into.extend(
                record
                    .pieces_from_alignment()
                    .map(|piece| IoSlice::new(&piece[..own(piece)]))
                    .filter(|slice| !slice.is_empty()),
            ),
        }
    }
}

/// Requests of a file in flight at a time if `files` are written in parallel: requests in flight
/// take memory, and a disk is busy with this many in total.
pub(crate) fn lanes(files: u32) -> usize {
    (LANES / (files.max(1) as usize)).max(LANES_MIN)
}

/// Lets `work` write `file` from `at` on, with up to `lanes` requests at a time ([`lanes`]). When
/// this returns all its bytes are in the file, unless a write failed; a sync makes them durable.
/// Returns the outcome of `work`, and any failure that the writer has not reported to it.
///
/// # Errors
/// The threads cannot be started. Nothing was written then.
pub(crate) fn write<T>(
    (file, at): (&File, u64),
    lanes: usize,
    work: impl FnOnce(&mut Writer<'_>, &Line<'_>) -> T,
) -> io::Result<(T, io::Result<()>)> {
    let line = Line::new(file, at);
    let line = &line;
    let (give, full) = sync_channel(WAITING);
    let (give_back, spare) = channel();
    let full = Arc::new(Mutex::new(full));
    // The queues of the threads are dropped in the scope, however it ends.
    let (outcome, last) = std::thread::scope(move |scope| {
        // The queue closes with the last of its threads, so that no sender waits without a
        // receiver.
        let own: Vec<_> = (0..lanes).map(|_| (full.clone(), give_back.clone())).collect();
        drop((full, give_back));
        for (full, give_back) in own {
            let builder = Builder::new().name("dump-writer".to_owned());
            builder.spawn_scoped(scope, move || line.write_pieces(&full, &give_back))?;
        }
        let buffers = lanes * TOGETHER + BUFFERS_AHEAD;
        let mut writer =
            Writer { line, full: give, held: Vec::new(), spare, buffers, gathered: None, at, entered: false };
        let outcome = work(&mut writer, line);
        // It fails where a thread has panicked, as the scope does then.
        let _ = writer.let_go();
        Ok::<_, io::Error>((outcome, writer.gathered))
    })?;
    Ok((outcome, line.end(last)))
}

impl<'a> Line<'a> {
    fn new(file: &'a File, at: u64) -> Self {
        Self {
            file,
            direct: Direct::new(),
            upto: AtomicU64::new(at),
            begun: Mutex::default(),
            room: Mutex::new(room_begins(file, at)),
            lengthened: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            failure: Mutex::new(None),
        }
    }

    /// All of the file before this is written; not more durable than any write.
    pub(crate) fn upto(&self) -> u64 {
        self.upto.load(Ordering::Acquire)
    }

    /// Writes pieces until the queue closes.
    fn write_pieces(&self, full: &Mutex<Receiver<Vec<Piece>>>, give_back: &Sender<Buffer>) {
        loop {
            let turn = full.lock();
            let Ok(pieces) = turn.recv() else { return };
            let end = pieces.last().map_or(0, Piece::end);
            let number = self.begun.lock().begin(end);
            // Without room for it no other thread has a turn before it is written.
            let alone = (!self.has_room(end)).then_some(turn);
            // Bytes after a missing piece are useless.
            if !self.failed.load(Ordering::Acquire) {
                match self.put_pieces(&pieces) {
                    Ok(()) => self.done(number),
                    Err(error) => self.fail(error),
                }
            }
            drop(alone);
            for piece in pieces {
                if let Content::Copied(buffer) = piece.content {
                    // At the end no writer fills it any more.
                    let _ = give_back.send(buffer);
                }
            }
        }
    }

    fn done(&self, number: u64) {
        let mut begun = self.begun.lock();
        if let Some(upto) = begun.done(number) {
            self.upto.store(upto, Ordering::Release);
        }
    }

    /// Whether the file is made longer up to `end`.
    fn has_room(&self, end: u64) -> bool {
        let mut room = self.room.lock();
        let Some(from) = *room else { return false };
        if end <= from {
            return true;
        }
        // Requests that go through the page cache wait for nothing.
        if !self.direct.0.load(Ordering::Acquire) {
            return false;
        }
        let left = fstatvfs(self.file).map_or(0, |system| system.f_bavail.saturating_mul(system.f_frsize));
        *room = room_behind(from, end, left).filter(|to| {
            self.lengthened.store(true, Ordering::Release);
            fallocate(self.file, FallocateFlags::empty(), from, to - from).is_ok()
        });
        room.is_some()
    }

    /// Writes pieces that follow each other.
    fn put_pieces(&self, pieces: &[Piece]) -> io::Result<()> {
        let [first, ..] = pieces else { return Ok(()) };
        let mut slices = Vec::new();
        pieces.iter().for_each(|piece| piece.slices(&mut slices));
        let request = &mut || Ok(pwritev(self.file, &slices, first.start)?);
        let written = self.direct.request(self.file, request)?;
        let mut upto = first.start + written as u64;
        // The remainder of a request is written slice by slice.
        let mut left = &mut slices[..];
        IoSlice::advance_slices(&mut left, written);
        for slice in left {
            self.put(upto, slice)?;
            upto += slice.len() as u64;
        }
        Ok(())
    }

    /// Writes at the end, with no other request in flight.
    fn put_last(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.put(at, bytes)?;
        self.upto.store(at + bytes.len() as u64, Ordering::Release);
        Ok(())
    }

    /// Writes all of it at its place.
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
        }
        Ok(())
    }

    fn fail(&self, error: io::Error) {
        self.failure.lock().get_or_insert(error);
        self.failed.store(true, Ordering::Release);
    }

    /// The reason why writing has stopped; the first caller gets it.
    fn told(&self) -> io::Result<()> {
        if !self.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        let error = self.failure.lock().take();
        Err(error.unwrap_or_else(|| io::Error::other("a file could not be written")))
    }

    /// No piece is in flight any more: writes the rest, which need not be aligned, and truncates
    /// the file after it.
    fn end(&self, last: Option<Gathered>) -> io::Result<()> {
        let left = self.direct.leave(self.file);
        let put = self.told().and(left).and_then(|()| match last {
            Some(last) => self.put_last(last.start, &last.buffer[..last.filled]),
            None => Ok(()),
        });
        put.and(self.cut())
    }

    /// Takes back the room that was not used.
    fn cut(&self) -> io::Result<()> {
        match self.lengthened.swap(false, Ordering::AcqRel) {
            true => self.file.set_len(self.upto()),
            false => Ok(()),
        }
    }
}

/// The offset from which the file can be extended: its end, if the writes begin there.
fn room_begins(file: &File, at: u64) -> Option<u64> {
    let in_place = fcntl_getfl(file).is_ok_and(|flags| !flags.contains(OFlags::APPEND));
    let ends = file.metadata().is_ok_and(|found| found.is_file() && found.len() <= at);
    (in_place && ends).then_some(at)
}

/// The new length of a file that has room up to `from` and needs it up to `end`, if `left` bytes
/// are free; none if that is too much.
pub(super) fn room_behind(from: u64, end: u64, left: u64) -> Option<u64> {
    let most = left / ROOM_PART;
    let to = from + from.clamp(ROOM_MIN, ROOM_MAX).min(most);
    (to >= end).then_some(to)
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        // Needed if the work has panicked.
        let _ = self.direct.leave(self.file);
        let _ = self.cut();
    }
}

/// Writes to a file in order. Bytes are in the file once [`Line::upto`] has passed them, or when
/// [`write`] returns.
pub(crate) struct Writer<'a> {
    line: &'a Line<'a>,
    full: SyncSender<Vec<Piece>>,
    /// Pieces that wait for the next one to go with them.
    held: Vec<Piece>,
    spare: Receiver<Buffer>,
    /// Buffers that may still be made.
    buffers: usize,
    /// The bytes not yet queued, up to `at`: less than a block after a record.
    gathered: Option<Gathered>,
    at: u64,
    /// It was tried to go past the page cache.
    entered: bool,
}

impl Writer<'_> {
    /// The buffer for the next byte, with room for it.
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
        if self.buffers > 0 {
            self.buffers -= 1;
            return Ok(Buffer::new());
        }
        self.spare.recv().map_err(|_| ended())
    }

    fn hand_over(&mut self, piece: Piece) -> io::Result<()> {
        if !std::mem::replace(&mut self.entered, true) {
            self.line.direct.enter(self.line.file);
        }
        self.held.push(piece);
        let bytes: usize = self.held.iter().map(|piece| piece.length).sum();
        if self.held.len() < TOGETHER && bytes < PIECE { Ok(()) } else { self.let_go() }
    }

    /// Queues the held pieces.
    fn let_go(&mut self) -> io::Result<()> {
        match std::mem::take(&mut self.held) {
            held if held.is_empty() => Ok(()),
            held => self.full.send(held).map_err(|_| ended()),
        }
    }

    /// Queues the gathered bytes, except the last `left`, which are less than a block and become
    /// the first bytes of the returned buffer.
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
        let (place, length) = ((self.at % ALIGNMENT as u64) as usize, record.length());
        // If the file begins within a block, the bytes before that are not gathered.
        let is_apart = place > 0 && self.gathered.is_none();
        if record.place() != place || is_apart || length < RECORD_MIN {
            return record.pieces().try_for_each(|piece| self.write_all(piece));
        }
        let start = self.at - place as u64;
        let mut rest = self.hand_over_gathered(place)?;
        if let Some(rest) = &rest {
            record.before().copy_from_slice(&rest[..place]);
        }
        self.at += length as u64;
        // Only the last piece may end within a block.
        let last = record.pieces_from_alignment().last().unwrap_or_default();
        let (left, whole) = (last.len() % ALIGNMENT, (place + length) / ALIGNMENT * ALIGNMENT);
        if rest.is_none() && left > 0 {
            rest = Some(self.buffer()?);
        }
        if let Some(mut buffer) = rest {
            buffer[..left].copy_from_slice(&last[last.len() - left..]);
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
            // No piece is in flight yet: each later one begins at the end of the previous one.
            let count = bytes.len().min(ALIGNMENT - misplaced);
            self.line.put_last(self.at, &bytes[..count])?;
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

    /// Does nothing: an incomplete piece is written at the end.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn ended() -> io::Error {
    io::Error::other("a thread that writes a file has panicked")
}
