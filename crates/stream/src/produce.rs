//! Writing a stream: records in order of vbn, then the snapshots, then the trailer.

use std::io::Write;

use cairn_base::Checksum;
use cairn_format::SnapshotEntry;
use cairn_format::dump::DumpId;
use cairn_format::stream::{
    Encoding, RECORD_SNAPSHOTS_MAX, RecordHeader, RecordKind, StreamTrailer, chain_digest,
};

use crate::encode::{Compression, Ready, batches_of, each_record};
use crate::error::{AbortReason, StreamError};
use crate::gauge::Gauge;
use crate::plan::Plan;
use crate::work::{Progress, Work};

/// What was written.
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
/// After [`StreamError::Volume`] and [`StreamError::Cancelled`] the writer still works, and [`abort`] tells the other side why nothing more comes.
pub fn produce(
    plan: &Plan,
    out: &mut dyn Write,
    compression: Compression,
    work: &mut Work<'_>,
) -> Result<Produced, StreamError> {
    produce_gauged(plan, out, compression, &Gauge::new(), work)
}

/// [`produce`] on a link of which something is known already; what is learnt goes into `gauge`.
pub fn produce_gauged(
    plan: &Plan,
    out: &mut dyn Write,
    compression: Compression,
    gauge: &Gauge,
    work: &mut Work<'_>,
) -> Result<Produced, StreamError> {
    let total = plan.blocks();
    let mut sender = Sender::new(out, None);
    sender.raw(&plan.header.to_bytes())?;
    each_record(plan, || batches_of(plan), (compression, gauge), work, &mut |ready, work| {
        sender.tell_and_send(ready, total, work)
    })?;
    if sender.blocks != total {
        return Err(StreamError::Inconsistent("blocks were left out"));
    }
    for chunk in plan.gone.chunks(RECORD_SNAPSHOTS_MAX) {
        work.go_on()?;
        let payload: Vec<u8> = chunk.iter().flat_map(|id| id.0.to_le_bytes()).collect();
        sender.list(RecordKind::Gone, chunk.len(), &payload)?;
    }
    sender.entries(&plan.put, work)?;
    sender.trailer(plan.table_digest)?;
    sender.out.flush()?;
    Ok(sender.produced())
}

/// Ends a stream whose extents can't go on, so that the reader learns why.
pub fn abort(out: &mut dyn Write, reason: AbortReason) -> Result<(), StreamError> {
    out.write_all(&abort_header(reason).to_bytes())?;
    out.flush()?;
    Ok(())
}

pub(crate) fn abort_header(reason: AbortReason) -> RecordHeader {
    RecordHeader {
        kind: RecordKind::Abort,
        encoding: Encoding::Plain,
        // A writer that gave up does not know what arrived, so the reader takes it at any number.
        sequence: u64::MAX,
        items: reason.code(),
        blocks: 0,
        payload: 0,
        checksum: Checksum::of(&[]),
    }
}

/// Numbers records, writes them, and sums them up.
pub(crate) struct Sender<'a> {
    pub(crate) out: &'a mut dyn Write,
    /// The dump whose record headers these are.
    dump: Option<DumpId>,
    digest: Checksum,
    sequence: u64,
    pub(crate) blocks: u64,
    bytes: u64,
}

impl<'a> Sender<'a> {
    pub(crate) fn new(out: &'a mut dyn Write, dump: Option<DumpId>) -> Self {
        Self { out, dump, digest: Checksum::default(), sequence: 0, blocks: 0, bytes: 0 }
    }

    /// Writes a header and links it into the digest.
    pub(crate) fn raw(&mut self, bytes: &[u8]) -> Result<(), StreamError> {
        self.out.write_all(bytes)?;
        self.digest = chain_digest(self.digest, bytes);
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    fn send(&mut self, header: RecordHeader, payload: &[u8]) -> Result<(), StreamError> {
        let header = RecordHeader { sequence: self.sequence, ..header };
        let head = match self.dump {
            Some(dump) => header.to_bytes_in(dump),
            None => header.to_bytes(),
        };
        self.raw(&head)?;
        self.out.write_all(payload)?;
        self.sequence += 1;
        self.blocks += u64::from(header.blocks);
        self.bytes += payload.len() as u64;
        Ok(())
    }

    pub(crate) fn tell_and_send(
        &mut self,
        ready: &Ready,
        total: u64,
        work: &mut Work<'_>,
    ) -> Result<(), StreamError> {
        work.go_on()?;
        self.send(ready.header, &ready.payload)?;
        (work.progress)(Progress { blocks: self.blocks, blocks_total: total, bytes: self.bytes });
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
        self.send(header, payload)
    }

    pub(crate) fn entries(&mut self, entries: &[SnapshotEntry], work: &Work<'_>) -> Result<(), StreamError> {
        for chunk in entries.chunks(RECORD_SNAPSHOTS_MAX) {
            work.go_on()?;
            let payload: Vec<u8> = chunk.iter().flat_map(|entry| entry.to_bytes()).collect();
            self.list(RecordKind::Entries, chunk.len(), &payload)?;
        }
        Ok(())
    }

    pub(crate) fn trailer(&mut self, table_digest: Checksum) -> Result<(), StreamError> {
        let (records, blocks, digest) = (self.sequence, self.blocks, self.digest);
        let trailer = StreamTrailer { records, blocks, digest, table_digest };
        self.list(RecordKind::Trailer, 0, &trailer.to_bytes())
    }

    pub(crate) fn produced(&self) -> Produced {
        Produced { bytes: self.bytes, blocks: self.blocks }
    }
}
