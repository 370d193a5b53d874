//! The content of an update: its snapshot, and the base that the changes are counted from.

use std::sync::Arc;

use cairn_base::SnapshotId;
use cairn_format::Role;
use cairn_volume::{Snapshot, Volume, VolumeError};

use super::behind::status_of;
use super::same::is_same_table;
use super::{
    Base, Claim, KnownMaps, Prepared, Source, common, let_go, no_common_base, own_snapshots, places, shared,
};
use crate::error::Refusal;
use crate::follower::since_number;
use crate::lag::SourceStatus;
use crate::message::{Stance, Update};
use crate::relationship::name_in;
use crate::roles::{handed_over, keep_for_spill};

impl Source {
    /// Decides what to send: a new snapshot, or none (the inner error).
    pub(crate) fn prepare(
        &self,
        volume: &Arc<Volume>,
        update: &Update,
        prefix: &str,
        known: Option<KnownMaps>,
        claim: &Claim<'_>,
    ) -> Result<Result<Prepared, SourceStatus>, Refusal> {
        let house = self.house(volume.id());
        let _housekeeping = house.lock();
        claim.check()?;
        let (relays, head) = check_update(volume, update, prefix)?;
        // A mirror with too many held snapshots must first release some, as an update does.
        let has_place = || places::refuse_too_many_held(volume, prefix).is_ok();
        if let Some(base) = self.step_base(volume, update, prefix).filter(|_| has_place()) {
            match self.prepare_step(volume, update, prefix, &base) {
                // A snapshot that it would release has a clone, or was deleted meanwhile: an update
                // handles that.
                Err(refusal) => tracing::debug!(%refusal, "a step of a mirror becomes an update"),
                done => return done,
            }
        }
        let refused = |error: VolumeError| Refusal::from(&error);
        let common = common(volume, &shared(volume, update, SnapshotId(u64::MAX)))?;
        if update.stance == Stance::OwnHead && !common.contains(&update.shown) {
            return Err(Refusal::Diverged(update.shown));
        }
        if relays {
            return self.prepare_relayed(volume, update, (&claim.key, prefix), &common);
        }
        if let Some(target) = head {
            return prepare_handed_over(volume, update, prefix, target, &common);
        }
        if update.stance == Stance::GivesUpSpilled {
            keep_for_spill(volume, &common).map_err(refused)?;
        }
        prepare_new(volume, update, prefix, known, &common)
    }
}

/// Refuses an update that this side cannot answer. Two kinds can be answered: if the volume relays
/// the images of its own source, and if the last snapshot of a volume was handed over.
fn check_update(volume: &Volume, update: &Update, prefix: &str) -> Result<(bool, Option<Snapshot>), Refusal> {
    let status = volume.status();
    if status.id != update.id {
        return Err(Refusal::WrongVolume { expected: update.id, found: status.id });
    }
    if let Some(reason @ VolumeError::InodesLost(_)) = &status.latched {
        // Since maps may be among the unreadable inodes: without them there would seem to be no
        // common snapshot.
        return Err(Refusal::from(reason));
    }
    let head = handed_over(volume, prefix);
    let relays = status.role != Role::Normal && head.is_none();
    if relays && volume.own_head().is_some() {
        return Err(Refusal::NotASource);
    }
    if status.blocks > update.blocks {
        return Err(Refusal::DestinationTooSmall { need: status.blocks, have: update.blocks });
    }
    if update.stance == Stance::Follows && update.shown.0 >= volume.numbers().snapshot {
        // It was never made here: this volume was set back to an earlier copy, and the mirror may
        // have the only copy of its content.
        return Err(Refusal::Diverged(update.shown));
    }
    Ok((relays, head))
}

/// As [`Source::prepare`] for a volume that takes writes and is its own source.
fn prepare_new(
    volume: &Arc<Volume>,
    update: &Update,
    prefix: &str,
    known: Option<KnownMaps>,
    common: &[SnapshotId],
) -> Result<Result<Prepared, SourceStatus>, Refusal> {
    let refused = |error: VolumeError| Refusal::from(&error);
    let number = since_number(name_in(prefix));
    let own = own_snapshots(volume, prefix);
    let held = own.iter().rev().find(|(snapshot, _)| common.contains(&snapshot.id));
    // Two concurrent updates count as one: either the maps are unchanged since the destination was
    // asked, or nothing is known of them.
    let known = known.filter(|known| volume.since_files(number) == Some(known.files));
    let mut since = known.filter(|known| known.began.file.is_some() && held.is_none());
    let shown = update.have.iter().find(|have| have.id == update.shown).copied();
    let without_map = || match common.is_empty() {
        false => Ok(Base::Snapshots),
        true if update.have.is_empty() || update.compare => Ok(Base::Nothing),
        true => Err(no_common_base(volume)),
    };
    let mut base = match (held, since, shown) {
        (None, Some(_), Some(shown)) => Base::Since(shown),
        _ => without_map()?,
    };
    // Remains of an interrupted transfer, and the base kept after a lost acknowledgement.
    let keep = held.map(|(snapshot, _)| snapshot.id);
    let over = |s: &&Snapshot| Some(s.id) != keep && !update.keeps(s.id);
    let_go(volume, own.iter().map(|(snapshot, _)| snapshot).filter(over)).map_err(refused)?;
    volume.consistency_point().map_err(refused)?;
    let changed = match (held, since) {
        (Some((base, _)), _) => Some(base.root.changed),
        (None, Some(known)) => Some(known.began.changed),
        (None, None) => None,
    };
    let now = volume.status();
    let same = changed == Some(now.changed) && now.dirty == 0 && is_same_table(volume, &update.have);
    if same && !update.stance.gives_up() {
        if !update.hold {
            let_go(volume, held.iter().map(|(snapshot, _)| snapshot)).map_err(refused)?;
        }
        return Ok(Err(status_of(volume, prefix, keep.unwrap_or_default(), None, since)?));
    }
    places::refuse_too_many_held(volume, prefix)?;
    // By the present maps: after the snapshot they describe that.
    let behind = since.map(|since| status_of(volume, prefix, SnapshotId(0), None, Some(since)));
    let mut behind = behind.transpose()?;
    if since.is_some() && volume.since_files(number).is_none() {
        // It can't be read, by the consistency point or now.
        (since, behind, base) = (None, None, without_map()?);
    }
    let counted = volume.clock().monotonic();
    let name = format!("{prefix}{}", own.last().map_or(0, |(_, number)| *number) + 1);
    let is_same_root = now.dirty == 0 && held.is_some_and(|(base, _)| base.root.generation == now.generation);
    let held_base = held.map(|(base, _)| base);
    let target = make_target(volume, update, (&name, number), held_base, since, base, is_same_root)?;
    if matches!(base, Base::Since(_)) && volume.since_files(number).is_none_or(|f| f.in_flight.is_none()) {
        // The map that the snapshot would have continued cannot be read.
        let without = without_map();
        if without.is_err() {
            let_go(volume, std::iter::once(&target)).map_err(refused)?;
        }
        base = without?;
    }
    if update.hold {
        volume.hold_snapshot(target.id, true).map_err(refused)?;
    }
    // The destination's lag until the transfer is complete.
    let status = match behind {
        Some(behind) => behind.after(volume.clock().monotonic().saturating_sub(counted)),
        None => status_of(volume, prefix, keep.unwrap_or_default(), None, None)?,
    };
    let found = volume.clock().monotonic();
    Ok(Ok(Prepared { target, base, status, found, step: false }))
}

/// Makes the snapshot that is sent. Where the root is that of the base, only names have changed.
fn make_target(
    volume: &Arc<Volume>,
    update: &Update,
    (name, number): (&str, u64),
    held: Option<&Snapshot>,
    since: Option<KnownMaps>,
    base: Base,
    is_same_root: bool,
) -> Result<Snapshot, Refusal> {
    let refused = |error: VolumeError| Refusal::from(&error);
    let made = if is_same_root && update.hold {
        // The map continues from the base, which has the same root.
        volume.create_snapshot(name)
    } else {
        // The destination has this base: its in-flight blocks have arrived.
        match (held, since) {
            (Some(base), _) if volume.since_files(number).is_some() => {
                volume.acknowledge_since(number, base.id).map_err(refused)?;
            }
            (None, Some(known)) if known.began.file == Some(known.files.accumulating) => {
                volume.acknowledge_beginning(number, known.files.accumulating).map_err(refused)?;
            }
            _ => {}
        }
        volume.create_snapshot_since(name, number)
    };
    let made = match made {
        // Too full for the map. With the base held it is not needed; it continues from where it
        // began.
        Err(VolumeError::NoSpace) if update.hold && !matches!(base, Base::Since(_)) => {
            volume.create_snapshot(name)
        }
        other => other,
    };
    made.map_err(refused)
}

/// The update for a mirror that this side has handed its role to: the last snapshot, and nothing is
/// changed for it.
fn prepare_handed_over(
    volume: &Arc<Volume>,
    update: &Update,
    prefix: &str,
    target: Snapshot,
    common: &[SnapshotId],
) -> Result<Result<Prepared, SourceStatus>, Refusal> {
    let base = match (common.is_empty(), update.have.is_empty() || update.compare) {
        (false, _) => Base::Snapshots,
        (true, true) => Base::Nothing,
        (true, false) => return Err(no_common_base(volume)),
    };
    let newest = common.iter().max().copied().unwrap_or_default();
    let status = status_of(volume, prefix, newest, None, None)?;
    if update.shown == target.id && common.contains(&target.id) {
        return Ok(Err(status));
    }
    let found = volume.clock().monotonic();
    Ok(Ok(Prepared { target, base, status, found, step: false }))
}
