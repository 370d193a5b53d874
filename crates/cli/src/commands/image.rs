//! `cairn image`: dumps to files and pipes, volumes out of dumps, and looking into dumps.
//!
//! Dump and restore are work of the server, which gets the open files; ls, verify and mount need no
//! server: after a disaster there may be none.

mod dump;
pub mod files;
mod mount;
mod restore;
mod show;
mod tree;

use cairn_api::client::Client;
use cairn_api::{self as api, ErrorKind};

use super::volume::segment;
use crate::arguments::{Image, split_path};
use crate::exit::Failure;
use crate::output::{Output, ago, print_line, size, table};

/// Runs a command that needs the server.
pub fn run(command: Image, client: &Client, output: Output) -> Result<(), Failure> {
    match command {
        Image::Dump(asked) => dump::run(&asked, client, output),
        Image::Restore(asked) => restore::run(&asked, client, output),
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
                tree::ls(dumps, path, output).map_err(|failure| match failure.body.error {
                    // More likely than a path that is not there it is a dump that is damaged.
                    ErrorKind::NotFound if path.is_file() => {
                        mount::open_files(std::slice::from_ref(path)).err().unwrap_or(failure)
                    }
                    _ => failure,
                })
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

fn levels(volume: &str, forget: Option<u8>, client: &Client, output: Output) -> Result<(), Failure> {
    let path = format!("/v1/volumes/{}/image/levels", segment(volume)?);
    if let Some(level) = forget {
        // Nothing is asked about dumps that do not exist.
        let records: Vec<api::DumpRecord> = client.get(&path)?;
        if !output.yes && !records.iter().any(|record| record.level >= level) {
            let what = format!("{volume} has no image dump of level {level} or higher");
            let next = format!("list what exists with `cairn image levels {volume}`");
            return Err(Failure::new(ErrorKind::NotFound, what, next));
        }
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
            "unfinished: {} at level {}, begun {}, {} on the disk; `cairn image dump {volume} --resume` resumes it, --give-up abandons it",
            unfinished.snapshot,
            unfinished.level,
            ago(unfinished.begun_ms),
            size(unfinished.durable_bytes),
        ));
    }
    Ok(())
}
