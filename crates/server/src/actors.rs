//! The clients of the API: their tokens, their roles, and the audit log of their requests.
//!
//! A client of the control socket is a user of the machine and an administrator. A client over TCP
//! has a token, or a session of the web page that began with one or by an identity provider.

use std::collections::BTreeSet;
use std::net::IpAddr;

use cairn_api::Role;

pub(crate) mod audit;
mod commands;
pub(crate) mod error;
pub(crate) mod oidc;
pub(crate) mod tokens;

/// The client of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Actor {
    /// As the audit log shows it: `token NAME`, `oidc:PERSON` or `uid N`.
    pub(crate) name: String,
    pub(crate) role: Role,
    /// The only volumes that it may see and change; none: all, and the server itself.
    pub(crate) volumes: Option<BTreeSet<String>>,
    /// Its address; none on the control socket.
    pub(crate) from: Option<IpAddr>,
    /// The identity of its token or of its grant; none on the control socket.
    pub(crate) token: Option<String>,
}

impl Actor {
    /// A user of the control socket. The mode of the socket has admitted the user.
    pub(crate) fn of_socket(uid: Option<u32>) -> Self {
        let name = uid.map_or_else(|| "uid unknown".to_owned(), |uid| format!("uid {uid}"));
        Self { name, role: Role::Administrator, volumes: None, from: None, token: None }
    }
}

/// A client's address for the audit log.
pub(crate) fn origin(from: Option<IpAddr>) -> String {
    from.map_or_else(|| "local".to_owned(), |from| from.to_string())
}
