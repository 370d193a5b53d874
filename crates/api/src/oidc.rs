//! Objects about sign-in by an identity provider: its settings, and the rules for people.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::notify::Hidden;
use crate::tokens::Role;

/// Sets the identity provider. Missing fields stay as they are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SetOidc {
    /// Its name on the button of the page; by default the host of its address.
    pub name: Option<String>,
    /// Its address, as it writes it in its tokens.
    pub issuer: Option<String>,
    /// The name of this server at the provider.
    pub client_id: Option<String>,
    /// The secret of this server there; an empty one removes it. Another issuer needs it again.
    pub client_secret: Option<Hidden>,
    /// The address of the page with the path `/oidc`, to which the provider sends browsers back.
    pub redirect_url: Option<String>,
    /// Scopes beside `openid`; empty: those of the name, the mail address and the groups.
    pub scopes: Option<Vec<String>>,
    /// Certificates (PEM) that are trusted beside those of the machine; an empty text removes them.
    pub authority: Option<String>,
}

/// The identity provider, without the secret.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Oidc {
    /// Its name on the button of the page.
    pub name: String,
    /// Its address.
    pub issuer: String,
    /// The name of this server at the provider.
    pub client_id: String,
    /// This server has a secret there.
    pub has_secret: bool,
    /// The address to which the provider sends browsers back.
    pub redirect_url: String,
    /// Scopes beside `openid`; empty: the default ones.
    pub scopes: Vec<String>,
    /// Certificates are trusted beside those of the machine.
    pub has_authority: bool,
    /// Sessions of people who signed in by it.
    pub sessions: u64,
}

/// The answer of the provider to a test.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct OidcTest {
    /// The address to which browsers are sent.
    pub authorization: String,
    /// The address at which codes are exchanged.
    pub token: String,
    /// Its keys for signatures.
    pub keys: u64,
    /// The scopes that a sign-in asks for.
    pub scopes: Vec<String>,
}

/// Creates a rule: the access of people with certain claims.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateOidcRule {
    /// Its name.
    pub name: String,
    /// `CLAIM=VALUE`; a person must have all of them. `email` counts only when the provider has
    /// verified it.
    pub claims: Vec<String>,
    /// The role of these people.
    pub role: Role,
    /// The only volumes that they see and change; all, and the server itself, when empty.
    #[serde(default)]
    pub volumes: Vec<String>,
    /// The rule expires after this time, and its sessions end; by default never.
    pub expires_ms: Option<u64>,
    /// A session ends after this time; by default and at most 12 hours.
    pub session_ms: Option<u64>,
}

/// A rule. The first one that matches a person decides.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct OidcRule {
    /// Its name.
    pub name: String,
    /// `CLAIM=VALUE`; a person must have all of them.
    pub claims: Vec<String>,
    /// The role of these people.
    pub role: Role,
    /// The only volumes that they see and change; all, and the server itself, when empty.
    pub volumes: Vec<String>,
    /// When it was created.
    pub created_ms: u64,
    /// When it expires; none: never.
    pub expires_ms: Option<u64>,
    /// It has expired.
    pub expired: bool,
    /// A session ends after this time.
    pub session_ms: u64,
    /// Sessions of people that it admitted.
    pub sessions: u64,
}
