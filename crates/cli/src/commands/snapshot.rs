//! `cairn snapshot`.

use cairn_api::client::Client;
use cairn_api::{self as api, ErrorKind};

use super::volume::segment;
use crate::arguments::{DiffSnapshots, DumpName, Snapshot, SnapshotName};
use crate::exit::Failure;
use crate::output::{Output, ago, fields, path as shown, print_line, size, table};

/// Runs a command on snapshots.
pub fn run(command: Snapshot, client: &Client, output: Output) -> Result<(), Failure> {
    match command {
        Snapshot::Create { group: Some(group), .. } => super::group::snapshot(&group, client, output)?,
        Snapshot::Create { name, group: None } => {
            let Some(name) = name else {
                let next = "`cairn snapshot create VOLUME@SNAPSHOT`, or `--group GROUP`";
                return Err(Failure::new(ErrorKind::Usage, "no snapshot is named", next));
            };
            let request = api::CreateSnapshot { name: name.snapshot.clone() };
            let path = format!("/v1/volumes/{}/snapshots", segment(&name.volume)?);
            let snapshot: api::Snapshot = client.post(&path, &request)?;
            output.tell(&snapshot, |snapshot| format!("made {}", snapshot.name));
        }
        Snapshot::List { volume } => {
            let path = format!("/v1/volumes/{}/snapshots", segment(&volume)?);
            let snapshots: Vec<api::Snapshot> = client.get(&path)?;
            output.show(&snapshots, |snapshots| list(snapshots));
        }
        Snapshot::Show { name } => {
            let snapshot = find(&name, client)?;
            let frees: api::SnapshotFrees = client.get(&format!("{}/frees", path(&name)?))?;
            output.show(&Shown { snapshot, frees }, show);
        }
        Snapshot::Delete { names, dry_run } => delete(&names, dry_run, client, output)?,
        Snapshot::Rename { name, new_name } => {
            let request = api::RenameSnapshot { name: new_name };
            let snapshot: api::Snapshot = client.post(&format!("{}/rename", path(&name)?), &request)?;
            output.tell(&snapshot, |snapshot| format!("{name} is {} now", snapshot.name));
        }
        Snapshot::Hold { names } => hold(&names, true, client, output)?,
        Snapshot::Release { names } => hold(&names, false, client, output)?,
        Snapshot::Diff(asked) => diff(&asked, client, output)?,
        Snapshot::Schedule(command) => super::schedule::run(command, client, output)?,
        Snapshot::Rollback { name, to, dry_run } => {
            let name = goal(name, to)?;
            find(&name, client)?;
            let (volume, snapshot) = (name.volume.clone(), name.snapshot.clone());
            super::mirror::would(client, &api::DryRun::Rollback { volume, snapshot })?;
            let what =
                format!("this brings {} back to {name}; the state before is kept as a snapshot", name.volume);
            if dry_run {
                output.show(&serde_json::json!({ "would_roll_back_to": name.to_string() }), |_| {
                    format!("{what}; nothing was done")
                });
                return Ok(());
            }
            output.confirm(&what)?;
            let undo: api::Snapshot = client.post(&format!("{}/rollback", path(&name)?), &())?;
            output.tell(&undo, |undo| {
                let (volume, undo) = (&name.volume, &undo.name);
                format!("{volume} is at {name}\nto undo: cairn snapshot rollback {undo}")
            });
        }
    }
    Ok(())
}

fn diff(asked: &DiffSnapshots, client: &Client, output: Output) -> Result<(), Failure> {
    let (volume, from, to) = asked.of_one_volume().ok_or_else(|| {
        let next =
            "`cairn snapshot diff VOLUME@FROM VOLUME@TO`, or one of them to compare with the volume as it is";
        Failure::new(ErrorKind::Usage, "these are not one or two snapshots of one volume", next)
    })?;
    let (volume, from) = (segment(volume)?, segment(from)?);
    let to = to.map(segment).transpose()?.map(|to| format!("&to={to}")).unwrap_or_default();
    let changes: Vec<api::FileChange> =
        client.get(&format!("/v1/volumes/{volume}/files/diff?from={from}{to}"))?;
    if output.json {
        output.show(&changes, |_| String::new());
        return Ok(());
    }
    for change in &changes {
        let slash = if change.directory { "/" } else { "" };
        let path = match &change.path {
            Some(path) => format!("{}{slash}", shown(path, change.path_bytes.as_deref())),
            None => format!("file {} without a name", change.number),
        };
        let kind = match change.change {
            api::FileChangeKind::Created => "created",
            api::FileChangeKind::Changed => "changed",
            api::FileChangeKind::Renamed => "renamed",
            api::FileChangeKind::Linked => "linked",
            api::FileChangeKind::Unlinked => "unlinked",
            api::FileChangeKind::Deleted => "deleted",
        };
        let from = change.from.as_ref().map(|from| shown(from, change.from_bytes.as_deref()));
        let from = from.map(|from| format!("{from}{slash} -> ")).unwrap_or_default();
        print_line(&format!("{kind:9} {from}{path}"));
    }
    Ok(())
}

fn delete(names: &[SnapshotName], dry_run: bool, client: &Client, output: Output) -> Result<(), Failure> {
    if dry_run {
        for name in names {
            let snapshot = find(name, client)?;
            let (volume, named) = (name.volume.clone(), name.snapshot.clone());
            super::mirror::would(client, &api::DryRun::DeleteSnapshot { volume, snapshot: named })?;
            output.show(&snapshot, |_| format!("this deletes {name}; nothing was done"));
        }
        return Ok(());
    }
    // Do not ask for confirmation if the snapshot does not exist.
    if !output.yes {
        names.iter().try_for_each(|name| find(name, client).map(drop))?;
    }
    let all = names.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    output.confirm(&format!("this deletes {all}"))?;
    let (mut done, mut failures) = (0, Vec::new());
    for name in names {
        match path(name).and_then(|path| Ok(client.delete::<api::Freed>(&path)?)) {
            Ok(freed) => {
                done += 1;
                let deleted =
                    serde_json::json!({ "deleted": name.to_string(), "freed_bytes": freed.freed_bytes });
                output.tell(&deleted, |_| format!("deleted {name}, freed {}", size(freed.freed_bytes)));
            }
            Err(failure) => failures.push(failure),
        }
    }
    let last = failures.pop();
    for failure in failures {
        failure.report(output.json);
    }
    match last {
        None => Ok(()),
        Some(failure) if done > 0 => Err(failure.partly()),
        Some(failure) => Err(failure),
    }
}

/// Holds or releases each snapshot. A failure is reported, and the others are still processed. With
/// several failures the exit code is that of the first one, or that of a partial success.
fn hold(names: &[SnapshotName], held: bool, client: &Client, output: Output) -> Result<(), Failure> {
    let request = api::HoldSnapshot { held };
    let mut failures: Vec<Failure> = Vec::new();
    for name in names {
        let done: Result<api::Snapshot, Failure> =
            path(name).and_then(|path| Ok(client.post(&format!("{path}/hold"), &request)?));
        match done {
            Ok(snapshot) => output.tell(&snapshot, |_| match held {
                true => format!("{name} is held; `cairn snapshot release {name}` releases it"),
                false => format!("{name} can be deleted"),
            }),
            Err(failure) => failures.push(failure),
        }
    }
    let partly = failures.len() < names.len();
    let Some(last) = failures.pop() else { return Ok(()) };
    let code = failures.first().map_or(last.code, |first| first.code);
    for failure in &failures {
        failure.report(output.json);
    }
    if partly { Err(last.partly()) } else { Err(Failure { code, ..last }) }
}

/// The snapshot to return to: `VOLUME@SNAPSHOT`, or `VOLUME --to SNAPSHOT`.
fn goal(name: DumpName, to: Option<String>) -> Result<SnapshotName, Failure> {
    let DumpName { volume, snapshot } = name;
    let own = |to: String| to.strip_prefix(&format!("{volume}@")).map(str::to_owned).unwrap_or(to);
    match (snapshot, to.map(own)) {
        (Some(snapshot), None) | (None, Some(snapshot)) => Ok(SnapshotName { volume, snapshot }),
        (Some(snapshot), Some(to)) if snapshot == to => Ok(SnapshotName { volume, snapshot }),
        _ => Err(Failure::new(
            ErrorKind::Usage,
            "one snapshot is needed, named VOLUME@SNAPSHOT, such as vol0@before-upgrade",
            format!("list the snapshots with `cairn snapshot list {volume}`"),
        )),
    }
}

/// A snapshot, and the space that its deletion would free.
#[derive(serde::Serialize)]
struct Shown {
    #[serde(flatten)]
    snapshot: api::Snapshot,
    frees: api::SnapshotFrees,
}

fn show(Shown { snapshot, frees }: &Shown) -> String {
    let mut pairs = vec![
        ["name".to_owned(), snapshot.name.clone()],
        ["created".to_owned(), ago(snapshot.created_ms)],
        ["generation".to_owned(), snapshot.generation.to_string()],
        ["held".to_owned(), if snapshot.held { "yes" } else { "no" }.to_owned()],
        ["frees alone".to_owned(), size(frees.alone_bytes)],
    ];
    let with =
        |other: &api::FreesWith| ["frees with".to_owned(), format!("{} {}", other.name, size(other.bytes))];
    pairs.extend(frees.with_earlier.iter().chain(&frees.with_later).map(with));
    pairs.extend(frees.with_both_bytes.map(|bytes| ["frees with both".to_owned(), size(bytes)]));
    fields(pairs)
}

fn find(name: &SnapshotName, client: &Client) -> Result<api::Snapshot, Failure> {
    let path = format!("/v1/volumes/{}/snapshots", segment(&name.volume)?);
    let snapshots: Vec<api::Snapshot> = client.get(&path)?;
    snapshots.into_iter().find(|snapshot| snapshot.name == name.to_string()).ok_or_else(|| {
        let next = format!("list what exists with `cairn snapshot list {}`", name.volume);
        Failure::new(ErrorKind::NotFound, format!("there is no snapshot `{name}`"), next)
    })
}

fn path(name: &SnapshotName) -> Result<String, Failure> {
    Ok(format!("/v1/volumes/{}/snapshots/{}", segment(&name.volume)?, segment(&name.snapshot)?))
}

fn list(snapshots: &[api::Snapshot]) -> String {
    let row = |snapshot: &api::Snapshot| {
        let held = if snapshot.held { "held" } else { "" };
        [snapshot.name.clone(), ago(snapshot.created_ms), snapshot.generation.to_string(), held.to_owned()]
    };
    table(["NAME", "CREATED", "GENERATION", "HELD"], snapshots.iter().map(row))
}
