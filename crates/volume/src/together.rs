//! Snapshots of several volumes at one instant.
//!
//! # Invariant
//! Whatever a client wrote, in whichever of the volumes, and had its answer for before it wrote something else that one of the snapshots shows, is shown too. Changes wait in all of the
//! volumes before the first snapshot is made, and until the last one is: no write is answered in between, so none can follow another.

use std::sync::Arc;

use crate::consistency::Rider;
use crate::error::VolumeError;
use crate::volume::{Snapshot, Volume};

impl Volume {
    /// Makes a snapshot of that name in each of these volumes, at one instant. Changes wait meanwhile, for a consistency point of all of them.
    ///
    /// # Errors
    /// With the place in `members` of the volume that it is about. None of the snapshots is there then, unless a volume failed for good.
    pub fn snapshot_together(
        members: &[Arc<Volume>],
        name: &str,
    ) -> Result<Vec<Snapshot>, (usize, VolumeError)> {
        // In one order for all callers, so that two of these at a time do not wait for each other.
        let mut order: Vec<usize> = (0..members.len()).collect();
        order.sort_by_key(|at| members[*at].number);
        for pair in order.windows(2) {
            if let [first, second] = pair
                && Arc::ptr_eq(&members[*first], &members[*second])
            {
                return Err((*second, VolumeError::Refused("a volume is named twice")));
            }
        }
        let rider = Rider::Snapshot(name.to_owned());
        let mut commits: Vec<_> = order.iter().map(|at| members[*at].commit.lock()).collect();
        for (at, commit) in order.iter().zip(&commits) {
            members[*at].check_rider(commit, &rider).map_err(|error| (*at, error))?;
        }
        let waiting: Vec<_> = order.iter().map(|at| members[*at].hold_changes()).collect();
        let mut made: Vec<(usize, Snapshot)> = Vec::new();
        let mut failed = None;
        for (at, commit) in order.iter().zip(&mut commits) {
            let done = members[*at].commit_holding(commit, rider.clone());
            match done.and_then(|done| done.snapshot.as_ref().map(Snapshot::from).ok_or(VolumeError::Closed))
            {
                Ok(snapshot) => made.push((*at, snapshot)),
                Err(error) => {
                    failed = Some((*at, error));
                    break;
                }
            }
        }
        drop(waiting);
        drop(commits);
        if let Some(failed) = failed {
            for (at, snapshot) in made {
                // One that stays is of no use, and harms nobody.
                let _ = members[at].delete_snapshots(&[snapshot.id]);
            }
            return Err(failed);
        }
        made.sort_by_key(|(at, _)| *at);
        Ok(made.into_iter().map(|(_, snapshot)| snapshot).collect())
    }
}
