//! Mirrors over links: a high-latency one with one connection and with eight, a limit, and four
//! destinations of which one is slow.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::Plan;
use crate::cairn::{Cairn, MEMORY_DEFAULT_MIB};
use crate::fio::{Load, Target, Until};
use crate::link::{Link, Shape};
use crate::process::settle;
use crate::report::{self, Report, median};

/// A high-latency link, with Linux's default limit of a connection's data in flight.
const LONG: Shape = Shape { round_trip: Duration::from_millis(150), bits: 1e9, window: 4 << 20 };
/// The rate of each quick destination: this machine can do it for all of them at the same time.
const LEG: u64 = 16 << 20;

fn source(plan: &Plan, report: &mut Report, bytes: u64) -> Result<Option<Cairn>> {
    if plan.only_peers {
        report.note("No peer takes part in this table.");
        return Ok(None);
    }
    let source = Cairn::start(plan, "link-source", "127.0.0.1:0", MEMORY_DEFAULT_MIB)?;
    // Each destination keeps its base, a slow one an image as well, and all of them are written
    // over.
    source.make_lun(bytes * 12, bytes)?;
    fill(plan, &source, bytes)?;
    settle()?;
    Ok(Some(source))
}

fn fill(plan: &Plan, source: &Cairn, bytes: u64) -> Result<()> {
    let load = Load { until: Until::Bytes(bytes), ..Load::fill(bytes) };
    load.run(&Target { server: source.server()?, uri: source.lun()?, scratch: &plan.folder })?;
    Ok(())
}

/// Makes a mirror on a new server; `advertise` is where it reaches the source.
fn destination(plan: &Plan, name: &str, source: &Cairn, advertise: &str, options: &[&str]) -> Result<Cairn> {
    let destination = Cairn::start(plan, name, "off", MEMORY_DEFAULT_MIB)?;
    let token = source.json(&["peer", "invite", "--advertise", advertise])?;
    let token = token["token"].as_str().context("peer invite --json gave no token")?.to_owned();
    destination.cli(&[&["mirror", "create", "vol0", &token][..], options].concat())?;
    Ok(destination)
}

/// Bytes a second of the last transfer of a mirror.
fn last_rate(destination: &Cairn) -> Result<f64> {
    let status = destination.json(&["mirror", "status", "vol0"])?;
    let field =
        |name: &str| status["last"][name].as_f64().with_context(|| format!("no last.{name}: {status}"));
    Ok(field("sent_bytes")? / (field("duration_ms")? / 1000.0))
}

/// A baseline over 1 Gbit/s and 150 ms.
pub(crate) fn long_link(plan: &Plan, report: &mut Report) -> Result<()> {
    let bytes = if plan.quick { 64 << 20 } else { 1 << 30 };
    let Some(source) = source(plan, report, bytes)? else { return Ok(()) };
    let address = source.json(&["status"])?["mirror"].as_str().context("no mirror address")?.parse()?;
    let link = Link::start(address, LONG)?;
    let advertise = link.address.to_string();
    let capacity = ("the link: 1 Gbit/s, 150 ms", LONG.bits / 8e6);
    for (connections, target) in
        [("1", report::Target::None), ("4", report::Target::None), ("8", report::Target::AtLeast(0.8))]
    {
        let mut rates = Vec::new();
        for round in 0..plan.rounds() {
            let name = format!("link-{connections}-{round}");
            let options = ["--connections", connections, "--compress", "never"];
            let destination = destination(plan, &name, &source, &advertise, &options)?;
            rates.push(last_rate(&destination)? / 1e6);
            destination.cli(&["mirror", "delete", "vol0", "--yes"])?;
        }
        let work = format!("baseline over a long link, {connections} connection(s)");
        report.against(&work, "MB/s", Some(median(rates)), capacity, target);
    }
    report.note(
        "The link is a relay in this program: each connection has at most 4 MiB on its way. From the request to the commit, the round trips before the first byte included.",
    );
    Ok(())
}

/// The effect of a limit of 20 MiB/s on a transfer.
pub(crate) fn limit(plan: &Plan, report: &mut Report) -> Result<()> {
    let bytes = if plan.quick { 64 << 20 } else { 512 << 20 };
    let Some(source) = source(plan, report, bytes)? else { return Ok(()) };
    let address = source.json(&["status"])?["mirror"].as_str().context("no mirror address")?.to_owned();
    let limits = [("20M", 20 << 20, "1"), ("20M", 20 << 20, "4"), ("60M", 60 << 20, "1")];
    for (at, (limit, rate, connections)) in limits.into_iter().enumerate() {
        let options = ["--limit", limit, "--compress", "never", "--connections", connections];
        let destination = destination(plan, &format!("limit-{at}"), &source, &address, &options)?;
        let work = format!("baseline with --limit {limit}, {connections} connection(s)");
        let told = ("the limit", f64::from(rate) / 1e6);
        let ratio = last_rate(&destination)? / 1e6;
        report.against(&work, "MB/s", Some(ratio), told, report::Target::AtLeast(0.95));
        report.against(&work, "MB/s", Some(ratio), told, report::Target::AtMost(1.05));
        destination.cli(&["mirror", "delete", "vol0", "--yes"])?;
    }
    Ok(())
}

/// Three destinations alone, and with a fourth at a hundredth of their speed.
pub(crate) fn fan_out(plan: &Plan, report: &mut Report) -> Result<()> {
    let bytes = if plan.quick { 64 << 20 } else { 256 << 20 };
    let Some(source) = source(plan, report, bytes)? else { return Ok(()) };
    let address = source.json(&["status"])?["mirror"].as_str().context("no mirror address")?.to_owned();
    let make = |name: &str| destination(plan, name, &source, &address, &["--compress", "never"]);
    let legs = [make("leg-0")?, make("leg-1")?, make("leg-2")?];
    let slow = make("leg-slow")?;
    for leg in &legs {
        leg.cli(&["mirror", "set", "vol0", "--limit", &LEG.to_string()])?;
    }
    slow.cli(&["mirror", "set", "vol0", "--limit", &(LEG / 100).to_string()])?;
    let together = || -> Result<Vec<f64>> {
        fill(plan, &source, bytes)?;
        std::thread::scope(|scope| {
            let update = |leg| {
                scope.spawn(move || -> Result<f64> {
                    let leg: &Cairn = leg;
                    leg.cli(&["mirror", "update", "vol0"])?;
                    last_rate(leg)
                })
            };
            let running: Vec<_> = legs.iter().map(update).collect();
            running
                .into_iter()
                .map(|leg| leg.join().map_err(|_| anyhow::anyhow!("a leg panicked"))?)
                .collect()
        })
    };
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for _ in 0..plan.rounds() {
        alone.extend(together()?);
        let mut crawl = slow.command(&["mirror", "update", "vol0"]);
        fill(plan, &source, bytes)?;
        let mut crawl = crawl.stdout(std::process::Stdio::null()).spawn()?;
        let began = Instant::now();
        while slow.json(&["mirror", "status", "vol0"])?["state"] != "transferring" {
            anyhow::ensure!(began.elapsed() < Duration::from_secs(30), "the slow leg does not begin");
        }
        beside.extend(together()?);
        let still = slow.json(&["mirror", "status", "vol0"])?["state"] == "transferring";
        anyhow::ensure!(still, "the slow leg was not slow enough");
        slow.cli(&["mirror", "abort", "vol0"])?;
        let _ = crawl.wait();
    }
    let (alone, beside) = (median(alone) / 1e6, median(beside) / 1e6);
    report.against(
        "an update, three destinations beside one at a hundredth of their speed",
        "MB/s each",
        Some(beside),
        ("without that one", alone),
        report::Target::AtLeast(0.95),
    );
    report.note("Each of the three has --limit 16M, so that the machine, which runs all five servers, is not what they share.");
    Ok(())
}
