//! Moments a given time ago, with clocks that are set.

use cairn_base::Rng;

use super::*;

const S: u64 = 1_000_000_000;
/// The wall clock when the history is opened.
const WALL: u64 = 1_795_269_787 * S;

/// Both clocks, stamps as a history assigns them, and its notes.
struct Life {
    passed: u64,
    wall: u64,
    last: u64,
    elapsed: Elapsed,
    /// When each stamp was given.
    given: Vec<(u64, u64)>,
}

impl Life {
    fn new() -> Self {
        Self { passed: 5 * S, wall: WALL, last: WALL - S, elapsed: Elapsed::default(), given: Vec::new() }
    }

    fn pass(&mut self, ns: u64) {
        self.passed += ns;
        self.wall += ns;
    }

    fn look(&mut self) {
        self.elapsed.note(self.wall, Duration::from_nanos(self.passed), self.last);
    }

    fn write(&mut self) {
        self.look();
        self.last = self.wall.max(self.last + 1);
        self.look();
        self.given.push((self.passed, self.last));
    }

    fn find(&self, ago: u64) -> Option<StampAt> {
        self.elapsed.find(Duration::from_nanos(ago), Duration::from_nanos(self.passed), 0)
    }

    /// Checks how many of the writes are visible, and how many were `apart` earlier and later.
    fn check(&self, ago: u64, apart: u64) {
        let Some(found) = self.find(ago) else { return };
        let shown = self.given.iter().filter(|(_, stamp)| *stamp <= found.stamp).count();
        let at = self.passed - ago;
        let least = self.given.iter().filter(|(passed, _)| *passed + apart <= at).count();
        let most = self.given.iter().filter(|(passed, _)| *passed <= at + apart).count();
        assert!(
            (least..=most).contains(&shown),
            "{ago} ns ago: {shown} writes, and {least} to {most} were there"
        );
    }
}

#[test]
fn relative_instants_are_as_long_ago_as_they_say_whatever_the_clock_is_set_to() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let mut life = Life::new();
        life.look();
        let opened = life.passed;
        for _ in 0..300 {
            match rng.below(20) {
                0 => life.wall = life.wall.saturating_add(rng.below(3) * 1000 * S + rng.below(S)),
                1 => life.wall = life.wall.saturating_sub(rng.below(3) * 1000 * S + rng.below(S)),
                2 => life.pass(rng.below(100 * S)),
                3 => life.look(),
                _ => life.pass(rng.below(50_000_000)),
            }
            life.write();
            let ago = rng.below(life.passed - opened + 1);
            assert!(life.find(ago).is_some(), "seed {seed}: all of it was seen");
            life.check(ago, 120_000_000);
        }
    }
}

#[test]
fn what_was_before_an_opening_is_known_while_the_clock_is_not_set_and_else_refused() {
    let mut life = Life::new();
    life.look();
    life.pass(100 * S);
    life.write();
    assert_eq!(life.find(600 * S), Some(StampAt { stamp: life.wall - 600 * S, stands_from: None }));
    life.wall += 3600 * S;
    life.write();
    assert_eq!(life.find(600 * S), None, "it may have been set right, or wrong");
    assert!(life.find(50 * S).is_some(), "this was seen");
    // An opening with a clock that is behind it.
    let mut life = Life::new();
    life.last = WALL + 500 * S;
    life.write();
    life.pass(10 * S);
    assert_eq!(life.find(600 * S), None);
    assert_eq!(life.find(5 * S).map(|found| found.stamp), Some(life.last));
}

#[test]
fn history_that_is_younger_has_not_begun_whatever_the_clock_was_set_to() {
    let mut life = Life::new();
    life.look();
    life.pass(100 * S);
    life.wall -= 7200 * S;
    life.write();
    let found = life.elapsed.find(Duration::from_secs(600), Duration::from_nanos(life.passed), WALL);
    assert!(found.is_some_and(|found| found.stamp < WALL));
}

#[test]
fn clock_that_is_behind_for_long_costs_no_memory_and_little_exactness() {
    let mut life = Life::new();
    life.write();
    life.wall -= 40_000_000 * S;
    for round in 0..60_000u64 {
        life.pass(if round % 1000 == 0 { 3600 * S } else { 12_000_000 });
        life.write();
    }
    assert!(life.elapsed.notes.len() <= NOTES_MAX);
    for ago in [S, 60 * S, 3600 * S, 10 * 3600 * S] {
        assert!(life.find(ago).is_some());
        life.check(ago, ago / 100 + 50_000_000);
    }
}
