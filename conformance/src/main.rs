//! `cairn-conformance NAME|all [ROUNDS] [--seed N] [--power-cuts] [--cairn PATH] [--dir PATH]`: the
//! long runs.
//!
//! With `--power-cuts` a killed server loses its unflushed data; without, the kernel and the disk
//! still have it. Each scenario prints one row for bench/results. One that fails keeps its folder
//! and prints the seed.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use cairn_conformance::{SCENARIOS, Scenario, Verdict, World, find_cairn};

struct Wishes {
    scenarios: Vec<&'static Scenario>,
    rounds: Option<u32>,
    seed: u64,
    cairn: PathBuf,
    folder: PathBuf,
    short: bool,
    power_cuts: bool,
}

fn usage() -> String {
    let mut text =
        "usage: cairn-conformance NAME|all [ROUNDS] [--seed N] [--short] [--power-cuts] [--cairn PATH] [--dir PATH]\n"
            .to_owned();
    for scenario in SCENARIOS {
        text.push_str(&format!("  {:16} {}\n", scenario.name, scenario.shows));
    }
    text
}

fn wishes() -> Result<Option<Wishes>> {
    let (mut plain, mut seed) = (Vec::new(), 1);
    let (mut short, mut power_cuts) = (false, false);
    let (mut cairn, mut folder) = (None, std::env::temp_dir());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().with_context(|| format!("{argument} needs a value"));
        match argument.as_str() {
            "--seed" => seed = value()?.parse().context("--seed takes a number")?,
            "--cairn" => cairn = Some(PathBuf::from(value()?)),
            "--dir" => folder = PathBuf::from(value()?),
            "--short" => short = true,
            "--power-cuts" => power_cuts = true,
            "--help" | "-h" => return Ok(None),
            _ if argument.starts_with('-') => bail!("unknown option {argument}\n{}", usage()),
            _ => plain.push(argument),
        }
    }
    let (name, rounds) = match plain.as_slice() {
        [name] => (name, None),
        [name, rounds] => (name, Some(rounds.parse().context("ROUNDS is a number")?)),
        _ => return Ok(None),
    };
    let mut scenarios: Vec<_> =
        SCENARIOS.iter().filter(|scenario| name == "all" || scenario.name == name).collect();
    if scenarios.is_empty() {
        // A family, such as `buckets`.
        let of_family = |scenario: &&Scenario| scenario.name.starts_with(&format!("{name}-"));
        scenarios = SCENARIOS.iter().filter(of_family).collect();
    }
    if scenarios.is_empty() {
        bail!("there is no scenario {name}\n{}", usage());
    }
    let cairn = match cairn {
        Some(path) => path,
        None => find_cairn()?,
    };
    Ok(Some(Wishes { scenarios, rounds, seed, cairn, folder, short, power_cuts }))
}

fn main() -> Result<()> {
    let Some(wishes) = wishes()? else {
        print!("{}", usage());
        return Ok(());
    };
    let mut failed = 0;
    println!("| scenario | rounds | seed | minutes | seen |\n|---|---|---|---|---|");
    for scenario in wishes.scenarios {
        let rounds = wishes.rounds.unwrap_or(scenario.rounds);
        let folder = tempfile::Builder::new().prefix("cairn-conformance-").tempdir_in(&wishes.folder)?;
        let world = World {
            cairn: wishes.cairn.clone(),
            folder: folder.path().to_owned(),
            seed: wishes.seed,
            short: wishes.short,
            power_cuts: wishes.power_cuts,
        };
        let start = Instant::now();
        let verdict = (scenario.run)(&world, rounds);
        let minutes = start.elapsed().as_secs_f64() / 60.0;
        let row = format!("| {} | {rounds} | {} | {minutes:.1} |", scenario.name, wishes.seed);
        match verdict {
            Ok(Verdict::Passed(facts)) => println!("{row} {facts} |"),
            Ok(Verdict::Skipped { needs, .. }) => println!("{row} skipped: {needs} |"),
            Err(error) => {
                failed += 1;
                let kept = folder.keep();
                println!("{row} **failed**: {error:#} (kept: {}) |", kept.display());
            }
        }
    }
    if failed > 0 {
        bail!("{failed} failed");
    }
    Ok(())
}
