//! The requirements on every device, as one suite: `run_suite` panics with the property that does
//! not hold.
//!
//! A device is compared with a vector of bytes under random batches; the rules on batches, bounds,
//! alignment and extents are checked one by one. Survival of power cuts is not checked here, as
//! only a fault device can simulate them.

use std::fmt::Write as _;
use std::sync::Arc;

use cairn_base::{BLOCK_SIZE, Rng};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::{BlockMut, Device, DeviceError, Operation, Request, Segment, Segments};

/// Bytes of most devices of the suite: small, so that random requests overlap often.
const LENGTH: u64 = 256 * 1024;
/// Random histories that are tried.
const CASES: u32 = 48;

/// Checks a kind of device. `make` gives a new device of a length in bytes, a multiple of 64 KiB;
/// it is writable and all its bytes are zero.
pub fn run_suite(make: &dyn Fn(u64) -> Arc<dyn Device>) {
    new_device_is_zero_and_as_long_as_asked(make);
    agrees_with_a_vector(make);
    later_change_in_a_batch_wins(make);
    refusals_leave_the_rest_of_the_batch_alone(make);
    empty_requests_succeed(make);
    finished_operations_are_not_run_again(make);
    ready_operations_keep_the_rules(make);
    data_in_odd_pieces_arrives(make);
    large_requests_arrive(make);
    threads_do_not_disturb_each_other(make);
}

/// A change or a read of a random history, in units of the alignment.
#[derive(Debug, Clone)]
enum Step {
    Read { at: u64, count: u64 },
    Write { at: u64, count: u64, seed: u64, fua: bool },
    Trim { at: u64, count: u64, fua: bool },
    Zero { at: u64, count: u64, may_trim: bool, fua: bool },
    Prefetch { at: u64, count: u64 },
    Flush,
}

fn step(units: u64) -> impl Strategy<Value = Step> {
    // Half of the requests are whole blocks or few units, so that edges within a block and at its
    // end are covered.
    let count = prop_oneof![0..=2u64, 0..=units / 16];
    let place = (0..units, count).prop_map(move |(at, count)| (at, count.min(units - at)));
    prop_oneof![
        4 => place.clone().prop_map(|(at, count)| Step::Read { at, count }),
        6 => (place.clone(), any::<u64>(), prop::bool::weighted(0.1))
            .prop_map(|((at, count), seed, fua)| Step::Write { at, count, seed, fua }),
        2 => (place.clone(), prop::bool::weighted(0.1))
            .prop_map(|((at, count), fua)| Step::Trim { at, count, fua }),
        2 => (place.clone(), any::<bool>(), prop::bool::weighted(0.1))
            .prop_map(|((at, count), may_trim, fua)| Step::Zero { at, count, may_trim, fua }),
        1 => place.prop_map(|(at, count)| Step::Prefetch { at, count }),
        1 => Just(Step::Flush),
    ]
}

fn agrees_with_a_vector(make: &dyn Fn(u64) -> Arc<dyn Device>) {
    let unit = u64::from(make(LENGTH).geometry().alignment);
    let history = vec((any::<bool>(), vec(step(LENGTH / unit), 1..24)), 1..6);
    let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
    let random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let result = TestRunner::new_with_rng(config, random).run(&history, |history| {
        let device = make(LENGTH);
        let mut model = vec![0; LENGTH as usize];
        for (ready_first, batch) in history {
            run_batch(&*device, &mut model, unit, ready_first, &batch)?;
            check_extents(&*device, &model)?;
        }
        let all = device.read(0, LENGTH as u32).map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert!(all.to_vec() == model, "the device differs from the model at the end");
        Ok(())
    });
    if let Err(error) = result {
        panic!("a device agrees with a vector of bytes: {error}");
    }
}

/// Runs a batch on both, and compares its reads. Reads that overlap a change of their own batch may
/// return either.
fn run_batch(
    device: &dyn Device,
    model: &mut [u8],
    unit: u64,
    ready_first: bool,
    steps: &[Step],
) -> Result<(), TestCaseError> {
    let trims = device.geometry().trims;
    let before = model.to_vec();
    let mut changed: Vec<(u64, u64)> = Vec::new();
    let mut batch: Vec<Operation> = Vec::new();
    for step in steps {
        let request = request(step, unit);
        if let (true, Some((_, offset, length))) = (request.is_mutation(), request.range()) {
            let place = offset as usize..(offset + length) as usize;
            match &request {
                Request::Write { data, .. } => data.copy_to(&mut model[place]),
                Request::Trim { .. } if !trims => {}
                _ => model[place].fill(0),
            }
            changed.push((offset, offset + length));
        }
        batch.push(Operation::new(request));
    }
    if ready_first {
        device.run_ready(&mut batch);
        check_flushes(&batch)?;
    }
    device.run(&mut batch);
    for (operation, step) in batch.into_iter().zip(steps) {
        let range = operation.request().range();
        let is_read = matches!(step, Step::Read { .. });
        let data = match operation.into_data() {
            Ok(data) => data.to_vec(),
            Err(error) => return Err(TestCaseError::fail(format!("{step:?} failed: {error}"))),
        };
        if !is_read {
            prop_assert!(data.is_empty(), "{step:?} has data as its outcome");
            continue;
        }
        let Some((_, offset, length)) = range else { continue };
        let disturbed = changed.iter().any(|(start, end)| *start < offset + length && offset < *end);
        prop_assert_eq!(data.len() as u64, length);
        let expected = &before[offset as usize..(offset + length) as usize];
        prop_assert!(disturbed || data == expected, "{:?} read something else", step);
    }
    Ok(())
}

fn request(step: &Step, unit: u64) -> Request {
    match *step {
        Step::Read { at, count } => Request::Read { offset: at * unit, length: (count * unit) as u32 },
        Step::Write { at, count, seed, fua } => {
            let data = Segments::copy_of(&random(seed, (count * unit) as usize));
            Request::Write { offset: at * unit, data, fua }
        }
        Step::Trim { at, count, fua } => Request::Trim { offset: at * unit, length: count * unit, fua },
        Step::Zero { at, count, may_trim, fua } => {
            Request::WriteZeroes { offset: at * unit, length: count * unit, may_trim, fua }
        }
        Step::Prefetch { at, count } => Request::Prefetch { offset: at * unit, length: count * unit },
        Step::Flush => Request::Flush,
    }
}

/// A flush that is done means that all changes before it are.
fn check_flushes(batch: &[Operation]) -> Result<(), TestCaseError> {
    let mut waiting = false;
    for operation in batch {
        waiting |= operation.is_pending() && operation.request().is_mutation();
        prop_assert!(
            !(operation.is_flush() && waiting && !operation.is_pending()),
            "a flush overtook a change"
        );
    }
    Ok(())
}

/// Extents cover the requested range, and those marked as zero read as zero.
fn check_extents(device: &dyn Device, model: &[u8]) -> Result<(), TestCaseError> {
    for (offset, length) in [(0, LENGTH), (LENGTH / 2, LENGTH / 4), (4096 * 3, 4096), (LENGTH, 0)] {
        for limit in [1, 3, usize::MAX] {
            let extents = device.extents(offset, length, limit);
            let extents = extents.map_err(|error| TestCaseError::fail(error.to_string()))?;
            prop_assert!(extents.len() <= limit, "there are more extents than asked for");
            prop_assert!(length == 0 || !extents.is_empty(), "there is no extent at {}", offset);
            let mut at = offset;
            for extent in extents {
                prop_assert!(extent.length > 0, "an extent is empty");
                let end = at + extent.length;
                prop_assert!(end <= offset + length, "an extent reaches past what was asked");
                let zero = model[at as usize..end as usize].iter().all(|byte| *byte == 0);
                prop_assert!(zero || !extent.zero, "an extent at {} is called zero and is not", at);
                at = end;
            }
            prop_assert!(limit != usize::MAX || at == offset + length, "extents do not cover the range");
        }
    }
    Ok(())
}

fn new_device_is_zero_and_as_long_as_asked(make: &dyn Fn(u64) -> Arc<dyn Device>) {
    let device = make(LENGTH);
    let geometry = device.geometry();
    assert_eq!(geometry.length, LENGTH, "a device is as long as asked");
    assert!(matches!(geometry.alignment, 1 | 512 | 4096), "the alignment is one of three");
    assert!(!geometry.read_only, "the suite needs a device that takes writes");
    let all = device.read(0, LENGTH as u32).expect("a new device can be read");
    assert!(all.to_vec().iter().all(|byte| *byte == 0), "a new device is zero");
}

fn later_change_in_a_batch_wins(make: &dyn Fn(u64) -> Arc<dyn Device>) {
    let device = make(LENGTH);
    let data = |byte: u8, length| Segments::copy_of(&vec![byte; length]);
    let zero =
        |offset, length| Operation::new(Request::WriteZeroes { offset, length, may_trim: false, fua: false });
    let mut batch = vec![
        Operation::write(0, data(1, 65536)),
        Operation::write(8192, data(2, 8192)),
        Operation::write(4096, data(3, 8192)),
        zero(20480, 8192),
        Operation::write(24576, data(4, 4096)),
        Operation::write(32768, data(5, 4096)),
        zero(32768, 4096),
        // Many times the same place: a device that starts them side by side and does not order them
        // fails.
    ];
    batch.extend((0..200).map(|count| Operation::write(40960, data(count as u8, 4096))));
    succeed(&*device, batch);
    let blocks: Vec<u8> = (0..16).map(|block| first_byte(&*device, block * 4096)).collect();
    assert_eq!(
        blocks,
        [1, 3, 3, 2, 1, 0, 4, 1, 0, 1, 199, 1, 1, 1, 1, 1],
        "of two changes to the same bytes in a batch the later one wins"
    );
}

fn refusals_leave_the_rest_of_the_batch_alone(make: &dyn Fn(u64) -> Arc<dyn Device>) {
    let device = make(LENGTH);
    let unit = u64::from(device.geometry().alignment);
    let data = || Segments::copy_of(&vec![7; BLOCK_SIZE]);
    // The last aligned offset before offsets overflow.
    let far = u64::MAX - u64::MAX % 4096;
    let outside = [
        Operation::read(LENGTH, 4096),
        Operation::read(LENGTH - 4096, 8192),
        Operation::read(far, 4096),
        Operation::write(LENGTH, data()),
        Operation::write(far, data()),
        Operation::trim(0, LENGTH + 4096),
        Operation::trim(far, far),
        Operation::new(Request::WriteZeroes { offset: 4096, length: LENGTH, may_trim: true, fua: false }),
        Operation::new(Request::Prefetch { offset: LENGTH, length: 4096 }),
    ];
    let refused = outside.len();
    let mut batch: Vec<Operation> = vec![Operation::write(0, data())];
    batch.extend(outside);
    batch.extend([Operation::write(LENGTH - 4096, data()), Operation::flush()]);
    device.run(&mut batch);
    for (index, operation) in batch.into_iter().enumerate() {
        let mut what = String::new();
        let _ = write!(what, "{:?}", operation.request());
        match operation.into_outcome() {
            Err(DeviceError::OutOfRange { end, .. }) if (1..=refused).contains(&index) => {
                assert_eq!(end, LENGTH, "the refusal says where the end is");
            }
            Ok(()) if !(1..=refused).contains(&index) => {}
            other => panic!("requests past the end are refused, others done: {what} gave {other:?}"),
        }
    }
    assert_eq!((first_byte(&*device, 0), first_byte(&*device, LENGTH - 4096)), (7, 7));
    let beyond = device.extents(LENGTH - 4096, 8192, 10);
    assert!(matches!(beyond, Err(DeviceError::OutOfRange { .. })), "extents past the end are refused");

    if unit == 1 {
        return;
    }
    let half = unit / 2;
    let odd = [
        Operation::read(half, unit as u32),
        Operation::read(0, half as u32),
        Operation::write(unit, Segments::copy_of(&vec![9; half as usize])),
        Operation::write(unit + half, data()),
        Operation::trim(unit, half),
        Operation::new(Request::WriteZeroes { offset: half, length: unit, may_trim: true, fua: false }),
    ];
    for operation in odd {
        let mut batch = [operation];
        device.run(&mut batch);
        let [operation] = batch;
        let outcome = operation.into_outcome();
        assert!(
            matches!(outcome, Err(DeviceError::Unaligned { .. })),
            "unaligned requests are refused as such"
        );
    }
    assert_eq!(first_byte(&*device, 0), 7, "a refused request changes nothing");
}

fn empty_requests_succeed(make: &dyn Fn(u64) -> Arc<dyn Device>) {
    let device = make(LENGTH);
    let zero = Request::WriteZeroes { offset: LENGTH, length: 0, may_trim: false, fua: true };
    let batch = vec![
        Operation::read(0, 0),
        Operation::read(LENGTH, 0),
        Operation::write(4096, Segments::default()),
        Operation::trim(LENGTH, 0),
        Operation::new(zero),
        Operation::flush(),
        Operation::flush(),
    ];
    succeed(&*device, batch);
    device.run(&mut []);
}

fn finished_operations_are_not_run_again(make: &dyn Fn(u64) -> Arc<dyn Device>) {
    let device = make(LENGTH);
    let mut batch = [
        Operation::write(0, Segments::copy_of(&[1; BLOCK_SIZE])),
        Operation::write(4096, Segments::copy_of(&[2; BLOCK_SIZE])),
    ];
    batch[0].finish(Err(DeviceError::ReadOnly));
    device.run(&mut batch);
    device.run(&mut batch);
    let [first, second] = batch;
    assert!(matches!(first.into_outcome(), Err(DeviceError::ReadOnly)), "an outcome stays");
    second.into_outcome().expect("the pending operation is run");
    assert_eq!(first_byte(&*device, 0), 0, "a finished operation is not run");
    assert_eq!(first_byte(&*device, 4096), 2);
}

fn ready_operations_keep_the_rules(make: &dyn Fn(u64) -> Arc<dyn Device>) {
    let device = make(LENGTH);
    let mut batch = vec![
        Operation::read(0, 4096),
        Operation::write(0, Segments::copy_of(&[1; BLOCK_SIZE])),
        Operation::flush(),
        Operation::write(0, Segments::copy_of(&[2; BLOCK_SIZE])),
    ];
    device.run_ready(&mut batch);
    check_flushes(&batch).expect("a flush waits for what is before it");
    succeed(&*device, batch);
    assert_eq!(first_byte(&*device, 0), 2, "what was ready is not overtaken");
}

fn data_in_odd_pieces_arrives(make: &dyn Fn(u64) -> Arc<dyn Device>) {
    let device = make(LENGTH);
    let bytes = random(11, 5 * BLOCK_SIZE);
    let mut rng = Rng::new(12);
    let mut data = Segments::default();
    let mut at = 0;
    while at < bytes.len() {
        let length = (1 + rng.below(3000) as usize).min(bytes.len() - at);
        let start = rng.below((BLOCK_SIZE - length) as u64 + 1) as usize;
        let mut block = BlockMut::zeroed();
        block[start..start + length].copy_from_slice(&bytes[at..at + length]);
        data.push(Segment::new(block.freeze(), start, start + length));
        at += length;
    }
    device.write(8192, data).expect("data in pieces is written");
    let read = device.read(8192, bytes.len() as u32).expect("it is read");
    assert!(read.to_vec() == bytes, "data in pieces arrives");
}

fn large_requests_arrive(make: &dyn Fn(u64) -> Arc<dyn Device>) {
    let length: u64 = 8 << 20;
    let device = make(length);
    let bytes = random(21, 5 << 20);
    let batch = vec![Operation::write(1 << 20, Segments::copy_of(&bytes)), Operation::flush()];
    succeed(&*device, batch);
    let read = device.read(1 << 20, bytes.len() as u32).expect("a large read is done");
    assert!(read.to_vec() == bytes, "a large write arrives");
    let mut copy = vec![0; bytes.len()];
    device.read_into(1 << 20, &mut copy).expect("a read in chunks is done");
    assert!(copy == bytes, "chunks are read in order");
    // Blocks without order: more than any queue takes at once.
    let order: Vec<u64> = (0..1024).map(|index| (index * 389) % 1024).collect();
    let write = |block: &u64| Operation::write(block * 8192, Segments::copy_of(&random(*block, BLOCK_SIZE)));
    succeed(&*device, order.iter().map(write).collect());
    let mut batch: Vec<Operation> = order.iter().map(|block| Operation::read(block * 8192, 4096)).collect();
    device.run(&mut batch);
    for (operation, block) in batch.into_iter().zip(order) {
        let data = operation.into_data().expect("every read of a long batch is done");
        assert!(data.to_vec() == random(block, BLOCK_SIZE), "block {block} of a long batch arrives");
    }
}

fn threads_do_not_disturb_each_other(make: &dyn Fn(u64) -> Arc<dyn Device>) {
    let device = make(LENGTH);
    let share = LENGTH / 4;
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let device = Arc::clone(&device);
            scope.spawn(move || {
                let mut rng = Rng::new(thread);
                for round in 0..30 {
                    let place = thread * share + rng.below(share / 4096) * 4096;
                    let bytes = random(thread << 32 | round, BLOCK_SIZE);
                    let mut batch = vec![Operation::write(place, Segments::copy_of(&bytes))];
                    if round % 8 == 0 {
                        batch.push(Operation::flush());
                    }
                    succeed(&*device, batch);
                    let read = device.read(place, 4096).expect("a thread reads");
                    assert!(read.to_vec() == bytes, "a thread reads what it wrote");
                }
            });
        }
    });
}

fn succeed(device: &dyn Device, batch: Vec<Operation>) {
    let mut batch = batch;
    device.run(&mut batch);
    for operation in batch {
        operation.into_outcome().expect("the operation succeeds");
    }
}

fn first_byte(device: &dyn Device, offset: u64) -> u8 {
    device.read(offset, 4096).expect("a block is read").to_vec()[0]
}

fn random(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    Rng::new(seed).fill(&mut bytes);
    bytes
}
