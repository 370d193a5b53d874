//! A history is put under an existing volume, and removed, from the command line: under clients,
//! beside mirrors, over kills.

mod running;

use std::path::Path;
use std::process::Stdio;

use cairn_frontend_nbd::{Address, Client, ClientOptions};
use running::{Loop, Running, cairn, content, fill, path, server_with_disk, wait_until};
use serde_json::Value;

/// Bytes sent to the mirror since it was made.
fn sent(mirror: &Running) -> u64 {
    mirror.json(&["mirror", "status", "v"])["sent_bytes"].as_u64().unwrap()
}

fn written(server: &Running, byte: u8) {
    let mut disk = server.disk("v/db");
    disk.write(0, &vec![byte; 1 << 20]).unwrap();
    disk.flush().unwrap();
}

fn first_byte(server: &Running, export: &str) -> u8 {
    server.disk(export).read(0, 512).unwrap()[0]
}

fn enabled(server: &Running, dir: &Path, placement: &str) -> String {
    let store = path(dir, "vol0.history");
    server.good(&[
        "history",
        "enable",
        "v",
        "--history",
        &store,
        "--placement",
        placement,
        "--granularity",
        "every-write",
        "--yes",
    ]);
    store
}

#[test]
fn history_comes_under_a_volume_with_clients_and_goes_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = server_with_disk(dir.path());
    fill(&server, 0, 64, 1);
    let before = content(server.disk("v/db"));
    server.good(&["snapshot", "create", "v@old"]);
    server.bad(10, "not-found", &["history", "disable", "v", "--yes"]);
    server.bad(10, "not-found", &["history", "enable", "nobody", "--history", "/nowhere/h"]);

    let mut connected = server.disk("v/db");
    let store = path(dir.path(), "vol0.history");
    let planned = server.good(&["history", "enable", "v", "--history", &store, "-n"]);
    assert!(planned.contains("1 session") && planned.contains("nothing was done"), "{planned}");
    connected.read(0, 512).expect("its session goes on");
    assert!(!Path::new(&store).exists());
    server.bad(2, "usage", &["history", "enable", "v", "--history", &store]);
    enabled(&server, dir.path(), "logging");
    assert!(connected.read(0, 512).is_err(), "its session has ended");
    assert_eq!(content(server.disk("v/db")), before);
    assert_eq!(server.json(&["volume", "show", "v"])["history"], store.as_str());
    let again = ["history", "enable", "v", "--history", &store, "--yes"];
    let refused = server.run(&[&["--json"], &again[..]].concat());
    assert!(!refused.status.success(), "it has one");

    server.good(&["history", "mark", "v", "one"]);
    written(&server, 7);
    server.good(&["snapshot", "create", "v@new"]);
    server.kill();
    server.restart();
    assert_eq!(first_byte(&server, "v/db"), 7);
    server.good(&["history", "revert", "v", "--mark", "one", "--yes"]);
    assert_eq!(content(server.disk("v/db")), before);
    written(&server, 8);

    // Its users block the removal.
    server.good(&["history", "view", "v", "--mark", "one", "--as", "then"]);
    let refused = server.run(&["history", "disable", "v", "--yes"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("then"), "{refused:?}");
    let dry = server.run(&["history", "disable", "v", "-n"]);
    assert_eq!((dry.status, dry.stderr), (refused.status, refused.stderr), "a dry run is refused as well");
    assert_eq!(first_byte(&server, "v/db"), 8);
    server.good(&["history", "view", "v", "--delete", "then"]);
    let planned = server.good(&["history", "disable", "v", "-n"]);
    assert!(planned.contains("nothing was done"), "{planned}");
    server.good(&["history", "disable", "v", "--yes"]);
    assert_eq!(first_byte(&server, "v/db"), 8);
    assert_eq!(server.json(&["volume", "show", "v"])["history"], Value::Null);
    std::fs::remove_file(&store).expect("it is nobody's any more");
    server.kill();
    server.restart();
    assert_eq!(first_byte(&server, "v/db"), 8);
    assert_eq!(content(server.disk("v@old/db")), before);
    assert!(server.good(&["volume", "check", "v", "--deep"]).contains("sound"));
}

#[test]
fn store_of_a_history_grows_under_its_clients_and_over_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = server_with_disk(dir.path());
    let store = path(dir.path(), "vol0.history");
    let small = ["--history-size", "64M", "--granularity", "every-write", "--yes"];
    server.good(&[&["history", "enable", "v", "--history", &store][..], &small].concat());
    let bytes = |server: &Running| server.json(&["history", "status", "v"])["store_bytes"].as_u64().unwrap();
    let before = bytes(&server);
    let mut connected = server.disk("v/db");
    connected.write(0, &[1; 4096]).unwrap();
    server.good(&["history", "mark", "v", "one"]);

    server.bad(20, "wrong-size", &["history", "grow", "v"]);
    server.bad(20, "wrong-size", &["history", "grow", "v", "--size", "32M"]);
    server.bad(20, "wrong-size", &["history", "grow", "v", "--size", "9000P"]);
    assert_eq!(bytes(&server), before);
    let said = server.good(&["history", "grow", "v", "--size", "256M"]);
    assert!(said.contains("the store of the history of v has 25"), "{said}");
    let after = bytes(&server);
    assert!(after > 3 * before, "{before} {after}");
    connected.write(0, &[2; 4096]).expect("its session is as before");
    connected.flush().unwrap();
    server.kill();
    server.restart();
    assert_eq!(bytes(&server), after);
    server.good(&["history", "view", "v", "--mark", "one", "--as", "old"]);
    assert_eq!((first_byte(&server, "v/db"), first_byte(&server, "v@old/db")), (2, 1));
}

/// It has no room for the areas of a mirror, and never will: a history must not require them.
#[test]
fn volume_that_fills_a_disk_gets_a_history_and_can_go_back() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("disk.img");
    std::fs::File::create(&image).unwrap().set_len(128 << 20).unwrap();
    let Some(disk) = Loop::over(&image) else { return };
    let mut server = Running::start(dir.path(), "d");
    server.good(&["volume", "create", "v", "--device", &disk.0]);
    server.good(&["lun", "create", "v/db", "--size", "24M"]);
    written(&server, 7);
    let mut connected = server.disk("v/db");
    let store = path(dir.path(), "vol0.history");
    server.good(&["history", "enable", "v", "--history", &store, "-n"]);
    connected.read(0, 512).expect("its session goes on");
    enabled(&server, dir.path(), "checkpointing");
    server.good(&["history", "mark", "v", "seven"]);
    written(&server, 8);
    server.kill();
    server.restart();
    assert_eq!(first_byte(&server, "v/db"), 8);
    server.good(&["history", "revert", "v", "--mark", "seven", "--yes"]);
    assert_eq!(first_byte(&server, "v/db"), 7);
    server.good(&["history", "disable", "v", "--yes"]);
    assert_eq!(first_byte(&server, "v/db"), 7);
    assert!(server.good(&["volume", "check", "v", "--deep"]).contains("sound"));
    assert_eq!(server.terminate(), 0);
}

#[test]
fn server_that_is_killed_while_a_history_goes_has_all_that_was_written() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = server_with_disk(dir.path());
    enabled(&server, dir.path(), "logging");
    for round in 0..4 {
        fill(&server, 0, 1024, round);
        let before = content(server.disk("v/db"));
        let data = server.data.clone();
        let mut command = cairn();
        command.args(["history", "disable", "v", "--yes", "--data"]).arg(&data);
        let mut running = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(5 + 15 * round));
        server.kill();
        let _ = running.wait();
        server.restart();
        assert_eq!(content(server.disk("v/db")), before, "round {round}");
        assert!(server.good(&["volume", "check", "v", "--deep"]).contains("sound"));
        // It was removed, or it stays and the same command removes it.
        if server.json(&["volume", "show", "v"])["history"].is_string() {
            server.good(&["history", "disable", "v", "--yes"]);
            assert_eq!(content(server.disk("v/db")), before, "round {round}");
        }
        std::fs::remove_file(path(dir.path(), "vol0.history")).unwrap();
        enabled(&server, dir.path(), "logging");
    }
}

#[test]
fn mirrors_go_on_where_they_were_when_a_history_comes_and_goes_on_either_side() {
    let dir = tempfile::tempdir().unwrap();
    let source = server_with_disk(dir.path());
    let mirror = Running::start(dir.path(), "mirror");
    mirror.good(&["mirror", "create", "v", &source.invite()]);
    let sends_little = |byte: u8| {
        written(&source, byte);
        let before = sent(&mirror);
        mirror.good(&["mirror", "update", "v"]);
        assert_eq!(first_byte(&mirror, "v/db"), byte);
        let bytes = sent(&mirror) - before;
        assert!(bytes < 3 << 20, "no baseline: {bytes}");
    };
    sends_little(2);
    // The common snapshot after the mirror was rewound.
    source.good(&["snapshot", "create", "v@kept"]);
    enabled(&source, dir.path(), "checkpointing");
    sends_little(3);
    let store = path(dir.path(), "mirror.history");
    mirror.good(&["history", "enable", "v", "--history", &store, "--granularity", "every-write", "--yes"]);
    sends_little(4);
    sends_little(5);
    let marks = mirror.json(&["history", "status", "v"])["marks"].clone();
    let first = marks.as_array().unwrap().iter().find_map(|mark| mark["name"].as_str()).unwrap().to_owned();
    mirror.good(&["mirror", "rewind", "v", "--mark", &first, "--yes"]);
    assert_eq!(first_byte(&mirror, "v/db"), 3, "the image that it showed when it got its history");
    mirror.good(&["history", "disable", "v", "--yes"]);
    assert_eq!(first_byte(&mirror, "v/db"), 3, "it stays what it is");
    mirror.good(&["mirror", "resume", "v"]);
    source.good(&["history", "disable", "v", "--yes"]);
    sends_little(6);
    mirror.good(&["mirror", "failover", "v", "--yes"]);
    wait_until("it takes writes", || mirror.disk("v/db").write(0, &[9; 4096]).is_ok());
    assert!(mirror.good(&["volume", "check", "v", "--deep"]).contains("sound"));
}

#[test]
fn volume_whose_history_is_lost_is_opened_without_it_by_a_word_of_its_owner() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = server_with_disk(dir.path());
    server.bad(2, "usage", &["history", "disable", "v", "--store-lost", "-n"]);
    let store = enabled(&server, dir.path(), "checkpointing");
    written(&server, 5);
    let before = content(server.disk("v/db"));
    server.kill();
    std::fs::remove_file(&store).unwrap();
    server.restart();
    let problem = server.json(&["status"])["problems"][0].clone();
    assert!(problem["next"].as_str().unwrap().contains("--store-lost"), "{problem}");
    server.bad(2, "usage", &["history", "disable", "v", "--store-lost"]);
    let planned = server.good(&["history", "disable", "v", "--store-lost", "-n"]);
    assert!(planned.contains(&store) && planned.contains("nothing was done"), "{planned}");
    assert!(!server.has_export("v/db"));
    server.good(&["history", "disable", "v", "--store-lost", "--yes"]);
    assert_eq!(content(server.disk("v/db")), before);
    assert_eq!(server.json(&["status"])["problems"], serde_json::json!([]));
    written(&server, 6);
    server.kill();
    server.restart();
    assert_eq!(first_byte(&server, "v/db"), 6);
    assert!(server.good(&["volume", "check", "v", "--deep"]).contains("sound"));
    enabled(&server, dir.path(), "checkpointing");
}

#[test]
fn what_can_have_no_history_is_refused_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let server = server_with_disk(dir.path());
    let enable = |name: &str, code: i32, kind: &str| {
        let store = path(dir.path(), "store");
        server.bad(code, kind, &["history", "enable", name, "--history", &store, "--yes"]);
        assert!(!Path::new(&store).exists(), "nothing was made");
    };
    let log = path(dir.path(), "log");
    std::fs::write(&log, vec![0; 16 << 20]).unwrap();
    server.good(&["volume", "log", "v", "--device", &log]);
    enable("v", 2, "usage");
    server.good(&["volume", "log", "v", "--internal"]);
    server.good(&["snapshot", "create", "v@one"]);
    server.good(&["clone", "create", "v@one", "copy"]);
    enable("copy", 13, "wrong-role");
    enable("v", 11, "busy");
    server.good(&["clone", "delete", "copy", "--yes"]);
    let disk = path(dir.path(), "disk");
    server.good(&["device", "adopt", "disk0", "--origin", &disk, "--size", "1M"]);
    enable("disk0", 13, "wrong-role");
    written(&server, 3);
    // Before any session is closed for nothing.
    let mut connected = server.disk("v/db");
    let used = path(dir.path(), "used");
    std::fs::write(&used, vec![7; 1 << 20]).unwrap();
    server.bad(32, "not-empty", &["history", "enable", "v", "--history", &used, "--yes"]);
    let nowhere = path(dir.path(), "nowhere/store");
    server.bad(10, "not-found", &["history", "enable", "v", "--history", &nowhere, "--yes"]);
    connected.read(0, 512).expect("its session goes on");
    enabled(&server, dir.path(), "hybrid");
    assert_eq!(first_byte(&server, "v/db"), 3);
}

#[test]
fn store_that_was_put_back_older_than_its_disk_keeps_device_and_volume_closed() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = server_with_disk(dir.path());
    let volume_store = enabled(&server, dir.path(), "split-stream");
    let (disk, store) = (path(dir.path(), "disk0.img"), path(dir.path(), "disk0.store"));
    let adopt = ["device", "adopt", "disk0", "--origin", &disk, "--size", "8M", "--history", &store];
    server.good(&[&adopt[..], &["--placement", "logging", "--granularity", "every-write"]].concat());
    let write = |server: &Running, byte: u8| {
        written(server, byte);
        let mut disk = server.disk("disk0");
        disk.write(0, &[byte; 8192]).unwrap();
        disk.flush().unwrap();
    };
    let stores = [&store, &volume_store];
    let volume = server.data.join("volumes/v/volume.img").to_str().unwrap().to_owned();
    let kept = |path: &str| format!("{path}.kept");
    write(&server, 1);
    server.kill();
    for path in [&store, &volume_store, &volume] {
        std::fs::copy(path, kept(path)).unwrap();
    }
    server.restart();
    write(&server, 2);
    // Killed: the position is known from the next start on.
    server.kill();
    server.restart();
    server.kill();
    let newer: Vec<Vec<u8>> = stores.iter().map(|store| std::fs::read(store).unwrap()).collect();
    let origin = std::fs::read(&disk).unwrap();
    stores.iter().for_each(|store| assert!(std::fs::copy(kept(store), store).is_ok()));
    server.restart();
    assert!(!server.has_export("disk0") && !server.has_export("v/db"));
    let problems = server.json(&["status"])["problems"].clone();
    for name in ["disk0", "v"] {
        let told = problems
            .as_array()
            .unwrap()
            .iter()
            .find(|told| told["next"].as_str().unwrap().contains(&format!("accept-older {name}`")));
        let told = told.unwrap_or_else(|| panic!("{name}: {problems}"));
        assert!(told.to_string().contains("older than it was"), "{told}");
        let planned = server.good(&["history", "accept-older", name, "-n"]);
        assert!(planned.contains("nothing was done"), "{planned}");
        assert!(!server.has_export("disk0") && !server.has_export("v/db"));
        server.bad(2, "usage", &["history", "accept-older", name]);
    }
    // The right store again: within seconds, or on request.
    server.kill();
    assert!(std::fs::read(&disk).unwrap() == origin, "nothing was written");
    stores.iter().zip(&newer).for_each(|(store, bytes)| std::fs::write(store, bytes).unwrap());
    server.restart();
    assert_eq!((first_byte(&server, "disk0"), first_byte(&server, "v/db")), (2, 2));
    server.bad(2, "usage", &["history", "accept-older", "disk0", "-n"]);
    server.bad(2, "usage", &["history", "accept-older", "v", "--yes"]);
    server.bad(10, "not-found", &["history", "accept-older", "nobody", "--yes"]);
    // On its owner's command it is accepted as it is, and its position is saved from then on.
    server.kill();
    for path in [&store, &volume_store, &volume] {
        std::fs::copy(kept(path), path).unwrap();
    }
    server.restart();
    server.good(&["history", "accept-older", "disk0", "--yes"]);
    server.good(&["history", "accept-older", "v", "--yes"]);
    assert_eq!((first_byte(&server, "disk0"), first_byte(&server, "v/db")), (1, 1));
    server.kill();
    server.restart();
    assert_eq!((first_byte(&server, "disk0"), first_byte(&server, "v/db")), (1, 1));
    // A history created after a removed one is a different one.
    server.good(&["history", "disable", "v", "--yes"]);
    std::fs::remove_file(&volume_store).unwrap();
    enabled(&server, dir.path(), "checkpointing");
    server.kill();
    server.restart();
    assert_eq!(first_byte(&server, "v/db"), 1);
    assert!(server.good(&["volume", "check", "v", "--deep"]).contains("sound"));
}

/// It would be open there, and take no changes.
#[test]
fn revert_to_an_instant_of_which_the_inodes_have_rotted_leaves_the_volume_where_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = server_with_disk(dir.path());
    let store = enabled(&server, dir.path(), "logging");
    written(&server, 7);
    server.good(&["lun", "create", "v/one", "--size", "3M"]);
    server.good(&["history", "mark", "v", "one"]);
    server.good(&["lun", "create", "v/two", "--size", "5M"]);
    written(&server, 8);
    assert_eq!(server.terminate(), 0);
    let inode_of = |inode: &[u8], mib: u64| {
        let bytes = (mib << 20).to_le_bytes();
        inode[0] == 2 && inode.windows(8).any(|field| field == bytes)
    };
    let mut spoilt = 0;
    let mut bytes = std::fs::read(&store).unwrap();
    for at in (0..bytes.len() - 4096).step_by(512) {
        let inodes = || bytes[at..at + 4096].chunks(128);
        // Number 0 is unused, and 1 is the directory of LUNs.
        let begins = bytes[at..at + 128].iter().all(|byte| *byte == 0) && bytes[at + 128] == 1;
        if begins && inodes().any(|inode| inode_of(inode, 3)) && !inodes().any(|inode| inode_of(inode, 5)) {
            bytes[at + 300] ^= 0x55;
            spoilt += 1;
        }
    }
    assert!(spoilt > 0, "they are in the store");
    std::fs::write(&store, &bytes).unwrap();
    server.restart();
    let refused = server.run(&["history", "revert", "v", "--mark", "one", "--yes"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("is where it was"), "{said}");
    assert_eq!(first_byte(&server, "v/db"), 8);
    assert!(server.has_export("v/two"), "it is where it was");
    written(&server, 9);
    let problems = server.json(&["status"])["problems"].to_string();
    assert!(
        problems.contains("1 version(s) in its history") && !problems.contains("takes no changes"),
        "{problems}"
    );
}

/// Initiators and `nbd-client -persist` connect again at once. A session with the volume as it was
/// before fails at everything, and its client looks for no other one.
#[test]
fn client_that_comes_back_before_a_history_is_gone_has_no_session_with_what_was_before() {
    let dir = tempfile::tempdir().unwrap();
    let server = server_with_disk(dir.path());
    for round in 1..20 {
        let store = enabled(&server, dir.path(), "logging");
        let mut disk = server.disk("v/db");
        // An unacknowledged write may be lost.
        disk.write(0, &[7; 4096]).unwrap();
        // Before it is closed its data in memory is written, in several batches, each with this
        // delay.
        let slow = format!("{}ms", 50 * round);
        server.good(&["volume", "rehearse", "v", "--delay", &slow, "--yes"]);
        let back = std::thread::scope(|scope| {
            let returning = scope.spawn(|| {
                while disk.write(0, &[7; 4096]).is_ok() {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                let address = Address::Unix(server.data.join("nbd.sock"));
                Client::connect(&address, &ClientOptions::new("v/db")).ok()
            });
            server.good(&["history", "disable", "v", "--yes"]);
            returning.join().unwrap()
        });
        // A later session has the present state.
        if let Some(mut back) = back
            && back.write(0, &[8; 4096]).is_err()
        {
            let sessions = || server.json(&["export", "list"])[0]["sessions"].clone();
            wait_until("it is cut off", || sessions() == serde_json::json!([]));
            assert_eq!(first_byte(&server, "v/db"), 7);
            return;
        }
        std::fs::remove_file(&store).unwrap();
    }
    panic!("no client comes back in time");
}
