//! Retention in steps: history older than an age keeps only one instant an interval.
//!
//! 1. The superblock records how far each step has come. From then on a view that asks for an
//!    instant there gets the last kept one. The end of a stretch is itself an instant of its
//!    interval, and each interval is a multiple of the finer ones, so it stays one.
//! 2. Versions that no kept instant shows leave the index: of redos of a block in one window all
//!    but the last, of undos all but the first. Their places become free with their segments, by a
//!    superblock that records step 1 as well.
//!
//! A cut, or an opening, brings dropped versions back into the index as far as their segments
//! exist. No kept instant shows them; a round that begins with the opening drops them again.
//! Instants that views hold, and targets of reverts, are in no stretch that is thinned.

use cairn_format::history::{Granularity, NO_LBA};

use crate::HistoryError;
use crate::history::History;
use crate::index::{Key, Version};
use crate::log::Writer;
use crate::timeline::end_before;

/// Versions that a slice examines.
const SLICE: usize = 4096;
/// A thinning is due after this part of its age.
const ROUNDS: u64 = 16;

/// A running round of thinning.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Thinning {
    cursor: Key,
}

impl History {
    /// Begins a round when one is due; false otherwise.
    pub(crate) fn begin_thinning(&self, writer: &mut Writer) -> Result<bool, HistoryError> {
        let steps = {
            let mut state = self.state.lock();
            let state = &mut *state;
            let now = self.clock.now().0.max(state.last);
            let mut steps = writer.superblock.thinned.clone();
            let mut any = false;
            // A younger step thins no further than the older steps have reached.
            let mut limit = u64::MAX;
            for step in &mut steps {
                let wanted = now.saturating_sub(step.after_ns).min(limit);
                let allowed = self.allowed(state, wanted, true).unwrap_or(0);
                let until = end_before(allowed, step.every_ns).unwrap_or(0);
                let pause = step.every_ns.max(step.after_ns / ROUNDS);
                if until > state.start && until > step.until_ns.saturating_add(pause) {
                    step.until_ns = until;
                    any = true;
                }
                limit = step.until_ns;
            }
            if !any {
                return Ok(false);
            }
            steps
        };
        writer.superblock.thinned = steps;
        self.write_superblock(writer)?;
        self.sync_store(writer)?;
        let mut state = self.state.lock();
        state.timeline.thin(&writer.superblock.thinned);
        // Earlier lookups of a read may be invalid.
        state.epoch += 1;
        writer.thinning = Some(Thinning::default());
        Ok(true)
    }

    /// Continues a round; true when it ends.
    pub(crate) fn thin_slice(&self, writer: &mut Writer) -> bool {
        let Some(thinning) = writer.thinning else { return true };
        let blocks = writer.superblock.segment_blocks;
        let mut state = self.state.lock();
        let state = &mut *state;
        let until = writer.superblock.thinned.first().map_or(0, |step| step.until_ns);
        let mut dropped: Vec<Version> = Vec::new();
        let mut before: Option<Version> = None;
        let mut seen = 0;
        let next = state.index.scan(thinning.cursor, usize::MAX, |version| {
            if version.lba == NO_LBA {
                return false;
            }
            let same_block = before.is_some_and(|before| before.lba == version.lba);
            if !same_block && seen >= SLICE {
                return false;
            }
            seen += 1;
            if let Some(earlier) = before.filter(|_| same_block && version.time <= until)
                && state.timeline.same_window(earlier.time, version.time)
            {
                if earlier.is_redo() && version.is_redo() {
                    dropped.push(earlier);
                } else if earlier.is_undo() && version.is_undo() {
                    dropped.push(*version);
                    return true;
                }
            }
            before = Some(*version);
            true
        });
        for version in &dropped {
            if let Some(version) = state.index.remove(version.key()) {
                self.forget(state, blocks, &version);
            }
        }
        state.epoch += 1;
        match next.filter(|(lba, ..)| *lba != NO_LBA) {
            Some(cursor) => {
                writer.thinning = Some(Thinning { cursor });
                false
            }
            None => {
                writer.thinning = None;
                true
            }
        }
    }
}

/// Whether steps fit the granularity and each other: the rule that they break.
pub(crate) fn check_steps(
    granularity: Granularity,
    steps: impl Iterator<Item = (u64, u64)>,
) -> Result<(), &'static str> {
    let mut finer = match granularity {
        Granularity::EveryWrite => 1,
        Granularity::Interval(ns) => ns,
        Granularity::Marks => 0,
    };
    let mut younger = 0;
    for (after, every) in steps {
        if finer == 0 {
            return Err("instants that are kept at marks only are not thinned: a mark stays");
        }
        if every <= finer || !every.is_multiple_of(finer) {
            return Err("each interval is a whole number of the one before");
        }
        if after <= younger || after < every {
            return Err("each step begins later than the one before, and is no shorter than its interval");
        }
        (finer, younger) = (every, after);
    }
    Ok(())
}
