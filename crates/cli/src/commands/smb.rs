//! `cairn smb`: the share of a mounted volume, for Samba.
//!
//! The module `shadow_copy2` of Samba finds snapshots by directories whose names are times. Every
//! `.snapshot` of a mount has a directory `@GMT` with these.

use cairn_api::client::Client;
use cairn_api::{self as api, ErrorKind};

use crate::arguments::{Smb, SmbConfig};
use crate::exit::Failure;
use crate::output::Output;

/// Prints the configuration.
pub fn run(command: Smb, client: &Client, output: Output) -> Result<(), Failure> {
    let Smb::Config(asked) = command;
    let (volume, path) = parse(&asked.name)?;
    let mounts: Vec<api::Mount> = client.get("/v1/mounts")?;
    let is_it = |mount: &&api::Mount| mount.name == volume && mount.left_to.is_none();
    let mount = mounts.iter().find(is_it).ok_or_else(|| {
        Failure::new(
            ErrorKind::NotFound,
            format!("`{volume}` is not mounted on the server's machine, where Samba reads it"),
            format!("mount it first: cairn mount {volume} DIRECTORY"),
        )
    })?;
    let share = share(&asked, mount, &volume, &path)?;
    let shown = serde_json::json!({ "share": share.name, "path": share.path, "config": share.text });
    output.show(&shown, |_| share.text.clone());
    Ok(())
}

/// The volume, or VOLUME@SNAPSHOT, and the path in it.
fn parse(name: &str) -> Result<(String, String), Failure> {
    let (volume, path) = name.split_once(':').unwrap_or((name, "/"));
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let is_bad = |part: &&str| matches!(*part, "." | ".." | ".snapshot");
    if volume.is_empty() || volume.contains('/') || !path.starts_with('/') || parts.iter().any(is_bad) {
        return Err(Failure::new(
            ErrorKind::Usage,
            format!("`{name}` is not the name of a directory of a volume"),
            "name it VOLUME:/PATH, from the root of the volume's files",
        ));
    }
    Ok((volume.to_owned(), parts.join("/")))
}

struct Share {
    name: String,
    path: String,
    text: String,
}

fn share(asked: &SmbConfig, mount: &api::Mount, volume: &str, path: &str) -> Result<Share, Failure> {
    let last = path.rsplit('/').next().filter(|last| !last.is_empty()).unwrap_or(volume);
    let name = asked.share.clone().unwrap_or_else(|| last.replace('@', "-"));
    let place = match path {
        "" => mount.directory.clone(),
        path => format!("{}/{path}", mount.directory.trim_end_matches('/')),
    };
    // They would end the line or the section of the file.
    let is_bad = |c: char| c.is_control() || matches!(c, '[' | ']' | '%' | '"');
    if let Some(text) = [&name, &place].into_iter().find(|text| text.is_empty() || text.contains(is_bad)) {
        return Err(Failure::new(
            ErrorKind::Usage,
            format!("`{}` can't be part of a configuration of Samba", text.escape_debug()),
            "give another name with --share, or mount the volume on another directory",
        ));
    }
    // A snapshot has no past of its own.
    let has_past = !volume.contains('@');
    let modules =
        [(asked.macos, "catia fruit"), (true, "streams_xattr acl_xattr"), (has_past, "shadow_copy2")];
    let modules: Vec<&str> = modules.into_iter().filter(|(used, _)| *used).map(|(_, name)| name).collect();
    let yes = |is: bool| if is { "yes" } else { "no" };
    let mut lines = vec![
        format!("[{name}]"),
        format!("    path = {place}"),
        format!("    read only = {}", yes(mount.read_only)),
        format!("    vfs objects = {}", modules.join(" ")),
        "    # Access control lists and attributes of Windows are kept as extended attributes.".to_owned(),
        "    inherit acls = yes".to_owned(),
        "    store dos attributes = yes".to_owned(),
        "    map archive = no".to_owned(),
        "    map hidden = no".to_owned(),
        "    map system = no".to_owned(),
    ];
    if asked.macos {
        lines.extend(
            [
                "    # Attributes and forks of macOS are kept as streams.",
                "    fruit:metadata = stream",
                "    fruit:resource = stream",
                "    fruit:encoding = native",
            ]
            .map(str::to_owned),
        );
    }
    if has_past {
        lines.extend(
            [
                "    # All snapshots, as Previous Versions.",
                "    shadow:snapdir = .snapshot/@GMT",
                "    shadow:snapdirseverywhere = yes",
                "    shadow:format = @GMT-%Y.%m.%d-%H.%M.%S",
                "    shadow:sort = desc",
                "    shadow:localtime = no",
            ]
            .map(str::to_owned),
        );
    }
    Ok(Share { name, path: place, text: lines.join("\n") })
}
