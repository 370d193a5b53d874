//! Snapshots of a real volume in a bucket: every live block is there, of each image.

use cairn_base::{BLOCK_SIZE, SnapshotId};
use cairn_device::{BlockMut, Device as _, MemoryDevice, Operation, Segments};
use cairn_files::Luns;
use cairn_format::SnapshotEntry;
use cairn_volume::{FormatOptions, OpenOptions, Role, Volume};

use super::super::volume::{SourceError, has_snapshot, snapshots_of};
use super::*;

const BLOCKS: u64 = 16_384;
const LUN_BLOCKS: u64 = 6000;

fn volume() -> Arc<Volume> {
    volume_on_device().0
}

fn volume_on_device() -> (Arc<Volume>, Arc<MemoryDevice>) {
    let device = Arc::new(MemoryDevice::new(Volume::device_bytes(BLOCKS, Role::Normal)));
    let options = FormatOptions { id: VOLUME, blocks: BLOCKS, role: Role::Normal };
    Volume::format(&*device, &options, &*clock()).expect("formatted");
    let options = OpenOptions { cache_bytes: 1 << 20, clock: clock() };
    (Volume::open(device.clone(), options).expect("opened"), device)
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

#[test]
fn damaged_new_block_of_a_volume_is_never_committed_and_the_next_update_has_it_whole() {
    let memory = Arc::new(Memory::new(clock(), clock()));
    let images = images_of(memory.clone(), &clock(), 1, 1);
    let ((volume, device), mut rng) = (volume_on_device(), Rng::new(5));
    let luns = Luns::new(volume.clone());
    luns.create("a", LUN_BLOCKS * BLOCK_SIZE as u64).expect("a LUN");
    let workers: Arc<dyn Workers> = Arc::new(Spawned);
    let mut owner = images.claim("one", NOW, &never()).expect("claimed");
    for step in 0..12 {
        write(&luns, if step == 0 { 3000 } else { 150 }, &mut rng);
        let base: Vec<SnapshotId> = volume.snapshot_entries().iter().map(|entry| entry.id).collect();
        let target = volume.create_snapshot(&format!("s{step}")).expect("a snapshot").id;
        let new = volume.changed_blocks(&base, target).expect("maps");
        let (first, count) = new.runs[rng.below(new.runs.len() as u64) as usize];
        let at = Volume::space_offset(BLOCKS) + (first.0 + rng.below(count)) * BLOCK_SIZE as u64;
        let whole = device.read(at, BLOCK_SIZE as u32).expect("read").to_vec();
        let mut bytes = whole.clone();
        bytes[rng.below(4096) as usize] ^= 1 << rng.below(8);
        device.write(at, Segments::copy_of(&bytes)).expect("written");
        let before = owner.newest();
        let update = |owner: &mut _| VolumeImage::update(&volume, owner, target, &workers, NOW, &never());
        // The trees may be read from memory; the blocks are not.
        let refused = update(&mut owner).expect_err("a block is damaged");
        assert!(matches!(refused, SourceError::Unproved | SourceError::Volume(_)), "{refused}");
        assert_eq!(owner.newest(), before);
        if step % 3 == 2 {
            // Another process finds regions that the refused update has put.
            owner = images.claim("again", NOW, &never()).expect("claimed");
        }
        if step % 2 == 1 {
            update(&mut owner).expect_err("a block is damaged");
        }
        device.write(at, Segments::copy_of(&whole)).expect("written");
        update(&mut owner).expect("updated");
        assert_same(&images, &volume, target);
    }
}

#[test]
fn update_in_windows_of_maps_has_the_blocks_of_the_lists_of_runs() {
    let memory = Arc::new(Memory::new(clock(), clock()));
    let images = images_of(memory.clone(), &clock(), 1, 1);
    let (volume, mut rng) = (volume(), Rng::new(6));
    let luns = Luns::new(volume.clone());
    luns.create("a", LUN_BLOCKS * BLOCK_SIZE as u64).expect("a LUN");
    let workers: Arc<dyn Workers> = Arc::new(Spawned);
    let mut owner = images.claim("one", NOW, &never()).expect("claimed");
    let mut base = Vec::new();
    for step in 0..10 {
        write(&luns, if step == 0 { 3000 } else { 90 }, &mut rng);
        let target = volume.create_snapshot(&format!("s{step}")).expect("a snapshot").id;
        let image = VolumeImage::new(&volume, &base, target).expect("compared");
        let have: Vec<SnapshotId> = base.iter().map(|entry: &SnapshotEntry| entry.id).collect();
        let regions = |have: &[SnapshotId]| -> Vec<u32> {
            let runs = volume.changed_blocks(have, target).expect("maps").runs;
            let of_run = |(first, count): (cairn_base::Vbn, u64)| {
                (first.0 / 1024) as u32..=((first.0 + count - 1) / 1024) as u32
            };
            let all: std::collections::BTreeSet<u32> = runs.into_iter().flat_map(of_run).collect();
            all.into_iter().collect()
        };
        assert_eq!(image.changed_regions().collect::<Vec<_>>(), regions(&have));
        let live: Vec<u32> = (0..(BLOCKS / 1024) as u32)
            .filter(|region| !image.region(*region).expect("read").is_empty())
            .collect();
        assert_eq!(live, regions(&[]));
        assert!(image.memory() < 1 << 20);
        drop(image);
        if step % 4 == 3 {
            let entries = volume.snapshot_entries();
            let back = entries[rng.below(entries.len() as u64) as usize].id;
            volume.rollback(back).expect("it goes back");
            continue;
        }
        VolumeImage::update(&volume, &mut owner, target, &workers, NOW, &never()).expect("updated");
        assert_same(&images, &volume, target);
        base = snapshots_of(owner.newest_content()).expect("a table");
        if step == 5 {
            volume.delete_snapshots(&[base[1].id]).expect("deleted");
        }
    }
}
