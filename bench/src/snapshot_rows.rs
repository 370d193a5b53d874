//! The cost of snapshots: random writes with some, with many, and the latency of clients while one
//! is made.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::Plan;
use crate::cairn::{Cairn, MEMORY_DEFAULT_MIB};
use crate::fio::{Load, Until};
use crate::peers::Qcow2;
use crate::process::{run, settle};
use crate::report::{self, Report, median};
use crate::snapshot_peers::{Btrfs, Snapshots, ZfsFuse};

/// A few writes between snapshots, so that they differ.
const BETWEEN_BYTES: u64 = 4 << 20;

/// Random writes with 0, 1, 50 and 1,000 snapshots, next to everything here that takes snapshots
/// and to Cairn without any.
pub(crate) fn writes(plan: &Plan, report: &mut Report) -> Result<()> {
    let bytes = plan.export_bytes();
    let counts: &[usize] = if plan.quick { &[0, 1, 3] } else { &[0, 1, 50, 1000] };
    let load = Load::small("randwrite", 32, bytes, plan.turn());
    let folder = plan.folder.join("snapshots");
    std::fs::create_dir_all(&folder)?;

    let mut contenders: Vec<Contender> = Vec::new();
    if !plan.only_peers {
        let cairn = Cairn::start(plan, "snapshots-cairn", "off", MEMORY_DEFAULT_MIB)?;
        cairn.make_lun(bytes * 4, bytes)?;
        contenders.push(Contender::new(Box::new(cairn)));
    }
    contenders.push(Contender::new(Box::new(Qcow2::new(&folder, bytes)?)));
    match Btrfs::new(&folder, bytes) {
        Ok(btrfs) => contenders.push(Contender::new(Box::new(btrfs))),
        Err(error) => report.note(format!("btrfs is not in this run: {error:#}")),
    }
    match ZfsFuse::new(&folder, bytes) {
        Ok(zfs) => contenders.push(Contender::new(Box::new(zfs))),
        Err(error) => report.note(format!("zfs-fuse is not in this run: {error:#}")),
    }
    for contender in &contenders {
        Load::fill(bytes).run(&contender.server.target(plan)?)?;
        settle()?;
    }

    let mut without = None;
    for &count in counts {
        let mut seen: Vec<Vec<f64>> = vec![Vec::new(); contenders.len()];
        for contender in &mut contenders {
            // One more is made before each turn.
            contender.grow_to(count.saturating_sub(1), plan, &load)?;
        }
        settle()?;
        for _ in 0..plan.rounds() {
            for (contender, seen) in contenders.iter_mut().zip(&mut seen) {
                // The newest is fresh in every turn, so that writes hit blocks that it shares.
                if count > 0 {
                    contender.snapshot()?;
                }
                seen.push(load.run(&contender.server.target(plan)?)?.iops);
                if count > 0 {
                    contender.forget()?;
                }
                settle()?;
            }
        }
        let mut medians: Vec<(&'static str, f64)> =
            contenders.iter().zip(seen).map(|(one, seen)| (one.server.label(), median(seen))).collect();
        let cairn = (!plan.only_peers).then(|| medians.remove(0).1);
        let work = match count {
            0 => "4 KiB random write, depth 32, no snapshot".to_owned(),
            1 => "the same, just after a snapshot".to_owned(),
            count => format!("the same, {count} snapshots"),
        };
        for peer in medians {
            let asked = if count == 0 { report::Target::None } else { report::Target::AtLeast(10.0) };
            report.against(&work, "IOPS", cairn, peer, asked);
        }
        if let Some(without) = without {
            let peer = ("cairn, no snapshot", without);
            report.against(&work, "IOPS", cairn, peer, report::Target::AtLeast(0.95));
        }
        without = without.or(cairn);
    }
    report.note(
        "A snapshot is made before each turn and deleted after it, with every contender. qcow2 beside 1,000 is a chain of 51: the \
         longest that was built here.",
    );
    Ok(())
}

/// One of those that are compared, with how many snapshots it has.
struct Contender {
    server: Box<dyn Snapshots>,
    made: usize,
}

impl Contender {
    fn new(server: Box<dyn Snapshots>) -> Self {
        Self { server, made: 0 }
    }

    fn snapshot(&mut self) -> Result<()> {
        self.server.snapshot(self.made)?;
        self.made += 1;
        Ok(())
    }

    fn forget(&mut self) -> Result<()> {
        self.made -= 1;
        self.server.forget(self.made)
    }

    /// Makes snapshots until there are `count`, with a few writes between them.
    fn grow_to(&mut self, count: usize, plan: &Plan, load: &Load) -> Result<()> {
        while self.made < count.min(self.server.snapshots_max()) {
            if self.made.is_multiple_of(20) {
                let some = Load { until: Until::Bytes(BETWEEN_BYTES), ..*load };
                some.run(&self.server.target(plan)?)?;
            }
            self.snapshot()?;
        }
        Ok(())
    }
}

/// Latency of a client of a 100 GiB volume while snapshots are made, and create, list and delete
/// with 10 and 10,000.
pub(crate) fn creation(plan: &Plan, report: &mut Report) -> Result<()> {
    if plan.only_peers {
        report.note("No peer takes part in this table.");
        return Ok(());
    }
    let cairn = Cairn::start(plan, "creation-cairn", "off", MEMORY_DEFAULT_MIB)?;
    let lun_bytes = plan.export_bytes();
    cairn.make_lun(100 << 30, lun_bytes)?;
    Load::fill(lun_bytes).run(&cairn.target(plan)?)?;
    settle()?;

    // A steady client: its worst request counts, with snapshots and without.
    let load = Load::small("randwrite", 4, lun_bytes, plan.turn());
    let (mut quiet, mut busy) = (Vec::new(), Vec::new());
    let mut made = 0;
    for _ in 0..plan.rounds() {
        quiet.push(load.run(&cairn.target(plan)?)?.worst_us / 1e3);
        let seen = std::thread::scope(|scope| {
            let client = scope.spawn(|| load.run(&cairn.target(plan)?));
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
