//! Keys of encrypted buckets: the files with identities, and the keys in memory.
//!
//! The server keeps the path of a key file, and reads the file when a bucket is used first. The id
//! of the key of the bucket is kept as well: a store that shows another key is refused, as it could
//! have made that key itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use cairn_bucket::seal::{Entropy, Identity, KeyHolder, KeyId, Keyring, KeyringState, Sealed};
use cairn_bucket::{KeyTrouble, Store, Trouble};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::buckets::error::BucketsError;
use crate::buckets::{Bucket, Buckets, PROBE_PATIENCE, check_file, store_error};
use crate::error::ServerError;

/// How a bucket is encrypted, as it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Encryption {
    pub(super) key_file: PathBuf,
    /// The id of the key of the bucket.
    pub(super) key_id: String,
    /// The public key of the identity that opens it.
    pub(super) recipient: String,
}

impl Encryption {
    fn id(&self) -> Result<KeyId, ServerError> {
        KeyId::parse(&self.key_id).ok_or(ServerError::Bug)
    }
}

/// Random bytes of the operating system.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SystemEntropy;

impl Entropy for SystemEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        getrandom::fill(bytes).expect("the system gives random numbers once it has booted");
    }
}

/// The identities in a key file.
pub(super) fn identities(path: &Path) -> Result<Vec<Identity>, ServerError> {
    check_file("key", path)?;
    let failed = |source| BucketsError::File { what: "key", path: path.to_owned(), source };
    let text = Zeroizing::new(fs::read(path).map_err(failed)?);
    // Bytes that are no text are in no line of a key.
    let text = Zeroizing::new(String::from_utf8_lossy(&text).into_owned());
    Identity::parse_file(&text)
        .map_err(|source| BucketsError::KeyFile { path: path.to_owned(), source }.into())
}

impl Buckets {
    /// The store that encrypts in front of the one below.
    pub(super) fn sealed(
        &self,
        name: &str,
        encryption: &Encryption,
        below: Arc<dyn Store>,
    ) -> Result<Sealed, ServerError> {
        Ok(Sealed::new(below, self.holder(name, encryption)?, Arc::new(SystemEntropy)))
    }

    /// The key of a bucket, which all clients share.
    pub(super) fn holder(&self, name: &str, encryption: &Encryption) -> Result<Arc<KeyHolder>, ServerError> {
        let id = encryption.id()?;
        if let Some(known) = self.holders.lock().get(name).filter(|known| known.id() == id) {
            return Ok(known.clone());
        }
        let holder = Arc::new(KeyHolder::new(id, identities(&encryption.key_file)?));
        self.holders.lock().insert(name.to_owned(), holder.clone());
        Ok(holder)
    }

    /// Forgets the key of a bucket, and the clients that have it.
    pub(super) fn forget_key(&self, name: &str) {
        self.readers.lock().remove(name);
        self.holders.lock().remove(name);
    }

    /// Finds out whether a new bucket is encrypted, and makes its key if it is empty. Refuses a
    /// bucket that differs from the request.
    pub(super) fn begin_encryption(
        &self,
        bucket: &Bucket,
        key_file: Option<&Path>,
        cancel: &AtomicBool,
    ) -> Result<Option<Encryption>, ServerError> {
        let failed = |source| store_error(&bucket.name, source);
        let below = self.client_below(bucket, PROBE_PATIENCE, None)?;
        let ring = Keyring::new(&*below);
        let state = ring.state(cancel).map_err(failed)?;
        let place = bucket.place.clone();
        let Some(path) = key_file else {
            return match state {
                KeyringState::Plain => Ok(None),
                _ => Err(BucketsError::Encrypted { name: bucket.name.clone(), place }.into()),
            };
        };
        let identities = identities(path)?;
        let id = match state {
            KeyringState::Encrypted(id) => id,
            state => {
                match (ring.other_object(cancel).map_err(failed)?, state) {
                    (None, _) => {}
                    (Some(_), KeyringState::Begun) => return Err(BucketsError::NoKeyMark { place }.into()),
                    (Some(object), _) => {
                        let object = object.to_string();
                        return Err(BucketsError::PlainObjects { place, object }.into());
                    }
                }
                let recipients: Vec<_> = identities.iter().map(Identity::recipient).collect();
                ring.create(&recipients, &SystemEntropy, cancel).map_err(failed)?
            }
        };
        self.opened(&below, &bucket.name, (id, identities), path, cancel).map(Some)
    }

    /// Opens the key of this id with an identity of the file.
    pub(super) fn opened(
        &self,
        below: &Arc<dyn Store>,
        name: &str,
        (id, identities): (KeyId, Vec<Identity>),
        path: &Path,
        cancel: &AtomicBool,
    ) -> Result<Encryption, ServerError> {
        let ring = Keyring::new(&**below);
        let mut last = None;
        for identity in &identities {
            match ring.unlock(id, std::slice::from_ref(identity), cancel) {
                Ok(_) => {
                    let recipient = identity.recipient().to_string();
                    return Ok(Encryption { key_file: path.to_owned(), key_id: id.to_string(), recipient });
                }
                Err(error) if matches!(error.trouble, Trouble::Key(KeyTrouble::NotRecipient)) => {
                    last = Some(error);
                }
                Err(error) => return Err(store_error(name, error)),
            }
        }
        Err(last.map_or(ServerError::Bug, |error| store_error(name, error)))
    }

    /// Checks that an encrypted bucket opens as it did, and that another one is not encrypted.
    pub(super) fn check_encryption(&self, bucket: &Bucket, cancel: &AtomicBool) -> Result<(), ServerError> {
        let failed = |source| store_error(&bucket.name, source);
        let below = self.client_below(bucket, PROBE_PATIENCE, None)?;
        let found = Keyring::new(&*below).state(cancel).map_err(failed)?;
        let (name, place) = (bucket.name.clone(), bucket.place.clone());
        let Some(encryption) = &bucket.encryption else {
            return match found {
                KeyringState::Plain => Ok(()),
                _ => Err(BucketsError::Encrypted { name, place }.into()),
            };
        };
        let id = encryption.id()?;
        match found {
            KeyringState::Encrypted(found) if found == id => {}
            KeyringState::Encrypted(found) => {
                let (known, found) = (id.to_string(), found.to_string());
                return Err(BucketsError::OtherKey { name, known, found }.into());
            }
            _ => return Err(BucketsError::NoKeyMark { place }.into()),
        }
        let identities = identities(&encryption.key_file)?;
        self.opened(&below, &bucket.name, (id, identities), &encryption.key_file, cancel).map(drop)
    }
}
