//! Room below the store, which a sparse file takes from its file system as it fills.
//!
//! The room of a segment is reserved before the segment counts as spare, so no write to the log
//! fails for lack of it: neither clients' writes, nor the writes that make room (moves, summaries,
//! the superblock). Used segments keep theirs. When no more room can be reserved, the store is as
//! large as its reserved segments. The oldest history is then discarded, as in any full store, and
//! the store periodically asks for more room.
//!
//! Some file systems promise nothing, or break their promise (copy-on-write file systems, a quota,
//! a LUN of a volume that fills). There a write of the log or of the origin may still find no room.
//! It is not acknowledged, its blocks stay in memory, and the next request writes them again, to
//! the same place. Until then the log does not state that the origin has them too.

use cairn_base::BLOCK_SIZE;
use cairn_device::DeviceError;
use cairn_format::history::SEGMENTS_START;

use crate::HistoryError;
use crate::history::History;
use crate::log::Writer;
use crate::room::RESERVE;

/// Nanoseconds between two attempts to reserve room after a failed one: a full file system may do
/// much work to find some.
const PATIENCE_NS: u64 = 1_000_000_000;
/// The name of the device without room, when that is the store.
const STORE: &str = "the history's store";
const ORIGIN: &str = "the origin of the history";
const BLOCK: u64 = BLOCK_SIZE as u64;

/// The known state of the room below.
pub(crate) struct Below {
    /// Segments that have room since the opening.
    given: Vec<bool>,
    /// When there was none.
    asked: Option<u64>,
    /// The last write of the log, and of the origin, that found none, until one does.
    refused: [bool; 2],
}

impl Below {
    /// `given`: the segments that need no room, or have some.
    pub(crate) fn new(given: Vec<bool>) -> Self {
        Self { given, asked: None, refused: [false; 2] }
    }

    /// The store has this many segments now; the new ones have no room yet.
    pub(crate) fn lengthen(&mut self, segments: usize) {
        self.given.resize(segments, false);
    }

    /// The file system below the store is full, as far as is known.
    pub(crate) fn is_full(&self) -> bool {
        self.asked.is_some()
    }

    /// The name of the device without room.
    fn lacking(&self) -> Option<&'static str> {
        let [log, origin] = self.refused;
        if self.is_full() || log { Some(STORE) } else { origin.then_some(ORIGIN) }
    }
}

impl History {
    /// Ensures that `wanted` segments can be written to, as far as there is room for them below;
    /// false when there is not.
    pub(crate) fn ready(&self, writer: &mut Writer, wanted: usize) -> Result<bool, HistoryError> {
        while writer.spare() < wanted {
            let Some(next) = writer.bare.front().copied() else { return Ok(false) };
            let now = self.clock.now().0;
            if writer.below.asked.is_some_and(|asked| now.abs_diff(asked) < PATIENCE_NS) {
                return Ok(false);
            }
            if !self.give_room(writer, next)? {
                // The next one may have had some before this opening.
                writer.bare.rotate_left(1);
                return Ok(false);
            }
            writer.bare.pop_front();
            writer.free.push_back(next);
        }
        Ok(true)
    }

    /// Reserves room for a segment; false when there is none.
    pub(crate) fn give_room(&self, writer: &mut Writer, segment: usize) -> Result<bool, HistoryError> {
        if writer.below.given[segment] {
            return Ok(true);
        }
        let (offset, length) = (writer.start_of(segment) * BLOCK, writer.superblock.segment_blocks * BLOCK);
        writer.store_dirty = true;
        match self.store.allocate(offset, length) {
            Err(DeviceError::NoSpace { .. }) => {
                if !writer.below.is_full() {
                    tracing::warn!(
                        "the file system below the store of a history is full: the store can't grow, and new writes replace the oldest history"
                    );
                }
                writer.below.asked = Some(self.clock.now().0);
                self.tell_of_room(writer);
                Ok(false)
            }
            outcome => {
                self.latch(outcome)?;
                writer.below.given[segment] = true;
                if writer.below.asked.take().is_some() {
                    tracing::info!("the file system below the store of a history has room again");
                    self.tell_of_room(writer);
                }
                Ok(true)
            }
        }
    }

    /// Reserves the room that a new store needs to work at all: for its superblocks, the first
    /// segment, and the writes that make room.
    pub(crate) fn take_first_room(&self, writer: &mut Writer) -> Result<(), HistoryError> {
        match self.store.allocate(0, SEGMENTS_START * BLOCK) {
            Err(DeviceError::NoSpace { .. }) => return Err(HistoryError::NoRoomBelow { below: STORE }),
            outcome => self.latch(outcome)?,
        }
        if self.ready(writer, RESERVE + 2)? { Ok(()) } else { Err(self.no_room(writer)) }
    }

    /// Reserves room for the segments that an opening has found: the one being filled, and those
    /// named as ahead. Segments without room are no longer named, once the superblock is written.
    pub(crate) fn keep_room(&self, writer: &mut Writer) -> Result<(), HistoryError> {
        self.give_room(writer, writer.segment)?;
        for _ in 0..writer.ahead.len() {
            let Some(segment) = writer.ahead.pop_front() else { break };
            if self.give_room(writer, segment)? {
                writer.ahead.push_back(segment);
            } else {
                writer.superblock.live[segment] = false;
                writer.bare.push_front(segment);
            }
        }
        Ok(())
    }

    /// Free segments with old content come first: they have had room.
    pub(crate) fn sort_bare(&self, writer: &mut Writer) {
        let length = writer.superblock.segment_blocks * BLOCK;
        let holds_something = |segment: &usize| {
            let offset = writer.start_of(*segment) * BLOCK;
            let first = self.store.extents(offset, length, 1).ok().and_then(|found| found.first().copied());
            first.is_some_and(|extent| !extent.hole || extent.length < length)
        };
        let (first, rest): (Vec<usize>, Vec<usize>) =
            writer.bare.iter().partition(|segment| holds_something(segment));
        writer.bare = first.into_iter().chain(rest).collect();
    }

    /// Whether there is more room now; asked from time to time, so that the owner knows.
    pub(crate) fn ask_for_room(&self, writer: &mut Writer) -> Result<(), HistoryError> {
        if writer.below.is_full() {
            self.ready(writer, writer.spare() + 1)?;
        }
        Ok(())
    }

    /// The outcome of a write of the log: no room below hurts nothing.
    pub(crate) fn logged(
        &self,
        writer: &mut Writer,
        outcome: Result<(), DeviceError>,
    ) -> Result<(), HistoryError> {
        self.written_below(writer, 0, outcome)
    }

    /// The outcome of a write of the origin.
    pub(crate) fn brought_to_origin(
        &self,
        writer: &mut Writer,
        outcome: Result<(), DeviceError>,
    ) -> Result<(), HistoryError> {
        self.written_below(writer, 1, outcome)
    }

    fn written_below(
        &self,
        writer: &mut Writer,
        which: usize,
        outcome: Result<(), DeviceError>,
    ) -> Result<(), HistoryError> {
        let below = [STORE, ORIGIN][which];
        let is_refused = matches!(outcome, Err(DeviceError::NoSpace { .. }));
        if is_refused != writer.below.refused[which] {
            writer.below.refused[which] = is_refused;
            self.tell_of_room(writer);
            if is_refused {
                tracing::warn!(below, "a write found no room: its blocks stay in memory until there is some");
            }
        }
        if is_refused {
            return Err(HistoryError::NoRoomBelow { below });
        }
        self.latch(outcome)
    }

    /// Why there is no room in the log.
    pub(crate) fn no_room(&self, writer: &Writer) -> HistoryError {
        match writer.below.is_full() {
            true => HistoryError::NoRoomBelow { below: STORE },
            false => HistoryError::Full,
        }
    }

    fn tell_of_room(&self, writer: &Writer) {
        self.state.lock().lacking = writer.below.lacking();
    }
}
