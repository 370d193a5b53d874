//! Two real servers that change their roles: disaster, failover, the old source's return, resync,
//! failback, and planned changes under load.

mod running;

use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use cairn_frontend_nbd::{Address, Client, ClientOptions};
use running::vol0::{content, write};
use running::{PATIENCE, Running};
use serde_json::Value;

/// A source with a LUN, and a mirror of it; both keep their addresses.
fn pair(dir: &Path) -> (Running, Running) {
    let mut source = Running::start(dir, "source");
    source.stay();
    source.good(&["volume", "create", "vol0", "--size", "64M"]);
    source.good(&["lun", "create", "vol0/db", "--size", "4M"]);
    let mut destination = Running::start(dir, "destination");
    destination.stay();
    write(&source, 0, 1, 256 << 10);
    let token = source.invite();
    destination.good(&["mirror", "create", "vol0", &token]);
    (source, destination)
}

fn poll(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn status(server: &Running) -> Value {
    server.json(&["mirror", "status", "vol0"])
}

#[test]
fn old_source_comes_back_learns_of_the_failover_is_resynced_and_gets_its_role_back() {
    let dir = tempfile::tempdir().unwrap();
    let (mut source, mut destination) = pair(dir.path());
    let own = ["--every", "6h", "--rpo", "12h", "--lock", "1h", "--limit", "900M", "--stall", "3m"];
    destination.good(&[&["mirror", "set", "vol0"], &own[..]].concat());
    let settings = |server: &Running| {
        let shown = status(server);
        ["every_ms", "rpo_ms", "lock_ms", "limit", "stall_ms"].map(|name| shown[name].clone())
    };
    let set = settings(&destination);
    assert!(set.iter().all(|value| !value.is_null()), "{set:?}");
    write(&source, 1 << 20, 2, 64 << 10);
    source.kill();
    let failed_over = destination.good(&["mirror", "failover", "vol0", "--yes"]);
    assert!(failed_over.contains("roles: vol0 (here, source)"), "{failed_over}");
    assert_eq!(status(&destination)["state"], "failed-over");
    assert_eq!(status(&destination)["role"], "source");
    write(&destination, 0, 3, 128 << 10);
    // It does not know, and takes writes.
    source.restart();
    write(&source, 2 << 20, 4, 32 << 10);
    poll("the old source hears nothing of the failover", || {
        let problems = source.json(&["status"])["problems"].to_string();
        problems.contains("was failed over to") && problems.contains("diverged")
    });
    let departed = source.json(&["status"])["followers"][0]["departed"].clone();
    assert!(departed["generation"].as_u64().unwrap() > 0 && departed["diverged_bytes"].as_u64().unwrap() > 0);
    // A decision is needed, and nothing is done without one.
    let asked = source.json(&["mirror", "resync", "vol0", "-n"]);
    assert_eq!(asked["diverged"], true);
    let lost = asked["lost_bytes"].as_u64().unwrap();
    assert!((96 << 10..200 << 10).contains(&lost), "{asked}");
    let message = source.bad(13, "diverged", &["mirror", "resync", "vol0"]);
    assert!(message.contains("bytes that were written to `vol0`"), "{message}");
    source.bad(13, "diverged", &["mirror", "failback", "vol0"]);
    source.bad(2, "usage", &["mirror", "resync", "vol0", "--discard-divergent"]);
    write(&source, 2 << 20, 4, 32 << 10);

    // No client is disconnected for a file that can't be written.
    let nowhere = dir.path().join("no-such-folder/lost.cairn");
    let failed = source.run(&["mirror", "resync", "vol0", "--spill", nowhere.to_str().unwrap()]);
    assert!(String::from_utf8_lossy(&failed.stderr).contains("no-such-folder"), "{failed:?}");
    write(&source, 2 << 20, 4, 32 << 10);

    let spill = dir.path().join("lost.cairn");
    let spilled = source.good(&["mirror", "resync", "vol0", "--spill", spill.to_str().unwrap()]);
    assert!(spilled.contains("vol0 (here, destination)") && spilled.contains("lost.cairn"), "{spilled}");
    let spill = spill.to_str().unwrap();
    let listed = source.json(&["image", "ls", spill]);
    assert!(listed.to_string().contains("split-") || listed.to_string().contains("mirror."), "{listed}");
    assert_eq!(content(&source), content(&destination));
    assert!(source.disk("vol0/db").write(0, &[9; 4096]).is_err(), "it is read-only now");
    let shown = status(&source);
    assert_eq!((&shown["role"], &shown["state"]), (&"destination".into(), &"mirrored".into()), "{shown}");
    let sent = shown["last"]["changed_bytes"].as_u64().unwrap();
    assert!((128 << 10..300 << 10).contains(&sent), "only what diverged travels: {shown}");
    let split = |server: &Running| server.good(&["snapshot", "list", "vol0"]).contains("@split-");
    assert!(split(&source) && split(&destination), "the base of the spill is kept on both sides");
    // With a dump of that base it is a volume again, with the discarded writes.
    let names = destination.good(&["snapshot", "list", "vol0"]);
    let base = names.split_whitespace().find(|word| word.contains("@split-")).unwrap().to_owned();
    let dump = dir.path().join("base.cairn");
    let dump = dump.to_str().unwrap();
    destination.good(&["image", "dump", &base, "--to", dump]);
    source.good(&["image", "verify", dump, spill, "--deep"]);
    let socket = dir.path().join("spill.sock");
    let mut mount = running::cairn();
    mount.args(["image", "mount", dump, spill, "--socket"]).arg(&socket);
    let mut mounted = mount.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    poll("the spill is served", || socket.exists());
    let mut disk =
        Client::connect(&Address::Unix(socket), &ClientOptions::new("vol0/db")).expect("its LUN is served");
    let lost = disk.read(0, 4 << 20).unwrap();
    mounted.kill().unwrap();
    mounted.wait().unwrap();
    assert_eq!((lost[1 << 20], lost[2 << 20]), (2, 4), "what only the old source had");
    assert_eq!(status(&destination)["state"], "source");
    assert_eq!(source.json(&["status"])["problems"], serde_json::json!([]));
    for server in [&mut source, &mut destination] {
        server.kill();
        server.restart();
    }
    assert_eq!(status(&source)["role"], "destination", "roles are kept over a restart");
    assert_eq!(status(&destination)["role"], "source");

    write(&destination, 3 << 20, 5, 64 << 10);
    let before = content(&destination);
    // The failover was its owner's, and only that owner gives the role away.
    let advice = source.advice(12, &["mirror", "failback", "vol0"]);
    write(&destination, 2 << 20, 5, 4096);
    let before = [&before[..2 << 20], &[5; 4096], &before[(2 << 20) + 4096..]].concat();
    destination.follow(&advice, "allow-reverse");
    let back = source.good(&["mirror", "failback", "vol0"]);
    assert!(back.contains("vol0 (here, source)"), "{back}");
    assert_eq!(content(&source), before);
    write(&source, 0, 6, 4096);
    assert!(destination.disk("vol0/db").write(0, &[9; 4096]).is_err(), "the roles are back");
    // Its schedule may have begun one in this moment.
    poll("an update", || destination.run(&["mirror", "update", "vol0"]).status.success());
    assert_eq!(content(&destination), content(&source));
    assert_eq!(status(&destination)["role"], "destination");
    assert_eq!(settings(&destination), set, "what its owner had set is there with the role");
    let followers = destination.json(&["status"])["followers"].clone();
    assert_eq!(followers, serde_json::json!([]), "whom it follows again is no mirror of it");
    for server in [&source, &destination] {
        assert!(server.good(&["volume", "check", "vol0"]).contains("sound"));
    }
}

#[test]
fn mirror_that_was_failed_over_gives_up_its_writes_and_follows_again() {
    let dir = tempfile::tempdir().unwrap();
    let (source, mut destination) = pair(dir.path());
    destination.good(&["mirror", "failover", "vol0", "--yes"]);
    write(&destination, 0, 3, 64 << 10);
    write(&source, 1 << 20, 4, 64 << 10);
    destination.bad(13, "diverged", &["mirror", "resync", "vol0"]);
    destination.bad(13, "wrong-role", &["mirror", "reverse", "vol0", "--yes"]);
    let before = content(&source);
    // It is to be discarded; no replacement arrives, and its owner changes the decision.
    let own = content(&destination);
    source.good(&["volume", "hooks", "vol0", "--before", "false"]);
    destination.bad(1, "failed", &["mirror", "resync", "vol0", "--discard-divergent", "--yes"]);
    assert_eq!(content(&destination), own);
    assert_eq!(status(&destination)["state"], "failing");
    destination.kill();
    destination.restart();
    let shown = status(&destination);
    assert_eq!((&shown["state"], &shown["lag_ms"]), (&"baseline".into(), &Value::Null), "{shown}");
    source.good(&["volume", "hooks", "vol0", "--before", ""]);
    let spill = dir.path().join("kept.cairn");
    let spilled = destination.good(&["mirror", "resync", "vol0", "--spill", spill.to_str().unwrap()]);
    assert!(spilled.contains("kept.cairn"), "{spilled}");
    destination.good(&["image", "ls", spill.to_str().unwrap()]);
    assert_eq!(content(&destination), before);
    assert_eq!(content(&source), before);
    assert_eq!(status(&destination)["state"], "mirrored");
    assert_eq!(source.json(&["status"])["followers"][0]["departed"], Value::Null);
}

#[test]
fn address_at_which_the_other_side_was_not_found_is_not_kept() {
    let dir = tempfile::tempdir().unwrap();
    let (source, destination) = pair(dir.path());
    let mut stranger = Running::start(dir.path(), "stranger");
    let elsewhere = stranger.stay();
    destination.good(&["mirror", "failover", "vol0", "--yes"]);
    let known = status(&destination)["source_address"].clone();
    for (code, kind, from) in
        [(12, "peer-refused", elsewhere.as_str()), (30, "peer-unreachable", "127.0.0.1:1")]
    {
        for how in ["--dry-run", "--discard-divergent"] {
            destination.bad(code, kind, &["mirror", "resync", "vol0", how, "--yes", "--from", from]);
            assert_eq!(status(&destination)["source_address"], known, "{how} from {from}");
        }
    }
    destination.good(&["mirror", "resync", "vol0", "--discard-divergent", "--yes"]);
    assert_eq!(content(&destination), content(&source));
}

#[test]
fn side_that_gave_its_role_away_hears_without_a_schedule_that_it_was_taken() {
    let dir = tempfile::tempdir().unwrap();
    let (source, destination) = pair(dir.path());
    source.good(&["mirror", "allow-reverse", "vol0"]);
    destination.good(&["mirror", "reverse", "vol0", "--yes"]);
    poll("it hears of it", || status(&source)["state"] == "silent");
    let shown = status(&source);
    assert_eq!(shown["check"], 1, "nothing is wrong: {shown}");
    assert!(shown["remedy"].as_str().unwrap().contains("cairn mirror update"), "{shown}");
    source.good(&["mirror", "update", "vol0"]);
    assert_eq!(status(&source)["state"], "mirrored");
}

#[test]
fn side_that_took_over_is_the_source_at_once_also_of_a_mirror_without_a_schedule() {
    let dir = tempfile::tempdir().unwrap();
    let (mut source, destination) = pair(dir.path());
    source.good(&["mirror", "allow-reverse", "vol0"]);
    destination.good(&["mirror", "reverse", "vol0", "--yes"]);
    let shown = status(&destination);
    assert_eq!((&shown["state"], &shown["check"]), (&"source".into(), &0.into()), "{shown}");
    assert_eq!(shown["remedy"], Value::Null, "there is nothing to be done: {shown}");
    // It can't follow its own mirror, and the attempt does not erase how it became writable.
    let since = shown["role_since_ms"].clone();
    destination.bad(13, "wrong-role", &["mirror", "resync", "vol0", "--discard-divergent", "--yes"]);
    let shown = status(&destination);
    assert_eq!((&shown["state"], &shown["role_since_ms"]), (&"source".into(), &since), "{shown}");
    source.good(&["mirror", "failback", "vol0"]);
    let shown = status(&source);
    assert_eq!(shown["state"], "source", "the other side comes when it is told to: {shown}");
    source.kill();
    source.restart();
    assert_eq!(status(&source)["state"], "source");
    // A side that takes the role back by itself has no source.
    destination.good(&["mirror", "failover", "vol0", "--yes"]);
    poll("it is told", || status(&source)["state"] == "failed-over");
    // And does again once it has followed, and given the role.
    source.good(&["mirror", "resync", "vol0", "--discard-divergent", "--yes"]);
    destination.good(&["mirror", "allow-reverse", "vol0"]);
    source.good(&["mirror", "failback", "vol0"]);
    assert_eq!(status(&source)["state"], "source", "{}", status(&source));
    let problems = source.json(&["status"])["problems"].clone();
    assert_eq!(problems, serde_json::json!([]), "what it said of its failover is over");
}

#[test]
fn side_that_gave_its_role_away_follows_within_seconds_however_seldom_it_is_to() {
    let dir = tempfile::tempdir().unwrap();
    let (source, destination) = pair(dir.path());
    destination.good(&["mirror", "set", "vol0", "--every", "6h"]);
    for (from, to) in [(&source, &destination), (&destination, &source)] {
        from.good(&["mirror", "allow-reverse", "vol0"]);
        to.good(&["mirror", "reverse", "vol0", "--yes"]);
        poll("it has an image of the other side", || status(from)["state"] == "mirrored");
        assert_eq!(status(from)["problem"], Value::Null);
    }
}

#[test]
fn failover_is_told_also_where_what_is_written_of_the_mirror_is_from_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let (source, mut destination) = pair(dir.path());
    destination.kill();
    let document = destination.data.join("volumes/vol0/mirror.json");
    let before = std::fs::read(&document).unwrap();
    destination.restart();
    destination.good(&["mirror", "failover", "vol0", "--yes"]);
    destination.kill();
    std::fs::write(&document, before).unwrap();
    destination.restart();
    let shown = status(&destination);
    assert_eq!(shown["role"], "source", "the volume says what it is: {shown}");
    poll("the old source hears nothing of the failover", || {
        source.json(&["status"])["problems"].to_string().contains("was failed over to")
    });
    source.good(&["mirror", "resync", "vol0", "--discard-divergent", "--yes"]);
    assert_eq!(status(&destination)["state"], "source");
}

#[test]
fn source_that_was_only_compared_with_its_mirror_is_not_taken_for_one() {
    let dir = tempfile::tempdir().unwrap();
    let (mut source, destination) = pair(dir.path());
    destination.good(&["mirror", "failover", "vol0", "--yes"]);
    write(&destination, 0, 3, 64 << 10);
    write(&source, 1 << 20, 4, 64 << 10);
    poll("the old source hears of it", || {
        source.json(&["status"])["problems"].to_string().contains("was failed over to")
    });
    source.bad(13, "diverged", &["mirror", "resync", "vol0"]);
    source.kill();
    source.restart();
    assert_eq!(source.json(&["mirror", "status"]), serde_json::json!([]), "it follows nobody, and never did");
    assert!(!source.data.join("volumes/vol0/mirror.json").exists());
}

#[test]
fn volume_whose_spill_fails_says_that_it_waits_for_a_decision_and_takes_its_role_back() {
    let dir = tempfile::tempdir().unwrap();
    let (_source, mut destination) = pair(dir.path());
    destination.good(&["mirror", "failover", "vol0", "--yes"]);
    write(&destination, 0, 3, 64 << 10);
    let before = content(&destination);
    // A disk that is full.
    let spill = dir.path().join("lost.cairn");
    std::os::unix::fs::symlink("/dev/full", dir.path().join("lost.cairn.part")).unwrap();
    let failed = destination.run(&["mirror", "resync", "vol0", "--spill", spill.to_str().unwrap()]);
    assert!(!failed.status.success() && !spill.exists(), "{failed:?}");
    for again in [false, true] {
        let shown = status(&destination);
        assert_eq!((&shown["state"], &shown["check"]), (&"diverged".into(), &2.into()), "{again}: {shown}");
        assert!(shown["remedy"].as_str().unwrap().contains("cairn mirror resync vol0 -n"), "{shown}");
        assert_eq!(content(&destination), before);
        destination.kill();
        destination.restart();
    }
    destination.good(&["mirror", "failover", "vol0", "--yes"]);
    write(&destination, 0, 3, 4096);
    assert_eq!(content(&destination), before);
}

/// Changes of role in the next test: the number in `CAIRN_ROLE_SWAPS`, for a soak.
fn swaps() -> u32 {
    std::env::var("CAIRN_ROLE_SWAPS").map_or(25, |swaps| swaps.parse().unwrap())
}

#[test]
fn planned_changes_of_role_keep_every_byte_and_survive_kills() {
    let dir = tempfile::tempdir().unwrap();
    let (mut here, mut there) = pair(dir.path());
    for swap in 0..swaps() {
        let round = swap as u8;
        // `here` is the source: clients write until the change cuts them off.
        let wrote = AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut disk = here.disk("vol0/db");
                for count in 0u32.. {
                    let fill = round.wrapping_mul(16).wrapping_add((count % 16) as u8);
                    if disk.write(u64::from(count % 512) * 4096, &[fill; 4096]).is_err() {
                        break;
                    }
                    wrote.fetch_add(1, Ordering::Relaxed);
                }
            });
            poll("clients write", || wrote.load(Ordering::Relaxed) > 0);
            here.good(&["mirror", "allow-reverse", "vol0"]);
            let changed = there.good(&["mirror", "reverse", "vol0", "--yes"]);
            assert!(changed.contains("vol0 (here, source)"), "{changed}");
        });
        let content_there = content(&there);
        assert_eq!(content(&here), content_there, "swap {swap}: all that was acknowledged came along");
        assert_eq!(status(&here)["role"], "destination");
        if swap % 6 == 0 {
            for server in [&mut here, &mut there] {
                server.kill();
                server.restart();
            }
            assert_eq!(content(&there), content_there, "swap {swap}: after a kill");
        }
        write(&there, 3 << 20, round, 8192);
        here.good(&["mirror", "update", "vol0"]);
        assert_eq!(content(&here), content(&there));
        if swap % 8 == 7 {
            // A disaster for a change: the destination is failed over, both sides get writes, and
            // one becomes the destination.
            here.good(&["mirror", "failover", "vol0", "--yes"]);
            write(&here, 0, round, 64 << 10);
            write(&there, 2 << 20, round, 64 << 10);
            let winner = content(&here);
            there.good(&["mirror", "resync", "vol0", "--discard-divergent", "--yes"]);
            assert_eq!(content(&there), winner, "swap {swap}: the side that gave way");
            assert_eq!(content(&here), winner, "swap {swap}: the side that was followed");
        } else {
            std::mem::swap(&mut here, &mut there);
        }
        if swap % 100 == 99 {
            println!("{} changes of role", swap + 1);
        }
    }
    for server in [&here, &there] {
        assert!(server.good(&["volume", "check", "vol0"]).contains("sound"));
    }
}

#[test]
fn source_that_gave_its_role_away_takes_it_back_when_the_other_side_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let (mut source, mut destination) = pair(dir.path());
    let before = content(&source);
    source.bad(10, "not-found", &["mirror", "resync", "vol0"]);
    destination.kill();
    source.bad(10, "not-found", &["mirror", "reverse", "vol0", "--yes"]);
    destination.restart();
    // The owner of the source has a say in it.
    destination.bad(12, "peer-refused", &["mirror", "reverse", "vol0", "--yes"]);
    source.good(&["mirror", "allow-reverse", "vol0"]);
    source.good(&["mirror", "allow-reverse", "vol0", "--off"]);
    destination.bad(12, "peer-refused", &["mirror", "reverse", "vol0", "--yes"]);
    write(&source, 3 << 20, 1, 4096);
    let before = [&before[..3 << 20], &[1; 4096], &before[(3 << 20) + 4096..]].concat();
    source.good(&["mirror", "allow-reverse", "vol0", "--for", "5m"]);
    // The consent survives a restart.
    source.kill();
    source.restart();
    destination.good(&["mirror", "reverse", "vol0", "--yes"]);
    destination.kill();
    source.bad(30, "peer-unreachable", &["mirror", "update", "vol0"]);
    source.good(&["mirror", "failover", "vol0", "--yes"]);
    assert_eq!(content(&source), before);
    write(&source, 0, 7, 4096);
    destination.restart();
    // Both take writes now, and each side can tell.
    poll("the other side hears nothing", || {
        destination.json(&["status"])["problems"].to_string().contains("was failed over to")
    });
    destination.good(&["mirror", "resync", "vol0", "--discard-divergent", "--yes"]);
    assert_eq!(content(&destination), content(&source));
    // The word was good once: it was used before the server's next start.
    source.kill();
    source.restart();
    destination.bad(12, "peer-refused", &["mirror", "reverse", "vol0", "--yes"]);
}

#[test]
fn consent_is_for_the_mirror_that_it_names_and_for_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let (source, meant) = pair(dir.path());
    let other = Running::start(dir.path(), "other");
    other.good(&["mirror", "create", "vol0", &source.invite()]);
    let name = |mirror: &Running| status(mirror)["source_name"].as_str().unwrap().to_owned();
    // Of several the owner has to say which, and each is named.
    let asked = source.bad(2, "usage", &["mirror", "allow-reverse", "vol0"]);
    assert!(asked.contains(&name(&meant)) && asked.contains(&name(&other)), "{asked}");
    source.follow(&source.advice(2, &["mirror", "allow-reverse", "vol0"]), "allow-reverse");
    source.good(&["mirror", "allow-reverse", "vol0", "--off"]);
    source.bad(10, "not-found", &["mirror", "allow-reverse", "vol0", "--mirror", "nobody"]);
    let allowed = source.json(&["mirror", "allow-reverse", "vol0", "--mirror", &name(&meant)[..12]]);
    assert_eq!(allowed["mirror"], name(&meant));
    other.bad(12, "peer-refused", &["mirror", "reverse", "vol0", "--yes"]);
    write(&source, 0, 7, 4096);
    meant.good(&["mirror", "reverse", "vol0", "--yes"]);
    write(&meant, 0, 8, 4096);
}

#[test]
fn old_source_gets_its_role_back_after_a_failover_only_if_the_new_source_allows_it() {
    let dir = tempfile::tempdir().unwrap();
    let (source, destination) = pair(dir.path());
    // As planned, back and forth: the source that the mirror was made of needs no further consent.
    source.good(&["mirror", "allow-reverse", "vol0"]);
    destination.good(&["mirror", "reverse", "vol0", "--yes"]);
    source.good(&["mirror", "failback", "vol0"]);
    destination.good(&["mirror", "failover", "vol0", "--yes"]);
    write(&destination, 0, 9, 4096);
    poll("the old source hears of it", || {
        source.json(&["status"])["problems"].to_string().contains("was failed over to")
    });
    let failback = ["mirror", "failback", "vol0", "--discard-divergent", "--yes"];
    for _ in 0..2 {
        source.bad(12, "peer-refused", &failback);
        source.bad(12, "peer-refused", &["mirror", "reverse", "vol0", "--yes"]);
        write(&destination, 0, 10, 4096);
    }
    // Nor after a restart, and a consent of the other side does not count.
    destination.good(&["mirror", "allow-reverse", "vol0", "--for", "5m"]);
    destination.good(&["mirror", "allow-reverse", "vol0", "--off"]);
    destination.follow(&source.advice(12, &failback), "allow-reverse");
    source.good(&failback);
    assert_eq!(content(&source)[..4096], [10; 4096]);
    write(&source, 0, 11, 4096);
}

/// Commands for a mirror, on the side that takes writes.
const FOR_A_MIRROR: [&[&str]; 7] = [
    &["mirror", "update", "vol0"],
    &["mirror", "pause", "vol0"],
    &["mirror", "set", "vol0", "--every", "5m"],
    &["mirror", "verify", "vol0"],
    &["mirror", "delete", "vol0", "--yes"],
    &["mirror", "delete", "vol0", "-n"],
    &["mirror", "reverse", "vol0", "-n"],
];

#[test]
fn source_that_took_its_role_back_says_so_and_advises_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let (source, destination) = pair(dir.path());
    source.good(&["mirror", "allow-reverse", "vol0"]);
    destination.good(&["mirror", "reverse", "vol0", "--yes"]);
    // A successful change causes no problem, on either side and at any moment.
    for server in [&source, &destination] {
        assert_eq!(server.json(&["status"])["problems"], serde_json::json!([]));
    }
    source.good(&["mirror", "failback", "vol0"]);
    for server in [&source, &destination] {
        assert_eq!(server.json(&["status"])["problems"], serde_json::json!([]));
    }
    for command in FOR_A_MIRROR {
        let message = source.bad(13, "wrong-role", command);
        assert!(message.contains("`vol0` is the source here"), "{command:?}: {message}");
        let advice = source.advice(13, command);
        assert!(advice.contains("run the command on the server at"), "{command:?}: {advice}");
    }
    write(&source, 0, 9, 4096);
    // One that was failed over, without a follower yet, reports that.
    destination.good(&["mirror", "failover", "vol0", "--yes"]);
    for command in FOR_A_MIRROR {
        let message = destination.bad(13, "wrong-role", command);
        assert!(message.contains("was failed over"), "{command:?}: {message}");
    }
}

#[test]
fn dry_runs_are_refused_as_the_commands_are() {
    let dir = tempfile::tempdir().unwrap();
    let (source, destination) = pair(dir.path());
    source.good(&["snapshot", "create", "vol0@kept"]);
    source.good(&["snapshot", "hold", "vol0@kept"]);
    destination.good(&["mirror", "update", "vol0"]);
    source.good(&["clone", "create", "vol0@kept", "copy"]);
    let _connected = (source.disk("vol0/db"), source.disk("copy/db"));
    for (server, command) in [
        (&destination, &["lun", "delete", "vol0/db"][..]),
        (&source, &["lun", "delete", "vol0/db"]),
        (&source, &["clone", "delete", "copy"]),
        (&destination, &["volume", "delete", "vol0"]),
        (&destination, &["snapshot", "delete", "vol0@kept"]),
        (&destination, &["snapshot", "rollback", "vol0@kept"]),
        (&source, &["volume", "delete", "vol0"]),
        (&source, &["snapshot", "delete", "vol0@kept"]),
        (&source, &["mirror", "delete", "vol0"]),
        (&source, &["mirror", "reverse", "vol0"]),
    ] {
        let outcome = |end: &str| {
            let output = server.run(&[command, &["--json", end]].concat());
            (output.status.code(), String::from_utf8(output.stdout).unwrap())
        };
        let (real, dry) = (outcome("--yes"), outcome("-n"));
        assert_eq!(real, dry, "{command:?}");
        assert_ne!(real.0, Some(0), "{command:?}");
    }
    let message = source.bad(2, "usage", &["snapshot", "create", "vol0@mirror.x"]);
    assert!(message.contains("must not begin with `mirror.`"), "{message}");
}

#[test]
fn old_source_follows_no_address_that_its_owner_has_not_named() {
    let dir = tempfile::tempdir().unwrap();
    let mut source = Running::start(dir.path(), "source");
    source.stay();
    source.good(&["volume", "create", "vol0", "--size", "64M"]);
    source.good(&["lun", "create", "vol0/db", "--size", "4M"]);
    write(&source, 0, 1, 4096);
    // It announces an address on another machine than the one from which it connects.
    let elsewhere = ["--mirror", "127.0.0.1:0", "--advertise", "127.9.9.9:7420"];
    let destination = Running::start_with(dir.path(), "destination", &elsewhere);
    destination.good(&["mirror", "create", "vol0", &source.invite()]);
    source.good(&["mirror", "allow-reverse", "vol0"]);
    destination.good(&["mirror", "reverse", "vol0", "--yes"]);
    write(&destination, 0, 2, 4096);
    let problems = source.json(&["status"])["problems"].to_string();
    assert!(problems.contains("127.9.9.9:7420") && problems.contains("never seen it"), "{problems}");
    let advice = source.advice(12, &["mirror", "update", "vol0"]);
    assert!(advice.contains("cairn mirror resync vol0 --from 127.9.9.9:7420"), "{advice}");
    // Its owner names the address, and it follows from then on.
    let real = destination.json(&["status"])["mirror"].as_str().unwrap().to_owned();
    source.good(&["mirror", "resync", "vol0", "--from", &real]);
    assert_eq!(content(&source), content(&destination));
    source.good(&["mirror", "update", "vol0"]);
}

#[test]
fn resync_asks_which_of_several_failed_over_mirrors_is_meant() {
    let dir = tempfile::tempdir().unwrap();
    let (source, first) = pair(dir.path());
    let mut second = Running::start(dir.path(), "second");
    second.stay();
    let token = source.invite();
    second.good(&["mirror", "create", "vol0", &token]);
    let name = |mirror: &Running| status(mirror)["source_name"].as_str().unwrap().to_owned();
    let names = [name(&first), name(&second)];
    for (mirror, byte) in [(&first, 3), (&second, 4)] {
        mirror.good(&["mirror", "failover", "vol0", "--yes"]);
        write(mirror, 0, byte, 64 << 10);
    }
    poll("both failovers are told", || {
        let followers = source.json(&["status"])["followers"].clone();
        followers.as_array().unwrap().iter().all(|follower| !follower["departed"].is_null())
    });
    for asked in [
        &["mirror", "resync", "vol0"][..],
        &["mirror", "failback", "vol0"],
        &["mirror", "resync", "vol0", "-n"],
    ] {
        let message = source.bad(2, "usage", asked);
        assert!(names.iter().all(|name| message.contains(name)), "{message}");
    }
    source.bad(10, "not-found", &["mirror", "resync", "vol0", "--mirror", "nosuch"]);
    assert!(source.good(&["status"]).contains(&format!("--mirror {}", names[1])));
    source.good(&["mirror", "resync", "vol0", "--mirror", &names[1]]);
    assert_eq!(content(&source), content(&second));
    assert_ne!(content(&source), content(&first));
}

#[test]
fn source_does_not_give_its_role_away_under_a_device_that_stands_on_its_disk() {
    let dir = tempfile::tempdir().unwrap();
    let (source, destination) = pair(dir.path());
    let store = running::path(dir.path(), "store");
    let adopt = ["device", "adopt", "disk0", "--origin", "lun:vol0/db", "--history", &store];
    let adopt = [&adopt[..], &["--placement", "logging", "--granularity", "every-write"]].concat();
    let reverse = ["mirror", "reverse", "vol0", "--yes"];
    let adopted = |server: &Running| {
        poll("no session is left", || server.run(&adopt).status.success());
    };
    let released = |server: &Running| {
        poll("no session is left", || server.run(&["device", "release", "disk0", "--yes"]).status.success());
    };
    // Its owner has allowed that before the adoption.
    source.good(&["mirror", "allow-reverse", "vol0"]);
    adopted(&source);
    destination.bad(13, "wrong-role", &reverse);
    let mut disk = source.disk("disk0");
    disk.write(0, &[9; 4096]).unwrap();
    disk.flush().unwrap();
    assert_eq!(disk.read(0, 4096).unwrap(), [9; 4096]);
    disk.disconnect().unwrap();
    assert_eq!(source.json(&["volume", "show", "vol0"])["role"], "normal");
    released(&source);
    destination.good(&reverse);
    assert_eq!(content(&destination)[..4096], [9; 4096]);

    // The original source gets its role back on request, unless the device prevents it.
    std::fs::remove_file(&store).unwrap();
    poll("it follows", || source.run(&["mirror", "update", "vol0"]).status.success());
    adopted(&destination);
    source.bad(13, "wrong-role", &reverse);
    assert_eq!(destination.json(&["volume", "show", "vol0"])["role"], "normal");
    released(&destination);
    source.good(&reverse);
    assert_eq!(content(&source)[..4096], [9; 4096]);
}
