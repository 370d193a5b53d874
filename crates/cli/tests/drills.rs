//! Drills of a mirror from the command line: a probe that passes, one that fails, hangs or is cut
//! off by a kill; schedules; and nothing over TCP.

mod running;

use std::path::Path;
use std::time::Instant;

use running::{PATIENCE, Running, cairn, refused};

/// A source, and a mirror of its volume `v` with a LUN `db` that begins with "good".
fn mirrored(dir: &Path, arguments: &[&str]) -> (Running, Running) {
    let source = Running::start(dir, "a");
    source.good(&["volume", "create", "v", "--size", "64M"]);
    source.good(&["lun", "create", "v/db", "--size", "8M"]);
    let mut disk = source.disk("v/db");
    disk.write(0, &b"good".repeat(1024)).unwrap();
    disk.flush().unwrap();
    disk.disconnect().unwrap();
    let mirror = Running::start_with(dir, "b", arguments);
    let token = source.invite();
    mirror.good(&["mirror", "create", "v", &token]);
    (source, mirror)
}

/// The volumes in the data directory of a mirror without a running drill.
fn volumes(server: &Running) -> Vec<String> {
    let names = std::fs::read_dir(server.data.join("volumes")).unwrap();
    names.map(|found| found.unwrap().file_name().into_string().unwrap()).collect()
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what} does not happen");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[test]
fn drill_serves_a_clone_that_takes_writes_records_what_the_probe_said_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (_source, mirror) = mirrored(dir.path(), &["--mirror", "off"]);
    // The program itself lists the exports, into the log of the probe.
    let program = env!("CARGO_BIN_EXE_cairn");
    let exports = dir.path().join("exports");
    let probe = format!(
        "echo $CAIRN_DRILL_URI; {program} lun list $CAIRN_DRILL_VOLUME && {program} lun create $CAIRN_DRILL_VOLUME/more --size 1M && {program} export list --json > {}",
        exports.display()
    );
    let friend = "iqn.2000-01.example:friend";
    mirror.good(&["export", "set", "v/db", "--initiator", friend, "--read-only", "true"]);
    mirror.bad(2, "usage", &["mirror", "drill", "v"]);
    let made = mirror.json(&["mirror", "drill", "v", "--probe", &probe]);
    assert_eq!((&made["outcome"], &made["exit_code"]), (&"passed".into(), &0.into()), "{made}");
    assert!(made["said"].as_str().unwrap().contains("drill-v/db"), "{made}");
    assert!(made["recovery_ms"].as_u64().unwrap() >= made["served_ms"].as_u64().unwrap());
    assert_eq!(volumes(&mirror), ["v"], "the clone is gone");
    let exports: serde_json::Value = serde_json::from_slice(&std::fs::read(&exports).unwrap()).unwrap();
    let clone = exports.as_array().unwrap().iter().find(|export| export["name"] == "drill-v/db").unwrap();
    assert_eq!(clone["access"]["initiators"][0], friend, "nobody else sees it");
    assert_eq!(clone["access"]["read_only"], false);
    let status = mirror.json(&["status"]);
    let drill = &status["drills"][0];
    assert_eq!((&drill["mirror"], &drill["last"]["outcome"]), (&"v".into(), &"passed".into()), "{status}");
    assert!(drill["age_ms"].is_u64() && status["problems"].as_array().unwrap().is_empty(), "{status}");
    assert!(mirror.good(&["status"]).contains("DRILLS"));
    mirror.good(&["volume", "check", "v", "--deep"]);
    assert_eq!(mirror.disk("v/db").read(0, 4).unwrap(), b"good");

    let failed = mirror.bad(1, "failed", &["mirror", "drill", "v", "--probe", "echo no rows; exit 7"]);
    assert!(failed.contains("ended with 7: no rows"), "{failed}");
    let status = mirror.json(&["status"]);
    assert_eq!(status["problems"][0]["subject"], "v", "{status}");
    assert!(status["drills"][0]["age_ms"].is_u64(), "the one that passed counts: {status}");

    // A hanging probe is killed with all processes that it started.
    let left = dir.path().join("left");
    let hangs = format!("(sleep 60; touch {}) & wait", left.display());
    let failed = mirror.bad(1, "failed", &["mirror", "drill", "v", "--probe", &hangs, "--timeout", "100ms"]);
    assert!(failed.contains("did not end in time"), "{failed}");
    assert_eq!(volumes(&mirror), ["v"]);
    mirror.good(&["mirror", "drill", "v", "--probe", "true", "--timeout", "10s"]);
    assert!(mirror.json(&["status"])["problems"].as_array().unwrap().is_empty());
}

#[test]
fn drill_goes_on_while_the_mirror_is_updated_and_a_kill_leaves_no_clone() {
    let dir = tempfile::tempdir().unwrap();
    let (source, mut mirror) = mirrored(dir.path(), &["--mirror", "off"]);
    let (go, seen) = (dir.path().join("go"), dir.path().join("seen"));
    let probe = format!("touch {}; while ! [ -e {} ]; do sleep 0.02; done", seen.display(), go.display());
    let start = |mirror: &Running| {
        let mut command = cairn();
        command.args(["mirror", "drill", "v", "--probe", &probe, "--data"]).arg(&mirror.data);
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).spawn().unwrap()
    };
    let mut drilling = start(&mirror);
    wait_for("the probe", || seen.exists());
    mirror.bad(11, "busy", &["mirror", "drill", "v", "--probe", "true"]);
    for byte in 1..4 {
        let mut disk = source.disk("v/db");
        disk.write(0, &[byte; 1 << 20]).unwrap();
        disk.flush().unwrap();
        mirror.good(&["mirror", "update", "v"]);
    }
    assert_eq!(mirror.disk("drill-v/db").read(0, 4).unwrap(), b"good", "its image is held open");
    assert_eq!(mirror.disk("v/db").read(0, 4).unwrap(), [3; 4]);
    std::fs::write(&go, "").unwrap();
    assert!(drilling.wait().unwrap().success());

    std::fs::remove_file(&go).unwrap();
    std::fs::remove_file(&seen).unwrap();
    let mut drilling = start(&mirror);
    wait_for("the probe", || seen.exists());
    mirror.kill();
    std::fs::write(&go, "").unwrap();
    let _ = drilling.wait();
    assert_eq!(volumes(&mirror).len(), 2);
    mirror.restart();
    assert_eq!(volumes(&mirror), ["v"]);
    mirror.good(&["volume", "check", "v", "--deep"]);
    mirror.good(&["mirror", "drill", "v"]);
}

#[test]
fn clone_that_a_probe_leaves_mounted_is_unmounted_before_it_goes() {
    if !running::can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (_source, mut mirror) = mirrored(dir.path(), &["--mirror", "off"]);
    let at = dir.path().join("at");
    std::fs::create_dir(&at).unwrap();
    let program = env!("CARGO_BIN_EXE_cairn");
    let probe =
        format!("{program} mount $CAIRN_DRILL_VOLUME {0} && echo seen > {0}/seen && exit 7", at.display());
    for _ in 0..2 {
        let failed = mirror.bad(1, "failed", &["mirror", "drill", "v", "--probe", &probe]);
        assert!(failed.contains("ended with 7"), "it can be mounted there each time: {failed}");
        wait_for("its end", || mirror.json(&["mount", "list"]) == serde_json::json!([]));
        assert_eq!(std::fs::read_dir(&at).unwrap().count(), 0, "the directory is an empty one again");
        assert_eq!(volumes(&mirror), ["v"]);
    }
    mirror.good(&["mirror", "drill", "v", "--probe", "true"]);
    assert_eq!(mirror.terminate(), 0);
    mirror.restart();
    assert_eq!(mirror.json(&["status"])["problems"], serde_json::json!([]));
}

/// Its base is deleted when the drill ends. In an earlier version the clone of the drill then
/// stayed until the next start, which blocked further drills, and was gone after that.
#[test]
fn nothing_that_lasts_is_made_of_the_clone_of_a_drill() {
    let dir = tempfile::tempdir().unwrap();
    let (_source, mut mirror) = mirrored(dir.path(), &["--mirror", "off"]);
    let program = env!("CARGO_BIN_EXE_cairn");
    let store = dir.path().join("store");
    let probe = format!(
        "{program} snapshot create drill-v@s; {program} clone create drill-v@s mine; {program} device adopt mine --origin lun:drill-v/db --history {}; true",
        store.display()
    );
    for _ in 0..2 {
        let made = mirror.json(&["mirror", "drill", "v", "--probe", &probe]);
        let said = made["said"].as_str().unwrap();
        assert_eq!(said.matches("is the temporary clone of a drill").count(), 2, "{said}");
        assert_eq!(volumes(&mirror), ["v"], "{said}");
    }
    assert_eq!(mirror.json(&["device", "list"]), serde_json::json!([]));
    assert_eq!(mirror.terminate(), 0);
    mirror.restart();
    assert_eq!(mirror.json(&["status"])["problems"], serde_json::json!([]));
}

/// Cached writes are written before the unmount, which takes as long as the volume does: no other
/// request waits for that.
#[test]
fn mounts_are_told_while_what_was_written_to_one_that_is_taken_away_is_brought() {
    use std::os::unix::fs::PermissionsExt;
    if !running::can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (_source, mut mirror) = mirrored(dir.path(), &["--mirror", "off"]);
    let [at, programs] = ["at", "programs"].map(|name| dir.path().join(name));
    [&at, &programs].iter().for_each(|folder| std::fs::create_dir(folder).unwrap());
    let (begun, go) = (dir.path().join("begun"), dir.path().join("go"));
    let slow = format!(
        "#!/bin/sh\ntouch {}\nwhile ! [ -e {} ]; do sleep 0.02; done\n",
        begun.display(),
        go.display()
    );
    std::fs::write(programs.join("sync"), slow).unwrap();
    std::fs::set_permissions(programs.join("sync"), std::fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(mirror.terminate(), 0);
    mirror.find_first(&programs);
    mirror.restart();
    let probe = format!("{} mount $CAIRN_DRILL_VOLUME {}", env!("CARGO_BIN_EXE_cairn"), at.display());
    std::thread::scope(|scope| {
        let drill = scope.spawn(|| mirror.json(&["mirror", "drill", "v", "--probe", &probe]));
        wait_for("its mount is taken away", || begun.exists());
        let is_told = mirror.is_done_in_time(&["mount", "list"]);
        std::fs::write(&go, "").unwrap();
        assert_eq!(drill.join().unwrap()["outcome"], "passed");
        assert!(is_told, "who asks for mounts waits for what is brought");
    });
    assert_eq!(mirror.json(&["mount", "list"]), serde_json::json!([]));
    assert_eq!(volumes(&mirror), ["v"]);
}

#[test]
fn drills_of_a_mirror_that_was_deleted_are_none_of_another_one_that_gets_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let (source, mirror) = mirrored(dir.path(), &["--mirror", "off"]);
    let ran = dir.path().join("ran");
    let probe = format!("touch {}", ran.display());
    mirror.good(&["mirror", "drill", "v", "--probe", &probe, "--every", "1h"]);
    mirror.good(&["mirror", "delete", "v", "--yes"]);
    std::fs::remove_file(&ran).unwrap();
    let token = source.invite();
    mirror.good(&["mirror", "create", "v", &token]);
    assert_eq!(mirror.json(&["status"])["drills"], serde_json::json!([]), "nobody asked for any");
    let refused = mirror.bad(2, "usage", &["mirror", "drill", "v"]);
    assert!(refused.contains("the first drill of a mirror needs a probe"), "{refused}");
    assert!(!ran.exists(), "a command that was meant for another one");
}

/// Whether a process exists that has not ended.
fn runs(process: &str) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{}/stat", process.trim())).unwrap_or_default();
    !state.is_empty() && !state.contains(") Z ")
}

#[test]
fn probe_of_a_server_that_was_killed_does_not_go_on_beside_the_next_one() {
    let dir = tempfile::tempdir().unwrap();
    let (_source, mut mirror) = mirrored(dir.path(), &["--mirror", "off"]);
    let left = dir.path().join("left");
    let others = dir.path().join("others");
    // Its child leaves its process group, as a database does.
    let probe = format!(
        "setsid sleep 600 & echo $! > {0}; echo $$ > {1}; mv {1} {1}.whole; wait",
        left.display(),
        others.display()
    );
    let mut command = cairn();
    command.args(["mirror", "drill", "v", "--probe", &probe, "--data"]).arg(&mirror.data);
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let mut drilling = command.spawn().unwrap();
    let whole = dir.path().join("others.whole");
    wait_for("the probe", || whole.exists());
    let started = [&whole, &left].map(|file| std::fs::read_to_string(file).unwrap());
    mirror.kill();
    let _ = drilling.wait();
    assert!(started.iter().all(|process| runs(process)), "nobody has ended it yet");
    mirror.restart();
    // It would write to the clone of the next drill, which has the same name.
    wait_for("the end of the probe", || !started.iter().any(|process| runs(process)));
    mirror.good(&["mirror", "drill", "v", "--probe", "true"]);
}

#[test]
fn mirror_with_the_longest_name_has_drills_as_any_other() {
    let dir = tempfile::tempdir().unwrap();
    let (source, mirror) = mirrored(dir.path(), &["--mirror", "off"]);
    // The clones of both begin with the same letters.
    let long = ["a", "b"].map(|end| "v".repeat(63) + end);
    for name in &long {
        mirror.good(&["mirror", "create", "v", &source.invite(), "--as", name]);
    }
    let (go, seen) = (dir.path().join("go"), dir.path().join("seen"));
    let waits = format!("touch {}; while ! [ -e {} ]; do sleep 0.02; done", seen.display(), go.display());
    let mut command = cairn();
    command.args(["mirror", "drill", &long[0], "--probe", &waits, "--data"]).arg(&mirror.data);
    let mut drilling = command.stdout(std::process::Stdio::null()).spawn().unwrap();
    wait_for("the probe", || seen.exists());
    mirror.good(&["mirror", "drill", &long[1], "--probe", "test -n \"$CAIRN_DRILL_URI\""]);
    std::fs::write(&go, "").unwrap();
    assert!(drilling.wait().unwrap().success());
}

#[test]
fn scheduled_drills_come_by_themselves_and_no_command_comes_over_tcp() {
    let dir = tempfile::tempdir().unwrap();
    let (_source, mut mirror) = mirrored(dir.path(), &["--mirror", "off", "--http", "127.0.0.1:0"]);
    let count = dir.path().join("count");
    let probe = format!("echo x >> {}", count.display());
    let drills = || std::fs::read_to_string(&count).map_or(0, |text| text.lines().count());
    mirror.good(&["mirror", "drill", "v", "--probe", &probe, "--every", "50ms"]);
    wait_for("a drill", || drills() >= 2);
    mirror.terminate();
    let before = drills();
    mirror.restart();
    wait_for("a drill after a restart", || drills() > before);
    mirror.good(&["mirror", "drill", "v", "--forget"]);
    mirror.bad(10, "not-found", &["mirror", "drill", "v", "--forget"]);
    assert!(mirror.json(&["status"])["drills"].as_array().unwrap().is_empty());
    mirror.bad(10, "not-found", &["mirror", "drill", "nothing", "--probe", "true"]);

    let address = mirror.json(&["status"])["http"][1].as_str().unwrap().to_owned();
    let token = mirror.data.join("http-token");
    let arguments =
        ["mirror", "drill", "v", "--probe", "true", "--json", "--server", &address, "--token-file"];
    let output = cairn().args(arguments).arg(&token).output().unwrap();
    let said = refused(&output, 12, "unauthorized", &arguments);
    assert!(said.contains("control socket"), "{said}");
}

#[test]
fn mirror_that_was_failed_over_has_no_drills_that_are_missed() {
    let dir = tempfile::tempdir().unwrap();
    let (_source, mirror) = mirrored(dir.path(), &["--mirror", "off"]);
    mirror.good(&["mirror", "drill", "v", "--probe", "true", "--every", "1s"]);
    mirror.good(&["mirror", "failover", "v", "--yes"]);
    let drill = || mirror.json(&["status"])["drills"][0].clone();
    wait_for("a drill that is old", || {
        let drill = drill();
        drill["running"] == false && drill["age_ms"].as_u64().is_some_and(|age| age > 2500)
    });
    let status = mirror.json(&["status"]);
    assert_eq!(status["drills"][0]["stale"], false, "{status}");
    assert_eq!(status["problems"], serde_json::json!([]), "what can't be made is no problem");
    mirror.good(&["mirror", "drill", "v", "--forget"]);
}
