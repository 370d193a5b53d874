//! The report of a source on a mirror that no longer connects.

use super::*;

#[test]
fn mirror_that_was_not_heard_of_for_a_day_is_a_problem_at_its_source() {
    let heard_ms = 1_700_000_000_000;
    let mirror = Follower {
        peer: None,
        volume: "vol0".to_owned(),
        name: "ab-1".to_owned(),
        base: Some("vol0@mirror.ab-1.1".to_owned()),
        lag_ms: Some(UNHEARD_MS),
        lag_bytes: Some(4096),
        rpo_ms: None,
        over_rpo: false,
        heard_ms: Some(heard_ms),
        updated_ms: Some(heard_ms),
        transferring: false,
        continuous: false,
        departed: None,
    };
    assert!(mirror.unheard(heard_ms + UNHEARD_MS - 1).is_none(), "its server may be off for the night");
    assert!(mirror.unheard(heard_ms - 1).is_none(), "the clock was put back");
    assert!(mirror.unheard(heard_ms - 365 * UNHEARD_MS).is_some(), "it was years ahead when it came");
    let problem = mirror.unheard(heard_ms + 2 * UNHEARD_MS).unwrap();
    assert!(problem.message.contains("48 h") && problem.message.contains("4096 bytes"), "{problem:?}");
    assert!(problem.next.contains("cairn mirror forget vol0 ab-1"), "{problem:?}");
    let named = Follower { peer: Some("backup1".to_owned()), ..mirror.clone() };
    assert!(named.unheard(heard_ms + 2 * UNHEARD_MS).unwrap().message.contains("mirror on backup1 was"));
    let departure = Departed {
        address: String::new(),
        volume: "vol0".to_owned(),
        generation: 1,
        at_ms: heard_ms,
        diverged_bytes: None,
    };
    let parted = Follower { departed: Some(departure), ..mirror };
    assert!(parted.unheard(heard_ms + 2 * UNHEARD_MS).is_none(), "that is told by itself");
}
