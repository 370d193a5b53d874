//! Structures in memory against plain models of the standard library.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use cairn_base::{Generation, Rng, Vbn};
use cairn_format::layout::{BITS_PER_MAP_BLOCK, SPACE_BLOCKS_MAX, SPACE_BLOCKS_MIN};
use cairn_format::{RedirectRun, SegmentKind};

use super::*;
use crate::commit::space::{
    Redirects, Space, add_destination_areas, device_blocks, fresh_layout, grow_layout,
};
use crate::commit::used::UsedMap;
use crate::memory::overlay::{Arrival, Overlay, Seen};
use crate::read::compare::append_runs;

#[test]
fn redirects_are_a_map_from_blocks_to_slots() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let (mut redirects, mut model) = (Redirects::default(), BTreeMap::new());
        let mut slot = 0;
        for _ in 0..200 {
            let vbn = 1 + rng.below(60);
            if rng.one_in(3) {
                assert_eq!(redirects.remove(Vbn(vbn)), model.remove(&vbn).is_some(), "seed {seed}");
            } else if let Entry::Vacant(vacant) = model.entry(vbn) {
                // Mostly the next slot, as a transfer takes them.
                slot += 1 + rng.below(3) / 2;
                redirects.insert(RedirectRun { vbn: Vbn(vbn), slot, count: 1 });
                vacant.insert(slot);
            }
            for vbn in 0..64 {
                assert_eq!(redirects.get(Vbn(vbn)), model.get(&vbn).copied(), "seed {seed}, block {vbn}");
            }
        }
        let each: BTreeMap<u64, u64> = redirects.each().map(|(vbn, slot)| (vbn.0, slot)).collect();
        assert_eq!(each, model, "seed {seed}");
        assert_eq!(redirects.is_empty(), model.is_empty());
    }
}

#[test]
fn used_map_allocates_every_free_block_once() {
    for seed in 0..30 {
        let mut rng = Rng::new(seed);
        let mut blocks = 100 + rng.below(100_000);
        let mut map = UsedMap::new(blocks);
        let mut model: BTreeSet<u64> = BTreeSet::from([0]);
        for _ in 0..100 {
            match rng.below(10) {
                0 => {
                    blocks += 1 + rng.below(40_000);
                    map.grow(blocks);
                }
                1..=5 => {
                    let count = rng.below(blocks / 4) as usize;
                    let mut taken = Vec::new();
                    let enough = blocks - model.len() as u64 >= count as u64;
                    assert_eq!(map.allocate(count, &mut taken), enough, "seed {seed}");
                    assert_eq!(taken.len(), if enough { count } else { 0 });
                    for vbn in taken {
                        assert!(
                            vbn.0 < blocks && model.insert(vbn.0),
                            "seed {seed}: {vbn:?} was given twice"
                        );
                    }
                }
                _ => {
                    let doomed: Vec<u64> =
                        model.iter().copied().filter(|vbn| *vbn != 0 && rng.one_in(2)).collect();
                    for vbn in doomed {
                        map.clear(Vbn(vbn));
                        model.remove(&vbn);
                    }
                }
            }
            assert_eq!(map.free(), blocks - model.len() as u64, "seed {seed}");
            let probe = rng.below(blocks);
            assert_eq!(map.get(Vbn(probe)), model.contains(&probe));
            assert!(map.get(Vbn(blocks)), "what lies past the end is never free");
        }
    }
}

/// A space with few written blocks, such as a sparse file, or a forged image dump.
#[test]
fn used_map_takes_memory_for_what_is_used_in_parts_alone() {
    const BLOCKS: u64 = 1 << 36;
    let mut map = UsedMap::new(BLOCKS);
    assert_eq!(map.free(), BLOCKS - 1);
    let mut taken = Vec::new();
    assert!(map.allocate(3 * BITS_PER_MAP_BLOCK as usize, &mut taken));
    assert!(taken.iter().map(|vbn| vbn.0).eq(1..=3 * BITS_PER_MAP_BLOCK));
    assert_eq!(map.regions_in_parts(), 1, "that into which the last block went");
    map.clear(Vbn(BITS_PER_MAP_BLOCK + 7));
    assert_eq!(map.regions_in_parts(), 2);
    assert!(map.set(Vbn(BITS_PER_MAP_BLOCK + 7)));
    (2 * BITS_PER_MAP_BLOCK..=3 * BITS_PER_MAP_BLOCK).for_each(|vbn| map.clear(Vbn(vbn)));
    assert_eq!(map.regions_in_parts(), 0, "each is in use or free");
    assert!(map.get(Vbn(2 * BITS_PER_MAP_BLOCK - 1)) && !map.get(Vbn(2 * BITS_PER_MAP_BLOCK)));
}

#[test]
fn block_that_is_marked_again_is_counted_once() {
    let mut map = UsedMap::new(1001);
    assert!((1001..1100).all(|vbn| map.get(Vbn(vbn))), "what lies past the end is never free");
    assert!(map.set(Vbn(5)) && !map.set(Vbn(5)), "it was free once");
    assert_eq!(map.free(), 999);
    let mut taken = Vec::new();
    assert!(!map.allocate(1000, &mut taken) && taken.is_empty(), "there are fewer");
    assert!(map.allocate(999, &mut taken));
    let taken: BTreeSet<u64> = taken.into_iter().map(|vbn| vbn.0).collect();
    assert_eq!(taken, (1..1001).filter(|vbn| *vbn != 5).collect::<BTreeSet<u64>>());
    assert_eq!(map.free(), 0);
}

/// A thin device grows by writes to places that were never written before.
#[test]
fn regions_that_were_written_before_are_used_again_while_half_of_one_is_free() {
    const REGION: u64 = BITS_PER_MAP_BLOCK;
    for (how, enough) in [(0, true), (0, false), (1, true), (1, false), (2, true), (2, false)] {
        let mut map = UsedMap::new(5 * REGION);
        match how {
            0 => assert!(map.allocate(3 * REGION as usize - 1, &mut Vec::new())),
            1 => (1..3 * REGION).for_each(|vbn| assert!(map.set(Vbn(vbn)))),
            _ => (0..5).for_each(|region| {
                let bits = if region < 3 { 0xff } else { 0 };
                map.merge(region, &[bits; REGION as usize / 8]);
            }),
        }
        // One has some room, and one half of its blocks, or not quite; one is full, and two were
        // never written.
        let half = if enough { REGION / 2 } else { REGION / 2 - 1 };
        (REGION..REGION + REGION / 4).for_each(|vbn| map.clear(Vbn(vbn)));
        (2 * REGION..2 * REGION + half).for_each(|vbn| map.clear(Vbn(vbn)));
        let mut taken = Vec::new();
        assert!(map.allocate(1, &mut taken));
        assert_eq!(taken, [Vbn(if enough { 2 } else { 3 } * REGION)], "{how}, {enough}");
    }
}

#[test]
fn replaced_used_map_keeps_what_only_the_old_one_had() {
    let (mut old, mut new) = (UsedMap::new(1000), UsedMap::new(1000));
    [1, 64, 500].into_iter().for_each(|vbn| assert!(old.set(Vbn(vbn))));
    [64, 65].into_iter().for_each(|vbn| assert!(new.set(Vbn(vbn))));
    let gone = old.replace(new);
    assert_eq!(gone, [Vbn(1), Vbn(500)]);
    let used: Vec<u64> = (0..1000).filter(|vbn| old.get(Vbn(*vbn))).collect();
    assert_eq!(used, [0, 1, 64, 65, 500]);
    assert_eq!(old.free(), 995);
}

#[test]
fn runs_of_bits_are_those_that_are_set() {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let words: Vec<u64> = (0..6)
            .map(|_| match rng.below(4) {
                0 => 0,
                1 => u64::MAX,
                2 => u64::MAX << rng.below(64),
                _ => rng.next() & rng.next(),
            })
            .collect();
        let mut runs = Vec::new();
        append_runs(&mut runs, 1000, &words);
        let from_runs: Vec<u64> = runs.iter().flat_map(|(first, count)| first.0..first.0 + count).collect();
        let set: Vec<u64> =
            (0..384).filter(|bit| words[bit / 64] >> (bit % 64) & 1 == 1).map(|b| 1000 + b as u64).collect();
        assert_eq!(from_runs, set, "seed {seed}: {words:x?}");
        assert!(
            runs.windows(2).all(|pair| pair[0].0.0 + pair[0].1 < pair[1].0.0),
            "runs that touch are joined"
        );
    }
}

#[test]
fn overlay_shows_the_last_write_or_hole_of_each_block() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let mut overlay = Overlay::new(Generation(5));
        let lun = FileId(2);
        let mut model: BTreeMap<u64, Option<u64>> = BTreeMap::new();
        let mut next_vbn = 1;
        for order in 1..150 {
            match rng.below(4) {
                0 => {
                    let (first, count) = (rng.below(40), 1 + rng.below(20));
                    overlay.punch(lun, first, count, order, true);
                    model.extend((first..first + count).map(|lba| (lba, None)));
                }
                1 => {
                    let limit = 1 + rng.below(8) as usize;
                    for (file, lba) in overlay.next_unplaced(limit, order) {
                        next_vbn += 1;
                        let launched = overlay.launch(file, lba, Vbn(next_vbn));
                        assert!(launched.is_some(), "seed {seed}: a key names an unplaced block");
                    }
                }
                _ => {
                    let (first, count) = (rng.below(60), 1 + rng.below(4));
                    overlay.write(
                        lun,
                        (first..first + count).map(|lba| Arrival::new(Lba(lba), block(order))).collect(),
                        order,
                    );
                    model.extend((first..first + count).map(|lba| (lba, Some(order))));
                }
            }
            for lba in 0..64 {
                let shown = match overlay.files.get(&lun).map_or(Seen::Below, |changes| changes.see(lba)) {
                    Seen::Block(shown) => {
                        Some(Some(u64::from_le_bytes(shown[..8].try_into().expect("8 bytes"))))
                    }
                    Seen::Hole => Some(None),
                    Seen::Below => None,
                    Seen::Pointer(_) => panic!("nothing has landed"),
                };
                assert_eq!(shown, model.get(&lba).copied(), "seed {seed}, block {lba}");
            }
        }
        // Every block that is only in memory is found by a flush of all orders.
        let waiting = overlay.unplaced;
        assert_eq!(overlay.next_unplaced(usize::MAX, u64::MAX).len() as u64, waiting, "seed {seed}");
    }
}

#[test]
fn each_block_of_an_area_has_one_place_on_the_device_and_keeps_it() {
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let mut is_destination = rng.one_in(2);
        let mut blocks = 300 + rng.below(1500);
        let mut layout = fresh_layout(blocks, is_destination);
        let mut before: BTreeMap<(u8, u64), u64> = BTreeMap::new();
        for _ in 0..5 {
            let space = Space::new(&layout);
            let kinds = [SegmentKind::Space, SegmentKind::Have, SegmentKind::Redirect];
            // A have map that is too short grows to twice its size, so it is less than twice as
            // long as necessary.
            let (need, have) = (blocks.div_ceil(255), space.blocks(SegmentKind::Have));
            assert!(!is_destination || (need..2 * need).contains(&have), "seed {seed}: {have} for {need}");
            let wanted = if is_destination { [blocks, have, blocks] } else { [blocks, 0, 0] };
            assert_eq!(kinds.map(|kind| space.blocks(kind)), wanted, "seed {seed}");
            let mut places: BTreeMap<(u8, u64), u64> = BTreeMap::new();
            for (index, (kind, count)) in kinds.into_iter().zip(wanted).enumerate() {
                for number in 0..count {
                    let (offset, follow) = space.locate(kind, number).expect("it has a place");
                    assert_eq!(offset % 4096, 0);
                    places.insert((index as u8, number), offset / 4096);
                    // The last of those that follow without a gap, and the next one.
                    assert!(
                        follow >= 1 && number + follow <= count,
                        "seed {seed}: {follow} from {number} on"
                    );
                    let last = space.locate(kind, number + follow - 1).expect("it has a place");
                    assert_eq!(last, (offset + (follow - 1) * 4096, 1), "seed {seed}: {number}");
                }
                assert_eq!(space.locate(kind, count), None, "seed {seed}: there is nothing past the end");
            }
            let used: BTreeSet<u64> = places.values().copied().collect();
            assert_eq!(used.len(), places.len(), "seed {seed}: two blocks in one place");
            let fixed = layout.log_start + layout.log_blocks;
            assert!(
                used.first().is_some_and(|first| *first >= fixed),
                "seed {seed}: outside of label and log"
            );
            assert_eq!(used.last().map(|last| last + 1), Some(device_blocks(&layout)), "seed {seed}");
            for (block, place) in &before {
                assert_eq!(places.get(block), Some(place), "seed {seed}: {block:?} stays where it is");
            }
            before = places;
            if rng.one_in(3) {
                is_destination = true;
                add_destination_areas(&mut layout);
            } else {
                let more = 1 + rng.below(700);
                blocks += more;
                grow_layout(&mut layout, more);
            }
        }
        let neighbours = layout.segments.windows(2).all(|pair| pair[0].kind != pair[1].kind);
        assert!(neighbours, "seed {seed}: what can be one segment is one: {:?}", layout.segments);
    }
}

#[test]
fn largest_volume_for_a_device_fits_and_a_larger_one_does_not() {
    for role in [Role::Normal, Role::Destination] {
        let least = Volume::device_bytes(SPACE_BLOCKS_MIN, role);
        assert_eq!(Volume::blocks_for(least, role), SPACE_BLOCKS_MIN);
        for short in [0, 1, 4096, least / 2, least - 4096, least - 1] {
            assert_eq!(Volume::blocks_for(short, role), 0, "{short} bytes are not enough");
        }
        for bytes in [least + 4095, least + 4096, 1 << 27, (1 << 27) + 5, 1 << 32, 12_345_678_901, 1 << 45] {
            let blocks = Volume::blocks_for(bytes, role);
            assert!(Volume::device_bytes(blocks, role) <= bytes, "{bytes} bytes");
            assert!(Volume::device_bytes(blocks + 1, role) > bytes, "{bytes} bytes have room for more");
        }
        assert_eq!(Volume::blocks_for(u64::MAX, role), SPACE_BLOCKS_MAX);
    }
}

#[test]
fn parts_of_the_memory_of_a_volume_are_most_of_it_and_never_more() {
    const BLOCK: u64 = cairn_base::BLOCK_SIZE as u64;
    for bytes in (24..40).flat_map(|power| [1u64 << power, (1 << power) + 12_345, 3 << power]) {
        let memory = crate::limits::Memory::of(bytes);
        let in_blocks = (memory.dirty_blocks + memory.merge_changes as u64) * BLOCK;
        // Two generations, each change with some 200 bytes.
        let changes = 2 * memory.changes_soft * 200;
        let all = memory.data_cache + memory.node_cache + in_blocks + changes;
        assert!(all <= bytes, "{memory:?} are more than {bytes} bytes");
        assert!(all >= bytes / 4 * 3, "{memory:?} are little of {bytes} bytes");
        // In addition, while a mirror follows.
        let fresh = memory.fresh_blocks * BLOCK;
        assert!((bytes / 8..=bytes / 4).contains(&fresh), "{fresh} of {bytes} bytes");
        assert!(memory.changes_hard >= 2 * memory.changes_soft, "writers wait while another is asked for");
    }
}
