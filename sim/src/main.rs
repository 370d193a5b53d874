//! `cairn-sim`: replays a seed as a timeline, runs a range of seeds, or runs until one fails.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use cairn_sim::{HEAD, Kind, LEGEND, Outcome, Tally, Timeline, run};

const USAGE: &str = "\
cairn-sim SEED [--kind KIND]          replay one seed as a timeline
cairn-sim --seeds A..B [--kind KIND]  run the seeds from A up to B; one line for each kind
cairn-sim --soak [MINUTES]            run new seeds until one fails, or for so long
KIND is one of volume, every-cut, media, image, mirror, every-message, continuous, every-step, mirror-media, mirror-full, chain, chain-every-cut, lying-source, lying-destination, group, group-every-cut, history, history-every-cut, files, files-every-cut; all of them where it is left out. --trace prints every run's timeline.";

struct Arguments {
    kinds: Vec<Kind>,
    seeds: std::ops::Range<u64>,
    print: bool,
    until: Option<Duration>,
}

fn arguments() -> Result<Arguments> {
    let mut parsed = Arguments { kinds: Kind::ALL.to_vec(), seeds: 0..0, print: false, until: None };
    let mut words = std::env::args().skip(1).peekable();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--help" | "-h" => {
                println!("{USAGE}");
                std::process::exit(0);
            }
            "--trace" => parsed.print = true,
            "--kind" => {
                let name = words.next().unwrap_or_default();
                let kind = Kind::ALL.into_iter().find(|kind| kind.name() == name);
                parsed.kinds = vec![kind.with_context(|| format!("no kind is called {name:?}\n{USAGE}"))?];
            }
            "--seeds" => {
                let range = words.next().unwrap_or_default();
                let (from, to) = range.split_once("..").with_context(|| USAGE)?;
                parsed.seeds = from.parse()?..to.parse()?;
            }
            "--soak" => {
                let minutes = match words.peek().and_then(|word| word.parse::<u64>().ok()) {
                    Some(minutes) => {
                        words.next();
                        minutes
                    }
                    None => u64::MAX / 60,
                };
                parsed.until = Some(Duration::from_secs(minutes * 60));
                parsed.seeds = seed_of_now()..u64::MAX;
            }
            seed => {
                let seed: u64 = seed.parse().with_context(|| USAGE)?;
                parsed.seeds = seed..seed + 1;
                parsed.print = true;
            }
        }
    }
    if parsed.seeds.is_empty() {
        bail!("{USAGE}");
    }
    Ok(parsed)
}

/// Soaks start where no other soak did.
fn seed_of_now() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs())
        << 16
}

fn main() -> Result<()> {
    let arguments = arguments()?;
    let start = Instant::now();
    if arguments.print {
        println!("{LEGEND}");
    }
    let mut totals = vec![(Tally::default(), Duration::ZERO); arguments.kinds.len()];
    for seed in arguments.seeds.clone() {
        if arguments.until.is_some_and(|until| start.elapsed() >= until) {
            break;
        }
        for (kind, (total, time)) in arguments.kinds.iter().zip(&mut totals) {
            let began = Instant::now();
            *total += one(*kind, seed, arguments.print)?.tally;
            *time += began.elapsed();
        }
    }
    let mut all = Tally::default();
    for (kind, (total, time)) in arguments.kinds.iter().zip(totals) {
        println!("{}: {}", kind.name(), total.rate(time));
        all += total;
    }
    println!("all: {}: no findings", all.rate(start.elapsed()));
    Ok(())
}

fn one(kind: Kind, seed: u64, print: bool) -> Result<Outcome> {
    let mut timeline = Timeline::new(print);
    if print {
        println!("seed {seed}, {}\n{HEAD}", kind.name());
    }
    let outcome = catch_unwind(AssertUnwindSafe(|| run(kind, seed, &mut timeline)));
    match outcome {
        Ok(Ok(outcome)) => {
            if print {
                println!("digest {:016x}, {} power cuts\n", outcome.digest, outcome.tally.cuts);
            }
            return Ok(outcome);
        }
        Ok(Err(error)) => eprintln!("seed {seed}, {}: {error:#}", kind.name()),
        Err(_) => eprintln!("seed {seed}, {}: the volume panicked", kind.name()),
    }
    if !print {
        eprintln!("{HEAD}");
        timeline.recent().for_each(|line| eprintln!("{line}"));
    }
    eprintln!("replay: cargo run --release -p cairn-sim -- {seed} --kind {}", kind.name());
    std::process::exit(1);
}
