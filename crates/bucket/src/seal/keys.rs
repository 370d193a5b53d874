//! The bucket key, and the keys that are derived from it.

use std::fmt;

use aes::Aes256;
use aes::cipher::{BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use ring::aead::{AES_256_GCM, LessSafeKey, UnboundKey};
use ring::{hkdf, hmac};
use zeroize::Zeroizing;

use super::entropy::{Entropy, random};
use crate::name::Name;
use crate::store::Nonce;

/// Identifies a bucket key; it is public.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(pub [u8; 16]);

impl KeyId {
    /// Reads 32 hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        Nonce::parse(text).map(|nonce| Self(nonce.0)).filter(|id| id.to_string() == text)
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "key:{self}")
    }
}

/// The secret of a bucket. It is in no text: `Debug` shows its id.
#[derive(Clone)]
pub struct BucketKey(Zeroizing<[u8; 32]>);

impl BucketKey {
    /// A new one.
    pub fn generate(entropy: &dyn Entropy) -> Self {
        Self(Zeroizing::new(random(entropy)))
    }

    /// The key with these bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    pub(super) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Its public id.
    pub fn id(&self) -> KeyId {
        KeyId(derive(&self.0[..], &[], &[b"cairn bucket: id"]))
    }
}

impl fmt::Debug for BucketKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "secret of {:?}", self.id())
    }
}

struct Length(usize);

impl hkdf::KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

/// HKDF-SHA256 (RFC 5869). `info` is one text in pieces.
pub(super) fn derive<const N: usize>(secret: &[u8], salt: &[u8], info: &[&[u8]]) -> [u8; N] {
    let mut bytes = [0; N];
    let extracted = hkdf::Salt::new(hkdf::HKDF_SHA256, salt).extract(secret);
    extracted
        .expand(info, Length(N))
        .and_then(|expanded| expanded.fill(&mut bytes))
        .expect("HKDF-SHA256 gives up to 8,160 bytes");
    bytes
}

/// A key of AES-256-GCM.
pub(super) fn gcm(key: &Zeroizing<[u8; 32]>) -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &key[..]).expect("the key has 32 bytes"))
}

/// Everything that is derived from a bucket key.
pub(super) struct Keys {
    pub(super) id: KeyId,
    objects: Zeroizing<[u8; 32]>,
    pub(super) names: Zeroizing<[u8; 64]>,
    nonces: Zeroizing<[u8; 32]>,
    recipients: hmac::Key,
    key: BucketKey,
}

impl Keys {
    pub(super) fn of(key: &BucketKey) -> Self {
        let secret = &key.0[..];
        let recipients: Zeroizing<[u8; 32]> =
            Zeroizing::new(derive(secret, &[], &[b"cairn bucket: recipients"]));
        Self {
            id: key.id(),
            objects: Zeroizing::new(derive(secret, &[], &[b"cairn bucket: objects"])),
            names: Zeroizing::new(derive(secret, &[], &[b"cairn bucket: names"])),
            nonces: Zeroizing::new(derive(secret, &[], &[b"cairn bucket: nonces"])),
            recipients: hmac::Key::new(hmac::HMAC_SHA256, &recipients[..]),
            key: key.clone(),
        }
    }

    pub(super) fn bucket_key(&self) -> &BucketKey {
        &self.key
    }

    /// The key of the chunks after a header.
    pub(super) fn object(&self, header: &[u8], salt: &[u8; 16], name: &Name) -> LessSafeKey {
        let info = [b"cairn bucket: object".as_slice(), header, name.as_str().as_bytes()];
        gcm(&Zeroizing::new(derive(&self.objects[..], salt, &info)))
    }

    fn block(&self) -> Aes256 {
        Aes256::new((&*self.nonces).into())
    }

    /// The nonce of a creator as the store sees it.
    pub(super) fn seal_nonce(&self, nonce: Nonce) -> Nonce {
        let mut block = nonce.0.into();
        self.block().encrypt_block(&mut block);
        Nonce(block.into())
    }

    /// The nonce of a creator that the store returned.
    pub(super) fn open_nonce(&self, nonce: Nonce) -> Nonce {
        let mut block = nonce.0.into();
        self.block().decrypt_block(&mut block);
        Nonce(block.into())
    }

    /// The code that shows that a holder of the bucket key wrapped it.
    pub(super) fn sign_recipient(&self, fields: &[u8]) -> [u8; 32] {
        let mut code = [0; 32];
        code.copy_from_slice(hmac::sign(&self.recipients, fields).as_ref());
        code
    }

    pub(super) fn verifies_recipient(&self, fields: &[u8], code: &[u8]) -> bool {
        hmac::verify(&self.recipients, fields, code).is_ok()
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "keys of {:?}", self.id)
    }
}
