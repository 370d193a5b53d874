//! Peers that take snapshots: qcow2 images, and a file on a file system with snapshots, served by
//! nbdkit.
//!
//! btrfs needs its kernel module, a loop device and root; zfs-fuse needs its daemon and root. They
//! are left out on a machine without them, and the table says so.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::Plan;
use crate::cairn::{Cairn, VOLUME};
use crate::fio::Target;
use crate::peers::{Qcow2, nbdkit_file};
use crate::process::{Server, run};

/// A peer that serves a disk and takes snapshots of it.
pub(crate) trait Snapshots {
    /// Its name in a row.
    fn label(&self) -> &'static str;

    /// The maximum number of snapshots to request: more are past the number that it opens, or would
    /// take an evening.
    fn snapshots_max(&self) -> usize {
        usize::MAX
    }

    /// Takes one more; `number` is not in use.
    fn snapshot(&mut self, number: usize) -> Result<()>;

    /// Deletes the newest, number `number`, so that the writes of a turn don't fill the disk.
    fn forget(&mut self, number: usize) -> Result<()>;

    /// Its export.
    fn target<'a>(&'a self, plan: &'a Plan) -> Result<Target<'a>>;
}

impl Snapshots for Cairn {
    fn label(&self) -> &'static str {
        "cairn"
    }

    fn snapshot(&mut self, number: usize) -> Result<()> {
        self.cli(&["snapshot", "create", &format!("{VOLUME}@s{number}")]).map(drop)
    }

    fn forget(&mut self, number: usize) -> Result<()> {
        self.cli(&["snapshot", "delete", &format!("{VOLUME}@s{number}"), "--yes"]).map(drop)
    }

    fn target<'a>(&'a self, plan: &'a Plan) -> Result<Target<'a>> {
        Ok(Target { server: self.server()?, uri: self.lun()?, scratch: &plan.folder })
    }
}

impl Snapshots for Qcow2 {
    fn label(&self) -> &'static str {
        "qcow2, external snapshots"
    }

    fn snapshots_max(&self) -> usize {
        50
    }

    fn snapshot(&mut self, _number: usize) -> Result<()> {
        self.push()
    }

    /// Without the newest image its writes are gone too, which does not matter here: the next turn
    /// starts with an empty one again.
    fn forget(&mut self, _number: usize) -> Result<()> {
        self.pop()
    }

    fn target<'a>(&'a self, plan: &'a Plan) -> Result<Target<'a>> {
        let server = self.server()?;
        Ok(Target { server, uri: server.uri(""), scratch: &plan.folder })
    }
}

/// A file on btrfs on a loop device.
pub(crate) struct Btrfs {
    mount: PathBuf,
    /// Ends before the file system is unmounted.
    server: Option<Server>,
}

impl Btrfs {
    /// A file of `bytes` on a file system of four times as much.
    pub(crate) fn new(folder: &Path, bytes: u64) -> Result<Self> {
        let (image, mount) = (folder.join("btrfs.img"), folder.join("btrfs"));
        std::fs::create_dir(&mount)?;
        run(Command::new("truncate").arg("-s").arg((bytes * 4).to_string()).arg(&image))?;
        run(Command::new("mkfs.btrfs").arg("-q").arg(&image))?;
        run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&mount))?;
        let mut btrfs = Self { mount, server: None };
        let current = btrfs.current();
        run(Command::new("btrfs").args(["subvolume", "create"]).arg(&current))?;
        btrfs.server = Some(nbdkit_file(&current, "disk", bytes)?);
        Ok(btrfs)
    }

    fn current(&self) -> PathBuf {
        self.mount.join("current")
    }
}

impl Snapshots for Btrfs {
    fn label(&self) -> &'static str {
        "nbdkit file on btrfs"
    }

    fn snapshot(&mut self, number: usize) -> Result<()> {
        let frozen = self.mount.join(format!("s{number}"));
        let mut command = Command::new("btrfs");
        command.args(["subvolume", "snapshot", "-r"]).arg(self.current()).arg(frozen);
        run(&mut command).map(drop)
    }

    fn forget(&mut self, number: usize) -> Result<()> {
        let mut command = Command::new("btrfs");
        command.args(["subvolume", "delete"]).arg(self.mount.join(format!("s{number}")));
        run(&mut command).map(drop)
    }

    fn target<'a>(&'a self, plan: &'a Plan) -> Result<Target<'a>> {
        served(self.server.as_ref(), plan)
    }
}

impl Drop for Btrfs {
    fn drop(&mut self) {
        self.server = None;
        // A remaining mount shows when its folder can't be removed.
        let _ = run(Command::new("umount").arg(&self.mount));
    }
}

/// A file on zfs-fuse, in records of 8 KiB.
pub(crate) struct ZfsFuse {
    daemon: Child,
    pool: String,
    server: Option<Server>,
}

/// How long the daemon may take until it answers.
const ZFS_START_LIMIT: Duration = Duration::from_secs(20);

impl ZfsFuse {
    /// A file of `bytes` in a pool of four times as much.
    pub(crate) fn new(folder: &Path, bytes: u64) -> Result<Self> {
        let (image, mount) = (folder.join("zfs.img"), folder.join("zfs"));
        run(Command::new("truncate").arg("-s").arg((bytes * 4).to_string()).arg(&image))?;
        let mut daemon = Command::new("zfs-fuse");
        daemon.arg("--no-daemon").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let pool = format!("cairn-bench-{}", std::process::id());
        let mut zfs = Self { daemon: daemon.spawn()?, pool, server: None };
        let start = Instant::now();
        while run(Command::new("zpool").arg("list")).is_err() {
            if start.elapsed() > ZFS_START_LIMIT {
                bail!("zfs-fuse does not answer");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        run(Command::new("zpool").args(["create", "-m"]).arg(&mount).arg(&zfs.pool).arg(&image))?;
        run(Command::new("zfs").args(["set", "recordsize=8K", &zfs.pool]))?;
        // zfs-fuse does not know fallocate.
        std::fs::File::create(mount.join("disk.data"))?.set_len(bytes)?;
        zfs.server = Some(nbdkit_file(&mount, "disk", bytes)?);
        Ok(zfs)
    }
}

impl Snapshots for ZfsFuse {
    fn label(&self) -> &'static str {
        "nbdkit file on zfs-fuse"
    }

    fn snapshot(&mut self, number: usize) -> Result<()> {
        run(Command::new("zfs").arg("snapshot").arg(format!("{}@s{number}", self.pool))).map(drop)
    }

    fn forget(&mut self, number: usize) -> Result<()> {
        run(Command::new("zfs").arg("destroy").arg(format!("{}@s{number}", self.pool))).map(drop)
    }

    fn target<'a>(&'a self, plan: &'a Plan) -> Result<Target<'a>> {
        served(self.server.as_ref(), plan)
    }
}

impl Drop for ZfsFuse {
    fn drop(&mut self) {
        self.server = None;
        let _ = run(Command::new("zpool").args(["destroy", "-f", &self.pool]));
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

fn served<'a>(server: Option<&'a Server>, plan: &'a Plan) -> Result<Target<'a>> {
    let server = server.ok_or_else(|| anyhow::anyhow!("nbdkit is not running"))?;
    Ok(Target { server, uri: server.uri(""), scratch: &plan.folder })
}
