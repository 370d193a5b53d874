//! Commands around a snapshot whose creation panics.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;

#[test]
fn command_after_a_snapshot_runs_also_where_making_it_panics() {
    let folder = tempfile::tempdir().unwrap();
    let (path, told) = (folder.path().join("hooks.json"), folder.path().join("told"));
    let tell = |what: &str| Some(format!("echo {what} >> {}", told.display()));
    let document = HooksDocument { before: tell("quiesced"), after: tell("released"), timeout_ms: None };
    state::save(&path, &document).unwrap();
    let hooks = Hooks::open(path);
    let bug = || -> () { panic!("a bug that this test has put in") };
    let outcome = catch_unwind(AssertUnwindSafe(|| hooks.around("v", bug)));
    assert!(outcome.is_err(), "a bug is told as one");
    assert_eq!(fs::read_to_string(&told).unwrap(), "quiesced\nreleased\n", "a database would stay quiesced");
    assert!(!hooks.underway().exists(), "nothing is left to be released by the next start");
    hooks.around("v", || ()).expect("the next one is made");
}
