//! The intent log: a ring of records that makes flushed writes durable without a consistency point.
//!
//! A flush writes its data (each block once, at its final place) and the records that name it in
//! one batch, followed by one device flush. After a power cut, the checksums in a record tell
//! whether its data was written.
//!
//! The ring is in the label area, or on a device of its own (`log_device`). Then a flush is one
//! batch on each device, both at the same time. In both cases a record can be present without its
//! data. It is trusted only when a later record says that both were durable, or when its data
//! verifies.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use cairn_base::{BLOCK_SIZE, Generation, LogId, VolumeId};
use cairn_device::{Block, Device, DeviceError, Operation, Segments};
use cairn_format::{ExternalLog, Layout, LogEntry, LogRecord, LogRecordHeader, LogTail, Superblock};

use crate::error::VolumeError;
use crate::locks::Mutex;
use crate::log::mend::Mends;
use crate::read::store::Store;

/// Most blocks of one record: several small records pass through a small log where one large one
/// would not fit.
const RECORD_BLOCKS_MAX: u64 = 32;
/// Entries of one record at most.
const ENTRIES_MAX: usize = (RECORD_BLOCKS_MAX as usize * BLOCK_SIZE - 64) / 48;
/// Blocks that one read of replay takes.
const SCAN_BLOCKS: u64 = 256;
/// The number of such pieces read at once. All at once would take the memory of a whole log twice.
const SCAN_PIECES: usize = 4;

/// Where a log is.
#[derive(Clone)]
pub(crate) struct LogArea {
    /// Its own device; none when it is in the label area of the volume's.
    external: Option<(Arc<dyn Device>, ExternalLog)>,
    start: u64,
    blocks: u64,
}

impl LogArea {
    pub(crate) fn internal(layout: &Layout) -> Self {
        Self { external: None, start: layout.log_start, blocks: layout.log_blocks }
    }

    pub(crate) fn external(device: Arc<dyn Device>, log: ExternalLog) -> Self {
        Self { external: Some((device, log)), start: log.start, blocks: log.blocks }
    }

    /// The log device as the superblock records it.
    pub(crate) fn external_log(&self) -> Option<ExternalLog> {
        self.external.as_ref().map(|(_, log)| *log)
    }

    /// Its own device, if it has one.
    pub(crate) fn log_device(&self) -> Option<&Arc<dyn Device>> {
        self.external.as_ref().map(|(device, _)| device)
    }

    /// The device that has it; `main` is the volume's.
    fn device<'a>(&'a self, main: &'a dyn Device) -> &'a dyn Device {
        self.external.as_ref().map_or(main, |(device, _)| &**device)
    }

    /// An error of its device.
    fn error(&self, error: DeviceError) -> VolumeError {
        match self.external {
            Some(_) => VolumeError::LogDevice(error),
            None => VolumeError::Device(error),
        }
    }

    /// Makes all of it zero, durably: no record of an earlier time can be taken for one of now.
    pub(crate) fn zero(&self, main: &dyn Device) -> Result<(), VolumeError> {
        zero_ring(self.device(main), self.start, self.blocks).map_err(|error| self.error(error))
    }

    /// The first blocks of records that must never be read again, by their offsets on its device,
    /// with their new content.
    pub(crate) fn erasures(&self, positions: &[u64]) -> Vec<(u64, Block)> {
        let erased = |position: &u64| ((self.start + position) * BLOCK_SIZE as u64, Block::zero());
        positions.iter().map(erased).collect()
    }

    /// Overwrites these, durably.
    pub(crate) fn erase(&self, main: &dyn Device, positions: &[u64]) -> Result<(), VolumeError> {
        let mut mends = Mends::default();
        mends.push(self.erasures(positions));
        mends.write(self.device(main)).map_err(|error| self.error(error))
    }
}

impl std::fmt::Debug for LogArea {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LogArea({:?}, {}+{})", self.external_log(), self.start, self.blocks)
    }
}

/// Zeroes the blocks of a ring and makes that durable.
pub(crate) fn zero_ring(device: &dyn Device, start: u64, blocks: u64) -> Result<(), DeviceError> {
    device.one(Operation::new(cairn_device::Request::WriteZeroes {
        offset: start * BLOCK_SIZE as u64,
        length: blocks * BLOCK_SIZE as u64,
        may_trim: false,
        fua: false,
    }))?;
    device.flush()
}

/// The writing end.
pub(crate) struct LogWriter {
    volume: VolumeId,
    shown: Arc<Mutex<LogUse>>,
    area: LogArea,
    blocks: u64,
    /// The place of the log once a superblock names it. Until then no record is written: a record
    /// here would be lost, and replay would not look there.
    next: Option<LogArea>,
    /// Its device failed: no record is written any more.
    failed: Option<DeviceError>,
    /// Places, in blocks of the log, of the records of a flush whose data found no room. That flush
    /// was never acknowledged. They are erased before the next record is written: one of another
    /// length may start elsewhere, and replay would find these instead.
    spoiled: Vec<u64>,
    /// Blocks ever passed by the head and by the tail; their difference is the used part.
    head: u64,
    tail: u64,
    next_sequence: u64,
    durable_through: u64,
}

/// The state of a log that is visible without waiting for a flush: the writer is locked for as long
/// as the device takes, possibly for ever.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogUse {
    /// Blocks in use.
    pub(crate) used: u64,
    pub(crate) blocks: u64,
    /// The log that is on a device of its own.
    pub(crate) device: Option<LogId>,
}

/// Records that found room, as device operations.
pub(crate) struct Appended {
    operations: Vec<Operation>,
    /// The place of each record, in blocks of the log.
    positions: Vec<u64>,
    head: u64,
    next_sequence: u64,
}

impl LogWriter {
    pub(crate) fn new(volume: VolumeId, area: LogArea, tail: LogTail, head: LogTail) -> Self {
        let blocks = area.blocks;
        let passed = (head.position + blocks - tail.position) % blocks;
        let shown = LogUse { used: passed, blocks, device: area.external_log().map(|log| log.id) };
        Self {
            volume,
            shown: Arc::new(Mutex::new(shown)),
            area,
            blocks,
            next: None,
            failed: None,
            spoiled: Vec::new(),
            head: tail.position + passed,
            tail: tail.position,
            next_sequence: head.sequence,
            durable_through: head.sequence.saturating_sub(1),
        }
    }

    /// The place of the next record.
    pub(crate) fn mark(&self) -> LogTail {
        LogTail { position: self.head % self.blocks, sequence: self.next_sequence }
    }

    /// True when more than half is in use: time for a consistency point.
    pub(crate) fn is_pressed(&self) -> bool {
        (self.head - self.tail) * 2 > self.blocks
    }

    /// Where to look without the writer.
    pub(crate) fn shown(&self) -> Arc<Mutex<LogUse>> {
        self.shown.clone()
    }

    /// Its place in the ring, or the ring, is another one.
    fn show(&self) {
        *self.shown.lock() = LogUse {
            used: self.head - self.tail,
            blocks: self.blocks,
            device: self.area.external_log().map(|log| log.id),
        };
    }

    pub(crate) fn area(&self) -> &LogArea {
        &self.area
    }

    /// True when the device of the log failed, and the log must go elsewhere.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// From now on no record is written, until a superblock is committed: then the log is at
    /// `next`.
    pub(crate) fn leave_for(&mut self, next: LogArea) {
        self.next = Some(next);
    }

    /// Makes records of `parts`, which hold together if they are to be `whole`; `None` when they do
    /// not fit before the tail, or no record may be written now.
    pub(crate) fn append(&self, parts: &[(Generation, Vec<LogEntry>)], whole: bool) -> Option<Appended> {
        if self.next.is_some() || self.failed.is_some() || !self.spoiled.is_empty() {
            return None;
        }
        let (head, next_sequence) = (self.head, self.next_sequence);
        let mut appended = Appended { operations: Vec::new(), positions: Vec::new(), head, next_sequence };
        let chunks: Vec<_> = parts
            .iter()
            .flat_map(|(generation, entries)| chunks_of(entries).map(move |chunk| (*generation, chunk)))
            .collect();
        // A change of names is several entries, which must not be torn apart, as those of an atomic
        // write.
        let has_inodes = |(_, chunk): &(Generation, &[LogEntry])| {
            chunk.iter().any(|entry| matches!(entry, LogEntry::Inode(_)))
        };
        let is_group = whole || chunks.iter().any(has_inodes);
        let records = chunks.len();
        for (index, (generation, chunk)) in chunks.into_iter().enumerate() {
            let record = LogRecord {
                header: LogRecordHeader {
                    sequence: appended.next_sequence,
                    generation,
                    durable_through: self.durable_through,
                    entries: LogRecord::slots(chunk) as u32,
                    continues: is_group && index + 1 < records,
                },
                entries: chunk.to_vec(),
            };
            let bytes = record.to_bytes(self.volume);
            let blocks = (bytes.len() / BLOCK_SIZE) as u64;
            let position = appended.head % self.blocks;
            // A record does not wrap: if it does not fit before the end it starts over at 0.
            let skipped = if position + blocks > self.blocks { self.blocks - position } else { 0 };
            // One block stays free, so that a full ring is not taken for an empty one.
            if appended.head + skipped + blocks - self.tail >= self.blocks {
                return None;
            }
            let position = (appended.head + skipped) % self.blocks;
            let offset = (self.area.start + position) * BLOCK_SIZE as u64;
            appended.operations.push(Operation::write(offset, Segments::copy_of(&bytes)));
            appended.positions.push(position);
            appended.head += skipped + blocks;
            appended.next_sequence += 1;
        }
        Some(appended)
    }

    /// Writes the data of a flush and its records, and makes both durable. False when the data is
    /// present without a record: there was no room, or the log's own device failed, which the
    /// volume can do without.
    ///
    /// # Errors
    /// The volume's device failed. Without room ([`VolumeError::NoRoomBelow`]) nothing more is
    /// durable than before, and no record of it stays.
    pub(crate) fn write_out(
        &mut self,
        store: &Store,
        mut data: Vec<Operation>,
        appended: Option<Appended>,
    ) -> Result<bool, VolumeError> {
        let Some(Appended { operations: mut records, positions, head, next_sequence }) = appended else {
            return store.run(data).map(|()| false).map_err(VolumeError::of_room);
        };
        match self.area.log_device().filter(|_| !records.is_empty()) {
            None => {
                data.extend(records);
                data.push(Operation::flush());
                if let Err(error) = store.run(data) {
                    return Err(self.spoil(store, positions, error));
                }
            }
            Some(device) => {
                records.push(Operation::flush());
                data.push(Operation::flush());
                // At the same time: the data's checksums reveal a record without its data.
                let begun = device.begin(records);
                let written = store.run(data);
                let logged = begun.wait();
                if let Err(error) = written {
                    return Err(self.spoil(store, positions, error));
                }
                if let Err(error) = logged {
                    tracing::error!(%error, "the device of the intent log failed; the log moves to the volume's own device");
                    self.failed = Some(error);
                    return Ok(false);
                }
            }
        }
        // Only now: a later record states that the data of these need not be checked.
        self.head = head;
        self.next_sequence = next_sequence;
        self.durable_through = next_sequence - 1;
        self.show();
        Ok(true)
    }

    /// The data of a flush could not be written. After a lack of room its records, which may exist,
    /// are erased at once.
    fn spoil(&mut self, store: &Store, positions: Vec<u64>, error: VolumeError) -> VolumeError {
        if !error.is_room() {
            return error;
        }
        self.spoiled.extend(positions);
        self.erase_spoiled(store).err().unwrap_or(VolumeError::NoRoomBelow)
    }

    /// Erases the possible remains of a flush without room, durably.
    ///
    /// # Errors
    /// [`VolumeError::NoRoomBelow`]: they still exist, and no record is written before they are
    /// erased. Any other: the volume's device failed.
    pub(crate) fn erase_spoiled(&mut self, store: &Store) -> Result<(), VolumeError> {
        if self.spoiled.is_empty() {
            return Ok(());
        }
        let mut operations: Vec<Operation> = self
            .area
            .erasures(&self.spoiled)
            .into_iter()
            .map(|(offset, block)| Operation::write(offset, Segments::from(block)))
            .collect();
        operations.push(Operation::flush());
        match self.area.log_device() {
            None => store.run(operations).map_err(VolumeError::of_room)?,
            Some(device) => {
                // A failed log is abandoned and never read again.
                let erased = device.begin(operations).wait();
                self.failed = self.failed.take().or(erased.err());
            }
        }
        self.spoiled.clear();
        Ok(())
    }

    /// The superblock with the new place of the log is not written: the log stays in its place.
    pub(crate) fn stay(&mut self) {
        self.next = None;
    }

    /// A superblock is committed: everything before its tail can be overwritten, or the log has
    /// moved.
    pub(crate) fn committed(&mut self, superblock: &Superblock) {
        let tail = superblock.log_tail;
        if let Some(area) = self.next.take() {
            *self = Self { shown: self.shown.clone(), ..Self::new(self.volume, area, tail, tail) };
        } else {
            let passed = (tail.position + self.blocks - self.tail % self.blocks) % self.blocks;
            self.tail += passed;
        }
        self.show();
    }
}

/// Entries in pieces that fit into a record each.
fn chunks_of(mut entries: &[LogEntry]) -> impl Iterator<Item = &[LogEntry]> {
    std::iter::from_fn(move || {
        let mut slots = 0;
        let fits = entries.iter().take_while(|entry| {
            slots += entry.slots();
            slots <= ENTRIES_MAX
        });
        let (chunk, rest) = entries.split_at(fits.count());
        entries = rest;
        (!chunk.is_empty()).then_some(chunk)
    })
}

/// The result of replay.
pub(crate) struct Replay {
    /// Records to apply, in order.
    pub(crate) records: Vec<LogRecord>,
    /// Records up to this sequence were surely durable; later ones count only if their data
    /// verifies.
    pub(crate) durable_through: u64,
    /// The place of each record, in blocks of the log.
    pub(crate) positions: Vec<u64>,
    /// The place where writing resumes.
    pub(crate) head: LogTail,
    /// Blocks of the log that hold remains of records after the end.
    pub(crate) remains: Vec<u64>,
}

impl Replay {
    /// For a log without records, whose next record is that of `tail`.
    pub(crate) fn empty(tail: LogTail) -> Self {
        let (records, positions, remains) = (Vec::new(), Vec::new(), Vec::new());
        Self { records, durable_through: 0, positions, head: tail, remains }
    }
}

/// Generations that records can be ahead of the newest superblock: one that is being committed, one
/// that writes go to meanwhile, and one for a superblock that was durable in a slot alone that is
/// damaged now.
const AHEAD: u64 = 3;

/// Reads the log from `tail` to its end, of a volume that is at generation `committed`. A place
/// that can't be read and has no record up to there is as good as one that has none.
///
/// # Errors
/// The device error for a place that holds a record, or would hold the next one, and cannot be
/// read: that record may have been flushed. [`VolumeError::OlderThanLog`] when a record has a
/// generation that could not have begun: its changes belong to another state of the volume than the
/// present one.
pub(crate) fn replay(
    device: &dyn Device,
    volume: VolumeId,
    area: &LogArea,
    tail: LogTail,
    committed: Generation,
) -> Result<Replay, VolumeError> {
    let Log { bytes, unread } = read_log(area.device(device), area).map_err(|error| area.error(error))?;
    let block = |position: u64| bytes.get(position as usize * BLOCK_SIZE..).unwrap_or(&[]);
    let record_at = |position: u64, sequence: u64| -> Option<(LogRecord, u64)> {
        let bytes = block(position);
        let (header, blocks) = LogRecordHeader::peek(bytes, volume).ok()?;
        if header.sequence != sequence {
            return None;
        }
        LogRecord::parse(bytes, volume).ok().map(|record| (record, blocks))
    };
    let mut found = Replay::empty(tail);
    loop {
        let head = found.head;
        let next = record_at(head.position, head.sequence)
            .map(|record| (head.position, record))
            .or_else(|| record_at(0, head.sequence).map(|record| (0, record)));
        let Some((position, (record, blocks))) = next else { break };
        found.durable_through = found.durable_through.max(record.header.durable_through);
        found.head = LogTail { position: (position + blocks) % area.blocks, sequence: head.sequence + 1 };
        found.positions.push(position);
        found.records.push(record);
    }
    let head = found.head;
    let hidden_at = |position: u64| {
        let header = LogRecordHeader::peek(block(position), volume).ok();
        let own = header.filter(|(header, _)| header.sequence == head.sequence);
        let blocks = own.map_or(1, |(_, blocks)| blocks);
        unread.range(position..position.saturating_add(blocks)).next().map(|(_, error)| error)
    };
    let may_wrap = head.position + RECORD_BLOCKS_MAX > area.blocks;
    let hidden = hidden_at(head.position).or_else(|| hidden_at(0).filter(|_| may_wrap));
    if let Some(error) = hidden {
        return Err(area.error(error.clone()));
    }
    // A record that verifies beyond the end has one of two causes. Either a record before it is
    // damaged (which was durable when this one was written), or it remains from a flush that a
    // power cut interrupted. The latter must never count as a continuation of later records.
    for position in 0..area.blocks {
        let Ok((header, _)) = LogRecordHeader::peek(block(position), volume) else { continue };
        if header.sequence < tail.sequence {
            continue;
        }
        let record = LogRecord::parse(block(position), volume).ok();
        if let Some(record) =
            record.as_ref().filter(|record| record.header.generation.0 > committed.0 + AHEAD)
        {
            return Err(VolumeError::OlderThanLog { volume: committed, log: record.header.generation });
        }
        if header.sequence < found.head.sequence {
            continue;
        }
        if record.is_some_and(|record| record.header.durable_through >= found.head.sequence) {
            return Err(VolumeError::LogDamaged { sequence: found.head.sequence });
        }
        found.remains.push(position);
    }
    // An unreadable record may be readable another time.
    found.remains.extend(unread.into_keys());
    Ok(found)
}

/// All blocks of a log.
struct Log {
    /// Zeroes where a block can't be read.
    bytes: Vec<u8>,
    /// Why, by the number of the block.
    unread: BTreeMap<u64, DeviceError>,
}

/// Reads all of a log. A stretch that can't be read is read block by block, unless neither of its
/// ends can be: then the device does not answer.
fn read_log(device: &dyn Device, area: &LogArea) -> Result<Log, DeviceError> {
    let mut pieces: VecDeque<Range<u64>> = (0..area.blocks)
        .step_by(SCAN_BLOCKS as usize)
        .map(|at| at..(at + SCAN_BLOCKS).min(area.blocks))
        .collect();
    let read = |blocks: &Range<u64>| {
        let bytes = (blocks.end - blocks.start) * BLOCK_SIZE as u64;
        Operation::read((area.start + blocks.start) * BLOCK_SIZE as u64, bytes as u32)
    };
    let mut log =
        Log { bytes: Vec::with_capacity(area.blocks as usize * BLOCK_SIZE), unread: BTreeMap::new() };
    while !pieces.is_empty() {
        let some: Vec<Range<u64>> = pieces.drain(..pieces.len().min(SCAN_PIECES)).collect();
        let mut operations: Vec<Operation> = some.iter().map(read).collect();
        device.run(&mut operations);
        for (blocks, operation) in some.into_iter().zip(operations) {
            match operation.into_data() {
                Ok(data) => log.bytes.extend(data.to_vec()),
                Err(error) => {
                    let one = |at: u64| device.read((area.start + at) * BLOCK_SIZE as u64, BLOCK_SIZE as u32);
                    if one(blocks.start).is_err() && one(blocks.end - 1).is_err() {
                        return Err(error);
                    }
                    for at in blocks {
                        let found = one(at).map(|data| data.to_vec());
                        log.bytes.extend(found.unwrap_or_else(|error| {
                            log.unread.insert(at, error);
                            vec![0; BLOCK_SIZE]
                        }));
                    }
                }
            }
        }
    }
    for (at, error) in &log.unread {
        tracing::error!(block = at, %error, "a block of the intent log can't be read");
    }
    Ok(log)
}
