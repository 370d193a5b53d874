//! Buckets next to programs that move the same bytes to and from the same store: dumps and
//! restores, updates of a mirror, requests, and volumes that are opened from a bucket over a slow
//! link.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cairn_base::Rng;

use crate::Plan;
use crate::cairn::{Cairn, MEMORY_DEFAULT_MIB};
use crate::fio::{Load, Target as Export};
use crate::link::{Link, Shape};
use crate::process::{run, settle, timed};
use crate::report::{Report, Target, median};
use crate::stores::{Store, ask_for};

/// Files of the update.
const FILES: usize = 100_000;
/// One in this many changes.
const CHANGED_ONE_IN: usize = 100;
/// Sizes of files, one after the other: 5.3 KiB on average.
const SIZES: [usize; 3] = [4 << 10, 4 << 10, 8 << 10];
/// Files in a directory.
const FILES_EACH: usize = 500;
/// The latency of a request over a slow link.
const LATENCY: Duration = Duration::from_millis(30);
/// Prices of one vendor: dollars for 1,000 requests.
const PUT_DOLLARS: f64 = 0.005;
const GET_DOLLARS: f64 = 0.0004;
const MONTH_S: f64 = 30.0 * 86_400.0;

/// All of it.
pub(crate) fn bucket(plan: &Plan, report: &mut Report) -> Result<()> {
    plan.ask_room(12)?;
    for (work, rows) in [
        ("dump", dumps as fn(&Plan, &mut Report) -> Result<()>),
        ("update", updates),
        ("requests", requests),
        ("link", over_a_link),
        ("cache", crate::bucket_cache_rows::cache),
        ("memory", crate::bucket_cache_rows::memory),
    ] {
        if plan.wants(work) {
            rows(plan, report).with_context(|| format!("the rows of `{work}`"))?;
        }
    }
    Ok(())
}

fn noise(path: &Path, bytes: u64, rng: &mut Rng) -> Result<()> {
    let mut file = fs::File::create(path)?;
    let mut buffer = vec![0; 1 << 20];
    for _ in 0..bytes.div_ceil(buffer.len() as u64) {
        rng.fill(&mut buffer);
        std::io::Write::write_all(&mut file, &buffer)?;
    }
    Ok(file.sync_all()?)
}

/// A server with `vol0/db`, which has the bytes of a file.
fn server_with(plan: &Plan, name: &str, file: &Path, bytes: u64) -> Result<Cairn> {
    let cairn = Cairn::start(plan, name, "off", MEMORY_DEFAULT_MIB)?;
    cairn.make_lun(bytes * 2 + (64 << 20), bytes)?;
    run(Command::new("nbdcopy").arg("--flush").arg(file).arg(cairn.lun()?))?;
    Ok(cairn)
}

fn path(path: &Path) -> Result<&str> {
    path.to_str().context("a path that is no text")
}

/// Times by contender.
#[derive(Default)]
struct Times(BTreeMap<&'static str, Vec<f64>>);

impl Times {
    fn note(&mut self, who: &'static str, took: Duration) {
        self.0.entry(who).or_default().push(took.as_secs_f64());
    }

    fn rate(&self, who: &str, bytes: u64) -> Option<f64> {
        let times = self.0.get(who)?;
        Some(bytes as f64 / median(times.clone()) / 1e6)
    }

    fn seconds(&self, who: &str) -> Option<f64> {
        self.0.get(who).map(|times| median(times.clone()))
    }
}

/// A full dump into the bucket and a restore from it.
fn dumps(plan: &Plan, report: &mut Report) -> Result<()> {
    ["rclone", "restic", "s5cmd"].into_iter().try_for_each(ask_for)?;
    let bytes: u64 = if plan.quick { 64 << 20 } else { 1 << 30 };
    let store = Store::start(&plan.folder.join("dump-store"))?;
    let file = plan.folder.join("data");
    noise(&file, bytes, &mut Rng::new(1))?;
    let cairn = match plan.only_peers {
        true => None,
        false => {
            let cairn = server_with(plan, "dump-cairn", &file, bytes)?;
            store.add_to(&cairn, "cairn", store.address())?;
            Some(cairn)
        }
    };
    settle()?;
    let (mut out, mut back) = (Times::default(), Times::default());
    let to = plan.folder.join("back");
    let file = path(&file)?;
    for round in 0..plan.rounds() {
        fs::create_dir_all(&to)?;
        if let Some(cairn) = &cairn {
            let place = format!("cairn:r{round}/");
            out.note("cairn", timed(&mut cairn.command(&["image", "dump", "-0", "vol0", &place]))?);
            settle()?;
            let from = format!("{place}vol0");
            back.note("cairn", timed(&mut cairn.command(&["image", "restore", "back", &from]))?);
            cairn.cli(&["volume", "delete", "back", "--yes"])?;
            settle()?;
        }
        let object = format!("s3://{}/s5cmd/{round}", crate::stores::BUCKET);
        out.note("s5cmd", timed(&mut store.s5cmd(store.address(), &["cp", file, &object])?)?);
        settle()?;
        let copy = to.join("s5cmd");
        let mut get = store.s5cmd(store.address(), &["cp", &object, path(&copy)?])?;
        back.note("s5cmd", synced(&mut get, &copy)?);
        settle()?;
        let object = format!("REMOTE/rclone/{round}");
        out.note("rclone", timed(&mut store.rclone(&["copyto", file, &object])?)?);
        settle()?;
        let copy = to.join("rclone");
        back.note("rclone", synced(&mut store.rclone(&["copyto", &object, path(&copy)?])?, &copy)?);
        settle()?;
        let repository = format!("restic{round}");
        run(&mut store.restic(&repository, &["init"])?)?;
        out.note("restic", timed(&mut store.restic(&repository, &["backup", file])?)?);
        settle()?;
        let copy = to.join("restic");
        let mut restore = store.restic(&repository, &["restore", "latest", "--target", path(&copy)?])?;
        back.note("restic", synced(&mut restore, &copy.join(file.trim_start_matches('/')))?);
        fs::remove_dir_all(&to)?;
        settle()?;
    }
    let peers =
        [("s5cmd", Target::AtLeast(0.9)), ("rclone", Target::AtLeast(0.9)), ("restic", Target::AtLeast(3.0))];
    for (work, times) in
        [("image dump -0 into the bucket", &out), ("image restore from the bucket, durable", &back)]
    {
        for (peer, target) in peers {
            let figure = times.rate(peer, bytes).context("a peer without a figure")?;
            report.against(work, "MB/s", times.rate("cairn", bytes), (peer, figure), target);
        }
    }
    report.note(format!(
        "{} MiB that cannot be compressed, in one LUN and in one file, from and to the disk that the store uses.",
        bytes >> 20
    ));
    Ok(())
}

/// The time of a program until its file is durable, as a restored volume is.
fn synced(command: &mut Command, file: &Path) -> Result<Duration> {
    let start = Instant::now();
    run(command)?;
    fs::File::open(file).with_context(|| file.display().to_string())?.sync_all()?;
    Ok(start.elapsed())
}

fn file_of(number: usize) -> PathBuf {
    Path::new(&format!("d{}", number / FILES_EACH)).join(format!("f{number}"))
}

fn write_file(root: &Path, number: usize, rng: &mut Rng) -> Result<u64> {
    let mut bytes = vec![0; SIZES[number % SIZES.len()]];
    rng.fill(&mut bytes);
    fs::write(root.join(file_of(number)), &bytes)?;
    Ok(bytes.len() as u64)
}

fn make_files(root: &Path, files: usize) -> Result<()> {
    let mut rng = Rng::new(9);
    for number in 0..files {
        if number.is_multiple_of(FILES_EACH) {
            fs::create_dir(root.join(format!("d{}", number / FILES_EACH)))?;
        }
        write_file(root, number, &mut rng)?;
    }
    Ok(())
}

/// One per cent of many files has changed since the last update.
fn updates(plan: &Plan, report: &mut Report) -> Result<()> {
    ["rclone", "restic"].into_iter().try_for_each(ask_for)?;
    let files = if plan.quick { 1_000 } else { FILES };
    let store = Store::start(&plan.folder.join("update-store"))?;
    let plain = plan.folder.join("plain");
    fs::create_dir(&plain)?;
    make_files(&plain, files)?;
    let mounted = plan.folder.join("mounted");
    fs::create_dir(&mounted)?;
    let cairn = match plan.only_peers {
        true => None,
        false => {
            let cairn = Cairn::start(plan, "update-cairn", "off", MEMORY_DEFAULT_MIB)?;
            cairn.cli(&["volume", "create", "vol0", "--size", &(8_u64 << 30).to_string()])?;
            cairn.cli(&["mount", "vol0", path(&mounted)?])?;
            make_files(&mounted, files)?;
            store.add_to(&cairn, "cairn", store.address())?;
            cairn.cli(&["mirror", "create", "vol0", "--to", "cairn:"])?;
            Some(cairn)
        }
    };
    let source = path(&plain)?;
    run(&mut store.restic("restic", &["init"])?)?;
    run(&mut store.restic("restic", &["backup", source])?)?;
    run(&mut store.rclone(&["sync", source, "REMOTE/rclone"])?)?;
    let (mut times, mut rng) = (Times::default(), Rng::new(77));
    let (mut sent, mut changed) = (Vec::new(), Vec::new());
    for _ in 0..plan.rounds() {
        let some: Vec<usize> =
            (0..files / CHANGED_ONE_IN).map(|_| rng.below(files as u64) as usize).collect();
        for number in &some {
            write_file(&plain, *number, &mut rng)?;
        }
        settle()?;
        if let Some(cairn) = &cairn {
            let mut bytes = 0;
            for number in &some {
                bytes += write_file(&mounted, *number, &mut rng)?;
            }
            settle()?;
            times.note("cairn", timed(&mut cairn.command(&["mirror", "update", "cairn:vol0"]))?);
            let shown = cairn.json(&["mirror", "show", "cairn:vol0"])?;
            sent.push(shown["last"]["sent_bytes"].as_f64().context("no sent_bytes")? / 1e6);
            changed.push(bytes as f64 / 1e6);
            settle()?;
        }
        times.note("restic", timed(&mut store.restic("restic", &["backup", source])?)?);
        settle()?;
        times.note("rclone sync", timed(&mut store.rclone(&["sync", source, "REMOTE/rclone"])?)?);
        settle()?;
    }
    let work = format!("update of a mirror in a bucket, 1 % of {files} files changed");
    for (peer, target) in [("restic", Target::AtMost(0.1)), ("rclone sync", Target::AtMost(0.2))] {
        let figure = times.seconds(peer).context("a peer without a figure")?;
        report.against(&work, "s", times.seconds("cairn"), (peer, figure), target);
    }
    if let Some(cairn) = &cairn {
        let written = ("changed bytes of files", median(changed));
        report.against("bytes put by the update", "MB", Some(median(sent)), written, Target::None);
        cairn.cli(&["unmount", path(&mounted)?])?;
    }
    Ok(())
}

/// Requests to the bucket since the start of the server, by operation.
fn counted(cairn: &Cairn) -> Result<BTreeMap<String, f64>> {
    let text = cairn.text("/metrics")?;
    let mut counts = BTreeMap::new();
    for line in text.lines() {
        let Some(rest) = line.strip_prefix("cairn_bucket_requests_total{") else { continue };
        let operation = rest.split("operation=\"").nth(1).and_then(|rest| rest.split('"').next());
        let value = line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok());
        let (operation, value) = operation.zip(value).context("a metric that is none")?;
        *counts.entry(operation.to_owned()).or_default() += value;
    }
    ensure!(!counts.is_empty(), "the server has no metrics of buckets");
    Ok(counts)
}

fn since(now: &BTreeMap<String, f64>, before: &BTreeMap<String, f64>, operations: &[&str]) -> f64 {
    operations.iter().map(|one| now.get(*one).unwrap_or(&0.0) - before.get(*one).unwrap_or(&0.0)).sum()
}

/// Requests of a mirror with an image each 5 s, and their price.
fn requests(plan: &Plan, report: &mut Report) -> Result<()> {
    if plan.only_peers {
        return Ok(());
    }
    let bytes: u64 = if plan.quick { 128 << 20 } else { 2 << 30 };
    let store = Store::start(&plan.folder.join("request-store"))?;
    let cairn = Cairn::start(plan, "request-cairn", "off", MEMORY_DEFAULT_MIB)?;
    // 70 % full.
    cairn.make_lun((bytes * 10 / 7) & !4095, bytes)?;
    let export = || -> Result<Export<'_>> {
        Ok(Export { server: cairn.server()?, uri: cairn.lun()?, scratch: &plan.folder })
    };
    Load::fill(bytes).run(&export()?)?;
    store.add_to(&cairn, "cairn", store.address())?;
    cairn.cli(&["mirror", "create", "vol0", "--to", "cairn:", "--every", "5s"])?;
    let length = Duration::from_secs(if plan.quick { 15 } else { 120 });
    for iops in [100, 1_000] {
        let (before, start) = (counted(&cairn)?, Instant::now());
        let sent = || -> Result<f64> {
            let shown = cairn.json(&["mirror", "show", "cairn:vol0"])?;
            shown["sent_bytes"].as_f64().context("no sent_bytes")
        };
        let sent_before = sent()?;
        let load = Load { iops, ..Load::small("randwrite", 32, bytes, length) };
        let seen = load.run(&export()?)?;
        let took = start.elapsed().as_secs_f64();
        let now = counted(&cairn)?;
        let puts = since(&now, &before, &["put", "list"]);
        let gets = since(&now, &before, &["get", "head"]);
        let month = MONTH_S / took;
        let dollars = (puts * PUT_DOLLARS + gets * GET_DOLLARS) / 1e3 * month;
        let limit = if iops == 1_000 { Target::Limit(60.0) } else { Target::None };
        report.alone(
            format!("requests of a month, {iops} random 4 KiB writes a second, an image each 5 s"),
            "$",
            dollars,
            limit,
        );
        report.alone(
            format!("the same: puts of a month, in millions; {:.0} writes a second were seen", seen.iops),
            "million",
            puts * month / 1e6,
            Target::None,
        );
        let written = seen.iops * took * 4096.0;
        report.alone(
            "the same: bytes put for each byte written",
            "x",
            (sent()? - sent_before) / written,
            Target::None,
        );
    }
    // The last writes arrive.
    std::thread::sleep(Duration::from_secs(20));
    let (before, idle) = (counted(&cairn)?, Duration::from_secs(if plan.quick { 15 } else { 300 }));
    std::thread::sleep(idle);
    let now = counted(&cairn)?;
    let all = since(&now, &before, &["put", "list", "get", "head", "delete"]);
    report.alone(
        "requests of an idle mirror in an hour",
        "",
        all * 3600.0 / idle.as_secs_f64(),
        Target::Limit(10.0),
    );
    report.note("The store and the prices are those of docs/bucket-images.md; the volume is 70 % full.");
    Ok(())
}

/// Volumes that are opened over a link with a latency.
fn over_a_link(plan: &Plan, report: &mut Report) -> Result<()> {
    ask_for("s5cmd")?;
    let bytes: u64 = if plan.quick { 64 << 20 } else { 1 << 30 };
    let store = Store::start(&plan.folder.join("link-store"))?;
    let file = plan.folder.join("linked");
    noise(&file, bytes, &mut Rng::new(3))?;
    let shape = Shape { round_trip: LATENCY, bits: 10e9, window: 16 << 20 };
    let far = Link::start(store.address(), shape)?.address;
    let object = format!("s3://{}/linked", crate::stores::BUCKET);
    run(&mut store.s5cmd(store.address(), &["cp", path(&file)?, &object])?)?;
    let cairn = match plan.only_peers {
        true => None,
        false => {
            open_large(plan, report, &store, far)?;
            let source = server_with(plan, "link-source", &file, bytes)?;
            store.add_to(&source, "read", store.address())?;
            source.cli(&["mirror", "create", "vol0", "--to", "read:"])?;
            let opener = Cairn::start(plan, "link-opener", "off", MEMORY_DEFAULT_MIB)?;
            store.add_to(&opener, "read", far)?;
            Some(opener)
        }
    };
    settle()?;
    let mut read = Times::default();
    for _ in 0..plan.rounds() {
        if let Some(cairn) = &cairn {
            cairn.cli(&["volume", "open", "read:vol0", "--read-only", "--fill-rate", "0"])?;
            let mut copy = Command::new("nbdcopy");
            read.note("cairn", timed(copy.arg(cairn.lun()?).arg("null:"))?);
            cairn.cli(&["volume", "delete", "vol0", "--yes"])?;
            settle()?;
        }
        let to = plan.folder.join("linked-back");
        read.note("s5cmd", timed(&mut store.s5cmd(far, &["cp", &object, path(&to)?])?)?);
        fs::remove_file(&to)?;
        settle()?;
    }
    let peer = read.rate("s5cmd", bytes).context("no figure of s5cmd")?;
    let work = "cold sequential read of a LUN from the bucket, 30 ms a request";
    report.against(work, "MB/s", read.rate("cairn", bytes), ("s5cmd", peer), Target::AtLeast(0.8));
    report.note(format!(
        "{} MiB are read by nbdcopy, over a link of 10 Gbit/s with a round trip of 30 ms. s5cmd writes a file.",
        bytes >> 20
    ));
    Ok(())
}

/// The first read of a volume of 20 TiB. No file on ext4 can be as long, so the servers are in
/// memory, and have little data.
fn open_large(plan: &Plan, report: &mut Report, store: &Store, far: std::net::SocketAddr) -> Result<()> {
    const WRITTEN: u64 = 256 << 20;
    let file = plan.folder.join("large");
    noise(&file, WRITTEN, &mut Rng::new(5))?;
    let source = Cairn::elsewhere(plan, "large-source", "off", MEMORY_DEFAULT_MIB)?;
    source.make_lun(20 << 40, WRITTEN)?;
    run(Command::new("nbdcopy").arg("--flush").arg(&file).arg(source.lun()?))?;
    store.add_to(&source, "large", store.address())?;
    source.cli(&["mirror", "create", "vol0", "--to", "large:"])?;
    drop(source);
    fs::remove_file(&file)?;
    let opener = Cairn::elsewhere(plan, "large-opener", "off", MEMORY_DEFAULT_MIB)?;
    store.add_to(&opener, "large", far)?;
    let mut opened = Vec::new();
    for _ in 0..plan.rounds() {
        let start = Instant::now();
        opener.cli(&["volume", "open", "large:vol0", "--fill-rate", "0"])?;
        run(Command::new("qemu-io").args(["-r", "-f", "raw", "-c", "read 0 4096", &opener.lun()?]))?;
        opened.push(start.elapsed().as_secs_f64());
        opener.cli(&["volume", "delete", "vol0", "--yes"])?;
    }
    report.alone(
        "volume open of 20 TiB, sparse, until the first read, 30 ms a request",
        "s",
        median(opened),
        Target::Limit(3.0),
    );
    report.note(format!(
        "The volume of 20 TiB has {} MiB of data. A table of 1 TiB of data has 8.4 MB more, which is fetched at once.",
        WRITTEN >> 20
    ));
    Ok(())
}
