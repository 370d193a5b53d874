//! NFS from the command line to a client: kills, snapshots, rules, and a mirror that takes over.

#[allow(dead_code, reason = "this test program uses a part of it")]
#[path = "../../frontend/nfs/tests/harness/client.rs"]
mod client;
mod running;

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use cairn_proto_nfs::nlm::LockStatus;
use cairn_proto_nfs::*;
use client::{Client, at, lock_of, mode, user};
use running::{PATIENCE, Running, can_mount, path};

fn start(dir: &Path, name: &str) -> Running {
    let server = Running::start_with(dir, name, &["--mirror", "127.0.0.1:0", "--nfs", "127.0.0.1:0"]);
    server.good(&["volume", "create", "vol0", "--size", "128M"]);
    server
}

fn connect(server: &Running) -> Client {
    let status = server.json(&["status"]);
    Client::connect(status["nfs"][0].as_str().unwrap())
}

/// Exports a directory as root of clients sees it, and mounts it.
fn export(server: &Running, name: &str) -> (Client, Handle) {
    let shown = server.json(&["export", "set", name, "--nfs", "--no-root-squash"]);
    let mut client = connect(server);
    let root = client.mount(shown["path"].as_str().unwrap()).unwrap();
    (client, root)
}

/// Repeats a call for as long as the server tells the client to try again.
fn patiently<T>(mut call: impl FnMut() -> client::Result<T>) -> client::Result<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match call() {
            Err(Status::Jukebox) if Instant::now() < deadline => {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            outcome => return outcome,
        }
    }
}

#[test]
fn client_goes_on_after_a_kill_with_its_handles_and_nothing_committed_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = start(dir.path(), "d");
    let (mut client, root) = export(&server, "vol0");
    let folder = client.make_directory(&root, b"folder").unwrap();
    for number in 0..1000 {
        client.create(&folder, format!("f{number:04}").as_bytes()).unwrap();
    }
    let first = client.list_after(&folder, 0, 4096).unwrap();
    let committed = client.create(&root, b"committed").unwrap();
    let synchronous = client.create(&root, b"synchronous").unwrap();
    let unstable = client.create(&root, b"unstable").unwrap();
    let data: Vec<u8> = (0..200_000u32).map(|byte| (byte / 7) as u8).collect();
    client.write_as(&committed, 0, &data, Stable::Unstable).unwrap();
    client.commit(&committed).unwrap();
    client.write(&synchronous, 0, &data).unwrap();
    client.rename(at(&root, b"synchronous"), at(&folder, b"renamed")).unwrap();
    client.link(&committed, at(&folder, b"linked")).unwrap();
    let before = client.write_as(&unstable, 0, &data, Stable::Unstable).unwrap().verifier;
    server.kill();
    server.restart();

    let mut client = connect(&server);
    assert_eq!(client.read_all(&committed).unwrap(), data);
    assert_eq!(client.read_all(&synchronous).unwrap(), data);
    assert_eq!(client.stat(&committed).unwrap().links, 2);
    assert_eq!(client.lookup(&folder, b"renamed").unwrap().file, synchronous);
    // The client finds that its unstable write may be lost, and sends it again.
    let after = client.commit(&unstable).unwrap();
    assert_ne!(before, after);
    client.write_as(&unstable, 0, &data, Stable::Unstable).unwrap();
    assert_eq!(client.commit(&unstable).unwrap(), after);
    assert_eq!(client.read_all(&unstable).unwrap(), data);
    // The listing continues where it was.
    let mut names: Vec<Vec<u8>> = first.entries.iter().map(|entry| entry.name.clone()).collect();
    let mut cookie = first.entries.last().unwrap().cookie;
    loop {
        let listing = client.list_after(&folder, cookie, 65536).unwrap();
        cookie = listing.entries.last().map_or(cookie, |entry| entry.cookie);
        names.extend(listing.entries.into_iter().map(|entry| entry.name));
        if listing.end {
            break;
        }
    }
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.iter().filter(|name| name.starts_with(b"f")).count(), 1000);
    server.good(&["volume", "check", "vol0"]);
}

#[test]
fn export_has_its_rules_and_its_past_and_ends() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), "d");
    let (mut client, root) = export(&server, "vol0");
    let home = client.make_directory(&root, b"home").unwrap();
    client.set(&home, &mode(0o777)).unwrap();
    let file = client.create(&home, b"notes").unwrap();
    client.write(&file, 0, b"monday").unwrap();
    server.good(&["snapshot", "create", "vol0@monday"]);
    client.write(&file, 0, b"today!").unwrap();
    let past = client.walk(&root, "home/.snapshot/monday/notes").unwrap();
    assert_eq!(client.read_all(&past).unwrap(), b"monday");
    assert_eq!(client.read_all(&file).unwrap(), b"today!");

    server.bad(10, "not-found", &["export", "set", "vol0:/nowhere", "--nfs"]);
    server.bad(2, "usage", &["export", "set", "vol0:/home", "--read-only"]);
    let told = server.good(&["export", "set", "vol0:/home", "--nfs", "--network", "127.0.0.0/8"]);
    assert!(told.contains("mount -t nfs -o vers=3,tcp,port="), "{told}");
    let mut nobody = connect(&server);
    let inner = nobody.mount("/vol0/home").unwrap();
    let made = nobody.create(&inner, b"of-root").unwrap();
    assert_eq!(nobody.stat(&made).unwrap().uid, 65_534);
    assert_eq!(nobody.lookup(&inner, b"..").unwrap().file, inner);
    let mut alice = connect(&server).used_by(user(1000, 1000));
    let made = alice.create(&inner, b"of-alice").unwrap();
    assert_eq!(alice.stat(&made).unwrap().uid, 1000);

    server.good(&["export", "set", "vol0:/home", "--nfs", "--read-only"]);
    assert_eq!(alice.create(&inner, b"more").unwrap_err(), Status::ReadOnly);
    server.good(&["export", "set", "vol0:/home", "--nfs", "--no-read-only", "--network", "192.0.2.0/24"]);
    assert_eq!(alice.stat(&inner), Err(Status::Access));
    assert_eq!(alice.mount("/vol0/home"), Err(MountStatus::Access));

    // The past is exported by itself as well, with handles of its own.
    server.good(&["export", "set", "vol0@monday:/home", "--nfs"]);
    let monday = client.mount("/vol0@monday/home").unwrap();
    let kept = client.lookup(&monday, b"notes").unwrap().file;
    assert_eq!(client.read_all(&kept).unwrap(), b"monday");
    assert_eq!(client.create(&monday, b"x").unwrap_err(), Status::ReadOnly);
    server.bad(11, "busy", &["snapshot", "delete", "vol0@monday", "--yes"]);
    server.good(&["export", "set", "vol0@monday:/home", "--no-nfs"]);
    assert_eq!(client.read(&kept, 0, 1).unwrap_err(), Status::Stale);

    let listed = server.good(&["export", "list"]);
    assert!(listed.contains("vol0:/home") && listed.contains("192.0.2.0/24"), "{listed}");
    let shown = server.json(&["export", "show", "vol0:/"]);
    assert_eq!(shown["sessions"].as_array().unwrap().len(), 1, "{shown}");
    assert!(shown["totals"]["written_bytes"].as_u64().unwrap() >= 12, "{shown}");
    server.bad(11, "busy", &["volume", "delete", "vol0", "--yes"]);
    if can_mount() {
        let point = path(dir.path(), "point");
        std::fs::create_dir(&point).unwrap();
        server.bad(11, "busy", &["mount", "vol0", &point]);
    }
    server.good(&["export", "set", "vol0:/home", "--no-nfs"]);
    assert_eq!(alice.stat(&inner), Err(Status::Stale));
    assert_eq!(client.read_all(&file).unwrap(), b"today!");
    server.good(&["export", "set", "vol0", "--no-nfs"]);
    assert_eq!(client.stat(&root), Err(Status::Stale));
    server.bad(10, "not-found", &["export", "set", "vol0", "--no-nfs"]);
    server.good(&["volume", "delete", "vol0", "--yes"]);
}

#[test]
fn rollback_under_a_client_changes_the_verifier_and_makes_newer_files_stale() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), "d");
    let (mut client, root) = export(&server, "vol0");
    let old = client.create(&root, b"old").unwrap();
    client.write(&old, 0, b"before").unwrap();
    server.good(&["snapshot", "create", "vol0@s"]);
    let new = client.create(&root, b"new").unwrap();
    let written = client.write_as(&old, 0, b"after!", Stable::Unstable).unwrap();
    server.good(&["snapshot", "revert", "vol0@s", "--yes"]);
    assert_ne!(patiently(|| client.commit(&old)).unwrap(), written.verifier);
    assert_eq!(client.read_all(&old).unwrap(), b"before");
    assert_eq!(client.stat(&new), Err(Status::Stale));
    client.write(&old, 0, b"again!").unwrap();
    assert_eq!(client.read_all(&old).unwrap(), b"again!");
}

#[test]
fn mirror_takes_over_with_the_handles_of_the_source() {
    let dir = tempfile::tempdir().unwrap();
    let mut source = start(dir.path(), "source");
    let (mut client, root) = export(&source, "vol0");
    let file = client.create(&root, b"file").unwrap();
    client.write(&file, 0, b"mirrored").unwrap();
    let nfs = ["--mirror", "127.0.0.1:0", "--nfs", "127.0.0.1:0"];
    let destination = Running::start_with(dir.path(), "destination", &nfs);
    let token = source.invite();
    destination.good(&["mirror", "create", "vol0", &token]);
    destination.good(&["export", "set", "vol0", "--nfs", "--no-root-squash"]);
    let mut other = connect(&destination);
    assert_eq!(other.read_all(&file).unwrap(), b"mirrored");
    assert_eq!(other.write(&file, 0, b"x").unwrap_err(), Status::ReadOnly);
    // It moves from image to image under its clients.
    client.write(&file, 0, b"newer!!!").unwrap();
    destination.good(&["mirror", "update", "vol0"]);
    let deadline = Instant::now() + PATIENCE;
    while other.read_all(&file).unwrap() != b"newer!!!" {
        assert!(Instant::now() < deadline, "the export stays at an old image");
    }
    let lost = client.create(&root, b"lost").unwrap();
    source.kill();
    destination.good(&["mirror", "failover", "vol0", "--yes"]);
    // All handles of the source are valid here, but for the file that the mirror never got.
    let deadline = Instant::now() + PATIENCE;
    while let Err(status) = other.write(&file, 0, b"after it") {
        assert!(
            matches!(status, Status::ReadOnly | Status::Jukebox) && Instant::now() < deadline,
            "{status:?}"
        );
    }
    assert_eq!(other.read_all(&file).unwrap(), b"after it");
    assert_eq!(other.stat(&lost), Err(Status::Stale));
    for number in 0..10 {
        other.create(&root, format!("new{number}").as_bytes()).unwrap();
    }
    // Not even when its number was given to another file.
    assert_eq!(other.stat(&lost), Err(Status::Stale));
    assert_eq!(other.mount("/vol0"), Ok(root));
}

#[test]
fn instant_of_a_history_is_exported() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Running::start_with(dir.path(), "d", &["--mirror", "off", "--nfs", "127.0.0.1:0"]);
    let store = path(dir.path(), "vol0.history");
    let history = ["--history", &store, "--placement", "split-down-stream", "--granularity", "every-write"];
    server.good(&[&["volume", "create", "vol0", "--size", "64M"], &history[..]].concat());
    let (mut client, root) = export(&server, "vol0");
    let file = client.create(&root, b"file").unwrap();
    client.write(&file, 0, b"before").unwrap();
    server.good(&["history", "mark", "vol0", "good"]);
    client.write(&file, 0, b"after!").unwrap();
    server.good(&["history", "view", "vol0", "--mark", "good", "--as", "then"]);
    server.good(&["export", "set", "vol0@then", "--nfs"]);
    let then = client.mount("/vol0@then").unwrap();
    let old = client.lookup(&then, b"file").unwrap().file;
    assert_eq!(client.read_all(&old).unwrap(), b"before");
    assert_eq!(client.write(&old, 0, b"x").unwrap_err(), Status::ReadOnly);
    assert_eq!(client.read_all(&file).unwrap(), b"after!");
    server.bad(11, "busy", &["history", "view", "vol0", "--delete", "then"]);
    server.kill();
    server.restart();
    let mut client = connect(&server);
    assert_eq!(client.read_all(&old).unwrap(), b"before");
    assert_eq!(client.read_all(&file).unwrap(), b"after!");
    server.good(&["export", "set", "vol0@then", "--no-nfs"]);
    server.good(&["history", "view", "vol0", "--delete", "then"]);
    assert_eq!(client.read_all(&old).unwrap_err(), Status::Stale);
}

#[test]
fn locks_survive_a_kill_as_far_as_their_clients_claim_them() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = start(dir.path(), "d");
    let (mut client, root) = export(&server, "vol0");
    let file = client.create(&root, b"file").unwrap();
    assert_eq!(client.lock(lock_of(&file, 1, 0, 10), false), LockStatus::Granted);
    assert_eq!(client.lock(lock_of(&file, 2, 5, 1), false), LockStatus::Denied);
    server.kill();
    server.restart();
    let mut client = connect(&server);
    assert_eq!(client.lock(lock_of(&file, 2, 5, 1), false), LockStatus::Grace);
    assert_eq!(client.lock_as(lock_of(&file, 1, 0, 10), false, true, true), LockStatus::Granted);
    assert_eq!(client.unlock(lock_of(&file, 1, 0, 0)), LockStatus::Granted);
}

/// True when libnfs has its tools; without them a test is skipped, and fails in CI.
fn has_libnfs() -> bool {
    let found = Command::new("nfs-ls").arg("--usage").output().is_ok();
    assert!(found || std::env::var_os("CI").is_none(), "libnfs-utils is missing");
    if !found {
        println!("skipped: libnfs-utils is not installed");
    }
    found
}

fn libnfs(program: &str, arguments: &[&str]) -> String {
    let output = Command::new("timeout").args(["60", program]).args(arguments).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}{}",
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}

#[test]
fn foreign_client_copies_lists_and_reads() {
    if !has_libnfs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), "d");
    let (mut client, root) = export(&server, "vol0");
    let folder = client.make_directory(&root, b"folder").unwrap();
    let status = server.json(&["status"]);
    let port = status["nfs"][0].as_str().unwrap().rsplit_once(':').unwrap().1.to_owned();
    let url = |path: &str| format!("nfs://127.0.0.1/vol0{path}?nfsport={port}&mountport={port}&version=3");
    let data: Vec<u8> =
        (0..3_000_000u32).map(|byte| (byte.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let local = path(dir.path(), "local");
    std::fs::write(&local, &data).unwrap();
    libnfs("nfs-cp", &[&local, &url("/folder/copied")]);
    let copied = client.lookup(&folder, b"copied").unwrap().file;
    assert!(client.read_all(&copied).unwrap() == data, "the copy differs");
    server.good(&["snapshot", "create", "vol0@s"]);
    client.remove(&folder, b"copied").unwrap();
    let back = path(dir.path(), "back");
    libnfs("nfs-cp", &[&url("/folder/.snapshot/s/copied"), &back]);
    assert!(std::fs::read(&back).unwrap() == data, "the copy from the snapshot differs");
    for number in 0..500 {
        client.create(&folder, format!("name-{number}").as_bytes()).unwrap();
    }
    let listed = libnfs("nfs-ls", &[&url("/folder")]);
    assert_eq!(listed.lines().filter(|line| line.contains("name-")).count(), 500, "{listed}");
}
