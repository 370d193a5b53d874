//! Errors of other servers that this one shows.
//!
//! Each has its kind and the step that comes next.

use cairn_api::{ErrorBody, ErrorKind, Role};

/// An error of the fleet.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FleetError {
    /// The other server does not answer, or refuses.
    #[error("{address}: {}", error.message)]
    Other {
        /// Its address.
        address: String,
        /// Its answer, or why there is none.
        error: Box<ErrorBody>,
    },
    /// The token may do more than it needs.
    #[error("the token has the role {role} on {address}, and a viewer is enough")]
    RoleTooHigh {
        /// Its address.
        address: String,
        /// The role.
        role: Role,
    },
    /// The token would cross the network in the clear.
    #[error("{address} is not on this machine, and without a root the token would be sent in the clear")]
    NeedsTls {
        /// Its address.
        address: String,
    },
}

impl FleetError {
    /// The kind, for programs.
    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            FleetError::Other { error, .. } => match error.error {
                // The client of this request has shown valid credentials.
                ErrorKind::Unauthorized => ErrorKind::PeerRefused,
                kind => kind,
            },
            FleetError::RoleTooHigh { .. } | FleetError::NeedsTls { .. } => ErrorKind::Usage,
        }
    }

    /// The next step for the user, in one sentence.
    pub(crate) fn next(&self) -> String {
        match self {
            FleetError::Other { error, .. } if error.error == ErrorKind::Unauthorized => {
                "create a token on that server with `cairn token create NAME --role viewer`".to_owned()
            }
            FleetError::Other { error, .. } => error.next.clone(),
            FleetError::RoleTooHigh { .. } => {
                "create another one there with `cairn token create NAME --role viewer`".to_owned()
            }
            FleetError::NeedsTls { .. } => {
                "start that server with --tls, and give the output of its `cairn tls root` with --root"
                    .to_owned()
            }
        }
    }
}
