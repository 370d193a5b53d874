//! Volumes on a cache: random lives of a real volume whose blocks are evicted, with cuts of power,
//! a store that fails, and images that expire at once.

use std::collections::BTreeSet;
use std::time::Duration;

use cairn_base::{Clock, SnapshotId};
use cairn_device::{DeviceError, Operation, Segments};
use cairn_files::Luns;
use cairn_format::SnapshotEntry;
use cairn_volume::{FormatOptions, OpenOptions, Role, Volume};

use super::*;
use crate::dumps::KeepDumps;
use crate::images::{ImageReader, Owner, Tuning, VolumeImage};
use crate::{Faults, Habits};

/// 64 MiB.
const SPACE: u64 = 16_384;
const LUN_BLOCKS: u64 = 4000;
const STEPS: u64 = 40;
/// So small that everything happens often.
const SMALL: Tuning = Tuning { since_max: 2, delta_max: 3, list_entries: 2, window: 3, progress: 2 };
const NO_IMAGE: ImageId = ImageId([0; 16]);

/// Images of a store that can be away.
struct Reads {
    source: ImageSource,
    away: AtomicBool,
}

impl Source for Reads {
    fn read_frames(
        &self,
        image: ImageId,
        region: u32,
        frames: Range<usize>,
        cancel: &Arc<AtomicBool>,
    ) -> Result<RegionPart, ImagesError> {
        assert!(image != NO_IMAGE, "no block is absent before the first image");
        if self.away.load(Ordering::Relaxed) {
            let trouble = Trouble::TimedOut;
            return Err(StoreError { verb: Verb::Get, name: None, place: "memory:".into(), trouble }.into());
        }
        self.source.read_frames(image, region, frames, cancel)
    }
}

/// A machine with a volume on a cache.
struct Host {
    machine: Arc<FaultDevice>,
    reads: Arc<Reads>,
    device: Arc<BackedDevice>,
    volume: Arc<Volume>,
    lun: Arc<dyn Device>,
}

fn device_bytes() -> u64 {
    Volume::device_bytes(SPACE, Role::Normal)
}

fn parts(machine: &Arc<FaultDevice>, reads: &Arc<Reads>, cache: u64) -> BackedParts {
    BackedParts {
        local: Arc::new(machine.part(0..device_bytes())),
        presence: Arc::new(machine.part(device_bytes()..device_bytes() + presence_bytes(SPACE))),
        source: reads.clone(),
        workers: Arc::new(Alone),
        space_at: Volume::space_offset(SPACE),
        cache: Some(cache),
    }
}

impl Host {
    fn open(machine: Arc<FaultDevice>, images: &BucketImages, clock: &Arc<ManualClock>, cache: u64) -> Self {
        let reads =
            Arc::new(Reads { source: ImageSource::new(images.clone(), None), away: AtomicBool::new(false) });
        let device = BackedDevice::open(parts(&machine, &reads, cache), VOLUME, NO_IMAGE).expect("opened");
        let device = Arc::new(device);
        let options = OpenOptions { cache_bytes: 1 << 20, clock: clock.clone() };
        let volume = Volume::open(device.clone(), options).expect("opened");
        let lun = Luns::new(volume.clone()).open("a").expect("the LUN");
        Self { machine, reads, device, volume, lun }
    }

    fn make(clock: &Arc<ManualClock>) -> Arc<FaultDevice> {
        let machine = Arc::new(FaultDevice::new(device_bytes() + presence_bytes(SPACE)));
        let presence = machine.part(device_bytes()..device_bytes() + presence_bytes(SPACE));
        let none = std::iter::empty();
        BackedDevice::create(&presence, (VOLUME, Base::default(), SPACE), [1; 16], none).expect("created");
        let device: Arc<dyn Device> = Arc::new(machine.part(0..device_bytes()));
        let options = FormatOptions { id: VOLUME, blocks: SPACE, role: Role::Normal };
        Volume::format(&*device, &options, &**clock).expect("formatted");
        let options = OpenOptions { cache_bytes: 1 << 20, clock: clock.clone() };
        let volume = Volume::open(device, options).expect("opened");
        Luns::new(volume.clone()).create("a", LUN_BLOCKS * BLOCK).expect("a LUN");
        volume.close().expect("closed");
        machine
    }

    fn evict(&self, blocks: u64) -> Result<u64, DeviceError> {
        let clean = VolumeClean::new(&self.volume, &self.device.base()).expect("open");
        clean.map_or(Ok(0), |mut clean| self.device.evict(blocks, &mut clean))
    }
}

struct Life {
    clock: Arc<ManualClock>,
    memory: Arc<Memory>,
    images: BucketImages,
    owner: Option<Owner>,
    host: Host,
    cache: u64,
    /// The stamp of each block that was written, and the stamps that it may have after a cut.
    model: BTreeMap<u64, (u64, Vec<u64>)>,
    stamp: u64,
    rounds: u64,
    rng: Rng,
    counts: BTreeMap<&'static str, u64>,
    /// Calls of the store fail now and then.
    fails: bool,
}

impl Life {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let clock = Arc::new(ManualClock::new(NOW));
        let memory = Memory::with_faults(
            clock.clone(),
            clock.clone(),
            Faults::default(),
            Habits::default(),
            rng.fork(),
        );
        let memory = Arc::new(memory);
        let images =
            BucketImages::with_tuning(memory.clone(), Arc::new(Alone), VOLUME, None, rng.fork(), SMALL);
        // Some have no room for blocks that are read.
        let cache = (14 + rng.below(50)) << 20;
        let host = Host::open(Host::make(&clock), &images, &clock, cache);
        Self {
            clock,
            memory,
            images,
            owner: None,
            host,
            cache,
            model: BTreeMap::new(),
            stamp: 1,
            rounds: 0,
            rng,
            counts: BTreeMap::new(),
            fails: false,
        }
    }

    fn set_faults(&mut self, often: u64) {
        self.fails = often > 0;
        self.memory.set_faults(Faults { fails: often, loses_answer: often, ..Faults::default() });
    }

    fn count(&mut self, event: &'static str) {
        *self.counts.entry(event).or_default() += 1;
    }

    fn is_off(&self) -> bool {
        self.host.machine.is_off()
    }

    /// A failure is of the power, or the store is away: then the volume is as before.
    fn expect_off(&mut self, error: &dyn std::fmt::Display) {
        if self.is_off() {
            return self.crash();
        }
        assert!(self.host.reads.away.load(Ordering::Relaxed) || self.fails, "{error}");
        self.count("the store was away");
        if let Some(latched) = self.host.volume.status().latched {
            panic!("a store that is away made the volume read-only: {latched}");
        }
    }

    fn write(&mut self) {
        if self.host.volume.status().dirty > 2000 {
            // Otherwise the write would wait for a consistency point.
            self.host.reads.away.store(false, Ordering::Relaxed);
            self.set_faults(0);
        }
        let first = self.rng.below(LUN_BLOCKS);
        let most = *[1, 8, 64, 512].get(self.rng.below(4) as usize).expect("one of four");
        let count = (1 + self.rng.below(most)).min(LUN_BLOCKS - first);
        let stamps: Vec<u64> = (0..count)
            .map(|_| {
                self.stamp += 1;
                self.stamp
            })
            .collect();
        let bytes: Vec<u8> = stamps.iter().flat_map(|stamp| block(*stamp)).collect();
        let mut batch = [Operation::write(first * BLOCK, Segments::copy_of(&bytes))];
        self.host.lun.run(&mut batch);
        let [operation] = batch;
        let outcome = operation.into_outcome();
        for (lba, stamp) in (first..).zip(stamps) {
            let held = self.model.entry(lba).or_insert((0, vec![0]));
            held.1.push(stamp);
            if outcome.is_ok() {
                held.0 = stamp;
            }
        }
        if let Err(error) = outcome {
            self.expect_off(&error);
            if !self.is_off() {
                self.crash();
            }
        }
    }

    fn flush(&mut self) {
        match self.host.lun.flush() {
            Ok(()) => self.model.values_mut().for_each(|held| held.1 = vec![held.0]),
            Err(error) => self.expect_off(&error),
        }
    }

    fn read(&mut self) {
        let first = self.rng.below(LUN_BLOCKS);
        let count = (1 + self.rng.below(300)).min(LUN_BLOCKS - first);
        match self.host.lun.read(first * BLOCK, (count * BLOCK) as u32) {
            Ok(bytes) => {
                for (lba, bytes) in (first..).zip(bytes.to_vec().chunks(BLOCK_SIZE)) {
                    let stamp = self.model.get(&lba).map_or(0, |held| held.0);
                    assert!(bytes == block(stamp), "block {lba} of the LUN");
                }
            }
            Err(error) => self.expect_off(&error),
        }
    }

    /// An image of the present state, as a mirror makes it.
    fn round(&mut self) {
        let now = self.clock.now();
        let mut owner = match self.owner.take() {
            Some(owner) => owner,
            None => match self.images.claim("one", now, &never()) {
                Ok(owner) => owner,
                Err(ImagesError::Store(_) | ImagesError::Taken { .. } | ImagesError::Fenced { .. }) => return,
                Err(error) => panic!("a claim: {error}"),
            },
        };
        let outcome = self.update(&mut owner);
        self.owner = Some(owner);
        if let Err(error) = outcome {
            // The store may lose an answer at any time.
            if self.is_off() || self.host.volume.status().latched.is_some() {
                self.expect_off(&error);
            }
        }
    }

    fn update(&mut self, owner: &mut Owner) -> Result<(), String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let volume = self.host.volume.clone();
        let own = |volume: &Volume| -> Vec<SnapshotEntry> {
            volume.snapshot_entries().into_iter().filter(|entry| entry.name.starts_with("own.")).collect()
        };
        owner.settle(&never()).map_err(|error| text(&error))?;
        let newest = owner.newest().map_or(0, |newest| newest.number);
        // An update that was cut is resumed.
        let later = own(&volume).into_iter().map(|entry| entry.id).find(|id| id.0 > newest);
        let target = match later.filter(|_| !self.rng.one_in(4)) {
            Some(id) => id,
            None => {
                self.rounds += 1;
                let made = volume.create_snapshot(&format!("own.{}", self.rounds));
                let id = made.map_err(|error| text(&error))?.id;
                volume.hold_snapshot(id, true).map_err(|error| text(&error))?;
                // It is a consistency point: everything before it is durable.
                self.model.values_mut().for_each(|held| held.1 = vec![held.0]);
                id
            }
        };
        let workers: Arc<dyn Workers> = Arc::new(Alone);
        let updated = VolumeImage::update(&volume, owner, target, &workers, self.clock.now(), &never());
        updated.map_err(|error| text(&error))?;
        self.count("images");
        self.assert_image(owner, target);
        let moved = self.host.device.move_on(&volume, owner).map_err(|error| text(&error))?;
        assert_eq!(moved.base.number, target.0, "no reader holds it");
        if let Some(reader) = owner.reader().filter(|_| self.rng.one_in(2)) {
            self.host.reads.source.set(reader);
        }
        let over: Vec<SnapshotId> =
            own(&volume).into_iter().map(|entry| entry.id).filter(|id| *id != target).collect();
        if !over.is_empty() {
            volume.let_go_of_snapshots(&over).map_err(|error| text(&error))?;
        }
        Ok(())
    }

    /// The committed image has every block as the volume has it.
    fn assert_image(&mut self, owner: &Owner, target: SnapshotId) {
        if !self.rng.one_in(4) || self.host.reads.away.load(Ordering::Relaxed) {
            return;
        }
        self.set_faults(0);
        let reader: ImageReader = owner.reader().expect("an image");
        // The power may fail here too.
        let Ok(live) = self.host.volume.changed_blocks(&[], target) else { return };
        for (first, count) in live.runs {
            let there = reader.read(first, count as usize, &never()).expect("in the bucket");
            let Ok(here) = self.host.volume.read_blocks(&[(first, count)]) else { return };
            assert!(here.iter().flat_map(|block| block.iter()).eq(there.iter()), "{count} from {first}");
        }
    }

    /// Images that no rule keeps go at once, but for the one that the device reads from.
    fn expire(&mut self) {
        let Some(owner) = &mut self.owner else { return };
        let now = self.clock.now();
        let keep = KeepDumps { last: 1, ..KeepDumps::default() };
        let held = [self.host.device.base().image];
        let _ = owner.expire_but(&held, &keep, now, &never());
        let _ = owner.sweep(Duration::ZERO, now, &never());
    }

    fn evict(&mut self) {
        let most = *[1, 1000, u64::MAX].get(self.rng.below(3) as usize).expect("one of three");
        match self.host.evict(most) {
            Ok(0) => {}
            Ok(_) => self.count("evictions"),
            Err(error) => self.expect_off(&error),
        }
    }

    fn snapshots(&mut self) {
        let volume = self.host.volume.clone();
        let of_user: Vec<SnapshotEntry> =
            volume.snapshot_entries().into_iter().filter(|entry| entry.name.starts_with("user.")).collect();
        let outcome = match of_user.first().filter(|_| of_user.len() > 2 || self.rng.one_in(3)) {
            Some(oldest) => volume.delete_snapshots(&[oldest.id]).map(drop),
            None => {
                self.rounds += 1;
                let made = volume.create_snapshot(&format!("user.{}", self.rounds)).map(drop);
                if made.is_ok() {
                    self.model.values_mut().for_each(|held| held.1 = vec![held.0]);
                }
                made
            }
        };
        if let Err(error) = outcome {
            self.expect_off(&error);
        }
    }

    /// The power fails. The volume is opened again and has everything that was flushed.
    fn crash(&mut self) {
        self.count("crashes");
        self.set_faults(0);
        self.memory.settle();
        let machine = Arc::new(self.host.machine.power_cycle(&mut self.rng));
        self.owner = None;
        self.host = Host::open(machine, &self.images, &self.clock, self.cache);
        self.check_all();
    }

    fn check_all(&mut self) {
        for first in (0..LUN_BLOCKS).step_by(200) {
            let bytes = self.host.lun.read(first * BLOCK, (200 * BLOCK) as u32).expect("read").to_vec();
            for (lba, bytes) in (first..).zip(bytes.chunks(BLOCK_SIZE)) {
                let Some(held) = self.model.get_mut(&lba) else {
                    assert!(bytes.iter().all(|byte| *byte == 0), "block {lba} was never written");
                    continue;
                };
                let found = held.1.iter().rev().find(|stamp| bytes == block(**stamp));
                let found = *found.unwrap_or_else(|| panic!("block {lba} has none of its values"));
                *held = (found, vec![found]);
            }
        }
    }

    fn step(&mut self) {
        match self.rng.below(32) {
            0..9 => self.write(),
            9..13 => self.flush(),
            13..17 => self.read(),
            17..21 => self.round(),
            21..25 => self.evict(),
            25 => self.expire(),
            26 => self.snapshots(),
            27 => self.crash(),
            28 => {
                let after = self.rng.below(60);
                self.host.machine.cut_after(after);
            }
            29 => {
                let away = self.rng.one_in(2);
                self.host.reads.away.store(away, Ordering::Relaxed);
                let often = if self.rng.one_in(2) { 6 + self.rng.below(40) } else { 0 };
                self.set_faults(often);
            }
            30 => {
                self.host.reads.away.store(false, Ordering::Relaxed);
                self.set_faults(0);
            }
            _ => {
                self.clock.advance(Duration::from_secs(self.rng.below(20)));
                if let Err(error) = self.host.volume.background(Duration::ZERO) {
                    self.expect_off(&error);
                }
            }
        }
        if self.is_off() {
            self.crash();
        }
    }
}

fn live(seed: u64) -> BTreeMap<&'static str, u64> {
    let mut life = Life::new(seed);
    for _ in 0..STEPS {
        life.step();
    }
    life.crash();
    life.counts
}

fn seeds(default: u64) -> u64 {
    std::env::var("CAIRN_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(default)
}

#[test]
fn volume_on_a_cache_survives_any_life() {
    let mut all: BTreeMap<&'static str, u64> = BTreeMap::new();
    let from = std::env::var("CAIRN_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
    for seed in from..from + seeds(60) {
        let outcome = std::panic::catch_unwind(|| live(seed));
        let counts = outcome.unwrap_or_else(|_| panic!("seed {seed}"));
        counts.into_iter().for_each(|(what, count)| *all.entry(what).or_default() += count);
    }
    println!("{all:?}");
    let happened: BTreeSet<&'static str> = all.keys().copied().collect();
    assert!(["crashes", "evictions", "images"].iter().all(|what| happened.contains(what)), "{all:?}");
}
