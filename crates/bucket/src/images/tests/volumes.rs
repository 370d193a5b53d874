//! Snapshots of a real volume in a bucket: every live block is there, of each image.

use cairn_base::{BLOCK_SIZE, SnapshotId};
use cairn_device::{BlockMut, MemoryDevice, Operation, Segments};
use cairn_files::Luns;
use cairn_volume::{FormatOptions, OpenOptions, Role, Volume};

use super::super::volume::{has_snapshot, snapshots_of};
use super::*;

const BLOCKS: u64 = 16_384;
const LUN_BLOCKS: u64 = 6000;

fn volume() -> Arc<Volume> {
    let device = Arc::new(MemoryDevice::new(Volume::device_bytes(BLOCKS, Role::Normal)));
    let options = FormatOptions { id: VOLUME, blocks: BLOCKS, role: Role::Normal };
    Volume::format(&*device, &options, &*clock()).expect("formatted");
    Volume::open(device, OpenOptions { cache_bytes: 1 << 20, clock: clock() }).expect("opened")
}

fn write(luns: &Luns, writes: u64, rng: &mut Rng) {
    let device = luns.open("a").expect("the LUN");
    let mut batch: Vec<Operation> = (0..writes)
        .map(|_| {
            let mut block = BlockMut::zeroed();
            rng.fill(&mut block[..]);
            Operation::write(rng.below(LUN_BLOCKS) * 4096, Segments::from(block.freeze()))
        })
        .collect();
    device.run(&mut batch);
    batch.into_iter().for_each(|write| write.into_outcome().map(drop).expect("written"));
}

/// Every live block of the newest image is as it is in the volume.
fn assert_same(images: &BucketImages, volume: &Arc<Volume>, target: SnapshotId) {
    let reader = images.image(None, &never()).expect("opened");
    assert_eq!(reader.label().number, target.0);
    let live = volume.changed_blocks(&[], target).expect("maps");
    for (first, count) in live.runs {
        let here = volume.read_blocks(&[(first, count)]).expect("read");
        let there = reader.read(first, count as usize, &never()).expect("read");
        assert!(
            here.iter().flat_map(|block| block.iter()).eq(there.iter()),
            "{count} blocks from {first} on"
        );
    }
}

#[test]
fn snapshots_of_a_volume_are_in_the_bucket_block_by_block() {
    let memory = Arc::new(Memory::new(clock(), clock()));
    let images = images_of(memory.clone(), &clock(), 1, 1);
    let (volume, mut rng) = (volume(), Rng::new(4));
    let luns = Luns::new(volume.clone());
    luns.create("a", LUN_BLOCKS * BLOCK_SIZE as u64).expect("a LUN");
    let workers: Arc<dyn Workers> = Arc::new(Spawned);
    let mut owner = images.claim("one", NOW, &never()).expect("claimed");
    let mut snapshots = Vec::new();
    for step in 0..8 {
        write(&luns, if step == 0 { 4000 } else { 200 }, &mut rng);
        let snapshot = volume.create_snapshot(&format!("s{step}")).expect("a snapshot").id;
        snapshots.push(snapshot);
        if step == 4 {
            owner = images.claim("two", NOW, &never()).expect("claimed");
        }
        if step > 3 {
            // New data, which the bucket has not seen, reuses its blocks.
            volume.delete_snapshots(&[snapshots.remove(0)]).expect("deleted");
        }
        if step == 5 {
            // A snapshot that the bucket never sees.
            continue;
        }
        let before = memory.names().iter().filter(|name| name.as_str().contains("/region/")).count();
        VolumeImage::update(&volume, &mut owner, snapshot, &workers, NOW, &never()).expect("updated");
        assert_same(&images, &volume, snapshot);
        let puts = memory.names().iter().filter(|name| name.as_str().contains("/region/")).count() - before;
        assert!(step == 0 || puts <= 4, "{puts} regions were put for 200 blocks");
    }
    let reader = images.image(None, &never()).expect("opened");
    let entries = snapshots_of(reader.content()).expect("a table");
    assert_eq!(entries.iter().map(|entry| entry.id).collect::<Vec<_>>(), snapshots);
    assert!(volume.snapshot_entries().iter().all(|entry| has_snapshot(reader.content(), entry)));
}
