//! `cairn export` of files over NFS.

use cairn_api::client::Client;
use cairn_api::{self as api, ErrorKind};

use super::super::volume::segment;
use crate::arguments::SetExport;
use crate::exit::Failure;
use crate::output::{Output, fields, table};

/// Whether a name is one of a directory: `VOLUME:/PATH`. The name of a LUN follows a slash.
pub fn is_name(name: &str) -> bool {
    name.split_once('/').map_or(name, |(before, _)| before).ends_with(':')
}

/// `VOLUME`, `SNAPSHOT` and `/PATH` of a name; `VOLUME` alone is the root of its files.
fn parse(name: &str) -> Result<(String, Option<String>, String), Failure> {
    let (of, path) = name.split_once(':').unwrap_or((name, "/"));
    let (volume, snapshot) = match of.split_once('@') {
        Some((volume, snapshot)) => (volume, Some(snapshot.to_owned())),
        None => (of, None),
    };
    if volume.is_empty() || volume.contains('/') || !path.starts_with('/') {
        return Err(Failure::new(
            ErrorKind::Usage,
            format!("`{name}` is not the name of a directory of a volume"),
            "name it VOLUME:/PATH, from the root of the volume's files",
        ));
    }
    Ok((volume.to_owned(), snapshot, path.to_owned()))
}

/// Exports a directory, changes its export, or ends it.
pub fn set(set: &SetExport, client: &Client, output: Output) -> Result<(), Failure> {
    let (volume, snapshot, path) = parse(&set.name)?;
    let at = format!("/v1/volumes/{}/nfs", segment(&volume)?);
    if set.no_nfs {
        client.post::<()>(&format!("{at}/remove"), &api::RemoveNfs { snapshot, path })?;
        output.tell(&(), |()| format!("{} is not exported over NFS any more", set.name));
        return Ok(());
    }
    if !set.nfs {
        return Err(Failure::new(
            ErrorKind::Usage,
            format!("`{}` is a directory, which is exported over NFS", set.name),
            "give --nfs to export it or to change its export, or --no-nfs to end that",
        ));
    }
    let squash = match (set.no_root_squash, set.all_squash, set.root_squash) {
        (true, _, _) => Some(api::NfsSquash::None),
        (_, true, _) => Some(api::NfsSquash::All),
        (_, _, true) => Some(api::NfsSquash::Root),
        _ => None,
    };
    let request = api::SetNfs {
        snapshot,
        path,
        read_only: if set.no_read_only { Some(false) } else { set.read_only },
        squash,
        networks: (set.any_network || !set.network.is_empty()).then(|| set.network.clone()),
    };
    let export: api::NfsExport = client.put(&at, &request)?;
    output.tell(&export, |export| {
        let next = match export.mounts.is_empty() {
            true => "next: start the server with --nfs HOST:PORT, so that clients can connect".to_owned(),
            false => export.mounts.join("\n"),
        };
        format!("{}\n{next}", show(export))
    });
    Ok(())
}

/// The export of that name.
pub fn find(client: &Client, name: &str) -> Result<api::NfsExport, Failure> {
    let exports: Vec<api::NfsExport> = client.get("/v1/nfs")?;
    exports.into_iter().find(|export| export.name == name).ok_or_else(|| {
        let next = "list what exists with `cairn export list`";
        Failure::new(ErrorKind::NotFound, format!("there is no export `{name}`"), next)
    })
}

fn mode(export: &api::NfsExport) -> &'static str {
    match export.read_only {
        _ if export.problem.is_some() => "closed",
        true => "read-only",
        false => "read-write",
    }
}

fn squash(export: &api::NfsExport) -> &'static str {
    match export.squash {
        api::NfsSquash::Root => "root",
        api::NfsSquash::None => "no",
        api::NfsSquash::All => "all",
    }
}

/// All exports of files.
pub fn list(exports: &[api::NfsExport]) -> String {
    let row = |export: &api::NfsExport| {
        let clients = match export.networks.as_slice() {
            [] => "any".to_owned(),
            [only] => only.clone(),
            many => format!("{} networks", many.len()),
        };
        let sessions = export.sessions.len().to_string();
        [export.name.clone(), mode(export).to_owned(), squash(export).to_owned(), clients, sessions]
    };
    table(["NAME", "MODE", "SQUASH", "NFS CLIENTS", "SESSIONS"], exports.iter().map(row))
}

/// One export in full.
pub fn show(export: &api::NfsExport) -> String {
    let networks = if export.networks.is_empty() { "any".to_owned() } else { export.networks.join(" ") };
    let mut rows = vec![
        ["name".to_owned(), export.name.clone()],
        ["path".to_owned(), export.path.clone()],
        ["mode", mode(export)].map(str::to_owned),
        ["squash", squash(export)].map(str::to_owned),
        ["networks".to_owned(), networks],
    ];
    rows.extend(export.problem.iter().map(|problem| ["problem".to_owned(), problem.clone()]));
    rows.extend(export.mounts.iter().map(|mount| ["mount".to_owned(), mount.clone()]));
    rows.extend(export.sessions.iter().map(|session| ["session".to_owned(), session.peer.clone()]));
    fields(rows)
}
