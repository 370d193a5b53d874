//! Riders of a consistency point: the change of the volume that it commits along with the changes
//! of clients.

use cairn_base::{Generation, SnapshotId, Timestamp};
use cairn_format::SnapshotEntry;

use crate::commit::excluded::Excluded;
use crate::log::intent::LogArea;

/// The rider of a consistency point.
#[derive(Debug, Clone)]
pub(crate) enum Rider {
    /// Nothing.
    None,
    /// A snapshot of the new root.
    Snapshot(String),
    /// A snapshot of the new root for a mirror relationship: changes since its base are in flight
    /// from here on.
    SnapshotSince(String, u64),
    /// The next snapshot for a mirror that follows closely, with its accompanying changes.
    Step(StepRider),
    /// The destination acknowledged the changes in flight of a relationship.
    AcknowledgeSince(u64),
    /// The end of a relationship's since maps.
    DeleteSince(u64),
    /// Deletion of snapshots.
    Delete(Vec<SnapshotId>),
    /// The same of a mirror's own, held or not.
    LetGo(Vec<SnapshotId>),
    /// Another name for a snapshot.
    Rename(SnapshotId, String),
    /// A snapshot is held from now on, or released.
    Hold(SnapshotId, bool),
    /// The new root is a snapshot's, and later writes are dropped.
    Rollback(SnapshotId),
    /// More block space.
    Grow(u64),
    /// The destination becomes writable.
    Failover,
    /// A snapshot of the new root, which the volume shows as a destination from here on.
    Demote(String, bool),
    /// The intent log moves to another place, which is empty.
    Log(LogArea),
    /// The end of removed files whose blocks were found by exclusion.
    Exclude(Excluded),
}

/// A snapshot of the new root that is held, and in the same consistency point the end of those that
/// the mirror needs no longer.
#[derive(Debug, Clone)]
pub(crate) struct StepRider {
    pub(crate) name: String,
    /// The relationship whose since maps restart at the new root; `None` to leave them as they are.
    pub(crate) relationship: Option<u64>,
    /// The destination has the changes that were in flight for it.
    pub(crate) arrived: bool,
    /// Snapshots of the mirror that go, held or not.
    pub(crate) over: Vec<SnapshotId>,
}

impl Rider {
    /// It changes the trees itself, so there is a new generation also without changes in memory.
    pub(crate) fn changes_trees(&self) -> bool {
        let itself = matches!(self, Rider::AcknowledgeSince(_) | Rider::DeleteSince(_) | Rider::Exclude(_));
        itself || self.begins_map_of().is_some() || matches!(self, Rider::Rollback(_))
    }

    /// The relationship for which a new since map begins with it.
    pub(crate) fn begins_map_of(&self) -> Option<u64> {
        match self {
            Rider::SnapshotSince(_, relationship) => Some(*relationship),
            Rider::Step(step) => step.relationship,
            _ => None,
        }
    }

    /// Snapshots that are deleted along with it.
    pub(crate) fn deletes(&self) -> &[SnapshotId] {
        match self {
            Rider::Delete(ids) | Rider::LetGo(ids) => ids,
            Rider::Step(step) => &step.over,
            _ => &[],
        }
    }
}

/// The result of a consistency point.
#[derive(Debug, Default)]
pub(crate) struct Done {
    pub(crate) generation: Generation,
    pub(crate) snapshot: Option<SnapshotEntry>,
    pub(crate) freed: u64,
    /// The time before anything was frozen: later changes are not in it.
    pub(crate) began: Timestamp,
}
