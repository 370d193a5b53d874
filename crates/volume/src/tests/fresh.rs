//! Blocks that stay in memory for a mirror that follows: their content always equals the device's,
//! and their number stays within the limit.

use std::collections::BTreeMap;

use cairn_base::{Rng, Vbn};

use super::*;

/// Blocks that a volume keeps which was given 1 MiB.
const KEPT: u64 = 64;

/// Everything but what a base has.
fn since(volume: &Arc<Volume>, base: &Snapshot, target: &Snapshot) -> Vec<Run> {
    volume.changed_blocks(&[base.id], target.id).expect("they are compared").runs
}

#[test]
fn what_is_written_while_it_is_kept_is_shipped_from_memory_and_is_what_the_device_has() {
    let (_device, volume) = fresh(4096);
    let lun = file(&volume, 1000);
    write(&volume, lun, 0, 10, 100).expect("there is room");
    let base = volume.create_snapshot("base").expect("it is made");
    let all = volume.changed_blocks(&[], base.id).expect("they are compared").runs;
    let (keeps, beside) = (volume.keep_fresh(), volume.keep_fresh());
    assert_eq!(keeps.volume().id(), volume.id());
    assert_eq!(volume.fresh_blocks(&all).0, 0, "what was written before is not in memory");
    write(&volume, lun, 5, 20, 200).expect("there is room");
    volume.flush().expect("it flushes");
    let target = volume.create_snapshot("target").expect("it is made");
    let runs = since(&volume, &base, &target);
    let count: u64 = runs.iter().map(|(_, count)| count).sum();
    assert!((20..KEPT).contains(&count), "{count} blocks, and there is room for all");
    assert_eq!(volume.fresh_blocks(&runs), (count, count), "data and nodes");
    let asked = [&all[..], &runs[..]].concat();
    let from_memory = volume.read_blocks(&asked).expect("they can be read");
    let old: u64 = all.iter().map(|(_, count)| count).sum();
    assert_eq!(volume.fresh_reads(), (count, old));
    drop(beside);
    assert_eq!(volume.fresh_blocks(&runs).0, count, "someone else needs them still");
    drop(keeps);
    assert_eq!(volume.fresh_blocks(&runs), (0, count), "nobody does");
    let from_device = volume.read_blocks(&asked).expect("they can be read");
    assert!(from_memory.iter().zip(&from_device).all(|(kept, stored)| kept[..] == stored[..]));
    assert_eq!(volume.fresh_reads(), (count, old), "reads of the device alone are not counted");
    let again = volume.keep_fresh();
    assert_eq!(volume.fresh_blocks(&runs).0, 0, "what was let go of does not come back");
    write(&volume, lun, 5, 1, 300).expect("there is room");
    let later = volume.create_snapshot("later").expect("it is made");
    assert!(volume.fresh_blocks(&since(&volume, &target, &later)).0 > 0);
    drop(again);
}

#[test]
fn kept_blocks_are_the_last_that_were_written_of_each_number_and_no_more_than_there_is_room_for() {
    for seed in 0..20 {
        let (_device, volume) = fresh(1024);
        let _keeps = volume.keep_fresh();
        let fresh = volume.store.fresh();
        let mut rng = Rng::new(seed);
        let mut newest: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        let numbers = 1 + rng.below(200);
        for write in 1..600 {
            let batch: Vec<(Vbn, Block)> =
                (0..1 + rng.below(3)).map(|n| (Vbn(rng.below(numbers)), block(write * 10 + n))).collect();
            for (vbn, block) in &batch {
                let content = u64::from_le_bytes(block[..8].try_into().expect("eight bytes"));
                newest.insert(vbn.0, (write, content));
            }
            fresh.note(batch.iter().map(|(vbn, block)| (*vbn, block)));
            let asked: Vec<Vbn> = (0..numbers).map(Vbn).collect();
            let found = fresh.find(&asked).expect("blocks are kept");
            let kept = found.iter().flatten().count() as u64;
            assert!(kept <= KEPT, "seed {seed}: {kept} are kept");
            for (vbn, found) in asked.iter().zip(found) {
                let content =
                    found.map(|block| u64::from_le_bytes(block[..8].try_into().expect("eight bytes")));
                let known = newest.get(&vbn.0);
                match content {
                    Some(content) => {
                        assert_eq!(Some(content), known.map(|(_, content)| *content), "seed {seed}")
                    }
                    // Up to three blocks a batch.
                    None => assert!(
                        known.is_none_or(|(when, _)| when + KEPT / 3 <= write),
                        "seed {seed}: {vbn:?} went though it was written lately"
                    ),
                }
            }
        }
        volume.store.fresh().forget();
        assert_eq!(volume.fresh_blocks(&[(Vbn(0), numbers)]), (0, numbers));
    }
}

#[test]
fn nothing_is_kept_of_what_a_destination_receives_nor_once_a_volume_has_given_way() {
    let (_device, source) = fresh(1024);
    let lun = file(&source, 100);
    let keeps = source.keep_fresh();
    write(&source, lun, 0, 10, 100).expect("there is room");
    let target = source.create_snapshot("target").expect("it is made");
    let runs = source.changed_blocks(&[], target.id).expect("they are compared").runs;
    assert!(source.fresh_blocks(&runs).0 > 10);
    let (_other, destination) = redirects::destination_of(&source);
    let _keeps_there = destination.keep_fresh();
    redirects::send(&source, &destination, &target);
    assert_eq!(destination.fresh_blocks(&runs).0, 0);
    let head = source.demote("head", false).expect("the device has room");
    assert!(source.image(Some(head.id)).is_ok());
    assert_eq!(
        source.fresh_blocks(&[(Vbn(0), 1024)]).0,
        0,
        "what stands where is the other side's business now"
    );
    drop(keeps);
}
