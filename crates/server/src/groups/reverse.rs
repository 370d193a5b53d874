//! The planned change of the roles of a group: all of its sources stop at one instant, their
//! mirrors receive the last writes, and become writable, all of them or none.
//!
//! | step | the state after a crash of either side |
//! |---|---|
//! | the mirrors catch up | mirrors, as before |
//! | the sources make a snapshot of the group and give their roles away, at one instant ([`crate::mirrors`]) | no side is writable; the same command resumes, or the old side takes its roles back (`group failover` there) |
//! | the mirrors receive it | the same |
//! | the takeover is saved here (`groups.json`) | the same: it holds from the first one that did |
//! | one by one they become writable | they show that instant, and none accepts writes before all are writable ([`super::together`]); the same command completes it, without the other side |
//!
//! From the third last step on this is a failover of the group ([`super::failover`]) to a snapshot
//! after which no volume has changes.

use std::collections::BTreeSet;
use std::sync::Arc;

use cairn_api as api;

use super::{Failover, Group};
use crate::daemon::server::Server;
use crate::error::ServerError;
use crate::groups::error::GroupsError;
use crate::volumes::open::OpenVolume;
use crate::work::jobs::Progress;

/// Whether the image that a volume shows, or showed when it became writable, is a snapshot.
fn shows(open: &OpenVolume, snapshot: &str) -> bool {
    let shown = open.volume.snapshot(open.volume.status().cursor.snapshot);
    let named = open.volume.snapshot_named(snapshot);
    shown.zip(named).is_some_and(|(shown, named)| shown.generation == named.generation)
}

impl Server {
    /// Lets the mirrors of all volumes of a group take over within that time, or no longer.
    pub(crate) fn allow_group_reverse(
        &self,
        name: &str,
        request: &api::AllowReverse,
    ) -> Result<Vec<api::ReverseAllowed>, ServerError> {
        let group = self.groups.get(name)?;
        for volume in &group.volumes {
            self.check_allow_reverse(volume, request)?;
        }
        group.volumes.iter().map(|volume| self.allow_reverse(volume, request)).collect()
    }

    /// Checks that the mirrors of a group can request the roles of their sources.
    pub(crate) fn check_reverse_group(&self, name: &str) -> Result<(), ServerError> {
        self.begun_reverse(&self.groups.get(name)?).map(drop)
    }

    /// Begins or resumes the change of the roles of all volumes of a group. Reports if it was
    /// already done.
    pub(crate) fn reverse_group(self: &Arc<Self>, name: &str) -> Result<api::Job, ServerError> {
        let group = self.groups.get(name)?;
        self.begun_reverse(&group)?;
        let (server, group) = (self.clone(), name.to_owned());
        self.jobs.start("group reverse", name, move |progress| {
            let _turn = server.groups.take_turn(&group)?;
            let outcome = server.change_roles(&group, progress);
            let reversed = server.groups.ended(&group, outcome)?;
            Ok(Some(api::JobOutcome::GroupReverse(Box::new(reversed))))
        })
    }

    /// The change that was begun, or done; none if a new one can begin.
    fn begun_reverse(&self, group: &Group) -> Result<Option<Failover>, ServerError> {
        match self.groups.failover_of(group) {
            None => self.mirrors.refuse_apart(&group.volumes).map(|()| None),
            Some(failover) if failover.reverse => Ok(Some(failover)),
            Some(_) => {
                self.groups.refuse_unfinished(group)?;
                Err(ServerError::Groups(GroupsError::GroupFailedOver { group: group.name.clone() }))
            }
        }
    }

    fn change_roles(&self, name: &str, progress: &Progress) -> Result<api::GroupReverse, ServerError> {
        let group = self.groups.get(name)?;
        // A change that was begun does not need the other side.
        let failover = match self.begun_reverse(&group)? {
            Some(begun) => {
                if begun.done.len() < group.volumes.len() {
                    let _claimed = self.mirrors.claim_all(&group.volumes)?;
                    self.groups.change(name, |group| {
                        group.failover = Some(Failover { running: true, ..begun.clone() });
                    })?;
                    self.bring_to(&group, &begun.snapshot, &begun.done, true)?;
                }
                begun
            }
            None => {
                let claimed = self.mirrors.claim_all(&group.volumes)?;
                self.mirrors.ask_for_roles(name, &claimed, progress)?;
                let failover = self.note_reverse(&group)?;
                self.bring_to(&group, &failover.snapshot, &failover.done, true)?;
                failover
            }
        };
        let mirrors = group.volumes.iter().map(|volume| self.show_mirror(volume));
        Ok(api::GroupReverse {
            name: name.to_owned(),
            created_ms: group.made_ms(&failover.snapshot),
            mirrors: mirrors.collect::<Result<_, _>>()?,
            snapshot: failover.snapshot,
        })
    }

    /// Records that all mirrors of a group, which have all data, take over: from here on this is
    /// their only outcome.
    fn note_reverse(&self, group: &Group) -> Result<Failover, ServerError> {
        let apart = || ServerError::Groups(GroupsError::GroupApart { group: group.name.clone() });
        let snapshot = self.groups.common(group).ok_or_else(apart)?;
        for volume in &group.volumes {
            if !shows(&*self.volumes.get(volume)?, &snapshot) {
                return Err(apart());
            }
        }
        let at_ms = self.clock_ms();
        let failover = Failover { snapshot, at_ms, done: BTreeSet::new(), reverse: true, running: true };
        self.groups.change(&group.name, |group| group.failover = Some(failover.clone()))?;
        Ok(failover)
    }

    /// Has one of them take writes.
    pub(super) fn take_role(&self, volume: &str, snapshot: &str) -> Result<(), ServerError> {
        self.mirrors.take_over(volume)?;
        // After an interruption it may have received a later image from a source that took its role
        // back: the others have not.
        if !shows(&*self.volumes.get(volume)?, snapshot) {
            self.rollback(volume, snapshot)?;
        }
        Ok(())
    }
}
