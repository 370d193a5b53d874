use super::*;

fn document(every_ms: u64, last_ms: Option<u64>, passed_ms: Option<u64>) -> Document {
    let last = last_ms.map(|at_ms| api::DrillResult {
        mirror: "m".to_owned(),
        at_ms,
        snapshot: String::new(),
        image_ms: 0,
        served_ms: 0,
        recovery_ms: 0,
        outcome: DrillOutcome::Failed,
        exit_code: Some(1),
        said: "no\nrows".to_owned(),
    });
    let probe = "true".to_owned();
    Document { probe, timeout_ms: 1, every_ms: Some(every_ms), since_ms: 1000, last, passed_ms }
}

#[test]
fn drill_is_due_an_interval_after_the_last_one_and_once_however_many_were_missed() {
    assert!(!document(100, None, None).is_due(1099));
    assert!(document(100, None, None).is_due(1100));
    assert!(!document(100, Some(5000), None).is_due(5099));
    assert!(document(100, Some(5000), None).is_due(9000));
    assert!(!document(100, Some(9000), None).is_due(9001), "missed ones are one");
    assert!(document(100, Some(9000), None).is_due(2000), "the clock was set back");
    let on_request = Document { every_ms: None, ..document(100, None, None) };
    assert!(!on_request.is_due(u64::MAX));
}

#[test]
fn drill_is_stale_when_none_has_passed_for_two_intervals() {
    assert!(!document(100, Some(5000), Some(4900)).is_stale(5100));
    assert!(document(100, Some(5100), Some(4900)).is_stale(5101), "a failed one does not count");
    assert!(document(100, None, None).is_stale(1201), "nor one that was never made");
    assert_eq!(document(1, Some(1), None).last.unwrap().reason(), "the probe ended with 1: rows");
}
