//! Blocks between memory and the device: requests to the device, its possible answers, and the
//! blocks that stay in memory.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cairn_base::{BLOCK_SIZE, Rng, Vbn};
use cairn_device::{DeviceError, Geometry, Operation, Request, Segment, Segments};
use cairn_format::NodeAddress;
use parking_lot::Mutex;

use super::*;
use crate::commit::space::Redirects;
use crate::read::store::{append_blocks, joined, spans};

/// Records its requests, and on demand answers reads in pieces of any lengths.
struct Asked {
    device: FaultDevice,
    /// Of each batch: is it a write, where, and how long.
    batches: Mutex<Vec<Vec<(bool, u64, u64)>>>,
    pieces: Option<Mutex<Rng>>,
}

impl Asked {
    fn new(blocks: u64, pieces: Option<u64>) -> Arc<Self> {
        Self::of_bytes(Volume::device_bytes(blocks, Role::Normal), blocks, pieces)
    }

    fn of_bytes(length: u64, blocks: u64, pieces: Option<u64>) -> Arc<Self> {
        let device = FaultDevice::new(length);
        format(&device, blocks);
        let pieces = pieces.map(|seed| Mutex::new(Rng::new(seed)));
        Arc::new(Self { device, batches: Mutex::default(), pieces })
    }

    fn take(&self) -> Vec<Vec<(bool, u64, u64)>> {
        std::mem::take(&mut self.batches.lock())
    }
}

impl Device for Asked {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn run(&self, batch: &mut [Operation]) {
        let asked = batch.iter().filter_map(|operation| match operation.request() {
            Request::Read { offset, length } => Some((false, *offset, u64::from(*length))),
            Request::Write { offset, data, .. } => Some((true, *offset, data.len() as u64)),
            _ => None,
        });
        self.batches.lock().push(asked.collect());
        let Some(rng) = &self.pieces else { return self.device.run(batch) };
        for operation in batch {
            let mut own = [Operation::new(operation.request().clone())];
            self.device.run(&mut own);
            let [own] = own;
            operation.finish(own.into_data().map(|data| in_pieces(&data.to_vec(), &mut rng.lock())));
        }
    }
}

/// The same bytes in pieces, some of which have the length of a block but are not blocks.
fn in_pieces(mut bytes: &[u8], rng: &mut Rng) -> Segments {
    let mut pieces = Segments::default();
    while !bytes.is_empty() {
        let length = [512, 1024, 4096, 4096][rng.below(4) as usize].min(bytes.len());
        let (head, rest) = bytes.split_at(length);
        let mut block = cairn_device::BlockMut::zeroed();
        block[..length].copy_from_slice(head);
        pieces.push(Segment::new(block.freeze(), 0, length));
        bytes = rest;
    }
    pieces
}

#[test]
fn neighbours_are_one_operation_of_a_mebibyte_at_most() {
    const MOST: u64 = 1 << 20;
    let device = Asked::new(4096, None);
    let volume = open(&device);
    let lun = file(&volume, 2000);
    write(&volume, lun, 0, 1300, 1000).expect("there is room");
    device.take();
    volume.flush().expect("it flushes");
    volume.consistency_point().expect("it commits");
    let written = device.take();
    volume.store.forget();
    assert_eq!(read(&volume, lun, 0, 1300), (1000..2300).collect::<Vec<u64>>());
    for batches in [written, device.take()] {
        let mut longest = 0;
        for batch in batches {
            for pair in batch.windows(2) {
                let [(_, first, length), (_, next, _)] = pair else { continue };
                assert!(first + length != *next || *length == MOST, "{pair:?} could be one");
            }
            longest = batch.iter().map(|(_, _, length)| *length).fold(longest, u64::max);
        }
        assert_eq!(longest, MOST);
    }
}

#[test]
fn device_that_answers_in_pieces_of_any_length_is_read_as_any_other() {
    for seed in 0..4 {
        let device = Asked::new(1024, Some(seed));
        let volume = open(&device);
        let lun = file(&volume, 300);
        write(&volume, lun, 0, 300, 1000).expect("there is room");
        volume.consistency_point().expect("it commits");
        for first in (0..40).step_by(3) {
            volume.store.forget();
            let count = 1 + first * 6;
            assert_eq!(
                read(&volume, lun, first, count),
                (1000 + first..1000 + first + count).collect::<Vec<u64>>()
            );
        }
        assert_eq!(volume.damaged(), []);
        assert_sound(&volume);
    }
}

#[test]
fn answer_of_another_length_than_was_asked_for_moves_no_other_block() {
    let mut bytes = vec![0; 5 * BLOCK_SIZE];
    Rng::new(9).fill(&mut bytes);
    for answered in [0, 512, 4096, 5 * 4096 - 512, 5 * 4096] {
        let of = &bytes[..answered];
        for data in [Segments::copy_of(of), in_pieces(of, &mut Rng::new(answered as u64))] {
            for count in [1, 3, 5] {
                let mut blocks = vec![Err(DeviceError::OutOfService)];
                append_blocks(data.clone(), count, &mut blocks);
                append_blocks(Segments::copy_of(&bytes[..BLOCK_SIZE]), 1, &mut blocks);
                assert_eq!(blocks.len(), 1 + count + 1, "{answered} bytes for {count} blocks");
                for (n, block) in blocks[1..=count].iter().enumerate() {
                    let there = of.get(n * BLOCK_SIZE..(n + 1) * BLOCK_SIZE);
                    assert_eq!(
                        block.as_ref().ok().map(|block| &block[..]),
                        there,
                        "block {n} of {answered} bytes"
                    );
                }
                assert_eq!(blocks[1 + count].as_ref().expect("it is there")[..], bytes[..BLOCK_SIZE]);
            }
        }
    }
}

#[test]
fn places_are_joined_as_their_blocks_are_one_by_one() {
    let mut rng = Rng::new(21);
    for _ in 0..300 {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for _ in 0..rng.below(8) {
            let block = match runs.last() {
                Some((first, count)) if rng.below(3) > 0 => first + count,
                _ => rng.below(10_000),
            };
            runs.push((block, rng.below(600)));
        }
        let bytes = &|block: u64| block * BLOCK_SIZE as u64;
        let alone =
            runs.iter().flat_map(|(first, count)| (*first..first + count).map(move |n| (bytes(n), 1)));
        let together = runs.iter().map(|(first, count)| (bytes(*first), *count));
        let found = joined(together);
        assert_eq!(found, joined(alone.clone()), "{runs:?}");
        assert!(found.iter().all(|(_, count)| (1..=256).contains(count)), "{runs:?}");
        let blocks = found.iter().flat_map(|(first, count)| (0..*count).map(move |n| (first + bytes(n), 1)));
        assert!(blocks.eq(alone), "{runs:?}");
    }
}

#[test]
fn runs_are_read_as_their_blocks_are_and_not_at_all_where_one_of_them_fails() {
    for pieces in [None, Some(3)] {
        let device = Asked::of_bytes(Volume::device_bytes(8192, Role::Normal), 2048, pieces);
        let volume = open(&device);
        let lun = file(&volume, 600);
        write(&volume, lun, 0, 600, 1000).expect("there is room");
        volume.consistency_point().expect("it commits");
        // The space has two segments from here on.
        let blocks = volume.store.space().blocks(cairn_format::SegmentKind::Space) + 512;
        volume.grow(blocks).expect("it grows");
        let second = file(&volume, 400);
        write(&volume, second, 0, 400, 5000).expect("there is room");
        volume.consistency_point().expect("it commits");
        let mut rng = Rng::new(5);
        for _ in 0..60 {
            let runs: Vec<(Vbn, u64)> =
                (0..1 + rng.below(4)).map(|_| (Vbn(rng.below(blocks - 500)), 1 + rng.below(500))).collect();
            let vbns: Vec<Vbn> =
                runs.iter().flat_map(|(first, count)| (0..*count).map(|n| Vbn(first.0 + n))).collect();
            device.take();
            let one_by_one = volume.store.read_numbers(&vbns, &Redirects::default());
            let asked = device.take();
            let together = volume.store.read_runs(&runs);
            assert_eq!(device.take(), asked, "{runs:?}");
            match together {
                Some(together) => {
                    assert_eq!(together.len(), vbns.len());
                    for (block, alone) in together.iter().zip(one_by_one) {
                        assert!(block[..] == alone.expect("it can be read")[..], "{runs:?}");
                    }
                }
                // Such blocks are put together one by one.
                None => assert!(pieces.is_some(), "{runs:?}"),
            }
        }
        assert!(volume.store.read_runs(&[(Vbn(blocks - 1), 2)]).is_none(), "there is no such block");
        device.device.cut_after(0);
        assert!(device.flush().is_err());
        assert!(volume.store.read_runs(&[(Vbn(1), 2)]).is_none(), "the device is gone");
    }
}

#[test]
fn blocks_of_a_device_that_is_gone_are_no_damage_and_are_asked_for_once() {
    let device = Asked::new(1024, None);
    let volume = open(&device);
    let lun = file(&volume, 100);
    write(&volume, lun, 0, 100, 1000).expect("there is room");
    volume.consistency_point().expect("it commits");
    // The nodes are in memory, and the blocks are not.
    read(&volume, lun, 0, 1);
    device.device.cut_after(0);
    assert!(device.flush().is_err());
    device.take();
    let mut reads = [BlockRead::new(Lba(10), 80)];
    volume.read(lun, &mut reads, true);
    let outcome = reads[0].outcome.take().expect("it has an outcome");
    assert!(matches!(outcome, Err(VolumeError::Device(DeviceError::OutOfService))), "{outcome:?}");
    assert_eq!(volume.damaged(), []);
    assert_eq!(device.take().concat().len(), 1, "the 80 blocks are beside each other");
}

#[test]
fn node_is_served_in_its_own_place_alone() {
    let (_device, volume) = fresh(1024);
    let lun = file(&volume, 10);
    write(&volume, lun, 0, 10, 1000).expect("there is room");
    volume.consistency_point().expect("it commits");
    let committed = volume.state.lock().committed.clone();
    let pointer = volume.inode(lun).expect("it is there").tree.pointer;
    let own = NodeAddress { file: lun, level: 1, index: 0 };
    let load = |address: NodeAddress| {
        volume.store.forget();
        volume.store.load_node(pointer, address, &committed.redirects).map(drop)
    };
    load(own).expect("it is whole");
    let others = [
        NodeAddress { file: FileId(lun.0 + 1), ..own },
        NodeAddress { level: 2, ..own },
        NodeAddress { index: 1, ..own },
    ];
    for other in others {
        let refused = load(other);
        assert!(matches!(refused, Err(VolumeError::Damaged { .. })), "{other:?}: {refused:?}");
    }
}

/// With the 1 MiB that volumes of these tests are given.
#[test]
fn memory_that_a_volume_is_given_is_kept_to() {
    const CACHED: u64 = 80;
    const DIRTY: u64 = 256;
    const CHANGES: u64 = 4096;
    const AT_ONCE: u64 = 10;
    let (_device, volume) = fresh(16384);
    let lun = file(&volume, 6000);
    for first in (0..6000).step_by(AT_ONCE as usize) {
        write(&volume, lun, first, AT_ONCE, 1000).expect("there is room");
        let state = volume.state.lock();
        let (dirty, changes) = (state.open.unplaced + state.flying, state.open.weight());
        assert!(dirty <= DIRTY + AT_ONCE, "{dirty} blocks wait for their places");
        assert!(changes <= CHANGES + AT_ONCE, "{changes} changes wait for a consistency point");
    }
    volume.consistency_point().expect("it commits");
    let in_memory = || {
        let is_there = |lba: &u64| {
            let mut reads = [BlockRead::new(Lba(*lba), 1)];
            volume.read(lun, &mut reads, false);
            reads[0].outcome.is_some()
        };
        (0..6000).filter(is_there).count() as u64
    };
    let written = in_memory();
    assert!(written <= CACHED, "{written} blocks that were written are in memory");
    assert_eq!(read(&volume, lun, 0, 6000), (1000..7000).collect::<Vec<u64>>());
    let read = in_memory();
    assert!(0 < read && read <= CACHED, "{read} blocks that were read are in memory");
}

#[test]
fn blocks_that_are_near_each_other_are_read_together_with_those_between() {
    let device = Asked::new(8192, None);
    let volume = open(&device);
    let lun = file(&volume, 2000);
    let other = file(&volume, 2000);
    // Each block of the one file has one of the other beside it.
    for first in 0..1000 {
        write(&volume, lun, first, 1, 1000).expect("there is room");
        write(&volume, other, first, 1, 5000).expect("there is room");
        if first % 2 == 1 {
            volume.flush().expect("it flushes");
        }
    }
    volume.consistency_point().expect("it commits");
    volume.store.forget();
    device.take();
    assert_eq!(read(&volume, lun, 0, 1000), (1000..2000).collect::<Vec<u64>>());
    let asked = device.take().concat();
    assert!(asked.len() < 40, "{} operations", asked.len());
    // An unreadable block of the other file costs none of this one, and its own is named.
    let pointer = |file, lba: u64| {
        let tree = volume.inode(file).expect("it is there").tree;
        let committed = volume.state.lock().committed.clone();
        let pointers = volume.tree(&committed, file, tree).pointers(&[Lba(lba)]);
        pointers.into_iter().next().expect("one").expect("it is whole")
    };
    for (file, lba, unreadable) in [(other, 300, None), (lun, 301, Some(301))] {
        let vbn = pointer(file, lba).vbn;
        let place = volume.store.space().place_of(vbn, &Redirects::default()).expect("it has a place");
        device.device.fail_reads(place..place + BLOCK_SIZE as u64);
        volume.store.forget();
        let mut reads: Vec<BlockRead> = (0..1000).map(|lba| BlockRead::new(Lba(lba), 1)).collect();
        volume.read(lun, &mut reads, true);
        for read in reads {
            let outcome = read.outcome.expect("it has an outcome");
            assert_eq!(outcome.is_err(), Some(read.lba.0) == unreadable, "block {}", read.lba.0);
        }
        device.device.heal_reads();
    }
    assert_eq!(volume.damaged().len(), 1);
    // Few blocks are read alone.
    volume.store.forget();
    device.take();
    assert_eq!(read(&volume, lun, 0, 100), (1000..1100).collect::<Vec<u64>>());
    let asked = device.take().concat();
    let bytes: u64 = asked.iter().map(|(_, _, length)| length).sum();
    assert!(bytes <= 110 * BLOCK_SIZE as u64, "{bytes} bytes for 100 blocks and the nodes above");
}

#[test]
fn operations_of_spread_places_have_all_of_them_and_no_long_gap() {
    const BLOCK: u64 = BLOCK_SIZE as u64;
    let mut rng = Rng::new(33);
    for round in 0..500 {
        let mut places: Vec<u64> = (0..rng.below(300)).map(|_| rng.below(4000) * BLOCK).collect();
        if round % 4 > 0 {
            places.sort_unstable();
        }
        let gap = [0, 1, 8][round % 3];
        let spans = spans(&places, gap);
        let mut next = 0;
        for span in &spans {
            assert!(span.blocks <= 256);
            assert_eq!(span.wanted.start, next);
            next = span.wanted.end;
            let own = &places[span.wanted.clone()];
            assert_eq!(own.first(), Some(&span.start));
            assert_eq!(own.last(), Some(&(span.start + (span.blocks - 1) * BLOCK)));
            for pair in own.windows(2) {
                assert!(pair[1] > pair[0] && pair[1] - pair[0] <= (gap + 1) * BLOCK);
            }
        }
        assert_eq!(next, places.len());
    }
}

/// A device of which the block space is elsewhere, and cannot be reached at times.
struct Elsewhere {
    device: FaultDevice,
    away: AtomicBool,
    /// Bytes before the block space.
    space: AtomicU64,
}

impl Device for Elsewhere {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn run(&self, batch: &mut [Operation]) {
        for operation in batch.iter_mut().filter(|_| self.away.load(Ordering::Relaxed)) {
            if let Request::Read { offset, length } = *operation.request()
                && offset >= self.space.load(Ordering::Relaxed)
            {
                let source = Arc::new(std::io::ErrorKind::NetworkDown.into());
                let action = cairn_device::Action::Read;
                operation.finish(Err(DeviceError::Io { action, offset, length: length.into(), source }));
            }
        }
        self.device.run(batch);
    }
}

#[test]
fn block_out_of_reach_is_no_damage_and_no_finding() {
    let device = FaultDevice::new(Volume::device_bytes(1024, Role::Normal));
    format(&device, 1024);
    let device = Arc::new(Elsewhere { device, away: false.into(), space: u64::MAX.into() });
    let volume = open(&device);
    let lun = file(&volume, 200);
    write(&volume, lun, 0, 200, 1000).expect("there is room");
    volume.consistency_point().expect("it commits");
    let space = volume.store.space().place_of(Vbn(1), &Redirects::default()).expect("it has a place");
    device.space.store(space, Ordering::Relaxed);
    volume.store.forget();
    device.away.store(true, Ordering::Relaxed);
    let mut reads = [BlockRead::new(Lba(10), 5)];
    volume.read(lun, &mut reads, true);
    assert!(reads[0].outcome.take().expect("it has an outcome").is_err());
    let mut cursor = volume.begin_scrub();
    assert!(volume.scrub(&mut cursor, 1000).is_err(), "the scrub waits");
    assert!(volume.check(&mut |_| {}).is_err(), "nothing can be said about the volume");
    assert_eq!(volume.damaged(), []);
    // Once it is there again, the scrub reads all of it.
    device.away.store(false, Ordering::Relaxed);
    let step = volume.scrub(&mut cursor, 1000).expect("it goes on");
    assert!(step.blocks >= 200 && step.findings.is_empty(), "{step:?}");
    assert_eq!(read(&volume, lun, 0, 200), (1000..1200).collect::<Vec<u64>>());
    assert_sound(&volume);
}
