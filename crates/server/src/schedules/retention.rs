//! Which snapshots stay: the newest, and the newest of each hour, day, week, month and year.

use std::collections::{BTreeMap, BTreeSet};

use cairn_api::Keep;
use chrono::{DateTime, Datelike, Timelike};
use chrono_tz::Tz;

use super::timetable::in_zone;

/// The key that is equal for two moments in the same hour, day and so on.
type Period = fn(&DateTime<Tz>) -> (i64, i64);

/// By its beginning in UTC: when clocks go back, an hour comes twice, and some places are half an
/// hour off.
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

/// The rules that go by periods, each with how many of them it keeps the newest of.
fn rules(keep: &Keep) -> [(u32, Period); 5] {
    [(keep.hourly, hour), (keep.daily, day), (keep.weekly, week), (keep.monthly, month), (keep.yearly, year)]
}

/// Returns for each moment, given in milliseconds since 1970 UTC, whether its snapshot stays. They
/// are in the order in which the snapshots were made: after a clock was set back that is not the
/// order of the times, and the newest is the one made last.
pub(crate) fn kept(keep: &Keep, made_ms: &[u64], zone: Tz) -> Vec<bool> {
    if *keep == Keep::default() {
        return vec![true; made_ms.len()];
    }
    let mut stays = vec![false; made_ms.len()];
    for stay in stays.iter_mut().rev().take(keep.last as usize) {
        *stay = true;
    }
    for (count, period) in rules(keep) {
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

/// The remaining moments of an increasing sequence, with the removal of all unneeded ones at each
/// step: the same result as repeated calls of [`kept`], at a cost that does not grow with the
/// number of remaining ones.
pub(super) struct Rolling {
    keep: Keep,
    zone: Tz,
    /// Those that stay, with how many rules want each; those that stay whatever comes have one
    /// more.
    stay: BTreeMap<u64, u32>,
    last: BTreeSet<u64>,
    rules: [Newest; 5],
}

/// The newest moment of each period.
#[derive(Default)]
struct Newest {
    by_period: BTreeMap<(i64, i64), u64>,
    by_time: BTreeMap<u64, (i64, i64)>,
}

impl Rolling {
    pub(super) fn new(keep: Keep, zone: Tz) -> Self {
        Self { keep, zone, stay: BTreeMap::new(), last: BTreeSet::new(), rules: Default::default() }
    }

    /// How many stay.
    pub(super) fn len(&self) -> u64 {
        self.stay.len() as u64
    }

    /// Those that stay, in order.
    pub(super) fn into_times(self) -> Vec<u64> {
        self.stay.into_keys().collect()
    }

    /// Adds a snapshot, and removes those that need not stay.
    pub(super) fn add(&mut self, at_ms: u64) {
        let at = in_zone(at_ms, self.zone);
        if at.is_none() || self.keep == Keep::default() {
            self.want(at_ms);
        }
        self.last.insert(at_ms);
        self.want(at_ms);
        if self.last.len() > self.keep.last as usize
            && let Some(gone) = self.last.pop_first()
        {
            self.give_up(gone);
        }
        let Some(at) = at else { return };
        for (index, (count, period)) in rules(&self.keep).into_iter().enumerate() {
            let period = period(&at);
            let rule = &mut self.rules[index];
            let mut gone = rule.by_period.insert(period, at_ms);
            if let Some(before) = gone {
                rule.by_time.remove(&before);
            }
            rule.by_time.insert(at_ms, period);
            if rule.by_time.len() > count as usize
                && let Some((oldest, period)) = rule.by_time.pop_first()
            {
                rule.by_period.remove(&period);
                gone = Some(oldest);
            }
            self.want(at_ms);
            gone.into_iter().for_each(|gone| self.give_up(gone));
        }
    }

    fn want(&mut self, at_ms: u64) {
        *self.stay.entry(at_ms).or_default() += 1;
    }

    fn give_up(&mut self, at_ms: u64) {
        if let Some(wanted) = self.stay.get_mut(&at_ms) {
            *wanted -= 1;
            if *wanted == 0 {
                self.stay.remove(&at_ms);
            }
        }
    }
}
