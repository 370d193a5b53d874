//! Cost as it grows: large LUNs, many LUNs, many sessions; volumes that are nearly full; a client
//! beside one that writes in bulk.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::Plan;
use crate::cairn::{Cairn, MEMORY_DEFAULT_MIB, VOLUME};
use crate::fio::{self, Load, Seen, Until};
use crate::process::settle;
use crate::report::{Report, Target, median};
use crate::snapshot_peers::Snapshots;

const MIB: f64 = (1 << 20) as f64;

/// Memory, CPU for each I/O and time to open, as LUNs get larger and more, and sessions more.
pub(crate) fn scale(plan: &Plan, report: &mut Report) -> Result<()> {
    if plan.only_peers {
        report.note("No peer takes part in this table.");
        return Ok(());
    }
    let (gib, tib) = (1u64 << 30, 1u64 << 40);
    let sizes: &[(u64, &str)] = match plan.quick {
        true => &[(gib, "1 GiB"), (10 * gib, "10 GiB")],
        false => &[(100 * gib, "100 GiB"), (tib, "1 TiB"), (10 * tib, "10 TiB")],
    };
    let mut first = None;
    for (bytes, size) in sizes {
        let cost = cost_of(plan, *bytes, 1, 1)?;
        cost.report(report, &format!("one LUN of {size}, sparse"), first.get_or_insert(cost));
    }
    let counts: &[u64] = if plan.quick { &[1, 4] } else { &[1, 8, 64] };
    let mut first = None;
    for luns in counts {
        let cost = cost_of(plan, gib, *luns, 1)?;
        let work = if *luns == 1 { "one LUN of 1 GiB".into() } else { format!("{luns} LUNs of 1 GiB") };
        cost.report(report, &work, first.get_or_insert(cost));
    }
    let counts: &[u64] = if plan.quick { &[1, 8] } else { &[1, 16, 256] };
    let mut first = None;
    for sessions in counts {
        let cost = cost_of(plan, gib, 1, *sessions)?;
        let work = match sessions {
            1 => "one session".into(),
            many => format!("{many} sessions, all but one idle"),
        };
        cost.report(report, &work, first.get_or_insert(cost));
    }
    report.note(
        "Each row has a server of its own with the default memory. The load is 4 KiB random writes and reads at depth 32 over all of one LUN. \
         The ratio is to the first row of its kind. The server is killed before it is opened.",
    );
    Ok(())
}

/// The cost of one arrangement.
#[derive(Clone, Copy)]
struct Cost {
    memory_mib: f64,
    write_cpu: f64,
    read_cpu: f64,
    open_ms: f64,
}

impl Cost {
    fn report(&self, report: &mut Report, work: &str, first: &Cost) {
        let rows = [
            ("most memory", "MiB", self.memory_mib, first.memory_mib),
            ("server CPU of 100,000 writes", "s", self.write_cpu, first.write_cpu),
            ("server CPU of 100,000 reads", "s", self.read_cpu, first.read_cpu),
            ("time to open after kill -9", "ms", self.open_ms, first.open_ms),
        ];
        for (what, unit, now, first) in rows {
            report.against(format!("{work}: {what}"), unit, Some(now), ("the first", first), Target::None);
        }
    }
}

fn cost_of(plan: &Plan, lun_bytes: u64, luns: u64, sessions: u64) -> Result<Cost> {
    let name = format!("scale-{lun_bytes}-{luns}-{sessions}");
    let mut cairn = Cairn::start(plan, &name, "off", MEMORY_DEFAULT_MIB)?;
    cairn.make_lun(lun_bytes * luns + lun_bytes / 8 + (2 << 30), lun_bytes)?;
    for lun in 1..luns {
        cairn.cli(&["lun", "create", &format!("{VOLUME}/l{lun}"), "--size", &lun_bytes.to_string()])?;
    }
    let idle: Vec<UnixStream> =
        (1..sessions).map(|_| idle_session(&cairn, &format!("{VOLUME}/db"))).collect::<Result<_>>()?;
    let write = Load::small("randwrite", 32, lun_bytes, plan.turn()).run(&cairn.target(plan)?)?;
    let read = Load::small("randread", 32, lun_bytes, plan.turn()).run(&cairn.target(plan)?)?;
    let memory_mib = cairn.server()?.memory_max()? as f64 / MIB;
    drop(idle);
    cairn.kill()?;
    settle()?;
    let began = Instant::now();
    cairn.serve()?;
    // The first read is part of it: a server that answers and has no volume yet is not open.
    drop(idle_session(&cairn, &format!("{VOLUME}/db"))?);
    let open_ms = began.elapsed().as_secs_f64() * 1e3;
    cairn.end()?;
    std::fs::remove_dir_all(cairn.folder())?;
    Ok(Cost { memory_mib, write_cpu: write.cpu_per_100k, read_cpu: read.cpu_per_100k, open_ms })
}

/// A session that has negotiated and sends nothing.
fn idle_session(cairn: &Cairn, export: &str) -> Result<UnixStream> {
    let mut stream = UnixStream::connect(cairn.folder().join("nbd.sock"))?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting)?;
    ensure!(&greeting[..8] == b"NBDMAGIC", "no NBD server");
    // Fixed newstyle without zeroes, and the option that ends the negotiation.
    let mut request = 3u32.to_be_bytes().to_vec();
    request.extend(b"IHAVEOPT");
    request.extend(1u32.to_be_bytes());
    request.extend((export.len() as u32).to_be_bytes());
    request.extend(export.as_bytes());
    stream.write_all(&request)?;
    let mut answer = [0; 10];
    stream.read_exact(&mut answer).context("the export is not open")?;
    Ok(stream)
}

/// 4 KiB random writes on a volume that is 80 to 98 % full and has 50 snapshots, next to an empty
/// one.
pub(crate) fn full(plan: &Plan, report: &mut Report) -> Result<()> {
    if plan.only_peers {
        report.note("No peer takes part in this table.");
        return Ok(());
    }
    let gib = if plan.quick { 64u64 << 20 } else { 1 << 30 };
    let (volume, working) = (16 * gib, gib);
    let length = Duration::from_secs(if plan.quick { 2 } else { 60 });
    let load = Load::small("randwrite", 32, working, length);
    let mut seen: Vec<(String, Seen)> = Vec::new();
    for percent in [0u64, 80, 90, 95, 98] {
        let cairn = Cairn::start(plan, &format!("full-{percent}"), "off", MEMORY_DEFAULT_MIB)?;
        cairn.make_lun(volume, working)?;
        Load::fill(working).run(&cairn.target(plan)?)?;
        if percent > 0 {
            // A few blocks change between the snapshots. After one more round of writes they hold
            // all of the working set once.
            for number in 0..50 {
                cairn.cli(&["snapshot", "create", &format!("{VOLUME}@s{number}")])?;
                Load { until: Until::Bytes(1 << 20), ..load }.run(&cairn.target(plan)?)?;
            }
            Load::fill(working).run(&cairn.target(plan)?)?;
            fill_to(plan, &cairn, percent)?;
        }
        settle()?;
        let measured = load.run(&cairn.target(plan)?)?;
        let name = if percent == 0 { "empty".into() } else { format!("{percent} % full, 50 snapshots") };
        seen.push((name, measured));
        cairn.cli(&["volume", "check", VOLUME])?;
        drop_server(cairn)?;
    }
    let empty = seen[0].1;
    for (name, seen) in &seen {
        let work = format!("4 KiB random write, depth 32, {name}");
        let target = if name.starts_with("95") { Target::AtLeast(0.8) } else { Target::None };
        report.against(&work, "IOPS", Some(seen.iops), ("empty", empty.iops), target);
        report.alone(format!("{work}, worst"), "ms", seen.worst_us / 1e3, Target::Limit(100.0));
    }
    report.note(format!(
        "A volume of {} MiB with a LUN of {} MiB under load for {} s; another LUN fills the rest.",
        volume >> 20,
        working >> 20,
        length.as_secs()
    ));
    Ok(())
}

fn drop_server(mut cairn: Cairn) -> Result<()> {
    cairn.end()?;
    Ok(std::fs::remove_dir_all(cairn.folder())?)
}

/// Fills the volume with a second LUN up to a part of its size.
fn fill_to(plan: &Plan, cairn: &Cairn, percent: u64) -> Result<()> {
    let volume = cairn.json(&["volume", "show", VOLUME])?;
    let number = |name: &str| volume[name].as_u64().with_context(|| format!("{name} in {volume}"));
    let (size, free) = (number("size_bytes")?, number("free_bytes")?);
    let bytes = free.saturating_sub(size * (100 - percent) / 100) / 4096 * 4096;
    cairn.cli(&["lun", "create", &format!("{VOLUME}/rest"), "--size", &bytes.to_string()])?;
    let uri = cairn.server()?.uri(&format!("{VOLUME}/rest"));
    let target = fio::Target { server: cairn.server()?, uri, scratch: &plan.folder };
    Load::fill(bytes).run(&target).map(drop)
}

/// The response of a client that reads 4 KiB, alone and beside a client that writes in bulk.
pub(crate) fn beside(plan: &Plan, report: &mut Report) -> Result<()> {
    if plan.only_peers {
        report.note("No peer takes part in this table.");
        return Ok(());
    }
    let bytes = plan.export_bytes();
    let cairn = Cairn::start(plan, "beside", "off", MEMORY_DEFAULT_MIB)?;
    cairn.make_lun(bytes * 4, plan.cached_bytes() / 2)?;
    cairn.cli(&["lun", "create", "vol0/bulk", "--size", &bytes.to_string()])?;
    let reads = Load { iops: 500, ..Load::small("randread", 1, plan.cached_bytes() / 2, plan.turn()) };
    Load::fill(plan.cached_bytes() / 2).run(&cairn.target(plan)?)?;
    let scratch = plan.folder.join("bulk");
    std::fs::create_dir_all(&scratch)?;
    let uri = cairn.server()?.uri("vol0/bulk");
    let bulk = fio::Target { server: cairn.server()?, uri, scratch: &scratch };
    let writes = Load::large("write", bytes, plan.turn() + Duration::from_secs(2));
    let (mut alone, mut with) = (Vec::new(), Vec::new());
    for _ in 0..plan.rounds() {
        settle()?;
        alone.push(reads.run(&cairn.target(plan)?)?.p99_us);
        let seen = std::thread::scope(|scope| -> Result<Seen> {
            let writer = scope.spawn(|| writes.run(&bulk));
            std::thread::sleep(Duration::from_secs(1));
            let seen = reads.run(&cairn.target(plan)?);
            writer.join().map_err(|_| anyhow::anyhow!("the writer panicked"))??;
            seen
        })?;
        with.push(seen.p99_us);
    }
    report.against(
        "4 KiB read, 500 a second, beside 128 KiB writes at depth 32: p99",
        "us",
        Some(median(with)),
        ("alone", median(alone)),
        Target::AtMost(3.0),
    );
    Ok(())
}
