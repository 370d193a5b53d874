//! Random lives with cuts of power, and every cut of a small one.

use cairn_device::{DeviceError, Operation, Request, Segments};

use super::*;

/// A block as it must be: the value that reads show, and the values that it may have after a cut.
#[derive(Debug, Clone, Default)]
struct Held {
    now: Vec<u8>,
    /// Values of unflushed writes, and the durable one first.
    may: Vec<Vec<u8>>,
    /// It was written or read here and flushed since, so that it needs no store.
    local: bool,
    touched: bool,
}

struct Life {
    there: There,
    machine: Arc<FaultDevice>,
    source: Arc<Switched>,
    device: BackedDevice,
    held: BTreeMap<u64, Held>,
    stamp: u64,
    rng: Rng,
    /// Changes are refused after a failed flush.
    latched: bool,
}

impl Life {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let model = some_blocks(&mut rng);
        let there = there(BLOCKS, model);
        let (machine, source) = (machine(BLOCKS), Switched::new(&there));
        create(&machine, &there, BLOCKS).expect("created");
        let device = open(&machine, &source, BLOCKS);
        Self { there, machine, source, device, held: BTreeMap::new(), stamp: 1 << 50, rng, latched: false }
    }

    fn held(&mut self, vbn: u64) -> &mut Held {
        let stamp = self.there.model.get(&vbn).copied().unwrap_or(0);
        self.held.entry(vbn).or_insert_with(|| {
            let now = block(stamp);
            Held { may: vec![now.clone()], now, local: false, touched: false }
        })
    }

    fn run(&mut self, operation: Operation) -> Result<(), DeviceError> {
        let mut batch = [operation];
        self.device.run(&mut batch);
        let [operation] = batch;
        operation.into_outcome()
    }

    /// A place near blocks of the image.
    fn place(&mut self) -> (u64, u64) {
        let near: Vec<u64> = self.there.model.keys().copied().collect();
        let first = match self.rng.below(4) {
            0 => self.rng.below(BLOCKS),
            _ => near[self.rng.below(near.len() as u64) as usize].saturating_sub(self.rng.below(6)),
        };
        (first, (1 + self.rng.below(12)).min(BLOCKS - first))
    }

    fn change(&mut self) {
        let (first, count) = self.place();
        let (fua, kind) = (self.rng.one_in(4), self.rng.below(5));
        let stamps: Vec<u64> = (0..count)
            .map(|_| {
                self.stamp += 1;
                if kind < 3 { self.stamp } else { 0 }
            })
            .collect();
        let length = count * BLOCK;
        let request = match kind {
            3 => Request::Trim { offset: at(first), length, fua },
            4 => Request::WriteZeroes { offset: at(first), length, may_trim: false, fua },
            _ => {
                let bytes: Vec<u8> = stamps.iter().flat_map(|stamp| block(*stamp)).collect();
                Request::Write { offset: at(first), data: Segments::copy_of(&bytes), fua }
            }
        };
        let outcome = self.run(Operation::new(request));
        if self.latched {
            return;
        }
        let done = outcome.is_ok();
        for (vbn, stamp) in (first..).zip(stamps) {
            let held = self.held(vbn);
            held.touched = true;
            held.may.push(block(stamp));
            if done {
                held.now = block(stamp);
            }
            if done && fua {
                held.may = vec![held.now.clone()];
            }
            if !done {
                // Without a crash the next reads show any of them; a crash follows.
                held.local = false;
            }
        }
        if !done {
            self.crash();
        }
    }

    fn flush(&mut self) {
        match self.device.flush() {
            Ok(()) => {
                for held in self.held.values_mut() {
                    held.may = vec![held.now.clone()];
                    held.local |= held.touched;
                }
            }
            Err(_) => self.crash(),
        }
    }

    /// Reads show exactly the present content, or fail while the store does.
    fn read(&mut self) {
        let (first, count) = self.place();
        let read = self.device.read(at(first), (count * BLOCK) as u32);
        let bytes = match read {
            Ok(bytes) => bytes.to_vec(),
            Err(DeviceError::Io { .. }) => {
                let (away, one_in) = (&self.source.away, &self.source.fails_one_in);
                assert!(away.load(Ordering::Relaxed) || one_in.load(Ordering::Relaxed) > 0);
                let local = |vbn: &u64| self.held.get(vbn).is_some_and(|held| held.local);
                assert!(!(first..first + count).all(|vbn| local(&vbn)), "a local block needs no store");
                return;
            }
            Err(DeviceError::OutOfService) => return self.crash(),
            Err(error) => panic!("{error}"),
        };
        for (vbn, bytes) in (first..).zip(bytes.chunks(BLOCK_SIZE)) {
            let held = self.held(vbn);
            assert!(bytes == held.now, "block {vbn}");
            held.touched = true;
        }
    }

    /// The power fails, and everything is as it may be.
    fn crash(&mut self) {
        self.machine = Arc::new(self.machine.power_cycle(&mut self.rng));
        self.latched = false;
        // The store is away: local blocks must be readable.
        let local: Vec<u64> = self.held.iter().filter(|(_, held)| held.local).map(|(vbn, _)| *vbn).collect();
        let copy = Arc::new(self.machine.fork());
        let away = Switched::new(&self.there);
        away.away.store(true, Ordering::Relaxed);
        let device = open(&copy, &away, BLOCKS);
        for vbn in local {
            let read = device.read(at(vbn), BLOCK_SIZE as u32);
            self.resolve(vbn, &read.expect("a flushed block is local").to_vec());
        }
        // With the store everything is readable.
        let copy = Arc::new(self.machine.fork());
        let device = open(&copy, &Switched::new(&self.there), BLOCKS);
        for first in (0..BLOCKS).step_by(100) {
            let count = 100.min(BLOCKS - first);
            let read = device.read(at(first), (count * BLOCK) as u32).expect("read").to_vec();
            for (vbn, bytes) in (first..).zip(read.chunks(BLOCK_SIZE)) {
                self.resolve(vbn, bytes);
            }
        }
        self.device = open(&self.machine, &self.source, BLOCKS);
    }

    /// Each sector of a block after a crash has one of the values that it may have.
    fn resolve(&mut self, vbn: u64, bytes: &[u8]) {
        let held = self.held(vbn);
        for (number, sector) in bytes.chunks(512).enumerate() {
            let is = |value: &Vec<u8>| value.chunks(512).nth(number) == Some(sector);
            assert!(held.may.iter().any(is), "block {vbn}, sector {number}");
        }
        held.now = bytes.to_vec();
        held.may = vec![held.now.clone()];
        held.touched = held.local;
    }

    fn step(&mut self) {
        match self.rng.below(24) {
            0..8 => self.read(),
            8..15 => self.change(),
            15..18 => self.flush(),
            18 => {
                let filled = self.device.fill(1 + self.rng.below(2) as usize, &never());
                if matches!(filled, Err(DeviceError::OutOfService)) {
                    self.crash();
                }
            }
            19 => self.crash(),
            20 => {
                let after = self.rng.below(6);
                self.machine.cut_after(after);
            }
            21 => {
                let (away, one_in) = (self.rng.one_in(3), self.rng.below(3));
                self.source.away.store(away, Ordering::Relaxed);
                self.source.fails_one_in.store(one_in * 2, Ordering::Relaxed);
            }
            22 => {
                self.source.away.store(false, Ordering::Relaxed);
                self.source.fails_one_in.store(0, Ordering::Relaxed);
            }
            _ => {
                // A failing disk: the next change or flush fails.
                if self.rng.one_in(3) {
                    let source = Arc::new(io::Error::other("a failing disk"));
                    let action = cairn_device::Action::Flush;
                    self.machine.fail_next_operation(DeviceError::Io {
                        action,
                        offset: 0,
                        length: 0,
                        source,
                    });
                    self.flush();
                }
            }
        }
    }
}

fn live(seed: u64) {
    let mut life = Life::new(seed);
    for _ in 0..60 {
        life.step();
    }
    life.machine.heal_operations();
    life.crash();
}

fn seeds(default: u64) -> u64 {
    std::env::var("CAIRN_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(default)
}

#[test]
fn flushed_data_and_the_image_survive_any_life() {
    for seed in 0..seeds(150) {
        let outcome = std::panic::catch_unwind(|| live(seed));
        assert!(outcome.is_ok(), "seed {seed}");
    }
}

/// The image and every flushed write survive a cut at each operation, with each fate.
#[test]
fn every_cut_of_a_small_life_is_survived() {
    let model: Model = [(5, 50), (6, 61), (40, 70), (REGION + 3, 81)].into();
    let there = there(BLOCKS, model);
    let script = |device: &BackedDevice| -> Vec<bool> {
        let write = |vbn: u64, stamp: u64| device.write_from(at(vbn), &block(stamp)).is_ok();
        let read = |vbn: u64| device.read(at(vbn), BLOCK_SIZE as u32).is_ok();
        vec![
            write(5, 100),
            device.flush().is_ok(),
            read(40),
            write(40, 101),
            device.flush().is_ok(),
            write(6, 102),
            device.fill(2, &never()).is_ok(),
            device.flush().is_ok(),
            write(REGION + 3, 103),
            device.flush().is_ok(),
        ]
    };
    // Block, stamps in order, and the step of the flush that covers each but the first.
    let blocks: [(u64, &[u64], usize); 4] =
        [(5, &[50, 100], 1), (40, &[70, 101], 4), (6, &[61, 102], 7), (REGION + 3, &[81, 103], 9)];
    let source = Switched::new(&there);
    let first = machine(BLOCKS);
    create(&first, &there, BLOCKS).expect("created");
    let count = {
        let device = open(&Arc::new(first.fork()), &source, BLOCKS);
        let copy = Arc::new(first.fork());
        drop(device);
        let device = open(&copy, &source, BLOCKS);
        let before = copy.operations();
        assert!(script(&device).iter().all(|done| *done));
        copy.operations() - before
    };
    for cut in 0..count {
        for fate in cairn_device::Fate::ALL {
            for seed in 0..4 {
                let machine = Arc::new(first.fork());
                let device = open(&machine, &source, BLOCKS);
                machine.cut_after(cut);
                let done = script(&device);
                let machine = Arc::new(machine.power_cycle_as(fate, &mut Rng::new(seed)));
                let device = open(&machine, &source, BLOCKS);
                for (vbn, stamps, flush) in blocks {
                    let read = device.read(at(vbn), BLOCK_SIZE as u32).expect("read").to_vec();
                    let may: Vec<Vec<u8>> = match done[flush] {
                        true => vec![block(stamps[1])],
                        false => stamps.iter().map(|stamp| block(*stamp)).collect(),
                    };
                    for (number, sector) in read.chunks(512).enumerate() {
                        let is = |value: &Vec<u8>| value.chunks(512).nth(number) == Some(sector);
                        assert!(may.iter().any(is), "block {vbn}, cut {cut}, {fate:?}, seed {seed}");
                    }
                }
            }
        }
    }
    assert!(count > 10, "{count} operations");
}

/// A creation that is cut leaves no presence file, or a whole one.
#[test]
fn every_cut_of_a_creation_is_survived() {
    let there = there(BLOCKS, [(5, 50), (REGION + 3, 81)].into());
    let source = Switched::new(&there);
    for cut in 0.. {
        let machine = machine(BLOCKS);
        machine.cut_after(cut);
        let made = create(&machine, &there, BLOCKS).is_ok();
        for fate in cairn_device::Fate::ALL {
            let machine = Arc::new(machine.power_cycle_as(fate, &mut Rng::new(cut)));
            match open_with(&machine, source.clone(), BLOCKS, Arc::new(Alone)) {
                Ok(device) => {
                    let read = device.read(at(5), BLOCK_SIZE as u32).expect("read").to_vec();
                    assert!(read == block(50), "cut {cut}");
                }
                // The head is in one sector, so it is there or not.
                Err(BackedError::NotOne) => assert!(!made, "cut {cut}"),
                Err(error) => panic!("cut {cut}: {error}"),
            }
        }
        if made {
            return;
        }
    }
}
