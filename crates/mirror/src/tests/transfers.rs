//! Promises of a mirror, one test each.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use cairn_base::{ManualClock, Rng, Timestamp, VolumeId};
use cairn_device::{Device, FaultDevice, Geometry, MemoryDevice, Operation, Request};
use cairn_stream::{AbortReason, StreamError};
use cairn_volume::{FormatOptions, Role, Volume};

use super::harness::{BLOCKS, Pair, Trouble, assert_clean, content, fingerprint, open};
use crate::{DestinationState, MirrorError, NackReason, TransferKind, TransferProgress, Work};

#[test]
fn first_update_brings_everything_and_the_next_brings_changes() {
    let pair = Pair::new(0);
    let mut rng = Rng::new(1);
    pair.write(pair.files[0], 0, 200, &mut rng);
    let first = pair.update().expect("a baseline");
    assert_eq!(first.kind, TransferKind::Baseline);
    assert!(first.confirmed && first.blocks >= 200, "{first:?}");
    pair.assert_mirrored();
    pair.write(pair.files[1], 5, 100, &mut rng);
    let second = pair.update().expect("an update");
    assert_eq!(second.kind, TransferKind::Update);
    assert!((100..150).contains(&second.blocks), "{second:?}");
    let limit = second.blocks * 4096 * 101 / 100 + 2048;
    assert!(second.bytes <= limit, "{} bytes for {} blocks", second.bytes, second.blocks);
    pair.assert_mirrored();
    assert_eq!(bases(&pair), 1, "the source keeps one base");
}

fn bug(_: &TransferProgress) {
    panic!("a bug that this test has put in");
}

#[test]
fn update_in_which_there_is_a_panic_leaves_a_mirror_that_is_updated_and_failed_over_as_before() {
    let pair = Pair::new(0);
    let mut rng = Rng::new(41);
    let mirror = pair.mirror();
    let panics = || {
        let cancel = AtomicBool::new(false);
        let update = || {
            pair.converse(|client| {
                let mut work = Work { cancel: &cancel, progress: &mut bug, threads: None };
                mirror.update(client, &mut work)
            })
        };
        catch_unwind(AssertUnwindSafe(update)).is_err()
    };
    for first in [true, false] {
        pair.write(pair.files[0], 0, 50, &mut rng);
        assert!(panics());
        let state = mirror.state();
        match first {
            true => assert!(matches!(state, DestinationState::Uninitialized), "{state:?}"),
            false => assert!(matches!(state, DestinationState::Idle), "{state:?}"),
        }
        pair.update_with(&mirror, Trouble::default()).expect("an update");
        pair.assert_mirrored();
    }
    pair.write(pair.files[0], 0, 50, &mut rng);
    assert!(panics());
    mirror.failover().expect("it takes writes");
}

fn bases(pair: &Pair) -> usize {
    pair.source.snapshots().into_iter().filter(|s| s.name.starts_with("mirror.")).count()
}

#[test]
fn scattered_single_blocks_cost_less_than_one_percent() {
    let pair = Pair::new(0);
    let mut rng = Rng::new(2);
    pair.write(pair.files[0], 0, 300, &mut rng);
    pair.write(pair.files[1], 0, 300, &mut rng);
    pair.update().expect("a baseline");
    for lba in (0..300).step_by(2) {
        pair.write(pair.files[0], lba, 1, &mut rng);
    }
    let report = pair.update().expect("an update");
    let limit = report.blocks * 4096 * 101 / 100 + 2048;
    assert!(report.bytes <= limit, "{} bytes for {} blocks", report.bytes, report.blocks);
}

#[test]
fn nothing_is_sent_when_nothing_changed() {
    let pair = Pair::new(1);
    let mut rng = Rng::new(3);
    pair.write(pair.files[0], 0, 20, &mut rng);
    pair.update().expect("a baseline");
    pair.source.create_snapshot("kept").expect("a snapshot");
    let report = pair.update().expect("an update that brings a snapshot");
    assert_eq!((report.kind, report.blocks), (TransferKind::Update, 0));
    let snapshots = pair.source.snapshots();
    for _ in 0..3 {
        let report = pair.update().expect("nothing to do");
        assert_eq!((report.kind, report.bytes), (TransferKind::UpToDate, 0));
        assert_eq!(pair.source.snapshots(), snapshots);
    }
    pair.source
        .rename_snapshot(pair.source.snapshot_named("kept").expect("it exists").id, "other")
        .expect("renamed");
    assert_eq!(pair.update().expect("an update").kind, TransferKind::Update);
    assert!(pair.destination.snapshot_named("other").is_some());
}

/// Random work, updates, moving home, reopening; with and without threads.
#[test]
fn every_snapshot_is_the_same_on_both_sides_after_every_update() {
    for seed in 0..12 {
        let mut pair = Pair::new(seed);
        let mut rng = Rng::new(seed);
        for round in 0..14 {
            for _ in 0..rng.below(30) {
                pair.work(&mut rng);
            }
            let trouble = Trouble { threads: rng.one_in(2), ..Trouble::default() };
            let mirror = pair.mirror();
            match pair.update_with(&mirror, trouble) {
                Ok(_) => pair.assert_mirrored(),
                Err(error) => panic!("seed {seed} round {round}: {error}"),
            }
            match rng.below(4) {
                0 => {
                    pair.move_home();
                    pair.assert_mirrored();
                }
                1 => {
                    pair.reopen_destination();
                    pair.assert_mirrored();
                }
                2 => pair.add_file(),
                _ => {}
            }
        }
    }
}

#[test]
fn the_source_changes_and_loses_snapshots_while_an_update_runs() {
    for seed in 100..108 {
        let pair = Pair::new(seed);
        let mut rng = Rng::new(seed);
        for round in 0..8 {
            for _ in 0..25 {
                pair.work(&mut rng);
            }
            let mut adversary = rng.fork();
            let mut meanwhile = || (0..10).for_each(|_| pair.work(&mut adversary));
            let trouble =
                Trouble { threads: round % 2 == 0, meanwhile: Some(&mut meanwhile), ..Trouble::default() };
            pair.update_with(&pair.mirror(), trouble)
                .unwrap_or_else(|error| panic!("seed {seed} round {round}: {error}"));
            assert_clean(&pair.destination);
            let shown = pair.destination.status().cursor.snapshot;
            let there = pair.source.image(Some(shown)).expect("the target is held");
            let here = pair.destination.image(None).expect("an image");
            assert_eq!(content(&there), content(&here), "seed {seed} round {round}");
        }
    }
}

#[test]
fn a_cut_anywhere_leaves_the_image_before() {
    let pair = Pair::new(4);
    let mut rng = Rng::new(4);
    for _ in 0..40 {
        pair.work(&mut rng);
    }
    pair.update().expect("a baseline");
    let mut cut_after = 1;
    let mut cuts = 0;
    loop {
        for _ in 0..4 {
            pair.work(&mut rng);
        }
        let before = fingerprint(&pair.destination);
        let mirror = pair.mirror();
        let trouble = Trouble { cut_after: Some(cut_after), threads: cuts % 2 == 0, ..Trouble::default() };
        let outcome = pair.update_with(&mirror, trouble);
        match outcome {
            Err(_) => {
                cuts += 1;
                assert_eq!(fingerprint(&pair.destination), before, "cut after {cut_after} bytes");
                // A cut in the hello (17 bytes) comes before the update begins.
                let failed = matches!(mirror.state(), DestinationState::Failed(_));
                assert!(failed || cut_after < 17, "{:?}", mirror.state());
            }
            Ok(report) if report.confirmed => break,
            // The acknowledgement was lost.
            Ok(_) => pair.assert_mirrored(),
        }
        assert!(bases(&pair) <= 2, "bases do not pile up");
        cut_after = (cut_after * 5 / 4).max(cut_after + 9);
    }
    assert!(cuts > 20, "{cuts} cuts");
    pair.update().expect("the next update succeeds");
    pair.assert_mirrored();
    assert_eq!(bases(&pair), 1);
}

#[test]
fn a_cut_in_the_baseline_leaves_nothing_and_the_next_one_succeeds() {
    let pair = Pair::new(5);
    let mut rng = Rng::new(5);
    pair.write(pair.files[0], 0, 300, &mut rng);
    for cut_after in [30, 300, 3000, 300_000] {
        let trouble = Trouble { cut_after: Some(cut_after), ..Trouble::default() };
        pair.update_with(&pair.mirror(), trouble).expect_err("it was cut");
        assert_eq!(pair.destination.status().cursor.snapshot.0, 0);
        assert!(bases(&pair) <= 1, "bases do not pile up");
    }
    assert_eq!(pair.update().expect("a baseline").kind, TransferKind::Baseline);
    pair.assert_mirrored();
}

#[test]
fn a_spoiled_byte_is_refused() {
    let pair = Pair::new(6);
    let mut rng = Rng::new(6);
    pair.write(pair.files[0], 0, 100, &mut rng);
    pair.update().expect("a baseline");
    let mut refused = 0;
    for at in (0..420_000).step_by(7001) {
        pair.write(pair.files[0], 0, 100, &mut rng);
        let before = fingerprint(&pair.destination);
        let trouble = Trouble { spoil_at: Some(at), ..Trouble::default() };
        match pair.update_with(&pair.mirror(), trouble) {
            Err(_) => {
                refused += 1;
                assert_eq!(fingerprint(&pair.destination), before, "byte {at}");
            }
            // The byte was not sent, or not part of the image (a name, a status).
            Ok(_) => pair.assert_mirrored(),
        }
    }
    assert!(refused > 50, "{refused} were refused");
}

#[test]
fn a_damaged_block_at_the_source_is_not_spread() {
    let clock = Arc::new(ManualClock::new(Timestamp(1_700_000_000_000_000_000)));
    let fault = Arc::new(FaultDevice::new(Volume::device_bytes(BLOCKS, Role::Normal)));
    let far: Arc<dyn Device> = Arc::new(MemoryDevice::new(Volume::device_bytes(BLOCKS, Role::Destination)));
    let pair = Pair::on(fault.clone(), far, clock, 0);
    let mut rng = Rng::new(7);
    pair.write(pair.files[0], 0, 100, &mut rng);
    pair.update().expect("a baseline");
    let before = fingerprint(&pair.destination);
    pair.write(pair.files[0], 0, 50, &mut rng);
    let first_write = {
        fault.take_log();
        pair.source.flush().expect("a flush");
        let data = fault.take_log().into_iter().find(|op| op.length >= 4096 * 10);
        data.expect("the blocks went to the device").offset
    };
    fault.corrupt(first_write + 4096 * 7, 10, &mut rng);
    let error = pair.update().expect_err("the block is damaged");
    assert!(matches!(error, MirrorError::Volume(_)), "{error:?}");
    assert_eq!(fingerprint(&pair.destination), before);
}

#[test]
fn a_base_deleted_by_hand_is_replaced_by_another_common_snapshot() {
    let pair = Pair::new(8);
    let mut rng = Rng::new(8);
    pair.write(pair.files[0], 0, 300, &mut rng);
    pair.source.create_snapshot("daily").expect("a snapshot");
    pair.update().expect("a baseline");
    delete_bases(&pair);
    pair.write(pair.files[0], 0, 20, &mut rng);
    let report = pair.update().expect("an update from the other snapshot");
    assert_eq!(report.kind, TransferKind::Update);
    assert!(report.blocks < 100, "{report:?}");
    pair.assert_mirrored();
    let daily = pair.source.snapshot_named("daily").expect("it exists").id;
    pair.source.delete_snapshots(&[daily]).expect("deleted");
    delete_bases(&pair);
    pair.write(pair.files[0], 100, 20, &mut rng);
    let report = pair.update().expect("an update from the since map");
    assert_eq!(report.kind, TransferKind::Update);
    assert!(report.blocks < 100, "{report:?}");
    pair.assert_mirrored();
}

pub(super) fn delete_bases(pair: &Pair) {
    for base in pair.source.snapshots().into_iter().filter(|s| s.held) {
        pair.source.hold_snapshot(base.id, false).expect("released");
        pair.source.delete_snapshots(&[base.id]).expect("deleted");
    }
}

#[test]
fn a_reader_of_the_image_before_keeps_it_through_collisions() {
    for seed in 200..206 {
        let pair = Pair::new(seed);
        let mut rng = Rng::new(seed);
        for _ in 0..60 {
            pair.work(&mut rng);
        }
        pair.update().expect("a baseline");
        let mut held = Vec::new();
        let mut redirected = 0;
        for round in 0..10 {
            let active = pair.destination.image(None).expect("an image");
            held.push((content(&active), active));
            for snapshot in pair.destination.snapshots().into_iter().take(2) {
                let image = pair.destination.image(Some(snapshot.id)).expect("a snapshot opens");
                held.push((content(&image), image));
            }
            // Everything is freed at the source, and its blocks are reused.
            let free: Vec<_> = pair.source.snapshots().iter().filter(|s| !s.held).map(|s| s.id).collect();
            pair.source.delete_snapshots(&free).expect("deleted");
            for file in &pair.files {
                pair.write(*file, 0, 300, &mut rng);
                pair.source.consistency_point().expect("a consistency point");
                pair.write(*file, 0, 300, &mut rng);
            }
            pair.update().unwrap_or_else(|error| panic!("seed {seed} round {round}: {error}"));
            redirected = redirected.max(pair.destination.status().redirected);
            for (content_then, image) in &held {
                assert_eq!(content(image), *content_then, "seed {seed} round {round}");
            }
            if rng.one_in(3) {
                let keep = rng.below(held.len() as u64 + 1) as usize;
                held.drain(..held.len() - keep);
            }
            let _ = pair.destination.background(Duration::ZERO);
            for (content_then, image) in &held {
                assert_eq!(content(image), *content_then, "after moving home, seed {seed} round {round}");
            }
            pair.assert_mirrored();
        }
        assert!(redirected > 0, "there were collisions");
        held.clear();
        pair.move_home();
        pair.assert_mirrored();
    }
}

#[test]
fn dump_of_a_mirror_has_the_image_that_it_began_with_whatever_arrives_meanwhile() {
    use cairn_format::dump::{DumpId, DumpLevel};
    use cairn_stream::{Dump, DumpLabel, OpenDump, PartIndex, Plan};
    let pair = Pair::new(210);
    let mut rng = Rng::new(210);
    for file in &pair.files {
        pair.write(*file, 0, 300, &mut rng);
    }
    pair.update().expect("a baseline");
    let shown = pair.destination.status().cursor.snapshot;
    let then = content(&pair.destination.image(Some(shown)).expect("it is shown"));
    let plan = Plan::against(&pair.destination, None, shown).expect("it is found");
    // The source deletes that image, and reuses its blocks.
    for _ in 0..40 {
        for file in &pair.files {
            pair.write(*file, 0, 300, &mut rng);
            pair.source.consistency_point().expect("a consistency point");
        }
        pair.update().expect("an update");
        if pair.destination.status().redirected >= 100 {
            break;
        }
    }
    assert!(pair.destination.snapshot(shown).is_none(), "the mirror does not list it any more");
    assert!(pair.destination.status().redirected >= 100, "its blocks have other content now");
    let label = DumpLabel {
        id: DumpId([1; 16]),
        level: DumpLevel::Level(0),
        name: "vol0".to_owned(),
        created: Timestamp(1),
    };
    let cancel = std::sync::atomic::AtomicBool::new(false);
    let mut work = cairn_stream::Work { cancel: &cancel, progress: &mut |_| {}, threads: None };
    let mut bytes = Vec::new();
    let dump = Dump::new(&plan, label, 1);
    dump.write_part(0, &mut bytes, cairn_stream::Compression::None, &mut work).expect("it is written");
    let part = PartIndex::open("dump", Arc::new(bytes)).expect("it is a dump");
    let opened = OpenDump::open(vec![part], false, false, pair.clock.clone(), 1 << 20).expect("it opens");
    assert!(content(&opened.volume.image(None).expect("an image")) == then, "every block of it, as it was");
}

#[test]
fn failover_keeps_the_image_and_takes_writes() {
    for seed in 300..304 {
        let mut pair = Pair::new(seed);
        let mut rng = Rng::new(seed);
        for _ in 0..4 {
            for _ in 0..30 {
                pair.work(&mut rng);
            }
            pair.update().expect("an update");
        }
        let mirror = pair.mirror();
        pair.update_with(&mirror, Trouble::default()).expect("an update");
        let image = content(&pair.destination.image(None).expect("an image"));
        let loss = mirror.failover().expect("a failover");
        assert_eq!(loss.bytes_known, Some(0));
        assert!(matches!(mirror.failover(), Err(MirrorError::FailedOver)));
        assert_eq!(content(&pair.destination.image(None).expect("an image")), image);
        if seed % 2 == 0 {
            pair.reopen_destination();
        }
        assert_eq!(pair.destination.status().role, Role::Normal);
        // It works like any volume now.
        pair.source = pair.destination.clone();
        for _ in 0..150 {
            pair.work(&mut rng);
            let _ = pair.destination.background(Duration::ZERO);
        }
        pair.source.consistency_point().expect("a consistency point");
        assert_clean(&pair.source);
        let shown = fingerprint(&pair.source);
        let reopened = open(&pair.destination_device, &pair.clock);
        assert_eq!(fingerprint(&reopened), shown);
        assert_clean(&reopened);
    }
}

/// The blocks of a snapshot being transferred are not reused when it is deleted at the source
/// meanwhile.
#[test]
fn a_snapshot_deleted_while_it_is_sent_arrives_whole() {
    for threads in [false, true] {
        let pair = Pair::new(500);
        let mut rng = Rng::new(500);
        let mut names = Vec::new();
        for number in 0..4 {
            for file in &pair.files {
                pair.write(*file, 0, 300, &mut rng);
            }
            let name = format!("s{number}");
            names.push((pair.source.create_snapshot(&name).expect("a snapshot").id, name));
        }
        let sent: Vec<_> =
            names.iter().map(|(id, _)| content(&pair.source.image(Some(*id)).expect("it exists"))).collect();
        let mut deleted = false;
        let mut meanwhile = || {
            if std::mem::replace(&mut deleted, true) {
                return;
            }
            let ids: Vec<_> = names.iter().map(|(id, _)| *id).collect();
            pair.source.delete_snapshots(&ids).expect("deleted");
            // Enough to reuse every free block.
            for round in 0..40 {
                let _ = pair.try_write(pair.files[round % 2], 0, 300, &mut rng);
                let _ = pair.source.consistency_point();
            }
        };
        let trouble = Trouble { threads, meanwhile: Some(&mut meanwhile), ..Trouble::default() };
        pair.update_with(&pair.mirror(), trouble).expect("an update");
        assert!(deleted, "it happened while the transfer ran");
        for ((id, name), sent) in names.iter().zip(sent) {
            let here = pair.destination.image(Some(*id)).expect("it arrived");
            assert_eq!(content(&here), sent, "{name}");
        }
        pair.update().expect("the next update");
        pair.assert_mirrored();
    }
}

/// The redirect map's entry of a block that no image has any more must not be used for a later
/// owner of that block.
#[test]
fn blocks_that_were_redirected_and_freed_are_reused_whole_after_a_failover() {
    let mut pair = Pair::new(400);
    let mut rng = Rng::new(400);
    let mut redirected = 0;
    let mut readers = Vec::new();
    for _ in 0..24 {
        for file in &pair.files {
            pair.write(*file, 0, 300, &mut rng);
        }
        pair.update().expect("an update");
        // Readers of each image keep its blocks in use here while the source reuses them, and
        // nothing moves home.
        readers.push(pair.destination.image(None).expect("an image"));
        redirected = redirected.max(pair.destination.status().redirected);
    }
    assert!(redirected > 0, "there were collisions");
    let mirror = pair.mirror();
    drop(readers);
    pair.update_with(&mirror, Trouble::default()).expect("an update");
    mirror.failover().expect("a failover");
    pair.source = pair.destination.clone();
    let mut model = Vec::new();
    for round in 0..40 {
        let file = pair.files[round % 2];
        pair.write(file, 0, 300, &mut rng);
        pair.source.consistency_point().expect("a consistency point");
        model = vec![content(&pair.source.image(None).expect("an image"))];
    }
    assert_clean(&pair.source);
    // Past the cache.
    let reopened = open(&pair.destination_device, &pair.clock);
    assert_eq!(vec![content(&reopened.image(None).expect("an image"))], model);
}

#[test]
fn lag_is_zero_without_changes_and_counts_from_the_first_that_is_missing() {
    let pair = Pair::new(9);
    let mut rng = Rng::new(9);
    pair.write(pair.files[0], 0, 50, &mut rng);
    let mirror = pair.mirror();
    assert!(mirror.lag().is_none());
    pair.update_with(&mirror, Trouble::default()).expect("a baseline");
    let lag = mirror.lag().expect("there was contact");
    assert_eq!((lag.age, lag.bytes), (Duration::ZERO, 0));
    pair.clock.advance(Duration::from_secs(100));
    pair.write(pair.files[0], 0, 10, &mut rng);
    pair.clock.advance(Duration::from_secs(7));
    let at_source = pair.registry.mirrors(&pair.source).expect("the mirrors");
    let [own] = &at_source[..] else { panic!("one mirror, not {at_source:?}") };
    let behind = own.behind.expect("its base is known");
    assert_eq!(behind.now.since(behind.first_change.expect("a change")), Duration::from_secs(7));
    assert_eq!(behind.blocks, 10);
    pair.source.consistency_point().expect("a consistency point");
    pair.clock.advance(Duration::from_secs(3));
    let own = pair.registry.mirrors(&pair.source).expect("the mirrors").remove(0);
    let behind = own.behind.expect("its base is known");
    assert_eq!(behind.now.since(behind.first_change.expect("a change")), Duration::from_secs(10));
    assert!((10..30).contains(&behind.blocks), "{own:?}");
    // The destination has had no report: its lag is the time without an answer.
    let lag = mirror.lag().expect("there was contact");
    assert_eq!((lag.age, lag.silent), (Duration::from_secs(110), Duration::from_secs(110)));
    let heard = pair.refresh(&mirror).expect("the source answers");
    assert_eq!(heard.age, Duration::from_secs(10));
    pair.clock.advance(Duration::from_secs(5));
    let loss = mirror.loss();
    assert_eq!(loss.bytes_known, Some(heard.bytes));
    assert_eq!((loss.age_known, loss.silent), (Some(Duration::from_secs(10)), Some(Duration::from_secs(5))));
    pair.update_with(&mirror, Trouble::default()).expect("an update");
    assert_eq!(mirror.lag().map(|lag| (lag.age, lag.bytes)), Some((Duration::ZERO, 0)));
}

#[test]
fn a_source_that_grew_says_how_much_is_needed() {
    let clock = Arc::new(ManualClock::new(Timestamp(1_700_000_000_000_000_000)));
    let near = Arc::new(MemoryDevice::new(Volume::device_bytes(BLOCKS, Role::Normal)));
    let far = Arc::new(MemoryDevice::new(Volume::device_bytes(BLOCKS, Role::Destination)));
    let pair = Pair::on(near.clone(), far.clone(), clock, 0);
    let mut rng = Rng::new(10);
    pair.write(pair.files[0], 0, 50, &mut rng);
    pair.update().expect("a baseline");
    let grown = BLOCKS + 40_000;
    near.grow(pair.source.device_bytes_after_growth(grown).expect("a growth"));
    pair.source.grow(grown).expect("grown");
    pair.write(pair.files[0], 0, 50, &mut rng);
    let error = pair.update().expect_err("the destination is too small");
    assert_eq!(error.blocks_needed(), Some(grown), "{error:?}");
    far.grow(pair.destination.device_bytes_after_growth(grown).expect("a growth"));
    pair.destination.grow(grown).expect("grown");
    pair.update().expect("it fits now");
    pair.assert_mirrored();
}

/// As a revert of a volume over a history does.
#[test]
fn source_that_is_closed_during_an_update_is_not_called_damaged() {
    let bytes = Volume::device_bytes(BLOCKS, Role::Destination);
    let near = Arc::new(FaultDevice::new(bytes));
    let clock = Arc::new(ManualClock::new(Timestamp(1_700_000_000_000_000_000)));
    let mut pair = Pair::on(near.clone(), Arc::new(MemoryDevice::new(bytes)), clock, 15);
    let mut rng = Rng::new(15);
    (0..8).for_each(|_| pair.add_file());
    pair.files.iter().for_each(|file| pair.write(*file, 0, 300, &mut rng));
    pair.source.consistency_point().expect("it commits");
    pair.source.close().expect("it closes");
    let source = open(&pair.source_device, &pair.clock);
    let mut records = 0;
    let mut meanwhile = || {
        records += 1;
        if records == 1 {
            source.close().expect("it closes");
            near.fail_reads(0..bytes);
        }
    };
    let pair = Pair { source: source.clone(), ..pair };
    let trouble = Trouble { meanwhile: Some(&mut meanwhile), ..Trouble::default() };
    let error = pair.update_with(&pair.mirror(), trouble).expect_err("nothing more can be read");
    let told = matches!(error, MirrorError::Stream(StreamError::Aborted(AbortReason::Cancelled)));
    assert!(told, "{error:?}");
}

#[test]
fn a_cancelled_update_leaves_the_image_and_the_next_succeeds() {
    let pair = Pair::new(11);
    let mut rng = Rng::new(11);
    pair.write(pair.files[0], 0, 300, &mut rng);
    pair.update().expect("a baseline");
    pair.write(pair.files[0], 0, 300, &mut rng);
    let before = fingerprint(&pair.destination);
    let records = AtomicU64::new(0);
    let error = pair.update_cancelled_after(1, &records).expect_err("cancelled");
    assert!(matches!(error, MirrorError::Cancelled | MirrorError::Stream(_)), "{error:?}");
    assert!(records.load(Ordering::Relaxed) >= 1);
    assert_eq!(fingerprint(&pair.destination), before);
    pair.update().expect("the next one");
    pair.assert_mirrored();
    assert_eq!(bases(&pair), 1);
}

#[test]
fn a_mirror_that_is_forgotten_frees_its_snapshots() {
    let pair = Pair::new(12);
    pair.update().expect("a baseline");
    let name = pair.registry.mirrors(&pair.source).expect("the mirrors").remove(0).name;
    pair.registry.forget(&pair.source, &name).expect("forgotten");
    assert_eq!(bases(&pair), 0);
    assert!(pair.registry.mirrors(&pair.source).expect("the mirrors").is_empty());
}

#[test]
fn locked_snapshots_stay_until_their_time_is_over_whatever_the_source_does() {
    let pair = Pair::new(6);
    let mut rng = Rng::new(6);
    let day = Duration::from_secs(24 * 3600);
    let heard = cairn_base::Mutex::new(None);
    let update = |pair: &Pair| {
        let mirror = pair.mirror();
        mirror.set_options(crate::Options { lock: Some(day * 30), ..mirror.options() });
        pair.update_with(&mirror, Trouble { heard: Some(&heard), ..Trouble::default() })
    };
    pair.write(pair.files[0], 0, 50, &mut rng);
    let first = pair.source.create_snapshot("payroll").expect("a snapshot").id;
    update(&pair).expect("a baseline");
    pair.clock.advance(day * 10);
    pair.write(pair.files[0], 10, 50, &mut rng);
    pair.source.create_snapshot("later").expect("a snapshot");
    update(&pair).expect("snapshots that mirrors made for themselves come and go");
    let before = fingerprint(&pair.destination);
    // Another name hides it, and one of those that come and go would take its lock away.
    for name in ["mirror.payroll", "something-else"] {
        pair.source.rename_snapshot(first, name).expect("it is renamed");
        pair.write(pair.files[0], 0, 5, &mut rng);
        let error = update(&pair).expect_err("it keeps its name");
        assert!(matches!(&error, MirrorError::Renamed { name } if name == "payroll"), "{error}");
        assert!(before == fingerprint(&pair.destination), "nothing has changed");
        let heard = heard.lock().take();
        assert!(matches!(heard, Some(MirrorError::Nack(NackReason::Unfit))), "{heard:?}");
    }
    pair.source.rename_snapshot(first, "payroll").expect("it is renamed");
    // The owner of the source deletes it there, and overwrites its blocks.
    pair.source.delete_snapshots(&[first]).expect("it is deleted");
    pair.write(pair.files[0], 0, 60, &mut rng);
    for _ in 0..2 {
        let error = update(&pair).expect_err("it is locked");
        assert!(matches!(&error, MirrorError::Locked { name } if name == "payroll"), "{error}");
        assert!(before == fingerprint(&pair.destination), "nothing has changed");
        // Neither damage nor a user's request, as its log would say.
        let heard = heard.lock().take();
        assert!(matches!(heard, Some(MirrorError::Nack(NackReason::Unfit))), "{heard:?}");
    }
    // Another snapshot of the same name is no substitute.
    pair.source.create_snapshot("payroll").expect("a snapshot");
    assert!(matches!(update(&pair), Err(MirrorError::Locked { .. })));
    pair.clock.advance(day * 20);
    update(&pair).expect("its time is over");
    assert!(pair.destination.snapshot(first).is_none());
    pair.assert_mirrored();
}

/// A device that does not answer flushes while it is shut: whether it is, and how many wait.
struct Hanging {
    device: MemoryDevice,
    shut: Mutex<(bool, usize)>,
    moved: Condvar,
}

impl Device for Hanging {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn run(&self, batch: &mut [Operation]) {
        if batch.iter().any(|operation| matches!(operation.request(), Request::Flush)) {
            let mut shut = self.shut.lock().expect("nobody panics");
            shut.1 += 1;
            self.moved.notify_all();
            shut = self.moved.wait_while(shut, |(shut, _)| *shut).expect("nobody panics");
            shut.1 -= 1;
        }
        self.device.run(batch);
    }
}

impl Hanging {
    fn new(bytes: u64) -> Arc<Self> {
        Arc::new(Self {
            device: MemoryDevice::new(bytes),
            shut: Mutex::new((false, 0)),
            moved: Condvar::new(),
        })
    }

    fn shut(&self, shut: bool) {
        self.shut.lock().expect("nobody panics").0 = shut;
        self.moved.notify_all();
    }

    /// Returns when a flush waits.
    fn wait_for_flush(&self) {
        let waits = |(_, waiting): &mut (bool, usize)| *waiting == 0;
        drop(self.moved.wait_while(self.shut.lock().expect("nobody panics"), waits));
    }
}

/// A mirror that does not wait for a hanging disk has its image long before that.
const LATE: Duration = Duration::from_secs(20);

#[test]
fn volume_whose_disk_hangs_holds_up_the_mirrors_of_no_other_one() {
    let mut rng = Rng::new(17);
    let bytes = Volume::device_bytes(BLOCKS, Role::Destination);
    let clock = Arc::new(ManualClock::new(Timestamp(1_700_000_000_000_000_000)));
    let hanging = Hanging::new(bytes);
    let pair = Pair::on(hanging.clone(), Arc::new(MemoryDevice::new(bytes)), clock, 17);
    // Another volume of the same server.
    let mut other = Pair::new(18);
    other.source_device = Arc::new(MemoryDevice::new(bytes));
    other.destination_device = Arc::new(MemoryDevice::new(bytes));
    for (device, role) in
        [(&other.source_device, Role::Normal), (&other.destination_device, Role::Destination)]
    {
        let options = FormatOptions { id: VolumeId([8; 16]), blocks: BLOCKS, role };
        Volume::format(&**device, &options, &*other.clock).expect("it is formatted");
    }
    other.source = open(&other.source_device, &other.clock);
    other.reopen_destination();
    other.registry = pair.registry.clone();
    other.files.clear();
    other.add_file();
    for pair in [&pair, &other] {
        pair.write(pair.files[0], 0, 40, &mut rng);
        pair.update().expect("a baseline");
        pair.write(pair.files[0], 50, 40, &mut rng);
    }
    hanging.shut(true);
    std::thread::scope(|scope| {
        scope.spawn(|| pair.update());
        hanging.wait_for_flush();
        let (told, answered) = channel();
        let other = &other;
        scope.spawn(move || told.send(other.update()));
        let updated = answered.recv_timeout(LATE);
        hanging.shut(false);
        updated.expect("it does not wait for the disk").expect("its own disk answers");
    });
    other.assert_mirrored();
}

#[test]
fn side_that_gives_way_on_a_disk_that_hangs_says_how_it_is_meanwhile() {
    let bytes = Volume::device_bytes(BLOCKS, Role::Destination);
    let clock = Arc::new(ManualClock::new(Timestamp(1_700_000_000_000_000_000)));
    let hanging = Hanging::new(bytes);
    let pair = Pair::on(Arc::new(MemoryDevice::new(bytes)), hanging.clone(), clock, 19);
    pair.write(pair.files[0], 0, 40, &mut Rng::new(19));
    pair.update().expect("a baseline");
    let mirror = pair.mirror();
    mirror.failover().expect("it takes writes");
    let standing = pair.converse(|client| mirror.standing(client, None)).expect("the other side answers");
    hanging.shut(true);
    std::thread::scope(|scope| {
        let giving = scope.spawn(|| mirror.give_way(&standing));
        hanging.wait_for_flush();
        let (told, answered) = channel();
        let mirror = &mirror;
        scope.spawn(move || told.send((mirror.lag(), mirror.state())));
        let shown = answered.recv_timeout(LATE);
        hanging.shut(false);
        let (_, state) = shown.expect("who asks how it is does not wait for the disk");
        assert!(matches!(state, DestinationState::FailedOver), "not yet: {state:?}");
        giving.join().expect("it does not panic").expect("it gives way");
    });
    assert!(matches!(mirror.state(), DestinationState::OwnHead));
}
