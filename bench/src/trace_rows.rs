//! The cost of a recording of an export for its clients: the same load on the same LUN with `cairn
//! trace record` and without, in turns.

use anyhow::{Context, Result, ensure};

use crate::Plan;
use crate::cairn::{Cairn, MEMORY_DEFAULT_MIB};
use crate::fio::{Load, Seen, Target};
use crate::process::settle;
use crate::report::Target::{AtLeast, Limit};
use crate::report::{self, Report, median};

/// Pairs of turns: the target is a few percent, and a shared machine drifts by more from one minute
/// to the next.
const PAIRS: usize = 12;
/// The allowed cost of a recording: 3 %.
const ASKED: f64 = 0.97;
/// Where the recordings of the LUN go, in the bench's own folder.
const EXPORT: &str = "vol0/db";

/// The table.
pub(crate) fn trace(plan: &Plan, report: &mut Report) -> Result<()> {
    let bytes = plan.export_bytes() / 8;
    plan.ask_room(8)?;
    let cairn = Cairn::start(plan, "trace-cairn", "off", MEMORY_DEFAULT_MIB)?;
    cairn.make_lun(bytes * 3, bytes)?;
    let target = Target { server: cairn.server()?, uri: cairn.lun()?, scratch: &plan.folder };
    Load::fill(bytes).run(&target)?;
    settle()?;
    for (work, load) in [
        ("4 KiB random write, depth 32", Load::small("randwrite", 32, bytes, plan.turn())),
        ("4 KiB random read, depth 32, in cache", Load::small("randread", 32, 64 << 20, plan.turn())),
    ] {
        if plan.wants(work) {
            compare(plan, report, &cairn, &target, work, &load)?;
        }
    }
    let work = "bytes of a recording that may take 1 MiB";
    if plan.wants(work) {
        let load = Load::small("randwrite", 32, bytes, plan.turn());
        let path = begin(plan, &cairn, "bounded", &["--max", "1M"])?;
        load.run(&target)?;
        cairn.cli(&["trace", "record", EXPORT, "--stop"])?;
        let length = std::fs::metadata(&path)?.len();
        report.alone(work, "bytes", length as f64, Limit(f64::from(1 << 20)));
    }
    Ok(())
}

/// Begins a recording into a file of its own; returns its path.
fn begin(plan: &Plan, cairn: &Cairn, name: &str, limits: &[&str]) -> Result<std::path::PathBuf> {
    let path = plan.folder.join(format!("{name}.ctr"));
    let to = path.display().to_string();
    cairn.cli(&[&["trace", "record", EXPORT, "--to", &to], limits].concat())?;
    Ok(path)
}

/// Pairs of turns of one load, one of which is recorded; the order alternates.
fn compare(
    plan: &Plan,
    report: &mut Report,
    cairn: &Cairn,
    target: &Target<'_>,
    work: &str,
    load: &Load,
) -> Result<()> {
    let (mut plain, mut recorded, mut each) = (Vec::new(), Vec::new(), Vec::new());
    let pairs = plan.turns.unwrap_or(if plan.quick { 1 } else { PAIRS });
    for pair in 0..pairs {
        for turn in 0..2 {
            let records = (pair + turn) % 2 == 1;
            let file = records.then(|| begin(plan, cairn, "cost", &[])).transpose()?;
            let seen = load.run(target)?;
            if let Some(path) = file {
                cairn.cli(&["trace", "record", EXPORT, "--stop"])?;
                each.push(std::fs::metadata(&path)?.len() as f64 / (seen.iops * plan.turn().as_secs_f64()));
                std::fs::remove_file(path)?;
            }
            let name = if records { "recorded" } else { "not recorded" };
            eprintln!("   {work}: {name}: {:.0} IOPS, {:.2} s per 100,000", seen.iops, seen.cpu_per_100k);
            if records { &mut recorded } else { &mut plain }.push(seen);
            settle()?;
        }
    }
    ensure!(!each.is_empty() && !plain.is_empty(), "a table has a pair of turns at least");
    let of = |turns: &[Seen], figure: fn(&Seen) -> f64| median(turns.iter().map(figure).collect());
    let mut row = |what: &str, unit, figure: fn(&Seen) -> f64, asked| {
        let peer = ("not recorded", of(&plain, figure));
        report.against(format!("{work}, recorded{what}"), unit, Some(of(&recorded, figure)), peer, asked);
    };
    row("", "IOPS", |seen| seen.iops, AtLeast(ASKED));
    row(": server CPU", "s per 100,000", |seen| seen.cpu_per_100k, report::Target::None);
    let ratios = recorded.iter().zip(&plain).map(|(with, without)| with.iops / without.iops);
    let mut ratios: Vec<f64> = ratios.collect();
    ratios.sort_by(f64::total_cmp);
    let (first, last) = (ratios.first().context("a pair")?, ratios.last().context("a pair")?);
    report.note(format!(
        "{work}: {pairs} pairs of turns of {} s; the recorded one was {first:.3} to {last:.3} times the other of its pair, {:.3} in the median, and took {:.1} bytes of trace for a request.",
        plan.turn().as_secs(),
        median(ratios.clone()),
        median(each),
    ));
    Ok(())
}
