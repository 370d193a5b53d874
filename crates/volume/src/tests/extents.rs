//! The allocated parts of a file, and the differences of two of its images, against a plain model.

use std::collections::{BTreeMap, BTreeSet};

use cairn_base::{Generation, Rng};

use super::*;
use crate::memory::overlay::Overlay;
use crate::memory::state::Frozen;

/// Blocks of the file: its tree has three levels.
const LENGTH: u64 = 126 * 126 * 3;

/// The last content written to each block; no other block is allocated.
type Model = BTreeMap<u64, u64>;

/// Checks the extents found for `count` blocks from `first` on against the model: alternating
/// kinds, each as long as possible, and all of them unless there are `limit`.
fn assert_extents(found: &[FileExtent], model: &Model, (first, count): (u64, u64), limit: usize, note: &str) {
    assert!(found.len() <= limit, "{note}: {found:?}");
    let mut at = first;
    for extent in found {
        assert!(extent.count > 0 && at + extent.count <= first + count, "{note}: {found:?}");
        let stretch = at..at + extent.count;
        let allocated = model.range(stretch.clone()).count() as u64;
        assert_eq!(allocated, if extent.hole { 0 } else { extent.count }, "{note}, {stretch:?}: {found:?}");
        at = stretch.end;
        let goes_on = at < first + count && model.contains_key(&at) != extent.hole;
        assert!(!goes_on, "{note}: {extent:?} at {first} is longer: {found:?}");
    }
    assert!(at == first + count || found.len() == limit, "{note}: they end at {at}: {found:?}");
}

/// A place near others, mostly, and of all three levels.
fn place(rng: &mut Rng) -> u64 {
    let near = [0, 100, 126 * 126 - 20, 126 * 126 * 2 + 300, LENGTH - 60][rng.below(5) as usize];
    near + rng.below(60)
}

fn asked(rng: &mut Rng) -> (u64, u64) {
    let first = if rng.one_in(2) { place(rng) } else { rng.below(LENGTH) };
    let most = if rng.one_in(2) { 40 } else { LENGTH };
    (first, (1 + rng.below(most)).min(LENGTH - first))
}

#[test]
fn extents_and_differences_are_what_was_written_and_punched() {
    for seed in 0..12 {
        let mut rng = Rng::new(seed);
        let (_device, volume) = fresh(8192);
        let lun = volume.compound().create(FileKind::Lun, LENGTH * 4096).expect("there is room");
        let mut model = Model::new();
        let mut images: Vec<(Image, Model)> = Vec::new();
        for step in 0..80 {
            match rng.below(10) {
                0..=4 => {
                    let (first, count) = (place(&mut rng), 1 + rng.below(20));
                    let count = count.min(LENGTH - first);
                    write(&volume, lun, first, count, 1000 * step).expect("there is room");
                    model.extend((first..first + count).map(|lba| (lba, 1000 * step + lba)));
                }
                5 | 6 => {
                    let (first, count) = match rng.one_in(3) {
                        true => asked(&mut rng),
                        false => (place(&mut rng), 1 + rng.below(30)),
                    };
                    let count = count.min(LENGTH - first);
                    volume.punch(lun, Lba(first), count).expect("it is punched");
                    model.retain(|lba, _| !(first..first + count).contains(lba));
                }
                7 => drop(volume.consistency_point().expect("it commits")),
                8 => volume.flush().expect("it flushes"),
                _ => {
                    let made = volume.create_snapshot(&format!("s{step}")).expect("it is made");
                    images.push((volume.image(Some(made.id)).expect("it is there"), model.clone()));
                }
            }
            let note = format!("seed {seed}, step {step}");
            for _ in 0..4 {
                let (asked, limit) = (asked(&mut rng), 1 + rng.below(6) as usize);
                let found = volume.extents(lun, Lba(asked.0), asked.1, limit).expect("its nodes can be read");
                assert_extents(&found, &model, asked, limit, &note);
                let (first, count) = (asked.0, asked.1.min(500));
                let there = volume.allocated(lun, Lba(first), count).expect("its nodes can be read");
                let expected: Vec<bool> =
                    (first..first + count).map(|lba| model.contains_key(&lba)).collect();
                assert_eq!(there, expected, "{note}: {count} blocks from {first} on");
                let Some((image, model)) = images.last() else { continue };
                let found = image.extents(lun, Lba(asked.0), asked.1, limit).expect("its nodes can be read");
                assert_extents(&found, model, asked, limit, &format!("{note}, an image"));
            }
            let whole = volume.extents(lun, Lba(0), LENGTH, usize::MAX).expect("its nodes can be read");
            assert_extents(&whole, &model, (0, LENGTH), usize::MAX, &note);
        }
        for (older, before) in &images {
            for (newer, after) in &images {
                let differ = |lba: &u64| before.get(lba) != after.get(lba);
                let touched: BTreeSet<u64> =
                    before.keys().chain(after.keys()).copied().filter(differ).collect();
                let runs = newer.changed_since(older, lun).expect("both can be read");
                let named = runs.iter().flat_map(|(first, count)| first.0..first.0 + count);
                assert_eq!(named.collect::<BTreeSet<_>>(), touched, "seed {seed}");
                let joined = |pair: &[(Lba, u64)]| pair[0].0.0 + pair[0].1 < pair[1].0.0;
                assert!(runs.windows(2).all(joined), "seed {seed}: {runs:?}");
            }
        }
    }
}

fn all_extents(volume: &Arc<Volume>, lun: FileId, first: u64, count: u64) -> Vec<(u64, bool)> {
    let found = volume.extents(lun, Lba(first), count, 9).expect("its nodes can be read");
    found.iter().map(|extent| (extent.count, extent.hole)).collect()
}

#[test]
fn what_a_file_has_grown_by_is_a_hole_though_no_consistency_point_knows_its_length() {
    let (_device, volume) = fresh(4096);
    // A tree that is full, one that is not, one of two levels, and none.
    for (length, written) in [(126, 126), (100, 100), (126 * 126, 130), (50, 0)] {
        let lun = file(&volume, length);
        write(&volume, lun, 0, written, 1).expect("there is room");
        volume.consistency_point().expect("it commits");
        volume.compound().resize(lun, 3 * 126 * 126 * 4096).expect("it grows");
        let mut expected = vec![(written, false), (3 * 126 * 126 - written, true)];
        expected.retain(|(count, _)| *count > 0);
        assert_eq!(all_extents(&volume, lun, 0, 3 * 126 * 126), expected, "{length}");
        assert_eq!(all_extents(&volume, lun, length, 200), [(200, true)], "{length}");
    }
}

#[test]
fn hole_that_ends_where_a_query_begins_is_no_part_of_the_answer() {
    let (_device, volume) = fresh(4096);
    let lun = file(&volume, 1000);
    write(&volume, lun, 0, 100, 1).expect("there is room");
    volume.consistency_point().expect("it commits");
    volume.punch(lun, Lba(10), 20).expect("it is punched");
    assert_eq!(all_extents(&volume, lun, 30, 10), [(10, false)]);
    assert_eq!(all_extents(&volume, lun, 29, 10), [(1, true), (9, false)]);
    assert_eq!(all_extents(&volume, lun, 5, 5), [(5, false)]);
}

#[test]
fn newer_generation_hides_the_one_that_is_being_committed() {
    let mut rng = Rng::new(1);
    for round in 0..60 {
        let (_device, volume) = fresh(1024);
        let lun = file(&volume, 40);
        let mut model = Model::new();
        for generation in 0..2 {
            for _ in 0..1 + rng.below(3) {
                let (first, count) = (rng.below(30), 1 + rng.below(10));
                if rng.one_in(2) {
                    write(&volume, lun, first, count, 1).expect("there is room");
                    model.extend((first..first + count).map(|lba| (lba, 1)));
                } else {
                    volume.punch(lun, Lba(first), count).expect("it is punched");
                    model.retain(|lba, _| !(first..first + count).contains(lba));
                }
            }
            if generation == 0 {
                // As a consistency point does while its blocks are in flight.
                let mut state = volume.state.lock();
                let next = Overlay::new(Generation(state.open.generation.0 + 1));
                let frozen = std::mem::replace(&mut state.open, next);
                state.frozen = Some(Frozen::Draining(Box::new(frozen)));
            }
        }
        for first in 0..40 {
            let asked = (first, 40 - first);
            let found = volume.extents(lun, Lba(first), 40 - first, 99).expect("its nodes can be read");
            assert_extents(&found, &model, asked, 99, &format!("round {round}"));
        }
    }
}

#[test]
fn file_that_is_new_since_an_image_differs_by_its_allocated_blocks() {
    let (_device, volume) = fresh(4096);
    let before = volume.create_snapshot("before").expect("it is made");
    let lun = volume.compound().create(FileKind::Lun, LENGTH * 4096).expect("there is room");
    write(&volume, lun, 126 * 126 - 2, 4, 1).expect("there is room");
    let after = volume.create_snapshot("after").expect("it is made");
    let image = |snapshot: &Snapshot| volume.image(Some(snapshot.id)).expect("it is there");
    let runs = image(&after).changed_since(&image(&before), lun).expect("both can be read");
    assert_eq!(runs, [(Lba(126 * 126 - 2), 4)]);
    assert!(matches!(image(&before).extents(lun, Lba(0), 1, 1), Err(VolumeError::NoSuchFile(_))));
}

#[test]
fn one_query_looks_at_four_gibibytes_of_a_file_that_is_longer() {
    let (_device, volume) = fresh(1024);
    let lun = file(&volume, 3 << 20);
    let hole = [FileExtent { count: 1 << 20, hole: true }];
    assert_eq!(volume.extents(lun, Lba(7), 2 << 20, 9).expect("nothing is read"), hole);
    let made = volume.create_snapshot("made").expect("it is made");
    let image = volume.image(Some(made.id)).expect("it is there");
    assert_eq!(image.extents(lun, Lba(7), 2 << 20, 9).expect("nothing is read"), hole);
}

#[test]
fn what_paths_were_loaded_for_is_written_without_a_wait() {
    let (_device, volume) = fresh(8192);
    let lun = volume.compound().create(FileKind::Lun, LENGTH * 4096).expect("there is room");
    let mut rng = Rng::new(1);
    let places: Vec<(u64, u64)> =
        (0..40).map(|_| (place(&mut rng).min(LENGTH - 20), 1 + rng.below(20))).collect();
    for (first, count) in &places {
        write(&volume, lun, *first, *count, 1).expect("there is room");
    }
    volume.consistency_point().expect("it commits");
    let mut waits = 0;
    for (first, count) in &places {
        volume.store.forget();
        volume.inode(lun).expect("it is there");
        let blocks = || -> Vec<_> { (*first..first + count).map(|lba| (Lba(lba), block(lba))).collect() };
        waits += u32::from(volume.write_ready(lun, blocks()).is_none());
        volume.load_paths(lun, &[(*first, *count), (places[0].0, 1)]);
        let taken = volume.write_ready(lun, blocks()).expect("everything above it is in memory");
        taken.expect("there is room");
        volume.consistency_point().expect("it commits");
    }
    assert!(waits > 20, "{waits} would have waited");
}
