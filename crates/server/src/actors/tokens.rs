//! Tokens of the API: `DIR/tokens.json`, which has a digest of each secret, and the token of
//! `DIR/http-token`, which is an administrator.
//!
//! A secret has 256 random bits, so one round of SHA-256 protects it as well as many. All digests
//! are compared, each in constant time. An expired token stays listed until it is revoked. Within a
//! run of the program, an earlier wall clock does not make an expired token valid again.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use cairn_api::{AccessToken, CreateToken, CreatedToken, Role};
use cairn_base::Clock;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::actors::Actor;
use crate::error::ServerError;
use crate::names;
use crate::peers::token::random_bytes;
use crate::state;
use crate::state::Unread;

/// The name of the token in `DIR/http-token`.
pub(crate) const FIRST: &str = "http-token";

/// The beginning of each secret. Programs that search texts for leaked secrets find it.
const PREFIX: &str = "cairnkey-";

/// More tokens are a mistake, or an attack on the disk.
const TOKENS_MAX: usize = 10_000;

/// A longer time is a mistake.
const EXPIRY_MAX: Duration = Duration::from_secs(100 * 366 * 24 * 3600);

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Record {
    name: String,
    role: Role,
    volumes: Vec<String>,
    created_ms: u64,
    expires_ms: Option<u64>,
    /// SHA-256 of the secret, in hexadecimal digits.
    digest: String,
    /// The expiry by the monotonic clock, in this run of the program.
    #[serde(skip)]
    ends: Option<Duration>,
}

/// The content of `tokens.json`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct TokensDocument {
    tokens: Vec<Record>,
    /// The token of `DIR/http-token` was revoked. It is not created again.
    #[serde(default)]
    first_revoked: bool,
}

/// The tokens of a server.
pub(crate) struct Tokens {
    path: PathBuf,
    clock: Arc<dyn Clock>,
    document: Mutex<TokensDocument>,
    /// The digest of the token in `DIR/http-token`; none before `--http` asks for that.
    first: Mutex<Option<String>>,
    /// The tokens are unknown, and a revoked one may be among those that a client shows: none is
    /// accepted.
    unread: Mutex<Option<Unread>>,
}

/// SHA-256 in hexadecimal digits.
fn digest(secret: &[u8]) -> String {
    Sha256::digest(secret).iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Tokens {
    /// The tokens in `dir`.
    pub(crate) fn open(dir: &Path, clock: Arc<dyn Clock>) -> Self {
        let tokens = Self {
            path: dir.join("tokens.json"),
            clock,
            document: Mutex::default(),
            first: Mutex::default(),
            unread: Mutex::default(),
        };
        tokens.read();
        tokens
    }

    /// Loads the present content of the file.
    pub(crate) fn read(&self) {
        let (document, unread) = state::known::<TokensDocument>(&self.path);
        let mut document = document.unwrap_or_default();
        let (wall_ms, now) = (self.wall_ms(), self.clock.monotonic());
        for record in &mut document.tokens {
            let left = |expires_ms: u64| now + Duration::from_millis(expires_ms.saturating_sub(wall_ms));
            record.ends = record.expires_ms.map(left);
        }
        *self.document.lock() = document;
        *self.unread.lock() = unread;
    }

    fn wall_ms(&self) -> u64 {
        self.clock.now().0 / 1_000_000
    }

    /// Whether the token of `DIR/http-token` may be created and used.
    pub(crate) fn wants_first(&self) -> bool {
        self.unread.lock().is_none() && !self.document.lock().first_revoked
    }

    /// The token of `DIR/http-token`.
    pub(crate) fn set_first(&self, secret: &str) {
        *self.first.lock() = Some(digest(secret.as_bytes()));
    }

    /// The identity of the token with this secret, which stays the same until it is revoked.
    pub(crate) fn identity(&self, secret: &[u8]) -> Option<String> {
        let given = digest(secret);
        self.actor(&given).map(|_| given)
    }

    /// The client that has the token with this identity; none when it has expired, or was revoked.
    pub(crate) fn actor(&self, identity: &str) -> Option<Actor> {
        if self.unread.lock().is_some() {
            return None;
        }
        let is_same = |digest: &str| bool::from(digest.as_bytes().ct_eq(identity.as_bytes()));
        let document = self.document.lock();
        let mut found = None;
        for record in &document.tokens {
            if is_same(&record.digest) && !self.has_expired(record) {
                let volumes = (!record.volumes.is_empty()).then(|| record.volumes.iter().cloned().collect());
                let name = format!("token {}", record.name);
                found = Some(Actor {
                    name,
                    role: record.role,
                    volumes,
                    from: None,
                    token: Some(identity.to_owned()),
                });
            }
        }
        let first = self.first.lock();
        if first.as_deref().is_some_and(is_same) && !document.first_revoked {
            let name = format!("token {FIRST}");
            let (volumes, token) = (None, Some(identity.to_owned()));
            found = Some(Actor { name, role: Role::Administrator, volumes, from: None, token });
        }
        found
    }

    fn has_expired(&self, record: &Record) -> bool {
        record.expires_ms.is_some_and(|expires_ms| self.wall_ms() >= expires_ms)
            || record.ends.is_some_and(|ends| self.clock.monotonic() >= ends)
    }

    fn show(&self, record: &Record) -> AccessToken {
        AccessToken {
            name: record.name.clone(),
            role: record.role,
            volumes: record.volumes.clone(),
            created_ms: Some(record.created_ms),
            expires_ms: record.expires_ms,
            expired: self.has_expired(record),
        }
    }

    /// All tokens.
    pub(crate) fn list(&self) -> Result<Vec<AccessToken>, ServerError> {
        state::refuse_unread(self.unread.lock().as_ref())?;
        let document = self.document.lock();
        let first = self.first.lock().is_some() && !document.first_revoked;
        let first = first.then(|| AccessToken {
            name: FIRST.to_owned(),
            role: Role::Administrator,
            volumes: Vec::new(),
            created_ms: None,
            expires_ms: None,
            expired: false,
        });
        Ok(first.into_iter().chain(document.tokens.iter().map(|record| self.show(record))).collect())
    }

    /// Creates a token.
    pub(crate) fn create(&self, request: &CreateToken) -> Result<CreatedToken, ServerError> {
        state::refuse_unread(self.unread.lock().as_ref())?;
        names::check("token", &request.name)?;
        for volume in &request.volumes {
            names::check("volume", volume)?;
        }
        let expires = request.expires_ms.map(Duration::from_millis);
        if expires.is_some_and(|expires| expires.is_zero() || expires > EXPIRY_MAX) {
            return Err(ServerError::Invalid {
                fault: "a token expires after at least 1 ms and at most 100 years",
                next: "give a time such as --expires 30d, or leave it out",
            });
        }
        let mut document = self.document.lock();
        if request.name == FIRST || document.tokens.iter().any(|record| record.name == request.name) {
            return Err(ServerError::Taken { what: "token", name: request.name.clone() });
        }
        if document.tokens.len() >= TOKENS_MAX {
            return Err(ServerError::Invalid {
                fault: "there are 10,000 tokens",
                next: "revoke those that are not used with `cairn token revoke`",
            });
        }
        let secret = format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(random_bytes::<32>()));
        let created_ms = self.wall_ms();
        let record = Record {
            name: request.name.clone(),
            role: request.role,
            volumes: request.volumes.clone(),
            created_ms,
            expires_ms: request.expires_ms.map(|expires| created_ms.saturating_add(expires)),
            digest: digest(secret.as_bytes()),
            ends: expires.map(|expires| self.clock.monotonic() + expires),
        };
        let mut new = document.clone();
        new.tokens.push(record.clone());
        state::save(&self.path, &new)?;
        *document = new;
        Ok(CreatedToken { secret, token: self.show(&record) })
    }

    /// Revokes a token. Requests with it, and sessions that began with it, are refused from now on.
    pub(crate) fn revoke(&self, name: &str) -> Result<(), ServerError> {
        state::refuse_unread(self.unread.lock().as_ref())?;
        let mut document = self.document.lock();
        let mut new = document.clone();
        let count = new.tokens.len();
        new.tokens.retain(|record| record.name != name);
        let is_first = name == FIRST && self.first.lock().is_some() && !document.first_revoked;
        new.first_revoked |= is_first;
        if new.tokens.len() == count && !is_first {
            return Err(not_found(name));
        }
        state::save(&self.path, &new)?;
        *document = new;
        if is_first {
            // The flag in the document decides; the file is of no more use.
            let file = self.path.with_file_name(FIRST);
            if let Err(error) = std::fs::remove_file(&file) {
                tracing::warn!(path = %file.display(), %error, "cannot remove the file of a revoked token; it is not accepted");
            }
        }
        Ok(())
    }
}

/// There is no such token.
pub(crate) fn not_found(name: &str) -> ServerError {
    ServerError::NotFound { what: "token", name: name.to_owned(), list: "cairn token list" }
}

#[cfg(test)]
mod tests;
