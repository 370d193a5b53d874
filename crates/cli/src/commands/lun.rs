//! `cairn lun`.

use cairn_api::client::Client;
use cairn_api::{self as api, ErrorKind};

use super::volume::segment;
use crate::arguments::{Lun, LunName};
use crate::exit::Failure;
use crate::output::{Output, ago, note_line, size, table};

/// Runs a command on LUNs.
pub fn run(command: Lun, client: &Client, output: Output) -> Result<(), Failure> {
    match command {
        Lun::Create { name, size: bytes } => {
            let request = api::CreateLun { name: name.lun.clone(), size_bytes: bytes.0 };
            let path = format!("/v1/volumes/{}/luns", segment(&name.volume)?);
            let lun: api::Lun = client.post(&path, &request)?;
            output.tell(&lun, |lun| {
                let mut lines = lun.uris.clone();
                lines.extend(super::export::login_lines(&lun.target));
                if lun.earlier_settings {
                    lines.push(format!(
                        "the settings of an earlier {0} apply to it, because snapshots or a history still show that one: see `cairn export list`, and change them with `cairn export set {0}`",
                        lun.name
                    ));
                }
                lines.join("\n")
            });
            warn_of_more_than_there_is(&name.volume, client, output)?;
        }
        Lun::List { volume } => {
            let volumes = match volume {
                Some(volume) => vec![volume],
                None => {
                    let volumes: Vec<api::Volume> = client.get("/v1/volumes")?;
                    let open = |volume: &api::Volume| volume.role != api::VolumeRole::Unavailable;
                    volumes.into_iter().filter(open).map(|volume| volume.name).collect()
                }
            };
            let mut luns: Vec<api::Lun> = Vec::new();
            for volume in volumes {
                let more: Vec<api::Lun> = client.get(&format!("/v1/volumes/{}/luns", segment(&volume)?))?;
                luns.extend(more);
            }
            output.show(&luns, |luns| list(luns));
        }
        Lun::Show { name } => {
            let lun = find(&name, client)?;
            output.show(&lun, show);
        }
        Lun::Resize { name, size: bytes, shrink } => {
            if shrink && !output.yes {
                // Do not ask for confirmation if the LUN does not exist.
                find(&name, client)?;
            }
            if shrink {
                output.confirm(&format!("this shrinks {name} to {bytes}; data beyond that is lost"))?;
            }
            let request = api::ResizeLun { size_bytes: bytes.0, allow_shrink: shrink };
            let lun: api::Lun = client.patch(&path(&name)?, &request)?;
            output.tell(&lun, |lun| {
                format!(
                    "{} has {} now; iSCSI initiators are notified, NBD clients see it when they reconnect",
                    lun.name,
                    size(lun.size_bytes)
                )
            });
            warn_of_more_than_there_is(&name.volume, client, output)?;
        }
        Lun::Delete { name, dry_run } => {
            let lun = find(&name, client)?;
            let what = format!("this deletes {name}, a disk of {}", size(lun.size_bytes));
            let (volume, named) = (name.volume.clone(), name.lun.clone());
            super::mirror::would(client, &api::DryRun::DeleteLun { volume, lun: named })?;
            if dry_run {
                output.show(&lun, |_| format!("{what}; nothing was done"));
                return Ok(());
            }
            output.confirm(&what)?;
            let () = client.delete(&path(&name)?)?;
            let deleted = serde_json::json!({ "deleted": name.to_string() });
            output.tell(&deleted, |_| format!("deleted {name}"));
        }
    }
    Ok(())
}

/// Disks allocate blocks when they are written, so they may be larger together than their volume.
/// The warning informs the user before the volume is full.
fn warn_of_more_than_there_is(volume: &str, client: &Client, output: Output) -> Result<(), Failure> {
    if output.json || output.quiet {
        return Ok(());
    }
    let path = format!("/v1/volumes/{}", segment(volume)?);
    let whole: api::Volume = client.get(&path)?;
    let luns: Vec<api::Lun> = client.get(&format!("{path}/luns"))?;
    let promised = luns.iter().fold(0, |sum: u64, lun| sum.saturating_add(lun.size_bytes));
    if promised > whole.size_bytes {
        let (promised, has) = (size(promised), size(whole.size_bytes));
        note_line(&format!(
            "note: the LUNs of {volume} have {promised} together, and {volume} {has}: writes fail when that is full; `cairn status` shows the free space, `cairn volume grow` adds to it"
        ));
    }
    Ok(())
}

fn find(name: &LunName, client: &Client) -> Result<api::Lun, Failure> {
    let luns: Vec<api::Lun> = client.get(&format!("/v1/volumes/{}/luns", segment(&name.volume)?))?;
    luns.into_iter().find(|lun| lun.name == name.to_string()).ok_or_else(|| {
        let next = format!("list what exists with `cairn lun list {}`", name.volume);
        Failure::new(ErrorKind::NotFound, format!("there is no LUN `{name}`"), next)
    })
}

fn show(lun: &api::Lun) -> String {
    let portals = lun.target.portals.join("\n         ");
    let text = format!(
        "name     {}\nsize     {}\ncreated  {}\nNBD      {}\niSCSI    {}",
        lun.name,
        size(lun.size_bytes),
        ago(lun.created_ms),
        lun.uris.join("\n         "),
        lun.target.name
    );
    if portals.is_empty() { text } else { format!("{text}\nportal   {portals}") }
}

fn path(name: &LunName) -> Result<String, Failure> {
    Ok(format!("/v1/volumes/{}/luns/{}", segment(&name.volume)?, segment(&name.lun)?))
}

fn list(luns: &[api::Lun]) -> String {
    let row = |lun: &api::Lun| {
        let uri = lun.uris.first().cloned().unwrap_or_default();
        [lun.name.clone(), size(lun.size_bytes), ago(lun.created_ms), uri]
    };
    table(["NAME", "SIZE", "CREATED", "URI"], luns.iter().map(row))
}
