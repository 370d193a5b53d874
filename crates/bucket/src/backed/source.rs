//! Where the blocks come from.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use cairn_base::Mutex;

use crate::images::{BucketImages, ImageId, ImageReader, ImagesError, RegionPart};

/// The image below a device.
pub trait Source: Send + Sync {
    /// Reads the blocks of whole frames of one region. Every returned byte was checked.
    ///
    /// # Errors
    /// The store failed, or the object is damaged or missing.
    fn read_frames(
        &self,
        region: u32,
        frames: Range<usize>,
        cancel: &Arc<AtomicBool>,
    ) -> Result<RegionPart, ImagesError>;
}

/// An image that is opened at the first read, so that a server starts without its store.
pub struct ImageSource {
    images: BucketImages,
    image: ImageId,
    reader: Mutex<Option<Arc<ImageReader>>>,
}

impl ImageSource {
    /// The image `image`; `reader` has it if it is open already.
    pub fn new(images: BucketImages, image: ImageId, reader: Option<ImageReader>) -> Self {
        Self { images, image, reader: Mutex::new(reader.map(Arc::new)) }
    }

    fn reader(&self, cancel: &Arc<AtomicBool>) -> Result<Arc<ImageReader>, ImagesError> {
        if let Some(reader) = &*self.reader.lock() {
            return Ok(reader.clone());
        }
        // Several may open it at the same time; the lock is not held over requests.
        let opened = Arc::new(self.images.image(Some(self.image), cancel)?);
        Ok(self.reader.lock().get_or_insert(opened).clone())
    }
}

impl Source for ImageSource {
    fn read_frames(
        &self,
        region: u32,
        frames: Range<usize>,
        cancel: &Arc<AtomicBool>,
    ) -> Result<RegionPart, ImagesError> {
        self.reader(cancel)?.read_frames(region, frames, cancel)
    }
}
