//! What snapshots cost: random writes with some, with many, and the latency of clients while one is made.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::Plan;
use crate::cairn::{Cairn, MEMORY_DEFAULT_MIB};
use crate::fio::{Load, Target, Until};
use crate::peers::Qcow2;
use crate::process::{run, settle};
use crate::report::{self, Report, median};

/// A few writes between snapshots, so that they differ.
const BETWEEN_BYTES: u64 = 4 << 20;

/// Random writes with 0, 1, 50 and 1,000 snapshots. Cairn's own figure without snapshots, and qcow2 with as many, are
/// what the rest is compared with.
pub(crate) fn writes(plan: &Plan, report: &mut Report) -> Result<()> {
    let bytes = plan.export_bytes();
    let counts: &[usize] = if plan.quick { &[0, 1, 3] } else { &[0, 1, 50, 1000] };
    let load = Load::small("randwrite", 32, bytes, plan.turn());
    let folder = plan.folder.join("snapshots");
    std::fs::create_dir_all(&folder)?;

    let mut qcow2 = Qcow2::new(&folder, bytes)?;
    let cairn = if plan.only_peers {
        None
    } else {
        Some(Cairn::start(plan, "snapshots-cairn", "off", MEMORY_DEFAULT_MIB)?)
    };
    if let Some(cairn) = &cairn {
        cairn.make_lun(bytes * 4, bytes)?;
        Load::fill(bytes).run(&target(plan, cairn)?)?;
    }
    Load::fill(bytes).run(&qcow2_target(plan, &qcow2)?)?;
    settle()?;

    let mut made = 0;
    let mut without = None;
    for &count in counts {
        let mut of_cairn = Vec::new();
        let mut of_qcow2 = Vec::new();
        // A chain of 1,000 images is past what qemu opens; the peer keeps the 50 that it has.
        let chained = count.min(50);
        qcow2_to(&mut qcow2, made, chained)?;
        if let Some(cairn) = &cairn {
            for index in made..count {
                if index % 20 == 0 {
                    let some = Load { until: Until::Bytes(BETWEEN_BYTES), ..load };
                    some.run(&target(plan, cairn)?)?;
                }
                cairn.cli(&["snapshot", "create", &format!("vol0@s{index}")])?;
            }
        }
        settle()?;
        // Just after a snapshot every write meets a shared block; a second round would not, so there is one round.
        let rounds = if count == 1 { 1 } else { plan.rounds() };
        for _ in 0..rounds {
            if let Some(cairn) = &cairn {
                of_cairn.push(load.run(&target(plan, cairn)?)?.iops);
                settle()?;
            }
            of_qcow2.push(load.run(&qcow2_target(plan, &qcow2)?)?.iops);
            settle()?;
        }
        made = count;
        let cairn_iops = cairn.as_ref().map(|_| median(of_cairn));
        let work = match count {
            0 => "4 KiB random write, depth 32, no snapshot".to_owned(),
            1 => "the same, just after a snapshot".to_owned(),
            count => format!("the same, {count} snapshots"),
        };
        let asked = if count == 0 { report::Target::None } else { report::Target::AtLeast(10.0) };
        report.against(&work, "IOPS", cairn_iops, ("qcow2, external snapshots", median(of_qcow2)), asked);
        if let Some(without) = without {
            report.against(
                &work,
                "IOPS",
                cairn_iops,
                ("cairn, no snapshot", without),
                report::Target::AtLeast(0.95),
            );
        }
        without = without.or(cairn_iops);
    }
    report.note(
        "qcow2 with 1,000 snapshots is a chain of 50, the longest that was built here. btrfs and zfs-fuse are not in \
         this run: they need a kernel module or a loop device and root.",
    );
    Ok(())
}

fn qcow2_to(qcow2: &mut Qcow2, made: usize, wanted: usize) -> Result<()> {
    if wanted > made { qcow2.snapshot(wanted - made) } else { Ok(()) }
}

fn target<'a>(plan: &'a Plan, cairn: &'a Cairn) -> Result<Target<'a>> {
    Ok(Target { server: cairn.server()?, uri: cairn.lun()?, scratch: &plan.folder })
}

fn qcow2_target<'a>(plan: &'a Plan, qcow2: &'a Qcow2) -> Result<Target<'a>> {
    let server = qcow2.server()?;
    Ok(Target { server, uri: server.uri(""), scratch: &plan.folder })
}

/// Latency of a client of a 100 GiB volume while snapshots are made, and create, list and delete with 10 and 10,000.
pub(crate) fn creation(plan: &Plan, report: &mut Report) -> Result<()> {
    if plan.only_peers {
        report.note("No peer takes part in this table.");
        return Ok(());
    }
    let cairn = Cairn::start(plan, "creation-cairn", "off", MEMORY_DEFAULT_MIB)?;
    let lun_bytes = plan.export_bytes();
    cairn.make_lun(100 << 30, lun_bytes)?;
    Load::fill(lun_bytes).run(&target(plan, &cairn)?)?;
    settle()?;

    // A steady client: what counts is the worst request, with snapshots and without.
    let load = Load::small("randwrite", 4, lun_bytes, plan.turn());
    let (mut quiet, mut busy) = (Vec::new(), Vec::new());
    let mut made = 0;
    for _ in 0..plan.rounds() {
        quiet.push(load.run(&target(plan, &cairn)?)?.worst_us / 1e3);
        let seen = std::thread::scope(|scope| {
            let client = scope.spawn(|| load.run(&target(plan, &cairn)?));
            while !client.is_finished() {
                cairn.cli(&["snapshot", "create", &format!("vol0@load{made}")])?;
                made += 1;
                std::thread::sleep(Duration::from_millis(500));
            }
            client.join().unwrap_or_else(|_| anyhow::bail!("the client panicked"))
        })?;
        busy.push(seen.worst_us / 1e3);
    }
    let (quiet, busy) = (median(quiet), median(busy));
    report.against(
        "worst write while snapshots are made, depth 4",
        "ms",
        Some(busy),
        ("cairn, none made", quiet),
        report::Target::None,
    );
    report.alone(
        "latency added by making snapshots",
        "ms",
        (busy - quiet).max(0.0),
        report::Target::Limit(20.0),
    );

    let few = times(&cairn, made, "few")?;
    let many = if plan.quick { 60 } else { 10_000 };
    for index in made..many {
        cairn.cli(&["snapshot", "create", &format!("vol0@many{index}")])?;
    }
    let crowded = times(&cairn, many, "crowded")?;
    for ((work, few), (_, crowded)) in few.into_iter().zip(crowded) {
        let work = format!("{work}, {many} snapshots");
        report.against(work, "ms", Some(crowded), ("cairn, few", few), report::Target::None);
    }
    report.note(
        "Times of single commands hold the start of the program and one request on the control socket.",
    );
    Ok(())
}

/// Milliseconds of create, list and delete of one snapshot, medians of five.
fn times(cairn: &Cairn, present: usize, prefix: &str) -> Result<Vec<(&'static str, f64)>> {
    let mut create = Vec::new();
    let mut list = Vec::new();
    let mut delete = Vec::new();
    for index in 0..5 {
        let name = format!("vol0@{prefix}{present}-{index}");
        create.push(time(&mut cairn.command(&["snapshot", "create", &name]))?);
        list.push(time(cairn.command(&["snapshot", "list", "vol0"]).arg("--json"))?);
        delete.push(time(&mut cairn.command(&["snapshot", "delete", &name, "--yes"]))?);
    }
    Ok(vec![
        ("snapshot create", median(create)),
        ("snapshot list", median(list)),
        ("snapshot delete", median(delete)),
    ])
}

fn time(command: &mut Command) -> Result<f64> {
    let start = Instant::now();
    run(command)?;
    Ok(start.elapsed().as_secs_f64() * 1e3)
}
