use cairn_api::{Keep, SetSchedule, Simulate};
use chrono::{DateTime, Utc};
use chrono_tz::Tz;
use proptest::prelude::*;

use super::clocks::{self, Scheduled};
use super::retention::{Rolling, kept};
use super::timetable::{self, Timetable};
use super::{Plan, is_of, plan_of, put_back, simulated};

const HOUR: u64 = 3_600_000;
const DAY: u64 = 24 * HOUR;

fn ms(text: &str) -> u64 {
    let at: DateTime<Utc> = text.parse().expect("a moment");
    at.timestamp_millis() as u64
}

fn text(at_ms: u64) -> String {
    timetable::in_zone(at_ms, Tz::UTC).expect("a moment").to_rfc3339_opts(chrono::SecondsFormat::Secs, true)
}

fn cron(expression: &str, zone: Tz) -> Timetable {
    Timetable::read(None, Some(expression), zone, 0).expect("an expression")
}

/// The runs in a stretch of time.
fn runs(timetable: &Timetable, from: &str, to: &str) -> Vec<u64> {
    let (mut at, end) = (ms(from), ms(to));
    let next = || {
        at = timetable.next(at)?;
        (at <= end).then_some(at)
    };
    std::iter::from_fn(next).collect()
}

#[test]
fn intervals_are_counted_from_their_beginning() {
    let timetable = Timetable::read(Some(15_000), None, Tz::UTC, 1_000).expect("an interval");
    assert_eq!(timetable.next(0), Some(1_000));
    assert_eq!(timetable.next(1_000), Some(16_000));
    assert_eq!(timetable.next(15_999), Some(16_000));
    // Missed runs are one run: after it the next is on time again.
    assert_eq!(timetable.next(100_000), Some(106_000));
    // Past the end of time there is none.
    let never = Timetable::read(Some(u64::MAX - 1), None, Tz::UTC, 1_000).expect("an interval");
    assert_eq!(never.next(2_000), None);
    assert!(never.due_at_some_time(2_000).is_err());
}

#[test]
fn a_daily_run_is_there_once_on_every_day_of_a_year() {
    let berlin = Tz::Europe__Berlin;
    // At half past two clocks go forward over it in March, and back past it in October.
    let found = runs(&cron("30 2 * * *", berlin), "2026-01-01T00:00:00Z", "2026-12-31T23:59:59Z");
    assert_eq!(found.len(), 365);
    let mut days: Vec<_> =
        found.iter().map(|at| timetable::in_zone(*at, berlin).expect("a moment").date_naive()).collect();
    days.dedup();
    assert_eq!(days.len(), 365, "no day has two");
    assert!(found.contains(&ms("2026-03-29T01:00:00Z")), "the first moment after the gap");
    assert!(found.contains(&ms("2026-10-25T00:30:00Z")), "the first of the two");
}

#[test]
fn an_hourly_run_is_there_in_every_hour_of_a_year() {
    let found = runs(&cron("0 * * * *", Tz::Europe__Berlin), "2026-01-01T00:30:00Z", "2027-01-01T00:30:00Z");
    assert_eq!(found.len(), 365 * 24);
    assert!(found.windows(2).all(|pair| pair[1] - pair[0] == HOUR));
}

#[test]
fn what_is_no_timetable_is_refused() {
    let read = |every, cron| {
        Timetable::read(every, cron, Tz::UTC, 0).map(drop).expect_err("it is refused").to_string()
    };
    for bad in ["", "* * * *", "61 * * * *", "0 0 * * * *", "never"] {
        assert!(read(None, Some(bad)).contains("not a cron expression"), "{bad}");
    }
    assert!(read(Some(10), None).contains("shorter than 1 s"));
    assert!(read(None, None).contains("or neither"));
    assert!(read(Some(60_000), Some("* * * * *")).contains("or neither"));
    assert!(timetable::zone(Some("Mars/Olympus")).is_err());
    // A date that never comes is not an error, and has no run.
    assert_eq!(cron("0 0 30 2 *", Tz::UTC).next(0), None);
}

#[test]
fn the_newest_of_each_period_stays() {
    // Every six hours for 60 days.
    let start = ms("2026-01-01T00:00:00Z");
    let made: Vec<u64> = (0..240).map(|n| start + n * 6 * HOUR).collect();
    let stay = |keep: Keep| -> Vec<String> {
        let stays = kept(&keep, &made, Tz::UTC);
        made.iter().zip(stays).filter(|(_, stays)| *stays).map(|(at, _)| text(*at)).collect()
    };
    assert_eq!(stay(Keep::default()).len(), 240, "without a rule all stay");
    assert_eq!(stay(Keep { last: 2, ..Keep::default() }), ["2026-03-01T12:00:00Z", "2026-03-01T18:00:00Z"]);
    assert_eq!(stay(Keep { daily: 2, ..Keep::default() }), ["2026-02-28T18:00:00Z", "2026-03-01T18:00:00Z"]);
    // The first of March 2026 is a Sunday: its week ends with it.
    assert_eq!(stay(Keep { weekly: 2, ..Keep::default() }), ["2026-02-22T18:00:00Z", "2026-03-01T18:00:00Z"]);
    let months = ["2026-01-31T18:00:00Z", "2026-02-28T18:00:00Z", "2026-03-01T18:00:00Z"];
    assert_eq!(stay(Keep { monthly: 12, ..Keep::default() }), months);
    assert_eq!(stay(Keep { yearly: 3, ..Keep::default() }), ["2026-03-01T18:00:00Z"]);
}

#[test]
fn snapshots_that_are_made_after_a_clock_was_put_back_are_the_newest() {
    let at = |hours: &[u64]| -> Vec<u64> { hours.iter().map(|hour| 1000 * DAY + hour * HOUR).collect() };
    // The clock is set back by two hours after the third; the fourth is the newest of its hour.
    let made = at(&[8, 9, 10, 8, 9]);
    let last = Keep { last: 2, ..Keep::default() };
    assert_eq!(kept(&last, &made, Tz::UTC), [false, false, false, true, true]);
    let hourly = Keep { hourly: 3, ..Keep::default() };
    assert_eq!(kept(&hourly, &made, Tz::UTC), [false, false, true, true, true]);
    // One made when the clock showed 1970, or a distant year, takes the place of one period only.
    for wrong in [0, 40_000] {
        let made = [at(&[8, 9]), vec![wrong * DAY], at(&[10])].concat();
        assert_eq!(kept(&hourly, &made, Tz::UTC), [false, true, true, true]);
    }
}

#[test]
fn beat_goes_on_when_the_clock_is_put_back_to_before_it_was_set() {
    let every = Timetable::Every { every_ms: HOUR, from_ms: 100 * HOUR };
    assert_eq!(every.next(90 * HOUR), Some(91 * HOUR));
    assert_eq!(every.next(90 * HOUR + 1), Some(91 * HOUR));
    assert_eq!(every.next(100 * HOUR - 1), Some(100 * HOUR));
    assert_eq!(every.next(0), Some(HOUR));
    assert_eq!(Timetable::Every { every_ms: 1000, from_ms: 500 }.next(0), Some(500));
}

#[test]
fn days_are_those_of_the_place() {
    // 23:30 UTC is the next day in Berlin.
    let made = [ms("2026-01-10T22:30:00Z"), ms("2026-01-10T23:30:00Z")];
    let keep = Keep { daily: 5, ..Keep::default() };
    assert_eq!(kept(&keep, &made, Tz::UTC), [false, true]);
    assert_eq!(kept(&keep, &made, Tz::Europe__Berlin), [true, true]);
}

#[test]
fn an_hour_that_comes_twice_is_two_hours() {
    let made = [ms("2026-10-25T00:10:00Z"), ms("2026-10-25T01:10:00Z")];
    assert_eq!(kept(&Keep { hourly: 5, ..Keep::default() }, &made, Tz::Europe__Berlin), [true, true]);
}

#[test]
fn only_snapshots_of_the_schedule_are_its_own() {
    assert!(is_of("nightly", "nightly.2026-11-21T02-30-00Z"));
    for other in
        ["nightly", "nightly.", "nightly.by-hand", "nightly2.2026-11-21T02-30-00Z", "2026-11-21T02-30-00Z"]
    {
        assert!(!is_of("nightly", other), "{other}");
    }
}

/// A plan as the thread and `schedules.json` have it.
struct Kept(Plan);

impl Scheduled for Kept {
    fn look(&mut self, now_ms: u64) -> bool {
        self.0.see_clock(now_ms);
        let runs = self.0.next_ms(now_ms).is_some_and(|next| next <= now_ms);
        if runs {
            self.0.last_ms = Some(now_ms);
        }
        runs
    }

    fn restart(&mut self, _now_ms: u64) {
        let kept = serde_json::to_string(&self.0).expect("a plan");
        self.0 = serde_json::from_str(&kept).expect("a plan");
    }
}

#[test]
fn schedule_goes_on_within_a_period_whatever_the_clock_is_set_to() {
    let every = SetSchedule { every_ms: Some(HOUR), ..SetSchedule::default() };
    clocks::check("every", HOUR, |now| Kept(plan_of("x", &every, now).expect("a plan")));
    let cron = SetSchedule { cron: Some("7 * * * *".to_owned()), ..SetSchedule::default() };
    clocks::check("cron", HOUR, |now| Kept(plan_of("x", &cron, now).expect("a plan")));
    let short = SetSchedule { every_ms: Some(4000), ..SetSchedule::default() };
    clocks::check("short", 4000, |now| Kept(plan_of("x", &short, now).expect("a plan")));
}

#[test]
fn schedule_that_a_clock_put_back_has_left_waiting_says_so_until_its_next_run() {
    let request = SetSchedule { every_ms: Some(HOUR), ..SetSchedule::default() };
    let now = 100 * DAY;
    // Its last run is in the future.
    let mut plan = Plan { last_ms: Some(now + 30 * DAY), ..plan_of("x", &request, 0).expect("a plan") };
    assert!(plan.see_clock(now) && plan.put_back_ms == Some(30 * DAY), "it is told once");
    assert!(!plan.see_clock(now + 1));
    assert_eq!(plan.next_ms(now), Some(now + HOUR));
    assert_eq!(put_back(plan.put_back_ms), "30 days");
    assert_eq!(put_back(Some(90_000)), "90 s");
    // One that was set while the clock was ahead, and has not run.
    let mut plan = plan_of("x", &request, now + DAY).expect("a plan");
    assert!(plan.see_clock(now));
    assert_eq!(plan.next_ms(now), Some(now + HOUR));
}

#[test]
fn clock_that_is_adjusted_by_a_moment_repeats_no_run() {
    let daily = SetSchedule { cron: Some("30 2 * * *".to_owned()), ..SetSchedule::default() };
    let ran = ms("2026-11-21T02:30:00Z") + 10;
    let mut plan = Plan { last_ms: Some(ran), ..plan_of("x", &daily, 0).expect("a plan") };
    assert!(!plan.see_clock(ran - 50));
    assert_eq!(plan.next_ms(ran - 50), Some(ms("2026-11-22T02:30:00Z")));
}

#[test]
fn a_daily_run_is_there_once_on_days_of_any_length() {
    // Lord Howe moves its clocks by half an hour; 02:15 is skipped in October and 01:45 comes twice
    // in April.
    for (zone, hours) in [
        (Tz::Australia__Lord_Howe, ["15 2", "45 1", "0 0", "30 2"]),
        (Tz::Europe__Berlin, ["30 2", "0 3", "59 1", "0 2"]),
        (Tz::America__New_York, ["30 2", "30 1", "0 3", "59 23"]),
        (Tz::America__Havana, ["0 0", "30 0", "0 1", "59 23"]),
    ] {
        for at in hours {
            let found =
                runs(&cron(&format!("{at} * * *"), zone), "2026-01-01T14:00:00Z", "2026-12-31T14:00:00Z");
            let mut days: Vec<_> = found
                .iter()
                .map(|at| timetable::in_zone(*at, zone).expect("a moment").date_naive())
                .collect();
            let count = days.len();
            days.dedup();
            assert_eq!(days.len(), count, "{zone} {at}: no day has two");
            assert_eq!(count, 364, "{zone} {at}: no day has none");
        }
    }
}

#[test]
fn simulation_of_many_runs_of_which_many_stay_is_over_before_its_client_gives_up() {
    // A snapshot every five minutes; one for each hour of the run stays.
    const DAYS: u64 = 680;
    let keep = Keep { hourly: DAYS as u32 * 24, ..Keep::default() };
    let schedule = SetSchedule { every_ms: Some(HOUR / 12), keep, ..SetSchedule::default() };
    let begun = std::time::Instant::now();
    let simulation = simulated(&Simulate { schedule, for_ms: DAYS * DAY }, 20_000 * DAY).expect("it is one");
    assert!(begun.elapsed() < std::time::Duration::from_secs(60), "it took {:?}", begun.elapsed());
    assert_eq!((simulation.made, simulation.most), (DAYS * 24 * 12, DAYS * 24));
    assert_eq!(simulation.kept_ms.len() as u64, DAYS * 24);
    assert_eq!(simulation.kept_ms.last(), Some(&((20_000 + DAYS) * DAY)));
}

proptest! {
    #[test]
    fn rules_only_add_to_what_stays_and_never_need_more_than_they_say(
        gaps in proptest::collection::vec(1u64..3 * DAY, 1..200),
        (last, hourly, daily, weekly) in (0u32..5, 0u32..30, 0u32..10, 0u32..6),
        (monthly, yearly) in (0u32..5, 0u32..3),
    ) {
        let mut at = ms("2025-12-01T00:00:00Z");
        let made: Vec<u64> = gaps.iter().map(|gap| { at += gap; at }).collect();
        let keep = Keep { last, hourly, daily, weekly, monthly, yearly };
        let stays = kept(&keep, &made, Tz::Europe__Berlin);
        let count = stays.iter().filter(|stays| **stays).count() as u32;
        if keep != Keep::default() {
            prop_assert!(count <= last + hourly + daily + weekly + monthly + yearly);
            prop_assert!(stays[stays.len() - 1], "the newest always stays");
            // Deleting the unneeded ones, and judging again, deletes no more.
            let left: Vec<u64> = made.iter().zip(&stays).filter(|(_, s)| **s).map(|(at, _)| *at).collect();
            prop_assert!(kept(&keep, &left, Tz::Europe__Berlin).iter().all(|stays| *stays));
        }
        // Judged run by run, on the remaining ones each time, the same stay.
        let mut one_by_one = Rolling::new(keep, Tz::Europe__Berlin);
        let mut left: Vec<u64> = Vec::new();
        for at in &made {
            left.push(*at);
            let mut stays = kept(&keep, &left, Tz::Europe__Berlin).into_iter();
            left.retain(|_| stays.next().unwrap_or(true));
            one_by_one.add(*at);
            prop_assert_eq!(one_by_one.len(), left.len() as u64);
        }
        prop_assert_eq!(one_by_one.into_times(), left);
        let more = kept(&Keep { daily: daily + 1, last: last.max(1), ..keep }, &made, Tz::Europe__Berlin);
        if keep != Keep::default() {
            prop_assert!(stays.iter().zip(more).all(|(before, after)| after || !before));
        }
    }
}
