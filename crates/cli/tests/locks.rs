//! Locks of a mirror's snapshots against the administrator of its own server: locked snapshots
//! stay, and a lock key lifts the locks.

mod running;

use std::path::Path;

use running::vol0::write;
use running::{Running, path, wait_until};
use serde_json::Value;

/// A source with a snapshot, and a mirror that keeps it for 30 days.
fn locked(dir: &Path, more: &[&str]) -> (Running, Running) {
    let mut source = Running::start(dir, "source");
    source.stay();
    source.good(&["volume", "create", "vol0", "--size", "64M"]);
    source.good(&["lun", "create", "vol0/db", "--size", "4M"]);
    write(&source, 0, 1, 256 << 10);
    let mut destination = Running::start(dir, "destination");
    destination.stay();
    destination.good(&[&["mirror", "create", "vol0", &source.invite(), "--lock", "30d"], more].concat());
    source.good(&["snapshot", "create", "vol0@payroll"]);
    destination.good(&["mirror", "update", "vol0"]);
    (source, destination)
}

fn status(server: &Running) -> Value {
    server.json(&["mirror", "status", "vol0"])
}

fn has_payroll(server: &Running) -> bool {
    let mut disk = server.disk("vol0@payroll/db");
    disk.read(0, 4096).unwrap() == [1; 4096]
}

/// Tries a command that must not destroy the snapshot.
fn stays(server: &Running, arguments: &[&str]) {
    let message = server.bad(11, "busy", arguments);
    assert!(message.contains("vol0@payroll` is locked until"), "{arguments:?}: {message}");
    assert!(has_payroll(server), "{arguments:?}");
}

#[test]
fn locked_snapshot_outlives_every_command_of_its_own_administrator() {
    let dir = tempfile::tempdir().unwrap();
    let (source, mut destination) = locked(dir.path(), &[]);
    assert_eq!(status(&destination)["locked"], 1);
    let delete_mirror = ["mirror", "delete", "vol0", "--yes"];
    stays(&destination, &delete_mirror);
    // A lock that is shortened or taken off counts for later snapshots, also after a restart.
    for lock in ["1s", "off"] {
        destination.good(&["mirror", "set", "vol0", "--lock", lock]);
        stays(&destination, &delete_mirror);
        destination.kill();
        destination.restart();
        stays(&destination, &delete_mirror);
    }
    // Nor may a key be set that would lift it.
    let key = path(dir.path(), "key");
    std::fs::write(&key, "a secret of enough bytes").unwrap();
    destination.bad(11, "busy", &["mirror", "set", "vol0", "--lock-key", &key]);
    destination.bad(10, "not-found", &["mirror", "unlock", "vol0", "--lock-key", &key]);
    source.good(&["snapshot", "delete", "vol0@payroll", "--yes"]);
    write(&source, 0, 2, 4096);
    destination.bad(13, "diverged", &["mirror", "update", "vol0"]);
    // Once it takes writes it is an ordinary volume, but for its locks.
    destination.good(&["mirror", "failover", "vol0", "--yes"]);
    for _ in 0..2 {
        for command in [
            &["snapshot", "delete", "vol0@payroll", "--yes"][..],
            &["snapshot", "rename", "vol0@payroll", "other"],
            &["volume", "delete", "vol0", "--yes"],
            &["mirror", "resync", "vol0", "--discard-divergent", "--yes"],
            &["mirror", "resync", "vol0", "--spill", &path(dir.path(), "spill")],
        ] {
            stays(&destination, command);
        }
        destination.good(&["snapshot", "rollback", "vol0@payroll", "--yes"]);
        destination.kill();
        destination.restart();
    }
}

#[test]
fn locked_snapshot_outlives_changes_of_role() {
    let dir = tempfile::tempdir().unwrap();
    let (source, destination) = locked(dir.path(), &[]);
    destination.good(&["mirror", "set", "vol0", "--lock", "off"]);
    source.good(&["mirror", "allow-reverse", "vol0"]);
    destination.good(&["mirror", "reverse", "vol0", "--yes"]);
    stays(&destination, &["snapshot", "delete", "vol0@payroll", "--yes"]);
    source.good(&["mirror", "failback", "vol0"]);
    destination.good(&["mirror", "update", "vol0"]);
    stays(&destination, &["mirror", "delete", "vol0", "--yes"]);
    // A snapshot that the source deletes meanwhile stays here.
    source.good(&["snapshot", "delete", "vol0@payroll", "--yes"]);
    destination.bad(13, "diverged", &["mirror", "update", "vol0"]);
    assert!(has_payroll(&destination));
}

#[test]
fn locked_snapshot_keeps_its_volume_also_while_that_is_not_open() {
    let dir = tempfile::tempdir().unwrap();
    let (_source, mut destination) = locked(dir.path(), &[]);
    destination.good(&["mirror", "failover", "vol0", "--yes"]);
    destination.kill();
    let folder = destination.data.join("volumes/vol0");
    let device = std::fs::read_dir(&folder).unwrap().map(|found| found.unwrap().path());
    let device = device.max_by_key(|path| path.metadata().unwrap().len()).unwrap();
    let aside = dir.path().join("aside");
    std::fs::rename(&device, &aside).unwrap();
    destination.restart();
    let message = destination.bad(11, "busy", &["volume", "delete", "vol0", "--yes"]);
    assert!(message.contains("is locked until"), "{message}");
    destination.kill();
    std::fs::rename(&aside, &device).unwrap();
    destination.restart();
    assert!(has_payroll(&destination));
}

#[test]
fn lock_key_lifts_locks_for_a_while_and_nothing_else_does() {
    let dir = tempfile::tempdir().unwrap();
    let (key, other) = (path(dir.path(), "key"), path(dir.path(), "other"));
    std::fs::write(&key, "a secret of enough bytes\n").unwrap();
    std::fs::write(&other, "another of enough bytes\n").unwrap();
    let (_source, mut destination) = locked(dir.path(), &["--lock-key", &key]);
    let delete = ["mirror", "delete", "vol0", "--yes"];
    let document = std::fs::read_to_string(destination.data.join("volumes/vol0/mirror.json")).unwrap();
    assert!(!document.contains("a secret"), "only a digest of it is kept");
    destination.bad(12, "unauthorized", &["mirror", "unlock", "vol0", "--lock-key", &other]);
    destination.bad(11, "busy", &["mirror", "set", "vol0", "--lock-key", &other]);
    let advice = destination.advice(11, &delete).replace("FILE", &key);
    destination.follow(&advice, "unlock");
    assert!(status(&destination)["unlocked_ms"].as_u64().unwrap() > 0);
    assert!(destination.json(&["status"])["problems"].to_string().contains("locks are lifted"));
    // Its owner, or a restart, puts the locks in force again.
    destination.good(&["mirror", "unlock", "vol0", "--lock-key", &key, "--off"]);
    stays(&destination, &delete);
    destination.follow(&advice, "unlock");
    destination.kill();
    destination.restart();
    stays(&destination, &delete);
    destination.follow(&advice, "unlock");
    destination.good(&delete);
}

#[test]
fn lock_where_the_source_makes_no_snapshots_is_said_to_protect_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let source = Running::start(dir.path(), "source");
    source.good(&["volume", "create", "vol0", "--size", "64M"]);
    source.good(&["lun", "create", "vol0/db", "--size", "4M"]);
    let destination = Running::start(dir.path(), "destination");
    let said = destination.good(&["mirror", "create", "vol0", &source.invite(), "--lock", "30d"]);
    assert!(said.contains("its lock protects nothing"), "{said}");
    let shown = status(&destination);
    assert!(shown["check"] == 1 && shown["reason"].to_string().contains("protects nothing"), "{shown}");
    let check = destination.run(&["mirror", "check", "vol0"]);
    assert_eq!(check.status.code(), Some(1), "{check:?}");
    let problems = destination.json(&["status"])["problems"].clone();
    assert!(problems.to_string().contains("protects nothing"), "{problems}");
    source.follow(shown["remedy"].as_str().unwrap(), "schedule");
    source.good(&["snapshot", "create", "vol0@payroll"]);
    destination.good(&["mirror", "update", "vol0"]);
    wait_until("the lock has something to keep", || status(&destination)["check"] == 0);
    assert!(destination.good(&["mirror", "status", "vol0"]).contains("1 snapshot(s) are locked"));
}

#[test]
fn volume_goes_back_to_no_instant_before_a_locked_snapshot_came() {
    let dir = tempfile::tempdir().unwrap();
    let store = path(dir.path(), "store");
    let (source, destination) = locked(dir.path(), &["--history", &store]);
    let history = destination.json(&["history", "status", "vol0"]);
    let marks: Vec<&str> =
        history["marks"].as_array().unwrap().iter().map(|mark| mark["name"].as_str().unwrap()).collect();
    write(&source, 0, 3, 4096);
    destination.good(&["mirror", "update", "vol0"]);
    stays(&destination, &["mirror", "rewind", "vol0", "--mark", marks[0], "--yes"]);
    stays(&destination, &["mirror", "rewind", "vol0", "--mark", marks[0], "-n"]);
    destination.good(&["mirror", "rewind", "vol0", "--mark", marks[1], "--yes"]);
    assert!(has_payroll(&destination));
    stays(&destination, &["mirror", "delete", "vol0", "--yes"]);
}
