//! `cairn mirror drill`.

use cairn_api::client::Client;
use cairn_api::{self as api, DrillOutcome, ErrorKind};

use super::volume::segment;
use super::{follow, summary};
use crate::arguments::DrillMirror;
use crate::exit::Failure;
use crate::output::{Output, ago, duration, print_line, table};

/// Makes a drill, or ends their schedule.
pub fn run(asked: &DrillMirror, client: &Client, output: Output) -> Result<(), Failure> {
    let path = format!("/v1/mirrors/{}/drill", segment(&asked.name)?);
    if asked.forget {
        let () = client.delete(&path)?;
        let forgotten = serde_json::json!({ "forgotten": asked.name });
        output.tell(&forgotten, |_| format!("no more drills of {}", asked.name));
        return Ok(());
    }
    let ms = |interval: cairn_base::Interval| interval.0.as_millis().try_into().unwrap_or(u64::MAX);
    let request = api::DrillRequest {
        probe: asked.probe.clone(),
        timeout_ms: asked.timeout.map(ms),
        every_ms: asked.every.map(ms),
    };
    let job = client.post(&path, &request)?;
    let Some(api::JobOutcome::Drill(result)) = follow(job, client, output)? else { return Ok(()) };
    let passed = result.outcome == DrillOutcome::Passed;
    if output.json {
        print_line(&summary(&result).to_string());
    } else if !output.quiet {
        result.said.lines().for_each(|line| print_line(&format!("  {line}")));
        if passed {
            print_line(&format!(
                "{} was recovered from {}: served after {}, the probe passed after {}",
                result.mirror,
                result.snapshot,
                duration(result.served_ms),
                duration(result.recovery_ms)
            ));
        }
    }
    if passed {
        return Ok(());
    }
    let kind = match result.outcome {
        DrillOutcome::Cancelled => ErrorKind::Interrupted,
        _ => ErrorKind::Failed,
    };
    Err(Failure::new(
        kind,
        format!("the drill of {} did not pass: {}", result.mirror, result.reason()),
        "the mirror is as it was; look at its image with `cairn clone create`, or at the probe",
    ))
}

/// The table of drills.
pub fn list(drills: &[api::Drill]) -> String {
    let row = |drill: &api::Drill| {
        let last = match (&drill.last, drill.running) {
            (_, true) => "runs".to_owned(),
            (None, false) => "-".to_owned(),
            (Some(last), false) if last.outcome == DrillOutcome::Passed => {
                format!("passed in {}", duration(last.recovery_ms))
            }
            (Some(last), false) => last.reason(),
        };
        let passed = match (&drill.last, drill.age_ms) {
            (Some(last), Some(_)) if last.outcome == DrillOutcome::Passed => ago(last.at_ms),
            (_, Some(age)) => format!("{} ago", duration(age)),
            (_, None) => "never".to_owned(),
        };
        let every = drill.every_ms.map_or("on request".to_owned(), duration);
        let stale = if drill.stale { "STALE" } else { "" };
        [drill.mirror.clone(), every, passed, last, stale.to_owned()]
    };
    table(["MIRROR", "EVERY", "PASSED", "LAST", ""], drills.iter().map(row))
}
