//! Which snapshots stay: the newest, and the newest of each hour, day, week, month and year.

use std::collections::BTreeSet;

use chrono::{DateTime, Datelike, Timelike};
use chrono_tz::Tz;

use super::timetable::in_zone;
use crate::api::Keep;

/// What makes two moments the same hour, day and so on.
type Period = fn(&DateTime<Tz>) -> (i64, i64);

/// By its beginning in UTC: when clocks go back, an hour comes twice, and some places are half an hour off.
fn hour(at: &DateTime<Tz>) -> (i64, i64) {
    let within = i64::from(at.minute()) * 60 + i64::from(at.second());
    (at.timestamp() - within, 0)
}

fn day(at: &DateTime<Tz>) -> (i64, i64) {
    (i64::from(at.year()), i64::from(at.ordinal()))
}

fn week(at: &DateTime<Tz>) -> (i64, i64) {
    let week = at.iso_week();
    (i64::from(week.year()), i64::from(week.week()))
}

fn month(at: &DateTime<Tz>) -> (i64, i64) {
    (i64::from(at.year()), i64::from(at.month()))
}

fn year(at: &DateTime<Tz>) -> (i64, i64) {
    (i64::from(at.year()), 0)
}

/// Says of each moment, given in milliseconds since 1970 UTC, whether its snapshot stays. They come in the order in which the snapshots were made: where a clock was put back, that is
/// not the order of the times, and the newest is the one that was made last.
pub(crate) fn kept(keep: &Keep, made_ms: &[u64], zone: Tz) -> Vec<bool> {
    if *keep == Keep::default() {
        return vec![true; made_ms.len()];
    }
    let mut stays = vec![false; made_ms.len()];
    for stay in stays.iter_mut().rev().take(keep.last as usize) {
        *stay = true;
    }
    let rules: [(u32, Period); 5] = [
        (keep.hourly, hour),
        (keep.daily, day),
        (keep.weekly, week),
        (keep.monthly, month),
        (keep.yearly, year),
    ];
    for (count, period) in rules {
        let (mut left, mut seen) = (count, BTreeSet::new());
        for (at_ms, stay) in made_ms.iter().zip(&mut stays).rev() {
            // A moment that no calendar has can't be judged: it stays.
            let Some(at) = in_zone(*at_ms, zone) else {
                *stay = true;
                continue;
            };
            if left > 0 && seen.insert(period(&at)) {
                left -= 1;
                *stay = true;
            }
        }
    }
    stays
}
