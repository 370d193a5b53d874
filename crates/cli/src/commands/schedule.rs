//! `cairn snapshot schedule`.

use cairn_api::client::Client;
use cairn_api::{self as api, ErrorKind};

use super::volume::segment;
use crate::arguments::{Keeping, Schedule, Timing};
use crate::exit::Failure;
use crate::image_names::clock;
use crate::output::{Output, ago, interval, table};

/// Runs a command on schedules of snapshots.
pub fn run(command: Schedule, client: &Client, output: Output) -> Result<(), Failure> {
    match command {
        Schedule::Set { volume, label, timing, dry_run } => {
            let path = path(&volume, &label)?;
            let asked = api::SetSchedule { dry_run: true, ..request(&timing) };
            let would: api::Schedule = client.put(&path, &asked)?;
            if dry_run {
                output.show(&would, |would| format!("{}\nnothing was set", describe(would)));
                return Ok(());
            }
            if !would.deletes.is_empty() {
                let count = would.deletes.len();
                output
                    .confirm(&format!("by these rules the next run deletes {count} snapshots of {label}"))?;
            }
            let set: api::Schedule = client.put(&path, &request(&timing))?;
            output.tell(&set, describe);
        }
        Schedule::List { volume } => {
            let volumes = match volume {
                Some(volume) => vec![volume],
                None => {
                    let volumes: Vec<api::Volume> = client.get("/v1/volumes")?;
                    let open = |volume: &api::Volume| volume.role != api::VolumeRole::Unavailable;
                    volumes.into_iter().filter(open).map(|volume| volume.name).collect()
                }
            };
            let mut schedules: Vec<api::Schedule> = Vec::new();
            for volume in volumes {
                let path = format!("/v1/volumes/{}/schedules", segment(&volume)?);
                schedules.extend(client.get::<Vec<api::Schedule>>(&path)?);
            }
            output.show(&schedules, |schedules| list(schedules));
        }
        Schedule::Show { volume, label } => {
            let schedules: Vec<api::Schedule> =
                client.get(&format!("/v1/volumes/{}/schedules", segment(&volume)?))?;
            let Some(schedule) = schedules.into_iter().find(|schedule| schedule.label == label) else {
                let what = format!("{volume} has no schedule `{label}`");
                let next = format!("list what exists with `cairn snapshot schedule list {volume}`");
                return Err(Failure::new(ErrorKind::NotFound, what, next));
            };
            output.show(&schedule, describe);
        }
        Schedule::Remove { volume, label } => {
            let () = client.delete(&path(&volume, &label)?)?;
            let removed = serde_json::json!({ "removed": label, "volume": volume });
            output.tell(&removed, |_| format!("{label} runs no more; its snapshots stay"));
        }
        Schedule::Simulate { timing, length } => {
            let for_ms = u64::try_from(length.0.as_millis()).unwrap_or(u64::MAX);
            let request = api::Simulate { schedule: request(&timing), for_ms };
            let simulation: api::Simulation = client.post("/v1/schedules/simulate", &request)?;
            output.show(&simulation, |simulation| {
                let times = simulation.kept_ms.iter().map(|at| [clock(*at)]);
                format!(
                    "{} are made, and {} are there at once at most; at the end those of\n{}",
                    simulation.made,
                    simulation.most,
                    table(["MADE"], times)
                )
            });
        }
    }
    Ok(())
}

fn request(timing: &Timing) -> api::SetSchedule {
    api::SetSchedule {
        every_ms: timing.every.map(|every| u64::try_from(every.0.as_millis()).unwrap_or(u64::MAX)),
        cron: timing.cron.clone(),
        zone: timing.zone.clone(),
        keep: keep(&timing.keep),
        dry_run: false,
    }
}

/// The rules that flags name.
pub fn keep(keeping: &Keeping) -> api::Keep {
    api::Keep {
        last: keeping.keep_last,
        hourly: keeping.keep_hourly,
        daily: keeping.keep_daily,
        weekly: keeping.keep_weekly,
        monthly: keeping.keep_monthly,
        yearly: keeping.keep_yearly,
    }
}

fn path(volume: &str, label: &str) -> Result<String, Failure> {
    Ok(format!("/v1/volumes/{}/schedules/{}", segment(volume)?, segment(label)?))
}

/// When it runs, for people.
fn timing(schedule: &api::Schedule) -> String {
    match &schedule.cron {
        Some(cron) => format!("{cron} ({})", schedule.zone),
        None => format!("every {}", interval(schedule.every_ms)),
    }
}

/// The snapshots that it keeps, for people.
pub fn keeps(keep: &api::Keep) -> String {
    let rules = [
        (keep.last, "last"),
        (keep.hourly, "hourly"),
        (keep.daily, "daily"),
        (keep.weekly, "weekly"),
        (keep.monthly, "monthly"),
        (keep.yearly, "yearly"),
    ];
    let rules: Vec<String> =
        rules.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect();
    if rules.is_empty() { "all".to_owned() } else { rules.join(", ") }
}

fn next(schedule: &api::Schedule) -> String {
    schedule.next_ms.map_or("not while it is a mirror".to_owned(), ago)
}

fn describe(schedule: &api::Schedule) -> String {
    let mut text = format!(
        "{} of {}: {}, keeps {}; next {}",
        schedule.label,
        schedule.volume,
        timing(schedule),
        keeps(&schedule.keep),
        next(schedule)
    );
    if let Some(last) = schedule.last_ms {
        text.push_str(&format!("\nlast {}; {} snapshots are there", ago(last), schedule.snapshots.len()));
    }
    if let Some(problem) = &schedule.problem {
        text.push_str(&format!("\nproblem: {problem}"));
    }
    if !schedule.deletes.is_empty() {
        text.push_str(&format!("\nthe next run deletes {}", schedule.deletes.join(", ")));
    }
    text
}

/// The table of schedules.
pub fn list(schedules: &[api::Schedule]) -> String {
    let row = |schedule: &api::Schedule| {
        [
            schedule.volume.clone(),
            schedule.label.clone(),
            timing(schedule),
            keeps(&schedule.keep),
            schedule.snapshots.len().to_string(),
            match &schedule.problem {
                Some(_) => "failing".to_owned(),
                None => next(schedule),
            },
        ]
    };
    let failing = |schedule: &api::Schedule| {
        let api::Schedule { volume, label, problem, .. } = schedule;
        problem.as_ref().map(|problem| format!("\n{label} of {volume}: {problem}"))
    };
    let head = ["VOLUME", "LABEL", "WHEN", "KEEPS", "THERE", "NEXT"];
    let problems: String = schedules.iter().filter_map(failing).collect();
    table(head, schedules.iter().map(row)) + &problems
}
