//! `cairn state`.

use cairn_api::client::Client;
use cairn_api::{self as api, ErrorKind};

use super::serve;
use crate::arguments::{Global, StateFile};
use crate::exit::Failure;
use crate::output::{Output, ago, size};

/// Runs a command on state files.
pub fn run(command: StateFile, client: &Client, output: Output) -> Result<(), Failure> {
    match command {
        StateFile::List => {
            let files: Vec<api::DamagedFile> = client.get("/v1/state")?;
            output.show(&files, |files| match files.is_empty() {
                true => "all state files can be read".to_owned(),
                false => files.iter().map(show).collect::<Vec<_>>().join("\n"),
            });
        }
        StateFile::Restore { file: Some(file), previous, from: None } => {
            let request = api::RestoreState { file: absolute(&file), previous };
            let () = client.post("/v1/state/restore", &request)?;
            output.tell(&serde_json::json!({ "restored": file }), |_| match previous {
                true => format!(
                    "loaded the previous generation of {file}\nnext: check the object that it belongs to; a mirror stays paused until `cairn mirror resume`"
                ),
                false => format!("{file} was taken in"),
            });
        }
        StateFile::GiveUp { file, dry_run } => give_up(&file, dry_run, client, output)?,
        StateFile::Backup { .. } | StateFile::Restore { .. } => {
            unreachable!("these need no server and were run before")
        }
    }
    Ok(())
}

/// Runs a command on the data directory itself: with and without a server.
pub fn run_local(command: StateFile, global: &Global, output: Output) -> Result<(), Failure> {
    if global.server.is_some() {
        return Err(Failure::new(
            ErrorKind::Usage,
            "the state of a server is in its data directory, on its own machine",
            "run it there with --data DIR",
        ));
    }
    let data = global.data.clone().unwrap_or_else(|| api::DEFAULT_DATA.into());
    match command {
        StateFile::Backup { to, overwrite } => {
            let done = serve::back_up_state(&data, &to, overwrite)?;
            output.tell(&done, |done| {
                format!(
                    "{} has the state of {}: {} files, {}\nit is as secret as a password; the data of volumes is not in it",
                    done.file,
                    data.display(),
                    done.files,
                    size(done.bytes)
                )
            });
        }
        StateFile::Restore { from: Some(from), .. } => {
            let done = serve::restore_state(&from, &data)?;
            output.tell(&done, |done| {
                format!(
                    "{} has the state in {}: {} files\nnext: put the devices of its volumes in their places, and start it with `cairn serve --data {0}`; never run it beside the server that the backup is of",
                    data.display(),
                    done.file,
                    done.files
                )
            });
        }
        _ => unreachable!("these need a server and were run with one"),
    }
    Ok(())
}

fn give_up(file: &str, dry_run: bool, client: &Client, output: Output) -> Result<(), Failure> {
    let file = absolute(file);
    let files: Vec<api::DamagedFile> = client.get("/v1/state")?;
    let Some(found) = files.iter().find(|found| file.ends_with(&found.file)) else {
        let what = format!("`{file}` is not an unreadable state file of the server");
        return Err(Failure::new(ErrorKind::NotFound, what, "`cairn state list` lists them"));
    };
    if dry_run {
        output.show(found, |found| format!("{}\nnothing was done", show(found)));
        return Ok(());
    }
    // Without any cost the server refuses, and reports the command that would end it.
    if let Some(costs) = &found.costs {
        output.confirm(&format!("this abandons the content of {file}: {costs}"))?;
    }
    let done: api::GivenUp = client.post("/v1/state/give-up", &api::GiveUpState { file })?;
    output.tell(&done, |done| {
        let goes_on = "the server continues without it";
        match done.aside.is_empty() {
            true => goes_on.to_owned(),
            false => format!("{goes_on}\nnext: keep {} until all is set again", done.aside),
        }
    });
    Ok(())
}

/// A path of this directory is absolute for the server, if there is such a file, and so is one that
/// is absolute already, also of a file that is gone; any other is below its data directory.
fn absolute(file: &str) -> String {
    let given = std::path::Path::new(file);
    let of_gone = || {
        let (folder, name) = (given.parent()?, given.file_name()?);
        given.is_absolute().then(|| folder.canonicalize().ok()).flatten().map(|folder| folder.join(name))
    };
    let path = given.canonicalize().ok().or_else(of_gone).ok_or(());
    path.map_or_else(|_| file.to_owned(), |path| path.display().to_string())
}

fn show(found: &api::DamagedFile) -> String {
    let mut text =
        format!("{} ({})\n  {}\n  means: {}\n", found.file, found.subject, found.reason, found.means);
    if let Some(previous) = found.previous_ms {
        text += &format!("  before its last change: written {}\n", ago(previous));
    }
    if let Some(costs) = &found.costs {
        text += &format!("  giving it up costs: {costs}\n");
    }
    text + &format!("  next: {}", found.next)
}
