//! When a mirror is updated automatically: at an interval, or by a cron expression in a time zone.
//! Runs missed while the server was stopped, the mirror paused or an update ran longer than its
//! interval become one run.

use std::time::Duration;

use chrono::{Datelike, Timelike};
use chrono_tz::Tz;
use serde::{Deserialize, Serialize};

use crate::error::ServerError;
use crate::schedules::timetable;
use crate::schedules::timetable::Timetable;

/// The shortest time between two runs of a cron expression.
const CRON_MS_MIN: u64 = 60_000;

/// The time for which the schedule may sleep, with these next runs, after a check at `now_ms`. Runs
/// due then have begun, or can't while the mirror is paused, running, or writable: waiting for
/// those would be a busy loop.
pub(super) fn rest(next_ms: impl Iterator<Item = u64>, now_ms: u64) -> Duration {
    let left = next_ms.filter_map(|next| next.checked_sub(now_ms).filter(|left| *left > 0)).min();
    left.map_or(Duration::MAX, Duration::from_millis)
}

/// A schedule as it is kept; one that has neither an interval nor an expression runs on request
/// only.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct When {
    pub(super) every_ms: Option<u64>,
    pub(super) cron: Option<String>,
    /// All the time.
    pub(super) continuous: bool,
    /// Of the expression, and of the hours of a limit; UTC by default.
    pub(super) zone: Option<String>,
}

impl When {
    /// The requested settings, with the others unchanged. `every_ms` 0 and the expression `off`
    /// remove a schedule, and each replaces the other.
    pub(super) fn changed(
        &self,
        every_ms: Option<u64>,
        cron: Option<&str>,
        zone: Option<&str>,
    ) -> Result<Self, ServerError> {
        let some = |value: u64| (value > 0).then_some(value);
        let mut when = self.clone();
        if let Some(every) = every_ms {
            when.every_ms = some(every);
            when.cron = if every > 0 { None } else { when.cron };
            when.continuous &= every == 0;
        }
        if let Some(cron) = cron {
            when.cron = (cron != "off").then(|| cron.to_owned());
            when.every_ms = if when.cron.is_some() { None } else { when.every_ms };
            when.continuous &= when.cron.is_none();
        }
        if every_ms.is_some_and(|every| every > 0) && cron.is_some_and(|cron| cron != "off") {
            return Err(ServerError::Invalid {
                fault: "the schedule has both an interval and a cron expression, or neither",
                next: "give either --every or --cron",
            });
        }
        if let Some(zone) = zone {
            timetable::zone(Some(zone))?;
            when.zone = Some(zone.to_owned());
        }
        when.timetable()?;
        Ok(when)
    }

    /// All the time, or no longer; `times` when a schedule was wished along with it.
    pub(crate) fn continuously(mut self, wish: Option<bool>, times: bool) -> Result<Self, ServerError> {
        match wish {
            Some(true) if times => Err(ServerError::Invalid {
                fault: "a continuous mirror has no interval and no cron expression",
                next: "give --continuous, or --every or --cron",
            }),
            Some(true) => Ok(Self { every_ms: None, cron: None, continuous: true, ..self }),
            Some(false) => {
                self.continuous = false;
                Ok(self)
            }
            None => Ok(self),
        }
    }

    fn place(&self) -> Tz {
        timetable::zone(self.zone.as_deref()).unwrap_or(Tz::UTC)
    }

    fn timetable(&self) -> Result<Option<Timetable>, ServerError> {
        let Some(cron) = self.cron.as_deref() else { return Ok(None) };
        Timetable::read(None, Some(cron), self.place(), 0)?.due_at_some_time(0).map(Some)
    }

    /// The next run of a schedule that begins now, in milliseconds since 1970 UTC.
    pub(super) fn next_ms(&self, now_ms: u64) -> Option<u64> {
        if self.continuous {
            return Some(now_ms);
        }
        match (self.every_ms, self.timetable()) {
            (Some(every), _) => Some(now_ms.saturating_add(every)),
            (None, Ok(Some(timetable))) => timetable.next(now_ms),
            _ => None,
        }
    }

    /// The next run, which was planned for `due_ms`, after the clock was set back: a mirror does
    /// not wait until the clock shows the same hour again. A run at an hour that repeats runs
    /// again.
    pub(super) fn no_later_ms(&self, due_ms: u64, now_ms: u64) -> u64 {
        self.next_ms(now_ms).map_or(due_ms, |next| next.min(due_ms))
    }

    /// The next run after a start of the server, when the last one began at `last_ms`: now, when
    /// any was missed.
    pub(super) fn first_ms(&self, last_ms: Option<u64>, now_ms: u64) -> Option<u64> {
        let every_ms = self.every_ms.unwrap_or(CRON_MS_MIN);
        match last_ms {
            // A clock that was ahead has shown it. An update now counts from now: a start that
            // waited for an interval would, with one restart after the other, wait for ever.
            Some(last) if timetable::is_ahead(last, now_ms, every_ms) && self.every_ms.is_some() => {
                Some(now_ms)
            }
            Some(last) if timetable::is_ahead(last, now_ms, every_ms) => self.next_ms(now_ms),
            Some(last) => self.next_ms(last).map(|next| next.max(now_ms)),
            None if self.every_ms.is_some() || self.continuous => Some(now_ms),
            None => self.next_ms(now_ms),
        }
    }

    /// The day of the week there, from Monday, and the minutes since midnight.
    pub(super) fn day_and_minute(&self, now_ms: u64) -> (u8, u16) {
        timetable::in_zone(now_ms, self.place()).map_or((0, 0), |at| {
            (at.weekday().num_days_from_monday() as u8, (at.hour() * 60 + at.minute()) as u16)
        })
    }
}

#[cfg(test)]
mod tests {
    use chrono::{TimeZone, Utc};

    use super::*;
    use crate::schedules::clocks::{self, Scheduled};

    const HOUR: u64 = 3_600_000;

    fn ms(year: i32, month: u32, day: u32, hour: u32) -> u64 {
        Utc.with_ymd_and_hms(year, month, day, hour, 0, 0).unwrap().timestamp_millis() as u64
    }

    fn nightly() -> When {
        When::default().changed(None, Some("30 2 * * *"), Some("Europe/Berlin")).unwrap()
    }

    #[test]
    fn nightly_mirror_runs_once_a_night_for_a_year_with_summer_time() {
        let when = nightly();
        let (mut now, end) = (ms(2026, 1, 1, 0), ms(2027, 1, 1, 0));
        let mut runs = Vec::new();
        let mut next = when.first_ms(None, now).unwrap();
        while now < end {
            // The server looks every so often, and an update takes its time.
            now += 7 * 60_000;
            if next <= now {
                runs.push(next);
                next = when.next_ms(now).unwrap();
            }
        }
        assert_eq!(runs.len(), 365);
        let berlin = |at: u64| timetable::in_zone(at, when.place()).unwrap();
        assert!(runs.iter().all(|at| (2..=3).contains(&berlin(*at).hour())));
        assert_eq!(runs.iter().filter(|at| berlin(**at).hour() == 3).count(), 1, "the night without a 02:30");
        assert_eq!(when.day_and_minute(ms(2026, 7, 1, 22)), (3, 0), "midnight of a Thursday there");
    }

    #[test]
    fn what_is_due_and_cannot_begin_keeps_the_schedule_from_no_sleep() {
        let rest = |next: &[u64]| rest(next.iter().copied(), 1000);
        assert_eq!(rest(&[]), Duration::MAX);
        assert_eq!(rest(&[1250, 1030]), Duration::from_millis(30));
        assert_eq!(rest(&[7, 1000]), Duration::MAX, "one that is paused, and one that follows continuously");
        assert_eq!(rest(&[7, 1030, 1000]), Duration::from_millis(30));
    }

    #[test]
    fn missed_runs_are_one() {
        let when = nightly();
        let (last, now) = (ms(2026, 3, 1, 2), ms(2026, 3, 9, 12));
        assert_eq!(when.first_ms(Some(last), now), Some(now), "a week was missed: one run now");
        assert_eq!(when.next_ms(now), Some(ms(2026, 3, 10, 1) + 30 * 60_000), "and then the next night");
        assert_eq!(when.first_ms(Some(now - HOUR), now), when.next_ms(now), "nothing was missed");
        assert_eq!(when.first_ms(Some(now + 1000 * HOUR), now), when.next_ms(now), "the clock was put back");
        let every = When::default().changed(Some(HOUR), None, None).unwrap();
        assert_eq!(every.first_ms(Some(last), now), Some(now));
        assert_eq!(every.first_ms(None, now), Some(now));
        assert_eq!(every.next_ms(now), Some(now + HOUR));
        assert_eq!(When::default().first_ms(None, now), None);
    }

    #[test]
    fn clock_that_was_put_back_delays_no_run_by_more_than_its_interval() {
        let every = When::default().changed(Some(HOUR), None, None).unwrap();
        let now = ms(2026, 3, 9, 12);
        let due = every.next_ms(now).unwrap();
        let put_back = now - 5 * HOUR;
        assert_eq!(every.no_later_ms(due, put_back), put_back + HOUR);
        assert_eq!(every.no_later_ms(due, now), due, "nothing happened");
        let (when, now) = (nightly(), ms(2026, 3, 9, 3));
        let due = when.next_ms(now).unwrap();
        assert_eq!(when.no_later_ms(due, now - 4 * HOUR), due - 24 * HOUR, "the same night comes again");
        let continuous = When::default().continuously(Some(true), false).unwrap();
        assert_eq!(continuous.no_later_ms(now + HOUR, now), now);
        assert_eq!(When::default().no_later_ms(7, 3), 7);
    }

    /// A mirror as the thread of mirrors plans it.
    struct Planned {
        when: When,
        next_ms: Option<u64>,
        last_ms: Option<u64>,
        looked_ms: u64,
    }

    impl Scheduled for Planned {
        fn look(&mut self, now_ms: u64) -> bool {
            if now_ms < self.looked_ms {
                self.next_ms = self.next_ms.map(|due| self.when.no_later_ms(due, now_ms));
            }
            self.looked_ms = now_ms;
            let runs = self.next_ms.is_some_and(|next| next <= now_ms);
            if runs {
                (self.next_ms, self.last_ms) = (self.when.next_ms(now_ms), Some(now_ms));
            }
            runs
        }

        fn restart(&mut self, now_ms: u64) {
            (self.next_ms, self.looked_ms) = (self.when.first_ms(self.last_ms, now_ms), 0);
        }
    }

    #[test]
    fn updates_go_on_within_a_period_whatever_the_clock_is_set_to() {
        let planned = |when: &When, now_ms| {
            let next_ms = when.first_ms(None, now_ms);
            Planned { when: when.clone(), next_ms, last_ms: None, looked_ms: 0 }
        };
        let every = When::default().changed(Some(HOUR), None, None).unwrap();
        clocks::check("every", HOUR, |now| planned(&every, now));
        let cron = When::default().changed(None, Some("7 * * * *"), None).unwrap();
        clocks::check("cron", HOUR, |now| planned(&cron, now));
        // Restarts that come more often than its interval keep no mirror from its update after a
        // clock that was ahead.
        let now = ms(2026, 3, 9, 12);
        assert_eq!(every.first_ms(Some(now + 1000 * HOUR), now), Some(now));
    }

    #[test]
    fn one_kind_of_schedule_takes_the_place_of_the_other() {
        let when = nightly().changed(Some(HOUR), None, None).unwrap();
        assert_eq!((when.every_ms, &when.cron), (Some(HOUR), &None));
        let when = when.changed(None, Some("0 * * * *"), None).unwrap();
        assert_eq!((when.every_ms, when.cron.as_deref()), (None, Some("0 * * * *")));
        assert_eq!(when.zone.as_deref(), Some("Europe/Berlin"), "the rest stays");
        let when = when.changed(Some(0), Some("off"), None).unwrap();
        assert_eq!(when.next_ms(5), None);
        let when = nightly().continuously(Some(true), false).unwrap();
        assert_eq!((when.every_ms, &when.cron, when.next_ms(5)), (None, &None, Some(5)));
        assert_eq!(when.first_ms(Some(3), 9), Some(9), "a session begins with the server");
        assert!(!when.changed(Some(HOUR), None, None).unwrap().continuous);
        assert_eq!(when.clone().continuously(Some(false), false).unwrap().next_ms(5), None);
        assert!(when.changed(Some(0), None, None).unwrap().continuous, "no interval is no schedule");
        assert!(when.continuously(Some(true), true).is_err());
        for (every, cron, zone) in [
            (Some(HOUR), Some("0 * * * *"), None),
            (None, Some("0 25 * * *"), None),
            (None, Some("0 0 30 2 *"), None),
            (None, None, Some("Mars/Olympus")),
        ] {
            assert!(When::default().changed(every, cron, zone).is_err(), "{every:?} {cron:?} {zone:?}");
        }
    }
}
