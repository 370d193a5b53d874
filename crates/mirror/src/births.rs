//! When the snapshots of a mirror were made, by this side's clock: what a lock counts from.
//!
//! Their own times are by the source's clock, which may be set, or wrong by hours, and is in the hands of whom a lock is against. So the two clocks are never compared: of a snapshot that arrives
//! it counts how old it is by the source's clock alone, and no more than has passed here since the update before was asked for, as that did not bring it yet. In doubt a snapshot is
//! younger than it is: it stays for longer.
//!
//! Of a first image nothing is known but what the source says. A clock of this side that is set takes the births along, as the time that has passed is told by the one that is never set; but one that is set forward
//! while nothing runs here ends a lock sooner.

use std::collections::BTreeMap;
use std::time::Duration;

use cairn_base::{SnapshotId, Timestamp};
use cairn_format::{Cursor, SnapshotEntry};
use cairn_stream::MIRROR_PREFIX;
use cairn_volume::Volume;

use crate::lag::Contact;

/// A clock that differs by more from what has passed was set: a minute.
const SET: i128 = 60_000_000_000;

/// When a snapshot was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Birth {
    /// Which.
    pub snapshot: SnapshotId,
    /// By the source's clock: tells it from another one that got the same number later.
    pub created: Timestamp,
    /// By this side's clock.
    pub at: Timestamp,
}

/// The births of the snapshots that owners made; those of mirrors come and go.
#[derive(Debug, Clone, Default)]
pub(crate) struct Births {
    known: BTreeMap<SnapshotId, Birth>,
    /// When the last update that brought an image was asked for, by this side's clock: what came later was made later.
    asked: Option<Timestamp>,
    /// What this side's clock showed when it was looked at, and what the one that is never set did.
    looked: Option<(Timestamp, Duration)>,
}

impl Births {
    /// Where nothing was written down: by the source's clock as it was at the last contact.
    pub(crate) fn guessed(volume: &Volume, contact: Option<Contact>) -> Self {
        let at = |entry: &SnapshotEntry| match contact {
            Some(contact) => before(contact.at, contact.status.now, entry.root.created),
            None => entry.root.created,
        };
        let looked = Some(both(volume));
        Self { known: each(volume, |entry| at(entry)), asked: received(volume), looked }
    }

    /// As it was written down. Of what arrived since the latest moment counts at which it can have been made.
    pub(crate) fn remembered(volume: &Volume, births: &[Birth]) -> Self {
        let births: BTreeMap<SnapshotId, Birth> =
            births.iter().map(|birth| (birth.snapshot, *birth)).collect();
        let asked = received(volume);
        let at = |entry: &SnapshotEntry| {
            let known = births.get(&entry.id).filter(|birth| birth.created == entry.root.created);
            known.map(|birth| birth.at).or(asked).unwrap_or(entry.root.created)
        };
        Self { known: each(volume, |entry| at(entry)), asked, looked: Some(both(volume)) }
    }

    pub(crate) fn list(&self) -> Vec<Birth> {
        self.known.values().copied().collect()
    }

    /// Has what was noted by this side's clock follow that where it was set since.
    pub(crate) fn follow(&mut self, volume: &Volume) {
        let (now, passed) = both(volume);
        let before = self.looked.replace((now, passed));
        let Some((at, since)) = before else { return };
        let expected = i128::from(at.0) + passed.saturating_sub(since).as_nanos().cast_signed();
        let ahead = i128::from(now.0) - expected;
        if ahead.abs() <= SET {
            return;
        }
        let shifted = |at: Timestamp| {
            let at = (i128::from(at.0) + ahead).clamp(0, i128::from(u64::MAX));
            Timestamp(u64::try_from(at).unwrap_or(u64::MAX))
        };
        self.known.values_mut().for_each(|birth| birth.at = shifted(birth.at));
        self.asked = self.asked.map(shifted);
    }

    /// When a snapshot that is here was made.
    pub(crate) fn of(&self, entry: &SnapshotEntry) -> Timestamp {
        let known = self.known.get(&entry.id).filter(|birth| birth.created == entry.root.created);
        known.map_or(entry.root.created, |birth| birth.at)
    }

    /// An image has arrived, which was asked for at `asked`; the source's clock showed `theirs` when it answered.
    pub(crate) fn arrived(&mut self, volume: &Volume, asked: Timestamp, theirs: Timestamp) {
        let now = volume.clock().now();
        let (before_this, known) = (self.asked, std::mem::take(&mut self.known));
        let at = |entry: &SnapshotEntry| {
            let same = known.get(&entry.id).filter(|birth| birth.created == entry.root.created);
            let by_theirs = before(now, theirs, entry.root.created);
            same.map_or_else(
                || before_this.map_or(by_theirs, |earliest| by_theirs.max(earliest)).min(now),
                |birth| birth.at,
            )
        };
        self.known = each(volume, |entry| at(entry));
        self.asked = Some(asked);
    }
}

/// A moment of this side, as long before `now` as `created` is before `theirs` there.
fn before(now: Timestamp, theirs: Timestamp, created: Timestamp) -> Timestamp {
    Timestamp(now.0.saturating_sub(theirs.0.saturating_sub(created.0)))
}

/// What both clocks of this side show.
fn both(volume: &Volume) -> (Timestamp, Duration) {
    (volume.clock().now(), volume.clock().monotonic())
}

/// When the last image came; none before the first.
fn received(volume: &Volume) -> Option<Timestamp> {
    let cursor = volume.status().cursor;
    (cursor.snapshot.0 != 0 && cursor.received != Cursor::OWN).then_some(cursor.received)
}

fn each(volume: &Volume, at: impl Fn(&SnapshotEntry) -> Timestamp) -> BTreeMap<SnapshotId, Birth> {
    let entries = volume.snapshot_entries();
    let own = entries.iter().filter(|entry| !entry.name.starts_with(MIRROR_PREFIX));
    own.map(|entry| (entry.id, Birth { snapshot: entry.id, created: entry.root.created, at: at(entry) }))
        .collect()
}
