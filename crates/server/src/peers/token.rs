//! The token for a first mirror: the address of the source, its certificate, and a secret that is
//! valid once.
//!
//! `cairn1-` and a base64url of JSON. The number in the prefix is the version of the token.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::error::ServerError;
use crate::peers::error::PeersError;
use crate::peers::identity::Fingerprint;

const PREFIX: &str = "cairn1-";
/// A token is below 400 bytes; a longer text is not a token.
const MAX_LENGTH: usize = 2048;

/// The content of a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Token {
    /// Names the invitation.
    pub(crate) id: String,
    /// The source's mirror address, HOST:PORT.
    pub(crate) address: String,
    /// The source's certificate.
    pub(crate) fingerprint: Fingerprint,
    /// Good once.
    pub(crate) secret: Secret,
    /// Seconds since 1970.
    pub(crate) expires_s: u64,
    /// The only volume that it is good for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) volume: Option<String>,
}

impl Token {
    /// The token as one word.
    pub(crate) fn encode(&self) -> String {
        let json = serde_json::to_vec(self).expect("a token has only strings and numbers");
        format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(json))
    }

    /// Reads a word.
    pub(crate) fn decode(word: &str) -> Result<Self, ServerError> {
        let word = word.trim();
        let body = word.strip_prefix(PREFIX).filter(|body| body.len() <= MAX_LENGTH);
        let json = body
            .and_then(|body| URL_SAFE_NO_PAD.decode(body).ok())
            .ok_or(ServerError::Peers(PeersError::InvalidToken))?;
        serde_json::from_slice(&json).map_err(|_| ServerError::Peers(PeersError::InvalidToken))
    }
}

/// 128 random bits as base64url. It shows in no log.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Secret(String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(secret)")
    }
}

impl Secret {
    /// A new one, from the system's generator.
    pub(crate) fn random() -> Self {
        Self(URL_SAFE_NO_PAD.encode(random_bytes::<16>()))
    }

    /// The stored form: a reader of the state file cannot use it.
    pub(crate) fn digest(&self) -> String {
        URL_SAFE_NO_PAD.encode(Sha256::digest(self.0.as_bytes()))
    }

    /// Compares in constant time with the stored digest.
    pub(crate) fn matches(&self, digest: &str) -> bool {
        self.digest().as_bytes().ct_eq(digest.as_bytes()).into()
    }
}

/// Unpredictable bytes.
pub(crate) fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the system gives random numbers once it has booted");
    bytes
}

/// A short name for an invitation, a job: 48 random bits in hexadecimal.
pub(crate) fn random_name() -> String {
    random_bytes::<6>().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
