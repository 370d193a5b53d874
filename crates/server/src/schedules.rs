//! Scheduled snapshots: schedules of a volume, the thread that runs them, and their retention.
//!
//! A schedule has a label, and its snapshots are called LABEL.TIME, with the time in UTC. It
//! deletes only such snapshots, and never one that is held or that a client has open.
//! `schedules.json` in the folder of the volume stores them. One run makes up for all runs missed
//! while the server was stopped, or the volume was a mirror. A failed run is reported in `cairn
//! status` and retried at its next time.

use std::path::{Path, PathBuf};
use std::time::Duration;

use cairn_api as api;
use cairn_volume::{Snapshot, Volume};
use chrono_tz::Tz;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::error::ServerError;
use crate::state::Unread;
use crate::{names, state};

mod commands;
pub(crate) mod error;
pub(crate) mod hooks;
pub(crate) mod retention;
pub(crate) mod runner;
pub(crate) mod timetable;

use retention::Rolling;
use timetable::Timetable;

/// How often the thread looks whether something is due.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A run that is due for so long, and has not begun, is a problem.
const LATE: Duration = Duration::from_secs(300);
/// How long the end of the server waits for a disk that is being opened, and how often it looks.
const OPENING_PATIENCE: Duration = Duration::from_secs(3);
const OPENING_PAUSE: Duration = Duration::from_millis(10);
/// Disks that may hang at once while they are opened; past this many, missing disks are not
/// searched for until one of them answers.
const OPENINGS_MAX: usize = 64;
/// Longest label, in bytes: with the time after it a name has at most 64.
const LABEL_MAX: usize = 40;
/// First words of the names of snapshots that come and go with dumps and groups.
const RESERVED: [&str; 3] = ["image", "dump", "group"];
/// Runs of one simulation at most.
const SIMULATED_MAX: u64 = 200_000;
/// Seconds tried for a free name of a snapshot, before it fails.
const NAMES_TRIED: u64 = 60;
const TIME_FORMAT: &str = "%Y-%m-%dT%H-%M-%SZ";

/// A schedule as it is kept.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Plan {
    label: String,
    every_ms: Option<u64>,
    cron: Option<String>,
    zone: Option<String>,
    keep: api::Keep,
    /// When it was set.
    from_ms: u64,
    last_ms: Option<u64>,
    problem: Option<String>,
    /// By how much the clock was set back since the last run, if the schedule counts from that
    /// moment.
    put_back_ms: Option<u64>,
}

impl Plan {
    fn zone(&self) -> Result<Tz, ServerError> {
        timetable::zone(self.zone.as_deref())
    }

    fn timetable(&self) -> Result<Timetable, ServerError> {
        Timetable::read(self.every_ms, self.cron.as_deref(), self.zone()?, self.from_ms)
    }

    /// When it runs next.
    fn next_ms(&self, now_ms: u64) -> Option<u64> {
        self.timetable().ok()?.due(self.last_ms.unwrap_or(self.from_ms), now_ms)
    }

    /// Counts from now if the clock was set back to before the last run. True if it was.
    fn see_clock(&mut self, now_ms: u64) -> bool {
        let Ok(timetable) = self.timetable() else { return false };
        let by_ms = timetable.count_anew(&mut self.from_ms, &mut self.last_ms, now_ms);
        self.put_back_ms = by_ms.or(self.put_back_ms);
        by_ms.is_some()
    }
}

/// The content of `schedules.json`.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct SchedulesDocument {
    schedules: Vec<Plan>,
}

/// Writes the schedules of a new volume into its folder. They count from now.
pub(crate) fn write_default(folder: &Path, now_ms: u64) -> Result<(), ServerError> {
    let plan = |default: &api::DefaultSchedule| {
        let keep = api::Keep { last: default.last, ..api::Keep::default() };
        let every_ms = Some(default.every_ms);
        plan_of(default.label, &api::SetSchedule { every_ms, keep, ..api::SetSchedule::default() }, now_ms)
    };
    let schedules = api::DEFAULT_SCHEDULES.iter().map(plan).collect::<Result<_, _>>()?;
    state::save(&folder.join("schedules.json"), &SchedulesDocument { schedules })
}

/// The schedules of one volume.
pub(crate) struct Schedules {
    path: PathBuf,
    plans: Mutex<Vec<Plan>>,
    /// This program can't read the file: no schedule runs, and the file is not overwritten.
    unread: Mutex<Option<Unread>>,
}

impl Schedules {
    /// Loads the document in the folder of a volume.
    pub(crate) fn open(path: PathBuf) -> Self {
        let (document, unread) = state::known::<SchedulesDocument>(&path);
        let plans = Mutex::new(document.unwrap_or_default().schedules);
        Self { path, plans, unread: Mutex::new(unread) }
    }

    /// Loads the present document in the folder of the volume.
    pub(crate) fn read(&self) {
        let (document, unread) = state::known::<SchedulesDocument>(&self.path);
        *self.plans.lock() = document.unwrap_or_default().schedules;
        *self.unread.lock() = unread;
    }

    fn save(&self, plans: &[Plan]) -> Result<(), ServerError> {
        state::save(&self.path, &SchedulesDocument { schedules: plans.to_vec() })
    }

    fn check_read(&self) -> Result<(), ServerError> {
        state::refuse_unread(self.unread.lock().as_ref())
    }

    /// Lets schedules count from now if the clock was set back to before their last runs. This is
    /// saved, so that a restart does not begin the count again.
    fn see_clock(&self, volume: &str, now_ms: u64) {
        let mut plans = self.plans.lock();
        let mut changed = false;
        for plan in plans.iter_mut().filter_map(|plan| plan.see_clock(now_ms).then_some(plan)) {
            let by = put_back(plan.put_back_ms);
            tracing::warn!(
                volume,
                label = plan.label,
                by,
                "the clock was set back: a schedule counts from now"
            );
            changed = true;
        }
        if changed && let Err(error) = self.check_read().and_then(|()| self.save(&plans)) {
            tracing::warn!(volume, %error, "could not save that schedules count from now");
        }
    }
}

/// By how many milliseconds a run that was due at `next_ms` is late, if that is a problem. After a
/// start, and after the clock was set, a run gets a while.
pub(crate) fn late_by(next_ms: Option<u64>, now_ms: u64, uptime: Duration) -> Option<u64> {
    let by_ms = now_ms.checked_sub(next_ms?)?;
    let late_ms = LATE.as_millis() as u64;
    (by_ms >= late_ms && uptime >= LATE).then_some(by_ms)
}

/// By how much a clock was set back, for people: in its largest unit, rounded down.
pub(crate) fn put_back(by_ms: Option<u64>) -> String {
    let seconds = by_ms.unwrap_or_default() / 1000;
    let units = [(86_400, "days"), (3_600, "hours"), (60, "minutes")];
    match units.iter().find(|(unit, _)| seconds >= 2 * unit) {
        Some((unit, name)) => format!("{} {name}", seconds / unit),
        None => format!("{seconds} s"),
    }
}

/// The snapshots of a schedule, in the order of their creation: their times are from a clock that
/// may have been set back.
fn snapshots_of(label: &str, volume: &Volume) -> Vec<Snapshot> {
    let mut found: Vec<Snapshot> =
        volume.snapshots().into_iter().filter(|snapshot| is_of(label, &snapshot.name)).collect();
    found.sort_by_key(|snapshot| snapshot.id);
    found
}

/// True of `LABEL.TIME`.
fn is_of(label: &str, name: &str) -> bool {
    name.strip_prefix(label)
        .and_then(|rest| rest.strip_prefix('.'))
        .is_some_and(|time| chrono::NaiveDateTime::parse_from_str(time, TIME_FORMAT).is_ok())
}

fn made_ms(snapshot: &Snapshot) -> u64 {
    snapshot.created.0 / 1_000_000
}

/// Those of a label's snapshots that its rules no longer keep.
fn superfluous(plan: &Plan, snapshots: &[Snapshot]) -> Result<Vec<Snapshot>, ServerError> {
    let times: Vec<u64> = snapshots.iter().map(made_ms).collect();
    let stays = retention::kept(&plan.keep, &times, plan.zone()?);
    let gone = snapshots.iter().zip(stays).filter(|(snapshot, stays)| !stays && !snapshot.held);
    Ok(gone.map(|(snapshot, _)| snapshot.clone()).collect())
}

fn check_label(label: &str) -> Result<(), ServerError> {
    names::check("schedule", label)?;
    let first = label.split('.').next();
    if label.len() > LABEL_MAX
        || label.starts_with("mirror")
        || first.is_some_and(|first| RESERVED.contains(&first))
    {
        return Err(ServerError::Invalid {
            fault: "the label is longer than 40 characters, or begins with `mirror`, `image`, `dump` or `group`, which are reserved",
            next: "choose another label",
        });
    }
    Ok(())
}

/// The snapshots that a schedule would have made from `start_ms` on.
fn simulated(request: &api::Simulate, start_ms: u64) -> Result<api::Simulation, ServerError> {
    let plan = plan_of("simulated", &request.schedule, start_ms)?;
    let (timetable, zone) = (plan.timetable()?, plan.zone()?);
    let end_ms = start_ms.saturating_add(request.for_ms);
    let (mut made, mut most) = (0, 0);
    let mut kept = Rolling::new(plan.keep, zone);
    let mut at_ms = start_ms;
    while let Some(next) = timetable.next(at_ms).filter(|next| *next <= end_ms) {
        if made == SIMULATED_MAX {
            return Err(ServerError::Invalid {
                fault: "the schedule would run more than 200,000 times",
                next: "simulate a shorter time with --for",
            });
        }
        at_ms = next;
        made += 1;
        kept.add(next);
        most = most.max(kept.len());
    }
    Ok(api::Simulation { made, most, kept_ms: kept.into_times() })
}

fn plan_of(label: &str, request: &api::SetSchedule, now_ms: u64) -> Result<Plan, ServerError> {
    let plan = Plan {
        label: label.to_owned(),
        every_ms: request.every_ms,
        cron: request.cron.clone(),
        zone: request.zone.clone(),
        keep: request.keep,
        from_ms: now_ms,
        last_ms: None,
        problem: None,
        put_back_ms: None,
    };
    plan.timetable()?.due_at_some_time(now_ms)?;
    Ok(plan)
}

#[cfg(test)]
pub(crate) mod clocks;
#[cfg(test)]
mod tests;
