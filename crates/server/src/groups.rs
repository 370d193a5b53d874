//! Groups: volumes of this server whose snapshots are made at one instant, by hand or by the clock, with the hooks of all of them around it; and that are recovered to one.
//!
//! A snapshot of a group is one of the same name in each of its volumes, `group.NAME.TIME`, and nothing else: it comes along with their mirrors like any other, and the time in the
//! name is never given twice. So the server of the mirrors needs to be told no more than which volumes belong together (a group there), and what all of them have is what
//! they can be brought to together: the newest snapshot of the group that every one of them has.
//!
//! A failover of a group makes its mirrors writable one after the other and brings each to that snapshot. What is to be done is written down first (`groups.json`), and each
//! volume's part once it is done: cut anywhere, the same command goes on, and never goes over a volume twice. What a volume showed beyond the common instant is kept as a
//! snapshot of it.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cairn_volume::{Snapshot, Volume};
use chrono_tz::Tz;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::api;
use crate::contents::named;
use crate::error::ServerError;
use crate::names;
use crate::schedules::{retention, timetable};
use crate::server::Server;
use crate::state;
use crate::volumes::OpenVolume;
use timetable::Timetable;

/// How the names of their snapshots begin.
const PREFIX: &str = "group.";
/// Longest name of a group, in bytes: with the prefix and the time the name of a snapshot has no more than 64.
const NAME_MAX: usize = 32;
/// Volumes of a group at most: writes to all of them wait while the snapshots are made.
const MEMBERS_MAX: usize = 64;
const TIME_FORMAT: &str = "%Y-%m-%dT%H-%M-%S.%3fZ";

/// A group as it is kept.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Group {
    name: String,
    volumes: Vec<String>,
    every_ms: Option<u64>,
    cron: Option<String>,
    zone: Option<String>,
    #[serde(default)]
    keep: api::Keep,
    /// When the schedule was set.
    from_ms: u64,
    last_ms: Option<u64>,
    problem: Option<String>,
    /// A failover that was begun, or done.
    failover: Option<Failover>,
}

/// A failover of a group.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Failover {
    /// The snapshot that all are brought to.
    snapshot: String,
    at_ms: u64,
    /// The volumes that show it.
    done: BTreeSet<String>,
}

/// What `groups.json` says.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Document {
    groups: Vec<Group>,
}

/// The groups of a server.
pub(crate) struct Groups {
    path: PathBuf,
    groups: Mutex<Vec<Group>>,
    /// The last time that a snapshot was named by, in milliseconds since 1970.
    named_ms: AtomicU64,
}

impl Groups {
    /// Those in the data directory.
    pub(crate) fn open(dir: &std::path::Path) -> Result<Self, ServerError> {
        let path = dir.join("groups.json");
        let document: Document = state::load(&path)?.unwrap_or_default();
        Ok(Self { path, groups: Mutex::new(document.groups), named_ms: AtomicU64::new(0) })
    }

    fn get(&self, name: &str) -> Result<Group, ServerError> {
        let groups = self.groups.lock();
        groups.iter().find(|group| group.name == name).cloned().ok_or_else(|| ServerError::NotFound {
            what: "group",
            name: name.to_owned(),
            list: "cairn group list",
        })
    }

    /// Changes one, and writes all down.
    fn change(&self, name: &str, change: impl FnOnce(&mut Group)) -> Result<Group, ServerError> {
        let mut groups = self.groups.lock();
        let mut changed = groups.clone();
        let Some(group) = changed.iter_mut().find(|group| group.name == name) else {
            return Err(ServerError::NotFound {
                what: "group",
                name: name.to_owned(),
                list: "cairn group list",
            });
        };
        change(group);
        let group = group.clone();
        state::save(&self.path, &Document { groups: changed.clone() })?;
        *groups = changed;
        Ok(group)
    }
}

impl Group {
    fn zone(&self) -> Result<Tz, ServerError> {
        timetable::zone(self.zone.as_deref())
    }

    fn next_ms(&self, now_ms: u64) -> Option<u64> {
        if self.every_ms.is_none() && self.cron.is_none() {
            return None;
        }
        let zone = self.zone().ok()?;
        let timetable = Timetable::read(self.every_ms, self.cron.as_deref(), zone, self.from_ms).ok()?;
        timetable.next(self.last_ms.unwrap_or(self.from_ms).min(now_ms))
    }

    /// When a snapshot of the group was made, by its name; none for any other snapshot.
    fn made_ms(&self, snapshot: &str) -> Option<u64> {
        let time = snapshot.strip_prefix(PREFIX)?.strip_prefix(&self.name)?.strip_prefix('.')?;
        let at = chrono::NaiveDateTime::parse_from_str(time, TIME_FORMAT).ok()?;
        u64::try_from(at.and_utc().timestamp_millis()).ok()
    }
}

/// A member that is there.
struct Member {
    open: Arc<OpenVolume>,
    snapshots: Vec<Snapshot>,
}

/// The names in several lists, each in the order of all of them: what only a later list has stands behind what it follows there.
fn in_order(lists: Vec<Vec<String>>) -> Vec<String> {
    let mut order: Vec<String> = Vec::new();
    for names in lists {
        let mut at = 0;
        for name in names {
            // Mostly all lists are the same.
            let is_next = order.get(at).is_some_and(|next| *next == name);
            let found = if is_next { Some(at) } else { order.iter().position(|known| *known == name) };
            match found {
                Some(found) => at = at.max(found + 1),
                None => {
                    order.insert(at, name);
                    at += 1;
                }
            }
        }
    }
    order
}

/// Makes a snapshot with the hooks of all of them around it.
fn around_all<T>(members: &[Arc<OpenVolume>], make: &mut dyn FnMut() -> T) -> Result<T, ServerError> {
    match members.split_first() {
        None => Ok(make()),
        Some((first, rest)) => first.snapshot_with(|| around_all(rest, make))?,
    }
}

impl Server {
    fn clock_ms(&self) -> u64 {
        self.clock.now().0 / 1_000_000
    }

    pub(crate) fn list_groups(&self) -> Vec<api::Group> {
        let groups = self.groups.groups.lock().clone();
        groups.iter().map(|group| self.show_one(group)).collect()
    }

    pub(crate) fn show_group(&self, name: &str) -> Result<api::Group, ServerError> {
        Ok(self.show_one(&self.groups.get(name)?))
    }

    /// The failover of a group, as far as it still holds: once a volume that was brought to the common instant follows again, the roles have changed since, and the
    /// next failover is another one, to a newer instant.
    fn failover_of(&self, group: &Group) -> Option<Failover> {
        let follows = |volume: &String| self.volumes.get(volume).is_ok_and(|open| open.is_destination());
        let over = |failover: &Failover| match failover.done.is_empty() {
            true => group.volumes.iter().all(follows),
            false => failover.done.iter().any(follows),
        };
        group.failover.clone().filter(|failover| !over(failover))
    }

    fn members(&self, group: &Group) -> Vec<Member> {
        let member = |volume: &String| {
            let open = self.volumes.get(volume).ok()?;
            let snapshots = open.volume.snapshots();
            Some(Member { open, snapshots })
        };
        group.volumes.iter().filter_map(member).collect()
    }

    /// The snapshots of a group, the oldest first, with the volumes that lack each. Which is older their order in the volumes says: the times in their names are by the clocks of
    /// the servers that made them, which may have been put back, and differ.
    fn group_snapshots(&self, group: &Group, members: &[Member]) -> Vec<api::GroupSnapshot> {
        let of_group = |member: &Member| {
            let mut own: Vec<&Snapshot> =
                member.snapshots.iter().filter(|s| group.made_ms(&s.name).is_some()).collect();
            own.sort_by_key(|snapshot| snapshot.id);
            own.into_iter().map(|snapshot| snapshot.name.clone()).collect::<Vec<String>>()
        };
        let found = in_order(members.iter().map(of_group).collect());
        let has = |volume: &str, name: &str| {
            let member = members.iter().find(|member| member.open.name == volume);
            member.is_some_and(|member| member.snapshots.iter().any(|snapshot| snapshot.name == name))
        };
        let show = |name: String| api::GroupSnapshot {
            missing: group.volumes.iter().filter(|volume| !has(volume, &name)).cloned().collect(),
            created_ms: group.made_ms(&name).unwrap_or_default(),
            name,
        };
        found.into_iter().map(show).collect()
    }

    fn show_one(&self, group: &Group) -> api::Group {
        let members = self.members(group);
        let snapshots = self.group_snapshots(group, &members);
        let common = snapshots.iter().rev().find(|snapshot| snapshot.missing.is_empty()).cloned();
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
            }
        };
        let shown: Vec<api::GroupMember> = group.volumes.iter().map(shown).collect();
        let images: Vec<u64> = shown.iter().filter_map(|member| member.image_ms).collect();
        let spread = images.iter().max().zip(images.iter().min()).map(|(newest, oldest)| newest - oldest);
        let now_ms = self.clock_ms();
        let follows = shown.iter().any(|member| member.follows);
        api::Group {
            name: group.name.clone(),
            members: shown,
            common,
            spread_ms: spread,
            snapshots,
            every_ms: group.every_ms,
            cron: group.cron.clone(),
            zone: group.zone.clone(),
            keep: group.keep,
            last_ms: group.last_ms,
            next_ms: group.next_ms(now_ms).filter(|_| !follows),
            problem: group.problem.clone(),
            failover: self.failover_of(group).map(|failover| api::GroupFailoverState {
                snapshot: failover.snapshot.clone(),
                at_ms: failover.at_ms,
                left: group.volumes.iter().filter(|v| !failover.done.contains(*v)).cloned().collect(),
            }),
        }
    }

    pub(crate) fn create_group(&self, request: api::CreateGroup) -> Result<api::Group, ServerError> {
        names::check("group", &request.name)?;
        if request.name.len() > NAME_MAX {
            return Err(ServerError::Invalid {
                what: "the name",
                rule: "a group's has at most 32 characters",
            });
        }
        let distinct: BTreeSet<&String> = request.volumes.iter().collect();
        if request.volumes.len() > MEMBERS_MAX
            || request.volumes.len() < 2
            || distinct.len() < request.volumes.len()
        {
            return Err(ServerError::Invalid {
                what: "the group",
                rule: "it has 2 to 64 volumes, each once",
            });
        }
        for volume in &request.volumes {
            self.volumes.get(volume)?;
        }
        let group = Group {
            name: request.name,
            volumes: request.volumes,
            every_ms: None,
            cron: None,
            zone: None,
            keep: api::Keep::default(),
            from_ms: self.clock_ms(),
            last_ms: None,
            problem: None,
            failover: None,
        };
        {
            let mut groups = self.groups.groups.lock();
            if groups.iter().any(|other| other.name == group.name) {
                return Err(ServerError::Taken { what: "group", name: group.name });
            }
            let mut changed = groups.clone();
            changed.push(group.clone());
            state::save(&self.groups.path, &Document { groups: changed.clone() })?;
            *groups = changed;
        }
        Ok(self.show_one(&group))
    }

    /// Ends a group; its volumes and their snapshots stay.
    pub(crate) fn delete_group(&self, name: &str) -> Result<(), ServerError> {
        self.groups.get(name)?;
        let mut groups = self.groups.groups.lock();
        let left: Vec<Group> = groups.iter().filter(|group| group.name != name).cloned().collect();
        state::save(&self.groups.path, &Document { groups: left.clone() })?;
        *groups = left;
        Ok(())
    }

    /// Sets the schedule of a group, and how long its snapshots stay; without an interval or an expression none are made by the clock.
    pub(crate) fn set_group(&self, name: &str, set: &api::SetSchedule) -> Result<api::Group, ServerError> {
        self.groups.get(name)?;
        let zone = timetable::zone(set.zone.as_deref())?;
        let from_ms = self.clock_ms();
        if set.every_ms.is_some() || set.cron.is_some() {
            Timetable::read(set.every_ms, set.cron.as_deref(), zone, from_ms)?;
        }
        let apply = |group: &mut Group| {
            group.every_ms = set.every_ms;
            group.cron = set.cron.clone();
            group.zone = set.zone.clone();
            group.keep = set.keep;
            group.from_ms = from_ms;
            group.problem = None;
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
        let mut members = Vec::new();
        for volume in &group.volumes {
            let open = self.volumes.get(volume)?;
            if open.is_destination() {
                return Err(ServerError::IsDestination { volume: volume.clone() });
            }
            members.push(open);
        }
        // Named when the hooks have quiesced all, and never as one before, whatever the clock does.
        let volumes: Vec<Arc<Volume>> = members.iter().map(|open| open.volume.clone()).collect();
        let mut make = || {
            let last = &self.groups.named_ms;
            let now_ms = self.clock_ms();
            let before = last.fetch_max(now_ms, Ordering::AcqRel);
            let at_ms = if before < now_ms { now_ms } else { last.fetch_add(1, Ordering::AcqRel) + 1 };
            let time = timetable::in_zone(at_ms, Tz::UTC).map(|at| at.format(TIME_FORMAT).to_string());
            let snapshot = format!("{PREFIX}{name}.{}", time.unwrap_or_default());
            Volume::snapshot_together(&volumes, &snapshot).map(|_| (snapshot, at_ms))
        };
        let made = around_all(&members, &mut make)?;
        let (snapshot, created_ms) = made.map_err(|(at, source)| {
            let volume = members.get(at).map(|open| open.name.clone()).unwrap_or_default();
            named(&volume, &format!("{volume}@{PREFIX}{name}"))(source)
        })?;
        tracing::info!(group = name, snapshot, volumes = members.len(), "made a snapshot of a group");
        Ok(api::GroupSnapshot { name: snapshot, created_ms, missing: Vec::new() })
    }

    /// Makes the snapshots of groups that are due, and deletes those that need not stay.
    pub(crate) fn run_groups(&self) {
        let now_ms = self.clock_ms();
        let groups = self.groups.groups.lock().clone();
        for group in groups.iter().filter(|group| group.next_ms(now_ms).is_some_and(|next| next <= now_ms)) {
            let follows = |volume: &String| self.volumes.get(volume).is_ok_and(|open| open.is_destination());
            if group.volumes.iter().any(follows) {
                // Its source makes them.
                continue;
            }
            let outcome = self.snapshot_group(&group.name).and_then(|_| self.thin_group(group));
            if let Err(error) = &outcome {
                tracing::warn!(group = group.name, %error, "a scheduled snapshot of a group failed");
            }
            let noted = self.groups.change(&group.name, |group| {
                group.last_ms = Some(now_ms);
                group.problem = outcome.err().map(|error| error.to_string());
            });
            if let Err(error) = noted {
                tracing::warn!(group = group.name, %error, "the last run of a group was not written down");
            }
        }
    }

    /// Deletes the snapshots of a group that its rules no longer keep: those of its schedule and those made by hand, none that is held or open in any volume.
    fn thin_group(&self, group: &Group) -> Result<(), ServerError> {
        let members = self.members(group);
        let snapshots = self.group_snapshots(group, &members);
        let times: Vec<u64> = snapshots.iter().map(|snapshot| snapshot.created_ms).collect();
        let stays = retention::kept(&group.keep, &times, group.zone()?);
        for (snapshot, _) in snapshots.iter().zip(stays).filter(|(_, stays)| !stays) {
            let of =
                |member: &Member| member.snapshots.iter().find(|found| found.name == snapshot.name).cloned();
            let is_open = |member: &Member| {
                let name = Some(snapshot.name.as_str());
                self.has_sessions(|export| export.volume == member.open.name && export.snapshot == name)
            };
            let needed = |found: &Snapshot, member: &Member| {
                found.held || member.open.volume.is_cloned(found.id) || is_open(member)
            };
            // Of all or of none: a part of it is nothing to go back to.
            if members.iter().any(|member| of(member).is_some_and(|found| needed(&found, member))) {
                continue;
            }
            for member in &members {
                if let Some(found) = of(member) {
                    let deleted = member.open.volume.delete_snapshots(&[found.id]);
                    deleted.map_err(ServerError::volume(&member.open.name))?;
                }
            }
        }
        Ok(())
    }

    /// Makes the mirrors of a group writable, all at the newest snapshot of the group that every one of them has.
    pub(crate) fn failover_group(
        &self,
        name: &str,
        dry_run: bool,
    ) -> Result<api::GroupFailover, ServerError> {
        let group = self.groups.get(name)?;
        let begun = self.failover_of(&group);
        if begun.as_ref().is_some_and(|failover| failover.done.len() >= group.volumes.len()) {
            return Err(ServerError::GroupFailedOver { group: name.to_owned() });
        }
        let shown = self.show_one(&group);
        let snapshot = match &begun {
            Some(begun) => begun.snapshot.clone(),
            None => match &shown.common {
                Some(common) => common.name.clone(),
                None => return Err(ServerError::GroupApart { group: name.to_owned() }),
            },
        };
        let mut lost = Vec::new();
        for volume in &group.volumes {
            let open = self.volumes.get(volume)?;
            let found = open.volume.snapshots().into_iter().find(|found| found.name == snapshot);
            let found = found.ok_or_else(|| ServerError::GroupApart { group: name.to_owned() })?;
            if begun.is_none() && !open.is_destination() {
                return Err(ServerError::NotAMirror { volume: volume.clone() });
            }
            // What would stop it in the middle is said before anything is done.
            if begun.as_ref().is_none_or(|begun| !begun.done.contains(volume)) {
                self.devices.refuse_adopted(volume, None)?;
                self.mounts.refuse_if_live(volume)?;
            }
            // What the image has beyond the common instant, and what it lacks.
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
        let mut answer = api::GroupFailover { name: name.to_owned(), snapshot, created_ms, lost, dry_run };
        if dry_run {
            return Ok(answer);
        }
        let (snapshot, at_ms) = (answer.snapshot.clone(), self.clock_ms());
        self.groups.change(name, |group| {
            group.failover =
                Some(begun.clone().unwrap_or(Failover { snapshot, at_ms, done: BTreeSet::new() }));
        })?;
        for volume in &group.volumes {
            if begun.as_ref().is_some_and(|begun| begun.done.contains(volume)) {
                continue;
            }
            // Its mounts take writes once it is rolled back, not in between.
            let _still = self.mounts.keep_still(volume);
            if self.volumes.get(volume)?.is_destination() {
                self.failover(volume, false)?;
            }
            self.rollback(volume, &answer.snapshot)?;
            self.groups.change(name, |group| {
                if let Some(failover) = &mut group.failover {
                    failover.done.insert(volume.clone());
                }
            })?;
        }
        tracing::warn!(group = name, snapshot = answer.snapshot, "failed a group over");
        answer.dry_run = false;
        Ok(answer)
    }

    /// What is wrong with groups.
    pub(crate) fn group_problems(&self) -> Vec<api::Problem> {
        let mut problems = Vec::new();
        for group in self.list_groups() {
            let mut tell = |message: String, next: String| {
                problems.push(api::Problem { subject: group.name.clone(), message, next });
            };
            let name = &group.name;
            if let Some(failover) = group.failover.as_ref().filter(|failover| !failover.left.is_empty()) {
                tell(
                    format!("its failover was cut off: {} are left", failover.left.join(", ")),
                    format!("`cairn group failover {name}` goes on with it"),
                );
            }
            if let Some(problem) = &group.problem {
                tell(
                    format!("its last snapshot failed: {problem}"),
                    format!("it is tried again; see `cairn group show {name}`"),
                );
            }
            let gone: Vec<&str> =
                group.members.iter().filter(|m| !m.is_there).map(|m| m.volume.as_str()).collect();
            if !gone.is_empty() {
                tell(
                    format!("{} are not there", gone.join(", ")),
                    format!(
                        "see `cairn volume list`; make the group anew without them: `cairn group delete {name}`"
                    ),
                );
            }
        }
        problems
    }
}

#[cfg(test)]
mod tests;
