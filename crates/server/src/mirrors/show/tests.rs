//! The state of a mirror whose source has not reported the lag.

use super::*;
use crate::peers::identity::Fingerprint;

/// The facts of an idle mirror that shows an image.
fn facts<'a>(document: &'a MirrorDocument, live: &'a Live, lag: Option<Lag>) -> Facts<'a> {
    Facts {
        name: "vol0",
        document,
        live,
        failed_over: false,
        followed: false,
        handed_over: false,
        undecided: false,
        given_up: false,
        is_crossed: false,
        has_image: true,
        just_handed_over: false,
        locks_nothing: false,
        unlocked: None,
        lag,
        quiet: Duration::ZERO,
        patience: Duration::from_secs(120),
    }
}

/// As its source was a moment ago.
fn no_lag() -> Lag {
    Lag { age: Duration::ZERO, bytes: 0, as_of: cairn_base::Timestamp(1), silent: Duration::ZERO }
}

#[test]
fn transfer_into_an_image_that_may_be_old_is_not_called_well_before_its_source_has_said_how_old() {
    let document = MirrorDocument::of("127.0.0.1:1", Fingerprint::default(), "vol0", 1);
    let live = Live { running: true, ..Live::default() };
    // As after a rewind, or once it follows another server.
    let unknown = facts(&document, &live, None).judge();
    assert_eq!((unknown.state, unknown.check), (MirrorState::Transferring, 1), "{}", unknown.reason);
    assert!(unknown.remedy.is_some(), "what is no good is told with what to do");
    assert_eq!(facts(&document, &live, Some(no_lag())).judge().check, 0);
}

#[test]
fn mirror_that_contradicts_its_source_is_told_as_that_until_a_comparison_finds_nothing() {
    let mut document = MirrorDocument::of("127.0.0.1:1", Fingerprint::default(), "vol0", 1);
    let live = Live::default();
    let check = |document: &MirrorDocument, failed_over: bool| {
        Facts { failed_over, ..facts(document, &live, Some(no_lag())) }.judge().check
    };
    document.verified = Some(api::MirrorVerify { contradictions: 1, ..Default::default() });
    assert_eq!((check(&document, false), check(&document, true)), (2, 0));
    document.verified = Some(api::MirrorVerify::default());
    assert_eq!(check(&document, false), 0);
}

/// Its remedy begins with a pause, and must not end there.
#[test]
fn paused_mirror_whose_source_contradicted_it_stays_critical_and_advises_more_than_to_resume() {
    let mut document = MirrorDocument::of("127.0.0.1:1", Fingerprint::default(), "vol0", 1);
    document.paused = true;
    let judged = |error| {
        let problem = api::ErrorBody::new(error, "it failed", "the next step");
        let live = Live { problem: Some(problem), ..Live::default() };
        let judged = facts(&document, &live, Some(no_lag())).judge();
        (judged.state, judged.check, judged.remedy.unwrap())
    };
    let (state, check, remedy) = judged(ErrorKind::Contradicted);
    assert_eq!((state, check), (MirrorState::Paused, 2));
    assert!(remedy.contains("keys") && remedy.contains("`cairn mirror resume vol0`"), "{remedy}");
    let (_, check, remedy) = judged(ErrorKind::PeerUnreachable);
    assert_eq!((check, &*remedy), (1, "`cairn mirror resume vol0`"));
}
