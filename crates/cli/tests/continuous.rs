//! Mirrors that follow their source continuously, between two real servers: without a command, over
//! kills, aborts and changes of role.

mod running;

use std::path::Path;
use std::time::{Duration, Instant};

use running::vol0::{content, status, write};
use running::{PATIENCE, Running};
use serde_json::Value;

fn poll(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Without any request, the destination shows the source's content after a while.
fn follows(source: &Running, destination: &Running, what: &str) {
    let there = content(source);
    poll(what, || content(destination) == there);
}

fn is(server: &Running, state: &str) -> bool {
    status(server)["state"] == state
}

fn pair(dir: &Path) -> (Running, Running) {
    let mut source = Running::start(dir, "source");
    source.stay();
    source.good(&["volume", "create", "vol0", "--size", "64M"]);
    source.good(&["lun", "create", "vol0/db", "--size", "4M"]);
    let mut destination = Running::start(dir, "destination");
    destination.stay();
    write(&source, 0, 1, 256 << 10);
    let token = source.invite();
    destination.good(&["mirror", "create", "vol0", &token, "--continuous"]);
    (source, destination)
}

#[test]
fn continuous_mirror_follows_by_itself_over_kills_aborts_and_pauses() {
    let dir = tempfile::tempdir().unwrap();
    let (mut source, mut destination) = pair(dir.path());
    poll("it connects", || is(&destination, "continuous"));
    for round in 0..3 {
        write(&source, 1 << 20, 10 + round, 64 << 10);
        follows(&source, &destination, "a write follows");
    }
    let shown = status(&destination);
    assert_eq!((&shown["continuous"], &shown["rpo_ms"]), (&true.into(), &10_000.into()), "{shown}");
    assert!(shown["session"]["steps"].as_u64().unwrap() >= 3, "{shown}");
    assert_eq!(shown["session"]["read_steps"], 0, "the source had all of it in memory: {shown}");
    let text = destination.good(&["mirror", "status", "vol0"]);
    assert!(text.contains("every     continuous") && text.contains("session"), "{text}");
    assert!(destination.good(&["mirror", "check", "vol0"]).contains("OK"));
    poll("the source knows", || {
        let follower = source.json(&["status"])["followers"][0].clone();
        follower["continuous"] == true && follower["lag_ms"] == 0
    });
    // A snapshot follows as well, and at most two are held for the mirror.
    source.good(&["snapshot", "create", "vol0@daily"]);
    poll("a snapshot follows", || destination.good(&["snapshot", "list", "vol0"]).contains("@daily"));
    let held = source.good(&["snapshot", "list", "vol0"]).matches("@mirror.").count();
    assert!(held <= 2, "{held} snapshots are held");

    source.kill();
    poll("a source that is gone shows", || is(&destination, "failing"));
    source.restart();
    write(&source, 2 << 20, 20, 64 << 10);
    follows(&source, &destination, "it comes back after a kill of the source");
    destination.kill();
    write(&source, 2 << 20, 21, 64 << 10);
    destination.restart();
    follows(&source, &destination, "it comes back after a kill of its own server");
    assert_eq!(destination.json(&["mirror", "abort", "vol0"])["was_running"], true);
    write(&source, 2 << 20, 22, 64 << 10);
    follows(&source, &destination, "it comes back after an abort");
    // An update on request is done at once, and the session continues.
    write(&source, 2 << 20, 23, 64 << 10);
    destination.good(&["mirror", "update", "vol0"]);
    assert_eq!(content(&destination), content(&source));
    destination.good(&["mirror", "pause", "vol0"]);
    assert!(is(&destination, "paused"));
    let before = content(&destination);
    write(&source, 3 << 20, 24, 64 << 10);
    destination.good(&["mirror", "resume", "vol0"]);
    follows(&source, &destination, "it goes on after a pause");
    assert_ne!(content(&destination), before);

    let both = destination.run(&["mirror", "set", "vol0", "--continuous", "--every", "1h"]);
    assert_eq!(both.status.code(), Some(2), "one or the other");
    let set = destination.json(&["mirror", "set", "vol0", "--every", "6h"]);
    assert_eq!((&set["continuous"], &set["rpo_ms"]), (&false.into(), &Value::Null), "{set}");
    poll("the session ends", || is(&destination, "mirrored"));
    destination.good(&["mirror", "set", "vol0", "--continuous"]);
    write(&source, 3 << 20, 25, 64 << 10);
    follows(&source, &destination, "it follows again");
    for server in [&source, &destination] {
        assert!(server.good(&["volume", "check", "vol0"]).contains("sound"));
    }
}

#[test]
fn continuous_mirror_keeps_following_over_changes_of_role() {
    let dir = tempfile::tempdir().unwrap();
    let (source, destination) = pair(dir.path());
    poll("it connects", || is(&destination, "continuous"));
    let (mut from, mut to) = (&source, &destination);
    for round in 0..4 {
        write(from, 1 << 20, 30 + round, 64 << 10);
        from.good(&["mirror", "allow-reverse", "vol0"]);
        to.good(&["mirror", "reverse", "vol0", "--yes"]);
        (from, to) = (to, from);
        write(from, 2 << 20, 40 + round, 64 << 10);
        follows(from, to, "the other side follows after a reverse");
        poll("continuously", || is(to, "continuous"));
    }
    // A disaster: the destination takes over with its visible image, and the old source follows it
    // afterwards.
    write(&source, 0, 50, 64 << 10);
    follows(&source, &destination, "before the disaster");
    destination.good(&["mirror", "failover", "vol0", "--yes"]);
    assert!(is(&destination, "failed-over"));
    write(&destination, 0, 51, 64 << 10);
    poll("the old source hears of it", || {
        source.json(&["status"])["problems"].to_string().contains("was failed over to")
    });
    destination.good(&["mirror", "allow-reverse", "vol0"]);
    source.good(&["mirror", "failback", "vol0", "--discard-divergent", "--yes"]);
    assert_eq!(content(&source)[0], 51);
    write(&source, 0, 52, 64 << 10);
    follows(&source, &destination, "after a failback");
    poll("continuously", || is(&destination, "continuous"));
}

#[test]
fn continuous_mirror_behind_a_slow_link_is_behind_and_catches_up() {
    let dir = tempfile::tempdir().unwrap();
    let (source, destination) = pair(dir.path());
    poll("it connects", || is(&destination, "continuous"));
    destination.good(&["mirror", "set", "vol0", "--limit", "64K", "--rpo", "3s", "--compress", "never"]);
    let mut rng = cairn_base::Rng::new(5);
    let mut bytes = vec![0; 1 << 20];
    rng.fill(&mut bytes);
    let mut disk = source.disk("vol0/db");
    disk.write(1 << 20, &bytes).unwrap();
    disk.flush().unwrap();
    poll("it says that it is late", || {
        let shown = status(&destination);
        shown["over_rpo"] == true && shown["check"] == 2 && shown["remedy"].is_string()
    });
    let checked = destination.run(&["mirror", "check", "vol0"]);
    assert_eq!(checked.status.code(), Some(2));
    destination.good(&["mirror", "set", "vol0", "--limit", "off"]);
    follows(&source, &destination, "it catches up");
    poll("all is well", || status(&destination)["check"] == 0);
}

#[test]
fn who_ends_an_update_does_not_wait_for_a_mirror_that_somebody_has_opened_anew() {
    let dir = tempfile::tempdir().unwrap();
    let (_source, destination) = pair(dir.path());
    let history = dir.path().join("history").to_str().unwrap().to_owned();
    let until = Instant::now() + Duration::from_secs(8);
    let again = |commands: &[&[&str]]| {
        while Instant::now() < until {
            for command in commands {
                let output = destination.run(command);
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                assert!(!said.contains("does not end"), "{command:?}: {said}");
            }
        }
    };
    let enable = ["history", "enable", "vol0", "--history", &history, "--yes"];
    std::thread::scope(|scope| {
        scope.spawn(|| again(&[&enable, &["history", "disable", "vol0", "--yes"]]));
        scope.spawn(|| again(&[&["mirror", "abort", "vol0"]]));
        scope.spawn(|| again(&[&["mirror", "abort", "vol0"]]));
        scope.spawn(|| again(&[&["mirror", "pause", "vol0"], &["mirror", "resume", "vol0"]]));
    });
    // Later commands affect the present session.
    destination.good(&["mirror", "pause", "vol0"]);
    assert!(is(&destination, "paused"));
    destination.good(&["mirror", "resume", "vol0"]);
    poll("it follows again", || is(&destination, "continuous"));
}
