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
        let token = source.invite();
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
    // Another group of the same volumes: in one order, or two at once would wait for each other.
    std::fs::remove_file(&told).unwrap();
    source.good(&["group", "create", "turned", "logs", "data"]);
    source.good(&["snapshot", "create", "--group", "turned"]);
    let again = std::fs::read_to_string(&told).unwrap();
    assert_eq!(again.lines().collect::<Vec<_>>(), ran);
    source.good(&["group", "delete", "turned"]);
    // After a failed hook none of the snapshots exists.
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
fn snapshot_that_not_all_volumes_of_a_group_have_takes_no_place_of_one_that_all_have() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    let whole = snapshot(&source);
    let partial = snapshot(&source);
    // As a kill between the two volumes leaves it.
    source.good(&["snapshot", "delete", &format!("logs@{partial}"), "--yes"]);
    for rule in ["--keep-last", "--keep-daily"] {
        let shown = source.json(&["group", "set", "bank", "--every", "1h", rule, "1", "-n"]);
        assert_eq!(shown["snapshots"][1]["missing"], serde_json::json!(["logs"]), "{shown}");
        assert_eq!(shown["deletes"], serde_json::json!([]), "{whole} is all that there is to go back to");
    }
    // Both are deleted when there is a newer one that all have.
    let newer = snapshot(&source);
    let shown = source.json(&["group", "set", "bank", "--every", "1h", "--keep-last", "1", "-n"]);
    assert_eq!(shown["deletes"], serde_json::json!([whole, partial]), "{newer} stays");
}

/// Without it all snapshots of the group look as if it lacked them.
#[test]
fn snapshots_of_a_group_stay_while_a_volume_of_it_is_not_open() {
    let dir = tempfile::tempdir().unwrap();
    let mut source = source(dir.path());
    let whole = snapshot(&source);
    for _ in 0..2 {
        let partial = snapshot(&source);
        // As a kill between the two volumes leaves it.
        source.good(&["snapshot", "delete", &format!("logs@{partial}"), "--yes"]);
    }
    source.good(&["group", "set", "bank", "--every", "1h", "--keep-last", "1", "--yes"]);
    let deletes = |server: &Running| server.json(&["group", "show", "bank"])["deletes"].to_string();
    let before = deletes(&source);
    assert!(!before.contains(&whole), "it is all that there is to go back to: {before}");
    assert_eq!(source.terminate(), 0);
    let file = source.data.join("volumes/logs/volume.img");
    let away = file.with_extension("away");
    std::fs::rename(&file, &away).unwrap();
    source.restart();
    assert_eq!(deletes(&source), "[]", "{whole} is all that there is to go back to");
    std::fs::rename(&away, &file).unwrap();
    poll("it is opened", || source.run(&["lun", "list", "logs"]).status.success());
    assert_eq!(deletes(&source), before);
}

#[test]
fn rules_that_are_set_while_a_group_makes_a_snapshot_hold_for_what_it_deletes() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    let made = [snapshot(&source), snapshot(&source), snapshot(&source)];
    let (begun, go) = (dir.path().join("begun"), dir.path().join("go"));
    let before = format!("touch {}; while ! [ -e {} ]; do sleep 0.02; done", begun.display(), go.display());
    source.good(&["volume", "hooks", "data", "--before", &before, "--timeout", "5m"]);
    source.good(&["group", "set", "bank", "--every", "1s", "--keep-last", "1", "--yes"]);
    poll("a run is under way", || begun.exists());
    source.good(&["group", "set", "bank", "--every", "1s", "--keep-last", "100"]);
    std::fs::write(&go, "").unwrap();
    poll("the run is over", || source.json(&["group", "show", "bank"])["last_ms"].is_u64());
    let shown = source.json(&["group", "show", "bank"]);
    for made in made {
        assert!(shown["snapshots"].to_string().contains(&made), "{made} was to stay: {shown}");
    }
}

#[test]
fn schedule_of_a_group_whose_run_cannot_be_noted_makes_no_snapshot_each_second() {
    let dir = tempfile::tempdir().unwrap();
    let mut source = source(dir.path());
    source.good(&["group", "set", "bank", "--every", "1h", "--keep-last", "3"]);
    assert_eq!(source.terminate(), 0);
    // It was set two hours ago, and the new file cannot be written, as on a full disk.
    let path = source.data.join("groups.json");
    let mut document: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    document["groups"][0]["from_ms"] =
        (document["groups"][0]["from_ms"].as_u64().unwrap() - 2 * 3_600_000).into();
    std::fs::write(&path, document.to_string()).unwrap();
    std::fs::create_dir(source.data.join("groups.new")).unwrap();
    source.restart();
    let made = || source.json(&["group", "show", "bank"])["snapshots"].as_array().unwrap().len();
    poll("it is due", || made() > 0);
    // The same thread checks for due runs, once a second.
    source.good(&["snapshot", "schedule", "set", "data", "often", "--every", "1s"]);
    poll("it has looked some times", || {
        source.good(&["snapshot", "list", "data"]).matches("@often.").count() >= 5
    });
    assert_eq!(made(), 1, "those of the hours before would go for snapshots of the last seconds");
    std::fs::remove_dir(source.data.join("groups.new")).unwrap();
    source.good(&["snapshot", "create", "--group", "bank"]);
    assert_eq!(made(), 2);
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

fn snapshot(source: &Running) -> String {
    source.json(&["snapshot", "create", "--group", "bank"])["name"].as_str().unwrap().to_owned()
}

/// Writes to both, makes a snapshot of the group, and updates both mirrors.
fn bring(source: &Running, destination: &Running, byte: u8) -> String {
    VOLUMES.iter().for_each(|volume| write(source, volume, byte));
    let made = snapshot(source);
    for volume in VOLUMES {
        destination.good(&["mirror", "update", volume]);
    }
    made
}

fn shown(destination: &Running) -> Value {
    destination.json(&["group", "show", "bank"])["shown"]["name"].clone()
}

fn problems(server: &Running) -> String {
    server.json(&["status"])["problems"].to_string()
}

#[test]
fn mirrors_of_a_group_show_one_instant_and_move_on_together() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    let mut destination = Running::start(dir.path(), "destination");
    mirrored(&source, &destination);
    // Each has an image, but they need not be of one instant.
    assert!(!destination.has_export("data/db") && !destination.has_export("logs/db"));
    assert!(problems(&destination).contains("show nothing"), "{}", problems(&destination));
    let first_made = bring(&source, &destination, 2);
    poll("what all have is shown", || shown(&destination) == first_made.as_str());
    assert_eq!(problems(&destination), "[]");
    assert_eq!((first(&destination, "data/db"), first(&destination, "logs/db")), (2, 2));
    // One gets ahead, with another LUN in it: that is not visible yet.
    VOLUMES.iter().for_each(|volume| write(&source, volume, 3));
    source.good(&["lun", "create", "data/later", "--size", "1M"]);
    let second_made = snapshot(&source);
    write(&source, "data", 4);
    destination.good(&["mirror", "update", "data"]);
    let group = destination.json(&["group", "show", "bank"]);
    assert_eq!(group["shown"]["name"], first_made.as_str(), "{group}");
    let held: Vec<u64> =
        group["members"].as_array().unwrap().iter().map(|m| m["beyond_bytes"].as_u64().unwrap()).collect();
    assert!(held[0] > 0 && held[1] == 0, "{group}");
    assert_eq!((first(&destination, "data/db"), first(&destination, "logs/db")), (2, 2));
    assert!(!destination.has_export("data/later"));
    let exports = destination.json(&["status"])["exports"].to_string();
    assert!(exports.contains("data/db") && !exports.contains("data/later"), "{exports}");
    let drilled = destination.json(&["mirror", "drill", "data", "--probe", "true"]);
    assert_eq!(drilled["snapshot"], format!("data@{first_made}"), "{drilled}");
    let file = dir.path().join("data.image");
    let dumped = destination.json(&["image", "dump", "data", "-0", "--to", file.to_str().unwrap()]);
    assert!(dumped.to_string().contains(&first_made), "{dumped}");
    let open = destination.disk("logs/db");
    destination.good(&["mirror", "update", "logs"]);
    poll("both have the second", || shown(&destination) == second_made.as_str());
    assert_eq!((first(&destination, "data/db"), first(&destination, "logs/db")), (3, 3));
    assert!(destination.has_export("data/later"));
    let mut open = open;
    assert_eq!(open.read(0, 4096).unwrap()[0], 2, "who was connected stays where he is");
    destination.kill();
    destination.restart();
    assert_eq!((first(&destination, "data/db"), first(&destination, "logs/db")), (3, 3));
    // Another group can't decide that as well, and one of them alone does not change its role.
    destination.bad(21, "taken", &["group", "create", "other", "data", "logs"]);
    destination.bad(13, "wrong-role", &["mirror", "failover", "data", "--yes"]);
    destination.good(&["group", "apart", "bank"]);
    assert_eq!((first(&destination, "data/db"), first(&destination, "logs/db")), (4, 3));
    destination.good(&["group", "together", "bank"]);
    assert_eq!((first(&destination, "data/db"), first(&destination, "logs/db")), (3, 3));
}

#[test]
fn clients_that_open_mirrors_of_a_group_one_after_the_other_see_one_instant() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    let destination = Running::start(dir.path(), "destination");
    mirrored(&source, &destination);
    let before = bring(&source, &destination, 2);
    poll("what all have is shown", || shown(&destination) == before.as_str());
    VOLUMES.iter().for_each(|volume| write(&source, volume, 3));
    let after = snapshot(&source);
    destination.good(&["mirror", "update", "data"]);
    let began = Instant::now();
    let data = first(&destination, "data/db");
    destination.good(&["mirror", "update", "logs"]);
    let logs = first(&destination, "logs/db");
    if began.elapsed() < Duration::from_millis(2500) {
        assert_eq!((data, logs), (2, 2), "they are of one client");
    }
    poll("it moves on then", || shown(&destination) == after.as_str());
}

#[test]
fn what_a_group_shows_stays_though_its_source_has_deleted_it() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    let mut destination = Running::start(dir.path(), "destination");
    mirrored(&source, &destination);
    let before = bring(&source, &destination, 2);
    poll("what all have is shown", || shown(&destination) == before.as_str());
    VOLUMES.iter().for_each(|volume| write(&source, volume, 3));
    VOLUMES.iter().for_each(|volume| {
        source.good(&["snapshot", "delete", &format!("{volume}@{before}"), "--yes"]);
    });
    // With nothing newer of the group in it, an image that lacks it is not taken.
    let told = destination.bad(13, "diverged", &["mirror", "update", "data"]);
    assert!(told.contains(&before), "{told}");
    assert!(destination.good(&["snapshot", "list", "data"]).contains(&before));
    let after = snapshot(&source);
    // With it the update succeeds; the visible snapshot is held until the other one has it too.
    destination.good(&["mirror", "update", "data"]);
    assert!(!destination.good(&["snapshot", "list", "data"]).contains(&before));
    let group = destination.json(&["group", "show", "bank"]);
    assert_eq!(group["shown"]["name"], before.as_str(), "{group}");
    assert_eq!(group["shown"]["missing"], serde_json::json!(["data"]), "{group}");
    assert!(problems(&destination).contains("in memory only"), "{}", problems(&destination));
    // Its blocks are not reused for new data.
    for byte in 10..14 {
        write(&source, "data", byte);
        destination.good(&["mirror", "update", "data"]);
    }
    assert_eq!((first(&destination, "data/db"), first(&destination, "logs/db")), (2, 2));
    // A repeated command does not release it either.
    destination.good(&["group", "together", "bank"]);
    assert_eq!(shown(&destination), before.as_str());
    assert_eq!((first(&destination, "data/db"), first(&destination, "logs/db")), (2, 2));
    // The state in memory is gone: no image is shown, and none is mixed.
    destination.kill();
    destination.restart();
    assert!(!destination.has_export("data/db") && !destination.has_export("logs/db"));
    assert!(problems(&destination).contains("show nothing"), "{}", problems(&destination));
    destination.good(&["mirror", "update", "logs"]);
    poll("both have the second", || shown(&destination) == after.as_str());
    assert_eq!((first(&destination, "data/db"), first(&destination, "logs/db")), (3, 3));
    for volume in VOLUMES {
        assert!(destination.good(&["volume", "check", volume]).contains("sound"));
    }
}

#[test]
fn source_keeps_the_snapshot_that_its_mirrors_have_in_common() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    let destination = Running::start(dir.path(), "destination");
    mirrored(&source, &destination);
    let common = bring(&source, &destination, 2);
    destination.good(&["mirror", "update", "data"]);
    destination.good(&["mirror", "update", "logs"]);
    // The deletions are reported first: of three the newest stays, and the one that the mirrors
    // have in common.
    snapshot(&source);
    snapshot(&source);
    let one = ["group", "set", "bank", "--every", "1s", "--keep-last", "1"];
    let would = source.json(&[&one[..], &["--dry-run"]].concat());
    assert_eq!(would["deletes"].as_array().unwrap().len(), 1, "{would}");
    let said = source.bad(2, "usage", &one);
    assert!(said.contains("deletes 1 snapshots"), "{said}");
    assert_eq!(source.json(&["group", "show", "bank"])["every_ms"], Value::Null, "nothing was set");
    source.good(&[&one[..], &["--yes"]].concat());
    let names = || -> Vec<String> {
        let group = source.json(&["group", "show", "bank"]);
        let snapshots = group["snapshots"].as_array().unwrap().iter();
        snapshots.map(|snapshot| snapshot["name"].as_str().unwrap().to_owned()).collect()
    };
    let mut seen = Vec::new();
    poll("snapshots come and go", || {
        // One of the two mirrors advances; the other is cut off.
        write(&source, "data", 5);
        destination.good(&["mirror", "update", "data"]);
        let newest = names().pop().unwrap();
        if seen.last() != Some(&newest) {
            seen.push(newest);
        }
        seen.len() > 4
    });
    let now = names();
    assert!(now.contains(&common) && now.len() <= 3, "{now:?}");
    let group = source.json(&["group", "show", "bank"]);
    assert_eq!(group["snapshots"][0]["kept_for"].as_array().unwrap().len(), 1, "{group}");
    assert!(group["members"][0]["beyond_bytes"].as_u64().unwrap() > 0, "{group}");
    assert_eq!(shown(&destination), common.as_str());
    assert_eq!(first(&destination, "data/db"), 2);
    // Once both have something newer, it goes.
    poll("what nobody shows any more goes", || {
        VOLUMES.iter().for_each(|volume| {
            destination.good(&["mirror", "update", volume]);
        });
        !names().contains(&common)
    });
    // A moment later, as a client has just opened one of them.
    poll("the mirrors show something newer", || {
        let shown = shown(&destination);
        shown != common.as_str() && shown != Value::Null
    });
}

#[test]
fn group_whose_failover_was_cut_off_shows_one_instant_until_it_is_over() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    let mut destination = Running::start(dir.path(), "destination");
    mirrored(&source, &destination);
    let common = bring(&source, &destination, 2);
    write(&source, "data", 3);
    destination.good(&["mirror", "update", "data"]);
    // The state after a kill when one volume is writable, and not yet rolled back to the common
    // instant.
    destination.good(&["group", "apart", "bank"]);
    destination.good(&["mirror", "failover", "data", "--yes"]);
    assert_eq!(first(&destination, "data/db"), 3);
    destination.kill();
    let path = destination.data.join("groups.json");
    let mut document: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    document["groups"][0]["failover"] =
        serde_json::json!({ "snapshot": common, "at_ms": 1, "done": [], "reverse": false });
    std::fs::write(&path, document.to_string()).unwrap();
    destination.restart();
    for volume in VOLUMES {
        let mut disk = destination.disk(&format!("{volume}/db"));
        assert_eq!(disk.read(0, 4096).unwrap()[0], 2, "{volume} shows the instant that all are brought to");
        let refused = disk.write(0, &[7; 4096]).and_then(|()| disk.flush());
        assert!(refused.is_err(), "what is written now would be rolled back");
    }
    assert!(problems(&destination).contains("cut off"), "{}", problems(&destination));
    destination.bad(13, "wrong-role", &["snapshot", "create", "--group", "bank"]);
    destination.bad(13, "wrong-role", &["mirror", "failover", "logs", "--yes"]);
    // Without it they would have no common snapshot any more.
    let needed = format!("data@{common}");
    destination.bad(13, "wrong-role", &["snapshot", "delete", &needed, "--yes"]);
    destination.bad(13, "wrong-role", &["snapshot", "rename", &needed, "mine"]);
    // Nor can one of them be rolled back to another instant than the others.
    destination.bad(13, "wrong-role", &["snapshot", "rollback", &needed, "--yes"]);
    // An image without that instant does not come.
    for volume in VOLUMES {
        source.good(&["snapshot", "delete", &format!("{volume}@{common}"), "--yes"]);
    }
    snapshot(&source);
    destination.bad(13, "diverged", &["mirror", "update", "logs"]);
    destination.good(&["group", "failover", "bank", "--yes"]);
    for volume in VOLUMES {
        assert_eq!(first(&destination, &format!("{volume}/db")), 2);
        write(&destination, volume, 9);
    }
    assert_eq!(destination.json(&["group", "show", "bank"])["failover"]["left"], serde_json::json!([]));
}

#[test]
fn group_of_which_a_volume_was_made_anew_says_that_it_shows_no_one_instant() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    let destination = Running::start(dir.path(), "destination");
    mirrored(&source, &destination);
    bring(&source, &destination, 2);
    let says = || problems(&destination).contains("no one instant: data follow a source");
    destination.good(&["mirror", "delete", "logs", "--yes"]);
    assert!(!says(), "what is not there is told as that");
    destination.good(&["volume", "create", "logs", "--size", "64M"]);
    assert!(says(), "{}", problems(&destination));
    destination.good(&["volume", "delete", "logs", "--yes"]);
    destination.good(&["mirror", "create", "logs", &source.invite()]);
    assert!(!says(), "{}", problems(&destination));
}

#[test]
fn group_with_a_volume_that_is_not_open_is_not_failed_over_in_part() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    let mut destination = Running::start(dir.path(), "destination");
    mirrored(&source, &destination);
    bring(&source, &destination, 2);
    destination.terminate();
    let file = destination.data.join("volumes/logs/volume.img");
    let away = file.with_extension("away");
    std::fs::rename(&file, &away).unwrap();
    destination.restart();
    let refused = destination.run(&["group", "failover", "bank", "--yes"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("`logs` is not open"), "{said}");
    // It would be of another instant than the other one once that is back.
    destination.bad(13, "wrong-role", &["mirror", "failover", "data", "--yes"]);
    std::fs::rename(&away, &file).unwrap();
    poll("it is opened", || destination.run(&["lun", "list", "logs"]).status.success());
    destination.good(&["group", "failover", "bank", "--yes"]);
}

/// Has `groups.json` say that a failover was begun, and which volumes are done; as a kill leaves
/// it.
fn failover_cut_off(destination: &mut Running, snapshot: &str, done: &[&str]) {
    destination.kill();
    let path = destination.data.join("groups.json");
    let mut document: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    document["groups"][0]["failover"] =
        serde_json::json!({ "snapshot": snapshot, "at_ms": 1, "done": done, "reverse": false });
    std::fs::write(&path, document.to_string()).unwrap();
    destination.restart();
}

#[test]
fn failover_of_a_group_that_changed_nothing_is_forgotten_and_one_that_goes_on_leaves_what_is_done() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    let mut destination = Running::start(dir.path(), "destination");
    mirrored(&source, &destination);
    let common = bring(&source, &destination, 2);
    failover_cut_off(&mut destination, &common, &[]);
    // The source is back, and everything resumes. Much later one of them becomes writable.
    let newer = bring(&source, &destination, 3);
    destination.good(&["group", "apart", "bank"]);
    destination.good(&["mirror", "failover", "data", "--yes"]);
    assert_eq!(first(&destination, "data/db"), 3, "it shows what it was failed over with");
    write(&destination, "data", 9);
    destination.good(&["mirror", "failover", "logs", "--yes"]);
    failover_cut_off(&mut destination, &newer, &["data"]);
    destination.good(&["group", "failover", "bank", "--yes"]);
    assert_eq!((first(&destination, "data/db"), first(&destination, "logs/db")), (9, 3), "data was done");
}

#[test]
fn mirrors_of_a_group_move_on_though_the_clock_of_their_source_was_put_back() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    let destination = Running::start(dir.path(), "destination");
    mirrored(&source, &destination);
    // A name from a source whose clock is far ahead.
    let ahead = "group.bank.2099-01-01T00-00-00.000Z";
    for volume in VOLUMES {
        write(&source, volume, 2);
        source.good(&["snapshot", "create", &format!("{volume}@{ahead}")]);
        destination.good(&["mirror", "update", volume]);
    }
    poll("what all have is shown", || shown(&destination) == ahead);
    let after = bring(&source, &destination, 3);
    poll("they move on", || shown(&destination) == after.as_str());
    // Nor is an update refused until that time.
    for volume in VOLUMES {
        source.good(&["snapshot", "delete", &format!("{volume}@{after}"), "--yes"]);
    }
    let last = bring(&source, &destination, 4);
    poll("they move on once more", || shown(&destination) == last.as_str());
    assert_eq!((first(&destination, "data/db"), first(&destination, "logs/db")), (4, 4));
}
