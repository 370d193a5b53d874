//! Writing a stream: one side reads and encodes batches in order of vbn, the other writes them out.

use std::io::Write;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, channel, sync_channel};

use cairn_base::{BLOCK_SIZE, Checksum};
use cairn_device::Block;
use cairn_format::stream::{
    Encoding, RECORD_SNAPSHOTS_MAX, RecordHeader, RecordKind, StreamRun, StreamTrailer, chain_digest,
};
use cairn_volume::Run;

use crate::error::{AbortReason, StreamError};
use crate::plan::Plan;
use crate::work::{Progress, Work};

/// Records that one read of the device fills: 4 MiB in flight at once.
const RECORDS_PER_READ: usize = 4;
/// Reads that wait to be sent, at most; past it the reading side waits.
const READS_AHEAD: usize = 2;
/// The fastest level that compresses at all well: the wire is rarely slower than it.
const ZSTD_LEVEL: i32 = 1;

/// How extents are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// As they are: best on a fast link.
    #[default]
    None,
    /// zstd level 1 where that makes a record smaller.
    Zstd,
}

/// What was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Produced {
    /// Bytes of the stream.
    pub bytes: u64,
    /// Blocks in it.
    pub blocks: u64,
}

/// A record ready to go, but for its number.
struct Ready {
    header: RecordHeader,
    payload: Vec<u8>,
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
    let total = plan.blocks();
    let mut sender = Sender { out, digest: Checksum::default(), sequence: 0, blocks: 0, bytes: 0 };
    sender.raw(&plan.header.to_bytes())?;
    let mut encoder = Encoder { plan, compression, spare: None };
    match work.threads {
        None => {
            for batch in plan_batches(plan) {
                for ready in encoder.encode(&batch)? {
                    sender.tell_and_send(&ready, total, work)?;
                }
            }
        }
        Some(threads) => {
            let (ahead, ready) = sync_channel(READS_AHEAD);
            let (give_back, spare) = channel();
            encoder.spare = Some(spare);
            let mut ends = Some((encoder, ahead));
            let mut queue = Some(ready);
            let mut outcome: Result<(), StreamError> = Ok(());
            threads.beside(
                &mut || {
                    if let Some((encoder, ahead)) = ends.take() {
                        read_ahead(encoder, &ahead);
                    }
                },
                &mut || {
                    let Some(queue) = queue.take() else { return };
                    // Dropping the queue at the first failure ends the other side.
                    outcome = queue.iter().try_for_each(|batch: Result<Vec<Ready>, StreamError>| {
                        for ready in batch? {
                            sender.tell_and_send(&ready, total, work)?;
                            let _ = give_back.send(ready.payload);
                        }
                        Ok(())
                    });
                    drop(queue);
                },
            );
            outcome?;
            if sender.blocks != total {
                return Err(StreamError::Inconsistent("blocks were left out"));
            }
        }
    }
    sender.finish(plan, work)
}

/// Ends a stream whose extents can't go on, so that the reader learns why.
pub fn abort(out: &mut dyn Write, reason: AbortReason) -> Result<(), StreamError> {
    let header = RecordHeader {
        kind: RecordKind::Abort,
        encoding: Encoding::Plain,
        // A writer that gave up does not know what arrived, so the reader takes it at any number.
        sequence: u64::MAX,
        items: reason.code(),
        blocks: 0,
        payload: 0,
        checksum: Checksum::of(&[]),
    };
    out.write_all(&header.to_bytes())?;
    out.flush()?;
    Ok(())
}

fn plan_batches(plan: &Plan) -> impl Iterator<Item = Vec<Vec<Run>>> + '_ {
    let mut records = plan.records();
    std::iter::from_fn(move || {
        let batch: Vec<_> = records.by_ref().take(RECORDS_PER_READ).collect();
        (!batch.is_empty()).then_some(batch)
    })
}

fn read_ahead(mut encoder: Encoder<'_>, ahead: &SyncSender<Result<Vec<Ready>, StreamError>>) {
    for batch in plan_batches(encoder.plan) {
        let encoded = encoder.encode(&batch);
        let failed = encoded.is_err();
        let sent = match ahead.try_send(encoded) {
            Ok(()) => true,
            Err(TrySendError::Full(encoded)) => ahead.send(encoded).is_ok(),
            Err(TrySendError::Disconnected(_)) => false,
        };
        if failed || !sent {
            return;
        }
    }
}

struct Encoder<'a> {
    plan: &'a Plan,
    compression: Compression,
    /// Buffers that were sent: memory of this size is costly to get anew each time.
    spare: Option<Receiver<Vec<u8>>>,
}

impl Encoder<'_> {
    fn encode(&mut self, records: &[Vec<Run>]) -> Result<Vec<Ready>, StreamError> {
        let runs: Vec<Run> = records.iter().flatten().copied().collect();
        let mut blocks = self.plan.volume.read_blocks(&runs)?.into_iter();
        records
            .iter()
            .map(|runs| {
                let count: u64 = runs.iter().map(|(_, count)| *count).sum();
                let own: Vec<Block> = blocks.by_ref().take(count as usize).collect();
                self.record(runs, &own)
            })
            .collect()
    }

    fn buffer(&self) -> Vec<u8> {
        let mut buffer = self.spare.as_ref().and_then(|spare| spare.try_recv().ok()).unwrap_or_default();
        buffer.clear();
        buffer
    }

    fn record(&self, runs: &[Run], blocks: &[Block]) -> Result<Ready, StreamError> {
        let mut payload = self.buffer();
        payload.reserve(runs.len() * StreamRun::SIZE + blocks.len() * BLOCK_SIZE);
        for (first, count) in runs {
            payload.extend_from_slice(StreamRun::new(*first, *count as u32).bytes());
        }
        let table = payload.len();
        for block in blocks {
            payload.extend_from_slice(&block[..]);
        }
        let mut encoding = Encoding::Plain;
        if self.compression == Compression::Zstd {
            let packed = zstd::bulk::compress(&payload[table..], ZSTD_LEVEL)?;
            if packed.len() < payload.len() - table {
                payload.truncate(table);
                payload.extend_from_slice(&packed);
                encoding = Encoding::Zstd;
            }
        }
        let header = RecordHeader {
            kind: RecordKind::Extents,
            encoding,
            sequence: 0,
            items: runs.len() as u32,
            blocks: blocks.len() as u32,
            payload: payload.len() as u32,
            checksum: Checksum::of(&payload),
        };
        Ok(Ready { header, payload })
    }
}

struct Sender<'a> {
    out: &'a mut dyn Write,
    digest: Checksum,
    sequence: u64,
    blocks: u64,
    bytes: u64,
}

impl Sender<'_> {
    /// Writes a header and links it into the digest.
    fn raw(&mut self, bytes: &[u8]) -> Result<(), StreamError> {
        self.out.write_all(bytes)?;
        self.digest = chain_digest(self.digest, bytes);
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    fn send(&mut self, header: RecordHeader, payload: &[u8]) -> Result<(), StreamError> {
        let header = RecordHeader { sequence: self.sequence, ..header };
        self.raw(&header.to_bytes())?;
        self.out.write_all(payload)?;
        self.sequence += 1;
        self.blocks += u64::from(header.blocks);
        self.bytes += payload.len() as u64;
        Ok(())
    }

    fn tell_and_send(&mut self, ready: &Ready, total: u64, work: &mut Work<'_>) -> Result<(), StreamError> {
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

    fn finish(mut self, plan: &Plan, work: &Work<'_>) -> Result<Produced, StreamError> {
        for chunk in plan.gone.chunks(RECORD_SNAPSHOTS_MAX) {
            work.go_on()?;
            let payload: Vec<u8> = chunk.iter().flat_map(|id| id.0.to_le_bytes()).collect();
            self.list(RecordKind::Gone, chunk.len(), &payload)?;
        }
        for chunk in plan.put.chunks(RECORD_SNAPSHOTS_MAX) {
            work.go_on()?;
            let payload: Vec<u8> = chunk.iter().flat_map(|entry| entry.to_bytes()).collect();
            self.list(RecordKind::Entries, chunk.len(), &payload)?;
        }
        let trailer = StreamTrailer {
            records: self.sequence,
            blocks: self.blocks,
            digest: self.digest,
            table_digest: plan.table_digest,
        };
        self.list(RecordKind::Trailer, 0, &trailer.to_bytes())?;
        self.out.flush()?;
        Ok(Produced { bytes: self.bytes, blocks: self.blocks })
    }
}
