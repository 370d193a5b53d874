//! Why something was not done with the images in a bucket, and the next step.

use cairn_base::Vbn;

use super::codec::Bad;
use super::root::ImageId;
use crate::error::{StoreError, Trouble};
use crate::name::Name;

/// See the module.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ImagesError {
    /// The store failed.
    #[error(transparent)]
    Store(StoreError),
    /// An object differs from the written one.
    #[error("the object {name} is damaged: {how}")]
    Damaged {
        /// Which.
        name: Name,
        /// The kind of the damage.
        how: &'static str,
    },
    /// An object that an image needs is not in the bucket.
    #[error("the object {0} is missing, and an image needs it")]
    Gone(Name),
    /// An object was written by a newer version.
    #[error("the object {name} has version {version}; this program reads up to {max}", max = super::codec::VERSION)]
    Newer {
        /// Which.
        name: Name,
        /// Its version.
        version: u32,
    },
    /// The store shows an older state than it did before.
    #[error(
        "the bucket went back: it shows root {found_epoch}.{found_seq}, and this server has seen root {epoch}.{seq}"
    )]
    Replayed {
        /// The epoch that was seen.
        epoch: u32,
        /// The number that was seen.
        seq: u32,
        /// The epoch that is there.
        found_epoch: u32,
        /// The number that is there.
        found_seq: u32,
    },
    /// Another server has claimed the volume.
    #[error("{by} has taken over this volume in the bucket (epoch {epoch})")]
    Fenced {
        /// Its epoch.
        epoch: u32,
        /// The label of its claim.
        by: String,
    },
    /// Another server claimed the volume at the same time.
    #[error("{by} claimed this volume in the bucket at the same time (epoch {epoch})")]
    Taken {
        /// Its epoch.
        epoch: u32,
        /// The label of its claim.
        by: String,
    },
    /// An update does not begin at the newest image.
    #[error("the update does not begin at the newest image in the bucket")]
    Base {
        /// The newest image; none in an empty bucket.
        newest: Option<ImageId>,
    },
    /// The bucket does not have this image.
    #[error("there is no image {0} in the bucket")]
    NoImage(ImageId),
    /// The image has no such block.
    #[error("the image has no block {0}")]
    NoBlock(Vbn),
    /// The caller broke a rule of this module.
    #[error("{0}")]
    Rule(&'static str),
}

impl From<StoreError> for ImagesError {
    /// An object that does not authenticate is damaged as one that fails its digest.
    fn from(error: StoreError) -> Self {
        match (error.trouble, error.name) {
            (Trouble::Damaged { how, .. }, Some(name)) => ImagesError::Damaged { name, how },
            (Trouble::Newer(version), Some(name)) => ImagesError::Newer { name, version },
            (trouble, name) => ImagesError::Store(StoreError { trouble, name, ..error }),
        }
    }
}

impl ImagesError {
    /// The next step, in plain words.
    pub fn next(&self) -> String {
        match self {
            ImagesError::Store(error) => error.next(),
            ImagesError::Damaged { .. } | ImagesError::Gone(_) => {
                "restore the object from a version that the store keeps, or open an older image".to_owned()
            }
            ImagesError::Newer { .. } => "use a newer cairn".to_owned(),
            ImagesError::Replayed { .. } => {
                "find out why the store shows an old state; open an older image by name if that is intended"
                    .to_owned()
            }
            ImagesError::Fenced { .. } => {
                "this server writes nothing more to it; take the volume over again if that is intended"
                    .to_owned()
            }
            ImagesError::Taken { .. } => "repeat the command if the takeover is still intended".to_owned(),
            ImagesError::Base { .. } => {
                "compare with the newest image in the bucket, and begin again".to_owned()
            }
            ImagesError::NoImage(_) => "list the images of the bucket and choose one of them".to_owned(),
            ImagesError::NoBlock(_) => {
                "check the volume: it points at a block that its image lacks".to_owned()
            }
            ImagesError::Rule(_) => "correct it and repeat the command".to_owned(),
        }
    }

    /// Another server owns the volume.
    pub fn is_fenced(&self) -> bool {
        matches!(self, ImagesError::Fenced { .. })
    }
}

impl Bad {
    pub(super) fn of(self, name: &Name) -> ImagesError {
        match self {
            Bad::Damaged(how) => ImagesError::Damaged { name: name.clone(), how },
            Bad::Newer(version) => ImagesError::Newer { name: name.clone(), version },
        }
    }
}
