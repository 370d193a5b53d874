//! Going back: the device shows an earlier instant at once, and the blocks are copied in the
//! background.

use cairn_base::Timestamp;
use cairn_format::history::{MarkContent, NO_LBA, REVERTS_MAX, RevertState};

use crate::HistoryError;
use crate::destage::Work;
use crate::history::{History, When};
use crate::index::Version;
use crate::log::Writer;
use crate::resolve::NOW;
use crate::room::RESERVE;

/// Versions that a slice of the background copy examines.
const SLICE: usize = 4096;
/// How the marks begin that reverts set.
pub(crate) const BEFORE: &str = "before-revert-";

/// The time of the revert that has set a mark at `before`.
pub(crate) fn after_mark(before: u64) -> u64 {
    before + 1
}

/// The result of a revert.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reverted {
    /// The instant that the device shows now.
    pub instant: Timestamp,
    /// The mark of the instant before the revert: reverting to it undoes this one.
    pub undo: String,
}

impl History {
    /// Shows the device as it was at `at`, or at the last kept instant before. It is durable when
    /// this returns, and can itself be undone. Close clients' sessions first: their caches hold
    /// content of another time.
    pub fn revert(&self, at: impl Into<When>) -> Result<Reverted, HistoryError> {
        let at = at.into();
        let _alone = self.merge.write();
        let mut writer = self.writer.lock();
        let writer = &mut *writer;
        self.flush_with(writer)?;
        let target = self.target_of(at)?;
        let mut copied = self.check_room_to_revert(writer, target, 0)?;
        if !self.ready(writer, self.segments_to_revert(writer, copied))? {
            // The required copies are known now.
            copied = self.check_room_to_revert(writer, target, 0)?;
        }
        self.make_room_beside(writer, target)?;
        // No write happens meanwhile: `merge` is held.
        let (before, time, undo) = {
            let mut state = self.state.lock();
            let state = &mut *state;
            let before = self.stamp(state);
            // The next stamp, whatever the clock shows: once the copy ends only the mark records
            // this cut.
            let time = after_mark(before);
            state.last = time;
            let number = (1..).find(|number| {
                let name = format!("{BEFORE}{number}");
                !state.marks.values().any(|mark| mark.name == name)
            });
            (before, time, format!("{BEFORE}{}", number.unwrap_or(0)))
        };
        self.write_mark(writer, before, MarkContent { name: undo.clone(), consistent: false })?;
        writer.superblock.reverts.push(RevertState { time, target, cursor: 0 });
        writer.owed.push(copied);
        writer.superblock.last_ns = writer.superblock.last_ns.max(time);
        self.write_superblock(writer)?;
        self.sync(writer)?;
        let mut state = self.state.lock();
        state.timeline.cut(time);
        state.reverts.push(RevertState { time, target, cursor: 0 });
        state.reads.clear();
        state.epoch += 1;
        Ok(Reverted { instant: Timestamp(target), undo })
    }

    /// Whether a revert to `at` would be refused, without one.
    pub fn check_revert(&self, at: impl Into<When>) -> Result<(), HistoryError> {
        let at = at.into();
        let writer = self.writer.lock();
        let target = self.target_of(at)?;
        let waiting = self.state.lock().cache.len() as u64;
        self.check_room_to_revert(&writer, target, waiting).map(|_| ())
    }

    /// The target instant of a revert to `at`.
    fn target_of(&self, at: When) -> Result<u64, HistoryError> {
        let mut state = self.state.lock();
        if state.reverts.len() >= REVERTS_MAX {
            return Err(HistoryError::TooManyReverts);
        }
        self.reach_by_time(&mut state, at)
    }

    /// Makes room for a mark, and leaves `target` in the window.
    fn make_room_beside(&self, writer: &mut Writer, target: u64) -> Result<(), HistoryError> {
        self.state.lock().held = Some(target);
        let made = self.ensure_room(writer, 0);
        self.state.lock().held = None;
        made
    }

    /// One slice of the background copy of the oldest revert; false when there is none.
    pub(crate) fn copy_slice(&self, writer: &mut Writer) -> Result<bool, HistoryError> {
        let Some(revert) = self.state.lock().reverts.first().copied() else { return Ok(false) };
        self.ensure_free_for_copy(writer)?;
        let copies = self.small_batch(writer);
        let (lbas, next) = {
            let state = self.state.lock();
            let mut lbas: Vec<u64> = Vec::new();
            let mut seen = 0;
            let mut next = None;
            let mut block = None;
            let rest = state.index.scan((revert.cursor, 0, 0), usize::MAX, |version: &Version| {
                if version.lba == NO_LBA {
                    return false;
                }
                if block != Some(version.lba) && (seen >= SLICE || lbas.len() >= copies) {
                    next = Some(version.lba);
                    return false;
                }
                block = Some(version.lba);
                seen += 1;
                let within = version.time > revert.target && version.time <= revert.time;
                if within && lbas.last() != Some(&version.lba) {
                    lbas.push(version.lba);
                }
                true
            });
            debug_assert!(next.is_none() || rest.is_some());
            (lbas, next)
        };
        self.copy_blocks(writer, revert, &lbas)?;
        // The copies are durable before any record says so.
        self.settle_copies(writer)?;
        let mut state = self.state.lock();
        if let Some(next) = next {
            state.reverts[0].cursor = next;
            writer.superblock.reverts[0].cursor = next;
            state.epoch += 1;
            return Ok(true);
        }
        drop(state);
        writer.superblock.reverts.remove(0);
        writer.owed.remove(0);
        writer.too_full_to_move = None;
        self.write_superblock(writer)?;
        self.sync_store(writer)?;
        let mut state = self.state.lock();
        state.reverts.remove(0);
        state.epoch += 1;
        Ok(true)
    }

    /// The background copy needs room like any write, and may discard instants before its target.
    /// The count ensured that this is enough.
    fn ensure_free_for_copy(&self, writer: &mut Writer) -> Result<(), HistoryError> {
        while !self.ready(writer, RESERVE)? && self.win_room(writer)? {}
        if writer.spare() < 2 { Err(self.no_room(writer)) } else { Ok(()) }
    }

    fn settle_copies(&self, writer: &mut Writer) -> Result<(), HistoryError> {
        self.settle_current(writer)?;
        self.sync(writer)
    }

    /// Copies blocks before a client's write to them is placed, for every revert that has not
    /// reached them yet.
    pub(crate) fn copy_before_writes(&self, writer: &mut Writer, lbas: &[u64]) -> Result<(), HistoryError> {
        let reverts = self.state.lock().reverts.clone();
        for revert in reverts {
            let lbas: Vec<u64> = lbas.iter().copied().filter(|lba| *lba >= revert.cursor).collect();
            if !lbas.is_empty() {
                self.copy_blocks(writer, revert, &lbas)?;
                self.settle_copies(writer)?;
            }
        }
        Ok(())
    }

    /// Writes the restored content of a revert as a write of its time: for those blocks that have
    /// changed since its target and not since the revert.
    fn copy_blocks(
        &self,
        writer: &mut Writer,
        revert: RevertState,
        lbas: &[u64],
    ) -> Result<(), HistoryError> {
        let changed: Vec<u64> = {
            let state = self.state.lock();
            let is_due = |lba: &u64| {
                let since = state.index.first_after(*lba, revert.target);
                let newest = state.index.last_at(*lba, NOW);
                since.is_some_and(|since| since.time <= revert.time)
                    && newest.is_some_and(|newest| newest.time <= revert.time)
            };
            lbas.iter().copied().filter(is_due).collect()
        };
        let copied = changed.len() as u64;
        let contents = self.contents_at(&changed, revert.time);
        let mut work: Vec<Work> = Vec::with_capacity(changed.len());
        for (lba, content) in changed.into_iter().zip(contents) {
            let content = self.brought_back(lba, revert.time, content)?;
            work.push((lba, vec![(revert.time, content)]));
        }
        self.place(writer, work)?;
        let at = writer.superblock.reverts.iter().position(|known| known.time == revert.time);
        if let Some(owed) = at.and_then(|at| writer.owed.get_mut(at)) {
            *owed = owed.saturating_sub(copied);
        }
        Ok(())
    }
}
