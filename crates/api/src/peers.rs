//! Objects about peers and invitations.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Invites a destination.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Invite {
    /// The only volume that the peer may mirror; all when not given.
    pub volume: Option<String>,
    /// How long the token can be used for the first time; 15 minutes when not given.
    pub expires_ms: Option<u64>,
    /// This server's mirror address as the peer reaches it; what is configured when not given.
    pub advertise: Option<String>,
    /// The name of the peer's server; the host of its first connection when not given.
    #[serde(default)]
    pub name: Option<String>,
}

/// Renames a peer.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RenamePeer {
    /// The new name.
    pub name: String,
}

/// An invitation.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Invitation {
    /// The one word for `cairn mirror create`; it is a secret, and shown once.
    pub token: String,
    /// Names the invitation, for `cairn peer revoke`.
    pub id: String,
    /// The address in the token.
    pub address: String,
    /// When it expires.
    pub expires_ms: u64,
    /// The only volume that it is good for.
    pub volume: Option<String>,
}

/// A peer, or an invitation that nobody has used yet.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Peer {
    /// For `cairn peer revoke`.
    pub id: String,
    /// The name of its server. Peers with one certificate have one name.
    pub name: String,
    /// `pinned`, `invited` or `expired`.
    pub state: PeerState,
    /// SHA-256 of its certificate, once it came.
    pub fingerprint: Option<String>,
    /// The only volume that it may mirror; all when none.
    pub volume: Option<String>,
    /// When it was invited.
    pub invited_ms: u64,
    /// When the invitation expires (expired).
    pub expires_ms: u64,
    /// When it first came.
    pub pinned_ms: Option<u64>,
}

/// How far a peer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PeerState {
    /// The token waits to be used.
    Invited,
    /// The token was not used in time.
    Expired,
    /// The peer's certificate is pinned.
    Pinned,
}
