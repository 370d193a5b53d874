//! Groups of volumes: one instant for all, mirrored, and recovered to.

mod running;

use std::time::{Duration, Instant};

use running::{PATIENCE, Running};
use serde_json::Value;

const VOLUMES: [&str; 2] = ["data", "logs"];

fn write(server: &Running, volume: &str, byte: u8) {
    let mut disk = server.disk(&format!("{volume}/db"));
    disk.write(0, &[byte; 8192]).unwrap();
    disk.flush().unwrap();
}

fn first(server: &Running, export: &str) -> u8 {
    server.disk(export).read(0, 4096).unwrap()[0]
}

fn poll(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn source(dir: &std::path::Path) -> Running {
    let source = Running::start(dir, "source");
    for volume in VOLUMES {
        source.good(&["volume", "create", volume, "--size", "64M"]);
        source.good(&["lun", "create", &format!("{volume}/db"), "--size", "1M"]);
        write(&source, volume, 1);
    }
    source.good(&["group", "create", "bank", "data", "logs"]);
    source
}

fn mirrored(source: &Running, destination: &Running) {
    for volume in VOLUMES {
        let token = source.json(&["peer", "invite"])["token"].as_str().unwrap().to_owned();
        destination.good(&["mirror", "create", volume, &token]);
    }
    destination.good(&["group", "create", "bank", "data", "logs"]);
}

#[test]
fn group_is_snapshotted_mirrored_and_failed_over_to_one_instant() {
    let dir = tempfile::tempdir().unwrap();
    let mut source = source(dir.path());
    let mut destination = Running::start(dir.path(), "destination");
    mirrored(&source, &destination);
    destination.bad(13, "diverged", &["group", "failover", "bank", "--yes"]);
    for volume in VOLUMES {
        write(&source, volume, 2);
    }
    let made = source.json(&["snapshot", "create", "--group", "bank"])["name"].as_str().unwrap().to_owned();
    assert_eq!(first(&source, &format!("data@{made}/db")), 2);
    // The mirrors go at their own pace: one is two snapshots ahead of the other.
    write(&source, "data", 3);
    source.good(&["snapshot", "create", "--group", "bank"]);
    write(&source, "data", 4);
    destination.good(&["mirror", "update", "data"]);
    let shown = destination.json(&["group", "show", "bank"]);
    assert_eq!(shown["common"], Value::Null, "logs has none of them: {shown}");
    assert_eq!(shown["snapshots"][0]["missing"][0], "logs", "{shown}");
    destination.good(&["mirror", "update", "logs"]);
    let shown = destination.json(&["group", "show", "bank"]);
    let common = shown["common"]["name"].as_str().unwrap().to_owned();
    assert_ne!(common, made, "the newer of the two: {shown}");
    assert!(shown["spread_ms"].as_u64().is_some() && destination.good(&["group", "list"]).contains("bank"));
    // One of the two gets ahead once more.
    write(&source, "data", 5);
    write(&source, "logs", 5);
    source.good(&["snapshot", "create", "--group", "bank"]);
    destination.good(&["mirror", "update", "logs"]);
    source.kill();
    let would = destination.json(&["group", "failover", "bank", "-n"]);
    assert_eq!((&would["snapshot"], &would["dry_run"]), (&common.clone().into(), &true.into()));
    assert!(would["lost"][0]["undone_bytes"].as_u64().unwrap() > 0, "data shows 4, of after it: {would}");
    let done = destination.good(&["group", "failover", "bank", "--yes"]);
    assert!(done.contains(&common), "{done}");
    assert_eq!((first(&destination, "data/db"), first(&destination, "logs/db")), (3, 2), "one instant");
    for volume in VOLUMES {
        let kept = destination.good(&["snapshot", "list", volume]);
        assert!(kept.contains("@before-rollback-"), "what was beyond it is kept: {kept}");
        write(&destination, volume, 9);
    }
    destination.bad(13, "wrong-role", &["group", "failover", "bank", "--yes"]);
    destination.kill();
    destination.restart();
    let shown = destination.json(&["group", "show", "bank"]);
    assert_eq!(shown["failover"]["left"], serde_json::json!([]), "{shown}");
    assert_eq!(destination.json(&["status"])["problems"].to_string().matches("bank").count(), 0);
    // From here on it makes its own.
    destination.good(&["snapshot", "create", "--group", "bank"]);
    for volume in VOLUMES {
        assert!(destination.good(&["volume", "check", volume]).contains("sound"));
    }
}

#[test]
fn group_has_a_schedule_hooks_and_retention_and_refuses_nonsense() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    source.bad(21, "taken", &["group", "create", "bank", "data", "logs"]);
    source.bad(10, "not-found", &["group", "create", "other", "data", "nothing"]);
    source.bad(2, "usage", &["group", "create", "other", "data", "data"]);
    source.bad(10, "not-found", &["snapshot", "create", "--group", "nothing"]);
    let told = dir.path().join("hooks");
    for volume in VOLUMES {
        let run = |what: &str| format!("echo {what} $CAIRN_VOLUME >> {}", told.display());
        source.good(&["volume", "hooks", volume, "--before", &run("before"), "--after", &run("after")]);
    }
    source.good(&["snapshot", "create", "--group", "bank"]);
    let ran = std::fs::read_to_string(&told).unwrap();
    let ran: Vec<&str> = ran.lines().collect();
    assert_eq!(ran, ["before data", "before logs", "after logs", "after data"], "all are quiesced for it");
    // A hook that fails leaves none of the snapshots.
    source.good(&["volume", "hooks", "logs", "--before", "false"]);
    source.bad(1, "failed", &["snapshot", "create", "--group", "bank"]);
    let snapshots = |server: &Running| server.json(&["group", "show", "bank"])["snapshots"].clone();
    assert_eq!(snapshots(&source).as_array().unwrap().len(), 1);
    for volume in VOLUMES {
        source.good(&["volume", "hooks", volume, "--before", "", "--after", ""]);
    }
    source.good(&["group", "set", "bank", "--every", "1s", "--keep-last", "2"]);
    let before = snapshots(&source)[0]["name"].clone();
    poll("snapshots are made, and the oldest go", || {
        let now = snapshots(&source);
        let now = now.as_array().unwrap();
        now.len() == 2 && now.iter().all(|snapshot| snapshot["name"] != before)
    });
    let shown = source.json(&["group", "set", "bank", "--keep-last", "2"]);
    assert_eq!((&shown["next_ms"], &shown["problem"]), (&Value::Null, &Value::Null), "{shown}");
    assert!(shown["snapshots"].as_array().unwrap().iter().all(|s| s["missing"] == serde_json::json!([])));
    source.good(&["group", "delete", "bank"]);
    source.bad(10, "not-found", &["group", "show", "bank"]);
    for volume in VOLUMES {
        assert!(source.good(&["snapshot", "list", volume]).contains("@group.bank."), "they stay");
        assert!(source.good(&["volume", "check", volume]).contains("sound"));
    }
}

#[test]
fn group_that_follows_again_is_failed_over_to_a_newer_instant() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    let destination = Running::start(dir.path(), "destination");
    mirrored(&source, &destination);
    let bring = |byte: u8| {
        VOLUMES.iter().for_each(|volume| write(&source, volume, byte));
        let made =
            source.json(&["snapshot", "create", "--group", "bank"])["name"].as_str().unwrap().to_owned();
        for volume in VOLUMES {
            destination.good(&["mirror", "update", volume]);
        }
        made
    };
    bring(2);
    destination.good(&["group", "failover", "bank", "--yes"]);
    destination.bad(13, "wrong-role", &["group", "failover", "bank", "--yes"]);
    for volume in VOLUMES {
        destination.good(&["mirror", "resync", volume, "--discard-divergent", "--yes"]);
    }
    assert_eq!(destination.json(&["group", "show", "bank"])["failover"], Value::Null);
    let newer = bring(3);
    let done = destination.good(&["group", "failover", "bank", "--yes"]);
    assert!(done.contains(&newer), "{done}");
    for volume in VOLUMES {
        assert_eq!(first(&destination, &format!("{volume}/db")), 3);
    }
}
