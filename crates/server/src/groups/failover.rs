//! The failover of a group: all of its mirrors become writable, at one instant. Also the end of a
//! planned change of its roles ([`super::reverse`]), which is the same without a loss.
//!
//! The plan is saved first (`groups.json`), and each volume's part when it is done. After an
//! interruption at any point, the same command resumes, and never repeats a volume. Until the last
//! one is done, all of them show the target instant, and none accepts writes ([`super::together`]).
//! A write to one of them would be lost in its rollback, or would be inconsistent with others that
//! are still at another instant.

use std::collections::BTreeSet;

use cairn_api as api;

use super::{Failover, Group, Groups};
use crate::daemon::server::Server;
use crate::error::ServerError;
use crate::exports::mounts::Still;
use crate::groups::error::GroupsError;
use crate::mirrors::error::MirrorsError;

/// Attempts at choosing an instant, if an update has deleted it before it was saved.
const ATTEMPTS: usize = 3;

/// A failover that runs; it is over when this goes.
pub(super) struct Turn<'a> {
    groups: &'a Groups,
    name: &'a str,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.groups.memory.lock().failing.remove(self.name);
    }
}

/// A failover that can be carried out.
struct Plan {
    group: Group,
    begun: Option<Failover>,
    answer: api::GroupFailover,
}

impl Groups {
    pub(super) fn take_turn<'a>(&'a self, name: &'a str) -> Result<Turn<'a>, ServerError> {
        if !self.memory.lock().failing.insert(name.to_owned()) {
            return Err(ServerError::Busy { name: name.to_owned(), by: "it is being failed over" });
        }
        Ok(Turn { groups: self, name })
    }

    /// Records the outcome of a failover that ran. That it no longer runs is kept only in memory,
    /// so a full disk cannot prevent it.
    pub(super) fn ended<T>(&self, name: &str, outcome: Result<T, ServerError>) -> Result<T, ServerError> {
        let mut groups = self.groups.lock();
        let ended = groups.iter_mut().find(|group| group.name == name);
        if let Some(failover) = ended.and_then(|group| group.failover.as_mut()) {
            failover.running = false;
        }
        outcome
    }

    /// The failover of a group, while it is still valid: once a volume that was taken to the common
    /// instant follows again, the roles have changed since, and the next failover is another one,
    /// to a newer instant.
    pub(super) fn failover_of(&self, group: &Group) -> Option<Failover> {
        let follows = |volume: &String| self.volumes.get(volume).is_ok_and(|open| open.is_destination());
        let over = |failover: &Failover| match (failover.running, failover.done.is_empty()) {
            (true, _) => false,
            (false, true) => group.volumes.iter().all(follows),
            (false, false) => failover.done.iter().any(follows),
        };
        group.failover.clone().filter(|failover| !over(failover))
    }

    /// The group of a volume whose failover is not complete, and its target snapshot.
    pub(super) fn unfinished<'a>(&self, groups: &'a [Group], volume: &str) -> Option<(&'a Group, String)> {
        let mine = |group: &&Group| group.volumes.iter().any(|member| member == volume);
        groups.iter().filter(mine).find_map(|group| {
            let failover = self.failover_of(group)?;
            let is_left = group.volumes.iter().any(|member| !failover.done.contains(member));
            is_left.then_some((group, failover.snapshot))
        })
    }

    /// Refuses a change that would make a volume show another instant than the rest of its group,
    /// whose failover is not complete.
    pub(crate) fn refuse_if_unfinished(&self, volume: &str) -> Result<(), ServerError> {
        let groups = self.groups.lock();
        match self.unfinished(&groups, volume) {
            Some((group, _)) => {
                Err(ServerError::Groups(GroupsError::GroupUnfinished { group: group.name.clone() }))
            }
            None => Ok(()),
        }
    }

    /// Refuses to delete the target snapshot of a failover that is not complete.
    pub(crate) fn refuse_needed(&self, volume: &str, snapshot: &str) -> Result<(), ServerError> {
        let groups = self.groups.lock();
        match self.unfinished(&groups, volume) {
            Some((group, needed)) if needed == snapshot => {
                Err(ServerError::Groups(GroupsError::GroupUnfinished { group: group.name.clone() }))
            }
            _ => Ok(()),
        }
    }

    /// Forgets completed failovers. A recorded one would later count volumes as its part that
    /// become writable alone or after a reverse.
    pub(super) fn forget_over(&self, groups: &mut Vec<Group>) {
        let is_over = |group: &Group| group.failover.is_some() && self.failover_of(group).is_none();
        if !groups.iter().any(is_over) {
            return;
        }
        let mut changed = groups.clone();
        for group in &mut changed {
            if is_over(group) {
                group.failover = None;
            }
        }
        match self.save(&changed) {
            Ok(()) => *groups = changed,
            Err(error) => tracing::warn!(%error, "could not remove the record of a completed failover"),
        }
    }

    /// Refuses an operation that must wait until a group has been failed over as a whole.
    pub(super) fn refuse_unfinished(&self, group: &Group) -> Result<(), ServerError> {
        match self.failover_of(group) {
            Some(failover) if group.volumes.iter().any(|volume| !failover.done.contains(volume)) => {
                Err(ServerError::Groups(GroupsError::GroupUnfinished { group: group.name.clone() }))
            }
            _ => Ok(()),
        }
    }
}

impl Server {
    /// Makes the mirrors of a group writable, all at the newest snapshot of the group that every
    /// one of them has.
    pub(crate) fn failover_group(
        &self,
        name: &str,
        dry_run: bool,
    ) -> Result<api::GroupFailover, ServerError> {
        if dry_run {
            return self.plan_failover(name).map(|plan| plan.answer);
        }
        let _turn = self.groups.take_turn(name)?;
        let outcome = self.carry_out(name);
        self.groups.ended(name, outcome)
    }

    /// Plans a failover, and checks that no obstacle prevents it.
    fn plan_failover(&self, name: &str) -> Result<Plan, ServerError> {
        let group = self.groups.get(name)?;
        let begun = self.groups.failover_of(&group);
        if begun.as_ref().is_some_and(|failover| failover.done.len() >= group.volumes.len()) {
            return Err(ServerError::Groups(GroupsError::GroupFailedOver { group: name.to_owned() }));
        }
        // The state of a closed volume is unknown: that is the problem to report, not the lack of a
        // common snapshot.
        group.volumes.iter().try_for_each(|volume| self.volumes.get(volume).map(drop))?;
        let shown = self.show_one(&group);
        let snapshot = match &begun {
            Some(begun) => begun.snapshot.clone(),
            None => match &shown.common {
                Some(common) => common.name.clone(),
                None => return Err(ServerError::Groups(GroupsError::GroupApart { group: name.to_owned() })),
            },
        };
        let mut lost = Vec::new();
        for volume in &group.volumes {
            let open = self.volumes.get(volume)?;
            let found = open.volume.snapshot_named(&snapshot);
            let found = found
                .ok_or_else(|| ServerError::Groups(GroupsError::GroupApart { group: name.to_owned() }))?;
            if begun.is_none() && !open.is_destination() {
                return Err(ServerError::Mirrors(MirrorsError::NotAMirror { volume: volume.clone() }));
            }
            // Obstacles in the middle are reported before any change.
            if begun.as_ref().is_none_or(|begun| !begun.reverse && !begun.done.contains(volume)) {
                self.devices.refuse_adopted(volume, None)?;
                self.mounts.refuse_if_live(volume)?;
            }
            // The changes of the image since the common instant, and its loss.
            let beyond = open.volume.changed_since_snapshot(found.id).map_err(ServerError::volume(volume))?;
            let loss = if open.is_destination() { Some(self.failover(volume, true)?) } else { None };
            lost.push(api::GroupLoss {
                volume: volume.clone(),
                undone_bytes: beyond.blocks * cairn_base::BLOCK_SIZE as u64,
                lost_bytes: loss.as_ref().and_then(|loss| loss.lost_bytes),
                lost_ms: loss.and_then(|loss| loss.lost_ms),
            });
        }
        let created_ms = group.made_ms(&snapshot);
        let answer = api::GroupFailover { name: name.to_owned(), snapshot, created_ms, lost, dry_run: true };
        Ok(Plan { group, begun, answer })
    }

    /// Saves the plan, after the target snapshot is protected from deletion.
    fn begin_failover(&self, name: &str) -> Result<Plan, ServerError> {
        for _ in 0..ATTEMPTS {
            let plan = self.plan_failover(name)?;
            let (snapshot, at_ms) = (plan.answer.snapshot.clone(), self.clock_ms());
            let begun = plan.begun.clone();
            let failover = begun.unwrap_or(Failover {
                snapshot,
                at_ms,
                done: BTreeSet::new(),
                reverse: false,
                running: true,
            });
            self.groups
                .change(name, |group| group.failover = Some(Failover { running: true, ..failover }))?;
            // An image that was let in before that may lack it: it is in place after this, or does
            // not come.
            self.mirrors.settle(&plan.group.volumes)?;
            let has = |volume: &String| {
                let open = self.volumes.get(volume);
                open.is_ok_and(|open| open.volume.snapshot_named(&plan.answer.snapshot).is_some())
            };
            if plan.group.volumes.iter().all(has) {
                return Ok(plan);
            }
            if plan.begun.is_some() {
                break;
            }
            self.groups.change(name, |group| group.failover = None)?;
        }
        Err(ServerError::Groups(GroupsError::GroupApart { group: name.to_owned() }))
    }

    fn carry_out(&self, name: &str) -> Result<api::GroupFailover, ServerError> {
        let Plan { group, begun, answer } = self.begin_failover(name)?;
        let (done, reverse) = begun.map(|begun| (begun.done, begun.reverse)).unwrap_or_default();
        self.bring_to(&group, &answer.snapshot, &done, reverse)?;
        Ok(api::GroupFailover { dry_run: false, ..answer })
    }

    /// Has each volume of a group that is not done show a snapshot and take writes.
    pub(super) fn bring_to(
        &self,
        group: &Group,
        snapshot: &str,
        done: &BTreeSet<String>,
        reverse: bool,
    ) -> Result<(), ServerError> {
        // Mounts become writable when all of it is complete, not in between.
        let still: Vec<Still<'_>> =
            group.volumes.iter().map(|volume| self.mounts.keep_still(volume)).collect();
        for volume in group.volumes.iter().filter(|volume| !done.contains(*volume)) {
            if reverse {
                self.take_role(volume, snapshot)?;
            } else {
                if self.volumes.get(volume)?.is_destination() {
                    self.failover(volume, false)?;
                }
                self.rollback(volume, snapshot)?;
            }
            self.groups.change(&group.name, |group| {
                if let Some(failover) = &mut group.failover {
                    failover.done.insert(volume.clone());
                }
            })?;
        }
        // A client that connected in between got a read-only view of the instant: it reconnects.
        let closed = self.end_sessions(|export| {
            export.snapshot.is_none() && group.volumes.iter().any(|volume| volume == export.volume)
        });
        drop(still);
        self.mounts.follow(|volume| group.volumes.iter().any(|member| member == volume));
        tracing::warn!(
            group = group.name,
            snapshot,
            closed,
            reverse,
            "the volumes of a group are writable now"
        );
        Ok(())
    }

    /// Makes one mirror writable that need not stay with others.
    pub(crate) fn failover_alone(&self, name: &str, dry_run: bool) -> Result<api::Failover, ServerError> {
        self.groups.refuse_alone(name)?;
        let done = self.failover(name, dry_run)?;
        self.mounts.follow(|volume| volume == name);
        Ok(done)
    }
}
