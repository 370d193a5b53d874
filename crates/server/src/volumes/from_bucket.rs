//! Volumes that were opened from an image in a bucket.
//!
//! Such a volume has its own devices, as any volume. Blocks of the image that are not local yet are
//! read from the bucket ([`cairn_bucket::backed`]), and a thread fetches the others in the
//! background. `bucket.local` in its folder records which blocks are local, and `volume.json` has
//! the image. Once everything is local the bucket is not needed any more, and the next opening uses
//! the devices alone.
//!
//! A *read-only* one has the role of a destination: it shows the image, takes no writes, and has
//! claimed nothing. A *writable* one continues from the newest image as an ordinary volume. Its
//! opening claimed the next epoch, so that the owner before it is fenced. It puts nothing into the
//! bucket by itself. A mirror does that, and then the device reads from the newest image.
//!
//! The devices may also be a [cache]: then they never have everything.
//!
//! The bucket is opened at the first fetch: a start of the server needs no store.

pub(crate) mod cache;
mod commands;
mod creating;
pub(crate) mod error;
mod opening;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cairn_api as api;
use cairn_base::VolumeId;
use cairn_bucket::backed::{BackedDevice, BackedError, BackedParts, FetchError, ImageSource, Source};
use cairn_bucket::images::{BucketImages, ImageId, ImageReader, ImagesError, RegionPart};
use cairn_bucket::{StoreError, Trouble, Verb};
use cairn_device::{Device, DeviceError};
use cairn_volume::Volume;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::buckets::error::BucketsError;
use crate::buckets::{Buckets, OpenBucket, rng, threads};
use crate::error::ServerError;
use crate::volumes::disks::{BUSY_PATIENCE, open_when_free};
use crate::volumes::error::VolumesError;
use crate::volumes::from_bucket::error::FromBucketError;
use crate::work::background;

/// The record of local blocks, in the folder of a volume.
pub(super) const LOCAL_RECORD: &str = "bucket.local";
/// Bytes a second that are fetched in the background by default.
const FILL_BYTES: u64 = 64 << 20;
/// Regions that the background fetches at the same time.
const FILL_REGIONS: usize = 4;
/// Interval between flushes of blocks that the background fetched.
const FLUSH_EVERY: Duration = Duration::from_secs(5);
/// The pause of the background after a failure, at first and at most.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Interval at which a pause checks whether the volume ends.
const PAUSE_STEP: Duration = Duration::from_millis(100);

/// The image below a volume, in `volume.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct FromBucket {
    pub(crate) bucket: String,
    /// The id of the volume.
    volume: String,
    /// Its name at its owner, if the bucket has it.
    owner_name: Option<String>,
    /// The id of the image.
    image: String,
    number: u64,
    taken_ms: u64,
    pub(crate) read_only: bool,
    /// The epoch that the opening claimed. A later owner on this server continues from it: if the
    /// bucket has a newer one, another server has taken the volume over since.
    pub(crate) epoch: Option<u32>,
    fill_bytes: Option<u64>,
    /// Its devices are a cache of so many bytes; none if they hold everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) cache_bytes: Option<u64>,
    /// Each image is to reach the bucket within so long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lag_ms: Option<u64>,
}

impl FromBucket {
    fn volume_id(&self) -> Option<VolumeId> {
        self.volume.parse().ok()
    }

    fn image_id(&self) -> Option<ImageId> {
        // Both are 16 bytes in hexadecimal digits.
        self.image.parse::<VolumeId>().ok().map(|id| ImageId(id.0))
    }

    /// The volume as people name it.
    fn shown(&self) -> &str {
        self.owner_name.as_deref().unwrap_or(&self.volume)
    }
}

/// The image of a document, opened at the first read.
pub(super) struct LateSource {
    buckets: Option<Arc<Buckets>>,
    from: FromBucket,
    volume: String,
    open: Mutex<Option<Arc<Opened>>>,
}

/// An image with its bucket, which is in use for as long as this lives.
struct Opened {
    source: ImageSource,
    _bucket: OpenBucket,
}

impl Opened {
    fn new(bucket: OpenBucket, volume: VolumeId, reader: Option<ImageReader>) -> Self {
        let images = images_of(&bucket, volume);
        Self { source: ImageSource::new(images, reader), _bucket: bucket }
    }
}

/// The images of a volume in an open bucket.
fn images_of(bucket: &OpenBucket, volume: VolumeId) -> BucketImages {
    BucketImages::open(bucket.store.clone(), bucket.workers.clone(), volume, None, rng())
}

/// An error of the server as one of the store.
fn as_store_error(error: ServerError, place: &str) -> ImagesError {
    match error {
        ServerError::Buckets(BucketsError::Store { source, .. }) => ImagesError::Store(*source),
        error => {
            let trouble = Trouble::Io(Arc::new(std::io::Error::other(error.to_string())));
            ImagesError::Store(StoreError { verb: Verb::Open, name: None, place: place.into(), trouble })
        }
    }
}

impl LateSource {
    fn new(volume: &str, from: &FromBucket, buckets: Option<Arc<Buckets>>, open: Option<Opened>) -> Self {
        let open = Mutex::new(open.map(Arc::new));
        Self { buckets, from: from.clone(), volume: volume.to_owned(), open }
    }

    /// The bucket is not needed any more.
    fn close(&self) {
        *self.open.lock() = None;
    }

    fn opened(&self) -> Result<Arc<Opened>, ImagesError> {
        let mut open = self.open.lock();
        if let Some(open) = &*open {
            return Ok(open.clone());
        }
        let buckets = self.buckets.as_ref().ok_or(ImagesError::Rule("this server has no buckets"))?;
        let named = ImagesError::Rule("the document of the volume names no volume in a bucket");
        let volume = self.from.volume_id().ok_or(named)?;
        // It makes no request.
        let bucket = buckets.open_for_volume(&self.from.bucket);
        let bucket = bucket.map_err(|error| as_store_error(error, &format!("{}:", self.from.bucket)))?;
        tracing::info!(volume = self.volume, bucket = self.from.bucket, "reads blocks from a bucket");
        Ok(open.insert(Arc::new(Opened::new(bucket, volume, None))).clone())
    }

    /// Reads of the image of `reader` need not open it.
    fn set(&self, reader: ImageReader) {
        if let Ok(opened) = self.opened() {
            opened.source.set(reader);
        }
    }
}

impl Source for LateSource {
    fn read_frames(
        &self,
        image: ImageId,
        region: u32,
        frames: std::ops::Range<usize>,
        cancel: &Arc<AtomicBool>,
    ) -> Result<RegionPart, ImagesError> {
        self.opened()?.source.read_frames(image, region, frames, cancel)
    }
}

/// The image under an open volume.
pub(super) struct Backed {
    pub(super) from: FromBucket,
    pub(super) device: Arc<BackedDevice>,
    source: Arc<LateSource>,
    /// Everything was local when it was opened, so that the devices are used alone.
    alone: bool,
    /// Of one whose devices are a cache.
    cached: Arc<cache::Cached>,
}

fn record_error(volume: &str) -> impl Fn(BackedError) -> ServerError + '_ {
    move |source| {
        let source = FromBucketError::Record { volume: volume.to_owned(), source };
        ServerError::Volumes(VolumesError::FromBucket(source))
    }
}

impl Backed {
    /// Opens the device of a volume in `folder`.
    pub(super) fn open(
        name: &str,
        from: &FromBucket,
        folder: &Path,
        local: Arc<dyn Device>,
        buckets: Option<&Arc<Buckets>>,
    ) -> Result<Self, ServerError> {
        if let Some(volume) = from.volume_id().filter(|_| from.cache_bytes.is_some())
            && let Ok(found) = Volume::inspect(&*local)
            && found.id != volume
        {
            let (volume, found) = (name.to_owned(), found.id.to_string());
            return Err(opening::from_bucket(FromBucketError::OtherCache { volume, found }));
        }
        let source = LateSource::new(name, from, buckets.cloned(), None);
        let presence = open_when_free(&record_path(folder), BUSY_PATIENCE)?;
        Self::over(name, from, local, presence, source)
    }

    fn over(
        name: &str,
        from: &FromBucket,
        local: Arc<dyn Device>,
        presence: Arc<dyn Device>,
        source: LateSource,
    ) -> Result<Self, ServerError> {
        let failed = record_error(name);
        let backing = BackedDevice::inspect(&*presence).map_err(&failed)?;
        let (Some(volume), Some(image)) = (from.volume_id(), from.image_id()) else {
            return Err(failed(BackedError::Other { volume: backing.volume, image: backing.image }));
        };
        let space_at = Volume::space_offset(backing.blocks);
        let source = Arc::new(source);
        let (workers, cache) = (threads(), from.cache_bytes);
        let parts = BackedParts { local, presence, source: source.clone(), workers, space_at, cache };
        let device = BackedDevice::open(parts, volume, image).map_err(&failed)?;
        let alone = device.is_whole() && cache.is_none();
        let cached = Arc::default();
        Ok(Self { from: from.clone(), device: Arc::new(device), source, alone, cached })
    }

    /// The device under the volume.
    pub(super) fn device(&self, local: Arc<dyn Device>) -> Arc<dyn Device> {
        if self.alone { local } else { self.device.clone() }
    }

    /// Refuses to open a volume on it if a fetch failed: parts of the volume would count as lost.
    pub(super) fn refuse_if_away(&self, volume: &str) -> Result<(), ServerError> {
        match self.device.status().last_failure {
            Some(failure) => Err(away(volume, &self.from, &failure).into()),
            None => Ok(()),
        }
    }

    pub(super) fn show(&self) -> api::VolumeBucket {
        let status = self.device.status();
        let FromBucket { bucket, taken_ms, read_only, epoch, .. } = self.from.clone();
        let base = self.device.base();
        let (image, number) = match base.number {
            0 => (self.from.image.clone(), self.from.number),
            number => (base.image.to_string(), number),
        };
        api::VolumeBucket {
            bucket,
            volume: self.from.shown().to_owned(),
            image,
            number,
            taken_ms,
            read_only,
            epoch,
            regions: status.regions,
            regions_left: status.lacking,
            bytes_left: status.bytes_left,
            cache: self.show_cache(),
            problem: status.trouble.or_else(|| status.damaged.into_iter().next()).map(|it| it.to_string()),
        }
    }

    /// The present failures to fetch.
    pub(super) fn problems(&self, volume: &str) -> Vec<api::Problem> {
        let status = self.device.status();
        let cache = self.cache_problem(volume);
        if status.lacking == 0 {
            return cache.into_iter().collect();
        }
        let trouble = status.trouble.filter(|trouble| !trouble.is_damage());
        let all = status.damaged.iter().chain(&trouble);
        all.map(|error| {
            let error = away(volume, &self.from, error);
            api::Problem { subject: volume.to_owned(), message: error.to_string(), next: error.next() }
        })
        .chain(cache)
        .collect()
    }

    /// Starts the thread that fetches everything in the background.
    pub(super) fn fill(
        self: &Arc<Self>,
        volume: &str,
        ending: impl Fn() -> bool + Send + 'static,
    ) -> Result<Option<JoinHandle<()>>, ServerError> {
        let rate = if self.is_cache() { 0 } else { self.from.fill_bytes.unwrap_or(FILL_BYTES) };
        if self.alone || rate == 0 {
            return Ok(None);
        }
        let (backed, name) = (self.clone(), volume.to_owned());
        let work = move || {
            background::step_back();
            Fill { backed: &backed, volume: &name, rate, ending: &ending }.run();
        };
        let thread = std::thread::Builder::new().name("fill".to_owned()).spawn(work);
        thread.map(Some).map_err(|source| ServerError::Thread { what: "a volume from a bucket", source })
    }
}

fn away(volume: &str, from: &FromBucket, trouble: &FetchError) -> VolumesError {
    VolumesError::FromBucket(FromBucketError::Away {
        volume: volume.to_owned(),
        bucket: from.bucket.clone(),
        reason: trouble.to_string(),
        next: trouble.source.next(),
    })
}

/// Fetches everything in the background.
struct Fill<'a> {
    backed: &'a Backed,
    volume: &'a str,
    /// Bytes a second.
    rate: u64,
    ending: &'a dyn Fn() -> bool,
}

impl Fill<'_> {
    fn run(&self) {
        let device = &self.backed.device;
        let (mut flushed, mut pause) = (Instant::now(), PAUSES.0);
        let cancel = Arc::new(AtomicBool::new(false));
        while !device.is_whole() && !(self.ending)() {
            let begun = Instant::now();
            match self.beside(&cancel) {
                Ok(bytes) => {
                    pause = PAUSES.0;
                    let due = Duration::from_secs_f64(bytes as f64 / self.rate as f64);
                    self.pause(due.saturating_sub(begun.elapsed()));
                }
                // The reason is in the status of the volume.
                Err(_) => {
                    self.pause(pause);
                    pause = (pause * 2).min(PAUSES.1);
                }
            }
            if flushed.elapsed() >= FLUSH_EVERY {
                self.flush();
                flushed = Instant::now();
            }
        }
        self.flush();
        if device.is_whole() {
            self.backed.source.close();
            tracing::info!(
                volume = self.volume,
                bucket = self.backed.from.bucket,
                "everything is local now; the bucket is not needed any more"
            );
        }
    }

    /// Fetches some regions; the end of the volume cancels that.
    fn beside(&self, cancel: &Arc<AtomicBool>) -> Result<u64, DeviceError> {
        let device = self.backed.device.clone();
        let flag = cancel.clone();
        let thread = std::thread::Builder::new()
            .name("fill".to_owned())
            .spawn(move || device.fill(FILL_REGIONS, &flag).map(|filled| filled.bytes));
        let Ok(thread) = thread else {
            return self.backed.device.fill(1, cancel).map(|filled| filled.bytes);
        };
        while !thread.is_finished() {
            if (self.ending)() {
                cancel.store(true, Ordering::Relaxed);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        thread.join().unwrap_or(Err(DeviceError::OutOfService))
    }

    fn pause(&self, time: Duration) {
        let begun = Instant::now();
        while begun.elapsed() < time && !(self.ending)() {
            std::thread::sleep(PAUSE_STEP.min(time.saturating_sub(begun.elapsed())));
        }
    }

    fn flush(&self) {
        if let Err(error) = self.backed.device.flush() {
            tracing::warn!(volume = self.volume, %error, "fetched blocks are not durable yet");
        }
    }
}

/// The path of the record of local blocks of the volume in `folder`.
fn record_path(folder: &Path) -> PathBuf {
    folder.join(LOCAL_RECORD)
}
