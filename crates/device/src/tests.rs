//! The devices of this crate under the suite; power cuts; blocks and segments.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cairn_base::{BLOCK_SIZE, Clock, Rng};

use crate::suite::run_suite;
use crate::*;

const KIB: u64 = 1024;

fn file_suite(folder: &Path, options: FileOptions) {
    let count = AtomicU64::new(0);
    run_suite(&|length| {
        let path = folder.join(count.fetch_add(1, Ordering::Relaxed).to_string());
        let device = FileDevice::create_with(&path, length, options).unwrap();
        // The open file stays usable without a name, so that the folder stays small.
        std::fs::remove_file(path).unwrap();
        Arc::new(device)
    });
}

#[test]
fn memory_device_passes_the_suite() {
    run_suite(&|length| Arc::new(MemoryDevice::new(length)));
}

#[test]
fn fault_device_passes_the_suite() {
    run_suite(&|length| Arc::new(FaultDevice::new(length)));
}

#[test]
fn concat_device_passes_the_suite() {
    // Borders within a block, and one device without any length.
    run_suite(&|length| {
        let lengths = [10_000, 0, 54_001, length - 64_001];
        let devices = lengths.map(|length| Arc::new(MemoryDevice::new(length)) as Arc<dyn Device>);
        Arc::new(ConcatDevice::new(devices.to_vec()))
    });
    // Different alignments: the coarsest counts.
    run_suite(&|length| {
        let (first, last) = (MemoryDevice::new(32 * KIB + 100), FaultDevice::new(length - 32 * KIB));
        Arc::new(ConcatDevice::new(vec![Arc::new(first), Arc::new(last)]))
    });
}

#[test]
fn file_device_passes_the_suite_with_direct_io_and_rings() {
    let folder = tempfile::tempdir().unwrap();
    file_suite(folder.path(), FileOptions::default());
}

#[test]
fn file_device_passes_the_suite_with_direct_io_and_calls() {
    let folder = tempfile::tempdir().unwrap();
    file_suite(folder.path(), FileOptions { engine: Engine::Calls, ..FileOptions::default() });
}

#[test]
fn file_device_passes_the_suite_through_the_page_cache_with_rings() {
    let folder = tempfile::tempdir().unwrap();
    file_suite(folder.path(), FileOptions { direct: Direct::Never, ..FileOptions::default() });
}

#[test]
fn file_device_passes_the_suite_through_the_page_cache_with_calls() {
    let folder = tempfile::tempdir().unwrap();
    let options = FileOptions { direct: Direct::Never, engine: Engine::Calls, ..FileOptions::default() };
    file_suite(folder.path(), options);
}

#[test]
fn file_device_passes_the_suite_with_direct_writes_alone() {
    let folder = tempfile::tempdir().unwrap();
    for engine in [Engine::Auto, Engine::Calls] {
        file_suite(folder.path(), FileOptions { direct: Direct::Writes, engine, ..FileOptions::default() });
    }
}

#[test]
fn only_the_last_device_of_a_concatenation_grows() {
    let first = Arc::new(MemoryDevice::new(8 * KIB));
    let last = Arc::new(MemoryDevice::new(8 * KIB));
    let whole = ConcatDevice::new(vec![first.clone(), last.clone()]);
    whole.write_from(12 * KIB, &[3; 4096]).unwrap();
    first.grow(16 * KIB);
    last.grow(24 * KIB);
    assert_eq!(whole.geometry().length, 32 * KIB);
    assert_eq!(whole.read(12 * KIB, 4096).unwrap().to_vec(), [3; 4096]);
    let refused = whole.read(32 * KIB, 1);
    assert!(matches!(refused, Err(DeviceError::OutOfRange { end, .. }) if end == 32 * KIB));
}

#[test]
fn error_of_a_part_is_told_in_offsets_of_the_whole() {
    let bad = FaultDevice::new(64 * KIB);
    bad.fail_reads(8 * KIB..8 * KIB + 1);
    let good = Arc::new(MemoryDevice::new(16 * KIB));
    let whole = ConcatDevice::new(vec![good, Arc::new(bad)]);
    let error = whole.read(8 * KIB, 24 * KIB as u32).unwrap_err();
    assert!(matches!(error, DeviceError::Io { offset, .. } if offset == 16 * KIB), "{error}");
    assert!(whole.read(8 * KIB, 16 * KIB as u32).is_ok());
}

/// The outcomes of block 0, in sectors, over many power cuts after `prepare`.
fn outcomes(prepare: impl Fn(&FaultDevice)) -> std::collections::BTreeSet<Vec<u8>> {
    (0..400)
        .map(|seed| {
            let device = FaultDevice::new(64 * KIB);
            prepare(&device);
            let after = device.power_cycle(&mut Rng::new(seed));
            let bytes = after.read(0, 4096).unwrap().to_vec();
            bytes
                .chunks(512)
                .map(|sector| {
                    assert!(sector.iter().all(|byte| *byte == sector[0]), "a sector is whole");
                    sector[0]
                })
                .collect()
        })
        .collect()
}

#[test]
fn unflushed_write_is_kept_lost_or_torn() {
    let seen = outcomes(|device| device.write_from(0, &[1; 4096]).unwrap());
    assert!(seen.contains(&vec![0; 8]) && seen.contains(&vec![1; 8]), "{seen:?}");
    assert!(seen.contains(&vec![1, 1, 1, 0, 0, 0, 0, 0]), "torn at one place: {seen:?}");
    assert!(seen.len() > 20, "torn in many ways: {seen:?}");
}

#[test]
fn flushed_and_fua_writes_survive_whatever_came_before() {
    let flushed = outcomes(|device| {
        device.write_from(0, &[1; 4096]).unwrap();
        device.flush().unwrap();
        device.write_from(8192, &[2; 4096]).unwrap();
    });
    assert_eq!(flushed, [vec![1; 8]].into());
    let fua = outcomes(|device| {
        device.write_from(0, &[1; 4096]).unwrap();
        let data = Segments::copy_of(&[2; 4096]);
        device.one(Operation::new(Request::Write { offset: 0, data, fua: true })).unwrap();
    });
    assert_eq!(fua, [vec![2; 8]].into(), "an older volatile write does not come back over it");
}

#[test]
fn later_write_can_be_kept_and_earlier_one_lost() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..200u64 {
        let device = FaultDevice::new(64 * KIB);
        device.write_from(0, &[1; 4096]).unwrap();
        device.write_from(4096, &[2; 4096]).unwrap();
        let after = device.power_cycle(&mut Rng::new(seed));
        let first = after.read(0, 4096).unwrap().to_vec();
        let second = after.read(4096, 4096).unwrap().to_vec();
        seen.insert((first == [1; 4096], second == [2; 4096]));
    }
    assert_eq!(seen.len(), 4, "all combinations: {seen:?}");
}

#[test]
fn cut_fails_everything_from_there_on_and_may_keep_what_was_on_its_way() {
    let mut kept = [false; 3];
    for seed in 0..200u64 {
        let device = FaultDevice::new(64 * KIB);
        device.write_from(0, &[1; 4096]).unwrap();
        device.flush().unwrap();
        assert_eq!(device.operations(), 2);
        device.cut_after(1);
        let write = |block: u64| Operation::write(block * 4096, Segments::copy_of(&[9; 4096]));
        let mut batch = vec![write(1), write(2), write(3), Operation::flush(), write(4)];
        device.run(&mut batch);
        let fine: Vec<bool> = batch.into_iter().map(|operation| operation.into_outcome().is_ok()).collect();
        assert_eq!(fine, [true, false, false, false, false]);
        assert!(device.is_off());
        assert!(matches!(device.read(0, 4096), Err(DeviceError::OutOfService)));
        let after = device.power_cycle(&mut Rng::new(seed));
        let whole = |block: u64| after.read(block * 4096, 4096).unwrap().to_vec() == [9; 4096];
        assert_eq!(after.read(0, 4096).unwrap().to_vec(), [1; 4096]);
        assert!(!whole(4), "what stands after the flush was never sent");
        (0..3).for_each(|number| kept[number] |= whole(number as u64 + 1));
    }
    assert_eq!(kept, [true; 3]);
}

#[test]
fn same_seed_gives_the_same_bytes() {
    let after = |seed| {
        let device = FaultDevice::new(256 * KIB);
        let mut rng = Rng::new(1);
        for block in 0..60 {
            let mut bytes = [0; 4096];
            rng.fill(&mut bytes);
            device.write_from(block * 4096, &bytes).unwrap();
        }
        device.power_cycle(&mut Rng::new(seed)).read(0, 256 * KIB as u32).unwrap().to_vec()
    };
    assert!(after(5) == after(5));
    assert!((0..10).any(|seed| after(seed) != after(5)));
}

#[test]
fn media_faults_show_at_once_and_stay() {
    let device = FaultDevice::new(64 * KIB);
    let rng = &mut Rng::new(3);
    device.write_from(0, &[1; 8192]).unwrap();
    device.lose_next_write();
    device.write_from(0, &[2; 4096]).unwrap();
    device.misdirect_next_write(-4096);
    device.write_from(12 * KIB, &[3; 4096]).unwrap();
    device.corrupt(4096 + 10, 20, rng);
    device.flush().unwrap();
    device.fail_reads(32 * KIB..36 * KIB);
    let after = device.power_cycle(rng);
    for device in [&device, &after] {
        assert_eq!(device.read(0, 4096).unwrap().to_vec(), [1; 4096]);
        assert_eq!(device.read(8 * KIB, 4096).unwrap().to_vec(), [3; 4096]);
        assert_eq!(device.read(12 * KIB, 4096).unwrap().to_vec(), [0; 4096]);
        let spoilt = device.read(4096, 4096).unwrap().to_vec();
        let places: Vec<usize> = (0..4096).filter(|place| spoilt[*place] != 1).collect();
        assert_eq!(places, (10..30).collect::<Vec<_>>());
        assert!(matches!(device.read(28 * KIB, 8192), Err(DeviceError::Io { .. })));
    }
}

#[test]
fn log_and_durable_snapshot_tell_what_happened() {
    let device = FaultDevice::new(64 * KIB);
    device.write_from(0, &[1; 4096]).unwrap();
    device.flush().unwrap();
    device.one(Operation::trim(0, 4096)).unwrap();
    device.fail_next_operation(DeviceError::NoSpace { offset: 0, length: 4096 });
    assert!(matches!(device.write_from(0, &[2; 4096]), Err(DeviceError::NoSpace { .. })));
    let entry = |kind, length| LoggedOperation { kind, offset: 0, length, fua: false };
    let expected = [
        entry(LoggedKind::Write, 4096),
        entry(LoggedKind::Flush, 0),
        entry(LoggedKind::Trim, 4096),
        entry(LoggedKind::Write, 4096),
    ];
    assert_eq!(device.take_log(), expected);
    assert!(device.take_log().is_empty());
    assert_eq!(device.durable_snapshot().read(0, 4096).unwrap().to_vec(), [1; 4096]);
    assert_eq!(device.read(0, 4096).unwrap().to_vec(), [0; 4096]);
}

#[test]
fn block_is_shared_not_copied_and_comes_back_clean() {
    let mut block = BlockMut::dirty();
    block.fill(7);
    let block = block.freeze();
    assert_eq!(block.as_ptr() as usize % BLOCK_SIZE, 0, "aligned for direct I/O");
    let other = block.clone();
    assert_eq!(block.as_ptr(), other.as_ptr());
    drop(block);
    assert!(other.iter().all(|byte| *byte == 7), "the last holder keeps it");
    drop(other);
    // The block is reused with the old bytes; `zeroed` must not show them.
    assert!(BlockMut::zeroed().iter().all(|byte| *byte == 0));
}

#[test]
fn block_is_zero_only_if_every_byte_is() {
    assert!(Block::zero().is_zero());
    for place in [0, 7, 8, 9, 2048, BLOCK_SIZE - 9, BLOCK_SIZE - 1] {
        let mut block = BlockMut::zeroed();
        block[place] = 1;
        assert!(!block.freeze().is_zero(), "byte {place}");
    }
    assert!(!Block::copy_of(&[1; BLOCK_SIZE]).is_zero());
}

#[test]
fn blocks_go_between_threads_and_never_to_two_holders() {
    let threads: u8 = 4;
    std::thread::scope(|scope| {
        let (send, receive) = std::sync::mpsc::channel::<(u8, Vec<Block>)>();
        for thread in 1..=threads {
            let send = send.clone();
            scope.spawn(move || {
                for _ in 0..8 {
                    let filled = |_| {
                        let mut block = BlockMut::dirty();
                        block.fill(thread);
                        block.freeze()
                    };
                    send.send((thread, (0..100).map(filled).collect())).unwrap();
                }
            });
        }
        drop(send);
        for (thread, blocks) in receive {
            assert!(blocks.iter().all(|block| block.iter().all(|byte| *byte == thread)));
        }
    });
}

#[test]
fn block_that_several_hold_is_nobody_elses_until_the_last_lets_go() {
    let filled = |content: u8| {
        let mut block = BlockMut::dirty();
        block.fill(content);
        block.freeze()
    };
    let is = |block: &Block, content: u8| block.iter().all(|byte| *byte == content);
    // Blocks come back to the thread that drops them, and are reused.
    for round in 0..200 {
        let blocks: Vec<Block> = (0..16).map(|n| filled(round ^ n)).collect();
        drop(blocks.clone());
        let others: Vec<Block> = (0..16).map(|_| filled(!round)).collect();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                let own = blocks.clone();
                scope.spawn(move || drop(own));
            }
            let own = blocks.clone();
            drop(blocks);
            let more = filled(!round);
            assert!(own.iter().zip(0..).all(|(block, n)| is(block, round ^ n)), "round {round}");
            assert!(others.iter().chain([&more]).all(|block| is(block, !round)), "round {round}");
        });
    }
}

#[test]
fn blocks_that_two_let_go_of_at_the_same_time_come_back_as_any_other() {
    for _ in 0..100 {
        let own: Vec<Block> = (0..2000).map(|_| BlockMut::dirty().freeze()).collect();
        let other = own.clone();
        let both = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                both.wait();
                drop(other);
            });
            both.wait();
            drop(own);
        });
    }
}

#[test]
fn slice_of_segments_has_the_bytes_and_shares_the_blocks() {
    let mut bytes = vec![0; 3 * BLOCK_SIZE + 100];
    Rng::new(4).fill(&mut bytes);
    let whole = Segments::copy_of(&bytes);
    for (start, length) in
        [(0, bytes.len()), (10, 20), (4096, 4096), (4000, 5000), (bytes.len(), 0), (8191, 2)]
    {
        let slice = whole.slice(start, length);
        assert_eq!(slice.to_vec(), bytes[start..start + length], "{start} {length}");
        assert_eq!(slice.len(), length);
    }
    let shared = whole.slice(4096, 4096);
    let ends = |segments: &Segments, number| segments.iter().nth(number).map(|piece| piece.bytes().as_ptr());
    assert_eq!(ends(&shared, 0), ends(&whole, 1));
    let mut joined = whole.slice(0, 1000);
    joined.append(whole.slice(1000, bytes.len() - 1000));
    assert_eq!(joined.to_vec(), bytes);
    let blocks: Vec<Block> = whole.slice(4096, 8192).into_blocks().expect("whole ones").collect();
    assert!(blocks.len() == 2 && blocks[0][..] == bytes[4096..8192] && blocks[1][..] == bytes[8192..12288]);
    for in_pieces in [joined, whole, Segments::copy_of(&bytes[..5000])] {
        let before = in_pieces.to_vec();
        let as_before = in_pieces.into_blocks().err().expect("it is not of whole blocks");
        assert_eq!(as_before.to_vec(), before);
    }
}

#[test]
fn system_clock_moves_on() {
    let clock = SystemClock::new();
    let start = clock.monotonic();
    while clock.monotonic() == start {
        std::hint::spin_loop();
    }
    // 2020: any machine that builds this is later.
    assert!(clock.now().0 > 1_577_836_800_000_000_000);
}

#[test]
fn device_with_a_thread_of_its_own_passes_the_suite() {
    run_suite(&|length| Arc::new(SideDevice::new(Arc::new(MemoryDevice::new(length))).expect("a thread")));
}

#[test]
fn batches_begun_on_a_side_device_end_with_their_outcome() {
    let below = Arc::new(FaultDevice::new(64 * KIB));
    let side = SideDevice::new(below.clone()).expect("a thread");
    let batch = |offset| vec![Operation::write(offset, Segments::copy_of(&[7; 4096])), Operation::flush()];
    let begun: Vec<Begun> = (0..8).map(|n| side.begin(batch(n * 4096))).collect();
    begun.into_iter().for_each(|begun| begun.wait().expect("it is done"));
    assert_eq!(below.durable_snapshot().read(0, 32768).expect("it reads").to_vec(), [7; 32768]);
    let refused = side.begin(batch(64 * KIB)).wait();
    assert!(matches!(refused, Err(DeviceError::OutOfRange { .. })), "{refused:?}");
    below.fail_next_operation(DeviceError::OutOfService);
    assert!(side.begin(batch(0)).wait().is_err(), "the first failure is told");
    drop(side.begin(batch(0)));
    drop(side);
    assert_eq!(below.operations(), 16 + 1 + 2 + 2, "what nobody waits for is done too");
}

#[test]
fn parts_of_a_fault_device_pass_the_suite() {
    run_suite(&|length| {
        let whole = Arc::new(FaultDevice::new(length + 128 * KIB));
        Arc::new(whole.part(64 * KIB..64 * KIB + length))
    });
}

#[test]
fn power_goes_for_all_parts_at_once_and_each_keeps_a_cache_of_its_own() {
    let (mut first_only, mut second_only, mut both, mut none) = (0, 0, 0, 0);
    for seed in 0..200u64 {
        let whole = Arc::new(FaultDevice::new(96 * KIB));
        let parts = |whole: &Arc<FaultDevice>| (whole.part(0..64 * KIB), whole.part(64 * KIB..96 * KIB));
        let (first, second) = parts(&whole);
        let write =
            |byte: u8| vec![Operation::write(0, Segments::copy_of(&[byte; 4096])), Operation::flush()];
        // A first pair of batches is whole; in the second pair the power fails at every operation
        // in turn.
        second.begin(write(1)).wait().expect("the power is on");
        first.run(&mut write(1));
        assert_eq!(whole.operations(), 4, "operations count together");
        if seed.is_multiple_of(2) {
            second.begin(write(1)).wait().expect("the power is on");
        }
        whole.cut_after(seed % 4);
        let begun = second.begin(write(2));
        first.run(&mut write(2));
        let outcome = begun.wait();
        assert!(whole.is_off() && first.write(0, Segments::copy_of(&[9; 4096])).is_err());
        let (first, second) = parts(&Arc::new(whole.power_cycle(&mut Rng::new(seed))));
        let content = |part: &FaultPart| part.read(0, 4096).expect("the power is back").to_vec()[0];
        let (one, two) = (content(&first), content(&second));
        assert!((1..=2).contains(&one) && (1..=2).contains(&two), "what was flushed stays");
        assert!(outcome.is_err() || two == 2, "seed {seed}: a batch that succeeded is there");
        match (one, two) {
            (2, 2) => both += 1,
            (2, _) => first_only += 1,
            (_, 2) => second_only += 1,
            _ => none += 1,
        }
    }
    assert!(first_only > 10 && second_only > 10 && both > 10 && none > 10, "each combination is met");
    // A flush of one part does not flush the other.
    let whole = Arc::new(FaultDevice::new(64 * KIB));
    let (one, two) = (whole.part(0..32 * KIB), whole.part(32 * KIB..64 * KIB));
    one.write(0, Segments::copy_of(&[1; 4096])).expect("it is written");
    two.write(0, Segments::copy_of(&[2; 4096])).expect("it is written");
    two.flush().expect("it flushes");
    let durable = whole.durable_snapshot();
    assert_eq!(durable.read(0, 1).expect("it reads").to_vec(), [0]);
    assert_eq!(durable.read(32 * KIB, 1).expect("it reads").to_vec(), [2]);
    two.fail_next_operation(DeviceError::OutOfService);
    assert!(one.flush().is_ok() && two.flush().is_err() && two.flush().is_ok());
}

#[test]
fn sparse_file_on_a_full_host_takes_what_fits_and_keeps_what_it_has() {
    let device = FaultDevice::new(64 * KIB);
    device.write_from(0, &[1; 4096]).unwrap();
    device.be_sparse(0..64 * KIB, 8 * KIB, true);
    device.write_from(0, &[2; 4096]).unwrap();
    let refused = device.write_from(4 * KIB, &[3; 12 << 10]);
    assert!(matches!(refused, Err(DeviceError::NoSpace { offset: 4096, length: 12288 })), "{refused:?}");
    assert_eq!(
        device.read(8 * KIB, 8192).unwrap().to_vec(),
        [[3; 4096], [0; 4096]].concat(),
        "its start fits"
    );
    // Over a power cut it keeps its allocations; a trim returns them.
    let device = device.power_cycle_as(Fate::Kept, &mut Rng::new(1));
    device.write_from(4 * KIB, &[4; 8192]).unwrap();
    assert!(device.write_from(32 * KIB, &[5; 4096]).is_err());
    device.one(Operation::trim(4 * KIB, 4 * KIB)).unwrap();
    device.allocate(32 * KIB, 4 * KIB).unwrap();
    assert!(device.allocate(40 * KIB, 4 * KIB).is_err());
    device.write_from(32 * KIB, &[5; 4096]).unwrap();
    device.leave_room(4 * KIB);
    device.write_from(40 * KIB, &[6; 4096]).unwrap();
    // A host that promises nothing reports success.
    device.be_sparse(0..64 * KIB, 0, false);
    device.allocate(48 * KIB, 4 * KIB).unwrap();
    assert!(device.write_from(48 * KIB, &[7; 4096]).is_err());
}
