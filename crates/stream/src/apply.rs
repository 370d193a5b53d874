//! Applying a stream to a destination: blocks as they come, then the snapshot table, the root and
//! the cursor in one commit.

use std::collections::{BTreeMap, HashSet};
use std::io::Read;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use cairn_base::SnapshotId;
use cairn_format::stream::{StreamHeader, StreamKind, root_digest, table_digest};
use cairn_format::{POINTERS_PER_INDEX, SNAPSHOTS_PER_BLOCK, SnapshotEntry, TableRef};
use cairn_volume::{ReceivedImage, Receiver, Volume, VolumeError, is_snapshot_name};

use crate::consume::{Consumer, Record, Runs};
use crate::error::StreamError;
use crate::work::{Helper, Progress, Work, beside};

/// Records that wait to be written, at most; past it the wire waits.
const RECORDS_AHEAD: usize = 8;
/// The largest number of snapshots in any volume, limited by the index in a superblock.
pub(crate) const SNAPSHOTS_MAX: usize = TableRef::INDEXES_MAX * POINTERS_PER_INDEX * SNAPSHOTS_PER_BLOCK;

/// The result of applying a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// The snapshot that is shown now.
    pub target: SnapshotId,
    /// Its name.
    pub name: String,
    /// From nothing, or from a base.
    pub kind: StreamKind,
    /// Bytes of the stream.
    pub bytes: u64,
    /// Blocks in it.
    pub blocks: u64,
}

/// The snapshot table as records change it.
struct Table {
    entries: BTreeMap<SnapshotId, SnapshotEntry>,
}

/// Reads a stream to its end and commits its image to `volume`. On any error the volume still shows
/// the previous image.
pub fn apply(
    input: &mut dyn Read,
    volume: &Arc<Volume>,
    work: &mut Work<'_>,
) -> Result<Applied, StreamError> {
    apply_to(input, volume.receive()?, work)
}

/// [`apply`] to a transfer that has begun: the stream may omit blocks that it has already.
pub fn apply_to(
    input: &mut dyn Read,
    receiver: Receiver,
    work: &mut Work<'_>,
) -> Result<Applied, StreamError> {
    apply_keeping(input, receiver, Keeps { locked: &|_| false, admits: &|_| true }, work)
}

/// The parts of this side's state that an image must leave in place to be committed, whatever the
/// other side says.
#[derive(Clone, Copy)]
pub struct Keeps<'a> {
    /// A snapshot here that the image must have too, unchanged.
    pub locked: &'a dyn Fn(&SnapshotEntry) -> bool,
    /// Whether an image with these snapshots may be shown. Asked once everything has arrived, right
    /// before the commit.
    pub admits: &'a dyn Fn(&[SnapshotEntry]) -> bool,
}

/// [`apply_to`] that refuses to commit an image which changes the state named by `keeps`.
///
/// # Errors
/// [`StreamError::Locked`] with the first snapshot that it lacks; [`StreamError::Renamed`];
/// [`StreamError::NotAdmitted`].
pub fn apply_keeping(
    input: &mut dyn Read,
    mut receiver: Receiver,
    keeps: Keeps<'_>,
    work: &mut Work<'_>,
) -> Result<Applied, StreamError> {
    let locked = keeps.locked;
    let volume = receiver.volume().clone();
    let mut consumer = Consumer::open(input)?;
    let header = consumer.header().clone();
    let here = volume.snapshot_entries();
    check_header(&header, &volume, &here)?;
    let kept: Vec<SnapshotEntry> = here.iter().filter(|entry| locked(entry)).cloned().collect();
    let mut table = Table { entries: here.into_iter().map(|entry| (entry.id, entry)).collect() };
    match work.threads {
        None => {
            let mut write = |runs: Runs| receiver.write_runs(runs).map_err(StreamError::from);
            take_records(&mut consumer, &mut table, &mut write, work)?;
        }
        Some(threads) => {
            let (ahead, queue) = sync_channel::<Runs>(RECORDS_AHEAD);
            let (mut written, mut read) = (Ok(()), Ok(()));
            let (writer, outcome): (&mut Receiver, _) = (&mut receiver, &mut written);
            let write_all: Helper<'_> = Box::new(move || {
                *outcome = queue.into_iter().try_for_each(|runs| writer.write_runs(runs));
            });
            let (consumer, table, outcome) = (&mut consumer, &mut table, &mut read);
            let read_all = move || {
                // The other side is gone only when it has failed, and its error is returned below.
                let mut write = |runs: Runs| ahead.send(runs).map_err(|_| StreamError::Cancelled);
                *outcome = take_records(consumer, table, &mut write, work);
            };
            beside(threads, vec![write_all], read_all)?;
            written?;
            read?;
        }
    }
    for kept in &kept {
        let there = table.entries.get(&kept.id);
        if !there.is_some_and(|there| root_digest(there) == root_digest(kept)) {
            return Err(StreamError::Locked { snapshot: kept.id });
        }
        // Under another name its users would not find it, and under one that mirrors assign it
        // would not be locked.
        if there.is_some_and(|there| there.name != kept.name) {
            return Err(StreamError::Renamed { snapshot: kept.id });
        }
    }
    let entries: Vec<SnapshotEntry> = table.entries.into_values().collect();
    let name = check_table(&header, &entries)?;
    if !(keeps.admits)(&entries) {
        return Err(StreamError::NotAdmitted);
    }
    receiver.commit(ReceivedImage { target: header.target, snapshots: entries })?;
    Ok(Applied {
        target: header.target,
        name,
        kind: header.kind,
        bytes: consumer.bytes(),
        blocks: consumer.blocks(),
    })
}

fn check_header(header: &StreamHeader, volume: &Volume, here: &[SnapshotEntry]) -> Result<(), StreamError> {
    if header.volume != volume.id() {
        return Err(StreamError::WrongVolume { expected: volume.id(), found: header.volume });
    }
    let have = volume.space_blocks();
    if header.space_blocks > have {
        return Err(StreamError::TooSmall { need: header.space_blocks, have });
    }
    let base = here.iter().find(|entry| entry.id == header.base);
    match (header.kind, base) {
        (StreamKind::Full, _) => Ok(()),
        (StreamKind::Incremental, Some(base)) if root_digest(base) == header.base_digest => Ok(()),
        (StreamKind::Incremental, Some(_)) => Err(StreamError::Diverged { snapshot: header.base }),
        (StreamKind::Incremental, None) => Err(StreamError::BaseMissing { base: header.base }),
    }
}

fn take_records(
    consumer: &mut Consumer<'_>,
    table: &mut Table,
    write: &mut dyn FnMut(Runs) -> Result<(), StreamError>,
    work: &mut Work<'_>,
) -> Result<(), StreamError> {
    let blocks_total = consumer.header().changed_blocks;
    loop {
        work.go_on()?;
        match consumer.record()? {
            Record::Extents(runs) => write(runs)?,
            Record::Entries(entries) => {
                table.entries.extend(entries.into_iter().map(|entry| (entry.id, entry)));
                if table.entries.len() > SNAPSHOTS_MAX {
                    return Err(StreamError::Inconsistent("it has more snapshots than a volume can have"));
                }
            }
            Record::Gone(ids) => ids.iter().for_each(|id| drop(table.entries.remove(id))),
            Record::Trailer(trailer) => {
                if table_digest(table.entries.values()) != trailer.table_digest {
                    return Err(StreamError::Inconsistent("the snapshots here and there are not the same"));
                }
                return Ok(());
            }
        }
        let (blocks, bytes) = (consumer.blocks(), consumer.bytes());
        (work.progress)(Progress { blocks, blocks_total, bytes });
    }
}

/// Checks the parts that no checksum proves: ids, names and descent must be as a volume makes them.
/// Returns the target's name.
pub(crate) fn check_table(header: &StreamHeader, entries: &[SnapshotEntry]) -> Result<String, StreamError> {
    let mut names = HashSet::new();
    for entry in entries {
        if entry.id > header.target || entry.parent >= entry.id || entry.root.blocks > header.space_blocks {
            return Err(StreamError::Inconsistent("a snapshot is out of order"));
        }
        if !is_snapshot_name(&entry.name) {
            return Err(StreamError::Inconsistent("a snapshot has a name that no volume gives"));
        }
        if !names.insert(entry.name.as_str()) {
            return Err(StreamError::Inconsistent("two snapshots have the same name"));
        }
    }
    let target = entries.last().filter(|entry| entry.id == header.target);
    let target = target.ok_or(VolumeError::NoSuchSnapshot(header.target))?;
    if root_digest(target) != header.target_digest {
        return Err(StreamError::Inconsistent("its last snapshot is not the one that it announced"));
    }
    Ok(target.name.clone())
}
