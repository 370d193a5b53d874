//! What is remembered of mirrors.

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
