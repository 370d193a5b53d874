//! The difference between the clocks of both sides of a mirror, as of the last contact.
//!
//! No decision of a mirror depends on it: lags and locks use one clock each. But times of images,
//! logs and snapshots are compared by people, and certificates and tokens have dates.

use cairn_api as api;
use cairn_mirror::Contact;

use crate::mirrors::Mirrors;
use crate::schedules::put_back;

/// A smaller difference is no problem, and may be the time that the answer took.
const APART_MS: u64 = 120_000;

impl Mirrors {
    /// The problems of clocks that are apart, by mirror.
    pub(super) fn clock_problems(&self) -> Vec<api::Problem> {
        let problem = |relation: &std::sync::Arc<super::Relation>| {
            let contact = relation.destination.contact().filter(|_| !relation.is_failed_over())?;
            let source = relation.document.lock().address.clone();
            problem_of(&relation.name, &source, contact)
        };
        self.all().iter().filter_map(problem).collect()
    }
}

fn problem_of(name: &str, source: &str, contact: Contact) -> Option<api::Problem> {
    let (here_ms, there_ms) = (contact.at.0 / 1_000_000, contact.status.now.0 / 1_000_000);
    let apart_ms = here_ms.abs_diff(there_ms);
    if apart_ms < APART_MS {
        return None;
    }
    let which = if there_ms > here_ms { "ahead of" } else { "slower than" };
    Some(api::Problem {
        subject: name.to_owned(),
        message: format!(
            "the clock of its source {source} is {which} the clock of this machine, by {}",
            put_back(Some(apart_ms))
        ),
        next: "set both clocks by NTP: `timedatectl` shows whether a machine does".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use cairn_base::{SnapshotId, Timestamp};
    use cairn_mirror::SourceStatus;

    use super::*;

    fn contact(here_s: u64, there_s: u64) -> Contact {
        let at = |seconds: u64| Timestamp(seconds * 1_000_000_000);
        let status = SourceStatus {
            now: at(there_s),
            blocks: 0,
            used: 0,
            base: SnapshotId(0),
            base_taken: None,
            first_change: None,
            blocks_behind: 0,
            route: Default::default(),
        };
        Contact { at: at(here_s), status }
    }

    #[test]
    fn clocks_that_are_minutes_apart_are_a_problem_in_either_direction() {
        assert!(problem_of("m", "h:1", contact(1_000_000, 1_000_100)).is_none());
        let ahead = problem_of("m", "h:1", contact(1_000_000, 1_000_600)).unwrap();
        assert!(ahead.message.ends_with("is ahead of the clock of this machine, by 10 minutes"), "{ahead:?}");
        let slow = problem_of("m", "h:1", contact(1_010_000, 1_000_000)).unwrap();
        assert!(slow.message.contains("slower than"), "{slow:?}");
    }
}
