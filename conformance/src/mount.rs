//! A LUN as a mounted ext4, without a kernel client: nbdfuse shows the export as a file, a loop device makes a disk of it.
//!
//! A flush of the file system arrives at Cairn: ext4 flushes the loop device, that is fsync of the file, and nbdfuse sends NBD_CMD_FLUSH.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::program::{Running, is_installed, run, wait_until};
use crate::scenario::{Verdict, World};
use crate::server::Cairn;

/// What attaching needs, and the name by which it is asked for.
const PROGRAMS: &[&str] =
    &["nbdfuse", "/sbin/losetup", "mount", "umount", "/sbin/mke2fs", "/sbin/e2fsck", "setpriv"];
const KERNEL: &[&str] = &["/dev/fuse", "/dev/loop-control"];

/// A mounted LUN. It goes when this goes, whatever became of its server.
pub(crate) struct Mounted {
    fuse: Option<Running>,
    fuse_folder: PathBuf,
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
    /// It holds one whose server was killed: the kernel replays its journal, and e2fsck must find nothing afterwards.
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
        let fuse_folder = world.folder.join(format!("fuse-{name}"));
        let folder = world.folder.join(format!("mounted-{name}"));
        std::fs::create_dir_all(&fuse_folder)?;
        std::fs::create_dir_all(&folder)?;
        let mut mounted = Self { fuse: None, fuse_folder, disk: None, folder, is_mounted: false };
        let mut nbdfuse = Command::new("nbdfuse");
        nbdfuse.arg(&mounted.fuse_folder).arg(cairn.uri(export));
        let fuse = mounted.fuse.insert(Running::start(&mut nbdfuse, &world.folder.join("nbdfuse.log"))?);
        let file = mounted.fuse_folder.join("nbd");
        wait_until("nbdfuse shows the export", || match fuse.ended()? {
            Some(status) => bail!("nbdfuse ended ({status}): {}", fuse.tail()),
            None => Ok(file.exists()),
        })?;
        let disk =
            run(Command::new("/sbin/losetup").args(["--find", "--show"]).arg(&file))?.trim().to_owned();
        mounted.disk = Some(disk.clone());
        match taken {
            Taken::Empty => {
                run(Command::new("/sbin/mke2fs").args(["-q", "-F", "-t", "ext4", &disk]))?;
                mounted.mount()?;
            }
            Taken::AfterKill => {
                mounted.mount().context("replaying the journal")?;
                mounted.unmount()?;
                run(Command::new("/sbin/e2fsck").args(["-f", "-n", &disk])).context("after the journal")?;
                mounted.mount()?;
            }
        }
        Ok(mounted)
    }

    fn mount(&mut self) -> Result<()> {
        let disk = self.disk.as_deref().context("no loop device")?;
        run(Command::new("mount").args(["-t", "ext4", disk]).arg(&self.folder))?;
        self.is_mounted = true;
        Ok(())
    }

    /// Waits for whoever still has a file open: a process that was killed ends when the kernel is done with it.
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

    /// Unmounts, whether its server lives or not.
    pub(crate) fn detach(mut self) -> Result<()> {
        self.unmount()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Each step is tried: what is left would hold the folder, and the loop device for the next run.
        if self.is_mounted {
            let _ = run(Command::new("umount").arg("--lazy").arg(&self.folder));
        }
        if let Some(disk) = &self.disk {
            let _ = run(Command::new("/sbin/losetup").args(["--detach", disk]));
        }
        let _ = run(Command::new("umount").arg("--lazy").arg(&self.fuse_folder));
        self.fuse = None;
    }
}
