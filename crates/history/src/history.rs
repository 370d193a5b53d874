//! The device that remembers: its parts, and how blocks of it are found.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use cairn_base::{Clock, Timestamp};
use cairn_device::{Device, DeviceError};
use cairn_format::history::{MarkContent, NO_LBA, Placement, RevertState};

use crate::HistoryError;
use crate::cache::{ReadCache, WriteCache};
use crate::counters::Tally;
use crate::elapsed::Elapsed;
use crate::index::{Index, Version};
use crate::locks::{Condvar, Mutex, RwLock};
use crate::log::{Segment, Writer, weight};
use crate::options::Window;
use crate::status::HistoryEvent;
use crate::timeline::Timeline;

/// Stamps may be this far ahead of a clock that was not set back, when writes come faster than it
/// advances.
const CLOCK_SLACK_NS: u64 = 1_000_000_000;

/// A device that remembers. It is a [`Device`]: the present.
///
/// Lock order: `merge`, `writer`, `state`. The last one is never held while a device is touched,
/// and is all that a read waits for. The others are, and clients wait for them:
/// - `merge`, exclusively, by a write of a part of a block while the rest of it is read, and by a
///   revert (and a release) from its initial flush to its end. Writes wait for either: a write in
///   between would belong to both times. It costs writers at most one read of the origin, except
///   for reverts, which are rare. A lock for each block would need many locks, and a revert all of
///   them.
/// - `writer`, by any writer of the log or the origin: one batch that leaves memory, one flush, one
///   slice of background work. The log has one end, and its records must become durable in order.
///   Flushes wait for it (flushes that arrive meanwhile share one), as do marks, views, reverts,
///   and status requests. A write waits only when memory is full, and then for the work that makes
///   room there. Background work releases it after each slice, so that none of these waits for more
///   than one.
pub struct History {
    pub(crate) origin: Arc<dyn Device>,
    pub(crate) store: Arc<dyn Device>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) placement: Placement,
    pub(crate) block_bytes: u32,
    /// Blocks of a segment of the store.
    pub(crate) segment_blocks: u64,
    pub(crate) length: u64,
    pub(crate) dirty_bytes: u64,
    /// Writes of whole blocks share it; a merge of a part of a block, and a revert, hold it
    /// exclusively.
    pub(crate) merge: RwLock<()>,
    pub(crate) writer: Mutex<Writer>,
    pub(crate) state: Mutex<State>,
    /// Notified when there is room again.
    pub(crate) room: Condvar,
    /// Notified when half of the allowed blocks wait in memory.
    pub(crate) work: Condvar,
    /// Notified when a flush that clients share ends.
    pub(crate) flush_over: Condvar,
    pub(crate) tally: Tally,
    /// Called where readers get in while a batch is published.
    #[cfg(test)]
    pub(crate) between: Mutex<Option<Between>>,
}

/// How a caller names an instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// A time that the clock has shown, or the time of a mark.
    Clock(Timestamp),
    /// By its stamp, as [`History::ago`] has found it.
    Stamp(Timestamp),
}

impl From<Timestamp> for When {
    fn from(at: Timestamp) -> Self {
        Self::Clock(at)
    }
}

/// A test's hook there.
#[cfg(test)]
pub(crate) type Between = Box<dyn Fn() + Send>;

/// State that all users of a history share.
pub(crate) struct State {
    /// The origin has the content before the window.
    pub(crate) logging: bool,
    pub(crate) index: Index,
    /// Blocks and times of versions in the index that are lost.
    pub(crate) lost: BTreeSet<(u64, u64)>,
    pub(crate) cache: WriteCache,
    /// Split-stream: in the log, and not yet on the origin.
    pub(crate) current: WriteCache,
    pub(crate) reads: ReadCache,
    /// Counts changes that affect reads in progress.
    pub(crate) epoch: u64,
    pub(crate) timeline: Timeline,
    pub(crate) marks: BTreeMap<u64, MarkContent>,
    /// The oldest instant that can be reached.
    pub(crate) start: u64,
    pub(crate) created: u64,
    pub(crate) reverts: Vec<RevertState>,
    /// The last stamp.
    pub(crate) last: u64,
    /// The earliest time that the clock has shown since it was set back to before the last stamp;
    /// `None` while it is not behind the last stamp.
    pub(crate) put_back_to: Option<u64>,
    /// Which stamps belong to which moments.
    pub(crate) elapsed: Elapsed,
    /// All that was taken with a stamp up to this one is durable.
    pub(crate) flushed: u64,
    /// A thread makes a flush that clients share, or waits for `writer` to make it.
    pub(crate) flushing: bool,
    pub(crate) segments: Vec<Segment>,
    pub(crate) failed: Option<DeviceError>,
    /// Writes and flushes may wait for room where the owner wants that; not while the device is
    /// being closed.
    pub(crate) may_wait: bool,
    /// How many wait.
    pub(crate) waiting: u64,
    /// Background work found no room.
    pub(crate) full: bool,
    /// The name of the device without room.
    pub(crate) lacking: Option<&'static str>,
    /// The window is moving to here: versions up to it may no longer serve as bases.
    pub(crate) trimming: Option<u64>,
    pub(crate) window: Window,
    /// An instant about to be marked or restored: the window does not move past it.
    pub(crate) held: Option<u64>,
    /// Instants that views hold, with the count of their views.
    pub(crate) views: BTreeMap<u64, u32>,
    pub(crate) events: VecDeque<HistoryEvent>,
    pub(crate) regions: HashMap<u64, Region>,
    /// Versions of the current cache and others that the origin does not have: while there are any,
    /// replay needs older records.
    pub(crate) unsettled: u64,
}

/// Hybrid placement's state of a stretch of the device.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Region {
    /// Blocks that left the cache (d of section 3.2 of the 2007 paper), fading.
    pub(crate) written: u16,
    /// Of these, how many found a version that had to be retained (r), fading.
    pub(crate) retained: u16,
}

impl State {
    /// The last stamp is further ahead of the clock than fast writes alone can explain.
    fn is_ahead_of(&self, now: u64) -> bool {
        self.last > now.saturating_add(CLOCK_SLACK_NS)
    }

    /// Records the present readings of the wall clock and the monotonic clock.
    pub(crate) fn see_clock(&mut self, now: u64, passed: Duration) {
        self.elapsed.note(now, passed, self.last);
        let to = self.put_back_to.map_or(now, |to| to.min(now));
        self.put_back_to = self.is_ahead_of(now).then_some(to);
    }
}

impl History {
    /// A test's hook while a batch is published.
    #[cfg(test)]
    pub(crate) fn look_between(&self) {
        if let Some(look) = &*self.between.lock() {
            look();
        }
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.length.div_ceil(u64::from(self.block_bytes))
    }

    /// Bytes of a block: the last one can be shorter.
    pub(crate) fn length_of(&self, lba: u64) -> usize {
        let at = lba * u64::from(self.block_bytes);
        u64::from(self.block_bytes).min(self.length.saturating_sub(at)) as usize
    }

    /// The size in bytes of a version's content.
    pub(crate) fn content_bytes(&self, lba: u64) -> usize {
        if lba == NO_LBA { MarkContent::SIZE } else { self.length_of(lba) }
    }

    /// The most that a version takes of its segment: its unreduced size. A version moved to another
    /// segment may have no base there to be reduced by.
    pub(crate) fn weight_of(&self, version: &Version) -> u64 {
        let length =
            if version.lba == NO_LBA { MarkContent::SIZE as u64 } else { u64::from(self.block_bytes) };
        weight(version.kind, length)
    }

    /// The segment of a place.
    pub(crate) fn segment_of(&self, place: u64, segment_blocks: u64) -> usize {
        use cairn_format::history::{PLACE_UNIT, SEGMENTS_START};
        let block = place * PLACE_UNIT / cairn_base::BLOCK_SIZE as u64;
        ((block - SEGMENTS_START) / segment_blocks) as usize
    }

    /// The start of a place's segment, in units of places.
    pub(crate) fn segment_start(&self, place: u64) -> u64 {
        use cairn_format::history::{PLACE_UNIT, SEGMENTS_START};
        let segment = self.segment_of(place, self.segment_blocks) as u64;
        (SEGMENTS_START + segment * self.segment_blocks) * cairn_base::BLOCK_SIZE as u64 / PLACE_UNIT
    }

    /// Puts versions into the index.
    pub(crate) fn publish(&self, state: &mut State, segment_blocks: u64, versions: &[Version]) {
        for version in versions {
            let weight = self.weight_of(version);
            state.segments[self.segment_of(version.place, segment_blocks)].live += weight;
            if let Some(replaced) = state.index.insert(version) {
                self.forget(state, segment_blocks, &replaced);
            }
            state.note_lost(version);
        }
        state.epoch += 1;
    }

    /// A version is no longer in the index.
    pub(crate) fn forget(&self, state: &mut State, segment_blocks: u64, version: &Version) {
        state.forget_lost(version);
        let segment = self.segment_of(version.place, segment_blocks);
        let live = &mut state.segments[segment].live;
        *live = live.saturating_sub(self.weight_of(version));
    }

    /// Wall time, made to go up always: the stamp of a write or a cut.
    pub(crate) fn stamp(&self, state: &mut State) -> u64 {
        let (now, passed) = (self.clock.now().0, self.clock.monotonic());
        state.see_clock(now, passed);
        state.last = now.min(u64::MAX / 4).max(state.last + 1);
        state.elapsed.note(now, passed, state.last);
        state.last
    }

    /// The moment that lies `by` in the past, by elapsed time, whatever the wall clock was set to
    /// since.
    ///
    /// # Errors
    /// [`HistoryError::AgeUnknown`] if the clock was set and the history was not open all the time
    /// since the moment; [`HistoryError::NotKept`] if the clock was set back, and no instant near
    /// that moment is kept.
    pub fn ago(&self, by: Duration) -> Result<When, HistoryError> {
        let mut state = self.state.lock();
        let state = &mut *state;
        let (now, passed) = (self.clock.now().0, self.clock.monotonic());
        state.see_clock(now, passed);
        let found = state.elapsed.find(by, passed, state.created).ok_or(HistoryError::AgeUnknown)?;
        // All that was acknowledged is in the image of this moment.
        let newest = now.max(state.last);
        let stamp = if by.is_zero() { newest } else { found.stamp.min(newest) };
        // Instants kept at intervals do not exist while stamps stand still: the last one may be
        // from long before.
        if let Some(first) = found.stands_from
            && stamp > first
            && !state.timeline.is_kept_near(stamp)
        {
            return Err(HistoryError::NotKept { by: Duration::from_nanos(state.last.saturating_sub(now)) });
        }
        Ok(When::Stamp(Timestamp(stamp)))
    }

    /// The instant that is meant.
    pub(crate) fn reach_by_time(&self, state: &mut State, at: When) -> Result<u64, HistoryError> {
        let at = match at {
            When::Stamp(at) => return self.reach(state, at.0),
            When::Clock(at) => at.0,
        };
        let now = self.clock.now().0;
        state.see_clock(now, self.clock.monotonic());
        // Writes of the second time that a clock showed it have later stamps, so that they would be
        // missing there.
        let is_shown_again = state.put_back_to.is_some_and(|to| (to..=now).contains(&at));
        if is_shown_again && !state.marks.contains_key(&at) {
            return Err(HistoryError::ClockPutBack { by: Duration::from_nanos(state.last - now) });
        }
        self.reach(state, at)
    }

    /// The kept instant for `at`: the last one up to it.
    pub(crate) fn reach(&self, state: &mut State, at: u64) -> Result<u64, HistoryError> {
        let now = self.clock.now().0.max(state.last);
        if at > now {
            return Err(HistoryError::InFuture);
        }
        if at < state.start {
            if at < state.created {
                return Err(HistoryError::BeforeBeginning);
            }
            return Err(HistoryError::BeforeWindow);
        }
        // No later write gets a stamp that belongs to this image, whatever the clock does.
        state.last = state.last.max(at);
        Ok(state.timeline.kept_before(at).unwrap_or(0).max(state.start))
    }
}
