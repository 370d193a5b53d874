//! The key objects of a sealed bucket, which are readable.
//!
//! ```text
//! key/bucket                              the bucket is encrypted, with the key of this id
//! key/wrapped.<id of the key>.<short>     the key, wrapped for one recipient
//! ```
//! Both are JSON in one line, byte for byte as this program writes it. `short` is the beginning of
//! the SHA-256 of the recipient's key.
//!
//! # Invariants
//! 1. `key/bucket` is created once and last, so one key wins if two servers create one at the same
//!    time. The keys of the loser are deleted.
//! 2. A wrapped key has a code over all its fields, which only a holder of the bucket key can make.
//!    A list of recipients shows only those.
//! 3. A bucket has at least one recipient.

use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::entropy::{Entropy, random};
use super::holder::KeyHolder;
use super::identity::{Identity, Recipient, WRAPPED};
use super::keys::{BucketKey, KeyId, Keys};
use crate::error::{KeyTrouble, StoreError, Trouble, Verb};
use crate::name::{Name, Prefix};
use crate::store::{ListFrom, Nonce, Put, Store, list_all};

const FOLDER: &str = "key/";
const MARK: &str = "key/bucket";
const PROBE: &str = "probe/";
const VERSION: u32 = 1;
/// Bytes of a key object. A longer one is damaged.
const BYTES_MAX: usize = 4096;

/// `key/bucket`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mark {
    cairn: String,
    version: u32,
    key: String,
}

const MARK_KIND: &str = "encrypted bucket";

/// `key/wrapped...`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wrapped {
    cairn: String,
    version: u32,
    key: String,
    recipient: String,
    share: String,
    wrapped: String,
    code: String,
}

const WRAPPED_KIND: &str = "wrapped key";

fn hex(bytes: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(bytes)
}

fn bytes_of<const N: usize>(text: &str) -> Option<[u8; N]> {
    data_encoding::HEXLOWER.decode(text.as_bytes()).ok()?.try_into().ok()
}

fn to_line<T: Serialize>(value: &T) -> Vec<u8> {
    let mut line = serde_json::to_vec(value).unwrap_or_default();
    line.push(b'\n');
    line
}

/// Reads an object that this program wrote: any other form of the same JSON is refused.
fn of_line<T: Serialize + for<'a> Deserialize<'a>>(bytes: &[u8]) -> Option<T> {
    let value: T = serde_json::from_slice(bytes).ok()?;
    (to_line(&value) == bytes).then_some(value)
}

/// The version in a key object, which is read first.
fn version_of(bytes: &[u8]) -> Option<u32> {
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    serde_json::from_slice::<Versioned>(bytes).ok().map(|found| found.version)
}

impl Wrapped {
    fn new(keys: &Keys, recipient: &Recipient, entropy: &dyn Entropy) -> Option<Self> {
        let (share, wrapped) = recipient.wrap(keys.bucket_key(), entropy)?;
        let mut own = Self {
            cairn: WRAPPED_KIND.to_owned(),
            version: VERSION,
            key: keys.id.to_string(),
            recipient: recipient.to_string(),
            share: hex(&share),
            wrapped: hex(&wrapped),
            code: String::new(),
        };
        own.code = hex(&keys.sign_recipient(&own.fields()));
        Some(own)
    }

    fn parse(bytes: &[u8]) -> Option<(Self, KeyId, Recipient)> {
        let own: Self = of_line(bytes)?;
        let (id, recipient) = (KeyId::parse(&own.key)?, own.recipient.parse().ok()?);
        let is_own = own.cairn == WRAPPED_KIND && own.version == VERSION;
        let is_whole = bytes_of::<32>(&own.share).is_some()
            && bytes_of::<WRAPPED>(&own.wrapped).is_some()
            && bytes_of::<32>(&own.code).is_some();
        (is_own && is_whole).then_some((own, id, recipient))
    }

    /// Everything but the code.
    fn fields(&self) -> Vec<u8> {
        [&self.cairn, &self.key, &self.recipient, &self.share, &self.wrapped]
            .map(String::as_str)
            .join(" ")
            .into()
    }

    fn unwrap(&self, id: KeyId, identity: &Identity) -> Option<BucketKey> {
        identity.unwrap(id, &bytes_of(&self.share)?, &bytes_of(&self.wrapped)?)
    }

    fn is_signed(&self, keys: &Keys) -> bool {
        bytes_of::<32>(&self.code).is_some_and(|code| keys.verifies_recipient(&self.fields(), &code))
    }
}

/// A key object as it was read and written again; for fuzzing.
pub(super) fn reread(bytes: &[u8]) -> Option<Vec<u8>> {
    Wrapped::parse(bytes).map(|(own, _, _)| to_line(&own))
}

/// Whether a bucket is encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyringState {
    /// It has no key objects.
    Plain,
    /// It has wrapped keys and no mark: it was about to be encrypted, or the mark was deleted.
    Begun,
    /// It is encrypted with this key.
    Encrypted(KeyId),
}

/// The key objects of a bucket. `store` is the store below the seal.
pub struct Keyring<'a> {
    store: &'a dyn Store,
}

impl<'a> Keyring<'a> {
    /// Those in `store`.
    pub fn new(store: &'a dyn Store) -> Self {
        Self { store }
    }

    fn blamed(&self, verb: Verb, name: Option<&Name>, trouble: Trouble) -> StoreError {
        StoreError { verb, name: name.cloned(), place: self.store.place().into(), trouble }
    }

    fn name(&self, text: String) -> Result<Name, StoreError> {
        Name::new(text)
            .map_err(|_| self.blamed(Verb::Open, None, Trouble::Rule("the name of a key is wrong")))
    }

    fn wrapped_name(&self, id: KeyId, recipient: &Recipient) -> Result<Name, StoreError> {
        self.name(format!("{FOLDER}wrapped.{id}.{}", recipient.short()))
    }

    fn prefix(&self) -> Result<Prefix, StoreError> {
        Prefix::new(FOLDER)
            .map_err(|_| self.blamed(Verb::Open, None, Trouble::Rule("the prefix of keys is wrong")))
    }

    fn small(&self, name: &Name, cancel: &AtomicBool) -> Result<Option<Bytes>, StoreError> {
        match self.store.get(name, 0, BYTES_MAX, cancel) {
            Err(error) if error.is_missing() => Ok(None),
            got => got.map(Some),
        }
    }

    /// The fault of a key object that does not parse.
    fn unreadable(&self, name: &Name, bytes: &[u8]) -> StoreError {
        let trouble = match version_of(bytes) {
            Some(version) if version > VERSION => Trouble::Newer(version),
            _ => Trouble::Damaged { how: "it is not a key object that Cairn wrote", stored: None },
        };
        self.blamed(Verb::Open, Some(name), trouble)
    }

    /// Whether the bucket is encrypted.
    ///
    /// # Errors
    /// The store failed, or the mark is damaged.
    pub fn state(&self, cancel: &AtomicBool) -> Result<KeyringState, StoreError> {
        let name = self.name(MARK.to_owned())?;
        let Some(bytes) = self.small(&name, cancel)? else {
            let page = self.store.list(&self.prefix()?, &ListFrom::Start, 1, cancel)?;
            let is_empty = page.objects.is_empty() && page.next.is_none();
            return Ok(if is_empty { KeyringState::Plain } else { KeyringState::Begun });
        };
        let mark = of_line::<Mark>(&bytes);
        let mark = mark.filter(|mark| mark.cairn == MARK_KIND && mark.version == VERSION);
        let id = mark.and_then(|mark| KeyId::parse(&mark.key));
        id.map(KeyringState::Encrypted).ok_or_else(|| self.unreadable(&name, &bytes))
    }

    /// An object that is neither a key nor left by a probe; none in an empty bucket.
    ///
    /// # Errors
    /// The store failed.
    pub fn other_object(&self, cancel: &AtomicBool) -> Result<Option<Name>, StoreError> {
        let mut from = ListFrom::Start;
        loop {
            let page = self.store.list(&Prefix::all(), &from, crate::limits::PAGE_OBJECTS_MAX, cancel)?;
            let is_other = |name: &Name| ![FOLDER, PROBE].iter().any(|own| name.as_str().starts_with(own));
            if let Some(found) = page.objects.into_iter().find(|listed| is_other(&listed.name)) {
                return Ok(Some(found.name));
            }
            match page.next {
                Some(next) if from != ListFrom::Page(next.clone()) => from = ListFrom::Page(next),
                _ => return Ok(None),
            }
        }
    }

    /// Makes a key for an empty bucket, wrapped for each recipient. Returns the id of another key
    /// if another server has just made one.
    ///
    /// # Errors
    /// The store failed; a later call makes another key.
    pub fn create(
        &self,
        recipients: &[Recipient],
        entropy: &dyn Entropy,
        cancel: &AtomicBool,
    ) -> Result<KeyId, StoreError> {
        let keys = Keys::of(&BucketKey::generate(entropy));
        if recipients.is_empty() {
            return Err(self.blamed(
                Verb::Open,
                None,
                Trouble::Rule("an encrypted bucket needs a recipient"),
            ));
        }
        for recipient in recipients {
            self.put_wrapped(&keys, recipient, entropy, cancel)?;
        }
        let mark = Mark { cairn: MARK_KIND.to_owned(), version: VERSION, key: keys.id.to_string() };
        let name = self.name(MARK.to_owned())?;
        let put = self.store.put_new(&name, to_line(&mark).into(), Nonce(random(entropy)), cancel)?;
        // A store that ignores create-only puts may have let another server win.
        match self.state(cancel)? {
            KeyringState::Encrypted(id) if id == keys.id => Ok(id),
            KeyringState::Encrypted(id) => {
                for recipient in recipients {
                    self.store.delete(&self.wrapped_name(keys.id, recipient)?, cancel)?;
                }
                Ok(id)
            }
            _ => {
                debug_assert_eq!(put, Put::Created);
                Err(self.blamed(Verb::Open, Some(&name), Trouble::Missing))
            }
        }
    }

    fn put_wrapped(
        &self,
        keys: &Keys,
        recipient: &Recipient,
        entropy: &dyn Entropy,
        cancel: &AtomicBool,
    ) -> Result<Put, StoreError> {
        let weak = Trouble::Rule("the public key of the recipient is no key that `cairn key create` makes");
        let wrapped = Wrapped::new(keys, recipient, entropy);
        let wrapped = wrapped.ok_or_else(|| self.blamed(Verb::Open, None, weak))?;
        let name = self.wrapped_name(keys.id, recipient)?;
        self.store.put_new(&name, to_line(&wrapped).into(), Nonce(random(entropy)), cancel)
    }

    /// Unwraps the bucket key of this id with one of the identities.
    ///
    /// # Errors
    /// [`KeyTrouble::NotRecipient`] if none of them opens it.
    pub fn unlock(
        &self,
        id: KeyId,
        identities: &[Identity],
        cancel: &AtomicBool,
    ) -> Result<BucketKey, StoreError> {
        for identity in identities {
            let name = self.wrapped_name(id, &identity.recipient())?;
            let Some(bytes) = self.small(&name, cancel)? else { continue };
            let (wrapped, found, _) = Wrapped::parse(&bytes).ok_or_else(|| self.unreadable(&name, &bytes))?;
            let key = (found == id).then(|| wrapped.unwrap(id, identity)).flatten();
            match key.filter(|key| wrapped.is_signed(&Keys::of(key))) {
                Some(key) => return Ok(key),
                None => {
                    let how = "it does not open with the key that it was wrapped for";
                    return Err(self.blamed(Verb::Open, Some(&name), Trouble::Damaged { how, stored: None }));
                }
            }
        }
        Err(self.blamed(Verb::Open, None, Trouble::Key(KeyTrouble::NotRecipient)))
    }

    /// The recipients of the key, in order of their texts. Entries that no holder of the key made
    /// are left out.
    ///
    /// # Errors
    /// The store failed, or the key does not open.
    pub fn recipients(&self, holder: &KeyHolder, cancel: &AtomicBool) -> Result<Vec<Recipient>, StoreError> {
        let keys = holder.keys(self.store, cancel)?;
        let mut recipients = Vec::new();
        for listed in list_all(self.store, &self.prefix()?, cancel)? {
            let Some(bytes) = self.small(&listed.name, cancel)? else { continue };
            let Some((wrapped, id, recipient)) = Wrapped::parse(&bytes) else { continue };
            let is_named = self.wrapped_name(id, &recipient)? == listed.name;
            if is_named && id == keys.id && wrapped.is_signed(&keys) {
                recipients.push(recipient);
            }
        }
        recipients.sort_by_key(ToString::to_string);
        Ok(recipients)
    }

    /// Wraps the key for one more recipient. Returns false if it has been one.
    ///
    /// # Errors
    /// The store failed, or the key does not open.
    pub fn add(
        &self,
        holder: &KeyHolder,
        recipient: &Recipient,
        entropy: &dyn Entropy,
        cancel: &AtomicBool,
    ) -> Result<bool, StoreError> {
        let keys = holder.keys(self.store, cancel)?;
        if self.recipients(holder, cancel)?.contains(recipient) {
            return Ok(false);
        }
        match self.put_wrapped(&keys, recipient, entropy, cancel)? {
            Put::Created => Ok(true),
            Put::Exists => {
                // An entry that is damaged, or that no holder of the key made.
                self.store.delete(&self.wrapped_name(keys.id, recipient)?, cancel)?;
                Ok(self.put_wrapped(&keys, recipient, entropy, cancel)? == Put::Created)
            }
        }
    }

    /// Deletes the key that is wrapped for a recipient.
    ///
    /// # Errors
    /// [`KeyTrouble::LastRecipient`] if there is no other one, [`KeyTrouble::NoRecipient`] if it is
    /// none.
    pub fn remove(
        &self,
        holder: &KeyHolder,
        recipient: &Recipient,
        cancel: &AtomicBool,
    ) -> Result<(), StoreError> {
        let recipients = self.recipients(holder, cancel)?;
        let trouble = match recipients.as_slice() {
            all if !all.contains(recipient) => Some(KeyTrouble::NoRecipient),
            [_] => Some(KeyTrouble::LastRecipient),
            _ => None,
        };
        if let Some(trouble) = trouble {
            return Err(self.blamed(Verb::Open, None, Trouble::Key(trouble)));
        }
        self.store.delete(&self.wrapped_name(holder.id(), recipient)?, cancel)
    }
}
