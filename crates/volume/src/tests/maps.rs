//! Active maps of volumes that are larger than one block of map describes, and than one node of a map is over.

use std::collections::BTreeSet;

use cairn_base::{Rng, SnapshotId, Vbn};
use cairn_format::FANOUT;
use cairn_format::layout::BITS_PER_MAP_BLOCK;

use crate::compare::{ACTIVE_MAP, Maps};

use super::*;

/// The map has two nodes below its top; the last region is not whole.
const REGIONS: u64 = FANOUT + 13;
const BLOCKS: u64 = (REGIONS - 1) * BITS_PER_MAP_BLOCK + 5000;

/// A volume with something in a few regions under either node, and snapshots. It was just opened.
fn scattered() -> (Arc<MemoryDevice>, Arc<Volume>) {
    let (device, volume) = fresh(BLOCKS);
    let lun = file(&volume, 400);
    volume.create_snapshot("empty").expect("it is made");
    {
        // Nowhere else is anything free, so that one region after the other is used up.
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
    (device, volume)
}

/// What the tree of a root reaches; no map is asked.
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
        let listed: BTreeSet<Vbn> = runs.into_iter().flat_map(crate::descent::each).collect();
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
