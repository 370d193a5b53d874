//! Writing a dump: its parts side by side, each with every n-th batch of records.

use std::io::Write;

use cairn_base::{BLOCK_SIZE, Timestamp};
use cairn_format::SnapshotEntry;
use cairn_format::dump::{DumpHeader, DumpId, DumpLevel, PARTS_MAX};
use cairn_format::stream::{RECORD_SNAPSHOTS_MAX, RecordHeader, StreamHeader, StreamRun, StreamTrailer};

use crate::encode::{Batch, Compression, batches_of, each_record};
use crate::error::{AbortReason, StreamError};
use crate::gauge::Gauge;
use crate::plan::Plan;
use crate::produce::{Produced, Sender, abort_header};
use crate::work::Work;

/// Which dump it is.
#[derive(Debug, Clone)]
pub struct DumpLabel {
    /// At random.
    pub id: DumpId,
    /// What it is made against.
    pub level: DumpLevel,
    /// What the volume is called.
    pub name: String,
    /// Now.
    pub created: Timestamp,
}

/// A dump before it is written.
///
/// A dump to one file, with a plan made by [`Plan::against`] (or any other: the reader of an incremental dump needs those before it):
/// `Dump::new(&plan, label, 1).write_part(0, &mut file, Compression::Zstd, &mut work)`.
pub struct Dump<'a> {
    plan: &'a Plan,
    label: DumpLabel,
    parts: u32,
}

impl<'a> Dump<'a> {
    /// A dump of what `plan` found, in `parts` parts (1 to [`PARTS_MAX`]).
    pub fn new(plan: &'a Plan, label: DumpLabel, parts: u32) -> Self {
        Self { plan, label, parts: parts.clamp(1, PARTS_MAX) }
    }

    /// Bytes of all parts when nothing is compressed: exact.
    pub fn bytes(&self) -> u64 {
        let extents: u64 = batches_of(self.plan).flatten().map(|runs| record_bytes(&runs)).sum();
        let entries = self.plan.table.len();
        let table =
            entries.div_ceil(RECORD_SNAPSHOTS_MAX) * RecordHeader::SIZE + entries * SnapshotEntry::SIZE;
        let heads = DumpHeader::SIZE + StreamHeader::SIZE;
        let each = 2 * heads + 2 * table + RecordHeader::SIZE + StreamTrailer::SIZE;
        extents + u64::from(self.parts) * each as u64
    }

    /// Blocks in all parts.
    pub fn blocks(&self) -> u64 {
        self.plan.blocks()
    }

    /// Writes one part and flushes the writer. Parts may be written at the same time, each by a thread of its own.
    ///
    /// # Errors
    /// When the volume can't be read or the work is cancelled, the part ends with a record that says so.
    pub fn write_part(
        &self,
        part: u32,
        out: &mut dyn Write,
        compression: Compression,
        work: &mut Work<'_>,
    ) -> Result<Produced, StreamError> {
        let mut sender = Sender::new(out, Some(self.label.id));
        let written = self.write_records(part, &mut sender, compression, work);
        if let Err(error) = written {
            let reason = match error {
                StreamError::Cancelled => AbortReason::Cancelled,
                _ => AbortReason::ReadFailed,
            };
            // What could not be written can't be told either; the reader then misses the trailer.
            let _ = sender.out.write_all(&abort_header(reason).to_bytes_in(self.label.id));
            let _ = sender.out.flush();
            return Err(error);
        }
        sender.out.flush()?;
        Ok(sender.produced())
    }

    fn write_records(
        &self,
        part: u32,
        sender: &mut Sender<'_>,
        compression: Compression,
        work: &mut Work<'_>,
    ) -> Result<(), StreamError> {
        let plan = self.plan;
        let blocks = self.batches(part).flatten().flatten().map(|(_, count)| count).sum();
        let header = StreamHeader { changed_blocks: blocks, ..plan.header.clone() };
        let head = [&self.head(part).to_bytes()[..], &header.to_bytes()].concat();
        sender.raw(&head)?;
        sender.entries(&plan.table, work)?;
        each_record(plan, || self.batches(part), (compression, &Gauge::new()), work, &mut |ready, work| {
            sender.tell_and_send(ready, blocks, work)
        })?;
        if sender.blocks != blocks {
            return Err(StreamError::Inconsistent("blocks were left out"));
        }
        sender.entries(&plan.table, work)?;
        sender.trailer(plan.table_digest)?;
        sender.raw(&head)
    }

    fn head(&self, part: u32) -> DumpHeader {
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
    fn batches(&self, part: u32) -> impl Iterator<Item = Batch> + Send + '_ {
        batches_of(self.plan).skip(part as usize).step_by(self.parts as usize)
    }
}

fn record_bytes(runs: &[cairn_volume::Run]) -> u64 {
    let blocks: u64 = runs.iter().map(|(_, count)| *count).sum();
    (RecordHeader::SIZE + runs.len() * StreamRun::SIZE) as u64 + blocks * BLOCK_SIZE as u64
}
