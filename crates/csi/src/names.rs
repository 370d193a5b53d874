//! Names: those of CSI, which may be any text, and those of Cairn, which are short.
//!
//! A name of CSI that is a valid name of Cairn is used as it is, after the prefix. Any other name
//! becomes `x-` and a digest of it, so the same request always leads to the same object.

use std::fmt;
use std::net::IpAddr;

use sha2::{Digest, Sha256};

/// The LUN of every volume.
pub const LUN: &str = "disk";
/// Longest name of a volume or a snapshot, with the prefix. Names of Cairn have 64 characters at
/// most; hidden ones begin with [`HIDDEN`] and may get a number. `VOLUME@SNAPSHOT` has 128 at most.
const NAME_MAX: usize = 56;
/// Longest prefix.
pub const PREFIX_MAX: usize = 12;
/// The beginning of the name of a snapshot that is deleted for CSI, before the prefix.
const HIDDEN: &str = "x";
/// Names that are digests.
const DIGEST: &str = "x-";
/// Longest name of CSI, in bytes.
pub const CSI_NAME_MAX: usize = 128;
/// Between the name of a node and its address.
const NODE_SEPARATOR: char = '~';

/// The prefix of all objects of a driver in a server. Two clusters that share a server have
/// different ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prefix(String);

fn is_name(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
}

fn digest(text: &str) -> String {
    Sha256::digest(text.as_bytes())[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Prefix {
    /// A prefix of letters, digits and `-`, which begins with a letter and ends with `-`.
    pub fn new(text: &str) -> Option<Self> {
        let good = (2..=PREFIX_MAX).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && text.starts_with(|first: char| first.is_ascii_alphabetic() && first != 'x')
            && text.ends_with('-');
        good.then(|| Self(text.to_owned()))
    }

    /// The name in Cairn of a volume or a snapshot.
    pub fn name_of(&self, csi: &str) -> String {
        let fits = self.0.len() + csi.len() <= NAME_MAX;
        match fits && !csi.is_empty() && is_name(csi) && !csi.starts_with(DIGEST) {
            true => format!("{}{csi}", self.0),
            false => format!("{}{DIGEST}{}", self.0, digest(csi)),
        }
    }

    /// Whether this driver made the object of that name, and it is not deleted.
    pub fn owns(&self, name: &str) -> bool {
        name.strip_prefix(&self.0).is_some_and(|rest| !rest.is_empty() && is_name(rest))
    }

    /// Whether the snapshot of that name is deleted for CSI.
    pub fn is_hidden(&self, name: &str) -> bool {
        name.strip_prefix(HIDDEN).is_some_and(|rest| rest.starts_with(&self.0))
    }

    /// Names for a snapshot that is deleted for CSI: earlier ones may have the first of them.
    pub fn hidden(&self, name: &str) -> impl Iterator<Item = String> {
        let first = format!("{HIDDEN}{name}");
        std::iter::once(first.clone()).chain((2..100).map(move |number| format!("{first}-{number}")))
    }

    /// The snapshot of the source from which a volume is cloned.
    pub fn for_clone(&self, clone: &str) -> String {
        format!("{HIDDEN}{}c-{}", self.0, digest(clone))
    }

    /// The volume of an id of CSI; none if this driver gave no such id.
    pub fn volume<'a>(&self, id: &'a str) -> Option<&'a str> {
        self.owns(id).then_some(id)
    }

    /// The volume and the snapshot of an id of CSI; none if this driver gave no such id.
    pub fn snapshot<'a>(&self, id: &'a str) -> Option<(&'a str, &'a str)> {
        let (volume, snapshot) = id.split_once('@')?;
        (self.owns(volume) && self.owns(snapshot)).then_some((volume, snapshot))
    }
}

/// The rule of access that admits a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Identity {
    /// NBD from this address.
    Address(IpAddr),
    /// NBD with the certificate of this name or fingerprint, as `cairn export set --nbd cert:`
    /// takes it.
    Certificate(String),
    /// iSCSI with this name of an initiator.
    Initiator(String),
    /// NBD over a unix socket, on the machine of the server.
    Unix,
}

/// A node: its name, and how the server recognizes it. This is the node id of CSI, as text
/// `NAME~nbd=ADDRESS`, `NAME~cert=NAME`, `NAME~iscsi=IQN` or `NAME~unix`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeId {
    /// Its name in the cluster.
    pub name: String,
    /// How the server recognizes it.
    pub identity: Identity,
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{NODE_SEPARATOR}", self.name)?;
        match &self.identity {
            Identity::Address(address) => write!(f, "nbd={address}"),
            Identity::Certificate(name) => write!(f, "cert={name}"),
            Identity::Initiator(name) => write!(f, "iscsi={name}"),
            Identity::Unix => f.write_str("unix"),
        }
    }
}

impl NodeId {
    /// Longest text. Kubernetes takes 192 bytes.
    pub const MAX: usize = 192;

    /// Reads the text of an id; none if no node of this driver has it.
    pub fn parse(text: &str) -> Option<Self> {
        let (name, identity) = text.split_once(NODE_SEPARATOR)?;
        let is_word = |word: &str| {
            !word.is_empty()
                && word.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'|' && byte != b'~')
        };
        if !is_word(name) || text.len() > Self::MAX {
            return None;
        }
        let identity = match identity.split_once('=') {
            None if identity == "unix" => Identity::Unix,
            Some(("nbd", address)) => Identity::Address(address.parse().ok()?),
            Some(("cert", certificate)) if is_word(certificate) => {
                Identity::Certificate(certificate.to_owned())
            }
            Some(("iscsi", initiator)) if is_word(initiator) => Identity::Initiator(initiator.to_owned()),
            _ => return None,
        };
        Some(Self { name: name.to_owned(), identity })
    }
}

/// The holder of a volume, as the driver stores it in the server: `VOLUME|NODE`. A clone has a copy
/// of the settings of its origin, and so a holder of another volume, which does not count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The volume that it holds.
    pub volume: String,
    /// The node.
    pub node: NodeId,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}|{}", self.volume, self.node)
    }
}

impl Holder {
    /// Reads the holder of `volume`; none if there is none, or if it is that of another volume.
    pub fn of(volume: &str, text: &str) -> Option<Self> {
        let (of, node) = text.split_once('|')?;
        let node = NodeId::parse(node)?;
        (of == volume).then(|| Self { volume: of.to_owned(), node })
    }
}

/// The place in a list, as a token of CSI: the last entry that was sent.
pub fn token_after(id: &str) -> String {
    format!("after:{id}")
}

/// The entry of such a token.
pub fn parse_token(token: &str) -> Option<&str> {
    token.strip_prefix("after:").filter(|id| !id.is_empty())
}
