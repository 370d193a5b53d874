//! `cairn image`: dumps to files and pipes, volumes out of dumps, and looking into dumps.
//!
//! Dump and restore are work of the server, which gets the open files; ls, verify and mount need no
//! server: after a disaster there may be none. With dumps in a bucket they need one, as the server
//! has the credentials; any server will do.

pub mod bucket;
mod dump;
pub mod files;
mod mount;
mod restore;
mod show;
mod tree;

use std::path::PathBuf;

use cairn_api::client::Client;
use cairn_api::{self as api, ErrorKind};

use mount::Dumps;

use super::volume::segment;
use crate::arguments::{Image, is_in_bucket, split_path};
use crate::exit::Failure;
use crate::output::{Output, ago, print_line, size, table};

/// Runs a command that needs the server.
pub fn run(command: Image, client: &Client, output: Output) -> Result<(), Failure> {
    match command {
        Image::Dump(asked) => dump::run(&asked, client, output),
        Image::Restore(asked) => restore::run(&asked, client, output),
        Image::Levels { volume, give_up: true, .. } => dump::give_up(&volume, client, output),
        Image::Levels { volume, forget, .. } => levels(&volume, forget, client, output),
        Image::Prune(asked) => bucket::prune(&asked, client, output),
        reading => read_bucket(reading, client, output),
    }
}

/// Looks into a dump in a bucket.
fn read_bucket(command: Image, client: &Client, output: Output) -> Result<(), Failure> {
    let one = |dumps: &[PathBuf]| match dumps {
        [reference] if is_in_bucket(reference) => bucket::Chain::find(reference, client).map(Dumps::Bucket),
        _ => Err(Failure::new(
            ErrorKind::Usage,
            "one dump in a bucket is read at a time",
            "name one, as BUCKET:VOLUME or BUCKET:VOLUME@DUMP; the dumps that it needs are found in the bucket",
        )),
    };
    match command {
        Image::Ls { files } => match &files[..] {
            [reference] => bucket::list(reference, client, output),
            [dumps @ .., path] => tree::ls(&one(dumps)?, path, output),
            [] => Ok(()),
        },
        Image::Cat { files } => {
            let (dumps, path) = split_path(&files);
            tree::cat(&one(dumps)?, path)
        }
        Image::Extract(asked) => tree::extract(&asked, &one(asked.split().0)?, output),
        Image::Verify { files, deep } => {
            let dumps = one(&files)?;
            match &dumps {
                Dumps::Bucket(chain) => show::verify_chain(&dumps, chain, deep, output),
                Dumps::Files(paths) => show::verify(paths, deep, output),
            }
        }
        Image::Mount(asked) => mount::run(&asked, &one(&asked.files)?, output),
        other => run_local(other, output),
    }
}

/// Runs a command on files alone.
pub fn run_local(command: Image, output: Output) -> Result<(), Failure> {
    match command {
        // An argument that is not a dump is a path in the dumps.
        Image::Ls { files } => match files.split_last() {
            Some((path, dumps)) if !dumps.is_empty() && !mount::is_dump(path) => {
                tree::ls(&Dumps::Files(dumps), path, output).map_err(|failure| match failure.body.error {
                    // More likely than a path that is not there it is a dump that is damaged.
                    ErrorKind::NotFound if path.is_file() => {
                        mount::open_files(std::slice::from_ref(path)).err().unwrap_or(failure)
                    }
                    _ => failure,
                })
            }
            _ => show::ls(mount::open_files(&files)?, output),
        },
        Image::Cat { files } => {
            let (dumps, path) = split_path(&files);
            tree::cat(&Dumps::Files(dumps), path)
        }
        Image::Extract(asked) => tree::extract(&asked, &Dumps::Files(asked.split().0), output),
        Image::Verify { files, deep } => show::verify(&files, deep, output),
        Image::Mount(asked) => mount::run(&asked, &Dumps::Files(&asked.files), output),
        Image::Dump(_) | Image::Restore(_) | Image::Prune(_) | Image::Levels { .. } => {
            unreachable!("these need a server and were run with one")
        }
    }
}

fn levels(volume: &str, forget: Option<u8>, client: &Client, output: Output) -> Result<(), Failure> {
    let path = format!("/v1/volumes/{}/image/levels", segment(volume)?);
    if let Some(level) = forget {
        // Do not ask for confirmation if the dumps do not exist.
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
            let place = record.bucket.clone().unwrap_or("files".to_owned());
            [
                record.level.to_string(),
                place,
                record.snapshot.clone(),
                made,
                size(record.bytes),
                note.to_owned(),
            ]
        };
        table(["LEVEL", "IN", "SNAPSHOT", "MADE", "BYTES", ""], records.iter().map(row))
    });
    if !output.json
        && let Some(unfinished) = dump::unfinished(volume, client)?
    {
        print_line(&format!(
            "unfinished: {} at level {}, begun {}, {} {}; `cairn image dump {volume} --resume` resumes it, --give-up abandons it",
            unfinished.snapshot,
            unfinished.level,
            ago(unfinished.begun_ms),
            size(unfinished.durable_bytes),
            unfinished.bucket.as_ref().map_or("on the disk".to_owned(), |bucket| format!("in {bucket}")),
        ));
    }
    Ok(())
}
