//! Image dumps in buckets: their places, their choice, and their bytes.
//!
//! `writing` makes them. Restores read them as they read files. The client's own readers (`ls`,
//! `cat`, `extract`, `mount`, `verify`) get ranges of their objects from `commands`.
//!
//! The bucket's own list shows the dumps, so a server that has never seen them finds them. No local
//! record is needed to read one.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use cairn_bucket::dumps::{BucketDumps, DumpIndex, DumpsError as Trouble};
use cairn_bucket::{Name, StoreError};
use cairn_stream::{DumpBytes, DumpError, PartReader, StreamError};

use crate::buckets::{OpenBucket, rng, store_error};
use crate::dumps::error::{DumpsError, store_error_in};
use crate::error::ServerError;
use crate::names;

pub(super) mod commands;
pub(super) mod trees;
mod writing;

/// Characters of a dump's id that name it, at least.
const ID_CHARS_MIN: usize = 4;

/// A place for dumps: `BUCKET:` or `BUCKET:PATH/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) bucket: String,
    /// Without slashes at its ends.
    path: String,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slash = if self.path.is_empty() { "" } else { "/" };
        write!(f, "{}:{}{slash}", self.bucket, self.path)
    }
}

impl Place {
    pub(super) fn new(bucket: &str, path: &str) -> Result<Self, ServerError> {
        names::check("bucket", bucket)?;
        let path = path.trim_end_matches('/');
        if !path.is_empty() && Name::new(path).is_err() {
            return Err(ServerError::Invalid {
                fault: "a path in a bucket has segments of a-z, 0-9, `.`, `_` and `-`, separated by `/`",
                next: "correct the path, such as `offsite:servers/a/`",
            });
        }
        Ok(Self { bucket: bucket.to_owned(), path: path.to_owned() })
    }

    /// Reads `BUCKET:` and `BUCKET:PATH/`.
    pub(super) fn parse(text: &str) -> Result<Self, ServerError> {
        let wrong = ServerError::Invalid {
            fault: "a dump goes to `BUCKET:` or `BUCKET:PATH/`",
            next: "put a colon after the name of the bucket, and a slash after the path",
        };
        match text.split_once(':') {
            Some((bucket, path)) if path.is_empty() || path.ends_with('/') => Self::new(bucket, path),
            _ => Err(wrong),
        }
    }

    /// The dumps at this place.
    pub(super) fn dumps(&self, open: &OpenBucket) -> Result<BucketDumps, ServerError> {
        let dumps = BucketDumps::new(open.store.clone(), open.workers.clone(), rng());
        dumps.below(&self.path).map_err(|_| ServerError::Bug)
    }

    /// An index that cannot be read, where it may be of the dump that is wanted.
    fn unreadable(&self, error: Trouble) -> ServerError {
        ServerError::Dumps(DumpsError::Unreadable { place: self.to_string(), source: Box::new(error) })
    }

    /// An error of the dumps here.
    pub(super) fn failed(&self, error: Trouble) -> ServerError {
        match error {
            Trouble::Store(error) => store_failed(&self.bucket, error),
            Trouble::Part(error) => self.failed(StreamError::from(error).into()),
            Trouble::Stream(error) => match &error {
                StreamError::Io(source) if let Some(store) = store_error_in(source) => {
                    store_failed(&self.bucket, store.clone())
                }
                _ => DumpError::from(error).into(),
            },
            error => ServerError::Dumps(DumpsError::InBucket {
                bucket: self.bucket.clone(),
                source: Box::new(error),
            }),
        }
    }
}

/// An error of the store, of dumps in the bucket of that name.
fn store_failed(bucket: &str, error: StoreError) -> ServerError {
    match error.is_cancelled() {
        true => DumpError::from(StreamError::Cancelled).into(),
        false => store_error(bucket, error),
    }
}

/// The dumps that a user means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) place: Place,
    /// Its name or id.
    volume: Option<String>,
    /// The beginning of an id, or the name of a snapshot.
    dump: Option<String>,
}

impl Wanted {
    /// Reads `BUCKET:[PATH/][VOLUME[@DUMP]]`.
    pub(super) fn parse(text: &str) -> Result<Self, ServerError> {
        let Some((bucket, of)) = text.split_once(':') else {
            return Err(ServerError::Invalid {
                fault: "a dump in a bucket is `BUCKET:[PATH/][VOLUME[@DUMP]]`",
                next: "put a colon after the name of the bucket",
            });
        };
        Self::of(bucket, of)
    }

    /// The dumps that `of` names in a bucket.
    pub(super) fn of(bucket: &str, of: &str) -> Result<Self, ServerError> {
        let (path, rest) = of.rsplit_once('/').unwrap_or(("", of));
        let (volume, dump) = match rest.split_once('@') {
            Some((volume, dump)) => (volume, Some(dump.to_owned())),
            None => (rest, None),
        };
        let volume = (!volume.is_empty()).then(|| volume.to_owned());
        Ok(Self { place: Place::new(bucket, path)?, volume, dump })
    }

    fn has(&self, index: &DumpIndex) -> bool {
        let is_volume = |volume: &String| index.name == *volume || index.volume.to_string() == *volume;
        self.volume.as_ref().is_none_or(is_volume) && self.dump.as_ref().is_none_or(|dump| is(index, dump))
    }

    /// Nothing of the place is left out.
    pub(super) fn is_all(&self) -> bool {
        self.volume.is_none() && self.dump.is_none()
    }

    /// All that is meant.
    pub(super) fn all<'a>(&self, dumps: &'a [DumpIndex]) -> impl Iterator<Item = &'a DumpIndex> {
        dumps.iter().filter(|index| self.has(index))
    }

    /// The one dump that is meant: the newest of one volume.
    fn one<'a>(&self, dumps: &'a [DumpIndex]) -> Result<&'a DumpIndex, ServerError> {
        let found: Vec<&DumpIndex> = self.all(dumps).collect();
        let volumes: BTreeSet<String> = found.iter().map(|index| index.volume.to_string()).collect();
        if volumes.len() > 1 {
            let names: BTreeSet<String> = found.iter().map(|index| index.name.clone()).collect();
            // The ids distinguish two volumes of one name.
            let volumes = if names.len() == volumes.len() { names } else { volumes };
            return Err(ServerError::Dumps(DumpsError::SeveralVolumes {
                place: self.place.to_string(),
                volumes: volumes.into_iter().collect(),
            }));
        }
        let newest = found.into_iter().max_by_key(|index| (index.target, index.created, index.dump));
        newest.ok_or_else(|| {
            ServerError::Dumps(DumpsError::NoDumpInBucket {
                wanted: self.to_string(),
                place: self.place.to_string(),
            })
        })
    }
}

/// The beginning of the id of a dump, or the name of its snapshot.
fn is(index: &DumpIndex, dump: &str) -> bool {
    index.target_name == dump || (dump.len() >= ID_CHARS_MIN && index.dump.to_string().starts_with(dump))
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.place, self.volume.as_deref().unwrap_or_default())?;
        self.dump.as_ref().map_or(Ok(()), |dump| write!(f, "@{dump}"))
    }
}

/// A dump with all that it needs, the lowest first.
pub(super) struct Chain {
    pub(super) wanted: Wanted,
    pub(super) dumps: BucketDumps,
    pub(super) indexes: Vec<DumpIndex>,
}

impl Chain {
    /// Finds it in the bucket's list.
    pub(super) fn find(wanted: &Wanted, open: &OpenBucket, cancel: &AtomicBool) -> Result<Self, ServerError> {
        let place = &wanted.place;
        let dumps = place.dumps(open)?;
        let listing = dumps.list(None, cancel).map_err(|error| place.failed(error))?;
        let index = match wanted.one(&listing.dumps) {
            Ok(index) => index,
            // The requested dump may be an unreadable one.
            Err(error @ ServerError::Dumps(DumpsError::NoDumpInBucket { .. })) => {
                let first = listing.unreadable.into_iter().next();
                return Err(first.map_or(error, |first| place.unreadable(first)));
            }
            Err(error) => return Err(error),
        };
        let (volume, dump) = (index.volume, index.dump);
        let indexes = BucketDumps::chain(&listing.dumps, dump);
        let may_hide = wanted.dump.is_none() || indexes.is_err();
        // An unreadable one may be newer, or the missing one.
        let of_volume = |error: &Trouble| dumps.volume_of(error).is_none_or(|own| own == volume);
        let mut unreadable = listing.unreadable.into_iter();
        if may_hide && let Some(error) = unreadable.find(of_volume) {
            return Err(place.unreadable(error));
        }
        let indexes = indexes.map_err(|error| place.failed(error))?;
        Ok(Self { wanted: wanted.clone(), dumps, indexes })
    }

    /// A name of exactly this dump.
    pub(super) fn name(&self) -> String {
        match self.indexes.last() {
            Some(last) => format!("{}{}@{}", self.wanted.place, last.volume, last.dump),
            None => self.wanted.to_string(),
        }
    }

    /// Opens all parts to be read in order. An object that is not what its index names is refused.
    pub(super) fn readers(&self, cancel: &Arc<AtomicBool>) -> Result<Vec<PartReader>, ServerError> {
        let place = &self.wanted.place;
        let failed = |error| place.failed(error);
        let mut readers = Vec::new();
        for index in &self.indexes {
            for part in 0..index.parts.len() as u32 {
                let (name, _) = self.dumps.part_names(index, part).map_err(failed)?;
                let object = format!("{}:{name}", place.bucket);
                let bytes = self.dumps.open_part(index, part, cancel).map_err(failed)?;
                let reader = PartReader::open_file(&object, &(bytes as Arc<dyn DumpBytes>))?;
                if !index.has(reader.head(), part) {
                    return Err(ServerError::Dumps(DumpsError::OtherObject { object }));
                }
                readers.push(reader);
            }
        }
        Ok(readers)
    }
}
