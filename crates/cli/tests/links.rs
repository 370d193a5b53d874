//! How mirrors use their links: limits that are changed live, several connections, a cascade of
//! three servers.

mod running;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use running::{PATIENCE, Running};
use serde_json::Value;

fn write(server: &Running, offset: u64, byte: u8, length: usize) {
    let mut disk = server.disk("vol0/db");
    disk.write(offset, &vec![byte; length]).unwrap();
    disk.flush().unwrap();
}

fn content(server: &Running) -> Vec<u8> {
    server.disk("vol0/db").read(0, 8 << 20).unwrap()
}

fn status(server: &Running) -> Value {
    server.json(&["mirror", "status", "vol0"])
}

fn poll(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn source(dir: &Path) -> Running {
    let source = Running::start(dir, "source");
    source.good(&["volume", "create", "vol0", "--size", "64M"]);
    source.good(&["lun", "create", "vol0/db", "--size", "8M"]);
    // Bytes that do not pack, so that a limit is felt.
    let mut rng = cairn_base::Rng::new(9);
    let mut bytes = vec![0; 6 << 20];
    rng.fill(&mut bytes);
    let mut disk = source.disk("vol0/db");
    disk.write(0, &bytes).unwrap();
    disk.flush().unwrap();
    source
}

#[test]
fn limit_holds_a_running_transfer_back_until_it_is_lifted() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    let destination = Running::start(dir.path(), "destination");
    let token = source.invite();
    std::thread::scope(|scope| {
        // At this rate the baseline takes a minute.
        let create = || destination.good(&["mirror", "create", "vol0", &token, "--limit", "100K"]);
        let create = scope.spawn(create);
        poll("the baseline begins", || {
            let running = destination.run(&["mirror", "status", "vol0", "--json"]);
            let shown: Value = serde_json::from_slice(&running.stdout).unwrap_or_default();
            shown["last"]["sent_bytes"].as_u64().unwrap_or(0) > 0 && shown["state"] == "transferring-baseline"
        });
        let shown = status(&destination);
        assert_eq!(
            (&shown["limit"], &shown["limit_now_bytes"]),
            (&"100K".into(), &(100 << 10).into()),
            "{shown}"
        );
        assert!(!create.is_finished());
        let set = destination.good(&["mirror", "set", "vol0", "--limit", "off"]);
        assert!(set.contains("no limit"), "{set}");
        create.join().unwrap();
    });
    assert_eq!(content(&destination), content(&source));
    // By the time of day; whatever that is, one of the two holds.
    let shown = destination.json(&["mirror", "set", "vol0", "--limit", "1G, 00:00-12:00=2G"]);
    assert_eq!(shown["limit"], "1024M, 00:00-12:00=2048M");
    let now = shown["limit_now_bytes"].as_u64().unwrap();
    assert!(now == 1 << 30 || now == 2 << 30);
    for bad in ["1K", "fast", "08:00-09:00"] {
        destination.bad(2, "usage", &["mirror", "set", "vol0", "--limit", bad]);
    }
    write(&source, 0, 2, 64 << 10);
    destination.good(&["mirror", "update", "vol0"]);
    assert_eq!(content(&destination), content(&source));
}

#[test]
fn baseline_that_goes_on_by_the_schedule_is_in_a_hurry_like_one_that_does_not() {
    const LENGTH: usize = 100 << 20;
    let dir = tempfile::tempdir().unwrap();
    let source = Running::start(dir.path(), "source");
    source.good(&["volume", "create", "vol0", "--size", "256M"]);
    source.good(&["lun", "create", "vol0/db", "--size", "128M"]);
    let mut rng = cairn_base::Rng::new(9);
    let mut bytes = vec![0; LENGTH];
    rng.fill(&mut bytes);
    let mut disk = source.disk("vol0/db");
    bytes.chunks(4 << 20).zip(0..).for_each(|(part, at)| disk.write(at * (4 << 20), part).unwrap());
    disk.flush().unwrap();
    let mut destination = Running::start(dir.path(), "destination");
    let token = source.invite();
    let arguments = ["mirror", "create", "vol0", &token, "--every", "20m", "--limit", "100K"];
    std::thread::scope(|scope| {
        let create = scope.spawn(|| destination.run(&arguments));
        poll("the baseline begins", || {
            let running = destination.run(&["mirror", "status", "vol0", "--json"]);
            let shown: Value = serde_json::from_slice(&running.stdout).unwrap_or_default();
            shown["last"]["sent_bytes"].as_u64().unwrap_or(0) > 0 && shown["state"] == "transferring-baseline"
        });
        destination.signal("KILL");
        assert!(!create.join().unwrap().status.success());
    });
    destination.kill();
    destination.restart();
    destination.good(&["mirror", "set", "vol0", "--limit", "off"]);
    // A trickle of 4 MiB/s would take 25 s.
    poll("there is an image", || destination.has_export("vol0/db"));
    poll("it is whole", || status(&destination)["state"] == "mirrored");
    let took = status(&destination)["last"]["duration_ms"].as_u64().unwrap();
    assert!(took < 15_000, "{took} ms");
    let shown = destination.disk("vol0/db").read(0, 4 << 20).unwrap();
    assert!(shown == bytes[..4 << 20]);
}

#[test]
fn update_that_has_time_is_spread_over_it() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    let destination = Running::start(dir.path(), "destination");
    destination.good(&[
        "mirror",
        "create",
        "vol0",
        &source.invite(),
        "--every",
        "20m",
        "--compress",
        "never",
    ]);
    let within = |set: &[&str]| {
        let set = [&["mirror", "set", "vol0"], set].concat();
        destination.json(&set)["within_ms"].clone()
    };
    assert_eq!(status(&destination)["within_ms"], 300_000);
    assert_eq!(within(&["--rpo", "24m"]), 180_000);
    assert_eq!(within(&["--every", "4m"]), 120_000);
    assert!(within(&["--spread", "off"]).is_null());
    let slowly = destination.run(&["mirror", "set", "vol0", "--spread", "slowly"]);
    assert_eq!(slowly.status.code(), Some(2), "that is neither on nor off");
    assert!(destination.good(&["mirror", "set", "vol0", "--spread", "on"]).contains("spread over up to 2"));
    // Other bytes that do not pack. At the least rate they take more than a second.
    let mut bytes = vec![0; 6 << 20];
    cairn_base::Rng::new(10).fill(&mut bytes);
    let mut disk = source.disk("vol0/db");
    disk.write(0, &bytes).unwrap();
    disk.flush().unwrap();
    let began = Instant::now();
    destination.good(&["mirror", "update", "vol0", "--within", "10m"]);
    assert!(began.elapsed() > Duration::from_millis(700), "{:?}", began.elapsed());
    assert_eq!(content(&destination), content(&source));
}

#[test]
fn transfer_over_several_connections_is_cut_goes_on_and_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    let mut destination = Running::start(dir.path(), "destination");
    let token = source.invite();
    let create =
        ["mirror", "create", "vol0", &token, "--connections", "5", "--limit", "1M", "--compress", "never"];
    std::thread::scope(|scope| {
        let create = scope.spawn(|| destination.run(&create));
        poll("the baseline is on its way", || {
            let running = destination.run(&["mirror", "status", "vol0", "--json"]);
            let shown: Value = serde_json::from_slice(&running.stdout).unwrap_or_default();
            shown["last"]["sent_bytes"].as_u64().unwrap_or(0) > 1 << 20
        });
        let aborted = destination.json(&["mirror", "abort", "vol0"]);
        assert_eq!(aborted["was_running"], true);
        assert!(!create.join().unwrap().status.success());
    });
    destination.kill();
    destination.restart();
    destination.good(&["mirror", "set", "vol0", "--limit", "off"]);
    let before = status(&destination);
    assert_eq!((&before["connections"], &before["compress"]), (&5.into(), &"never".into()));
    destination.good(&["mirror", "update", "vol0"]);
    let last = status(&destination)["last"].clone();
    assert!(last["kept_bytes"].as_u64().unwrap() > 256 << 10, "what had come is not sent again: {last}");
    assert_eq!(content(&destination), content(&source));
    // Another number, and packed.
    destination.good(&["mirror", "set", "vol0", "--connections", "2", "--compress", "always"]);
    write(&source, 1 << 20, 7, 2 << 20);
    destination.good(&["mirror", "update", "vol0"]);
    assert_eq!(content(&destination), content(&source));
    let last = status(&destination)["last"].clone();
    assert!(last["sent_bytes"].as_u64().unwrap() * 4 < last["changed_bytes"].as_u64().unwrap(), "{last}");
    assert!(!destination.run(&["mirror", "set", "vol0", "--connections", "17"]).status.success());
    assert!(source.good(&["volume", "check", "vol0"]).contains("sound"));
}

#[test]
fn cascade_goes_on_without_the_server_in_the_middle() {
    let dir = tempfile::tempdir().unwrap();
    let first = source(dir.path());
    let mut middle = Running::start(dir.path(), "middle");
    let last = Running::start(dir.path(), "last");
    middle.stay();
    middle.good(&["mirror", "create", "vol0", &first.invite()]);
    last.good(&["mirror", "create", "vol0", &middle.invite()]);
    assert_eq!(content(&last), content(&first));
    for round in 0..3u8 {
        write(&first, u64::from(round) << 20, round + 1, 100 << 10);
        middle.good(&["mirror", "update", "vol0"]);
        if round == 1 {
            middle.kill();
            middle.restart();
        }
        last.good(&["mirror", "update", "vol0"]);
        assert_eq!(content(&last), content(&first));
        let shown = status(&last);
        let changed = shown["last"]["changed_bytes"].as_u64().unwrap();
        assert!(changed < 1 << 20, "only what changed is sent on: {shown}");
    }
    assert_eq!(middle.json(&["status"])["followers"][0]["volume"], "vol0");
    // The middle gets one more, and is lost.
    write(&first, 3 << 20, 9, 64 << 10);
    middle.good(&["mirror", "update", "vol0"]);
    middle.kill();
    write(&first, 4 << 20, 10, 64 << 10);
    last.bad(30, "peer-unreachable", &["mirror", "update", "vol0"]);
    let repointed = last.good(&["mirror", "repoint", "vol0", &first.invite()]);
    assert!(repointed.contains("source) -> vol0 (here, destination)"), "{repointed}");
    assert_eq!(content(&last), content(&first));
    let shown = status(&last);
    let (changed, full) = (&shown["last"]["changed_bytes"], &shown["last"]["full_bytes"]);
    assert!(changed.as_u64().unwrap() * 4 < full.as_u64().unwrap(), "no new baseline: {shown}");
    // Snapshots kept for the middle may be deleted.
    let gone = first.json(&["peer", "list"])[0]["id"].as_str().unwrap().to_owned();
    first.good(&["peer", "revoke", &gone, "--yes"]);
    write(&first, 5 << 20, 11, 64 << 10);
    last.good(&["mirror", "update", "vol0"]);
    assert_eq!(content(&last), content(&first));
    let held = first.json(&["snapshot", "list", "vol0"]);
    let held = held.as_array().unwrap().iter().filter(|snapshot| snapshot["held"] == true).count();
    assert_eq!(held, 1, "only the base of the last one");
    // Another volume is refused, and nothing changes.
    let other = Running::start(dir.path(), "other");
    other.good(&["volume", "create", "vol0", "--size", "64M"]);
    last.bad(13, "diverged", &["mirror", "repoint", "vol0", &other.invite()]);
    last.good(&["mirror", "update", "vol0"]);
    for server in [&first, &last] {
        assert!(server.good(&["volume", "check", "vol0"]).contains("sound"));
    }
}

/// It would report permanent divergence: the other one never had its visible image.
#[test]
fn mirror_follows_no_mirror_that_is_behind_it() {
    let dir = tempfile::tempdir().unwrap();
    let first = source(dir.path());
    let other = Running::start(dir.path(), "other");
    let ahead = Running::start(dir.path(), "ahead");
    for mirror in [&other, &ahead] {
        mirror.good(&["mirror", "create", "vol0", &first.invite()]);
    }
    write(&first, 0, 1, 64 << 10);
    ahead.good(&["mirror", "update", "vol0"]);
    let told = ahead.bad(13, "diverged", &["mirror", "repoint", "vol0", &other.invite()]);
    assert!(told.contains("is behind what `vol0` shows"), "{told}");
    write(&first, 1 << 20, 2, 64 << 10);
    ahead.good(&["mirror", "update", "vol0"]);
    assert_eq!(content(&ahead), content(&first), "it follows as before");
    other.good(&["mirror", "update", "vol0"]);
    ahead.good(&["mirror", "repoint", "vol0", &other.invite()]);
    write(&first, 2 << 20, 3, 64 << 10);
    for mirror in [&other, &ahead] {
        mirror.good(&["mirror", "update", "vol0"]);
        assert_eq!(content(mirror), content(&first));
    }
}

/// None of them is writable, and each finds nothing new at its source.
#[test]
fn mirrors_that_follow_each_other_say_so_until_one_has_a_source_again() {
    let dir = tempfile::tempdir().unwrap();
    let first = source(dir.path());
    let mut ring: Vec<Running> =
        ["one", "two", "three"].iter().map(|name| Running::start(dir.path(), name)).collect();
    // The first of them gets the newest image: no mirror follows one with an older image.
    for mirror in ring.iter_mut().rev() {
        mirror.stay();
        mirror.good(&["mirror", "create", "vol0", &first.invite()]);
    }
    let told = |mirror: &Running, args: &[&str]| {
        let told = mirror.bad(13, "wrong-role", args);
        assert!(told.contains("follows itself"), "{told}");
    };
    for members in 2..=3 {
        for at in 1..members {
            ring[at].good(&["mirror", "repoint", "vol0", &ring[at - 1].invite()]);
        }
        told(&ring[0], &["mirror", "repoint", "vol0", &ring[members - 1].invite()]);
        for mirror in &ring[..members] {
            told(mirror, &["mirror", "update", "vol0"]);
            let shown = status(mirror);
            let next = shown["problem"]["next"].as_str().unwrap_or_default();
            assert!(next.contains("cairn mirror repoint vol0"), "{shown}");
        }
        ring[0].kill();
        ring[0].restart();
        told(&ring[1], &["mirror", "update", "vol0"]);
        // From there on they follow a writable one.
        ring[0].good(&["mirror", "repoint", "vol0", &first.invite()]);
        write(&first, 1 << 20, members as u8, 64 << 10);
        for mirror in &ring[..members] {
            mirror.good(&["mirror", "update", "vol0"]);
            assert_eq!(content(mirror), content(&first));
        }
    }
}

#[test]
fn mirror_that_is_paused_is_repointed_and_stays_paused() {
    let dir = tempfile::tempdir().unwrap();
    let first = source(dir.path());
    let mut middle = Running::start(dir.path(), "middle");
    let last = Running::start(dir.path(), "last");
    middle.good(&["mirror", "create", "vol0", &first.invite()]);
    last.good(&["mirror", "create", "vol0", &middle.invite()]);
    last.good(&["mirror", "pause", "vol0"]);
    let before = content(&last);
    middle.kill();
    write(&first, 1 << 20, 3, 64 << 10);
    let told = last.good(&["mirror", "repoint", "vol0", &first.invite()]);
    assert!(told.contains("paused") && told.contains("cairn mirror resume vol0"), "{told}");
    let shown = status(&last);
    let address = first.json(&["status"])["mirror"].clone();
    assert_eq!((&shown["state"], &shown["source_address"]), (&"paused".into(), &address), "{shown}");
    assert_eq!(content(&last), before, "nothing was brought");
    last.good(&["mirror", "resume", "vol0"]);
    last.good(&["mirror", "update", "vol0"]);
    assert_eq!(content(&last), content(&first));
}

#[test]
fn mirror_of_a_mirror_that_was_failed_over_follows_again_as_it_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let first = source(dir.path());
    let (mut middle, mut last) = (Running::start(dir.path(), "middle"), Running::start(dir.path(), "last"));
    middle.stay();
    last.stay();
    middle.good(&["mirror", "create", "vol0", &first.invite()]);
    last.good(&["mirror", "create", "vol0", &middle.invite()]);
    last.good(&["mirror", "failover", "vol0", "--yes"]);
    write(&last, 1 << 20, 5, 64 << 10);
    write(&first, 2 << 20, 6, 64 << 10);
    let resync = ["mirror", "resync", "vol0", "--discard-divergent", "--yes"];
    // The server in the middle is a mirror itself, and can be followed all the same.
    last.good(&resync);
    assert_eq!(content(&last), content(&middle));
    middle.good(&["mirror", "failover", "vol0", "--yes"]);
    last.good(&resync);
    middle.good(&resync);
    last.good(&resync);
    assert_eq!(content(&middle), content(&first));
    assert_eq!(content(&last), content(&first));
    write(&first, 3 << 20, 7, 64 << 10);
    middle.good(&["mirror", "update", "vol0"]);
    last.good(&["mirror", "update", "vol0"]);
    assert_eq!(content(&last), content(&first));
}

#[test]
fn cron_lock_and_tokens_hold_what_they_say() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    source.good(&["volume", "create", "other", "--size", "64M"]);
    let destination = Running::start(dir.path(), "destination");
    let invited = source.json(&["peer", "invite"]);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64;
    let expires = invited["expires_ms"].as_u64().unwrap();
    assert!((14 * 60_000..=15 * 60_000).contains(&(expires - now)), "15 minutes");
    let word = invited["token"].as_str().unwrap();
    let key = dir.path().join("lock.key");
    std::fs::write(&key, "a secret of enough bytes\n").unwrap();
    let key = key.to_str().unwrap();
    let nightly = ["--cron", "30 2 * * *", "--zone", "Europe/Berlin", "--lock", "30d", "--lock-key", key];
    destination.good(&[&["mirror", "create", "vol0", word][..], &nightly].concat());
    let shown = status(&destination);
    assert_eq!((&shown["cron"], &shown["zone"]), (&"30 2 * * *".into(), &"Europe/Berlin".into()));
    let next = shown["next_ms"].as_u64().unwrap();
    assert!(next > now && next - now <= 25 * 3_600_000 && next % 3_600_000 == 1_800_000, "{shown}");
    for (option, bad) in [("--cron", "0 25 * * *"), ("--cron", "0 0 30 2 *"), ("--zone", "Mars/Olympus")] {
        let output = destination.run(&["mirror", "set", "vol0", option, bad]);
        assert!(!output.status.success(), "{option} {bad}");
    }
    // A token is for one mirror, and its holder sees no other volume.
    let output = destination.run(&["mirror", "create", "other", word]);
    assert!(!output.status.success());
    // A snapshot locked here stays, even if it is deleted there.
    source.good(&["snapshot", "create", "vol0@payroll"]);
    destination.good(&["mirror", "update", "vol0"]);
    source.good(&["snapshot", "delete", "vol0@payroll", "--yes"]);
    write(&source, 0, 5, 64 << 10);
    let message = destination.bad(13, "diverged", &["mirror", "update", "vol0"]);
    assert!(message.contains("payroll") && message.contains("locked"), "{message}");
    assert_eq!(status(&destination)["state"], "diverged");
    assert!(destination.good(&["snapshot", "list", "vol0"]).contains("payroll"));
    // Removing a lock applies to later snapshots only.
    destination.good(&["mirror", "set", "vol0", "--lock", "off", "--every", "1d"]);
    let advice = destination.advice(13, &["mirror", "update", "vol0"]);
    destination.follow(&advice.replace("FILE", key), "unlock");
    destination.good(&["mirror", "update", "vol0"]);
    assert!(!destination.good(&["snapshot", "list", "vol0"]).contains("payroll"));
    assert_eq!(content(&destination), content(&source));
    assert_eq!(status(&destination)["cron"], Value::Null);
}

/// Tells clients to end, also when the test fails: it would wait for them.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn governor_holds_transfers_back_while_clients_of_the_source_wait_too_long() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    let destination = Running::start(dir.path(), "destination");
    let token = source.invite();
    source.bad(2, "usage", &["volume", "governor", "vol0", "--p99", "2s"]);
    let set = source.json(&["volume", "governor", "vol0", "--p99", "2ms"]);
    assert_eq!((&set["p99_limit_us"], &set["rate_bytes"]), (&2000.into(), &Value::Null), "{set}");
    // A disk that is slow for the clients' flushes.
    source.good(&["volume", "rehearse", "vol0", "--delay", "5ms", "--yes"]);
    let governed = || source.json(&["status"])["governors"][0].clone();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let ends = Ends(&over);
        for client in 0..3 {
            let (source, over) = (&source, &over);
            scope.spawn(move || {
                let mut disk = source.disk("vol0/db");
                while !over.load(Ordering::Acquire) {
                    disk.write((7 << 20) + client * 8192, &[client as u8; 4096]).unwrap();
                    disk.flush().unwrap();
                }
            });
        }
        poll("the clients' latency is seen", || governed()["p99_us"].as_u64().is_some_and(|p99| p99 > 2000));
        // At that rate it runs for longer than the governor takes to judge.
        let limited = ["mirror", "create", "vol0", &token, "--compress", "never", "--limit", "4M"];
        let to = &destination;
        let create = scope.spawn(move || to.good(&limited));
        poll("the transfer backs off", || {
            let rate = governed()["rate_bytes"].as_u64();
            create.is_finished() || rate.is_some_and(|rate| rate < 3 << 20)
        });
        assert!(!create.is_finished(), "it was not held back: {}", governed());
        assert!(source.good(&["volume", "governor", "vol0"]).contains("at most 2.0 ms"));
        drop(ends);
        create.join().unwrap();
    });
    poll("it recovers", || governed()["rate_bytes"].is_null());
    source.good(&["volume", "governor", "vol0", "--p99", "off"]);
    assert_eq!(source.json(&["status"])["governors"], serde_json::json!([]));
    source.good(&["volume", "rehearse", "vol0", "--off"]);
    write(&source, 0, 3, 64 << 10);
    destination.good(&["mirror", "update", "vol0"]);
    assert_eq!(content(&destination), content(&source));
}

#[test]
fn connections_on_which_nobody_says_who_he_is_keep_no_mirror_out_for_long() {
    use std::io::Write;
    use std::net::TcpStream;
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    let destination = Running::start_with(dir.path(), "destination", &["--mirror", "off"]);
    let address = source.json(&["status"])["mirror"].as_str().unwrap().to_owned();
    let token = source.invite();
    // As many as the budget allows. The beginning of TLS, and of a record that arrives slowly.
    let slow: Vec<TcpStream> = (0..256).map(|_| TcpStream::connect(&address).unwrap()).collect();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            slow.iter().for_each(|mut stream| drop(stream.write_all(&[22, 3, 1, 0x3f, 0xff])));
            while !is_over.load(Ordering::Relaxed) {
                slow.iter().for_each(|mut stream| drop(stream.write_all(&[0; 40])));
                std::thread::sleep(Duration::from_secs(1));
            }
        });
        let until = Instant::now() + 3 * PATIENCE;
        let mut comes_in = false;
        while !comes_in && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(500));
            comes_in = destination.run(&["mirror", "create", "vol0", &token]).status.success();
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(comes_in, "they have all places");
    });
}
