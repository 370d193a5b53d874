//! Moves the window: versions that newer instants still need are written elsewhere, the rest is
//! dropped.
//!
//! 1. The superblock records that the window begins later. From then on older instants are
//!    unreachable.
//! 2. Logging: of each block the last version up to there goes to the origin. Splits: where the
//!    block has a later version, it becomes that one's undo. Unreadable versions are lost from the
//!    start of the window on.
//! 3. Both devices are flushed; the superblock records that entries up to there do not count.
//! 4. They leave the index. Unneeded segments are free after a further superblock.
//!
//! A cut before 3 leaves all versions; 2 is done again by the next move, with the same content.

use cairn_format::history::{NO_LBA, Placement};

use crate::HistoryError;
use crate::content::Content;
use crate::destage::undo;
use crate::history::History;
use crate::index::{Key, Version};
use crate::log::Writer;

/// Versions that a slice examines.
const SLICE: usize = 4096;
/// The maximum number of blocks that a slice moves beside writers, which wait for its end.
pub(crate) const MOVES: usize = 64;
/// Bytes of blocks that a slice moves at most when writers wait for the end of the move anyway.
const AWAITED_BYTES: usize = 8 << 20;

/// A running move of the window.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Trim {
    to: u64,
    cursor: Key,
    /// Blocks that it will still write to the log, at most.
    pub(crate) owed: u64,
}

impl Trim {
    /// A move that has not moved anything yet.
    pub(crate) fn new(to: u64, owed: u64) -> Self {
        Self { to, cursor: (0, 0, 0), owed }
    }

    /// The block that is next.
    pub(crate) fn reached(&self) -> u64 {
        self.cursor.0
    }
}

/// The findings of a slice.
#[derive(Default)]
struct SliceFindings {
    /// To the origin.
    fold: Vec<Version>,
    /// To be the undo of that time.
    base: Vec<(Version, u64)>,
    /// Lost already, and still at the start of the window.
    lost: Vec<u64>,
}

impl History {
    /// Begins to move the window: entries up to `to` will not count, the oldest instant will be
    /// `start`, which is kept and not before `to`. It writes `owed` blocks to the log at most.
    pub(crate) fn begin_trim(
        &self,
        writer: &mut Writer,
        to: u64,
        start: u64,
        owed: u64,
    ) -> Result<(), HistoryError> {
        debug_assert!(writer.trim.is_none(), "one move at a time");
        // A version that waits in the cache is later: entries up to `to` will not count.
        // Split-stream: the origin has the content that the log dropped.
        self.settle_current(writer)?;
        {
            let mut state = self.state.lock();
            assert!(
                state.cache.oldest_time().is_none_or(|oldest| to < oldest),
                "what waits is later than the new start"
            );
            state.start = state.start.max(start);
            state.last = state.last.max(to);
            state.trimming = Some(to);
        }
        writer.superblock.start_ns = start.max(writer.superblock.start_ns);
        self.write_superblock(writer)?;
        self.sync_store(writer)?;
        writer.trim = Some(Trim::new(to, owed));
        Ok(())
    }

    /// Makes a move of the window for which writers wait, to its end.
    pub(crate) fn trim_all(&self, writer: &mut Writer) -> Result<(), HistoryError> {
        while !self.trim_slice(writer, self.moves_awaited())? {}
        Ok(())
    }

    /// Blocks of a slice for which writers wait.
    pub(crate) fn moves_awaited(&self) -> usize {
        (AWAITED_BYTES / self.block_bytes as usize).max(MOVES)
    }

    /// Continues a move of the window, with at most `moves` blocks; true when it ends.
    pub(crate) fn trim_slice(&self, writer: &mut Writer, moves: usize) -> Result<bool, HistoryError> {
        let Some(mut trim) = writer.trim else { return Ok(true) };
        let (found, next) = self.find(&trim, moves);
        let rebased = found.base.len() as u64;
        let to = trim.to;
        let mut lost = found.lost;
        lost.extend(self.fold(writer, found.fold)?);
        lost.extend(self.rebase(writer, found.base)?);
        self.write_lost(writer, &lost.into_iter().map(|lba| (lba, to)).collect::<Vec<_>>())?;
        match next {
            Some(next) => {
                trim.cursor = next;
                trim.owed = trim.owed.saturating_sub(rebased);
                writer.trim = Some(trim);
                Ok(false)
            }
            None => {
                self.finish_trim(writer, trim.to)?;
                Ok(true)
            }
        }
    }

    /// Versions of the next slice that have to be brought elsewhere.
    fn find(&self, trim: &Trim, moves: usize) -> (SliceFindings, Option<Key>) {
        let mut found = SliceFindings::default();
        let logging = self.placement == Placement::Logging;
        let state = self.state.lock();
        // The last version up to `to` of the examined block, until its next version is known.
        let mut last: Option<Version> = None;
        let mut block = None;
        let settle =
            |last: Option<Version>, next: Option<&Version>, found: &mut SliceFindings| match (last, next) {
                (Some(last), _) if !last.is_redo() => {}
                // It has the time of the cut from before an opening.
                (Some(last), _) if last.is_lost() && last.time == trim.to => {}
                (Some(last), _) if last.is_lost() => found.lost.push(last.lba),
                (Some(last), _) if logging => found.fold.push(last),
                (Some(last), Some(next)) if !next.is_undo() => found.base.push((last, next.time)),
                _ => {}
            };
        let mut seen = 0;
        let next = state.index.scan(trim.cursor, usize::MAX, |version| {
            if version.lba == NO_LBA {
                return false;
            }
            if block != Some(version.lba) {
                if seen >= SLICE || found.fold.len() + found.base.len() + found.lost.len() >= moves {
                    return false;
                }
                settle(last.take(), None, &mut found);
                block = Some(version.lba);
            }
            seen += 1;
            if version.time <= trim.to {
                last = Some(*version);
            } else {
                settle(last.take(), Some(version), &mut found);
            }
            true
        });
        settle(last, None, &mut found);
        (found, next.filter(|(lba, ..)| *lba != NO_LBA))
    }

    /// Logging: versions go to the origin. Returns the lost blocks.
    fn fold(&self, writer: &mut Writer, versions: Vec<Version>) -> Result<Vec<u64>, HistoryError> {
        if versions.is_empty() {
            return Ok(Vec::new());
        }
        let contents = self.contents_of(&versions)?;
        let (found, lost) = apart(versions.iter().map(|version| version.lba).zip(contents));
        self.write_present(writer, found)?;
        Ok(lost)
    }

    /// Splits: versions become undos. Returns the lost blocks.
    fn rebase(&self, writer: &mut Writer, versions: Vec<(Version, u64)>) -> Result<Vec<u64>, HistoryError> {
        if versions.is_empty() {
            return Ok(Vec::new());
        }
        let redos: Vec<Version> = versions.iter().map(|(version, _)| *version).collect();
        let contents = self.contents_of(&redos)?;
        let times: Vec<(u64, u64)> = versions.iter().map(|(version, time)| (version.lba, *time)).collect();
        let (found, lost) = apart(times.into_iter().zip(contents));
        let pending = found.into_iter().map(|((lba, time), content)| undo(lba, time, content));
        let written = self.append(writer, pending.collect())?;
        self.publish(&mut self.state.lock(), writer.superblock.segment_blocks, &written);
        Ok(lost.into_iter().map(|(lba, _)| lba).collect())
    }

    fn finish_trim(&self, writer: &mut Writer, to: u64) -> Result<(), HistoryError> {
        self.sync(writer)?;
        writer.superblock.cut_ns = to.max(writer.superblock.cut_ns);
        self.write_superblock(writer)?;
        self.sync_store(writer)?;
        let blocks = writer.superblock.segment_blocks;
        let mut state = self.state.lock();
        let state = &mut *state;
        let mut dropped = Vec::new();
        // The mark at the start itself can still be reached.
        state.index.retain(|version| version.counts(to), |version| dropped.push(*version));
        for version in &dropped {
            self.forget(state, blocks, version);
        }
        state.marks = state.marks.split_off(&to);
        let start = state.start;
        state.timeline.forget_before(start.min(to));
        state.trimming = None;
        state.epoch += 1;
        writer.trim = None;
        Ok(())
    }
}

/// Separates blocks with content from lost ones.
pub(crate) fn apart<T>(found: impl Iterator<Item = (T, Content)>) -> (Vec<(T, Content)>, Vec<T>) {
    let (lost, found): (Vec<_>, Vec<_>) = found.partition(|(_, content)| matches!(content, Content::Lost));
    (found, lost.into_iter().map(|(which, _)| which).collect())
}
