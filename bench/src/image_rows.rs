//! Image dump and restore next to programs that read and write the same device: fio, dd, qemu-img,
//! partclone, BSD dump, rsync and btrfs send.
//!
//! One data set for all: an ext4 file system with files of mixed sizes, which is a LUN for Cairn
//! and a loop device for BSD dump and partclone. A measurement that needs root or a missing kernel
//! module is left out, and the table says so.

mod files;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use cairn_base::Rng;

use crate::Plan;
use crate::cairn::{Cairn, MEMORY_DEFAULT_MIB};
use crate::patch::Known;
use crate::process::{run, settle};
use crate::report::{Report, Target, median};

const GIB: f64 = (1u64 << 30) as f64;
/// Sizes of files, one after the other, until the file system has enough of them.
const FILES: &[usize] = &[4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];
/// Files in a directory.
const FILES_EACH: usize = 200;
/// The part of the file system that files fill.
const FILLED: f64 = 0.7;
/// One in this many blocks, or files, changes before the incremental.
const CHANGED_ONE_IN: u64 = 100;
/// Of the incremental: small files, each a block of its own.
const SMALL_FILE: usize = 3000;
/// Of the LUN whose maps are compared.
const SPARSE_BYTES: u64 = 100 << 30;
/// A shell's exit code for a missing program.
const NOT_FOUND: i32 = 127;

/// The cost of a program.
#[derive(Clone, Copy)]
struct Took {
    wall: f64,
    cpu: f64,
}

/// Runs a line of bash to its end.
fn took(line: &str) -> Result<Took> {
    let script =
        format!("set -eo pipefail; TIMEFORMAT='%R %U %S'; time {{ {line}; }} >/dev/null 2>/dev/null");
    let output = Command::new("bash").args(["-c", &script]).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        if output.status.code() == Some(NOT_FOUND) {
            bail!("`{line}` needs a program that is not installed here");
        }
        bail!("`{line}` ended with {}", output.status);
    }
    let fields: Vec<f64> = said.split_whitespace().filter_map(|field| field.parse().ok()).collect();
    let [.., wall, user, system] = fields[..] else { bail!("`{line}` was not timed: {said}") };
    Ok(Took { wall, cpu: user + system })
}

/// Runs work of the server and counts its processor time as well.
fn served(cairn: &Cairn, arguments: &[&str]) -> Result<Took> {
    let (start, before) = (Instant::now(), cairn.server()?.cpu()?);
    cairn.cli(arguments)?;
    let cpu = cairn.server()?.cpu()? - before;
    Ok(Took { wall: start.elapsed().as_secs_f64(), cpu: cpu.as_secs_f64() })
}

/// Bytes a second of fio over a file, past the page cache.
fn fio(path: &Path, pattern: &str, offset: u64, bytes: u64) -> Result<f64> {
    fio_of(&[(path, pattern, offset)], bytes)
}

/// The same over several files at once, from `offset` of each on: of one of them, until the last
/// one is through.
fn fio_of(jobs: &[(&Path, &str, u64)], bytes: u64) -> Result<f64> {
    let mut fio = Command::new("fio");
    fio.args(["--direct=1", "--bs=1M", "--iodepth=8", "--ioengine=io_uring", "--output-format=json"]);
    fio.args(["--refill_buffers", "--end_fsync=1", "--allow_file_create=1"]).arg(format!("--size={bytes}"));
    for (path, pattern, offset) in jobs {
        fio.arg(format!("--name={pattern}")).arg(format!("--rw={pattern}"));
        fio.arg(format!("--filename={}", path.display())).arg(format!("--offset={offset}"));
    }
    let said = run(&mut fio)?;
    let object = said.find('{').map_or("", |start| &said[start..]);
    let seen: serde_json::Value = serde_json::from_str(object).context("fio's report")?;
    let mut rates = Vec::new();
    for (job, (_, pattern, _)) in seen["jobs"].as_array().context("fio's jobs")?.iter().zip(jobs) {
        let side = &job[if *pattern == "read" { "read" } else { "write" }];
        // With the flush at the end, which is not part of the rate that fio reports.
        let ms = job["job_runtime"].as_f64().context("fio's runtime")?;
        rates.push(side["io_bytes"].as_f64().context("fio's bytes")? / (ms / 1e3));
    }
    Ok(rates.into_iter().fold(f64::INFINITY, f64::min))
}

/// An ext4 file system in a file, attached to a loop device while this lives.
struct Ext4 {
    image: PathBuf,
    mount: PathBuf,
    device: String,
}

impl Ext4 {
    /// With room for `inodes` files; as many as mkfs thinks right when that is 0.
    fn new(folder: &Path, name: &str, bytes: u64, inodes: u64) -> Result<Self> {
        let (image, mount) = (folder.join(format!("{name}.img")), folder.join(name));
        std::fs::create_dir(&mount)?;
        std::fs::File::create(&image)?.set_len(bytes)?;
        let mut mkfs = Command::new("mkfs.ext4");
        mkfs.args(["-q", "-F"]);
        if inodes > 0 {
            mkfs.args(["-N", &inodes.to_string()]);
        }
        run(mkfs.arg(&image))?;
        let device = run(Command::new("losetup").args(["--find", "--show"]).arg(&image))?;
        Ok(Self { image, mount, device: device.trim().to_owned() })
    }

    fn mounted<T>(&self, work: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
        // Reading must not change the compared data.
        run(Command::new("mount").args(["-o", "noatime"]).arg(&self.device).arg(&self.mount))?;
        let worked = work(&self.mount);
        run(Command::new("umount").arg(&self.mount))?;
        worked
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        // Mounted only after a failure in between.
        let _ = run(Command::new("umount").arg(&self.mount));
        let _ = run(Command::new("losetup").arg("--detach").arg(&self.device));
        let _ = std::fs::remove_file(&self.image);
    }
}

/// A directory that may have a mount; it is unmounted when this is dropped, after any failure.
struct Mounted<'a>(&'a str);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = run(Command::new("umount").arg(self.0));
    }
}

/// Files of these sizes by turns, until that many bytes are in them.
fn fill(mount: &Path, bytes: u64, sizes: &[usize]) -> Result<()> {
    let (mut rng, mut left, mut number) = (Rng::new(1), bytes as i64, 0);
    while left > 0 {
        let folder = mount.join(format!("d{}", number / FILES_EACH));
        if number.is_multiple_of(FILES_EACH) {
            std::fs::create_dir(&folder)?;
        }
        let size = sizes[number % sizes.len()];
        std::fs::write(folder.join(format!("f{number}")), noise(&mut rng, size))?;
        left -= size as i64;
        number += 1;
    }
    Ok(())
}

fn noise(rng: &mut Rng, bytes: usize) -> Vec<u8> {
    (0..bytes / 8).flat_map(|_| rng.next().to_le_bytes()).collect()
}

/// Rewrites one in a hundred of the files.
fn change(mount: &Path) -> Result<()> {
    let (mut rng, mut number) = (Rng::new(2), 0u64);
    for folder in std::fs::read_dir(mount)? {
        let folder = folder?.path();
        if !folder.is_dir() || folder.ends_with("lost+found") {
            continue;
        }
        for file in std::fs::read_dir(folder)? {
            let file = file?.path();
            number += 1;
            if number.is_multiple_of(CHANGED_ONE_IN) {
                let size = std::fs::metadata(&file)?.len() as usize;
                std::fs::write(&file, noise(&mut rng, size))?;
            }
        }
    }
    Ok(())
}

/// The figures of one contender over the rounds.
#[derive(Default)]
struct Figures {
    rates: Vec<f64>,
    cpu_per_gib: Vec<f64>,
}

impl Figures {
    fn add(&mut self, bytes: f64, took: Took) {
        self.rates.push(bytes / took.wall / 1e6);
        self.cpu_per_gib.push(took.cpu / (bytes / GIB));
    }

    fn rate(&self) -> f64 {
        median(self.rates.clone())
    }

    fn cpu(&self) -> f64 {
        median(self.cpu_per_gib.clone())
    }
}

/// Rows that can be taken without the others.
type Part = fn(&Plan, &mut Report) -> Result<()>;

/// A contender: its name, its command, and the bytes that it reads.
type Peer = (&'static str, String, f64);

/// Dump and restore of everything, and after one in a hundred files has changed.
pub(crate) fn image(plan: &Plan, report: &mut Report) -> Result<()> {
    if plan.only_peers {
        report.note("This table is about ratios within one run.");
        return Ok(());
    }
    plan.ask_room(30)?;
    let parts: [(&str, Part); 4] = [
        ("everything", everything),
        ("files", files::files),
        ("incremental", incremental),
        ("sparse", sparse),
    ];
    for (name, part) in parts {
        if plan.wants(name) {
            part(plan, report)?;
        }
    }
    Ok(())
}

/// A file system with files of those sizes on a loop device, and the same on a LUN of a server of
/// its own; none without root.
fn on_both(
    plan: &Plan,
    report: &mut Report,
    (bytes, inodes): (u64, u64),
    (files_bytes, sizes): (u64, &[usize]),
) -> Result<Option<(Ext4, Cairn)>> {
    let name = format!("ext4-{inodes}");
    let ext4 = match Ext4::new(&plan.folder, &name, bytes, inodes) {
        Ok(ext4) => ext4,
        Err(error) => {
            report.note(format!("No loop device for an ext4 file system ({error}): this needs root."));
            return Ok(None);
        }
    };
    ext4.mounted(|mount| fill(mount, files_bytes, sizes))?;
    let cairn = Cairn::start(plan, &format!("{name}-cairn"), "off", MEMORY_DEFAULT_MIB)?;
    cairn.make_lun(bytes * 3, bytes)?;
    run(Command::new("nbdcopy").arg("--flush").arg(&ext4.image).arg(cairn.lun()?))?;
    settle()?;
    Ok(Some((ext4, cairn)))
}

/// Level 0 to nowhere, next to programs that read the same device.
fn everything(plan: &Plan, report: &mut Report) -> Result<()> {
    let bytes = plan.export_bytes();
    let files = ((bytes as f64 * FILLED) as u64, FILES);
    let Some((ext4, cairn)) = on_both(plan, report, (bytes, 0), files)? else { return Ok(()) };
    let planned = cairn.json(&["image", "dump", "vol0", "-0", "-n"])?;
    let data = planned["data_bytes"].as_f64().context("the plan says its bytes")?;
    let volume = cairn.folder().join("volumes/vol0/volume.img");
    let at = |name: &str| plan.folder.join(name).display().to_string();
    let raw = at("copy.raw");
    let data_bytes = data as u64 & !((1 << 20) - 1);
    let image = ext4.image.display();
    let peers: Vec<Peer> = vec![
        (
            "dd of the device, direct",
            format!("dd if={image} of=/dev/null bs=1M iflag=direct"),
            plan.export_bytes() as f64,
        ),
        (
            "qemu-img convert to a file",
            format!("qemu-img convert -f raw -O raw -T none -t none {image} {raw}; rm {raw}"),
            data,
        ),
        (
            "partclone.ext4 to /dev/null",
            format!("partclone.ext4 -c -s {} -o /dev/null -L {}", ext4.device, at("partclone.log")),
            data,
        ),
        ("BSD dump -0 to /dev/null", format!("dump -0 -f /dev/null {}", ext4.device), data),
    ];
    let mut of_peers: Vec<Figures> = peers.iter().map(|_| Figures::default()).collect();
    let mut missing: Vec<String> = Vec::new();
    let mut reads = Vec::new();
    let streams = [1usize, 2, 4];
    let mut dumps: Vec<Figures> = streams.iter().map(|_| Figures::default()).collect();
    let mut packed = Figures::default();
    for _ in 0..plan.rounds() {
        reads.push(fio(&volume, "read", 64 << 20, data_bytes)? / 1e6);
        for (streams, figures) in streams.iter().zip(&mut dumps) {
            let mut arguments = vec!["image", "dump", "vol0", "-0", "--to"];
            arguments.extend(vec!["/dev/null"; *streams]);
            figures.add(data, served(&cairn, &arguments)?);
        }
        packed
            .add(data, served(&cairn, &["image", "dump", "vol0", "-0", "--compress", "--to", "/dev/null"])?);
        settle()?;
        for ((name, line, bytes), figures) in peers.iter().zip(&mut of_peers) {
            match took(line) {
                Ok(took) => figures.add(*bytes, took),
                Err(error) => missing.push(format!("{name}: {error}")),
            }
            settle()?;
        }
    }
    let read = median(reads);
    for (streams, figures) in streams.iter().zip(&dumps) {
        let work = format!("dump -0 to /dev/null, {streams} stream(s)");
        let fio = ("fio, direct reads of the volume's file", read);
        report.against(&work, "MB/s", Some(figures.rate()), fio, Target::AtLeast(0.9));
    }
    report.alone("dump -0 to /dev/null, packed", "MB/s", packed.rate(), Target::None);
    for ((name, ..), figures) in peers.iter().zip(&of_peers).filter(|(_, figures)| !figures.rates.is_empty())
    {
        report.against(
            "dump -0 to /dev/null, 1 stream",
            "MB/s",
            Some(dumps[0].rate()),
            (name, figures.rate()),
            Target::None,
        );
        let asked = if name.starts_with("BSD") { Target::AtMost(0.2) } else { Target::None };
        report.against("the same, processor", "s/GiB", Some(dumps[0].cpu()), (name, figures.cpu()), asked);
    }
    missing.dedup();
    missing.iter().for_each(|why| report.note(format!("Left out: {why}.")));
    Ok(())
}

/// One in a hundred of many files is rewritten: level 1 next to BSD dump and restore -1, rsync and
/// btrfs send.
fn incremental(plan: &Plan, report: &mut Report) -> Result<()> {
    let files: u64 = if plan.quick { 10_000 } else { 1_000_000 };
    // A block for each, its inode, and the needs of mkfs and directories.
    let bytes = (files * 5400).next_multiple_of(1 << 30);
    let contents = (files * SMALL_FILE as u64, &[SMALL_FILE][..]);
    let Some((ext4, cairn)) = on_both(plan, report, (bytes, files * 21 / 20), contents)? else {
        return Ok(());
    };
    let mut known = Known::of(&ext4.image)?;
    let at = |name: &str| plan.folder.join(name).display().to_string();
    let (btrfs, mirror, dates) = (at("btrfs"), at("rsync"), at("dumpdates"));
    let (image, mount, device) = (ext4.image.display(), ext4.mount.display(), &ext4.device);
    took(&format!("dump -0 -u -D {dates} -f /dev/null {device}"))?;
    let with_rsync =
        ext4.mounted(|mount| took(&format!("mkdir {mirror}; rsync -a {}/ {mirror}/", mount.display())));
    let _mounted = Mounted(&btrfs);
    let with_btrfs = took(&format!(
        "truncate -s {} {btrfs}.img; mkfs.btrfs -q {btrfs}.img; mkdir {btrfs}; mount -o loop {btrfs}.img {btrfs}; \
         btrfs subvolume create {btrfs}/now; cp {image} {btrfs}/now/disk; sync; btrfs subvolume snapshot -r {btrfs}/now {btrfs}/before",
        bytes * 3
    ));
    cairn.dump_through_pipe(&["image", "dump", "vol0", "-0", "--to", "-"])?;
    ext4.mounted(change)?;
    let written = known.write_changes(&ext4.image, &cairn.folder().join("nbd.sock"), "vol0/db")?;
    report.note(format!(
        "{files} files of {SMALL_FILE} bytes. What changed in the file system went to the LUN block by block: {} MB.",
        written / 1_000_000
    ));
    settle()?;
    let start = Instant::now();
    let dumped = cairn.json(&["image", "dump", "vol0", "-1", "--to", &at("level1")])?;
    let seconds = start.elapsed().as_secs_f64();
    let mb = |field: &str| dumped[field].as_f64().map(|bytes| bytes / 1e6).context("the dump says its bytes");
    let live = ("changed live blocks", mb("data_bytes")?);
    report.against(
        format!("bytes of level 1 after 1 % of {files} files"),
        "MB",
        Some(mb("bytes")?),
        live,
        Target::AtMost(1.02),
    );
    settle()?;
    let mut rows: Vec<(&'static str, Result<Took>, Target)> = vec![(
        "BSD dump -1 and restore of it",
        took(&format!(
            "dump -1 -D {dates} -f {0}.bsd {device}; mkdir -p {0}.out; cd {0}.out; restore -x -y -a -f {0}.bsd .",
            at("one")
        )),
        Target::AtMost(0.1),
    )];
    run(Command::new("mount").args(["-o", "ro"]).arg(device).arg(&ext4.mount))?;
    run(Command::new("sh").args(["-c", "echo 3 > /proc/sys/vm/drop_caches"])).ok();
    let by_rsync = with_rsync.and_then(|_| took(&format!("rsync -a {mount}/ {mirror}/")));
    rows.push(("rsync -a of the files", by_rsync, Target::AtMost(0.1)));
    run(Command::new("umount").arg(&ext4.mount))?;
    // The same blocks change in the file: those that differ are written over.
    let write = format!(
        "rsync --inplace --no-whole-file {image} {btrfs}/now/disk; sync; btrfs subvolume snapshot -r {btrfs}/now {btrfs}/after"
    );
    let send = format!("btrfs send -p {btrfs}/before {btrfs}/after > {}; sync {0}", at("send"));
    let by_btrfs = with_btrfs.and_then(|_| took(&write)).and_then(|_| took(&send));
    rows.push(("btrfs send -p", by_btrfs, Target::AtMost(1.0)));
    for (name, outcome, asked) in rows {
        match outcome {
            Ok(took) => report.against(
                format!("time of level 1 after 1 % of {files} files, durable in a file"),
                "s",
                Some(seconds),
                (name, took.wall),
                asked,
            ),
            Err(error) => report.note(format!("Left out: {name}: {error}.")),
        }
    }
    Ok(())
}

/// Finding the changes in a large sparse LUN.
fn sparse(plan: &Plan, report: &mut Report) -> Result<()> {
    let cairn = Cairn::start(plan, "image-sparse", "off", MEMORY_DEFAULT_MIB)?;
    cairn.cli(&["volume", "create", "large", "--size", &(2 * SPARSE_BYTES).to_string()])?;
    cairn.cli(&["lun", "create", "large/db", "--size", &SPARSE_BYTES.to_string()])?;
    let uri = cairn.server()?.uri("large/db");
    let write = |seed: u64| {
        let mut fio = Command::new("fio");
        fio.args(["--name=load", "--ioengine=nbd", "--thread", "--norandommap", "--rw=randwrite", "--bs=4k"]);
        fio.args(["--iodepth=32", "--io_size=64M", "--end_fsync=1", "--output=/dev/null"]);
        fio.arg(format!("--uri={uri}"))
            .arg(format!("--size={SPARSE_BYTES}"))
            .arg(format!("--randseed={seed}"));
        run(&mut fio).map(drop)
    };
    write(1)?;
    cairn.cli(&["snapshot", "create", "large@before"])?;
    write(2)?;
    cairn.cli(&["snapshot", "create", "large@after"])?;
    let mut seconds: Vec<f64> = Vec::new();
    for _ in 0..3 {
        let start = Instant::now();
        cairn.cli(&["image", "dump", "large@after", "--base", "before", "-n"])?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    report.alone(
        "finding what changed in a sparse LUN of 100 GiB (16,000 blocks at random), with the start of the command",
        "ms",
        median(seconds) * 1e3,
        Target::Limit(100.0),
    );
    Ok(())
}

/// From the command to the first read that is served, with the source dead.
pub(crate) fn failover(plan: &Plan, report: &mut Report) -> Result<()> {
    if plan.only_peers {
        report.note("No peer takes part in this table.");
        return Ok(());
    }
    let bytes = plan.export_bytes();
    let (mut decided, mut served) = (Vec::new(), Vec::new());
    for round in 0..plan.rounds() {
        let mut source =
            Cairn::start(plan, &format!("failover-source{round}"), "127.0.0.1:0", MEMORY_DEFAULT_MIB)?;
        source.make_lun(bytes * 3, bytes)?;
        let load = crate::fio::Load::fill(bytes);
        load.run(&crate::fio::Target {
            server: source.server()?,
            uri: source.lun()?,
            scratch: &plan.folder,
        })?;
        let destination =
            Cairn::start(plan, &format!("failover-destination{round}"), "127.0.0.1:0", MEMORY_DEFAULT_MIB)?;
        let token = source.json(&["peer", "invite"])?;
        let token = token["token"].as_str().context("peer invite --json gave no token")?.to_owned();
        destination.cli(&["mirror", "create", "vol0", &token, "--every", "1d"])?;
        source.kill()?;
        settle()?;
        let start = Instant::now();
        destination.cli(&["mirror", "failover", "vol0", "--yes"])?;
        decided.push(start.elapsed().as_secs_f64() * 1e3);
        // A client that was not connected before, reads and writes.
        run(Command::new("qemu-io").args(["-f", "raw", "-c", "read 0 4k", &destination.lun()?]))?;
        served.push(start.elapsed().as_secs_f64() * 1e3);
        run(Command::new("qemu-io").args([
            "-f",
            "raw",
            "-c",
            "write 0 4k",
            "-c",
            "flush",
            &destination.lun()?,
        ]))?;
        drop(destination);
        for side in ["source", "destination"] {
            std::fs::remove_dir_all(plan.folder.join(format!("failover-{side}{round}")))?;
        }
    }
    let limit = Duration::from_secs(1).as_millis() as f64;
    report.alone("failover: the command", "ms", median(decided), Target::None);
    report.alone(
        "failover: from the command to the first read, with the start of the client",
        "ms",
        median(served),
        Target::Limit(limit),
    );
    Ok(())
}
