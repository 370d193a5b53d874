//! A device whose content is an image in a bucket until it is local.
//!
//! ```text
//!   volume --> BackedDevice --> local device: a sparse file, or disks
//!                   |------> presence file: which blocks of the image are local
//!                   '------> source: the image in the bucket, by ranged gets
//! ```
//!
//! The local device has the layout of the volume: a label area, then the block space. The label
//! area is always local. A region of 4 MiB of block space is *lacking* while the image has blocks
//! in it that are not local. A read of such a block fetches frames of its region, checks their
//! digests, writes them to their places and then reads them there. A write goes to the local device
//! and makes its blocks local. Once no region is lacking, the bucket is not needed any more.
//!
//! The device can move on to a newer image of the same volume ([`BackedDevice::rebase`]). Its local
//! device can be a *cache*, which has only some of the blocks. Then others become absent again, and
//! are read from the newest image: `cache` has the rules.
//!
//! # Invariants
//! 1. **A mark after its bytes.** The presence file has a mark of a block only after the bytes of
//!    that block are durable on the local device. So a durable mark never shows bytes that are not
//!    there.
//! 2. **A flush covers its marks.** A flush that succeeds has made durable all marks of writes that
//!    completed before it. So does a write with FUA, also in a region that is local by marks that
//!    are not durable yet. So a flushed write is never hidden by a later fetch.
//! 3. **A fetch never overwrites a write.** A fetch writes only blocks that have no mark, and holds
//!    the lock of the region meanwhile. A write holds the same lock, shared, until its mark is in
//!    memory.
//! 4. **Marks only grow.** No block becomes absent again, in memory or in the file, except in a
//!    cache. Changes of the presence are repeated in the order in which they happened.
//! 5. **Nothing is invented.** A block that the store lacks, or whose digest is wrong, is an error
//!    that names the region and the object. It is never served as zeroes.
//! 6. **No mark after a failed flush.** After a flush of either device failed, other than for lack
//!    of room, this device refuses changes until it is opened again: the lost bytes may be fetched
//!    ones.
//! 7. **One image at a time.** A change of the image is one record. It is durable before the caller
//!    lets the image before expire. Each absent block that any reader needs is the same in both.
//!
//! # After a crash
//! | crash after | the file has | the next opening |
//! |---|---|---|
//! | a fetched block was written to the local device | no mark | fetches it again |
//! | a write completed without a flush | no mark | shows the block of the image, or the written bytes if a mark was durable |
//! | the flush of the local device, before marks are written | no mark | the same: the flush was not acknowledged |
//! | some blocks of marks were written | marks whose bytes are durable | uses the marks that are whole |
//! | the flush of the presence file | all marks | shows the flushed bytes |
//! | a part of a checkpoint of the presence file | the older area, whole | uses the older area |
//! | a checkpoint, before the older area is cleared | both areas | uses the newer one |
//!
//! Blocks outside of the image, and places that the image does not use, are those of the local
//! device: zeroes in a new sparse file.
//!
//! # Memory
//! One bit for each region, and 128 bytes for each region of which a part is local. [`PARTIAL_MAX`]
//! bounds those that reads make; past it a read fetches its region as a whole. Writes may exceed
//! it, as they must not wait for a store. The table of the image takes 8 MiB for each TiB of data.
//!
//! The crate starts no threads: [`Workers`](crate::Workers) run fetches beside a caller, and the
//! owner of the device calls [`BackedDevice::fill`].

mod base;
mod cache;
mod cached;
mod clean;
mod device;
mod error;
mod evict;
mod fetch;
mod presence;
mod record;
mod source;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

use cairn_base::{BLOCK_SIZE, Mutex, VolumeId};
use cairn_device::{Device, DeviceError};
use parking_lot::RwLock;

pub use self::base::{Base, MovedOn};
pub use self::cache::{CACHE_BYTES_MIN, CacheStatus, Clean};
pub use self::clean::VolumeClean;
pub use self::error::{BackedError, FetchError};
pub use self::fetch::Filled;
pub use self::presence::Bits;
pub use self::record::{Backing, presence_bytes};
pub use self::source::{ImageSource, Source};

use self::cache::Cache;
use self::fetch::{Ahead, Flight};
use self::presence::Presence;
use self::record::Record;
use crate::images::{ImageId, REGION_BLOCKS};
use crate::workers::Workers;

/// Regions of which a part is local, as far as reads make them.
pub const PARTIAL_MAX: usize = 32 << 10;
/// Locks of regions.
const STRIPES: usize = 64;
const BLOCK: u64 = BLOCK_SIZE as u64;
const REGION: u64 = REGION_BLOCKS as u64;

/// Everything that a device with a bucket below it needs.
pub struct BackedParts {
    /// The layout of the volume.
    pub local: Arc<dyn Device>,
    /// The presence file: at least [`presence_bytes`].
    pub presence: Arc<dyn Device>,
    /// The image.
    pub source: Arc<dyn Source>,
    /// Runs fetches beside each other.
    pub workers: Arc<dyn Workers>,
    /// Bytes of the local device before the block space.
    pub space_at: u64,
    /// Bytes of the block space that may be local at the same time; none for all of it.
    pub cache: Option<u64>,
}

/// How far the content is local.
#[derive(Debug, Clone, Default)]
pub struct BackedStatus {
    /// Regions of the image.
    pub regions: u64,
    /// Those of which a block is only in the bucket.
    pub lacking: u64,
    /// Bytes of objects that remain to be fetched, about.
    pub bytes_left: u64,
    /// Bytes that were fetched since the opening.
    pub fetched: u64,
    /// Fetches that failed since the opening.
    pub failures: u64,
    /// The last failure, until a later fetch succeeds.
    pub trouble: Option<FetchError>,
    /// The last failure since the opening.
    pub last_failure: Option<FetchError>,
    /// Objects that are damaged or missing in the bucket, at most a few.
    pub damaged: Vec<FetchError>,
}

/// See the module.
pub struct BackedDevice {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for BackedDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BackedDevice").finish_non_exhaustive()
    }
}

/// Lock order: `record`, then stripes in order, then the state of `presence`. The other locks are
/// held alone.
struct Shared {
    local: Arc<dyn Device>,
    presence_file: Arc<dyn Device>,
    source: Arc<dyn Source>,
    workers: Arc<dyn Workers>,
    backing: Backing,
    space_at: u64,
    presence: Presence,
    /// None if everything is to be local.
    cache: Option<Cache>,
    /// Held during a sync, so that no flush overtakes the marks that it covers.
    record: Mutex<Record>,
    stripes: Vec<RwLock<()>>,
    flights: Mutex<HashMap<u32, Arc<Flight>>>,
    ahead: Mutex<Ahead>,
    /// Whether a read may be one that continues an earlier one.
    looks_ahead: AtomicBool,
    prefetches: AtomicUsize,
    /// Where the next fill begins.
    cursor: AtomicU64,
    failed: Mutex<Option<DeviceError>>,
    report: Mutex<Report>,
    fetched: AtomicU64,
    cancel: Arc<AtomicBool>,
}

#[derive(Default)]
struct Report {
    failures: u64,
    trouble: Option<FetchError>,
    last_failure: Option<FetchError>,
    damaged: Vec<FetchError>,
}

impl BackedDevice {
    /// Makes a new presence file: all regions that the image has are lacking. `regions` has the
    /// number of each and the bytes of its object, in order.
    ///
    /// # Errors
    /// The file is too short or holds another one, or its device failed.
    pub fn create(
        presence: &dyn Device,
        (volume, base, blocks): (VolumeId, Base, u64),
        id: [u8; 16],
        regions: impl Iterator<Item = (u32, u32)>,
    ) -> Result<(), BackedError> {
        record::create(presence, (volume, base, blocks), id, regions)
    }

    /// The image that a presence file is of.
    ///
    /// # Errors
    /// It is none, or is damaged or of a newer version.
    pub fn inspect(presence: &dyn Device) -> Result<Backing, BackedError> {
        record::inspect(presence)
    }

    /// Opens the device. It makes no request to the store.
    ///
    /// # Errors
    /// A device is too short, the presence file is damaged, of another volume or image, or of a
    /// newer version.
    pub fn open(parts: BackedParts, volume: VolumeId, image: ImageId) -> Result<Self, BackedError> {
        let backing = record::inspect(&*parts.presence)?;
        if (backing.volume, backing.image) != (volume, image) {
            return Err(BackedError::Other { volume: backing.volume, image: backing.image });
        }
        let (need, have) = (parts.space_at + backing.blocks * BLOCK, parts.local.geometry().length);
        if have < need {
            return Err(BackedError::LocalTooSmall { need, have });
        }
        let (presence, record) = record::open(&parts.presence, &backing)?;
        let shared = Shared {
            local: parts.local,
            presence_file: parts.presence,
            source: parts.source,
            workers: parts.workers,
            backing,
            space_at: parts.space_at,
            presence,
            cache: parts.cache.map(|bytes| Cache::new(bytes, backing.blocks.div_ceil(REGION), STRIPES)),
            record: Mutex::new(record),
            stripes: (0..STRIPES).map(|_| RwLock::new(())).collect(),
            flights: Mutex::new(HashMap::new()),
            ahead: Mutex::new(Ahead::default()),
            looks_ahead: AtomicBool::new(false),
            prefetches: AtomicUsize::new(0),
            cursor: AtomicU64::new(0),
            failed: Mutex::new(None),
            report: Mutex::new(Report::default()),
            fetched: AtomicU64::new(0),
            cancel: Arc::new(AtomicBool::new(false)),
        };
        shared.count_cache()?;
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The image that absent blocks are read from now.
    pub fn base(&self) -> Base {
        self.shared.presence.base()
    }

    /// Reads absent blocks from another image from now on. That image must have all blocks that the
    /// present state of the volume, a snapshot of it, or a reader of an earlier state has in
    /// absent places. It is durable when this returns, and only then the image before may expire.
    ///
    /// # Errors
    /// A device failed. Either image may be the one that the next opening reads from.
    pub fn rebase(&self, base: Base) -> Result<(), DeviceError> {
        if base == self.base() {
            // An earlier call may have failed for lack of room.
            return if self.shared.presence.is_unsaved() { self.shared.sync() } else { Ok(()) };
        }
        {
            let mut record = self.shared.record.lock();
            self.shared.refuse_failed()?;
            let renewed = record.renew(&*self.shared.presence_file);
            self.shared.latched(renewed)?;
        }
        self.shared.presence.rebase(base);
        self.shared.sync()
    }

    /// The image that the presence file was made with.
    pub fn backing(&self) -> Backing {
        self.shared.backing
    }

    /// Whether every block is local. Marks may not be durable before the next flush.
    pub fn is_whole(&self) -> bool {
        self.shared.presence.is_whole()
    }

    /// How far the content is local.
    pub fn status(&self) -> BackedStatus {
        let shared = &self.shared;
        let (regions, lacking) = (shared.backing.regions, shared.presence.lacking());
        let each = shared.backing.stored.checked_div(regions).unwrap_or(0);
        let report = shared.report.lock();
        BackedStatus {
            regions,
            lacking,
            bytes_left: if lacking == regions { shared.backing.stored } else { each * lacking },
            fetched: shared.fetched.load(std::sync::atomic::Ordering::Relaxed),
            failures: report.failures,
            trouble: report.trouble.clone(),
            last_failure: report.last_failure.clone(),
            damaged: report.damaged.clone(),
        }
    }

    /// Bytes of memory of the presence, about.
    pub fn memory(&self) -> u64 {
        self.shared.presence.memory() + self.shared.cache.as_ref().map_or(0, Cache::memory)
    }

    /// Fetches the next lacking regions, at most `count` at the same time, and makes them local.
    ///
    /// # Errors
    /// A region cannot be fetched, or the local device failed. A later call tries the next regions.
    pub fn fill(&self, count: usize, cancel: &Arc<AtomicBool>) -> Result<Filled, DeviceError> {
        self.shared.fill(count, cancel)
    }
}
