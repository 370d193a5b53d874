//! The mirrors of which this server is the source: the remembered state, and their display.
//!
//! The data that a mirror needs is in the volume. `followers.json` has its owner and the owner's
//! settings. A lost entry is learnt again from the next connection of the destination.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cairn_api as api;
use cairn_base::{BLOCK_SIZE, Checksum, Generation, SnapshotId, Timestamp, VolumeId};
use cairn_mirror::{
    Departure, Follower, HELD_PER_PEER, MIRRORS_PER_PEER, MirrorAtSource, Source, held_by_peer,
};
use cairn_volume::Behind;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::error::ServerError;
use crate::state;
use crate::state::Unread;

mod commands;

/// The longest time until the followers are saved again if only the times of their last contacts
/// changed.
const WRITE_EVERY: Duration = Duration::from_secs(600);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct KnownFollower {
    volume: [u8; 16],
    name: String,
    hold: bool,
    continuous: bool,
    rpo_ms: Option<u64>,
    heard_ns: u64,
    base_generation: Option<u64>,
    base_changed_ns: Option<u64>,
    strayed: bool,
    updated_ns: Option<u64>,
    departed: Option<DepartedEntry>,
    relayed: Vec<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct DepartedEntry {
    base: u64,
    root: [u8; 16],
    generation: u64,
    at_ns: u64,
    address: String,
    volume: String,
}

impl From<&Departure> for DepartedEntry {
    fn from(departure: &Departure) -> Self {
        Self {
            base: departure.base.0,
            root: departure.root.0,
            generation: departure.generation.0,
            at_ns: departure.at.0,
            address: departure.address.clone(),
            volume: departure.volume.clone(),
        }
    }
}

impl From<DepartedEntry> for Departure {
    fn from(entry: DepartedEntry) -> Self {
        Self {
            base: SnapshotId(entry.base),
            root: Checksum(entry.root),
            generation: Generation(entry.generation),
            at: Timestamp(entry.at_ns),
            address: entry.address,
            volume: entry.volume,
        }
    }
}

/// A failover of a mirror that was forgotten.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Forgotten {
    volume: [u8; 16],
    name: String,
    at_ns: u64,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct FollowersDocument {
    followers: Vec<KnownFollower>,
    forgotten: Vec<Forgotten>,
}

impl From<&Follower> for KnownFollower {
    fn from(follower: &Follower) -> Self {
        Self {
            volume: follower.volume.0,
            name: follower.name.clone(),
            hold: follower.hold,
            continuous: follower.continuous,
            rpo_ms: follower.rpo.map(|rpo| rpo.as_millis().try_into().unwrap_or(u64::MAX)),
            heard_ns: follower.heard.0,
            base_generation: follower.base.map(|(generation, _)| generation.0),
            base_changed_ns: follower.base.map(|(_, changed)| changed.0),
            strayed: follower.strayed,
            updated_ns: follower.updated.map(|updated| updated.0),
            departed: follower.departed.as_ref().map(DepartedEntry::from),
            relayed: follower.relayed.iter().map(|snapshot| snapshot.0).collect(),
        }
    }
}

impl From<KnownFollower> for Follower {
    fn from(entry: KnownFollower) -> Self {
        let base = entry.base_generation.zip(entry.base_changed_ns);
        Self {
            volume: VolumeId(entry.volume),
            name: entry.name,
            hold: entry.hold,
            continuous: entry.continuous,
            rpo: entry.rpo_ms.map(Duration::from_millis),
            heard: Timestamp(entry.heard_ns),
            base: base.map(|(generation, changed)| (Generation(generation), Timestamp(changed))),
            began: None,
            strayed: entry.strayed,
            updated: entry.updated_ns.map(Timestamp),
            departed: entry.departed.map(Departure::from),
            relayed: entry.relayed.into_iter().map(SnapshotId).collect(),
        }
    }
}

/// `followers.json`.
pub(crate) struct Followers {
    path: PathBuf,
    written: Mutex<FollowersDocument>,
    /// The owners are unknown: nothing that a mirror may need is released, and nothing is saved.
    unread: Mutex<Option<Unread>>,
}

impl Followers {
    /// The file in `dir`, and the source that remembers its content.
    pub(crate) fn open(dir: &Path) -> Result<(Self, Source), ServerError> {
        let path = dir.join("followers.json");
        let source = Source::new();
        let followers = Self { path, written: Mutex::default(), unread: Mutex::default() };
        followers.read(&source);
        Ok((followers, source))
    }

    /// Loads the current content of the file.
    pub(crate) fn read(&self, source: &Source) {
        let (document, unread) = state::known::<FollowersDocument>(&self.path);
        let document = document.unwrap_or_default();
        match &unread {
            Some(_) => source.remember_not(),
            None => source.remember(document.followers.iter().cloned().map(Follower::from).collect()),
        }
        let forgotten = document.forgotten.iter();
        let forgotten = forgotten.map(|one| (VolumeId(one.volume), one.name.clone(), Timestamp(one.at_ns)));
        source.remember_forgotten(forgotten.collect());
        *self.written.lock() = document;
        *self.unread.lock() = unread;
    }

    /// Refuses while the mirrors of this server are not known.
    pub(crate) fn check_known(&self) -> Result<(), ServerError> {
        state::refuse_unread(self.unread.lock().as_ref())
    }

    /// Saves the knowledge of the source, if it has changed enough.
    pub(crate) fn keep(&self, source: &Source) {
        if self.check_known().is_err() {
            return;
        }
        let followers: Vec<KnownFollower> = source.followers().iter().map(KnownFollower::from).collect();
        let forgotten = source.forgotten().into_iter();
        let forgotten = forgotten.map(|(volume, name, at)| Forgotten { volume: volume.0, name, at_ns: at.0 });
        let document = FollowersDocument { followers, forgotten: forgotten.collect() };
        let mut written = self.written.lock();
        let recent = |(old, new): (&KnownFollower, &KnownFollower)| {
            let stale = new.heard_ns.abs_diff(old.heard_ns) > WRITE_EVERY.as_nanos() as u64;
            !stale && *old == KnownFollower { heard_ns: old.heard_ns, ..new.clone() }
        };
        let (old, new) = (&written.followers, &document.followers);
        let same = old.len() == new.len() && old.iter().zip(new).all(recent);
        if same && written.forgotten == document.forgotten {
            return;
        }
        match state::save(&self.path, &document) {
            Ok(()) => *written = document,
            Err(error) => {
                tracing::warn!(%error, "what is known of the mirrors of this server was not written down")
            }
        }
    }
}

fn follower(volume: &str, mirror: &MirrorAtSource, base: Option<String>) -> api::Follower {
    let ms = |at: Timestamp| at.0 / 1_000_000;
    // The first change is reported as a time before the moment of the search for it, whatever the
    // wall clock shows by now.
    let since = |behind: Behind| behind.first_change.map_or(Duration::ZERO, |first| behind.now.since(first));
    let lag = mirror.behind.map(since);
    let known = mirror.follower.as_ref();
    let rpo = known.and_then(|known| known.rpo);
    api::Follower {
        volume: volume.to_owned(),
        name: mirror.name.clone(),
        peer: None,
        base,
        lag_ms: lag.map(|lag| lag.as_millis().try_into().unwrap_or(u64::MAX)),
        lag_bytes: mirror.behind.map(|behind| behind.blocks * BLOCK_SIZE as u64),
        rpo_ms: rpo.map(|rpo| rpo.as_millis().try_into().unwrap_or(u64::MAX)),
        over_rpo: lag.zip(rpo).is_some_and(|(lag, rpo)| lag > rpo),
        heard_ms: known.map(|known| ms(known.heard)),
        updated_ms: known.and_then(|known| known.updated).map(ms),
        transferring: mirror.transferring,
        continuous: known.is_some_and(|known| known.continuous),
        departed: known.and_then(|known| known.departed.as_ref()).map(|departure| api::Departed {
            address: departure.address.clone(),
            volume: departure.volume.clone(),
            generation: departure.generation.0,
            at_ms: ms(departure.at),
            diverged_bytes: mirror.behind.map(|behind| behind.blocks * BLOCK_SIZE as u64),
        }),
    }
}

/// The problems that a peer has nearly as many mirrors of a volume as it can have.
pub(crate) fn crowded(followers: &[api::Follower], leftovers: &[api::Leftover]) -> Vec<api::Problem> {
    let followers = followers.iter().map(|one| (&one.volume, &one.name));
    let leftovers = leftovers.iter().map(|one| (&one.volume, &one.name));
    let mut mirrors: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for (volume, name) in followers.chain(leftovers) {
        let peer = name.rsplit_once('-').map_or(name.as_str(), |(peer, _)| peer);
        mirrors.entry((volume, peer)).or_default().push(name);
    }
    let many = mirrors.into_iter().filter(|(_, names)| names.len() >= MIRRORS_PER_PEER * 3 / 4);
    let problem = |((volume, peer), names): ((&str, &str), Vec<&str>)| api::Problem {
        subject: volume.to_owned(),
        message: format!(
            "the server {peer} has {} mirrors of it, and no more than {MIRRORS_PER_PEER} are kept for one server",
            names.len()
        ),
        next: format!(
            "forget those that are gone for good, such as with `cairn mirror forget {volume} {}`; `cairn status --json` lists them",
            names.first().copied().unwrap_or_default()
        ),
    };
    many.map(problem).collect()
}

/// The problems that a volume holds nearly as many snapshots for one peer as it can hold. `names`
/// are all snapshots of the volume.
pub(crate) fn nearly_too_many_held(volume: &str, names: &[String]) -> Vec<api::Problem> {
    let many = held_by_peer(names).into_iter().filter(|(_, held)| *held >= HELD_PER_PEER * 3 / 4);
    let problem = |(peer, held): (&str, usize)| api::Problem {
        subject: volume.to_owned(),
        message: format!(
            "it holds {held} snapshots for the mirrors of server {peer}; at {HELD_PER_PEER} it refuses their updates"
        ),
        next: format!(
            "update the mirrors on that server, so that old snapshots go; `cairn mirror forget {volume} MIRROR` ends one that will not come again"
        ),
    };
    many.map(problem).collect()
}

#[cfg(test)]
mod tests;
