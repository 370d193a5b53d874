//! iSCSI from the command line to a foreign initiator: qemu's.
mod running;

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Output, Stdio};

use cairn_frontend_nbd::ClientRequest;
use running::Running;

/// The URL of the LUN `v/db`.
fn url(server: &Running) -> String {
    let status = server.json(&["status"]);
    let portal = status["iscsi"][0].as_str().unwrap().to_owned();
    format!("iscsi://{portal}/iqn.2026-11.io.cairn:v.db/0")
}

fn qemu_io(url: &str, commands: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.args(["60", "qemu-io", "-f", "raw"]);
    commands.iter().for_each(|line| _ = command.args(["-c", line]));
    command.arg(url).output().unwrap()
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn good(url: &str, commands: &[&str]) -> String {
    let output = qemu_io(url, commands);
    let text = text(&output);
    assert!(output.status.success() && !text.contains("failed"), "{commands:?}: {text}");
    text
}

/// True when qemu has its iSCSI driver; without it a test is skipped, and fails in CI.
fn has_qemu() -> bool {
    let output = Command::new("qemu-img").arg("--help").output();
    let formats = output.map(|output| text(&output)).unwrap_or_default();
    let found = formats.split_whitespace().any(|word| word == "iscsi");
    assert!(found || std::env::var_os("CI").is_none(), "qemu's iSCSI driver is missing");
    if !found {
        println!("skipped: qemu-utils and qemu-block-extra are not installed");
    }
    found
}

#[test]
fn initiator_recovers_from_a_killed_server_and_flushed_data_is_there() {
    if !has_qemu() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut server = Running::start(dir.path(), "d");
    server.good(&["volume", "create", "v", "--size", "256M"]);
    let lun = server.json(&["lun", "create", "v/db", "--size", "64M"]);
    assert_eq!(lun["target"]["name"], "iqn.2026-11.io.cairn:v.db");
    good(&url(&server), &["write -P 0x5a 1M 3M", "flush", "read -P 0x5a 1M 3M", "discard 2M 1M", "flush"]);
    server.kill();
    server.restart();
    good(&url(&server), &["read -P 0x5a 1M 1M", "read -P 0 2M 1M", "read -P 0x5a 3M 1M"]);
    server.good(&["snapshot", "create", "v@s1"]);
    good(&url(&server), &["write -P 0x11 1M 1M", "flush"]);
    let snapshot = url(&server).replace("v.db", "v.s1.db");
    let read = qemu_io(&snapshot, &["-r"]);
    drop(read);
    let info = Command::new("qemu-img").args(["info", &snapshot]).output().unwrap();
    assert!(text(&info).contains("64 MiB"), "{}", text(&info));
}

/// What an initiator reads of a LUN after it has written without a flush, lost the server to a kill, logged in to the next one, and flushed. (Here it is another
/// process of it, to whom the server owes the same: qemu-io does not connect again.)
fn after_a_kill_under_the_initiator(write_cache: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Running::start(dir.path(), "d");
    server.good(&["volume", "create", "v", "--size", "256M"]);
    server.good(&["lun", "create", "v/db", "--size", "64M"]);
    // The unit is known by another setting already.
    let other = if write_cache == "on" { "off" } else { "on" };
    server.good(&["export", "set", "v/db", "--write-cache", other]);
    good(&url(&server), &["read 0 4k"]);
    server.good(&["export", "set", "v/db", "--write-cache", write_cache]);
    assert_eq!(server.json(&["export", "list"])[0]["access"]["write_cache"], write_cache);
    let mut initiator = Command::new("qemu-io");
    // Else it asks for FUA by itself.
    initiator
        .args(["-t", "writeback", "-f", "raw", &url(&server)])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut initiator = initiator.spawn().unwrap();
    let mut commands = initiator.stdin.take().unwrap();
    let mut answers = BufReader::new(initiator.stdout.take().unwrap()).lines();
    commands.write_all(b"write -P 0x5a 1M 64k\n").unwrap();
    let written = answers.find(|line| line.as_ref().is_ok_and(|line| line.contains("wrote")));
    written.expect("the write is answered").unwrap();
    server.kill();
    // It would flush when it ends.
    initiator.kill().unwrap();
    initiator.wait().unwrap();
    server.restart();
    let output = qemu_io(&url(&server), &["flush", "read -P 0x5a 1M 64k"]);
    assert!(text(&output).contains("read 65536/65536"), "{}", text(&output));
    text(&output)
}

#[test]
fn initiator_that_comes_back_after_a_kill_misses_nothing_that_was_answered() {
    if !has_qemu() {
        return;
    }
    let said = after_a_kill_under_the_initiator("auto");
    assert!(!said.contains("verification failed"), "{said}");
    // That this can fail is seen with a cache, which is why there is none unless somebody asks.
    let said = after_a_kill_under_the_initiator("on");
    assert!(said.contains("Pattern verification failed"), "{said}");
}

#[test]
fn export_that_writes_through_makes_each_write_durable() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Running::start(dir.path(), "d");
    server.good(&["volume", "create", "v", "--size", "256M"]);
    server.good(&["lun", "create", "v/db", "--size", "64M"]);
    let mut left_after_kill = |write_cache: &str, byte: u8| {
        server.good(&["export", "set", "v/db", "--write-cache", write_cache]);
        let mut disk = server.disk("v/db");
        disk.write(0, &[byte; 8192]).unwrap();
        disk.write(1 << 20, &[byte; 4096]).unwrap();
        disk.perform(ClientRequest::Trim { offset: 4096, length: 4096 }).unwrap();
        server.kill();
        server.restart();
        let mut disk = server.disk("v/db");
        [0, 4096, 1 << 20].map(|offset| disk.read(offset, 4096).unwrap()[0])
    };
    assert_eq!(left_after_kill("off", 7), [7, 0, 7]);
    assert_eq!(left_after_kill("auto", 8), [7, 0, 7], "over NBD there is a cache unless it is turned off");
}

#[test]
fn exports_are_restricted_by_name_network_and_chap() {
    if !has_qemu() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), "d");
    server.good(&["volume", "create", "v", "--size", "256M"]);
    server.good(&["lun", "create", "v/db", "--size", "64M"]);
    let plain = url(&server);
    let refused = |url: &str, why: &str| {
        let output = qemu_io(url, &["read 0 4k"]);
        assert!(!output.status.success(), "{why}: {}", text(&output));
    };
    good(&plain, &["read 0 4k"]);
    server.good(&["export", "set", "v/db", "--initiator", "iqn.2000-01.example:friend"]);
    refused(&plain, "another initiator");
    server.good(&["export", "set", "v/db", "--any-initiator", "--network", "10.0.0.0/8"]);
    refused(&plain, "another network");
    let secrets = dir.path().join("secrets");
    std::fs::write(&secrets, "# of v/db\ninitiator me a-long-enough-secret\n").unwrap();
    let secrets = secrets.to_str().unwrap();
    server.good(&["export", "set", "v/db", "--any-network", "--chap-file", secrets]);
    refused(&plain, "no proof");
    refused(&plain.replace("//", "//me%a-secret-that-is-wrong@"), "a wrong proof");
    good(&plain.replace("//", "//me%a-long-enough-secret@"), &["read 0 4k"]);
    server.good(&["export", "set", "v/db", "--no-chap", "--read-only", "true"]);
    refused(&plain, "qemu-io opens for writing");
    server.good(&["export", "set", "v/db", "--read-only", "false", "--block-size", "4096"]);
    good(&plain, &["write -P 7 0 8k", "read -P 7 0 8k"]);
    server.bad(2, "usage", &["export", "set", "v/db", "--network", "nowhere"]);
    server.bad(2, "usage", &["export", "set", "v/db", "--block-size", "1000"]);
    server.bad(10, "not-found", &["export", "set", "v/none", "--read-only", "true"]);
    let exports = server.json(&["export", "list"]);
    assert_eq!(exports[0]["access"]["block_bytes"], 4096);
}

/// What libiscsi's `iscsi-inq` says, without a user's own settings.
fn inquiry(url: &str) -> Output {
    let mut command = Command::new("timeout");
    command.args(["60", "iscsi-inq", url]);
    for variable in ["LIBISCSI_CHAP_USERNAME", "LIBISCSI_CHAP_PASSWORD"] {
        command.env_remove(variable);
    }
    command.output().unwrap()
}

#[test]
fn target_proves_itself_to_a_foreign_initiator_that_asks() {
    if !has_qemu() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), "d");
    server.good(&["volume", "create", "v", "--size", "256M"]);
    server.good(&["lun", "create", "v/db", "--size", "64M"]);
    let secrets = dir.path().join("secrets");
    let set = |lines: &str| {
        std::fs::write(&secrets, lines).unwrap();
        server.good(&["export", "set", "v/db", "--chap-file", secrets.to_str().unwrap()]);
    };
    set("initiator me a-long-enough-secret\ntarget cairn another-long-secret\n");
    let of = |mine: &str, theirs: &str| {
        let url = url(&server).replace("//", &format!("//me%{mine}@"));
        format!("{url}?target_user=cairn&target_password={theirs}")
    };
    let both = inquiry(&of("a-long-enough-secret", "another-long-secret"));
    assert!(both.status.success() && text(&both).contains("Cairn"), "{}", text(&both));
    let one_way = inquiry(&url(&server).replace("//", "//me%a-long-enough-secret@"));
    assert!(one_way.status.success(), "who does not ask gets no proof: {}", text(&one_way));
    let impostor = inquiry(&of("a-long-enough-secret", "what-we-do-not-know"));
    assert!(!impostor.status.success(), "the initiator sees that the proof is wrong: {}", text(&impostor));
    let wrong = inquiry(&of("a-secret-that-is-wrong", "another-long-secret"));
    assert!(!wrong.status.success(), "{}", text(&wrong));
    // A target that has no secret of its own can't prove itself, and says so by refusing.
    set("initiator me a-long-enough-secret\n");
    let none = inquiry(&of("a-long-enough-secret", "another-long-secret"));
    assert!(!none.status.success(), "{}", text(&none));
}

#[test]
fn status_shows_what_sessions_did_lately() {
    if !has_qemu() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), "d");
    server.good(&["volume", "create", "v", "--size", "256M"]);
    server.good(&["lun", "create", "v/db", "--size", "64M"]);
    let mut nbd = server.disk("v/db");
    let mut qemu = Command::new("qemu-io");
    qemu.args(["-f", "raw"]).stdout(Stdio::null());
    // It stays until it is ended.
    for command in ["write -P 7 0 64k", "read -P 7 0 64k", "flush", "sleep 60000"] {
        qemu.args(["-c", command]);
    }
    let mut qemu = qemu.arg(url(&server)).spawn().unwrap();
    // What it shows is of the last seconds, so that each look has a write of its own.
    let mut look = || {
        nbd.write(1 << 20, &[1; 4096]).unwrap();
        server.json(&["status"])
    };
    let mut status = look();
    let of = |status: &serde_json::Value, iscsi: bool, what: &str| -> serde_json::Value {
        let sessions = status["exports"][0]["sessions"].as_array().unwrap().clone();
        let found = sessions.into_iter().find(|session| session["initiator"].is_string() == iscsi);
        found.map_or(serde_json::Value::Null, |session| session["activity"][what].clone())
    };
    let begun = std::time::Instant::now();
    while of(&status, true, "read")["p99_us"].is_null() || of(&status, true, "other")["p50_us"].is_null() {
        assert!(begun.elapsed().as_secs() < 20, "{status}");
        status = look();
    }
    assert!(of(&status, true, "write")["bytes_per_second"].as_u64() > Some(0), "{status}");
    assert!(of(&status, false, "write")["per_second"].as_f64() > Some(0.0), "{status}");
    assert!(of(&status, false, "read")["p50_us"].is_null(), "{status}");
    assert!(of(&status, false, "window_ms").as_u64() < Some(60_000), "{status}");
    let people = text(&server.run(&["status"]));
    for words in ["SESSIONS", "iSCSI iqn.", "NBD ", "p50, p99"] {
        assert!(people.contains(words), "{words}: {people}");
    }
    qemu.kill().unwrap();
    qemu.wait().unwrap();
}

#[test]
fn adopted_device_and_its_past_are_targets() {
    if !has_qemu() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), "d");
    let image = dir.path().join("disk.img");
    std::fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    let (image, store) = (image.to_str().unwrap(), dir.path().join("store.img"));
    let arguments = ["device", "adopt", "disk0", "--origin", image, "--history", store.to_str().unwrap()];
    let more = ["--placement", "checkpointing", "--granularity", "marks", "--window", "24h"];
    let device = server.json(&[&arguments[..], &more].concat());
    assert_eq!(device["target"]["name"], "iqn.2026-11.io.cairn:disk0");
    let of = |name: &str| url(&server).replace("v.db", name);
    good(&of("disk0"), &["write -P 0x21 0 1M", "flush"]);
    server.good(&["history", "mark", "disk0", "before"]);
    good(&of("disk0"), &["write -P 0x22 0 1M", "flush"]);
    server.good(&["history", "view", "disk0", "--mark", "before", "--as", "past"]);
    let past = qemu_io(&of("disk0.past"), &["read -P 0x21 0 1M"]);
    assert!(!past.status.success(), "a view takes no writes, and qemu-io opens for writing");
    let copy = dir.path().join("copy.img");
    let copy = copy.to_str().unwrap();
    let arguments = ["convert", "-O", "raw", &of("disk0.past"), copy];
    let output = Command::new("qemu-img").args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!(std::fs::read(copy).unwrap()[..1 << 20], [0x21; 1 << 20]);
    server.good(&["export", "set", "disk0", "--initiator", "iqn.2000-01.example:friend"]);
    let refused = qemu_io(&of("disk0"), &["read 0 4k"]);
    assert!(!refused.status.success(), "another initiator: {}", text(&refused));
    server.bad(10, "not-found", &["export", "set", "disk1", "--read-only", "true"]);
}
