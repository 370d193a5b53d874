//! `cairn mirror`.

use cairn_server::api;

use super::volume::{absolute, segment};
use super::{follow, summary};
use crate::arguments::Mirror;
use crate::client::Client;
use crate::exit::Failure;
use crate::output::{Output, ago, duration, interval, print_line, size, table};

/// Runs a command on mirrors.
pub fn run(command: Mirror, client: &Client, output: Output) -> Result<(), Failure> {
    match command {
        Mirror::Create { volume, token, every, name, device } => {
            let every_ms = every.map(|every| every.0.as_millis().try_into().unwrap_or(u64::MAX));
            let request = api::CreateMirror { volume, name, token, every_ms, devices: absolute(&device)? };
            let job: api::Job = client.post("/v1/mirrors", &request)?;
            transferred(job, client, output)?;
        }
        Mirror::Status { name: None } => {
            let mirrors: Vec<api::Mirror> = client.get("/v1/mirrors")?;
            output.show(&mirrors, |mirrors| list(mirrors));
        }
        Mirror::Status { name: Some(name) } => {
            let mirror: api::Mirror = client.get(&path(&name)?)?;
            output.show(&mirror, show);
        }
        Mirror::Update { name } => {
            let job: api::Job = client.post(&format!("{}/update", path(&name)?), &())?;
            transferred(job, client, output)?;
        }
        Mirror::Failover { name, dry_run } => failover(&name, dry_run, client, output)?,
        Mirror::Delete { name, dry_run } => {
            let mirror: api::Mirror = client.get(&path(&name)?)?;
            let what =
                format!("this ends the mirror of {} and deletes volume {name} here", mirror.source_volume);
            if dry_run {
                output.show(&mirror, |_| format!("{what}; nothing was done"));
                return Ok(());
            }
            output.confirm(&what)?;
            let () = client.delete(&path(&name)?)?;
            output.tell(&serde_json::json!({ "deleted": name }), |_| format!("deleted {name}"));
        }
    }
    Ok(())
}

fn transferred(job: api::Job, client: &Client, output: Output) -> Result<(), Failure> {
    let Some(api::JobOutcome::Mirror(mirror)) = follow(job, client, output)? else { return Ok(()) };
    if output.json {
        print_line(&summary(&mirror).to_string());
    } else if !output.quiet {
        let last = mirror.last.clone().unwrap_or_default();
        if last.up_to_date {
            print_line(&format!("{} is up to date: nothing had changed, nothing was sent", mirror.name));
            return Ok(());
        }
        print_line(&format!(
            "{} shows {} of the source: sent {} in {} (a full copy is {})",
            mirror.name,
            mirror.image.as_deref().unwrap_or("no image"),
            size(last.sent_bytes),
            duration(last.duration_ms),
            size(last.full_bytes),
        ));
    }
    Ok(())
}

fn failover(name: &str, dry_run: bool, client: &Client, output: Output) -> Result<(), Failure> {
    let path = format!("{}/failover", path(name)?);
    let before: api::Failover = client.post(&path, &api::FailoverRequest { dry_run: true })?;
    let what = format!(
        "{name} shows {}; what is lost: {}",
        before.image.as_deref().unwrap_or("no image"),
        loss(&before)
    );
    if dry_run {
        output.show(&before, |_| format!("{what}; nothing was done"));
        return Ok(());
    }
    output.confirm(&what)?;
    let outcome: api::Failover = client.post(&path, &api::FailoverRequest { dry_run: false })?;
    output.tell(&outcome, |outcome| {
        format!(
            "{name} takes writes now, and follows nobody; the source, if it still lives, does not know of this\n\
             lost: {}\n\
             next: connect the clients to its LUNs (`cairn lun list {name}`)",
            loss(outcome)
        )
    });
    Ok(())
}

/// What a failover loses, with what is known and what is not.
fn loss(outcome: &api::Failover) -> String {
    let within = outcome.lost_ms.map_or("(unknown time)".to_owned(), duration);
    match (outcome.lost_bytes, outcome.silent_ms) {
        (Some(bytes), Some(silent)) => format!(
            "{} of changes that were known {} ago, and whatever the source wrote since; all of it within the last {within}",
            size(bytes),
            duration(silent)
        ),
        _ => format!("what the source wrote in the last {within}"),
    }
}

fn path(name: &str) -> Result<String, Failure> {
    Ok(format!("/v1/mirrors/{}", segment(name)?))
}

/// The table of mirrors.
pub fn list(mirrors: &[api::Mirror]) -> String {
    let row = |mirror: &api::Mirror| {
        [
            mirror.name.clone(),
            stalled_or_state(mirror).to_owned(),
            format!("{} at {}", mirror.source_volume, mirror.source_address),
            mirror.image.clone().unwrap_or_else(|| "-".to_owned()),
            lag(mirror),
            interval(mirror.every_ms),
            mirror.last.as_ref().map_or("-".to_owned(), |last| size(last.sent_bytes)),
        ]
    };
    table(["NAME", "STATE", "SOURCE", "IMAGE", "LAG", "EVERY", "LAST SENT"], mirrors.iter().map(row))
}

/// How far behind it is, as far as is known: time and bytes.
fn lag(mirror: &api::Mirror) -> String {
    match (mirror.lag_ms, mirror.lag_bytes) {
        (Some(0), _) => "0".to_owned(),
        (Some(ms), Some(bytes)) => format!("{}, {}", duration(ms), size(bytes)),
        _ => "-".to_owned(),
    }
}

fn show(mirror: &api::Mirror) -> String {
    let mut text = format!(
        "name      {}\nstate     {}\nsource    {} at {}\nimage     {}, {} old\nlag       {}\nevery     {}\nupdates   {}\nsent      {}",
        mirror.name,
        stalled_or_state(mirror),
        mirror.source_volume,
        mirror.source_address,
        mirror.image.as_deref().unwrap_or("none"),
        mirror.image_age_ms.map_or("-".to_owned(), duration),
        lag(mirror),
        interval(mirror.every_ms),
        mirror.updates,
        size(mirror.sent_bytes),
    );
    if let Some(quiet) = mirror.quiet_ms.filter(|quiet| *quiet >= QUIET_WORTH_TELLING_MS) {
        text += &format!("\nstalled   nothing has come from the source for {}", duration(quiet));
    }
    if let Some(next) = mirror.next_ms {
        text += &format!("\nnext      {}", ago(next));
    }
    if let Some(last) = &mirror.last {
        text += &format!(
            "\nlast      {} in {}: changed {}, sent {}, a full copy is {}",
            ago(last.started_ms),
            duration(last.duration_ms),
            size(last.changed_bytes),
            size(last.sent_bytes),
            size(last.full_bytes),
        );
    }
    if let Some(problem) = &mirror.problem {
        text += &format!("\nproblem   {}\n  next: {}", problem.message, problem.next);
    }
    text
}

/// A transfer in which nothing came for so long looks stalled: neither disk nor comparison of maps takes that long, as a rule.
const QUIET_WORTH_TELLING_MS: u64 = 5_000;

fn stalled_or_state(mirror: &api::Mirror) -> &'static str {
    match mirror.quiet_ms {
        Some(QUIET_WORTH_TELLING_MS..) => "stalled",
        _ => state(mirror.state),
    }
}

fn state(state: api::MirrorState) -> &'static str {
    match state {
        api::MirrorState::Baseline => "baseline",
        api::MirrorState::Idle => "idle",
        api::MirrorState::Transferring => "transferring",
        api::MirrorState::Failing => "failing",
        api::MirrorState::FailedOver => "failed over",
    }
}
