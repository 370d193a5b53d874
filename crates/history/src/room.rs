//! Room in the store: unneeded segments become free, sparse ones are emptied, and when that is not
//! enough the oldest history is discarded.

use std::time::Duration;

use cairn_base::BLOCK_SIZE;
use cairn_format::history::{HistoryEntry, PLACE_UNIT};

use crate::HistoryError;
use crate::history::History;
use crate::index::Version;
use crate::log::{Pending, Segment, Writer};
use crate::owed::Price;
use crate::status::HistoryEvent;
use crate::trim::MOVES;

/// Free segments that writes leave for work that makes room.
pub(crate) const RESERVE: usize = 3;
/// A full store gives up so small a part of its history at first.
const PARTS_GIVEN_UP: usize = 32;
/// Events that are remembered.
const EVENTS_MAX: usize = 64;
const BLOCK: u64 = BLOCK_SIZE as u64;

impl History {
    /// Rests for `patience`, or until there are blocks to write out or [`wake`](Self::wake) is
    /// called: for the thread that calls [`step`](Self::step).
    pub fn rest(&self, patience: Duration) {
        let mut state = self.state.lock();
        // Blocks without room wait for time to pass.
        if state.full || state.cache.bytes() <= self.dirty_bytes / 2 {
            self.work.wait_for(&mut state, patience);
        }
    }

    /// Ends a rest.
    pub fn wake(&self) {
        let _state = self.state.lock();
        self.work.notify_all();
    }

    /// Whether writes and flushes may wait for room where the owner wants that. Before the device
    /// is closed waiting ones are released, and fail.
    pub fn let_wait(&self, may_wait: bool) {
        self.state.lock().may_wait = may_wait;
        self.room.notify_all();
    }

    /// Background work: one slice of it. True when there is more to do at once. The owner's thread
    /// calls it repeatedly.
    pub fn step(&self) -> Result<bool, HistoryError> {
        // The clock is read regularly, to know how far it was set back.
        self.state.lock().see_clock(self.clock.now().0, self.clock.monotonic());
        let mut writer = self.writer.lock();
        let writer = &mut *writer;
        self.check_failed()?;
        let more = self.step_with(writer);
        self.room.notify_all();
        // Then nothing can be done until time passes.
        let is_full = more.as_ref().is_err_and(HistoryError::is_full);
        self.state.lock().full = is_full;
        if is_full { Ok(false) } else { more }
    }

    fn step_with(&self, writer: &mut Writer) -> Result<bool, HistoryError> {
        self.ask_for_room(writer)?;
        if self.state.lock().cache.bytes() > self.dirty_bytes / 2 {
            return self.destage(writer);
        }
        if writer.trim.is_some() {
            if self.trim_slice(writer, MOVES)? {
                self.reclaim(writer)?;
            }
            return Ok(true);
        }
        if self.copy_slice(writer)? {
            return Ok(true);
        }
        if let Some(to) = self.due(writer)
            && self.begin_due(writer, to)?
        {
            return Ok(true);
        }
        if writer.thinning.is_some() {
            if self.thin_slice(writer) {
                self.reclaim(writer)?;
            }
            return Ok(true);
        }
        if self.begin_thinning(writer)? {
            return Ok(true);
        }
        let low = writer.left() < (RESERVE + 1).max(writer.usable() / 16);
        if low && (self.reclaim(writer)? || self.clean(writer)?) {
            return Ok(true);
        }
        // No later record states that the last flush was durable: damage there would pass for the
        // end of the log. Once a segment is enough.
        let begun = writer.segment_sequence >= writer.superblock.ahead_from;
        if begun && writer.superblock.durable_through < writer.synced {
            self.write_superblock(writer)?;
            self.sync_store(writer)?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Where the window is to begin by its owner's wish, when that is worth a move.
    fn due(&self, writer: &Writer) -> Option<u64> {
        let mut state = self.state.lock();
        let state = &mut *state;
        let now = self.clock.now().0.max(state.last);
        let mut to = 0;
        if let Some(time) = state.window.time {
            let time = time.as_nanos() as u64;
            let target = now.saturating_sub(time);
            // Moves come some dozen times a window, not with each step.
            if target > state.start.saturating_add(time / 32) {
                to = target;
            }
        }
        if let Some(bytes) = state.window.bytes {
            let used = (writer.superblock.segments as usize - writer.unused()) as u64;
            let segment = writer.superblock.segment_blocks * BLOCK;
            let over = (used * segment).saturating_sub(bytes).div_ceil(segment) as usize;
            if over > 0 && used > 1 {
                let mut times: Vec<u64> = state
                    .segments
                    .iter()
                    .filter(|segment| segment.closed)
                    .map(|segment| segment.last_ns)
                    .collect();
                times.sort_unstable();
                to = to.max(times.get(over.min(times.len()).saturating_sub(1)).copied().unwrap_or(0));
            }
        }
        let to = self.allowed(state, to, true)?;
        (to > state.start).then_some(to)
    }

    /// Begins the move that is due, or as much of it as there is room for; false when it can't
    /// begin.
    fn begin_due(&self, writer: &mut Writer, to: u64) -> Result<bool, HistoryError> {
        if writer.too_full_to_move.is_some_and(|(left, until)| left == writer.left() && to < until) {
            return Ok(false);
        }
        writer.too_full_to_move = None;
        let start = self.state.lock().start;
        // A later date leaves less to write again.
        let until = to + to.saturating_sub(start) / 16 + 1;
        let mut times: Vec<u64> = {
            let state = self.state.lock();
            let earlier = state.segments.iter().filter(|segment| segment.closed && segment.last_ns < to);
            earlier.map(|segment| segment.last_ns).collect()
        };
        times.sort_unstable();
        let mut wanted = Some(to);
        while let Some(to) = wanted {
            let to = {
                let mut state = self.state.lock();
                let start = state.start;
                self.allowed(&mut state, to, true).filter(|to| *to > start)
            };
            if let Some(to) = to
                && let Price::Pays { owed } = self.price(writer, to)?
            {
                if !self.claim(to) {
                    // The next step finds out how far it can go.
                    return Ok(true);
                }
                self.begin_trim(writer, to, to, owed)?;
                return Ok(true);
            }
            times.truncate(times.len() / 2);
            wanted = times.last().copied();
        }
        writer.too_full_to_move = Some((writer.left(), until));
        Ok(false)
    }

    /// The last instant up to `to` that the window may begin at.
    pub(crate) fn allowed(
        &self,
        state: &mut crate::history::State,
        to: u64,
        with_views: bool,
    ) -> Option<u64> {
        let mut to = to;
        if let Some(oldest) = state.cache.oldest_time() {
            to = to.min(oldest.saturating_sub(1));
        }
        let targets = state.reverts.iter().map(|revert| revert.target);
        if let Some(target) = targets.chain(state.held).min() {
            to = to.min(target);
        }
        if let (true, Some((view, _))) = (with_views, state.views.first_key_value()) {
            to = to.min(*view);
        }
        state.timeline.kept_before(to)
    }

    /// Assigns no write a stamp up to `to` from here on, whatever the clock does: versions up to
    /// there will not count. False when a waiting write has one, because the clock was set back
    /// since the check.
    fn claim(&self, to: u64) -> bool {
        let mut state = self.state.lock();
        if state.cache.oldest_time().is_some_and(|oldest| oldest <= to) {
            return false;
        }
        state.last = state.last.max(to);
        true
    }

    /// Ensures room for a batch of blocks that takes `more` segments than a small one, for the owed
    /// room, and for the work that makes enough room in the log.
    pub(crate) fn ensure_room(&self, writer: &mut Writer, more: usize) -> Result<(), HistoryError> {
        while !self.ready(writer, RESERVE + more + self.owed(writer))? {
            self.make_room(writer)?;
        }
        Ok(())
    }

    /// Frees segments, or reduces the owed room.
    fn make_room(&self, writer: &mut Writer) -> Result<(), HistoryError> {
        if self.win_room(writer)? {
            return Ok(());
        }
        if !writer.superblock.reverts.is_empty() {
            // Blocks that a revert restored must be copied before its target can be discarded.
            while self.copy_slice(writer)? {}
            return Ok(());
        }
        // History younger than the floor must stay. Without a stamp that young, all instants since
        // then show the same, and that stays.
        let is_limited = {
            let state = self.state.lock();
            let floor = state.window.floor.as_nanos() as u64;
            let youngest = self.clock.now().0.max(state.last).saturating_sub(floor);
            state.held.is_some() || floor > 0 && state.last > youngest
        };
        if is_limited || !self.start_over(writer)? { Err(self.no_room(writer)) } else { Ok(()) }
    }

    /// Frees segments: unneeded ones first, then the oldest history that may go. False when that
    /// freed none.
    pub(crate) fn win_room(&self, writer: &mut Writer) -> Result<bool, HistoryError> {
        let before = writer.spare();
        self.reclaim(writer)?;
        self.trim_all(writer)?;
        self.reclaim(writer)?;
        // Moved versions may begin a new segment: then another one must be emptied to gain any.
        while writer.spare() <= before && writer.spare() > 1 && self.clean(writer)? {}
        if writer.spare() > before {
            return Ok(true);
        }
        let (times, now) = {
            let state = self.state.lock();
            let closed = state.segments.iter().filter(|segment| segment.sequence > 0 && segment.closed);
            let mut times: Vec<u64> = closed.map(|segment| segment.last_ns).collect();
            times.sort_unstable();
            (times, self.clock.now().0.max(state.last))
        };
        // A small part of the history at first, then more, in the end all; less when there is no
        // room to move that far at once. Each move reads the whole index and costs a dozen flushes,
        // so one segment at a time would be too little.
        let first = (writer.usable() / PARTS_GIVEN_UP).max(1);
        let (mut done, mut part, mut is_last, mut is_gainless) = (0, first, false, false);
        loop {
            let time = times.get(done + part - 1).filter(|_| !is_last).copied().unwrap_or(now);
            is_last |= time >= now;
            let to = {
                let mut state = self.state.lock();
                let state = &mut *state;
                let floor = now.saturating_sub(state.window.floor.as_nanos() as u64);
                let kept = state.timeline.kept_after(time).unwrap_or(now);
                let start = state.start;
                self.allowed(state, kept.min(floor), false).filter(|to| *to > start)
            };
            match to.map_or(Ok(Price::Pays { owed: 0 }), |to| self.price(writer, to))? {
                Price::Pays { owed } => {
                    if let Some(to) = to {
                        if !self.claim(to) {
                            continue;
                        }
                        self.give_up(writer, to, to, owed)?;
                    }
                    (done, part, is_gainless) = (done + part, 2 * part, false);
                }
                Price::NoGain => (part, is_gainless) = (2 * part, true),
                Price::NoRoom if is_last => {}
                Price::NoRoom if part > 1 && !is_gainless => part /= 2,
                Price::NoRoom => {
                    is_last = true;
                    continue;
                }
            }
            while is_last && writer.spare() <= before && writer.spare() > 1 && self.clean(writer)? {}
            if is_last || writer.spare() > before {
                return Ok(writer.spare() > before);
            }
        }
    }

    /// Moves the start of the window for lack of room, and logs it.
    fn give_up(&self, writer: &mut Writer, to: u64, start: u64, owed: u64) -> Result<(), HistoryError> {
        self.begin_trim(writer, to, start, owed)?;
        self.trim_all(writer)?;
        self.reclaim(writer)?;
        let mut state = self.state.lock();
        let state = &mut *state;
        tracing::warn!(start_ns = start, "the store of a history is full: its oldest history was discarded");
        let (time, views) =
            (state.last, state.views.range(..start).map(|(_, count)| u64::from(*count)).sum());
        state.events.push_back(HistoryEvent { time, start, views_ended: views });
        while state.events.len() > EVENTS_MAX {
            state.events.pop_front();
        }
        Ok(())
    }

    /// The last resort: all history goes. The window begins with the last write, and the waiting
    /// writes in the cache are the first in it. True when that made room.
    fn start_over(&self, writer: &mut Writer) -> Result<bool, HistoryError> {
        let before = writer.spare();
        let (to, start) = {
            let mut state = self.state.lock();
            let state = &mut *state;
            // Not the clock's time: nothing has changed since the last stamp, and instants since
            // then stay.
            let to = state.last + 1;
            // Entries up to `to` will not count: waiting writes get later stamps, and the window
            // begins after it.
            let start = state.cache.restamp(to).max(to) + 1;
            state.last = start;
            state.timeline.cut(start);
            (to, start)
        };
        self.give_up(writer, to, start, 0)?;
        Ok(writer.spare() > before)
    }

    /// Frees segments that nothing in the index needs; true when there were some.
    pub(crate) fn reclaim(&self, writer: &mut Writer) -> Result<bool, HistoryError> {
        let empty: Vec<usize> = {
            let state = self.state.lock();
            let unused = |(index, segment): (usize, &Segment)| {
                (segment.closed && segment.live == 0 && segment.sequence > 0 && index != writer.segment)
                    .then_some(index)
            };
            state.segments.iter().enumerate().filter_map(unused).collect()
        };
        if empty.is_empty() {
            return Ok(false);
        }
        // The replacements of the versions there must be durable before their places are reused,
        // the origin included.
        self.sync(writer)?;
        for index in &empty {
            writer.superblock.live[*index] = false;
        }
        self.write_superblock(writer)?;
        self.sync_store(writer)?;
        for index in empty {
            self.state.lock().segments[index] = Segment::default();
            // It has its room; where the file of the store was copied with holes, perhaps not all
            // of it.
            let has_room = self.give_room(writer, index)?;
            if has_room { &mut writer.free } else { &mut writer.bare }.push_back(index);
        }
        Ok(true)
    }

    /// Moves the needed versions out of the segment with the fewest, when they are less than half
    /// of it; true when it did.
    pub(crate) fn clean(&self, writer: &mut Writer) -> Result<bool, HistoryError> {
        while let Some((index, segment)) = self.sparsest(writer) {
            if self.empty(writer, index, segment.sequence)? {
                return self.reclaim(writer);
            }
            // It would be the one with the least for ever, and no other would be emptied.
            self.state.lock().segments[index].stuck = true;
        }
        Ok(false)
    }

    /// The segment with the least that is needed, when that is less than half of it.
    fn sparsest(&self, writer: &Writer) -> Option<(usize, Segment)> {
        let state = self.state.lock();
        let closed = state.segments.iter().enumerate().filter(|(index, segment)| {
            segment.closed && segment.sequence > 0 && *index != writer.segment && !segment.stuck
        });
        let least = closed.min_by_key(|(_, segment)| segment.live);
        least
            .map(|(index, segment)| (index, *segment))
            .filter(|(_, segment)| segment.live < writer.superblock.segment_blocks * BLOCK / 2)
    }

    /// Moves the needed versions out of a segment; false when one of them can't be read, and stays.
    fn empty(&self, writer: &mut Writer, index: usize, sequence: u64) -> Result<bool, HistoryError> {
        let entries = match self.segment_entries(writer, index, sequence) {
            Ok(entries) => entries,
            Err(error) => {
                if let HistoryError::Device(error) = &error {
                    self.answers(&*self.store, error)?;
                }
                // Both copies of its index are damaged, or cannot be read. The index in memory can
                // still read its content.
                tracing::error!(segment = index, %error, "a history segment can't be emptied");
                return Ok(false);
            }
        };
        let base = writer.start_of(index) * BLOCK / PLACE_UNIT;
        let needed: Vec<(HistoryEntry, Version)> = {
            let state = self.state.lock();
            let here = |entry: HistoryEntry| {
                let version = Version::of(&entry, base);
                (state.index.get(version.key()) == Some(version)).then_some((entry, version))
            };
            entries.into_iter().filter_map(here).collect()
        };
        let mut is_empty = true;
        for part in needed.chunks(256) {
            let wanted: Vec<(Version, usize)> = part
                .iter()
                .filter(|(entry, _)| entry.kind.has_data())
                .map(|(_, version)| (*version, self.content_bytes(version.lba)))
                .collect();
            let mut read = self.read_versions(&wanted).into_iter();
            let mut pending = Vec::with_capacity(part.len());
            for (entry, _) in part {
                let data = match entry.kind.has_data() {
                    true => match read.next() {
                        Some(Ok(data)) => Some(data),
                        // It stays in its place: a read of it reports the damage.
                        Some(Err(_)) | None => {
                            is_empty = false;
                            continue;
                        }
                    },
                    false => None,
                };
                pending.push(Pending { lba: entry.lba, time: entry.time, kind: entry.kind, data });
            }
            let versions = self.append(writer, pending)?;
            self.publish(&mut self.state.lock(), writer.superblock.segment_blocks, &versions);
        }
        Ok(is_empty)
    }
}
