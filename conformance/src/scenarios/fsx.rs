//! fsx on an ext4 of a LUN: it finds no fault while the server runs, and after a kill the file
//! system is whole and fsx starts anew.
//!
//! fsx itself does not survive the loss of its disk: its killed run proves nothing by its own
//! result. Only e2fsck and the next run count.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::mount::{Mounted, Taken, cannot_mount};
use crate::program::{Running, is_installed, run as run_program};
use crate::scenario::{Facts, Verdict, World};
use crate::server::Cairn;

/// A run of the scenario.
pub(crate) fn run(world: &World, rounds: u32) -> Result<Verdict> {
    if !is_installed("fsx") {
        // It comes from cargo, not from a package, so a missing one is not an error.
        let needs = "fsx is not installed (cargo install fsx)".to_owned();
        return Ok(Verdict::Skipped { needs, kernel: true });
    }
    let cairn = Cairn::start_alone(world, "server")?;
    cairn.make_lun(512 << 20, 128 << 20)?;
    if let Some(verdict) = cannot_mount(world, &cairn)? {
        return Ok(verdict);
    }
    let operations = if world.short { 300 } else { 3000 };
    let mut facts = Facts::default();
    let mut mounted = Mounted::attach(world, &cairn, "vol0/db", Taken::Empty)?;
    for round in 0..rounds {
        let mut rng = world.rng(round);
        let mut whole = Command::new("fsx");
        whole.args(["-N", &operations.to_string(), "-S", &rng.below(1 << 31).to_string()]);
        whole.arg("-q").arg("-P").arg(&world.folder);
        run_program(whole.arg(mounted.folder.join("whole"))).with_context(|| format!("round {round}"))?;
        facts.add("operations", operations);

        let mut cut = Command::new("fsx");
        cut.args(["-q", "-S", &rng.below(1 << 31).to_string(), "-P"]).arg(&world.folder);
        cut.arg(mounted.folder.join("cut"));
        let mut cut = Running::start(&mut cut, &world.folder.join("fsx.log"))?;
        cut.ended_within(Duration::from_micros(rng.below(500_000)))?;
        cairn.kill()?;
        drop(cut);
        mounted.detach()?;
        facts.add("kills", 1 + cairn.serve_after_stumbling(&mut rng)?);
        cairn.check("vol0")?;
        mounted = Mounted::attach(world, &cairn, "vol0/db", Taken::AfterKill)
            .with_context(|| format!("round {round}"))?;
        facts.add("rounds", 1);
    }
    mounted.detach()?;
    cairn.log_is_clean()?;
    Ok(Verdict::Passed(facts))
}
