//! Restoring: every block to its place on a device, and the superblock last.
//!
//! Dumps are read one after the other, as a later one has newer content for block numbers that were used again; the parts of a dump
//! at the same time, and their records come in any order. Until [`Volume::adopt`] has written its superblock the
//! device holds no volume: a restore that is cut starts over.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use cairn_base::{BLOCK_SIZE, Timestamp};
use cairn_device::{Device, Operation};
use cairn_format::SnapshotEntry;
use cairn_volume::{FormatOptions, ReceivedImage, Role, Volume};

use super::error::DumpError;
use super::read::{Lost, PartHead, PartReader, Runs};
use crate::apply::check_table;
use crate::error::StreamError;
use crate::work::{Progress, Threads, Work};

/// Records that wait to be written, at most; past it the readers wait.
const RECORDS_AHEAD: usize = 16;
/// Records that are written at once, so that several writes are under way: 8 MiB.
const RECORDS_PER_WRITE: usize = 8;

/// What was restored.
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
    /// Bytes of all parts.
    pub bytes: u64,
    /// What could not be read, with the file that it was in.
    pub lost: Vec<(String, Lost)>,
}

/// Puts `dumps` (as [`arrange`](super::arrange) made them) on `device`, which must be empty, as a volume with a block space of `blocks` blocks. With
/// `accept_damage` what can't be read is left out: those blocks are never served afterwards, and `volume check --deep` names them.
///
/// # Errors
/// On any of them there is no volume on the device. [`DumpError::Damaged`] names the first record that can't be read.
pub fn restore(
    dumps: Vec<Vec<PartReader>>,
    device: &dyn Device,
    blocks: u64,
    accept_damage: bool,
    now: Timestamp,
    work: &mut Work<'_>,
) -> Result<Restored, DumpError> {
    let none = || DumpError::Stream(StreamError::Inconsistent("there is no dump"));
    let head = dumps.last().and_then(|dump| dump.first()).ok_or_else(none)?.head().clone();
    let need = dumps.iter().flatten().map(|part| part.head().stream.space_blocks).max().unwrap_or(0);
    if blocks < need {
        return Err(StreamError::TooSmall { need, have: blocks }.into());
    }
    let total = dumps.iter().filter_map(|dump| dump.first()).map(|part| part.head().dump.blocks).sum();
    let mut writer = Writer {
        device,
        space_at: Volume::space_offset(blocks),
        limit: blocks,
        blocks: 0,
        total,
        bytes: AtomicU64::new(0),
    };
    let mut lost = Vec::new();
    let mut table = None;
    for mut parts in dumps {
        writer.dump(&mut parts, accept_damage, work)?;
        for part in &parts {
            lost.extend(part.lost().iter().map(|lost| (part.file().to_owned(), lost.clone())));
        }
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
    Ok(Restored { head, target, snapshots, blocks: writer.blocks, bytes, lost })
}

struct Writer<'a> {
    device: &'a dyn Device,
    space_at: u64,
    limit: u64,
    blocks: u64,
    total: u64,
    /// Bytes of the parts that were read.
    bytes: AtomicU64,
}

impl Writer<'_> {
    fn dump(
        &mut self,
        parts: &mut [PartReader],
        accept_damage: bool,
        work: &mut Work<'_>,
    ) -> Result<(), DumpError> {
        let Some(threads) = work.threads else {
            for part in parts {
                let before = part.bytes();
                while let Some(runs) = next(part, accept_damage)? {
                    self.write(vec![runs], work)?;
                }
                self.bytes.fetch_add(part.bytes() - before, Ordering::Relaxed);
            }
            return Ok(());
        };
        let (give, queue) = sync_channel(RECORDS_AHEAD);
        let stop = AtomicBool::new(false);
        let mut failures: Vec<Option<DumpError>> = parts.iter().map(|_| None).collect();
        let mut tasks: Vec<Task<'_>> = Vec::new();
        let bytes = AtomicU64::new(0);
        for (part, failure) in parts.iter_mut().zip(&mut failures) {
            // The queue ends when every reader has let go of its end, so each must at its own end.
            let (mut give, stop, bytes) = (Some(give.clone()), &stop, &bytes);
            tasks.push(Box::new(move || {
                if let Some(give) = give.take() {
                    *failure = read_all(part, accept_damage, &give, stop, bytes).err();
                }
            }));
        }
        drop(give);
        let mut queue = Some(queue);
        let mut written = Ok(());
        let mut write = || {
            if let Some(queue) = queue.take() {
                written = self.write_all(&queue, work);
            }
            stop.store(true, Ordering::Relaxed);
        };
        beside_all(threads, &mut tasks, &mut write);
        drop(tasks);
        self.bytes.fetch_add(bytes.into_inner(), Ordering::Relaxed);
        // A reader that found nobody to give to has no failure of its own.
        failures.into_iter().flatten().next().map_or(Ok(()), Err)?;
        written
    }

    fn write_all(&mut self, queue: &Receiver<Runs>, work: &mut Work<'_>) -> Result<(), DumpError> {
        while let Ok(first) = queue.recv() {
            let more = queue.try_iter().take(RECORDS_PER_WRITE - 1);
            self.write(std::iter::once(first).chain(more).collect(), work)?;
        }
        Ok(())
    }

    fn write(&mut self, records: Vec<Runs>, work: &mut Work<'_>) -> Result<(), DumpError> {
        work.go_on()?;
        let mut batch = Vec::new();
        for (first, blocks) in records.into_iter().flatten() {
            let count = blocks.len() as u64;
            if first.0.saturating_add(count) > self.limit {
                return Err(StreamError::Inconsistent("a block lies outside of the block space").into());
            }
            let at = self.space_at + first.0 * BLOCK_SIZE as u64;
            batch.push(Operation::write(at, blocks.into_iter().collect()));
            self.blocks += count;
        }
        self.device.run(&mut batch);
        batch.into_iter().try_for_each(Operation::into_outcome)?;
        let bytes = self.blocks * BLOCK_SIZE as u64;
        (work.progress)(Progress { blocks: self.blocks, blocks_total: self.total, bytes });
        Ok(())
    }
}

type Task<'a> = Box<dyn FnMut() + Send + 'a>;

/// Runs every task on a thread of its own, and `own` on this one.
fn beside_all(threads: &dyn Threads, tasks: &mut [Task<'_>], own: &mut dyn FnMut()) {
    match tasks.split_first_mut() {
        None => own(),
        Some((first, rest)) => threads.beside(first, &mut || beside_all(threads, rest, own)),
    }
}

fn read_all(
    part: &mut PartReader,
    accept_damage: bool,
    give: &SyncSender<Runs>,
    stop: &AtomicBool,
    bytes: &AtomicU64,
) -> Result<(), DumpError> {
    let before = part.bytes();
    while let Some(runs) = next(part, accept_damage)? {
        if stop.load(Ordering::Relaxed) || give.send(runs).is_err() {
            break;
        }
    }
    bytes.fetch_add(part.bytes() - before, Ordering::Relaxed);
    Ok(())
}

/// The next blocks of a part. Damage ends it, unless it is accepted or costs nothing.
fn next(part: &mut PartReader, accept_damage: bool) -> Result<Option<Runs>, DumpError> {
    let outcome = match part.extents() {
        // What comes before the end is there.
        Err(DumpError::Cut { .. }) if accept_damage => Ok(None),
        outcome => outcome,
    };
    let runs = outcome?;
    match part.lost().iter().find(|lost| !lost.spare) {
        Some(lost) if !accept_damage => {
            Err(DumpError::Damaged { file: part.file().to_owned(), lost: lost.clone() })
        }
        _ => Ok(runs),
    }
}
