//! Disks by the iSCSI initiator of the node, open-iscsi.
//!
//! The target of the volume `V` is `…:V.disk`, and names of volumes have no dot. So the session of
//! a volume is found by the name of its target in sysfs.

use std::path::PathBuf;
use std::time::Duration;

use tonic::Status;

use super::{Attach, Disk, checked, given, named};
use crate::names::LUN;
use crate::node::programs::Programs;

/// Exit codes of iscsiadm (iscsiadm(8)): there is such a session; there is no such record.
const SESSION_EXISTS: i32 = 15;
const NO_OBJECT: i32 = 21;
/// How long the kernel may take to show the disk of a session, and how often to look.
const APPEARS_WITHIN: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(100);

pub(super) struct Iscsi {
    pub(super) programs: Programs,
}

impl Iscsi {
    /// The target of a volume that has a session, and the folder of the session in sysfs.
    fn session(&self, volume: &str) -> Option<(String, PathBuf)> {
        let end = format!(":{volume}.{LUN}");
        let sessions = std::fs::read_dir(self.programs.sys.join("class/iscsi_session")).ok()?;
        sessions.flatten().find_map(|session| {
            let target = std::fs::read_to_string(session.path().join("targetname")).ok()?;
            let target = target.trim().to_owned();
            target.ends_with(&end).then(|| (target, session.path().join("device")))
        })
    }

    /// The disk of a session: `targetH:B:T/H:B:T:0/block/NAME`.
    fn device(&self, session: &std::path::Path) -> Option<PathBuf> {
        let inside = |folder: PathBuf, wanted: &dyn Fn(&str) -> bool| {
            let entries = std::fs::read_dir(folder).ok()?;
            let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
            names.filter(|name| wanted(name)).min()
        };
        let target = inside(session.to_owned(), &|name| name.starts_with("target"))?;
        let unit =
            inside(session.join(&target), &|name| name.ends_with(":0") && name.matches(':').count() == 3)?;
        let block = inside(session.join(&target).join(&unit).join("block"), &|_| true)?;
        Some(self.programs.dev.join(block))
    }

    fn iscsiadm(&self, arguments: &[&str], also: i32) -> Result<(), Status> {
        let arguments: Vec<&str> = ["-m", "node"].into_iter().chain(arguments.iter().copied()).collect();
        match self.programs.code("iscsiadm", &arguments)? {
            (code, _) if code == 0 || code == also => Ok(()),
            (code, output) => {
                let message =
                    format!("iscsiadm {} failed with {code}: {}", arguments.join(" "), output.trim());
                Err(Status::unavailable(message))
            }
        }
    }
}

impl Attach for Iscsi {
    fn attach(&self, disk: &Disk) -> Result<PathBuf, Status> {
        let volume = named(&disk.volume)?;
        let target = given(&disk.target, "iSCSI target")?;
        let portal = given(&disk.portal, "iSCSI portal")?;
        if !target.ends_with(&format!(":{volume}.{LUN}")) {
            return Err(Status::invalid_argument(format!("{target} is not the target of {volume}")));
        }
        if self.session(volume).is_none() {
            self.iscsiadm(&["-T", target, "-p", portal, "-o", "new"], 0)?;
            self.iscsiadm(
                &["-T", target, "-p", portal, "-o", "update", "-n", "node.startup", "-v", "manual"],
                0,
            )?;
            self.iscsiadm(&["-T", target, "-p", portal, "--login"], SESSION_EXISTS)?;
        }
        let mut waited = Duration::ZERO;
        loop {
            if let Some(device) = self.find(volume)? {
                return Ok(device);
            }
            if waited >= APPEARS_WITHIN {
                return Err(Status::unavailable(format!("the kernel shows no disk of {target}")));
            }
            std::thread::sleep(LOOK_EVERY);
            waited += LOOK_EVERY;
        }
    }

    fn find(&self, volume: &str) -> Result<Option<PathBuf>, Status> {
        let Some(volume) = checked(volume) else { return Ok(None) };
        let device = self.session(volume).and_then(|(_, session)| self.device(&session));
        Ok(device.filter(|device| device.exists()))
    }

    fn detach(&self, volume: &str) -> Result<(), Status> {
        let Some(volume) = checked(volume) else { return Ok(()) };
        let Some((target, _)) = self.session(volume) else { return Ok(()) };
        self.iscsiadm(&["-T", &target, "--logout"], NO_OBJECT)?;
        self.iscsiadm(&["-T", &target, "-o", "delete"], NO_OBJECT)
    }

    fn refresh(&self, volume: &str) -> Result<(), Status> {
        let Some((target, _)) = checked(volume).and_then(|volume| self.session(volume)) else {
            return Ok(());
        };
        self.iscsiadm(&["-T", &target, "-R"], 0)
    }
}
