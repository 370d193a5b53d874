//! The names by which a source distinguishes its mirrors.

use std::fmt;

use cairn_stream::MIRROR_PREFIX;

/// One mirror of one volume; chosen at random by the destination when the mirror is made, and kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Relationship(pub u64);

impl fmt::Display for Relationship {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The text can't be part of a snapshot's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a peer's name has 1 to 40 ASCII letters, digits, '_' and '-'")]
pub struct InvalidPeerName;

/// The identity of a destination, as the source's server authenticated it. It is part of the names
/// of the snapshots that are kept for it, so no peer can touch those of another.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PeerName(String);

impl PeerName {
    /// The name, if it can be one.
    pub fn new(name: &str) -> Result<Self, InvalidPeerName> {
        let good = (1..=40).contains(&name.len())
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'));
        if good { Ok(Self(name.to_owned())) } else { Err(InvalidPeerName) }
    }
}

/// How the names of a mirror's snapshots begin.
pub(crate) fn prefix(peer: &PeerName, relationship: Relationship) -> String {
    format!("{MIRROR_PREFIX}{}-{relationship}.", peer.0)
}

/// Peer and relationship in the prefix of a mirror's snapshots.
pub(crate) fn name_in(prefix: &str) -> &str {
    prefix.strip_prefix(MIRROR_PREFIX).unwrap_or(prefix).trim_end_matches('.')
}

/// Splits the name of a mirror's snapshot into its prefix and number.
pub(crate) fn split(name: &str) -> Option<(&str, u64)> {
    let at = name.rfind('.')? + 1;
    let (prefix, number) = name.split_at(at);
    (prefix.starts_with(MIRROR_PREFIX) && prefix.len() > MIRROR_PREFIX.len())
        .then(|| number.parse().ok().map(|number| (prefix, number)))
        .flatten()
}
