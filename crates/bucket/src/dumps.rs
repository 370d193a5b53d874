//! Image dumps in a bucket.
//!
//! ```text
//! dumps/<volume id>/<dump id>/begun             an unfinished dump, and its base
//!                             part-00000        a part: byte for byte what a file of it would be
//!                             skeleton-00000    its bytes without blocks, to open it in a few requests
//!                             index             written last: the dump is whole
//!                             deleting          the dump is about to be deleted; it cannot become a base
//! ```
//!
//! # Invariants
//! 1. A dump is in a list if and only if its index exists, and the index is created once all parts
//!    exist. A crash before that leaves parts and `begun`. They are not a dump, and
//!    [`BucketDumps::sweep`] removes them after a grace period.
//! 2. Deleting a dump deletes its index first. A crash after that leaves parts without an index, as
//!    above.
//! 3. No dump is deleted while another one depends on it, whether that one is whole or unfinished.
//!    A writer records that it has begun and then looks for a mark of deletion at its base. A
//!    deleter marks the dump for deletion and then looks for such writers. At least one of the two
//!    sees the other, and gives up. Both may give up.
//! 4. A lock of a dump also covers all dumps that it depends on, for at least as long. The lowest
//!    dump is locked first.
//! 5. Names are made of random ids and used once, so nothing is overwritten even by a store that
//!    ignores conditions.

mod cost;
mod index;
mod keep;
mod reading;
mod skeleton;
#[cfg(test)]
mod tests;
mod upload;
mod writer;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bytes::Bytes;
use cairn_base::{Checksum, Mutex, Rng, Timestamp, VolumeId};
use cairn_format::dump::{DumpHeader, DumpId};
use cairn_format::stream::StreamHeader;
use cairn_stream::PartHead;

pub use self::cost::{Cost, Prices};
pub use self::index::{DumpIndex, INDEX_VERSION, PartEntry};
pub use self::keep::KeepDumps;
pub use self::reading::BucketPart;
pub use self::upload::{PIECE_BYTES, PIECES_IN_FLIGHT, PartStanding, PartUpload, Uploaded};
pub use self::writer::{PartNote, PartWork};

use self::index::{INDEX_BYTES_MAX, NoIndex, parse_dump_id};
use self::skeleton::Skeleton;
use crate::error::{StoreError, Trouble, Verb};
use crate::limits::PUT_BYTES_MAX;
use crate::name::{InvalidName, Name, Prefix};
use crate::seal::MORE_BYTES_MAX;
use crate::store::{Nonce, Put, Store, extend_lock, list_all};
use crate::workers::Workers;

const DUMPS: &str = "dumps/";
const INDEX: &str = "index";
const BEGUN: &str = "begun";
const DELETING: &str = "deleting";
/// Bytes of the head that a part begins and ends with.
const HEAD_BYTES: usize = DumpHeader::SIZE + StreamHeader::SIZE;

/// Why something was not done with the dumps of a bucket.
#[derive(Debug, thiserror::Error)]
pub enum DumpsError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A part was not written.
    #[error("a part was not written: {0}")]
    Part(#[from] io::Error),
    /// The bucket does not have this dump.
    #[error("there is no dump {0} in the bucket")]
    Missing(DumpId),
    /// The dump below it is missing.
    #[error("dump {dump} stands on dump {base}, which is not in the bucket")]
    MissingBase {
        /// The dump.
        dump: DumpId,
        /// The missing one.
        base: DumpId,
    },
    /// The dump below it is being deleted.
    #[error("dump {dump} stands on dump {base}, which is being deleted")]
    BaseGoes {
        /// The dump.
        dump: DumpId,
        /// The base that is being deleted.
        base: DumpId,
    },
    /// Another dump depends on it.
    #[error("dump {dump} cannot go: dump {by} stands on it")]
    Needed {
        /// The dump.
        dump: DumpId,
        /// The one above.
        by: DumpId,
    },
    /// An index was changed or cut.
    #[error("the index {0} is damaged")]
    Damaged(Name),
    /// An index was deleted by another program: its dump has parts, and it neither has begun nor is
    /// being deleted.
    #[error("the index {0} is gone; the dump cannot be read without it")]
    Gone(Name),
    /// An index was written by a newer version.
    #[error("the index {name} has version {version}; this program reads up to {INDEX_VERSION}")]
    Newer {
        /// The index.
        name: Name,
        /// Its version.
        version: u32,
    },
    /// A dump of that id is there.
    #[error("dump {0} is in the bucket already")]
    Exists(DumpId),
    /// A part was to be resumed, and would begin in another way now.
    #[error("dump {0} cannot resume: its volume or one of the snapshots in it was renamed")]
    OtherBegin(DumpId),
    /// The volume cannot be read, or the work was cancelled.
    #[error(transparent)]
    Stream(#[from] cairn_stream::StreamError),
}

impl DumpsError {
    /// The next step, in plain words.
    pub fn next(&self) -> String {
        match self {
            DumpsError::Store(error) => error.next(),
            DumpsError::Part(error) => {
                let store = error.get_ref().and_then(|inner| inner.downcast_ref::<StoreError>());
                store.map_or_else(|| "repeat the command; it resumes".to_owned(), StoreError::next)
            }
            DumpsError::Missing(_) => "list the dumps of the bucket and choose one of them".to_owned(),
            DumpsError::MissingBase { .. } => {
                "make a dump of level 0, or put the missing dump back into the bucket".to_owned()
            }
            DumpsError::BaseGoes { .. } => {
                "make a dump of a lower level; with --anew if this one is unfinished".to_owned()
            }
            DumpsError::Needed { by, .. } => format!("delete dump {by} first"),
            DumpsError::Damaged(_) | DumpsError::Gone(_) => {
                "restore the object from a version that the store keeps; if there is none, delete the \
                 objects beside it with the tools of the store"
                    .to_owned()
            }
            DumpsError::Newer { .. } => "use a newer cairn".to_owned(),
            DumpsError::OtherBegin(_) => "start a new dump with --anew".to_owned(),
            DumpsError::Stream(_) => "repeat the command; it resumes".to_owned(),
            DumpsError::Exists(_) => "repeat the command; it makes a new id".to_owned(),
        }
    }
}

/// The content of a bucket.
#[derive(Debug, Default)]
pub struct Listing {
    /// Whole dumps, in order of their times.
    pub dumps: Vec<DumpIndex>,
    /// Indexes that cannot be read, and why.
    pub unreadable: Vec<DumpsError>,
    /// Dumps that have begun and are not whole.
    pub unfinished: Vec<Unfinished>,
    /// Names of the marks of deletion, and their times.
    going: Vec<(Name, Timestamp)>,
}

/// A dump that is in progress, or was given up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unfinished {
    /// The imaged volume.
    pub volume: VolumeId,
    /// The dump.
    pub dump: DumpId,
    /// The dump below it, if that is known.
    pub on: Option<DumpId>,
    /// Its newest object.
    pub newest: Timestamp,
    /// Bytes of its objects.
    pub bytes: u64,
    names: Vec<Name>,
}

/// The outcome of a prune.
#[derive(Debug, Default)]
pub struct Pruned {
    /// The deleted dumps, in order.
    pub deleted: Vec<DumpIndex>,
    /// Dumps that are locked, and until when.
    pub locked: Vec<(DumpId, Option<Timestamp>)>,
}

/// An index as it was read and written again; for fuzzing.
pub fn reread_index(bytes: &[u8]) -> Option<Vec<u8>> {
    DumpIndex::parse(bytes).ok().map(|index| index.to_bytes())
}

/// Bytes of a part out of its skeleton; for fuzzing.
pub fn read_skeleton(object: &[u8], offset: u64, length: usize) -> Option<Vec<u8>> {
    let read = |at: u64, count: usize| {
        let rest = usize::try_from(at).ok().and_then(|at| object.get(at..));
        Ok(rest.and_then(|rest| rest.get(..count)).map(<[u8]>::to_vec))
    };
    let skeleton = Skeleton::open(object.len() as u64, &read).ok()??;
    let mut buffer = vec![0; length];
    skeleton.read(offset, &mut buffer, &read).ok()?.then_some(buffer)
}

/// Image dumps in a bucket. Several may share one; each call reads the bucket again.
pub struct BucketDumps {
    store: Arc<dyn Store>,
    workers: Arc<dyn Workers>,
    rng: Mutex<Rng>,
    /// The beginning of all names: `dumps/`, or `PATH/dumps/`.
    root: String,
}

impl BucketDumps {
    /// The dumps in `store`, which should retry. `rng` is seeded by the operating system.
    pub fn new(store: Arc<dyn Store>, workers: Arc<dyn Workers>, rng: Rng) -> Self {
        Self { store, workers, rng: Mutex::new(rng), root: DUMPS.to_owned() }
    }

    /// The same below a path in the store: `servers/a`, or empty. Dumps of two paths know nothing
    /// of each other.
    ///
    /// # Errors
    /// The path violates a rule of [`Name`].
    pub fn below(mut self, path: &str) -> Result<Self, InvalidName> {
        if !path.is_empty() {
            Name::new(path)?;
            self.root = format!("{path}/{DUMPS}");
        }
        Ok(self)
    }

    /// The dump that an object below the root belongs to, and the name of the object in it.
    fn parse<'a>(&self, name: &'a Name) -> Option<(VolumeId, DumpId, &'a str)> {
        let mut parts = name.as_str().strip_prefix(&self.root)?.split('/');
        let (volume, dump, file) = (parts.next()?, parts.next()?, parts.next()?);
        parts.next().is_none().then_some(())?;
        Some((volume.parse().ok()?, parse_dump_id(dump)?, file))
    }

    /// The volume of an index that cannot be read.
    pub fn volume_of(&self, error: &DumpsError) -> Option<VolumeId> {
        match error {
            DumpsError::Damaged(name) | DumpsError::Gone(name) | DumpsError::Newer { name, .. } => {
                Some(self.parse(name)?.0)
            }
            _ => None,
        }
    }

    fn folder(&self, volume: VolumeId, dump: DumpId) -> String {
        format!("{}{volume}/{dump}/", self.root)
    }

    fn nonce(&self) -> Nonce {
        Nonce::random(&mut self.rng.lock())
    }

    fn blamed(&self, rule: &'static str) -> StoreError {
        StoreError {
            verb: Verb::Open,
            name: None,
            place: self.store.place().into(),
            trouble: Trouble::Rule(rule),
        }
    }

    fn name(&self, volume: VolumeId, dump: DumpId, file: &str) -> Result<Name, StoreError> {
        Name::new(format!("{}{file}", self.folder(volume, dump)))
            .map_err(|_| self.blamed("a name of a dump is wrong"))
    }

    fn prefix(&self, volume: Option<VolumeId>) -> Result<Prefix, StoreError> {
        let text = match volume {
            None => self.root.clone(),
            Some(volume) => format!("{}{volume}/", self.root),
        };
        Prefix::new(text).map_err(|_| self.blamed("a prefix of dumps is wrong"))
    }

    /// Reads an object of bounded length; none if it is missing.
    fn small(&self, name: &Name, cancel: &AtomicBool) -> Result<Option<Bytes>, StoreError> {
        match self.store.get(name, 0, INDEX_BYTES_MAX + 1, cancel) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn index(&self, name: &Name, cancel: &AtomicBool) -> Result<Option<DumpIndex>, DumpsError> {
        let bytes = match self.small(name, cancel) {
            Err(error) if error.is_damaged() => return Err(DumpsError::Damaged(name.clone())),
            bytes => bytes?,
        };
        let Some(bytes) = bytes else { return Ok(None) };
        let own = self.parse(name);
        match DumpIndex::parse(&bytes) {
            // An index under the name of another dump was copied there.
            Ok(index) if own.is_some_and(|own| (own.0, own.1) == (index.volume, index.dump)) => {
                Ok(Some(index))
            }
            Ok(_) | Err(NoIndex::Damaged) => Err(DumpsError::Damaged(name.clone())),
            Err(NoIndex::Newer(version)) => Err(DumpsError::Newer { name: name.clone(), version }),
        }
    }

    /// Everything in the bucket, or everything of one volume.
    ///
    /// # Errors
    /// The store failed. An index that cannot be read is in the listing.
    pub fn list(&self, volume: Option<VolumeId>, cancel: &AtomicBool) -> Result<Listing, DumpsError> {
        let mut listing = Listing::default();
        let mut folders: BTreeMap<(VolumeId, DumpId), Unfinished> = BTreeMap::new();
        let (mut indexes, mut begun) = (Vec::new(), Vec::new());
        for listed in list_all(&*self.store, &self.prefix(volume)?, cancel)? {
            let Some((volume, dump, file)) = self.parse(&listed.name) else { continue };
            match file {
                INDEX => indexes.push((volume, dump, listed.name.clone())),
                BEGUN => begun.push((volume, dump, listed.name.clone())),
                DELETING => listing.going.push((listed.name.clone(), listed.created)),
                _ => {}
            }
            let found = folders.entry((volume, dump)).or_insert_with(|| Unfinished {
                volume,
                dump,
                on: None,
                newest: Timestamp(0),
                bytes: 0,
                names: Vec::new(),
            });
            found.newest = found.newest.max(listed.created);
            found.bytes += listed.length;
            found.names.push(listed.name);
        }
        for (volume, dump, name) in indexes {
            match self.index(&name, cancel) {
                Ok(Some(index)) => listing.dumps.push(index),
                // It was deleted meanwhile.
                Ok(None) => continue,
                Err(DumpsError::Store(error)) => return Err(error.into()),
                Err(error) => listing.unreadable.push(error),
            }
            folders.remove(&(volume, dump));
        }
        for (volume, dump, name) in begun {
            let Some(found) = folders.get_mut(&(volume, dump)) else { continue };
            let text = match self.small(&name, cancel) {
                // As one whose text is wrong.
                Err(error) if error.is_damaged() => None,
                text => text?,
            };
            found.on = text.and_then(|text| parse_dump_id(std::str::from_utf8(&text).ok()?.trim()));
        }
        let headless = folders.values().filter(|found| self.has_parts_alone(found));
        let headless: Vec<(VolumeId, DumpId)> = headless.map(|found| (found.volume, found.dump)).collect();
        for (volume, dump) in headless {
            let there = |file: &str| self.is_there(&self.name(volume, dump, file)?, cancel);
            // A listing may be late, so each name is looked at, in the order of a writer and then
            // of a deleter.
            if there(BEGUN)? {
                continue;
            }
            let name = self.name(volume, dump, INDEX)?;
            match self.index(&name, cancel) {
                Ok(Some(index)) => listing.dumps.push(index),
                Ok(None) if there(DELETING)? || !there(&part_file(0))? => continue,
                Ok(None) => listing.unreadable.push(DumpsError::Gone(name)),
                Err(DumpsError::Store(error)) => return Err(error.into()),
                Err(error) => listing.unreadable.push(error),
            }
            folders.remove(&(volume, dump));
        }
        listing.unfinished = folders.into_values().collect();
        listing.dumps.sort_by_key(|dump| (dump.created, dump.dump));
        Ok(listing)
    }

    /// Whether parts exist without a mark of a begun dump or of a deletion. A writer puts `begun`
    /// before any part, and deletes it once the index exists. A deleter puts `deleting` first and
    /// deletes it last. So such parts belong to a whole dump that lost its index.
    fn has_parts_alone(&self, found: &Unfinished) -> bool {
        let mut files = found.names.iter().filter_map(|name| self.parse(name)).map(|(_, _, file)| file);
        let part = part_file(0);
        files.clone().any(|file| file == part) && !files.any(|file| file == BEGUN || file == DELETING)
    }

    /// A dump and all dumps that it depends on, the lowest first.
    ///
    /// # Errors
    /// One of them is missing.
    pub fn chain(dumps: &[DumpIndex], dump: DumpId) -> Result<Vec<DumpIndex>, DumpsError> {
        let by_id: HashMap<DumpId, &DumpIndex> = dumps.iter().map(|index| (index.dump, index)).collect();
        let mut chain: Vec<DumpIndex> = Vec::new();
        let mut seen = BTreeSet::new();
        let mut next = Some(dump);
        while let Some(id) = next {
            let found = by_id.get(&id).filter(|_| seen.insert(id)).ok_or_else(|| match chain.last() {
                None => DumpsError::Missing(id),
                Some(above) => DumpsError::MissingBase { dump: above.dump, base: id },
            })?;
            chain.push((*found).clone());
            next = found.on;
        }
        chain.reverse();
        Ok(chain)
    }

    /// Records that a dump has begun, before its parts. `on` is the dump that it depends on.
    ///
    /// # Errors
    /// [`DumpsError::MissingBase`] if that dump is missing, [`DumpsError::BaseGoes`] if it is about
    /// to be deleted.
    pub fn begin(
        &self,
        volume: VolumeId,
        dump: DumpId,
        on: Option<DumpId>,
        cancel: &AtomicBool,
    ) -> Result<(), DumpsError> {
        let text = on.map_or_else(|| "-".to_owned(), |on| on.to_string());
        let name = self.name(volume, dump, BEGUN)?;
        // It exists already when the dump is resumed.
        self.store.put_new(&name, text.into_bytes().into(), self.nonce(), cancel)?;
        let Some(base) = on else { return Ok(()) };
        let goes = self.is_there(&self.name(volume, base, DELETING)?, cancel)?;
        let there = self.index(&self.name(volume, base, INDEX)?, cancel)?.is_some();
        if there && !goes {
            return Ok(());
        }
        // The dump has no other object yet.
        let _ = self.store.delete(&name, cancel);
        Err(if there { DumpsError::BaseGoes { dump, base } } else { DumpsError::MissingBase { dump, base } })
    }

    fn is_there(&self, name: &Name, cancel: &AtomicBool) -> Result<bool, StoreError> {
        match self.store.head(name, cancel) {
            Ok(_) => Ok(true),
            Err(error) if error.is_missing() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Begins a part of at most `length` bytes.
    ///
    /// # Errors
    /// The store failed.
    pub fn part(
        &self,
        (volume, dump, part): (VolumeId, DumpId, u32),
        length: u64,
        cancel: &Arc<AtomicBool>,
    ) -> Result<PartUpload, DumpsError> {
        let name = self.name(volume, dump, &part_file(part))?;
        let parties = (&self.store, &self.workers);
        Ok(PartUpload::begin(parties, (&name, dump), length, self.nonce(), cancel)?)
    }

    /// Resumes a part.
    ///
    /// # Errors
    /// [`Trouble::NoUpload`] if it must begin again.
    pub fn resume_part(
        &self,
        dump: DumpId,
        length: u64,
        standing: &PartStanding,
        cancel: &Arc<AtomicBool>,
    ) -> Result<PartUpload, DumpsError> {
        Ok(PartUpload::resume((&self.store, &self.workers), dump, length, standing, cancel)?)
    }

    /// Makes a part whole, with its skeleton beside it.
    ///
    /// # Errors
    /// The part is not whole; it can be resumed.
    pub fn finish_part(
        &self,
        (volume, dump, part): (VolumeId, DumpId, u32),
        upload: PartUpload,
        cancel: &AtomicBool,
    ) -> Result<PartEntry, DumpsError> {
        let uploaded = upload.finish()?;
        let mut entry = PartEntry { length: uploaded.length, skeleton: 0 };
        if let Some(skeleton) =
            uploaded.skeleton.filter(|skeleton| skeleton.len() <= PUT_BYTES_MAX - MORE_BYTES_MAX)
        {
            let name = self.name(volume, dump, &skeleton_file(part))?;
            let length = skeleton.len() as u64;
            // A dump without one opens too, only slower.
            match self.store.put_new(&name, skeleton.into(), self.nonce(), cancel) {
                Ok(_) => entry.skeleton = length,
                Err(error) if error.is_cancelled() => return Err(error.into()),
                Err(error) => tracing::debug!(%error, "a part has no skeleton"),
            }
        }
        Ok(entry)
    }

    /// A part that is whole already: its writer made it an object, and was cut before it noted
    /// that. `head` is the checksum of the head that a part ends with.
    ///
    /// # Errors
    /// [`DumpsError::Damaged`] if the object is something else.
    pub fn whole_part(
        &self,
        (volume, dump, part): (VolumeId, DumpId, u32),
        head: Checksum,
        cancel: &AtomicBool,
    ) -> Result<Option<PartEntry>, DumpsError> {
        let name = self.name(volume, dump, &part_file(part))?;
        let length = match self.store.head(&name, cancel) {
            Ok(head) => head.length,
            Err(error) if error.is_missing() => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let end = match length.checked_sub(HEAD_BYTES as u64) {
            Some(at) => self.store.get(&name, at, HEAD_BYTES, cancel)?,
            None => Bytes::new(),
        };
        if Checksum::of(&end) != head {
            return Err(DumpsError::Damaged(name));
        }
        let skeleton = match self.store.head(&self.name(volume, dump, &skeleton_file(part))?, cancel) {
            Ok(head) => head.length,
            Err(error) if error.is_missing() => 0,
            Err(error) => return Err(error.into()),
        };
        Ok(Some(PartEntry { length, skeleton }))
    }

    /// Removes the existing objects of a dump that is not whole, `begun` last. If the dump is
    /// whole, this removes nothing and returns false.
    ///
    /// # Errors
    /// The store failed. A sweep removes the rest later.
    pub fn abandon(&self, volume: VolumeId, dump: DumpId, cancel: &AtomicBool) -> Result<bool, DumpsError> {
        if self.is_there(&self.name(volume, dump, INDEX)?, cancel)? {
            return Ok(false);
        }
        let folder = Prefix::new(self.folder(volume, dump));
        let folder = folder.map_err(|_| self.blamed("a prefix of a dump is wrong"))?;
        let uploads = match self.store.uploads(&folder, cancel) {
            Err(StoreError { trouble: Trouble::Unsupported(_), .. }) => Vec::new(),
            uploads => uploads?,
        };
        for upload in &uploads {
            self.store.abort(upload, cancel)?;
        }
        let mut listed = list_all(&*self.store, &folder, cancel)?;
        listed.sort_by_key(|listed| is_mark(&listed.name));
        for listed in &listed {
            self.store.delete(&listed.name, cancel)?;
        }
        Ok(true)
    }

    /// Until when a dump is locked; none if it is not.
    ///
    /// # Errors
    /// The store failed.
    pub fn locked_until(
        &self,
        index: &DumpIndex,
        cancel: &AtomicBool,
    ) -> Result<Option<Timestamp>, DumpsError> {
        Ok(self.store.head(&self.name(index.volume, index.dump, INDEX)?, cancel)?.locked_until)
    }

    /// The first bytes of a dump: which dump it is, and from which snapshot to which.
    ///
    /// # Errors
    /// [`DumpsError::Damaged`] if the object is not the first part of this dump.
    pub fn part_head(&self, index: &DumpIndex, cancel: &AtomicBool) -> Result<PartHead, DumpsError> {
        let name = self.name(index.volume, index.dump, &part_file(0))?;
        let bytes = self.store.get(&name, 0, HEAD_BYTES, cancel)?;
        let head = bytes.first_chunk().and_then(|bytes| PartHead::parse(bytes).ok());
        match head.filter(|head| index.has(head, 0)) {
            Some(head) => Ok(head),
            None => Err(DumpsError::Damaged(name)),
        }
    }

    /// The names of the objects of a part: its bytes, and its skeleton if it has one.
    ///
    /// # Errors
    /// The dump does not have this part.
    pub fn part_names(&self, index: &DumpIndex, part: u32) -> Result<(Name, Option<Name>), DumpsError> {
        let entry = index.parts.get(part as usize).ok_or(DumpsError::Missing(index.dump))?;
        let skeleton = match entry.skeleton {
            0 => None,
            _ => Some(self.name(index.volume, index.dump, &skeleton_file(part))?),
        };
        Ok((self.name(index.volume, index.dump, &part_file(part))?, skeleton))
    }

    /// Checks that every part exists and has its length. Does not read its bytes.
    ///
    /// # Errors
    /// [`DumpsError::Damaged`] for a part of another length; [`Trouble::Missing`] for a missing
    /// one.
    pub fn check_parts(&self, index: &DumpIndex, cancel: &AtomicBool) -> Result<(), DumpsError> {
        for (part, entry) in (0..).zip(&index.parts) {
            let name = self.name(index.volume, index.dump, &part_file(part))?;
            if self.store.head(&name, cancel)?.length != entry.length {
                return Err(DumpsError::Damaged(name));
            }
        }
        Ok(())
    }

    /// Makes the dump whole: writes its index, once every part exists.
    ///
    /// # Errors
    /// [`DumpsError::MissingBase`] if its base is missing. Invariant 3 of the module prevents its
    /// deletion by Cairn.
    pub fn seal(&self, index: &DumpIndex, cancel: &AtomicBool) -> Result<(), DumpsError> {
        self.check_parts(index, cancel)?;
        if let Some(base) = index.on
            && self.index(&self.name(index.volume, base, INDEX)?, cancel)?.is_none()
        {
            return Err(DumpsError::MissingBase { dump: index.dump, base });
        }
        let name = self.name(index.volume, index.dump, INDEX)?;
        match self.store.put_new(&name, index.to_bytes().into(), self.nonce(), cancel)? {
            Put::Created => {}
            Put::Exists => match self.index(&name, cancel)? {
                // An earlier attempt of this writer.
                Some(found) if found == *index => {}
                _ => return Err(DumpsError::Exists(index.dump)),
            },
        }
        // A failure leaves it for a sweep.
        let _ = self.store.delete(&self.name(index.volume, index.dump, BEGUN)?, cancel);
        Ok(())
    }

    /// Opens a part of a dump.
    ///
    /// # Errors
    /// The dump does not have this part, or the store failed.
    pub fn open_part(
        &self,
        index: &DumpIndex,
        part: u32,
        cancel: &Arc<AtomicBool>,
    ) -> Result<Arc<BucketPart>, DumpsError> {
        let (name, skeleton) = self.part_names(index, part)?;
        let entry = index.parts.get(part as usize).ok_or(DumpsError::Missing(index.dump))?;
        let skeleton = skeleton.map(|name| (name, entry.skeleton));
        let opened = BucketPart::open((&self.store, &self.workers), (name, entry.length), skeleton, cancel)?;
        Ok(Arc::new(opened))
    }

    /// Deletes a dump.
    ///
    /// # Errors
    /// [`DumpsError::Needed`] while another dump depends on it; [`Trouble::Locked`] while it is
    /// locked. After these errors no object is deleted.
    pub fn delete(&self, index: &DumpIndex, now: Timestamp, cancel: &AtomicBool) -> Result<(), DumpsError> {
        self.refuse_if_needed(index, cancel)?;
        let name = self.name(index.volume, index.dump, INDEX)?;
        // Look for a lock that covers only the parts, before deleting any object. A call of `lock`
        // that was interrupted leaves such a lock.
        for (part, _) in (0..).zip(&index.parts) {
            self.refuse_if_locked(&self.name(index.volume, index.dump, &part_file(part))?, now, cancel)?;
        }
        let going = self.name(index.volume, index.dump, DELETING)?;
        self.store.put_new(&going, Bytes::from_static(b"-"), self.nonce(), cancel)?;
        if let Err(error) = self.refuse_if_needed(index, cancel) {
            self.store.delete(&going, &AtomicBool::new(false))?;
            return Err(error);
        }
        if let Err(error) = self.store.delete(&name, cancel) {
            // A lock holds it.
            let _ = self.store.delete(&going, &AtomicBool::new(false));
            return Err(error.into());
        }
        // From here on it is not a dump; a sweep removes the rest after a crash.
        for (part, entry) in (0..).zip(&index.parts) {
            if entry.skeleton > 0 {
                self.store.delete(&self.name(index.volume, index.dump, &skeleton_file(part))?, cancel)?;
            }
            self.store.delete(&self.name(index.volume, index.dump, &part_file(part))?, cancel)?;
        }
        for file in [BEGUN, DELETING] {
            self.store.delete(&self.name(index.volume, index.dump, file)?, cancel)?;
        }
        Ok(())
    }

    fn refuse_if_locked(&self, name: &Name, now: Timestamp, cancel: &AtomicBool) -> Result<(), DumpsError> {
        let until = match self.store.head(name, cancel) {
            Ok(head) => head.locked_until.filter(|until| *until > now),
            Err(error) if error.is_missing() => None,
            Err(error) => return Err(error.into()),
        };
        match until {
            None => Ok(()),
            Some(_) => Err(DumpsError::Store(StoreError {
                verb: Verb::Delete,
                name: Some(name.clone()),
                place: self.store.place().into(),
                trouble: Trouble::Locked(until),
            })),
        }
    }

    fn refuse_if_needed(&self, index: &DumpIndex, cancel: &AtomicBool) -> Result<(), DumpsError> {
        let listing = self.list(Some(index.volume), cancel)?;
        let whole = listing.dumps.iter().map(|other| (other.dump, other.on));
        let begun = listing.unfinished.iter().map(|other| (other.dump, other.on));
        match whole.chain(begun).find(|(other, on)| *other != index.dump && *on == Some(index.dump)) {
            Some((by, _)) => Err(DumpsError::Needed { dump: index.dump, by }),
            None => Ok(()),
        }
    }

    /// Deletes dumps that no rule keeps and no kept dump depends on. With `dry_run` it deletes
    /// nothing.
    ///
    /// # Errors
    /// The store failed. Dumps that were deleted until then are deleted as a whole.
    pub fn prune(
        &self,
        (volume, keep): (VolumeId, &KeepDumps),
        dry_run: bool,
        now: Timestamp,
        cancel: &AtomicBool,
    ) -> Result<Pruned, DumpsError> {
        let listing = self.list(Some(volume), cancel)?;
        if let Some(error) = listing.unreadable.into_iter().next() {
            // It may depend on any of the others.
            return Err(error);
        }
        let begun: HashSet<DumpId> = listing.unfinished.iter().filter_map(|dump| dump.on).collect();
        let by_id: HashMap<DumpId, &DumpIndex> =
            listing.dumps.iter().map(|index| (index.dump, index)).collect();
        let mut pruned = Pruned::default();
        for dump in keep::expendable(&listing.dumps, &begun, keep) {
            let Some(index) = by_id.get(&dump) else { continue };
            if !dry_run {
                match self.delete(index, now, cancel) {
                    Ok(()) => {}
                    Err(DumpsError::Store(StoreError { trouble: Trouble::Locked(until), .. })) => {
                        pruned.locked.push((dump, until));
                        continue;
                    }
                    // One above it is locked, or has just begun.
                    Err(DumpsError::Needed { .. }) => continue,
                    Err(error) => return Err(error),
                }
            }
            pruned.deleted.push((*index).clone());
        }
        Ok(pruned)
    }

    /// Locks a dump and all dumps that it depends on until a time.
    ///
    /// # Errors
    /// The store has no locks, or failed. The dumps below the failed one are locked.
    pub fn lock(
        &self,
        dumps: &[DumpIndex],
        dump: DumpId,
        until: Timestamp,
        cancel: &AtomicBool,
    ) -> Result<(), DumpsError> {
        for index in Self::chain(dumps, dump)? {
            let mut files: Vec<String> = (0..).zip(&index.parts).map(|(part, _)| part_file(part)).collect();
            files.push(INDEX.to_owned());
            for file in files {
                extend_lock(&*self.store, &self.name(index.volume, index.dump, &file)?, until, cancel)?;
            }
        }
        Ok(())
    }

    /// Removes abandoned dumps: those without an index whose newest object is older than `grace`,
    /// and uploads of dumps that no `begun` names. `ours` are dumps that this server is writing.
    /// Returns the number of removed dumps.
    ///
    /// # Errors
    /// The store failed.
    pub fn sweep(
        &self,
        ours: &HashSet<DumpId>,
        grace: Duration,
        now: Timestamp,
        cancel: &AtomicBool,
    ) -> Result<usize, DumpsError> {
        let uploads = match self.store.uploads(&self.prefix(None)?, cancel) {
            Err(StoreError { trouble: Trouble::Unsupported(_), .. }) => Vec::new(),
            uploads => uploads?,
        };
        let listing = self.list(None, cancel)?;
        let old = Timestamp(now.0.saturating_sub(grace.as_nanos() as u64));
        let mut gone = 0;
        for found in &listing.unfinished {
            if found.newest >= old || ours.contains(&found.dump) {
                continue;
            }
            // A listing may be late; a look at one name is not.
            if self.small(&self.name(found.volume, found.dump, INDEX)?, cancel)?.is_some() {
                continue;
            }
            // `begun` protects its base, and `deleting` shows that the parts are not a dump: delete
            // them last.
            let mut names = found.names.clone();
            names.sort_by_key(is_mark);
            for name in &names {
                self.store.delete(name, cancel)?;
            }
            gone += 1;
        }
        for (name, since) in &listing.going {
            // The deleter was interrupted before it deleted the index: the dump is whole. Without
            // an index the mark is deleted with the parts.
            let Some((volume, dump, _)) = self.parse(name) else { continue };
            let is_of = |found: &Unfinished| (found.volume, found.dump) == (volume, dump);
            if *since < old && !listing.unfinished.iter().any(is_of) {
                self.store.delete(name, cancel)?;
            }
        }
        for upload in uploads {
            // A writer puts `begun` before it begins an upload, and keeps it until its dump is
            // whole.
            let Some((volume, dump, _)) = self.parse(&upload.name) else { continue };
            let begun = self.name(volume, dump, BEGUN)?;
            if !ours.contains(&dump) && self.small(&begun, cancel)?.is_none() {
                self.store.abort(&upload, cancel)?;
            }
        }
        Ok(gone)
    }
}

fn is_mark(name: &Name) -> bool {
    [BEGUN, DELETING].iter().any(|mark| name.as_str().rsplit('/').next() == Some(*mark))
}

fn part_file(part: u32) -> String {
    format!("part-{part:05}")
}

fn skeleton_file(part: u32) -> String {
    format!("skeleton-{part:05}")
}
