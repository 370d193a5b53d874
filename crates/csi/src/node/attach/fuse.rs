//! Disks by `nbdfuse` of libnbd, which shows an export as a file, and a loop device on that file.
//!
//! For nodes whose kernel has neither NBD nor an iSCSI initiator, and for tests. The disk ends with
//! the process of nbdfuse. That process does not end with the driver, but it does with a container
//! that the driver runs in.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tonic::Status;

use super::{Attach, Disk, checked, given, named};
use crate::node::mounts::Mounts;
use crate::node::programs::Programs;

/// The name of the file in the mount of a volume.
const FILE: &str = "disk";
/// How long nbdfuse may take to connect, and how often to look.
const APPEARS_WITHIN: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long a device may stay in use after it is detached.
const RELEASED_WITHIN: Duration = Duration::from_secs(5);

pub(super) struct Fuse {
    pub(super) programs: Programs,
    /// A folder with a mount for each volume.
    pub(super) folder: PathBuf,
    pub(super) tls: Option<PathBuf>,
}

impl Fuse {
    fn mount_point(&self, volume: &str) -> PathBuf {
        self.folder.join(volume)
    }

    fn is_mounted(&self, at: &Path) -> Result<bool, Status> {
        Ok(Mounts::read(&self.programs)?.at(at).is_some())
    }

    /// The loop device on a file.
    fn loop_of(&self, file: &Path) -> Result<Option<PathBuf>, Status> {
        let file = file.display().to_string();
        let listed =
            self.programs.run("losetup", &["--associated", &file, "--noheadings", "--output", "NAME"])?;
        Ok(listed.lines().map(str::trim).find(|line| !line.is_empty()).map(PathBuf::from))
    }

    fn uri(&self, address: &str, export: &str) -> String {
        let scheme = if self.tls.is_some() { "nbds" } else { "nbd" };
        let mut uri = match address.strip_prefix("unix:") {
            Some(socket) => format!("{scheme}+unix:///{export}?socket={socket}"),
            None => format!("{scheme}://{address}/{export}"),
        };
        if let Some(tls) = &self.tls {
            let next = if uri.contains('?') { '&' } else { '?' };
            uri.push_str(&format!("{next}tls-certificates={}", tls.display()));
        }
        uri
    }

    fn connect(&self, disk: &Disk, at: &Path) -> Result<(), Status> {
        let uri = self.uri(given(&disk.nbd, "NBD address")?, &disk.export);
        fs::create_dir_all(at)
            .map_err(|error| Status::internal(format!("cannot create {}: {error}", at.display())))?;
        let file = at.join(FILE).display().to_string();
        let mut arguments = vec![file.as_str(), uri.as_str()];
        if disk.read_only {
            arguments.insert(0, "--readonly");
        }
        let mut child = self.programs.start("nbdfuse", &arguments)?;
        let mut waited = Duration::ZERO;
        while !self.is_mounted(at)? {
            let ended = child.try_wait().map_err(|error| Status::internal(format!("nbdfuse: {error}")))?;
            if ended.is_some() || waited >= APPEARS_WITHIN {
                let _ = child.kill();
                let mut output = String::new();
                let _ = child.stderr.take().map(|mut from| from.read_to_string(&mut output));
                let _ = child.wait();
                let message = format!("nbdfuse did not connect {}: {}", disk.volume, output.trim());
                return Err(Status::unavailable(message));
            }
            std::thread::sleep(LOOK_EVERY);
            waited += LOOK_EVERY;
        }
        // It ends when it is unmounted.
        let reap = std::thread::Builder::new().name("csi-reap".to_owned()).spawn(move || {
            drop(child.stderr.take());
            let _ = child.wait();
        });
        if let Err(error) = reap {
            tracing::warn!(%error, "no thread waits for the end of nbdfuse");
        }
        Ok(())
    }
}

impl Attach for Fuse {
    fn attach(&self, disk: &Disk) -> Result<PathBuf, Status> {
        let at = self.mount_point(named(&disk.volume)?);
        let file = at.join(FILE);
        if self.is_mounted(&at)? && !self.programs.view(&file).exists() {
            // The process is gone.
            self.detach(&disk.volume)?;
        }
        if !self.is_mounted(&at)? {
            self.connect(disk, &at)?;
        }
        if let Some(device) = self.loop_of(&file)? {
            return Ok(device);
        }
        let file = file.display().to_string();
        let mut arguments = vec!["--find", "--show", file.as_str()];
        if disk.read_only {
            arguments.insert(0, "--read-only");
        }
        Ok(PathBuf::from(self.programs.run("losetup", &arguments)?.trim()))
    }

    fn find(&self, volume: &str) -> Result<Option<PathBuf>, Status> {
        let Some(volume) = checked(volume) else { return Ok(None) };
        let at = self.mount_point(volume);
        match self.is_mounted(&at)? {
            true => self.loop_of(&at.join(FILE)),
            false => Ok(None),
        }
    }

    fn detach(&self, volume: &str) -> Result<(), Status> {
        let Some(volume) = checked(volume) else { return Ok(()) };
        let at = self.mount_point(volume);
        if !self.is_mounted(&at)? {
            return Ok(());
        }
        if let Some(device) = self.loop_of(&at.join(FILE))? {
            self.programs.run("losetup", &["--detach", &device.display().to_string()])?;
        }
        // The loop device is detached at its last close, which may be that of another program.
        let mut waited = Duration::ZERO;
        while let Err(error) = self.programs.run("umount", &[&at.display().to_string()]) {
            if waited >= RELEASED_WITHIN {
                return Err(error);
            }
            std::thread::sleep(LOOK_EVERY);
            waited += LOOK_EVERY;
        }
        let _ = fs::remove_dir(&at);
        Ok(())
    }

    fn refresh(&self, _volume: &str) -> Result<(), Status> {
        // The size is a part of the connection.
        Ok(())
    }
}
