//! `cairn dump` where it is hard: a server that is killed meanwhile.
//!
//! Mounting needs root here; without it these tests say that they are skipped.

mod running;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use running::{PATIENCE, Running, cairn};

/// Whether this machine lets the tests mount.
fn can_mount() -> bool {
    let can = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
    assert!(can || std::env::var_os("CI").is_none(), "mounting needs root and /dev/fuse here");
    if !can {
        eprintln!("skipped: mounting needs root and /dev/fuse");
    }
    can
}

/// A server with a volume that is mounted; unmounted again at the end, whatever comes.
struct Mounted {
    server: Running,
    point: PathBuf,
}

impl Mounted {
    fn new(scratch: &Path, arguments: &[&str]) -> Self {
        let server = Running::start_with(scratch, "data", arguments);
        server.good(&["volume", "create", "vol0", "--size", "1G"]);
        let point = scratch.join("mnt");
        fs::create_dir(&point).unwrap();
        let mounted = Self { server, point };
        mounted.server.good(&["mount", "vol0", mounted.point.to_str().unwrap()]);
        mounted
    }

    fn path(&self, path: &str) -> PathBuf {
        self.point.join(path)
    }

    /// The names of the volume's snapshots.
    fn snapshots(&self) -> Vec<String> {
        let list = self.server.json(&["snapshot", "list", "vol0"]);
        let name = |one: &serde_json::Value| one["name"].as_str().unwrap().to_owned();
        list.as_array().unwrap().iter().map(name).collect()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.point, rustix::mount::UnmountFlags::DETACH);
    }
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// A named pipe that nobody reads yet, open.
fn make_pipe(path: &Path) -> File {
    let _ = fs::remove_file(path);
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    File::options().read(true).write(true).open(path).unwrap()
}

/// A dump that does not come to its end: nobody reads the pipe.
fn stuck_dump(mounted: &Mounted, scratch: &Path) -> (Child, File, String) {
    let pipe = scratch.join("pipe");
    let held = make_pipe(&pipe);
    let before = mounted.snapshots();
    let mut dump = cairn();
    dump.args(["dump", "-0", "vol0", "-f"]).arg(&pipe).arg("--data").arg(&mounted.server.data);
    let dump = dump.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let mut own = None;
    wait_until("a dump makes no snapshot", || {
        own = mounted.snapshots().into_iter().find(|name| !before.contains(name));
        own.is_some()
    });
    (dump, held, own.unwrap())
}

#[test]
fn killed_dump_leaves_no_snapshot_and_owners_keep_theirs() {
    if !can_mount() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mut mounted = Mounted::new(scratch.path(), &["--mirror", "off"]);
    fs::write(mounted.path("large"), vec![7; 4 << 20]).unwrap();
    mounted.server.good(&["snapshot", "create", "vol0@mine"]);
    mounted.server.bad(2, "usage", &["snapshot", "create", "vol0@dump.mine"]);
    let kill = |mounted: &mut Mounted| {
        let (mut dump, held, own) = stuck_dump(mounted, scratch.path());
        assert!(own.starts_with("vol0@dump."), "{own}");
        (own, move |mounted: &mut Mounted| {
            mounted.server.kill();
            assert!(!dump.wait().unwrap().success());
            drop(held);
        })
    };
    // The next start takes it away.
    let (_, end) = kill(&mut mounted);
    end(&mut mounted);
    mounted.server.restart();
    assert_eq!(mounted.snapshots(), ["vol0@mine"]);

    // One that somebody holds stays until he lets go of it; then the next dump takes it away, beside one that is at work.
    let (left, end) = kill(&mut mounted);
    mounted.server.good(&["snapshot", "hold", &left]);
    end(&mut mounted);
    mounted.server.restart();
    assert_eq!(mounted.snapshots(), ["vol0@mine".to_owned(), left.clone()]);
    mounted.server.good(&["dump", "-n", "-0", "vol0"]);
    assert!(mounted.snapshots().contains(&left));
    mounted.server.good(&["snapshot", "release", &left]);
    let (at_work, end) = kill(&mut mounted);
    assert_eq!(mounted.snapshots(), ["vol0@mine".to_owned(), at_work.clone()]);
    mounted.server.good(&["dump", "-n", "-0", "vol0"]);
    assert_eq!(mounted.snapshots(), ["vol0@mine".to_owned(), at_work.clone()]);

    // Without the note it is a snapshot of an owner's who calls his like this.
    end(&mut mounted);
    let dates = mounted.server.data.join("volumes/vol0/dates.json");
    let noted: serde_json::Value = serde_json::from_slice(&fs::read(&dates).unwrap()).unwrap();
    assert_eq!(noted["making"][0], at_work.trim_start_matches("vol0@"));
    fs::remove_file(&dates).unwrap();
    mounted.server.restart();
    assert_eq!(mounted.snapshots(), ["vol0@mine".to_owned(), at_work.clone()]);
    // A dump that comes to its end leaves nothing, neither a snapshot nor a note.
    mounted.server.good(&["dump", "-0", "-f", scratch.path().join("whole").to_str().unwrap(), "vol0"]);
    assert_eq!(mounted.snapshots(), ["vol0@mine".to_owned(), at_work]);
    assert!(!fs::read_to_string(&dates).unwrap().contains("making"));
}
