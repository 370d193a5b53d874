//! Snapshots by the clock, and holds, from the command line.

mod running;

use std::time::Instant;

use running::{PATIENCE, Running, can_mount};
use serde_json::Value;

fn names(server: &Running, label: &str) -> Vec<String> {
    let list = server.json(&["snapshot", "list", "vol0"]);
    let names = list.as_array().unwrap().iter().map(|snapshot| snapshot["name"].as_str().unwrap().to_owned());
    names.filter(|name| name.starts_with(&format!("vol0@{label}."))).collect()
}

/// Waits until the condition holds for the schedule.
fn wait_until(server: &Running, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let list = server.json(&["snapshot", "schedule", "list", "vol0"]);
        if holds(&list[0]) {
            return list[0].clone();
        }
        assert!(Instant::now() < deadline, "{what}: {list:#}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn schedule_makes_and_keeps_snapshots_and_a_held_one_stays() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Running::start(dir.path(), "a");
    server.good(&["volume", "create", "vol0", "--size", "64M"]);
    server.good(&["snapshot", "create", "vol0@often.by-hand"]);
    server.good(&["snapshot", "schedule", "set", "vol0", "often", "--every", "1s", "--keep-last", "2"]);
    wait_until(&server, "two are there", |schedule| schedule["snapshots"].as_array().unwrap().len() == 2);
    let first = names(&server, "often").into_iter().find(|name| !name.ends_with("by-hand")).unwrap();
    // Either of the two would be deleted by one of the next two runs.
    if server.run(&["snapshot", "hold", &first]).status.success() {
        let gone = |schedule: &Value| {
            let there = schedule["snapshots"].as_array().unwrap();
            there.len() == 3 && there[0] == first.as_str()
        };
        wait_until(&server, "the held one stays beside two others", gone);
        let refused = server.run(&["snapshot", "delete", &first, "--yes"]);
        assert!(!refused.status.success(), "it is held");
        server.good(&["snapshot", "release", &first]);
        wait_until(&server, "it goes", |schedule| {
            !schedule["snapshots"].as_array().unwrap().iter().any(|name| name == first.as_str())
        });
    }
    assert!(names(&server, "often").iter().any(|name| name.ends_with("by-hand")), "not one of its own");

    // The missed runs of a killed server become one run.
    server.kill();
    server.restart();
    let before = server.json(&["snapshot", "schedule", "list", "vol0"])[0]["last_ms"].as_u64();
    wait_until(&server, "it runs again", |schedule| schedule["last_ms"].as_u64() > before);

    server.good(&["snapshot", "schedule", "remove", "vol0", "often"]);
    assert_eq!(server.json(&["snapshot", "schedule", "list"]).as_array().unwrap().len(), 0);
    let again = server.run(&["snapshot", "schedule", "remove", "vol0", "often"]);
    assert_eq!(again.status.code(), Some(10));
}

#[test]
fn rules_that_are_set_while_a_schedule_runs_hold_for_what_it_deletes() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), "a");
    server.good(&["volume", "create", "vol0", "--size", "64M"]);
    let set = |keep: &str| {
        let rules = ["--every", "1s", "--keep-last", keep, "--yes"];
        server.good(&[&["snapshot", "schedule", "set", "vol0", "often"][..], &rules].concat());
    };
    set("100");
    wait_until(&server, "three are there", |schedule| schedule["snapshots"].as_array().unwrap().len() >= 3);
    server.good(&["snapshot", "schedule", "remove", "vol0", "often"]);
    let (begun, go) = (dir.path().join("begun"), dir.path().join("go"));
    let before = format!("touch {}; while ! [ -e {} ]; do sleep 0.02; done", begun.display(), go.display());
    server.good(&["volume", "hooks", "vol0", "--before", &before, "--timeout", "5m"]);
    let made = names(&server, "often");
    set("1");
    running::wait_until("a run is under way", || begun.exists());
    // Its owner changes it; or deletes it, and its snapshots stay.
    set("100");
    std::fs::write(&go, "").unwrap();
    wait_until(&server, "the run is over", |schedule| schedule["last_ms"].is_u64());
    let left = names(&server, "often");
    assert!(made.iter().all(|made| left.contains(made)), "{made:?} were to stay: {left:?}");
    std::fs::remove_file(&begun).unwrap();
    std::fs::remove_file(&go).unwrap();
    running::wait_until("another run is under way", || begun.exists());
    set("1");
    std::fs::write(&go, "").unwrap();
    wait_until(&server, "what was set last holds", |schedule| {
        schedule["snapshots"].as_array().unwrap().len() == 1
    });
}

#[test]
fn schedule_leaves_what_a_clone_is_made_of_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), "a");
    server.good(&["volume", "create", "vol0", "--size", "64M"]);
    server.good(&["snapshot", "schedule", "set", "vol0", "often", "--every", "1s", "--keep-last", "2"]);
    wait_until(&server, "one is there", |schedule| !schedule["snapshots"].as_array().unwrap().is_empty());
    let first = names(&server, "often")[0].clone();
    server.good(&["clone", "create", &first, "copy"]);
    wait_until(&server, "it stays beside two others", |schedule| {
        let there = schedule["snapshots"].as_array().unwrap();
        there.len() == 3 && there[0] == first.as_str()
    });
    assert_eq!(server.json(&["status"])["problems"], serde_json::json!([]), "the others go all the same");
}

#[test]
fn what_is_no_schedule_is_refused_with_the_next_step() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), "a");
    server.good(&["volume", "create", "vol0", "--size", "64M"]);
    let cases: [(&[&str], &str); 8] = [
        (&["x", "--cron", "0 0 30 2 *"], "matches no day"),
        (&["image", "--every", "1h"], "which are reserved"),
        (&["group.bank", "--every", "1h"], "which are reserved"),
        (&["x", "--cron", "never"], "not a cron expression"),
        (&["x", "--every", "10ms"], "shorter than 1 s"),
        (&["mirror.x", "--every", "1h"], "which are reserved"),
        (&["x", "--every", "1h", "--zone", "Mars/Olympus"], "Europe/Berlin"),
        (&["../x", "--every", "1h"], ""),
    ];
    for (arguments, message) in cases {
        let output = server.run(&[&["snapshot", "schedule", "set", "vol0"], arguments].concat());
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.contains(message), "{told}");
    }
    let never = ["snapshot", "schedule", "simulate", "--cron", "0 0 31 2 *"];
    let never = server.bad(2, "usage", &[&never[..], &["--for", "30d"]].concat());
    assert!(never.contains("matches no day"), "{never}");
    let arguments = ["snapshot", "schedule", "set", "vol0", "x", "--every", "1h", "--dry-run"];
    assert_eq!(server.json(&arguments)["label"], "x");
    assert_eq!(
        server.json(&["snapshot", "schedule", "list"]).as_array().unwrap().len(),
        0,
        "nothing was set"
    );
    let simulate =
        ["snapshot", "schedule", "simulate", "--every", "1h", "--keep-hourly", "24", "--keep-daily", "7"];
    let simulation = server.json(&[&simulate[..], &["--for", "30d"]].concat());
    assert_eq!(simulation["made"], 720);
    // The newest of today is one of the 24 hours.
    let kept = simulation["kept_ms"].as_array().unwrap().len();
    assert!((29..=30).contains(&kept), "{kept}");
}

#[test]
fn what_can_be_held_of_several_is_and_the_code_says_that_not_all_was() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), "a");
    server.good(&["volume", "create", "vol0", "--size", "64M"]);
    server.good(&["snapshot", "create", "vol0@one"]);
    server.good(&["snapshot", "create", "vol0@two"]);
    let code = |arguments: &[&str]| server.run(&[&["snapshot"], arguments].concat()).status.code();
    assert_eq!(code(&["hold", "vol0@nothing", "vol0@one"]), Some(3), "one of two");
    assert_eq!(code(&["hold", "vol0@two", "vol0@nothing"]), Some(3));
    assert_eq!(code(&["hold", "vol0@nothing", "vol9@one"]), Some(10), "none of them");
    for name in ["vol0@one", "vol0@two"] {
        assert_eq!(code(&["delete", name, "--yes"]).map(|code| code == 0), Some(false), "{name} is held");
    }
    assert_eq!(code(&["release", "vol0@one", "vol0@two"]), Some(0));
    let output = server.run(&["snapshot", "hold", "vol0@nothing", "vol0@no", "vol0@one"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("nothing") && said.matches("error:").count() == 2, "each is told: {said}");
}

/// A disk on a file system whose server is stopped: `stat`, open and read on it wait until that
/// resumes.
#[test]
fn disk_that_hangs_while_it_is_opened_holds_up_no_schedule() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let below = Running::start(dir.path(), "below");
    let mounted = dir.path().join("mounted");
    std::fs::create_dir(&mounted).unwrap();
    below.good(&["volume", "create", "files", "--size", "256M"]);
    below.good(&["mount", "files", mounted.to_str().unwrap()]);
    let disk = mounted.join("disk.img");
    std::fs::File::create(&disk).and_then(|file| file.set_len(64 << 20)).unwrap();
    let mut server = Running::start(dir.path(), "d");
    server.good(&["volume", "create", "slow", "--device", disk.to_str().unwrap()]);
    server.good(&["volume", "create", "vol0", "--size", "64M"]);
    server.kill();
    let away = mounted.join("away.img");
    std::fs::rename(&disk, &away).unwrap();
    server.restart();
    std::fs::rename(&away, &disk).unwrap();
    below.signal("STOP");
    // By now it hangs.
    std::thread::sleep(std::time::Duration::from_secs(3));
    server.good(&["snapshot", "schedule", "set", "vol0", "often", "--every", "1s", "--keep-last", "100"]);
    let until = Instant::now() + PATIENCE / 3;
    while names(&server, "often").len() < 2 && Instant::now() < until {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let made = names(&server, "often").len();
    let is_closed = !server.run(&["lun", "list", "slow"]).status.success();
    // Before any assertion: a stopped server cannot end.
    below.signal("CONT");
    assert!(made >= 2 && is_closed, "{made} snapshots were made beside it");
    running::wait_until("it is open again", || server.run(&["lun", "list", "slow"]).status.success());
    assert_eq!(server.terminate(), 0);
    below.good(&["unmount", mounted.to_str().unwrap()]);
}

/// As a clock leaves it that was a month ahead and is right again, also over a restart of the
/// server.
#[test]
fn schedule_whose_last_run_lies_ahead_runs_again_and_says_why() {
    const MONTH_MS: u64 = 30 * 86_400_000;
    let dir = tempfile::tempdir().unwrap();
    let mut server = Running::start(dir.path(), "a");
    server.good(&["volume", "create", "vol0", "--size", "64M"]);
    server.good(&["volume", "create", "vol1", "--size", "64M"]);
    server.good(&["group", "create", "bank", "vol0", "vol1"]);
    let noted = [
        (server.data.join("volumes/vol0/schedules.json"), "schedules"),
        (server.data.join("groups.json"), "groups"),
    ];
    for (every, problems) in [("1h", 2), ("1s", 0)] {
        server.good(&["snapshot", "schedule", "set", "vol0", "often", "--every", every]);
        server.good(&["group", "set", "bank", "--every", every]);
        server.kill();
        let mut ahead_ms = 0;
        for (path, list) in &noted {
            let mut document: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
            let plan = &mut document[list][0];
            ahead_ms = plan["from_ms"].as_u64().unwrap() + MONTH_MS;
            plan["last_ms"] = ahead_ms.into();
            std::fs::write(path, serde_json::to_vec(&document).unwrap()).unwrap();
        }
        server.restart();
        let hour_ms = 3_600_000;
        wait_until(&server, "its next run is not a month away", |schedule| {
            let (next, last) = (schedule["next_ms"].as_u64(), schedule["last_ms"].as_u64());
            let is_near = |at: u64| at < ahead_ms - MONTH_MS + 2 * hour_ms;
            next.is_some_and(is_near) && last.is_some_and(is_near)
        });
        let told = || {
            let status = server.json(&["status"]);
            let problems = status["problems"].as_array().unwrap().clone();
            let is_of_clock =
                |problem: &&Value| problem["message"].as_str().unwrap().contains("the clock was put back");
            problems.iter().filter(is_of_clock).count()
        };
        running::wait_until("it is said until the next run", || told() == problems);
        if problems == 0 {
            running::wait_until("both run", || {
                let group = server.json(&["group", "show", "bank"]);
                !names(&server, "often").is_empty() && !group["snapshots"].as_array().unwrap().is_empty()
            });
        }
    }
}

#[test]
fn new_volume_has_two_schedules_unless_its_owner_wants_none() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Running::start(dir.path(), "a");
    let made = server.run_as_it_is(&["volume", "create", "vol0", "--size", "64M"]);
    let said = String::from_utf8(made.stdout).unwrap();
    assert!(made.status.success() && said.contains("hourly every 4h (keeps 6)"), "{said}");
    server.run_as_it_is(&["volume", "create", "vol1", "--size", "64M", "--no-schedule"]);
    // A kill leaves the volume with its schedules.
    server.kill();
    server.restart();
    let list = server.json(&["snapshot", "schedule", "list"]);
    let all: Vec<(&str, &str, u64, u64)> = list
        .as_array()
        .unwrap()
        .iter()
        .map(|one| {
            let name = |field: &str| one[field].as_str().unwrap();
            (
                name("volume"),
                name("label"),
                one["every_ms"].as_u64().unwrap(),
                one["keep"]["last"].as_u64().unwrap(),
            )
        })
        .collect();
    let hour = 3_600_000;
    assert_eq!(all, [("vol0", "hourly", 4 * hour, 6), ("vol0", "daily", 24 * hour, 2)]);
    let next = list[0]["next_ms"].as_u64().unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64;
    assert!(next > now + 3 * hour && next <= now + 4 * hour, "the first one comes after four hours");
    // They are schedules as any other.
    server.good(&["snapshot", "schedule", "set", "vol0", "hourly", "--every", "1s", "--keep-last", "2"]);
    wait_until(&server, "two are there", |schedule| schedule["snapshots"].as_array().unwrap().len() == 2);
    server.good(&["snapshot", "schedule", "remove", "vol0", "daily"]);
}
