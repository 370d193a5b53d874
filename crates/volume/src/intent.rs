//! The intent log: a ring of records that makes flushed writes durable without a consistency point.
//!
//! A flush writes its data (each block once, at its final place) and the records that name it in one batch, with one device flush behind both.
//! A record that the power cut left without its data is told from a whole one by the checksums that it names.

use cairn_base::{BLOCK_SIZE, Generation, VolumeId};
use cairn_device::{Device, Operation, Segments};
use cairn_format::{Layout, LogEntry, LogRecord, LogRecordHeader, LogTail};

use crate::error::VolumeError;

/// Most blocks of one record: several small records pass through a small log where one large one would not fit.
const RECORD_BLOCKS_MAX: u64 = 32;
const ENTRIES_MAX: usize = (RECORD_BLOCKS_MAX as usize * BLOCK_SIZE - 64) / 48;
/// Blocks that one read of replay takes.
const SCAN_BLOCKS: u64 = 256;

/// The writing end.
pub(crate) struct LogWriter {
    volume: VolumeId,
    start: u64,
    blocks: u64,
    /// Blocks ever passed by the head and by the tail; their difference is what is in use.
    head: u64,
    tail: u64,
    next_sequence: u64,
    durable_through: u64,
}

/// Records that found room, as device operations.
pub(crate) struct Appended {
    pub(crate) operations: Vec<Operation>,
    head: u64,
    next_sequence: u64,
}

impl LogWriter {
    pub(crate) fn new(volume: VolumeId, layout: &Layout, tail: LogTail, head: LogTail) -> Self {
        let blocks = layout.log_blocks;
        let passed = (head.position + blocks - tail.position) % blocks;
        Self {
            volume,
            start: layout.log_start,
            blocks,
            head: tail.position + passed,
            tail: tail.position,
            next_sequence: head.sequence,
            durable_through: head.sequence.saturating_sub(1),
        }
    }

    /// Where the next record will stand.
    pub(crate) fn mark(&self) -> LogTail {
        LogTail { position: self.head % self.blocks, sequence: self.next_sequence }
    }

    /// True when more than half is in use: time for a consistency point.
    pub(crate) fn is_pressed(&self) -> bool {
        (self.head - self.tail) * 2 > self.blocks
    }

    pub(crate) fn used(&self) -> u64 {
        self.head - self.tail
    }

    /// Makes records of `entries`; `None` when they do not fit before the tail.
    pub(crate) fn append(&self, parts: &[(Generation, Vec<LogEntry>)]) -> Option<Appended> {
        let mut appended =
            Appended { operations: Vec::new(), head: self.head, next_sequence: self.next_sequence };
        let chunks = parts.iter().flat_map(|(generation, entries)| {
            entries.chunks(ENTRIES_MAX).map(move |chunk| (*generation, chunk))
        });
        for (generation, chunk) in chunks {
            let record = LogRecord {
                header: LogRecordHeader {
                    sequence: appended.next_sequence,
                    generation,
                    durable_through: self.durable_through,
                    entries: chunk.len() as u32,
                },
                entries: chunk.to_vec(),
            };
            let bytes = record.to_bytes(self.volume);
            let blocks = (bytes.len() / BLOCK_SIZE) as u64;
            let position = appended.head % self.blocks;
            // A record does not wrap: where it does not fit before the end it starts over at 0.
            let skipped = if position + blocks > self.blocks { self.blocks - position } else { 0 };
            // One block stays free, so that a full ring is not taken for an empty one.
            if appended.head + skipped + blocks - self.tail >= self.blocks {
                return None;
            }
            let position = (appended.head + skipped) % self.blocks;
            let offset = (self.start + position) * BLOCK_SIZE as u64;
            appended.operations.push(Operation::write(offset, Segments::copy_of(&bytes)));
            appended.head += skipped + blocks;
            appended.next_sequence += 1;
        }
        Some(appended)
    }

    /// The appended records are durable.
    pub(crate) fn appended(&mut self, head: u64, next_sequence: u64) {
        self.head = head;
        self.next_sequence = next_sequence;
        self.durable_through = next_sequence - 1;
    }

    /// A committed superblock names `tail`: everything before it can be overwritten.
    pub(crate) fn release(&mut self, tail: LogTail) {
        let passed = (tail.position + self.blocks - self.tail % self.blocks) % self.blocks;
        self.tail += passed;
    }
}

impl Appended {
    pub(crate) fn end(&self) -> (u64, u64) {
        (self.head, self.next_sequence)
    }
}

/// What replay found.
pub(crate) struct Replay {
    /// Records to apply, in order.
    pub(crate) records: Vec<LogRecord>,
    /// Records up to this sequence were surely durable; later ones count only if their data verifies.
    pub(crate) durable_through: u64,
    /// Where each record stands, in blocks of the log.
    pub(crate) positions: Vec<u64>,
    /// Where writing goes on.
    pub(crate) head: LogTail,
    /// Blocks of the log that hold remains of records after the end.
    pub(crate) remains: Vec<u64>,
}

/// Reads the log from `tail` to its end.
pub(crate) fn replay(
    device: &dyn Device,
    volume: VolumeId,
    layout: &Layout,
    tail: LogTail,
) -> Result<Replay, VolumeError> {
    let log = read_log(device, layout)?;
    let block = |position: u64| log.get(position as usize * BLOCK_SIZE..).unwrap_or(&[]);
    let record_at = |position: u64, sequence: u64| -> Option<(LogRecord, u64)> {
        let bytes = block(position);
        let (header, blocks) = LogRecordHeader::peek(bytes, volume).ok()?;
        if header.sequence != sequence {
            return None;
        }
        LogRecord::parse(bytes, volume).ok().map(|record| (record, blocks))
    };
    let mut found = Replay {
        records: Vec::new(),
        durable_through: 0,
        positions: Vec::new(),
        head: tail,
        remains: Vec::new(),
    };
    loop {
        let head = found.head;
        let next = record_at(head.position, head.sequence)
            .map(|record| (head.position, record))
            .or_else(|| record_at(0, head.sequence).map(|record| (0, record)));
        let Some((position, (record, blocks))) = next else { break };
        found.durable_through = found.durable_through.max(record.header.durable_through);
        found.head =
            LogTail { position: (position + blocks) % layout.log_blocks, sequence: head.sequence + 1 };
        found.positions.push(position);
        found.records.push(record);
    }
    // Whatever verifies beyond the end is either damage before it (it was written when the missing record was durable) or the
    // remains of a flush that the power cut: those must never be taken for the continuation of what comes now.
    for position in 0..layout.log_blocks {
        let Ok((header, _)) = LogRecordHeader::peek(block(position), volume) else { continue };
        if header.sequence < found.head.sequence {
            continue;
        }
        if let Ok(record) = LogRecord::parse(block(position), volume)
            && record.header.durable_through >= found.head.sequence
        {
            return Err(VolumeError::LogDamaged { sequence: found.head.sequence });
        }
        found.remains.push(position);
    }
    Ok(found)
}

fn read_log(device: &dyn Device, layout: &Layout) -> Result<Vec<u8>, VolumeError> {
    let mut operations: Vec<Operation> = (0..layout.log_blocks)
        .step_by(SCAN_BLOCKS as usize)
        .map(|at| {
            let blocks = SCAN_BLOCKS.min(layout.log_blocks - at);
            let offset = (layout.log_start + at) * BLOCK_SIZE as u64;
            Operation::read(offset, (blocks * BLOCK_SIZE as u64) as u32)
        })
        .collect();
    device.run(&mut operations);
    let mut log = Vec::with_capacity(layout.log_blocks as usize * BLOCK_SIZE);
    for operation in operations {
        log.extend(operation.into_data()?.to_vec());
    }
    Ok(log)
}
