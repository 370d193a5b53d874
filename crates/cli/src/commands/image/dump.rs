//! `cairn image dump`: new dumps, resumed dumps, and dumps that are given up.
//!
//! A part has its name only when the dump is whole and on the disk. The order is: the server
//! records the parts before the first byte, under temporary names. When all are durable, this
//! program gives them their names, and then reports that to the server, which counts the dump from
//! there on. After any interruption, `--resume` finds each part under one of its two names.

use std::fs::{self, File};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use cairn_api::client::Client;
use cairn_api::{self as api, ErrorKind, ResumeError};

use super::files::{self, Handed, Target};
use crate::arguments::DumpImage;
use crate::commands::volume::{absolute, segment};
use crate::commands::{follow, summary};
use crate::exit::Failure;
use crate::output::{Output, coming, note_line, print_line, size};

/// Runs the command.
pub fn run(asked: &DumpImage, client: &Client, output: Output) -> Result<(), Failure> {
    match (asked.dry_run, asked.resume) {
        (true, _) => plan(asked, client, output),
        (false, false) if asked.bucket.is_some() => into_bucket(asked, client, output),
        (false, true) => resume(asked, client, output),
        (false, false) => begin(asked, client, output),
    }
}

/// The dump of a volume that can be resumed.
pub fn unfinished(volume: &str, client: &Client) -> Result<Option<api::UnfinishedDump>, Failure> {
    Ok(client.get(&format!("/v1/volumes/{}/image/unfinished", segment(volume)?))?)
}

/// Gives up the interrupted dump, and deletes its files.
pub fn give_up(volume: &str, client: &Client, output: Output) -> Result<(), Failure> {
    let Some(before) = unfinished(volume, client)? else {
        return Err(ResumeError::NoUnfinishedDump { volume: volume.to_owned() }.into());
    };
    output.confirm(&format!(
        "this discards the unfinished image dump of {}, with {} written",
        before.snapshot,
        size(before.durable_bytes)
    ))?;
    let () = client.delete(&format!("/v1/volumes/{}/image/unfinished", segment(volume)?))?;
    let removed = remove_parts(&before, &[]);
    let told = serde_json::json!({ "given_up": before.id, "removed": removed });
    output.tell(&told, |_| match removed.is_empty() {
        true => format!("abandoned the dump of {}", before.snapshot),
        false => format!("abandoned the dump of {}, and removed {}", before.snapshot, removed.join(", ")),
    });
    Ok(())
}

fn request(asked: &DumpImage) -> api::DumpRequest {
    api::DumpRequest {
        snapshot: asked.name.snapshot.clone(),
        level: asked.level.number(),
        base: asked.base.clone(),
        compress: asked.compress,
        parts: Some(asked.streams.unwrap_or(asked.to.len().max(1) as u32)),
        anew: asked.anew,
        bucket: asked.bucket.clone(),
        lock_ms: asked.lock.map(|lock| lock.0.as_millis() as u64),
        ..api::DumpRequest::default()
    }
}

fn plan(asked: &DumpImage, client: &Client, output: Output) -> Result<(), Failure> {
    let path = format!("/v1/volumes/{}/image/plan", segment(&asked.name.volume)?);
    let plan: api::DumpPlan = client.post(&path, &request(asked))?;
    output.show(&plan, |plan| {
        let against = plan.base.as_ref().map(|base| format!(" against {base}")).unwrap_or_default();
        let packed = if asked.compress { ", less what packing saves" } else { "" };
        format!(
            "a dump of {} at level {}{against} has {} snapshot(s) and {} of blocks (everything: {}): {} bytes{packed}; nothing was written",
            plan.volume,
            plan.level,
            plan.snapshots,
            size(plan.data_bytes),
            size(plan.full_data_bytes),
            plan.bytes,
        ) + &plan.cost.as_ref().map(cost).unwrap_or_default()
    });
    Ok(())
}

/// The cost of a dump in a bucket.
fn cost(cost: &api::BucketCost) -> String {
    format!(
        "\nin the bucket, at most: {} objects, {} requests that write and {} that read, {}; by list prices of one vendor ${:.2} once and ${:.2} a month",
        cost.objects,
        cost.puts,
        cost.gets,
        size(cost.bytes),
        cost.dollars_once,
        cost.dollars_monthly,
    )
}

/// Requests a dump into a bucket, or resumes one.
fn into_bucket(asked: &DumpImage, client: &Client, output: Output) -> Result<(), Failure> {
    let volume = segment(&asked.name.volume)?;
    let request = api::DumpRequest { resume: asked.resume, ..request(asked) };
    let job = client.post(&format!("/v1/volumes/{volume}/image/dump"), &request)?;
    if let Some(api::JobOutcome::Dump(result)) = follow(job, client, output)? {
        let mut place = result.bucket.clone().unwrap_or_default();
        if let Some(until) = result.locked_until_ms {
            place += &format!(", locked; the lock ends {}", coming(until));
        }
        tell(&result, &[place], false, output);
    }
    Ok(())
}

fn is_pipe(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Standard output takes it.
fn goes_to_pipe(asked: &DumpImage) -> bool {
    !asked.resume && (asked.to.is_empty() || asked.to.iter().any(|path| is_pipe(path)))
}

fn begin(asked: &DumpImage, client: &Client, output: Output) -> Result<(), Failure> {
    segment(&asked.name.volume)?;
    let to_pipe = goes_to_pipe(asked);
    if to_pipe && (asked.to.len() > 1 || asked.streams.is_some_and(|streams| streams > 1)) {
        return Err(Failure::new(
            ErrorKind::Usage,
            "a pipe takes one stream",
            "name files with --to, or leave --streams out",
        ));
    }
    if to_pipe && std::io::stdout().is_terminal() {
        return Err(Failure::new(
            ErrorKind::Usage,
            "a dump is not written to a terminal",
            "name a file with --to FILE, or pipe it on: `cairn image dump vol0 | ssh host cairn image restore vol1 -`",
        ));
    }
    let paths = if to_pipe { Vec::new() } else { files::of_streams(&asked.to, asked.streams)? };
    // Before a file is touched: it may be a part of that dump.
    let before = unfinished(&asked.name.volume, client)?;
    if let Some(before) = &before
        && !asked.anew
    {
        let snapshot = before.snapshot.split_once('@').map_or("", |(_, snapshot)| snapshot).to_owned();
        return Err(ResumeError::DumpUnfinished { volume: asked.name.volume.clone(), snapshot }.into());
    }
    let targets = match to_pipe {
        true => vec![Target::pipe()?],
        false => Target::open_all(&paths, asked.overwrite, asked.anew)?,
    };
    // The server empties the named files, also if another target is a device. Standard output has
    // no name: its content stays.
    let names = match !to_pipe && targets.iter().any(Target::lasts) {
        true => absolute(&paths)?,
        false => Vec::new(),
    };
    let request = api::DumpRequest { files: names, ..request(asked) };
    write(asked, request, targets, before.as_ref(), client, output)
}

/// Resumes the interrupted dump.
fn resume(asked: &DumpImage, client: &Client, output: Output) -> Result<(), Failure> {
    let volume = &asked.name.volume;
    let Some(before) = unfinished(volume, client)? else {
        return Err(ResumeError::NoUnfinishedDump { volume: volume.clone() }.into());
    };
    if let Some(snapshot) = &asked.name.snapshot
        && before.snapshot != format!("{volume}@{snapshot}")
    {
        let next = format!("resume it: `cairn image dump {volume} --resume`");
        return Err(Failure::new(
            ErrorKind::Usage,
            format!("the unfinished dump is of {}", before.snapshot),
            next,
        ));
    }
    if before.bucket.is_some() && asked.to.is_empty() {
        return into_bucket(asked, client, output);
    }
    let paths: Vec<PathBuf> = match asked.to.is_empty() {
        true => before.files.iter().map(PathBuf::from).collect(),
        false => asked.to.clone(),
    };
    if paths.iter().any(|path| is_pipe(path)) {
        return Err(files::not_resumable());
    }
    if paths.len() != before.files.len() {
        return Err(Failure::new(
            ErrorKind::Usage,
            format!(
                "the unfinished dump has {} part(s), and {} file(s) are named",
                before.files.len(),
                paths.len()
            ),
            format!("name all of them in this order, wherever they are now: {}", before.files.join(" ")),
        ));
    }
    let reopen = |path: &PathBuf| Target::reopen(path, asked.overwrite);
    let targets = paths.iter().map(reopen).collect::<Result<Vec<_>, _>>()?;
    let request = api::DumpRequest { files: absolute(&paths)?, resume: true, ..api::DumpRequest::default() };
    write(asked, request, targets, None, client, output)
}

/// Requests the dump into the targets, gives them their names, and reports that. `before` is the
/// dump that this one replaces.
fn write(
    asked: &DumpImage,
    request: api::DumpRequest,
    mut targets: Vec<Target>,
    before: Option<&api::UnfinishedDump>,
    client: &Client,
    output: Output,
) -> Result<(), Failure> {
    let volume = segment(&asked.name.volume)?;
    let lasts = !request.files.is_empty() && targets.iter().all(Target::lasts);
    let handed = Handed::give(client.place(), targets.iter().map(Target::file))?;
    let request = api::DumpRequest { ticket: Some(handed.ticket.clone()), ..request };
    let job = client.post(&format!("/v1/volumes/{volume}/image/dump"), &request)?;
    targets.iter_mut().for_each(|target| target.passes(!lasts));
    if let Some(before) = before {
        remove_parts(before, &request.files);
    }
    // Standard output carries the dump.
    let to_pipe = goes_to_pipe(asked);
    let told = Output { json: output.json && !to_pipe, ..output };
    let result = match follow(job, client, told) {
        Ok(Some(api::JobOutcome::Dump(result))) => result,
        Ok(_) => return Ok(()),
        Err(failure) => return Err(cut(failure, volume, lasts, &mut targets, client)),
    };
    let names = targets.into_iter().map(Target::keep).collect::<Result<Vec<_>, _>>()?;
    drop(handed);
    if result.to_confirm {
        let confirm = api::ConfirmDump { id: result.id.clone() };
        let confirmed = client.post::<()>(&format!("/v1/volumes/{volume}/image/confirm"), &confirm);
        confirmed.map_err(|failure| {
            let next = format!("its files are whole and have their names; `cairn image dump {volume} --resume` tells the server");
            Failure::new(failure.error, failure.message, next)
        })?;
    }
    tell(&result, &names, to_pipe, output);
    Ok(())
}

/// A dump was interrupted: its files stay if the server can resume it, or cannot be reached.
fn cut(mut failure: Failure, volume: &str, lasts: bool, targets: &mut [Target], client: &Client) -> Failure {
    if !lasts {
        return failure;
    }
    match unfinished(volume, client) {
        Ok(None) => targets.iter_mut().for_each(|target| target.passes(true)),
        Ok(Some(_)) => {}
        Err(_) => {
            let next =
                format!("{}; then resume with `cairn image dump {volume} --resume`", failure.body.next);
            failure.body.next = next;
        }
    }
    failure
}

fn tell(result: &api::DumpResult, names: &[String], to_pipe: bool, output: Output) {
    let there = match result.there_bytes {
        0 => String::new(),
        there => format!(" ({} of them were there)", size(there)),
    };
    let people = format!(
        "dumped {} at level {}{}: {} of blocks, {} snapshot(s), {}{there} in {}",
        result.snapshot,
        result.level,
        result.base.as_ref().map(|base| format!(" against {base}")).unwrap_or_default(),
        size(result.data_bytes),
        result.snapshots,
        size(result.bytes),
        names.join(", "),
    );
    match (to_pipe, output.json) {
        (true, true) => note_line(&summary(result).to_string()),
        (true, false) if !output.quiet => note_line(&people),
        (false, true) => print_line(&summary(result).to_string()),
        (false, false) if !output.quiet => print_line(&people),
        _ => {}
    }
}

/// Deletes the files of a dump that was given up, except for files that another dump has now;
/// returns the deleted ones.
fn remove_parts(before: &api::UnfinishedDump, used: &[String]) -> Vec<String> {
    let mut removed = Vec::new();
    for name in before.files.iter().filter(|name| !used.contains(name)) {
        let temporary = files::temporary(Path::new(name));
        // As something else it is its owner's, and so it is under its name.
        let own = File::open(&temporary).is_ok_and(|file| {
            let empty = file.metadata().is_ok_and(|found| found.is_file() && found.len() == 0);
            file.try_lock().is_ok() && (empty || files::dump_in(&file).as_ref() == Some(&before.id))
        });
        if own && fs::remove_file(&temporary).is_ok() {
            removed.push(temporary.display().to_string());
        }
    }
    removed
}
