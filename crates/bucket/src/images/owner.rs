//! The owner of a volume in a bucket: claims it, and commits roots.
//!
//! An owner is of one process and is never stored: after a restart the volume is claimed again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use cairn_base::{Checksum, Mutex, Timestamp};

use super::codec::{Kind, Version};
use super::error::ImagesError;
use super::inner::{Inner, Seen, nonce_of};
use super::load::Tables;
use super::names::{self, Folder};
use super::reader::ImageReader;
use super::root::{
    Base, CONTENT_BYTES_MAX, Checkpoint, Claim, IMAGES_MAX, ImageId, ImageLabel, Kept, List, PartRef, Root,
    RootRef, Since,
};
use super::table::{Delta, Entry, Table};
use super::update::{Done, Update};
use crate::name::Name;
use crate::store::{Nonce, Put, list_all};

/// Bytes of a list or of the progress of an update that is read. A longer one is damaged.
const LIST_BYTES_MAX: usize = 16 << 20;

/// See the module.
pub struct Owner {
    pub(super) inner: Arc<Inner>,
    pub(super) epoch: u32,
    nonce: Nonce,
    /// The last number that was used in a name.
    number: u32,
    pub(super) state: State,
    /// A root that may have been written.
    pending: Option<Pending>,
    fenced: Option<(u32, String)>,
    /// The bucket may have regions of an update of an earlier owner.
    looks: bool,
    /// The update that is under way.
    open: Option<Open>,
}

/// The content of the newest committed root.
#[derive(Clone, Default)]
pub(super) struct State {
    pub(super) newest: Option<(RootRef, Root)>,
    pub(super) table: Table,
    totals: (u32, u64),
    checkpoint: Option<PartRef>,
    major: Vec<PartRef>,
    minor: Vec<PartRef>,
    minor_bytes: u64,
    /// Regions that changed since the major lists.
    changed: BTreeSet<u32>,
    since: Vec<Since>,
    /// Every image but the newest one, in order.
    pub(super) older: Vec<Kept>,
}

struct Pending {
    name: Name,
    bytes: Bytes,
    nonce: Nonce,
    /// Once it is committed.
    state: State,
}

struct Open {
    number: u32,
    target: ImageId,
    done: Arc<Mutex<Done>>,
}

impl std::fmt::Debug for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Owner").field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

impl Owner {
    pub(super) fn claim(
        inner: &Arc<Inner>,
        label: &str,
        now: Timestamp,
        cancel: &Arc<AtomicBool>,
    ) -> Result<Self, ImagesError> {
        let newest = inner.newest_epoch(cancel)?;
        Self::claim_after(inner, (newest, inner.nonce()), label, now, cancel)
    }

    /// Claims the epoch after `after`, and no other one.
    pub(super) fn claim_after(
        inner: &Arc<Inner>,
        (after, nonce): (u32, Nonce),
        label: &str,
        now: Timestamp,
        cancel: &Arc<AtomicBool>,
    ) -> Result<Self, ImagesError> {
        let volume = inner.volume;
        let epoch = after.checked_add(1).filter(|epoch| *epoch < u32::MAX);
        let epoch = epoch.ok_or(ImagesError::Rule("no epoch is left"))?;
        let claim = Claim { epoch, nonce, at: now, label: label.to_owned() };
        let name = names::epoch(volume, epoch)?;
        if inner.store.put_new(&name, claim.write(volume).into(), nonce, cancel)? == Put::Exists {
            let by =
                inner.claim_of(epoch, cancel)?.map_or_else(|| "another server".to_owned(), |it| it.label);
            return Err(ImagesError::Taken { epoch, by });
        }
        let mut owner = Self {
            inner: inner.clone(),
            epoch,
            nonce,
            number: 0,
            state: State::default(),
            pending: None,
            fenced: None,
            looks: true,
            open: None,
        };
        let loaded = owner.load(cancel);
        owner.unless_fenced(loaded, cancel)?;
        Ok(owner)
    }

    /// Finds the root to continue from, and names it.
    fn load(&mut self, cancel: &Arc<AtomicBool>) -> Result<(), ImagesError> {
        let inner = self.inner.clone();
        let (volume, epoch, nonce) = (inner.volume, self.epoch, self.nonce);
        // Only now: the commits of an earlier owner are visible, see invariant 1.
        let before = *inner.seen.lock();
        let newest = inner.newest_below(epoch - 1, cancel)?;
        inner.note_seen(newest.as_ref().map(|(place, _)| place), before)?;
        self.state = State::load(&inner, newest, cancel)?;
        let base = Base {
            epoch,
            window: inner.tuning.window.max(1),
            root: self.state.newest.as_ref().map(|(place, _)| *place),
        };
        let name = names::base(volume, epoch)?;
        if inner.store.put_new(&name, base.write(volume).into(), nonce, cancel)? == Put::Exists {
            return Err(ImagesError::Damaged { name, how: "another writer made it" });
        }
        self.check(cancel)
    }

    /// An object may be missing because a later owner deleted it, and this server may have seen a
    /// commit of that owner: then the claim is the failure.
    pub(super) fn unless_fenced<T>(
        &mut self,
        outcome: Result<T, ImagesError>,
        cancel: &AtomicBool,
    ) -> Result<T, ImagesError> {
        if let Err(ImagesError::Gone(_) | ImagesError::Replayed { .. }) = outcome {
            self.check(cancel)?;
        }
        outcome
    }

    /// The epoch of this owner.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Looks whether another server has claimed the volume: one request.
    ///
    /// # Errors
    /// [`ImagesError::Fenced`], from then on always.
    pub fn look(&mut self, cancel: &AtomicBool) -> Result<(), ImagesError> {
        self.check(cancel)
    }

    /// The root of the newest committed image.
    pub fn seen(&self) -> Option<Seen> {
        let (place, _) = self.state.newest.as_ref()?;
        Some(Seen { epoch: place.epoch, seq: place.seq, digest: place.digest })
    }

    /// The newest committed image.
    pub fn newest(&self) -> Option<ImageLabel> {
        self.state.newest.as_ref().map(|(_, root)| root.label)
    }

    /// The images that are kept, in order.
    pub fn images(&self) -> Vec<ImageLabel> {
        let older = self.state.older.iter().filter(|kept| kept.expired.is_none()).map(|kept| kept.label);
        older.chain(self.newest()).collect()
    }

    /// The newest committed image, open. It makes no request.
    pub fn reader(&self) -> Option<ImageReader> {
        let (_, root) = self.state.newest.as_ref()?;
        let of = (root.label, root.content.clone());
        Some(ImageReader::of(&self.inner, of, self.state.table.clone()))
    }

    /// The nonce of its claim: a server that keeps it recognizes the claim after a restart.
    pub fn nonce(&self) -> Nonce {
        self.nonce
    }

    /// Superblock and snapshot table of the newest image; empty without one.
    pub fn newest_content(&self) -> &[u8] {
        self.state.newest.as_ref().map_or(&[], |(_, root)| &root.content)
    }

    /// Regions of which the newest image has blocks.
    pub fn regions(&self) -> impl Iterator<Item = u32> + '_ {
        self.state.table.iter().map(|(region, _)| region)
    }

    /// Bytes of memory that the table takes, about.
    pub fn memory(&self) -> u64 {
        self.state.table.memory() + self.state.changed.len() as u64 * 8
    }

    /// Bytes of the objects of the newest image.
    pub fn stored(&self) -> u64 {
        self.state.totals.1
    }

    /// Fails if another server has claimed the volume, and from then on always.
    pub(super) fn check(&mut self, cancel: &AtomicBool) -> Result<(), ImagesError> {
        if self.fenced.is_none()
            && let Some(next) = self.inner.claim_of(self.epoch + 1, cancel)?
        {
            self.fenced = Some((next.epoch, next.label));
        }
        match &self.fenced {
            Some((epoch, by)) => Err(ImagesError::Fenced { epoch: *epoch, by: by.clone() }),
            None => Ok(()),
        }
    }

    /// A nonce for an object that this owner may put again, after an answer that was lost.
    fn nonce_of(&self, name: &Name, bytes: &[u8]) -> Nonce {
        nonce_of(self.nonce, name, bytes)
    }

    fn next_number(&mut self) -> Result<u32, ImagesError> {
        self.number = self.number.checked_add(1).ok_or(ImagesError::Rule("claim the volume again"))?;
        Ok(self.number)
    }

    /// Determines the outcome of a root whose commit failed, and commits it.
    ///
    /// # Errors
    /// The outcome is still unknown; call it again.
    pub fn settle(&mut self, cancel: &AtomicBool) -> Result<(), ImagesError> {
        if self.fenced.is_some() {
            self.pending = None;
            return self.check(cancel);
        }
        let Some(pending) = &self.pending else { return Ok(()) };
        let put = self.inner.store.put_new(&pending.name, pending.bytes.clone(), pending.nonce, cancel)?;
        if put == Put::Exists {
            // No other owner has this epoch, so a writer that violates the rules took the names.
            let name = pending.name.clone();
            self.fenced = Some((self.epoch, "a writer of the same epoch".to_owned()));
            return Err(ImagesError::Damaged { name, how: "another writer made it" });
        }
        self.check(cancel)?;
        if let Some(pending) = self.pending.take() {
            self.state = pending.state;
            self.inner.note_seen(self.state.newest.as_ref().map(|(place, _)| place), None)?;
        }
        Ok(())
    }

    /// Begins an update from the newest image, which must be `base`, to `target`. An update in
    /// progress is given up; its objects are used again if it had the same target.
    ///
    /// # Errors
    /// [`ImagesError::Fenced`]; [`ImagesError::Base`] if `base` is not the newest.
    pub fn begin(
        &mut self,
        base: Option<ImageId>,
        target: ImageId,
        cancel: &Arc<AtomicBool>,
    ) -> Result<Update, ImagesError> {
        self.settle(cancel)?;
        self.check(cancel)?;
        let newest = self.newest().map(|label| label.id);
        if newest != base {
            return Err(ImagesError::Base { newest });
        }
        if newest == Some(target) || self.state.older.iter().any(|kept| kept.label.id == target) {
            return Err(ImagesError::Rule("the image is in the bucket already"));
        }
        if self.state.older.len() >= IMAGES_MAX {
            return Err(ImagesError::Rule("the bucket has too many images; keep fewer of them"));
        }
        let mut left = Delta::default();
        if self.looks {
            left = self.left_by_others(target, cancel)?;
        }
        if let Some(open) = self.open.take().filter(|open| open.target == target) {
            left.extend(open.done.lock().entries.to_vec());
        }
        let at = Version { epoch: self.epoch, number: self.next_number()? };
        let update = Update::new(&self.inner, at, (self.nonce, target), left);
        self.looks = false;
        self.open = Some(Open { number: at.number, target, done: update.done.clone() });
        Ok(update)
    }

    /// Regions of `target` that an update before wrote: past the mark, so that no sweep ever takes
    /// them.
    fn left_by_others(&self, target: ImageId, cancel: &Arc<AtomicBool>) -> Result<Delta, ImagesError> {
        let inner = &self.inner;
        let mark = self.state.newest.as_ref().map_or(Version::default(), |(_, root)| root.mark);
        let mut left = Delta::default();
        let prefix = names::prefix(inner.volume, Folder::Progress)?;
        for listed in list_all(&*inner.store, &prefix, cancel)? {
            let at = names::parse_version(&listed.name, Folder::Progress);
            let Some(at) = at.filter(|at| *at > mark) else { continue };
            // The regions of an unreadable list are sent again.
            let bytes = match inner.small(&listed.name, LIST_BYTES_MAX, cancel) {
                Err(ImagesError::Damaged { .. }) => continue,
                bytes => bytes?,
            };
            let Some(bytes) = bytes else { continue };
            let Ok(list) = List::parse(&bytes, Kind::Progress, inner.volume) else { continue };
            if list.at == at && list.image == target {
                left.extend(list.entries.into_iter().filter(|(_, entry)| entry.at == at));
            }
        }
        Ok(left)
    }

    /// Commits an update: the image is in the bucket, durable and readable.
    ///
    /// # Errors
    /// [`ImagesError::Fenced`]: it is not committed. After an error of the store it may be; call
    /// this again, or [`Owner::settle`].
    pub fn commit(
        &mut self,
        update: &Update,
        label: ImageLabel,
        content: &[u8],
        now: Timestamp,
        cancel: &Arc<AtomicBool>,
    ) -> Result<Seen, ImagesError> {
        self.settle(cancel)?;
        if self.newest().is_none_or(|newest| newest.id != label.id) {
            let is_open = self.open.as_ref().is_some_and(|open| open.number == update.at.number);
            if !is_open || label.id != update.target {
                return Err(ImagesError::Rule("the update is not the one that is under way"));
            }
            if content.len() > CONTENT_BYTES_MAX {
                return Err(ImagesError::Rule("the snapshot table is too long for a bucket"));
            }
            let delta = update.delta();
            self.write((label, content), &delta, false, now, cancel)?;
            self.settle(cancel)?;
        }
        self.open = None;
        self.seen().ok_or(ImagesError::Rule("a committed root is not there"))
    }

    /// Shows the newest image by a new root with another catalog.
    pub(super) fn rewrite(
        &mut self,
        older: Vec<Kept>,
        now: Timestamp,
        cancel: &Arc<AtomicBool>,
    ) -> Result<(), ImagesError> {
        let Some((_, root)) = &self.state.newest else { return Ok(()) };
        let (label, content) = (root.label, root.content.clone());
        let before = std::mem::replace(&mut self.state.older, older);
        let written = self.write((label, &content), &Delta::default(), true, now, cancel);
        // It counts once it is committed.
        self.state.older = before;
        written?;
        self.settle(cancel)
    }

    /// Writes everything of a root but itself, and makes it pending. With `again` it shows the
    /// newest image once more.
    fn write(
        &mut self,
        (label, content): (ImageLabel, &[u8]),
        delta: &Delta,
        again: bool,
        now: Timestamp,
        cancel: &Arc<AtomicBool>,
    ) -> Result<(), ImagesError> {
        let inner = self.inner.clone();
        let mut state = self.state.clone();
        if let Some((place, root)) = state.newest.take().filter(|_| !again) {
            state.older.push(Kept { root: place, label: root.label, expired: None });
            let changes = !root.delta.is_empty();
            state.since.push(Since { root: place, label: root.label, changes });
        }
        state.apply(delta);
        let tuning = &inner.tuning;
        let checkpoints =
            again || state.since.len() > tuning.since_max as usize || delta.len() > tuning.delta_max;
        if checkpoints {
            self.checkpoint(&mut state, cancel)?;
        }
        let previous = self.state.newest.as_ref();
        let seq = match previous {
            Some((place, _)) if place.epoch == self.epoch => {
                place.seq.checked_add(1).filter(|seq| *seq < u32::MAX)
            }
            _ => Some(1),
        };
        let seq = seq.ok_or(ImagesError::Rule("claim the volume again"))?;
        // While an update is in progress, or may be resumed, its objects stay past the mark.
        let is_under_way = self.open.is_some() || self.looks;
        let mark = match previous.filter(|_| again && is_under_way) {
            Some((_, root)) => root.mark,
            None => Version { epoch: self.epoch, number: self.number },
        };
        let root = Root {
            epoch: self.epoch,
            seq,
            mark,
            written: now,
            previous: previous.map(|(place, _)| *place),
            label,
            content: content.to_vec(),
            regions: state.totals.0,
            stored: state.totals.1,
            checkpoint: state.checkpoint,
            since: state.since.clone(),
            delta: if checkpoints { Vec::new() } else { delta.to_vec() },
        };
        let name = names::root(inner.volume, self.epoch, seq)?;
        let bytes = root.write(inner.volume);
        let length = u32::try_from(bytes.len()).map_err(|_| ImagesError::Rule("a root is too long"))?;
        let place = RootRef { epoch: self.epoch, seq, length, digest: Checksum::of(&bytes) };
        state.newest = Some((place, root));
        let nonce = self.nonce_of(&name, &bytes);
        self.pending = Some(Pending { name, bytes: bytes.into(), nonce, state });
        Ok(())
    }

    /// Writes a checkpoint of `state`, with new lists.
    fn checkpoint(&mut self, state: &mut State, cancel: &Arc<AtomicBool>) -> Result<(), ImagesError> {
        let at = Version { epoch: self.epoch, number: self.next_number()? };
        let entry = 32;
        let (minor_bytes, whole_bytes) =
            (state.changed.len() as u64 * entry, u64::from(state.totals.0) * entry);
        // Minor lists grow, so all of them cost as much as a major one at some time. Writing a
        // major list then costs at most twice as much as the best choice of times.
        if state.major.is_empty() || state.minor_bytes + minor_bytes > whole_bytes {
            state.major = self.lists(at, &mut state.table.iter(), cancel)?;
            (state.minor, state.minor_bytes) = (Vec::new(), 0);
            state.changed.clear();
        } else if !state.changed.is_empty() {
            let now = |region: &u32| (*region, state.table.get(*region).unwrap_or(Entry::NONE));
            state.minor = self.lists(at, &mut state.changed.iter().map(now), cancel)?;
            state.minor_bytes += minor_bytes;
        }
        let checkpoint = Checkpoint {
            at,
            major: state.major.clone(),
            minor: state.minor.clone(),
            minor_bytes: state.minor_bytes,
            catalog: state.older.clone(),
        };
        let bytes = checkpoint.write(self.inner.volume);
        let name = names::checkpoint(self.inner.volume, at)?;
        state.checkpoint = Some(self.put(&name, bytes, (at, 0), cancel)?);
        state.since.clear();
        Ok(())
    }

    /// Writes entries, as many in each object as the tuning says.
    fn lists(
        &self,
        at: Version,
        entries: &mut dyn Iterator<Item = (u32, Entry)>,
        cancel: &Arc<AtomicBool>,
    ) -> Result<Vec<PartRef>, ImagesError> {
        let (volume, count) = (self.inner.volume, self.inner.tuning.list_entries.max(1));
        let mut parts = Vec::new();
        for part in 0.. {
            let entries: Vec<(u32, Entry)> = std::iter::from_fn(|| entries.next()).take(count).collect();
            if entries.is_empty() {
                break;
            }
            let list = List { at, part, image: ImageId::default(), entries };
            let name = names::list(volume, at, part)?;
            parts.push(self.put(&name, list.write(Kind::List, volume), (at, part), cancel)?);
        }
        Ok(parts)
    }

    /// Puts an object whose name is new.
    fn put(
        &self,
        name: &Name,
        bytes: Vec<u8>,
        (at, part): (Version, u32),
        cancel: &AtomicBool,
    ) -> Result<PartRef, ImagesError> {
        let length = u32::try_from(bytes.len()).map_err(|_| ImagesError::Rule("a list is too long"))?;
        let (digest, nonce) = (Checksum::of(&bytes), self.nonce_of(name, &bytes));
        match self.inner.store.put_new(name, bytes.into(), nonce, cancel)? {
            Put::Created => Ok(PartRef { at, part, length, digest }),
            Put::Exists => Err(ImagesError::Damaged { name: name.clone(), how: "another writer made it" }),
        }
    }
}

impl State {
    fn load(
        inner: &Inner,
        newest: Option<(RootRef, Root)>,
        cancel: &Arc<AtomicBool>,
    ) -> Result<Self, ImagesError> {
        let Some((place, root)) = newest else { return Ok(Self::default()) };
        let checkpoint = inner.checkpoint_of(&root, cancel)?;
        let mut tables = Tables::new(inner);
        let table = tables.of(&root, checkpoint.as_ref(), cancel)?;
        let totals = table.totals();
        if totals != (root.regions, root.stored) {
            let name = names::root(inner.volume, place.epoch, place.seq)?;
            return Err(ImagesError::Damaged { name, how: "its table is not the one that it counts" });
        }
        let changed = tables.changed_since_major(&root, checkpoint.as_ref(), cancel)?;
        let since = root.since.clone();
        let mut older = checkpoint.as_ref().map_or_else(Vec::new, |checkpoint| checkpoint.catalog.clone());
        older.extend(since.iter().map(|since| Kept { root: since.root, label: since.label, expired: None }));
        let (major, minor, minor_bytes) = checkpoint.map_or_else(Default::default, |checkpoint| {
            (checkpoint.major, checkpoint.minor, checkpoint.minor_bytes)
        });
        Ok(Self {
            table,
            totals,
            checkpoint: root.checkpoint,
            major,
            minor,
            minor_bytes,
            changed,
            since,
            older,
            newest: Some((place, root)),
        })
    }

    /// Makes the changes of an update.
    fn apply(&mut self, delta: &Delta) {
        let Self { table, totals, changed, .. } = self;
        table.merge(&delta.put, &mut |region, before, now| {
            count(totals, before, now);
            changed.insert(region);
        });
        for region in delta.gone.iter() {
            count(totals, table.set(region, Entry::NONE), Entry::NONE);
            changed.insert(region);
        }
    }
}

/// Counts a change of an entry in the number of regions and their bytes.
fn count((regions, stored): &mut (u32, u64), before: Option<Entry>, now: Entry) {
    if let Some(before) = before {
        *regions -= 1;
        *stored -= u64::from(before.length);
    }
    if now.is_there() {
        *regions += 1;
        *stored += u64::from(now.length);
    }
}
