//! The key of one bucket in memory: unwrapped when it is used first, and kept.

use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use super::identity::Identity;
use super::keyring::Keyring;
use super::keys::{BucketKey, KeyId, Keys};
use crate::error::StoreError;
use crate::store::Store;

/// Holds the key of one bucket, or the identities that open it. All clients of a bucket share one,
/// so that the key is unwrapped once.
pub struct KeyHolder {
    id: KeyId,
    identities: Vec<Identity>,
    keys: OnceLock<Arc<Keys>>,
}

impl KeyHolder {
    /// Opens the key of this id with one of the identities, when it is needed.
    pub fn new(id: KeyId, identities: Vec<Identity>) -> Self {
        Self { id, identities, keys: OnceLock::new() }
    }

    /// Has the key.
    pub fn with_key(key: &BucketKey) -> Self {
        let holder = Self::new(key.id(), Vec::new());
        let _ = holder.keys.set(Arc::new(Keys::of(key)));
        holder
    }

    /// The id of the bucket key.
    pub fn id(&self) -> KeyId {
        self.id
    }

    /// The keys, from the bucket if they are not known yet.
    pub(super) fn keys(&self, store: &dyn Store, cancel: &AtomicBool) -> Result<Arc<Keys>, StoreError> {
        if let Some(keys) = self.keys.get() {
            return Ok(keys.clone());
        }
        let key = Keyring::new(store).unlock(self.id, &self.identities, cancel)?;
        Ok(self.keys.get_or_init(|| Arc::new(Keys::of(&key))).clone())
    }

    /// Opens the key, if that has not been done.
    ///
    /// # Errors
    /// The store failed, or no identity opens the key.
    pub fn open(&self, store: &dyn Store, cancel: &AtomicBool) -> Result<(), StoreError> {
        self.keys(store, cancel).map(drop)
    }
}

impl fmt::Debug for KeyHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyHolder").field("id", &self.id).finish_non_exhaustive()
    }
}
