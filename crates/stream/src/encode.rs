//! From runs of blocks to records: read, encoded and handed on, each on a thread of its own where
//! the caller has threads.
//!
//! If a record keeps the blocks as read ([`Form::is_as_read`]) its checksum is the only encoding
//! work. There one thread reads, and the other encodes and passes on: waking another thread for so
//! little costs more than it gains, and so does memory in transfer that is in no processor cache.
//!
//! The device is read in pieces as long as the other stages can use ([`Appetite`]): requests of the
//! volume's clients queue after them on the device.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};

use cairn_base::{BLOCK_SIZE, Checksum, Clock};
use cairn_device::{Block, pieces};
use cairn_format::stream::{Encoding, RecordHeader, RecordKind, StreamRun};
use cairn_volume::Run;

use crate::error::StreamError;
use crate::gauge::Gauge;
use crate::outgoing::{ALIGNMENT, Outgoing, Spare};
use crate::plan::Plan;
use crate::work::{Helper, Work, beside};

/// Records that one read of the device fills at most: 4 MiB.
const RECORDS_PER_READ: usize = 4;
/// The same for records that keep the blocks as read: freshly read blocks are still in the
/// processor's cache when they are summed.
const RECORDS_PER_READ_AS_READ: usize = 2;
/// How often the encoder finds nothing read before reads become twice as long.
const WAITS_BEFORE_MORE: usize = 8;
/// Concurrent reads of the device, so that it has work while the blocks of one are passed on. Parts
/// of a dump that are written in parallel already read in parallel.
const READERS: usize = 2;
/// Reads of one reader that wait to be encoded, at most; past it the reader waits.
const READS_AHEAD: usize = 1;
/// Encoded reads that wait to be sent, at most.
const ENCODED_AHEAD: usize = 2;
/// The fastest level that compresses at all well: the wire is rarely slower than it.
const ZSTD_LEVEL: i32 = 1;

/// How extents are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// Uncompressed: best on a fast link.
    #[default]
    None,
    /// zstd level 1 where that makes a record smaller.
    Zstd,
    /// As [`Compression::Zstd`] while that is faster, by the measurements of the link and of
    /// packing ([`Gauge`]).
    Auto,
}

/// How records are made.
#[derive(Clone, Copy)]
pub(crate) struct Form<'a> {
    pub(crate) compression: Compression,
    /// The measurements of the link and of packing.
    pub(crate) gauge: &'a Gauge,
    /// Blocks that are not packed start at multiples of [`ALIGNMENT`] in the stream.
    pub(crate) aligned: bool,
    /// Streams that are made of the volume at the same time, this one included.
    pub(crate) streams: usize,
}

impl Form<'_> {
    /// Records contain the blocks as read, without a copy.
    fn is_as_read(&self) -> bool {
        self.aligned && self.compression == Compression::None
    }
}

/// A record ready to go, but for its number: `header` has none, and is not in `record` yet.
pub(crate) struct Ready {
    pub(crate) header: RecordHeader,
    pub(crate) record: Outgoing,
}

/// The runs of each record, at least one, that one reader reads before it is another one's turn.
pub(crate) type Batch = Vec<Vec<Run>>;

/// All records of a plan, in batches.
pub(crate) fn batches_of(plan: &Plan, record_blocks: usize) -> impl Iterator<Item = Batch> + Send + '_ {
    let mut records = plan.records_of(record_blocks);
    std::iter::from_fn(move || {
        let batch: Batch = records.by_ref().take(RECORDS_PER_READ).collect();
        (!batch.is_empty()).then_some(batch)
    })
}

/// Reads and encodes the batches that each call of `batches` gives, and gives each record to `sink`
/// on this thread, in order. The first of them comes at `position` of the stream. The first failure
/// ends it.
pub(crate) fn each_record<Batches: Iterator<Item = Batch>>(
    plan: &Plan,
    (batches, position): (impl Fn() -> Batches + Sync, u64),
    form: Form<'_>,
    work: &mut Work<'_>,
    sink: &mut dyn FnMut(Ready, &mut Work<'_>) -> Result<(), StreamError>,
) -> Result<(), StreamError> {
    let clock = &**plan.volume.clock();
    let sink = &mut |ready: Ready, work: &mut Work<'_>| -> Result<(), StreamError> {
        let (bytes, began) = (u64::from(ready.header.payload), clock.monotonic());
        sink(ready, work)?;
        form.gauge.sent(bytes, clock.monotonic().saturating_sub(began));
        Ok(())
    };
    let mut encoder = Encoder { form, clock, spare: Arc::default(), position };
    let Some(threads) = work.threads else {
        for batch in batches() {
            let blocks = read(plan, &batch)?;
            for ready in encoder.encode(&batch, blocks)? {
                sink(ready, work)?;
            }
        }
        return Ok(());
    };
    let (readers, most) = match form.is_as_read() {
        true => (1, RECORDS_PER_READ_AS_READ),
        false if form.streams > 1 => (1, RECORDS_PER_READ),
        false => (READERS, RECORDS_PER_READ),
    };
    let appetite = &Appetite::up_to(most);
    let (reads_to, blocks_of): (Vec<_>, Vec<_>) = (0..readers).map(|_| sync_channel(READS_AHEAD)).unzip();
    let read =
        |(first, to)| -> Helper<'_> { Box::new(read_all(plan, &batches, (first, readers), to, appetite)) };
    let mut helpers: Vec<Helper<'_>> = reads_to.into_iter().enumerate().map(read).collect();
    let mut outcome = Ok(());
    let sent = &mut outcome;
    // The first failure ends it: dropping a queue ends its other side.
    let mut send = move |encoded: Encoded| {
        *sent = encoded.and_then(|batch| batch.into_iter().try_for_each(|ready| sink(ready, work)));
        sent.is_ok()
    };
    if form.is_as_read() {
        beside(threads, helpers, move || encode_all(&mut encoder, blocks_of, appetite, &mut send))?;
        return outcome;
    }
    let (encoded_to, encoded) = sync_channel(ENCODED_AHEAD);
    helpers.push(Box::new(move || {
        encode_all(&mut encoder, blocks_of, appetite, &mut |encoded| queue(encoded, &encoded_to, appetite));
    }));
    let send_all = move || {
        let _ = encoded.into_iter().all(send);
    };
    beside(threads, helpers, send_all)?;
    outcome
}

/// How many records are read at once. One at first, and again whenever the sink is behind, as in a
/// transfer that has time or a slow link: longer reads than necessary only make clients wait. More,
/// up to `most`, when the encoder repeatedly waits for the device, which is fastest with long
/// reads.
struct Appetite {
    records: AtomicUsize,
    most: usize,
    waits: AtomicUsize,
}

impl Appetite {
    fn up_to(most: usize) -> Self {
        Self { records: AtomicUsize::new(1), most, waits: AtomicUsize::new(0) }
    }

    fn records(&self) -> usize {
        self.records.load(Ordering::Relaxed)
    }

    /// The encoder is idle. It alone notices that.
    fn reads_are_behind(&self) {
        let waits = self.waits.load(Ordering::Relaxed) + 1;
        self.waits.store(waits % WAITS_BEFORE_MORE, Ordering::Relaxed);
        if waits == WAITS_BEFORE_MORE {
            self.records.store((self.records() * 2).min(self.most), Ordering::Relaxed);
        }
    }

    /// An encoded record has to wait.
    fn sink_is_behind(&self) {
        self.waits.store(0, Ordering::Relaxed);
        self.records.store(1, Ordering::Relaxed);
    }
}

/// Some records of a batch, read.
struct Piece {
    records: Batch,
    blocks: Vec<Block>,
    /// The next piece is another reader's.
    ends_batch: bool,
}

/// The records of a piece, or why there are no more.
type Encoded = Result<Vec<Ready>, StreamError>;

/// Reads every `step`th batch from the `first` on.
fn read_all<'a, Batches: Iterator<Item = Batch>>(
    plan: &'a Plan,
    batches: &'a (impl Fn() -> Batches + Sync),
    (first, step): (usize, usize),
    read_to: SyncSender<Result<Piece, StreamError>>,
    appetite: &'a Appetite,
) -> impl FnOnce() + Send + 'a {
    move || {
        for mut records in batches().skip(first).step_by(step) {
            while !records.is_empty() {
                let left = records.split_off(appetite.records().min(records.len()));
                let own = std::mem::replace(&mut records, left);
                let ends_batch = records.is_empty();
                let piece = read(plan, &own).map(|blocks| Piece { records: own, blocks, ends_batch });
                let failed = piece.is_err();
                if read_to.send(piece).is_err() || failed {
                    return;
                }
            }
        }
    }
}

/// Takes batches from the readers in turn, so in order, until the one whose turn it is has no more.
/// Passes the encoded records to `hand_on`, until that accepts no more.
fn encode_all(
    encoder: &mut Encoder<'_>,
    pieces_of: Vec<Receiver<Result<Piece, StreamError>>>,
    appetite: &Appetite,
    hand_on: &mut dyn FnMut(Encoded) -> bool,
) {
    let mut turns = pieces_of.iter().cycle();
    let mut turn = turns.next();
    while let Some(pieces) = turn {
        let piece = match pieces.try_recv() {
            Ok(piece) => piece,
            Err(TryRecvError::Empty) => {
                appetite.reads_are_behind();
                let Ok(piece) = pieces.recv() else { return };
                piece
            }
            Err(TryRecvError::Disconnected) => return,
        };
        if piece.as_ref().is_ok_and(|piece| piece.ends_batch) {
            turn = turns.next();
        }
        let encoded = piece.and_then(|piece| encoder.encode(&piece.records, piece.blocks));
        let failed = encoded.is_err();
        if !hand_on(encoded) || failed {
            return;
        }
    }
}

/// Passes records to the thread that sends them; false if that has ended.
fn queue(encoded: Encoded, to: &SyncSender<Encoded>, appetite: &Appetite) -> bool {
    match to.try_send(encoded) {
        Ok(()) => true,
        Err(TrySendError::Full(encoded)) => {
            appetite.sink_is_behind();
            to.send(encoded).is_ok()
        }
        Err(TrySendError::Disconnected(_)) => false,
    }
}

fn read(plan: &Plan, batch: &Batch) -> Result<Vec<Block>, StreamError> {
    let runs: Vec<Run> = batch.iter().flatten().copied().collect();
    Ok(plan.volume.read_blocks_at(&plan.at, &runs)?)
}

struct Encoder<'a> {
    form: Form<'a>,
    clock: &'a dyn Clock,
    spare: Arc<Spare>,
    /// Where the next record begins in the stream.
    position: u64,
}

impl Encoder<'_> {
    fn encode(&mut self, batch: &Batch, blocks: Vec<Block>) -> Result<Vec<Ready>, StreamError> {
        let mut blocks = blocks.into_iter();
        batch
            .iter()
            .map(|runs| {
                let count: u64 = runs.iter().map(|(_, count)| *count).sum();
                let own: Vec<Block> = blocks.by_ref().take(count as usize).collect();
                self.record(runs, own)
            })
            .collect()
    }

    /// The packed blocks, if packing is enabled and makes them smaller.
    fn pack(&self, blocks: &[Block]) -> Result<Option<Vec<u8>>, StreamError> {
        let Form { compression, gauge, .. } = self.form;
        let wanted = match compression {
            Compression::None => false,
            Compression::Zstd => true,
            Compression::Auto => gauge.pays(),
        };
        if !wanted {
            return Ok(None);
        }
        let plain = pieces(blocks).collect::<Vec<_>>().concat();
        let began = self.clock.monotonic();
        let packed = zstd::bulk::compress(&plain, ZSTD_LEVEL)?;
        let took = self.clock.monotonic().saturating_sub(began);
        gauge.packed(plain.len() as u64, packed.len() as u64, took);
        Ok((packed.len() < plain.len()).then_some(packed))
    }

    fn record(&mut self, runs: &[Run], blocks: Vec<Block>) -> Result<Ready, StreamError> {
        let packed = self.pack(&blocks)?;
        let (count, table) = (blocks.len(), runs.len() * StreamRun::SIZE);
        let copied = match &packed {
            Some(packed) => packed.len(),
            None if self.form.aligned => ALIGNMENT,
            None => count * BLOCK_SIZE,
        };
        let mut record = Outgoing::new(&self.spare, self.position, table + copied);
        for (first, count) in runs {
            record.push(StreamRun::new(*first, *count as u32).bytes());
        }
        let encoding = match packed {
            Some(packed) => {
                record.push(&packed);
                Encoding::Zstd
            }
            None if self.form.aligned => {
                record.end_with(blocks);
                Encoding::Aligned
            }
            None => {
                blocks.iter().for_each(|block| record.push(&block[..]));
                Encoding::Plain
            }
        };
        let header = RecordHeader {
            kind: RecordKind::Extents,
            encoding,
            sequence: 0,
            items: runs.len() as u32,
            blocks: count as u32,
            payload: (record.length() - RecordHeader::SIZE) as u32,
            checksum: Checksum::of_pieces(record.payload()),
        };
        self.position += record.length() as u64;
        Ok(Ready { header, record })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_are_as_long_as_the_rest_has_use_for() {
        let appetite = Appetite::up_to(RECORDS_PER_READ);
        let waits = |times: usize| {
            (0..times).for_each(|_| appetite.reads_are_behind());
            appetite.records()
        };
        assert_eq!(waits(0), 1, "what is not known to be needed makes clients wait");
        assert_eq!(waits(WAITS_BEFORE_MORE - 1), 1);
        assert_eq!(waits(1), 2);
        assert_eq!(waits(WAITS_BEFORE_MORE), 4);
        assert_eq!(waits(9 * WAITS_BEFORE_MORE), RECORDS_PER_READ);
        waits(WAITS_BEFORE_MORE - 1);
        appetite.sink_is_behind();
        assert_eq!(waits(0), 1, "at once");
        assert_eq!(waits(WAITS_BEFORE_MORE - 1), 1, "and what was before does not count");
        assert_eq!(waits(1), 2);
    }
}
