//! Damaged blocks of inodes: which requests fail, and which continue.

use std::time::Duration;

use cairn_base::Vbn;
use cairn_device::{DeviceError, Geometry, Operation, Request};
use cairn_format::{BlockPointer, INODES_PER_BLOCK, SegmentKind};

use super::redirects::{destination_of, send};
use super::*;
use crate::known_files::INODE_FILE;

/// A file of one block whose inode is far from those of all before it: under nodes of its own above
/// the inodes.
fn far_file(volume: &Arc<Volume>) -> FileId {
    let mut state = volume.state.lock();
    state.next_file = (state.next_file + 1).next_multiple_of(cairn_format::FANOUT * INODES_PER_BLOCK);
    drop(state);
    file(volume, 1)
}

/// The pointer over a file's inode in the active state: of its block, or of the node at a level.
fn pointer_over(volume: &Arc<Volume>, file: FileId, level: u8) -> BlockPointer {
    let committed = volume.state.lock().committed.clone();
    let inodes = volume.tree(&committed, INODE_FILE, committed.root.inode_file);
    inodes.pointer_at_level(level, file.0 / INODES_PER_BLOCK).expect("the way to it is whole")
}

/// Damages a block; returns its content.
fn rot(device: &MemoryDevice, volume: &Arc<Volume>, vbn: Vbn) -> Block {
    let sound = volume.store.read_numbers(&[vbn], &Default::default()).remove(0).expect("it can be read");
    let (offset, _) =
        volume.store.space().locate(SegmentKind::Space, vbn.0).expect("it is in the block space");
    device.write_from(offset, &[9; 4096]).expect("it is there");
    volume.store.forget();
    sound
}

/// Opens a volume that takes no changes because inodes can't be read.
fn open_without_changes(device: &Arc<MemoryDevice>) -> Arc<Volume> {
    open_without_changes_at(device, Arc::new(ManualClock::new(Timestamp(1))))
}

fn open_without_changes_at(device: &Arc<MemoryDevice>, clock: Arc<ManualClock>) -> Arc<Volume> {
    let options = OpenOptions { cache_bytes: 1 << 20, clock };
    let volume = Volume::open(device.clone(), options).expect("what there is can be looked at");
    assert!(matches!(volume.status().latched, Some(VolumeError::InodesLost(_))), "it is told");
    let lost = |outcome: Result<(), VolumeError>| {
        assert!(matches!(outcome, Err(VolumeError::InodesLost(_))), "{outcome:?}");
    };
    lost(volume.compound().create(FileKind::Lun, 4096).map(drop));
    lost(volume.create_snapshot("none").map(drop));
    lost(volume.consistency_point().map(drop));
    lost(volume.delete_since(1));
    lost(volume.flush());
    volume.background(Duration::ZERO).expect("there is nothing to do, and it goes on later");
    volume.write_back(Duration::ZERO).expect("there is nothing to do, and it goes on later");
    volume
}

/// Such a volume used to be rewritten or given up, for a few files that may have been unused for
/// years.
#[test]
fn volume_of_which_inodes_have_rotted_opens_and_loses_their_files_alone_until_they_are_mended() {
    for level in [0, 1] {
        let (device, volume) = fresh(4096);
        let (lost, removed) = (far_file(&volume), file(&volume, 1));
        let kept = far_file(&volume);
        for (file, salt) in [(lost, 100), (removed, 200), (kept, 300)] {
            write(&volume, file, 0, 1, salt).expect("there is room");
        }
        let before = volume.create_snapshot("before").expect("it is made");
        let before_removal = volume.status().used;
        volume.compound().remove(removed).expect("it is removed");
        volume.consistency_point().expect("it commits");
        write(&volume, kept, 0, 1, 400).expect("there is room");
        let after = volume.create_snapshot("after").expect("it is made");
        write(&volume, kept, 0, 1, 500).expect("there is room");
        volume.consistency_point().expect("it commits");
        let pointer = pointer_over(&volume, lost, level);
        let sound = rot(&device, &volume, pointer.vbn);
        drop(volume);

        let volume = open(&device);
        assert_eq!(volume.status_role(), Role::Normal);
        assert_eq!(read(&volume, kept, 0, 1), [500]);
        assert!(volume.inode(lost).is_err(), "nothing is known of it");
        assert!(matches!(write(&volume, lost, 0, 1, 7), Err(VolumeError::Damaged { .. })));
        write(&volume, kept, 0, 1, 600).expect("there is room");
        let new = far_file(&volume);
        write(&volume, new, 0, 1, 700).expect("there is room");
        volume.flush().expect("it flushes");
        drop(volume);

        // The log has changes of other files.
        let volume = open(&device);
        assert_eq!((read(&volume, kept, 0, 1), read(&volume, new, 0, 1)), (vec![600], vec![700]));
        // The same holds for a restored snapshot: the block is as old in it, or it has another.
        volume.rollback(after.id).expect("it rolls back");
        assert_eq!(read(&volume, kept, 0, 1), [400]);
        assert!(volume.inode(lost).is_err());
        volume.rollback(before.id).expect("it rolls back");
        assert_eq!((read(&volume, kept, 0, 1), read(&volume, lost, 0, 1)), (vec![300], vec![100]));
        volume.rollback(after.id).expect("it rolls back");
        assert!(volume.inode(lost).is_err());
        let repaired = volume.repair(pointer.vbn, pointer.checksum, &sound).expect("it is written");
        assert_eq!(repaired, Repaired::Written);
        assert_eq!(read(&volume, lost, 0, 1), [100]);
        write(&volume, lost, 0, 1, 800).expect("there is room");
        volume.close().expect("it closes");

        // Which of its files are removed is found now.
        let volume = open(&device);
        assert_eq!(read(&volume, lost, 0, 1), [800]);
        while volume.free_removed().expect("it is freed") {}
        assert!(matches!(volume.inode(removed), Err(VolumeError::NoSuchFile(_))));
        let snapshots: Vec<_> = volume.snapshots().iter().map(|snapshot| snapshot.id).collect();
        volume.delete_snapshots(&snapshots).expect("they are deleted");
        volume.consistency_point().expect("it commits");
        assert!(volume.status().used < before_removal);
        assert_sound(&volume);
    }
}

#[test]
fn destination_takes_over_although_inodes_have_rotted() {
    let (_source_device, source) = fresh(1024);
    let lost = far_file(&source);
    write(&source, lost, 0, 1, 100).expect("there is room");
    let kept = far_file(&source);
    write(&source, kept, 0, 1, 200).expect("there is room");
    let base = source.create_snapshot("base").expect("it is made");
    let (device, copy) = destination_of(&source);
    send(&source, &copy, &base);
    let pointer = pointer_over(&copy, lost, 0);
    let sound = rot(&device, &copy, pointer.vbn);
    copy.failover().expect("what there is can be used");
    write(&copy, kept, 0, 1, 300).expect("there is room");
    assert!(copy.inode(lost).is_err());
    copy.consistency_point().expect("it commits");
    copy.repair(pointer.vbn, pointer.checksum, &sound).expect("it is written");
    assert_eq!((read(&copy, lost, 0, 1), read(&copy, kept, 0, 1)), (vec![100], vec![300]));
    assert_sound(&copy);
}

/// A consistency point without an existing since map would make the mirror miss the changes.
#[test]
fn inodes_of_since_maps_are_never_older_than_their_root_and_no_volume_takes_changes_without_one() {
    let (device, volume) = fresh(4096);
    let lun = far_file(&volume);
    let all_are_new = |volume: &Arc<Volume>, maps: usize| {
        let (generation, since) = {
            let state = volume.state.lock();
            (state.committed.root.generation, state.since_maps.clone())
        };
        assert_eq!(since.len(), maps);
        for map in since {
            assert_eq!(pointer_over(volume, map.file, 0).birth, generation, "{map:?}");
        }
    };
    let mut salt = 0;
    let mut change = |volume: &Arc<Volume>| {
        salt += 100;
        write(volume, lun, 0, 1, salt).expect("there is room");
    };
    // Each map's inode in a block of its own.
    let apart = |volume: &Arc<Volume>| {
        let mut state = volume.state.lock();
        state.next_file = (state.next_file + 1).next_multiple_of(INODES_PER_BLOCK);
    };
    change(&volume);
    apart(&volume);
    volume.create_snapshot_since("first", 1).expect("it is made");
    all_are_new(&volume, 1);
    change(&volume);
    apart(&volume);
    let second = volume.create_snapshot_since("second", 1).expect("it is made");
    all_are_new(&volume, 2);
    apart(&volume);
    volume.create_snapshot_since("other", 2).expect("it is made");
    all_are_new(&volume, 3);
    change(&volume);
    volume.consistency_point().expect("it commits");
    all_are_new(&volume, 3);
    change(&volume);
    let plain = volume.create_snapshot("plain").expect("it is made");
    all_are_new(&volume, 3);
    volume.rollback(second.id).expect("it rolls back");
    all_are_new(&volume, 3);
    volume.rollback(plain.id).expect("it rolls back");
    all_are_new(&volume, 3);
    volume.delete_since(2).expect("it ends");
    all_are_new(&volume, 2);
    volume.close().expect("it closes");
    drop(volume);

    let volume = open(&device);
    all_are_new(&volume, 2);
    change(&volume);
    volume.consistency_point().expect("it commits");
    all_are_new(&volume, 2);
    let maps = volume.state.lock().since_maps.clone();
    volume.close().expect("it closes");
    for map in maps {
        let pointer = pointer_over(&volume, map.file, 0);
        let sound = rot(&device, &volume, pointer.vbn);
        let without = open_without_changes(&device);
        without.close().expect("it closes");
        drop(without);
        let without = open_without_changes(&device);
        assert_eq!(
            without.repair(pointer.vbn, pointer.checksum, &sound).expect("it is written"),
            Repaired::Written
        );
        assert_eq!(without.since_relationships(), volume.since_relationships());
        change(&without);
        without.flush().expect("it takes changes again");
    }
    let volume = open(&device);
    assert!(volume.acknowledge_since(1, second.id).is_ok());
    assert_sound(&volume);
}

/// The root does not have the log's changes of them, and without their blocks they can't be
/// reconstructed.
#[test]
fn volume_takes_no_changes_until_inodes_can_be_read_that_were_changed_since() {
    let (device, volume) = fresh(4096);
    let changed = file(&volume, 10);
    write(&volume, changed, 0, 10, 100).expect("there is room");
    let other = far_file(&volume);
    write(&volume, other, 0, 1, 200).expect("there is room");
    volume.consistency_point().expect("it commits");
    write(&volume, other, 0, 1, 300).expect("there is room");
    volume.consistency_point().expect("it commits");
    write(&volume, changed, 0, 1, 400).expect("there is room");
    volume.compound().resize(changed, 20 * 4096).expect("there is room");
    volume.flush().expect("it flushes");
    let pointer = pointer_over(&volume, changed, 0);
    let sound = rot(&device, &volume, pointer.vbn);
    drop(volume);
    let clock = Arc::new(ManualClock::new(Timestamp(1)));
    let volume = open_without_changes_at(&device, clock.clone());
    assert_eq!(read(&volume, other, 0, 1), [300]);
    for lba in [0, 1, 15] {
        let mut reads = [BlockRead::new(Lba(lba), 1)];
        volume.read(changed, &mut reads, true);
        assert!(reads[0].outcome.as_ref().is_some_and(Result::is_err), "what is there is not known: no hole");
    }
    assert!(volume.allocated(changed, Lba(1), 1).is_err());
    let damaged = volume.damaged();
    assert_eq!(damaged.len(), 1, "{damaged:?}");
    assert_eq!(volume.look_again(&damaged[0]).expect("it is looked at"), Health::Damaged);
    assert!(write(&volume, other, 0, 1, 7).is_err());
    // The device returns the old content: no repair is needed.
    let (offset, _) = volume.store.space().locate(SegmentKind::Space, pointer.vbn.0).expect("it is there");
    device.write_from(offset, &sound[..]).expect("it is there");
    clock.advance(Duration::from_secs(1));
    volume.background(Duration::ZERO).expect("it looks now and then");
    assert!(write(&volume, other, 0, 1, 7).is_err(), "not each time");
    clock.advance(Duration::from_secs(60));
    volume.background(Duration::ZERO).expect("it looks now and then");
    write(&volume, other, 0, 1, 500).expect("it takes changes again");
    volume.consistency_point().expect("it commits");
    drop(volume);
    let volume = open(&device);
    assert_eq!(read(&volume, changed, 0, 11), [&[400][..], &(101..110).collect::<Vec<_>>(), &[0]].concat());
    assert_eq!(read(&volume, other, 0, 1), [500]);
    assert_sound(&volume);
}

/// Its relationships can't be ended, and it would take no changes.
#[test]
fn snapshot_of_which_the_newest_inodes_have_rotted_is_not_cloned_and_others_are() {
    let (device, volume) = fresh(4096);
    let lun = file(&volume, 1);
    write(&volume, lun, 0, 1, 100).expect("there is room");
    let good = volume.create_snapshot("good").expect("it is made");
    write(&volume, lun, 0, 1, 200).expect("there is room");
    let rotten = volume.create_snapshot_since("rotten", 1).expect("it is made");
    let pointer = pointer_over(&volume, lun, 0);
    rot(&device, &volume, pointer.vbn);
    let clone = |of: &Snapshot| {
        let own = Arc::new(MemoryDevice::new(CloneDevice::own_bytes(&volume, of.id).expect("it is there")));
        let clone = Arc::new(CloneDevice::new(&volume, of.id, own).expect("its map can be read"));
        let options =
            || OpenOptions { cache_bytes: 1 << 20, clock: Arc::new(ManualClock::new(Timestamp(1))) };
        clone.make(options()).and_then(|()| Volume::open(clone, options()))
    };
    let refused = clone(&rotten).err();
    assert!(matches!(refused, Some(VolumeError::InodesLost(_))), "{refused:?}");
    let clone = clone(&good).expect("all of it can be read");
    assert_eq!(read(&clone, lun, 0, 1), [100]);
    write(&clone, lun, 0, 1, 300).expect("there is room");
    clone.consistency_point().expect("it commits");
    assert_sound(&clone);
}

/// A device that goes out of service when blocks from a place on are read.
struct Leaving {
    device: Arc<MemoryDevice>,
    at: u64,
}

impl Device for Leaving {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn run(&self, batch: &mut [Operation]) {
        for operation in batch.iter_mut().filter(|operation| operation.is_pending()) {
            match operation.request() {
                Request::Read { offset, length, .. }
                    if (*offset..*offset + u64::from(*length)).contains(&self.at) =>
                {
                    operation.finish(Err(DeviceError::OutOfService));
                }
                _ => self.device.run(std::slice::from_mut(operation)),
            }
        }
    }
}

/// Its inodes are unknown then: the volume opens whole once the device is back.
#[test]
fn device_that_leaves_in_the_middle_of_an_opening_is_not_one_with_rotten_inodes() {
    let (device, volume) = fresh(4096);
    let (old, new) = (far_file(&volume), far_file(&volume));
    write(&volume, new, 0, 1, 100).expect("there is room");
    volume.close().expect("it closes");
    for file in [old, new] {
        let vbn = pointer_over(&volume, file, 0).vbn;
        let (at, _) =
            volume.store.space().locate(SegmentKind::Space, vbn.0).expect("it is in the block space");
        let leaving = Arc::new(Leaving { device: device.clone(), at });
        let clock = Arc::new(ManualClock::new(Timestamp(1)));
        let refused = Volume::open(leaving, OpenOptions { cache_bytes: 1 << 20, clock }).err();
        let expected = matches!(refused, Some(VolumeError::Device(DeviceError::OutOfService)));
        assert!(expected, "{file}: {refused:?}");
    }
    assert_eq!(read(&open(&device), new, 0, 1), [100]);
}
