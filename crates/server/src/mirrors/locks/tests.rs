//! Locks of a mirror's snapshots.

use super::*;

#[test]
fn lock_key_that_could_be_guessed_is_refused_and_only_its_digest_is_kept() {
    assert!(digest("").unwrap().is_none());
    assert!(digest("too short").is_err());
    let kept = digest("a secret of enough bytes").unwrap().unwrap();
    assert!(!kept.contains("secret"));
    assert_ne!(digest("a secret of enough byteS").unwrap().unwrap(), kept);
}
