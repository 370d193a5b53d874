//! Commands on schedules, and their runs: the methods of the server for them.

use std::sync::Arc;

use cairn_api as api;
use cairn_base::SnapshotId;
use cairn_volume::Snapshot;
use chrono_tz::Tz;

use crate::daemon::server::Server;
use crate::error::ServerError;
use crate::schedules::{
    NAMES_TRIED, Plan, TIME_FORMAT, check_label, late_by, plan_of, put_back, simulated, snapshots_of,
    superfluous, timetable,
};
use crate::volumes::open::OpenVolume;
use crate::volumes::snapshots::named;
use crate::work::aside::Aside;

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

    /// The schedules of all open volumes.
    pub(crate) fn all_schedules(&self) -> Vec<api::Schedule> {
        let of_volume = |open: &Arc<OpenVolume>| self.list_schedules(&open.name).unwrap_or_default();
        self.volumes.all().iter().flat_map(of_volume).collect()
    }

    fn show_schedule(&self, open: &OpenVolume, plan: &Plan) -> Result<api::Schedule, ServerError> {
        let snapshots = snapshots_of(&plan.label, &open.volume);
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

    /// Sets a schedule, or reports the effect of doing so.
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
        // Keep the time of the last run: it counts for the new timetable too.
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
    pub(super) fn run_schedules(self: &Arc<Self>, aside: &mut Aside) {
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
            // It may have been replaced or removed meanwhile.
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
        // A clock that was set back by whole hours shows the seconds of earlier runs again.
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
        // The commands around it may have taken minutes. The present settings decide which
        // snapshots are deleted. If the schedule was ended meanwhile, all stay.
        let plans = open.schedules.plans.lock().clone();
        let Some(plan) = plans.iter().find(|now| now.label == plan.label) else { return Ok(()) };
        let snapshots = snapshots_of(&plan.label, &open.volume);
        let is_open = |snapshot: &Snapshot| {
            let name = Some(snapshot.name.as_str());
            self.has_sessions(|export| export.volume == open.name && export.snapshot == name)
                || !self.mounts.of(|volume, snapshot| volume == open.name && snapshot == name).is_empty()
                || self.nfs_exports.has(|volume, snapshot| volume == open.name && snapshot == name)
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

    /// The snapshots that a schedule would have some time from now.
    pub(crate) fn simulate_schedule(&self, request: &api::Simulate) -> Result<api::Simulation, ServerError> {
        simulated(request, self.now_ms())
    }

    /// The problems of schedules.
    pub(crate) fn schedule_problems(&self) -> Vec<api::Problem> {
        let mut problems = Vec::new();
        let (now_ms, uptime) = (self.now_ms(), self.uptime());
        for open in self.volumes.all() {
            let plans = open.schedules.plans.lock();
            let failed = plans.iter().filter_map(|plan| Some((plan, plan.problem.as_ref()?)));
            problems.extend(failed.map(|(plan, problem)| api::Problem {
                subject: open.name.clone(),
                message: format!("the last snapshot of schedule {} failed: {problem}", plan.label),
                next: format!("it is tried again; see `cairn snapshot schedule list {}`", open.name),
            }));
            let late = plans.iter().filter(|_| !open.is_destination());
            let late = late.filter_map(|plan| Some((plan, late_by(plan.next_ms(now_ms), now_ms, uptime)?)));
            problems.extend(late.map(|(plan, by_ms)| api::Problem {
                subject: open.name.clone(),
                message: format!("schedule {} is late by {}", plan.label, put_back(Some(by_ms))),
                next: format!(
                    "an earlier snapshot or its hooks may hang: see `cairn volume hooks {}` and the log of the server",
                    open.name
                ),
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
