//! Seeds of every kind, and the simulator's own promises. The soak runs more of them.

use std::io::Write;
use std::time::Duration;

use cairn_base::{FileId, Lba, Rng, SnapshotId};
use cairn_format::FileKind;
use cairn_volume::{Image, Role, VolumeError};
use parking_lot::Mutex;

use crate::content::Tag;
use crate::tally::{Fault, Tally};
use crate::tasks::{Tasks, Turn, switch};
use crate::world::{Config, World, read_image};
use crate::{Kind, Timeline, run};

fn seeds(kind: Kind, seeds: std::ops::Range<u64>) -> Tally {
    let mut tally = Tally::default();
    for seed in seeds {
        let mut timeline = Timeline::new(false);
        let outcome =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(kind, seed, &mut timeline)));
        let what = match outcome {
            Ok(Ok(outcome)) => {
                tally += outcome.tally;
                continue;
            }
            Ok(Err(error)) => format!("{error:#}"),
            Err(_) => "it panicked, see above".to_owned(),
        };
        let recent: Vec<&str> = timeline.recent().collect();
        panic!(
            "{what}\n{}\nreplay: cargo run --release -p cairn-sim -- {seed} --kind {}",
            recent.join("\n"),
            kind.name()
        );
    }
    // Bypasses the capture of tests, so that the trials are visible in any run.
    let _ = writeln!(std::io::stderr(), "{}: {tally}", kind.name());
    tally
}

/// Seeds of a kind that tries a cut at every device operation: it did, in each of its fates, and
/// some seeds have writes to cut.
fn every_cut(kind: Kind, range: std::ops::Range<u64>) -> Tally {
    let tally = seeds(kind, range);
    assert!(tally.points > 0 && tally.cuts >= tally.points, "{}: {tally}", kind.name());
    tally
}

#[test]
fn volume_keeps_its_promises_over_power_cuts_at_random() {
    let tally = seeds(Kind::Volume, 0..20);
    assert!(tally.cuts > 0 && tally.full > 0, "{tally}");
}

#[test]
fn volume_keeps_its_promises_over_other_power_cuts_at_random() {
    seeds(Kind::Volume, 60..80);
    // A client uses a file that was made during a rollback.
    seeds(Kind::Volume, 117_674_440_720_857..117_674_440_720_858);
}

#[test]
fn volume_keeps_its_promises_over_a_cut_at_every_device_operation() {
    every_cut(Kind::EveryCut, 0..40);
}

#[test]
fn rotten_media_are_reported_and_never_served() {
    let mut tally = seeds(Kind::Media, 0..72);
    // A volume that is so full that it asks nothing of its device.
    tally += seeds(Kind::Media, 117_674_423_746_593..117_674_423_746_594);
    for (fault, [survived, reported, refused]) in Fault::ALL.into_iter().zip(tally.faults) {
        assert!(survived + reported + refused >= 3, "{fault:?} was tried too seldom: {tally}");
    }
    // No fault goes unnoticed in all lives: it was found, and reported or survived for a reason.
    let told = tally.faults.iter().filter(|[_, reported, refused]| reported + refused > 0).count();
    assert!(told >= 9, "{told} of the faults were told: {tally}");
}

#[test]
fn mirror_shows_the_last_image_or_the_new_one_whatever_happens() {
    seeds(Kind::Image, 0..40);
}

#[test]
fn mirror_survives_cuts_and_mishaps_at_random() {
    let tally = seeds(Kind::Mirror, 0..30);
    assert!(tally.cuts > 0 && tally.mishaps > 0, "{tally}");
}

#[test]
fn mirror_survives_every_mishap_at_every_message() {
    let tally = seeds(Kind::EveryMessage, 0..6);
    assert!(tally.points > 0 && tally.mishaps > 100, "{tally}");
}

#[test]
fn mirror_that_follows_continuously_shows_consistency_points_over_cuts_and_mishaps() {
    seeds(Kind::Continuous, 0..20);
}

#[test]
fn mirror_that_follows_continuously_survives_every_mishap_at_every_message() {
    let tally = seeds(Kind::EveryStep, 0..4);
    assert!(tally.points > 0 && tally.mishaps > 100, "{tally}");
}

#[test]
fn mirror_without_room_on_either_side_says_so_and_goes_on_once_there_is_room() {
    let tally = seeds(Kind::MirrorFull, 0..48);
    assert!(tally.room_faults.iter().all(|fates| fates.iter().sum::<u64>() > 0), "{tally}");
}

#[test]
fn cascade_with_clones_drills_and_locks_shows_whole_images_over_cuts_and_mishaps() {
    let tally = seeds(Kind::Chain, 0..30);
    assert!(tally.refused > 0, "no lock and no clone kept an image away");
}

#[test]
fn cascade_with_clones_drills_and_locks_survives_a_cut_at_every_device_operation() {
    for victim in 0..4 {
        // It is on or off, and busy or idle, as the seed decides.
        let points = [victim, victim + 8].map(|seed| seeds(Kind::ChainEveryCut, seed..seed + 1).points);
        assert!(points.iter().sum::<u64>() > 0, "{victim} did nothing");
    }
}

#[test]
fn mirror_whose_source_lies_keeps_every_image_byte_for_byte() {
    let tally = seeds(Kind::LyingSource, 0..400);
    let [told, believed] = tally.lies;
    assert!(told > 400 && believed > 40, "nothing came of the lies: {tally}");
    assert!(tally.honest > 100 && tally.locked > 100 && tally.cuts > 100, "{tally}");
}

#[test]
fn source_whose_mirror_lies_stays_as_its_model_says() {
    let tally = seeds(Kind::LyingDestination, 0..150);
    assert!(tally.lies[0] > 300 && tally.cuts > 0, "{tally}");
}

#[test]
fn snapshots_of_a_group_show_one_instant_on_both_sides_over_cuts_and_failover() {
    seeds(Kind::Group, 0..40);
}

#[test]
fn snapshots_of_a_group_show_one_instant_after_a_cut_at_every_device_operation() {
    every_cut(Kind::GroupEveryCut, 0..3);
}

#[test]
fn every_retained_instant_reads_as_it_was_over_power_cuts_at_random() {
    seeds(Kind::History, 0..24);
    // Found a superblock whose older slot was not written again on opening.
    seeds(Kind::History, 207..208);
}

#[test]
fn every_retained_instant_reads_as_it_was_over_a_cut_at_every_device_operation() {
    every_cut(Kind::HistoryEveryCut, 0..24);
}

#[test]
fn what_rots_on_one_side_of_a_mirror_never_spreads_and_comes_back_from_the_other() {
    let tally = seeds(Kind::MirrorMedia, 0..54);
    assert!(tally.copy_faults.iter().all(|fates| fates.iter().sum::<u64>() > 0), "{tally}");
}

#[test]
fn tree_of_files_is_as_it_was_at_some_moment_over_power_cuts_at_random() {
    seeds(Kind::Files, 0..40);
}

#[test]
fn tree_of_files_is_as_it_was_at_some_moment_over_a_cut_at_every_device_operation() {
    every_cut(Kind::FilesEveryCut, 0..30);
    // Two states since the last sync look the same, and are of other files.
    seeds(Kind::FilesEveryCut, 117_674_515_300_499..117_674_515_300_500);
}

#[test]
fn same_seed_gives_the_same_digest() {
    let digest = |kind, seed| {
        run(kind, seed, &mut Timeline::new(false)).unwrap_or_else(|error| panic!("{error:#}")).digest
    };
    for kind in Kind::ALL {
        assert_eq!(digest(kind, 7), digest(kind, 7), "{}", kind.name());
    }
    assert_ne!(digest(Kind::Volume, 7), digest(Kind::Volume, 8));
}

/// A small volume with one file of 20 written blocks, and a snapshot of them.
fn small(rng: &mut Rng) -> (World, FileId, Vec<Tag>, SnapshotId) {
    let config = Config {
        blocks: 1024,
        blocks_max: 1024,
        files: 1,
        file_blocks: 20,
        snapshots: 9,
        log_device: false,
        cut_every: 0,
    };
    let mut world = World::new("vol", rng, config, Role::Normal).expect("a new volume");
    let volume = world.volume();
    let file = volume.compound().create(FileKind::Lun, 20 * 4096).expect("a file");
    let tags: Vec<Tag> = (0..20).map(|_| world.tag()).collect();
    let mut blocks = (0..).map(Lba).zip(tags.iter().map(|tag| tag.block())).collect::<Vec<_>>().into_iter();
    volume.write(file, &mut blocks).expect("blocks");
    let snapshot = volume.create_snapshot("first").expect("a snapshot").id;
    (world, file, tags, snapshot)
}

/// Runs tasks to their end, in turns that the generator draws.
fn together(rng: &mut Rng, bodies: Vec<Box<dyn FnOnce() + Send + '_>>) {
    let mut tasks = Tasks::default();
    bodies.into_iter().for_each(|body| tasks.spawn(body));
    loop {
        match tasks.turn(rng) {
            Turn::Ran => {}
            Turn::Done => return,
            Turn::Stuck => panic!("every task waits for another one"),
        }
    }
}

fn tags_of(image: &Image, file: FileId) -> Vec<Option<Tag>> {
    read_image(image, file, 20).expect("a readable image")
}

#[test]
fn writes_during_a_rollback_are_kept_by_it_or_come_after_it() {
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let (mut world, file, _, snapshot) = small(&mut rng);
        let volume = world.volume();
        let news: Vec<(u64, Tag)> = (0..20).map(|lba| (lba, world.tag())).collect();
        let kept = Mutex::new(None);
        together(
            &mut rng,
            vec![
                Box::new(|| *kept.lock() = Some(volume.rollback(snapshot).expect("a rollback"))),
                Box::new(|| {
                    for (lba, tag) in &news {
                        let mut one = std::iter::once((Lba(*lba), tag.block()));
                        volume.write(file, &mut one).expect("a write");
                        switch();
                    }
                }),
            ],
        );
        volume.consistency_point().expect("a consistency point");
        let kept = kept.into_inner().expect("a rollback has kept what was there");
        let active = tags_of(&volume.image(None).expect("the active image"), file);
        let before = tags_of(&volume.image(Some(kept.id)).expect("what was there"), file);
        for (lba, tag) in news {
            let there = [active[lba as usize], before[lba as usize]];
            assert!(there.contains(&Some(tag)), "seed {seed}: the write to block {lba} is gone: {there:?}");
        }
    }
}

#[test]
fn rename_and_hold_of_a_snapshot_keep_what_others_did_meanwhile() {
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let (_world, file, tags, first) = small(&mut rng);
        let volume = _world.volume();
        volume.write(file, &mut std::iter::once((Lba(0), tags[1].block()))).expect("a write");
        let second = volume.create_snapshot("second").expect("a snapshot").id;
        together(
            &mut rng,
            vec![
                Box::new(|| assert!(volume.delete_snapshots(&[first]).is_ok())),
                Box::new(|| volume.rename_snapshot(second, "renamed").expect("a rename")),
                Box::new(|| volume.hold_snapshot(second, true).expect("a hold")),
            ],
        );
        let found = volume.snapshot(second).expect("the second snapshot");
        assert_eq!(
            (found.name.as_str(), found.held, found.parent),
            ("renamed", true, SnapshotId(0)),
            "seed {seed}"
        );
        let report = volume.check(&mut |_| {}).expect("a check");
        assert!(report.findings.is_empty(), "seed {seed}: {:?}", report.findings);
    }
}

#[test]
fn file_that_a_rollback_brings_back_is_not_freed_any_more() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let (_world, file, tags, snapshot) = small(&mut rng);
        let volume = _world.volume();
        let other = volume.compound().create(FileKind::Lun, 20 * 4096).expect("a file");
        volume.compound().remove(file).expect("a removal");
        volume.consistency_point().expect("a consistency point");
        together(
            &mut rng,
            vec![
                Box::new(|| drop(volume.rollback(snapshot).expect("a rollback"))),
                Box::new(|| {
                    for _ in 0..4 {
                        volume.background(Duration::ZERO).expect("background work");
                        switch();
                    }
                }),
                // While it flushes a consistency point waits for the log, and the background work
                // for the consistency point.
                Box::new(|| {
                    for lba in 0..8 {
                        match volume.write(other, &mut std::iter::once((Lba(lba), tags[0].block()))) {
                            Ok(()) => {}
                            // The rollback took it away.
                            Err(VolumeError::NoSuchFile(_)) => {}
                            Err(error) => panic!("a write: {error}"),
                        }
                        volume.flush().expect("a flush");
                    }
                }),
            ],
        );
        volume.consistency_point().expect("a consistency point");
        let expected: Vec<Option<Tag>> = tags.iter().copied().map(Some).collect();
        assert_eq!(tags_of(&volume.image(None).expect("the active image"), file), expected, "seed {seed}");
    }
}
