//! The intent log of a volume on a device of its own: made, killed, missing, moved, lost and
//! deleted, with a real server.

mod running;

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use running::Running;

const MIB: u64 = 1 << 20;

fn file(dir: &Path, name: &str, bytes: u64) -> String {
    let path = dir.join(name);
    std::fs::File::create(&path).unwrap().set_len(bytes).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A server with the volume `v` whose log is on the file `log`, and the LUN `v/db`.
fn served(dir: &Path) -> (Running, String) {
    let server = Running::start(dir, "d");
    let log = file(dir, "log", 8 * MIB);
    let made = server.json(&["volume", "create", "v", "--size", "128M", "--log-device", &log]);
    assert_eq!(made["log_device"], *log);
    server.good(&["lun", "create", "v/db", "--size", "8M"]);
    (server, log)
}

fn write(server: &Running, at: u64, byte: u8) {
    let mut disk = server.disk("v/db");
    disk.write(at, &[byte; 4096]).unwrap();
    disk.flush().unwrap();
    disk.disconnect().unwrap();
}

fn read(server: &Running, at: u64) -> u8 {
    server.disk("v/db").read(at, 4096).unwrap()[0]
}

/// True when the first 128 KiB are zero.
fn is_clear(path: &str) -> bool {
    let mut head = vec![1; 128 << 10];
    std::fs::File::open(path).unwrap().read_exact_at(&mut head, 0).unwrap();
    head.iter().all(|byte| *byte == 0)
}

#[test]
fn flushed_writes_are_on_the_log_device_after_a_kill_and_nowhere_without_it() {
    let dir = tempfile::tempdir().unwrap();
    let (mut server, log) = served(dir.path());
    assert!(server.good(&["volume", "show", "v"]).contains(&log));
    write(&server, 0, 1);
    write(&server, 8192, 2);
    server.kill();
    server.restart();
    assert_eq!((read(&server, 0), read(&server, 8192)), (1, 2));
    assert!(server.good(&["volume", "check", "v"]).contains("sound"));
    write(&server, 0, 3);
    server.kill();

    // Without the device the volume waits; another one is served.
    let away = dir.path().join("away");
    std::fs::rename(&log, &away).unwrap();
    server.restart();
    assert_eq!(server.json(&["volume", "list"])[0]["role"], "unavailable");
    let problem = server.json(&["status"])["problems"][0].clone();
    assert_eq!(problem["subject"], "v");
    let said = problem.to_string();
    assert!(said.contains(&log) && said.contains("bring the log device back"), "{said}");
    server.bad(26, "volume-damaged", &["lun", "list", "v"]);
    server.good(&["volume", "create", "other", "--size", "64M"]);
    server.kill();
    // A device in its place that is another one.
    file(dir.path(), "log", 8 * MIB);
    server.restart();
    let problem = server.json(&["status"])["problems"][0].to_string();
    assert!(problem.contains("no intent log"), "{problem}");
    // It is opened when the right one is back, without a restart.
    std::fs::rename(&away, &log).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while server.json(&["volume", "show", "v"])["role"] == "unavailable" {
        assert!(Instant::now() < deadline, "{}", server.json(&["status"])["problems"]);
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!((read(&server, 0), read(&server, 8192)), (3, 2), "it is back, with all that was flushed");
    assert_eq!(server.json(&["status"])["problems"], serde_json::json!([]));
}

#[test]
fn lost_log_is_thrown_away_only_when_told_to() {
    let dir = tempfile::tempdir().unwrap();
    let (mut server, log) = served(dir.path());
    write(&server, 0, 1);
    server.good(&["snapshot", "create", "v@committed"]);
    server.bad(2, "usage", &["volume", "log", "v", "--discard-lost", "--yes"]);
    write(&server, 0, 2);
    server.kill();
    std::fs::remove_file(&log).unwrap();
    server.restart();
    server.bad(2, "usage", &["volume", "log", "v", "--discard-lost"]);
    let asked = server.json(&["volume", "log", "v", "--discard-lost", "--dry-run"]);
    assert_eq!((&asked["dry_run"], &asked["lost_ms_max"]), (&true.into(), &10_000.into()), "{asked}");
    assert_eq!(server.json(&["volume", "list"])[0]["role"], "unavailable", "nothing was done");
    server.good(&["volume", "log", "v", "--discard-lost", "--yes"]);
    let now = read(&server, 0);
    assert!(now == 1 || now == 2, "the last consistency point, whenever that was: {now}");
    assert!(server.good(&["volume", "check", "v"]).contains("sound"));
    assert!(server.json(&["volume", "show", "v"])["log_device"].is_null());
    write(&server, 0, 5);
    server.kill();
    server.restart();
    assert_eq!(read(&server, 0), 5, "the log is on the devices of the volume now");
}

#[test]
fn log_moves_while_clients_write_and_leaves_its_devices_free() {
    let dir = tempfile::tempdir().unwrap();
    let (mut server, first) = served(dir.path());
    let (second, small) = (file(dir.path(), "second", 4 * MIB), file(dir.path(), "small", MIB));
    let used = file(dir.path(), "used", 4 * MIB);
    std::fs::OpenOptions::new().write(true).open(&used).unwrap().write_all_at(b"ext4", 1080).unwrap();
    server.bad(22, "too-small", &["volume", "log", "v", "--device", &small]);
    server.bad(32, "not-empty", &["volume", "log", "v", "--device", &used]);
    server.bad(11, "busy", &["volume", "log", "v", "--device", &first]);
    server.bad(10, "not-found", &["volume", "log", "v", "--device", "/nothing/here"]);
    server.bad(10, "not-found", &["volume", "log", "nothing", "--internal"]);
    server.bad(11, "busy", &["volume", "create", "w", "--size", "64M", "--log-device", &first]);
    let twice = file(dir.path(), "twice", 64 * MIB);
    server.bad(11, "busy", &["volume", "create", "w", "--device", &twice, "--log-device", &twice]);
    assert!(!server.data.join("volumes/w").exists());
    let mut byte = 0;
    for (arguments, place) in [
        (vec!["--device", &second], Some(&second)),
        (vec!["--internal"], None),
        (vec!["--internal"], None),
        (vec!["--device", &first], Some(&first)),
    ] {
        byte += 1;
        write(&server, 0, byte);
        let moved = server.json(&[&["volume", "log", "v"], &arguments[..]].concat());
        assert_eq!(moved["log_device"].as_str(), place.map(|place| place.as_str()));
        assert_eq!(is_clear(&first), place != Some(&first));
        assert_eq!(is_clear(&second), place != Some(&second));
        write(&server, 4096, byte);
        server.kill();
        server.restart();
        assert_eq!((read(&server, 0), read(&server, 4096)), (byte, byte));
        let shown = server.good(&["volume", "log", "v"]);
        assert!(shown.contains(place.map_or("the devices of the volume", |place| place.as_str())), "{shown}");
    }
    server.good(&["volume", "delete", "v", "--yes"]);
    assert!(is_clear(&first), "a deleted volume leaves no log behind");
    server.good(&["volume", "create", "again", "--size", "64M", "--log-device", &first]);
    assert_eq!(server.terminate(), 0);
}

#[test]
fn mirror_with_a_log_device_logs_there_after_its_failover() {
    let dir = tempfile::tempdir().unwrap();
    let mut source = Running::start(dir.path(), "source");
    source.good(&["volume", "create", "v", "--size", "128M"]);
    source.good(&["lun", "create", "v/db", "--size", "8M"]);
    write(&source, 0, 1);
    let token = source.invite();

    let mut mirror = Running::start(dir.path(), "mirror");
    let log = file(dir.path(), "log", 8 * MIB);
    let small = file(dir.path(), "small", 4096);
    mirror.bad(22, "too-small", &["mirror", "create", "v", &token, "--log-device", &small]);
    mirror.json(&["mirror", "create", "v", &token, "--log-device", &log]);
    assert_eq!(mirror.json(&["volume", "show", "v"])["log_device"], *log);
    write(&source, 0, 2);
    mirror.json(&["mirror", "update", "v"]);
    mirror.kill();
    mirror.restart();
    assert_eq!(read(&mirror, 0), 2);
    source.kill();

    mirror.good(&["mirror", "failover", "v", "--yes"]);
    write(&mirror, 0, 3);
    mirror.kill();
    // Without the log's device the flush would be lost, so the volume waits for it.
    let away = dir.path().join("away");
    std::fs::rename(&log, &away).unwrap();
    mirror.restart();
    assert_eq!(mirror.json(&["volume", "list"])[0]["role"], "unavailable");
    mirror.kill();
    std::fs::rename(&away, &log).unwrap();
    mirror.restart();
    assert_eq!(read(&mirror, 0), 3);
    assert!(mirror.good(&["volume", "check", "v"]).contains("sound"));
}
