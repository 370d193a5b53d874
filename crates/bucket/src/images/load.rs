//! Reads the content of a bucket: the newest epoch, its newest root, and the tables of roots.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use cairn_base::Checksum;

use super::codec::{Kind, Version};
use super::error::ImagesError;
use super::inner::{Inner, Seen};
use super::names::{self, Folder};
use super::root::{
    Base, CHECKPOINT_BYTES_MAX, CONTENT_BYTES_MAX, Checkpoint, Claim, ImageId, ImageLabel, Kept, List,
    PartRef, ROOT_FIELDS_MAX, Root, RootRef,
};
use super::table::{Entry, Table};
use crate::limits::GET_BYTES_MAX;
use crate::name::{Name, Prefix};
use crate::store::{ListFrom, Store};
use crate::workers::{Workers, beside};

/// Bytes of a claim or a base. A longer one is damaged.
const SMALL_BYTES_MAX: usize = 4096;
/// Bytes of a root that is read before its length is known.
const ROOT_BYTES_MAX: usize = CONTENT_BYTES_MAX + 2 * ROOT_FIELDS_MAX;
/// Looks for the newest root, while owners follow each other.
const LOOKS_MAX: usize = 16;
/// Gets at the same time.
const AT_ONCE: usize = 16;

/// The newest root, with the catalog.
#[derive(Debug, Clone)]
pub(super) struct Newest {
    pub(super) root: Root,
    pub(super) checkpoint: Option<Checkpoint>,
}

impl Newest {
    /// Every image but the newest one, in order, also expired ones.
    pub(super) fn older(&self) -> Vec<Kept> {
        let catalog = self.checkpoint.iter().flat_map(|checkpoint| checkpoint.catalog.iter().copied());
        let since = self.root.since.iter();
        catalog
            .chain(since.map(|since| Kept { root: since.root, label: since.label, expired: None }))
            .collect()
    }

    pub(super) fn labels(&self) -> Vec<ImageLabel> {
        let older = self.older().into_iter().filter(|kept| kept.expired.is_none());
        older.map(|kept| kept.label).chain([self.root.label]).collect()
    }
}

/// Fetches objects at the same time, in order.
pub(super) fn fetch(
    store: &Arc<dyn Store>,
    workers: &Arc<dyn Workers>,
    wanted: &[(Name, u64, usize)],
    cancel: &Arc<AtomicBool>,
) -> Vec<Result<Bytes, crate::StoreError>> {
    let mut all = Vec::with_capacity(wanted.len());
    for some in wanted.chunks(AT_ONCE) {
        // One is got by this thread.
        let Some((own, others)) = some.split_last() else { break };
        let started: Vec<_> = others
            .iter()
            .map(|(name, offset, length)| {
                let (store, cancel, name) = (store.clone(), cancel.clone(), name.clone());
                let (offset, length) = (*offset, *length);
                beside(workers, move || store.get(&name, offset, length, &cancel)).ok()
            })
            .collect();
        let last = store.get(&own.0, own.1, own.2, cancel);
        for ((name, offset, length), receiver) in others.iter().zip(started) {
            let got = receiver.and_then(|receiver| receiver.recv().ok());
            // Without a thread it is got from here.
            all.push(got.unwrap_or_else(|| store.get(name, *offset, *length, cancel)));
        }
        all.push(last);
    }
    all
}

impl Inner {
    /// An object that may be absent.
    pub(super) fn small(
        &self,
        name: &Name,
        length: usize,
        cancel: &AtomicBool,
    ) -> Result<Option<Bytes>, ImagesError> {
        match self.store.get(name, 0, length, cancel) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn claim_of(&self, epoch: u32, cancel: &AtomicBool) -> Result<Option<Claim>, ImagesError> {
        let name = names::epoch(self.volume, epoch)?;
        let Some(bytes) = self.small(&name, SMALL_BYTES_MAX, cancel)? else { return Ok(None) };
        let claim = Claim::parse(&bytes, self.volume).map_err(|bad| bad.of(&name))?;
        if claim.epoch != epoch {
            return Err(ImagesError::Damaged { name, how: "it is the claim of another epoch" });
        }
        Ok(Some(claim))
    }

    fn base_of(&self, epoch: u32, cancel: &AtomicBool) -> Result<Option<Base>, ImagesError> {
        let name = names::base(self.volume, epoch)?;
        let Some(bytes) = self.small(&name, SMALL_BYTES_MAX, cancel)? else { return Ok(None) };
        let base = Base::parse(&bytes, self.volume).map_err(|bad| bad.of(&name))?;
        if base.epoch != epoch {
            return Err(ImagesError::Damaged { name, how: "it is the base of another epoch" });
        }
        Ok(Some(base))
    }

    /// The first name below a prefix that parses; a hint, as a listing may be late.
    fn first<T>(
        &self,
        prefix: &Prefix,
        parse: impl Fn(&Name) -> Option<T>,
        cancel: &AtomicBool,
    ) -> Result<Option<T>, ImagesError> {
        let page = self.store.list(prefix, &ListFrom::Start, 1, cancel)?;
        Ok(page.objects.first().and_then(|listed| parse(&listed.name)))
    }

    /// The newest epoch; 0 if there is none. Epochs have no gap and are never deleted, so the first
    /// that is absent ends the search, however late the listing is.
    pub(super) fn newest_epoch(&self, cancel: &AtomicBool) -> Result<u32, ImagesError> {
        let prefix = names::prefix(self.volume, Folder::Epoch)?;
        let hint = self.first(&prefix, names::parse_epoch, cancel)?.unwrap_or(0);
        if hint > 0 && self.claim_of(hint, cancel)?.is_none() {
            return Err(ImagesError::Gone(names::epoch(self.volume, hint)?));
        }
        let mut newest = hint;
        while self.claim_of(newest.saturating_add(1), cancel)?.is_some() {
            newest += 1;
        }
        Ok(newest)
    }

    /// A root by its place alone.
    fn probe_root(
        &self,
        epoch: u32,
        seq: u32,
        cancel: &AtomicBool,
    ) -> Result<Option<(RootRef, Root)>, ImagesError> {
        let name = names::root(self.volume, epoch, seq)?;
        let Some(bytes) = self.small(&name, ROOT_BYTES_MAX, cancel)? else { return Ok(None) };
        let root = self.parse_root(&name, &bytes, (epoch, seq))?;
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        Ok(Some((RootRef { epoch, seq, length, digest: Checksum::of(&bytes) }, root)))
    }

    fn parse_root(&self, name: &Name, bytes: &[u8], place: (u32, u32)) -> Result<Root, ImagesError> {
        let root = Root::parse(bytes, self.volume).map_err(|bad| bad.of(name))?;
        if (root.epoch, root.seq) != place {
            return Err(ImagesError::Damaged { name: name.clone(), how: "it is another root" });
        }
        Ok(root)
    }

    /// A root that is named with its digest.
    pub(super) fn root(&self, place: &RootRef, cancel: &AtomicBool) -> Result<Root, ImagesError> {
        let name = names::root(self.volume, place.epoch, place.seq)?;
        let bytes = self.small(&name, place.length as usize + 1, cancel)?;
        let bytes = bytes.ok_or_else(|| ImagesError::Gone(name.clone()))?;
        check(&name, &bytes, place.length, place.digest)?;
        self.parse_root(&name, &bytes, place.place())
    }

    /// The newest root of an epoch that has a base, by invariant 7.
    fn newest_root(&self, base: &Base, cancel: &AtomicBool) -> Result<Option<(RootRef, Root)>, ImagesError> {
        let (epoch, window) = (base.epoch, base.window);
        let prefix = names::prefix(self.volume, Folder::Root)?;
        // Roots of this epoch come before those of earlier ones. Those of later ones can't be
        // there, as a later epoch would have been found.
        let hint = self.first(&prefix, names::parse_root, cancel)?;
        let hint = hint.filter(|(found, _)| *found == epoch).map_or(0, |(_, seq)| seq);
        let mut seq = hint;
        let mut newest = None;
        loop {
            if let Some(found) = self.probe_root(epoch, seq + 1, cancel)? {
                (seq, newest) = (seq + 1, Some(found));
                continue;
            }
            let milestone = (seq / window + 1) * window;
            match self.probe_root(epoch, milestone, cancel)? {
                Some(found) => (seq, newest) = (milestone, Some(found)),
                None => break,
            }
        }
        if newest.is_none() && seq > 0 {
            newest = self.probe_root(epoch, seq, cancel)?;
            if newest.is_none() {
                return Err(ImagesError::Gone(names::root(self.volume, epoch, seq)?));
            }
        }
        Ok(newest)
    }

    /// The newest root that counts, looking from `epoch` down. An epoch without a base was claimed
    /// by an owner that has committed nothing.
    pub(super) fn newest_below(
        &self,
        epoch: u32,
        cancel: &AtomicBool,
    ) -> Result<Option<(RootRef, Root)>, ImagesError> {
        for epoch in (1..=epoch).rev() {
            let Some(base) = self.base_of(epoch, cancel)? else { continue };
            if let Some(found) = self.newest_root(&base, cancel)? {
                return Ok(Some(found));
            }
            return match base.root {
                Some(place) => Ok(Some((place, self.root(&place, cancel)?))),
                None => Ok(None),
            };
        }
        Ok(None)
    }

    /// Refuses a root that is older than the newest root seen before the search. Otherwise
    /// remembers it. Another handle may see a newer one meanwhile.
    pub(super) fn note_seen(&self, found: Option<&RootRef>, before: Option<Seen>) -> Result<(), ImagesError> {
        let (epoch, seq) = found.map_or((0, 0), RootRef::place);
        if let Some(before) = before {
            let older = (epoch, seq) < (before.epoch, before.seq);
            let differs = found.is_some_and(|found| {
                found.place() == (before.epoch, before.seq) && found.digest != before.digest
            });
            if older || differs {
                return Err(ImagesError::Replayed {
                    epoch: before.epoch,
                    seq: before.seq,
                    found_epoch: epoch,
                    found_seq: seq,
                });
            }
        }
        let mut seen = self.seen.lock();
        if let Some(found) = found
            && seen.is_none_or(|seen| (seen.epoch, seen.seq) < (epoch, seq))
        {
            *seen = Some(Seen { epoch, seq, digest: found.digest });
        }
        Ok(())
    }

    /// The newest root, with its catalog; none in an empty bucket.
    pub(super) fn newest(&self, cancel: &Arc<AtomicBool>) -> Result<Option<Newest>, ImagesError> {
        for _ in 0..LOOKS_MAX {
            let epoch = self.newest_epoch(cancel)?;
            let found = self.newest_of(epoch, cancel);
            // Then a later owner may have deleted roots of this epoch meanwhile.
            if self.claim_of(epoch + 1, cancel)?.is_none() {
                return found;
            }
        }
        Err(ImagesError::Rule("the volume changes its owner all the time"))
    }

    fn newest_of(&self, epoch: u32, cancel: &AtomicBool) -> Result<Option<Newest>, ImagesError> {
        let before = *self.seen.lock();
        let found = self.newest_below(epoch, cancel)?;
        self.note_seen(found.as_ref().map(|(place, _)| place), before)?;
        let Some((_, root)) = found else { return Ok(None) };
        let checkpoint = self.checkpoint_of(&root, cancel)?;
        Ok(Some(Newest { root, checkpoint }))
    }

    pub(super) fn checkpoint_of(
        &self,
        root: &Root,
        cancel: &AtomicBool,
    ) -> Result<Option<Checkpoint>, ImagesError> {
        let Some(part) = root.checkpoint else { return Ok(None) };
        let name = names::checkpoint(self.volume, part.at)?;
        if part.length as usize > CHECKPOINT_BYTES_MAX {
            return Err(ImagesError::Damaged { name, how: "its length is wrong" });
        }
        let bytes = self.small(&name, part.length as usize + 1, cancel)?;
        let bytes = bytes.ok_or_else(|| ImagesError::Gone(name.clone()))?;
        check(&name, &bytes, part.length, part.digest)?;
        let checkpoint = Checkpoint::parse(&bytes, self.volume).map_err(|bad| bad.of(&name))?;
        if checkpoint.at != part.at {
            return Err(ImagesError::Damaged { name, how: "it is another checkpoint" });
        }
        Ok(Some(checkpoint))
    }

    /// An image by its id, with its root and its checkpoint.
    pub(super) fn find(
        &self,
        image: Option<ImageId>,
        cancel: &Arc<AtomicBool>,
    ) -> Result<(Root, Option<Checkpoint>), ImagesError> {
        let newest = self.newest(cancel)?;
        let Some(wanted) = image else {
            let newest = newest.ok_or(ImagesError::NoImage(ImageId::default()))?;
            return Ok((newest.root, newest.checkpoint));
        };
        let newest = newest.ok_or(ImagesError::NoImage(wanted))?;
        if newest.root.label.id == wanted {
            return Ok((newest.root, newest.checkpoint));
        }
        let older = newest.older();
        let kept = older.iter().rev().find(|kept| kept.label.id == wanted && kept.expired.is_none());
        let root = self.root(&kept.ok_or(ImagesError::NoImage(wanted))?.root, cancel)?;
        let checkpoint = self.checkpoint_of(&root, cancel)?;
        Ok((root, checkpoint))
    }
}

/// Checks an object that is named with its length and its digest.
pub(super) fn check(name: &Name, bytes: &[u8], length: u32, digest: Checksum) -> Result<(), ImagesError> {
    let damaged = |how| ImagesError::Damaged { name: name.clone(), how };
    if bytes.len() != length as usize {
        return Err(damaged("its length is wrong"));
    }
    if Checksum::of(bytes) != digest {
        return Err(damaged("its digest is wrong"));
    }
    Ok(())
}

/// The changes of the table by one root.
type Delta = Arc<Vec<(u32, Entry)>>;

/// Loads tables, and shares their common parts.
pub(super) struct Tables<'a> {
    inner: &'a Inner,
    /// The table of the newest checkpoint that was loaded.
    last: Option<(Version, Table)>,
    /// The changes of roots.
    deltas: HashMap<(u32, u32), Delta>,
    /// The whole table of the newest major lists that were loaded.
    major: Option<(Vec<PartRef>, Table)>,
}

/// Deltas that are kept in memory; a longer history is fetched again.
const DELTAS_MAX: usize = 256;

impl<'a> Tables<'a> {
    pub(super) fn new(inner: &'a Inner) -> Self {
        Self { inner, last: None, deltas: HashMap::new(), major: None }
    }

    /// The table of a root.
    pub(super) fn of(
        &mut self,
        root: &Root,
        checkpoint: Option<&Checkpoint>,
        cancel: &Arc<AtomicBool>,
    ) -> Result<Table, ImagesError> {
        let mut table = match checkpoint {
            Some(checkpoint) => self.of_checkpoint(checkpoint, cancel)?,
            None => Table::default(),
        };
        let changing = root.since.iter().filter(|since| since.changes).map(|since| since.root);
        self.fetch_deltas(changing.clone().collect(), cancel)?;
        for place in changing {
            let delta = self.deltas.get(&place.place()).cloned().unwrap_or_default();
            delta.iter().for_each(|(region, entry)| {
                table.set(*region, *entry);
            });
        }
        root.delta.iter().for_each(|(region, entry)| {
            table.set(*region, *entry);
        });
        Ok(table)
    }

    /// The regions that changed between the major lists and a root whose table was just loaded.
    pub(super) fn changed_since_major(
        &mut self,
        root: &Root,
        checkpoint: Option<&Checkpoint>,
        cancel: &Arc<AtomicBool>,
    ) -> Result<BTreeSet<u32>, ImagesError> {
        let mut changed = BTreeSet::new();
        if let Some(checkpoint) = checkpoint {
            self.each(&checkpoint.minor, cancel, |region, _| {
                changed.insert(region);
            })?;
        }
        for since in &root.since {
            let delta = self.deltas.get(&since.root.place());
            changed.extend(delta.iter().flat_map(|delta| delta.iter().map(|(region, _)| *region)));
        }
        changed.extend(root.delta.iter().map(|(region, _)| *region));
        Ok(changed)
    }

    fn fetch_deltas(&mut self, places: Vec<RootRef>, cancel: &Arc<AtomicBool>) -> Result<(), ImagesError> {
        let inner = self.inner;
        if self.deltas.len() > DELTAS_MAX {
            self.deltas.clear();
        }
        let lacking: Vec<RootRef> =
            places.into_iter().filter(|place| !self.deltas.contains_key(&place.place())).collect();
        let mut wanted = Vec::new();
        for place in &lacking {
            let name = names::root(inner.volume, place.epoch, place.seq)?;
            wanted.push((name, 0, bounded(place.length)));
        }
        let got = fetch(&inner.store, &inner.workers, &wanted, cancel);
        for ((place, (name, _, _)), bytes) in lacking.iter().zip(&wanted).zip(got) {
            let bytes = needed(name, bytes)?;
            check(name, &bytes, place.length, place.digest)?;
            let root = inner.parse_root(name, &bytes, place.place())?;
            self.deltas.insert(place.place(), Arc::new(root.delta));
        }
        Ok(())
    }

    fn of_checkpoint(
        &mut self,
        checkpoint: &Checkpoint,
        cancel: &Arc<AtomicBool>,
    ) -> Result<Table, ImagesError> {
        if let Some((_, table)) = self.last.as_ref().filter(|(at, _)| *at == checkpoint.at) {
            return Ok(table.clone());
        }
        let mut table = match &self.major {
            Some((parts, table)) if *parts == checkpoint.major => table.clone(),
            _ => {
                let mut table = Table::default();
                self.apply(&mut table, &checkpoint.major, cancel)?;
                self.major = Some((checkpoint.major.clone(), table.clone()));
                table
            }
        };
        self.apply(&mut table, &checkpoint.minor, cancel)?;
        self.last = Some((checkpoint.at, table.clone()));
        Ok(table)
    }

    fn apply(
        &self,
        table: &mut Table,
        parts: &[PartRef],
        cancel: &Arc<AtomicBool>,
    ) -> Result<(), ImagesError> {
        self.each(parts, cancel, |region, entry| {
            table.set(region, entry);
        })
    }

    /// Gives each entry of some lists to `take`.
    fn each(
        &self,
        parts: &[PartRef],
        cancel: &Arc<AtomicBool>,
        mut take: impl FnMut(u32, Entry),
    ) -> Result<(), ImagesError> {
        let inner = self.inner;
        let mut wanted = Vec::new();
        for part in parts {
            let name = names::list(inner.volume, part.at, part.part)?;
            wanted.push((name, 0, bounded(part.length)));
        }
        // A few at a time, so that memory holds the table and not the lists.
        for (parts, wanted) in parts.chunks(AT_ONCE).zip(wanted.chunks(AT_ONCE)) {
            let got = fetch(&inner.store, &inner.workers, wanted, cancel);
            for ((part, (name, _, _)), bytes) in parts.iter().zip(wanted).zip(got) {
                let bytes = needed(name, bytes)?;
                check(name, &bytes, part.length, part.digest)?;
                let list = List::parse(&bytes, Kind::List, inner.volume).map_err(|bad| bad.of(name))?;
                list.entries.into_iter().for_each(|(region, entry)| take(region, entry));
            }
        }
        Ok(())
    }
}

/// A read that shows whether the object is longer than it should be.
fn bounded(length: u32) -> usize {
    (length as usize + 1).min(GET_BYTES_MAX)
}

fn needed(name: &Name, bytes: Result<Bytes, crate::StoreError>) -> Result<Bytes, ImagesError> {
    match bytes {
        Err(error) if error.is_missing() => Err(ImagesError::Gone(name.clone())),
        bytes => Ok(bytes?),
    }
}
