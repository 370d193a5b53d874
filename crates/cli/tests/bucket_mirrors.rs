//! Mirrors in buckets from the command line: their images, lag, claims, upkeep and restores, with
//! kills of the server and faults of the bucket.

mod running;

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use running::{BLOCKS, PATIENCE, Running, content, fill, path, refused, server_with_disk, wait_until};
use serde_json::Value;

const NAME: &str = "offsite:v";

/// Adds the bucket of this folder.
fn add(server: &Running, dir: &Path) {
    let store = dir.join("store");
    if !store.exists() {
        std::fs::create_dir(&store).unwrap();
    }
    let place = format!("file://{}", store.display());
    server.good(&["bucket", "add", "offsite", &place]);
}

fn server_with_bucket(dir: &Path) -> Running {
    let server = server_with_disk(dir);
    add(&server, dir);
    server
}

/// A server without volumes that has the bucket.
fn other_server(dir: &Path, name: &str) -> Running {
    let server = Running::start(dir, name);
    add(&server, dir);
    server
}

fn create(server: &Running, more: &[&str]) -> Value {
    server.json(&[&["mirror", "create", "v", "--to", "offsite:"], more].concat())
}

fn show(server: &Running) -> Value {
    server.json(&["mirror", "show", NAME])
}

fn state(server: &Running) -> String {
    show(server)["state"].as_str().unwrap().to_owned()
}

/// Objects of a kind.
fn objects(dir: &Path, kind: &str) -> Vec<PathBuf> {
    fn below(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.path() {
                folder if folder.is_dir() => below(&folder, found),
                file => found.push(file),
            }
        }
    }
    let mut found = Vec::new();
    below(&dir.join("store"), &mut found);
    found.retain(|file| file.components().any(|part| part.as_os_str() == kind));
    found.sort();
    found
}

fn own_snapshots(server: &Running) -> Vec<String> {
    let snapshots = server.json(&["snapshot", "list", "v"]);
    let names = snapshots.as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap().to_owned());
    names.filter(|name| name.contains("@mirror.bucket-")).collect()
}

fn restore(server: &Running, name: &str, more: &[&str]) -> Value {
    server.json(&[&["mirror", "restore", name, NAME], more].concat())
}

#[test]
fn mirror_makes_images_by_schedule_and_any_server_restores_each_of_them() {
    let dir = tempfile::tempdir().unwrap();
    let server = server_with_bucket(dir.path());
    let plan = server.json(&["mirror", "create", "v", "--to", "offsite:", "-n"]);
    assert!(plan["first"]["bytes"].as_u64().unwrap() >= BLOCKS * 4096, "{plan}");
    assert!(plan["month"]["dollars_monthly"].as_f64().unwrap() > 0.0, "{plan}");
    assert_eq!(server.json(&["mirror", "list"]), serde_json::json!([]), "nothing was made");

    server.good(&["snapshot", "create", "v@one"]);
    let first = content(server.disk("v/db"));
    let made = create(&server, &["--every", "1s", "--rpo", "1h", "--keep-last", "50"]);
    assert_eq!((&made["name"], &made["images"]), (&NAME.into(), &1.into()), "{made}");
    assert!(made["last"]["sent_bytes"].as_u64().unwrap() >= 20 << 20, "{made}");
    let image = made["image_number"].as_u64().unwrap().to_string();

    fill(&server, 10, 100, 7);
    wait_until("the schedule makes an image", || {
        let mirror = show(&server);
        mirror["images"].as_u64() > Some(1) && mirror["lag_ms"] == 0 && mirror["state"] == "mirrored"
    });
    let mirror = show(&server);
    assert_eq!((&mirror["check"], &mirror["over_rpo"]), (&0.into(), &false.into()), "{mirror}");
    assert!(mirror["sent_bytes"].as_u64().unwrap() < 40 << 20, "an update sends changed regions: {mirror}");
    assert_eq!(own_snapshots(&server).len(), 1, "the base of the next update");
    let listed = server.json(&["mirror", "list"]);
    assert_eq!(listed[0]["name"], NAME);
    assert!(server.good(&["mirror", "list"]).contains("offsite:v"));
    assert!(server.good(&["status"]).contains("MIRRORS IN BUCKETS"));
    assert_eq!(server.json(&["status"])["bucket_mirrors"][0]["name"], NAME);
    assert!(server.json(&["status"])["leftovers"].as_array().unwrap().is_empty());
    assert!(server.good(&["mirror", "check"]).contains("OK"));
    assert!(server.json(&["mirror", "update", NAME])["last"]["up_to_date"].as_bool().unwrap());

    // On a server that has never seen the volume.
    let newest = content(server.disk("v/db"));
    let other = other_server(dir.path(), "e");
    let images = other.json(&["mirror", "images", "offsite:"]);
    let volume = &images["volumes"][0];
    assert_eq!((&volume["volume"], volume["images"].as_array().unwrap().len() > 1), (&"v".into(), true));
    let restored = restore(&other, "back", &[]);
    assert_eq!(restored["dumped_from"], "v", "{restored}");
    assert!(content(other.disk("back/db")) == newest, "the newest image");
    restore(&other, "older", &["--at", &image]);
    assert!(content(other.disk("older/db")) == first, "the first image");
    assert!(content(other.disk("back@one/db")) == first, "a snapshot in the newest image");
    other.good(&["volume", "check", "back", "--deep"]);

    // Mirrors and dumps of one bucket do not meet.
    server.good(&["image", "dump", "-0", "v", "offsite:"]);
    server.good(&["mirror", "pause", NAME]);
    wait_until("the last update has ended", || server.run(&["mirror", "verify", NAME]).status.success());
    assert_eq!(server.json(&["mirror", "verify", NAME])["damaged_total"], 0);
}

#[test]
fn settings_pause_and_deletion() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = server_with_bucket(dir.path());
    create(&server, &["--keep-last", "1", "--limit", "200M"]);
    server.bad(21, "taken", &["mirror", "create", "v", "--to", "offsite:"]);
    server.bad(2, "usage", &["mirror", "create", "v", "--to", "offsite"]);
    let both = ["--continuous", "--every", "1h"];
    for wrong in [&["--every", "0s"][..], &["--compress", "never"], &both, &["--stall", "5s"]] {
        let output = server.run(&[&["mirror", "create", "v", "--to", "offsite:x/"], wrong].concat());
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
    }
    server.bad(10, "not-found", &["mirror", "create", "v", "--to", "nowhere:"]);
    server.bad(10, "not-found", &["mirror", "create", "none", "--to", "offsite:"]);
    server.bad(10, "not-found", &["mirror", "show", "offsite:none"]);
    server.bad(11, "busy", &["bucket", "delete", "offsite"]);
    server.bad(11, "busy", &["volume", "delete", "v", "--yes"]);
    let own = own_snapshots(&server).remove(0);
    server.bad(11, "busy", &["snapshot", "release", &own]);
    server.bad(11, "busy", &["snapshot", "delete", &own, "--yes"]);

    // A continuous one follows by itself.
    server.good(&["mirror", "create", "v", "--to", "offsite:follows/", "--continuous", "--rpo", "2s"]);
    fill(&server, 0, 1, 91);
    wait_until("the change is in the bucket", || {
        let mirror = server.json(&["mirror", "show", "offsite:follows/v"]);
        mirror["continuous"] == true && mirror["images"] == 2 && mirror["lag_ms"] == 0
    });
    server.good(&["mirror", "delete", "offsite:follows/v", "--yes"]);
    let second = server.json(&["mirror", "create", "v", "--to", "offsite:deep/er/", "--every", "1h"]);
    assert_eq!(second["name"], "offsite:deep/er/v");
    let set = server.json(&["mirror", "set", NAME, "--every", "2h", "--keep-daily", "3", "--rpo", "1d"]);
    let keep = (&set["keep"]["last"], &set["keep"]["daily"]);
    assert_eq!((keep, &set["every_ms"]), ((&1.into(), &3.into()), &7_200_000.into()), "{set}");
    server.good(&["mirror", "pause", NAME]);
    fill(&server, 0, 10, 3);
    server.bad(11, "busy", &["mirror", "update", NAME]);
    assert_eq!(state(&server), "paused");
    server.kill();
    server.restart();
    assert_eq!(state(&server), "paused", "it outlives the server");
    assert!(show(&server)["lag_ms"].as_u64().unwrap() > 0);
    server.good(&["mirror", "resume", NAME]);
    wait_until("it catches up", || show(&server)["lag_ms"] == 0);
    // A mirror does not cause updates of the other one.
    let before = show(&server)["updates"].clone();
    server.good(&["mirror", "update", "offsite:deep/er/v"]);
    assert!(server.json(&["mirror", "update", NAME])["last"]["up_to_date"].as_bool().unwrap());
    assert_eq!(show(&server)["updates"], before);

    assert!(server.good(&["mirror", "delete", NAME, "-n"]).contains("nothing was done"));
    let told = server.good(&["mirror", "delete", NAME, "--yes"]);
    assert!(told.contains("stay in the bucket") && told.contains("--take-over"), "{told}");
    assert_eq!(own_snapshots(&server).len(), 1, "that of the other mirror");
    let images = server.json(&["mirror", "images", "offsite:"]);
    assert!(!images["volumes"][0]["images"].as_array().unwrap().is_empty());
    server.bad(13, "wrong-role", &["mirror", "create", "v", "--to", "offsite:"]);
    let again = create(&server, &["--take-over"]);
    assert!(again["images"].as_u64().unwrap() > 1, "{again}");
    let purged = server.json(&["mirror", "delete", NAME, "--purge", "--yes"]);
    assert!(purged["deleted_objects"].as_u64().unwrap() > 6, "{purged}");
    let images = server.json(&["mirror", "images", "offsite:"]);
    assert!(images["volumes"][0]["images"].as_array().unwrap().is_empty(), "{images}");
    assert_eq!(create(&server, &[])["images"], 1, "anew");

    // A mirror on another server has images of its own, and takes over none by itself.
    let token = server.invite();
    let other = other_server(dir.path(), "e");
    other.good(&["mirror", "create", "v", &token]);
    other.bad(13, "wrong-role", &["mirror", "create", "v", "--to", "offsite:"]);
    other.good(&["mirror", "create", "v", "--to", "offsite:x/"]);
    assert_eq!(state(&server), "mirrored");
}

/// Starts a command, without waiting for it.
fn begin(server: &Running, arguments: &[&str]) -> Child {
    let mut command = running::cairn();
    command.args(arguments).arg("--data").arg(&server.data);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

#[test]
fn killed_update_resumes_with_whole_images_only() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = server_with_bucket(dir.path());
    create(&server, &["--limit", "2M"]);
    let first = content(server.disk("v/db"));
    fill(&server, 0, BLOCKS, 9);
    let second = content(server.disk("v/db"));
    let regions = objects(dir.path(), "region").len();
    let mut updating = begin(&server, &["mirror", "update", NAME]);
    wait_until("some regions are put", || objects(dir.path(), "region").len() > regions + 1);
    server.kill();
    let _ = updating.kill();
    updating.wait().unwrap();
    let sent = objects(dir.path(), "region").len();

    // Another server sees the image before, whole.
    let other = other_server(dir.path(), "e");
    restore(&other, "before", &[]);
    assert!(content(other.disk("before/db")) == first);

    server.restart();
    server.good(&["mirror", "set", NAME, "--limit", "off"]);
    // A write after the kill does not belong to the interrupted image.
    fill(&server, 100, 10, 21);
    let resumed = server.json(&["mirror", "update", NAME]);
    assert!(resumed["images"].as_u64() >= Some(2), "{resumed}");
    let more = objects(dir.path(), "region").len() - sent;
    assert!(more < 12, "{more} regions were put again");
    let images = server.json(&["mirror", "images", NAME])["volumes"][0]["images"].clone();
    let numbers: Vec<String> =
        images.as_array().unwrap().iter().map(|image| image["number"].to_string()).collect();
    assert_eq!(numbers.len(), 3, "the first, the interrupted one and the newest: {images}");
    let third = content(server.disk("v/db"));
    restore(&other, "interrupted", &["--at", &numbers[1]]);
    assert!(content(other.disk("interrupted/db")) == second);
    restore(&other, "newest", &[]);
    assert!(content(other.disk("newest/db")) == third);
    assert_eq!(own_snapshots(&server).len(), 1);
    assert_eq!(show(&server)["state"], "mirrored");
}

#[test]
fn fenced_server_writes_nothing_more() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = server_with_bucket(dir.path());
    create(&server, &["--every", "1s"]);
    let other = other_server(dir.path(), "e");
    other.good(&["mirror", "restore", "v", NAME]);
    let refused = other.bad(13, "wrong-role", &["mirror", "create", "v", "--to", "offsite:"]);
    assert!(refused.contains("made by v on"), "{refused}");
    server.terminate();
    let taken = other.json(&["mirror", "create", "v", "--to", "offsite:", "--take-over"]);
    assert_eq!(taken["epoch"], 2, "{taken}");
    let sent = taken["last"]["sent_bytes"].as_u64().unwrap();
    assert!(sent < 8 << 20, "it continues from the newest image: {taken}");

    // The old owner was away, and starts again.
    server.restart();
    let before = objects(dir.path(), "images");
    fill(&server, 0, 100, 4);
    wait_until("it finds out", || state(&server) == "fenced");
    let mirror = show(&server);
    assert!(mirror["reason"].as_str().unwrap().contains("has taken over"), "{mirror}");
    assert_eq!(mirror["check"], 2);
    server.kill();
    server.restart();
    assert_eq!(state(&server), "fenced", "it outlives the server");
    server.bad(13, "wrong-role", &["mirror", "update", NAME]);
    server.bad(13, "wrong-role", &["mirror", "resume", NAME]);
    assert_eq!(server.run(&["mirror", "check", NAME]).status.code(), Some(2));
    let after = objects(dir.path(), "images");
    assert_eq!(after, before, "it writes nothing");

    // An owner that runs and has nothing to bring finds out when it is asked to update.
    let third = other_server(dir.path(), "f");
    third.good(&["mirror", "restore", "v", NAME]);
    third.good(&["mirror", "create", "v", "--to", "offsite:", "--take-over"]);
    refused_as_fenced(&other.run(&["mirror", "update", NAME, "--json"]));
    third.good(&["mirror", "delete", NAME, "--yes"]);
    third.good(&["volume", "delete", "v", "--yes"]);
    other.good(&["mirror", "resume", NAME, "--take-over"]);
    assert_eq!(other.json(&["mirror", "update", NAME])["epoch"], 4);

    // An owner that runs finds out at its next commit, and its image does not count.
    let images = other.json(&["mirror", "images", NAME])["volumes"][0]["images"].as_array().unwrap().len();
    server.good(&["mirror", "resume", NAME, "--take-over"]);
    wait_until("it owns the images", || show(&server)["epoch"] == 5);
    wait_until("it goes on or stops", || !["transferring"].contains(&&*state(&server)));
    fill(&other, 0, 50, 8);
    let failed = other.run(&["mirror", "update", NAME, "--json"]);
    refused_as_fenced(&failed);
    assert_eq!(other.json(&["mirror", "show", NAME])["state"], "fenced");
    let now = other.json(&["mirror", "images", NAME])["volumes"][0].clone();
    assert!(now["owner"].as_str().unwrap().starts_with("v on"), "{now}");
    assert!(now["images"].as_array().unwrap().len() >= images, "{now}");
}

fn refused_as_fenced(output: &std::process::Output) {
    let message = refused(output, 13, "wrong-role", &["mirror", "update"]);
    assert!(message.contains("taken over"), "{message}");
}

/// Copies a folder with everything in it.
fn copy(from: &Path, to: &Path) {
    let copied = std::process::Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(copied.success());
}

#[test]
fn bucket_that_went_back_is_reported_and_continued_on_request() {
    let dir = tempfile::tempdir().unwrap();
    let server = server_with_bucket(dir.path());
    create(&server, &[]);
    copy(&dir.path().join("store"), &dir.path().join("old"));
    fill(&server, 0, 10, 5);
    server.good(&["mirror", "update", NAME]);
    // The store returns to an older state, as a restored backup of it does.
    let mut server = server;
    server.terminate();
    std::fs::rename(dir.path().join("store"), dir.path().join("newer")).unwrap();
    copy(&dir.path().join("old"), &dir.path().join("store"));
    server.restart();
    fill(&server, 0, 10, 6);
    let output = server.run(&["mirror", "update", NAME, "--json"]);
    refused(&output, 13, "contradicted", &["mirror", "update"]);
    let mirror = show(&server);
    assert_eq!((&mirror["state"], &mirror["check"]), (&"replayed".into(), &2.into()), "{mirror}");
    assert!(mirror["remedy"].as_str().unwrap().contains("--accept-older"), "{mirror}");
    server.bad(13, "contradicted", &["mirror", "resume", NAME]);
    server.good(&["mirror", "resume", NAME, "--accept-older"]);
    assert_eq!(server.json(&["mirror", "update", NAME])["state"], "mirrored");
    let now = content(server.disk("v/db"));
    let other = other_server(dir.path(), "e");
    restore(&other, "back", &[]);
    assert!(content(other.disk("back/db")) == now);
}

#[test]
fn damaged_and_missing_regions_are_named_never_restored_and_put_again() {
    let dir = tempfile::tempdir().unwrap();
    let server = server_with_bucket(dir.path());
    create(&server, &[]);
    let good = server.json(&["mirror", "verify", NAME]);
    assert_eq!((&good["damaged_total"], &good["contradictions"]), (&0.into(), &0.into()), "{good}");
    assert!(good["compared_bytes"].as_u64().unwrap() >= BLOCKS * 4096, "{good}");

    let regions = objects(dir.path(), "region");
    let longest = |number: usize| {
        let mut all = regions.clone();
        all.sort_by_key(|file| std::cmp::Reverse(std::fs::metadata(file).unwrap().len()));
        all[number].clone()
    };
    let (damaged, missing) = (longest(0), longest(1));
    let mut bytes = std::fs::read(&damaged).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::remove_file(&damaged).unwrap();
    std::fs::write(&damaged, bytes).unwrap();
    std::fs::remove_file(&missing).unwrap();
    let output = server.run(&["mirror", "verify", NAME]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(27), "{text}");
    let folder = |file: &Path| file.parent().unwrap().file_name().unwrap().to_str().unwrap().to_owned();
    for file in [&damaged, &missing] {
        assert!(text.contains(&format!("region/{}", folder(file))), "{} is named: {text}", file.display());
    }
    let other = other_server(dir.path(), "e");
    let error = other.bad(27, "damaged", &["mirror", "restore", "back", NAME]);
    assert!(error.contains("region/"), "{error}");

    assert_eq!(show(&server)["repairs"], 2);
    let repaired = server.json(&["mirror", "update", NAME]);
    assert_eq!(repaired["repairs"], 0, "{repaired}");
    assert_eq!(server.json(&["mirror", "verify", NAME])["damaged_total"], 0);
    let now = content(server.disk("v/db"));
    let resumed = other.run(&["mirror", "restore", "back", "--resume", "--json"]);
    assert!(!resumed.status.success(), "the image is the damaged one");
    other.good(&["mirror", "restore", "back", NAME, "--anew"]);
    assert!(content(other.disk("back/db")) == now);
}

#[test]
fn mirror_catches_up_by_itself_when_its_bucket_was_away() {
    let dir = tempfile::tempdir().unwrap();
    let server = server_with_bucket(dir.path());
    create(&server, &["--every", "1s", "--rpo", "100ms"]);
    wait_until("it is up to date", || show(&server)["lag_ms"] == 0);
    let (store, away) = (dir.path().join("store"), dir.path().join("away"));
    std::fs::rename(&store, &away).unwrap();
    fill(&server, 0, 20, 5);
    wait_until("it reports the bucket", || state(&server) == "failing");
    wait_until("its lag grows", || show(&server)["over_rpo"] == true);
    let mirror = show(&server);
    assert_eq!(mirror["check"], 2, "{mirror}");
    assert!(mirror["remedy"].as_str().unwrap().contains("retried by itself"), "{mirror}");
    let problems = server.json(&["status"])["problems"].clone();
    assert!(problems.to_string().contains(NAME), "{problems}");
    std::fs::rename(&away, &store).unwrap();
    wait_until("it catches up", || show(&server)["lag_ms"] == 0 && state(&server) == "mirrored");
    let now = content(server.disk("v/db"));
    let other = other_server(dir.path(), "e");
    restore(&other, "back", &[]);
    assert!(content(other.disk("back/db")) == now);
}

#[test]
fn restore_resumes_after_a_kill_of_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let server = server_with_bucket(dir.path());
    create(&server, &[]);
    let now = content(server.disk("v/db"));
    let mut other = other_server(dir.path(), "e");
    // A region in the middle is away: the restore ends there, and what it wrote stays.
    let regions = objects(dir.path(), "region");
    let last = regions.last().unwrap().clone();
    let aside = dir.path().join("aside");
    std::fs::rename(&last, &aside).unwrap();
    let file = path(dir.path(), "disk");
    let failed = other.run(&["mirror", "restore", "back", NAME, "--json"]);
    assert_eq!(failed.status.code(), Some(27), "{}", String::from_utf8_lossy(&failed.stdout));
    other.kill();
    std::fs::rename(&aside, &last).unwrap();
    other.restart();
    let unfinished = other.run(&["mirror", "restore", "back", "--resume", "--json"]);
    let text = String::from_utf8_lossy(&unfinished.stdout).into_owned();
    if unfinished.status.success() {
        assert!(content(other.disk("back/db")) == now, "{text}");
    } else {
        // It failed before its first mark.
        other.good(&["mirror", "restore", "back", NAME, "--anew"]);
        assert!(content(other.disk("back/db")) == now);
    }
    other.bad(10, "not-found", &["mirror", "restore", "back2", "--resume"]);
    other.bad(21, "taken", &["mirror", "restore", "back", NAME]);
    other.bad(10, "not-found", &["mirror", "restore", "x", "offsite:none"]);
    other.bad(10, "not-found", &["mirror", "restore", "x", NAME, "--at", "999999"]);
    let device = ["mirror", "restore", "on-a-file", NAME, "--device", &file, "--size", "300M"];
    std::fs::File::create(&file).unwrap().set_len(400 << 20).unwrap();
    other.good(&device);
    assert!(content(other.disk("on-a-file/db")) == now);
    assert!(PATIENCE > Duration::ZERO);
}

#[test]
fn images_of_a_mirror_stay_by_rules_of_its_own_server_whatever_the_source_does() {
    let dir = tempfile::tempdir().unwrap();
    let source = server_with_disk(dir.path());
    source.good(&["snapshot", "create", "v@monday"]);
    let monday = content(source.disk("v/db"));
    let mut mirror = other_server(dir.path(), "e");
    mirror.good(&["mirror", "create", "v", &source.invite()]);
    let made = create(&mirror, &["--keep-last", "50"]);
    let first = made["image_number"].as_u64().unwrap().to_string();
    assert_eq!((&made["state"], &made["images"]), (&"mirrored".into(), &1.into()), "{made}");

    // The source deletes and renames snapshots, overwrites, and goes back; updates continue.
    fill(&source, 0, 300, 5);
    source.good(&["snapshot", "create", "v@tuesday"]);
    source.good(&["snapshot", "delete", "v@monday", "--yes"]);
    mirror.good(&["mirror", "update", "v"]);
    let second = mirror.json(&["mirror", "update", NAME])["image_number"].as_u64().unwrap().to_string();
    let tuesday = content(source.disk("v/db"));
    source.good(&["snapshot", "rename", "v@tuesday", "monday"]);
    fill(&source, 500, 300, 6);
    source.good(&["snapshot", "rollback", "v@monday", "--yes"]);
    fill(&source, 900, 50, 7);
    mirror.good(&["mirror", "update", "v"]);
    let shown = mirror.json(&["mirror", "update", NAME]);
    assert_eq!(shown["images"], 3, "{shown}");
    assert!(shown["last"]["regions"].as_u64() < Some(7), "only changed regions: {shown}");
    assert!(mirror.json(&["mirror", "update", NAME])["last"]["up_to_date"].as_bool().unwrap());
    assert!(own_snapshots(&mirror).is_empty(), "it makes no snapshots of its own");
    mirror.bad(11, "busy", &["mirror", "delete", "v", "--yes"]);
    assert_eq!(mirror.json(&["mirror", "verify", NAME])["damaged_total"], 0);

    for (name, image, expected) in [("one", &first, &monday), ("two", &second, &tuesday)] {
        restore(&mirror, name, &["--at", image]);
        assert!(&content(mirror.disk(&format!("{name}/db"))) == expected, "{name}");
        mirror.good(&["volume", "check", name, "--deep"]);
    }
    assert!(content(mirror.disk("one@monday/db")) == monday, "with the snapshots of that time");

    // It continues with the writes of the mirror after a failover, also over a restart.
    mirror.kill();
    mirror.restart();
    mirror.good(&["mirror", "failover", "v", "--yes"]);
    fill(&mirror, 10, 20, 8);
    let shown = mirror.json(&["mirror", "update", NAME]);
    assert_eq!(shown["images"], 4, "{shown}");
    assert!(shown["last"]["regions"].as_u64() < Some(7), "{shown}");
    restore(&mirror, "three", &[]);
    assert!(content(mirror.disk("three/db")) == content(mirror.disk("v/db")));
    // And with those of the other side, once it follows again.
    mirror.good(&["mirror", "resync", "v", "--discard-divergent", "--yes"]);
    mirror.good(&["mirror", "update", NAME]);
    restore(&mirror, "four", &[]);
    assert!(content(mirror.disk("four/db")) == content(source.disk("v/db")));
    mirror.good(&["volume", "check", "four", "--deep"]);
}
