//! Where the blocks come from.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use cairn_base::Mutex;

use crate::images::{BucketImages, ImageId, ImageReader, ImagesError, RegionPart};

/// The images below a device.
pub trait Source: Send + Sync {
    /// Reads the blocks of whole frames of one region of an image. Every returned byte was checked.
    ///
    /// # Errors
    /// The store failed, or the object is damaged or missing.
    fn read_frames(
        &self,
        image: ImageId,
        region: u32,
        frames: Range<usize>,
        cancel: &Arc<AtomicBool>,
    ) -> Result<RegionPart, ImagesError>;
}

/// Images that are opened at the first read, so that a server starts without its store.
pub struct ImageSource {
    images: BucketImages,
    reader: Mutex<Option<Arc<ImageReader>>>,
}

impl ImageSource {
    /// The images of a volume; `reader` is one that is open already.
    pub fn new(images: BucketImages, reader: Option<ImageReader>) -> Self {
        Self { images, reader: Mutex::new(reader.map(Arc::new)) }
    }

    /// Reads of the image of `reader` use it from now on.
    pub fn set(&self, reader: ImageReader) {
        let mut known = self.reader.lock();
        let reader = match &*known {
            Some(before) => reader.with_headers_of(before),
            None => reader,
        };
        *known = Some(Arc::new(reader));
    }

    fn reader(&self, image: ImageId, cancel: &Arc<AtomicBool>) -> Result<Arc<ImageReader>, ImagesError> {
        let is_it = |reader: &&Arc<ImageReader>| reader.label().id == image;
        if let Some(reader) = self.reader.lock().as_ref().filter(is_it) {
            return Ok(reader.clone());
        }
        // Several may open it at the same time; the lock is not held over requests.
        let opened = Arc::new(self.images.image(Some(image), cancel)?);
        let mut known = self.reader.lock();
        // A read of an earlier image may come late.
        if known.is_none() {
            *known = Some(opened.clone());
        }
        Ok(opened)
    }
}

impl Source for ImageSource {
    fn read_frames(
        &self,
        image: ImageId,
        region: u32,
        frames: Range<usize>,
        cancel: &Arc<AtomicBool>,
    ) -> Result<RegionPart, ImagesError> {
        self.reader(image, cancel)?.read_frames(region, frames, cancel)
    }
}
