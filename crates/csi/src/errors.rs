//! Errors of the API of Cairn as codes of gRPC.
//!
//! A failure whose outcome is not known becomes `UNAVAILABLE`: the sidecars of Kubernetes repeat
//! such a call and never assume that it did nothing.

use cairn_api::{ErrorBody, ErrorKind};
use tonic::{Code, Status};

/// The code for an error of the server.
pub(crate) fn code(kind: ErrorKind) -> Code {
    match kind {
        ErrorKind::Usage => Code::InvalidArgument,
        ErrorKind::WrongSize | ErrorKind::TooSmall => Code::OutOfRange,
        ErrorKind::NotFound => Code::NotFound,
        ErrorKind::Taken => Code::AlreadyExists,
        ErrorKind::NoSpace => Code::ResourceExhausted,
        ErrorKind::Unauthorized | ErrorKind::PeerRefused | ErrorKind::TokenExpired => Code::Unauthenticated,
        ErrorKind::Forbidden => Code::PermissionDenied,
        ErrorKind::Busy | ErrorKind::ReadOnly | ErrorKind::NotEmpty | ErrorKind::WrongRole => {
            Code::FailedPrecondition
        }
        ErrorKind::Damaged | ErrorKind::VolumeDamaged | ErrorKind::Contradicted | ErrorKind::Diverged => {
            Code::Internal
        }
        _ => Code::Unavailable,
    }
}

/// The status for an error of the server.
pub(crate) fn status(error: &ErrorBody) -> Status {
    Status::new(code(error.error), format!("{}; next: {}", error.message, error.next))
}
