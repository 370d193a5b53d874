//! Two machines at once that both want the volume, interleaved at each call of the store. From a
//! seed; a failure names it.
//!
//! No owner commits after a later claim was answered, and every committed image is there in the
//! end.

use std::sync::{Condvar, Mutex as StdMutex};

use super::*;
use crate::dumps::KeepDumps;

const SEEDS: u64 = 400;
const ROUNDS: usize = 5;

/// Lets one thread run at a time, and chooses at random which one at each call.
struct Baton {
    turns: StdMutex<Turns>,
    passed: Condvar,
}

struct Turns {
    turn: usize,
    alive: Vec<usize>,
    rng: Rng,
}

impl Baton {
    fn new(threads: usize, seed: u64) -> Arc<Self> {
        let turns = Turns { turn: 0, alive: (0..threads).collect(), rng: Rng::new(seed) };
        Arc::new(Self { turns: StdMutex::new(turns), passed: Condvar::new() })
    }

    fn wait(&self, own: usize) {
        let mut turns = self.turns.lock().expect("no panic");
        while turns.turn != own {
            turns = self.passed.wait(turns).expect("no panic");
        }
    }

    /// Perhaps another thread runs first.
    fn pass(&self, own: usize) {
        {
            let turns = &mut *self.turns.lock().expect("no panic");
            // Mostly the turn continues: a whole claim or update happens within one call of the
            // other.
            if turns.rng.one_in(4) {
                turns.turn = turns.alive[turns.rng.below(turns.alive.len() as u64) as usize];
                self.passed.notify_all();
            }
        }
        self.wait(own);
    }

    fn end(&self, own: usize) {
        let mut turns = self.turns.lock().expect("no panic");
        turns.alive.retain(|alive| *alive != own);
        if let Some(next) = turns.alive.first().copied() {
            turns.turn = next;
        }
        self.passed.notify_all();
    }
}

/// The events, in order; the models of all images.
#[derive(Default)]
struct Events {
    claimed: u32,
    committed: Vec<u64>,
    expired: BTreeSet<u64>,
    models: Vec<Model>,
    wrong: Option<String>,
}

fn machine(images: &BucketImages, events: &Mutex<Events>, mut rng: Rng) -> Result<(), ImagesError> {
    let mut owner = match images.claim("a machine", NOW, &never()) {
        Ok(owner) => owner,
        Err(ImagesError::Taken { .. } | ImagesError::Fenced { .. }) => return Ok(()),
        Err(error) => return Err(error),
    };
    {
        let mut events = events.lock();
        events.claimed = events.claimed.max(owner.epoch());
    }
    for _ in 0..2 + rng.below(3) {
        let newest = owner.newest().map_or(0, |newest| newest.number);
        let (number, base, target) = {
            let mut events = events.lock();
            let base = events.models[newest as usize].clone();
            let mut target = base.clone();
            let number = events.models.len() as u64;
            target.insert((rng.below(4) as u32, rng.below(40) as usize), number | 1);
            target.insert((rng.below(4) as u32, rng.below(40) as usize), number | 1);
            events.models.push(target.clone());
            (number, base, target)
        };
        match advance(&mut owner, number, &base, &target) {
            Ok(_) => {
                let mut events = events.lock();
                if events.claimed > owner.epoch() {
                    events.wrong =
                        Some(format!("epoch {} committed after {}", owner.epoch(), events.claimed));
                }
                events.committed.push(number);
            }
            Err(ImagesError::Fenced { .. }) => return Ok(()),
            Err(error) => return Err(error),
        }
        if rng.one_in(2) {
            let last = 1 + rng.below(2) as u32;
            let older: Vec<u64> =
                owner.images().iter().rev().skip(last as usize).map(|label| label.number).collect();
            events.lock().expired.extend(older);
            let cleaned = owner
                .expire(&KeepDumps { last, ..KeepDumps::default() }, NOW, &never())
                .and_then(|_| owner.sweep(Duration::ZERO, NOW, &never()))
                .and_then(|_| owner.sweep_orphans(Orphans::All, Duration::ZERO, NOW, &never()));
            match cleaned {
                Ok(_) => {}
                Err(ImagesError::Fenced { .. }) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

fn duel(seed: u64) {
    let memory = Arc::new(Memory::new(clock(), clock()));
    let baton = Baton::new(2, seed);
    let events = Arc::new(Mutex::new(Events { models: vec![Model::new()], ..Events::default() }));
    let threads: Vec<_> = (0..2)
        .map(|own| {
            let (memory, baton, events) = (memory.clone(), baton.clone(), events.clone());
            std::thread::spawn(move || {
                let gate = Gate::new(&memory, None);
                let passing = baton.clone();
                *gate.each.lock() = Some(Box::new(move || passing.pass(own)));
                baton.wait(own);
                let mut rng = Rng::new(seed * 2 + own as u64);
                let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    for _ in 0..ROUNDS {
                        let images = images_of(gate.clone(), &clock(), 1, rng.next());
                        machine(&images, &events, rng.fork()).map_err(|error| error.to_string())?;
                    }
                    Ok(())
                }));
                baton.end(own);
                run.unwrap_or_else(|_| Err("a panic".to_owned()))
            })
        })
        .collect();
    for thread in threads {
        let ended = thread.join().expect("no panic");
        assert_eq!(ended, Ok(()), "seed {seed}");
    }
    let events = events.lock();
    assert_eq!(events.wrong, None, "seed {seed}");
    let images = images_of(memory.clone(), &clock(), 1, 3);
    let labels = images.images(&never()).expect("a list");
    for label in &labels {
        let reader = images.image(Some(label.id), &never()).expect("opened");
        assert_reads(&reader, &events.models[label.number as usize]);
    }
    let mut shown = labels.iter().map(|label| label.number);
    for number in events.committed.iter().filter(|number| !events.expired.contains(number)) {
        assert!(
            shown.any(|shown| shown == *number),
            "seed {seed}: image {number} was committed, of {labels:?}"
        );
    }
    let newest = labels.last().map(|label| label.number);
    assert!(events.committed.last().is_none_or(|last| newest >= Some(*last)), "seed {seed}: {newest:?}");
}

#[test]
fn two_machines_interleaved_at_each_call_never_both_commit() {
    (0..SEEDS).for_each(duel);
}
