//! One small life, with one thing wrong at each of its calls in turn: the machine is lost before or
//! after it, the call happens much later, or another machine takes the volume over just before it.

use super::*;
use crate::dumps::KeepDumps;

const ONE: KeepDumps = KeepDumps { last: 1, hourly: 0, daily: 0, weekly: 0, monthly: 0, yearly: 0 };
const UPDATES: u64 = 7;

/// Claims, updates, expires and sweeps. Returns the committed images; ends at the first error.
fn life(images: &BucketImages, models: &[Model]) -> (Vec<u64>, Result<(), ImagesError>) {
    let mut committed = Vec::new();
    let outcome = (|| {
        let mut owner = images.claim("one", NOW, &never())?;
        for number in 1..=UPDATES {
            advance(&mut owner, number, &models[number as usize - 1], &models[number as usize])?;
            committed.push(number);
            if number == 3 || number == 6 {
                owner.expire(&ONE, NOW, &never())?;
                owner.sweep(Duration::ZERO, NOW, &never())?;
                owner.sweep_orphans(Orphans::All, Duration::ZERO, NOW, &never())?;
            }
        }
        Ok(())
    })();
    (committed, outcome)
}

/// Every listed image matches the model. Returns their numbers.
fn shown(memory: &Arc<Memory>, models: &BTreeMap<u64, Model>) -> Vec<u64> {
    let images = images_of(memory.clone(), &clock(), 1, 3);
    let labels = images.images(&never()).expect("a list");
    for label in &labels {
        assert_reads(&images.image(Some(label.id), &never()).expect("opened"), &models[&label.number]);
    }
    labels.iter().map(|label| label.number).collect()
}

/// Another machine claims the volume, makes the next image and one of its own, and cleans up.
fn take_over(memory: &Arc<Memory>, models: &[Model]) -> u64 {
    let images = images_of(memory.clone(), &clock(), 1, 4);
    let mut owner = images.claim("two", NOW, &never()).expect("claimed");
    owner.sweep(Duration::ZERO, NOW, &never()).expect("swept");
    owner.sweep_orphans(Orphans::All, Duration::ZERO, NOW, &never()).expect("swept");
    let newest = owner.newest().map_or(0, |newest| newest.number);
    let base = models[newest as usize].clone();
    let next = newest.min(UPDATES - 1) + 1;
    if next > newest {
        advance(&mut owner, next, &base, &models[next as usize]).expect("committed");
    }
    advance(&mut owner, 100, &models[next as usize], &models[UPDATES as usize + 1]).expect("committed");
    owner.expire(&KeepDumps { last: 2, ..ONE }, NOW, &never()).expect("expired");
    owner.sweep(Duration::ZERO, NOW, &never()).expect("swept");
    owner.sweep_orphans(Orphans::All, Duration::ZERO, NOW, &never()).expect("swept");
    next
}

fn scene() -> (Arc<Memory>, Vec<Model>, BTreeMap<u64, Model>) {
    let models = line(UPDATES + 1);
    let mut by_number: BTreeMap<u64, Model> = (0..).zip(models.iter().cloned()).collect();
    by_number.insert(100, models[UPDATES as usize + 1].clone());
    (Arc::new(Memory::new(clock(), clock())), models, by_number)
}

/// Calls of a life without a fault.
fn calls() -> u64 {
    let (memory, models, _) = scene();
    let gate = Gate::new(&memory, None);
    let (committed, outcome) = life(&images_of(gate.clone(), &clock(), 1, 1), &models);
    outcome.expect("no fault");
    assert_eq!(committed.len() as u64, UPDATES);
    gate.calls.load(Ordering::Relaxed)
}

#[test]
fn machine_lost_at_each_call_loses_no_committed_image() {
    for call in 1..=calls() {
        for fate in [Fate::Cut, Fate::CutAfter] {
            let (memory, models, by_number) = scene();
            let gate = Gate::new(&memory, Some((call, fate)));
            let (committed, outcome) = life(&images_of(gate, &clock(), 1, 1), &models);
            assert!(outcome.is_err(), "call {call}");
            let last = committed.last().copied();
            let there = shown(&memory, &by_number);
            assert!(
                last.is_none_or(|last| there.contains(&last)),
                "call {call}: {last:?} is not in {there:?}"
            );
            assert!(there.iter().all(|number| *number <= last.unwrap_or(0) + 1));
            let next = take_over(&memory, &models);
            assert_eq!(shown(&memory, &by_number), [next, 100], "call {call}");
        }
    }
}

#[test]
fn call_that_happens_after_a_takeover_has_no_effect() {
    for tries in [1, 3] {
        for call in 1..=calls() {
            let (memory, models, by_number) = scene();
            let gate = Gate::new(&memory, Some((call, Fate::Late)));
            // With more tries the life continues, and the same call happens twice.
            let (committed, outcome) = life(&images_of(gate.clone(), &clock(), tries, 1), &models);
            assert!(outcome.is_err() || tries > 1, "call {call}");
            let there = shown(&memory, &by_number);
            let last = committed.last();
            assert!(
                last.is_none_or(|last| there.contains(last)),
                "call {call}: {last:?} is not in {there:?}"
            );
            let next = take_over(&memory, &models);
            assert_eq!(shown(&memory, &by_number), [next, 100], "call {call}");
            gate.settle();
            assert_eq!(shown(&memory, &by_number), [next, 100], "call {call} was late");
            // And the next owner cleans it away.
            let images = images_of(memory.clone(), &clock(), 1, 5);
            let mut owner = images.claim("three", NOW, &never()).expect("claimed");
            owner.sweep_orphans(Orphans::All, Duration::ZERO, NOW, &never()).expect("swept");
            assert_eq!(shown(&memory, &by_number), [next, 100], "call {call} was late");
        }
    }
}

#[test]
fn stalled_owner_commits_nothing_after_a_takeover_at_each_call() {
    for call in 1..=calls() {
        let (memory, models, by_number) = scene();
        let gate = Gate::new(&memory, None);
        let next = Arc::new(Mutex::new(None));
        let seen = Arc::new(Mutex::new(None));
        let visit = {
            let (memory, models, next, seen) = (memory.clone(), models.clone(), next.clone(), seen.clone());
            let by_number = by_number.clone();
            Box::new(move || {
                *seen.lock() = Some(shown(&memory, &by_number));
                *next.lock() = Some(take_over(&memory, &models));
            })
        };
        *gate.visit.lock() = Some((call, visit));
        let (committed, outcome) = life(&images_of(gate, &clock(), 1, 1), &models);
        let next = next.lock().expect("a takeover");
        let at_takeover = seen.lock().clone().expect("a takeover");
        // A claim before the winning one fails; one after it may succeed.
        match outcome {
            Err(ImagesError::Fenced { .. } | ImagesError::Taken { .. }) => {
                let newest = at_takeover.last().copied().unwrap_or(0);
                assert!(committed.iter().all(|number| *number <= newest), "call {call}: {committed:?}");
                assert_eq!(shown(&memory, &by_number), [next, 100], "call {call}");
            }
            // It had not looked for epochs yet, or made no call that counts afterwards.
            Err(ImagesError::Base { .. } | ImagesError::Rule(_)) => {
                assert_eq!(shown(&memory, &by_number), [next, 100], "call {call}");
            }
            Ok(()) => {
                let last_is_sweep = call + 8 > calls();
                assert!(last_is_sweep, "call {call}: the owner before was not fenced");
            }
            Err(error) => panic!("call {call}: {error}"),
        }
    }
}

#[test]
fn what_an_owner_writes_after_a_claim_is_not_shown() {
    for call in 1..=calls() {
        let (memory, models, by_number) = scene();
        let gate = Gate::new(&memory, None);
        let next = Arc::new(Mutex::new(None));
        let visit = {
            let (memory, next) = (memory.clone(), next.clone());
            Box::new(move || {
                let images = images_of(memory, &clock(), 1, 4);
                *next.lock() = Some(images.claim("two", NOW, &never()).expect("claimed"));
            })
        };
        *gate.visit.lock() = Some((call, visit));
        // The new owner does nothing yet, and the old one continues until it finds itself fenced.
        let (committed, outcome) = life(&images_of(gate, &clock(), 1, 1), &models);
        if outcome.is_ok() {
            // It had not claimed yet, so it is the newer one; or it was at its last look.
            continue;
        }
        let mut owner = next.lock().take().expect("a claim");
        let own: Vec<u64> = owner.images().iter().map(|label| label.number).collect();
        assert_eq!(shown(&memory, &by_number), own, "call {call}");
        assert!(
            committed.last().is_none_or(|last| own.contains(last)),
            "call {call}: {committed:?}, {own:?}"
        );
        let newest = own.last().copied().unwrap_or(0) as usize;
        advance(&mut owner, 100, &models[newest], &models[UPDATES as usize + 1]).expect("committed");
        assert_eq!(shown(&memory, &by_number), [own, vec![100]].concat(), "call {call}");
    }
}

#[test]
fn image_that_is_committed_during_a_claim_is_seen_by_the_claimer() {
    let mut committed_between = 0;
    for call in 1..40 {
        let (memory, models, by_number) = scene();
        let mut old = images_of(memory.clone(), &clock(), 1, 1).claim("one", NOW, &never()).expect("claimed");
        (1..=4).for_each(|number| {
            advance(&mut old, number, &models[number as usize - 1], &models[number as usize])
                .map(drop)
                .expect("committed");
        });
        let gate = Gate::new(&memory, None);
        let outcome = Arc::new(Mutex::new(None));
        let visit = {
            let (models, outcome) = (models.clone(), outcome.clone());
            Box::new(move || *outcome.lock() = Some(advance(&mut old, 5, &models[4], &models[5])))
        };
        *gate.visit.lock() = Some((call, visit));
        let mut owner = images_of(gate.clone(), &clock(), 1, 2).claim("two", NOW, &never()).expect("claimed");
        let newest = owner.newest().map_or(0, |newest| newest.number);
        match outcome.lock().take() {
            Some(Ok(_)) => assert_eq!(newest, 5, "call {call}"),
            Some(Err(error)) => assert!(error.is_fenced(), "call {call}: {error}"),
            None => break,
        }
        committed_between += u32::from(newest == 5);
        advance(&mut owner, 100, &models[newest as usize], &models[UPDATES as usize + 1]).expect("committed");
        let expected: Vec<u64> = (1..=newest).chain([100]).collect();
        assert_eq!(shown(&memory, &by_number), expected, "call {call}");
    }
    assert!(committed_between > 1);
}

/// Repeats a call that failed once.
fn twice<T>(mut call: impl FnMut() -> Result<T, ImagesError>) -> T {
    call().or_else(|error| if error.is_fenced() { Err(error) } else { call() }).expect("the second time")
}

#[test]
fn answer_that_is_lost_is_found_out_by_a_repeat() {
    for call in 1..=calls() {
        let (memory, models, by_number) = scene();
        let images = images_of(Gate::new(&memory, Some((call, Fate::Lost))), &clock(), 1, 1);
        // An epoch whose claim was lost has no owner, and the next claim continues past it.
        let mut owner = twice(|| images.claim("one", NOW, &never()));
        for number in 1..=UPDATES {
            let (base, target) = (&models[number as usize - 1], &models[number as usize]);
            let label = label(number, NOW);
            let newest = owner.newest().map(|newest| newest.id);
            let update = twice(|| owner.begin(newest, label.id, &never()));
            twice(|| put_changed(&update, base, target));
            twice(|| owner.commit(&update, label, &content(number), NOW, &never()));
            if number == 3 || number == 6 {
                twice(|| owner.expire(&ONE, NOW, &never()));
                twice(|| owner.sweep(Duration::ZERO, NOW, &never()));
                twice(|| owner.sweep_orphans(Orphans::All, Duration::ZERO, NOW, &never()));
            }
        }
        assert_eq!(shown(&memory, &by_number), [6, 7], "call {call}");
    }
}
