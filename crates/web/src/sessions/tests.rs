//! Tests of sessions.

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn session_needs_its_cookie_and_its_key() {
    let sessions = Sessions::new(HOUR, 12 * HOUR);
    let now = Duration::from_secs(86_400);
    let (one, other) = (sessions.open("a", now), sessions.open("a", now));
    assert!(sessions.admits(&one.cookie, &one.key, now).is_some());
    assert!(sessions.admits(&one.cookie, &other.key, now).is_none(), "a key of another session");
    for (cookie, key) in [("", ""), (&one.cookie[..], ""), ("", &one.key), (&one.key, &one.cookie)] {
        assert!(sessions.admits(cookie, key, now).is_none(), "{cookie:?} {key:?}");
    }
    sessions.close(&one.cookie);
    assert!(sessions.admits(&one.cookie, &one.key, now).is_none());
    assert!(sessions.admits(&other.cookie, &other.key, now).is_some());
}

#[test]
fn session_ends_when_it_is_idle_and_when_it_is_old() {
    let sessions = Sessions::new(HOUR, 3 * HOUR);
    let begin = Duration::from_secs(86_400);
    let (used, idle) = (sessions.open("a", begin), sessions.open("a", begin));
    for tenths in 1..30 {
        assert!(sessions.admits(&used.cookie, &used.key, begin + HOUR * tenths / 10).is_some(), "{tenths}");
    }
    assert!(sessions.admits(&idle.cookie, &idle.key, begin + HOUR).is_none());
    assert!(sessions.admits(&used.cookie, &used.key, begin + 3 * HOUR).is_none());
}

#[test]
fn one_session_too_many_ends_the_one_that_was_idle_for_longest() {
    let sessions = Sessions::new(HOUR, HOUR);
    let begin = Duration::from_secs(86_400);
    let at = |second| begin + Duration::from_secs(second);
    let first = sessions.open("a", at(0));
    let second = sessions.open("a", at(1));
    for _ in 2..SESSIONS_MAX {
        sessions.open("a", at(2));
    }
    assert!(sessions.admits(&first.cookie, &first.key, at(3)).is_some());
    sessions.open("a", at(4));
    assert!(sessions.admits(&second.cookie, &second.key, at(5)).is_none());
    assert!(sessions.admits(&first.cookie, &first.key, at(5)).is_some());
}
