//! CHAP (RFC 1994; RFC 7143, section 12.1): each side proves that it knows a secret without sending
//! it.
//!
//! The algorithms are MD5 (5), which every initiator knows, and SHA-256 (7). Comparisons take the
//! same time wherever they differ.

use md5::{Digest, Md5};
use sha2::Sha256;
use subtle::ConstantTimeEq;

use crate::text::{binary, hexadecimal};

/// Bytes of a challenge.
pub const CHALLENGE_BYTES: usize = 16;
/// The longest challenge that a peer may give, in bytes (RFC 7143, section 12.1.3).
const CHALLENGE_BYTES_MAX: usize = 1024;

/// A hash of CHAP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// 5
    Md5,
    /// 7
    Sha256,
}

impl Algorithm {
    /// The first of a list (`CHAP_A`) that we know.
    pub fn choose(list: &str) -> Option<Self> {
        list.split(',').find_map(|number| match number.trim() {
            "5" => Some(Self::Md5),
            "7" => Some(Self::Sha256),
            _ => None,
        })
    }

    /// The number on the wire.
    pub fn number(self) -> &'static str {
        match self {
            Self::Md5 => "5",
            Self::Sha256 => "7",
        }
    }

    /// The proof that `secret` is known: the hash of identifier, secret and challenge.
    pub fn response(self, identifier: u8, secret: &[u8], challenge: &[u8]) -> Vec<u8> {
        match self {
            Self::Md5 => Md5::new()
                .chain_update([identifier])
                .chain_update(secret)
                .chain_update(challenge)
                .finalize()
                .to_vec(),
            Self::Sha256 => Sha256::new()
                .chain_update([identifier])
                .chain_update(secret)
                .chain_update(challenge)
                .finalize()
                .to_vec(),
        }
    }
}

/// A name and its secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential {
    /// `CHAP_N`
    pub name: String,
    /// The secret; at least 12 bytes are advised.
    pub secret: Vec<u8>,
}

impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credential").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The credentials for a login by CHAP, and for our own proof in return.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// The credential that the initiator must know.
    pub initiator: Credential,
    /// Our answer when the initiator challenges us; without it mutual authentication is refused.
    pub target: Option<Credential>,
}

/// A challenge that was given.
#[derive(Debug, Clone)]
pub struct Challenge {
    algorithm: Algorithm,
    identifier: u8,
    bytes: [u8; CHALLENGE_BYTES],
}

impl Challenge {
    /// Of random bytes.
    pub fn new(algorithm: Algorithm, identifier: u8, bytes: [u8; CHALLENGE_BYTES]) -> Self {
        Self { algorithm, identifier, bytes }
    }

    /// `CHAP_I`
    pub fn identifier(&self) -> String {
        self.identifier.to_string()
    }

    /// `CHAP_C`
    pub fn challenge(&self) -> String {
        hexadecimal(&self.bytes)
    }

    /// True when `name` and `response` (`CHAP_N`, `CHAP_R`) prove `credential`.
    pub fn is_proof(&self, credential: &Credential, name: &str, response: &str) -> bool {
        let expected = self.algorithm.response(self.identifier, &credential.secret, &self.bytes);
        // Both are compared, so that the time does not reveal which is wrong.
        let named = name.as_bytes().ct_eq(credential.name.as_bytes());
        let proved = binary(response).unwrap_or_default().as_slice().ct_eq(expected.as_slice());
        (named & proved).into()
    }

    /// Our answer to the initiator's own `CHAP_I` and `CHAP_C`. `None` when they are invalid, or
    /// are our own challenge reflected to make us answer it.
    pub fn answer(&self, credential: &Credential, identifier: &str, challenge: &str) -> Option<String> {
        let identifier = u8::try_from(crate::text::number(identifier)?).ok()?;
        let challenge = binary(challenge)?;
        if challenge.is_empty() || challenge.len() > CHALLENGE_BYTES_MAX || challenge == self.bytes {
            return None;
        }
        Some(hexadecimal(&self.algorithm.response(identifier, &credential.secret, &challenge)))
    }
}
