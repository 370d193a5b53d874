//! Changes of role: each side's knowledge of the other, and how a source hands over its role.
//!
//! A change of role is one superblock write of one volume, and it is never made on both sides at
//! once. So at every moment at most one side takes writes because of a planned change; a failover
//! is the owner's decision that the other side is out of the game.
//!
//! | step | at the side that becomes the destination | at the side that takes over |
//! |---|---|---|
//! | reverse: hand over | its last snapshot, and it is a destination that shows it ([`cairn_volume::Volume::demote`]) | |
//! | reverse: bring that snapshot | serves it | an update like any other |
//! | reverse: take over | | becomes writable; with all changes |
//! | reverse of a group: hand over | of all volumes at one instant: a snapshot of the group in each, and then as above ([`cairn_volume::Volume::demote_together`]) | |
//! | resync: demote | becomes a destination that shows its own head, which can be spilled | |
//! | resync: update | its own head is replaced, in one superblock write | serves its image |
//!
//! After a cut anywhere, both sides show whole images, and the same request resumes where it
//! stopped. The name of the snapshot that a demoted source shows tells which side has its role.

use std::collections::BTreeSet;
use std::sync::Arc;

use cairn_base::{SnapshotId, VolumeId};
use cairn_format::Role;
use cairn_format::stream::root_digest;
use cairn_stream::MIRROR_PREFIX;
use cairn_volume::{Snapshot, Volume, VolumeError};

use crate::error::Refusal;
use crate::handover::{Heir, Standing, Successor};
use crate::message::{HandOver, HandOverTogether, StandingOf};
use crate::offer::SourceVolumes;
use crate::relationship::{PeerName, prefix, split};
use crate::source::{Source, own_snapshots};

/// The head that a source has handed over to the mirror whose snapshots have this prefix.
pub(crate) fn handed_over(volume: &Volume, prefix: &str) -> Option<Snapshot> {
    volume.own_head().filter(|head| split(&head.name).is_some_and(|(own, _)| own == prefix))
}

/// Keeps the base of a spill, which the owner may need to open it. A mirror's snapshot becomes an
/// ordinary one, which stays until the owner deletes it. An owner's snapshot, which a schedule or
/// the owner might delete without thinking of the spill, is held.
pub(crate) fn keep_for_spill(volume: &Arc<Volume>, common: &[SnapshotId]) -> Result<(), VolumeError> {
    let base = common.iter().max().and_then(|id| volume.snapshot(*id));
    let Some(base) = base else { return Ok(()) };
    if !base.name.starts_with(MIRROR_PREFIX) {
        return volume.hold_snapshot(base.id, true);
    }
    let mut name = format!("split-{}", base.generation.0);
    while volume.snapshot_named(&name).is_some() {
        name.push('_');
    }
    volume.rename_snapshot(base.id, &name)?;
    volume.hold_snapshot(base.id, false)
}

impl Source {
    pub(crate) fn standing(
        &self,
        volume: &Arc<Volume>,
        asked: &StandingOf,
        peer: &PeerName,
        volumes: &dyn SourceVolumes,
    ) -> Result<Standing, Refusal> {
        let prefix = prefix(peer, asked.relationship);
        if let Some(departure) = &asked.departed {
            let known = self.note_departure(volume, &prefix, departure, volumes);
            volumes.departed(&asked.volume, peer, asked.relationship, departure, known);
        }
        let status = volume.status();
        let own_head = volume.own_head();
        Ok(Standing {
            id: status.id,
            role: status.role,
            own_head: own_head.map_or(SnapshotId(0), |head| head.id),
            handed_over: handed_over(volume, &prefix).is_some(),
            generation: status.generation,
            changed: status.changed,
            used: status.used,
            snapshots: volume.snapshot_entries().iter().map(|entry| (entry.id, root_digest(entry))).collect(),
        })
    }

    /// Gives the role of the source to a destination that has all but the last changes: this side
    /// shows its last snapshot from then on. A repeated request gets the same answer.
    pub(crate) fn hand_over(
        &self,
        volume: &Arc<Volume>,
        wish: &HandOver,
        peer: &PeerName,
        volumes: &dyn SourceVolumes,
    ) -> Result<SnapshotId, Refusal> {
        let prefix = prefix(peer, wish.relationship);
        volumes.check_room(&wish.volume)?;
        let house = self.house(volume.id());
        let _housekeeping = house.lock();
        if let Some(given) = given_before(volume, wish, &prefix)? {
            return Ok(given);
        }
        let name = name_of_head(volume, wish, &prefix)?;
        let mut give = || volume.demote(&name, true);
        let successor = successor(wish, volumes);
        let head = volumes.hand_over(&wish.volume, peer, wish.relationship, &successor, &mut give)?;
        Ok(head.id)
    }

    /// The same for all volumes of a group: from one instant on none of them takes writes. If only
    /// some have handed over their role (after a crash), they first take it back, so that there is
    /// such an instant.
    pub(crate) fn hand_over_together(
        &self,
        wish: &HandOverTogether,
        peer: &PeerName,
        volumes: &dyn SourceVolumes,
    ) -> Result<Vec<SnapshotId>, Refusal> {
        let members = wish.members.iter().map(|wish| volumes.volume(&wish.volume, peer));
        let members: Vec<Arc<Volume>> = members.collect::<Result<_, _>>()?;
        wish.members.iter().try_for_each(|wish| volumes.check_room(&wish.volume))?;
        let ids: BTreeSet<VolumeId> = members.iter().map(|volume| volume.id()).collect();
        let houses: Vec<_> = ids.into_iter().map(|id| self.house(id)).collect();
        let _housekeeping: Vec<_> = houses.iter().map(|house| house.lock()).collect();
        let (mut given, mut names, mut heirs) = (Vec::new(), Vec::new(), Vec::new());
        for (volume, wish) in members.iter().zip(&wish.members) {
            let prefix = prefix(peer, wish.relationship);
            given.push(given_before(volume, wish, &prefix)?);
            names.push(name_of_head(volume, wish, &prefix));
            let (volume, relationship) = (wish.volume.clone(), wish.relationship);
            heirs.push(Heir { volume, relationship, successor: successor(wish, volumes) });
        }
        if let Some(all) = given.into_iter().collect::<Option<Vec<_>>>() {
            return Ok(all);
        }
        let names: Vec<String> = names.into_iter().collect::<Result<_, _>>()?;
        let mut give = |snapshot: &str| Volume::demote_together(&members, snapshot, &names);
        let heads = volumes.hand_over_together(&wish.group, peer, &heirs, &mut give)?;
        Ok(heads.into_iter().map(|head| head.id).collect())
    }
}

/// The snapshot shown by a volume that handed its role over to this mirror earlier; `None` while it
/// takes writes.
fn given_before(volume: &Arc<Volume>, wish: &HandOver, prefix: &str) -> Result<Option<SnapshotId>, Refusal> {
    let status = volume.status();
    if status.id != wish.id {
        return Err(Refusal::WrongVolume { expected: wish.id, found: status.id });
    }
    match handed_over(volume, prefix) {
        Some(head) => Ok(Some(head.id)),
        None if status.role != Role::Normal => Err(Refusal::NotASource),
        None => Ok(None),
    }
}

/// The name of a source's last snapshot for a mirror.
fn name_of_head(volume: &Arc<Volume>, wish: &HandOver, prefix: &str) -> Result<String, Refusal> {
    let own = own_snapshots(volume, prefix);
    // It has the base, so the missing part is small and the last update finds it.
    if !own.iter().any(|(snapshot, _)| snapshot.id == wish.shown && snapshot.held) {
        return Err(Refusal::Behind);
    }
    Ok(format!("{prefix}{}", own.last().map_or(0, |(_, number)| *number) + 1))
}

fn successor(wish: &HandOver, volumes: &dyn SourceVolumes) -> Successor {
    Successor { address: volumes.reachable(&wish.successor.address), ..wish.successor.clone() }
}
