//! The presence file: wrong ones are refused, and damage is found.

use super::*;

fn written() -> (There, Arc<FaultDevice>, Arc<Switched>) {
    let model: Model = (0..BLOCKS).map(|vbn| (vbn, vbn + 1)).collect();
    let there = there(BLOCKS, model);
    let (machine, source) = (machine(BLOCKS), Switched::new(&there));
    create(&machine, &there, BLOCKS).expect("created");
    (there, machine, source)
}

#[test]
fn wrong_files_are_refused_by_name() {
    let (there, machine, source) = written();
    assert!(matches!(create(&machine, &there, BLOCKS), Err(BackedError::Exists)));
    let presence = || {
        let bytes = local_bytes(BLOCKS);
        Arc::new(machine.part(bytes..bytes + presence_bytes(BLOCKS)))
    };
    let parts = |local: u64| BackedParts {
        local: Arc::new(cairn_device::MemoryDevice::new(local)),
        presence: presence(),
        source: source.clone(),
        workers: Arc::new(Alone),
        space_at: LABEL * BLOCK,
        cache: None,
    };
    let other = BackedDevice::open(parts(local_bytes(BLOCKS)), VOLUME, ImageId([4; 16]));
    assert!(matches!(other, Err(BackedError::Other { .. })));
    let other = BackedDevice::open(parts(local_bytes(BLOCKS)), VolumeId([8; 16]), there.image);
    assert!(matches!(other, Err(BackedError::Other { .. })));
    let short = BackedDevice::open(parts(local_bytes(BLOCKS) - BLOCK), VOLUME, there.image);
    assert!(matches!(short, Err(BackedError::LocalTooSmall { .. })));
    let mut head = presence().read(0, BLOCK_SIZE as u32).expect("read").to_vec();
    head[8] = 3;
    presence().write_from(0, &head).expect("written");
    let newer = BackedDevice::open(parts(local_bytes(BLOCKS)), VOLUME, there.image);
    assert!(matches!(newer, Err(BackedError::Newer { version: 3 })));
    (head[8], head[40]) = (1, head[40] ^ 1);
    presence().write_from(0, &head).expect("written");
    let damaged = BackedDevice::open(parts(local_bytes(BLOCKS)), VOLUME, there.image);
    assert!(matches!(damaged, Err(BackedError::Damaged(_))));
    presence().write_from(0, &[0; BLOCK_SIZE]).expect("written");
    let none = BackedDevice::open(parts(local_bytes(BLOCKS)), VOLUME, there.image);
    assert!(matches!(none, Err(BackedError::NotOne)));
}

#[test]
fn damaged_marks_are_found_and_never_hide_a_write() {
    let (_there, machine, source) = written();
    let device = open(&machine, &source, BLOCKS);
    for vbn in [3, 900, 1500] {
        device.write_from(at(vbn), &block(2)).expect("written");
        device.flush().expect("flushed");
    }
    drop(device);
    let start = local_bytes(BLOCKS);
    let mut refused = 0;
    for number in 0..presence_bytes(BLOCKS) / BLOCK {
        let copy = Arc::new(machine.fork());
        if copy.read(start + number * BLOCK, BLOCK_SIZE as u32).expect("read").to_vec() == [0; BLOCK_SIZE] {
            continue;
        }
        copy.corrupt(start + number * BLOCK, BLOCK, &mut Rng::new(number));
        let opened = open_with(&copy, source.clone(), BLOCKS, Arc::new(Alone));
        let Ok(device) = opened else {
            refused += 1;
            continue;
        };
        // Damage of the last marks alone looks as a crash does: only that write may be hidden.
        for vbn in [3, 900] {
            let read = device.read(at(vbn), BLOCK_SIZE as u32).expect("read").to_vec();
            assert!(read == block(2), "block {vbn} with damage at {number}");
        }
    }
    assert!(refused >= 3, "{refused} refused");
}

#[test]
fn full_log_of_marks_begins_a_checkpoint() {
    let (there, machine, source) = written();
    let device = open(&machine, &source, BLOCKS);
    // More flushes with marks than an area has blocks of marks.
    for vbn in 0..1200 {
        device.write_from(at(vbn), &block(2 * vbn + 2)).expect("written");
        device.flush().expect("flushed");
    }
    let device = open(&Arc::new(machine.power_cycle(&mut Rng::new(1))), &source, BLOCKS);
    source.away.store(true, Ordering::Relaxed);
    for vbn in 0..1200 {
        let read = device.read(at(vbn), BLOCK_SIZE as u32).expect("read").to_vec();
        assert!(read == block(2 * vbn + 2), "block {vbn}");
    }
    source.away.store(false, Ordering::Relaxed);
    let read = device.read(at(1300), BLOCK_SIZE as u32).expect("read").to_vec();
    assert!(read == block(there.model[&1300]));
}
