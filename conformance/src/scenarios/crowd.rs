//! Many of everything: snapshots, LUNs, connections; and the memory limit under all that clients
//! can ask for.

use std::time::Instant;

use anyhow::{Context, Result, bail};
use cairn_base::{BLOCK_SIZE, Rng};
use cairn_frontend_nbd::{Client, ClientRequest};

use crate::model::content;
use crate::probe::{PROBE_BYTES, Probe};
use crate::scenario::{Facts, Verdict, World};
use crate::server::Cairn;

/// The memory of a server besides its volumes: the program itself and its threads, and up to 32 MiB
/// for data in transfer of all sessions, with a quarter of a MiB for each when that is used up.
const BESIDE_CACHE_BYTES: u64 = 64 << 20;
/// The memory that each session may hold in addition, however many there are: its least window and
/// its receive buffer, 256 KiB each.
const SESSION_BYTES: u64 = 512 << 10;

fn with_probe(world: &World, arguments: &[&str]) -> Result<(Cairn, Probe)> {
    let cairn = Cairn::start(world, "server", &[&["--mirror", "off"], arguments].concat())?;
    cairn.cli(&["volume", "create", "vol0", "--size", "4G"])?;
    cairn.cli(&["lun", "create", "vol0/lun", "--size", &PROBE_BYTES.to_string()])?;
    let probe = Probe::new(&cairn, "vol0/lun", world.seed)?;
    Ok((cairn, probe))
}

/// Ten thousand snapshots of a volume that is in use, a restart with them, and their deletion.
pub(crate) fn snapshots(world: &World, _rounds: u32) -> Result<Verdict> {
    let count: u64 = if world.short { 200 } else { 10_000 };
    let (cairn, mut probe) = with_probe(world, &[])?;
    let mut facts = Facts::default();
    std::thread::scope(|scope| -> Result<()> {
        let making = scope.spawn(|| -> Result<()> {
            for index in 0..count {
                cairn.cli(&["snapshot", "create", &format!("vol0@s{index}")])?;
            }
            Ok(())
        });
        let judged = probe.judge_until("snapshots that are made", &mut facts, || making.is_finished());
        making.join().map_err(|_| anyhow::anyhow!("the maker of snapshots panicked"))??;
        judged
    })?;
    probe.judge("thousands of snapshots", &mut facts)?;
    let listed = |facts: &mut Facts, what| -> Result<usize> {
        let start = Instant::now();
        let list = cairn.json(&["snapshot", "list", "vol0"])?;
        facts.max(what, start.elapsed().as_millis() as u64);
        Ok(list.as_array().context("no list")?.len())
    };
    if listed(&mut facts, "ms to list")? != count as usize {
        bail!("not every snapshot is listed");
    }
    drop(probe);
    cairn.kill()?;
    let start = Instant::now();
    cairn.serve()?;
    facts.max("ms to start with them after a kill", start.elapsed().as_millis() as u64);
    if listed(&mut facts, "ms to list")? != count as usize {
        bail!("not every snapshot is listed after a kill");
    }
    let start = Instant::now();
    cairn.disk("vol0@s0/lun")?.read(0, BLOCK_SIZE as u32)?;
    facts.max("ms to open the oldest", start.elapsed().as_millis() as u64);
    cairn.check("vol0")?;
    let names: Vec<String> = (0..count).map(|index| format!("vol0@s{index}")).collect();
    for some in names.chunks(500) {
        let mut arguments = vec!["snapshot", "delete", "--yes"];
        arguments.extend(some.iter().map(String::as_str));
        cairn.cli(&arguments)?;
    }
    if listed(&mut facts, "ms to list")? != 0 {
        bail!("snapshots are left");
    }
    cairn.check("vol0")?;
    cairn.log_is_clean()?;
    facts.add("snapshots", count);
    Ok(Verdict::Passed(facts))
}

/// A thousand LUNs: made, listed, exported, opened, there after a kill.
pub(crate) fn luns(world: &World, _rounds: u32) -> Result<Verdict> {
    let count: u32 = if world.short { 60 } else { 1000 };
    let (cairn, mut probe) = with_probe(world, &[])?;
    let mut facts = Facts::default();
    let name = |index: u32| format!("vol0/l{index}");
    std::thread::scope(|scope| -> Result<()> {
        let making = scope.spawn(|| -> Result<()> {
            for index in 0..count {
                cairn.cli(&["lun", "create", &name(index), "--size", "16M"])?;
                let mut disk = cairn.disk(&name(index))?;
                disk.write(0, &content(2, index, 1))?;
                disk.flush()?;
            }
            Ok(())
        });
        let judged = probe.judge_until("LUNs that are made", &mut facts, || making.is_finished());
        making.join().map_err(|_| anyhow::anyhow!("the maker of LUNs panicked"))??;
        judged
    })?;
    drop(probe);
    cairn.kill()?;
    let start = Instant::now();
    cairn.serve()?;
    facts.max("ms to start with them after a kill", start.elapsed().as_millis() as u64);
    let start = Instant::now();
    let listed = cairn.json(&["lun", "list", "vol0"])?.as_array().context("no list")?.len();
    facts.max("ms to list", start.elapsed().as_millis() as u64);
    if listed != count as usize + 1 {
        bail!("{listed} LUNs are listed, not {}", count + 1);
    }
    for index in 0..count {
        let start = Instant::now();
        let mut disk = cairn.disk(&name(index))?;
        facts.max("us to open, the longest", start.elapsed().as_micros() as u64);
        if disk.read(0, BLOCK_SIZE as u32)? != content(2, index, 1) {
            bail!("LUN {index} does not have what was flushed");
        }
    }
    cairn.check("vol0")?;
    cairn.log_is_clean()?;
    facts.add("luns", u64::from(count));
    Ok(Verdict::Passed(facts))
}

/// Two hundred sessions that all work, and one too many.
pub(crate) fn connections(world: &World, rounds: u32) -> Result<Verdict> {
    /// As many as a server takes in addition to the probe and the commands.
    const SESSIONS: u32 = 200;
    /// The server's limit.
    const SESSIONS_MAX: u32 = 256;
    /// Blocks that each session has to itself.
    const OWN_BLOCKS: u32 = 8;
    let (cairn, mut probe) = with_probe(world, &[])?;
    let bytes = u64::from(SESSIONS * OWN_BLOCKS) * BLOCK_SIZE as u64;
    cairn.cli(&["lun", "create", "vol0/db", "--size", &bytes.to_string()])?;
    let mut facts = Facts::default();
    let connect = |count| (0..count).map(|_| cairn.disk("vol0/db")).collect::<Result<Vec<Client>>>();
    let mut disks = connect(SESSIONS)?;
    probe.judge("200 sessions that do nothing", &mut facts)?;
    for round in 1..=rounds {
        // All at once: a request of each is in flight before the first answer is taken.
        for (index, disk) in (0..).zip(&mut disks) {
            let block = index * OWN_BLOCKS + round % OWN_BLOCKS;
            let offset = u64::from(block) * BLOCK_SIZE as u64;
            disk.submit(ClientRequest::Write {
                offset,
                data: &content(3, block, round),
                fua: round % 4 == 0,
            })?;
            disk.submit(ClientRequest::Flush)?;
        }
        for disk in &mut disks {
            while disk.in_flight() > 0 {
                disk.complete()?.outcome?;
            }
        }
        for (index, disk) in (0..).zip(&mut disks) {
            let block = index * OWN_BLOCKS + round % OWN_BLOCKS;
            if disk.read(u64::from(block) * BLOCK_SIZE as u64, BLOCK_SIZE as u32)? != content(3, block, round)
            {
                bail!("round {round}: session {index} does not read what it wrote");
            }
        }
        probe.judge("200 sessions that work", &mut facts)?;
        facts.add("rounds", 1);
    }
    let others = connect(SESSIONS_MAX - SESSIONS - 1)?;
    match cairn.disk("vol0/db") {
        Ok(_) => bail!("a session past the limit was let in"),
        Err(error) if format!("{error:#}").contains("sessions") => {}
        Err(error) => return Err(error.context("the message of one session too many is not clear")),
    }
    drop(others);
    drop(disks);
    probe.judge("sessions that went", &mut facts)?;
    probe.compare_all(&cairn, "vol0/lun").or_else(|_| {
        // Those that went hold their places until the server has noticed.
        crate::program::wait_until("a place is free", || Ok(cairn.disk("vol0/lun").is_ok()))?;
        probe.compare_all(&cairn, "vol0/lun")
    })?;
    cairn.log_is_clean()?;
    facts.add("sessions", u64::from(SESSIONS));
    Ok(Verdict::Passed(facts))
}

/// The memory limit, under writes and reads of far more than it, by one client and by many.
pub(crate) fn memory(world: &World, rounds: u32) -> Result<Verdict> {
    const CACHE_BYTES: u64 = 64 << 20;
    const CLIENTS: usize = 24;
    let lun_bytes: u64 = if world.short { 256 << 20 } else { 2 << 30 };
    let (cairn, mut probe) = with_probe(world, &["--cache", &CACHE_BYTES.to_string()])?;
    cairn.cli(&["lun", "create", "vol0/db", "--size", &lun_bytes.to_string()])?;
    let mut facts = Facts::default();
    let mut rng = Rng::new(world.seed);
    let mut bytes = vec![0; 1 << 20];
    for round in 0..rounds {
        let mut disk = cairn.disk("vol0/db")?;
        for offset in (0..lun_bytes).step_by(bytes.len()) {
            rng.fill(&mut bytes);
            while disk.in_flight() >= 16 {
                disk.complete()?.outcome?;
            }
            disk.submit(ClientRequest::Write { offset, data: &bytes, fua: false })?;
        }
        while disk.in_flight() > 0 {
            disk.complete()?.outcome?;
        }
        disk.flush()?;
        facts.max("MiB of the server with one client", cairn.memory_max()? >> 20);
        // Clients that ask for much at once, and take nothing of it.
        let mut disks = Vec::new();
        for _ in 0..CLIENTS {
            let mut disk = cairn.disk("vol0/db")?;
            for _ in 0..4 {
                let offset = rng.below(lun_bytes - (32 << 20)) / 4096 * 4096;
                disk.submit(ClientRequest::Read { offset, length: 32 << 20 })?;
            }
            disks.push(disk);
        }
        probe.judge("clients that take no replies", &mut facts)?;
        facts.max("MiB of the server with all of them", cairn.memory_max()? >> 20);
        drop(disks);
        probe.judge("clients that went", &mut facts).with_context(|| format!("round {round}"))?;
        facts.add("rounds", 1);
    }
    let limit = CACHE_BYTES + BESIDE_CACHE_BYTES + CLIENTS as u64 * SESSION_BYTES;
    if cairn.memory_max()? > limit {
        bail!(
            "the server took {} MiB at most, with a limit of {} MiB for its volume: {facts}",
            cairn.memory_max()? >> 20,
            CACHE_BYTES >> 20
        );
    }
    cairn.log_is_clean()?;
    Ok(Verdict::Passed(facts))
}
