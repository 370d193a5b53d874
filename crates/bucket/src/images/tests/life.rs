//! A life of two machines at one bucket whose store fails, loses answers, executes calls late and
//! lists late. From a seed; a failure names it.
//!
//! After each step: every image in the list reads byte for byte as in the model; every committed
//! image that has not expired is in the list, in order; no owner commits after a later claim was
//! answered.

use super::*;
use crate::dumps::KeepDumps;
use crate::{Faults, Habits};

/// Seeds of `./test`; `many_lives` runs more.
const SEEDS: u64 = 600;
const MANY_SEEDS: u64 = 20_000;
const STEPS: u64 = 24;
const REGIONS: u64 = 7;

struct Machine {
    images: BucketImages,
    owner: Option<Owner>,
    /// The step at which its claim was answered.
    claimed: u64,
}

struct World {
    memory: Arc<Memory>,
    clock: Arc<ManualClock>,
    rng: Rng,
    machines: Vec<Machine>,
    /// Every image that an update was begun for.
    models: BTreeMap<u64, Model>,
    /// Committed ones, in order.
    committed: Vec<u64>,
    /// Images that may have expired.
    expired: BTreeSet<u64>,
    /// The step of the newest claim that was answered.
    newest_claim: u64,
    step: u64,
    outcomes: BTreeMap<&'static str, u64>,
}

fn faults(rng: &mut Rng) -> Faults {
    let mut often = |most: u64| if rng.one_in(3) { 0 } else { 4 + rng.below(most) };
    Faults {
        fails: often(30),
        loses_answer: often(30),
        done_later: often(30),
        slow: often(30),
        slow_by: Duration::from_secs(60),
        lists_late: often(4).min(4),
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let clock = clock();
        let memory = Memory::with_faults(
            clock.clone(),
            clock.clone(),
            faults(&mut rng),
            Habits::default(),
            rng.fork(),
        );
        let memory = Arc::new(memory);
        let machine = |rng: &mut Rng| Machine {
            images: images_of(memory.clone(), &clock, 2 + rng.below(6) as u32, rng.next()),
            owner: None,
            claimed: 0,
        };
        let machines = vec![machine(&mut rng), machine(&mut rng)];
        Self {
            memory: memory.clone(),
            clock,
            rng,
            machines,
            models: BTreeMap::new(),
            committed: Vec::new(),
            expired: BTreeSet::new(),
            newest_claim: 0,
            step: 0,
            outcomes: BTreeMap::new(),
        }
    }

    fn count(&mut self, outcome: &'static str) {
        *self.outcomes.entry(outcome).or_default() += 1;
    }

    fn now(&self) -> Timestamp {
        cairn_base::Clock::now(&*self.clock)
    }

    /// A model that differs a little.
    fn mutated(&mut self, base: &Model) -> Model {
        let mut model = base.clone();
        for _ in 0..1 + self.rng.below(6) {
            let region = self.rng.below(REGIONS) as u32;
            let place =
                *[0, 1, 15, 16, 500, REGION_BLOCKS - 1].get(self.rng.below(6) as usize).expect("one of six");
            if self.rng.one_in(4) {
                model.remove(&(region, place));
            } else {
                // Few compress: that takes most of the time.
                let plain = u64::from(!self.rng.one_in(8));
                model.insert((region, place), self.rng.next() | plain);
            }
        }
        if self.rng.one_in(5) {
            let emptied = self.rng.below(REGIONS) as u32;
            model.retain(|at, _| at.0 != emptied);
        }
        model
    }

    fn live(&mut self) {
        for step in 1..=STEPS {
            self.step = step;
            let which = self.rng.below(10).min(1) as usize ^ 1;
            match self.rng.below(16) {
                0..=9 => self.update(which),
                10 => self.lose(which),
                11 => self.expire(which),
                12 | 13 => self.sweep(which),
                14 => self.claim(which),
                _ => {
                    let faults = faults(&mut self.rng);
                    self.memory.set_faults(faults);
                    self.clock.advance(Duration::from_secs(self.rng.below(100_000)));
                }
            }
            self.verify();
        }
        self.end();
    }

    fn lose(&mut self, which: usize) {
        self.machines[which].owner = None;
    }

    fn claim(&mut self, which: usize) {
        let now = self.now();
        let machine = &mut self.machines[which];
        machine.owner = None;
        match machine.images.claim("a machine", now, &never()) {
            Ok(owner) => {
                machine.owner = Some(owner);
                machine.claimed = self.step;
                self.newest_claim = self.step;
                self.count("claimed");
            }
            Err(ImagesError::Store(_)) => self.count("claim failed"),
            // A ghost of an earlier claim of its own, which was done late.
            Err(ImagesError::Taken { .. } | ImagesError::Fenced { .. }) => self.count("taken"),
            Err(error) => panic!("a claim: {error}"),
        }
    }

    fn update(&mut self, which: usize) {
        if self.machines[which].owner.is_none() {
            self.claim(which);
        }
        let Some(mut owner) = self.machines[which].owner.take() else { return };
        match self.update_by(&mut owner) {
            Ok(number) => {
                let claimed = self.machines[which].claimed;
                assert_eq!(claimed, self.newest_claim, "image {number} was committed by a fenced owner");
                if self.committed.last() != Some(&number) {
                    self.committed.push(number);
                }
                self.count("committed");
            }
            Err(ImagesError::Fenced { .. }) => {
                self.count("fenced");
                return;
            }
            Err(ImagesError::Store(_)) => self.count("update failed"),
            Err(ImagesError::Base { .. } | ImagesError::Rule(_)) => self.count("refused"),
            Err(error) => panic!("an update: {error}"),
        }
        self.machines[which].owner = Some(owner);
    }

    fn update_by(&mut self, owner: &mut Owner) -> Result<u64, ImagesError> {
        let settled = owner.settle(&never());
        let newest = owner.newest();
        if let Some(newest) = newest.filter(|_| settled.is_ok()) {
            // It may have been committed just now.
            if !self.committed.contains(&newest.number) {
                self.committed.push(newest.number);
            }
        }
        settled?;
        let base = newest.map_or_else(Model::new, |newest| self.models[&newest.number].clone());
        let there: BTreeSet<u64> = owner.images().iter().map(|label| label.number).collect();
        // Often the image that the last update did not bring about.
        let last = self.models.keys().next_back().copied().filter(|number| !there.contains(number));
        let number = match last.filter(|_| !self.rng.one_in(3)) {
            Some(number) => number,
            None => {
                let number = self.models.keys().next_back().map_or(1, |last| last + 1);
                let model = self.mutated(&base);
                self.models.insert(number, model);
                number
            }
        };
        let target = self.models[&number].clone();
        let label = label(number, Timestamp(NOW.0 + number * 3_600_000_000_000));
        let update = owner.begin(newest.map(|newest| newest.id), label.id, &never())?;
        let resumed = update.resumed() > 0;
        for region in changed(&base, &target) {
            if self.rng.one_in(12) {
                return Err(ImagesError::Rule("cut by the test"));
            }
            if !update.has(region) {
                update.put_region(region, &blocks_of(&target, region), &never())?;
            }
        }
        let now = self.now();
        owner.commit(&update, label, &content(number), now, &never())?;
        if resumed {
            self.count("resumed");
        }
        Ok(number)
    }

    fn expire(&mut self, which: usize) {
        let (now, last) = (self.now(), 1 + self.rng.below(3) as u32);
        let Some(owner) = &mut self.machines[which].owner else { return };
        let older: BTreeSet<u64> = owner.images().iter().rev().skip(1).map(|label| label.number).collect();
        match owner.expire(&KeepDumps { last, ..KeepDumps::default() }, now, &never()) {
            Ok(expired) => {
                self.expired.extend(expired.images.iter().map(|label| label.number));
                self.count("expired");
            }
            Err(ImagesError::Fenced { .. }) => {
                self.expired.extend(older);
                self.lose(which);
            }
            Err(ImagesError::Store(_)) => self.expired.extend(older),
            Err(error) => panic!("an expiration: {error}"),
        }
    }

    fn sweep(&mut self, which: usize) {
        let now = self.now();
        let all = if self.rng.one_in(2) { Orphans::All } else { Orphans::Small };
        let Some(owner) = &mut self.machines[which].owner else { return };
        let swept = owner.sweep(Duration::ZERO, now, &never()).map(|swept| {
            assert!(swept.unreadable.is_empty(), "{:?}", swept.unreadable);
            swept.objects
        });
        let orphans =
            swept.and_then(|objects| Ok(objects + owner.sweep_orphans(all, Duration::ZERO, now, &never())?));
        match orphans {
            Ok(0) => self.count("swept nothing"),
            Ok(_) => self.count("swept"),
            Err(ImagesError::Fenced { .. }) => self.lose(which),
            Err(ImagesError::Store(_)) => {}
            Err(error) => panic!("a sweep: {error}"),
        }
    }

    /// Looks at the bucket with a store that works, apart from listings that are late.
    fn verify(&mut self) {
        let lists_late = if self.rng.one_in(2) { 2 } else { 0 };
        self.memory.set_faults(Faults { lists_late, ..Faults::default() });
        let images = images_of(self.memory.clone(), &self.clock, 1, self.rng.next());
        let labels = images.images(&never()).expect("a list");
        let shown: Vec<u64> = labels.iter().map(|label| label.number).collect();
        let newest = labels.last().copied();
        for label in &labels {
            if self.rng.below(3) > 0 && Some(*label) != newest {
                continue;
            }
            let reader = match images.image(Some(label.id), &never()) {
                // The root of an expiration took effect between the two looks.
                Err(ImagesError::NoImage(_)) if self.expired.contains(&label.number) => continue,
                reader => reader.expect("opened"),
            };
            assert_reads(&reader, &self.models[&label.number]);
        }
        let kept: Vec<u64> =
            self.committed.iter().copied().filter(|number| !self.expired.contains(number)).collect();
        let mut rest = shown.iter();
        for number in kept {
            assert!(
                rest.any(|shown| *shown == number),
                "image {number} was committed, and {shown:?} are there"
            );
        }
        if let (Some(last), Some(newest)) = (self.committed.last(), shown.last()) {
            assert!(
                newest == last || !self.committed.contains(newest),
                "image {last} was the newest, not {newest}"
            );
        }
        let faults = faults(&mut self.rng);
        self.memory.set_faults(faults);
    }

    /// All late calls take effect, and another owner cleans up: the bucket has exactly the objects
    /// that images name.
    fn end(&mut self) {
        self.memory.set_faults(Faults::default());
        self.memory.settle();
        self.verify();
        self.memory.set_faults(Faults::default());
        self.memory.settle();
        let images = images_of(self.memory.clone(), &self.clock, 1, 9);
        let mut owner = images.claim("the last", self.now(), &never()).expect("claimed");
        let base = owner.newest().map_or_else(Model::new, |newest| self.models[&newest.number].clone());
        let (number, model) = (1_000_000, self.mutated(&base));
        advance(&mut owner, number, &base, &model).expect("committed");
        let keep = KeepDumps { last: 1, ..KeepDumps::default() };
        owner.expire(&keep, self.now(), &never()).expect("expired");
        owner.sweep(Duration::ZERO, self.now(), &never()).expect("swept");
        owner.sweep_orphans(Orphans::All, Duration::ZERO, self.now(), &never()).expect("swept");
        let reader = images.image(None, &never()).expect("opened");
        assert_reads(&reader, &model);
        let regions = self.memory.names().iter().filter(|name| name.as_str().contains("/region/")).count();
        // A region whose blocks all died without a new one may still have its object.
        assert!(regions as u64 <= REGIONS, "{regions} region objects are left");
    }
}

fn lives(seeds: impl Iterator<Item = u64>) -> BTreeMap<&'static str, u64> {
    let mut outcomes = BTreeMap::new();
    for seed in seeds {
        let life = std::panic::catch_unwind(|| {
            let mut world = World::new(seed);
            world.live();
            world.outcomes
        });
        let life = life.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            panic!("seed {seed}: {}", text.unwrap_or_default())
        });
        life.into_iter().for_each(|(outcome, count)| *outcomes.entry(outcome).or_default() += count);
    }
    outcomes
}

#[test]
fn lives_of_two_machines_keep_every_committed_image() {
    let outcomes = lives(0..SEEDS);
    // A life in which nothing happens proves nothing.
    for outcome in
        ["claimed", "committed", "fenced", "resumed", "expired", "swept", "update failed", "refused"]
    {
        assert!(outcomes.get(outcome).is_some_and(|count| *count > SEEDS / 20), "{outcome}: {outcomes:?}");
    }
}

#[test]
#[ignore = "takes minutes; run after changes of the protocol"]
fn many_lives() {
    println!("{:?}", lives(SEEDS..MANY_SEEDS));
}
