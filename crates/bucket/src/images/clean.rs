//! Images expire by rules, their regions are deleted after a grace period, and orphans are found.
//!
//! See invariants 5 and 6 of the module above. Whatever is cut here is repeated by the next call:
//! an image stays in the catalog as expired until all regions that it alone needs are deleted.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use cairn_base::Timestamp;

use super::codec::Version;
use super::error::ImagesError;
use super::load::Tables;
use super::names::{self, Folder};
use super::owner::Owner;
use super::root::{Checkpoint, ImageId, ImageLabel, Kept, Root};
use super::table::Table;
use crate::dumps::KeepDumps;
use crate::limits::{COLLECTED_MAX, PAGE_OBJECTS_MAX};
use crate::name::Name;
use crate::store::{ListFrom, Listed};

/// Images that expired.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Expired {
    /// These, in order.
    pub images: Vec<ImageLabel>,
}

/// The outcome of a sweep.
#[derive(Debug, Clone, Default)]
pub struct Swept {
    /// Images of which nothing is left.
    pub images: usize,
    /// Objects that were deleted.
    pub objects: u64,
    /// Expired images that could not be read, so that their regions stay until a search for
    /// orphans.
    pub unreadable: Vec<ImagesError>,
}

/// Which orphans to look for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Orphans {
    /// Roots, checkpoints, lists and progress: few requests, for each day.
    Small,
    /// Regions too: lists every object and reads the table of every image, for each month.
    All,
}

/// The tables of neighbours, each loaded once.
struct Neighbours<'a> {
    tables: Tables<'a>,
    loaded: Vec<((u32, u32), Table)>,
}

impl Owner {
    /// Lets images expire that no rule keeps. The newest one never does. Without a rule all are
    /// kept. It makes no request if none expires.
    ///
    /// # Errors
    /// Nothing has expired, or after an error of the store it may have.
    pub fn expire(
        &mut self,
        keep: &KeepDumps,
        now: Timestamp,
        cancel: &Arc<AtomicBool>,
    ) -> Result<Expired, ImagesError> {
        self.expire_but(&[], keep, now, cancel)
    }

    /// The same, and images in `held` stay: a device reads blocks of them.
    ///
    /// # Errors
    /// As [`Owner::expire`].
    pub fn expire_but(
        &mut self,
        held: &[ImageId],
        keep: &KeepDumps,
        now: Timestamp,
        cancel: &Arc<AtomicBool>,
    ) -> Result<Expired, ImagesError> {
        self.settle(cancel)?;
        let Some(newest) = self.newest() else { return Ok(Expired::default()) };
        let mut older = self.state.older.clone();
        let there: Vec<usize> = (0..older.len())
            .rev()
            .filter(|at| older.get(*at).is_some_and(|kept| kept.expired.is_none()))
            .collect();
        let taken = |at: &usize| older.get(*at).map_or(Timestamp(0), |kept| kept.label.taken);
        let times: Vec<Timestamp> = [newest.taken].into_iter().chain(there.iter().map(taken)).collect();
        let stays = keep.chosen(&times);
        let mut expired = Expired::default();
        for (at, _) in there.iter().zip(stays.iter().skip(1)).filter(|(_, stays)| !**stays).rev() {
            if let Some(kept) = older.get_mut(*at).filter(|kept| !held.contains(&kept.label.id)) {
                kept.expired = Some(now);
                expired.images.push(kept.label);
            }
        }
        if !expired.images.is_empty() {
            self.rewrite(older, now, cancel)?;
        }
        Ok(expired)
    }

    /// Deletes the regions of images that expired at least `grace` ago and that no other image
    /// needs. A reader that opened an image before it expired can read it until then.
    ///
    /// # Errors
    /// The store failed, or this owner is fenced; a later call continues.
    pub fn sweep(
        &mut self,
        grace: Duration,
        now: Timestamp,
        cancel: &Arc<AtomicBool>,
    ) -> Result<Swept, ImagesError> {
        self.settle(cancel)?;
        let mut swept = Swept::default();
        let is_due = |kept: &Kept| kept.expired.is_some_and(|at| past(at, grace, now));
        let older = self.state.older.clone();
        if !older.iter().any(is_due) {
            return Ok(swept);
        }
        self.check(cancel)?;
        let Some((_, newest)) = self.state.newest.clone() else { return Ok(swept) };
        let inner = self.inner.clone();
        let mut neighbours = Neighbours { tables: Tables::new(&inner), loaded: Vec::new() };
        neighbours.loaded.push(((newest.epoch, newest.seq), self.state.table.clone()));
        let mut remaining = Vec::new();
        let mut before: Option<Kept> = None;
        for (at, kept) in older.iter().enumerate() {
            if !is_due(kept) {
                remaining.push(*kept);
                before = Some(*kept);
                continue;
            }
            let after = older.get(at + 1);
            match self.garbage(&mut neighbours, (before.as_ref(), kept, after), cancel) {
                Ok(garbage) => {
                    for (region, version) in garbage {
                        inner.store.delete(&names::region(inner.volume, region, version)?, cancel)?;
                        swept.objects += 1;
                    }
                    swept.images += 1;
                }
                Err(
                    error @ (ImagesError::Gone(_) | ImagesError::Damaged { .. } | ImagesError::Newer { .. }),
                ) => {
                    remaining.push(*kept);
                    swept.unreadable.push(error);
                }
                Err(error) => return Err(error),
            }
        }
        if swept.images > 0 {
            self.rewrite(remaining, now, cancel)?;
        }
        Ok(swept)
    }

    /// The regions that an image needs and neither the kept image before it nor the one after it.
    /// The regions of the next image belong to that image: it is kept, or is handled next.
    fn garbage(
        &self,
        neighbours: &mut Neighbours,
        (before, kept, after): (Option<&Kept>, &Kept, Option<&Kept>),
        cancel: &Arc<AtomicBool>,
    ) -> Result<Vec<(u32, Version)>, ImagesError> {
        let own = self.table_of(neighbours, kept, cancel)?;
        let before = before.map(|before| self.table_of(neighbours, before, cancel)).transpose()?;
        let after = match after {
            Some(after) => self.table_of(neighbours, after, cancel)?,
            None => self.state.table.clone(),
        };
        Ok(own.without(before.as_ref(), Some(&after)))
    }

    fn table_of(
        &self,
        neighbours: &mut Neighbours,
        kept: &Kept,
        cancel: &Arc<AtomicBool>,
    ) -> Result<Table, ImagesError> {
        let place = kept.root.place();
        if let Some((_, table)) = neighbours.loaded.iter().find(|(found, _)| *found == place) {
            return Ok(table.clone());
        }
        let root = self.inner.root(&kept.root, cancel)?;
        let checkpoint = self.inner.checkpoint_of(&root, cancel)?;
        let table = neighbours.tables.of(&root, checkpoint.as_ref(), cancel)?;
        // The newest, the one before, this one and the one after.
        if neighbours.loaded.len() > 3 {
            neighbours.loaded.remove(1);
        }
        neighbours.loaded.push((place, table.clone()));
        Ok(table)
    }

    /// Deletes objects that no image names, that no update can use again, and that are at least
    /// `grace` old. Returns their number.
    ///
    /// # Errors
    /// The store failed, or a root cannot be read; a later call continues.
    pub fn sweep_orphans(
        &mut self,
        which: Orphans,
        grace: Duration,
        now: Timestamp,
        cancel: &Arc<AtomicBool>,
    ) -> Result<u64, ImagesError> {
        self.settle(cancel)?;
        self.check(cancel)?;
        let swept = self.orphans(which, grace, now, cancel);
        self.unless_fenced(swept, cancel)
    }

    fn orphans(
        &self,
        which: Orphans,
        grace: Duration,
        now: Timestamp,
        cancel: &Arc<AtomicBool>,
    ) -> Result<u64, ImagesError> {
        let inner = self.inner.clone();
        let Some((place, newest)) = self.state.newest.clone() else { return Ok(0) };
        let mark = newest.mark;
        let mut orphans: Vec<(u32, Version, Name)> = Vec::new();
        if which == Orphans::All {
            self.each_listed(Folder::Region, cancel, |listed| {
                let Some((region, at)) = names::parse_region(&listed.name) else { return };
                let named = self.state.table.get(region).is_some_and(|entry| entry.at == at);
                // More are for the next time.
                if !named && at <= mark && past(listed.created, grace, now) && orphans.len() < COLLECTED_MAX {
                    orphans.push((region, at, listed.name));
                }
            })?;
        }
        let mut needed = Needed::default();
        needed.add(&newest, inner.checkpoint_of(&newest, cancel)?.as_ref());
        needed.roots.insert(place.place());
        let mut tables = Tables::new(&inner);
        let mut checkpoints: HashMap<Version, Checkpoint> = HashMap::new();
        for kept in &self.state.older {
            let root = inner.root(&kept.root, cancel)?;
            needed.roots.insert(kept.root.place());
            let known = root.checkpoint.and_then(|part| checkpoints.get(&part.at).cloned());
            let checkpoint = match known {
                Some(checkpoint) => Some(checkpoint),
                None => inner.checkpoint_of(&root, cancel)?,
            };
            needed.add(&root, checkpoint.as_ref());
            if !orphans.is_empty() {
                let table = tables.of(&root, checkpoint.as_ref(), cancel)?;
                orphans.retain(|(region, at, _)| table.get(*region).is_none_or(|entry| entry.at != *at));
            }
            if let Some(checkpoint) = checkpoint {
                checkpoints.clear();
                checkpoints.insert(checkpoint.at, checkpoint);
            }
        }
        let mut gone: Vec<Name> = orphans.into_iter().map(|(_, _, name)| name).collect();
        let window = inner.tuning.window.max(1);
        self.each_listed(Folder::Root, cancel, |listed| {
            let Some((epoch, seq)) = names::parse_root(&listed.name) else { return };
            let found_by = epoch == place.epoch && (seq % window == 0 || seq >= place.seq / window * window);
            let is_needed = (epoch, seq) >= place.place() || found_by || needed.roots.contains(&(epoch, seq));
            if !is_needed && past(listed.created, grace, now) {
                gone.push(listed.name);
            }
        })?;
        for folder in [Folder::Checkpoint, Folder::List, Folder::Progress] {
            self.each_listed(folder, cancel, |listed| {
                let Some(at) = names::parse_version(&listed.name, folder) else { return };
                let is_needed = match folder {
                    Folder::Checkpoint => needed.checkpoints.contains(&at),
                    Folder::List => needed.lists.contains(&at),
                    _ => false,
                };
                if !is_needed && at <= mark && past(listed.created, grace, now) {
                    gone.push(listed.name);
                }
            })?;
        }
        for name in &gone {
            inner.store.delete(name, cancel)?;
        }
        Ok(gone.len() as u64)
    }

    fn each_listed(
        &self,
        folder: Folder,
        cancel: &Arc<AtomicBool>,
        mut take: impl FnMut(Listed),
    ) -> Result<(), ImagesError> {
        let prefix = names::prefix(self.inner.volume, folder)?;
        let mut from = ListFrom::Start;
        loop {
            let page = self.inner.store.list(&prefix, &from, PAGE_OBJECTS_MAX, cancel)?;
            page.objects.into_iter().for_each(&mut take);
            match page.next {
                Some(next) if from != ListFrom::Page(next.clone()) => from = ListFrom::Page(next),
                _ => return Ok(()),
            }
        }
    }
}

/// Small objects that images need.
#[derive(Default)]
struct Needed {
    roots: HashSet<(u32, u32)>,
    checkpoints: HashSet<Version>,
    lists: HashSet<Version>,
}

impl Needed {
    fn add(&mut self, root: &Root, checkpoint: Option<&Checkpoint>) {
        self.roots.extend(root.since.iter().map(|since| since.root.place()));
        self.checkpoints.extend(root.checkpoint.map(|part| part.at));
        let parts = checkpoint.iter().flat_map(|checkpoint| checkpoint.major.iter().chain(&checkpoint.minor));
        self.lists.extend(parts.map(|part| part.at));
    }
}

/// `grace` has passed since.
fn past(since: Timestamp, grace: Duration, now: Timestamp) -> bool {
    u128::from(since.0) + grace.as_nanos() <= u128::from(now.0)
}
