//! Unreadable content is reported, and stops no other work.

use std::sync::atomic::{AtomicU64, Ordering};

use cairn_device::{Action, Geometry, Operation, Request};

use super::*;
use crate::content::Content;
use crate::index::Version;
use crate::resolve::NOW;
use cairn_format::history::{EntryKind, PLACE_UNIT};

const B: usize = 4096;
const BLOCKS: u64 = 32;
const DAMAGED: u64 = 3;

/// How a version becomes unreadable.
#[derive(Debug, Clone, Copy)]
enum Hurt {
    Damage,
    BadPlace,
}

impl Stack {
    fn newest(&self, block: u64) -> Version {
        self.history.state.lock().index.last_at(block, NOW).expect("a version")
    }

    fn hurt(&self, version: &Version, how: Hurt) {
        let at = version.place * PLACE_UNIT;
        match how {
            Hurt::Damage => self.store.corrupt(at, B as u64, &mut Rng::new(7)),
            Hurt::BadPlace => self.store.fail_reads(at..at + B as u64),
        }
    }

    /// All pending background work.
    fn work(&self) {
        while self.history.step().expect("a step") {}
    }

    /// Checks that every block but the damaged one has the right content.
    fn check(&self, device: &dyn Device, byte: u8) {
        for block in (0..BLOCKS).filter(|block| *block != DAMAGED) {
            let found = bytes(device, block * B as u64, B).expect("a block that is not damaged");
            assert_eq!(found, vec![byte; B], "block {block}");
        }
    }
}

fn is_damaged(device: &dyn Device) -> bool {
    matches!(bytes(device, DAMAGED * B as u64, B), Err(DeviceError::Corrupt { .. } | DeviceError::Io { .. }))
}

fn hour(placement: Placement) -> HistoryOptions {
    let mut options = options(placement, Granularity::EveryWrite, 4096);
    options.window.time = Some(Duration::from_secs(3600));
    options
}

#[test]
fn version_that_can_not_be_read_is_told_and_the_window_moves_on() {
    for how in [Hurt::Damage, Hurt::BadPlace] {
        let mut stack = Stack::new(&hour(Placement::Logging), BLOCKS * B as u64, 8 * MIB);
        stack.fill(0, BLOCKS as usize * B, 1);
        stack.history.flush().expect("a flush");
        let written = stack.newest(DAMAGED);
        stack.hurt(&written, how);
        for round in 2..6 {
            // All but one are overwritten; the window passes the first writes.
            for block in (0..BLOCKS).filter(|block| *block != DAMAGED) {
                stack.fill(block * B as u64, B, round);
            }
            stack.history.flush().expect("a flush");
            stack.clock.advance(Duration::from_secs(7200));
            stack.work();
            let status = stack.history.status();
            assert!(status.start.0 > written.time, "{how:?}: the window moves");
            assert!(status.used_bytes <= MIB, "{how:?}: {} bytes are not free again", status.used_bytes);
            assert_eq!(status.lost_versions, 1, "{how:?}");
            assert_eq!(status.lost[0].block, DAMAGED);
            assert!(is_damaged(&*stack.history), "{how:?}: it is not what the origin has");
            stack.check(&*stack.history, round);
            let view = stack.history.view(status.start).expect("a view");
            assert!(is_damaged(&view), "{how:?}");
            drop(view);
            if round % 2 == 0 {
                stack.reopen().expect("it opens");
                assert!(is_damaged(&*stack.history), "{how:?}: after an opening");
                stack.check(&*stack.history, round);
            }
        }
        let released = stack.history.release(&|_, _| {});
        assert!(matches!(released, Err(HistoryError::LostBlocks { count: 1, .. })), "{how:?}: {released:?}");
        // A write of the whole block ends it, and later also its report.
        stack.fill(DAMAGED * B as u64, B, 5);
        stack.history.flush().expect("a flush");
        stack.reopen().expect("it opens");
        assert_eq!(bytes(&*stack.history, DAMAGED * B as u64, B).expect("a read"), vec![5; B]);
        stack.clock.advance(Duration::from_secs(7200));
        stack.work();
        assert_eq!(stack.history.status().lost_versions, 0, "{how:?}");
        stack.check(&*stack.history, 5);
        stack.history.release(&|_, _| {}).expect("a release");
        assert_eq!(
            bytes(&*stack.origin, 0, BLOCKS as usize * B).expect("a read"),
            vec![5; BLOCKS as usize * B]
        );
    }
}

#[test]
fn base_that_can_not_be_read_is_lost_only_for_the_instants_that_need_it() {
    for placement in [Placement::SplitStream, Placement::SplitDownStream] {
        let mut stack = Stack::new(&hour(placement), BLOCKS * B as u64, 8 * MIB);
        let blocks = BLOCKS as usize * B;
        stack.fill(0, blocks, 1);
        stack.history.flush().expect("a flush");
        let written = stack.newest(DAMAGED);
        stack.clock.advance(Duration::from_secs(3000));
        stack.fill(0, blocks, 2);
        stack.history.flush().expect("a flush");
        stack.hurt(&written, Hurt::Damage);
        // The first writes leave the window, the second ones do not.
        stack.clock.advance(Duration::from_secs(1200));
        stack.work();
        for reopened in [false, true] {
            if reopened {
                stack.reopen().expect("it opens");
            }
            let status = stack.history.status();
            assert!(status.start.0 > written.time, "{placement:?}: the window moves");
            assert_eq!(status.lost_versions, 1, "{placement:?}");
            let view = stack.history.view(status.start).expect("a view");
            assert!(is_damaged(&view), "{placement:?}: it is not what came later");
            stack.check(&view, 1);
            drop(view);
            assert_eq!(bytes(&*stack.history, 0, blocks).expect("a read"), vec![2; blocks], "{placement:?}");
        }
        stack.clock.advance(Duration::from_secs(3600));
        stack.work();
        assert_eq!(stack.history.status().lost_versions, 0, "{placement:?}");
        let view = stack.history.view(stack.history.status().start).expect("a view");
        assert_eq!(bytes(&view, 0, blocks).expect("a read"), vec![2; blocks], "{placement:?}");
    }
}

#[test]
fn revert_copies_all_but_what_is_lost_and_writes_go_on() {
    for placement in Placement::ALL {
        let mut stack = Stack::new(&hour(placement), BLOCKS * B as u64, 8 * MIB);
        let blocks = BLOCKS as usize * B;
        stack.fill(0, blocks, 1);
        stack.history.mark("good", true).expect("a mark");
        let good = stack.history.marked("good").expect("the mark");
        for round in 2..4 {
            stack.fill(0, blocks, round);
            stack.history.flush().expect("a flush");
        }
        // The mark's content of the block: an undo of the next write, or a redo.
        let (last, next) = {
            let state = stack.history.state.lock();
            (state.index.last_at(DAMAGED, good.0), state.index.first_after(DAMAGED, good.0))
        };
        let needed = last.filter(Version::is_redo).or(next).expect("a version");
        stack.hurt(&needed, Hurt::Damage);
        let reverted = stack.history.revert(good).expect("a revert");
        assert!(is_damaged(&*stack.history), "{placement:?}");
        stack.fill(DAMAGED * B as u64 + B as u64, B, 1);
        stack.history.flush().expect("writes go on");
        stack.work();
        for reopened in [false, true] {
            if reopened {
                stack.reopen().expect("it opens");
                stack.work();
            }
            assert!(stack.history.status().reverts.is_empty(), "{placement:?}: the copy is over");
            assert!(is_damaged(&*stack.history), "{placement:?}: it is not what was there before");
            stack.check(&*stack.history, 1);
            let undo = stack.history.marked(&reverted.undo).expect("the mark of the revert");
            let view = stack.history.view(undo).expect("a view");
            assert_eq!(bytes(&view, 0, blocks).expect("a read"), vec![3; blocks], "{placement:?}");
        }
        // Past the window it is still lost.
        stack.clock.advance(Duration::from_secs(7200));
        stack.work();
        assert!(is_damaged(&*stack.history), "{placement:?}: it is not what was there before");
        stack.reopen().expect("it opens");
        assert!(is_damaged(&*stack.history), "{placement:?}: it is not what was there before");
        stack.check(&*stack.history, 1);
        // A write of it is written out, and a cut takes the part of the origin.
        let before = bytes(&*stack.origin, DAMAGED * B as u64, B).expect("the origin");
        stack.fill(DAMAGED * B as u64, B, 1);
        drop(stack.history.view(stack.now()).expect("a view"));
        if placement != Placement::Logging {
            stack.origin.write_from(DAMAGED * B as u64, &before).expect("a write");
        }
        stack.reopen().expect("it opens");
        assert_eq!(bytes(&*stack.history, 0, blocks).expect("a read"), vec![1; blocks], "{placement:?}");
        stack.history.flush().expect("a flush");
        stack.clock.advance(Duration::from_secs(7200));
        stack.work();
        assert_eq!(bytes(&*stack.history, 0, blocks).expect("a read"), vec![1; blocks], "{placement:?}");
        assert_eq!(stack.history.status().lost_versions, 0, "{placement:?}");
    }
}

#[test]
fn write_over_a_bad_place_of_the_origin_is_taken_and_its_past_is_lost() {
    for placement in [Placement::Checkpointing, Placement::SplitDownStream, Placement::Hybrid] {
        let origin = Arc::new(FaultDevice::new(BLOCKS * B as u64));
        let store = Arc::new(FaultDevice::new(8 * MIB));
        let clock = clock();
        let options = options(placement, Granularity::EveryWrite, 4096);
        let open = open_options(&clock, 64 << 10);
        let history =
            History::create(origin.clone(), store.clone(), &options, open.clone()).expect("a history");
        let start = history.status().start;
        origin.fail_reads(DAMAGED * B as u64..(DAMAGED + 1) * B as u64);
        clock.advance(Duration::from_millis(10));
        history.write(0, Segments::copy_of(&vec![1; 8 * B])).expect("a write");
        history.flush().expect("a write over a bad place");
        origin.heal_reads();
        for reopened in [false, true] {
            let history = match reopened {
                true => History::open(origin.clone(), store.clone(), open.clone()).expect("it opens"),
                false => history.clone(),
            };
            assert_eq!(bytes(&*history, 0, 8 * B).expect("a read"), vec![1; 8 * B], "{placement:?}");
            let view = history.view(start).expect("a view");
            assert!(is_damaged(&view), "{placement:?}");
            assert_eq!(bytes(&view, 0, 3 * B).expect("a read"), vec![0; 3 * B], "{placement:?}");
        }
    }
}

/// A disk that fails its next reads, at any place: a cable, a path, a controller that restarts.
struct Away {
    disk: MemoryDevice,
    reads: AtomicU64,
}

impl Device for Away {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn run(&self, batch: &mut [Operation]) {
        for operation in batch.iter_mut().filter(|operation| operation.is_pending()) {
            let left = self.reads.load(Ordering::Relaxed);
            if left > 0 && matches!(operation.request(), Request::Read { .. }) {
                self.reads.store(left - 1, Ordering::Relaxed);
                let source = Arc::new(std::io::Error::other("away"));
                operation.finish(Err(DeviceError::Io { action: Action::Read, offset: 0, length: 0, source }));
            }
        }
        self.disk.run(batch);
    }
}

#[test]
fn store_that_is_away_for_a_moment_loses_nothing() {
    let origin = Arc::new(MemoryDevice::new(BLOCKS * B as u64));
    let store = Arc::new(Away { disk: MemoryDevice::new(8 * MIB), reads: AtomicU64::new(0) });
    let open = open_options(&clock(), 64 << 10);
    let history = History::create(origin, store.clone(), &hour(Placement::Logging), open).expect("a history");
    history.write(0, Segments::copy_of(&[1; B])).expect("a write");
    history.flush().expect("a flush");
    let version = history.state.lock().index.last_at(0, NOW).expect("a version");
    for reads in 1..8 {
        store.reads.store(reads, Ordering::Relaxed);
        // It may fail as a whole, and then it is done again.
        if let Ok(found) = history.contents_of(&[version]) {
            assert!(matches!(found[..], [Content::Data(_)]), "{reads} reads failed");
        }
        store.reads.store(0, Ordering::Relaxed);
    }
}

#[test]
fn store_that_answers_nothing_loses_nothing() {
    let stack = Stack::new(&hour(Placement::Logging), BLOCKS * B as u64, 8 * MIB);
    stack.fill(0, BLOCKS as usize * B, 1);
    stack.history.flush().expect("a flush");
    stack.clock.advance(Duration::from_secs(7200));
    stack.fill(0, B, 1);
    stack.history.flush().expect("a flush");
    stack.store.fail_reads(0..8 * MIB);
    let mut failed = 0;
    for _ in 0..20 {
        failed += u64::from(stack.history.step().is_err());
    }
    assert!(failed > 0, "the window can't move");
    stack.store.heal_reads();
    stack.work();
    assert_eq!(stack.history.status().lost_versions, 0);
    let blocks = BLOCKS as usize * B;
    assert_eq!(bytes(&*stack.history, 0, blocks).expect("a read"), vec![1; blocks]);
}

#[test]
fn release_that_is_refused_for_what_is_lost_gives_up_no_history() {
    let mut options = hour(Placement::Logging);
    let stack = Stack::new(&options, BLOCKS * B as u64, 3 * MIB);
    stack.fill(0, BLOCKS as usize * B, 1);
    stack.history.flush().expect("a flush");
    stack.hurt(&stack.newest(DAMAGED), Hurt::Damage);
    stack.clock.advance(Duration::from_secs(7200));
    stack.fill(0, B, 2);
    stack.history.flush().expect("a flush");
    stack.work();
    assert_eq!(stack.history.status().lost_versions, 1);
    // From here on nothing may go, and the store becomes full.
    options.window.floor = Duration::from_secs(3600);
    stack.history.set_window(options.window).expect("another window");
    for round in 0..2000u64 {
        stack.clock.advance(Duration::from_millis(1));
        let block = DAMAGED + 1 + round % (BLOCKS - DAMAGED - 1);
        if stack.history.write(block * B as u64, Segments::copy_of(&[round as u8; B])).is_err() {
            break;
        }
    }
    assert!(stack.history.flush().is_err(), "the store is full");
    let start = stack.history.status().start;
    let released = stack.history.release(&|_, _| {});
    assert!(matches!(released, Err(HistoryError::LostBlocks { count: 1, .. })), "{released:?}");
    assert_eq!(stack.history.status().start, start, "it was refused, and nothing young has gone for it");
}

#[test]
fn block_that_is_lost_until_a_time_and_from_then_on_stays_known_when_the_one_goes() {
    let stack = Stack::new(&hour(Placement::Checkpointing), BLOCKS * B as u64, 8 * MIB);
    let mut state = stack.history.state.lock();
    let lost = |kind| Version { lba: DAMAGED, time: 5, kind, place: 0, crc: 0, units: 0 };
    let (until, from) = (lost(EntryKind::UndoLost), lost(EntryKind::RedoLost));
    for version in [until, from] {
        state.index.insert(&version);
        state.note_lost(&version);
    }
    state.index.remove(until.key());
    state.forget_lost(&until);
    assert!(state.lost.contains(&(DAMAGED, 5)));
    state.index.remove(from.key());
    state.forget_lost(&from);
    assert!(state.lost.is_empty());
}
