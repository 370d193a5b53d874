//! One image time for the mirrors of a group: the present of each is the newest snapshot of the
//! group that all of them have.
//!
//! The visible snapshot of a group is one entry in `groups.json`, so that all of its volumes
//! advance at one moment. Mirrors receive images independently; when all of them have a newer
//! snapshot of the group, the entry is saved, and new sessions see that snapshot. Open sessions
//! keep their image.
//!
//! # Invariants
//! - No two members show different snapshots after any interruption: the entry is the old one or
//!   the new one. If a member lacks the snapshot of the entry, the newest one that all of them have
//!   is shown; if there is none, none is shown, and `status` gives the reason.
//! - A mirror keeps the visible snapshot until the group has advanced. An image that lacks it is
//!   refused, unless it brings a newer snapshot of the group: if it were always refused, two
//!   mirrors whose sources both lack the visible snapshot would wait for each other. The visible
//!   snapshot is then held in memory, until the others have a newer one as well; after a restart
//!   before that, they have none in common.
//! - While a failover of the group is not complete, all of its volumes show the target snapshot,
//!   read-only, even those that are already writable.
//!
//! A group is shown together while each of its existing volumes follows a source. A writable volume
//! has a present of its own, and then so has each of the others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use cairn_base::SnapshotId;
use cairn_format::SnapshotEntry;
use cairn_mirror::{Keeper, Withheld};
use cairn_volume::{Image, Role, Snapshot};

use super::{Group, Groups, PREFIX};
use crate::error::ServerError;
use crate::groups::error::GroupsError;
use crate::mirrors::error::MirrorsError;
use crate::volumes::open::OpenVolume;
use crate::volumes::snapshots::find_snapshot;

/// Clients that open volumes of a group one after the other, no further apart than this, see the
/// same instant of all of them.
const SAME_FOR: Duration = Duration::from_secs(3);
/// The limit of that time, if clients keep opening volumes.
const SAME_MOST: Duration = Duration::from_secs(30);

/// The visible state of a volume's present.
pub(crate) enum Showing {
    /// The live content.
    Live,
    /// The newest image of a mirror.
    Newest,
    /// This image, which belongs together with those of other volumes.
    Image(Image),
}

/// The state that is only in memory.
#[derive(Default)]
pub(super) struct Memory {
    /// By volume: the snapshots of groups in the image that may be committed there at any moment.
    /// Snapshots that it lacks do not count as existing.
    arriving: BTreeMap<String, BTreeSet<String>>,
    /// By volume: the visible snapshot of its group, which its source no longer has.
    held: BTreeMap<String, (String, Image)>,
    /// By group: the times at which clients opened a volume of it: the first and the last that
    /// count as one.
    opened: BTreeMap<String, (Duration, Duration)>,
    /// Groups that are being failed over.
    pub(super) failing: BTreeSet<String>,
}

/// Keeps the visible snapshot of a mirror consistent with its group.
struct Member {
    groups: Arc<Groups>,
    volume: String,
}

impl Keeper for Member {
    fn admits(&self, snapshots: &[SnapshotEntry]) -> Result<(), Withheld> {
        let of_groups = snapshots.iter().filter(|entry| entry.name.starts_with(PREFIX));
        self.groups.admit(&self.volume, of_groups.map(|entry| (entry.name.clone(), entry.id)).collect())
    }

    fn settled(&self) {
        self.groups.settled(&self.volume);
    }
}

impl Groups {
    /// The check of new images of a mirror for its group.
    pub(crate) fn keeper(self: &Arc<Self>, volume: &str) -> Arc<dyn Keeper> {
        Arc::new(Member { groups: self.clone(), volume: volume.to_owned() })
    }

    /// The visible state of a volume's present.
    ///
    /// # Errors
    /// [`GroupsError::GroupShowsNothing`]; the volume's.
    pub(crate) fn showing(&self, open: &Arc<OpenVolume>) -> Result<Showing, ServerError> {
        self.check_shown(open)?;
        let groups = self.groups.lock();
        let nothing = |group: &Group| {
            ServerError::Groups(GroupsError::GroupShowsNothing {
                volume: open.name.clone(),
                group: group.name.clone(),
            })
        };
        if let Some((group, snapshot)) = self.unfinished(&groups, &open.name) {
            return self.image_of(open, &snapshot).map(Showing::Image).ok_or_else(|| nothing(group));
        }
        if open.volume.status_role() == Role::Normal {
            return Ok(Showing::Live);
        }
        let Some(group) = self.together(&groups, &open.name) else { return Ok(Showing::Newest) };
        let shown = group.shown.as_ref().and_then(|shown| self.image_of(open, shown));
        shown.map(Showing::Image).ok_or_else(|| nothing(group))
    }

    /// The same for a client that opens it: a client that opens another volume of the group
    /// directly afterwards sees the same instant.
    pub(crate) fn open_for_client(&self, open: &Arc<OpenVolume>) -> Result<Showing, ServerError> {
        {
            let groups = self.groups.lock();
            if let Some(group) = self.together(&groups, &open.name) {
                let now = self.clock.monotonic();
                let mut memory = self.memory.lock();
                let (first, last) = memory.opened.entry(group.name.clone()).or_insert((now, now));
                if now.saturating_sub(*last) >= SAME_FOR {
                    *first = now;
                }
                *last = now;
            }
        }
        self.showing(open)
    }

    /// Refuses to show a mirror that may belong to a group, while the groups are unknown. A
    /// writable volume is served, as its clients use it as a disk. It is refused if a failover of
    /// its group is not complete: its writes would be inconsistent with the instant that the others
    /// show, or would be rolled back.
    fn check_shown(&self, open: &OpenVolume) -> Result<(), ServerError> {
        match open.is_destination() || self.is_withheld(open) {
            true => self.check_known_of_open(open),
            false => Ok(()),
        }
    }

    /// True for a writable volume whose group is not in a failover.
    pub(crate) fn is_live(&self, open: &OpenVolume) -> bool {
        let groups = self.groups.lock();
        let is_shown = self.unfinished(&groups, &open.name).is_some() || self.check_shown(open).is_err();
        open.volume.status_role() == Role::Normal && !is_shown
    }

    /// The snapshot that a mirror shows; none for a writable volume.
    ///
    /// # Errors
    /// As [`Groups::showing`]; [`MirrorsError::NoImage`].
    pub(crate) fn shown_by(&self, open: &OpenVolume) -> Result<Option<Snapshot>, ServerError> {
        self.check_shown(open)?;
        let groups = self.groups.lock();
        if let Some((_, snapshot)) = self.unfinished(&groups, &open.name) {
            return find_snapshot(open, &snapshot).map(Some);
        }
        if open.volume.status_role() == Role::Normal {
            return Ok(None);
        }
        let Some(group) = self.together(&groups, &open.name) else {
            let none = || ServerError::Mirrors(MirrorsError::NoImage { volume: open.name.clone() });
            return open.volume.snapshot(open.volume.status().cursor.snapshot).ok_or_else(none).map(Some);
        };
        let (volume, name) = (open.name.clone(), group.name.clone());
        let shown = group.shown.as_ref().and_then(|shown| open.volume.snapshot_named(shown));
        shown.ok_or(ServerError::Groups(GroupsError::GroupShowsNothing { volume, group: name })).map(Some)
    }

    /// Refuses to change the role of one volume of several that show one instant: the others would
    /// keep showing that, beside a writable one.
    pub(crate) fn refuse_alone(&self, volume: &str) -> Result<(), ServerError> {
        self.check_known_of(volume)?;
        let groups = self.groups.lock();
        // Without a common snapshot there is no failover of all of them. A closed volume may have
        // one in common.
        let is_closed = |group: &Group| self.members(group).iter().any(Option::is_none);
        let together = self.together(&groups, volume);
        let together = together.filter(|group| self.common(group).is_some() || is_closed(group));
        if let Some((group, _)) = self.unfinished(&groups, volume) {
            return Err(ServerError::Groups(GroupsError::GroupUnfinished { group: group.name.clone() }));
        }
        match together {
            None => Ok(()),
            Some(group) => Err(ServerError::Groups(GroupsError::InGroup {
                volume: volume.to_owned(),
                group: group.name.clone(),
            })),
        }
    }

    /// The group of a volume that is shown together and whose volumes all follow, or are all
    /// writable: a planned change affects their roles together. Or one that is in such a change.
    pub(crate) fn roles_with(&self, volume: &str) -> Option<String> {
        let groups = self.groups.lock();
        if let Some((group, _)) = self.unfinished(&groups, volume) {
            return Some(group.name.clone());
        }
        let all = |group: &Group, role: Role| {
            let is = |open: &Option<Arc<OpenVolume>>| {
                open.as_ref().is_none_or(|open| open.volume.status_role() == role)
            };
            self.members(group).iter().all(is)
        };
        let mut mine =
            groups.iter().filter(|group| group.together && group.volumes.iter().any(|own| own == volume));
        let found = mine.find(|group| all(group, Role::Normal) || all(group, Role::Destination));
        found.map(|group| group.name.clone())
    }

    /// Refuses a planned change of the role of one volume of several that change theirs together.
    pub(crate) fn refuse_role_alone(&self, volume: &str) -> Result<(), ServerError> {
        self.check_known_of(volume)?;
        match self.roles_with(volume) {
            None => Ok(()),
            Some(group) => {
                Err(ServerError::Groups(GroupsError::InGroup { volume: volume.to_owned(), group }))
            }
        }
    }

    /// Has the mirrors of a group show one instant, or each its own newest image.
    pub(super) fn set_together(&self, name: &str, together: bool) -> Result<(), ServerError> {
        self.try_change(name, |group, all| {
            if together {
                refuse_shared(all, group)?;
            }
            // A repeated request changes nothing: the visible snapshot may be only in memory, with
            // no newer one in all of them.
            if group.together != together {
                (group.together, group.shown) = (together, None);
            }
            Ok(())
        })?;
        self.advance_all(true);
        Ok(())
    }

    /// Advances the groups whose mirrors all have a newer snapshot; with `now`, even if a client
    /// has just opened one of them.
    pub(crate) fn advance_all(&self, now: bool) {
        let mut groups = self.groups.lock();
        self.forget_over(&mut groups);
        for at in 0..groups.len() {
            self.advance(&mut groups, at, now);
        }
        // No client sees it any more: its group is no longer shown together, or the group or the
        // volume was deleted.
        self.memory.lock().held.retain(|volume, (shown, image)| {
            let shows = |group: &Group| {
                let mine = group.shown.as_ref() == Some(&*shown) && group.volumes.contains(volume);
                mine && self.is_together(group)
            };
            let is_it = |open: Arc<OpenVolume>| Arc::ptr_eq(&open.volume, image.volume());
            groups.iter().any(shows) && self.volumes.get(volume).is_ok_and(is_it)
        });
    }

    /// Volumes that hold the visible snapshot of their group only in memory.
    pub(super) fn held_in_memory(&self, group: &Group) -> Vec<String> {
        let memory = self.memory.lock();
        let holds = |volume: &&String| {
            let shown = memory.held.get(*volume).map(|(shown, _)| shown);
            shown.is_some() && shown == group.shown.as_ref()
        };
        group.volumes.iter().filter(holds).cloned().collect()
    }

    /// The group with which a volume must show one snapshot.
    fn together<'a>(&self, groups: &'a [Group], volume: &str) -> Option<&'a Group> {
        let mine = |group: &&Group| group.volumes.iter().any(|member| member == volume);
        groups.iter().filter(mine).find(|group| self.is_together(group))
    }

    pub(super) fn is_together(&self, group: &Group) -> bool {
        let follows = |open: &Option<Arc<OpenVolume>>| {
            open.as_ref().is_none_or(|open| open.volume.status_role() == Role::Destination)
        };
        group.together && self.members(group).iter().all(follows)
    }

    /// The volumes of a group; none in the place of one that is out of service.
    fn members(&self, group: &Group) -> Vec<Option<Arc<OpenVolume>>> {
        let member = |volume: &String| match self.volumes.get(volume) {
            Ok(open) => Some(Some(open)),
            Err(ServerError::NotFound { .. }) => None,
            Err(_) => Some(None),
        };
        group.volumes.iter().filter_map(member).collect()
    }

    /// A snapshot of a group in one of its volumes.
    fn image_of(&self, open: &Arc<OpenVolume>, snapshot: &str) -> Option<Image> {
        let listed = open.volume.snapshot_named(snapshot);
        if let Some(image) = listed.and_then(|found| open.volume.image(Some(found.id)).ok()) {
            return Some(image);
        }
        let memory = self.memory.lock();
        memory.held.get(&open.name).filter(|(name, _)| name == snapshot).map(|(_, image)| image.clone())
    }

    /// The newest snapshot of a group that all of its volumes have, and keep.
    pub(super) fn common(&self, group: &Group) -> Option<String> {
        let members: Vec<Arc<OpenVolume>> = self.members(group).into_iter().collect::<Option<_>>()?;
        let memory = self.memory.lock();
        let has = |open: &Arc<OpenVolume>, name: &str| {
            let stays = memory.arriving.get(&open.name).is_none_or(|arriving| arriving.contains(name));
            stays && open.volume.snapshot_named(name).is_some()
        };
        let mut of_first = members.first()?.volume.snapshots();
        of_first.sort_by_key(|snapshot| snapshot.id);
        let names = of_first.into_iter().rev().map(|snapshot| snapshot.name);
        let mut of_group = names.filter(|name| group.made_ms(name).is_some());
        of_group.find(|name| members.iter().all(|open| has(open, name)))
    }

    /// The number of a snapshot of a group in one of its volumes, even if it is held in memory.
    fn id_of(&self, open: &Arc<OpenVolume>, snapshot: &str) -> Option<SnapshotId> {
        self.image_of(open, snapshot).and_then(|image| image.snapshot())
    }

    /// Whether a snapshot of a group was made after another. Their numbers in a volume determine
    /// that: the times in their names are from clocks that may have been set back, and differ.
    fn is_newer(&self, group: &Group, snapshot: &str, than: &str) -> bool {
        let members = self.members(group);
        let numbers = |open: &Arc<OpenVolume>| Some((self.id_of(open, snapshot)?, self.id_of(open, than)?));
        match members.iter().flatten().find_map(numbers) {
            Some((one, other)) => one > other,
            None => group.made_ms(snapshot) > group.made_ms(than),
        }
    }

    /// Has a group show the newest snapshot that all of its mirrors have. Never an older one than
    /// it shows, unless one of them has lost that.
    fn advance(&self, groups: &mut Vec<Group>, at: usize, now: bool) {
        let Some(group) = groups.get(at).filter(|group| self.is_together(group)) else { return };
        // A volume that is out of service may have it.
        let keeps = |shown: &String| {
            let members = self.members(group);
            members.iter().flatten().all(|open| self.image_of(open, shown).is_some())
        };
        let shown = group.shown.clone().filter(keeps);
        let next = match (self.common(group), &shown) {
            (Some(common), Some(shown)) if !self.is_newer(group, &common, shown) => Some(shown.clone()),
            (None, shown) => shown.clone(),
            (common, _) => common,
        };
        if next == group.shown {
            return;
        }
        // Does not wait for a lost snapshot.
        if !now && shown.is_some() && self.is_just_opened(&group.name) {
            return;
        }
        let mut changed = groups.clone();
        let Some(group) = changed.get_mut(at) else { return };
        let before = std::mem::replace(&mut group.shown, next);
        if let Err(error) = self.save(&changed) {
            tracing::warn!(group = changed[at].name, %error, "a group keeps its visible instant, as the next one could not be saved");
            return;
        }
        *groups = changed;
        let group = &groups[at];
        match &group.shown {
            Some(shown) => tracing::info!(group = group.name, shown, before, "a group shows another instant"),
            None => tracing::error!(
                group = group.name,
                before,
                "a group shows no image, because its volumes no longer have a common snapshot of it"
            ),
        }
        let mut memory = self.memory.lock();
        memory.opened.remove(&group.name);
        memory.held.retain(|volume, (held, _)| {
            !group.volumes.contains(volume) || Some(&*held) == group.shown.as_ref()
        });
    }

    fn is_just_opened(&self, group: &str) -> bool {
        let now = self.clock.monotonic();
        self.memory.lock().opened.get(group).is_some_and(|(first, last)| {
            now.saturating_sub(*last) < SAME_FOR && now.saturating_sub(*first) < SAME_MOST
        })
    }

    /// Whether a volume may get an image that has these snapshots of groups.
    fn admit(&self, volume: &str, arriving: BTreeMap<String, SnapshotId>) -> Result<(), Withheld> {
        let mut guard = self.groups.lock();
        let groups = &mut *guard;
        let withheld = |group: &Group, snapshot: &str| Withheld {
            group: group.name.clone(),
            snapshot: snapshot.to_owned(),
        };
        if let Some((group, snapshot)) = self.unfinished(groups, volume)
            && !arriving.contains_key(&snapshot)
        {
            return Err(withheld(group, &snapshot));
        }
        self.memory.lock().arriving.insert(volume.to_owned(), arriving.keys().cloned().collect());
        let mine = |group: &Group| group.volumes.iter().any(|member| member == volume);
        let Some(at) = groups.iter().position(|group| mine(group) && self.is_together(group)) else {
            return Ok(());
        };
        if groups[at].shown.as_ref().is_none_or(|shown| arriving.contains_key(shown)) {
            return Ok(());
        }
        // The others may have something newer by now.
        self.advance(groups, at, true);
        let group = &groups[at];
        let Some(shown) = group.shown.as_ref().filter(|shown| !arriving.contains_key(*shown)) else {
            return Ok(());
        };
        // Refusing this would not save a snapshot that is lost already.
        let Ok(open) = self.volumes.get(volume) else { return Ok(()) };
        let Some(image) = self.image_of(&open, shown) else { return Ok(()) };
        let number = image.snapshot();
        let is_newer =
            |(name, id): (&String, &SnapshotId)| group.made_ms(name).is_some() && Some(*id) > number;
        if !arriving.iter().any(is_newer) {
            self.memory.lock().arriving.remove(volume);
            return Err(withheld(group, shown));
        }
        tracing::warn!(
            group = group.name,
            volume,
            shown,
            "the source has deleted the visible snapshot of a group; it is held in memory until all of its volumes have a newer one"
        );
        self.memory.lock().held.insert(volume.to_owned(), (shown.clone(), image));
        Ok(())
    }

    /// A transfer into a volume is over.
    fn settled(&self, volume: &str) {
        let mut groups = self.groups.lock();
        self.forget_over(&mut groups);
        {
            let mut memory = self.memory.lock();
            memory.arriving.remove(volume);
            // It did not come to that.
            let listed = |name: &str| {
                self.volumes.get(volume).is_ok_and(|open| open.volume.snapshot_named(name).is_some())
            };
            if memory.held.get(volume).is_some_and(|(name, _)| listed(name)) {
                memory.held.remove(volume);
            }
        }
        for at in 0..groups.len() {
            if groups[at].volumes.iter().any(|member| member == volume) {
                self.advance(&mut groups, at, false);
            }
        }
    }
}

/// Refuses a group that would have to show two instants at once.
pub(super) fn refuse_shared(groups: &[Group], group: &Group) -> Result<(), ServerError> {
    let mut others = groups.iter().filter(|other| other.together && other.name != group.name);
    let shares = |other: &&Group| other.volumes.iter().any(|volume| group.volumes.contains(volume));
    match others.find(shares) {
        None => Ok(()),
        Some(other) => Err(ServerError::Groups(GroupsError::GroupsShare {
            group: group.name.clone(),
            other: other.name.clone(),
        })),
    }
}
