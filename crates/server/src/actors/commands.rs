//! Commands on tokens and the audit log: the methods of the server for them.

use cairn_api as api;

use crate::actors::Actor;
use crate::actors::tokens::not_found;
use crate::daemon::server::Server;
use crate::error::ServerError;

impl Server {
    /// The client with this identity: that of a token, or of a person who signed in by the identity
    /// provider. None when it has expired or was revoked.
    pub(crate) fn actor(&self, identity: &str) -> Option<Actor> {
        self.tokens.actor(identity).or_else(|| self.oidc.actor(identity))
    }

    /// One token.
    pub(crate) fn show_token(&self, name: &str) -> Result<api::AccessToken, ServerError> {
        self.tokens.list()?.into_iter().find(|token| token.name == name).ok_or_else(|| not_found(name))
    }

    /// The newest lines of the audit log that match the query, the oldest of them first.
    pub(crate) fn list_audit(&self, query: &api::AuditQuery) -> Result<Vec<api::AuditEntry>, ServerError> {
        self.audit.list(query)
    }
}
