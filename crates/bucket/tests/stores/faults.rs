//! The memory driver fails in all its ways, from a seed, under `Retrying`; a model holds the
//! expected objects.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use cairn_bucket::{Faults, Habits, Put, StoreError, Trouble, list_all};

use super::*;

const SEEDS: u64 = 400;
const STEPS: u64 = 60;

fn faults(rng: &mut Rng) -> Faults {
    let mut often = |most: u64| if rng.one_in(4) { 0 } else { 2 + rng.below(most) };
    Faults {
        fails: often(8),
        loses_answer: often(8),
        done_later: often(8),
        slow: often(8),
        slow_by: Duration::from_secs(2),
        lists_late: 0,
    }
}

/// The state of a name in the model.
#[derive(Debug, Clone, PartialEq)]
enum Known {
    /// It exists.
    There(Bytes),
    /// It was never created, or it is deleted with no call in progress.
    Gone,
    /// An error surfaced: it may be there with one of these contents, now or later, or not.
    Maybe(Vec<Bytes>),
}

#[derive(Debug, Default, PartialEq)]
struct Tally {
    created: u64,
    existed: u64,
    failed: u64,
}

fn run(seed: u64) -> (Tally, u64, Vec<Name>) {
    let mut rng = Rng::new(seed);
    let clock = clock();
    let faults = faults(&mut rng);
    let memory = Memory::with_faults(clock.clone(), clock.clone(), faults, Habits::default(), rng.fork());
    let memory = Arc::new(memory);
    let patience = Patience { tries: 6, ..Patience::default() };
    let store = Retrying::new(memory.clone(), clock.clone(), clock.clone(), rng.fork(), patience);
    let cancel = never();
    let mut model: BTreeMap<Name, Known> = BTreeMap::new();
    let mut tally = Tally::default();
    // Names are not used again once they were deleted.
    let mut deleted: Vec<Name> = Vec::new();
    for step in 0..STEPS {
        let key = name(&format!("n{}", rng.below(12)));
        if deleted.contains(&key) {
            continue;
        }
        let known = model.get(&key).cloned().unwrap_or(Known::Gone);
        let content = noise(seed * STEPS + step, 1 + rng.below(300) as usize);
        let nonce = Nonce::random(&mut rng);
        let create = |put: Result<Put, StoreError>, tally: &mut Tally| match (put, &known) {
            (Ok(Put::Created), Known::Gone | Known::Maybe(_)) => {
                tally.created += 1;
                Known::There(content.clone())
            }
            (Ok(Put::Created), Known::There(_)) => panic!("seed {seed} step {step}: {key} was made twice"),
            (Ok(Put::Exists), Known::There(_) | Known::Maybe(_)) => {
                tally.existed += 1;
                known.clone()
            }
            (Ok(Put::Exists), Known::Gone) => panic!("seed {seed} step {step}: {key} was never made"),
            (Err(error), _) => {
                tally.failed += 1;
                assert!(error.is_transient() || matches!(error.trouble, Trouble::NoUpload), "{error}");
                match &known {
                    Known::There(_) => known.clone(),
                    Known::Gone => Known::Maybe(vec![content.clone()]),
                    Known::Maybe(contents) => {
                        Known::Maybe(contents.iter().cloned().chain([content.clone()]).collect())
                    }
                }
            }
        };
        match rng.below(10) {
            0..5 => {
                let put = store.put_new(&key, content.clone(), nonce, &cancel);
                let now = create(put, &mut tally);
                model.insert(key, now);
            }
            5..8 => {
                let Ok(upload) = store.begin(&key, nonce, &cancel) else { continue };
                let half = content.len() / 2;
                let halves = [content.slice(..half), content.slice(half..)];
                let pieces: Result<Vec<_>, _> = (1..)
                    .zip(halves)
                    .map(|(number, bytes)| store.put_piece(&upload, number, bytes, &cancel))
                    .collect();
                let Ok(pieces) = pieces else { continue };
                let put = store.finish(&upload, nonce, &pieces, &cancel);
                let now = create(put, &mut tally);
                model.insert(key, now);
            }
            8 => {
                let read = store.get(&key, 0, 1000, &cancel);
                match (&known, read) {
                    (Known::There(expected), Ok(read)) => assert_eq!(read, *expected, "seed {seed}"),
                    (Known::There(_), Err(error)) => assert!(error.is_transient(), "seed {seed}: {error}"),
                    (Known::Gone, Ok(_)) => panic!("seed {seed} step {step}: {key} was never made"),
                    (Known::Maybe(contents), Ok(read)) => assert!(contents.contains(&read)),
                    (_, Err(error)) => assert!(error.is_missing() || error.is_transient()),
                }
            }
            _ => {
                if let Known::Maybe(_) = known {
                    continue;
                }
                let now = match store.delete(&key, &cancel) {
                    Ok(()) => Known::Gone,
                    Err(_) => match known {
                        Known::There(content) => Known::Maybe(vec![content]),
                        known => known,
                    },
                };
                deleted.push(key.clone());
                model.insert(key, now);
            }
        }
    }
    memory.set_faults(Faults::default());
    memory.settle();
    let listed = list_all(&store, &prefix(""), &cancel).expect("a listing");
    let listed: Vec<Name> = listed.into_iter().map(|listed| listed.name).collect();
    for (key, known) in &model {
        let raw = memory.raw(key);
        assert_eq!(raw.is_some(), listed.contains(key), "seed {seed}: {key}");
        match known {
            Known::There(content) => assert_eq!(raw.as_ref(), Some(content), "seed {seed}: {key} is lost"),
            // A call that timed out may take effect after the delete: names are therefore never
            // reused.
            Known::Gone => {
                assert!(raw.is_none() || deleted.contains(key), "seed {seed}: {key} came from nothing")
            }
            Known::Maybe(contents) => {
                assert!(raw.is_none_or(|raw| contents.contains(&raw)), "seed {seed}: {key} is torn");
            }
        }
    }
    (tally, store.retries(), listed)
}

#[test]
fn what_was_acknowledged_is_there_whatever_fails() {
    let mut total = Tally::default();
    let mut retries = 0;
    for seed in 0..SEEDS {
        let (tally, retried, _) = run(seed);
        total.created += tally.created;
        total.existed += tally.existed;
        total.failed += tally.failed;
        retries += retried;
    }
    assert!(
        total.created > SEEDS && total.existed > SEEDS && total.failed > 0 && retries > SEEDS,
        "{total:?}"
    );
}

#[test]
fn same_seed_gives_the_same_run() {
    for seed in 0..20 {
        assert_eq!(run(seed), run(seed));
    }
}

/// Two owners want the same names while everything fails.
#[test]
fn of_two_creators_one_wins_whatever_fails() {
    let mut won = [0, 0];
    for seed in 0..SEEDS {
        let mut rng = Rng::new(seed);
        let clock = clock();
        let faults = faults(&mut rng);
        let memory = Memory::with_faults(clock.clone(), clock.clone(), faults, Habits::default(), rng.fork());
        let memory = Arc::new(memory);
        let patience = Patience { tries: 4, ..Patience::default() };
        let clients: Vec<Retrying<Arc<Memory>>> = (0..2)
            .map(|_| Retrying::new(memory.clone(), clock.clone(), clock.clone(), rng.fork(), patience))
            .collect();
        let mut outcomes: BTreeMap<(Name, usize), Option<Put>> = BTreeMap::new();
        for epoch in 0..8 {
            let key = name(&format!("epoch/{epoch}"));
            for turn in 0..2 {
                let client = (turn + usize::from(rng.one_in(2))) % 2;
                if outcomes.contains_key(&(key.clone(), client)) {
                    continue;
                }
                let content = noise(client as u64, 10);
                let own = Nonce::random(&mut rng);
                let put = clients[client].put_new(&key, content, own, &never()).ok();
                outcomes.insert((key.clone(), client), put);
            }
        }
        memory.set_faults(Faults::default());
        memory.settle();
        for epoch in 0..8 {
            let key = name(&format!("epoch/{epoch}"));
            let of = |client: usize| outcomes.get(&(key.clone(), client)).copied().flatten();
            let raw = memory.raw(&key);
            let both = [of(0), of(1)];
            assert_ne!(both, [Some(Put::Created); 2], "seed {seed}: two owners of {key}");
            for (client, put) in both.into_iter().enumerate() {
                if put == Some(Put::Created) {
                    won[client] += 1;
                    assert_eq!(raw, Some(noise(client as u64, 10)), "seed {seed}: the winner's is not there");
                }
            }
        }
    }
    assert!(won[0] > 100 && won[1] > 100, "{won:?}");
}

fn flaky(faults: Faults, habits: Habits) -> (Arc<Memory>, Retrying<Arc<Memory>>, Arc<ManualClock>) {
    let clock = clock();
    let memory = Memory::with_faults(clock.clone(), clock.clone(), faults, habits, Rng::new(5));
    let memory = Arc::new(memory);
    let store = Retrying::new(memory.clone(), clock.clone(), clock.clone(), Rng::new(6), Patience::default());
    (memory, store, clock)
}

#[test]
fn lost_answer_of_a_put_is_resolved_by_its_nonce() {
    let loses = Faults { loses_answer: 1, ..Faults::default() };
    let (memory, store, _) = flaky(loses, Habits::default());
    // Every answer is lost: the put is done, and the client cannot tell.
    let error = store.put_new(&name("a"), noise(1, 9), nonce(1), &never()).expect_err("no answer");
    assert!(error.is_unclear());
    memory.set_faults(Faults::default());
    let put = store.put_new(&name("a"), noise(1, 9), nonce(1), &never()).expect("an answer");
    assert_eq!(put, Put::Created, "it was this creator's");
    let put = store.put_new(&name("a"), noise(1, 9), nonce(2), &never()).expect("an answer");
    assert_eq!(put, Put::Exists, "the same bytes of another creator");
}

#[test]
fn lost_answer_of_an_upload_is_resolved_by_its_nonce() {
    let (memory, store, _) = flaky(Faults::default(), Habits::default());
    let upload = store.begin(&name("a"), nonce(1), &never()).expect("begun");
    let piece = store.put_piece(&upload, 1, noise(1, 9), &never()).expect("a piece");
    memory.set_faults(Faults { loses_answer: 1, ..Faults::default() });
    store.finish(&upload, nonce(1), std::slice::from_ref(&piece), &never()).expect_err("no answer");
    memory.set_faults(Faults::default());
    let put = store.finish(&upload, nonce(1), std::slice::from_ref(&piece), &never());
    assert_eq!(put.expect("an answer"), Put::Created);
    assert_eq!(memory.raw(&name("a")), Some(noise(1, 9)));
}

#[test]
fn put_that_may_be_done_stays_unclear_where_nonces_are_dropped() {
    let habits = Habits { drops_nonces: true, ..Habits::default() };
    for seed in 0..50 {
        let clock = clock();
        let faults = Faults { loses_answer: 2, ..Faults::default() };
        let memory = Arc::new(Memory::with_faults(
            clock.clone(),
            clock.clone(),
            faults,
            habits.clone(),
            Rng::new(seed),
        ));
        let store =
            Retrying::new(memory.clone(), clock.clone(), clock.clone(), Rng::new(6), Patience::default());
        match store.put_new(&name("a"), noise(1, 9), nonce(1), &never()) {
            Ok(put) => assert_eq!(put, Put::Created),
            Err(error) => assert!(error.is_unclear(), "{error}"),
        }
    }
}

#[test]
fn store_that_asks_for_a_pause_gets_it_and_the_error_surfaces_in_the_end() {
    let (memory, store, clock) = flaky(Faults { fails: 1, ..Faults::default() }, Habits::default());
    let begun = clock.monotonic();
    let error = store.get(&name("a"), 0, 1, &never()).expect_err("it fails for ever");
    assert!(error.is_transient());
    let passed = clock.monotonic() - begun;
    let patience = Patience::default();
    assert!(passed <= patience.time, "{passed:?}");
    assert!(memory.calls() <= u64::from(patience.tries) && memory.calls() > 3, "{}", memory.calls());
    assert_eq!(store.retries(), memory.calls() - 1);
}

#[test]
fn cancelled_wait_ends_at_once() {
    let (_, store, clock) = flaky(Faults { fails: 1, ..Faults::default() }, Habits::default());
    let cancel = AtomicBool::new(false);
    cancel.store(true, Ordering::Relaxed);
    let begun = clock.monotonic();
    let error = store.get(&name("a"), 0, 1, &cancel).expect_err("cancelled");
    assert!(error.is_cancelled(), "{error}");
    assert!(clock.monotonic() - begun < Duration::from_millis(200));
}

#[test]
fn error_that_no_wait_mends_surfaces_at_once() {
    let habits = Habits { refuses_delete: true, ..Habits::default() };
    let (memory, store, _) = flaky(Faults::default(), habits);
    let error = store.delete(&name("a"), &never()).expect_err("forbidden");
    assert!(matches!(error.trouble, Trouble::Forbidden));
    assert_eq!(memory.calls(), 1);
}
