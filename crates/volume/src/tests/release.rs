//! When freed blocks are free: at once where nobody reads them, after short readers, and never for an image longer than it needs.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cairn_base::Rng;

use super::*;

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
    // A read that takes its time: it has the root, as every read of the active state has while it runs.
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
fn block_that_was_placed_and_given_up_in_one_generation_waits_for_short_readers() {
    let (volume, lun) = taken(10);
    let reading = volume.state.lock().committed.clone();
    write(&volume, lun, 3, 1, 500).expect("there is room");
    volume.place(1, u64::MAX).expect("it is written");
    // A read finds this pointer in memory, of a generation that is newer than the root that it holds.
    let crate::overlay::Seen::Pointer(pointer) = volume.state.lock().changes_of(lun).see(3) else {
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
    // Nobody will close the image while this thread waits.
    let refused = write(&volume, other, 0, more, 5);
    assert!(matches!(refused, Err(VolumeError::NoSpace)), "{refused:?}");
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

const WRITERS: u64 = 3;
const LUN_BLOCKS: u64 = 160;
const ROUNDS: u64 = 300;

/// Writers that fit, readers that come and go all the time, and an image that stays: nobody ever hears that there is no space, and everyone reads what
/// he must.
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
