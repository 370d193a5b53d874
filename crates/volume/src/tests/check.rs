//! One thing is damaged, and `check` finds that one thing.

use std::ops::ControlFlow;

use cairn_base::{Checksum, Rng, SnapshotId, Vbn};
use cairn_device::BlockMut;
use cairn_format::{BlockPointer, Inode, Node, NodeMut, RedirectRun, Root, SnapshotEntry};

use super::*;
use crate::commit::table::TableChange;
use crate::known_files::{ACTIVE_MAP, INODE_FILE};
use crate::read::compare::bit;

const BLOCKS: u64 = 1024;
const ACTIVE: SnapshotId = SnapshotId(0);

fn offset(vbn: Vbn) -> u64 {
    (cairn_format::layout::space_start(BLOCKS) + vbn.0) * 4096
}

/// A volume with a LUN of 300 blocks, a snapshot of them, and a few that were written since.
fn small() -> (Arc<FaultDevice>, Arc<Volume>, FileId, Snapshot) {
    let device = Arc::new(FaultDevice::new(Volume::device_bytes(BLOCKS, Role::Normal)));
    format(&*device, BLOCKS);
    let volume = open(&device);
    let lun = file(&volume, 300);
    write(&volume, lun, 0, 300, 100).expect("there is room");
    let snapshot = volume.create_snapshot("old").expect("it is made");
    write(&volume, lun, 0, 10, 900).expect("there is room");
    volume.consistency_point().expect("it commits");
    assert_sound(&volume);
    (device, volume, lun, snapshot)
}

fn found(volume: &Arc<Volume>, depth: CheckDepth) -> Vec<Finding> {
    volume.store.forget();
    let report = volume.check_to(depth, &mut |_| ControlFlow::Continue(())).expect("checking is possible");
    assert!(!report.interrupted);
    report.findings
}

fn active_root(volume: &Arc<Volume>) -> Root {
    volume.state.lock().committed.root
}

fn pointer(volume: &Arc<Volume>, root: Root, file: FileId, level: u8, lba: u64) -> BlockPointer {
    let committed = crate::memory::roots::Committed::image(root, Default::default());
    let tree = match file {
        ACTIVE_MAP => root.active_map,
        INODE_FILE => root.inode_file,
        file => volume.committed_inode(&committed, file).expect("it parses").expect("it exists").tree,
    };
    volume.tree(&committed, file, tree).pointer_at_level(level, lba).expect("the way to it is whole")
}

/// Damages a block; both depths must find just that, or only the deeper one.
fn rot(root_of: SnapshotId, file: impl Fn(FileId) -> FileId, level: u8, lba: u64, shallow: bool) {
    let (device, volume, lun, snapshot) = small();
    let root = if root_of == ACTIVE { active_root(&volume) } else { snapshot.root };
    let file = file(lun);
    let vbn = pointer(&volume, root, file, level, lba).vbn;
    device.corrupt(offset(vbn), 4096, &mut Rng::new(1));
    let place = match level {
        0 => Place::Data { file, lba: Lba(lba) },
        _ => Place::Node(cairn_format::NodeAddress {
            file,
            level,
            index: lba / cairn_format::FANOUT.pow(level.into()),
        }),
    };
    let expected = [Finding::DamagedBlock { vbn, place, snapshot: root_of }];
    assert_eq!(expected[0].snapshot(), Some(root_of), "it is told of that root");
    assert_eq!(found(&volume, CheckDepth::Everything), expected);
    assert_eq!(found(&volume, CheckDepth::Structures), if shallow { &expected[..] } else { &[] });
}

#[test]
fn damaged_data_is_one_finding_of_a_deep_check() {
    rot(ACTIVE, |lun| lun, 0, 3, false);
}

#[test]
fn damaged_data_of_a_snapshot_is_one_finding_that_names_it() {
    rot(SnapshotId(1), |lun| lun, 0, 3, false);
}

#[test]
fn damaged_leaf_is_one_finding_of_a_fast_check() {
    rot(ACTIVE, |lun| lun, 1, 3, true);
}

#[test]
fn damaged_leaf_of_a_snapshot_is_one_finding_that_names_it() {
    rot(SnapshotId(1), |lun| lun, 1, 130, true);
}

#[test]
fn damaged_leaf_of_a_snapshot_is_one_finding_though_the_active_state_is_compared_with_it() {
    rot(SnapshotId(1), |lun| lun, 1, 3, true);
}

#[test]
fn damaged_inode_block_is_one_finding() {
    rot(ACTIVE, |_| INODE_FILE, 0, 0, true);
}

#[test]
fn damaged_inode_block_of_a_snapshot_is_one_finding_and_says_nothing_of_what_came_after_it() {
    rot(SnapshotId(1), |_| INODE_FILE, 0, 0, true);
}

#[test]
fn damaged_map_block_is_one_finding() {
    rot(ACTIVE, |_| ACTIVE_MAP, 0, 0, true);
}

#[test]
fn damaged_leaves_of_two_files_are_two_findings_and_what_lies_below_them_is_none() {
    let device = Arc::new(FaultDevice::new(Volume::device_bytes(BLOCKS, Role::Normal)));
    format(&*device, BLOCKS);
    let volume = open(&device);
    let damaged = [(); 2].map(|()| {
        let lun = file(&volume, 100);
        write(&volume, lun, 0, 100, 100).expect("there is room");
        lun
    });
    volume.consistency_point().expect("it commits");
    let mut expected = Vec::new();
    for lun in damaged {
        let vbn = pointer(&volume, active_root(&volume), lun, 1, 0).vbn;
        device.corrupt(offset(vbn), 4096, &mut Rng::new(1));
        let place = Place::Node(cairn_format::NodeAddress { file: lun, level: 1, index: 0 });
        expected.push(Finding::DamagedBlock { vbn, place, snapshot: ACTIVE });
    }
    assert_eq!(found(&volume, CheckDepth::Structures), expected);
}

#[test]
fn check_commits_first_so_that_what_was_just_written_is_checked_too() {
    let (device, volume, lun, _) = small();
    write(&volume, lun, 20, 1, 7000).expect("there is room");
    volume.flush().expect("it flushes");
    let seen = volume.state.lock().changes_of(lun).see(20);
    let crate::memory::overlay::Seen::Pointer(pointer) = seen else { panic!("a flush has placed it") };
    device.corrupt(offset(pointer.vbn), 4096, &mut Rng::new(1));
    let place = Place::Data { file: lun, lba: Lba(20) };
    let expected = [Finding::DamagedBlock { vbn: pointer.vbn, place, snapshot: ACTIVE }];
    assert_eq!(found(&volume, CheckDepth::Everything), expected);
}

#[test]
fn damage_that_keeps_a_volume_from_committing_is_what_its_check_tells() {
    let (device, volume, lun, _) = small();
    write(&volume, lun, 4, 1, 7000).expect("there is room");
    let vbn = pointer(&volume, active_root(&volume), lun, 1, 0).vbn;
    device.corrupt(offset(vbn), 4096, &mut Rng::new(1));
    let place = Place::Node(cairn_format::NodeAddress { file: lun, level: 1, index: 0 });
    let expected = [Finding::DamagedBlock { vbn, place, snapshot: ACTIVE }];
    assert_eq!(found(&volume, CheckDepth::Structures), expected);
    let refused = volume.consistency_point();
    assert!(matches!(refused, Err(VolumeError::Latched(_))), "it could not commit: {refused:?}");
}

/// Changes a block of the active map or inode file with all checksums above it right, and `used` of
/// the root by so many.
fn forge(
    device: &FaultDevice,
    volume: &Arc<Volume>,
    file: FileId,
    used: i64,
    edit: impl FnOnce(&mut BlockMut),
) {
    let mut root = active_root(volume);
    let tree = if file == ACTIVE_MAP { &mut root.active_map } else { &mut root.inode_file };
    assert_eq!(tree.height, 1, "one node is above the block");
    let write = |vbn: Vbn, bytes: BlockMut| {
        let block = bytes.freeze();
        device.write_from(offset(vbn), &block[..]).expect("it is there");
        Checksum::of(&block[..])
    };
    let read = |vbn: Vbn| {
        let mut bytes = BlockMut::zeroed();
        device.read_into(offset(vbn), &mut bytes[..]).expect("it is there");
        bytes
    };
    let mut node = read(tree.pointer.vbn);
    let below = Node::trusted(&node).expect("it is a node").pointer(0);
    let mut block = read(below.vbn);
    edit(&mut block);
    NodeMut::of(&mut node).set(0, BlockPointer { checksum: write(below.vbn, block), ..below });
    tree.pointer.checksum = write(tree.pointer.vbn, node);
    root.used = root.used.checked_add_signed(used).expect("it is a count");
    drop(volume.state.lock().switch(root, Default::default()));
}

#[test]
fn bit_of_a_block_that_nothing_reaches_is_one_finding() {
    let (device, volume, _, _) = small();
    let vbn = Vbn(1000);
    let (byte, mask) = bit(vbn);
    forge(&device, &volume, ACTIVE_MAP, 1, |bits| bits[byte] |= mask);
    let expected = [Finding::MapBitWithoutBlock { vbn, snapshot: ACTIVE }];
    assert_eq!(found(&volume, CheckDepth::Structures), expected);
}

#[test]
fn reached_block_without_a_bit_is_one_finding() {
    let (device, volume, lun, _) = small();
    let vbn = pointer(&volume, active_root(&volume), lun, 0, 3).vbn;
    let (byte, mask) = bit(vbn);
    forge(&device, &volume, ACTIVE_MAP, -1, |bits| bits[byte] &= !mask);
    let place = Place::Data { file: lun, lba: Lba(3) };
    let expected = [Finding::BlockNotInMap { vbn, place, snapshot: ACTIVE }];
    assert_eq!(found(&volume, CheckDepth::Structures), expected);
}

#[test]
fn bit_of_a_block_that_only_a_snapshot_reaches_is_one_finding() {
    let (device, volume, lun, snapshot) = small();
    let vbn = pointer(&volume, snapshot.root, lun, 0, 3).vbn;
    let (byte, mask) = bit(vbn);
    forge(&device, &volume, ACTIVE_MAP, 1, |bits| bits[byte] |= mask);
    let expected = [Finding::MapBitWithoutBlock { vbn, snapshot: ACTIVE }];
    assert_eq!(found(&volume, CheckDepth::Structures), expected);
}

#[test]
fn block_that_is_shared_with_a_snapshot_and_has_no_bit_is_one_finding() {
    let (device, volume, lun, snapshot) = small();
    let vbn = pointer(&volume, active_root(&volume), lun, 0, 100).vbn;
    assert_eq!(pointer(&volume, snapshot.root, lun, 0, 100).vbn, vbn);
    let (byte, mask) = bit(vbn);
    forge(&device, &volume, ACTIVE_MAP, -1, |bits| bits[byte] &= !mask);
    let expected = [Finding::BlockNotInMap { vbn, place: Place::Unknown, snapshot: ACTIVE }];
    assert_eq!(found(&volume, CheckDepth::Structures), expected);
}

#[test]
fn wrong_count_is_one_finding() {
    let (_device, volume, _, _) = small();
    let root = active_root(&volume);
    drop(volume.state.lock().switch(Root { used: root.used + 1, ..root }, Default::default()));
    let expected = [Finding::UsedCount { snapshot: ACTIVE, root: root.used + 1, map: root.used }];
    assert_eq!(found(&volume, CheckDepth::Structures), expected);
}

#[test]
fn used_block_that_is_free_is_one_finding() {
    let (_device, volume, lun, _) = small();
    let vbn = pointer(&volume, active_root(&volume), lun, 0, 3).vbn;
    volume.state.lock().used.clear(vbn);
    assert_eq!(found(&volume, CheckDepth::Structures), [Finding::UsedBlockIsFree { vbn }]);
}

#[test]
fn inode_in_the_place_of_another_is_one_finding() {
    let (device, volume, lun, _) = small();
    let inode = volume.inode(lun).expect("it exists");
    let (lba, slot) = Inode::place(lun);
    forge(&device, &volume, INODE_FILE, 0, |block| {
        Inode::put(Some(&Inode { id: FileId(lun.0 + 1), ..inode }), block, slot);
    });
    let expected = [Finding::BadInode { lba: Lba(lba), snapshot: ACTIVE }];
    assert_eq!(found(&volume, CheckDepth::Structures), expected);
}

#[test]
fn inodes_that_do_not_parse_are_one_finding_and_what_they_led_to_is_none() {
    let (device, volume, lun, _) = small();
    let lba = Inode::place(lun).0;
    // The LUN's, and one where there was none: each of no kind that there is.
    forge(&device, &volume, INODE_FILE, 0, |block| {
        for slot in [Inode::place(lun).1, 9] {
            block[slot * 4096 / 32..][..4].fill(0xee);
        }
    });
    let expected = [Finding::BadInode { lba: Lba(lba), snapshot: ACTIVE }];
    assert_eq!(found(&volume, CheckDepth::Structures), expected);
}

/// Its readable part may be as wrong as the unreadable one: a file is present and lost at the same
/// time.
#[test]
fn block_of_inodes_of_which_one_makes_no_sense_is_lost_as_a_whole() {
    let (device, volume, lun, _) = small();
    let image = volume.image(None).expect("it is there");
    let readable = image.readable_inodes_from(FileId(0)).expect("they are read");
    assert!(readable.inodes.iter().any(|inode| inode.id == lun) && readable.lost.is_empty());
    drop(image);
    forge(&device, &volume, INODE_FILE, 0, |block| block[31 * 4096 / 32..][..4].fill(0xee));
    let image = volume.image(None).expect("it is there");
    assert_eq!(Inode::place(lun).0, 0, "its block");
    let readable = image.readable_inodes_from(FileId(0)).expect("the rest is read");
    assert_eq!((readable.inodes, readable.lost), (vec![], vec![(FileId(0), FileId(32))]));
}

#[test]
fn snapshot_without_its_parent_is_one_finding() {
    let (_device, volume, _, snapshot) = small();
    let entry = volume.snapshot_entries().remove(0);
    let orphan = SnapshotEntry { parent: SnapshotId(99), ..entry };
    let mut commit = volume.commit.lock();
    let mut state = volume.state.lock();
    let changes = vec![TableChange::Put(orphan)];
    let prepared = state.snapshots.prepare(changes, volume.id(), &mut commit.label).expect("there is room");
    state.snapshots.apply(prepared);
    drop((state, commit));
    let expected = [Finding::OrphanSnapshot { snapshot: snapshot.id, parent: SnapshotId(99) }];
    assert_eq!(found(&volume, CheckDepth::Structures), expected);
}

#[test]
fn redirects_that_share_a_slot_are_one_finding() {
    let (_device, volume, _, _) = small();
    let mut redirects = crate::commit::space::Redirects::default();
    redirects.insert(RedirectRun { vbn: Vbn(900), slot: 5, count: 1 });
    redirects.insert(RedirectRun { vbn: Vbn(950), slot: 5, count: 1 });
    let root = active_root(&volume);
    drop(volume.state.lock().switch(root, Arc::new(redirects)));
    assert_eq!(found(&volume, CheckDepth::Structures), [Finding::SharedRedirectSlot { slot: 5 }]);
}

#[test]
fn damaged_superblock_slot_is_one_finding() {
    for address in [cairn_format::layout::SUPERBLOCK_A, cairn_format::layout::SUPERBLOCK_B] {
        let (device, volume, _, _) = small();
        device.corrupt(address * 4096, 512, &mut Rng::new(1));
        let findings = found(&volume, CheckDepth::Structures);
        assert_eq!(findings, [Finding::SuperblockSlot { address }]);
        assert_eq!(findings[0].snapshot(), None, "it is of the whole volume");
    }
}

#[test]
fn check_ends_when_it_is_told_to() {
    let (_device, volume) = fresh(16_384);
    let lun = file(&volume, 4000);
    for round in 0..10 {
        write(&volume, lun, 0, 4000 / (round + 1), round << 20).expect("there is room");
        volume.create_snapshot(&format!("s{round}")).expect("it is made");
    }
    for depth in [CheckDepth::Everything, CheckDepth::Structures] {
        let mut told = 0;
        let report = volume.check_to(depth, &mut |_| {
            told += 1;
            // When it reads the file's data.
            if told < 3 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        let report = report.expect("checking is possible");
        assert!(report.interrupted && report.roots <= 1, "{report:?}");
        assert!(told < 8 && report.blocks < 2000, "it went on for {told} steps: {report:?}");
    }
}

#[test]
fn check_tells_how_far_it_is_up_to_its_end() {
    let (_device, volume, _, _) = small();
    for depth in [CheckDepth::Everything, CheckDepth::Structures] {
        let mut told: Vec<CheckProgress> = Vec::new();
        let report = volume
            .check_to(depth, &mut |at| {
                told.push(at);
                ControlFlow::Continue(())
            })
            .expect("checking is possible");
        assert!(told.is_sorted_by_key(|at| (at.roots, at.blocks)), "{told:?}");
        let last = told.last().expect("it was called");
        assert_eq!((last.roots, last.blocks), (report.roots, report.blocks));
        assert_eq!((last.roots, last.roots_total), (2, 2), "the snapshot and the active state");
        let data = if depth == CheckDepth::Everything { 310 } else { 0 };
        assert!((data + 1..data + 12).contains(&report.blocks), "{report:?}");
        assert!(report.blocks <= last.blocks_total && last.blocks_total < BLOCKS, "{last:?}");
        // Also where nothing but nodes is read.
        assert!(told.len() >= 2 * 4, "{told:?}");
    }
    let mut calls = 0;
    volume.check(&mut |_| calls += 1).expect("checking is possible");
    assert!(calls >= 2);
}

#[test]
fn snapshots_deleted_during_a_check_are_no_damage() {
    let (_device, volume, lun, old) = small();
    let middle = volume.create_snapshot("middle").expect("it is made");
    write(&volume, lun, 20, 10, 7000).expect("there is room");
    volume.create_snapshot("new").expect("it is made");
    let mut done = false;
    let mut delete_and_reuse = |_| {
        if !std::mem::replace(&mut done, true) {
            volume.delete_snapshots(&[old.id, middle.id]).expect("they are deleted");
            // The whole space is overwritten once, so that freed blocks are reused.
            for round in 0..20 {
                write(&volume, lun, 100, 60, (10 + round) << 20).expect("there is room");
                volume.consistency_point().expect("it commits");
            }
            volume.store.forget();
        }
        ControlFlow::Continue(())
    };
    let report =
        volume.check_to(CheckDepth::Everything, &mut delete_and_reuse).expect("checking is possible");
    assert!(done);
    assert_eq!(report.findings, []);
    assert_sound(&volume);
}

#[test]
fn small_files_are_checked_together() {
    const FILES: u64 = 600;
    let device = Arc::new(FaultDevice::new(Volume::device_bytes(4096, Role::Normal)));
    format(&*device, 4096);
    // Memory for some hundred nodes.
    let options = OpenOptions { cache_bytes: 16 << 20, clock: Arc::new(ManualClock::new(Timestamp(1))) };
    let volume = Volume::open(device.clone(), options).expect("the volume opens");
    for number in 0..FILES {
        let file = file(&volume, 3);
        write(&volume, file, 0, 3, number).expect("there is room");
    }
    volume.consistency_point().expect("it commits");
    volume.store.forget();
    device.take_read_batches();
    assert_eq!(found(&volume, CheckDepth::Structures), []);
    let batches = device.take_read_batches();
    assert!(batches < FILES / 8, "{batches} reads that were waited for");
}

#[test]
fn check_that_is_ended_within_a_long_file_ends_there() {
    const BLOCKS: u64 = 16_384;
    let device = Arc::new(FaultDevice::new(Volume::device_bytes(BLOCKS + 4096, Role::Normal)));
    format(&*device, BLOCKS + 4096);
    let volume = open(&device);
    let lun = file(&volume, BLOCKS);
    for first in (0..BLOCKS).step_by(256) {
        write(&volume, lun, first, 256, first).expect("there is room");
    }
    volume.consistency_point().expect("it commits");
    for depth in [CheckDepth::Structures, CheckDepth::Everything] {
        // Findings in the trees of the map, of the inode file and of other files come before.
        let mut told = 0;
        let whole = volume
            .check_to(depth, &mut |_| {
                told += 1;
                ControlFlow::Continue(())
            })
            .expect("checking is possible");
        assert!(told > 4, "{depth:?}: asked {told} times");
        for last in 1..told {
            let mut asked = 0;
            let report = volume
                .check_to(depth, &mut |_| {
                    asked += 1;
                    if asked == last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                })
                .expect("checking is possible");
            assert!(report.interrupted && report.findings.is_empty(), "{depth:?}: {:?}", report.findings);
            assert!(asked == last && report.blocks <= whole.blocks, "{depth:?}: asked {asked} times");
        }
    }
}
