//! A scrub: everything that anything shows, each block once, read from the media and verified; a
//! piece at a time.
//!
//! # Order
//! The snapshots by number, each without the blocks that its nearest already read ancestor has,
//! then the active state. An ancestor has a smaller number, so no block is read twice. Nothing is
//! held between pieces: the volume keeps working, snapshots are made and deleted, and space is
//! freed.
//!
//! # What a pass promises
//! A pass reads every block that existed when it began and is still shown when its turn comes.
//! Blocks written since then belong to the next pass. If a snapshot is made while the active state
//! is being read, the rest of the pass reads that snapshot, from the same position on: it has the
//! blocks of the active state, which may have released them by now. So a pass ends, however fast
//! snapshots come.
//!
//! The cursor is a few numbers that a restart keeps; losing it costs a pass, never a block.

use std::sync::Arc;

use cairn_base::SnapshotId;

use crate::error::VolumeError;
use crate::health::check::Finding;
use crate::read::region::{Look, Part, Piece, Position, Until};
use crate::volume::{Snapshot, Volume};

/// How far a scrub is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScrubCursor {
    /// Snapshots up to this one were read.
    pub done: SnapshotId,
    /// The newest snapshot when the pass began.
    pub newest: SnapshotId,
    /// The root being read: a snapshot, or 0 for the active state.
    pub current: Option<SnapshotId>,
    /// From where.
    pub position: Position,
}

/// The result of one step of a scrub.
#[derive(Debug, Clone, Default)]
pub struct ScrubStep {
    /// Blocks that were read.
    pub blocks: u64,
    /// The damaged blocks among them.
    pub findings: Vec<Finding>,
    /// The pass is over.
    pub finished: bool,
}

impl Volume {
    /// Begins a pass.
    pub fn begin_scrub(self: &Arc<Self>) -> ScrubCursor {
        let newest = self.snapshots().last().map_or(SnapshotId(0), |snapshot| snapshot.id);
        ScrubCursor { done: SnapshotId(0), newest, current: None, position: Position::START }
    }

    /// Reads about the next `blocks` blocks, past the cache, and advances the cursor. The
    /// superblock slots, the tables and the headers of the log device come first; damaged blocks of
    /// tables are rewritten from their copies.
    ///
    /// # Errors
    /// [`VolumeError::Closed`]; the cursor stays. Damage is not an error: the step reports it.
    pub fn scrub(self: &Arc<Self>, cursor: &mut ScrubCursor, blocks: u64) -> Result<ScrubStep, VolumeError> {
        let mut step = ScrubStep::default();
        if (cursor.done, cursor.current, cursor.position) == (SnapshotId(0), None, Position::START) {
            step.findings = self.label_findings(true);
        }
        let (snapshots, parent) = (self.snapshots(), self.state.lock().parent);
        let root = cursor.choose(&snapshots);
        let of_root = |id: SnapshotId| snapshots.iter().find(|snapshot| snapshot.id == id);
        let mut base = if root.0 == 0 { parent } else { of_root(root).map_or(SnapshotId(0), |s| s.parent) };
        while base.0 != 0 && (base > cursor.done || of_root(base).is_none()) {
            base = of_root(base).map_or(SnapshotId(0), |ancestor| ancestor.parent);
        }
        let region = match self.region(
            Part { root, base },
            cursor.position,
            Until::Blocks(blocks),
            Look::Everything,
        ) {
            // It was just deleted: the next step chooses again.
            Err(VolumeError::NoSuchSnapshot(_)) => return Ok(step),
            outcome => outcome?,
        };
        step.blocks = region.read;
        let damaged = region.pieces.iter().filter(|piece| !piece.sound);
        step.findings.extend(damaged.map(|Piece { vbn, place, .. }| Finding::DamagedBlock {
            vbn: *vbn,
            place: *place,
            snapshot: root,
        }));
        match region.next {
            Some(next) => cursor.position = next,
            None => {
                step.finished = root.0 == 0 || root > cursor.newest;
                *cursor = ScrubCursor {
                    done: cursor.done.max(root),
                    current: None,
                    position: Position::START,
                    ..*cursor
                };
            }
        }
        Ok(step)
    }
}

impl ScrubCursor {
    /// Chooses the root to read now.
    fn choose(&mut self, snapshots: &[Snapshot]) -> SnapshotId {
        let exists = |id: SnapshotId| snapshots.iter().any(|snapshot| snapshot.id == id);
        let current = match self.current {
            Some(id) if id.0 != 0 && exists(id) => return id,
            // Its remaining blocks are in the active state, or in a snapshot made of that.
            Some(id) if id > self.newest => Some(SnapshotId(0)),
            // Its remaining blocks are in its children.
            Some(id) if id.0 != 0 => None,
            current => current,
        };
        if current.is_none() {
            self.position = Position::START;
        }
        let next = snapshots.iter().map(|snapshot| snapshot.id).find(|id| *id > self.done);
        let chosen = match (current, next) {
            (None, Some(next)) => next,
            (Some(_), Some(next)) if next > self.newest => next,
            _ => SnapshotId(0),
        };
        self.current = Some(chosen);
        chosen
    }
}
