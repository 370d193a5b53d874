//! csi-sanity, the conformance test of Kubernetes, whole: for file systems and for block volumes.

use std::process::Command;

use crate::driver::{Driver, MIB, served};
use crate::running::can_mount;

/// The program; none, with a message, if it is not built.
fn csi_sanity() -> Option<String> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../csi/tests/csi-sanity");
    let output = Command::new(script).arg("find").output().unwrap();
    if output.status.success() {
        return Some(String::from_utf8(output.stdout).unwrap().trim().to_owned());
    }
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(std::env::var_os("CAIRN_CSI_SANITY").is_none(), "{why}");
    eprintln!("skipped: {}", why.trim());
    None
}

/// Whether the disks of a driver can become devices here.
pub fn can_attach() -> bool {
    let has_loops = std::path::Path::new("/dev/loop-control").exists();
    let has_fuse = Command::new("nbdfuse").arg("--version").output().is_ok();
    let can = can_mount() && has_loops && has_fuse;
    assert!(can || std::env::var_os("CI").is_none(), "attaching needs root, loop devices and nbdfuse here");
    if !can {
        eprintln!("skipped: attaching needs root, loop devices and nbdfuse");
    }
    can
}

/// Runs it whole on a server of its own.
fn passes(kind: &str) {
    let Some(program) = csi_sanity().filter(|_| can_attach()) else { return };
    let dir = tempfile::tempdir().unwrap();
    let server = served(dir.path());
    let state = dir.path().join("state");
    let arguments = ["--node-id", "node-1", "--attach", "fuse", "--address", "127.0.0.1", "--state"];
    let driver = Driver::start(&server, dir.path(), &[&arguments[..], &[state.to_str().unwrap()]].concat());
    let mut command = Command::new(&program);
    command
        .arg("--csi.endpoint")
        .arg(format!("unix://{}", driver.socket.display()))
        .arg("--csi.mountdir")
        .arg(dir.path().join("target"))
        .arg("--csi.stagingdir")
        .arg(dir.path().join("staging"))
        .args(["--csi.testvolumeaccesstype", kind, "--ginkgo.no-color"])
        .args(["--csi.testvolumesize", &(64 * MIB).to_string()])
        .args(["--csi.testvolumeexpandsize", &(128 * MIB).to_string()]);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    for line in text.lines().filter(|line| line.starts_with("Ran ") || line.contains(" Passed")) {
        println!("csi-sanity, {kind}: {line}");
    }
    let log = std::fs::read_to_string(dir.path().join("driver.log")).unwrap();
    assert!(output.status.success(), "{text}\n{}\n{log}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains(" 0 Failed"), "{text}");
    // It leaves nothing.
    assert!(!server.good(&["volume", "list"]).contains("csi-"));
    assert!(!std::fs::read_to_string("/proc/self/mountinfo").unwrap().contains(state.to_str().unwrap()));
}

#[test]
fn csi_sanity_passes_whole_with_file_systems() {
    passes("mount");
}

#[test]
fn csi_sanity_passes_whole_with_block_volumes() {
    passes("block");
}
