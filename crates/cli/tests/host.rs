//! The machine around a server: other users of its files, access of others to its data directory, a
//! file system without room.

mod running;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use running::{Loop, Running, SmallDisk, cairn, path};

/// A program that has a file open for writing until this is dropped.
struct Writer(std::process::Child);

impl Writer {
    fn of(file: &str) -> Self {
        let file = fs::File::options().read(true).write(true).open(file).unwrap();
        Self(Command::new("sleep").arg("600").stdin(Stdio::from(file)).spawn().unwrap())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn image(dir: &Path, name: &str) -> String {
    let file = path(dir, name);
    fs::File::create(&file).unwrap().set_len(96 << 20).unwrap();
    file
}

#[test]
fn image_that_another_program_writes_to_is_not_taken_unless_its_owner_insists() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Running::start(dir.path(), "d");
    let file = image(dir.path(), "image");
    let store = path(dir.path(), "store");
    let adopt = ["device", "adopt", "disk0", "--origin", &file, "--history", &store];
    let writer = Writer::of(&file);
    for refused in [
        &adopt[..],
        &["volume", "create", "v", "--device", &file],
        &["volume", "create", "v", "--size", "64M", "--log-device", &file],
        &["volume", "create", "v", "--size", "64M", "--history", &file],
    ] {
        let said = server.bad(11, "busy", refused);
        assert!(said.contains(&format!("process {}", writer.0.id())), "{refused:?}: {said}");
    }
    assert!(!Path::new(&store).exists(), "nothing is left of it");
    assert_eq!(server.json(&["volume", "list"]), serde_json::json!([]));
    server.good(&[&adopt[..], &["--in-use"]].concat());
    // Its owner's word holds for the next start as well.
    server.terminate();
    server.restart();
    assert!(server.has_export("disk0"));
    server.good(&["device", "release", "disk0", "--yes"]);
    drop(writer);
    server.good(&["volume", "create", "v", "--device", &file]);
    server.good(&["volume", "delete", "v", "--yes"]);
    if let Some(disk) = Loop::over(Path::new(&file)) {
        let said = server.bad(11, "busy", &["device", "adopt", "disk1", "--origin", &file]);
        assert!(said.contains(&disk.0), "{said}");
        drop(disk);
        server.good(&["device", "adopt", "disk1", "--origin", &file]);
    }
}

/// The files in the data directory with access for others.
fn open_to_others(dir: &Path) -> Vec<String> {
    let mut open = Vec::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        let mode = |path: &Path| fs::symlink_metadata(path).unwrap().mode() & 0o7777;
        open.extend((mode(&folder) & 0o077 != 0).then(|| folder.display().to_string()));
        for found in fs::read_dir(&folder).unwrap().flatten() {
            match found.file_type().unwrap().is_dir() {
                true => folders.push(found.path()),
                false => open
                    .extend((mode(&found.path()) & 0o077 != 0).then(|| found.path().display().to_string())),
            }
        }
    }
    open
}

#[test]
fn nothing_in_the_data_directory_is_open_to_others_whatever_the_umask() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("d");
    // As a shell with `umask 000` starts it.
    let serve = format!(
        "umask 000; exec {} serve --data {} --nbd off --iscsi off --mirror off --http off",
        env!("CARGO_BIN_EXE_cairn"),
        data.display()
    );
    let start = || {
        let child =
            Command::new("sh").args(["-c", &serve]).stderr(Stdio::null()).stdout(Stdio::null()).spawn();
        Ended(child.unwrap())
    };
    let run = |arguments: &[&str]| {
        cairn().arg("--data").arg(&data).arg("--yes").args(arguments).output().unwrap().status.success()
    };
    let server = start();
    running::wait_until("it answers", || run(&["status"]));
    let (origin, history) = (path(dir.path(), "o"), path(dir.path(), "h"));
    for made in [
        &["volume", "create", "v", "--size", "64M"][..],
        &["lun", "create", "v/db", "--size", "8M"],
        &["snapshot", "create", "v@a"],
        &["clone", "create", "v@a", "w"],
        &["device", "adopt", "disk0", "--origin", &origin, "--size", "8M", "--history", &history],
        &["export", "set", "v/db", "--network", "10.0.0.0/8"],
    ] {
        assert!(run(made), "{made:?}");
    }
    assert_eq!(open_to_others(&data), Vec::<String>::new());
    drop(server);
    // The next start removes access that a copy or a restore has left.
    for left in ["devices", "volumes/v", "volumes/v/volume.img", "exports.json"] {
        fs::set_permissions(data.join(left), fs::Permissions::from_mode(0o777)).unwrap();
    }
    let server = start();
    running::wait_until("it answers", || run(&["status"]));
    assert_eq!(open_to_others(&data), Vec::<String>::new());
    drop(server);
    // And a file of another user prevents its start.
    let planted = data.join("devices/evil.json");
    fs::write(&planted, b"{}").unwrap();
    if std::os::unix::fs::chown(&planted, Some(12_345), None).is_err() {
        eprintln!("skipped: it needs root");
        return;
    }
    let output = cairn()
        .args(["serve", "--nbd", "off", "--iscsi", "off", "--mirror", "off", "--data"])
        .arg(&data)
        .output();
    let output = output.unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("belongs to user 12345"), "{said}");
    fs::remove_file(&planted).unwrap();
    let _server = start();
    running::wait_until("it answers", || run(&["status"]));
}

/// A server that ends with this.
struct Ended(std::process::Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

#[test]
fn server_starts_on_a_full_file_system_and_serves_what_can_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let Some(_small) = SmallDisk::mount(&disk, 64 << 20) else { return };
    let mut server = Running::start(&disk, "d");
    server.good(&["volume", "create", "v", "--size", "64M"]);
    server.good(&["lun", "create", "v/db", "--size", "8M"]);
    let mut client = server.disk("v/db");
    client.write(0, &[7; 4096]).unwrap();
    client.flush().unwrap();
    drop(client);
    server.terminate();
    assert!(server.data.join("reserve").exists(), "room is kept for a start");
    let all = std::io::copy(&mut std::io::repeat(0), &mut fs::File::create(disk.join("other")).unwrap());
    assert!(all.is_err(), "it is full");
    server.restart();
    let mut client = server.disk("v/db");
    assert_eq!(client.read(0, 4096).unwrap(), [7; 4096]);
    fs::remove_file(disk.join("other")).unwrap();
    running::wait_until("it takes writes", || {
        client.write(4096, &[8; 4096]).and_then(|()| client.flush()).is_ok()
    });
    server.terminate();
    server.restart();
    assert!(server.data.join("reserve").exists(), "room is kept again");
}

#[test]
fn volume_that_may_outgrow_its_file_system_is_told_when_it_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let Some(small) = SmallDisk::mount(&disk, 64 << 20) else { return };
    let server = Running::start(&disk, "d");
    let made = server.run(&["volume", "create", "v", "--size", "1G"]);
    let said = String::from_utf8_lossy(&made.stderr).into_owned();
    assert!(made.status.success() && said.contains("warning: v may take"), "{said}");
    let shown = server.json(&["status"])["volumes"][0]["host"].clone();
    assert_eq!(shown["path"], disk.canonicalize().unwrap().display().to_string(), "{shown}");
    assert!(server.good(&["status"]).contains("HOST FREE"));
    // Little space is free: that is a problem before any write fails.
    let room = shown["free_bytes"].as_u64().unwrap();
    fs::write(disk.join("other"), vec![1; (room - (3 << 20)) as usize]).unwrap();
    running::wait_until("it is told", || {
        let problems = server.json(&["status"])["problems"].clone();
        problems.to_string().contains("may still take")
    });
    small.grow(8 << 30);
    running::wait_until("it is over", || server.json(&["status"])["problems"] == serde_json::json!([]));
    let made = server.run(&["volume", "create", "w", "--size", "1G"]);
    assert!(!String::from_utf8_lossy(&made.stderr).contains("warning"), "there is room for it");
}

#[test]
fn dumps_are_for_who_made_them_alone() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), "d");
    server.good(&["volume", "create", "v", "--size", "64M"]);
    server.good(&["lun", "create", "v/db", "--size", "8M"]);
    server.good(&["snapshot", "create", "v@a"]);
    let image = path(dir.path(), "v.image");
    // A shell that gives others access to new files.
    let dump = format!(
        "umask 000; exec {} --data {} image dump v -0 --to {image}",
        env!("CARGO_BIN_EXE_cairn"),
        server.data.display()
    );
    let made = Command::new("sh").args(["-c", &dump]).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let mode = |file: &str| fs::metadata(file).unwrap().mode() & 0o7777;
    assert_eq!(mode(&image), 0o600, "{image}");
}
