//! `cairn job`: work that the server does in the background, whichever command started it.

use cairn_api::client::Client;
use cairn_api::{self as api, ErrorKind, JobState};

use super::volume::segment;
use crate::arguments::Job;
use crate::exit::Failure;
use crate::output::{Output, ago, duration, fields, size, table};

/// Runs a command on jobs.
pub fn run(command: Job, client: &Client, output: Output) -> Result<(), Failure> {
    match command {
        Job::List { all } => {
            let mut jobs: Vec<api::Job> = client.get("/v1/jobs")?;
            jobs.retain(|job| all || job.state == JobState::Running);
            output.show(&jobs, |jobs| list(jobs));
        }
        Job::Show { id } => {
            let job = named(&id, client)?;
            output.show(&job, show);
        }
        Job::Cancel { id } => {
            let job = named(&id, client)?;
            if job.state != JobState::Running {
                let message = format!("{} of {} has ended and cannot be cancelled", job.kind, job.subject);
                let next = format!("see its result with `cairn job show {}`", job.id);
                return Err(Failure::new(ErrorKind::NotFound, message, next));
            }
            let now: api::Job = client.delete(&format!("/v1/jobs/{}", segment(&job.id)?))?;
            output.tell(&now, |now| format!("{} of {} stops at its next step", now.kind, now.subject));
        }
    }
    Ok(())
}

/// The job whose id is `id`, or begins with it.
fn named(id: &str, client: &Client) -> Result<api::Job, Failure> {
    let jobs: Vec<api::Job> = client.get("/v1/jobs")?;
    let mut found = jobs.into_iter().filter(|job| job.id.starts_with(id));
    match (found.next(), found.next()) {
        (Some(job), None) => Ok(job),
        (Some(_), Some(_)) => {
            let next = "give more of the id; `cairn job list --all` shows it";
            Err(Failure::new(ErrorKind::Usage, format!("several jobs begin with `{id}`"), next))
        }
        (None, _) => {
            let next = "list what exists with `cairn job list --all`";
            Err(Failure::new(ErrorKind::NotFound, format!("there is no job `{id}`"), next))
        }
    }
}

fn state(job: &api::Job) -> &'static str {
    match job.state {
        JobState::Running => "running",
        JobState::Done => "done",
        JobState::Failed => "failed",
    }
}

/// How far a job is: in percent where its length is known.
fn progress(job: &api::Job) -> String {
    match (job.done_bytes, job.total_bytes) {
        _ if job.state != JobState::Running => "-".to_owned(),
        (0, 0) => job.phase.clone(),
        (done, 0) => format!("{} {}", job.phase, size(done)),
        (done, total) => format!("{} {} %", job.phase, done.min(total).saturating_mul(100) / total),
    }
}

fn list(jobs: &[api::Job]) -> String {
    let row = |job: &api::Job| {
        let id: String = job.id.chars().take(8).collect();
        [id, job.kind.clone(), job.subject.clone(), state(job).to_owned(), ago(job.began_ms), progress(job)]
    };
    table(["ID", "KIND", "OF", "STATE", "BEGAN", "PROGRESS"], jobs.iter().map(row))
}

fn show(job: &api::Job) -> String {
    let mut rows = vec![
        ["id", job.id.as_str()].map(str::to_owned),
        ["kind", job.kind.as_str()].map(str::to_owned),
        ["of", job.subject.as_str()].map(str::to_owned),
        ["state", state(job)].map(str::to_owned),
        ["began".to_owned(), ago(job.began_ms)],
        ["took".to_owned(), duration(job.elapsed_ms)],
    ];
    if job.state == JobState::Running {
        let left = job.seconds_left.map(|seconds| format!(", {} left", duration(seconds * 1000)));
        rows.push(["progress".to_owned(), format!("{}{}", progress(job), left.unwrap_or_default())]);
    }
    rows.extend(job.notes.iter().map(|note| ["note".to_owned(), note.clone()]));
    if let Some(error) = &job.error {
        rows.push(["error".to_owned(), error.message.clone()]);
        rows.push(["next".to_owned(), error.next.clone()]);
    }
    fields(rows)
}
