//! Volumes over a history from the command line: reverted as a whole, under clients and over kills;
//! viewed as of an instant; mirrors reverted from a mistake that they have copied.

mod running;

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

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

    // And forward again: to the state before the revert.
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
    server.bad(2, "usage", &["history", "clone", "vol0", "--mark", "good"]);
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

/// A volume over a history, with a LUN that is full of `1` at the mark `good` and of `2` now.
fn with_past(dir: &Path) -> Running {
    let server = Running::start(dir, "d");
    let store = path(dir, "vol0.history");
    let create = ["volume", "create", "vol0", "--size", "64M", "--history", &store];
    let kind = ["--placement", "split-down-stream", "--granularity", "every-write"];
    server.good(&[&create[..], &kind].concat());
    server.good(&["lun", "create", "vol0/db", "--size", "1M"]);
    write(&server, "vol0/db", 1);
    server.good(&["history", "mark", "vol0", "good"]);
    write(&server, "vol0/db", 2);
    server
}

fn view(server: &Running, arguments: &[&str]) -> Value {
    server.json(&[&["history", "view", "vol0"], arguments].concat())
}

#[test]
fn view_of_a_volume_stays_at_its_instant_over_kills_and_a_revert_while_the_volume_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = with_past(dir.path());
    let past = view(&server, &["--mark", "good", "--as", "past"]);
    assert_eq!(past["name"], "vol0@past");
    assert!(past["uris"][0].as_str().unwrap().contains("vol0%40past/db"), "{past}");
    assert_eq!((read(&server, "vol0@past/db"), read(&server, "vol0/db")), (1, 2));
    assert!(server.disk("vol0@past/db").write(0, &[9; 4096]).is_err(), "a view is read-only");
    // Flushed, and in the intent log alone.
    write(&server, "vol0/db", 3);
    let late = view(&server, &["--at", "now"]);
    let late = late["name"].as_str().unwrap();
    assert!(late.starts_with("vol0@at-"), "{late}");
    write(&server, "vol0/db", 4);
    server.good(&["lun", "create", "vol0/extra", "--size", "1M"]);
    let all = |server: &Running| {
        let late = read(server, &format!("{late}/db"));
        (read(server, "vol0@past/db"), late, read(server, "vol0/db"))
    };
    assert_eq!(all(&server), (1, 3, 4));
    assert!(!server.has_export("vol0@past/extra"));
    let named = |server: &Running| view(server, &[]).as_array().unwrap().len();
    assert_eq!(named(&server), 2);
    assert_eq!(server.json(&["history", "status", "vol0"])["views"].as_array().unwrap().len(), 2);
    assert_eq!(server.json(&["volume", "list"]).as_array().unwrap().len(), 1, "it is no volume");
    assert_eq!(server.json(&["status"])["problems"], serde_json::json!([]));

    server.kill();
    server.restart();
    assert_eq!(all(&server), (1, 3, 4), "both are back after a kill");
    server.good(&["history", "revert", "vol0", "--mark", "good", "--yes"]);
    assert_eq!(all(&server), (1, 3, 1), "a revert leaves views where they are");
    write(&server, "vol0/db", 5);
    assert!(server.good(&["volume", "check", "vol0", "--deep"]).contains("sound"));
    server.kill();
    server.restart();
    assert_eq!(all(&server), (1, 3, 5));

    let connected = server.disk("vol0@past/db");
    server.bad(11, "busy", &["history", "view", "vol0", "--delete", "past"]);
    connected.disconnect().unwrap();
    let delete = ["history", "view", "vol0", "--delete", "past"];
    wait_until("its client has gone", || server.run(&delete).status.success());
    assert!(!server.has_export("vol0@past/db"));
    server.bad(10, "not-found", &delete);
    assert_eq!(named(&server), 1);
    server.kill();
    server.restart();
    assert_eq!(named(&server), 1, "what was ended does not come back");
    // The other one is deleted with the volume, whose devices can be named again.
    server.good(&["volume", "delete", "vol0", "--yes"]);
    let store = path(dir.path(), "vol0.history");
    server.good(&["volume", "create", "vol0", "--size", "64M", "--history", &store]);
    assert_eq!(named(&server), 0);
}

#[test]
fn what_a_view_of_a_volume_does_not_do_is_refused_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let server = with_past(dir.path());
    let look = |arguments: &[&str]| [&["history", "view", "vol0"], arguments].concat().join(" ");
    let refused = |code, kind, line: &str| {
        server.bad(code, kind, &line.split(' ').collect::<Vec<_>>());
    };
    refused(10, "not-found", &look(&["--mark", "none"]));
    refused(10, "not-found", &look(&["--at", "2001-01-01T00:00:00Z"]));
    refused(10, "not-found", &look(&["--delete", "none"]));
    server.good(&["snapshot", "create", "vol0@first"]);
    refused(21, "taken", &look(&["--mark", "good", "--as", "first"]));
    server.good(&["history", "view", "vol0", "--mark", "good", "--as", "past"]);
    refused(21, "taken", &look(&["--mark", "good", "--as", "past"]));
    refused(21, "taken", "snapshot create vol0@past");
    refused(21, "taken", "snapshot rename vol0@first past");
    refused(2, "usage", "snapshot delete vol0@past --yes");
    refused(2, "usage", "clone create vol0@past copy");
    server.good(&["volume", "create", "plain", "--size", "64M"]);
    refused(10, "not-found", "history view plain --at now");
    assert_eq!((read(&server, "vol0@past/db"), read(&server, "vol0/db")), (1, 2));
    let left = fs::read_dir(server.data.join("volumes/vol0")).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert!(!left.iter().any(|name| name.contains("scratch")), "{left:?}");
}

/// A directory that something is mounted on; unmounted at the end, whatever comes.
struct Point(PathBuf);

impl Point {
    fn new(dir: &Path, name: &str) -> Self {
        let point = dir.join(name);
        fs::create_dir(&point).unwrap();
        Self(point)
    }

    fn name(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Point {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

#[test]
fn files_of_a_volume_at_an_instant_are_mounted_beside_those_of_now() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut server = with_past(dir.path());
    let (now, then) = (Point::new(dir.path(), "now"), Point::new(dir.path(), "then"));
    server.good(&["mount", "vol0", now.name()]);
    let put = |text: &str| {
        let mut file = File::create(now.0.join("file")).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file.sync_all().unwrap();
    };
    put("before");
    server.good(&["history", "view", "vol0", "--at", "now", "--as", "past"]);
    put("after");
    server.good(&["mount", "vol0@past", then.name()]);
    let shown = || [&now, &then].map(|point| fs::read_to_string(point.0.join("file")).unwrap());
    assert_eq!(shown(), ["after", "before"]);
    assert!(fs::write(then.0.join("other"), "").is_err(), "a view is read-only");
    server.bad(11, "busy", &["history", "view", "vol0", "--delete", "past"]);
    server.good(&["unmount", now.name()]);
    server.bad(11, "busy", &["history", "revert", "vol0", "--mark", "good", "--yes"]);
    server.good(&["mount", "vol0", now.name()]);
    server.kill();
    server.restart();
    assert_eq!(shown(), ["after", "before"]);
    server.good(&["unmount", then.name()]);
    server.good(&["history", "view", "vol0", "--delete", "past"]);
    server.bad(10, "not-found", &["mount", "vol0@past", then.name()]);
    server.good(&["unmount", now.name()]);
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
    // The mistake is made visible once more, and reverted again.
    let undo = rewound["undo"].as_str().unwrap();
    destination.good(&["mirror", "rewind", "vol0", "--mark", undo, "--yes"]);
    assert!(!destination.has_export("vol0/db"));
    destination.good(&["mirror", "rewind", "vol0", "--mark", &marked[1], "--yes"]);
    assert_eq!(read(&destination, "vol0/db"), 2);

    // The source is mended, and has one snapshot in common with the mirror.
    source.good(&["lun", "create", "vol0/db", "--size", "1M"]);
    write(&source, "vol0/db", 7);
    destination.good(&["mirror", "resume", "vol0"]);
    // An older image is shown: the state is not good before the source was queried, and it is
    // queried.
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

/// While it was the source it had a mirror, whose name it still has.
#[test]
fn mirror_that_was_failed_over_and_failed_back_is_rewound() {
    let dir = tempfile::tempdir().unwrap();
    let (source, destination) = mirrored(dir.path());
    write(&source, "vol0/db", 2);
    destination.good(&["mirror", "update", "vol0"]);
    destination.good(&["mirror", "failover", "vol0", "--yes"]);
    write(&destination, "vol0/db", 3);
    destination.good(&["mirror", "allow-reverse", "vol0"]);
    // The source is notified within seconds.
    let deadline = Instant::now() + PATIENCE;
    while !source.run(&["mirror", "failback", "vol0", "--discard-divergent", "--yes"]).status.success() {
        assert!(Instant::now() < deadline, "it has not heard of the failover");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    for byte in 4..7 {
        write(&source, "vol0/db", byte);
        destination.good(&["mirror", "update", "vol0"]);
    }
    assert_eq!(read(&destination, "vol0/db"), 6);
    let marked = marks(&destination, "vol0");
    destination.good(&["mirror", "rewind", "vol0", "--mark", &marked[marked.len() - 2], "--yes"]);
    assert_eq!(read(&destination, "vol0/db"), 5);
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
    // Also if it was unmounted lazily, and still serves open files.
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

#[test]
fn view_of_a_mirror_stays_at_its_image_while_updates_and_rewinds_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let (source, mut destination) = mirrored(dir.path());
    for byte in 2..4 {
        write(&source, "vol0/db", byte);
        destination.good(&["mirror", "update", "vol0"]);
    }
    let marked = marks(&destination, "vol0");
    view(&destination, &["--mark", &marked[1], "--as", "past"]);
    assert_eq!((read(&destination, "vol0@past/db"), read(&destination, "vol0/db")), (2, 3));
    // The source gives a snapshot the name of the view.
    source.good(&["snapshot", "create", "vol0@past"]);
    write(&source, "vol0/db", 4);
    destination.good(&["mirror", "update", "vol0"]);
    assert_eq!((read(&destination, "vol0@past/db"), read(&destination, "vol0/db")), (2, 4));
    destination.kill();
    destination.restart();
    assert_eq!((read(&destination, "vol0@past/db"), read(&destination, "vol0/db")), (2, 4));
    let rewound = destination.json(&["mirror", "rewind", "vol0", "--mark", &marked[0], "--yes"]);
    assert_eq!((read(&destination, "vol0@past/db"), read(&destination, "vol0/db")), (2, 1));
    let undo = rewound["undo"].as_str().unwrap();
    destination.good(&["mirror", "rewind", "vol0", "--mark", undo, "--yes"]);
    destination.good(&["mirror", "failover", "vol0", "--yes"]);
    write(&destination, "vol0/db", 5);
    assert_eq!((read(&destination, "vol0@past/db"), read(&destination, "vol0/db")), (2, 5));
    destination.good(&["history", "view", "vol0", "--delete", "past"]);
    assert_eq!(read(&destination, "vol0@past/db"), 3, "the snapshot that was behind it");
}

/// A volume over a history of 96 MiB that keeps all of it for an hour.
fn over_a_floor(server: &Running, dir: &Path, policy: &str, placement: &str) {
    let store = path(dir, "vol0.history");
    let history = ["--history", &store, "--history-size", "96M", "--placement", placement];
    let kept = ["--granularity", "every-write", "--floor", "1h", "--floor-policy", policy];
    // With room for the data of a mount that the kernel caches.
    server.good(&[&["volume", "create", "vol0", "--size", "2G"], &history[..], &kept].concat());
    server.good(&["lun", "create", "vol0/db", "--size", "128M"]);
    server.good(&["snapshot", "create", "vol0@empty"]);
}

/// Fills that history except for some MiB: all flushed data is `1`.
fn fill_up(server: &Running) {
    let room = || {
        let status = server.json(&["history", "status", "vol0"]);
        status["store_bytes"].as_u64().unwrap() - status["used_bytes"].as_u64().unwrap()
    };
    let mut disk = server.disk("vol0/db");
    let mut at = 0;
    while room() > 9 << 20 {
        disk.write(at << 20, &vec![1; MIB]).unwrap();
        disk.flush().unwrap();
        at = (at + 1) % 64;
    }
}

/// Writes more than there is room for, of `2`, which is acknowledged and not flushed.
fn overfill(server: &Running) {
    server.disk("vol0/db").write(64 << 20, &vec![2; 5 * MIB]).unwrap();
}

/// A volume over a history that is full beneath its floor except for some MiB: all flushed data is
/// `1`, up to the mark `full`. Then more writes of `2` than there is room for are acknowledged and
/// not flushed.
fn full(server: &Running, dir: &Path, policy: &str, placement: &str) {
    over_a_floor(server, dir, policy, placement);
    fill_up(server);
    server.good(&["history", "mark", "vol0", "full"]);
    overfill(server);
}

/// A source with a volume over a floor and one without, `other`, and mirrors of both, the first
/// with these options.
fn mirrored_over_a_floor(dir: &Path, options: &[&str]) -> (Running, Running) {
    let source = Running::start(dir, "source");
    over_a_floor(&source, dir, "wait", "split-down-stream");
    source.good(&["volume", "create", "other", "--size", "64M"]);
    source.good(&["lun", "create", "other/db", "--size", "1M"]);
    write(&source, "other/db", 1);
    let destination = Running::start(dir, "destination");
    destination.good(&[&["mirror", "create", "vol0", &source.invite()], options].concat());
    destination.good(&["mirror", "create", "other", &source.invite()]);
    (source, destination)
}

fn mirror(server: &Running, volume: &str) -> Value {
    server.json(&["mirror", "status", volume])
}

/// Whether all writes of [`overfill`] have arrived.
fn has_all(destination: &Running) -> bool {
    let bytes = destination.disk("vol0/db").read(64 << 20, 5 * MIB as u32).unwrap();
    bytes.iter().all(|byte| *byte == 2)
}

const NO_ROOM: &str = "its history is full and has nothing that is older than its floor";

#[test]
fn mirror_whose_source_has_no_room_in_its_history_says_so_within_seconds_and_goes_on_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let (source, destination) = mirrored_over_a_floor(dir.path(), &[]);
    fill_up(&source);
    overfill(&source);
    let asked = Instant::now();
    let said = destination.bad(24, "no-space", &["mirror", "update", "vol0"]);
    assert!(said.contains(NO_ROOM), "{said}");
    assert!(asked.elapsed() < PATIENCE / 3, "it took {:?}", asked.elapsed());
    let shown = mirror(&destination, "vol0");
    assert_eq!(shown["state"], "failing", "{shown}");
    assert!(shown["reason"].as_str().unwrap().contains(NO_ROOM), "{shown}");
    assert!(
        shown["remedy"]
            .as_str()
            .unwrap()
            .contains("on the source: allow old history to be discarded with `cairn history window")
    );
    // It cannot take that role, nor be deleted: both would wait there while holding state that all
    // mirrors need.
    destination.bad(24, "no-space", &["mirror", "reverse", "vol0", "--yes"]);
    let known = source.json(&["status"])["followers"].clone();
    let known = known.as_array().unwrap().iter().find(|known| known["volume"] == "vol0").unwrap();
    source.bad(24, "no-space", &["mirror", "forget", "vol0", known["name"].as_str().unwrap(), "--yes"]);
    write(&source, "other/db", 2);
    destination.good(&["mirror", "update", "other"]);
    assert_eq!(read(&destination, "other/db"), 2);
    destination.good(&["mirror", "set", "vol0", "--every", "1s"]);
    source.good(&["history", "window", "vol0", "--floor", "off"]);
    wait_until("the next update comes by itself", || has_all(&destination));
    wait_until("all is well", || mirror(&destination, "vol0")["check"] == 0);
}

#[test]
fn peer_is_revoked_also_where_there_is_no_room_to_let_go_of_what_is_kept_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let (source, destination) = mirrored_over_a_floor(dir.path(), &[]);
    fill_up(&source);
    overfill(&source);
    let of_vol0 = |what: &Value| {
        let all = what.as_array().unwrap();
        all.iter().find(|one| one["volume"] == "vol0").unwrap().clone()
    };
    let peer = of_vol0(&source.json(&["peer", "list"]));
    let asked = Instant::now();
    source.bad(24, "no-space", &["peer", "revoke", peer["id"].as_str().unwrap(), "--yes"]);
    assert!(asked.elapsed() < PATIENCE / 3, "it took {:?}", asked.elapsed());
    destination.bad(12, "peer-refused", &["mirror", "update", "vol0"]);
    write(&source, "other/db", 2);
    destination.good(&["mirror", "update", "other"]);
    source.good(&["history", "window", "vol0", "--floor", "off"]);
    let mirror = of_vol0(&source.json(&["status"])["followers"]);
    source.good(&["mirror", "forget", "vol0", mirror["name"].as_str().unwrap(), "--yes"]);
}

#[test]
fn mirror_that_follows_a_source_without_room_in_its_history_holds_up_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let (source, destination) = mirrored_over_a_floor(dir.path(), &["--continuous"]);
    wait_until("it follows", || mirror(&destination, "vol0")["state"] == "continuous");
    fill_up(&source);
    overfill(&source);
    wait_until("it says why it lags", || {
        mirror(&destination, "vol0")["reason"].as_str().is_some_and(|reason| reason.contains(NO_ROOM))
    });
    write(&source, "other/db", 2);
    destination.good(&["mirror", "update", "other"]);
    assert_eq!(read(&destination, "other/db"), 2);
    source.good(&["history", "window", "vol0", "--floor", "off"]);
    wait_until("it follows again by itself", || has_all(&destination));
}

#[test]
fn commands_on_a_volume_that_waits_for_room_are_refused_and_do_not_come_later() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), "d");
    full(&server, dir.path(), "wait", "split-down-stream");
    let mut client = server.disk("vol0/db");
    client.read(0, 4096).unwrap();
    let point = path(dir.path(), "point");
    fs::create_dir(&point).unwrap();
    let refused = [
        &["snapshot", "create", "vol0@late"][..],
        &["history", "mark", "vol0", "late"],
        &["lun", "create", "vol0/late", "--size", "1M"],
        &["lun", "resize", "vol0/db", "--size", "130M"],
        &["lun", "delete", "vol0/db", "--yes"],
        &["history", "revert", "vol0", "--mark", "full", "--yes"],
        &["history", "revert", "vol0", "--mark", "full", "--dry-run"],
        &["history", "disable", "vol0", "--yes"],
        &["clone", "create", "vol0@empty", "late"],
        &["quota", "list", "vol0"],
        &["image", "dump", "vol0", "--dry-run"],
        // It would make the first directory.
        &["mount", "vol0", &point],
    ];
    for command in refused {
        let asked = Instant::now();
        // Deleting a LUN in use reports that first.
        let in_use = command[1] == "delete";
        let output = server.run(command);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(if in_use { 11 } else { 24 }), "{command:?}: {said}");
        assert!(asked.elapsed() < PATIENCE / 3, "{command:?} took {:?}", asked.elapsed());
        assert!(in_use || said.contains("cairn history window vol0 --floor"), "{command:?}: {said}");
    }
    let unknown = server.bad(10, "not-found", &["history", "view", "vol0", "--mark", "none"]);
    assert!(unknown.starts_with("the history of `vol0`"), "it is a volume, and no device: {unknown}");
    // A later command waits together with the earlier ones.
    assert!(server.threads("write out") <= 1, "one of them waits, however often somebody asks");
    client.read(0, 4096).expect("no session ends for a revert that is refused");
    server.good(&["history", "window", "vol0", "--floor", "off"]);
    let mut disk = server.disk("vol0/db");
    disk.write(64 << 20, &[3; 4096]).unwrap();
    disk.flush().unwrap();
    server.good(&["snapshot", "create", "vol0@later"]);
    let listed = server.good(&["snapshot", "list", "vol0"]) + &server.good(&["lun", "list", "vol0"]);
    assert!(server.json(&["clone", "list"]).as_array().unwrap().is_empty(), "none came later");
    server.good(&["clone", "create", "vol0@empty", "copy"]);
    assert_eq!(server.disk("copy/db").read(0, 4096).unwrap(), [0; 4096]);
    assert!(
        listed.contains("vol0@later") && !listed.contains("vol0@late ") && !listed.contains("vol0/late"),
        "{listed}"
    );
    assert_eq!(marks(&server, "vol0"), ["full"]);
    assert_eq!(server.threads("write out"), 0, "what has waited is over");
}

/// A mount of a volume over a floor, whose history is full except for some MiB; always unmounted at
/// the end.
struct MountedOverAFloor {
    server: Running,
    point: String,
}

impl MountedOverAFloor {
    fn new(dir: &Path) -> Self {
        let server = Running::start_with(dir, "d", &["--mirror", "off", "--cache", "16M"]);
        over_a_floor(&server, dir, "wait", "split-down-stream");
        let point = path(dir, "mounted");
        fs::create_dir(&point).unwrap();
        server.good(&["mount", "vol0", &point]);
        let mounted = Self { server, point };
        File::create(mounted.file()).and_then(|file| file.sync_all()).unwrap();
        fill_up(&mounted.server);
        mounted
    }

    /// A program that writes more than there is room for in the history and in memory together, and
    /// syncs it. The kernel caches some of it. (This process must not have such a file open: each
    /// program that it starts would close it first, and wait for that.)
    fn overfill(&self) -> Child {
        let file = self.file();
        let mut command = Command::new("dd");
        command.args([
            "if=/dev/urandom",
            "bs=1M",
            "count=100",
            "conv=fsync",
            &format!("of={}", file.display()),
        ]);
        let program = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let waits = || self.server.json(&["history", "status", "vol0"])["waiting"].as_u64().unwrap() > 0;
        wait_until("nothing waits for room", waits);
        // Until as much as possible was accepted.
        std::thread::sleep(Duration::from_secs(3));
        program
    }

    fn file(&self) -> PathBuf {
        Path::new(&self.point).join("file")
    }
}

impl Drop for MountedOverAFloor {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.point, rustix::mount::UnmountFlags::DETACH);
    }
}

/// A thread of the server waits in the kernel for the write of a program for which the server has
/// no room. Killed then, the server can't exit: no thread serves that write any more.
#[test]
fn server_that_is_killed_while_it_asks_for_what_has_no_room_makes_way_for_the_next_one() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut mounted = MountedOverAFloor::new(dir.path());
    // It writes more than there is room for, less than the kernel caches, and has the file open:
    // waiting for its writes would block other requests.
    let file = mounted.file();
    let python = |script: String| Command::new("python3").args(["-c", &script]).spawn().unwrap();
    let name = file.display();
    let mut program = python(format!(
        "import os, time; f = os.open('{name}', os.O_WRONLY); [os.write(f, os.urandom(1 << 20)) for _ in range(36)]; time.sleep(300)"
    ));
    let waits = || mounted.server.json(&["history", "status", "vol0"])["waiting"].as_u64().unwrap() > 0;
    wait_until("nothing waits for room", waits);
    std::thread::sleep(Duration::from_secs(3));
    // Where its data ends the server knows only once it has it.
    let mut asking = python(format!("import os; os.lseek(os.open('{name}', os.O_RDONLY), 0, os.SEEK_HOLE)"));
    let asked = Instant::now();
    while !mounted.server.waits_for_pages() {
        if asked.elapsed() > PATIENCE / 3 {
            eprintln!("skipped: this kernel lets nobody ask while it holds so much");
            mounted.server.kill();
            for child in [&mut program, &mut asking] {
                child.kill().unwrap();
            }
            program.wait().unwrap();
            asking.wait().unwrap();
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(asking.try_wait().unwrap().is_none(), "it was told");
    let killed = mounted.server.kill_and_go_on();
    mounted.server.restart();
    let ended = killed.join().unwrap();
    assert!(ended, "the killed server has not ended");
    assert!(!asking.wait().unwrap().success(), "it is cut off");
    program.kill().unwrap();
    program.wait().unwrap();
    let listed = mounted.server.json(&["mount", "list"]);
    assert_eq!(listed[0]["problem"], Value::Null, "{listed}");
    assert!(file.exists(), "it is mounted again");
}

/// The kernel's cache of a mount can't be written while the volume's writes wait. A request to
/// unmount reports that, and no other request waits for it.
#[test]
fn mount_whose_writes_wait_for_room_is_not_taken_away_and_holds_up_nobody() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mounted = MountedOverAFloor::new(dir.path());
    let (server, point) = (&mounted.server, &mounted.point);
    let mut program = mounted.overfill();
    std::thread::scope(|scope| {
        let unmounting = scope.spawn(|| server.run(&["unmount", point]));
        // By now it waits, if it does.
        std::thread::sleep(Duration::from_secs(1));
        let answered = [&["mount", "list"][..], &["snapshot", "list", "vol0"]]
            .map(|command| server.is_done_in_time(command));
        let asked = Instant::now();
        while !unmounting.is_finished() && asked.elapsed() < PATIENCE / 3 {
            std::thread::sleep(Duration::from_millis(20));
        }
        let is_late = !unmounting.is_finished();
        if is_late || !server.is_done_in_time(&["history", "window", "vol0", "--floor", "off"]) {
            // Otherwise no waiting thread would end.
            server.signal("KILL");
        }
        let refused = unmounting.join().unwrap();
        let said = String::from_utf8(refused.stderr).unwrap();
        assert_eq!((answered, is_late), ([true, true], false), "{said}");
        assert_eq!(refused.status.code(), Some(24), "{said}");
        assert!(said.contains("cairn history window vol0 --floor"), "{said}");
    });
    assert!(program.wait().unwrap().success(), "there is room by now");
    server.good(&["unmount", point]);
    server.good(&["mount", "vol0", point]);
    assert_eq!(fs::metadata(mounted.file()).unwrap().len(), 100 << 20);
    server.good(&["unmount", point]);
}

/// On any processor the kernel may write back, with all its concurrent requests waiting.
#[test]
fn programs_on_every_processor_are_answered_while_writes_of_a_mount_wait_for_room() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mounted = MountedOverAFloor::new(dir.path());
    let mut program = mounted.overfill();
    let script = r#"
import os, sys
for processor in os.sched_getaffinity(0):
    os.sched_setaffinity(0, {processor})
    for number in range(20):
        assert not os.path.exists(f"{sys.argv[1]}/{processor} {number}")
    os.listdir(sys.argv[1])
"#;
    let mut asking = Command::new("python3").args(["-c", script, &mounted.point]).spawn().unwrap();
    let deadline = Instant::now() + PATIENCE / 3;
    while asking.try_wait().unwrap().is_none() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    let answered = asking.try_wait().unwrap();
    // Otherwise no waiting thread would end.
    mounted.server.good(&["history", "window", "vol0", "--floor", "off"]);
    asking.wait().unwrap();
    assert!(answered.is_some_and(|status| status.success()), "{answered:?}");
    assert!(program.wait().unwrap().success(), "there is room by now");
    mounted.server.good(&["unmount", &mounted.point]);
}

/// It accepts the cached writes of programs before it ends, except those for which there may never
/// be room.
#[test]
fn server_ends_though_writes_of_a_mount_wait_for_room() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut mounted = MountedOverAFloor::new(dir.path());
    let mut program = mounted.overfill();
    let has_ended = mounted.server.terminate_in_time();
    // It gets an error, as not all of it was written.
    let told = program.wait().unwrap();
    assert!(has_ended, "the server does not end");
    assert!(!told.success(), "what was not taken in is told as written");
    mounted.server.restart();
    assert!(mounted.file().exists(), "it is mounted again");
    mounted.server.good(&["history", "window", "vol0", "--floor", "off"]);
    mounted.server.good(&["unmount", &mounted.point]);
}

#[test]
fn volume_whose_history_is_full_beneath_its_floor_is_served_again_after_a_kill() {
    let cases = [("wait", "checkpointing"), ("fail", "checkpointing"), ("wait", "logging")];
    for (policy, placement) in cases {
        let dir = tempfile::tempdir().unwrap();
        let mut server = Running::start(dir.path(), "d");
        full(&server, dir.path(), policy, placement);
        for _ in 0..4 {
            let mut client = server.disk("vol0/db");
            // To the last segment that writes may have. It ends with the server.
            let fill =
                move || while client.write(80 << 20, &[4; MIB / 16]).and_then(|()| client.flush()).is_ok() {};
            let writer = std::thread::spawn(fill);
            let waits = || server.json(&["history", "status", "vol0"])["waiting"].as_u64().unwrap() > 0;
            wait_until("it is full", || writer.is_finished() || waits());
            let late = server.run(&["snapshot", "create", "vol0@late"]);
            server.kill();
            let said = String::from_utf8_lossy(&late.stderr);
            assert_eq!(late.status.code(), Some(24), "{said}");
            assert!(said.contains("cairn history window vol0 --floor"), "{said}");
            if placement != "logging" {
                // The power has torn one of the two: an opening has something to write.
                let mut device =
                    File::options().write(true).open(server.data.join("volumes/vol0/volume.img")).unwrap();
                device.seek(SeekFrom::Start(16 * 4096)).unwrap();
                device.write_all(&[9; 4096]).unwrap();
            }
            server.restart();
            let bytes = server.disk("vol0/db").read(0, 16 * MIB as u32).unwrap();
            assert!(bytes.iter().all(|byte| *byte == 1), "{policy}, {placement}: what was flushed is there");
        }
        // It may have become read-only meanwhile.
        server.good(&["history", "window", "vol0", "--floor", "off"]);
        let mut disk = server.disk("vol0/db");
        disk.write(64 << 20, &[3; 4096]).unwrap();
        disk.flush().unwrap();
        server.good(&["snapshot", "create", "vol0@later"]);
        server.good(&["volume", "check", "vol0"]);
    }
}

#[test]
fn revert_that_is_refused_for_room_leaves_what_was_answered_and_not_flushed() {
    for policy in ["wait", "fail"] {
        let dir = tempfile::tempdir().unwrap();
        let mut server = Running::start(dir.path(), "d");
        full(&server, dir.path(), policy, "split-down-stream");
        let revert = ["history", "revert", "vol0", "--mark", "full", "--yes"];
        let said = server.bad(24, "no-space", &revert);
        assert!(said.contains("what was written last has no room"), "{policy}: {said}");
        // Waiting requests keep waiting, and do not block the next ones.
        server.bad(24, "no-space", &revert);
        let bytes = server.disk("vol0/db").read(64 << 20, 5 * MIB as u32).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 2), "{policy}: what was answered is there");
        server.good(&["history", "window", "vol0", "--floor", "off"]);
        if policy == "fail" {
            // It is read-only by now, which must not prevent the revert.
            server.good(&revert);
            let mut disk = server.disk("vol0/db");
            assert!(disk.read(0, MIB as u32).unwrap().iter().all(|byte| *byte == 1));
            disk.write(64 << 20, &[3; 4096]).unwrap();
            disk.flush().unwrap();
        } else {
            // Room becomes free, and the waiting writes are as durable as later flushed ones.
            let mut disk = server.disk("vol0/db");
            disk.write(64 << 20, &[3; 4096]).unwrap();
            disk.flush().unwrap();
            server.kill();
            server.restart();
            let bytes = server.disk("vol0/db").read(64 << 20, 5 * MIB as u32).unwrap();
            assert!(
                bytes[..4096].iter().all(|byte| *byte == 3) && bytes[4096..].iter().all(|byte| *byte == 2)
            );
        }
    }
}

#[test]
fn volume_without_room_in_its_history_takes_writes_by_itself_once_its_window_is_another_one() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Running::start(dir.path(), "d");
    full(&server, dir.path(), "fail", "split-down-stream");
    server.good(&["clone", "create", "vol0@empty", "copy"]);
    let mut connected = server.disk("vol0/db");
    let lacks_room = || {
        let problems = server.json(&["status"])["problems"].clone();
        problems.as_array().unwrap().iter().any(|problem| {
            let next = problem["next"].as_str().unwrap();
            let is_said = problem["message"].as_str().unwrap().contains("takes no writes");
            assert!(
                !is_said
                    || (next.contains("cairn history window VOLUME --floor")
                        || next.contains("cairn history window vol0 --floor"))
                        && !next.contains("restart")
            );
            is_said
        })
    };
    while connected.write(80 << 20, &[4; MIB / 16]).and_then(|()| connected.flush()).is_ok() {}
    wait_until("it is full", lacks_room);
    server.bad(24, "no-space", &["snapshot", "create", "vol0@late"]);
    connected.read(0, 4096).unwrap();
    server.good(&["history", "window", "vol0", "--floor", "off"]);
    wait_until("it takes writes", || {
        connected.write(80 << 20, &[5; 4096]).and_then(|()| connected.flush()).is_ok()
    });
    let mut disk = server.disk("vol0/db");
    assert!(
        disk.read(0, 16 * MIB as u32).unwrap().iter().all(|byte| *byte == 1),
        "what was flushed is there"
    );
    assert_eq!(disk.read(80 << 20, 4096).unwrap(), [5; 4096]);
    disk.write(64 << 20, &[3; 4096]).unwrap();
    disk.flush().unwrap();
    server.good(&["snapshot", "create", "vol0@later"]);
    server.good(&["volume", "check", "vol0"]);
    server.kill();
    server.restart();
    assert_eq!(server.disk("vol0/db").read(64 << 20, 4096).unwrap(), [3; 4096]);
    assert_eq!(server.json(&["status"])["problems"].as_array().unwrap().len(), 0);
}
