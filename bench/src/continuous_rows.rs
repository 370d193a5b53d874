//! The cost of a mirror that follows continuously for the clients of its source, and its lag.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::Plan;
use crate::cairn::{Cairn, MEMORY_DEFAULT_MIB};
use crate::fio::{Load, Seen, Target};
use crate::process::settle;
use crate::report::{self, Report, median};

/// The offered loads, in writes of 4 KiB a second and writes to a flush: this machine carries them
/// with both servers and the client on it, and time to spare.
const LOADS: [(u32, u32); 3] = [(1000, 0), (4000, 0), (1000, 8)];
/// The target lag.
const LAG_MAX: f64 = 5.0;

/// Writes at a given rate, with the mirror paused and following, by turns.
pub(crate) fn continuous(plan: &Plan, report: &mut Report) -> Result<()> {
    if plan.only_peers {
        report.note("No peer takes part in this table.");
        return Ok(());
    }
    plan.ask_room(8)?;
    let bytes: u64 = if plan.quick { 64 << 20 } else { 1 << 30 };
    let source = Cairn::start(plan, "continuous-source", "127.0.0.1:0", MEMORY_DEFAULT_MIB)?;
    source.make_lun(bytes * 4, bytes)?;
    Load::fill(bytes).run(&Target { server: source.server()?, uri: source.lun()?, scratch: &plan.folder })?;
    let destination = Cairn::elsewhere(plan, "continuous", "off", MEMORY_DEFAULT_MIB)?;
    let token = source.json(&["peer", "invite"])?;
    let token = token["token"].as_str().context("peer invite --json gave no token")?.to_owned();
    destination.cli(&["mirror", "create", "vol0", &token, "--continuous"])?;
    let length = Duration::from_secs(if plan.quick { 4 } else { 30 });
    for (iops, flush_each) in LOADS {
        let load = Load { iops, flush_each, ..Load::small("randwrite", 4, bytes, length) };
        let run =
            || load.run(&Target { server: source.server()?, uri: source.lun()?, scratch: &plan.folder });
        let (mut off, mut on) = (Vec::new(), Vec::new());
        let (mut lags, mut read_steps) = (Vec::new(), 0.0);
        for _ in 0..plan.rounds() {
            destination.cli(&["mirror", "pause", "vol0"])?;
            settle()?;
            // Polled as often as in the other turn: that is ten programs a second beside the
            // client.
            off.push(beside(&destination, &run, false)?.0);
            destination.cli(&["mirror", "resume", "vol0"])?;
            // Writes made meanwhile are another matter: they show how it catches up, not how it
            // follows.
            keeps_up(&destination)?;
            settle()?;
            let (seen, lag) = beside(&destination, &run, true)?;
            on.push(seen);
            lags.push(lag);
            let status = destination.json(&["mirror", "status", "vol0"])?;
            read_steps += status["session"]["read_steps"].as_f64().unwrap_or(0.0);
        }
        let flushes = if flush_each > 0 { format!(", a flush each {flush_each}") } else { String::new() };
        let work = format!("{iops} random writes of 4 KiB a second{flushes}");
        let of = |seen: &[Seen], value: fn(&Seen) -> f64| median(seen.iter().map(value).collect());
        for (name, value, target) in [
            ("p50", (|seen: &Seen| seen.p50_us) as fn(&Seen) -> f64, report::Target::None),
            ("p99", |seen: &Seen| seen.p99_us, report::Target::AtMost(1.1)),
        ] {
            let (with, without) = (of(&on, value), of(&off, value));
            let row = format!("{work}, {name}");
            report.against(&row, "us", Some(with), ("with the mirror paused", without), target);
        }
        let lag = lags.iter().copied().fold(0.0, f64::max);
        report.alone(format!("{work}, the largest lag"), "s", lag, report::Target::Limit(LAG_MAX));
        report.alone(format!("{work}, steps read from the device"), "", read_steps, report::Target::None);
    }
    report.note("Client and source share this machine, and the destination is here as well, but as if it were elsewhere: in memory, and with what others leave of the processor (`chrt --idle`). The lag is the destination's own, asked ten times a second: the time since the source was heard of counts in it.");
    Ok(())
}

/// Waits until the mirror is as near as it gets.
fn keeps_up(destination: &Cairn) -> Result<()> {
    let began = Instant::now();
    loop {
        let status = destination.json(&["mirror", "status", "vol0"])?;
        if status["state"] == "continuous" && status["lag_ms"].as_u64().is_some_and(|lag| lag < 3000) {
            return Ok(());
        }
        anyhow::ensure!(began.elapsed() < Duration::from_secs(120), "the mirror does not catch up: {status}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Runs a load, and asks for the lag meanwhile; the largest, in seconds. A mirror that does not
/// follow need not know it.
fn beside(destination: &Cairn, run: &dyn Fn() -> Result<Seen>, follows: bool) -> Result<(Seen, f64)> {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| -> Result<f64> {
            let mut most: f64 = 0.0;
            while !over.load(Ordering::Acquire) {
                let status = destination.json(&["mirror", "status", "vol0"])?;
                let lag = status["lag_ms"].as_f64().or((!follows).then_some(0.0));
                most = most.max(lag.context("no lag is known")? / 1000.0);
                std::thread::sleep(Duration::from_millis(100));
            }
            Ok(most)
        });
        let seen = run();
        over.store(true, Ordering::Release);
        let most = watch.join().map_err(|_| anyhow::anyhow!("the watch panicked"))??;
        Ok((seen?, most))
    })
}
