//! Instants as people write and read them. `2026-11-20 14:03:07` is local time, unless it ends with
//! a `Z` or an offset. `14:03` is the last time at which local clocks showed that, and `yesterday
//! 14:03` is on that day. `-5m` is relative, and `now` is now. Local time is that of `TZ`, or of
//! `/etc/localtime`; the zones are those of the machine, or by default those in this program.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cairn_api::ErrorKind;
use cairn_base::Interval;
use jiff::civil::{Date, DateTime, Time};
use jiff::tz::{AmbiguousOffset, Offset, TimeZone};
use jiff::{Timestamp, ToSpan, ZonedDateTime};

use crate::exit::Failure;

/// Nanoseconds since 1970 UTC, by this machine's clock.
pub fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// An instant as it was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// A time, in nanoseconds since 1970 UTC.
    At(u64),
    /// This long ago: the server counts the elapsed time, as the clock may have been set since.
    Ago(Duration),
}

/// Reads an instant.
pub fn parse(text: &str, now_ns: u64) -> Result<Moment, Failure> {
    parse_in(text, now_ns, &TimeZone::system())
}

fn parse_in(text: &str, now_ns: u64, zone: &TimeZone) -> Result<Moment, Failure> {
    let text = text.trim();
    if text == "now" {
        return Ok(Moment::Ago(Duration::ZERO));
    }
    if let Some(ago) = text.strip_prefix('-')
        && let Ok(Interval(ago)) = ago.parse::<Interval>()
    {
        return Ok(Moment::Ago(ago));
    }
    let wrong = || {
        Failure::new(
            ErrorKind::Usage,
            format!("`{text}` is not an instant"),
            "write it as '2026-11-20 14:03:07' (local time), '2026-11-20 14:03:07Z' (UTC), '2026-11-20T14:03:07+01:00', 14:03 (the last one), 'yesterday 14:03', -5m or now; a mark is named with --mark",
        )
    };
    let now = Timestamp::from_nanosecond(i128::from(now_ns)).map_err(|_| wrong())?;
    let stamp = match (text.parse::<Timestamp>(), text.parse::<DateTime>()) {
        (Ok(stamp), _) => Some(stamp),
        // A time with the name of a zone would be parsed as a local time.
        (_, Ok(civil)) if !text.contains('[') => shown_at(civil, now, zone),
        _ => by_the_clock(text, now, zone),
    };
    let stamp = stamp.ok_or_else(wrong)?;
    u64::try_from(stamp.as_nanosecond()).map(Moment::At).map_err(|_| wrong())
}

/// When clocks of the zone show that date and time. For an hour that occurs twice it is the later
/// one, unless that is still in the future. For a time that clocks skip it is the first moment
/// after the gap.
fn shown_at(civil: DateTime, now: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
    let moment = |offset: Offset| offset.to_timestamp(civil).ok();
    match zone.to_ambiguous_zoned_datetime(civil).offset() {
        AmbiguousOffset::Unambiguous { offset } => moment(offset),
        AmbiguousOffset::Fold { before, after } => {
            moment(after).filter(|later| *later <= now).or_else(|| moment(before))
        }
        AmbiguousOffset::Gap { before, .. } => {
            let beyond = moment(before)?;
            // At the change itself the time before it has the later offset already.
            let change = zone.preceding(beyond.checked_add(1.nanosecond()).ok()?).next();
            Some(change.map_or(beyond, |change| change.timestamp()))
        }
    }
}

/// A time of day: the last time that clocks of the zone showed it, or that of `today` or
/// `yesterday`.
fn by_the_clock(text: &str, now: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
    let today = now.to_zoned_datetime(zone.clone()).date();
    let (day, time) = match text.split_once(' ') {
        Some(("today", time)) => (Some(today), time),
        Some(("yesterday", time)) => (Some(today.yesterday().ok()?), time),
        _ => (None, text),
    };
    // Digits alone could be a year. With an offset it would need a date.
    let is_plain = |byte: u8| byte.is_ascii_digit() || b":.".contains(&byte);
    let time = time.trim();
    let is_time = time.contains(':') && time.bytes().all(is_plain);
    let time: Time = time.parse().ok().filter(|_| is_time)?;
    let on = |day: Date| shown_at(day.to_datetime(time), now, zone);
    match day {
        Some(day) => on(day),
        None => on(today).filter(|at| *at <= now).or_else(|| on(today.yesterday().ok()?)),
    }
}

/// An instant for people: local time with its offset, and UTC.
pub fn show(at_ns: u64) -> String {
    show_in(at_ns, TimeZone::system())
}

fn show_in(at_ns: u64, zone: TimeZone) -> String {
    let Ok(stamp) = Timestamp::from_nanosecond(i128::from(at_ns)) else { return format!("{at_ns} ns") };
    let local: ZonedDateTime = stamp.to_zoned_datetime(zone);
    let utc = stamp.to_zoned_datetime(TimeZone::UTC);
    if local.offset() == utc.offset() {
        return utc.strftime("%Y-%m-%d %H:%M:%S%.3f UTC").to_string();
    }
    format!("{} ({})", local.strftime("%Y-%m-%d %H:%M:%S%.3f%:z"), utc.strftime("%H:%M:%S UTC"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_795_269_787_000_000_000;

    fn at(text: &str) -> Result<Moment, String> {
        let stamp: Timestamp = text.parse().unwrap();
        Ok(Moment::At(stamp.as_nanosecond() as u64))
    }

    #[test]
    fn instants_are_read_in_local_time_utc_and_relative_to_now() {
        let berlin = TimeZone::fixed(jiff::tz::offset(1));
        let read = |text: &str| parse_in(text, NOW, &berlin).map_err(|failure| format!("{failure:?}"));
        assert_eq!(read("now"), Ok(Moment::Ago(Duration::ZERO)));
        assert_eq!(read("-5m"), Ok(Moment::Ago(Duration::from_secs(300))));
        assert_eq!(read("1970-01-02 01:00:00"), Ok(Moment::At(86_400_000_000_000)));
        assert_eq!(read("1970-01-02 00:00:00Z"), Ok(Moment::At(86_400_000_000_000)));
        assert_eq!(read("1970-01-02T02:00:00.5+02:00"), Ok(Moment::At(86_400_500_000_000)));
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
        assert_eq!(read("14:03"), at("2026-11-21T13:03:00Z"));
        assert_eq!(read("15:03:07"), Ok(Moment::At(NOW)), "this very second");
        assert_eq!(read("15:04"), at("2026-11-20T14:04:00Z"), "today it has not been yet");
        assert_eq!(read("yesterday 14:03"), at("2026-11-20T13:03:00Z"));
        assert_eq!(
            read("today 15:04"),
            at("2026-11-21T14:04:00Z"),
            "the server says that this lies in the future"
        );
        assert!(read("2026").is_err(), "a year is no time of day");
    }

    /// Zones by name come from the machine or, if it has none, from the program.
    #[test]
    fn time_that_clocks_show_twice_is_the_later_one_and_one_that_they_skip_is_the_moment_after() {
        let read = |zone: &str, now: &str, text: &str| {
            let now: Timestamp = now.parse().unwrap();
            let zone = TimeZone::get(zone).unwrap();
            parse_in(text, now.as_nanosecond() as u64, &zone).map_err(|failure| format!("{failure:?}"))
        };
        for (zone, now, text, means) in [
            // Clocks go back from 03:00 to 02:00 at 01:00 UTC.
            ("Europe/Berlin", "2026-10-25T01:50:00Z", "02:30", "2026-10-25T01:30:00Z"),
            ("Europe/Berlin", "2026-10-25T01:50:00Z", "2026-10-25 02:30", "2026-10-25T01:30:00Z"),
            ("Europe/Berlin", "2026-10-26T12:00:00Z", "yesterday 02:30", "2026-10-25T01:30:00Z"),
            ("Europe/Berlin", "2026-10-25T01:10:00Z", "02:30", "2026-10-25T00:30:00Z"),
            ("Europe/Berlin", "2026-10-25T00:50:00Z", "02:30", "2026-10-25T00:30:00Z"),
            ("Europe/Berlin", "2026-10-25T00:10:00Z", "02:30", "2026-10-24T00:30:00Z"),
            ("Europe/Berlin", "2026-10-25T00:50:00Z", "02:30+01:00", ""),
            ("Europe/Berlin", "2026-10-25T22:30:00Z", "23:45", "2026-10-24T21:45:00Z"),
            // And forward from 02:00 to 03:00.
            ("Europe/Berlin", "2026-03-29T10:00:00Z", "2026-03-29 02:30", "2026-03-29T01:00:00Z"),
            ("Europe/Berlin", "2026-03-29T10:00:00Z", "02:30", "2026-03-29T01:00:00Z"),
            ("Europe/Berlin", "2026-03-29T10:00:00Z", "02:00", "2026-03-29T01:00:00Z"),
            ("Europe/Berlin", "2026-03-29T00:30:00Z", "02:30", "2026-03-28T01:30:00Z"),
            ("Europe/Berlin", "2026-03-29T10:00:00Z", "03:00", "2026-03-29T01:00:00Z"),
            // By half an hour, from 02:00 to 01:30 and from 02:00 to 02:30.
            ("Australia/Lord_Howe", "2026-04-04T15:20:00Z", "01:45", "2026-04-04T15:15:00Z"),
            ("Australia/Lord_Howe", "2026-04-04T15:10:00Z", "01:45", "2026-04-04T14:45:00Z"),
            ("Australia/Lord_Howe", "2026-10-03T20:00:00Z", "02:15", "2026-10-03T15:30:00Z"),
        ] {
            match means {
                "" => assert!(read(zone, now, text).is_err(), "{text}"),
                _ => assert_eq!(read(zone, now, text), at(means), "{zone}: {text} at {now}"),
            }
        }
    }

    #[test]
    fn zones_are_in_the_program() {
        let bundled = jiff::tz::TimeZoneDatabase::bundled();
        for zone in ["Europe/Berlin", "Australia/Lord_Howe", "America/Havana", "UTC"] {
            assert!(bundled.get(zone).is_ok(), "{zone}");
        }
    }

    #[test]
    fn instants_are_shown_with_both_times() {
        let berlin = TimeZone::fixed(jiff::tz::offset(1));
        assert_eq!(show_in(86_400_000_000_000, berlin), "1970-01-02 01:00:00.000+01:00 (00:00:00 UTC)");
        assert_eq!(show_in(86_400_000_000_000, TimeZone::UTC), "1970-01-02 00:00:00.000 UTC");
    }
}
