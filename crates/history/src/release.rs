//! Releases a history: its origin is a plain disk afterwards, with today's content.
//!
//! 1. *Beside clients*, [`History::fold_back`] copies reverts to their end. With the placement
//!    logging it moves the window up to the present, repeatedly, as long as that leaves less to
//!    move. Instants older than the last of these moves become unreachable.
//! 2. *Alone*, [`History::release`] does the rest of that, and then erases both superblocks.
//!
//! A cut before the superblocks are erased leaves a history, of fewer instants, and the move of its
//! window resumes at the next opening. The store is authoritative until then: nothing has been
//! served from the origin alone.

use cairn_base::BLOCK_SIZE;
use cairn_device::DeviceError;
use cairn_format::history::{Placement, SLOT_A, SLOT_B};

use crate::HistoryError;
use crate::history::History;
use crate::log::Writer;
use crate::recover::BLOCK;
use crate::trim::MOVES;

/// The maximum number of versions left to move while the device is unavailable: some hundredths of
/// a second.
const FEW: usize = 2048;

impl History {
    /// Does the work of a [release](Self::release) beside clients: afterwards the release has
    /// little left to do, unless clients write as fast as this can move. History goes, the youngest
    /// as well. `go_on` is asked between slices, with the blocks done and their total; when it
    /// returns false, this ends early with nothing lost. The same happens when a view holds an
    /// instant that would go.
    pub fn fold_back(&self, go_on: &dyn Fn(u64, u64) -> bool) -> Result<(), HistoryError> {
        // Before anything is given up for it.
        self.refuse_lost()?;
        let mut left = self.state.lock().index.len();
        while self.move_on(go_on)? && self.placement == Placement::Logging {
            if !self.begin_folding()? || !self.move_on(go_on)? {
                break;
            }
            let now = self.state.lock().index.len();
            if now <= FEW || now > left / 2 {
                break;
            }
            left = now;
        }
        Ok(())
    }

    /// Ends the running copies and the running move of the window, in slices; clients have their
    /// turn between them. False when it must stop.
    fn move_on(&self, go_on: &dyn Fn(u64, u64) -> bool) -> Result<bool, HistoryError> {
        loop {
            let reached = {
                let mut writer = self.writer.lock();
                let writer = &mut *writer;
                self.check_failed()?;
                if writer.trim.is_some() {
                    if self.trim_slice(writer, MOVES)? {
                        self.reclaim(writer)?;
                    }
                } else if !self.copy_slice(writer)? {
                    return Ok(true);
                }
                self.reached(writer)
            };
            self.room.notify_all();
            if !go_on(reached, self.blocks()) {
                return Ok(false);
            }
        }
    }

    /// The block that a running move or copy has reached.
    fn reached(&self, writer: &Writer) -> u64 {
        let copy = || self.state.lock().reverts.first().map_or(self.blocks(), |revert| revert.cursor);
        writer.trim.map_or_else(copy, |trim| trim.reached())
    }

    /// Begins to move the window up to the present, unless another operation has begun meanwhile.
    /// False when a view holds an instant that would go.
    fn begin_folding(&self) -> Result<bool, HistoryError> {
        let mut writer = self.writer.lock();
        let writer = &mut *writer;
        self.check_failed()?;
        let to = {
            let mut state = self.state.lock();
            let state = &mut *state;
            if !state.views.is_empty() {
                return Ok(false);
            }
            if writer.trim.is_some() || !state.reverts.is_empty() {
                return Ok(true);
            }
            let to = self.stamp(state);
            state.timeline.cut(to);
            // The work that makes room for the flush keeps the instant.
            state.held = Some(to);
            to
        };
        let flushed = self.flush_with(writer);
        self.state.lock().held = None;
        if let Err(error) = flushed {
            self.state.lock().timeline.uncut(to);
            return Err(error);
        }
        self.begin_trim(writer, to, to, 0)?;
        Ok(true)
    }

    /// Leaves the origin as a plain disk with today's content, and the store without a history.
    /// `progress` gets the blocks done, and their total. The device must not be in use meanwhile;
    /// afterwards it is out of service. A release that fails halfway leaves a history, of fewer
    /// instants, that can be used and released again.
    pub fn release(&self, progress: &dyn Fn(u64, u64)) -> Result<(), HistoryError> {
        // Before anything is given up for it.
        self.refuse_lost()?;
        self.let_wait(false);
        // All history goes, the youngest as well: the floor must not prevent that.
        let floor = std::mem::take(&mut self.state.lock().window.floor);
        let outcome = self.leave_origin(progress);
        if outcome.is_err() {
            self.state.lock().window.floor = floor;
            self.let_wait(true);
        }
        outcome
    }

    fn leave_origin(&self, progress: &dyn Fn(u64, u64)) -> Result<(), HistoryError> {
        let _alone = self.merge.write();
        let mut writer = self.writer.lock();
        let writer = &mut *writer;
        self.flush_with(writer)?;
        self.refuse_lost()?;
        while self.copy_slice(writer)? {
            progress(self.reached(writer), self.blocks());
        }
        self.trim_all(writer)?;
        if self.placement == Placement::Logging {
            let to = {
                let mut state = self.state.lock();
                self.stamp(&mut state)
            };
            self.begin_trim(writer, to, to, 0)?;
            while !self.trim_slice(writer, self.moves_awaited())? {
                progress(self.reached(writer), self.blocks());
            }
        }
        // Losses found on the way: a plain disk could not report them.
        self.refuse_lost()?;
        self.sync(writer)?;
        let zeroes = [0; BLOCK_SIZE];
        for slot in [SLOT_A, SLOT_B] {
            self.latch(self.store.write_from(slot * BLOCK, &zeroes))?;
        }
        self.latch(self.store.flush())?;
        progress(self.blocks(), self.blocks());
        self.state.lock().failed = Some(DeviceError::OutOfService);
        Ok(())
    }
}
