//! Identities and recipients: the two halves of the key pair that opens bucket keys.
//!
//! An identity file has a line for each secret key, and comments that begin with `#`:
//!
//! ```text
//! # public key: cairn1...
//! CAIRN-SECRET-1...
//! ```
//! Both texts are base32 of the 32 bytes of an X25519 key (RFC 7748) and the first 4 bytes of the
//! SHA-256 of these, so that a mistyped one is detected.
//!
//! A bucket key is wrapped for a recipient as age wraps a file key. An X25519 key that is used once
//! and the recipient's key give a shared secret. HKDF-SHA256 of it, with both public keys as salt,
//! gives a key of AES-256-GCM that seals one message.

use std::fmt;
use std::str::FromStr;

use data_encoding::BASE32_DNSSEC;
use ring::aead::{Aad, Nonce};
use ring::digest::{SHA256, digest};
use x25519_dalek::{PublicKey, StaticSecret};
use zeroize::Zeroizing;

use super::entropy::{Entropy, random};
use super::keys::{BucketKey, KeyId, derive, gcm};

const PUBLIC: &str = "cairn1";
const SECRET: &str = "CAIRN-SECRET-1";
const CHECK: usize = 4;
/// Identities in one file. More are refused.
const IDENTITIES_MAX: usize = 16;
/// Bytes of a wrapped bucket key: the key and its tag.
pub(super) const WRAPPED: usize = 48;

/// Why a text is no identity or recipient.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidIdentity {
    /// Not the text of a public key.
    #[error("a recipient is the public key that `cairn key show` prints: `cairn1` and 58 characters")]
    Recipient,
    /// The secret key was given where the public one belongs.
    #[error("this is a secret key; a recipient is a public key, which begins with `cairn1`")]
    Secret,
    /// A line of an identity file is no secret key.
    #[error("line {0} is neither a comment nor a secret key that `cairn key create` made")]
    Line(usize),
    /// The file has no secret key.
    #[error("it has no secret key")]
    Empty,
    /// The file has too many.
    #[error("it has more than 16 secret keys")]
    Many,
}

/// The text of 32 bytes with their check.
fn encode(bytes: &[u8; 32]) -> Zeroizing<String> {
    let mut checked = Zeroizing::new([0; 32 + CHECK]);
    checked[..32].copy_from_slice(bytes);
    checked[32..].copy_from_slice(&digest(&SHA256, bytes).as_ref()[..CHECK]);
    Zeroizing::new(BASE32_DNSSEC.encode(&checked[..]))
}

fn decode(text: &str) -> Option<Zeroizing<[u8; 32]>> {
    let checked = Zeroizing::new(BASE32_DNSSEC.decode(text.as_bytes()).ok()?);
    let (bytes, check) = checked.split_first_chunk::<32>()?;
    let right = digest(&SHA256, bytes);
    (Some(check) == right.as_ref().get(..CHECK)).then(|| Zeroizing::new(*bytes))
}

/// The public half: bucket keys are wrapped for it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Recipient([u8; 32]);

impl Recipient {
    /// Names its wrapped key in a bucket.
    pub(super) fn short(&self) -> String {
        let digest = digest(&SHA256, &self.0);
        digest.as_ref().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
    }

    /// Wraps a bucket key: the public key that is used once, and the sealed bytes.
    pub(super) fn wrap(&self, key: &BucketKey, entropy: &dyn Entropy) -> Option<([u8; 32], [u8; WRAPPED])> {
        let once = StaticSecret::from(random::<32>(entropy));
        let share = PublicKey::from(&once).to_bytes();
        let shared = once.diffie_hellman(&PublicKey::from(self.0));
        // A recipient of low order makes the secret public.
        let shared = shared.was_contributory().then_some(shared)?;
        let wrapping = wrapping_key(shared.as_bytes(), (&share, self), key.id());
        let mut sealed = [0; WRAPPED];
        let (bytes, end) = sealed.split_at_mut(32);
        bytes.copy_from_slice(key.bytes());
        let tag = gcm(&wrapping).seal_in_place_separate_tag(once_nonce(), Aad::empty(), bytes).ok()?;
        end.copy_from_slice(tag.as_ref());
        Some((share, sealed))
    }
}

/// The wrapping key seals one message only.
fn once_nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; 12])
}

fn wrapping_key(
    shared: &[u8; 32],
    (share, recipient): (&[u8; 32], &Recipient),
    id: KeyId,
) -> Zeroizing<[u8; 32]> {
    let mut salt = [0; 64];
    salt[..32].copy_from_slice(share);
    salt[32..].copy_from_slice(&recipient.0);
    Zeroizing::new(derive(shared, &salt, &[b"cairn bucket: wrapped key", &id.0]))
}

impl fmt::Display for Recipient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PUBLIC}{}", *encode(&self.0))
    }
}

impl fmt::Debug for Recipient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Recipient {
    type Err = InvalidIdentity;

    fn from_str(text: &str) -> Result<Self, InvalidIdentity> {
        if text.starts_with(SECRET) {
            return Err(InvalidIdentity::Secret);
        }
        let bytes = text.strip_prefix(PUBLIC).and_then(decode).map(|bytes| Self(*bytes));
        // One text for each key.
        bytes.filter(|own| own.to_string() == text).ok_or(InvalidIdentity::Recipient)
    }
}

/// The secret half. Its text is in the identity file only: `Debug` shows the public half.
#[derive(Clone)]
pub struct Identity(StaticSecret);

impl Identity {
    /// A new one.
    pub fn generate(entropy: &dyn Entropy) -> Self {
        Self(StaticSecret::from(random::<32>(entropy)))
    }

    /// The public half.
    pub fn recipient(&self) -> Recipient {
        Recipient(PublicKey::from(&self.0).to_bytes())
    }

    /// The content of an identity file with this identity.
    pub fn to_file(&self) -> Zeroizing<String> {
        let secret = Zeroizing::new(encode(self.0.as_bytes()).to_ascii_uppercase());
        Zeroizing::new(format!("# public key: {}\n{SECRET}{}\n", self.recipient(), *secret))
    }

    /// The identities in the content of a file.
    ///
    /// # Errors
    /// A line is wrong, or there is none.
    pub fn parse_file(text: &str) -> Result<Vec<Self>, InvalidIdentity> {
        let mut identities = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let bytes = line.strip_prefix(SECRET).and_then(decode);
            let bytes = bytes.ok_or(InvalidIdentity::Line(number))?;
            identities.push(Self(StaticSecret::from(*bytes)));
        }
        match identities.len() {
            0 => Err(InvalidIdentity::Empty),
            1..=IDENTITIES_MAX => Ok(identities),
            _ => Err(InvalidIdentity::Many),
        }
    }

    /// Unwraps the bucket key of this id.
    pub(super) fn unwrap(&self, id: KeyId, share: &[u8; 32], sealed: &[u8; WRAPPED]) -> Option<BucketKey> {
        let shared = self.0.diffie_hellman(&PublicKey::from(*share));
        let shared = shared.was_contributory().then_some(shared)?;
        let wrapping = wrapping_key(shared.as_bytes(), (share, &self.recipient()), id);
        let mut bytes = Zeroizing::new(*sealed);
        let opened = gcm(&wrapping).open_in_place(once_nonce(), Aad::empty(), &mut bytes[..]).ok()?;
        let key = BucketKey::from_bytes((*opened).try_into().ok()?);
        (key.id() == id).then_some(key)
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "identity of {}", self.recipient())
    }
}
