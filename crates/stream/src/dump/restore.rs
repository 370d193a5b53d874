//! Restoring: every block to its place on a device, and the superblock last.
//!
//! Dumps are read one after the other, as a later one has newer content for block numbers that were
//! used again; the parts of a dump at the same time, and their records come in any order. Until
//! [`Volume::adopt`] has written its superblock the device holds no volume.
//!
//! An interrupted restore resumes where its [`RestoreLedger`] says: each part after the last
//! durable record. Records written after that are written again. So are places that a later dump
//! has overwritten, as that dump follows again. Once a later dump has begun, an earlier one is
//! never written from again: it would put older blocks over newer ones.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use cairn_base::{BLOCK_SIZE, Timestamp, Vbn};
use cairn_device::{Block, Device, Operation};
use cairn_format::SnapshotEntry;
use cairn_volume::{FormatOptions, ReceivedImage, Role, Volume};

use super::error::DumpError;
use super::read::{Lost, PartHead, PartReached, PartReader};
use crate::apply::check_table;
use crate::consume::Runs;
use crate::error::StreamError;
use crate::work::{Helper, Progress, Threads, Work, beside};

/// Records that wait to be written, at most; past it the readers wait.
const RECORDS_AHEAD: usize = 16;
/// Records that are written in one batch, so that several writes are in flight: 8 MiB.
const RECORDS_PER_WRITE: usize = 8;
/// Batches in flight at a time, so that the device has work while the last write of one is waited
/// for.
const BATCHES: usize = 2;

/// The result of a restore.
#[derive(Debug)]
pub struct Restored {
    /// The newest dump: its target is the active state now.
    pub head: PartHead,
    /// The name of that snapshot.
    pub target: String,
    /// Snapshots in all.
    pub snapshots: u64,
    /// Blocks that were written.
    pub blocks: u64,
    /// How many of them were present when it resumed.
    pub there: u64,
    /// Bytes of all parts that were read, after the heads and the first copies of the table.
    pub bytes: u64,
    /// The unreadable stretches, with the file of each.
    pub lost: Vec<(String, Lost)>,
}

/// How far a restore is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Standing {
    /// The dump being written from, by its place among all; earlier ones are complete.
    pub dump: usize,
    /// Up to where each of its parts is written; none for one without a record yet.
    pub parts: Vec<Option<PartReached>>,
    /// Blocks that were written, of all dumps.
    pub blocks: u64,
    /// The unreadable stretches of the earlier dumps, with the file of each.
    pub lost: Vec<(String, Lost)>,
}

/// Records the progress of a restore, so that it can resume after an interruption.
pub trait RestoreLedger {
    /// Where the restore resumes.
    fn standing(&self) -> Standing;

    /// These blocks of that dump are written next, over existing ones; earlier ones may still be in
    /// flight.
    fn writing(&mut self, dump: usize, runs: &[(Vbn, Vec<Block>)]) -> Result<(), DumpError>;

    /// The device has got all blocks up to here, and the first of those that were in flight. They
    /// are durable after a flush.
    fn written(&mut self, standing: &Standing) -> Result<(), DumpError>;
}

/// Remembers nothing.
impl RestoreLedger for () {
    fn standing(&self) -> Standing {
        Standing::default()
    }

    fn writing(&mut self, _: usize, _: &[(Vbn, Vec<Block>)]) -> Result<(), DumpError> {
        Ok(())
    }

    fn written(&mut self, _: &Standing) -> Result<(), DumpError> {
        Ok(())
    }
}

/// Puts `dumps` (as [`arrange`](super::arrange) returned them) on `device`, which must be empty, as
/// a volume with a block space of `blocks` blocks. With `accept_damage` unreadable parts are left
/// out: those blocks are never served afterwards, and `volume check --deep` names them.
///
/// # Errors
/// On any of them there is no volume on the device, but where the device fails at the very end a
/// whole one. [`DumpError::Damaged`] names the first record that can't be read.
pub fn restore(
    dumps: Vec<Vec<PartReader>>,
    device: &dyn Device,
    blocks: u64,
    accept_damage: bool,
    now: Timestamp,
    work: &mut Work<'_>,
) -> Result<Restored, DumpError> {
    restore_on(dumps, device, blocks, accept_damage, now, &mut (), work)
}

/// As [`restore`], from the position in `ledger`, on a device with everything written until then.
///
/// # Errors
/// As [`restore`]; and those of the ledger.
pub fn restore_on(
    dumps: Vec<Vec<PartReader>>,
    device: &dyn Device,
    blocks: u64,
    accept_damage: bool,
    now: Timestamp,
    ledger: &mut dyn RestoreLedger,
    work: &mut Work<'_>,
) -> Result<Restored, DumpError> {
    let none = || DumpError::Stream(StreamError::Inconsistent("there is no dump"));
    let head = dumps.last().and_then(|dump| dump.first()).ok_or_else(none)?.head().clone();
    let need = dumps.iter().flatten().map(|part| part.head().stream.space_blocks).max().unwrap_or(0);
    if blocks < need {
        return Err(StreamError::TooSmall { need, have: blocks }.into());
    }
    let total = dumps.iter().filter_map(|dump| dump.first()).map(|part| part.head().dump.blocks).sum();
    let standing = ledger.standing();
    let there = standing.blocks;
    let mut writer = Writer {
        device,
        space_at: Volume::space_offset(blocks),
        limit: blocks,
        total,
        bytes: AtomicU64::new(0),
        standing,
        ledger,
    };
    let mut table = None;
    for (number, mut parts) in dumps.into_iter().enumerate().skip(writer.standing.dump) {
        writer.begin(number, &mut parts)?;
        writer.dump(&mut parts, accept_damage, work)?;
        let lost = |part: &PartReader| {
            let beside_part = |lost: &Lost| (part.file().to_owned(), lost.clone());
            part.lost().iter().map(beside_part).collect::<Vec<_>>()
        };
        writer.standing.lost.extend(parts.iter().flat_map(lost));
        let name = parts.first().map(|part| part.file().to_owned()).unwrap_or_default();
        table = Some((parts.iter().find_map(PartReader::table), name));
    }
    let (table, file) = table.ok_or_else(none)?;
    let entries: Vec<SnapshotEntry> = table.ok_or(DumpError::TableLost { file })?;
    let target = check_table(&head.stream, &entries)?;
    let snapshots = entries.len() as u64;
    let options = FormatOptions { id: head.dump.volume, blocks, role: Role::Normal };
    let image = ReceivedImage { target: head.stream.target, snapshots: entries };
    Volume::adopt(device, &options, &image, now)?;
    let bytes = writer.bytes.load(Ordering::Relaxed);
    let Standing { blocks, lost, .. } = writer.standing;
    Ok(Restored { head, target, snapshots, blocks, there, bytes, lost })
}

struct Writer<'a> {
    device: &'a dyn Device,
    space_at: u64,
    limit: u64,
    total: u64,
    /// Bytes of the parts that were read.
    bytes: AtomicU64,
    standing: Standing,
    ledger: &'a mut dyn RestoreLedger,
}

/// The blocks of a record, and up to where its part is read with it.
struct Taken {
    part: usize,
    runs: Runs,
    reached: Option<PartReached>,
}

impl Writer<'_> {
    /// Resumes a dump where it was, or begins it.
    fn begin(&mut self, number: usize, parts: &mut [PartReader]) -> Result<(), DumpError> {
        if number != self.standing.dump {
            self.standing.dump = number;
            self.standing.parts.clear();
        }
        self.standing.parts.resize(parts.len(), None);
        for (part, reached) in parts.iter_mut().zip(&self.standing.parts) {
            if let Some(reached) = reached {
                part.go_on(reached.clone())?;
            }
        }
        Ok(())
    }

    fn dump(
        &mut self,
        parts: &mut [PartReader],
        accept_damage: bool,
        work: &mut Work<'_>,
    ) -> Result<(), DumpError> {
        let Some(threads) = work.threads else {
            for (number, part) in parts.iter_mut().enumerate() {
                let before = part.bytes();
                while let Some(taken) = next(number, part, accept_damage)? {
                    self.write(vec![taken], work)?;
                }
                self.bytes.fetch_add(part.bytes() - before, Ordering::Relaxed);
            }
            return Ok(());
        };
        let (give, queue) = sync_channel(RECORDS_AHEAD);
        let stop = AtomicBool::new(false);
        let mut failures: Vec<Option<DumpError>> = parts.iter().map(|_| None).collect();
        let mut helpers: Vec<Helper<'_>> = Vec::new();
        let bytes = AtomicU64::new(0);
        for ((number, part), failure) in parts.iter_mut().enumerate().zip(&mut failures) {
            // The queue ends when every reader has dropped its end, so each must drop it at its own
            // end.
            let (give, stop, bytes) = (give.clone(), &stop, &bytes);
            helpers.push(Box::new(move || {
                *failure = read_all((number, part), accept_damage, &give, stop, bytes).err();
            }));
        }
        drop(give);
        let mut written = Ok(());
        let (writer, outcome, stopped) = (&mut *self, &mut written, &stop);
        let write = move || {
            *outcome = writer.write_all(&queue, threads, work);
            stopped.store(true, Ordering::Relaxed);
        };
        beside(threads, helpers, write)?;
        self.bytes.fetch_add(bytes.into_inner(), Ordering::Relaxed);
        // A reader whose receiver is gone has no failure of its own.
        failures.into_iter().flatten().next().map_or(Ok(()), Err)?;
        written
    }

    /// Writes the batches that come through `queue`, several at a time.
    fn write_all(
        &mut self,
        queue: &Receiver<Taken>,
        threads: &dyn Threads,
        work: &mut Work<'_>,
    ) -> Result<(), DumpError> {
        let device = self.device;
        let mut outcome = Ok(());
        let (helpers, lanes): (Vec<Helper<'_>>, Vec<Lane>) = (0..BATCHES).map(|_| lane(device)).unzip();
        let given = &mut outcome;
        beside(threads, helpers, move || *given = self.write_in(&lanes, queue, work))?;
        outcome
    }

    fn write_in(
        &mut self,
        lanes: &[Lane],
        queue: &Receiver<Taken>,
        work: &mut Work<'_>,
    ) -> Result<(), DumpError> {
        // Batches go to the lanes in turn, so they are waited for in turn.
        let (mut given, mut landed) = (0, 0);
        let outcome = loop {
            if given - landed == lanes.len() {
                let batch = lanes[landed % lanes.len()].wait();
                landed += 1;
                match batch.and_then(|batch| self.written(batch, work)) {
                    Ok(()) => continue,
                    // Records after a missing one do not count.
                    failed => return failed,
                }
            }
            let Ok(first) = queue.recv() else { break Ok(()) };
            let more = queue.try_iter().take(RECORDS_PER_WRITE - 1);
            match self.batch(std::iter::once(first).chain(more).collect(), work) {
                Ok(batch) => lanes[given % lanes.len()].give(batch),
                failed => break failed.map(drop),
            }
            given += 1;
        };
        for number in landed..given {
            let batch = lanes[number % lanes.len()].wait();
            batch.and_then(|batch| self.written(batch, work))?;
        }
        outcome
    }

    /// Writes one batch.
    fn write(&mut self, records: Vec<Taken>, work: &mut Work<'_>) -> Result<(), DumpError> {
        let mut batch = self.batch(records, work)?;
        self.device.run(&mut batch.operations);
        self.written(batch, work)
    }

    /// Records that are written next.
    fn batch(&mut self, records: Vec<Taken>, work: &mut Work<'_>) -> Result<Batch, DumpError> {
        work.go_on()?;
        let (mut runs, mut reached) = (Runs::new(), Vec::new());
        for taken in records {
            runs.extend(taken.runs);
            reached.extend(taken.reached.map(|at| (taken.part, at)));
        }
        if runs.iter().any(|(first, blocks)| first.0.saturating_add(blocks.len() as u64) > self.limit) {
            return Err(StreamError::Inconsistent("a block lies outside of the block space").into());
        }
        self.ledger.writing(self.standing.dump, &runs)?;
        let blocks: usize = runs.iter().map(|(_, blocks)| blocks.len()).sum();
        let write = |(first, blocks): (Vbn, Vec<Block>)| {
            let at = self.space_at + first.0 * BLOCK_SIZE as u64;
            Operation::write(at, blocks.into_iter().collect())
        };
        Ok(Batch { operations: runs.into_iter().map(write).collect(), blocks: blocks as u64, reached })
    }

    /// The device has run a batch, and the earlier ones.
    fn written(&mut self, batch: Batch, work: &mut Work<'_>) -> Result<(), DumpError> {
        batch.operations.into_iter().try_for_each(Operation::into_outcome)?;
        self.standing.blocks += batch.blocks;
        for (part, at) in batch.reached {
            if let Some(part) = self.standing.parts.get_mut(part) {
                *part = Some(at);
            }
        }
        self.ledger.written(&self.standing)?;
        let Standing { blocks, .. } = self.standing;
        let bytes = blocks * BLOCK_SIZE as u64;
        (work.progress)(Progress { blocks, blocks_total: self.total, bytes });
        Ok(())
    }
}

/// Records in flight to the device.
struct Batch {
    operations: Vec<Operation>,
    blocks: u64,
    reached: Vec<(usize, PartReached)>,
}

/// A thread that runs batches on the device, one after the other.
struct Lane {
    batches: SyncSender<Batch>,
    done: Receiver<Batch>,
}

fn lane(device: &dyn Device) -> (Helper<'_>, Lane) {
    let (batches, waiting) = sync_channel::<Batch>(1);
    let (give, done) = sync_channel(1);
    let run = move || {
        for mut batch in waiting {
            device.run(&mut batch.operations);
            if give.send(batch).is_err() {
                return;
            }
        }
    };
    (Box::new(run), Lane { batches, done })
}

impl Lane {
    /// [`wait`](Self::wait) reports its outcome; each batch waits for the previous one.
    fn give(&self, batch: Batch) {
        let _ = self.batches.send(batch);
    }

    fn wait(&self) -> Result<Batch, DumpError> {
        let ended = |_| StreamError::from(std::io::Error::other("a thread that writes has panicked"));
        Ok(self.done.recv().map_err(ended)?)
    }
}

fn read_all(
    (number, part): (usize, &mut PartReader),
    accept_damage: bool,
    give: &SyncSender<Taken>,
    stop: &AtomicBool,
    bytes: &AtomicU64,
) -> Result<(), DumpError> {
    let before = part.bytes();
    while let Some(taken) = next(number, part, accept_damage)? {
        if stop.load(Ordering::Relaxed) || give.send(taken).is_err() {
            break;
        }
    }
    bytes.fetch_add(part.bytes() - before, Ordering::Relaxed);
    Ok(())
}

/// The next blocks of a part. Damage ends it, unless it is accepted or costs nothing.
fn next(number: usize, part: &mut PartReader, accept_damage: bool) -> Result<Option<Taken>, DumpError> {
    let outcome = match part.extents() {
        // The records before the end are present; but not the restored ones that are not skipped
        // yet.
        Err(DumpError::Cut { .. }) if accept_damage && part.reached().is_some() => Ok(None),
        outcome => outcome,
    };
    let runs = outcome?;
    match part.lost().iter().find(|lost| !lost.spare) {
        Some(lost) if !accept_damage => {
            Err(DumpError::Damaged { file: part.file().to_owned(), lost: lost.clone() })
        }
        _ => Ok(runs.map(|runs| Taken { part: number, runs, reached: part.reached() })),
    }
}
