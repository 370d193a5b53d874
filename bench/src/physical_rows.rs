//! Logical and physical: tables 2 to 5 of the OSDI 1999 paper, and table 2 with figure 4 of the
//! FAST 2002 paper, on one volume of files.
//!
//! The volume is dumped as files (`cairn dump`, the paper's logical dump) and as blocks (`cairn
//! image dump`, its physical dump), with one, two and four of each at the same time. Both are
//! restored: files into a mount of a new volume, blocks into a new volume. The paper's four pieces
//! are four directories. Then two mirrors follow the same changes: one by maps, one by dumps of
//! higher levels that are piped into a restore. Each turn begins with empty caches in the server
//! and in the kernel.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cairn_base::Rng;
use serde_json::Value;

use crate::Plan;
use crate::cairn::{Cairn, MEMORY_DEFAULT_MIB, VOLUME};
use crate::files_rows::{Contender, drop_caches, sync};
use crate::process::{children_cpu, run, settle};
use crate::report::{Report, Target, median};
use crate::tree::{self, Noise, QUARTERS};

/// How many drives the paper had.
const STREAMS: [usize; 3] = [1, 2, 4];
/// One file in this many changes before an update.
const CHANGED_ONE_IN: usize = 100;
/// How often the server is asked for its phase.
const ASK_EVERY: Duration = Duration::from_millis(10);
const GIB: f64 = (1u64 << 30) as f64;

/// The cost of one piece of work, with the processor time of the servers and of the commands.
#[derive(Debug, Clone, Copy)]
struct Took {
    wall: f64,
    cpu: f64,
}

/// By the server's reported phase: time, and its own processor time. The resolution of that is 10
/// ms.
type Stages = BTreeMap<String, (f64, f64)>;

/// Runs work and counts its cost.
fn took(servers: &[&Cairn], work: impl FnOnce() -> Result<()>) -> Result<Took> {
    let cpu = || -> Result<f64> {
        let mut all = children_cpu()?;
        for server in servers {
            all += server.server()?.cpu()?;
        }
        Ok(all.as_secs_f64())
    };
    let (before, begun) = (cpu()?, Instant::now());
    work()?;
    let wall = begun.elapsed().as_secs_f64();
    Ok(Took { wall, cpu: cpu()? - before })
}

/// Runs work and polls the server for its phase. That costs processor time itself, so the turn is
/// not counted.
fn watched(server: &Cairn, work: impl FnOnce() -> Result<()>) -> Result<Stages> {
    let is_over = AtomicBool::new(false);
    let (done, stages) = std::thread::scope(|scope| {
        let watch = scope.spawn(|| watch(server, &is_over));
        let done = work();
        is_over.store(true, Ordering::Release);
        (done, watch.join())
    });
    done?;
    stages.map_err(|_| anyhow::anyhow!("the watch panicked"))?
}

/// Adds up how long the jobs of a server are in each phase. With several jobs, the slowest counts.
fn watch(server: &Cairn, is_over: &AtomicBool) -> Result<Stages> {
    let mut stages = Stages::new();
    let mut last = (Instant::now(), server.server()?.cpu()?);
    while !is_over.load(Ordering::Acquire) {
        std::thread::sleep(ASK_EVERY);
        let jobs = server.api("GET", "/v1/jobs", None)?;
        let running = jobs.as_array().into_iter().flatten().filter(|job| job["state"] == "running");
        let phase = running.filter_map(|job| job["phase"].as_str()).min().map(str::to_owned);
        let now = (Instant::now(), server.server()?.cpu()?);
        if let Some(phase) = phase {
            let stage = stages.entry(phase).or_default();
            stage.0 += (now.0 - last.0).as_secs_f64();
            stage.1 += (now.1 - last.1).as_secs_f64();
        }
        last = now;
    }
    Ok(stages)
}

pub(crate) fn physical(plan: &Plan, report: &mut Report) -> Result<()> {
    if plan.only_peers {
        report.note("This table is about ratios within one run.");
        return Ok(());
    }
    plan.ask_room(16)?;
    let files = if plan.quick { 400 } else { 20_000 };
    let device: u64 = if plan.quick { 1 << 30 } else { 8 << 30 };
    let mut source = Cairn::start(plan, "physical-source", "127.0.0.1:0", MEMORY_DEFAULT_MIB)?;
    source.cli(&["volume", "create", VOLUME, "--size", &device.to_string()])?;
    let bytes = tree::plant(&mut source, files)?;
    // Changes in the second of a dump are in the next one as well.
    next_second();
    report.note(format!(
        "{files} files of 4 to 256 KiB in {QUARTERS} directories, {} MB, made by the engine. Processor: that of the server and of the commands, user and system.",
        bytes / 1_000_000
    ));
    if plan.wants("dump") {
        dumps(plan, report, &mut source, bytes as f64, device)?;
    }
    if plan.wants("mirror") {
        mirrors(plan, report, &source, files, device)?;
    }
    Ok(())
}

fn next_second() {
    std::thread::sleep(Duration::from_millis(1100));
}

/// One kind of work, over the rounds.
#[derive(Default)]
struct Turns {
    took: Vec<Took>,
    stages: Stages,
}

impl Turns {
    /// Runs work in a turn that is counted, or in the one that is watched.
    fn run(&mut self, is_watched: bool, source: &Cairn, work: impl FnOnce() -> Result<()>) -> Result<()> {
        if is_watched {
            self.stages = watched(source, work)?;
        } else {
            self.took.push(took(&[source], work)?);
        }
        Ok(())
    }
}

/// Both dumps and both restores of one number of streams.
#[derive(Default)]
struct Works {
    logical: Turns,
    physical: Turns,
    logical_restore: Turns,
    physical_restore: Turns,
}

fn dumps(plan: &Plan, report: &mut Report, source: &mut Cairn, bytes: f64, device: u64) -> Result<()> {
    source.cli(&["snapshot", "create", "vol0@base"])?;
    let mut works: Vec<Works> = STREAMS.iter().map(|_| Works::default()).collect();
    let rounds = plan.rounds().min(2);
    for round in 0..=rounds {
        let is_watched = round == rounds;
        for (streams, works) in STREAMS.into_iter().zip(&mut works) {
            let dumps = Logical::new(plan, streams);
            cold(source)?;
            works.logical.run(is_watched, source, || dumps.dump(source))?;
            settle()?;
            let images: Vec<String> = (0..streams).map(|part| file(plan, &format!("image{part}"))).collect();
            let mut arguments = vec!["image", "dump", "vol0@base", "-0", "--overwrite", "-q", "--to"];
            arguments.extend(images.iter().map(String::as_str));
            cold(source)?;
            works.physical.run(is_watched, source, || source.cli(&arguments).map(drop))?;
            settle()?;
            if !is_watched {
                works.logical_restore.took.push(dumps.restore(plan, source, device)?);
                settle()?;
            }
            let mut arguments = vec!["image", "restore", "restored", "-q"];
            arguments.extend(images.iter().map(String::as_str));
            cold(source)?;
            works.physical_restore.run(is_watched, source, || source.cli(&arguments).map(drop))?;
            source.cli(&["volume", "delete", "restored", "--yes"])?;
            for path in dumps.files().chain(images.iter().map(String::as_str)) {
                fs::remove_file(path)?;
            }
            settle()?;
        }
    }
    for (streams, works) in STREAMS.iter().zip(&works) {
        let dump = format!("dump, {streams} stream(s)");
        compare(report, &dump, bytes, (&works.physical, &works.logical), Target::AtMost(0.2));
        let restore = format!("restore of that dump, {streams} stream(s)");
        // "More than 3 times".
        let asked = Target::AtMost(0.33);
        compare(report, &restore, bytes, (&works.physical_restore, &works.logical_restore), asked);
    }
    for (streams, works) in STREAMS.iter().zip(&works) {
        for (what, turns) in [
            ("logical dump", &works.logical),
            ("physical dump", &works.physical),
            ("physical restore", &works.physical_restore),
        ] {
            report.note(format!("Stages of the {what}, {streams} stream(s): {}.", told(&turns.stages)));
        }
    }
    report.note(
        "Logical restore: `cairn restore -r` into a mount of a new volume, until all of it is on the disk; it does not tell stages. Stages are of a turn of their own, as asking for them takes processor. One stream has everything; two have two directories each, one after the other, four one each. \
         The paper (tables 2 to 5): physical dump 1.2 x as fast with one drive, 1.6 x with four; its restore 1.4 x with one, and with four half the time; logical dump takes 5 x the processor, logical restore more than 3 x.",
    );
    Ok(())
}

/// Nothing in memory, as after a start.
fn cold(source: &mut Cairn) -> Result<()> {
    source.restart()?;
    drop_caches()
}

fn file(plan: &Plan, name: &str) -> String {
    plan.folder.join(name).display().to_string()
}

fn compare(
    report: &mut Report,
    work: &str,
    bytes: f64,
    (physical, logical): (&Turns, &Turns),
    asked: Target,
) {
    type Value<'a> = &'a dyn Fn(&Took) -> f64;
    let values: [(&str, &'static str, Value<'_>, Target); 4] = [
        ("elapsed", "s", &|took: &Took| took.wall, Target::None),
        ("of files", "MB/s", &|took: &Took| bytes / took.wall / 1e6, Target::None),
        ("processor", "s/GiB", &|took: &Took| took.cpu / (bytes / GIB), asked),
        ("processor", "% of a core", &|took: &Took| took.cpu / took.wall * 100.0, Target::None),
    ];
    for (what, unit, value, asked) in values {
        let median_of = |turns: &Turns| median(turns.took.iter().map(value).collect());
        let peer = ("cairn, logical", median_of(logical));
        report.against(format!("{work}, physical: {what}"), unit, Some(median_of(physical)), peer, asked);
    }
}

fn told(stages: &Stages) -> String {
    let line = |(name, (wall, cpu)): (&String, &(f64, f64))| {
        format!("{name} {wall:.2} s ({:.0} % of a core)", cpu / wall * 100.0)
    };
    stages.iter().map(line).collect::<Vec<_>>().join("; ")
}

/// Dumps of files, several at the same time.
struct Logical {
    /// By worker: the parts to dump, one after the other, and the file of each.
    workers: Vec<Vec<(String, String)>>,
}

impl Logical {
    fn new(plan: &Plan, streams: usize) -> Self {
        let all = |plan: &Plan| vec![("vol0@base".to_owned(), file(plan, "files"))];
        let part = |number: usize| (format!("vol0@base:/q{number}"), file(plan, &format!("files{number}")));
        let each = QUARTERS / streams;
        let workers = match streams {
            1 => vec![all(plan)],
            _ => {
                (0..streams).map(|worker| (worker * each..(worker + 1) * each).map(part).collect()).collect()
            }
        };
        Self { workers }
    }

    fn files(&self) -> impl Iterator<Item = &str> {
        self.workers.iter().flatten().map(|(_, file)| file.as_str())
    }

    /// Runs a function for each part of a worker, all workers at the same time.
    fn each(&self, act: &(dyn Fn(&str, &str) -> Result<()> + Sync)) -> Result<()> {
        std::thread::scope(|scope| {
            let start = |worker| {
                let worker: &Vec<(String, String)> = worker;
                scope.spawn(move || worker.iter().try_for_each(|(name, file)| act(name, file)))
            };
            let running: Vec<_> = self.workers.iter().map(start).collect();
            running
                .into_iter()
                .try_for_each(|worker| worker.join().map_err(|_| anyhow::anyhow!("a worker panicked"))?)
        })
    }

    fn dump(&self, source: &Cairn) -> Result<()> {
        self.each(&|name, file| source.cli(&["dump", "-0", "-q", "--overwrite", "-f", file, name]).map(drop))
    }

    /// Into a mount of a new volume of the same server.
    fn restore(&self, plan: &Plan, source: &mut Cairn, device: u64) -> Result<Took> {
        cold(source)?;
        source.cli(&["volume", "create", "back", "--size", &device.to_string()])?;
        let folder = plan.folder.join("back");
        let took = {
            let mounted = Contender::of_cairn(source, "back", &folder)?;
            let took = took(&[source], || {
                self.each(&|_, file| {
                    let to = mounted.folder.join(Path::new(file).file_name().context("a name")?);
                    fs::create_dir(&to)?;
                    restore(plan, file, &to)
                })?;
                sync(&mounted.folder)
            })?;
            source.cli(&["unmount", &folder.display().to_string()])?;
            took
        };
        fs::remove_dir(&folder)?;
        source.cli(&["volume", "delete", "back", "--yes"])?;
        Ok(took)
    }
}

fn restore(plan: &Plan, file: &str, to: &Path) -> Result<()> {
    run(Command::new(&plan.cairn).args(["restore", "-q", "-rf", file, "--to"]).arg(to)).map(drop)
}

/// The changes before an update.
#[derive(Debug, Clone, Copy)]
enum Change {
    Nothing,
    Whole,
    Mixed,
}

/// A mirror by maps, and one by dumps.
fn mirrors(plan: &Plan, report: &mut Report, source: &Cairn, files: usize, device: u64) -> Result<()> {
    let mount = plan.folder.join("mount");
    let _mounted = Contender::of_cairn(source, VOLUME, &mount)?;
    let maps = Cairn::start(plan, "physical-maps", "off", MEMORY_DEFAULT_MIB)?;
    let token = source.json(&["peer", "invite"])?;
    let token = token["token"].as_str().context("peer invite --json gave no token")?.to_owned();
    maps.cli(&["mirror", "create", VOLUME, &token])?;
    let dumps = Cairn::start(plan, "physical-dumps", "off", MEMORY_DEFAULT_MIB)?;
    dumps.cli(&["volume", "create", VOLUME, "--size", &device.to_string()])?;
    let target = plan.folder.join("target");
    let _target = Contender::of_cairn(&dumps, VOLUME, &target)?;
    let target = target.join("tree");
    fs::create_dir(&target)?;
    let mut level = 0;
    by_dump(plan, source, level, &target)?;

    let changes = [
        (Change::Nothing, "nothing changed", Target::None, Target::None),
        (Change::Whole, "1 % of the files written anew", Target::AtMost(1.0 / 3.5), Target::None),
        (
            Change::Mixed,
            "1 % of the files changed, half of them in one block",
            Target::AtMost(1.0 / 3.5),
            Target::AtMost(0.61),
        ),
    ];
    // Levels end at 9.
    let rounds = plan.rounds().min(2);
    for (change, name, elapsed, fewer) in changes {
        let (mut of_maps, mut of_dumps) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            next_second();
            level += 1;
            alter(&mount, change, files, level)?;
            sync(&mount)?;
            next_second();
            settle()?;
            let mut sent = 0.0;
            let logical = took(&[source, &dumps], || {
                sent = by_dump(plan, source, level, &target)?;
                // As durable as an update is.
                sync(&target)
            })?;
            of_dumps.push((logical, sent));
            settle()?;
            let physical = took(&[source, &maps], || maps.cli(&["mirror", "update", VOLUME]).map(drop))?;
            let status = maps.json(&["mirror", "status", VOLUME])?;
            let sent =
                status["last"]["sent_bytes"].as_f64().with_context(|| format!("no bytes: {status}"))?;
            of_maps.push((physical, sent));
        }
        type Figure = (&'static str, &'static str, fn(&(Took, f64)) -> f64, Target);
        let figures: [Figure; 3] = [
            ("elapsed", "s", |(took, _)| took.wall, elapsed),
            ("bytes sent", "MB", |(_, sent)| sent / 1e6, fewer),
            ("processor, both sides", "s", |(took, _)| took.cpu, Target::None),
        ];
        for (what, unit, value, asked) in figures {
            let median_of = |turns: &[(Took, f64)]| median(turns.iter().map(value).collect());
            let peer = ("cairn dump of a level into restore", median_of(&of_dumps));
            report.against(
                format!("mirror by maps, {name}: {what}"),
                unit,
                Some(median_of(&of_maps)),
                peer,
                asked,
            );
        }
    }
    // Both mirrors are only worth comparing when both are right.
    let found = read_all(&target, files)?;
    let mirror = plan.folder.join("mirror");
    let _mirror = Contender::of_cairn(&maps, VOLUME, &mirror)?;
    ensure!(found == read_all(&mirror, files)?, "the two mirrors are not the same");
    report.note(
        "Both mirrors bring what changed in one file in a hundred, from one server to another on this machine, until it is durable there, with the start of the commands (`cairn` is told at once when it is over). The dump is of the volume without a name of a \
         snapshot, so it looks at all inodes as the paper's did, and sends whole files; the restore goes through a mount. Both mirrors have the same files at the end. The paper: logical takes 3.5 and 9 times as long; maps send 39 and 48 % fewer bytes.",
    );
    Ok(())
}

/// Dumps a level and restores it; returns the bytes of the dump.
fn by_dump(plan: &Plan, source: &Cairn, level: usize, target: &Path) -> Result<f64> {
    let told = plan.folder.join("told");
    let dump = source.command(&["dump", &format!("-{level}"), "--json", "-f", "-", VOLUME]);
    let words = |command: &Command| {
        let quoted = |word: &std::ffi::OsStr| format!("'{}'", word.to_string_lossy());
        std::iter::once(command.get_program())
            .chain(command.get_args())
            .map(quoted)
            .collect::<Vec<_>>()
            .join(" ")
    };
    let mut restore = Command::new(&plan.cairn);
    restore.args(["restore", "-q", "-rf", "-", "--to"]).arg(target);
    let line = format!("set -o pipefail; {} 2>'{}' | {}", words(&dump), told.display(), words(&restore));
    let outcome = run(Command::new("bash").args(["-c", &line]));
    let told = fs::read_to_string(told)?;
    outcome.with_context(|| told.clone())?;
    let last: Value = serde_json::from_str(told.lines().last().unwrap_or_default()).context(told.clone())?;
    last["bytes"].as_f64().with_context(|| format!("the dump says no bytes: {told}"))
}

fn alter(mount: &Path, change: Change, files: usize, seed: usize) -> Result<()> {
    let (mut noise, mut rng) = (Noise::new(seed as u64 + 1000), Rng::new(seed as u64));
    for (at, number) in (seed..files).step_by(CHANGED_ONE_IN).enumerate() {
        let (path, bytes) = (mount.join(tree::path(number)), tree::size(number));
        match change {
            Change::Nothing => {}
            Change::Mixed if at.is_multiple_of(2) => {
                let block = rng.below(bytes as u64 / 4096);
                OpenOptions::new().write(true).open(path)?.write_all_at(noise.take(4096), block * 4096)?;
            }
            Change::Whole | Change::Mixed => fs::write(path, noise.take(bytes))?,
        }
    }
    Ok(())
}

/// A sum over all files, in their order.
fn read_all(root: &Path, files: usize) -> Result<u64> {
    use std::hash::Hasher;
    let mut sum = std::hash::DefaultHasher::new();
    let mut buffer = Vec::new();
    for number in 0..files {
        let path: PathBuf = root.join(tree::path(number));
        buffer.clear();
        std::io::Read::read_to_end(
            &mut File::open(&path).with_context(|| path.display().to_string())?,
            &mut buffer,
        )?;
        sum.write(&buffer);
    }
    Ok(sum.finish())
}
