//! Why a device with a bucket below it cannot be opened, or a block of it cannot be read.

use std::io;
use std::sync::Arc;

use cairn_base::VolumeId;
use cairn_device::DeviceError;

use crate::images::{ImageId, ImagesError};

/// Why a device was not opened or made.
#[derive(Debug, Clone, thiserror::Error)]
pub enum BackedError {
    /// The device of the presence file or the local device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// It holds no presence file.
    #[error("this is not a record of local blocks")]
    NotOne,
    /// It holds one already.
    #[error("there is a record of local blocks already")]
    Exists,
    /// It was written by a newer version.
    #[error("the record of local blocks has version {version}; this program reads up to {max}", max = super::record::VERSION)]
    Newer {
        /// Its version.
        version: u32,
    },
    /// It is of another volume or image.
    #[error("the record of local blocks belongs to image {image} of volume {volume}")]
    Other {
        /// Its volume.
        volume: VolumeId,
        /// Its image.
        image: ImageId,
    },
    /// It cannot be relied on.
    #[error("the record of local blocks is damaged: {0}")]
    Damaged(&'static str),
    /// The local device is shorter than the image needs.
    #[error("the local device has {have} bytes, and the image needs {need}")]
    LocalTooSmall {
        /// Bytes.
        need: u64,
        /// Bytes.
        have: u64,
    },
    /// The presence file is too short.
    #[error("the record of local blocks has {have} bytes, and needs {need}")]
    RecordTooSmall {
        /// Bytes.
        need: u64,
        /// Bytes.
        have: u64,
    },
}

/// Why a region was not fetched.
#[derive(Debug, Clone, thiserror::Error)]
#[error("region {region} is not local and cannot be fetched: {source}")]
pub struct FetchError {
    /// The region.
    pub region: u32,
    /// The cause, which names the object.
    pub source: Arc<ImagesError>,
}

impl FetchError {
    /// Whether the object is damaged or missing, so that waiting does not help.
    pub fn is_damage(&self) -> bool {
        matches!(
            *self.source,
            ImagesError::Damaged { .. }
                | ImagesError::Gone(_)
                | ImagesError::NoImage(_)
                | ImagesError::Newer { .. }
        )
    }

    /// A store that is away says nothing about the block: a volume takes the error of a network for
    /// no damage.
    pub(super) fn to_device(&self, offset: u64, length: u64) -> DeviceError {
        let kind = if self.is_damage() { io::ErrorKind::Other } else { io::ErrorKind::NetworkDown };
        DeviceError::Io {
            action: cairn_device::Action::Read,
            offset,
            length,
            source: Arc::new(io::Error::new(kind, self.clone())),
        }
    }
}
