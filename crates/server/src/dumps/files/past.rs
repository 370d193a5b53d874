//! Whether a dump's date shows the later changes: it does not if the volume was rolled back to an
//! earlier state. The restored files are older than the date, and would be omitted.
//!
//! A rollback removes the dates that it invalidates. A mirror detects one by the snapshots that it
//! receives: those of the discarded state are not ancestors of the new images.

use std::collections::{HashMap, HashSet};

use cairn_base::SnapshotId;
use cairn_format::SnapshotEntry;
use cairn_volume::Snapshot;

use super::{Record, seconds};
use crate::volumes::open::OpenVolume;

mod commands;

/// The order of snapshots.
struct Line {
    entries: HashMap<SnapshotId, SnapshotEntry>,
    /// The inspected snapshot, and all its ancestors.
    own: HashSet<SnapshotId>,
}

impl Line {
    fn of(open: &OpenVolume, last: SnapshotId) -> Self {
        let entries = open.volume.snapshot_entries().into_iter().map(|entry| (entry.id, entry)).collect();
        let mut line = Self { entries, own: HashSet::new() };
        line.own = line.back_from(last).collect();
        line
    }

    /// A snapshot and all its ancestors, the youngest first.
    fn back_from(&self, from: SnapshotId) -> impl Iterator<Item = SnapshotId> + '_ {
        let exists = |id: &SnapshotId| self.entries.contains_key(id);
        let parent = move |id: &SnapshotId| Some(self.entries.get(id)?.parent).filter(exists);
        std::iter::successors(Some(from).filter(exists), parent).take(self.entries.len())
    }
}

impl Record {
    /// Whether it was made of a state that is younger than `snapshot`, with a resolution of
    /// seconds.
    fn is_past(&self, snapshot: &Snapshot) -> bool {
        let date = seconds(snapshot);
        self.date > date || self.date == date && self.snapshot != snapshot.name
    }

    /// Whether `target` does not descend from the state of this dump: the volume was rolled back in
    /// between.
    pub(super) fn is_given_up(&self, open: &OpenVolume, target: SnapshotId) -> bool {
        let line = Line::of(open, target);
        // An update of a mirror has just deleted it: its ancestors are not known any more.
        if line.own.is_empty() {
            return false;
        }
        let show = |id: &SnapshotId| line.entries.get(id).map(Snapshot::from);
        let is_this = |entry: &&SnapshotEntry| {
            let snapshot = Snapshot::from(*entry);
            snapshot.name == self.snapshot && seconds(&snapshot) == self.date
        };
        if let Some(base) = line.entries.values().find(is_this) {
            return !line.own.contains(&base.id);
        }
        // It does not exist any more. Another snapshot of the discarded state may, from the same
        // time or later.
        let younger = line.entries.keys().filter(|id| {
            let descends = line.back_from(**id).any(|before| before == target);
            !descends && !line.own.contains(id) && show(id).is_some_and(|other| seconds(&other) >= self.date)
        });
        let mut parted = younger.map(|id| line.back_from(*id).find(|before| line.own.contains(before)));
        parted.any(|at| at.and_then(|at| show(&at)).is_none_or(|at| self.is_past(&at)))
    }
}

/// Whether the volume was rolled back since the creation of an existing snapshot.
pub(super) fn is_past(open: &OpenVolume, snapshot: &Snapshot) -> bool {
    let line = Line::of(open, open.volume.active_parent());
    line.entries.contains_key(&snapshot.id) && !line.own.contains(&snapshot.id)
}
