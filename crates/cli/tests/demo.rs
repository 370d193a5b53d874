//! The demonstration, small: users see its output first.

mod running;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

#[test]
fn demo_proves_that_the_mirror_is_the_last_image() {
    let dir = tempfile::tempdir().unwrap();
    let output = running::cairn()
        .args(["demo", "--budget", "40M", "--json"])
        .current_dir(dir.path())
        .env("TMPDIR", dir.path())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{told}\n{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_str(&told).expect("one report in JSON");
    assert_eq!(report["proved"], true, "{report:#}");
}

#[test]
fn demo_that_fails_keeps_what_it_says_to_look_at_where_that_is_wanted() {
    let dir = tempfile::tempdir().unwrap();
    // This name is too long for a socket, so no server starts.
    let folder = dir.path().join("x".repeat(120));
    fs::create_dir(&folder).unwrap();
    for keep in [false, true] {
        let mut demo = running::cairn();
        demo.args(["demo", "--budget", "40M"]).args(keep.then_some("--keep")).env("TMPDIR", &folder);
        let output = demo.current_dir(dir.path()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{said}");
        let left: Vec<_> = fs::read_dir(&folder).unwrap().map(|found| found.unwrap().path()).collect();
        assert_eq!(left.len(), usize::from(keep), "{left:?}\n{said}");
        if let [kept] = &left[..] {
            assert!(said.contains(kept.to_str().unwrap()), "{said}");
            assert!(kept.join("source.log").exists());
        }
    }
}

#[test]
fn demo_that_is_ended_by_a_signal_ends_its_servers() {
    for (signal, keep) in [("INT", false), ("TERM", false), ("INT", true)] {
        let dir = tempfile::tempdir().unwrap();
        let mut demo = running::cairn();
        demo.args(["demo", "--budget", "40M"]).args(keep.then_some("--keep")).env("TMPDIR", dir.path());
        let demo = demo.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let folder = || -> Option<PathBuf> {
            fs::read_dir(dir.path()).unwrap().next().map(|found| found.unwrap().path())
        };
        let process_of = |name: &str| -> Option<u64> {
            let mut status = running::cairn();
            let status =
                status.args(["status", "--json", "--data"]).arg(folder()?.join(name)).output().unwrap();
            serde_json::from_slice::<Value>(&status.stdout).ok()?["pid"].as_u64()
        };
        let mut servers = Vec::new();
        for name in ["source", "destination"] {
            running::wait_until("no server starts", || {
                let found = process_of(name);
                servers.extend(found);
                found.is_some()
            });
        }
        assert!(
            Command::new("kill").args(["-s", signal, &demo.id().to_string()]).status().unwrap().success()
        );
        let ended = demo.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(130), "{signal}: {said}");
        let runs = |process: &u64| {
            let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
            stat.rsplit(')')
                .next()
                .is_some_and(|rest| !rest.trim().is_empty() && !rest.trim().starts_with('Z'))
        };
        running::wait_until("a server runs on", || !servers.iter().any(runs));
        let left = folder();
        assert_eq!(left.is_some(), keep, "{left:?}");
        assert!(left.is_none_or(|left| said.contains(left.to_str().unwrap())), "{said}");
    }
}
