//! Reads and writes of one export, Cairn next to nbdkit and qemu-nbd.

use std::time::Duration;

use anyhow::Result;

use crate::Plan;
use crate::cairn::{Cairn, MEMORY_DEFAULT_MIB};
use crate::fio::{Load, Seen, Target};
use crate::peers::{Qcow2, nbdkit_file, qemu_raw};
use crate::process::{Server, settle};
use crate::report::{self, Report, median};

/// A write-anywhere volume needs room to write anywhere: blocks of volume for each block of LUN.
const VOLUME_FACTOR: u64 = 3;
/// Memory for the tables whose data is to be in cache: five sixteenths of it is cache for data. The
/// peers have all of the machine's.
const MEMORY_FOR_CACHED_MIB: u64 = 1024;

/// All contenders; all run at once, so that an idle one costs only its memory.
struct Contenders {
    cairn: Option<Cairn>,
    nbdkit: Server,
    qemu_raw: Option<Server>,
    qcow2: Option<Qcow2>,
}

/// The measurements of each contender, in the order of `Contenders::names`.
type Turns = Vec<(&'static str, Vec<Seen>)>;

impl Contenders {
    /// Starts everybody and fills every export once.
    fn start(plan: &Plan, with_qemu: bool, memory_mib: u64) -> Result<Self> {
        let bytes = plan.export_bytes();
        let folder = plan.folder.join("served");
        std::fs::create_dir_all(&folder)?;
        let cairn = if plan.only_peers {
            None
        } else {
            let cairn = Cairn::start(plan, "served-cairn", "off", memory_mib)?;
            cairn.make_lun(bytes * VOLUME_FACTOR, bytes)?;
            Some(cairn)
        };
        let contenders = Self {
            cairn,
            nbdkit: nbdkit_file(&folder, "nbdkit", bytes)?,
            qemu_raw: with_qemu.then(|| qemu_raw(&folder, bytes)).transpose()?,
            qcow2: with_qemu.then(|| Qcow2::new(&folder, bytes)).transpose()?,
        };
        for (_, target) in contenders.targets(plan)? {
            Load::fill(bytes).run(&target)?;
        }
        settle()?;
        Ok(contenders)
    }

    fn targets<'a>(&'a self, plan: &'a Plan) -> Result<Vec<(&'static str, Target<'a>)>> {
        let target = |server: &'a Server, uri| Target { server, uri, scratch: &plan.folder };
        let mut targets = Vec::new();
        if let Some(cairn) = &self.cairn {
            targets.push(("cairn", target(cairn.server()?, cairn.lun()?)));
        }
        targets.push(("nbdkit file", target(&self.nbdkit, self.nbdkit.uri(""))));
        if let Some(server) = &self.qemu_raw {
            targets.push(("qemu-nbd raw", target(server, server.uri(""))));
        }
        if let Some(qcow2) = &self.qcow2 {
            targets.push(("qemu-nbd qcow2", target(qcow2.server()?, qcow2.server()?.uri(""))));
        }
        Ok(targets)
    }

    /// Rounds of turns with one load.
    fn take_turns(&self, plan: &Plan, rounds: usize, load: &Load) -> Result<Turns> {
        let targets = self.targets(plan)?;
        let mut turns: Turns = targets.iter().map(|(name, _)| (*name, Vec::new())).collect();
        for _ in 0..rounds {
            for (index, (name, target)) in targets.iter().enumerate() {
                if load.pattern.ends_with("read") && load.bytes <= plan.cached_bytes() {
                    Load::warm(load.bytes).run(target)?;
                }
                let seen = load.run(target)?;
                eprintln!(
                    "   {} {} B depth {}: {name}: {:.0} IOPS, {:.0} MB/s",
                    load.pattern,
                    load.request,
                    load.depth,
                    seen.iops,
                    seen.rate / 1e6
                );
                turns[index].1.push(seen);
                settle()?;
            }
        }
        Ok(turns)
    }
}

/// The median of one figure over a contender's turns.
fn of(turns: &Turns, contender: &str, figure: fn(&Seen) -> f64) -> Option<f64> {
    let (_, seen) = turns.iter().find(|(name, _)| *name == contender)?;
    Some(median(seen.iter().map(figure).collect()))
}

/// Adds a row for each peer that took part; `targets` gives the target against each.
fn rows(
    report: &mut Report,
    turns: &Turns,
    work: &str,
    unit: &'static str,
    figure: fn(&Seen) -> f64,
    targets: &[(&'static str, report::Target)],
) {
    for (peer, _) in turns.iter().filter(|(name, _)| *name != "cairn") {
        let asked = targets.iter().find(|(name, _)| name == peer);
        let target = asked.map_or(report::Target::None, |(_, target)| *target);
        if let Some(peer_figure) = of(turns, peer, figure) {
            report.against(work, unit, of(turns, "cairn", figure), (*peer, peer_figure), target);
        }
    }
}

/// All measurements of a LUN without snapshots, except the sustained writes.
pub(crate) fn served(plan: &Plan, report: &mut Report) -> Result<()> {
    use report::Target::{AtLeast, AtMost};
    let contenders = Contenders::start(plan, true, MEMORY_FOR_CACHED_MIB)?;
    let (bytes, cached, turn) = (plan.export_bytes(), plan.cached_bytes(), plan.turn());
    let turns_of = |load: &Load| contenders.take_turns(plan, plan.rounds(), load);

    let seen = turns_of(&Load::small("randread", 32, cached, turn))?;
    let work = "4 KiB random read, depth 32, in cache";
    rows(report, &seen, work, "IOPS", |seen| seen.iops, &[("nbdkit file", AtLeast(1.2))]);
    let work = "server CPU of these reads";
    rows(report, &seen, work, "s per 100,000", |seen| seen.cpu_per_100k, &[("nbdkit file", AtMost(1.0))]);

    let seen = turns_of(&Load::small("randwrite", 32, bytes, turn))?;
    let work = "4 KiB random write, depth 32, no flush";
    rows(report, &seen, work, "IOPS", |seen| seen.iops, &[]);
    let work = "server CPU of these writes";
    rows(report, &seen, work, "s per 100,000", |seen| seen.cpu_per_100k, &[("nbdkit file", AtMost(1.5))]);

    let seen = turns_of(&Load { flush_each: 32, ..Load::small("randwrite", 32, bytes, turn) })?;
    let work = "4 KiB random write, depth 32, a flush each 32";
    let asked = [("nbdkit file", AtLeast(2.0)), ("qemu-nbd qcow2", AtLeast(3.0))];
    rows(report, &seen, work, "IOPS", |seen| seen.iops, &asked);

    for (pattern, work) in
        [("write", "128 KiB sequential write, depth 32"), ("read", "128 KiB sequential read, depth 32")]
    {
        let touched = if pattern == "read" { cached } else { bytes };
        let seen = turns_of(&Load::large(pattern, touched, turn))?;
        rows(report, &seen, work, "MB/s", |seen| seen.rate / 1e6, &[("nbdkit file", AtLeast(1.0))]);
        if pattern == "write" {
            let work = "the same until a flush after it has returned";
            rows(report, &seen, work, "MB/s", |seen| seen.flushed_rate / 1e6, &[]);
        }
    }

    for (pattern, work) in [("randread", "read"), ("randwrite", "write")] {
        let seen = turns_of(&Load::small(pattern, 1, cached, turn))?;
        let asked = [("nbdkit file", AtMost(1.0))];
        rows(report, &seen, &format!("4 KiB {work}, depth 1, p50"), "us", |seen| seen.p50_us, &asked);
        rows(report, &seen, &format!("4 KiB {work}, depth 1, p99"), "us", |seen| seen.p99_us, &asked);
    }

    if let Some(cairn) = &contenders.cairn {
        cairn.report_memory(report, plan.export_bytes() * VOLUME_FACTOR)?;
    }
    report.note(format!(
        "Data in cache: {} MiB (Cairn was given {MEMORY_FOR_CACHED_MIB} MiB of memory), read just before each turn. {} rounds of {} s. The reads in order are of the data in cache.",
        cached >> 20,
        plan.rounds(),
        turn.as_secs(),
    ));
    Ok(())
}

/// Random writes for longer than memory can carry.
pub(crate) fn sustained(plan: &Plan, report: &mut Report) -> Result<()> {
    let length: Duration = plan.long_turn();
    let contenders = Contenders::start(plan, false, MEMORY_DEFAULT_MIB)?;
    let load = Load::small("randwrite", 32, plan.export_bytes(), length);
    let seen = contenders.take_turns(plan, plan.rounds().min(2), &load)?;
    let work = format!("4 KiB random write, depth 32, no flush, {} s sustained", length.as_secs());
    rows(report, &seen, &work, "IOPS", |seen| seen.iops, &[("nbdkit file", report::Target::AtLeast(1.2))]);
    if let Some(cairn) = &contenders.cairn {
        cairn.report_memory(report, plan.export_bytes() * VOLUME_FACTOR)?;
    }
    Ok(())
}
