//! A LUN as a mounted ext4, without a kernel client: nbdfuse, or qemu's storage daemon with its
//! iSCSI initiator, shows the export as a file, and a loop device makes a disk of it.
//!
//! A flush of the file system arrives at Cairn: ext4 flushes the loop device, that is fsync of the
//! file, and nbdfuse sends NBD_CMD_FLUSH, the initiator SYNCHRONIZE CACHE.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::program::{Running, is_installed, run, wait_until};
use crate::scenario::{Verdict, World};
use crate::server::Cairn;

/// The programs needed to attach, each with a name.
const PROGRAMS: &[&str] =
    &["nbdfuse", "/sbin/losetup", "mount", "umount", "/sbin/mke2fs", "/sbin/e2fsck", "setpriv"];
const KERNEL: &[&str] = &["/dev/fuse", "/dev/loop-control"];

/// A mounted LUN. It is unmounted when this is dropped, whatever happened to its server.
pub(crate) struct Mounted {
    fuse: Option<Running>,
    /// Its mount; a disk that is a file by itself has none.
    shown: Option<PathBuf>,
    disk: Option<String>,
    /// Where its files are.
    pub(crate) folder: PathBuf,
    is_mounted: bool,
}

/// How a LUN is taken.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    /// An ext4 is made on it.
    Empty,
    /// It holds one whose server was killed: the kernel replays its journal, and e2fsck must find
    /// nothing afterwards.
    AfterKill,
}

/// Why this machine cannot mount; `None` when it can. Makes and deletes a LUN of `vol0`.
pub(crate) fn cannot_mount(world: &World, cairn: &Cairn) -> Result<Option<Verdict>> {
    let kernel = |needs: String| Ok(Some(Verdict::Skipped { needs, kernel: true }));
    if let Some(missing) = KERNEL.iter().find(|path| !Path::new(path).exists()) {
        return kernel(format!("{missing} is missing"));
    }
    if run(Command::new("id").arg("-u"))?.trim() != "0" {
        return kernel("root, to mount".to_owned());
    }
    if let Some(missing) = PROGRAMS.iter().find(|program| !is_installed(program)) {
        return Ok(Some(Verdict::without(missing)));
    }
    cairn.cli(&["lun", "create", "vol0/probe", "--size", "16M"])?;
    match Mounted::attach(world, cairn, "vol0/probe", Taken::Empty) {
        Ok(mounted) => mounted.detach()?,
        Err(error) => return kernel(format!("mounting does not work here: {error:#}")),
    }
    cairn.cli(&["lun", "delete", "vol0/probe", "--yes"])?;
    Ok(None)
}

impl Mounted {
    /// Mounts an export.
    pub(crate) fn attach(world: &World, cairn: &Cairn, export: &str, taken: Taken) -> Result<Self> {
        let name = export.replace('/', "-");
        let folder = world.folder.join(format!("fuse-{name}"));
        std::fs::create_dir_all(&folder)?;
        let mut nbdfuse = Command::new("nbdfuse");
        nbdfuse.arg(&folder).arg(cairn.uri(export));
        Self::show(world, &name, (&mut nbdfuse, "nbdfuse.log"), &folder, &folder.join("nbd"), taken)
    }

    /// Mounts a file that is a disk, without any server.
    pub(crate) fn attach_file(world: &World, file: &Path, taken: Taken) -> Result<Self> {
        let folder = world.folder.join("mounted-plain");
        std::fs::create_dir_all(&folder)?;
        Self { fuse: None, shown: None, disk: None, folder, is_mounted: false }.take(file, taken)
    }

    /// Mounts a target by qemu's initiator.
    pub(crate) fn attach_by_initiator(
        world: &World,
        portal: &str,
        target: &str,
        taken: Taken,
    ) -> Result<Self> {
        let name = target.rsplit(':').next().unwrap_or(target);
        let file = world.folder.join(format!("iscsi-{name}"));
        std::fs::write(&file, [])?;
        let mut daemon = Command::new("qemu-storage-daemon");
        let disk = format!("driver=iscsi,node-name=disk,transport=tcp,portal={portal},target={target},lun=0");
        let export = format!("type=fuse,id=shown,node-name=disk,mountpoint={},writable=on", file.display());
        daemon.args(["--blockdev", &disk, "--export", &export]);
        Self::show(world, name, (&mut daemon, "qemu-storage-daemon.log"), &file, &file, taken)
    }

    /// Mounts the file of a program's export, once the program has mounted that at `shown`.
    fn show(
        world: &World,
        name: &str,
        (program, log): (&mut Command, &str),
        shown: &Path,
        file: &Path,
        taken: Taken,
    ) -> Result<Self> {
        let folder = world.folder.join(format!("mounted-{name}"));
        std::fs::create_dir_all(&folder)?;
        let shown = Some(shown.to_owned());
        let mut mounted = Self { fuse: None, shown, disk: None, folder, is_mounted: false };
        let fuse = mounted.fuse.insert(Running::start(program, &world.folder.join(log))?);
        wait_until("the export is shown as a file", || match fuse.ended()? {
            Some(status) => bail!("who shows the export ended ({status}): {}", fuse.tail()),
            None => Ok(std::fs::metadata(file).is_ok_and(|file| file.len() > 0)),
        })?;
        mounted.take(file, taken)
    }

    /// Makes a disk of a file, and mounts that.
    fn take(mut self, file: &Path, taken: Taken) -> Result<Self> {
        let disk = run(Command::new("/sbin/losetup").args(["--find", "--show"]).arg(file))?.trim().to_owned();
        self.disk = Some(disk.clone());
        match taken {
            Taken::Empty => {
                run(Command::new("/sbin/mke2fs").args(["-q", "-F", "-t", "ext4", &disk]))?;
                self.mount()?;
            }
            Taken::AfterKill => {
                self.mount().context("replaying the journal")?;
                self.unmount()?;
                run(Command::new("/sbin/e2fsck").args(["-f", "-n", &disk])).context("after the journal")?;
                self.mount()?;
            }
        }
        Ok(self)
    }

    fn mount(&mut self) -> Result<()> {
        let disk = self.disk.as_deref().context("no loop device")?;
        run(Command::new("mount").args(["-t", "ext4", disk]).arg(&self.folder))?;
        self.is_mounted = true;
        Ok(())
    }

    /// Waits for processes that still have a file open: a killed process ends when the kernel is
    /// done with it.
    fn unmount(&mut self) -> Result<()> {
        let mut last = String::new();
        let unmounted =
            wait_until("it is unmounted", || match run(Command::new("umount").arg(&self.folder)) {
                Ok(_) => Ok(true),
                Err(error) => {
                    last = format!("{error:#}");
                    Ok(false)
                }
            });
        self.is_mounted = false;
        unmounted.context(last)
    }

    /// Ends the process that shows the export, with any requests in flight: the disk returns only
    /// errors from now on.
    pub(crate) fn cut(&mut self) -> Result<()> {
        self.fuse.take().map_or(Ok(()), |mut fuse| fuse.kill())
    }

    /// Unmounts, whether its server lives or not.
    pub(crate) fn detach(mut self) -> Result<()> {
        self.unmount()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Each step is tried: a remaining mount would hold the folder, and the loop device for the
        // next run.
        if self.is_mounted {
            let _ = run(Command::new("umount").arg("--lazy").arg(&self.folder));
        }
        if let Some(disk) = &self.disk {
            let _ = run(Command::new("/sbin/losetup").args(["--detach", disk]));
        }
        if let Some(shown) = &self.shown {
            let _ = run(Command::new("umount").arg("--lazy").arg(shown));
        }
        self.fuse = None;
    }
}
