//! The source's side: answers destinations, and keeps for each what its next update needs: one held base snapshot, and a since map for
//! when there is none (deleted, or not wanted). The older base goes when the destination has the newer one.
//!
//! A since map is acknowledged by the *next* update, which asks the destination which map began at its image: so there is no bookkeeping behind a commit, and a
//! confirmation that was lost costs nothing.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cairn_base::{Checksum, FileId, Generation, SnapshotId, Timestamp, Vbn, VolumeId};
use cairn_format::Role;
use cairn_format::stream::root_digest;
use cairn_stream::{
    AbortReason, Gauge, Have, MIRROR_PREFIX, Plan, Progress, StreamError, Work, abort, produce_gauged,
};
use cairn_volume::{KeepsFresh, SinceFiles, Snapshot, Volume, VolumeError};

use crate::access;
use crate::copies;
use crate::error::{MirrorError, Refusal};
use crate::follower::{Follower, peer_of, since_number};
use crate::lag::SourceStatus;
use crate::locks::Mutex;
use crate::message::{Answer, Began, PROTOCOL_VERSION, Request, Stance, Update};
use crate::offer::SourceVolumes;
use crate::relationship::{PeerName, Relationship, name_in, prefix, split};
use crate::relay::refuse_circle;
use crate::roles::{Departure, handed_over, keep_for_spill};
use crate::wire::{Frame, read_frame, write_frame};

mod behind;
mod places;

pub use places::held_by_peer;
mod same;
pub(crate) use behind::status_of;
use behind::whole_lag;
use same::is_same_table;

/// A volume, and how the names of a mirror's snapshots begin.
pub(crate) type Key = (VolumeId, String);

/// A transfer of less may be in the buffers of sockets as a whole before a byte arrives.
const BUFFERED: u64 = 16 << 20;
/// Mirrors of a volume that are known of one peer: past it, failovers of further ones of which nothing is kept here are not noted.
const UNKNOWN_DEPARTED_MAX: usize = 64;
/// Claims that are compared in one walk of the pointers: 96 MiB of them.
const CLAIMS_AT_ONCE: usize = 1 << 22;

/// What a source knows of its mirrors' sessions; one for a server. What must survive a restart is in the names of held snapshots.
#[derive(Default)]
pub struct Source {
    /// The session that each mirror has now; an earlier one is told to end.
    sessions: Mutex<HashMap<Key, Arc<AtomicBool>>>,
    /// One at a time makes and deletes the base snapshots of a volume ([`Source::house`]): that may wait for its device, and the mirrors of other volumes have nothing to do with that. Taken before the
    /// others, of several volumes in the order of their ids.
    housekeeping: Mutex<HashMap<VolumeId, Arc<Mutex<()>>>>,
    pub(crate) followers: Mutex<BTreeMap<Key, Follower>>,
    /// Mirrors that were failed over and let go of since, with the time of the failover: what is told of that again is no news.
    let_go_of: Mutex<BTreeMap<Key, Timestamp>>,
    /// Blocks sent to each mirror since it last confirmed an image.
    sent: Mutex<HashMap<Key, u64>>,
    /// There are mirrors that are not known.
    pub(crate) forgets: AtomicBool,
    /// Mirrors that were not heard of since they were recalled: what they have may be newer than what was written down of them. Taken after `followers`.
    pub(crate) recalled: Mutex<BTreeSet<Key>>,
    /// What was measured on the way to each mirror.
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
    /// When the status was found, by the clock that is never set.
    pub(crate) found: Duration,
    /// The next one lets go of what this one leaves.
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

/// What the destination has that the changes are counted from.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Base {
    /// Nothing that is known of.
    Nothing,
    /// Snapshots that both sides have.
    Snapshots,
    /// The beginning of a since map.
    Since(Have),
}

/// What a destination said of the since maps of its relationship, when it was asked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Known {
    files: SinceFiles,
    pub(crate) began: Began,
}

/// What a destination shows whose base is not held, by what this session did: its snapshot is not here any more, and the map that began at it tells what has changed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shows {
    pub(crate) image: SnapshotId,
    pub(crate) known: Known,
}

impl Shows {
    fn of(image: SnapshotId, known: Option<Known>) -> Option<Self> {
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

    /// The same of one that did not know them until now; what it has heard itself meanwhile is newer.
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

    /// What an earlier run knew of mirrors is not known: a destination that they may follow keeps whatever any of them may have as its base ([`Source::relayed`]).
    pub fn remember_not(&self) {
        self.forgets.store(true, Ordering::Release);
    }

    /// The failovers of which mirrors were let go of, to be remembered: volume, name and time of each.
    pub fn forgotten(&self) -> Vec<(VolumeId, String, Timestamp)> {
        let forgotten = self.let_go_of.lock();
        forgotten.iter().map(|((volume, prefix), at)| (*volume, name_in(prefix).to_owned(), *at)).collect()
    }

    /// What [`Source::forgotten`] said in an earlier run.
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

    /// What who makes or deletes base snapshots of a volume has locked.
    pub(crate) fn house(&self, volume: VolumeId) -> Arc<Mutex<()>> {
        self.housekeeping.lock().entry(volume).or_default().clone()
    }

    /// Answers one destination, which the caller has authenticated as `peer`, until it hangs up.
    ///
    /// # Errors
    /// Whatever ended the conversation early. The mirror is then as it was, or the destination has the image and says so next time.
    pub fn serve_session<S: Read + Write + ?Sized>(
        &self,
        stream: &mut S,
        volumes: &dyn SourceVolumes,
        peer: &PeerName,
        work: &mut Work<'_>,
    ) -> Result<(), MirrorError> {
        let mut greeted = false;
        // What is written between the steps of a mirror that follows continuously stays in memory for as long as it talks.
        let mut fresh: Option<KeepsFresh> = None;
        let mut shows = None;
        while let Some(frame) = read_frame(stream)? {
            let request = self.next_request(&frame, greeted)?;
            greeted = true;
            let reply = match request {
                Request::Hello { version } => {
                    answer(stream, &Answer::Hello { version: PROTOCOL_VERSION })?;
                    if version != PROTOCOL_VERSION {
                        return Err(MirrorError::Version { theirs: version, ours: PROTOCOL_VERSION });
                    }
                    continue;
                }
                Request::ProvisionInfo { volume } => volumes.volume(&volume, peer).map(|volume| {
                    let status = volume.status();
                    Answer::Provision {
                        id: status.id,
                        blocks: status.blocks,
                        used: status.used,
                        snapshots: status.snapshots,
                    }
                }),
                Request::Status(of) => match volumes.volume(&of.volume, peer) {
                    Ok(volume) => {
                        let status = self.status(stream, &volume, &of, peer)?;
                        status.map(|status| Answer::Status(whole_lag(status, volumes, (&volume, &of.volume))))
                    }
                    Err(refusal) => Err(refusal),
                },
                Request::Update(update) => {
                    let found = volumes.volume(&update.volume, peer);
                    let volume = match found.and_then(|it| refuse_circle(it, volumes, &update, peer)) {
                        Ok(volume) => volume,
                        Err(refusal) => {
                            answer(stream, &Answer::Refused(refusal))?;
                            continue;
                        }
                    };
                    shows = self.update(stream, &volume, &update, peer, volumes, work)?;
                    if let Some(former) = volumes.former(&update.volume, peer, update.relationship) {
                        self.forget_former(&volume, peer, &former, update.relationship)?;
                    }
                    continue;
                }
                Request::Await(wish) => match volumes.volume(&wish.volume, peer) {
                    Ok(volume) => {
                        if !fresh.as_ref().is_some_and(|kept| Arc::ptr_eq(kept.volume(), &volume)) {
                            fresh = (volume.status_role() == Role::Normal).then(|| volume.keep_fresh());
                        }
                        let prefix = prefix(peer, wish.relationship);
                        if self.followers.lock().contains_key(&(volume.id(), prefix.clone())) {
                            self.hear(&volume, &prefix, &Heard::default());
                        }
                        let awaited = self.awaited(&volume, &wish, shows, peer, volumes);
                        awaited.map(|(due, status)| Answer::Awaited {
                            due,
                            status: whole_lag(status, volumes, (&volume, &wish.volume)),
                        })
                    }
                    Err(refusal) => Err(refusal),
                },
                Request::Copies(asked) => volumes
                    .volume(&asked.volume, peer)
                    .and_then(|volume| copies::answer(&volume, &asked))
                    .map(Answer::Copies),
                Request::Standing(of) => match volumes.volume(&of.volume, peer) {
                    Ok(volume) => self.standing(&volume, &of, peer, volumes).map(Answer::Standing),
                    Err(refusal) => Err(refusal),
                },
                Request::HandOver(wish) => match volumes.volume(&wish.volume, peer) {
                    Ok(volume) => {
                        let target = self.hand_over(&volume, &wish, peer, volumes);
                        target.map(|target| Answer::HandedOver { target })
                    }
                    Err(refusal) => Err(refusal),
                },
                Request::HandOverTogether(wish) => {
                    let targets = self.hand_over_together(&wish, peer, volumes);
                    targets.map(|targets| Answer::HandedOverTogether { targets })
                }
                Request::Farewell { volume, relationship } => match volumes.volume(&volume, peer) {
                    Ok(of) => {
                        let name = name_in(&prefix(peer, relationship)).to_owned();
                        let forget = || self.forget(&of, &name).map_err(|error| Refusal::from(&error));
                        volumes.check_room(&volume).and_then(|()| forget()).map(|()| Answer::Farewell)
                    }
                    Err(refusal) => Err(refusal),
                },
                Request::Access { volume } => access::answer(volumes, &volume, peer),
                Request::Ack { .. } | Request::Nack { .. } | Request::Began(_) | Request::Claims(_) => {
                    return Err(MirrorError::Protocol("it answers what was not asked"));
                }
            };
            answer(stream, &reply.unwrap_or_else(Answer::Refused))?;
        }
        Ok(())
    }

    fn next_request(&self, frame: &Frame, greeted: bool) -> Result<Request, MirrorError> {
        match (Request::parse(frame)?, greeted) {
            (request @ Request::Hello { .. }, _) | (request, true) => Ok(request),
            (_, false) => Err(MirrorError::Protocol("it does not say hello")),
        }
    }

    pub(crate) fn claim(&self, key: Key) -> Claim<'_> {
        let ended = Arc::new(AtomicBool::new(false));
        let before = self.sessions.lock().insert(key.clone(), ended.clone());
        if let Some(before) = before {
            // A destination that comes again has given up its earlier connection, though this side may not have noticed.
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
        let outcome = self.transfer(stream, volume, update, &prefix, &prepared, &claim, volumes, work);
        if !update.hold {
            // The since map has what changed; no snapshot is kept, whether the destination has it now or not.
            self.let_go_of_all(volume, &prefix, &claim)?;
        }
        outcome
    }

    #[expect(clippy::too_many_arguments, reason = "each is another part of one session")]
    fn transfer<S: Read + Write + ?Sized>(
        &self,
        stream: &mut S,
        volume: &Arc<Volume>,
        update: &Update,
        prefix: &str,
        prepared: &Prepared,
        claim: &Claim<'_>,
        volumes: &dyn SourceVolumes,
        work: &mut Work<'_>,
    ) -> Result<Option<Shows>, MirrorError> {
        let (target, key) = (prepared.target.id, &claim.key);
        let number = since_number(name_in(prefix));
        let have = shared(volume, update, target);
        let plan = match prepared.base {
            Base::Since(base) => {
                let is_common = || common(volume, &have).is_ok_and(|common| !common.is_empty());
                match Plan::since(volume, &have, base, number, target) {
                    // Its map can't be read.
                    Err(_) if volume.since_files(number).is_none() => match update.compare || is_common() {
                        true => Plan::new(volume, &have, target),
                        false => Err(StreamError::BaseMissing { base: base.id }),
                    },
                    planned => planned,
                }
            }
            Base::Snapshots | Base::Nothing => Plan::new(volume, &have, target),
        };
        let plan = plan.map_err(MirrorError::from).and_then(|mut plan| {
            leave_out(stream, &mut plan, update)?;
            Ok(plan)
        });
        // Comparing what is here and there may have taken long.
        let status = prepared.by_now(volume).status;
        let plan = match plan {
            Ok(plan) => plan,
            Err(error) => {
                let refusal = match &error {
                    MirrorError::Volume(error) => Refusal::from(error),
                    MirrorError::Refused(refusal) => refusal.clone(),
                    MirrorError::Stream(StreamError::BaseMissing { .. }) => no_common_base(volume),
                    _ => Refusal::SourceFailed,
                };
                answer(stream, &Answer::Refused(refusal))?;
                return Err(error);
            }
        };
        let sent_before = self.sent.lock().get(key).copied().unwrap_or(0);
        let announcement = Answer::Transfer {
            target,
            name: prepared.target.name.clone(),
            full_blocks: volume.status().used,
            left_out: plan.left_out(),
            sent_before,
            in_memory: if prepared.step { plan.fresh_blocks() } else { 0 },
            status,
        };
        answer(stream, &announcement)?;
        let stop = AtomicBool::new(false);
        let (cancel, progress) = (work.cancel, &mut work.progress);
        let mut told = 0;
        let mut tell = |at: Progress| {
            if cancel.load(Ordering::Relaxed) || claim.ended.load(Ordering::Relaxed) {
                stop.store(true, Ordering::Relaxed);
            }
            self.sent.lock().insert(key.clone(), sent_before + at.blocks);
            volumes.sent(&update.volume, at.bytes.saturating_sub(told));
            told = at.bytes;
            progress(at);
        };
        let mut inner = Work { cancel: &stop, progress: &mut tell, threads: work.threads };
        let gauge = self.gauges.lock().entry(key.clone()).or_default().clone();
        let (clock, began) = (volume.clock(), volume.clock().monotonic());
        let produced = produce_gauged(&plan, &mut Writing(stream), update.compression, &gauge, &mut inner);
        drop(plan);
        let sent = match produced {
            Ok(produced) => produced.bytes,
            Err(error) => {
                gauge.broke();
                return Err(give_up(volume, stream, error));
            }
        };
        match read_request(stream).inspect_err(|_| gauge.broke())? {
            Request::Ack { target: acknowledged, keep } if acknowledged == target => {
                gauge.came_through();
                if sent < BUFFERED {
                    // The sockets took it at once: only now it is known how long it was on its way.
                    gauge.sent(sent, clock.monotonic().saturating_sub(began));
                }
                if !prepared.step {
                    self.advance(volume, prefix, &prepared.target, (update.hold, &keep), claim)?;
                }
                let root = &prepared.target.root;
                let confirmed = Some((root.generation, root.changed));
                let files = volume.since_files(number);
                let began = files.map(|files| files.accumulating);
                self.hear(volume, prefix, &Heard { confirmed, began, ..Heard::default() });
                if volume.status_role() != Role::Normal {
                    self.note_relayed(key, &[target]);
                }
                self.sent.lock().remove(key);
                let began = |files: SinceFiles| Known {
                    files,
                    began: Began {
                        file: Some(files.accumulating),
                        generation: root.generation,
                        changed: root.changed,
                    },
                };
                let known = files.map(began);
                let status = status_of(volume, prefix, target, None, known)?;
                answer(stream, &Answer::Status(whole_lag(status, volumes, (volume, &update.volume))))?;
                // A base that is held may have names alone that are new, and then no map begins at it.
                Ok(Shows::of(target, known.filter(|_| !update.hold)))
            }
            Request::Nack { reason } => Err(MirrorError::Nack(reason)),
            _ => Err(MirrorError::Protocol("it does not acknowledge the transfer")),
        }
    }

    /// Decides what to send: a new snapshot, or (the inner error) nothing.
    pub(crate) fn prepare(
        &self,
        volume: &Arc<Volume>,
        update: &Update,
        prefix: &str,
        known: Option<Known>,
        claim: &Claim<'_>,
    ) -> Result<Result<Prepared, SourceStatus>, Refusal> {
        let house = self.house(volume.id());
        let _housekeeping = house.lock();
        claim.check()?;
        let status = volume.status();
        if status.id != update.id {
            return Err(Refusal::WrongVolume { expected: update.id, found: status.id });
        }
        if let Some(reason @ VolumeError::InodesLost(_)) = &status.latched {
            // Since maps may be among what can't be read: without them nothing would seem to be in common.
            return Err(Refusal::from(reason));
        }
        let head = handed_over(volume, prefix);
        let relays = status.role != Role::Normal && head.is_none();
        if relays && volume.own_head().is_some() {
            return Err(Refusal::NotASource);
        }
        if status.blocks > update.blocks {
            return Err(Refusal::DestinationTooSmall { need: status.blocks, have: update.blocks });
        }
        if update.stance == Stance::Follows && update.shown.0 >= volume.numbers().snapshot {
            // It was never made here: this volume was set back to an earlier copy, and what the mirror has may be nowhere else.
            return Err(Refusal::Diverged(update.shown));
        }
        // One that has too many is to let go of some first, as an update does.
        let has_place = || places::refuse_too_many_held(volume, prefix).is_ok();
        if let Some(base) = self.step_base(volume, update, prefix).filter(|_| has_place()) {
            match self.prepare_step(volume, update, prefix, &base) {
                // A snapshot that it would let go of has a clone, or went meanwhile: an update sorts that out.
                Err(refusal) => tracing::debug!(%refusal, "a step of a mirror becomes an update"),
                done => return done,
            }
        }
        let refused = |error: VolumeError| Refusal::from(&error);
        let number = since_number(name_in(prefix));
        let common = common(volume, &shared(volume, update, SnapshotId(u64::MAX)))?;
        if update.stance == Stance::OwnHead && !common.contains(&update.shown) {
            return Err(Refusal::Diverged(update.shown));
        }
        if relays {
            return self.prepare_relayed(volume, update, (&claim.key, prefix), &common);
        }
        if let Some(target) = head {
            return prepare_handed_over(volume, update, prefix, target, &common);
        }
        if update.stance == Stance::GivesUpSpilled {
            keep_for_spill(volume, &common).map_err(refused)?;
        }
        let own = own_snapshots(volume, prefix);
        let held = own.iter().rev().find(|(snapshot, _)| common.contains(&snapshot.id));
        // Two updates at a time are one: the maps are as they were when the destination was asked, or nothing is known of them.
        let known = known.filter(|known| volume.since_files(number) == Some(known.files));
        let mut since = known.filter(|known| known.began.file.is_some() && held.is_none());
        let shown = update.have.iter().find(|have| have.id == update.shown).copied();
        let without_map = || match common.is_empty() {
            false => Ok(Base::Snapshots),
            true if update.have.is_empty() || update.compare => Ok(Base::Nothing),
            true => Err(no_common_base(volume)),
        };
        let mut base = match (held, since, shown) {
            (None, Some(_), Some(shown)) => Base::Since(shown),
            _ => without_map()?,
        };
        // What an interrupted transfer left, and what a lost acknowledgement kept.
        let keep = held.map(|(snapshot, _)| snapshot.id);
        let over = |s: &&Snapshot| Some(s.id) != keep && !update.keeps(s.id);
        let_go(volume, own.iter().map(|(snapshot, _)| snapshot).filter(over)).map_err(refused)?;
        volume.consistency_point().map_err(refused)?;
        let changed = match (held, since) {
            (Some((base, _)), _) => Some(base.root.changed),
            (None, Some(known)) => Some(known.began.changed),
            (None, None) => None,
        };
        let now = volume.status();
        let same = changed == Some(now.changed) && now.dirty == 0 && is_same_table(volume, &update.have);
        if same && !update.stance.gives_up() {
            if !update.hold {
                let_go(volume, held.iter().map(|(snapshot, _)| snapshot)).map_err(refused)?;
            }
            return Ok(Err(status_of(volume, prefix, keep.unwrap_or_default(), None, since)?));
        }
        places::refuse_too_many_held(volume, prefix)?;
        // By the maps as they are: after the snapshot they tell of that.
        let behind = since.map(|since| status_of(volume, prefix, SnapshotId(0), None, Some(since)));
        let mut behind = behind.transpose()?;
        if since.is_some() && volume.since_files(number).is_none() {
            // It can't be read, by the consistency point or now.
            (since, behind, base) = (None, None, without_map()?);
        }
        let counted = volume.clock().monotonic();
        let name = format!("{prefix}{}", own.last().map_or(0, |(_, number)| *number) + 1);
        let same_root = held.is_some_and(|(base, _)| base.root.generation == now.generation);
        let made = if same_root && now.dirty == 0 && update.hold {
            // Only names changed. The map goes on from the base, which has the same root.
            volume.create_snapshot(&name)
        } else {
            // The destination has this base: what was in flight for it has arrived.
            match (held, since) {
                (Some((base, _)), _) if volume.since_files(number).is_some() => {
                    volume.acknowledge_since(number, base.id).map_err(refused)?;
                }
                (None, Some(known)) if known.began.file == Some(known.files.accumulating) => {
                    volume.acknowledge_beginning(number, known.files.accumulating).map_err(refused)?;
                }
                _ => {}
            }
            volume.create_snapshot_since(&name, number)
        };
        let target = match made {
            // Too full for the map. With the base held it is not needed; it goes on from where it began.
            Err(VolumeError::NoSpace) if update.hold && !matches!(base, Base::Since(_)) => {
                volume.create_snapshot(&name)
            }
            other => other,
        };
        let target = target.map_err(refused)?;
        if matches!(base, Base::Since(_)) && volume.since_files(number).is_none_or(|f| f.in_flight.is_none())
        {
            // What the snapshot would have gone on with can't be read.
            let without = without_map();
            if without.is_err() {
                let_go(volume, std::iter::once(&target)).map_err(refused)?;
            }
            base = without?;
        }
        if update.hold {
            volume.hold_snapshot(target.id, true).map_err(refused)?;
        }
        // What the destination has until the transfer is through.
        let status = match behind {
            Some(behind) => behind.after(volume.clock().monotonic().saturating_sub(counted)),
            None => status_of(volume, prefix, keep.unwrap_or_default(), None, None)?,
        };
        let found = volume.clock().monotonic();
        Ok(Ok(Prepared { target, base, status, found, step: false }))
    }

    /// The destination has `target`: every other snapshot of this mirror goes; also `target` when it is not to be held.
    pub(crate) fn advance(
        &self,
        volume: &Arc<Volume>,
        prefix: &str,
        target: &Snapshot,
        (hold, keep): (bool, &[SnapshotId]),
        claim: &Claim<'_>,
    ) -> Result<(), MirrorError> {
        let house = self.house(volume.id());
        let _housekeeping = house.lock();
        claim.check()?;
        if volume.status_role() != Role::Normal {
            // It was handed over, and nothing is changed here any more.
            return Ok(());
        }
        let own = own_snapshots(volume, prefix);
        let over = own
            .iter()
            .map(|(snapshot, _)| snapshot)
            .filter(|s| (s.id < target.id && !keep.contains(&s.id)) || !hold);
        let_go(volume, over)?;
        Ok(())
    }

    fn let_go_of_all(
        &self,
        volume: &Arc<Volume>,
        prefix: &str,
        claim: &Claim<'_>,
    ) -> Result<(), MirrorError> {
        let house = self.house(volume.id());
        let _housekeeping = house.lock();
        claim.check()?;
        if volume.status_role() != Role::Normal {
            return Ok(());
        }
        let own = own_snapshots(volume, prefix);
        let_go(volume, own.iter().map(|(snapshot, _)| snapshot))?;
        Ok(())
    }

    /// What this side had as a mirror of the peer is not needed any more, once the peer has an image of this side.
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

    /// Notes that a mirror was failed over. False when that is no news, or the volume takes no writes here, and so has nothing to lose by it.
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
            // Such a one may be from before a backup that this volume was put back from; many are made up.
            let peer = peer_of(name);
            let told = followers.values().filter(|of| of.volume == volume.id() && of.peer() == peer).count();
            if told >= UNKNOWN_DEPARTED_MAX {
                tracing::debug!(peer, "a failover of a mirror that is not known here is not noted");
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

    /// Notes what a session said of its mirror.
    fn hear(&self, volume: &Arc<Volume>, prefix: &str, heard: &Heard) {
        let now = volume.clock().now();
        let key = (volume.id(), prefix.to_owned());
        self.let_go_of.lock().remove(&key);
        let mut followers = self.followers.lock();
        let follower =
            followers.entry(key).or_insert_with(|| Follower::new(volume.id(), name_in(prefix), now));
        follower.heard = now;
        // Whoever asks for an image or for the lag follows.
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

    /// Forgets a mirror ([`crate::MirrorAtSource::name`]) that will not come again: its snapshots are released and deleted, and its since maps freed.
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
            // What it had here is its source's to delete.
            return Ok(());
        }
        let own = own_snapshots(volume, &prefix);
        let_go(volume, own.iter().map(|(snapshot, _)| snapshot))?;
        volume.delete_since(since_number(name))
    }
}

/// What a session says of its mirror; what it does not say stays.
#[derive(Default)]
struct Heard {
    hold: Option<bool>,
    rpo_ms: Option<Option<u64>>,
    continuous: Option<bool>,
    confirmed: Option<(Generation, Timestamp)>,
    /// The map that began at what it confirmed.
    began: Option<FileId>,
}

pub(crate) fn no_common_base(volume: &Volume) -> Refusal {
    Refusal::NoCommonBase { blocks: volume.status().used }
}

fn read_request<S: Read + ?Sized>(stream: &mut S) -> Result<Request, MirrorError> {
    let gone = MirrorError::from(std::io::Error::from(std::io::ErrorKind::UnexpectedEof));
    Request::parse(&read_frame(stream)?.ok_or(gone)?)
}

/// Asks a destination that has images, but none of whose bases is here, what it knows of the since maps.
fn ask_began<S: Read + Write + ?Sized>(
    stream: &mut S,
    volume: &Arc<Volume>,
    prefix: &str,
    update: &Update,
) -> Result<Option<Known>, MirrorError> {
    let Some(files) = volume.since_files(since_number(name_in(prefix))) else { return Ok(None) };
    let theirs = |snapshot: &Snapshot| update.have.iter().any(|have| have.id == snapshot.id);
    let held = own_snapshots(volume, prefix).iter().any(|(snapshot, _)| theirs(snapshot));
    if held || update.have.is_empty() { Ok(None) } else { ask(stream, files).map(Some) }
}

fn ask<S: Read + Write + ?Sized>(stream: &mut S, files: SinceFiles) -> Result<Known, MirrorError> {
    let SinceFiles { accumulating, in_flight } = files;
    answer(stream, &Answer::AskBegan { accumulating, in_flight })?;
    match read_request(stream)? {
        Request::Began(mut began) => {
            began.file = began.file.filter(|file| *file == accumulating || Some(*file) == in_flight);
            Ok(Known { files, began })
        }
        _ => Err(MirrorError::Protocol("it does not say which map began at its image")),
    }
}

/// Leaves out of a plan what the destination has.
fn leave_out<S: Read + Write + ?Sized>(
    stream: &mut S,
    plan: &mut Plan,
    update: &Update,
) -> Result<(), MirrorError> {
    if update.claims == 0 || plan.blocks() == 0 {
        return Ok(());
    }
    let mut from = Some(Vbn(0));
    plan.leave_out(&mut || {
        let mut claims: Vec<(Vbn, Checksum)> = Vec::new();
        while let Some(next) = from.filter(|_| claims.len() < CLAIMS_AT_ONCE) {
            answer(stream, &Answer::AskClaims { from: next })?;
            let Request::Claims(more) = read_request(stream)? else {
                return Err(MirrorError::Protocol("it does not say what it has"));
            };
            if more.first().is_some_and(|(vbn, _)| *vbn < next) {
                return Err(MirrorError::Protocol("its list of blocks is out of order or too long"));
            }
            from = more.last().map(|(vbn, _)| Vbn(vbn.0 + 1));
            claims.extend(more);
        }
        Ok(claims)
    })
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

/// What is sent to a mirror to which this side has given its role: the last snapshot, and nothing is changed for it.
fn prepare_handed_over(
    volume: &Arc<Volume>,
    update: &Update,
    prefix: &str,
    target: Snapshot,
    common: &[SnapshotId],
) -> Result<Result<Prepared, SourceStatus>, Refusal> {
    let base = match (common.is_empty(), update.have.is_empty() || update.compare) {
        (false, _) => Base::Snapshots,
        (true, true) => Base::Nothing,
        (true, false) => return Err(no_common_base(volume)),
    };
    let newest = common.iter().max().copied().unwrap_or_default();
    let status = status_of(volume, prefix, newest, None, None)?;
    if update.shown == target.id && common.contains(&target.id) {
        return Ok(Err(status));
    }
    let found = volume.clock().monotonic();
    Ok(Ok(Prepared { target, base, status, found, step: false }))
}

/// What a destination has, but for the snapshots up to `target` that it gives up and that are others here: both sides have given the same
/// numbers since they parted. Those that are not here at all stay in the list, so that it hears that they are gone.
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

/// Tells the other side why nothing more comes.
fn give_up<S: Write + ?Sized>(volume: &Volume, stream: &mut S, error: StreamError) -> MirrorError {
    let reason = match &error {
        // It goes back to an instant, or gets a history, or its server ends: nothing is wrong with it.
        StreamError::Volume(_) if volume.is_closed() => Some(AbortReason::Cancelled),
        StreamError::Volume(_) => Some(AbortReason::ReadFailed),
        StreamError::Cancelled => Some(AbortReason::Cancelled),
        StreamError::NoThread(_) => Some(AbortReason::Other),
        _ => None,
    };
    if let Some(reason) = reason {
        // Best effort: the reason it failed is what counts.
        let _ = abort(&mut Writing(stream), reason);
    }
    error.into()
}

/// The snapshots of a mirror with their numbers, oldest first.
pub(crate) fn own_snapshots(volume: &Volume, prefix: &str) -> Vec<(Snapshot, u64)> {
    let numbered = |snapshot: Snapshot| match split(&snapshot.name) {
        Some((own, number)) if own == prefix => Some((snapshot, number)),
        _ => None,
    };
    volume.snapshots().into_iter().filter_map(numbered).collect()
}

/// Releases and deletes snapshots; one of which there is a clone stays until that is gone.
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
