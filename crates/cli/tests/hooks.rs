//! Commands around snapshots.

mod running;

use std::io::{Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use running::{PATIENCE, Running, cairn, refused, wait_until};

fn lines(path: &Path) -> Vec<String> {
    std::fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}

#[test]
fn hooks_are_not_taken_from_afar() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start_with(dir.path(), "d", &["--mirror", "off", "--http", "127.0.0.1:0"]);
    server.good(&["volume", "create", "vol0", "--size", "64M"]);
    let address = server.json(&["status"])["http"][1].as_str().unwrap().to_owned();
    let far = |arguments: &[&str]| {
        let mut command = cairn();
        command.args(arguments).args(["--json", "--server", &address, "--token-file"]);
        command.arg(server.data.join("http-token")).output().unwrap()
    };
    let set = ["volume", "hooks", "vol0", "--before", "touch /tmp/mine"];
    let said = refused(&far(&set), 12, "unauthorized", &set);
    assert!(said.contains("control socket"), "{said}");
    assert!(far(&["volume", "hooks", "vol0"]).status.success(), "they may be looked at");
    assert!(server.json(&["volume", "hooks", "vol0"])["before"].is_null());
}

#[test]
fn files_of_the_machine_are_not_adopted_from_afar() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start_with(dir.path(), "d", &["--mirror", "off", "--http", "127.0.0.1:0"]);
    server.good(&["volume", "create", "vol0", "--size", "256M"]);
    server.good(&["lun", "create", "vol0/db", "--size", "1M"]);
    let file = dir.path().join("secret");
    std::fs::write(&file, [1; 8192]).unwrap();
    let secret = file.to_str().unwrap();
    let address = server.json(&["status"])["http"][1].as_str().unwrap().to_owned();
    let far = |arguments: &[&str]| {
        let mut command = cairn();
        command.args(arguments).args(["--json", "--server", &address, "--token-file"]);
        command.arg(server.data.join("http-token")).output().unwrap()
    };
    let store = dir.path().join("store");
    for arguments in [
        &["device", "adopt", "mine", "--origin", secret][..],
        &["device", "adopt", "mine", "--origin", "lun:vol0/db", "--history", store.to_str().unwrap()],
        &["history", "enable", "vol0", "--history", store.to_str().unwrap(), "--yes"],
    ] {
        let said = refused(&far(arguments), 12, "unauthorized", arguments);
        assert!(said.contains("control socket"), "{said}");
    }
    assert!(!store.exists(), "nothing was made");
    assert_eq!(server.json(&["device", "list"]).as_array().map(Vec::len), Some(0));
    assert!(far(&["device", "list"]).status.success(), "they may be looked at");
    let lun = far(&["device", "adopt", "mine", "--origin", "lun:vol0/db"]);
    assert!(lun.status.success(), "a LUN is no file of the machine: {lun:?}");
    server.good(&["device", "release", "mine", "--yes"]);
    server.good(&["device", "adopt", "mine", "--origin", secret]);
}

#[test]
fn no_file_of_the_machine_is_written_or_taken_by_who_has_the_token_alone() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start_with(dir.path(), "d", &["--http", "127.0.0.1:0", "--mirror", "127.0.0.1:0"]);
    server.good(&["volume", "create", "vol0", "--size", "256M"]);
    server.good(&["lun", "create", "vol0/db", "--size", "1M"]);
    let status = server.json(&["status"]);
    let address = status["http"][1].as_str().unwrap().to_owned();
    let invitation = server.invite();
    let (file, empty) = (dir.path().join("file"), dir.path().join("disk"));
    let (path, disk) = (file.to_str().unwrap(), empty.to_str().unwrap());
    std::fs::File::create(&empty).unwrap().set_len(128 << 20).unwrap();
    let token = server.data.join("http-token");
    let far = |arguments: &[&str]| {
        let mut command = cairn();
        command.args(arguments).args(["--json", "--server", &address, "--token-file"]);
        command.arg(&token).output().unwrap()
    };
    for arguments in [
        &["volume", "create", "mine", "--device", disk][..],
        &["volume", "create", "mine", "--size", "64M", "--log-device", disk],
        &["volume", "create", "mine", "--size", "64M", "--history", path],
        &["volume", "log", "vol0", "--device", disk],
        &["mirror", "create", "vol0", &invitation, "--as", "mine", "--device", disk],
        &["mirror", "create", "vol0", &invitation, "--as", "mine", "--log-device", disk],
        &["mirror", "resync", "vol0", "--spill", path],
        &["mirror", "failback", "vol0", "--spill", path],
        &["trace", "record", "vol0/db", "--to", path],
        &["bucket", "add", "mine", &format!("file://{}", dir.path().display())],
        &["bucket", "add", "mine", "s3://bucket", "--credentials", path],
        &["bucket", "add", "mine", "s3://bucket", "--ca", path],
    ] {
        let said = refused(&far(arguments), 12, "unauthorized", arguments);
        assert!(said.contains("control socket"), "{said}");
        assert!(!file.exists(), "{arguments:?}");
    }
    // An object may be written as a list of its fields as well.
    let secret = std::fs::read_to_string(&token).unwrap();
    let posted = |to: &str, body: &str| {
        let mut stream = std::net::TcpStream::connect(&address).unwrap();
        let head = format!(
            "POST {to} HTTP/1.1\r\nhost: cairn\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\nauthorization: Bearer {}\r\n\r\n",
            body.len(),
            secret.trim()
        );
        stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes())).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let of_a_history = format!(r#"["mine", 67108864, [], null, ["{path}", null, null, null, {{}}]]"#);
    let said = posted("/v1/volumes", &of_a_history);
    assert!(said.contains("control socket") && !file.exists(), "{said}");
    let of_a_dump = format!(
        r#"{{"name": "mine", "size_bytes": null, "devices": ["{disk}"], "ticket": "", "files": []}}"#
    );
    let said = posted("/v1/images/restore", &of_a_dump);
    assert!(said.contains("control socket"), "{said}");
    let said = posted("/v1/volumes", r#"["yours", 67108864, [], null, null]"#);
    assert!(said.contains(" 200 "), "a volume in the data directory: {said}");
    assert!(far(&["volume", "create", "ours", "--size", "64M"]).status.success());
    server.good(&["volume", "create", "mine", "--device", disk]);
}

#[test]
fn hooks_run_around_every_snapshot_and_no_longer_than_their_time() {
    let dir = tempfile::tempdir().unwrap();
    let mut source = Running::start(dir.path(), "source");
    source.stay();
    source.good(&["volume", "create", "vol0", "--size", "64M"]);
    source.good(&["lun", "create", "vol0/db", "--size", "1M"]);
    let log = dir.path().join("log");
    let say = format!("echo $CAIRN_HOOK $CAIRN_VOLUME >> {}", log.display());
    source.good(&["volume", "hooks", "vol0", "--before", &say, "--after", &say, "--timeout", "5s"]);
    source.good(&["snapshot", "create", "vol0@one"]);
    assert_eq!(lines(&log), ["before vol0", "after vol0"]);
    let destination = Running::start(dir.path(), "destination");
    let token = source.invite();
    destination.good(&["mirror", "create", "vol0", &token]);
    assert_eq!(lines(&log).len(), 4, "the snapshot of a mirror");
    // One that fails: no snapshot, and the one after it still runs. The setting survives a restart.
    source.kill();
    source.restart();
    source.good(&["volume", "hooks", "vol0", "--before", "exit 3"]);
    let output = source.run(&["snapshot", "create", "vol0@two"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("exit status: 3"), "{said}");
    assert_eq!(lines(&log).len(), 5);
    assert!(!source.good(&["snapshot", "list", "vol0"]).contains("two"));
    let output = destination.run(&["mirror", "update", "vol0"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("command around snapshots"), "{said}");
    assert!(source.json(&["status"])["problems"].to_string().contains("exit status: 3"));
    // One that does not end, and its child.
    let child = dir.path().join("child");
    let hang = format!("sleep 600 & echo $! > {}; wait", child.display());
    source.good(&["volume", "hooks", "vol0", "--before", &hang, "--timeout", "300ms"]);
    let output = source.run(&["snapshot", "create", "vol0@two"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("did not end within 300 ms"), "{said}");
    let started = std::fs::read_to_string(&child).unwrap();
    let alive = || {
        let state = std::fs::read_to_string(format!("/proc/{}/stat", started.trim())).unwrap_or_default();
        !state.is_empty() && !state.contains(") Z ")
    };
    let deadline = Instant::now() + PATIENCE;
    while alive() {
        assert!(Instant::now() < deadline, "what it started goes on");
        std::thread::sleep(Duration::from_millis(10));
    }
    source.good(&["volume", "hooks", "vol0", "--before", "", "--after", ""]);
    source.good(&["snapshot", "create", "vol0@two"]);
    destination.good(&["mirror", "update", "vol0"]);
    assert_eq!(source.json(&["status"])["problems"], serde_json::json!([]));
    assert!(!source.run(&["volume", "hooks", "vol0", "--timeout", "1h"]).status.success());
}

#[test]
fn hook_that_hangs_holds_up_neither_other_schedules_nor_the_end_of_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Running::start(dir.path(), "d");
    for volume in ["hung", "other"] {
        server.good(&["volume", "create", volume, "--size", "64M"]);
    }
    let log = dir.path().join("log");
    let after = format!("echo released >> {}", log.display());
    let hang = ["volume", "hooks", "hung", "--before", "sleep 600", "--after", &after, "--timeout", "9m"];
    server.good(&hang);
    server.good(&["snapshot", "schedule", "set", "hung", "often", "--every", "1s"]);
    server.good(&["snapshot", "schedule", "set", "other", "often", "--every", "1s"]);
    wait_until("the other volume's schedule runs, again and again", || {
        server.json(&["snapshot", "list", "other"]).as_array().unwrap().len() > 2
    });
    assert_eq!(server.json(&["snapshot", "list", "hung"]), serde_json::json!([]), "its hook hangs");
    let begin = Instant::now();
    assert_eq!(server.terminate(), 0);
    assert!(begin.elapsed() < PATIENCE, "it did not wait for the hook: {:?}", begin.elapsed());
    assert_eq!(lines(&log), ["released"], "nothing stays quiesced");
}

#[test]
fn hook_that_fails_is_told_with_what_it_said() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), "d");
    server.good(&["volume", "create", "vol0", "--size", "64M"]);
    // More output than a pipe holds, and a child that keeps it open.
    let talks = "sleep 3 & head -c 300000 /dev/zero; echo; echo the database is away >&2; exit 3";
    server.good(&["volume", "hooks", "vol0", "--before", talks]);
    let said = server.bad(1, "failed", &["snapshot", "create", "vol0@one"]);
    assert!(said.contains("exit status: 3; it said: the database is away"), "{said}");
    let problems = server.json(&["status"])["problems"].to_string();
    assert!(problems.contains("the database is away"), "{problems}");
}

#[test]
fn server_killed_between_the_commands_runs_the_one_after_when_it_is_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Running::start(dir.path(), "d");
    server.good(&["volume", "create", "vol0", "--size", "64M"]);
    let (log, frozen) = (dir.path().join("log"), dir.path().join("frozen"));
    let left = dir.path().join("left");
    // Killed while the command before the snapshot and its child run: the child would freeze the
    // database after its release.
    let before =
        format!("(sleep 600; touch {0}) & echo $! > {1}; touch {0}; wait", frozen.display(), left.display());
    let after = format!("rm -f {}; echo released >> {}", frozen.display(), log.display());
    server.good(&["volume", "hooks", "vol0", "--before", &before, "--after", &after]);
    let data = server.data.clone();
    let snapshot = |name: &str| {
        let mut command = cairn();
        command.args(["snapshot", "create", name, "--data"]).arg(&data);
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).spawn().unwrap()
    };
    let mut asking = snapshot("vol0@one");
    wait_until("the database is frozen", || frozen.exists());
    server.kill();
    assert!(!asking.wait().unwrap().success());
    server.restart();
    wait_until("the database is released", || !lines(&log).is_empty());
    assert!(!frozen.exists());
    let started = std::fs::read_to_string(&left).unwrap();
    let state = std::fs::read_to_string(format!("/proc/{}/stat", started.trim())).unwrap_or_default();
    assert!(state.is_empty() || state.contains(") Z "), "the command before it goes on: {state}");
    // It is reported when the command has ended, which is later than its last action.
    wait_until("it is told of", || {
        server.json(&["status"])["problems"].to_string().contains("the server ended between")
    });
    assert_eq!(server.json(&["snapshot", "list", "vol0"]), serde_json::json!([]));
    // Killed while the command after it runs: that is not interrupted, and runs again.
    let slow = format!("touch {}; sleep 1; {after}", frozen.display());
    server.good(&["volume", "hooks", "vol0", "--before", "", "--after", &slow]);
    let mut asking = snapshot("vol0@two");
    wait_until("the command after it runs", || frozen.exists());
    server.kill();
    let _ = asking.wait().unwrap();
    server.restart();
    wait_until("it ran again", || lines(&log).len() == 3);
    assert!(!frozen.exists());
    // Nothing is left to do at the next start, nor after a snapshot that was made whole.
    server.good(&["volume", "hooks", "vol0", "--before", "true", "--after", &after]);
    server.good(&["snapshot", "create", "vol0@three"]);
    assert_eq!(lines(&log).len(), 4);
    server.kill();
    server.restart();
    server.good(&["snapshot", "create", "vol0@four"]);
    assert_eq!(lines(&log).len(), 5);
    assert_eq!(server.json(&["status"])["problems"], serde_json::json!([]));
}
