//! Images of mirrored volumes in a bucket, as users name them: `BUCKET:[PATH/]VOLUME`.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use cairn_base::VolumeId;
use cairn_bucket::images::{
    BucketImages, ImageLabel, ImagesError, Seen, SourceError, VolumeInBucket, volumes,
};
use cairn_bucket::{Below, Name, Store, Workers};

use crate::buckets::error::BucketsError;
use crate::buckets::{OpenBucket, rng, store_error};
use crate::error::ServerError;
use crate::names;

mod commands;

/// Digits of the id of an image that name it, at least.
const ID_DIGITS_MIN: usize = 4;

/// A place for the images of volumes: `BUCKET:` or `BUCKET:PATH/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ImagesPlace {
    pub(crate) bucket: String,
    /// Without slashes at its ends.
    pub(crate) path: String,
}

impl fmt::Display for ImagesPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slash = if self.path.is_empty() { "" } else { "/" };
        write!(f, "{}:{}{slash}", self.bucket, self.path)
    }
}

impl ImagesPlace {
    pub(crate) fn new(bucket: &str, path: &str) -> Result<Self, ServerError> {
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
    pub(crate) fn parse(text: &str) -> Result<Self, ServerError> {
        match text.split_once(':') {
            Some((bucket, path)) if path.is_empty() || path.ends_with('/') => Self::new(bucket, path),
            _ => Err(ServerError::Invalid {
                fault: "a mirror goes to `BUCKET:` or `BUCKET:PATH/`",
                next: "put a colon after the name of the bucket, and a slash after the path",
            }),
        }
    }

    /// The store below the path.
    pub(crate) fn store(&self, open: &OpenBucket) -> Result<Arc<dyn Store>, ServerError> {
        Below::at(open.store.clone(), &self.path).map_err(|_| ServerError::Bug)
    }

    /// The images of a volume here.
    pub(crate) fn images(
        &self,
        open: &OpenBucket,
        volume: VolumeId,
        seen: Option<Seen>,
    ) -> Result<BucketImages, ServerError> {
        Ok(BucketImages::open(self.store(open)?, open.workers.clone(), volume, seen, rng()))
    }

    /// An error of the images here.
    pub(crate) fn failed(&self, error: ImagesError) -> ServerError {
        match error {
            ImagesError::Store(error) => store_error(&self.bucket, error),
            error => BucketsError::Images { place: self.to_string(), source: Box::new(error.into()) }.into(),
        }
    }

    /// An error of an update here.
    pub(crate) fn source_failed(&self, volume: &str, error: SourceError) -> ServerError {
        match error {
            SourceError::Images(error) => self.failed(error),
            SourceError::Volume(error) => ServerError::volume(volume)(error),
            error => BucketsError::Images { place: self.to_string(), source: Box::new(error) }.into(),
        }
    }
}

/// The volume that a user means, and perhaps an image of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WantedVolume {
    pub(crate) place: ImagesPlace,
    /// Its name or id; none for each.
    pub(crate) volume: Option<String>,
    /// The number or the beginning of the id.
    pub(crate) image: Option<String>,
}

impl fmt::Display for WantedVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.place, self.volume.as_deref().unwrap_or_default())?;
        self.image.as_ref().map_or(Ok(()), |image| write!(f, "@{image}"))
    }
}

impl WantedVolume {
    /// Reads `BUCKET:[PATH/][VOLUME[@IMAGE]]`.
    pub(crate) fn parse(text: &str) -> Result<Self, ServerError> {
        let Some((bucket, of)) = text.split_once(':') else {
            return Err(ServerError::Invalid {
                fault: "a mirrored volume in a bucket is `BUCKET:[PATH/]VOLUME`",
                next: "put a colon after the name of the bucket",
            });
        };
        Self::of(bucket, of)
    }

    /// The volumes that `of` names in a bucket.
    pub(crate) fn of(bucket: &str, of: &str) -> Result<Self, ServerError> {
        let (path, rest) = of.rsplit_once('/').unwrap_or(("", of));
        let (volume, image) = match rest.split_once('@') {
            Some((volume, image)) => (volume, Some(image.to_owned())),
            None => (rest, None),
        };
        let volume = (!volume.is_empty()).then(|| volume.to_owned());
        Ok(Self { place: ImagesPlace::new(bucket, path)?, volume, image })
    }

    fn is(&self, found: &VolumeInBucket) -> bool {
        let named = |wanted: &String| found.id.to_string() == *wanted || found.claim.volume() == wanted;
        self.volume.as_ref().is_none_or(named)
    }

    /// All volumes that are meant, and the claims that can't be read.
    pub(crate) fn all(
        &self,
        open: &OpenBucket,
        cancel: &Arc<AtomicBool>,
    ) -> Result<(Vec<VolumeInBucket>, Vec<ImagesError>), ServerError> {
        let (store, workers): (_, Arc<dyn Workers>) = (self.place.store(open)?, open.workers.clone());
        let listed = volumes(&store, &workers, cancel).map_err(|error| self.place.failed(error))?;
        Ok((listed.0.into_iter().filter(|found| self.is(found)).collect(), listed.1))
    }

    /// The one volume that is meant.
    pub(crate) fn one(
        &self,
        open: &OpenBucket,
        cancel: &Arc<AtomicBool>,
    ) -> Result<VolumeInBucket, ServerError> {
        let (found, unreadable) = self.all(open, cancel)?;
        match (&found[..], unreadable.into_iter().next()) {
            ([one], _) => Ok(one.clone()),
            ([], Some(error)) => Err(self.place.failed(error)),
            ([], None) => {
                Err(BucketsError::NoVolume { wanted: self.to_string(), place: self.place.to_string() }.into())
            }
            (several, _) => Err(BucketsError::SeveralVolumes {
                place: self.place.to_string(),
                ids: several.iter().map(|one| one.id.to_string()).collect(),
            }
            .into()),
        }
    }

    /// The image that is meant, among those of the volume.
    pub(crate) fn image_of(&self, labels: &[ImageLabel]) -> Result<ImageLabel, ServerError> {
        let Some(wanted) = &self.image else {
            let newest = labels.last().copied();
            return newest.ok_or_else(|| self.no_image("it has no image yet"));
        };
        let is = |label: &&ImageLabel| {
            label.number.to_string() == *wanted
                || (wanted.len() >= ID_DIGITS_MIN && label.id.to_string().starts_with(wanted.as_str()))
        };
        let found: Vec<&ImageLabel> = labels.iter().filter(is).collect();
        match found[..] {
            [one] => Ok(*one),
            [] => Err(self.no_image("it does not exist, or has expired")),
            _ => Err(self.no_image("several images begin so")),
        }
    }

    fn no_image(&self, why: &'static str) -> ServerError {
        BucketsError::NoImage { wanted: self.to_string(), why }.into()
    }
}

#[cfg(test)]
mod tests;
