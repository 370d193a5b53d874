//! When freed blocks become free: at once without readers, after short readers, and never later
//! than an image needs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cairn_base::{Generation, Rng, Vbn};
use cairn_format::Root;

use super::*;
use crate::commit::release::Releases;
use crate::memory::roots::Committed;
use crate::memory::roots::Reader;

/// A volume of 1024 blocks whose LUN of `taken` blocks is written and committed.
fn taken(taken: u64) -> (Arc<Volume>, FileId) {
    let (_device, volume) = fresh(1024);
    let lun = file(&volume, taken);
    write(&volume, lun, 0, taken, 100).expect("there is room");
    volume.consistency_point().expect("it commits");
    (volume, lun)
}

#[test]
fn writer_waits_for_a_short_reader_instead_of_hearing_no_space() {
    let (volume, lun) = taken(300);
    // A slow read: it has the root, as every read of the active state has while it runs.
    let reading = volume.state.lock().committed.clone();
    write(&volume, lun, 0, 300, 1000).expect("there is room");
    volume.consistency_point().expect("it commits");
    assert!(volume.state.lock().releases.blocks() >= 300, "what the read may show is kept back");
    let free = volume.status().free;
    let more = free + 100;
    let other = volume.compound().create(FileKind::Lun, more * 4096).expect("there is room for a file");
    let ended = volume.state.lock().ended.clone();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write(&volume, other, 0, more, 5));
        let deadline = Instant::now() + Duration::from_secs(30);
        while ended.waiting() == 0 && !writer.is_finished() {
            assert!(Instant::now() < deadline, "the writer neither waits nor ends");
            std::thread::yield_now();
        }
        let state = volume.state.lock();
        assert!(state.has_room_for(1) && !state.may_take(1), "nobody gets past the one who waits");
        drop(state);
        drop(reading);
        writer.join().expect("the writer ends").expect("it was only a reader that had the room");
    });
    assert_eq!(read(&volume, other, more - 1, 1), [5 + more - 1]);
    assert!(volume.state.lock().may_take(1), "the turn is over");
    assert_sound(&volume);
}

#[test]
fn hole_waits_for_a_short_reader_instead_of_hearing_no_space() {
    let (volume, lun) = taken(300);
    let reading = volume.state.lock().committed.clone();
    write(&volume, lun, 0, 300, 1000).expect("there is room");
    volume.consistency_point().expect("it commits");
    let mut others = Vec::new();
    let ended = {
        let mut state = volume.state.lock();
        let most = state.used.free() as usize - 10;
        assert!(state.used.allocate(most, &mut others));
        assert!(!state.has_room_to_free(0), "all but what the reader keeps is taken");
        state.ended.clone()
    };
    let outcome = std::thread::scope(|scope| {
        let punch = scope.spawn(|| volume.punch(lun, Lba(0), 10));
        let deadline = Instant::now() + Duration::from_secs(30);
        while ended.waiting() == 0 && !punch.is_finished() && Instant::now() < deadline {
            std::thread::yield_now();
        }
        drop(reading);
        punch.join().expect("it ends")
    });
    outcome.expect("it was only a reader that had the room");
    others.iter().for_each(|vbn| volume.state.lock().used.clear(*vbn));
    volume.consistency_point().expect("it commits");
    assert_eq!(read(&volume, lun, 0, 10), [0; 10]);
    assert_sound(&volume);
}

#[test]
fn block_that_was_placed_and_given_up_in_one_generation_waits_for_short_readers() {
    let (volume, lun) = taken(10);
    let reading = volume.state.lock().committed.clone();
    write(&volume, lun, 3, 1, 500).expect("there is room");
    volume.place(1, u64::MAX).expect("it is written");
    // A read finds this pointer in memory, of a generation that is newer than the root that it
    // holds.
    let crate::memory::overlay::Seen::Pointer(pointer) = volume.state.lock().changes_of(lun).see(3) else {
        panic!("the block has its place");
    };
    write(&volume, lun, 3, 1, 600).expect("there is room");
    volume.consistency_point().expect("it commits");
    assert!(volume.state.lock().used.get(pointer.vbn), "the read may still look there");
    drop(reading);
    volume.state.lock().settle_releases();
    assert!(!volume.state.lock().used.get(pointer.vbn), "nobody can see it any more");
}

#[test]
fn writer_never_waits_for_an_image() {
    let (volume, lun) = taken(300);
    let image = volume.image(None).expect("there is one");
    write(&volume, lun, 0, 300, 1000).expect("there is room");
    volume.consistency_point().expect("it commits");
    let more = volume.status().free + 100;
    let other = volume.compound().create(FileKind::Lun, more * 4096).expect("there is room for a file");
    // The image stays open while this thread waits.
    let refused = write(&volume, other, 0, more, 5);
    assert!(matches!(refused, Err(VolumeError::NoSpace)), "{refused:?}");
    assert!(volume.state.lock().may_take(1), "what was kept for it is not kept any more");
    assert_eq!(read_image(&image, lun, 0, 300), (100..400).collect::<Vec<_>>());
    drop(image);
    write(&volume, other, 0, more, 5).expect("the room is there once the image is closed");
    assert_sound(&volume);
}

#[test]
fn image_of_a_deleted_snapshot_holds_back_only_what_it_shows() {
    let (volume, lun) = taken(200);
    let snapshot = volume.create_snapshot("short-lived").expect("it is made");
    let image = volume.image(Some(snapshot.id)).expect("it exists");
    volume.delete_snapshots(&[snapshot.id]).expect("it is deleted");
    // Far more than the volume has: all of it was born after the image.
    for round in 1..40 {
        write(&volume, lun, 0, 200, 1000 * round).expect("the image does not hold this");
        volume.consistency_point().expect("it commits");
    }
    assert!(volume.state.lock().releases.groups() <= 2, "what waits for the same image waits together");
    assert_eq!(read_image(&image, lun, 0, 200), (100..300).collect::<Vec<_>>());
    let with = volume.status().used;
    drop(image);
    write(&volume, lun, 0, 1, 1).expect("there is room");
    volume.consistency_point().expect("it commits");
    let without = volume.status().used;
    assert!(with - without >= 200, "its own blocks come free when it is closed: {with} and {without} in use");
    assert_sound(&volume);
}

#[test]
fn image_stays_whole_when_its_snapshot_is_deleted_after_a_check() {
    let (volume, lun) = taken(200);
    let snapshot = volume.create_snapshot("short-lived").expect("it is made");
    let image = volume.image(Some(snapshot.id)).expect("it exists");
    // It checks all images, this one as well.
    assert_sound(&volume);
    volume.delete_snapshots(&[snapshot.id]).expect("it is deleted");
    for round in 1..10 {
        write(&volume, lun, 0, 200, 1000 * round).expect("the image does not hold this");
        volume.consistency_point().expect("it commits");
    }
    assert_eq!(read_image(&image, lun, 0, 200), (100..300).collect::<Vec<_>>());
}

#[test]
fn readers_that_ended_are_not_remembered() {
    let (volume, lun) = taken(10);
    let readers = || volume.state.lock().readers.len();
    for round in 0..50 {
        write(&volume, lun, 0, 1, round).expect("there is room");
        volume.consistency_point().expect("it commits");
    }
    assert!(readers() <= 2, "{} after consistency points", readers());
    for _ in 0..50 {
        drop(volume.image(None).expect("there is one"));
    }
    assert!(readers() <= 2, "{} after images of one root", readers());
    let images: Vec<Image> = (0..50).map(|_| volume.image(None).expect("there is one")).collect();
    assert!(readers() <= 2, "{} while {} images of one root are held", readers(), images.len());
}

#[test]
fn image_does_not_hold_back_snapshots_that_come_and_go_after_it() {
    let (volume, lun) = taken(150);
    let first = volume.create_snapshot("first").expect("it is made");
    let image = volume.image(Some(first.id)).expect("it exists");
    volume.delete_snapshots(&[first.id]).expect("it is deleted");
    for round in 1..40 {
        write(&volume, lun, 0, 150, 1000 * round).expect("the image does not hold this");
        let snapshot = volume.create_snapshot("hourly").expect("it is made");
        write(&volume, lun, 0, 150, 1000 * round + 500).expect("the image does not hold this");
        volume.delete_snapshots(&[snapshot.id]).expect("it is deleted");
    }
    assert_eq!(read_image(&image, lun, 0, 150), (100..250).collect::<Vec<_>>());
    assert_sound(&volume);
}

#[test]
fn image_of_a_snapshot_from_before_a_rollback_stays_whole() {
    let (volume, lun) = taken(100);
    let old = volume.create_snapshot("old").expect("it is made");
    write(&volume, lun, 0, 100, 1000).expect("there is room");
    let kept = volume.rollback(old.id).expect("it rolls back");
    let (of_old, of_kept) = (volume.image(Some(old.id)), volume.image(Some(kept.id)));
    let (of_old, of_kept) = (of_old.expect("it exists"), of_kept.expect("it exists"));
    volume.delete_snapshots(&[old.id, kept.id]).expect("they are deleted");
    for round in 2..30 {
        write(&volume, lun, 0, 100, 1000 * round).expect("the images do not hold this");
        volume.consistency_point().expect("it commits");
    }
    assert_eq!(read_image(&of_old, lun, 0, 100), (100..200).collect::<Vec<_>>());
    assert_eq!(read_image(&of_kept, lun, 0, 100), (1000..1100).collect::<Vec<_>>());
    assert_sound(&volume);
}

/// A reader of the model: its identity, the generation of its root, and whether it is an image.
struct Modelled {
    root: Option<Arc<Committed>>,
    reader: Reader,
    generation: u64,
    is_image: bool,
}

/// Blocks are added with births and without, readers come and go: a block becomes free exactly when
/// its last possible reader ends.
#[test]
fn block_waits_for_those_who_may_read_it_and_for_no_others() {
    let (mut freed, mut waited) = (0, 0);
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let (_device, volume) = fresh(1024);
        let (root, ended) = {
            let state = volume.state.lock();
            (state.committed.root, state.ended.clone())
        };
        let mut releases = Releases::default();
        let mut readers: Vec<Modelled> = Vec::new();
        // Each block with the readers that it waits for, by their places.
        let mut model: BTreeMap<Vbn, Vec<usize>> = BTreeMap::new();
        // More than have bits of their own, in some lives: the rest share the last bit.
        let many = seed % 4 == 0;
        let own_bits = if many { 127 } else { usize::MAX };
        let mut next = 1;
        for _ in 0..120 {
            match rng.below(8) {
                0 | 1 => {
                    for _ in 0..if many { 40 } else { 1 } {
                        let generation = rng.below(20);
                        let root = Root { generation: Generation(generation), ..root };
                        let is_image = rng.one_in(2);
                        let committed = match is_image {
                            true => Committed::image(root, Arc::default()),
                            false => Committed::active(root, Arc::default(), ended.clone()),
                        };
                        let reader = Reader::of(&committed);
                        readers.push(Modelled { root: Some(committed), reader, generation, is_image });
                    }
                }
                2 if !readers.is_empty() => {
                    for _ in 0..if many { 25 } else { 1 } {
                        let at = rng.below(readers.len() as u64) as usize;
                        readers[at].root = None;
                    }
                }
                3..=5 => {
                    // Some of the readers, one of them twice.
                    let mut some: Vec<usize> = (0..readers.len()).filter(|_| many || rng.one_in(2)).collect();
                    some.extend(some.first().copied());
                    let named: Vec<Reader> = some.iter().map(|at| readers[*at].reader.clone()).collect();
                    let mut alive: Vec<usize> =
                        some.into_iter().filter(|at| readers[*at].root.is_some()).collect();
                    alive.sort_unstable();
                    alive.dedup();
                    let blocks: Vec<(Vbn, u64)> = (0..1 + rng.below(6))
                        .map(|_| {
                            next += 1;
                            (Vbn(next), rng.below(22))
                        })
                        .collect();
                    if rng.one_in(3) && !many {
                        // Of unknown birth: they wait for all.
                        let vbns: Vec<Vbn> = blocks.iter().map(|(vbn, _)| *vbn).collect();
                        releases.add_unsorted(&named, vbns.clone());
                        model.extend(vbns.into_iter().map(|vbn| (vbn, alive.clone())));
                        continue;
                    }
                    let born = blocks.iter().map(|(vbn, birth)| (*vbn, Generation(*birth)));
                    releases.add_born(&named, born);
                    for (vbn, birth) in blocks {
                        let may = |at: &usize| !readers[*at].is_image || birth <= readers[*at].generation;
                        model.insert(vbn, alive.iter().copied().filter(may).collect());
                    }
                }
                _ => {
                    let is_alive = |at: &usize| readers[*at].root.is_some();
                    let due: BTreeSet<Vbn> = model
                        .iter()
                        .filter(|(_, waits)| !waits.iter().any(is_alive))
                        .map(|(vbn, _)| *vbn)
                        .collect();
                    let free: BTreeSet<Vbn> = releases.take_free().into_iter().collect();
                    assert!(free.is_subset(&due), "seed {seed}: a block is free while somebody reads it");
                    if own_bits == usize::MAX {
                        assert_eq!(free, due, "seed {seed}: a block waits for nobody");
                    }
                    freed += free.len();
                    model.retain(|vbn, _| !free.contains(vbn));
                    assert_eq!(releases.blocks(), model.len() as u64, "seed {seed}");
                    waited = waited.max(model.len());
                    // Blocks that wait for the same readers wait together.
                    let mut sets: Vec<Vec<usize>> = model
                        .values()
                        .map(|waits| waits.iter().copied().filter(is_alive).collect())
                        .collect();
                    sets.sort();
                    sets.dedup();
                    let unsorted = releases.unsorted();
                    assert!(
                        many || releases.groups() <= sets.len() + unsorted,
                        "seed {seed}: {} groups of {} sets of readers, {unsorted} of them unsorted",
                        releases.groups(),
                        sets.len()
                    );
                }
            }
        }
        // Without readers no block waits.
        readers.clear();
        let left: BTreeSet<Vbn> = releases.take_free().into_iter().collect();
        assert_eq!(left, model.keys().copied().collect(), "seed {seed}");
        assert_eq!(releases.groups(), 0);
    }
    assert!(freed > 1000 && waited > 20, "{freed} {waited}");
}

/// Images of more snapshots than there are bits for readers, all of them deleted: each keeps its
/// own.
#[test]
fn images_of_more_deleted_snapshots_than_there_are_bits_stay_whole() {
    const MANY: u64 = 150;
    let (_device, volume) = fresh(4096);
    let lun = file(&volume, 20);
    let mut images = Vec::new();
    for round in 0..MANY {
        write(&volume, lun, round % 20, 1, round << 8).expect("there is room");
        let snapshot = volume.create_snapshot(&format!("s{round}")).expect("it is made");
        let image = volume.image(Some(snapshot.id)).expect("it exists");
        let shown = read_image(&image, lun, 0, 20);
        images.push((snapshot.id, image, shown));
    }
    let ids: Vec<_> = images.iter().map(|(id, ..)| *id).collect();
    for some in ids.chunks(40) {
        volume.delete_snapshots(some).expect("they are deleted");
    }
    let mut rng = Rng::new(1);
    let mut round = 0;
    while !images.is_empty() {
        for _ in 0..3 {
            write(&volume, lun, 0, 20, (1000 + round) << 8).expect("there is room");
            volume.consistency_point().expect("it commits");
            round += 1;
        }
        for _ in 0..10.min(images.len()) {
            drop(images.swap_remove(rng.below(images.len() as u64) as usize));
        }
        volume.store.forget();
        for (id, image, shown) in &images {
            assert_eq!(&read_image(image, lun, 0, 20), shown, "{id:?} of {} that are left", images.len());
        }
    }
    write(&volume, lun, 0, 1, 1).expect("there is room");
    volume.consistency_point().expect("it commits");
    assert_eq!(volume.state.lock().releases.blocks(), 0, "nobody is left to be waited for");
    assert_sound(&volume);
}

const WRITERS: u64 = 3;
const LUN_BLOCKS: u64 = 160;
const ROUNDS: u64 = 300;

/// Writers that fit, readers that come and go all the time, and an image that stays: no writer gets
/// "no space", and every reader sees the content of its root.
#[test]
fn nearly_full_volume_never_refuses_what_fits_while_others_read() {
    let (_device, volume) = fresh(1280);
    let luns: Vec<FileId> = (0..WRITERS).map(|_| file(&volume, LUN_BLOCKS)).collect();
    for lun in &luns {
        write(&volume, *lun, 0, LUN_BLOCKS, 0).expect("there is room");
    }
    let snapshot = volume.create_snapshot("open").expect("it is made");
    let image = volume.image(Some(snapshot.id)).expect("it exists");
    volume.delete_snapshots(&[snapshot.id]).expect("it is deleted");
    let done = AtomicBool::new(false);
    // Each writer gives its blocks rising rounds; a reader never sees one fall.
    let written: Vec<AtomicU64> = luns.iter().map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|seed| {
                let (volume, luns, done, written) = (&volume, &luns, &done, &written);
                scope.spawn(move || {
                    let mut rng = Rng::new(90 + seed);
                    while !done.load(Ordering::SeqCst) {
                        let which = rng.below(WRITERS) as usize;
                        let before = written[which].load(Ordering::SeqCst);
                        let lba = rng.below(LUN_BLOCKS - 8);
                        for (offset, seen) in read(volume, luns[which], lba, 8).into_iter().enumerate() {
                            assert_eq!(seen & 0xffff, lba + offset as u64);
                            assert!(seen >> 16 >= before, "{} is older than round {before}", seen >> 16);
                        }
                    }
                })
            })
            .collect();
        let writers: Vec<_> = luns
            .iter()
            .zip(&written)
            .zip([80, 20, 5])
            .map(|((lun, written), at_once)| {
                let volume = &volume;
                scope.spawn(move || {
                    for round in 1..=ROUNDS {
                        for first in (0..LUN_BLOCKS).step_by(at_once) {
                            write(volume, *lun, first, at_once as u64, round << 16).expect("it fits");
                        }
                        written.store(round, Ordering::SeqCst);
                    }
                })
            })
            .collect();
        let outcomes: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        done.store(true, Ordering::SeqCst);
        readers.into_iter().for_each(|reader| reader.join().expect("a reader ends"));
        outcomes.into_iter().for_each(|outcome| outcome.expect("a writer ends"));
    });
    for lun in &luns {
        assert_eq!(read_image(&image, *lun, 0, LUN_BLOCKS), (0..LUN_BLOCKS).collect::<Vec<_>>());
    }
    drop(image);
    assert_sound(&volume);
}
