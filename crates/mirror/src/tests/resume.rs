//! Interrupted transfers resume where they were: at every record, at every operation of the
//! destination's device, whatever changes meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cairn_base::{ManualClock, Rng, Timestamp};
use cairn_device::{Device, FaultDevice, MemoryDevice};
use cairn_volume::{Role, Volume};

use super::harness::{BLOCKS, Pair, Trouble, assert_clean, open};
use crate::{Compression, MirrorError, Source};

/// Blocks of a record of the stream.
const RECORD: u64 = 256;

/// A source with enough content that a baseline has several records.
fn fill(pair: &mut Pair, rng: &mut Rng) {
    pair.add_file();
    pair.add_file();
    for file in pair.files.clone() {
        pair.write(file, 0, 300, rng);
    }
    pair.source.consistency_point().expect("a consistency point");
}

#[test]
fn a_cut_link_costs_the_record_that_was_on_its_way() {
    let whole = {
        let mut pair = Pair::new(0);
        fill(&mut pair, &mut Rng::new(1));
        pair.update().expect("a baseline")
    };
    let mut cuts = 0;
    // Twice in each record, and so also in each list after the blocks.
    for cut_after in (1000..whole.bytes + 2000).step_by(500_000) {
        let mut pair = Pair::new(0);
        fill(&mut pair, &mut Rng::new(1));
        let arrived = AtomicU64::new(0);
        let trouble = Trouble { cut_after: Some(cut_after), arrived: Some(&arrived), ..Trouble::default() };
        let Err(_) = pair.update_with(&pair.mirror(), trouble) else { continue };
        cuts += 1;
        let arrived = arrived.load(Ordering::Relaxed);
        assert!(arrived + 2 * RECORD > cut_after / 4096, "{arrived} of {cut_after} bytes");
        let report = pair.update().expect("it goes on");
        // The map and the inodes of the first attempt's snapshot are rewritten for the second's.
        assert!(report.kept_blocks + 20 >= arrived, "kept {} of {arrived}", report.kept_blocks);
        assert!(report.blocks <= whole.blocks - arrived + 20, "sent {} with {arrived} here", report.blocks);
        pair.assert_mirrored();
    }
    assert!(cuts > 5, "{cuts} cuts");
}

/// The power fails at every operation of the destination's device; unflushed writes are kept, lost
/// or torn.
#[test]
fn a_power_cut_at_any_operation_of_the_destination_costs_one_checkpoint() {
    let mut cut_at = 1;
    let mut resumed = 0;
    loop {
        let clock = Arc::new(ManualClock::new(Timestamp(1_700_000_000_000_000_000)));
        let near: Arc<dyn Device> = Arc::new(MemoryDevice::new(Volume::device_bytes(BLOCKS, Role::Normal)));
        let far = Arc::new(FaultDevice::new(Volume::device_bytes(BLOCKS, Role::Destination)));
        let mut pair = Pair::on(near, far.clone(), clock, 0);
        let mut rng = Rng::new(cut_at);
        fill(&mut pair, &mut rng);
        if cut_at % 3 == 0 {
            // Then blocks that the image here shows are sent again, and go to the redirect area.
            pair.hold = false;
            pair.update().expect("a baseline");
            for _ in 0..3 {
                for file in pair.files.clone() {
                    pair.write(file, 0, 300, &mut rng);
                }
                pair.source.consistency_point().expect("a consistency point");
            }
        }
        far.cut_after(cut_at);
        let arrived = AtomicU64::new(0);
        let clock = pair.clock.clone();
        // A checkpoint with each record.
        let mut tick = || clock.advance(Duration::from_secs(2));
        let trouble = Trouble { arrived: Some(&arrived), meanwhile: Some(&mut tick), ..Trouble::default() };
        let outcome = pair.update_with(&pair.mirror(), trouble);
        if !far.is_off() {
            outcome.expect("nothing was cut");
            break;
        }
        let far = Arc::new(far.power_cycle(&mut rng));
        pair.destination_device = far.clone();
        pair.reopen_destination();
        assert_clean(&pair.destination);
        let report = pair.update().unwrap_or_else(|error| panic!("cut at {cut_at}: {error}"));
        let arrived = arrived.load(Ordering::Relaxed);
        // Committed before the cut: then no work is left.
        if report.bytes > 0 {
            // Two records: one after the last checkpoint, and one whose checkpoint was cut.
            let kept = report.kept_blocks;
            assert!(kept + 2 * RECORD + 20 >= arrived, "cut at {cut_at}: kept {kept} of {arrived}");
            resumed += u64::from(kept > 0);
        }
        match pair.hold {
            true => pair.assert_mirrored(),
            false => pair.assert_same(),
        }
        cut_at += 1;
    }
    assert!(cut_at > 20 && resumed > 10, "{resumed} of {cut_at} cuts left something");
}

#[test]
fn it_goes_on_toward_a_newer_snapshot_with_other_options_and_a_restarted_source() {
    for seed in 0..12 {
        let mut pair = Pair::new(seed);
        let mut rng = Rng::new(seed);
        fill(&mut pair, &mut rng);
        let arrived = AtomicU64::new(0);
        let cut_after = 1_200_000 + rng.below(1_000_000);
        let trouble = Trouble { cut_after: Some(cut_after), arrived: Some(&arrived), ..Trouble::default() };
        pair.update_with(&pair.mirror(), trouble).expect_err("it was cut");
        if seed % 2 == 0 {
            pair.registry = Source::new().into();
        }
        if seed % 3 == 0 {
            pair.reopen_destination();
        }
        pair.compression =
            if pair.compression == Compression::None { Compression::Zstd } else { Compression::None };
        // The snapshot in transfer is deleted, and some of its blocks are reused.
        super::transfers::delete_bases(&pair);
        for _ in 0..2 {
            pair.write(pair.files[0], 0, 150, &mut rng);
            pair.source.consistency_point().expect("a consistency point");
        }
        let before = arrived.load(Ordering::Relaxed);
        let report = pair.update().expect("it goes on");
        assert!(report.kept_blocks + 400 > before, "seed {seed}: kept {} of {before}", report.kept_blocks);
        assert!(report.kept_blocks > 0, "seed {seed}: {report:?}");
        pair.assert_mirrored();
    }
}

/// The same vbn with another content must be sent again, also when all of them were used again.
#[test]
fn a_block_that_was_used_again_meanwhile_is_not_taken_for_the_one_that_arrived() {
    for seed in 0..6 {
        let mut pair = Pair::new(seed);
        let mut rng = Rng::new(seed);
        fill(&mut pair, &mut rng);
        for round in 0..6 {
            let cut_after = 300_000 + rng.below(4_000_000);
            let trouble = Trouble { cut_after: Some(cut_after), ..Trouble::default() };
            // Some are short enough to come through.
            let _ = pair.update_with(&pair.mirror(), trouble);
            super::transfers::delete_bases(&pair);
            for _ in 0..6 {
                for file in pair.files.clone() {
                    pair.write(file, 0, 300, &mut rng);
                }
                pair.source.consistency_point().expect("a consistency point");
            }
            if round % 2 == 1 {
                pair.reopen_destination();
            }
        }
        pair.update().expect("an update");
        pair.assert_mirrored();
    }
}

#[test]
fn an_attempt_that_brings_nothing_new_costs_next_to_nothing() {
    let mut pair = Pair::new(0);
    let mut rng = Rng::new(9);
    fill(&mut pair, &mut rng);
    let whole = pair.source.status().used;
    let mut sent = 0;
    // Interrupted repeatedly: the total of the sent data is little more than one copy.
    for round in 0..40 {
        let arrived = AtomicU64::new(0);
        let trouble = Trouble { cut_after: Some(1_500_000), arrived: Some(&arrived), ..Trouble::default() };
        let outcome = pair.update_with(&pair.mirror(), trouble);
        sent += arrived.load(Ordering::Relaxed);
        if let Ok(report) = outcome {
            assert!(round >= 2, "it was cut some times");
            assert!(report.confirmed);
            pair.assert_mirrored();
            assert!(sent <= whole + 40 * (round + 1), "{sent} blocks for {whole}");
            return;
        }
    }
    panic!("it never gets through");
}

#[test]
fn a_failover_in_the_middle_forgets_what_had_arrived() {
    let mut pair = Pair::new(0);
    let mut rng = Rng::new(10);
    fill(&mut pair, &mut rng);
    pair.update().expect("a baseline");
    for file in pair.files.clone() {
        pair.write(file, 0, 300, &mut rng);
    }
    let mirror = pair.mirror();
    let trouble = Trouble { cut_after: Some(2_000_000), ..Trouble::default() };
    pair.update_with(&mirror, trouble).expect_err("it was cut");
    mirror.failover().expect("a failover");
    pair.source = pair.destination.clone();
    for _ in 0..6 {
        for file in pair.files.clone() {
            pair.write(file, 0, 300, &mut rng);
        }
        pair.source.consistency_point().expect("a consistency point");
    }
    assert_clean(&pair.source);
    let reopened = open(&pair.destination_device, &pair.clock);
    assert_clean(&reopened);
    assert!(reopened.receive().is_err(), "it takes no transfer any more");
}

#[test]
fn link_that_breaks_within_every_record_brings_an_image_all_the_same() {
    let mut pair = Pair::new(0);
    fill(&mut pair, &mut Rng::new(1));
    let cut_after = Some(RECORD * 4096 / 2);
    for _ in 0..40 {
        if pair.update_with(&pair.mirror(), Trouble { cut_after, ..Trouble::default() }).is_ok() {
            return pair.assert_mirrored();
        }
    }
    panic!("{} blocks have arrived, and no image", pair.destination.arrived_blocks());
}

#[test]
fn stream_that_ends_in_the_middle_is_reported_without_the_words_of_a_library() {
    let eof = || std::io::Error::new(std::io::ErrorKind::UnexpectedEof, "see https://example.org");
    let in_stream = cairn_stream::StreamError::Io(std::sync::Arc::new(eof()));
    for error in [MirrorError::from(eof()), MirrorError::from(in_stream)] {
        let message = error.to_string();
        assert!(message.contains("ended in the middle") && !message.contains("https"), "{message}");
    }
}
