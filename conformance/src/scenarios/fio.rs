//! fio with its own verify: a job that has ended with a flush is whole after a kill, and after a
//! kill in the middle of the same job run again.
//!
//! The second run writes the same bytes over the first, so either version of a block is right. Any
//! other content (lost, torn, from another place) is wrong. fio does not survive its server, so
//! each pass is a process.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cairn_base::Rng;

use crate::program::{Running, is_installed, run as run_program};
use crate::scenario::{Facts, Verdict, World};
use crate::server::Cairn;

/// Places of the LUN that rounds take in turn.
const PLACES: u64 = 8;

/// A pass that writes, and leaves it to a later one to verify.
const WRITE: &[&str] = &["--do_verify=0"];
/// A pass that reads the data that the same job wrote. Without `do_verify` it would read nothing,
/// and find no fault.
const VERIFY: &[&str] = &["--verify_only", "--do_verify=1"];

/// A run of the scenario.
pub(crate) fn run(world: &World, rounds: u32) -> Result<Verdict> {
    if !is_installed("fio") {
        return Ok(Verdict::without("fio"));
    }
    if run_program(Command::new("fio").arg("--enghelp=nbd")).is_err() {
        return Ok(Verdict::without("fio with ioengine=nbd"));
    }
    let place_bytes: u64 = if world.short { 4 << 20 } else { 16 << 20 };
    let cairn = Cairn::start_alone(world, "server")?;
    cairn.make_lun(place_bytes * PLACES * 3 + (64 << 20), place_bytes * PLACES)?;
    let mut facts = Facts::default();
    for round in 0..rounds {
        let mut rng = world.rng(round);
        let job = Job {
            world,
            cairn: &cairn,
            offset: u64::from(round) % PLACES * place_bytes,
            bytes: place_bytes,
            seed: rng.below(1 << 30),
        };
        one(&job, &mut facts, &mut rng).with_context(|| format!("round {round}"))?;
        facts.add("rounds", 1);
    }
    cairn.log_is_clean()?;
    Ok(Verdict::Passed(facts))
}

fn one(job: &Job<'_>, facts: &mut Facts, rng: &mut Rng) -> Result<()> {
    job.start(WRITE)?.succeeds()?;
    job.cairn.kill()?;
    facts.add("kills", 1 + job.cairn.serve_after_stumbling(rng)?);
    job.verify().context("after a job that ended with a flush")?;

    let mut again = job.start(WRITE)?;
    let ended = again.ended_within(Duration::from_micros(rng.below(400_000)))?;
    job.cairn.kill()?;
    match ended {
        Some(status) if !status.success() => bail!("fio failed before the kill: {}", again.tail()),
        Some(_) => facts.add("kills after the job", 1),
        None => facts.add("kills within the job", 1),
    }
    drop(again);
    facts.add("kills", 1 + job.cairn.serve_after_stumbling(rng)?);
    job.verify().context("after a kill in the middle of the same job")?;
    facts.add("verify passes", 2);
    job.cairn.check("vol0")
}

/// Random writes over a part of the LUN, each block with fio's header and checksum.
struct Job<'a> {
    world: &'a World,
    cairn: &'a Cairn,
    offset: u64,
    bytes: u64,
    seed: u64,
}

impl Job<'_> {
    fn start(&self, more: &[&str]) -> Result<Running> {
        let mut fio = Command::new("fio");
        fio.args(["--name=job", "--ioengine=nbd", "--thread", "--rw=randwrite", "--bs=4k", "--iodepth=16"])
            .args(["--verify=crc32c", "--verify_fatal=1", "--fsync=64", "--end_fsync=1"])
            .arg(format!("--uri={}", self.cairn.uri("vol0/db")))
            .arg(format!("--offset={}", self.offset))
            .arg(format!("--size={}", self.bytes))
            .arg(format!("--randseed={}", self.seed))
            .args(more)
            // Writes nothing into the folder that it was started in.
            .current_dir(&self.world.folder);
        Running::start(&mut fio, &self.world.folder.join("fio.log"))
    }

    fn verify(&self) -> Result<()> {
        self.start(VERIFY)?.succeeds()
    }
}
