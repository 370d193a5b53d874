//! Every fuzz target for a moment, each in a process of its own: earlier crashes stay fixed, and
//! new ones are noticed.

use std::path::Path;
use std::process::{Command, Output};

use cairn_fuzz::{CANARY, short};

/// Runs the program in `folder`, where it leaves the input that it failed on.
fn run(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_cairn-fuzz")).args(arguments).current_dir(folder).output().unwrap()
}

#[test]
fn every_decoder_takes_changed_bytes_without_a_panic() {
    let folder = tempfile::tempdir().unwrap();
    for target in short::names().into_iter().filter(|name| *name != CANARY) {
        let output = run(folder.path(), &["run", target]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "run it with `cargo run -p cairn-fuzz -- run {target}`:\n{said}");
    }
}

#[test]
fn canary_dies_so_a_crash_of_any_target_is_seen() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("word"), b"cairn?!").unwrap();
    let output = run(folder.path(), &["replay", CANARY, "word"]);
    assert!(!output.status.success(), "the canary lives");
    assert!(String::from_utf8_lossy(&output.stderr).contains("the canary is dead"));
}

#[test]
fn crash_in_a_run_ends_it_and_keeps_its_input() {
    let folder = tempfile::tempdir().unwrap();
    // One in this many changes of the seed `cairn?` is the word.
    let output = run(folder.path(), &["run", CANARY, "5000000"]);
    assert_eq!(output.status.code(), Some(101), "{}", String::from_utf8_lossy(&output.stderr));
    let kept: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(kept.len(), 1);
    assert!(std::fs::read(&kept[0]).unwrap().starts_with(b"cairn?!"));
}

#[test]
fn targets_are_programs_of_libfuzzer_too() {
    let manifest = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml")).unwrap();
    let programs = manifest.lines().skip_while(|line| *line != "[[bin]]");
    let programs: Vec<&str> =
        programs.filter_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"')).collect();
    assert_eq!(programs, short::names());
}
