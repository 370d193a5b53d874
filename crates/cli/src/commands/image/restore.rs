//! `cairn image restore`: new restores, resumed restores, and restores that are given up.

use std::path::{Path, PathBuf};

use cairn_api::client::Client;
use cairn_api::{self as api, ErrorKind, HANDOVER_FILES_MAX, ResumeError};

use super::files::{self, Handed};
use crate::arguments::{RestoreImage, is_in_bucket};
use crate::commands::export::open_to_all;
use crate::commands::volume::{absolute, segment};
use crate::commands::{follow, print_findings, summary};
use crate::exit::Failure;
use crate::output::{Output, note_line, print_besides, print_line, size};

/// Runs the command.
pub fn run(asked: &RestoreImage, client: &Client, output: Output) -> Result<(), Failure> {
    segment(&asked.name)?;
    if asked.give_up {
        return give_up(&asked.name, client, output);
    }
    if asked.resume && unfinished(&asked.name, client).is_ok_and(|one| one.of_mirror) {
        return crate::commands::mirror::bucket::resume_restore(&asked.name, client, output);
    }
    let paths = match asked.files.is_empty() {
        true => begun_with(&asked.name, client)?,
        false => asked.files.clone(),
    };
    if let Some(first) = paths.first().filter(|first| is_in_bucket(first)) {
        return from_bucket(asked, first, paths.len(), client, output);
    }
    if paths.len() > HANDOVER_FILES_MAX {
        return Err(Failure::new(
            ErrorKind::Usage,
            format!("{} files are too many: {HANDOVER_FILES_MAX} are taken at once", paths.len()),
            "leave out dumps that a later one of a lower level replaces",
        ));
    }
    let sources = files::open_sources(&paths)?;
    let handed = Handed::give(client.place(), sources.iter())?;
    let request = api::RestoreRequest {
        name: asked.name.clone(),
        size_bytes: asked.size.map(|size| size.0),
        devices: absolute(&asked.device)?,
        ticket: handed.ticket.clone(),
        files: paths.iter().map(|path| name(path)).collect::<Result<_, _>>()?,
        bucket: None,
        accept_damage: asked.accept_damage,
        resume: asked.resume,
        anew: asked.anew,
    };
    let job = client.post("/v1/images/restore", &request)?;
    let outcome = follow(job, client, output).map_err(|failure| cut(failure, &asked.name, client))?;
    drop(handed);
    let Some(api::JobOutcome::Restore(result)) = outcome else { return Ok(()) };
    tell(&result, client, output)
}

/// Has the server restore a dump in a bucket and all that it needs.
fn from_bucket(
    asked: &RestoreImage,
    reference: &Path,
    count: usize,
    client: &Client,
    output: Output,
) -> Result<(), Failure> {
    if count > 1 {
        return Err(Failure::new(
            ErrorKind::Usage,
            "one dump in a bucket is restored at a time",
            "name one, as BUCKET:VOLUME or BUCKET:VOLUME@DUMP; the dumps that it needs are found in the bucket",
        ));
    }
    let request = api::RestoreRequest {
        name: asked.name.clone(),
        size_bytes: asked.size.map(|size| size.0),
        devices: absolute(&asked.device)?,
        ticket: String::new(),
        files: Vec::new(),
        bucket: Some(reference.display().to_string()),
        accept_damage: asked.accept_damage,
        resume: asked.resume,
        anew: asked.anew,
    };
    let job = client.post("/v1/images/restore", &request)?;
    let outcome = follow(job, client, output).map_err(|failure| cut(failure, &asked.name, client))?;
    let Some(api::JobOutcome::Restore(result)) = outcome else { return Ok(()) };
    tell(&result, client, output)
}

/// The name by which a later restore finds a file.
fn name(path: &Path) -> Result<String, Failure> {
    match path.as_os_str() == "-" {
        true => Ok(files::called(path)),
        false => Ok(std::path::absolute(path)?.display().to_string()),
    }
}

fn unfinished(volume: &str, client: &Client) -> Result<api::UnfinishedRestore, Failure> {
    let all: Vec<api::UnfinishedRestore> = client.get("/v1/images/restores")?;
    let found = all.into_iter().find(|one| one.volume == volume);
    found.ok_or_else(|| ResumeError::NoUnfinishedRestore { volume: volume.to_owned() }.into())
}

/// The files that the unfinished restore was begun with.
fn begun_with(volume: &str, client: &Client) -> Result<Vec<PathBuf>, Failure> {
    let pipe = files::called("-".as_ref());
    let named = unfinished(volume, client)?.files;
    if named.contains(&pipe) {
        let next = format!(
            "name all of them, and the pipe with `-`: cairn image restore {volume} --resume FILE... -"
        );
        return Err(Failure::new(ErrorKind::Usage, "a part of these dumps came through a pipe", next));
    }
    Ok(named.into_iter().map(PathBuf::from).collect())
}

fn give_up(volume: &str, client: &Client, output: Output) -> Result<(), Failure> {
    let before = unfinished(volume, client)?;
    output.confirm(&format!(
        "this discards the unfinished restore of {volume} from dumps of {}, with {} of {} written",
        before.dumped_from,
        size(before.durable_bytes),
        size(before.total_bytes)
    ))?;
    let () = client.delete(&format!("/v1/images/restores/{}", segment(volume)?))?;
    output.tell(&serde_json::json!({ "given_up": volume }), |_| format!("abandoned the restore of {volume}"));
    Ok(())
}

/// Without an answer it is unknown whether there is a restore to resume.
fn cut(mut failure: Failure, volume: &str, client: &Client) -> Failure {
    if unfinished(volume, client).is_err_and(|error| error.body.error != ErrorKind::NotFound) {
        let next = format!(
            "{}; then resume with `cairn image restore {volume} --resume`, or start again if there is nothing to resume",
            failure.body.next
        );
        failure.body.next = next;
    }
    failure
}

fn tell(result: &api::RestoreResult, client: &Client, output: Output) -> Result<(), Failure> {
    if output.json {
        print_line(&summary(result).to_string());
    } else {
        result.lost.iter().for_each(|line| print_besides(line));
        print_findings(result.findings.iter().map(String::as_str));
        if !output.quiet {
            let there = match result.there_bytes {
                0 => String::new(),
                there => format!(" ({} of them were there)", size(there)),
            };
            print_line(&format!(
                "restored {} into {}: {} snapshot(s), {} of blocks{there}; its present state is {}",
                result.dumped_from,
                result.volume,
                result.snapshots,
                size(result.data_bytes),
                result.snapshot,
            ));
            if let Some(open) = open_to_all(client, &result.volume)? {
                print_line(&open);
            }
        }
    }
    if result.lost.is_empty() && result.findings.is_empty() {
        return Ok(());
    }
    if !output.json {
        note_line(&format!(
            "{} record(s) could not be read; reads of the places in {} finding(s) will fail, all other data is there",
            result.lost.len(),
            result.findings.len()
        ));
    }
    Err(Failure::silent(crate::exit::PARTLY_DONE))
}
