//! Power cuts in rare places: during an opening, and while only the log has the content. Whole
//! lives with cuts are the simulator's.

use super::*;
use cairn_base::BLOCK_SIZE;
use cairn_device::Fate;
use cairn_format::history::{PLACE_UNIT, SLOT_A, SLOT_B};

use crate::resolve::NOW;

const B: usize = BLOCK_SIZE;

/// The next superblock is written over one slot first: where the other is damaged, a cut must not
/// leave none.
#[test]
fn opening_with_one_slot_that_is_cut_anywhere_leaves_a_history() {
    let stack = Stack::new(
        &options(Placement::SplitDownStream, Granularity::EveryWrite, 4096),
        16 * B as u64,
        4 * MIB,
    );
    stack.fill(0, 16 * B, 1);
    stack.history.flush().expect("a flush");
    let at = stack.now();
    stack.fill(0, 8 * B, 2);
    stack.history.flush().expect("a flush");
    for slot in [SLOT_A, SLOT_B] {
        let mut cuts = 0;
        for operation in 0.. {
            let store = stack.store.power_cycle_as(Fate::Kept, &mut Rng::new(1));
            store.corrupt(slot * B as u64, B as u64, &mut Rng::new(2));
            store.cut_after(operation);
            let store = Arc::new(store);
            let open = open_options(&stack.clock, 64 << 10);
            let opened = History::open(stack.origin.clone(), store.clone(), open);
            if !store.is_off() {
                opened.expect("nothing has cut it");
                break;
            }
            cuts += 1;
            drop(opened);
            for seed in 0..20 {
                let how = format!("slot {slot}, cut after {operation}, seed {seed}");
                let store = Arc::new(store.power_cycle(&mut Rng::new(seed)));
                let open = open_options(&stack.clock, 64 << 10);
                let history = History::open(stack.origin.clone(), store, open).expect(&how);
                assert!(bytes(&*history, 0, 8 * B).expect("a read") == [2; 8 * B], "{how}");
                let view = history.view(at).expect("a view");
                assert!(bytes(&view, 0, 8 * B).expect("a read") == [1; 8 * B], "{how}");
            }
        }
        assert!(cuts > 4, "an opening writes");
    }
}

/// The log was durable and the origin was not: the content that it has lost is written there again.
#[test]
fn what_the_log_has_and_the_origin_has_lost_is_there_when_the_history_is_left_behind() {
    for placement in Placement::ALL {
        for (blocks, rounds) in [(256, 1u8), (256, 3), (256, 9), (2048, 2)] {
            let how = format!("{placement:?}, {rounds} rounds of {blocks} blocks");
            let origin = Arc::new(FaultDevice::new((blocks * B) as u64));
            let store = Arc::new(FaultDevice::new(32 * MIB));
            let options = options(placement, Granularity::EveryWrite, 4096);
            let open = open_options(&clock(), 64 << 10);
            let history =
                History::create(origin.clone(), store.clone(), &options, open.clone()).expect("a history");
            for round in 1..=rounds {
                for block in 0..blocks as u64 {
                    let data = Segments::copy_of(&[round; B]);
                    history.write(block * B as u64, data).expect("a write");
                }
            }
            // All that was written so far, and not flushed, is in the log alone.
            let cut = |device: &FaultDevice, fate| Arc::new(device.power_cycle_as(fate, &mut Rng::new(1)));
            let (origin, store) = (cut(&origin, Fate::Lost), cut(&store, Fate::Kept));
            let history = History::open(origin.clone(), store, open).expect("it opens");
            let present = bytes(&*history, 0, blocks * B).expect("a read");
            if matches!(placement, Placement::Logging | Placement::SplitStream | Placement::SplitDownStream) {
                let newest = present.iter().filter(|byte| **byte == rounds).count();
                assert!(newest > (blocks - 50) * B, "{how}: the log has most of it");
            }
            history.release(&|_, _| {}).expect("a release");
            drop(history);
            assert!(bytes(&*origin, 0, blocks * B).expect("a read") == present, "{how}");
        }
    }
}

/// Any parts of unflushed writes may be present: none counts as damage, and flushed writes are
/// present.
#[test]
fn end_of_a_log_that_was_not_flushed_is_no_damage_whatever_a_cut_leaves_of_it() {
    const FLUSHED: u8 = 2;
    for placement in Placement::ALL {
        let origin = Arc::new(FaultDevice::new(64 * B as u64));
        let store = Arc::new(FaultDevice::new(4 * MIB));
        let options = options(placement, Granularity::EveryWrite, 4096);
        let open = open_options(&clock(), 64 << 10);
        let history =
            History::create(origin.clone(), store.clone(), &options, open.clone()).expect("a history");
        let mut flushed = None;
        for round in 1..=9u8 {
            for block in 0..64u64 {
                history.write(block * B as u64, Segments::copy_of(&[round; B])).expect("a write");
            }
            if round == FLUSHED {
                history.flush().expect("a flush");
                flushed = Some(history.status().last);
                // The superblock knows the segment in which the log continues.
                while history.step().expect("a step") {}
            }
        }
        let flushed = flushed.expect("one of them is");
        for seed in 0..100 {
            let how = format!("{placement:?}, seed {seed}");
            let mut rng = Rng::new(seed);
            let mut cut = |device: &FaultDevice| Arc::new(device.power_cycle(&mut rng));
            let (origin, store) = (cut(&origin), cut(&store));
            let history = History::open(origin.clone(), store, open.clone()).expect(&how);
            let present = bytes(&*history, 0, 64 * B).expect(&how);
            let is_whole = |part: &[u8]| part[0] >= FLUSHED && part.iter().all(|byte| *byte == part[0]);
            assert!(present.chunks(512).all(is_whole), "{how}");
            match history.view(flushed) {
                Ok(view) => assert!(bytes(&view, 0, 64 * B).expect(&how) == [FLUSHED; 64 * B], "{how}"),
                Err(HistoryError::BeforeWindow) => {}
                Err(error) => panic!("{how}: {error}"),
            }
            history.release(&|_, _| {}).expect("a release");
            assert!(bytes(&*origin, 0, 64 * B).expect(&how) == present, "{how}");
        }
    }
}

/// A segment has ended, and no flush followed: its end may name records that a cut has removed.
/// Missing records are not damage, and the earlier ones are the present.
#[test]
fn end_that_a_cut_has_kept_proves_nothing_of_what_it_names() {
    const LARGE: usize = 65536;
    let options = options(Placement::Logging, Granularity::EveryWrite, LARGE as u32);
    let mut stack = Stack::new(&options, 8 * LARGE as u64, 32 * MIB);
    let start = |stack: &Stack| {
        let writer = stack.history.writer.lock();
        (writer.start_of(writer.segment), writer.position)
    };
    // Three in the first segment, two in the second: the superblock knows that the log continues
    // there, and names others ahead.
    for block in 0..5 {
        stack.fill((block * LARGE) as u64, LARGE, block as u8 + 1);
        stack.history.flush().expect("a flush");
    }
    stack.reopen().expect("it opens");
    let (segment, position) = start(&stack);
    assert_eq!(position, 35, "there is room for one more record");
    // That one, and one that ends the segment. A cut takes the content of the one, and the other.
    for block in 2..4 {
        stack.fill((block * LARGE) as u64, LARGE, 9);
    }
    drop(stack.history.view(stack.now()).expect("a view"));
    let (next, _) = start(&stack);
    let content = (segment + position + 1) * B as u64;
    assert!(next != segment && bytes(&*stack.store, content, LARGE).expect("a read") == [9; LARGE]);
    stack.store.write_from(content, &[0; LARGE]).expect("a write");
    stack.store.write_from(next * B as u64, &[0; 64 * B]).expect("a write");
    for _ in 0..2 {
        stack.reopen().expect("it opens");
        for block in 0..5 {
            let found = bytes(&*stack.history, (block * LARGE) as u64, LARGE).expect("nothing is damaged");
            assert!(found == [block as u8 + 1; LARGE], "block {block}");
        }
    }
}

/// A content was damaged that the origin has lost in a cut as well: an opening records that in the
/// log. Until that is durable the next one must look for it again. Otherwise a release, or a move
/// of the window, would take the origin's content for the present.
#[test]
fn what_an_opening_has_found_to_be_lost_is_lost_after_a_cut_behind_it() {
    const LOST: u64 = 3;
    let origin = Arc::new(FaultDevice::new(16 * B as u64));
    let store = Arc::new(FaultDevice::new(4 * MIB));
    let options = options(Placement::SplitDownStream, Granularity::EveryWrite, B as u32);
    let open = open_options(&clock(), 64 << 10);
    let history = History::create(origin.clone(), store.clone(), &options, open.clone()).expect("a history");
    let start = history.status().start;
    // It is in the first segment, which ended before the present superblock; and there was no
    // flush.
    history.write(LOST * B as u64, Segments::copy_of(&[7; B])).expect("a write");
    for round in 0..400u64 {
        let block = LOST + 1 + round % (15 - LOST);
        history.write(block * B as u64, Segments::copy_of(&[round as u8; B])).expect("a write");
    }
    assert_eq!(history.status().start, start, "the window has not moved");
    let version = history.state.lock().index.last_at(LOST, NOW).expect("a version");
    drop(history);
    let origin = origin.power_cycle_as(Fate::Lost, &mut Rng::new(1));
    let store = store.power_cycle_as(Fate::Kept, &mut Rng::new(1));
    assert!(bytes(&origin, LOST * B as u64, B).expect("a read") == [0; B], "the origin has it no more");
    store.corrupt(version.place * PLACE_UNIT, B as u64, &mut Rng::new(2));
    let (mut origin, mut store) = (Arc::new(origin), Arc::new(store));
    for round in 0..4 {
        let history = History::open(origin.clone(), store.clone(), open.clone()).expect("it opens");
        let found = bytes(&*history, LOST * B as u64, B);
        assert!(matches!(found, Err(DeviceError::Corrupt { .. })), "opening {round}: {found:?}");
        assert_eq!(history.status().lost_versions, 1, "opening {round}");
        drop(history);
        origin = Arc::new(origin.power_cycle_as(Fate::Lost, &mut Rng::new(round)));
        store = Arc::new(store.power_cycle_as(Fate::Lost, &mut Rng::new(round)));
    }
    let history = History::open(origin, store, open).expect("it opens");
    let released = history.release(&|_, _| {});
    assert!(matches!(released, Err(HistoryError::LostBlocks { count: 1, .. })), "{released:?}");
}

/// Segments named as ahead were in use before, and begin as they did then. The segment in which the
/// log has continued is found after them.
#[test]
fn segments_ahead_that_had_something_before_do_not_end_the_log() {
    const LARGE: usize = 65536;
    let mut options = options(Placement::Logging, Granularity::EveryWrite, LARGE as u32);
    options.window.time = Some(Duration::from_secs(1));
    let mut stack = Stack::new(&options, 8 * LARGE as u64, 32 * MIB);
    let fill = |stack: &Stack, round: u64| {
        stack.fill(round % 8 * LARGE as u64, LARGE, round as u8);
        drop(stack.history.view(stack.now()).expect("a view"));
        while stack.history.step().expect("a step") {}
    };
    // More than once round: three of a segment.
    (0..800).for_each(|round| fill(&stack, round));
    for begins_lost in [false, true] {
        let named = |stack: &Stack| stack.history.writer.lock().ahead.len();
        // Until the superblock has named more of them.
        for round in 0.. {
            if named(&stack) > 8 {
                break;
            }
            fill(&stack, round);
        }
        stack.history.flush().expect("a flush");
        stack.reopen().expect("it opens");
        let ahead = named(&stack);
        assert!(ahead > 5, "{ahead} segments are named");
        let mut began = Vec::new();
        for round in 0..8u64 {
            stack.fill(round * LARGE as u64, LARGE, 200 + round as u8);
            drop(stack.history.view(stack.now()).expect("a view"));
            let writer = stack.history.writer.lock();
            began.push(writer.start_of(writer.segment));
        }
        stack.history.flush().expect("a flush");
        let left = named(&stack);
        assert!((3..ahead).contains(&left), "it has gone on in some of them, without another superblock");
        if begins_lost {
            // Their first records have the same facts.
            began.dedup();
            let blocks = &began[1..];
            blocks
                .iter()
                .for_each(|block| stack.store.corrupt(block * B as u64, B as u64, &mut Rng::new(*block)));
        }
        stack.reopen().expect("it opens");
        for block in 0..8u64 {
            let found = bytes(&*stack.history, block * LARGE as u64, LARGE).expect("a read");
            assert!(found == [200 + block as u8; LARGE], "block {block}, begins lost: {begins_lost}");
        }
    }
}
