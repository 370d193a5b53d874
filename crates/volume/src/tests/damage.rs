//! Damaged nodes: only requests that need one fail.

use std::collections::BTreeMap;
use std::ops::Range;

use cairn_base::{Rng, SnapshotId, Vbn};

use super::*;
use crate::read::tree::Tree;

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

/// Two files of ten leaves each, written and committed; then the third leaf of the first is
/// damaged, and the volume is opened with an empty cache.
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

/// Its blocks used to stay in use until the node was mended, and mirrors got no image meanwhile.
#[test]
fn blocks_of_a_removed_file_with_a_rotten_node_are_freed_by_exclusion() {
    let (_device, volume, [hurt, whole], vbn) = damaged();
    let before = volume.status().used;
    volume.compound().remove(hurt).expect("its name is taken away");
    while volume.free_removed().expect("it goes on") {}
    assert!(volume.inode(hurt).is_ok(), "it can't be freed");
    // Changes that are in no consistency point yet.
    write(&volume, whole, 5, 20, 2000).expect("there is room");
    assert!(volume.free_stranded().expect("all else is whole"));
    assert!(matches!(volume.inode(hurt), Err(VolumeError::NoSuchFile(_))));
    volume.state.lock().settle_releases();
    assert!(volume.status().used + 10 * LEAF <= before + 30, "its blocks are free at once");
    assert_eq!(read(&volume, whole, 4, 2), [1004, 2005]);
    assert_sound(&volume);
    // All of them come to others.
    let new = file(&volume, 12 * LEAF);
    let room = BLOCKS - volume.status().used - 1000;
    write(&volume, new, 0, room.min(12 * LEAF), 50_000).expect("there is room");
    volume.consistency_point().expect("it commits");
    assert_eq!(read(&volume, whole, 25, 10 * LEAF - 25), (1025..1000 + 10 * LEAF).collect::<Vec<_>>());
    assert_eq!(read(&volume, new, 0, 2), [50_000, 50_001]);
    assert_sound(&volume);
    let known = volume.damaged().into_iter().find(|block| block.vbn.0 == vbn);
    assert!(known.is_none_or(|block| volume.look_again(&block).is_ok_and(|health| health == Health::Gone)));
}

/// It exists as before, or is gone with all its blocks.
#[test]
fn removed_file_with_a_rotten_node_is_whole_or_gone_after_a_cut_of_its_exclusion() {
    let device = Arc::new(FaultDevice::new(Volume::device_bytes(BLOCKS, Role::Normal)));
    format(&*device, BLOCKS);
    let volume = open(&device);
    let (lun, hurt) = (file(&volume, 10), file(&volume, 3 * LEAF));
    write(&volume, lun, 0, 10, 100).expect("there is room");
    write(&volume, hurt, 0, LEAF, 1000).expect("there is room");
    // A snapshot has a part of it.
    let early = volume.create_snapshot("early").expect("it is made");
    write(&volume, hurt, LEAF / 2, 2 * LEAF, 2000).expect("there is room");
    volume.consistency_point().expect("it commits");
    let vbn = leaf(&volume, hurt, LEAF);
    volume.compound().remove(hurt).expect("its name is taken away");
    volume.close().expect("it closes");
    device.write_from(offset(vbn), &[9; 4096]).expect("it is there");
    let (mut rng, mut done) = (Rng::new(3), [0, 0]);
    for cut in 0.. {
        let device = Arc::new(device.fork());
        let volume = open(&device);
        while volume.free_removed().expect("it goes on") {}
        write(&volume, lun, 0, 1, 500).expect("there is room");
        volume.flush().expect("it flushes");
        device.cut_after(cut);
        let freed = volume.free_stranded();
        let is_over = !device.is_off();
        assert!(!is_over || freed.expect("all else is whole"));
        drop(volume);
        let device = Arc::new(device.power_cycle(&mut rng));
        let volume = open(&device);
        let note = format!("cut after {cut}");
        assert_eq!(read(&volume, lun, 0, 2), [500, 101], "{note}");
        let image = volume.image(Some(early.id)).expect("it is there");
        assert_eq!(read_image(&image, hurt, 0, LEAF), (1000..1000 + LEAF).collect::<Vec<_>>(), "{note}");
        drop(image);
        let findings = volume.check(&mut |_| {}).expect("checking is possible").findings;
        match volume.inode(hurt) {
            Ok(inode) => {
                assert!(inode.removed && !is_over, "{note}");
                let is_it =
                    |finding: &Finding| matches!(finding, Finding::DamagedBlock { vbn: v, .. } if v.0 == vbn);
                assert!(findings.iter().all(is_it) && !findings.is_empty(), "{note}: {findings:?}");
                done[0] += 1;
            }
            Err(_) => {
                assert_eq!(findings, [], "{note}");
                done[1] += 1;
            }
        }
        volume.delete_snapshots(&[early.id]).expect("it is deleted");
        if volume.inode(hurt).is_err() {
            assert!(volume.status().used < 60, "{note}: {:?}", volume.status());
            assert_sound(&volume);
        }
        if is_over {
            break;
        }
    }
    assert!(done[0] > 2 && done[1] > 1, "{done:?}");
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
    // The log replays the write, above a node that is damaged now.
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
    for is_unreadable in [false, true] {
        let device = Arc::new(FaultDevice::new(Volume::device_bytes(BLOCKS, Role::Normal)));
        format(&*device, BLOCKS);
        let volume = open(&device);
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
        // The damage comes while the volume is open: the free blocks are known.
        match is_unreadable {
            true => device.fail_reads(offset(map)..offset(map) + 4096),
            false => device.write_from(offset(map), &[9; 4096]).expect("it is there"),
        }
        volume.store.forget();
        write(&volume, lun, 0, 10, 200).expect("there is room");
        volume.consistency_point().expect("the blocks that it may hold stay in use");
        assert!(volume.status().latched.is_none());
        assert_eq!(read(&volume, lun, 0, 2), [200, 201]);
        let _ = base;
    }
}

/// A file with a damaged node, its content, and the blocks below that node.
struct Hurt {
    volume: Arc<Volume>,
    file: FileId,
    length: u64,
    model: BTreeMap<u64, u64>,
    below: Range<u64>,
}

impl Hurt {
    /// Files of two and of three levels with blocks here and there, committed; then a node is
    /// damaged, and some others are loaded.
    fn new(rng: &mut Rng) -> Self {
        let (device, volume) = fresh(BLOCKS);
        let length = if rng.one_in(3) { 20 * LEAF } else { 2 * LEAF * LEAF };
        let file = volume.next_file().expect("it is writable");
        let mut change = Change::new();
        change.put(node(file, length, false));
        let mut model = BTreeMap::new();
        for _ in 0..12 {
            let first = Self::place(rng, length);
            for lba in first..(first + 1 + rng.below(3)).min(length) {
                change.write(file, Lba(lba), block(lba + 1));
                model.insert(lba, lba + 1);
            }
        }
        volume.change(change, false).expect("there is room");
        volume.consistency_point().expect("it commits");
        let committed = volume.state.lock().committed.clone();
        let tree = volume.tree(&committed, file, volume.inode(file).expect("it is there").tree);
        let mut nodes = Vec::new();
        tree.walk(
            &mut |pointer, level, at| {
                nodes.extend(
                    (level == 1 || level == 2).then_some((pointer.vbn.0, at..at + LEAF.pow(level.into()))),
                );
                true
            },
            &mut |error| panic!("{error}"),
        );
        let (vbn, below) = nodes[rng.below(nodes.len() as u64) as usize].clone();
        device.write_from(offset(vbn), &[9; 100]).expect("it is there");
        volume.store.forget();
        let hurt = Self { volume, file, length, model, below };
        for lba in hurt.model.keys().filter(|lba| !hurt.below.contains(lba)) {
            if rng.one_in(2) {
                read(&hurt.volume, file, *lba, 1);
            }
        }
        hurt
    }

    fn place(rng: &mut Rng, length: u64) -> u64 {
        let leaves = [0, 1, 2, 7, 19, LEAF - 1, LEAF, LEAF + 1, 2 * LEAF - 1][rng.below(9) as usize];
        (leaves * LEAF + [0, 5, LEAF - 1][rng.below(3) as usize]) % length
    }

    /// Changes blocks or the length. Only changes below the damaged node are refused.
    fn change(&mut self, rng: &mut Rng, salt: u64) {
        let first = Self::place(rng, self.length);
        let most = [1, 3, LEAF, 1024, 1025, self.length][rng.below(6) as usize];
        let range = first..(first + 1 + rng.below(most)).min(self.length);
        let (file, volume) = (self.file, &self.volume);
        let mut change = Change::new();
        let (touched, outcome) = match rng.below(7) {
            0 | 1 => {
                let range = range.start..range.end.min(range.start + 4);
                let mut each = range.clone().rev().collect::<Vec<_>>();
                if rng.one_in(2) {
                    each.reverse();
                }
                each.iter().for_each(|lba| change.write(file, Lba(*lba), block(salt + lba)));
                let outcome = match rng.one_in(3) {
                    true => write(volume, file, range.start, range.end - range.start, salt),
                    false => volume.change(change, false),
                };
                if outcome.is_ok() {
                    self.model.extend(range.clone().map(|lba| (lba, salt + lba)));
                }
                // A block of another leaf does not depend on the node.
                (range, outcome)
            }
            2 | 3 => {
                change.punch(file, Lba(range.start), range.end - range.start);
                let outcome = match rng.one_in(3) {
                    true => volume.punch(file, Lba(range.start), range.end - range.start),
                    false => volume.change(change, rng.one_in(2)),
                };
                if outcome.is_ok() {
                    self.model.retain(|lba, _| !range.contains(lba));
                }
                (range, outcome)
            }
            4 => {
                let length = range.end;
                change.put(node(file, length, false));
                let outcome = volume.change(change, rng.one_in(2));
                let cut = length..self.length;
                if outcome.is_ok() {
                    self.model.retain(|lba, _| *lba < length);
                    self.length = length;
                }
                (cut, outcome)
            }
            5 => {
                // It may become a level taller.
                self.length = self.length.max(2 * LEAF * LEAF);
                change.put(node(file, self.length, false));
                (0..0, volume.change(change, false))
            }
            _ => {
                change.put(node(file, self.length, true));
                let outcome = volume.change(change, true);
                assert!(outcome.is_err(), "it has a damaged node");
                (0..self.length, outcome)
            }
        };
        let is_refused = touched.start.max(self.below.start) < touched.end.min(self.below.end);
        match outcome {
            Err(VolumeError::Damaged { .. }) => {
                assert!(is_refused, "{touched:?} is not below the damaged {:?}", self.below);
            }
            outcome => {
                outcome.expect("it is taken");
                assert!(!is_refused, "{touched:?} is below the damaged {:?}", self.below);
            }
        }
    }
}

#[test]
fn changes_below_a_damaged_node_are_refused_and_no_others_whatever_is_in_memory() {
    for seed in 0..250 {
        let mut rng = Rng::new(seed);
        let mut hurt = Hurt::new(&mut rng);
        for step in 1..12 {
            hurt.change(&mut rng, step * 1_000_000);
            if rng.one_in(4) {
                hurt.volume.consistency_point().expect("it commits");
            }
        }
        hurt.volume.consistency_point().expect("it commits");
        let Hurt { volume, file, length, model, below } = hurt;

        assert_eq!(volume.status().latched.map(|reason| reason.to_string()), None, "seed {seed}");
        assert_eq!(volume.inode(file).expect("it is there").tree.length, length, "seed {seed}");
        for (lba, number) in model.iter().filter(|(lba, _)| !below.contains(lba)) {
            assert_eq!(read(&volume, file, *lba, 1), [*number], "seed {seed}, block {lba}");
        }
    }
}

#[test]
fn file_whose_last_node_is_damaged_takes_what_does_not_need_that_node() {
    const LENGTH: u64 = 2 * LEAF + 10;
    let (device, volume) = fresh(BLOCKS);
    let lun = file(&volume, LENGTH);
    let id = volume.next_file().expect("it is writable");
    let put = |length: u64, owner: u32| {
        let mut change = Change::new();
        let mut inode = node(id, length, false);
        inode.attributes.uid = owner;
        change.put(inode);
        volume.change(change, false)
    };
    put(LENGTH, 1).expect("there is room");
    for file in [lun, id] {
        write(&volume, file, 0, LENGTH, 1000).expect("there is room");
    }
    volume.consistency_point().expect("it commits");
    let [of_lun, of_file] = [lun, id].map(|file| leaf(&volume, file, 2 * LEAF));
    for vbn in [of_lun, of_file] {
        device.write_from(offset(vbn), &[9; 100]).expect("it is there");
    }
    volume.store.forget();
    names_the_node(volume.compound().resize(lun, (LENGTH - 1) * 4096), lun, of_lun);
    names_the_node(put(LENGTH - 1, 1), id, of_file);
    for length in [LENGTH, LENGTH + 5, LEAF * LEAF + 1] {
        volume.compound().resize(lun, length * 4096).expect("nothing is cut off");
        put(length, 7).expect("nothing is cut off");
        volume.consistency_point().expect("it commits");
    }
    assert_eq!(volume.inode(id).expect("it is there").attributes.uid, 7);
    for file in [lun, id] {
        assert_eq!(volume.inode(file).expect("it is there").tree.length, LEAF * LEAF + 1);
        assert_eq!(read(&volume, file, 0, 2), [1000, 1001]);
    }
}

#[test]
fn change_that_makes_a_file_taller_needs_the_nodes_that_it_had_and_no_others() {
    for is_hurt in [false, true] {
        let (device, volume) = fresh(BLOCKS);
        let id = volume.next_file().expect("it is writable");
        let mut change = Change::new();
        change.put(node(id, LEAF * LEAF, false));
        [0, 5 * LEAF, LEAF * LEAF - 1].into_iter().for_each(|lba| change.write(id, Lba(lba), block(1)));
        volume.change(change, false).expect("there is room");
        volume.consistency_point().expect("it commits");
        let vbn = leaf(&volume, id, 5 * LEAF);
        if is_hurt {
            device.write_from(offset(vbn), &[9; 100]).expect("it is there");
        }
        volume.store.forget();
        // Blocks past the old top come first, and start directly after it.
        let lbas = [LEAF * LEAF, 2 * LEAF * LEAF + 3, 5 * LEAF + 1];
        let mut change = Change::new();
        change.put(node(id, 3 * LEAF * LEAF, false));
        lbas.into_iter().for_each(|lba| change.write(id, Lba(lba), block(lba)));
        let outcome = volume.change(change, false);
        if is_hurt {
            names_the_node(outcome, id, vbn);
            volume.consistency_point().expect("nothing of it was taken");
            continue;
        }
        outcome.expect("all that there is can be read");
        assert_eq!(volume.damaged(), []);
        volume.consistency_point().expect("it commits");
        lbas.into_iter().for_each(|lba| assert_eq!(read(&volume, id, lba, 1), [lba]));
        assert_eq!(read(&volume, id, 5 * LEAF, 1), [1]);
        assert_sound(&volume);
    }
}

#[test]
fn long_hole_beside_a_damaged_node_is_taken_and_one_that_reaches_below_it_is_not() {
    let (device, volume) = fresh(BLOCKS);
    let lun = file(&volume, 22 * LEAF);
    write(&volume, lun, 0, 22 * LEAF, 1000).expect("there is room");
    volume.consistency_point().expect("it commits");
    let vbn = leaf(&volume, lun, 10 * LEAF);
    device.write_from(offset(vbn), &[9; 100]).expect("it is there");
    volume.store.forget();
    let long = 10 * LEAF;
    assert!(long > crate::limits::PUNCH_BLOCKS);
    names_the_node(volume.punch(lun, Lba(0), long + 1), lun, vbn);
    names_the_node(volume.punch(lun, Lba(11 * LEAF - 1), long), lun, vbn);
    volume.punch(lun, Lba(0), long).expect("it ends where the node begins");
    volume.punch(lun, Lba(11 * LEAF), long).expect("it begins where the node ends");
    volume.consistency_point().expect("it commits");
    assert_eq!(read(&volume, lun, 0, long), vec![0; long as usize]);
    assert_eq!(read(&volume, lun, 11 * LEAF, long), vec![0; long as usize]);
}

/// Reading each of its leaves would never end.
#[test]
fn hole_over_most_of_a_huge_file_costs_what_the_file_has_there() {
    const HUGE: u64 = 1 << 44;
    let (_device, volume) = fresh(BLOCKS);
    let id = volume.next_file().expect("it is writable");
    let mut change = Change::new();
    change.put(node(id, HUGE, false));
    [0, HUGE / 3, HUGE - 1].into_iter().for_each(|lba| change.write(id, Lba(lba), block(7)));
    volume.change(change, false).expect("there is room");
    volume.consistency_point().expect("it commits");
    volume.store.forget();
    let mut hole = Change::new();
    hole.punch(id, Lba(1), HUGE - 2);
    volume.change(hole, false).expect("there is room");
    volume.consistency_point().expect("it commits");
    for (lba, number) in [(0, 7), (HUGE / 3, 0), (HUGE - 1, 7)] {
        assert_eq!(read(&volume, id, lba, 1), [number], "block {lba}");
    }
    assert_sound(&volume);
}

#[test]
fn ways_to_ranges_of_blocks_come_into_memory_and_no_others() {
    const LEAVES: u64 = 40;
    let (_device, volume) = fresh(BLOCKS);
    let lun = file(&volume, LEAVES * LEAF);
    for leaf in 0..LEAVES {
        write(&volume, lun, leaf * LEAF, 1, 1).expect("there is room");
    }
    volume.consistency_point().expect("it commits");
    let sets: [&[(u64, u64)]; 8] = [
        &[(7 * LEAF - 1, 2)],
        &[(7 * LEAF - 2, 1)],
        &[(20 * LEAF, 10 * LEAF)],
        &[(30 * LEAF, 5), (3 * LEAF, 1), (30 * LEAF + 9, LEAF)],
        &[(39 * LEAF + 2, 0)],
        &[(0, 1)],
        &[(0, LEAF)],
        &[(0, 2 * LEAF + 1)],
    ];
    for ranges in sets {
        volume.store.forget();
        volume.load_paths(lun, ranges);
        let committed = volume.state.lock().committed.clone();
        let tree = volume.tree(&committed, lun, volume.inode(lun).expect("it is there").tree);
        for leaf in 0..LEAVES {
            let is_wanted = ranges
                .iter()
                .any(|(first, count)| first / LEAF <= leaf && leaf * LEAF < first + (*count).max(1));
            assert_eq!(tree.has_leaves(&[leaf]), is_wanted, "leaf {leaf} of {ranges:?}");
        }
    }
}

#[test]
fn caller_that_does_not_want_to_wait_is_told_without_a_read_of_the_device() {
    let device = Arc::new(FaultDevice::new(Volume::device_bytes(BLOCKS, Role::Normal)));
    format(&*device, BLOCKS);
    let volume = open(&device);
    let lun = file(&volume, 10 * LEAF);
    write(&volume, lun, 0, 10, 1000).expect("there is room");
    volume.close().expect("it closes");
    let volume = open(&device);
    volume.store.forget();
    device.take_read_batches();
    assert!(volume.write_ready(lun, vec![(Lba(0), block(1))]).is_none());
    assert!(volume.punch_ready(lun, Lba(0), 1).is_none());
    assert_eq!(device.take_read_batches(), 0);
    volume.load_paths(lun, &[(0, 1)]);
    device.take_read_batches();
    let taken = volume.write_ready(lun, vec![(Lba(0), block(1))]);
    taken.expect("the way is in memory").expect("there is room");
    assert_eq!(device.take_read_batches(), 0);
    assert_eq!(read(&volume, lun, 0, 2), [1, 1001]);
}

#[test]
fn number_whose_inode_block_cannot_be_read_is_given_to_no_file() {
    let (device, volume) = fresh(BLOCKS);
    let lun = file(&volume, 10);
    let committed = volume.state.lock().committed.clone();
    let tree = volume.tree(&committed, crate::known_files::INODE_FILE, committed.root.inode_file);
    assert_eq!(lun.0 / 32, 0, "it is in the block of the root directory");
    let vbn = tree.pointer_at_level(0, lun.0 / 32).expect("it is whole").vbn.0;
    volume.close().expect("it closes");
    let volume = open(&device);
    device.write_from(offset(vbn), &[9; 4096]).expect("it is there");
    volume.store.forget();
    assert!(matches!(volume.next_file(), Err(VolumeError::Damaged { .. })));
    for kind in [FileKind::Lun, FileKind::Directory] {
        let refused = volume.compound().create(kind, 4096);
        assert!(matches!(refused, Err(VolumeError::Damaged { .. })), "{kind:?}: {refused:?}");
    }
    volume.consistency_point().expect("nothing needs that block");
    assert!(volume.status().latched.is_none());
}

/// The visible content of a LUN, block by block; `None` where the read fails.
fn each_block(reads: impl Fn(&mut [BlockRead]), length: u64) -> Vec<Option<u64>> {
    let one = |lba: u64| {
        let mut reads_one = [BlockRead::new(Lba(lba), 1)];
        reads(&mut reads_one);
        let [read] = reads_one;
        let bytes = read.outcome.expect("a read that may wait has an outcome").ok()?.to_vec();
        Some(u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")))
    };
    (0..length).map(one).collect()
}

/// Checks that no block of `images`, by snapshot (`None` is the active state), reads as other
/// content; returns how many reads failed.
fn shows(volume: &Arc<Volume>, lun: FileId, images: &[(Option<SnapshotId>, Vec<u64>)], note: &str) -> usize {
    let mut refused = 0;
    for (snapshot, expected) in images {
        let seen = match snapshot {
            None => each_block(|reads| volume.read(lun, reads, true), expected.len() as u64),
            Some(id) => match volume.image(Some(*id)) {
                Ok(image) => each_block(|reads| image.read(lun, reads, true), expected.len() as u64),
                Err(error) => panic!("{note}: {id:?} is not there: {error}"),
            },
        };
        for (lba, (seen, expected)) in seen.into_iter().zip(expected).enumerate() {
            refused += usize::from(seen.is_none());
            assert!(
                seen.is_none_or(|seen| seen == *expected),
                "{note}: {snapshot:?} shows {seen:?} at {lba}"
            );
        }
    }
    refused
}

/// Damages any of the blocks in use, or a superblock slot, before an operation of an owner or a
/// client. The operation succeeds, also after the next opening, or it is refused without effect. No
/// block ever reads as content that it never had.
#[test]
fn each_operation_on_damaged_media_is_done_or_refused_and_nothing_wrong_is_served() {
    const LENGTH: u64 = 200;
    let (mut done, mut refused, mut unread, mut closed) = ([0; 7], 0, 0, 0);
    for seed in 0..140 {
        let mut rng = Rng::new(seed);
        let device = Arc::new(FaultDevice::new(Volume::device_bytes(2048, Role::Normal)));
        format(&*device, 1024);
        let volume = open(&device);
        let lun = file(&volume, LENGTH);
        let mut active: Vec<u64> = (1000..1000 + LENGTH).collect();
        write(&volume, lun, 0, LENGTH, 1000).expect("there is room");
        let old = (volume.create_snapshot("old").expect("it is made").id, active.clone());
        write(&volume, lun, 0, 100, 5000).expect("there is room");
        (0..100).for_each(|lba| active[lba as usize] = 5000 + lba);
        volume.punch(lun, Lba(150), 10).expect("it is punched");
        active[150..160].fill(0);
        let middle = (volume.create_snapshot("middle").expect("it is made").id, active.clone());
        write(&volume, lun, 20, 20, 9000).expect("there is room");
        (20..40).for_each(|lba| active[lba as usize] = 9000 + lba);
        volume.close().expect("it closes");
        let used: Vec<u64> = {
            let state = volume.state.lock();
            (1..1024).filter(|vbn| state.used.get(Vbn(*vbn))).collect()
        };
        drop(volume);
        for _ in 0..1 + rng.below(4) {
            let space = cairn_format::layout::space_start(1024);
            let at = match rng.one_in(8) {
                true => cairn_format::layout::SUPERBLOCK_B,
                false => space + used[rng.below(used.len() as u64) as usize],
            };
            device.corrupt(at * 4096, 4096, &mut rng);
        }
        let clock = Arc::new(ManualClock::new(Timestamp(1)));
        let opened = |device: Arc<FaultDevice>| {
            Volume::open(device, OpenOptions { cache_bytes: 1 << 20, clock: clock.clone() })
                .unwrap_or_else(|error| panic!("seed {seed}: {error}"))
        };
        let volume = opened(device.clone());
        let takes_changes = volume.status().latched.is_none();
        closed += usize::from(!takes_changes);
        let kind = (seed % 7) as usize;
        let note = format!("seed {seed}, operation {kind}");
        let mut images = vec![(None, active.clone()), (Some(old.0), old.1), (Some(middle.0), middle.1)];
        unread += shows(&volume, lun, &images, &note);
        let at = rng.below(LENGTH - 10);
        let outcome = match kind {
            0 => write(&volume, lun, at, 5, 70_000).map(|()| {
                (at..at + 5).for_each(|lba| images[0].1[lba as usize] = 70_000 + lba);
            }),
            1 => volume.punch(lun, Lba(at), 10).map(|()| images[0].1[at as usize..at as usize + 10].fill(0)),
            2 => volume.create_snapshot("new").map(|new| images.push((Some(new.id), active.clone()))),
            3 => volume.rollback(old.0).map(|kept| {
                images.push((Some(kept.id), active.clone()));
                images[0].1 = images[1].1.clone();
            }),
            4 => volume.delete_snapshots(&[middle.0]).map(|_| drop(images.remove(2))),
            5 => volume.delete_snapshots(&[old.0]).map(|_| drop(images.remove(1))),
            _ => volume.grow(2000),
        };
        let is_done = match outcome.and_then(|()| volume.flush()) {
            Ok(()) => true,
            Err(VolumeError::Damaged { .. }) => false,
            Err(VolumeError::InodesLost(_)) if !takes_changes => false,
            Err(error) => panic!("{note}: {error}"),
        };
        assert!(takes_changes || !is_done, "{note}");
        done[kind] += usize::from(is_done);
        refused += usize::from(!is_done);
        assert_eq!(volume.status().latched.is_none(), takes_changes, "{note}: the volume has stopped");
        let blocks = volume.status().blocks;
        assert_eq!(blocks, if kind == 6 && is_done { 2000 } else { 1024 }, "{note}");
        unread += shows(&volume, lun, &images, &note);
        drop(volume);
        // The next opening shows it as reported.
        let volume = opened(Arc::new(device.power_cycle(&mut rng)));
        assert_eq!(volume.status().blocks, blocks, "{note}");
        let there: Vec<SnapshotId> = volume.snapshots().iter().map(|snapshot| snapshot.id).collect();
        assert_eq!(there, images.iter().filter_map(|(id, _)| *id).collect::<Vec<_>>(), "{note}");
        unread += shows(&volume, lun, &images, &note);
    }
    assert!(done.iter().all(|done| *done >= 3), "{done:?}");
    assert!(refused >= 1 && unread > 100 && closed >= 1, "{refused} {unread} {closed}");
}
