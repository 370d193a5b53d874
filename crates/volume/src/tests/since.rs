//! Since maps against a destination that has only the blocks named by `changed_blocks_since`, in
//! long random lives with power cuts; and each trap by its name.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use cairn_base::{Checksum, Rng, SnapshotId, Vbn};
use cairn_device::{DeviceError, Geometry, Operation, Request, Segments};

use super::*;

const RELATIONSHIP: u64 = 7;

/// The blocks in a snapshot's map, by the checksum of their present content.
fn content(volume: &Arc<Volume>, id: SnapshotId) -> HashMap<Vbn, Checksum> {
    let root = volume.snapshot(id).expect("it exists").root;
    let redirects = volume.state.lock().committed.redirects.clone();
    let maps = crate::read::compare::Maps { store: &volume.store, redirects: &redirects };
    blocks_of(volume, &maps.only_in(&root, &[]).expect("its map is readable"))
}

fn blocks_of(volume: &Arc<Volume>, runs: &[Run]) -> HashMap<Vbn, Checksum> {
    let vbns = runs.iter().flat_map(|(first, count)| (first.0..first.0 + count).map(Vbn));
    let blocks = volume.read_blocks(runs).expect("blocks are readable");
    vbns.zip(blocks.iter().map(|block| Checksum::of(&block[..]))).collect()
}

/// A destination that shows exactly the images of its last update: blocks that they do not reach
/// are gone.
struct Destination {
    blocks: HashMap<Vbn, Checksum>,
    complete: bool,
    /// It shows the source's older snapshots too, not only the target.
    keeps_snapshots: bool,
}

impl Destination {
    fn new(keeps_snapshots: bool) -> Self {
        Self { blocks: HashMap::new(), complete: false, keeps_snapshots }
    }

    fn update(&mut self, volume: &Arc<Volume>, changes: &Changes, target: &Snapshot, note: &str) {
        self.blocks.extend(blocks_of(volume, &changes.runs));
        let mut shown = BTreeSet::new();
        let mut images = volume.snapshots();
        images.retain(|image| image.id == target.id || self.keeps_snapshots && image.id < target.id);
        for snapshot in images {
            for (vbn, block) in content(volume, snapshot.id) {
                let here = self.blocks.get(&vbn);
                assert!(here == Some(&block), "{note}: {} lacks {vbn:?} of {}", target.name, snapshot.name);
                shown.insert(vbn);
            }
        }
        self.blocks.retain(|vbn, _| shown.contains(vbn));
        self.complete = true;
    }
}

fn since(volume: &Arc<Volume>, name: &str) -> Snapshot {
    volume.create_snapshot_since(name, RELATIONSHIP).expect("there is room")
}

fn changed(volume: &Arc<Volume>, target: &Snapshot) -> Changes {
    volume.changed_blocks_since(RELATIONSHIP, target.id).expect("it is in flight")
}

fn baseline(volume: &Arc<Volume>) -> (Snapshot, Destination) {
    let snapshot = since(volume, "baseline");
    let mut destination = Destination::new(false);
    let all = volume.changed_blocks(&[], snapshot.id).expect("it exists");
    destination.update(volume, &all, &snapshot, "the baseline");
    (snapshot, destination)
}

#[test]
fn freed_and_reallocated_block_is_sent_though_the_active_map_looks_unchanged() {
    let (_device, volume) = fresh(1024);
    let lun = file(&volume, 200);
    write(&volume, lun, 0, 8, 100).expect("there is room");
    let (base, mut destination) = baseline(&volume);
    let old = content(&volume, base.id);
    assert!(volume.delete_snapshots(&[base.id]).is_ok());
    // As many rounds as it takes to reuse the freed blocks.
    for round in 1..400 {
        write(&volume, lun, round % 8, 1, 1000 * round).expect("there is room");
        volume.consistency_point().expect("it commits");
    }
    let target = since(&volume, "target");
    let new = content(&volume, target.id);
    let reused = new.iter().filter(|(vbn, block)| old.get(vbn).is_some_and(|before| before != *block));
    let reused: Vec<Vbn> = reused.map(|(vbn, _)| *vbn).collect();
    assert!(!reused.is_empty(), "the trap is set");
    let changes = changed(&volume, &target);
    let sent = blocks_of(&volume, &changes.runs);
    assert!(reused.iter().all(|vbn| sent.contains_key(vbn)));
    destination.update(&volume, &changes, &target, "the update");
    assert_sound(&volume);
}

#[test]
fn rollback_sends_the_blocks_that_it_brings_back() {
    let (device, volume) = fresh(4096);
    let lun = file(&volume, 100);
    write(&volume, lun, 0, 50, 100).expect("there is room");
    let early = volume.create_snapshot("early").expect("it is made");
    volume.punch(lun, Lba(0), 50).expect("it is punched");
    let (_, mut destination) = baseline(&volume);
    volume.rollback(early.id).expect("it rolls back");
    volume.delete_snapshots(&[early.id]).expect("it is deleted");
    drop(volume);
    let volume = open(&device);
    let target = since(&volume, "target");
    let changes = changed(&volume, &target);
    destination.update(&volume, &changes, &target, "after the rollback");
    assert_eq!(read(&volume, lun, 0, 2), [100, 101]);
    assert_sound(&volume);
}

#[test]
fn rollback_keeps_the_maps_of_today_and_revives_none_of_the_snapshot() {
    let (device, volume) = fresh(4096);
    let lun = file(&volume, 100);
    volume.create_snapshot_since("other", 8).expect("there is room");
    write(&volume, lun, 0, 10, 100).expect("there is room");
    let early = volume.create_snapshot("early").expect("it is made");
    volume.delete_since(8).expect("it ends");
    let (_, mut destination) = baseline(&volume);
    write(&volume, lun, 5, 10, 200).expect("there is room");
    let lost = since(&volume, "lost");
    let before = volume.rollback(early.id).expect("it rolls back");
    let relationships = [SinceRelationship { relationship: RELATIONSHIP, in_flight: true }];
    assert_eq!(volume.since_relationships(), relationships);
    assert_sound(&volume);
    // The state before the rollback must not own blocks that the active state has now.
    volume.delete_snapshots(&[lost.id, before.id]).expect("they are deleted");
    assert_sound(&volume);
    write(&volume, lun, 50, 50, 300).expect("there is room");
    assert_sound(&volume);
    drop(volume);
    let volume = open(&device);
    assert_eq!(volume.since_relationships(), relationships);
    let target = since(&volume, "target");
    let changes = changed(&volume, &target);
    destination.update(&volume, &changes, &target, "after the rollback");
    assert_sound(&volume);
}

#[test]
fn block_that_a_rollback_brought_back_is_sent_after_another_rollback_to_the_same_snapshot() {
    let (_device, volume) = fresh(4096);
    let lun = file(&volume, 100);
    write(&volume, lun, 0, 50, 100).expect("there is room");
    let early = volume.create_snapshot("early").expect("it is made");
    volume.punch(lun, Lba(0), 50).expect("it is punched");
    let (_, mut destination) = baseline(&volume);
    for _ in 0..2 {
        volume.rollback(early.id).expect("it rolls back");
    }
    let target = since(&volume, "target");
    let changes = changed(&volume, &target);
    destination.update(&volume, &changes, &target, "after two rollbacks");
    assert_sound(&volume);
}

#[test]
fn what_is_in_flight_is_sent_though_the_volume_was_rolled_back_meanwhile() {
    // To a snapshot from before the one in flight, or to that itself, which has the same map.
    for to_before in [true, false] {
        let (_device, volume) = fresh(4096);
        let lun = file(&volume, 100);
        let (_, mut destination) = baseline(&volume);
        write(&volume, lun, 0, 20, 100).expect("there is room");
        let before = volume.create_snapshot("before").expect("it is made");
        write(&volume, lun, 10, 20, 200).expect("there is room");
        let first = since(&volume, "first");
        let expected = changed(&volume, &first);
        volume.rollback(if to_before { before.id } else { first.id }).expect("it rolls back");
        let changes = changed(&volume, &first);
        assert_eq!(changes.runs, expected.runs);
        destination.update(&volume, &changes, &first, "in flight");
        let second = since(&volume, "second");
        let changes = changed(&volume, &second);
        destination.update(&volume, &changes, &second, "after the rollback");
        assert_sound(&volume);
    }
}

#[test]
fn rollback_without_since_maps_takes_no_block() {
    let (_device, volume) = fresh(4096);
    let lun = file(&volume, 100);
    write(&volume, lun, 0, 50, 100).expect("there is room");
    let early = volume.create_snapshot("early").expect("it is made");
    let used = volume.status().used;
    volume.rollback(early.id).expect("it rolls back");
    assert_eq!(volume.status().used, used);
}

#[test]
fn maps_are_freed_with_their_relationship_and_a_base_is_not_pinned() {
    let (_device, volume) = fresh(4096);
    let lun = file(&volume, 1000);
    write(&volume, lun, 0, 10, 100).expect("there is room");
    volume.consistency_point().expect("it commits");
    let before = volume.status().used;
    let base = since(&volume, "base");
    volume.punch(lun, Lba(0), 10).expect("it is punched");
    write(&volume, lun, 0, 10, 200).expect("there is room");
    let second = since(&volume, "second");
    assert!(volume.delete_snapshots(&[base.id]).expect("it is deleted") >= 10, "the base's blocks are free");
    volume.delete_snapshots(&[second.id]).expect("it is deleted");
    assert!(volume.status().used > before, "two maps");
    volume.delete_since(RELATIONSHIP).expect("it ends");
    volume.consistency_point().expect("it commits");
    assert_eq!(volume.status().used, before);
    assert_eq!(volume.since_relationships(), []);
    let generation = volume.status().generation;
    volume.delete_since(RELATIONSHIP).expect("there is nothing to end");
    assert_eq!(volume.status().generation, generation);
    assert_sound(&volume);
}

#[test]
fn map_in_flight_stays_as_it_is_while_the_volume_is_written() {
    let (_device, volume) = fresh(4096);
    let lun = file(&volume, 1000);
    baseline(&volume);
    write(&volume, lun, 0, 10, 100).expect("there is room");
    since(&volume, "first");
    let files = volume.since_files(RELATIONSHIP).expect("it has maps");
    let maps =
        || [files.in_flight.expect("one is in flight"), files.accumulating].map(|file| volume.inode(file));
    let [in_flight, accumulating] = maps().map(|map| map.expect("it is there").tree);
    write(&volume, lun, 20, 10, 100).expect("there is room");
    volume.consistency_point().expect("it commits");
    let [in_flight_now, accumulating_now] = maps().map(|map| map.expect("it is there").tree);
    assert_eq!(in_flight_now, in_flight);
    assert_ne!(accumulating_now, accumulating);
}

#[test]
fn maps_whose_inodes_lie_apart_from_all_others_are_written_along() {
    let (_device, volume) = fresh(4096);
    let lun = file(&volume, 100);
    for _ in 0..40 {
        file(&volume, 1);
    }
    let (_, mut destination) = baseline(&volume);
    let map = volume.since_files(RELATIONSHIP).expect("it has maps").accumulating;
    let block_of = |file| cairn_format::Inode::place(file).0;
    assert_ne!(block_of(map), block_of(lun));
    write(&volume, lun, 0, 10, 100).expect("there is room");
    volume.consistency_point().expect("it commits");
    let target = since(&volume, "target");
    let changes = changed(&volume, &target);
    destination.update(&volume, &changes, &target, "the update");
    assert_sound(&volume);
}

#[test]
fn two_mirrors_have_accounts_of_their_own() {
    const OTHER: u64 = 8;
    let (_device, volume) = fresh(4096);
    let lun = file(&volume, 100);
    let (_, mut destination) = baseline(&volume);
    volume.create_snapshot_since("other", OTHER).expect("there is room");
    write(&volume, lun, 0, 10, 100).expect("there is room");
    // The other one has changes in flight and this one not, and then the other way round.
    volume.create_snapshot_since("others", OTHER).expect("there is room");
    for name in ["first", "second"] {
        write(&volume, lun, 20, 10, 200).expect("there is room");
        let target = since(&volume, name);
        let changes = changed(&volume, &target);
        destination.update(&volume, &changes, &target, name);
        let other = volume.since_relationships().into_iter().find(|since| since.relationship == OTHER);
        if other.expect("it goes on").in_flight {
            let others = volume.snapshot_named("others").expect("it is there");
            assert!(volume.acknowledge_since(OTHER, others.id).expect("it is in flight"));
        }
        let maps = volume.state.lock().since_maps.clone();
        let each: BTreeSet<(u64, u8)> = maps.iter().map(|map| (map.relationship, map.kind as u8)).collect();
        assert_eq!(each.len(), maps.len(), "one map of a kind for each: {maps:?}");
        assert_eq!(maps.len(), 3, "{maps:?}");
    }
    assert_sound(&volume);
}

#[test]
fn update_lists_its_base_and_what_came_between_and_may_end_at_any_of_these() {
    let (_device, volume) = fresh(4096);
    let lun = file(&volume, 100);
    write(&volume, lun, 0, 10, 100).expect("there is room");
    volume.create_snapshot("older").expect("it is made");
    let (base, mut destination) = baseline(&volume);
    write(&volume, lun, 5, 10, 200).expect("there is room");
    let between = volume.create_snapshot("between").expect("it is made");
    let target = since(&volume, "target");
    let expected = [base.id, between.id, target.id];
    for (snapshot, count) in [(&between, 2), (&target, 3)] {
        let changes = changed(&volume, snapshot);
        let listed: Vec<SnapshotId> = changes.snapshots.iter().map(|entry| entry.id).collect();
        assert_eq!(listed, expected[..count]);
        destination.update(&volume, &changes, snapshot, &snapshot.name);
    }
}

#[test]
fn late_acknowledgement_frees_nothing_that_a_newer_snapshot_needs() {
    let (_device, volume) = fresh(4096);
    let lun = file(&volume, 100);
    let (base, _) = baseline(&volume);
    let acknowledge = |target: &Snapshot| volume.acknowledge_since(RELATIONSHIP, target.id);
    assert!(!acknowledge(&base).expect("it is the base"), "nothing is in flight");
    write(&volume, lun, 0, 10, 100).expect("there is room");
    let first = since(&volume, "first");
    write(&volume, lun, 20, 10, 100).expect("there is room");
    let second = since(&volume, "second");
    assert!(!acknowledge(&first).expect("it exists"), "the second one is in flight");
    let sent = changed(&volume, &second);
    assert!(sent.blocks >= 20, "both, as nobody knows what has arrived: {sent:?}");
    assert_eq!(
        sent.snapshots.iter().map(|entry| entry.id).collect::<Vec<_>>(),
        [base.id, first.id, second.id]
    );
    assert!(acknowledge(&second).expect("it exists"));
    assert!(!acknowledge(&second).expect("it exists"), "once");
    assert!(volume.changed_blocks_since(RELATIONSHIP, second.id).is_err());
    let third = since(&volume, "third");
    assert!(changed(&volume, &third).blocks < 10, "only the maps and inodes");
    let newer = volume.create_snapshot("newer").expect("it is made");
    write(&volume, lun, 0, 1, 100).expect("there is room");
    let newest = volume.create_snapshot("newest").expect("it is made");
    assert_eq!(changed(&volume, &third).blocks, changed(&volume, &newer).blocks, "the same content");
    assert!(volume.changed_blocks_since(RELATIONSHIP, newest.id).is_err(), "newer than what is in flight");
    assert!(volume.acknowledge_since(9, third.id).is_err(), "no such relationship");
}

#[test]
fn consistency_point_without_changes_stays_one() {
    let (_device, volume) = fresh(4096);
    baseline(&volume);
    let generation = volume.consistency_point().expect("it commits");
    assert_eq!(volume.consistency_point().expect("it commits"), generation);
    assert_eq!(volume.status().generation, generation);
}

#[test]
fn content_counts_as_unchanged_when_only_the_maps_changed() {
    let (_device, volume) = fresh(4096);
    let lun = file(&volume, 100);
    write(&volume, lun, 0, 10, 100).expect("there is room");
    let (base, _) = baseline(&volume);
    let second = since(&volume, "second");
    volume.acknowledge_since(RELATIONSHIP, second.id).expect("it exists");
    assert_eq!(second.root.changed, base.root.changed);
    assert_eq!(volume.status().changed, base.root.changed);
}

#[test]
fn maps_of_several_regions_grow_with_the_volume() {
    let (_device, volume) = fresh(40_000);
    let lun = file(&volume, 100_000);
    write(&volume, lun, 0, 10, 100).expect("there is room");
    let (base, mut destination) = baseline(&volume);
    // Two regions before, and then one level of nodes more than one node reaches.
    let step = 1000;
    for first in (0..34_000).step_by(step) {
        write(&volume, lun, first, step as u64, 500).expect("there is room");
    }
    let first = since(&volume, "first");
    volume.delete_snapshots(&[base.id]).expect("it is deleted");
    let changes = changed(&volume, &first);
    assert!(changes.blocks >= 34_000);
    destination.update(&volume, &changes, &first, "two regions");
    assert_sound(&volume);
    write(&volume, lun, 50, 10, 900).expect("there is room");
    volume.consistency_point().expect("it commits");
    volume.grow(60_000).expect("the device has room");
    for first in (0..20_000).step_by(step) {
        write(&volume, lun, first, step as u64, 700).expect("there is room");
    }
    // The in-flight changes are not acknowledged, so both generations are joined.
    let second = since(&volume, "second");
    let changes = changed(&volume, &second);
    destination.update(&volume, &changes, &second, "grown");
    volume.rollback(first.id).expect("it rolls back");
    let third = since(&volume, "third");
    let changes = changed(&volume, &third);
    destination.update(&volume, &changes, &third, "rolled back to before it grew");
    assert_sound(&volume);
}

#[test]
fn blocks_of_one_region_are_sent_without_any_of_another() {
    let (_device, volume) = fresh(40_000);
    let lun = file(&volume, 1000);
    write(&volume, lun, 0, 500, 100).expect("there is room");
    let early = volume.create_snapshot("early").expect("it is made");
    write(&volume, lun, 0, 100, 200).expect("there is room");
    volume.consistency_point().expect("it commits");
    // From here on all that is written comes into the second one.
    volume.state.lock().used.fill(0, 1);
    let (_, mut destination) = baseline(&volume);
    for round in 0..3 {
        write(&volume, lun, 50, 100, 900 + round).expect("there is room");
        let target = since(&volume, &format!("n{round}"));
        let changes = changed(&volume, &target);
        assert!(changes.runs.iter().all(|(first, _)| first.0 >= 32_768), "{:?}", changes.runs);
        destination.update(&volume, &changes, &target, "the second region");
    }
    // And blocks that return to the first one are sent, too.
    volume.rollback(early.id).expect("it rolls back");
    write(&volume, lun, 0, 10, 1200).expect("there is room");
    volume.consistency_point().expect("it commits");
    volume.rollback(early.id).expect("it rolls back");
    let target = since(&volume, "back");
    let changes = changed(&volume, &target);
    destination.update(&volume, &changes, &target, "both");
    assert_sound(&volume);
}

#[test]
fn rollback_right_after_a_growth_notes_blocks_of_the_new_space() {
    let before = 126 * 32_768;
    let device = Arc::new(MemoryDevice::new(Volume::device_bytes(before * 2, Role::Normal)));
    format(&*device, before);
    let volume = open(&device);
    let lun = file(&volume, 1000);
    write(&volume, lun, 0, 10, 100).expect("there is room");
    let (base, mut destination) = baseline(&volume);
    write(&volume, lun, 5, 10, 200).expect("there is room");
    volume.consistency_point().expect("it commits");
    volume.grow(before + 40_000).expect("the device has room");
    // All blocks that were free before count as taken.
    volume.state.lock().used.fill(0, 126);
    volume.rollback(base.id).expect("it rolls back");
    write(&volume, lun, 0, 10, 300).expect("there is room");
    let target = since(&volume, "target");
    let changes = changed(&volume, &target);
    assert!(changes.runs.iter().any(|(first, _)| first.0 >= before));
    destination.update(&volume, &changes, &target, "rolled back and grown");
    assert_sound(&volume);
}

#[test]
fn maps_grow_taller_with_the_volume() {
    let before = 126 * 32_768;
    let device = Arc::new(MemoryDevice::new(Volume::device_bytes(before * 2, Role::Normal)));
    format(&*device, before);
    let volume = open(&device);
    let lun = file(&volume, 1000);
    write(&volume, lun, 0, 10, 100).expect("there is room");
    let (early, mut destination) = baseline(&volume);
    write(&volume, lun, 10, 10, 100).expect("there is room");
    let first = since(&volume, "first");
    write(&volume, lun, 20, 10, 100).expect("there is room");
    volume.consistency_point().expect("it commits");
    volume.grow(before + 40_000).expect("the device has room");
    write(&volume, lun, 30, 10, 100).expect("there is room");
    volume.consistency_point().expect("it commits");
    assert_sound(&volume);
    let second = since(&volume, "second");
    let changes = changed(&volume, &second);
    destination.update(&volume, &changes, &second, "one level more");
    volume.rollback(first.id).expect("it rolls back to a lower tree");
    assert_sound(&volume);
    volume.rollback(early.id).expect("it rolls back to a lower tree");
    let third = since(&volume, "third");
    let changes = changed(&volume, &third);
    destination.update(&volume, &changes, &third, "rolled back");
    assert_sound(&volume);
}

/// A consistency point whose only change is the new top of the map: that one is in the map too.
#[test]
fn map_that_grows_taller_has_its_new_top_though_nothing_else_changed() {
    let before = 126 * 32_768;
    let device = Arc::new(MemoryDevice::new(Volume::device_bytes(before + 40_000, Role::Normal)));
    format(&*device, before);
    let volume = open(&device);
    let lun = file(&volume, 1000);
    write(&volume, lun, 0, 10, 100).expect("there is room");
    let empty = file(&volume, 1000);
    let height = volume.state.lock().committed.root.active_map.height;
    volume.grow(before + 40_000).expect("the device has room");
    volume.punch(empty, Lba(500), 10).expect("there is nothing");
    volume.consistency_point().expect("it commits");
    assert_eq!(volume.state.lock().committed.root.active_map.height, height + 1);
    assert_sound(&volume);
    let used = volume.status().used;
    drop(volume);
    let volume = open(&device);
    assert_eq!(volume.status().used, used, "what was allocated is in use");
    write(&volume, lun, 0, 100, 200).expect("there is room");
    volume.consistency_point().expect("it commits");
    assert_sound(&volume);
}

#[test]
fn full_volume_still_updates_its_mirror_and_deletes() {
    let (_device, volume) = fresh(1024);
    let lun = file(&volume, 4096);
    let (base, mut destination) = baseline(&volume);
    let mut lba = 0;
    while write(&volume, lun, lba, 1, 100).is_ok() {
        lba += 1;
    }
    assert!(lba > 100, "{lba}");
    volume.consistency_point().expect("it commits");
    let target = since(&volume, "target");
    let changes = changed(&volume, &target);
    destination.update(&volume, &changes, &target, "full");
    assert!(volume.acknowledge_since(RELATIONSHIP, target.id).expect("it commits"));
    volume.delete_snapshots(&[base.id, target.id]).expect("they are deleted");
    volume.punch(lun, Lba(0), lba / 2).expect("it is punched");
    volume.consistency_point().expect("it commits");
    write(&volume, lun, 0, lba / 4, 200).expect("there is room again");
    let next = since(&volume, "next");
    let changes = changed(&volume, &next);
    destination.update(&volume, &changes, &next, "no longer full");
    volume.delete_since(RELATIONSHIP).expect("it ends");
    assert_sound(&volume);
}

#[test]
fn volume_whose_reserve_is_not_whole_takes_no_further_mirror_and_stays_writable() {
    let (_device, volume) = fresh(1024);
    let lun = file(&volume, 500);
    write(&volume, lun, 0, 500, 100).expect("there is room");
    volume.consistency_point().expect("it commits");
    let reserve = volume.state.lock().reserve();
    take_all_but(&volume, reserve - 1);
    for relationship in 1..100 {
        let refused = volume.create_snapshot_since(&format!("n{relationship}"), relationship);
        assert!(matches!(refused, Err(VolumeError::NoSpace)), "{relationship}: {refused:?}");
    }
    assert_eq!(volume.since_relationships(), []);
    volume.punch(lun, Lba(0), 500).expect("it is punched");
    volume.consistency_point().expect("it commits");
    since(&volume, "later");
    assert_sound(&volume);
}

#[test]
fn mirror_begins_only_where_its_map_has_room_beside_that_of_the_volume() {
    // Each map has 126 blocks, and a consistency point that rewrites them all has three of each.
    let blocks = 126 * 32_768;
    let device = Arc::new(MemoryDevice::new(Volume::device_bytes(blocks, Role::Normal)));
    format(&*device, blocks);
    let volume = open(&device);
    file(&volume, 100);
    for (free, has_room) in [(1000, true), (3 * 126 - 90, false)] {
        take_all_but(&volume, free);
        let outcome = volume.create_snapshot_since(&format!("n{free}"), RELATIONSHIP);
        assert_eq!(outcome.is_ok(), has_room, "{free} free blocks: {outcome:?}");
        assert!(has_room || matches!(outcome, Err(VolumeError::NoSpace)), "{outcome:?}");
        volume.delete_since(RELATIONSHIP).expect("it commits");
    }
}

#[test]
fn rollback_for_whose_maps_there_is_no_room_is_refused_and_one_without_maps_is_not() {
    for mirrors in [0, 4] {
        let (_device, volume) = fresh(1024);
        let lun = file(&volume, 100);
        write(&volume, lun, 0, 10, 100).expect("there is room");
        let early = volume.create_snapshot("early").expect("it is made");
        write(&volume, lun, 0, 10, 200).expect("there is room");
        for relationship in 1..=mirrors {
            volume.create_snapshot_since(&format!("n{relationship}"), relationship).expect("there is room");
        }
        volume.consistency_point().expect("it commits");
        take_all_but(&volume, 6);
        let outcome = volume.rollback(early.id);
        match mirrors {
            0 => drop(outcome.expect("it takes no block")),
            _ => assert!(matches!(outcome, Err(VolumeError::NoSpace)), "{outcome:?}"),
        }
        assert_eq!(read(&volume, lun, 0, 1), [if mirrors == 0 { 100 } else { 200 }]);
        let renamed = volume.rename_snapshot(early.id, "later");
        renamed.expect("it is as writable as before");
    }
}

/// A life of one volume with two mirrors; every step may end in a power cut.
struct Life {
    seed: u64,
    rng: Rng,
    device: Arc<FaultDevice>,
    volume: Arc<Volume>,
    files: Vec<FileId>,
    names: u64,
    mirrors: BTreeMap<u64, Mirror>,
    updates: u64,
}

struct Mirror {
    destination: Destination,
    /// Updates that arrived and whose acknowledgement is in flight.
    late: Vec<SnapshotId>,
}

impl Mirror {
    /// One of the two keeps the source's snapshots, the other one prunes them.
    fn new(relationship: u64) -> Self {
        Self { destination: Destination::new(relationship == 7), late: Vec::new() }
    }
}

impl Life {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        // From nearly always full to never.
        let blocks = 1024 + rng.below(3) * 1500;
        let device = Arc::new(FaultDevice::new(Volume::device_bytes(blocks, Role::Normal)));
        format(&*device, blocks);
        let volume = open(&device);
        let files = (0..3).map(|_| file(&volume, 300)).collect();
        let mirrors = BTreeMap::from([(7, Mirror::new(7)), (8, Mirror::new(8))]);
        Self { seed, rng, device, volume, files, names: 0, mirrors, updates: 0 }
    }

    fn name(&mut self) -> String {
        self.names += 1;
        format!("n{}", self.names)
    }

    fn live(&mut self, steps: u64) {
        for step in 0..steps {
            if self.rng.one_in(12) {
                self.device.cut_after(self.rng.below(25));
            }
            let outcome = self.step();
            if self.device.is_off() || self.rng.one_in(40) {
                self.restart();
            } else if let Err(error) = outcome {
                let refused = matches!(error, VolumeError::NoSpace | VolumeError::NoSuchSnapshot(_));
                assert!(refused, "seed {} step {step}: {error}", self.seed);
            }
            if self.rng.one_in(50) {
                self.check(step);
            }
        }
        self.device.cut_after(u64::MAX);
        self.check(steps);
        self.end();
    }

    fn step(&mut self) -> Result<(), VolumeError> {
        let file = self.files[self.rng.below(3) as usize];
        let (lba, count) = (self.rng.below(280), 1 + self.rng.below(20));
        match self.rng.below(22) {
            0..6 => {
                let salt = self.rng.next() >> 8;
                write(&self.volume, file, lba, count, salt)
            }
            6..8 => self.volume.punch(file, Lba(lba), count * 3 % (300 - lba) + 1),
            8..11 => self.volume.consistency_point().map(drop),
            11 => self.volume.flush(),
            12 => {
                let name = self.name();
                self.volume.create_snapshot(&name).map(drop)
            }
            13..15 => match self.any_snapshot() {
                Some(id) => self.volume.delete_snapshots(&[id]).map(drop),
                None => Ok(()),
            },
            15 => match self.any_snapshot() {
                Some(id) => self.volume.rollback(id).map(drop),
                None => Ok(()),
            },
            16 => {
                let all: Vec<SnapshotId> = self.volume.snapshots().iter().map(|entry| entry.id).collect();
                if self.rng.one_in(3) { self.volume.delete_snapshots(&all).map(drop) } else { Ok(()) }
            }
            17 => self.acknowledge_late(),
            _ => self.update(),
        }
    }

    fn any_snapshot(&mut self) -> Option<SnapshotId> {
        let all = self.volume.snapshots();
        (!all.is_empty()).then(|| all[self.rng.below(all.len() as u64) as usize].id)
    }

    fn update(&mut self) -> Result<(), VolumeError> {
        let relationship = 7 + self.rng.below(2);
        let name = self.name();
        let complete = self.mirrors[&relationship].destination.complete;
        if !complete {
            self.volume.delete_since(relationship)?;
        }
        let target = self.volume.create_snapshot_since(&name, relationship)?;
        // The source keeps working while it sends.
        if self.rng.one_in(3) {
            write(&self.volume, self.files[0], 0, 10, self.rng.next() >> 8)?;
            self.volume.consistency_point()?;
        }
        if complete && self.rng.one_in(4) {
            return Ok(());
        }
        let changes = if complete {
            self.volume.changed_blocks_since(relationship, target.id)?
        } else {
            self.volume.changed_blocks(&[], target.id)?
        };
        let note = format!("seed {} relationship {relationship}", self.seed);
        let Some(mirror) = self.mirrors.get_mut(&relationship) else { return Ok(()) };
        mirror.destination.update(&self.volume, &changes, &target, &note);
        self.updates += 1;
        match self.rng.below(4) {
            0 => Ok(()),
            1 => {
                mirror.late.push(target.id);
                Ok(())
            }
            _ => self.volume.acknowledge_since(relationship, target.id).map(drop),
        }
    }

    fn acknowledge_late(&mut self) -> Result<(), VolumeError> {
        let relationship = 7 + self.rng.below(2);
        let late = self.mirrors.get_mut(&relationship).and_then(|mirror| mirror.late.pop());
        match late {
            Some(target) if self.mirrors[&relationship].destination.complete => {
                self.volume.acknowledge_since(relationship, target).map(drop)
            }
            _ => Ok(()),
        }
    }

    fn restart(&mut self) {
        self.device = Arc::new(self.device.power_cycle(&mut self.rng));
        self.volume = open(&self.device);
        // The baseline or its map may not have survived; a destination that has an image whose map
        // is gone begins again.
        let known = self.volume.since_relationships();
        for (relationship, mirror) in &mut self.mirrors {
            if !known.iter().any(|since| since.relationship == *relationship) {
                *mirror = Mirror::new(*relationship);
            }
        }
        if self.rng.one_in(4) {
            self.check(0);
        }
    }

    fn check(&mut self, step: u64) {
        self.device.cut_after(u64::MAX);
        let report = self.volume.check(&mut |_| {}).expect("checking is possible");
        assert_eq!(report.findings, [], "seed {} step {step}", self.seed);
    }

    /// Without snapshots and relationships as much is in use as the active state has.
    fn end(&mut self) {
        let all: Vec<SnapshotId> = self.volume.snapshots().iter().map(|entry| entry.id).collect();
        self.volume.delete_snapshots(&all).expect("they are deleted");
        self.mirrors.keys().for_each(|relationship| {
            self.volume.delete_since(*relationship).expect("they end");
        });
        self.volume.consistency_point().expect("it commits");
        self.check(0);
        let status = self.volume.status();
        assert_eq!(
            status.used,
            status.active + 1,
            "seed {}: nothing leaks, and vbn 0 is never free",
            self.seed
        );
    }
}

#[test]
fn destination_with_nothing_but_changed_blocks_has_every_image() {
    let mut updates = 0;
    for seed in 0..25 {
        let mut life = Life::new(seed);
        life.live(400);
        updates += life.updates;
    }
    assert!(updates > 25 * 10, "{updates} updates");
}

#[test]
fn step_takes_what_was_in_flight_for_arrived_only_when_its_base_is_the_last_one() {
    for follows in [true, false] {
        let (_device, volume) = fresh(2048);
        let lun = file(&volume, 300);
        let base = since(&volume, "base");
        let step = |name: &str, base: &Snapshot, over: &[SnapshotId]| {
            let step = Step { name, relationship: Some(RELATIONSHIP), base: base.id, over };
            volume.create_snapshot_step(step).expect("there is room")
        };
        write(&volume, lun, 0, 100, 1000).expect("there is room");
        let first = step("first", &base, &[]);
        write(&volume, lun, 200, 5, 2000).expect("there is room");
        // The mirror has the first step now, or still has to get it too.
        let have = if follows { &first } else { &base };
        let second = step("second", have, if follows { &[] } else { std::slice::from_ref(&first.id) });
        let changes = changed(&volume, &second);
        let sent = blocks_of(&volume, &changes.runs);
        let lacking: HashMap<Vbn, Checksum> = content(&volume, second.id)
            .into_iter()
            .filter(|(vbn, block)| content(&volume, have.id).get(vbn) != Some(block))
            .collect();
        assert!(lacking.iter().all(|(vbn, block)| sent.get(vbn) == Some(block)), "follows: {follows}");
        let many = changes.blocks >= 100;
        assert_eq!(many, !follows, "{} blocks are sent", changes.blocks);
        assert_eq!(volume.snapshot(first.id).is_some(), follows, "what is over goes with the step");
        assert!(volume.snapshot(second.id).is_some_and(|second| second.held));
        assert_sound(&volume);
    }
    let (_device, volume) = fresh(1024);
    let base = volume.create_snapshot("base").expect("it is made");
    let step = Step { name: "a", relationship: Some(0), base: base.id, over: &[] };
    for refused in [volume.create_snapshot_since("a", 0), volume.create_snapshot_step(step)] {
        assert!(matches!(refused, Err(VolumeError::Refused(_))), "{refused:?}");
    }
}

/// How a block is spoilt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hurt {
    Wrong,
    Unreadable,
}

/// A volume on a device that can be damaged, with a mirror that has changes in flight (a thousand
/// blocks), and some accumulated.
struct Rotten {
    device: Arc<FaultDevice>,
    volume: Arc<Volume>,
    lun: FileId,
    /// Without snapshots of the mirror and without its maps.
    used: u64,
    early: Snapshot,
    in_flight: Snapshot,
    maps: SinceFiles,
    note: String,
    hurt: Hurt,
    vbn: Vbn,
    offset: u64,
    sound: Block,
}

impl Rotten {
    fn new(blocks: u64, in_flight: bool, level: u8, hurt: Hurt) -> Self {
        let device = Arc::new(FaultDevice::new(Volume::device_bytes(blocks, Role::Normal)));
        format(&*device, blocks);
        let volume = open(&device);
        let lun = file(&volume, 2000);
        write(&volume, lun, 0, 100, 1000).expect("there is room");
        let early = volume.create_snapshot("early").expect("it is made");
        let used = volume.status().used;
        volume.create_snapshot_since("other", 8).expect("there is room");
        since(&volume, "base");
        write(&volume, lun, 0, 100, 2000).expect("there is room");
        let second = since(&volume, "second");
        write(&volume, lun, 0, 100, 3000).expect("there is room");
        volume.consistency_point().expect("it commits");
        let maps = volume.since_files(RELATIONSHIP).expect("it has maps");
        let file = if in_flight { maps.in_flight.expect("it is there") } else { maps.accumulating };
        let tree = volume.inode(file).expect("it is there").tree;
        let committed = volume.state.lock().committed.clone();
        let tree = volume.tree(&committed, file, tree);
        let pointer = tree.pointer_at_level(level, 0).expect("the way to it is whole");
        assert!(!pointer.is_hole());
        let sound = volume.store.read_numbers(&[pointer.vbn], &Default::default()).remove(0);
        let sound = sound.expect("it can be read");
        let place = volume.store.space().locate(cairn_format::SegmentKind::Space, pointer.vbn.0);
        let (offset, _) = place.expect("it is in the block space");
        drop(committed);
        match hurt {
            Hurt::Wrong => device.write_from(offset, &[9; 4096]).expect("it is there"),
            Hurt::Unreadable => device.fail_reads(offset..offset + 4096),
        }
        volume.store.forget();
        let note = format!("{blocks} in flight {in_flight} level {level} {hurt:?}");
        Self {
            device,
            volume,
            lun,
            used,
            early,
            in_flight: second,
            maps,
            note,
            hurt,
            vbn: pointer.vbn,
            offset,
            sound,
        }
    }

    fn restart(&mut self) {
        self.volume = open(&self.device);
        self.goes_on();
    }

    /// Nothing stopped, and nothing is wrong but the block.
    fn goes_on(&self) {
        let note = &self.note;
        assert!(self.volume.status().latched.is_none(), "{note}");
        let report = self.volume.check(&mut |_| {}).expect("checking is possible");
        // The finding for an unreadable place below a top does not say which block it is.
        let is_it = |finding: &&Finding| match finding {
            Finding::DamagedBlock { place: Place::Unknown, .. } => self.hurt == Hurt::Unreadable,
            Finding::DamagedBlock { vbn, .. } => *vbn == self.vbn,
            _ => false,
        };
        let others = report.findings.iter().filter(|finding| !is_it(finding));
        assert_eq!(others.collect::<Vec<_>>(), Vec::<&Finding>::new(), "{note}");
        assert!(self.volume.status().latched.is_none(), "{note}");
    }

    fn is_given_up(&self) {
        assert_eq!(self.volume.since_files(RELATIONSHIP), None, "{}", self.note);
        let others = [SinceRelationship { relationship: 8, in_flight: false }];
        assert_eq!(self.volume.since_relationships(), others, "{}", self.note);
        let kept = self.volume.state.lock().since_maps.clone();
        assert!(kept.iter().all(|map| map.relationship == 8), "{}: {kept:?}", self.note);
    }

    /// The mirror beside it misses no change.
    fn other_goes_on(&self) {
        let other = self.volume.snapshot_named("other").expect("it is there");
        let target = self.volume.create_snapshot_since("others", 8).expect("there is room");
        let changes = self.volume.changed_blocks_since(8, target.id).expect("it is in flight");
        let (before, sent) = (content(&self.volume, other.id), blocks_of(&self.volume, &changes.runs));
        for (vbn, block) in content(&self.volume, target.id) {
            let is_there = [before.get(&vbn), sent.get(&vbn)].contains(&Some(&block));
            assert!(is_there, "{}: {vbn:?}", self.note);
        }
    }

    /// The block has its old content, and none of these states is needed any more.
    fn end(mut self) {
        let note = self.note.clone();
        match self.hurt {
            // After it was freed, the place may have other content now.
            Hurt::Wrong
                if self.device.read(self.offset, 4096).expect("it is there").to_vec() == [9; 4096] =>
            {
                self.device.write_from(self.offset, &self.sound[..]).expect("it is there");
            }
            Hurt::Wrong => {}
            Hurt::Unreadable => self.device.heal_reads(),
        }
        // A restart finds removed files, and never the map again.
        self.restart();
        assert!(self.volume.since_files(RELATIONSHIP).is_none_or(|maps| maps != self.maps), "{note}");
        self.volume.delete_since(RELATIONSHIP).expect("it ends");
        self.volume.delete_since(8).expect("it ends");
        let early = self.early.id;
        let snapshots: Vec<_> =
            self.volume.snapshots().iter().map(|snapshot| snapshot.id).filter(|id| *id != early).collect();
        self.volume.delete_snapshots(&snapshots).expect("they are deleted");
        self.volume.rollback(early).expect("it rolls back");
        let snapshots: Vec<_> =
            self.volume.snapshots().iter().map(|snapshot| snapshot.id).filter(|id| *id != early).collect();
        while self.volume.free_removed().expect("it is freed") {}
        self.volume.delete_snapshots(&snapshots).expect("they are deleted");
        self.volume.consistency_point().expect("it commits");
        assert_eq!(read(&self.volume, self.lun, 0, 2), [1000, 1001], "{note}");
        assert_eq!(self.volume.status().used, self.used, "{note}");
        assert_sound(&self.volume);
    }
}

/// All ways in which a map of a mirror can be spoilt: in flight or not; its data, its leaf and its
/// top; wrong or unreadable.
fn each_rotten(mut live: impl FnMut(Rotten)) {
    for in_flight in [false, true] {
        for hurt in [Hurt::Wrong, Hurt::Unreadable] {
            for level in [0, 1] {
                live(Rotten::new(4096, in_flight, level, hurt));
            }
        }
    }
    for (in_flight, hurt) in [(false, Hurt::Unreadable), (true, Hurt::Wrong)] {
        for level in [0, 1, 2] {
            // A level more.
            live(Rotten::new(127 * 32_768, in_flight, level, hurt));
        }
    }
}

/// It used to make the volume read-only permanently, because of a mirror's bookkeeping.
#[test]
fn writes_and_snapshots_go_on_where_a_since_map_cannot_be_read() {
    each_rotten(|mut rotten| {
        let note = rotten.note.clone();
        for round in 0..3 {
            write(&rotten.volume, rotten.lun, 0, 100, 10_000 + round).expect("there is room");
            rotten.volume.consistency_point().unwrap_or_else(|error| panic!("{note}: {error}"));
            rotten.volume.create_snapshot(&format!("n{round}")).expect("it is made");
            rotten.goes_on();
            rotten.restart();
            assert_eq!(read(&rotten.volume, rotten.lun, 99, 1), [10_099 + round], "{note}");
        }
        // The in-flight map is not read before a request.
        let asked = rotten.volume.changed_blocks_since(RELATIONSHIP, rotten.in_flight.id);
        assert!(asked.is_err(), "{note}");
        write(&rotten.volume, rotten.lun, 0, 1, 20_000).expect("there is room");
        rotten.volume.consistency_point().expect("it commits");
        rotten.is_given_up();
        if rotten.hurt == Hurt::Wrong {
            rotten.other_goes_on();
        }
        rotten.end();
    });
}

#[test]
fn next_snapshot_for_a_mirror_whose_since_map_cannot_be_read_begins_it_anew() {
    each_rotten(|mut rotten| {
        let note = rotten.note.clone();
        write(&rotten.volume, rotten.lun, 0, 10, 20_000).expect("there is room");
        let third = rotten.volume.create_snapshot_since("third", RELATIONSHIP);
        let third = third.unwrap_or_else(|error| panic!("{note}: {error}"));
        rotten.goes_on();
        let maps = rotten.volume.since_files(RELATIONSHIP).expect("it is there");
        assert!(maps.in_flight.is_none() && maps.accumulating > rotten.maps.accumulating, "{note}: {maps:?}");
        assert!(rotten.volume.changed_blocks_since(RELATIONSHIP, third.id).is_err(), "{note}");
        rotten.restart();
        assert_eq!(rotten.volume.since_files(RELATIONSHIP), Some(maps), "{note}");
        // From here on it is as any other.
        let mut destination = Destination::new(false);
        let all = rotten.volume.changed_blocks(&[], third.id).expect("it exists");
        if rotten.hurt == Hurt::Wrong {
            destination.update(&rotten.volume, &all, &third, &note);
            write(&rotten.volume, rotten.lun, 50, 20, 30_000).expect("there is room");
            let fourth = since(&rotten.volume, "fourth");
            let changes = changed(&rotten.volume, &fourth);
            destination.update(&rotten.volume, &changes, &fourth, &note);
        }
        rotten.end();
    });
}

#[test]
fn mirror_whose_since_map_cannot_be_read_ends_and_is_acknowledged() {
    each_rotten(|mut rotten| {
        let note = rotten.note.clone();
        let acknowledged = rotten.volume.acknowledge_since(RELATIONSHIP, rotten.in_flight.id);
        assert!(acknowledged.unwrap_or_else(|error| panic!("{note}: {error}")), "{note}");
        rotten.goes_on();
        rotten.restart();
        rotten.end();
    });
    each_rotten(|mut rotten| {
        let ended = rotten.volume.delete_since(RELATIONSHIP);
        ended.unwrap_or_else(|error| panic!("{}: {error}", rotten.note));
        rotten.is_given_up();
        rotten.goes_on();
        rotten.restart();
        rotten.is_given_up();
        rotten.end();
    });
}

#[test]
fn step_and_rollback_go_on_where_a_since_map_cannot_be_read() {
    each_rotten(|mut rotten| {
        let note = rotten.note.clone();
        let base = rotten.in_flight.id;
        let step = Step { name: "step", relationship: Some(RELATIONSHIP), base, over: &[] };
        let made = rotten.volume.create_snapshot_step(step);
        let made = made.unwrap_or_else(|error| panic!("{note}: {error}"));
        rotten.goes_on();
        rotten.restart();
        rotten.volume.hold_snapshot(made.id, false).expect("it is released");
        rotten.end();
    });
    each_rotten(|mut rotten| {
        let note = rotten.note.clone();
        // With the maps of the past, one of which is the damaged one or an earlier one of that
        // number; and without any.
        for to in [rotten.in_flight.id, rotten.early.id] {
            rotten.volume.rollback(to).unwrap_or_else(|error| panic!("{note}: {error}"));
            rotten.goes_on();
            rotten.restart();
        }
        assert_eq!(read(&rotten.volume, rotten.lun, 0, 2), [1000, 1001], "{note}");
        rotten.is_given_up();
        rotten.end();
    });
}

/// Stranded blocks are freed once the block is mended, without a restart.
#[test]
fn blocks_of_a_since_map_that_was_given_up_are_freed_when_its_node_is_repaired() {
    for hurt in [Hurt::Wrong, Hurt::Unreadable] {
        let rotten = Rotten::new(4096, false, 1, hurt);
        let volume = &rotten.volume;
        write(volume, rotten.lun, 0, 100, 10_000).expect("there is room");
        volume.consistency_point().expect("it commits");
        rotten.is_given_up();
        assert!(!volume.free_removed().expect("it waits"), "what is below is not known");
        let inode = volume.inode(rotten.maps.accumulating).expect("it is there still");
        assert!(inode.removed && !inode.kind.is_since_map(), "{inode:?}");
        let before = volume.status().active;
        let damaged = volume.damaged();
        assert_eq!(damaged.len(), 1, "{damaged:?}");
        match hurt {
            Hurt::Wrong => {
                volume.repair(damaged[0].vbn, damaged[0].checksum, &rotten.sound).expect("it is written");
            }
            // The device returns it by itself.
            Hurt::Unreadable => {
                rotten.device.heal_reads();
                assert_eq!(volume.look_again(&damaged[0]).expect("it is looked at"), Health::Sound);
            }
        }
        while volume.free_removed().expect("it is freed") {}
        volume.consistency_point().expect("it commits");
        assert!(matches!(volume.inode(rotten.maps.accumulating), Err(VolumeError::NoSuchFile(_))));
        assert!(volume.status().active < before);
        rotten.is_given_up();
        assert_sound(volume);
        rotten.end();
    }
}

/// Mirrors used to wait until the node was mended, which they could not do for a node newer than
/// their images: they waited for ever. The node is not needed any more.
#[test]
fn blocks_of_a_since_map_that_was_given_up_are_freed_by_exclusion_though_its_node_stays_rotten() {
    for (blocks, in_flight, level, hurt, ends) in [
        (4096, false, 1, Hurt::Wrong, false),
        (4096, false, 1, Hurt::Unreadable, true),
        (4096, true, 1, Hurt::Unreadable, true),
        (127 * 32_768, false, 2, Hurt::Wrong, false),
        (127 * 32_768, true, 1, Hurt::Unreadable, true),
    ] {
        let mut rotten = Rotten::new(blocks, in_flight, level, hurt);
        let note = rotten.note.clone();
        let volume = rotten.volume.clone();
        assert!(!volume.free_stranded().expect("there is nothing to do"), "{note}");
        // Data that clients have written beside it, some of it in no consistency point.
        write(&volume, rotten.lun, 0, 100, 10_000).expect("there is room");
        match ends {
            true => volume.delete_since(RELATIONSHIP).expect("it ends"),
            false => volume.consistency_point().map(drop).expect("it commits"),
        }
        assert!(!volume.free_removed().expect("it waits"), "{note}");
        let file =
            if in_flight { rotten.maps.in_flight.expect("it is there") } else { rotten.maps.accumulating };
        assert!(volume.inode(file).is_ok(), "{note}");
        write(&volume, rotten.lun, 50, 100, 20_000).expect("there is room");
        assert!(volume.free_stranded().unwrap_or_else(|error| panic!("{note}: {error}")), "{note}");
        assert!(matches!(volume.inode(file), Err(VolumeError::NoSuchFile(_))), "{note}");
        assert!(!volume.free_stranded().expect("there is nothing to do"), "{note}");
        if in_flight {
            // They have it too.
            let others: Vec<_> = volume.snapshots().iter().map(|snapshot| snapshot.id).collect();
            let others: Vec<_> = others.into_iter().filter(|id| *id != rotten.early.id).collect();
            volume.delete_snapshots(&others).expect("they are deleted");
        }
        // Nothing of it is in the active state, which is whole without it.
        let report = volume.check(&mut |_| {}).expect("checking is possible");
        let active = report.findings.iter().filter(|finding| finding.snapshot() == Some(SnapshotId(0)));
        assert_eq!(active.collect::<Vec<_>>(), Vec::<&Finding>::new(), "{note}");
        rotten.restart();
        assert_eq!(read(&rotten.volume, rotten.lun, 49, 2), [10_049, 20_050], "{note}");
        let volume = rotten.volume.clone();
        assert!(!volume.free_removed().expect("nothing is left of it"), "{note}");
        // Freed blocks are reused (a disk returns the later writes), and blocks that a snapshot
        // shows are not.
        if hurt == Hurt::Unreadable {
            rotten.device.heal_reads();
        }
        let shown = content(&volume, rotten.early.id);
        for round in 0..4 {
            write(&volume, rotten.lun, 200, 300, 30_000 + round).expect("there is room");
            volume.consistency_point().expect("it commits");
        }
        assert_eq!(content(&volume, rotten.early.id), shown, "{note}");
        rotten.end();
    }
}

#[test]
fn nothing_is_freed_by_exclusion_while_anything_else_cannot_be_read() {
    let rotten = Rotten::new(4096, false, 1, Hurt::Wrong);
    let volume = &rotten.volume;
    volume.delete_since(RELATIONSHIP).expect("it ends");
    assert!(!volume.free_removed().expect("it waits"));
    volume.consistency_point().expect("it commits");
    // The leaf of a file that is still in use.
    let committed = volume.state.lock().committed.clone();
    let tree = volume.inode(rotten.lun).expect("it is there").tree;
    let leaf = volume.tree(&committed, rotten.lun, tree).pointer_at_level(1, 0).expect("it is whole").vbn;
    let place = volume.store.space().locate(cairn_format::SegmentKind::Space, leaf.0);
    let (offset, _) = place.expect("it is in the block space");
    drop(committed);
    rotten.device.fail_reads(offset..offset + 4096);
    volume.store.forget();
    let used = volume.status().active;
    assert!(volume.free_stranded().is_err());
    assert_eq!(volume.status().active, used);
    assert!(volume.status().latched.is_none());
    assert!(volume.inode(rotten.maps.accumulating).is_ok_and(|inode| inode.removed));
    rotten.device.heal_reads();
    // It is not tried all the time, but again with the next stranded file, or after a repair.
    assert!(!volume.free_stranded().expect("it waits"));
    for block in volume.damaged() {
        let _ = volume.look_again(&block);
    }
    assert!(!volume.free_removed().expect("it waits"));
    assert!(volume.free_stranded().expect("all else is whole"));
    assert_eq!(read(volume, rotten.lun, 0, 2), [3000, 3001]);
    assert_sound(volume);
    rotten.end();
}

/// A snapshot that has the map in its trees keeps its content.
#[test]
fn blocks_that_a_snapshot_has_too_stay_in_use_when_they_are_freed_by_exclusion() {
    let rotten = Rotten::new(4096, false, 1, Hurt::Wrong);
    let volume = &rotten.volume;
    let kept = volume.create_snapshot("kept").expect("it is made");
    let shown = content(volume, kept.id);
    write(volume, rotten.lun, 0, 100, 10_000).expect("there is room");
    volume.consistency_point().expect("it commits");
    assert!(!volume.free_removed().expect("it waits"));
    assert!(volume.free_stranded().expect("all else is whole"));
    for round in 0..6 {
        write(volume, rotten.lun, 200, 500, 30_000 + round).expect("there is room");
        volume.consistency_point().expect("it commits");
        assert_eq!(content(volume, kept.id), shown);
    }
    volume.delete_snapshots(&[kept.id]).expect("it is deleted");
    rotten.end();
}

/// A device on which one place fails, or comes wrong, a number of times.
struct Passing {
    device: Arc<MemoryDevice>,
    place: std::sync::Mutex<(u64, u32, Hurt)>,
}

impl Device for Passing {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn run(&self, batch: &mut [Operation]) {
        for operation in batch.iter_mut().filter(|operation| operation.is_pending()) {
            let mut place = self.place.lock().expect("nobody panics with it");
            let (at, left, hurt) = &mut *place;
            match operation.request() {
                Request::Read { offset, length, .. }
                    if *left > 0 && (*offset..*offset + u64::from(*length)).contains(at) =>
                {
                    let (offset, length) = (*offset, *length);
                    *left -= 1;
                    match hurt {
                        Hurt::Unreadable => {
                            operation.finish(Err(DeviceError::Corrupt { offset, length: length.into() }))
                        }
                        Hurt::Wrong => {
                            let mut data = Segments::default();
                            (0..length / 4096).for_each(|_| data.push_block(block(9)));
                            operation.finish(Ok(data));
                        }
                    }
                }
                _ => self.device.run(std::slice::from_mut(operation)),
            }
        }
    }
}

/// A cable, or a disk that answers a little late: a mirror that holds nothing had all of the volume
/// compared for it.
#[test]
fn since_map_that_can_be_read_at_a_second_try_is_not_given_up() {
    for (level, hurt, times) in [
        (0, Hurt::Unreadable, 1),
        (1, Hurt::Unreadable, 1),
        (0, Hurt::Wrong, 1),
        (1, Hurt::Wrong, 1),
        (0, Hurt::Wrong, 2),
    ] {
        for asks in [false, true] {
            let note = format!("level {level} {hurt:?} {times} times, asks {asks}");
            let memory = Arc::new(MemoryDevice::new(Volume::device_bytes(4096, Role::Normal)));
            format(&*memory, 4096);
            let device = Arc::new(Passing { device: memory, place: (0, 0, hurt).into() });
            let volume = open(&device);
            let lun = file(&volume, 200);
            let base = since(&volume, "base");
            write(&volume, lun, 0, 100, 1000).expect("there is room");
            let second = since(&volume, "second");
            write(&volume, lun, 50, 100, 2000).expect("there is room");
            volume.consistency_point().expect("it commits");
            let maps = volume.since_files(RELATIONSHIP).expect("it has maps");
            let spoilt = if asks { maps.in_flight.expect("it is there") } else { maps.accumulating };
            let tree = volume.inode(spoilt).expect("it is there").tree;
            let committed = volume.state.lock().committed.clone();
            let vbn =
                volume.tree(&committed, spoilt, tree).pointer_at_level(level, 0).expect("it is whole").vbn;
            drop(committed);
            let (at, _) =
                volume.store.space().locate(cairn_format::SegmentKind::Space, vbn.0).expect("it is there");
            *device.place.lock().expect("nobody panics with it") = (at, times, hurt);
            volume.store.forget();
            if asks {
                let _ = volume.changed_blocks_since(RELATIONSHIP, second.id);
            } else {
                write(&volume, lun, 0, 10, 3000).expect("there is room");
                volume.consistency_point().unwrap_or_else(|error| panic!("{note}: {error}"));
            }
            assert_eq!(device.place.lock().expect("nobody panics with it").1, 0, "{note}: it was met");
            assert_eq!(volume.since_files(RELATIONSHIP).is_some(), times == 1, "{note}");
            if times == 1 {
                assert_eq!(volume.since_files(RELATIONSHIP), Some(maps), "{note}");
                // It has all that came.
                let (base, now) =
                    (content(&volume, base.id), volume.create_snapshot("now").expect("it is made"));
                let third = since(&volume, "third");
                let sent = blocks_of(&volume, &changed(&volume, &third).runs);
                let lacks =
                    content(&volume, now.id).into_iter().filter(|(vbn, block)| base.get(vbn) != Some(block));
                assert!(lacks.into_iter().all(|(vbn, block)| sent.get(&vbn) == Some(&block)), "{note}");
            }
            assert_sound(&volume);
        }
    }
}
