//! Errors and problems: the answer to every refused or failed request.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The kind of an error, for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// The request makes no sense: a name, a combination.
    Usage,
    /// A size that is not possible.
    WrongSize,
    /// Nothing has that name.
    NotFound,
    /// The name is in use.
    Taken,
    /// In use elsewhere: a device, a directory, an export.
    Busy,
    /// Another program listens on that port.
    PortTaken,
    /// No valid bearer token.
    Unauthorized,
    /// The role of the token does not permit it, or the token is for other volumes.
    Forbidden,
    /// The invitation has expired.
    TokenExpired,
    /// The invitation was used.
    TokenUsed,
    /// The source does not know the invitation, or no longer this server; or an object store
    /// refuses the credentials.
    PeerRefused,
    /// The source, or an object store, cannot be reached.
    PeerUnreachable,
    /// The other end speaks another version.
    VersionMismatch,
    /// No space.
    NoSpace,
    /// A directory, file system or device takes no writes.
    ReadOnly,
    /// The device is too small.
    TooSmall,
    /// The device or destination holds something.
    NotEmpty,
    /// A checksum failed, or a file does not have the expected content.
    Damaged,
    /// A volume cannot be opened: its superblocks, its tables or its log are damaged, or its
    /// devices are missing.
    VolumeDamaged,
    /// The volume is, or is not, the destination of a mirror.
    WrongRole,
    /// Source and destination have no common base.
    Diverged,
    /// Data from the source of a mirror contradicts the mirror: an attacker may control the source.
    Contradicted,
    /// The work was cut off: the server ended.
    Interrupted,
    /// Anything else.
    Failed,
}

/// The answer to every refused or failed request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// The kind.
    pub error: ErrorKind,
    /// The failure and its cause.
    pub message: String,
    /// The next step for the user.
    pub next: String,
}

impl ErrorBody {
    /// A failure of that kind.
    pub fn new(error: ErrorKind, message: impl fmt::Display, next: impl fmt::Display) -> Self {
        Self { error, message: message.to_string(), next: next.to_string() }
    }
}

impl From<std::io::Error> for ErrorBody {
    fn from(error: std::io::Error) -> Self {
        let kind = match error.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => ErrorKind::NoSpace,
            _ => ErrorKind::Failed,
        };
        ErrorBody::new(kind, error, "correct it and run the command again")
    }
}

/// A problem and its remedy.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// The subject: a volume or a mirror.
    pub subject: String,
    /// The problem.
    pub message: String,
    /// The remedy.
    pub next: String,
}
