//! The conformance suite of libiscsi (`iscsi-test-cu`), each suite in a process of its own.
mod harness;

use std::collections::BTreeMap;
use std::process::Command;

use harness::TestServer;

/// Skipped tests, with the reason, and the other suite in which a test passes: see the file's own
/// head.
const EXPECTED: &str = include_str!("../../../../conformance/libiscsi.txt");

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Passed,
    Skipped,
    Failed,
}

/// The tests of the tool, as `SUITE.TEST`.
fn tests() -> Vec<String> {
    let output = Command::new("iscsi-test-cu").arg("--list").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let named = text.lines().filter_map(|line| line.trim().strip_prefix("ALL."));
    named.filter(|name| name.contains('.')).map(str::to_owned).collect()
}

/// Runs one suite on a unit; returns the outcome of each test, and the tool's output.
fn run(suite: &str, urls: &[String]) -> (BTreeMap<String, Verdict>, String) {
    let output = Command::new("timeout")
        .args(["60", "iscsi-test-cu", "--dataloss", "--allow-sanitize", "--verbose"])
        .arg(format!("--test=ALL.{suite}"))
        .args(urls)
        .output()
        .unwrap();
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let mut verdicts = BTreeMap::new();
    let mut current: Option<(String, bool)> = None;
    for line in text.lines() {
        if let Some((_, rest)) = line.split_once("Test: ") {
            let name = rest.split(" ...").next().unwrap_or(rest).trim().to_owned();
            current = Some((format!("{suite}.{name}"), false));
        }
        let Some((name, skipped)) = &mut current else { continue };
        *skipped |= line.contains("[SKIPPED]");
        if line.ends_with("...passed") || line.starts_with("passed") {
            let verdict = if *skipped { Verdict::Skipped } else { Verdict::Passed };
            verdicts.insert(name.clone(), verdict);
        } else if line.ends_with("...FAILED") || line.starts_with("FAILED") {
            verdicts.insert(name.clone(), Verdict::Failed);
        }
    }
    (verdicts, text)
}

#[test]
fn suite_of_libiscsi_passes_on_every_kind_of_unit() {
    if !foreign("iscsi-test-cu") {
        return;
    }
    let server = TestServer::plain();
    let tests = tests();
    let mut suites: Vec<&str> = tests.iter().filter_map(|test| test.split('.').next()).collect();
    suites.dedup();
    let mut best: BTreeMap<String, Verdict> = BTreeMap::new();
    let mut report = String::new();
    for suite in &suites {
        let kinds: &[&str] = match *suite {
            "PreventAllow" | "NoMedia" | "StartStopUnit" => &["v.removable"],
            "ReadOnly" => &["v.readonly"],
            // Where a physical block has several logical ones, the tool asks for one block and
            // expects the answer to begin at another.
            "GetLBAStatus" => &["v.large"],
            _ => &["v.plain"],
        };
        for kind in kinds {
            let mut urls = vec![server.url(kind)];
            if *suite == "MultipathIO" {
                urls.push(server.url(kind));
            }
            let (verdicts, text) = run(suite, &urls);
            if verdicts.values().any(|verdict| *verdict == Verdict::Failed) || verdicts.is_empty() {
                report += &format!("---- {suite} on {kind}\n{text}\n");
            }
            best.extend(verdicts);
        }
    }
    let of = |wanted: Verdict| {
        best.iter().filter(move |(_, verdict)| **verdict == wanted).map(|(name, _)| name.as_str())
    };
    let skipped: Vec<&str> = of(Verdict::Skipped).collect();
    let failed: Vec<&str> = of(Verdict::Failed).collect();
    let passed = of(Verdict::Passed).count();
    let (skipped, failed) = (skipped.len(), failed.len());
    println!("{passed} passed, {skipped} skipped, {failed} failed of {}", tests.len());
    let expected: BTreeMap<String, Verdict> = EXPECTED
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once(' '))
        .map(|(name, verdict)| (name.to_owned(), verdict.trim()))
        .map(|(name, verdict)| (name, if verdict == "failed" { Verdict::Failed } else { Verdict::Skipped }))
        .collect();
    let silent: Vec<&String> = tests.iter().filter(|test| !best.contains_key(*test)).collect();
    assert!(silent.is_empty(), "a test said nothing of itself: {silent:?}");
    best.retain(|_, verdict| *verdict != Verdict::Passed);
    assert_eq!(best, expected, "what does not pass is not what conformance/libiscsi.txt says\n{report}");
}

/// True when a foreign program is here; without it the test is skipped, and fails in CI.
fn foreign(program: &str) -> bool {
    let found =
        Command::new("sh").args(["-c", &format!("command -v {program}")]).output().unwrap().status.success();
    assert!(found || std::env::var_os("CI").is_none(), "{program} is missing");
    if !found {
        println!("skipped: {program} is not installed");
    }
    found
}
