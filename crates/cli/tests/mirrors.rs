//! Two real servers and a mirror between them: one token, baseline, updates, failover, and every
//! bad input with its exit code.

mod running;

use std::path::Path;
use std::time::Instant;

use running::{PATIENCE, Running, cairn, refused, wait_until};

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

/// Under another name no mirror would need its hold, and the mirror would have nothing in common
/// with its source.
#[test]
fn snapshot_that_a_mirror_needs_keeps_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    let destination = Running::start(dir.path(), "destination");
    let mut disk = source.disk("vol0/db");
    disk.write(0, &[1; 65536]).unwrap();
    destination.good(&["mirror", "create", "vol0", &invite(&source, &[])]);
    let listed = source.json(&["snapshot", "list", "vol0"]);
    let mut names = listed.as_array().unwrap().iter().filter_map(|one| one["name"].as_str());
    let base = names.find(|name| name.starts_with("vol0@mirror.")).unwrap().to_owned();
    let said = source.bad(11, "busy", &["snapshot", "rename", &base, "mine"]);
    assert!(said.contains("held for the mirror"), "{said}");
    disk.write(0, &[2; 65536]).unwrap();
    let updated = destination.json(&["mirror", "update", "vol0"]);
    assert!(updated["last"]["complete"].as_bool().unwrap(), "{updated}");
    assert_eq!(destination.disk("vol0/db").read(0, 65536).unwrap(), [2; 65536]);
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

/// The mirror grows before it has an image of that size: the next one comes with the next change,
/// or after an update that was interrupted.
#[test]
fn source_that_has_grown_and_not_changed_is_followed_as_before() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    let destination = Running::start(dir.path(), "destination");
    source.disk("vol0/db").write(0, &[1; 4096]).unwrap();
    destination.good(&["mirror", "create", "vol0", &invite(&source, &[])]);
    source.good(&["volume", "grow", "vol0", "--size", "256M"]);
    for _ in 0..2 {
        destination.good(&["mirror", "update", "vol0"]);
        let shown = destination.json(&["volume", "show", "vol0"]);
        let bytes = |field: &str| shown[field].as_u64().unwrap();
        assert_eq!(
            (bytes("size_bytes"), bytes("used_bytes") + bytes("free_bytes") <= 256 << 20),
            (256 << 20, true)
        );
    }
    source.disk("vol0/db").write(0, &[2; 4096]).unwrap();
    destination.good(&["mirror", "update", "vol0"]);
    assert_eq!(destination.disk("vol0/db").read(0, 4096).unwrap(), [2; 4096]);
    source.good(&["volume", "grow", "vol0", "--size", "300M"]);
    destination.good(&["mirror", "update", "vol0"]);
    destination.good(&["mirror", "failover", "vol0", "--yes"]);
    assert_eq!(destination.json(&["volume", "grow", "vol0", "--size", "301M"])["size_bytes"], 301 << 20);
}

#[test]
fn revoking_one_mirror_of_a_peer_lets_go_of_that_one_alone() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    source.good(&["volume", "create", "vol1", "--size", "64M"]);
    let destination = Running::start(dir.path(), "destination");
    for volume in ["vol0", "vol1"] {
        let token = invite(&source, &["--volume", volume]);
        destination.good(&["mirror", "create", volume, &token]);
    }
    let held = |volume: &str| source.json(&["snapshot", "list", volume]).as_array().unwrap().len();
    assert!(held("vol0") > 0 && held("vol1") > 0);
    let peers = source.json(&["peer", "list"]);
    let of_vol0 = peers.as_array().unwrap().iter().find(|peer| peer["volume"] == "vol0").unwrap();
    source.good(&["peer", "revoke", of_vol0["id"].as_str().unwrap(), "--yes"]);
    assert_eq!(held("vol0"), 0, "nothing is kept for a mirror that gets no more");
    assert!(held("vol1") > 0);
    destination.bad(12, "peer-refused", &["mirror", "update", "vol0"]);
    destination.good(&["mirror", "update", "vol1"]);
    // A peer that was admitted to one volume does not get another of the same name.
    source.good(&["volume", "delete", "vol1", "--yes"]);
    source.good(&["volume", "create", "vol1", "--size", "64M"]);
    destination.bad(12, "peer-refused", &["mirror", "update", "vol1"]);
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

/// A relay between two servers that passes a limited number of bytes to the destination, and then
/// no more until the test allows it.
struct Relay {
    address: String,
    left: std::sync::Arc<std::sync::atomic::AtomicI64>,
}

impl Relay {
    fn to(source: &str, bytes: i64) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let left = std::sync::Arc::new(std::sync::atomic::AtomicI64::new(bytes));
        let (source, mine) = (source.to_owned(), left.clone());
        std::thread::spawn(move || {
            for near in listener.incoming() {
                let Ok(near) = near else { return };
                // A source that was killed: the destination sees its connection closed.
                let Ok(far) = std::net::TcpStream::connect(&source) else { continue };
                let (up, down) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                std::thread::spawn(move || pass(up, down, None));
                let left = mine.clone();
                std::thread::spawn(move || pass(far, near, Some(&left)));
            }
        });
        Self { address, left }
    }

    fn open(&self) {
        self.left.store(i64::MAX / 2, std::sync::atomic::Ordering::SeqCst);
    }

    /// Waits until all that may go through has.
    fn wait_until_full(&self) {
        let deadline = Instant::now() + PATIENCE;
        while self.left.load(std::sync::atomic::Ordering::SeqCst) > 0 {
            assert!(Instant::now() < deadline, "the transfer does not come so far");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

/// Copies until either side disconnects.
fn pass(
    mut from: std::net::TcpStream,
    mut to: std::net::TcpStream,
    left: Option<&std::sync::atomic::AtomicI64>,
) {
    use std::io::{Read, Write};
    use std::sync::atomic::Ordering;
    let mut buffer = [0; 16384];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if let Some(left) = left {
            while left.load(Ordering::SeqCst) <= 0 {
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
            left.fetch_sub(count as i64, Ordering::SeqCst);
        }
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(std::net::Shutdown::Both);
    let _ = to.shutdown(std::net::Shutdown::Both);
}

const MIB: u64 = 1 << 20;

/// A source with 24 MiB in its LUN, and a destination that reaches it through a relay, whose
/// baseline is stuck after some MiB.
fn stuck(dir: &Path, through: i64) -> (Running, Running, Relay, String) {
    let source = Running::start(dir, "source");
    source.good(&["volume", "create", "vol0", "--size", "128M"]);
    source.good(&["lun", "create", "vol0/db", "--size", "24M"]);
    let mut disk = source.disk("vol0/db");
    for piece in 0..24 {
        let bytes: Vec<u8> = (0..MIB).map(|at| (at * 7 + piece * 31 + at / 4096) as u8).collect();
        disk.write(piece * MIB, &bytes).unwrap();
    }
    disk.flush().unwrap();
    let address = source.json(&["status"])["mirror"].as_str().unwrap().to_owned();
    let relay = Relay::to(&address, through);
    let token = invite(&source, &["--advertise", &relay.address]);
    let destination = Running::start(dir, "destination");
    (source, destination, relay, token)
}

/// Begins a baseline and leaves it stuck.
fn begin(destination: &Running, relay: &Relay, token: &str) -> std::process::Child {
    let mut command = cairn();
    // Not packed, so that bytes sent are bytes that changed.
    command.args(["mirror", "create", "vol0", token, "--compress", "never", "--json", "--data"]);
    command.arg(&destination.data);
    let child = command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).spawn();
    relay.wait_until_full();
    child.unwrap()
}

#[test]
fn a_killed_destination_goes_on_where_its_last_checkpoint_was() {
    let dir = tempfile::tempdir().unwrap();
    let (source, mut destination, relay, token) = stuck(dir.path(), 8 * MIB as i64);
    let mut child = begin(&destination, &relay, &token);
    let have = |destination: &Running| {
        destination.json(&["mirror", "status", "vol0"])["last"]["sent_bytes"].as_u64().unwrap()
    };
    assert_eq!(destination.json(&["mirror", "status", "vol0"])["state"], "transferring-baseline");
    // A checkpoint is made with the first record that comes a second after the last. A record (1
    // MiB) counts as sent when it is read, and at most nine of them wait or are being written: with
    // eleven more MiB read, the checkpoint of the first of them is done.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    relay.left.store(13 * MIB as i64, std::sync::atomic::Ordering::SeqCst);
    let deadline = Instant::now() + PATIENCE;
    while have(&destination) < 19 * MIB {
        assert!(Instant::now() < deadline, "the transfer does not go on");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    destination.kill();
    child.wait().unwrap();
    relay.open();
    destination.restart();
    assert!(!destination.json(&["mirror", "status", "vol0"])["image"].is_string(), "nothing is shown yet");
    let done = destination.json(&["mirror", "update", "vol0"]);
    let (kept, again) =
        (done["last"]["kept_bytes"].as_u64().unwrap(), done["last"]["sent_bytes"].as_u64().unwrap());
    assert!(kept >= 7 * MIB, "kept {kept}");
    assert!(again <= 24 * MIB - kept + 2 * MIB, "sent {again} with {kept} there");
    same_disks(&source, &destination);
}

#[test]
fn a_killed_source_is_gone_on_with_where_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let (mut source, destination, relay, token) = stuck(dir.path(), 12 * MIB as i64);
    let address = source.json(&["status"])["mirror"].as_str().unwrap().to_owned();
    let mut child = begin(&destination, &relay, &token);
    source.kill();
    relay.open();
    child.wait().unwrap();
    let mut again = Running::start_with(dir.path(), "source", &["--mirror", &address]);
    // The snapshot in transfer is deleted, and the LUN is written meanwhile.
    let mut disk = again.disk("vol0/db");
    disk.write(5 * MIB, &[9; 8192]).unwrap();
    let done = destination.json(&["mirror", "update", "vol0"]);
    let (kept, sent) =
        (done["last"]["kept_bytes"].as_u64().unwrap(), done["last"]["sent_bytes"].as_u64().unwrap());
    // Only the bytes in sockets and buffers are lost.
    assert!(kept >= 9 * MIB, "kept {kept}");
    assert!(sent <= 24 * MIB - kept + 2 * MIB, "sent {sent} with {kept} there");
    same_disks(&again, &destination);
    assert_eq!(destination.json(&["mirror", "status", "vol0"])["state"], "mirrored");
    again.kill();
}

fn same_disks(source: &Running, destination: &Running) {
    let (mut there, mut here) = (source.disk("vol0/db"), destination.disk("vol0/db"));
    for piece in 0..24 {
        let (a, b) =
            (there.read(piece * MIB, MIB as u32).unwrap(), here.read(piece * MIB, MIB as u32).unwrap());
        assert!(a == b, "piece {piece} is not the same");
    }
}

#[test]
fn stalled_transfers_are_seen_ended_aborted_and_paused() {
    let dir = tempfile::tempdir().unwrap();
    let (source, destination, relay, token) = stuck(dir.path(), 8 * MIB as i64);
    let mut child = begin(&destination, &relay, &token);
    destination.good(&["mirror", "set", "vol0", "--stall", "1s"]);
    wait_for(&destination, "state", "stalled");
    let check = destination.run(&["mirror", "check"]);
    assert_eq!(check.status.code(), Some(2), "{check:?}");
    // It was begun with another patience: an abort ends it, and has when it returns.
    let aborted = destination.json(&["mirror", "abort", "vol0"]);
    assert_eq!(aborted["was_running"], true);
    assert!(aborted["kept_bytes"].as_u64().unwrap() > 4 * MIB, "{aborted}");
    child.wait().unwrap();
    assert_eq!(destination.json(&["mirror", "status", "vol0"])["state"], "baseline");
    assert_eq!(destination.run(&["mirror", "check", "vol0"]).status.code(), Some(1));
    // Enough to begin with.
    relay.left.store(MIB as i64, std::sync::atomic::Ordering::SeqCst);
    destination.bad(30, "peer-unreachable", &["mirror", "update", "vol0"]);
    let failing = destination.json(&["mirror", "status", "vol0"]);
    assert_eq!(failing["state"], "failing");
    assert!(failing["reason"].as_str().unwrap().contains("the transfer was aborted"), "{failing}");
    assert!(failing["remedy"].as_str().unwrap().contains("cairn mirror"), "{failing}");
    destination.good(&["mirror", "set", "vol0", "--every", "100ms", "--rpo", "1h"]);
    destination.good(&["mirror", "pause", "vol0"]);
    assert_eq!(destination.json(&["mirror", "status", "vol0"])["state"], "paused");
    destination.bad(11, "busy", &["mirror", "update", "vol0"]);
    relay.open();
    destination.good(&["mirror", "resume", "vol0"]);
    wait_for(&destination, "state", "mirrored");
    assert_eq!(destination.run(&["mirror", "check"]).status.code(), Some(0));
    same_disks(&source, &destination);
    let follower = source.json(&["status"])["followers"][0].clone();
    assert_eq!(follower["rpo_ms"], 3_600_000, "both ends know what is wanted: {follower}");
    let nothing = cairn().args(["mirror", "check", "--data", "/nothing"]).output().unwrap();
    assert_eq!(nothing.status.code(), Some(3));
}

#[test]
fn aborted_transfer_ends_with_130() {
    let dir = tempfile::tempdir().unwrap();
    let (_source, destination, relay, token) = stuck(dir.path(), 8 * MIB as i64);
    let mut create = begin(&destination, &relay, &token);
    destination.good(&["mirror", "abort", "vol0"]);
    assert_eq!(create.wait().unwrap().code(), Some(130));
    for _ in 0..4 {
        relay.left.store(MIB as i64, std::sync::atomic::Ordering::SeqCst);
        let mut update = cairn();
        update.args(["mirror", "update", "vol0", "--json", "--data"]).arg(&destination.data);
        let update = update.stdout(std::process::Stdio::piped()).spawn().unwrap();
        wait_for(&destination, "state", "transferring-baseline");
        destination.good(&["mirror", "abort", "vol0"]);
        let ended = update.wait_with_output().unwrap();
        let said = running::refused(&ended, 130, "interrupted", &["mirror", "update", "vol0"]);
        assert!(said.contains("was aborted") && !said.contains("http"), "{said}");
    }
}

#[test]
fn what_is_set_while_a_mirror_connects_holds_for_what_comes_of_that() {
    let dir = tempfile::tempdir().unwrap();
    let (source, destination, relay, token) = stuck(dir.path(), i64::MAX / 2);
    source.good(&["snapshot", "create", "vol0@payroll"]);
    destination.good(&["mirror", "create", "vol0", &token]);
    source.good(&["snapshot", "delete", "vol0@payroll", "--yes"]);
    // It gets no further than the first answer.
    let stop = || relay.left.store(1, std::sync::atomic::Ordering::SeqCst);
    stop();
    std::thread::scope(|scope| {
        let update = scope.spawn(|| destination.bad(13, "diverged", &["mirror", "update", "vol0"]));
        relay.wait_until_full();
        destination.good(&["mirror", "set", "vol0", "--lock", "30d"]);
        relay.open();
        let refused = update.join().unwrap();
        assert!(refused.contains("payroll"), "the lock is not heeded: {refused}");
    });
    let again = invite(&source, &["--advertise", &relay.address]);
    stop();
    std::thread::scope(|scope| {
        let repoint = scope.spawn(|| destination.run(&["mirror", "repoint", "vol0", &again]));
        relay.wait_until_full();
        destination.good(&["mirror", "set", "vol0", "--rpo", "1h"]);
        relay.open();
        drop(repoint.join().unwrap());
    });
    let shown = destination.json(&["mirror", "status", "vol0"]);
    assert_eq!(
        (&shown["rpo_ms"], &shown["lock_ms"]),
        (&3_600_000.into(), &2_592_000_000_u64.into()),
        "{shown}"
    );
}

/// The source before the failover would never learn of it, and both sides would take writes.
#[test]
fn mirror_that_is_failed_over_while_it_is_repointed_knows_whom_it_followed() {
    let dir = tempfile::tempdir().unwrap();
    let (source, destination, relay, token) = stuck(dir.path(), i64::MAX / 2);
    destination.good(&["mirror", "create", "vol0", &source.invite()]);
    let followed = destination.json(&["mirror", "status", "vol0"])["source_address"].clone();
    // It gets no further than the first answer.
    relay.left.store(1, std::sync::atomic::Ordering::SeqCst);
    std::thread::scope(|scope| {
        let repoint = scope.spawn(|| destination.run(&["mirror", "repoint", "vol0", &token]));
        relay.wait_until_full();
        destination.good(&["mirror", "failover", "vol0", "--yes"]);
        relay.open();
        assert!(!repoint.join().unwrap().status.success());
    });
    let shown = destination.json(&["mirror", "status", "vol0"]);
    assert_eq!((&shown["source_address"], &shown["role"]), (&followed, &"source".into()), "{shown}");
    wait_until("the source does not hear of it", || {
        source.json(&["status"])["problems"].to_string().contains("failed over")
    });
}

#[test]
fn mirror_of_a_volume_that_is_not_open_is_told_so_and_not_that_there_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let mut source = source(dir.path());
    source.stay();
    let destination = Running::start(dir.path(), "destination");
    destination.good(&["mirror", "create", "vol0", &source.invite()]);
    let (image, aside) = (source.data.join("volumes/vol0/volume.img"), dir.path().join("aside"));
    source.kill();
    std::fs::rename(&image, &aside).unwrap();
    source.restart();
    let told = destination.bad(1, "failed", &["mirror", "update", "vol0"]);
    assert!(told.contains("has failed") && told.contains("cairn status"), "{told}");
    std::fs::rename(&aside, &image).unwrap();
    wait_until("the volume does not come back", || {
        destination.run(&["mirror", "update", "vol0"]).status.success()
    });
}

#[test]
fn monitoring_hears_of_nothing_but_its_four_exit_codes() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start_with(dir.path(), "d", &["--mirror", "off", "--http", "127.0.0.1:0"]);
    let address = server.json(&["status"])["http"][1].as_str().unwrap().to_owned();
    let wrong = dir.path().join("wrong");
    std::fs::write(&wrong, "0".repeat(64)).unwrap();
    let (wrong, missing) = (wrong.to_str().unwrap(), dir.path().join("missing"));
    let missing = missing.to_str().unwrap();
    // A server that hangs: a client that connects gets no answer.
    let silent = dir.path().join("silent");
    let _listener = std::os::unix::net::UnixListener::bind(&silent).unwrap();
    let silent = format!("unix:{}", silent.display());
    for arguments in [
        &["--server", &silent][..],
        &["--server", &address],
        &["--server", &address, "--token-file", missing],
        &["--server", &address, "--token-file", wrong],
        &["--server", "127.0.0.1:1", "--token-file", wrong],
        &["--server", "off"],
        &["--data", missing],
        &["--data", server.data.to_str().unwrap(), "nothing"],
        &["--data", server.data.to_str().unwrap(), "--rpo", "soon"],
        &["--data", server.data.to_str().unwrap(), "--no-such-option"],
    ] {
        let output = cairn().args(["mirror", "check"]).args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(3), "{arguments:?}: {output:?}");
        assert!(said.starts_with("UNKNOWN - "), "{arguments:?}: {said}");
    }
    let status = cairn().args(["mirror", "status", "--server", &address]).output().unwrap();
    assert_eq!(status.status.code(), Some(12), "of a command for people as ever");
    let usage = cairn().args(["mirror", "status", "--no-such-option"]).output().unwrap();
    assert_eq!(usage.status.code(), Some(2));
    assert_eq!(cairn().args(["mirror", "check", "--help"]).output().unwrap().status.code(), Some(0));
}

#[test]
fn check_whose_line_nobody_takes_ends_with_its_code_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start_with(dir.path(), "d", &["--mirror", "off"]);
    let code = |out: std::process::Stdio, more: &[&str]| {
        let mut command = cairn();
        command.args(["mirror", "check", "--data"]).arg(&server.data).args(more);
        command.stdout(out).stderr(std::process::Stdio::null()).status().unwrap().code()
    };
    for more in [&[][..], &["--json"], &["--rpo", "soon"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        assert_eq!(code(full.into(), more), Some(3), "a full disk: {more:?}");
        let (reader, closed) = std::io::pipe().unwrap();
        drop(reader);
        assert_eq!(code(closed.into(), more), Some(3), "nobody reads it: {more:?}");
    }
}

fn wait_for(server: &Running, field: &str, value: &str) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let status = server.json(&["mirror", "status", "vol0"]);
        if status[field] == value {
            return;
        }
        assert!(Instant::now() < deadline, "{field} is not {value}: {status}");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[test]
fn a_mirror_without_a_held_base_goes_on_when_nothing_is_kept_at_the_source_and_compares_when_all_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    let destination = Running::start(dir.path(), "destination");
    let mut disk = source.disk("vol0/db");
    disk.write(0, &[1; 1 << 20]).unwrap();
    source.good(&["snapshot", "create", "vol0@daily"]);
    let token = invite(&source, &[]);
    destination.good(&["mirror", "create", "vol0", &token, "--no-hold"]);
    source.good(&["snapshot", "delete", "vol0@daily", "--yes"]);
    assert_eq!(source.json(&["snapshot", "list", "vol0"]), serde_json::json!([]));
    disk.write(0, &[2; 65536]).unwrap();
    let updated = destination.json(&["mirror", "update", "vol0"]);
    assert!(updated["last"]["sent_bytes"].as_u64().unwrap() < 300_000, "{updated}");
    assert_eq!(destination.disk("vol0/db").read(0, 65536).unwrap(), [2; 65536]);
    let name = source.json(&["status"])["followers"][0]["name"].as_str().unwrap().to_owned();
    source.good(&["mirror", "forget", "vol0", &name, "--yes"]);
    disk.write(0, &[3; 4096]).unwrap();
    let refused = destination.run(&["mirror", "update", "vol0", "--json"]);
    assert_eq!(refused.status.code(), Some(13));
    let said = String::from_utf8(refused.stdout).unwrap();
    assert!(said.contains("comparing checksums takes") && said.contains("--compare"), "{said}");
    assert_eq!(destination.json(&["mirror", "status", "vol0"])["state"], "diverged");
    let compared = destination.json(&["mirror", "update", "vol0", "--compare"]);
    assert!(compared["last"]["sent_bytes"].as_u64().unwrap() < 300_000, "{compared}");
    assert!(compared["last"]["kept_bytes"].as_u64().unwrap() > 900_000, "{compared}");
    assert_eq!(destination.disk("vol0/db").read(0, 4096).unwrap(), [3; 4096]);
}

#[test]
fn after_a_failover_what_is_kept_for_a_failback_is_told_apart_from_followers() {
    for holds in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let mut source = source(dir.path());
        let destination = Running::start(dir.path(), "destination");
        let token = invite(&source, &[]);
        let create = ["mirror", "create", "vol0", &token, "--no-hold"];
        destination.good(if holds { &create[..4] } else { &create });
        source.kill();
        destination.good(&["mirror", "failover", "vol0", "--yes"]);
        let status = destination.json(&["status"]);
        assert_eq!(status["followers"], serde_json::json!([]), "nobody follows it");
        // A mirror without a held snapshot has brought its source's record for it, and no snapshot.
        assert_eq!(status["leftovers"].as_array().unwrap().len(), 1, "{status}");
        let kept = &status["leftovers"][0];
        assert_eq!((&kept["volume"], kept["base"].is_string()), (&"vol0".into(), holds));
        let name = kept["name"].as_str().unwrap();
        let told = destination.good(&["status"]);
        assert!(told.contains("KEPT FOR A FAILBACK") && told.contains(name), "{told}");
        destination.good(&["mirror", "forget", "vol0", name, "--yes"]);
        assert_eq!(destination.json(&["status"])["leftovers"], serde_json::json!([]));
        assert_eq!(destination.json(&["snapshot", "list", "vol0"]), serde_json::json!([]));
    }
}

/// The address in a token: a base64url of JSON after the prefix.
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

#[test]
fn update_is_priced_and_what_is_kept_for_a_mirror_is_named_before_anything_is_done() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    let mut disk = source.disk("vol0/db");
    disk.write(0, &[1; 1 << 20]).unwrap();
    disk.flush().unwrap();
    let destination = Running::start(dir.path(), "destination");
    destination.good(&["mirror", "create", "vol0", &invite(&source, &[])]);
    let price = || destination.json(&["mirror", "update", "vol0", "--dry-run"]);
    let none = price();
    assert_eq!((&none["changed_bytes"], &none["base_known"]), (&0.into(), &true.into()), "{none}");
    disk.write(0, &[2; 256 << 10]).unwrap();
    disk.flush().unwrap();
    let changed = price()["changed_bytes"].as_u64().unwrap();
    assert!((256 << 10..400 << 10).contains(&changed), "{changed}");
    assert_eq!(destination.disk("vol0/db").read(0, 4096).unwrap(), [1; 4096], "nothing was brought");
    let brought = destination.json(&["mirror", "update", "vol0"])["last"]["changed_bytes"].as_u64().unwrap();
    assert!(brought.abs_diff(changed) < 128 << 10, "{changed} were told, {brought} came");

    // The data that the source keeps for it, by the name that the mirror itself knows.
    source.bad(10, "not-found", &["mirror", "forget", "vol0", "nosuch", "--dry-run"]);
    let name = destination.json(&["mirror", "status", "vol0"])["source_name"].as_str().unwrap().to_owned();
    source.good(&["mirror", "forget", "vol0", &name, "--dry-run"]);
    assert_eq!(source.json(&["status"])["followers"][0]["name"], name.as_str(), "nothing was done");
    source.good(&["mirror", "forget", "vol0", &name, "--yes"]);
    assert_eq!(source.json(&["snapshot", "list", "vol0"]), serde_json::json!([]), "nothing is held any more");
}

#[test]
fn source_of_a_mirror_that_is_deleted_is_told_when_it_can_be_reached() {
    let dir = tempfile::tempdir().unwrap();
    let mut source = source(dir.path());
    source.stay();
    let destination = Running::start(dir.path(), "destination");
    let mirror = || {
        let token = invite(&source, &[]);
        destination.good(&["mirror", "create", "vol0", &token]);
        destination.json(&["mirror", "status", "vol0"])["source_name"].as_str().unwrap().to_owned()
    };
    mirror();
    assert_eq!(source.json(&["snapshot", "list", "vol0"]).as_array().unwrap().len(), 1, "a base is held");
    let deleted = destination.json(&["mirror", "delete", "vol0", "--yes"]);
    assert_eq!((&deleted["told"], &deleted["next_at_source"]), (&true.into(), &serde_json::Value::Null));
    let status = source.json(&["status"]);
    let none = serde_json::json!([]);
    assert_eq!((&status["followers"], &status["leftovers"], &status["problems"]), (&none, &none, &none));
    assert_eq!(source.json(&["snapshot", "list", "vol0"]), none, "nothing is held any more");

    // A source that is down is not notified, and the report names the command to run there.
    let name = mirror();
    source.kill();
    let said = destination.good(&["mirror", "delete", "vol0", "--yes"]);
    let forget = format!("cairn mirror forget vol0 {name}");
    assert!(said.contains(&forget) && said.contains("was not notified"), "{said}");
    source.restart();
    assert_eq!(source.json(&["status"])["followers"][0]["name"], name.as_str());
    source.good(&["mirror", "forget", "vol0", &name, "--yes"]);
    assert_eq!(source.json(&["snapshot", "list", "vol0"]), none);
}

#[test]
fn mirror_on_the_server_of_its_source_is_told_as_any_other() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Running::start(dir.path(), "d");
    server.stay();
    server.good(&["volume", "create", "v", "--size", "64M"]);
    server.good(&["mirror", "create", "v", &server.invite(), "--as", "m"]);
    server.good(&["snapshot", "create", "v@s"]);
    server.good(&["mirror", "update", "m"]);
    for restarted in [false, true] {
        if restarted {
            server.terminate();
            server.restart();
            server.good(&["mirror", "update", "m"]);
        }
        // A mirror with the same name as the source here asks the source for the lag.
        wait_until("it is well", || server.run(&["mirror", "check", "m"]).status.code() == Some(0));
        let problems = server.json(&["status"])["problems"].clone();
        assert_eq!(problems, serde_json::json!([]), "who does what it says ends the mirror");
    }
}

/// Otherwise a user would follow the advice: the volume would follow its own source, and give up
/// its writes.
#[test]
fn mirror_on_the_server_of_its_source_that_was_failed_over_is_not_told_as_one_of_itself() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), "d");
    server.good(&["volume", "create", "v", "--size", "64M"]);
    server.good(&["mirror", "create", "v", &server.invite(), "--as", "m"]);
    server.good(&["mirror", "failover", "m", "--yes"]);
    let subjects = || {
        let problems = server.json(&["status"])["problems"].clone();
        let subject = |problem: &serde_json::Value| problem["subject"].as_str().unwrap().to_owned();
        problems.as_array().unwrap().iter().map(subject).collect::<Vec<_>>()
    };
    wait_until("the source does not hear of it", || subjects().contains(&"v".to_owned()));
    assert_eq!(subjects(), ["v"]);
    // Once that follows, it is one of the other.
    server.good(&["mirror", "resync", "v", "--discard-divergent", "--yes"]);
    assert_eq!(subjects(), [""; 0]);
    let followers = server.json(&["status"])["followers"].clone();
    assert_eq!(followers[0]["volume"], "m", "{followers}");
}

#[test]
fn peers_have_names_and_images_numbers_where_people_look() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    let destination = Running::start(dir.path(), "destination");
    let token = invite(&source, &[]);
    let made = destination.good(&["mirror", "create", "vol0", &token]);
    assert!(made.contains("vol0 is at image 1 of ") && !made.contains("mirror."), "{made}");
    let full = destination.good(&["mirror", "show", "vol0", "-v"]);
    assert!(full.contains("image     mirror."), "{full}");
    let peers = source.json(&["peer", "list"]);
    assert_eq!(peers[0]["name"], "127.0.0.1", "the host that it came from");
    source.good(&["peer", "rename", "127.0.0.1", "backup1"]);
    assert_eq!(source.json(&["status"])["followers"][0]["peer"], "backup1");
    for listed in [source.good(&["peer", "list"]), source.good(&["status"])] {
        assert!(listed.contains("backup1"), "{listed}");
    }
    let status = source.good(&["status"]);
    assert!(status.contains("follows") && !status.contains("mirror."), "{status}");
    for text in [status, destination.good(&["status"]), destination.good(&["mirror", "list"])] {
        let wide = text.lines().filter(|line| !line.contains('/')).find(|line| line.chars().count() > 80);
        assert!(wide.is_none(), "{wide:?}");
    }
    source.bad(21, "taken", &["peer", "invite", "--name", "backup1"]);
    assert!(source.good(&["peer", "show", "backup1"]).contains("certificate"));
    let would = source.good(&["mirror", "forget", "vol0", "backup1", "-n"]);
    assert!(would.contains("backup1"), "{would}");
    source.good(&["peer", "revoke", "backup1", "--yes"]);
    assert_eq!(source.json(&["peer", "list"]), serde_json::json!([]));
}
