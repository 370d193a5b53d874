//! `cairn export`.

mod nfs;

use std::path::Path;

use cairn_api::client::Client;
use cairn_api::{self as api, ErrorKind};

use super::volume::segment;
use crate::arguments::{Export, SetExport, WriteCache};
use crate::exit::Failure;
use crate::output::{Output, fields, size, table};

/// Runs a command on exports.
pub fn run(command: Export, client: &Client, output: Output) -> Result<(), Failure> {
    match command {
        Export::List => {
            let exports: Vec<api::Export> = client.get("/v1/exports")?;
            let files: Vec<api::NfsExport> = client.get("/v1/nfs")?;
            let all: Vec<Listed<'_>> =
                exports.iter().map(Listed::Disk).chain(files.iter().map(Listed::Files)).collect();
            output.show(&all, |_| {
                let disks = list(&exports);
                if files.is_empty() { disks } else { format!("{disks}\n\n{}", nfs::list(&files)) }
            });
        }
        Export::Show { name } if nfs::is_name(&name) => {
            output.show(&nfs::find(client, &name)?, nfs::show);
        }
        Export::Show { name } => {
            let exports: Vec<api::Export> = client.get("/v1/exports")?;
            let Some(export) = exports.into_iter().find(|export| export.name == name) else {
                let next = "list what exists with `cairn export list`";
                return Err(Failure::new(ErrorKind::NotFound, format!("there is no export `{name}`"), next));
            };
            output.show(&export, show);
        }
        Export::Set(set) if set.nfs || set.no_nfs || nfs::is_name(&set.name) => {
            nfs::set(&set, client, output)?;
        }
        Export::Set(set) => {
            let request = request(&set)?;
            let path = match set.name.split_once('/') {
                Some((volume, lun)) => {
                    format!("/v1/volumes/{}/luns/{}/access", segment(volume)?, segment(lun)?)
                }
                None => format!("/v1/devices/{}/access", segment(&set.name)?),
            };
            let export: api::Export = client.patch(&path, &request)?;
            output.tell(&export, |export| {
                format!("{}\n{}", show(export), login_lines(&export.target).join("\n"))
            });
        }
    }
    Ok(())
}

/// An export in the list.
#[derive(serde::Serialize)]
#[serde(untagged)]
enum Listed<'a> {
    Disk(&'a api::Export),
    Files(&'a api::NfsExport),
}

/// The commands with which a Linux machine logs in, one a portal.
pub fn login_lines(target: &api::Target) -> Vec<String> {
    let line = |portal: &String| {
        format!(
            "iscsiadm -m node -o new -T {0} -p {portal} && iscsiadm -m node -T {0} -p {portal} -l",
            target.name
        )
    };
    target.portals.iter().map(line).collect()
}

/// The initiators that may log in to LUNs of mirrors without own settings on this server, a line
/// for each; none if all initiators may.
pub fn as_at_source(client: &Client, volumes: &[String]) -> Result<Vec<String>, Failure> {
    let exports: Vec<api::Export> = client.get("/v1/exports")?;
    let is_of = |export: &&api::Export| {
        let volume = export.name.split_once('/').map(|(volume, _)| volume);
        volume.is_some_and(|volume| volumes.iter().any(|own| own == volume)) && export.access.from_source
    };
    Ok(exports.iter().filter(is_of).map(told).collect())
}

fn told(export: &api::Export) -> String {
    let (name, access) = (&export.name, &export.access);
    let set = format!("`cairn export set {name}` changes it");
    if access.secret_lacks {
        let chap = access.chap.as_deref().unwrap_or_default();
        return format!(
            "{name}: no access over iSCSI until a secret is set here, because the source requires that of `{chap}`: `cairn export set {name} --chap-file FILE`, or `--no-chap`"
        );
    }
    let mut kept = Vec::new();
    let mut add = |what: &str, list: &[String]| {
        if !list.is_empty() {
            kept.push(format!("{what} {}", list.join(", ")));
        }
    };
    add("initiators", &access.initiators);
    add("networks", &access.networks);
    if access.read_only {
        kept.push("read-only".to_owned());
    }
    if access.block_bytes != 512 {
        kept.push(format!("blocks of {} bytes", access.block_bytes));
    }
    if kept.is_empty() {
        kept.push("everybody".to_owned());
    }
    format!("{name}: as at the source, {}; {set}", kept.join(", "))
}

/// The next step for LUNs of a volume that any initiator may use over a portal; none without a
/// portal, or without such a LUN.
pub fn open_to_all(client: &Client, volume: &str) -> Result<Option<String>, Failure> {
    let exports: Vec<api::Export> = client.get("/v1/exports")?;
    let is_open = |export: &&api::Export| {
        let access = &export.access;
        let is_of = export.name.strip_prefix(volume).is_some_and(|rest| rest.starts_with('/'));
        let is_kept = !access.initiators.is_empty() || !access.networks.is_empty() || access.chap.is_some();
        is_of && !is_kept && !export.target.portals.is_empty()
    };
    let Some(open) = exports.iter().find(is_open) else { return Ok(None) };
    Ok(Some(format!(
        "a dump has no access settings: its LUNs are open to every client that reaches {}; `cairn export set {}` restricts them",
        open.target.portals.join(", "),
        open.name
    )))
}

fn request(set: &SetExport) -> Result<api::SetAccess, Failure> {
    let list = |given: &[String], any: bool| (any || !given.is_empty()).then(|| given.to_vec());
    Ok(api::SetAccess {
        initiators: list(&set.initiator, set.any_initiator),
        networks: list(&set.network, set.any_network),
        chap: set.chap_file.as_deref().map(secrets).transpose()?,
        no_chap: set.no_chap,
        nbd: (!set.nbd.is_empty()).then(|| set.nbd.clone()),
        read_only: if set.no_read_only { Some(false) } else { set.read_only },
        removable: if set.no_removable { Some(false) } else { set.removable },
        block_bytes: set.block_size,
        write_cache: set.write_cache.map(|cache| match cache {
            WriteCache::Auto => api::WriteCache::Auto,
            WriteCache::On => api::WriteCache::On,
            WriteCache::Off => api::WriteCache::Off,
        }),
        ..api::SetAccess::default()
    })
}

/// Reads a file of secrets, which are never on a command line, where others could see them.
fn secrets(path: &Path) -> Result<api::SetChap, Failure> {
    let text = std::fs::read_to_string(path).map_err(|source| unreadable(path, &source.to_string()))?;
    let mut chap =
        api::SetChap { name: String::new(), secret: String::new(), target_name: None, target_secret: None };
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match *line.split_whitespace().collect::<Vec<_>>() {
            ["initiator", name, secret] => (chap.name, chap.secret) = (name.to_owned(), secret.to_owned()),
            ["target", name, secret] => {
                (chap.target_name, chap.target_secret) = (Some(name.to_owned()), Some(secret.to_owned()));
            }
            _ => return Err(unreadable(path, "a line is `initiator NAME SECRET` or `target NAME SECRET`")),
        }
    }
    if chap.name.is_empty() {
        return Err(unreadable(path, "it has no line `initiator NAME SECRET`"));
    }
    Ok(chap)
}

fn unreadable(path: &Path, why: &str) -> Failure {
    Failure::new(
        api::ErrorKind::Usage,
        format!("cannot take secrets from {}: {why}", path.display()),
        "write them into a file that only you can read, and name it with --chap-file",
    )
}

fn list(exports: &[api::Export]) -> String {
    let row = |export: &api::Export| {
        [
            export.name.clone(),
            size(export.size_bytes),
            mode(export).to_owned(),
            nbd_clients(export),
            clients(&export.access),
            export.sessions.len().to_string(),
        ]
    };
    table(["NAME", "SIZE", "MODE", "NBD CLIENTS", "ISCSI CLIENTS", "SESSIONS"], exports.iter().map(row))
}

fn mode(export: &api::Export) -> &'static str {
    match export.read_only {
        _ if export.closed => "closed",
        true => "read-only",
        false => "read-write",
    }
}

/// Which NBD clients are admitted, in a few words. Those of TCP count, if there is such a listener.
pub fn nbd_clients(export: &api::Export) -> String {
    let nbd = || export.reach.iter().filter(|reach| reach.protocol == "NBD");
    let shown = nbd().find(|reach| !reach.address.starts_with("unix:"));
    match shown {
        Some(reach) if reach.clients == "any client" => "any".to_owned(),
        Some(_) => "restricted".to_owned(),
        None if nbd().next().is_some() => "unix socket".to_owned(),
        None => "none".to_owned(),
    }
}

/// Which initiators are let in, in a few words.
pub fn clients(access: &api::Access) -> String {
    let count = |list: &[String], one: &str| match list {
        [] => None,
        [only] if only.len() <= 24 => Some(only.clone()),
        [_] => Some(format!("1 {one}")),
        many => Some(format!("{} {one}s", many.len())),
    };
    let mut words = Vec::from_iter(count(&access.initiators, "initiator"));
    words.extend(count(&access.networks, "network"));
    match &access.chap {
        Some(_) if access.secret_lacks => words.push("CHAP without its secret".to_owned()),
        Some(_) => words.push("CHAP".to_owned()),
        None => {}
    }
    if words.is_empty() { "any".to_owned() } else { words.join(", ") }
}

/// One export in full.
fn show(export: &api::Export) -> String {
    let access = &export.access;
    let any = |list: &[String]| if list.is_empty() { "any".to_owned() } else { list.join(" ") };
    let chap = match (&access.chap, &access.chap_target) {
        (None, _) => "no".to_owned(),
        (Some(name), _) if access.secret_lacks => format!("{name}, but its secret is unknown here"),
        (Some(name), None) => name.clone(),
        (Some(name), Some(target)) => format!("{name}, {target}"),
    };
    let cache = match access.write_cache {
        api::WriteCache::Auto => "auto",
        api::WriteCache::On => "on",
        api::WriteCache::Off => "off",
    };
    let session = |session: &api::Session| match &session.initiator {
        Some(initiator) => format!("iSCSI {initiator} {}", session.peer),
        None => format!("NBD {}", session.peer),
    };
    let mut rows = vec![
        ["name", export.name.clone().as_str()].map(str::to_owned),
        ["size".to_owned(), size(export.size_bytes)],
        ["mode", mode(export)].map(str::to_owned),
        ["block".to_owned(), access.block_bytes.to_string()],
        ["removable", if access.removable { "yes" } else { "no" }].map(str::to_owned),
        ["cache", cache].map(str::to_owned),
        ["initiators".to_owned(), any(&access.initiators)],
        ["networks".to_owned(), any(&access.networks)],
        ["CHAP".to_owned(), chap],
        ["target".to_owned(), export.target.name.clone()],
    ];
    let rule = if access.nbd.is_empty() { "none".to_owned() } else { access.nbd.join(" ") };
    rows.push(["NBD rule".to_owned(), rule]);
    let reach = |reach: &api::Reach| {
        ["reached by".to_owned(), format!("{} {}: {}", reach.protocol, reach.address, reach.clients)]
    };
    rows.extend(export.reach.iter().map(reach));
    rows.extend(export.target.portals.iter().map(|portal| ["portal".to_owned(), portal.clone()]));
    rows.extend(export.uris.iter().map(|uri| ["NBD".to_owned(), uri.clone()]));
    rows.extend(export.sessions.iter().map(|one| ["session".to_owned(), session(one)]));
    fields(rows)
}
