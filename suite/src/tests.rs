use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use crate::{LIMIT, Program, Tally, Times, parse, run_all, tally};

const MESSAGES: &str = r#"
   Compiling something
{"reason":"compiler-artifact","package_id":"path+file:///a/crates/cli#cairn-cli@0.1.0","manifest_path":"/a/crates/cli/Cargo.toml","target":{"name":"mirrors"},"profile":{"test":true},"executable":"/a/target/debug/deps/mirrors-1"}
{"reason":"compiler-artifact","package_id":"path+file:///a/crates/cli#cairn-cli@0.1.0","manifest_path":"/a/crates/cli/Cargo.toml","target":{"name":"cairn"},"profile":{"test":false},"executable":"/a/target/debug/cairn"}
{"reason":"compiler-artifact","package_id":"path+file:///a/suite#0.1.0","manifest_path":"/a/suite/Cargo.toml","target":{"name":"suite"},"profile":{"test":true},"executable":null}
{"reason":"build-finished","success":true}
"#;

fn script(text: &str, name: &str) -> Program {
    let folder = std::env::temp_dir();
    let file = folder.join(format!("cairn-suite-{}-{name}", std::process::id()));
    std::fs::write(&file, format!("#!/bin/sh\n{text}\n")).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(&file, mode).unwrap();
    Program { name: name.to_owned(), executable: file, folder }
}

fn logs() -> PathBuf {
    let logs = std::env::temp_dir().join(format!("cairn-suite-{}", std::process::id()));
    std::fs::create_dir_all(&logs).unwrap();
    logs
}

#[test]
fn only_test_programs_are_taken_from_cargo() {
    let programs = parse(MESSAGES);
    assert_eq!(programs.len(), 1);
    assert_eq!(programs[0].name, "cairn-cli mirrors");
    assert_eq!(programs[0].executable, Path::new("/a/target/debug/deps/mirrors-1"));
    assert_eq!(programs[0].folder, Path::new("/a/crates/cli"));
}

#[test]
fn results_are_counted() {
    let output = "running 3 tests\ntest result: FAILED. 1 passed; 2 failed; 4 ignored; 0 measured; 0 filtered out; finished in 0.1s\n";
    assert_eq!(tally(output), Tally { passed: 1, failed: 2, ignored: 4 });
}

#[test]
fn failure_of_one_program_is_reported_and_all_others_run() {
    let fine = "echo 'test result: ok. 2 passed; 0 failed; 0 ignored'";
    let programs = vec![script(fine, "first"), script("echo told; exit 1", "second"), script(fine, "third")];
    let seen = Mutex::new(Vec::new());
    let mut times = Times::default();
    let mut done = |outcome: &crate::Outcome| seen.lock().unwrap().push(outcome.name.clone());
    let outcomes = run_all(programs, &[], 2, LIMIT, &logs(), &mut times, &mut done).unwrap();
    assert_eq!(seen.lock().unwrap().len(), 3);
    let failed: Vec<&str> =
        outcomes.iter().filter(|outcome| !outcome.passed).map(|outcome| outcome.name.as_str()).collect();
    assert_eq!(failed, ["second"]);
    assert!(outcomes.iter().any(|outcome| outcome.output.contains("told")));
}

#[test]
fn slowest_programs_start_first() {
    let mut times = Times::default();
    times.note("slow", 90);
    times.note("fast", 1);
    let named = |name: &str| Program { name: name.to_owned(), executable: "/".into(), folder: "/".into() };
    let mut programs = vec![named("slow"), named("unknown"), named("fast")];
    times.sort(&mut programs);
    assert_eq!(programs.pop().unwrap().name, "slow");
}

#[test]
fn program_that_cannot_be_started_is_an_error() {
    let missing = Program { name: "none".to_owned(), executable: "/none".into(), folder: "/".into() };
    let outcome = run_all(vec![missing], &[], 1, LIMIT, &logs(), &mut Times::default(), &mut |_| {});
    assert!(outcome.is_err());
}

#[test]
fn program_that_never_ends_is_killed_and_has_failed() {
    let programs = vec![script("echo began; exec sleep 1000", "stuck")];
    let limit = Duration::from_millis(300);
    let outcomes = run_all(programs, &[], 1, limit, &logs(), &mut Times::default(), &mut |_| {}).unwrap();
    assert!(!outcomes[0].passed);
    assert!(outcomes[0].output.contains("began"), "{}", outcomes[0].output);
    assert!(outcomes[0].output.contains("killed: it still ran"), "{}", outcomes[0].output);
}
