//! Errors of access: requests that a role or a token does not permit, and the identity provider.
//!
//! Each has its kind and the step that comes next.

use cairn_api::{ErrorKind, Role};

/// An error of access.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ActorsError {
    /// The role is too low.
    #[error("this request needs the role {needed}, and the {actor} has the role {role}")]
    RoleTooLow {
        /// The client.
        actor: String,
        /// Its role.
        role: Role,
        /// The roles that permit it.
        needed: &'static str,
    },
    /// The token is for other volumes.
    #[error("the {actor} is bound to volumes, and {object} is not one of them")]
    OtherVolume {
        /// The client.
        actor: String,
        /// The object of the request.
        object: String,
    },
    /// No identity provider is configured.
    #[error("no identity provider is configured")]
    NoProvider,
    /// The identity provider fails.
    #[error("{message}")]
    Provider {
        /// The failure and its cause.
        message: String,
        /// The remedy.
        next: String,
    },
}

impl ActorsError {
    /// The kind, for programs.
    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            ActorsError::RoleTooLow { .. } | ActorsError::OtherVolume { .. } => ErrorKind::Forbidden,
            ActorsError::NoProvider => ErrorKind::NotFound,
            ActorsError::Provider { .. } => ErrorKind::Failed,
        }
    }

    /// The next step for the user, in one sentence.
    pub(crate) fn next(&self) -> String {
        match self {
            ActorsError::RoleTooLow { .. } => {
                "use a token of that role; an administrator creates one with `cairn token create NAME --role ROLE`"
                    .to_owned()
            }
            ActorsError::OtherVolume { .. } => {
                "use a token without --volume, or one for that volume; `cairn token list` shows them".to_owned()
            }
            ActorsError::NoProvider => {
                "configure one with `cairn oidc set --issuer URL --client-id ID --redirect-url URL`".to_owned()
            }
            ActorsError::Provider { next, .. } => next.clone(),
        }
    }
}
