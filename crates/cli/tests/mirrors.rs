//! Two real servers and a mirror between them: one token, baseline, updates, failover, and every bad input with its exit code.

mod running;

use std::path::Path;
use std::time::Instant;

use running::{PATIENCE, Running, cairn, refused};

/// A source with a volume and a LUN of 4 MiB.
fn source(dir: &Path) -> Running {
    let source = Running::start(dir, "source");
    source.good(&["volume", "create", "vol0", "--size", "128M"]);
    source.good(&["lun", "create", "vol0/db", "--size", "4M"]);
    source
}

fn invite(source: &Running, more: &[&str]) -> String {
    let invitation = source.json(&[&["peer", "invite"], more].concat());
    invitation["token"].as_str().unwrap().to_owned()
}

#[test]
fn mirror_moves_from_image_to_image_and_fails_over_to_the_last() {
    let dir = tempfile::tempdir().unwrap();
    let mut source = source(dir.path());
    let mut destination = Running::start(dir.path(), "destination");
    let mut disk = source.disk("vol0/db");
    disk.write(0, &[1; 65536]).unwrap();
    source.good(&["snapshot", "create", "vol0@kept"]);
    let token = invite(&source, &[]);
    let made = destination.json(&["mirror", "create", "vol0", &token]);
    assert_eq!(made["message_type"], "summary");
    assert!(made["last"]["complete"].as_bool().unwrap() && made["image"].is_string(), "{made}");
    let mut shown = destination.disk("vol0/db");
    assert_eq!(shown.read(0, 65536).unwrap(), [1; 65536]);
    assert!(shown.write(0, &[9; 4096]).is_err(), "a mirror is read-only");
    assert_eq!(destination.disk("vol0@kept/db").read(0, 4096).unwrap(), [1; 4096], "snapshots come along");

    disk.write(0, &[2; 65536]).unwrap();
    let updated = destination.json(&["mirror", "update", "vol0"]);
    assert!(updated["last"]["sent_bytes"].as_u64().unwrap() < 200_000, "{updated}");
    assert_eq!(shown.read(0, 65536).unwrap(), [1; 65536], "a session keeps the image that it connected to");
    assert_eq!(destination.disk("vol0/db").read(0, 65536).unwrap(), [2; 65536]);
    let same = destination.json(&["mirror", "update", "vol0"]);
    assert_eq!(same["last"]["up_to_date"], true, "{same}");
    assert_eq!(same["lag_bytes"], 0);
    let followers = source.json(&["status"])["followers"].clone();
    assert_eq!(followers[0]["volume"], "vol0");
    drop(shown);

    destination.bad(13, "wrong-role", &["lun", "create", "vol0/x", "--size", "1M"]);
    destination.bad(13, "wrong-role", &["snapshot", "create", "vol0@x"]);
    destination.bad(13, "wrong-role", &["volume", "delete", "vol0", "--yes"]);
    destination.bad(2, "usage", &["mirror", "failover", "vol0"]);
    let again = invite(&source, &[]);
    destination.bad(32, "not-empty", &["mirror", "create", "vol0", &again]);

    disk.write(0, &[3; 65536]).unwrap();
    disk.flush().unwrap();
    source.kill();
    destination.bad(30, "peer-unreachable", &["mirror", "update", "vol0"]);
    assert_eq!(destination.json(&["status"])["problems"][0]["subject"], "vol0");
    destination.kill();
    destination.restart();
    let asked = destination.json(&["mirror", "failover", "vol0", "--dry-run"]);
    assert_eq!(asked["dry_run"], true);
    let lost = destination.json(&["mirror", "failover", "vol0", "--yes"]);
    assert!(lost["lost_ms"].is_u64() && lost["lost_bytes"].is_u64(), "{lost}");
    let mut after = destination.disk("vol0/db");
    assert_eq!(after.read(0, 65536).unwrap(), [2; 65536]);
    after.write(0, &[4; 4096]).unwrap();
    destination.bad(13, "wrong-role", &["mirror", "update", "vol0"]);
    destination.bad(13, "wrong-role", &["mirror", "failover", "vol0", "--yes"]);
    assert!(destination.good(&["volume", "check", "vol0"]).contains("sound"));
    destination.kill();
    destination.restart();
    assert_eq!(destination.json(&["mirror", "status", "vol0"])["state"], "failed-over");
}

#[test]
fn schedule_brings_changes_by_itself_and_goes_on_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    let mut destination = Running::start(dir.path(), "destination");
    let token = invite(&source, &["--volume", "vol0"]);
    destination.good(&["mirror", "create", "vol0", &token, "--as", "copy", "--every", "200ms"]);
    let mut disk = source.disk("vol0/db");
    let mut follows = |destination: &Running, byte: u8| {
        disk.write(0, &[byte; 4096]).unwrap();
        let deadline = Instant::now() + PATIENCE;
        while destination.disk("copy/db").read(0, 4096).unwrap() != [byte; 4096] {
            assert!(Instant::now() < deadline, "the schedule brings nothing");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    };
    follows(&destination, 5);
    destination.kill();
    destination.restart();
    follows(&destination, 6);
    source.good(&["volume", "grow", "vol0", "--size", "256M"]);
    follows(&destination, 7);
    assert_eq!(destination.json(&["volume", "show", "copy"])["size_bytes"], 256 << 20);
    let peer = source.json(&["peer", "list"])[0]["id"].as_str().unwrap().to_owned();
    source.good(&["peer", "revoke", &peer, "--yes"]);
    let deadline = Instant::now() + PATIENCE;
    let refused = |status: serde_json::Value| status["problem"]["error"] == "peer-refused";
    while !refused(destination.json(&["mirror", "status", "copy"])) {
        assert!(Instant::now() < deadline, "a revoked peer goes on");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let held = source.json(&["snapshot", "list", "vol0"]);
    assert_eq!(held, serde_json::json!([]), "nothing is kept for a peer that was revoked");
    destination.good(&["mirror", "delete", "copy", "--yes"]);
    assert_eq!(destination.json(&["volume", "list"]), serde_json::json!([]));
}

#[test]
fn tokens_that_are_used_expired_restricted_revoked_or_no_tokens_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let mut source = source(dir.path());
    source.good(&["volume", "create", "other", "--size", "64M"]);
    let first = Running::start(dir.path(), "first");
    let second = Running::start(dir.path(), "second");
    first.bad(2, "usage", &["mirror", "create", "vol0", "cairn1-nonsense"]);
    let expired = invite(&source, &["--expires", "1ms"]);
    first.bad(28, "token-expired", &["mirror", "create", "vol0", &expired]);
    let restricted = invite(&source, &["--volume", "other"]);
    first.bad(12, "peer-refused", &["mirror", "create", "vol0", &restricted]);
    let revoked = invite(&source, &[]);
    for peer in source.json(&["peer", "list"]).as_array().unwrap() {
        source.good(&["peer", "revoke", peer["id"].as_str().unwrap(), "--yes"]);
    }
    first.bad(12, "peer-refused", &["mirror", "create", "vol0", &revoked]);
    let token = invite(&source, &[]);
    first.bad(10, "not-found", &["mirror", "create", "typo", &token]);
    first.good(&["mirror", "create", "vol0", &token]);
    second.bad(29, "token-used", &["mirror", "create", "vol0", &token]);
    assert_eq!(second.json(&["volume", "list"]), serde_json::json!([]), "a refused mirror leaves nothing");
    let late = invite(&source, &[]);
    source.kill();
    second.bad(30, "peer-unreachable", &["mirror", "create", "vol0", &late]);
    // Another server at the address of the source does not have its certificate.
    let address = source_address(&late);
    let impostor = Running::start_with(dir.path(), "impostor", &["--mirror", &address]);
    impostor.good(&["volume", "create", "vol0", "--size", "64M"]);
    second.bad(12, "peer-refused", &["mirror", "create", "vol0", &late]);
    let output = cairn()
        .args(["mirror", "create", "vol0", &late, "--every", "0s", "--json", "--data"])
        .arg(&second.data)
        .output();
    assert_eq!(output.unwrap().status.code(), Some(2), "an interval of nothing");
    let nobody = cairn().args(["mirror", "status", "--json", "--data", "/nothing"]).output().unwrap();
    refused(&nobody, 1, "failed", &["no server"]);
}

/// The address in a token: a base64url of JSON behind the prefix.
fn source_address(token: &str) -> String {
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut bits = 0u32;
    let (mut count, mut bytes) = (0, Vec::new());
    for byte in token.trim_start_matches("cairn1-").bytes() {
        let value = alphabet.iter().position(|letter| *letter == byte).unwrap() as u32;
        bits = bits << 6 | value;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    json["address"].as_str().unwrap().to_owned()
}
