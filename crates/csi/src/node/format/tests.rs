//! Tests of new file systems, on files in place of disks, with the real `mkfs`.

use std::io::Write;
use std::process::Command;

use super::*;

const MIB: u64 = 1 << 20;

fn disk(bytes: u64) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().expect("a file");
    file.as_file().set_len(bytes).expect("its length");
    file
}

fn has_program(name: &str) -> bool {
    let there = ["/usr/sbin", "/sbin", "/usr/bin"].iter().any(|folder| Path::new(folder).join(name).exists());
    if !there {
        assert!(std::env::var_os("CI").is_none(), "{name} is missing");
        eprintln!("skipped: {name} is missing");
    }
    there
}

fn check(device: &Path) {
    let done = Command::new("/usr/sbin/e2fsck").args(["-fn"]).arg(device).output().expect("it runs");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
}

#[test]
fn content_of_a_disk_is_recognized() {
    let blank = disk(8 * MIB);
    assert_eq!(content(blank.path()).expect("it reads"), Content::Blank);
    for (offset, bytes, expected) in [
        (0, &b"XFSB"[..], Content::Has(FileSystem::Xfs)),
        (1080, &[0x53, 0xef][..], Content::Has(FileSystem::Ext4)),
        (0, &MARK[..], Content::Unfinished),
        (510, &[0x55, 0xaa][..], Content::Other),
        (8 * MIB - 1, &[1][..], Content::Other),
    ] {
        let file = disk(8 * MIB);
        file.as_file().write_all_at(bytes, offset).expect("it writes");
        assert_eq!(content(file.path()).expect("it reads"), expected);
    }
    let mut short = tempfile::NamedTempFile::new().expect("a file");
    short.write_all(b"abc").expect("it writes");
    assert_eq!(content(short.path()).expect("it reads"), Content::Other);
}

#[test]
fn format_that_is_cut_off_at_any_step_is_completed_by_the_next() {
    if !has_program("mkfs.ext4") || !has_program("e2fsck") {
        return;
    }
    let programs = Programs::default();
    let state = tempfile::tempdir().expect("a folder");
    let image = disk(32 * MIB);
    programs.run("mkfs.ext4", &["-q", "-F", &image.path().display().to_string()]).expect("it formats");
    let mut cuts = 0;
    loop {
        let target = disk(32 * MIB);
        let open = || OpenOptions::new().read(true).write(true).open(target.path()).expect("it opens");
        let mut copy =
            Copy { image: File::open(image.path()).expect("it opens"), disk: open(), left: Some(cuts) };
        let done = copy.run();
        let found = content(target.path()).expect("it reads");
        if done.is_ok() {
            assert_eq!(found, Content::Has(FileSystem::Ext4));
            check(target.path());
            break;
        }
        let expected: &[Content] = match cuts {
            0 => &[Content::Blank],
            _ => &[Content::Unfinished, Content::Has(FileSystem::Ext4)],
        };
        assert!(expected.contains(&found), "after {cuts} steps: {found:?}");
        if found == Content::Has(FileSystem::Ext4) {
            check(target.path());
        } else {
            make(&programs, state.path(), target.path(), FileSystem::Ext4, false).expect("it completes");
            check(target.path());
        }
        cuts += 1;
    }
    assert!(cuts > 5, "{cuts} steps");
}

#[test]
fn both_file_systems_are_made() {
    if !has_program("mkfs.ext4") || !has_program("mkfs.xfs") {
        return;
    }
    let state = tempfile::tempdir().expect("a folder");
    for (file_system, bytes) in [(FileSystem::Ext4, 32 * MIB), (FileSystem::Xfs, 320 * MIB)] {
        let target = disk(bytes);
        make(&Programs::default(), state.path(), target.path(), file_system, true).expect("it formats");
        assert_eq!(content(target.path()).expect("it reads"), Content::Has(file_system));
        let is_shorter = || super::is_shorter(target.path(), file_system).expect("it reads");
        assert!(!is_shorter());
        target.as_file().set_len(bytes + 16 * MIB).expect("its length");
        assert!(is_shorter());
    }
    let left = std::fs::read_dir(state.path()).expect("it lists").count();
    assert_eq!(left, 0, "no image is left");
}

#[test]
fn disk_that_is_too_small_is_not_touched() {
    if !has_program("mkfs.xfs") {
        return;
    }
    let state = tempfile::tempdir().expect("a folder");
    let target = disk(MIB);
    let error = make(&Programs::default(), state.path(), target.path(), FileSystem::Xfs, true);
    assert!(error.is_err());
    assert_eq!(content(target.path()).expect("it reads"), Content::Blank);
}
