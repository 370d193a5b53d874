//! The lag of a mirror: the changes since a snapshot, and the time of the first.

use std::sync::Arc;
use std::time::Duration;

use cairn_base::{Clock, Generation, SnapshotId, Timestamp};
use cairn_format::{FileKind, Root, SegmentKind};

use crate::error::VolumeError;
use crate::memory::state::{Frozen, State};
use crate::past::since_map::SinceMap;
use crate::read::compare::Maps;
use crate::volume::Volume;

/// Generations whose first change is remembered. Beyond it the oldest is forgotten, and a lag that
/// began there counts from the snapshot itself: never too little.
const FIRST_CHANGES_MAX: usize = 4096;

/// The changes since a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Behind {
    /// When this was found, by the volume's clock.
    pub now: Timestamp,
    /// When the first change after the snapshot was made, as the present wall clock shows it: the
    /// elapsed time was measured by the monotonic clock. `None` without a change. After a restart,
    /// or far back, it is the time of the snapshot, which is earlier.
    pub first_change: Option<Timestamp>,
    /// Blocks that the active state has and the snapshot does not, and changes in memory.
    pub blocks: u64,
}

impl Behind {
    /// The lag as of `now`, when the first change has that age.
    pub(crate) fn of(now: Timestamp, age: Option<Duration>, blocks: u64) -> Self {
        let nanos = |age: Duration| u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
        let first_change = age.map(|age| Timestamp(now.0.saturating_sub(nanos(age))));
        Self { now, first_change, blocks }
    }
}

impl State {
    /// Notes, at a freeze, when the frozen generation got its first change.
    pub(crate) fn note_first_change(&mut self, generation: Generation) {
        // A generation that holds only a mirror's bookkeeping changes no visible content.
        if let Some(since) = self.changed_since {
            self.changed_at(generation, since);
        }
    }

    /// Notes that a generation got its first change then, unless it had one before.
    pub(crate) fn changed_at(&mut self, generation: Generation, at: Duration) {
        self.first_changes.entry(generation).or_insert(at);
        while self.first_changes.len() > FIRST_CHANGES_MAX {
            let Some((forgotten, at)) = self.first_changes.pop_first() else { return };
            self.known_from = self.known_from.max(Generation(forgotten.0 + 1));
            self.known_since = at;
        }
    }

    /// Notes at which content the accumulating map of a relationship begins.
    pub(crate) fn note_beginning(
        &mut self,
        maps: &[SinceMap],
        relationship: u64,
        generation: Generation,
        changed: Timestamp,
    ) {
        self.since_began.retain(|file, _| maps.iter().any(|map| map.file == *file));
        let began = maps
            .iter()
            .find(|map| map.relationship == relationship && map.kind == FileKind::SinceAccumulating);
        self.since_began.extend(began.map(|map| (map.file, (generation, changed))));
    }
}

impl Volume {
    /// The changes since a snapshot: counts the map blocks that differ and looks at memory; commits
    /// nothing.
    pub fn changed_since_snapshot(self: &Arc<Self>, id: SnapshotId) -> Result<Behind, VolumeError> {
        let (committed, base) = {
            let state = self.state.lock();
            let base = state.snapshots.get(id).ok_or(VolumeError::NoSuchSnapshot(id))?.root;
            (state.committed.clone(), base)
        };
        let asked = self.clock.monotonic();
        let (age, dirty) = self.first_change_after(Some((base.generation, base.changed)), base.created);
        let maps = Maps { store: &self.store, redirects: &committed.redirects };
        let runs = match age {
            Some(_) => maps.only_in(&committed.root, &[base])?,
            None => Vec::new(),
        };
        let blocks = runs.iter().map(|(_, count)| count).sum::<u64>() + dirty;
        Ok(self.behind_since(asked, age, blocks))
    }

    /// The lag as of now, when the first change had that age at `then`, before its blocks were
    /// counted: counting may have read a slow device.
    pub(crate) fn behind_since(&self, then: Duration, age: Option<Duration>, blocks: u64) -> Behind {
        let took = self.clock.monotonic().saturating_sub(then);
        Behind::of(self.clock.now(), age.map(|age| age + took), blocks)
    }

    /// How long ago the first change after a root was made; none without a change. As in
    /// [`Volume::changed_since_snapshot`], without counting blocks.
    pub fn age_of_changes(&self, base: &Root) -> Option<Duration> {
        self.first_change_after(Some((base.generation, base.changed)), base.created).0
    }

    /// The same for a root of which only the generation and the time of the last change are known.
    pub fn age_of_changes_after(&self, generation: Generation, changed: Timestamp) -> Option<Duration> {
        self.first_change_after(Some((generation, changed)), changed).0
    }

    /// How long ago the first change after a root was made, and how many changes are in memory. The
    /// root is identified by its generation and by the time of its last change. For an unknown
    /// root, or one before this run of the program, changes count from `created`, when it was made,
    /// and are no younger than this run: a wall clock that was set back hides none.
    pub(crate) fn first_change_after(
        &self,
        base: Option<(Generation, Timestamp)>,
        created: Timestamp,
    ) -> (Option<Duration>, u64) {
        let (now, passed) = (self.clock.now(), self.clock.monotonic());
        let state = self.state.lock();
        let frozen = state.frozen.as_ref().map_or(0, |frozen: &Frozen| frozen.overlay().changes);
        let dirty = state.open.changes + frozen;
        let since_made = now.since(created);
        let before_this_run = since_made.max(passed.saturating_sub(state.known_since));
        let Some((generation, changed)) = base else { return (Some(before_this_run), dirty) };
        let clean = state.open.is_empty() && state.frozen.is_none();
        if clean && state.committed.root.changed == changed {
            return (None, dirty);
        }
        let next = Generation(generation.0 + 1);
        if next < state.known_from {
            return (Some(before_this_run), dirty);
        }
        let committed = state.first_changes.range(next..).next().map(|(_, at)| *at);
        let age = committed.or(state.changed_since).map(|at| passed.saturating_sub(at));
        (Some(age.unwrap_or(since_made)), dirty)
    }

    /// The time of a change, later than that of any earlier change, whatever the clock shows: equal
    /// times mean equal content.
    pub(crate) fn changed_now(&self, now: Timestamp) -> Timestamp {
        later(self.state.lock().committed.root.changed, now)
    }

    /// The clock that times of this volume are by.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Length of this copy's block space, in blocks. A destination's may be longer than its
    /// source's.
    pub fn space_blocks(&self) -> u64 {
        self.store.space().blocks(SegmentKind::Space)
    }
}

/// `now`, or just past `before`.
pub(crate) fn later(before: Timestamp, now: Timestamp) -> Timestamp {
    now.max(Timestamp(before.0.saturating_add(1)))
}
