//! iSCSI from the command line to a foreign initiator: qemu's; and to our own, if that cannot send
//! the requests of a test.
#[allow(dead_code, reason = "this test program uses a part of it")]
#[path = "../../frontend/iscsi/tests/harness/initiator.rs"]
mod initiator;
mod running;

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use cairn_frontend_nbd::ClientRequest;
use initiator::{Initiator, transfer};
use running::{PATIENCE, Running};

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

/// The data that an initiator reads after a kill of the server. It has written to a LUN without a
/// flush, logged in to the next server, and flushed. (Here it is another process, to which the
/// server has the same obligation: qemu-io does not reconnect.)
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
    // Otherwise it sets FUA by itself.
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
    // With a cache this fails, which is why it is off by default.
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
    let audit = server.json(&["audit", "list"]);
    let tries = |reason: &str| {
        let is_one = |line: &&serde_json::Value| {
            line["action"] == "iSCSI login"
                && (&line["object"], &line["from"], &line["outcome"])
                    == (&"v/db".into(), &"127.0.0.1".into(), &"refused".into())
                && line["reason"].as_str().unwrap().contains(reason)
        };
        audit.as_array().unwrap().iter().filter(is_one).count()
    };
    assert_eq!(tries("has no valid CHAP secret"), 2, "no proof, and a wrong one: {audit}");
    assert_eq!(tries("is not permitted"), 2, "another initiator, and another network: {audit}");
    assert!(!audit.to_string().contains("a-secret-that-is-wrong"), "{audit}");
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

#[test]
fn no_two_disks_have_one_target() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), "d");
    for volume in ["a", "a.b"] {
        server.good(&["volume", "create", volume, "--size", "128M"]);
    }
    server.good(&["lun", "create", "a.b/c", "--size", "8M"]);
    server.disk("a.b/c").write(0, &[7; 512]).unwrap();
    // An initiator that logs in again must not find another disk.
    let target = "a.b.c";
    let read = || {
        let mut initiator = log_in(&server, target, 1).unwrap();
        initiator.command(1, &transfer(0x28, 0, 1), 0x40, 512, &[]);
        initiator.receive().unwrap().1
    };
    assert_eq!(read(), [7; 512]);
    let said = server.bad(21, "taken", &["lun", "create", "a/b.c", "--size", "8M"]);
    assert!(said.contains("iqn.2026-11.io.cairn:a.b.c"), "{said}");
    let image = dir.path().join("disk");
    std::fs::write(&image, vec![0; 1 << 20]).unwrap();
    server.bad(21, "taken", &["device", "adopt", "a.b.c", "--origin", image.to_str().unwrap()]);
    server.good(&["lun", "create", "a/c", "--size", "8M"]);
    server.good(&["snapshot", "create", "a@s"]);
    server.good(&["lun", "create", "a/x.c", "--size", "8M"]);
    server.bad(21, "taken", &["clone", "create", "a@s", "a.x"]);
    assert_eq!(read(), [7; 512]);
    server.good(&["lun", "create", "a/d.c", "--size", "8M"]);
}

#[test]
fn who_may_see_a_lun_holds_for_all_that_is_left_of_it_and_for_its_clones() {
    const FORBIDDEN: Option<u16> = Some(0x0202);
    let dir = tempfile::tempdir().unwrap();
    let mut server = Running::start(dir.path(), "d");
    server.good(&["volume", "create", "v", "--size", "128M"]);
    server.good(&["lun", "create", "v/db", "--size", "8M"]);
    server.good(&["lun", "create", "v/log", "--size", "8M"]);
    server.good(&["export", "set", "v/db", "--initiator", "iqn.2000-01.example:friend"]);
    server.good(&["snapshot", "create", "v@s"]);
    server.good(&["clone", "create", "v@s", "c"]);
    for name in ["v.db", "v.s.db", "c.db"] {
        assert_eq!(log_in(&server, name, 1).err(), FORBIDDEN, "{name}");
    }
    for name in ["v.log", "v.s.log", "c.log"] {
        assert!(log_in(&server, name, 1).is_ok(), "{name}");
    }
    // A clone's settings are its own from then on.
    server.good(&["export", "set", "c/db", "--any-initiator"]);
    assert!(log_in(&server, "c.db", 1).is_ok());
    server.good(&["clone", "delete", "c", "--yes"]);
    server.good(&["lun", "delete", "v/db", "--yes"]);
    server.kill();
    server.restart();
    assert_eq!(log_in(&server, "v.s.db", 1).err(), FORBIDDEN, "the LUN is gone, its snapshot is not");
    server.good(&["snapshot", "rollback", "v@s", "--yes"]);
    assert_eq!(log_in(&server, "v.db", 1).err(), FORBIDDEN, "brought back");
    server.good(&["lun", "delete", "v/db", "--yes"]);
    let made = server.good(&["lun", "create", "v/db", "--size", "4M"]);
    assert!(made.contains("an earlier v/db"), "{made}");
    assert_eq!(log_in(&server, "v.db", 1).err(), FORBIDDEN, "another LUN of the name that snapshots show");
    // When nothing shows the earlier one any more, nothing is left of its settings: whether it goes
    // before its snapshots or after them.
    server.good(&["snapshot", "create", "v@last"]);
    server.good(&["lun", "delete", "v/db", "--yes"]);
    for snapshot in server.json(&["snapshot", "list", "v"]).as_array().unwrap() {
        server.good(&["snapshot", "delete", snapshot["name"].as_str().unwrap(), "--yes"]);
    }
    let made = server.good(&["lun", "create", "v/db", "--size", "4M"]);
    assert!(!made.contains("earlier"), "{made}");
    assert!(log_in(&server, "v.db", 1).is_ok());
    server.good(&["export", "set", "v/db", "--initiator", "iqn.2000-01.example:friend"]);
    server.good(&["lun", "delete", "v/db", "--yes"]);
    server.good(&["lun", "create", "v/db", "--size", "4M"]);
    assert!(log_in(&server, "v.db", 1).is_ok());
}

/// A source with LUNs of restricted access, and a mirror of it.
fn restricted(dir: &std::path::Path) -> (Running, Running) {
    let mut source = Running::start(dir, "source");
    source.stay();
    source.good(&["volume", "create", "v", "--size", "128M"]);
    for lun in ["open", "named", "proven", "fixed"] {
        source.good(&["lun", "create", &format!("v/{lun}"), "--size", "8M"]);
    }
    let secrets = dir.join("secrets");
    std::fs::write(&secrets, "initiator me a-long-enough-secret\n").unwrap();
    source.good(&["export", "set", "v/named", "--initiator", "iqn.2000-01.example:friend"]);
    source.good(&["export", "set", "v/proven", "--chap-file", secrets.to_str().unwrap()]);
    source.good(&["export", "set", "v/fixed", "--read-only", "true", "--block-size", "4096"]);
    let mut mirror = Running::start(dir, "mirror");
    mirror.stay();
    let token = source.invite();
    mirror.good(&["mirror", "create", "v", &token]);
    (source, mirror)
}

/// The login status of a stranger at a LUN of the volume: 0x0202 is a refusal.
fn refusal(server: &Running, lun: &str) -> Option<u16> {
    log_in(server, &format!("v.{lun}"), 1).err()
}

#[test]
fn lun_of_a_mirror_is_open_to_nobody_who_is_kept_out_at_its_source_also_after_a_failover() {
    const FORBIDDEN: Option<u16> = Some(0x0202);
    let dir = tempfile::tempdir().unwrap();
    let (mut source, mut mirror) = restricted(dir.path());
    let let_in = |server: &Running| ["open", "named", "proven"].map(|lun| refusal(server, lun));
    assert_eq!(let_in(&mirror), [None, FORBIDDEN, FORBIDDEN], "images show no more");
    let told = mirror.good(&["status"]);
    assert!(told.contains("`cairn export set v/proven --chap-file FILE`"), "before it is needed: {told}");
    let shown = mirror.good(&["mirror", "status", "v"]);
    assert!(shown.contains("v/named: as at the source, initiators iqn.2000-01.example:friend"), "{shown}");
    source.kill();
    let failed_over = mirror.good(&["mirror", "failover", "v", "--yes"]);
    assert!(
        failed_over.contains("access: v/proven: no access over iSCSI until a secret is set"),
        "{failed_over}"
    );
    assert!(failed_over.contains("access: v/named:") && !failed_over.contains("v/open:"), "{failed_over}");
    mirror.kill();
    mirror.restart();
    assert_eq!(let_in(&mirror), [None, FORBIDDEN, FORBIDDEN]);
    assert!(mirror.disk("v/fixed").write(0, &[7; 4096]).is_err(), "it takes no writes there either");
    let exports = mirror.json(&["export", "list"]);
    let exports = exports.as_array().unwrap();
    let fixed = exports.iter().find(|export| export["name"] == "v/fixed").unwrap();
    assert_eq!(fixed["access"]["block_bytes"], 4096, "or partitions would not be found");
    let kept = std::fs::read_to_string(mirror.data.join("exports.json")).unwrap();
    assert!(!kept.contains("a-long-enough-secret"), "who has a mirror can't write to its source");
    // The settings of this side's owner apply, even if they admit every initiator.
    mirror.good(&["export", "set", "v/proven", "--no-chap"]);
    mirror.good(&["export", "set", "v/named", "--any-initiator"]);
    assert_eq!(let_in(&mirror), [None; 3]);
    assert!(!mirror.good(&["status"]).contains("v/proven --chap-file"));
}

#[test]
fn mirror_shows_no_first_image_while_its_source_cannot_say_who_may_see_it() {
    let dir = tempfile::tempdir().unwrap();
    let (mut source, mirror) = restricted(dir.path());
    mirror.good(&["mirror", "delete", "v", "--yes"]);
    source.kill();
    let exports = source.data.join("exports.json");
    let kept = std::fs::read(&exports).unwrap();
    std::fs::write(&exports, b"{").unwrap();
    source.restart();
    let token = source.invite();
    let said = mirror.bad(1, "failed", &["mirror", "create", "v", &token]);
    assert!(said.contains("cannot read the access settings of the LUNs of `v`"), "{said}");
    assert_eq!(refusal(&mirror, "named"), Some(0x0203), "there is no such target yet");
    source.kill();
    std::fs::write(&exports, kept).unwrap();
    source.restart();
    mirror.good(&["mirror", "update", "v"]);
    assert_eq!(["open", "named"].map(|lun| refusal(&mirror, lun)), [None, Some(0x0202)]);
}

#[test]
fn what_is_set_for_a_lun_of_a_mirror_holds_whatever_its_source_says_and_the_rest_follows_that() {
    const FORBIDDEN: Option<u16> = Some(0x0202);
    let dir = tempfile::tempdir().unwrap();
    let (source, mut mirror) = restricted(dir.path());
    mirror.good(&["export", "set", "v/named", "--any-initiator"]);
    mirror.good(&["export", "set", "v/open", "--network", "10.0.0.0/8"]);
    source.good(&["export", "set", "v/proven", "--no-chap"]);
    source.good(&["export", "set", "v/fixed", "--network", "10.0.0.0/8"]);
    // A server queries the source directly after its start.
    mirror.kill();
    mirror.restart();
    running::wait_until("the source is asked", || refusal(&mirror, "fixed") == FORBIDDEN);
    assert_eq!(refusal(&mirror, "proven"), None);
    assert_eq!(refusal(&mirror, "named"), None, "its owner here lets everybody in");
    assert_eq!(refusal(&mirror, "open"), FORBIDDEN, "and nobody from elsewhere");
    // A planned change queries the source first.
    source.good(&["export", "set", "v/proven", "--initiator", "iqn.2000-01.example:friend"]);
    source.good(&["mirror", "allow-reverse", "v"]);
    let reversed = mirror.good(&["mirror", "reverse", "v", "--yes"]);
    assert!(reversed.contains("access: v/proven: as at the source, initiators"), "{reversed}");
    assert_eq!(refusal(&mirror, "proven"), FORBIDDEN);
    assert_eq!(refusal(&source, "named"), FORBIDDEN, "what is set there stays there");
}

#[test]
fn what_is_set_for_a_mirror_that_was_deleted_holds_for_none_that_gets_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let (source, mirror) = restricted(dir.path());
    mirror.good(&["export", "set", "v/named", "--any-initiator"]);
    assert_eq!(refusal(&mirror, "named"), None);
    once_free(&mirror, &["mirror", "delete", "v", "--yes"]);
    mirror.good(&["mirror", "create", "v", &source.invite()]);
    assert_eq!(refusal(&mirror, "named"), Some(0x0202), "as at the source");
}

#[test]
fn session_with_a_mirror_ends_when_the_source_keeps_that_initiator_out() {
    let dir = tempfile::tempdir().unwrap();
    let (source, mirror) = restricted(dir.path());
    let opened = log_in(&mirror, "v.open", 1).unwrap();
    let other = log_in(&mirror, "v.fixed", 2).unwrap();
    let sessions = |lun: &str| {
        let exports = mirror.json(&["export", "list"]);
        let found = exports.as_array().unwrap().iter().find(|export| export["name"] == lun).unwrap().clone();
        found["sessions"].as_array().unwrap().len()
    };
    assert_eq!((sessions("v/open"), sessions("v/fixed")), (1, 1));
    source.good(&["export", "set", "v/open", "--initiator", "iqn.2000-01.example:friend"]);
    // The source is queried at once, and not only within a minute.
    mirror.good(&["mirror", "repoint", "v", &source.invite()]);
    running::wait_until("the source is asked", || refusal(&mirror, "open") == Some(0x0202));
    running::wait_until("who may not log in any more is cut off", || sessions("v/open") == 0);
    assert_eq!(sessions("v/fixed"), 1, "nothing has changed of that one");
    drop((opened, other));
}

/// The output of libiscsi's `iscsi-inq`, without a user's own settings.
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
    // A target without a secret of its own can't authenticate, and refuses the login.
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
    // It shows the last seconds, so each check makes a write of its own.
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

#[test]
fn luns_of_a_volume_at_an_instant_are_targets() {
    if !has_qemu() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), "d");
    let store = running::path(dir.path(), "store.img");
    server.good(&["volume", "create", "v", "--size", "64M", "--history", &store]);
    server.good(&["lun", "create", "v/db", "--size", "1M"]);
    let now = url(&server);
    good(&now, &["write -P 0x21 0 1M", "flush"]);
    server.good(&["history", "mark", "v", "before"]);
    good(&now, &["write -P 0x22 0 1M", "flush"]);
    server.good(&["history", "view", "v", "--mark", "before", "--as", "past"]);
    let copy = running::path(dir.path(), "copy.img");
    let arguments = ["convert", "-O", "raw", &now.replace("v.db", "v.past.db"), &copy];
    let output = Command::new("qemu-img").args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!(std::fs::read(copy).unwrap(), [0x21; 1 << 20]);
    good(&now, &["read -P 0x22 0 1M"]);
}

/// Logs in to a target as the port with this ISID. The error is the status of the login response.
fn log_in(server: &Running, target: &str, isid: u8) -> Result<Initiator, u16> {
    let portal = server.json(&["status"])["iscsi"][0].as_str().unwrap().to_owned();
    Initiator::login(&portal, &format!("iqn.2026-11.io.cairn:{target}"), isid, false)
}

#[test]
fn target_that_two_disks_have_by_their_names_leads_to_neither() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), "d");
    let dump = running::path(dir.path(), "dump");
    for (volume, lun) in [("a.b", "a.b/c"), ("x", "x/b.c")] {
        server.good(&["volume", "create", volume, "--size", "64M"]);
        server.good(&["lun", "create", lun, "--size", "1M"]);
    }
    server.good(&["image", "dump", "x", "-0", "--to", &dump]);
    assert!(log_in(&server, "a.b.c", 1).is_ok());
    // The LUNs of a dump are unknown before its restore.
    server.good(&["image", "restore", "a", &dump]);
    assert_eq!(log_in(&server, "a.b.c", 2).err(), Some(0x0203), "it would be another disk than before");
    let problems = server.json(&["status"])["problems"].to_string();
    assert!(problems.contains("a.b/c, a/b.c have the same iSCSI target"), "{problems}");
    assert!(log_in(&server, "x.b.c", 3).is_ok(), "all others are as they were");
    server.good(&["volume", "delete", "a", "--yes"]);
    assert!(log_in(&server, "a.b.c", 4).is_ok(), "it has it alone");
    assert_eq!(server.json(&["status"])["problems"], serde_json::json!([]));
}

/// PERSISTENT RESERVE OUT with APTPL; its status.
fn reserve_out(initiator: &mut Initiator, action: u8, kind: u8, keys: (u64, u64)) -> u8 {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1], cdb[2], cdb[8]) = (0x5f, action, kind, 24);
    let mut list = [keys.0.to_be_bytes(), keys.1.to_be_bytes(), [0; 8]].concat();
    list[20] = 1;
    initiator.command(50, &cdb, 0x20, 24, &list);
    initiator.status().0
}

/// Writes a block of 512 bytes; the status, sense key and codes.
fn write_block(initiator: &mut Initiator) -> (u8, Vec<u8>) {
    initiator.command(9, &transfer(0x2a, 8, 1), 0x20, 512, &[1; 512]);
    initiator.status()
}

/// The serial number of the unit (page 0x80).
fn serial(initiator: &mut Initiator) -> Vec<u8> {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1], cdb[2], cdb[4]) = (0x12, 1, 0x80, 255);
    initiator.command(60, &cdb, 0x40, 255, &[]);
    initiator.receive().expect("INQUIRY is answered").1
}

/// Runs a command that is refused until its sessions have ended.
fn once_free(server: &Running, arguments: &[&str]) {
    let deadline = Instant::now() + PATIENCE;
    while !server.run(arguments).status.success() {
        assert!(Instant::now() < deadline, "{arguments:?}: its sessions have ended");
    }
}

const CONFLICT: u8 = 0x18;

#[test]
fn adopted_lun_is_one_disk_to_initiators_under_both_of_its_names() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Running::start(dir.path(), "d");
    server.good(&["volume", "create", "v", "--size", "128M"]);
    server.good(&["lun", "create", "v/db", "--size", "8M"]);
    let mut lun = log_in(&server, "v.db", 1).unwrap();
    let known_as = serial(&mut lun);
    assert_eq!(reserve_out(&mut lun, 0, 0, (0, 11)), 0);
    assert_eq!(reserve_out(&mut lun, 1, 1, (11, 0)), 0, "write exclusive");
    let history = dir.path().join("history");
    let adopt = ["device", "adopt", "disk0", "--origin", "lun:v/db", "--history", history.to_str().unwrap()];
    server.bad(11, "busy", &adopt);
    drop(lun);
    once_free(&server, &adopt);

    // A reservation from before the adoption holds, also against the other name, and after a kill.
    for round in 0..2 {
        let mut lun = log_in(&server, "v.db", 1).unwrap();
        let mut device = log_in(&server, "disk0", 1).unwrap();
        assert_eq!(write_block(&mut device).0, CONFLICT, "round {round}");
        assert_eq!(write_block(&mut lun).0, 0, "round {round}");
        assert_eq!((serial(&mut lun), serial(&mut device)), (known_as.clone(), known_as.clone()));
        server.kill();
        server.restart();
    }

    // Preempted through the device's name, and the LUN's session gets the notice.
    let mut lun = log_in(&server, "v.db", 1).unwrap();
    let mut device = log_in(&server, "disk0", 1).unwrap();
    assert_eq!(reserve_out(&mut device, 0, 0, (0, 22)), 0, "the same port by another name has no key yet");
    assert_eq!(reserve_out(&mut device, 4, 1, (22, 11)), 0);
    assert_eq!(write_block(&mut lun), (2, vec![6, 0x2a, 5]), "REGISTRATIONS PREEMPTED");
    server.kill();
    server.restart();
    let mut lun = log_in(&server, "v.db", 1).unwrap();
    let mut device = log_in(&server, "disk0", 1).unwrap();
    assert_eq!(write_block(&mut lun).0, CONFLICT);
    assert_eq!(write_block(&mut device).0, 0);
    server.bad(11, "busy", &["device", "release", "disk0", "--yes"]);
    drop(device);
    server.bad(11, "busy", &["device", "release", "disk0", "--yes"]);

    // Its release does not open the disk to any initiator.
    drop(lun);
    once_free(&server, &["device", "release", "disk0", "--yes"]);
    assert!(log_in(&server, "disk0", 1).is_err());
    let mut lun = log_in(&server, "v.db", 1).unwrap();
    assert_eq!(serial(&mut lun), known_as);
    assert_eq!(write_block(&mut lun).0, CONFLICT);
    assert_eq!(reserve_out(&mut lun, 0, 0, (0, 33)), 0);
    assert_eq!(reserve_out(&mut lun, 4, 1, (33, 22)), 0, "who registers takes it over by the key");
    assert_eq!(write_block(&mut lun).0, 0);
}

#[test]
fn settings_of_an_adopted_lun_hold_under_both_of_its_names() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), "d");
    server.good(&["volume", "create", "v", "--size", "128M"]);
    server.good(&["lun", "create", "v/db", "--size", "8M"]);
    server.good(&["export", "set", "v/db", "--initiator", "iqn.2000-01.example:friend"]);
    server.good(&["device", "adopt", "disk0", "--origin", "lun:v/db"]);
    for name in ["v.db", "disk0"] {
        assert_eq!(log_in(&server, name, 1).err(), Some(0x0202), "{name}: an adoption lets nobody in");
    }
    let settings = |names: &[&str]| -> Vec<serde_json::Value> {
        let exports = server.json(&["export", "list"]);
        let exports = exports.as_array().unwrap();
        let of = |name| exports.iter().find(|export| export["name"].as_str() == Some(name)).unwrap();
        names.iter().map(|name| of(*name)["access"].clone()).collect()
    };
    let set = ["export", "set", "disk0", "--any-initiator", "--block-size", "4096", "--write-cache", "off"];
    server.good(&set);
    let found = settings(&["v/db", "disk0"]);
    assert_eq!(found[0]["block_bytes"], 4096);
    assert_eq!(found[0]["write_cache"], "off");
    assert_eq!(found[0], found[1]);
    let mut sessions = ["v.db", "disk0"].map(|name| log_in(&server, name, 1).unwrap());
    for session in &mut sessions {
        let mut cdb = [0; 16];
        cdb[0] = 0x25;
        session.command(70, &cdb, 0x40, 8, &[]);
        assert_eq!(session.receive().unwrap().1[4..], 4096_u32.to_be_bytes(), "READ CAPACITY (10)");
    }
    // Sessions under either name are closed, as their negotiated parameters no longer hold.
    server.good(&["export", "set", "v/db", "--read-only", "true"]);
    assert!(sessions.iter_mut().all(Initiator::is_closed));
    let mut device = log_in(&server, "disk0", 1).unwrap();
    device.command(9, &transfer(0x2a, 0, 1), 0x20, 4096, &[1; 4096]);
    assert_eq!(device.status(), (2, vec![7, 0x27, 0]), "WRITE PROTECTED");
    drop(device);
    once_free(&server, &["device", "release", "disk0", "--yes"]);
    assert_eq!(settings(&["v/db"])[0]["read_only"], true);
}
