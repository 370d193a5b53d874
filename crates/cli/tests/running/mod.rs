//! A real server process on a folder of its own, and the real command line against it.

#![allow(dead_code, reason = "each test binary uses a part of it")]

pub mod vol0;

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use cairn_frontend_nbd::{Address, Client, ClientOptions};
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};
use serde_json::Value;

/// Longest wait for anything.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The program, isolated from the settings of the user who runs the tests.
pub fn cairn() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cairn"));
    let of_users = ["CAIRN_DATA", "CAIRN_SERVER", "CAIRN_TOKEN_FILE", "CAIRN_LOG"];
    for variable in of_users.into_iter().chain(["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"]) {
        command.env_remove(variable);
    }
    command.stdin(Stdio::null());
    command
}

/// A server.
pub struct Running {
    pub data: PathBuf,
    arguments: Vec<String>,
    process: Option<Child>,
    /// The user that runs it and its commands, if not the one that runs the tests.
    user: Option<u32>,
    /// A folder of programs that it finds before those of the system.
    programs: Option<PathBuf>,
    /// Where its log goes from its next start on.
    log: Option<PathBuf>,
}

impl Running {
    /// A server on `dir/name` that listens for mirrors on a free port, and for NBD on its socket.
    pub fn start(dir: &Path, name: &str) -> Self {
        Self::start_with(dir, name, &["--mirror", "127.0.0.1:0"])
    }

    /// The same with other addresses.
    pub fn start_with(dir: &Path, name: &str, arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let mut running =
            Self { data: dir.join(name), arguments, process: None, user: None, programs: None, log: None };
        running.restart();
        running
    }

    /// Has it find the programs in a folder before those of the system, from its next start on.
    pub fn find_first(&mut self, programs: &Path) {
        self.programs = Some(programs.to_owned());
    }

    /// Keeps its log in a file, from its next start on.
    pub fn keep_log(&mut self, file: &Path) {
        self.log = Some(file.to_owned());
    }

    /// A server of another user in that user's directory, if this machine permits it; otherwise
    /// prints a message.
    pub fn start_as(user: u32, dir: &Path) -> Option<Self> {
        let own = |path: &Path| std::os::unix::fs::chown(path, Some(user), Some(user)).is_ok();
        let runs =
            || cairn().arg("--version").uid(user).gid(user).output().is_ok_and(|done| done.status.success());
        if !rustix::process::geteuid().is_root() || !own(dir) || !runs() {
            eprintln!("skipped: it needs root, and a program that other users may run");
            return None;
        }
        let arguments = ["--mirror", "off"].map(str::to_owned).to_vec();
        let (data, user, programs) = (dir.join("data"), Some(user), None);
        let mut running = Self { data, arguments, process: None, user, programs, log: None };
        running.restart();
        Some(running)
    }

    fn command(&self) -> Command {
        let mut command = cairn();
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        command
    }

    /// Starts it on the same folder.
    pub fn restart(&mut self) {
        assert!(self.process.is_none(), "it runs");
        let mut command = self.command();
        if let Some(programs) = &self.programs {
            let others = std::env::var_os("PATH").unwrap_or_default();
            let all = std::iter::once(programs.clone()).chain(std::env::split_paths(&others));
            command.env("PATH", std::env::join_paths(all).unwrap());
        }
        command
            .arg("serve")
            .arg("--data")
            .arg(&self.data)
            .args(["--nbd", "off", "--iscsi", "127.0.0.1:0"])
            .args(&self.arguments);
        let log = self.log.as_ref().map(|file| std::fs::File::create(file).unwrap());
        let log = log.map_or_else(Stdio::null, Stdio::from);
        self.process = Some(command.stdout(Stdio::null()).stderr(log).spawn().unwrap());
        let deadline = Instant::now() + PATIENCE;
        while !self.run(&["status"]).status.success() {
            let ended = self.process.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none() && Instant::now() < deadline, "the server does not start");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Listens for mirrors at the same address after each restart; that address.
    pub fn stay(&mut self) -> String {
        let address = self.json(&["status"])["mirror"].as_str().unwrap().to_owned();
        self.arguments = vec!["--mirror".to_owned(), address.clone()];
        address
    }

    pub fn kill(&mut self) {
        let mut process = self.process.take().unwrap();
        process.kill().unwrap();
        process.wait().unwrap();
    }

    /// Kills it without waiting for its end; the thread returns whether that was in time.
    pub fn kill_and_go_on(&mut self) -> std::thread::JoinHandle<bool> {
        let mut process = self.process.take().unwrap();
        process.kill().unwrap();
        std::thread::spawn(move || {
            let deadline = Instant::now() + PATIENCE;
            while process.try_wait().unwrap().is_none() {
                if Instant::now() > deadline {
                    return false;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            true
        })
    }

    /// Kills it; false when it does not end then.
    pub fn kill_in_time(&mut self) -> bool {
        self.kill_and_go_on().join().unwrap()
    }

    /// Whether a command succeeds in time. A late one is killed.
    pub fn is_done_in_time(&self, arguments: &[&str]) -> bool {
        let mut command = self.command();
        command.args(arguments).arg("--data").arg(&self.data).stdout(Stdio::null()).stderr(Stdio::null());
        let mut process = command.spawn().unwrap();
        let deadline = Instant::now() + PATIENCE / 3;
        loop {
            match process.try_wait().unwrap() {
                Some(ended) => return ended.success(),
                None if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(20)),
                None => {
                    process.kill().unwrap();
                    process.wait().unwrap();
                    return false;
                }
            }
        }
    }

    /// Sends it a signal, as `kill` names it.
    pub fn signal(&self, signal: &str) {
        let process = self.process.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args(["-s", signal, &process]).status().unwrap().success());
        if signal == "STOP" {
            // Its threads stop one after the other.
            let state = || std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
            wait_until("it has stopped", || state().contains(") T "));
        }
    }

    /// SIGTERM; the exit code.
    pub fn terminate(&mut self) -> i32 {
        let mut process = self.process.take().unwrap();
        let sent = Command::new("kill").arg(process.id().to_string()).status().unwrap();
        assert!(sent.success());
        process.wait().unwrap().code().unwrap()
    }

    /// SIGTERM; false when it does not end then, and is killed.
    pub fn terminate_in_time(&mut self) -> bool {
        self.signal("TERM");
        let mut process = self.process.take().unwrap();
        let deadline = Instant::now() + PATIENCE;
        while process.try_wait().unwrap().is_none() {
            if Instant::now() > deadline {
                process.kill().unwrap();
                process.wait().unwrap();
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        true
    }

    /// Bytes that the server has handed to the system to write since it started, wherever to.
    pub fn written(&self) -> u64 {
        let process = self.process.as_ref().unwrap().id();
        let counts = std::fs::read_to_string(format!("/proc/{process}/io")).unwrap();
        let line = counts.lines().find_map(|line| line.strip_prefix("wchar: ")).unwrap();
        line.parse().unwrap()
    }

    /// Its threads of that name.
    pub fn threads(&self, name: &str) -> usize {
        let process = self.process.as_ref().unwrap().id();
        let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
        let is_one = |task: std::io::Result<std::fs::DirEntry>| {
            let name_of = std::fs::read_to_string(task.unwrap().path().join("comm"));
            name_of.is_ok_and(|found| found.trim_end() == name)
        };
        tasks.map(is_one).filter(|is| *is).count()
    }

    /// Whether a thread of it waits in the kernel for a program's write to be accepted.
    pub fn waits_for_pages(&self) -> bool {
        let process = self.process.as_ref().unwrap().id();
        let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten();
        let places = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("wchan")).ok());
        places.into_iter().any(|place| place.starts_with("folio_wait"))
    }

    /// Whether a thread of it, or a program that it has started, makes the kernel write back the
    /// cache of a file system.
    pub fn waits_for_write_back(&self) -> bool {
        let process = self.process.as_ref().unwrap().id();
        let waits = |task: std::io::Result<std::fs::DirEntry>| {
            let has = |file: &str| std::fs::read_to_string(task.as_ref().unwrap().path().join(file));
            has("wchan").is_ok_and(|place| place == "wb_wait_for_completion")
                || has("children").is_ok_and(|children| !children.is_empty())
        };
        std::fs::read_dir(format!("/proc/{process}/task")).unwrap().any(waits)
    }

    /// Runs a command. A new volume has no schedule: tests make the snapshots that they count.
    pub fn run(&self, arguments: &[&str]) -> Output {
        let mut command = self.command();
        command.args(arguments);
        if arguments.starts_with(&["volume", "create"]) {
            command.arg("--no-schedule");
        }
        command.arg("--data").arg(&self.data).output().unwrap()
    }

    /// Runs a command without that.
    pub fn run_as_it_is(&self, arguments: &[&str]) -> Output {
        self.command().args(arguments).arg("--data").arg(&self.data).output().unwrap()
    }

    /// Runs a command that must succeed. Returns its output.
    pub fn good(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let text = String::from_utf8(output.stdout).unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {text}{said}");
        text
    }

    /// The last object that a command printed with `--json`.
    pub fn json(&self, arguments: &[&str]) -> Value {
        let text = self.good(&[arguments, &["--json"]].concat());
        serde_json::from_str(text.lines().last().unwrap_or("null")).unwrap()
    }

    /// Runs a command that must fail with this exit code and kind of error, and print a next step.
    pub fn bad(&self, code: i32, kind: &str, arguments: &[&str]) -> String {
        refused(&self.run(&[arguments, &["--json"]].concat()), code, kind, arguments)
    }

    /// Runs a command that must fail with this exit code. Returns the next step in its error.
    pub fn advice(&self, code: i32, arguments: &[&str]) -> String {
        let output = self.run(&[arguments, &["--json"]].concat());
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
        let object: Value = serde_json::from_str(text.lines().last().unwrap_or("null")).unwrap();
        object["next"].as_str().unwrap_or_else(|| panic!("no next step: {object}")).to_owned()
    }

    /// Runs the command of an advice that has this word, as it is printed.
    pub fn follow(&self, advice: &str, word: &str) -> String {
        let command = advice.split('`').find(|part| part.starts_with("cairn ") && part.contains(word));
        let command = command.unwrap_or_else(|| panic!("no command in: {advice}"));
        let words: Vec<&str> = command.split_whitespace().skip(1).chain(["--yes"]).collect();
        self.good(&words)
    }

    /// Its jobs, as its API tells them.
    pub fn jobs(&self) -> String {
        use std::io::{Read, Write};
        let mut stream = std::os::unix::net::UnixStream::connect(self.data.join("control.sock")).unwrap();
        stream.write_all(b"GET /v1/jobs HTTP/1.1\r\nhost: cairn\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// A token for a server that wants to mirror this one.
    pub fn invite(&self) -> String {
        self.json(&["peer", "invite"])["token"].as_str().unwrap().to_owned()
    }

    /// Connects to an export.
    pub fn disk(&self, export: &str) -> Client {
        let address = Address::Unix(self.data.join("nbd.sock"));
        Client::connect(&address, &ClientOptions::new(export)).unwrap()
    }

    /// Whether an export can be opened.
    pub fn has_export(&self, export: &str) -> bool {
        let address = Address::Unix(self.data.join("nbd.sock"));
        Client::connect(&address, &ClientOptions::new(export)).is_ok()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.process.is_some() {
            self.kill();
        }
    }
}

/// Checks how a command failed; its message.
pub fn refused(output: &Output, code: i32, kind: &str, arguments: &[&str]) -> String {
    let text = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}{said}");
    let last = text.lines().last().unwrap_or_else(|| panic!("{arguments:?} printed no object: {said}"));
    let object: Value = serde_json::from_str(last).unwrap();
    assert_eq!(object["message_type"], "error", "{object}");
    assert_eq!(object["error"], kind, "{object}");
    assert_eq!(object["exit_code"], code);
    assert!(object["next"].as_str().is_some_and(|next| next.len() > 10), "{object}");
    object["message"].as_str().unwrap().to_owned()
}

/// Blocks of `v/db` in a server with a disk.
pub const BLOCKS: u64 = 6000;

/// A server with the disk `v/db` of 24 MiB, which is filled but for its end.
pub fn server_with_disk(dir: &Path) -> Running {
    let server = Running::start(dir, "d");
    server.good(&["volume", "create", "v", "--size", "256M"]);
    server.good(&["lun", "create", "v/db", "--size", "24M"]);
    fill(&server, 0, BLOCKS, 1);
    server
}

/// The path of a file in a folder, as arguments have it.
pub fn path(dir: &Path, name: &str) -> String {
    dir.join(name).to_str().unwrap().to_owned()
}

/// Fills `blocks` blocks of `v/db` from `first` with bytes that depend on `salt` and do not repeat.
pub fn fill(server: &Running, first: u64, blocks: u64, salt: u64) {
    let mut disk = server.disk("v/db");
    let mut state = salt.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for block in first..first + blocks {
        let mut bytes = [0; 4096];
        for word in bytes.chunks_exact_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_le_bytes());
        }
        disk.write(block * 4096, &bytes).unwrap();
    }
    disk.flush().unwrap();
    disk.disconnect().unwrap();
}

/// The first 24 MiB of a disk.
pub fn content(mut disk: Client) -> Vec<u8> {
    (0..24).flat_map(|piece| disk.read(piece << 20, 1 << 20).unwrap()).collect()
}

/// Whether this machine lets the tests mount.
pub fn can_mount() -> bool {
    let can = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
    assert!(can || std::env::var_os("CI").is_none(), "mounting needs root and /dev/fuse here");
    if !can {
        eprintln!("skipped: mounting needs root and /dev/fuse");
    }
    can
}

/// Looks again and again until it is so.
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A file system of its own in memory, gone with this.
pub struct SmallDisk<'a>(&'a Path);

impl<'a> SmallDisk<'a> {
    /// `None`, with a message, if mounting is not allowed.
    pub fn mount(at: &'a Path, bytes: u64) -> Option<Self> {
        let options = std::ffi::CString::new(format!("size={bytes}")).unwrap();
        match mount("cairn-test", at, "tmpfs", MountFlags::empty(), Some(options.as_c_str())) {
            Ok(()) => Some(Self(at)),
            Err(error) => {
                assert!(
                    !rustix::process::geteuid().is_root() || std::env::var_os("CI").is_none(),
                    "root in CI mounts a file system: {error}"
                );
                println!("skipped: a full disk needs the right to mount ({error})");
                None
            }
        }
    }

    /// Makes room.
    pub fn grow(&self, bytes: u64) {
        let options = std::ffi::CString::new(format!("size={bytes}")).unwrap();
        mount_remount(self.0, MountFlags::empty(), options.as_c_str()).unwrap();
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        let _ = unmount(self.0, UnmountFlags::DETACH);
    }
}

/// A file as a loop device, which is detached when this is dropped.
pub struct Loop(pub String);

impl Loop {
    /// `None`, with a message, if there are no loop devices.
    pub fn over(file: &Path) -> Option<Self> {
        let made = Command::new("/sbin/losetup").args(["--find", "--show"]).arg(file).output();
        match made {
            Ok(made) if made.status.success() => {
                Some(Self(String::from_utf8(made.stdout).unwrap().trim().to_owned()))
            }
            _ => {
                eprintln!("skipped: it needs losetup and a free loop device");
                None
            }
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("/sbin/losetup").arg("--detach").arg(&self.0).status();
    }
}
