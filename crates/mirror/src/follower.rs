//! The mirrors of a source's volumes, as their sessions made them known.
//!
//! The state that a mirror needs is in the volume: held snapshots and since maps. This file records
//! which mirror each belongs to and its owner's settings. The server saves it from time to time,
//! and rebuilds lost entries when the destination reconnects.

use std::collections::BTreeMap;
use std::time::Duration;

use cairn_base::{Checksum, FileId, Generation, SnapshotId, Timestamp, VolumeId};
use cairn_volume::{Behind, Snapshot};

use crate::handover::Departure;
use crate::relationship::{name_in, split};

/// A mirror that has asked for an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Follower {
    /// The volume here.
    pub volume: VolumeId,
    /// Peer and relationship, as in the names of its snapshots: `PEER-RELATIONSHIP`.
    pub name: String,
    /// Its base is held here.
    pub hold: bool,
    /// It follows continuously.
    pub continuous: bool,
    /// The maximum lag that its owner wants.
    pub rpo: Option<Duration>,
    /// Its last contact, by this side's clock.
    pub heard: Timestamp,
    /// For the image that it last confirmed, or reported to show: the generation, and the time of
    /// the last change in it.
    pub base: Option<(Generation, Timestamp)>,
    /// The since map that began at it, as far as is known since the start of the program.
    pub began: Option<FileId>,
    /// It has since reported that it shows another image, which is unknown here: for example, it
    /// was reverted to an earlier one. Its lag is unknown.
    pub strayed: bool,
    /// When that was confirmed.
    pub updated: Option<Timestamp>,
    /// It was failed over: it takes writes of its own, and follows no source.
    pub departed: Option<Departure>,
    /// While the volume here is a destination itself: the snapshots that the mirror has as its
    /// base, or gets.
    pub relayed: Vec<SnapshotId>,
}

impl Follower {
    /// A mirror that is new to this source.
    pub(crate) fn new(volume: VolumeId, name: &str, now: Timestamp) -> Self {
        Self {
            volume,
            name: name.to_owned(),
            hold: true,
            continuous: false,
            rpo: None,
            heard: now,
            base: None,
            began: None,
            strayed: false,
            updated: None,
            departed: None,
            relayed: Vec::new(),
        }
    }

    /// The peer: the part of the name before the relationship.
    pub fn peer(&self) -> &str {
        peer_of(&self.name)
    }
}

/// A mirror as its source sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MirrorAtSource {
    /// Peer and relationship, as in the names of its snapshots.
    pub name: String,
    /// The snapshot that the destination has, as far as is known here, while it is here.
    pub base: Option<Snapshot>,
    /// Changes since; `None` when it is unknown what the destination has.
    pub behind: Option<Behind>,
    /// Another snapshot is being transferred.
    pub transferring: bool,
    /// The record from its sessions; `None` since a restart that lost it.
    pub follower: Option<Follower>,
}

impl MirrorAtSource {
    /// The peer.
    pub fn peer(&self) -> &str {
        peer_of(&self.name)
    }

    /// A mirror with since maps and nothing else: its destination is unknown.
    pub(crate) fn nobody(number: u64) -> Self {
        let name = format!("{NOBODY_PREFIX}{number:016x}");
        Self { name, base: None, behind: None, transferring: false, follower: None }
    }
}

/// How the names of mirrors begin of which nothing is known but the number of their since maps. No
/// peer has such a name.
const NOBODY_PREFIX: &str = "unknown.";

/// The peer in a mirror's name.
pub(crate) fn peer_of(name: &str) -> &str {
    name.rsplit_once('-').map_or(name, |(peer, _)| peer)
}

/// Snapshots of a volume that are held for mirrors, counted by peer. `names` are all its snapshots.
pub fn held_by_peer(names: &[String]) -> BTreeMap<&str, usize> {
    let mut held = BTreeMap::new();
    for prefix in names.iter().filter_map(|name| split(name)).map(|(prefix, _)| prefix) {
        *held.entry(peer_of(name_in(prefix))).or_default() += 1;
    }
    held
}

/// The number under which a mirror's since maps are kept. Its destination chose a part of the name
/// and this side the other, so that no peer can touch the maps of another.
pub(crate) fn since_number(name: &str) -> u64 {
    let of_nobody = name.strip_prefix(NOBODY_PREFIX).filter(|digits| digits.len() == 16);
    if let Some(number) = of_nobody.and_then(|digits| u64::from_str_radix(digits, 16).ok()) {
        return number.max(1);
    }
    let Checksum(bytes) = Checksum::of(name.as_bytes());
    let mut raw = [0; 8];
    raw.copy_from_slice(&bytes[..8]);
    u64::from_le_bytes(raw).max(1)
}
