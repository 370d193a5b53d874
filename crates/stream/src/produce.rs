//! Writing a stream: records in order of vbn, then the snapshots, then the trailer.

use std::io::Write;

use cairn_base::Checksum;
use cairn_format::SnapshotEntry;
use cairn_format::dump::DumpId;
use cairn_format::stream::{
    Encoding, RECORD_SNAPSHOTS_MAX, RecordHeader, RecordKind, StreamTrailer, chain_digest,
};

use crate::encode::{Compression, Form, Ready, batches_of, each_record};
use crate::error::{AbortReason, StreamError};
use crate::gauge::Gauge;
use crate::outgoing::{Out, Plain};
use crate::plan::Plan;
use crate::work::{Progress, Work};

/// The state of a stream between two records: with it and the bytes so far, writing can resume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reached {
    /// Bytes so far.
    pub bytes: u64,
    /// Records in them.
    pub records: u64,
    /// Blocks in those.
    pub blocks: u64,
    /// The chain over all heads so far, which the trailer has.
    pub digest: Checksum,
}

/// The result of writing a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Produced {
    /// Bytes of the stream.
    pub bytes: u64,
    /// Blocks in it.
    pub blocks: u64,
}

/// Writes the stream of `plan`. The writer is flushed at the end.
///
/// # Errors
/// After [`StreamError::Volume`] and [`StreamError::Cancelled`] the writer still works, and
/// [`abort`] informs the other side why the stream ends.
pub fn produce(
    plan: &Plan,
    out: &mut dyn Write,
    compression: Compression,
    work: &mut Work<'_>,
) -> Result<Produced, StreamError> {
    produce_gauged(plan, out, compression, &Gauge::new(), work)
}

/// [`produce`] on a link with known measurements; new ones go into `gauge`.
pub fn produce_gauged(
    plan: &Plan,
    out: &mut dyn Write,
    compression: Compression,
    gauge: &Gauge,
    work: &mut Work<'_>,
) -> Result<Produced, StreamError> {
    let total = plan.blocks();
    let out = &mut Plain(out);
    let mut sender = Sender::new(out, None, Reached::default());
    sender.raw(&plan.header.to_bytes())?;
    let record_blocks = gauge.record_blocks();
    let batches = (|| batches_of(plan, record_blocks), sender.at.bytes);
    let form = Form { compression, gauge, aligned: false, streams: 1 };
    each_record(plan, batches, form, work, &mut |ready, work| sender.tell_and_send(ready, total, work))?;
    if sender.at.blocks != total {
        return Err(StreamError::Inconsistent("blocks were left out"));
    }
    for chunk in plan.gone.chunks(RECORD_SNAPSHOTS_MAX) {
        work.go_on()?;
        let payload: Vec<u8> = chunk.iter().flat_map(|id| id.0.to_le_bytes()).collect();
        sender.list(RecordKind::Gone, chunk.len(), &payload)?;
    }
    sender.entries(&plan.put, 0, work)?;
    sender.trailer(plan.table_digest)?;
    sender.out.flush()?;
    Ok(sender.produced())
}

/// Ends a stream whose extents cannot continue, so that the reader learns why.
pub fn abort(out: &mut dyn Write, reason: AbortReason) -> Result<(), StreamError> {
    out.write_all(&abort_header(reason).to_bytes())?;
    out.flush()?;
    Ok(())
}

pub(crate) fn abort_header(reason: AbortReason) -> RecordHeader {
    RecordHeader {
        kind: RecordKind::Abort,
        encoding: Encoding::Plain,
        // An aborting writer does not know what has arrived, so the reader accepts it at any
        // number.
        sequence: u64::MAX,
        items: reason.code(),
        blocks: 0,
        payload: 0,
        checksum: Checksum::of(&[]),
    }
}

/// Numbers records, writes them, and sums them up.
pub(crate) struct Sender<'a> {
    pub(crate) out: &'a mut dyn Out,
    /// The dump whose record headers these are.
    dump: Option<DumpId>,
    pub(crate) at: Reached,
}

impl<'a> Sender<'a> {
    /// `out` has the stream up to `at`.
    pub(crate) fn new(out: &'a mut dyn Out, dump: Option<DumpId>, at: Reached) -> Self {
        Self { out, dump, at }
    }

    /// Writes a header and links it into the digest.
    pub(crate) fn raw(&mut self, bytes: &[u8]) -> Result<(), StreamError> {
        self.out.write_all(bytes)?;
        self.link(bytes);
        Ok(())
    }

    fn link(&mut self, head: &[u8]) {
        self.at.digest = chain_digest(self.at.digest, head);
        self.at.bytes += head.len() as u64;
    }

    /// The head with its number.
    fn numbered(&self, header: RecordHeader) -> [u8; RecordHeader::SIZE] {
        let header = RecordHeader { sequence: self.at.records, ..header };
        match self.dump {
            Some(dump) => header.to_bytes_in(dump),
            None => header.to_bytes(),
        }
    }

    fn count(&mut self, header: &RecordHeader) {
        self.at.records += 1;
        self.at.blocks += u64::from(header.blocks);
        self.at.bytes += u64::from(header.payload);
    }

    pub(crate) fn tell_and_send(
        &mut self,
        ready: Ready,
        total: u64,
        work: &mut Work<'_>,
    ) -> Result<(), StreamError> {
        work.go_on()?;
        let Ready { header, mut record } = ready;
        let head = self.numbered(header);
        record.set_head(&head);
        self.out.record(record)?;
        self.link(&head);
        self.count(&header);
        (work.progress)(Progress { blocks: self.at.blocks, blocks_total: total, bytes: self.at.bytes });
        Ok(())
    }

    fn list(&mut self, kind: RecordKind, items: usize, payload: &[u8]) -> Result<(), StreamError> {
        let header = RecordHeader {
            kind,
            encoding: Encoding::Plain,
            sequence: 0,
            items: items as u32,
            blocks: 0,
            payload: payload.len() as u32,
            checksum: Checksum::of(payload),
        };
        let head = self.numbered(header);
        self.raw(&head)?;
        self.out.write_all(payload)?;
        self.count(&header);
        Ok(())
    }

    /// The records of a snapshot table, but for the first `skip`.
    pub(crate) fn entries(
        &mut self,
        entries: &[SnapshotEntry],
        skip: usize,
        work: &Work<'_>,
    ) -> Result<(), StreamError> {
        for chunk in entries.chunks(RECORD_SNAPSHOTS_MAX).skip(skip) {
            work.go_on()?;
            self.list(RecordKind::Entries, chunk.len(), &payload_of(chunk))?;
        }
        Ok(())
    }

    pub(crate) fn trailer(&mut self, table_digest: Checksum) -> Result<(), StreamError> {
        self.list(RecordKind::Trailer, 0, &self.at.trailer(table_digest).to_bytes())
    }

    pub(crate) fn produced(&self) -> Produced {
        Produced { bytes: self.at.bytes, blocks: self.at.blocks }
    }
}

impl Reached {
    /// The trailer that comes here.
    pub(crate) fn trailer(&self, table_digest: Checksum) -> StreamTrailer {
        StreamTrailer { records: self.records, blocks: self.blocks, digest: self.digest, table_digest }
    }
}

/// The payload of a record of entries.
pub(crate) fn payload_of(entries: &[SnapshotEntry]) -> Vec<u8> {
    entries.iter().flat_map(|entry| entry.to_bytes()).collect()
}
