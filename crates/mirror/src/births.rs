//! When the snapshots of a mirror were made, by this side's clock: the start of a lock.
//!
//! Their own times are by the source's clock. That clock may be set, or wrong by hours, and may be
//! controlled by the person that a lock protects against. So the two clocks are never compared. The
//! age of an arriving snapshot is measured by the source's clock alone. It is limited to the time
//! since the previous update was requested here, as that update did not bring the snapshot. In
//! doubt a snapshot counts as younger than it is, and stays longer.
//!
//! For a first image only the source's statement is known. This side's monotonic clock measures
//! time while the program runs; when the wall clock is set, the births move along. For the time
//! while the program is stopped there is only the wall clock, which may have been set forward. Of
//! that time at most [`STOPPED_MAX`] counts, and nothing when the clock was set back.
//!
//! A lock that was in force while a snapshot was here stays with it: a shorter one counts for later
//! snapshots only.

use std::collections::BTreeMap;
use std::time::Duration;

use cairn_base::{SnapshotId, Timestamp};
use cairn_format::{Cursor, SnapshotEntry};
use cairn_stream::MIRROR_PREFIX;
use cairn_volume::Volume;

use crate::lag::Contact;

/// The longest stop of the program that counts for a lock, in nanoseconds: a day. A longer one
/// makes a lock longer.
const STOPPED_MAX: i128 = 86_400_000_000_000;

/// When a snapshot was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Birth {
    /// Which.
    pub snapshot: SnapshotId,
    /// By the source's clock: distinguishes it from another one that got the same number later.
    pub created: Timestamp,
    /// By this side's clock.
    pub at: Timestamp,
    /// How long it stays from then on, even if the source deletes it; `None` without a lock.
    pub lock: Option<Duration>,
}

/// A snapshot whose lock is in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Locked {
    /// Which.
    pub snapshot: SnapshotId,
    /// Its name.
    pub name: String,
    /// For how long it stays from now on.
    pub left: Duration,
}

impl Birth {
    /// The locks of snapshots that were in force when the clock showed `looked`, and are at `now`:
    /// of a volume that is not open, of whose snapshots only the numbers are known.
    pub fn left(births: &[Self], looked: Timestamp, now: Timestamp) -> Vec<Locked> {
        let left = |birth: &Self| {
            let at = shifted(birth.at, uncounted(looked, now));
            let left = birth.lock?.saturating_sub(now.since(at));
            let name = format!("number {}", birth.snapshot.0);
            (!left.is_zero()).then_some(Locked { snapshot: birth.snapshot, name, left })
        };
        births.iter().filter_map(left).collect()
    }
}

/// The part of the program's stopped time that does not count for a lock, in nanoseconds; below 0
/// for a clock that was set back.
fn uncounted(looked: Timestamp, now: Timestamp) -> i128 {
    let stopped = i128::from(now.0) - i128::from(looked.0);
    stopped - stopped.clamp(0, STOPPED_MAX)
}

/// The births of the snapshots that owners made; those of mirrors come and go.
#[derive(Debug, Clone, Default)]
pub(crate) struct Births {
    known: BTreeMap<SnapshotId, Birth>,
    /// When the last update that brought an image was requested, by this side's clock: snapshots
    /// that it did not bring were made later.
    asked: Option<Timestamp>,
    /// The last readings of this side's wall clock and monotonic clock.
    looked: Option<(Timestamp, Duration)>,
}

impl Births {
    /// Without a saved record: by the source's clock at the last contact.
    pub(crate) fn guessed(volume: &Volume, contact: Option<Contact>) -> Self {
        let at = |entry: &SnapshotEntry| match contact {
            Some(contact) => before(contact.at, contact.status.now, entry.root.created),
            None => entry.root.created,
        };
        let looked = Some(both(volume));
        Self { known: each(volume, |entry| (at(entry), None)), asked: received(volume), looked }
    }

    /// From the record saved when this side's clock showed `looked`. A later arrival counts as made
    /// at the latest possible moment.
    pub(crate) fn remembered(volume: &Volume, births: &[Birth], looked: Option<Timestamp>) -> Self {
        let uncounted = looked.map_or(0, |looked| uncounted(looked, volume.clock().now()));
        let births: BTreeMap<SnapshotId, Birth> =
            births.iter().map(|birth| (birth.snapshot, *birth)).collect();
        let asked = received(volume);
        let at = |entry: &SnapshotEntry| {
            let known = births.get(&entry.id).filter(|birth| birth.created == entry.root.created);
            let at = known.map(|birth| birth.at).or(asked).unwrap_or(entry.root.created);
            (shifted(at, uncounted), known.and_then(|birth| birth.lock))
        };
        let asked = asked.map(|asked| shifted(asked, uncounted));
        Self { known: each(volume, |entry| at(entry)), asked, looked: Some(both(volume)) }
    }

    pub(crate) fn list(&self) -> Vec<Birth> {
        self.known.values().copied().collect()
    }

    /// Moves the births along when this side's clock was set.
    pub(crate) fn follow(&mut self, volume: &Volume) {
        let (now, passed) = both(volume);
        let before = self.looked.replace((now, passed));
        let Some((at, since)) = before else { return };
        let expected = i128::from(at.0) + passed.saturating_sub(since).as_nanos().cast_signed();
        let ahead = i128::from(now.0) - expected;
        self.known.values_mut().for_each(|birth| birth.at = shifted(birth.at, ahead));
        self.asked = self.asked.map(|asked| shifted(asked, ahead));
    }

    /// Applies the lock to the present snapshots: none of their locks gets shorter.
    pub(crate) fn lock(&mut self, lock: Duration) {
        self.known.values_mut().for_each(|birth| birth.lock = birth.lock.max(Some(lock)));
    }

    /// For how long a snapshot that is here stays from now on, by its own lock or by `lock`.
    pub(crate) fn left(&self, entry: &SnapshotEntry, now: Timestamp, lock: Option<Duration>) -> Duration {
        let own = self.known.get(&entry.id).filter(|birth| birth.created == entry.root.created);
        let lock = own.and_then(|birth| birth.lock).max(lock).unwrap_or_default();
        lock.saturating_sub(now.since(self.of(entry)))
    }

    /// When a snapshot that is here was made.
    pub(crate) fn of(&self, entry: &SnapshotEntry) -> Timestamp {
        let known = self.known.get(&entry.id).filter(|birth| birth.created == entry.root.created);
        known.map_or(entry.root.created, |birth| birth.at)
    }

    /// An image has arrived under `lock`, which was requested at `asked`; the source's clock showed
    /// `theirs` when it answered.
    pub(crate) fn arrived(
        &mut self,
        volume: &Volume,
        (asked, theirs): (Timestamp, Timestamp),
        lock: Option<Duration>,
    ) {
        let now = volume.clock().now();
        let (before_this, known) = (self.asked, std::mem::take(&mut self.known));
        let at = |entry: &SnapshotEntry| {
            let same = known.get(&entry.id).filter(|birth| birth.created == entry.root.created);
            let by_theirs = before(now, theirs, entry.root.created);
            let at = same.map_or_else(
                || before_this.map_or(by_theirs, |earliest| by_theirs.max(earliest)).min(now),
                |birth| birth.at,
            );
            (at, same.and_then(|birth| birth.lock).max(lock))
        };
        self.known = each(volume, |entry| at(entry));
        self.asked = Some(asked);
    }
}

/// A moment of this side, as long before `now` as `created` is before `theirs` there.
fn before(now: Timestamp, theirs: Timestamp, created: Timestamp) -> Timestamp {
    Timestamp(now.0.saturating_sub(theirs.0.saturating_sub(created.0)))
}

/// The readings of both clocks of this side.
fn both(volume: &Volume) -> (Timestamp, Duration) {
    (volume.clock().now(), volume.clock().monotonic())
}

/// When the last image came; none before the first.
fn received(volume: &Volume) -> Option<Timestamp> {
    let cursor = volume.status().cursor;
    (cursor.snapshot.0 != 0 && cursor.received != Cursor::OWN).then_some(cursor.received)
}

fn each(
    volume: &Volume,
    birth: impl Fn(&SnapshotEntry) -> (Timestamp, Option<Duration>),
) -> BTreeMap<SnapshotId, Birth> {
    let entries = volume.snapshot_entries();
    let own = entries.iter().filter(|entry| !entry.name.starts_with(MIRROR_PREFIX));
    own.map(|entry| {
        let (at, lock) = birth(entry);
        (entry.id, Birth { snapshot: entry.id, created: entry.root.created, at, lock })
    })
    .collect()
}

fn shifted(at: Timestamp, by: i128) -> Timestamp {
    let at = (i128::from(at.0) + by).clamp(0, i128::from(u64::MAX));
    Timestamp(u64::try_from(at).unwrap_or(u64::MAX))
}
