//! Cascades: a destination is the source of further mirrors, and serves the image that it shows.
//!
//! It makes no snapshots of its own, as its block space is its source's. The snapshots that it
//! serves, and those that a further mirror has already, are snapshots of that source. So it asks
//! its source to keep those that its own mirrors have as their bases ([`Source::relayed`], in the
//! request for an update and again when that is acknowledged), until they have a newer one. That
//! way each link sends only changes. When the server in the middle is gone, the first source and
//! the last destination have a snapshot in common, and continue without it.
//!
//! The lag of a further mirror is counted to the first source: it lacks every change that the
//! server in the middle lacks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cairn_base::{BLOCK_SIZE, SnapshotId, Timestamp};
use cairn_format::Role;
use cairn_stream::MIRROR_PREFIX;
use cairn_volume::{Snapshot, Volume};

use crate::error::Refusal;
use crate::follower::Follower;
use crate::lag::{Lag, SourceStatus};
use crate::message::Update;
use crate::offer::SourceVolumes;
use crate::relationship::PeerName;
use crate::source::{Base, Key, Prepared, Source, no_common_base, status_of};

impl Source {
    /// The snapshots of a destination that its own mirrors have as their bases, or are getting; and
    /// the one that it shows, which they may ask for at any moment. Nothing when it has no mirrors.
    pub fn relayed(&self, volume: &Volume) -> Vec<SnapshotId> {
        // A mirror that is getting an image right now is recorded when this is free; a later one
        // gets the image shown by then.
        let id = volume.id();
        let house = self.house(id);
        let _housekeeping = house.lock();
        let mut followers = self.followers.lock();
        self.look_at_recalled(volume, &mut followers);
        let mut kept: BTreeSet<SnapshotId> = followers
            .iter()
            .filter(|((volume_id, _), follower)| *volume_id == id && follower.departed.is_none())
            .flat_map(|(_, follower)| follower.relayed.iter().copied())
            .collect();
        if self.forgets.load(Ordering::Acquire) {
            let images = volume.snapshots().into_iter().filter(|own| own.name.starts_with(MIRROR_PREFIX));
            kept.extend(images.map(|image| image.id));
        }
        if !kept.is_empty() {
            kept.insert(volume.status().cursor.snapshot);
        }
        kept.remove(&SnapshotId(0));
        kept.into_iter().collect()
    }

    /// The saved record of a volume's further mirrors may be older than the snapshots that they
    /// have. So for each mirror that has not reconnected since, every image counts that is here and
    /// no older than its record. Once: no mirror can have a later image before it reports that.
    fn look_at_recalled(&self, volume: &Volume, followers: &mut BTreeMap<Key, Follower>) {
        let id = volume.id();
        let mut recalled = self.recalled.lock();
        for (key, follower) in followers.iter_mut().filter(|((volume_id, _), _)| *volume_id == id) {
            let Some(oldest) = follower.relayed.iter().min().copied().filter(|_| recalled.remove(key)) else {
                continue;
            };
            let images = volume.snapshots().into_iter().filter(|own| own.name.starts_with(MIRROR_PREFIX));
            let newer = images.map(|image| image.id).filter(|image| *image > oldest);
            let all: BTreeSet<SnapshotId> = follower.relayed.iter().copied().chain(newer).collect();
            follower.relayed = all.into_iter().collect();
        }
    }

    /// Notes which snapshots a further mirror has or gets.
    pub(crate) fn note_relayed(&self, key: &Key, snapshots: &[SnapshotId]) {
        if let Some(follower) = self.followers.lock().get_mut(key) {
            follower.relayed = snapshots.to_vec();
            self.recalled.lock().remove(key);
        }
    }

    /// The image that a destination sends to its own mirrors: the one that it shows.
    pub(crate) fn prepare_relayed(
        &self,
        volume: &Arc<Volume>,
        update: &Update,
        (key, prefix): (&Key, &str),
        common: &[SnapshotId],
    ) -> Result<Result<Prepared, SourceStatus>, Refusal> {
        let shown = shown(volume).ok_or(Refusal::NotASource)?;
        let newest = common.iter().max().copied().unwrap_or_default();
        let status = status_of(volume, prefix, newest, None, None)?;
        if update.shown == shown.id && common.contains(&shown.id) {
            self.note_relayed(key, &[shown.id]);
            return Ok(Err(status));
        }
        let base = match (common.is_empty(), update.have.is_empty() || update.compare) {
            (false, _) => Base::Snapshots,
            (true, true) => Base::Nothing,
            (true, false) => return Err(no_common_base(volume)),
        };
        let kept: Vec<SnapshotId> = [newest, shown.id].into_iter().filter(|id| id.0 != 0).collect();
        self.note_relayed(key, &kept);
        let found = volume.clock().monotonic();
        Ok(Ok(Prepared { target: shown, base, status, found, step: false }))
    }
}

impl Source {
    /// A mirror has given this side the role of the source: its earlier report of a failover no
    /// longer applies, and it follows.
    pub fn returned(&self, volume: &Volume, name: &str) {
        let key = (volume.id(), format!("{MIRROR_PREFIX}{name}."));
        if let Some(follower) = self.followers.lock().get_mut(&key) {
            follower.departed = None;
        }
    }
}

/// Refuses when a volume follows the very mirror that requests an image of it, and has only what
/// that mirror sent. One of the two should have changed its role, or was restored from an earlier
/// copy. Images in a circle would hide that no side takes writes. An image that was written here
/// and handed over is sent to that mirror.
pub(crate) fn refuse_circle(
    volume: Arc<Volume>,
    volumes: &dyn SourceVolumes,
    update: &Update,
    peer: &PeerName,
) -> Result<Arc<Volume>, Refusal> {
    let follows = volume.status_role() == Role::Destination && volume.own_head().is_none();
    match follows && volumes.former(&update.volume, peer, update.relationship).is_some() {
        true => Err(Refusal::Circle),
        false => Ok(volume),
    }
}

/// The image that a destination received and shows: not its own writes.
pub(crate) fn shown(volume: &Arc<Volume>) -> Option<Snapshot> {
    let status = volume.status();
    let follows = status.role == Role::Destination && volume.own_head().is_none();
    volume.snapshot(status.cursor.snapshot).filter(|_| follows)
}

/// The lag of a further mirror: the changes that its source has and it lacks, plus those that its
/// source lacks.
pub(crate) fn add_lag(status: SourceStatus, upstream: Lag) -> SourceStatus {
    let age = u64::try_from(upstream.age.as_nanos()).unwrap_or(u64::MAX);
    let first = (age > 0).then(|| Timestamp(status.now.0.saturating_sub(age)));
    let first_change = match (status.first_change, first) {
        (Some(here), Some(there)) => Some(here.min(there)),
        (here, there) => here.or(there),
    };
    let blocks = upstream.bytes / BLOCK_SIZE as u64;
    SourceStatus { first_change, blocks_behind: status.blocks_behind.saturating_add(blocks), ..status }
}
