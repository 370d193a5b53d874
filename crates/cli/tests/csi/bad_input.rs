//! Wrong options, refused tokens, and programs of the host.

use std::process::Command;

use cairn_api::client::Place;
use cairn_csi::names::Prefix;
use cairn_csi::{Connection, Controller, ControllerOptions};
use tonic::Code;

use crate::driver::{MIB, create, new_volume};
use crate::running::{Running, cairn, refused};

#[test]
fn wrong_options_are_refused_with_a_next_step() {
    let dir = tempfile::tempdir().unwrap();
    let socket = format!("unix://{}/csi.sock", dir.path().display());
    let nowhere = format!("unix://{}/none/csi.sock", dir.path().display());
    let node = ["--node", "--attach", "nbd"];
    let long = "n".repeat(200);
    for (code, kind, arguments) in [
        (2, "usage", vec!["--endpoint", "tcp://127.0.0.1:1", "--controller"]),
        (2, "usage", vec!["--endpoint", "csi.sock", "--controller"]),
        (1, "failed", vec!["--endpoint", &nowhere, "--controller"]),
        (2, "usage", vec!["--endpoint", &socket, "--controller", "--prefix", "x-"]),
        (2, "usage", vec!["--endpoint", &socket, "--controller", "--driver", "1a"]),
        (2, "usage", [&["--endpoint", &socket][..], &node].concat()),
        (2, "usage", [&["--endpoint", &socket, "--node-id", "a b"][..], &node].concat()),
        (2, "usage", [&["--endpoint", &socket, "--node-id", &long][..], &node].concat()),
    ] {
        let output = cairn().arg("csi").args(&arguments).arg("--json").output().unwrap();
        refused(&output, code, kind, &arguments);
    }
}

#[test]
fn token_decides_and_can_be_replaced_while_the_driver_runs() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start_with(dir.path(), "server", &["--mirror", "off", "--http", "127.0.0.1:0"]);
    let status = server.json(&["status"]);
    let addresses = status["http"].as_array().unwrap();
    let address =
        addresses.iter().map(|one| one.as_str().unwrap()).find(|one| one.starts_with("127.")).unwrap();
    let file = dir.path().join("token");
    let connection = Connection {
        place: Place::Tcp(address.to_owned(), String::new()),
        token_file: Some(file.clone()),
        tls_root: None,
    };
    let options = ControllerOptions { prefix: Prefix::new("csi-").unwrap(), nbd: None, iscsi: None };
    let controller = Controller::new(Box::new(connection), options);
    let code = || controller.create_volume(&new_volume("a", 8 * MIB)).unwrap_err().code();
    assert_eq!(code(), Code::Unauthenticated, "there is no file");
    std::fs::write(&file, "wrong\n").unwrap();
    assert_eq!(code(), Code::Unauthenticated);
    assert_eq!(controller.probe().unwrap_err().code(), Code::Unauthenticated);
    let token = |role: &str| {
        let made = server.json(&["token", "create", role, "--role", role]);
        std::fs::write(&file, made["secret"].as_str().unwrap()).unwrap();
    };
    token("viewer");
    assert_eq!(code(), Code::PermissionDenied);
    token("administrator");
    create(&controller, &new_volume("a", 8 * MIB));
    assert!(controller.probe().unwrap());
}

/// A process in a mount namespace of its own is the host here.
#[test]
fn programs_run_in_the_mount_namespace_of_the_host() {
    let mut host = match Command::new("unshare").args(["-m", "sleep", "600"]).spawn() {
        Ok(host) if rustix::process::geteuid().is_root() => host,
        _ => return eprintln!("skipped: it needs root and unshare"),
    };
    let process = host.id().to_string();
    let namespace = || std::fs::read_link(format!("/proc/{process}/ns/mnt")).unwrap();
    let own = std::fs::read_link("/proc/self/ns/mnt").unwrap();
    crate::running::wait_until("it has a namespace", || namespace() != own);
    let run = |arguments: &[&str]| {
        cairn().arg("__host").args(arguments).env("CAIRN_HOST_PROCESS", &process).output().unwrap()
    };
    let done = run(&["readlink", "/proc/self/ns/mnt"]);
    assert_eq!(String::from_utf8(done.stdout).unwrap().trim(), namespace().to_str().unwrap());
    assert_eq!(run(&["false"]).status.code(), Some(1), "its exit code is that of the program");
    assert_eq!(run(&["no-such-program"]).status.code(), Some(127));
    assert_eq!(run(&[]).status.code(), Some(127));
    host.kill().unwrap();
    host.wait().unwrap();
}
