//! What a source says of a mirror that does not come any more.

use super::*;

#[test]
fn mirror_that_was_not_heard_of_for_a_day_is_a_problem_at_its_source() {
    let heard_ms = 1_700_000_000_000;
    let mirror = api::Follower {
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
    let departure = api::Departed {
        address: String::new(),
        volume: "vol0".to_owned(),
        generation: 1,
        at_ms: heard_ms,
        diverged_bytes: None,
    };
    let parted = api::Follower { departed: Some(departure), ..mirror };
    assert!(parted.unheard(heard_ms + 2 * UNHEARD_MS).is_none(), "that is told by itself");
}

#[test]
fn failovers_of_mirrors_that_were_let_go_of_are_remembered() {
    let dir = tempfile::tempdir().unwrap();
    let gone = (VolumeId([7; 16]), "ab-1".to_owned(), Timestamp(5));
    let (followers, source) = Followers::open(dir.path()).unwrap();
    source.remember_forgotten(vec![gone.clone()]);
    followers.keep(&source);
    let (_, source) = Followers::open(dir.path()).unwrap();
    assert_eq!(source.forgotten(), [gone]);
}

#[test]
fn volume_that_holds_many_snapshots_for_one_server_is_a_problem_before_it_refuses_more() {
    let names = |count: usize| -> Vec<String> {
        let mirrors = (0..count).map(|number| format!("mirror.ab-{}.{number}", number % 3));
        mirrors.chain(["daily".to_owned(), "mirror.cd-1.1".to_owned()]).collect()
    };
    assert!(nearly_too_many_held("vol0", &names(HELD_PER_PEER / 2)).is_empty());
    let problems = nearly_too_many_held("vol0", &names(HELD_PER_PEER * 3 / 4));
    let [problem] = &problems[..] else { panic!("{problems:?}") };
    assert_eq!(problem.subject, "vol0");
    assert!(problem.message.contains("48 snapshots for the mirrors of server ab"), "{problem:?}");
}
