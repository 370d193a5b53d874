//! Image restores that are interrupted, by a kill of the server or of the client, Ctrl-C, a damaged
//! file and a pipe that ends: they are resumed, or given up.

mod running;

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use running::{BLOCKS, Running, cairn, content, fill, path, refused, server_with_disk, wait_until};
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// A file that a volume can be restored to.
fn disk(path: &str) {
    File::create(path).unwrap().set_len(400 * MIB).unwrap();
}

fn flip(file: &str, at: u64) {
    let file = File::options().read(true).write(true).open(file).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 4], at).unwrap();
}

/// A restore that reads its input from a pipe.
fn fed(server: &Running, arguments: &[&str]) -> (Child, ChildStdin) {
    let mut command = cairn();
    command.args(["image", "restore", "w", "--json"]).args(arguments).arg("--data").arg(&server.data);
    let mut restore =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let feed = restore.stdin.take().unwrap();
    (restore, feed)
}

/// The notes of the restore.
fn notes(server: &Running) -> Value {
    let text = std::fs::read(server.data.join("volumes/.w.restore/restore.json")).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

fn noted_blocks(server: &Running) -> u64 {
    notes(server)["blocks"].as_u64().unwrap_or(0)
}

/// Feeds it bit by bit until it has noted more than this many blocks.
fn feed_until_noted(server: &Running, feed: &mut ChildStdin, dump: &[u8], blocks: u64) {
    for piece in dump.chunks(65_536) {
        feed.write_all(piece).unwrap();
        if noted_blocks(server) > blocks {
            return;
        }
        // As a slow link does.
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("nothing more was noted: {}", notes(server));
}

fn problems(server: &Running) -> String {
    server.json(&["status"])["problems"].to_string()
}

/// The command that resumes, with these files.
fn resume<'a>(files: &[&'a str]) -> Vec<&'a str> {
    [&["image", "restore", "w", "--resume"], files].concat()
}

#[test]
fn restore_of_a_server_that_was_killed_goes_on_where_it_was_through_a_pipe_and_from_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = server_with_disk(dir.path());
    server.good(&["snapshot", "create", "v@monday"]);
    fill(&server, 100, 1500, 2);
    let (now, monday) = (content(server.disk("v/db")), content(server.disk("v@monday/db")));
    let (zero, device) = (path(dir.path(), "zero"), path(dir.path(), "disk"));
    server.good(&["image", "dump", "v", "--to", &zero]);
    let whole = std::fs::read(&zero).unwrap();
    disk(&device);
    let mut before = 0;
    for arguments in [&["-", "--device", &device][..], &["-", "--resume"]] {
        let (mut restore, mut feed) = fed(&server, arguments);
        feed_until_noted(&server, &mut feed, &whole, before);
        server.kill();
        drop(feed);
        assert!(!restore.wait().unwrap().success());
        server.restart();
        before = noted_blocks(&server);
        assert_eq!(server.json(&["volume", "list"]).as_array().unwrap().len(), 1);
        assert!(problems(&server).contains("--resume"), "{}", problems(&server));
    }

    // Until it is resumed, nothing else can use its name or its device.
    let said = server.bad(11, "busy", &["image", "restore", "w", &zero]);
    assert!(said.contains("unfinished"), "{said}");
    server.bad(11, "busy", &["volume", "create", "w", "--size", "64M"]);
    let said = server.bad(11, "busy", &["volume", "create", "x", "--device", &device]);
    assert!(said.contains("unfinished"), "{said}");
    // A dump that came through a pipe has to be named.
    server.bad(2, "usage", &resume(&[]));

    let restored = server.json(&resume(&[&zero]));
    let there = restored["there_bytes"].as_u64().unwrap();
    assert_eq!(there, before * 4096);
    let (read, all) = (restored["bytes"].as_u64().unwrap(), whole.len() as u64);
    assert!(read < all - there + MIB / 4, "{read} of {all} bytes were read, {there} were there");
    assert!(restored["data_bytes"].as_u64().unwrap() > BLOCKS * 4096);
    assert_eq!((notes(&server), problems(&server)), (Value::Null, "[]".to_owned()));
    assert!(!server.data.join("volumes/w/restore.json").exists());
    server.bad(10, "not-found", &resume(&[&zero]));
    for _ in 0..2 {
        assert!(content(server.disk("w/db")) == now);
        assert!(content(server.disk("w@monday/db")) == monday);
        assert!(server.good(&["volume", "check", "w", "--deep"]).contains("sound"));
        server.kill();
        server.restart();
    }
}

#[test]
fn restore_that_is_interrupted_in_a_later_dump_goes_on_there() {
    let dir = tempfile::tempdir().unwrap();
    let server = server_with_disk(dir.path());
    let zero = path(dir.path(), "zero");
    let files = [format!("{zero}.1"), format!("{zero}.2")];
    server.good(&["image", "dump", "v", "--to", &zero, "--streams", "2"]);
    fill(&server, 0, 4000, 4);
    let one = path(dir.path(), "one");
    server.good(&["image", "dump", "v", "-1", "--to", &one]);
    let now = content(server.disk("v/db"));
    let whole = std::fs::read(&one).unwrap();
    let (restore, mut feed) = fed(&server, &["-", &files[1], &files[0]]);
    // A pipe holds little: all but the last bit of this was read.
    feed.write_all(&whole[..(6 * MIB) as usize]).unwrap();
    let sent = Command::new("kill").args(["-INT", &restore.id().to_string()]).status().unwrap();
    assert!(sent.success());
    // It notices that at the next record.
    let rest = whole[(6 * MIB) as usize..].to_vec();
    let feeding = std::thread::spawn(move || {
        for piece in rest.chunks(65_536) {
            std::thread::sleep(Duration::from_millis(20));
            if feed.write_all(piece).is_err() {
                return;
            }
        }
        panic!("it was not ended");
    });
    let cut = restore.wait_with_output().unwrap();
    feeding.join().unwrap();
    let said = refused(&cut, 130, "interrupted", &["Ctrl-C"]);
    assert!(said.contains("ended") && String::from_utf8_lossy(&cut.stdout).contains("--resume"), "{cut:?}");
    assert_eq!(notes(&server)["dump"], 1, "{}", notes(&server));
    let noted = noted_blocks(&server);
    // A missing dump, or an additional one, differs from the original list.
    server.bad(2, "usage", &resume(&[&files[0], &files[1]]));
    server.bad(10, "not-found", &resume(&[&one]));
    let restored = server.json(&resume(&[&one, &files[0], &files[1]]));
    assert_eq!(restored["there_bytes"], noted * 4096);
    assert!(noted > BLOCKS + 200, "{noted}");
    assert!(content(server.disk("w/db")) == now);
    assert!(server.good(&["volume", "check", "w", "--deep"]).contains("sound"));
}

#[test]
fn damage_that_was_accepted_is_named_after_a_kill_as_well() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = server_with_disk(dir.path());
    let file = path(dir.path(), "dump");
    server.good(&["image", "dump", "v", "--to", &file]);
    let now = content(server.disk("v/db"));
    flip(&file, 3 * MIB);
    let damaged = std::fs::read(&file).unwrap();
    let (mut restore, mut feed) = fed(&server, &["-", "--accept-damage"]);
    feed_until_noted(&server, &mut feed, &damaged, 1200);
    server.kill();
    drop(feed);
    restore.wait().unwrap();
    server.restart();
    // Earlier confirmations are not requested again.
    let outcome = server.run(&[&resume(&[&file])[..], &["--json"]].concat());
    assert_eq!(outcome.status.code(), Some(3), "{outcome:?}");
    let uncut = server.run(&["image", "restore", "x", &file, "--accept-damage", "--json"]);
    assert_eq!(uncut.status.code(), Some(3), "{uncut:?}");
    let lost = |text: &[u8]| {
        let text = String::from_utf8_lossy(text);
        let summary: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        let lost = summary["lost"].as_array().unwrap().clone();
        let spot = |one: &Value| one.as_str().unwrap().split_once(": ").unwrap().1.to_owned();
        (lost.iter().map(spot).collect::<Vec<_>>(), summary["findings"].as_array().unwrap().len())
    };
    assert_eq!(lost(&outcome.stdout), lost(&uncut.stdout));
    let mut disk = server.disk("w/db");
    let mut unread = 0;
    for block in 0..BLOCKS {
        match disk.read(block * 4096, 4096) {
            Ok(bytes) => assert_eq!(bytes[..], now[(block * 4096) as usize..][..4096]),
            Err(_) => unread += 1,
        }
    }
    assert!((1..=256).contains(&unread), "{unread} blocks of one record");
}

#[test]
fn restore_from_a_damaged_file_goes_on_with_a_sound_one_and_not_with_another_dump_or_device() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = server_with_disk(dir.path());
    let (file, other, sound) =
        (path(dir.path(), "dump"), path(dir.path(), "other"), path(dir.path(), "sound"));
    let (device, kept) = (path(dir.path(), "disk"), path(dir.path(), "kept"));
    server.good(&["image", "dump", "v", "--to", &file]);
    server.good(&["image", "dump", "v", "--to", &other]);
    let now = content(server.disk("v/db"));
    std::fs::copy(&file, &sound).unwrap();
    flip(&file, 9 * MIB);
    disk(&device);
    let said = server.bad(27, "damaged", &["image", "restore", "w", &file, "--device", &device]);
    assert!(said.contains("is kept"), "{said}");
    assert!(noted_blocks(&server) > 1500, "{}", notes(&server));
    server.bad(27, "damaged", &resume(&[]));

    let said = server.bad(2, "usage", &resume(&[&other]));
    assert!(said.contains("these are not the dumps"), "{said}");
    // The device is missing, is another one, was cleared, or was truncated: the progress is kept
    // for the right one.
    std::fs::rename(&device, &kept).unwrap();
    server.bad(10, "not-found", &resume(&[&sound]));
    disk(&device);
    for bytes in [400 * MIB, MIB] {
        File::options().write(true).open(&device).unwrap().set_len(bytes).unwrap();
        let said = server.bad(13, "diverged", &resume(&[&sound]));
        assert!(said.contains(&device), "{said}");
    }
    std::fs::remove_file(&device).unwrap();
    std::fs::rename(&kept, &device).unwrap();
    server.kill();
    server.restart();
    let restored = server.json(&resume(&[&sound]));
    assert!(restored["there_bytes"].as_u64().unwrap() > 7 * MIB, "{restored}");
    assert!(content(server.disk("w/db")) == now);
    assert!(server.good(&["volume", "check", "w", "--deep"]).contains("sound"));
}

#[test]
fn unfinished_restore_is_given_up_or_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let server = server_with_disk(dir.path());
    let (file, device) = (path(dir.path(), "dump"), path(dir.path(), "disk"));
    server.good(&["image", "dump", "v", "--to", &file]);
    let now = content(server.disk("v/db"));
    let whole = std::fs::read(&file).unwrap();
    disk(&device);
    server.bad(10, "not-found", &["image", "restore", "w", "--give-up", "--yes"]);
    // A client that is killed ends the restore.
    let (mut restore, mut feed) = fed(&server, &["-", "--device", &device]);
    feed.write_all(&whole[..(6 * MIB) as usize]).unwrap();
    restore.kill().unwrap();
    restore.wait().unwrap();
    let _ = feed.write_all(&whole[(6 * MIB) as usize..(9 * MIB) as usize]);
    drop(feed);
    wait_until("the server has not ended it", || problems(&server).contains("--resume"));
    server.bad(2, "usage", &["image", "restore", "w", "--give-up"]);
    server.good(&["image", "restore", "w", "--give-up", "--yes"]);
    assert_eq!((notes(&server), problems(&server)), (Value::Null, "[]".to_owned()));
    assert!(!server.data.join("volumes/.w.restore").exists());
    server.bad(10, "not-found", &["image", "restore", "w", "--give-up", "--yes"]);
    server.bad(10, "not-found", &resume(&[&file]));

    // A pipe that ends too early; the next one begins again in its place, on the same device.
    let (restore, mut feed) = fed(&server, &["-", "--device", &device]);
    feed.write_all(&whole[..(6 * MIB) as usize]).unwrap();
    drop(feed);
    let said = refused(&restore.wait_with_output().unwrap(), 27, "damaged", &["a pipe that ends"]);
    assert!(said.contains("cut off") && said.contains("is kept"), "{said}");
    server.bad(11, "busy", &["image", "restore", "w", &file, "--device", &device]);
    assert_eq!(server.run(&["image", "restore", "w", &file, "--resume", "--anew"]).status.code(), Some(2));
    // A file that is not a dump does not replace it.
    server.bad(27, "damaged", &["image", "restore", "w", "/bin/true", "--anew"]);
    assert!(noted_blocks(&server) > 1000);
    let restored = server.json(&["image", "restore", "w", &file, "--device", &device, "--anew"]);
    assert_eq!(restored["there_bytes"], 0);
    assert!(content(server.disk("w/db")) == now);
    assert!(server.good(&["volume", "check", "w", "--deep"]).contains("sound"));
    // Without an unfinished one, there is none to give up.
    server.good(&["image", "restore", "y", &file, "--anew"]);
}

#[test]
fn restore_of_which_what_was_written_down_is_damaged_is_told_with_the_ways_that_it_has() {
    let dir = tempfile::tempdir().unwrap();
    let server = server_with_disk(dir.path());
    let (zero, bad) = (path(dir.path(), "zero"), path(dir.path(), "bad"));
    server.good(&["image", "dump", "v", "--to", &zero]);
    std::fs::copy(&zero, &bad).unwrap();
    flip(&bad, 12 * MIB);
    assert!(!server.run(&["image", "restore", "w", &bad]).status.success());
    let again = [&resume(&[&zero])[..], &["--json"]].concat();
    for file in ["restore.json", "volume.json"] {
        let file = server.data.join("volumes/.w.restore").join(file);
        let whole = std::fs::read(&file).unwrap();
        std::fs::write(&file, b"{").unwrap();
        let output = server.run(&again);
        refused(&output, 27, "damaged", &again);
        let said = String::from_utf8(output.stdout).unwrap();
        let told: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
        let next = told["next"].as_str().unwrap();
        assert!(next.contains("image restore w --give-up") && !next.contains("cairn state"), "{next}");
        std::fs::write(&file, whole).unwrap();
    }
    server.good(&resume(&[&zero]));
    assert_eq!(content(server.disk("w/db")), content(server.disk("v/db")));
}
