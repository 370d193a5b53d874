//! Damage is found, replaced by another copy where possible, and never served.

use std::collections::BTreeMap;

use super::*;
use cairn_base::BLOCK_SIZE;
use cairn_format::history::{HistoryRecord, SEGMENTS_START};

const B: usize = BLOCK_SIZE;

/// A flushed device with several segments of every-write history, and the content at each instant.
fn filled(placement: Placement) -> (Stack, Vec<(Timestamp, Vec<u8>)>) {
    let stack = Stack::new(&options(placement, Granularity::EveryWrite, 4096), 16 * B as u64, 4 * MIB);
    let mut known = Vec::new();
    for round in 0..120u64 {
        stack.fill(round % 16 * B as u64, B, round as u8 + 1);
        known.push((stack.now(), bytes(&*stack.history, 0, 16 * B).expect("the present")));
    }
    stack.history.flush().expect("a flush");
    (stack, known)
}

/// Every instant is unchanged, or reads of damaged blocks fail.
fn check(stack: &Stack, known: &[(Timestamp, Vec<u8>)]) -> usize {
    check_blocks(stack, known, 16)
}

/// The same of the first blocks.
fn check_blocks(stack: &Stack, known: &[(Timestamp, Vec<u8>)], blocks: usize) -> usize {
    let mut failed = 0;
    for (at, image) in known {
        let Ok(view) = stack.history.view(*at) else { continue };
        for block in 0..blocks {
            match bytes(&view, (block * B) as u64, B) {
                Ok(found) => assert!(found == image[block * B..][..B], "block {block} at {at:?}"),
                Err(DeviceError::Corrupt { .. }) => failed += 1,
                Err(error) => panic!("{error}"),
            }
        }
    }
    failed
}

#[test]
fn damaged_summary_or_segment_ends_cost_nothing() {
    for placement in [Placement::Logging, Placement::Checkpointing, Placement::SplitDownStream] {
        let (mut stack, known) = filled(placement);
        let segment = 64u64;
        // The last blocks of the first segment: its end, and its summary; then its first block,
        // with both of the others whole.
        for damage in [vec![63], vec![62], vec![0]] {
            let whole = stack.store.fork();
            for block in damage {
                stack.store.corrupt((32 + block % segment) * B as u64, B as u64, &mut Rng::new(1));
            }
            stack.reopen().expect("the other copy of the index serves");
            assert_eq!(check(&stack, &known), 0, "{placement:?}");
            stack.store = Arc::new(whole);
        }
    }
}

/// A log that has wrapped around holds remains of its segments' earlier content, and flushes that
/// confirm each other from one segment to the next.
#[test]
fn damage_anywhere_in_a_log_that_has_gone_round_is_told_or_costs_its_own_blocks() {
    let placements = [Placement::Logging, Placement::SplitDownStream];
    for (first, (rounds, placement)) in
        (97u8..101).flat_map(|rounds| placements.map(|p| (rounds, p))).enumerate()
    {
        let mut stack =
            Stack::new(&options(placement, Granularity::EveryWrite, 4096), 16 * B as u64, 4 * MIB);
        let mut known = Vec::new();
        for round in 0..rounds {
            let block = u64::from(round % 3);
            stack.fill(block * B as u64, 13 * B, round + 1);
            known.push((stack.now(), bytes(&*stack.history, 0, 16 * B).expect("the present")));
            if round % 7 == 3 {
                stack.history.flush().expect("a flush");
            }
            if round + 2 == rounds && first % 4 < 2 {
                // The superblock knows the segment in which the log continues.
                stack.history.flush().expect("a flush");
                while stack.history.step().expect("a step") {}
            }
        }
        stack.history.flush().expect("a flush");
        // No later record states that the last flush was durable: damage of its block may pass for
        // the end of the log.
        stack.fill(15 * B as u64, B, 200);
        stack.history.flush().expect("a flush");
        let last = known.last().expect("there are some").1.clone();
        let whole = stack.store.fork();
        let mut opened = 0;
        // Some, and the first block of each segment.
        let end = 4 * MIB / B as u64;
        for block in (first as u64 % 3..end).step_by(3).chain((32..end).step_by(64)) {
            stack.store = Arc::new(whole.fork());
            stack.store.corrupt(block * B as u64, B as u64, &mut Rng::new(block));
            if stack.reopen().is_err() {
                continue;
            }
            opened += 1;
            check_blocks(&stack, &known, 15);
            for (at, wanted) in last.chunks(B).take(15).enumerate() {
                match bytes(&*stack.history, (at * B) as u64, B) {
                    Ok(found) => assert!(found == wanted, "{placement:?}: {block} damaged, block {at}"),
                    Err(DeviceError::Corrupt { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        }
        assert!(opened > 200, "{placement:?}: {opened}");
    }
}

#[test]
fn damaged_content_is_reported_and_not_served() {
    let (mut stack, known) = filled(Placement::Logging);
    let mut failures = 0;
    for block in (1..60).step_by(3) {
        let whole = stack.store.fork();
        stack.store.corrupt((32 + block) * B as u64, B as u64, &mut Rng::new(block));
        stack.reopen().expect("the summary serves");
        failures += check(&stack, &known);
        stack.store = Arc::new(whole);
    }
    assert!(failures > 100, "content was hit: {failures}");
    assert!(stack.history.status().counters.damaged > 0 || failures > 0);
}

#[test]
fn damaged_superblock_slot_costs_nothing_and_two_of_them_are_reported() {
    let (mut stack, known) = filled(Placement::SplitStream);
    let whole = stack.store.fork();
    for slot in [0, 16] {
        stack.store.corrupt(slot * B as u64, B as u64, &mut Rng::new(4));
        stack.reopen().expect("the other slot serves");
        assert_eq!(check(&stack, &known), 0);
        stack.store = Arc::new(whole.fork());
    }
    stack.store.corrupt(100, 3900, &mut Rng::new(4));
    stack.store.corrupt(16 * B as u64 + 100, 3900, &mut Rng::new(4));
    assert!(matches!(stack.reopen(), Err(HistoryError::Damaged { .. })));
}

#[test]
fn record_that_was_durable_and_is_damaged_without_its_summary_is_reported() {
    let (mut stack, _) = filled(Placement::Logging);
    // The second block of the first segment is the head of its first record.
    for block in [1, 62, 63] {
        stack.store.corrupt((32 + block) * B as u64, B as u64, &mut Rng::new(5));
    }
    assert!(matches!(stack.reopen(), Err(HistoryError::Missing { sequence: 1 })));
}

#[test]
fn damaged_version_does_not_keep_the_rest_of_the_store_from_being_cleaned() {
    let mut options = options(Placement::Logging, Granularity::Marks, 4096);
    options.window = Window::of_a_clone();
    let stack = Stack::new(&options, 512 * B as u64, 4 * MIB);
    stack.fill(511 * B as u64, B, 9);
    stack.history.flush().expect("a flush");
    // Its first block, the head of its first record, and the content of that.
    stack.store.corrupt((SEGMENTS_START + 2) * B as u64, B as u64, &mut Rng::new(1));
    // In each segment most is written again, and a little stays.
    for round in 0..250u64 {
        for block in 0..20 {
            stack.fill(block * B as u64, B, round as u8);
        }
        stack.fill((20 + round) * B as u64, B, round as u8);
    }
    for round in 0..250u64 {
        let found = bytes(&*stack.history, (20 + round) * B as u64, B).expect("a read");
        assert_eq!(found, [round as u8; B]);
    }
    assert!(matches!(bytes(&*stack.history, 511 * B as u64, B), Err(DeviceError::Corrupt { .. })));
}

/// A log that has continued through several segments since the last superblock, with some flushes,
/// and the content at each flushed instant.
fn run_ahead(placement: Placement) -> (Stack, Vec<(Timestamp, Vec<u8>)>) {
    let stack = Stack::new(&options(placement, Granularity::EveryWrite, 4096), 16 * B as u64, 32 * MIB);
    let before = stack.history.status().counters.flushes;
    let mut known = Vec::new();
    for round in 0..220u64 {
        stack.fill(round % 16 * B as u64, B, round as u8 + 1);
        known.push((stack.now(), bytes(&*stack.history, 0, 16 * B).expect("the present")));
        if round == 100 && placement == Placement::Logging {
            let flushes = stack.history.status().counters.flushes - before;
            assert!(flushes <= 4, "the log itself flushes nothing: {flushes}");
        }
        if round > 100 && round % 30 == 0 {
            stack.history.flush().expect("a flush");
        }
    }
    for round in 0..2 {
        stack.history.flush().expect("a flush");
        stack.fill(0, B, 250 + round);
        known.push((stack.now(), bytes(&*stack.history, 0, 16 * B).expect("the present")));
    }
    stack.history.flush().expect("a flush");
    (stack, known)
}

#[test]
fn log_goes_on_without_a_superblock_and_a_damaged_block_of_it_costs_nothing_or_is_reported() {
    for placement in [Placement::Logging, Placement::Checkpointing, Placement::SplitDownStream] {
        let (mut stack, known) = run_ahead(placement);
        let whole = stack.store.fork();
        let segment = 64u64;
        let metadata = metadata_of(&whole);
        let heads = metadata.len() as u64;
        assert!(heads > 20 && *metadata.last().expect("some") > SEGMENTS_START + 3 * segment);
        let mut served = 0;
        // Nothing comes after the last record that could know of it.
        for block in &metadata[..metadata.len() - 1] {
            stack.store = Arc::new(whole.fork());
            stack.store.corrupt(block * B as u64, B as u64, &mut Rng::new(*block));
            match stack.reopen() {
                Ok(()) => {
                    served += 1;
                    // Blocks that the first opening did without must not be needed by the next one.
                    stack.reopen().expect("it opens again");
                    for (at, image) in &known {
                        let view = stack.history.view(*at).expect("an instant of the window");
                        let found = bytes(&view, 0, 16 * B).expect("a read");
                        assert!(found == *image, "{placement:?}: {at:?} with block {block} damaged");
                    }
                }
                Err(HistoryError::Missing { .. } | HistoryError::Damaged { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        assert!(served > heads / 2, "{placement:?}: {served} of {heads} cost nothing");
    }
}

/// All blocks of the first segments of a store that are not content: first and last blocks, heads
/// of records, summaries.
fn metadata_of(store: &FaultDevice) -> Vec<u64> {
    let is_metadata = |block: &u64| {
        let bytes = bytes(store, block * B as u64, B).expect("a read");
        let first = bytes.first_chunk().expect("a block");
        bytes.starts_with(b"CHISSEGM") || HistoryRecord::peek(first, HistoryId([7; 16])).is_ok()
    };
    (SEGMENTS_START..SEGMENTS_START + 8 * 64).filter(is_metadata).collect()
}

/// A disk reports an unreadable place. The same copy replaces it as when it is damaged.
#[test]
fn place_of_a_store_that_cannot_be_read_costs_what_damage_of_it_would_cost() {
    for placement in [Placement::Logging, Placement::Checkpointing, Placement::SplitDownStream] {
        let (mut stack, known) = run_ahead(placement);
        let whole = stack.store.fork();
        let metadata = metadata_of(&whole);
        let behind = {
            let writer = stack.history.writer.lock();
            writer.start_of(writer.segment) + writer.position
        };
        let last = *metadata.last().expect("some");
        let (mut refused, mut hurt) = (0, 0);
        let slots = [0, 16];
        for block in slots.into_iter().chain(SEGMENTS_START..SEGMENTS_START + 8 * 64) {
            // Nothing else shows whether a last record exists, or one more. For content some is
            // enough.
            let is_content = block >= SEGMENTS_START && !metadata.contains(&block);
            if block == last || block == behind || is_content && block % 5 > 0 {
                continue;
            }
            stack.store = Arc::new(whole.fork());
            stack.store.fail_reads(block * B as u64..(block + 1) * B as u64);
            match stack.reopen() {
                Ok(()) => {}
                Err(HistoryError::Missing { .. }) if metadata.contains(&block) => {
                    refused += 1;
                    continue;
                }
                Err(error) => panic!("{placement:?}: with block {block}: {error}"),
            }
            stack.reopen().expect("what the first opening did without the next one does not need");
            for (at, image) in known.iter().step_by(3) {
                let view = stack.history.view(*at).expect("an instant of the window");
                for lba in 0..16 {
                    match bytes(&view, (lba * B) as u64, B) {
                        Ok(found) => assert!(
                            found == image[lba * B..][..B],
                            "{placement:?}: {lba} at {at:?} with block {block}"
                        ),
                        Err(_) => hurt += u64::from(!metadata.contains(&block)),
                    }
                }
            }
        }
        assert!(refused < metadata.len() / 2, "{placement:?}: {refused} of {}", metadata.len());
        assert!(hurt > 0, "{placement:?}: content was hit");
    }
}

#[test]
fn store_whose_slot_cannot_be_read_is_not_taken_for_an_empty_one() {
    let every = options(Placement::Logging, Granularity::EveryWrite, 4096);
    let stack = Stack::new(&every, 16 * B as u64, 4 * MIB);
    stack.store.write_from(16 * B as u64, &[0; B]).expect("a write");
    stack.store.fail_reads(0..B as u64);
    let open = open_options(&stack.clock, 64 << 10);
    let made = History::create(stack.origin.clone(), stack.store.clone(), &every, open).map(drop);
    assert!(matches!(made, Err(HistoryError::Device(_))), "{made:?}");
}

/// Most blocks of a store are overwritten, and its first segment is to be emptied: both copies of
/// its index are unreadable.
#[test]
fn segment_of_which_no_copy_of_its_index_can_be_read_stays_and_writes_go_on() {
    let mut options = options(Placement::Logging, Granularity::Marks, 4096);
    options.window = Window::of_a_clone();
    let stack = Stack::new(&options, 512 * B as u64, 4 * MIB);
    stack.fill(511 * B as u64, B, 9);
    stack.history.flush().expect("a flush");
    // Its first record, and its last blocks.
    for block in [1, 62, 63] {
        stack.store.fail_reads((SEGMENTS_START + block) * B as u64..(SEGMENTS_START + block + 1) * B as u64);
    }
    for round in 0..250u64 {
        for block in 0..20 {
            stack.fill(block * B as u64, B, round as u8);
        }
        stack.fill((20 + round) * B as u64, B, round as u8);
    }
    for round in 0..250u64 {
        let found = bytes(&*stack.history, (20 + round) * B as u64, B).expect("a read");
        assert_eq!(found, [round as u8; B]);
    }
    assert_eq!(bytes(&*stack.history, 511 * B as u64, B).expect("it stays"), [9; B]);
}

#[test]
fn segment_that_ended_before_a_cut_and_goes_on_after_it_counts_with_all_that_it_has() {
    const LARGE: usize = 65536;
    let options = options(Placement::Logging, Granularity::EveryWrite, LARGE as u32);
    let mut stack = Stack::new(&options, 8 * LARGE as u64, 32 * MIB);
    let (first, second, end) = (SEGMENTS_START, SEGMENTS_START + 64, SEGMENTS_START + 62);
    let write_out = |stack: &Stack| drop(stack.history.view(stack.now()).expect("a view"));
    for block in 0..3 {
        stack.fill((block * LARGE) as u64, LARGE, block as u8 + 1);
        stack.history.flush().expect("a flush");
    }
    // Has no room in the first segment, which ends; nothing of that is flushed, and a cut keeps
    // only the end.
    stack.fill(3 * LARGE as u64, LARGE, 9);
    write_out(&stack);
    stack.store.write_from(second * B as u64, &[0; 64 * B]).expect("a write");
    stack.reopen().expect("it opens");
    stack.history.mark("kept", false).expect("a mark has room in the first segment");
    let before = bytes(&*stack.store, end * B as u64, 2 * B).expect("a read");
    // It ends again, and the next cut keeps all but that.
    stack.fill(3 * LARGE as u64, LARGE, 4);
    write_out(&stack);
    stack.store.write_from(end * B as u64, &before).expect("a write");
    for damaged in [None, None, Some(first + 18)] {
        if let Some(block) = damaged {
            stack.store.corrupt(block * B as u64, B as u64, &mut Rng::new(1));
        }
        stack.reopen().expect("it opens");
        stack.history.flush().expect("a flush");
        stack.history.marked("kept").expect("a mark that was durable");
        for block in 0..4 {
            let found = bytes(&*stack.history, (block * LARGE) as u64, LARGE).expect("a read");
            assert!(found == [block as u8 + 1; LARGE], "block {block} with {damaged:?} damaged");
        }
    }
}

#[test]
fn damage_in_what_the_last_flush_made_durable_is_not_taken_for_the_end_of_the_log() {
    // A head, with no write since that flush; a content, after there was time to record its
    // durability.
    for (block, idle) in [(1, false), (2, true)] {
        let options = options(Placement::Logging, Granularity::EveryWrite, 4096);
        let mut stack = Stack::new(&options, 16 * B as u64, 32 * MIB);
        for round in 0..150u64 {
            stack.fill(round % 16 * B as u64, B, round as u8 + 1);
        }
        stack.history.flush().expect("a flush");
        while idle && stack.history.step().expect("a step") {}
        let present = bytes(&*stack.history, 0, 16 * B).expect("a read");
        stack.store.corrupt((SEGMENTS_START + block) * B as u64, B as u64, &mut Rng::new(1));
        stack.reopen().expect("it opens");
        let found = bytes(&*stack.history, 0, 16 * B).expect("a read");
        assert!(found == present, "block {block} of the log is damaged");
    }
}

#[test]
fn end_from_before_a_cut_serves_nothing_that_came_after_it() {
    const LARGE: usize = 65536;
    let options = options(Placement::Logging, Granularity::EveryWrite, LARGE as u32);
    let mut stack = Stack::new(&options, 8 * LARGE as u64, 32 * MIB);
    let (second, third_record) = (SEGMENTS_START + 64, SEGMENTS_START + 35);
    for block in 0..2 {
        stack.fill((block * LARGE) as u64, LARGE, block as u8 + 1);
        stack.history.flush().expect("a flush");
    }
    // A third record, and one that ends the segment; nothing of that is flushed, and a cut keeps
    // only the end.
    for block in 2..4 {
        stack.fill((block * LARGE) as u64, LARGE, 9);
    }
    drop(stack.history.view(stack.now()).expect("a view"));
    stack.store.write_from(third_record * B as u64, &[0; 17 * B]).expect("a write");
    stack.store.write_from(second * B as u64, &[0; 64 * B]).expect("a write");
    stack.reopen().expect("it opens");
    // The log continues where the third record was, and the next record knows that it was durable.
    stack.history.mark("kept", false).expect("a mark");
    stack.history.mark("later", false).expect("a mark");
    stack.store.corrupt(third_record * B as u64, B as u64, &mut Rng::new(1));
    let opened = stack.reopen();
    assert!(matches!(opened, Err(HistoryError::Missing { .. })), "what was lost is told: {opened:?}");
}

/// A cut keeps the head of a record and a part of its content, and the log continues in the next
/// segment, as no larger record fits after it. The abandoned record must not return when the
/// summary, which lists it, is damaged.
#[test]
fn record_that_a_cut_had_torn_does_not_come_back_with_a_damaged_summary() {
    const BLOCK: usize = 16 * B;
    const LENGTH: usize = 3 * BLOCK + 5 * B;
    let every = options(Placement::Logging, Granularity::EveryWrite, BLOCK as u32);
    let mut stack = Stack::new(&every, LENGTH as u64, 8 * MIB);
    let standing = |stack: &Stack| {
        let writer = stack.history.writer.lock();
        (writer.segment, writer.position, writer.start_of(writer.segment), writer.superblock.segment_blocks)
    };
    stack.fill(0, LENGTH, 1);
    stack.history.flush().expect("a flush");
    // Room for the last block, which is short, and for no other.
    let mut round = 1;
    while {
        let (_, position, _, blocks) = standing(&stack);
        !(blocks - 16..blocks - 8).contains(&position)
    } {
        round += 1;
        stack.fill(round % 3 * BLOCK as u64, BLOCK, round as u8);
        stack.history.flush().expect("a flush");
    }
    stack.reopen().expect("it opens");
    let before = bytes(&*stack.history, 0, LENGTH).expect("a read");
    let (segment, position, start, blocks) = standing(&stack);
    stack.fill(3 * BLOCK as u64, 5 * B, 201);
    stack.history.flush().expect("a flush");
    let (same, behind, ..) = standing(&stack);
    assert_eq!((same, behind), (segment, position + 6), "one record");
    // Its last block never came to the disk.
    stack.store.corrupt((start + behind - 1) * B as u64, B as u64, &mut Rng::new(5));
    stack.reopen().expect("it opens");
    assert!(bytes(&*stack.history, 0, LENGTH).expect("a read") == before, "it was torn");
    stack.fill(0, BLOCK, 202);
    stack.history.flush().expect("a flush");
    assert_ne!(standing(&stack).0, segment, "the log has gone on in another segment");
    let present = bytes(&*stack.history, 0, LENGTH).expect("a read");
    stack.reopen().expect("it opens");
    stack.store.corrupt((start + blocks - 2) * B as u64, B as u64, &mut Rng::new(6));
    stack.reopen().expect("its records serve");
    assert!(bytes(&*stack.history, 0, LENGTH).expect("what was there before") == present);
}

/// The earlier content of some places of a store.
type Before = Vec<(u64, Vec<u8>)>;

/// A log that has wrapped around, and the first and last blocks that each of its segments had the
/// first time.
fn gone_round() -> (Stack, Vec<(Timestamp, Vec<u8>)>, Before, Before) {
    const SEGMENT: u64 = 64;
    let stack =
        Stack::new(&options(Placement::Logging, Granularity::EveryWrite, 4096), 16 * B as u64, 4 * MIB);
    let (mut begins, mut ends) = (BTreeMap::new(), BTreeMap::new());
    let mut known = Vec::new();
    for round in 0..1300u64 {
        stack.fill(round % 16 * B as u64, B, (round % 255) as u8 + 1);
        known.push((stack.now(), bytes(&*stack.history, 0, 16 * B).expect("the present")));
        for start in (SEGMENTS_START..4 * MIB / B as u64 - SEGMENT + 1).step_by(SEGMENT as usize) {
            let read = |block: u64, blocks: usize| {
                bytes(&*stack.store, block * B as u64, blocks * B).expect("a read")
            };
            // The summary is lost with the end: they are one write.
            for (places, found, mark) in
                [(&mut begins, read(start, 1), 0), (&mut ends, read(start + SEGMENT - 2, 2), B)]
            {
                if found[mark..].starts_with(b"CHISSEGM") {
                    let at = if mark == 0 { start } else { start + SEGMENT - 2 };
                    places.entry(at * B as u64).or_insert(found);
                }
            }
        }
    }
    stack.history.flush().expect("a flush");
    while stack.history.step().expect("a step") {}
    let is_other =
        |(at, before): &(u64, Vec<u8>)| bytes(&*stack.store, *at, before.len()).expect("a read") != *before;
    let others = |places: BTreeMap<u64, Vec<u8>>| places.into_iter().filter(is_other).collect::<Before>();
    let (begins, ends) = (others(begins), others(ends));
    assert!(begins.len() > 5 && ends.len() > 5, "{} segments were used again", begins.len());
    (stack, known, begins, ends)
}

/// The write that ended a segment was acknowledged and lost: the place has the segment's earlier
/// end block.
#[test]
fn end_of_what_a_segment_had_before_ends_nothing() {
    let (mut stack, known, _, ends) = gone_round();
    let present = bytes(&*stack.history, 0, 16 * B).expect("a read");
    let whole = stack.store.fork();
    for (at, before) in ends {
        stack.store = Arc::new(whole.fork());
        stack.store.write_from(at, &before).expect("a write");
        stack.reopen().expect("its records serve");
        assert!(bytes(&*stack.history, 0, 16 * B).expect("a read") == present, "at {at}");
        assert_eq!(check(&stack, &known), 0, "at {at}");
    }
}

/// The same for the write that began it. For an ended segment the summary serves; for the log's
/// current segment its first record.
#[test]
fn beginning_of_what_a_segment_had_before_hides_nothing() {
    let (mut stack, known, begins, _) = gone_round();
    let present = bytes(&*stack.history, 0, 16 * B).expect("a read");
    let whole = stack.store.fork();
    for (at, before) in begins {
        stack.store = Arc::new(whole.fork());
        stack.store.write_from(at, &before).expect("a write");
        stack.reopen().expect("it opens without it");
        assert!(bytes(&*stack.history, 0, 16 * B).expect("a read") == present, "at {at}");
        assert_eq!(check(&stack, &known), 0, "at {at}");
    }
}

/// Only the superblock identifies the segment in which the log continues: it has no end yet.
#[test]
fn first_block_of_the_segment_in_which_the_log_goes_on_may_be_damaged() {
    for placement in [Placement::Logging, Placement::Checkpointing, Placement::SplitDownStream] {
        // In the first segment there is; in a later one, right after an opening, and once that has
        // written more.
        for (rounds, reopened, more) in
            [(10, false, 0), (10, true, 0), (150, false, 0), (150, true, 0), (150, true, 2)]
        {
            let every = options(placement, Granularity::EveryWrite, 4096);
            let mut stack = Stack::new(&every, 16 * B as u64, 4 * MIB);
            let mut known = Vec::new();
            let fill = |stack: &Stack, round: u64, known: &mut Vec<_>| {
                stack.fill(round % 16 * B as u64, B, round as u8 + 1);
                known.push((stack.now(), bytes(&*stack.history, 0, 16 * B).expect("the present")));
            };
            (0..rounds).for_each(|round| fill(&stack, round, &mut known));
            stack.history.flush().expect("a flush");
            while stack.history.step().expect("a step") {}
            if reopened {
                stack.reopen().expect("it opens");
            }
            (0..more).for_each(|round| fill(&stack, round, &mut known));
            stack.history.flush().expect("a flush");
            let first = {
                let writer = stack.history.writer.lock();
                writer.start_of(writer.segment)
            };
            let (whole, disk) = (stack.store.fork(), bytes(&*stack.origin, 0, 16 * B).expect("a read"));
            for hurt in [true, false] {
                stack.store = Arc::new(whole.fork());
                stack.origin.write_from(0, &disk).expect("a write");
                match hurt {
                    true => stack.store.corrupt(first * B as u64, B as u64, &mut Rng::new(1)),
                    false => stack.store.fail_reads(first * B as u64..(first + 1) * B as u64),
                }
                stack.reopen().unwrap_or_else(|error| panic!("{placement:?}, {rounds}, {reopened}: {error}"));
                assert_eq!(check(&stack, &known), 0, "{placement:?}");
                // It continues there, and is whole again.
                stack.fill(0, B, 255);
                stack.history.flush().expect("a flush");
                stack.store.heal_reads();
                stack.reopen().expect("it opens");
                assert_eq!(bytes(&*stack.history, 0, B).expect("a read"), [255; B]);
                assert_eq!(check(&stack, &known), 0, "{placement:?}");
            }
        }
    }
}

/// Earlier content of a segment, or records that a cut removed from the log, are not mistaken for
/// the segment in which the log continues.
#[test]
fn records_of_before_are_not_taken_for_the_segment_in_which_the_log_goes_on() {
    let every = options(Placement::Logging, Granularity::EveryWrite, 4096);
    let mut stack = Stack::new(&every, 16 * B as u64, 4 * MIB);
    let standing = |stack: &Stack| {
        let writer = stack.history.writer.lock();
        (writer.start_of(writer.segment), writer.position)
    };
    // Round and round, up to where a segment that had been used before has begun and has no record.
    let mut round = 0;
    let first = loop {
        round += 1;
        stack.fill(round % 16 * B as u64, B, (round % 255) as u8);
        stack.history.flush().expect("a flush");
        let (first, _) = standing(&stack);
        if round > 1500 && standing(&stack).1 > 50 {
            let mut writer = stack.history.writer.lock();
            let writer = &mut *writer;
            stack.history.next_segment(writer).expect("there are spare ones");
            stack.history.write_superblock(writer).expect("a superblock");
            stack.history.sync_store(writer).expect("a flush");
            assert_ne!(writer.start_of(writer.segment), first);
            break writer.start_of(writer.segment);
        }
    };
    let record = bytes(&*stack.store, (first + 1) * B as u64, B).expect("a read");
    let is_record = HistoryRecord::peek(record.first_chunk().expect("a block"), HistoryId([7; 16])).is_ok();
    assert!(is_record, "it has what it had before");
    let present = bytes(&*stack.history, 0, 16 * B).expect("a read");
    stack.store.corrupt(first * B as u64, B as u64, &mut Rng::new(1));
    let whole = stack.store.fork();
    stack.reopen().expect("how it had ended before says so");
    assert!(bytes(&*stack.history, 0, 16 * B).expect("a read") == present);
    // As in the state that a cut leaves: without an end.
    stack.store = Arc::new(whole);
    stack.store.write_from((first + 63) * B as u64, &[0; B]).expect("a write");
    let opened = stack.reopen();
    assert!(matches!(opened, Err(HistoryError::Damaged { .. })), "{opened:?}");
}
