//! The settings of a target: from which severity on, how often, and when not.

use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

use crate::problem::Severity;

/// Messages that may wait at the least: the head may be on its way, and two that merge.
const QUEUE_MIN: usize = 3;
/// The longest time of any setting: more is a mistake.
const TIME_MAX: Duration = Duration::from_secs(366 * 86_400);

/// When a target gets messages. Times are in milliseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// Problems below it are not sent.
    pub severity: Severity,
    /// A problem is sent after it has lasted this long, in one message with all that came
    /// meanwhile.
    pub group_ms: u64,
    /// A problem is over when it has been away for this long; twice as long each time that it
    /// returns soon.
    pub hold_ms: u64,
    /// The longest such time.
    pub hold_max_ms: u64,
    /// The first reminder of a problem that lasts; never if 0.
    pub repeat_ms: u64,
    /// The longest time between two reminders: it doubles from the first one on.
    pub repeat_max_ms: u64,
    /// Messages in an hour. As many again may be about critical problems.
    pub rate: u32,
    /// Hours without messages, except critical ones.
    pub quiet: Option<Quiet>,
    /// Messages that may wait for delivery; past that, older ones become one.
    pub queue: usize,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            severity: Severity::Warning,
            group_ms: 30_000,
            hold_ms: 60_000,
            hold_max_ms: 3_600_000,
            repeat_ms: 4 * 3_600_000,
            repeat_max_ms: 24 * 3_600_000,
            rate: 20,
            quiet: None,
            queue: 100,
        }
    }
}

impl Policy {
    /// For a receiver that groups, repeats and rates by itself and takes a silence for the end of a
    /// problem, such as Alertmanager.
    pub fn for_a_relay() -> Self {
        Self {
            group_ms: 10_000,
            repeat_ms: 120_000,
            repeat_max_ms: 120_000,
            rate: u32::MAX,
            ..Self::default()
        }
    }

    /// Refuses settings that make no sense.
    pub fn check(&self) -> Result<(), InvalidPolicy> {
        let longest = TIME_MAX.as_millis() as u64;
        let times = [self.group_ms, self.hold_ms, self.hold_max_ms, self.repeat_ms, self.repeat_max_ms];
        if times.iter().any(|time| *time > longest) {
            return Err(InvalidPolicy("a time is longer than a year"));
        }
        if self.rate == 0 {
            return Err(InvalidPolicy("no message an hour would be sent"));
        }
        if self.queue < QUEUE_MIN {
            return Err(InvalidPolicy("fewer than 3 messages may wait"));
        }
        self.quiet.as_ref().map_or(Ok(()), Quiet::check)
    }

    /// The time to the next reminder, after so many.
    pub(crate) fn repeat_after(&self, reminders: u32) -> Option<u64> {
        let longest = self.repeat_max_ms.max(self.repeat_ms);
        let factor = 1u64.checked_shl(reminders).unwrap_or(u64::MAX);
        (self.repeat_ms > 0).then(|| self.repeat_ms.saturating_mul(factor).min(longest))
    }

    /// How long a problem must be away that has returned so often.
    pub(crate) fn hold_after(&self, returns: u32) -> u64 {
        let factor = 1u64.checked_shl(returns).unwrap_or(u64::MAX);
        self.hold_ms.saturating_mul(factor).min(self.hold_max_ms.max(self.hold_ms))
    }

    /// How long returns are remembered after the end of a problem.
    pub(crate) fn memory_ms(&self) -> u64 {
        self.hold_max_ms.max(self.hold_ms).saturating_mul(2)
    }
}

/// The settings of a target make no sense: the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidPolicy(pub &'static str);

/// Hours of each day, in local time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quiet {
    /// Minutes from midnight to the first quiet one.
    pub from: u16,
    /// Minutes from midnight to the first one that is no longer quiet; before `from` if the quiet
    /// hours pass midnight.
    pub to: u16,
    /// The IANA name of the time zone.
    pub zone: String,
}

impl Quiet {
    fn check(&self) -> Result<(), InvalidPolicy> {
        if self.from >= 1440 || self.to >= 1440 || self.from == self.to {
            return Err(InvalidPolicy("quiet hours are two different times between 00:00 and 23:59"));
        }
        TimeZone::get(&self.zone).map(drop).map_err(|_| InvalidPolicy("there is no such time zone"))
    }

    /// Whether it is quiet at that time, in milliseconds since 1970. In a zone that is not known
    /// any more it never is: a message too many is better than one too few.
    pub fn is_now(&self, now_ms: u64) -> bool {
        let Ok(zone) = TimeZone::get(&self.zone) else { return false };
        let Ok(now) = Timestamp::from_millisecond(i64::try_from(now_ms).unwrap_or(i64::MAX)) else {
            return false;
        };
        let local = now.to_zoned_datetime(zone);
        let minute = u16::from(local.hour().unsigned_abs()) * 60 + u16::from(local.minute().unsigned_abs());
        match self.from < self.to {
            true => (self.from..self.to).contains(&minute),
            false => minute >= self.from || minute < self.to,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quiet_hours_pass_midnight_and_follow_summer_time() {
        let quiet = Quiet { from: 22 * 60, to: 7 * 60, zone: "Europe/Berlin".to_owned() };
        let at = |text: &str| u64::try_from(text.parse::<Timestamp>().unwrap().as_millisecond()).unwrap();
        assert!(quiet.is_now(at("2026-01-10T21:00:00Z")));
        assert!(!quiet.is_now(at("2026-01-10T20:59:00Z")));
        assert!(quiet.is_now(at("2026-07-10T04:59:00Z")));
        assert!(!quiet.is_now(at("2026-07-10T05:00:00Z")));
        assert!(!quiet.is_now(at("2026-07-10T19:59:00Z")));
    }

    #[test]
    fn settings_without_sense_are_refused() {
        assert!(Policy::default().check().is_ok() && Policy::for_a_relay().check().is_ok());
        assert!(Policy { queue: 2, ..Policy::default() }.check().is_err());
        assert!(Policy { rate: 0, ..Policy::default() }.check().is_err());
        let quiet = Some(Quiet { from: 0, to: 60, zone: "Nowhere/Else".to_owned() });
        assert!(Policy { quiet, ..Policy::default() }.check().is_err());
    }
}
