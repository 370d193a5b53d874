//! The records of mirrors.

use super::*;

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
