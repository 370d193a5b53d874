//! Mirrors that begin with a volume of the destination's server: a restored image dump, an old
//! copy, or a volume that was written to since. And chains whose middle follows again.

mod running;

use std::path::Path;
use std::process::{Child, Stdio};

use running::{BLOCKS, Running, content, fill, path, server_with_disk, wait_until};
use serde_json::Value;

/// Blocks that are changed after a dump: one in a hundred.
const CHANGED: u64 = BLOCKS / 100;

/// A source with `v/db`, a server beside it, and the dump of level 0 of `v`.
fn source_and_other(dir: &Path) -> (Running, Running, String) {
    let mut source = server_with_disk(dir);
    source.stay();
    source.good(&["snapshot", "create", "v@monday"]);
    fill(&source, 100, 20, 2);
    let dump = path(dir, "v.0");
    source.good(&["image", "dump", "v", "-0", "--to", &dump]);
    let mut other = Running::start(dir, "e");
    other.stay();
    (source, other, dump)
}

fn invite(source: &Running) -> String {
    source.json(&["peer", "invite", "--volume", "v"])["token"].as_str().unwrap().to_owned()
}

fn status(server: &Running, name: &str) -> Value {
    server.json(&["mirror", "status", name])
}

/// Compares the present state and all snapshots of the source's owner with those of a mirror.
fn assert_same(source: &Running, mirror: &Running, name: &str) {
    assert!(content(source.disk("v/db")) == content(mirror.disk(&format!("{name}/db"))), "the image differs");
    let named = |server: &Running, of: &str| -> Vec<String> {
        let list = server.json(&["snapshot", "list", of]);
        let names = list.as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap());
        let names = names.map(|name| name.split_once('@').unwrap().1.to_owned());
        names.filter(|name| !name.starts_with("mirror.")).collect()
    };
    let names = named(source, "v");
    assert_eq!(names, named(mirror, name), "the same snapshots");
    for snapshot in names {
        let (here, there) = (format!("v@{snapshot}/db"), format!("{name}@{snapshot}/db"));
        assert!(content(source.disk(&here)) == content(mirror.disk(&there)), "{snapshot} differs");
    }
    assert!(mirror.good(&["volume", "check", name]).contains("sound"));
}

/// Begins a command that is not waited for.
fn begin(server: &Running, arguments: &[&str]) -> Child {
    let mut command = running::cairn();
    command.args(arguments).arg("--data").arg(&server.data);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Writes one block of the LUN of a volume.
fn write(server: &Running, export: &str, block: u64, byte: u8) {
    let mut disk = server.disk(export);
    disk.write(block * 4096, &[byte; 4096]).unwrap();
    disk.flush().unwrap();
}

#[test]
fn restored_dump_becomes_a_mirror_and_only_changes_are_sent() {
    let dir = tempfile::tempdir().unwrap();
    let (source, other, dump) = source_and_other(dir.path());
    other.good(&["image", "restore", "copy", &dump]);
    fill(&source, 3000, CHANGED, 3);
    source.good(&["snapshot", "create", "v@tuesday"]);
    source.good(&["snapshot", "rename", "v@monday", "first"]);
    let token = invite(&source);
    // A dry run changes nothing, and the token can be used again.
    let plan = other.json(&["mirror", "create", "v", &token, "--from", "copy", "-n"]);
    let changed = plan["changed_bytes"].as_u64().unwrap();
    assert!((CHANGED * 4096..CHANGED * 4096 * 2).contains(&changed), "{plan}");
    assert_eq!(plan["divergence"]["diverged"], false, "{plan}");
    assert!(plan["divergence"]["common"].as_str().unwrap().starts_with("image.0."), "{plan}");
    assert!(other.json(&["mirror", "list"]).as_array().unwrap().is_empty());
    // A second volume of that name would need a full copy, and says how to avoid that.
    let next = other.advice(32, &["mirror", "create", "v", &token, "--as", "copy"]);
    assert!(next.contains("--from copy"), "{next}");
    other.good(&["mirror", "create", "v", &token, "--from", "copy"]);
    assert_same(&source, &other, "copy");
    let shown = status(&other, "copy");
    assert_eq!(shown["state"], "mirrored", "{shown}");
    let sent = shown["last"]["sent_bytes"].as_u64().unwrap();
    assert!(sent < CHANGED * 4096 * 2, "{shown}");
    assert!(other.disk("copy/db").write(0, &[9; 4096]).is_err(), "it is read-only now");
    // It is a mirror as any other from then on.
    fill(&source, 4000, CHANGED, 4);
    other.good(&["mirror", "update", "copy"]);
    assert_same(&source, &other, "copy");
    other.bad(13, "wrong-role", &["mirror", "create", "v", &token, "--from", "copy"]);
    other.good(&["mirror", "failover", "copy", "--yes"]);
    write(&other, "copy/db", 1, 9);
}

#[test]
fn copy_that_was_written_to_is_refused_until_its_owner_decides() {
    let dir = tempfile::tempdir().unwrap();
    let (source, other, dump) = source_and_other(dir.path());
    other.good(&["image", "restore", "copy", &dump]);
    write(&other, "copy/db", 7, 9);
    other.good(&["snapshot", "create", "copy@mine"]);
    write(&other, "copy/db", 8, 9);
    let own = content(other.disk("copy/db"));
    let token = invite(&source);
    let message = other.bad(13, "diverged", &["mirror", "create", "v", &token, "--from", "copy"]);
    assert!(message.contains("image.0.") && message.contains("mine"), "{message}");
    assert!(content(other.disk("copy/db")) == own, "nothing was changed");
    write(&other, "copy/db", 8, 9);
    assert!(other.json(&["mirror", "list"]).as_array().unwrap().is_empty());
    let plan = other.json(&["mirror", "create", "v", &token, "--from", "copy", "-n"]);
    assert_eq!(plan["divergence"]["snapshots"], serde_json::json!(["mine"]), "{plan}");
    // The flag alone is no answer to the question that is asked.
    other.bad(2, "usage", &["mirror", "create", "v", &token, "--from", "copy", "--discard-divergent"]);
    let spill = path(dir.path(), "lost.cairn");
    other.good(&["mirror", "create", "v", &token, "--from", "copy", "--spill", &spill]);
    assert_same(&source, &other, "copy");
    other.good(&["image", "verify", &dump, &spill]);
    assert_eq!(status(&other, "copy")["spill"], spill.as_str());
}

#[test]
fn seed_without_a_common_snapshot_or_of_another_volume_is_refused_with_the_next_step() {
    let dir = tempfile::tempdir().unwrap();
    let (source, other, dump) = source_and_other(dir.path());
    other.good(&["image", "restore", "copy", &dump]);
    source.good(&["image", "levels", "v", "--forget", "0", "--yes"]);
    source.good(&["snapshot", "delete", "v@monday", "--yes"]);
    fill(&source, 3000, CHANGED, 3);
    let token = invite(&source);
    let create = ["mirror", "create", "v", &token, "--from", "copy"];
    let message = other.bad(13, "diverged", &create);
    assert!(message.contains("none of the snapshots") && message.contains("image.0."), "{message}");
    let next = other.advice(13, &create);
    assert!(next.contains("--compare --discard-divergent") && next.contains("image restore"), "{next}");
    write(&other, "copy/db", 0, 1);
    let plan = other.json(&[&create[..], &["-n"]].concat());
    assert!(plan["changed_bytes"].is_null() && plan["compare_bytes"].as_u64() > Some(0), "{plan}");
    other.good(&[&create[..], &["--compare", "--discard-divergent", "--yes"]].concat());
    assert_same(&source, &other, "copy");
    let sent = status(&other, "copy")["last"]["sent_bytes"].as_u64().unwrap();
    assert!(sent < CHANGED * 4096 * 3, "checksums are compared: {sent}");

    other.good(&["volume", "create", "w", "--size", "64M"]);
    let token = invite(&source);
    let message = other.bad(13, "diverged", &["mirror", "create", "v", &token, "--from", "w"]);
    assert!(message.contains("no copy of"), "{message}");
    other.bad(10, "not-found", &["mirror", "create", "v", &token, "--from", "nothing"]);
    let with_disk = ["mirror", "create", "v", &token, "--from", "w", "--device", "/dev/null"];
    assert_eq!(other.run(&with_disk).status.code(), Some(2), "it has its disks");
}

#[test]
fn killed_servers_resume_the_first_update_of_a_seed() {
    let dir = tempfile::tempdir().unwrap();
    let (mut source, mut other, dump) = source_and_other(dir.path());
    other.good(&["image", "restore", "copy", &dump]);
    fill(&source, 1000, 3000, 3);
    let token = invite(&source);
    let arrives = |other: &Running| {
        let shown = other.run(&["mirror", "status", "copy", "--json"]);
        let shown: Value = serde_json::from_slice(&shown.stdout).unwrap_or_default();
        shown["last"]["sent_bytes"].as_u64().unwrap_or_default() > 1 << 20
    };
    let create = ["mirror", "create", "v", &token, "--from", "copy", "--every", "1h", "--limit", "2M"];
    let mut running = begin(&other, &create);
    wait_until("it is transferred", || arrives(&other));
    other.kill();
    let _ = running.wait();
    other.restart();
    let before = content(other.disk("copy/db"));
    assert!(before != content(source.disk("v/db")), "it shows its own state until the image is whole");
    let mut running = begin(&other, &["mirror", "update", "copy"]);
    wait_until("it is transferred again", || arrives(&other));
    source.kill();
    let _ = running.wait();
    assert!(content(other.disk("copy/db")) == before, "nothing was torn");
    source.restart();
    other.good(&["mirror", "set", "copy", "--limit", "off"]);
    wait_until("it is updated", || other.run(&["mirror", "update", "copy"]).status.success());
    assert_same(&source, &other, "copy");
    let sent = status(&other, "copy")["sent_bytes"].as_u64().unwrap();
    assert!(sent < 3000 * 4096, "what had arrived was kept: {sent}");
}

#[test]
fn old_copy_of_a_destination_follows_again_without_a_baseline() {
    let dir = tempfile::tempdir().unwrap();
    let (source, mut other, dump) = source_and_other(dir.path());
    other.good(&["image", "restore", "copy", &dump]);
    other.good(&["mirror", "create", "v", &invite(&source), "--from", "copy"]);
    let old = path(dir.path(), "old.0");
    other.good(&["image", "dump", "copy", "-0", "--to", &old]);
    fill(&source, 3000, CHANGED, 3);
    other.good(&["mirror", "update", "copy"]);
    // The destination is lost, and a new server gets the dump of the mirror. The snapshots of the
    // mirror were deleted since, and the owner's is left.
    other.kill();
    let new = Running::start(dir.path(), "f");
    new.good(&["image", "restore", "v", &old]);
    let token = invite(&source);
    new.good(&["mirror", "create", "v", &token, "--from", "v", "--every", "1h"]);
    assert_same(&source, &new, "v");
    let sent = status(&new, "v")["last"]["sent_bytes"].as_u64().unwrap();
    assert!(sent < CHANGED * 4096 * 2, "{sent}");
}

/// A, its mirror B, and the mirror C of B.
fn chain(dir: &Path) -> (Running, Running, Running) {
    let mut first = server_with_disk(dir);
    first.stay();
    first.good(&["snapshot", "create", "v@monday"]);
    let mut middle = Running::start(dir, "e");
    middle.stay();
    middle.good(&["mirror", "create", "v", &invite(&first)]);
    let mut last = Running::start(dir, "f");
    last.stay();
    last.good(&["mirror", "create", "v", &invite(&middle)]);
    (first, middle, last)
}

#[test]
fn last_of_a_chain_resyncs_from_the_middle_while_that_is_a_mirror() {
    let dir = tempfile::tempdir().unwrap();
    let (first, middle, last) = chain(dir.path());
    // Both are broken, and all three are written to.
    middle.good(&["mirror", "failover", "v", "--yes"]);
    last.good(&["mirror", "failover", "v", "--yes"]);
    for (server, byte) in [(&first, 1), (&middle, 2), (&last, 3)] {
        write(server, "v/db", u64::from(byte), byte);
    }
    middle.good(&["snapshot", "create", "v@of-the-middle"]);
    // The middle takes writes: it is not to follow the last one, which does not follow it.
    middle.good(&["mirror", "resync", "v", "--discard-divergent", "--yes"]);
    assert_same(&first, &middle, "v");
    // The middle is a mirror now, and the last one follows its image.
    let asked = last.json(&["mirror", "resync", "v", "-n"]);
    assert_eq!((&asked["other_takes_writes"], &asked["other_is_mirror"]), (&false.into(), &true.into()));
    last.bad(13, "diverged", &["mirror", "resync", "v"]);
    last.good(&["mirror", "resync", "v", "--discard-divergent", "--yes"]);
    assert_same(&first, &last, "v");
    let shown = status(&last, "v");
    assert!(shown["last"]["sent_bytes"].as_u64().unwrap() < 2 << 20, "only differences: {shown}");
    write(&first, "v/db", 9, 9);
    middle.good(&["mirror", "update", "v"]);
    last.good(&["mirror", "update", "v"]);
    assert_same(&first, &last, "v");
}

#[test]
fn last_of_a_chain_that_followed_the_broken_middle_follows_again() {
    let dir = tempfile::tempdir().unwrap();
    let (first, middle, last) = chain(dir.path());
    middle.good(&["mirror", "failover", "v", "--yes"]);
    write(&middle, "v/db", 2, 2);
    middle.good(&["snapshot", "create", "v@of-the-middle"]);
    last.good(&["mirror", "update", "v"]);
    write(&first, "v/db", 1, 1);
    first.good(&["snapshot", "create", "v@tuesday"]);
    middle.good(&["mirror", "resync", "v", "--discard-divergent", "--yes"]);
    if !last.run(&["mirror", "update", "v"]).status.success() {
        last.good(&["mirror", "resync", "v", "--discard-divergent", "--yes"]);
    }
    assert_same(&first, &last, "v");
    write(&first, "v/db", 9, 9);
    middle.good(&["mirror", "update", "v"]);
    last.good(&["mirror", "update", "v"]);
    assert_same(&first, &last, "v");
}

#[test]
fn side_does_not_give_way_to_its_own_mirror() {
    let dir = tempfile::tempdir().unwrap();
    let (first, middle, last) = chain(dir.path());
    last.good(&["mirror", "failover", "v", "--yes"]);
    write(&last, "v/db", 3, 3);
    // The middle follows the last one by now: the last one must not follow it.
    let token = invite(&last);
    middle.good(&["mirror", "failover", "v", "--yes"]);
    write(&middle, "v/db", 2, 2);
    let created =
        middle.run(&["mirror", "create", "v", &token, "--from", "v", "--discard-divergent", "--yes"]);
    assert!(created.status.success(), "{}", String::from_utf8_lossy(&created.stderr));
    assert!(content(middle.disk("v/db")) == content(last.disk("v/db")));
    let message = last.bad(13, "wrong-role", &["mirror", "resync", "v", "--discard-divergent", "--yes"]);
    assert!(message.contains("mirror of this side"), "{message}");
    write(&last, "v/db", 3, 4);
    drop(first);
}
