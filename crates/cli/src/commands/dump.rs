//! `cairn dump`: files of a volume as a BSD dump, into a file, a pipe, or volumes.

pub mod volumes;

use std::ffi::OsStr;
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;

use cairn_api::client::Client;
use cairn_api::{self as api, ErrorKind};
use cairn_files::{path_bytes, path_text};

use super::image::files::{Handed, Target};
use super::volume::segment;
use super::{follow, has_failed, summary};
use crate::arguments::Dump;
use crate::exit::{Failure, PARTLY_DONE};
use crate::output::{Output, ago, name as called, note_line, path as shown, print_line, size, table};
use volumes::{Cutting, Volumes, keep_whole};

/// Runs the command.
pub fn run(asked: &Dump, client: &Client, output: Output) -> Result<(), Failure> {
    let base = format!("/v1/volumes/{}/files/dump", segment(&asked.name.volume)?);
    if asked.dates {
        let records: Vec<api::FileDumpRecord> = client.get(&base)?;
        output.show(&records, |records| dates(records));
        return Ok(());
    }
    let mut request = api::FileDumpRequest {
        snapshot: asked.name.snapshot.clone(),
        path: path_text(&asked.name.path),
        path_bytes: path_bytes(&asked.name.path),
        level: asked.level.number(),
        exclude: asked.exclude.iter().map(|pattern| pattern_text(pattern)).collect::<Result<_, _>>()?,
        ticket: None,
        volume_records: None,
        confirmed: false,
    };
    if asked.dry_run {
        let plan: api::FileDumpPlan = client.post(&format!("{base}/plan"), &request)?;
        if !output.json && !output.quiet {
            plan.why_all.iter().for_each(|why| note_line(why));
        }
        output.show(&plan, |plan| {
            let since = plan.since_ms.map(|since| format!(" since {}", ago(since))).unwrap_or_default();
            let (files, directories) = (plan.inodes - plan.directories, plan.directories);
            format!(
                "a dump of level {}{since} has {directories} directories and {files} other files, {} with holes; nothing was written",
                plan.level,
                size(plan.data_bytes),
            )
        });
        return Ok(());
    }
    let file = asked.file.clone().unwrap_or_else(|| "-".into());
    let to_pipe = file.as_os_str() == "-";
    if to_pipe && std::io::stdout().is_terminal() {
        return Err(Failure::new(
            ErrorKind::Usage,
            "a dump is not written to a terminal",
            "name a file with -f FILE, or pipe it on: `cairn dump -f - vol0 | ssh host cairn restore -rf -`",
        ));
    }
    // Standard output carries the dump.
    let told = Output { json: output.json && !to_pipe, ..output };
    let is_dump = |outcome| match outcome {
        Some(api::JobOutcome::FileDump(result)) => Some(result),
        _ => None,
    };
    let written = match Volumes::of(asked)? {
        Some(volumes) => {
            (request.volume_records, request.confirmed) = (Some(volumes.records), true);
            let cutting = Cutting::start(volumes, client)?;
            request.ticket = Some(cutting.handed.ticket.clone());
            let posted = client.post::<api::Job>(&base, &request).map_err(Failure::from);
            let job = posted.as_ref().ok().map(|job| job.id.clone());
            let outcome = posted.and_then(|job| follow(job, client, told));
            let is_over = outcome.is_ok() || job.is_none_or(|job| has_failed(&job, client));
            cutting.end(outcome.map(is_dump), is_over)?
        }
        None => {
            let mut target = match to_pipe {
                true => Target::pipe()?,
                false => {
                    keep_whole(std::slice::from_ref(&file), asked.overwrite)?;
                    Target::open(&file, asked.overwrite)?
                }
            };
            let handed = Handed::give(client.place(), std::iter::once(target.file()))?;
            request.ticket = Some(handed.ticket.clone());
            let job: api::Job = client.post(&base, &request)?;
            let id = job.id.clone();
            let outcome = follow(job, client, told).map_err(|failure| {
                let is_over = has_failed(&id, client);
                target.passes(is_over);
                if is_over { failure } else { stays(failure) }
            });
            let result = is_dump(outcome?);
            result.map(|result| Ok::<_, Failure>((result, target.keep().map_err(stays)?))).transpose()?
        }
    };
    let Some((result, name)) = written else { return Ok(()) };
    let tell = |line: &str| if to_pipe { note_line(line) } else { print_line(line) };
    if output.json {
        tell(&summary(&result).to_string());
    } else {
        result.failed.iter().for_each(|line| note_line(line));
        if !output.quiet {
            let since = result.since_ms.map(|since| format!(", what changed since {}", ago(since)));
            tell(&format!(
                "dumped {} of {} at level {}{}: {} files and directories, {} in {name}",
                shown(&result.path, result.path_bytes.as_deref()),
                result.snapshot,
                result.level,
                since.unwrap_or_default(),
                result.inodes,
                size(result.bytes),
            ));
        }
    }
    if result.failed.is_empty() { Ok(()) } else { Err(Failure::silent(PARTLY_DONE)) }
}

/// A pattern of excluded files. Patterns have a wildcard for any byte, and cannot contain bytes
/// that are not UTF-8.
fn pattern_text(pattern: &OsStr) -> Result<String, Failure> {
    pattern.to_str().map(str::to_owned).ok_or_else(|| {
        let what = format!("the pattern {} is not UTF-8", called(pattern.as_bytes()));
        Failure::new(
            ErrorKind::Usage,
            what,
            "write `?` for each byte that is not UTF-8; it matches any byte except a slash",
        )
    })
}

/// If the outcome of a dump is unknown, or a file does not get its name, the date of the dump may
/// be recorded: later levels then omit its content.
fn stays(mut failure: Failure) -> Failure {
    let next = format!(
        "{}; what there is stays as FILE.partial: it is whole if `cairn dump --dates` has this dump",
        failure.body.next
    );
    failure.body.next = next;
    failure
}

fn dates(records: &[api::FileDumpRecord]) -> String {
    let row = |record: &api::FileDumpRecord| {
        [
            shown(&record.path, record.path_bytes.as_deref()),
            record.level.to_string(),
            ago(record.date_ms),
            record.snapshot.clone(),
            size(record.bytes),
        ]
    };
    table(["PATH", "LEVEL", "MADE", "SNAPSHOT", "BYTES"], records.iter().map(row))
}
