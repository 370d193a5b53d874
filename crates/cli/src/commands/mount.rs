//! `cairn mount` and `cairn unmount`: the server mounts, on its own machine.

use cairn_api::client::{Client, Place};
use cairn_api::{self as api, ErrorKind};

use super::volume::absolute_path;
use crate::arguments::{Mount, Unmount};
use crate::exit::Failure;
use crate::output::{Output, table};

/// Mounts files, or lists the mounts.
pub fn run(asked: Mount, client: &Client, output: Output) -> Result<(), Failure> {
    let (Some(name), Some(directory)) = (asked.name, asked.directory) else {
        let mounts: Vec<api::Mount> = client.get("/v1/mounts")?;
        output.show(&mounts, |mounts| list(mounts));
        return Ok(());
    };
    refuse_from_afar(client)?;
    let request = api::CreateMount {
        volume: name.volume,
        snapshot: name.snapshot,
        directory: absolute_path(&directory)?,
        allow_other: asked.allow_other,
        devices: asked.dev,
        set_user_id: asked.suid,
    };
    let mount: api::Mount = client.post("/v1/mounts", &request)?;
    output.tell(&mount, |mount| {
        let how = if mount.read_only { "read-only" } else { "for reading and writing" };
        format!("{} is mounted on {}, {how}", mount.name, mount.directory)
    });
    Ok(())
}

/// Takes a mount away.
pub fn unmount(asked: &Unmount, client: &Client, output: Output) -> Result<(), Failure> {
    refuse_from_afar(client)?;
    let directory = std::path::absolute(&asked.directory)?;
    let mounts: Vec<api::Mount> = client.get("/v1/mounts")?;
    // Looking at a directory that is mounted and dead fails, so that its own path is taken as it
    // was given.
    let named = |mount: &&api::Mount| {
        let path = std::path::Path::new(&mount.directory);
        path == directory || directory.canonicalize().is_ok_and(|real| path == real)
    };
    let known = mounts.iter().find(named).map(|mount| mount.directory.clone());
    let request = api::Unmount {
        directory: known.unwrap_or_else(|| directory.display().to_string()),
        lazy: asked.lazy,
        force: asked.force,
    };
    let () = client.post("/v1/unmount", &request)?;
    output.tell(&serde_json::json!({ "unmounted": request.directory }), |_| {
        format!("unmounted {}", request.directory)
    });
    Ok(())
}

fn refuse_from_afar(client: &Client) -> Result<(), Failure> {
    match client.place() {
        Place::Tcp(address, _) => Err(Failure::new(
            ErrorKind::Usage,
            format!(
                "the server at {address} mounts on directories of its own machine, for commands that run there"
            ),
            "run it there with --data DIR; from afar a volume is reached over NBD and iSCSI",
        )),
        _ => Ok(()),
    }
}

/// The table of mounts.
pub fn list(mounts: &[api::Mount]) -> String {
    let row = |mount: &api::Mount| {
        let how = if mount.read_only { "read-only" } else { "" };
        let left = mount.left_to.as_ref().map(|users| format!("taken away, and still used by {users}"));
        let how = mount.problem.clone().or(left).unwrap_or_else(|| how.to_owned());
        [mount.name.clone(), mount.directory.clone(), how]
    };
    table(["FILES OF", "DIRECTORY", ""], mounts.iter().map(row))
}
