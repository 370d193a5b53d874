//! What a mirror is called whose source has not said how far behind it is.

use super::*;
use crate::identity::Fingerprint;

#[test]
fn transfer_into_an_image_that_may_be_old_is_not_called_well_before_its_source_has_said_how_old() {
    let document = Document::of("127.0.0.1:1", Fingerprint::default(), "vol0", 1);
    let live = Live { running: true, ..Live::default() };
    let facts = |lag: Option<Lag>| Facts {
        name: "vol0",
        document: &document,
        live: &live,
        failed_over: false,
        followed: false,
        handed_over: false,
        undecided: false,
        given_up: false,
        is_crossed: false,
        has_image: true,
        lag,
        quiet: Duration::ZERO,
        patience: Duration::from_secs(120),
    };
    // As after a rewind, or once it follows another server.
    let unknown = facts(None).judge();
    assert_eq!((unknown.state, unknown.check), (MirrorState::Transferring, 1), "{}", unknown.reason);
    assert!(unknown.remedy.is_some(), "what is no good is told with what to do");
    let known =
        Lag { age: Duration::ZERO, bytes: 0, as_of: cairn_base::Timestamp(1), silent: Duration::ZERO };
    assert_eq!(facts(Some(known)).judge().check, 0);
}

#[test]
fn mirror_that_contradicts_its_source_is_told_as_that_until_a_comparison_finds_nothing() {
    let mut document = Document::of("127.0.0.1:1", Fingerprint::default(), "vol0", 1);
    let live = Live::default();
    let check = |document: &Document, failed_over: bool| {
        let facts = Facts {
            name: "vol0",
            document,
            live: &live,
            failed_over,
            followed: false,
            handed_over: false,
            undecided: false,
            given_up: false,
            is_crossed: false,
            has_image: true,
            lag: Some(Lag {
                age: Duration::ZERO,
                bytes: 0,
                as_of: cairn_base::Timestamp(1),
                silent: Duration::ZERO,
            }),
            quiet: Duration::ZERO,
            patience: Duration::from_secs(120),
        };
        facts.judge().check
    };
    document.verified = Some(api::MirrorVerify { contradictions: 1, ..Default::default() });
    assert_eq!((check(&document, false), check(&document, true)), (2, 0));
    document.verified = Some(api::MirrorVerify::default());
    assert_eq!(check(&document, false), 0);
}
