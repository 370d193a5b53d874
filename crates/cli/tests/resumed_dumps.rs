//! Image dumps that are interrupted, by a kill of the server or of the client, Ctrl-C and a full
//! disk: they are resumed, or given up.

mod running;

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use running::{
    BLOCKS, Running, SmallDisk, cairn, content, fill, path, refused, server_with_disk, wait_until,
};
use serde_json::Value;

const MIB: u64 = 1 << 20;

fn partial(file: &str) -> PathBuf {
    PathBuf::from(format!("{file}.partial"))
}

fn length(file: &Path) -> u64 {
    std::fs::metadata(file).map_or(0, |found| found.len())
}

/// Up to where a file has something; it is longer than that while it is written.
fn filled(file: &Path) -> u64 {
    let bytes = std::fs::read(file).unwrap_or_default();
    bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1)
}

/// A slow dump, as its volume is slow, that has written this many bytes of that file.
fn begun(server: &Running, arguments: &[&str], file: &str, bytes: u64) -> Child {
    server.good(&["volume", "rehearse", "v", "--delay", "250ms", "--yes"]);
    let mut command = cairn();
    command.args(["image", "dump", "v", "--json"]).args(arguments).arg("--data").arg(&server.data);
    let dump = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("it is not under way", || filled(&partial(file)) >= bytes);
    dump
}

fn quick_again(server: &Running) {
    server.good(&["volume", "rehearse", "v", "--off"]);
}

/// Ctrl-C for the client.
fn interrupt(dump: Child) -> Output {
    let sent = Command::new("kill").args(["-INT", &dump.id().to_string()]).status().unwrap();
    assert!(sent.success());
    dump.wait_with_output().unwrap()
}

fn problems(server: &Running) -> String {
    server.json(&["status"])["problems"].to_string()
}

fn unfinished(server: &Running) -> Value {
    let text = std::fs::read(server.data.join("volumes/v/dumps.json")).unwrap_or_default();
    serde_json::from_slice::<Value>(&text).map_or(Value::Null, |document| document["unfinished"].clone())
}

fn own_snapshots(server: &Running) -> usize {
    let listed = server.json(&["snapshot", "list", "v"]);
    listed.as_array().unwrap().iter().filter(|one| one["name"].as_str().unwrap().contains("image.")).count()
}

#[test]
fn dump_of_a_server_that_was_killed_goes_on_where_it_was_and_is_restored() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = server_with_disk(dir.path());
    server.good(&["snapshot", "create", "v@monday"]);
    fill(&server, 100, 1500, 2);
    let (now, monday) = (content(server.disk("v/db")), content(server.disk("v@monday/db")));
    let zero = path(dir.path(), "zero");
    let files = [format!("{zero}.1"), format!("{zero}.2")];
    let dump = begun(&server, &["--to", &zero, "--streams", "2"], &files[0], 5 * MIB);
    wait_until("they are not both under way", || filled(&partial(&files[1])) >= MIB);
    server.kill();
    let cut = dump.wait_with_output().unwrap();
    assert!(!cut.status.success());
    assert!(String::from_utf8_lossy(&cut.stdout).contains("--resume"), "{cut:?}");
    let there: Vec<u64> = files.iter().map(|file| filled(&partial(file))).collect();
    assert!(there.iter().all(|bytes| *bytes >= MIB), "{there:?}");

    // Until it is resumed, its snapshots stay, no other dump replaces it, and its files are not
    // overwritten.
    server.restart();
    assert!(problems(&server).contains("--resume"), "{}", problems(&server));
    assert!(server.good(&["image", "levels", "v"]).contains("unfinished"));
    server.bad(11, "busy", &["snapshot", "delete", "v@monday", "--yes"]);
    for to in [&zero[..], "/dev/null"] {
        let said = server.bad(11, "busy", &["image", "dump", "v", "--to", to]);
        assert!(said.contains("unfinished"), "{said}");
    }
    server.bad(11, "busy", &["image", "dump", "v", "--to", &zero, "--streams", "2", "--overwrite"]);
    let left: Vec<u64> = files.iter().map(|file| filled(&partial(file))).collect();
    assert_eq!(left, there);
    // Later changes by its owner are not in it.
    server.good(&["snapshot", "rename", "v@monday", "mon"]);
    fill(&server, 2000, 1000, 3);
    server.good(&["snapshot", "create", "v@later"]);
    server.good(&["snapshot", "delete", "v@later", "--yes"]);

    let before = server.written();
    let dumped = server.json(&["image", "dump", "v", "--resume"]);
    let written = server.written() - before;
    let (bytes, taken) = (dumped["bytes"].as_u64().unwrap(), dumped["there_bytes"].as_u64().unwrap());
    let behind = there.iter().sum::<u64>() - taken;
    assert!(behind <= 2 * (MIB + 8192), "one record a part is written again: {taken} of {there:?}");
    assert!(written < bytes - taken + MIB, "{written} bytes were written, {taken} of {bytes} were there");
    let on_disk: Vec<u64> = files.iter().map(|file| length(Path::new(file))).collect();
    assert_eq!(on_disk.iter().sum::<u64>(), bytes);
    assert!(files.iter().all(|file| !partial(file).exists()));
    assert_eq!((unfinished(&server), problems(&server)), (Value::Null, "[]".to_owned()));
    server.bad(10, "not-found", &["image", "dump", "v", "--resume"]);

    let verified = cairn().args(["image", "verify", "--deep"]).args(&files).output().unwrap();
    assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stderr));
    // It is the last one of its level, and releases snapshots that it no longer needs.
    server.good(&["snapshot", "delete", "v@mon", "--yes"]);
    let one = path(dir.path(), "one");
    server.good(&["image", "dump", "v", "-1", "--to", &one]);
    server.good(&["image", "restore", "old", &files[0], &files[1]]);
    assert_eq!(content(server.disk("old/db")), now);
    assert_eq!(content(server.disk("old@monday/db")), monday);
    assert!(server.good(&["volume", "check", "old", "--deep"]).contains("sound"));
    server.good(&["image", "restore", "new", &files[1], &one, &files[0]]);
    assert_eq!(content(server.disk("new/db")), content(server.disk("v/db")));
}

#[test]
fn dump_against_another_keeps_its_base_over_kills_and_goes_on_more_than_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = server_with_disk(dir.path());
    let (zero, one) = (path(dir.path(), "zero"), path(dir.path(), "one"));
    server.good(&["image", "dump", "v", "--to", &zero]);
    fill(&server, 0, BLOCKS, 4);
    let now = content(server.disk("v/db"));
    let mut dump = begun(&server, &["-1", "--compress", "--to", &one], &one, 2 * MIB);
    for round in 2..4 {
        server.kill();
        dump.wait().unwrap();
        server.restart();
        // Forgetting the level that it is based on does not delete its base.
        if round == 2 {
            server.good(&["image", "levels", "v", "--forget", "0", "--yes"]);
        }
        assert_eq!(own_snapshots(&server), 2, "both are kept");
        let there = filled(&partial(&one));
        dump = begun(&server, &["--resume"], &one, there + MIB);
    }
    quick_again(&server);
    let output = dump.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(own_snapshots(&server), 1, "what only the unfinished one needed is gone");
    server.good(&["image", "restore", "w", &one, &zero]);
    assert_eq!(content(server.disk("w/db")), now);
    assert!(server.good(&["volume", "check", "w", "--deep"]).contains("sound"));
}

#[test]
fn snapshot_of_a_dump_through_a_pipe_is_taken_away_after_a_kill_whatever_it_is_against() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = server_with_disk(dir.path());
    server.good(&["snapshot", "create", "v@monday"]);
    fill(&server, 0, BLOCKS, 9);
    // Its output is not read.
    let mut command = cairn();
    command.args(["image", "dump", "v", "--base", "monday", "--to", "-"]).arg("--data").arg(&server.data);
    let mut dump = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    wait_until("it has no snapshot", || own_snapshots(&server) == 1);
    std::thread::sleep(Duration::from_millis(200));
    server.kill();
    dump.wait().unwrap();
    server.restart();
    server.good(&["image", "dump", "v", "--to", &path(dir.path(), "last")]);
    assert_eq!(own_snapshots(&server), 1, "that of the last dump alone");
}

#[test]
fn interrupted_dump_is_gone_on_with_given_up_or_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let server = server_with_disk(dir.path());
    let (first, second) = (path(dir.path(), "first"), path(dir.path(), "second"));
    let cut = interrupt(begun(&server, &["--to", &first], &first, 6 * MIB));
    let said = refused(&cut, 130, "interrupted", &["Ctrl-C"]);
    assert!(said.contains("ended") && String::from_utf8_lossy(&cut.stdout).contains("--resume"), "{cut:?}");
    quick_again(&server);
    // A refused dump replaces none.
    server.bad(10, "not-found", &["image", "dump", "v", "--anew", "--base", "never", "--to", &first]);
    let dumped = server.json(&["image", "dump", "v", "--resume"]);
    assert!(dumped["there_bytes"].as_u64().unwrap() > 5 * MIB, "{dumped}");
    server.good(&["image", "verify", &first]);

    // After it is given up, only the dump before it remains.
    interrupt(begun(&server, &["--to", &second], &second, 6 * MIB));
    quick_again(&server);
    assert_eq!(own_snapshots(&server), 2);
    server.bad(2, "usage", &["image", "levels", "v", "--give-up"]);
    let given_up = server.json(&["image", "levels", "v", "--give-up", "--yes"]);
    assert!(given_up["removed"].to_string().contains("second.partial"), "{given_up}");
    assert!(!partial(&second).exists());
    assert_eq!((own_snapshots(&server), unfinished(&server)), (1, Value::Null));
    server.bad(10, "not-found", &["image", "levels", "v", "--give-up", "--yes"]);
    server.bad(10, "not-found", &["image", "dump", "v", "--resume"]);
    server.good(&["image", "dump", "v", "-1", "--to", "/dev/null"]);

    // A client that is killed ends the dump; another one takes its place.
    let mut dump = begun(&server, &["--to", &second], &second, 6 * MIB);
    dump.kill().unwrap();
    dump.wait().unwrap();
    quick_again(&server);
    wait_until("the server has not ended it", || problems(&server).contains("--resume"));
    let third = path(dir.path(), "third");
    assert_eq!(server.run(&["image", "dump", "v", "--resume", "--anew"]).status.code(), Some(2));
    server.good(&["image", "dump", "v", "--anew", "--to", &third]);
    assert!(!partial(&second).exists() && !partial(&third).exists());
    assert_eq!((own_snapshots(&server), unfinished(&server)), (1, Value::Null));
    server.good(&["image", "dump", "v", "--anew", "--overwrite", "--to", &third]);
    server.good(&["image", "verify", &third]);
}

#[test]
fn parts_are_found_under_either_name_and_counted_once_confirmed() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = server_with_disk(dir.path());
    let all = path(dir.path(), "all");
    let files = [format!("{all}.1"), format!("{all}.2"), format!("{all}.3")];
    let dump = begun(&server, &["--to", &all, "--streams", "3"], &files[0], 1);
    // The second part can't get its name: as if everything had ended between two renames.
    std::fs::create_dir(&files[1]).unwrap();
    quick_again(&server);
    let output = dump.wait_with_output().unwrap();
    assert!(!output.status.success());
    assert!(Path::new(&files[0]).exists() && partial(&files[1]).exists() && partial(&files[2]).exists());
    assert_eq!(server.json(&["image", "levels", "v"]), serde_json::json!([]), "it does not count yet");
    assert!(problems(&server).contains("--resume"), "it keeps snapshots: {}", problems(&server));
    server.kill();
    server.restart();
    server.bad(11, "busy", &["image", "dump", "v", "-0", "--to", "/dev/null"]);
    std::fs::remove_dir(&files[1]).unwrap();
    // A named part that was truncated is not written to under its name.
    let whole = std::fs::read(&files[0]).unwrap();
    std::fs::File::options().write(true).open(&files[0]).unwrap().set_len(MIB).unwrap();
    let said = server.bad(27, "damaged", &["image", "dump", "v", "--resume"]);
    assert!(said.contains("all.1") && said.contains("no longer complete"), "{said}");
    std::fs::rename(&files[0], partial(&files[0])).unwrap();
    let dumped = server.json(&["image", "dump", "v", "--resume"]);
    assert!(std::fs::read(&files[0]).unwrap() == whole, "it is as it was");
    let rest: u64 = files[1..].iter().map(|file| length(Path::new(file))).sum();
    assert!(dumped["there_bytes"].as_u64().unwrap() > rest, "{dumped}");
    assert_eq!(server.json(&["image", "levels", "v"])[0]["id"], dumped["id"]);

    // All have their names, and the server was not notified.
    let last = path(dir.path(), "last");
    fill(&server, 0, BLOCKS / 2, 5);
    let dump = begun(&server, &["-1", "--to", &last], &last, 1);
    std::fs::create_dir(&last).unwrap();
    quick_again(&server);
    assert!(!dump.wait_with_output().unwrap().status.success());
    std::fs::remove_dir(&last).unwrap();
    std::fs::rename(partial(&last), &last).unwrap();
    let dumped = server.json(&["image", "dump", "v", "--resume"]);
    assert_eq!(dumped["there_bytes"], dumped["bytes"]);
    assert_eq!(server.json(&["image", "levels", "v"])[1]["id"], dumped["id"]);
    let mut restore = vec!["image", "restore", "w", &last];
    restore.extend(files.iter().map(String::as_str));
    server.good(&restore);
    assert_eq!(content(server.disk("w/db")), content(server.disk("v/db")));
}

/// The command that resumes, with these files.
fn resume<'a>(to: &[&'a str]) -> Vec<&'a str> {
    [&["image", "dump", "v", "--resume", "--to"], to].concat()
}

#[test]
fn parts_that_were_moved_changed_or_mixed_up_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = server_with_disk(dir.path());
    let all = path(dir.path(), "all");
    let files = [format!("{all}.1"), format!("{all}.2")];
    let mut dump = begun(&server, &["--to", &all, "--streams", "2"], &files[0], 4 * MIB);
    wait_until("they are not both under way", || filled(&partial(&files[1])) >= 4 * MIB);
    server.kill();
    dump.wait().unwrap();
    server.restart();
    // For example, a disk that is not mounted: no dump is begun elsewhere.
    let elsewhere = dir.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    let moved = [path(&elsewhere, "x"), path(&elsewhere, "y")];
    for (file, moved) in files.iter().zip(&moved) {
        std::fs::copy(partial(file), partial(moved)).unwrap();
        std::fs::remove_file(partial(file)).unwrap();
    }
    server.bad(10, "not-found", &["image", "dump", "v", "--resume"]);
    assert!(!partial(&files[0]).exists());
    server.bad(2, "usage", &resume(&[&moved[0]]));
    for pipe in ["-", "/dev/null"] {
        let said = server.bad(2, "usage", &resume(&[&moved[0], pipe]));
        assert!(said.contains("pipe"), "{said}");
    }
    server.bad(2, "usage", &resume(&[&moved[1], &moved[0]]));
    // Another file in its place is not changed.
    let mut kept = std::fs::read(partial(&moved[1])).unwrap();
    kept.truncate(filled(&partial(&moved[1])) as usize);
    std::fs::write(partial(&moved[1]), vec![b'x'; 9000]).unwrap();
    let said = server.bad(2, "usage", &resume(&[&moved[0], &moved[1]]));
    assert!(said.contains("part 2"), "{said}");
    assert_eq!(std::fs::read(partial(&moved[1])).unwrap(), vec![b'x'; 9000]);
    // A part of full length with damage in its middle resumes before the damage, and a shorter one
    // at its end.
    std::fs::write(partial(&moved[1]), &kept[..kept.len() - 1_500_000]).unwrap();
    let damaged = std::fs::File::options().write(true).open(partial(&moved[0])).unwrap();
    damaged.write_all_at(b"damage", 3 * MIB).unwrap();
    drop(damaged);
    let dumped = server.json(&resume(&[&moved[0], &moved[1]]));
    let there = dumped["there_bytes"].as_u64().unwrap();
    assert!(there > 2 * MIB && there < 3 * MIB + kept.len() as u64 - 1_500_000, "{dumped}");
    server.good(&["image", "verify", "--deep", &moved[0], &moved[1]]);
    server.good(&["image", "restore", "w", &moved[1], &moved[0]]);
    assert_eq!(content(server.disk("w/db")), content(server.disk("v/db")));
}

#[test]
fn full_disk_cuts_a_dump_and_with_room_it_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    let Some(small) = SmallDisk::mount(&disk, 8 << 20) else { return };
    let server = server_with_disk(dir.path());
    let file = path(&disk, "dump");
    for more in [12, 16] {
        let arguments: &[&str] = if more == 12 { &["--to", &file] } else { &["--resume"] };
        let said = server.bad(24, "no-space", &[&["image", "dump", "v"], arguments].concat());
        assert!(said.contains("is kept"), "{said}");
        assert!(filled(&partial(&file)) > 6 * MIB);
        small.grow(more << 20);
    }
    small.grow(64 << 20);
    let dumped = server.json(&["image", "dump", "v", "--resume"]);
    assert!(dumped["there_bytes"].as_u64().unwrap() > 10 * MIB, "{dumped}");
    server.good(&["image", "restore", "w", &file]);
    assert_eq!(content(server.disk("w/db")), content(server.disk("v/db")));
}

#[test]
fn dump_of_a_mirror_goes_on_until_an_update_takes_its_image_away() {
    let dir = tempfile::tempdir().unwrap();
    let source = server_with_disk(dir.path());
    let mut mirror = Running::start(dir.path(), "mirror");
    let token = source.invite();
    mirror.good(&["mirror", "create", "v", &token]);
    mirror.good(&["mirror", "pause", "v"]);
    let now = content(source.disk("v/db"));
    let (first, second) = (path(dir.path(), "first"), path(dir.path(), "second"));
    let mut dump = begun(&mirror, &["--to", &first], &first, 6 * MIB);
    mirror.kill();
    dump.wait().unwrap();
    mirror.restart();
    let dumped = mirror.json(&["image", "dump", "v", "--resume"]);
    assert!(dumped["there_bytes"].as_u64().unwrap() > 5 * MIB, "{dumped}");
    let mut dump = begun(&mirror, &["--to", &second], &second, 6 * MIB);
    mirror.kill();
    dump.wait().unwrap();
    mirror.restart();
    // Updates do not wait for it.
    mirror.good(&["mirror", "resume", "v"]);
    for salt in 7..9 {
        fill(&source, 0, 100, salt);
        mirror.good(&["mirror", "update", "v"]);
    }
    let said = mirror.bad(13, "diverged", &["image", "dump", "v", "--resume"]);
    assert!(said.contains("no longer exists"), "{said}");
    mirror.good(&["image", "dump", "v", "--anew", "--to", &second]);
    source.good(&["image", "restore", "one", &first]);
    source.good(&["image", "restore", "two", &second]);
    assert_eq!(content(source.disk("one/db")), now);
    assert_eq!(content(source.disk("two/db")), content(source.disk("v/db")));
}

#[test]
fn mirror_that_may_not_take_over_takes_nothing_from_a_dump_that_was_cut() {
    let dir = tempfile::tempdir().unwrap();
    let server = server_with_disk(dir.path());
    server.good(&["snapshot", "create", "v@monday"]);
    let mirror = Running::start(dir.path(), "mirror");
    mirror.good(&["mirror", "create", "v", &server.invite()]);
    let zero = path(dir.path(), "zero");
    interrupt(begun(&server, &["--to", &zero], &zero, 5 * MIB));
    quick_again(&server);
    let delete = ["snapshot", "delete", "v@monday", "--yes"];
    server.bad(11, "busy", &delete);
    let refused = mirror.run(&["mirror", "reverse", "v", "--yes"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("has not allowed"), "{said}");
    server.bad(11, "busy", &delete);
    server.good(&["image", "dump", "v", "--resume"]);
    server.good(&delete);
}

#[test]
fn volume_is_not_deleted_while_a_dump_of_it_runs() {
    let dir = tempfile::tempdir().unwrap();
    let server = server_with_disk(dir.path());
    let file = path(dir.path(), "dump");
    let dump = begun(&server, &["--to", &file], &file, MIB);
    for end in ["--yes", "-n"] {
        let message = server.bad(11, "busy", &["volume", "delete", "v", end]);
        assert!(message.contains("a dump of it runs"), "{message}");
    }
    quick_again(&server);
    assert!(dump.wait_with_output().unwrap().status.success());
    server.good(&["volume", "delete", "v", "--yes"]);
}
