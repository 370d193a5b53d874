//! Disks that hang while they are opened: only their volumes and devices wait.

mod running;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use cairn_frontend_nbd::ClientRequest;
use running::{PATIENCE, Running, can_mount, path, wait_until};

/// A file system of another server: `stat`, open and read on it wait while that server is stopped.
struct Below {
    server: Running,
    point: PathBuf,
}

impl Below {
    fn new(dir: &Path) -> Self {
        let (server, point) = (Running::start(dir, "below"), dir.join("mounted"));
        std::fs::create_dir(&point).unwrap();
        server.good(&["volume", "create", "files", "--size", "512M"]);
        server.good(&["mount", "files", point.to_str().unwrap()]);
        Self { server, point }
    }

    fn disk(&self, name: &str) -> String {
        let disk = path(&self.point, name);
        File::create(&disk).and_then(|file| file.set_len(64 << 20)).unwrap();
        disk
    }
}

impl Below {
    /// A command that waits in the kernel for a file on it, where no signal reaches it, for longer
    /// than every time limit.
    fn slowly(&self) -> String {
        self.server.good(&["volume", "rehearse", "files", "--delay", "60s", "--yes"]);
        format!("exec dd if=/dev/zero of={} bs=4k count=1 conv=fsync", path(&self.point, "there"))
    }
}

impl Drop for Below {
    fn drop(&mut self) {
        self.server.signal("CONT");
        let _ = rustix::mount::unmount(&self.point, rustix::mount::UnmountFlags::DETACH);
    }
}

fn away(disk: &str) -> String {
    format!("{disk}.away")
}

#[test]
fn disk_that_hangs_while_it_is_opened_holds_up_what_it_belongs_to_and_nothing_else() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let here = |name: &str| path(dir.path(), name);
    let file = |name: &str| {
        File::create(here(name)).and_then(|file| file.set_len(64 << 20)).unwrap();
        here(name)
    };
    let below = Below::new(dir.path());
    let mut server = Running::start(dir.path(), "d");
    let disks = [below.disk("volume.img"), below.disk("device.img"), file("quick.img")];
    let [of_a_volume, of_a_device, quick] = disks.each_ref().map(String::as_str);
    let (of_slow, of_vol0) = (here("slow.history"), here("vol0.history"));
    server.good(&["volume", "create", "a-slow", "--device", of_a_volume]);
    server.good(&["device", "adopt", "b-slow", "--origin", of_a_device, "--history", &of_slow]);
    server.good(&["volume", "create", "quick", "--device", quick]);
    server.good(&["volume", "create", "vol0", "--size", "64M", "--history", &of_vol0]);
    server.good(&["history", "mark", "vol0", "one"]);
    server.kill();
    disks.iter().for_each(|disk| std::fs::rename(disk, away(disk)).unwrap());
    server.restart();
    [of_a_volume, of_a_device].iter().for_each(|disk| std::fs::rename(away(disk), disk).unwrap());
    below.server.signal("STOP");
    let is_open = |volume: &str| server.run(&["lun", "list", volume]).status.success();
    let (other, origin, history) = (file("other.img"), file("origin.img"), here("origin.history"));
    let late = std::thread::scope(|scope| {
        // It opens the volume to find out whether its log exists.
        let hangs = scope.spawn(|| server.run(&["volume", "log", "a-slow", "--discard-lost", "--dry-run"]));
        // By now it hangs.
        std::thread::sleep(Duration::from_secs(2));
        let commands = [
            &["status"][..],
            &["volume", "create", "new", "--size", "64M"],
            &["volume", "create", "other", "--device", &other],
            &["history", "revert", "vol0", "--mark", "one", "--yes"],
            &["snapshot", "create", "vol0@now"],
            &["clone", "create", "vol0@now", "copy"],
            &["clone", "delete", "copy", "--yes"],
            &["volume", "delete", "new", "--yes"],
            &["history", "disable", "vol0", "--yes"],
            &["device", "adopt", "disk0", "--origin", &origin, "--history", &history],
            &["device", "release", "disk0", "--yes"],
            &["status"],
        ];
        let mut late: Vec<String> = Vec::new();
        for command in commands {
            // Each needs the earlier ones.
            if late.is_empty() && !server.is_done_in_time(command) {
                late.push(command.join(" "));
            }
        }
        std::fs::rename(away(quick), quick).unwrap();
        let until = Instant::now() + PATIENCE;
        while !is_open("quick") && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(100));
        }
        if !is_open("quick") {
            late.push("the volume whose disk is back".to_owned());
        }
        if is_open("a-slow") {
            late.push("nothing hangs".to_owned());
        }
        // Before any assertion: a stopped server cannot end.
        below.server.signal("CONT");
        hangs.join().unwrap();
        late
    });
    assert!(late.is_empty(), "{late:?}");
    wait_until("its volume is open again", || is_open("a-slow"));
    wait_until("its device is open again", || server.run(&["history", "status", "b-slow"]).status.success());
    assert_eq!(server.terminate(), 0);
}

#[test]
fn disk_that_hangs_at_a_start_keeps_what_is_on_it_closed_until_it_answers_and_nothing_else() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let here = |name: &str| path(dir.path(), name);
    let below = Below::new(dir.path());
    let mut server = Running::start(dir.path(), "d");
    let [of_a_volume, of_a_device] = [below.disk("volume.img"), below.disk("device.img")];
    server.good(&["volume", "create", "a-slow", "--device", &of_a_volume]);
    server.good(&["lun", "create", "a-slow/lun", "--size", "16M"]);
    server.good(&["snapshot", "create", "a-slow@base"]);
    server.good(&["clone", "create", "a-slow@base", "b-copy"]);
    server.good(&["device", "adopt", "c-slow", "--origin", &of_a_device, "--history", &here("c.history")]);
    server.good(&["volume", "create", "vol0", "--size", "64M"]);
    server.kill();
    below.server.signal("STOP");
    server.restart();
    let status = server.run(&["status"]);
    let said = String::from_utf8_lossy(&status.stdout).into_owned();
    let others = server.run(&["lun", "create", "vol0/lun", "--size", "16M"]).status.success();
    let closed = ["a-slow", "b-copy"].map(|volume| !server.run(&["lun", "list", volume]).status.success());
    // Before any assertion: a stopped server cannot end.
    below.server.signal("CONT");
    assert!(status.status.success() && others, "the others are served: {said}");
    assert_eq!(closed, [true; 2], "{said}");
    assert_eq!(said.matches("it does not answer; it is opened as soon as it does").count(), 2, "{said}");
    let is_open = |volume: &str| server.run(&["lun", "list", volume]).status.success();
    wait_until("its volume is open", || is_open("a-slow"));
    wait_until("the clone of that is open", || is_open("b-copy"));
    wait_until("its device is open", || server.run(&["history", "status", "c-slow"]).status.success());
    assert_eq!(server.terminate(), 0);
}

#[test]
fn trace_on_a_disk_that_hangs_holds_up_who_asks_for_it_and_no_session_of_others() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let below = Below::new(dir.path());
    let mut server = Running::start(dir.path(), "d");
    server.good(&["volume", "create", "v", "--size", "64M"]);
    for lun in ["v/recorded", "v/other"] {
        server.good(&["lun", "create", lun, "--size", "1M"]);
    }
    let trace = path(&below.point, "trace");
    server.good(&["trace", "record", "v/recorded", "--to", &trace]);
    below.server.signal("STOP");
    let opened = std::thread::scope(|scope| {
        let stops = scope.spawn(|| server.run(&["trace", "record", "v/recorded", "--stop"]));
        // By now it hangs.
        std::thread::sleep(Duration::from_secs(2));
        let hangs = !stops.is_finished();
        let (told, opened) = channel();
        let other = &server;
        scope.spawn(move || told.send(other.has_export("v/other")));
        let opened = opened.recv_timeout(PATIENCE / 3);
        let listed = server.is_done_in_time(&["status"]);
        // Before any assertion: a stopped server cannot end.
        below.server.signal("CONT");
        let stopped = stops.join().unwrap();
        assert!(stopped.status.success(), "{}", String::from_utf8_lossy(&stopped.stderr));
        (hangs, opened, listed)
    });
    assert_eq!(opened, (true, Ok(true), true), "it hangs, another disk is opened, and others are answered");
    assert_eq!(server.terminate(), 0);
}

/// The command before a snapshot has frozen a file system and waits for that itself: only the
/// command after it releases both.
#[test]
fn command_that_nothing_ends_keeps_nobody_from_being_released() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let below = Below::new(dir.path());
    let mut server = Running::start(dir.path(), "d");
    server.good(&["volume", "create", "vol0", "--size", "64M"]);
    let released = path(dir.path(), "released");
    let (before, after) = (below.slowly(), format!("touch {released}"));
    let hooks = ["volume", "hooks", "vol0", "--before", &before, "--after", &after, "--timeout", "200ms"];
    server.good(&hooks);
    let is_told = std::thread::scope(|scope| {
        let asks = scope.spawn(|| server.run(&["snapshot", "create", "vol0@one"]));
        let until = Instant::now() + PATIENCE;
        while !Path::new(&released).exists() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
        let is_released = Path::new(&released).exists();
        let asked = asks.join().unwrap();
        let said = String::from_utf8_lossy(&asked.stderr).into_owned();
        assert!(is_released, "it waits for what only it can end");
        !asked.status.success() && said.contains("did not end within 200 ms")
    });
    assert!(is_told);
    assert_eq!(server.terminate(), 0);
}

#[test]
fn probe_that_nothing_ends_keeps_no_drill_from_its_end() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let below = Below::new(dir.path());
    let source = Running::start(dir.path(), "source");
    source.good(&["volume", "create", "v", "--size", "64M"]);
    let mut mirror = Running::start_with(dir.path(), "mirror", &["--mirror", "off"]);
    mirror.good(&["mirror", "create", "v", &source.invite()]);
    let probe = below.slowly();
    let (is_over, said) = std::thread::scope(|scope| {
        let asks =
            scope.spawn(|| mirror.run(&["mirror", "drill", "v", "--probe", &probe, "--timeout", "200ms"]));
        let until = Instant::now() + PATIENCE;
        while !asks.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
        let is_over = asks.is_finished();
        (is_over, String::from_utf8_lossy(&asks.join().unwrap().stderr).into_owned())
    });
    assert!(is_over, "it waits for a probe that can't be ended: {said}");
    mirror.good(&["mirror", "drill", "v", "--probe", "true", "--timeout", "10s"]);
    assert_eq!(mirror.terminate(), 0);
}

#[test]
fn export_whose_disk_has_not_finished_a_write_is_not_called_read_only() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let below = Below::new(dir.path());
    let server = Running::start(dir.path(), "d");
    let disk = below.disk("plain.img");
    server.good(&["device", "adopt", "plain", "--origin", &disk]);
    let mut client = server.disk("plain");
    client.write(0, &[1; 4096]).unwrap();
    below.server.signal("STOP");
    // Durable when answered, so that the kernel does not keep it for later.
    let through = ClientRequest::Write { offset: 0, data: &[2; 4096], fua: true };
    client.submit(through).unwrap();
    wait_until("the write has begun", || server.json(&["export", "list"])[0]["totals"]["requests"] == 2);
    let set = ["export", "set", "plain", "--read-only", "true", "--yes"];
    let refused = server.run(&[&set[..], &["--json"]].concat());
    // Before any assertion: a stopped server cannot end.
    below.server.signal("CONT");
    let said = running::refused(&refused, 11, "busy", &set);
    assert!(said.contains("has not finished") && said.contains("nothing else was changed"), "{said}");
    let is_read_only = || server.json(&["export", "list"])[0]["access"]["read_only"].as_bool();
    assert_eq!(is_read_only(), Some(false), "its settings stay");
    // The next client sees the write that had begun, and writes last.
    let mut next = server.disk("plain");
    assert_eq!(next.read(0, 1).unwrap(), [2]);
    next.write(0, &[3; 4096]).unwrap();
    drop(next);
    server.good(&set);
    assert_eq!(is_read_only(), Some(true), "the command that was advised works");
    assert_eq!(server.disk("plain").read(0, 1).unwrap(), [3]);
}
