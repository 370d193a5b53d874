//! The source's side: answers destinations, and keeps for each the base of its next update: one
//! held base snapshot, and a since map for the case that there is none (deleted, or not wanted).
//! The older base is released when the destination has the newer one.
//!
//! The *next* update acknowledges a since map: it asks the destination which map began at its
//! image. So no bookkeeping is needed after a commit, and a lost confirmation costs nothing.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cairn_base::{Checksum, FileId, Generation, SnapshotId, Timestamp, VolumeId};
use cairn_format::Role;
use cairn_format::stream::root_digest;
use cairn_stream::{Gauge, Have, MIRROR_PREFIX, Work};
use cairn_volume::{SinceFiles, Snapshot, Volume, VolumeError};

use crate::error::{MirrorError, Refusal};
use crate::follower::{Follower, peer_of, since_number};
use crate::handover::Departure;
use crate::lag::SourceStatus;
use crate::locks::Mutex;
use crate::message::{Answer, Began, Request, Update};
use crate::offer::SourceVolumes;
use crate::relationship::{PeerName, Relationship, name_in, prefix, split};
use crate::wire::{read_frame, write_frame};

mod behind;
mod places;
mod prepare;
mod same;
mod serving;
mod transfer;

pub(crate) use behind::status_of;
use behind::whole_lag;
use transfer::Transfer;

/// A volume, and how the names of a mirror's snapshots begin.
pub(crate) type Key = (VolumeId, String);

/// The maximum number of known mirrors of a volume for one peer: beyond it, failovers of further
/// ones without state here are ignored.
const UNKNOWN_DEPARTED_MAX: usize = 64;

/// A source's state of its mirrors' sessions; one for a server. State that must survive a restart
/// is in the names of held snapshots.
#[derive(Default)]
pub struct Source {
    /// The current session of each mirror; an earlier one is cancelled.
    sessions: Mutex<HashMap<Key, Arc<AtomicBool>>>,
    /// One at a time makes and deletes the base snapshots of a volume ([`Source::house`]): that may
    /// wait for its device, and the mirrors of other volumes have nothing to do with that. Taken
    /// before the others, of several volumes in the order of their ids.
    housekeeping: Mutex<HashMap<VolumeId, Arc<Mutex<()>>>>,
    pub(crate) followers: Mutex<BTreeMap<Key, Follower>>,
    /// Mirrors that were failed over and forgotten since, with the time of the failover: another
    /// report of it is ignored.
    let_go_of: Mutex<BTreeMap<Key, Timestamp>>,
    /// Blocks sent to each mirror since it last confirmed an image.
    sent: Mutex<HashMap<Key, u64>>,
    /// There are mirrors that are not known.
    pub(crate) forgets: AtomicBool,
    /// Recalled mirrors that have not reconnected: they may have newer snapshots than recorded.
    /// Locked after `followers`.
    pub(crate) recalled: Mutex<BTreeSet<Key>>,
    /// Measurements of the link to each mirror.
    gauges: Mutex<HashMap<Key, Arc<Gauge>>>,
}

/// A session's hold on its mirror, until it ends or a later one takes over.
pub(crate) struct Claim<'a> {
    source: &'a Source,
    key: Key,
    ended: Arc<AtomicBool>,
}

impl Claim<'_> {
    fn check(&self) -> Result<(), Refusal> {
        if self.ended.load(Ordering::Acquire) { Err(Refusal::Superseded) } else { Ok(()) }
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut sessions = self.source.sessions.lock();
        if sessions.get(&self.key).is_some_and(|current| Arc::ptr_eq(current, &self.ended)) {
            sessions.remove(&self.key);
        }
    }
}

/// A transfer that was announced.
pub(crate) struct Prepared {
    pub(crate) target: Snapshot,
    pub(crate) base: Base,
    pub(crate) status: SourceStatus,
    /// When the status was found, by the monotonic clock.
    pub(crate) found: Duration,
    /// The next one releases the snapshots that this one leaves.
    pub(crate) step: bool,
}

impl Prepared {
    /// The same, with a lag that has grown by the time that has passed since it was found.
    fn by_now(&self, volume: &Volume) -> Self {
        let now = volume.clock().monotonic();
        let status = self.status.after(now.saturating_sub(self.found));
        Self { target: self.target.clone(), status, found: now, ..*self }
    }
}

/// The destination's base that the changes are counted from.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Base {
    /// No known base.
    Nothing,
    /// Snapshots that both sides have.
    Snapshots,
    /// The beginning of a since map.
    Since(Have),
}

/// A destination's answer about the since maps of its relationship.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KnownMaps {
    files: SinceFiles,
    pub(crate) began: Began,
}

/// The image of a destination whose base is not held, as this session found it. Its snapshot is not
/// here any more, and the map that began at it has the changes since.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shows {
    pub(crate) image: SnapshotId,
    pub(crate) known: KnownMaps,
}

impl Shows {
    fn of(image: SnapshotId, known: Option<KnownMaps>) -> Option<Self> {
        known.filter(|known| known.began.file.is_some()).map(|known| Self { image, known })
    }
}

impl Source {
    /// A source without sessions.
    pub fn new() -> Self {
        Self::default()
    }

    /// A source that remembers mirrors which an earlier run of the program knew.
    pub fn remembering(followers: Vec<Follower>) -> Self {
        let source = Self::default();
        source.remember(followers);
        source
    }

    /// The same for a server that did not know them until now; its own newer knowledge wins.
    pub fn remember(&self, followers: Vec<Follower>) {
        let mut known = self.followers.lock();
        for follower in followers {
            let key = (follower.volume, format!("{MIRROR_PREFIX}{}.", follower.name));
            if let Entry::Vacant(unknown) = known.entry(key) {
                self.recalled.lock().insert(unknown.key().clone());
                unknown.insert(follower);
            }
        }
        self.forgets.store(false, Ordering::Release);
    }

    /// The mirrors known to an earlier run are lost: a destination that they may follow keeps every
    /// snapshot that could be the base of one of them ([`Source::relayed`]).
    pub fn remember_not(&self) {
        self.forgets.store(true, Ordering::Release);
    }

    /// The failovers of forgotten mirrors, to be saved: volume, name and time of each.
    pub fn forgotten(&self) -> Vec<(VolumeId, String, Timestamp)> {
        let forgotten = self.let_go_of.lock();
        forgotten.iter().map(|((volume, prefix), at)| (*volume, name_in(prefix).to_owned(), *at)).collect()
    }

    /// Restores the value of [`Source::forgotten`] from an earlier run.
    pub fn remember_forgotten(&self, forgotten: Vec<(VolumeId, String, Timestamp)>) {
        let mut known = self.let_go_of.lock();
        for (volume, name, at) in forgotten {
            known.entry((volume, format!("{MIRROR_PREFIX}{name}."))).or_insert(at);
        }
    }

    /// The mirrors that are known, to be remembered.
    pub fn followers(&self) -> Vec<Follower> {
        self.followers.lock().values().cloned().collect()
    }

    /// The lock for making and deleting base snapshots of a volume.
    pub(crate) fn house(&self, volume: VolumeId) -> Arc<Mutex<()>> {
        self.housekeeping.lock().entry(volume).or_default().clone()
    }

    pub(crate) fn claim(&self, key: Key) -> Claim<'_> {
        let ended = Arc::new(AtomicBool::new(false));
        let before = self.sessions.lock().insert(key.clone(), ended.clone());
        if let Some(before) = before {
            // A destination that comes again has given up its earlier connection, though this side
            // may not have noticed.
            before.store(true, Ordering::Release);
        }
        Claim { source: self, key, ended }
    }

    fn update<S: Read + Write + ?Sized>(
        &self,
        stream: &mut S,
        volume: &Arc<Volume>,
        update: &Update,
        peer: &PeerName,
        volumes: &dyn SourceVolumes,
        work: &mut Work<'_>,
    ) -> Result<Option<Shows>, MirrorError> {
        let prefix = prefix(peer, update.relationship);
        let key = (volume.id(), prefix.clone());
        let claim = self.claim(key.clone());
        let hears = Heard {
            hold: Some(update.hold),
            rpo_ms: Some(update.rpo_ms),
            continuous: Some(update.step),
            ..Heard::default()
        };
        let is_known = self.followers.lock().contains_key(&key);
        if let Err(refusal) = self.refuse_too_many(volume, &key) {
            answer(stream, &Answer::Refused(volumes.in_words(refusal.clone())))?;
            return Err(refusal.into());
        }
        self.hear(volume, &prefix, &hears);
        let known = ask_began(stream, volume, &prefix, update)?;
        let mut prepared = Err(Refusal::Hook);
        let mut prepare = || prepared = self.prepare(volume, update, &prefix, known, &claim);
        // The images of a mirror that follows continuously are as those after a crash.
        let begun = match volume.status_role() {
            Role::Normal if update.step => volumes.check_room(&update.volume).map(|()| prepare()),
            Role::Normal => volumes.around_snapshot(&update.volume, &mut prepare),
            Role::Destination => {
                prepare();
                Ok(())
            }
        };
        let prepared = match begun.and(prepared) {
            Ok(Ok(prepared)) => prepared,
            Ok(Err(status)) => {
                let status = whole_lag(status, volumes, (volume, &update.volume));
                answer(stream, &Answer::UpToDate(status))?;
                return Ok(Shows::of(update.shown, known));
            }
            Err(refusal) => {
                // It has nothing of this side's, and may never come again.
                if !is_known && claim.check().is_ok() {
                    self.followers.lock().remove(&key);
                }
                answer(stream, &Answer::Refused(volumes.in_words(refusal.clone())))?;
                return Err(refusal.into());
            }
        };
        let prepared = prepared.by_now(volume);
        let status = whole_lag(prepared.status, volumes, (volume, &update.volume));
        let prepared = Prepared { status, ..prepared };
        let transfer = Transfer {
            source: self,
            volume,
            update,
            prefix: &prefix,
            prepared: &prepared,
            claim: &claim,
            volumes,
        };
        let outcome = transfer.run(stream, work);
        if !update.hold {
            // The since map has the changes; no snapshot is kept, whether the destination has it
            // now or not.
            self.let_go_of_own(volume, &prefix, &claim, |_| true)?;
        }
        outcome
    }

    /// The destination has `target`: every other snapshot of this mirror is deleted; also `target`
    /// when it is not to be held.
    pub(crate) fn advance(
        &self,
        volume: &Arc<Volume>,
        prefix: &str,
        target: &Snapshot,
        (hold, keep): (bool, &[SnapshotId]),
        claim: &Claim<'_>,
    ) -> Result<(), MirrorError> {
        let is_over =
            |snapshot: &Snapshot| (snapshot.id < target.id && !keep.contains(&snapshot.id)) || !hold;
        self.let_go_of_own(volume, prefix, claim, is_over)
    }

    /// Deletes the obsolete snapshots of a mirror, unless the volume was handed over and nothing
    /// may change here any more.
    fn let_go_of_own(
        &self,
        volume: &Arc<Volume>,
        prefix: &str,
        claim: &Claim<'_>,
        is_over: impl Fn(&Snapshot) -> bool,
    ) -> Result<(), MirrorError> {
        let house = self.house(volume.id());
        let _housekeeping = house.lock();
        claim.check()?;
        if volume.status_role() != Role::Normal {
            return Ok(());
        }
        let own = own_snapshots(volume, prefix);
        let_go(volume, own.iter().map(|(snapshot, _)| snapshot).filter(|snapshot| is_over(snapshot)))?;
        Ok(())
    }

    /// Snapshots that this side had as a mirror of the peer are not needed any more, once the peer
    /// has an image of this side.
    fn forget_former(
        &self,
        volume: &Arc<Volume>,
        peer: &PeerName,
        former: &PeerName,
        relationship: Relationship,
    ) -> Result<(), MirrorError> {
        let house = self.house(volume.id());
        let _housekeeping = house.lock();
        let (now, before) = (prefix(peer, relationship), prefix(former, relationship));
        let follows = own_snapshots(volume, &now).iter().any(|(snapshot, _)| snapshot.held);
        if volume.status_role() != Role::Normal || !follows || now == before {
            return Ok(());
        }
        let own = own_snapshots(volume, &before);
        let_go(volume, own.iter().map(|(snapshot, _)| snapshot))?;
        volume.delete_since(since_number(name_in(&before)))?;
        Ok(())
    }

    /// Records that a mirror was failed over. False when that is already known, or when the volume
    /// takes no writes here, and so has nothing to lose by it.
    pub(crate) fn note_departure(
        &self,
        volume: &Arc<Volume>,
        prefix: &str,
        departure: &Departure,
        volumes: &dyn SourceVolumes,
    ) -> bool {
        if volume.status_role() != Role::Normal {
            return false;
        }
        let key = (volume.id(), prefix.to_owned());
        if self.let_go_of.lock().get(&key) == Some(&departure.at) {
            return false;
        }
        let name = name_in(prefix);
        let is_kept_for =
            !own_snapshots(volume, prefix).is_empty() || volume.since_files(since_number(name)).is_some();
        let mut followers = self.followers.lock();
        let now = volume.clock().now();
        if !is_kept_for && !followers.contains_key(&key) {
            // It may be from before a backup that this volume was restored from; many are invented.
            let peer = peer_of(name);
            let told = followers
                .values()
                .filter(|known| known.volume == volume.id() && known.peer() == peer)
                .count();
            if told >= UNKNOWN_DEPARTED_MAX {
                tracing::debug!(peer, "a failover of an unknown mirror is ignored");
                return false;
            }
        }
        let follower = followers.entry(key).or_insert_with(|| Follower::new(volume.id(), name, now));
        follower.heard = now;
        let address = volumes.reachable(&departure.address);
        match &mut follower.departed {
            Some(known) if known.at == departure.at => {
                known.address = address;
                false
            }
            departed => {
                *departed = Some(Departure { address, ..departure.clone() });
                true
            }
        }
    }

    /// Records a session's report about its mirror.
    fn hear(&self, volume: &Arc<Volume>, prefix: &str, heard: &Heard) {
        let now = volume.clock().now();
        let key = (volume.id(), prefix.to_owned());
        self.let_go_of.lock().remove(&key);
        let mut followers = self.followers.lock();
        let follower =
            followers.entry(key).or_insert_with(|| Follower::new(volume.id(), name_in(prefix), now));
        follower.heard = now;
        // A peer that asks for an image or for the lag follows.
        follower.departed = None;
        follower.rpo = heard.rpo_ms.map_or(follower.rpo, |rpo| rpo.map(Duration::from_millis));
        follower.continuous = heard.continuous.unwrap_or(follower.continuous);
        follower.hold = heard.hold.unwrap_or(follower.hold);
        if heard.confirmed.is_some() {
            follower.strayed = false;
            (follower.base, follower.began) = (heard.confirmed, heard.began);
            follower.updated = Some(now);
        }
    }

    /// Forgets a mirror ([`crate::MirrorAtSource::name`]) that will not come again: its snapshots
    /// are released and deleted, and its since maps freed.
    pub fn forget(&self, volume: &Arc<Volume>, name: &str) -> Result<(), VolumeError> {
        let house = self.house(volume.id());
        let _housekeeping = house.lock();
        let prefix = format!("{MIRROR_PREFIX}{name}.");
        let key = (volume.id(), prefix.clone());
        if let Some(session) = self.sessions.lock().remove(&key) {
            session.store(true, Ordering::Release);
        }
        let departed = self.followers.lock().remove(&key).and_then(|follower| follower.departed);
        if let Some(departure) = departed {
            self.let_go_of.lock().insert(key.clone(), departure.at);
        }
        self.sent.lock().remove(&key);
        if volume.status_role() != Role::Normal {
            // Its source deletes the snapshots that it had here.
            return Ok(());
        }
        let own = own_snapshots(volume, &prefix);
        let_go(volume, own.iter().map(|(snapshot, _)| snapshot))?;
        volume.delete_since(since_number(name))
    }
}

/// A session's report about its mirror; missing parts stay unchanged.
#[derive(Default)]
struct Heard {
    hold: Option<bool>,
    rpo_ms: Option<Option<u64>>,
    continuous: Option<bool>,
    confirmed: Option<(Generation, Timestamp)>,
    /// The map that began at its confirmed image.
    began: Option<FileId>,
}

pub(crate) fn no_common_base(volume: &Volume) -> Refusal {
    Refusal::NoCommonBase { blocks: volume.status().used }
}

fn read_request<S: Read + ?Sized>(stream: &mut S) -> Result<Request, MirrorError> {
    let gone = MirrorError::from(std::io::Error::from(std::io::ErrorKind::UnexpectedEof));
    Request::parse(&read_frame(stream)?.ok_or(gone)?)
}

/// Asks a destination that has images, but no base that is here, for its knowledge of the since
/// maps.
fn ask_began<S: Read + Write + ?Sized>(
    stream: &mut S,
    volume: &Arc<Volume>,
    prefix: &str,
    update: &Update,
) -> Result<Option<KnownMaps>, MirrorError> {
    let Some(files) = volume.since_files(since_number(name_in(prefix))) else { return Ok(None) };
    let theirs = |snapshot: &Snapshot| update.have.iter().any(|have| have.id == snapshot.id);
    let held = own_snapshots(volume, prefix).iter().any(|(snapshot, _)| theirs(snapshot));
    if held || update.have.is_empty() { Ok(None) } else { ask(stream, files).map(Some) }
}

fn ask<S: Read + Write + ?Sized>(stream: &mut S, files: SinceFiles) -> Result<KnownMaps, MirrorError> {
    let SinceFiles { accumulating, in_flight } = files;
    answer(stream, &Answer::AskBegan { accumulating, in_flight })?;
    match read_request(stream)? {
        Request::Began(mut began) => {
            began.file = began.file.filter(|file| *file == accumulating || Some(*file) == in_flight);
            Ok(KnownMaps { files, began })
        }
        _ => Err(MirrorError::Protocol("it does not say which map began at its image")),
    }
}

/// The snapshots that both sides have with the same content.
pub(crate) fn common(volume: &Volume, have: &[Have]) -> Result<Vec<SnapshotId>, Refusal> {
    let theirs: HashMap<SnapshotId, Checksum> = have.iter().map(|have| (have.id, have.root)).collect();
    let mut common = Vec::new();
    for entry in volume.snapshot_entries() {
        match theirs.get(&entry.id) {
            Some(root) if *root == root_digest(&entry) => common.push(entry.id),
            Some(_) => return Err(Refusal::Diverged(entry.id)),
            None => {}
        }
    }
    Ok(common)
}

/// The snapshots of a destination, except those up to `target` that it gives up and that differ
/// here: both sides have assigned the same numbers since they parted. Snapshots that do not exist
/// here at all stay in the list, so that the destination learns that they are gone.
fn shared(volume: &Volume, update: &Update, target: SnapshotId) -> Vec<Have> {
    let mut have = update.have.clone();
    if update.stance.gives_up() {
        let entries = volume.snapshot_entries().into_iter().filter(|entry| entry.id <= target);
        let here: HashMap<SnapshotId, Checksum> =
            entries.map(|entry| (entry.id, root_digest(&entry))).collect();
        have.retain(|have| here.get(&have.id).is_none_or(|root| *root == have.root));
    }
    have
}

/// The snapshots of a mirror with their numbers, oldest first.
pub(crate) fn own_snapshots(volume: &Volume, prefix: &str) -> Vec<(Snapshot, u64)> {
    let numbered = |snapshot: Snapshot| match split(&snapshot.name) {
        Some((own, number)) if own == prefix => Some((snapshot, number)),
        _ => None,
    };
    volume.snapshots().into_iter().filter_map(numbered).collect()
}

/// Releases and deletes snapshots; one with a clone stays until that is gone.
fn let_go<'a>(
    volume: &Arc<Volume>,
    snapshots: impl Iterator<Item = &'a Snapshot>,
) -> Result<(), VolumeError> {
    let (cloned, ids): (Vec<SnapshotId>, Vec<SnapshotId>) =
        snapshots.map(|snapshot| snapshot.id).partition(|id| volume.is_cloned(*id));
    for id in cloned {
        volume.hold_snapshot(id, false)?;
    }
    if !ids.is_empty() {
        volume.let_go_of_snapshots(&ids)?;
    }
    Ok(())
}

fn answer(stream: &mut (impl Write + ?Sized), answer: &Answer) -> Result<(), MirrorError> {
    let (kind, body) = answer.encode();
    write_frame(stream, kind, &body)
}

/// A writer that borrows the stream of a session.
struct Writing<'a, S: Write + ?Sized>(&'a mut S);

impl<S: Write + ?Sized> Write for Writing<'_, S> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}
