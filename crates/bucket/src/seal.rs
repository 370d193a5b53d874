//! Encryption at the edge: a store that encrypts everything that it puts into the store below.
//!
//! [`Sealed`] is a [`Store`] over another one, so dumps and images know nothing of it. Every object
//! in a sealed bucket is encrypted and authenticated, and so is its name. Only [`keyring`] objects
//! below `key/`, and those of a probe, are readable.
//!
//! # Threat model
//! The adversary runs the store, or reads and writes it with stolen credentials. It sees all
//! requests, and can change, swap, cut, withhold, delete and replay objects.
//!
//! It learns the number of objects, their lengths, the lengths of the parts of their names, and
//! which objects share a folder. It sees the times and ranges of reads and writes, the public keys
//! of the recipients, and the numbers of epochs and images ([`names`]). It does not learn contents,
//! or names of volumes, snapshots, dumps and paths.
//!
//! It is detected if it changes an object, cuts or extends it, gives one object for another one, or
//! mixes the pieces of two. It is not detected by this module if it withholds or deletes objects,
//! or gives back an object that was deleted. [`crate::images::Seen`] detects an old root, and
//! dumps detect a missing part or index.
//!
//! A holder of the bucket key can write anything. Removing a recipient does not take the bucket key
//! from those that have read it. This machine, its memory and the identity file are trusted.
//!
//! A store that knows the public key of a recipient can make a bucket key of its own for it. So a
//! server keeps the id of the bucket key that it found first, and refuses any other. People compare
//! the ids that two servers show.
//!
//! # Keys
//! ```text
//! bucket key, 32 random bytes
//!   HKDF-SHA256, salt empty
//!     "cairn bucket: id"           16 bytes   id of the key: readable
//!     "cairn bucket: objects"      32 bytes   objects key
//!     "cairn bucket: names"        64 bytes   AES-256-SIV of names
//!     "cairn bucket: nonces"       32 bytes   AES-256 of the nonces of creators, one block each
//!     "cairn bucket: recipients"   32 bytes   HMAC-SHA256 of the wrapped keys
//! object key: HKDF-SHA256 of the objects key, salt of the header,
//!     info "cairn bucket: object" + header + name
//! ```
//!
//! # Format of an object
//! ```text
//! object put at once         header of kind 1, chunks
//! object put in pieces       for each piece: header of kind 2, chunks
//!                            then the map: header of kind 3, chunks, length of these (8), CAIRNMAP
//!
//! bytes   field of a header, 64 bytes, numbers little-endian
//! 8       magic number CAIRNENC
//! 4       version, 1
//! 4       kind: 1 whole object, 2 piece, 3 map
//! 16      id of the bucket key
//! 16      salt, random
//! 8       plain bytes in the chunks
//! 4       number of the piece, from 1 on; 0 for the other kinds
//! 4       zero
//! ```
//! A chunk has 64 KiB of plain bytes and a tag of 16 bytes; the last chunk has the rest, which may
//! be empty. It is sealed by AES-256-GCM with the object key and no additional data. Its nonce is
//! three zero bytes, the number of the chunk as 8 bytes big-endian, and 1 in the last chunk or else
//! 0: the STREAM construction of Hoang, Reyhanitabar, Rogaway and Vizár (CRYPTO 2015), as age uses
//! it.
//!
//! The map has 20 bytes for each piece: its plain bytes (4) and the salt of its header (16).
//!
//! # Invariants
//! 1. **No nonce is used twice.** Each header has a new salt from the operating system, also that
//!    of a piece that is put again with other bytes. So a crash can repeat nothing.
//! 2. **An object key depends on everything that identifies the bytes**: the plain name, kind,
//!    length and number of the piece. An object under another name, or a changed header, opens with
//!    a wrong key.
//! 3. **The end is authenticated.** The length is in the header, and the last chunk has a nonce of
//!    its own. Every read opens at least one chunk, so a forged length is detected also by a read
//!    past the end.
//! 4. **A map names exactly the pieces of one upload**, by salt and length. A piece that was
//!    replaced before the end of the upload opens with no map.
//! 5. **A caller sees plain names, lengths, ranges and nonces.** Lost answers are resolved below
//!    this store, where the same bytes are put again, or above it by the nonce of the creator.
//!    Nonces are encrypted by a permutation, as a nonce may be a digest of plain bytes.

mod entropy;
mod holder;
mod identity;
mod keyring;
mod keys;
mod names;
mod object;
mod store;
#[cfg(test)]
mod tests;

pub use self::entropy::Entropy;
pub use self::holder::KeyHolder;
pub use self::identity::{Identity, InvalidIdentity, Recipient};
pub use self::keyring::{Keyring, KeyringState};
pub use self::keys::{BucketKey, KeyId};
pub use self::object::{MORE_BYTES_MAX, sealed_bytes};
pub use self::store::Sealed;

#[cfg(test)]
pub(crate) use self::tests::{Seeded, sealed};

/// The decoders of this module; for fuzzing.
#[doc(hidden)]
pub mod fuzz {
    use super::keys::{BucketKey, Keys};
    use crate::name::Name;

    fn keys() -> Keys {
        Keys::of(&BucketKey::from_bytes([9; 32]))
    }

    /// A header as it was read and written again.
    pub fn reread_header(bytes: &[u8; 64]) -> Option<[u8; 64]> {
        super::object::Header::parse(bytes).ok().map(|header| header.to_bytes())
    }

    /// The plain bytes of a sealed object; none if it does not open.
    pub fn open(name: &Name, object: &[u8]) -> Option<Vec<u8>> {
        super::object::open_whole(&keys(), name, object).ok()
    }

    /// A sealed object.
    pub fn seal(name: &Name, plain: &[u8]) -> Vec<u8> {
        super::object::seal_whole(&keys(), name, [7; 16], plain)
    }

    /// The pieces in a map as they were read and written again.
    pub fn reread_map(plain: &[u8]) -> Option<Vec<u8>> {
        super::object::parse_map(plain).map(|entries| super::object::write_map(&entries))
    }

    /// The plain name of a sealed name, sealed again.
    pub fn reread_name(name: &Name) -> Option<Name> {
        let keys = keys();
        super::names::open(&keys, name).and_then(|plain| super::names::seal(&keys, &plain))
    }

    /// A wrapped key as it was read and written again.
    pub fn reread_wrapped(bytes: &[u8]) -> Option<Vec<u8>> {
        super::keyring::reread(bytes)
    }
}
