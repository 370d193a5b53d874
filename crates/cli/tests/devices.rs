//! Adopted devices from the command line: instants, reverts under connected clients, kills, and the
//! state they leave, with a real server, real files and real NBD.

mod running;

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use cairn_frontend_nbd::Client;
use running::{PATIENCE, Running};
use serde_json::Value;

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;

fn path(dir: &Path, name: &str) -> String {
    dir.join(name).to_str().unwrap().to_owned()
}

/// An image whose block `n` is full of `n`, and a server.
fn served(dir: &Path) -> (Running, String) {
    let image = path(dir, "disk.img");
    let content: Vec<u8> = (0..8 * MIB / BLOCK).flat_map(|block| [block as u8; BLOCK as usize]).collect();
    std::fs::write(&image, content).unwrap();
    (Running::start(dir, "d"), image)
}

fn adopt(server: &Running, dir: &Path, image: &str, placement: &str, granularity: &str, more: &[&str]) {
    let history = path(dir, &format!("{placement}.history"));
    let arguments = ["device", "adopt", "disk0", "--origin", image, "--history", &history, "--placement"];
    server.good(&[&arguments, &[placement, "--granularity", granularity][..], more].concat());
}

fn write(disk: &mut Client, at: u64, byte: u8) {
    disk.write(at * BLOCK, &[byte; BLOCK as usize]).unwrap();
}

fn read(disk: &mut Client, at: u64) -> u8 {
    let bytes = disk.read(at * BLOCK, BLOCK as u32).unwrap();
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "block {at} is of one time");
    bytes[0]
}

fn status(server: &Running) -> Value {
    server.json(&["history", "status", "disk0"])
}

/// The wall clock as `--at` takes it, in UTC.
fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let day = since.as_secs() / 86_400;
    // Days since 1970 to a date (H. Hinnant, "chrono-compatible low-level date algorithms").
    let shifted = day as i64 + 719_468;
    let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let date = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + i64::from(month <= 2);
    let second = since.as_secs() % 86_400;
    let (hour, minute, rest) = (second / 3600, second / 60 % 60, second % 60);
    let nanos = since.subsec_nanos();
    format!("{year:04}-{month:02}-{date:02} {hour:02}:{minute:02}:{rest:02}.{nanos:09}Z")
}

#[test]
fn instants_are_seen_cloned_and_reverted_to_under_connected_clients_and_over_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let (mut server, image) = served(dir.path());
    adopt(&server, dir.path(), &image, "split-down-stream", "every-write", &["--window", "24h"]);
    let mut disk = server.disk("disk0");
    assert_eq!(read(&mut disk, 7), 7, "what was never written comes from the origin");
    write(&mut disk, 7, 100);
    let before = now();
    write(&mut disk, 7, 101);
    disk.flush().unwrap();
    server.good(&["history", "mark", "disk0", "good", "--consistent"]);
    write(&mut disk, 7, 102);
    write(&mut disk, 8, 103);
    disk.flush().unwrap();

    // A view by the wall clock, one by a mark, and a clone that is written to.
    let view = server.json(&["history", "view", "disk0", "--at", &before, "--as", "early"]);
    assert_eq!(view["name"], "disk0@early");
    server.good(&["history", "view", "disk0", "--mark", "good", "--as", "good"]);
    server.good(&["history", "clone", "disk0", "--at", &before, "--as", "try"]);
    assert_eq!(read(&mut server.disk("disk0@early"), 7), 100);
    assert!(server.disk("disk0@early").write(0, &[1; 4096]).is_err(), "a view is read-only");
    assert_eq!(read(&mut server.disk("disk0@good"), 7), 101);
    let mut clone = server.disk("disk0@try");
    assert_eq!((read(&mut clone, 7), read(&mut clone, 8)), (100, 8));
    write(&mut clone, 8, 200);
    clone.flush().unwrap();
    assert_eq!(read(&mut disk, 8), 103, "the clone is its own");

    // Kill: all flushed data survives, and so do the exports.
    server.kill();
    server.restart();
    assert_eq!(read(&mut server.disk("disk0"), 7), 102);
    assert_eq!(read(&mut server.disk("disk0@early"), 7), 100);
    assert_eq!(read(&mut server.disk("disk0@good"), 7), 101);
    let mut clone = server.disk("disk0@try");
    assert_eq!((read(&mut clone, 7), read(&mut clone, 8)), (100, 200));

    // Back to the mark under a connected client, and undone.
    let mut disk = server.disk("disk0");
    assert_eq!(read(&mut disk, 8), 103);
    let planned = server.good(&["history", "revert", "disk0", "--mark", "good", "--dry-run"]);
    assert!(planned.contains("nothing was done"), "{planned}");
    let reverted = server.json(&["history", "revert", "disk0", "--mark", "good", "--yes"]);
    assert_eq!(reverted["sessions_ended"], 1);
    assert!(disk.read(0, 512).is_err(), "its session has ended");
    let mut disk = server.disk("disk0");
    assert_eq!((read(&mut disk, 7), read(&mut disk, 8)), (101, 8));
    server.kill();
    server.restart();
    let mut disk = server.disk("disk0");
    assert_eq!((read(&mut disk, 7), read(&mut disk, 8)), (101, 8));
    server.good(&["history", "revert", "disk0", "--mark", reverted["undo"].as_str().unwrap(), "--yes"]);
    let mut disk = server.disk("disk0");
    assert_eq!((read(&mut disk, 7), read(&mut disk, 8)), (102, 103));
    let deadline = Instant::now() + PATIENCE;
    while !status(&server)["reverts"].as_array().unwrap().is_empty() {
        assert!(Instant::now() < deadline, "the background copy ends");
        std::thread::yield_now();
    }

    // Released it is a plain disk; while something shows its past it is not.
    disk.disconnect().unwrap();
    server.bad(11, "busy", &["device", "release", "disk0", "--yes"]);
    for (command, name) in [("view", "early"), ("view", "good"), ("clone", "try")] {
        server.good(&["history", command, "disk0", "--delete", name, "--yes"]);
    }
    server.good(&["device", "release", "disk0", "--yes"]);
    assert_eq!(server.json(&["device", "list"]).as_array().unwrap().len(), 0);
    let mut block = [0; 2];
    let plain = std::fs::File::open(&image).unwrap();
    for (byte, at) in block.iter_mut().zip([7, 8]) {
        plain.read_exact_at(std::slice::from_mut(byte), at * BLOCK).unwrap();
    }
    assert_eq!(block, [102, 103]);
    assert_eq!(plain.metadata().unwrap().len(), 8 * MIB);
    assert_eq!(std::fs::read_dir(dir.path().join("d/devices")).unwrap().count(), 0, "nothing is left of it");
}

#[test]
fn clone_that_cannot_be_opened_keeps_its_name_its_instant_and_what_was_written_to_it() {
    let dir = tempfile::tempdir().unwrap();
    let (mut server, image) = served(dir.path());
    adopt(&server, dir.path(), &image, "checkpointing", "every-write", &[]);
    let mut disk = server.disk("disk0");
    write(&mut disk, 7, 100);
    disk.flush().unwrap();
    server.good(&["history", "mark", "disk0", "m"]);
    server.good(&["history", "clone", "disk0", "--mark", "m", "--as", "try"]);
    let mut clone = server.disk("disk0@try");
    write(&mut clone, 8, 200);
    clone.flush().unwrap();
    server.kill();
    let (store, away) = (server.data.join("devices/disk0@try.store"), dir.path().join("away"));
    std::fs::rename(&store, &away).unwrap();
    server.restart();
    assert!(server.has_export("disk0") && !server.has_export("disk0@try"));
    let problem = server.json(&["status"])["problems"][0].clone();
    assert_eq!(problem["subject"], "disk0@try", "{problem}");
    let shown = server.good(&["history", "status", "disk0"]);
    assert!(shown.contains("disk0@try") && shown.contains("can't be opened"), "{shown}");
    // It exists again, and opens with the next start; until then no other clone takes its place.
    std::fs::rename(&away, &store).unwrap();
    server.bad(21, "taken", &["history", "clone", "disk0", "--mark", "m", "--as", "try"]);
    assert!(store.exists());
    let patience = Instant::now() + PATIENCE;
    loop {
        // Its own sessions keep it busy for a moment.
        let said = server.bad(11, "busy", &["device", "release", "disk0", "--yes"]);
        if said.contains("clones") {
            break;
        }
        assert!(Instant::now() < patience, "{said}");
    }
    server.kill();
    server.restart();
    let mut clone = server.disk("disk0@try");
    assert_eq!((read(&mut clone, 7), read(&mut clone, 8)), (100, 200));
}

#[test]
fn every_placement_leaves_a_plain_disk_with_the_present() {
    for placement in ["checkpointing", "logging", "split-stream", "split-down-stream", "hybrid"] {
        let dir = tempfile::tempdir().unwrap();
        let (mut server, image) = served(dir.path());
        adopt(&server, dir.path(), &image, placement, "marks", &["--block", "16K"]);
        let mut disk = server.disk("disk0");
        for round in 0..3 {
            for block in 0..64 {
                write(&mut disk, block * 5, 10 * round + (block % 10) as u8);
            }
            disk.flush().unwrap();
            server.good(&["history", "mark", "disk0", &format!("r{round}")]);
        }
        server.kill();
        server.restart();
        server.good(&["history", "view", "disk0", "--mark", "r0", "--as", "r0"]);
        assert_eq!(read(&mut server.disk("disk0@r0"), 15), 3, "{placement}");
        assert_eq!(read(&mut server.disk("disk0"), 15), 23, "{placement}");
        assert!(server.good(&["history", "status", "disk0"]).contains(placement));
        server.good(&["history", "view", "disk0", "--delete", "r0"]);
        server.good(&["device", "release", "disk0", "--yes"]);
        let content = std::fs::read(&image).unwrap();
        assert_eq!(server.terminate(), 0);
        for (block, bytes) in content.chunks_exact(BLOCK as usize).enumerate() {
            let written = block % 5 == 0 && block / 5 < 64;
            let expected = if written { 20 + (block / 5 % 10) as u8 } else { block as u8 };
            assert!(bytes.iter().all(|byte| *byte == expected), "{placement}: block {block}");
        }
    }
}

#[test]
fn what_cannot_be_adopted_or_reached_is_refused_by_name_and_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let (mut server, image) = served(dir.path());
    let original = std::fs::read(&image).unwrap();
    let history = path(dir.path(), "h");
    let base = ["device", "adopt", "disk0", "--placement", "checkpointing", "--granularity"];
    let refuse = |code, kind, granularity: &str, origin: &str, history: &str, more: &[&str]| {
        let named = [granularity, "--origin", origin, "--history", history];
        server.bad(code, kind, &[&base, &named[..], more].concat())
    };
    refuse(10, "not-found", "1s", &path(dir.path(), "missing"), &history, &[]);
    assert!(refuse(2, "usage", "1s", &image, &image, &[]).contains("are the same file"));
    assert!(refuse(2, "usage", "sometimes", &image, &history, &[]).contains("invalid granularity"));
    let sometimes = ["sometimes", "--origin", &image, "--history", &history];
    assert!(server.advice(2, &[&base, &sometimes[..]].concat()).contains("every-write"));
    assert!(refuse(2, "usage", "1s", &image, &history, &["--block", "5000"]).contains("power of two"));
    assert!(
        refuse(2, "usage", "1s", &image, &history, &["--window", "1h", "--floor", "2h"]).contains("floor")
    );
    let small = refuse(22, "too-small", "1s", &image, &history, &["--history-size", "16K"]);
    assert!(small.contains("16384"), "{small}");
    assert!(!Path::new(&history).exists(), "a refused adoption makes no file");
    let full = path(dir.path(), "full");
    std::fs::write(&full, vec![7; 128 << 20]).unwrap();
    refuse(32, "not-empty", "1s", &image, &full, &[]);
    assert_eq!(std::fs::read(&image).unwrap(), original, "the origin is as it was");

    adopt(&server, dir.path(), &image, "checkpointing", "1s", &[]);
    let again = ["device", "adopt", "disk0", "--origin", &image, "--history", &history];
    server.bad(21, "taken", &[&again[..], &["--placement", "logging", "--granularity", "1s"]].concat());
    server.bad(10, "not-found", &["history", "view", "disk0", "--at", "2001-01-01 00:00:00Z"]);
    server.bad(10, "not-found", &["history", "revert", "disk0", "--mark", "nobody", "--yes"]);
    server.bad(10, "not-found", &["history", "view", "disk0", "--at", "2199-01-01 00:00:00Z"]);
    server.bad(2, "usage", &["history", "view", "disk0", "--at", "yesterday"]);
    server.bad(2, "usage", &["history", "clone", "disk0", "--as", "now"]);
    assert_eq!(server.json(&["history", "clone", "disk0"]), serde_json::json!([]));
    assert_eq!(server.json(&["history", "view", "disk0"]), serde_json::json!([]));
    server.bad(10, "not-found", &["history", "status", "disk1"]);
    server.good(&["history", "mark", "disk0", "m"]);
    server.bad(21, "taken", &["history", "mark", "disk0", "m"]);
    let mut disk = server.disk("disk0");
    server.bad(11, "busy", &["device", "release", "disk0", "--yes"]);
    write(&mut disk, 1, 50);
    disk.disconnect().unwrap();

    // Without its history the device waits, and reports the reason; the server serves.
    server.kill();
    let (store, away) = (path(dir.path(), "checkpointing.history"), path(dir.path(), "away"));
    std::fs::rename(&store, &away).unwrap();
    server.restart();
    let problem = server.json(&["status"])["problems"][0].clone();
    assert_eq!(problem["subject"], "disk0");
    assert!(problem["message"].as_str().unwrap().contains("checkpointing.history"), "{problem}");
    assert!(!server.has_export("disk0"));
    server.kill();
    std::fs::rename(&away, &store).unwrap();
    server.restart();
    assert!(server.has_export("disk0"));
}

#[test]
fn lun_that_was_adopted_is_one_disk_to_a_client_that_names_none() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), "d");
    server.good(&["volume", "create", "v", "--size", "128M"]);
    server.good(&["lun", "create", "v/db", "--size", "8M"]);
    write(&mut server.disk(""), 3, 1);
    server.good(&["lun", "create", "v/history", "--size", "16M"]);
    let adopt = ["device", "adopt", "disk0", "--origin", "lun:v/db", "--history", "lun:v/history"];
    let deadline = Instant::now() + PATIENCE;
    while !server.run(&adopt).status.success() {
        assert!(Instant::now() < deadline, "the session has ended");
    }
    assert!(server.has_export(""), "there is one disk, and one that holds its history");
    let mut disk = server.disk("");
    assert_eq!(read(&mut disk, 3), 1);
    server.good(&["history", "mark", "disk0", "one"]);
    write(&mut disk, 3, 2);
    disk.flush().unwrap();
    drop(disk);
    while !server.run(&["history", "revert", "disk0", "--mark", "one", "--yes"]).status.success() {
        assert!(Instant::now() < deadline, "the session has ended");
    }
    assert_eq!(read(&mut server.disk("disk0"), 3), 1, "what it wrote did not get past the history");
}

#[test]
fn lun_of_a_volume_remembers_under_both_of_its_names_and_nothing_changes_it_from_below() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Running::start(dir.path(), "d");
    server.good(&["volume", "create", "v", "--size", "128M"]);
    server.good(&["lun", "create", "v/db", "--size", "8M"]);
    server.good(&["lun", "create", "v/history", "--size", "16M"]);
    let mut disk = server.disk("v/db");
    write(&mut disk, 3, 1);
    server.good(&["snapshot", "create", "v@s"]);
    let adopt = ["device", "adopt", "disk0", "--origin", "lun:v/db", "--history", "lun:v/history"];
    let adopt = [&adopt[..], &["--placement", "logging", "--granularity", "every-write"]].concat();
    server.bad(11, "busy", &adopt);
    disk.disconnect().unwrap();
    let busy = server.disk("v/history");
    let deadline = Instant::now() + PATIENCE;
    while !server.bad(11, "busy", &adopt).contains("v/history") {
        assert!(Instant::now() < deadline, "the session has ended");
    }
    busy.disconnect().unwrap();
    while !server.run(&adopt).status.success() {
        assert!(Instant::now() < deadline, "the session has ended");
    }
    assert!(server.disk("v/history").write(0, &[1; 4096]).is_err(), "a history is nobody's to write to");
    for taken in ["lun:v/db", "lun:v/history"] {
        let twice = ["device", "adopt", "disk1", "--origin", taken];
        while !server.bad(11, "busy", &twice).contains("disk0") {
            assert!(Instant::now() < deadline, "{taken}: its sessions have ended");
        }
    }
    // A client that uses the LUN by its own name is remembered too.
    let mut disk = server.disk("v/db");
    assert_eq!(read(&mut disk, 3), 1);
    write(&mut disk, 3, 2);
    disk.flush().unwrap();
    server.good(&["history", "mark", "disk0", "m"]);
    write(&mut server.disk("disk0"), 3, 3);
    assert_eq!(read(&mut disk, 3), 3);
    for refused in [
        &["lun", "delete", "v/db", "--yes"][..],
        &["lun", "delete", "v/history", "--yes"],
        &["lun", "resize", "v/db", "--size", "16M"],
        &["snapshot", "rollback", "v@s", "--yes"],
        &["volume", "delete", "v", "--yes"],
        &["mirror", "allow-reverse", "v"],
    ] {
        assert!(server.bad(11, "busy", refused).contains("disk0"), "{refused:?}");
    }
    disk.flush().unwrap();
    server.kill();
    server.restart();
    let mut disk = server.disk("v/db");
    assert_eq!(read(&mut disk, 3), 3);
    let reverted = server.json(&["history", "revert", "disk0", "--mark", "m", "--yes"]);
    assert_eq!(reverted["sessions_ended"], 1, "the session under the LUN's name");
    assert_eq!(read(&mut server.disk("v/db"), 3), 2);
    let deadline = Instant::now() + PATIENCE;
    while !server.run(&["device", "release", "disk0", "--yes"]).status.success() {
        assert!(Instant::now() < deadline, "its sessions have ended");
    }
    let mut disk = server.disk("v/db");
    assert_eq!(read(&mut disk, 3), 2, "the LUN has the present again");
    write(&mut disk, 3, 4);
    disk.disconnect().unwrap();
    assert!(server.good(&["volume", "check", "v"]).contains("sound"));
}

#[test]
fn write_that_waits_while_a_revert_is_made_is_not_the_first_one_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let (server, image) = served(dir.path());
    adopt(&server, dir.path(), &image, "checkpointing", "marks", &[]);
    for round in 0..5 {
        server.good(&["history", "mark", "disk0", &format!("m{round}")]);
        std::thread::scope(|scope| {
            for client in 0..4 {
                let mut disk = server.disk("disk0");
                // Until its session ends.
                scope.spawn(move || while disk.write(client * BLOCK, &[200; BLOCK as usize]).is_ok() {});
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
            server.good(&["history", "revert", "disk0", "--mark", &format!("m{round}"), "--yes"]);
        });
        let mut disk = server.disk("disk0");
        for block in 0..4 {
            assert_eq!(read(&mut disk, block), block as u8, "round {round}: a write from before the revert");
        }
    }
}

#[test]
fn device_without_a_history_is_a_plain_export() {
    let dir = tempfile::tempdir().unwrap();
    let (mut server, image) = served(dir.path());
    server.good(&["device", "adopt", "disk0", "--origin", &image]);
    let mut disk = server.disk("disk0");
    assert_eq!(read(&mut disk, 9), 9);
    write(&mut disk, 9, 77);
    disk.flush().unwrap();
    server.bad(10, "not-found", &["history", "status", "disk0"]);
    server.bad(11, "busy", &["device", "release", "disk0", "--yes"]);
    server.kill();
    server.restart();
    assert_eq!(read(&mut server.disk("disk0"), 9), 77);
    assert_eq!(server.json(&["device", "list"])[0]["history"], Value::Null);
    let deadline = Instant::now() + PATIENCE;
    while !server.run(&["device", "release", "disk0", "--yes"]).status.success() {
        assert!(Instant::now() < deadline, "its sessions have ended");
    }
    assert!(!server.has_export("disk0"));
    assert_eq!(std::fs::read(&image).unwrap()[9 * BLOCK as usize], 77);
}

#[test]
fn retention_is_told_on_the_command_line_and_survives_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (mut server, image) = served(dir.path());
    let steps = ["--thin", "1h:1m", "--thin", "1d:1h", "--window", "7d", "--floor", "10m"];
    adopt(&server, dir.path(), &image, "hybrid", "every-write", &steps);
    server.kill();
    server.restart();
    let window = status(&server)["window"].clone();
    assert_eq!(window["thin"][0]["after_ms"], 3_600_000);
    assert_eq!(window["thin"][1]["every_ms"], 3_600_000);
    let page = server.good(&["history", "status", "disk0"]);
    assert!(page.contains("past 60 min one instant every 60.0 s"), "{page}");
    server.bad(2, "usage", &["history", "window", "disk0", "--thin", "1h:7s", "--thin", "2h:10s", "--yes"]);
    server.bad(2, "usage", &["history", "window", "disk0", "--thin", "1s:1m", "--yes"]);
    let shorter = ["history", "window", "disk0", "--window", "2d", "--floor", "1h", "--floor-policy", "wait"];
    let said = server.bad(2, "usage", &shorter);
    assert!(said.contains("this discards") && status(&server)["window"] == window, "{said}");
    server.good(&[&shorter[..], &["--yes"]].concat());
    server.good(&["history", "window", "disk0", "--window", "9d", "--floor", "1h", "--floor-policy", "wait"]);
    assert_eq!(status(&server)["window"]["floor_policy"], "wait");
}

#[test]
fn window_keeps_what_is_not_named_and_is_shown_without_an_option() {
    let dir = tempfile::tempdir().unwrap();
    let (server, image) = served(dir.path());
    let steps =
        ["--thin", "1h:1m", "--window", "7d", "--window", "6M", "--floor", "10m", "--floor-policy", "wait"];
    adopt(&server, dir.path(), &image, "hybrid", "every-write", &steps);
    let before = status(&server)["window"].clone();
    let said = server.good(&["history", "window", "disk0"]);
    assert!(said.contains("7 d, 6 MiB, never less than 10 min (writes wait)"), "{said}");
    assert_eq!(status(&server)["window"], before, "looking changes nothing");
    // As the remedy of a full store has it.
    server.good(&["history", "window", "disk0", "--floor", "5m"]);
    let window = status(&server)["window"].clone();
    assert_eq!(window["floor_ms"], 300_000);
    for same in ["time_ms", "bytes", "thin", "floor_policy", "reduce"] {
        assert_eq!(window[same], before[same], "{same}");
    }
    server.good(&["history", "window", "disk0", "--thin", "off", "--floor", "off", "--window", "8d"]);
    let window = status(&server)["window"].clone();
    assert_eq!((&window["thin"], &window["floor_ms"]), (&serde_json::json!([]), &Value::Null));
    assert_eq!((&window["time_ms"], &window["bytes"]), (&(8 * 86_400_000).into(), &Value::Null));
    server.good(&["history", "window", "disk0", "--window", "off"]);
    assert_eq!(status(&server)["window"]["time_ms"], Value::Null);
    server.bad(2, "usage", &["history", "window", "disk0", "--window", "1d", "--floor", "2d", "--yes"]);
}

#[test]
fn history_that_is_described_and_has_no_place_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (server, image) = served(dir.path());
    for described in [
        &["--window", "24h"][..],
        &["--floor", "1h"],
        &["--thin", "1h:1m"],
        &["--reduce", "all"],
        &["--block", "512"],
        &["--dirty", "1M"],
        &["--cache", "1M"],
        &["--history-size", "1G"],
    ] {
        let command = [&["device", "adopt", "disk0", "--origin", &image], described].concat();
        let said = server.bad(2, "usage", &command);
        assert!(said.contains("need a history"), "{said}");
        let advice = server.advice(2, &command);
        assert!(advice.contains("--history PATH"), "{advice}");
    }
    assert!(server.json(&["device", "list"]).as_array().unwrap().is_empty(), "nothing was adopted");
    server.good(&["device", "adopt", "disk0", "--origin", &image]);
}

#[test]
fn clone_is_not_ended_as_a_view_and_a_release_says_what_is_in_its_way() {
    let dir = tempfile::tempdir().unwrap();
    let (server, image) = served(dir.path());
    adopt(&server, dir.path(), &image, "logging", "every-write", &[]);
    server.good(&["history", "clone", "disk0", "--at", "now", "--as", "try"]);
    server.good(&["history", "view", "disk0", "--at", "now", "--as", "then"]);
    let mut clone = server.disk("disk0@try");
    write(&mut clone, 3, 203);
    clone.flush().unwrap();
    clone.disconnect().unwrap();
    let said = server.bad(2, "usage", &["history", "view", "disk0", "--delete", "try"]);
    assert!(said.contains("is a clone"), "{said}");
    let said = server.bad(2, "usage", &["history", "clone", "disk0", "--delete", "then", "--yes"]);
    assert!(said.contains("is a view"), "{said}");
    assert_eq!(read(&mut server.disk("disk0@try"), 3), 203, "what was written to it is there");
    let said = server.bad(11, "busy", &["device", "release", "disk0", "--yes"]);
    assert!(said.contains("then") && said.contains("try"), "{said}");
}

#[test]
fn revert_says_beforehand_to_which_instant_and_what_is_against_it() {
    let dir = tempfile::tempdir().unwrap();
    let (server, image) = served(dir.path());
    adopt(&server, dir.path(), &image, "split-down-stream", "every-write", &[]);
    let mut disk = server.disk("disk0");
    write(&mut disk, 1, 101);
    disk.flush().unwrap();
    let mark = server.json(&["history", "mark", "disk0", "good"]);
    write(&mut disk, 1, 102);
    disk.flush().unwrap();
    let revert = |more: &[&str]| server.json(&[&["history", "revert", "disk0", "--dry-run"], more].concat());
    let would = revert(&["--mark", "good"]);
    assert_eq!((&would["at_ns"], &would["sessions_ended"]), (&mark["at_ns"], &1.into()), "{would}");
    assert_eq!(would["dry_run"], true);
    assert_eq!(read(&mut disk, 1), 102, "nothing was done, and its session goes on");
    for wrong in [&["disk0", "--mark", "nosuch"][..], &["disk0", "--at", "-5d"], &["nosuch", "--at", "now"]] {
        server.bad(10, "not-found", &[&["history", "revert", "--dry-run"], wrong].concat());
    }
}

#[test]
fn contents_are_reduced_as_their_owner_wants_and_status_says_what_that_saved() {
    let dir = tempfile::tempdir().unwrap();
    let (mut server, image) = served(dir.path());
    adopt(&server, dir.path(), &image, "logging", "every-write", &["--window", "24h", "--reduce", "all"]);
    assert_eq!(status(&server)["window"]["reduce"], "all");
    let mut disk = server.disk("disk0");
    (0..20).for_each(|block| write(&mut disk, block, 77));
    disk.flush().unwrap();
    let reduced = status(&server);
    assert_eq!(reduced["identical_versions"], 19);
    assert_eq!(reduced["content_bytes"], 20 * BLOCK);
    assert_eq!(reduced["stored_bytes"], BLOCK);
    let page = server.good(&["history", "status", "disk0"]);
    assert!(page.contains("to 4 KiB since it was opened") && page.contains("19 to nothing"), "{page}");
    // Another window leaves it as it is, and by itself it leaves the window as it is.
    server.good(&["history", "window", "disk0", "--window", "48h"]);
    assert_eq!(status(&server)["window"]["reduce"], "all");
    server.good(&["history", "window", "disk0", "--reduce", "none"]);
    server.kill();
    server.restart();
    let window = status(&server)["window"].clone();
    assert_eq!((&window["reduce"], &window["time_ms"]), (&"none".into(), &(48 * 3_600_000).into()));
    let mut disk = server.disk("disk0");
    assert!((0..20).all(|block| read(&mut disk, block) == 77));
}

#[test]
fn release_that_stopped_leaves_the_device_to_those_who_may_open_it() {
    let dir = tempfile::tempdir().unwrap();
    let (server, image) = served(dir.path());
    adopt(&server, dir.path(), &image, "logging", "every-write", &[]);
    let mut disk = server.disk("disk0");
    write(&mut disk, 5, 205);
    disk.flush().unwrap();
    disk.disconnect().unwrap();
    server.good(&["export", "set", "disk0", "--read-only", "true"]);
    // Data that only the store has is damaged, so that the release cannot be finished.
    let store = path(dir.path(), "logging.history");
    let bytes = std::fs::read(&store).unwrap();
    let at = bytes.chunks(512).position(|piece| piece.iter().all(|byte| *byte == 205)).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&store).unwrap();
    file.write_all_at(&[1; 512], at as u64 * 512).unwrap();
    let problem = || server.json(&["device", "list"])[0]["problem"].to_string();
    let deadline = Instant::now() + PATIENCE;
    while !problem().contains("its release stopped") {
        assert!(Instant::now() < deadline, "{}", problem());
        server.run(&["device", "release", "disk0", "--yes"]);
    }
    assert!(server.disk("disk0").write(0, &[1; 4096]).is_err(), "nobody may write to it");
}

#[test]
fn stores_that_were_mixed_up_are_refused_and_nothing_is_written_to_either_disk() {
    let dir = tempfile::tempdir().unwrap();
    let (mut server, one) = served(dir.path());
    let other = path(dir.path(), "other.img");
    std::fs::copy(&one, &other).unwrap();
    let stores = [path(dir.path(), "one.history"), path(dir.path(), "other.history")];
    for ((name, image), store) in [("disk0", &one), ("disk1", &other)].into_iter().zip(&stores) {
        let split = ["--placement", "split-stream", "--granularity", "every-write"];
        server
            .good(&[&["device", "adopt", name, "--origin", image, "--history", store], &split[..]].concat());
    }
    let mut disk = server.disk("disk1");
    write(&mut disk, 3, 103);
    disk.flush().unwrap();
    server.kill();
    // Like disks whose names change at a start.
    let swap = || {
        let away = path(dir.path(), "away");
        std::fs::rename(&stores[0], &away).unwrap();
        std::fs::rename(&stores[1], &stores[0]).unwrap();
        std::fs::rename(&away, &stores[1]).unwrap();
    };
    swap();
    let before = [std::fs::read(&one).unwrap(), std::fs::read(&other).unwrap()];
    server.restart();
    let list = server.json(&["device", "list"]);
    for device in list.as_array().unwrap() {
        assert!(device["problem"].to_string().contains("another history"), "{device}");
    }
    assert!(!server.has_export("disk0") && !server.has_export("disk1"));
    server.kill();
    assert!(before == [std::fs::read(&one).unwrap(), std::fs::read(&other).unwrap()], "nothing was written");
    swap();
    server.restart();
    assert_eq!(read(&mut server.disk("disk1"), 3), 103);
    assert_eq!(read(&mut server.disk("disk0"), 3), 3);
}

#[test]
fn deleting_a_volume_leaves_the_settings_of_a_device_that_has_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let (server, image) = served(dir.path());
    server.good(&["volume", "create", "disk0", "--size", "64M"]);
    adopt(&server, dir.path(), &image, "logging", "every-write", &[]);
    server.good(&["export", "set", "disk0", "--read-only", "true"]);
    server.good(&["volume", "delete", "disk0", "--yes"]);
    assert!(server.disk("disk0").write(0, &[1; 4096]).is_err(), "nobody may write to it");
}

/// The disk with the history died: the origin continues as a plain disk, at the request of its
/// owner.
#[test]
fn device_whose_history_is_lost_is_released_without_it_and_its_origin_is_a_plain_disk() {
    let dir = tempfile::tempdir().unwrap();
    let (mut server, image) = served(dir.path());
    server.good(&["volume", "create", "vol0", "--size", "64M"]);
    server.good(&["lun", "create", "vol0/db", "--size", "8M"]);
    let histories = [path(dir.path(), "one"), path(dir.path(), "two")];
    server.good(&["device", "adopt", "disk0", "--origin", &image, "--history", &histories[0]]);
    server.good(&["device", "adopt", "disk1", "--origin", "lun:vol0/db", "--history", &histories[1]]);
    for (device, byte) in [("disk0", 7), ("disk1", 8)] {
        let mut disk = server.disk(device);
        write(&mut disk, 3, byte);
        disk.flush().unwrap();
    }
    server.good(&["history", "clone", "disk0", "--at", &now(), "--as", "try"]);
    // An open one has data that its release copies back, whatever options are given.
    server.bad(11, "busy", &["device", "release", "disk0", "--without-history", "--yes"]);
    server.terminate();
    let aside = path(dir.path(), "aside");
    std::fs::rename(&histories[1], &aside).unwrap();
    std::fs::remove_file(&histories[0]).unwrap();
    server.restart();
    let problems = server.json(&["status"])["problems"].clone();
    for device in ["disk0", "disk1"] {
        let told = problems.as_array().unwrap().iter().find(|problem| problem["subject"] == device).unwrap();
        let next = told["next"].as_str().unwrap();
        assert!(next.contains(&format!("cairn device release {device} --without-history")), "{told}");
        let message = server.bad(27, "damaged", &["device", "release", device, "--yes"]);
        assert!(message.contains("is not open"), "{message}");
    }
    assert!(!server.has_export("vol0/db"), "a write would be missing in the history");
    server.good(&["device", "release", "disk0", "--without-history", "-n"]);
    assert_eq!(server.json(&["device", "list"]).as_array().unwrap().len(), 2, "nothing was done");
    server.good(&["device", "release", "disk0", "--without-history", "--yes"]);
    let content = std::fs::read(&image).unwrap();
    assert!(content[3 * BLOCK as usize..4 * BLOCK as usize].iter().all(|byte| *byte == 7));
    assert!(!server.data.join("devices/disk0@try.store").exists(), "the writes to a clone are lost");
    // That it was not lost after all is found.
    std::fs::rename(&aside, &histories[1]).unwrap();
    server.good(&["device", "release", "disk1", "--without-history", "--yes"]);
    assert_eq!(read(&mut server.disk("vol0/db"), 3), 8, "the LUN is served again");
    server.terminate();
    server.restart();
    assert_eq!(server.json(&["device", "list"]), serde_json::json!([]));
    assert!(server.json(&["status"])["problems"].as_array().unwrap().is_empty());
}

#[test]
fn lun_whose_adopted_device_is_not_open_is_listed_as_closed() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Running::start(dir.path(), "d");
    server.good(&["volume", "create", "vol0", "--size", "64M"]);
    server.good(&["lun", "create", "vol0/db", "--size", "4M"]);
    server.good(&["lun", "create", "vol0/other", "--size", "4M"]);
    let store = dir.path().join("store");
    let history = store.to_str().unwrap();
    server.good(&["device", "adopt", "mine", "--origin", "lun:vol0/db", "--history", history]);
    let closed = |server: &Running, name: &str| {
        let exports = server.json(&["status"])["exports"].as_array().unwrap().clone();
        exports.iter().find(|export| export["name"] == name).unwrap()["closed"].clone()
    };
    assert_eq!(closed(&server, "vol0/db"), false);
    server.kill();
    std::fs::remove_file(&store).unwrap();
    server.restart();
    assert_eq!(closed(&server, "vol0/db"), true);
    assert_eq!(closed(&server, "vol0/other"), false);
    let shown = server.good(&["status"]);
    let line = shown.lines().find(|line| line.contains("vol0/db")).unwrap();
    assert!(line.contains("closed") && !line.contains("read-write"), "{line}");
}

/// A disk can come later than the server, and so can the volume that an adopted LUN is in.
#[test]
fn device_whose_disk_comes_after_the_server_is_opened_without_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (mut server, image) = served(dir.path());
    let disk = path(dir.path(), "vol0.img");
    std::fs::File::create(&disk).unwrap().set_len(64 << 20).unwrap();
    server.good(&["volume", "create", "vol0", "--device", &disk]);
    server.good(&["lun", "create", "vol0/db", "--size", "8M"]);
    let stores = [path(dir.path(), "one"), path(dir.path(), "two")];
    server.good(&["device", "adopt", "disk0", "--origin", &image, "--history", &stores[0]]);
    server.good(&["device", "adopt", "disk1", "--origin", "lun:vol0/db", "--history", &stores[1]]);
    for device in ["disk0", "disk1"] {
        let mut disk = server.disk(device);
        write(&mut disk, 3, 7);
        disk.flush().unwrap();
    }
    let aside = |path: &str| format!("{path}.aside");
    // The store of one, then its origin, and the volume that the other is in.
    for missing in [[&stores[0], &disk], [&image, &disk]] {
        server.kill();
        missing.iter().for_each(|path| std::fs::rename(path, aside(path)).unwrap());
        server.restart();
        let problems = server.json(&["status"])["problems"].to_string();
        assert!(problems.contains("disk0") && problems.contains("disk1"), "{problems}");
        assert!(["disk0", "disk1", "vol0/db"].iter().all(|name| !server.has_export(name)));
        missing.iter().for_each(|path| std::fs::rename(aside(path), path).unwrap());
        running::wait_until("they are opened", || {
            ["disk0", "disk1"].iter().all(|name| server.has_export(name))
        });
        assert!(["disk0", "disk1", "vol0/db"].iter().all(|name| read(&mut server.disk(name), 3) == 7));
        assert!(server.json(&["status"])["problems"].as_array().unwrap().is_empty());
    }
}

/// Whether the device is there.
fn is_adopted(server: &Running) -> bool {
    server.json(&["device", "list"]).as_array().unwrap().iter().any(|device| device["name"] == "disk0")
}

#[test]
fn adoption_that_a_kill_has_cut_is_taken_back_and_the_same_command_does_it_again() {
    let dir = tempfile::tempdir().unwrap();
    let (mut server, image) = served(dir.path());
    let content = std::fs::read(&image).unwrap();
    let made = path(dir.path(), "made.img");
    let cases = [vec!["--origin", &image], vec!["--origin", &made, "--size", "16M"]];
    for (round, delay_ms) in [0, 2, 4, 6, 8, 10, 13, 16, 20, 30].into_iter().enumerate() {
        for (case, origin) in cases.iter().enumerate() {
            let store = path(dir.path(), &format!("store{round}.{case}"));
            let command = [&["device", "adopt", "disk0", "--history", &store], &origin[..]].concat();
            let mut child = running::cairn();
            child.args(&command).arg("--data").arg(&server.data);
            child.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
            let mut child = child.spawn().unwrap();
            std::thread::sleep(std::time::Duration::from_millis(delay_ms));
            server.kill();
            child.wait().unwrap();
            server.restart();
            if !is_adopted(&server) {
                server.good(&command);
            }
            assert!(std::fs::read(&image).unwrap() == content, "what was adopted is as it was");
            server.good(&["history", "mark", "disk0", "here"]);
            server.good(&["device", "release", "disk0", "--yes"]);
            let _ = std::fs::remove_file(&made);
        }
    }
}

#[test]
fn origin_of_an_adoption_that_was_cut_goes_only_if_it_was_made_with_it_and_has_nothing_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Running::start(dir.path(), "d");
    let (origin, store) = (path(dir.path(), "new.img"), path(dir.path(), "store"));
    let command = ["device", "adopt", "disk0", "--origin", &origin, "--size", "16M", "--history", &store];
    // Like a kill after both are made, before the document records that.
    let cut = |server: &mut Running, made: &str| {
        server.good(&command);
        server.kill();
        let document = server.data.join("devices/disk0.json");
        let text = std::fs::read_to_string(&document).unwrap();
        let text = text.replace("\"adopting\": false", "\"adopting\": true");
        let text = text.replace("\"origin_made_bytes\": null", made);
        assert!(text.contains(made), "{text}");
        std::fs::write(&document, text).unwrap();
    };
    let made = "\"origin_made_bytes\": 16777216";
    cut(&mut server, made);
    server.restart();
    assert!(!Path::new(&origin).exists(), "it was made, and has nothing in it");
    cut(&mut server, made);
    std::fs::write(&origin, []).unwrap();
    server.restart();
    assert!(!Path::new(&origin).exists(), "its length had not come yet");
    cut(&mut server, made);
    let file = std::fs::File::options().write(true).open(&origin).unwrap();
    file.write_all_at(b"somebody's", 1 << 20).unwrap();
    server.restart();
    assert_eq!(&std::fs::read(&origin).unwrap()[1 << 20..][..10], b"somebody's");
    // A file of that name is refused, and does not belong to the server to remove: also an empty
    // one.
    std::fs::remove_file(&origin).unwrap();
    cut(&mut server, "\"origin_made_bytes\": null");
    server.restart();
    assert!(Path::new(&origin).exists());
    assert!(server.bad(21, "taken", &command).contains("exists already"));
    assert!(Path::new(&origin).exists());
}

#[test]
fn store_of_an_adoption_that_was_cut_is_emptied_if_nothing_else_is_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let (mut server, image) = served(dir.path());
    let store = path(dir.path(), "store");
    let command = ["device", "adopt", "disk0", "--origin", &image, "--history", &store];
    // Like a kill after the history is made, before the document records that.
    let cut = |server: &mut Running| {
        server.kill();
        let document = server.data.join("devices/disk0.json");
        let text = std::fs::read_to_string(&document).unwrap();
        assert!(text.contains("\"adopting\": false"), "{text}");
        std::fs::write(&document, text.replace("\"adopting\": false", "\"adopting\": true")).unwrap();
    };
    server.good(&command);
    cut(&mut server);
    server.restart();
    assert!(!is_adopted(&server));
    server.good(&command);
    // The copy beside the document also records the adoption.
    let copy = std::fs::read_to_string(server.data.join("devices/disk0.json.old")).unwrap();
    assert!(copy.contains("\"adopting\": false"), "{copy}");
    // Other data exists by then: a block of another program, or a record of the history itself.
    cut(&mut server);
    let file = std::fs::File::options().write(true).open(&store).unwrap();
    file.write_all_at(b"not of Cairn", 100 << 10).unwrap();
    // A store that another program has open is refused for that.
    drop(file);
    let held = std::fs::read(&store).unwrap();
    server.restart();
    assert!(!is_adopted(&server));
    server.bad(32, "not-empty", &command);
    assert!(std::fs::read(&store).unwrap() == held, "it is left as it was");
    std::fs::remove_file(&store).unwrap();
    server.good(&command);
    let mut disk = server.disk("disk0");
    write(&mut disk, 3, 99);
    disk.flush().unwrap();
    drop(disk);
    cut(&mut server);
    let held = std::fs::read(&store).unwrap();
    server.restart();
    server.bad(32, "not-empty", &command);
    assert!(std::fs::read(&store).unwrap() == held, "a history with something in it is no unfinished one");
}

#[test]
fn device_begins_without_the_settings_that_a_killed_release_left_of_another_of_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let (mut server, image) = served(dir.path());
    server.good(&["device", "adopt", "disk0", "--origin", &image]);
    server.good(&["export", "set", "disk0", "--read-only", "true"]);
    assert!(server.disk("disk0").write(0, &[1; 4096]).is_err());
    // Like a kill between the end of a release and the removal of the name's state.
    server.kill();
    for name in ["disk0.json", "disk0.json.old"] {
        std::fs::remove_file(server.data.join("devices").join(name)).unwrap();
    }
    server.restart();
    server.good(&["device", "adopt", "disk0", "--origin", &image]);
    write(&mut server.disk("disk0"), 0, 5);
    let refused = server.run(&["device", "adopt", "disk0", "--origin", &image]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("cairn device release"), "{refused:?}");
    server.good(&["export", "set", "disk0", "--read-only", "true"]);
    server.bad(21, "taken", &["device", "adopt", "disk0", "--origin", &image]);
    assert!(server.disk("disk0").write(0, &[1; 4096]).is_err(), "a refused adoption takes no setting away");
}

/// As in all programs of the system: a name, a name after a colon, a path, or a rule as POSIX
/// writes it.
#[test]
fn local_time_is_that_of_the_environment() {
    let dir = tempfile::tempdir().unwrap();
    let (server, image) = served(dir.path());
    adopt(&server, dir.path(), &image, "logging", "every-write", &[]);
    let shown = |zone: &str, zones: &str| {
        let mut command = running::cairn();
        command.env("TZ", zone).env("TZDIR", zones);
        let output =
            command.args(["history", "status", "disk0", "--data"]).arg(&server.data).output().unwrap();
        assert!(output.status.success(), "{zone}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    for (zone, offset) in [
        ("Asia/Kolkata", "+05:30"),
        (":Asia/Kolkata", "+05:30"),
        ("IST-5:30", "+05:30"),
        ("<+0845>-8:45", "+08:45"),
        ("Pacific/Marquesas", "-09:30"),
        ("UTC", " UTC"),
    ] {
        // Also on a machine that has no zones, or has them elsewhere.
        for zones in ["/usr/share/zoneinfo", "/none"] {
            assert!(shown(zone, zones).contains(offset), "{zone} of {zones}: {}", shown(zone, zones));
        }
    }
}

#[test]
fn instants_that_are_relative_to_now_are_found_by_the_server_and_old_ones_named_as_such() {
    let dir = tempfile::tempdir().unwrap();
    let (server, image) = served(dir.path());
    adopt(&server, dir.path(), &image, "split-stream", "every-write", &[]);
    let mut disk = server.disk("disk0");
    write(&mut disk, 0, 7);
    disk.flush().unwrap();
    server.good(&["history", "view", "disk0", "--at", "now", "--as", "here"]);
    assert_eq!(read(&mut server.disk("disk0@here"), 0), 7);
    for at in ["-400d", "1971-01-01 00:00:00Z"] {
        let refused = server.run(&["history", "view", "disk0", "--at", at]);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(said.contains("lies before the history began"), "{at}: {said}");
    }
    let would = server.json(&["history", "revert", "disk0", "--at", "now", "-n"]);
    assert!(would["at_ns"].as_u64().is_some(), "{would}");
    let refused = server.run(&["history", "view", "disk0", "--at", "2100-01-01 00:00:00Z"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("lies in the future"));
}
