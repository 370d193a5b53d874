//! Commands on groups: the methods of the server for them.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use cairn_api as api;
use cairn_base::BLOCK_SIZE;
use cairn_mirror::Follower;
use cairn_volume::{Snapshot, Volume};

use crate::daemon::server::Server;
use crate::error::ServerError;
use crate::groups::shown::refuse_shared;
use crate::groups::{
    Group, MEMBERS_MAX, Member, NAME_MAX, PREFIX, around_all, held_back, in_order, kept, with_missing,
};
use crate::mirrors::error::MirrorsError;
use crate::mirrors::transfer;
use crate::names;
use crate::schedules::timetable::Timetable;
use crate::schedules::{late_by, put_back, timetable};
use crate::volumes::snapshots::named;
use crate::work::aside::Aside;

impl Server {
    pub(super) fn clock_ms(&self) -> u64 {
        self.clock.now().0 / 1_000_000
    }

    pub(crate) fn list_groups(&self) -> Vec<api::Group> {
        let groups = self.groups.groups.lock().clone();
        groups.iter().map(|group| self.show_one(group)).collect()
    }

    pub(crate) fn show_group(&self, name: &str) -> Result<api::Group, ServerError> {
        let group = self.groups.get(name)?;
        let mut shown = self.show_one(&group);
        self.count_beyond(&group, &mut shown);
        Ok(shown)
    }

    /// The changes of each volume beyond the shown snapshot of the group, or beyond the one kept
    /// for the mirrors that are furthest behind. This is the cost here of mirrors that lag behind
    /// the first.
    fn count_beyond(&self, group: &Group, shown: &mut api::Group) {
        let kept = shown.snapshots.iter().find(|snapshot| !snapshot.kept_for.is_empty());
        let Some(oldest) = shown.shown.as_ref().or(kept).map(|snapshot| snapshot.name.clone()) else {
            return;
        };
        for member in self.members(group) {
            let found = member.snapshots.iter().find(|snapshot| snapshot.name == oldest);
            let beyond = found.and_then(|found| member.open.volume.changed_since_snapshot(found.id).ok());
            let shown = shown.members.iter_mut().find(|shown| shown.volume == member.open.name);
            if let (Some(shown), Some(beyond)) = (shown, beyond) {
                shown.beyond_bytes = Some(beyond.blocks * BLOCK_SIZE as u64);
            }
        }
    }

    fn members(&self, group: &Group) -> Vec<Member> {
        let member = |volume: &String| {
            let open = self.volumes.get(volume).ok()?;
            let snapshots = open.volume.snapshots();
            Some(Member { open, snapshots })
        };
        group.volumes.iter().filter_map(member).collect()
    }

    /// The snapshots of a group, the oldest first, with the volumes that lack each. Their order in
    /// the volumes decides which is older. The times in their names come from the clocks of the
    /// servers that made them, which differ and may have been set back.
    fn group_snapshots(&self, group: &Group, members: &[Member]) -> Vec<api::GroupSnapshot> {
        let of_group = |member: &Member| {
            let mut own: Vec<&Snapshot> =
                member.snapshots.iter().filter(|s| group.made_ms(&s.name).is_some()).collect();
            own.sort_by_key(|snapshot| snapshot.id);
            own.into_iter().map(|snapshot| snapshot.name.clone()).collect::<Vec<String>>()
        };
        let lists: BTreeMap<&str, Vec<String>> =
            members.iter().map(|member| (member.open.name.as_str(), of_group(member))).collect();
        let found =
            in_order(members.iter().filter_map(|m| lists.get(m.open.name.as_str()).cloned()).collect());
        let show = |(name, missing): (String, Vec<String>)| api::GroupSnapshot {
            created_ms: group.made_ms(&name).unwrap_or_default(),
            name,
            missing,
            kept_for: Vec::new(),
        };
        with_missing(found, &group.volumes, &lists).into_iter().map(show).collect()
    }

    /// The same, with the mirrors for which they stay.
    fn group_snapshots_and_for_whom(&self, group: &Group, members: &[Member]) -> Vec<api::GroupSnapshot> {
        let mut snapshots = self.group_snapshots(group, members);
        for (name, peers) in self.kept_for_mirrors(members, &snapshots) {
            if let Some(snapshot) = snapshots.iter_mut().find(|snapshot| snapshot.name == name) {
                snapshot.kept_for = peers;
            }
        }
        snapshots
    }

    pub(super) fn show_one(&self, group: &Group) -> api::Group {
        let members = self.members(group);
        let snapshots = self.group_snapshots_and_for_whom(group, &members);
        let common = snapshots.iter().rev().find(|snapshot| snapshot.missing.is_empty()).cloned();
        // A group with an unreadable zone gets its report where it runs.
        let deletes = match group.is_timed() {
            true => self.superfluous(group, &members, &snapshots).unwrap_or_default(),
            false => Vec::new(),
        };
        let shown = |volume: &String| {
            let mirror = self.show_mirror(volume).ok();
            let open = members.iter().find(|member| member.open.name == *volume).map(|member| &member.open);
            let follows = open.is_some_and(|open| open.is_destination());
            api::GroupMember {
                volume: volume.clone(),
                is_there: open.is_some(),
                follows,
                image_ms: mirror.as_ref().filter(|_| follows).and_then(|mirror| mirror.image_ms),
                lag_ms: mirror.as_ref().filter(|_| follows).and_then(|mirror| mirror.lag_ms),
                beyond_bytes: None,
            }
        };
        let shown: Vec<api::GroupMember> = group.volumes.iter().map(shown).collect();
        let images: Vec<u64> = shown.iter().filter_map(|member| member.image_ms).collect();
        let spread = images.iter().max().zip(images.iter().min()).map(|(newest, oldest)| newest - oldest);
        let now_ms = self.clock_ms();
        let follows = shown.iter().any(|member| member.follows);
        let is_together = self.groups.is_together(group);
        let together = group.shown.clone().filter(|_| is_together).map(|name| api::GroupSnapshot {
            created_ms: group.made_ms(&name).unwrap_or_default(),
            missing: self.groups.held_in_memory(group),
            name,
            kept_for: Vec::new(),
        });
        api::Group {
            name: group.name.clone(),
            members: shown,
            together: group.together,
            shown: together,
            common,
            spread_ms: spread,
            snapshots,
            deletes: if follows { Vec::new() } else { deletes },
            every_ms: group.every_ms,
            cron: group.cron.clone(),
            zone: group.zone.clone(),
            keep: group.keep,
            last_ms: group.last_ms,
            next_ms: group.next_ms(now_ms).filter(|_| !follows),
            problem: group.problem.clone(),
            failover: self.groups.failover_of(group).map(|failover| api::GroupFailoverState {
                snapshot: failover.snapshot.clone(),
                at_ms: failover.at_ms,
                reverse: failover.reverse,
                left: group.volumes.iter().filter(|v| !failover.done.contains(*v)).cloned().collect(),
            }),
        }
    }

    pub(crate) fn create_group(&self, request: api::CreateGroup) -> Result<api::Group, ServerError> {
        self.groups.check_known()?;
        names::check("group", &request.name)?;
        if request.name.len() > NAME_MAX {
            return Err(ServerError::Invalid {
                fault: "the name of the group is longer than 32 characters",
                next: "choose a shorter name",
            });
        }
        let distinct: BTreeSet<&String> = request.volumes.iter().collect();
        if request.volumes.len() > MEMBERS_MAX
            || request.volumes.len() < 2
            || distinct.len() < request.volumes.len()
        {
            return Err(ServerError::Invalid {
                fault: "a group has 2 to 64 different volumes",
                next: "name 2 to 64 volumes, each once",
            });
        }
        for volume in &request.volumes {
            self.volumes.get(volume)?;
        }
        let mut group = Group {
            name: request.name,
            volumes: request.volumes,
            every_ms: None,
            cron: None,
            zone: None,
            keep: api::Keep::default(),
            from_ms: self.clock_ms(),
            last_ms: None,
            problem: None,
            put_back_ms: None,
            failover: None,
            together: !request.apart,
            shown: None,
        };
        {
            let mut groups = self.groups.groups.lock();
            if group.together
                && let Err(error) = refuse_shared(&groups, &group)
            {
                if self.groups.is_together(&group) {
                    return Err(error);
                }
                // Volumes that take writes may be in any number of groups: they show their own
                // writes.
                group.together = false;
            }
            if groups.iter().any(|other| other.name == group.name) {
                return Err(ServerError::Taken { what: "group", name: group.name });
            }
            let mut changed = groups.clone();
            changed.push(group.clone());
            self.groups.save(&changed)?;
            *groups = changed;
        }
        self.groups.advance_all(true);
        Ok(self.show_one(&self.groups.get(&group.name)?))
    }

    /// Has the mirrors of a group show one instant, or each its own newest image.
    pub(crate) fn show_group_together(&self, name: &str, together: bool) -> Result<api::Group, ServerError> {
        self.groups.set_together(name, together)?;
        Ok(self.show_one(&self.groups.get(name)?))
    }

    /// Ends a group; its volumes and their snapshots stay.
    pub(crate) fn delete_group(&self, name: &str) -> Result<(), ServerError> {
        self.groups.get(name)?;
        // Otherwise a failover that resumes would roll back the writes after the deletion of the
        // group, which holds its volumes together.
        let _turn = self.groups.take_turn(name)?;
        let mut groups = self.groups.groups.lock();
        let left: Vec<Group> = groups.iter().filter(|group| group.name != name).cloned().collect();
        self.groups.save(&left)?;
        *groups = left;
        Ok(())
    }

    /// Sets the schedule of a group, and the retention of its snapshots. Without an interval or an
    /// expression the schedule makes none.
    pub(crate) fn set_group(&self, name: &str, set: &api::SetSchedule) -> Result<api::Group, ServerError> {
        self.groups.get(name)?;
        let zone = timetable::zone(set.zone.as_deref())?;
        let from_ms = self.clock_ms();
        if set.every_ms.is_some() || set.cron.is_some() {
            Timetable::read(set.every_ms, set.cron.as_deref(), zone, from_ms)?.due_at_some_time(from_ms)?;
        }
        let apply = |group: &mut Group| {
            group.every_ms = set.every_ms;
            group.cron = set.cron.clone();
            group.zone = set.zone.clone();
            group.keep = set.keep;
            group.from_ms = from_ms;
            (group.problem, group.put_back_ms) = (None, None);
        };
        if set.dry_run {
            let mut group = self.groups.get(name)?;
            apply(&mut group);
            return Ok(self.show_one(&group));
        }
        let group = self.groups.change(name, apply)?;
        Ok(self.show_one(&group))
    }

    /// Makes a snapshot of all volumes of a group, at one instant.
    pub(crate) fn snapshot_group(&self, name: &str) -> Result<api::GroupSnapshot, ServerError> {
        let group = self.groups.get(name)?;
        // Not all of them are of one instant yet.
        self.groups.refuse_unfinished(&group)?;
        let mut members = Vec::new();
        for volume in &group.volumes {
            let open = self.volumes.get(volume)?;
            if open.is_destination() {
                return Err(ServerError::Mirrors(MirrorsError::IsDestination { volume: volume.clone() }));
            }
            members.push(open);
        }
        members.iter().try_for_each(|open| open.refuse_without_room())?;
        // Named when the hooks have quiesced all, and never as one before, whatever the clock does.
        let volumes: Vec<Arc<Volume>> = members.iter().map(|open| open.volume.clone()).collect();
        let mut make = || {
            let (snapshot, at_ms) = self.groups.name_snapshot(name);
            Volume::snapshot_together(&volumes, &snapshot).map(|_| (snapshot, at_ms))
        };
        let made = around_all(&members, &mut make)?;
        let (snapshot, created_ms) = made.map_err(|(at, source)| {
            let volume = members.get(at).map(|open| open.name.clone()).unwrap_or_default();
            named(&volume, &format!("{volume}@{PREFIX}{name}"))(source)
        })?;
        tracing::info!(group = name, snapshot, volumes = members.len(), "made a snapshot of a group");
        Ok(api::GroupSnapshot { name: snapshot, created_ms, missing: Vec::new(), kept_for: Vec::new() })
    }

    /// Makes the snapshots of groups that are due, and deletes those that need not stay.
    pub(crate) fn run_groups(self: &Arc<Self>, aside: &mut Aside) {
        let now_ms = self.clock_ms();
        self.groups.advance_all(false);
        self.groups.see_clock(now_ms);
        let groups = self.groups.groups.lock().clone();
        for group in
            groups.into_iter().filter(|group| group.next_ms(now_ms).is_some_and(|next| next <= now_ms))
        {
            let member = |volume: &String| self.volumes.get(volume).ok();
            let follows = |volume: &String| member(volume).is_some_and(|open| open.is_destination());
            if group.volumes.iter().any(follows) || self.groups.refuse_unfinished(&group).is_err() {
                // Its source makes them; or the user gets the request to resume the failover.
                continue;
            }
            let server = self.clone();
            // No volume has such a name.
            aside.run(format!("{PREFIX}/{}", group.name), move || server.run_group(&group, now_ms));
        }
    }

    /// Makes a snapshot of a group by its schedule.
    fn run_group(&self, group: &Group, now_ms: u64) {
        let outcome = self.snapshot_group(&group.name).and_then(|_| self.thin_group(&group.name));
        if let Err(error) = &outcome {
            tracing::warn!(group = group.name, %error, "a scheduled snapshot of a group failed");
        }
        self.groups.note_run(&group.name, now_ms, outcome.err().map(|error| error.to_string()));
    }

    /// For each server of mirrors, the newest snapshot of a group that all of its mirrors of these
    /// volumes have: the image that they show there, and the state after their failover.
    fn kept_for_mirrors(
        &self,
        members: &[Member],
        snapshots: &[api::GroupSnapshot],
    ) -> BTreeMap<String, Vec<String>> {
        let pinned: HashSet<String> = self.peers.pinned().into_iter().map(transfer::peer_digits).collect();
        let mut mirrors: BTreeMap<String, Vec<Follower>> = BTreeMap::new();
        for follower in self.source.followers() {
            let is_member = members.iter().any(|member| member.open.volume.id() == follower.volume);
            // One without an image shows nothing yet.
            let shows = follower.departed.is_none() && follower.base.is_some();
            if is_member && shows && pinned.contains(follower.peer()) {
                mirrors.entry(follower.peer().to_owned()).or_default().push(follower);
            }
        }
        let mut kept: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (peer, mirrors) in mirrors {
            let has = |follower: &Follower, name: &str| {
                let member = members.iter().find(|member| member.open.volume.id() == follower.volume);
                member.is_some_and(|member| member.has_given(follower, name))
            };
            let all_have = |snapshot: &&api::GroupSnapshot| {
                snapshot.missing.is_empty() && mirrors.iter().all(|follower| has(follower, &snapshot.name))
            };
            if let Some(newest) = snapshots.iter().rev().find(all_have) {
                kept.entry(newest.name.clone()).or_default().push(peer);
            }
        }
        kept
    }

    /// The snapshots of a group that its rules do not keep: those of its schedule and manual ones.
    /// A snapshot that is held or open in any volume is excluded, and so is the last common one of
    /// mirrors.
    fn superfluous(
        &self,
        group: &Group,
        members: &[Member],
        snapshots: &[api::GroupSnapshot],
    ) -> Result<Vec<String>, ServerError> {
        // The needs of mirrors are unknown: delete nothing.
        if self.peers.check_known().is_err() || self.followers.check_known().is_err() {
            return Ok(Vec::new());
        }
        // The snapshots of a volume that is not open are unknown as well. The snapshots of the
        // others may be the only ones to return to.
        if members.len() < group.volumes.len() {
            return Ok(Vec::new());
        }
        let stays = kept(group, snapshots)?;
        let needed = |name: &str| {
            members.iter().any(|member| {
                let Some(found) = member.snapshots.iter().find(|found| found.name == name) else {
                    return false;
                };
                let shown = Some(name);
                found.held
                    || member.open.volume.is_cloned(found.id)
                    || self
                        .has_sessions(|export| export.volume == member.open.name && export.snapshot == shown)
                    || !self.mounts.of(|of, shows| of == member.open.name && shows == shown).is_empty()
                    || self.nfs_exports.has(|of, shows| of == member.open.name && shows == shown)
            })
        };
        // From all volumes or from none: a part of a snapshot of the group cannot be restored.
        let goes = |(snapshot, stays): &(&api::GroupSnapshot, bool)| {
            !stays && snapshot.kept_for.is_empty() && !needed(&snapshot.name)
        };
        let gone = snapshots.iter().zip(stays).filter(goes);
        Ok(gone.map(|(snapshot, _)| snapshot.name.clone()).collect())
    }

    /// Deletes the snapshots of a group that need not stay, by the current settings: the commands
    /// around the new snapshot may have taken minutes.
    fn thin_group(&self, name: &str) -> Result<(), ServerError> {
        let group = self.groups.get(name)?;
        if !group.is_timed() {
            return Ok(());
        }
        let members = self.members(&group);
        let snapshots = self.group_snapshots_and_for_whom(&group, &members);
        for name in self.superfluous(&group, &members, &snapshots)? {
            for member in &members {
                let found = member.snapshots.iter().find(|found| found.name == name);
                let may_go = |id| self.mirrors.refuse_locked_snapshot(&member.open.name, id).is_ok();
                if let Some(found) = found.filter(|found| may_go(found.id)) {
                    let deleted = member.open.volume.delete_snapshots(&[found.id]);
                    deleted.map_err(ServerError::volume(&member.open.name))?;
                }
            }
        }
        Ok(())
    }

    /// Whether the mirrors of a group are to show one instant, and have none.
    fn shows_nothing(&self, group: &api::Group) -> bool {
        let is_together = self.groups.get(&group.name).is_ok_and(|group| self.groups.is_together(&group));
        is_together && group.shown.is_none()
    }

    /// The problems of all groups.
    pub(crate) fn group_problems(&self) -> Vec<api::Problem> {
        let mut problems = Vec::new();
        for group in self.list_groups() {
            let mut tell = |message: String, next: String| {
                problems.push(api::Problem { subject: group.name.clone(), message, next });
            };
            self.problems_of_group(&group, &mut tell);
            problems_of_members(&group, &mut tell);
        }
        problems
    }

    /// The problems of a group as a whole.
    fn problems_of_group(&self, group: &api::Group, tell: &mut dyn FnMut(String, String)) {
        let name = &group.name;
        if let Some(failover) = group.failover.as_ref().filter(|failover| !failover.left.is_empty()) {
            let command = if failover.reverse { "reverse" } else { "failover" };
            tell(
                format!("its {command} was cut off: {} are left", failover.left.join(", ")),
                format!("`cairn group {command} {name}` resumes it"),
            );
        }
        if group.together && self.shows_nothing(group) {
            tell(
                "its mirrors show nothing, as they have no snapshot of the group in common".to_owned(),
                format!(
                    "`cairn snapshot create --group {name}` at the source, and `cairn mirror update` of each here; or `cairn group apart {name}`, and each shows its own newest image"
                ),
            );
        }
        if let Some(shown) = group.shown.as_ref().filter(|shown| !shown.missing.is_empty()) {
            tell(
                format!(
                    "the source has deleted {}, which they show: {} have it in memory only, until all have a newer one",
                    shown.name,
                    shown.missing.join(", ")
                ),
                format!(
                    "`cairn mirror update` of the others; see `cairn group show {name}`. Do not restart this server before"
                ),
            );
        }
        if let Some((snapshot, missing)) = held_back(group) {
            tell(
                format!("its mirrors show an older instant, as {} lack {snapshot}", missing.join(", ")),
                "see `cairn mirror status`, and `cairn group show` for what is held back".to_owned(),
            );
        }
        if let Some(by_ms) = self.groups.get(name).ok().and_then(|group| group.put_back_ms) {
            tell(
                format!(
                    "the clock was put back by {}: its schedule counts from that moment",
                    put_back(Some(by_ms))
                ),
                format!(
                    "check the clock of this machine; the next run ends this message: `cairn group show {name}`"
                ),
            );
        }
        let now_ms = self.clock.now().0 / 1_000_000;
        if let Some(by_ms) = late_by(group.next_ms, now_ms, self.uptime()) {
            tell(
                format!("its schedule is late by {}", put_back(Some(by_ms))),
                "an earlier snapshot or the hooks of a volume may hang: see the log of the server".to_owned(),
            );
        }
        if let Some(problem) = &group.problem {
            tell(
                format!("its last snapshot failed: {problem}"),
                format!("it is tried again; see `cairn group show {name}`"),
            );
        }
    }
}

/// The problems of the volumes of a group: some follow a source and others do not, or are missing.
fn problems_of_members(group: &api::Group, tell: &mut dyn FnMut(String, String)) {
    let name = &group.name;
    let follows: Vec<&str> = group.members.iter().filter(|m| m.follows).map(|m| m.volume.as_str()).collect();
    let is_timed = group.every_ms.is_some() || group.cron.is_some();
    // If all volumes of a group follow, the other side has a schedule, until the roles change.
    if is_timed && !follows.is_empty() && follows.len() < group.members.len() {
        tell(
            format!(
                "its schedule never runs: {} follow a source, which makes their snapshots",
                follows.join(", ")
            ),
            format!(
                "create it again without them: `cairn group delete {name}`, `cairn group create {name} VOLUME...`; or end its schedule: `cairn group set {name} --off`"
            ),
        );
    }
    let is_cut = group.failover.as_ref().is_some_and(|failover| !failover.left.is_empty());
    let takes: Vec<&str> =
        group.members.iter().filter(|m| m.is_there && !m.follows).map(|m| m.volume.as_str()).collect();
    if group.together && !follows.is_empty() && !takes.is_empty() && !is_cut {
        tell(
            format!(
                "it shows no one instant: {} follow a source, each with its own newest image, and {} take writes",
                follows.join(", "),
                takes.join(", ")
            ),
            format!(
                "have those follow as well (`cairn mirror resync VOLUME`), or all take writes (`cairn mirror failover VOLUME`); or create the group again with the volumes that belong together: `cairn group delete {name}`, `cairn group create {name} VOLUME...`"
            ),
        );
    }
    let gone: Vec<&str> = group.members.iter().filter(|m| !m.is_there).map(|m| m.volume.as_str()).collect();
    if !gone.is_empty() {
        tell(
            format!("{} are not there", gone.join(", ")),
            format!(
                "see `cairn volume list`; create the group again without them: `cairn group delete {name}`"
            ),
        );
    }
}
