//! A volume whose devices are a cache of its images in a bucket: the files of the cache, the thread
//! that evicts, and what an owner must know.
//!
//! The home of such a volume is the bucket. A mirror of its own brings each image there. After each
//! image the device reads absent blocks from that one ([`Backed::move_on`]), and the blocks that it
//! has can be evicted. Until then they are only in the cache. When these fill the cache, writes of
//! clients wait until the next image is in the bucket.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cairn_api as api;
use cairn_base::ByteSize;
use cairn_bucket::backed::{CACHE_BYTES_MIN, CacheStatus, MovedOn, VolumeClean};
use cairn_bucket::images::{ImageId, Owner};
use cairn_device::{Device, FileDevice};
use cairn_volume::Volume;
use parking_lot::Mutex;

use super::error::FromBucketError;
use super::opening::from_bucket;
use super::{Backed, FromBucket, PAUSE_STEP};
use crate::error::ServerError;
use crate::storage::claims::refuse_relative;
use crate::volumes::disks::{BLOCK, in_the_folder, make_files, remove_files};
use crate::volumes::open::OpenVolume;
use crate::work::background;

/// The pause between two looks at how full the cache is.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// The pause after an eviction that found nothing.
const REST: Duration = Duration::from_millis(250);
/// Interval between two counts of the blocks that are only in the cache.
const COUNT_EVERY: Duration = Duration::from_secs(1);
/// A cache that is full within this time is a problem.
const WARN_BEFORE: Duration = Duration::from_secs(3600);
/// A lag of so many times its limit is late.
const LATE: u32 = 2;

/// The wish for a cache.
pub(super) struct CacheWish {
    /// A folder for its files; the folder of the volume if none.
    pub(super) disk: Option<PathBuf>,
    pub(super) bytes: u64,
    pub(super) lag_ms: u64,
    /// The beginning of the names of its files.
    pub(super) name: String,
}

impl CacheWish {
    /// The wish of a request, checked as far as it can be without files.
    pub(super) fn of(request: &api::CacheRequest, name: String) -> Result<Self, ServerError> {
        if request.bytes < CACHE_BYTES_MIN {
            let (bytes, least) = (request.bytes, CACHE_BYTES_MIN);
            return Err(from_bucket(FromBucketError::CacheTooSmall { bytes, least }));
        }
        let disk = request.disk.as_ref().map(PathBuf::from);
        if let Some(disk) = &disk {
            refuse_relative("the path of a cache", disk)?;
            if !fs::metadata(disk).map_err(ServerError::path("read", disk))?.is_dir() {
                return Err(from_bucket(FromBucketError::NotAFolder { path: disk.clone() }));
            }
        }
        let lag_ms = request.lag_ms.unwrap_or(LAG_MS);
        if lag_ms < LAG_MS_MIN {
            return Err(ServerError::Invalid {
                fault: "the lag is shorter than a second",
                next: "give a --lag such as 5s",
            });
        }
        Ok(Self { disk, bytes: request.bytes, lag_ms, name })
    }

    /// Makes the sparse files of the cache; paths are as in `volume.json`.
    pub(super) fn make_files(
        &self,
        length: u64,
        nursery: &Path,
    ) -> Result<(Vec<PathBuf>, Vec<Arc<FileDevice>>), ServerError> {
        let folder = self.disk.as_deref().unwrap_or(nursery);
        let system = rustix::fs::statvfs(folder)
            .map_err(|error| ServerError::path("read", folder)(std::io::Error::from(error)))?;
        let free = system.f_bavail.saturating_mul(system.f_frsize);
        if free < self.bytes {
            let path = folder.to_owned();
            return Err(from_bucket(FromBucketError::CacheDiskFull { path, bytes: self.bytes, free }));
        }
        let first = match &self.disk {
            Some(disk) => disk.join(format!("{}.cache", self.name)),
            None => nursery.join("cache.img"),
        };
        let (paths, devices) = make_files(&first, length)?;
        if devices.iter().any(|device| !device.geometry().trims) {
            remove_files(&paths);
            return Err(from_bucket(FromBucketError::NoHoles { path: folder.to_owned() }));
        }
        let paths = if self.disk.is_none() { in_the_folder(&paths) } else { paths };
        Ok((paths, devices))
    }
}

/// The default of the largest lag.
const LAG_MS: u64 = 5_000;
const LAG_MS_MIN: u64 = 1_000;

/// The state of a cache beside its device.
#[derive(Default)]
pub(super) struct Cached {
    /// Writes of clients wait no longer: the volume ends.
    released: AtomicBool,
    /// When a write was last held back, in milliseconds of this process.
    held_ms: AtomicU64,
    facts: Mutex<Facts>,
}

/// The facts of the last count.
#[derive(Debug, Clone, Default)]
struct Facts {
    /// Bytes that the newest image does not have.
    only_here: u64,
    lag: Option<Duration>,
    /// When the present growth began, and with how many bytes.
    grows: Option<(Instant, u64)>,
    /// Bytes a second that were added since.
    rate: f64,
}

fn millis_now() -> u64 {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_millis() as u64 + 1
}

impl Cached {
    fn is_holding(&self) -> bool {
        let held = self.held_ms.load(Ordering::Relaxed);
        held > 0 && millis_now().saturating_sub(held) < 1000
    }
}

impl FromBucket {
    /// One of a new volume, which has no image yet.
    pub(super) fn new_home(bucket: &str, volume: cairn_base::VolumeId, name: &str, wish: &CacheWish) -> Self {
        Self {
            bucket: bucket.to_owned(),
            volume: volume.to_string(),
            owner_name: Some(name.to_owned()),
            image: ImageId::default().to_string(),
            number: 0,
            taken_ms: 0,
            read_only: false,
            epoch: None,
            fill_bytes: None,
            cache_bytes: Some(wish.bytes),
            lag_ms: Some(wish.lag_ms),
        }
    }
}

impl Backed {
    pub(super) fn is_cache(&self) -> bool {
        self.from.cache_bytes.is_some()
    }

    /// Whether the images at this place are those that the device reads.
    pub(crate) fn is_home(&self, bucket: &str, path: &str) -> bool {
        !self.from.read_only && self.from.bucket == bucket && path.is_empty()
    }

    /// The image that the device reads absent blocks from, and the number of its snapshot. Neither
    /// may go while it is in use.
    pub(crate) fn reads_image(&self) -> Option<(ImageId, u64)> {
        let base = self.device.base();
        let is_used = self.is_cache() || !self.device.is_whole();
        (is_used && base.image != ImageId::default()).then_some((base.image, base.number))
    }

    /// Has the device read absent blocks from the newest image.
    pub(crate) fn move_on(&self, volume: &Arc<Volume>, owner: &Owner) -> Result<(), ServerError> {
        if self.alone {
            return Ok(());
        }
        let MovedOn { moved, base } = self.device.move_on(volume, owner)?;
        if let Some(reader) = owner.reader().filter(|reader| reader.label().id == base.image)
            && (moved || self.is_cache())
        {
            self.source.set(reader);
        }
        Ok(())
    }

    /// Writes of clients wait no longer for room.
    pub(crate) fn end_waits(&self) {
        self.cached.released.store(true, Ordering::Relaxed);
    }

    /// Whether writes of clients wait for room.
    pub(crate) fn holds_back(&self) -> bool {
        self.is_cache() && self.cached.is_holding()
    }

    /// Starts the thread that keeps room in the cache.
    pub(crate) fn keep_room(
        self: &Arc<Self>,
        name: &str,
        volume: &Arc<Volume>,
        ending: impl Fn() -> bool + Send + 'static,
    ) -> Result<Option<JoinHandle<()>>, ServerError> {
        if !self.is_cache() {
            return Ok(None);
        }
        let (takes, cached) = (self.device.takes_writes(), self.cached.clone());
        volume.hold_back_unless(Box::new(move |waiting| {
            let is_let_in = cached.released.load(Ordering::Relaxed) || takes(waiting);
            if !is_let_in {
                cached.held_ms.store(millis_now(), Ordering::Relaxed);
            }
            is_let_in
        }));
        let (backed, volume, name) = (self.clone(), volume.clone(), name.to_owned());
        let work = move || {
            background::step_back();
            let mut counted: Option<Instant> = None;
            while !ending() {
                if counted.is_none_or(|at| at.elapsed() >= COUNT_EVERY) {
                    backed.count(&volume);
                    counted = Some(Instant::now());
                }
                let rest = if backed.evict(&name, &volume) { LOOK_EVERY } else { REST };
                let begun = Instant::now();
                while begun.elapsed() < rest && !ending() {
                    std::thread::sleep(LOOK_EVERY.min(PAUSE_STEP));
                }
            }
        };
        let thread = std::thread::Builder::new().name("cache".to_owned()).spawn(work);
        thread.map(Some).map_err(|source| ServerError::Thread { what: "a cache", source })
    }

    /// Evicts as much as is due. Whether to look again soon.
    fn evict(&self, name: &str, volume: &Arc<Volume>) -> bool {
        let excess = self.device.cache().map_or(0, |status| status.excess());
        if excess == 0 {
            return true;
        }
        let clean = match VolumeClean::new(volume, &self.device.base()) {
            Ok(Some(clean)) => clean,
            Ok(None) => return false,
            Err(error) => {
                tracing::debug!(volume = name, %error, "nothing can be evicted");
                return false;
            }
        };
        let mut clean = clean;
        match self.device.evict(excess, &mut clean) {
            Ok(freed) => freed > 0,
            Err(error) => {
                tracing::warn!(volume = name, %error, "cannot evict blocks from the cache");
                false
            }
        }
    }

    /// Counts the blocks that are only here.
    fn count(&self, volume: &Arc<Volume>) {
        let base = self.device.base();
        let entries = volume.snapshot_entries();
        let entry = entries.iter().find(|entry| base.is_of(entry));
        let lag = match entry {
            Some(entry) => volume.age_of_changes(&entry.root),
            None => Some(self.cached.facts.lock().lag.unwrap_or_default() + COUNT_EVERY),
        };
        let only_here = match entry {
            Some(_) if lag.is_none() => 0,
            // A block of a map may be absent, and the store away: then the last count stays.
            Some(entry) => match volume.changed_since_snapshot(entry.id) {
                Ok(behind) => behind.blocks * BLOCK,
                Err(_) => self.cached.facts.lock().only_here,
            },
            None => volume.status().used * BLOCK,
        };
        let mut facts = self.cached.facts.lock();
        let grows = match facts.grows {
            Some((since, from)) if only_here >= facts.only_here && only_here > 0 => (since, from),
            _ => (Instant::now(), only_here),
        };
        let took = grows.0.elapsed().as_secs_f64();
        facts.rate = if took > 1.0 { only_here.saturating_sub(grows.1) as f64 / took } else { 0.0 };
        (facts.only_here, facts.lag, facts.grows) = (only_here, lag, Some(grows));
    }

    /// How long it takes at the present rate until writes wait.
    fn full_in(&self, status: &CacheStatus, facts: &Facts) -> Option<Duration> {
        let room = (status.capacity - status.reserve.min(status.capacity)) * BLOCK;
        let left = room.saturating_sub(facts.only_here) as f64;
        (facts.rate > 0.0).then(|| Duration::from_secs_f64((left / facts.rate).min(1e9)))
    }

    pub(super) fn show_cache(&self) -> Option<api::VolumeCache> {
        let status = self.device.cache()?;
        let facts = self.cached.facts.lock().clone();
        let millis = |time: Duration| time.as_millis() as u64;
        Some(api::VolumeCache {
            size_bytes: status.capacity * BLOCK,
            used_bytes: status.used * BLOCK,
            only_here_bytes: facts.only_here,
            lag_ms: facts.lag.map_or(0, millis),
            lag_limit_ms: self.from.lag_ms.unwrap_or(LAG_MS),
            full_in_ms: self.full_in(&status, &facts).map(millis),
            holds_back: self.cached.is_holding(),
        })
    }

    /// Bytes that the cache may still take of its disk.
    pub(crate) fn cache_may_take(&self) -> Option<u64> {
        self.device.cache().map(|status| status.capacity.saturating_sub(status.used) * BLOCK)
    }

    /// The problems of the cache: writes wait, or will soon.
    pub(super) fn cache_problem(&self, volume: &str) -> Option<api::Problem> {
        let status = self.device.cache()?;
        let facts = self.cached.facts.lock().clone();
        let (only_here, size) = (ByteSize(facts.only_here), ByteSize(status.capacity * BLOCK));
        let bucket = &self.from.bucket;
        let next = format!(
            "see `cairn mirror show {bucket}:{volume}` for the cause; the volume catches up by itself when the bucket takes its images again"
        );
        if self.cached.is_holding() {
            let message = format!(
                "writes wait: the cache of {size} is full, and {only_here} of it are not in bucket `{bucket}` yet"
            );
            return Some(api::Problem { subject: volume.to_owned(), message, next });
        }
        let limit = Duration::from_millis(self.from.lag_ms.unwrap_or(LAG_MS));
        let is_late = facts.lag.is_some_and(|lag| lag > limit * LATE);
        let full_in = self.full_in(&status, &facts).filter(|time| *time < WARN_BEFORE);
        if !is_late || full_in.is_none() && facts.only_here < status.capacity * BLOCK / 2 {
            return None;
        }
        let soon = match full_in {
            Some(time) => format!("writes will wait in about {}", in_words(time)),
            None => "writes will wait once the cache is full".to_owned(),
        };
        let message = format!(
            "{only_here} of the cache of {size} are not in bucket `{bucket}` yet, and the last image is {} old; {soon}",
            in_words(facts.lag.unwrap_or_default())
        );
        Some(api::Problem { subject: volume.to_owned(), message, next })
    }
}

fn in_words(time: Duration) -> String {
    match time.as_secs() {
        0..=119 => format!("{} s", time.as_secs()),
        120..=7199 => format!("{} min", time.as_secs() / 60),
        _ => format!("{} h", time.as_secs() / 3600),
    }
}

impl OpenVolume {
    /// The image and the snapshot that its device reads blocks from, if the images at this place
    /// are those of its home.
    pub(crate) fn reads_image_at(&self, bucket: &str, path: &str) -> Option<(ImageId, u64)> {
        self.backed.as_ref().filter(|backed| backed.is_home(bucket, path))?.reads_image()
    }

    /// Whether the images at this place are its home, which it needs for as long as it exists, or
    /// until everything is local.
    pub(crate) fn has_home_at(&self, bucket: &str, path: &str) -> bool {
        let is_needed = |backed: &&Arc<Backed>| backed.is_cache() || !backed.device.is_whole();
        self.backed.as_ref().filter(is_needed).is_some_and(|backed| backed.is_home(bucket, path))
    }

    /// After an image was committed at this place.
    pub(crate) fn move_on(&self, bucket: &str, path: &str, owner: &Owner) -> Result<(), ServerError> {
        match self.backed.as_ref().filter(|backed| backed.is_home(bucket, path)) {
            Some(backed) => backed.move_on(&self.volume, owner),
            None => Ok(()),
        }
    }

    /// The refusal to delete the mirror whose images it reads.
    pub(crate) fn is_home_of(&self, mirror: String) -> ServerError {
        from_bucket(FromBucketError::IsHome { volume: self.name.clone(), mirror })
    }

    /// Its devices are a cache.
    pub(crate) fn is_cached(&self) -> bool {
        self.backed.as_ref().is_some_and(|backed| backed.is_cache())
    }

    /// Removes the files of a cache that are outside of the folder of the volume.
    pub(crate) fn remove_cache(&self, folder: &Path) {
        if !self.is_cached() {
            return;
        }
        for path in self.paths.iter().filter(|path| !path.starts_with(folder)) {
            if let Err(error) = fs::remove_file(path) {
                tracing::warn!(path = %path.display(), %error, "a file of a cache stays");
            }
        }
    }
}
