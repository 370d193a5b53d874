//! How many mirrors and held snapshots one peer has at a source: it could fill the volume with
//! them.

use std::collections::BTreeSet;

use cairn_volume::Volume;

use super::{Key, Source};
use crate::error::Refusal;
use crate::follower::{held_by_peer, peer_of};
use crate::limits::{HELD_PER_PEER, MIRRORS_PER_PEER};
use crate::relationship::{name_in, split};

/// The prefixes of a peer's mirrors in the names of snapshots, one for each snapshot.
fn held<'a>(names: &'a [String], peer: &str) -> Vec<&'a str> {
    let prefixes = names.iter().filter_map(|name| split(name)).map(|(prefix, _)| prefix);
    prefixes.filter(|prefix| peer_of(name_in(prefix)) == peer).collect()
}

impl Source {
    /// Refuses a further mirror of a peer that has as many as it can have.
    ///
    /// # Errors
    /// [`Refusal::TooMany`].
    pub(super) fn refuse_too_many(&self, volume: &Volume, key: &Key) -> Result<(), Refusal> {
        let names: Vec<String> = volume.snapshots().into_iter().map(|snapshot| snapshot.name).collect();
        let peer = peer_of(name_in(&key.1));
        let followers = self.followers.lock();
        let known = followers.keys().filter(|(id, prefix)| *id == key.0 && peer_of(name_in(prefix)) == peer);
        let mut mirrors: BTreeSet<&str> = known.map(|(_, prefix)| prefix.as_str()).collect();
        mirrors.extend(held(&names, peer));
        let is_further = !mirrors.contains(key.1.as_str());
        if is_further && mirrors.len() >= MIRRORS_PER_PEER { Err(Refusal::TooMany) } else { Ok(()) }
    }
}

/// Refuses a further snapshot that would be held for a peer.
///
/// # Errors
/// [`Refusal::TooMany`].
pub(super) fn refuse_too_many_held(volume: &Volume, prefix: &str) -> Result<(), Refusal> {
    let names: Vec<String> = volume.snapshots().into_iter().map(|snapshot| snapshot.name).collect();
    let held = held_by_peer(&names).get(peer_of(name_in(prefix))).copied();
    if held.unwrap_or_default() >= HELD_PER_PEER { Err(Refusal::TooMany) } else { Ok(()) }
}
