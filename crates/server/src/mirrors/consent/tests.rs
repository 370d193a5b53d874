//! A consent over restarts and crashes.

use cairn_base::{ManualClock, Timestamp};

use super::*;

const HOUR: Duration = Duration::from_secs(3600);
const HOUR_MS: u64 = 3_600_000;

fn clock() -> ManualClock {
    ManualClock::new(Timestamp(1_700_000_000_000_000_000))
}

fn taker(number: u64) -> Taker {
    Taker::new("ab".repeat(32).parse().unwrap(), Relationship(number))
}

/// The consents of a server that has just started.
fn started(folder: &Path, follows: bool) -> Consents {
    let consents = Consents::default();
    consents.recall("vol0", folder, follows);
    consents
}

#[test]
fn consent_that_was_given_before_a_restart_holds_until_its_time_is_over() {
    let dir = tempfile::tempdir().unwrap();
    let clock = clock();
    assert!(!started(dir.path(), false).allows("vol0", taker(1), &clock));
    started(dir.path(), false).give("vol0", dir.path(), (taker(1), HOUR_MS), &clock).unwrap();
    clock.advance(HOUR / 2);
    let consents = started(dir.path(), false);
    assert!(!consents.allows("other", taker(1), &clock), "of this volume alone");
    assert!(consents.allows("vol0", taker(1), &clock));
    clock.advance(HOUR / 2);
    assert!(!started(dir.path(), false).allows("vol0", taker(1), &clock), "it is over");
    let consents = started(dir.path(), false);
    consents.give("vol0", dir.path(), (taker(1), HOUR_MS), &clock).unwrap();
    consents.end("vol0", dir.path()).unwrap();
    assert!(!consents.allows("vol0", taker(1), &clock), "it was taken back");
    assert!(!started(dir.path(), false).allows("vol0", taker(1), &clock));
}

#[test]
fn consent_is_used_once_also_over_a_crash_behind_its_use() {
    let dir = tempfile::tempdir().unwrap();
    let clock = clock();
    let consents = Consents::default();
    consents.give("vol0", dir.path(), (taker(1), HOUR_MS), &clock).unwrap();
    assert!(consents.allows("vol0", taker(1), &clock));
    assert!(!consents.allows("vol0", taker(2), &clock), "it is for another mirror");
    // The server dies before the volume has given way: the same mirror may come again, and no
    // other.
    let consents = started(dir.path(), false);
    assert!(!consents.allows("vol0", taker(2), &clock));
    assert!(consents.allows("vol0", taker(1), &clock));
    // It crashes after the volume has become the destination, and before any other write. Later the
    // volume is a source again.
    drop(started(dir.path(), true));
    let consents = started(dir.path(), false);
    assert!(!consents.allows("vol0", taker(1), &clock), "it was used");
}

#[test]
fn consent_ends_with_its_time_whatever_the_wall_clock_is_set_to() {
    let dir = tempfile::tempdir().unwrap();
    let clock = clock();
    let consents = Consents::default();
    let until_ms = consents.give("vol0", dir.path(), (taker(1), HOUR_MS), &clock).unwrap();
    assert_eq!(until_ms, now_ms(&clock) + HOUR_MS);
    clock.advance(HOUR);
    clock.set(Timestamp(clock.now().0 - 10 * HOUR.as_nanos() as u64));
    assert!(!consents.allows("vol0", taker(1), &clock));
}

#[test]
fn consent_that_was_used_stands_for_the_same_mirror_again_when_it_is_renewed() {
    let dir = tempfile::tempdir().unwrap();
    let clock = clock();
    let consents = started(dir.path(), true);
    assert!(!consents.allows("vol0", taker(1), &clock));
    consents.renew("vol0", dir.path(), taker(1), &clock).unwrap();
    assert!(consents.allows("vol0", taker(1), &clock) && !consents.allows("vol0", taker(2), &clock));
    // A crash before the volume takes writes again, and one after it.
    assert!(!started(dir.path(), true).allows("vol0", taker(1), &clock));
    consents.renew("vol0", dir.path(), taker(1), &clock).unwrap();
    let consents = started(dir.path(), false);
    assert!(!consents.allows("vol0", taker(2), &clock), "for nobody else");
    assert!(consents.allows("vol0", taker(1), &clock));
}
