//! The verbs of a store.
//!
//! # Invariants
//! 1. No object is overwritten. [`Store::put_new`] and [`Store::finish`] create an object or report
//!    that it exists; no other call writes.
//! 2. An object is whole or absent. A crash during a put leaves nothing under its name; a crash
//!    between pieces leaves an upload, which no reader sees and [`Store::uploads`] lists.
//! 3. An object acknowledged with [`Put::Created`] survives a crash of the caller. It survives a
//!    crash of the store as far as the store promises.
//! 4. Each created object carries the nonce of its creator as metadata, written with the object in
//!    one step. A creator that lost the answer reads the nonce back and knows whether the object is
//!    its own. The nonce is metadata, not a header of the object, so that a download has exactly
//!    the bytes that Cairn wrote.
//! 5. A put whose answer was lost may take effect at any later time, also after the object was
//!    deleted. Callers therefore never reuse a name, and find such leftovers by listing.

use std::fmt;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use cairn_base::{Rng, Timestamp};
use serde::{Deserialize, Serialize};

use crate::error::StoreError;
use crate::name::{Name, Prefix};

/// Identifies the creator of an object: 128 random bits for each attempt to create one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Nonce(pub [u8; 16]);

impl Nonce {
    /// A new one. The generator must have been seeded by the operating system, as two that are
    /// equal would let one creator take another's object for its own.
    pub fn random(rng: &mut Rng) -> Self {
        let mut bytes = [0; 16];
        rng.fill(&mut bytes);
        Self(bytes)
    }

    /// Parses the nonce that a store returned; none for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.as_bytes();
        if digits.len() != 32 || !digits.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        let mut bytes = [0; 16];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(Self(bytes))
    }
}

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nonce:{self}")
    }
}

/// How a create-only put ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    /// The object exists, is durable, and was created by this call.
    Created,
    /// An object of that name was there before. It was not changed.
    Exists,
}

/// The attributes of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// Bytes.
    pub length: u64,
    /// The entity tag of the store: another object of the same name has another one.
    pub tag: Option<String>,
    /// The nonce of its creator, if the store kept it.
    pub nonce: Option<Nonce>,
    /// When its lock ends; none without a lock.
    pub locked_until: Option<Timestamp>,
}

/// An object in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub name: Name,
    /// Bytes.
    pub length: u64,
    /// When it was created, by the clock of the store.
    pub created: Timestamp,
}

/// Where a listing begins.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ListFrom {
    /// At the first object.
    #[default]
    Start,
    /// After this name, whether or not it exists.
    After(Name),
    /// Where the previous page ended.
    Page(Cursor),
}

/// Where a page ended; only the store that made it understands it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor(pub(crate) String);

/// A part of a listing, in order of names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Page {
    /// The objects. A page other than the last may be empty.
    pub objects: Vec<Listed>,
    /// Where the next page begins; none after the last one.
    pub next: Option<Cursor>,
}

/// An object that is put in pieces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upload {
    /// The name of the object.
    #[serde(with = "text")]
    pub name: Name,
    /// The name that the store gave the upload.
    pub id: String,
}

/// A piece of an upload that the store has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// ListFrom 1 on, without a gap when the upload is finished.
    pub number: u32,
    /// Bytes.
    pub length: u64,
    /// The name that the store gave its content. A part after `~` is of the client that put it; a
    /// listing lacks that part.
    pub tag: String,
}

impl Piece {
    /// Whether this answer to a put and `listed`, which a listing shows, are the same piece. Stores
    /// put quotes around a tag in one of the two.
    pub fn is(&self, listed: &Piece) -> bool {
        let tag = |piece: &Piece| {
            let tag = piece.tag.split_once('~').map_or(piece.tag.as_str(), |(tag, _)| tag);
            tag.trim_matches('"').to_owned()
        };
        (self.number, self.length) == (listed.number, listed.length) && tag(self) == tag(listed)
    }
}

/// The operations of an object store that Cairn needs.
///
/// Calls block their thread, for a time that [`crate::limits`] bounds. `cancel` ends a call soon
/// after it becomes true; the effect of a cancelled call is unknown ([`StoreError::is_unclear`]).
pub trait Store: Send + Sync {
    /// The place as people write it: `s3://bucket/prefix`, `file:///srv/bucket`.
    fn place(&self) -> &str;

    /// Whether [`Store::list`] lists in order of names. An encrypted bucket has an order of its
    /// own, in which only the numbers of epochs and images are in order.
    fn lists_in_order(&self) -> bool;

    /// Creates an object of at most [`crate::limits::PUT_BYTES_MAX`] bytes, unless one of that name
    /// exists. An encrypted bucket takes 32 KiB less.
    ///
    /// # Errors
    /// The object was not created, or that is unclear. A repeated call with the same nonce is safe.
    fn put_new(
        &self,
        name: &Name,
        bytes: Bytes,
        nonce: Nonce,
        cancel: &AtomicBool,
    ) -> Result<Put, StoreError>;

    /// Begins an object that is put in pieces. No reader sees it before [`Store::finish`].
    ///
    /// A crash after it leaves an upload that costs room until it is aborted.
    ///
    /// # Errors
    /// A lost answer leaves an upload without an owner; [`Store::uploads`] lists it.
    fn begin(&self, name: &Name, nonce: Nonce, cancel: &AtomicBool) -> Result<Upload, StoreError>;

    /// Puts a piece; a piece of the same number is replaced. Several pieces may be put at the same
    /// time.
    ///
    /// # Errors
    /// The piece is missing, or that is unclear. A repeated call is safe.
    fn put_piece(
        &self,
        upload: &Upload,
        number: u32,
        bytes: Bytes,
        cancel: &AtomicBool,
    ) -> Result<Piece, StoreError>;

    /// The pieces that the store has of an upload, in order of their numbers.
    ///
    /// # Errors
    /// [`crate::Trouble::Unsupported`] if the store cannot list them; the caller then relies on the
    /// answers of [`Store::put_piece`].
    fn pieces(&self, upload: &Upload, cancel: &AtomicBool) -> Result<Vec<Piece>, StoreError>;

    /// Makes an object of the pieces, at least one, unless an object of that name exists. `nonce`
    /// is that of [`Store::begin`].
    ///
    /// With [`Put::Exists`] the upload is still there and should be aborted.
    ///
    /// # Errors
    /// The object was not created, or the outcome is unknown. A repeated call is safe. It may fail
    /// with [`crate::Trouble::NoUpload`] after a success.
    fn finish(
        &self,
        upload: &Upload,
        nonce: Nonce,
        pieces: &[Piece],
        cancel: &AtomicBool,
    ) -> Result<Put, StoreError>;

    /// Removes an upload and its pieces. A missing upload is not an error.
    ///
    /// # Errors
    /// The upload may still be there.
    fn abort(&self, upload: &Upload, cancel: &AtomicBool) -> Result<(), StoreError>;

    /// Uploads below a prefix that were begun and neither finished nor aborted.
    ///
    /// # Errors
    /// [`crate::Trouble::Unsupported`] if the store cannot list them.
    fn uploads(&self, prefix: &Prefix, cancel: &AtomicBool) -> Result<Vec<Upload>, StoreError>;

    /// Reads at most `length` bytes from `offset` on; fewer only at the end of the object, and no
    /// bytes past it.
    ///
    /// # Errors
    /// Nothing was read.
    fn get(&self, name: &Name, offset: u64, length: usize, cancel: &AtomicBool) -> Result<Bytes, StoreError>;

    /// As [`Store::get`], in as many pieces as they arrived: a caller that copies them anyway saves
    /// the copy that joins them.
    ///
    /// # Errors
    /// Nothing was read.
    fn get_pieces(
        &self,
        name: &Name,
        offset: u64,
        length: usize,
        cancel: &AtomicBool,
    ) -> Result<Vec<Bytes>, StoreError> {
        Ok(vec![self.get(name, offset, length, cancel)?])
    }

    /// Inspects an object.
    ///
    /// # Errors
    /// [`crate::Trouble::Missing`] if the object does not exist.
    fn head(&self, name: &Name, cancel: &AtomicBool) -> Result<Head, StoreError>;

    /// Lists at most `count` objects in order of their names, or in the order of
    /// [`Store::lists_in_order`]. The length of an object that was put in pieces may be a little
    /// too large in an encrypted bucket; [`Store::head`] has the exact one.
    ///
    /// # Errors
    /// Nothing was listed.
    fn list(
        &self,
        prefix: &Prefix,
        from: &ListFrom,
        count: usize,
        cancel: &AtomicBool,
    ) -> Result<Page, StoreError>;

    /// Deletes an object. A missing object is not an error.
    ///
    /// # Errors
    /// [`crate::Trouble::Locked`] while a lock holds it. Otherwise it may still be there.
    fn delete(&self, name: &Name, cancel: &AtomicBool) -> Result<(), StoreError>;

    /// Locks an object against deletion until a time, in compliance mode: no one can end the lock
    /// before. A call that would shorten a lock changes nothing. Not every store keeps to that, so
    /// callers use [`extend_lock`], which does not ask for it; the probe calls this.
    ///
    /// # Errors
    /// [`crate::Trouble::Unsupported`] if the store has no locks.
    fn lock_until(&self, name: &Name, until: Timestamp, cancel: &AtomicBool) -> Result<(), StoreError>;
}

impl<S: Store + ?Sized> Store for std::sync::Arc<S> {
    fn place(&self) -> &str {
        (**self).place()
    }

    fn lists_in_order(&self) -> bool {
        (**self).lists_in_order()
    }

    fn put_new(
        &self,
        name: &Name,
        bytes: Bytes,
        nonce: Nonce,
        cancel: &AtomicBool,
    ) -> Result<Put, StoreError> {
        (**self).put_new(name, bytes, nonce, cancel)
    }

    fn begin(&self, name: &Name, nonce: Nonce, cancel: &AtomicBool) -> Result<Upload, StoreError> {
        (**self).begin(name, nonce, cancel)
    }

    fn put_piece(
        &self,
        upload: &Upload,
        number: u32,
        bytes: Bytes,
        cancel: &AtomicBool,
    ) -> Result<Piece, StoreError> {
        (**self).put_piece(upload, number, bytes, cancel)
    }

    fn pieces(&self, upload: &Upload, cancel: &AtomicBool) -> Result<Vec<Piece>, StoreError> {
        (**self).pieces(upload, cancel)
    }

    fn finish(
        &self,
        upload: &Upload,
        nonce: Nonce,
        pieces: &[Piece],
        cancel: &AtomicBool,
    ) -> Result<Put, StoreError> {
        (**self).finish(upload, nonce, pieces, cancel)
    }

    fn abort(&self, upload: &Upload, cancel: &AtomicBool) -> Result<(), StoreError> {
        (**self).abort(upload, cancel)
    }

    fn uploads(&self, prefix: &Prefix, cancel: &AtomicBool) -> Result<Vec<Upload>, StoreError> {
        (**self).uploads(prefix, cancel)
    }

    fn get(&self, name: &Name, offset: u64, length: usize, cancel: &AtomicBool) -> Result<Bytes, StoreError> {
        (**self).get(name, offset, length, cancel)
    }

    fn get_pieces(
        &self,
        name: &Name,
        offset: u64,
        length: usize,
        cancel: &AtomicBool,
    ) -> Result<Vec<Bytes>, StoreError> {
        (**self).get_pieces(name, offset, length, cancel)
    }

    fn head(&self, name: &Name, cancel: &AtomicBool) -> Result<Head, StoreError> {
        (**self).head(name, cancel)
    }

    fn list(
        &self,
        prefix: &Prefix,
        from: &ListFrom,
        count: usize,
        cancel: &AtomicBool,
    ) -> Result<Page, StoreError> {
        (**self).list(prefix, from, count, cancel)
    }

    fn delete(&self, name: &Name, cancel: &AtomicBool) -> Result<(), StoreError> {
        (**self).delete(name, cancel)
    }

    fn lock_until(&self, name: &Name, until: Timestamp, cancel: &AtomicBool) -> Result<(), StoreError> {
        (**self).lock_until(name, until, cancel)
    }
}

/// Locks an object until a time, unless it is locked for longer.
///
/// # Errors
/// As [`Store::lock_until`].
pub fn extend_lock(
    store: &dyn Store,
    name: &Name,
    until: Timestamp,
    cancel: &AtomicBool,
) -> Result<(), StoreError> {
    match store.head(name, cancel)?.locked_until {
        Some(held) if held >= until => Ok(()),
        _ => store.lock_until(name, until, cancel),
    }
}

/// Everything below a prefix, in order of names.
///
/// # Errors
/// As [`Store::list`]; also [`crate::Trouble::Answer`] past [`crate::limits::COLLECTED_MAX`]
/// objects, or when the names are not in order.
pub fn list_all(store: &dyn Store, prefix: &Prefix, cancel: &AtomicBool) -> Result<Vec<Listed>, StoreError> {
    use crate::error::{Trouble, Verb};
    let (mut all, mut from) = (Vec::<Listed>::new(), ListFrom::Start);
    let answer = |what| StoreError {
        verb: Verb::List,
        name: None,
        place: store.place().into(),
        trouble: Trouble::Answer(what),
    };
    loop {
        let page = store.list(prefix, &from, crate::limits::PAGE_OBJECTS_MAX, cancel)?;
        for listed in page.objects {
            let is_in_order = all.last().is_none_or(|last| last.name < listed.name);
            if !is_in_order && store.lists_in_order() {
                return Err(answer("a listing is not in order of names"));
            }
            all.push(listed);
        }
        if all.len() > crate::limits::COLLECTED_MAX {
            return Err(answer("a listing has more objects than fit in memory"));
        }
        match page.next {
            Some(next) if from == ListFrom::Page(next.clone()) => {
                return Err(answer("a listing does not end"));
            }
            Some(next) => from = ListFrom::Page(next),
            None => break,
        }
    }
    if !store.lists_in_order() {
        all.sort_by(|one, other| one.name.cmp(&other.name));
        if all.windows(2).any(|pair| matches!(pair, [one, other] if one.name == other.name)) {
            return Err(answer("a listing has a name twice"));
        }
    }
    Ok(all)
}

/// A name as text in serde.
mod text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use crate::name::Name;

    pub(super) fn serialize<S: Serializer>(name: &Name, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(name.as_str())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Name, D::Error> {
        Name::new(String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}
