//! Snapshots by the clock: schedules of a volume, the thread that runs them, and what they keep.
//!
//! A schedule has a label, and its snapshots are called LABEL.TIME, with the time in UTC. Only such snapshots does it ever delete, and of those
//! none that is held and none that a client has open. `schedules.json` in the folder of the volume keeps them. What was missed while the
//! server was away, or the volume a mirror, is made up for by one run. A run that fails is told in `cairn status` and tried again at its next time.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cairn_api as api;
use cairn_base::SnapshotId;
use cairn_volume::Snapshot;
use chrono_tz::Tz;
use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};

use crate::contents::named;
use crate::error::ServerError;
use crate::names;
use crate::server::Server;
use crate::state::{self, Unread};
use crate::volumes::OpenVolume;

pub(crate) mod retention;
pub(crate) mod timetable;
use retention::Rolling;
use timetable::Timetable;

/// How often the thread looks whether something is due.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long the end of the server waits for a disk that is being opened, and how often it looks.
const OPENING_PATIENCE: Duration = Duration::from_secs(3);
const OPENING_PAUSE: Duration = Duration::from_millis(10);
/// Disks that may hang at once while they are opened; behind as many nothing is looked for that was missing, until one of them answers.
const OPENINGS_MAX: usize = 64;
/// Longest label, in bytes: with the time behind it a name has no more than 64.
const LABEL_MAX: usize = 40;
/// First words of the names of snapshots that come and go with dumps and groups.
const RESERVED: [&str; 3] = ["image", "dump", "group"];
/// Runs of one simulation at most.
const SIMULATED_MAX: u64 = 200_000;
/// Seconds of which one is free for the name of a snapshot, or it fails.
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
    /// By how much the clock was put back since the last run, where the schedule counts from that moment.
    #[serde(default)]
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

    /// Counts from now after the clock was put back to before the last run. True when it was.
    fn see_clock(&mut self, now_ms: u64) -> bool {
        let Ok(timetable) = self.timetable() else { return false };
        let by_ms = timetable.count_anew(&mut self.from_ms, &mut self.last_ms, now_ms);
        self.put_back_ms = by_ms.or(self.put_back_ms);
        by_ms.is_some()
    }
}

/// What `schedules.json` says.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Document {
    schedules: Vec<Plan>,
}

/// The schedules of one volume.
pub(crate) struct Schedules {
    path: PathBuf,
    plans: Mutex<Vec<Plan>>,
    /// The file says something that this program can't read: nothing runs, and nothing is written over it.
    unread: Mutex<Option<Unread>>,
}

impl Schedules {
    /// What the folder of a volume says.
    pub(crate) fn open(path: PathBuf) -> Self {
        let (document, unread) = state::known::<Document>(&path);
        let plans = Mutex::new(document.unwrap_or_default().schedules);
        Self { path, plans, unread: Mutex::new(unread) }
    }

    /// Takes in what the folder of the volume says by now.
    pub(crate) fn read(&self) {
        let (document, unread) = state::known::<Document>(&self.path);
        *self.plans.lock() = document.unwrap_or_default().schedules;
        *self.unread.lock() = unread;
    }

    fn save(&self, plans: &[Plan]) -> Result<(), ServerError> {
        state::save(&self.path, &Document { schedules: plans.to_vec() })
    }

    fn check_read(&self) -> Result<(), ServerError> {
        state::refuse_unread(self.unread.lock().as_ref())
    }

    /// Lets schedules count from now where the clock was put back to before their last runs. It is written down, so that a restart does not count from anew.
    fn see_clock(&self, volume: &str, now_ms: u64) {
        let mut plans = self.plans.lock();
        let mut changed = false;
        for plan in plans.iter_mut().filter_map(|plan| plan.see_clock(now_ms).then_some(plan)) {
            let by = put_back(plan.put_back_ms);
            tracing::warn!(
                volume,
                label = plan.label,
                by,
                "the clock was put back: a schedule counts from now"
            );
            changed = true;
        }
        if changed && let Err(error) = self.check_read().and_then(|()| self.save(&plans)) {
            tracing::warn!(volume, %error, "that schedules count from now was not written down");
        }
    }
}

/// By how much a clock was put back, for people: in its largest unit, rounded down.
pub(crate) fn put_back(by_ms: Option<u64>) -> String {
    let seconds = by_ms.unwrap_or_default() / 1000;
    let units = [(86_400, "days"), (3_600, "hours"), (60, "minutes")];
    match units.iter().find(|(unit, _)| seconds >= 2 * unit) {
        Some((unit, name)) => format!("{} {name}", seconds / unit),
        None => format!("{seconds} s"),
    }
}

/// The snapshots that a schedule has made, in the order in which it made them: their times are by a clock that may have been put back.
fn snapshots_of(label: &str, open: &OpenVolume) -> Vec<Snapshot> {
    let mut found: Vec<Snapshot> =
        open.volume.snapshots().into_iter().filter(|snapshot| is_of(label, &snapshot.name)).collect();
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
            what: "the label",
            rule: "it has at most 40 characters and does not begin with `mirror`, `image`, `dump` or `group`: such snapshots come and go with mirrors, dumps and groups",
        });
    }
    Ok(())
}

impl Server {
    fn now_ms(&self) -> u64 {
        self.clock.now().0 / 1_000_000
    }

    /// The schedules of a volume.
    pub(crate) fn list_schedules(&self, volume: &str) -> Result<Vec<api::Schedule>, ServerError> {
        let open = self.volumes.get(volume)?;
        let plans = open.schedules.plans.lock().clone();
        plans.iter().map(|plan| self.show_schedule(&open, plan)).collect()
    }

    fn show_schedule(&self, open: &OpenVolume, plan: &Plan) -> Result<api::Schedule, ServerError> {
        let snapshots = snapshots_of(&plan.label, open);
        let full = |snapshot: &Snapshot| format!("{}@{}", open.name, snapshot.name);
        Ok(api::Schedule {
            volume: open.name.clone(),
            label: plan.label.clone(),
            every_ms: plan.every_ms,
            cron: plan.cron.clone(),
            zone: plan.zone()?.name().to_owned(),
            keep: plan.keep,
            deletes: superfluous(plan, &snapshots)?.iter().map(full).collect(),
            snapshots: snapshots.iter().map(full).collect(),
            last_ms: plan.last_ms,
            next_ms: if open.is_destination() { None } else { plan.next_ms(self.now_ms()) },
            problem: plan.problem.clone(),
        })
    }

    /// Sets a schedule, or says what that would do.
    pub(crate) fn set_schedule(
        &self,
        volume: &str,
        label: &str,
        request: &api::SetSchedule,
    ) -> Result<api::Schedule, ServerError> {
        check_label(label)?;
        let open = self.volumes.get(volume)?;
        open.schedules.check_read()?;
        let mut plan = plan_of(label, request, self.now_ms())?;
        let mut plans = open.schedules.plans.lock();
        let old = plans.iter().position(|plan| plan.label == label);
        // What ran on time stays on time: the last run counts for the new timetable too.
        plan.last_ms = old.and_then(|at| plans[at].last_ms);
        if !request.dry_run {
            let mut changed = plans.clone();
            match old {
                Some(at) => changed[at] = plan.clone(),
                None => changed.push(plan.clone()),
            }
            open.schedules.save(&changed)?;
            *plans = changed;
        }
        drop(plans);
        self.show_schedule(&open, &plan)
    }

    /// Ends a schedule; its snapshots stay.
    pub(crate) fn remove_schedule(&self, volume: &str, label: &str) -> Result<(), ServerError> {
        let open = self.volumes.get(volume)?;
        open.schedules.check_read()?;
        let mut plans = open.schedules.plans.lock();
        let left: Vec<Plan> = plans.iter().filter(|plan| plan.label != label).cloned().collect();
        if left.len() == plans.len() {
            let name = format!("{volume} {label}");
            return Err(ServerError::NotFound {
                what: "schedule",
                name,
                list: "cairn snapshot schedule list VOLUME",
            });
        }
        open.schedules.save(&left)?;
        *plans = left;
        Ok(())
    }

    /// Runs every schedule that is due, those of each volume aside.
    fn run_schedules(self: &Arc<Self>, aside: &mut Aside) {
        for open in self.volumes.all() {
            if open.is_destination() {
                continue;
            }
            let now_ms = self.now_ms();
            open.schedules.see_clock(&open.name, now_ms);
            let is_due = |plan: &Plan| plan.next_ms(now_ms).is_some_and(|next| next <= now_ms);
            let due: Vec<Plan> = open.schedules.plans.lock().iter().filter(|p| is_due(p)).cloned().collect();
            if due.is_empty() {
                continue;
            }
            let (server, key) = (self.clone(), open.name.clone());
            aside.run(key, move || server.run_due(&open, due, now_ms));
        }
    }

    /// Runs schedules of one volume.
    fn run_due(&self, open: &OpenVolume, due: Vec<Plan>, now_ms: u64) {
        for plan in due {
            let outcome = self.run_schedule(open, &plan, now_ms);
            if let Err(error) = &outcome {
                tracing::warn!(volume = open.name, label = plan.label, %error, "a scheduled snapshot failed");
            }
            let mut plans = open.schedules.plans.lock();
            // It may have been set anew or removed meanwhile.
            if let Some(kept) = plans.iter_mut().find(|kept| kept.label == plan.label) {
                (kept.last_ms, kept.put_back_ms) = (Some(now_ms), None);
                kept.problem = outcome.err().map(|error| error.to_string());
            }
            if let Err(error) = open.schedules.save(&plans) {
                // The next start runs it once more than it should.
                tracing::warn!(volume = open.name, %error, "the last run of a schedule was not written down");
            }
        }
    }

    /// Makes one snapshot and deletes those that need not stay.
    fn run_schedule(&self, open: &OpenVolume, plan: &Plan, now_ms: u64) -> Result<(), ServerError> {
        let named_at = |at_ms: u64| {
            let time = timetable::in_zone(at_ms, Tz::UTC).map(|at| at.format(TIME_FORMAT).to_string());
            format!("{}.{}", plan.label, time.unwrap_or_default())
        };
        // A clock that was put back by whole hours shows the seconds of earlier runs again.
        let mut name = named_at(now_ms);
        for later_s in 1..NAMES_TRIED {
            if open.volume.snapshot_named(&name).is_none() {
                break;
            }
            name = named_at(now_ms.saturating_add(later_s * 1000));
        }
        let full = format!("{}@{name}", open.name);
        let make = || open.volume.create_snapshot(&name);
        open.snapshot_with(make)?.map_err(named(&open.name, &full))?;
        // The commands around it may have taken minutes: what its owner has said meanwhile holds for what goes, and once it is ended all stay.
        let plans = open.schedules.plans.lock().clone();
        let Some(plan) = plans.iter().find(|now| now.label == plan.label) else { return Ok(()) };
        let snapshots = snapshots_of(&plan.label, open);
        let is_open = |snapshot: &Snapshot| {
            let name = Some(snapshot.name.as_str());
            self.has_sessions(|export| export.volume == open.name && export.snapshot == name)
                || !self.mounts.of(|volume, snapshot| volume == open.name && snapshot == name).is_empty()
        };
        let locked = self.mirrors.locked(&open.name);
        let is_locked = |snapshot: &Snapshot| locked.iter().any(|one| one.snapshot == snapshot.id);
        let gone: Vec<SnapshotId> = superfluous(plan, &snapshots)?
            .iter()
            .filter(|snapshot| {
                !is_open(snapshot) && !is_locked(snapshot) && !open.volume.is_cloned(snapshot.id)
            })
            .map(|snapshot| snapshot.id)
            .collect();
        if !gone.is_empty() {
            open.volume.delete_snapshots(&gone).map_err(ServerError::volume(&open.name))?;
        }
        tracing::info!(
            volume = open.name,
            snapshot = name,
            deleted = gone.len(),
            "made a scheduled snapshot"
        );
        Ok(())
    }

    /// What a schedule would have made some time from now.
    pub(crate) fn simulate_schedule(&self, request: &api::Simulate) -> Result<api::Simulation, ServerError> {
        simulated(request, self.now_ms())
    }

    /// What is wrong with schedules.
    pub(crate) fn schedule_problems(&self) -> Vec<api::Problem> {
        let mut problems = Vec::new();
        for open in self.volumes.all() {
            let plans = open.schedules.plans.lock();
            let failed = plans.iter().filter_map(|plan| Some((plan, plan.problem.as_ref()?)));
            problems.extend(failed.map(|(plan, problem)| api::Problem {
                subject: open.name.clone(),
                message: format!("the last snapshot of schedule {} failed: {problem}", plan.label),
                next: format!("it is tried again; see `cairn snapshot schedule list {}`", open.name),
            }));
            let put_back_ones = plans.iter().filter(|plan| plan.put_back_ms.is_some());
            problems.extend(put_back_ones.map(|plan| api::Problem {
                subject: open.name.clone(),
                message: format!(
                    "the clock was put back by {}: schedule {} counts from that moment",
                    put_back(plan.put_back_ms),
                    plan.label
                ),
                next: format!(
                    "check the clock of this machine; the next run ends this message: `cairn snapshot schedule list {}`",
                    open.name
                ),
            }));
        }
        problems
    }
}

/// What a schedule would have made from `start_ms` on.
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
                what: "the time to simulate",
                rule: "it has at most 200,000 runs of the schedule",
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

/// What may take as long as its hooks or its devices do, and holds up nobody else's schedule: a thread each, one at a time of each name.
#[derive(Default)]
pub(crate) struct Aside(BTreeMap<String, JoinHandle<()>>);

impl Aside {
    /// Runs it on a thread of its own. Nothing while what ran last under that name still does: it is due again then.
    pub(crate) fn run(&mut self, name: String, work: impl FnOnce() + Send + 'static) {
        if self.0.get(&name).is_some_and(|thread| !thread.is_finished()) {
            return;
        }
        match std::thread::Builder::new().name("snapshot".to_owned()).spawn(work) {
            Ok(thread) => drop(self.0.insert(name, thread)),
            Err(error) => tracing::warn!(name, %error, "a scheduled snapshot waits for a thread"),
        }
    }

    /// Waits for all.
    fn end(self) {
        for (name, thread) in self.0 {
            if thread.join().is_err() {
                tracing::error!(name, "a scheduled snapshot had panicked");
            }
        }
    }
}

/// The looks whether devices are back, each with the time at which it began. A disk that hangs while it is opened holds up the look that opens it; a later one passes over it, and opens the others.
#[derive(Default)]
struct Openings(Vec<(Instant, JoinHandle<()>)>);

impl Openings {
    /// Opens what can be opened by now on a thread of its own, unless nothing waits or the last look may still come to its end.
    fn look(&mut self, server: &Arc<Server>) {
        self.0.retain(|(_, thread)| !thread.is_finished());
        let hangs = |(begun, _): &(Instant, JoinHandle<()>)| begun.elapsed() > OPENING_PATIENCE;
        if !self.0.iter().all(hangs) || self.0.len() > OPENINGS_MAX || !server.waits_for_devices() {
            return;
        }
        let server = server.clone();
        match std::thread::Builder::new().name("opening".to_owned()).spawn(move || server.open_waiting()) {
            Ok(thread) => self.0.push((Instant::now(), thread)),
            Err(error) => tracing::warn!(%error, "a look for devices that were missing waits for a thread"),
        }
    }

    /// Waits for one that is under way, for as long as a disk takes that does not hang: what is opened later is as after a kill.
    fn end(self) {
        let begun = Instant::now();
        for (_, thread) in self.0 {
            while !thread.is_finished() && begun.elapsed() < OPENING_PATIENCE {
                std::thread::sleep(OPENING_PAUSE);
            }
            match thread.is_finished() {
                true if thread.join().is_err() => {
                    tracing::error!("a look for devices that were missing had panicked")
                }
                true => {}
                false => tracing::warn!("a disk that is being opened does not answer, and is not waited for"),
            }
        }
    }
}

/// The thread that runs schedules, and looks whether devices are back that volumes wait for; it ends when this is dropped.
pub(crate) struct Runner {
    ending: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Runner {
    pub(crate) fn start(server: Arc<Server>) -> Result<Self, ServerError> {
        let ending = Arc::new((Mutex::new(false), Condvar::new()));
        let shared = ending.clone();
        let look = move || {
            let (ended, wake) = &*shared;
            let (mut aside, mut openings) = (Aside::default(), Openings::default());
            loop {
                openings.look(&server);
                server.run_schedules(&mut aside);
                server.run_groups(&mut aside);
                let mut ended = ended.lock();
                if !*ended {
                    wake.wait_for(&mut ended, LOOK_EVERY);
                }
                if *ended {
                    break;
                }
            }
            aside.end();
            openings.end();
        };
        let thread = std::thread::Builder::new().name("snapshots".to_owned()).spawn(look);
        let thread =
            thread.map_err(|source| ServerError::Thread { what: "the schedules of snapshots", source })?;
        Ok(Self { ending, thread: Some(thread) })
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        *self.ending.0.lock() = true;
        self.ending.1.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic was told by the thread that had it.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
pub(crate) mod clocks;
#[cfg(test)]
mod tests;
