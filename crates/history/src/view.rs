//! A read-only device that shows one instant, and marks, which name instants.

use std::sync::Arc;

use cairn_base::Timestamp;
use cairn_device::{Device, DeviceError, Geometry, Operation, Request, Segments};
use cairn_format::history::{EntryKind, MARK_NAME_MAX, MarkContent, NO_LBA};

use crate::HistoryError;
use crate::device::join;
use crate::history::{History, State, When};
use crate::log::{Pending, Writer};
use crate::resolve::Piece;
use crate::revert::{BEFORE, after_mark};
use crate::status::Mark;

/// The device at an instant. It holds the window: the instant stays, unless the store is full.
pub struct HistoryView {
    history: Arc<History>,
    at: u64,
}

impl History {
    /// The device at the last kept instant up to `at`. Ready at once, however much history there
    /// is; it is the same after any cut.
    ///
    /// # Errors
    /// [`HistoryError::ClockPutBack`] where the clock has shown that time twice: a mark names an
    /// instant then.
    pub fn view(self: &Arc<Self>, at: impl Into<When>) -> Result<HistoryView, HistoryError> {
        let at = at.into();
        self.view_of(|state| self.reach_by_time(state, at))
    }

    /// The device at an instant that was shown before, as [`HistoryView`] returned it;
    /// [`HistoryError::BeforeWindow`] if it is no longer kept. Another one in its place would be a
    /// wrong disk.
    pub fn view_again(self: &Arc<Self>, instant: Timestamp) -> Result<HistoryView, HistoryError> {
        let view = self.view_of(|state| self.reach(state, instant.0))?;
        if view.instant() == instant { Ok(view) } else { Err(HistoryError::BeforeWindow) }
    }

    fn view_of(
        self: &Arc<Self>,
        reach: impl FnOnce(&mut State) -> Result<u64, HistoryError>,
    ) -> Result<HistoryView, HistoryError> {
        // The window and its steps move under this lock: the instant is held before they move, or
        // is one that they keep.
        let mut writer = self.writer.lock();
        let instant = {
            let mut state = self.state.lock();
            let state = &mut *state;
            let instant = reach(state)?;
            *state.views.entry(instant).or_default() += 1;
            instant
        };
        let view = HistoryView { history: self.clone(), at: instant };
        // Writes before the instant that wait in memory go where the view finds them.
        let waits = |history: &History| {
            history.state.lock().cache.oldest_time().is_some_and(|oldest| oldest <= instant)
        };
        while waits(self) && self.destage(&mut writer)? {}
        self.keep(&mut writer, instant)?;
        drop(writer);
        if self.state.lock().start > instant {
            return Err(HistoryError::BeforeWindow);
        }
        Ok(view)
    }

    /// Makes the visible state of an instant durable: the writes up to it, and the rule that no
    /// later write gets a stamp up to it, after any opening and at any clock reading. The state may
    /// be requested again after a cut, and a clone depends on it.
    fn keep(&self, writer: &mut Writer, instant: u64) -> Result<(), HistoryError> {
        let flushed = {
            let state = self.state.lock();
            // Then nothing is written any more, and readable content is shown.
            if state.failed.is_some() {
                return Ok(());
            }
            state.flushed
        };
        if instant > flushed {
            self.sync(writer)?;
        }
        if instant > writer.durable_ns {
            self.write_superblock(writer)?;
            self.sync_store(writer)?;
        }
        Ok(())
    }

    /// Names the present instant: all that was acknowledged before is in its image, and all of it
    /// is durable. `consistent`: the owner had brought the device to rest.
    pub fn mark(&self, name: &str, consistent: bool) -> Result<Mark, HistoryError> {
        if !(1..=MARK_NAME_MAX).contains(&name.len()) {
            return Err(HistoryError::Refused { what: "the name", rule: "it has 1 to 64 bytes" });
        }
        let mut writer = self.writer.lock();
        let writer = &mut *writer;
        self.check_failed()?;
        let time = {
            let mut state = self.state.lock();
            let state = &mut *state;
            if state.marks.values().any(|mark| mark.name == name) {
                return Err(HistoryError::MarkTaken);
            }
            let time = self.stamp(state);
            state.timeline.cut(time);
            if name.starts_with(BEFORE) {
                // An opening recognises it by its name as that of a revert, which has the next
                // stamp.
                state.last = after_mark(time);
                state.timeline.cut(state.last);
            }
            time
        };
        let content = MarkContent { name: name.to_owned(), consistent };
        // Making room for it may take all that was before, and not the instant itself.
        self.state.lock().held = Some(time);
        let outcome = self.flush_with(writer).and_then(|()| {
            self.ensure_room(writer, 0)?;
            self.write_mark(writer, time, content)?;
            self.sync(writer)
        });
        self.state.lock().held = None;
        if let Err(error) = outcome {
            self.state.lock().timeline.uncut(time);
            return Err(error);
        }
        Ok(Mark { name: name.to_owned(), time: Timestamp(time), consistent })
    }

    /// The instant of a mark.
    pub fn marked(&self, name: &str) -> Result<Timestamp, HistoryError> {
        let state = self.state.lock();
        let found = state.marks.iter().find(|(_, mark)| mark.name == name);
        found.map(|(time, _)| Timestamp(*time)).ok_or(HistoryError::NoSuchMark)
    }

    /// Puts a mark into the log and the timeline.
    pub(crate) fn write_mark(
        &self,
        writer: &mut Writer,
        time: u64,
        mark: MarkContent,
    ) -> Result<(), HistoryError> {
        let data = Some(Segments::copy_of(&mark.to_bytes()));
        let versions =
            self.append(writer, vec![Pending { lba: NO_LBA, time, kind: EntryKind::Mark, data }])?;
        let mut state = self.state.lock();
        self.publish(&mut state, writer.superblock.segment_blocks, &versions);
        state.timeline.cut(time);
        state.marks.insert(time, mark);
        Ok(())
    }
}

impl HistoryView {
    /// The instant.
    pub fn instant(&self) -> Timestamp {
        Timestamp(self.at)
    }
}

impl Drop for HistoryView {
    fn drop(&mut self) {
        let mut state = self.history.state.lock();
        if let Some(count) = state.views.get_mut(&self.at) {
            *count -= 1;
            if *count == 0 {
                state.views.remove(&self.at);
            }
        }
    }
}

impl Device for HistoryView {
    fn geometry(&self) -> Geometry {
        let length = self.history.length;
        Geometry { length, alignment: 1, read_only: true, trims: false, fast_zeroes: false }
    }

    fn run(&self, batch: &mut [Operation]) {
        let geometry = self.geometry();
        for operation in batch.iter_mut().filter(|operation| operation.is_pending()) {
            let outcome =
                geometry.admit(operation.request()).and_then(|()| self.perform(operation.request()));
            operation.finish(outcome);
        }
    }
}

impl HistoryView {
    fn perform(&self, request: &Request) -> Result<Segments, DeviceError> {
        let Request::Read { offset, length } = request else { return Ok(Segments::default()) };
        let pieces: Vec<Piece> = self.history.pieces(*offset, u64::from(*length)).collect();
        join(self.history.read_pieces(&pieces, self.at).into_iter())
    }
}
