//! One damaged state file: the server starts, everything else is served, and the owner of the file
//! is reported and protected.

#[allow(dead_code, reason = "this test program uses a part of it")]
#[path = "../../frontend/iscsi/tests/harness/initiator.rs"]
mod initiator;
mod running;

use std::path::Path;

use initiator::Initiator;
use running::{Running, path, wait_until};
use serde_json::Value;

/// The content of the file after the damage: the beginning of a document, as an interrupted write
/// leaves it.
const DAMAGE: &[u8] = b"{\n  \"version\": 1,\n  \"vol";

/// The problem of `cairn status` that names a file.
fn problem(server: &Running, file: &str) -> Option<Value> {
    let status = server.json(&["status"]);
    let names = |problem: &&Value| problem["message"].as_str().unwrap().contains(file);
    status["problems"].as_array().unwrap().iter().find(names).cloned()
}

/// Damages a file, starts the server on it, and mends it after `look` has.
fn damaged<T>(server: &mut Running, file: &str, look: impl FnOnce(&Running) -> T) -> T {
    let path = server.data.join(file);
    // A missing one is damaged as well: it is unknown whether it was empty.
    let whole = std::fs::read(&path).ok();
    server.terminate();
    std::fs::write(&path, DAMAGE).unwrap();
    server.restart();
    let told = problem(server, file).unwrap_or_else(|| panic!("{file} is not told"));
    assert!(told["next"].as_str().unwrap().contains("cairn state"), "{told}");
    let found = server.json(&["state", "list"]);
    assert!(found.to_string().contains(file), "{found}");
    let seen = look(server);
    assert_eq!(std::fs::read(&path).unwrap(), DAMAGE, "{file} is left as it is");
    server.terminate();
    match whole {
        Some(whole) => std::fs::write(&path, whole).unwrap(),
        None => std::fs::remove_file(&path).unwrap(),
    }
    server.restart();
    assert!(problem(server, file).is_none(), "{file} is whole again");
    seen
}

/// A disk that is served, and takes writes.
fn takes_writes(server: &Running, export: &str) {
    let mut disk = server.disk(export);
    disk.write(0, &[7; 4096]).unwrap();
    disk.flush().unwrap();
}

fn has_snapshot(server: &Running, volume: &str, name: &str) -> bool {
    server.good(&["snapshot", "list", volume]).contains(name)
}

/// A volume with a disk.
fn volume(server: &Running, name: &str) {
    server.good(&["volume", "create", name, "--size", "64M"]);
    server.good(&["lun", "create", &format!("{name}/db"), "--size", "8M"]);
    takes_writes(server, &format!("{name}/db"));
}

#[test]
fn each_state_file_of_a_server_may_be_damaged_and_everything_else_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Running::start(dir.path(), "d");
    volume(&server, "v");
    volume(&server, "w");
    server.good(&["volume", "hooks", "v", "--before", "true"]);
    server.good(&["volume", "governor", "v", "--p99", "50ms"]);
    server.good(&["snapshot", "schedule", "set", "v", "hourly", "--every", "1h", "--keep-last", "1"]);
    server.good(&["snapshot", "create", "v@one"]);
    server.good(&["group", "create", "g", "v", "w"]);
    server.good(&["snapshot", "create", "--group", "g"]);
    server.invite();
    server.good(&["export", "set", "w/db", "--network", "10.0.0.0/8"]);

    let (code, kind) = (27, "damaged");
    damaged(&mut server, "volumes/v/hooks.json", |server| {
        takes_writes(server, "v/db");
        server.bad(code, kind, &["snapshot", "create", "v@two"]);
        server.bad(code, kind, &["volume", "hooks", "v", "--before", ""]);
        server.good(&["snapshot", "create", "w@two"]);
    });
    damaged(&mut server, "volumes/v/governor.json", |server| {
        takes_writes(server, "v/db");
        server.bad(code, kind, &["volume", "governor", "v", "--p99", "off"]);
    });
    damaged(&mut server, "volumes/v/schedules.json", |server| {
        takes_writes(server, "v/db");
        let set = ["snapshot", "schedule", "set", "v", "daily", "--every", "1d", "--keep-last", "1", "--yes"];
        server.bad(code, kind, &set);
        assert!(has_snapshot(server, "v", "one"), "nothing is deleted by rules that are not known");
    });
    damaged(&mut server, "groups.json", |server| {
        takes_writes(server, "v/db");
        for refused in [
            &["group", "create", "h", "v", "w"][..],
            &["group", "failover", "g", "--yes"],
            &["group", "set", "g", "--every", "1h"],
            &["snapshot", "create", "--group", "g"],
        ] {
            server.bad(code, kind, refused);
        }
    });
    damaged(&mut server, "peers.json", |server| {
        takes_writes(server, "v/db");
        server.bad(code, kind, &["peer", "invite"]);
    });
    damaged(&mut server, "exports.json", |server| {
        // The permitted clients of all disks are unknown: no client gets one.
        assert!(!server.has_export("v/db") && !server.has_export("w/db"));
        server.bad(code, kind, &["export", "set", "w/db", "--any-network"]);
        server.good(&["snapshot", "create", "v@three"]);
    });
    takes_writes(&server, "v/db");
    damaged(&mut server, "reservations.json", |server| {
        takes_writes(server, "v/db");
        let portal = server.json(&["status"])["iscsi"][0].as_str().unwrap().to_owned();
        let login = Initiator::login(&portal, "iqn.2026-11.io.cairn:v.db", 1, false).map(drop);
        assert_eq!(login, Err(0x0301), "who was fenced off is not known");
    });
    for file in ["followers.json", "mounts.json", "nfs.json"] {
        damaged(&mut server, file, |server| takes_writes(server, "v/db"));
    }
    for file in ["scrub", "views", "dumps", "dates", "reverse", "drill"] {
        damaged(&mut server, &format!("volumes/v/{file}.json"), |server| takes_writes(server, "v/db"));
    }
    damaged(&mut server, "volumes/w/volume.json", |server| {
        takes_writes(server, "v/db");
        assert!(!server.has_export("w/db"));
    });
    takes_writes(&server, "w/db");
}

#[test]
fn device_whose_settings_are_damaged_is_not_exported_nor_is_the_lun_that_it_is_on() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Running::start(dir.path(), "d");
    volume(&server, "v");
    server.good(&["lun", "create", "v/other", "--size", "8M"]);
    let history = path(dir.path(), "history");
    server.good(&["device", "adopt", "disk0", "--origin", "lun:v/db", "--history", &history]);
    takes_writes(&server, "disk0");
    let plain = path(dir.path(), "plain");
    server.good(&["device", "adopt", "disk1", "--origin", &plain, "--size", "8M"]);
    damaged(&mut server, "devices/disk0.json", |server| {
        takes_writes(server, "disk1");
        takes_writes(server, "v/other");
        assert!(!server.has_export("disk0"), "how it remembers is not known");
        assert!(!server.has_export("v/db"), "a write past its history would be missing there");
        for refused in [&["device", "release", "disk0", "--yes"][..], &["lun", "delete", "v/db", "--yes"]] {
            assert!(!server.run(refused).status.success(), "{refused:?}");
        }
        server.bad(21, "taken", &["device", "adopt", "disk0", "--origin", &plain]);
    });
    takes_writes(&server, "disk0");
    // Without the copy beside it, it is unknown which LUN it is: no LUN takes writes.
    server.terminate();
    std::fs::remove_file(server.data.join("devices/disk0.json.old")).unwrap();
    let document = server.data.join("devices/disk0.json");
    let whole = std::fs::read(&document).unwrap();
    std::fs::write(&document, b"").unwrap();
    server.restart();
    assert!(server.disk("v/other").write(0, &[1; 4096]).is_err(), "it may be the one");
    takes_writes(&server, "disk1");
    let mut early = server.disk("v/db");
    early.read(0, 4096).expect("it may be any disk");
    // After it is restored, the server loads it without a restart.
    std::fs::write(&document, whole).unwrap();
    server.good(&["state", "restore", "devices/disk0.json"]);
    takes_writes(&server, "disk0");
    takes_writes(&server, "v/other");
    assert!(early.read(0, 4096).is_err(), "it would go on past the device");
}

#[test]
fn disk_of_a_device_whose_settings_are_put_back_is_nobodys_until_the_device_has_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Running::start(dir.path(), "d");
    volume(&server, "v");
    let history = path(dir.path(), "history");
    server.good(&["device", "adopt", "disk0", "--origin", "lun:v/db", "--history", &history]);
    takes_writes(&server, "disk0");
    server.terminate();
    let document = server.data.join("devices/disk0.json");
    let whole = std::fs::read(&document).unwrap();
    std::fs::write(&document, DAMAGE).unwrap();
    server.restart();
    assert!(!server.has_export("v/db"), "it is kept for the device");
    std::fs::write(&document, whole).unwrap();
    // A process that has the store open closes it after some seconds, and an opening waits for
    // that.
    let store = std::fs::File::open(&history).unwrap();
    store.try_lock().unwrap();
    let restore = ["state", "restore", "devices/disk0.json"];
    std::thread::scope(|scope| {
        let restored = scope.spawn(|| server.run(&restore));
        let got_past = (0..30).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(50));
            server.has_export("v/db")
        });
        drop(store);
        restored.join().unwrap();
        assert!(!got_past, "what is written to it is missing in the history of the device");
    });
    wait_until("the device is open", || server.has_export("disk0"));
    takes_writes(&server, "disk0");
}

/// A source of `data` and `logs`, and their mirrors, which belong together on both sides.
fn mirrored(dir: &Path) -> (Running, Running) {
    let mut source = Running::start(dir, "source");
    source.stay();
    let mut mirror = Running::start(dir, "mirror");
    mirror.stay();
    for name in ["data", "logs"] {
        volume(&source, name);
    }
    source.good(&["group", "create", "bank", "data", "logs"]);
    source.good(&["snapshot", "create", "--group", "bank"]);
    for name in ["data", "logs"] {
        let token = source.invite();
        mirror.good(&["mirror", "create", name, &token, "--lock", "1h"]);
    }
    mirror.good(&["group", "create", "bank", "data", "logs"]);
    (source, mirror)
}

/// A way back of the mirror `data` that fails while its document is written leaves it as it was,
/// also for the next start.
fn fails_and_changes_nothing(mirror: &mut Running, command: &[&str]) {
    let folder = mirror.data.join("volumes/data");
    std::fs::create_dir(folder.join("mirror.new")).unwrap();
    assert!(!mirror.run(command).status.success());
    assert_eq!(std::fs::read(folder.join("mirror.json")).unwrap(), DAMAGE);
    mirror.terminate();
    mirror.restart();
    assert_eq!(mirror.json(&["mirror", "status", "data"])["state"], "unknown");
    std::fs::remove_dir(folder.join("mirror.new")).unwrap();
    std::fs::remove_file(folder.join("mirror.json.damaged")).unwrap();
}

#[test]
fn mirror_whose_document_is_damaged_takes_neither_writes_nor_updates_until_it_is_known_again() {
    let dir = tempfile::tempdir().unwrap();
    let (source, mut mirror) = mirrored(dir.path());
    mirror.good(&["mirror", "drill", "data", "--probe", "true"]);
    let image = mirror.json(&["mirror", "status", "data"])["image"].clone();
    takes_writes(&source, "data/db");
    let (code, kind) = (27, "damaged");
    damaged(&mut mirror, "volumes/data/drill.json", |mirror| {
        mirror.bad(code, kind, &["mirror", "drill", "data", "--probe", "true"]);
        mirror.good(&["mirror", "update", "logs"]);
    });
    damaged(&mut mirror, "volumes/data/mirror.json", |mirror| {
        for refused in [
            &["mirror", "update", "data"][..],
            &["mirror", "reverse", "data", "--yes"],
            &["mirror", "set", "data", "--every", "1h"],
            &["mirror", "delete", "data", "--yes"],
            &["volume", "delete", "data", "--yes"],
            &["group", "failover", "bank", "--yes"],
        ] {
            mirror.bad(code, kind, refused);
        }
        let shown = mirror.json(&["mirror", "status", "data"]);
        assert_eq!(
            (&shown["state"], &shown["check"], &shown["image"]),
            (&"unknown".into(), &2.into(), &image)
        );
        let checked = mirror.run(&["mirror", "check"]);
        assert_eq!(checked.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&checked.stdout).starts_with("CRITICAL"), "{checked:?}");
        assert!(mirror.disk("data/db").write(0, &[9; 4096]).is_err(), "it is somebody's copy still");
        mirror.good(&["mirror", "update", "logs"]);
    });
    mirror.good(&["mirror", "update", "data"]);
    assert_ne!(mirror.json(&["mirror", "status", "data"])["image"], image);

    // The previous generation is a way back, and its content is checked before any update.
    mirror.terminate();
    std::fs::write(mirror.data.join("volumes/data/mirror.json"), DAMAGE).unwrap();
    mirror.restart();
    let listed = mirror.json(&["state", "list"]);
    assert!(listed[0]["previous_ms"].is_u64(), "{listed}");
    let restore = ["state", "restore", "volumes/data/mirror.json", "--previous"];
    fails_and_changes_nothing(&mut mirror, &restore);
    mirror.good(&restore);
    let shown = mirror.json(&["mirror", "status", "data"]);
    assert_eq!((&shown["state"], &shown["lock_ms"]), (&"paused".into(), &3_600_000.into()), "{shown}");
    assert_eq!(std::fs::read(mirror.data.join("volumes/data/mirror.json.damaged")).unwrap(), DAMAGE);
    mirror.bad(10, "not-found", &restore);
    mirror.good(&["mirror", "resume", "data"]);
    mirror.good(&["mirror", "update", "data"]);
}

#[test]
fn mirror_of_which_everything_was_given_up_keeps_its_snapshots_and_takes_a_source_again() {
    let dir = tempfile::tempdir().unwrap();
    let (source, mut mirror) = mirrored(dir.path());
    source.good(&["snapshot", "create", "data@dear"]);
    mirror.good(&["mirror", "update", "data"]);
    mirror.terminate();
    std::fs::write(mirror.data.join("volumes/data/mirror.json"), DAMAGE).unwrap();
    std::fs::remove_file(mirror.data.join("volumes/data/mirror.json.old")).unwrap();
    mirror.restart();
    let file = "volumes/data/mirror.json";
    mirror.bad(10, "not-found", &["state", "restore", file, "--previous"]);
    mirror.bad(27, "damaged", &["state", "restore", file]);
    mirror.bad(2, "usage", &["state", "give-up", file]);
    let told = mirror.good(&["state", "give-up", file, "-n"]);
    assert!(told.contains("repoint"), "{told}");
    fails_and_changes_nothing(&mut mirror, &["state", "give-up", file, "--yes"]);
    mirror.good(&["state", "give-up", file, "--yes"]);
    assert!(problem(&mirror, "mirror.json").is_none());
    let shown = mirror.json(&["mirror", "status", "data"]);
    assert_eq!((&shown["state"], &shown["check"]), (&"unknown".into(), &2.into()), "{shown}");
    mirror.bad(30, "peer-unreachable", &["mirror", "update", "data"]);
    let token = source.invite();
    mirror.good(&["mirror", "repoint", "data", &token]);
    assert_eq!(mirror.json(&["mirror", "status", "data"])["state"], "mirrored");
    // The retention of the snapshots here is unknown: the source does not remove them.
    source.good(&["snapshot", "delete", "data@dear", "--yes"]);
    assert!(!mirror.run(&["mirror", "update", "data"]).status.success());
    assert!(has_snapshot(&mirror, "data", "dear"));
    mirror.good(&["mirror", "set", "data", "--lock", "off"]);
    mirror.good(&["mirror", "update", "data"]);
    assert!(!has_snapshot(&mirror, "data", "dear"));
    // The previous generation of the other one has a locked snapshot: its lock is not given up with
    // the file. A mirror without its source takes writes all the same.
    mirror.terminate();
    std::fs::write(mirror.data.join("volumes/logs/mirror.json"), DAMAGE).unwrap();
    mirror.restart();
    mirror.good(&["group", "delete", "bank"]);
    let refused = mirror.run(&["state", "give-up", "volumes/logs/mirror.json", "--yes"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("is locked until"), "{refused:?}");
    mirror.good(&["state", "restore", "volumes/logs/mirror.json", "--previous"]);
    mirror.good(&["mirror", "failover", "logs", "--yes"]);
    takes_writes(&mirror, "logs/db");
}

#[test]
fn mirrors_of_a_group_that_is_not_known_show_nothing_and_stay_what_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let (source, mut mirror) = mirrored(dir.path());
    volume(&source, "alone");
    let token = source.invite();
    mirror.good(&["mirror", "create", "alone", &token]);
    assert!(mirror.has_export("data/db"));
    damaged(&mut mirror, "groups.json", |mirror| {
        assert!(mirror.has_export("alone/db"), "no snapshot of a group is in it");
        assert!(!mirror.has_export("data/db"), "it may belong together with others");
        for refused in [
            &["group", "failover", "bank", "--yes"][..],
            &["mirror", "failover", "data", "--yes"],
            &["mirror", "reverse", "data", "--yes"],
            &["mirror", "update", "data"],
        ] {
            mirror.bad(27, "damaged", refused);
        }
        mirror.good(&["mirror", "update", "alone"]);
    });
    assert!(mirror.has_export("data/db"));
    mirror.good(&["mirror", "update", "data"]);
}

#[test]
fn failover_of_a_group_that_is_not_known_and_not_over_has_none_of_its_volumes_take_writes() {
    let dir = tempfile::tempdir().unwrap();
    let (_source, mut mirror) = mirrored(dir.path());
    let instant = mirror.json(&["group", "show", "bank"])["shown"]["name"].clone();
    mirror.good(&["group", "apart", "bank"]);
    mirror.good(&["mirror", "failover", "data", "--yes"]);
    mirror.good(&["group", "together", "bank"]);
    // As a kill leaves it when the first volume takes writes.
    mirror.kill();
    let path = mirror.data.join("groups.json");
    let mut document: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    document["groups"][0]["failover"] =
        serde_json::json!({ "snapshot": instant, "at_ms": 1, "done": ["data"], "reverse": false });
    std::fs::write(&path, document.to_string()).unwrap();
    mirror.restart();
    damaged(&mut mirror, "groups.json", |mirror| {
        assert!(!mirror.has_export("data/db"), "it would be of another instant than the other volume");
        assert!(!mirror.has_export("logs/db"));
        mirror.bad(27, "damaged", &["group", "failover", "bank", "--yes"]);
    });
    assert!(mirror.disk("data/db").write(0, &[7; 4096]).is_err(), "it shows the instant");
    mirror.good(&["group", "failover", "bank", "--yes"]);
    takes_writes(&mirror, "data/db");
    takes_writes(&mirror, "logs/db");
    // A finished failover locks no client out.
    damaged(&mut mirror, "groups.json", |mirror| takes_writes(mirror, "data/db"));
    // After it is given up, each volume has its own state.
    mirror.kill();
    std::fs::write(&path, document.to_string()).unwrap();
    mirror.restart();
    mirror.kill();
    std::fs::write(&path, DAMAGE).unwrap();
    mirror.restart();
    mirror.good(&["state", "give-up", "groups.json", "--yes"]);
    takes_writes(&mirror, "data/db");
}

#[test]
fn source_that_does_not_know_its_mirrors_or_its_peers_lets_nothing_go() {
    let dir = tempfile::tempdir().unwrap();
    let (mut source, mirror) = mirrored(dir.path());
    // The next run by the clock would delete all snapshots of the group except the mirrors' one.
    source.good(&["snapshot", "create", "--group", "bank"]);
    mirror.good(&["mirror", "update", "data"]);
    mirror.good(&["mirror", "update", "logs"]);
    source.good(&["snapshot", "create", "--group", "bank"]);
    source.good(&["group", "set", "bank", "--every", "1d", "--keep-last", "1", "--yes"]);
    assert_eq!(source.json(&["group", "show", "bank"])["deletes"].as_array().unwrap().len(), 1);
    let name = mirror.json(&["mirror", "status", "data"])["source_name"].as_str().unwrap().to_owned();
    for file in ["followers.json", "peers.json"] {
        damaged(&mut source, file, |source| {
            let group = source.json(&["group", "show", "bank"]);
            assert!(group["deletes"].as_array().unwrap().is_empty(), "{file}: {group}");
            let status = source.json(&["status"]);
            assert!(status["leftovers"].as_array().unwrap().is_empty(), "{file}: for whom is not known");
            takes_writes(source, "data/db");
            if file == "followers.json" {
                source.bad(27, "damaged", &["mirror", "forget", "data", &name, "--yes"]);
            }
        });
        mirror.good(&["mirror", "update", "data"]);
    }
}

#[test]
fn clone_whose_document_is_damaged_keeps_what_it_is_made_of() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Running::start(dir.path(), "d");
    volume(&server, "v");
    server.good(&["snapshot", "create", "v@base"]);
    server.good(&["clone", "create", "v@base", "c"]);
    takes_writes(&server, "c/db");
    damaged(&mut server, "volumes/c/volume.json", |server| {
        takes_writes(server, "v/db");
        assert!(!server.run(&["snapshot", "delete", "v@base", "--yes"]).status.success());
        assert!(!server.run(&["volume", "delete", "v", "--yes"]).status.success());
    });
    // The copy is enough to be in service again.
    server.terminate();
    std::fs::write(server.data.join("volumes/c/volume.json"), DAMAGE).unwrap();
    server.restart();
    server.bad(2, "usage", &["state", "give-up", "volumes/c/volume.json", "--yes"]);
    server.good(&["state", "restore", "volumes/c/volume.json", "--previous"]);
    takes_writes(&server, "c/db");
}

#[test]
fn volume_whose_file_is_lost_is_told_with_the_ways_out_that_it_has() {
    let dir = tempfile::tempdir().unwrap();
    let mut source = Running::start(dir.path(), "source");
    source.stay();
    let mut server = Running::start(dir.path(), "destination");
    for volume in ["short", "gone", "zeroes"] {
        source.good(&["volume", "create", volume, "--size", "64M"]);
        let own = format!("own-{volume}");
        server.good(&["volume", "create", &own, "--size", "64M"]);
        server.good(&["mirror", "create", volume, &source.invite()]);
    }
    server.kill();
    for volume in ["short", "gone", "zeroes"] {
        for name in [volume.to_owned(), format!("own-{volume}")] {
            let file = server.data.join(format!("volumes/{name}/volume.img"));
            let bytes = std::fs::metadata(&file).unwrap().len();
            match volume {
                "short" => {
                    std::fs::File::options().write(true).open(&file).unwrap().set_len(bytes / 4).unwrap()
                }
                "gone" => std::fs::remove_file(&file).unwrap(),
                _ => std::fs::write(&file, vec![0; bytes as usize]).unwrap(),
            }
        }
    }
    server.restart();
    let problems = server.json(&["status"])["problems"].as_array().unwrap().clone();
    let next = |name: &str| {
        let found = problems.iter().find(|problem| problem["subject"] == name);
        found.unwrap_or_else(|| panic!("{name}: {problems:?}"))["next"].as_str().unwrap().to_owned()
    };
    for volume in ["short", "gone", "zeroes"] {
        let ways = next(volume);
        let wanted = [format!("cairn volume delete {volume}"), format!("cairn mirror create {volume} TOKEN")];
        assert!(wanted.iter().all(|way| ways.contains(way)), "{ways}");
        let own = format!("own-{volume}");
        let ways = next(&own);
        let wanted = [format!("cairn mirror failover {own}"), format!("cairn image restore {own}")];
        assert!(wanted.iter().all(|way| ways.contains(way)), "{ways}");
        // The reported commands work.
        server.good(&["volume", "delete", volume, "--yes"]);
        server.good(&["mirror", "create", volume, &source.invite()]);
        server.good(&["volume", "delete", &own, "--yes"]);
    }
    assert_eq!(server.json(&["status"])["problems"], serde_json::json!([]));
}

#[test]
fn key_that_is_damaged_is_never_made_anew_and_what_to_do_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Running::start(dir.path(), "d");
    assert_eq!(server.terminate(), 0);
    let path = server.data.join("identity.pem");
    let whole = std::fs::read(&path).unwrap();
    for damage in [&b""[..], &whole[..whole.len() / 2], &[0; 500]] {
        std::fs::write(&path, damage).unwrap();
        let mut serve = running::cairn();
        serve
            .args(["serve", "--nbd", "off", "--iscsi", "off", "--mirror", "off", "--data"])
            .arg(&server.data);
        let output = serve.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(27), "{said}");
        assert!(said.contains("put a copy of it back") && said.contains("cairn mirror repoint"), "{said}");
        assert_eq!(std::fs::read(&path).unwrap(), damage, "it is left as it is");
    }
    std::fs::write(&path, whole).unwrap();
    server.restart();
}

#[test]
fn mirror_is_failed_over_also_while_it_is_not_known_who_the_peers_are() {
    let dir = tempfile::tempdir().unwrap();
    let mut source = Running::start(dir.path(), "source");
    source.stay();
    let mut mirror = Running::start(dir.path(), "mirror");
    mirror.stay();
    volume(&source, "data");
    mirror.good(&["mirror", "create", "data", &source.invite()]);
    mirror.terminate();
    std::fs::write(mirror.data.join("peers.json"), DAMAGE).unwrap();
    mirror.restart();
    mirror.good(&["mirror", "failover", "data", "--yes"]);
    assert_eq!(mirror.json(&["mirror", "status", "data"])["state"], "failed-over");
    takes_writes(&mirror, "data/db");
    // Once that is known again the other side may come and follow.
    mirror.good(&["state", "give-up", "peers.json", "--yes"]);
    wait_until("the old source may follow", || {
        source.run(&["mirror", "resync", "data", "--discard-divergent", "--yes"]).status.success()
    });
    assert_eq!(mirror.json(&["mirror", "status", "data"])["state"], "source");
}

#[test]
fn what_a_cut_deletion_has_left_and_cannot_be_removed_keeps_no_server_from_starting() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Running::start(dir.path(), "d");
    server.good(&["volume", "create", "kept", "--size", "64M"]);
    server.kill();
    let held = server.data.join("volumes/.gone.deleted/held");
    std::fs::create_dir_all(&held).unwrap();
    let Some(_busy) = running::SmallDisk::mount(&held, 1 << 20) else { return };
    server.restart();
    assert_eq!(server.json(&["volume", "list"])[0]["name"], "kept");
    server.good(&["lun", "create", "kept/db", "--size", "1M"]);
}

#[test]
fn volume_is_deleted_where_what_is_left_of_an_earlier_one_of_its_name_cannot_be_removed() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), "d");
    let device = path(dir.path(), "disk");
    std::fs::File::create(&device).unwrap().set_len(96 << 20).unwrap();
    let create = ["volume", "create", "gone", "--device", &device];
    server.good(&create);
    let held = server.data.join("volumes/.gone.deleted/held");
    std::fs::create_dir_all(&held).unwrap();
    let Some(_busy) = running::SmallDisk::mount(&held, 1 << 20) else { return };
    for _ in 0..2 {
        server.good(&["volume", "delete", "gone", "--yes"]);
        assert_eq!(server.json(&["volume", "list"]), serde_json::json!([]));
        server.good(&create);
    }
}

/// The actions of the owner on an unreadable file, while the server runs.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Mishap {
    Deleted,
    Emptied,
    AFolder,
    PutBack,
}

/// Each state file of a volume and of the server, but for the document of the volume itself.
const FILES: [&str; 15] = [
    "peers.json",
    "followers.json",
    "groups.json",
    "exports.json",
    "reservations.json",
    "mounts.json",
    "nfs.json",
    "volumes/v/reverse.json",
    "volumes/v/drill.json",
    "volumes/v/schedules.json",
    "volumes/v/hooks.json",
    "volumes/v/governor.json",
    "volumes/v/scrub.json",
    "volumes/v/dumps.json",
    "volumes/v/dates.json",
];

/// The commands that a remedy names, as arguments of the program.
fn commands(next: &str) -> Vec<Vec<String>> {
    let quoted = next.split('`').skip(1).step_by(2);
    let ours = quoted.filter_map(|command| command.strip_prefix("cairn "));
    ours.map(|command| command.split(' ').map(str::to_owned).collect()).collect()
}

#[test]
fn every_remedy_that_is_told_of_a_state_file_works_whatever_its_owner_did_to_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Running::start(dir.path(), "d");
    volume(&server, "v");
    server.good(&["volume", "hooks", "v", "--before", "true"]);
    server.good(&["export", "set", "v/db", "--network", "127.0.0.0/8"]);
    for mishap in [Mishap::Deleted, Mishap::Emptied, Mishap::AFolder, Mishap::PutBack] {
        server.terminate();
        let whole: Vec<Option<Vec<u8>>> =
            FILES.iter().map(|file| std::fs::read(server.data.join(file)).ok()).collect();
        for file in FILES {
            std::fs::write(server.data.join(file), DAMAGE).unwrap();
        }
        server.restart();
        assert!(!server.has_export("v/db"), "who may use it is not known");
        for (file, whole) in FILES.iter().zip(&whole) {
            let path = server.data.join(file);
            match (mishap, whole) {
                (Mishap::Emptied, _) => std::fs::write(&path, b"").unwrap(),
                (Mishap::PutBack, Some(whole)) => std::fs::write(&path, whole).unwrap(),
                (Mishap::AFolder, _) => {
                    std::fs::remove_file(&path).unwrap();
                    std::fs::create_dir(&path).unwrap();
                }
                (Mishap::Deleted | Mishap::PutBack, _) => std::fs::remove_file(&path).unwrap(),
            }
        }
        assert!(!server.has_export("v/db"), "{mishap:?}: that is no word of its owner");
        let listed = server.json(&["state", "list"]);
        for (file, whole) in FILES.iter().zip(&whole) {
            let told = problem(&server, file).unwrap_or_else(|| panic!("{mishap:?}: {file} is not told"));
            let next = told["next"].as_str().unwrap();
            assert!(listed.to_string().contains(file), "{mishap:?}: {file} is not listed");
            let back = mishap == Mishap::PutBack && whole.is_some();
            let way = if back { "restore" } else { "give-up" };
            let command = commands(next).into_iter().find(|command| command.iter().any(|word| word == way));
            let mut command = command.unwrap_or_else(|| panic!("{mishap:?}: {file}: {next}"));
            if !back {
                let restore = server.run(&["state", "restore", file]);
                assert!(!restore.status.success(), "{mishap:?}: {file}: nothing is there to be restored");
                command.push("--yes".to_owned());
            }
            server.good(&command.iter().map(String::as_str).collect::<Vec<_>>());
            assert!(problem(&server, file).is_none(), "{mishap:?}: {file} is told still");
        }
        assert_eq!(server.json(&["state", "list"]), serde_json::json!([]), "{mishap:?}");
        takes_writes(&server, "v/db");
        server.good(&["snapshot", "create", &format!("v@{mishap:?}")]);
        server.good(&["volume", "governor", "v", "--p99", "50ms"]);
        server.good(&["volume", "scrub", "v", "--wait"]);
    }
    // Without all of it the next start has nothing to report either.
    server.terminate();
    server.restart();
    assert_eq!(server.json(&["state", "list"]), serde_json::json!([]));
    takes_writes(&server, "v/db");
}

#[test]
fn documents_of_volumes_and_devices_that_are_deleted_have_a_way_out() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Running::start(dir.path(), "d");
    volume(&server, "v");
    volume(&server, "w");
    let plain = path(dir.path(), "plain");
    server.good(&["device", "adopt", "disk1", "--origin", &plain, "--size", "8M"]);
    server.terminate();
    for file in ["volumes/v/volume.json", "volumes/w/volume.json", "devices/disk1.json"] {
        std::fs::write(server.data.join(file), DAMAGE).unwrap();
    }
    server.restart();
    for file in ["volumes/v/volume.json", "volumes/w/volume.json", "devices/disk1.json"] {
        std::fs::remove_file(server.data.join(file)).unwrap();
        assert!(server.json(&["state", "list"]).to_string().contains(file), "{file} is listed");
    }
    server.good(&["state", "restore", "volumes/v/volume.json", "--previous"]);
    takes_writes(&server, "v/db");
    server.bad(2, "usage", &["state", "give-up", "volumes/w/volume.json", "--yes"]);
    server.good(&["volume", "delete", "w", "--yes"]);
    server.good(&["state", "give-up", "devices/disk1.json", "--yes"]);
    server.good(&["device", "adopt", "disk1", "--origin", &plain]);
    takes_writes(&server, "disk1");
    assert_eq!(server.json(&["state", "list"]), serde_json::json!([]));
    assert_eq!(server.json(&["status"])["problems"], serde_json::json!([]));
}

#[test]
fn state_that_was_backed_up_comes_back_on_another_directory() {
    let dir = tempfile::tempdir().unwrap();
    let device = path(dir.path(), "disk.img");
    std::fs::File::create(&device).unwrap().set_len(64 << 20).unwrap();
    let mut server = Running::start(dir.path(), "d");
    server.good(&["volume", "create", "v", "--device", &device]);
    server.good(&["lun", "create", "v/db", "--size", "8M"]);
    server.good(&["export", "set", "v/db", "--network", "10.0.0.0/24"]);
    server.invite();
    let mut disk = server.disk("v/db");
    disk.write(0, &[7; 4096]).unwrap();
    disk.flush().unwrap();
    drop(disk);
    let fingerprint = server.json(&["status"])["fingerprint"].clone();
    let file = path(dir.path(), "state");
    let done = server.json(&["state", "backup", &file]);
    assert!(done["files"].as_u64().unwrap() >= 4, "{done}");
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&file).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    server.bad(21, "taken", &["state", "backup", &file]);
    server.good(&["state", "backup", &file, "--overwrite"]);
    server.bad(11, "busy", &["state", "restore", "--from", &file]);
    assert_eq!(server.terminate(), 0);
    server.bad(32, "not-empty", &["state", "restore", "--from", &file]);

    server.data = dir.path().join("new");
    server.good(&["state", "restore", "--from", &file]);
    server.restart();
    let status = server.json(&["status"]);
    assert_eq!(status["fingerprint"], fingerprint);
    assert_eq!(status["problems"], serde_json::json!([]), "{status}");
    assert_eq!(server.disk("v/db").read(0, 4096).unwrap(), [7; 4096]);
    assert_eq!(server.json(&["peer", "list"]).as_array().unwrap().len(), 1);
    assert_eq!(server.json(&["export", "show", "v/db"])["access"]["networks"][0], "10.0.0.0/24");
}
