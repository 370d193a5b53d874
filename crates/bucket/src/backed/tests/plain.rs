//! Reads, writes and fills without crashes.

use cairn_device::{Operation, Segments};

use super::*;

fn is_stamp(device: &dyn Device, vbn: u64, stamp: u64) -> bool {
    device.read(at(vbn), BLOCK_SIZE as u32).expect("read").to_vec() == block(stamp)
}

#[test]
fn blocks_of_the_image_are_fetched_once_and_others_need_no_request() {
    let model: Model = [(5, 50), (6, 61), (REGION + 3, 70)].into();
    let there = there(BLOCKS, model);
    let (machine, source) = (machine(BLOCKS), Switched::new(&there));
    create(&machine, &there, BLOCKS).expect("created");
    let device = open(&machine, &source, BLOCKS);
    // The label area, and a region that the image does not have.
    assert!(device.read(0, 3 * BLOCK_SIZE as u32).expect("read").to_vec().iter().all(|byte| *byte == 0));
    assert!(is_stamp(&device, 2 * REGION + 9, 0));
    assert_eq!(source.reads.load(Ordering::Relaxed), 0);
    assert!(is_stamp(&device, 5, 50) && is_stamp(&device, 6, 61) && is_stamp(&device, 7, 0));
    // A place that the image does not use needs no second request once the region is known.
    assert!(is_stamp(&device, 900, 0));
    assert_eq!(source.reads.load(Ordering::Relaxed), 1);
    assert_eq!(device.status().lacking, 1, "the frames without a block need no fetch");
    assert!(is_stamp(&device, REGION + 3, 70));
    assert!(device.is_whole());
}

#[test]
fn read_of_a_range_joins_local_and_fetched_blocks() {
    let model: Model = (100..400).map(|vbn| (vbn, vbn + 7)).collect();
    let there = there(BLOCKS, model);
    let (machine, source) = (machine(BLOCKS), Switched::new(&there));
    create(&machine, &there, BLOCKS).expect("created");
    let device = open(&machine, &source, BLOCKS);
    device.write_from(at(200), &block(9)).expect("written");
    device.run(&mut [Operation::trim(at(300), BLOCK)]);
    let read = device.read(at(90), 320 * BLOCK_SIZE as u32).expect("read").to_vec();
    for (vbn, bytes) in (90..).zip(read.chunks(BLOCK_SIZE)) {
        let stamp = match vbn {
            200 => 9,
            300 => 0,
            100..400 => vbn + 7,
            _ => 0,
        };
        assert!(bytes == block(stamp), "block {vbn}");
    }
}

#[test]
fn writes_need_no_store() {
    let model: Model = (0..BLOCKS).map(|vbn| (vbn, vbn + 1)).collect();
    let there = there(BLOCKS, model);
    let (machine, source) = (machine(BLOCKS), Switched::new(&there));
    create(&machine, &there, BLOCKS).expect("created");
    source.away.store(true, Ordering::Relaxed);
    let device = open(&machine, &source, BLOCKS);
    device.write_from(at(1000), &[block(2), block(4)].concat()).expect("written");
    device.flush().expect("flushed");
    assert!(is_stamp(&device, 1000, 2) && is_stamp(&device, 1001, 4));
    let error = device.read(at(1002), BLOCK_SIZE as u32).expect_err("away").to_string();
    assert!(error.contains("region 0 is not local"), "{error}");
    assert!(device.status().trouble.is_some());
    source.away.store(false, Ordering::Relaxed);
    assert!(is_stamp(&device, 1002, 1003));
    assert!(device.status().trouble.is_none());
}

#[test]
fn writes_of_one_batch_keep_their_order() {
    // The first region is lacking, the second is not.
    let there = there(BLOCKS, [(5, 50)].into());
    let (machine, source) = (machine(BLOCKS), Switched::new(&there));
    create(&machine, &there, BLOCKS).expect("created");
    let device = open(&machine, &source, BLOCKS);
    let write =
        |vbn, stamps: [u64; 2]| Operation::write(at(vbn), Segments::copy_of(&stamps.map(block).concat()));
    device.run(&mut [write(REGION, [1, 2]), write(REGION - 1, [3, 4]), write(REGION + 1, [5, 6])]);
    let stamps = [(REGION - 1, 3), (REGION, 4), (REGION + 1, 5), (REGION + 2, 6)];
    assert!(stamps.iter().all(|(vbn, stamp)| is_stamp(&device, *vbn, *stamp)));
}

#[test]
fn fill_makes_everything_local_and_then_the_bucket_is_not_needed() {
    let model: Model = (0..BLOCKS).step_by(3).map(|vbn| (vbn, vbn + 1)).collect();
    let there = there(BLOCKS, model);
    let (machine, source) = (machine(BLOCKS), Switched::new(&there));
    create(&machine, &there, BLOCKS).expect("created");
    let device = open_with(&machine, source.clone(), BLOCKS, Arc::new(Spawned)).expect("opened");
    device.write_from(at(3), &block(8)).expect("written");
    while device.fill(2, &never()).expect("filled").lacking > 0 {}
    device.flush().expect("flushed");
    drop(device);
    source.away.store(true, Ordering::Relaxed);
    let device = open(&machine, &source, BLOCKS);
    assert!(device.is_whole());
    for vbn in 0..BLOCKS {
        let stamp = if vbn == 3 { 8 } else { there.model.get(&vbn).copied().unwrap_or(0) };
        assert!(is_stamp(&device, vbn, stamp), "block {vbn}");
    }
}

#[test]
fn reader_in_order_gets_whole_regions_ahead() {
    let blocks = 20 * REGION;
    let model: Model = (0..blocks).step_by(50).map(|vbn| (vbn, vbn + 2)).collect();
    let there = there(blocks, model);
    let (machine, source) = (machine(blocks), Switched::new(&there));
    create(&machine, &there, blocks).expect("created");
    let device = open_with(&machine, source.clone(), blocks, Arc::new(Spawned)).expect("opened");
    for first in (0..blocks).step_by(32) {
        let read = device.read(at(first), 32 * BLOCK_SIZE as u32).expect("read").to_vec();
        for (vbn, bytes) in (first..).zip(read.chunks(BLOCK_SIZE)) {
            assert!(bytes == block(there.model.get(&vbn).copied().unwrap_or(0)), "block {vbn}");
        }
    }
    let reads = source.reads.load(Ordering::Relaxed);
    assert!(reads <= 30, "{reads} requests for 20 regions");
}

#[test]
fn damaged_block_is_an_error_that_names_region_and_object() {
    let model: Model = (0..BLOCKS).map(|vbn| (vbn, 2 * vbn + 1)).collect();
    for gone in [false, true] {
        let there = there(BLOCKS, model.clone());
        let (machine, source) = (machine(BLOCKS), Switched::new(&there));
        create(&machine, &there, BLOCKS).expect("created");
        let device = open(&machine, &source, BLOCKS);
        let is_second = |name: &&crate::Name| name.as_str().contains("/region/00000001/");
        let name = there.memory.names().iter().find(is_second).expect("a region").clone();
        let raw = there.memory.raw(&name).expect("there");
        let changed = (!gone).then(|| {
            let mut bytes = raw.to_vec();
            let last = bytes.len() - 10;
            bytes[last] ^= 1;
            bytes.into()
        });
        there.memory.replace(&name, changed);
        let last = 2 * REGION - 1;
        let error = device.read(at(last), BLOCK_SIZE as u32).expect_err("damaged").to_string();
        assert!(error.contains("region 1") && error.contains(name.as_str()), "{error}");
        assert_eq!(device.status().damaged.len(), 1);
        // Other regions are served, and so are writes to the damaged one.
        assert!(is_stamp(&device, 4, 9));
        device.write_from(at(last), &block(6)).expect("written");
        assert!(is_stamp(&device, last, 6));
        // A fill fails at it and fetches the rest.
        let filled: Vec<bool> = (0..6).map(|_| device.fill(1, &never()).is_ok()).collect();
        assert!(filled.contains(&false) && filled.contains(&true));
        assert_eq!(device.status().lacking, 1);
    }
}

#[test]
fn full_local_device_serves_what_it_cannot_keep() {
    let model: Model = (0..64).map(|vbn| (vbn, vbn + 1)).collect();
    let there = there(BLOCKS, model);
    let (machine, source) = (machine(BLOCKS), Switched::new(&there));
    create(&machine, &there, BLOCKS).expect("created");
    let device = open(&machine, &source, BLOCKS);
    machine.fail_operations(0, u64::MAX, cairn_device::DeviceError::NoSpace { offset: 0, length: 0 });
    assert!((0..64).all(|vbn| is_stamp(&device, vbn, vbn + 1)));
    assert!(matches!(device.fill(1, &never()), Err(cairn_device::DeviceError::NoSpace { .. })));
    machine.heal_operations();
    assert_eq!(device.fill(1, &never()).expect("filled").lacking, 0);
    device.flush().expect("flushed");
}

#[test]
fn memory_stays_small() {
    let tib = 1 << 28;
    let regions = (0..(tib / REGION) as u32).map(|region| (region, 4 << 20));
    let presence = cairn_device::MemoryDevice::new(presence_bytes(tib));
    BackedDevice::create(&presence, (VOLUME, first(ImageId([3; 16])), tib), [1; 16], regions)
        .expect("created");
    let there = there(BLOCKS, Model::new());
    let parts = BackedParts {
        local: Arc::new(cairn_device::MemoryDevice::new(local_bytes(tib))),
        presence: Arc::new(presence),
        source: Switched::new(&there),
        workers: Arc::new(Alone),
        space_at: LABEL * BLOCK,
        cache: None,
    };
    let device = BackedDevice::open(parts, VOLUME, ImageId([3; 16])).expect("opened");
    for region in 0..PARTIAL_MAX as u64 {
        device.write_from(at(region * REGION), &block(2)).expect("written");
    }
    device.flush().expect("flushed");
    // The table of the image takes 8 MiB more.
    assert!(device.memory() < 8 << 20, "{} bytes for a TiB", device.memory());
    assert_eq!(device.status().lacking, tib / REGION);
}

/// A fetch makes the last region local by marks that are not durable, and a write with FUA follows.
#[test]
fn durable_write_into_a_fetched_region_survives_a_cut() {
    let there = there(BLOCKS, [(5, 50), (6, 60)].into());
    let (machine, source) = (machine(BLOCKS), Switched::new(&there));
    create(&machine, &there, BLOCKS).expect("created");
    let device = open(&machine, &source, BLOCKS);
    assert_eq!(device.fill(1, &never()).expect("filled").lacking, 0);
    let write = |fua| {
        let data = Segments::copy_of(&block(2));
        Operation::new(cairn_device::Request::Write { offset: at(5), data, fua })
    };
    let mut batch = [write(true)];
    device.run(&mut batch);
    assert!(batch[0].outcome().is_some_and(Result::is_ok));
    let machine = Arc::new(machine.power_cycle_as(cairn_device::Fate::Lost, &mut Rng::new(1)));
    let device = open(&machine, &source, BLOCKS);
    assert!(is_stamp(&device, 5, 2) && is_stamp(&device, 6, 60));
}
