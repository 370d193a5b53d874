//! Objects about access to the API: tokens with roles, and the audit log.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// The set of requests that a token permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Reads.
    Viewer,
    /// Reads, creates and changes. Does not delete, revert or change roles of mirrors, and does not
    /// change access.
    Operator,
    /// All requests.
    Administrator,
    /// Reads mirrors and their snapshots, and sets and lifts locks.
    LockKeeper,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Viewer => "viewer",
            Role::Operator => "operator",
            Role::Administrator => "administrator",
            Role::LockKeeper => "lock-keeper",
        })
    }
}

/// Creates a token.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateToken {
    /// Its name, which the audit log shows.
    pub name: String,
    /// Its role.
    pub role: Role,
    /// The only volumes that it shows and changes; all, and the server itself, when empty.
    #[serde(default)]
    pub volumes: Vec<String>,
    /// It expires after this time; by default never.
    pub expires_ms: Option<u64>,
}

/// A token, without its secret.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct AccessToken {
    /// Its name.
    pub name: String,
    /// Its role.
    pub role: Role,
    /// The only volumes that it shows and changes; all, and the server itself, when empty.
    pub volumes: Vec<String>,
    /// When it was created; none for the token of `DIR/http-token`.
    pub created_ms: Option<u64>,
    /// When it expires; none: never.
    pub expires_ms: Option<u64>,
    /// It has expired.
    pub expired: bool,
}

/// The access of the client that asks.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct OwnAccess {
    /// `token NAME`, `oidc:PERSON`, or `uid N` for a user of the control socket.
    pub name: String,
    /// Its role.
    pub role: Role,
    /// The only volumes that it shows and changes; all, and the server itself, when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volumes: Option<Vec<String>>,
    /// The requests that it may not make.
    pub forbidden: Vec<ForbiddenRequest>,
}

/// A request that a client may not make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ForbiddenRequest {
    /// The method and the route, as the description of the API has them.
    pub request: String,
    /// The roles that permit it, or the kind of token, in words.
    pub needs: String,
}

/// A token that was created.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct CreatedToken {
    /// The secret. The server stores only a digest of it and cannot show it again.
    pub secret: String,
    /// The token.
    pub token: AccessToken,
}

impl fmt::Debug for CreatedToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CreatedToken").field("token", &self.token).finish_non_exhaustive()
    }
}

/// The outcome of a request in the audit log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum AuditOutcome {
    /// The server did it, or began a job that does it.
    Done,
    /// The client may not do it, or did not prove its identity.
    Refused,
    /// The server tried it and failed, or the request was invalid.
    Failed,
}

/// A line of the audit log. Lines of later versions may have further fields.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct AuditEntry {
    /// When it ended.
    pub at_ms: u64,
    /// `token NAME`, `oidc:PERSON`, `uid N` for a user of the control socket, `unknown` without
    /// valid credentials.
    pub actor: String,
    /// Its role; none without valid credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// The client's address; `local` for a unix socket.
    pub from: String,
    /// The method and route of the request, or another event such as `NBD open`.
    pub action: String,
    /// The names in the path, or the name in the body of a request that creates something.
    pub object: String,
    /// The outcome.
    pub outcome: AuditOutcome,
    /// Why it was refused or failed; empty otherwise.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// Selects lines of the audit log.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct AuditQuery {
    /// Lines since this time, in milliseconds since 1970.
    pub since_ms: Option<u64>,
    /// At most so many, the newest; by default 1000.
    pub limit: Option<usize>,
}
