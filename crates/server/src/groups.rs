//! Groups: volumes of this server whose snapshots are made at one instant, by hand or by the clock, with the hooks of all of them around it; and that are recovered to one.
//!
//! A snapshot of a group is one of the same name in each of its volumes, `group.NAME.TIME`, and nothing else: it comes along with their mirrors like any other, and the time in the
//! name is never given twice. So the server of the mirrors needs to be told no more than which volumes belong together (a group there), and what all of them have is what
//! they can be brought to together: the newest snapshot of the group that every one of them has. That is what the mirrors of a group show ([`together`]), and what a failover of the group
//! brings them to ([`failover`]).

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

use cairn_api as api;
use cairn_base::{BLOCK_SIZE, Clock};
use cairn_mirror::Follower;
use cairn_stream::MIRROR_PREFIX;
use cairn_volume::{Snapshot, Volume};
use chrono_tz::Tz;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::contents::named;
use crate::error::ServerError;
use crate::names;
use crate::schedules::{Aside, put_back, retention, timetable};
use crate::server::Server;
use crate::state::{self, Unread};
use crate::transfer;
use crate::volumes::{OpenVolume, Volumes};
use timetable::Timetable;
use together::{Memory, refuse_shared};

mod failover;
mod reverse;
mod together;
pub(crate) use together::Showing;

/// How the names of their snapshots begin.
const PREFIX: &str = "group.";
/// Longest name of a group, in bytes: with the prefix and the time the name of a snapshot has no more than 64.
const NAME_MAX: usize = 32;
/// Volumes of a group at most: writes to all of them wait while the snapshots are made.
const MEMBERS_MAX: usize = 64;
const _: () = assert!(MEMBERS_MAX <= cairn_mirror::HEIRS_MAX, "their roles change in one message");
/// A newer snapshot of a group that only some of its mirrors have is a problem when they have had it for so long.
const HELD_BACK_MS: u64 = 15 * 60_000;
/// Names of snapshots that are remembered, so that none is given twice, also where the first one is deleted.
const NAMED_MAX: usize = 4096;
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
    /// By how much the clock was put back since the last run, where the schedule counts from that moment.
    #[serde(default)]
    put_back_ms: Option<u64>,
    /// A failover that was begun, or done.
    failover: Option<Failover>,
    /// Its mirrors show one instant. Groups that were made before there was that don't.
    #[serde(default)]
    together: bool,
    /// The snapshot that they show; none when they have none in common.
    #[serde(default)]
    shown: Option<String>,
}

/// A failover of a group, or the end of a planned change of its roles.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Failover {
    /// The snapshot that all are brought to.
    snapshot: String,
    at_ms: u64,
    /// The volumes that show it.
    done: BTreeSet<String>,
    /// The sources have given their roles away at that instant, and each mirror has the last image.
    #[serde(default)]
    reverse: bool,
    /// It is being done right now.
    #[serde(skip)]
    running: bool,
}

/// What `groups.json` says.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Document {
    groups: Vec<Group>,
}

/// What `groups.unfinished.json` says while there is something to say.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Unfinished {
    /// Those of groups whose failover is not over.
    volumes: BTreeSet<String>,
}

/// Volumes of failovers that are not over.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Marked {
    These(BTreeSet<String>),
    /// The file can't be read: any that has a snapshot of a group may be one.
    Unknown,
}

/// The groups of a server. Lock order: `groups`, `marked`, `memory`, then what volumes have.
pub(crate) struct Groups {
    path: PathBuf,
    /// Volumes that are to show one instant until a failover is over, as is written down beside `groups.json`: they are known while that is not.
    marked: Mutex<Marked>,
    /// Which volumes belong together is not known.
    unread: Mutex<Option<Unread>>,
    volumes: Arc<Volumes>,
    clock: Arc<dyn Clock>,
    groups: Mutex<Vec<Group>>,
    memory: Mutex<Memory>,
    /// The last times that snapshots were named by, in milliseconds since 1970, and the order in which they were given.
    named_ms: Mutex<VecDeque<u64>>,
}

impl Groups {
    /// Those in the data directory. From here on their mirrors show what is written down, or what they have in common if one of them lacks that.
    pub(crate) fn open(
        dir: &std::path::Path,
        volumes: Arc<Volumes>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, ServerError> {
        let path = dir.join("groups.json");
        let (groups, memory, unread) = (Mutex::default(), Mutex::default(), Mutex::default());
        let marked = Mutex::new(Marked::These(BTreeSet::new()));
        let named_ms = Mutex::default();
        let groups = Self { path, marked, unread, volumes, clock, groups, memory, named_ms };
        groups.read();
        Ok(groups)
    }

    /// Takes in what the file says by now.
    pub(crate) fn read(&self) {
        let (document, unread) = state::known::<Document>(&self.path);
        let mut groups = self.groups.lock();
        *groups = document.unwrap_or_default().groups;
        *self.marked.lock() = match state::load::<Unfinished>(&self.mark_path()) {
            Ok(found) => Marked::These(found.unwrap_or_default().volumes),
            Err(error) => {
                tracing::error!(%error, "which volumes are being failed over together is not known");
                Marked::Unknown
            }
        };
        if unread.is_none()
            && let Err(error) = self.mark(unfinished(&groups))
        {
            tracing::warn!(%error, "which volumes are being failed over together is not written down");
        }
        *self.unread.lock() = unread;
        drop(groups);
        self.advance_all(true);
    }

    fn mark_path(&self) -> PathBuf {
        self.path.with_file_name("groups.unfinished.json")
    }

    /// Writes all groups down. Beside them, before a failover is begun and until it is over, which volumes it is of: a damaged `groups.json` does not have them take writes.
    fn save(&self, groups: &[Group]) -> Result<(), ServerError> {
        let after = unfinished(groups);
        let both = match &*self.marked.lock() {
            Marked::These(before) => before | &after,
            Marked::Unknown => after.clone(),
        };
        self.mark(both)?;
        state::save(&self.path, &Document { groups: groups.to_vec() })?;
        if let Err(error) = self.mark(after) {
            // They are kept from nobody while the groups are known.
            tracing::warn!(%error, "that a failover of a group is over is not written down beside it");
        }
        Ok(())
    }

    fn mark(&self, volumes: BTreeSet<String>) -> Result<(), ServerError> {
        let mut marked = self.marked.lock();
        let after = Marked::These(volumes);
        if *marked == after {
            return Ok(());
        }
        let path = self.mark_path();
        let written = |source| ServerError::path("write", &path)(source);
        match &after {
            Marked::These(volumes) if !volumes.is_empty() => {
                let text = state::text(&path, &Unfinished { volumes: volumes.clone() })?;
                state::replace(&path, &text).map_err(written)?;
            }
            _ => state::remove(&path).map_err(written)?,
        }
        *marked = after;
        Ok(())
    }

    /// Whether a volume that takes writes is kept from its clients, as it may have to show one instant with others, and the groups are not known.
    fn is_withheld(&self, open: &OpenVolume) -> bool {
        self.check_known().is_err()
            && match &*self.marked.lock() {
                Marked::These(volumes) => volumes.contains(&open.name),
                Marked::Unknown => true,
            }
    }

    /// Refuses while the groups are not known.
    fn check_known(&self) -> Result<(), ServerError> {
        state::refuse_unread(self.unread.lock().as_ref())
    }

    /// The same of a volume that may belong to one: it has a snapshot of a group. No group shows or changes a volume that has none.
    pub(crate) fn check_known_of(&self, volume: &str) -> Result<(), ServerError> {
        match self.volumes.get(volume) {
            Ok(open) => self.check_known_of_open(&open),
            Err(_) => Ok(()),
        }
    }

    fn check_known_of_open(&self, open: &OpenVolume) -> Result<(), ServerError> {
        let unread = self.check_known();
        if unread.is_ok() {
            return Ok(());
        }
        let is_of_group = |snapshot: &Snapshot| snapshot.name.starts_with(PREFIX);
        if open.volume.snapshots().iter().any(is_of_group) { unread } else { Ok(()) }
    }

    /// The name of the next snapshot of a group, and its time: never one that was given before, whatever the clock does.
    pub(crate) fn name_snapshot(&self, group: &str) -> (String, u64) {
        let now_ms = self.clock.now().0 / 1_000_000;
        let named_at = |at_ms: u64| {
            let time = timetable::in_zone(at_ms, Tz::UTC).map(|at| at.format(TIME_FORMAT).to_string());
            format!("{PREFIX}{group}.{}", time.unwrap_or_default())
        };
        let volumes = self.volumes.all();
        let is_there = |name: &str| volumes.iter().any(|open| open.volume.snapshot_named(name).is_some());
        // After the clock was put back the names go back with it: the rules that delete snapshots go by the times in them.
        let mut given = self.named_ms.lock();
        let mut times = now_ms..;
        let at_ms = times.find(|at_ms| !given.contains(at_ms) && !is_there(&named_at(*at_ms)));
        let at_ms = at_ms.unwrap_or(now_ms);
        given.push_back(at_ms);
        if given.len() > NAMED_MAX {
            given.pop_front();
        }
        (named_at(at_ms), at_ms)
    }

    /// Refuses unless there is a group of that name, of just these volumes, which is not on its way to take writes.
    pub(crate) fn check_whole(&self, name: &str, volumes: &[&str]) -> Result<(), ServerError> {
        let group = self.get(name)?;
        let own: BTreeSet<&str> = group.volumes.iter().map(String::as_str).collect();
        if volumes.len() != own.len() || volumes.iter().any(|volume| !own.contains(volume)) {
            return Err(ServerError::Invalid {
                what: "the group",
                rule: "it has the same volumes on both sides",
            });
        }
        self.refuse_unfinished(&group)
    }

    fn get(&self, name: &str) -> Result<Group, ServerError> {
        self.check_known()?;
        let groups = self.groups.lock();
        groups.iter().find(|group| group.name == name).cloned().ok_or_else(|| ServerError::NotFound {
            what: "group",
            name: name.to_owned(),
            list: "cairn group list",
        })
    }

    /// Notes a run of a group's schedule, and what was wrong with it. Where that can't be written down it is known all the same, or the group would be due again at once, and its rules would keep the
    /// snapshots of the last seconds. The next start runs it once more than it should.
    fn note_run(&self, name: &str, at_ms: u64, problem: Option<String>) {
        let mut groups = self.groups.lock();
        // It may have been ended meanwhile.
        let Some(group) = groups.iter_mut().find(|group| group.name == name) else { return };
        (group.last_ms, group.problem, group.put_back_ms) = (Some(at_ms), problem, None);
        if let Err(error) = self.check_known().and_then(|()| self.save(&groups)) {
            tracing::warn!(group = name, %error, "the last run of a group was not written down");
        }
    }

    /// Lets the schedules of groups count from now where the clock was put back to before their last runs.
    fn see_clock(&self, now_ms: u64) {
        let mut groups = self.groups.lock();
        let mut changed = false;
        for group in groups.iter_mut().filter_map(|group| group.see_clock(now_ms).then_some(group)) {
            let by = put_back(group.put_back_ms);
            tracing::warn!(group = group.name, by, "the clock was put back: a schedule counts from now");
            changed = true;
        }
        if changed && let Err(error) = self.check_known().and_then(|()| self.save(&groups)) {
            tracing::warn!(%error, "that schedules of groups count from now was not written down");
        }
    }

    /// Changes one, and writes all down.
    fn change(&self, name: &str, change: impl FnOnce(&mut Group)) -> Result<Group, ServerError> {
        self.try_change(name, |group, _| {
            change(group);
            Ok(())
        })
    }

    /// The same of what may be refused for what all groups are now.
    fn try_change(
        &self,
        name: &str,
        change: impl FnOnce(&mut Group, &[Group]) -> Result<(), ServerError>,
    ) -> Result<Group, ServerError> {
        self.check_known()?;
        let mut groups = self.groups.lock();
        let mut changed = groups.clone();
        let Some(group) = changed.iter_mut().find(|group| group.name == name) else {
            return Err(ServerError::NotFound {
                what: "group",
                name: name.to_owned(),
                list: "cairn group list",
            });
        };
        change(group, &groups)?;
        let group = group.clone();
        self.save(&changed)?;
        *groups = changed;
        Ok(group)
    }
}

/// Volumes of groups whose failover is written down and not over.
fn unfinished(groups: &[Group]) -> BTreeSet<String> {
    let is_left = |group: &&Group| {
        let failover = group.failover.as_ref();
        failover.is_some_and(|failover| group.volumes.iter().any(|volume| !failover.done.contains(volume)))
    };
    groups.iter().filter(is_left).flat_map(|group| group.volumes.iter().cloned()).collect()
}

impl Group {
    fn zone(&self) -> Result<Tz, ServerError> {
        timetable::zone(self.zone.as_deref())
    }

    /// It makes snapshots by the clock, and deletes them by its rules.
    fn is_timed(&self) -> bool {
        self.every_ms.is_some() || self.cron.is_some()
    }

    fn next_ms(&self, now_ms: u64) -> Option<u64> {
        if !self.is_timed() {
            return None;
        }
        self.timetable()?.due(self.last_ms.unwrap_or(self.from_ms), now_ms)
    }

    fn timetable(&self) -> Option<Timetable> {
        let zone = self.zone().ok()?;
        Timetable::read(self.every_ms, self.cron.as_deref(), zone, self.from_ms).ok()
    }

    /// Counts from now after the clock was put back to before the last run. True when it was.
    fn see_clock(&mut self, now_ms: u64) -> bool {
        let Some(timetable) = self.timetable() else { return false };
        let by_ms = timetable.count_anew(&mut self.from_ms, &mut self.last_ms, now_ms);
        self.put_back_ms = by_ms.or(self.put_back_ms);
        by_ms.is_some()
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

/// Each of the names, with the volumes whose lists lack it.
fn with_missing(
    names: Vec<String>,
    volumes: &[String],
    lists: &BTreeMap<&str, Vec<String>>,
) -> Vec<(String, Vec<String>)> {
    let set = |volume: &String| lists.get(volume.as_str()).map(|own| own.iter().collect::<HashSet<_>>());
    let sets: Vec<_> = volumes.iter().map(|volume| (volume, set(volume).unwrap_or_default())).collect();
    let with = |name: String| {
        let lacks = sets.iter().filter(|(_, own)| !own.contains(&name));
        let missing = lacks.map(|(volume, _)| (*volume).clone()).collect();
        (name, missing)
    };
    names.into_iter().map(with).collect()
}

impl Member {
    /// Whether a mirror has a snapshot: its image has every one that was made before it.
    fn has_given(&self, follower: &Follower, name: &str) -> bool {
        let found = self.snapshots.iter().find(|snapshot| snapshot.name == name);
        let (Some(found), Some((generation, changed))) = (found, follower.base) else { return false };
        let prefix = format!("{MIRROR_PREFIX}{}.", follower.name);
        let mut own = self.snapshots.iter().filter(|snapshot| snapshot.name.starts_with(&prefix));
        // A volume that was brought back gives its generations again, and the times of its changes not.
        match own.find(|own| (own.generation, own.root.changed) == (generation, changed)) {
            Some(image) => found.id < image.id,
            // Nothing is held for it. Without changes in between, snapshots have the same generation.
            None if found.root.changed == changed => {
                follower.updated.is_some_and(|updated| updated >= found.created)
            }
            None => found.root.changed < changed,
        }
    }
}

/// Makes a snapshot with the hooks of all of them around it, in one order for all groups: two that share volumes would wait for each other else, with what they have quiesced.
fn around_all<T>(members: &[Arc<OpenVolume>], make: &mut dyn FnMut() -> T) -> Result<T, ServerError> {
    fn around<T>(members: &[&Arc<OpenVolume>], make: &mut dyn FnMut() -> T) -> Result<T, ServerError> {
        match members.split_first() {
            None => Ok(make()),
            Some((first, rest)) => first.snapshot_with(|| around(rest, make))?,
        }
    }
    let mut order: Vec<&Arc<OpenVolume>> = members.iter().collect();
    order.sort_by(|one, other| one.name.cmp(&other.name));
    around(&order, make)
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
        let group = self.groups.get(name)?;
        let mut shown = self.show_one(&group);
        self.count_beyond(&group, &mut shown);
        Ok(shown)
    }

    /// What each volume has beyond what the group shows, or is kept for the mirrors that are the furthest behind: what it costs here that not all are as far as the first.
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

    /// The snapshots of a group, the oldest first, with the volumes that lack each. Which is older their order in the volumes says: the times in their names are by the clocks of
    /// the servers that made them, which may have been put back, and differ.
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

    fn show_one(&self, group: &Group) -> api::Group {
        let members = self.members(group);
        let snapshots = self.group_snapshots_and_for_whom(group, &members);
        let common = snapshots.iter().rev().find(|snapshot| snapshot.missing.is_empty()).cloned();
        // What its zone can't be read for is told where it runs.
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
                // Volumes that take writes are in as many groups as one likes: they show what is written to them.
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
        // What is written once nothing holds its volumes together would be rolled back by a failover that goes on.
        let _turn = self.groups.take_turn(name)?;
        let mut groups = self.groups.groups.lock();
        let left: Vec<Group> = groups.iter().filter(|group| group.name != name).cloned().collect();
        self.groups.save(&left)?;
        *groups = left;
        Ok(())
    }

    /// Sets the schedule of a group, and how long its snapshots stay; without an interval or an expression none are made by the clock.
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
                return Err(ServerError::IsDestination { volume: volume.clone() });
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
                // Its source makes them; or it is told that the failover is to be gone on with.
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

    /// Of each server of mirrors the newest snapshot of a group that all of its mirrors of these volumes have: what they show there, and what they would be failed over to.
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

    /// The snapshots of a group that its rules do not keep: those of its schedule and those made by hand, none that is held or open in any volume, and none that mirrors
    /// have as the last that they have in common.
    fn superfluous(
        &self,
        group: &Group,
        members: &[Member],
        snapshots: &[api::GroupSnapshot],
    ) -> Result<Vec<String>, ServerError> {
        // What a mirror may need is not known: nothing goes.
        if self.peers.check_known().is_err() || self.followers.check_known().is_err() {
            return Ok(Vec::new());
        }
        // Nor is what a volume has that is not open: what the others have besides may be all that there is to go back to.
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
            })
        };
        // Of all volumes or of none: a part of it is nothing to go back to.
        let goes = |(snapshot, stays): &(&api::GroupSnapshot, bool)| {
            !stays && snapshot.kept_for.is_empty() && !needed(&snapshot.name)
        };
        let gone = snapshots.iter().zip(stays).filter(goes);
        Ok(gone.map(|(snapshot, _)| snapshot.name.clone()).collect())
    }

    /// Deletes the snapshots of a group that need not stay, by what its owner has said by now: the commands around the one that was just made may have taken minutes.
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

    /// What is wrong with groups.
    pub(crate) fn group_problems(&self) -> Vec<api::Problem> {
        let mut problems = Vec::new();
        for group in self.list_groups() {
            let mut tell = |message: String, next: String| {
                problems.push(api::Problem { subject: group.name.clone(), message, next });
            };
            let name = &group.name;
            if let Some(failover) = group.failover.as_ref().filter(|failover| !failover.left.is_empty()) {
                let command = if failover.reverse { "reverse" } else { "failover" };
                tell(
                    format!("its {command} was cut off: {} are left", failover.left.join(", ")),
                    format!("`cairn group {command} {name}` goes on with it"),
                );
            }
            if group.together && self.shows_nothing(&group) {
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
            if let Some((snapshot, missing)) = held_back(&group) {
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
            if let Some(problem) = &group.problem {
                tell(
                    format!("its last snapshot failed: {problem}"),
                    format!("it is tried again; see `cairn group show {name}`"),
                );
            }
            let follows: Vec<&str> =
                group.members.iter().filter(|m| m.follows).map(|m| m.volume.as_str()).collect();
            let is_timed = group.every_ms.is_some() || group.cron.is_some();
            // Of one whose volumes all follow the other side has a schedule, until the roles change.
            if is_timed && !follows.is_empty() && follows.len() < group.members.len() {
                tell(
                    format!(
                        "its schedule never runs: {} follow a source, which makes their snapshots",
                        follows.join(", ")
                    ),
                    format!(
                        "make it anew without them: `cairn group delete {name}`, `cairn group create {name} VOLUME...`; or end its schedule: `cairn group set {name}` without a time"
                    ),
                );
            }
            let is_cut = group.failover.as_ref().is_some_and(|failover| !failover.left.is_empty());
            let takes: Vec<&str> = group
                .members
                .iter()
                .filter(|m| m.is_there && !m.follows)
                .map(|m| m.volume.as_str())
                .collect();
            if group.together && !follows.is_empty() && !takes.is_empty() && !is_cut {
                tell(
                    format!(
                        "it shows no one instant: {} follow a source, each with its own newest image, and {} take writes",
                        follows.join(", "),
                        takes.join(", ")
                    ),
                    format!(
                        "have those follow as well (`cairn mirror resync VOLUME`), or all take writes (`cairn mirror failover VOLUME`); or make the group anew of what belongs together: `cairn group delete {name}`, `cairn group create {name} VOLUME...`"
                    ),
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

/// Which snapshots of a group its rules keep. One that some volumes lack, as a kill between them leaves it, is nothing to go back to: it takes the place of none that all of them have.
fn kept(group: &Group, snapshots: &[api::GroupSnapshot]) -> Result<Vec<bool>, ServerError> {
    let zone = group.zone()?;
    let by_rules = |counts: &dyn Fn(&api::GroupSnapshot) -> bool| {
        let times: Vec<u64> = snapshots.iter().filter(|one| counts(one)).map(|one| one.created_ms).collect();
        retention::kept(&group.keep, &times, zone)
    };
    let is_whole = |snapshot: &api::GroupSnapshot| snapshot.missing.is_empty();
    let mut of_whole = by_rules(&is_whole).into_iter();
    let of_all = by_rules(&|_| true);
    let stays = |(snapshot, stays): (&api::GroupSnapshot, bool)| {
        let stays_whole = is_whole(snapshot) && of_whole.next().unwrap_or(true);
        stays || stays_whole
    };
    Ok(snapshots.iter().zip(of_all).map(stays).collect())
}

/// A snapshot of a group that some of its mirrors have had for long, newer than what they show; and those that lack it.
fn held_back(group: &api::Group) -> Option<(String, Vec<String>)> {
    let shown = group.shown.as_ref()?;
    let newest_ms = group.members.iter().filter_map(|member| member.image_ms).max()?;
    // Behind it in their order; one that is held in memory only has its time alone.
    let at = group.snapshots.iter().position(|snapshot| snapshot.name == shown.name);
    let is_newer = |(place, snapshot): &(usize, &api::GroupSnapshot)| {
        at.map_or(snapshot.created_ms > shown.created_ms, |at| *place > at)
    };
    let mut newer = group.snapshots.iter().enumerate().filter(is_newer).map(|(_, snapshot)| snapshot);
    let first = newer.find(|snapshot| !snapshot.missing.is_empty())?;
    let is_long = newest_ms.saturating_sub(first.created_ms) > HELD_BACK_MS;
    is_long.then(|| (first.name.clone(), first.missing.clone()))
}

#[cfg(test)]
mod tests;
