//! Groups: volumes of this server whose snapshots are taken at one instant, by hand or by a
//! schedule, with the hooks of all of them around it; and that are recovered to one instant.
//!
//! A snapshot of a group is one of the same name in each of its volumes, `group.NAME.TIME`, and
//! nothing else: mirrors receive it like any other snapshot, and the time in the name is never used
//! twice. So the server of the mirrors only needs a list of the volumes that belong together (a
//! group there). They can be recovered together to the newest snapshot of the group that every one
//! of them has. The mirrors of a group show that snapshot ([`shown`]), and a failover of the group
//! takes them to it ([`failover`]).

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

use cairn_api as api;
use cairn_base::Clock;
use cairn_mirror::Follower;
use cairn_stream::MIRROR_PREFIX;
use cairn_volume::Snapshot;
use chrono_tz::Tz;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use timetable::Timetable;

use crate::error::ServerError;
use crate::schedules::{put_back, retention, timetable};
use crate::state;
use crate::state::Unread;
use crate::volumes::Volumes;
use crate::volumes::open::OpenVolume;

mod commands;
pub(crate) mod error;
mod failover;
mod reverse;
mod shown;

use shown::Memory;
pub(crate) use shown::Showing;

/// How the names of their snapshots begin.
const PREFIX: &str = "group.";
/// Longest name of a group, in bytes: with the prefix and the time, the name of a snapshot has at
/// most 64.
const NAME_MAX: usize = 32;
/// Volumes of a group at most: writes to all of them wait while the snapshots are made.
const MEMBERS_MAX: usize = 64;
const _: () = assert!(MEMBERS_MAX <= cairn_mirror::HEIRS_MAX, "their roles change in one message");
/// A newer snapshot of a group that only some of its mirrors have is a problem after they have had
/// it for this long.
const HELD_BACK_MS: u64 = 15 * 60_000;
/// Remembered names of snapshots, so that none is assigned twice, even if the first one is deleted.
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
    keep: api::Keep,
    /// When the schedule was set.
    from_ms: u64,
    last_ms: Option<u64>,
    problem: Option<String>,
    /// By how much the clock was set back since the last run, if the schedule counts from that
    /// moment.
    put_back_ms: Option<u64>,
    /// A failover that was begun, or done.
    failover: Option<Failover>,
    /// Its mirrors show one instant.
    together: bool,
    /// The snapshot that they show; none if they have none in common.
    shown: Option<String>,
}

/// A failover of a group, or the end of a planned change of its roles.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Failover {
    /// The snapshot to which all are taken.
    snapshot: String,
    at_ms: u64,
    /// The volumes that show it.
    done: BTreeSet<String>,
    /// The sources have given their roles away at that instant, and each mirror has the last image.
    reverse: bool,
    /// It is being done right now.
    #[serde(skip)]
    running: bool,
}

/// The content of `groups.json`.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct GroupsDocument {
    groups: Vec<Group>,
}

/// The content of `groups.unfinished.json`, which exists only if it has entries.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Unfinished {
    /// The volumes of groups whose failover is not complete.
    volumes: BTreeSet<String>,
}

/// Volumes of failovers that are not over.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Marked {
    These(BTreeSet<String>),
    /// The file can't be read: any that has a snapshot of a group may be one.
    Unknown,
}

/// The groups of a server. Lock order: `groups`, `marked`, `memory`, then the locks of volumes.
pub(crate) struct Groups {
    path: PathBuf,
    /// Volumes that must show one instant until a failover is complete, as saved beside
    /// `groups.json`: they are known even while that file is not.
    marked: Mutex<Marked>,
    /// Which volumes belong together is not known.
    unread: Mutex<Option<Unread>>,
    volumes: Arc<Volumes>,
    clock: Arc<dyn Clock>,
    groups: Mutex<Vec<Group>>,
    memory: Mutex<Memory>,
    /// The last times in names of snapshots, in milliseconds since 1970, in the order of
    /// assignment.
    named_ms: Mutex<VecDeque<u64>>,
}

impl Groups {
    /// The groups in the data directory. From here on their mirrors show the saved snapshot, or the
    /// newest common one if a mirror lacks that.
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

    /// Loads the present content of the file.
    pub(crate) fn read(&self) {
        let (document, unread) = state::known::<GroupsDocument>(&self.path);
        let mut groups = self.groups.lock();
        *groups = document.unwrap_or_default().groups;
        *self.marked.lock() = match state::load::<Unfinished>(&self.mark_path()) {
            Ok(found) => Marked::These(found.unwrap_or_default().volumes),
            Err(error) => {
                tracing::error!(%error, "the list of volumes in a group failover is unknown");
                Marked::Unknown
            }
        };
        if unread.is_none()
            && let Err(error) = self.mark(unfinished(&groups))
        {
            tracing::warn!(%error, "could not save the list of volumes in a group failover");
        }
        *self.unread.lock() = unread;
        drop(groups);
        self.advance_all(true);
    }

    fn mark_path(&self) -> PathBuf {
        self.path.with_file_name("groups.unfinished.json")
    }

    /// Writes all groups down. Beside them, before a failover is begun and until it is over, which
    /// volumes it is of: a damaged `groups.json` does not have them take writes.
    fn save(&self, groups: &[Group]) -> Result<(), ServerError> {
        let after = unfinished(groups);
        let both = match &*self.marked.lock() {
            Marked::These(before) => before | &after,
            Marked::Unknown => after.clone(),
        };
        self.mark(both)?;
        state::save(&self.path, &GroupsDocument { groups: groups.to_vec() })?;
        if let Err(error) = self.mark(after) {
            // While the groups are known, these entries block no client.
            tracing::warn!(%error, "could not save the end of a group failover");
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

    /// Whether a volume that takes writes is kept from its clients, as it may have to show one
    /// instant with others, and the groups are not known.
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

    /// The same for a volume that may belong to one: it has a snapshot of a group. No group shows
    /// or changes a volume that has none.
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

    /// The name of the next snapshot of a group, and its time: never one that was used before, even
    /// if the clock changes.
    pub(crate) fn name_snapshot(&self, group: &str) -> (String, u64) {
        let now_ms = self.clock.now().0 / 1_000_000;
        let named_at = |at_ms: u64| {
            let time = timetable::in_zone(at_ms, Tz::UTC).map(|at| at.format(TIME_FORMAT).to_string());
            format!("{PREFIX}{group}.{}", time.unwrap_or_default())
        };
        let volumes = self.volumes.all();
        let is_there = |name: &str| volumes.iter().any(|open| open.volume.snapshot_named(name).is_some());
        // After the clock was set back the names use the earlier times too: the retention rules use
        // the times in them.
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

    /// Refuses unless a group of that name has exactly these volumes, and is not in a failover.
    pub(crate) fn check_whole(&self, name: &str, volumes: &[&str]) -> Result<(), ServerError> {
        let group = self.get(name)?;
        let own: BTreeSet<&str> = group.volumes.iter().map(String::as_str).collect();
        if volumes.len() != own.len() || volumes.iter().any(|volume| !own.contains(volume)) {
            return Err(ServerError::Invalid {
                fault: "the group has other volumes on the other server",
                next: "compare `cairn group show` on both servers, and create the group again where it differs",
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

    /// Records a run of a group's schedule, and its problem. If it can't be saved it is kept in
    /// memory: otherwise the group would be due again at once, and its rules would keep the
    /// snapshots of the last seconds. The next start then runs it once more than it should.
    fn note_run(&self, name: &str, at_ms: u64, problem: Option<String>) {
        let mut groups = self.groups.lock();
        // It may have been ended meanwhile.
        let Some(group) = groups.iter_mut().find(|group| group.name == name) else { return };
        (group.last_ms, group.problem, group.put_back_ms) = (Some(at_ms), problem, None);
        if let Err(error) = self.check_known().and_then(|()| self.save(&groups)) {
            tracing::warn!(group = name, %error, "could not save the last run of a group");
        }
    }

    /// Lets the schedules of groups count from now if the clock was set back to before their last
    /// runs.
    fn see_clock(&self, now_ms: u64) {
        let mut groups = self.groups.lock();
        let mut changed = false;
        for group in groups.iter_mut().filter_map(|group| group.see_clock(now_ms).then_some(group)) {
            let by = put_back(group.put_back_ms);
            tracing::warn!(group = group.name, by, "the clock was set back: a schedule counts from now");
            changed = true;
        }
        if changed && let Err(error) = self.check_known().and_then(|()| self.save(&groups)) {
            tracing::warn!(%error, "could not save that schedules of groups count from now");
        }
    }

    /// Changes one, and writes all down.
    fn change(&self, name: &str, change: impl FnOnce(&mut Group)) -> Result<Group, ServerError> {
        self.try_change(name, |group, _| {
            change(group);
            Ok(())
        })
    }

    /// The same for a change that the present state of all groups may refuse.
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

/// Volumes of groups whose failover is recorded and not complete.
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

    /// Counts from now if the clock was set back to before the last run. True if it was.
    fn see_clock(&mut self, now_ms: u64) -> bool {
        let Some(timetable) = self.timetable() else { return false };
        let by_ms = timetable.count_anew(&mut self.from_ms, &mut self.last_ms, now_ms);
        self.put_back_ms = by_ms.or(self.put_back_ms);
        by_ms.is_some()
    }

    /// When a snapshot of the group was made, by its name; none if it is not a snapshot of the
    /// group.
    fn made_ms(&self, snapshot: &str) -> Option<u64> {
        let time = snapshot.strip_prefix(PREFIX)?.strip_prefix(&self.name)?.strip_prefix('.')?;
        let at = chrono::NaiveDateTime::parse_from_str(time, TIME_FORMAT).ok()?;
        u64::try_from(at.and_utc().timestamp_millis()).ok()
    }
}

/// An existing member.
struct Member {
    open: Arc<OpenVolume>,
    snapshots: Vec<Snapshot>,
}

/// The names in several lists, each in the order of all of them: a name that only a later list has
/// comes after its predecessor there.
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
        // A restored volume reuses generations, but not the times of its changes.
        match own.find(|own| (own.generation, own.root.changed) == (generation, changed)) {
            Some(image) => found.id < image.id,
            // Nothing is held for it. Without changes in between, snapshots have the same
            // generation.
            None if found.root.changed == changed => {
                follower.updated.is_some_and(|updated| updated >= found.created)
            }
            None => found.root.changed < changed,
        }
    }
}

/// Makes a snapshot with the hooks of all of them around it, in one order for all groups: otherwise
/// two that share volumes would deadlock, with their volumes quiesced.
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

/// The snapshots of a group that its rules keep. One that some volumes lack, as after a kill
/// between them, cannot be recovered to: it never replaces one that all of them have.
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

/// A snapshot of a group that some of its mirrors have had for long, and that is newer than the
/// visible one; and the mirrors that lack it.
fn held_back(group: &api::Group) -> Option<(String, Vec<String>)> {
    let shown = group.shown.as_ref()?;
    let newest_ms = group.members.iter().filter_map(|member| member.image_ms).max()?;
    // After it in their order; one that is held only in memory has just its time.
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
