//! How far a mirror is behind: what changed since a snapshot, and since when.

use std::sync::Arc;

use cairn_base::{Clock, Generation, SnapshotId, Timestamp};
use cairn_format::SegmentKind;

use crate::compare::Maps;
use crate::error::VolumeError;
use crate::state::{Frozen, State};
use crate::volume::Volume;

/// Generations whose first change is remembered. Past it the oldest is forgotten, and a lag that began there counts from
/// the snapshot itself: never too little.
const FIRST_CHANGES_MAX: usize = 4096;

/// What changed since a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Behind {
    /// When this was found, by the volume's clock.
    pub now: Timestamp,
    /// When the first change after the snapshot was made, by the same clock; none without a change. After a restart, or far back, it is
    /// the time of the snapshot, which is earlier.
    pub first_change: Option<Timestamp>,
    /// Blocks that the active state has and the snapshot does not, and changes in memory.
    pub blocks: u64,
}

impl State {
    /// Notes, at a freeze, when the frozen generation got its first change.
    pub(crate) fn note_first_change(&mut self, generation: Generation, clock: &dyn Clock) {
        let age =
            self.changed_since.map_or_else(Default::default, |since| clock.monotonic().saturating_sub(since));
        let at = Timestamp(clock.now().0.saturating_sub(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX)));
        self.first_changes.insert(generation, at);
        while self.first_changes.len() > FIRST_CHANGES_MAX {
            self.first_changes.pop_first();
        }
    }
}

impl Volume {
    /// What changed since a snapshot: the map blocks that differ are counted, and memory is looked at; nothing is committed.
    pub fn changed_since_snapshot(self: &Arc<Self>, id: SnapshotId) -> Result<Behind, VolumeError> {
        let (committed, base, first_change, dirty) = {
            let state = self.state.lock();
            let base = state.snapshots.get(id).ok_or(VolumeError::NoSuchSnapshot(id))?.root;
            let frozen = state.frozen.as_ref().map_or(0, |frozen: &Frozen| frozen.overlay().changes);
            let clean = state.open.is_empty() && state.frozen.is_none();
            let next = Generation(base.generation.0 + 1);
            let open = state.changed_since.map(|since| {
                let age = self.clock.monotonic().saturating_sub(since);
                Timestamp(
                    self.clock.now().0.saturating_sub(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX)),
                )
            });
            let first_change = if state.committed.root.generation == base.generation && clean {
                None
            } else if state.open.generation == next {
                open.or(Some(base.created))
            } else {
                Some(state.first_changes.get(&next).copied().unwrap_or(base.created).max(base.created))
            };
            (state.committed.clone(), base, first_change, state.open.changes + frozen)
        };
        let maps = Maps { store: &self.store, redirects: &committed.redirects };
        let runs = match first_change {
            Some(_) => maps.only_in(&committed.root, &[base])?,
            None => Vec::new(),
        };
        let blocks = runs.iter().map(|(_, count)| count).sum::<u64>() + dirty;
        Ok(Behind { now: self.clock.now(), first_change, blocks })
    }

    /// The clock that times of this volume are by.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Length of this copy's block space, in blocks. A destination's may be longer than its source's.
    pub fn space_blocks(&self) -> u64 {
        self.store.space().blocks(SegmentKind::Space)
    }
}
