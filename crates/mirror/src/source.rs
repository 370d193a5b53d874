//! The source's side: answers destinations, keeps one held base snapshot for each of them, and lets the older one go.

use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cairn_base::{Checksum, Mutex, SnapshotId, VolumeId};
use cairn_format::Role;
use cairn_format::stream::root_digest;
use cairn_stream::{AbortReason, Have, MIRROR_PREFIX, Plan, Progress, StreamError, Work, abort, produce};
use cairn_volume::{Behind, Snapshot, Volume, VolumeError};

use crate::error::{MirrorError, Refusal};
use crate::lag::SourceStatus;
use crate::message::{Answer, PROTOCOL_VERSION, Request, Update};
use crate::relationship::{PeerName, prefix, split};
use crate::wire::{Frame, read_frame, write_frame};

/// The volumes that a source offers.
pub trait SourceVolumes {
    /// The volume of that name, if this peer may mirror it; [`Refusal::NoSuchVolume`] else.
    fn volume(&self, name: &str, peer: &PeerName) -> Result<Arc<Volume>, Refusal>;
}

/// A mirror as its source sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MirrorAtSource {
    /// Peer and relationship, as in the names of its snapshots.
    pub name: String,
    /// The snapshot that the destination has, as far as is known here.
    pub base: Snapshot,
    /// What changed since.
    pub behind: Behind,
    /// Another snapshot is on its way.
    pub transferring: bool,
}

type Key = (VolumeId, String);

/// What a source knows of its mirrors' sessions; one for a server. What must survive a restart is in the names of held snapshots.
#[derive(Default)]
pub struct Source {
    /// The session that each mirror has now; an earlier one is told to end.
    sessions: Mutex<HashMap<Key, Arc<AtomicBool>>>,
    /// One at a time makes and deletes base snapshots. Taken before `sessions`.
    housekeeping: Mutex<()>,
}

/// A session's hold on its mirror, until it ends or a later one takes over.
struct Claim<'a> {
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
struct Prepared {
    target: Snapshot,
    status: SourceStatus,
}

impl Source {
    /// A source without sessions.
    pub fn new() -> Self {
        Self::default()
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
                Request::Status { volume, base, base_root } => volumes
                    .volume(&volume, peer)
                    .and_then(|volume| status_of(&volume, base, Some(base_root)))
                    .map(Answer::Status),
                Request::Update(update) => {
                    let volume = match volumes.volume(&update.volume, peer) {
                        Ok(volume) => volume,
                        Err(refusal) => {
                            answer(stream, &Answer::Refused(refusal))?;
                            continue;
                        }
                    };
                    self.update(stream, &volume, &update, peer, work)?;
                    continue;
                }
                Request::Ack { .. } | Request::Nack { .. } => {
                    return Err(MirrorError::Protocol("it acknowledges what was not sent"));
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

    fn claim(&self, key: Key) -> Claim<'_> {
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
        work: &mut Work<'_>,
    ) -> Result<(), MirrorError> {
        let prefix = prefix(peer, update.relationship);
        let claim = self.claim((volume.id(), prefix.clone()));
        let prepared = match self.prepare(volume, update, &prefix, &claim) {
            Ok(Ok(prepared)) => prepared,
            Ok(Err(status)) => return answer(stream, &Answer::UpToDate(status)),
            Err(refusal) => {
                answer(stream, &Answer::Refused(refusal.clone()))?;
                return Err(refusal.into());
            }
        };
        let target = prepared.target.id;
        let plan = match Plan::new(volume, &update.have, target) {
            Ok(plan) => plan,
            Err(error) => {
                let refusal = match &error {
                    StreamError::Diverged { snapshot } => Refusal::Diverged(*snapshot),
                    StreamError::Volume(error) => Refusal::from(error),
                    _ => Refusal::SourceFailed,
                };
                answer(stream, &Answer::Refused(refusal))?;
                return Err(error.into());
            }
        };
        let announcement = Answer::Transfer {
            target,
            name: prepared.target.name.clone(),
            full_blocks: volume.status().used,
            status: prepared.status,
        };
        answer(stream, &announcement)?;
        let stop = AtomicBool::new(false);
        let (cancel, progress) = (work.cancel, &mut work.progress);
        let mut tell = |at: Progress| {
            if cancel.load(Ordering::Relaxed) || claim.ended.load(Ordering::Relaxed) {
                stop.store(true, Ordering::Relaxed);
            }
            progress(at);
        };
        let mut inner = Work { cancel: &stop, progress: &mut tell, threads: work.threads };
        let produced = produce(&plan, &mut Writing(stream), update.compression, &mut inner);
        drop(plan);
        if let Err(error) = produced {
            let reason = match &error {
                StreamError::Volume(_) => Some(AbortReason::ReadFailed),
                StreamError::Cancelled => Some(AbortReason::Cancelled),
                _ => None,
            };
            if let Some(reason) = reason {
                // Best effort: the reason it failed is what counts.
                let _ = abort(&mut Writing(stream), reason);
            }
            return Err(error.into());
        }
        let gone = MirrorError::from(std::io::Error::from(std::io::ErrorKind::UnexpectedEof));
        match Request::parse(&read_frame(stream)?.ok_or(gone)?)? {
            Request::Ack { target: acknowledged } if acknowledged == target => {
                self.advance(volume, &prefix, target, &claim)?;
                let status = status_of(volume, target, None)?;
                answer(stream, &Answer::Status(status))
            }
            Request::Nack { reason } => Err(MirrorError::Nack(reason)),
            _ => Err(MirrorError::Protocol("it does not acknowledge the transfer")),
        }
    }

    /// Decides what to send: a new held snapshot, or (the inner error) nothing.
    fn prepare(
        &self,
        volume: &Arc<Volume>,
        update: &Update,
        prefix: &str,
        claim: &Claim<'_>,
    ) -> Result<Result<Prepared, SourceStatus>, Refusal> {
        let _housekeeping = self.housekeeping.lock();
        claim.check()?;
        let status = volume.status();
        if status.id != update.id {
            return Err(Refusal::WrongVolume { expected: update.id, found: status.id });
        }
        if status.role != Role::Normal {
            return Err(Refusal::NotASource);
        }
        if status.blocks > update.blocks {
            return Err(Refusal::DestinationTooSmall { need: status.blocks, have: update.blocks });
        }
        let common = common(volume, &update.have)?;
        if common.is_empty() && !update.have.is_empty() {
            return Err(Refusal::NoCommonBase);
        }
        let refused = |error: VolumeError| Refusal::from(&error);
        let own = own_snapshots(volume, prefix);
        let base = own.iter().rev().find(|(snapshot, _)| common.contains(&snapshot.id));
        // What an interrupted transfer left, and what a lost acknowledgement kept.
        let keep = base.map(|(snapshot, _)| snapshot.id);
        let_go(volume, own.iter().map(|(snapshot, _)| snapshot).filter(|s| Some(s.id) != keep))
            .map_err(refused)?;
        let generation = volume.consistency_point().map_err(refused)?;
        if let Some((base, _)) = base
            && base.generation == generation
            && is_same_table(volume, &update.have)
        {
            return Ok(Err(status_of(volume, base.id, None)?));
        }
        let number = own.last().map_or(0, |(_, number)| *number) + 1;
        let target = volume.create_snapshot(&format!("{prefix}{number}")).map_err(refused)?;
        volume.hold_snapshot(target.id, true).map_err(refused)?;
        // What the destination has until the transfer is through.
        let status = status_of(volume, keep.unwrap_or(SnapshotId(0)), None)?;
        Ok(Ok(Prepared { target, status }))
    }

    /// The destination has `target`: every other snapshot of this mirror goes.
    fn advance(
        &self,
        volume: &Arc<Volume>,
        prefix: &str,
        target: SnapshotId,
        claim: &Claim<'_>,
    ) -> Result<(), MirrorError> {
        let _housekeeping = self.housekeeping.lock();
        claim.check()?;
        let own = own_snapshots(volume, prefix);
        let_go(volume, own.iter().map(|(snapshot, _)| snapshot).filter(|s| s.id < target))?;
        Ok(())
    }

    /// The mirrors of a volume, as their held snapshots tell.
    pub fn mirrors(&self, volume: &Arc<Volume>) -> Result<Vec<MirrorAtSource>, VolumeError> {
        let mut by_prefix: BTreeMap<String, Vec<Snapshot>> = BTreeMap::new();
        for snapshot in volume.snapshots().into_iter().filter(|snapshot| snapshot.held) {
            if let Some((prefix, _)) = split(&snapshot.name) {
                by_prefix.entry(prefix.to_owned()).or_default().push(snapshot);
            }
        }
        let sessions = self.sessions.lock();
        let active = |prefix: &str| sessions.contains_key(&(volume.id(), prefix.to_owned()));
        let found: Vec<_> =
            by_prefix.into_iter().map(|(prefix, own)| (active(&prefix), prefix, own)).collect();
        drop(sessions);
        let mut mirrors = Vec::new();
        for (transferring, prefix, own) in found {
            let Some(base) = own.into_iter().next() else { continue };
            let behind = volume.changed_since_snapshot(base.id)?;
            let name = prefix[MIRROR_PREFIX.len()..].trim_end_matches('.').to_owned();
            mirrors.push(MirrorAtSource { name, base, behind, transferring });
        }
        Ok(mirrors)
    }

    /// Forgets a mirror ([`MirrorAtSource::name`]) that will not come again: its snapshots are released and deleted.
    pub fn forget(&self, volume: &Arc<Volume>, name: &str) -> Result<(), VolumeError> {
        let _housekeeping = self.housekeeping.lock();
        let prefix = format!("{MIRROR_PREFIX}{name}.");
        if let Some(session) = self.sessions.lock().remove(&(volume.id(), prefix.clone())) {
            session.store(true, Ordering::Release);
        }
        let own = own_snapshots(volume, &prefix);
        let_go(volume, own.iter().map(|(snapshot, _)| snapshot))
    }
}

/// The snapshots that both sides have with the same content.
fn common(volume: &Volume, have: &[Have]) -> Result<Vec<SnapshotId>, Refusal> {
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

/// True when the destination has the snapshots of the source under their names. Those of mirrors come and go with
/// updates, so they don't count.
fn is_same_table(volume: &Volume, have: &[Have]) -> bool {
    let entries = volume.snapshot_entries();
    let theirs: HashMap<SnapshotId, Checksum> = have.iter().map(|have| (have.id, have.label)).collect();
    let named_here = entries
        .iter()
        .filter(|entry| !entry.name.starts_with(MIRROR_PREFIX))
        .all(|entry| theirs.get(&entry.id) == Some(&Have::from(entry).label));
    let gone = have
        .iter()
        .filter(|have| !have.mirror)
        .any(|have| entries.binary_search_by_key(&have.id, |entry| entry.id).is_err());
    named_here && !gone
}

/// The snapshots of a mirror with their numbers, oldest first.
fn own_snapshots(volume: &Volume, prefix: &str) -> Vec<(Snapshot, u64)> {
    let numbered = |snapshot: Snapshot| match split(&snapshot.name) {
        Some((own, number)) if own == prefix => Some((snapshot, number)),
        _ => None,
    };
    volume.snapshots().into_iter().filter_map(numbered).collect()
}

/// Releases and deletes snapshots.
fn let_go<'a>(
    volume: &Arc<Volume>,
    snapshots: impl Iterator<Item = &'a Snapshot>,
) -> Result<(), VolumeError> {
    let mut ids = Vec::new();
    for snapshot in snapshots {
        volume.hold_snapshot(snapshot.id, false)?;
        ids.push(snapshot.id);
    }
    if !ids.is_empty() {
        volume.delete_snapshots(&ids)?;
    }
    Ok(())
}

/// What the source says of itself, with the lag of a destination that has `base`; `root` must be the base's if it is given.
fn status_of(
    volume: &Arc<Volume>,
    base: SnapshotId,
    root: Option<Checksum>,
) -> Result<SourceStatus, Refusal> {
    let status = volume.status();
    let known = volume
        .snapshot_entries()
        .into_iter()
        .find(|entry| entry.id == base && root.is_none_or(|root| root == root_digest(entry)));
    let behind = match &known {
        Some(entry) => Some(volume.changed_since_snapshot(entry.id).map_err(|error| Refusal::from(&error))?),
        None => None,
    };
    Ok(SourceStatus {
        now: volume.clock().now(),
        blocks: status.blocks,
        used: status.used,
        base,
        base_taken: known.map(|entry| entry.root.created),
        first_change: behind.and_then(|behind| behind.first_change),
        blocks_behind: behind.map_or(status.active + status.dirty, |behind| behind.blocks),
    })
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
