//! The view of the service manager on a server, and the files that it needs.

mod running;

use std::os::unix::net::UnixDatagram;
use std::process::Child;
use std::time::{Duration, Instant};

use running::{PATIENCE, Running, cairn, path, wait_until};

/// A server that a manager watches, which is this.
struct Watched {
    manager: UnixDatagram,
    process: Child,
}

impl Watched {
    /// Starts with `WATCHDOG_USEC` and the other settings, on the data of `server`, which has
    /// ended.
    fn start(server: &Running, limit: Duration, process: Option<&str>) -> Self {
        let path = server.data.join("notify");
        let _ = std::fs::remove_file(&path);
        let manager = UnixDatagram::bind(&path).unwrap();
        manager.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut command = cairn();
        command
            .args(["serve", "--nbd", "off", "--iscsi", "off", "--mirror", "off", "--quiet", "--data"])
            .arg(&server.data)
            .env("NOTIFY_SOCKET", &path)
            .env("WATCHDOG_USEC", limit.as_micros().to_string());
        if let Some(process) = process {
            command.env("WATCHDOG_PID", process);
        }
        let watched = Self { manager, process: command.spawn().unwrap() };
        assert_eq!(watched.hear().as_deref(), Some("READY=1"));
        watched
    }

    /// The next message of the server, or none within the time-out.
    fn hear(&self) -> Option<String> {
        let mut said = [0; 64];
        let length = self.manager.recv(&mut said).ok()?;
        Some(String::from_utf8_lossy(&said[..length]).into_owned())
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A server's folder with a volume, without the server.
fn folder(dir: &tempfile::TempDir) -> Running {
    let mut server = Running::start(dir.path(), "d");
    server.good(&["volume", "create", "v", "--size", "64M"]);
    server.good(&["lun", "create", "v/db", "--size", "8M"]);
    assert_eq!(server.terminate(), 0);
    server
}

#[test]
fn watchdog_is_fed_until_the_server_is_stuck_and_again_when_it_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let server = folder(&dir);
    let limit = Duration::from_secs(2);
    let watched = Watched::start(&server, limit, None);
    let began = Instant::now();
    for _ in 0..8 {
        assert_eq!(watched.hear().as_deref(), Some("WATCHDOG=1"));
    }
    assert!(began.elapsed() > limit, "not more often than is of use");

    // A state file without an end: a request for the status waits in open(2) for a writer, and not
    // for a disk.
    let fifo = server.data.join("volumes/v/governor.json");
    let aside = server.data.join("aside");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    watched.manager.set_read_timeout(Some(limit)).unwrap();
    let end = Instant::now() + PATIENCE;
    while watched.hear().is_some() {
        assert!(Instant::now() < end, "a server that does not answer is alive");
    }

    // That was the only cause: the server continues, and reports it.
    std::fs::rename(&fifo, &aside).unwrap();
    drop(std::fs::OpenOptions::new().write(true).open(&aside).unwrap());
    watched.manager.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(watched.hear().as_deref(), Some("WATCHDOG=1"));
    let ended = std::process::Command::new("kill").arg(watched.process.id().to_string()).status();
    assert!(ended.unwrap().success());
    loop {
        match watched.hear().as_deref() {
            Some("WATCHDOG=1") => {}
            said => return assert_eq!(said, Some("STOPPING=1")),
        }
    }
}

#[test]
fn watchdog_of_another_process_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let server = folder(&dir);
    let watched = Watched::start(&server, Duration::from_millis(400), Some("1"));
    wait_until("the server answers", || server.run(&["status"]).status.success());
    watched.manager.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    assert_eq!(watched.hear(), None);
}

/// Installs below a directory; returns the output of the command.
fn install(root: &std::path::Path, more: &[&str]) -> std::process::Output {
    let program = ["service", "install", "--program", "/bin/sh", "--root", root.to_str().unwrap()];
    cairn().args(program).args(more).output().unwrap()
}

fn text(path: std::path::PathBuf) -> String {
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn service_is_installed_by_one_command_and_its_configuration_is_its_owners() {
    let dir = tempfile::tempdir().unwrap();
    let unit = || text(dir.path().join("etc/systemd/system/cairn.service"));
    let shown = install(dir.path(), &["-n"]);
    assert!(shown.status.success() && std::fs::read_dir(dir.path()).unwrap().next().is_none());

    let said = install(dir.path(), &[]);
    let said = String::from_utf8(said.stdout).unwrap();
    assert!(said.contains("systemctl enable --now cairn") && said.contains("/var/lib/cairn"), "{said}");
    assert!(String::from_utf8(shown.stdout).unwrap().contains(&unit()), "what was shown is what is written");
    for line in
        ["Type=notify", "WatchdogSec=2min", "User=cairn", "StateDirectory=cairn", "NoNewPrivileges=yes"]
    {
        assert!(unit().lines().any(|own| own == line), "{line}");
    }
    assert!(unit().contains("ExecStart=/bin/sh serve --config /etc/cairn/cairn.toml"), "{}", unit());
    assert!(
        !unit().contains('@')
            || unit().matches('@').count() == unit().matches("=@").count() + unit().matches("=~@").count()
    );
    assert!(text(dir.path().join("etc/sysusers.d/cairn.conf")).starts_with("u cairn - "));

    // Again: nothing to do. The command asks about manual changes, and leaves the configuration
    // alone.
    let config = dir.path().join("etc/cairn/cairn.toml");
    let own = "# mine\ndata = '/var/lib/cairn'\n";
    std::fs::write(&config, own).unwrap();
    let again = install(dir.path(), &["--json"]);
    let object: serde_json::Value = serde_json::from_slice(&again.stdout).unwrap();
    let outcomes: Vec<&str> =
        object["files"].as_array().unwrap().iter().map(|file| file["outcome"].as_str().unwrap()).collect();
    assert_eq!(outcomes, ["unchanged", "unchanged", "kept"]);
    running::refused(&install(dir.path(), &["--disks", "disk", "--json"]), 2, "usage", &["other options"]);
    assert!(unit().contains("PrivateDevices=yes"));
    assert!(install(dir.path(), &["--disks", "disk", "--yes"]).status.success());
    assert!(unit().contains("SupplementaryGroups=disk") && !unit().contains("PrivateDevices"));
    assert!(install(dir.path(), &["--mounts", "--yes"]).status.success());
    assert!(!unit().contains("NoNewPrivileges") && unit().contains("WatchdogSec"));
    assert_eq!(text(config), own);

    // Data that the sandbox would hide is reported before the service fails.
    let hidden = install(dir.path(), &["--data", "/home/me/data", "--json"]);
    assert!(running::refused(&hidden, 2, "usage", &["--data"]).contains("/home"));
    let spaced = install(dir.path(), &["--data", "/srv/my data", "--json"]);
    running::refused(&spaced, 2, "usage", &["--data"]);
}

#[test]
fn uninstall_removes_what_install_made_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let uninstall = |more: &[&str]| {
        let root = ["service", "uninstall", "--root", dir.path().to_str().unwrap()];
        cairn().args(root).args(more).output().unwrap()
    };
    running::refused(&uninstall(&["--json"]), 10, "not-found", &["uninstall"]);
    let data = dir.path().join("var/lib/cairn");
    std::fs::create_dir_all(&data).unwrap();
    std::fs::write(data.join("identity.pem"), "key").unwrap();
    assert!(install(dir.path(), &[]).status.success());
    let share = dir.path().join("usr/local/share");
    assert!(text(share.join("bash-completion/completions/cairn")).contains("__complete"));
    assert!(text(share.join("zsh/site-functions/_cairn")).starts_with("#compdef cairn"));
    let page = text(share.join("man/man1/cairn-volume-create.1"));
    assert!(page.contains(".SH EXAMPLES") && page.contains("vol0"), "{page}");
    let foreign = share.join("man/man1/other.1");
    std::fs::write(&foreign, "of another program").unwrap();
    let config = dir.path().join("etc/cairn/cairn.toml");
    std::fs::write(&config, "# mine\n").unwrap();

    let enabled = dir.path().join("etc/systemd/system/multi-user.target.wants");
    std::fs::create_dir_all(&enabled).unwrap();
    std::fs::write(enabled.join("cairn.service"), "").unwrap();
    running::refused(&uninstall(&["--yes", "--json"]), 11, "busy", &["uninstall"]);
    std::fs::remove_file(enabled.join("cairn.service")).unwrap();

    let unit = dir.path().join("etc/systemd/system/cairn.service");
    let shown = String::from_utf8(uninstall(&["-n"]).stdout).unwrap();
    assert!(shown.contains("cairn.service") && unit.exists(), "{shown}");
    let said = String::from_utf8(uninstall(&["--yes"]).stdout).unwrap();
    assert!(said.contains("cairn.toml, which was changed"), "{said}");
    let mut left = Vec::new();
    let mut folders = vec![dir.path().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { left.push(path) }
        }
    }
    left.sort();
    assert_eq!(left, [config, foreign, data.join("identity.pem")]);
}

/// The server uses its configuration: a unit whose sandbox is for another data directory prevents
/// its start.
#[test]
fn unit_is_for_the_data_directory_that_the_configuration_says() {
    let dir = tempfile::tempdir().unwrap();
    let unit = || text(dir.path().join("etc/systemd/system/cairn.service"));
    assert!(install(dir.path(), &["--data", "/srv/old"]).status.success());
    let before = unit();
    assert!(before.contains("ReadWritePaths=/srv/old"), "{before}");
    // As after an upgrade.
    let again = install(dir.path(), &["--yes"]);
    let said = String::from_utf8([again.stdout, again.stderr].concat()).unwrap();
    assert!(again.status.success() && said.contains("--data /srv/old"), "{said}");
    assert_eq!(unit(), before);
    for more in [&[][..], &["-n"]] {
        let other = install(dir.path(), &[&["--data", "/srv/new", "--yes", "--json"], more].concat());
        assert!(running::refused(&other, 2, "usage", &["--data"]).contains("/srv/old"));
        assert_eq!(unit(), before);
    }
    // Also if a file beside it has the setting.
    std::fs::create_dir(dir.path().join("etc/cairn/conf.d")).unwrap();
    std::fs::write(dir.path().join("etc/cairn/conf.d/data.toml"), "data = \"/srv/new\"\n").unwrap();
    assert!(install(dir.path(), &["--yes"]).status.success());
    assert!(unit().contains("ReadWritePaths=/srv/new"), "{}", unit());
}

#[test]
fn unit_is_one_that_systemd_takes() {
    if std::process::Command::new("systemd-analyze").arg("--version").output().is_err() {
        assert!(std::env::var_os("CI").is_none(), "CI has systemd-analyze");
        eprintln!("skipped: it needs systemd-analyze");
        return;
    }
    for more in [&[][..], &["--disks", "disk"], &["--mounts"], &["--data", "/srv/cairn"]] {
        let dir = tempfile::tempdir().unwrap();
        assert!(install(dir.path(), &[more, &["--yes"]].concat()).status.success());
        let unit = path(dir.path(), "etc/systemd/system/cairn.service");
        let verified = std::process::Command::new("systemd-analyze")
            .args(["verify", "--man=no", &unit])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&verified.stderr);
        let ours: Vec<&str> = said.lines().filter(|line| line.contains("cairn.service")).collect();
        assert!(verified.status.success() && ours.is_empty(), "{more:?}: {said}");
    }
}

#[test]
fn configuration_is_checked_as_a_whole_and_later_files_win() {
    let dir = tempfile::tempdir().unwrap();
    let file = path(dir.path(), "cairn.toml");
    let folder = dir.path().join("conf.d");
    std::fs::create_dir(&folder).unwrap();
    let data = path(dir.path(), "data");
    std::fs::write(
        &file,
        format!("data = \"{data}\"\nmirror = \"off\"\niscsi = []\nnbd = [\"127.0.0.1:10809\"]\n"),
    )
    .unwrap();
    std::fs::write(folder.join("50-ports.toml"), "nbd = []\n").unwrap();
    let check = |more: &[&str]| cairn().args(["config", "check", &file]).args(more).output().unwrap();
    let good = check(&[]);
    let said = String::from_utf8(good.stdout).unwrap();
    assert!(good.status.success() && said.contains("50-ports.toml:1: nbd = [] goes before"), "{said}");

    // The server uses both.
    let manager = UnixDatagram::bind(dir.path().join("notify")).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let process = cairn()
        .args(["serve", "--quiet", "--config", &file])
        .env("NOTIFY_SOCKET", dir.path().join("notify"))
        .spawn();
    let watched = Watched { manager, process: process.unwrap() };
    assert_eq!(watched.hear().as_deref(), Some("READY=1"));
    let status = cairn().args(["status", "--json", "--data", &data]).output().unwrap();
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(
        status["nbd"].as_array().unwrap().len(),
        1,
        "the socket in the data directory alone: {status}"
    );
    drop(watched);

    std::fs::write(folder.join("60.toml"), "\ncahce = \"1G\"\nmirror_patience = 30\n").unwrap();
    let bad = check(&[]);
    let said = String::from_utf8(bad.stdout).unwrap();
    assert!(said.contains("60.toml:2: `cahce` is not a setting\n  probably meant: cache = \"1G\""), "{said}");
    assert!(said.contains("60.toml:3: ") && said.contains("mirror_patience = \"30s\""), "{said}");
    running::refused(&check(&["--json"]), 2, "usage", &["config", "check"]);
    let refused = cairn().args(["serve", "--config", &file, "--json"]).output().unwrap();
    assert!(running::refused(&refused, 2, "usage", &["serve"]).contains("60.toml"));
    let none = cairn().args(["config", "check", &path(dir.path(), "none.toml"), "--json"]).output().unwrap();
    running::refused(&none, 10, "not-found", &["config", "check"]);
}
