//! PostgreSQL on a disk that remembers: a table is dropped under load, the last instant before that is found by looking at clones, the disk is
//! reverted, and the table is there with every transaction that was acknowledged before.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};

use crate::mount::{Mounted, Taken, cannot_mount};
use crate::postgres::{Ledger, Postgres, programs};
use crate::program::{run as run_program, wait_until};
use crate::scenario::{Facts, Verdict, World};
use crate::server::Cairn;

const VOLUME_BYTES: u64 = 2 << 30;
const LUN_BYTES: u64 = 512 << 20;
/// How each round's disk remembers.
const PLACEMENTS: [&str; 5] = ["hybrid", "logging", "checkpointing", "split-down-stream", "split-stream"];

/// The wall clock as `--at` takes it.
fn now() -> Result<String> {
    Ok(run_program(Command::new("date").args(["-u", "+%Y-%m-%d %H:%M:%S.%NZ"]))?.trim().to_owned())
}

/// Rounds, each with a placement of its own.
pub(crate) fn run(world: &World, rounds: u32) -> Result<Verdict> {
    if programs().is_none() {
        return Ok(Verdict::without("postgresql"));
    }
    // The database's user passes through.
    std::fs::set_permissions(&world.folder, std::fs::Permissions::from_mode(0o755))?;
    let cairn = Cairn::start(world, "rewound", &["--mirror", "off"])?;
    cairn.make_lun(VOLUME_BYTES, LUN_BYTES)?;
    if let Some(verdict) = cannot_mount(world, &cairn)? {
        return Ok(verdict);
    }
    let mut facts = Facts::default();
    for round in 0..rounds {
        let outcome = rewind(world, &cairn, round, &mut facts);
        outcome.with_context(|| format!("round {round}"))?;
        facts.add("rounds", 1);
    }
    cairn.check("vol0")?;
    cairn.log_is_clean()?;
    Ok(Verdict::Passed(facts))
}

/// Whether a clone of the instant has the table.
fn has_table(world: &World, cairn: &Cairn, at: &str, name: &str) -> Result<bool> {
    cairn.json(&["history", "clone", "disk0", "--at", at, "--as", name])?;
    // The disk as after a power cut at that instant: the journal and the log of the database bring it up.
    let mounted = Mounted::attach(world, cairn, &format!("disk0@{name}"), Taken::AfterKill)?;
    let mut postgres = Postgres::start(world, &mounted.folder, name, false)?;
    let found = postgres.sql("select to_regclass('acknowledged') is not null")?;
    postgres.stop()?;
    mounted.detach()?;
    end_sessions(|| cairn.cli(&["history", "clone", "disk0", "--delete", name, "--yes"]).is_ok())?;
    Ok(found.trim() == "t")
}

/// A client that was ended is a session for a moment longer.
fn end_sessions(mut done: impl FnMut() -> bool) -> Result<()> {
    wait_until("its sessions have ended", || Ok(done()))
}

fn rewind(world: &World, cairn: &Cairn, round: u32, facts: &mut Facts) -> Result<()> {
    let mut rng = world.rng(round);
    let placement = PLACEMENTS[round as usize % PLACEMENTS.len()];
    let history = world.folder.join(format!("history{round}"));
    let history = history.to_str().context("a path")?;
    let adopt =
        ["device", "adopt", "disk0", "--origin", "lun:vol0/db", "--history", history, "--history-size", "2G"];
    cairn.json(&[&adopt[..], &["--placement", placement, "--granularity", "every-write"]].concat())?;

    let mounted = Mounted::attach(world, cairn, "disk0", Taken::Empty)?;
    let mut postgres = Postgres::start(world, &mounted.folder, "rewound", true)?;
    postgres.make_tables()?;
    let ledger = Arc::new(Ledger::new(world)?);
    let load = postgres.load(world, &ledger)?;
    let wanted = 20 + rng.below(if world.short { 50 } else { 1000 });
    wait_until("transactions are acknowledged", || Ok(ledger.count() >= wanted || load.is_broken()))?;
    let early = now()?;
    let more = ledger.count() + 10;
    wait_until("more are acknowledged", || Ok(ledger.count() >= more || load.is_broken()))?;
    let promised = ledger.acknowledged();
    let before = now()?;
    postgres.sql("drop table acknowledged")?;
    let after = now()?;
    load.end();
    postgres.end_at_once()?;
    mounted.detach()?;

    // What somebody does who knows only that the table is gone.
    ensure!(has_table(world, cairn, &early, "early")?, "{placement}: the table was there at {early}");
    ensure!(!has_table(world, cairn, &after, "after")?, "{placement}: the table was gone at {after}");
    ensure!(has_table(world, cairn, &before, "before")?, "{placement}: the table was there at {before}");
    facts.add("clones that came up", 3);
    cairn.json(&["history", "revert", "disk0", "--at", &before, "--yes"])?;
    if rng.one_in(2) {
        // In the middle of the background copy.
        cairn.kill()?;
        facts.add("kills", 1 + cairn.serve_after_stumbling(&mut rng)?);
    }
    let mounted = Mounted::attach(world, cairn, "disk0", Taken::AfterKill)?;
    let mut postgres = Postgres::start(world, &mounted.folder, "rewound", false)?;
    let rows = postgres.compare(&ledger, &promised)?;
    postgres.check_indexes()?;
    facts.add("transactions brought back", promised.len() as u64);
    facts.add("rows found", rows);
    postgres.stop()?;
    mounted.detach()?;
    end_sessions(|| cairn.cli(&["device", "release", "disk0", "--yes"]).is_ok())?;

    // Without its history: the LUN alone.
    let mounted = Mounted::attach(world, cairn, "vol0/db", Taken::AfterKill)?;
    let mut postgres = Postgres::start(world, &mounted.folder, "rewound", false)?;
    postgres.compare(&ledger, &promised).context("after the release")?;
    postgres.stop()?;
    mounted.detach()?;
    std::fs::remove_file(history)?;
    Ok(())
}
