//! Errors of peers: invitations, certificates and connections.
//!
//! Each has its kind and the step that comes next.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use cairn_api::{ErrorBody, ErrorKind};
use cairn_base::Interval;

/// An error of peers: invitations, certificates and connections.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PeersError {
    /// The server's own key can't be read.
    #[error("{}, which identifies this server to its peers, is damaged: it has no key and certificate", path.display())]
    DamagedIdentity {
        /// Its path.
        path: PathBuf,
    },
    /// Not a token of this program.
    #[error("this is not an invitation token")]
    InvalidToken,
    /// A token that is past its time.
    #[error("the token has expired")]
    TokenExpired,
    /// A token that another destination has used.
    #[error("the token was used before, by another destination")]
    TokenUsed,
    /// The source does not know the token: it was revoked, or its identity was replaced.
    #[error("the source does not know this token")]
    TokenUnknown,
    /// The token was issued for another volume.
    #[error("this peer may not mirror volume `{volume}`")]
    VolumeNotAllowed {
        /// The requested volume.
        volume: String,
    },
    /// The certificate is not pinned (any more).
    #[error("the source does not accept this server's certificate")]
    PeerNotPinned,
    /// The source is not the one in the token.
    #[error("the server at {address} does not have the certificate that the token pins")]
    WrongSource {
        /// Where.
        address: String,
    },
    /// No connection.
    #[error("the source at {address} cannot be reached: {source}")]
    Unreachable {
        /// Where.
        address: String,
        /// The cause.
        source: io::Error,
    },
    /// A connection of a destination that broke before it was admitted.
    #[error("the connection of the peer at {address} broke: {source}")]
    PeerGone {
        /// The address of the peer.
        address: String,
        /// The cause.
        source: io::Error,
    },
    /// An open connection on which no data arrives, or none is accepted.
    #[error("the {peer} at {address} made no progress for {}: the transfer was aborted", Interval(*patience))]
    Silent {
        /// "source" or "destination".
        peer: &'static str,
        /// Where.
        address: String,
        /// For how long.
        patience: Duration,
    },
    /// The other end speaks another version.
    #[error("the other end speaks version {theirs} of the peer protocol, this server version {ours}")]
    PeerVersion {
        /// Theirs.
        theirs: u32,
        /// Ours.
        ours: u32,
    },
    /// The other end violated the protocol.
    #[error("the peer at {address} broke the protocol")]
    PeerProtocol {
        /// The address of the peer.
        address: String,
    },
    /// A refusal by the source, in its own words.
    #[error("the source at {address} refused: {}", body.message)]
    Refused {
        /// The address of the source.
        address: String,
        /// Its message.
        body: Box<ErrorBody>,
    },
    /// No address to put into a token.
    #[error("this server has no address that a peer could reach: it listens on {listening}")]
    NoAddress {
        /// As configured.
        listening: String,
    },
    /// TLS could not be set up.
    #[error("TLS: {0}")]
    Tls(rustls::Error),
    /// A certificate could not be made.
    #[error("cannot make a certificate: {0}")]
    Certificate(rcgen::Error),
}

impl PeersError {
    /// The kind, for programs.
    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            PeersError::InvalidToken | PeersError::NoAddress { .. } => ErrorKind::Usage,
            PeersError::PeerVersion { .. } => ErrorKind::VersionMismatch,
            PeersError::DamagedIdentity { .. } => ErrorKind::Damaged,
            PeersError::TokenExpired => ErrorKind::TokenExpired,
            PeersError::TokenUsed => ErrorKind::TokenUsed,
            PeersError::TokenUnknown
            | PeersError::PeerNotPinned
            | PeersError::VolumeNotAllowed { .. }
            | PeersError::WrongSource { .. } => ErrorKind::PeerRefused,
            PeersError::Unreachable { .. } | PeersError::PeerGone { .. } | PeersError::Silent { .. } => {
                ErrorKind::PeerUnreachable
            }
            PeersError::Refused { body, .. } => body.error,
            PeersError::PeerProtocol { .. } | PeersError::Tls(_) | PeersError::Certificate(_) => {
                ErrorKind::Failed
            }
        }
    }

    /// The next step for the user, in one sentence.
    pub(crate) fn next(&self) -> String {
        match self {
            PeersError::DamagedIdentity { path } => format!(
                "put a copy of it back in its place, and start the server again. Without a copy: `mv {0} {0}.damaged`, and the server makes a new key when it starts; to its peers it is another server then: each mirror here wants a new token of its source (`cairn peer invite` there, \
                 `cairn mirror repoint VOLUME TOKEN` here), and each mirror of this server's volumes one of `cairn peer invite` here",
                path.display()
            ),
            PeersError::InvalidToken => {
                "copy the whole word that `cairn peer invite` printed on the source (it begins with cairn1-)"
                    .into()
            }
            PeersError::TokenExpired | PeersError::TokenUsed | PeersError::TokenUnknown => {
                "make a new one on the source with `cairn peer invite`".into()
            }
            PeersError::VolumeNotAllowed { volume } => {
                format!("make a token for it on the source with `cairn peer invite --volume {volume}`")
            }
            PeersError::PeerNotPinned => {
                "invite this server again with `cairn peer invite` on the source".into()
            }
            PeersError::WrongSource { .. } => {
                "check that the address is that of the source and not of another machine in between; if the \
                source has a new identity, make a new token there with `cairn peer invite`"
                    .into()
            }
            PeersError::Unreachable { .. } => {
                "check that `cairn serve` runs there, that --mirror or --advertise on the \
                source is an address that this machine reaches, and the firewalls between"
                    .into()
            }
            PeersError::PeerGone { .. } => "nothing here: the destination tries again".into(),
            PeersError::Silent { peer, .. } => format!(
                "look at the {peer} (`cairn status` there) and at the network between; the last complete image is whole, and the next \
                 update goes on where it was. A slower peer needs a longer --mirror-patience, or `cairn mirror set NAME --stall TIME`"
            ),
            PeersError::PeerVersion { theirs, ours } => {
                let older = if theirs < ours { "the other end" } else { "this server" };
                format!("upgrade {older}: both ends must speak the same version")
            }
            PeersError::PeerProtocol { .. } => {
                "check that the address is a mirror port of `cairn serve`".into()
            }
            PeersError::Refused { body, .. } => body.next.clone(),
            PeersError::NoAddress { .. } => {
                "say how peers reach it: `cairn peer invite --advertise HOST:PORT`, or start the server with \
                 --mirror HOST:PORT"
                    .into()
            }
            PeersError::Tls(_) | PeersError::Certificate(_) => {
                "report it with the log of the server; restart the server if it does not answer".into()
            }
        }
    }
}
