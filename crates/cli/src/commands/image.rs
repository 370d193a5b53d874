//! `cairn image`: dumps to files and pipes, volumes out of dumps, and looking into dumps.
//!
//! Dump and restore are work of the server, which gets the open files; ls, verify and mount need no server: after a disaster there may be none.

mod dump;
pub mod files;
mod mount;
mod show;
mod tree;

use cairn_server::HANDOVER_FILES_MAX;
use cairn_server::api::{self, ErrorKind};

use super::volume::{absolute, segment};
use super::{follow, summary};
use crate::arguments::{Image, RestoreImage, split_path};
use crate::client::Client;
use crate::exit::Failure;
use crate::output::{Output, ago, print_line, size, table};
use files::Handed;

/// Runs a command that needs the server.
pub fn run(command: Image, client: &Client, output: Output) -> Result<(), Failure> {
    match command {
        Image::Dump(asked) => dump::run(&asked, client, output),
        Image::Restore(asked) => restore(&asked, client, output),
        Image::Levels { volume, give_up: true, .. } => dump::give_up(&volume, client, output),
        Image::Levels { volume, forget, .. } => levels(&volume, forget, client, output),
        local => run_local(local, output),
    }
}

/// Runs a command on files alone.
pub fn run_local(command: Image, output: Output) -> Result<(), Failure> {
    match command {
        // What is no dump is a path in those that are.
        Image::Ls { files } => match files.split_last() {
            Some((path, dumps)) if !dumps.is_empty() && !mount::is_dump(path) => {
                tree::ls(dumps, path, output)
            }
            _ => show::ls(&files, output),
        },
        Image::Cat { files } => {
            let (dumps, path) = split_path(&files);
            tree::cat(dumps, path)
        }
        Image::Extract(asked) => tree::extract(&asked, output),
        Image::Verify { files, deep } => show::verify(&files, deep, output),
        Image::Mount(asked) => mount::run(&asked, output),
        Image::Dump(_) | Image::Restore(_) | Image::Levels { .. } => {
            unreachable!("these need a server and were run with one")
        }
    }
}

fn restore(asked: &RestoreImage, client: &Client, output: Output) -> Result<(), Failure> {
    segment(&asked.name)?;
    if asked.files.len() > HANDOVER_FILES_MAX {
        return Err(Failure::new(
            ErrorKind::Usage,
            format!("{} files are too many: {HANDOVER_FILES_MAX} are taken at once", asked.files.len()),
            "leave out dumps that a later one of a lower level replaces",
        ));
    }
    let files = files::open_sources(&asked.files)?;
    let handed = Handed::give(client.place(), files.iter())?;
    let request = api::RestoreRequest {
        name: asked.name.clone(),
        size_bytes: asked.size.map(|size| size.0),
        devices: absolute(&asked.device)?,
        ticket: handed.ticket.clone(),
        files: asked.files.iter().map(|path| files::called(path)).collect(),
        accept_damage: asked.accept_damage,
    };
    let job = client.post("/v1/images/restore", &request)?;
    let outcome = follow(job, client, output)?;
    drop(handed);
    let Some(api::JobOutcome::Restore(result)) = outcome else { return Ok(()) };
    if output.json {
        print_line(&summary(&result).to_string());
    } else {
        result.lost.iter().chain(&result.findings).for_each(|line| print_line(line));
        if !output.quiet {
            print_line(&format!(
                "restored {} into {}: {} snapshot(s), {} of blocks; its present state is {}",
                result.dumped_from,
                result.volume,
                result.snapshots,
                size(result.data_bytes),
                result.snapshot,
            ));
        }
    }
    if result.lost.is_empty() && result.findings.is_empty() {
        return Ok(());
    }
    if !output.json {
        eprintln!(
            "{} record(s) could not be read; reads of what {} finding(s) name will fail, all else is there",
            result.lost.len(),
            result.findings.len()
        );
    }
    Err(Failure::silent(crate::exit::PARTLY_DONE))
}

fn levels(volume: &str, forget: Option<u8>, client: &Client, output: Output) -> Result<(), Failure> {
    let path = format!("/v1/volumes/{}/image/levels", segment(volume)?);
    if let Some(level) = forget {
        output.confirm(&format!(
            "this forgets the image dumps of {volume} of level {level} and higher, and deletes the snapshots that were made for them"
        ))?;
        let () = client.delete(&format!("{path}/{level}"))?;
        output
            .tell(&serde_json::json!({ "forgotten": level }), |_| format!("forgot level {level} and higher"));
        return Ok(());
    }
    let records: Vec<api::DumpRecord> = client.get(&path)?;
    output.show(&records, |records| {
        let row = |record: &api::DumpRecord| {
            let note = if record.lost { "its snapshot is gone" } else { "" };
            let made = ago(record.created_ms);
            [record.level.to_string(), record.snapshot.clone(), made, size(record.bytes), note.to_owned()]
        };
        table(["LEVEL", "SNAPSHOT", "MADE", "BYTES", ""], records.iter().map(row))
    });
    if !output.json
        && let Some(unfinished) = dump::unfinished(volume, client)?
    {
        print_line(&format!(
            "unfinished: {} at level {}, begun {}, {} on the disk; `cairn image dump {volume} --resume` goes on, --give-up forgets it",
            unfinished.snapshot,
            unfinished.level,
            ago(unfinished.begun_ms),
            size(unfinished.durable_bytes),
        ));
    }
    Ok(())
}
