//! Tests of attachments with stand-ins for the programs and for sysfs: this machine may have
//! neither NBD nor an iSCSI initiator. They show the arguments and the answers to a crash, not that
//! a kernel accepts them.

use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::node::programs::Programs;

/// A machine of files: its programs note their arguments in `calls`.
struct Machine {
    dir: tempfile::TempDir,
}

impl Machine {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        for folder in ["bin", "sys/block/nbd0", "sys/block/nbd1", "sys/class/iscsi_session", "dev", "state"] {
            std::fs::create_dir_all(dir.path().join(folder)).expect("a folder");
        }
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn program(&self, name: &str, does: &str) {
        let path = self.path("bin").join(name);
        let root = self.dir.path().display();
        let text = format!("#!/bin/sh\ncd {root}\necho \"{name} $*\" >>calls\n{does}\n");
        std::fs::write(&path, text).expect("a program");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("it is one");
    }

    fn programs(&self) -> Programs {
        Programs {
            on_host: false,
            folder: Some(self.path("bin")),
            sys: self.path("sys"),
            dev: self.path("dev"),
        }
    }

    fn calls(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.path("calls")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn nbd(&self) -> nbd::Nbd {
        nbd::Nbd { programs: self.programs(), notes: self.path("state/nbd"), tls: None }
    }
}

fn disk() -> Disk {
    Disk {
        volume: "csi-pvc-1".to_owned(),
        export: "csi-pvc-1/disk".to_owned(),
        nbd: Some("10.0.0.1:10809".to_owned()),
        target: Some("iqn.2026-11.io.cairn:csi-pvc-1.disk".to_owned()),
        portal: Some("10.0.0.1:3260".to_owned()),
        read_only: false,
    }
}

/// A client that connects: sysfs shows its process at the device.
const CONNECTS: &str = "case \"$1\" in -d) rm -f sys/block/$(basename $2)/pid ;; \
                        *) echo $$ >sys/block/$(basename $3)/pid ;; esac";

#[test]
fn nbd_device_is_attached_once_and_detached_once() {
    let machine = Machine::new();
    machine.program("nbd-client", CONNECTS);
    let nbd = machine.nbd();
    assert_eq!(nbd.find("csi-pvc-1").expect("it looks"), None);
    let device = nbd.attach(&disk()).expect("it attaches");
    assert_eq!(device, machine.path("dev/nbd0"));
    assert_eq!(nbd.attach(&disk()).expect("again"), device);
    assert_eq!(nbd.find("csi-pvc-1").expect("it looks"), Some(device.clone()));
    nbd.detach("csi-pvc-1").expect("it detaches");
    nbd.detach("csi-pvc-1").expect("again");
    assert_eq!(nbd.find("csi-pvc-1").expect("it looks"), None);
    let device = device.display();
    assert_eq!(
        machine.calls(),
        [
            format!("nbd-client 10.0.0.1 10809 {device} -name csi-pvc-1/disk -timeout 60"),
            format!("nbd-client -d {device}"),
        ]
    );
}

#[test]
fn nbd_device_that_was_cut_off_or_taken_by_others_is_not_used() {
    let machine = Machine::new();
    machine.program("nbd-client", CONNECTS);
    let nbd = machine.nbd();
    // A crash after the intention; another program has the device now.
    std::fs::create_dir_all(machine.path("state/nbd")).expect("a folder");
    let note = r#"{"device":"nbd0","connected":false,"pid":"","boot":""}"#;
    std::fs::write(machine.path("state/nbd/csi-pvc-1.json"), note).expect("a note");
    std::fs::write(machine.path("sys/block/nbd0/pid"), "7\n").expect("a process");
    assert_eq!(nbd.find("csi-pvc-1").expect("it looks"), None);
    assert_eq!(nbd.attach(&disk()).expect("it attaches"), machine.path("dev/nbd1"));
    // The connection ended, and another program has connected the same device.
    std::fs::write(machine.path("sys/block/nbd1/pid"), "8\n").expect("a process");
    assert_eq!(nbd.find("csi-pvc-1").expect("it looks"), None);
    nbd.detach("csi-pvc-1").expect("it detaches");
    assert_eq!(std::fs::read_to_string(machine.path("sys/block/nbd1/pid")).expect("it stays"), "8\n");
    // So it is after a start of the machine, whatever process has the number now.
    let note = r#"{"device":"nbd0","connected":true,"pid":"7","boot":"earlier"}"#;
    std::fs::write(machine.path("state/nbd/csi-pvc-1.json"), note).expect("a note");
    assert_eq!(nbd.find("csi-pvc-1").expect("it looks"), None);
    // Both are in use.
    let error = nbd.attach(&disk()).expect_err("there is no device");
    assert_eq!(error.code(), tonic::Code::ResourceExhausted);
}

#[test]
fn refused_nbd_client_makes_the_volume_unavailable() {
    let machine = Machine::new();
    machine.program("nbd-client", "echo 'E: access denied by server policy' >&2; exit 1");
    let error = machine.nbd().attach(&disk()).expect_err("it is refused");
    assert_eq!(error.code(), tonic::Code::Unavailable);
    assert!(error.message().contains("access denied"), "{error}");
    let error = machine.nbd().attach(&Disk { nbd: None, ..disk() }).expect_err("no address");
    assert_eq!(error.code(), tonic::Code::FailedPrecondition);
    let error = machine.nbd().attach(&Disk { volume: "../x".to_owned(), ..disk() }).expect_err("no name");
    assert_eq!(error.code(), tonic::Code::NotFound);
}

fn show_session(machine: &Machine, target: &str) {
    let folder = machine.path("sys/class/iscsi_session/session1");
    let block = folder.join("device/target2:0:0/2:0:0:0/block/sdb");
    std::fs::create_dir_all(block).expect("a session");
    std::fs::write(folder.join("targetname"), format!("{target}\n")).expect("its target");
    std::fs::write(machine.path("dev/sdb"), "").expect("its device");
}

#[test]
fn iscsi_session_is_found_by_its_target_and_made_once() {
    let machine = Machine::new();
    let session = "sys/class/iscsi_session/session1";
    let login = format!(
        "case \"$*\" in *--login*) mkdir -p {session}/device/target2:0:0/2:0:0:0/block/sdb; \
         echo iqn.2026-11.io.cairn:csi-pvc-1.disk >{session}/targetname; touch dev/sdb ;; \
         *--logout*) rm -r {session} ;; esac"
    );
    machine.program("iscsiadm", &login);
    let iscsi = iscsi::Iscsi { programs: machine.programs() };
    let device = iscsi.attach(&disk()).expect("it attaches");
    assert_eq!(device, machine.path("dev/sdb"));
    assert_eq!(iscsi.attach(&disk()).expect("again"), device);
    assert_eq!(iscsi.find("csi-pvc-2").expect("it looks"), None);
    iscsi.refresh("csi-pvc-1").expect("it scans");
    iscsi.detach("csi-pvc-1").expect("it detaches");
    iscsi.detach("csi-pvc-1").expect("again");
    let of = "iscsiadm -m node -T iqn.2026-11.io.cairn:csi-pvc-1.disk";
    assert_eq!(
        machine.calls(),
        [
            format!("{of} -p 10.0.0.1:3260 -o new"),
            format!("{of} -p 10.0.0.1:3260 -o update -n node.startup -v manual"),
            format!("{of} -p 10.0.0.1:3260 --login"),
            format!("{of} -R"),
            format!("{of} --logout"),
            format!("{of} -o delete"),
        ]
    );
}

#[test]
fn iscsi_session_of_an_earlier_driver_is_used() {
    let machine = Machine::new();
    machine.program("iscsiadm", "exit 1");
    show_session(&machine, "iqn.2026-11.io.cairn:csi-pvc-1.disk");
    let iscsi = iscsi::Iscsi { programs: machine.programs() };
    assert_eq!(iscsi.attach(&disk()).expect("it is there"), machine.path("dev/sdb"));
    // The target of another volume.
    let other = Disk { target: Some("iqn.2026-11.io.cairn:csi-pvc-2.disk".to_owned()), ..disk() };
    assert_eq!(iscsi.attach(&other).expect_err("another").code(), tonic::Code::InvalidArgument);
    let error = iscsi.detach("csi-pvc-1").expect_err("the program fails");
    assert_eq!(error.code(), tonic::Code::Unavailable);
}

#[test]
fn names_that_are_paths_or_options_are_no_volumes() {
    for bad in ["", "..", "a/b", "-d", "a.b", "a b"] {
        assert_eq!(checked(bad), None, "{bad}");
    }
    assert_eq!(checked("csi-pvc_1"), Some("csi-pvc_1"));
    assert!(given(&Some("-x".to_owned()), "address").is_err());
}
