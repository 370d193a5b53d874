//! Image dumps from the command line: levels, parts, pipes, damage and kills, with a real server,
//! real files and real NBD.

mod running;

use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use cairn_frontend_nbd::{Address, Client, ClientOptions};
use running::{PATIENCE, Running, cairn, content, fill, refused};

const MIB: u64 = 1 << 20;

fn served(dir: &Path) -> Running {
    let server = Running::start(dir, "d");
    server.good(&["volume", "create", "v", "--size", "256M"]);
    server.good(&["lun", "create", "v/db", "--size", "24M"]);
    server
}

/// A `cairn image mount` that serves.
struct Mounted {
    process: Child,
    address: Address,
}

impl Mounted {
    fn start(dir: &Path, arguments: &[&str]) -> Self {
        let socket = dir.join("mount.sock");
        let mut command = cairn();
        command.args(["image", "mount"]).args(arguments).arg("--socket").arg(&socket);
        let process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut mounted = Self { process, address: Address::Unix(socket.clone()) };
        let deadline = Instant::now() + PATIENCE;
        // The socket exists a moment before it accepts connections.
        while std::os::unix::net::UnixStream::connect(&socket).is_err() {
            assert!(mounted.process.try_wait().unwrap().is_none() && Instant::now() < deadline, "no mount");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        mounted
    }

    fn disk(&self, export: &str) -> Client {
        Client::connect(&self.address, &ClientOptions::new(export)).unwrap()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn path(dir: &Path, name: &str) -> String {
    dir.join(name).to_str().unwrap().to_owned()
}

fn flip(file: &str, at: u64) {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(file).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 4], at).unwrap();
}

#[test]
fn dump_against_an_older_snapshot_of_another_one_lacks_nothing_beside_that() {
    let dir = tempfile::tempdir().unwrap();
    let server = served(dir.path());
    fill(&server, 0, 500, 1);
    server.good(&["snapshot", "create", "v@monday"]);
    fill(&server, 100, 20, 2);
    let (full, since) = (path(dir.path(), "full"), path(dir.path(), "since"));
    server.good(&["image", "dump", "v", "-0", "--to", &full]);
    fill(&server, 200, 20, 3);
    server.good(&["image", "dump", "v", "--base", "monday", "--to", &since]);
    let listed = server.json(&["image", "ls", &full, &since]);
    assert_eq!(listed["note"], serde_json::Value::Null, "{listed:#}");
    assert_eq!(listed["snapshots"].as_array().unwrap().len(), 3, "{listed:#}");
    let alone = server.json(&["image", "ls", &since]);
    assert!(alone["note"].as_str().unwrap().contains("monday"), "{alone:#}");
    server.good(&["image", "restore", "back", &since, &full]);
    assert!(content(server.disk("back/db")) == content(server.disk("v/db")));
}

#[test]
fn levels_are_dumped_in_parts_restored_in_any_order_and_mounted_without_a_server() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = served(dir.path());
    fill(&server, 0, 3000, 1);
    server.good(&["snapshot", "create", "v@monday"]);
    fill(&server, 100, 50, 2);
    let zero = path(dir.path(), "zero");
    let planned = server.json(&["image", "dump", "v", "-0", "--streams", "3", "-n"]);
    let dumped = server.json(&["image", "dump", "v", "-0", "--streams", "3", "--to", &zero]);
    assert_eq!((&dumped["parts"], &dumped["level"]), (&3.into(), &"0".into()), "{dumped}");
    let files = [format!("{zero}.1"), format!("{zero}.2"), format!("{zero}.3")];
    let on_disk: u64 = files.iter().map(|file| std::fs::metadata(file).unwrap().len()).sum();
    assert_eq!(dumped["bytes"], on_disk);
    assert_eq!(planned["data_bytes"], dumped["data_bytes"]);
    assert_eq!(planned["bytes"], on_disk, "a dry run is exact");
    // Level 2 against 0, level 1 against 0 as well: only the later changes.
    fill(&server, 200, 20, 3);
    let (two, one) = (path(dir.path(), "two"), path(dir.path(), "one"));
    let dumped = server.json(&["image", "dump", "v", "-2", "--to", &two]);
    assert!(dumped["data_bytes"].as_u64().unwrap() < 60 * 4096, "{dumped}");
    fill(&server, 300, 20, 4);
    let dumped = server.json(&["image", "dump", "v", "--level", "1", "--compress", "--to", &one]);
    let levels = server.json(&["image", "levels", "v"]);
    assert_eq!(levels.as_array().unwrap().len(), 2, "level 1 took the place of 2: {levels}");
    let now = content(server.disk("v/db"));
    let target = dumped["snapshot"].as_str().unwrap().to_owned();
    assert!(
        !server
            .json(&["snapshot", "list", "v"])
            .as_array()
            .unwrap()
            .iter()
            .any(|one| { one["name"].as_str().unwrap().contains("image.2.") }),
        "the snapshot of level 2 is let go"
    );
    server.bad(11, "busy", &["snapshot", "delete", &target, "--yes"]);
    server.bad(21, "taken", &["image", "dump", "v", "-1", "--to", &one]);

    let mut all: Vec<&str> = vec!["image", "restore", "back", &one];
    all.extend(files.iter().rev().map(String::as_str));
    let restored = server.json(&all);
    assert_eq!(restored["dumped_from"], "v");
    assert_eq!(content(server.disk("back/db")), now);
    let monday = content(server.disk("v@monday/db"));
    assert_eq!(content(server.disk("back@monday/db")), monday);
    assert!(server.good(&["volume", "check", "back", "--deep"]).contains("sound"));
    // It is in service like any other: also after a restart.
    server.terminate();
    server.restart();
    assert_eq!(content(server.disk("back/db")), now);
    server.bad(21, "taken", &["image", "restore", "back", &files[0], &files[1], &files[2]]);
    server.bad(10, "not-found", &["image", "restore", "new", &files[0], &files[2]]);
    server.bad(10, "not-found", &["image", "restore", "new", &one]);
    assert_eq!(server.json(&["volume", "list"]).as_array().unwrap().len(), 2, "nothing half-made is left");

    // Without any server.
    server.terminate();
    let mut listed: Vec<&str> = vec!["image", "ls", "--json", &one];
    listed.extend(files.iter().map(String::as_str));
    let output = cairn().args(&listed).output().unwrap();
    let listing: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(listing["luns"][0]["name"], "v/db");
    assert_eq!(listing["files"][0]["level"], "1");
    assert!(listing["snapshots"].to_string().contains("monday"));
    // For a single file it is not damage that the rest is elsewhere.
    let output = cairn().args(["image", "ls", &one]).output().unwrap();
    let (listed, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.is_empty(), "{said}");
    assert!(listed.contains("monday") && listed.contains("name the dump of that as well"), "{listed}");
    let verified = cairn().args(["image", "verify", "--deep", &one]).args(&files).output().unwrap();
    assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stderr));
    let mut mount: Vec<&str> = vec![&one];
    mount.extend(files.iter().map(String::as_str));
    let mounted = Mounted::start(dir.path(), &mount);
    assert_eq!(content(mounted.disk("v/db")), now);
    assert_eq!(content(mounted.disk("v@monday/db")), monday);
    assert!(mounted.disk("v/db").write(0, &[1; 4096]).is_err(), "read-only");
}

#[test]
fn dump_against_a_younger_snapshot_is_refused_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let server = served(dir.path());
    fill(&server, 0, 20, 1);
    server.good(&["snapshot", "create", "v@monday"]);
    fill(&server, 0, 20, 2);
    server.good(&["snapshot", "create", "v@friday"]);
    let file = path(dir.path(), "dump");
    server.good(&["image", "dump", "v@friday", "-0", "--to", &path(dir.path(), "level0")]);
    for (target, more) in
        [("v@monday", &["--base", "friday"][..]), ("v@friday", &["--base", "friday"]), ("v@monday", &["-1"])]
    {
        for way in [&[][..], &["-n"], &["--to", &file]] {
            let said = server.bad(2, "usage", &[&["image", "dump", target][..], more, way].concat());
            assert!(said.contains("not older than the dumped snapshot"), "{said}");
        }
    }
    // There is nothing to resume, and nothing is held for it.
    server.good(&["image", "dump", "v", "--to", &file]);
    server.good(&["snapshot", "delete", "v@monday", "--yes"]);
}

#[test]
fn dump_goes_through_a_pipe_into_a_restore_on_another_server() {
    let dir = tempfile::tempdir().unwrap();
    let server = served(dir.path());
    fill(&server, 0, 2000, 7);
    server.good(&["snapshot", "create", "v@s"]);
    let other = Running::start(dir.path(), "other");
    let device = path(dir.path(), "disk");
    std::fs::File::create(&device).unwrap().set_len(400 * MIB).unwrap();
    let mut dump = cairn()
        .args(["image", "dump", "v@s", "--data"])
        .arg(&server.data)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let pipe = dump.stdout.take().unwrap();
    let restored = cairn()
        .args(["image", "restore", "w", "-", "--device", &device, "--data"])
        .arg(&other.data)
        .stdin(Stdio::from(pipe))
        .output()
        .unwrap();
    assert!(dump.wait().unwrap().success());
    assert!(restored.status.success(), "{}", String::from_utf8_lossy(&restored.stderr));
    assert_eq!(content(other.disk("w/db")), content(server.disk("v@s/db")));
    assert!(other.good(&["volume", "check", "w", "--deep"]).contains("sound"));
    let tcp = cairn()
        .args(["image", "dump", "v", "--server", "127.0.0.1:1", "--token-file"])
        .arg(&device)
        .args(["--json", "--to", "/dev/null"])
        .output()
        .unwrap();
    refused(&tcp, 2, "usage", &["dump over TCP"]);
}

#[test]
fn damage_costs_a_record_is_named_and_the_rest_is_restored() {
    let dir = tempfile::tempdir().unwrap();
    let server = served(dir.path());
    fill(&server, 0, 4000, 9);
    let file = path(dir.path(), "dump");
    server.good(&["image", "dump", "v", "--to", &file]);
    let now = content(server.disk("v/db"));
    flip(&file, 6 * MIB);
    let output = cairn().args(["image", "verify", "--json", &file]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(27), "{said}");
    assert!(said.contains("between vbn") && said.contains("v/db"), "{said}");
    server.bad(27, "damaged", &["image", "restore", "w", &file]);
    let accepted = server.run(&["image", "restore", "w", "--resume", "--accept-damage"]);
    assert_eq!(accepted.status.code(), Some(3), "{}", String::from_utf8_lossy(&accepted.stderr));
    let mut disk = server.disk("w/db");
    let mut unread = 0;
    for block in 0..4000u64 {
        match disk.read(block * 4096, 4096) {
            Ok(bytes) => assert_eq!(bytes[..], now[(block * 4096) as usize..][..4096]),
            Err(_) => unread += 1,
        }
    }
    assert!((1..=256).contains(&unread), "{unread} blocks of one record");
    // A truncated file is not trusted until the user accepts the damage.
    let length = std::fs::metadata(&file).unwrap().len();
    std::fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(length / 2).unwrap();
    let cut = server.bad(27, "damaged", &["image", "restore", "x", &file]);
    assert!(cut.contains("cut off") || cut.contains("damaged"), "{cut}");
    let verify = || {
        let output = cairn().args(["image", "verify", &file]).output().unwrap();
        assert_eq!(output.status.code(), Some(27));
        String::from_utf8(output.stderr).unwrap()
    };
    let verified = verify();
    assert!(
        verified.contains("cairn image dump VOLUME --resume"),
        "what helps a file that is cut off: {verified}"
    );
    // A file without its head is not a dump any more: damage can't be accepted.
    std::fs::OpenOptions::new().write(true).open(&file).unwrap().write_all_at(&[0; 64], 0).unwrap();
    let headless = verify();
    assert!(headless.contains("another copy") && !headless.contains("--accept-damage"), "{headless}");
    server.bad(27, "damaged", &["image", "restore", "y", &file, "--accept-damage"]);
    server.bad(27, "damaged", &["image", "restore", "y", "/bin/true"]);
    server.bad(10, "not-found", &["image", "restore", "y", "/nothing"]);
    // After another dump it is a damaged dump as well, and not a path in that one.
    let whole = path(dir.path(), "whole");
    server.good(&["image", "dump", "v", "--to", &whole]);
    let listed = cairn().args(["image", "ls", "--json", &whole, &file]).output().unwrap();
    assert!(refused(&listed, 27, "damaged", &["image", "ls"]).contains(&file));
}

/// A user who only adds the missing file must still learn of damage in the others.
#[test]
fn damage_is_told_also_where_another_file_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let server = served(dir.path());
    fill(&server, 0, 4000, 9);
    let (file, missing) = (path(dir.path(), "dump"), path(dir.path(), "missing"));
    server.good(&["image", "dump", "v", "--to", &file]);
    flip(&file, 6 * MIB);
    for files in [[&file, &missing], [&missing, &file]] {
        let output = cairn().args(["image", "verify", "--json"]).args(files).output().unwrap();
        let said = refused(&output, 27, "damaged", &["image", "verify"]);
        assert!(said.contains("1 place(s)") && said.contains(missing.as_str()), "{said}");
        let first = String::from_utf8_lossy(&output.stdout).lines().next().unwrap().to_owned();
        let told: serde_json::Value = serde_json::from_str(&first).unwrap();
        assert!(told["damage"][0].as_str().unwrap().contains("between vbn"), "{told}");
        assert!(told["unread"][0].as_str().unwrap().contains(missing.as_str()), "{told}");
    }
    let lacks = |files: &[&String]| {
        let output = cairn().args(["image", "verify", "--json"]).args(files).output().unwrap();
        refused(&output, 10, "not-found", &["image", "verify"])
    };
    lacks(&[&missing]);
    server.good(&["image", "dump", "v", "--to", &file, "--overwrite"]);
    lacks(&[&file, &missing]);
}

/// The write end of a pipe without a reader.
fn unread() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

#[test]
fn what_went_wrong_is_in_the_exit_code_also_where_nobody_reads_what_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let server = served(dir.path());
    fill(&server, 0, 4000, 9);
    let (file, never) = (path(dir.path(), "dump"), path(dir.path(), "never"));
    server.good(&["image", "dump", "v", "--to", &file]);
    flip(&file, 6 * MIB);
    for more in [&[][..], &["--json"]] {
        let mut command = cairn();
        command.args(["image", "verify", &file]).args(more).stdout(unread()).stderr(Stdio::null());
        assert_eq!(command.status().unwrap().code(), Some(27), "{more:?}");
    }
    // An incomplete dump does not count.
    server.good(&["volume", "rehearse", "v", "--delay", "200ms", "--yes"]);
    let mut command = cairn();
    command.args(["image", "dump", "v", "--json", "--to", &never, "--data"]).arg(&server.data);
    let code = command.stdout(unread()).stderr(Stdio::null()).status().unwrap().code();
    assert_eq!((code, Path::new(&never).exists()), (Some(130), false));
}

#[test]
fn killed_dump_leaves_no_whole_file_and_killed_restore_no_volume() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = served(dir.path());
    fill(&server, 0, 5000, 3);
    // A pipe without a reader: the dump waits in the middle.
    let mut dump = cairn()
        .args(["image", "dump", "v", "-0", "--data"])
        .arg(&server.data)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut pipe = dump.stdout.take().unwrap();
    let mut head = vec![0; MIB as usize];
    pipe.read_exact(&mut head).unwrap();
    server.bad(11, "busy", &["image", "dump", "v", "--to", "/dev/null"]);
    dump.kill().unwrap();
    dump.wait().unwrap();
    // The server notices that; with room in the pipe it would be done sooner.
    std::thread::sleep(Duration::from_secs(1));
    let mut rest = Vec::new();
    pipe.read_to_end(&mut rest).unwrap();
    head.extend(rest);
    let file = path(dir.path(), "part");
    std::fs::write(&file, &head).unwrap();
    server.bad(27, "damaged", &["image", "restore", "u", &file]);
    let deadline = Instant::now() + PATIENCE;
    while server.json(&["snapshot", "list", "v"]) != serde_json::json!([]) {
        assert!(Instant::now() < deadline, "the snapshot of the dump that was given up is gone");
    }
    server.bad(10, "not-found", &["image", "dump", "v", "-1", "--to", "/dev/null"]);

    // A restore that gets half of a dump, and a server that is killed meanwhile.
    server.good(&["image", "dump", "v", "--to", &path(dir.path(), "whole")]);
    let whole = std::fs::read(dir.path().join("whole")).unwrap();
    let device = path(dir.path(), "disk");
    std::fs::File::create(&device).unwrap().set_len(400 * MIB).unwrap();
    let mut restore = cairn()
        .args(["image", "restore", "w", "-", "--device", &device, "--data"])
        .arg(&server.data)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut feed = restore.stdin.take().unwrap();
    feed.write_all(&whole[..whole.len() / 2]).unwrap();
    server.bad(11, "busy", &["volume", "create", "w", "--size", "64M"]);
    server.kill();
    restore.wait().unwrap();
    server.restart();
    assert_eq!(server.json(&["volume", "list"]).as_array().unwrap().len(), 1);
    // It starts over, on the same device; after a while there would be something to resume.
    server.good(&["image", "restore", "w", &path(dir.path(), "whole"), "--device", &device, "--anew"]);
    assert!(server.good(&["volume", "check", "w", "--deep"]).contains("sound"));
}

/// Such a dump only measures the time.
#[test]
fn dump_that_is_thrown_away_takes_nothing_from_those_that_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let server = served(dir.path());
    fill(&server, 0, 500, 1);
    let (full, more) = (path(dir.path(), "full"), path(dir.path(), "more"));
    server.good(&["image", "dump", "v", "--to", &full]);
    fill(&server, 0, 10, 2);
    let before = (server.json(&["image", "levels", "v"]), server.json(&["snapshot", "list", "v"]));
    let base = before.1[0]["name"].as_str().unwrap().strip_prefix("v@").unwrap();
    for arguments in [&["-0"][..], &["-1"], &["--base", base]] {
        let thrown_away = [&["image", "dump", "v", "--to", "/dev/null"], arguments].concat();
        let output = server.run(&thrown_away);
        assert!(output.status.success(), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("does not count"), "{output:?}");
        assert_eq!((server.json(&["image", "levels", "v"]), server.json(&["snapshot", "list", "v"])), before);
    }
    fill(&server, 20, 10, 3);
    server.good(&["image", "dump", "v", "-1", "--to", &more]);
    server.good(&["image", "restore", "w", &more, &full]);
    assert_eq!(content(server.disk("w/db")), content(server.disk("v/db")));
}

#[test]
fn dump_against_a_named_snapshot_and_of_one() {
    let dir = tempfile::tempdir().unwrap();
    let server = served(dir.path());
    fill(&server, 0, 500, 1);
    server.good(&["snapshot", "create", "v@a"]);
    fill(&server, 0, 10, 2);
    server.good(&["snapshot", "create", "v@b"]);
    let (full, more) = (path(dir.path(), "full"), path(dir.path(), "more"));
    server.good(&["image", "dump", "v@a", "--to", &full]);
    server.good(&["image", "dump", "v@b", "--base", "a", "--to", &more]);
    server.bad(2, "usage", &["image", "dump", "v@a", "--base", "b", "--to", "/dev/null"]);
    server.bad(10, "not-found", &["image", "dump", "v@b", "--base", "none", "--to", "/dev/null"]);
    server.good(&["image", "restore", "w", &more, &full]);
    assert_eq!(content(server.disk("w/db")), content(server.disk("v@b/db")));
    // Level 1 is made against the snapshot of level 0, while that exists.
    server.good(&["image", "dump", "v@b", "-1", "--to", "/dev/null"]);
    server.good(&["snapshot", "delete", "v@a", "--yes"]);
    let gone = server.bad(13, "diverged", &["image", "dump", "v", "-1", "--to", "/dev/null"]);
    assert!(gone.contains("v@a"), "{gone}");
    assert!(server.json(&["image", "levels", "v"])[0]["lost"].as_bool().unwrap());
    server.bad(2, "usage", &["snapshot", "create", "v@image.golden"]);
    server.bad(2, "usage", &["snapshot", "rename", "v@b", "mirror.b"]);
    server.good(&["image", "levels", "v", "--forget", "0", "--yes"]);
    server.bad(10, "not-found", &["image", "dump", "v", "-1", "--to", "/dev/null"]);
    server.good(&["image", "dump", "v", "--to", "/dev/null"]);
}

/// Dumps a snapshot to standard output, which is `file`.
fn dump_into(server: &Running, snapshot: &str, file: &std::fs::File) {
    let mut command = cairn();
    command.args(["image", "dump", snapshot, "--data"]).arg(&server.data);
    let dumped = command.stdout(file.try_clone().unwrap()).output().unwrap();
    assert!(dumped.status.success(), "{}", String::from_utf8_lossy(&dumped.stderr));
}

/// `image verify` of these bytes, as a file of their own.
fn verified(dir: &Path, bytes: &[u8]) -> serde_json::Value {
    let file = path(dir, "cut-out");
    std::fs::write(&file, bytes).unwrap();
    let output = cairn().args(["image", "verify", "--json", &file]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_str(&said).unwrap()
}

/// `>> FILE` of a shell.
#[test]
fn dump_to_the_end_of_a_file_leaves_what_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let server = served(dir.path());
    fill(&server, 0, 500, 1);
    server.good(&["snapshot", "create", "v@s"]);
    let (log, lines) = (path(dir.path(), "my.log"), b"line one\nline two\n");
    std::fs::write(&log, lines).unwrap();
    let file = std::fs::File::options().append(true).open(&log).unwrap();
    dump_into(&server, "v@s", &file);
    let one = std::fs::read(&log).unwrap();
    assert!(one.starts_with(lines), "the lines are gone; {} bytes", one.len());
    let dump = &one[lines.len()..];
    assert!(verified(dir.path(), dump)["data_bytes"].as_u64().unwrap() >= 500 * 4096);
    // Also the remainder of this one.
    dump_into(&server, "v@s", &file);
    let two = std::fs::read(&log).unwrap();
    assert!(two.starts_with(&one) && two.len() == one.len() + dump.len());
    verified(dir.path(), &two[one.len()..]);
}

/// `{ echo HEADER; cairn image dump V; echo FOOTER; } > FILE` and `1<> FILE` of a shell.
#[test]
fn dump_to_standard_output_begins_where_that_is() {
    let dir = tempfile::tempdir().unwrap();
    let server = served(dir.path());
    fill(&server, 0, 500, 1);
    server.good(&["snapshot", "create", "v@s"]);
    let (together, longer) = (path(dir.path(), "together"), path(dir.path(), "longer"));
    let mut file = std::fs::File::create(&together).unwrap();
    file.write_all(b"my header\n").unwrap();
    dump_into(&server, "v@s", &file);
    file.write_all(b"my footer\n").unwrap();
    let bytes = std::fs::read(&together).unwrap();
    let behind = bytes.strip_prefix(b"my header\n").expect("what was written before is there");
    let dump = behind.strip_suffix(b"my footer\n").expect("what is written after comes behind the dump");
    verified(dir.path(), dump);
    // A shell that does not empty the file wants it so.
    std::fs::write(&longer, vec![0xee; dump.len() + 1000]).unwrap();
    dump_into(&server, "v@s", &std::fs::File::options().read(true).write(true).open(&longer).unwrap());
    let bytes = std::fs::read(&longer).unwrap();
    let (dump, rest) = bytes.split_at(dump.len());
    verified(dir.path(), dump);
    assert!(rest == [0xee; 1000], "{} bytes behind the dump", rest.len());
    // One that does, as with `>`, has truncated it before.
    dump_into(&server, "v@s", &std::fs::File::create(&longer).unwrap());
    verified(dir.path(), &std::fs::read(&longer).unwrap());
}

/// One part of it is a file, and another one is not.
#[test]
fn dump_made_anew_into_a_file_and_a_device_has_nothing_of_the_one_before() {
    let dir = tempfile::tempdir().unwrap();
    let server = served(dir.path());
    fill(&server, 0, 500, 1);
    let (whole, half) = (path(dir.path(), "whole"), path(dir.path(), "half"));
    server.good(&["image", "dump", "v", "--to", &whole]);
    let before = std::fs::metadata(&whole).unwrap().len();
    std::fs::rename(&whole, format!("{half}.partial")).unwrap();
    server.good(&["image", "dump", "v", "--anew", "--to", "/dev/null", &half]);
    let bytes = std::fs::read(&half).unwrap();
    // Most blocks are in the first part.
    assert!((bytes.len() as u64) < before / 2, "{} bytes of {before}", bytes.len());
    verified(dir.path(), &bytes);
    assert!(!Path::new(&format!("{half}.partial")).exists());
}

/// `{ dd ...; cairn image restore NAME -; } < FILE` of a shell: of several dumps in one file, the
/// next one is read.
#[test]
fn dump_is_read_from_where_standard_input_stands() {
    let dir = tempfile::tempdir().unwrap();
    let server = served(dir.path());
    fill(&server, 0, 500, 1);
    server.good(&["volume", "create", "z", "--size", "256M"]);
    server.good(&["lun", "create", "z/db", "--size", "24M"]);
    server.disk("z/db").write(0, &[7; 3 << 20]).unwrap();
    let (first, second, both) = (path(dir.path(), "v"), path(dir.path(), "z"), path(dir.path(), "both"));
    server.good(&["image", "dump", "v", "--to", &first]);
    server.good(&["image", "dump", "z", "--to", &second]);
    let mut bytes = std::fs::read(&first).unwrap();
    let next = bytes.len() as u64;
    bytes.extend(std::fs::read(&second).unwrap());
    std::fs::write(&both, &bytes).unwrap();
    let read = |arguments: &[&str]| {
        let mut file = std::fs::File::open(&both).unwrap();
        file.seek(SeekFrom::Start(next)).unwrap();
        let mut command = cairn();
        command.args(["image", arguments[0], "--json"]).args(&arguments[1..]).stdin(file);
        if arguments[0] == "restore" {
            command.arg("--data").arg(&server.data);
        }
        let output = command.output().unwrap();
        let said = [output.stdout, output.stderr].map(|said| String::from_utf8(said).unwrap());
        (output.status.code(), said)
    };
    let good = |arguments: &[&str]| {
        let (code, said) = read(arguments);
        assert_eq!(code, Some(0), "{said:?}");
        // Progress comes before the result.
        serde_json::from_str::<serde_json::Value>(said[0].lines().last().unwrap()).unwrap()
    };
    assert_eq!(good(&["restore", "back", "-"])["dumped_from"], "z");
    assert!(content(server.disk("back/db")) == content(server.disk("z/db")));
    let alone = server.json(&["image", "verify", &second]);
    assert_eq!(good(&["verify", "-"]), alone);
    // The bytes before it are ignored, and it is verified.
    flip(&both, next / 2);
    assert_eq!(good(&["verify", "-"]), alone);
    let inside = next + (bytes.len() as u64 - next) / 2;
    flip(&both, inside);
    let (code, said) = read(&["verify", "-"]);
    assert_eq!(code, Some(27), "{said:?}");
    let (code, said) = read(&["restore", "again", "-"]);
    assert_eq!(code, Some(27), "{said:?}");
    // It resumes there too.
    flip(&both, inside);
    assert_eq!(good(&["restore", "again", "-", "--resume"])["dumped_from"], "z");
    assert!(content(server.disk("again/db")) == content(server.disk("z/db")));
}
