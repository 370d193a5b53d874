//! Refused requests, which leave no trace.

use cairn_base::{SnapshotId, Vbn};
use cairn_device::DeviceError;
use cairn_format::layout::{SPACE_BLOCKS_MAX, SPACE_BLOCKS_MIN, SUPERBLOCK_A, SUPERBLOCK_B};
use cairn_format::{FormatError, Structure};

use super::*;
use crate::commit::superblock::read_slots;

const NOBODY: SnapshotId = SnapshotId(99);

/// Everything that rides on a consistency point, of a snapshot `id`, each by its name.
fn changes(volume: &Arc<Volume>, id: SnapshotId) -> Vec<(&'static str, Result<(), VolumeError>)> {
    let step = Step { name: "step", relationship: None, base: id, over: &[] };
    vec![
        ("snapshot", volume.create_snapshot("another").map(drop)),
        ("snapshot for a mirror", volume.create_snapshot_since("mirrored", 7).map(drop)),
        ("step", volume.create_snapshot_step(step).map(drop)),
        ("rename", volume.rename_snapshot(id, "renamed")),
        ("hold", volume.hold_snapshot(id, true)),
        ("deletion", volume.delete_snapshots(&[id]).map(drop)),
        ("letting go", volume.let_go_of_snapshots(&[id]).map(drop)),
        ("rollback", volume.rollback(id).map(drop)),
        ("end of a relationship", volume.delete_since(7)),
        ("giving way", volume.demote("head", true).map(drop)),
    ]
}

/// Checks that the volume is unchanged, in memory and on its device.
fn unchanged<T>(volume: &Arc<Volume>, change: impl FnOnce() -> T) -> T {
    let status = || {
        let status = volume.status();
        let slots = read_slots(&**volume.store.device()).expect("they can be read");
        (volume.snapshot_entries(), status.generation, status.role, status.cursor, status.free, slots)
    };
    let before = status();
    let outcome = change();
    let after = status();
    assert!(before == after, "{before:?} {after:?}");
    assert!(volume.status().latched.is_none());
    outcome
}

#[test]
fn destination_takes_no_change_of_its_snapshots() {
    let (_device, source) = fresh(1024);
    let snapshot = source.create_snapshot("image").expect("it is made");
    let (_there, destination) = redirects::destination_of(&source);
    redirects::send(&source, &destination, &snapshot);
    for (what, outcome) in unchanged(&destination, || changes(&destination, snapshot.id)) {
        assert!(matches!(outcome, Err(VolumeError::WrongRole(Role::Destination))), "{what}: {outcome:?}");
    }
    // A source takes all of them, in some order.
    for (what, outcome) in changes(&source, snapshot.id).into_iter().take(5) {
        assert!(outcome.is_ok(), "{what}: {outcome:?}");
    }
}

#[test]
fn names_of_snapshots_are_of_letters_and_few_signs_and_each_is_given_once() {
    let (_device, volume) = fresh(1024);
    let first = volume.create_snapshot("first").expect("it is made");
    let longest = "x".repeat(cairn_format::MAX_SNAPSHOT_NAME);
    for name in ["", "-a", ".a", "a b", "a/b", "a\n", "a\0", "a*", &format!("{longest}x")] {
        let outcomes = unchanged(&volume, || {
            let step = Step { name, relationship: None, base: first.id, over: &[] };
            [
                volume.create_snapshot(name).map(drop),
                volume.create_snapshot_since(name, 7).map(drop),
                volume.create_snapshot_step(step).map(drop),
                volume.rename_snapshot(first.id, name),
            ]
        });
        for outcome in outcomes {
            assert!(matches!(outcome, Err(VolumeError::InvalidName)), "{name:?}: {outcome:?}");
        }
    }
    for name in ["a", "2026-11-23T02:15:00.5", "_a", ":a", "grün", &longest] {
        volume.create_snapshot(name).expect("the name is good");
        let again = unchanged(&volume, || volume.create_snapshot(name));
        assert!(matches!(again, Err(VolumeError::NameTaken)), "{name:?}: {again:?}");
        let taken = unchanged(&volume, || volume.rename_snapshot(first.id, name));
        assert!(matches!(taken, Err(VolumeError::NameTaken)), "{name:?}: {taken:?}");
    }
    volume.rename_snapshot(first.id, "first").expect("its own name is not taken by another");
    volume.rename_snapshot(first.id, "1st").expect("the name is good");
    volume.create_snapshot("first").expect("the old name is free");
    assert_eq!(volume.snapshot_named("1st").map(|one| one.id), Some(first.id));
}

#[test]
fn snapshot_that_is_not_there_or_is_held_is_not_deleted_with_the_others() {
    let (_device, volume) = fresh(1024);
    let [first, second] = ["first", "second"].map(|name| volume.create_snapshot(name).expect("it is made"));
    let unknown = unchanged(&volume, || {
        [
            volume.rename_snapshot(NOBODY, "a"),
            volume.hold_snapshot(NOBODY, true),
            volume.delete_snapshots(&[first.id, NOBODY]).map(drop),
            volume.let_go_of_snapshots(&[NOBODY]).map(drop),
            volume.rollback(NOBODY).map(drop),
            volume.image(Some(NOBODY)).map(drop),
            volume.changed_blocks(&[], NOBODY).map(drop),
        ]
    });
    for outcome in unknown {
        assert!(matches!(outcome, Err(VolumeError::NoSuchSnapshot(NOBODY))), "{outcome:?}");
    }
    volume.hold_snapshot(second.id, true).expect("it is there");
    let refused = unchanged(&volume, || volume.delete_snapshots(&[first.id, second.id]));
    assert!(matches!(refused, Err(VolumeError::Held(id)) if id == second.id), "{refused:?}");
    // Its mirror, which holds it, may release it.
    volume.let_go_of_snapshots(&[second.id]).expect("it is deleted");
    volume.delete_snapshots(&[first.id]).expect("it is deleted");
    assert_eq!(volume.snapshots(), []);
}

#[test]
fn rollback_in_the_generation_of_another_one_gives_its_snapshot_another_name() {
    let (_device, volume) = fresh(1024);
    let first = volume.create_snapshot("first").expect("it is made");
    let next = volume.status().generation.0 + 1;
    volume.create_snapshot(&format!("before-rollback-{next}")).expect("it is made");
    let kept = volume.rollback(first.id).expect("it rolls back");
    assert_eq!(kept.name, format!("before-rollback-{next}_"));
}

#[test]
fn volume_of_no_size_and_one_on_a_device_that_is_too_short_are_refused() {
    let format = |device: &MemoryDevice, blocks| {
        let options = FormatOptions { id: VolumeId([7; 16]), blocks, role: Role::Normal };
        Volume::format(device, &options, &ManualClock::new(Timestamp(1)))
    };
    let large = MemoryDevice::new(u64::MAX / 2);
    for blocks in [0, SPACE_BLOCKS_MIN - 1, SPACE_BLOCKS_MAX + 1] {
        let refused = format(&large, blocks);
        assert!(matches!(refused, Err(VolumeError::Size { .. })), "{blocks}: {refused:?}");
    }
    let need = Volume::device_bytes(1024, Role::Normal);
    for short in [4096, SUPERBLOCK_B * 4096, need - 4096] {
        let device = MemoryDevice::new(short);
        let refused = format(&device, 1024);
        let is_told = matches!(refused, Err(VolumeError::DeviceTooSmall { need: n, have }) if n == need && have == short);
        assert!(is_told, "{short}: {refused:?}");
        let options = OpenOptions { cache_bytes: 1 << 20, clock: Arc::new(ManualClock::new(Timestamp(1))) };
        let refused = Volume::open(Arc::new(device), options).map(drop);
        assert!(
            matches!(refused, Err(VolumeError::DeviceTooSmall { .. } | VolumeError::NotAVolume { .. })),
            "nothing was written to it: {refused:?}"
        );
    }
    // A device that has lost its end.
    let device = MemoryDevice::new(need);
    format(&device, 1024).expect("it is just long enough");
    let start = device.read(0, (need - 4096) as u32).expect("it can be read").to_vec();
    let shorter = Arc::new(MemoryDevice::new(need - 4096));
    shorter.write_from(0, &start).expect("it has room");
    let options = OpenOptions { cache_bytes: 1 << 20, clock: Arc::new(ManualClock::new(Timestamp(1))) };
    let refused = Volume::open(shorter, options).map(drop);
    assert!(matches!(refused, Err(VolumeError::DeviceTooSmall { .. })), "{refused:?}");
    open(&Arc::new(device)).close().expect("it closes");
}

#[test]
fn newer_superblock_slot_is_the_one_that_is_opened_whichever_that_is() {
    let (device, volume) = fresh(1024);
    volume.create_snapshot("first").expect("it is made");
    let slot = |address: u64| device.read(address * 4096, 4096).expect("it can be read").to_vec();
    let older = [SUPERBLOCK_A, SUPERBLOCK_B].map(|address| (address, slot(address)));
    let second = volume.create_snapshot("second").expect("it is made");
    drop(volume);
    for (address, bytes) in older {
        device.write_from(address * 4096, &bytes).expect("it has room");
        let volume = open(&device);
        assert_eq!(volume.snapshot_named("second").map(|one| one.id), Some(second.id));
        let [first, second] = read_slots(&*device).expect("they can be read");
        assert!(first.is_ok() && first == second, "both name it again");
    }
}

#[test]
fn volume_grows_onto_a_device_that_has_room_for_it_and_never_shrinks() {
    let blocks = 1024;
    let device = Arc::new(MemoryDevice::new(Volume::device_bytes(blocks, Role::Normal)));
    format(&*device, blocks);
    let volume = open(&device);
    for blocks in [0, 1, blocks - 1, blocks, SPACE_BLOCKS_MAX + 1, u64::MAX] {
        let refused = unchanged(&volume, || (volume.grow(blocks), volume.device_bytes_after_growth(blocks)));
        let is_told = |outcome: VolumeError| matches!(outcome, VolumeError::Size { blocks: b, min: 1025, max: SPACE_BLOCKS_MAX } if b == blocks);
        assert!(refused.0.is_err_and(is_told) && refused.1.is_err_and(is_told), "{blocks}");
    }
    let need = volume.device_bytes_after_growth(1500).expect("it can be so large");
    assert_eq!(need, device.geometry().length + (1500 - 1024) * 4096);
    for have in [device.geometry().length, need - 4096] {
        device.grow(have);
        let refused = unchanged(&volume, || volume.grow(1500));
        let is_told = matches!(refused, Err(VolumeError::DeviceTooSmall { need: n, have: h }) if (n, h) == (need, have));
        assert!(is_told, "{refused:?}");
    }
    device.grow(need);
    volume.grow(1500).expect("the device has room");
    assert_eq!((volume.status().blocks, volume.space_blocks()), (1500, 1500));
    // With a redirect area each growth takes a place more in the table of areas, which has 68, and
    // some take one for the have map.
    device.grow(1 << 30);
    volume.demote("head", false).expect("the device has room");
    volume.failover().expect("it fails over");
    let mut grown = 0;
    let refused = loop {
        match volume.grow(volume.space_blocks() + 300) {
            Ok(()) => grown += 1,
            Err(refused) => break refused,
        }
    };
    assert!(matches!(refused, VolumeError::TooManySegments) && grown >= 50, "{refused:?} after {grown}");
    assert_eq!(volume.space_blocks(), 1500 + grown * 300);
    assert!(volume.status().latched.is_none());
    assert_sound(&open(&device));
}

#[test]
fn volume_that_is_closed_does_nothing_any_more() {
    let (device, volume) = fresh(1024);
    let lun = file(&volume, 10);
    let snapshot = volume.create_snapshot("one").expect("it is made");
    volume.close().expect("it closes");
    let before = device.read(0, 1 << 20).expect("it can be read").to_vec();
    let mut outcomes = changes(&volume, snapshot.id);
    outcomes.extend([
        ("write", write(&volume, lun, 0, 1, 1)),
        ("punch", volume.punch(lun, Lba(0), 1)),
        ("flush", volume.flush()),
        ("consistency point", volume.consistency_point().map(drop)),
        ("background", volume.background(std::time::Duration::ZERO)),
        ("image", volume.image(None).map(drop)),
        ("image of a snapshot", volume.image(Some(snapshot.id)).map(drop)),
        ("check", volume.check(&mut |_| {}).map(drop)),
        ("growth", volume.grow(1100)),
        ("write-back", volume.write_back(std::time::Duration::ZERO)),
    ]);
    for (what, outcome) in outcomes {
        assert!(matches!(outcome, Err(VolumeError::Closed)), "{what}: {outcome:?}");
    }
    assert!(device.read(0, 1 << 20).expect("it can be read").to_vec() == before);
}

#[test]
fn device_is_formatted_only_without_any_whole_superblock_and_forgets_its_earlier_life() {
    let (device, volume) = fresh(1024);
    let lun = file(&volume, 100);
    write(&volume, lun, 0, 10, 100).expect("there is room");
    volume.flush().expect("it flushes");
    drop(volume);
    let options = FormatOptions { id: VolumeId([7; 16]), blocks: 1024, role: Role::Normal };
    let clock = ManualClock::new(Timestamp(1));
    for address in [SUPERBLOCK_A, SUPERBLOCK_B] {
        let slot = device.read(address * 4096, 4096).expect("it can be read").to_vec();
        device.write_from(address * 4096, &[0; 4096]).expect("it has room");
        let refused = Volume::format(&*device, &options, &clock);
        assert!(matches!(refused, Err(VolumeError::NotEmpty)), "{refused:?}");
        device.write_from(address * 4096, &slot).expect("it has room");
    }
    for address in [SUPERBLOCK_A, SUPERBLOCK_B] {
        device.write_from(address * 4096, &[0; 4096]).expect("it has room");
    }
    // Under the same id, as a mirror that is made again: its log must not be taken for that of the
    // new one.
    Volume::format(&*device, &options, &clock).expect("nothing is left on it");
    let volume = open(&device);
    let status = volume.status();
    assert_eq!((status.dirty, status.log_used, status.consistency_points), (0, 0, 0));
    let again = file(&volume, 100);
    assert_eq!(read(&volume, again, 0, 10), [0; 10]);
    assert_sound(&volume);
}

#[test]
fn clients_of_a_device_are_told_of_each_failure_as_what_it_is() {
    let (offset, length) = (8192, 4096);
    let place = Place::Data { file: FileId(2), lba: Lba(1) };
    let io = DeviceError::Corrupt { offset: 5, length: 6 };
    let label = FormatError::Checksum(Structure::Superblock);
    let latched = || VolumeError::Latched(Box::new(VolumeError::NoSpace));
    for (error, told) in [
        (VolumeError::Device(io.clone()), io),
        (VolumeError::NoSpace, DeviceError::NoSpace { offset, length }),
        (VolumeError::TableFull, DeviceError::NoSpace { offset, length }),
        (VolumeError::Damaged { vbn: Vbn(1), place }, DeviceError::Corrupt { offset, length }),
        (VolumeError::Label(label), DeviceError::Corrupt { offset, length }),
        (VolumeError::WrongRole(Role::Destination), DeviceError::ReadOnly),
        (latched(), DeviceError::ReadOnly),
        (VolumeError::Closed, DeviceError::OutOfService),
        (VolumeError::OtherHead, DeviceError::OutOfService),
    ] {
        let heard = error.to_device(offset, length);
        assert_eq!(format!("{heard:?}"), format!("{told:?}"), "{error}");
    }
}
