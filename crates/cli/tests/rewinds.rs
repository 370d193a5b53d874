//! Volumes over a history from the command line: brought back as a whole, under clients and over kills; mirrors away from a mistake that they have copied.

mod running;

use std::io::Write;
use std::path::Path;
use std::time::Instant;

use running::{PATIENCE, Running, can_mount, wait_until};
use serde_json::Value;

const MIB: usize = 1 << 20;

fn path(dir: &Path, name: &str) -> String {
    dir.join(name).to_str().unwrap().to_owned()
}

fn read(server: &Running, export: &str) -> u8 {
    let bytes = server.disk(export).read(0, MIB as u32).unwrap();
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "{export} is of one time");
    bytes[0]
}

fn write(server: &Running, export: &str, byte: u8) {
    let mut disk = server.disk(export);
    disk.write(0, &vec![byte; MIB]).unwrap();
    disk.flush().unwrap();
    disk.disconnect().unwrap();
}

fn marks(server: &Running, volume: &str) -> Vec<String> {
    let status = server.json(&["history", "status", volume]);
    let name = |mark: &Value| mark["name"].as_str().unwrap().to_owned();
    status["marks"].as_array().unwrap().iter().map(name).collect()
}

#[test]
fn volume_over_a_history_comes_back_as_a_whole_under_clients_and_over_kills() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Running::start(dir.path(), "d");
    let store = path(dir.path(), "vol0.history");
    let history = ["--history", &store, "--placement", "split-down-stream", "--granularity", "every-write"];
    server.good(&[&["volume", "create", "vol0", "--size", "64M"], &history[..]].concat());
    assert_eq!(server.json(&["volume", "show", "vol0"])["history"], store.as_str());
    server.good(&["lun", "create", "vol0/db", "--size", "1M"]);
    write(&server, "vol0/db", 1);
    server.good(&["snapshot", "create", "vol0@first"]);
    server.good(&["history", "mark", "vol0", "good"]);
    write(&server, "vol0/db", 2);
    server.good(&["snapshot", "delete", "vol0@first", "--yes"]);
    server.good(&["lun", "create", "vol0/extra", "--size", "1M"]);
    server.good(&["history", "mark", "vol0", "bad"]);
    server.kill();
    server.restart();
    assert_eq!(read(&server, "vol0/db"), 2, "what was flushed is there after a kill");
    assert_eq!(marks(&server, "vol0"), ["good", "bad"]);

    let mut connected = server.disk("vol0/db");
    let planned = server.good(&["history", "revert", "vol0", "--mark", "good", "--dry-run"]);
    assert!(planned.contains("nothing was done"), "{planned}");
    let reverted = server.json(&["history", "revert", "vol0", "--mark", "good", "--yes"]);
    assert!(reverted["sessions_ended"].as_u64().unwrap() >= 1, "{reverted}");
    assert_eq!(reverted["findings"], serde_json::json!([]));
    assert!(connected.read(0, 512).is_err(), "its session has ended");
    assert_eq!(read(&server, "vol0/db"), 1);
    assert_eq!(read(&server, "vol0@first/db"), 1, "the deleted snapshot is back");
    assert!(!server.has_export("vol0/extra"), "what was made since is not there");
    server.kill();
    server.restart();
    assert_eq!(read(&server, "vol0/db"), 1);
    write(&server, "vol0/db", 3);
    assert!(server.good(&["volume", "check", "vol0", "--deep"]).contains("sound"));

    // And forth again: to what was before the revert.
    let undo = reverted["undo"].as_str().unwrap();
    server.good(&["history", "revert", "vol0", "--mark", undo, "--yes"]);
    assert_eq!(read(&server, "vol0/db"), 2);
    assert!(server.has_export("vol0/extra") && !server.has_export("vol0@first/db"));
    server.kill();
    server.restart();
    assert_eq!(read(&server, "vol0/db"), 2);
    assert!(server.good(&["volume", "check", "vol0", "--deep"]).contains("sound"));
    assert_eq!(server.terminate(), 0);
    server.restart();
    assert_eq!(read(&server, "vol0/db"), 2);
    server.good(&["volume", "delete", "vol0", "--yes"]);
    // Both can be named again.
    server.good(&[&["volume", "create", "vol0", "--size", "64M"], &history[..]].concat());
}

#[test]
fn volume_stays_closed_without_its_history_and_opens_when_that_is_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Running::start(dir.path(), "d");
    let (store, away) = (path(dir.path(), "store"), path(dir.path(), "away"));
    server.good(&[
        "volume",
        "create",
        "vol0",
        "--size",
        "64M",
        "--history",
        &store,
        "--placement",
        "logging",
    ]);
    server.good(&["lun", "create", "vol0/db", "--size", "1M"]);
    write(&server, "vol0/db", 1);
    server.kill();
    std::fs::rename(&store, &away).unwrap();
    server.restart();
    let said = server.bad(26, "volume-damaged", &["lun", "list", "vol0"]);
    assert!(said.contains(&store), "{said}");
    let problem = &server.json(&["status"])["problems"][0];
    assert!(problem["next"].as_str().unwrap().contains("bring"), "{problem}");
    assert!(!server.has_export("vol0/db"));
    let taken = path(dir.path(), "d/volumes/vol0/volume.img");
    server.bad(11, "busy", &["volume", "create", "vol1", "--size", "64M", "--history", &taken]);
    std::fs::rename(&away, &store).unwrap();
    let deadline = Instant::now() + PATIENCE;
    while !server.has_export("vol0/db") {
        assert!(Instant::now() < deadline, "it opens when its history is back");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(read(&server, "vol0/db"), 1);
}

#[test]
fn what_a_volume_over_a_history_does_not_do_is_refused_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), "d");
    let store = path(dir.path(), "store");
    let create = ["volume", "create", "vol0", "--size", "64M", "--history", &store];
    server.bad(2, "usage", &["volume", "create", "vol0", "--size", "64M", "--window", "1h"]);
    server.bad(2, "usage", &[&create[..], &["--granularity", "sometimes"]].concat());
    assert!(!Path::new(&store).exists(), "nothing is left");
    server.good(&create);
    server.good(&["lun", "create", "vol0/db", "--size", "1M"]);
    write(&server, "vol0/db", 1);
    server.good(&["snapshot", "create", "vol0@first"]);
    server.good(&["history", "mark", "vol0", "good"]);
    write(&server, "vol0/db", 2);

    let log = path(dir.path(), "log");
    std::fs::write(&log, vec![0; 16 * MIB]).unwrap();
    server.bad(2, "usage", &["volume", "log", "vol0", "--device", &log]);
    server.bad(22, "too-small", &["volume", "grow", "vol0", "--size", "128M"]);
    server.bad(2, "usage", &["history", "view", "vol0", "--mark", "good"]);
    server.bad(10, "not-found", &["history", "revert", "vol0", "--mark", "none", "--yes"]);
    server.bad(10, "not-found", &["mirror", "rewind", "vol0", "--mark", "good", "--yes"]);
    let disk = path(dir.path(), "disk");
    server.bad(
        21,
        "taken",
        &["device", "adopt", "vol0", "--origin", &disk, "--size", "1M", "--history", &path(dir.path(), "s2")],
    );
    server.good(&["clone", "create", "vol0@first", "copy"]);
    server.bad(11, "busy", &["history", "revert", "vol0", "--mark", "good", "--yes"]);
    assert_eq!(read(&server, "vol0/db"), 2);
    server.good(&["clone", "delete", "copy", "--yes"]);
    server.good(&["volume", "create", "plain", "--size", "64M"]);
    server.bad(10, "not-found", &["history", "status", "plain"]);
    server.good(&["history", "revert", "vol0", "--mark", "good", "--yes"]);
    assert_eq!(read(&server, "vol0/db"), 1);
}

/// A source with a LUN full of `1`, and a mirror of it over a history.
fn mirrored(dir: &Path) -> (Running, Running) {
    let source = Running::start(dir, "source");
    source.good(&["volume", "create", "vol0", "--size", "64M"]);
    source.good(&["lun", "create", "vol0/db", "--size", "1M"]);
    write(&source, "vol0/db", 1);
    let destination = Running::start(dir, "destination");
    let token = source.json(&["peer", "invite"])["token"].as_str().unwrap().to_owned();
    let store = path(dir, "mirror.history");
    destination.good(&["mirror", "create", "vol0", &token, "--history", &store]);
    (source, destination)
}

#[test]
fn mirror_is_rewound_away_from_a_mistake_that_it_has_copied_and_goes_on_right() {
    let dir = tempfile::tempdir().unwrap();
    let (source, mut destination) = mirrored(dir.path());
    source.good(&["snapshot", "create", "vol0@kept"]);
    for byte in 2..5 {
        write(&source, "vol0/db", byte);
        destination.good(&["mirror", "update", "vol0"]);
    }
    let marked = marks(&destination, "vol0");
    assert_eq!(marked.len(), 4, "one for each image: {marked:?}");
    // The mistake is copied.
    source.good(&["lun", "delete", "vol0/db", "--yes"]);
    destination.good(&["mirror", "update", "vol0"]);
    assert!(!destination.has_export("vol0/db"));
    destination.kill();
    destination.restart();

    destination.bad(13, "wrong-role", &["history", "revert", "vol0", "--mark", &marked[2], "--yes"]);
    destination.bad(10, "not-found", &["mirror", "rewind", "vol0", "--mark", "none", "--yes"]);
    assert_ne!(destination.json(&["mirror", "status", "vol0"])["state"], "paused");
    let rewound = destination.json(&["mirror", "rewind", "vol0", "--mark", &marked[2], "--yes"]);
    assert_eq!(read(&destination, "vol0/db"), 3);
    assert_eq!(destination.json(&["mirror", "status", "vol0"])["state"], "paused");
    destination.bad(11, "busy", &["mirror", "update", "vol0"]);
    destination.kill();
    destination.restart();
    assert_eq!(read(&destination, "vol0/db"), 3, "it stays there");
    destination.bad(11, "busy", &["mirror", "update", "vol0"]);
    // The mistake is looked at once more, and left again.
    let undo = rewound["undo"].as_str().unwrap();
    destination.good(&["mirror", "rewind", "vol0", "--mark", undo, "--yes"]);
    assert!(!destination.has_export("vol0/db"));
    destination.good(&["mirror", "rewind", "vol0", "--mark", &marked[1], "--yes"]);
    assert_eq!(read(&destination, "vol0/db"), 2);

    // The source is mended, and has one snapshot in common with the mirror.
    source.good(&["lun", "create", "vol0/db", "--size", "1M"]);
    write(&source, "vol0/db", 7);
    destination.good(&["mirror", "resume", "vol0"]);
    // An older image is shown: nothing says that all is well before the source was asked, and it is asked.
    let status = || destination.json(&["mirror", "status", "vol0"]);
    let shown = status();
    assert!(shown["state"] != "mirrored" || shown["lag_ms"].is_u64(), "{shown}");
    let deadline = Instant::now() + PATIENCE;
    while status()["lag_ms"].as_u64().is_none_or(|lag| lag == 0) {
        assert!(Instant::now() < deadline, "{}", status());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    destination.good(&["mirror", "update", "vol0"]);
    assert_eq!(read(&destination, "vol0/db"), 7);
    assert_eq!(read(&destination, "vol0@kept/db"), 1);
    assert!(destination.good(&["volume", "check", "vol0", "--deep"]).contains("sound"));
    write(&source, "vol0/db", 8);
    destination.good(&["mirror", "update", "vol0"]);
    assert_eq!(read(&destination, "vol0/db"), 8);
}

#[test]
fn mirror_that_has_nothing_in_common_after_a_rewind_says_the_price_and_fails_over_to_what_it_shows() {
    let dir = tempfile::tempdir().unwrap();
    let (source, destination) = mirrored(dir.path());
    for byte in 2..4 {
        write(&source, "vol0/db", byte);
        destination.good(&["mirror", "update", "vol0"]);
    }
    let marked = marks(&destination, "vol0");
    destination.good(&["mirror", "rewind", "vol0", "--mark", &marked[0], "--yes"]);
    assert_eq!(read(&destination, "vol0/db"), 1);
    destination.good(&["mirror", "resume", "vol0"]);
    destination.bad(13, "diverged", &["mirror", "update", "vol0"]);
    assert_eq!(read(&destination, "vol0/db"), 1, "nothing is brought unasked");
    destination.good(&["mirror", "update", "vol0", "--compare"]);
    assert_eq!(read(&destination, "vol0/db"), 3);
    assert!(destination.good(&["volume", "check", "vol0", "--deep"]).contains("sound"));

    destination.good(&["mirror", "rewind", "vol0", "--mark", &marked[1], "--yes"]);
    destination.good(&["mirror", "failover", "vol0", "--yes"]);
    assert_eq!(read(&destination, "vol0/db"), 2);
    write(&destination, "vol0/db", 9);
    destination.bad(13, "wrong-role", &["mirror", "rewind", "vol0", "--mark", &marked[0], "--yes"]);
    destination.bad(13, "wrong-role", &["history", "revert", "vol0", "--mark", &marked[0], "--yes"]);
    assert_eq!(read(&destination, "vol0/db"), 9);
}

#[test]
fn volume_is_not_brought_back_under_programs_that_work_in_a_mount_of_it() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), "d");
    let (store, point) = (path(dir.path(), "vol0.history"), path(dir.path(), "mnt"));
    server.good(&["volume", "create", "vol0", "--size", "64M", "--history", &store]);
    std::fs::create_dir(&point).unwrap();
    server.good(&["mount", "vol0", &point]);
    let file = format!("{point}/file");
    std::fs::write(&file, "one").unwrap();
    server.good(&["snapshot", "create", "vol0@one"]);
    server.good(&["history", "mark", "vol0", "one"]);
    let mut open = std::fs::File::create(&file).unwrap();
    open.write_all(b"two").unwrap();
    let revert = ["history", "revert", "vol0", "--mark", "one", "--yes"];
    assert!(server.bad(11, "busy", &revert).contains(&point));
    // Also where it was taken away, and goes on for who has a file of it open.
    rustix::mount::unmount(&point, rustix::mount::UnmountFlags::DETACH).unwrap();
    wait_until("it is not noticed", || server.json(&["mount", "list"])[0]["left_to"].is_string());
    assert!(server.bad(11, "busy", &revert).contains(&point), "he would lose what he has not written yet");
    open.sync_all().unwrap();
    drop(open);
    let deadline = Instant::now() + PATIENCE;
    while !server.run(&revert).status.success() {
        assert!(Instant::now() < deadline, "nobody works in it any more");
    }
    server.good(&["mount", "vol0", &point]);
    let found = std::fs::read_to_string(&file).unwrap();
    server.good(&["unmount", &point]);
    assert_eq!(found, "one");
}
