//! Disks with a history. The cost of the placements for a client, next to the same disk without a
//! history, to nbdkit and to qcow2 with an external snapshot. I/O per write by the server's
//! counters. An instant in a window of ten million writes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use cairn_base::{HistoryId, Rng};
use cairn_device::{Device, Direct, FileDevice, FileOptions, Operation, Request, Segments, SystemClock};
use cairn_history::{
    Granularity, History, HistoryOptions, HistoryStatus, LogPosition, OpenOptions, Placement, Reduction,
    Window,
};
use serde_json::Value;

use crate::Plan;
use crate::cairn::{Cairn, MEMORY_DEFAULT_MIB};
use crate::fio::{Load, Target, Until};
use crate::peers::{Qcow2, nbdkit_file};
use crate::process::{Server, settle};
use crate::report::Target::{AtLeast, Limit};
use crate::report::{self, Report, median};

/// Block of the history of ten million writes: many small ones, as a trace of a database has.
const SMALL_BLOCK: u32 = 512;

/// The contenders that take turns. The others are measured against the first.
const DEVICES: [(&str, &[&str]); 5] = [
    ("none", &[]),
    ("row", &["--placement", "logging", "--granularity", "marks"]),
    ("cow", &["--placement", "checkpointing", "--granularity", "marks"]),
    ("logging", &["--placement", "logging", "--granularity", "every-write"]),
    ("split", &["--placement", "split-down-stream", "--granularity", "every-write"]),
];

/// The two further placements at every write: they have no target.
const OTHERS: [(&str, &[&str]); 2] = [
    ("stream", &["--placement", "split-stream", "--granularity", "every-write"]),
    ("checkpoint", &["--placement", "checkpointing", "--granularity", "every-write"]),
];

/// The contenders that take turns once more when their store is full: each write then discards as
/// much of the oldest history.
const FULL: [&str; 2] = ["logging", "split"];
/// Parts of the disk that a store has: more than a turn writes; and one that is soon full.
const ROOMY: u64 = 8;
const TIGHT: u64 = 2;

/// Makes an image of `bytes` that no file system can take for holes.
fn image(path: &Path, bytes: u64) -> Result<()> {
    use std::io::Write;
    let mut file = std::fs::File::create(path)?;
    let mut chunk = vec![0; 1 << 20];
    Rng::new(7).fill(&mut chunk);
    for _ in 0..bytes >> 20 {
        file.write_all(&chunk)?;
    }
    Ok(file.sync_all()?)
}

/// The server's counts for a device so far.
struct Counted {
    written: f64,
    io: f64,
}

fn count(cairn: &Cairn, device: &str) -> Result<Counted> {
    let status: Value = cairn.json(&["history", "status", device])?;
    let number = |value: &Value| value.as_f64().context("a count");
    let blocks = |kind: &str| number(&status[kind]["blocks"]);
    Ok(Counted {
        written: number(&status["written_blocks"])?,
        io: blocks("current_reads")? + blocks("current_writes")? + blocks("history_writes")?,
    })
}

/// As the server opens files: an origin through the page cache, a history with direct writes.
fn options_of(name: &str) -> FileOptions {
    let direct = if name.ends_with("history") { Direct::Writes } else { Direct::Never };
    FileOptions { direct, ..FileOptions::default() }
}

/// Adopts the image of a device, with a history of `room` bytes.
fn adopt(cairn: &Cairn, folder: &Path, device: &str, how: &[&str], room: u64) -> Result<()> {
    let path = |end: &str| folder.join(format!("{device}.{end}")).display().to_string();
    let (origin, history, room) = (path("img"), path("history"), room.to_string());
    let mut words = vec!["device", "adopt", device, "--origin", &origin];
    if !how.is_empty() {
        words.extend(["--history", &history, "--history-size", &room]);
        words.extend(how);
    }
    cairn.cli(&words).map(drop)
}

/// Makes a plain disk of it again.
fn release(cairn: &Cairn, folder: &Path, device: &str) -> Result<()> {
    cairn.cli(&["device", "release", device, "--yes"])?;
    Ok(std::fs::remove_file(folder.join(format!("{device}.history")))?)
}

/// An export of a server.
fn target<'a>(plan: &'a Plan, server: &'a Server, uri: String) -> Target<'a> {
    Target { server, uri, scratch: &plan.folder }
}

/// The results of the clients of each device, by name.
#[derive(Default)]
struct Measured {
    /// Several devices of one length: the median of their turns.
    iops: Vec<(&'static str, Vec<f64>)>,
    /// Blocks read and written for each one that a client wrote.
    costs: Vec<(&'static str, f64)>,
}

impl Measured {
    fn note(&mut self, name: &'static str, iops: f64) {
        eprintln!("   {name}: {iops:.0} IOPS");
        match self.iops.iter_mut().find(|(known, _)| *known == name) {
            Some((_, all)) => all.push(iops),
            None => self.iops.push((name, vec![iops])),
        }
    }

    fn iops(&self, name: &str) -> f64 {
        let found = self.iops.iter().find(|(known, _)| *known == name);
        found.map_or(0.0, |(_, all)| median(all.clone()))
    }

    fn cost(&self, name: &str) -> f64 {
        median(self.costs.iter().filter(|(known, _)| *known == name).map(|(_, cost)| *cost).collect())
    }
}

/// The table.
pub(crate) fn history(plan: &Plan, report: &mut Report) -> Result<()> {
    let bytes = plan.export_bytes() / 8;
    plan.ask_room(20)?;
    let folder = plan.folder.join("history");
    std::fs::create_dir_all(&folder)?;
    if !plan.only_peers {
        tell(&measure(plan, &folder, bytes)?, report);
        // Its servers have ended, and the next ones want the room: seven disks and six logs are 15
        // GiB.
        std::fs::remove_dir_all(&folder)?;
        std::fs::create_dir_all(&folder)?;
        write_through(plan, report, &folder)?;
        reduced(plan, report, &folder)?;
    }
    many_writes(plan, report, &folder)
}

/// Random writes to each device in turn.
fn measure(plan: &Plan, folder: &Path, bytes: u64) -> Result<Measured> {
    let cairn = Cairn::start(plan, "history-cairn", "off", MEMORY_DEFAULT_MIB)?;
    for (device, how) in DEVICES.iter().chain(&OTHERS) {
        image(&folder.join(format!("{device}.img")), bytes)?;
        if how.is_empty() {
            adopt(&cairn, folder, device, how, 0)?;
        }
    }
    let nbdkit = nbdkit_file(folder, "nbdkit", bytes)?;
    let mut qcow2 = Qcow2::new(folder, bytes)?;
    Load::fill(bytes).run(&target(plan, &nbdkit, nbdkit.uri("")))?;
    Load::fill(bytes).run(&target(plan, qcow2.server()?, qcow2.server()?.uri("")))?;
    settle()?;
    let load = Load::small("randwrite", 32, bytes, plan.turn());
    let mut measured = Measured::default();
    for round in 0..plan.rounds() {
        measured.note("nbdkit file", load.run(&target(plan, &nbdkit, nbdkit.uri("")))?.iops);
        settle()?;
        qcow2.push()?;
        measured.note(
            "qcow2, external snapshot",
            load.run(&target(plan, qcow2.server()?, qcow2.server()?.uri("")))?.iops,
        );
        settle()?;
        for (device, how) in DEVICES.iter().chain(&OTHERS) {
            let server = cairn.server()?;
            let uri = server.uri(device);
            if how.is_empty() {
                measured.note(device, load.run(&target(plan, server, uri))?.iops);
                settle()?;
                continue;
            }
            adopt(&cairn, folder, device, how, bytes * ROOMY)?;
            cairn.cli(&["history", "mark", device, &format!("r{round}")])?;
            let mut turn = |name: &'static str, load: &Load| -> Result<()> {
                let before = count(&cairn, device)?;
                measured.note(name, load.run(&target(plan, cairn.server()?, uri.clone()))?.iops);
                let after = count(&cairn, device)?;
                measured
                    .costs
                    .push((name, (after.io - before.io) / (after.written - before.written).max(1.0)));
                settle()
            };
            if *device == "cow" {
                turn("cow, first writes", &Load { until: Until::Bytes(bytes), ..Load::fill(bytes) })?;
            }
            turn(device, &load)?;
            release(&cairn, folder, device)?;
            if FULL.contains(device) {
                adopt(&cairn, folder, device, how, bytes * TIGHT)?;
                let uri = cairn.server()?.uri(device);
                Load { until: Until::Bytes(bytes * TIGHT), ..load }.run(&target(
                    plan,
                    cairn.server()?,
                    uri.clone(),
                ))?;
                settle()?;
                let name = if *device == "split" { "split, full" } else { "logging, full" };
                measured.note(name, load.run(&target(plan, cairn.server()?, uri))?.iops);
                release(&cairn, folder, device)?;
            }
        }
    }
    Ok(measured)
}

fn tell(measured: &Measured, report: &mut Report) {
    let none = measured.iops("none");
    let work = "4 KiB random write, depth 32, adopted disk without history";
    report.against(work, "IOPS", Some(none), ("nbdkit file", measured.iops("nbdkit file")), AtLeast(1.0));
    let qcow2_iops = ("qcow2, external snapshot", measured.iops("qcow2, external snapshot"));
    let without = ("cairn, no history", none);
    for (name, work, asked) in [
        ("row", "the same, redirect-on-write after a snapshot", AtLeast(0.9)),
        ("cow", "the same, copy-on-write, after the first write of each block", report::Target::None),
        ("logging", "the same, every write kept, logging", AtLeast(0.8)),
        ("split", "the same, every write kept, split-down-stream", AtLeast(0.5)),
        ("stream", "the same, every write kept, split-stream", AtLeast(0.5)),
        ("checkpoint", "the same, every write kept, checkpointing", report::Target::None),
        (
            "logging, full",
            "the same, every write kept, logging, the store full: the oldest history goes",
            report::Target::None,
        ),
        (
            "split, full",
            "the same, every write kept, split-down-stream, the store full: the oldest history goes",
            report::Target::None,
        ),
    ] {
        report.against(work, "IOPS", Some(measured.iops(name)), without, asked);
        if matches!(name, "row" | "cow") {
            report.against(work, "IOPS", Some(measured.iops(name)), qcow2_iops, AtLeast(2.0));
        }
    }
    let limits = [
        ("row", "I/O per written block, redirect-on-write", Limit(1.0)),
        (
            "cow, first writes",
            "I/O per written block, copy-on-write, first writes (dm-snapshot: 3)",
            Limit(3.0),
        ),
        ("cow", "I/O per written block, copy-on-write, later writes", Limit(1.0)),
        ("logging", "I/O per written block, every write, logging (the paper: 1)", Limit(1.0)),
        (
            "split",
            "I/O per written block, every write, split-down-stream (the paper: 2)",
            report::Target::None,
        ),
        ("checkpoint", "I/O per written block, every write, checkpointing (the paper: 3)", Limit(3.0)),
    ];
    for (name, work, limit) in limits {
        report.alone(work, "blocks", measured.cost(name), limit);
    }
    report.note(
        "I/O per written block: blocks read from and written to origin and log for the history, by the server's counters; split-down-stream has one more for the base of each block that \
         had no version yet.",
    );
}

/// Every write durable when it is answered, as over iSCSI by default: 32 in flight, from as many
/// clients as threads, on the engine itself.
fn write_through(plan: &Plan, report: &mut Report, folder: &Path) -> Result<()> {
    const IN_FLIGHT: u64 = 32;
    let bytes = plan.export_bytes() / 8;
    let file =
        |name: &str, bytes| FileDevice::create_with(folder.join(name), bytes, options_of(name)).map(Arc::new);
    let placements = [
        ("cairn, no history", None),
        ("logging", Some(Placement::Logging)),
        ("checkpointing", Some(Placement::Checkpointing)),
        ("split-down-stream", Some(Placement::SplitDownStream)),
    ];
    for clients in [1, 8, IN_FLIGHT] {
        let mut without = 0.0;
        for (name, placement) in placements {
            image(&folder.join("through.img"), bytes)?;
            let path = folder.join("through.img");
            let origin: Arc<dyn Device> = Arc::new(FileDevice::open(path, options_of("through.img"))?);
            let history = placement.map(|placement| -> Result<Arc<History>> {
                let _ = std::fs::remove_file(folder.join("through.history"));
                let store = file("through.history", bytes * 4)?;
                let options = HistoryOptions {
                    store: HistoryId([4; 16]),
                    placement,
                    granularity: Granularity::EveryWrite,
                    block_bytes: 4096,
                    window: Window::default(),
                };
                let clock = Arc::new(SystemClock::new());
                let open = OpenOptions {
                    dirty_bytes: 32 << 20,
                    read_bytes: 0,
                    clock,
                    at_least: LogPosition::default(),
                };
                Ok(History::create(origin.clone(), store, &options, open)?)
            });
            let history = history.transpose()?;
            let device = history.clone().map_or(origin, |history| history as Arc<dyn Device>);
            settle()?;
            let start = Instant::now();
            let written = std::thread::scope(|scope| {
                let device = &device;
                let client = move |client: u64| -> Result<u64> {
                    let mut rng = Rng::new(client + 1);
                    let content = Segments::copy_of(&[client as u8; 4096]);
                    let mut written = 0;
                    while start.elapsed() < plan.turn() {
                        let mut batch: Vec<Operation> = (0..IN_FLIGHT / clients)
                            .map(|_| {
                                let (offset, data) = (rng.below(bytes / 4096) * 4096, content.clone());
                                Operation::new(Request::Write { offset, data, fua: true })
                            })
                            .collect();
                        device.run(&mut batch);
                        written += batch.len() as u64;
                        batch.into_iter().try_for_each(|operation| operation.into_outcome().map(drop))?;
                    }
                    Ok(written)
                };
                let threads: Vec<_> =
                    (0..clients).map(|number| scope.spawn(move || client(number))).collect();
                let joined =
                    threads.into_iter().map(|thread| thread.join().expect("a client does not panic"));
                joined.sum::<Result<u64>>()
            })?;
            let iops = written as f64 / start.elapsed().as_secs_f64();
            let work =
                format!("4 KiB random write, each durable, 32 in flight from {clients} clients: {name}");
            match &history {
                None => {
                    without = iops;
                    report.alone(work, "IOPS", iops, report::Target::None);
                }
                Some(history) => {
                    report.against(work, "IOPS", Some(iops), ("no history", without), report::Target::None);
                    let flushes = history.status().counters.flushes.max(1) as f64;
                    let work = format!("writes for each flush of a device: {name}, {clients} clients");
                    report.alone(work, "writes", written as f64 / flushes, report::Target::None);
                }
            }
        }
    }
    Ok(())
}

/// The room in the log for each written page, its own entries included, and how many pages a second
/// one thread writes: pages with few changes, with a skew, and occasionally a copy of another one.
fn reduced(plan: &Plan, report: &mut Report, folder: &Path) -> Result<()> {
    const PAGE: usize = 4096;
    let writes: u64 = if plan.quick { 20_000 } else { 400_000 };
    let pages = 16_384;
    let file = |name: &str, bytes| {
        let path = folder.join(name);
        let _ = std::fs::remove_file(&path);
        FileDevice::create_with(path, bytes, options_of(name)).map(Arc::new)
    };
    for placement in [Placement::Logging, Placement::Checkpointing] {
        let mut without = None;
        for (name, xor, identical) in
            [("none", false, false), ("xor", true, false), ("identical", false, true), ("all", true, true)]
        {
            let (origin, store) = (
                file("reduced.img", (pages * PAGE) as u64)?,
                file("reduced.history", writes * 2 * PAGE as u64 + (1 << 30))?,
            );
            let options = HistoryOptions {
                store: HistoryId([5; 16]),
                placement,
                granularity: Granularity::EveryWrite,
                block_bytes: PAGE as u32,
                window: Window { reduction: Reduction { xor, identical }, ..Window::default() },
            };
            let clock = Arc::new(SystemClock::new());
            let open =
                OpenOptions { dirty_bytes: 32 << 20, read_bytes: 0, clock, at_least: LogPosition::default() };
            let history = History::create(origin, store, &options, open)?;
            let mut rng = Rng::new(6);
            let mut image = vec![0; pages * PAGE];
            rng.fill(&mut image);
            let filled = image.chunks(1 << 20).enumerate();
            for (number, chunk) in filled {
                history.write((number << 20) as u64, Segments::copy_of(chunk))?;
            }
            history.flush()?;
            let before = history.status();
            let start = Instant::now();
            for number in 0..writes {
                // The lowest of four random pages: some are written far more often than others.
                let page = (0..4).map(|_| rng.below(pages as u64)).min().unwrap_or(0) as usize * PAGE;
                if number.is_multiple_of(10) {
                    let from = rng.below(pages as u64 / 16) as usize * PAGE;
                    image.copy_within(from..from + PAGE, page);
                } else {
                    // A row, and the head of the page.
                    let (at, length) = (64 + rng.below(3700) as usize, 40 + rng.below(200) as usize);
                    rng.fill(&mut image[page + at..][..length]);
                    rng.fill(&mut image[page..][..16]);
                }
                history.write(page as u64, Segments::copy_of(&image[page..][..PAGE]))?;
            }
            history.flush()?;
            let rate = writes as f64 / start.elapsed().as_secs_f64();
            let after = history.status();
            let taken = |status: &HistoryStatus| {
                (status.counters.stored_bytes + status.counters.metadata.blocks * PAGE as u64) as f64
            };
            let used = (taken(&after) - taken(&before)) / writes as f64;
            let work = |what: &str| format!("{what}, pages of which little changes, {placement:?}: {name}");
            match without {
                None => {
                    report.alone(work("log for each written page"), "bytes", used, report::Target::None);
                    report.alone(work("written pages, one thread"), "writes/s", rate, report::Target::None);
                    without = Some((used, rate));
                }
                Some((bytes, all)) => {
                    let none = report::Target::None;
                    let (log, pages) = (work("log for each written page"), work("written pages, one thread"));
                    report.against(log, "bytes", Some(used), ("none", bytes), none);
                    report.against(pages, "writes/s", Some(rate), ("none", all), none);
                }
            }
        }
    }
    Ok(())
}

/// A window of ten million writes: the time to find and export an instant, and the memory.
fn many_writes(plan: &Plan, report: &mut Report, folder: &Path) -> Result<()> {
    let writes: u64 = if plan.quick { 200_000 } else { 10_000_000 };
    let path = |end: &str| -> PathBuf { folder.join(format!("many.{end}")) };
    let origin_bytes = 1 << 30;
    let file = |path: &Path, bytes| {
        FileDevice::create_with(path, bytes, options_of(&path.display().to_string())).map(Arc::new)
    };
    let (origin, store) =
        (file(&path("img"), origin_bytes)?, file(&path("history"), writes * 1024 + (1 << 30))?);
    let options = HistoryOptions {
        store: HistoryId([3; 16]),
        placement: Placement::Logging,
        granularity: Granularity::EveryWrite,
        block_bytes: SMALL_BLOCK,
        window: Window::default(),
    };
    let open = OpenOptions {
        dirty_bytes: 8 << 20,
        read_bytes: 0,
        clock: Arc::new(SystemClock::new()),
        at_least: LogPosition::default(),
    };
    let history = History::create(origin, store, &options, open)?;
    let id = options.store.to_string();
    let mut rng = Rng::new(11);
    let content = Segments::copy_of(&[5; SMALL_BLOCK as usize]);
    let start = Instant::now();
    let mut left = writes;
    while left > 0 {
        let count = left.min(64);
        let mut batch: Vec<Operation> = (0..count)
            .map(|_| {
                let block = rng.below(origin_bytes / u64::from(SMALL_BLOCK));
                Operation::write(block * u64::from(SMALL_BLOCK), content.clone())
            })
            .collect();
        history.run(&mut batch);
        batch.into_iter().try_for_each(|operation| operation.into_outcome().map(drop))?;
        left -= count;
    }
    history.flush()?;
    let rate = writes as f64 / start.elapsed().as_secs_f64();
    let status = history.status();
    report.alone(
        format!("writes of {SMALL_BLOCK} B into a history of {writes}, one thread"),
        "writes/s",
        rate,
        report::Target::None,
    );
    let each = status.index_bytes as f64 / status.versions as f64;
    report.alone(
        format!("memory of the index for each of {} versions", status.versions),
        "bytes",
        each,
        Limit(32.0),
    );
    drop(history);
    if plan.only_peers {
        return Ok(());
    }
    let cairn = start_with_history(plan, report, &path, &id)?;
    show_instants(&cairn, report, (status.start.0, status.last.0), writes, &mut rng)
}

/// A server that opens the history of `many_writes` as after a restart.
fn start_with_history(
    plan: &Plan,
    report: &mut Report,
    path: &dyn Fn(&str) -> PathBuf,
    id: &str,
) -> Result<Cairn> {
    let mut cairn = Cairn::start(plan, "many-cairn", "off", MEMORY_DEFAULT_MIB)?;
    cairn.kill()?;
    let document = serde_json::json!({
        "version": 1, "origin": path("img"), "history": path("history"), "history_id": id,
        "block_bytes": SMALL_BLOCK, "dirty_bytes": 8 << 20, "cache_bytes": 64 << 20, "views": {}, "clones": {},
        "loose": [], "adopting": false, "releasing": false, "in_use": false,
    });
    let devices = plan.folder.join("many-cairn/devices");
    // It may have been ended before it had made its folders.
    std::fs::create_dir_all(&devices)?;
    std::fs::write(devices.join("many.json"), document.to_string())?;
    let start = Instant::now();
    cairn.serve()?;
    // Its ports are open before it has read anything: it has started when it answers.
    cairn.cli(&["history", "status", "many"])?;
    report.alone(
        "starting a server with that history",
        "s",
        start.elapsed().as_secs_f64(),
        report::Target::None,
    );
    Ok(cairn)
}

/// The time to find and export an instant.
fn show_instants(
    cairn: &Cairn,
    report: &mut Report,
    (from, to): (u64, u64),
    writes: u64,
    rng: &mut Rng,
) -> Result<()> {
    let mut times = Vec::new();
    let mut slowest = Duration::ZERO;
    for round in 0..10u64 {
        let at = from + rng.below(to - from);
        let name = format!("v{round}");
        let instant = chrono_utc(at);
        let start = Instant::now();
        cairn.cli(&["history", "view", "many", "--at", &instant, "--as", &name])?;
        let uri = cairn.server()?.uri(&format!("many@{name}"));
        crate::process::run(std::process::Command::new("qemu-io").args([
            "-r",
            "-f",
            "raw",
            "-c",
            "read 0 64k",
            &uri,
        ]))?;
        slowest = slowest.max(start.elapsed());
        times.push(start.elapsed().as_secs_f64());
    }
    let work = format!("an instant in a window of {writes} writes: command, export, first read by qemu-io");
    report.alone(work, "s", median(times), Limit(1.0));
    report.alone("the slowest of 10", "s", slowest.as_secs_f64(), Limit(1.0));
    Ok(())
}

/// An instant as `--at` takes it: seconds since 1970 as a UTC date.
fn chrono_utc(at_ns: u64) -> String {
    let seconds = at_ns / 1_000_000_000;
    // Days since 1970 to a date (H. Hinnant, "chrono-compatible low-level date algorithms").
    let shifted = seconds / 86_400 + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    let rest = seconds % 86_400;
    let (hour, minute, second, nanos) = (rest / 3600, rest / 60 % 60, rest % 60, at_ns % 1_000_000_000);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{nanos:09}Z")
}
