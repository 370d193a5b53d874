//! Every command on volumes, LUNs, snapshots and servers, and every bad input of them with its exit
//! code.

mod running;

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::process::Command;

use running::{Running, cairn, refused};

const MIB: u64 = 1 << 20;

fn volume_with_lun(server: &Running) {
    server.good(&["volume", "create", "vol0", "--size", "256M"]);
    server.good(&["lun", "create", "vol0/db", "--size", "16M"]);
}

#[test]
fn volumes_and_luns_are_made_listed_grown_and_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), "with space");
    volume_with_lun(&server);
    let uri = format!("nbd+unix:///vol0/db?socket={}/with%20space/nbd.sock", dir.path().display());
    let luns = server.json(&["lun", "list", "vol0"]);
    assert_eq!(luns[0]["uris"][0], *uri, "the space is escaped");
    assert_eq!(server.json(&["volume", "show", "vol0"])["size_bytes"], 256 * MIB);
    assert_eq!(server.json(&["volume", "grow", "vol0", "--size", "1G"])["size_bytes"], 1024 * MIB);
    assert_eq!(server.disk("vol0/db").size(), 16 * MIB);
    server.good(&["lun", "resize", "vol0/db", "--size", "32M"]);
    assert_eq!(server.disk("vol0/db").size(), 32 * MIB, "a grown LUN is seen on reconnect");
    server.good(&["lun", "resize", "vol0/db", "--size", "8M", "--shrink", "--yes"]);
    let disk = server.disk("vol0/db");
    server.bad(11, "busy", &["lun", "delete", "vol0/db", "--yes"]);
    server.bad(11, "busy", &["volume", "delete", "vol0", "--yes"]);
    disk.disconnect().unwrap();
    let deadline = std::time::Instant::now() + running::PATIENCE;
    while !server.run(&["lun", "delete", "vol0/db", "--yes"]).status.success() {
        assert!(std::time::Instant::now() < deadline, "the session does not end");
    }
    assert!(!server.has_export("vol0/db"));
    server.good(&["volume", "delete", "vol0", "--dry-run"]);
    server.good(&["volume", "delete", "vol0", "--yes"]);
    assert_eq!(server.json(&["volume", "list"]), serde_json::json!([]));
    assert!(!server.data.join("volumes/vol0").exists());
}

#[test]
fn disks_that_may_need_more_than_their_volume_has_are_made_and_it_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), "d");
    server.good(&["volume", "create", "vol0", "--size", "256M"]);
    let said = |arguments: &[&str]| {
        let output = server.run(arguments);
        assert!(output.status.success(), "{arguments:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert_eq!(said(&["lun", "create", "vol0/a", "--size", "200M"]), "");
    let told = said(&["lun", "create", "vol0/b", "--size", "1G"]);
    assert!(told.contains("1.20 GiB") && told.contains("256 MiB") && told.contains("volume grow"), "{told}");
    assert_eq!(said(&["lun", "resize", "vol0/b", "--size", "50M", "--shrink", "--yes"]), "");
    assert!(said(&["lun", "resize", "vol0/b", "--size", "57M"]).contains("257 MiB"));
    assert_eq!(said(&["lun", "resize", "vol0/b", "--size", "58M", "--quiet"]), "");
}

#[test]
fn snapshots_are_read_only_disks_and_a_rollback_can_be_undone() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), "d");
    volume_with_lun(&server);
    let mut disk = server.disk("vol0/db");
    disk.write(0, &[1; 4096]).unwrap();
    server.good(&["snapshot", "create", "vol0@one"]);
    disk.write(0, &[2; 4096]).unwrap();
    let mut past = server.disk("vol0@one/db");
    assert_eq!(past.read(0, 4096).unwrap(), [1; 4096]);
    assert!(past.write(0, &[9; 4096]).is_err(), "a snapshot takes no writes");
    drop(past);
    let undo =
        server.json(&["snapshot", "rollback", "vol0@one", "--yes"])["name"].as_str().unwrap().to_owned();
    assert!(disk.read(0, 4096).is_err(), "sessions end when their disk changes under them");
    assert_eq!(server.disk("vol0/db").read(0, 4096).unwrap(), [1; 4096]);
    server.good(&["snapshot", "rollback", &undo, "--yes"]);
    assert_eq!(server.disk("vol0/db").read(0, 4096).unwrap(), [2; 4096]);
    server.good(&["snapshot", "rename", "vol0@one", "uno"]);
    let names = server.json(&["snapshot", "list", "vol0"]);
    assert!(names.as_array().unwrap().iter().any(|snapshot| snapshot["name"] == "vol0@uno"), "{names}");
    server.bad(3, "not-found", &["snapshot", "delete", "vol0@uno", "vol0@nothing", "--yes"]);
    server.bad(10, "not-found", &["snapshot", "delete", "vol0@uno", "--yes"]);
    assert!(server.good(&["volume", "check", "vol0"]).contains("sound"));
}

#[test]
fn client_that_comes_back_during_a_rollback_is_cut_off_once_it_is_over() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), "d");
    volume_with_lun(&server);
    server.good(&["snapshot", "create", "vol0@one"]);
    for round in 1..20 {
        let mut disk = server.disk("vol0/db");
        disk.write(0, &[round; 4096]).unwrap();
        disk.flush().unwrap();
        // A rollback takes several batches, and each of them takes this long.
        let slow = format!("{}ms", 100 * u32::from(round));
        server.good(&["volume", "rehearse", "vol0", "--delay", &slow, "--yes"]);
        let (mut back, seen) = std::thread::scope(|scope| {
            let server = &server;
            let returning = scope.spawn(move || {
                while disk.read(0, 4096).is_ok() {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                // As initiators and `nbd-client -persist` do.
                let mut back = server.disk("vol0/db");
                let seen = back.read(0, 1).unwrap()[0];
                (back, seen)
            });
            server.good(&["snapshot", "rollback", "vol0@one", "--yes"]);
            returning.join().unwrap()
        });
        server.good(&["volume", "rehearse", "vol0", "--off"]);
        if seen == round {
            assert!(back.read(0, 4096).is_err(), "what it has in memory is of another time");
            assert_eq!(server.disk("vol0/db").read(0, 4096).unwrap(), [0; 4096]);
            return;
        }
        // It came when the rollback was over.
        assert_eq!(seen, 0);
    }
    panic!("no client comes back in time");
}

#[test]
fn clients_of_the_default_export_are_sessions_of_the_disk_that_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), "d");
    volume_with_lun(&server);
    // With a snapshot the list of exports has more than the one disk.
    server.good(&["snapshot", "create", "vol0@one"]);
    let mut disk = server.disk("");
    disk.write(0, &[2; 4096]).unwrap();
    let exports = server.json(&["export", "list"]);
    assert_eq!(exports[0]["name"], "vol0/db");
    assert_eq!(exports[0]["sessions"].as_array().unwrap().len(), 1, "{exports}");
    server.bad(11, "busy", &["lun", "delete", "vol0/db", "--yes"]);
    server.bad(11, "busy", &["volume", "delete", "vol0", "--yes"]);
    server.good(&["snapshot", "rollback", "vol0@one", "--yes"]);
    assert!(disk.read(0, 4096).is_err(), "sessions end when their disk changes under them");
    // A failed request does not make a session.
    assert!(!server.has_export("vol0/nothing"));
    server.good(&["lun", "delete", "vol0/db", "--yes"]);
}

#[test]
fn flushed_writes_survive_kill_and_a_snapshot_too() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Running::start(dir.path(), "d");
    volume_with_lun(&server);
    let mut disk = server.disk("vol0/db");
    disk.write(8192, &[7; 4096]).unwrap();
    disk.flush().unwrap();
    server.good(&["snapshot", "create", "vol0@kept"]);
    disk.write(8192, &[8; 4096]).unwrap();
    disk.flush().unwrap();
    server.kill();
    server.restart();
    assert_eq!(server.disk("vol0/db").read(8192, 4096).unwrap(), [8; 4096]);
    assert_eq!(server.disk("vol0@kept/db").read(8192, 4096).unwrap(), [7; 4096]);
    assert!(server.good(&["volume", "check", "vol0"]).contains("sound"));
    assert_eq!(server.terminate(), 0);
    server.restart();
    assert_eq!(server.disk("vol0/db").read(8192, 4096).unwrap(), [8; 4096]);
}

#[test]
fn volume_whose_deletion_failed_is_still_there_to_be_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), "d");
    volume_with_lun(&server);
    let mut disk = server.disk("vol0/db");
    disk.write(0, &[1; 4096]).unwrap();
    disk.disconnect().unwrap();
    server.good(&["volume", "rehearse", "vol0", "--fail-flushes", "1", "--yes"]);
    let deadline = std::time::Instant::now() + running::PATIENCE;
    let delete = ["volume", "delete", "vol0", "--yes"];
    let failed = loop {
        let output = server.run(&delete);
        if output.status.code() != Some(11) {
            break output;
        }
        assert!(std::time::Instant::now() < deadline, "the session does not end");
    };
    assert!(!failed.status.success(), "its last consistency point fails");
    assert_eq!(server.json(&["volume", "list"])[0]["name"], "vol0");
    server.good(&delete);
    assert_eq!(server.json(&["volume", "list"]), serde_json::json!([]));
}

#[test]
fn device_of_a_volume_that_is_not_open_is_not_taken() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Running::start(dir.path(), "d");
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    for name in ["one", "two"] {
        std::fs::File::create(path(name)).unwrap().set_len(64 * MIB).unwrap();
    }
    server.good(&["volume", "create", "vol0", "--device", &path("one"), "--device", &path("two")]);
    server.kill();
    std::fs::rename(path("one"), path("away")).unwrap();
    server.restart();
    // Nothing was written to it yet, so it begins with zeroes.
    std::os::unix::fs::symlink(path("two"), path("link")).unwrap();
    assert!(server.good(&["volume", "delete", "vol0", "-n"]).contains("CANNOT BE SAID"));
    for two in ["two", "link"] {
        server.bad(11, "busy", &["volume", "create", "vol1", "--device", &path(two)]);
        server.bad(11, "busy", &["volume", "create", "vol1", "--size", "64M", "--log-device", &path(two)]);
    }
    server.kill();
    std::fs::rename(path("away"), path("one")).unwrap();
    server.restart();
    assert!(server.good(&["volume", "check", "vol0"]).contains("sound"));
}

#[test]
fn wrong_names_and_sizes_are_refused_with_their_kind() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), "d");
    volume_with_lun(&server);
    server.good(&["snapshot", "create", "vol0@s"]);
    server.bad(2, "usage", &["volume", "create", "a/b", "--size", "1G"]);
    server.bad(20, "wrong-size", &["volume", "create", "v", "--size", "1000"]);
    server.bad(20, "wrong-size", &["volume", "create", "v", "--size", "0"]);
    server.bad(20, "wrong-size", &["volume", "create", "v", "--size", "8K"]);
    // The volume's overhead brings the sum of bytes past the largest number.
    server.bad(20, "wrong-size", &["volume", "create", "v", "--size", "18446744073709547520"]);
    server.bad(21, "taken", &["volume", "create", "vol0", "--size", "1G"]);
    server.bad(10, "not-found", &["volume", "show", "nothing"]);
    server.bad(10, "not-found", &["volume", "grow", "nothing", "--size", "1G"]);
    server.bad(20, "wrong-size", &["volume", "grow", "vol0", "--size", "64M"]);
    server.bad(20, "wrong-size", &["volume", "grow", "vol0", "--size", "16383P"]);
    server.bad(10, "not-found", &["volume", "delete", "nothing", "--yes"]);
    server.bad(10, "not-found", &["volume", "check", "nothing"]);
    server.bad(2, "usage", &["volume", "delete", "vol0"]);
    server.bad(20, "wrong-size", &["lun", "create", "vol0/x", "--size", "1"]);
    server.bad(2, "usage", &["lun", "create", "vol0/.x", "--size", "1M"]);
    server.bad(21, "taken", &["lun", "create", "vol0/db", "--size", "1M"]);
    server.bad(10, "not-found", &["lun", "create", "nothing/db", "--size", "1M"]);
    server.bad(10, "not-found", &["lun", "resize", "vol0/x", "--size", "1M"]);
    server.bad(2, "usage", &["lun", "resize", "vol0/db", "--size", "1M"]);
    server.bad(10, "not-found", &["lun", "delete", "vol0/x", "--yes"]);
    server.bad(10, "not-found", &["lun", "delete", "vol0/x", "-n"]);
    server.bad(21, "taken", &["snapshot", "create", "vol0@s"]);
    server.bad(2, "usage", &["snapshot", "create", "vol0@-s"]);
    server.bad(10, "not-found", &["snapshot", "create", "nothing@s"]);
    server.bad(10, "not-found", &["snapshot", "rename", "vol0@x", "y"]);
    server.bad(10, "not-found", &["snapshot", "rollback", "vol0@x", "--yes"]);
    server.bad(2, "usage", &["snapshot", "rollback", "vol0@s"]);
    server.bad(10, "not-found", &["peer", "revoke", "x", "--yes"]);
    server.bad(10, "not-found", &["peer", "invite", "--volume", "nothing"]);
    server.bad(10, "not-found", &["mirror", "update", "vol0"]);
    server.bad(10, "not-found", &["mirror", "failover", "nothing", "--yes"]);
    for wrong in
        [&["lun", "create", "db", "--size", "1M"][..], &["volume", "create", "v", "--size", "big"], &["fly"]]
    {
        assert_eq!(server.run(wrong).status.code(), Some(2), "{wrong:?}");
    }
    assert!(
        !server.has_export("vol0/x") && !server.has_export("nonsense") && !server.has_export("vol0@x/db")
    );
}

#[test]
fn devices_that_are_missing_busy_small_or_full_of_something_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), "d");
    let file = |name: &str, bytes: u64| {
        let path = dir.path().join(name);
        std::fs::File::create(&path).unwrap().set_len(bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (one, two, small) = (file("one", 128 * MIB), file("two", 128 * MIB), file("small", MIB));
    let used = file("used", 128 * MIB);
    std::fs::OpenOptions::new().write(true).open(&used).unwrap().write_all_at(b"ext4", 1080).unwrap();
    server.bad(10, "not-found", &["volume", "create", "v", "--device", "/nothing/here"]);
    server.bad(2, "usage", &["volume", "create", "v", "--device", "/dev/null"]);
    server.bad(22, "too-small", &["volume", "create", "v", "--size", "1G", "--device", &small]);
    server.bad(32, "not-empty", &["volume", "create", "v", "--device", &used]);
    let volume = server.json(&["volume", "create", "v", "--device", &one, "--device", &two]);
    assert!(volume["size_bytes"].as_u64().unwrap() > 200 * MIB, "both devices are used: {volume}");
    server.bad(11, "busy", &["volume", "create", "w", "--device", &one]);
    server.good(&["volume", "delete", "v", "--yes"]);
    server.good(&["volume", "create", "again", "--device", &one]);
    std::fs::OpenOptions::new().write(true).open(&one).unwrap().set_len(256 * MIB).unwrap();
    let grown = server.json(&["volume", "grow", "again"]);
    assert!(grown["size_bytes"].as_u64().unwrap() > 200 * MIB, "it takes what the device has: {grown}");
}

#[test]
fn path_that_is_no_text_is_refused_and_no_other_file_is_taken_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), "d");
    // The displayed form of such a name is the name of another file.
    let names: [&[u8]; 2] = [b"disk\xff", "disk\u{fffd}".as_bytes()];
    let [meant, other] = names.map(|name| dir.path().join(OsStr::from_bytes(name)));
    for path in [&meant, &other] {
        std::fs::File::create(path).and_then(|file| file.set_len(64 << 20)).unwrap();
    }
    for arguments in [
        &["volume", "create", "v", "--device"][..],
        &["volume", "create", "v", "--size", "64M", "--log-device"],
        &["volume", "create", "v", "--size", "64M", "--history"],
        &["device", "adopt", "v", "--origin"],
        &["trace", "record", "v/db", "--to"],
        &["mount", "v"],
    ] {
        let mut command = cairn();
        let output =
            command.args(arguments).arg(&meant).args(["--json", "--data"]).arg(&server.data).output();
        let message = refused(&output.unwrap(), 2, "usage", arguments);
        assert!(message.contains("UTF-8"), "{message}");
    }
    assert_eq!(server.json(&["volume", "list"]), serde_json::json!([]));
    assert_eq!(server.json(&["device", "list"]), serde_json::json!([]));
    for path in [&meant, &other] {
        assert!(std::fs::read(path).unwrap().iter().all(|byte| *byte == 0), "nothing is written to either");
    }
}

#[test]
fn server_refuses_a_directory_or_a_port_that_is_taken_or_unfit() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), "d");
    let serve = |arguments: &[&str]| {
        cairn().args(["serve", "--json", "--nbd", "off", "--iscsi", "off"]).args(arguments).output().unwrap()
    };
    let (taken, free) = (server.data.to_str().unwrap(), dir.path().join("free"));
    let free = free.to_str().unwrap();
    let off = ["--mirror", "off"];
    let with = |data: &str, more: &[&str]| serve(&[&["--data", data], more].concat());
    refused(&with(taken, &off), 11, "busy", &["the directory is taken"]);
    let port = server.json(&["status"])["mirror"].as_str().unwrap().to_owned();
    refused(&with(free, &["--mirror", &port]), 23, "port-taken", &["the mirror port is taken"]);
    refused(
        &with(free, &["--mirror", "off", "--http", &port]),
        23,
        "port-taken",
        &["the HTTP port is taken"],
    );
    refused(&with(free, &["--mirror", "off", "--nbd", &port]), 23, "port-taken", &["the NBD port is taken"]);
    refused(&with(free, &["--mirror", "unix:/tmp/x"]), 2, "usage", &["mirrors need TCP"]);
    refused(&with("/sys/cairn", &off), 25, "read-only", &["a directory that takes no writes"]);
    refused(&with(&format!("{free}/{}", "x".repeat(100)), &off), 2, "usage", &["a long path"]);
    let config = dir.path().join("c.toml");
    std::fs::write(&config, "date = 'typo'").unwrap();
    let output = serve(&["--config", config.to_str().unwrap()]);
    assert!(refused(&output, 2, "usage", &["a typo"]).contains("date"));
    let nobody = cairn().args(["status", "--json", "--data", free]).output().unwrap();
    assert!(refused(&nobody, 1, "failed", &["no server"]).contains("no server is running for"));
}

#[test]
fn damaged_superblock_slot_still_serves_and_two_stop_only_their_volume() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Running::start(dir.path(), "d");
    volume_with_lun(&server);
    server.good(&["volume", "create", "other", "--size", "64M"]);
    server.disk("vol0/db").write(0, &[5; 4096]).unwrap();
    assert_eq!(server.terminate(), 0);
    let image = server.data.join("volumes/vol0/volume.img");
    let image = std::fs::OpenOptions::new().write(true).open(image).unwrap();
    image.write_all_at(&[0xee; 512], 0).unwrap();
    server.restart();
    assert_eq!(server.disk("vol0/db").read(0, 4096).unwrap(), [5; 4096], "the other slot serves");
    server.kill();
    image.write_all_at(&[0xee; 128 << 10], 0).unwrap();
    server.restart();
    let volumes = server.json(&["volume", "list"]);
    assert_eq!(volumes[1]["role"], "unavailable", "{volumes}");
    server.bad(26, "volume-damaged", &["lun", "list", "vol0"]);
    server.good(&["lun", "create", "other/x", "--size", "1M"]);
    assert_eq!(server.json(&["status"])["problems"][0]["subject"], "vol0");
}

#[test]
fn state_file_of_a_newer_version_is_not_guessed_at() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Running::start(dir.path(), "d");
    server.good(&["peer", "invite"]);
    server.kill();
    let path = server.data.join("peers.json");
    let text = std::fs::read_to_string(&path).unwrap().replace("\"version\": 1", "\"version\": 99");
    std::fs::write(&path, &text).unwrap();
    let output = cairn()
        .args(["serve", "--json", "--nbd", "off", "--iscsi", "off", "--mirror", "off", "--data"])
        .arg(&server.data)
        .output()
        .unwrap();
    assert!(refused(&output, 31, "version-mismatch", &["serve"]).contains("99"));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text, "nothing was written over");
}

#[test]
fn server_that_is_typed_goes_before_one_that_is_exported() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), "d");
    server.good(&["volume", "create", "here", "--size", "20M"]);
    let (data, nowhere) = (server.data.to_str().unwrap(), "/nowhere/at/all");
    let address = format!("unix:{data}/control.sock");
    let run = |exported: &[(&str, &str)], typed: &[&str]| {
        let mut command = running::cairn();
        command.args(["volume", "list"]).args(typed).envs(exported.iter().copied());
        command.output().unwrap()
    };
    for (exported, typed) in [
        (("CAIRN_DATA", nowhere), ["--server", &address]),
        (("CAIRN_SERVER", "127.0.0.1:1"), ["--data", data]),
    ] {
        let listed = run(&[exported], &typed);
        assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
        assert!(String::from_utf8_lossy(&listed.stdout).contains("here"));
    }
    let exported = [("CAIRN_DATA", data), ("CAIRN_SERVER", &address)];
    let typed = ["--server", &address, "--data", data];
    for (exported, typed, names) in [(&exported[..], &[][..], "CAIRN_SERVER"), (&[], &typed, "--server")] {
        let refused = run(exported, typed);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{said}");
        assert!(said.contains(names) && said.contains("give"), "{said}");
    }
}

#[test]
fn api_over_tcp_wants_the_token_and_tells_what_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start_with(dir.path(), "d", &["--mirror", "off", "--http", "127.0.0.1:0"]);
    let addresses = server.json(&["status"])["http"].clone();
    let address = addresses[1].as_str().unwrap();
    let ask = |file: &std::path::Path| {
        let mut command = cairn();
        command.args(["status", "--json", "--server", address, "--token-file"]).arg(file);
        command.output().unwrap()
    };
    assert!(ask(&server.data.join("http-token")).status.success());
    let wrong = dir.path().join("wrong");
    std::fs::write(&wrong, "0".repeat(64)).unwrap();
    let turned_away = ask(&wrong);
    refused(&turned_away, 12, "unauthorized", &["a wrong token"]);
    let said = String::from_utf8_lossy(&turned_away.stderr);
    assert!(!said.contains("use the same version"), "it is the same program: {said}");
    let none = cairn().args(["status", "--json", "--server", address]).output().unwrap();
    refused(&none, 12, "unauthorized", &["no token"]);
    let socket = format!("unix:{}/control.sock", server.data.display());
    assert!(cairn().args(["status", "--server", &socket]).status().unwrap().success());
    use std::os::unix::fs::PermissionsExt;
    for secret in ["control.sock", "http-token", "identity.pem"] {
        let mode = std::fs::metadata(server.data.join(secret)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{secret}");
    }
    server.bad(2, "usage", &["peer", "invite"]);
}

/// The answer of the API on the control socket: the status, and the body.
fn ask(server: &Running, request: &str) -> (u16, String) {
    let mut stream = UnixStream::connect(server.data.join("control.sock")).unwrap();
    let rest = " HTTP/1.1\r\nhost: cairn\r\nconnection: close\r\n\r\n";
    stream.write_all(format!("{request}{rest}").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}

#[test]
fn whatever_is_wrong_with_a_request_is_told_as_every_other_error() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), "d");
    volume_with_lun(&server);
    for (request, expected) in [
        ("GET /v1/volumes/vol0/files/diff", 400),
        ("GET /v1/volumes/vol0/files/diff?from=a&to=b&more=c", 400),
        ("GET /v1/plans/vol0?link=fast", 400),
        ("GET /v1/plans/vol0?link=1000&lnk=1", 400),
        ("DELETE /v1/devices/disk0?without-history=true", 400),
        ("DELETE /v1/devices/disk0?without_history=perhaps", 400),
        ("DELETE /v1/devices/disk0/views/v?writeable=true", 400),
        ("DELETE /v1/volumes/vol0/image/levels/high", 400),
        ("GET /v1/volumes/%ff/luns", 400),
        ("PUT /v1/status", 405),
        ("GET /v1/nothing", 404),
    ] {
        let (status, body) = ask(&server, request);
        assert_eq!(status, expected, "{request}: {body}");
        let told: serde_json::Value =
            serde_json::from_str(&body).unwrap_or_else(|_| panic!("{request}: {body:?}"));
        let kind = if expected == 404 { "version-mismatch" } else { "usage" };
        assert_eq!(told["error"], kind, "{request}: {body}");
        for field in ["message", "next"] {
            assert!(told[field].as_str().is_some_and(|text| text.len() > 10), "{request}: {body}");
        }
    }
}

#[test]
fn settings_of_a_past_are_refused_as_those_of_the_present_hold_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), "d");
    volume_with_lun(&server);
    server.good(&["snapshot", "create", "vol0@then"]);
    let here = |name: &str| running::path(dir.path(), name);
    let (origin, store) = (here("disk"), here("store"));
    server.good(&["device", "adopt", "disk0", "--origin", &origin, "--size", "8M", "--history", &store]);
    server.good(&["history", "mark", "disk0", "then"]);
    server.good(&["history", "view", "disk0", "--mark", "then", "--as", "then"]);
    let set = r#"{"initiators":["iqn.2000-01.example:friend"]}"#;
    for path in ["/v1/devices/disk0@then/access", "/v1/volumes/vol0@then/luns/db/access"] {
        let mut stream = UnixStream::connect(server.data.join("control.sock")).unwrap();
        let head = format!(
            "PATCH {path} HTTP/1.1\r\nhost: cairn\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{set}",
            set.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 400 "), "{path}: whoever is to be kept out gets in: {answer}");
    }
    assert!(!server.data.join("exports.json").exists(), "nothing is set");
}

#[test]
fn disk_that_is_too_short_for_a_volume_to_grow_is_told_by_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("disk.img");
    std::fs::File::create(&image).unwrap().set_len(128 << 20).unwrap();
    let Some(disk) = running::Loop::over(&image) else { return };
    let server = Running::start(dir.path(), "d");
    server.good(&["volume", "create", "v", "--device", &disk.0]);
    let grow = ["volume", "grow", "v", "--size", "1G", "--json"];
    let output = server.run(&grow);
    refused(&output, 22, "too-small", &grow);
    let said = String::from_utf8(output.stdout).unwrap();
    let told: serde_json::Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    let next = told["next"].as_str().unwrap();
    assert!(next.contains(&disk.0), "{next}");
    assert!(!next.contains("--device"), "there is no such option: {next}");
}

#[test]
fn manager_is_told_when_the_server_is_ready_and_when_it_ends() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(running::PATIENCE)).unwrap();
    let mut process = cairn()
        .args(["serve", "--nbd", "off", "--iscsi", "off", "--mirror", "off", "--quiet", "--data"])
        .arg(dir.path().join("d"))
        .env("NOTIFY_SOCKET", &path)
        .spawn()
        .unwrap();
    let mut said = [0; 64];
    let length = manager.recv(&mut said).unwrap();
    assert_eq!(&said[..length], b"READY=1");
    assert!(Command::new("kill").args(["-INT", &process.id().to_string()]).status().unwrap().success());
    let length = manager.recv(&mut said).unwrap();
    assert_eq!(&said[..length], b"STOPPING=1");
    assert_eq!(process.wait().unwrap().code(), Some(0));
}

#[test]
fn next_steps_name_what_is_known_and_nobody_is_asked_about_what_is_not_there() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), "d");
    for volume in ["v", "w"] {
        server.good(&["volume", "create", volume, "--size", "64M"]);
    }
    let next = |arguments: &[&str]| {
        let output = server.run(&[arguments, &["--json"]].concat());
        let text = String::from_utf8(output.stdout).unwrap();
        let object: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        (object["message"].as_str().unwrap().to_owned(), object["next"].as_str().unwrap().to_owned())
    };
    assert!(next(&["snapshot", "delete", "v@nosuch", "--yes"]).1.contains("cairn snapshot list v`"));
    assert!(next(&["snapshot", "schedule", "remove", "v", "nosuch"]).1.contains("schedule list v`"));
    server.good(&["snapshot", "create", "v@dear"]);
    server.good(&["snapshot", "hold", "v@dear"]);
    let (message, remedy) = next(&["snapshot", "delete", "v@dear", "--yes"]);
    assert!(
        message.contains("v@dear") && remedy.contains("cairn snapshot release v@dear"),
        "{message} {remedy}"
    );
    // Nothing is silently off.
    let nothing = server.run(&["volume", "rehearse", "v", "--fail-reads", "0", "--yes"]);
    assert_eq!(nothing.status.code(), Some(2), "{nothing:?}");
    // Not asked for a word first.
    server.bad(10, "not-found", &["peer", "revoke", "nosuch"]);

    // A schedule that never runs is reported when it is made, and afterwards.
    let other = Running::start(dir.path(), "other");
    other.good(&["volume", "create", "m", "--size", "64M"]);
    let token = other.invite();
    server.good(&["mirror", "create", "m", &token]);
    server.good(&["group", "create", "g", "v", "m"]);
    let said = server.good(&["group", "set", "g", "--every", "1h"]);
    assert!(said.contains("NEVER") && said.contains('m'), "{said}");
    let problems = server.json(&["status"])["problems"].to_string();
    assert!(problems.contains("never runs"), "{problems}");

    let (origin, history) = (running::path(dir.path(), "disk"), running::path(dir.path(), "history"));
    server.good(&["device", "adopt", "disk0", "--origin", &origin, "--size", "8M", "--history", &history]);
    server.good(&["history", "mark", "disk0", "monday"]);
    server.good(&["history", "view", "disk0", "--mark", "monday", "--as", "then"]);
    let said = server.good(&["device", "release", "disk0", "-n"]);
    assert!(said.contains("disk0@then"), "{said}");
}

#[test]
fn prompt_and_dry_run_look_first_whether_it_exists() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), "d");
    server.good(&["volume", "create", "v", "--size", "64M"]);
    for given in [
        "volume delete no",
        "volume rehearse no --delay 1ms",
        "volume log no --discard-lost",
        "lun delete v/no",
        "lun resize v/no --size 1M --shrink",
        "snapshot delete v@no",
        "snapshot rollback v@no",
        "snapshot revert v --to no",
        "clone delete no",
        "device release no",
        "history disable no",
        "history revert no --to -5m",
        "history clone no --delete x",
        "group failover no",
        "group reverse no",
        "mirror delete no",
        "mirror failover no",
        "mirror reverse no",
        "mirror forget v no",
        "peer revoke no",
        "image levels v --forget 0",
        "state give-up no.json",
    ] {
        // Without a question, because there is no terminal.
        let words: Vec<&str> = given.split(' ').collect();
        server.bad(10, "not-found", &words);
    }
    for given in ["snapshot rollback v", "snapshot rollback v@a --to b"] {
        server.bad(2, "usage", &given.split(' ').collect::<Vec<_>>());
    }
}

#[test]
fn things_are_shown_by_their_names_and_status_begins_with_how_all_is() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), "d");
    volume_with_lun(&server);
    server.good(&["snapshot", "create", "vol0@a"]);
    server.good(&["snapshot", "schedule", "set", "vol0", "hourly", "--every", "1h", "--keep-last", "3"]);
    server.good(&["clone", "create", "vol0@a", "copy"]);
    let (origin, history) = (running::path(dir.path(), "disk"), running::path(dir.path(), "history"));
    server.good(&["device", "adopt", "disk0", "--origin", &origin, "--size", "8M", "--history", &history]);
    for (given, word) in [
        ("lun show vol0/db", "16 MiB"),
        ("export show vol0/db", "read-write"),
        ("export show disk0", "8 MiB"),
        ("snapshot show vol0@a", "generation"),
        ("snapshot schedule show vol0 hourly", "keeps 3 last"),
        ("clone show copy", "vol0@a"),
        ("device show disk0", "origin"),
        ("history list", "disk0"),
        ("history show disk0", "placement"),
        ("history clone disk0", "none"),
        ("mount list", "none"),
        ("trace list", "none"),
        ("mirror list", "none"),
    ] {
        let words: Vec<&str> = given.split(' ').collect();
        assert!(server.good(&words).contains(word), "{given}");
    }
    let group = server.good(&["group", "create", "g", "vol0", "copy"]);
    assert!(group.contains("made group"));
    server.good(&["group", "set", "g", "--every", "1h"]);
    assert!(server.json(&["group", "set", "g"])["next_ms"].is_u64(), "a look changes nothing");
    assert!(server.json(&["group", "set", "g", "--off"])["next_ms"].is_null());
    for given in ["lun show vol0/no", "export show no", "snapshot show vol0@no", "device show no"] {
        server.bad(10, "not-found", &given.split(' ').collect::<Vec<_>>());
    }
    let status = server.good(&["status"]);
    assert!(status.starts_with("OK: no problems\n"), "{status}");
    assert!(status.contains("SCHEDULES") && status.contains("FILE SYSTEMS OF THIS MACHINE"), "{status}");
    let wide = status.lines().skip(6).find(|line| line.chars().count() > 80);
    assert!(wide.is_none(), "{wide:?}");
    let object = server.json(&["status"]);
    assert_eq!(object["schedules"][0]["label"], "hourly");
    assert_eq!(object["mounts"], serde_json::json!([]));
}

#[test]
fn volume_that_is_named_after_the_files_of_an_image_dump_is_asked_for_where_it_belongs() {
    let output = cairn().args(["image", "dump", "--to", "/tmp/vol0.0", "vol0"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("cairn image dump vol0 --to FILE"), "{said}");
}

#[test]
fn output_that_nobody_takes_is_no_panic() {
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = cairn().args(["completions", "bash"]).stdout(full()).output().unwrap();
    assert_eq!(output.status.code(), Some(24), "{output:?}");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let status = cairn().args(["completions", "bash"]).stdout(writer).status().unwrap();
    assert_eq!(status.code(), Some(0), "the reader has enough of it");
    let status = cairn().args(["image", "ls", "/nowhere"]).stderr(full()).status().unwrap();
    assert_ne!(status.code(), Some(101));
}

#[test]
fn connections_over_tcp_that_ask_for_nothing_take_the_server_from_nobody() {
    use rustix::process::{Pid, Resource, Rlimit, prlimit};
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start_with(dir.path(), "d", &["--mirror", "off", "--http", "127.0.0.1:0"]);
    let status = server.json(&["status"]);
    let address = status["http"][1].as_str().unwrap();
    // As many files as it may have open on some machines, and fewer than there are such clients.
    let process = Pid::from_raw(status["pid"].as_i64().unwrap() as i32);
    prlimit(process, Resource::Nofile, Rlimit { current: Some(256), maximum: Some(256) }).unwrap();
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(std::net::TcpStream::connect(address).unwrap());
    }
    assert!(
        server.is_done_in_time(&["volume", "create", "vol0", "--size", "64M"]),
        "it has files for itself"
    );
    // The server closes the silent ones that it accepted, and accepts others again.
    running::wait_until("it answers over TCP", || {
        let mut asks = std::net::TcpStream::connect(address).unwrap();
        let mut answer = String::new();
        asks.set_read_timeout(Some(running::PATIENCE / 3)).unwrap();
        // HTTP/1.1 would keep the connection: here the answer ends with the connection.
        let asked = asks.write_all(b"GET /v1/status HTTP/1.1\r\nhost: cairn\r\n\r\n");
        asked.and_then(|()| asks.read_to_string(&mut answer)).is_ok() && answer.contains(" 401 ")
    });
    drop(silent);
}

#[test]
fn who_never_shows_the_token_takes_no_place_of_the_api_for_long_whatever_he_says() {
    use std::net::TcpStream;
    use std::sync::atomic::{AtomicBool, Ordering};
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start_with(dir.path(), "d", &["--mirror", "off", "--http", "127.0.0.1:0"]);
    let address = server.json(&["status"])["http"][1].as_str().unwrap().to_owned();
    let token = std::fs::read_to_string(server.data.join("http-token")).unwrap();
    let token = token.trim();
    // On one connection, which does not end with the answer.
    let answers = |stream: &mut TcpStream| {
        let asked = format!("GET /v1/jobs HTTP/1.1\r\nhost: cairn\r\nauthorization: Bearer {token}\r\n\r\n");
        stream.set_read_timeout(Some(running::PATIENCE / 3)).unwrap();
        let mut answer = [0; 12];
        let asked = stream.write_all(asked.as_bytes()).and_then(|()| stream.read_exact(&mut answer));
        asked.is_ok() && answer == *b"HTTP/1.1 200"
    };
    let connect = || TcpStream::connect(&address).unwrap();
    let mut known = connect();
    assert!(answers(&mut known), "who has the token is answered");
    let slow: Vec<TcpStream> = (0..80).map(|_| connect()).collect();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            slow.iter().for_each(|mut stream| drop(stream.write_all(b"GET /v1/status HTTP/1.1\r\nx: ")));
            while !is_over.load(Ordering::Relaxed) {
                slow.iter().for_each(|mut stream| drop(stream.write_all(b"y")));
                std::thread::sleep(std::time::Duration::from_millis(200));
            }
        });
        let until = std::time::Instant::now() + running::PATIENCE;
        let mut comes_in = false;
        while !comes_in && std::time::Instant::now() < until {
            std::thread::sleep(std::time::Duration::from_millis(100));
            comes_in = answers(&mut connect());
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(comes_in, "those who send one byte after the other have all places");
    });
    // Read the rest of its first answer before that of the second.
    let mut rest = [0; 4096];
    let _ = known.read(&mut rest).unwrap();
    assert!(answers(&mut known), "who has shown the token is not let go of");
}

/// A server whose answers the test chooses, and a command that uses it.
struct Posed {
    listener: std::os::unix::net::UnixListener,
    process: std::process::Child,
    until: std::time::Instant,
}

impl Posed {
    fn start(dir: &std::path::Path, arguments: &[&str]) -> Self {
        let path = dir.join("server.sock");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        let mut command = cairn();
        command.args(arguments).args(["--json", "--server"]).arg(format!("unix:{}", path.display()));
        let process = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
        Self { listener, process, until: std::time::Instant::now() + running::PATIENCE }
    }

    /// The next question, of which nothing is read yet; none when the command has ended, or its
    /// time is over.
    fn accept(&mut self) -> Option<UnixStream> {
        while std::time::Instant::now() < self.until {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false).unwrap();
                    return Some(stream);
                }
                Err(_) if self.process.try_wait().unwrap().is_some() => return None,
                Err(_) => std::thread::sleep(std::time::Duration::from_millis(10)),
            }
        }
        None
    }

    /// Answers a request with a running job; returns the request.
    fn runs_on(asks: &mut UnixStream, kind: &str) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            // An interrupted client may disconnect before its request.
            if asks.read_exact(&mut byte).is_err() {
                break;
            }
            head.extend(byte);
        }
        let job = serde_json::json!({
            "id": "j", "kind": kind, "subject": "vol0", "state": "running", "phase": "checking",
            "done_bytes": 0, "total_bytes": 0, "rate": 0, "elapsed_ms": 1, "notes": [],
        });
        let job = job.to_string();
        let answer = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{job}",
            job.len()
        );
        let _ = asks.write_all(answer.as_bytes());
        String::from_utf8(head).unwrap()
    }

    fn interrupt(&self) {
        let sent = Command::new("kill").args(["-INT", &self.process.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// The exit code of the command, if it ends by itself, and its output.
    fn ended(mut self) -> (Option<i32>, String) {
        while self.process.try_wait().unwrap().is_none() && std::time::Instant::now() < self.until {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let ended = self.process.try_wait().unwrap();
        let _ = self.process.kill();
        let mut said = String::new();
        self.process.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        self.process.wait().unwrap();
        (ended.and_then(|ended| ended.code()), said)
    }
}

#[test]
fn command_that_waits_for_a_server_which_does_not_answer_any_more_ends_by_ctrl_c() {
    let dir = tempfile::tempdir().unwrap();
    let mut posed = Posed::start(dir.path(), &["volume", "check", "vol0"]);
    let mut asks = posed.accept().expect("it asks for the check");
    Posed::runs_on(&mut asks, "volume check");
    // How it is, and then that it is to end: neither is answered.
    let mut held = Vec::new();
    for _ in 0..2 {
        held.extend(posed.accept());
        posed.interrupt();
    }
    assert_eq!((held.len(), posed.ended().0), (2, Some(130)));
}

/// A user with a report of its end would start the next one beside it, or remove its input.
#[test]
fn work_that_goes_on_after_a_second_ctrl_c_is_not_said_to_have_ended() {
    let dir = tempfile::tempdir().unwrap();
    let mut posed = Posed::start(dir.path(), &["mirror", "verify", "vol0"]);
    let (mut is_asked, mut is_told) = (false, false);
    while let Some(mut asks) = posed.accept() {
        let asked = Posed::runs_on(&mut asks, "mirror verify");
        is_told |= asked.starts_with("DELETE ");
        // Once at the first request for the job, and again after the request to end it.
        if asked.starts_with("GET ") && (is_told || !is_asked) {
            is_asked = true;
            posed.interrupt();
        }
    }
    let (code, said) = posed.ended();
    assert_eq!((is_told, code), (true, Some(130)), "{said}");
    assert!(said.contains("was cancelled and has not stopped yet"), "{said}");
}

/// A paused mirror brings no data: there is no update that could be ended.
#[test]
fn repoint_that_is_interrupted_names_what_there_is_to_look_at() {
    let dir = tempfile::tempdir().unwrap();
    let mut posed = Posed::start(dir.path(), &["mirror", "repoint", "vol0", "token"]);
    let mut asks = posed.accept().expect("it asks for the change");
    Posed::runs_on(&mut asks, "mirror repoint");
    let held = posed.accept();
    posed.interrupt();
    let (code, said) = posed.ended();
    assert_eq!((held.is_some(), code), (true, Some(130)), "{said}");
    assert!(said.contains("`cairn mirror status vol0`") && !said.contains("abort"), "{said}");
}
