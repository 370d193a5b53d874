//! When something is due: every so often, or by a cron expression in a time zone.
//!
//! Where clocks go forward, a fixed time that does not exist means the first moment after the gap;
//! where they go back, a fixed time runs once. An expression with `*` in its hours runs in both
//! passes (croner's rules, which are those of Vixie cron).

use std::str::FromStr;

use chrono::{DateTime, TimeZone, Utc};
use chrono_tz::Tz;
use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};

use crate::error::ServerError;
use crate::schedules::error::SchedulesError;

/// The shortest time between two runs: one second.
const EVERY_MS_MIN: u64 = 1_000;
/// A clock that is set back by at most this was only adjusted: a run at a repeated time is not
/// repeated.
const ADJUSTED_MS_MAX: u64 = 60_000;
/// The same as a part of the interval, so that no run is late by more than that.
const ADJUSTED_PART: u64 = 8;

/// When something is due.
#[derive(Debug, Clone)]
pub(crate) enum Timetable {
    /// At every multiple of this many milliseconds after a beginning, and before it.
    Every {
        /// Milliseconds.
        every_ms: u64,
        /// The beginning, in milliseconds since 1970 UTC.
        from_ms: u64,
    },
    /// When the wall clock of a place matches.
    Cron(Box<Cron>, Tz),
}

impl Timetable {
    /// Parses one; an interval is counted from `from_ms`.
    pub(crate) fn read(
        every_ms: Option<u64>,
        cron: Option<&str>,
        zone: Tz,
        from_ms: u64,
    ) -> Result<Self, ServerError> {
        match (every_ms, cron) {
            (Some(every_ms), None) if every_ms >= EVERY_MS_MIN => Ok(Self::Every { every_ms, from_ms }),
            (Some(_), None) => Err(ServerError::Invalid {
                fault: "the interval is shorter than 1 s",
                next: "give an interval of at least 1s",
            }),
            (None, Some(text)) => {
                let parser =
                    CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build();
                let cron = parser.parse(text).map_err(|source| {
                    ServerError::Schedules(SchedulesError::Cron {
                        text: text.to_owned(),
                        reason: source.to_string(),
                    })
                })?;
                Ok(Self::Cron(Box::new(cron), zone))
            }
            _ => Err(ServerError::Invalid {
                fault: "the schedule has both an interval and a cron expression, or neither",
                next: "give either --every or --cron",
            }),
        }
    }

    /// Refuses one that is never due (the 30th of February): it would look like a schedule and do
    /// nothing.
    pub(crate) fn due_at_some_time(self, from_ms: u64) -> Result<Self, ServerError> {
        match self.next(from_ms) {
            Some(_) => Ok(self),
            None => Err(ServerError::Invalid {
                fault: "the cron expression matches no day",
                next: "correct the day of the month or the month",
            }),
        }
    }

    /// The next run after the one noted at `noted_ms`. A time after `now_ms` comes from a clock
    /// that was ahead, and is ignored: the run is due within one period from now.
    pub(crate) fn due(&self, noted_ms: u64, now_ms: u64) -> Option<u64> {
        self.next(if self.is_ahead(noted_ms, now_ms) { now_ms } else { noted_ms })
    }

    fn is_ahead(&self, noted_ms: u64, now_ms: u64) -> bool {
        match self {
            Self::Every { every_ms, .. } => is_ahead(noted_ms, now_ms, *every_ms),
            Self::Cron(..) => noted_ms > now_ms.saturating_add(ADJUSTED_MS_MAX),
        }
    }

    /// Counts from now if the recorded time of the last run, or of the creation of a schedule that
    /// has not run, is in the future. Without recording this the next run would be counted from now
    /// each time, and never be due. Returns by how much the clock was set back.
    pub(crate) fn count_anew(
        &self,
        from_ms: &mut u64,
        last_ms: &mut Option<u64>,
        now_ms: u64,
    ) -> Option<u64> {
        let noted = last_ms.as_mut().unwrap_or(from_ms);
        if !self.is_ahead(*noted, now_ms) {
            return None;
        }
        let by_ms = *noted - now_ms;
        *noted = now_ms;
        Some(by_ms)
    }

    /// The first time after `after_ms`, in milliseconds since 1970 UTC; none if there is none.
    pub(crate) fn next(&self, after_ms: u64) -> Option<u64> {
        match self {
            Self::Every { every_ms, from_ms } => match after_ms.checked_sub(*from_ms) {
                // One that is due after the end of time is never due.
                Some(past) => (past / every_ms + 1).checked_mul(*every_ms)?.checked_add(*from_ms),
                // The clock was set back to before the beginning: the same rhythm continues there.
                None => Some(from_ms - (from_ms - after_ms - 1) / every_ms * every_ms),
            },
            Self::Cron(cron, zone) => {
                let after = in_zone(after_ms, *zone)?;
                let next = cron.find_next_occurrence(&after, false).ok()?;
                u64::try_from(next.timestamp_millis()).ok()
            }
        }
    }
}

/// Whether the time of a run on an interval is in the future: it was recorded by a clock that was
/// ahead.
pub(crate) fn is_ahead(noted_ms: u64, now_ms: u64, every_ms: u64) -> bool {
    noted_ms > now_ms.saturating_add((every_ms / ADJUSTED_PART).min(ADJUSTED_MS_MAX))
}

/// A time zone by its IANA name; UTC by default.
pub(crate) fn zone(name: Option<&str>) -> Result<Tz, ServerError> {
    let Some(name) = name else { return Ok(Tz::UTC) };
    Tz::from_str(name).map_err(|_| ServerError::Invalid {
        fault: "unknown time zone",
        next: "give a name of the IANA database, such as Europe/Berlin or UTC",
    })
}

/// Milliseconds since 1970 UTC as the wall clock of a place.
pub(crate) fn in_zone(at_ms: u64, zone: Tz) -> Option<DateTime<Tz>> {
    let utc = Utc.timestamp_millis_opt(i64::try_from(at_ms).ok()?).single()?;
    Some(utc.with_timezone(&zone))
}
