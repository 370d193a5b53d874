//! The response time of a file server's clients beside a mirror with periodic updates: section 6 of
//! the FAST 2002 paper, its table 3 and figure 5.
//!
//! The paper offered 4,500 and 6,000 NFS operations a second to a server of its own, for an hour
//! each. Here clients and source share one machine (and the destination gets the rest of it, with
//! its data in memory), and the loads are parts of its capacity. Time is compressed: updates come
//! that much more often, and so does the fixed cost of each (a snapshot, the comparison of maps,
//! the switch). The load is not compressed, so an update finds fewer blocks overwritten twice than
//! it would. Both make the ratios here larger than those of an hour, not smaller.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use cairn_base::Rng;
use serde_json::{Value, json};

use crate::Plan;
use crate::cairn::{Cairn, MEMORY_DEFAULT_MIB, VOLUME};
use crate::files_rows::Contender;
use crate::machine::Busy;
use crate::process::settle;
use crate::report::{Report, Target, median, percentile};
use crate::tree::{self, Noise, QUARTERS};

/// An interval between updates: its name, its length, the part of it that an update is spread over,
/// and the target.
type Interval = (&'static str, f64, f64, Target);
/// How often the mirror is updated, in seconds of the paper's time, and the part of that time that
/// an update is spread over, as `--every` does; and the target for the mean response, relative to
/// none. The paper has 2 to 3 x at 1 min, and 1.22 x at 30 min.
const INTERVALS: [Interval; 5] = [
    ("1 s", 1.0, 0.5, Target::None),
    ("15 s", 15.0, 7.5, Target::None),
    ("1 min", 60.0, 30.0, Target::AtMost(1.1)),
    ("1 min, `--spread off`", 60.0, 0.0, Target::None),
    ("15 min", 900.0, 300.0, Target::None),
];
/// The longest interval: a turn has one update of it.
const LONGEST: f64 = 900.0;
/// The offered loads, as parts of the rate of clients that do not wait in between.
const LOADS: [f64; 2] = [0.5, 0.67];
/// Programs that work at the same time.
const CLIENTS: usize = 8;
/// Bytes of a read and of a write: the size of NFS requests.
const READ_BYTES: usize = 32 << 10;
const WRITE_BYTES: usize = 8 << 10;
/// Past the kernel's cache, so that a request of the client is one of the server. The number is the
/// kernel's, and not the same on all machines.
const O_DIRECT: i32 =
    if cfg!(any(target_arch = "aarch64", target_arch = "arm")) { 0o200000 } else { 0o40000 };

/// The operations of clients, in hundredths: the parts of SFS97's NFS version 3 that a mount passes
/// on.
const MIX: [(Kind, u64); 7] = [
    (Kind::Look, 50),
    (Kind::List, 5),
    (Kind::Read, 20),
    (Kind::Write, 14),
    (Kind::Commit, 5),
    (Kind::Create, 3),
    (Kind::Delete, 3),
];

#[derive(Debug, Clone, Copy)]
enum Kind {
    Look,
    List,
    Read,
    Write,
    Commit,
    Create,
    Delete,
}

/// The measurements of a turn.
struct Seen {
    /// From the call to its answer.
    call_us: f64,
    /// From when the operation was due.
    mean_us: f64,
    p99_us: f64,
    rate: f64,
    source_cpu: f64,
    machine: f64,
    disk: Option<f64>,
    updates: f64,
    sent_mb: f64,
}

pub(crate) fn response(plan: &Plan, report: &mut Report) -> Result<()> {
    if plan.only_peers {
        report.note("No peer takes part in this table.");
        return Ok(());
    }
    plan.ask_room(14)?;
    let files = if plan.quick { 400 } else { 8000 };
    let compressed = plan.compressed.map_or(if plan.quick { 300.0 } else { 30.0 }, |times| times as f64);
    let mut source = Cairn::start(plan, "response-source", "127.0.0.1:0", MEMORY_DEFAULT_MIB)?;
    let device: u64 = if plan.quick { 1 << 30 } else { 6 << 30 };
    source.cli(&["volume", "create", VOLUME, "--size", &device.to_string()])?;
    let bytes = tree::plant(&mut source, files)?;
    let mount = plan.folder.join("mount");
    let _mounted = Contender::of_cairn(&source, VOLUME, &mount)?;
    let destination = Cairn::elsewhere(plan, "response", "off", MEMORY_DEFAULT_MIB)?;
    let token = source.json(&["peer", "invite"])?;
    let token = token["token"].as_str().context("peer invite --json gave no token")?.to_owned();
    destination.cli(&["mirror", "create", VOLUME, &token])?;
    settle()?;

    let turn = Duration::from_secs_f64(LONGEST / compressed);
    let mut clients = clients(&mount, files);
    let bench = Turns { plan, source: &source, destination: &destination };
    let most = bench.run(&mut clients, turn.min(Duration::from_secs(10)), None, None)?.rate;
    report.note(format!(
        "{files} files of 4 to 256 KiB, {} MB; {CLIENTS} clients; without pauses they get {most:.0} operations a second. Time is compressed {compressed:.0} times: \"1 min\" is an update each {:.1} s, and a turn of {:.0} s \
         stands for 15 minutes. The load is not compressed.",
        bytes / 1_000_000,
        60.0 / compressed,
        turn.as_secs_f64(),
    ));
    for load in LOADS {
        let rate = most * load;
        let name = format!("{rate:.0} operations a second ({:.0} % of the most)", load * 100.0);
        bench.run(&mut clients, turn / 10, Some(rate), None)?;
        let intervals: Vec<Interval> = INTERVALS
            .into_iter()
            .filter(|(every, ..)| MEASURED.iter().any(|(what, ..)| plan.wants(&work(&name, every, what))))
            .collect();
        let mut without = Vec::new();
        let mut with: Vec<Vec<Seen>> = intervals.iter().map(|_| Vec::new()).collect();
        for _ in 0..plan.rounds() {
            without.push(bench.run(&mut clients, turn, Some(rate), None)?);
            for ((_, seconds, spread, _), turns) in intervals.iter().zip(&mut with) {
                let of_ours = |seconds: f64| Duration::from_secs_f64(seconds / compressed);
                let updates = Updates { every: of_ours(*seconds), within: of_ours(*spread) };
                turns.push(bench.run(&mut clients, turn, Some(rate), Some(updates))?);
            }
        }
        // Before and after: the machine drifts, and so does the volume.
        without.push(bench.run(&mut clients, turn, Some(rate), None)?);
        rows(report, &name, &intervals, &without, &with);
    }
    report.note(
        "Looking up 50 %, listing 5, reading 20 (32 KiB), writing 14 (8 KiB), fsync 5, creating 3 and deleting 3; reads and writes go past the kernel's cache, names and attributes that it still knows do not reach the server. \
         A response begins when the operation was due, also if its client was busy then; \"from the call\" is as SFS97 measures, and the paper. Clients and source share this machine, and the destination is here as well, but as if it were elsewhere: in memory, and with what others leave of the processor (`chrt --idle`). The paper's had a machine each. The paper: 2 to 3 times at 1 min, 1.22 times at 30 min; CPU from 66 to 93 % \
         and from 87 to 99 % at 1 min.",
    );
    Ok(())
}

/// A measurement of a row: its name, its unit, and its value in the measurements.
type Measured = (&'static str, &'static str, fn(&Seen) -> f64);
const MEASURED: [Measured; 5] = [
    ("mean from the call", "us", |seen| seen.call_us),
    ("mean response", "us", |seen| seen.mean_us),
    ("p99 of the response", "us", |seen| seen.p99_us),
    ("processor of the source", "% of a core", |seen| seen.source_cpu),
    ("all cores", "% busy", |seen| seen.machine),
];

/// The name of a row.
fn work(load: &str, every: &str, what: &str) -> String {
    format!("{load}, an update each {every}: {what}")
}

/// The rows of a load: medians of the turns with updates, next to the median of those without.
fn rows(report: &mut Report, name: &str, intervals: &[Interval], without: &[Seen], with: &[Vec<Seen>]) {
    let middle = |turns: &[Seen], value: fn(&Seen) -> f64| median(turns.iter().map(value).collect());
    for (what, unit, value) in MEASURED {
        for ((every, .., asked), turns) in intervals.iter().zip(with) {
            let asked = if what.starts_with("mean") { *asked } else { Target::None };
            let peer = ("no updates", middle(without, value));
            report.against(work(name, every, what), unit, Some(middle(turns, value)), peer, asked);
        }
    }
    let line = |every: &str, seen: &Seen| {
        let disk = seen.disk.map_or("not known".to_owned(), |disk| format!("{disk:.0} %"));
        format!(
            "{every}: mean {:.0} us ({:.0} from the call), {:.0} operations a second, disk busy {disk}, {:.0} updates, {:.1} MB sent",
            seen.mean_us, seen.call_us, seen.rate, seen.updates, seen.sent_mb
        )
    };
    let mut lines: Vec<String> = without.iter().map(|seen| line("none", seen)).collect();
    for ((every, ..), turns) in intervals.iter().zip(with) {
        lines.extend(turns.iter().map(|seen| line(every, seen)));
    }
    report.note(format!("At {name}: {}.", lines.join("; ")));
}

/// How a mirror is updated: the interval, and the time that each update is spread over.
#[derive(Debug, Clone, Copy)]
struct Updates {
    every: Duration,
    within: Duration,
}

/// The parameters of turns.
struct Turns<'a> {
    plan: &'a Plan,
    source: &'a Cairn,
    destination: &'a Cairn,
}

impl Turns<'_> {
    /// A turn: a fixed number of operations a second of all clients, or as many as possible; an
    /// update of the mirror at intervals.
    fn run(
        &self,
        clients: &mut [Client],
        length: Duration,
        rate: Option<f64>,
        updates: Option<Updates>,
    ) -> Result<Seen> {
        // All turns begin with a mirror that has everything.
        self.update(Duration::ZERO)?;
        settle()?;
        let (made, sent) = self.counted()?;
        let cpu = self.source.server()?.cpu()?;
        let busy = Busy::now(&self.plan.folder)?;
        let begun = Instant::now();
        let is_over = AtomicBool::new(false);
        let share = rate.map(|rate| rate / clients.len() as f64);
        let (outcomes, updating) = std::thread::scope(|scope| {
            let updating = scope.spawn(|| match updates {
                Some(updates) => self.keep_updating(updates, &is_over),
                None => Ok(()),
            });
            let running: Vec<_> = clients
                .iter_mut()
                .map(|client| scope.spawn(move || client.work(begun + length, share)))
                .collect();
            let outcomes: Vec<_> = running.into_iter().map(|client| client.join()).collect();
            is_over.store(true, Ordering::Release);
            (outcomes, updating.join())
        });
        // The work of the last update after the turn is not counted.
        let passed = begun.elapsed().as_secs_f64();
        let (machine, disk) = Busy::now(&self.plan.folder)?.since(&busy);
        let cpu = self.source.server()?.cpu()? - cpu;
        updating.map_err(|_| anyhow::anyhow!("the updates panicked"))??;
        let mut all = Vec::new();
        for outcome in outcomes {
            all.extend(outcome.map_err(|_| anyhow::anyhow!("a client panicked"))??);
        }
        ensure!(!all.is_empty(), "clients got nothing done");
        let calls: f64 = all.iter().map(|waited| waited.call_us).sum();
        let mut all: Vec<f64> = all.iter().map(|waited| waited.due_us).collect();
        all.sort_by(f64::total_cmp);
        let (made_now, sent_now) = self.counted()?;
        Ok(Seen {
            call_us: calls / all.len() as f64,
            mean_us: all.iter().sum::<f64>() / all.len() as f64,
            p99_us: percentile(&all, 0.99),
            rate: all.len() as f64 / length.as_secs_f64(),
            source_cpu: cpu.as_secs_f64() / passed * 100.0,
            machine,
            disk,
            updates: made_now - made,
            sent_mb: (sent_now - sent) / 1e6,
        })
    }

    /// Updates and bytes that were sent, so far.
    fn counted(&self) -> Result<(f64, f64)> {
        let mirror = self.destination.api("GET", &format!("/v1/mirrors/{VOLUME}"), None)?;
        let number = |field: &str| mirror[field].as_f64().with_context(|| format!("no {field}: {mirror}"));
        Ok((number("updates")?, number("sent_bytes")?))
    }

    /// The first after half an interval. One that is late because another one runs is left out.
    fn keep_updating(&self, Updates { every, within }: Updates, is_over: &AtomicBool) -> Result<()> {
        let mut due = Instant::now() + every / 2;
        loop {
            while Instant::now() < due {
                if is_over.load(Ordering::Acquire) {
                    return Ok(());
                }
                let left = due.saturating_duration_since(Instant::now());
                std::thread::sleep(left.min(Duration::from_millis(20)));
            }
            self.update(within)?;
            while due <= Instant::now() {
                due += every;
            }
        }
    }

    fn update(&self, within: Duration) -> Result<()> {
        let path = format!("/v1/mirrors/{VOLUME}/update");
        let mut job =
            self.destination.api("POST", &path, Some(&json!({ "within_ms": within.as_millis() as u64 })))?;
        while job["state"] == "running" {
            std::thread::sleep(Duration::from_millis(10));
            let id = job["id"].as_str().context("a job has an id")?.to_owned();
            job = self.destination.api("GET", &format!("/v1/jobs/{id}"), None)?;
        }
        match &job["error"] {
            Value::Null => Ok(()),
            error => bail!("an update failed: {error}"),
        }
    }
}

/// A client's wait for an operation, in microseconds: from the call, as the load generator of the
/// paper measures it, and from its due time, which is earlier if the previous one was late.
struct Waited {
    call_us: f64,
    due_us: f64,
}

/// A program on the mount, with files of its own.
struct Client {
    mount: PathBuf,
    /// Made by it, all in this directory.
    own: PathBuf,
    files: Vec<(PathBuf, usize)>,
    made: usize,
    rng: Rng,
    noise: Noise,
}

/// Clients that share the existing files.
fn clients(mount: &Path, files: usize) -> Vec<Client> {
    let client = |number: usize| Client {
        mount: mount.to_owned(),
        own: mount.join(format!("client{number}")),
        files: (number..files)
            .step_by(CLIENTS)
            .map(|at| (mount.join(tree::path(at)), tree::size(at)))
            .collect(),
        made: 0,
        rng: Rng::new(number as u64 + 1),
        noise: Noise::new(number as u64 + 100),
    };
    (0..CLIENTS).map(client).collect()
}

impl Client {
    /// Works until then, and gives how long each operation took. Without a rate it never waits.
    fn work(&mut self, until: Instant, rate: Option<f64>) -> Result<Vec<Waited>> {
        fs::create_dir_all(&self.own)?;
        let mut all = Vec::new();
        let mut due = Instant::now();
        loop {
            if let Some(rate) = rate {
                // Exponential gaps: the client does not wait for an answer before its next request.
                let part = (self.rng.below(1 << 53) + 1) as f64 / (1u64 << 53) as f64;
                due += Duration::from_secs_f64(-part.ln() / rate);
            }
            let now = Instant::now();
            if due.max(now) >= until {
                return Ok(all);
            }
            let begun = if rate.is_some() && due <= now {
                due
            } else {
                std::thread::sleep(due.saturating_duration_since(now));
                Instant::now()
            };
            let called = Instant::now();
            self.act()?;
            let micros = |since: Instant| since.elapsed().as_secs_f64() * 1e6;
            all.push(Waited { call_us: micros(called), due_us: micros(begun) });
        }
    }

    fn act(&mut self) -> Result<()> {
        let mut at = self.rng.below(100);
        let kind = MIX.iter().find(|(_, part)| match at < *part {
            true => true,
            false => {
                at -= part;
                false
            }
        });
        let kind = kind.map_or(Kind::Look, |(kind, _)| *kind);
        let (file, bytes) = self.any();
        match kind {
            Kind::Look => {
                fs::symlink_metadata(&file)?;
            }
            Kind::List => {
                let quarter = format!("q{}", self.rng.below(QUARTERS as u64));
                for entry in fs::read_dir(self.mount.join(quarter).join("d0"))? {
                    entry?;
                }
            }
            Kind::Read => {
                let mut buffer = vec![0; READ_BYTES.min(bytes)];
                let offset = self.offset(bytes, buffer.len());
                let file = OpenOptions::new().read(true).custom_flags(O_DIRECT).open(&file)?;
                file.read_exact_at(&mut buffer, offset)?;
            }
            Kind::Write => {
                let length = WRITE_BYTES.min(bytes);
                let offset = self.offset(bytes, length);
                let open = OpenOptions::new().write(true).custom_flags(O_DIRECT).open(&file)?;
                open.write_all_at(self.noise.take(length), offset)?;
            }
            Kind::Commit => OpenOptions::new().write(true).open(&file)?.sync_all()?,
            Kind::Create => {
                let bytes = tree::size(self.rng.below(1 << 20) as usize);
                let path = self.own.join(format!("f{}", self.made));
                self.made += 1;
                File::create(&path)?.write_all_at(self.noise.take(bytes), 0)?;
                self.files.push((path, bytes));
            }
            // A handful is always left.
            Kind::Delete if self.files.len() > 10 => {
                let at = self.rng.below(self.files.len() as u64) as usize;
                let (path, _) = self.files.swap_remove(at);
                fs::remove_file(path)?;
            }
            Kind::Delete => {}
        }
        Ok(())
    }

    fn any(&mut self) -> (PathBuf, usize) {
        let at = self.rng.below(self.files.len() as u64) as usize;
        self.files[at].clone()
    }

    /// A random whole block with that many bytes after its start.
    fn offset(&mut self, bytes: usize, length: usize) -> u64 {
        self.rng.below(((bytes - length) / 4096) as u64 + 1) * 4096
    }
}
