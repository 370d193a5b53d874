//! Snapshots of several volumes at one instant, and their end as sources at one.
//!
//! # Invariant
//! If one of the snapshots shows a write, then the snapshots also show every write that was
//! acknowledged before it was made, in any of the volumes. Changes wait in all of the volumes
//! before the first snapshot is made, and until the last one is: no write is acknowledged in
//! between, so none can follow another.

use std::sync::Arc;

use crate::commit::pending::Commit;
use crate::commit::rider::Rider;
use crate::error::VolumeError;
use crate::locks::MutexGuard;
use crate::volume::{Snapshot, Volume};

/// The snapshots made, with the index of each volume.
type Made = Vec<(usize, Snapshot)>;

impl Volume {
    /// Makes a snapshot of that name in each of these volumes, at one instant. Changes wait
    /// meanwhile, for a consistency point of all of them.
    ///
    /// # Errors
    /// With the index in `members` of the volume that failed. None of the snapshots exists then,
    /// unless a volume failed permanently.
    pub fn snapshot_together(
        members: &[Arc<Volume>],
        name: &str,
    ) -> Result<Vec<Snapshot>, (usize, VolumeError)> {
        let order = in_one_order(members)?;
        let rider = Rider::Snapshot(name.to_owned());
        let mut commits: Vec<_> = order.iter().map(|at| members[*at].commit.lock()).collect();
        finish_each(members, &order, &mut commits)?;
        for (at, commit) in order.iter().zip(&commits) {
            members[*at].check_rider(commit, &rider).map_err(|error| (*at, error))?;
        }
        let waiting: Vec<_> = order.iter().map(|at| members[*at].hold_changes()).collect();
        let (made, failed) = ride_each(members, &order, &mut commits, &|_| rider.clone());
        drop(waiting);
        drop(commits);
        match failed {
            None => Ok(in_place(made)),
            Some(failed) => {
                delete_each(members, &made);
                Err(failed)
            }
        }
    }

    /// Makes a snapshot of that name in each of these volumes, at one instant, and each of them a
    /// destination that shows it as its own head, which is held under its own one of these names
    /// ([`Volume::demote`]). The heads.
    ///
    /// No write is acknowledged between the snapshots and the last demotion. A crash in between
    /// leaves some volumes demoted, and the others unchanged.
    ///
    /// # Errors
    /// As [`Volume::snapshot_together`]; those that were demoted take writes again, unless they
    /// failed too. Writes that came in between may have been refused.
    pub fn demote_together(
        members: &[Arc<Volume>],
        name: &str,
        heads: &[String],
    ) -> Result<Vec<Snapshot>, (usize, VolumeError)> {
        let order = in_one_order(members)?;
        let snapshot = Rider::Snapshot(name.to_owned());
        let demotion = |at: usize| Rider::Demote(heads.get(at).cloned().unwrap_or_default(), true);
        let mut commits: Vec<_> = order.iter().map(|at| members[*at].commit.lock()).collect();
        finish_each(members, &order, &mut commits)?;
        for (at, commit) in order.iter().zip(&commits) {
            let volume = &members[*at];
            let mut checked = volume.check_room_as_destination(commit);
            for rider in [&snapshot, &demotion(*at)] {
                checked = checked.and_then(|()| volume.check_rider(commit, rider));
            }
            checked.map_err(|error| (*at, error))?;
        }
        let waiting: Vec<_> = order.iter().map(|at| members[*at].hold_changes()).collect();
        let (made, mut failed) = ride_each(members, &order, &mut commits, &|_| snapshot.clone());
        let mut demoted = Made::new();
        if failed.is_none() {
            (demoted, failed) = ride_each(members, &order, &mut commits, &demotion);
        }
        if failed.is_some() {
            // They are the first ones in the order of the commits.
            for ((at, _), commit) in demoted.iter().zip(&mut commits) {
                if let Err(error) = members[*at].take_back(commit) {
                    tracing::error!(%error, "a volume that was demoted with others, one of which failed, could not take its role back");
                }
            }
        }
        drop(waiting);
        drop(commits);
        members.iter().for_each(|volume| volume.work.notify_all());
        match failed {
            None => Ok(in_place(demoted)),
            Some(failed) => {
                delete_each(members, &made);
                Err(failed)
            }
        }
    }
}

/// The places of the volumes in one order for all callers, so that two of these at a time do not
/// wait for each other.
fn in_one_order(members: &[Arc<Volume>]) -> Result<Vec<usize>, (usize, VolumeError)> {
    let mut order: Vec<usize> = (0..members.len()).collect();
    order.sort_by_key(|at| members[*at].number);
    for pair in order.windows(2) {
        if let [first, second] = pair
            && Arc::ptr_eq(&members[*first], &members[*second])
        {
            return Err((*second, VolumeError::Refused("a volume is named twice")));
        }
    }
    Ok(order)
}

/// Finishes earlier consistency points that were begun and found no room.
fn finish_each(
    members: &[Arc<Volume>],
    order: &[usize],
    commits: &mut [MutexGuard<'_, Commit>],
) -> Result<(), (usize, VolumeError)> {
    let mut each = order.iter().zip(commits);
    each.try_for_each(|(at, commit)| members[*at].finish_left(commit).map_err(|error| (*at, error)))
}

/// A consistency point of each in this order, until one fails.
fn ride_each(
    members: &[Arc<Volume>],
    order: &[usize],
    commits: &mut [MutexGuard<'_, Commit>],
    rider: &dyn Fn(usize) -> Rider,
) -> (Made, Option<(usize, VolumeError)>) {
    let mut made = Made::new();
    for (at, commit) in order.iter().zip(commits) {
        let done = members[*at].commit_holding(commit, rider(*at));
        match done.and_then(|done| done.snapshot.as_ref().map(Snapshot::from).ok_or(VolumeError::Closed)) {
            Ok(snapshot) => made.push((*at, snapshot)),
            Err(error) => return (made, Some((*at, error))),
        }
    }
    (made, None)
}

fn in_place(mut made: Made) -> Vec<Snapshot> {
    made.sort_by_key(|(at, _)| *at);
    made.into_iter().map(|(_, snapshot)| snapshot).collect()
}

/// A remaining snapshot is useless but harmless.
fn delete_each(members: &[Arc<Volume>], made: &[(usize, Snapshot)]) {
    for (at, snapshot) in made {
        let _ = members[*at].delete_snapshots(&[snapshot.id]);
    }
}
