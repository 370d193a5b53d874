//! The volumes that hostile bytes are put into: the golden images of the newest format, and ways to
//! use a volume as clients do.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cairn_base::{BLOCK_SIZE, Lba, ManualClock, Timestamp, VolumeId};
use cairn_device::{Block, Device};
use cairn_files::Luns;
use cairn_stream::{Applied, Compression, Plan, StreamError, Work, apply, produce};
use cairn_volume::{BlockRead, FormatOptions, OpenOptions, Role, Volume, VolumeError};

use crate::sparse::{Blocks, SparseDevice, block_of};

/// Memory of a volume here.
const CACHE: u64 = 1 << 20;
/// Blocks that one read asks for.
const READ: u64 = 64;
/// A stream of more blocks is not made: the original has fewer.
const STREAM_BLOCKS: u64 = 2048;

const VOLUME: &[u8] = include_bytes!("../../../crates/stream/tests/golden/v1/volume.img.zst");
const DESTINATION: &[u8] = include_bytes!("../../../crates/stream/tests/golden/v1/destination.img.zst");
const BASELINE: &[u8] = include_bytes!("../../../crates/stream/tests/golden/v1/baseline.stream.zst");
const UPDATE: &[u8] = include_bytes!("../../../crates/stream/tests/golden/v1/update.stream.zst");

/// An image of a device.
pub(crate) struct Original {
    pub(crate) length: u64,
    pub(crate) blocks: Arc<Blocks>,
}

impl Original {
    fn unpacked(packed: &[u8]) -> Self {
        let bytes = unpacked(packed);
        let filled = bytes.chunks(BLOCK_SIZE).enumerate().filter(|(_, block)| block.iter().any(|b| *b != 0));
        let blocks: Blocks = filled.map(|(number, block)| (number as u64, block_of(block))).collect();
        Self { length: bytes.len() as u64, blocks: Arc::new(blocks) }
    }

    pub(crate) fn device(&self) -> Arc<SparseDevice> {
        Arc::new(SparseDevice::new(self.length, self.blocks.clone()))
    }
}

fn unpacked(packed: &[u8]) -> Vec<u8> {
    zstd::stream::decode_all(packed).expect("a golden file is one of zstd")
}

/// Everything that targets start from.
pub(crate) struct Scene {
    /// In the middle of its life, with records in its log.
    pub(crate) volume: Original,
    /// With blocks in the redirect area.
    pub(crate) destination: Original,
    /// Without an image.
    pub(crate) empty: Original,
    /// With the baseline.
    pub(crate) begun: Original,
    pub(crate) baseline: Vec<u8>,
    pub(crate) update: Vec<u8>,
    pub(crate) id: VolumeId,
    pub(crate) space_blocks: u64,
}

pub(crate) fn scene() -> &'static Scene {
    static SCENE: OnceLock<Scene> = OnceLock::new();
    SCENE.get_or_init(|| {
        let volume = Original::unpacked(VOLUME);
        let opened = open(volume.device()).expect("the golden volume opens");
        let (id, space_blocks) = (opened.id(), opened.space_blocks());
        let empty = empty(id, space_blocks);
        let baseline = unpacked(BASELINE);
        let device = empty.device();
        take(&baseline, &open(device.clone()).expect("it opens")).expect("the baseline is taken");
        let begun = Original { length: empty.length, blocks: Arc::new(device.blocks()) };
        let (destination, update) = (Original::unpacked(DESTINATION), unpacked(UPDATE));
        Scene { volume, destination, empty, begun, baseline, update, id, space_blocks }
    })
}

fn empty(id: VolumeId, blocks: u64) -> Original {
    let length = Volume::device_bytes(blocks, Role::Destination);
    let device = SparseDevice::new(length, Arc::default());
    let options = FormatOptions { id, blocks, role: Role::Destination };
    Volume::format(&device, &options, &ManualClock::new(Timestamp(1))).expect("it is formatted");
    Original { length, blocks: Arc::new(device.blocks()) }
}

pub(crate) fn open(device: Arc<SparseDevice>) -> Result<Arc<Volume>, VolumeError> {
    let clock = Arc::new(ManualClock::new(Timestamp(1_800_000_000_000_000_000)));
    Volume::open(device as Arc<dyn Device>, OpenOptions { cache_bytes: CACHE, clock })
}

pub(crate) fn take(stream: &[u8], into: &Arc<Volume>) -> Result<Applied, StreamError> {
    let cancel = AtomicBool::new(false);
    apply(&mut &stream[..], into, &mut Work { cancel: &cancel, progress: &mut |_| {}, threads: None })
}

/// Reads as clients and administrators do; true when `check` has no finding. Errors are fine,
/// panics are not.
pub(crate) fn look_at(volume: &Arc<Volume>) -> bool {
    let luns = Luns::new(volume.clone());
    drop((volume.status(), volume.since_relationships(), luns.list()));
    let mut images = vec![volume.image(None)];
    let snapshots = volume.snapshots();
    images.extend(snapshots.iter().take(16).map(|snapshot| volume.image(Some(snapshot.id))));
    for image in images.into_iter().flatten() {
        drop(luns.list_in(&image));
        for inode in image.inodes().unwrap_or_default().iter().take(40) {
            let length = inode.tree.length;
            for first in [0, length / 2, length.saturating_sub(READ)] {
                let mut reads = [BlockRead::new(Lba(first), READ.min(length - first))];
                image.read(inode.id, &mut reads, true);
            }
            drop(image.extents(inode.id, Lba(0), length, 100));
        }
    }
    for pair in snapshots.windows(2) {
        drop(volume.changed_blocks(&[pair[0].id], pair[1].id));
        drop(volume.changed_since_snapshot(pair[1].id));
    }
    volume.check(&mut |_| {}).is_ok_and(|report| report.findings.is_empty())
}

/// Ordinary work on a volume with which nothing is wrong as far as `check` knows. It may be
/// refused; it does not panic.
///
/// No snapshot is deleted: the tree of descent tells which others show a block, and an invented one
/// cannot be distinguished from a real one.
pub(crate) fn work_on(volume: &Arc<Volume>) {
    let luns = Luns::new(volume.clone());
    let names = luns.list().unwrap_or_default();
    for lun in names.iter().take(3) {
        let blocks: Vec<(Lba, Block)> = (0..20).map(|lba| (Lba(lba), block_of(&[7; BLOCK_SIZE]))).collect();
        drop(volume.write(lun.file, &mut blocks.into_iter()));
        drop(volume.punch(lun.file, Lba(5), 3));
    }
    drop(volume.flush());
    drop(luns.create("made-by-the-target", 1 << 20));
    drop(volume.create_snapshot("made-by-the-target"));
    if let Some(lun) = names.first() {
        drop(luns.delete(&lun.name));
    }
    for _ in 0..4 {
        drop(volume.background(Duration::ZERO));
    }
    drop(volume.consistency_point());
    drop(volume.check(&mut |_| {}));
}

/// The mirror of a forged volume.
pub(crate) fn mirror(volume: &Arc<Volume>) {
    let Some(target) = volume.snapshots().last().map(|snapshot| snapshot.id) else { return };
    let Ok(plan) = Plan::new(volume, &[], target) else { return };
    if plan.blocks() > STREAM_BLOCKS {
        return;
    }
    let cancel = AtomicBool::new(false);
    let mut stream = Vec::new();
    let mut work = Work { cancel: &cancel, progress: &mut |_| {}, threads: None };
    if produce(&plan, &mut stream, Compression::None, &mut work).is_err() {
        return;
    }
    let original = if volume.id() == scene().id {
        scene().empty.device()
    } else {
        empty(volume.id(), scene().space_blocks).device()
    };
    let Ok(into) = open(original) else { return };
    if take(&stream, &into).is_ok() && look_at(&into) && into.failover().is_ok() {
        work_on(&into);
    }
}
