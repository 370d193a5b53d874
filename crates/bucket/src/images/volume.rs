//! A snapshot of a volume as an update of the bucket takes it.
//!
//! An image has the blocks of the snapshot and of all snapshots before it. An update needs two
//! comparisons of active maps: in which regions the base in the bucket lacks a block, and which
//! blocks are live in these.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cairn_base::{Checksum, Mutex, SnapshotId, Timestamp, Vbn};
use cairn_format::stream::{root_digest, table_digest};
use cairn_format::{FormatError, SnapshotEntry};
use cairn_stream::StreamError;
use cairn_volume::{MapWords, REACHED_BLOCKS, REACHED_WORDS, Reached, Run, Volume, VolumeError, Whereabouts};

use super::error::ImagesError;
use super::inner::Seen;
use super::owner::Owner;
use super::proof::Sum;
use super::region::{REGION_BLOCKS, RegionBlocks};
use super::region_set::RegionSet;
use super::root::{ImageId, ImageLabel};
use super::update::Update;
use crate::workers::{Workers, beside};

/// Regions that are put at the same time.
const REGIONS_AT_ONCE: usize = 8;
const BLOCKS: u64 = REGION_BLOCKS as u64;
/// Words of the bits of a region.
const REGION_WORDS: usize = REGION_BLOCKS / 64;
/// Regions that one block of a map covers.
const REGIONS_OF_MAP: usize = (REACHED_BLOCKS / BLOCKS) as usize;
/// Blocks of maps that are read together: 16 GiB of block space, 512 KiB of memory.
const MAPS_AT_ONCE: u64 = 128;

const _: () = assert!(REACHED_WORDS == REGIONS_OF_MAP * REGION_WORDS);

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
    /// Blocks of the volume are damaged.
    #[error("blocks of the volume differ from their checksums, so the image was not committed")]
    Unproved,
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
///
/// It has a bit for each region, and the maps of a few regions at a time: blocks of maps are read
/// again when a region needs them. So its memory does not grow with the number of blocks.
pub struct VolumeImage {
    volume: Arc<Volume>,
    reached: Reached,
    at: Whereabouts,
    /// Every snapshot up to the target, in order.
    table: Vec<SnapshotEntry>,
    /// Regions with a live block.
    live: RegionSet,
    /// Regions with a live block that the base lacks.
    changed: RegionSet,
    /// Snapshots that the base has.
    common: BTreeSet<SnapshotId>,
    /// The blocks of the map blocks that were read last.
    maps: Mutex<KnownMaps>,
}

/// A bit for each block of a region.
pub(super) type RegionBits = [u64; REGION_WORDS];

/// Some blocks of maps.
#[derive(Default)]
struct KnownMaps {
    numbers: Range<u64>,
    /// Live blocks.
    live: BTreeMap<u64, MapWords>,
    /// The blocks that each new snapshot adds.
    new: BTreeMap<u64, Vec<MapWords>>,
}

/// The snapshot table in the content of an image.
///
/// # Errors
/// It is damaged.
pub fn snapshots_of(content: &[u8]) -> Result<Vec<SnapshotEntry>, FormatError> {
    let entries = content.chunks(SnapshotEntry::SIZE).map(SnapshotEntry::parse);
    entries.filter_map(Result::transpose).collect()
}

/// The region of a part of a block of a map.
fn region_in(number: u64, part: usize) -> u32 {
    u32::try_from(number * REGIONS_OF_MAP as u64 + part as u64).unwrap_or(u32::MAX)
}

/// Puts those regions into the set that have a bit in a block of a map.
fn add_regions(set: &mut RegionSet, number: u64, words: &[u64; REACHED_WORDS]) {
    for (part, words) in words.chunks(REGION_WORDS).enumerate() {
        if words.iter().any(|word| *word != 0) {
            set.insert(region_in(number, part));
        }
    }
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
        let reached = volume.reached_up_to(target)?;
        let theirs: HashMap<SnapshotId, Checksum> =
            base.iter().map(|entry| (entry.id, root_digest(entry))).collect();
        let mut common = BTreeSet::new();
        for entry in reached.entries() {
            match theirs.get(&entry.id) {
                Some(root) if *root == root_digest(entry) => drop(common.insert(entry.id)),
                Some(_) => return Err(StreamError::Diverged { snapshot: entry.id }.into()),
                None => {}
            }
        }
        let (mut live, mut changed) = (RegionSet::default(), RegionSet::default());
        reached.lacked_by(&common, &mut |number, words| add_regions(&mut changed, number, words))?;
        let mut first = 0;
        while first < reached.map_blocks() {
            let end = first + MAPS_AT_ONCE;
            for (number, words) in reached.words_in(first..end)? {
                add_regions(&mut live, number, &words);
            }
            first = end;
        }
        // Taken after the comparison: a snapshot that is deleted in between is in the blocks and
        // not in the list, never the other way round.
        let held: HashMap<SnapshotId, Checksum> =
            reached.entries().map(|entry| (entry.id, root_digest(entry))).collect();
        let table: Vec<SnapshotEntry> =
            volume.snapshot_entries().into_iter().filter(|entry| entry.id <= target).collect();
        if table.last().is_none_or(|last| last.id != target) {
            return Err(VolumeError::NoSuchSnapshot(target).into());
        }
        if let Some(other) = table.iter().find(|entry| held.get(&entry.id) != Some(&root_digest(entry))) {
            // A mirror has received another one under that number meanwhile.
            return Err(StreamError::Diverged { snapshot: other.id }.into());
        }
        let at = reached.whereabouts().ok_or(VolumeError::NoSuchSnapshot(target))?;
        let (volume, maps) = (volume.clone(), Mutex::default());
        Ok(Self { volume, reached, at, table, live, changed, common, maps })
    }

    /// Its label. The id is the digest of the snapshot table, which has the root of each snapshot.
    pub fn label(&self) -> ImageLabel {
        let (number, taken) =
            self.table.last().map_or((0, Timestamp(0)), |last| (last.id.0, last.root.created));
        let id = ImageId(table_digest(self.table.iter()).0);
        let blocks = self.table.iter().map(|entry| entry.root.blocks).max().unwrap_or(0);
        ImageLabel { id, number, taken, blocks }
    }

    /// The snapshot table.
    pub fn content(&self) -> Vec<u8> {
        self.table.iter().flat_map(SnapshotEntry::to_bytes).collect()
    }

    /// Regions with a changed live block, in order.
    pub fn changed_regions(&self) -> impl Iterator<Item = u32> + '_ {
        self.changed.iter()
    }

    /// The number of these.
    pub fn changed_count(&self) -> usize {
        self.changed.len()
    }

    /// Bytes of memory, about: they depend on the size of the block space alone.
    pub fn memory(&self) -> u64 {
        let maps = self.maps.lock();
        let maps =
            (maps.live.len() + maps.new.values().map(Vec::len).sum::<usize>()) * (REACHED_WORDS * 8 + 48);
        self.live.memory() + self.changed.memory() + maps as u64
    }

    /// Which places of a region have a live block, and which each new snapshot adds.
    fn places(&self, region: u32) -> Result<(RegionBits, Vec<RegionBits>), SourceError> {
        let number = u64::from(region) / REGIONS_OF_MAP as u64;
        let mut maps = self.maps.lock();
        if !maps.numbers.contains(&number) {
            // Regions come in order, so the next ones are wanted soon. Each new snapshot takes
            // memory for its own blocks.
            let snapshots = self.table.len().saturating_sub(self.common.len()) as u64;
            let numbers = number..number + (2 * MAPS_AT_ONCE / (snapshots + 1)).clamp(1, MAPS_AT_ONCE);
            *maps = KnownMaps::default();
            let live = self.reached.words_in(numbers.clone())?;
            let new = self.reached.lacked_in(&self.common, numbers.clone())?;
            *maps = KnownMaps { numbers, live, new };
        }
        let at = region as usize % REGIONS_OF_MAP * REGION_WORDS;
        let of_region = |words: &[u64; REACHED_WORDS]| -> RegionBits {
            words.get(at..).and_then(|words| words.first_chunk()).copied().unwrap_or_default()
        };
        let live = maps.live.get(&number).map(|words| of_region(words)).unwrap_or_default();
        let new = maps.new.get(&number).into_iter().flatten().map(|words| of_region(words));
        Ok((live, new.collect()))
    }

    /// The live blocks of a region.
    ///
    /// # Errors
    /// The device failed.
    pub fn region(&self, region: u32) -> Result<RegionBlocks, SourceError> {
        Ok(self.region_with_new(region)?.0)
    }

    /// The live blocks of a region, and which of them each new snapshot adds.
    fn region_with_new(&self, region: u32) -> Result<(RegionBlocks, Vec<RegionBits>), SourceError> {
        let (first, (live, new)) = (u64::from(region) * BLOCKS, self.places(region)?);
        let is_live = |place: &u64| live[*place as usize / 64] >> (place % 64) & 1 == 1;
        let places: Vec<u64> = (0..BLOCKS).filter(is_live).collect();
        let runs: Vec<Run> = places
            .chunk_by(|one, next| one + 1 == *next)
            .filter_map(|run| Some((Vbn(first + run.first()?), run.len() as u64)))
            .collect();
        let read = self.volume.read_blocks_at(&self.at, &runs)?;
        let mut blocks = RegionBlocks::new();
        places.into_iter().zip(&read).for_each(|(place, block)| blocks.push(place as usize, &block[..]));
        Ok((blocks, new))
    }

    /// Checks that the blocks of a sum are those that the trees name.
    fn prove(&self, put: Sum) -> Result<(), SourceError> {
        let mut named = Sum::default();
        self.reached.checksums_lacked_by(&self.common, &mut |vbn, checksum| named.add(vbn, &checksum))?;
        if put == named {
            return Ok(());
        }
        if put.blocks == named.blocks {
            return Err(SourceError::Unproved);
        }
        // Blocks that a map has and no tree reaches: a check reports them, and they harm nothing.
        tracing::warn!(
            put = put.blocks,
            named = named.blocks,
            "the maps of the volume have other blocks than its trees, so the blocks of the image were not checked"
        );
        Ok(())
    }

    /// Compares regions that an interrupted update has put with those of the volume. Returns the
    /// sum of the equal ones, and the others.
    fn compare(
        &self,
        update: &Arc<Update>,
        regions: &[u32],
        (workers, cancel): (&Arc<dyn Workers>, &Arc<AtomicBool>),
    ) -> Result<(Sum, Vec<u32>), SourceError> {
        let (mut sum, mut others) = (Sum::default(), Vec::new());
        for some in regions.chunks(REGIONS_AT_ONCE) {
            if cancel.load(Ordering::Relaxed) {
                return Err(StreamError::Cancelled.into());
            }
            let mut started = Vec::new();
            for region in some {
                let (blocks, new) = self.region_with_new(*region)?;
                let (update, region) = (update.clone(), *region);
                let job = Arc::new(move || {
                    update.is_same(region, &blocks).then(|| Sum::of_region(region, &blocks, &new))
                });
                let other = job.clone();
                started.push((region, job, beside(workers, move || other()).ok()));
            }
            for (region, job, receiver) in started {
                let same = receiver.and_then(|receiver| receiver.recv().ok());
                match same.unwrap_or_else(|| job()) {
                    Some(same) => sum.join(same),
                    None => others.push(region),
                }
            }
        }
        Ok((sum, others))
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
        let live = &image.live;
        let mut regions = image.changed.clone();
        regions.extend(again.iter().copied().filter(|region| live.contains(*region)));
        regions.extend(owner.regions().filter(|region| !live.contains(*region)));
        let (left, regions): (Vec<u32>, Vec<u32>) = regions.iter().partition(|region| update.has(*region));
        // Regions of an interrupted update count if they are as they are now.
        let mut sum = Sum::default();
        let (same, others) = image.compare(&update, &left, (workers, cancel))?;
        sum.join(same);
        let regions: Vec<u32> = [others, regions].concat();
        let mut at = UpdateProgress { done: 0, regions: regions.len() as u64, bytes: 0 };
        told(at);
        for some in regions.chunks(REGIONS_AT_ONCE) {
            let mut started = Vec::new();
            for region in some {
                let (blocks, new) = image.region_with_new(*region)?;
                let job = {
                    let (update, cancel, region) = (update.clone(), cancel.clone(), *region);
                    move || {
                        let sum = Sum::of_region(region, &blocks, &new);
                        update.put_region(region, &blocks, &cancel).map(|()| sum)
                    }
                };
                let job = Arc::new(job);
                let other = job.clone();
                started.push((job, beside(workers, move || other()).ok()));
            }
            for (job, receiver) in started {
                let put = receiver.and_then(|receiver| receiver.recv().ok());
                // Without a thread it is put from here.
                sum.join(put.unwrap_or_else(|| job())?);
            }
            at.done += some.len() as u64;
            at.bytes = update.bytes();
            told(at);
        }
        image.prove(sum)?;
        let seen = owner.commit(&update, label, &image.content(), now, cancel)?;
        Ok(Updated { seen, regions: at.regions, resumed: update.resumed() as u64, bytes: update.bytes() })
    }
}

/// Whether an image in the bucket has a snapshot as it is here.
pub fn has_snapshot(content: &[u8], entry: &SnapshotEntry) -> bool {
    let same = |other: &SnapshotEntry| other.id == entry.id && root_digest(other) == root_digest(entry);
    snapshots_of(content).is_ok_and(|entries| entries.iter().any(same))
}
