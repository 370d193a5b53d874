//! Data directories restored from a backup, which lack all later changes, or in which a volume is
//! missing.

mod running;

use std::path::Path;
use std::process::Command;

use running::vol0::{content, status, write};
use running::{Running, wait_until};

/// Copies the content of a data directory.
fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(copied.success());
}

/// A source restored from a backup, whose mirror has three more images.
fn set_back(dir: &Path) -> (Running, Running) {
    let mut source = Running::start(dir, "source");
    source.stay();
    source.good(&["volume", "create", "vol0", "--size", "64M"]);
    source.good(&["lun", "create", "vol0/db", "--size", "4M"]);
    write(&source, 0, 1, 256 << 10);
    source.good(&["snapshot", "create", "vol0@monday"]);
    let destination = Running::start(dir, "destination");
    let token = source.invite();
    destination.good(&["mirror", "create", "vol0", &token]);
    source.terminate();
    let backup = dir.join("backup");
    copy(&source.data, &backup);
    source.restart();
    for byte in 2..5 {
        write(&source, u64::from(byte) << 18, byte, 64 << 10);
        destination.good(&["mirror", "update", "vol0"]);
    }
    source.good(&["snapshot", "create", "vol0@tuesday"]);
    destination.good(&["mirror", "update", "vol0"]);
    source.kill();
    std::fs::remove_dir_all(&source.data).unwrap();
    std::fs::rename(&backup, &source.data).unwrap();
    source.restart();
    assert_eq!(content(&source)[3 << 18], 0, "the backup is older");
    (source, destination)
}

#[test]
fn mirror_of_a_source_from_a_backup_keeps_what_it_alone_has_and_its_owner_says_which_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let (source, destination) = set_back(dir.path());
    let newest = content(&destination);
    // The source serves its clients, and mirrors connect on schedule.
    write(&source, 2 << 20, 9, 32 << 10);
    for _ in 0..3 {
        let message = destination.bad(13, "diverged", &["mirror", "update", "vol0"]);
        assert!(message.contains("restore from an older copy"), "{message}");
        assert_eq!(content(&destination), newest, "the newest that there is stays");
    }
    assert_eq!(status(&destination)["state"], "diverged");
    let lost = destination.json(&["mirror", "resync", "vol0", "-n"]);
    assert_eq!(
        (&lost["diverged"], &lost["snapshots"]),
        (&true.into(), &serde_json::json!(["tuesday"])),
        "{lost}"
    );
    let message = destination.bad(13, "diverged", &["mirror", "resync", "vol0"]);
    assert!(message.contains("bytes that were written to `vol0`"), "{message}");
    assert_eq!(content(&destination), newest);

    // The backup continues: data that only the mirror has is kept in a file.
    let spill = dir.path().join("lost.cairn");
    let spill = spill.to_str().unwrap();
    destination.good(&["mirror", "resync", "vol0", "--spill", spill]);
    assert_eq!(content(&destination), content(&source));
    assert_eq!(status(&destination)["state"], "mirrored");
    let names = source.good(&["snapshot", "list", "vol0"]);
    let base = names.split_whitespace().find(|word| word.contains("@split-") || word.contains("@monday"));
    let dump = dir.path().join("base.cairn");
    source.good(&["image", "dump", base.unwrap(), "--to", dump.to_str().unwrap()]);
    source.good(&["image", "verify", dump.to_str().unwrap(), spill, "--deep"]);
    // The decision was about that image, and about no later one.
    write(&source, 0, 7, 4096);
    destination.good(&["mirror", "update", "vol0"]);
    assert_eq!(content(&destination), content(&source));
    destination.good(&["volume", "check", "vol0", "--deep"]);
}

#[test]
fn mirror_of_a_source_from_a_backup_takes_over_and_the_backup_follows_it() {
    let dir = tempfile::tempdir().unwrap();
    let (source, destination) = set_back(dir.path());
    let newest = content(&destination);
    destination.bad(13, "diverged", &["mirror", "update", "vol0"]);
    destination.good(&["mirror", "failover", "vol0", "--yes"]);
    assert_eq!(content(&destination), newest);
    wait_until("the source hears of it", || {
        source.json(&["status"])["problems"].to_string().contains("was failed over to")
    });
    source.good(&["mirror", "resync", "vol0", "--discard-divergent", "--yes"]);
    assert_eq!(content(&source), newest);
    destination.good(&["mirror", "allow-reverse", "vol0"]);
    source.good(&["mirror", "failback", "vol0"]);
    // A repeated command does not advise a failover of the other side.
    let message = source.bad(13, "wrong-role", &["mirror", "failback", "vol0"]);
    assert!(message.contains("nothing is to be done"), "{message}");
    write(&source, 0, 7, 4096);
    destination.good(&["mirror", "update", "vol0"]);
    assert_eq!(content(&destination), content(&source));
}

/// The notification is not in the backup, and only the mirror has it.
#[test]
fn source_from_a_backup_of_before_a_failover_hears_of_it_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut source = Running::start(dir.path(), "source");
    source.stay();
    source.good(&["volume", "create", "vol0", "--size", "64M"]);
    source.good(&["lun", "create", "vol0/db", "--size", "4M"]);
    write(&source, 0, 1, 256 << 10);
    let destination = Running::start(dir.path(), "destination");
    let token = source.invite();
    destination.good(&["mirror", "create", "vol0", &token]);
    source.terminate();
    let backup = dir.path().join("backup");
    copy(&source.data, &backup);
    source.restart();
    destination.good(&["mirror", "failover", "vol0", "--yes"]);
    let hears =
        |source: &Running| source.json(&["status"])["problems"].to_string().contains("was failed over to");
    wait_until("the source hears of it", || hears(&source));
    wait_until("the mirror knows that", || status(&destination)["reason"].to_string().contains("side knows"));
    source.terminate();
    std::fs::remove_dir_all(&source.data).unwrap();
    std::fs::rename(&backup, &source.data).unwrap();
    source.restart();
    write(&source, 1 << 20, 9, 32 << 10);
    assert!(!hears(&source));
    wait_until("the backup hears of it", || hears(&source));
    // So does one that has lost the records of its mirrors.
    source.terminate();
    std::fs::remove_file(source.data.join("followers.json")).unwrap();
    source.restart();
    wait_until("it learns that again", || hears(&source));
    source.good(&["mirror", "resync", "vol0", "--discard-divergent", "--yes"]);
    assert_eq!(content(&source), content(&destination));
}

/// A check of all mirrors reports one whose volume did not open, and not only the healthy ones.
#[test]
fn mirror_whose_volume_is_not_open_is_critical_and_not_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let source = Running::start(dir.path(), "source");
    let mut destination = Running::start(dir.path(), "destination");
    for name in ["vol0", "vol1"] {
        source.good(&["volume", "create", name, "--size", "64M"]);
        let token = source.invite();
        destination.good(&["mirror", "create", name, &token]);
    }
    destination.good(&["mirror", "check"]);
    let image = destination.data.join("volumes/vol0/volume.img");
    let aside = dir.path().join("aside");
    destination.terminate();
    std::fs::rename(&image, &aside).unwrap();
    destination.restart();
    for asked in [&["mirror", "check"][..], &["mirror", "check", "vol0"]] {
        let told = destination.run(asked);
        let line = String::from_utf8_lossy(&told.stdout).into_owned();
        assert_eq!(told.status.code(), Some(2), "{line}");
        assert!(line.starts_with("CRITICAL") && line.contains("vol0") && line.contains("not open"), "{line}");
    }
    let shown = status(&destination);
    assert_eq!((&shown["state"], &shown["check"]), (&"unknown".into(), &2.into()), "{shown}");
    assert!(shown["direction"].as_str().unwrap().contains("vol0 (here, destination)"), "{shown}");
    std::fs::rename(&aside, &image).unwrap();
    wait_until("the volume is opened", || destination.run(&["mirror", "check"]).status.success());
}

/// A source that gave its role to its mirror, and whose server `put_back` restores to its earlier
/// state.
fn taken_over(dir: &Path) -> (Running, Running, impl FnOnce(&mut Running) + use<>) {
    let mut source = Running::start(dir, "source");
    source.stay();
    source.good(&["volume", "create", "vol0", "--size", "64M"]);
    source.good(&["lun", "create", "vol0/db", "--size", "4M"]);
    write(&source, 0, 1, 64 << 10);
    let mut destination = Running::start(dir, "destination");
    destination.stay();
    let token = source.invite();
    destination.good(&["mirror", "create", "vol0", &token]);
    destination.terminate();
    let backup = dir.join("backup");
    copy(&destination.data, &backup);
    destination.restart();
    write(&source, 1 << 20, 2, 64 << 10);
    source.good(&["mirror", "allow-reverse", "vol0"]);
    destination.good(&["mirror", "reverse", "vol0", "--yes"]);
    let put_back = move |server: &mut Running| {
        server.kill();
        std::fs::remove_dir_all(&server.data).unwrap();
        std::fs::rename(&backup, &server.data).unwrap();
        server.restart();
    };
    (source, destination, put_back)
}

#[test]
fn two_sides_that_follow_each_other_say_so_and_the_remedy_ends_it() {
    let dir = tempfile::tempdir().unwrap();
    let (source, mut destination, put_back) = taken_over(dir.path());
    write(&destination, 2 << 20, 3, 64 << 10);
    source.good(&["mirror", "update", "vol0"]);
    assert_eq!(status(&source)["state"], "mirrored");
    let newest = content(&source);
    put_back(&mut destination);
    wait_until("it is told", || status(&source)["state"] == "diverged");
    let shown = status(&source);
    assert!(shown["reason"].as_str().unwrap().contains("neither takes writes"), "{shown}");
    assert!(shown["remedy"].as_str().unwrap().contains("`cairn mirror failover vol0`"), "{shown}");
    source.good(&["mirror", "failover", "vol0", "--yes"]);
    destination.good(&["mirror", "update", "vol0", "--compare"]);
    assert_eq!(content(&destination), newest);
    assert_eq!(status(&source)["state"], "source");
}

#[test]
fn side_that_gave_its_role_away_is_told_how_to_follow_one_that_went_its_own_way() {
    let dir = tempfile::tempdir().unwrap();
    let (source, mut destination, put_back) = taken_over(dir.path());
    put_back(&mut destination);
    destination.good(&["mirror", "failover", "vol0", "--yes"]);
    write(&destination, 2 << 20, 3, 64 << 10);
    source.bad(13, "diverged", &["mirror", "update", "vol0"]);
    wait_until("it asks whether the other side takes writes", || status(&source)["state"] == "diverged");
    let shown = status(&source);
    let remedy = shown["remedy"].as_str().unwrap();
    assert_eq!(shown["state"], "diverged", "{shown}");
    assert!(remedy.contains("`cairn mirror resync vol0 -n` here") && !remedy.contains("reverse"), "{remedy}");
    assert_eq!(source.json(&["mirror", "resync", "vol0", "-n"])["diverged"], true);
    let spill = dir.path().join("lost.cairn");
    let resync = ["mirror", "resync", "vol0", "--spill", spill.to_str().unwrap()];
    // Nothing is held for it any more.
    let refused = source.run(&resync);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("`cairn mirror resync vol0 --compare ...`"), "{said}");
    source.good(&[&resync[..], &["--compare"]].concat());
    assert_eq!(content(&source), content(&destination));
}
