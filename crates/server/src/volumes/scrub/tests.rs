//! When a pass is due.

use super::*;
use crate::schedules::clocks::{self, Scheduled};

fn passed(started_ms: u64) -> Option<api::ScrubResult> {
    Some(api::ScrubResult {
        started_ms,
        finished_ms: started_ms + 7,
        bytes: 0,
        stopped: false,
        findings_total: 0,
        findings: Vec::new(),
    })
}

#[test]
fn pass_is_due_when_it_was_asked_for_then_an_interval_after_the_last_one_and_never_out_of_reach() {
    let document =
        |every_ms, last| ScrubDocument { every_ms, asked_ms: 1000, last, ..ScrubDocument::default() };
    assert_eq!(document(None, None).next_ms(5000), None, "nobody asked");
    assert_eq!(document(Some(100), None).next_ms(5000), Some(1000), "not in 1970");
    assert_eq!(document(Some(100), None).next_ms(900), Some(900), "the clock was put back");
    assert_eq!(document(Some(100), passed(4000)).next_ms(5000), Some(4100));
    assert_eq!(document(Some(100), passed(4000)).next_ms(4000), Some(4100));
    assert_eq!(document(Some(100), passed(6000)).next_ms(5000), Some(5000), "the clock was put back");
    assert_eq!(document(Some(u64::MAX), passed(4000)).next_ms(5000), Some(u64::MAX));
}

impl Scheduled for ScrubDocument {
    fn look(&mut self, now_ms: u64) -> bool {
        let runs = self.next_ms(now_ms).is_some_and(|next| next <= now_ms);
        if runs {
            self.last = passed(now_ms);
        }
        runs
    }

    fn restart(&mut self, _now_ms: u64) {
        *self = serde_json::from_str(&serde_json::to_string(self).unwrap()).unwrap();
    }
}

#[test]
fn passes_go_on_within_a_period_whatever_the_clock_is_set_to() {
    const HOUR: u64 = 3_600_000;
    clocks::check("scrub", HOUR, |now| ScrubDocument {
        every_ms: Some(HOUR),
        asked_ms: now,
        ..ScrubDocument::default()
    });
}
