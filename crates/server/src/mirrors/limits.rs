//! How many bytes a second a mirror may take, by the time of day.
//!
//! `50M` at any time; `off` for no limit; `100M, mon-fri 08:00-18:00=10M, 22:00-06:00=off` with
//! windows: the first window that contains the wall clock applies, and otherwise the limit without
//! a time. A window past midnight belongs to the day on which it begins.

use std::fmt;
use std::str::FromStr;

use cairn_base::ByteSize;

use crate::error::ServerError;
use crate::peers::pace::RATE_MIN;

const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
const MINUTES_A_DAY: u16 = 24 * 60;
/// Windows of one mirror, at most.
const WINDOWS_MAX: usize = 64;

/// A window of a week.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Window {
    /// A bit for each day, Monday first.
    days: u8,
    /// Minutes since midnight; past the end of the day when it ends on the next one.
    from: u16,
    to: u16,
    rate: Option<u64>,
}

/// Limits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    always: Option<u64>,
    windows: Vec<Window>,
}

impl Limits {
    /// Bytes a second at a moment: the day of the week (0 is Monday) and minutes since midnight.
    pub(crate) fn at(&self, day: u8, minute: u16) -> Option<u64> {
        let inside = |window: &&Window| {
            let before = (day + 6) % 7;
            let today = window.days & (1 << day) != 0 && (window.from..window.to).contains(&minute);
            let since_yesterday = window.days & (1 << before) != 0
                && (window.from..window.to).contains(&(minute + MINUTES_A_DAY));
            today || since_yesterday
        };
        self.windows.iter().find(inside).map_or(self.always, |window| window.rate)
    }

    /// True for as fast as it goes, always.
    pub(crate) fn is_off(&self) -> bool {
        self.always.is_none() && self.windows.is_empty()
    }
}

const REFUSED: ServerError = ServerError::Invalid {
    fault: "invalid limit",
    next: "give `off`, bytes per second such as 50M (at least 16K), or a timetable such as `100M, mon-fri 08:00-18:00=10M`",
};

impl FromStr for Limits {
    type Err = ServerError;

    fn from_str(text: &str) -> Result<Self, ServerError> {
        let mut limits = Limits::default();
        let mut always = false;
        for part in text.split(',').map(str::trim) {
            match part.split_once('=') {
                None if always => return Err(REFUSED),
                None => (limits.always, always) = (rate(part)?, true),
                Some((when, amount)) => limits.windows.push(window(when.trim(), rate(amount.trim())?)?),
            }
        }
        if limits.windows.len() > WINDOWS_MAX { Err(REFUSED) } else { Ok(limits) }
    }
}

fn rate(text: &str) -> Result<Option<u64>, ServerError> {
    if text == "off" {
        return Ok(None);
    }
    let bytes = text.parse::<ByteSize>().map_err(|_| REFUSED)?.0;
    if bytes < RATE_MIN { Err(REFUSED) } else { Ok(Some(bytes)) }
}

fn window(text: &str, rate: Option<u64>) -> Result<Window, ServerError> {
    let (days, times) = match text.split_once(' ') {
        Some((days, times)) => (self::days(days)?, times.trim()),
        None => (0x7f, text),
    };
    let (from, to) = times.split_once('-').ok_or(REFUSED)?;
    let (from, to) = (minute(from)?, minute(to)?);
    if from == to || from == MINUTES_A_DAY {
        return Err(REFUSED);
    }
    let to = if to < from { to + MINUTES_A_DAY } else { to };
    Ok(Window { days, from, to, rate })
}

fn days(text: &str) -> Result<u8, ServerError> {
    let day = |text: &str| DAYS.iter().position(|day| text.eq_ignore_ascii_case(day)).ok_or(REFUSED);
    let (first, last) = match text.split_once('-') {
        Some((first, last)) => (day(first)?, day(last)?),
        None => (day(text)?, day(text)?),
    };
    let count = (last + 7 - first) % 7;
    Ok((0..=count).map(|step| 1 << ((first + step) % 7)).sum())
}

fn minute(text: &str) -> Result<u16, ServerError> {
    let (hours, minutes) = text.split_once(':').ok_or(REFUSED)?;
    let digits = |text: &str| text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(hours) || !digits(minutes) {
        return Err(REFUSED);
    }
    let (hours, minutes): (u16, u16) =
        (hours.parse().map_err(|_| REFUSED)?, minutes.parse().map_err(|_| REFUSED)?);
    let at = hours * 60 + minutes;
    if minutes < 60 && at <= MINUTES_A_DAY { Ok(at) } else { Err(REFUSED) }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_rate(f, self.always)?;
        for Window { days, from, to, rate } in &self.windows {
            f.write_str(", ")?;
            if *days != 0x7f {
                // They are a range of the week, which may go past Sunday.
                let first = (0..7u8).find(|day| days & (1 << day) != 0 && days & (1 << ((day + 6) % 7)) == 0);
                let first = first.unwrap_or(0);
                let last = (first + days.count_ones() as u8 - 1) % 7;
                f.write_str(DAYS[usize::from(first)])?;
                if first != last {
                    write!(f, "-{}", DAYS[usize::from(last)])?;
                }
                f.write_str(" ")?;
            }
            let end = if *to > MINUTES_A_DAY { to - MINUTES_A_DAY } else { *to };
            write!(f, "{:02}:{:02}-{:02}:{:02}=", from / 60, from % 60, end / 60, end % 60)?;
            write_rate(f, *rate)?;
        }
        Ok(())
    }
}

fn write_rate(f: &mut fmt::Formatter<'_>, rate: Option<u64>) -> fmt::Result {
    match rate {
        None => f.write_str("off"),
        Some(rate) if rate.is_multiple_of(1 << 20) => write!(f, "{}M", rate >> 20),
        Some(rate) if rate.is_multiple_of(1 << 10) => write!(f, "{}K", rate >> 10),
        Some(rate) => write!(f, "{rate}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const M: Option<u64> = Some(1 << 20);

    #[test]
    fn limits_are_read_written_and_asked_by_the_clock() {
        let limits: Limits = "4M, mon-fri 08:00-18:00=1M, sat-sun 22:00-06:00=off".parse().unwrap();
        assert_eq!(limits.at(0, 8 * 60), M);
        assert_eq!(limits.at(4, 18 * 60 - 1), M);
        assert_eq!(limits.at(4, 18 * 60), Some(4 << 20));
        assert_eq!(limits.at(5, 9 * 60), Some(4 << 20), "not at the weekend");
        assert_eq!(limits.at(5, 23 * 60), None);
        assert_eq!(limits.at(0, 5 * 60), None, "since Sunday night");
        assert_eq!(limits.at(5, 5 * 60), Some(4 << 20), "Friday night is none of them");
        for text in [
            "off",
            "50M",
            "16K",
            "123456",
            "off, 08:00-09:30=1M",
            "4M, mon-fri 08:00-18:00=1M, sat-sun 22:00-06:00=off",
            "4M, sun-mon 00:00-24:00=17K, wed 23:59-00:01=off",
        ] {
            let limits: Limits = text.parse().unwrap();
            assert_eq!(limits.to_string(), text);
        }
        assert!("off".parse::<Limits>().unwrap().is_off());
    }

    #[test]
    fn what_is_no_limit_is_refused() {
        for text in [
            "",
            "fast",
            "15K",
            "0",
            "1M,2M",
            "08:00-09:00",
            "08:00=1M",
            "8:00-9:00=1M",
            "25:00-26:00=1M",
            "08:60-09:00=1M",
            "08:00-08:00=1M",
            "day 08:00-09:00=1M",
            "mon-xxx 08:00-09:00=1M",
            "1M,",
        ] {
            assert!(text.parse::<Limits>().is_err(), "{text}");
        }
    }
}
