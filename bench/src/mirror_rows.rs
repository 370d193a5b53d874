//! The mirror: a baseline next to nbdcopy, the bytes of an update; and opening after a kill.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};

use crate::Plan;
use crate::cairn::{Cairn, MEMORY_DEFAULT_MIB};
use crate::fio::{Load, Target, Until};
use crate::peers::nbdkit_file;
use crate::process::{settle, timed};
use crate::report::{self, Report, median};

/// Part of the LUN that changes before the update.
const CHANGED: f64 = 0.01;

/// A baseline over loopback between two servers, next to nbdcopy between two nbdkit; then an
/// update.
pub(crate) fn mirror(plan: &Plan, report: &mut Report) -> Result<()> {
    let bytes = plan.export_bytes();
    let folder = plan.folder.join("mirror");
    std::fs::create_dir_all(&folder)?;
    let source = nbdkit_file(&folder, "source", bytes)?;
    Load::fill(bytes).run(&Target { server: &source, uri: source.uri(""), scratch: &plan.folder })?;

    let cairn = if plan.only_peers {
        None
    } else {
        Some(Cairn::start(plan, "mirror-source", "127.0.0.1:0", MEMORY_DEFAULT_MIB)?)
    };
    if let Some(cairn) = &cairn {
        cairn.make_lun(bytes * 3, bytes)?;
        Load::fill(bytes).run(&Target {
            server: cairn.server()?,
            uri: cairn.lun()?,
            scratch: &plan.folder,
        })?;
    }
    settle()?;

    let (mut of_cairn, mut of_nbdcopy) = (Vec::new(), Vec::new());
    let mut last = None;
    for round in 0..plan.rounds() {
        if let Some(cairn) = &cairn {
            let destination =
                Cairn::start(plan, &format!("mirror-destination{round}"), "127.0.0.1:0", MEMORY_DEFAULT_MIB)?;
            let token = cairn.json(&["peer", "invite"])?;
            let token = token["token"].as_str().context("peer invite --json gave no token")?.to_owned();
            let mut create = destination.command(&["mirror", "create", "vol0", &token, "--every", "1d"]);
            of_cairn.push(bytes as f64 / timed(&mut create)?.as_secs_f64() / 1e6);
            last = Some(destination);
            settle()?;
        }
        let name = format!("copy{round}");
        let copy = nbdkit_file(&folder, &name, bytes)?;
        let mut nbdcopy = Command::new("nbdcopy");
        nbdcopy.arg("--flush").arg(source.uri("")).arg(copy.uri(""));
        of_nbdcopy.push(bytes as f64 / timed(&mut nbdcopy)?.as_secs_f64() / 1e6);
        drop(copy);
        std::fs::remove_file(folder.join(format!("{name}.data")))?;
        settle()?;
        // The older destinations are no longer needed; their disks are.
        if round > 0 && cairn.is_some() {
            std::fs::remove_dir_all(plan.folder.join(format!("mirror-destination{}", round - 1)))?;
        }
    }
    let nbdcopy = ("nbdcopy, two nbdkit file", median(of_nbdcopy));
    let baseline = cairn.as_ref().map(|_| median(of_cairn));
    report.against("mirror baseline, loopback, TLS", "MB/s", baseline, nbdcopy, report::Target::AtLeast(0.7));

    if let (Some(cairn), Some(destination)) = (&cairn, &last) {
        update(plan, report, cairn, destination)?;
    }
    Ok(())
}

/// Bytes sent for a known number of changed blocks.
fn update(plan: &Plan, report: &mut Report, source: &Cairn, destination: &Cairn) -> Result<()> {
    let changed = (plan.export_bytes() as f64 * CHANGED) as u64 & !4095;
    // In order, so that each block changes once and their number is known.
    let load = Load { until: Until::Bytes(changed), ..Load::fill(changed) };
    load.run(&Target { server: source.server()?, uri: source.lun()?, scratch: &plan.folder })?;
    let start = Instant::now();
    destination.cli(&["mirror", "update", "vol0"])?;
    let seconds = start.elapsed().as_secs_f64();
    let status = destination.json(&["mirror", "status", "vol0"])?;
    let of_last = |field: &str| {
        status["last"][field].as_f64().with_context(|| format!("mirror status has no last.{field}: {status}"))
    };
    let (sent, live) = (of_last("sent_bytes")? / 1e6, of_last("changed_bytes")? / 1e6);
    let work = "bytes sent in an update";
    report.against(work, "MB", Some(sent), ("changed live blocks", live), report::Target::AtMost(1.01));
    report.against(
        work,
        "MB",
        Some(sent),
        ("what the client wrote", changed as f64 / 1e6),
        report::Target::None,
    );
    report.alone("time of this update", "s", seconds, report::Target::None);
    Ok(())
}

/// From the start of the program until a client is served, after SIGKILL under writes, on a volume
/// of 100 GiB.
pub(crate) fn open_after_kill(plan: &Plan, report: &mut Report) -> Result<()> {
    if plan.only_peers {
        report.note("No peer takes part in this table.");
        return Ok(());
    }
    let mut cairn = Cairn::start(plan, "open-cairn", "off", MEMORY_DEFAULT_MIB)?;
    let bytes = plan.export_bytes();
    cairn.make_lun(100 << 30, bytes)?;
    Load::fill(bytes).run(&Target { server: cairn.server()?, uri: cairn.lun()?, scratch: &plan.folder })?;
    let mut seconds = Vec::new();
    for _ in 0..plan.rounds() {
        let uri = cairn.lun()?;
        // The next start replays flushed writes that are in no consistency point yet.
        let load = Load {
            flush_each: 32,
            ..Load::small("randwrite", 32, bytes, plan.turn().min(std::time::Duration::from_secs(5)))
        };
        load.run(&Target { server: cairn.server()?, uri, scratch: &plan.folder })?;
        cairn.kill()?;
        let start = Instant::now();
        cairn.serve()?;
        timed(Command::new("qemu-io").args(["-f", "raw", "-c", "read 0 4096", &cairn.lun()?]))?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    report.alone(
        "start after SIGKILL until a client has read, 100 GiB",
        "s",
        median(seconds),
        report::Target::Limit(1.0),
    );
    report.note(format!("A sparse volume of 100 GiB with {} MiB written.", bytes >> 20));
    Ok(())
}
