//! Devices with an image in a bucket: reads, cuts of power at every operation of a small life, many
//! seeds of a large one, stores that fail, and damage.

mod cached;
mod life;
mod plain;
mod records;

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cairn_base::{BLOCK_SIZE, ManualClock, Rng, Timestamp, VolumeId};
use cairn_device::{Device, FaultDevice};

use super::*;
use crate::images::{BucketImages, ImageLabel, ImagesError, RegionBlocks, RegionPart};
use crate::{Memory, StoreError, Trouble, Verb};

const VOLUME: VolumeId = VolumeId([7; 16]);
const NOW: Timestamp = Timestamp(1_795_000_000_000_000_000);
/// Blocks before the block space.
const LABEL: u64 = 3;
/// Three regions, the last one not full.
const BLOCKS: u64 = 2 * REGION + 700;

/// Gives no thread to any caller, so that a run is the same each time.
struct Alone;

impl Workers for Alone {
    fn start(&self, _: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        Err(io::ErrorKind::WouldBlock.into())
    }
}

struct Spawned;

impl Workers for Spawned {
    fn start(&self, job: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        std::thread::Builder::new().spawn(job).map(|_| ())
    }
}

fn never() -> Arc<AtomicBool> {
    Arc::new(AtomicBool::new(false))
}

/// A block whose every sector has the stamp. Some compress.
fn block(stamp: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK_SIZE];
    if stamp == 0 {
        return bytes;
    }
    for sector in bytes.chunks_mut(512) {
        if stamp.is_multiple_of(2) {
            sector.chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&stamp.to_le_bytes()));
        } else {
            Rng::new(stamp).fill(sector);
        }
    }
    bytes
}

/// Stamps of the blocks of an image, by block number.
type Model = BTreeMap<u64, u64>;

/// A store with an image, and the id of the image.
struct There {
    memory: Arc<Memory>,
    images: BucketImages,
    image: ImageId,
    model: Model,
}

fn there(blocks: u64, model: Model) -> There {
    let clock = Arc::new(ManualClock::new(NOW));
    let memory = Arc::new(Memory::new(clock.clone(), clock));
    let images = BucketImages::open(memory.clone(), Arc::new(Alone), VOLUME, None, Rng::new(5));
    let image = ImageId([3; 16]);
    let mut owner = images.claim("one", NOW, &never()).expect("claimed");
    let update = owner.begin(None, image, &never()).expect("begun");
    for region in 0..blocks.div_ceil(REGION) as u32 {
        let mut live = RegionBlocks::new();
        let first = u64::from(region) * REGION;
        for (vbn, stamp) in model.range(first..first + REGION) {
            live.push((vbn - first) as usize, &block(*stamp));
        }
        update.put_region(region, &live, &never()).expect("put");
    }
    let label = ImageLabel { id: image, number: 1, taken: NOW, blocks };
    owner.commit(&update, label, b"table", NOW, &never()).expect("committed");
    There { memory, images, image, model }
}

/// An image that can be away, and that counts reads.
struct Switched {
    source: ImageSource,
    away: AtomicBool,
    /// One read in this many fails; 0 for none.
    fails_one_in: AtomicU64,
    rng: Mutex<Rng>,
    reads: AtomicU64,
}

impl Switched {
    fn new(there: &There) -> Arc<Self> {
        Arc::new(Self {
            source: ImageSource::new(there.images.clone(), None),
            away: AtomicBool::new(false),
            fails_one_in: AtomicU64::new(0),
            rng: Mutex::new(Rng::new(9)),
            reads: AtomicU64::new(0),
        })
    }
}

impl Source for Switched {
    fn read_frames(
        &self,
        image: ImageId,
        region: u32,
        frames: Range<usize>,
        cancel: &Arc<AtomicBool>,
    ) -> Result<RegionPart, ImagesError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let one_in = self.fails_one_in.load(Ordering::Relaxed);
        if self.away.load(Ordering::Relaxed) || (one_in > 0 && self.rng.lock().one_in(one_in)) {
            let trouble = Trouble::TimedOut;
            return Err(StoreError { verb: Verb::Get, name: None, place: "memory:".into(), trouble }.into());
        }
        self.source.read_frames(image, region, frames, cancel)
    }
}

/// An image whose snapshot is unknown.
fn first(image: ImageId) -> Base {
    Base { image, ..Base::default() }
}

fn local_bytes(blocks: u64) -> u64 {
    (LABEL + blocks) * BLOCK
}

/// One power supply with the local device and the presence file.
fn machine(blocks: u64) -> Arc<FaultDevice> {
    Arc::new(FaultDevice::new(local_bytes(blocks) + presence_bytes(blocks)))
}

fn create(machine: &Arc<FaultDevice>, there: &There, blocks: u64) -> Result<(), BackedError> {
    let presence = machine.part(local_bytes(blocks)..local_bytes(blocks) + presence_bytes(blocks));
    let reader = there.images.image(Some(there.image), &never()).expect("opened");
    BackedDevice::create(&presence, (VOLUME, first(there.image), blocks), [1; 16], reader.regions())
}

fn open_with(
    machine: &Arc<FaultDevice>,
    source: Arc<dyn Source>,
    blocks: u64,
    workers: Arc<dyn Workers>,
) -> Result<BackedDevice, BackedError> {
    let presence = machine.part(local_bytes(blocks)..local_bytes(blocks) + presence_bytes(blocks));
    let parts = BackedParts {
        local: Arc::new(machine.part(0..local_bytes(blocks))),
        presence: Arc::new(presence),
        source,
        workers,
        space_at: LABEL * BLOCK,
        cache: None,
    };
    BackedDevice::open(parts, VOLUME, ImageId([3; 16]))
}

fn open(machine: &Arc<FaultDevice>, source: &Arc<Switched>, blocks: u64) -> BackedDevice {
    open_with(machine, source.clone(), blocks, Arc::new(Alone)).expect("opened")
}

/// Where a block of the block space is.
fn at(vbn: u64) -> u64 {
    (LABEL + vbn) * BLOCK
}

/// A few blocks of each region, in runs and alone.
fn some_blocks(rng: &mut Rng) -> Model {
    let mut model = Model::new();
    for _ in 0..12 {
        let first = rng.below(BLOCKS);
        for vbn in first..(first + 1 + rng.below(24)).min(BLOCKS) {
            model.insert(vbn, 1 + rng.below(1 << 40));
        }
    }
    model
}
