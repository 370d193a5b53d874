//! Owed room: the blocks that the background copy of a revert, or a move of the window, will still
//! write to the log.
//!
//! A revert holds its target until its copy ends, so that the window cannot move past it. A copy
//! without room could neither continue nor be abandoned, and the device would take no writes any
//! more. So the room is counted first: a revert whose copy does not fit is refused, without any
//! change. Until the copy ends, writes leave as much room as it needs, or wait until all of it is
//! copied. The same holds for the blocks that a move of the window writes, in the split placements,
//! before it frees any.
//!
//! Counted is the worst: every block with content, every batch in a record of its own. In a small
//! store that is up to a quarter too much.

use cairn_base::BLOCK_SIZE;
use cairn_format::history::{HistoryRecord, NO_LBA, PLACE_UNIT, Placement};

use crate::HistoryError;
use crate::history::History;
use crate::index::Version;
use crate::log::{RECORD_BYTES, Writer};
use crate::resolve::NOW;
use crate::room::RESERVE;

/// Versions that are examined under one lock.
const SLICE: usize = 4096;
const BLOCK: u64 = BLOCK_SIZE as u64;

/// The room that a move of the window gains or costs.
pub(crate) enum Price {
    /// It can be made, and writes at most `owed` blocks to the log.
    Pays { owed: u64 },
    /// It would take the room of a copy.
    NoGain,
    /// It would stop in the middle.
    NoRoom,
}

/// The remaining versions once the window begins at an instant.
struct Left {
    /// Bytes that are still needed of each segment.
    needed: Vec<u64>,
    /// Blocks whose last version before it becomes the undo of the next one.
    rebased: u64,
}

impl History {
    /// Segments that reverts and the moving window will still take.
    pub(crate) fn owed(&self, writer: &Writer) -> usize {
        let copied: u64 = writer.owed.iter().sum();
        let rebased = writer.trim.map_or(0, |trim| trim.owed);
        self.segments_of_copy(writer, copied) + self.segments_of_move(writer, rebased)
    }

    /// The maximum number of segments that this many blocks take when a revert copies them.
    fn segments_of_copy(&self, writer: &Writer, blocks: u64) -> usize {
        // Hybrid placement may keep a base, and end a redo, where it copies.
        let (entries, contents) = if self.placement == Placement::Hybrid { (3, 2) } else { (1, 1) };
        self.segments_of(writer, blocks, entries, contents)
    }

    /// The maximum number of segments that this many blocks take when the window's move writes them
    /// again.
    fn segments_of_move(&self, writer: &Writer, blocks: u64) -> usize {
        self.segments_of(writer, blocks, 1, 1)
    }

    /// Segments that this many blocks take in small batches, each with a number of entries and
    /// contents.
    fn segments_of(&self, writer: &Writer, blocks: u64, entries: usize, contents: u64) -> usize {
        if blocks == 0 {
            return 0;
        }
        let versions = self.state.lock().index.len();
        let content = u64::from(self.block_bytes).next_multiple_of(PLACE_UNIT);
        let batch = self.small_batch(writer) as u64;
        let bytes = batch * contents * content;
        let heads = HistoryRecord::head_blocks(entries * batch as usize) + bytes / RECORD_BYTES;
        // A batch that has examined many versions ends early.
        let early = (versions / SLICE * (writer.superblock.reverts.len() + 1)) as u64 * (heads + 1);
        let all = blocks.div_ceil(batch) * (heads + bytes.div_ceil(BLOCK)) + early;
        all.div_ceil(self.usable_blocks(writer, entries)) as usize
    }

    /// Usable blocks of a segment: without its ends, its summary, and the rest before its end.
    fn usable_blocks(&self, writer: &Writer, entries: usize) -> u64 {
        let segment = writer.superblock.segment_blocks;
        let content = u64::from(self.block_bytes).next_multiple_of(PLACE_UNIT);
        let summary = HistoryRecord::head_blocks((segment * BLOCK / content) as usize * entries);
        segment.saturating_sub(4 + summary + content.div_ceil(BLOCK)).max(1)
    }

    /// Blocks from `from` on whose last version is after `target` and not after `time`: those that
    /// a revert has to copy.
    fn changed(&self, from: u64, target: u64, time: u64) -> u64 {
        let is_due = |newest: Option<Version>| {
            u64::from(newest.is_some_and(|newest| newest.time > target && newest.time <= time))
        };
        let mut count = 0;
        let mut cursor = Some((from, 0, 0));
        while let Some(start) = cursor {
            let state = self.state.lock();
            let mut seen = 0;
            let mut newest: Option<Version> = None;
            let next = state.index.scan(start, usize::MAX, |version| {
                if version.lba == NO_LBA {
                    return false;
                }
                if newest.is_none_or(|newest| newest.lba != version.lba) {
                    if seen >= SLICE {
                        return false;
                    }
                    count += is_due(newest);
                }
                seen += 1;
                newest = Some(*version);
                true
            });
            count += is_due(newest);
            cursor = next.filter(|(lba, ..)| *lba != NO_LBA);
        }
        count
    }

    /// Counts the blocks owed to each revert at an opening.
    pub(crate) fn count_owed(&self, writer: &mut Writer) {
        writer.owed.clear();
        for revert in writer.superblock.reverts.clone() {
            let changed = self.changed(revert.cursor, revert.target, revert.time);
            let owed = changed + brought_back(writer, revert.target);
            writer.owed.push(owed);
        }
    }

    /// The remaining versions once the window begins at `to`.
    fn left(&self, writer: &Writer, to: u64) -> Left {
        let segment_blocks = writer.superblock.segment_blocks;
        let mut left = Left { needed: vec![0; writer.superblock.segments as usize], rebased: 0 };
        let mut cursor = Some((0, 0, 0));
        // The version before the examined one.
        let mut before: Option<Version> = None;
        while let Some(start) = cursor {
            let state = self.state.lock();
            cursor = state.index.scan(start, SLICE, |version| {
                let stays = version.time > to || version.lba == NO_LBA && version.time == to;
                if stays {
                    let segment = self.segment_of(version.place, segment_blocks);
                    left.needed[segment] += self.weight_of(version);
                }
                let last = before.replace(*version).filter(|last| last.lba == version.lba);
                let is_next = last.is_some_and(|last| last.is_redo() && last.time <= to && version.time > to);
                left.rebased += u64::from(self.rebases() && is_next && !version.is_undo());
                true
            });
        }
        left
    }

    /// Blocks that a move of the window to `to` has to write again before it frees anything.
    pub(crate) fn rebased(&self, writer: &Writer, to: u64) -> u64 {
        if self.rebases() { self.left(writer, to).rebased } else { 0 }
    }

    /// Prices a move of the window to `to`: a move that stopped halfway for lack of room could
    /// never be finished.
    pub(crate) fn price(&self, writer: &mut Writer, to: u64) -> Result<Price, HistoryError> {
        if !self.rebases() {
            return Ok(Price::Pays { owed: 0 });
        }
        let left = self.left(writer, to);
        let taken = self.segments_of_move(writer, left.rebased);
        if left.rebased > 0 && !self.ready(writer, taken + 1)? {
            return Ok(Price::NoRoom);
        }
        // While a copy needs the room, no move may take more than it frees.
        let is_owed = writer.owed.iter().any(|owed| *owed > 0);
        Ok(match is_owed && self.freed(writer, &left.needed) <= taken {
            true => Price::NoGain,
            false => Price::Pays { owed: left.rebased },
        })
    }

    /// True where versions that leave the window become undos of later ones.
    fn rebases(&self) -> bool {
        !matches!(self.placement, Placement::Logging | Placement::Checkpointing)
    }

    /// Segments that are empty, or can be emptied into others, when only this many bytes of each
    /// are needed.
    fn freed(&self, writer: &Writer, needed: &[u64]) -> usize {
        let segment_bytes = writer.superblock.segment_blocks * BLOCK;
        let (mut empty, mut sparse, mut moved) = (0, 0, 0);
        for ((index, segment), needed) in self.state.lock().segments.iter().enumerate().zip(needed) {
            if segment.sequence == 0 || !segment.closed || segment.stuck || index == writer.segment {
                continue;
            }
            if *needed == 0 {
                empty += 1;
            } else if *needed < segment_bytes / 2 {
                sparse += 1;
                moved += needed;
            }
        }
        let kept = moved.div_ceil(self.usable_blocks(writer, 1) * BLOCK) as usize + 1;
        empty + usize::saturating_sub(sparse, kept)
    }

    /// Refuses a revert to `target` whose copy would find no room; blocks that it copies at most.
    /// `waiting`: blocks that are in memory.
    pub(crate) fn check_room_to_revert(
        &self,
        writer: &Writer,
        target: u64,
        waiting: u64,
    ) -> Result<u64, HistoryError> {
        let blocks = self.changed(0, target, NOW) + waiting + brought_back(writer, target);
        let need = self.segments_to_revert(writer, blocks);
        let mut have = writer.left();
        if have < need {
            have = have.max(self.spare_behind(writer, target));
        }
        if have >= need {
            return Ok(blocks);
        }
        let segment_bytes = writer.superblock.segment_blocks * BLOCK;
        Err(HistoryError::NoRoomToRevert { missing: (need - have) as u64 * segment_bytes })
    }

    /// Segments that have to be spare for a revert that copies this many blocks.
    pub(crate) fn segments_to_revert(&self, writer: &Writer, blocks: u64) -> usize {
        let copied = blocks + writer.owed.iter().sum::<u64>();
        RESERVE + 1 + self.segments_of_copy(writer, copied)
    }

    /// Segments that are spare once the history before `target` is given up, as far as it may be.
    fn spare_behind(&self, writer: &Writer, target: u64) -> usize {
        let to = {
            let mut state = self.state.lock();
            let state = &mut *state;
            let now = self.clock.now().0.max(state.last);
            let floor = now.saturating_sub(state.window.floor.as_nanos() as u64);
            self.allowed(state, target.min(floor), false).unwrap_or(0).max(state.start)
        };
        let left = self.left(writer, to);
        let rebased = self.segments_of_move(writer, left.rebased);
        // Blocks that are written before any are freed must fit first.
        if writer.left() <= rebased {
            let live: Vec<u64> = self.state.lock().segments.iter().map(|segment| segment.live).collect();
            return writer.left() + self.freed(writer, &live);
        }
        (writer.left() + self.freed(writer, &left.needed)).saturating_sub(rebased)
    }
}

/// Blocks that are still to be copied for reverts after `target`: their copies are versions after
/// it.
fn brought_back(writer: &Writer, target: u64) -> u64 {
    let reverts = writer.superblock.reverts.iter().zip(&writer.owed);
    reverts.filter(|(revert, _)| revert.time > target).map(|(_, owed)| owed).sum()
}
