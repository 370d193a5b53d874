//! `cairn clone`.

use cairn_api::client::Client;
use cairn_api::{self as api, ErrorKind};

use super::volume::segment;
use crate::arguments::CloneCommand;
use crate::exit::Failure;
use crate::output::{Output, size, table};

/// Runs a command on clones.
pub fn run(command: CloneCommand, client: &Client, output: Output) -> Result<(), Failure> {
    match command {
        CloneCommand::Create { of, name } => {
            let request = api::CreateClone { volume: of.volume.clone(), snapshot: of.snapshot.clone(), name };
            let clone: api::VolumeClone = client.post("/v1/clones", &request)?;
            output.tell(&clone, |clone| {
                let (name, luns) = (&clone.name, clone.luns);
                format!("made volume {name}, a clone of {of} with {luns} LUN(s)\nnext: cairn lun list {name}")
            });
        }
        CloneCommand::List => {
            let clones: Vec<api::VolumeClone> = client.get("/v1/clones")?;
            output.show(&clones, |clones| list(clones));
        }
        CloneCommand::Show { name } => {
            let clone = find(&name, client)?;
            output.show(&clone, |clone| list(std::slice::from_ref(clone)));
        }
        CloneCommand::Delete { name, dry_run } => {
            let clone = find(&name, client)?;
            let what = format!(
                "this deletes {name}, a clone of {}, and the {} that were written to it; {} stays as it is",
                clone.of,
                size(clone.own_bytes),
                clone.of
            );
            super::mirror::would(client, &api::DryRun::DeleteClone { clone: name.clone() })?;
            if dry_run {
                output.show(&clone, |_| format!("{what}; nothing was done"));
                return Ok(());
            }
            output.confirm(&what)?;
            let () = client.delete(&format!("/v1/clones/{}", segment(&name)?))?;
            output.tell(&serde_json::json!({ "deleted": name }), |_| format!("deleted {name}"));
        }
    }
    Ok(())
}

fn find(name: &str, client: &Client) -> Result<api::VolumeClone, Failure> {
    let clones: Vec<api::VolumeClone> = client.get("/v1/clones")?;
    clones.into_iter().find(|clone| clone.name == name).ok_or_else(|| {
        let next = "list what exists with `cairn clone list`";
        Failure::new(ErrorKind::NotFound, format!("there is no clone `{name}`"), next)
    })
}

fn list(clones: &[api::VolumeClone]) -> String {
    let row = |clone: &api::VolumeClone| {
        [
            clone.name.clone(),
            clone.of.clone(),
            size(clone.size_bytes),
            size(clone.own_bytes),
            clone.luns.to_string(),
            clone.problem.clone().unwrap_or_default(),
        ]
    };
    table(["NAME", "CLONE OF", "SIZE", "OWN", "LUNS", ""], clones.iter().map(row))
}
