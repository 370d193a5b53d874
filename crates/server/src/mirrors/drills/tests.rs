use cairn_base::{ByteSize, ManualClock, Timestamp};

use super::*;
use crate::schedules::clocks::{self, Scheduled};

fn document(every_ms: u64, last_ms: Option<u64>, passed_ms: Option<u64>) -> DrillDocument {
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
    DrillDocument { probe, timeout_ms: 1, every_ms: Some(every_ms), since_ms: 1000, last, passed_ms }
}

#[test]
fn drill_is_due_an_interval_after_the_last_one_and_once_however_many_were_missed() {
    assert!(!document(100, None, None).is_due(1099));
    assert!(document(100, None, None).is_due(1100));
    assert!(!document(100, Some(5000), None).is_due(5099));
    assert!(document(100, Some(5000), None).is_due(9000));
    assert!(!document(100, Some(9000), None).is_due(9001), "missed ones are one");
    assert!(document(100, Some(9000), None).is_due(2000), "the clock was set back");
    let on_request = DrillDocument { every_ms: None, ..document(100, None, None) };
    assert!(!on_request.is_due(u64::MAX));
}

#[test]
fn drill_is_stale_when_none_has_passed_for_two_intervals() {
    assert!(!document(100, Some(5000), Some(4900)).is_stale(5100));
    assert!(document(100, Some(5100), Some(4900)).is_stale(5101), "a failed one does not count");
    assert!(document(100, None, None).is_stale(1201), "nor one that was never made");
    assert_eq!(document(1, Some(1), None).last.unwrap().reason(), "the probe ended with 1: rows");
}

#[test]
fn drill_that_passed_by_a_clock_that_was_years_ahead_is_stale_all_the_same() {
    const YEAR: u64 = 365 * 24 * 3_600_000;
    let ahead = document(100, Some(2 * YEAR), Some(2 * YEAR));
    assert!(ahead.is_due(YEAR));
    assert!(ahead.is_stale(YEAR), "how old it is nobody knows");
    assert!(!document(100, Some(5000), Some(5000)).is_stale(4801), "set by less than makes one stale");
}

#[test]
fn drill_that_the_end_of_its_server_cuts_off_each_time_is_stale_and_not_put_off() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::new(Timestamp(1_700_000_000_000_000_000)));
    let volumes = Volumes::open(folder.path().to_owned(), ByteSize(1 << 20), clock.clone(), None).unwrap();
    std::fs::create_dir(volumes.folder("m")).unwrap();
    let drills = Drills::open(Arc::new(volumes), clock.clone()).unwrap();
    let asked = api::DrillRequest {
        probe: Some("true".to_owned()),
        every_ms: Some(1000),
        ..api::DrillRequest::default()
    };
    let pauseless = api::DrillRequest { every_ms: Some(0), ..asked.clone() };
    let refused = drills.note_request("m", &pauseless).unwrap_err();
    assert!(matches!(refused, ServerError::Invalid { fault: "the interval is 0", .. }), "{refused}");
    let begun = drills.note_request("m", &asked).unwrap();
    assert!(!begun.is_due(drills.now_ms()));
    for round in 0..3 {
        clock.advance(Duration::from_millis(999));
        let begun = drills.note_request("m", &api::DrillRequest::default()).unwrap();
        assert_eq!(begun.is_due(drills.now_ms()), round > 0, "with the next start, once it was due");
        assert_eq!(begun.is_stale(drills.now_ms()), round > 1, "{round}");
    }
    let anew = drills.note_request("m", &asked).unwrap();
    assert!(!anew.is_stale(drills.now_ms()), "its owner has said again how often");
}

#[test]
fn drills_whose_file_cannot_be_removed_are_there_to_be_forgotten_again() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::new(Timestamp(1_700_000_000_000_000_000)));
    let volumes = Volumes::open(folder.path().to_owned(), ByteSize(1 << 20), clock.clone(), None).unwrap();
    let own = volumes.folder("m");
    std::fs::create_dir(&own).unwrap();
    let drills = Drills::open(Arc::new(volumes), clock).unwrap();
    let asked = api::DrillRequest { probe: Some("true".to_owned()), ..api::DrillRequest::default() };
    drills.note_request("m", &asked).unwrap();
    // The remainder of an interrupted write is removed first, and this one can't be removed.
    std::fs::create_dir(own.join("drill.new")).unwrap();
    for attempt in 0..2 {
        let refused = drills.forget("m").unwrap_err();
        assert!(!matches!(refused, ServerError::NotFound { .. }), "{attempt}: {refused}");
        assert_eq!(drills.documents.lock().len(), 1, "as the next start has it");
    }
    std::fs::remove_dir(own.join("drill.new")).unwrap();
    drills.forget("m").unwrap();
    assert!(drills.documents.lock().is_empty() && !own.join("drill.json").exists());
    assert!(matches!(drills.forget("m"), Err(ServerError::NotFound { .. })));
}

impl Scheduled for DrillDocument {
    fn look(&mut self, now_ms: u64) -> bool {
        let runs = self.is_due(now_ms);
        if runs {
            self.last = document(1, Some(now_ms), None).last;
        }
        runs
    }

    fn restart(&mut self, _now_ms: u64) {
        *self = serde_json::from_str(&serde_json::to_string(self).unwrap()).unwrap();
    }
}

#[test]
fn drills_go_on_within_a_period_whatever_the_clock_is_set_to() {
    const HOUR: u64 = 3_600_000;
    clocks::check("drills", HOUR, |now| DrillDocument { since_ms: now, ..document(HOUR, None, None) });
}
