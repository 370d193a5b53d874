//! Writing a dump: its parts side by side, each with every n-th batch of records.

use std::io::{self, Write};

use cairn_base::{BLOCK_SIZE, Timestamp};
use cairn_format::SnapshotEntry;
use cairn_format::dump::{DumpHeader, DumpId, DumpLevel, PARTS_MAX};
use cairn_format::stream::{
    RECORD_BLOCKS_MAX, RECORD_SNAPSHOTS_MAX, RecordHeader, StreamHeader, StreamRun, StreamTrailer,
};
use cairn_volume::Run;

use super::read::{HEAD_BYTES, PartHead};
use super::resume::Begun;
use crate::encode::{Batch, Compression, Form, batches_of, each_record};
use crate::error::{AbortReason, StreamError};
use crate::gauge::Gauge;
use crate::outgoing::{ALIGNMENT, Out, Plain};
use crate::plan::Plan;
use crate::produce::{Produced, Reached, Sender, abort_header};
use crate::work::Work;

/// Which dump it is.
#[derive(Debug, Clone)]
pub struct DumpLabel {
    /// At random.
    pub id: DumpId,
    /// Its base.
    pub level: DumpLevel,
    /// The name of the volume.
    pub name: String,
    /// Now.
    pub created: Timestamp,
}

/// The target of a resumable part.
pub struct Onto<'a> {
    /// The file, positioned after the existing content of the part.
    pub out: &'a mut dyn Out,
    /// Called after each record with blocks, when `out` has it. A caller that then makes the file
    /// durable and records the position saves verifying everything before it when the dump is
    /// resumed ([`Dump::begun`]).
    pub reached: &'a mut dyn FnMut(&Reached) -> io::Result<()>,
}

/// How many records a part has, of each kind.
pub(super) struct Shape {
    /// Of the snapshot table, which comes twice.
    pub(super) table: u64,
    /// With blocks.
    pub(super) extents: u64,
    /// Blocks in them.
    pub(super) blocks: u64,
}

/// A dump before it is written.
///
/// A dump to one file, with a plan made by [`Plan::against`] (or any other: the reader of an
/// incremental dump needs those before it):
/// `Dump::new(&plan, label, 1).write_part(0, &mut file, Compression::Zstd, &mut work)`.
pub struct Dump<'a> {
    pub(super) plan: &'a Plan,
    pub(super) label: DumpLabel,
    parts: u32,
}

impl<'a> Dump<'a> {
    /// A dump of the content of `plan`, in `parts` parts (1 to [`PARTS_MAX`]).
    pub fn new(plan: &'a Plan, label: DumpLabel, parts: u32) -> Self {
        Self { plan, label, parts: parts.clamp(1, PARTS_MAX) }
    }

    /// Bytes of all parts when nothing is compressed: exact.
    pub fn bytes(&self) -> u64 {
        let entries = self.plan.table.len();
        let table =
            entries.div_ceil(RECORD_SNAPSHOTS_MAX) * RecordHeader::SIZE + entries * SnapshotEntry::SIZE;
        let before = (HEAD_BYTES + table) as u64;
        let behind = (table + RecordHeader::SIZE + StreamTrailer::SIZE + HEAD_BYTES) as u64;
        let end = |part| self.batches(part).flatten().fold(before, |at, runs| record_end(at, &runs));
        (0..self.parts).map(|part| end(part) + behind).sum()
    }

    /// How many parts it has.
    pub fn parts(&self) -> u32 {
        self.parts
    }

    /// Blocks in all parts.
    pub fn blocks(&self) -> u64 {
        self.plan.blocks()
    }

    /// Writes one part and flushes the writer. Parts may be written at the same time, each by a
    /// thread of its own.
    ///
    /// # Errors
    /// When the volume can't be read or the work is cancelled, the part ends with an abort record.
    pub fn write_part(
        &self,
        part: u32,
        out: &mut dyn Write,
        compression: Compression,
        work: &mut Work<'_>,
    ) -> Result<Produced, StreamError> {
        let out = &mut Plain(out);
        let mut sender = Sender::new(out, Some(self.label.id), Reached::default());
        let written = self.write_records(part, &mut sender, compression, work, &mut |_| Ok(()));
        if let Err(error) = written {
            let reason = match error {
                StreamError::Cancelled => AbortReason::Cancelled,
                // Nothing is wrong with the volume.
                StreamError::NoThread(_) => AbortReason::Other,
                _ => AbortReason::ReadFailed,
            };
            // A writer that failed cannot take this either; the reader then misses the trailer.
            let _ = sender.out.write_all(&abort_header(reason).to_bytes_in(self.label.id));
            let _ = sender.out.flush();
            return Err(error);
        }
        sender.out.flush()?;
        Ok(sender.produced())
    }

    /// Resumes a part after its existing content, and flushes the writer. After a failure the
    /// written data stays, to be resumed once more; the part does not end with an abort record.
    pub fn resume_part(
        &self,
        part: u32,
        begun: &Begun,
        onto: Onto<'_>,
        compression: Compression,
        work: &mut Work<'_>,
    ) -> Result<Produced, StreamError> {
        let mut sender = Sender::new(onto.out, Some(self.label.id), begun.at);
        if !begun.whole {
            self.write_records(part, &mut sender, compression, work, onto.reached)?;
            sender.out.flush()?;
        }
        Ok(sender.produced())
    }

    /// Writes the records after `sender.at`.
    fn write_records(
        &self,
        part: u32,
        sender: &mut Sender<'_>,
        compression: Compression,
        work: &mut Work<'_>,
        reached: &mut dyn FnMut(&Reached) -> io::Result<()>,
    ) -> Result<(), StreamError> {
        let (plan, shape) = (self.plan, self.shape(part));
        let head = self.head(part, &shape).to_bytes();
        if sender.at.bytes == 0 {
            sender.raw(&head)?;
        }
        let there = sender.at.records;
        sender.entries(&plan.table, there as usize, work)?;
        let skip = there.saturating_sub(shape.table).min(shape.extents);
        let batches = (|| self.batches_behind(part, skip as usize), sender.at.bytes);
        let (gauge, streams) = (&Gauge::new(), self.parts as usize);
        let form = Form { compression, gauge, aligned: true, streams };
        each_record(plan, batches, form, work, &mut |ready, work| {
            sender.tell_and_send(ready, shape.blocks, work)?;
            Ok(reached(&sender.at)?)
        })?;
        if sender.at.blocks != shape.blocks {
            return Err(StreamError::Inconsistent("blocks were left out"));
        }
        let of_end = there.saturating_sub(shape.table + shape.extents);
        sender.entries(&plan.table, of_end as usize, work)?;
        if of_end <= shape.table {
            sender.trailer(plan.table_digest)?;
        }
        sender.raw(&head)
    }

    pub(super) fn shape(&self, part: u32) -> Shape {
        let table = self.plan.table.len().div_ceil(RECORD_SNAPSHOTS_MAX) as u64;
        let mut shape = Shape { table, extents: 0, blocks: 0 };
        for record in self.batches(part).flatten() {
            shape.extents += 1;
            shape.blocks += record.iter().map(|(_, count)| count).sum::<u64>();
        }
        shape
    }

    pub(super) fn head(&self, part: u32, shape: &Shape) -> PartHead {
        let stream = StreamHeader { changed_blocks: shape.blocks, ..self.plan.header.clone() };
        PartHead { dump: self.dump_header(part), stream }
    }

    fn dump_header(&self, part: u32) -> DumpHeader {
        DumpHeader {
            dump: self.label.id,
            part,
            parts: self.parts,
            level: self.label.level,
            volume: self.plan.header.volume,
            name: self.label.name.clone(),
            blocks: self.plan.blocks(),
            created: self.label.created,
            snapshots: self.plan.table.len() as u64,
            table_digest: self.plan.table_digest,
        }
    }

    /// Every n-th batch: together the parts read the device in order.
    pub(super) fn batches(&self, part: u32) -> impl Iterator<Item = Batch> + Send + '_ {
        batches_of(self.plan, RECORD_BLOCKS_MAX).skip(part as usize).step_by(self.parts as usize)
    }

    /// The same without the first `skip` records; a batch may be cut.
    fn batches_behind(&self, part: u32, mut skip: usize) -> impl Iterator<Item = Batch> + Send + '_ {
        self.batches(part).filter_map(move |mut batch| {
            let cut = skip.min(batch.len());
            skip -= cut;
            batch.drain(..cut);
            (!batch.is_empty()).then_some(batch)
        })
    }
}

/// Where a record with the blocks of `runs`, not packed, ends when it begins at `at`.
fn record_end(at: u64, runs: &[Run]) -> u64 {
    let blocks: u64 = runs.iter().map(|(_, count)| *count).sum();
    let data_at = at + (RecordHeader::SIZE + runs.len() * StreamRun::SIZE) as u64;
    data_at.next_multiple_of(ALIGNMENT as u64) + blocks * BLOCK_SIZE as u64
}
