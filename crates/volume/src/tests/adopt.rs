//! An image whose blocks are in their places becomes a volume: whole or not at all, and never over
//! another one.

use cairn_base::{Rng, SnapshotId};
use cairn_device::DeviceError;
use cairn_format::layout::{SPACE_BLOCKS_MIN, SUPERBLOCK_A, SUPERBLOCK_B};

use super::*;

const BLOCKS: u64 = 1024;

fn options(blocks: u64, role: Role) -> FormatOptions {
    FormatOptions { id: VolumeId([7; 16]), blocks, role }
}

/// A source with two snapshots.
fn source() -> (Arc<Volume>, FileId, [Snapshot; 2]) {
    let (_device, source) = fresh(BLOCKS);
    let lun = file(&source, 100);
    write(&source, lun, 0, 50, 1000).expect("there is room");
    let first = source.create_snapshot("first").expect("it is made");
    write(&source, lun, 0, 10, 2000).expect("there is room");
    let second = source.create_snapshot("second").expect("it is made");
    (source, lun, [first, second])
}

/// Puts every block of an image in its place on a device of that many blocks.
fn put(source: &Arc<Volume>, target: SnapshotId, device: &dyn Device, blocks: u64) -> ReceivedImage {
    let changes = source.changed_blocks(&[], target).expect("they are compared");
    for run in &changes.runs {
        let content = source.read_blocks(&[*run]).expect("they can be read");
        for (vbn, block) in (run.0.0..).zip(content) {
            device.write_from(Volume::space_offset(blocks) + vbn * 4096, &block[..]).expect("it is there");
        }
    }
    ReceivedImage { target, snapshots: changes.snapshots }
}

fn contents(device: &dyn Device) -> Vec<u8> {
    let mut bytes = vec![0; device.geometry().length as usize];
    device.read_into(0, &mut bytes).expect("it is read");
    bytes
}

fn assert_is_the_image(volume: &Arc<Volume>, lun: FileId, [first, second]: &[Snapshot; 2]) {
    let names: Vec<String> = volume.snapshots().into_iter().map(|snapshot| snapshot.name).collect();
    assert_eq!(names, ["first", "second"]);
    for (id, number) in [(None, 2000), (Some(first.id), 1000), (Some(second.id), 2000)] {
        let image = volume.image(id).expect("it is there");
        assert_eq!(read_image(&image, lun, 0, 1), [number]);
        assert_eq!(read_image(&image, lun, 49, 2), [1049, 0]);
    }
    assert_sound(volume);
}

#[test]
fn nothing_of_a_log_that_was_there_before_comes_into_an_adopted_volume() {
    let (source, lun, made) = source();
    let device = Arc::new(MemoryDevice::new(Volume::device_bytes(BLOCKS, Role::Normal)));
    format(&*device, BLOCKS);
    let before = open(&device);
    let same = file(&before, 100);
    assert_eq!(same, lun);
    // Its log begins in a generation that the image has not reached.
    for _ in 0..8 {
        file(&before, 1);
    }
    for round in 0..5 {
        write(&before, lun, 0, 10, 9000 + round).expect("there is room");
        before.flush().expect("it flushes");
    }
    drop(before);
    for slot in [SUPERBLOCK_A, SUPERBLOCK_B] {
        device.write_from(slot * 4096, &[0; 4096]).expect("it is there");
    }
    let image = put(&source, made[1].id, &*device, BLOCKS);
    Volume::adopt(&*device, &options(BLOCKS, Role::Normal), &image, Timestamp(9)).expect("it is adopted");
    let volume = open(&device);
    assert_is_the_image(&volume, lun, &made);
    let next = volume.create_snapshot("next").expect("it is made");
    assert!(next.id > made[1].id, "a number is given once");
    assert_eq!(volume.status().cursor.snapshot, SnapshotId(0), "it is nobody's mirror");
}

#[test]
fn adoption_that_is_refused_writes_nothing() {
    let (source, _lun, made) = source();
    let bytes = Volume::device_bytes(BLOCKS, Role::Normal);
    let now = Timestamp(9);
    let refused = |device: &MemoryDevice, options: &FormatOptions, image: &ReceivedImage| {
        let before = contents(device);
        let error = Volume::adopt(device, options, image, now).expect_err("it is refused");
        assert!(contents(device) == before, "{error}");
        error
    };
    let fits = MemoryDevice::new(bytes);
    let mut image = put(&source, made[1].id, &fits, BLOCKS);
    let normal = options(BLOCKS, Role::Normal);
    for blocks in [0, SPACE_BLOCKS_MIN - 1, BLOCKS - 1, u64::MAX] {
        let error = refused(&fits, &options(blocks, Role::Normal), &image);
        assert!(matches!(error, VolumeError::Size { .. }), "{blocks}: {error}");
    }
    let short = MemoryDevice::new(bytes - 4096);
    let error = refused(&short, &normal, &image);
    assert!(
        matches!(error, VolumeError::DeviceTooSmall { need, have } if (need, have) == (bytes, bytes - 4096))
    );
    let error = refused(&fits, &options(BLOCKS, Role::Destination), &image);
    assert!(matches!(error, VolumeError::DeviceTooSmall { .. }), "a destination needs more: {error}");
    image.target = SnapshotId(77);
    assert!(matches!(refused(&fits, &normal, &image), VolumeError::NoSuchSnapshot(_)));
    // Also over a volume with only one slot left.
    image.target = made[1].id;
    for lost in [None, Some(SUPERBLOCK_A), Some(SUPERBLOCK_B)] {
        let other = MemoryDevice::new(bytes);
        format(&other, BLOCKS);
        if let Some(slot) = lost {
            other.write_from(slot * 4096, &[0; 4096]).expect("it is there");
        }
        assert!(matches!(refused(&other, &normal, &image), VolumeError::NotEmpty), "{lost:?} is lost");
    }
    Volume::adopt(&fits, &normal, &image, now).expect("nothing is wrong with it");
}

#[test]
fn adopted_volume_is_whole_or_none_after_a_cut_or_a_failure_at_each_operation() {
    let (source, lun, made) = source();
    let (mut none, mut whole, mut failures) = (0, 0, 0);
    for at in 0.. {
        let device = Arc::new(FaultDevice::new(Volume::device_bytes(BLOCKS, Role::Normal)));
        let image = put(&source, made[1].id, &*device, BLOCKS);
        device.flush().expect("it flushes");
        let normal = options(BLOCKS, Role::Normal);
        device.fail_operations(at, 1, DeviceError::OutOfService);
        let failed = Volume::adopt(&*device, &normal, &image, Timestamp(9));
        device.heal_operations();
        failures += u32::from(failed.is_err());
        for seed in 0..4 {
            let device = Arc::new(FaultDevice::new(Volume::device_bytes(BLOCKS, Role::Normal)));
            // The receiver leaves it to the adoption to make these durable before the blocks that
            // reach them.
            let image = put(&source, made[1].id, &*device, BLOCKS);
            device.cut_after(at);
            let outcome = Volume::adopt(&*device, &normal, &image, Timestamp(9));
            let device = Arc::new(device.power_cycle(&mut Rng::new(seed)));
            match Volume::open(
                device.clone(),
                OpenOptions { cache_bytes: 1 << 20, clock: Arc::new(ManualClock::new(Timestamp(1))) },
            ) {
                Ok(volume) => {
                    assert_is_the_image(&volume, lun, &made);
                    whole += 1;
                }
                Err(error) => {
                    assert!(outcome.is_err(), "cut after {at}: {error}");
                    assert!(matches!(error, VolumeError::NotAVolume { .. }), "cut after {at}: {error}");
                    none += 1;
                }
            }
        }
        if failed.is_ok() {
            break;
        }
    }
    assert!(failures > 5 && none > 10 && whole > 3, "{failures} {none} {whole}");
}
