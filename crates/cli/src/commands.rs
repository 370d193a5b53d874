//! The commands that talk to a server: one function each, one file a noun.

mod access;
mod bucket;
mod clone;
pub mod config;
pub mod csi;
mod device;
mod drill;
mod dump;
mod export;
mod fleet;
mod group;
pub mod image;
mod job;
mod key;
mod lun;
mod mirror;
mod mount;
mod notify;
mod oidc;
mod peer;
mod quota;
mod restore;
mod schedule;
mod scrub;
pub mod serve;
pub mod service;
mod smb;
mod snapshot;
pub mod state;
mod status;
mod top;
pub mod trace;
mod volume;
mod web;

pub use mirror::unknown as unknown_to_check;
pub use volume::segment;

use std::time::{Duration, Instant};

use cairn_api::client::Client;
use cairn_api::{self as api, ErrorKind};

use crate::arguments::{Command, Image, Key, Restore, Trace};
use crate::exit::Failure;
use crate::output::{Output, json, note_line, print_besides, print_if_read};

/// Runs a command against the server.
pub fn run(command: Command, client: &Client, output: Output) -> Result<(), Failure> {
    match command {
        Command::Status => status::run(client, output),
        Command::Web(asked) => web::run(&asked, client, output),
        Command::Top { once } => top::run(once, client, output),
        Command::Job(command) => job::run(command, client, output),
        Command::State(command) => state::run(command, client, output),
        Command::Volume(command) => volume::run(command, client, output),
        Command::Device(command) => device::run(command, client, output),
        Command::History(command) => device::run_history(command, client, output),
        Command::Lun(command) => lun::run(command, client, output),
        Command::Export(command) => export::run(command, client, output),
        Command::Snapshot(command) => snapshot::run(command, client, output),
        Command::Group(command) => group::run(command, client, output),
        Command::Clone(command) => clone::run(command, client, output),
        Command::Peer(command) => peer::run(command, client, output),
        Command::Mirror(command) => mirror::run(command, client, output),
        Command::Mount(asked) => mount::run(asked, client, output),
        Command::Smb(command) => smb::run(command, client, output),
        Command::Unmount(asked) => mount::unmount(&asked, client, output),
        Command::Quota(command) => quota::run(command, client, output),
        Command::Dump(asked) => dump::run(&asked, client, output),
        Command::Image(command) => image::run(command, client, output),
        Command::Token(command) => access::run(command, client, output),
        Command::Oidc(command) => oidc::run(command, client, output),
        Command::Tls(command) => access::run_tls(&command, client, output),
        Command::Audit(command) => access::run_audit(&command, client, output),
        Command::Bucket(command) => bucket::run(command, client, output),
        Command::Key(_) => key::list(client, output),
        Command::Notify(command) => notify::run(command, client, output),
        Command::Fleet(command) => fleet::run(command, client, output),
        Command::Trace(Trace::Record(asked)) => trace::run_record(&asked, client, output),
        Command::Trace(Trace::List) => trace::list_recordings(client, output),
        Command::Plan(asked) => trace::run_live_plan(&asked, client, output),
        Command::Serve(_)
        | Command::Csi(_)
        | Command::Service(_)
        | Command::Config(_)
        | Command::Demo(_)
        | Command::Trace(_)
        | Command::Restore(_)
        | Command::Completions { .. }
        | Command::Man { .. } => {
            unreachable!("these need no server and were run before")
        }
    }
}

/// Runs a command that needs no server.
pub fn run_local(command: Image, output: Output) -> Result<(), Failure> {
    image::run_local(command, output)
}

/// Runs a command on key files, which needs no server.
pub fn run_key(command: &Key, output: Output) -> Result<(), Failure> {
    key::run_local(command, output)
}

/// Restores files of a BSD dump.
pub fn run_restore(asked: &Restore, output: Output) -> Result<(), Failure> {
    restore::run(asked, output)
}

/// The interval between two requests about a job that a person watches: ten changes a second look
/// like motion.
const ASK_EVERY: Duration = Duration::from_millis(100);
/// The same without a terminal: the answer reports the end of the job at once, and its notes may
/// come this late.
const ASK_RARELY: Duration = Duration::from_millis(500);

/// Findings that are printed for people.
const FINDINGS_SHOWN: usize = 20;

/// Follows a job to its end, with a bar for people and a line a second for programs.
fn follow(mut job: api::Job, client: &Client, output: Output) -> Result<Option<api::JobOutcome>, Failure> {
    let bar = output.bar(0);
    let mut interrupt = client.interrupts()?;
    let (mut told, mut noted) = (None, 0);
    let mut tell_notes = |job: &api::Job| {
        let fresh = job.notes.iter().skip(noted).filter(|_| !output.json && !output.quiet);
        bar.suspend(|| fresh.for_each(|note| note_line(note)));
        noted = job.notes.len();
    };
    while job.state == api::JobState::Running {
        tell_notes(&job);
        bar.set_length(job.total_bytes);
        bar.set_position(job.done_bytes);
        bar.set_message(format!("{}: {}", job.subject, job.phase));
        let second = job.elapsed_ms / 1000;
        let is_new = output.json && told.replace(second) != Some(second);
        // The reader of the output has disconnected: treat that as Ctrl-C, and not as success.
        let is_left = is_new && !print_if_read(&status_line(&job));
        let every = if bar.is_hidden() { ASK_RARELY } else { ASK_EVERY };
        let now = if is_left { None } else { later(&job, every, client, &mut interrupt)? };
        let Some(now) = now else {
            bar.finish_and_clear();
            // A dump that was whole in that very moment counts on the server: its files must stay
            // then.
            return interrupted(&job, client, &mut interrupt);
        };
        job = now;
    }
    tell_notes(&job);
    bar.finish_and_clear();
    if output.json {
        print_besides(&status_line(&job));
    }
    match job.error {
        Some(error) => Err(error.into()),
        None => Ok(job.outcome),
    }
}

/// How a job is once it is over, or after `within`; none where Ctrl-C comes before, also before a
/// server has answered that may never do.
fn later(
    job: &api::Job,
    within: Duration,
    client: &Client,
    interrupt: &mut tokio::signal::unix::Signal,
) -> Result<Option<api::Job>, Failure> {
    let (path, asked) = (format!("/v1/jobs/{}?within_ms={}", job.id, within.as_millis()), Instant::now());
    let now: Option<api::Job> =
        client.get_unless(&path, std::slice::from_mut(interrupt), ASK_EVERY, &|| false)?;
    // An early answer does not lead to more requests.
    let runs = now.as_ref().is_some_and(|now| now.state == api::JobState::Running);
    match runs && client.wait(within.saturating_sub(asked.elapsed()), interrupt) {
        true => Ok(None),
        false => Ok(now),
    }
}

/// Whether the server reports that a job has failed. A job may have ended if the server cannot be
/// reached.
fn has_failed(job: &str, client: &Client) -> bool {
    let now = client.get::<api::Job>(&format!("/v1/jobs/{job}"));
    now.is_ok_and(|job| job.state == api::JobState::Failed)
}

/// Handles Ctrl-C. The server ends work that only reads, that writes to the user's files, or that
/// changes nothing but a history. Other work continues there. This waits until the work has ended,
/// or until the next Ctrl-C, because it may have succeeded before the request to end.
fn interrupted(
    job: &api::Job,
    client: &Client,
    interrupt: &mut tokio::signal::unix::Signal,
) -> Result<Option<api::JobOutcome>, Failure> {
    let (kind, subject) = (&job.kind, &job.subject);
    if !matches!(
        kind.as_str(),
        "volume check"
            | "mirror verify"
            | "file dump"
            | "image dump"
            | "image restore"
            | "mirror drill"
            | "disable"
            | "bucket add"
            | "bucket check"
            | "image prune"
            | "mirror purge"
            | "mirror restore"
    ) {
        let next = match kind.as_str() {
            // All of it or nothing, and of several mirrors.
            "group reverse" => format!("see how it is with `cairn group show {subject}`"),
            // It only reports the state of the mirror: there is no update to end.
            "mirror repoint" => format!("see how it is with `cairn mirror status {subject}`"),
            "release" => "see how it is with `cairn status`".to_owned(),
            _ => format!("see how it is with `cairn status`; `cairn mirror abort {subject}` ends it"),
        };
        let what = format!("{kind} of {subject} continues on the server");
        return Err(Failure::new(ErrorKind::Interrupted, what, next));
    }
    let asked: Option<api::Job> = client.delete_unless(&format!("/v1/jobs/{}", job.id), interrupt)?;
    let Some(mut now) = asked else {
        let what = format!("{kind} of {subject} was to be ended, and the server does not answer");
        return Err(Failure::new(
            ErrorKind::Interrupted,
            what,
            "see how it is with `cairn status` once it does",
        ));
    };
    while now.state == api::JobState::Running {
        let Some(then) = later(&now, ASK_RARELY, client, interrupt)? else { break };
        now = then;
    }
    match now.state {
        api::JobState::Done => return Ok(now.outcome),
        // It waits for a disk, or for the other side, and looks at nothing meanwhile.
        api::JobState::Running => {
            let what = format!(
                "{kind} of {subject} was cancelled and has not stopped yet: it continues on the server until then"
            );
            let next = "see how it is with `cairn status`, and run it again later";
            return Err(Failure::new(ErrorKind::Interrupted, what, next));
        }
        api::JobState::Failed => {}
    }
    let what = format!("{kind} of {subject} was ended, on the server too");
    // An image dump or a restore may be resumed.
    let goes_on = matches!(kind.as_str(), "image dump" | "image restore" | "mirror restore");
    let next = now.error.filter(|_| goes_on).map(|error| error.next);
    Err(Failure::new(ErrorKind::Interrupted, what, next.unwrap_or_else(|| "run it again".to_owned())))
}

fn status_line(job: &api::Job) -> String {
    json(&serde_json::json!({
        "message_type": "status",
        "job": job.id,
        "phase": job.phase,
        "done_bytes": job.done_bytes,
        "total_bytes": job.total_bytes,
        "rate": job.rate,
        "seconds_left": job.seconds_left,
        "elapsed_ms": job.elapsed_ms,
        "notes": job.notes,
    }))
}

/// Prints the first findings for people: a damaged record has one for each of its blocks. A failure
/// to print is ignored, because the exit code reports the same.
fn print_findings<'a>(findings: impl ExactSizeIterator<Item = &'a str>) {
    let more = findings.len().saturating_sub(FINDINGS_SHOWN);
    findings.take(FINDINGS_SHOWN).for_each(print_besides);
    if more > 0 {
        print_besides(&format!("... and {more} more, which --json lists"));
    }
}

/// The last line of long work for programs.
fn summary<T: serde::Serialize>(value: &T) -> serde_json::Value {
    let mut summary = serde_json::json!({ "message_type": "summary" });
    if let (Some(summary), Ok(serde_json::Value::Object(value))) =
        (summary.as_object_mut(), serde_json::to_value(value))
    {
        summary.extend(value);
    }
    summary
}
