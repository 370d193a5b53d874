//! Tests of the status of a mirror in monitoring.

use cairn_api as api;

use super::{judge, outcome_of};

/// A mirror in a state of this level, with a lag of a minute.
fn behind(state: &str, check: u8) -> api::Mirror {
    let described = serde_json::json!({
        "name": "vol0", "role": "destination", "direction": "", "state": state, "reason": "", "check": check,
        "source_address": "", "source_volume": "", "source_name": "", "continuous": false, "over_rpo": true,
        "image": "daily", "rpo_ms": 30_000, "lag_ms": 60_000, "lag_bytes": 4096, "hold": true, "stall_ms": 0, "paused": false,
        "connections": 1, "compress": "auto", "sent_bytes": 0, "updates": 0, "compared_updates": 0,
        "mended_here": 0, "mended_there": 0, "mended_locked": 0, "locked": 0, "lock_key": false,
    });
    serde_json::from_value(described).expect("it is one")
}

#[test]
fn mirror_is_judged_by_the_lag_that_is_given_and_not_by_its_own_whatever_it_does_now() {
    let (short, long) = (Some(1_000), Some(3_600_000));
    for state in ["behind", "transferring", "continuous", "catching-up"] {
        let mirror = behind(state, 2);
        assert_eq!(judge(&mirror, None).0, 2, "{state}");
        assert_eq!(judge(&mirror, short).0, 2, "{state}");
        assert_eq!(judge(&mirror, long).0, 0, "{state}: it is within that");
    }
    for state in ["paused", "failing"] {
        assert_eq!(judge(&behind(state, 2), long).0, 1, "{state}: as where it is within its own");
    }
    // States that are critical at any lag.
    for state in ["stalled", "diverged", "contradicted", "handed-over", "unknown"] {
        assert_eq!(judge(&behind(state, 2), long).0, 2, "{state}");
    }
    assert_eq!(judge(&behind("mirrored", 0), short).0, 2, "it is past what is given");
}

#[test]
fn mirror_that_has_no_image_and_fails_is_critical_whatever_lag_is_given() {
    let mirror = api::Mirror { image: None, ..behind("failing", 2) };
    assert_eq!(judge(&mirror, Some(3_600_000)).0, 2);
}

#[test]
fn mirror_that_is_not_to_be_trusted_is_critical_whatever_lag_is_given() {
    let verified = api::MirrorVerify { contradictions: 1, ..Default::default() };
    for state in ["behind", "transferring", "continuous", "catching-up", "paused", "failing"] {
        let mirror = api::Mirror { verified: Some(verified.clone()), ..behind(state, 2) };
        assert_eq!(judge(&mirror, Some(3_600_000)).0, 2, "{state}");
    }
}

#[test]
fn what_the_other_side_says_makes_no_second_line_for_monitoring() {
    let reason = "refused: x\nOK - all is well\u{1b}[2J".to_owned();
    let (level, line) = judge(&api::Mirror { reason, ..behind("failing", 2) }, None);
    assert!(level == 2 && !line.contains(char::is_control), "{line:?}");
}

#[test]
fn blocks_that_contradict_are_told_however_much_was_mended() {
    let mended = api::MirrorVerify { differences_total: 1, mended_here: 1, ..Default::default() };
    assert!(outcome_of(&mended).is_ok());
    let contradicts = api::MirrorVerify { contradictions: 1, ..mended };
    assert!(outcome_of(&contradicts).is_err());
}
