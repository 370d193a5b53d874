//! `cairn volume`.

use std::path::{Path, PathBuf};

use cairn_server::api::{self, ErrorKind};

use super::{follow, summary};
use crate::arguments::Volume;
use crate::client::Client;
use crate::exit::Failure;
use crate::output::{Output, print_line, size, table};

/// Runs a command on volumes.
pub fn run(command: Volume, client: &Client, output: Output) -> Result<(), Failure> {
    match command {
        Volume::Create { name, size: bytes, device } => {
            let request =
                api::CreateVolume { name, size_bytes: bytes.map(|size| size.0), devices: absolute(&device)? };
            let volume: api::Volume = client.post("/v1/volumes", &request)?;
            output.tell(&volume, |volume| {
                let (name, bytes) = (&volume.name, size(volume.size_bytes));
                format!("made volume {name} of {bytes}\nnext: cairn lun create {name}/NAME --size SIZE")
            });
        }
        Volume::List => {
            let volumes: Vec<api::Volume> = client.get("/v1/volumes")?;
            output.show(&volumes, |volumes| list(volumes));
        }
        Volume::Show { name } => {
            let volume: api::Volume = client.get(&format!("/v1/volumes/{}", segment(&name)?))?;
            output.show(&volume, show);
        }
        Volume::Grow { name, size: bytes } => {
            let request = api::GrowVolume { size_bytes: bytes.map(|size| size.0) };
            let path = format!("/v1/volumes/{}/grow", segment(&name)?);
            let volume: api::Volume = client.post(&path, &request)?;
            output.tell(&volume, |volume| format!("{} has {} now", volume.name, size(volume.size_bytes)));
        }
        Volume::Delete { name, dry_run } => {
            let path = format!("/v1/volumes/{}", segment(&name)?);
            let volume: api::Volume = client.get(&path)?;
            let what = format!(
                "this deletes volume {name} with {} LUN(s), {} snapshot(s) and {} of data",
                volume.luns,
                volume.snapshots,
                size(volume.used_bytes)
            );
            if dry_run {
                output.show(&volume, |_| format!("{what}; nothing was done"));
                return Ok(());
            }
            output.confirm(&what)?;
            let () = client.delete(&path)?;
            output.tell(&serde_json::json!({ "deleted": name }), |_| format!("deleted {name}"));
        }
        Volume::Check { name } => check(&name, client, output)?,
    }
    Ok(())
}

fn check(name: &str, client: &Client, output: Output) -> Result<(), Failure> {
    let job: api::Job = client.post(&format!("/v1/volumes/{}/check", segment(name)?), &())?;
    let Some(api::JobOutcome::Check(result)) = follow(job, client, output)? else { return Ok(()) };
    if output.json {
        print_line(&summary(&result).to_string());
    } else {
        result.findings.iter().for_each(|finding| print_line(&finding.message));
    }
    if !result.findings.is_empty() {
        return Err(Failure::new(
            ErrorKind::Damaged,
            format!("volume {name}: {} finding(s)", result.findings.len()),
            "restore what they name from a snapshot or a mirror; see docs/operations.md",
        ));
    }
    if !output.json && !output.quiet {
        print_line(&format!("volume {name} is sound"));
    }
    Ok(())
}

/// The table of volumes.
pub fn list(volumes: &[api::Volume]) -> String {
    let row = |volume: &api::Volume| {
        [
            volume.name.clone(),
            role(volume.role).to_owned(),
            size(volume.size_bytes),
            size(volume.used_bytes),
            size(volume.free_bytes),
            volume.luns.to_string(),
            volume.snapshots.to_string(),
        ]
    };
    table(["NAME", "ROLE", "SIZE", "USED", "FREE", "LUNS", "SNAPSHOTS"], volumes.iter().map(row))
}

fn show(volume: &api::Volume) -> String {
    let mut text = format!(
        "name        {}\nid          {}\nrole        {}\nsize        {}\nused        {}\nfree        {}\n\
         dirty       {}\ngeneration  {}\nLUNs        {}\nsnapshots   {}\ndevices     {}",
        volume.name,
        volume.id,
        role(volume.role),
        size(volume.size_bytes),
        size(volume.used_bytes),
        size(volume.free_bytes),
        size(volume.dirty_bytes),
        volume.generation,
        volume.luns,
        volume.snapshots,
        volume.devices.join("\n            "),
    );
    if let Some(problem) = &volume.problem {
        text += &format!("\nproblem     {problem}");
    }
    text
}

fn role(role: api::VolumeRole) -> &'static str {
    match role {
        api::VolumeRole::Normal => "normal",
        api::VolumeRole::Destination => "destination",
        api::VolumeRole::Unavailable => "unavailable",
    }
}

/// Devices as the server must name them: it has another working directory.
pub fn absolute(devices: &[PathBuf]) -> Result<Vec<String>, Failure> {
    let one = |path: &PathBuf| {
        std::path::absolute(path as &Path).map(|path| path.display().to_string()).map_err(Failure::from)
    };
    devices.iter().map(one).collect()
}

/// A name as one segment of a path; the server decides whether it is a name.
pub fn segment(name: &str) -> Result<&str, Failure> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if !name.is_empty() && name != "." && name != ".." && name.bytes().all(plain) {
        return Ok(name);
    }
    Err(Failure::new(
        ErrorKind::Usage,
        format!("`{name}` is no name"),
        "use letters, digits, `.`, `_` and `-`, beginning with a letter or a digit",
    ))
}
