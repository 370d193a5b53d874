//! A probe finds the faults of a store, and reports the uses that remain.

use cairn_bucket::{
    Abilities, Ability, Allowed, Faults, Habits, Locks, ProbeWork, Trouble, Use, Verdict, list_all, probe,
};

use super::*;

fn probed(store: Arc<dyn Store>, other: Arc<dyn Store>, clock: &dyn Clock, seed: u64) -> Abilities {
    let work =
        ProbeWork { other, workers: &workers(), clock, rng: &mut Rng::new(seed), cancel: &Arc::new(never()) };
    probe(&store, work).expect("a probe")
}

fn with(habits: Habits, faults: Faults) -> (Abilities, Arc<Memory>) {
    let clock = clock();
    let memory = Memory::with_faults(clock.clone(), clock.clone(), faults, habits, Rng::new(3));
    let memory = Arc::new(memory);
    (probed(memory.clone(), memory.clone(), &*clock, 4), memory)
}

fn lacks(abilities: &Abilities) -> Vec<Ability> {
    let lacking = abilities.found.iter().filter(|found| found.verdict != Verdict::Yes);
    lacking.map(|found| found.ability).collect()
}

#[test]
fn faultless_store_may_do_everything_and_is_left_clean() {
    let (abilities, memory) = with(Habits::default(), Faults::default());
    assert_eq!(lacks(&abilities), [], "{abilities:?}");
    assert_eq!(abilities.found.len(), 15);
    for what in [Use::Dump, Use::Lock, Use::Mirror, Use::Volume] {
        assert_eq!(abilities.allows(what), Allowed::Yes, "{what:?}");
    }
    assert_eq!(memory.names().len(), 1, "only what is locked stays");
    assert!(abilities.left[0].contains("locked until 2026-11-"), "{:?}", abilities.left);
    assert!(memory.uploads(&prefix(""), &never()).expect("uploads").is_empty());
    let text = serde_json::to_string(&abilities).expect("JSON");
    assert_eq!(serde_json::from_str::<Abilities>(&text).expect("JSON"), abilities);
}

#[test]
fn later_probe_removes_what_an_earlier_one_left() {
    let (memory, clock) = memory();
    let store: Arc<dyn Store> = memory.clone();
    probed(store.clone(), store.clone(), &*clock, 1);
    let first = memory.names();
    clock.advance(std::time::Duration::from_secs(7200));
    probed(store.clone(), store, &*clock, 2);
    assert!(memory.names().iter().all(|name| !first.contains(name)));
}

#[test]
fn directory_may_do_everything() {
    let folder = tempfile::tempdir().expect("a folder");
    let clock = clock();
    let one: Arc<dyn Store> = Arc::new(directory(folder.path(), clock.clone(), 1));
    let other: Arc<dyn Store> = Arc::new(directory(folder.path(), clock.clone(), 2));
    let abilities = probed(one.clone(), other, &*clock, 4);
    assert_eq!(lacks(&abilities), [], "{abilities:?}");
    assert_eq!(list_all(&one, &prefix(""), &never()).expect("a listing").len(), 1);
}

#[test]
fn store_that_ignores_create_only_puts_never_owns_a_volume() {
    let habits =
        Habits { ignores_create_only: true, ignores_create_only_of_pieces: true, ..Habits::default() };
    let (abilities, _) = with(habits, Faults::default());
    assert_eq!(lacks(&abilities), [Ability::CreateOnly, Ability::CreateOnlyRace, Ability::CreateOnlyPieces]);
    for what in [Use::Volume, Use::Mirror] {
        let Allowed::No(why) = abilities.allows(what) else { panic!("{what:?} is unsafe") };
        assert!(why[0].starts_with("the store ignores that a put must not overwrite: unsafe for"), "{why:?}");
    }
    let Allowed::WithWarnings(warnings) = abilities.allows(Use::Dump) else { panic!("a warning") };
    assert!(warnings[0].contains("random"), "{warnings:?}");
}

#[test]
fn each_wrong_habit_is_found() {
    let default = Habits::default;
    let cases: [(Habits, &[Ability], &[Use]); 6] = [
        (Habits { ignores_create_only_of_pieces: true, ..default() }, &[Ability::CreateOnlyPieces], &[]),
        (Habits { drops_nonces: true, ..default() }, &[Ability::KeepsNonce], &[Use::Mirror, Use::Volume]),
        (Habits { fails_past_end: true, ..default() }, &[Ability::RangePastEnd], &[Use::Mirror, Use::Volume]),
        (Habits { hides_uploads: true, ..default() }, &[Ability::ListsPieces, Ability::ListsUploads], &[]),
        (Habits { locks: Locks::None, ..default() }, &[Ability::Locks, Ability::LocksHold], &[Use::Lock]),
        (Habits { locks: Locks::Shortens, ..default() }, &[Ability::LocksHold], &[Use::Lock]),
    ];
    for (habits, expected, refused) in cases {
        let (abilities, _) = with(habits.clone(), Faults::default());
        assert_eq!(lacks(&abilities), expected, "{habits:?}");
        for what in [Use::Dump, Use::Lock, Use::Mirror, Use::Volume] {
            let is_refused = matches!(abilities.allows(what), Allowed::No(_));
            assert_eq!(is_refused, refused.contains(&what), "{habits:?} {what:?}");
        }
    }
    let (abilities, _) = with(Habits { locks: Locks::Ignored, ..default() }, Faults::default());
    assert_eq!(lacks(&abilities), [Ability::LocksHold]);
    let (abilities, _) = with(Habits { refuses_delete: true, ..default() }, Faults::default());
    assert!(lacks(&abilities).contains(&Ability::Deletes));
    assert!(matches!(abilities.allows(Use::Dump), Allowed::WithWarnings(_)));
    assert!(matches!(abilities.allows(Use::Volume), Allowed::No(_)));
}

#[test]
fn two_winners_and_late_listings_are_found() {
    let (abilities, _) = with(Habits { two_winners: 4, ..Habits::default() }, Faults::default());
    assert_eq!(abilities.verdict(Ability::CreateOnlyRace), Verdict::No);
    assert!(matches!(abilities.allows(Use::Volume), Allowed::No(_)));
    let (abilities, _) = with(Habits::default(), Faults { lists_late: 2, ..Faults::default() });
    assert_eq!(abilities.verdict(Ability::ListsAfterWrite), Verdict::No);
    assert!(matches!(abilities.allows(Use::Dump), Allowed::WithWarnings(_)));
}

#[test]
fn what_was_not_probed_is_not_allowed() {
    for what in [Use::Dump, Use::Lock, Use::Mirror, Use::Volume] {
        assert!(matches!(Abilities::default().allows(what), Allowed::No(_)));
    }
}

#[test]
fn cancelled_probe_ends() {
    let (memory, clock) = memory();
    let store: Arc<dyn Store> = memory.clone();
    let work = ProbeWork {
        other: store.clone(),
        workers: &workers(),
        clock: &*clock,
        rng: &mut Rng::new(1),
        cancel: &Arc::new(AtomicBool::new(true)),
    };
    let error = probe(&store, work).expect_err("cancelled");
    assert!(matches!(error.trouble, Trouble::Cancelled), "{error}");
}
