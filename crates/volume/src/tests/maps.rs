//! Active maps of volumes that are larger than one block of map, and larger than one node of a map,
//! describes.

use std::collections::BTreeSet;

use cairn_base::{Rng, SnapshotId, Vbn};
use cairn_format::FANOUT;
use cairn_format::layout::BITS_PER_MAP_BLOCK;

use crate::known_files::ACTIVE_MAP;
use crate::past::evictable::{REACHED_BLOCKS, REACHED_WORDS};
use crate::read::compare::Maps;

use super::*;

/// The map has two nodes below its top; the last region is not whole.
const REGIONS: u64 = FANOUT + 13;
const BLOCKS: u64 = (REGIONS - 1) * BITS_PER_MAP_BLOCK + 5000;

/// A freshly opened volume with blocks in a few regions under either node, and snapshots.
fn scattered() -> (Arc<MemoryDevice>, Arc<Volume>) {
    let (device, volume, _) = scattered_with_its_file();
    (device, volume)
}

fn scattered_with_its_file() -> (Arc<MemoryDevice>, Arc<Volume>, FileId) {
    let (device, volume) = fresh(BLOCKS);
    let lun = file(&volume, 400);
    volume.create_snapshot("empty").expect("it is made");
    {
        // No other blocks are free, so that one region after the other is used up.
        let used = &mut volume.state.lock().used;
        used.fill(0, REGIONS);
        for region in FANOUT - 4..FANOUT + 12 {
            let first = region * BITS_PER_MAP_BLOCK + 300;
            (first..first + 100).for_each(|vbn| used.clear(Vbn(vbn)));
        }
    }
    for round in 0..4 {
        write(&volume, lun, 20 * round, 230, 1000 * round).expect("there is room");
        volume.create_snapshot(&format!("s{round}")).expect("it is made");
    }
    drop(volume);
    let volume = open(&device);
    (device, volume, lun)
}

/// The blocks that the tree of a root reaches; uses no map.
fn reached(volume: &Arc<Volume>, root: SnapshotId) -> BTreeSet<Vbn> {
    let part = Part { root, base: SnapshotId(0) };
    let region = volume.region(part, Position::START, Until::Blocks(u64::MAX), Look::Nothing);
    let region = region.expect("it is open");
    assert!(!region.incomplete);
    region.pieces.iter().map(|piece| piece.vbn).collect()
}

fn reached_by_all(volume: &Arc<Volume>) -> BTreeSet<Vbn> {
    let roots = volume.snapshots().into_iter().map(|snapshot| snapshot.id).chain([SnapshotId(0)]);
    roots.flat_map(|root| reached(volume, root)).collect()
}

#[test]
fn maps_of_many_regions_say_of_each_root_what_it_reaches_and_of_the_volume_what_is_in_use() {
    let (_device, volume) = scattered();
    assert_sound(&volume);
    let all = reached_by_all(&volume);
    let regions: BTreeSet<u64> = all.iter().map(|vbn| vbn.0 / BITS_PER_MAP_BLOCK).collect();
    assert!(regions.first() == Some(&0) && regions.last() > Some(&(FANOUT + 3)), "{regions:?}");
    assert!(all.iter().all(|vbn| volume.state.lock().used.get(*vbn)));
    assert_eq!(volume.status().used, all.len() as u64 + 1, "and nothing else but block 0");

    let redirects = volume.state.lock().committed.redirects.clone();
    let maps = Maps { store: &volume.store, redirects: &redirects };
    let mut rng = Rng::new(1);
    for snapshot in volume.snapshots() {
        let own = reached(&volume, snapshot.id);
        let runs = maps.only_in(&snapshot.root, &[]).expect("its map can be read");
        let listed: BTreeSet<Vbn> = runs.into_iter().flat_map(crate::mirror::descent::each).collect();
        assert_eq!(listed, own, "{}", snapshot.name);
        let mut asked: Vec<Vbn> = all.iter().copied().collect();
        for at in (1..asked.len()).rev() {
            asked.swap(at, rng.below(at as u64 + 1) as usize);
        }
        let held = maps.holds(&snapshot.root, &asked).expect("its map can be read");
        assert!(asked.iter().zip(held).all(|(vbn, held)| held == own.contains(vbn)), "{}", snapshot.name);
    }
}

#[test]
fn nothing_that_a_damaged_node_of_a_map_may_describe_is_free() {
    let (device, volume) = scattered();
    let all = reached_by_all(&volume);
    let root = *volume.image(None).expect("it is there").root();
    let redirects = volume.state.lock().committed.redirects.clone();
    let tree = Maps { store: &volume.store, redirects: &redirects }.tree(root.active_map);
    assert_eq!((tree.file, root.active_map.height), (ACTIVE_MAP, 2));
    for (level, at) in [(1, 0), (1, FANOUT), (2, 0)] {
        let node = tree.pointer_at_level(level, at).expect("it is whole").vbn;
        let offset = (cairn_format::layout::space_start(BLOCKS) + node.0) * 4096;
        let mut whole = vec![0; 4096];
        device.read_into(offset, &mut whole).expect("it is there");
        device.write_from(offset, &[9; 100]).expect("it is there");
        let damaged = open(&device);
        let state = damaged.state.lock();
        assert!(all.iter().all(|vbn| state.used.get(*vbn)), "level {level}, region {at}");
        let below = FANOUT.pow(level.into());
        let regions = (at + below).min(REGIONS) - at;
        assert!(state.used.blocks() - state.used.free() >= (regions - 1) * BITS_PER_MAP_BLOCK);
        drop(state);
        device.write_from(offset, &whole).expect("it is there");
    }
}

/// A block of the active map of a snapshot or of the present state: its place on the device.
fn place_of_map(volume: &Arc<Volume>, root: &cairn_format::Root, level: u8) -> u64 {
    let redirects = volume.state.lock().committed.redirects.clone();
    let tree = Maps { store: &volume.store, redirects: &redirects }.tree(root.active_map);
    let vbn = tree.pointer_at_level(level, 0).expect("it is whole").vbn;
    let place = volume.store.space().locate(cairn_format::SegmentKind::Space, vbn.0);
    place.expect("it is in the block space").0
}

/// The rollback used to succeed, and the first change after it met the unreadable map: the volume
/// became read-only permanently, and no operation could revert that. With a mirror's since maps the
/// rollback itself failed.
#[test]
fn snapshot_whose_map_cannot_be_read_is_not_brought_back_and_the_volume_goes_on() {
    for (level, is_unreadable, mirrored) in
        [(0, false, false), (0, true, true), (1, true, false), (1, false, true)]
    {
        let note = format!("level {level}, unreadable {is_unreadable}, mirrored {mirrored}");
        let device = Arc::new(FaultDevice::new(Volume::device_bytes(4096, Role::Normal)));
        format(&*device, 4096);
        let volume = open(&device);
        let lun = file(&volume, 100);
        if mirrored {
            volume.create_snapshot_since("base", 7).expect("there is room");
        }
        write(&volume, lun, 0, 10, 100).expect("there is room");
        let early = volume.create_snapshot("early").expect("it is made");
        write(&volume, lun, 0, 10, 200).expect("there is room");
        volume.consistency_point().expect("it commits");
        let offset = place_of_map(&volume, &early.root, level);
        match is_unreadable {
            true => device.fail_reads(offset..offset + 4096),
            false => device.write_from(offset, &[9; 4096]).expect("it is there"),
        }
        volume.store.forget();
        write(&volume, lun, 5, 10, 300).expect("there is room");
        let (before, snapshots) = (volume.since_relationships(), volume.snapshots());
        let refused = volume.rollback(early.id).expect_err("its map can't be read");
        assert!(refused.is_of_a_block(), "{note}: {refused}");
        assert!(volume.status().latched.is_none(), "{note}");
        assert_eq!((volume.since_relationships(), volume.snapshots()), (before, snapshots), "{note}");
        assert_eq!(read(&volume, lun, 4, 2), [204, 305], "{note}");
        // Its content is readable all the same.
        let image = volume.image(Some(early.id)).expect("it is there");
        assert_eq!(read_image(&image, lun, 4, 2), [104, 105], "{note}");
        drop(image);
        write(&volume, lun, 0, 1, 400).expect("there is room");
        volume.consistency_point().expect("it goes on");
        drop(volume);
        let volume = open(&device);
        assert_eq!(read(&volume, lun, 0, 1), [400], "{note}");
    }
}

/// A snapshot is the way back when the present map is damaged.
#[test]
fn rollback_brings_back_a_volume_whose_present_map_has_rotted() {
    for (level, mirrored) in [(0, false), (0, true), (1, false), (1, true)] {
        let (device, volume) = fresh(4096);
        let lun = file(&volume, 100);
        if mirrored {
            volume.create_snapshot_since("base", 7).expect("there is room");
        }
        write(&volume, lun, 0, 10, 100).expect("there is room");
        let early = volume.create_snapshot("early").expect("it is made");
        write(&volume, lun, 0, 10, 200).expect("there is room");
        volume.consistency_point().expect("it commits");
        let present = *volume.image(None).expect("it is there").root();
        let offset = place_of_map(&volume, &present, level);
        // The damage comes while the volume is open: the free blocks are known.
        device.write_from(offset, &[9; 4096]).expect("it is there");
        volume.store.forget();
        let note = format!("level {level}, mirrored {mirrored}");
        volume.rollback(early.id).unwrap_or_else(|error| panic!("{note}: {error}"));
        assert!(volume.status().latched.is_none(), "{note}");
        assert_eq!(read(&volume, lun, 0, 2), [100, 101], "{note}");
        write(&volume, lun, 0, 10, 300).expect("there is room");
        volume.consistency_point().unwrap_or_else(|error| panic!("{note}: {error}"));
        if mirrored {
            // All blocks that the mirror lacks are marked, also those restored with the snapshot.
            let base = volume.snapshot_named("base").expect("it is there");
            let (base, now) = (reached(&volume, base.id), reached(&volume, SnapshotId(0)));
            let maps = volume.since_files(7).expect("it goes on");
            let behind = volume.changed_since_beginning(7, maps.accumulating, None).expect("it is known");
            assert!(behind.blocks >= now.difference(&base).count() as u64, "{note}");
        }
        drop(volume);
        assert_eq!(read(&open(&device), lun, 0, 2), [300, 301], "{note}");
    }
}

/// The blocks with a bit, each as often as a snapshot adds it.
fn blocks_of_words<'a>(words: impl IntoIterator<Item = (u64, &'a [u64; REACHED_WORDS])>) -> Vec<Vbn> {
    let bits = |(number, words): (u64, &[u64; REACHED_WORDS])| {
        let at = |bit: u64| words[(bit / 64) as usize] >> (bit % 64) & 1 == 1;
        let bits: Vec<u64> = (0..REACHED_BLOCKS).filter(|bit| at(*bit)).collect();
        bits.into_iter().map(move |bit| Vbn(number * REACHED_BLOCKS + bit))
    };
    let mut blocks: Vec<Vbn> = words.into_iter().flat_map(bits).collect();
    blocks.sort_unstable();
    blocks
}

#[test]
fn maps_and_trees_agree_on_the_blocks_that_each_reader_lacks() {
    let (_device, volume, lun) = scattered_with_its_file();
    let ids: Vec<SnapshotId> = volume.snapshots().into_iter().map(|snapshot| snapshot.id).collect();
    // A branch: the state before is kept as a snapshot of its own.
    volume.rollback(ids[2]).expect("it goes back");
    write(&volume, lun, 7, 90, 9000).expect("there is room");
    let last = volume.create_snapshot("last").expect("it is made").id;
    for have in [vec![], ids[..1].to_vec(), ids[..3].to_vec(), vec![ids[1], ids[4]], ids.clone()] {
        let reached = volume.reached_up_to(last).expect("it is there");
        let common: BTreeSet<SnapshotId> = have.iter().copied().collect();
        let lacked = reached.lacked_in(&common, 0..reached.map_blocks()).expect("maps");
        let all = lacked.iter().flat_map(|(number, words)| words.iter().map(|words| (*number, &**words)));
        let of_maps = blocks_of_words(all);
        let mut of_trees = Vec::new();
        reached.checksums_lacked_by(&common, &mut |vbn, _| of_trees.push(vbn)).expect("trees");
        of_trees.sort_unstable();
        assert_eq!(of_maps, of_trees, "{have:?}");
        let mut visited = Vec::new();
        let mut visit = |number: u64, words: &[u64; REACHED_WORDS]| visited.push((number, Box::new(*words)));
        reached.lacked_by(&common, &mut visit).expect("maps");
        assert_eq!(blocks_of_words(visited.iter().map(|(number, words)| (*number, &**words))), of_maps);
        let once: BTreeSet<Vbn> = of_maps.into_iter().collect();
        let changes = volume.changed_blocks(&have, last).expect("maps");
        let changed = changes.runs.iter().flat_map(|(first, count)| (0..*count).map(|n| Vbn(first.0 + n)));
        assert!(once.iter().copied().eq(changed), "{have:?}");
        // All of them, in windows and one by one.
        let live: BTreeSet<Vbn> = volume
            .changed_blocks(&[], last)
            .expect("maps")
            .runs
            .iter()
            .flat_map(|(first, count)| (0..*count).map(|n| Vbn(first.0 + n)))
            .collect();
        let mut found = BTreeSet::new();
        for first in (0..reached.map_blocks()).step_by(7) {
            let words = reached.words_in(first..first + 7).expect("maps");
            assert!(words.keys().all(|number| (first..first + 7).contains(number)));
            found.extend(blocks_of_words(words.iter().map(|(number, words)| (*number, &**words))));
            for (number, words) in &words {
                assert_eq!(reached.words(*number).expect("a map"), *words);
            }
        }
        assert_eq!(found, live);
    }
}
