//! Scrubs in the background of a real server: damage is found, named, kept over restarts, and
//! cleared once it is mended.

mod running;

use std::io::{BufRead, Read, Write};
use std::os::unix::fs::FileExt;
use std::time::Instant;

use running::{PATIENCE, Running};
use serde_json::Value;

/// A block that is found again in the file of a volume.
fn marked(number: u8) -> Vec<u8> {
    [format!("the block that rots {number:3} ").as_bytes(), &[7; 4072]].concat()
}

/// Damages a block in the file of a volume, under the running server; the argument is its content.
fn rot(server: &Running, content: &[u8]) {
    let path = server.data.join("volumes/vol0/volume.img");
    let image = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut block = vec![0; 4096];
    let places: Vec<u64> = (0..image.metadata().unwrap().len() / 4096)
        .filter(|number| {
            image.read_exact_at(&mut block, number * 4096).unwrap();
            block == content
        })
        .collect();
    assert_eq!(places.len(), 1, "the block is in the file once");
    image.write_all_at(b"x", places[0] * 4096 + 100).unwrap();
}

fn scrub_until(
    server: &Running,
    what: &str,
    holds: impl Fn(&serde_json::Value) -> bool,
) -> serde_json::Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let scrub = server.json(&["volume", "scrub", "vol0", "--status"]);
        if holds(&scrub) {
            return scrub;
        }
        assert!(Instant::now() < deadline, "{what}: {scrub}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn scrub_goes_on_after_a_kill_finds_what_rots_and_it_stays_in_status_until_it_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Running::start(dir.path(), "d");
    server.good(&["volume", "create", "vol0", "--size", "128M"]);
    server.good(&["lun", "create", "vol0/db", "--size", "32M"]);
    let mut disk = server.disk("vol0/db");
    disk.write(0, &(0..24 << 20).map(|n: u32| (n / 4096 % 251) as u8).collect::<Vec<_>>()).unwrap();
    disk.write(20480, &marked(1)).unwrap();
    disk.flush().unwrap();
    server.good(&["snapshot", "create", "vol0@kept"]);
    drop(disk);
    server.kill();
    server.restart();
    rot(&server, &marked(1));

    // Slow enough to be caught in the middle.
    server.good(&["volume", "scrub", "vol0", "--rate", "4M"]);
    let begun = scrub_until(&server, "it reads", |scrub| scrub["done_bytes"].as_u64() > Some(2 << 20));
    assert!(begun["running"].as_bool().unwrap() && begun["rate_bytes"] == 4 << 20, "{begun}");
    server.good(&["volume", "scrub", "vol0", "--rate", "8M"]);
    assert_eq!(server.terminate(), 0);
    server.restart();
    let after = server.json(&["volume", "scrub", "vol0", "--status"]);
    let (was, is) = (begun["done_bytes"].as_u64().unwrap(), after["done_bytes"].as_u64().unwrap());
    assert!(after["running"].as_bool().unwrap() && is + (1 << 20) >= was, "{was} then {after}");
    assert_eq!(after["started_ms"], begun["started_ms"], "it is the same pass");
    let said = server.good(&["volume", "show", "vol0"]);
    assert!(said.contains("scrub       running"), "{said}");
    server.good(&["volume", "scrub", "vol0", "--rate", "1G"]);
    let over = scrub_until(&server, "it ends", |scrub| !scrub["running"].as_bool().unwrap());
    assert_eq!(over["last"]["findings_total"], 1, "{over}");
    assert_eq!(
        (&over["damaged"][0]["lun"], &over["damaged"][0]["offset_bytes"]),
        (&"vol0/db".into(), &20480.into())
    );
    let bytes = over["last"]["bytes"].as_u64().unwrap();
    assert!(
        (24 << 20..26 << 20).contains(&bytes),
        "each block once, though a snapshot shows all of it too: {over}"
    );

    for _ in 0..2 {
        let problem = server.json(&["status"])["problems"][0].clone();
        assert_eq!(problem["subject"], "vol0");
        assert!(problem["message"].as_str().unwrap().contains("block 5 of vol0/db"), "{problem}");
        server.kill();
        server.restart();
        // Damaged blocks are checked again.
        scrub_until(&server, "it is still damaged", |scrub| scrub["damaged"].as_array().unwrap().len() == 1);
    }
    let output = server.run(&["volume", "scrub", "vol0", "--wait", "--json"]);
    assert_eq!(output.status.code(), Some(27), "{output:?}");

    // Overwritten, and in no snapshot: the damage no longer exists.
    server.disk("vol0/db").write(20480, &marked(2)).unwrap();
    server.good(&["snapshot", "delete", "vol0@kept", "--yes"]);
    assert_eq!(server.terminate(), 0);
    server.restart();
    scrub_until(&server, "it is gone", |scrub| scrub["damaged"] == serde_json::json!([]));
    assert_eq!(server.json(&["status"])["problems"], serde_json::json!([]));
    server.good(&["volume", "scrub", "vol0", "--wait"]);
}

/// A server whose disk `vol0/db` has a damaged block 5, which no client has read.
fn with_block_5_damaged(dir: &std::path::Path) -> Running {
    let mut server = Running::start(dir, "d");
    server.good(&["volume", "create", "vol0", "--size", "128M"]);
    server.good(&["lun", "create", "vol0/db", "--size", "32M"]);
    server.disk("vol0/db").write(20480, &marked(1)).unwrap();
    assert_eq!(server.terminate(), 0);
    rot(&server, &marked(1));
    server.restart();
    server
}

fn knows_of_block_5_after_a_restart(mut server: Running) {
    assert_eq!(server.terminate(), 0);
    server.restart();
    let problems = server.json(&["status"])["problems"].clone();
    assert!(problems[0]["message"].as_str().unwrap_or_default().contains("block 5 of vol0/db"), "{problems}");
}

#[test]
fn damage_that_was_met_just_before_the_server_ends_is_known_when_it_starts() {
    let dir = tempfile::tempdir().unwrap();
    let server = with_block_5_damaged(dir.path());
    let mut disk = server.disk("vol0/db");
    assert!(disk.read(20480, 4096).is_err(), "it is damaged");
    knows_of_block_5_after_a_restart(server);
}

#[test]
fn damage_that_could_not_be_written_down_is_once_there_is_room_again() {
    let dir = tempfile::tempdir().unwrap();
    let server = with_block_5_damaged(dir.path());
    // The file to be written beside it has no room, as on a full disk.
    let beside = server.data.join("volumes/vol0/scrub.new");
    std::fs::create_dir(&beside).unwrap();
    assert!(server.disk("vol0/db").read(20480, 4096).is_err(), "it is damaged");
    // A pass begins, and its thread first saves the known damage.
    server.run(&["volume", "scrub", "vol0", "--start"]);
    scrub_until(&server, "it is over", |scrub| !scrub["last"].is_null());
    std::fs::remove_dir(&beside).unwrap();
    knows_of_block_5_after_a_restart(server);
}

#[test]
fn scrub_by_the_clock_goes_on_after_that_was_years_ahead() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Running::start(dir.path(), "d");
    server.good(&["volume", "create", "vol0", "--size", "64M"]);
    server.good(&["volume", "scrub", "vol0", "--every", "7d"]);
    let done = scrub_until(&server, "the schedule begins one", |scrub| !scrub["last"].is_null());
    let next = done["next_ms"].as_u64().unwrap();
    server.terminate();
    // As a wrong clock saves it, which was corrected while the server was off.
    let path = server.data.join("volumes/vol0/scrub.json");
    let mut document: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    for of in ["started_ms", "finished_ms"] {
        document["last"][of] = (document["last"][of].as_u64().unwrap() + 10 * 365 * 86_400_000).into();
    }
    std::fs::write(&path, document.to_string()).unwrap();
    server.restart();
    let tomorrow = next + 86_400_000;
    scrub_until(&server, "it is due at once", |scrub| {
        !scrub["last"].is_null() && scrub["next_ms"].as_u64().is_some_and(|next| next < tomorrow)
    });
}

#[test]
fn scrub_without_an_option_is_shown_and_not_started() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), "d");
    server.good(&["volume", "create", "vol0", "--size", "64M"]);
    let shown = server.json(&["volume", "scrub", "vol0"]);
    assert!(shown["running"] == false && shown["last"].is_null(), "{shown}");
    assert!(server.good(&["volume", "scrub", "vol0"]).contains("never"));
    server.good(&["volume", "scrub", "vol0", "--start", "--wait"]);
    let shown = server.json(&["volume", "scrub", "vol0"]);
    assert_eq!(shown, server.json(&["volume", "scrub", "vol0", "--status"]));
    assert!(shown["last"].is_object(), "{shown}");
}

#[test]
fn scrubs_are_scheduled_stopped_and_refuse_what_makes_no_sense() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), "d");
    server.good(&["volume", "create", "vol0", "--size", "128M"]);
    let never = server.json(&["volume", "scrub", "vol0", "--status"]);
    assert!(never["last"].is_null() && never["running"] == false && never["next_ms"].is_null(), "{never}");
    server.bad(2, "usage", &["volume", "scrub", "vol0", "--rate", "100"]);
    server.bad(10, "not-found", &["volume", "scrub", "nothing"]);
    // A scrub that never ran is due at once.
    server.good(&["volume", "scrub", "vol0", "--every", "7d"]);
    let done = scrub_until(&server, "the schedule begins one", |scrub| !scrub["last"].is_null());
    let (next, began) = (done["next_ms"].as_u64().unwrap(), done["last"]["started_ms"].as_u64().unwrap());
    assert_eq!(next - began, 7 * 86_400_000);
    server.good(&["volume", "scrub", "vol0", "--every", "off"]);
    assert!(server.json(&["volume", "scrub", "vol0", "--status"])["next_ms"].is_null());
    server.good(&["lun", "create", "vol0/db", "--size", "32M"]);
    server.disk("vol0/db").write(0, &vec![3; 16 << 20]).unwrap();
    // A pass does not read data that no consistency point has yet.
    server.good(&["snapshot", "create", "vol0@s"]);
    server.good(&["volume", "scrub", "vol0", "--rate", "1M"]);
    let stopped = server.json(&["volume", "scrub", "vol0", "--stop"]);
    assert_eq!(stopped["last"]["stopped"], true, "{stopped}");
    assert!(server.good(&["volume", "show", "vol0"]).contains("scrub       stopped"));
}

/// A source and its mirror, with three marked blocks in both; nothing is in memory.
fn mirrored(dir: &std::path::Path) -> (Running, Running) {
    let mut source = Running::start(dir, "source");
    source.good(&["volume", "create", "vol0", "--size", "128M"]);
    source.good(&["lun", "create", "vol0/db", "--size", "4M"]);
    let mut disk = source.disk("vol0/db");
    for number in 1..=3 {
        disk.write(u64::from(number) * 8192, &marked(number)).unwrap();
    }
    disk.flush().unwrap();
    let token = source.invite();
    let port = source.json(&["status"])["mirror"].as_str().unwrap().to_owned();
    let mut destination = Running::start(dir, "destination");
    destination.good(&["mirror", "create", "vol0", &token]);
    drop(disk);
    // On the same port, where the mirror finds it.
    source.kill();
    let mut source = {
        drop(source);
        Running::start_with(dir, "source", &["--mirror", &port])
    };
    assert!(source.has_export("vol0/db"));
    destination.kill();
    destination.restart();
    assert_eq!(source.terminate(), 0);
    source.restart();
    (source, destination)
}

#[test]
fn damaged_blocks_come_back_from_the_other_side_and_what_cannot_stays_in_status() {
    let dir = tempfile::tempdir().unwrap();
    let (mut source, destination) = mirrored(dir.path());
    rot(&source, &marked(1));
    rot(&destination, &marked(2));
    let output = source.run(&["volume", "scrub", "vol0", "--wait"]);
    assert_eq!(output.status.code(), Some(27), "{output:?}");
    assert!(source.disk("vol0/db").read(8192, 4096).is_err(), "it is not served");
    assert!(destination.disk("vol0/db").read(16384, 4096).is_err(), "nor here, and the read is noticed");
    // The destination connects, and both sides send and receive blocks: with the next update, or
    // within seconds without one.
    destination.good(&["mirror", "update", "vol0"]);
    for (server, at, number) in [(&source, 8192, 1), (&destination, 16384, 2)] {
        let scrub = scrub_until(server, "it was mended", |scrub| {
            scrub["damaged"] == serde_json::json!([]) && scrub["repaired_blocks"] == 1
        });
        assert!(scrub["repaired_ms"].is_u64(), "{scrub}");
        assert_eq!(server.disk("vol0/db").read(at, 4096).unwrap(), marked(number));
        server.good(&["volume", "scrub", "vol0", "--wait"]);
        assert_eq!(server.json(&["status"])["problems"], serde_json::json!([]));
    }
    // A request for the lag mends as well, and records that when it is done.
    running::wait_until("what was mended is counted, once", || {
        let status = destination.json(&["mirror", "status", "vol0"]);
        (&status["mended_here"], &status["mended_there"]) == (&1.into(), &1.into())
    });

    // On both sides, it is in no copy.
    assert_eq!(source.terminate(), 0);
    source.restart();
    rot(&source, &marked(3));
    rot(&destination, &marked(3));
    let output = destination.run(&["mirror", "verify", "vol0", "--scrub"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(27), "{output:?}");
    assert!(said.contains("vol0/db"), "{said}");
    for server in [&source, &destination] {
        let problem = server.json(&["status"])["problems"].to_string();
        assert!(problem.contains("block 6 of vol0/db"), "{problem}");
    }
}

/// Spoils every version of the block of inodes that the LUN of `bytes` is in.
fn rot_inodes(server: &Running, bytes: u64) {
    let path = server.data.join("volumes/vol0/volume.img");
    let image = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut block = vec![0; 4096];
    let mut found = 0;
    for number in 0..image.metadata().unwrap().len() / 4096 {
        image.read_exact_at(&mut block, number * 4096).unwrap();
        let is_it =
            |inode: &[u8]| inode[0] == 2 && inode.windows(8).any(|field| field == bytes.to_le_bytes());
        if block.chunks(128).any(is_it) {
            image.write_all_at(b"x", number * 4096 + 100).unwrap();
            found += 1;
        }
    }
    assert!(found > 0, "they are in the file");
}

/// Such a volume did not open: it could be failed over, and that was all, though the mirror had the
/// one block that was missing.
#[test]
fn volume_whose_inodes_have_rotted_gets_them_from_its_mirror_and_takes_changes_again() {
    let dir = tempfile::tempdir().unwrap();
    let (mut source, mut destination) = mirrored(dir.path());
    destination.kill();
    assert_eq!(source.terminate(), 0);
    rot_inodes(&source, 4 << 20);
    source.restart();
    let problems = source.json(&["status"])["problems"].to_string();
    assert!(
        problems.contains("takes no changes until the inodes of files 0 to 31 can be read"),
        "{problems}"
    );
    assert!(problems.contains("a mirror that has them restores them by itself"), "{problems}");
    source.bad(25, "read-only", &["snapshot", "create", "vol0@none"]);
    destination.restart();
    // The mirror looks after its source within seconds, and with an update, which may come too
    // early itself.
    let _ = destination.run(&["mirror", "update", "vol0"]);
    running::wait_until("it is mended", || source.json(&["status"])["problems"] == serde_json::json!([]));
    running::wait_until("the LUN is there", || source.has_export("vol0/db"));
    let mut disk = source.disk("vol0/db");
    assert_eq!(disk.read(8192, 4096).unwrap(), marked(1));
    disk.write(65536, &marked(9)).unwrap();
    disk.flush().unwrap();
    destination.good(&["mirror", "update", "vol0"]);
    assert_eq!(destination.disk("vol0/db").read(65536, 4096).unwrap(), marked(9));
    assert_eq!(destination.json(&["mirror", "verify", "vol0", "--scrub"])["differences_total"], 0);
    assert_eq!(source.good(&["volume", "check", "vol0", "--deep"]), "volume vol0 is sound\n");
}

#[test]
fn verification_compares_both_sides_and_says_what_it_cost_and_when_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let (source, destination) = mirrored(dir.path());
    assert!(destination.good(&["mirror", "status", "vol0"]).contains("verified  never"));
    let fast = destination.json(&["mirror", "verify", "vol0"]);
    assert_eq!((&fast["differences_total"], &fast["snapshots"]), (&0.into(), &1.into()), "{fast}");
    assert!(fast["network_bytes"].as_u64().unwrap() < 2000, "{fast}");
    rot(&destination, &marked(1));
    rot(&source, &marked(2));
    assert_eq!(destination.json(&["mirror", "verify", "vol0"])["differences_total"], 0, "data is not read");
    let deep = destination.json(&["mirror", "verify", "vol0", "--scrub"]);
    // A request for the lag mends as well, and may come first.
    running::wait_until("not both are mended", || {
        let status = destination.json(&["mirror", "status", "vol0"]);
        (&status["mended_here"], &status["mended_there"]) == (&1.into(), &1.into())
    });
    let told = deep["differences"].to_string();
    assert!(
        told.contains("here: ") && told.contains("at the source (vol0)") && told.contains("vol0/db"),
        "{told}"
    );
    assert!(destination.good(&["mirror", "status", "vol0"]).contains("data read as well"));
    let again = destination.json(&["mirror", "verify", "vol0", "--scrub", "--rate", "1G"]);
    assert_eq!(again["differences_total"], 0, "{again}");
    assert_eq!(destination.disk("vol0/db").read(8192, 4096).unwrap(), marked(1));
    assert_eq!(source.disk("vol0/db").read(16384, 4096).unwrap(), marked(2));
    destination.bad(2, "usage", &["mirror", "verify", "vol0", "--scrub", "--rate", "10"]);
    destination.bad(10, "not-found", &["mirror", "verify", "nothing"]);
}

#[test]
fn slow_comparison_rests_for_no_longer_than_the_other_side_waits() {
    let dir = tempfile::tempdir().unwrap();
    let source = Running::start(dir.path(), "source");
    source.good(&["volume", "create", "vol0", "--size", "128M"]);
    source.good(&["lun", "create", "vol0/db", "--size", "16M"]);
    let mut disk = source.disk("vol0/db");
    disk.write(0, &vec![7; 12 << 20]).unwrap();
    disk.flush().unwrap();
    let destination = Running::start(dir.path(), "destination");
    destination.good(&["mirror", "create", "vol0", &source.invite(), "--stall", "2s"]);
    let compared = destination.json(&["mirror", "verify", "vol0", "--scrub", "--rate", "2M"]);
    assert_eq!(compared["differences_total"], 0, "{compared}");
    assert!(compared["read_there_bytes"].as_u64().unwrap() > 12 << 20, "{compared}");
}

/// A scheduled job trusts its exit code, and would take the volume as read.
#[test]
fn scrub_that_is_stopped_by_another_command_is_no_success_to_who_waits_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let server = &Running::start(dir.path(), "d");
    server.good(&["volume", "create", "vol0", "--size", "128M"]);
    server.good(&["lun", "create", "vol0/db", "--size", "64M"]);
    let mut disk = server.disk("vol0/db");
    disk.write(0, &vec![3; 24 << 20]).unwrap();
    disk.flush().unwrap();
    server.good(&["snapshot", "create", "vol0@s"]);
    std::thread::scope(|scope| {
        // It takes longer than this test.
        let command = ["volume", "scrub", "vol0", "--rate", "64K", "--wait"];
        let wait = scope.spawn(move || server.bad(130, "interrupted", &command));
        scrub_until(server, "it begins", |scrub| scrub["running"].as_bool().unwrap());
        server.good(&["volume", "scrub", "vol0", "--stop"]);
        let said = wait.join().unwrap();
        assert!(said.contains("stopped before its end"), "{said}");
    });
}

#[test]
fn interrupted_check_is_ended_on_the_server_too() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), "d");
    server.good(&["volume", "create", "vol0", "--size", "128M"]);
    server.good(&["lun", "create", "vol0/db", "--size", "64M"]);
    server.disk("vol0/db").write(0, &vec![3; 24 << 20]).unwrap();
    server.good(&["snapshot", "create", "vol0@s"]);
    server.good(&["volume", "rehearse", "vol0", "--delay", "500ms", "--yes"]);
    let mut check = running::cairn()
        .args(["volume", "check", "vol0", "--deep", "--json", "--data"])
        .arg(&server.data)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // It follows the job from its first line on.
    let mut lines = std::io::BufReader::new(check.stdout.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    assert!(first.contains("checking") || first.contains("starting"), "{first}");
    let pid = check.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let last = lines.last().unwrap().unwrap();
    assert_eq!(check.wait().unwrap().code(), Some(130), "{last}");
    assert!(last.contains("ended, on the server too"), "{last}");
    let deadline = Instant::now() + PATIENCE;
    while !jobs(&server).contains("interrupted") {
        assert!(Instant::now() < deadline, "{}", jobs(&server));
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn job_is_listed_shown_and_cancelled_by_another_command() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), "d");
    server.good(&["volume", "create", "vol0", "--size", "128M"]);
    server.good(&["lun", "create", "vol0/db", "--size", "64M"]);
    server.disk("vol0/db").write(0, &vec![3; 24 << 20]).unwrap();
    server.good(&["snapshot", "create", "vol0@s"]);
    assert_eq!(server.good(&["job", "list"]).trim(), "none");
    server.good(&["volume", "rehearse", "vol0", "--delay", "500ms", "--yes"]);
    std::thread::scope(|scope| {
        let check = scope.spawn(|| server.run(&["volume", "check", "vol0", "--deep"]));
        let deadline = Instant::now() + PATIENCE;
        let id = loop {
            let listed = server.json(&["job", "list"]);
            if let Some(id) = listed[0]["id"].as_str() {
                break id.to_owned();
            }
            assert!(Instant::now() < deadline, "{listed}");
        };
        let shown = server.good(&["job", "show", &id[..6]]);
        assert!(shown.contains("volume check") && shown.contains("running"), "{shown}");
        assert!(server.good(&["job", "cancel", &id[..6]]).contains("stops at its next step"));
        let output = check.join().unwrap();
        assert!(!output.status.success(), "a cancelled check has no result");
        assert_eq!(server.good(&["job", "list"]).trim(), "none");
        let all = server.good(&["job", "list", "--all"]);
        assert!(all.contains("failed") && all.lines().all(|line| line.len() <= 80), "{all}");
        assert!(server.good(&["job", "show", &id]).contains("next"), "a failed job has a remedy");
        let advice = server.advice(10, &["job", "cancel", &id]);
        assert!(advice.contains(&format!("cairn job show {id}")), "{advice}");
    });
    assert!(server.advice(10, &["job", "show", "nothing"]).contains("cairn job list --all"));
}

/// The jobs of a server, as its API tells them.
fn jobs(server: &Running) -> String {
    let mut stream = std::os::unix::net::UnixStream::connect(server.data.join("control.sock")).unwrap();
    stream.write_all(b"GET /v1/jobs HTTP/1.1\r\nhost: cairn\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}
