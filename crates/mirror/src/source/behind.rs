//! The lag that a source reports: to each of its mirrors, and to its owner.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::sync::Arc;

use cairn_base::{Checksum, FileId, Generation, SnapshotId, Timestamp};
use cairn_format::Role;
use cairn_format::stream::root_digest;
use cairn_volume::{Behind, Snapshot, Volume, VolumeError};

use super::{Heard, Key, KnownMaps, Source, ask};
use crate::error::{MirrorError, Refusal};
use crate::follower::{MirrorAtSource, since_number};
use crate::lag::SourceStatus;
use crate::message::StatusOf;
use crate::offer::SourceVolumes;
use crate::relationship::{PeerName, name_in, prefix, split};
use crate::relay::{add_lag, shown};
use crate::route::Route;

impl Source {
    /// Answers a destination's request for its lag.
    pub(super) fn status<S: Read + Write + ?Sized>(
        &self,
        stream: &mut S,
        volume: &Arc<Volume>,
        asked: &StatusOf,
        peer: &PeerName,
    ) -> Result<Result<SourceStatus, Refusal>, MirrorError> {
        let prefix = prefix(peer, asked.relationship);
        let follows = self.followers.lock().contains_key(&(volume.id(), prefix.clone()));
        if follows {
            self.hear(volume, &prefix, &Heard { rpo_ms: Some(asked.rpo_ms), ..Heard::default() });
        }
        let entries = volume.snapshot_entries();
        let base =
            entries.iter().find(|entry| entry.id == asked.base && root_digest(entry) == asked.base_root);
        let known = match volume.since_files(since_number(name_in(&prefix))) {
            Some(files) if base.is_none() && asked.base.0 != 0 => Some(ask(stream, files)?),
            _ => None,
        };
        // If since maps may be among the unreadable inodes, the lag of its image is unknown.
        let knows = !matches!(volume.status().latched, Some(VolumeError::InodesLost(_)));
        if follows && knows && asked.base.0 != 0 && volume.status_role() == Role::Normal {
            let began = known.filter(|known| known.began.file.is_some()).map(|known| known.began);
            let shows = base.map(|base| (base.root.generation, base.root.changed));
            let shows = shows.or(began.map(|began| (began.generation, began.changed)));
            self.note_shown(volume, &prefix, shows, began.and_then(|began| began.file));
        }
        Ok(status_of(volume, &prefix, asked.base, Some(asked.base_root), known))
    }

    /// Records the image that a mirror reports to show; `None` if it is unknown here.
    fn note_shown(
        &self,
        volume: &Volume,
        prefix: &str,
        shows: Option<(Generation, Timestamp)>,
        began: Option<FileId>,
    ) {
        if let Some(follower) = self.followers.lock().get_mut(&(volume.id(), prefix.to_owned())) {
            follower.strayed = shows.is_none();
            if shows.is_some() && (began.is_some() || follower.base != shows) {
                (follower.base, follower.began) = (shows, began);
            }
        }
    }

    /// The mirrors of a volume: those known from their sessions, and those with held snapshots.
    /// Also state without a name, which is kept for mirrors that are unknown here.
    pub fn mirrors(&self, volume: &Arc<Volume>) -> Result<Vec<MirrorAtSource>, VolumeError> {
        let mut by_prefix: BTreeMap<String, Vec<Snapshot>> = BTreeMap::new();
        // A destination has those that its source keeps for its mirrors: they are nothing of this
        // side's.
        let all = if volume.status_role() == Role::Normal { volume.snapshots() } else { Vec::new() };
        for snapshot in &all {
            if let Some((prefix, _)) = split(&snapshot.name) {
                by_prefix.entry(prefix.to_owned()).or_default().push(snapshot.clone());
            }
        }
        let followers = self.followers.lock().clone();
        // Mirrors from its time as a source may be its source now.
        let relays = volume.status_role() != Role::Normal;
        for ((_, prefix), follower) in followers.iter().filter(|((id, _), _)| *id == volume.id()) {
            if !relays || !follower.relayed.is_empty() {
                by_prefix.entry(prefix.clone()).or_default();
            }
        }
        let transferring: BTreeSet<Key> = self.sessions.lock().keys().cloned().collect();
        let mut mirrors = Vec::new();
        for (prefix, own) in by_prefix {
            let key = (volume.id(), prefix.clone());
            let follower = followers.get(&key).cloned();
            let has = follower.as_ref().and_then(|follower| follower.base);
            let is_it = |snapshot: &&Snapshot| Some((snapshot.generation, snapshot.root.changed)) == has;
            let relayed = follower.iter().flat_map(|follower| follower.relayed.iter().copied()).min();
            // The one that it has; otherwise the oldest: a newer one is being transferred.
            let held = (own.iter().find(|snapshot| snapshot.held && is_it(snapshot)))
                .or_else(|| own.iter().find(|snapshot| snapshot.held))
                .cloned()
                .or_else(|| volume.snapshot(relayed?));
            // The snapshot kept for it may be newer than its image.
            let shown = match has {
                Some(_) if !relays => all.iter().find(is_it),
                _ => held.as_ref(),
            };
            let number = since_number(name_in(&prefix));
            let strayed = follower.as_ref().is_some_and(|follower| follower.strayed);
            let behind = match (shown, volume.since_files(number), has) {
                _ if strayed => None,
                (Some(base), _, _) => Some(volume.changed_since_snapshot(base.id)?),
                (None, Some(files), Some(base)) => {
                    let began = follower.as_ref().and_then(|follower| follower.began);
                    let began = began.filter(|file| *file == files.accumulating);
                    // If that is unknown, or gone, at least the blocks that it still has to get.
                    let file = began.or(files.in_flight).unwrap_or(files.accumulating);
                    known_by_map(volume, number, file, Some(base))?
                }
                _ => None,
            };
            let name = name_in(&prefix).to_owned();
            let transferring = transferring.contains(&key);
            mirrors.push(MirrorAtSource { name, base: held, behind, transferring, follower });
        }
        // Those of a destination are of the mirrors of its source.
        if !relays {
            let known: BTreeSet<u64> = mirrors.iter().map(|mirror| since_number(&mirror.name)).collect();
            let unknown = volume.since_relationships().into_iter().map(|kept| kept.relationship);
            mirrors.extend(unknown.filter(|number| !known.contains(number)).map(MirrorAtSource::nobody));
        }
        Ok(mirrors)
    }
}

/// The lag of a mirror, including that of the volume itself if it is a destination, and the route
/// of its image. A volume without contact to its own source may lack all changes there since its
/// image.
pub(super) fn whole_lag(
    status: SourceStatus,
    volumes: &dyn SourceVolumes,
    (volume, name): (&Arc<Volume>, &str),
) -> SourceStatus {
    let status = SourceStatus { route: volumes.route(name), ..status };
    match (volumes.upstream_lag(name), shown(volume)) {
        (Some(lag), _) => add_lag(status, lag),
        (None, Some(image)) => {
            let first = status.first_change.map_or(image.created, |first| first.min(image.created));
            SourceStatus { first_change: Some(first), ..status }
        }
        (None, None) => status,
    }
}

/// The changes since a since map began; `None` if the map cannot be read, and so was given up.
fn known_by_map(
    volume: &Arc<Volume>,
    number: u64,
    file: FileId,
    base: Option<(Generation, Timestamp)>,
) -> Result<Option<Behind>, VolumeError> {
    match volume.changed_since_beginning(number, file, base) {
        Err(_) if volume.since_files(number).is_none() => Ok(None),
        behind => behind.map(Some),
    }
}

/// The source's status, with the lag of a destination that has `base`; `root` must be the base's if
/// it is given. If the base is not here, a since map that began at it gives the same result.
pub(crate) fn status_of(
    volume: &Arc<Volume>,
    prefix: &str,
    base: SnapshotId,
    root: Option<Checksum>,
    known: Option<KnownMaps>,
) -> Result<SourceStatus, Refusal> {
    let status = volume.status();
    let refused = |error: VolumeError| Refusal::from(&error);
    let entry = volume
        .snapshot_entries()
        .into_iter()
        .find(|entry| entry.id == base && root.is_none_or(|root| root == root_digest(entry)));
    let began = known.and_then(|known| Some((known.began.file?, known.began)));
    let (behind, taken) = match (&entry, began) {
        (Some(entry), _) => {
            let behind = volume.changed_since_snapshot(entry.id).map_err(refused)?;
            (Some(behind), Some(entry.root.created))
        }
        (None, Some((file, began))) => {
            let number = since_number(name_in(prefix));
            let base = Some((began.generation, began.changed));
            let behind = known_by_map(volume, number, file, base).map_err(refused)?;
            (behind, behind.map(|_| began.changed))
        }
        (None, None) => (None, None),
    };
    Ok(SourceStatus {
        // The moment that the first change was counted back from.
        now: behind.map_or_else(|| volume.clock().now(), |behind| behind.now),
        blocks: status.blocks,
        used: status.used,
        base,
        base_taken: taken,
        first_change: behind.and_then(|behind| behind.first_change),
        blocks_behind: behind.map_or(status.active + status.dirty, |behind| behind.blocks),
        route: Route::default(),
    })
}
