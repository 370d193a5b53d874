//! A snapshot of a volume as an update of the bucket takes it.
//!
//! An image has the blocks of the snapshot and of all snapshots before it. An update needs two
//! comparisons of active maps: which blocks the base in the bucket lacks, and which blocks are live
//! in a region that has one of these.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use cairn_base::{Checksum, SnapshotId, Timestamp, Vbn};
use cairn_format::stream::{root_digest, table_digest};
use cairn_format::{FormatError, SnapshotEntry};
use cairn_stream::{Have, Plan, StreamError};
use cairn_volume::{Run, Volume, VolumeError};

use super::error::ImagesError;
use super::inner::Seen;
use super::owner::Owner;
use super::region::{REGION_BLOCKS, RegionBlocks};
use super::root::{ImageId, ImageLabel};
use crate::workers::{Workers, beside};

/// Regions that are put at the same time.
const REGIONS_AT_ONCE: usize = 8;
const BLOCKS: u64 = REGION_BLOCKS as u64;

/// Why a snapshot is not in the bucket.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The bucket.
    #[error(transparent)]
    Images(#[from] ImagesError),
    /// The comparison with the image in the bucket.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// The volume.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// The snapshot table of the image in the bucket.
    #[error("the snapshot table of the image in the bucket is damaged: {0}")]
    Table(FormatError),
}

/// The surroundings of an update.
pub struct UpdateWork<'a> {
    /// Threads.
    pub workers: &'a Arc<dyn Workers>,
    /// The time of the root.
    pub now: Timestamp,
    /// Cancels it.
    pub cancel: &'a Arc<AtomicBool>,
    /// Regions that are put although they have not changed.
    pub again: &'a BTreeSet<u32>,
    /// Snapshots that have another content here than in the bucket are new ones: the volume is a
    /// mirror, whose source may assign numbers again after it was set back.
    pub replaces: bool,
    /// Receives the progress after each group of regions. It may block, which slows the update.
    pub told: &'a mut dyn FnMut(UpdateProgress),
}

/// How far an update is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UpdateProgress {
    /// Regions that were put.
    pub done: u64,
    /// Regions that this update puts.
    pub regions: u64,
    /// Bytes that were put.
    pub bytes: u64,
}

/// A committed update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Updated {
    /// Its root.
    pub seen: Seen,
    /// Regions that were put.
    pub regions: u64,
    /// Regions that an interrupted update had put.
    pub resumed: u64,
    /// Bytes that were put.
    pub bytes: u64,
}

/// See the module. Its snapshots are held until it is dropped.
pub struct VolumeImage {
    live: Plan,
    changed: Plan,
}

/// The snapshot table in the content of an image.
///
/// # Errors
/// It is damaged.
pub fn snapshots_of(content: &[u8]) -> Result<Vec<SnapshotEntry>, FormatError> {
    let entries = content.chunks(SnapshotEntry::SIZE).map(SnapshotEntry::parse);
    entries.filter_map(Result::transpose).collect()
}

fn regions_of(runs: &[Run]) -> BTreeSet<u32> {
    let number = |vbn: u64| u32::try_from(vbn / BLOCKS).unwrap_or(u32::MAX);
    let of_run = |(first, count): &Run| number(first.0)..=number(first.0 + count.max(&1) - 1);
    runs.iter().flat_map(of_run).collect()
}

impl VolumeImage {
    /// The image of `target`, compared with an image that has the snapshots `base`.
    ///
    /// # Errors
    /// [`StreamError::Diverged`] if a snapshot has the same id and another content there.
    pub fn new(
        volume: &Arc<Volume>,
        base: &[SnapshotEntry],
        target: SnapshotId,
    ) -> Result<Self, SourceError> {
        let have: Vec<Have> = base.iter().map(Have::from).collect();
        // A snapshot that is deleted between the two is in the first one only, and does not matter.
        let live = Plan::new(volume, &[], target)?;
        let changed = Plan::new(volume, &have, target)?;
        Ok(Self { live, changed })
    }

    /// Its label. The id is the digest of the snapshot table, which has the root of each snapshot.
    pub fn label(&self) -> ImageLabel {
        let table = self.changed.table();
        let (number, taken) = table.last().map_or((0, Timestamp(0)), |last| (last.id.0, last.root.created));
        let id = ImageId(table_digest(table.iter()).0);
        ImageLabel { id, number, taken, blocks: self.changed.header().space_blocks }
    }

    /// The snapshot table.
    pub fn content(&self) -> Vec<u8> {
        self.changed.table().iter().flat_map(SnapshotEntry::to_bytes).collect()
    }

    /// Regions with a changed live block.
    pub fn changed_regions(&self) -> BTreeSet<u32> {
        regions_of(self.changed.runs())
    }

    /// The live blocks of a region.
    ///
    /// # Errors
    /// The device failed.
    pub fn region(&self, region: u32) -> Result<RegionBlocks, SourceError> {
        let (first, end) = (u64::from(region) * BLOCKS, (u64::from(region) + 1) * BLOCKS);
        let runs = self.live.runs();
        let start = runs.partition_point(|(vbn, count)| vbn.0 + count <= first);
        let within: Vec<Run> = runs
            .iter()
            .skip(start)
            .take_while(|(vbn, _)| vbn.0 < end)
            .map(|(vbn, count)| (Vbn(vbn.0.max(first)), (vbn.0 + count).min(end) - vbn.0.max(first)))
            .collect();
        let read = self.live.read(&within)?;
        let places = within.iter().flat_map(|(vbn, count)| vbn.0 - first..vbn.0 - first + count);
        let mut blocks = RegionBlocks::new();
        places.zip(&read).for_each(|(place, block)| blocks.push(place as usize, &block[..]));
        Ok(blocks)
    }

    /// Brings a snapshot into the bucket: the whole update. It is resumed if it was interrupted.
    ///
    /// # Errors
    /// The snapshot is not in the bucket, or that is unclear; a later call resumes.
    pub fn update(
        volume: &Arc<Volume>,
        owner: &mut Owner,
        target: SnapshotId,
        workers: &Arc<dyn Workers>,
        now: Timestamp,
        cancel: &Arc<AtomicBool>,
    ) -> Result<Seen, SourceError> {
        let none = BTreeSet::new();
        let work = UpdateWork { workers, now, cancel, again: &none, replaces: false, told: &mut |_| () };
        Ok(Self::update_with(volume, owner, target, work)?.seen)
    }

    /// The same with a report of its progress, and with regions that are put again although they
    /// have not changed: a damaged object is replaced so.
    ///
    /// # Errors
    /// As [`VolumeImage::update`].
    pub fn update_with(
        volume: &Arc<Volume>,
        owner: &mut Owner,
        target: SnapshotId,
        work: UpdateWork<'_>,
    ) -> Result<Updated, SourceError> {
        let UpdateWork { workers, now, cancel, again, replaces, told } = work;
        owner.settle(cancel)?;
        let mut base = snapshots_of(owner.newest_content()).map_err(SourceError::Table)?;
        if replaces {
            let here: HashMap<SnapshotId, Checksum> =
                volume.snapshot_entries().iter().map(|entry| (entry.id, root_digest(entry))).collect();
            base.retain(|entry| here.get(&entry.id).is_none_or(|root| *root == root_digest(entry)));
        }
        let image = Self::new(volume, &base, target)?;
        let label = image.label();
        if let Some(seen) = owner.seen()
            && owner.newest().is_some_and(|newest| newest.id == label.id)
        {
            // It was committed by a call whose outcome was unclear until now.
            return Ok(Updated { seen, regions: 0, resumed: 0, bytes: 0 });
        }
        let update = Arc::new(owner.begin(owner.newest().map(|newest| newest.id), label.id, cancel)?);
        let live = regions_of(image.live.runs());
        let mut regions = image.changed_regions();
        regions.extend(again.iter().filter(|region| live.contains(region)));
        regions.extend(owner.regions().filter(|region| !live.contains(region)));
        let regions: Vec<u32> = regions.into_iter().filter(|region| !update.has(*region)).collect();
        let mut at = UpdateProgress { done: 0, regions: regions.len() as u64, bytes: 0 };
        told(at);
        for some in regions.chunks(REGIONS_AT_ONCE) {
            let mut started = Vec::new();
            for region in some {
                let blocks = Arc::new(image.region(*region)?);
                let job = {
                    let (update, cancel, region, blocks) =
                        (update.clone(), cancel.clone(), *region, blocks.clone());
                    move || update.put_region(region, &blocks, &cancel)
                };
                started.push((*region, blocks, beside(workers, job).ok()));
            }
            for (region, blocks, receiver) in started {
                let put = receiver.and_then(|receiver| receiver.recv().ok());
                // Without a thread it is put from here.
                put.unwrap_or_else(|| update.put_region(region, &blocks, cancel))?;
            }
            at.done += some.len() as u64;
            at.bytes = update.bytes();
            told(at);
        }
        let seen = owner.commit(&update, label, &image.content(), now, cancel)?;
        Ok(Updated { seen, regions: at.regions, resumed: update.resumed() as u64, bytes: update.bytes() })
    }
}

/// Whether an image in the bucket has a snapshot as it is here.
pub fn has_snapshot(content: &[u8], entry: &SnapshotEntry) -> bool {
    let same = |other: &SnapshotEntry| other.id == entry.id && root_digest(other) == root_digest(entry);
    snapshots_of(content).is_ok_and(|entries| entries.iter().any(same))
}
