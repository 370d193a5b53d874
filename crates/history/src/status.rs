//! The status of a history, for its owner.

use std::time::Duration;

use cairn_base::{HistoryId, Timestamp};
use cairn_device::DeviceError;
use cairn_format::history::{Granularity, Placement, THINNED_MAX, Thinned};

use crate::HistoryError;
use crate::counters::Counters;
use crate::history::History;
use crate::options::{LogPosition, Thin, Window, check_window};

/// Lost versions that are shown one by one.
const LOST_SHOWN: usize = 64;

/// A named instant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// Its name.
    pub name: String,
    /// When.
    pub time: Timestamp,
    /// The owner had quiesced the device; otherwise it is as after a crash.
    pub consistent: bool,
}

/// History that was given up because the store was full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistoryEvent {
    /// When.
    pub time: u64,
    /// The oldest instant from then on.
    pub start: u64,
    /// Views that ended by it.
    pub views_ended: u64,
}

/// A version of a block that could not be read any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LostVersion {
    /// Which block of the device.
    pub block: u64,
    /// From when on, or until when, it is lost.
    pub time: Timestamp,
}

/// How far the background copy of a revert is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RevertProgress {
    /// When it was made.
    pub time: Timestamp,
    /// The restored instant.
    pub instant: Timestamp,
    /// The number of examined blocks, of [`blocks`](Self::blocks).
    pub done: u64,
    /// Of the device.
    pub blocks: u64,
}

/// A history at a glance.
#[derive(Debug, Clone, PartialEq)]
pub struct HistoryStatus {
    /// Names the store.
    pub store: HistoryId,
    /// Where versions go.
    pub placement: Placement,
    /// Which instants are kept.
    pub granularity: Granularity,
    /// Bytes.
    pub block_bytes: u32,
    /// Bytes.
    pub origin_bytes: u64,
    /// The owner's settings.
    pub window: Window,
    /// When it began.
    pub created: Timestamp,
    /// The oldest instant that can be reached.
    pub start: Timestamp,
    /// The time of its last write, mark or revert.
    pub last: Timestamp,
    /// Versions that are kept.
    pub versions: u64,
    /// Bytes of memory that the index takes.
    pub index_bytes: u64,
    /// Bytes of the store that hold history.
    pub used_bytes: u64,
    /// The needed bytes of these; with a reduction, their unreduced size, limited to that of its
    /// segments.
    pub live_bytes: u64,
    /// Bytes of the store that can hold history.
    pub store_bytes: u64,
    /// Written bytes that wait in memory.
    pub dirty_bytes: u64,
    /// In order of time.
    pub marks: Vec<Mark>,
    /// The progress of the window's move, when it moves: examined blocks, and those of the device.
    pub folding: Option<(u64, u64)>,
    /// Background copies that are not over.
    pub reverts: Vec<RevertProgress>,
    /// Open views.
    pub views: u64,
    /// Versions that could not be read any more and are lost, in order of blocks; the first of
    /// them.
    pub lost: Vec<LostVersion>,
    /// How many there are.
    pub lost_versions: u64,
    /// History that was given up for a lack of room, the newest last.
    pub events: Vec<HistoryEvent>,
    /// Writes and flushes that wait for room.
    pub waiting: u64,
    /// Why it takes no more writes.
    pub failed: Option<String>,
    /// The reason is a lack of room below its origin or its store.
    pub failed_for_room: bool,
    /// The device without room: the store, whose oldest history is then discarded, or the origin.
    /// The history resumes by itself.
    pub lacking: Option<&'static str>,
    /// Since it was opened.
    pub counters: Counters,
}

impl History {
    /// The durable position of the log, for [`OpenOptions::at_least`](crate::OpenOptions::at_least)
    /// of a later opening. `None` once a device has failed: then the durable state is unknown.
    pub fn position(&self) -> Option<LogPosition> {
        let writer = self.writer.lock();
        self.check_failed().ok()?;
        // The second slot of a superblock is durable with the next flush of the store; with the
        // first alone, damage would leave the previous one.
        let superblock = writer.superblock.sequence.saturating_sub(u64::from(writer.store_dirty));
        Some(LogPosition { superblock, record: writer.synced })
    }

    /// How it is.
    pub fn status(&self) -> HistoryStatus {
        let (superblock, free, folding) = {
            let writer = self.writer.lock();
            let folding = writer.trim.map(|trim| (trim.reached(), self.blocks()));
            (writer.superblock.clone(), writer.unused() as u64, folding)
        };
        let segment_bytes = superblock.segment_blocks * cairn_base::BLOCK_SIZE as u64;
        let blocks = self.blocks();
        let state = self.state.lock();
        let marks = state.marks.iter().map(|(time, mark)| Mark {
            name: mark.name.clone(),
            time: Timestamp(*time),
            consistent: mark.consistent,
        });
        let reverts = state.reverts.iter().map(|revert| RevertProgress {
            time: Timestamp(revert.time),
            instant: Timestamp(revert.target),
            done: revert.cursor,
            blocks,
        });
        HistoryStatus {
            store: superblock.store,
            placement: self.placement,
            granularity: superblock.granularity,
            block_bytes: self.block_bytes,
            origin_bytes: self.length,
            window: state.window,
            created: Timestamp(state.created),
            start: Timestamp(state.start),
            last: Timestamp(state.last),
            versions: state.index.len() as u64,
            index_bytes: state.index.memory() as u64,
            used_bytes: (superblock.segments - free) * segment_bytes,
            live_bytes: state.segments.iter().map(|segment| segment.live.min(segment_bytes)).sum(),
            store_bytes: superblock.segments * segment_bytes,
            dirty_bytes: state.cache.bytes() + state.current.bytes(),
            marks: marks.collect(),
            folding,
            reverts: reverts.collect(),
            views: state.views.values().map(|count| u64::from(*count)).sum(),
            lost: state
                .lost
                .iter()
                .take(LOST_SHOWN)
                .map(|(block, time)| LostVersion { block: *block, time: Timestamp(*time) })
                .collect(),
            lost_versions: state.lost.len() as u64,
            events: state.events.iter().copied().collect(),
            waiting: state.waiting,
            failed: state.failed.as_ref().map(ToString::to_string),
            failed_for_room: matches!(state.failed, Some(DeviceError::NoSpace { .. })),
            lacking: state.lacking,
            counters: self.tally.show(),
        }
    }

    /// The marks, in order of time.
    pub fn marks(&self) -> Vec<Mark> {
        let state = self.state.lock();
        let mark = |(time, mark): (&u64, &cairn_format::history::MarkContent)| Mark {
            name: mark.name.clone(),
            time: Timestamp(*time),
            consistent: mark.consistent,
        };
        state.marks.iter().map(mark).collect()
    }

    /// Changes how much history is kept; durable when it returns. A shorter window is folded back
    /// in the background.
    pub fn set_window(&self, window: Window) -> Result<(), HistoryError> {
        let mut writer = self.writer.lock();
        check_window(&window, writer.superblock.granularity)?;
        self.check_failed()?;
        let start = self.state.lock().start;
        let forgets = |known: &Thinned| {
            known.until_ns > start
                && window.steps().all(|step| step.every.as_nanos() as u64 != known.every_ns)
        };
        if writer.superblock.thinned.iter().any(forgets) {
            let rule = "a step that has thinned something stays, with its interval, until the window has left that behind";
            return Err(HistoryError::Refused { what: "the retention", rule });
        }
        set_in_superblock(&mut writer.superblock, &window);
        self.write_superblock(&mut writer)?;
        self.sync_store(&mut writer)?;
        let mut state = self.state.lock();
        state.timeline.thin(&writer.superblock.thinned);
        state.window = window;
        drop(state);
        self.room.notify_all();
        Ok(())
    }
}

/// The window as the superblock has it.
pub(crate) fn set_in_superblock(superblock: &mut cairn_format::history::HistorySuperblock, window: &Window) {
    superblock.window_ns = window.time.map_or(0, |time| time.as_nanos() as u64);
    superblock.window_bytes = window.bytes.unwrap_or(0);
    superblock.floor_ns = window.floor.as_nanos() as u64;
    superblock.floor_policy = window.floor_policy;
    // A store that was reduced before keeps that mark.
    superblock.reduction = window.reduction;
    // History that a step has thinned stays so, at any age. A finer step before it begins there:
    // its end is an end of every finer interval.
    let before = std::mem::take(&mut superblock.thinned);
    let mut until_ns = 0;
    for step in window.steps().collect::<Vec<_>>().into_iter().rev() {
        let (after_ns, every_ns) = (step.after.as_nanos() as u64, step.every.as_nanos() as u64);
        let known = before.iter().find(|known| known.every_ns == every_ns);
        until_ns = until_ns.max(known.map_or(0, |known| known.until_ns));
        superblock.thinned.insert(0, Thinned { after_ns, every_ns, until_ns });
    }
}

/// The window that the superblock has.
pub(crate) fn window_of(superblock: &cairn_format::history::HistorySuperblock) -> Window {
    let above_zero = |value: u64| (value > 0).then_some(value);
    let mut thin = [None; THINNED_MAX];
    for (place, step) in thin.iter_mut().zip(&superblock.thinned) {
        let (after, every) = (Duration::from_nanos(step.after_ns), Duration::from_nanos(step.every_ns));
        *place = Some(Thin { after, every });
    }
    Window {
        time: above_zero(superblock.window_ns).map(Duration::from_nanos),
        bytes: above_zero(superblock.window_bytes),
        floor: Duration::from_nanos(superblock.floor_ns),
        floor_policy: superblock.floor_policy,
        thin,
        reduction: superblock.reduction,
    }
}

impl History {
    /// The index entries of a block, for the report of a failed comparison.
    pub fn explain(&self, lba: u64) -> String {
        let writer = self.writer.lock();
        let superblock = &writer.superblock;
        let mut text = format!(
            "start {} cut {} reverts {:?} durable_through {}\n",
            superblock.start_ns, superblock.cut_ns, superblock.reverts, superblock.durable_through
        );
        let state = self.state.lock();
        state.index.scan((lba, 0, 0), usize::MAX, |version| {
            if version.lba == lba {
                text.push_str(&format!("{version:?}\n"));
            }
            version.lba == lba
        });
        text
    }
}
