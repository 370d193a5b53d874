//! Files of a mount through Samba: written, read, and their previous versions.

mod running;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use running::{Running, can_mount, wait_until};

/// True when Samba is installed; without it the test is skipped, and fails in CI.
fn has_samba() -> bool {
    let found = ["smbd", "smbclient"].iter().all(|name| Command::new(name).arg("--version").output().is_ok());
    assert!(found || std::env::var_os("CI").is_none(), "samba or smbclient is missing");
    if !found {
        eprintln!("skipped: samba and smbclient are not installed");
    }
    found
}

/// A server of Samba with one share.
struct Samba {
    folder: PathBuf,
    process: Child,
    port: u16,
}

impl Samba {
    fn start(dir: &Path, share: &str) -> Self {
        let folder = dir.join("samba");
        let at = |name: &str| folder.join(name).display().to_string();
        for name in ["private", "lock", "state", "cache", "run", "log"] {
            fs::create_dir_all(folder.join(name)).unwrap();
        }
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let global = [
            "[global]".to_owned(),
            "server role = standalone server".to_owned(),
            format!("smb ports = {port}"),
            "bind interfaces only = yes".to_owned(),
            "interfaces = lo".to_owned(),
            "map to guest = bad user".to_owned(),
            "guest account = root".to_owned(),
            "load printers = no".to_owned(),
            "disable spoolss = yes".to_owned(),
            format!("private dir = {}", at("private")),
            format!("lock directory = {}", at("lock")),
            format!("state directory = {}", at("state")),
            format!("cache directory = {}", at("cache")),
            format!("pid directory = {}", at("run")),
            format!("ncalrpc dir = {}/ncalrpc", at("run")),
            format!("log file = {}/log", at("log")),
        ];
        let text = format!("{}\n{share}\nguest ok = yes\n", global.join("\n"));
        fs::write(folder.join("smb.conf"), text).unwrap();
        let process = Command::new("smbd")
            .args(["-F", "--no-process-group", "--debug-stdout", "-s"])
            .arg(folder.join("smb.conf"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait_until("Samba listens", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
        Self { folder, process, port }
    }

    fn run(&self, commands: &str) -> String {
        let output = Command::new("timeout")
            .args(["60", "smbclient", "-N", "-p", &self.port.to_string(), "-s"])
            .arg(self.folder.join("smb.conf"))
            .args(["//127.0.0.1/docs", "-c", commands])
            .output()
            .unwrap();
        let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let text = text.concat();
        assert!(output.status.success(), "{commands}: {text}");
        text
    }

    /// The content of a file.
    fn get(&self, file: &str) -> String {
        let to = self.folder.join("got");
        let _ = fs::remove_file(&to);
        self.run(&format!("get {file} {}", to.display()));
        fs::read_to_string(to).unwrap()
    }

    fn put(&self, text: &str, file: &str) {
        let from = self.folder.join("put");
        fs::write(&from, text).unwrap();
        self.run(&format!("put {} {file}", from.display()));
    }
}

impl Drop for Samba {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

struct Unmounted(PathBuf);

impl Drop for Unmounted {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

/// The names of previous versions that Samba lists for a file, the newest first.
fn versions(shown: &str) -> Vec<String> {
    shown.lines().filter(|line| line.starts_with("@GMT-")).map(str::to_owned).collect()
}

#[test]
fn samba_shows_all_snapshots_as_previous_versions() {
    if !can_mount() || !has_samba() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut server = Running::start_with(dir.path(), "data", &["--mirror", "off"]);
    server.good(&["volume", "create", "vol0", "--size", "1G"]);
    let next = server.advice(10, &["smb", "config", "vol0:/docs"]);
    assert!(next.contains("cairn mount vol0"), "{next}");
    let point = dir.path().join("point");
    fs::create_dir(&point).unwrap();
    let _unmounted = Unmounted(point.clone());
    server.good(&["mount", "vol0", point.to_str().unwrap()]);
    fs::create_dir_all(point.join("docs/deep")).unwrap();
    server.bad(2, "usage", &["smb", "config", "vol0:/a/../b"]);
    server.bad(2, "usage", &["smb", "config", "vol0:/docs", "--share", "a]b"]);
    let mac = server.good(&["smb", "config", "vol0", "--macos"]);
    assert!(mac.starts_with("[vol0]") && mac.contains("fruit"), "{mac}");
    let share = server.good(&["smb", "config", "vol0:/docs"]);
    assert!(share.starts_with("[docs]"), "{share}");
    let samba = Samba::start(dir.path(), &share);

    samba.put("first", "deep\\notes");
    assert_eq!(fs::read_to_string(point.join("docs/deep/notes")).unwrap(), "first");
    server.good(&["snapshot", "create", "vol0@by-hand"]);
    // Its name has another second.
    std::thread::sleep(Duration::from_millis(1100));
    samba.put("second one", "deep\\notes");
    server.good(&["snapshot", "create", "vol0@another"]);
    samba.put("third", "deep\\notes");
    let shown = samba.run("allinfo deep\\notes");
    let past = versions(&shown);
    assert_eq!(past.len(), 2, "{shown}");
    assert_eq!(samba.get(&format!("{}\\deep\\notes", past[0])), "second one");
    assert_eq!(samba.get(&format!("{}\\deep\\notes", past[1])), "first");
    assert_eq!(samba.get("deep\\notes"), "third");
    // A file that is gone now is there as well, and the past can't be changed.
    samba.run("del deep\\notes");
    assert_eq!(samba.get(&format!("{}\\deep\\notes", past[0])), "second one");
    let refused = samba.run(&format!("del {}\\deep\\notes", past[0]));
    assert!(refused.contains("WRITE_PROTECTED"), "{refused}");
    let listed = samba.run("ls");
    assert!(!listed.contains("@GMT"), "{listed}");
    // Attributes of Windows are kept.
    samba.put("again", "deep\\notes");
    samba.run("setmode deep\\notes +rh");
    let attributes =
        |text: &str| text.lines().find(|line| line.starts_with("attributes:")).map(str::to_owned);
    let before = attributes(&samba.run("allinfo deep\\notes"));
    assert!(before.as_ref().is_some_and(|line| line.contains('R') && line.contains('H')), "{before:?}");

    assert_eq!(server.terminate(), 0);
    server.restart();
    let shown = samba.run("allinfo deep\\notes");
    assert_eq!(versions(&shown), past, "{shown}");
    assert_eq!(attributes(&shown), before);
    assert_eq!(samba.get("deep\\notes"), "again");
    assert_eq!(samba.get(&format!("{}\\deep\\notes", past[1])), "first");
    server.good(&["snapshot", "delete", "vol0@by-hand", "--yes"]);
    assert_eq!(versions(&samba.run("allinfo deep\\notes")), past[..1]);
    drop(samba);
}
