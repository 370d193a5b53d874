use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use crate::{Built, LIMIT, Program, Queue, Tally, Times, parse, run_all, run_beside, tally};

const MESSAGES: &str = r#"
   Compiling something
{"reason":"compiler-artifact","package_id":"path+file:///a/crates/cli#cairn-cli@0.1.0","manifest_path":"/a/crates/cli/Cargo.toml","target":{"name":"mirrors","kind":["test"]},"profile":{"test":true},"executable":"/a/target/debug/deps/mirrors-1"}
{"reason":"compiler-artifact","package_id":"path+file:///a/crates/cli#cairn-cli@0.1.0","manifest_path":"/a/crates/cli/Cargo.toml","target":{"name":"cairn","kind":["bin"]},"profile":{"test":false},"executable":"/a/target/debug/cairn"}
{"reason":"compiler-artifact","package_id":"path+file:///a/suite#0.1.0","manifest_path":"/a/suite/Cargo.toml","target":{"name":"suite","kind":["lib"]},"profile":{"test":true},"executable":null}
{"reason":"compiler-artifact","package_id":"path+file:///a/crates/base#cairn-base@0.1.0","manifest_path":"/a/crates/base/Cargo.toml","target":{"name":"cairn_base","kind":["lib"]},"profile":{"test":true},"executable":"/a/target/debug/deps/cairn_base-1"}
{"reason":"build-finished","success":true}
"#;

fn script(text: &str, name: &str) -> Program {
    let folder = std::env::temp_dir();
    let file = folder.join(format!("cairn-suite-{}-{name}", std::process::id()));
    std::fs::write(&file, format!("#!/bin/sh\n{text}\n")).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(&file, mode).unwrap();
    Program { name: name.to_owned(), executable: file, folder, runs_cairn: false }
}

fn logs() -> PathBuf {
    let logs = std::env::temp_dir().join(format!("cairn-suite-{}", std::process::id()));
    std::fs::create_dir_all(&logs).unwrap();
    logs
}

#[test]
fn only_test_programs_are_taken_from_cargo() {
    let built: Vec<Built> = MESSAGES.lines().filter_map(parse).collect();
    let [Built::Test(mirrors), Built::Cairn, Built::Test(base)] = &built[..] else { panic!("{built:?}") };
    assert!(mirrors.runs_cairn && !base.runs_cairn);
    assert_eq!(mirrors.name, "cairn-cli mirrors");
    assert_eq!(mirrors.executable, Path::new("/a/target/debug/deps/mirrors-1"));
    assert_eq!(mirrors.folder, Path::new("/a/crates/cli"));
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
    let done = |outcome: &crate::Outcome| seen.lock().unwrap().push(outcome.name.clone());
    let queue = Queue::of(programs, Times::default());
    let outcomes = run_all(&queue, &[], 2, LIMIT, &logs(), &done).unwrap();
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
    let named = |name: &str| Program {
        name: name.to_owned(),
        executable: "/".into(),
        folder: "/".into(),
        runs_cairn: false,
    };
    let queue = Queue::of(vec![named("fast"), named("slow"), named("unknown")], times);
    let order: Vec<String> = std::iter::from_fn(|| queue.next()).map(|program| program.name).collect();
    assert_eq!(order, ["slow", "unknown", "fast"]);
}

#[test]
fn jobs_wait_for_programs_until_the_queue_is_closed() {
    let queue = Queue::open(Times::default());
    let outcomes = thread::scope(|scope| {
        let jobs = scope.spawn(|| run_all(&queue, &[], 2, LIMIT, &logs(), &|_| {}).unwrap());
        queue.add(script("true", "early"));
        queue.add(script("true", "late"));
        queue.close();
        jobs.join().unwrap()
    });
    assert_eq!(outcomes.len(), 2);
}

#[test]
fn commands_beside_the_tests_all_run_and_fail_by_their_status() {
    let commands = [("bad".to_owned(), "echo why; false".to_owned()), ("good".to_owned(), "true".to_owned())];
    let outcomes = run_beside(&commands, LIMIT, &logs(), &|_| {}).unwrap();
    assert_eq!(outcomes.iter().map(|outcome| outcome.passed).collect::<Vec<_>>(), [false, true]);
    assert!(outcomes[0].output.contains("why"));
}

#[test]
fn program_that_cannot_be_started_is_an_error() {
    let missing = Program {
        name: "none".to_owned(),
        executable: "/none".into(),
        folder: "/".into(),
        runs_cairn: false,
    };
    let queue = Queue::of(vec![missing], Times::default());
    let outcome = run_all(&queue, &[], 1, LIMIT, &logs(), &|_| {});
    assert!(outcome.is_err());
}

#[test]
fn program_that_never_ends_is_killed_and_has_failed() {
    let programs = vec![script("echo began; exec sleep 1000", "stuck")];
    let limit = Duration::from_millis(300);
    let queue = Queue::of(programs, Times::default());
    let outcomes = run_all(&queue, &[], 1, limit, &logs(), &|_| {}).unwrap();
    assert!(!outcomes[0].passed);
    assert!(outcomes[0].output.contains("began"), "{}", outcomes[0].output);
    assert!(outcomes[0].output.contains("killed: it still ran"), "{}", outcomes[0].output);
}
