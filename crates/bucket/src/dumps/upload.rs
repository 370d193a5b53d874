//! A part in transfer to a bucket: a writer that sends its bytes in pieces, several at a time.
//!
//! Memory is bounded: one piece is filled, and the number of pieces in flight is limited. A writer
//! that is ahead waits. Pieces end where records end, so that an interrupted writer resumes at a
//! piece: the stored bytes of an upload can be counted but not read. A store must have the ability
//! to take pieces of different lengths, which is probed.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use cairn_base::{Checksum, Condvar, Mutex};
use cairn_format::dump::DumpId;
use cairn_format::stream::{RecordHeader, RecordKind, StreamRun};
use cairn_stream::{Out, Outgoing, Reached};
use serde::{Deserialize, Serialize};

use super::skeleton::Builder;
use crate::error::{StoreError, Trouble, Verb};
use crate::limits::{PIECE_BYTES_MAX as STORE_PIECE_BYTES_MAX, PIECES_MAX};
use crate::name::Name;
use crate::seal::MORE_BYTES_MAX;
use crate::store::{Nonce, Piece, Put, Store, Upload};
use crate::workers::Workers;

/// Pieces that are under way at a time.
pub const PIECES_IN_FLIGHT: usize = 4;
/// Bytes after which a piece ends with its record.
pub const PIECE_BYTES: usize = 8 << 20;
/// Bytes of the longest piece, also in an encrypted bucket.
const PIECE_BYTES_MAX: usize = STORE_PIECE_BYTES_MAX - MORE_BYTES_MAX;
/// Bytes that a record adds to a piece at most.
const RECORD_BYTES_MAX: usize = 2 << 20;
/// Bytes that the longest piece has before its last record.
const PIECE_BYTES_LONGEST: usize = PIECE_BYTES_MAX - RECORD_BYTES_MAX;
/// Bytes of a skeleton. A part whose skeleton would be longer has none.
const SKELETON_BYTES_MAX: usize = 256 << 20;

const _: () = assert!(PIECE_BYTES <= PIECE_BYTES_LONGEST);

/// The durable length of a part, and the state from which the writer resumes there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartStanding {
    /// The upload.
    pub upload: Upload,
    /// Of its creator.
    pub nonce: Nonce,
    /// The pieces, from the first one on.
    pub pieces: Vec<Piece>,
    /// Bytes of the stream in them.
    pub bytes: u64,
    /// Records in them.
    pub records: u64,
    /// Blocks in those.
    pub blocks: u64,
    /// The digest of the stream so far.
    pub digest: [u8; 16],
}

impl PartStanding {
    /// The same as the writer of the stream has it.
    pub fn reached(&self) -> Reached {
        Reached {
            bytes: self.bytes,
            records: self.records,
            blocks: self.blocks,
            digest: Checksum(self.digest),
        }
    }
}

/// The pieces sent so far.
#[derive(Default)]
struct Sent {
    under_way: usize,
    done: Vec<Piece>,
    failed: Option<StoreError>,
}

struct Shared {
    store: Arc<dyn Store>,
    upload: Upload,
    sent: Mutex<Sent>,
    changed: Condvar,
    /// Set by the owner of the whole, and by the first failure.
    cancel: Arc<AtomicBool>,
}

impl Shared {
    fn put(&self, number: u32, bytes: Bytes) {
        let outcome = self.store.put_piece(&self.upload, number, bytes, &self.cancel);
        let mut sent = self.sent.lock();
        sent.under_way -= 1;
        match outcome {
            Ok(piece) => sent.done.push(piece),
            Err(error) => {
                sent.failed.get_or_insert(error);
            }
        }
        self.changed.notify_all();
    }

    fn check(sent: &Sent) -> io::Result<()> {
        sent.failed.as_ref().map_or(Ok(()), |error| Err(error_of(error.clone())))
    }
}

fn error_of(error: StoreError) -> io::Error {
    io::Error::other(error)
}

/// Writes a part into a bucket.
pub struct PartUpload {
    shared: Arc<Shared>,
    workers: Arc<dyn Workers>,
    nonce: Nonce,
    dump: DumpId,
    /// Bytes after which a piece ends with its record.
    piece_bytes: usize,
    filling: Vec<u8>,
    /// Where in the part that begins.
    filling_at: u64,
    number: u32,
    /// Where the stream was at the end of each piece, from the first one on; none where a piece
    /// ends elsewhere.
    marks: Vec<Option<Reached>>,
    /// Present while it is complete and short enough.
    skeleton: Option<Builder>,
}

/// A finished part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uploaded {
    /// Bytes.
    pub length: u64,
    /// The object with its skeleton, to be put beside it.
    pub skeleton: Option<Vec<u8>>,
}

impl PartUpload {
    /// Begins a part of at most `length` bytes, to which the length of its pieces is adapted.
    ///
    /// # Errors
    /// As [`Store::begin`].
    pub fn begin(
        (store, workers): (&Arc<dyn Store>, &Arc<dyn Workers>),
        (name, dump): (&Name, DumpId),
        length: u64,
        nonce: Nonce,
        cancel: &Arc<AtomicBool>,
    ) -> Result<Self, StoreError> {
        let upload = store.begin(name, nonce, cancel)?;
        Ok(Self::of(store, workers, upload, (dump, nonce), length, cancel, Some(Builder::default())))
    }

    /// Resumes a part after its existing pieces. Its skeleton would lack them, so it has none.
    ///
    /// # Errors
    /// [`Trouble::NoUpload`] if the store no longer has the upload or lacks one of the pieces: the
    /// part begins again.
    pub fn resume(
        (store, workers): (&Arc<dyn Store>, &Arc<dyn Workers>),
        dump: DumpId,
        length: u64,
        standing: &PartStanding,
        cancel: &Arc<AtomicBool>,
    ) -> Result<Self, StoreError> {
        match store.pieces(&standing.upload, cancel) {
            Ok(there) => {
                let has = |piece: &Piece| there.iter().any(|found| piece.is(found));
                if !standing.pieces.iter().all(has) {
                    return Err(StoreError {
                        verb: Verb::PutPieces,
                        name: Some(standing.upload.name.clone()),
                        place: store.place().into(),
                        trouble: Trouble::NoUpload,
                    });
                }
            }
            // It cannot tell; finishing the upload then shows it.
            Err(StoreError { trouble: Trouble::Unsupported(_), .. }) => {}
            Err(error) => return Err(error),
        }
        let (upload, nonce) = (standing.upload.clone(), standing.nonce);
        let mut part = Self::of(store, workers, upload, (dump, nonce), length, cancel, None);
        part.filling_at = standing.bytes;
        part.number = standing.pieces.len() as u32;
        part.marks = vec![None; standing.pieces.len()];
        if let Some(last) = part.marks.last_mut() {
            *last = Some(standing.reached());
        }
        part.shared.sent.lock().done = standing.pieces.clone();
        Ok(part)
    }

    fn of(
        store: &Arc<dyn Store>,
        workers: &Arc<dyn Workers>,
        upload: Upload,
        (dump, nonce): (DumpId, Nonce),
        length: u64,
        cancel: &Arc<AtomicBool>,
        skeleton: Option<Builder>,
    ) -> Self {
        // The other half of the pieces is a reserve for compression and for resumed writing.
        let fitting = usize::try_from(length / u64::from(PIECES_MAX / 2)).unwrap_or(usize::MAX);
        let shared = Shared {
            store: store.clone(),
            upload,
            sent: Mutex::new(Sent::default()),
            changed: Condvar::new(),
            cancel: cancel.clone(),
        };
        Self {
            shared: Arc::new(shared),
            workers: workers.clone(),
            nonce,
            dump,
            piece_bytes: fitting.clamp(PIECE_BYTES, PIECE_BYTES_LONGEST),
            filling: Vec::new(),
            filling_at: 0,
            number: 0,
            marks: Vec::new(),
            skeleton,
        }
    }

    /// Reports the place in the stream, after a record. A piece that is long enough ends here.
    ///
    /// # Errors
    /// A piece failed.
    pub fn reached(&mut self, at: &Reached) -> io::Result<()> {
        if self.filling.len() >= self.piece_bytes { self.send(Some(*at)) } else { Ok(()) }
    }

    /// Pieces that were sent so far, though they may be under way.
    pub fn sent(&self) -> u32 {
        self.number
    }

    /// The longest beginning of the part that is certainly in the store; none before the first
    /// piece is.
    pub fn standing(&self) -> Option<PartStanding> {
        let mut pieces = {
            let sent = self.shared.sent.lock();
            sent.done.clone()
        };
        pieces.sort_by_key(|piece| piece.number);
        let whole =
            (1..).zip(&pieces).take_while(|(number, piece): &(u32, _)| piece.number == *number).count();
        let (count, mark) =
            (1..=whole).rev().find_map(|count| Some((count, (*self.marks.get(count - 1)?)?)))?;
        pieces.truncate(count);
        Some(PartStanding {
            upload: self.shared.upload.clone(),
            nonce: self.nonce,
            pieces,
            bytes: mark.bytes,
            records: mark.records,
            blocks: mark.blocks,
            digest: mark.digest.0,
        })
    }

    /// Sends the filled bytes as a piece; waits while too many are in flight.
    fn send(&mut self, mark: Option<Reached>) -> io::Result<()> {
        if self.filling.is_empty() {
            return Ok(());
        }
        if self.number == PIECES_MAX {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                "the part has more pieces than a store takes",
            ));
        }
        {
            let mut sent = self.shared.sent.lock();
            loop {
                Shared::check(&sent)?;
                if sent.under_way < PIECES_IN_FLIGHT {
                    break;
                }
                self.shared.changed.wait(&mut sent);
            }
            sent.under_way += 1;
        }
        self.number += 1;
        self.marks.push(mark);
        let capacity = self.filling.capacity();
        let bytes = Bytes::from(std::mem::replace(&mut self.filling, Vec::with_capacity(capacity)));
        self.filling_at += bytes.len() as u64;
        let (shared, number, own) = (self.shared.clone(), self.number, bytes.clone());
        if self.workers.start(Box::new(move || shared.put(number, bytes))).is_err() {
            // Without a thread, this thread sends it.
            self.shared.put(self.number, own);
        }
        Ok(())
    }

    /// Ends the part and makes it an object.
    ///
    /// # Errors
    /// A piece failed, or the object was not made. The upload is still there then, to be resumed or
    /// aborted.
    pub fn finish(mut self) -> io::Result<Uploaded> {
        let sent = self.send(None);
        // Nothing may be under way any more when this fails.
        let settled = self.settle();
        sent?;
        let mut pieces = settled?;
        pieces.sort_by_key(|piece| piece.number);
        let shared = &self.shared;
        if shared.cancel.load(Ordering::Relaxed) {
            return Err(self.blamed(Trouble::Cancelled));
        }
        match shared.store.finish(&shared.upload, self.nonce, &pieces, &shared.cancel) {
            Ok(Put::Created) => {}
            // Names of parts are random, so it is not another one's by chance.
            Ok(Put::Exists) => return Err(self.blamed(Trouble::Conflict)),
            Err(error) => return Err(error_of(error)),
        }
        Ok(Uploaded { length: self.filling_at, skeleton: self.skeleton.take().map(Builder::finish) })
    }

    /// Waits until nothing is under way.
    pub(super) fn settle(&self) -> io::Result<Vec<Piece>> {
        let mut sent = self.shared.sent.lock();
        while sent.under_way > 0 {
            self.shared.changed.wait(&mut sent);
        }
        Shared::check(&sent)?;
        Ok(sent.done.clone())
    }

    /// Waits until no piece is in flight, whatever the outcome of each. The pieces in the store by
    /// then are in [`PartUpload::standing`], and no piece follows.
    pub fn stop(&self) {
        let _ = self.settle();
    }

    /// Gives the part up and removes its bytes from the store.
    ///
    /// # Errors
    /// As [`Store::abort`].
    pub fn abort(self) -> Result<(), StoreError> {
        // A piece that comes after the end would leave an upload.
        let _ = self.settle();
        self.shared.store.abort(&self.shared.upload, &AtomicBool::new(false))
    }

    fn blamed(&self, trouble: Trouble) -> io::Error {
        error_of(StoreError {
            verb: Verb::PutPieces,
            name: Some(self.shared.upload.name.clone()),
            place: self.shared.store.place().into(),
            trouble,
        })
    }

    fn end(&self) -> u64 {
        self.filling_at + self.filling.len() as u64
    }

    fn note(&mut self, at: u64, bytes: &[u8]) {
        if let Some(skeleton) = &mut self.skeleton {
            skeleton.take(at, bytes);
            if skeleton.length() > SKELETON_BYTES_MAX {
                self.skeleton = None;
            }
        }
    }
}

impl Write for PartUpload {
    /// Takes bytes outside of records with blocks: heads, tables, the trailer.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut rest = bytes;
        while !rest.is_empty() {
            if self.filling.len() >= PIECE_BYTES_MAX {
                self.send(None)?;
            }
            let (now, later) = rest.split_at(rest.len().min(PIECE_BYTES_MAX - self.filling.len()));
            let at = self.end();
            self.note(at, now);
            self.filling.extend_from_slice(now);
            rest = later;
        }
        Ok(bytes.len())
    }

    /// Does nothing: written bytes are in the store when the part is finished.
    fn flush(&mut self) -> io::Result<()> {
        Shared::check(&self.shared.sent.lock())
    }
}

impl Out for PartUpload {
    fn record(&mut self, record: Outgoing) -> io::Result<()> {
        if self.filling.len() + record.length() > PIECE_BYTES_MAX {
            self.send(None)?;
        }
        let at = self.end();
        let mut pieces = record.pieces();
        let first = pieces.next().unwrap_or_default();
        let head = first.first_chunk().and_then(|head| RecordHeader::parse_in(head, self.dump).ok());
        match head {
            Some(head) if head.kind == RecordKind::Extents => {
                let table = RecordHeader::SIZE + head.items as usize * StreamRun::SIZE;
                self.note(at, first.get(..table).unwrap_or(first));
            }
            _ => self.note(at, first),
        }
        self.filling.extend_from_slice(first);
        pieces.for_each(|piece| self.filling.extend_from_slice(piece));
        Ok(())
    }
}
