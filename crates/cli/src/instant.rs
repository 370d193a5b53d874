//! Instants as people write and read them: `2026-11-20 14:03:07` is local time, a `Z` or an offset at the end makes it clear, `14:03` is the last time that clocks here showed that,
//! `yesterday 14:03` is of that day, `-5m` is relative, `now` is now.

use std::time::{SystemTime, UNIX_EPOCH};

use cairn_base::Interval;
use cairn_server::api::ErrorKind;
use jiff::civil::{DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan, Zoned};

use crate::exit::Failure;

/// Nanoseconds since 1970 UTC, by this machine's clock.
pub fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// Reads an instant.
pub fn parse(text: &str, now_ns: u64) -> Result<u64, Failure> {
    parse_in(text, now_ns, &TimeZone::system())
}

fn parse_in(text: &str, now_ns: u64, zone: &TimeZone) -> Result<u64, Failure> {
    let text = text.trim();
    if text == "now" {
        return Ok(now_ns);
    }
    if let Some(ago) = text.strip_prefix('-')
        && let Ok(Interval(ago)) = ago.parse::<Interval>()
    {
        return Ok(now_ns.saturating_sub(ago.as_nanos() as u64));
    }
    let wrong = || {
        Failure::new(
            ErrorKind::Usage,
            format!("`{text}` is no instant"),
            "write it as '2026-11-20 14:03:07' (local time), '2026-11-20 14:03:07Z' (UTC), '2026-11-20T14:03:07+01:00', 14:03 (the last one), 'yesterday 14:03', -5m or now; a mark is named with --mark",
        )
    };
    let stamp = match text.parse::<Timestamp>() {
        Ok(stamp) => stamp,
        Err(_) => {
            let civil = match text.parse::<DateTime>() {
                Ok(civil) => civil,
                Err(_) => by_the_clock(text, now_ns, zone).ok_or_else(wrong)?,
            };
            // In the hour that a change of clocks makes twice, the first one is meant; one that does not exist is moved on.
            zone.to_ambiguous_zoned(civil).compatible().map_err(|_| wrong())?.timestamp()
        }
    };
    u64::try_from(stamp.as_nanosecond()).map_err(|_| wrong())
}

/// A time of day: the last time that clocks of the zone showed it, or that of `today` or `yesterday`.
fn by_the_clock(text: &str, now_ns: u64, zone: &TimeZone) -> Option<DateTime> {
    let now = Timestamp::from_nanosecond(i128::from(now_ns)).ok()?.to_zoned(zone.clone()).datetime();
    let (days, time) = match text.split_once(' ') {
        Some(("today", time)) => (Some(0), time),
        Some(("yesterday", time)) => (Some(1), time),
        _ => (None, text),
    };
    // Digits alone could be a year.
    let time: Time = time.trim().parse().ok().filter(|_| time.contains(':'))?;
    let days = days.unwrap_or_else(|| i64::from(time > now.time()));
    Some(now.date().checked_sub(days.days()).ok()?.to_datetime(time))
}

/// An instant for people: local time with its offset, and UTC.
pub fn show(at_ns: u64) -> String {
    show_in(at_ns, TimeZone::system())
}

fn show_in(at_ns: u64, zone: TimeZone) -> String {
    let Ok(stamp) = Timestamp::from_nanosecond(i128::from(at_ns)) else { return format!("{at_ns} ns") };
    let local: Zoned = stamp.to_zoned(zone);
    let utc = stamp.to_zoned(TimeZone::UTC);
    if local.offset() == utc.offset() {
        return utc.strftime("%Y-%m-%d %H:%M:%S%.3f UTC").to_string();
    }
    format!("{} ({})", local.strftime("%Y-%m-%d %H:%M:%S%.3f%:z"), utc.strftime("%H:%M:%S UTC"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_795_269_787_000_000_000;

    #[test]
    fn instants_are_read_in_local_time_utc_and_relative_to_now() {
        let berlin = TimeZone::fixed(jiff::tz::offset(1));
        let read = |text: &str| parse_in(text, NOW, &berlin).map_err(|failure| format!("{failure:?}"));
        assert_eq!(read("now"), Ok(NOW));
        assert_eq!(read("-5m"), Ok(NOW - 300_000_000_000));
        assert_eq!(read("1970-01-02 01:00:00"), Ok(86_400_000_000_000));
        assert_eq!(read("1970-01-02 00:00:00Z"), Ok(86_400_000_000_000));
        assert_eq!(read("1970-01-02T02:00:00.5+02:00"), Ok(86_400_500_000_000));
        for wrong in
            ["", "yesterday", "-", "2026-13-01 00:00:00", "1960-01-01 00:00:00Z", "25:00", "tomorrow 14:03"]
        {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn time_of_day_is_the_last_one_that_clocks_have_shown() {
        // 2026-11-21 15:03:07 in Berlin.
        let berlin = TimeZone::fixed(jiff::tz::offset(1));
        let read = |text: &str| parse_in(text, NOW, &berlin).map_err(|failure| format!("{failure:?}"));
        let at = |text: &str| parse_in(text, NOW, &TimeZone::UTC).map_err(|failure| format!("{failure:?}"));
        assert_eq!(read("14:03"), at("2026-11-21 13:03:00"));
        assert_eq!(read("15:03:07"), Ok(NOW), "this very second");
        assert_eq!(read("15:04"), at("2026-11-20 14:04:00"), "today it has not been yet");
        assert_eq!(read("yesterday 14:03"), at("2026-11-20 13:03:00"));
        assert_eq!(
            read("today 15:04"),
            at("2026-11-21 14:04:00"),
            "the server says that this lies in the future"
        );
        assert!(read("2026").is_err(), "a year is no time of day");
    }

    #[test]
    fn instants_are_shown_with_both_times() {
        let berlin = TimeZone::fixed(jiff::tz::offset(1));
        assert_eq!(show_in(86_400_000_000_000, berlin), "1970-01-02 01:00:00.000+01:00 (00:00:00 UTC)");
        assert_eq!(show_in(86_400_000_000_000, TimeZone::UTC), "1970-01-02 00:00:00.000 UTC");
    }
}
