//! Instants as stores write them: `2026-11-27T21:05:09Z` in UTC.

use cairn_base::Timestamp;

const NANOSECONDS: u64 = 1_000_000_000;
const DAY_SECONDS: u64 = 86_400;

/// The instant, to the second below.
pub fn utc(at: Timestamp) -> String {
    let seconds = at.0 / NANOSECONDS;
    let (days, second) = (seconds / DAY_SECONDS, seconds % DAY_SECONDS);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// The instant that a store wrote; fractions of a second are dropped. None for any other text.
pub fn parse_utc(text: &str) -> Option<Timestamp> {
    let text = text.trim().strip_suffix('Z').or_else(|| text.trim().strip_suffix("+00:00"))?;
    let (date, time) = text.split_once('T')?;
    let time = time.split_once('.').map_or(time, |(whole, _)| whole);
    let numbers = |text: &str, separator: char| -> Option<[u64; 3]> {
        let mut parts = text.split(separator).map(|part| {
            part.bytes().all(|byte| byte.is_ascii_digit()).then(|| part.parse::<u64>().ok()).flatten()
        });
        let found = [parts.next()??, parts.next()??, parts.next()??];
        parts.next().is_none().then_some(found)
    };
    let [year, month, day] = numbers(date, '-')?;
    let [hour, minute, second] = numbers(time, ':')?;
    let valid = (1970..=2500).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second <= 60;
    let seconds = days(year, month, day) * DAY_SECONDS + hour * 3600 + minute * 60 + second;
    valid.then(|| Timestamp(seconds * NANOSECONDS))
}

/// Year, month and day of a number of days since 1970-01-01, by the algorithm of Howard Hinnant
/// (`chrono-Compatible Low-Level Date Algorithms`), for days from 1970 on.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

fn days(year: u64, month: u64, day: u64) -> u64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, year_of_era) = (year / 400, year % 400);
    let month_from_march = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    (era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year)
        .saturating_sub(719_468)
}

/// The year, and the month from 1 on, in UTC.
pub(crate) fn year_and_month(at: Timestamp) -> (u64, u64) {
    let (year, month, _) = civil(at.0 / NANOSECONDS / DAY_SECONDS);
    (year, month)
}
