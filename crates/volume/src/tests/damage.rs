//! Damaged nodes: who needs one hears of it, and nobody else.

use super::*;
use crate::tree::Tree;

const BLOCKS: u64 = 8192;
/// A leaf is above so many blocks.
const LEAF: u64 = cairn_format::FANOUT;

/// The block of the leaf above `lba` of a file, as of the last consistency point.
fn leaf(volume: &Arc<Volume>, file: FileId, lba: u64) -> u64 {
    let committed = volume.state.lock().committed.clone();
    let inode = volume.inode(file).expect("the file exists");
    let tree: Tree<'_> = volume.tree(&committed, file, inode.tree);
    let mut found = None;
    tree.walk(
        &mut |pointer, level, at| {
            if level == 1 && lba / LEAF == at / LEAF {
                found = Some(pointer.vbn.0);
            }
            level > 1
        },
        &mut |error| panic!("{error}"),
    );
    found.expect("the block has a leaf")
}

fn offset(vbn: u64) -> u64 {
    (cairn_format::layout::space_start(BLOCKS) + vbn) * 4096
}

/// Two files of ten leaves each, written and committed; then the third leaf of the first rots, and the volume is opened with nothing in its cache.
fn damaged() -> (Arc<MemoryDevice>, Arc<Volume>, [FileId; 2], u64) {
    let (device, volume) = fresh(BLOCKS);
    let files = [file(&volume, 10 * LEAF), file(&volume, 10 * LEAF)];
    for file in files {
        write(&volume, file, 0, 10 * LEAF, 1000).expect("there is room");
    }
    volume.consistency_point().expect("it commits");
    let vbn = leaf(&volume, files[0], 2 * LEAF);
    volume.close().expect("it closes");
    device.write_from(offset(vbn), &[9; 100]).expect("it is there");
    let volume = open(&device);
    (device, volume, files, vbn)
}

fn names_the_node<T: std::fmt::Debug>(outcome: Result<T, VolumeError>, file: FileId, vbn: u64) {
    match outcome {
        Err(VolumeError::Damaged { vbn: found, place: Place::Node(node) }) => {
            assert_eq!((found.0, node.file, node.level), (vbn, file, 1));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn only_writes_under_a_damaged_node_fail_and_consistency_points_go_on() {
    let (device, volume, [hurt, whole], vbn) = damaged();
    for lba in [2 * LEAF, 2 * LEAF + 5, 3 * LEAF - 1] {
        names_the_node(write(&volume, hurt, lba, 1, 7), hurt, vbn);
    }
    names_the_node(write(&volume, hurt, 2 * LEAF - 1, 2, 7), hurt, vbn);
    names_the_node(volume.punch(hurt, Lba(2 * LEAF), 1), hurt, vbn);
    names_the_node(volume.punch(hurt, Lba(0), 10 * LEAF), hurt, vbn);
    volume.store.forget();
    assert_eq!(
        volume.write_ready(hurt, vec![(Lba(5 * LEAF), block(1))]).map(drop),
        None,
        "it is not in memory"
    );
    write(&volume, hurt, 2 * LEAF - 1, 1, 7).expect("this is under another leaf");
    write(&volume, hurt, 3 * LEAF, 1, 7).expect("this is under another leaf");
    volume.punch(hurt, Lba(5 * LEAF), 3 * LEAF).expect("these are under other leaves");
    write(&volume, whole, 0, 10 * LEAF, 2000).expect("this is another file");
    volume.flush().expect("it flushes");
    volume.consistency_point().expect("it commits");
    volume.create_snapshot("after").expect("it is made");
    assert!(volume.status().latched.is_none());
    drop(volume);
    let volume = open(&device);
    assert_eq!(read(&volume, hurt, 2 * LEAF - 1, 1), [2 * LEAF + 6]);
    assert_eq!(read(&volume, hurt, 3 * LEAF, 2), [3 * LEAF + 7, 3 * LEAF + 1001]);
    assert_eq!(read(&volume, hurt, 5 * LEAF, 3 * LEAF), vec![0; 3 * LEAF as usize]);
    assert_eq!(read(&volume, whole, 0, 10 * LEAF), (2000..2000 + 10 * LEAF).collect::<Vec<_>>());
}

#[test]
fn file_with_a_damaged_node_can_be_shortened_above_it_and_removed_without_stopping_the_volume() {
    let (device, volume, [hurt, whole], vbn) = damaged();
    names_the_node(volume.compound().resize(hurt, LEAF * 4096), hurt, vbn);
    volume.compound().resize(hurt, 3 * LEAF * 4096).expect("what it cuts off is whole");
    volume.compound().resize(hurt, 20 * LEAF * 4096).expect("it grows");
    volume.consistency_point().expect("it commits");
    let free = volume.status().free;
    volume.compound().remove(hurt).expect("its name is taken away");
    volume.compound().remove(whole).expect("its name is taken away");
    for _ in 0..4 {
        volume.background(std::time::Duration::ZERO).expect("background work goes on");
    }
    assert!(volume.status().latched.is_none());
    assert!(volume.status().free >= free + 10 * LEAF, "the other file is freed");
    volume.consistency_point().expect("it commits");
    drop(volume);
    open(&device).background(std::time::Duration::ZERO).expect("background work goes on");
}

#[test]
fn node_that_can_be_read_again_can_be_written_under_again() {
    let device = Arc::new(FaultDevice::new(Volume::device_bytes(BLOCKS, Role::Normal)));
    format(&*device, BLOCKS);
    let volume = open(&device);
    let lun = file(&volume, 10 * LEAF);
    write(&volume, lun, 0, 10 * LEAF, 1000).expect("there is room");
    volume.consistency_point().expect("it commits");
    let vbn = leaf(&volume, lun, 0);
    drop(volume);
    let volume = open(&device);
    device.fail_reads(offset(vbn)..offset(vbn) + 4096);
    let refused = write(&volume, lun, 0, 1, 7);
    assert!(matches!(refused, Err(VolumeError::Device(_))), "{refused:?}");
    volume.consistency_point().expect("it commits");
    device.heal_reads();
    write(&volume, lun, 0, 1, 7).expect("the node can be read");
    volume.consistency_point().expect("it commits");
    assert_eq!(read(&volume, lun, 0, 1), [7]);
    assert_sound(&volume);
}

/// The remaining case: the node was good when the write was taken.
#[test]
fn node_that_rots_after_the_write_was_taken_stops_the_volume_and_loses_nothing() {
    let (device, volume) = fresh(BLOCKS);
    let lun = file(&volume, 10 * LEAF);
    write(&volume, lun, 0, 10 * LEAF, 1000).expect("there is room");
    volume.consistency_point().expect("it commits");
    let vbn = leaf(&volume, lun, 0);
    write(&volume, lun, 0, 1, 7).expect("the node is good");
    volume.flush().expect("it flushes");
    device.write_from(offset(vbn), &[9; 100]).expect("it is there");
    drop(volume);
    // The log brings the write back, above a node that is damaged by now.
    let volume = open(&device);
    assert_eq!(read(&volume, lun, 0, 1), [7], "what was flushed is served");
    names_the_node(volume.consistency_point(), lun, vbn);
    assert!(volume.status().latched.is_some());
    assert_eq!(read(&volume, lun, 0, 1), [7], "what was flushed is still served");
    drop(volume);
    assert_eq!(read(&open(&device), lun, 0, 1), [7], "and it is still in the log");
}

#[test]
fn damaged_map_of_a_sibling_does_not_stop_consistency_points() {
    let (device, volume) = fresh(BLOCKS);
    let lun = file(&volume, LEAF);
    let base = volume.create_snapshot("base").expect("it is made");
    write(&volume, lun, 0, 10, 100).expect("there is room");
    let parent = volume.create_snapshot("parent").expect("it is made");
    write(&volume, lun, 50, 1, 0).expect("there is room");
    let child = volume.rollback(parent.id).expect("it rolls back");
    volume.delete_snapshots(&[parent.id]).expect("it is deleted");
    volume.close().expect("it closes");
    let map = child.root.active_map.pointer.vbn.0;
    let volume = open(&device);
    // It rots while the volume is open: what is free is known.
    device.write_from(offset(map), &[9; 100]).expect("it is there");
    volume.store.forget();
    write(&volume, lun, 0, 10, 200).expect("there is room");
    volume.consistency_point().expect("the blocks that it may hold stay in use");
    assert!(volume.status().latched.is_none());
    assert_eq!(read(&volume, lun, 0, 2), [200, 201]);
    let _ = base;
}
