//! Writing a part of a dump into a bucket, and resuming an interrupted one.
//!
//! Pieces of an upload cannot be read back. The existing content of a part is therefore recorded in
//! a note that survives its writer: the checksum of the head, the pieces that the store has taken,
//! and whether the part is an object by now. A note may be late, never early.
//!
//! | a crash after | leaves | a resume |
//! |---|---|---|
//! | the head was noted | perhaps an upload without a noted piece | begins the part again; a sweep removes that upload |
//! | a piece was noted | the upload | continues after that piece |
//! | the part was made an object | the object | compares the end of the object with the head, and takes it |

use std::cell::RefCell;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use cairn_base::{Clock, VolumeId};
use cairn_format::dump::DumpId;
use cairn_stream::{Begun, Compression, Dump, Onto, Out, Outgoing, Reached, Work};
use serde::{Deserialize, Serialize};

use super::index::PartEntry;
use super::upload::{PartStanding, PartUpload};
use super::{BucketDumps, DumpsError};
use crate::error::{StoreError, Trouble};

/// The shortest time between two notes of the progress of a part: a note may have thousands of
/// pieces.
const NOTE_EVERY: Duration = Duration::from_secs(1);

/// The progress of a part, kept where its writer finds it again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartNote {
    /// The checksum of its head, from when it was begun on.
    pub head: Option<String>,
    /// The pieces that the store has.
    pub standing: Option<PartStanding>,
    /// It is an object.
    pub whole: Option<PartEntry>,
}

impl PartNote {
    /// Bytes of the part that are in the store.
    pub fn bytes(&self) -> u64 {
        let standing = self.standing.as_ref().map_or(0, |standing| standing.bytes);
        self.whole.as_ref().map_or(standing, |whole| whole.length)
    }
}

/// The environment of the writing of a part.
pub struct PartWork<'a, 'b> {
    /// Whether records are packed; the same when the part is resumed.
    pub compression: Compression,
    /// Ends the writing, receives progress, brings threads.
    pub work: &'a mut Work<'b>,
    /// Ends calls of the store.
    pub cancel: &'a Arc<AtomicBool>,
    /// Tells when the next note is due.
    pub clock: &'a dyn Clock,
    /// Keeps the note. A note that could not be kept costs time when the part is resumed.
    pub keep: &'a mut dyn FnMut(&PartNote),
}

/// Shares a part between its writer and the reports of its place.
struct Sink<'a>(&'a RefCell<PartUpload>);

impl Write for Sink<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.borrow_mut().flush()
    }
}

impl Out for Sink<'_> {
    fn record(&mut self, record: Outgoing) -> io::Result<()> {
        self.0.borrow_mut().record(record)
    }
}

impl BucketDumps {
    /// Writes the missing bytes of a part, and makes it an object. Also returns the number of bytes
    /// that existed. Call [`BucketDumps::begin`] first. `note` is the last note of the previous
    /// attempt.
    ///
    /// # Errors
    /// [`DumpsError::OtherBegin`] if the volume no longer matches the begun part. After any other
    /// error the part can be resumed.
    pub fn write_part(
        &self,
        dump: &Dump<'_>,
        (volume, id, part): (VolumeId, DumpId, u32),
        mut note: PartNote,
        with: PartWork<'_, '_>,
    ) -> Result<(PartEntry, u64), DumpsError> {
        let PartWork { compression, work, cancel, clock, keep } = with;
        let own = (volume, id, part);
        let head = dump.head_checksum(part);
        match &note.head {
            Some(known) if *known != format!("{head:?}") => return Err(DumpsError::OtherBegin(id)),
            Some(_) => {
                if let Some(entry) = self.whole_part(own, head, cancel)? {
                    let there = entry.length;
                    note.whole = Some(entry.clone());
                    keep(&note);
                    return Ok((entry, there));
                }
                note.whole = None;
            }
            None => {
                note.head = Some(format!("{head:?}"));
                keep(&note);
            }
        }
        let (upload, begun) = self.open_upload(dump, own, &note, cancel)?;
        let there = begun.at().bytes;
        let upload = RefCell::new(upload);
        let (mut noted, mut since) = (upload.borrow().sent() as usize, clock.monotonic());
        let mut reached = |at: &Reached| {
            let mut upload = upload.borrow_mut();
            upload.reached(at)?;
            let now = clock.monotonic();
            if upload.sent() as usize > noted
                && now.saturating_sub(since) >= NOTE_EVERY
                && let Some(standing) = upload.standing()
                && standing.pieces.len() > noted
            {
                (noted, since) = (standing.pieces.len(), now);
                note.standing = Some(standing);
                keep(&note);
            }
            Ok(())
        };
        let onto = Onto { out: &mut Sink(&upload), reached: &mut reached };
        let written = dump.resume_part(part, &begun, onto, compression, work);
        let upload = upload.into_inner();
        if let Err(error) = written {
            // Pieces in flight arrive or fail before this returns: none arrives after a resume.
            upload.stop();
            if let Some(standing) = upload.standing() {
                note.standing = Some(standing);
                keep(&note);
            }
            return Err(error.into());
        }
        let entry = self.finish_part(own, upload, cancel)?;
        note.whole = Some(entry.clone());
        keep(&note);
        Ok((entry, there))
    }

    /// Where the writing of a part begins.
    fn open_upload(
        &self,
        dump: &Dump<'_>,
        (volume, id, part): (VolumeId, DumpId, u32),
        note: &PartNote,
        cancel: &Arc<AtomicBool>,
    ) -> Result<(PartUpload, Begun), DumpsError> {
        let length = dump.bytes();
        if let Some(standing) = &note.standing
            && let Some(begun) = dump.resumable(part, dump.head_checksum(part), &standing.reached())
        {
            match self.resume_part(id, length, standing, cancel) {
                Ok(upload) => return Ok((upload, begun)),
                // The store has removed the upload: the part begins again.
                Err(DumpsError::Store(StoreError { trouble: Trouble::NoUpload, .. })) => {}
                Err(error) => return Err(error),
            }
        }
        Ok((self.part((volume, id, part), length, cancel)?, Begun::default()))
    }
}
