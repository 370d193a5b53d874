//! Files: many small ones and a large one, through FUSE next to ext4 in fuse2fs, ext4 and btrfs of
//! the kernel; BSD dump and restore next to Linux's and tar.
//!
//! Every file system is in a file of the same size in the same folder. The time includes a sync of
//! the created files, so that each file system has put them on the disk. Before they are read,
//! caches are dropped: the kernel's, and that of a server by restarting it. The programs are the
//! same for all: a shell's tools would measure themselves, so files are made here.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::Plan;
use crate::cairn::{Cairn, MEMORY_DEFAULT_MIB, VOLUME};
use crate::process::{run, settle, timed};
use crate::report::{Report, Target, median};

/// Files in a directory.
const PER_DIRECTORY: usize = 200;
/// Bytes of a small file.
const SMALL_BYTES: usize = 4000;
/// Bytes at once of the large one.
const PIECE: usize = 1 << 20;

/// How much work there is, and where.
pub(crate) struct Sizes {
    /// Files in all.
    pub(crate) files: usize,
    /// Bytes of the large one.
    pub(crate) large: u64,
    /// Bytes of every file system.
    pub(crate) device: u64,
}

/// A file system that is mounted.
pub(crate) struct Contender {
    pub(crate) name: &'static str,
    pub(crate) folder: PathBuf,
    /// The loop device or file that Linux `dump` reads.
    device: Option<String>,
    lazily: bool,
}

impl Contender {
    /// Cairn's, and every file system of the kernel or in user space that this machine has; a note
    /// for those that it has not.
    pub(crate) fn all(
        cairn: Option<&Cairn>,
        folder: &Path,
        sizes: &Sizes,
        report: &mut Report,
    ) -> Result<Vec<Self>> {
        let mut all = Vec::new();
        if let Some(cairn) = cairn {
            all.push(mount_cairn(cairn, folder, sizes)?);
        }
        type Make = fn(&Path, &Sizes) -> Result<Contender>;
        let peers: [(&str, Make); 3] = [("fuse2fs", fuse2fs), ("ext4", ext4), ("btrfs", btrfs)];
        for (name, make) in peers {
            match make(folder, sizes) {
                Ok(peer) => all.push(peer),
                Err(error) => report.note(format!("{name} is not in this run: {error:#}")),
            }
        }
        Ok(all)
    }

    /// A volume of Cairn's on a new directory.
    pub(crate) fn of_cairn(cairn: &Cairn, volume: &str, folder: &Path) -> Result<Self> {
        fs::create_dir(folder)?;
        cairn.cli(&["mount", volume, &folder.display().to_string()])?;
        Ok(Self { name: "cairn", folder: folder.to_owned(), device: None, lazily: true })
    }

    /// Drops all caches: the kernel's, and the memory of Cairn's server, which no file of the
    /// kernel reaches.
    pub(crate) fn forget(&self, cairn: Option<&mut Cairn>) -> Result<()> {
        if let Some(cairn) = cairn.filter(|_| self.name == "cairn") {
            let mount = self.folder.display().to_string();
            cairn.cli(&["unmount", &mount])?;
            cairn.restart()?;
            cairn.cli(&["mount", VOLUME, &mount])?;
        }
        drop_caches()
    }
}

impl Drop for Contender {
    fn drop(&mut self) {
        let mut command = Command::new("umount");
        if self.lazily {
            command.arg("--lazy");
        }
        let _ = run(command.arg(&self.folder));
        if let Some(device) = self.device.as_ref().filter(|device| device.starts_with("/dev/loop")) {
            let _ = run(Command::new("losetup").args(["--detach", device]));
        }
    }
}

/// A name for `--rows`: a word of the work is enough.
const SMALL_FILES: &str = "small files: create, stat, read and delete of them";
const LARGE_FILE: &str = "a large file: write with fsync, read of it, cold";
const DUMPS: &str = "BSD dump of the small files and restore of that dump";
const CHANGES: &str = "finding what changed";

/// Many small files, a large one, and dumps of the small ones.
pub(crate) fn files(plan: &Plan, report: &mut Report) -> Result<()> {
    let sizes = if plan.quick {
        Sizes { files: 400, large: 32 << 20, device: 512 << 20 }
    } else {
        Sizes { files: 20_000, large: 1 << 30, device: 8 << 30 }
    };
    plan.ask_room(10)?;
    let folder = plan.folder.join("files");
    fs::create_dir_all(&folder)?;
    let mut cairn = match plan.only_peers {
        true => None,
        false => Some(Cairn::start(plan, "files-cairn", "off", MEMORY_DEFAULT_MIB)?),
    };
    let mut contenders = Contender::all(cairn.as_ref(), &folder, &sizes, report)?;
    let rounds = plan.rounds().min(2);
    let mut seen: Vec<Seen> = contenders.iter().map(|_| Seen::default()).collect();
    for round in 0..rounds {
        for (contender, seen) in contenders.iter().zip(&mut seen) {
            seen.turn(plan, &contender.folder.join(format!("round{round}")), &sizes, &mut || {
                contender.forget(cairn.as_mut())
            })
            .with_context(|| format!("with {}", contender.name))?;
            settle()?;
        }
    }
    rows(report, &contenders, seen, cairn.is_some());
    if plan.wants(DUMPS) {
        dumps(plan, report, &sizes, &folder, &contenders, cairn.as_ref())?;
    }
    if let (Some(cairn), Some(contender), true) = (&cairn, contenders.first(), plan.wants(CHANGES)) {
        finding_changes(plan, report, cairn, &contender.folder)?;
    }
    report.note(format!(
        "Small files: {} of {SMALL_BYTES} bytes, {PER_DIRECTORY} a directory, one thread. Create and delete end with a sync (`sync -f`, and fsync of the directory, as the kernel tells FUSE nothing of the first); before stat and read all caches of the kernel are dropped, and Cairn's server is started anew.",
        sizes.files
    ));
    // Before its server ends.
    contenders.retain(|contender| contender.name != "cairn");
    Ok(())
}

#[derive(Default)]
struct Seen {
    create: Vec<f64>,
    stat: Vec<f64>,
    read: Vec<f64>,
    delete: Vec<f64>,
    write_large: Vec<f64>,
    read_large: Vec<f64>,
}

impl Seen {
    /// One turn of all selected work.
    fn turn(
        &mut self,
        plan: &Plan,
        folder: &Path,
        sizes: &Sizes,
        forget: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        if plan.wants(SMALL_FILES) {
            self.small_files(folder, sizes, forget)?;
        }
        if plan.wants(LARGE_FILE) {
            self.large_file(folder, sizes, forget)?;
        }
        Ok(())
    }

    fn small_files(
        &mut self,
        folder: &Path,
        sizes: &Sizes,
        forget: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        fs::create_dir(folder)?;
        let count = sizes.files as f64;
        let rate = |time: Duration| count / time.as_secs_f64();
        self.create.push(rate(clocked(|| create(folder, sizes.files))?));
        forget()?;
        let mut stat = |path: &Path| -> Result<()> {
            fs::metadata(path)?;
            Ok(())
        };
        self.stat.push(rate(clocked(|| each_small(folder, sizes.files, &mut stat))?));
        forget()?;
        let mut buffer = Vec::new();
        let mut read = |path: &Path| -> Result<()> {
            buffer.clear();
            File::open(path)?.read_to_end(&mut buffer)?;
            if buffer.len() != SMALL_BYTES {
                bail!("{} has {} bytes", path.display(), buffer.len());
            }
            Ok(())
        };
        self.read.push(rate(clocked(|| each_small(folder, sizes.files, &mut read))?));
        self.delete.push(rate(clocked(|| {
            fs::remove_dir_all(folder)?;
            sync(folder.parent().context("a folder")?)
        })?));
        Ok(())
    }

    fn large_file(
        &mut self,
        folder: &Path,
        sizes: &Sizes,
        forget: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        fs::create_dir(folder)?;
        let mib = sizes.large as f64 / f64::from(1 << 20);
        let large = folder.join("large");
        self.write_large.push(mib / clocked(|| write_large(&large, sizes.large))?.as_secs_f64());
        forget()?;
        self.read_large.push(mib / clocked(|| read_large(&large, sizes.large))?.as_secs_f64());
        fs::remove_file(&large)?;
        sync(folder)
    }
}

pub(crate) fn clocked(work: impl FnOnce() -> Result<()>) -> Result<Duration> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed())
}

/// Puts everything on the disk. The kernel does not pass `sync -f`, which writes back the programs'
/// writes, to FUSE: fsync does the rest there.
pub(crate) fn sync(folder: &Path) -> Result<()> {
    run(Command::new("sync").arg("-f").arg(folder))?;
    Ok(File::open(folder)?.sync_all()?)
}

/// Runs a program that writes a file, or a folder with all in it, until that is on the disk.
fn timed_to_disk(command: &mut Command, written: &Path) -> Result<Duration> {
    clocked(|| {
        run(command)?;
        if written.is_dir() { sync(written) } else { Ok(File::open(written)?.sync_all()?) }
    })
}

pub(crate) fn drop_caches() -> Result<()> {
    run(&mut Command::new("sync"))?;
    Ok(fs::write("/proc/sys/vm/drop_caches", "3")?)
}

fn small(folder: &Path, number: usize) -> PathBuf {
    folder.join(format!("d{}", number / PER_DIRECTORY)).join(format!("f{number}"))
}

fn create(folder: &Path, files: usize) -> Result<()> {
    let bytes: Vec<u8> =
        (0..SMALL_BYTES as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    for number in 0..files {
        if number.is_multiple_of(PER_DIRECTORY) {
            fs::create_dir(folder.join(format!("d{}", number / PER_DIRECTORY)))?;
        }
        File::create(small(folder, number))?.write_all(&bytes)?;
    }
    sync(folder)
}

fn each_small(folder: &Path, files: usize, act: &mut dyn FnMut(&Path) -> Result<()>) -> Result<()> {
    (0..files).try_for_each(|number| act(&small(folder, number)))
}

fn write_large(path: &Path, bytes: u64) -> Result<()> {
    let mut file = File::create(path)?;
    let mut piece: Vec<u8> = (0..PIECE as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 9) as u8).collect();
    for number in 0..bytes / PIECE as u64 {
        piece[..8].copy_from_slice(&number.to_le_bytes());
        file.write_all(&piece)?;
    }
    Ok(file.sync_all()?)
}

fn read_large(path: &Path, bytes: u64) -> Result<()> {
    let mut file = File::open(path)?;
    let mut piece = vec![0; PIECE];
    for number in 0..bytes / PIECE as u64 {
        file.read_exact(&mut piece)?;
        if piece[..8] != number.to_le_bytes() {
            bail!("{} is not what was written", path.display());
        }
    }
    Ok(())
}

fn rows(report: &mut Report, contenders: &[Contender], seen: Vec<Seen>, with_cairn: bool) {
    type Pick = fn(&Seen) -> &Vec<f64>;
    let works: [(&str, &'static str, Pick); 6] = [
        ("create small files", "files/s", |seen| &seen.create),
        ("stat of them, cold", "files/s", |seen| &seen.stat),
        ("read of them, cold", "files/s", |seen| &seen.read),
        ("delete of them", "files/s", |seen| &seen.delete),
        ("write of a large file, with fsync", "MiB/s", |seen| &seen.write_large),
        ("read of it, cold", "MiB/s", |seen| &seen.read_large),
    ];
    for (work, unit, pick) in works {
        if seen.iter().all(|seen| pick(seen).is_empty()) {
            continue;
        }
        let mut medians: Vec<(&'static str, f64)> =
            contenders.iter().zip(&seen).map(|(one, seen)| (one.name, median(pick(seen).clone()))).collect();
        let cairn = with_cairn.then(|| medians.remove(0).1);
        for peer in medians {
            let asked = match (peer.0, unit) {
                ("fuse2fs", "files/s") => Target::AtLeast(1.0),
                ("btrfs", "MiB/s") => Target::AtLeast(0.7),
                _ => Target::None,
            };
            report.against(work, unit, cairn, peer, asked);
        }
    }
}

/// Dumps of the small files to a file, and back: level 0.
fn dumps(
    plan: &Plan,
    report: &mut Report,
    sizes: &Sizes,
    folder: &Path,
    contenders: &[Contender],
    cairn: Option<&Cairn>,
) -> Result<()> {
    let find = |name: &str| contenders.iter().find(|contender| contender.name == name);
    let out = folder.join("out.dump");
    // One for each, and all stay to the end: ext4 skips inodes that were removed in the last
    // minutes, so a restore after a removal is slower.
    let target = |who: &str| folder.join(format!("restored-{who}"));
    let (by_cairn, by_restore, by_tar) = (target("cairn"), target("restore"), target("tar"));
    let seconds = |time: Duration| time.as_secs_f64();
    let ours = match (cairn, find("cairn")) {
        (Some(cairn), Some(contender)) => {
            let tree = contender.folder.join("tree");
            fs::create_dir(&tree)?;
            create(&tree, sizes.files)?;
            drop_caches()?;
            let path = out.display().to_string();
            let dump = timed(&mut cairn.command(&["dump", "-0", "-f", &path, "vol0", "--overwrite"]))?;
            fs::create_dir(&by_cairn)?;
            drop_caches()?;
            let mut restore = Command::new(&plan.cairn);
            restore.args(["restore", "-rf"]).arg(&out).arg("--to").arg(&by_cairn);
            let restore = timed_to_disk(&mut restore, &by_cairn)?;
            fs::remove_file(&out)?;
            Some((seconds(dump), seconds(restore)))
        }
        _ => None,
    };
    let Some(ext4) = find("ext4") else { return Ok(()) };
    let tree = ext4.folder.join("tree");
    fs::create_dir(&tree)?;
    create(&tree, sizes.files)?;
    drop_caches()?;
    if let Some(device) = &ext4.device {
        let mut dump = Command::new("dump");
        match timed_to_disk(dump.args(["-0", "-q", "-f"]).arg(&out).arg(device), &out) {
            Ok(dump) => {
                fs::create_dir(&by_restore)?;
                drop_caches()?;
                let mut restore = Command::new("restore");
                restore.args(["-rf"]).arg(&out).current_dir(&by_restore);
                let restore = timed_to_disk(&mut restore, &by_restore)?;
                let name = "Linux dump and restore, ext4";
                let limit = Target::AtMost(1.0);
                report.against(
                    "BSD dump of the small files, level 0",
                    "s",
                    ours.map(|o| o.0),
                    (name, seconds(dump)),
                    limit,
                );
                report.against(
                    "restore of that dump, until it is on the disk",
                    "s",
                    ours.map(|o| o.1),
                    (name, seconds(restore)),
                    limit,
                );
                fs::remove_file(&out)?;
            }
            Err(error) => report.note(format!("Linux dump is not in this run: {error:#}")),
        }
    }
    drop_caches()?;
    let mut tar = Command::new("tar");
    let tar = timed_to_disk(tar.arg("-C").arg(&tree).arg("-cf").arg(&out).arg("."), &out)?;
    fs::create_dir(&by_tar)?;
    drop_caches()?;
    let mut untar = Command::new("tar");
    let untar = timed_to_disk(untar.arg("-C").arg(&by_tar).arg("-xf").arg(&out), &by_tar)?;
    let limit = Target::AtMost(1.0);
    report.against(
        "BSD dump of the small files, level 0",
        "s",
        ours.map(|o| o.0),
        ("tar, ext4", seconds(tar)),
        limit,
    );
    report.against(
        "restore of that dump, until it is on the disk",
        "s",
        ours.map(|o| o.1),
        ("tar, ext4", seconds(untar)),
        limit,
    );
    for target in [&by_cairn, &by_restore, &by_tar].into_iter().filter(|target| target.exists()) {
        fs::remove_dir_all(target)?;
    }
    fs::remove_dir_all(&tree)?;
    Ok(fs::remove_file(&out)?)
}

/// The time in which a dump of level 1 finds the changes after 1 % of the files changed: by the
/// maps, and by reading all inodes. Only the base level is dumped.
fn finding_changes(plan: &Plan, report: &mut Report, cairn: &Cairn, mount: &Path) -> Result<()> {
    let counts: &[usize] = if plan.quick { &[400, 2_000] } else { &[10_000, 100_000, 1_000_000] };
    let tree = mount.join("changing");
    fs::create_dir(&tree)?;
    let mut made = 0;
    for count in counts.iter().copied() {
        for number in made..count {
            if number.is_multiple_of(PER_DIRECTORY) {
                fs::create_dir(tree.join(format!("d{}", number / PER_DIRECTORY)))?;
            }
            File::create(small(&tree, number))?;
        }
        made = count;
        let (base, now) = (format!("vol0@base{count}"), format!("vol0@now{count}"));
        cairn.cli(&["snapshot", "create", &base])?;
        cairn.dump_through_pipe(&["dump", "-0", "-f", "-", &base])?;
        for number in (0..count).step_by(100) {
            fs::write(small(&tree, number), b"changed")?;
        }
        cairn.cli(&["snapshot", "create", &now])?;
        let find = || -> Result<f64> {
            drop_caches()?;
            Ok(timed(&mut cairn.command(&["dump", "-n", "-1", &now]))?.as_secs_f64() * 1e3)
        };
        let by_maps = median((0..plan.rounds()).map(|_| find()).collect::<Result<_>>()?);
        cairn.cli(&["snapshot", "delete", &base, "--yes"])?;
        let by_inodes = find()?;
        let work = format!("finding what changed: 1 % of {count} files");
        report.against(work, "ms", Some(by_maps), ("cairn, all inodes", by_inodes), Target::None);
    }
    Ok(())
}

pub(crate) fn mount_cairn(cairn: &Cairn, folder: &Path, sizes: &Sizes) -> Result<Contender> {
    cairn.cli(&["volume", "create", VOLUME, "--size", &sizes.device.to_string()])?;
    Contender::of_cairn(cairn, VOLUME, &folder.join("cairn"))
}

/// A file of the size of all, and a directory to mount on.
fn image(folder: &Path, name: &str, sizes: &Sizes) -> Result<(PathBuf, PathBuf)> {
    let (image, mount) = (folder.join(format!("{name}.img")), folder.join(name));
    File::create(&image)?.set_len(sizes.device)?;
    fs::create_dir(&mount)?;
    Ok((image, mount))
}

fn fuse2fs(folder: &Path, sizes: &Sizes) -> Result<Contender> {
    let (image, mount) = image(folder, "fuse2fs", sizes)?;
    run(Command::new("mke2fs").args(["-q", "-F", "-t", "ext4"]).arg(&image))?;
    run(Command::new("fuse2fs").arg(&image).arg(&mount))?;
    Ok(Contender { name: "fuse2fs", folder: mount, device: None, lazily: false })
}

fn on_loop(name: &'static str, image: &Path, mount: PathBuf) -> Result<Contender> {
    let device = run(Command::new("losetup").args(["--direct-io=on", "--find", "--show"]).arg(image))?;
    let device = device.trim().to_owned();
    run(Command::new("mount").arg(&device).arg(&mount))?;
    Ok(Contender { name, folder: mount, device: Some(device), lazily: false })
}

pub(crate) fn ext4(folder: &Path, sizes: &Sizes) -> Result<Contender> {
    let (image, mount) = image(folder, "ext4", sizes)?;
    // As many inodes as files, where the default would be too few.
    let inodes = (sizes.files + sizes.files / 10).max(sizes.device as usize >> 14).to_string();
    run(Command::new("mke2fs").args(["-q", "-F", "-t", "ext4", "-N", &inodes]).arg(&image))?;
    on_loop("ext4", &image, mount)
}

pub(crate) fn btrfs(folder: &Path, sizes: &Sizes) -> Result<Contender> {
    let (image, mount) = image(folder, "btrfs", sizes)?;
    run(Command::new("mkfs.btrfs").arg("-q").arg(&image))?;
    on_loop("btrfs", &image, mount)
}
